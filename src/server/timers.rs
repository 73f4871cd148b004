//! Deadlines of clients and timers of services, in one timer wheel.
//!
//! ```text
//! wheel: [ list ] [ list ] [ list ] ...       one list for each tick; each element links to the next
//!                    |
//!                    +-> client in its slot -> service timer -> client in its slot
//! ```
//!
//! Setting and cancelling take constant time. A client's links lie in its own entry of the registry, so there is no
//! second table that could disagree with it. Deadlines are rounded up to ticks; those of clients to [`SHARED_TICKS`], so
//! that many clients share one turn of the loop. A deadline beyond the wheel's horizon is put at the horizon, and put back
//! when it is found there early.

use std::time::Duration;

use slab::Slab;

use super::id::{ClientId, ServiceId, TimerId};
use super::registry::Registry;
use crate::protocol::Time;

/// Milliseconds of a tick.
const TICK: u64 = 8;
/// Ticks of the wheel: a horizon of 32.7 seconds.
const TICKS: u64 = 4096;
/// Clients' deadlines are rounded up to a multiple of this many ticks: 64 ms.
const SHARED_TICKS: u64 = 8;

const NIL: u32 = u32::MAX;
const UNLINKED: u16 = u16::MAX;
/// Set in the key of a service's timer; the other keys are slots of the registry.
const SERVICE: u32 = 1 << 31;

const _: () = assert!(TICKS == 64 * 64 && TICKS < UNLINKED as u64);

/// A place in a list of the wheel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    previous: u32,
    next: u32,
    tick: u16,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            previous: NIL,
            next: NIL,
            tick: UNLINKED,
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

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// A client whose deadline may have passed. It has none until one is set again.
    Client(ClientId),
    /// A timer of a service.
    Service(TimerId, ServiceId),
}

/// Everything that waits for a time.
#[derive(Debug)]
pub(super) struct Timers {
    wheel: Wheel,
    services: Slab<ServiceTimer>,
    last_serial: u64,
}

impl Timers {
    pub(super) fn new(now: Time) -> Self {
        Self {
            wheel: Wheel::new(now),
            services: Slab::new(),
            last_serial: 0,
        }
    }

    /// Sets the deadline of a client that exists, in place of an earlier one. A deadline in the past passes at the next
    /// tick.
    pub(super) fn set_client(
        &mut self,
        registry: &mut Registry,
        id: ClientId,
        deadline: Option<Time>,
    ) {
        let mut links = Links {
            registry,
            services: &mut self.services,
        };
        let key = id.slot() as u32;
        self.wheel.remove(&mut links, key);
        if let Some(deadline) = deadline {
            let tick = deadline.as_millis().div_ceil(TICK * SHARED_TICKS) * SHARED_TICKS;
            self.wheel.insert(&mut links, key, tick);
        }
    }

    /// Sets a timer of a service. It passes in a later turn at the earliest, so that a timer that sets itself again
    /// cannot hold up the present one.
    pub(super) fn set_service(
        &mut self,
        registry: &mut Registry,
        service_id: ServiceId,
        now: Time,
        after: Duration,
    ) -> TimerId {
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
        self.insert_service(registry, slot, due);
        id
    }

    fn insert_service(&mut self, registry: &mut Registry, slot: usize, due: Time) {
        let mut links = Links {
            registry,
            services: &mut self.services,
        };
        let tick = due.as_millis().div_ceil(TICK);
        self.wheel.insert(&mut links, SERVICE | slot as u32, tick);
    }

    /// Cancels a timer of a service. One that has passed is ignored.
    pub(super) fn cancel_service(&mut self, registry: &mut Registry, id: TimerId) {
        let slot = id.slot();
        if self.services.get(slot).is_some_and(|timer| timer.id == id) {
            let mut links = Links {
                registry,
                services: &mut self.services,
            };
            self.wheel.remove(&mut links, SERVICE | slot as u32);
            self.services.remove(slot);
        }
    }

    /// Takes out what is due next.
    pub(super) fn pop(&mut self, registry: &mut Registry, now: Time) -> Option<Due> {
        loop {
            let mut links = Links {
                registry,
                services: &mut self.services,
            };
            let key = self.wheel.pop(&mut links, now)?;
            if key & SERVICE == 0 {
                return registry.id_at(key as usize).map(Due::Client);
            }
            let slot = (key & !SERVICE) as usize;
            let due = self.services[slot].due;
            if due > now {
                // It was beyond the horizon.
                self.insert_service(registry, slot, due);
                continue;
            }
            let timer = self.services.remove(slot);
            return Some(Due::Service(timer.id, timer.service_id));
        }
    }

    /// When `pop` may have something next.
    pub(super) fn next(&self) -> Option<Time> {
        self.wheel.next()
    }
}

/// The links of everything that can be in the wheel, by key.
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

#[derive(Debug)]
struct Wheel {
    heads: Box<[u32; TICKS as usize]>,
    /// One bit for each list that is not empty.
    occupied: Box<[u64; 64]>,
    /// One bit for each word of `occupied` that is not zero.
    words: u64,
    /// The tick whose list is being emptied. All lists before it are empty.
    tick: u64,
}

impl Wheel {
    fn new(now: Time) -> Self {
        Self {
            heads: Box::new([NIL; TICKS as usize]),
            occupied: Box::new([0; 64]),
            words: 0,
            tick: now.as_millis() / TICK,
        }
    }

    /// Inserts what is in no list.
    fn insert(&mut self, links: &mut Links<'_>, key: u32, tick: u64) {
        let tick = tick.clamp(self.tick + 1, self.tick + TICKS - 1);
        let at = (tick % TICKS) as usize;
        let next = std::mem::replace(&mut self.heads[at], key);
        if next != NIL {
            links.get(next).previous = key;
        }
        *links.get(key) = Link {
            previous: NIL,
            next,
            tick: at as u16,
        };
        self.occupied[at / 64] |= 1 << (at % 64);
        self.words |= 1 << (at / 64);
    }

    /// Takes `key` out of its list, if it is in one.
    fn remove(&mut self, links: &mut Links<'_>, key: u32) {
        let link = std::mem::take(links.get(key));
        if link.tick == UNLINKED {
            return;
        }
        let at = usize::from(link.tick);
        match link.previous {
            NIL => self.heads[at] = link.next,
            previous => links.get(previous).next = link.next,
        }
        if link.next != NIL {
            links.get(link.next).previous = link.previous;
        }
        if self.heads[at] == NIL {
            self.occupied[at / 64] &= !(1 << (at % 64));
            if self.occupied[at / 64] == 0 {
                self.words &= !(1 << (at / 64));
            }
        }
    }

    /// Takes out the next key whose time has come.
    fn pop(&mut self, links: &mut Links<'_>, now: Time) -> Option<u32> {
        let target = now.as_millis() / TICK;
        // Every list is within one round of the wheel. After a jump over many rounds all of them are due, and one round
        // before the target is enough to find them.
        if let Some(ahead) = target.checked_sub(self.tick + TICKS) {
            self.tick += ahead / TICKS * TICKS;
        }
        loop {
            let Some(tick) = self.next_tick().filter(|tick| *tick <= target) else {
                self.tick = self.tick.max(target);
                return None;
            };
            self.tick = tick;
            let key = self.heads[(tick % TICKS) as usize];
            if key != NIL {
                self.remove(links, key);
                return Some(key);
            }
        }
    }

    /// The next tick with a list that is not empty.
    fn next_tick(&self) -> Option<u64> {
        let first = (self.tick % TICKS) as usize;
        let (word, bit) = (first / 64, first % 64);
        let here = self.occupied[word] & (u64::MAX << bit);
        let at = if here != 0 {
            word * 64 + here.trailing_zeros() as usize
        } else if self.words == 0 {
            return None;
        } else {
            // The words behind this one come first, in the order of the ring; this one comes last.
            let behind = self.words.rotate_right(word as u32 + 1);
            let word = (word + 1 + behind.trailing_zeros() as usize) % 64;
            word * 64 + self.occupied[word].trailing_zeros() as usize
        };
        Some(self.tick + ((at + TICKS as usize - first) as u64) % TICKS)
    }

    fn next(&self) -> Option<Time> {
        self.next_tick().map(|tick| Time::from_millis(tick * TICK))
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::server::client::{Client, Remote};
    use crate::server::memory_stream::MemoryStream;
    use crate::server::stream::Stream;

    /// Milliseconds to which clients' deadlines are rounded up.
    const SHARED: u64 = TICK * SHARED_TICKS;

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
    fn every_deadline_passes_once_not_early_and_at_most_two_ticks_late() {
        let (mut registry, ids) = clients(1000);
        let mut timers = Timers::new(Time::from_millis(7_777));
        let deadline = |slot: usize| 7_777 + (slot as u64 * 7919) % 30_000;
        for id in ids {
            timers.set_client(&mut registry, id, at(deadline(id.slot())));
        }
        let mut passed = vec![0; 1000];
        for now in (7_777..40_000).step_by(13) {
            for slot in pop_all(&mut timers, &mut registry, now) {
                passed[slot] += 1;
                assert!(now >= deadline(slot), "not early");
                assert!(now <= deadline(slot) + 2 * SHARED + 13, "not late");
            }
        }
        assert!(passed.iter().all(|&times| times == 1));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn a_new_deadline_replaces_the_old_and_none_removes_it() {
        let (mut registry, ids) = clients(3);
        let mut timers = Timers::new(Time::default());
        for id in &ids {
            timers.set_client(&mut registry, *id, at(100));
        }
        timers.set_client(&mut registry, ids[1], at(1000));
        timers.set_client(&mut registry, ids[2], None);
        assert_eq!(pop_all(&mut timers, &mut registry, 500), [0]);
        assert_eq!(timers.next(), at(1024));
        assert_eq!(pop_all(&mut timers, &mut registry, 1100), [1]);
    }

    #[test]
    fn a_jump_of_days_finds_every_client() {
        let (mut registry, ids) = clients(2);
        let mut timers = Timers::new(Time::default());
        timers.set_client(&mut registry, ids[0], at(100));
        timers.set_client(&mut registry, ids[1], at(90_000));
        assert_eq!(pop_all(&mut timers, &mut registry, 1 << 50), [0, 1]);
        timers.set_client(&mut registry, ids[0], at(1));
        let none: [usize; 0] = [];
        let now = 1 << 50;
        assert_eq!(
            pop_all(&mut timers, &mut registry, now),
            none,
            "a past deadline waits a tick"
        );
        assert_eq!(pop_all(&mut timers, &mut registry, now + 2 * SHARED), [0]);
    }

    #[test]
    fn timers_of_services_pass_in_time_beyond_the_horizon_too_and_cancelled_ones_never() {
        let (mut registry, ids) = clients(1);
        let mut timers = Timers::new(Time::default());
        let mut set = |registry: &mut Registry, after| {
            let after = Duration::from_millis(after);
            timers.set_service(registry, ServiceId::ALL, Time::default(), after)
        };
        let (soon, _far) = (set(&mut registry, 50), set(&mut registry, 100_000));
        let cancelled = set(&mut registry, 60);
        timers.set_client(&mut registry, ids[0], at(50));
        timers.cancel_service(&mut registry, cancelled);
        timers.cancel_service(&mut registry, cancelled);
        assert_eq!(pop_all(&mut timers, &mut registry, 49), [] as [usize; 0]);
        let far = 1_000_001;
        assert_eq!(pop_all(&mut timers, &mut registry, 64), [0, 1_000_000]);
        timers.cancel_service(&mut registry, soon);
        for now in (64..100_000).step_by(40) {
            assert_eq!(
                pop_all(&mut timers, &mut registry, now),
                [] as [usize; 0],
                "{now}"
            );
        }
        assert_eq!(pop_all(&mut timers, &mut registry, 100_000 + TICK), [far]);
        assert_eq!(timers.next(), None);
    }
}
