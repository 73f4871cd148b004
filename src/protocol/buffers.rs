//! Memory for messages that are put together, used again and again.
//!
//! A large message that comes in several reads needs memory of its own. Fresh memory costs more than what is done with
//! it: each page is cleared by the kernel when it is first touched. So the buffer of one message is kept for the next.

use std::ops::Deref;

/// Smaller buffers are not worth keeping. Fuzzers and tests have short messages.
const WORTH: usize = if cfg!(any(test, fuzzing)) {
    256
} else {
    64 << 10
};

/// The most bytes that are kept for messages to come.
const MOST_KEPT: usize = 8 << 20;

/// Buffers without a message.
#[derive(Debug, Default)]
pub struct Buffers {
    free: Vec<Vec<u8>>,
    kept: usize,
}

impl Buffers {
    /// The smallest buffer that has room for `len` bytes, and of these the one that was used last: the processor's caches
    /// may still have it.
    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let fitting = self.free.iter().enumerate().rev();
        let (at, _) = fitting
            .filter(|(_, buffer)| buffer.capacity() >= len)
            .min_by_key(|(_, buffer)| buffer.capacity())?;
        let buffer = self.free.swap_remove(at);
        self.kept -= buffer.capacity();
        Some(buffer)
    }

    /// Keeps a buffer for another message, if there is room for it. Its bytes stay as they are until then.
    pub(super) fn give(&mut self, buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity >= WORTH && self.kept + capacity <= MOST_KEPT {
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

    fn take_worth(&mut self, len: usize) -> Option<Vec<u8>> {
        (len >= WORTH).then(|| self.take(len)).flatten()
    }

    /// Gives all of them back to the system.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.free.is_empty()
    }
}

/// The bytes of a message that is put together, in memory that may have room for more of it.
#[derive(Clone, Debug, Default)]
pub struct Buffer {
    /// All that can be written to; what lies behind the message is of messages before.
    bytes: Vec<u8>,
    filled: usize,
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
    /// longer than what is there already unless a buffer that is there anyway has the room.
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
        let kept = if most >= WORTH {
            buffers.take(most)
        } else {
            None
        };
        let kept = kept.or_else(|| buffers.take_worth(len));
        let Some(mut larger) = kept else {
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
    fn what_is_kept_has_a_limit() {
        let mut buffers = Buffers::default();
        buffers.give(Vec::with_capacity(WORTH - 1));
        assert!(buffers.is_empty());
        for _ in 0..20 {
            buffers.give(Vec::with_capacity(1 << 20));
        }
        assert!(buffers.kept <= MOST_KEPT && buffers.kept > MOST_KEPT / 2);
        assert!(buffers.take(2 << 20).is_none());
        assert!(buffers.take(1 << 20).is_some());
    }
}
