//! The clock of the loop.

use rustix::time::{ClockId, clock_gettime};

use crate::protocol::Time;

/// A clock that starts at its creation, never goes back, and goes on while the machine is suspended, so that a
/// suspend shows as a jump.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: u64,
}

impl Clock {
    /// A clock whose [`Time`] is zero now.
    pub(crate) fn start() -> Self {
        Self { origin: millis() }
    }

    /// The time now.
    pub(crate) fn now(self) -> Time {
        Time::from_millis(millis().saturating_sub(self.origin))
    }
}

fn millis() -> u64 {
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let time = clock_gettime(CLOCK);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}
