//! Keeps the memory that clients hold within the budget of [`memory`](super::memory). While they hold too much, ends the largest
//! client of the principal that holds most.

use std::collections::HashMap;
use std::time::Duration;

use super::core::Core;
use super::event_loop::Server;
use super::id::ClientId;
use super::memory::{Memory, most};
use super::scheduler::AccountId;
use super::service::Service;

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
    pub(super) fn held_memory(&self) -> usize {
        self.registry.iter().map(|client| client.wire.holds()).sum()
    }

    /// Whether so little memory is left that services should begin nothing that takes more.
    pub(super) fn is_memory_short(&self) -> bool {
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
    pub(super) fn keep_within_memory(&mut self) {
        let services = self.service.held();
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
        let mut scheduler = super::super::scheduler::Scheduler::new();
        let mut account = |last| {
            scheduler.acquire(super::super::scheduler::Payer::strangers(
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
