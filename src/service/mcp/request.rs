//! Reads what a client sends: the fields of the head, with the media types that it accepts and sends (RFC 9110
//! sections 8.3 and 12.5.1), and the JSON-RPC message of a POST, without I/O.

use std::borrow::Cow;

use super::headers;
use super::headers::Tools;
use super::http_error::HttpError;
use super::{EARLIER_VERSIONS, SESSION_VERSIONS, STATELESS};
use crate::record::record;
use crate::service::json::{Skimmer, unescape, why_not_json};
use crate::service::jsonrpc::{Envelope, EnvelopeError, MAX_ID, MessageKind, code, splice};
use crate::text::bytes_without_mark;
use crate::{Request, StatusCode};

/// The forms of an answer that a client accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accepts {
    /// One JSON message.
    pub(super) json: bool,
    /// A stream of server-sent events.
    pub(super) events: bool,
}

record!(Accepts { json, events });

impl Accepts {
    /// Reads the `Accept` field. Without one, a client accepts everything.
    pub(super) fn of(request: &Request<'_>) -> Self {
        if request.header("accept").is_none() {
            return Self {
                json: true,
                events: true,
            };
        }
        // How specific the best range for each type is, and whether it accepts the type.
        let (mut json, mut events) = ((0, false), (0, false));
        for range in request.list("accept") {
            let (range, parameters) = range.split_once(';').unwrap_or((range, ""));
            let range = range.trim();
            let is_accepted = || has_quality(parameters);
            for (best, kind, media_type) in [
                (&mut json, "application/*", "application/json"),
                (&mut events, "text/*", "text/event-stream"),
            ] {
                let specificity = match range {
                    "*/*" => 1,
                    _ if range.eq_ignore_ascii_case(media_type) => 3,
                    _ if range.eq_ignore_ascii_case(kind) => 2,
                    _ => 0,
                };
                if specificity > best.0 {
                    *best = (specificity, is_accepted());
                }
            }
        }
        Self {
            json: json.1,
            events: events.1,
        }
    }

    fn is_nothing(self) -> bool {
        !self.json && !self.events
    }
}

/// Whether a media range with these parameters has a quality over zero.
fn has_quality(parameters: &str) -> bool {
    let mut parameters = parameters.split(';').map(str::trim);
    let quality = parameters.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| value.trim())
    });
    quality.is_none_or(|quality| quality.parse().is_ok_and(|q: f32| q > 0.0))
}

/// Whether the body of a request is announced as JSON.
fn has_json_body(request: &Request<'_>) -> bool {
    let media_type = request
        .header("content-type")
        .and_then(|value| value.split(|byte| *byte == b';').next())
        .unwrap_or_default();
    media_type
        .trim_ascii()
        .eq_ignore_ascii_case(b"application/json")
}

/// The keys of `_meta` that every request of revision 2026-07-28 has.
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
pub(super) const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";

/// A valid POST.
#[derive(Debug)]
pub(super) enum Post<'a> {
    /// A request of revision 2026-07-28.
    Request(Envelope<'a>),
    /// A notification of that revision.
    Notification(Envelope<'a>),
    /// The first request of a session.
    Initialize(Envelope<'a>),
    /// Any other message of a session.
    InSession(Envelope<'a>),
}

/// The version that the head of a request names; `?` if it is not UTF-8.
pub(super) fn version<'a>(request: &Request<'a>) -> Option<&'a str> {
    let value = request.header("mcp-protocol-version")?;
    Some(std::str::from_utf8(value).unwrap_or("?"))
}

/// Whether errors are written as revision 2026-07-28 asks for.
pub(super) fn is_stateless(request: &Request<'_>) -> bool {
    version(request) == Some(STATELESS)
}

/// Checks the version that the head of a request of a session names. Without one, it is 2025-03-26.
pub(super) fn check_version(
    request: &Request<'_>,
    supports_stateless: bool,
) -> Result<(), HttpError> {
    let is_known = |version: &str| {
        version == STATELESS
            || SESSION_VERSIONS.contains(&version)
            || EARLIER_VERSIONS.contains(&version)
    };
    match version(request) {
        Some(version) if !is_known(version) => {
            Err(HttpError::unsupported_version(version, supports_stateless))
        }
        _ => Ok(()),
    }
}

/// Checks the media types of a POST.
pub(super) fn check_media_types(request: &Request<'_>) -> Result<Accepts, HttpError> {
    if !has_json_body(request) {
        return Err(HttpError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            code::INVALID,
            "The Content-Type must be application/json",
        ));
    }
    let accepts = Accepts::of(request);
    if accepts.is_nothing() {
        return Err(HttpError::new(
            StatusCode::NOT_ACCEPTABLE,
            code::INVALID,
            "Accept allows neither application/json nor text/event-stream",
        ));
    }
    Ok(accepts)
}

/// How far into a message the key `params` is looked for. The other members of a valid request are short.
const PARAMS_WITHIN: usize = 4096;

/// The body as it is read and passed on: without a byte order mark, and with an object in place of `params` that are null or an empty
/// list. Some clients send these for an empty object, and many servers drop such a message without an answer.
pub(super) fn readable(body: &[u8]) -> Cow<'_, [u8]> {
    const KEY: &[u8] = b"\"params\"";
    let body = bytes_without_mark(body);
    let mut windows = body.windows(KEY.len()).take(PARAMS_WITHIN).enumerate();
    let value = windows.find_map(|(at, window)| {
        let rest = Some(&body[at + KEY.len()..]).filter(|_| window == KEY)?;
        rest.trim_ascii_start().strip_prefix(b":")
    });
    // Almost every message has an object there, and is not scanned twice.
    let text = match value.map(<[u8]>::trim_ascii_start) {
        Some([b'n' | b'[', ..]) => std::str::from_utf8(body).ok(),
        _ => None,
    };
    let Some(text) = text else {
        return body.into();
    };
    let is_empty = |value: &str| {
        let list = value
            .strip_prefix('[')
            .and_then(|list| list.strip_suffix(']'));
        value == "null" || list.is_some_and(|list| list.trim_ascii().is_empty())
    };
    let mut empty = None;
    let scanned = Skimmer::of_client(text).object(|key, value| {
        if key == "params" && is_empty(&text[value.clone()]) {
            empty = Some(value);
        }
    });
    match empty.filter(|_| scanned.is_ok()) {
        Some(range) => splice(text, &mut [(range, "{}")])
            .concat()
            .into_bytes()
            .into(),
        None => body.into(),
    }
}

/// Reads the message of a POST. `tools` is what is known of the server's tools, if it supports revision 2026-07-28, or if that is
/// not known yet.
pub(super) fn read_post<'a>(
    request: &Request<'_>,
    body: &'a [u8],
    tools: Option<&Tools>,
) -> Result<Post<'a>, HttpError> {
    let parse_error = |why: &str| {
        let message = format!("Parse error: {why}");
        HttpError::new(StatusCode::BAD_REQUEST, code::PARSE, message)
    };
    let text = std::str::from_utf8(body)
        .map_err(|error| parse_error(&format!("byte {}: not UTF-8", error.valid_up_to())))?;
    let envelope = Envelope::parse_client(text).map_err(|error| match error {
        EnvelopeError::Parse => parse_error(&why_not_json(text)),
        EnvelopeError::Invalid { why, id } => {
            let error = HttpError::invalid(format!("Invalid request: {why}"));
            match id {
                Some(id) if id.len() <= MAX_ID => error.with_id(&text[id]),
                _ => error,
            }
        }
    })?;
    if envelope.id().is_some_and(|id| id.len() > MAX_ID) {
        return Err(HttpError::invalid("Invalid request: the id is too long"));
    }
    let id = match &envelope.kind {
        MessageKind::Request { id, .. } => Some(id.clone()),
        _ => None,
    };
    if id.as_ref().is_some_and(|id| !is_id(&text[id.clone()])) {
        let why = "Invalid request: the id is neither a string nor an integer";
        return Err(HttpError::invalid(why));
    }
    check_members(&envelope)
        .and_then(|()| check_token(&envelope))
        .and_then(|()| check_message(request, envelope, tools))
        .map_err(|error| match id {
            Some(id) => error.with_id(&text[id]),
            None => error,
        })
}

/// Whether an id is a string, or an integer that every JSON parser can represent.
fn is_id(raw: &str) -> bool {
    const SAFE: u64 = (1 << 53) - 1;
    let is_safe = |number: i64| number.unsigned_abs() <= SAFE;
    raw.starts_with('"') || (raw != "-0" && raw.parse().is_ok_and(is_safe))
}

/// Rejects a progress token that is too long, because it is kept while the request waits.
fn check_token(envelope: &Envelope<'_>) -> Result<(), HttpError> {
    if envelope
        .of_meta("progressToken")
        .is_some_and(|token| token.len() > MAX_ID)
    {
        let why = "Invalid request: the progress token is too long";
        return Err(HttpError::invalid(why));
    }
    Ok(())
}

/// Rejects what strict parsers drop without an answer: members that JSON-RPC does not have, and `params` that is not an object.
fn check_members(envelope: &Envelope<'_>) -> Result<(), HttpError> {
    if let Some(other) = &envelope.unknown_member {
        let why = format!("Invalid request: unknown member {other:?}");
        return Err(HttpError::invalid(why));
    }
    if envelope.has_listed_params {
        let why = "Invalid request: \"params\" is not an object";
        return Err(HttpError::invalid(why));
    }
    Ok(())
}

fn check_message<'a>(
    request: &Request<'_>,
    envelope: Envelope<'a>,
    tools: Option<&Tools>,
) -> Result<Post<'a>, HttpError> {
    let text = envelope.text;
    let of_meta = |key| envelope.of_meta(key).map(|range| &text[range]);
    let header = version(request);
    check_version(request, tools.is_some())?;
    let body = of_meta(VERSION_KEY)
        .filter(|raw| raw.starts_with('"'))
        .map(unescape);
    match (&envelope.kind, header, body.as_deref()) {
        (MessageKind::Request { method, .. }, _, None) if method == "initialize" => {
            return Ok(Post::Initialize(envelope));
        }
        (MessageKind::Request { method, .. }, ..) if method == "initialize" => {
            return Err(HttpError::new(
                StatusCode::NOT_FOUND,
                code::NO_METHOD,
                "Method not found: revision 2026-07-28 has no initialize",
            ));
        }
        (_, Some(STATELESS), _) => {}
        (MessageKind::Request { .. }, None, Some(_)) => {
            return Err(HttpError::header_mismatch(
                "Header mismatch: MCP-Protocol-Version is missing",
            ));
        }
        (MessageKind::Request { .. }, Some(header), Some(body)) if header != body => {
            return Err(HttpError::header_mismatch(format!(
                "Header mismatch: MCP-Protocol-Version is {header:?}, but the body has {body:?}"
            )));
        }
        _ => return Ok(Post::InSession(envelope)),
    }
    let method = match &envelope.kind {
        MessageKind::Request { method, .. } => method.clone(),
        MessageKind::Notification { .. } => return Ok(Post::Notification(envelope)),
        MessageKind::Response { .. } => {
            return Err(HttpError::invalid(
                "Invalid request: clients send no responses in this revision",
            ));
        }
    };
    let Some(tools) = tools else {
        return Err(HttpError::unsupported_version(STATELESS, false));
    };
    let missing = |key| {
        HttpError::new(
            StatusCode::BAD_REQUEST,
            code::PARAMS,
            format!("Invalid params: _meta has no valid {key:?}"),
        )
    };
    match body.as_deref() {
        None => return Err(missing(VERSION_KEY)),
        Some(STATELESS) => {}
        Some(body) => {
            return Err(HttpError::header_mismatch(format!(
                "Header mismatch: MCP-Protocol-Version is {STATELESS:?}, but the body has {body:?}"
            )));
        }
    }
    if !of_meta(CAPABILITIES_KEY).is_some_and(|raw| raw.starts_with('{')) {
        return Err(missing(CAPABILITIES_KEY));
    }
    headers::check(request, &method, &envelope, tools)?;
    Ok(Post::Request(envelope))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(value: &str) -> (bool, bool) {
        let head = format!("POST / HTTP/1.1\r\nHost: h\r\nAccept: {value}\r\n\r\n");
        let request = Request::parse(head.as_bytes()).expect("a request");
        let Accepts { json, events } = Accepts::of(&request);
        (json, events)
    }

    #[test]
    fn empty_params_in_any_form_are_an_object_and_nothing_else_changes() {
        // The bug: the message was refused with 400, although PHP and Go write an empty object like this.
        for (body, read) in [
            (
                r#"{"method":"x","params" : null}"#,
                r#"{"method":"x","params" : {}}"#,
            ),
            (
                r#"{"params":[ ],"method":"x"}"#,
                r#"{"params":{},"method":"x"}"#,
            ),
            ("\u{feff}{}", "{}"),
        ] {
            assert_eq!(&*readable(body.as_bytes()), read.as_bytes());
        }
        for kept in [
            r#"{"method":"x","params":[1]}"#,
            r#"{"method":"x","params":{"params":null}}"#,
            r#"{"id":1,"result":{"params":null}}"#,
            r#"{"id":1,"result":{"content":"\"params\":null"}}"#,
            r#"{"method":"params","x":null}"#,
            r#"{"params":null"#,
            r#"{"params":"#,
            "",
        ] {
            assert_eq!(&*readable(kept.as_bytes()), kept.as_bytes());
        }
    }

    #[test]
    fn the_most_specific_range_decides() {
        assert_eq!(accepts("application/json, text/event-stream"), (true, true));
        assert_eq!(accepts("*/*"), (true, true));
        assert_eq!(accepts("text/*;q=0.5"), (false, true));
        assert_eq!(accepts("Application/JSON; charset=utf-8"), (true, false));
        assert_eq!(accepts("*/*, text/event-stream;q=0"), (true, false));
        assert_eq!(accepts("application/json; q=0.0, */*"), (false, true));
        assert_eq!(accepts("text/html"), (false, false));
        let request = Request::parse(b"POST / HTTP/1.1\r\nHost: h\r\n\r\n").expect("a request");
        assert!(!Accepts::of(&request).is_nothing());
    }

    const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    const VERSION: &str = "MCP-Protocol-Version: 2026-07-28\r\n";
    const NAMES: &str = "Mcp-Method: tools/call\r\nMcp-Name: t\r\n";

    /// The code of the error, 0 without one, and the kind of the POST.
    fn read(fields: &str, body: &str, supported: bool) -> (i32, &'static str) {
        let head = format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let request = Request::parse(head.as_bytes()).expect("a request");
        let tools = Tools::default();
        match read_post(&request, body.as_bytes(), supported.then_some(&tools)) {
            Ok(Post::Request(_)) => (0, "request"),
            Ok(Post::Notification(_)) => (0, "notification"),
            Ok(Post::Initialize(_)) => (0, "initialize"),
            Ok(Post::InSession(_)) => (0, "session"),
            Err(error) => (error.code, ""),
        }
    }

    #[test]
    fn the_revision_follows_from_the_head_and_the_body() {
        let fields = format!("{VERSION}{NAMES}");
        assert_eq!(read(&fields, CALL, true), (0, "request"));
        assert_eq!(read(&fields, CALL, false).0, code::UNSUPPORTED_VERSION);
        assert_eq!(read(NAMES, CALL, true).0, code::HEADER_MISMATCH);
        let older = fields.replace("2026-07-28", "2025-11-25");
        assert_eq!(read(&older, CALL, true).0, code::HEADER_MISMATCH);
        let unknown = fields.replace("2026-07-28", "1900-01-01");
        assert_eq!(read(&unknown, CALL, true).0, code::UNSUPPORTED_VERSION);
        let body = CALL.replace("2026-07-28", "2025-11-25");
        assert_eq!(read(&fields, &body, true).0, code::HEADER_MISMATCH);
        let plain = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        assert_eq!(read("", plain, true), (0, "session"));
        assert_eq!(
            read("MCP-Protocol-Version: 2025-06-18\r\n", plain, true),
            (0, "session")
        );
        assert_eq!(read(VERSION, plain, true).0, code::PARAMS);
        let body = CALL.replace("clientCapabilities\":{}", "clientCapabilities\":1");
        assert_eq!(read(&fields, &body, true).0, code::PARAMS);
        let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
        assert_eq!(read("", initialize, true), (0, "initialize"));
        assert_eq!(read(VERSION, initialize, true), (0, "initialize"));
        let notification = r#"{"jsonrpc":"2.0","method":"x"}"#;
        assert_eq!(read(VERSION, notification, true), (0, "notification"));
        assert_eq!(read("", notification, true), (0, "session"));
        let response = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        assert_eq!(read(VERSION, response, true).0, code::INVALID);
        assert_eq!(read("", response, true), (0, "session"));
    }

    #[test]
    fn the_mirrored_fields_must_agree_with_the_body() {
        for fields in [
            "",
            "Mcp-Method: tools/call\r\n",
            "Mcp-Name: t\r\n",
            "Mcp-Method: tools/list\r\nMcp-Name: t\r\n",
            "Mcp-Method: tools/call\r\nMcp-Name: T\r\n",
            "Mcp-Method: tools/call\r\nMcp-Name: t\r\nMcp-Name: t\r\n",
        ] {
            let fields = format!("{VERSION}{fields}");
            assert_eq!(
                read(&fields, CALL, true).0,
                code::HEADER_MISMATCH,
                "{fields}"
            );
        }
        let encoded = format!("{VERSION}Mcp-Method: tools/call\r\nmcp-name: =?base64?dA==?=\r\n");
        assert_eq!(read(&encoded, CALL, true), (0, "request"));
    }

    #[test]
    fn a_body_that_is_no_message_is_an_error() {
        for (body, code) in [
            ("", code::PARSE),
            ("{", code::PARSE),
            ("[]", code::INVALID),
            ("7", code::INVALID),
            (r#"{"id":1,"method":"x"}"#, code::INVALID),
            (r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, code::INVALID),
            (r#"{"jsonrpc":"2.0","id":1.0,"method":"x"}"#, code::INVALID),
            (
                r#"{"jsonrpc":"2.0","id":9007199254740993,"method":"x"}"#,
                code::INVALID,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"x","params":[1]}"#,
                code::INVALID,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"x","more":1}"#,
                code::INVALID,
            ),
        ] {
            assert_eq!(read("", body, true).0, code, "{body}");
        }
        assert!(
            read_post(
                &Request::parse(b"POST / HTTP/1.1\r\nHost: h\r\n\r\n").expect("a request"),
                b"\"\xff\"",
                None
            )
            .is_err()
        );
    }
}
