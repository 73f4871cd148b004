//! Remembers the owners of ended sessions, in a few bytes for each.
//!
//! Names and tokens are kept as keyed hashes with a random key, so that nobody can produce collisions. After a session
//! has left the table, only its record here protects it from other clients. So once records did not fit, no unknown
//! session can be loaded any more.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::Principal;

/// What is remembered of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) principal: Principal,
    /// Hashes of what opens it: its token, and the one before if the token may not have been read.
    token: u64,
    earlier: Option<u64>,
    /// The agent that still has it; `None` if it was closed.
    pub(super) agent: Option<u32>,
}

/// A record as it is stored.
#[derive(Debug)]
struct Stored {
    token: u64,
    /// Where in the list of principals its principal is.
    principal: u32,
    /// One more than the number of the agent that has it.
    agent: u32,
}

// With its key and the table's own byte it is 25 bytes.
const _: () = assert!(size_of::<(u64, Stored)>() == 24);

/// Sessions that have ended.
#[derive(Debug)]
pub(super) struct Ended {
    limit: usize,
    hash: RandomState,
    records: HashMap<u64, Stored>,
    /// The earlier tokens of those that have one.
    earlier: HashMap<u64, u64>,
    /// Every principal that occurs: there are few.
    principals: Vec<Principal>,
    /// Whether a session was not remembered because there was no room.
    has_forgotten: bool,
}

impl Ended {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            hash: RandomState::new(),
            records: HashMap::new(),
            earlier: HashMap::new(),
            principals: Vec::new(),
            has_forgotten: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether a session that is not found may have ended earlier without a record.
    pub(super) fn is_full(&self) -> bool {
        self.has_forgotten || self.records.len() >= self.limit
    }

    /// What is to be remembered of a session.
    pub(super) fn record(
        &self,
        session: &str,
        principal: Principal,
        token: &str,
        earlier: Option<&str>,
        agent: Option<u32>,
    ) -> Record {
        Record {
            principal,
            token: self.hash.hash_one((session, token)),
            earlier: earlier.map(|earlier| self.hash.hash_one((session, earlier))),
            agent,
        }
    }

    /// Whether a token opens a session.
    pub(super) fn opens(&self, session: &str, record: &Record, token: &str) -> bool {
        let hash = self.hash.hash_one((session, token));
        // One that was closed before it had a token has the empty one, which opens nothing.
        !token.is_empty() && (hash == record.token || Some(hash) == record.earlier)
    }

    pub(super) fn insert(&mut self, session: &str, record: Record) {
        let key = self.hash.hash_one(session);
        if self.records.len() >= self.limit && !self.records.contains_key(&key) {
            if !std::mem::replace(&mut self.has_forgotten, true) {
                log::warn!(
                    "the limit of {} remembered ended sessions is reached: unknown sessions can no longer be loaded",
                    self.limit
                );
            }
            return;
        }
        let known = self
            .principals
            .iter()
            .position(|one| *one == record.principal);
        let principal = known.unwrap_or_else(|| {
            self.principals.push(record.principal);
            self.principals.len() - 1
        });
        match record.earlier {
            Some(earlier) => _ = self.earlier.insert(key, earlier),
            None => _ = self.earlier.remove(&key),
        }
        let stored = Stored {
            token: record.token,
            principal: principal as u32,
            agent: record.agent.map_or(0, |agent| agent.saturating_add(1)),
        };
        self.records.insert(key, stored);
    }

    pub(super) fn get(&self, session: &str) -> Option<Record> {
        let key = self.hash.hash_one(session);
        let stored = self.records.get(&key)?;
        Some(Record {
            principal: self.principals[stored.principal as usize],
            token: stored.token,
            earlier: self.earlier.get(&key).copied(),
            agent: stored.agent.checked_sub(1),
        })
    }

    pub(super) fn remove(&mut self, session: &str) {
        let key = self.hash.hash_one(session);
        self.records.remove(&key);
        self.earlier.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_found_and_what_is_not_stays_closed() {
        let mut ended = Ended::new(2);
        let record = ended.record("a", Principal::User(7), "T2", Some("T1"), Some(3));
        ended.insert("a", record);
        assert_eq!(ended.get("a"), Some(record));
        let opens = |token| ended.opens("a", &record, token);
        assert!(opens("T1") && opens("T2") && !opens("T3"));
        assert!(!ended.opens("b", &record, "T2"));
        assert_eq!(ended.get("b"), None);
        assert!(!ended.is_full());

        let closed = ended.record("b", Principal::Nobody, "", None, None);
        assert!(!ended.opens("b", &closed, ""));
        ended.insert("b", closed);
        assert!(ended.is_full());
        ended.insert("a", ended.record("a", Principal::Token, "T3", None, None));
        assert_eq!(ended.get("a").map(|record| record.earlier), Some(None));
        ended.insert("c", closed);
        assert_eq!((ended.get("c"), ended.len()), (None, 2));
        ended.remove("a");
        ended.remove("b");
        assert!(ended.is_full(), "c may be any session that is not known");
    }
}
