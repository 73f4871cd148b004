//! The client's opening handshake, without I/O: writes the request, and checks the response (RFC 6455 sections 4.1 and
//! 4.2.2). Before it, an HTTP proxy can be asked for a tunnel (RFC 9110 section 9.3.6).
//!
//! ```
//! use outrigger::protocol::client::{ClientEvent, ClientHandshake, HandshakeRequest};
//! use outrigger::protocol::{Input, Shared, Time, WebSocket};
//!
//! let mut out = Vec::new(); // To be written to the socket.
//! let request = HandshakeRequest::new("server.example", "/chat");
//! let mut handshake = ClientHandshake::default();
//! handshake.request(*b"the sample nonce", &request, &mut out);
//! assert!(out.starts_with(b"GET /chat HTTP/1.1\r\nHost: server.example\r\n"));
//!
//! // The response, and the first message of the server.
//! let mut bytes = *b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
//!     Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n\x81\x05hello";
//! let mut input = Input::new(&mut bytes);
//! let Some(ClientEvent::Opened { agreement, .. }) = handshake.receive(&mut input, 16 << 10) else {
//!     panic!("the response is complete");
//! };
//! assert_eq!(agreement, None);
//!
//! // The keys that mask the client's frames must be unpredictable in a real client.
//! let now = Time::from_millis(0);
//! let mut shared = Shared::default();
//! let mut websocket = WebSocket::connect(now, None, |keys| keys.fill(7));
//! let hello = websocket.receive(now, &mut input, &mut shared, &mut out).expect("a message");
//! assert_eq!(hello.as_message().as_bytes(), b"hello");
//! ```

mod events;
mod exchange;
mod response;

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

pub use self::events::{EventParser, EventTooLong, ServerEvent};
pub use self::exchange::{Exchange, ExchangeEvent, HttpRequest};
pub use self::response::ResponseHead;
use super::Input;
use super::deflate::{Agreement, Offer};
use super::handshake::accept_key;
use super::http::{Body, Framing, find_end, is_field, is_token_byte, write_field};

/// The maximum length of the body of a refusal that is kept, in bytes.
const MAX_BODY: usize = 4 << 10;

/// The maximum length of the reason phrase of a refusal that is kept, in characters.
const MAX_REASON: usize = 100;

/// The maximum number of interim responses (1xx) before the final one.
const MAX_INTERIM: u8 = 8;

/// The request of an opening handshake.
#[derive(Clone, Debug)]
pub struct HandshakeRequest {
    host: String,
    target: String,
    fields: Vec<(String, String)>,
    protocols: Vec<String>,
    offers_deflate: bool,
}

impl HandshakeRequest {
    /// Creates a request. `host` is the value of the Host field, and `target` is the path with the query. Neither may
    /// contain white space or control characters; [`HandshakeRequest::is_valid`] checks them.
    pub fn new(host: impl Into<String>, target: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            target: target.into(),
            fields: Vec::new(),
            protocols: Vec::new(),
            offers_deflate: false,
        }
    }

    /// Adds a header field.
    #[must_use]
    pub fn with_field(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }

    /// Offers a subprotocol. Earlier ones are preferred.
    #[must_use]
    pub fn with_protocol(mut self, name: impl Into<String>) -> Self {
        self.protocols.push(name.into());
        self
    }

    /// Offers permessage-deflate (RFC 7692).
    #[must_use]
    pub fn with_deflate(mut self) -> Self {
        self.offers_deflate = true;
        self
    }

    /// Whether all parts have the characters that HTTP allows.
    pub fn is_valid(&self) -> bool {
        let is_visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let is_token = |text: &str| !text.is_empty() && text.bytes().all(is_token_byte);
        is_visible(&self.host)
            && self.target.starts_with('/')
            && is_visible(&self.target)
            && self.protocols.iter().all(|name| is_token(name))
            && self
                .fields
                .iter()
                .all(|(name, value)| is_field(name, value))
    }
}

/// Whether the handshake sets a field itself, or cannot have it. Such a field must not be added to a request.
pub fn is_reserved(name: &str) -> bool {
    const RESERVED: [&str; 6] = [
        "host",
        "upgrade",
        "connection",
        "content-length",
        "transfer-encoding",
        "outrigger-resume",
    ];
    let name = name.to_ascii_lowercase();
    RESERVED.contains(&name.as_str()) || name.starts_with("sec-websocket-")
}

/// The result of a handshake, or of its first part.
#[derive(Debug)]
pub enum ClientEvent {
    /// The proxy has opened a tunnel. Everything that follows comes from the server.
    Tunnelled,
    /// The server has accepted the handshake. Everything that follows is frames.
    Opened {
        /// The response head, for [`ResponseHead::parse`].
        head: Vec<u8>,
        /// The parameters of compression, if the server has accepted it.
        agreement: Option<Agreement>,
    },
    /// The handshake has failed.
    Failed(HandshakeError),
}

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The response has another status than 101.
    Refused(Refusal),
    /// The proxy has not opened a tunnel.
    RefusedByProxy(Refusal),
    /// The response breaks a rule of HTTP or of RFC 6455 section 4.1.
    Invalid(&'static str),
    /// The connection ended before the response was complete.
    Eof,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) if refusal.status < 300 => {
                write!(
                    f,
                    "the server answered {refusal} instead of 101 Switching Protocols"
                )
            }
            Self::Refused(refusal) => write!(f, "the server answered {refusal}"),
            Self::RefusedByProxy(refusal) => write!(f, "the proxy answered {refusal}"),
            Self::Invalid(why) => f.write_str(why),
            Self::Eof => f.write_str("the server closed the connection during the handshake"),
        }
    }
}

impl std::error::Error for HandshakeError {}

/// A response that refuses a handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The status code.
    pub status: u16,
    /// The reason phrase, which may be empty.
    pub reason: String,
    /// The number of seconds after which the server asks the client to try again (Retry-After).
    pub retry_after: Option<u64>,
    /// The Location field, with which a response redirects the client.
    pub location: Option<String>,
    /// The first bytes of the body.
    pub body: Vec<u8>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.reason)
    }
}

/// What a handshake waits for.
#[derive(Debug, Default)]
enum Awaits {
    /// The caller's next request.
    #[default]
    Nothing,
    /// The head of the proxy's response.
    Tunnel,
    /// The head of the server's response.
    Head,
    /// The body of a refusal, which comes from the proxy if `by_proxy` is true.
    Body {
        refusal: Refusal,
        body: Body,
        by_proxy: bool,
    },
}

/// The client's side of a connection before it is opened.
///
/// Call [`ClientHandshake::request_tunnel`] first if a proxy is in between, then [`ClientHandshake::request`]. Pass all
/// input to [`ClientHandshake::receive`] until it returns an event.
#[derive(Debug, Default)]
pub struct ClientHandshake {
    awaits: Awaits,
    /// The bytes of an incomplete head.
    held: Vec<u8>,
    interim: u8,
    has_failed: bool,
    accept_key: Vec<u8>,
    protocols: Vec<String>,
    offers_deflate: bool,
}

impl ClientHandshake {
    /// Writes a request for a tunnel to `authority`, which is a host and a port. `credentials` is the value of
    /// Proxy-Authorization.
    pub fn request_tunnel(
        &mut self,
        authority: &str,
        credentials: Option<&str>,
        out: &mut Vec<u8>,
    ) {
        out.extend_from_slice(b"CONNECT ");
        out.extend_from_slice(authority.as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\n");
        write_field("Host", authority, out);
        if let Some(credentials) = credentials {
            write_field("Proxy-Authorization", credentials, out);
        }
        out.extend_from_slice(b"\r\n");
        self.awaits = Awaits::Tunnel;
    }

    /// Writes the request of the opening handshake. The `nonce` must be chosen at random for each connection.
    pub fn request(&mut self, nonce: [u8; 16], request: &HandshakeRequest, out: &mut Vec<u8>) {
        let key = BASE64_STANDARD.encode(nonce);
        out.extend_from_slice(b"GET ");
        out.extend_from_slice(request.target.as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\n");
        write_field("Host", &request.host, out);
        write_field("Upgrade", "websocket", out);
        write_field("Connection", "Upgrade", out);
        write_field("Sec-WebSocket-Key", &key, out);
        write_field("Sec-WebSocket-Version", "13", out);
        if !request.protocols.is_empty() {
            write_field("Sec-WebSocket-Protocol", &request.protocols.join(", "), out);
        }
        if request.offers_deflate {
            write_field("Sec-WebSocket-Extensions", Offer::REQUEST, out);
        }
        for (name, value) in &request.fields {
            write_field(name, value, out);
        }
        out.extend_from_slice(b"\r\n");
        self.accept_key = accept_key(key.as_bytes()).to_vec();
        self.protocols.clone_from(&request.protocols);
        self.offers_deflate = request.offers_deflate;
        self.interim = 0;
        self.awaits = Awaits::Head;
    }

    /// Consumes input until the response is complete. A response head has at most `max_head` bytes. Returns `None` if more
    /// input is needed.
    ///
    /// After an error, all input is discarded.
    pub fn receive(&mut self, input: &mut Input<'_>, max_head: usize) -> Option<ClientEvent> {
        let event = if self.has_failed {
            None
        } else {
            self.receive_any(input, max_head)
        };
        self.has_failed |= matches!(event, Some(ClientEvent::Failed(_)));
        if self.has_failed {
            input.clear();
        }
        event
    }

    fn receive_any(&mut self, input: &mut Input<'_>, max_head: usize) -> Option<ClientEvent> {
        while !input.is_empty() {
            if let Awaits::Body { body, .. } = &mut self.awaits {
                // If the body is malformed or too long, its beginning is enough.
                if body.push(input).is_err() || body.is_complete() {
                    return Some(ClientEvent::Failed(self.handle_end()));
                }
                continue;
            }
            let end = match find_end(&self.held, input.peek(), max_head) {
                Ok(Some(end)) => end,
                Ok(None) => {
                    self.held.extend_from_slice(input.take(input.len()));
                    return None;
                }
                Err(_) => {
                    return Some(invalid(
                        "the server's response is not HTTP, or its head is too large",
                    ));
                }
            };
            let mut head = std::mem::take(&mut self.held);
            head.extend_from_slice(input.take(end));
            if let Some(event) = self.handle_head(head) {
                return Some(event);
            }
        }
        None
    }

    /// The input has ended, or no more of it is expected. Returns why the handshake failed.
    pub fn handle_end(&mut self) -> HandshakeError {
        match std::mem::take(&mut self.awaits) {
            Awaits::Body {
                mut refusal,
                body,
                by_proxy,
            } => {
                refusal.body = body.into_bytes();
                if by_proxy {
                    HandshakeError::RefusedByProxy(refusal)
                } else {
                    HandshakeError::Refused(refusal)
                }
            }
            _ => HandshakeError::Eof,
        }
    }

    /// Handles a complete head. Returns `None` if more input is needed.
    fn handle_head(&mut self, head: Vec<u8>) -> Option<ClientEvent> {
        let Some(response) = ResponseHead::parse(&head) else {
            return Some(invalid("the server's response is malformed"));
        };
        let by_proxy = matches!(self.awaits, Awaits::Tunnel);
        match response.status() {
            200..300 if by_proxy => {
                self.awaits = Awaits::Nothing;
                return Some(ClientEvent::Tunnelled);
            }
            101 if !by_proxy => {
                let checked = self.check(&response);
                self.awaits = Awaits::Nothing;
                return Some(match checked {
                    Ok(agreement) => ClientEvent::Opened { head, agreement },
                    Err(why) => invalid(why),
                });
            }
            // An interim response precedes the final one (RFC 9110 section 15.2).
            100..200 => {
                self.interim += 1;
                let is_endless = self.interim > MAX_INTERIM;
                return is_endless.then(|| invalid("the server sends endless interim responses"));
            }
            _ => {}
        }
        self.begin_refusal(&response, by_proxy)
    }

    /// Begins to receive the body of a response that refuses the request. Returns the event if there is no body.
    fn begin_refusal(
        &mut self,
        response: &ResponseHead<'_>,
        by_proxy: bool,
    ) -> Option<ClientEvent> {
        let text = |name: &str| response.single(name).map(str::to_owned);
        let refusal = Refusal {
            status: response.status(),
            reason: response.reason().chars().take(MAX_REASON).collect(),
            retry_after: response
                .single("retry-after")
                .and_then(|after| after.parse().ok()),
            location: text("location"),
            body: Vec::new(),
        };
        let framing = if matches!(response.status(), 204 | 304) {
            // These responses have no body (RFC 9112 section 6.3).
            Framing::Length(0)
        } else if response.lists("transfer-encoding", "chunked") {
            Framing::Chunked
        } else {
            let length = response.single("content-length").map(str::parse);
            // Without a length, the body ends with the connection.
            Framing::Length(length.and_then(Result::ok).unwrap_or(MAX_BODY as u64))
        };
        let framing = match framing {
            Framing::Length(length) => Framing::Length(length.min(MAX_BODY as u64)),
            Framing::Chunked => Framing::Chunked,
        };
        let Ok(body) = Body::new(framing, MAX_BODY) else {
            return Some(invalid("the server's response is malformed"));
        };
        let is_complete = body.is_complete();
        self.awaits = Awaits::Body {
            refusal,
            body,
            by_proxy,
        };
        is_complete.then(|| ClientEvent::Failed(self.handle_end()))
    }

    /// Checks a 101 response (RFC 6455 section 4.1). Returns the parameters of compression.
    fn check(&self, response: &ResponseHead<'_>) -> Result<Option<Agreement>, &'static str> {
        let upgrade = response.single("upgrade");
        if !upgrade.is_some_and(|upgrade| upgrade.eq_ignore_ascii_case("websocket")) {
            return Err("the server's 101 response does not upgrade to WebSocket");
        }
        if !response.lists("connection", "upgrade") {
            return Err("the server's 101 response has no 'Connection: Upgrade'");
        }
        let accept = response.single("sec-websocket-accept");
        if accept.is_none_or(|accept| accept.as_bytes() != self.accept_key) {
            return Err("the server's Sec-WebSocket-Accept is wrong");
        }
        if response.header("sec-websocket-protocol").is_some() {
            let protocol = response.single("sec-websocket-protocol");
            if !protocol.is_some_and(|name| self.protocols.iter().any(|offered| offered == name)) {
                return Err("the server selected a subprotocol that was not offered");
            }
        }
        let extensions = response.values("sec-websocket-extensions");
        match Agreement::of_response(extensions) {
            Ok(agreement) if agreement.is_none() || self.offers_deflate => Ok(agreement),
            _ => Err("the server's Sec-WebSocket-Extensions does not answer the offer"),
        }
    }
}

fn invalid(why: &'static str) -> ClientEvent {
    ClientEvent::Failed(HandshakeError::Invalid(why))
}

#[cfg(test)]
mod tests;
