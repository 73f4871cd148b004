//! Points in time, which the caller passes in, and time limits.

use std::ops::Add;
use std::time::Duration;

/// A point in time, in milliseconds since an origin that the caller chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

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
    /// From the TCP connection to the last byte of the request head.
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
