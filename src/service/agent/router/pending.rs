//! Requests that have been passed on and not answered, by the ids that the router has assigned.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Time;
use crate::service::id_map::IdMap;

/// The pending requests of one direction, and when those with a time limit are due.
///
/// Upstream ids only grow, so the request with the lowest id is the oldest.
#[derive(Debug)]
pub(super) struct Pending<R> {
    requests: IdMap<u64, R>,
    /// How long a request may be pending. `None` is no limit.
    limit: Option<Duration>,
    /// The deadlines of the requests with a time limit.
    deadlines: BTreeMap<u64, Time>,
}

impl<R> Pending<R> {
    /// An empty table. The time limit applies to requests that are inserted with [`Pending::insert_timed`].
    pub(super) fn new(limit: Option<Duration>) -> Self {
        Self {
            requests: IdMap::default(),
            limit,
            deadlines: BTreeMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn get(&self, id: u64) -> Option<&R> {
        self.requests.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut R> {
        self.requests.get_mut(&id)
    }

    /// All requests with their ids, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &R)> {
        self.requests.iter().map(|(id, request)| (*id, request))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &R> {
        self.requests.values()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut R> {
        self.requests.values_mut()
    }

    /// Adds a request without a time limit.
    pub(super) fn insert(&mut self, id: u64, request: R) {
        self.requests.insert(id, request);
    }

    /// Adds a request whose time limit begins at `since`. Returns its deadline, if there is a limit.
    pub(super) fn insert_timed(&mut self, id: u64, request: R, since: Time) -> Option<Time> {
        self.insert(id, request);
        let deadline = since + self.limit?;
        self.deadlines.insert(id, deadline);
        Some(deadline)
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<R> {
        if self.limit.is_some() {
            self.deadlines.remove(&id);
        }
        self.requests.remove(&id)
    }

    /// The earliest deadline.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadlines.values().next().copied()
    }

    /// The oldest request with a time limit, if its time is over. The caller removes it.
    pub(super) fn due(&self, now: Time) -> Option<u64> {
        let (id, deadline) = self.deadlines.first_key_value()?;
        (*deadline <= now).then_some(*id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_request_is_due_first_and_one_without_a_limit_never() {
        let at = Time::from_millis;
        let mut pending = Pending::new(Some(Duration::from_millis(10)));
        pending.insert(1, "prompt");
        assert_eq!(pending.insert_timed(2, "old", at(0)), Some(at(10)));
        assert_eq!(pending.insert_timed(3, "new", at(5)), Some(at(15)));
        assert_eq!(
            (pending.deadline(), pending.due(at(9))),
            (Some(at(10)), None)
        );
        assert_eq!(pending.due(at(20)), Some(2));
        assert_eq!(pending.remove(2), Some("old"));
        assert_eq!((pending.due(at(14)), pending.due(at(15))), (None, Some(3)));
        assert_eq!(pending.remove(3), Some("new"));
        assert_eq!(
            (pending.deadline(), pending.due(at(99)), pending.len()),
            (None, None, 1)
        );

        let mut pending = Pending::new(None);
        assert_eq!(pending.insert_timed(1, "request", at(0)), None);
        assert_eq!(pending.due(at(99)), None);
    }
}
