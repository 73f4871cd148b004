//! The clock of the loop, as the protocol counts time.

use crate::protocol::Time;
use crate::sys::monotonic_millis;

/// A clock that starts at zero, never goes back, and keeps running while the machine is suspended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    origin: u64,
}

impl Clock {
    /// A clock whose [`Time`] is zero now.
    pub(super) fn start() -> Self {
        Self {
            origin: monotonic_millis(),
        }
    }

    /// The time now.
    pub(super) fn now(self) -> Time {
        Time::from_millis(monotonic_millis().saturating_sub(self.origin))
    }
}
