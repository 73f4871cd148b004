//! Requests that wait until a shared process is ready, and how much of them is whose.

use std::collections::{BTreeMap, HashMap};

use crate::Principal;

/// Requests by their upstream ids, which are in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct Held {
    requests: BTreeMap<u64, (Principal, String)>,
    /// The bytes of each principal. One that holds nothing has no entry.
    each: HashMap<Principal, usize>,
}

impl Held {
    pub(super) fn insert(&mut self, upstream_id: u64, principal: &Principal, text: String) {
        *self.each.entry(principal.clone()).or_default() += text.len();
        let request = (principal.clone(), text);
        self.requests.insert(upstream_id, request);
    }

    /// Returns whether the request has waited.
    pub(super) fn remove(&mut self, upstream_id: u64) -> bool {
        let Some((principal, text)) = self.requests.remove(&upstream_id) else {
            return false;
        };
        if let Some(bytes) = self.each.get_mut(&principal) {
            *bytes -= text.len();
            if *bytes == 0 {
                self.each.remove(&principal);
            }
        }
        true
    }

    /// Takes all requests.
    pub(super) fn take(&mut self) -> impl Iterator<Item = String> {
        self.each.clear();
        let requests = std::mem::take(&mut self.requests).into_values();
        requests.map(|(_, text)| text)
    }

    pub(super) fn contains(&self, upstream_id: u64) -> bool {
        self.requests.contains_key(&upstream_id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The bytes of a principal.
    pub(super) fn bytes_of(&self, principal: &Principal) -> usize {
        self.each.get(principal).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_principal_holds_its_own_bytes_and_nothing_is_left_over() {
        let (ada, bob) = (Principal::User(1), Principal::User(2));
        let mut held = Held::default();
        held.insert(1, &ada, "one".to_owned());
        held.insert(2, &bob, "two".to_owned());
        held.insert(3, &ada, "three".to_owned());
        assert_eq!((held.bytes_of(&ada), held.bytes_of(&bob)), (8, 3));
        assert!(held.remove(3) && !held.remove(3) && held.contains(1));
        assert_eq!((held.bytes_of(&ada), held.bytes_of(&bob)), (3, 3));
        assert_eq!(held.take().collect::<Vec<_>>(), ["one", "two"]);
        assert!(held.is_empty() && held.each.is_empty());
    }
}
