//! Requests that wait for an answer, by their ids.

use std::collections::HashMap;

use super::id::IdKey;

/// An empty set with more room than this frees its memory.
const KEPT: usize = 64;

/// The requests that wait under one id. A peer that uses an id twice gets two answers.
#[derive(Debug)]
struct Waiting {
    /// The id as written.
    raw: Box<str>,
    /// The position of the first request among all.
    serial: u64,
    count: usize,
}

/// A set of ids, each with the number of its requests. It keeps their order.
#[derive(Debug, Default)]
pub(in crate::service) struct WaitingIds {
    ids: HashMap<IdKey, Waiting>,
    len: usize,
    serial: u64,
}

impl WaitingIds {
    /// The number of requests.
    pub(in crate::service) fn len(&self) -> usize {
        self.len
    }

    pub(in crate::service) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(in crate::service) fn contains(&self, key: &IdKey) -> bool {
        self.ids.contains_key(key)
    }

    /// Adds a request.
    pub(in crate::service) fn insert(&mut self, raw: &str) {
        self.serial += 1;
        self.len += 1;
        let waiting = self.ids.entry(IdKey::of(raw)).or_insert_with(|| Waiting {
            raw: raw.into(),
            serial: self.serial,
            count: 0,
        });
        waiting.count += 1;
    }

    /// Removes a request with this key. Returns whether there was one.
    pub(in crate::service) fn remove(&mut self, key: &IdKey) -> bool {
        let Some(waiting) = self.ids.get_mut(key) else {
            return false;
        };
        self.len -= 1;
        waiting.count -= 1;
        if waiting.count == 0 {
            self.ids.remove(key);
        }
        if self.ids.is_empty() && self.ids.capacity() > KEPT {
            self.ids = HashMap::new();
        }
        true
    }

    /// Removes all requests and returns their ids as written, in the order of the requests.
    pub(in crate::service) fn take(&mut self) -> Vec<Box<str>> {
        let mut waiting: Vec<Waiting> = std::mem::take(&mut self.ids).into_values().collect();
        self.len = 0;
        waiting.sort_unstable_by_key(|waiting| waiting.serial);
        let waiting = waiting.into_iter();
        waiting
            .flat_map(|waiting| std::iter::repeat_n(waiting.raw, waiting.count))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_out_in_the_order_of_their_requests() {
        let mut ids = WaitingIds::default();
        for id in ["3", "\"x\"", "1", "3.0", "2"] {
            ids.insert(id);
        }
        assert!(ids.remove(&IdKey::of("1")) && !ids.remove(&IdKey::of("1")));
        assert_eq!(ids.len(), 4);
        let taken: Vec<String> = ids.take().into_iter().map(String::from).collect();
        assert_eq!(taken, ["3", "3", "\"x\"", "2"]);
        assert!(ids.is_empty() && !ids.contains(&IdKey::of("3")));
    }
}
