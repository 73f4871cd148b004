//! The parts of a JSON-RPC 2.0 message that routing needs, as ranges of the message's own bytes.

use std::borrow::Cow;
use std::ops::Range;

use super::members::{Body, Members, Outer, member};
use super::spelling::{MISSPELLED, is_meta, is_spelling_of, may_have_progress_token};
use crate::service::json::{NotJson, Skimmer, unescape};

/// Why a message is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EnvelopeError {
    /// The text is not JSON: -32700.
    Parse,
    /// The text is not a JSON-RPC 2.0 message: -32600. The error response has the message's id if it is usable.
    Invalid {
        why: &'static str,
        id: Option<Range<usize>>,
    },
}

/// The kind of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind<'a> {
    /// A request. Its id may be `null`.
    Request {
        method: Cow<'a, str>,
        id: Range<usize>,
    },
    /// A message that gets no response.
    Notification { method: Cow<'a, str> },
    /// A response. `result` is `None` if it is an error.
    Response {
        id: Range<usize>,
        result: Option<Range<usize>>,
    },
}

/// A parsed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Envelope<'a> {
    pub(crate) text: &'a str,
    pub(crate) kind: MessageKind<'a>,
    /// `params.sessionId`, or in a response `result.sessionId`.
    pub(crate) session: Option<Cow<'a, str>>,
    /// The session under another spelling of that key, such as `session_id`.
    pub(crate) misspelled_session: Option<Cow<'a, str>>,
    /// `params.requestId`.
    pub(crate) request_id: Option<Range<usize>>,
    /// `params.prompt`, if it occurs once.
    pub(crate) prompt: Option<Range<usize>>,
    /// `params`, or in a response `result`, if it is an object.
    pub(crate) body: Option<Range<usize>>,
    /// `_meta` in that object.
    pub(crate) meta: Option<Range<usize>>,
    /// The members of these two objects.
    body_members: Members,
    meta_members: Members,
    /// Whether that object has `_meta` under another spelling.
    has_other_meta: bool,
    /// Whether `params` is there and is not an object.
    pub(crate) has_listed_params: bool,
    /// The start of the first key that JSON-RPC does not have.
    pub(crate) unknown_member: Option<String>,
}

impl<'a> Envelope<'a> {
    /// Parses a message and validates the whole text. Rejects duplicates of the keys that routing reads, because the
    /// receiver may use the other value.
    pub(crate) fn parse(text: &'a str) -> Result<Self, EnvelopeError> {
        Self::read(text, Skimmer::new(text))
    }

    /// Parses a client's message, which may have fewer values than a program's.
    pub(crate) fn parse_client(text: &'a str) -> Result<Self, EnvelopeError> {
        Self::read(text, Skimmer::of_client(text))
    }

    /// Parses a message in one pass. Later searches look only at the objects that they are for.
    fn read(text: &'a str, mut skimmer: Skimmer<'a>) -> Result<Self, EnvelopeError> {
        if skimmer.peek() != Some(b'{') {
            skimmer.value().and_then(|_| skimmer.end())?;
            let why = if Skimmer::new(text).peek() == Some(b'[') {
                "batches are not supported"
            } else {
                "not an object"
            };
            return Err(EnvelopeError::Invalid { why, id: None });
        }
        let mut outer = Outer::default();
        outer.read(&mut skimmer)?;
        skimmer.end()?;
        let id = outer.usable_id(text);
        outer
            .check(text)
            .and_then(|()| Self::from_outer(text, &mut outer))
            .map_err(|why| EnvelopeError::Invalid { why, id })
    }

    /// Builds a message of members that have been checked one by one.
    fn from_outer(text: &'a str, outer: &mut Outer) -> Result<Self, &'static str> {
        let first = |range: &Range<usize>| text.as_bytes()[range.start];
        let is_list = |params: &Range<usize>| first(params) != b'{';
        let parts = (
            outer.method.0.take(),
            outer.id.0.take(),
            outer.result.0.take(),
            &outer.error.0,
        );
        let (kind, body) = match parts {
            (Some(method), id, None, None) => {
                if first(&method) != b'"' {
                    return Err("\"method\" is not a string");
                }
                let method = unescape(&text[method]);
                let kind = match id {
                    Some(id) => MessageKind::Request { method, id },
                    None => MessageKind::Notification { method },
                };
                (kind, outer.params_body.as_mut())
            }
            (None, Some(id), Some(result), None) => {
                let result = Some(result);
                let kind = MessageKind::Response { id, result };
                (kind, outer.result_body.as_mut())
            }
            (None, Some(id), None, Some(_)) => (MessageKind::Response { id, result: None }, None),
            _ => return Err("neither a request nor a notification nor a response"),
        };
        let mut envelope = Self {
            text,
            kind,
            session: None,
            misspelled_session: None,
            request_id: None,
            prompt: None,
            body: None,
            meta: None,
            body_members: Members::default(),
            meta_members: Members::default(),
            has_other_meta: false,
            has_listed_params: outer.params.0.as_ref().is_some_and(is_list),
            unknown_member: outer.unknown_member.take(),
        };
        envelope.take_body(body)?;
        Ok(envelope)
    }

    /// The method. Empty for a response.
    #[cfg(feature = "mcp")]
    pub(crate) fn method(&self) -> &str {
        match &self.kind {
            MessageKind::Request { method, .. } | MessageKind::Notification { method } => method,
            MessageKind::Response { .. } => "",
        }
    }

    /// The message's id, as written.
    pub(crate) fn id(&self) -> Option<&'a str> {
        match &self.kind {
            MessageKind::Request { id, .. } | MessageKind::Response { id, .. } => {
                Some(&self.text[id.clone()])
            }
            MessageKind::Notification { .. } => None,
        }
    }

    /// The value of a key that `params`, or in a response `result`, has exactly once.
    pub(crate) fn of_body(&self, name: &str) -> Option<Range<usize>> {
        self.body_members.find(self.text, self.body.as_ref(), name)
    }

    /// The value of a key that `_meta` has exactly once.
    pub(crate) fn of_meta(&self, name: &str) -> Option<Range<usize>> {
        self.meta_members.find(self.text, self.meta.as_ref(), name)
    }

    /// `_meta.outrigger.resumeToken`.
    pub(crate) fn resume_token(&self) -> Option<Cow<'a, str>> {
        self.outrigger_text("resumeToken")
    }

    /// The string in a field of `_meta.outrigger`.
    pub(crate) fn outrigger_text(&self, name: &str) -> Option<Cow<'a, str>> {
        let outrigger = self.of_meta("outrigger")?;
        let token = member(self.text, &outrigger, name)?;
        (self.text.as_bytes()[token.start] == b'"').then(|| unescape(&self.text[token]))
    }

    /// Whether `_meta.outrigger.takeover` is true.
    pub(crate) fn takes_over(&self) -> bool {
        let outrigger = self.of_meta("outrigger");
        let takeover = outrigger.and_then(|outrigger| member(self.text, &outrigger, "takeover"));
        takeover.is_some_and(|takeover| &self.text[takeover] == "true")
    }

    /// The token in `_meta.progressToken`, as written. Rejects a token in a place or under a key that a lenient parser could
    /// read instead.
    pub(crate) fn progress_token(&self) -> Result<Option<Range<usize>>, &'static str> {
        let holder = if self.has_other_meta {
            &self.body
        } else {
            &self.meta
        };
        // Most messages have none, and need no other look at the text.
        let holder = holder.as_ref().map(|range| &self.text[range.clone()]);
        if !holder.is_some_and(may_have_progress_token) {
            return Ok(None);
        }
        let (mut found, mut count, mut is_spelled) = (None, 0, false);
        self.members_of_meta(|holder, key, value| {
            if is_spelling_of(key, "progressToken") {
                is_spelled = holder == "_meta" && key == "progressToken";
                found = Some(value);
                count += 1;
            }
        });
        let Some(token) = found else {
            return Ok(None);
        };
        match self.text.as_bytes()[token.start] {
            _ if count > 1 => Err("duplicate key"),
            _ if !is_spelled => Err(MISSPELLED),
            b'"' | b'-' | b'0'..=b'9' => Ok(Some(token)),
            b'n' => Ok(None),
            _ => Err("\"progressToken\" is neither a string nor a number"),
        }
    }

    /// Calls `member` with each member of `_meta`: the spelling of `_meta`, the key and the value.
    fn members_of_meta(&self, mut member: impl FnMut(&str, &str, Range<usize>)) {
        self.each_meta_named(|holder, range| {
            if self.text.as_bytes()[range.start] == b'{' {
                let scanned =
                    Skimmer::at(self.text, &range).object(|key, value| member(holder, &key, value));
                debug_assert!(scanned.is_ok(), "the text has been validated");
            }
        });
    }

    /// Calls `each` with the value of `_meta`, and of each of its other spellings.
    pub(crate) fn each_meta(&self, mut each: impl FnMut(Range<usize>)) {
        self.each_meta_named(|_, range| each(range));
    }

    /// Scans the whole body only if it has `_meta` under another spelling.
    fn each_meta_named(&self, mut each: impl FnMut(&str, Range<usize>)) {
        match (&self.body, &self.meta) {
            (Some(body), _) if self.has_other_meta => {
                let scanned = Skimmer::at(self.text, body).object(|key, value| {
                    if is_meta(&key) {
                        each(&key, value);
                    }
                });
                debug_assert!(scanned.is_ok(), "the text has been validated");
            }
            (Some(_), Some(meta)) => each("_meta", meta.clone()),
            _ => {}
        }
    }

    fn take_body(&mut self, body: Option<&mut Body>) -> Result<(), &'static str> {
        let Some(body) = body else {
            return Ok(());
        };
        let (session, other_session) = (&body.session.0, &body.other_session.0);
        let mut twin = body.has_meta_twin;
        let is_response = matches!(self.kind, MessageKind::Response { .. });
        twin |= session.is_some() && other_session.is_some();
        twin |= body.request_id.0.is_some() && body.other_request.0.is_some();
        if body.has_duplicate && !(is_response && session.is_some()) {
            return Err("duplicate key");
        }
        if twin && !is_response {
            return Err(MISSPELLED);
        }
        let raw = |range: &Range<usize>| &self.text[range.clone()];
        self.session = match session.as_ref().map(raw) {
            None | Some("null") => None,
            Some(session) if session.starts_with('"') => Some(unescape(session)),
            Some(_) => return Err("\"sessionId\" is not a string"),
        };
        let other_session = other_session.as_ref().map(raw);
        self.misspelled_session = other_session
            .filter(|session| session.starts_with('"'))
            .map(unescape);
        self.has_other_meta = body.has_other_meta;
        (self.request_id, self.meta) = (body.request_id.0.take(), body.meta.0.take());
        self.prompt = body.prompt.0.take().filter(|_| !body.has_two_prompts);
        self.body_members = std::mem::take(&mut body.members);
        self.meta_members = std::mem::take(&mut body.meta_members);
        self.body = Some(body.range.clone());
        Ok(())
    }
}

impl From<NotJson> for EnvelopeError {
    fn from(_: NotJson) -> Self {
        Self::Parse
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::json::tests::units_of;

    fn invalid(text: &str) -> (&'static str, Option<&str>) {
        match Envelope::parse(text) {
            Err(EnvelopeError::Invalid { why, id }) => (why, id.map(|id| &text[id])),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn each_kind_of_message_is_parsed_with_its_own_bytes() {
        let text = r#"{ "id" : 1.0 , "jsonrpc":"2.0","method":"session\/prompt","params":{"sessionId":"s\u0031","x":[{}],
            "requestId":"r","_meta":{"outrigger":{"resumeToken":"t"}}} }"#;
        let envelope = Envelope::parse(text).expect("a request");
        assert_eq!(envelope.id(), Some("1.0"));
        assert!(
            matches!(&envelope.kind, MessageKind::Request { method, .. } if method == "session/prompt")
        );
        assert_eq!(envelope.session.as_deref(), Some("s1"));
        assert_eq!(&text[envelope.request_id.clone().expect("one")], "\"r\"");
        assert_eq!(envelope.resume_token().as_deref(), Some("t"));

        let envelope =
            Envelope::parse(r#"{"jsonrpc":"2.0","method":"x"}"#).expect("a notification");
        assert_eq!(
            envelope.kind,
            MessageKind::Notification { method: "x".into() }
        );
        let text = r#"{"jsonrpc":"2.0","id":null,"result":{"sessionId":"s"}}"#;
        let envelope = Envelope::parse(text).expect("a response");
        assert!(matches!(
            envelope.kind,
            MessageKind::Response {
                result: Some(_),
                ..
            }
        ));
        assert_eq!(
            (envelope.id(), envelope.session.as_deref()),
            (Some("null"), Some("s"))
        );
        let text = r#"{"jsonrpc":"2.0","id":"a\"b","error":{"code":1,"message":"m","data":{"sessionId":7}}}"#;
        let envelope = Envelope::parse(text).expect("an error");
        assert!(matches!(
            envelope.kind,
            MessageKind::Response { result: None, .. }
        ));
        assert_eq!(envelope.id(), Some(r#""a\"b""#));
    }

    /// The bug: the message was scanned once as a whole, and its `params` once more.
    #[test]
    fn a_message_is_scanned_once_however_it_is_nested() {
        let whole = |text: &str| {
            units_of(|| assert!(Skimmer::new(text).value().is_ok()))
                - units_of(|| _ = Skimmer::new("{}").value())
        };
        let values = "[{\"a\":\"\\n\"},0,[]],".repeat(1000);
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"a":[{values}0],"sessionId":"s","b":[{values}0]}}}}"#
        );
        let units = units_of(|| assert!(Envelope::parse_client(&text).is_ok()));
        assert_eq!(units, whole(&text));
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"a":[{values}0]}}}}"#);
        let units = units_of(|| assert!(Envelope::parse_client(&text).is_ok()));
        assert_eq!(units, whole(&text));
        // What is searched several times counts several times.
        let meta = text.replacen("\"a\"", "\"_meta\"", 1);
        let units = units_of(|| assert!(Envelope::parse_client(&meta).is_ok()));
        assert!(
            (3 * whole(&meta)..=4 * whole(&meta)).contains(&units),
            "{units}"
        );
        // The nesting is limited as for a whole value.
        let nested = |depth: usize| {
            let (open, close) = ("[".repeat(depth), "]".repeat(depth));
            let text =
                format!(r#"{{"jsonrpc":"2.0","method":"x","params":{{"a":{open}{close}}}}}"#);
            (
                Envelope::parse(&text).is_ok(),
                Skimmer::new(&text).value().is_ok(),
            )
        };
        assert_eq!((nested(127), nested(128)), ((true, false), (false, false)));
        assert_eq!(nested(126), (true, true));
    }

    #[test]
    fn a_progress_token_is_found_only_where_every_parser_finds_it() {
        let token = |params: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{params}}}"#);
            let envelope = Envelope::parse(&text).expect("a request");
            let token = envelope.progress_token();
            token.map(|token| token.map(|token| text[token].to_owned()))
        };
        for (params, want) in [
            ("{}", None),
            ("[]", None),
            (r#"{"_meta":null}"#, None),
            (r#"{"_meta":{"a":1}}"#, None),
            (r#"{"_meta":{"progressToken":null}}"#, None),
            (r#"{"arguments":{"_meta":{"progressToken":1}}}"#, None),
            (r#"{"_meta":{"a":{"progressToken":1}}}"#, None),
            (r#"{"_meta":{ "progressToken" : 1.0 }}"#, Some("1.0")),
            (r#"{"_meta":{"progressToken":-1}}"#, Some("-1")),
            (
                r#"{"_meta":{"progressT\u006fken":"a\"b"},"meta":{"a":1}}"#,
                Some(r#""a\"b""#),
            ),
        ] {
            assert_eq!(token(params), Ok(want.map(str::to_owned)), "{params}");
        }
        for params in [
            r#"{"_meta":{"progressToken":1,"progressToken":2}}"#,
            r#"{"_meta":{"progressToken":1,"progress_token":2}}"#,
            r#"{"_meta":{"progress_token":2}}"#,
            r#"{"_meta":{"ProgressToken":2}}"#,
            r#"{"meta":{"progressToken":2}}"#,
            r#"{"meta":{"progressToken":2},"_meta":{"progressToken":1}}"#,
            r#"{"field_meta":{"progress-token":2}}"#,
            r#"{"_meta":{"\u0070rogresstoken":2}}"#,
            r#"{"_meta":{"PROGRESSTO\u212aEN":2}}"#,
            r#"{"_meta":{"progre\u017fs_To\u212aen":2}}"#,
            "{\"_meta\":{\"progressTo\u{212a}en\":2}}",
            r#"{"_meta":{"progressToken":true}}"#,
            r#"{"_meta":{"progressToken":{}}}"#,
        ] {
            assert!(token(params).is_err(), "{params}");
        }
    }

    #[test]
    fn an_invalid_message_gets_a_precise_error_and_a_safe_id() {
        for text in [
            "",
            "hello",
            "{",
            r#"{"jsonrpc":"2.0","id":1,"method":"x"} y"#,
            r#"{"a":"\ud800"}"#,
        ] {
            assert_eq!(Envelope::parse(text), Err(EnvelopeError::Parse), "{text}");
        }
        let deep = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{}{}}}"#,
            "[".repeat(500),
            "]".repeat(500)
        );
        assert_eq!(Envelope::parse(&deep), Err(EnvelopeError::Parse));

        assert_eq!(invalid("[]"), ("batches are not supported", None));
        assert_eq!(invalid("7"), ("not an object", None));
        assert_eq!(
            invalid(r#"{"id":1,"method":"x"}"#),
            ("\"jsonrpc\" is not \"2.0\"", Some("1"))
        );
        for id in ["{}", "[1]", "true", "false"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x"}}"#);
            assert_eq!(invalid(&text).1, None, "{text}");
        }
        for (text, why) in [
            (
                r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
                "\"method\" is not a string",
            ),
            (r#"{"jsonrpc":"2.0","id":1}"#, "neither"),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"x","result":1}"#,
                "neither",
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#,
                "neither",
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"sessionId":5}}"#,
                "\"sessionId\" is not a string",
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"sessionId":"a","sessionId":"b"}}"#,
                "duplicate key",
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"sessionId":"a","session\u0049d":"b"}}"#,
                "duplicate",
            ),
        ] {
            let (got, id) = invalid(text);
            assert!(got.starts_with(why), "{text}: {got}");
            assert_eq!(id, Some("1"));
        }
        for key in [
            "SessionId",
            "\u{17f}essionId",
            "sessionID",
            "session_id",
            "Session-Id",
        ] {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"sessionId":"a","{key}":"b"}}}}"#
            );
            assert_eq!(invalid(&text), (MISSPELLED, Some("1")), "{key}");
            let text = text.replace(r#""sessionId":"a","#, "");
            let alone = Envelope::parse(&text).expect("one spelling");
            assert_eq!(
                (alone.session, alone.misspelled_session),
                (None, Some("b".into()))
            );
        }
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"method":"x","Params":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"requestId":1,"request_id":2}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"_Meta":{}}}"#,
        ] {
            assert_eq!(invalid(text).0, MISSPELLED, "{text}");
        }
        let both = r#"{"jsonrpc":"2.0","id":1,"result":{},"error":null}"#;
        assert!(Envelope::parse(both).is_ok_and(|envelope| matches!(
            envelope.kind,
            MessageKind::Response {
                result: Some(_),
                ..
            }
        )));
        let both = r#"{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":1}}"#;
        assert!(Envelope::parse(both).is_ok_and(|envelope| matches!(
            envelope.kind,
            MessageKind::Response { result: None, .. }
        )));
        let twice = r#"{"jsonrpc":"2.0","id":1,"method":"x","\u0069d":2}"#;
        assert_eq!(
            invalid(twice),
            ("duplicate key", None),
            "either id could be the right one for the response"
        );
    }
}
