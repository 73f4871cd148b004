//! The messages that a resumable client has not confirmed, in the order in which they were sent.

use std::collections::VecDeque;

use super::broadcast::SharedMessage;
use crate::protocol::Message;
use crate::record::{Loader, Record, RecordError, Saver, record};

/// The size of a block, which holds several messages. A longer message gets a block of its own.
const BLOCK: usize = 16 << 10;

/// The capacity of a new block, which grows up to [`BLOCK`].
const FIRST_BLOCK: usize = 256;

/// The length of the prefix of each message: a number that is twice the length of its payload, plus 1 if it is binary.
const PREFIX: usize = size_of::<u64>();

/// Some of the messages that are kept.
#[derive(Debug)]
enum Block {
    /// Messages, each with its prefix.
    Own(Vec<u8>),
    /// One message that other clients keep, too. Its prefix is not stored, but counts.
    Shared(SharedMessage),
}

/// A shared message becomes one of the client's own, so that positions in the block stay the same.
impl Record for Block {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        match self {
            Self::Own(bytes) => bytes.save(to),
            Self::Shared(message) => {
                let payload = message.payload.as_slice();
                let prefix = prefix(message.is_binary, payload);
                to.put_parts(prefix.to_vec(), payload);
            }
        }
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        from.take_bytes().map(Self::Own)
    }
}

impl Block {
    /// The number of bytes, with the prefixes.
    fn len(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Shared(message) => PREFIX + message.payload.len(),
        }
    }

    /// The memory in bytes. Clients that keep the same message share it equally.
    fn memory(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.capacity(),
            Self::Shared(message) => message.payload.held() + size_of::<Self>(),
        }
    }

    /// The length of the message at a position, with its prefix.
    fn message_len(&self, at: usize) -> Option<usize> {
        match self {
            Self::Own(bytes) => Some(PREFIX + split(bytes.get(at..)?)?.1.len()),
            Self::Shared(_) => (at == 0).then_some(self.len()),
        }
    }

    /// The message at a position.
    fn message(&self, at: usize) -> Option<Message<'_>> {
        let (is_binary, payload) = match self {
            Self::Own(bytes) => split(bytes.get(at..)?)?,
            Self::Shared(message) => (message.is_binary, message.payload.as_slice()),
        };
        Some(match std::str::from_utf8(payload) {
            Ok(text) if !is_binary => Message::Text(text),
            _ => Message::Binary(payload),
        })
    }

    /// Replaces a shared message with a copy if the copy takes less memory. Returns false while the batch is incomplete.
    fn copy_if_better(&mut self) -> bool {
        let Self::Shared(message) = self else {
            return true;
        };
        if message.payload.are_better_copied() {
            let mut copy = Vec::with_capacity(PREFIX + message.payload.len());
            append(message.is_binary, message.payload.as_slice(), &mut copy);
            *self = Self::Own(copy);
            return true;
        }
        message.payload.are_complete()
    }
}

/// Appends a message with its prefix.
fn append(is_binary: bool, payload: &[u8], block: &mut Vec<u8>) {
    block.extend_from_slice(&prefix(is_binary, payload));
    block.extend_from_slice(payload);
}

fn prefix(is_binary: bool, payload: &[u8]) -> [u8; PREFIX] {
    ((payload.len() as u64) << 1 | u64::from(is_binary)).to_le_bytes()
}

/// The messages kept for a client: those that it may not have received, and those that have not been sent.
///
/// ```text
///  blocks: [ released | confirmed | sent ] [ sent | unsent ] [ unsent ] ...
///                                                 ^ cursor
/// ```
#[derive(Debug, Default)]
pub(super) struct Outbox {
    blocks: VecDeque<Block>,
    /// The number of blocks, at the front, that are not to be copied.
    checked: usize,
    /// The number of bytes of the first block that are no longer kept.
    released: usize,
    /// The number of messages that were sent before the first kept one.
    before: u64,
    /// The number of messages that are kept.
    count: u64,
    /// The number of bytes of the kept messages, with their prefixes.
    len: usize,
    /// The number of messages that were confirmed, counted from 1 since the client first connected. The confirmed ones
    /// that are still kept are at the front.
    confirmed: u64,
    /// The number of bytes of the confirmed messages that are still kept.
    confirmed_len: usize,
    /// The number of messages, at the end, that were not sent on the current connection.
    unsent: u64,
    /// The position of the first unsent message: the index of its block, and the offset in the block.
    cursor: (usize, usize),
    /// The length of the longest message since the outbox was last empty.
    largest: usize,
}

record!(Outbox {
    blocks,
    // Every block is one of the client's own.
    checked = 0,
    released,
    before,
    count,
    len,
    confirmed,
    confirmed_len,
    unsent,
    cursor,
    largest,
});

impl Outbox {
    /// The number of bytes of the kept messages.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The number of bytes of the messages that were not confirmed.
    pub(super) fn unconfirmed_len(&self) -> usize {
        self.len - self.confirmed_len
    }

    /// The length of the longest message since the outbox was last empty. No kept message is longer.
    pub(super) fn largest(&self) -> usize {
        self.largest
    }

    /// The memory that the outbox uses, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.blocks.iter().map(Block::memory).sum()
    }

    /// The number of messages that were sent before the first kept one.
    pub(super) fn before(&self) -> u64 {
        self.before
    }

    /// The number of messages that were confirmed, counted from 1 since the client first connected.
    pub(super) fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// The number of messages that were not confirmed.
    pub(super) fn unconfirmed_count(&self) -> u64 {
        self.before + self.count - self.confirmed
    }

    /// The number of messages that were not sent on the current connection.
    pub(super) fn unsent_count(&self) -> u64 {
        self.unsent
    }

    /// Adds a message at the end. It counts as sent unless `waits` is true or earlier messages are unsent. Returns its
    /// length with its prefix.
    pub(super) fn push(&mut self, message: Message<'_>, waits: bool) -> usize {
        let payload = message.as_bytes();
        let needed = PREFIX + payload.len();
        if !matches!(self.blocks.back(), Some(Block::Own(last)) if last.len() + needed <= BLOCK) {
            self.push_block(Block::Own(Vec::new()));
        }
        let mut begin = 0;
        if let Some(Block::Own(block)) = self.blocks.back_mut() {
            if block.capacity() - block.len() < needed {
                let least = block.len() + needed;
                let wanted = (2 * block.capacity()).clamp(FIRST_BLOCK, BLOCK);
                block.reserve_exact(wanted.max(least) - block.len());
            }
            begin = block.len();
            append(matches!(message, Message::Binary(_)), payload, block);
        }
        self.count(needed, (self.blocks.len() - 1, begin), waits);
        needed
    }

    /// Adds a message that several clients keep, as [`Outbox::push`] does.
    pub(super) fn push_shared(
        &mut self,
        message: Message<'_>,
        shared: SharedMessage,
        waits: bool,
    ) -> usize {
        /// A shorter message is copied. A block of its own would cost more when the memory is measured.
        const SHORT: usize = 256;
        if shared.payload.len() < SHORT {
            return self.push(message, waits);
        }
        let block = Block::Shared(shared);
        let needed = block.len();
        self.push_block(block);
        self.count(needed, (self.blocks.len() - 1, 0), waits);
        needed
    }

    fn push_block(&mut self, block: Block) {
        // Looks at each block once, when its batch is complete.
        while let Some(next) = self.blocks.get_mut(self.checked)
            && next.copy_if_better()
        {
            self.checked += 1;
        }
        self.blocks.push_back(block);
    }

    /// Counts a message that was added at a position.
    fn count(&mut self, len: usize, position: (usize, usize), waits: bool) {
        self.count += 1;
        self.len += len;
        self.largest = self.largest.max(len);
        if waits || self.unsent > 0 {
            if self.unsent == 0 {
                self.cursor = position;
            }
            self.unsent += 1;
        }
    }

    /// The next message that was not sent on the current connection.
    pub(super) fn next_unsent(&self) -> Option<Message<'_>> {
        let (block, at) = self.cursor;
        let block = self.blocks.get(block).filter(|_| self.unsent > 0)?;
        block.message(at)
    }

    /// Records that the next unsent message was sent. Returns its length with its prefix.
    pub(super) fn advance(&mut self) -> usize {
        let (block, at) = self.cursor;
        let block = self.blocks.get(block).filter(|_| self.unsent > 0);
        let Some(len) = block.and_then(|block| block.message_len(at)) else {
            return 0;
        };
        self.unsent -= 1;
        let (block, at) = &mut self.cursor;
        *at += len;
        if self.blocks.get(*block).is_some_and(|one| one.len() == *at) {
            (*block, *at) = (*block + 1, 0);
        }
        len
    }

    /// Records that the client has confirmed the messages up to number `until`, counted from 1 since the client first
    /// connected. Drops those that it had confirmed earlier. Ignores a number that is not higher than the last one, or
    /// higher than the number of sent messages.
    pub(super) fn confirm(&mut self, until: u64) {
        let sent = self.before + self.count - self.unsent;
        if until <= self.confirmed || until > sent {
            return;
        }
        self.release_confirmed();
        let newly = (until - self.before) as usize;
        self.confirmed_len = self.lengths().take(newly).sum();
        self.confirmed = until;
    }

    /// Drops the messages that the client has confirmed.
    pub(super) fn release_confirmed(&mut self) {
        self.release(self.confirmed);
    }

    /// Drops the messages up to number `until`, which the client has received. Later ones count as unconfirmed, and as
    /// unsent on the new connection.
    pub(super) fn resume_after(&mut self, until: u64) {
        self.release(until);
        (self.confirmed, self.confirmed_len) = (until, 0);
        (self.unsent, self.cursor) = (self.count, (0, self.released));
    }

    /// Drops the messages up to number `until`.
    fn release(&mut self, until: u64) {
        while self.before < until
            && let Some(first) = self.blocks.front()
            && let Some(len) = first.message_len(self.released)
        {
            self.before += 1;
            self.count -= 1;
            self.len -= len;
            self.confirmed_len = self.confirmed_len.saturating_sub(len);
            self.released += len;
            if self.released == first.len() {
                self.released = 0;
                self.blocks.pop_front();
                self.checked = self.checked.saturating_sub(1);
                self.cursor.0 = self.cursor.0.saturating_sub(1);
            }
        }
        if self.count == 0 {
            self.largest = 0;
        }
    }

    /// The lengths of the kept messages, oldest first.
    fn lengths(&self) -> impl Iterator<Item = usize> {
        let (mut block, mut at) = (0, self.released);
        std::iter::from_fn(move || {
            let len = self.blocks.get(block)?.message_len(at)?;
            at += len;
            if at == self.blocks[block].len() {
                (block, at) = (block + 1, 0);
            }
            Some(len)
        })
    }
}

/// Reads the message at the start of a slice of a block. Returns whether it is binary, and its payload.
fn split(block: &[u8]) -> Option<(bool, &[u8])> {
    let (prefix, rest) = block.split_first_chunk()?;
    let prefix = u64::from_le_bytes(*prefix);
    let payload = rest.get(..(prefix >> 1) as usize)?;
    Some((prefix & 1 == 1, payload))
}

#[cfg(test)]
mod tests {
    use super::super::broadcast::{Batches, Broadcast};
    use super::*;
    use crate::random::Random;

    #[test]
    fn messages_are_kept_in_order_until_they_are_released() {
        let mut random = Random::new(1);
        let mut outbox = Outbox::default();
        let mut model: VecDeque<(bool, Vec<u8>)> = VecDeque::new();
        let mut sent = 0;
        let mut batches = Batches::default();
        for _ in 0..5000 {
            let before = outbox.before();
            match random.below(6) {
                0..3 => {
                    let len = match random.below(10) {
                        0 => random.below(40_000),
                        _ => random.below(60),
                    };
                    let payload = vec![b'a' + random.below(26) as u8; len];
                    let is_binary = random.below(2) == 0;
                    let message = match std::str::from_utf8(&payload) {
                        Ok(text) if !is_binary => Message::Text(text),
                        _ => Message::Binary(&payload),
                    };
                    let waits = random.below(20) == 0;
                    if random.below(2) == 0 {
                        outbox.push(message, waits);
                    } else {
                        let mut broadcast = Broadcast::new(message);
                        outbox.push_shared(message, broadcast.kept(&mut batches), waits);
                        if random.below(3) == 0 {
                            batches.complete();
                        }
                    }
                    sent += 1;
                    model.push_back((is_binary, payload));
                }
                3 => outbox.confirm(before + random.below(8) as u64),
                4 if random.below(4) == 0 => outbox.release_confirmed(),
                4 if random.below(4) == 0 => {
                    outbox.resume_after((before + random.below(8) as u64).min(sent));
                }
                _ => {
                    batches.complete();
                    let at = model.len() - outbox.unsent_count() as usize;
                    let next = outbox.next_unsent().map(|message| {
                        let is_binary = matches!(message, Message::Binary(_));
                        (is_binary, message.as_bytes().to_vec())
                    });
                    assert_eq!(next.as_ref(), model.get(at));
                    outbox.advance();
                }
            }
            model.drain(..(outbox.before() - before) as usize);
            let lengths: Vec<_> = outbox.lengths().collect();
            let expected = model.iter().map(|(_, payload)| PREFIX + payload.len());
            assert!(lengths.iter().copied().eq(expected));
            assert_eq!(outbox.before() + model.len() as u64, sent);
            assert_eq!(outbox.len(), lengths.iter().sum::<usize>());
            let confirmed = outbox.confirmed.saturating_sub(outbox.before()) as usize;
            assert_eq!(
                outbox.confirmed_len,
                lengths[..confirmed].iter().sum::<usize>()
            );
            assert!(confirmed + outbox.unsent_count() as usize <= model.len());
            // Any two neighboring blocks together hold more than `BLOCK` bytes of messages.
            assert!(outbox.memory() <= 2 * outbox.len() + 3 * BLOCK.max(outbox.largest()));
        }
        outbox.resume_after(sent);
        assert_eq!((outbox.len(), outbox.memory(), outbox.largest()), (0, 0, 0));
    }

    #[test]
    fn two_kept_messages_of_a_turn_do_not_keep_their_batch() {
        let mut outbox = Outbox::default();
        let mut batches = Batches::default();
        let filler = [1; 1000];
        for _ in 0..50 {
            for _ in 0..2 {
                let message = Message::Binary(&[2; 300]);
                let mut broadcast = Broadcast::new(message);
                outbox.push_shared(message, broadcast.kept(&mut batches), false);
                drop(broadcast);
                for _ in 0..30 {
                    let _ = Broadcast::new(Message::Binary(&filler)).kept(&mut batches);
                }
            }
            batches.complete();
        }
        let (len, memory) = (outbox.len(), outbox.memory());
        assert!(memory < 8 * len, "{memory} bytes of memory for {len} bytes");
    }
}
