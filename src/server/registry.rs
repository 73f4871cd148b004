//! The one registry: who is connected, and nothing else knows.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use super::client::{Client, Flags, Remote};
use super::deadlines::Deadlines;
use super::id::{ClientId, MAX_SLOTS};
use super::stream::Stream;
use crate::protocol::Time;

/// Room for so many clients is asked for at once. It is memory of its own, of which only what is used exists; grown
/// from less, the slab would leave a hole of its former size behind.
const FIRST_SLOTS: usize = 1024;

/// How long a connection that has shown no token is left alone when others need its place: long enough for a
/// handshake.
const STRANGER_TIME: Duration = Duration::from_millis(250);

/// The counters of one address.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    /// Connections of every kind.
    connections: usize,
    /// Clients and pending calls.
    clients: usize,
}

/// Every connection, from `accept` to its end, in one slab. A connection is in here if and only if it exists.
#[derive(Debug)]
pub(super) struct Registry {
    clients: Slab<Client>,
    deadlines: Deadlines,
    /// The serial number of the next client. Never goes back.
    next_serial: u64,
    /// How many of the clients were admitted by the service: those whose end will be told.
    admitted: usize,
    /// The counters of each address with a connection, if they are limited.
    by_address: Option<HashMap<IpAddr, Uses>>,
    /// The path of the client that was admitted last, to be shared by the next.
    last_path: Arc<Box<str>>,
    /// Whether no connection was given out to be changed since [`Registry::watch`].
    unchanged: bool,
}

impl Registry {
    pub(super) fn new(now: Time, by_address: bool) -> Self {
        Self {
            by_address: by_address.then(HashMap::new),
            clients: Slab::with_capacity(FIRST_SLOTS),
            deadlines: Deadlines::new(now),
            next_serial: 1,
            admitted: 0,
            last_path: Arc::default(),
            unchanged: false,
        }
    }

    /// Connections of every kind.
    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }

    /// Clients: connections that were admitted and have not ended.
    pub(super) fn client_count(&self) -> usize {
        self.admitted
    }

    /// How many clients and pending calls an address has, where that is counted.
    pub(super) fn count_of(&self, remote: Remote) -> usize {
        let counts = self.by_address.as_ref();
        counts
            .and_then(|counts| counts.get(&remote.ip()))
            .map_or(0, |uses| uses.clients)
    }

    /// Counts a connection for its address, now that the address is known, and returns how many the address has; 0
    /// where that is not limited.
    pub(super) fn count_connection(&mut self, id: ClientId) -> usize {
        let Some(client) = self.get_mut(id).filter(|client| !client.remote.is_unix()) else {
            return 0;
        };
        let (ip, counted) = (client.remote.ip(), client.flags.set(Flags::COUNTED, true));
        debug_assert!(!counted);
        let Some(counts) = &mut self.by_address else {
            return 0;
        };
        let uses = counts.entry(ip).or_default();
        uses.connections += 1;
        uses.connections
    }

    /// The oldest connections that have had some time and shown no token, at most `count`.
    pub(super) fn oldest_strangers(&self, now: Time, count: usize) -> Vec<ClientId> {
        let mut strangers: Vec<_> = self
            .iter()
            .filter(|(_, client)| {
                client.is_stranger() && now.since(client.connection.since()) >= STRANGER_TIME
            })
            .map(|(id, client)| (client.connection.since(), id))
            .collect();
        if strangers.len() > count {
            strangers.select_nth_unstable(count);
            strangers.truncate(count);
        }
        strangers.into_iter().map(|(_, id)| id).collect()
    }

    /// Whether output waits for anyone.
    pub(super) fn has_queued(&self) -> bool {
        self.clients.iter().any(|(_, client)| client.queued() > 0)
    }

    /// Adds a connection whose handshake is to come. `register` is given its id before it is in; an error means that
    /// it never is.
    pub(super) fn insert<E>(
        &mut self,
        mut stream: Stream,
        remote: Remote,
        now: Time,
        register: impl FnOnce(&mut Stream, ClientId) -> Result<(), E>,
    ) -> Result<ClientId, E> {
        let entry = self.clients.vacant_entry();
        debug_assert!(entry.key() < MAX_SLOTS);
        let id = ClientId::new(entry.key(), self.next_serial);
        register(&mut stream, id)?;
        entry.insert(Client::new(stream, remote, self.next_serial, now));
        self.next_serial += 1;
        Ok(id)
    }

    /// Notes that a connection was admitted at `path`, before it is opened.
    pub(super) fn admit(&mut self, id: ClientId, path: &str) {
        if **self.last_path != *path {
            self.last_path = Arc::new(path.into());
        }
        let path = Arc::clone(&self.last_path);
        if let Some(client) = self.get_mut(id) {
            debug_assert!(!client.connection.was_open());
            client.path = Some(path);
            let ip = client.remote.ip();
            self.admitted += 1;
            self.begin_use(ip);
        }
    }

    /// From here on, notices when a connection is given out to be changed, or goes.
    pub(super) fn watch(&mut self) {
        self.unchanged = true;
    }

    /// What was known of a connection may be so no longer.
    pub(super) fn note_change(&mut self) {
        self.unchanged = false;
    }

    /// Whether every connection is as it was at [`Registry::watch`], so that what was asked then need not be asked
    /// again.
    pub(super) fn is_unchanged(&self) -> bool {
        self.unchanged
    }

    /// Takes a connection out. Whoever asks a second time gets nothing.
    pub(super) fn remove(&mut self, id: ClientId) -> Option<Client> {
        self.get(id)?;
        self.note_change();
        self.deadlines.unset(&mut self.clients, id.slot());
        let client = self.clients.remove(id.slot());
        let ip = client.remote.ip();
        if client.connection.was_open() {
            self.admitted -= 1;
            self.end_use(ip);
        }
        if client.flags.has(Flags::COUNTED) {
            self.uncount(ip, |uses| uses.connections -= 1);
        }
        Some(client)
    }

    /// Notes one client or call more of an address, where they are limited.
    pub(super) fn begin_use(&mut self, ip: IpAddr) {
        if let Some(counts) = &mut self.by_address {
            counts.entry(ip).or_default().clients += 1;
        }
    }

    /// Notes one less.
    pub(super) fn end_use(&mut self, ip: IpAddr) {
        self.uncount(ip, |uses| uses.clients -= 1);
    }

    fn uncount(&mut self, ip: IpAddr, change: impl FnOnce(&mut Uses)) {
        let counts = self.by_address.as_mut();
        if let Some(Entry::Occupied(mut entry)) = counts.map(|counts| counts.entry(ip)) {
            change(entry.get_mut());
            if entry.get().connections + entry.get().clients == 0 {
                entry.remove();
            }
        }
    }

    pub(super) fn get(&self, id: ClientId) -> Option<&Client> {
        self.clients
            .get(id.slot())
            .filter(|client| client.serial == id.serial())
    }

    pub(super) fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.note_change();
        self.clients
            .get_mut(id.slot())
            .filter(|client| client.serial == id.serial())
    }

    /// Every connection with its id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        self.clients
            .iter()
            .map(|(slot, client)| (ClientId::new(slot, client.serial), client))
    }

    /// Every connection with its id, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (ClientId, &mut Client)> {
        self.note_change();
        self.clients
            .iter_mut()
            .map(|(slot, client)| (ClientId::new(slot, client.serial), client))
    }

    /// The ids of all connections, for a walk during which they may change.
    pub(super) fn ids(&self) -> Vec<ClientId> {
        self.iter().map(|(id, _)| id).collect()
    }

    /// Sets when to look at a connection again.
    pub(super) fn set_deadline(&mut self, id: ClientId, deadline: Option<Time>) {
        if self.get(id).is_some() {
            self.deadlines.set(&mut self.clients, id.slot(), deadline);
        }
    }

    /// A connection whose deadline may have passed; it has none until one is set again.
    pub(super) fn pop_deadline(&mut self, now: Time) -> Option<ClientId> {
        let slot = self.deadlines.pop(&mut self.clients, now)?;
        Some(ClientId::new(slot, self.clients[slot].serial))
    }

    /// When a deadline may pass next.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.next()
    }
}
