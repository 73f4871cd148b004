//! When to look at which client again: a timer wheel whose lists run through the registry's own entries.
//!
//! Every client stands in at most one list, and its links lie in its entry, so there is no second table that could
//! disagree with the registry: removing a client takes it out here. Deadlines are rounded up to whole ticks, which
//! also lets many clients share one turn of the loop. A deadline beyond the wheel's horizon is put at the horizon; who
//! is found there early is asked for its deadline again and put back.

use slab::Slab;

use super::client::Client;
use crate::protocol::Time;

/// Milliseconds of a tick.
const TICK: u64 = 64;
/// Ticks of the wheel, a power of two: a horizon of 32.7 seconds.
const SLOTS: u64 = 512;

const NIL: u32 = u32::MAX;
const UNLINKED: u16 = u16::MAX;

const _: () = assert!(SLOTS.is_power_of_two() && SLOTS < UNLINKED as u64);

/// A client's place in a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    previous: u32,
    next: u32,
    slot: u16,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            previous: NIL,
            next: NIL,
            slot: UNLINKED,
        }
    }
}

#[derive(Debug)]
pub(super) struct Deadlines {
    heads: Box<[u32; SLOTS as usize]>,
    /// One bit for each list that is not empty.
    occupied: [u64; SLOTS as usize / 64],
    /// The tick whose list is being emptied; all lists before it are empty.
    tick: u64,
}

impl Deadlines {
    pub(super) fn new(now: Time) -> Self {
        Self {
            heads: Box::new([NIL; SLOTS as usize]),
            occupied: [0; SLOTS as usize / 64],
            tick: now.as_millis() / TICK,
        }
    }

    /// Sets the deadline of the client at `key`, in place of an earlier one. A deadline in the past passes at the next
    /// tick.
    pub(super) fn set(&mut self, clients: &mut Slab<Client>, key: usize, deadline: Option<Time>) {
        self.unset(clients, key);
        let Some(deadline) = deadline else { return };
        let tick = deadline
            .as_millis()
            .div_ceil(TICK)
            .clamp(self.tick + 1, self.tick + SLOTS - 1);
        let slot = (tick % SLOTS) as usize;
        let next = std::mem::replace(&mut self.heads[slot], key as u32);
        if next != NIL {
            clients[next as usize].link.previous = key as u32;
        }
        clients[key].link = Link {
            previous: NIL,
            next,
            slot: slot as u16,
        };
        self.occupied[slot / 64] |= 1 << (slot % 64);
    }

    /// Takes the client at `key` out of its list, if it is in one.
    pub(super) fn unset(&mut self, clients: &mut Slab<Client>, key: usize) {
        let link = std::mem::take(&mut clients[key].link);
        if link.slot == UNLINKED {
            return;
        }
        let slot = usize::from(link.slot);
        match link.previous {
            NIL => self.heads[slot] = link.next,
            previous => clients[previous as usize].link.next = link.next,
        }
        if link.next != NIL {
            clients[link.next as usize].link.previous = link.previous;
        }
        if self.heads[slot] == NIL {
            self.occupied[slot / 64] &= !(1 << (slot % 64));
        }
    }

    /// Takes out the next client whose deadline has passed, or may have.
    pub(super) fn pop(&mut self, clients: &mut Slab<Client>, now: Time) -> Option<usize> {
        let target = now.as_millis() / TICK;
        // After a jump over the whole wheel every list is due; going round once finds them all.
        if target > self.tick + SLOTS && self.heads[(self.tick % SLOTS) as usize] == NIL {
            self.tick = target - SLOTS;
        }
        loop {
            let key = self.heads[(self.tick % SLOTS) as usize];
            if key != NIL {
                self.unset(clients, key as usize);
                return Some(key as usize);
            }
            if self.tick >= target {
                return None;
            }
            self.tick += 1;
        }
    }

    /// When `pop` may have something next.
    pub(super) fn next(&self) -> Option<Time> {
        let first = (self.tick % SLOTS) as usize;
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
                let slot = (word * 64) as u64 + u64::from(bits.trailing_zeros());
                let ahead = (slot + SLOTS - first as u64) % SLOTS;
                return Some(Time::from_millis((self.tick + ahead) * TICK));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::client::Remote;
    use crate::server::fuzz::MemoryStream;
    use crate::server::stream::Stream;
    use std::net::SocketAddr;

    fn clients(count: usize) -> Slab<Client> {
        let remote = Remote::from(SocketAddr::from(([127, 0, 0, 1], 1)));
        let client = |key| {
            Client::new(
                Stream::Memory(MemoryStream::default()),
                remote,
                key,
                Time::default(),
            )
        };
        (0..count)
            .map(|key| (key, client(key as u64 + 1)))
            .collect()
    }

    fn pop_all(wheel: &mut Deadlines, clients: &mut Slab<Client>, now: u64) -> Vec<usize> {
        let mut keys: Vec<_> =
            std::iter::from_fn(|| wheel.pop(clients, Time::from_millis(now))).collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn every_deadline_passes_once_not_early_and_at_most_a_tick_late() {
        let mut clients = clients(1000);
        let mut wheel = Deadlines::new(Time::from_millis(7_777));
        let deadline = |key: usize| 7_777 + (key as u64 * 7919) % 30_000;
        for key in 0..1000 {
            wheel.set(&mut clients, key, Some(Time::from_millis(deadline(key))));
        }
        let mut passed = vec![0; 1000];
        for now in (7_777..40_000).step_by(13) {
            for key in pop_all(&mut wheel, &mut clients, now) {
                passed[key] += 1;
                assert!(now >= deadline(key), "not early");
                assert!(now <= deadline(key) + 2 * TICK + 13, "not late");
            }
        }
        assert!(passed.iter().all(|&times| times == 1));
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn a_new_deadline_replaces_the_old_and_none_removes_it() {
        let mut clients = clients(3);
        let mut wheel = Deadlines::new(Time::default());
        for key in 0..3 {
            wheel.set(&mut clients, key, Some(Time::from_millis(100)));
        }
        wheel.set(&mut clients, 1, Some(Time::from_millis(1000)));
        wheel.set(&mut clients, 2, None);
        assert_eq!(pop_all(&mut wheel, &mut clients, 500), [0]);
        assert_eq!(wheel.next(), Some(Time::from_millis(1024)));
        assert_eq!(pop_all(&mut wheel, &mut clients, 1100), [1]);
    }

    #[test]
    fn a_jump_of_days_finds_everyone_without_walking_through_them() {
        let mut clients = clients(2);
        let mut wheel = Deadlines::new(Time::default());
        wheel.set(&mut clients, 0, Some(Time::from_millis(100)));
        wheel.set(&mut clients, 1, Some(Time::from_millis(90_000)));
        assert_eq!(pop_all(&mut wheel, &mut clients, 1 << 50), [0, 1]);
        wheel.set(&mut clients, 0, Some(Time::from_millis(1)));
        assert_eq!(
            pop_all(&mut wheel, &mut clients, 1 << 50),
            [] as [usize; 0],
            "a past deadline waits a tick"
        );
        assert_eq!(pop_all(&mut wheel, &mut clients, (1 << 50) + 2 * TICK), [0]);
    }
}
