//! Frees memory when the budget of [`memory`](super::memory) is nearly used up. Whoever holds most, of connections and in services
//! together, gives it back: its services shrink or end what they hold for it, or its largest client is ended.

use std::collections::HashMap;
use std::time::Duration;

use super::memory::{CONNECTIONS, Memory, RESERVE, most};
use crate::server::core::Core;
use crate::server::event_loop::Server;
use crate::server::event_loop::scheduler::{AccountId, Payer};
use crate::server::id::ClientId;
use crate::server::service::Service;

/// The minimum time between two measurements that nothing but time has caused, and the additional time for each client.
const INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_micros(10));

/// The maximum number of steps in one turn. Ending a client may write to its socket.
const STEPS: usize = 64;

/// A service frees at most this much more than necessary, so that it is not asked for every few bytes.
const AHEAD: usize = 4 << 20;

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

/// What is held for one payer and can be freed.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    clients: usize,
    services: usize,
}

impl Share {
    fn total(self) -> usize {
        self.clients + self.services
    }
}

/// One measurement. Small connections are not in the shares.
#[derive(Debug, Default)]
struct Measured {
    shares: HashMap<Payer, Share>,
    /// The clients that may be ended.
    holdings: Vec<Holding>,
    clients: usize,
    services: usize,
}

impl Measured {
    fn total(&self) -> usize {
        self.clients + self.services
    }

    /// The payer of the largest share, unless nothing of it can be freed.
    fn largest(&self) -> Option<(Payer, Share)> {
        let largest = self.shares.iter().max_by_key(|(_, share)| share.total());
        let (payer, share) = largest.filter(|(_, share)| share.total() > 0)?;
        Some((payer.clone(), *share))
    }

    /// Takes the largest client of the accounts for which `is_of` is true.
    fn take_client(&mut self, is_of: impl Fn(AccountId) -> bool) -> Option<Holding> {
        let holdings = self.holdings.iter().enumerate();
        let of_payer = holdings.filter(|(_, holding)| is_of(holding.account));
        let (at, _) = of_payer.max_by_key(|(_, holding)| holding.bytes)?;
        Some(self.holdings.swap_remove(at))
    }
}

impl Core {
    /// Measures what all clients hold, and those that hold at least `least` bytes.
    fn measure(&self, least: usize) -> Measured {
        let mut measured = Measured::default();
        let mut accounts: HashMap<AccountId, usize> = HashMap::new();
        for client in self.registry.iter() {
            let bytes = client.wire.holds();
            measured.clients += bytes;
            if bytes >= least {
                let account = client.wire.account;
                *accounts.entry(account).or_default() += bytes;
                measured.holdings.push(Holding {
                    account,
                    client: client.id,
                    bytes,
                });
            }
        }
        for (account, bytes) in accounts {
            let payer = self.env.scheduler.payer(account).clone();
            measured.shares.entry(payer).or_default().clients += bytes;
        }
        measured
    }

    /// What all connections hold, in bytes.
    pub(crate) fn held_memory(&self) -> usize {
        self.registry.iter().map(|client| client.wire.holds()).sum()
    }

    /// Whether a client may not connect, because so little memory is left, and most of it is held for its principal.
    pub(super) fn is_out_of_memory(&self, id: ClientId) -> bool {
        let Some(limit) = self.env.config.memory else {
            return false;
        };
        let client = self.registry.get(id);
        self.env.memory.is_short(limit)
            && client.is_some_and(|client| {
                let payer = self.env.scheduler.payer(client.wire.account);
                self.env.memory.is_largest(payer)
            })
    }

    /// Ends the largest client of a payer. Returns what was held for it.
    fn end_largest(&mut self, measured: &mut Measured, payer: &Payer, least: usize) -> usize {
        let scheduler = &self.env.scheduler;
        let holding = measured.take_client(|account| scheduler.is_of(account, payer));
        let Some(Holding { client, bytes, .. }) = holding else {
            return 0;
        };
        log::warn!("ending {client}, for which {bytes} bytes are held: too little memory is left");
        self.with(client, |client, env| client.free_memory(env, least));
        bytes
    }
}

impl<S: Service> Server<S> {
    /// Keeps what clients and services hold within the budget.
    #[cold]
    pub(crate) fn keep_within_memory(&mut self) {
        if let Some(limit) = self.ctx.core.env.config.memory {
            self.act(|server| server.relieve_memory(limit));
        }
    }

    fn measure(&self, least: usize) -> Measured {
        let mut measured = self.ctx.core.measure(least);
        if let Some(report) = self.service.report() {
            report.held(&mut |principal, bytes| {
                let payer = Payer::Principal(principal.clone());
                measured.shares.entry(payer).or_default().services += bytes;
                measured.services += bytes;
            });
        }
        measured
    }

    /// Measures what is held. While it is too much, frees memory of whoever holds most.
    fn relieve_memory(&mut self, limit: usize) {
        let (most, least) = (most(limit), least(limit));
        let mut measured = self.measure(least);
        if measured.total() > most {
            let core = &mut self.ctx.core;
            for client in core.registry.iter_mut() {
                client.release_confirmed(&mut core.env);
            }
            measured = self.measure(least);
        }
        let mut steps = 0;
        while measured.total() > most
            && steps < STEPS
            && let Some((payer, share)) = measured.largest()
        {
            let wanted = measured.total() - most;
            self.relieve(&mut measured, (&payer, share), wanted, limit);
            steps += 1;
        }
        let core = &mut self.ctx.core;
        let interval =
            INTERVAL.0 + INTERVAL.1 * u32::try_from(core.registry.len()).unwrap_or(u32::MAX);
        let next = core.env.now + interval;
        let (total, services) = (measured.total(), measured.services);
        let shares = measured.shares.into_iter();
        let shares = shares.map(|(payer, share)| (payer, share.total()));
        core.env.memory = Memory::measured(limit, total, services, shares.collect(), next);
        if steps == STEPS {
            // More has to be freed than one turn could.
            core.env.memory.measure_again();
        }
    }

    /// Frees memory of one payer: of its services, or its largest client.
    fn relieve(
        &mut self,
        measured: &mut Measured,
        (payer, mut share): (&Payer, Share),
        wanted: usize,
        limit: usize,
    ) {
        match payer {
            Payer::Principal(principal) if share.services >= share.clients => {
                let wanted = wanted + AHEAD.min(limit / RESERVE);
                let wanted = wanted.min(share.services);
                let freed = self.service.free_memory(&mut self.ctx, principal, wanted);
                measured.services = measured.services.saturating_sub(freed);
                // A service that frees nothing is not asked again.
                share.services = match freed {
                    0 => 0,
                    _ => share.services.saturating_sub(freed),
                };
            }
            // What services do not free leaves a part of the budget to connections.
            _ if measured.clients <= limit / CONNECTIONS => share.clients = 0,
            _ => {
                let core = &mut self.ctx.core;
                let freed = core.end_largest(measured, payer, least(limit));
                measured.clients = measured.clients.saturating_sub(freed);
                share.clients = match freed {
                    0 => 0,
                    _ => share.clients.saturating_sub(freed),
                };
            }
        }
        measured.shares.insert(payer.clone(), share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::access::Principal;

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
        let address = |last| Payer::strangers([192, 0, 2, last].into());
        let (many, one) = (address(1), address(2));
        let [of_many, of_one] = [&many, &one].map(|payer| scheduler.acquire(payer.clone()));
        let largest = |smaller: u64| {
            let mut measured = Measured::default();
            for number in 1..=smaller {
                let bytes = 1000 + number as usize;
                measured.holdings.push(holding(of_many, number, bytes));
                measured.shares.entry(many.clone()).or_default().clients += bytes;
            }
            measured.holdings.push(holding(of_one, 100, 15_000));
            measured.shares.entry(one.clone()).or_default().clients += 15_000;
            let (payer, _) = measured.largest().expect("a payer");
            let taken = measured.take_client(|account| scheduler.is_of(account, &payer));
            taken.map(|holding| holding.client)
        };
        assert_eq!(largest(17), Some(ClientId::new(0, 17)));
        assert_eq!(largest(10), Some(ClientId::new(0, 100)));
        assert!(Measured::default().largest().is_none());
    }

    #[test]
    fn what_services_hold_for_a_principal_counts_with_its_connections() {
        let payer = |name: &str| Payer::Principal(Principal::Named(name.into()));
        let mut measured = Measured::default();
        measured.shares.entry(payer("ada")).or_default().clients = 40;
        measured.shares.entry(payer("bob")).or_default().clients = 30;
        measured.shares.entry(payer("bob")).or_default().services = 20;
        assert_eq!(measured.largest().expect("a payer").0, payer("bob"));
    }
}
