//! A limit for all principals together. Once several principals use the service, each of them may use half of it.

use std::collections::HashMap;

use crate::Principal;
use crate::record::{record, state};
use crate::service::sharing::Sharing;

/// Which limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// That of all principals together.
    All,
    /// That of one principal.
    Principal,
}

/// Counts what principals hold.
#[derive(Debug)]
pub(crate) struct Quota {
    most: usize,
    sharing: Sharing,
    used: usize,
    /// Principals that hold nothing have no entry.
    each: HashMap<Principal, usize>,
}

state!(Quota {
    keep most,
    sharing,
    used,
    each,
});

impl Quota {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            sharing: Sharing::default(),
            used: 0,
            each: HashMap::new(),
        }
    }

    /// Notes that a principal uses the service. `is_sole` says that the settings let no other one connect.
    pub(crate) fn note(&mut self, principal: &Principal, is_sole: bool) {
        self.sharing.note(principal, is_sole);
    }

    /// Counts `count` for a principal, if both limits allow it.
    pub(crate) fn take(&mut self, principal: &Principal, count: usize) -> Result<(), Full> {
        if count > self.most.saturating_sub(self.used) {
            return Err(Full::All);
        }
        let held = self.each.get(principal).copied().unwrap_or(0);
        let share = self.sharing.share_of(self.most);
        if count > share.saturating_sub(held) {
            return Err(Full::Principal);
        }
        if count > 0 {
            self.used += count;
            match self.each.get_mut(principal) {
                Some(held) => *held += count,
                None => _ = self.each.insert(principal.clone(), count),
            }
        }
        Ok(())
    }

    /// Gives back what was taken.
    pub(crate) fn give_back(&mut self, principal: &Principal, count: usize) {
        self.used -= count;
        if let Some(held) = self.each.get_mut(principal) {
            *held -= count;
            if *held == 0 {
                self.each.remove(principal);
            }
        }
    }

    /// What all principals hold.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Visits what each principal holds.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&Principal, usize)) {
        let each = self.each.iter();
        each.for_each(|(principal, held)| visit(principal, *held));
    }
}

/// The bytes that principals hold: of requests that wait for a process to start, or of subscriptions. Principals that hold nothing have
/// no entry.
#[derive(Debug)]
pub(super) struct BytesOfEach {
    most_each: usize,
    each: HashMap<Principal, usize>,
}

record!(BytesOfEach { most_each, each });

impl BytesOfEach {
    /// A principal holds at most `most_each` bytes.
    pub(super) fn new(most_each: usize) -> Self {
        Self {
            most_each,
            each: HashMap::new(),
        }
    }

    /// Whether a principal may hold so many bytes more. One that holds nothing always may.
    pub(super) fn has_room(&self, principal: &Principal, length: usize) -> bool {
        let held = self.each.get(principal);
        held.is_none_or(|held| length <= self.most_each.saturating_sub(*held))
    }

    pub(super) fn add(&mut self, principal: &Principal, length: usize) {
        *self.each.entry(principal.clone()).or_default() += length;
    }

    pub(super) fn remove(&mut self, principal: &Principal, length: usize) {
        if let Some(held) = self.each.get_mut(principal) {
            *held -= length;
            if *held == 0 {
                self.each.remove(principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_limits_hold_and_nothing_is_left_over() {
        let (ada, bob) = (Principal::User(1), Principal::User(2));
        let mut quota = Quota::new(5);
        quota.note(&ada, false);
        assert_eq!(quota.take(&ada, 4), Err(Full::Principal));
        assert_eq!(quota.take(&ada, 3), Ok(()));
        assert_eq!(quota.take(&ada, 1), Err(Full::Principal));
        assert_eq!(quota.take(&bob, 3), Err(Full::All));
        assert_eq!(quota.take(&bob, 2), Ok(()));
        quota.give_back(&ada, 3);
        assert_eq!((quota.used(), quota.each.len()), (2, 1));
        quota.give_back(&bob, 2);
        assert_eq!((quota.used(), quota.each.len()), (0, 0));
        // A principal that is alone gets everything.
        assert_eq!(Quota::new(5).take(&ada, 5), Ok(()));
    }

    const MOST: usize = 1000;

    #[test]
    fn each_principal_has_a_part_of_its_own_and_nothing_is_left_over() {
        let (ada, bob) = (Principal::User(1), Principal::User(2));
        let mut held = BytesOfEach::new(MOST);
        assert!(held.has_room(&ada, 10 * MOST), "one message fits");
        held.add(&ada, MOST);
        assert!(!held.has_room(&ada, 1) && held.has_room(&bob, 1));
        held.add(&ada, 5);
        held.remove(&ada, MOST);
        assert!(held.has_room(&ada, MOST - 5) && !held.has_room(&ada, MOST - 4));
        held.remove(&ada, 5);
        assert!(held.each.is_empty());
    }
}
