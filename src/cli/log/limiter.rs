//! A rate limit for each kind of log line.

use std::time::{Duration, Instant};

/// Where a record comes from: its module, and the line in it.
pub(super) type Origin = (&'static str, u32);

/// The maximum number of kinds. The program has fewer places that log.
const MOST_KINDS: usize = 256;

/// The bytes of a line that one token pays for.
const BYTES: usize = 256;

/// After this time without a logged line of the kind, suppressed lines are reported by themselves.
const OVERDUE: Duration = Duration::from_secs(10);

/// The maximum of bytes kept of a line as an example of suppressed lines.
const SHOWN: usize = 80;

/// What is let through of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// Tokens at once.
    pub(super) burst: f64,
    /// New tokens a second.
    pub(super) per_second: f64,
}

/// Lines of one kind.
#[derive(Debug)]
struct Kind {
    origin: Origin,
    tokens: f64,
    /// When tokens were last counted.
    counted: Instant,
    /// When a line was last logged.
    logged: Instant,
    /// Lines since then that were not.
    suppressed: u64,
    /// The beginning of the last line that was logged.
    shown: String,
}

/// A token bucket for each kind.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    kinds: Vec<Kind>,
}

impl Limiter {
    /// Whether a line may be logged, and if so, how many before it were not. [`Limiter::logged`] has to follow.
    pub(super) fn admit(&mut self, origin: Origin, rate: Rate, now: Instant) -> Option<u64> {
        let kind = self.kind(origin, rate, now);
        let passed = now.saturating_duration_since(kind.counted).as_secs_f64();
        kind.tokens = (kind.tokens + passed * rate.per_second).min(rate.burst);
        kind.counted = now;
        if kind.tokens < 1.0 {
            kind.suppressed += 1;
            return None;
        }
        kind.logged = now;
        Some(std::mem::take(&mut kind.suppressed))
    }

    /// Takes the tokens for a line that was logged.
    pub(super) fn logged(&mut self, origin: Origin, line: &str) {
        if let Some(at) = self.find(origin) {
            let kind = &mut self.kinds[at];
            kind.tokens -= (1 + line.len() / BYTES) as f64;
            kind.shown.clear();
            kind.shown
                .push_str(&line[..line.floor_char_boundary(SHOWN)]);
        }
    }

    /// Takes suppressed lines of one kind that are overdue to be reported, or without a time, of any kind: how many, and the
    /// beginning of a similar line.
    pub(super) fn overdue(&mut self, now: Option<Instant>) -> Option<(u64, &str)> {
        let late = |kind: &&mut Kind| {
            let waited = |now: Instant| now.saturating_duration_since(kind.logged) >= OVERDUE;
            kind.suppressed > 0 && now.is_none_or(waited)
        };
        let kind = self.kinds.iter_mut().find(late)?;
        kind.logged = now.unwrap_or(kind.logged);
        Some((std::mem::take(&mut kind.suppressed), &kind.shown))
    }

    /// The kind of a line. If there are too many kinds, the last one is shared by the rest.
    fn find(&self, origin: Origin) -> Option<usize> {
        let found = self.kinds.iter().position(|kind| kind.origin == origin);
        found.or((self.kinds.len() == MOST_KINDS).then_some(MOST_KINDS - 1))
    }

    fn kind(&mut self, origin: Origin, rate: Rate, now: Instant) -> &mut Kind {
        let at = self.find(origin).unwrap_or_else(|| {
            self.kinds.push(Kind {
                origin,
                tokens: rate.burst,
                counted: now,
                logged: now,
                suppressed: 0,
                shown: String::new(),
            });
            self.kinds.len() - 1
        });
        &mut self.kinds[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        burst: 10.0,
        per_second: 2.0,
    };

    #[test]
    fn a_kind_has_a_burst_and_then_its_rate_and_others_are_not_touched() {
        // The bug: whoever could connect could write to the log as fast as to the socket.
        let mut limiter = Limiter::default();
        let start = Instant::now();
        let log = |limiter: &mut Limiter, line: u32, text: &str, at: Instant| {
            let admitted = limiter.admit(("m", line), RATE, at);
            if admitted.is_some() {
                limiter.logged(("m", line), text);
            }
            admitted
        };
        for _ in 0..10 {
            assert_eq!(log(&mut limiter, 1, "short", start), Some(0));
        }
        for _ in 0..5 {
            assert_eq!(log(&mut limiter, 1, "short", start), None);
        }
        assert_eq!(log(&mut limiter, 2, "other", start), Some(0));
        let later = start + Duration::from_millis(500);
        assert_eq!(log(&mut limiter, 1, "short", later), Some(5));
        assert_eq!(log(&mut limiter, 1, "short", later), None);
        // A long line costs as many tokens as it is long.
        let later = start + Duration::from_secs(60);
        assert_eq!(log(&mut limiter, 1, &"x".repeat(4000), later), Some(1));
        assert_eq!(log(&mut limiter, 1, "short", later), None);
        assert_eq!(limiter.overdue(Some(later)), None);
        let later = later + OVERDUE;
        assert_eq!(limiter.overdue(Some(later)), Some((1, &*"x".repeat(SHOWN))));
        assert_eq!(limiter.overdue(None), None);
    }

    #[test]
    fn the_table_has_an_end() {
        let mut limiter = Limiter::default();
        let now = Instant::now();
        let mut admitted = 0;
        for line in 0..10_000 {
            if limiter.admit(("m", line), RATE, now).is_some() {
                limiter.logged(("m", line), "line");
                admitted += 1;
            }
        }
        assert_eq!(limiter.kinds.len(), MOST_KINDS);
        assert_eq!(
            admitted,
            MOST_KINDS + 9,
            "the last kind is that of all others"
        );
    }
}
