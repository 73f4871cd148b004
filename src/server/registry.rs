//! The registry: one slab that holds every connection from `accept` until it is removed.

use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use super::client::{Client, Handshake};
use super::event_loop::wheel::Link;
use super::id::{ClientId, MAX_SLOTS};
use crate::protocol::Time;
use crate::record::RecordError;

/// The initial number of slots. The slab is large enough for a memory mapping of its own, of which the kernel backs
/// only the pages in use. Growing from a smaller size would fragment the heap.
const FIRST_SLOTS: usize = 1024;

/// The minimum age at which an unauthenticated connection can be evicted. It is long enough for a handshake.
const STRANGER_TIME: Duration = Duration::from_millis(250);

/// A slot of the slab.
#[derive(Debug)]
enum Slot {
    /// The client is in its slot.
    Here(Client),
    /// The client is checked out to be read. Its slot stays reserved.
    Out,
}

/// Every connection, from `accept` to its end.
#[derive(Debug)]
pub(super) struct Registry {
    slots: Slab<Slot>,
    /// The client that is checked out; [`Slot::Out`] if none is.
    out: Slot,
    /// The serial number of the next client. It only increases.
    next_serial: u64,
    /// The number of clients: connections whose service will see `disconnected`.
    client_count: usize,
    /// The handshake of the client that was opened last. The next client shares it if it has said the same.
    last_handshake: Arc<Handshake>,
}

impl Registry {
    pub(super) fn new() -> Self {
        Self {
            slots: Slab::with_capacity(FIRST_SLOTS),
            out: Slot::Out,
            next_serial: 1,
            client_count: 0,
            last_handshake: Arc::default(),
        }
    }

    /// A registry with the clients of another loop, each in its slot.
    pub(super) fn restore(clients: Vec<Client>, next_serial: u64) -> Result<Self, RecordError> {
        let mut registry = Self::new();
        let count = clients.len();
        let slots = clients.into_iter().map(|client| {
            registry.client_count += usize::from(client.wire.protocol.was_open());
            (client.id.slot(), Slot::Here(client))
        });
        let slots: Slab<Slot> = slots.collect();
        registry.slots = slots;
        registry.next_serial = next_serial;
        let is_known = |client: &Client| client.id.serial() < next_serial;
        if registry.slots.len() != count || !registry.iter().all(is_known) {
            return Err(RecordError::new("the ids of clients are not valid"));
        }
        Ok(registry)
    }

    /// The serial number of the next client.
    pub(super) fn next_serial(&self) -> u64 {
        self.next_serial
    }

    /// The number of connections of every kind.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The number of clients: connections that were opened as WebSocket and have not ended.
    pub(super) fn client_count(&self) -> usize {
        self.client_count
    }

    /// Counts a connection that was upgraded.
    pub(super) fn count_client(&mut self) {
        self.client_count += 1;
    }

    /// Adds the connection that `make` creates for the new id. If `make` fails, nothing is added.
    pub(super) fn insert<E>(
        &mut self,
        make: impl FnOnce(ClientId) -> Result<Client, E>,
    ) -> Result<ClientId, E> {
        let entry = self.slots.vacant_entry();
        debug_assert!(entry.key() < MAX_SLOTS);
        let id = ClientId::new(entry.key(), self.next_serial);
        entry.insert(Slot::Here(make(id)?));
        self.next_serial += 1;
        Ok(id)
    }

    /// Removes a connection. A second call returns `None`.
    pub(super) fn remove(&mut self, id: ClientId) -> Option<Client> {
        self.get(id)?;
        debug_assert!(
            matches!(self.out, Slot::Out),
            "{id} is not removed while a client is read"
        );
        let Slot::Here(client) = self.slots.remove(id.slot()) else {
            return None;
        };
        self.client_count -= usize::from(client.wire.protocol.was_open());
        Some(client)
    }

    /// Takes a client out of its slot so that it can be read. `get` and `get_mut` still find it by its id.
    pub(super) fn check_out(&mut self, id: ClientId) -> Option<&mut Client> {
        debug_assert!(
            matches!(self.out, Slot::Out),
            "one client is read at a time"
        );
        let slot = self.slots.get_mut(id.slot())?;
        match slot {
            Slot::Here(client) if client.id == id => {}
            _ => return None,
        }
        self.out = std::mem::replace(slot, Slot::Out);
        self.checked_out()
    }

    /// The client that is checked out.
    #[inline]
    pub(super) fn checked_out(&mut self) -> Option<&mut Client> {
        match &mut self.out {
            Slot::Here(client) => Some(client),
            Slot::Out => None,
        }
    }

    /// Puts the client that was checked out back into its slot.
    pub(super) fn check_in(&mut self) {
        if let Slot::Here(client) = &self.out
            && let Some(slot) = self.slots.get_mut(client.id.slot())
        {
            *slot = std::mem::replace(&mut self.out, Slot::Out);
        }
    }

    #[inline]
    pub(super) fn get(&self, id: ClientId) -> Option<&Client> {
        let client = match self.slots.get(id.slot())? {
            Slot::Here(client) => client,
            Slot::Out => self.out_ref()?,
        };
        (client.id == id).then_some(client)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        if let Slot::Here(client) = &mut self.out
            && client.id == id
        {
            return Some(client);
        }
        match self.slots.get_mut(id.slot())? {
            Slot::Here(client) if client.id == id => Some(client),
            _ => None,
        }
    }

    /// Two different connections, neither of which is checked out.
    pub(super) fn pair_mut(
        &mut self,
        one: ClientId,
        other: ClientId,
    ) -> Option<(&mut Client, &mut Client)> {
        if one.slot() == other.slot() {
            return None;
        }
        match self.slots.get2_mut(one.slot(), other.slot())? {
            (Slot::Here(first), Slot::Here(second)) if first.id == one && second.id == other => {
                Some((first, second))
            }
            _ => None,
        }
    }

    /// Every connection.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Client> {
        self.slots.iter().filter_map(|(_, slot)| match slot {
            Slot::Here(client) => Some(client),
            Slot::Out => self.out_ref(),
        })
    }

    fn out_ref(&self) -> Option<&Client> {
        match &self.out {
            Slot::Here(client) => Some(client),
            Slot::Out => None,
        }
    }

    /// Every connection, mutably.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        let mut out = match &mut self.out {
            Slot::Here(client) => Some(client),
            Slot::Out => None,
        };
        self.slots
            .iter_mut()
            .filter_map(move |(_, slot)| match slot {
                Slot::Here(client) => Some(client),
                Slot::Out => out.take(),
            })
    }

    /// The ids of all connections, for iteration while connections are added or removed.
    pub(super) fn ids(&self) -> Vec<ClientId> {
        self.iter().map(|client| client.id).collect()
    }

    /// The oldest unauthenticated connections, at most `count`, that are at least [`STRANGER_TIME`] old.
    pub(super) fn oldest_strangers(&self, now: Time, count: usize) -> Vec<ClientId> {
        let is_due = |client: &&Client| {
            client.wire.is_stranger() && now.since(client.wire.protocol.since()) >= STRANGER_TIME
        };
        let strangers = self.iter().filter(is_due);
        let mut strangers: Vec<_> = strangers
            .map(|client| (client.wire.protocol.since(), client.id))
            .collect();
        if strangers.len() > count {
            strangers.select_nth_unstable(count);
            strangers.truncate(count);
        }
        strangers.into_iter().map(|(_, id)| id).collect()
    }

    /// What a handshake has said, shared with the client that was opened last if that has said the same.
    pub(super) fn share_handshake(&mut self, handshake: Handshake) -> Arc<Handshake> {
        if *self.last_handshake != handshake {
            self.last_handshake = Arc::new(handshake);
        }
        Arc::clone(&self.last_handshake)
    }

    /// The timer link of the client in a slot. The slot must be in use.
    pub(super) fn timer_mut(&mut self, slot: usize) -> &mut Link {
        match &mut self.slots[slot] {
            Slot::Here(client) => &mut client.timer,
            Slot::Out => match &mut self.out {
                Slot::Here(client) => &mut client.timer,
                Slot::Out => unreachable!("a slot is reserved for the client that is checked out"),
            },
        }
    }

    /// The id of the client in a slot.
    pub(super) fn id_at(&self, slot: usize) -> Option<ClientId> {
        match self.slots.get(slot)? {
            Slot::Here(client) => Some(client.id),
            Slot::Out => self.out_ref().map(|client| client.id),
        }
    }
}
