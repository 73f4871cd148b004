//! Decides when to restart a child process that has exited.

use std::time::Duration;

use crate::Time;

/// The delay before the first restart. Each further restart within the window doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// What a service does when its program keeps failing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// It stops the server with a failure.
    #[default]
    Exit,
    /// It rejects clients with 503, and starts the program again without end, every ten seconds at last. Other services of the
    /// server are not affected.
    Retry,
}

/// How often a child process may exit before its service counts it as failing.
///
/// ```
/// use std::time::Duration;
/// use outrigger::service::{OnFailure, RestartLimit};
///
/// // Three exits within a minute are tolerated. The fourth ends the server.
/// let mut limit = RestartLimit::new(3, Duration::from_secs(60));
/// // Now it does not.
/// limit.on_failure = OnFailure::Retry;
/// # assert_ne!(limit, RestartLimit::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartLimit {
    /// The number of exits that are tolerated within `window`.
    pub count: usize,
    /// The period in which exits are counted.
    pub window: Duration,
    /// What happens when it exits more often, or cannot be started.
    pub on_failure: OnFailure,
}

impl RestartLimit {
    /// This many exits within `window` are tolerated. One more ends the server.
    #[must_use]
    pub fn new(count: usize, window: Duration) -> Self {
        Self {
            count,
            window,
            on_failure: OnFailure::Exit,
        }
    }
}

impl Default for RestartLimit {
    /// Five exits in a minute.
    fn default() -> Self {
        Self::new(5, Duration::from_secs(60))
    }
}

/// Counts the exits of a child process and returns the delay before each restart.
#[derive(Debug)]
pub(super) struct Backoff {
    limit: RestartLimit,
    /// The exits within the window.
    exits: Vec<Time>,
}

impl Backoff {
    pub(super) fn new(limit: RestartLimit) -> Self {
        Self {
            limit,
            exits: Vec::new(),
        }
    }

    /// Records an exit. Returns the delay before the restart, or `None` if the limit is exceeded and the program is not to be
    /// started again.
    pub(super) fn next_delay(&mut self, now: Time) -> Option<Duration> {
        self.exits
            .retain(|&exit| now.since(exit) < self.limit.window);
        self.exits.push(now);
        if self.exits.len() > self.limit.count {
            return (self.limit.on_failure == OnFailure::Retry).then_some(LONGEST_DELAY);
        }
        let doublings = (self.exits.len() - 1).min(10) as u32;
        Some((FIRST_DELAY * 2u32.pow(doublings)).min(LONGEST_DELAY))
    }
}

impl Backoff {
    /// Whether the program has exited more often than the limit allows.
    pub(super) fn is_failing(&self) -> bool {
        self.exits.len() > self.limit.count
    }

    /// Records that the program could not be started. `is_first` says that it has never run. Returns the delay before the next
    /// attempt, or `None` if there is none. A program that has run can be started, so what failed may pass.
    pub(super) fn after_failed_start(&mut self, now: Time, is_first: bool) -> Option<Duration> {
        if is_first && self.limit.on_failure == OnFailure::Exit {
            return None;
        }
        self.next_delay(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_up_to_ten_seconds_and_ends_at_the_limit() {
        let mut backoff = Backoff::new(RestartLimit::new(9, Duration::from_secs(60)));
        let now = Time::from_millis(1);
        let delays: Vec<_> = std::iter::from_fn(|| backoff.next_delay(now))
            .map(|delay| delay.as_millis())
            .collect();
        let want = [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000];
        assert_eq!(delays, want);
    }

    #[test]
    fn exits_outside_the_window_do_not_count() {
        let mut backoff = Backoff::new(RestartLimit::new(1, Duration::from_secs(60)));
        let first = Time::from_millis(1);
        assert_eq!(backoff.next_delay(first), Some(FIRST_DELAY));
        let later = first + Duration::from_secs(60);
        assert_eq!(backoff.next_delay(later), Some(FIRST_DELAY));
        assert_eq!(backoff.next_delay(later), None);
    }

    #[test]
    fn a_program_that_is_tried_without_end_is_tried_every_ten_seconds() {
        let mut limit = RestartLimit::new(1, Duration::from_secs(60));
        limit.on_failure = OnFailure::Retry;
        let mut backoff = Backoff::new(limit);
        let mut now = Time::from_millis(1);
        assert_eq!(backoff.after_failed_start(now, true), Some(FIRST_DELAY));
        for _ in 0..100 {
            assert_eq!(backoff.next_delay(now), Some(LONGEST_DELAY));
            assert!(backoff.is_failing());
            now = now + LONGEST_DELAY;
        }
    }

    #[test]
    fn one_failed_start_of_a_program_that_has_run_is_no_failure() {
        // The bug: when the machine had no process left for a moment, a restart failed and ended the server.
        let mut backoff = Backoff::new(RestartLimit::default());
        assert_eq!(
            backoff.after_failed_start(Time::from_millis(1), false),
            Some(FIRST_DELAY)
        );
        assert_eq!(backoff.after_failed_start(Time::from_millis(1), true), None);
    }
}
