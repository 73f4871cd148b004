//! Responses, and how they are written: whole or as a stream, with the field `Date`.

use std::borrow::Cow;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use super::field::is_field;
use super::rejection::{Rejection, StatusCode, push_string};

impl From<&Rejection> for Response {
    fn from(rejection: &Rejection) -> Self {
        let mut body = String::from("{");
        if let Some(detail) = &rejection.detail {
            body.push_str("\"detail\":");
            push_string(detail, &mut body);
            body.push(',');
        }
        body.push_str("\"message\":");
        push_string(&rejection.message, &mut body);
        body.push_str(",\"type\":\"error\"}");
        let mut response = Self::json(rejection.status, body);
        response.fields.clone_from(&rejection.fields);
        response
    }
}

/// A body that is part of the program is copied if it is shorter than this.
const LONG_BODY: usize = 4096;

/// The lengths of bodies that are compressed. Compressing a longer one would keep the loop for too long.
#[cfg(feature = "server")]
const COMPRESSED: std::ops::RangeInclusive<usize> = 512..=512 << 10;

/// A field of a response: its name and its value.
pub(super) type Field = (&'static str, Cow<'static, str>);

/// The properties of a response that depend on the request and the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    pub(crate) after: AfterResponse,
    /// Whether the body is omitted because the method is HEAD.
    pub(crate) head_only: bool,
    /// Whether a body of unknown length is sent in chunks.
    pub(crate) chunked: bool,
    /// The origin of the page that may read the response.
    pub(crate) origin: Option<&'a str>,
    /// The current time.
    pub(crate) date: HttpDate,
}

/// What happens to the connection after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterResponse {
    /// It stays open for another request.
    KeepAlive,
    /// It is closed.
    Close,
}

/// A response with a body.
///
/// ```
/// use outrigger::{Response, StatusCode};
///
/// let response = Response::json(StatusCode::OK, "{\"ok\":true}").field("Allow", "GET");
/// assert_eq!(response.status(), StatusCode::OK);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    status: StatusCode,
    content_type: &'static str,
    body: Cow<'static, [u8]>,
    /// The length of more bytes of the body, which are sent after the response.
    following: usize,
    fields: Vec<Field>,
}

impl Response {
    /// Creates a response with any body. An empty `content_type` is omitted, for a response without a body.
    pub fn new(
        status: StatusCode,
        content_type: &'static str,
        body: impl Into<Cow<'static, [u8]>>,
    ) -> Self {
        Self {
            status,
            content_type,
            body: body.into(),
            following: 0,
            fields: Vec::new(),
        }
    }

    /// Announces that `following` more bytes of the body are sent after the response.
    #[cfg(feature = "server")]
    pub(crate) fn followed_by(self, following: usize) -> Self {
        Self { following, ..self }
    }

    /// Creates a response whose body is JSON text. The text is not checked.
    pub fn json(status: StatusCode, body: impl Into<String>) -> Self {
        Self::new(status, "application/json", body.into().into_bytes())
    }

    /// Creates the response that allows a CORS preflight request.
    pub fn preflight() -> Self {
        Self::new(StatusCode::NO_CONTENT, "", b"".as_slice())
            .field("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE")
            // `*` does not cover Authorization.
            .field("Access-Control-Allow-Headers", "Authorization, *")
            .field("Access-Control-Max-Age", "600")
    }

    /// Adds a field. A field with a character that fields cannot have, such as a line break, is left out.
    pub fn field(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// The response with its body in gzip (RFC 1952), if that is worth it and the response has no encoding yet. For callers that
    /// accept it. Without the feature `deflate`, the response does not change.
    #[cfg(feature = "server")]
    pub(crate) fn in_gzip(self) -> Self {
        let has_encoding = self
            .fields
            .iter()
            .any(|field| field.0 == "Content-Encoding");
        let is_worth_it = COMPRESSED.contains(&self.body.len());
        if has_encoding || !is_worth_it || self.following > 0 {
            return self;
        }
        match crate::protocol::deflate::gzip(&self.body) {
            Some(body) => Self {
                body: body.into(),
                ..self
            }
            .field("Content-Encoding", "gzip")
            .field("Vary", "Accept-Encoding"),
            None => self,
        }
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The length of the body in bytes.
    pub fn body_len(&self) -> usize {
        self.body.len()
    }

    /// The body, if it is long and part of the program, so that it need not be copied.
    pub(crate) fn long_static_body(&self) -> Option<&'static [u8]> {
        match self.body {
            Cow::Borrowed(body) if body.len() >= LONG_BODY => Some(body),
            _ => None,
        }
    }

    /// Appends the response.
    pub(crate) fn write(&self, terms: Terms<'_>, out: &mut Vec<u8>) {
        let rest = self.write_until_static_body(terms, out);
        out.extend_from_slice(rest.unwrap_or_default());
    }

    /// Appends the response, except for a body that is long and part of the program. Returns such a body.
    #[must_use]
    pub(crate) fn write_until_static_body(
        &self,
        terms: Terms<'_>,
        out: &mut Vec<u8>,
    ) -> Option<&'static [u8]> {
        let rest = self.long_static_body();
        out.reserve(USUAL_HEAD + rest.map_or(self.body.len(), |_| 0));
        write_beginning(self.status, terms, out);
        let upgrades = self.status == StatusCode::UPGRADE_REQUIRED;
        match (terms.after, upgrades) {
            (AfterResponse::Close, true) => write_field("Connection", "Upgrade, close", out),
            (AfterResponse::Close, false) => write_field("Connection", "close", out),
            (AfterResponse::KeepAlive, true) => write_field("Connection", "Upgrade", out),
            (AfterResponse::KeepAlive, false) => {
                write_field("Connection", "keep-alive", out);
                write_field("Keep-Alive", KEEP_ALIVE_FIELD, out);
            }
        }
        if upgrades {
            write_field("Upgrade", "websocket", out);
        }
        // RFC 9110 section 8.6: responses with these codes have neither a length nor a body.
        let bodiless = matches!(self.status.0, 204 | 304);
        let has = |name: &str| self.fields.iter().any(|field| field.0 == name);
        if !bodiless {
            if !self.content_type.is_empty() {
                write_field("Content-Type", self.content_type, out);
                // A browser must not take the text of a client in an answer for a page or a script.
                const NO_SNIFFING: (&str, &str) = ("X-Content-Type-Options", "nosniff");
                if !has(NO_SNIFFING.0) {
                    write_field(NO_SNIFFING.0, NO_SNIFFING.1, out);
                }
            }
            let length = self.body.len() + self.following;
            write_field("Content-Length", &length.to_string(), out);
        }
        // Usually, a response is valid only for this request.
        if !has("Cache-Control") {
            write_field("Cache-Control", "no-store", out);
        }
        for (name, value) in &self.fields {
            write_service_field(name, value, out);
        }
        out.extend_from_slice(b"\r\n");
        if terms.head_only || bodiless {
            return None;
        }
        if rest.is_none() {
            out.extend_from_slice(&self.body);
        }
        rest
    }
}

/// Appends the head of a response with a stream of events. The stream is chunked, or ends with the connection. `fields`
/// describe the stream.
pub(crate) fn write_stream_head(fields: &[(&str, &str)], terms: Terms<'_>, out: &mut Vec<u8>) {
    write_beginning(StatusCode::OK, terms, out);
    if terms.after == AfterResponse::Close {
        write_field("Connection", "close", out);
    }
    for (name, value) in fields {
        write_service_field(name, value, out);
    }
    // A proxy that compresses the stream, or buffers it, would delay events.
    write_field("Cache-Control", "no-store, no-transform", out);
    write_field("X-Accel-Buffering", "no", out);
    if terms.chunked {
        write_field("Transfer-Encoding", "chunked", out);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the status line and the fields that every response has.
fn write_beginning(status: StatusCode, terms: Terms<'_>, out: &mut Vec<u8>) {
    write_status_line(status, out);
    write_field("Date", &terms.date.to_string(), out);
    if let Some(origin) = terms.origin {
        write_field("Access-Control-Allow-Origin", origin, out);
        write_field("Vary", "Origin", out);
    }
}

/// Appends a chunk. An empty chunk would end the body, so it is omitted.
pub(crate) fn write_chunk(bytes: &[u8], out: &mut Vec<u8>) {
    if !bytes.is_empty() {
        out.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
        out.extend_from_slice(bytes);
        out.extend_from_slice(b"\r\n");
    }
}

/// Room for the head of a usual response.
const USUAL_HEAD: usize = 512;

/// The value of the field Keep-Alive. A test compares it with [`KEEP_ALIVE`].
const KEEP_ALIVE_FIELD: &str = "timeout=75";

fn write_status_line(status: StatusCode, out: &mut Vec<u8>) {
    let digits = [status.0 / 100, status.0 / 10 % 10, status.0 % 10];
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend(digits.map(|digit| b'0' + (digit % 10) as u8));
    out.push(b' ');
    out.extend_from_slice(status.reason().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends a field of a service. A line break in it would let its value add fields or a whole response, so a field that is
/// not valid is left out.
fn write_service_field(name: &str, value: &str, out: &mut Vec<u8>) {
    if is_field(name, value) {
        write_field(name, value, out);
    }
}

pub(crate) fn write_field(name: &str, value: &str, out: &mut Vec<u8>) {
    for part in [name, ": ", value, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// A point in time as an HTTP date, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use outrigger::protocol::http::HttpDate;
///
/// let time = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
/// assert_eq!(HttpDate::from(time).to_string(), "Sun, 06 Nov 1994 08:49:37 GMT");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpDate(SystemTime);

impl HttpDate {
    /// The current time.
    pub fn now() -> Self {
        SystemTime::now().into()
    }
}

impl From<SystemTime> for HttpDate {
    /// A time before 1970 becomes 1970-01-01.
    fn from(time: SystemTime) -> Self {
        Self(time.max(UNIX_EPOCH))
    }
}

impl fmt::Display for HttpDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        httpdate::HttpDate::from(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    const EXAMPLE: SystemTime = SystemTime::UNIX_EPOCH;

    #[test]
    fn the_time_limit_of_an_idle_connection_is_announced() {
        let limit = crate::protocol::input::KEEP_ALIVE.as_secs();
        assert_eq!(KEEP_ALIVE_FIELD, format!("timeout={limit}"));
    }

    #[test]
    fn an_error_response_is_json() {
        let mut out = Vec::new();
        Rejection::new(StatusCode::BAD_REQUEST, "a \"quoted\"\nword")
            .write_response(EXAMPLE.into(), &mut out);
        let text = String::from_utf8(out).expect("UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").expect("a body");
        assert!(head.contains("\r\nContent-Type: application/json"));
        assert!(head.contains(&format!("\r\nContent-Length: {}", body.len())));
        let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(
            body,
            serde_json::json!({"type": "error", "message": "a \"quoted\"\nword"})
        );
    }

    fn written(response: &Response) -> String {
        let terms = Terms {
            after: AfterResponse::KeepAlive,
            head_only: false,
            chunked: false,
            origin: None,
            date: EXAMPLE.into(),
        };
        let mut out = Vec::new();
        response.write(terms, &mut out);
        String::from_utf8(out).expect("UTF-8")
    }

    /// Values that would end the field, or that no field can have.
    const INVALID: [&str; 5] = [
        "a\r\nSet-Cookie: b",
        "a\nSet-Cookie: b",
        "a\r\n\r\nHTTP/1.1 200 OK\r\n",
        "a\0",
        "a\u{7f}",
    ];

    #[test]
    fn a_value_cannot_add_a_field_or_a_response() {
        for value in INVALID {
            let plain = Response::json(StatusCode::OK, "{}");
            let expected = written(&plain);
            let response = plain.field("X-Id", value.to_owned());
            assert_eq!(written(&response), expected, "{value:?}");
            let rejection = Rejection::new(StatusCode::CONFLICT, "no").field("X-Id", value);
            let text = written(&Response::from(&rejection));
            assert!(!text.contains("X-Id"), "{text}");

            let mut out = Vec::new();
            let terms = Terms {
                after: AfterResponse::KeepAlive,
                head_only: false,
                chunked: true,
                origin: None,
                date: EXAMPLE.into(),
            };
            write_stream_head(&[("X-Id", value), ("X-Other", "1")], terms, &mut out);
            let text = String::from_utf8(out).expect("UTF-8");
            assert!(text.contains("\r\nX-Other: 1\r\n"), "{text}");
            assert!(
                !text.contains("X-Id") && text.ends_with("\r\n\r\n"),
                "{text}"
            );
            assert_eq!(text.matches("\r\n\r\n").count(), 1, "{text}");
        }
        for name in ["", "X Id", "X-Id:", "X\r\nY"] {
            let response = Response::json(StatusCode::OK, "{}").field(name, "1");
            assert_eq!(
                written(&response),
                written(&Response::json(StatusCode::OK, "{}"))
            );
        }
    }

    #[test]
    fn fields_with_owned_values_are_written() {
        let id = format!("{}\t-ä", 7);
        let response = Response::json(StatusCode::OK, "{}")
            .field("Mcp-Session-Id", id)
            .field("X-Two", "2");
        let text = written(&response);
        assert!(
            text.contains("\r\nMcp-Session-Id: 7\t-ä\r\nX-Two: 2\r\n"),
            "{text}"
        );
    }

    #[test]
    fn a_field_of_a_rejection_replaces_one_with_the_same_name() {
        let rejection = Rejection::unavailable("busy")
            .field("X-Limit", format!("{}", 8))
            .field("Retry-After", "5");
        let text = written(&Response::from(&rejection));
        assert!(text.contains("\r\nRetry-After: 5\r\n"), "{text}");
        assert!(text.contains("\r\nX-Limit: 8\r\n"), "{text}");
        assert_eq!(text.matches("Retry-After").count(), 1, "{text}");
    }

    #[test]
    fn an_accepted_notification_has_an_empty_body_without_a_type() {
        let text = written(&Response::new(StatusCode::ACCEPTED, "", b"".as_slice()));
        assert!(text.starts_with("HTTP/1.1 202 Accepted\r\n"), "{text}");
        assert!(text.contains("\r\nContent-Length: 0\r\n"), "{text}");
        assert!(!text.contains("Content-Type"), "{text}");
        let rejection = Rejection::new(StatusCode::NOT_ACCEPTABLE, "no");
        assert_eq!(rejection.reason(), "not_acceptable");
        assert!(
            written(&Response::from(&rejection)).starts_with("HTTP/1.1 406 Not Acceptable\r\n")
        );
    }

    #[test]
    fn a_preflight_response_allows_the_methods_of_calls() {
        let text = written(&Response::preflight());
        assert!(
            text.contains("\r\nAccess-Control-Allow-Methods: GET, HEAD, POST, DELETE\r\n"),
            "{text}"
        );
    }

    #[test]
    fn a_time_before_1970_is_written_as_1970() {
        let before = UNIX_EPOCH - std::time::Duration::from_secs(1);
        assert_eq!(
            HttpDate::from(before).to_string(),
            "Thu, 01 Jan 1970 00:00:00 GMT"
        );
    }
}
