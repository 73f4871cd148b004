//! A message for the server: what the head of its HTTP request says about it, and whether it may be sent twice. Without I/O.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::session::Session;
use crate::protocol::client::HttpRequest;
use crate::service::json::unescape;
use crate::service::jsonrpc::{Envelope, IdKey, MessageKind, member};
use crate::{Time, text::printable};
use std::time::Duration;

/// The key in `_meta` with which a message of revision 2026-07-28 says its revision.
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

/// How long a server may take to accept a notification or a response. It does no work for them.
const ACCEPT_LIMIT: Duration = Duration::from_secs(30);

/// Requests that have the same effect if they run twice.
const REPEATABLE: [&str; 18] = [
    "initialize",
    "server/discover",
    "ping",
    "tools/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "subscriptions/listen",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "logging/setLevel",
    "tasks/get",
    "tasks/list",
    "tasks/result",
    "tasks/cancel",
];

/// The kind of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A request, with its id as written.
    Request(String),
    Notification,
    Response,
}

/// How far a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Queued,
    /// An HTTP request carries it, or resumes its answer.
    Sent(u64),
    /// It is sent, or its answer is resumed, at this time.
    Waiting(Time),
}

/// A message that is not finished.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) text: String,
    pub(super) kind: Kind,
    pub(super) method: String,
    /// The name of the tool or prompt, or the URI of the resource.
    pub(super) name: Option<String>,
    /// Its revision, if it says so itself. Such a message belongs to no session.
    pub(super) version: Option<String>,
    /// Whether this message restores the session. The host has not sent it and gets no response to it.
    pub(super) is_own: bool,
    pub(super) state: State,
    /// The session with which it was sent.
    pub(super) generation: u32,
    /// How often it was sent again although the server may have received it, or lost its session.
    pub(super) repeats: u32,
    /// The last event of its answer, with which the rest can be fetched, and how long the server asks to wait.
    pub(super) last_id: Option<String>,
    pub(super) retry: Option<Duration>,
}

impl Post {
    pub(super) fn new(envelope: &Envelope<'_>, is_own: bool) -> Self {
        let text = envelope.text;
        let string = |range: std::ops::Range<usize>| {
            let raw = &text[range];
            raw.starts_with('"').then(|| unescape(raw).into_owned())
        };
        let (kind, method) = match &envelope.kind {
            MessageKind::Request { method, id } => {
                (Kind::Request(text[id.clone()].to_owned()), &**method)
            }
            MessageKind::Notification { method } => (Kind::Notification, &**method),
            MessageKind::Response { .. } => (Kind::Response, ""),
        };
        let key = match method {
            "tools/call" | "prompts/get" => Some("name"),
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => Some("uri"),
            _ => None,
        };
        let is_response = kind == Kind::Response;
        Self {
            text: text.to_owned(),
            name: key.and_then(|key| envelope.of_body(key)).and_then(string),
            version: envelope
                .of_meta(VERSION_KEY)
                .filter(|_| !is_response && method != "initialize")
                .and_then(string),
            method: method.to_owned(),
            kind,
            is_own,
            state: State::Queued,
            generation: 0,
            repeats: 0,
            last_id: None,
            retry: None,
        }
    }

    /// The id of a request, in normal form.
    pub(super) fn key(&self) -> Option<IdKey> {
        match &self.kind {
            Kind::Request(id) => Some(IdKey::of(id)),
            Kind::Notification | Kind::Response => None,
        }
    }

    /// Whether no later message may be sent before the server has accepted this one. HTTP requests on several connections overtake
    /// each other.
    pub(super) fn is_barrier(&self) -> bool {
        self.kind == Kind::Notification || self.method == "initialize"
    }

    /// Whether it belongs to the session.
    pub(super) fn is_in_session(&self) -> bool {
        self.version.is_none()
    }

    /// Whether it may be sent again although the server may have received it. Notifications of the protocol only repeat what they say,
    /// and a server ignores a second response.
    pub(super) fn is_repeatable(&self, session: &Session) -> bool {
        match &self.kind {
            Kind::Notification | Kind::Response => true,
            Kind::Request(_) => {
                REPEATABLE.contains(&&*self.method)
                    || (self.method == "tools/call"
                        && self
                            .name
                            .as_ref()
                            .is_some_and(|name| session.tools.may_repeat(name)))
            }
        }
    }

    /// The HTTP request that carries it.
    pub(super) fn request(&self, session: &Session) -> HttpRequest {
        let request = HttpRequest::new("POST", "application/json", self.text.as_bytes())
            .with_field("Accept", "application/json, text/event-stream");
        let mut request = match &self.version {
            Some(version) => self
                .add_mirrored(request, session)
                .with_field("MCP-Protocol-Version", encoded(version)),
            None if self.method == "initialize" => request,
            None => session.add_fields(request),
        };
        if !matches!(self.kind, Kind::Request(_)) {
            request = request.with_patience(ACCEPT_LIMIT);
        }
        request
    }

    /// Adds the fields that repeat parts of the body, since revision 2026-07-28.
    fn add_mirrored(&self, mut request: HttpRequest, session: &Session) -> HttpRequest {
        request = request.with_field("Mcp-Method", encoded(&self.method));
        let Some(name) = &self.name else {
            return request;
        };
        if !matches!(
            &*self.method,
            "tools/call" | "prompts/get" | "resources/read"
        ) {
            return request;
        }
        request = request.with_field("Mcp-Name", encoded(name));
        if self.method == "tools/call" {
            let text = &self.text;
            let params = member(text, &(0..text.len()), "params");
            let arguments = params.and_then(|params| member(text, &params, "arguments"));
            for (field, value) in session.tools.mirrored(name, text, arguments) {
                request = request.with_field(field, encoded(&value));
            }
        }
        request
    }
}

/// A value as a header field has it ("Value Encoding").
pub(super) fn encoded(value: &str) -> String {
    let is_plain = value
        .bytes()
        .all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    let is_marked = value.starts_with("=?base64?") && value.ends_with("?=");
    if is_plain && !is_marked && value.trim_ascii() == value {
        return value.to_owned();
    }
    format!("=?base64?{}?=", BASE64_STANDARD.encode(value))
}

/// The first 300 bytes of a server's text, escaped so that it stays on one line.
pub(crate) fn shown(text: &str) -> String {
    printable(&text.as_bytes()[..text.floor_char_boundary(300)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(text: &str) -> Post {
        Post::new(&Envelope::parse(text).expect("a message"), false)
    }

    fn head(post: &Post, session: &Session) -> String {
        let mut out = Vec::new();
        post.request(session)
            .write("h", "/mcp", std::iter::empty(), &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_message_of_the_newest_revision_is_mirrored_in_the_head() {
        let call = post(
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"größe","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#,
        );
        let head = head(&call, &Session::default());
        for field in [
            "MCP-Protocol-Version: 2026-07-28\r\n",
            "Mcp-Method: tools/call\r\n",
            "Mcp-Name: =?base64?Z3LDtsOfZQ==?=\r\n",
            "Accept: application/json, text/event-stream\r\n",
        ] {
            assert!(head.contains(field), "{head}");
        }
        assert!(!call.is_in_session());
    }

    #[test]
    fn a_value_is_encoded_only_if_it_must_be() {
        for (value, field) in [
            ("us-west1", "us-west1"),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ] {
            assert_eq!(encoded(value), field);
        }
    }

    #[test]
    fn only_what_has_no_further_effect_is_repeated() {
        let mut session = Session::default();
        session.tools.learn(
            r#"{"tools":[{"name":"read","annotations":{"readOnlyHint":true}},{"name":"put","annotations":{"idempotentHint":true}},{"name":"pay","annotations":{"readOnlyHint":false}},{"name":"plain"}]}"#,
        );
        let call = |name: &str| {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{name}"}}}}"#
            );
            post(&text).is_repeatable(&session)
        };
        let all = ["read", "put", "pay", "plain", "unknown"].map(call);
        assert_eq!(all, [true, true, false, false, false]);
        for (text, expected) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#, true),
            (r#"{"jsonrpc":"2.0","id":1,"method":"x/own"}"#, false),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
                true,
            ),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, true),
        ] {
            assert_eq!(post(text).is_repeatable(&session), expected, "{text}");
        }
    }
}
