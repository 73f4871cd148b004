//! Decides when to restart a child process that has exited.

use std::time::Duration;

use crate::Time;

/// The delay before the first restart. Each further restart within the window doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// How often a child process may exit before its service gives up.
///
/// ```
/// use std::time::Duration;
/// use outrigger::service::RestartLimit;
///
/// // Three exits within a minute are tolerated. The fourth ends the server.
/// let limit = RestartLimit { count: 3, window: Duration::from_secs(60) };
/// # assert_ne!(limit, RestartLimit::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartLimit {
    /// The number of exits that are tolerated within `window`.
    pub count: usize,
    /// The period in which exits are counted.
    pub window: Duration,
}

impl Default for RestartLimit {
    /// Five exits in a minute.
    fn default() -> Self {
        Self {
            count: 5,
            window: Duration::from_secs(60),
        }
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

    /// Records an exit. Returns the delay before the restart, or `None` if the limit is exceeded.
    pub(super) fn next_delay(&mut self, now: Time) -> Option<Duration> {
        self.exits
            .retain(|&exit| now.since(exit) < self.limit.window);
        self.exits.push(now);
        if self.exits.len() > self.limit.count {
            return None;
        }
        let doublings = (self.exits.len() - 1).min(10) as u32;
        Some((FIRST_DELAY * 2u32.pow(doublings)).min(LONGEST_DELAY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_up_to_ten_seconds_and_ends_at_the_limit() {
        let mut backoff = Backoff::new(RestartLimit {
            count: 9,
            window: Duration::from_secs(60),
        });
        let now = Time::from_millis(1);
        let delays: Vec<_> = std::iter::from_fn(|| backoff.next_delay(now))
            .map(|delay| delay.as_millis())
            .collect();
        let want = [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000];
        assert_eq!(delays, want);
    }

    #[test]
    fn exits_outside_the_window_do_not_count() {
        let mut backoff = Backoff::new(RestartLimit {
            count: 1,
            window: Duration::from_secs(60),
        });
        let first = Time::from_millis(1);
        assert_eq!(backoff.next_delay(first), Some(FIRST_DELAY));
        let later = first + Duration::from_secs(60);
        assert_eq!(backoff.next_delay(later), Some(FIRST_DELAY));
        assert_eq!(backoff.next_delay(later), None);
    }
}
