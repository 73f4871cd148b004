//! The clock of the loop, as the protocol counts time.

use crate::protocol::Time;
use crate::sys::monotonic_nanos;

/// A clock that starts at zero, never goes back, and keeps running while the machine is suspended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    origin: u64,
}

impl Clock {
    /// A clock whose [`Time`] is zero now.
    pub(super) fn start() -> Self {
        Self {
            origin: monotonic_nanos(),
        }
    }

    /// The time now.
    pub(super) fn now(self) -> Time {
        self.at(monotonic_nanos())
    }

    /// The time of a reading of [`monotonic_nanos`].
    pub(super) fn at(self, nanos: u64) -> Time {
        Time::from_millis(nanos.saturating_sub(self.origin) / 1_000_000)
    }
}
