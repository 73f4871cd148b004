//! A cursor over bytes that were read.

/// Bytes that were read and not yet used, handed out from the front.
///
/// The bytes are mutable because frames are unmasked where they lie. What is taken keeps the lifetime of the buffer
/// itself, so an event can borrow from it while the connection goes on to the next frame.
#[derive(Debug, Default)]
pub struct Input<'a> {
    rest: &'a mut [u8],
    /// Bytes that are not in `rest` but in the room of a message.
    placed: usize,
}

impl<'a> Input<'a> {
    /// A cursor at the front of `bytes`.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self {
            rest: bytes,
            placed: 0,
        }
    }

    /// Input of `count` bytes that were read into the memory that [`WebSocket::room`](super::WebSocket::room) returned.
    pub fn placed(count: usize) -> Self {
        Self {
            rest: &mut [],
            placed: count,
        }
    }

    /// The number of bytes left.
    pub fn len(&self) -> usize {
        self.rest.len() + self.placed
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is left, without taking it.
    pub fn peek(&self) -> &[u8] {
        self.rest
    }

    /// Takes the next `count` bytes, or all that is left if that is less.
    pub fn take(&mut self, count: usize) -> &'a mut [u8] {
        let rest = std::mem::take(&mut self.rest);
        let (taken, rest) = rest.split_at_mut(count.min(rest.len()));
        self.rest = rest;
        taken
    }

    /// Drops all that is left.
    pub fn clear(&mut self) {
        self.rest = &mut [];
        self.placed = 0;
    }

    /// Takes the bytes that were placed in a room.
    pub(super) fn take_placed(&mut self) -> usize {
        std::mem::take(&mut self.placed)
    }
}
