//! In which order and how fast a stopping server says goodbye.
//!
//! Clients that are closed at once come back at once, all to the server that takes this one's place. So a crowd is closed
//! over a good part of the drain timeout, evenly; a handful without waiting.

use std::collections::VecDeque;
use std::time::Duration;

use super::id::ClientId;
use crate::protocol::Time;

/// How much of the drain timeout is used for it at most; the rest is for clients to answer in.
const SHARE: f64 = 0.8;

/// The time that each client is worth: a few hundred a second come back.
const EACH: Duration = Duration::from_micros(1600);

/// Between two steps.
const STEP: Duration = Duration::from_millis(20);

/// Clients that have not been told yet.
#[derive(Debug, Default)]
pub(super) struct Farewell {
    waiting: VecDeque<ClientId>,
    total: usize,
    began: Time,
    takes: Duration,
}

impl Farewell {
    /// Begins with these clients.
    pub(super) fn begin(clients: Vec<ClientId>, now: Time, drain_timeout: Duration) -> Self {
        let total = clients.len();
        let takes = (EACH * total as u32).min(drain_timeout.mul_f64(SHARE));
        Self {
            waiting: clients.into(),
            total,
            began: now,
            takes: if takes < STEP { Duration::ZERO } else { takes },
        }
    }

    /// The next client whose turn has come.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<ClientId> {
        let told = self.total - self.waiting.len();
        let elapsed = now.since(self.began);
        let due = elapsed >= self.takes || {
            let share = elapsed.as_secs_f64() / self.takes.as_secs_f64();
            told <= (share * self.total as f64) as usize
        };
        if due { self.waiting.pop_front() } else { None }
    }

    /// Whether everyone was told.
    pub(super) fn is_done(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When the next step is due, if there is one.
    pub(super) fn next_turn(&self, now: Time) -> Option<Time> {
        (!self.is_done()).then(|| now + STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(count: usize) -> Vec<ClientId> {
        (0..count).map(|slot| ClientId::new(slot, 1)).collect()
    }

    #[test]
    fn a_crowd_is_told_evenly_and_a_handful_at_once() {
        let drain = Duration::from_secs(10);
        let mut farewell = Farewell::begin(clients(5000), Time::default(), drain);
        let mut told = Vec::new();
        for second in 0..=8 {
            let now = Time::from_millis(second * 1000);
            told.push(std::iter::from_fn(|| farewell.pop_due(now)).count());
        }
        assert_eq!(told[0], 1);
        assert!(
            told[1..8].iter().all(|count| (600..650).contains(count)),
            "{told:?}"
        );
        assert_eq!(told.iter().sum::<usize>(), 5000);
        assert!(farewell.is_done() && farewell.next_turn(Time::default()).is_none());

        let mut farewell = Farewell::begin(clients(10), Time::default(), drain);
        assert_eq!(
            std::iter::from_fn(|| farewell.pop_due(Time::default())).count(),
            10
        );
        // However many there are, the last is told in time to answer.
        let mut farewell = Farewell::begin(clients(100_000), Time::default(), drain);
        let now = Time::from_millis(8000);
        assert_eq!(
            std::iter::from_fn(|| farewell.pop_due(now)).count(),
            100_000
        );
    }
}
