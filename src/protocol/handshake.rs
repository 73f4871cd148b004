//! The opening handshake, RFC 6455 section 4.2: a request in, a decision and a 101 response out.

use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_STANDARD;
use base64::{Engine, alphabet};
use sha1::{Digest, Sha1};

use super::http::{Framing, Rejection, Request, StatusCode, write_field};

/// Base64 whose last character may have bits that mean nothing, as in an example of RFC 6455 itself.
const LENIENT_BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

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

    /// Whether a subprotocol is to be answered.
    #[cfg(feature = "server")]
    pub(crate) fn has_protocol(&self) -> bool {
        self.protocol.is_some()
    }

    /// Adds a field to the response; an error if the name or the value cannot stand in one.
    pub fn field(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<Self, Rejection> {
        let (name, value) = (name.into(), value.into());
        if name.is_empty()
            || !name.bytes().all(is_token_byte)
            || value.bytes().any(|byte| byte < 0x20 || byte == 0x7f)
        {
            return Err(Rejection::new(
                StatusCode::INTERNAL,
                "a response field is malformed",
            ));
        }
        self.fields.push((name, value));
        Ok(self)
    }
}

impl<'a> Request<'a> {
    /// Reads the request as an opening handshake, or says what it lacks (RFC 6455 section 4.2.1).
    pub fn upgrade(&self) -> Result<Upgrade<'a>, Rejection> {
        let bad = |message: &'static str| Err(Rejection::new(StatusCode::BAD_REQUEST, message));
        if self.method() != "GET" {
            return Err(Rejection::method_not_allowed("GET"));
        }
        if !self.wants_websocket() {
            return Err(Rejection::new(
                StatusCode::UPGRADE_REQUIRED,
                "this is a WebSocket endpoint",
            ));
        }
        if self.framing()? != Framing::Length(0) {
            return bad("a WebSocket handshake has no body");
        }
        if !self.takes_chunks() {
            return Err(Rejection::new(
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
            return Err(Rejection::new(
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

/// Whether a byte may stand in a token, RFC 9110 section 5.6.2.
pub(super) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::http::{MAX_HEADERS, find_end};

    const GOOD: &str = "GET /chat?x=1 HTTP/1.1\r\nHost: server.example.com\r\nUpgrade: websocket\r\n\
        Connection: keep-alive, Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
        Sec-WebSocket-Protocol: chat, superchat\r\nSec-WebSocket-Version: 13\r\n\r\n";

    fn answer(head: &str) -> Result<String, u16> {
        let request = Request::parse(head.as_bytes()).map_err(|rejection| rejection.status.0)?;
        let upgrade = request.upgrade().map_err(|rejection| rejection.status.0)?;
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
            ("http://h/x?y", "/x", Some("y")),
            ("ws://h", "/", None),
            ("/a?b=http://h/c", "/a", Some("b=http://h/c")),
        ] {
            let head = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
            let request = Request::parse(head.as_bytes()).expect("valid");
            assert_eq!((request.path(), request.query()), (path, query));
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for head in [
            "GET http://h?x=/healthz HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET http://other/ HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a b/c\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
        ] {
            let refused = Request::parse(head.as_bytes()).expect_err(head);
            assert_eq!(refused.status.0, 400, "{head}");
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
                find_end(b"", bytes, 1 << 14).map_err(|rejection| rejection.status.0),
                Err(400),
                "{bytes:?}"
            );
        }
        let long = vec![b'a'; 101];
        assert_eq!(find_end(b"", &long[..100], 100), Ok(None));
        assert_eq!(
            find_end(b"", &long, 100).map_err(|rejection| rejection.status.0),
            Err(431)
        );
    }

    #[test]
    fn an_error_is_json_of_the_right_length_and_type() {
        let mut out = Vec::new();
        Rejection::new(StatusCode::BAD_REQUEST, "a \"quoted\"\nword")
            .write_response("Sun, 06 Nov 1994 08:49:37 GMT", &mut out);
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
