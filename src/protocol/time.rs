//! Time as the protocol sees it: a number that comes in.

use std::ops::Add;
use std::time::Duration;

/// A point in time: milliseconds since an origin that the caller chose and that never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The point that lies `millis` milliseconds after the origin.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the origin.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was; zero if it is not in the past.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Rounds up to whole milliseconds, so that nothing passes early.
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

/// How long a connection may take for each thing; `None` turns a limit off.
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
    /// From the TCP connection to the last byte of the request head.
    pub handshake: Option<Duration>,
    /// Between two PINGs.
    pub ping_interval: Option<Duration>,
    /// From a PING to any byte from the peer.
    pub ping_timeout: Option<Duration>,
    /// Without a data message in either direction.
    pub idle: Option<Duration>,
    /// From our CLOSE, or an error response, to the end of the TCP connection.
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
    /// 10 s, 20 s, 20 s, off and 5 s.
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
