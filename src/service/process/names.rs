//! The names of processes: which process has a name, and the clients that wait for the start of one.
//!
//! A name belongs to a principal, or to all of them. A process that is started by its name is started once, however many
//! clients ask for it: the first one's request starts it, and the others wait for the same start. A name stays with its process
//! until the process is removed.

use std::collections::HashMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::bodies::RunRequest;
use super::queries::AttachRequest;
use crate::record::{Loader, Record, RecordError, Saver, record};
use crate::service::id_map::IdMap;
use crate::{ClientId, Principal};

/// Stale names are removed when there are more than this many times as many names as processes.
const STALE: usize = 2;

/// A name with the principal that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct NameKey {
    /// [`Principal::Nobody`] if all principals share the names.
    pub(super) owner: Principal,
    pub(super) name: Arc<str>,
}

record!(NameKey { owner, name });

/// The digest of a request to start a process. Equal requests, after parsing and with their defaults, have equal digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestDigest([u8; 32]);

record!(RequestDigest as [u8; 32]);

impl RequestDigest {
    pub(super) fn of(request: &RunRequest) -> Self {
        let RunRequest {
            command,
            cwd,
            env,
            account,
            terminal,
            timeout,
            stdin,
            record,
        } = request;
        // The order of the members of a JSON object has no meaning.
        let mut env: Vec<_> = env.iter().collect();
        env.sort();
        // It may be long, and printing it as numbers would take time.
        let stdin = stdin.as_ref().map(Sha256::digest);
        let fields = (command, cwd, env, account, terminal, timeout, stdin, record);
        Self(Sha256::digest(format!("{fields:?}")).into())
    }
}

/// A client that waits for a process of a name.
#[derive(Debug)]
pub(super) enum Waiter {
    /// The caller of `PUT`.
    Caller(ClientId),
    /// A client that is attached when the process runs.
    Attached(ClientId, AttachRequest),
}

impl Waiter {
    pub(super) fn client(&self) -> ClientId {
        match self {
            Self::Caller(client) | Self::Attached(client, _) => *client,
        }
    }
}

/// A process that has a name, and the request that started it.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedProcess {
    pub(super) id: Uuid,
    pub(super) digest: RequestDigest,
}

record!(NamedProcess { id, digest });

/// What a name refers to.
#[derive(Debug)]
pub(super) enum Named {
    Starting {
        digest: RequestDigest,
        /// In the order of arrival. The start is queued for the first one.
        waiters: Vec<Waiter>,
        /// Whether the process exists, so that it keeps the name even if nobody waits for it.
        begun: bool,
        /// The exited process that has the name again if the start fails.
        previous: Option<NamedProcess>,
    },
    Started(NamedProcess),
}

/// The processes that have names.
#[derive(Debug, Default)]
pub(super) struct Names {
    entries: HashMap<NameKey, Named>,
    /// The name that each waiter waits for.
    waiting: IdMap<ClientId, NameKey>,
}

/// The processes that have names. Nobody waits for a start, because those that were queued have failed before.
impl Record for Names {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        let started = self.entries.iter().filter_map(|(key, named)| match named {
            Named::Started(process) => Some((key, process)),
            Named::Starting { .. } => None,
        });
        to.array(started, |to, (key, process)| to.pair(key, process));
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        let started = Vec::<(NameKey, NamedProcess)>::restore(from)?.into_iter();
        let entries = started.map(|(key, process)| (key, Named::Started(process)));
        Ok(Self {
            entries: entries.collect(),
            waiting: IdMap::default(),
        })
    }
}

impl Names {
    pub(super) fn get(&self, key: &NameKey) -> Option<&Named> {
        self.entries.get(key)
    }

    /// The process that has a name. While its successor is being started, it is the exited one.
    pub(super) fn process(&self, key: &NameKey) -> Option<Uuid> {
        match self.entries.get(key)? {
            Named::Started(process) => Some(process.id),
            Named::Starting { previous, .. } => previous.map(|process| process.id),
        }
    }

    /// Reserves a name for a process that the first waiter starts.
    pub(super) fn begin(&mut self, key: &NameKey, digest: RequestDigest, first: Waiter) {
        let previous = match self.entries.remove(key) {
            Some(Named::Started(process)) => Some(process),
            Some(Named::Starting { .. }) | None => None,
        };
        self.waiting.insert(first.client(), key.clone());
        let starting = Named::Starting {
            digest,
            waiters: vec![first],
            begun: false,
            previous,
        };
        self.entries.insert(key.clone(), starting);
    }

    /// Adds a client that waits for a process that is being started.
    pub(super) fn join(&mut self, key: &NameKey, waiter: Waiter) {
        if let Some(Named::Starting { waiters, .. }) = self.entries.get_mut(key) {
            self.waiting.insert(waiter.client(), key.clone());
            waiters.push(waiter);
        }
    }

    /// The start of the process has begun. It may still fail.
    pub(super) fn handle_begun(&mut self, key: &NameKey) {
        if let Some(Named::Starting { begun, .. }) = self.entries.get_mut(key) {
            *begun = true;
        }
    }

    /// The process has been started. Returns the clients that wait for it.
    pub(super) fn started(&mut self, key: &NameKey, id: Uuid) -> Vec<Waiter> {
        let Some(Named::Starting {
            digest, waiters, ..
        }) = self.entries.remove(key)
        else {
            return Vec::new();
        };
        let process = NamedProcess { id, digest };
        self.entries.insert(key.clone(), Named::Started(process));
        self.release(waiters)
    }

    /// The process could not be started. Returns the clients that wait for it.
    pub(super) fn failed(&mut self, key: &NameKey) -> Vec<Waiter> {
        let Some(Named::Starting {
            waiters, previous, ..
        }) = self.entries.remove(key)
        else {
            return Vec::new();
        };
        if let Some(previous) = previous {
            self.entries.insert(key.clone(), Named::Started(previous));
        }
        self.release(waiters)
    }

    fn release(&mut self, waiters: Vec<Waiter>) -> Vec<Waiter> {
        for waiter in &waiters {
            self.waiting.remove(&waiter.client());
        }
        waiters
    }

    /// Removes a waiter that is gone. Returns the first of those that still wait: if the client that has queued the start has left,
    /// this one queues it again. If nobody waits and the start has not begun, the name is free again.
    pub(super) fn leave(&mut self, client: ClientId) -> Option<ClientId> {
        let key = self.waiting.remove(&client)?;
        let Some(Named::Starting { waiters, begun, .. }) = self.entries.get_mut(&key) else {
            return None;
        };
        waiters.retain(|waiter| waiter.client() != client);
        let next = waiters.first().map(Waiter::client);
        if next.is_none() && !*begun {
            self.failed(&key);
        }
        next
    }

    /// Whether a client waits for the start of a process.
    pub(super) fn waits(&self, client: ClientId) -> bool {
        self.waiting.contains_key(&client)
    }

    /// Visits the clients that wait.
    pub(super) fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.waiting.keys().copied().for_each(visit);
    }

    /// Forgets the names of processes that have been removed, if there may be many. `known` is the number of processes.
    pub(super) fn prune(&mut self, known: usize, exists: impl Fn(Uuid) -> bool) {
        if self.entries.len() <= (known + self.waiting.len() + 1) * STALE {
            return;
        }
        self.entries
            .retain(|_, named| !matches!(named, Named::Started(process) if !exists(process.id)));
    }

    /// The names that belong to an owner, by process.
    pub(super) fn of_owner(&self, owner: &Principal) -> HashMap<Uuid, Arc<str>> {
        let entries = self.entries.iter();
        entries
            .filter(|(key, _)| key.owner == *owner)
            .filter_map(|(key, named)| match named {
                Named::Started(process) => Some((process.id, Arc::clone(&key.name))),
                Named::Starting { .. } => None,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> NameKey {
        NameKey {
            owner: Principal::Nobody,
            name: name.into(),
        }
    }

    fn client(id: &str) -> ClientId {
        id.parse().expect("an id")
    }

    #[test]
    fn a_start_is_passed_on_until_nobody_waits_for_it() {
        let mut names = Names::default();
        let digest = RequestDigest([1; 32]);
        let (first, second, third) = (client("c1"), client("c2"), client("c3"));
        names.begin(&key("a"), digest, Waiter::Caller(first));
        names.join(&key("a"), Waiter::Caller(second));
        names.join(&key("a"), Waiter::Caller(third));
        assert_eq!(names.leave(second), Some(first));
        assert_eq!(names.leave(first), Some(third));
        assert_eq!(names.leave(third), None);
        assert!(names.get(&key("a")).is_none() && !names.waits(third));
    }

    #[test]
    fn an_exited_process_keeps_its_name_if_its_successor_cannot_be_started() {
        let mut names = Names::default();
        let digest = RequestDigest([1; 32]);
        let old = crate::sys::random_uuid();
        names.begin(&key("a"), digest, Waiter::Caller(client("c1")));
        assert_eq!(names.started(&key("a"), old).len(), 1);
        names.begin(&key("a"), digest, Waiter::Caller(client("c2")));
        assert_eq!(names.process(&key("a")), Some(old));
        assert_eq!(names.failed(&key("a")).len(), 1);
        assert_eq!(names.process(&key("a")), Some(old));
        names.begin(&key("a"), digest, Waiter::Caller(client("c3")));
        assert_eq!(names.leave(client("c3")), None);
        assert_eq!(names.process(&key("a")), Some(old));
    }

    #[test]
    fn the_names_of_removed_processes_are_forgotten() {
        let mut names = Names::default();
        for at in 0..1000 {
            let key = key(&at.to_string());
            names.begin(&key, RequestDigest([0; 32]), Waiter::Caller(client("c1")));
            names.started(&key, crate::sys::random_uuid());
            names.prune(10, |_| false);
            assert!(names.entries.len() <= 23);
        }
    }
}
