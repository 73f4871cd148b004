//! Requests that wait for a process, and how much of what is kept belongs to which principal.

use std::collections::{BTreeMap, HashMap};

use super::process::MAX_UNREAD;
use crate::Principal;
use crate::record::record;

/// The bytes that principals hold: of requests that wait for a process to start, or of subscriptions. Principals that hold nothing have
/// no entry.
#[derive(Debug)]
pub(super) struct HeldBytes {
    most_each: usize,
    each: HashMap<Principal, usize>,
}

impl Default for HeldBytes {
    /// For requests.
    fn default() -> Self {
        Self::new(MAX_UNREAD)
    }
}

record!(HeldBytes { most_each, each });

impl HeldBytes {
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

/// Requests that are held until a process is ready, by upstream id. Ids increase in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Held {
    requests: BTreeMap<u64, (Principal, String)>,
    bytes: HeldBytes,
}

record!(Held { requests, bytes });

impl Held {
    pub(super) fn insert(&mut self, upstream_id: u64, principal: &Principal, text: String) {
        self.bytes.add(principal, text.len());
        let request = (principal.clone(), text);
        self.requests.insert(upstream_id, request);
    }

    /// Removes a request. Returns its message if it was held.
    pub(super) fn remove(&mut self, upstream_id: u64) -> Option<String> {
        let (principal, text) = self.requests.remove(&upstream_id)?;
        self.bytes.remove(&principal, text.len());
        Some(text)
    }

    /// Takes all messages.
    pub(super) fn take(&mut self) -> impl Iterator<Item = String> {
        let held = std::mem::take(self);
        held.requests.into_values().map(|(_, text)| text)
    }

    /// The upstream ids, the oldest first.
    pub(super) fn ids(&self) -> impl Iterator<Item = u64> {
        self.requests.keys().copied()
    }

    pub(super) fn contains(&self, upstream_id: u64) -> bool {
        self.requests.contains_key(&upstream_id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether a principal may hold a request of this length.
    pub(super) fn has_room(&self, principal: &Principal, length: usize) -> bool {
        self.bytes.has_room(principal, length)
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
        assert!(held.each.is_empty());
    }
}
