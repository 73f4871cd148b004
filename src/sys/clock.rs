//! The clocks of the loop.

#[cfg(not(target_os = "linux"))]
use std::{sync::OnceLock, time::Instant};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on a clock that never goes back and that stops while the machine is suspended. The system chooses its starting
/// point.
#[cfg(target_os = "linux")]
pub(crate) fn monotonic_nanos() -> u64 {
    nanos(ClockId::Monotonic)
}

/// Nanoseconds on a clock that never goes back and that stops while the machine is suspended.
#[cfg(not(target_os = "linux"))]
pub(crate) fn monotonic_nanos() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Nanoseconds on a clock that never goes back and that keeps running while the machine is suspended.
pub(crate) fn elapsed_nanos() -> u64 {
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    // On macOS, this clock keeps running.
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::Monotonic;
    nanos(CLOCK)
}

fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
