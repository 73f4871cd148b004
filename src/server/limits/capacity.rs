//! The limits of what clients take. [`Room`] says whether there is a place for another client or call, within the limits of the
//! server, of an address and of a principal. A new client may take the place of a detached one (`find_room`, `evict`). The event loop
//! ends unauthenticated connections when no more can be accepted.

use crate::log_event::log_event;
use crate::protocol::{Cause, CloseCode, CloseReason, Rejection};
use crate::server::address::Remote;
use crate::server::client::Client;
use crate::server::core::Core;
use crate::server::id::ClientId;

/// Which limits keep a client or a call from being accepted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    /// There are as many clients as allowed.
    is_full: bool,
    /// The address has as many clients as allowed.
    address_is_full: bool,
    /// The principal has as many clients as allowed.
    principal_is_full: bool,
}

impl Room {
    /// The rejection, if a limit is reached.
    pub(crate) fn rejection(self) -> Option<Rejection> {
        if self.is_full {
            let rejection = Rejection::unavailable("too many clients");
            Some(rejection.because("max_clients"))
        } else if self.address_is_full {
            Some(too_many_of_address())
        } else if self.principal_is_full {
            let rejection = Rejection::unavailable("too many clients of this principal");
            Some(rejection.because("max_clients_per_principal"))
        } else {
            None
        }
    }
}

/// 503 for an address that has as many clients as allowed.
fn too_many_of_address() -> Rejection {
    Rejection::unavailable("too many clients from this address").because("max_clients_per_address")
}

/// 503 because too little memory is left, and most of it is held for the client's principal.
pub(crate) fn too_little_memory() -> Rejection {
    Rejection::unavailable("too little memory").because("memory")
}

impl Core {
    /// Ends a detached client, because a new client needs its place.
    pub(crate) fn evict(&mut self, id: ClientId) {
        log_event!(Info, client = id, "evicted for another client");
        self.with(id, |client, env| {
            let reason = "evicted for another client";
            client.end(
                env,
                CloseReason::new(Cause::NotResumed, CloseCode::ABNORMAL, reason),
            );
        });
    }

    /// Counts a connection whose address has just become known, and rejects it if its address has too many. An address
    /// may have twice as many connections as clients.
    pub(crate) fn count_connection(&mut self, id: ClientId) {
        let Some(most) = self.env.config.max_clients_per_address else {
            return;
        };
        // If slots are scarce, the connection ends without waiting for the peer.
        let is_scarce = self.registry.len() > self.env.config.max_connections() / 2;
        self.with(id, |client, env| {
            if client.wire.count_for_address(env) > most.saturating_mul(2) {
                client.reject(env, &too_many_of_address());
                if is_scarce {
                    client.request_removal(env);
                }
            }
        });
    }

    /// Whether there is room for another client or call of this connection's peer.
    pub(crate) fn room(&self, id: ClientId) -> Room {
        let Some(client) = self.registry.get(id) else {
            return Room::default();
        };
        let config = &self.env.config;
        let in_use = self.registry.client_count() + self.env.calls;
        let each = config.max_clients_per_principal;
        Room {
            is_full: in_use >= config.max_clients,
            address_is_full: self.address_is_full(client.wire.remote),
            // While all clients together are fewer, they need not be counted.
            principal_is_full: each
                .is_some_and(|most| in_use >= most && self.principal_has(client, most)),
        }
    }

    /// Whether an address has as many clients as allowed, including calls that wait for answers. A unix socket has no
    /// address.
    fn address_is_full(&self, remote: Remote) -> bool {
        let most = self.env.config.max_clients_per_address;
        !remote.is_unix()
            && most.is_some_and(|most| self.env.addresses.clients(remote.ip()) >= most)
    }

    /// Whether the principal of this client is a person who has `most` clients, including calls that wait for answers.
    fn principal_has(&self, client: &Client, most: usize) -> bool {
        let is_used = |other: &&Client| {
            other.wire.account == client.wire.account
                && (other.wire.is_admitted() || other.wire.protocol.is_unanswered())
        };
        self.env.scheduler.is_person(client.wire.account)
            && self.registry.iter().filter(is_used).take(most).count() == most
    }

    /// Finds room for a new client. Returns the detached client that it replaces, if it needs the place of one: one to which the
    /// service owes nothing, preferably of the same address, and the one that has been idle for longest.
    ///
    /// # Errors
    ///
    /// The rejection, if there is no room.
    pub(crate) fn find_room(&self, id: ClientId) -> Result<Option<ClientId>, Rejection> {
        if self.is_out_of_memory(id) {
            return Err(too_little_memory());
        }
        let room = self.room(id);
        let Some(rejection) = room.rejection() else {
            return Ok(None);
        };
        let Some(newcomer) = self.registry.get(id) else {
            return Err(rejection);
        };
        let clients = self.registry.iter();
        let clients =
            clients.filter(|client| client.wire.may_come_back() && !client.wire.is_ours());
        let fitting = clients.filter(|client| {
            (!room.address_is_full || client.wire.remote.ip() == newcomer.wire.remote.ip())
                && (!room.principal_is_full || client.wire.account == newcomer.wire.account)
        });
        let idle = fitting.filter_map(|client| {
            let is_other = client.wire.remote.ip() != newcomer.wire.remote.ip();
            Some((
                is_other,
                client.wire.protocol.detached()?.idle_since?,
                client.id,
            ))
        });
        let leaver = idle.min().map(|(.., id)| id);
        leaver.map(Some).ok_or(rejection)
    }
}
