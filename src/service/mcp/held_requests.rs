//! Requests that are held until a process is ready.

use std::collections::BTreeMap;

use super::process::MAX_UNREAD;
use super::quota::BytesOfEach;
use crate::Principal;
use crate::record::record;

/// Requests that are held until a process is ready, by upstream id. Ids increase in the order of arrival.
#[derive(Debug)]
pub(super) struct HeldRequests {
    requests: BTreeMap<u64, (Principal, String)>,
    bytes: BytesOfEach,
}

record!(HeldRequests { requests, bytes });

impl Default for HeldRequests {
    fn default() -> Self {
        Self {
            requests: BTreeMap::new(),
            bytes: BytesOfEach::new(MAX_UNREAD),
        }
    }
}

impl HeldRequests {
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
