//! One budget for the memory that the server uses for clients: incomplete messages, unread output, messages that are kept for resumable
//! clients, pending input, bodies of calls, and memory that services use for clients.
//!
//! The memory is not counted where it is stored, so no count can drift. The loop adds up what may have been added, and measures all
//! clients and services only if this could exceed the budget, and once in a while. If the budget is exceeded,
//! [`relief`](super::relief) frees what belongs to whoever holds most. Between two measurements, services report what they grow by, so
//! that growth that does not fit is refused.

use std::collections::HashMap;
use std::time::Duration;

use crate::protocol::Time;
use crate::server::event_loop::scheduler::Payer;

/// Memory is freed when less than this part of the budget is left, because one turn can add as much.
pub(super) const RESERVE: usize = 16;

/// The part of the budget that is left to connections, whatever services hold.
pub(super) const CONNECTIONS: usize = 4;

/// How soon memory is measured after growth was refused, because the last measurement may be old.
const REFUSED: Duration = Duration::from_millis(100);

/// The memory that clients hold, in bytes.
#[derive(Debug)]
pub(crate) struct Memory {
    /// What connections and services held when it was measured, and what services have reported since.
    held: usize,
    /// The part of it that services hold.
    services: usize,
    /// The same for each payer. Small connections are left out.
    shares: HashMap<Payer, usize>,
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
            Some(limit) => Self::measured(limit, 0, 0, HashMap::new(), Time::default()),
            None => Self {
                held: 0,
                services: 0,
                shares: HashMap::new(),
                added: 0,
                most_added: usize::MAX,
                next: Time::from_millis(u64::MAX),
            },
        }
    }

    /// The state after a measurement: `held` bytes are held, `services` of them by services. The next measurement is due at `next`.
    pub(super) fn measured(
        limit: usize,
        held: usize,
        services: usize,
        shares: HashMap<Payer, usize>,
        next: Time,
    ) -> Self {
        // A growing buffer has up to twice the capacity that it needs. Close to the limit, measuring more often would cost more
        // than what it is for.
        let left = most(limit).saturating_sub(held) / 2;
        Self {
            held,
            services,
            shares,
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

    /// Records that what a service holds for a payer has changed its size.
    pub(in crate::server) fn note(&mut self, payer: Payer, before: usize, after: usize) {
        let resized = |held: usize| held.saturating_sub(before).saturating_add(after);
        self.add(after.saturating_sub(before).max(1));
        self.held = resized(self.held);
        self.services = resized(self.services);
        let share = self.shares.entry(payer).or_default();
        *share = resized(*share);
    }

    /// Whether a service may hold so many bytes more for a payer. What services hold leaves a part of the budget to connections. For
    /// a payer that holds less than another one, more is freed of what the other one holds.
    pub(in crate::server) fn has_room(
        &mut self,
        limit: usize,
        now: Time,
        payer: &Payer,
        more: usize,
    ) -> bool {
        let services = self.services.saturating_add(more);
        let held = self.held.saturating_add(more);
        if services <= limit - limit / CONNECTIONS && held <= most(limit) {
            return true;
        }
        self.next = self.next.min(now + REFUSED);
        self.add(1);
        let own = self.share_of(payer).saturating_add(more);
        let others = self.shares.iter().filter(|(other, _)| *other != payer);
        others.map(|(_, share)| *share).max() > Some(own)
    }

    /// Whether no payer holds more than this one.
    pub(super) fn is_largest(&self, payer: &Payer) -> bool {
        let own = self.share_of(payer);
        self.shares.values().all(|share| *share <= own)
    }

    fn share_of(&self, payer: &Payer) -> usize {
        self.shares.get(payer).copied().unwrap_or(0)
    }

    /// Measures again in the next turn.
    pub(super) fn measure_again(&mut self) {
        self.most_added = 0;
    }

    /// Whether so much is held that some of it must be freed.
    pub(crate) fn is_short(&self, limit: usize) -> bool {
        self.held > most(limit)
    }

    /// Whether to measure again.
    #[inline]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.added >= self.most_added || (now >= self.next && self.added > 0)
    }
}

/// The memory that may be held before some of it is freed.
pub(crate) fn most(limit: usize) -> usize {
    limit - limit / RESERVE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::access::Principal;

    #[test]
    fn clients_are_measured_when_the_budget_may_be_exceeded_and_once_in_a_while() {
        let limit = 16 << 20;
        let (early, late) = (Time::from_millis(999), Time::from_millis(1000));
        let measured = |held| Memory::measured(limit, held, 0, HashMap::new(), late);
        let mut memory = measured(0);
        assert!(!memory.is_due(late), "nothing was added");
        memory.add(1);
        assert!(!memory.is_due(early) && memory.is_due(late));
        memory.add(limit / 2);
        assert!(memory.is_due(early));
        // Close to the limit, measuring after each message would cost more than the message.
        let mut full = measured(limit);
        full.add(1000);
        assert!(!full.is_due(early) && full.is_due(late));
        let mut unlimited = Memory::new(None);
        unlimited.add(usize::MAX - 1);
        assert!(!unlimited.is_due(late));
    }

    #[test]
    fn growth_that_does_not_fit_is_refused_to_whoever_holds_most() {
        let (limit, now) = (64 << 20, Time::default());
        let payer = |name: &str| Payer::Principal(Principal::Named(name.into()));
        let (ada, bob) = (payer("ada"), payer("bob"));
        let mut memory = Memory::new(Some(limit));
        let mut screens = 0;
        while memory.has_room(limit, now, &ada, 3 << 20) {
            memory.note(ada.clone(), 0, 3 << 20);
            screens += 1;
        }
        // A quarter is left to connections.
        assert_eq!(screens, 16);
        assert!(memory.is_largest(&ada) && !memory.is_largest(&bob));
        assert!(memory.has_room(limit, now, &bob, 3 << 20));
        memory.note(bob.clone(), 0, 3 << 20);
        assert!(!memory.has_room(limit, now, &bob, 48 << 20));
        // What has become smaller leaves room at once.
        memory.note(ada.clone(), 6 << 20, 0);
        assert!(memory.has_room(limit, now, &ada, 3 << 20));
    }
}
