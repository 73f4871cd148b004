//! The clock of the loop, as the protocol counts time.

#[cfg(any(test, fuzzing))]
use std::cell::Cell;

use crate::protocol::Time;
use crate::sys::monotonic_nanos;

/// A point in time in nanoseconds, on the clock of [`monotonic_nanos`].
pub(super) type Nanos = u64;

/// Measures how long work takes.
#[derive(Debug, Default)]
pub(super) struct Stopwatch {
    /// The last reading in a simulation, and how much later the next one is.
    #[cfg(any(test, fuzzing))]
    simulated: Cell<Option<(Nanos, Nanos)>>,
}

impl Stopwatch {
    /// A stopwatch that does not depend on the machine: everything takes this long.
    #[cfg(any(test, fuzzing))]
    pub(super) fn simulated(step: Nanos) -> Self {
        Self {
            simulated: Cell::new(Some((0, step))),
        }
    }

    /// The time now.
    #[inline]
    pub(super) fn read(&self) -> Nanos {
        #[cfg(any(test, fuzzing))]
        if let Some((nanos, step)) = self.simulated.get() {
            self.simulated.set(Some((nanos + step, step)));
            return nanos;
        }
        monotonic_nanos()
    }
}

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
