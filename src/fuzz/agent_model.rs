//! A model of the clients and the agent processes of a shared agent.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

use super::agent_batches::Awaited;
use crate::service::agent::router::{BatchSender, Batches, Collected, RouterOutput};
use crate::service::jsonrpc::{Envelope, MessageKind, is_spelling_of};
use crate::{ClientId, CloseCode, Principal, Scope};

/// A request that the agent has received.
#[derive(Clone)]
pub(super) struct Sent {
    pub(super) process: usize,
    pub(super) upstream_id: String,
    pub(super) client: Option<ClientId>,
    pub(super) method: String,
    /// The session that it names.
    pub(super) session: Option<String>,
    /// The protocol version of `initialize`.
    pub(super) version: u64,
}

impl Sent {
    /// Its place among all requests.
    pub(super) fn position(&self) -> (usize, u64) {
        let id = self.upstream_id.parse();
        (self.process, id.expect("the router assigns numbers"))
    }
}

/// A message of a client that a process has received.
pub(super) struct Passed {
    pub(super) client: ClientId,
    pub(super) process: usize,
    pub(super) method: String,
    /// Its position in the batch.
    pub(super) position: u64,
    /// The sessions that it names under any spelling and in any place.
    pub(super) named: HashSet<String>,
}

/// The messages on their way, and what each client may get.
#[derive(Default)]
pub(super) struct RouterModel {
    pub(super) agent_has: Vec<Sent>,
    /// The request ids for which each client expects a response.
    pub(super) expected: BTreeMap<ClientId, Vec<String>>,
    /// The upstream ids of the requests that each client got.
    pub(super) agent_requests: BTreeMap<ClientId, Vec<String>>,
    pub(super) closed: HashSet<ClientId>,
    secrets: u64,
    pub(super) away: HashSet<ClientId>,
    /// The sessions that clients have attached to since the last check, and all tokens for that.
    pub(super) attached: Vec<(ClientId, String)>,
    pub(super) watch_tokens: HashSet<String>,
    /// The number of responses that clients got.
    pub(super) answers: u64,
    /// Whether the agent is answering `session/list`.
    pub(super) lists: bool,
    /// The sessions that such answers have shown to clients since the last check.
    pub(super) listed: Vec<(ClientId, String)>,
    /// The sessions that were opened for clients that had left, so that only the router knows their owners and tokens.
    pub(super) hidden: HashSet<(usize, String)>,
    /// The sessions that each client has controlled, with their processes.
    pub(super) controlled: HashSet<(ClientId, usize, String)>,
    /// The process whose message is being handled.
    pub(super) sender: Option<usize>,
    /// The messages of the agent to clients since the last check, with their process, if it is known, and the sessions that they
    /// name.
    pub(super) updates: Vec<(Option<usize>, ClientId, HashSet<String>)>,
    /// The messages that the agent got since the last check.
    pub(super) passed: Vec<Passed>,
    /// The tokens that clients got since the last check.
    pub(super) tokens: Vec<(ClientId, String)>,
    pub(super) principals: HashMap<ClientId, Principal>,
    /// The owner of each session of each process, and all tokens that its clients ever got.
    pub(super) owners: HashMap<(usize, String), (Principal, HashSet<String>)>,
    pub(super) batches: Batches,
    /// The responses that wait for the others of their batch.
    pub(super) kept: Vec<(BatchSender, Value)>,
    /// The requests of batches that were not answered.
    pub(super) awaited: Awaited,
    /// What was sent since the last call of [`RouterModel::take_sent`].
    sent: Vec<String>,
}

impl RouterModel {
    /// What was sent since the last call, in the order of the texts.
    pub(super) fn take_sent(&mut self) -> Vec<String> {
        let mut sent = std::mem::take(&mut self.sent);
        sent.sort_unstable();
        sent
    }

    /// Lets the batches collect a message. Each response to a request of a batch must be kept until the last one, and the array must
    /// have each of them once. Returns false for an array of errors, which is no message.
    fn collect(&mut self, receiver: BatchSender, parts: &[&str]) -> bool {
        self.sent.push(format!("{receiver:?} {}", parts.concat()));
        let value = || serde_json::from_str::<Value>(&parts.concat()).expect("JSON");
        let is_last = match parts[0].starts_with('[') {
            true => None,
            false => self.note_answer(receiver, &value()),
        };
        let collected = self.batches.collect(receiver, parts);
        match (&collected, is_last) {
            (Collected::Other, None)
            | (Collected::Kept, Some(false))
            | (Collected::Complete(_), Some(true)) => {}
            _ => panic!(
                "{collected:?} {is_last:?} for {receiver:?}: {}",
                parts.concat()
            ),
        }
        match collected {
            Collected::Other if parts[0].starts_with('[') => {
                // Nothing of the batch is answered later.
                let array: Vec<Value> = value().as_array().expect("an array").clone();
                let is_invalid = |response: &Value| response["error"]["code"] == -32600;
                assert!(array.iter().all(is_invalid), "{array:?}");
                return false;
            }
            Collected::Other => {}
            Collected::Kept => self.kept.push((receiver, value())),
            Collected::Complete(array) => {
                self.kept.push((receiver, value()));
                let array: Vec<Value> = serde_json::from_str(&array).expect("an array");
                for response in array {
                    let is_it = |(to, kept): &(_, _)| *to == receiver && *kept == response;
                    match self.kept.iter().position(is_it) {
                        Some(at) => _ = self.kept.swap_remove(at),
                        None => assert_eq!(response["error"]["code"], -32600, "{response}"),
                    }
                }
            }
        }
        true
    }

    /// Removes the request that a response answers, if it is one of a batch. Returns whether it was the last one.
    fn note_answer(&mut self, receiver: BatchSender, message: &Value) -> Option<bool> {
        let is_response = message.get("method").is_none();
        is_response.then(|| self.awaited.answer(receiver, &message["id"]))?
    }

    /// Forgets the batches of a client or a process that is gone.
    pub(super) fn forget_batches(&mut self, sender: BatchSender) {
        self.awaited.forget(sender);
        self.batches.forget(sender);
        self.kept.retain(|(receiver, _)| *receiver != sender);
    }

    fn note_update(&mut self, client: ClientId, message: &Value) {
        self.updates
            .push((self.sender, client, sessions_of(message)));
    }

    /// Records the client that got a token as the owner of a session of a process.
    pub(super) fn note_token(&mut self, process: usize, session: &str, is_new: bool) {
        for (client, token) in std::mem::take(&mut self.tokens) {
            let principal = self.principals[&client].clone();
            let owner = self.owners.entry((process, session.to_owned()));
            let owner = owner.or_insert_with(|| (principal.clone(), HashSet::new()));
            owner.0 = principal;
            if is_new {
                owner.1.clear();
            }
            owner.1.insert(token);
            self.hidden.remove(&(process, session.to_owned()));
        }
    }
}

/// The sessions that a message of this method names. Messages of `_free` may name any.
fn sessions_of(message: &Value) -> HashSet<String> {
    match message["method"].as_str() {
        Some("_free") => HashSet::new(),
        method => sessions_named(message, method.is_some_and(is_vendors)),
    }
}

/// The sessions that a message names in any way that a lenient parser might read. `anywhere` says that the method is not in
/// the schema of the Agent Client Protocol.
pub(super) fn sessions_named(message: &Value, anywhere: bool) -> HashSet<String> {
    let mut named = HashSet::new();
    if anywhere {
        collect(message, false, &mut named);
        return named;
    }
    // `params` of a response have no meaning.
    let body = match message.get("method") {
        Some(_) => message.get("params"),
        None => message.get("result"),
    };
    for (key, value) in body.and_then(Value::as_object).into_iter().flatten() {
        if is_spelling_of(key, "sessionId") {
            named.extend(value.as_str().map(str::to_owned));
        } else if ["meta", "fieldMeta"]
            .iter()
            .any(|name| is_spelling_of(key, name))
        {
            collect(value, false, &mut named);
        }
    }
    named
}

/// Collects the session ids in a value. `is_id` says that a string here is one.
fn collect(value: &Value, is_id: bool, named: &mut HashSet<String>) {
    const ENDS: [&str; 4] = ["session", "sessions", "sessionid", "sessionids"];
    match value {
        Value::String(text) if is_id => _ = named.insert(text.clone()),
        Value::Array(elements) => elements
            .iter()
            .for_each(|element| collect(element, is_id, named)),
        Value::Object(members) => {
            for (key, value) in members {
                if ["content", "rawInput", "rawOutput"].contains(&&**key) {
                    continue;
                }
                // Upper case first: only then do all letters that fold to an ASCII letter become that letter.
                let folded = key.to_uppercase().to_lowercase().replace(['_', '-'], "");
                let is_session = ENDS.iter().any(|end| folded.ends_with(end));
                collect(value, is_session || is_id && folded == "id", named);
            }
        }
        _ => {}
    }
}

/// Whether a method is not in the schema, among those that the model uses.
fn is_vendors(method: &str) -> bool {
    method.starts_with('_') || method == "other"
}

impl RouterOutput for RouterModel {
    fn initialize_agent(&mut self, process: usize, parts: &[&str]) {
        self.to_agent(process, parts);
    }

    fn to_agent(&mut self, process: usize, parts: &[&str]) {
        if !self.collect(BatchSender::Process(process), parts) {
            return;
        }
        let text = parts.concat();
        let envelope = Envelope::parse(&text).expect("the agent gets valid messages");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        let params = &value["params"];
        let client = params["client"].as_str();
        let client: Option<ClientId> = client.and_then(|client| client.parse().ok());
        let any = params["any"].as_str();
        let any: Option<ClientId> = any.and_then(|any| any.parse().ok());
        assert!(any.is_none_or(|any| self.scope(any) > Scope::Watch));
        let method = value["method"].as_str().unwrap_or_default();
        if let Some(client) = client {
            // From an observer, the agent gets only parameters that the schema has.
            assert!(self.scope(client) > Scope::Watch, "{text}");
            let named = sessions_of(&value);
            self.passed.push(Passed {
                client,
                process,
                method: method.to_owned(),
                position: params["position"].as_u64().unwrap_or_default(),
                named,
            });
        }
        if let (MessageKind::Request { .. }, Some(id)) = (&envelope.kind, envelope.id()) {
            assert!(
                !self.agent_has.iter().any(|sent| sent.upstream_id == id),
                "ids are never used twice"
            );
            self.agent_has.push(Sent {
                process,
                upstream_id: id.to_owned(),
                client,
                method: method.to_owned(),
                session: params["sessionId"].as_str().map(str::to_owned),
                version: params["protocolVersion"].as_u64().unwrap_or(1),
            });
        }
    }

    fn to_client(&mut self, client: ClientId, parts: &[&str]) {
        if !self.collect(BatchSender::Client(client), parts) {
            return;
        }
        let text = parts.concat();
        let envelope = Envelope::parse(&text).expect("clients get valid messages");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        match &envelope.kind {
            MessageKind::Response { .. } => {
                self.answers += 1;
                let id = envelope.id().unwrap_or_default();
                let expected = self.expected.entry(client).or_default();
                let at = expected
                    .iter()
                    .position(|other| other == id)
                    .unwrap_or_else(|| panic!("every request gets at most one response: {text}"));
                expected.remove(at);
                if let Some(receiver) = value["result"]["for"].as_str() {
                    assert_eq!(
                        receiver,
                        client.to_string(),
                        "a response reaches only its client"
                    );
                }
                if std::mem::take(&mut self.lists) {
                    let sessions = value["result"]["sessions"].as_array();
                    let ids = sessions.into_iter().flatten();
                    let ids = ids.filter_map(|session| session["sessionId"].as_str());
                    self.listed.extend(ids.map(|id| (client, id.to_owned())));
                }
                let token = value["result"]["_meta"]["outrigger"]["resumeToken"].as_str();
                if value["result"]["role"] == "observer" {
                    let session = value["result"]["sessionId"].as_str();
                    let session = session.unwrap_or_default().to_owned();
                    self.attached.push((client, session));
                }
                let watch_token = value["result"]["_meta"]["outrigger"]["watchToken"].as_str();
                self.watch_tokens.extend(watch_token.map(str::to_owned));
                self.tokens
                    .extend(token.map(|token| (client, token.to_owned())));
            }
            MessageKind::Request { .. } => {
                self.agent_requests
                    .entry(client)
                    .or_default()
                    .push(envelope.id().unwrap_or_default().to_owned());
                self.note_update(client, &value);
            }
            // These tell the client about a session that it does not control any more.
            MessageKind::Notification { method } if method.starts_with("_outrigger/") => {}
            // The session may have ended with its client.
            MessageKind::Notification { .. }
                if value["params"]["update"]["type"] == "client_disconnected" => {}
            MessageKind::Notification { .. } => self.note_update(client, &value),
        }
    }

    fn close(&mut self, client: ClientId, _: CloseCode, _: &str) {
        self.closed.insert(client);
    }

    fn secret(&mut self) -> String {
        self.secrets += 1;
        format!("{:032}", self.secrets)
    }

    fn is_away(&self, client: ClientId) -> bool {
        self.away.contains(&client)
    }

    fn scope(&self, client: ClientId) -> Scope {
        // Some tokens permit observing only.
        let last = client.to_string().bytes().last();
        if last == Some(b'3') {
            Scope::Watch
        } else {
            Scope::All
        }
    }

    fn is_resumable(&self, client: ClientId) -> bool {
        self.away.contains(&client)
    }

    /// The router asks for the batches when it takes one.
    fn batches(&mut self) -> &mut Batches {
        self.awaited.begin();
        &mut self.batches
    }
}
