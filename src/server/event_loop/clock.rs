//! The clock of the loop, as the protocol counts time.

#[cfg(any(test, fuzzing))]
use std::cell::Cell;

use std::time::Duration;

use crate::protocol::Time;
use crate::record::record;
use crate::sys::{elapsed_nanos, monotonic_nanos};

/// A point in time in nanoseconds, on the clock of [`monotonic_nanos`].
pub(crate) type Nanos = u64;

/// Measures how long work takes.
#[derive(Debug, Default)]
pub(crate) struct Stopwatch {
    /// The last reading in a simulation, and how much later the next one is.
    #[cfg(any(test, fuzzing))]
    simulated: Cell<Option<(Nanos, Nanos)>>,
}

impl Stopwatch {
    /// A stopwatch that does not depend on the machine: everything takes this long.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn simulated(step: Nanos) -> Self {
        Self {
            simulated: Cell::new(Some((0, step))),
        }
    }

    /// The time now.
    #[inline]
    pub(crate) fn read(&self) -> Nanos {
        #[cfg(any(test, fuzzing))]
        if let Some((nanos, step)) = self.simulated.get() {
            self.simulated.set(Some((nanos + step, step)));
            return nanos;
        }
        monotonic_nanos()
    }
}

/// How long the machine is awake between two checks whether it was suspended, and the shortest sleep that counts.
const CHECK: Nanos = 1_000_000_000;

/// A clock that starts at zero, never goes back, and stops while the machine is suspended: time asleep counts for no limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Nanos,
    /// When it was last checked whether the machine was suspended.
    checked: Nanos,
    /// How far the clock that keeps running was ahead then.
    ahead: Nanos,
}

record!(Clock {
    origin,
    checked,
    ahead,
});

impl Clock {
    /// A clock whose [`Time`] is zero now.
    pub(crate) fn start() -> Self {
        let elapsed = elapsed_nanos();
        Self::start_at(monotonic_nanos(), elapsed)
    }

    fn start_at(nanos: Nanos, elapsed: Nanos) -> Self {
        Self {
            origin: nanos,
            checked: nanos,
            ahead: elapsed.saturating_sub(nanos),
        }
    }

    /// The time now.
    pub(crate) fn now(self) -> Time {
        self.at(monotonic_nanos())
    }

    /// The time of a reading of [`monotonic_nanos`].
    pub(crate) fn at(self, nanos: Nanos) -> Time {
        Time::from_millis(nanos.saturating_sub(self.origin) / 1_000_000)
    }

    /// How long the machine has slept since the last answer that was not zero. `nanos` is a reading of [`monotonic_nanos`] from
    /// just now. Most calls read no other clock.
    #[inline]
    pub(crate) fn slept(&mut self, nanos: Nanos) -> Duration {
        if nanos.saturating_sub(self.checked) < CHECK {
            return Duration::ZERO;
        }
        // If the process is interrupted between the two, the sleep seems shorter, never longer.
        let elapsed = elapsed_nanos();
        self.compare(monotonic_nanos(), elapsed)
    }

    #[cold]
    fn compare(&mut self, nanos: Nanos, elapsed: Nanos) -> Duration {
        self.checked = nanos;
        let slept = elapsed.saturating_sub(nanos).saturating_sub(self.ahead);
        if slept < CHECK {
            return Duration::ZERO;
        }
        self.ahead += slept;
        Duration::from_nanos(slept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_asleep_does_not_pass_and_is_told_once() {
        const SECOND: Nanos = 1_000_000_000;
        let mut clock = Clock::start_at(5 * SECOND, 105 * SECOND);
        assert_eq!(clock.compare(8 * SECOND, 108 * SECOND), Duration::ZERO);
        // An hour asleep, in which the other clock runs on.
        let (nanos, elapsed) = (9 * SECOND, 109 * SECOND + 3600 * SECOND);
        assert_eq!(clock.compare(nanos, elapsed), Duration::from_secs(3600));
        assert_eq!(clock.compare(nanos, elapsed), Duration::ZERO);
        assert_eq!(clock.at(nanos), Time::from_millis(4000));
        // Short differences add up until they count.
        let nap = |naps: Nanos| elapsed + naps * SECOND * 6 / 10;
        assert_eq!(clock.compare(nanos, nap(1)), Duration::ZERO);
        assert_eq!(clock.compare(nanos, nap(2)), Duration::from_millis(1200));
        // The process was interrupted between the readings.
        assert_eq!(clock.compare(nanos + SECOND, nap(2)), Duration::ZERO);
        assert_eq!(
            clock.compare(nanos + SECOND, nap(2) + SECOND),
            Duration::ZERO
        );
    }
}
