//! How much of what waits for a process belongs to which principal.

use std::collections::HashMap;

use super::process::MAX_UNREAD;
use crate::Principal;

/// The bytes of requests that wait for a process to start. Principals without such requests have no entry.
#[derive(Debug, Default)]
pub(super) struct HeldBytes(HashMap<Principal, usize>);

impl HeldBytes {
    /// Whether a principal may hold a message of this length. One that holds nothing always may.
    pub(super) fn has_room(&self, principal: &Principal, length: usize) -> bool {
        let held = self.0.get(principal);
        held.is_none_or(|held| length <= MAX_UNREAD.saturating_sub(*held))
    }

    pub(super) fn add(&mut self, principal: &Principal, length: usize) {
        *self.0.entry(principal.clone()).or_default() += length;
    }

    pub(super) fn remove(&mut self, principal: &Principal, length: usize) {
        if let Some(held) = self.0.get_mut(principal) {
            *held -= length;
            if *held == 0 {
                self.0.remove(principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_principal_has_a_part_of_its_own_and_nothing_is_left_over() {
        let (ada, bob) = (Principal::User(1), Principal::User(2));
        let mut held = HeldBytes::default();
        assert!(held.has_room(&ada, 10 * MAX_UNREAD), "one message fits");
        held.add(&ada, MAX_UNREAD);
        assert!(!held.has_room(&ada, 1) && held.has_room(&bob, 1));
        held.add(&ada, 5);
        held.remove(&ada, MAX_UNREAD);
        assert!(held.has_room(&ada, MAX_UNREAD - 5) && !held.has_room(&ada, MAX_UNREAD - 4));
        held.remove(&ada, 5);
        assert!(held.0.is_empty());
    }
}
