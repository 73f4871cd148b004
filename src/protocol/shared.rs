//! What all connections of one event loop share: limits, counters, and reusable memory for messages.
//!
//! The kernel clears each page of fresh memory when it is first touched, which costs more than copying a message into
//! it. [`Buffers`] therefore keeps the memory of one large message for the next, within limits.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::deflate::Compression;
use super::{Limits, OpCode};
#[cfg(feature = "server")]
use crate::record::{Loader, Record, RecordError, Saver};

/// The capacity of the smallest buffer that is kept.
const MIN_KEPT: usize = 64 << 10;

/// The maximum number of bytes kept for later messages.
const MOST_KEPT: usize = 8 << 20;

/// The maximum number of bytes lent to messages of which only the beginning has arrived. Other messages grow as they
/// arrive, so a peer that only announces long messages takes little memory.
const MOST_LENT: usize = 8 << 20;

/// A pool of memory for messages.
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

/// The bytes that a buffer borrowed. Dropping the loan returns them to the limit.
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
    /// Takes the smallest buffer with a capacity from `len` to twice `len`. Among equal ones it takes the one that was
    /// used last, because the processor's caches may still hold it.
    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let fitting = self.free.iter().enumerate().rev();
        let (at, _) = fitting
            .filter(|(_, buffer)| (len..=len.saturating_mul(2)).contains(&buffer.capacity()))
            .min_by_key(|(_, buffer)| buffer.capacity())?;
        let buffer = self.free.swap_remove(at);
        self.kept -= buffer.capacity();
        Some(buffer)
    }

    /// Keeps a buffer for another message if the limit allows. Its bytes are not cleared.
    pub(super) fn give(&mut self, buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity >= self.min_kept && self.kept + capacity <= MOST_KEPT {
            self.kept += capacity;
            self.free.push(buffer);
        }
    }

    /// Returns an empty string with a capacity of `len` bytes.
    pub(super) fn string(&mut self, len: usize) -> String {
        let mut bytes = self.take_worth(len).unwrap_or_default();
        bytes.clear();
        bytes.reserve_exact(len);
        // An empty sequence of bytes is valid UTF-8.
        String::from_utf8(bytes).unwrap_or_default()
    }

    /// Lends a kept buffer for a whole message of `len` bytes, if the limit allows.
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

    /// Frees all kept memory.
    pub fn clear(&mut self) {
        self.free = Vec::new();
        self.kept = 0;
    }

    /// Whether no memory is kept.
    pub fn is_empty(&self) -> bool {
        self.free.is_empty()
    }
}

/// A message that is being assembled, in memory that may have room for more of it.
#[derive(Default)]
pub struct Buffer {
    /// The initialized memory. Bytes after the message belong to earlier messages.
    bytes: Vec<u8>,
    filled: usize,
    loan: Option<Loan>,
}

impl Buffer {
    /// Appends bytes. `most` is the maximum length of the whole message.
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

    /// Returns at most `len` bytes of memory to write the next bytes to. Call [`Buffer::advance`] afterwards. The memory
    /// is not empty. It is no longer than the message so far, unless a kept buffer is lent.
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

    /// Makes the first `len` bytes of the room part of the message, and returns them.
    pub(super) fn advance(&mut self, len: usize) -> &mut [u8] {
        let begin = self.filled;
        self.filled += len;
        &mut self.bytes[begin..self.filled]
    }

    /// Grows the capacity to at least `len` bytes, or to the whole message if a kept buffer is large enough.
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

    /// Returns the memory, to be used for another message.
    pub(super) fn into_memory(self) -> Vec<u8> {
        self.bytes
    }

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

#[cfg(feature = "server")]
impl Record for Buffer {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.put_bytes(&**self);
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        let bytes = from.take_bytes()?;
        Ok(Self {
            filled: bytes.len(),
            bytes,
            loan: None,
        })
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

/// The capacity for `len` bytes: the current `capacity` if they fit, otherwise twice as much, but no more than `most`.
pub(super) fn capacity_for(len: usize, capacity: usize, most: usize) -> usize {
    if len <= capacity {
        capacity
    } else {
        len.max((2 * capacity).min(most))
    }
}

/// The number of frames received, by opcode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCounts([u64; 16]);

impl FrameCounts {
    /// The number of frames received with an opcode.
    pub fn of(&self, opcode: OpCode) -> u64 {
        self.0[usize::from(opcode as u8)]
    }

    #[inline(always)]
    pub(super) fn count(&mut self, opcode: OpCode) {
        // An opcode has four bits.
        self.0[usize::from(opcode as u8 & 0xf)] += 1;
    }
}

/// What all connections of one event loop share.
#[derive(Debug)]
pub struct Shared {
    /// The limits on what a peer can make a connection hold.
    pub limits: Limits,
    /// The number of frames received.
    pub frames: FrameCounts,
    /// Memory for messages that arrive in pieces.
    pub buffers: Buffers,
    /// The compressors; `None` if the extension is off.
    pub compression: Option<Compression>,
    /// The length from which the bytes of a message can be [read directly into its memory](super::WebSocket::room).
    pub(crate) long_message: usize,
}

impl Shared {
    /// The default for [`Shared::long_message`].
    const LONG_MESSAGE: usize = 128 << 10;

    /// Creates the state that connections share. Without `compression`, the extension is off.
    pub fn new(limits: Limits, compression: Option<Compression>) -> Self {
        Self {
            limits,
            frames: FrameCounts::default(),
            buffers: Buffers::default(),
            compression,
            long_message: Self::LONG_MESSAGE,
        }
    }

    /// Lowers all thresholds, so that short messages take the paths of long ones.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn with_small_thresholds(mut self) -> Self {
        self.long_message = 64;
        self.buffers.lower_threshold();
        #[cfg(feature = "deflate")]
        if let Some(compression) = &mut self.compression {
            compression.lower_threshold();
        }
        self
    }

    /// The number of bytes that compressed messages expanded to so far.
    pub fn decompressed(&self) -> u64 {
        let compression = self.compression.as_ref();
        compression.map_or(0, |compression| compression.counts().plain_in)
    }

    /// Frees memory that is kept only for reuse.
    pub fn clear(&mut self) {
        self.buffers.clear();
        if let Some(compression) = &mut self.compression {
            compression.clear();
        }
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self::new(Limits::default(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_depends_neither_on_its_pieces_nor_on_reused_memory() {
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
    fn the_room_is_no_longer_than_the_message_so_far() {
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
    fn lending_stops_at_the_limit_until_a_loan_ends() {
        let mut buffers = Buffers::default();
        let mut borrowed = Vec::new();
        loop {
            buffers.give(Vec::with_capacity(1 << 20));
            let mut buffer = Buffer::default();
            buffer.push(b"x", 1 << 20, &mut buffers);
            if buffer.loan.is_none() {
                assert!(
                    buffer.bytes.capacity() < 1000,
                    "only room for the bytes that arrived"
                );
                break;
            }
            borrowed.push(buffer);
        }
        assert!((1..=8).contains(&borrowed.len()));
        // A client that disconnects drops its message.
        borrowed.pop();
        let mut buffer = Buffer::default();
        buffer.push(b"x", 1 << 20, &mut buffers);
        assert!(buffer.loan.is_some());
        assert_eq!(
            format!("{buffer:?}"),
            "[120]",
            "no bytes of earlier messages"
        );
    }

    #[test]
    fn keeping_stops_at_the_limit() {
        let mut buffers = Buffers::default();
        buffers.give(Vec::with_capacity(MIN_KEPT - 1));
        assert!(buffers.is_empty());
        for _ in 0..20 {
            buffers.give(Vec::with_capacity(1 << 20));
        }
        assert!(buffers.kept <= MOST_KEPT && buffers.kept > MOST_KEPT / 2);
        assert!(buffers.take(2 << 20).is_none());
        assert!(
            buffers.take(100 << 10).is_none(),
            "the kept buffers are much larger"
        );
        assert!(buffers.take(1 << 20).is_some());
    }
}
