//! Responses: what was asked for, or why not.

use std::borrow::Cow;
use std::fmt;

use serde_json::Value;

/// A response status, RFC 9110 section 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatusCode(pub u16);

impl StatusCode {
    /// 101: the connection goes on as a WebSocket.
    pub const SWITCHING_PROTOCOLS: Self = Self(101);
    /// 200: what was asked for.
    pub const OK: Self = Self(200);
    /// 204: yes, and nothing to say.
    pub const NO_CONTENT: Self = Self(204);
    /// 400: the request cannot be understood.
    pub const BAD_REQUEST: Self = Self(400);
    /// 401: credentials are missing or wrong.
    pub const UNAUTHORIZED: Self = Self(401);
    /// 403: this client, origin or host may not.
    pub const FORBIDDEN: Self = Self(403);
    /// 404: there is nothing at this path.
    pub const NOT_FOUND: Self = Self(404);
    /// 405: not with this method.
    pub const METHOD_NOT_ALLOWED: Self = Self(405);
    /// 408: the head took too long.
    pub const REQUEST_TIMEOUT: Self = Self(408);
    /// 409: not in the present state.
    pub const CONFLICT: Self = Self(409);
    /// 411: a body needs a length.
    pub const LENGTH_REQUIRED: Self = Self(411);
    /// 413: the body is over the limit.
    pub const CONTENT_TOO_LARGE: Self = Self(413);
    /// 414: the target is over the limit.
    pub const URI_TOO_LONG: Self = Self(414);
    /// 415: not a body of this type.
    pub const UNSUPPORTED_MEDIA_TYPE: Self = Self(415);
    /// 426: only as a WebSocket.
    pub const UPGRADE_REQUIRED: Self = Self(426);
    /// 431: the head is over the limit.
    pub const HEADERS_TOO_LARGE: Self = Self(431);
    /// 500: the server failed.
    pub const INTERNAL: Self = Self(500);
    /// 501: a part of HTTP that is not spoken here.
    pub const NOT_IMPLEMENTED: Self = Self(501);
    /// 503: not now.
    pub const UNAVAILABLE: Self = Self(503);
    /// 505: not this version of HTTP.
    pub const VERSION_NOT_SUPPORTED: Self = Self(505);

    /// The reason phrase.
    pub const fn reason(self) -> &'static str {
        match self.0 {
            101 => "Switching Protocols",
            200 => "OK",
            204 => "No Content",
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            409 => "Conflict",
            411 => "Length Required",
            413 => "Content Too Large",
            414 => "URI Too Long",
            415 => "Unsupported Media Type",
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
    /// A name for metrics.
    const fn reason_label(self) -> &'static str {
        match self.0 {
            400 => "bad_request",
            401 => "unauthorized",
            403 => "forbidden",
            404 => "not_found",
            405 => "method_not_allowed",
            408 => "request_timeout",
            409 => "conflict",
            411 => "length_required",
            413 => "content_too_large",
            414 => "uri_too_long",
            415 => "unsupported_media_type",
            426 => "upgrade_required",
            431 => "headers_too_large",
            501 => "not_implemented",
            503 => "unavailable",
            505 => "version_not_supported",
            _ => "internal",
        }
    }
}

/// Why a request was refused, and the response that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The status of the response.
    pub status: StatusCode,
    /// What is wrong, for the JSON body.
    pub message: Cow<'static, str>,
    /// More than the message says, for who looks into it.
    detail: Option<String>,
    /// A field that belongs to the status, such as `Allow`.
    field: Option<(&'static str, &'static str)>,
    /// What it is counted as.
    reason: &'static str,
}

impl Rejection {
    /// A rejection with a status and a message for the client.
    pub fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            message: message.into(),
            detail: None,
            field: None,
            reason: status.reason_label(),
        }
    }

    /// 404 for a path that nothing serves.
    pub fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "nothing is served at this path")
    }

    /// 408 for a request that took too long to arrive.
    pub fn timeout() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the request took too long")
            .because("handshake_timeout")
    }

    /// 401 for a token that is missing or wrong.
    pub fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "the token is missing or wrong; it comes as 'Authorization: Bearer', '?token=' or the subprotocol 'outrigger.token.'",
        )
        .with("WWW-Authenticate", "Bearer")
    }

    /// 405 with the methods that there are.
    pub fn method_not_allowed(allow: &'static str) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            format!("this takes {allow} only"),
        )
        .with("Allow", allow)
    }

    /// 503 with a reason, to be tried again.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNAVAILABLE, message).with("Retry-After", "1")
    }

    /// Has it counted as this in the metrics, rather than by its status: a few words in snake case.
    pub fn because(mut self, reason: &'static str) -> Self {
        self.reason = reason;
        self
    }

    /// What it is counted as.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    /// Adds what is more than the message says.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    pub(in crate::protocol) fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.field = Some((name, value));
        self
    }

    /// Appends the response: a JSON body of the right type and length, after which the connection is closed.
    pub fn write_response(&self, date: &str, out: &mut Vec<u8>) {
        let terms = Terms {
            ending: Ending::Close,
            head_only: false,
            chunked: false,
            origin: None,
            date,
        };
        Response::from(self).write(terms, out);
    }
}

impl Response {
    /// Bytes of the body.
    #[cfg(feature = "server")]
    pub(crate) fn body_len(&self) -> usize {
        self.body.len()
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
        let mut body = serde_json::json!({"type": "error", "message": rejection.message});
        if let Some(detail) = &rejection.detail {
            body["detail"] = detail.as_str().into();
        }
        let mut response = Self::json(rejection.status, &body);
        response.fields.extend(rejection.field);
        response
    }
}

/// What a response has beside what it says.
#[derive(Clone, Copy, Debug)]
pub(in crate::protocol) struct Terms<'a> {
    pub(in crate::protocol) ending: Ending,
    /// Whether the body is left out: the method was HEAD.
    pub(in crate::protocol) head_only: bool,
    /// Whether a body of unknown length is sent in chunks.
    pub(in crate::protocol) chunked: bool,
    /// The origin of the page which may read it, if it is a page that has asked.
    pub(in crate::protocol) origin: Option<&'a str>,
    /// When it is made, as an HTTP date (RFC 9110 section 5.6.7).
    pub(in crate::protocol) date: &'a str,
}

/// What follows a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::protocol) enum Ending {
    /// Perhaps another request.
    KeepAlive,
    /// The end of the connection.
    Close,
}

/// A response with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    status: StatusCode,
    content_type: &'static str,
    body: Cow<'static, [u8]>,
    fields: Vec<(&'static str, &'static str)>,
}

impl Response {
    /// A response with any body.
    pub fn new(
        status: StatusCode,
        content_type: &'static str,
        body: impl Into<Cow<'static, [u8]>>,
    ) -> Self {
        Self {
            status,
            content_type,
            body: body.into(),
            fields: Vec::new(),
        }
    }

    /// A response with a JSON body.
    pub fn json(status: StatusCode, body: &Value) -> Self {
        Self::new(status, "application/json", body.to_string().into_bytes())
    }

    /// The answer to a page that asks beforehand whether it may make a call (a CORS preflight): it may.
    pub fn preflight() -> Self {
        Self::new(StatusCode::NO_CONTENT, "", b"".as_slice())
            .field("Access-Control-Allow-Methods", "GET, HEAD, POST")
            // The asterisk does not mean this one.
            .field("Access-Control-Allow-Headers", "Authorization, *")
            .field("Access-Control-Max-Age", "600")
    }

    /// Adds a field. Neither may have line feeds in it.
    pub fn field(mut self, name: &'static str, value: &'static str) -> Self {
        debug_assert!(!name.contains(['\r', '\n']) && !value.contains(['\r', '\n']));
        self.fields.push((name, value));
        self
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Appends the response.
    pub(in crate::protocol) fn write(&self, terms: Terms<'_>, out: &mut Vec<u8>) {
        write_beginning(self.status, terms, out);
        let upgrades = self.status == StatusCode::UPGRADE_REQUIRED;
        match (terms.ending, upgrades) {
            (Ending::Close, true) => write_field("Connection", "Upgrade, close", out),
            (Ending::Close, false) => write_field("Connection", "close", out),
            (Ending::KeepAlive, true) => write_field("Connection", "Upgrade", out),
            (Ending::KeepAlive, false) => {}
        }
        if upgrades {
            write_field("Upgrade", "websocket", out);
        }
        // RFC 9110 section 8.6: these two have neither a length nor a body.
        let bodiless = matches!(self.status.0, 204 | 304);
        if !bodiless {
            write_field("Content-Type", self.content_type, out);
            write_field("Content-Length", &self.body.len().to_string(), out);
        }
        // What a call says is true when it is made, and for who made it.
        write_field("Cache-Control", "no-store", out);
        for (name, value) in &self.fields {
            write_field(name, value, out);
        }
        out.extend_from_slice(b"\r\n");
        if !terms.head_only && !bodiless {
            out.extend_from_slice(&self.body);
        }
    }
}

/// Appends the head of a response whose body is streamed: in chunks, or up to the end of the connection. `fields`
/// describe the body.
pub(in crate::protocol) fn write_stream_head(
    fields: &[(&str, &str)],
    terms: Terms<'_>,
    out: &mut Vec<u8>,
) {
    write_beginning(StatusCode::OK, terms, out);
    if terms.ending == Ending::Close {
        write_field("Connection", "close", out);
    }
    for (name, value) in fields {
        write_field(name, value, out);
    }
    write_field("Cache-Control", "no-store", out);
    // Proxies that gather responses would keep events back.
    write_field("X-Accel-Buffering", "no", out);
    if terms.chunked {
        write_field("Transfer-Encoding", "chunked", out);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends what every response begins with. A page of the origin may read it.
fn write_beginning(status: StatusCode, terms: Terms<'_>, out: &mut Vec<u8>) {
    write_status_line(status, out);
    write_field("Date", terms.date, out);
    if let Some(origin) = terms.origin {
        write_field("Access-Control-Allow-Origin", origin, out);
        write_field("Vary", "Origin", out);
    }
}

/// Appends a chunk. An empty one would be the end, and is left out.
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

pub(in crate::protocol) fn write_field(name: &str, value: &str, out: &mut Vec<u8>) {
    for part in [name, ": ", value, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}
