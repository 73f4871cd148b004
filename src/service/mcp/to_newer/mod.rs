//! A client of an older revision in front of a server that supports only revision 2026-07-28, without I/O.
//!
//! A server that refuses `initialize` is asked with `server/discover`, and the client gets an answer to `initialize` that is made of the
//! server's answer. From then on,
//!
//! * each request gets the envelope of 2026-07-28: the revision, and what the client has said about itself;
//! * an `InputRequiredResult` becomes requests to the client. When it has answered them all, its own request is repeated;
//! * a subscription to a resource becomes a `subscriptions/listen` of its own, and one more reports changes of lists;
//! * `ping` and `logging/setLevel` are answered here. The level is a part of each later envelope.
//!
//! All other messages pass unchanged, also with a server that answers `initialize`. The owner calls `handle_client` and
//! `handle_server`, and delivers each [`Side`].

mod from_server;

use std::collections::HashMap;
use std::ops::Range;

use super::STATELESS;
use super::shared::Level;
use super::subscription::Filter;
use super::to_older::{Questions, may_ask, questions_for, request as without_envelope};
use crate::record::record;
use crate::service::json::{quote, unescape};
use crate::service::jsonrpc::{
    Envelope, IdKey, MessageKind, code, error, insert_member, member, sole_member, success,
    with_id, with_params_meta,
};

/// The maximum number of bytes that are kept: requests that may have to be repeated, input, and subscriptions.
const MAX_KEPT: usize = 4 << 20;

/// What a subscription costs besides its URI, in bytes.
const SUBSCRIPTION_COST: usize = 64;

/// How often a server may ask for input before it answers a request, and how much at a time.
const MAX_ROUNDS: usize = 64;
const MAX_QUESTIONS: usize = 64;

/// A message, and who gets it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client(String),
    Server(String),
}

/// How far the conversation has come.
#[derive(Debug)]
enum Stage {
    /// `initialize` is not answered.
    Begin,
    /// The server has refused it with this error, and is asked which revisions it supports.
    Discovering(Box<str>),
    Translating,
    /// The server supports the client's revision, or cannot be used.
    Native,
}

record!(
    enum Stage {
        Begin,
        Discovering(error),
        Translating,
        Native,
    }
);

/// A request to the server that the client has not made.
#[derive(Debug)]
enum Own {
    Discover,
    /// `subscriptions/listen` for the changes of lists.
    Lists,
    /// The same for a resource, and the id of the client's request until it is answered.
    Resource(Box<str>, Option<Box<str>>),
    /// The client's request with this id, with input.
    Repeated(IdKey),
}

record!(
    enum Own {
        Discover,
        Lists,
        Resource(uri, id),
        Repeated(id),
    }
);

/// A request of the client for which the server may ask for input.
#[derive(Debug)]
struct Call {
    /// The client's id, as written.
    own: Box<str>,
    /// The request, as the server has got it first.
    text: Box<str>,
    /// The number of the request that repeats it. `None` if the server has the first one, or waits for input.
    repeated: Option<u64>,
    /// The server's state, as JSON.
    state: Option<Box<str>>,
    /// What the client has answered in this round: members of `inputResponses`.
    input: Vec<String>,
    /// The numbers of the questions that it has not answered.
    open: Vec<u64>,
    rounds: usize,
    /// What is kept of it.
    kept: usize,
}

record!(Call {
    own,
    text,
    repeated,
    state,
    input,
    open,
    rounds,
    kept,
});

/// The translation for one process.
#[derive(Debug)]
pub(crate) struct ToNewer {
    stage: Stage,
    /// The id of `initialize`, and the revision that it asks for, as JSON.
    initialize: Box<str>,
    asked: Box<str>,
    /// The members of each envelope.
    envelope: String,
    /// What the client can be asked for.
    permitted: Questions,
    level: Option<Level>,
    /// The changes of lists that the server reports.
    lists: Filter,
    /// Requests that are not answered, by the client's ids.
    calls: HashMap<IdKey, Call>,
    /// What the client was asked: the request, and the server's name of the question, as JSON.
    questions: HashMap<u64, (IdKey, String)>,
    requests: HashMap<u64, Own>,
    /// The numbers of the subscriptions to resources.
    resources: HashMap<Box<str>, u64>,
    last_number: u64,
    kept: usize,
}

record!(ToNewer {
    stage,
    initialize,
    asked,
    envelope,
    permitted,
    level,
    lists,
    calls,
    questions,
    requests,
    resources,
    last_number,
    kept,
});

/// The id with a number, as JSON.
fn id_of(number: u64) -> String {
    format!(r#""outrigger-{number}""#)
}

/// The number in such an id.
fn number_in(raw: &str) -> Option<u64> {
    let number = raw.strip_prefix(r#""outrigger-"#)?.strip_suffix('"')?;
    number.parse().ok()
}

fn answered(id: &str, result: &str) -> Side {
    Side::Client(success(id, result).concat())
}

fn refused(id: &str, code: i32, message: &str, why: &str) -> Side {
    Side::Client(error(id, code, message, Some(why)))
}

fn cancelled(id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
    )
}

impl ToNewer {
    pub(crate) fn new() -> Self {
        Self {
            stage: Stage::Begin,
            initialize: "null".into(),
            asked: "null".into(),
            envelope: String::new(),
            permitted: Questions::default(),
            level: None,
            lists: Filter::default(),
            calls: HashMap::new(),
            questions: HashMap::new(),
            requests: HashMap::new(),
            resources: HashMap::new(),
            last_number: 0,
            kept: 0,
        }
    }

    /// Whether messages pass unchanged from now on.
    pub(crate) fn is_native(&self) -> bool {
        matches!(self.stage, Stage::Native)
    }

    pub(crate) fn is_translating(&self) -> bool {
        matches!(self.stage, Stage::Translating)
    }

    /// Whether nothing is kept but what the client has said about itself.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn is_idle(&self) -> bool {
        let waits = self.calls.len() + self.questions.len() + self.resources.len();
        self.kept == 0 && waits == 0
    }

    /// Handles a message from the client.
    pub(crate) fn handle_client(&mut self, envelope: &Envelope<'_>, out: &mut Vec<Side>) {
        if !self.is_translating() {
            if envelope.method() == "initialize" {
                self.note_client(envelope);
            }
            out.push(Side::Server(envelope.text.to_owned()));
            return;
        }
        match &envelope.kind {
            MessageKind::Request { method, id } => {
                self.handle_request(method, &envelope.text[id.clone()], envelope, out);
            }
            MessageKind::Notification { method } => self.handle_notification(method, envelope, out),
            MessageKind::Response { id, result } => {
                let text = envelope.text;
                let number = number_in(&text[id.clone()]);
                let question =
                    number.and_then(|number| Some((number, self.questions.remove(&number)?)));
                if let Some((number, (key, name))) = question {
                    self.handle_input(number, &key, &name, envelope, result.as_ref(), out);
                }
            }
        }
    }

    /// Notes what the client says about itself.
    fn note_client(&mut self, envelope: &Envelope<'_>) {
        let of_body = |name| envelope.of_body(name).map(|at| &envelope.text[at]);
        let object = |name| {
            of_body(name)
                .filter(|raw| raw.starts_with('{'))
                .unwrap_or("{}")
        };
        let (info, capabilities) = (object("clientInfo"), object("capabilities"));
        self.initialize = envelope.id().unwrap_or("null").into();
        self.asked = of_body("protocolVersion").unwrap_or("null").into();
        self.permitted = questions_for(capabilities);
        self.envelope = format!(
            r#""io.modelcontextprotocol/protocolVersion":"{STATELESS}","io.modelcontextprotocol/clientInfo":{info},"io.modelcontextprotocol/clientCapabilities":{capabilities}"#
        );
    }

    fn handle_request(
        &mut self,
        method: &str,
        own: &str,
        envelope: &Envelope<'_>,
        out: &mut Vec<Side>,
    ) {
        match method {
            "ping" => out.push(answered(own, "{}")),
            "logging/setLevel" => {
                let level = sole_member(envelope, "level");
                let level = level.and_then(|at| Level::parse(&envelope.text[at]));
                out.push(match level {
                    Some(_) => answered(own, "{}"),
                    None => refused(
                        own,
                        code::PARAMS,
                        "Invalid params",
                        "there is no such level",
                    ),
                });
                self.level = level.or(self.level);
            }
            "resources/subscribe" | "resources/unsubscribe" => {
                let uri = sole_member(envelope, "uri").map(|at| &envelope.text[at]);
                match uri.filter(|raw| raw.starts_with('"')) {
                    Some(raw) if method == "resources/subscribe" => {
                        self.subscribe(own, &unescape(raw), out);
                    }
                    Some(raw) => {
                        if let Some(number) = self.resources.get(&*unescape(raw)).copied() {
                            self.end_resource(number, out);
                        }
                        out.push(answered(own, "{}"));
                    }
                    None => {
                        let why = "\"uri\" is not a string";
                        out.push(refused(own, code::PARAMS, "Invalid params", why));
                    }
                }
            }
            _ if method.starts_with("tasks/") || method.starts_with("notifications/") => {
                let why = "the MCP server has no such requests";
                out.push(refused(own, code::NO_METHOD, "Method not found", why));
            }
            _ => {
                let text = self.enveloped(envelope);
                if may_ask(method) {
                    self.keep_call(own, &text);
                }
                out.push(Side::Server(text));
            }
        }
    }

    /// A request with the envelope of 2026-07-28.
    fn enveloped(&self, envelope: &Envelope<'_>) -> String {
        let level = self
            .level
            .map(|level| format!(r#","io.modelcontextprotocol/logLevel":{}"#, level.as_json()));
        let members = format!("{}{}", self.envelope, level.unwrap_or_default());
        let bare = without_envelope(envelope);
        match Envelope::parse(&bare) {
            Ok(bare) => with_params_meta(&bare, &members),
            Err(_) => bare,
        }
    }

    /// Keeps a request that may have to be repeated, if there is room.
    fn keep_call(&mut self, own: &str, text: &str) {
        if self.kept + text.len() > MAX_KEPT {
            return;
        }
        self.kept += text.len();
        let call = Call {
            own: own.into(),
            text: text.into(),
            repeated: None,
            state: None,
            input: Vec::new(),
            open: Vec::new(),
            rounds: 0,
            kept: text.len(),
        };
        self.calls.insert(IdKey::of(own), call);
    }

    /// Counts more bytes for a call. Returns false if there is no room.
    fn keep_more(&mut self, key: &IdKey, bytes: usize) -> bool {
        let Some(call) = self.calls.get_mut(key) else {
            return false;
        };
        let fits = self.kept + bytes <= MAX_KEPT;
        if fits {
            self.kept += bytes;
            call.kept += bytes;
        }
        fits
    }

    /// Forgets a call. The client is told which questions it need not answer any more.
    fn take_call(&mut self, key: &IdKey, out: &mut Vec<Side>) -> Option<Call> {
        let call = self.calls.remove(key)?;
        self.kept -= call.kept;
        for number in &call.open {
            self.questions.remove(number);
            out.push(Side::Client(cancelled(&id_of(*number))));
        }
        Some(call)
    }

    fn fail_call(&mut self, key: &IdKey, why: &str, out: &mut Vec<Side>) {
        if let Some(call) = self.take_call(key, out) {
            out.push(refused(&call.own, code::INTERNAL, "Internal error", why));
        }
    }

    fn ask_server(&mut self, own: Own, method: &str, params: &str) -> Side {
        self.last_number += 1;
        let id = id_of(self.last_number);
        self.requests.insert(self.last_number, own);
        let envelope = &self.envelope;
        Side::Server(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{params}"_meta":{{{envelope}}}}}}}"#
        ))
    }

    fn subscribe(&mut self, own: &str, uri: &str, out: &mut Vec<Side>) {
        let cost = uri.len() + SUBSCRIPTION_COST;
        if self.resources.contains_key(uri) {
            return out.push(answered(own, "{}"));
        }
        if self.kept + cost > MAX_KEPT {
            let why = "there are too many subscriptions";
            return out.push(refused(own, code::INTERNAL, "Internal error", why));
        }
        self.kept += cost;
        let listens = Own::Resource(uri.into(), Some(own.into()));
        let filter = format!(
            r#""notifications":{{"resourceSubscriptions":[{}]}},"#,
            quote(uri)
        );
        out.push(self.ask_server(listens, "subscriptions/listen", &filter));
        self.resources.insert(uri.into(), self.last_number);
    }

    /// Forgets a subscription to a resource. Returns the id of the client's request, if it is not answered.
    fn forget_resource(&mut self, number: u64) -> Option<Box<str>> {
        let Some(Own::Resource(uri, own)) = self.requests.remove(&number) else {
            return None;
        };
        self.kept -= uri.len() + SUBSCRIPTION_COST;
        self.resources.remove(&uri);
        own
    }

    /// Ends a subscription to a resource.
    fn end_resource(&mut self, number: u64, out: &mut Vec<Side>) {
        if let Some(own) = self.forget_resource(number) {
            let why = "the subscription was ended";
            out.push(refused(&own, code::INTERNAL, "Internal error", why));
        }
        out.push(Side::Server(cancelled(&id_of(number))));
    }

    fn handle_notification(&mut self, method: &str, envelope: &Envelope<'_>, out: &mut Vec<Side>) {
        match method {
            "notifications/initialized" => {
                let filter = self.lists.to_json();
                let is_open = self.requests.values().any(|own| matches!(own, Own::Lists));
                if filter != "{}" && !is_open {
                    let filter = format!(r#""notifications":{filter},"#);
                    out.push(self.ask_server(Own::Lists, "subscriptions/listen", &filter));
                }
            }
            "notifications/cancelled" => {
                let Some(at) = envelope.request_id.clone() else {
                    return;
                };
                let call = self.take_call(&IdKey::of(&envelope.text[at]), out);
                match call {
                    Some(Call {
                        repeated: Some(number),
                        ..
                    }) => {
                        self.requests.remove(&number);
                        out.push(Side::Server(cancelled(&id_of(number))));
                    }
                    // The server has answered it, and waits for input.
                    Some(call) if call.rounds > 0 => {}
                    _ => out.push(Side::Server(envelope.text.to_owned())),
                }
            }
            _ => {}
        }
    }

    /// Handles the client's response to a question.
    fn handle_input(
        &mut self,
        number: u64,
        key: &IdKey,
        name: &str,
        envelope: &Envelope<'_>,
        result: Option<&Range<usize>>,
        out: &mut Vec<Side>,
    ) {
        let text = envelope.text;
        let input = result.map(|at| format!("{name}:{}", &text[at.clone()]));
        let has_room = self.keep_more(key, input.as_ref().map_or(0, String::len));
        let Some(call) = self.calls.get_mut(key) else {
            return;
        };
        call.open.retain(|open| *open != number);
        match input {
            Some(input) if has_room => {
                call.input.push(input);
                if call.open.is_empty() {
                    self.repeat(key, out);
                }
            }
            Some(_) => self.fail_call(key, "the input is too long", out),
            // What the client cannot answer, the server cannot go on without.
            None => {
                if let Some(call) = self.take_call(key, out) {
                    out.push(Side::Client(with_id(text, &call.own)));
                }
            }
        }
    }

    /// Sends a request again, with the client's input.
    fn repeat(&mut self, key: &IdKey, out: &mut Vec<Side>) {
        let Some(call) = self.calls.get_mut(key) else {
            return;
        };
        let mut members = Vec::new();
        let input = std::mem::take(&mut call.input);
        if !input.is_empty() {
            members.push(format!(r#""inputResponses":{{{}}}"#, input.join(",")));
        }
        let state = call.state.take();
        members.extend(state.map(|state| format!(r#""requestState":{state}"#)));
        self.kept -= call.kept - call.text.len();
        call.kept = call.text.len();
        self.last_number += 1;
        call.repeated = Some(self.last_number);
        let whole = 0..call.text.len();
        let text = match member(&call.text, &whole, "params") {
            Some(params) if !members.is_empty() => {
                insert_member(&call.text, &params, &members.join(","))
            }
            _ => call.text.to_string(),
        };
        self.requests
            .insert(self.last_number, Own::Repeated(key.clone()));
        out.push(Side::Server(with_id(&text, &id_of(self.last_number))));
    }
}

#[cfg(test)]
mod tests;
