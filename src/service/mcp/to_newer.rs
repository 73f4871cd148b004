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

use std::collections::HashMap;
use std::ops::Range;

use super::pool::{Filter, with_meta, without_subscription};
use super::shared::Level;
use super::to_older::{may_ask, questions_for, request as without_envelope};
use super::{EARLIER_VERSIONS, SESSION_VERSIONS, STATELESS};
use crate::service::json::{Skimmer, quote, unescape};
use crate::service::jsonrpc::{
    Envelope, IdKey, MessageKind, SUBSCRIPTION, code, error, insert_member, is_same, member,
    sole_member, with_id,
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
    permitted: Vec<&'static str>,
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
    Side::Client(format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#
    ))
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
            permitted: Vec::new(),
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
            Ok(bare) => with_meta(&bare, &members),
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

    /// Handles a message from the server.
    pub(crate) fn handle_server(&mut self, envelope: &Envelope<'_>, out: &mut Vec<Side>) {
        let text = envelope.text;
        match (&self.stage, &envelope.kind) {
            (Stage::Translating, MessageKind::Request { id, .. }) => {
                let refused = error(&text[id.clone()], code::NO_METHOD, "Method not found", None);
                out.push(Side::Server(refused));
            }
            (Stage::Translating, MessageKind::Notification { method }) => {
                self.handle_news(method, envelope, out);
            }
            (_, MessageKind::Response { id, result }) => {
                let result = result.as_ref();
                self.handle_response(&text[id.clone()], envelope, result, out);
            }
            _ => out.push(Side::Client(text.to_owned())),
        }
    }

    fn handle_response(
        &mut self,
        id: &str,
        envelope: &Envelope<'_>,
        result: Option<&Range<usize>>,
        out: &mut Vec<Side>,
    ) {
        let text = envelope.text;
        let number = number_in(id).filter(|number| self.requests.contains_key(number));
        match (&self.stage, number) {
            (Stage::Begin, _) if is_same(id, &self.initialize) => match result {
                Some(_) => {
                    self.stage = Stage::Native;
                    out.push(Side::Client(text.to_owned()));
                }
                None => {
                    self.stage = Stage::Discovering(text.into());
                    out.push(self.ask_server(Own::Discover, "server/discover", ""));
                }
            },
            (Stage::Discovering(refusal), Some(_)) => {
                let refusal = refusal.to_string();
                self.requests.clear();
                let answer = result.and_then(|result| self.discovered(text, result));
                self.stage = match answer {
                    Some(_) => Stage::Translating,
                    None => Stage::Native,
                };
                out.push(Side::Client(answer.unwrap_or(refusal)));
            }
            (Stage::Translating, Some(number)) => {
                if let Some(Own::Resource(..)) = self.requests.get(&number) {
                    // The server has ended the subscription, or does not begin it.
                    let own = self.forget_resource(number);
                    out.extend(own.map(|own| match result {
                        Some(_) => answered(&own, "{}"),
                        None => Side::Client(with_id(text, &own)),
                    }));
                } else if let Some(Own::Repeated(key)) = self.requests.remove(&number) {
                    self.handle_answer(&key, envelope, result, out);
                }
            }
            (Stage::Translating, None) => {
                self.handle_answer(&IdKey::of(id), envelope, result, out);
            }
            _ => out.push(Side::Client(text.to_owned())),
        }
    }

    /// The answer to `initialize`, from the answer to `server/discover`. `None` if the server does not support 2026-07-28.
    fn discovered(&mut self, text: &str, result: &Range<usize>) -> Option<String> {
        let of_result = |name| member(text, result, name);
        let mut is_supported = false;
        let _ = Skimmer::at(text, &of_result("supportedVersions")?).array(|at: Range<usize>| {
            is_supported |= text[at] == quote(STATELESS);
        });
        if !is_supported {
            return None;
        }
        let object = |at: &Range<usize>| text[at.clone()].starts_with('{');
        let of_meta = || {
            member(
                text,
                &of_result("_meta")?,
                "io.modelcontextprotocol/serverInfo",
            )
        };
        let info = of_result("serverInfo").or_else(of_meta).filter(object);
        let info = info.map_or(r#"{"name":"mcp-server","version":"0"}"#, |at| &text[at]);
        let capabilities = of_result("capabilities").filter(object);
        let capabilities = capabilities.map_or("{}", |at| &text[at]);
        let instructions = of_result("instructions").map_or_else(String::new, |at| {
            format!(r#","instructions":{}"#, &text[at])
        });
        self.lists = Filter::lists();
        self.lists.restrict(capabilities);
        let mut versions = SESSION_VERSIONS.into_iter().chain(EARLIER_VERSIONS);
        let asked = versions.find(|version| *self.asked == quote(version));
        let version = asked.unwrap_or(SESSION_VERSIONS[0]);
        let id = &self.initialize;
        Some(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"{version}","capabilities":{capabilities},"serverInfo":{info}{instructions}}}}}"#
        ))
    }

    /// Handles a notification from the server.
    fn handle_news(&mut self, method: &str, envelope: &Envelope<'_>, out: &mut Vec<Side>) {
        let text = envelope.text;
        let subscription = envelope.of_meta(SUBSCRIPTION);
        let number = subscription.and_then(|at| number_in(&text[at]));
        match method {
            "notifications/subscriptions/acknowledged" => {
                let Some(number) = number else { return };
                let Some(Own::Resource(_, own)) = self.requests.get_mut(&number) else {
                    return;
                };
                let honored = envelope.of_body("notifications");
                let honored = honored.and_then(|at| member(text, &at, "resourceSubscriptions"));
                if honored.is_some_and(|at| text[at].contains('"')) {
                    out.extend(own.take().map(|own| answered(&own, "{}")));
                    return;
                }
                if let Some(own) = own.take() {
                    let why = "the MCP server does not report changes of this resource";
                    out.push(refused(&own, code::PARAMS, "Invalid params", why));
                }
                self.end_resource(number, out);
            }
            "notifications/cancelled" => {
                let named = envelope.request_id.clone();
                if let Some(number) = named.and_then(|at| number_in(&text[at])) {
                    // The server ends the subscription. It may end nothing else.
                    match self.requests.get(&number) {
                        Some(Own::Lists) => _ = self.requests.remove(&number),
                        Some(Own::Resource(..)) => {
                            if let Some(own) = self.forget_resource(number) {
                                let why = "the MCP server has ended the subscription";
                                out.push(refused(&own, code::INTERNAL, "Internal error", why));
                            }
                        }
                        _ => {}
                    }
                }
            }
            _ => out.push(Side::Client(without_subscription(envelope))),
        }
    }

    /// Handles the answer to a request of the client, or to one that repeats it.
    fn handle_answer(
        &mut self,
        key: &IdKey,
        envelope: &Envelope<'_>,
        result: Option<&Range<usize>>,
        out: &mut Vec<Side>,
    ) {
        let text = envelope.text;
        let kind = envelope.of_body("resultType").map(|at| &text[at]);
        let result = result.filter(|_| kind == Some(r#""input_required""#));
        match (self.calls.get_mut(key), result) {
            (Some(call), Some(result)) => {
                call.repeated = None;
                let asked = self.ask_client(key, text, result, out);
                if let Err(why) = asked {
                    self.fail_call(key, why, out);
                }
            }
            (Some(_), None) => {
                let call = self.take_call(key, out);
                out.extend(call.map(|call| Side::Client(with_id(text, &call.own))));
            }
            (None, Some(_)) => {
                let why = "the request is too long to be repeated with input";
                let own = envelope.id().unwrap_or("null");
                out.push(refused(own, code::INTERNAL, "Internal error", why));
            }
            (None, None) => out.push(Side::Client(text.to_owned())),
        }
    }

    /// Asks the client for the input that the server requires.
    fn ask_client(
        &mut self,
        key: &IdKey,
        text: &str,
        result: &Range<usize>,
        out: &mut Vec<Side>,
    ) -> Result<(), &'static str> {
        let of_result = |name| member(text, result, name);
        let mut asked = Vec::new();
        if let Some(requests) = of_result("inputRequests") {
            let _ = Skimmer::at(text, &requests).object(|name, at| asked.push((quote(&name), at)));
        }
        let state = of_result("requestState").map(|at| &text[at]);
        let names = asked.iter().map(|(name, _)| name.len()).sum::<usize>();
        if !self.keep_more(key, names + state.map_or(0, str::len)) {
            return Err("the input is too long");
        }
        let Some(call) = self.calls.get_mut(key) else {
            return Ok(());
        };
        call.rounds += 1;
        call.state = state.map(Into::into);
        if call.rounds > MAX_ROUNDS || asked.len() > MAX_QUESTIONS {
            return Err("the MCP server asks for input too often");
        }
        if asked.is_empty() {
            if state.is_none() {
                return Err("the MCP server asks for no input");
            }
            self.repeat(key, out);
            return Ok(());
        }
        for (name, at) in asked {
            let method = member(text, &at, "method").map(|at| unescape(&text[at]));
            let permitted = self.permitted.iter();
            let method = permitted
                .copied()
                .find(|one| method.as_deref() == Some(*one));
            let method =
                method.ok_or("the MCP server asks for what the client does not support")?;
            self.last_number += 1;
            let id = id_of(self.last_number);
            let params = member(text, &at, "params").map(|at| text[at].to_owned());
            let params = params.filter(|params| params.starts_with('{'));
            let params = params.map_or_else(String::new, |params| {
                let params = with_elicitation_id(params, &id);
                format!(r#","params":{params}"#)
            });
            self.questions.insert(self.last_number, (key.clone(), name));
            if let Some(call) = self.calls.get_mut(key) {
                call.open.push(self.last_number);
            }
            out.push(Side::Client(format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"{params}}}"#
            )));
        }
        Ok(())
    }
}

/// The parameters of a question. Those that let the user open an address have an id in the older revisions.
fn with_elicitation_id(params: String, id: &str) -> String {
    let whole = 0..params.len();
    let mode = member(&params, &whole, "mode").map(|at| &params[at]);
    match mode {
        Some(r#""url""#) if member(&params, &whole, "elicitationId").is_none() => {
            insert_member(&params, &whole, &format!(r#""elicitationId":{id}"#))
        }
        _ => params,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A conversation. What each side gets is kept until it is taken.
    struct World {
        newer: ToNewer,
        client: Vec<Value>,
        server: Vec<Value>,
    }

    impl World {
        /// A client with these capabilities, and a server of 2026-07-28 that has answered `server/discover`.
        fn new(capabilities: Value) -> Self {
            let mut world = Self {
                newer: ToNewer::new(),
                client: Vec::new(),
                server: Vec::new(),
            };
            let params = json!({"protocolVersion": "2025-06-18", "capabilities": capabilities, "clientInfo": {"name": "c"}});
            world.client_sends(json!({"id": 0, "method": "initialize", "params": params}));
            assert_eq!(world.server.remove(0)["method"], "initialize");
            world.server_sends(json!({"id": 0, "error": {"code": -32602, "message": "no"}}));
            let asked = world.server.remove(0);
            assert_eq!(asked["method"], "server/discover");
            let result = json!({"supportedVersions": [STATELESS], "instructions": "i",
                "capabilities": {"tools": {"listChanged": true}, "resources": {"subscribe": true}},
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "s"}}});
            world.server_sends(json!({"id": asked["id"], "result": result}));
            assert_eq!(
                world.client.remove(0),
                json!({"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {"listChanged": true}, "resources": {"subscribe": true}},
                    "serverInfo": {"name": "s"}, "instructions": "i"}})
            );
            world
        }

        fn take(&mut self, out: Vec<Side>) {
            for side in out {
                let (Side::Client(text) | Side::Server(text)) = &side;
                let message = serde_json::from_str(text).expect("JSON");
                match side {
                    Side::Client(_) => self.client.push(message),
                    Side::Server(_) => self.server.push(message),
                }
            }
        }

        fn client_sends(&mut self, mut message: Value) {
            message["jsonrpc"] = "2.0".into();
            let (text, mut out) = (message.to_string(), Vec::new());
            let envelope = Envelope::parse(&text).expect("a message");
            self.newer.handle_client(&envelope, &mut out);
            self.take(out);
        }

        fn server_sends(&mut self, mut message: Value) {
            message["jsonrpc"] = "2.0".into();
            let (text, mut out) = (message.to_string(), Vec::new());
            let envelope = Envelope::parse(&text).expect("a message");
            self.newer.handle_server(&envelope, &mut out);
            self.take(out);
        }

        fn call(&mut self, id: Value, name: &str) -> Value {
            let params = json!({"name": name, "_meta": {"progressToken": 1}});
            self.client_sends(json!({"id": id, "method": "tools/call", "params": params}));
            self.server.remove(0)
        }

        fn ask(&mut self, id: &Value, requests: Value) {
            let result = json!({"resultType": "input_required", "inputRequests": requests, "requestState": "s"});
            self.server_sends(json!({"id": id, "result": result}));
        }
    }

    #[test]
    fn a_server_that_answers_initialize_and_one_that_supports_nothing_else_are_left_alone() {
        for (first, second) in [
            (json!({"result": {"protocolVersion": "2025-06-18"}}), None),
            (
                json!({"error": {"code": 1}}),
                Some(json!({"error": {"code": 2}})),
            ),
            (
                json!({"error": {"code": 1}}),
                Some(json!({"result": {"supportedVersions": ["2027-01-01"]}})),
            ),
        ] {
            let mut world = World {
                newer: ToNewer::new(),
                client: Vec::new(),
                server: Vec::new(),
            };
            world.client_sends(json!({"id": "a", "method": "initialize", "params": {}}));
            let mut answer = first.clone();
            answer["id"] = "a".into();
            world.server_sends(answer);
            if let Some(mut second) = second {
                second["id"] = world.server[1]["id"].clone();
                world.server_sends(second);
            }
            assert!(world.newer.is_native());
            let got = world.client.remove(0);
            assert_eq!((&got["id"], &got["error"]), (&json!("a"), &first["error"]));
        }
    }

    #[test]
    fn requests_get_an_envelope_with_the_level_that_the_client_has_set() {
        let mut world = World::new(json!({"roots": {}}));
        let call = world.call(json!(1), "t");
        let meta = json!({"progressToken": 1, "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientInfo": {"name": "c"}, "io.modelcontextprotocol/clientCapabilities": {"roots": {}}});
        assert_eq!(call["params"], json!({"name": "t", "_meta": meta}));
        for (id, method, params) in [
            (2, "ping", json!({})),
            (3, "logging/setLevel", json!({"level": "error"})),
            (4, "logging/setLevel", json!({"level": "loud"})),
            (5, "tasks/list", json!({})),
        ] {
            world.client_sends(json!({"id": id, "method": method, "params": params}));
        }
        let codes: Vec<Value> = world
            .client
            .drain(..)
            .map(|one| one["error"]["code"].clone())
            .collect();
        assert_eq!(
            codes,
            [json!(null), json!(null), json!(-32602), json!(-32601)]
        );
        world.client_sends(json!({"id": 6, "method": "tools/list"}));
        let list = world.server.remove(0);
        assert_eq!(
            list["params"]["_meta"]["io.modelcontextprotocol/logLevel"],
            "error"
        );
        let result = json!({"id": 6, "result": {"tools": [], "resultType": "complete"}});
        world.server_sends(result.clone());
        assert_eq!(world.client.remove(0)["result"], result["result"]);
        world.server_sends(json!({"id": 7, "method": "sampling/createMessage"}));
        assert_eq!(world.server.remove(0)["error"]["code"], -32601);
        assert!(world.client.is_empty() && world.server.is_empty());
    }

    #[test]
    fn a_request_is_repeated_when_the_client_has_answered_all_questions() {
        let mut world = World::new(json!({"roots": {}, "elicitation": {"url": {}}}));
        let first = world.call(json!("same"), "t");
        let url = json!({"mode": "url", "url": "https://x", "message": "m"});
        world.ask(
            &first["id"],
            json!({
            "a": {"method": "roots/list"}, "b": {"method": "elicitation/create", "params": url}}),
        );
        let [roots, open] = [world.client.remove(0), world.client.remove(0)];
        assert_eq!(roots["method"], "roots/list");
        assert_eq!(open["params"]["elicitationId"], open["id"]);
        world.client_sends(json!({"id": open["id"], "result": {"action": "accept"}}));
        assert!(world.server.is_empty(), "one is open");
        world.client_sends(json!({"id": roots["id"], "result": {"roots": []}}));
        let again = world.server.remove(0);
        let (mut params, mut want) = (again["params"].clone(), first["params"].clone());
        want["inputResponses"] = json!({"a": {"roots": []}, "b": {"action": "accept"}});
        want["requestState"] = "s".into();
        assert_eq!(params.take(), want);
        assert!(again["id"] != first["id"]);
        // A state without a question is sent back at once.
        world.server_sends(json!({"id": again["id"], "result": {"resultType": "input_required", "requestState": "t"}}));
        let third = world.server.remove(0);
        assert_eq!(
            (
                &third["params"]["requestState"],
                &third["params"]["inputResponses"]
            ),
            (&json!("t"), &Value::Null)
        );
        world.server_sends(json!({"id": third["id"], "result": {"content": []}}));
        assert_eq!(
            world.client.remove(0),
            json!({"jsonrpc": "2.0", "id": "same", "result": {"content": []}})
        );
        assert_eq!((world.newer.kept, world.newer.requests.len()), (0, 0));
    }

    #[test]
    fn a_call_that_is_cancelled_or_cannot_go_on_leaves_nothing() {
        let mut world = World::new(json!({"sampling": {}}));
        let sampling = json!({"a": {"method": "sampling/createMessage", "params": {}}});
        // The client cancels a question, and the call before and after it is repeated.
        let call = world.call(json!(1), "t");
        world.ask(&call["id"], sampling.clone());
        let asked = world.client.remove(0);
        world
            .client_sends(json!({"method": "notifications/cancelled", "params": {"requestId": 1}}));
        let cancelled = world.client.remove(0);
        assert_eq!(cancelled["params"]["requestId"], asked["id"]);
        world.client_sends(json!({"id": asked["id"], "result": {}}));
        assert!(world.server.is_empty(), "the server has answered it");
        let call = world.call(json!(1), "t");
        world.ask(&call["id"], sampling.clone());
        let asked = world.client.remove(0);
        world.client_sends(json!({"id": asked["id"], "result": {}}));
        let again = world.server.remove(0);
        world
            .client_sends(json!({"method": "notifications/cancelled", "params": {"requestId": 1}}));
        assert_eq!(world.server.remove(0)["params"]["requestId"], again["id"]);
        // The client answers with an error, or the server asks for what it must not, or for nothing, or without end.
        let call = world.call(json!(1), "t");
        world.ask(&call["id"], sampling.clone());
        let asked = world.client.remove(0);
        world
            .client_sends(json!({"id": asked["id"], "error": {"code": -1, "message": "rejected"}}));
        assert_eq!(world.client.remove(0)["error"]["code"], -1);
        for requests in [
            json!({"a": sampling["a"], "b": {"method": "roots/list"}}),
            json!({"a": 7}),
        ] {
            let call = world.call(json!(1), "t");
            world.ask(&call["id"], requests);
            assert_eq!(
                world.client.pop().expect("an error")["error"]["code"],
                -32603
            );
            world.client.clear();
        }
        let mut call = world.call(json!(1), "t");
        for _ in 0..MAX_ROUNDS {
            world.ask(&call["id"], json!({}));
            call = world.server.remove(0);
        }
        world.ask(&call["id"], json!({}));
        assert_eq!(world.client.remove(0)["error"]["code"], -32603);
        assert!(world.server.is_empty() && world.client.is_empty());
        let newer = &world.newer;
        assert_eq!(
            (newer.kept, newer.requests.len(), newer.questions.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn a_request_that_is_too_long_to_be_kept_is_sent_and_fails_if_it_needs_input() {
        let mut world = World::new(json!({"sampling": {}}));
        let call = world.call(json!(1), &"x".repeat(MAX_KEPT));
        world.ask(
            &call["id"],
            json!({"a": {"method": "sampling/createMessage"}}),
        );
        let failed = world.client.remove(0);
        assert_eq!(
            (&failed["id"], &failed["error"]["code"]),
            (&json!(1), &json!(-32603))
        );
    }

    #[test]
    fn subscriptions_become_listening_requests() {
        let mut world = World::new(json!({}));
        world.client_sends(json!({"method": "notifications/initialized"}));
        let lists = world.server.remove(0);
        assert_eq!(
            lists["params"]["notifications"],
            json!({"toolsListChanged": true})
        );
        let meta = |id: &Value| json!({SUBSCRIPTION: id, "x": 1});
        let acknowledge = |id: &Value, honored: Value| {
            json!({"method": "notifications/subscriptions/acknowledged",
            "params": {"_meta": meta(id), "notifications": honored}})
        };
        world.server_sends(acknowledge(&lists["id"], json!({"toolsListChanged": true})));
        world.server_sends(json!({"method": "notifications/tools/list_changed", "params": {"_meta": meta(&lists["id"])}}));
        assert_eq!(world.client.remove(0)["params"], json!({"_meta": {"x": 1}}));
        let subscribe =
            |uri: &str| json!({"id": 1, "method": "resources/subscribe", "params": {"uri": uri}});
        for (uri, honored, is_result) in [("m:a", json!(["m:a"]), true), ("m:b", json!([]), false)]
        {
            world.client_sends(subscribe(uri));
            let listen = world.server.remove(0);
            assert_eq!(
                listen["params"]["notifications"],
                json!({"resourceSubscriptions": [uri]})
            );
            world.server_sends(acknowledge(
                &listen["id"],
                json!({"resourceSubscriptions": honored}),
            ));
            assert_eq!(world.client.remove(0)["result"].is_object(), is_result);
        }
        assert_eq!(
            world.server.remove(0)["method"],
            "notifications/cancelled",
            "it reports nothing"
        );
        // The server refuses one.
        world.client_sends(subscribe("m:c"));
        let id = world.server.remove(0)["id"].clone();
        world.server_sends(json!({"id": id, "error": {"code": -32602, "message": "no"}}));
        assert_eq!(world.client.remove(0)["error"]["message"], "no");
        for _ in 0..2 {
            world.client_sends(
                json!({"id": 1, "method": "resources/unsubscribe", "params": {"uri": "m:a"}}),
            );
            assert!(world.client.remove(0)["result"].is_object());
        }
        assert_eq!(world.server.len(), 1, "{:?}", world.server);
        assert_eq!((world.newer.kept, world.newer.requests.len()), (0, 1));
    }
}
