//! RFC 6455 without any input or output: bytes and time come in as arguments, events and bytes go out.
//!
//! Nothing here knows a socket, a clock, a log or the event loop, so a whole conversation runs in a unit test or a
//! fuzzer with simulated time. The layers, each usable alone:
//!
//! ```text
//! bytes -> proxy (where a proxy has them from)
//!       -> http (request head, body; responses) -> handshake (decision, 101 response)
//!       -> frame (header) -> mask -> utf8 -> message (assembly, limits)
//!       -> connection: one state machine that holds them together and writes PONG and CLOSE itself
//! ```
//!
//! The contract of [`HttpConnection`] and [`WebSocket`], on which everything above relies:
//!
//! * *Splitting is invisible*: any division of the same bytes into calls gives the same events and the same output.
//! * *Refused from the header*: a frame that may not come is refused before a byte of its payload is stored.
//! * *Nothing for nobody*: a connection between two messages owns no heap memory.
//! * *An ending is set once*: the first reason for which a connection ends is the one that is told.

mod buffers;
mod close;
pub mod deflate;
mod error;
mod frame;
pub mod handshake;
pub mod http;
mod input;
mod mask;
pub(crate) mod message;
pub mod proxy;
mod time;
mod timeout;
mod utf8;
mod websocket;

pub use buffers::{Buffer, Buffers};
pub use close::{Cause, CloseCode, CloseReason};
pub use error::ProtocolError;
pub use frame::{FrameHeader, OpCode, SentHeader, encode_frame};
pub use handshake::Accept;
pub use http::{HttpConnection, HttpEvent, HttpState, Rejection, Request, Response, StatusCode};
pub use input::Input;
pub use mask::apply_mask;
pub use message::{Message, OwnedPayload, Payload};
pub use time::{Time, Timeouts};
pub use timeout::{NextStep, Timeout};
pub use utf8::Utf8Stream;
pub use websocket::{FrameCounts, Shared, State, WebSocket};

/// What a peer may make a connection hold.
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
    /// The most bytes of a request head, its final empty line included. More is answered with 431.
    pub max_head: usize,
    /// The most fields of a request head, at most [`http::MAX_HEADERS`]. More are answered with 431.
    pub max_headers: usize,
    /// The most bytes of one message's payload, however many frames it comes in. More closes with 1009.
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

// A head must at least hold the smallest handshake a browser sends, and a message limit below one control frame's
// payload would make CLOSE reasons unsendable in the other direction.
const _: () = assert!(
    Limits::MAX_HEADERS <= http::MAX_HEADERS
        && Limits::MAX_HEAD >= 1 << 10
        && Limits::MAX_MESSAGE >= frame::MAX_CONTROL_PAYLOAD
);
