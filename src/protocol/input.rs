//! A cursor over bytes received from the peer.

/// Bytes that were received and not yet consumed.
///
/// The bytes are mutable because payloads are unmasked in place. Taken bytes have the lifetime of the buffer, so a
/// message can borrow from it while the connection consumes the next frame.
///
/// ```
/// use outrigger::protocol::Input;
///
/// let mut buffer = *b"abcdef";
/// let mut input = Input::new(&mut buffer);
/// let taken = input.take(4);
/// assert_eq!((&*taken, input.peek()), (&b"abcd"[..], &b"ef"[..]));
/// ```
#[derive(Debug, Default)]
pub struct Input<'a> {
    rest: &'a mut [u8],
    /// The number of bytes that are in the room of a message instead of `rest`.
    placed: usize,
}

impl<'a> Input<'a> {
    /// Creates a cursor at the start of `bytes`.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self {
            rest: bytes,
            placed: 0,
        }
    }

    /// Creates input of `count` bytes that were read into the memory that
    /// [`WebSocket::room`](super::WebSocket::room) returned. Pass it to the next call of
    /// [`WebSocket::receive`](super::WebSocket::receive).
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

    /// Whether no bytes are left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether bytes are in the memory of a message.
    #[cfg(feature = "server")]
    pub(crate) fn is_placed(&self) -> bool {
        self.placed > 0
    }

    /// The bytes that are left, without taking them.
    pub fn peek(&self) -> &[u8] {
        self.rest
    }

    /// Takes the next `count` bytes, or all that are left if there are fewer.
    pub fn take(&mut self, count: usize) -> &'a mut [u8] {
        let rest = std::mem::take(&mut self.rest);
        let (taken, rest) = rest.split_at_mut(count.min(rest.len()));
        self.rest = rest;
        taken
    }

    /// Discards all bytes that are left.
    pub fn clear(&mut self) {
        self.rest = &mut [];
        self.placed = 0;
    }

    /// Takes the bytes that were placed in a room.
    pub(super) fn take_placed(&mut self) -> usize {
        std::mem::take(&mut self.placed)
    }
}
