//! Collects the output of an `exec` call as base64 until its process exits, up to a limit for each stream and one for all calls
//! together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::event_stream::Details;
use super::scrollback::OutputStream;
use crate::ClientId;

/// Bytes of space offered at a time for collected output.
const STEP: usize = 16 << 10;

/// Output that is collected until the program exits, up to a limit for each stream.
#[derive(Debug)]
pub(crate) struct CollectedOutput {
    /// The caller that gets the output.
    pub(crate) caller: ClientId,
    pub(crate) details: Details,
    stdout: Base64Blocks,
    stderr: Base64Blocks,
    limit: usize,
    budget: ExecBudget,
    /// The number of bytes that are reserved from the budget.
    held: usize,
    /// Space for the next read.
    space: Vec<u8>,
    exceeded: Option<Exceeded>,
}

/// The limit that a program's output has exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exceeded {
    /// The limit of one stream, in bytes.
    Stream(usize),
    /// The limit of all collected output together.
    Total,
    /// That of the memory of the server.
    Memory,
}

/// The number of bytes that are collected for all calls together, and their limit.
#[derive(Clone, Debug)]
pub(crate) struct ExecBudget {
    bytes: Arc<AtomicUsize>,
    most: usize,
}

impl ExecBudget {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            bytes: Arc::default(),
            most,
        }
    }

    /// Whether the limit is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= self.most
    }

    /// Reserves space for `count` bytes, if there is enough.
    fn reserve(&self, count: usize) -> bool {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let fits = count <= self.most.saturating_sub(bytes);
        if fits {
            self.bytes.store(bytes + count, Ordering::Relaxed);
        }
        fits
    }
}

impl CollectedOutput {
    /// Collects at most `limit` bytes of each stream.
    pub(crate) fn new(
        caller: ClientId,
        details: Details,
        limit: usize,
        budget: ExecBudget,
    ) -> Self {
        Self {
            caller,
            details,
            stdout: Base64Blocks::default(),
            stderr: Base64Blocks::default(),
            limit,
            budget,
            held: 0,
            space: vec![0; STEP],
            exceeded: None,
        }
    }

    /// Space for at most this many bytes of output.
    pub(super) fn space(&mut self, most: usize) -> &mut [u8] {
        let most = most.min(STEP);
        &mut self.space[..most]
    }

    pub(super) fn commit(&mut self, stream: OutputStream, count: usize) {
        if self.exceeded.is_some() {
            return;
        }
        let collected = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        if count > self.limit - collected.len() {
            self.exceed(Exceeded::Stream(self.limit));
        } else if self.budget.reserve(count) {
            self.held += count;
            collected.push(&self.space[..count]);
        } else {
            self.exceed(Exceeded::Total);
        }
    }

    /// The answer is an error, so the output is not needed. Other calls get its space at once, or all of them would fail
    /// together.
    pub(crate) fn exceed(&mut self, limit: Exceeded) {
        self.exceeded = Some(limit);
        self.stdout = Base64Blocks::default();
        self.stderr = Base64Blocks::default();
        self.release();
    }

    /// Gives the space back.
    fn release(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.budget.bytes.fetch_sub(held, Ordering::Relaxed);
    }

    /// Takes standard output and standard error as base64, each in blocks.
    pub(super) fn take(&mut self) -> [Vec<String>; 2] {
        [&mut self.stdout, &mut self.stderr].map(|output| std::mem::take(output).finish())
    }

    /// The number of bytes that are held.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// The memory in bytes. The output is held as base64.
    pub(super) fn memory(&self) -> usize {
        self.held / 3 * 4 + self.space.capacity()
    }

    /// The limit because of which output was dropped, if any was.
    pub(crate) fn exceeded(&self) -> Option<Exceeded> {
        self.exceeded
    }
}

impl Drop for CollectedOutput {
    fn drop(&mut self) {
        self.release();
    }
}

/// The length of a block from which on further text goes into a new one. Blocks that grew without a limit would be copied
/// again and again.
const BLOCK: usize = 256 << 10;

/// Base64 encodes this many bytes at a time.
const GROUP: usize = 3;

/// Bytes as base64.
#[derive(Debug, Default)]
struct Base64Blocks {
    blocks: Vec<String>,
    /// The bytes after the last whole group, fewer than [`GROUP`].
    rest: Vec<u8>,
    /// The number of bytes that were added.
    len: usize,
}

impl Base64Blocks {
    /// The number of bytes that were added.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds bytes.
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len();
        if !self.rest.is_empty() {
            let missing = (GROUP - self.rest.len()).min(bytes.len());
            let (first, others) = bytes.split_at(missing);
            self.rest.extend_from_slice(first);
            bytes = others;
            if self.rest.len() < GROUP {
                return;
            }
            let group = std::mem::take(&mut self.rest);
            self.encode(&group);
        }
        let (groups, rest) = bytes.split_at(bytes.len() / GROUP * GROUP);
        self.encode(groups);
        self.rest.extend_from_slice(rest);
    }

    fn encode(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let is_full = self.blocks.last().is_none_or(|last| last.len() >= BLOCK);
        if is_full {
            self.blocks.push(String::new());
        }
        if let Some(block) = self.blocks.last_mut() {
            BASE64_STANDARD.encode_string(bytes, block);
        }
    }

    /// The text, in blocks.
    pub(super) fn finish(mut self) -> Vec<String> {
        let rest = std::mem::take(&mut self.rest);
        self.encode(&rest);
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn collect(collected: &mut CollectedOutput, stream: OutputStream, mut count: usize) {
        while count > 0 {
            let piece = count.min(STEP);
            collected.space[..piece].fill(b'x');
            collected.commit(stream, piece);
            count -= piece;
        }
    }

    /// The bug: thirty callers could each have 32 MiB collected, and there was no limit for all of them together.
    #[test]
    fn collected_output_has_a_limit_per_stream_and_in_total() {
        let budget = ExecBudget::new(250_000);
        let caller: ClientId = "c1".parse().expect("an id");
        let new = || CollectedOutput::new(caller, Details::Usual, 100_000, budget.clone());
        let held = || budget.bytes.load(Ordering::Relaxed);
        let mut one = new();
        collect(&mut one, OutputStream::Stdout, 100_000);
        collect(&mut one, OutputStream::Stderr, 100_000);
        assert_eq!((one.exceeded(), held()), (None, 200_000));
        // The bug: what was collected for a call that failed was held until its process had exited, so that other calls
        // failed with it.
        let mut other = new();
        collect(&mut other, OutputStream::Stdout, 60_000);
        assert_eq!((other.exceeded(), held()), (Some(Exceeded::Total), 200_000));
        collect(&mut one, OutputStream::Stderr, 1);
        assert_eq!(
            (one.exceeded(), held()),
            (Some(Exceeded::Stream(100_000)), 0)
        );
        collect(&mut one, OutputStream::Stdout, 1000);
        let mut third = new();
        collect(&mut third, OutputStream::Stdout, 100_000);
        assert_eq!((third.exceeded(), held()), (None, 100_000));
        assert!(!budget.is_full());
        drop((one, other, third));
        assert_eq!(held(), 0, "the whole budget is free again");
    }

    #[test]
    fn pieces_are_encoded_as_the_whole() {
        let mut random = Random::new(91);
        for size in [0, 1, 2, 3, 4, 5, 100, 300_000, 1_000_000] {
            let whole = random.bytes(size);
            let mut blocks = Base64Blocks::default();
            let mut left = &whole[..];
            while !left.is_empty() {
                let most = [1, 2, 3, 7, 5000, 40_000][random.below(6)];
                let (piece, others) = left.split_at(left.len().min(random.below(most + 1)));
                blocks.push(piece);
                left = others;
            }
            assert_eq!(blocks.len(), whole.len());
            let blocks = blocks.finish();
            assert!(blocks.iter().all(|block| block.len() < 2 * BLOCK));
            assert_eq!(blocks.concat(), BASE64_STANDARD.encode(&whole), "{size}");
        }
    }
}
