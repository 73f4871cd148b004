//! A timer wheel: a ring of linked lists, one for each tick. The caller stores the link of each entry.

use crate::protocol::Time;

const NIL: u32 = u32::MAX;
const UNLINKED: u16 = u16::MAX;

/// The maximum number of lists of all wheels whose entries share a link.
pub(super) const MAX_LISTS: usize = UNLINKED as usize;

/// A timer's position in a list of the wheel. It is packed, so that the byte behind it in a client's entry is free.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(2))]
pub(crate) struct Link {
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

/// The links of all entries, by key.
pub(crate) trait Links {
    fn link(&mut self, key: u32) -> &mut Link;
}

/// A ring of lists, one for each tick.
#[derive(Debug)]
pub(crate) struct Wheel<const TICKS: usize> {
    heads: Box<[u32; TICKS]>,
    /// One bit for each list that is not empty.
    occupied: Box<[u64]>,
    /// The tick whose list is being emptied. All lists before it are empty.
    pub(super) tick: u64,
    /// Milliseconds of a tick.
    millis: u64,
    /// The number of the first list in [`Link::list`].
    first_list: u16,
}

impl<const TICKS: usize> Wheel<TICKS> {
    pub(crate) fn new(millis: u64, first_list: u16, now: Time) -> Self {
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
    pub(crate) fn insert(&mut self, links: &mut impl Links, key: u32, tick: u64) -> Time {
        let tick = tick.clamp(self.tick + 1, self.tick + Self::TICKS - 1);
        let at = (tick % Self::TICKS) as usize;
        let next = std::mem::replace(&mut self.heads[at], key);
        if next != NIL {
            links.link(next).previous = key;
        }
        *links.link(key) = Link {
            previous: NIL,
            next,
            list: self.first_list + at as u16,
        };
        self.occupied[at / 64] |= 1 << (at % 64);
        Time::from_millis(tick * self.millis)
    }

    /// Removes an entry from its list. Returns whether the list belonged to this wheel.
    pub(crate) fn remove(&mut self, links: &mut impl Links, key: u32) -> bool {
        let link = *links.link(key);
        let at = usize::from(link.list.wrapping_sub(self.first_list));
        if at >= TICKS {
            return false;
        }
        *links.link(key) = Link::default();
        match link.previous {
            NIL => self.heads[at] = link.next,
            previous => links.link(previous).next = link.next,
        }
        if link.next != NIL {
            links.link(link.next).previous = link.previous;
        }
        if self.heads[at] == NIL {
            self.occupied[at / 64] &= !(1 << (at % 64));
        }
        true
    }

    /// Removes and returns the next key whose tick is due.
    pub(crate) fn pop(&mut self, links: &mut impl Links, now: Time) -> Option<u32> {
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
    pub(crate) fn next(&self) -> Option<Time> {
        self.next_tick()
            .map(|tick| Time::from_millis(tick * self.millis))
    }
}
