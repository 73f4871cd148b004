//! Both sides of RFC 6455 without I/O: the caller passes in bytes and the time, and gets events and bytes.
//!
//! The protocol uses no socket, clock, log or event loop, so a whole conversation runs in a unit test or a fuzzer with
//! simulated time. To use it in an event loop of your own, build the crate with `default-features = false`.
//!
//! An [`HttpConnection`] parses requests. It answers HTTP calls. When a request is a WebSocket handshake,
//! [`WebSocket::accept`] replaces it with a [`WebSocket`]:
//!
//! ```text
//! bytes -> HttpConnection: proxy (PROXY protocol) -> http (request head and body, responses)
//!            |  handshake (checks the request, writes the 101 response)
//!            v
//! bytes -> WebSocket: frame (header) -> mask -> utf8, deflate -> message (assembly, limits)
//! ```
//!
//! ```
//! use outrigger::protocol::{
//!     Accept, HttpConnection, HttpEvent, Input, Limits, Message, OpCode, Request, Shared, Time, WebSocket,
//!     encode_frame,
//! };
//!
//! let now = Time::from_millis(0);
//! let mut shared = Shared::new(Limits::default(), None);
//! let mut out = Vec::new(); // To be written to the socket.
//!
//! // The first bytes from the socket are an HTTP request.
//! let mut bytes = *b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
//!     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
//! let mut http = HttpConnection::new(now);
//! let mut input = Input::new(&mut bytes);
//! let Some(HttpEvent::Head(head)) = http.receive(now, &mut input, &shared.limits) else {
//!     panic!("the head is complete");
//! };
//! let request = Request::parse(&head)?;
//! let upgrade = request.upgrade()?;
//! let mut websocket = WebSocket::accept(now, &upgrade, &Accept::default(), None, &mut out);
//! assert!(out.starts_with(b"HTTP/1.1 101 "));
//! out.clear();
//!
//! // The next bytes are frames: here a text message, masked with zeros, and a PING.
//! let mut bytes = *b"\x81\x85\0\0\0\0hello\x89\x80\0\0\0\0";
//! let mut input = Input::new(&mut bytes);
//! while let Some(payload) = websocket.receive(now, &mut input, &mut shared, &mut out) {
//!     let message = payload.as_message();
//!     assert_eq!(message, Message::Text("hello"));
//!     encode_frame(message.opcode(), message.as_bytes(), &mut out);
//!     payload.recycle(&mut shared.buffers);
//! }
//! assert_eq!(out, b"\x81\x05hello\x8a\x00"); // The echo, and the PONG.
//! # Ok::<(), outrigger::Rejection>(())
//! ```
//!
//! The naming of methods is the same on both types: `receive` consumes input, `handle_*` informs the connection of an
//! event, plain verbs (`respond`, `close`) act on it, and `deadline` and `next_step` tell the caller what to do. After
//! every call, write `out` to the socket, and when it is written do [what `next_step` says](NextStep). Call
//! `handle_timeout` when `deadline` has passed.
//!
//! Callers can rely on these properties:
//!
//! * *Splitting does not matter.* The events and the output do not depend on how the bytes are divided among calls.
//! * *Violations are detected early.* A frame that is not allowed is rejected before its payload is stored.
//! * *Idle connections are small.* Between two messages, a connection without compression owns no heap memory.
//! * *The first close reason stands.* Later ones do not replace it.

pub mod client;
mod close;
pub mod deflate;
pub mod driver;
mod frame;
pub mod handshake;
pub mod http;
mod input;
pub(crate) mod message;
mod payload;
pub mod proxy;
mod shared;
mod websocket;

pub use close::{Cause, CloseCode, CloseReason, ProtocolError};
pub use frame::{FrameHeader, OpCode, Role, SentHeader, encode_frame};
pub use handshake::Accept;
pub use http::{HttpConnection, HttpEvent, HttpState, Rejection, Request, Response, StatusCode};
pub use input::{Input, NextStep, Time, Timeout, Timeouts};
pub use message::{Message, OwnedMessage, OwnedPayload, Payload};
pub use payload::{RandomSource, Utf8Stream, apply_mask};
pub use shared::{Buffer, Buffers};
pub use websocket::{FrameCounts, Shared, State, WebSocket};

/// The limits on what a peer can make a connection hold.
///
/// ```
/// use outrigger::Limits;
///
/// let limits = Limits::default().with_max_message(1 << 20);
/// assert_eq!(limits.max_head, 16 << 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The maximum length of a request head in bytes, including the empty line. A longer head is answered with 431.
    pub max_head: usize,
    /// The maximum number of fields of a request head, at most [`http::MAX_HEADERS`]. More fields are answered with 431.
    pub max_headers: usize,
    /// The maximum length of a message in bytes, over all its frames. A longer message closes the connection with 1009.
    pub max_message: usize,
}

impl Limits {
    /// The default for [`Limits::max_head`]: 16 KiB.
    pub const MAX_HEAD: usize = 16 << 10;
    /// The default for [`Limits::max_headers`].
    pub const MAX_HEADERS: usize = 64;
    /// The default for [`Limits::max_message`]: 16 MiB.
    pub const MAX_MESSAGE: usize = 16 << 20;

    /// Sets [`Limits::max_head`].
    #[must_use]
    pub fn with_max_head(mut self, bytes: usize) -> Self {
        self.max_head = bytes;
        self
    }

    /// Sets [`Limits::max_headers`].
    #[must_use]
    pub fn with_max_headers(mut self, fields: usize) -> Self {
        self.max_headers = fields;
        self
    }

    /// Sets [`Limits::max_message`].
    #[must_use]
    pub fn with_max_message(mut self, bytes: usize) -> Self {
        self.max_message = bytes;
        self
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_head: Self::MAX_HEAD,
            max_headers: Self::MAX_HEADERS,
            max_message: Self::MAX_MESSAGE,
        }
    }
}

// The handshake of a browser must fit the limit of a head, and a control frame the limit of a message.
const _: () = assert!(
    Limits::MAX_HEADERS <= http::MAX_HEADERS
        && Limits::MAX_HEAD >= 1 << 10
        && Limits::MAX_MESSAGE >= frame::MAX_CONTROL_PAYLOAD
);
