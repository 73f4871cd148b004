//! One budget for the memory that clients make the server hold: messages that have not ended, unread output, messages that are kept
//! for resumable clients, input that waits, bodies of calls, and what services hold for them.
//!
//! The memory is not counted where it is stored, so no count can drift. The loop adds up what may have been added, and measures all
//! clients only if this could exceed the budget, and once in a while. If the budget is exceeded, the largest client of the principal
//! that holds most gives way.

use std::collections::HashMap;
use std::time::Duration;

use super::client::Client;
use super::core::Core;
use super::event_loop::Server;
use super::id::ClientId;
use super::scheduler::AccountId;
use super::service::Service;
use crate::protocol::Time;

/// A client gives way when less than this part of the budget is left, because one turn can add as much.
const RESERVE: usize = 16;

/// The part of the budget that is left to connections, whatever services hold.
const CONNECTIONS: usize = 4;

/// The minimum time between two measurements that nothing but time has caused, and the additional time for each client.
const INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_micros(10));

/// The maximum number of clients that end in one turn. Ending one may write to its socket.
const ENDED: usize = 64;

/// The memory that clients hold, in bytes.
#[derive(Debug)]
pub(super) struct Memory {
    /// What connections and services held when it was measured.
    held: usize,
    /// What may have been added since.
    added: usize,
    /// Measure when this much was added.
    most_added: usize,
    /// When to measure again, if anything was added.
    next: Time,
}

impl Memory {
    /// Nothing is held yet.
    pub(super) fn new(limit: Option<usize>) -> Self {
        match limit {
            Some(limit) => Self::measured(limit, 0, Time::default()),
            None => Self {
                held: 0,
                added: 0,
                most_added: usize::MAX,
                next: Time::from_millis(u64::MAX),
            },
        }
    }

    /// So much is held now.
    fn measured(limit: usize, held: usize, next: Time) -> Self {
        // A growing buffer has up to twice the capacity that it needs. Close to the limit, measuring more often would cost more
        // than what it is for.
        let left = most(limit).saturating_sub(held) / 2;
        Self {
            held,
            added: 0,
            most_added: left.max(limit / RESERVE / 4),
            next,
        }
    }

    /// Records that a client may hold so many bytes more.
    #[inline]
    pub(super) fn add(&mut self, bytes: usize) {
        self.added = self.added.saturating_add(bytes);
    }

    /// Whether the clients must be measured.
    #[inline]
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.added >= self.most_added || (now >= self.next && self.added > 0)
    }
}

/// What may be held before clients give way.
fn most(limit: usize) -> usize {
    limit - limit / RESERVE
}

/// The smallest holding of a client whose end is worth it.
fn least(limit: usize) -> usize {
    (limit / 256).clamp(256, 16 << 10)
}

/// What a client holds.
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
            let bytes = client.holds();
            total += bytes;
            if bytes >= least {
                holdings.push(Holding {
                    account: client.account,
                    client: client.id,
                    bytes,
                });
            }
        }
        (holdings, total)
    }

    /// What all connections hold, in bytes.
    pub(super) fn held_memory(&self) -> usize {
        self.registry.iter().map(Client::holds).sum()
    }

    /// Whether so little memory is left that services should begin nothing that takes more.
    pub(super) fn is_memory_short(&self) -> bool {
        let limit = self.env.config.memory;
        limit.is_some_and(|limit| self.env.memory.held > most(limit))
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
            self.with(client, |client, env| client.give_way(env, least));
            total = total.saturating_sub(bytes);
            ended += 1;
        }
        let interval =
            INTERVAL.0 + INTERVAL.1 * u32::try_from(self.registry.len()).unwrap_or(u32::MAX);
        let next = self.env.now + interval;
        self.env.memory = Memory::measured(limit, total + services, next);
        if ended == ENDED {
            // More clients must end than one turn could.
            self.env.memory.most_added = 0;
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
    fn the_largest_client_of_the_largest_principal_gives_way() {
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

    #[test]
    fn clients_are_measured_when_the_budget_may_be_exceeded_and_once_in_a_while() {
        let limit = 16 << 20;
        let (early, late) = (Time::from_millis(999), Time::from_millis(1000));
        let mut memory = Memory::measured(limit, 0, late);
        assert!(!memory.is_due(late), "nothing was added");
        memory.add(1);
        assert!(!memory.is_due(early) && memory.is_due(late));
        memory.add(limit / 2);
        assert!(memory.is_due(early));
        // Close to the limit, measuring after each message would cost more than the message.
        let mut full = Memory::measured(limit, limit, late);
        full.add(1000);
        assert!(!full.is_due(early) && full.is_due(late));
        let mut unlimited = Memory::new(None);
        unlimited.add(usize::MAX - 1);
        assert!(!unlimited.is_due(late));
    }
}
