//! Requests that wait until a shared process is ready.

use std::collections::BTreeMap;

use crate::Principal;
use crate::record::record;
use crate::service::mcp::held_bytes::HeldBytes;

/// Requests by their upstream ids, which are in the order of their arrival.
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

    /// Returns whether the request has waited.
    pub(super) fn remove(&mut self, upstream_id: u64) -> bool {
        let Some((principal, text)) = self.requests.remove(&upstream_id) else {
            return false;
        };
        self.bytes.remove(&principal, text.len());
        true
    }

    /// Takes all requests.
    pub(super) fn take(&mut self) -> impl Iterator<Item = String> {
        let held = std::mem::take(self);
        held.requests.into_values().map(|(_, text)| text)
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
