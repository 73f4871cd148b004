//! Statuses, and the rejections of requests, which become responses.

use std::borrow::Cow;
use std::fmt;

use super::response::{AfterResponse, Field, HttpDate, Response, Terms};

/// A response status, RFC 9110 section 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatusCode(pub u16);

#[cfg(feature = "server")]
crate::record::record!(StatusCode as u16);

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
    pub(super) detail: Option<String>,
    /// Fields that the status requires, such as `Allow`.
    pub(super) fields: Vec<Field>,
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

/// Appends `text` as a JSON string (RFC 8259), with its quotation marks.
pub(super) fn push_string(text: &str, out: &mut String) {
    const HEX: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            control @ '\0'..='\u{1f}' => {
                let code = control as usize;
                out.push_str("\\u00");
                out.extend([HEX[code >> 4], HEX[code & 0xf]]);
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::push_string;

    #[test]
    fn strings_are_written_as_serde_json_writes_them() {
        let ascii: String = (0..=0x7f).map(char::from).collect();
        for text in [
            "",
            &ascii,
            "é, 漢, 😀, \u{7f}\u{80}\u{2028}\u{2029}\u{feff}\u{10ffff}",
        ] {
            let mut out = String::new();
            push_string(text, &mut out);
            assert_eq!(out, serde_json::to_string(text).expect("a string"));
        }
    }
}
