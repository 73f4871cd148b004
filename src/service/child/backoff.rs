//! Restarts programs that have failed.

use std::time::Duration;

use crate::{Context, Time, TimerId};

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
    /// It rejects clients with 503 and keeps starting the program, at least every ten seconds. Other services of the server
    /// are not affected.
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

/// Restarts a program after failures: counts them, waits longer after each one, and knows when to give up.
#[derive(Debug)]
pub(super) struct Backoff {
    limit: RestartLimit,
    /// The failures within the window.
    failures: Vec<Time>,
    /// Whether the program could be started once.
    has_run: bool,
    /// How often the program was, or will be, started again.
    restarts: u64,
}

impl Backoff {
    pub(super) fn new(limit: RestartLimit) -> Self {
        Self {
            limit,
            failures: Vec::new(),
            has_run: false,
            restarts: 0,
        }
    }

    /// Records that the program was started.
    pub(super) fn handle_start(&mut self) {
        self.has_run = true;
    }

    /// Handles the exit of the program, or the failure to start it. Returns the timer of the next start, or `None` if the service
    /// must give up. `path` is the route of the service.
    pub(super) fn handle_failure(
        &mut self,
        ctx: &mut Context,
        path: &str,
        failure: &str,
    ) -> Option<TimerId> {
        let delay = self.next_delay(ctx.now())?;
        log::error!("route {path}: {failure}; restarting it in {delay:?}");
        self.restarts += 1;
        Some(ctx.set_timer(delay))
    }

    /// Records a failure. Returns the delay before the next start.
    fn next_delay(&mut self, now: Time) -> Option<Duration> {
        self.forget_old(now);
        self.failures.push(now);
        // What has run once can be started, so the cause of a failed start may pass. What never could may be misspelled.
        let gives_up = self.is_failing() || !self.has_run;
        if gives_up && self.limit.on_failure == OnFailure::Exit {
            return None;
        }
        let doublings = (self.failures.len() - 1).min(10) as u32;
        Some((FIRST_DELAY * 2u32.pow(doublings)).min(LONGEST_DELAY))
    }

    fn forget_old(&mut self, now: Time) {
        let window = self.limit.window;
        self.failures.retain(|&failure| now.since(failure) < window);
    }

    /// Whether one more failure would exceed the limit.
    #[cfg(feature = "mcp")]
    pub(super) fn is_exhausted(&mut self, now: Time) -> bool {
        self.forget_old(now);
        self.failures.len() >= self.limit.count
    }

    /// Whether the program has failed more often than the limit allows.
    pub(super) fn is_failing(&self) -> bool {
        self.failures.len() > self.limit.count
    }

    /// How often the program was, or will be, started again.
    pub(super) fn restarts(&self) -> u64 {
        self.restarts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A backoff of a program that has run.
    fn backoff(count: usize, on_failure: OnFailure) -> Backoff {
        let mut limit = RestartLimit::new(count, Duration::from_secs(60));
        limit.on_failure = on_failure;
        let mut backoff = Backoff::new(limit);
        backoff.handle_start();
        backoff
    }

    #[test]
    fn the_delay_doubles_up_to_ten_seconds_and_ends_at_the_limit() {
        let mut backoff = backoff(9, OnFailure::Exit);
        let now = Time::from_millis(1);
        let delays: Vec<_> = std::iter::from_fn(|| backoff.next_delay(now))
            .map(|delay| delay.as_millis())
            .collect();
        let expected = [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000];
        assert_eq!(delays, expected);
    }

    #[test]
    fn failures_outside_the_window_do_not_count() {
        let mut backoff = backoff(1, OnFailure::Exit);
        let first = Time::from_millis(1);
        assert_eq!(backoff.next_delay(first), Some(FIRST_DELAY));
        let later = first + Duration::from_secs(60);
        assert_eq!(backoff.next_delay(later), Some(FIRST_DELAY));
        assert_eq!(backoff.next_delay(later), None);
    }

    #[test]
    fn a_program_that_is_tried_without_end_is_tried_every_ten_seconds() {
        // The bug: an agent without its key used up its restarts in 3 s, and ended the terminals of all other routes.
        let mut backoff = backoff(1, OnFailure::Retry);
        let mut now = Time::from_millis(1);
        for _ in 0..100 {
            let delay = backoff.next_delay(now).expect("it is tried again");
            assert!(delay <= LONGEST_DELAY);
            now = now + Duration::from_millis(1);
        }
        assert!(backoff.is_failing());
        assert_eq!(backoff.next_delay(now), Some(LONGEST_DELAY));
    }

    #[test]
    fn one_failed_start_of_a_program_that_has_run_is_no_failure() {
        // The bug: when the machine had no process left for a moment, a restart failed and ended the server.
        let mut has_run = backoff(5, OnFailure::Exit);
        assert_eq!(has_run.next_delay(Time::from_millis(1)), Some(FIRST_DELAY));
        let mut never = Backoff::new(RestartLimit::default());
        assert_eq!(never.next_delay(Time::from_millis(1)), None);
    }
}
