//! Memory for messages that are put together, used again and again.
//!
//! A large message that comes in several reads needs memory of its own. Fresh memory costs more than what is done with
//! it: each page is cleared by the kernel when it is first touched. So the buffer of one message is kept for the next.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The capacity of the smallest buffer that is kept.
const MIN_KEPT: usize = 64 << 10;

/// The most bytes that are kept for messages to come.
const MOST_KEPT: usize = 8 << 20;

/// The most bytes that are lent for whole messages of which only the beginning is there. Past that, and for who only
/// announces long messages, room grows with what comes.
const MOST_LENT: usize = 8 << 20;

/// Buffers without a message.
#[derive(Debug)]
pub struct Buffers {
    free: Vec<Vec<u8>>,
    kept: usize,
    lent: Arc<AtomicUsize>,
    /// The capacity of the smallest buffer that is kept.
    min_kept: usize,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            free: Vec::new(),
            kept: 0,
            lent: Arc::default(),
            min_kept: MIN_KEPT,
        }
    }
}

/// A buffer's share of what is lent, until it is dropped.
#[derive(Debug)]
struct Loan {
    lent: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.lent.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Buffers {
    /// The smallest buffer that has room for `len` bytes and is at most twice as large; of several, the one that was used
    /// last, which the processor's caches may still have.
    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let fitting = self.free.iter().enumerate().rev();
        let (at, _) = fitting
            .filter(|(_, buffer)| (len..=len.saturating_mul(2)).contains(&buffer.capacity()))
            .min_by_key(|(_, buffer)| buffer.capacity())?;
        let buffer = self.free.swap_remove(at);
        self.kept -= buffer.capacity();
        Some(buffer)
    }

    /// Keeps a buffer for another message, if there is room for it. Its bytes stay as they are until then.
    pub(super) fn give(&mut self, buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity >= self.min_kept && self.kept + capacity <= MOST_KEPT {
            self.kept += capacity;
            self.free.push(buffer);
        }
    }

    /// An empty string with room for `len` bytes.
    pub(super) fn string(&mut self, len: usize) -> String {
        let mut bytes = self.take_worth(len).unwrap_or_default();
        bytes.clear();
        bytes.reserve_exact(len);
        // What is empty is UTF-8.
        String::from_utf8(bytes).unwrap_or_default()
    }

    /// A buffer for a whole message of `len` bytes, if so much more may be lent.
    fn borrow(&mut self, len: usize) -> Option<(Vec<u8>, Loan)> {
        let room = MOST_LENT.checked_sub(self.lent.load(Ordering::Relaxed))?;
        if !(self.min_kept..=room / 2).contains(&len) {
            return None;
        }
        let buffer = self.take(len)?;
        let bytes = buffer.capacity();
        self.lent.fetch_add(bytes, Ordering::Relaxed);
        let lent = Arc::clone(&self.lent);
        Some((buffer, Loan { lent, bytes }))
    }

    fn take_worth(&mut self, len: usize) -> Option<Vec<u8>> {
        (len >= self.min_kept).then(|| self.take(len)).flatten()
    }

    /// Keeps small buffers too, so that short messages use kept buffers.
    #[cfg(any(test, fuzzing))]
    pub(super) fn lower_threshold(&mut self) {
        self.min_kept = 256;
    }

    /// Gives all of them back to the system.
    pub fn clear(&mut self) {
        self.free = Vec::new();
        self.kept = 0;
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.free.is_empty()
    }
}

/// The bytes of a message that is put together, in memory that may have room for more of it.
#[derive(Default)]
pub struct Buffer {
    /// All that can be written to; what lies behind the message is of messages before.
    bytes: Vec<u8>,
    filled: usize,
    loan: Option<Loan>,
}

impl Buffer {
    /// Appends bytes. `most` is the most that the whole message can come to.
    pub(super) fn push(&mut self, bytes: &[u8], most: usize, buffers: &mut Buffers) {
        let end = self.filled + bytes.len();
        if end > self.bytes.len() {
            self.bytes.truncate(self.filled);
            self.grow(end, most, buffers);
        }
        if end <= self.bytes.len() {
            self.bytes[self.filled..end].copy_from_slice(bytes);
        } else {
            self.bytes.truncate(self.filled);
            self.bytes.extend_from_slice(bytes);
        }
        self.filled = end;
    }

    /// Where the next bytes can be put, at most `len`, to be followed by [`Buffer::advance`]. It is not empty, and no
    /// longer than what is there already unless a buffer that is there anyway is lent.
    pub(super) fn room(&mut self, len: usize, most: usize, buffers: &mut Buffers) -> &mut [u8] {
        let wanted = self.filled + len;
        if wanted > self.bytes.capacity() {
            self.grow((2 * self.filled).clamp(1, wanted), most, buffers);
        }
        let end = wanted.min(self.bytes.capacity());
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.filled..end]
    }

    /// Takes the first `len` bytes of the room as part of the message, and returns them.
    pub(super) fn advance(&mut self, len: usize) -> &mut [u8] {
        let begin = self.filled;
        self.filled += len;
        &mut self.bytes[begin..self.filled]
    }

    /// Makes room for `len` bytes in all: the whole message's, if a buffer is there that has it.
    fn grow(&mut self, len: usize, most: usize, buffers: &mut Buffers) {
        let capacity = self.bytes.capacity();
        if len <= capacity {
            return;
        }
        let lent = buffers.borrow(most);
        let kept = lent.map(|(buffer, loan)| (buffer, Some(loan)));
        let kept = kept.or_else(|| buffers.take_worth(len).map(|buffer| (buffer, None)));
        let Some((mut larger, loan)) = kept else {
            self.bytes.truncate(self.filled);
            self.bytes
                .reserve_exact(capacity_for(len, capacity, most) - self.filled);
            return;
        };
        if larger.len() < self.filled {
            larger.resize(self.filled, 0);
        }
        larger[..self.filled].copy_from_slice(&self.bytes[..self.filled]);
        buffers.give(std::mem::replace(&mut self.bytes, larger));
        self.loan = loan;
    }

    /// The memory, for another message.
    pub(super) fn into_memory(self) -> Vec<u8> {
        self.bytes
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}

impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            filled: bytes.len(),
            loan: None,
        }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Self {
            bytes: self.to_vec(),
            filled: self.filled,
            loan: None,
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Buffer {}

/// The capacity for `len` bytes: what there is if they fit, else twice as much, but no more than `most`.
pub(super) fn capacity_for(len: usize, capacity: usize, most: usize) -> usize {
    if len <= capacity {
        capacity
    } else {
        len.max((2 * capacity).min(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_the_same_however_it_comes_and_whatever_was_there_before() {
        let bytes: Vec<u8> = (0..400_000u32).map(|at| (at * 7) as u8).collect();
        let mut buffers = Buffers::default();
        for (piece, in_room) in [
            (1000, false),
            (70_000, true),
            (100_000, true),
            (9999, false),
        ] {
            let mut buffer = Buffer::default();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let len = piece.min(rest.len());
                let taken = if in_room && buffer.filled > 0 {
                    let room = buffer.room(len, bytes.len(), &mut buffers);
                    let taken = room.len();
                    assert!(taken > 0);
                    room.copy_from_slice(&rest[..taken]);
                    assert_eq!(buffer.advance(taken), &rest[..taken]);
                    taken
                } else {
                    buffer.push(&rest[..len], bytes.len(), &mut buffers);
                    len
                };
                rest = &rest[taken..];
            }
            assert!(*buffer == *bytes);
            buffers.give(buffer.into_memory());
            assert!(!buffers.is_empty());
        }
    }

    #[test]
    fn room_is_no_more_than_what_is_there_already() {
        let mut buffers = Buffers::default();
        let mut buffer = Buffer::default();
        buffer.push(&[1; 1000], 1 << 20, &mut buffers);
        while buffer.filled < 1 << 19 {
            let filled = buffer.filled;
            let room = buffer.room(1 << 19, 1 << 20, &mut buffers).len();
            assert!((1..=filled.max(1000)).contains(&room), "{room} of {filled}");
            buffer.advance(room);
        }
    }

    #[test]
    fn what_is_lent_has_a_limit_until_it_is_given_back() {
        let mut buffers = Buffers::default();
        let mut borrowed = Vec::new();
        loop {
            buffers.give(Vec::with_capacity(1 << 20));
            let mut buffer = Buffer::default();
            buffer.push(b"x", 1 << 20, &mut buffers);
            if buffer.loan.is_none() {
                assert!(buffer.bytes.capacity() < 1000, "room for what has come");
                break;
            }
            borrowed.push(buffer);
        }
        assert!((1..=8).contains(&borrowed.len()));
        // A client that leaves drops its message.
        borrowed.pop();
        let mut buffer = Buffer::default();
        buffer.push(b"x", 1 << 20, &mut buffers);
        assert!(buffer.loan.is_some());
        assert_eq!(
            format!("{buffer:?}"),
            "[120]",
            "and nothing of messages before"
        );
    }

    #[test]
    fn what_is_kept_has_a_limit() {
        let mut buffers = Buffers::default();
        buffers.give(Vec::with_capacity(MIN_KEPT - 1));
        assert!(buffers.is_empty());
        for _ in 0..20 {
            buffers.give(Vec::with_capacity(1 << 20));
        }
        assert!(buffers.kept <= MOST_KEPT && buffers.kept > MOST_KEPT / 2);
        assert!(buffers.take(2 << 20).is_none());
        assert!(buffers.take(100 << 10).is_none(), "much larger");
        assert!(buffers.take(1 << 20).is_some());
    }
}
