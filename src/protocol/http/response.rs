//! Responses, and rejections that become responses.

use std::borrow::Cow;
use std::fmt;

use super::date::HttpDate;
use super::json;
use crate::protocol::client::is_field;

/// A response status, RFC 9110 section 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatusCode(pub u16);

impl StatusCode {
    /// 101: the connection becomes a WebSocket.
    pub const SWITCHING_PROTOCOLS: Self = Self(101);
    /// 200: success.
    pub const OK: Self = Self(200);
    /// 202: accepted; a response without a body, or with one that describes what follows.
    pub const ACCEPTED: Self = Self(202);
    /// 204: success, without a body.
    pub const NO_CONTENT: Self = Self(204);
    /// 303: the answer is at another address.
    pub const SEE_OTHER: Self = Self(303);
    /// 304: the caller's copy is still valid.
    pub const NOT_MODIFIED: Self = Self(304);
    /// 400: the request is malformed.
    pub const BAD_REQUEST: Self = Self(400);
    /// 401: credentials are missing or wrong.
    pub const UNAUTHORIZED: Self = Self(401);
    /// 403: the client, origin or host is not allowed.
    pub const FORBIDDEN: Self = Self(403);
    /// 404: nothing exists at this path.
    pub const NOT_FOUND: Self = Self(404);
    /// 405: the method is not allowed.
    pub const METHOD_NOT_ALLOWED: Self = Self(405);
    /// 406: no media type that the client accepts is available.
    pub const NOT_ACCEPTABLE: Self = Self(406);
    /// 408: the request took too long to arrive.
    pub const REQUEST_TIMEOUT: Self = Self(408);
    /// 409: the request does not fit the current state.
    pub const CONFLICT: Self = Self(409);
    /// 410: what the request names is gone for good.
    pub const GONE: Self = Self(410);
    /// 411: the body has no length.
    pub const LENGTH_REQUIRED: Self = Self(411);
    /// 413: the body is over the limit.
    pub const CONTENT_TOO_LARGE: Self = Self(413);
    /// 414: the target is over the limit.
    pub const URI_TOO_LONG: Self = Self(414);
    /// 415: the type of the body is not supported.
    pub const UNSUPPORTED_MEDIA_TYPE: Self = Self(415);
    /// 421: the request is for another server.
    pub const MISDIRECTED: Self = Self(421);
    /// 426: the path is available only as a WebSocket.
    pub const UPGRADE_REQUIRED: Self = Self(426);
    /// 431: the head is over the limit.
    pub const HEADERS_TOO_LARGE: Self = Self(431);
    /// 500: the server failed.
    pub const INTERNAL: Self = Self(500);
    /// 501: the request uses a part of HTTP that is not supported.
    pub const NOT_IMPLEMENTED: Self = Self(501);
    /// 503: the server cannot answer at the moment.
    pub const UNAVAILABLE: Self = Self(503);
    /// 505: the HTTP version is not supported.
    pub const VERSION_NOT_SUPPORTED: Self = Self(505);

    /// The reason phrase.
    pub const fn reason(self) -> &'static str {
        match self.0 {
            101 => "Switching Protocols",
            200 => "OK",
            202 => "Accepted",
            204 => "No Content",
            303 => "See Other",
            304 => "Not Modified",
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            406 => "Not Acceptable",
            408 => "Request Timeout",
            409 => "Conflict",
            410 => "Gone",
            411 => "Length Required",
            413 => "Content Too Large",
            414 => "URI Too Long",
            415 => "Unsupported Media Type",
            421 => "Misdirected Request",
            426 => "Upgrade Required",
            431 => "Request Header Fields Too Large",
            500 => "Internal Server Error",
            501 => "Not Implemented",
            503 => "Service Unavailable",
            505 => "HTTP Version Not Supported",
            _ => "Error",
        }
    }
}

impl StatusCode {
    /// The default value of the metric label `reason` for this status.
    const fn reason_label(self) -> &'static str {
        match self.0 {
            400 => "bad_request",
            401 => "unauthorized",
            403 => "forbidden",
            404 => "not_found",
            405 => "method_not_allowed",
            406 => "not_acceptable",
            408 => "request_timeout",
            409 => "conflict",
            410 => "gone",
            411 => "length_required",
            413 => "content_too_large",
            414 => "uri_too_long",
            415 => "unsupported_media_type",
            421 => "misdirected",
            426 => "upgrade_required",
            431 => "headers_too_large",
            501 => "not_implemented",
            503 => "unavailable",
            505 => "version_not_supported",
            _ => "internal",
        }
    }
}

/// An HTTP error: why a request is rejected, and the response for it.
///
/// ```
/// use outrigger::{Rejection, StatusCode};
///
/// let rejection = Rejection::new(StatusCode::CONFLICT, "the room is full").detail("8 of 8 players");
/// assert_eq!(rejection.to_string(), "409 the room is full: 8 of 8 players");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The status of the response.
    pub status: StatusCode,
    /// The error message, which is part of the JSON body.
    pub message: Cow<'static, str>,
    /// Further information for debugging.
    detail: Option<String>,
    /// Fields that the status requires, such as `Allow`.
    fields: Vec<Field>,
    /// The value of the metric label `reason`.
    reason: &'static str,
    /// The path of the request, for the log.
    path: Option<Box<str>>,
}

impl Rejection {
    /// Creates a rejection with a status and a message for the client.
    pub fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            message: message.into(),
            detail: None,
            fields: Vec::new(),
            reason: status.reason_label(),
            path: None,
        }
    }

    /// 404 for a path that no service has.
    pub fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "nothing is served at this path")
    }

    /// 408 for a request that took too long to arrive.
    pub fn timeout() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the request took too long")
            .because("handshake_timeout")
    }

    /// 405 with the allowed methods.
    pub fn method_not_allowed(allow: &'static str) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            format!("allowed methods: {allow}"),
        )
        .field("Allow", allow)
    }

    /// 503 with a message. The client should try again.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNAVAILABLE, message).field("Retry-After", "1")
    }

    /// Sets the metric label `reason`: a few words in snake case. The default is derived from the status.
    pub fn because(mut self, reason: &'static str) -> Self {
        self.reason = reason;
        self
    }

    /// The value of the metric label `reason`.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    /// Adds further information to the body.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Records the path of the request, for the log. The response does not have it.
    pub fn at(mut self, path: &str) -> Self {
        self.path = Some(path.into());
        self
    }

    /// The path of the request, if it was recorded.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// Adds a field to the response, such as `Allow`. It replaces an earlier field with the same name. A field with a
    /// character that fields cannot have, such as a line break, is left out.
    pub fn field(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.fields.retain(|(earlier, _)| *earlier != name);
        self.fields.push((name, value.into()));
        self
    }

    /// Appends the response, which has a JSON body and closes the connection. `date` is the current time.
    pub fn write_response(&self, date: HttpDate, out: &mut Vec<u8>) {
        let terms = Terms {
            after: AfterResponse::Close,
            head_only: false,
            chunked: false,
            origin: None,
            date,
        };
        Response::from(self).write(terms, out);
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status.0, self.message)?;
        match &self.detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Rejection {}

impl From<&Rejection> for Response {
    fn from(rejection: &Rejection) -> Self {
        let mut body = String::from("{");
        if let Some(detail) = &rejection.detail {
            body.push_str("\"detail\":");
            json::push_string(detail, &mut body);
            body.push(',');
        }
        body.push_str("\"message\":");
        json::push_string(&rejection.message, &mut body);
        body.push_str(",\"type\":\"error\"}");
        let mut response = Self::json(rejection.status, body);
        response.fields.clone_from(&rejection.fields);
        response
    }
}

/// A body that is part of the program is copied if it is shorter than this.
const LONG_BODY: usize = 4096;

/// A field of a response: its name and its value.
type Field = (&'static str, Cow<'static, str>);

/// The properties of a response that depend on the request and the connection.
#[derive(Clone, Copy, Debug)]
pub(in crate::protocol) struct Terms<'a> {
    pub(in crate::protocol) after: AfterResponse,
    /// Whether the body is omitted because the method is HEAD.
    pub(in crate::protocol) head_only: bool,
    /// Whether a body of unknown length is sent in chunks.
    pub(in crate::protocol) chunked: bool,
    /// The origin of the page that may read the response.
    pub(in crate::protocol) origin: Option<&'a str>,
    /// The current time.
    pub(in crate::protocol) date: HttpDate,
}

/// What happens to the connection after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::protocol) enum AfterResponse {
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
    pub(in crate::protocol) fn write(&self, terms: Terms<'_>, out: &mut Vec<u8>) {
        let rest = self.write_until_static_body(terms, out);
        out.extend_from_slice(rest.unwrap_or_default());
    }

    /// Appends the response, except for a body that is long and part of the program. Returns such a body.
    #[must_use]
    pub(in crate::protocol) fn write_until_static_body(
        &self,
        terms: Terms<'_>,
        out: &mut Vec<u8>,
    ) -> Option<&'static [u8]> {
        write_beginning(self.status, terms, out);
        let upgrades = self.status == StatusCode::UPGRADE_REQUIRED;
        match (terms.after, upgrades) {
            (AfterResponse::Close, true) => write_field("Connection", "Upgrade, close", out),
            (AfterResponse::Close, false) => write_field("Connection", "close", out),
            (AfterResponse::KeepAlive, true) => write_field("Connection", "Upgrade", out),
            (AfterResponse::KeepAlive, false) => {}
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
        let rest = self.long_static_body();
        if rest.is_none() {
            out.extend_from_slice(&self.body);
        }
        rest
    }
}

/// Appends the head of a response with a stream of events. The stream is chunked, or ends with the connection. `fields`
/// describe the stream.
pub(in crate::protocol) fn write_stream_head(
    fields: &[(&str, &str)],
    terms: Terms<'_>,
    out: &mut Vec<u8>,
) {
    write_beginning(StatusCode::OK, terms, out);
    if terms.after == AfterResponse::Close {
        write_field("Connection", "close", out);
    }
    for (name, value) in fields {
        write_service_field(name, value, out);
    }
    write_field("Cache-Control", "no-store", out);
    // Tells proxies not to buffer the stream, which would delay events.
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
pub(in crate::protocol) fn write_chunk(bytes: &[u8], out: &mut Vec<u8>) {
    if !bytes.is_empty() {
        out.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
        out.extend_from_slice(bytes);
        out.extend_from_slice(b"\r\n");
    }
}

fn write_status_line(status: StatusCode, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("HTTP/1.1 {} {}\r\n", status.0, status.reason()).as_bytes());
}

/// Appends a field of a service. A line break in it would let its value add fields or a whole response, so a field that is
/// not valid is left out.
fn write_service_field(name: &str, value: &str, out: &mut Vec<u8>) {
    if is_field(name, value) {
        write_field(name, value, out);
    }
}

pub(in crate::protocol) fn write_field(name: &str, value: &str, out: &mut Vec<u8>) {
    for part in [name, ": ", value, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    const EXAMPLE: SystemTime = SystemTime::UNIX_EPOCH;

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
}
