//! Deadlines of clients and timers of services, in two timer wheels with different resolutions.
//!
//! ```text
//! coarse: [ list ] [ list ] ... [ list ]      512 ticks of 64 ms: deadlines of clients, distant timers
//! fine:   [ list ] [ list ] ... [ list ]      64 ticks of 1 ms: near timers
//!                     |
//!                     +-> timer -> timer      each element of a list links to the next
//! ```
//!
//! Setting and cancelling take constant time. A client's link is part of its entry in the registry, so no second table
//! can disagree with the registry. Deadlines of clients are rounded up to coarse ticks, so that many clients share one
//! turn of the loop. A deadline beyond the horizon goes into the last list and is set again when that list expires.

use std::time::Duration;

use slab::Slab;

use super::wheel::{Link, Links, MAX_LISTS, Wheel};
use crate::protocol::Time;
use crate::server::id::{ClientId, ServiceId, TimerId};
use crate::server::registry::Registry;

/// Milliseconds of a coarse tick.
const COARSE_TICK: u64 = 64;
/// The number of coarse ticks, which is a horizon of 32.7 seconds.
const COARSE_TICKS: usize = 512;
/// The number of fine ticks, of a millisecond each.
const FINE_TICKS: usize = 64;

/// Set in the key of a service's timer; the other keys are slots of the registry.
const SERVICE: u32 = 1 << 31;

const _: () = assert!(
    COARSE_TICKS.is_multiple_of(64)
        && FINE_TICKS.is_multiple_of(64)
        && COARSE_TICKS + FINE_TICKS <= MAX_LISTS
        && FINE_TICKS as u64 >= COARSE_TICK
);

/// A timer of a service.
#[derive(Debug)]
struct ServiceTimer {
    link: Link,
    id: TimerId,
    due: Time,
    service_id: ServiceId,
}

/// A deadline or timer that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// A client whose deadline may have passed. It has no deadline until one is set again.
    Client(ClientId),
    /// A timer of a service.
    Service(TimerId, ServiceId),
}

/// The deadlines of all clients and the timers of all services.
#[derive(Debug)]
pub(crate) struct Timers {
    coarse: Wheel<COARSE_TICKS>,
    fine: Wheel<FINE_TICKS>,
    /// The time of the next entry, or an earlier time.
    next: Option<Time>,
    /// Whether `next` may be too early, because an entry was removed.
    is_next_early: bool,
    services: Slab<ServiceTimer>,
    last_serial: u64,
}

impl Timers {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            coarse: Wheel::new(COARSE_TICK, 0, now),
            fine: Wheel::new(1, COARSE_TICKS as u16, now),
            next: None,
            is_next_early: false,
            services: Slab::new(),
            last_serial: 0,
        }
    }

    /// Sets, replaces or removes the deadline of a client, which must exist. A deadline in the past expires at the next
    /// tick.
    pub(crate) fn set_client(
        &mut self,
        registry: &mut Registry,
        id: ClientId,
        now: Time,
        deadline: Option<Time>,
    ) {
        self.advance(now);
        let mut entries = Entries {
            registry,
            services: &mut self.services,
        };
        let key = id.slot() as u32;
        self.is_next_early |= self.coarse.remove(&mut entries, key);
        if let Some(deadline) = deadline {
            let tick = deadline.as_millis().div_ceil(COARSE_TICK);
            let due = self.coarse.insert(&mut entries, key, tick);
            self.next = Some(self.next.map_or(due, |next| next.min(due)));
        }
    }

    /// Sets a timer of a service. It expires in the next turn at the earliest, so that a timer that is set again when
    /// it expires cannot block the loop.
    pub(crate) fn set_service(
        &mut self,
        registry: &mut Registry,
        service_id: ServiceId,
        now: Time,
        after: Duration,
    ) -> TimerId {
        self.advance(now);
        self.last_serial += 1;
        let due = now + after.max(Duration::from_millis(1));
        let entry = self.services.vacant_entry();
        let (slot, id) = (entry.key(), TimerId::new(entry.key(), self.last_serial));
        entry.insert(ServiceTimer {
            link: Link::default(),
            id,
            due,
            service_id,
        });
        self.insert_service(registry, slot, now);
        id
    }

    fn insert_service(&mut self, registry: &mut Registry, slot: usize, now: Time) {
        let due = self.services[slot].due;
        let key = SERVICE | slot as u32;
        let mut entries = Entries {
            registry,
            services: &mut self.services,
        };
        let found = if due.since(now) < Duration::from_millis(COARSE_TICK) {
            self.fine.insert(&mut entries, key, due.as_millis())
        } else {
            // The coarse wheel returns it early. It then moves to the fine wheel.
            let tick = due.as_millis() / COARSE_TICK;
            self.coarse.insert(&mut entries, key, tick)
        };
        self.next = Some(self.next.map_or(found, |next| next.min(found)));
    }

    /// Cancels a timer of a service. Does nothing if the timer has expired.
    pub(crate) fn cancel_service(&mut self, registry: &mut Registry, id: TimerId) {
        let slot = id.slot();
        if self.services.get(slot).is_some_and(|timer| timer.id == id) {
            let mut entries = Entries {
                registry,
                services: &mut self.services,
            };
            let key = SERVICE | slot as u32;
            self.is_next_early |=
                self.coarse.remove(&mut entries, key) || self.fine.remove(&mut entries, key);
            self.services.remove(slot);
        }
    }

    /// Moves both wheels to the current tick if nothing is due.
    fn advance(&mut self, now: Time) {
        if self.next.is_none_or(|next| next > now) {
            self.coarse.tick = self.coarse.tick.max(now.as_millis() / COARSE_TICK);
            self.fine.tick = self.fine.tick.max(now.as_millis());
        }
    }

    /// Removes and returns the next entry that is due.
    #[inline]
    pub(crate) fn pop(&mut self, registry: &mut Registry, now: Time) -> Option<Due> {
        if self.next.is_none_or(|next| next > now) {
            return None;
        }
        self.pop_due(registry, now)
    }

    fn pop_due(&mut self, registry: &mut Registry, now: Time) -> Option<Due> {
        loop {
            let mut entries = Entries {
                registry,
                services: &mut self.services,
            };
            let coarse = self.coarse.pop(&mut entries, now);
            let Some(key) = coarse.or_else(|| self.fine.pop(&mut entries, now)) else {
                self.is_next_early = true;
                self.next();
                return None;
            };
            if key & SERVICE == 0 {
                return registry.id_at(key as usize).map(Due::Client);
            }
            let slot = (key & !SERVICE) as usize;
            if self.services[slot].due > now {
                self.insert_service(registry, slot, now);
                continue;
            }
            let timer = self.services.remove(slot);
            return Some(Due::Service(timer.id, timer.service_id));
        }
    }

    /// When `pop` may have something next.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Time> {
        if self.is_next_early {
            self.is_next_early = false;
            let next = [self.coarse.next(), self.fine.next()];
            self.next = next.into_iter().flatten().min();
        }
        self.next
    }
}

/// The clients and the timers of services.
struct Entries<'a> {
    registry: &'a mut Registry,
    services: &'a mut Slab<ServiceTimer>,
}

impl Links for Entries<'_> {
    fn link(&mut self, key: u32) -> &mut Link {
        if key & SERVICE == 0 {
            self.registry.timer_mut(key as usize)
        } else {
            &mut self.services[(key & !SERVICE) as usize].link
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::server::address::Remote;
    use crate::server::client::Client;
    use crate::server::simulation::memory_stream::MemoryStream;
    use crate::server::stream::Stream;

    fn clients(count: usize) -> (Registry, Vec<ClientId>) {
        let mut registry = Registry::new();
        let remote = Remote::from(SocketAddr::from(([127, 0, 0, 1], 1)));
        let ids = (0..count).map(|_| {
            let inserted = registry.insert(|id| {
                let stream = Stream::Memory(MemoryStream::default());
                Ok::<_, ()>(Client::new(id, stream, remote, Time::default()))
            });
            inserted.expect("inserted")
        });
        let ids = ids.collect();
        (registry, ids)
    }

    fn at(millis: u64) -> Option<Time> {
        Some(Time::from_millis(millis))
    }

    fn pop_all(timers: &mut Timers, registry: &mut Registry, now: u64) -> Vec<usize> {
        let mut slots: Vec<_> = std::iter::from_fn(|| timers.pop(registry, Time::from_millis(now)))
            .map(|due| match due {
                Due::Client(id) => id.slot(),
                Due::Service(id, _) => 1_000_000 + id.slot(),
            })
            .collect();
        slots.sort_unstable();
        slots
    }

    #[test]
    fn every_deadline_passes_once_never_early_and_at_most_two_ticks_late() {
        let (mut registry, ids) = clients(1000);
        let now = Time::from_millis(7_777);
        let mut timers = Timers::new(now);
        let deadline = |slot: usize| 7_777 + (slot as u64 * 7919) % 30_000;
        for id in ids {
            timers.set_client(&mut registry, id, now, at(deadline(id.slot())));
        }
        let mut passed = vec![0; 1000];
        for now in (7_777..40_000).step_by(13) {
            for slot in pop_all(&mut timers, &mut registry, now) {
                passed[slot] += 1;
                assert!(now >= deadline(slot), "not early");
                assert!(now <= deadline(slot) + 2 * COARSE_TICK + 13, "not late");
            }
        }
        assert!(passed.iter().all(|&times| times == 1));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn a_new_deadline_replaces_the_old_and_none_removes_it() {
        let (mut registry, ids) = clients(3);
        let now = Time::default();
        let mut timers = Timers::new(now);
        for id in &ids {
            timers.set_client(&mut registry, *id, now, at(100));
        }
        timers.set_client(&mut registry, ids[1], now, at(1000));
        timers.set_client(&mut registry, ids[2], now, None);
        assert_eq!(pop_all(&mut timers, &mut registry, 500), [0]);
        assert_eq!(timers.next(), at(1024));
        assert_eq!(pop_all(&mut timers, &mut registry, 1100), [1]);
    }

    #[test]
    fn after_a_jump_of_days_every_deadline_passes() {
        let (mut registry, ids) = clients(2);
        let now = Time::default();
        let mut timers = Timers::new(now);
        timers.set_client(&mut registry, ids[0], now, at(100));
        timers.set_client(&mut registry, ids[1], now, at(90_000));
        assert_eq!(pop_all(&mut timers, &mut registry, 1 << 50), [0, 1]);
        let late = Time::from_millis(1 << 50);
        timers.set_client(&mut registry, ids[0], late, at(1));
        let none: [usize; 0] = [];
        let now = 1 << 50;
        assert_eq!(
            pop_all(&mut timers, &mut registry, now),
            none,
            "a past deadline waits a tick"
        );
        assert_eq!(
            pop_all(&mut timers, &mut registry, now + 2 * COARSE_TICK),
            [0]
        );
    }

    #[test]
    fn timers_of_services_expire_on_time_even_beyond_the_horizon_and_never_after_they_are_cancelled()
     {
        let (mut registry, ids) = clients(1);
        let now = Time::default();
        let mut timers = Timers::new(now);
        let mut set = |registry: &mut Registry, after| {
            let after = Duration::from_millis(after);
            timers.set_service(registry, ServiceId::ALL, Time::default(), after)
        };
        let (soon, _far) = (set(&mut registry, 50), set(&mut registry, 100_000));
        let cancelled = set(&mut registry, 60);
        timers.set_client(&mut registry, ids[0], now, at(50));
        timers.cancel_service(&mut registry, cancelled);
        timers.cancel_service(&mut registry, cancelled);
        assert_eq!(pop_all(&mut timers, &mut registry, 49), [] as [usize; 0]);
        let far = 1_000_001;
        assert_eq!(pop_all(&mut timers, &mut registry, 50), [1_000_000]);
        assert_eq!(pop_all(&mut timers, &mut registry, 64), [0]);
        timers.cancel_service(&mut registry, soon);
        for now in (64..100_000).step_by(40) {
            assert_eq!(
                pop_all(&mut timers, &mut registry, now),
                [] as [usize; 0],
                "{now}"
            );
        }
        assert_eq!(pop_all(&mut timers, &mut registry, 100_000), [far]);
        assert_eq!(timers.next(), None);
    }
}
