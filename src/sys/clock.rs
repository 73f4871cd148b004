//! The clock of the loop.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on a clock that never goes back and that keeps running while the machine is suspended, so that a
/// suspend shows as a jump. The system chooses its starting point.
pub(crate) fn monotonic_nanos() -> u64 {
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let time = clock_gettime(CLOCK);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
