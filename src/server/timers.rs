//! Deadlines of clients and timers of services, in one timer wheel with two resolutions.
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

use super::id::{ClientId, ServiceId, TimerId};
use super::registry::Registry;
use crate::protocol::Time;

/// Milliseconds of a coarse tick.
const COARSE_TICK: u64 = 64;
/// The number of coarse ticks, which is a horizon of 32.7 seconds.
const COARSE_TICKS: usize = 512;
/// The number of fine ticks, of a millisecond each.
const FINE_TICKS: usize = 64;

const NIL: u32 = u32::MAX;
const UNLINKED: u16 = u16::MAX;
/// Set in the key of a service's timer; the other keys are slots of the registry.
const SERVICE: u32 = 1 << 31;

const _: () = assert!(
    COARSE_TICKS.is_multiple_of(64)
        && FINE_TICKS.is_multiple_of(64)
        && COARSE_TICKS + FINE_TICKS < UNLINKED as usize
        && FINE_TICKS as u64 >= COARSE_TICK
);

/// A timer's position in a list of the wheel. It is packed, so that the byte behind it in a client's entry is free.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(2))]
pub(super) struct Link {
    previous: u32,
    next: u32,
    /// The number of the list, counted over both wheels.
    list: u16,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            previous: NIL,
            next: NIL,
            list: UNLINKED,
        }
    }
}

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
pub(super) enum Due {
    /// A client whose deadline may have passed. It has no deadline until one is set again.
    Client(ClientId),
    /// A timer of a service.
    Service(TimerId, ServiceId),
}

/// The deadlines of all clients and the timers of all services.
#[derive(Debug)]
pub(super) struct Timers {
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
    pub(super) fn new(now: Time) -> Self {
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
    pub(super) fn set_client(
        &mut self,
        registry: &mut Registry,
        id: ClientId,
        now: Time,
        deadline: Option<Time>,
    ) {
        self.advance(now);
        let mut links = Links {
            registry,
            services: &mut self.services,
        };
        let key = id.slot() as u32;
        self.is_next_early |= self.coarse.remove(&mut links, key);
        if let Some(deadline) = deadline {
            let tick = deadline.as_millis().div_ceil(COARSE_TICK);
            let due = self.coarse.insert(&mut links, key, tick);
            self.next = Some(self.next.map_or(due, |next| next.min(due)));
        }
    }

    /// Sets a timer of a service. It expires in the next turn at the earliest, so that a timer that is set again when
    /// it expires cannot block the loop.
    pub(super) fn set_service(
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
        let mut links = Links {
            registry,
            services: &mut self.services,
        };
        let found = if due.since(now) < Duration::from_millis(COARSE_TICK) {
            self.fine.insert(&mut links, key, due.as_millis())
        } else {
            // The coarse wheel returns it early. It then moves to the fine wheel.
            let tick = due.as_millis() / COARSE_TICK;
            self.coarse.insert(&mut links, key, tick)
        };
        self.next = Some(self.next.map_or(found, |next| next.min(found)));
    }

    /// Cancels a timer of a service. Does nothing if the timer has expired.
    pub(super) fn cancel_service(&mut self, registry: &mut Registry, id: TimerId) {
        let slot = id.slot();
        if self.services.get(slot).is_some_and(|timer| timer.id == id) {
            let mut links = Links {
                registry,
                services: &mut self.services,
            };
            let key = SERVICE | slot as u32;
            self.is_next_early |=
                self.coarse.remove(&mut links, key) || self.fine.remove(&mut links, key);
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
    pub(super) fn pop(&mut self, registry: &mut Registry, now: Time) -> Option<Due> {
        if self.next.is_none_or(|next| next > now) {
            return None;
        }
        self.pop_due(registry, now)
    }

    fn pop_due(&mut self, registry: &mut Registry, now: Time) -> Option<Due> {
        loop {
            let mut links = Links {
                registry,
                services: &mut self.services,
            };
            let coarse = self.coarse.pop(&mut links, now);
            let Some(key) = coarse.or_else(|| self.fine.pop(&mut links, now)) else {
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
    pub(super) fn next(&mut self) -> Option<Time> {
        if self.is_next_early {
            self.is_next_early = false;
            let next = [self.coarse.next(), self.fine.next()];
            self.next = next.into_iter().flatten().min();
        }
        self.next
    }
}

/// Access to the links of all entries, by key.
struct Links<'a> {
    registry: &'a mut Registry,
    services: &'a mut Slab<ServiceTimer>,
}

impl Links<'_> {
    fn get(&mut self, key: u32) -> &mut Link {
        if key & SERVICE == 0 {
            self.registry.timer_mut(key as usize)
        } else {
            &mut self.services[(key & !SERVICE) as usize].link
        }
    }
}

/// A ring of lists, one for each tick.
#[derive(Debug)]
struct Wheel<const TICKS: usize> {
    heads: Box<[u32; TICKS]>,
    /// One bit for each list that is not empty.
    occupied: Box<[u64]>,
    /// The tick whose list is being emptied. All lists before it are empty.
    tick: u64,
    /// Milliseconds of a tick.
    millis: u64,
    /// The number of the first list in [`Link::list`].
    first_list: u16,
}

impl<const TICKS: usize> Wheel<TICKS> {
    fn new(millis: u64, first_list: u16, now: Time) -> Self {
        Self {
            heads: Box::new([NIL; TICKS]),
            occupied: vec![0; TICKS / 64].into(),
            tick: now.as_millis() / millis,
            millis,
            first_list,
        }
    }

    const TICKS: u64 = TICKS as u64;

    /// Inserts an entry that is in no list. Returns the time of its tick.
    fn insert(&mut self, links: &mut Links<'_>, key: u32, tick: u64) -> Time {
        let tick = tick.clamp(self.tick + 1, self.tick + Self::TICKS - 1);
        let at = (tick % Self::TICKS) as usize;
        let next = std::mem::replace(&mut self.heads[at], key);
        if next != NIL {
            links.get(next).previous = key;
        }
        *links.get(key) = Link {
            previous: NIL,
            next,
            list: self.first_list + at as u16,
        };
        self.occupied[at / 64] |= 1 << (at % 64);
        Time::from_millis(tick * self.millis)
    }

    /// Removes an entry from its list. Returns whether the list belonged to this wheel.
    fn remove(&mut self, links: &mut Links<'_>, key: u32) -> bool {
        let link = *links.get(key);
        let at = usize::from(link.list.wrapping_sub(self.first_list));
        if at >= TICKS {
            return false;
        }
        *links.get(key) = Link::default();
        match link.previous {
            NIL => self.heads[at] = link.next,
            previous => links.get(previous).next = link.next,
        }
        if link.next != NIL {
            links.get(link.next).previous = link.previous;
        }
        if self.heads[at] == NIL {
            self.occupied[at / 64] &= !(1 << (at % 64));
        }
        true
    }

    /// Removes and returns the next key whose tick is due.
    fn pop(&mut self, links: &mut Links<'_>, now: Time) -> Option<u32> {
        let target = now.as_millis() / self.millis;
        // Every list is within one round of the wheel. After a jump over many rounds all of them are due, and one round
        // before the target is enough to find them.
        if let Some(ahead) = target.checked_sub(self.tick + Self::TICKS) {
            self.tick += ahead / Self::TICKS * Self::TICKS;
        }
        match self.next_tick() {
            Some(tick) if tick <= target => {
                self.tick = tick;
                let key = self.heads[(tick % Self::TICKS) as usize];
                self.remove(links, key);
                Some(key)
            }
            _ => {
                self.tick = self.tick.max(target);
                None
            }
        }
    }

    /// The next tick with a list that is not empty.
    fn next_tick(&self) -> Option<u64> {
        let first = (self.tick % Self::TICKS) as usize;
        let words = self.occupied.len();
        for step in 0..=words {
            let word = (first / 64 + step) % words;
            let mut bits = self.occupied[word];
            if step == 0 {
                bits &= u64::MAX << (first % 64);
            } else if step == words {
                bits &= !(u64::MAX << (first % 64));
            }
            if bits != 0 {
                let at = word * 64 + bits.trailing_zeros() as usize;
                let ahead = (at + TICKS - first) % TICKS;
                return Some(self.tick + ahead as u64);
            }
        }
        None
    }

    /// When `pop` may have something next.
    fn next(&self) -> Option<Time> {
        self.next_tick()
            .map(|tick| Time::from_millis(tick * self.millis))
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::server::client::{Client, Remote};
    use crate::server::memory_stream::MemoryStream;
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
