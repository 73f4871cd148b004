//! The messages that a resumable client has not confirmed, in the order in which they were sent.

use std::collections::VecDeque;

use crate::protocol::Message;

/// Messages are collected in blocks of this size. A longer message gets a block of its own.
const BLOCK: usize = 16 << 10;

/// The capacity of a new block, which grows up to [`BLOCK`].
const FIRST_BLOCK: usize = 256;

/// The length of the number that precedes each message: twice the length of its payload, plus 1 if it is binary.
const PREFIX: usize = size_of::<u64>();

/// The messages that a client has not confirmed.
///
/// ```text
///  blocks: [ released | prefix, payload | prefix, payload ] [ prefix, payload ] ...
/// ```
#[derive(Debug, Default)]
pub(super) struct Outbox {
    blocks: VecDeque<Vec<u8>>,
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
    /// The number of bytes of those.
    confirmed_len: usize,
    /// The length of the longest message since the outbox was last empty.
    largest: usize,
    /// The memory of all blocks, in bytes.
    memory: usize,
}

impl Outbox {
    /// The number of bytes of the kept messages.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The number of bytes of the messages that were not confirmed.
    pub(super) fn unconfirmed(&self) -> usize {
        self.len - self.confirmed_len
    }

    /// The length of the longest message since the outbox was last empty. No kept message is longer.
    pub(super) fn largest(&self) -> usize {
        self.largest
    }

    /// The memory that the outbox uses, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// The number of messages that were sent before the first kept one.
    pub(super) fn before(&self) -> u64 {
        self.before
    }

    /// Adds the message that was sent last.
    pub(super) fn push(&mut self, message: Message<'_>) {
        let payload = message.as_bytes();
        let needed = PREFIX + payload.len();
        let block = match self.blocks.back_mut() {
            Some(last) if last.len() + needed <= BLOCK => last,
            _ => {
                self.blocks.push_back(Vec::new());
                let last = self.blocks.len() - 1;
                &mut self.blocks[last]
            }
        };
        if block.capacity() - block.len() < needed {
            self.memory -= block.capacity();
            let least = block.len() + needed;
            let wanted = (2 * block.capacity()).clamp(FIRST_BLOCK, BLOCK);
            block.reserve_exact(wanted.max(least) - block.len());
            self.memory += block.capacity();
        }
        let is_binary = matches!(message, Message::Binary(_));
        let prefix = (payload.len() as u64) << 1 | u64::from(is_binary);
        block.extend_from_slice(&prefix.to_le_bytes());
        block.extend_from_slice(payload);
        self.count += 1;
        self.len += needed;
        self.largest = self.largest.max(needed);
    }

    /// Records that the client has confirmed the messages up to number `until`. Drops those that it had confirmed
    /// before. Does nothing unless it confirms more than before.
    pub(super) fn confirm(&mut self, until: u64) {
        if until <= self.confirmed {
            return;
        }
        self.release_confirmed();
        let newly = (until - self.before).min(self.count) as usize;
        let lengths = self.messages().take(newly);
        self.confirmed_len = lengths
            .map(|message| PREFIX + message.as_bytes().len())
            .sum();
        self.confirmed = until;
    }

    /// Drops the messages that the client has confirmed.
    pub(super) fn release_confirmed(&mut self) {
        self.release(self.confirmed);
    }

    /// Drops the messages up to number `until`, which the client has received. Those behind it are not confirmed.
    pub(super) fn resume_after(&mut self, until: u64) {
        self.release(until);
        (self.confirmed, self.confirmed_len) = (until, 0);
    }

    fn release(&mut self, until: u64) {
        while self.before < until
            && let Some(first) = self.blocks.front()
            && let Some((_, payload)) = split(&first[self.released..])
        {
            let len = PREFIX + payload.len();
            self.before += 1;
            self.count -= 1;
            self.len -= len;
            self.confirmed_len = self.confirmed_len.saturating_sub(len);
            self.released += len;
            if self.released == first.len() {
                self.memory -= first.capacity();
                self.released = 0;
                self.blocks.pop_front();
            }
        }
        if self.count == 0 {
            self.largest = 0;
        }
    }

    /// The kept messages, oldest first.
    pub(super) fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        let mut blocks = self.blocks.iter();
        let first = blocks
            .next()
            .map_or(&[][..], |first| &first[self.released..]);
        let mut rest = first;
        std::iter::from_fn(move || {
            while rest.is_empty() {
                rest = blocks.next()?;
            }
            let (is_binary, payload) = split(rest)?;
            rest = &rest[PREFIX + payload.len()..];
            Some(match std::str::from_utf8(payload) {
                Ok(text) if !is_binary => Message::Text(text),
                _ => Message::Binary(payload),
            })
        })
    }
}

/// The first message of a part of a block: whether it is binary, and its payload.
fn split(block: &[u8]) -> Option<(bool, &[u8])> {
    let (prefix, rest) = block.split_first_chunk()?;
    let prefix = u64::from_le_bytes(*prefix);
    let payload = rest.get(..(prefix >> 1) as usize)?;
    Some((prefix & 1 == 1, payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn messages_are_kept_in_order_until_they_are_released() {
        let mut random = Random::new(1);
        let mut outbox = Outbox::default();
        let mut model: VecDeque<(bool, Vec<u8>)> = VecDeque::new();
        let mut sent = 0;
        for _ in 0..3000 {
            if random.below(3) > 0 {
                let len = match random.below(10) {
                    0 => random.below(40_000),
                    _ => random.below(60),
                };
                let payload = vec![b'a' + random.below(26) as u8; len];
                let is_binary = random.below(2) == 0;
                outbox.push(if is_binary {
                    Message::Binary(&payload)
                } else {
                    Message::Text(std::str::from_utf8(&payload).expect("letters"))
                });
                sent += 1;
                model.push_back((is_binary, payload));
            } else {
                let before = outbox.before();
                let until = (before + random.below(8) as u64).min(sent);
                match random.below(3) {
                    0 => outbox.confirm(until),
                    1 => outbox.release_confirmed(),
                    _ => outbox.resume_after(until),
                }
                model.drain(..(outbox.before() - before) as usize);
                let confirmed = outbox.confirmed.saturating_sub(outbox.before());
                let confirmed = model.iter().take(confirmed as usize);
                let bytes: usize = confirmed.map(|(_, payload)| PREFIX + payload.len()).sum();
                assert_eq!(outbox.confirmed_len, bytes);
            }
            let kept = outbox.messages().map(|message| {
                let is_binary = matches!(message, Message::Binary(_));
                (is_binary, message.as_bytes().to_vec())
            });
            assert!(kept.eq(model.iter().cloned()));
            assert_eq!(outbox.before() + model.len() as u64, sent);
            let bytes: usize = model
                .iter()
                .map(|(_, payload)| PREFIX + payload.len())
                .sum();
            assert_eq!(outbox.len(), bytes);
            let capacity: usize = outbox.blocks.iter().map(Vec::capacity).sum();
            assert_eq!(outbox.memory(), capacity);
            // At most the released part of the first block and the free part of the last one are not messages.
            assert!(outbox.memory() <= bytes + 2 * BLOCK.max(outbox.largest()));
        }
        outbox.resume_after(sent);
        assert_eq!((outbox.len(), outbox.memory(), outbox.largest()), (0, 0, 0));
    }
}
