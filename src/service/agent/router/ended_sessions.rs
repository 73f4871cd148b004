//! The owners of ended sessions, in a few bytes for each session.
//!
//! A record belongs to an agent process and a session id: two processes may use the same id. Ids and tokens are stored as hashes with
//! a random key, so that clients cannot construct collisions. Without its record, an ended session would look like one that the
//! router has never seen. So once the records are full, sessions without a record can no longer be loaded.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use crate::Principal;
use crate::record::{Loader, RecordError, Saver, Set, State, object, record};
use crate::sys::random_bytes;

/// The record of an ended session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SessionRecord {
    pub(super) principal: Principal,
    /// The index of the process that had it.
    pub(super) process: usize,
    /// Hashes of the tokens that open it: the current token, and the previous one if the current one has not been used.
    token: u64,
    earlier: Option<u64>,
    /// The agent process that still has the session. `None` if the session was closed.
    pub(super) agent: Option<u32>,
}

record!(SessionRecord {
    principal,
    process,
    token,
    earlier,
    agent,
});

/// A secret key for hashes, which the next program continues to use.
#[derive(Debug)]
struct HashKey([u8; 32]);

record!(HashKey as [u8; 32]);

impl HashKey {
    fn random() -> Self {
        let mut key = [0; 32];
        random_bytes(&mut key);
        Self(key)
    }

    /// The hash of these parts, which are not confused with others that have the same bytes.
    fn hash(&self, parts: [&[u8]; 2]) -> u64 {
        let mut hasher = Sha256::new_with_prefix(self.0);
        for part in parts {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let digest: [u8; 32] = hasher.finalize().into();
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        u64::from_le_bytes(first)
    }
}

/// A record in its compact form.
#[derive(Debug)]
struct Stored {
    token: u64,
    /// The index of its principal in the list of principals.
    principal: u32,
    /// The number of the agent that has it plus one, or 0.
    agent: u32,
}

// With its key and the hash table's control byte, a record takes 25 bytes.
const _: () = assert!(size_of::<(u64, Stored)>() == 24);

/// The length of a record that is written down, with its key.
const STORED: usize = 24;

impl Stored {
    /// Reads a record and its key.
    fn read(bytes: &[u8; STORED]) -> (u64, Self) {
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|one| bytes[at + one]));
        let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|one| bytes[at + one]));
        let stored = Self {
            token: long(8),
            principal: short(16),
            agent: short(20),
        };
        (long(0), stored)
    }
}

/// The records of ended sessions.
#[derive(Debug)]
pub(super) struct EndedSessions {
    limit: usize,
    /// The maximum number of processes.
    processes: usize,
    key: HashKey,
    records: HashMap<u64, Stored>,
    /// The previous tokens, for the sessions that have one.
    earlier: HashMap<u64, u64>,
    /// All principals that occur. There are few.
    principals: Vec<Principal>,
    /// Whether a record has been discarded because the limit was reached.
    has_discarded: bool,
}

impl State for EndedSessions {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        let Self {
            limit: _,
            processes: _,
            key,
            records,
            earlier,
            principals,
            has_discarded,
        } = self;
        let mut bytes = Vec::with_capacity(STORED * records.len());
        for (key, stored) in records {
            bytes.extend(key.to_le_bytes());
            bytes.extend(stored.token.to_le_bytes());
            bytes.extend(stored.principal.to_le_bytes());
            bytes.extend(stored.agent.to_le_bytes());
        }
        to.open(b'{');
        to.field("key", key);
        to.member("records", |to| to.put_bytes(bytes));
        to.field("earlier", earlier);
        to.field("principals", principals);
        to.field("has_discarded", has_discarded);
        to.close(b'}');
    }

    fn load(&mut self, from: &mut Loader) -> Result<(), RecordError> {
        let mut bytes = Vec::new();
        object!(from {
            key: Set(&mut self.key),
            records: Set(&mut bytes),
            earlier: Set(&mut self.earlier),
            principals: Set(&mut self.principals),
            has_discarded: Set(&mut self.has_discarded),
        })?;
        let (records, rest) = bytes.as_chunks::<STORED>();
        if !rest.is_empty() {
            return Err(RecordError::new("a record is incomplete").inside("records"));
        }
        for record in records {
            let (key, stored) = Stored::read(record);
            if stored.principal as usize >= self.principals.len() {
                return Err(RecordError::new("a principal is missing").inside("records"));
            }
            self.records.insert(key, stored);
        }
        Ok(())
    }
}

impl EndedSessions {
    pub(super) fn new(limit: usize, processes: usize) -> Self {
        Self {
            limit,
            processes,
            key: HashKey::random(),
            records: HashMap::new(),
            earlier: HashMap::new(),
            principals: Vec::new(),
            has_discarded: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether a session without a record may be an ended one.
    pub(super) fn is_full(&self) -> bool {
        self.has_discarded || self.records.len() >= self.limit
    }

    /// Makes a record of a session.
    pub(super) fn record(
        &self,
        session: &str,
        process: usize,
        principal: Principal,
        (token, earlier): (&str, Option<&str>),
        agent: Option<u32>,
    ) -> SessionRecord {
        SessionRecord {
            principal,
            process,
            token: self.token_hash(session, token),
            earlier: earlier.map(|earlier| self.token_hash(session, earlier)),
            agent,
        }
    }

    /// Whether a token opens a session.
    pub(super) fn opens(&self, session: &str, record: &SessionRecord, token: &str) -> bool {
        let hash = self.token_hash(session, token);
        // A session that ended before it had a token has an empty one, which opens nothing.
        !token.is_empty() && (hash == record.token || Some(hash) == record.earlier)
    }

    fn token_hash(&self, session: &str, token: &str) -> u64 {
        self.key.hash([session.as_bytes(), token.as_bytes()])
    }

    fn key(&self, process: usize, session: &str) -> u64 {
        self.key.hash([&process.to_le_bytes(), session.as_bytes()])
    }

    pub(super) fn insert(&mut self, session: &str, record: SessionRecord) {
        let key = self.key(record.process, session);
        if self.records.len() >= self.limit && !self.records.contains_key(&key) {
            if !std::mem::replace(&mut self.has_discarded, true) {
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

    /// The records of the sessions with this id, in the order of their processes.
    pub(super) fn find(&self, session: &str) -> impl Iterator<Item = SessionRecord> {
        (0..self.processes).filter_map(move |process| self.get(process, session))
    }

    pub(super) fn get(&self, process: usize, session: &str) -> Option<SessionRecord> {
        let key = self.key(process, session);
        let stored = self.records.get(&key)?;
        Some(SessionRecord {
            principal: self.principals[stored.principal as usize].clone(),
            process,
            token: stored.token,
            earlier: self.earlier.get(&key).copied(),
            agent: stored.agent.checked_sub(1),
        })
    }

    pub(super) fn remove(&mut self, process: usize, session: &str) {
        let key = self.key(process, session);
        self.records.remove(&key);
        self.earlier.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_session_is_found_and_an_unrecorded_one_stays_closed() {
        let mut ended = EndedSessions::new(2, 2);
        let record = ended.record("a", 1, Principal::User(7), ("T2", Some("T1")), Some(3));
        ended.insert("a", record.clone());
        assert!(ended.find("a").eq([record.clone()]));
        assert_eq!(
            ended.get(0, "a"),
            None,
            "another process may have another one"
        );
        let opens = |token| ended.opens("a", &record, token);
        assert!(opens("T1") && opens("T2") && !opens("T3"));
        assert!(!ended.opens("b", &record, "T2"));
        assert_eq!(ended.get(1, "b"), None);
        assert!(!ended.is_full());

        let closed = ended.record("b", 1, Principal::Nobody, ("", None), None);
        assert!(!ended.opens("b", &closed, ""));
        ended.insert("b", closed.clone());
        assert!(ended.is_full());
        ended.insert(
            "a",
            ended.record("a", 1, Principal::Token, ("T3", None), None),
        );
        assert_eq!(ended.get(1, "a").map(|record| record.earlier), Some(None));
        ended.insert("c", closed);
        assert_eq!((ended.get(1, "c"), ended.len()), (None, 2));
        ended.remove(1, "a");
        ended.remove(1, "b");
        assert!(ended.is_full(), "an unknown session may be c");
    }
}
