//! The opening handshake, RFC 6455 section 4.2: a request head in, a decision and a response out.

use std::borrow::Cow;
use std::fmt;

use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_STANDARD;
use base64::{Engine, alphabet};
use sha1::{Digest, Sha1};

/// The most header fields of a request. More is answered with 431.
pub const MAX_HEADERS: usize = 64;

/// Base64 whose last character may have bits that mean nothing, as in an example of RFC 6455 itself.
const LENIENT_BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Fields that may come once: a second one means that someone between us and the client reads the request
/// differently than we do.
const SINGLETONS: [&str; 9] = [
    "host",
    "origin",
    "authorization",
    "content-length",
    "content-type",
    "transfer-encoding",
    "sec-websocket-key",
    "sec-websocket-version",
    "sec-websocket-accept",
];

/// A response status, RFC 9110 section 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatusCode(pub u16);

impl StatusCode {
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
    /// 426: only as a WebSocket.
    pub const UPGRADE_REQUIRED: Self = Self(426);
    /// 431: the head is over the limit.
    pub const HEADERS_TOO_LARGE: Self = Self(431);
    /// 500: the server failed.
    pub const INTERNAL: Self = Self(500);
    /// 503: not now.
    pub const UNAVAILABLE: Self = Self(503);
    /// 505: not this version of HTTP.
    pub const VERSION_NOT_SUPPORTED: Self = Self(505);

    /// The reason phrase.
    pub const fn reason(self) -> &'static str {
        match self.0 {
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            409 => "Conflict",
            426 => "Upgrade Required",
            431 => "Request Header Fields Too Large",
            500 => "Internal Server Error",
            503 => "Service Unavailable",
            505 => "HTTP Version Not Supported",
            _ => "Error",
        }
    }
}

/// Why a request was refused, and the response that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status of the response.
    pub status: StatusCode,
    /// What is wrong, for the JSON body.
    pub message: Cow<'static, str>,
    /// A field that belongs to the status, such as `Allow`.
    field: Option<(&'static str, &'static str)>,
}

impl Refusal {
    /// A refusal with a status and a message for the client.
    pub fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            message: message.into(),
            field: None,
        }
    }

    /// 404 for a path that nothing serves.
    pub fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "nothing is served at this path")
    }

    /// 408 for a head that took too long.
    pub fn timeout() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "the request head took too long",
        )
    }

    /// 503 with a reason, to be tried again.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNAVAILABLE, message).with("Retry-After", "1")
    }

    fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.field = Some((name, value));
        self
    }

    /// Appends the response: a JSON body of the right type and length, after which the connection is closed.
    pub fn write_response(&self, out: &mut Vec<u8>) {
        let body = serde_json::json!({"type": "error", "message": self.message}).to_string();
        let connection = if self.status == StatusCode::UPGRADE_REQUIRED {
            "Upgrade, close"
        } else {
            "close"
        };
        let head = format!(
            "HTTP/1.1 {} {}\r\nConnection: {connection}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
            self.status.0,
            self.status.reason(),
            body.len()
        );
        out.extend_from_slice(head.as_bytes());
        if self.status == StatusCode::UPGRADE_REQUIRED {
            out.extend_from_slice(b"Upgrade: websocket\r\n");
        }
        if let Some((name, value)) = self.field {
            write_field(name, value, out);
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(body.as_bytes());
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status.0, self.message)
    }
}

impl std::error::Error for Refusal {}

/// What a 101 response says beside the required fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accept {
    protocol: Option<String>,
    fields: Vec<(String, String)>,
}

impl Accept {
    /// Answers with this subprotocol. It is left out if the client did not offer it (RFC 6455 section 4.2.2).
    pub fn protocol(mut self, name: impl Into<String>) -> Self {
        self.protocol = Some(name.into());
        self
    }

    /// Adds a field to the response; an error if the name or the value cannot stand in one.
    pub fn field(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<Self, Refusal> {
        let (name, value) = (name.into(), value.into());
        if name.is_empty()
            || !name.bytes().all(is_token_byte)
            || value.bytes().any(|byte| byte < 0x20 || byte == 0x7f)
        {
            return Err(Refusal::new(
                StatusCode::INTERNAL,
                "a response field is malformed",
            ));
        }
        self.fields.push((name, value));
        Ok(self)
    }
}

/// Looks for the end of a request head in `fresh`, the bytes after `held`: how many of them belong to the head, or
/// `None` while it is incomplete. Refuses it at the first byte that no head may contain, or past `max_head` bytes.
pub fn find_end(held: &[u8], fresh: &[u8], max_head: usize) -> Result<Option<usize>, Refusal> {
    const END: u32 = u32::from_be_bytes(*b"\r\n\r\n");
    let mut last = held[held.len().saturating_sub(4)..]
        .iter()
        .fold(0, |last, &byte| last << 8 | u32::from(byte));

    for (at, &byte) in fresh.iter().enumerate() {
        if held.len() + at >= max_head {
            return Err(Refusal::new(
                StatusCode::HEADERS_TOO_LARGE,
                "the request head is too large",
            ));
        }
        // A line ends with CR LF and nothing else. Control characters mean that this is no HTTP: TLS, for example.
        let after_cr = last & 0xff == u32::from(b'\r');
        if after_cr != (byte == b'\n')
            || (byte < 0x20 && !matches!(byte, b'\r' | b'\n' | b'\t'))
            || byte == 0x7f
        {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "malformed request"));
        }
        last = last << 8 | u32::from(byte);
        if last == END {
            return Ok(Some(at + 1));
        }
    }
    Ok(None)
}

/// A request head, read but not yet judged. Everything borrows from the bytes of the head.
#[derive(Debug)]
pub struct Request<'a> {
    method: &'a str,
    path: &'a str,
    query: Option<&'a str>,
    minor_version: u8,
    headers: [httparse::Header<'a>; MAX_HEADERS],
    header_count: usize,
}

impl<'a> Request<'a> {
    /// Reads a whole head, its empty line included.
    pub fn parse(head: &'a [u8]) -> Result<Self, Refusal> {
        let bad = |message: &'static str| Refusal::new(StatusCode::BAD_REQUEST, message);
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        match parsed.parse(head) {
            Ok(httparse::Status::Complete(len)) if len == head.len() => {}
            Ok(_) => return Err(bad("malformed request")),
            Err(httparse::Error::TooManyHeaders) => {
                return Err(Refusal::new(
                    StatusCode::HEADERS_TOO_LARGE,
                    "too many header fields",
                ));
            }
            Err(httparse::Error::Version) => {
                return Err(Refusal::new(
                    StatusCode::VERSION_NOT_SUPPORTED,
                    "HTTP/1.1 is required",
                ));
            }
            Err(_) => return Err(bad("malformed request")),
        }
        let (Some(method), Some(target), Some(minor_version)) =
            (parsed.method, parsed.path, parsed.version)
        else {
            return Err(bad("malformed request"));
        };
        let header_count = parsed.headers.len();

        let target = origin_form(target).ok_or_else(|| bad("malformed request target"))?;
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let request = Self {
            method,
            path,
            query,
            minor_version,
            headers,
            header_count,
        };
        request.check_fields()?;
        Ok(request)
    }

    /// The method.
    pub fn method(&self) -> &'a str {
        self.method
    }

    /// The path, as it was sent, without the query.
    pub fn path(&self) -> &'a str {
        self.path
    }

    /// The query, as it was sent, without the question mark.
    pub fn query(&self) -> Option<&'a str> {
        self.query
    }

    /// The header fields in the order they came.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.headers[..self.header_count]
            .iter()
            .map(|header| (header.name, header.value))
    }

    /// The value of the first field of this name, without regard to case.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers()
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// The elements of a field that is a list (RFC 9110 section 5.6.1), over all its lines.
    pub fn list<'r>(&'r self, name: &'r str) -> impl Iterator<Item = &'a str> + 'r {
        self.headers()
            .filter(move |(field, _)| field.eq_ignore_ascii_case(name))
            .filter_map(|(_, value)| std::str::from_utf8(value).ok())
            .flat_map(|value| value.split(','))
            .map(|element| element.trim_matches([' ', '\t']))
            .filter(|element| !element.is_empty())
    }

    /// Reads the request as an opening handshake, or says what it lacks (RFC 6455 section 4.2.1).
    pub fn upgrade(&self) -> Result<Upgrade<'a>, Refusal> {
        let bad = |message: &'static str| Err(Refusal::new(StatusCode::BAD_REQUEST, message));
        if self.method != "GET" {
            return Err(
                Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "only GET is served here")
                    .with("Allow", "GET"),
            );
        }
        if !self
            .list("upgrade")
            .any(|token| token.eq_ignore_ascii_case("websocket"))
        {
            return Err(Refusal::new(
                StatusCode::UPGRADE_REQUIRED,
                "this is a WebSocket endpoint",
            ));
        }
        if self.minor_version < 1 {
            return Err(Refusal::new(
                StatusCode::VERSION_NOT_SUPPORTED,
                "HTTP/1.1 is required (a proxy may have to be told so)",
            ));
        }
        if !self
            .list("connection")
            .any(|token| token.eq_ignore_ascii_case("upgrade"))
        {
            return bad("the Connection field does not say Upgrade (a proxy may have dropped it)");
        }
        // "If this version does not match a version understood by the server, the server MUST abort the WebSocket
        // handshake and instead send an appropriate HTTP error code (such as 426 Upgrade Required)".
        if self.header("sec-websocket-version") != Some(b"13") {
            return Err(Refusal::new(
                StatusCode::UPGRADE_REQUIRED,
                "only Sec-WebSocket-Version 13 is spoken",
            )
            .with("Sec-WebSocket-Version", "13"));
        }
        let Some(key) = self.header("sec-websocket-key") else {
            return bad("Sec-WebSocket-Key is missing");
        };
        // "a base64-encoded value that, when decoded, is 16 bytes in length"
        if !LENIENT_BASE64
            .decode(key)
            .is_ok_and(|nonce| nonce.len() == 16)
        {
            return bad("Sec-WebSocket-Key is not 16 bytes in base64");
        }
        let protocols = self.list("sec-websocket-protocol").collect();
        Ok(Upgrade {
            accept_key: accept_key(key),
            protocols,
        })
    }

    /// What every request is refused for.
    fn check_fields(&self) -> Result<(), Refusal> {
        let bad = |message: String| Err(Refusal::new(StatusCode::BAD_REQUEST, message));
        let mut seen = [false; SINGLETONS.len()];
        for (name, _) in self.headers() {
            let Some(at) = SINGLETONS
                .iter()
                .position(|single| name.eq_ignore_ascii_case(single))
            else {
                continue;
            };
            if std::mem::replace(&mut seen[at], true) {
                return bad(format!("duplicate field {}", SINGLETONS[at]));
            }
        }
        // RFC 9112 section 3.2: a request of HTTP/1.1 without Host, or with several, is answered with 400.
        if self.minor_version >= 1 && self.header("host").is_none() {
            return bad("Host is missing".to_owned());
        }
        if self.header("transfer-encoding").is_some()
            || self.header("content-length").is_some_and(|len| len != b"0")
        {
            return bad("a request body is not taken here".to_owned());
        }
        Ok(())
    }
}

/// A request that is a complete opening handshake.
#[derive(Debug)]
pub struct Upgrade<'a> {
    accept_key: [u8; 28],
    protocols: Vec<&'a str>,
}

impl<'a> Upgrade<'a> {
    /// The subprotocols that the client offers, the one it likes best first.
    pub fn protocols(&self) -> &[&'a str] {
        &self.protocols
    }

    /// Appends the 101 response, RFC 6455 section 4.2.2.
    pub fn write_response(&self, accept: &Accept, out: &mut Vec<u8>) {
        out.extend_from_slice(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ",
        );
        out.extend_from_slice(&self.accept_key);
        out.extend_from_slice(b"\r\n");
        // "If the server does not wish to agree to one of the suggested subprotocols, it MUST NOT send back a field".
        if let Some(protocol) = accept
            .protocol
            .as_deref()
            .filter(|name| self.protocols.contains(name))
        {
            write_field("Sec-WebSocket-Protocol", protocol, out);
        }
        for (name, value) in &accept.fields {
            write_field(name, value, out);
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// The value of `Sec-WebSocket-Accept` for a key: RFC 6455 section 4.2.2, point 5.4.
pub fn accept_key(key: &[u8]) -> [u8; 28] {
    let mut hash = Sha1::new();
    hash.update(key);
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let mut encoded = [0; 28];
    let length = BASE64_STANDARD.encode_slice(hash.finalize(), &mut encoded);
    debug_assert_eq!(length, Ok(28), "20 bytes are 28 characters of base64");
    encoded
}

/// The path and query of a request target: as it stands, or without scheme and authority where a proxy left them
/// (RFC 9112 section 3.2). The other forms are for CONNECT and OPTIONS.
fn origin_form(target: &str) -> Option<&str> {
    if target.starts_with('/') {
        return Some(target);
    }
    let (scheme, rest) = target.split_once("://")?;
    if !["http", "https", "ws", "wss"]
        .iter()
        .any(|known| scheme.eq_ignore_ascii_case(known))
    {
        return None;
    }
    Some(rest.find('/').map_or("/", |at| &rest[at..]))
}

fn write_field(name: &str, value: &str, out: &mut Vec<u8>) {
    for part in [name, ": ", value, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Whether a byte may stand in a token, RFC 9110 section 5.6.2.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "GET /chat?x=1 HTTP/1.1\r\nHost: server.example.com\r\nUpgrade: websocket\r\n\
        Connection: keep-alive, Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
        Sec-WebSocket-Protocol: chat, superchat\r\nSec-WebSocket-Version: 13\r\n\r\n";

    fn answer(head: &str) -> Result<String, u16> {
        let request = Request::parse(head.as_bytes()).map_err(|refusal| refusal.status.0)?;
        let upgrade = request.upgrade().map_err(|refusal| refusal.status.0)?;
        let mut out = Vec::new();
        upgrade.write_response(&Accept::default().protocol("superchat"), &mut out);
        Ok(String::from_utf8(out).expect("ASCII"))
    }

    #[test]
    fn the_rfcs_own_handshake_gets_the_rfcs_own_answer() {
        let answer = answer(GOOD).expect("accepted");
        assert!(answer.starts_with("HTTP/1.1 101 Switching Protocols\r\n"));
        assert!(answer.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
        assert!(answer.contains("\r\nSec-WebSocket-Protocol: superchat\r\n"));
        assert!(answer.ends_with("\r\n\r\n"));
    }

    #[test]
    fn a_subprotocol_that_was_not_offered_is_not_answered() {
        let answer = answer(&GOOD.replace("superchat", "other")).expect("accepted");
        assert!(!answer.contains("Sec-WebSocket-Protocol"));
    }

    #[test]
    fn each_fault_has_its_status() {
        let replaced = |from: &str, to: &str| {
            assert!(GOOD.contains(from), "{from}");
            answer(&GOOD.replace(from, to)).err()
        };
        assert_eq!(replaced("GET", "POST"), Some(405));
        assert_eq!(replaced("Upgrade: websocket\r\n", ""), Some(426));
        assert_eq!(replaced("Upgrade: websocket", "Upgrade: h2c"), Some(426));
        assert_eq!(
            replaced("Upgrade: websocket", "Upgrade: h2c, WebSocket"),
            None
        );
        assert_eq!(replaced("keep-alive, Upgrade", "keep-alive"), Some(400));
        assert_eq!(replaced("Version: 13", "Version: 8"), Some(426));
        assert_eq!(replaced("Sec-WebSocket-Version: 13\r\n", ""), Some(426));
        assert_eq!(replaced("HTTP/1.1", "HTTP/1.0"), Some(505));
        assert_eq!(replaced("HTTP/1.1", "HTTP/2.0"), Some(505));
        assert_eq!(
            replaced("dGhlIHNhbXBsZSBub25jZQ==", "AQIDBAUGBwgJCgsMDQ4PEC=="),
            None
        );
        assert_eq!(replaced("Host: server.example.com\r\n", ""), Some(400));
        assert_eq!(
            replaced("Host: server.example.com\r\n", "Host: a\r\nHost: b\r\n"),
            Some(400)
        );
        assert_eq!(
            replaced("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZQ"),
            Some(400)
        );
        assert_eq!(replaced("dGhlIHNhbXBsZSBub25jZQ==", "c2hvcnQ="), Some(400));
        assert_eq!(
            replaced("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""),
            Some(400)
        );
        assert_eq!(
            replaced(
                "Version: 13\r\n",
                "Version: 13\r\nSec-WebSocket-Version: 13\r\n"
            ),
            Some(400)
        );
        assert_eq!(
            replaced(
                "Version: 13\r\n",
                "Version: 13\r\nOrigin: a\r\norigin: b\r\n"
            ),
            Some(400)
        );
        assert_eq!(
            replaced("Version: 13\r\n", "Version: 13\r\n folded: yes\r\n"),
            Some(400)
        );
        assert_eq!(
            replaced("Version: 13\r\n", "Version: 13\r\nContent-Length: 5\r\n"),
            Some(400)
        );
        assert_eq!(
            replaced(
                "Version: 13\r\n",
                "Version: 13\r\nTransfer-Encoding: chunked\r\n"
            ),
            Some(400)
        );
        assert_eq!(replaced("/chat?x=1", "chat"), Some(400));
        assert_eq!(
            replaced(
                "\r\nHost",
                &format!("\r\n{}Host", "X: y\r\n".repeat(MAX_HEADERS))
            ),
            Some(431)
        );
    }

    #[test]
    fn a_target_with_scheme_and_authority_is_reduced_to_its_path() {
        for (target, path, query) in [
            ("/", "/", None),
            ("/a/b?c=d?e", "/a/b", Some("c=d?e")),
            ("http://host:1/x?y", "/x", Some("y")),
            ("ws://host", "/", None),
        ] {
            let head = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
            let request = Request::parse(head.as_bytes()).expect("valid");
            assert_eq!((request.path(), request.query()), (path, query));
        }
    }

    #[test]
    fn the_end_of_a_head_is_found_however_it_is_cut() {
        let bytes = [GOOD.as_bytes(), b"\x81\x80"].concat();
        for cut in 0..=GOOD.len() {
            let (held, fresh) = bytes.split_at(cut);
            let want = if cut == GOOD.len() {
                None
            } else {
                Some(GOOD.len() - cut)
            };
            if want.is_some() {
                assert_eq!(find_end(held, fresh, 1 << 14), Ok(want), "cut at {cut}");
                assert_eq!(find_end(b"", held, 1 << 14), Ok(None), "cut at {cut}");
            }
        }
    }

    #[test]
    fn what_is_no_http_is_refused_at_once() {
        for bytes in [
            &b"\x16\x03\x01"[..],
            b"GET / HTTP/1.1\n",
            b"GET / HTTP/1.1\rX",
            b"GET /\0",
            b"\x7f",
        ] {
            assert_eq!(
                find_end(b"", bytes, 1 << 14).map_err(|refusal| refusal.status.0),
                Err(400),
                "{bytes:?}"
            );
        }
        let long = vec![b'a'; 101];
        assert_eq!(find_end(b"", &long[..100], 100), Ok(None));
        assert_eq!(
            find_end(b"", &long, 100).map_err(|refusal| refusal.status.0),
            Err(431)
        );
    }

    #[test]
    fn an_error_is_json_of_the_right_length_and_type() {
        let mut out = Vec::new();
        Refusal::new(StatusCode::BAD_REQUEST, "a \"quoted\"\nword").write_response(&mut out);
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

    #[test]
    fn a_response_field_cannot_smuggle_another() {
        assert!(
            Accept::default()
                .field("X-Id", "a\r\nSet-Cookie: b")
                .is_err()
        );
        assert!(Accept::default().field("X Id", "a").is_err());
        assert!(Accept::default().field("X-Id", "a").is_ok());
    }
}
