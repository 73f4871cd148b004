//! One budget for the memory that the server uses for clients: incomplete messages, unread output, messages that are kept for resumable
//! clients, pending input, bodies of calls, and memory that services use for clients.
//!
//! The memory is not counted where it is stored, so no count can drift. The loop adds up what may have been added, and measures all
//! clients only if this could exceed the budget, and once in a while. If the budget is exceeded, the largest client of the principal
//! that holds most is ended; see [`capacity`](super::capacity).

use crate::protocol::Time;

/// A client is ended when less than this part of the budget is left, because one turn can add as much.
const RESERVE: usize = 16;

/// The memory that clients hold, in bytes.
#[derive(Debug)]
pub(crate) struct Memory {
    /// What connections and services held when it was measured.
    held: usize,
    /// What may have been added since.
    added: usize,
    /// Measure when this much was added.
    most_added: usize,
    /// When to measure again, if anything was added.
    next: Time,
}

impl Memory {
    /// Nothing is held yet.
    pub(crate) fn new(limit: Option<usize>) -> Self {
        match limit {
            Some(limit) => Self::measured(limit, 0, Time::default()),
            None => Self {
                held: 0,
                added: 0,
                most_added: usize::MAX,
                next: Time::from_millis(u64::MAX),
            },
        }
    }

    /// The state after a measurement: `held` bytes are held, and the next measurement is due at `next`.
    pub(crate) fn measured(limit: usize, held: usize, next: Time) -> Self {
        // A growing buffer has up to twice the capacity that it needs. Close to the limit, measuring more often would cost more
        // than what it is for.
        let left = most(limit).saturating_sub(held) / 2;
        Self {
            held,
            added: 0,
            most_added: left.max(limit / RESERVE / 4),
            next,
        }
    }

    /// Records that a client may hold so many bytes more.
    #[inline]
    pub(crate) fn add(&mut self, bytes: usize) {
        self.added = self.added.saturating_add(bytes);
    }

    /// Measures again in the next turn.
    pub(super) fn measure_again(&mut self) {
        self.most_added = 0;
    }

    /// Whether so much is held that clients must end.
    pub(crate) fn is_short(&self, limit: usize) -> bool {
        self.held > most(limit)
    }

    /// Whether the clients must be measured.
    #[inline]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.added >= self.most_added || (now >= self.next && self.added > 0)
    }
}

/// The memory that may be held before clients are ended.
pub(crate) fn most(limit: usize) -> usize {
    limit - limit / RESERVE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_measured_when_the_budget_may_be_exceeded_and_once_in_a_while() {
        let limit = 16 << 20;
        let (early, late) = (Time::from_millis(999), Time::from_millis(1000));
        let mut memory = Memory::measured(limit, 0, late);
        assert!(!memory.is_due(late), "nothing was added");
        memory.add(1);
        assert!(!memory.is_due(early) && memory.is_due(late));
        memory.add(limit / 2);
        assert!(memory.is_due(early));
        // Close to the limit, measuring after each message would cost more than the message.
        let mut full = Memory::measured(limit, limit, late);
        full.add(1000);
        assert!(!full.is_due(early) && full.is_due(late));
        let mut unlimited = Memory::new(None);
        unlimited.add(usize::MAX - 1);
        assert!(!unlimited.is_due(late));
    }
}
