//! The limits of what clients take. [`Room`] says whether there is a place for another client or call, within the limits of the
//! server, of an address and of a principal. While clients hold more memory than the budget of [`memory`](super::memory), the
//! largest client of the principal that holds most is ended. A new client may take the place of a detached one (`find_room`, `evict`).
//! The event loop ends unauthenticated connections when no more can be accepted.

use std::collections::HashMap;
use std::time::Duration;

use super::memory::{Memory, most};
use crate::log_event::log_event;
use crate::protocol::{Cause, CloseCode, CloseReason, Rejection};
use crate::server::address::Remote;
use crate::server::client::Client;
use crate::server::core::Core;
use crate::server::event_loop::Server;
use crate::server::event_loop::scheduler::AccountId;
use crate::server::id::ClientId;
use crate::server::service::{Report, Service};

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

/// 503 because services hold too much memory.
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
        if self.is_memory_short() {
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

/// The part of the budget that is left to connections, whatever services hold.
const CONNECTIONS: usize = 4;

/// The minimum time between two measurements that nothing but time has caused, and the additional time for each client.
const INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_micros(10));

/// The maximum number of clients that end in one turn. Ending one may write to its socket.
const ENDED: usize = 64;

/// The minimum holding in bytes of a client that may be ended. Ending a smaller one would free too little.
fn least(limit: usize) -> usize {
    (limit / 256).clamp(256, 16 << 10)
}

/// The memory that a client holds.
#[derive(Clone, Copy, Debug)]
struct Holding {
    account: AccountId,
    client: ClientId,
    bytes: usize,
}

/// The largest holding of the account whose holdings are largest together.
fn largest(holdings: &[Holding]) -> Option<usize> {
    let mut totals: HashMap<AccountId, usize> = HashMap::new();
    for holding in holdings {
        *totals.entry(holding.account).or_default() += holding.bytes;
    }
    let (account, _) = totals.into_iter().max_by_key(|(_, total)| *total)?;
    let of_account = holdings.iter().enumerate();
    let of_account = of_account.filter(|(_, holding)| holding.account == account);
    of_account
        .max_by_key(|(_, holding)| holding.bytes)
        .map(|(at, _)| at)
}

impl Core {
    /// The clients that hold at least `least` bytes, and what all clients hold, in bytes.
    fn measure(&self, least: usize) -> (Vec<Holding>, usize) {
        let mut total = 0;
        let mut holdings = Vec::new();
        for client in self.registry.iter() {
            let bytes = client.wire.holds();
            total += bytes;
            if bytes >= least {
                holdings.push(Holding {
                    account: client.wire.account,
                    client: client.id,
                    bytes,
                });
            }
        }
        (holdings, total)
    }

    /// What all connections hold, in bytes.
    pub(crate) fn held_memory(&self) -> usize {
        self.registry.iter().map(|client| client.wire.holds()).sum()
    }

    /// Whether so little memory is left that services should begin nothing that takes more.
    pub(crate) fn is_memory_short(&self) -> bool {
        let limit = self.env.config.memory;
        limit.is_some_and(|limit| self.env.memory.is_short(limit))
    }

    /// Measures what clients hold. While it is too much, ends the largest client of the largest account. `services` is what services
    /// hold.
    fn relieve_memory(&mut self, limit: usize, services: usize) {
        let most = most(limit)
            .saturating_sub(services)
            .max(limit / CONNECTIONS);
        let least = least(limit);
        let (mut holdings, mut total) = self.measure(least);
        if total > most {
            for client in self.registry.iter_mut() {
                client.release_confirmed(&mut self.env);
            }
            (holdings, total) = self.measure(least);
        }
        let mut ended = 0;
        while total > most
            && ended < ENDED
            && let Some(at) = largest(&holdings)
        {
            let Holding { client, bytes, .. } = holdings.swap_remove(at);
            log::warn!(
                "ending {client}, for which {bytes} bytes are held: too little memory is left"
            );
            self.with(client, |client, env| client.free_memory(env, least));
            total = total.saturating_sub(bytes);
            ended += 1;
        }
        let interval =
            INTERVAL.0 + INTERVAL.1 * u32::try_from(self.registry.len()).unwrap_or(u32::MAX);
        let next = self.env.now + interval;
        self.env.memory = Memory::measured(limit, total + services, next);
        if ended == ENDED {
            // More clients must end than one turn could.
            self.env.memory.measure_again();
        }
    }
}

impl<S: Service> Server<S> {
    /// Keeps what clients hold within the budget.
    #[cold]
    pub(crate) fn keep_within_memory(&mut self) {
        let services = self.service.report().map_or(0, Report::held);
        self.act(|server| {
            if let Some(limit) = server.ctx.core.env.config.memory {
                server.ctx.core.relieve_memory(limit, services);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(account: AccountId, number: u64, bytes: usize) -> Holding {
        Holding {
            account,
            client: ClientId::new(0, number),
            bytes,
        }
    }

    #[test]
    fn the_largest_client_of_the_largest_principal_is_ended() {
        // The bug: 17 unread echoes of one client ended all detached clients of everybody, which kept 20 bytes each.
        let mut scheduler = crate::server::event_loop::scheduler::Scheduler::new();
        let mut account = |last| {
            scheduler.acquire(crate::server::event_loop::scheduler::Payer::strangers(
                [192, 0, 2, last].into(),
            ))
        };
        let (many, one) = (account(1), account(2));
        let mut holdings: Vec<_> = (1..=17)
            .map(|number| holding(many, number, 1000 + number as usize))
            .collect();
        holdings.push(holding(one, 100, 15_000));
        assert_eq!(largest(&holdings), Some(16));
        holdings.truncate(10);
        holdings.push(holding(one, 100, 15_000));
        assert_eq!(largest(&holdings), Some(10));
        assert_eq!(largest(&[]), None);
    }
}
