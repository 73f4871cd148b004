//! The parts of a JSON-RPC 2.0 message that routing needs, as ranges of the message's own bytes.

use std::borrow::Cow;
use std::ops::Range;

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

/// The maximum number of characters of a key that are kept for an error.
const MAX_SHOWN_KEY: usize = 40;

/// The number of members of an object that are noted: those of a `tools/call` and of its `_meta`, for example.
const MAX_NOTED: usize = 5;

/// The members of an object, noted while it is scanned, so that it need not be scanned again. It is small, because a message moves
/// often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Members {
    /// Where the key begins, behind its quote, and where the value begins and ends.
    noted: [[u32; 3]; MAX_NOTED],
    count: u8,
    /// Whether the object has a member that was not noted: one too many, or a key with escapes.
    has_others: bool,
}

impl Members {
    /// Notes a member of an object in `text`. `key` is that part of the text, or `None` if it has escapes.
    fn note(&mut self, text: &str, key: Option<&str>, value: &Range<usize>) {
        let noted = self.noted.get_mut(usize::from(self.count));
        if let (Some(key), Some(noted), Ok(_)) = (key, noted, u32::try_from(value.end)) {
            let start = key.as_ptr().addr() - text.as_ptr().addr();
            *noted = [start, value.start, value.end].map(|at| at as u32);
            self.count += 1;
        } else {
            self.has_others = true;
        }
    }

    /// The value of a key that `object` has exactly once.
    fn find(&self, text: &str, object: Option<&Range<usize>>, name: &str) -> Option<Range<usize>> {
        let object = object?;
        if self.has_others {
            return member(text, object, name);
        }
        let noted = self.noted[..usize::from(self.count)].iter();
        let mut found = noted.filter(|[start, ..]| {
            let rest = text[*start as usize..].strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with('"'))
        });
        let &[_, start, end] = found.next()?;
        let is_only = found.next().is_none();
        is_only.then_some(start as usize..end as usize)
    }
}

/// A key without escapes, as a part of the text.
fn plain<'a>(key: &Cow<'a, str>) -> Option<&'a str> {
    match key {
        Cow::Borrowed(key) => Some(key),
        Cow::Owned(_) => None,
    }
}

/// The members of `params` or `result` that routing reads.
#[derive(Default)]
struct Body {
    range: Range<usize>,
    members: Members,
    meta_members: Members,
    session: Once,
    request_id: Once,
    meta: Once,
    prompt: Once,
    /// The first two under another spelling.
    other_session: Once,
    other_request: Once,
    /// Whether a member that routing reads occurs twice.
    has_duplicate: bool,
    has_two_prompts: bool,
    /// Whether the object has `_meta` under a spelling that differs in case alone.
    has_meta_twin: bool,
    has_other_meta: bool,
}

impl Body {
    /// Scans the object in front of which the cursor is. Fills itself in place, because a `Body` is large.
    fn read(&mut self, skimmer: &mut Skimmer<'_>) -> Result<(), NotJson> {
        let text = skimmer.text();
        self.range = skimmer.nested(|skimmer, key| {
            let before = skimmer.budget();
            if key == "_meta" {
                // Only the last one counts where a duplicate is permitted.
                self.meta_members = Members::default();
            }
            let value = if key == "_meta" && skimmer.peek() == Some(b'{') {
                skimmer.nested(|skimmer, key| {
                    let value = skimmer.value()?;
                    self.meta_members.note(text, plain(&key), &value);
                    Ok(())
                })?
            } else {
                skimmer.value()?
            };
            self.members.note(text, plain(&key), &value);
            self.has_duplicate |= match &*key {
                "sessionId" => !self.session.set(value),
                "requestId" => !self.request_id.set(value),
                "_meta" => {
                    // It is searched for several fields later.
                    skimmer.count_again(before)?;
                    !self.meta.set(value)
                }
                "prompt" => {
                    self.has_two_prompts |= !self.prompt.set(value);
                    false
                }
                other if is_spelling_of(other, "sessionId") => !self.other_session.set(value),
                other if is_spelling_of(other, "requestId") => !self.other_request.set(value),
                other => {
                    if is_meta(other) {
                        self.has_other_meta = true;
                        skimmer.count_again(before)?;
                    }
                    self.has_meta_twin |= other.eq_ignore_ascii_case("_meta");
                    false
                }
            };
            Ok(())
        })?;
        Ok(())
    }
}

/// The members of a message.
#[derive(Default)]
struct Outer {
    version: Once,
    id: Once,
    method: Once,
    params: Once,
    result: Once,
    error: Once,
    /// `params` and `result`, if they are objects.
    params_body: Option<Body>,
    result_body: Option<Body>,
    unknown_member: Option<String>,
    /// Whether a member that JSON-RPC has occurs twice.
    has_duplicate: bool,
    /// Whether a key is another spelling of one that JSON-RPC has.
    has_twin: bool,
}

impl Outer {
    /// The members that JSON-RPC has.
    const NAMES: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];

    /// Scans the object in front of which the cursor is. Fills itself in place, because an `Outer` is large.
    fn read(&mut self, skimmer: &mut Skimmer<'_>) -> Result<(), NotJson> {
        skimmer.members(|skimmer, key| {
            let mut no_body = None;
            let (slot, body) = match &*key {
                "jsonrpc" => (&mut self.version, &mut no_body),
                "id" => (&mut self.id, &mut no_body),
                "method" => (&mut self.method, &mut no_body),
                "params" => (&mut self.params, &mut self.params_body),
                "result" => (&mut self.result, &mut self.result_body),
                "error" => (&mut self.error, &mut no_body),
                other => {
                    self.has_twin |= Self::NAMES.iter().any(|name| is_spelling_of(other, name));
                    self.unknown_member
                        .get_or_insert_with(|| other.chars().take(MAX_SHOWN_KEY).collect());
                    return skimmer.value().map(drop);
                }
            };
            let is_body = matches!(&*key, "params" | "result");
            let value = if is_body && skimmer.peek() == Some(b'{') {
                let body = body.insert(Body::default());
                body.read(skimmer)?;
                body.range.clone()
            } else {
                skimmer.value()?
            };
            self.has_duplicate |= !slot.set(value);
            Ok(())
        })
    }

    /// The id, if an error response may have it: it is valid, and there is no other one.
    fn usable_id(&self, text: &str) -> Option<Range<usize>> {
        let id = self.id.0.clone();
        id.filter(|id| is_id(text, id) && !self.has_duplicate)
    }

    /// Checks each member for itself. Drops `result` or `error` if it is null and the other one is there, because some
    /// implementations write both.
    fn check(&mut self, text: &str) -> Result<(), &'static str> {
        if self.has_duplicate {
            return Err("duplicate key");
        }
        let version = self.version.0.as_ref();
        if version.is_none_or(|version| &text[version.clone()] != "\"2.0\"") {
            return Err("\"jsonrpc\" is not \"2.0\"");
        }
        if self.id.0.as_ref().is_some_and(|id| !is_id(text, id)) {
            return Err("\"id\" is neither a string nor a number nor null");
        }
        if self.has_twin {
            return Err(MISSPELLED);
        }
        let is_null = |once: &Once| {
            let value = once.0.as_ref();
            value.is_some_and(|range| &text[range.clone()] == "null")
        };
        match (is_null(&self.result), is_null(&self.error)) {
            (_, true) if self.result.0.is_some() => self.error.0 = None,
            (true, false) if self.error.0.is_some() => self.result.0 = None,
            _ => {}
        }
        Ok(())
    }
}

/// Whether a value can be an id: a string, a number or null.
fn is_id(text: &str, value: &Range<usize>) -> bool {
    let first = text.as_bytes()[value.start];
    matches!(first, b'"' | b'-' | b'0'..=b'9' | b'n')
}

/// A value that may occur once in an object.
#[derive(Default)]
struct Once(Option<Range<usize>>);

impl Once {
    /// Sets the value. Returns false if it was set before.
    fn set(&mut self, value: Range<usize>) -> bool {
        self.0.replace(value).is_none()
    }
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

/// The error for a key that a more lenient parser could read as a reserved key.
const MISSPELLED: &str = "a reserved key has a wrong spelling";

/// The maximum length of a key that can be a spelling of another one.
const MAX_SPELLING: usize = 256;

/// Whether a lenient parser could read `key` as `name`. Go's parser ignores case, and Python libraries accept
/// `session_id` for `sessionId`.
pub(crate) fn is_spelling_of(key: &str, name: &str) -> bool {
    // The search for a spelling must not take long for a key that consists of what it ignores.
    if key.len() > MAX_SPELLING {
        return false;
    }
    folded(key).eq(folded(name))
}

/// The characters of a key without what lenient parsers ignore.
pub(crate) fn folded(text: &str) -> impl DoubleEndedIterator<Item = char> {
    let chars = text.chars().filter(|c| !matches!(c, '_' | '-'));
    chars.map(|c| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    })
}

/// Whether an object can have a key that [`is_spelling_of`] `progressToken`: false if it lacks a letter of that key. Has no
/// branch, so that the compiler can check many bytes at once.
fn may_have_progress_token(object: &str) -> bool {
    let (mut g, mut k, mut other) = (false, false, false);
    for byte in object.bytes() {
        g |= byte | 0x20 == b'g';
        k |= byte | 0x20 == b'k';
        other |= byte == b'\\' || byte >= 0x80;
    }
    g && k || other
}

/// Whether a key is `_meta` or one of its spellings in libraries, such as `meta` and `field_meta`.
fn is_meta(key: &str) -> bool {
    is_spelling_of(key, "meta") || is_spelling_of(key, "fieldMeta")
}

impl From<NotJson> for EnvelopeError {
    fn from(_: NotJson) -> Self {
        Self::Parse
    }
}

/// The value of a key in the object at `range`. `None` if the value there is not an object, or does not have the key
/// exactly once.
pub(crate) fn member(text: &str, range: &Range<usize>, name: &str) -> Option<Range<usize>> {
    let (mut found, mut count) = (None, 0);
    Skimmer::at(text, range)
        .object(|key, value| {
            if key == name {
                found = Some(value);
                count += 1;
            }
        })
        .ok()?;
    found.filter(|_| count == 1)
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
