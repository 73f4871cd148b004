//! The opening handshake, RFC 6455 section 4.2: checks a request and writes the 101 response.

use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_STANDARD;
use base64::{Engine, alphabet};
use sha1::{Digest, Sha1};

use super::http::{Framing, Rejection, Request, StatusCode, is_token_byte, write_field};

/// Base64 that accepts unused bits in the last character, as in an example of RFC 6455.
const LENIENT_BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// The optional fields of a 101 response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accept {
    protocol: Option<String>,
    fields: Vec<(String, String)>,
}

#[cfg(feature = "server")]
crate::record::record!(Accept { protocol, fields });

impl Accept {
    /// Selects a subprotocol. The response omits it if the client did not offer it (RFC 6455 section 4.2.2).
    pub fn protocol(mut self, name: impl Into<String>) -> Self {
        self.protocol = Some(name.into());
        self
    }

    /// Whether a subprotocol was chosen.
    pub fn has_protocol(&self) -> bool {
        self.protocol.is_some()
    }

    /// Adds a field to the response.
    ///
    /// # Errors
    ///
    /// The name or the value contains a character that is not allowed in a field.
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
    /// Checks that the request is an opening handshake (RFC 6455 section 4.2.1).
    ///
    /// # Errors
    ///
    /// The request is not a valid handshake. The error is the response to it.
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
                "HTTP/1.1 is required (check the configuration of a proxy in between)",
            ));
        }
        if !self
            .list("connection")
            .any(|token| token.eq_ignore_ascii_case("upgrade"))
        {
            return bad(
                "the Connection field does not contain Upgrade (a proxy may have removed it)",
            );
        }
        // "If this version does not match a version understood by the server, the server MUST abort the WebSocket
        // handshake and instead send an appropriate HTTP error code (such as 426 Upgrade Required)".
        if self.header("sec-websocket-version") != Some(b"13") {
            return Err(Rejection::new(
                StatusCode::UPGRADE_REQUIRED,
                "only Sec-WebSocket-Version 13 is supported",
            )
            .field("Sec-WebSocket-Version", "13"));
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

/// A valid opening handshake.
#[derive(Debug)]
pub struct Upgrade<'a> {
    accept_key: [u8; 28],
    protocols: Vec<&'a str>,
}

impl<'a> Upgrade<'a> {
    /// The subprotocols that the client offers, in order of preference.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::http::MAX_HEADERS;

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
    fn the_example_of_the_rfc_gets_the_response_of_the_rfc() {
        let answer = answer(GOOD).expect("accepted");
        assert!(answer.starts_with("HTTP/1.1 101 Switching Protocols\r\n"));
        assert!(answer.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
        assert!(answer.contains("\r\nSec-WebSocket-Protocol: superchat\r\n"));
        assert!(answer.ends_with("\r\n\r\n"));
    }

    #[test]
    fn a_subprotocol_that_was_not_offered_is_omitted() {
        let answer = answer(&GOOD.replace("superchat", "other")).expect("accepted");
        assert!(!answer.contains("Sec-WebSocket-Protocol"));
    }

    #[test]
    fn each_error_has_its_status() {
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
    fn a_response_field_cannot_inject_another() {
        assert!(
            Accept::default()
                .field("X-Id", "a\r\nSet-Cookie: b")
                .is_err()
        );
        assert!(Accept::default().field("X Id", "a").is_err());
        assert!(Accept::default().field("X-Id", "a").is_ok());
    }
}
