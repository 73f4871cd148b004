//! A rate limit for each kind of log line.

use std::time::{Duration, Instant};

/// The source of a record: its module and line.
pub(super) type Origin = (&'static str, u32);

/// The maximum number of kinds. The program logs in fewer places.
const MAX_KINDS: usize = 256;

/// One token pays for this many bytes of a line.
const BYTES_PER_TOKEN: usize = 256;

/// Suppressed lines are reported separately after this time without a logged line of their kind.
const OVERDUE: Duration = Duration::from_secs(10);

/// The bytes that are kept of a line as an example of the suppressed lines.
const EXAMPLE: usize = 80;

/// The rate limit of one kind of line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// The maximum number of tokens.
    pub(super) burst: f64,
    /// Tokens that are added each second.
    pub(super) per_second: f64,
}

/// The token bucket of one kind of line.
#[derive(Debug)]
struct LineKind {
    origin: Origin,
    tokens: f64,
    /// When tokens were last added.
    refilled: Instant,
    /// When a line was last logged.
    logged: Instant,
    /// How many lines were suppressed since then.
    suppressed: u64,
    /// The beginning of the last line that was logged.
    example: String,
}

/// A token bucket for each kind of line.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    kinds: Vec<LineKind>,
}

impl Limiter {
    /// Whether a line may be logged, and how many lines of its kind were suppressed before it. If so, the caller must
    /// call [`Limiter::logged`].
    pub(super) fn admit(&mut self, origin: Origin, rate: Rate, now: Instant) -> Option<u64> {
        let kind = self.kind(origin, rate, now);
        let passed = now.saturating_duration_since(kind.refilled).as_secs_f64();
        kind.tokens = (kind.tokens + passed * rate.per_second).min(rate.burst);
        kind.refilled = now;
        if kind.tokens < 1.0 {
            kind.suppressed += 1;
            return None;
        }
        kind.logged = now;
        Some(std::mem::take(&mut kind.suppressed))
    }

    /// Removes the tokens for a line that was logged.
    pub(super) fn logged(&mut self, origin: Origin, line: &str) {
        if let Some(at) = self.find(origin) {
            let kind = &mut self.kinds[at];
            kind.tokens -= (1 + line.len() / BYTES_PER_TOKEN) as f64;
            kind.example.clear();
            kind.example
                .push_str(&line[..line.floor_char_boundary(EXAMPLE)]);
        }
    }

    /// Takes the count of suppressed lines of a kind that is overdue, and the beginning of a similar line. Without a
    /// time, every kind is overdue.
    pub(super) fn overdue(&mut self, now: Option<Instant>) -> Option<(u64, &str)> {
        let late = |kind: &&mut LineKind| {
            let waited = |now: Instant| now.saturating_duration_since(kind.logged) >= OVERDUE;
            kind.suppressed > 0 && now.is_none_or(waited)
        };
        let kind = self.kinds.iter_mut().find(late)?;
        kind.logged = now.unwrap_or(kind.logged);
        Some((std::mem::take(&mut kind.suppressed), &kind.example))
    }

    /// The index of a kind. If there are too many kinds, the rest share the last one.
    fn find(&self, origin: Origin) -> Option<usize> {
        let found = self.kinds.iter().position(|kind| kind.origin == origin);
        found.or((self.kinds.len() == MAX_KINDS).then_some(MAX_KINDS - 1))
    }

    fn kind(&mut self, origin: Origin, rate: Rate, now: Instant) -> &mut LineKind {
        let at = self.find(origin).unwrap_or_else(|| {
            self.kinds.push(LineKind {
                origin,
                tokens: rate.burst,
                refilled: now,
                logged: now,
                suppressed: 0,
                example: String::new(),
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
    fn each_kind_has_a_burst_and_a_rate_of_its_own() {
        // The bug: a client could fill the log as fast as it could send.
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
        // A long line takes more tokens.
        let later = start + Duration::from_secs(60);
        assert_eq!(log(&mut limiter, 1, &"x".repeat(4000), later), Some(1));
        assert_eq!(log(&mut limiter, 1, "short", later), None);
        assert_eq!(limiter.overdue(Some(later)), None);
        let later = later + OVERDUE;
        assert_eq!(
            limiter.overdue(Some(later)),
            Some((1, &*"x".repeat(EXAMPLE)))
        );
        assert_eq!(limiter.overdue(None), None);
    }

    #[test]
    fn the_number_of_kinds_is_limited() {
        let mut limiter = Limiter::default();
        let now = Instant::now();
        let mut admitted = 0;
        for line in 0..10_000 {
            if limiter.admit(("m", line), RATE, now).is_some() {
                limiter.logged(("m", line), "line");
                admitted += 1;
            }
        }
        assert_eq!(limiter.kinds.len(), MAX_KINDS);
        assert_eq!(admitted, MAX_KINDS + 9, "the rest share the last kind");
    }
}
