//! What the caller passes in: received bytes, points in time, and time limits; and what it has to do when a limit has
//! passed or all output is written.

use std::ops::Add;
use std::time::Duration;

use super::CloseReason;

/// Bytes that were received and not yet consumed.
///
/// The bytes are mutable because payloads are unmasked in place. Taken bytes have the lifetime of the buffer, so a
/// message can borrow from it while the connection consumes the next frame.
///
/// ```
/// use outrigger::protocol::Input;
///
/// let mut buffer = *b"abcdef";
/// let mut input = Input::new(&mut buffer);
/// let taken = input.take(4);
/// assert_eq!((&*taken, input.peek()), (&b"abcd"[..], &b"ef"[..]));
/// ```
#[derive(Debug, Default)]
pub struct Input<'a> {
    rest: &'a mut [u8],
    /// The number of bytes that are in the room of a message instead of `rest`.
    placed: usize,
}

impl<'a> Input<'a> {
    /// Creates a cursor at the start of `bytes`.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self {
            rest: bytes,
            placed: 0,
        }
    }

    /// Creates input of `count` bytes that were read into the memory that
    /// [`WebSocket::room`](super::WebSocket::room) returned. Pass it to the next call of
    /// [`WebSocket::receive`](super::WebSocket::receive).
    pub fn placed(count: usize) -> Self {
        Self {
            rest: &mut [],
            placed: count,
        }
    }

    /// The number of bytes left.
    pub fn len(&self) -> usize {
        self.rest.len() + self.placed
    }

    /// Whether no bytes are left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether bytes are in the memory of a message.
    #[cfg(feature = "server")]
    pub(crate) fn is_placed(&self) -> bool {
        self.placed > 0
    }

    /// The bytes that are left, without taking them.
    pub fn peek(&self) -> &[u8] {
        self.rest
    }

    /// Takes the next `count` bytes, or all that are left if there are fewer.
    pub fn take(&mut self, count: usize) -> &'a mut [u8] {
        let rest = std::mem::take(&mut self.rest);
        let (taken, rest) = rest.split_at_mut(count.min(rest.len()));
        self.rest = rest;
        taken
    }

    /// Discards all bytes that are left.
    pub fn clear(&mut self) {
        self.rest = &mut [];
        self.placed = 0;
    }

    /// Takes the bytes that were placed in a room.
    pub(super) fn take_placed(&mut self) -> usize {
        std::mem::take(&mut self.placed)
    }
}

/// A point in time, in milliseconds since an origin that the caller chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

#[cfg(feature = "server")]
crate::record::record!(Time as u64);

impl Time {
    /// The point in time `millis` milliseconds after the origin.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the origin.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Rounds up to whole milliseconds, so that no deadline passes early.
    fn add(self, duration: Duration) -> Self {
        let millis = duration
            .saturating_add(Duration::from_nanos(999_999))
            .as_millis();
        Self(
            self.0
                .saturating_add(u64::try_from(millis).unwrap_or(u64::MAX)),
        )
    }
}

/// The time limits of a connection. `None` turns a limit off.
///
/// ```
/// use std::time::Duration;
/// use outrigger::Timeouts;
///
/// let timeouts = Timeouts::default()
///     .with_idle(Duration::from_secs(600))
///     .with_ping_timeout(None);
/// assert_eq!(timeouts.handshake, Some(Duration::from_secs(10)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// From the TCP connection, or the first byte of a further request, to the last byte of the request head.
    pub handshake: Option<Duration>,
    /// Between two PINGs.
    pub ping_interval: Option<Duration>,
    /// From a PING to the next byte from the peer.
    pub ping_timeout: Option<Duration>,
    /// Without a data message in either direction.
    pub idle: Option<Duration>,
    /// From our CLOSE frame or last HTTP response to the end of the TCP connection.
    pub close: Option<Duration>,
}

impl Timeouts {
    /// Sets [`Timeouts::handshake`]; `None` turns the limit off.
    #[must_use]
    pub fn with_handshake(mut self, handshake: impl Into<Option<Duration>>) -> Self {
        self.handshake = handshake.into();
        self
    }

    /// Sets [`Timeouts::ping_interval`]; `None` turns the limit off.
    #[must_use]
    pub fn with_ping_interval(mut self, ping_interval: impl Into<Option<Duration>>) -> Self {
        self.ping_interval = ping_interval.into();
        self
    }

    /// Sets [`Timeouts::ping_timeout`]; `None` turns the limit off.
    #[must_use]
    pub fn with_ping_timeout(mut self, ping_timeout: impl Into<Option<Duration>>) -> Self {
        self.ping_timeout = ping_timeout.into();
        self
    }

    /// Sets [`Timeouts::idle`]; `None` turns the limit off.
    #[must_use]
    pub fn with_idle(mut self, idle: impl Into<Option<Duration>>) -> Self {
        self.idle = idle.into();
        self
    }

    /// Sets [`Timeouts::close`]; `None` turns the limit off.
    #[must_use]
    pub fn with_close(mut self, close: impl Into<Option<Duration>>) -> Self {
        self.close = close.into();
        self
    }
}

impl Default for Timeouts {
    /// Handshake 10 s, PING interval 20 s, PING timeout 20 s, no idle timeout, close 5 s.
    fn default() -> Self {
        Self {
            handshake: Some(Duration::from_secs(10)),
            ping_interval: Some(Duration::from_secs(20)),
            ping_timeout: Some(Duration::from_secs(20)),
            idle: None,
            close: Some(Duration::from_secs(5)),
        }
    }
}

/// How long a connection is kept open for another HTTP request. Proxies reuse a connection for 60 s by default, and a request that
/// crosses with the end of its connection fails.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(75);

/// The result of [`WebSocket::handle_timeout`](super::WebSocket::handle_timeout) and
/// [`HttpConnection::handle_timeout`](super::HttpConnection::handle_timeout).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// Write the output, then ask for the next deadline.
    Continue,
    /// The request took too long: reject it with 408.
    Handshake,
    /// The delay of a rejection has passed: reject the request now
    /// ([`HttpConnection::reject_later`](super::HttpConnection::reject_later)).
    Rejection,
    /// The idle timeout has passed: close with [`CloseReason::idle_timeout`], unless the service exempts the client.
    Idle,
    /// The connection is over: close it at once.
    Gone(CloseReason),
}

/// What to do with the transport once all output is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Keep reading and writing.
    Continue,
    /// Shut down the writing side, then read and discard input until the peer closes. Closing with unread input would
    /// reset the connection, and the peer might not see the last output.
    EndOutput,
    /// Close the transport.
    Close,
}
