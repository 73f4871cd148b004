//! The backlog of a client: output that waits for the socket, and input that waits to be handled.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use super::forwarding::Forwarding;
use super::resumable::Resumable;
use super::takeover::Join;
use crate::protocol::Time;
use crate::protocol::deflate::{Codec, Compression, CompressionFailed, Squeeze};
use crate::protocol::http::TraceParent;
use crate::server::stream::Stream;
use crate::server::tls::Scratch;

/// Output is collected in blocks of about this size. A larger piece gets a block of its own.
const BLOCK: usize = 64 << 10;

/// A block below this length is copied to its neighbour.
const SMALL_BLOCK: usize = 4 << 10;

/// The maximum number of blocks in one write.
const BLOCKS_PER_WRITE: usize = 16;

/// Bytes that wait to be written. Each block contains whole frames.
#[derive(Debug)]
enum Block {
    Own(Vec<u8>),
    Shared(Arc<[u8]>),
    /// A part of the program, such as a page.
    Static(&'static [u8]),
    /// A message that is compressed when the socket has room for it.
    Squeeze(Squeeze),
}

impl Block {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
            Self::Static(bytes) => bytes,
            Self::Squeeze(_) => &[],
        }
    }

    /// The number of bytes that count as queued.
    fn len(&self) -> usize {
        match self {
            Self::Squeeze(message) => message.remaining(),
            bytes => bytes.as_slice().len(),
        }
    }
}

/// The waiting output and input of a client. A client has a backlog only while something waits, or if it is resumable
/// or comes from a trusted proxy.
///
/// ```text
///  blocks: [ written | waiting ] [ waiting ] ... [ waiting, may grow ]
///                    ^ written bytes of the first block
/// ```
#[derive(Debug, Default)]
pub(in crate::server) struct Backlog {
    blocks: VecDeque<Block>,
    /// The number of bytes of the first block that were written. It is less than the block's length, and 0 if there is no
    /// block.
    written: usize,
    /// Whether the first block continues a frame whose start was written before the block was queued.
    begun: bool,
    /// The number of unwritten bytes in all blocks.
    queued: usize,
    /// The length of the longest piece added since the backlog was last empty.
    largest: usize,
    /// While over the limit: the number of bytes that the peer has accepted, and when that last changed.
    taken: Option<(u64, Time)>,
    /// Whether the socket was full at the last write. An event reports when it has room.
    pub(in crate::server) blocked: bool,
    /// Whether the output has exceeded the soft limit and has not drained since.
    pub(in crate::server) congested: bool,
    /// Whether the client is queued to be written at the end of the turn.
    pub(in crate::server) dirty: bool,
    /// Input that was read but not handled yet.
    pub(in crate::server) unread: Vec<u8>,
    /// The state of a client that can resume its connection.
    pub(super) resumable: Option<Box<Resumable>>,
    /// The state of a connection from a trusted proxy. The loop keeps it until the connection, or its client, ends.
    pub(super) forwarding: Option<Box<Forwarding>>,
    /// The trace of the last request of the connection.
    pub(super) trace: Option<Box<TraceParent>>,
    /// Set while this connection is about to continue another client.
    pub(super) join: Option<Join>,
}

impl Backlog {
    /// The number of bytes of output that wait.
    pub(in crate::server) fn queued(&self) -> usize {
        self.queued
    }

    /// The length of the longest piece added since the backlog was last empty. No waiting message is longer.
    pub(in crate::server) fn largest(&self) -> usize {
        self.largest
    }

    /// The memory that is held for the client, in bytes. Clients that share a frame hold equal parts of it.
    pub(super) fn held(&self) -> usize {
        let block = |block: &Block| match block {
            Block::Own(bytes) => bytes.capacity(),
            Block::Shared(bytes) => bytes.len() / Arc::strong_count(bytes),
            Block::Static(_) => 0,
            Block::Squeeze(message) => message.remaining(),
        };
        let resumable = self.resumable.as_ref();
        self.blocks.iter().map(block).sum::<usize>()
            + self.unread.capacity()
            + resumable.map_or(0, |resumable| resumable.outbox.memory())
    }

    /// Whether the peer has accepted any bytes within `patience`. `delivered` is the number that it has accepted so
    /// far. The first call begins the measurement.
    pub(in crate::server) fn takes_steadily(
        &mut self,
        delivered: u64,
        now: Time,
        patience: Duration,
    ) -> bool {
        let (taken, since) = *self.taken.get_or_insert((delivered, now));
        if delivered.wrapping_sub(taken) as i64 > 0 {
            self.taken = Some((delivered, now));
            return true;
        }
        now.since(since) < patience
    }

    /// Whether neither output nor input waits, and nothing is kept for the client.
    pub(in crate::server) fn is_empty(&self) -> bool {
        let keeps = self.resumable.is_some()
            || self.forwarding.is_some()
            || self.trace.is_some()
            || self.join.is_some();
        self.queued == 0 && self.unread.is_empty() && !keeps
    }

    /// Drops the output and the input of a connection that was cut.
    pub(super) fn forget_wire(&mut self) {
        *self = Self {
            resumable: self.resumable.take(),
            forwarding: self.forwarding.take(),
            trace: self.trace.take(),
            ..Self::default()
        };
    }

    /// Appends whole frames, given in parts. The first `skip` bytes have been written already.
    pub(in crate::server) fn push(&mut self, parts: &[&[u8]], mut skip: usize) {
        let total = parts.iter().map(|part| part.len()).sum::<usize>();
        if skip > 0 {
            debug_assert!(self.queued == 0 && skip < total);
            self.begun = true;
        }
        let grows =
            matches!(self.blocks.back(), Some(Block::Own(last)) if last.len() + total <= BLOCK);
        if !grows {
            self.blocks
                .push_back(Block::Own(Vec::with_capacity(total - skip)));
        }
        let Some(Block::Own(block)) = self.blocks.back_mut() else {
            return;
        };
        self.queued += total - skip;
        self.largest = self.largest.max(total);
        for part in parts {
            let skipped = skip.min(part.len());
            skip -= skipped;
            block.extend_from_slice(&part[skipped..]);
        }
        self.check();
    }

    /// Appends bytes that are part of the program. They take no memory of the connection.
    pub(in crate::server) fn push_static(&mut self, bytes: &'static [u8]) {
        if bytes.is_empty() {
            return;
        }
        self.queued += bytes.len();
        self.largest = self.largest.max(bytes.len());
        self.blocks.push_back(Block::Static(bytes));
        self.check();
    }

    /// Appends the blocks of one long message.
    pub(in crate::server) fn push_blocks(&mut self, blocks: Vec<Vec<u8>>) {
        let total = blocks.iter().map(Vec::len).sum::<usize>();
        for block in blocks.into_iter().filter(|block| !block.is_empty()) {
            if block.len() < SMALL_BLOCK {
                self.push(&[&block], 0);
            } else {
                self.queued += block.len();
                self.blocks.push_back(Block::Own(block));
            }
        }
        self.largest = self.largest.max(total);
        self.check();
    }

    /// Appends a frame that several clients share. The first `written` bytes have been written already.
    pub(in crate::server) fn push_shared(&mut self, frame: Arc<[u8]>, written: usize) {
        debug_assert!(written < frame.len() && (written == 0 || self.queued == 0));
        if self.queued == 0 {
            self.written = written;
        }
        self.queued += frame.len() - written;
        self.largest = self.largest.max(frame.len());
        self.blocks.push_back(Block::Shared(frame));
        self.check();
    }

    /// Appends a message that is compressed when it is sent.
    pub(in crate::server) fn push_squeeze(&mut self, message: Squeeze) {
        self.queued += message.remaining();
        self.largest = self.largest.max(message.remaining());
        self.blocks.push_back(Block::Squeeze(message));
        self.check();
    }

    /// Whether a message waits to be compressed, so that nothing else may be compressed before it.
    pub(in crate::server) fn has_squeeze(&self) -> bool {
        let is_squeeze = |block: &Block| matches!(block, Block::Squeeze(_));
        self.blocks.iter().any(is_squeeze)
    }

    /// Whether the first block must be compressed before it is sent.
    pub(in crate::server) fn must_squeeze(&self) -> bool {
        matches!(self.blocks.front(), Some(Block::Squeeze(_)))
    }

    /// Compresses a slice of the first block if it must be compressed, and returns the number of bytes compressed.
    pub(in crate::server) fn squeeze(
        &mut self,
        codec: Option<&mut Codec>,
        shared: Option<&mut Compression>,
    ) -> Result<Option<usize>, CompressionFailed> {
        let (Some(Block::Squeeze(message)), Some(codec), Some(shared)) =
            (self.blocks.front_mut(), codec, shared)
        else {
            return Ok(None);
        };
        let before = message.remaining();
        let mut frame = Vec::new();
        let done = message.next(codec, shared, &mut frame)?;
        let taken = before - message.remaining();
        if done {
            self.blocks.pop_front();
        }
        self.queued += frame.len();
        self.queued -= taken;
        if !frame.is_empty() {
            self.blocks.push_front(Block::Own(frame));
        }
        self.check();
        Ok(Some(taken))
    }

    /// Drops every block of which no byte was written.
    pub(in crate::server) fn drop_unbegun(&mut self) {
        self.blocks
            .truncate(usize::from(self.written > 0 || self.begun));
        self.queued = self
            .blocks
            .front()
            .map_or(0, |block| block.len() - self.written);
        self.check();
    }

    /// Writes once and returns the number of bytes that the socket has taken.
    pub(in crate::server) fn write(
        &mut self,
        stream: &mut Stream,
        scratch: &mut Scratch,
    ) -> io::Result<u64> {
        let mut slices = [IoSlice::new(&[]); BLOCKS_PER_WRITE];
        let mut count = 0;
        let mut offered = 0;
        let made = |block: &&Block| !matches!(block, Block::Squeeze(_));
        for (slice, block) in slices.iter_mut().zip(self.blocks.iter().take_while(made)) {
            let skip = if count == 0 { self.written } else { 0 };
            let bytes = &block.as_slice()[skip..];
            *slice = IoSlice::new(bytes);
            count += 1;
            offered += bytes.len();
        }
        let taken = stream.write(&slices[..count], scratch)?;
        // After a short write, the socket is normally full. An event reports when it has room.
        self.blocked = taken < offered && !stream.has_room();
        self.advance(taken);
        Ok(stream.sent(taken))
    }

    fn advance(&mut self, mut taken: usize) {
        self.queued -= taken;
        while taken > 0
            && let Some(first) = self.blocks.front()
        {
            let left = first.as_slice().len() - self.written;
            if taken < left {
                self.written += taken;
                break;
            }
            taken -= left;
            self.written = 0;
            self.begun = false;
            self.blocks.pop_front();
        }
        if self.queued == 0 {
            (self.largest, self.taken) = (0, None);
        }
        self.check();
    }

    fn check(&self) {
        debug_assert_eq!(
            self.queued + self.written,
            self.blocks.iter().map(Block::len).sum::<usize>()
        );
        debug_assert!(
            self.blocks
                .front()
                .is_none_or(|block| self.written < block.len())
        );
    }
}
