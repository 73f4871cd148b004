//! The output of a connection that its socket has not taken.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;

use super::broadcast::{Batches, Encoded, Frames, LongMessage};
use crate::protocol::Time;
use crate::protocol::deflate::{Codec, Compression, CompressionFailed, Squeeze};
use crate::record::{Loader, Record, RecordError, Saver, Set, object};
use crate::server::stream::Stream;
use crate::server::tls::Scratch;

/// Output is collected in blocks of about this size. A larger piece gets a block of its own.
const BLOCK: usize = 64 << 10;

/// A block below this length is copied to its neighbour.
const SMALL_BLOCK: usize = 4 << 10;

/// The maximum number of blocks in one write.
const BLOCKS_PER_WRITE: usize = 32;

/// The number of blocks for which an output that is kept although it is empty has room.
const KEPT_BLOCKS: usize = 4;

/// Bytes that wait to be written. Each block contains whole frames.
#[derive(Debug)]
enum Block {
    Own(Vec<u8>),
    /// Frames of broadcasts, which several connections share.
    Shared(Frames),
    /// A part of the program, such as a page.
    Static(&'static [u8]),
    /// A message that is compressed when the socket has room for it.
    Squeeze(Squeeze),
    /// A message of several connections that is compressed when the socket of one of them has room for it.
    Long(LongMessage),
}

impl Block {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(frames) => frames.as_slice(),
            Self::Static(bytes) => bytes,
            Self::Squeeze(_) | Self::Long(_) => &[],
        }
    }

    /// Whether it is compressed later.
    fn is_unmade(&self) -> bool {
        matches!(self, Self::Squeeze(_) | Self::Long(_))
    }

    /// The number of bytes that count as queued.
    fn len(&self) -> usize {
        match self {
            Self::Squeeze(message) => message.remaining(),
            Self::Long(message) => message.len(),
            Self::Shared(frames) => frames.len(),
            bytes => bytes.as_slice().len(),
        }
    }
}

/// The queued output of a connection.
///
/// ```text
///  blocks: [ written | waiting ] [ waiting ] ... [ waiting, may grow ]
///                    ^ written bytes of the first block
/// ```
#[derive(Debug, Default)]
pub(super) struct Output {
    blocks: VecDeque<Block>,
    /// The number of blocks, at the front, that are not to be [copied](Output::copy_short).
    checked: usize,
    /// The number of blocks that are compressed with the context of the client.
    squeezes: usize,
    /// The number of bytes of the first block that were written. It is less than the block's length, and 0 if there is no
    /// block.
    written: usize,
    /// Whether the first block continues a frame whose start was written before the block was queued.
    begun: bool,
    /// The number of unwritten bytes in all blocks.
    queued: usize,
    /// The length of the longest piece added since the output was last empty.
    largest: usize,
    /// While over the limit: the number of bytes that the peer has accepted, and when that last changed.
    taken: Option<(u64, Time)>,
    /// Whether the socket was full at the last write. An event reports when it has room.
    pub(super) blocked: bool,
    /// Whether the output has exceeded the soft limit and has not drained since.
    pub(super) congested: bool,
    /// Whether the client is queued to be written at the end of the turn.
    pub(super) dirty: bool,
}

/// The bytes that were not written. Messages that wait to be compressed are not saved: see [`Output::finish`].
impl Record for Output {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        let Self {
            blocks,
            checked: _,
            squeezes: _,
            written,
            begun,
            queued: _,
            largest,
            taken,
            blocked,
            congested,
            dirty: _,
        } = self;
        let skip = std::iter::once(*written).chain(std::iter::repeat(0));
        to.open(b'{');
        to.member("blocks", |to| {
            to.array(blocks.iter().zip(skip), |to, (block, skip)| {
                to.put_bytes(&block.as_slice()[skip..]);
            });
        });
        to.member("begun", |to| to.bool(*begun || *written > 0));
        to.field("largest", largest);
        to.field("taken", taken);
        to.field("blocked", blocked);
        to.field("congested", congested);
        to.close(b'}');
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        let (mut output, mut blocks) = (Self::default(), Vec::<Vec<u8>>::new());
        object!(from {
            blocks: Set(&mut blocks),
            begun: Set(&mut output.begun),
            largest: Set(&mut output.largest),
            taken: Set(&mut output.taken),
            blocked: Set(&mut output.blocked),
            congested: Set(&mut output.congested),
        })?;
        let blocks = blocks.into_iter().filter(|block| !block.is_empty());
        output.blocks = blocks.map(Block::Own).collect();
        output.begun &= !output.blocks.is_empty();
        output.queued = output.blocks.iter().map(Block::len).sum();
        Ok(output)
    }
}

impl Output {
    /// The number of bytes of output that wait.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// The length of the longest piece added since the output was last empty. No waiting message is longer.
    pub(super) fn largest(&self) -> usize {
        self.largest
    }

    /// The memory of the output, in bytes. Clients that share a frame hold equal parts of it.
    pub(super) fn held(&self) -> usize {
        let block = |block: &Block| match block {
            Block::Own(bytes) => bytes.capacity(),
            Block::Shared(frames) => frames.held() + size_of::<Block>(),
            Block::Static(_) => 0,
            Block::Squeeze(message) => message.remaining(),
            Block::Long(message) => message.held(),
        };
        self.blocks.iter().map(block).sum()
    }

    /// Whether the peer has accepted any bytes within `patience`. `delivered` is the number that it has accepted so
    /// far. The first call begins the measurement.
    pub(super) fn takes_steadily(&mut self, delivered: u64, now: Time, patience: Duration) -> bool {
        let (taken, since) = *self.taken.get_or_insert((delivered, now));
        if delivered.wrapping_sub(taken) as i64 > 0 {
            self.taken = Some((delivered, now));
            return true;
        }
        now.since(since) < patience
    }

    /// Whether nothing is queued, and nothing is held back until it has drained.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.queued == 0 && !self.congested
    }

    /// Appends whole frames, given in parts. The first `skip` bytes have been written already.
    pub(super) fn push(&mut self, parts: &[&[u8]], mut skip: usize) {
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
    pub(super) fn push_static(&mut self, bytes: &'static [u8]) {
        if bytes.is_empty() {
            return;
        }
        self.queued += bytes.len();
        self.largest = self.largest.max(bytes.len());
        self.blocks.push_back(Block::Static(bytes));
        self.check();
    }

    /// Appends the blocks of one long message.
    pub(super) fn push_blocks(&mut self, blocks: Vec<Vec<u8>>) {
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

    /// Appends a message that several clients share.
    pub(super) fn push_shared(&mut self, message: Encoded<'_>) {
        match message {
            Encoded::Frames(frames) => self.push_frames(frames),
            Encoded::Long(message) => {
                self.queued += message.len();
                self.largest = self.largest.max(message.len());
                self.blocks.push_back(Block::Long(message.clone()));
                self.check();
            }
        }
    }

    /// Appends frames that directly follow the last ones in their batch, if the output is written at the end of the turn anyway and
    /// stays below `most` bytes. Returns whether it has.
    #[inline]
    pub(super) fn extend_shared(&mut self, frames: &Frames, most: usize) -> bool {
        let queued = self.queued + frames.len();
        if !self.dirty || self.blocked || queued > most {
            return false;
        }
        let Some(Block::Shared(last)) = self.blocks.back_mut() else {
            return false;
        };
        let extends = last.extend(frames);
        if extends {
            self.queued = queued;
            self.largest = self.largest.max(frames.len());
            self.check();
        }
        extends
    }

    fn push_frames(&mut self, frames: &Frames) {
        let len = frames.len();
        let extends = match self.blocks.back_mut() {
            Some(Block::Shared(last)) => last.extend(frames),
            _ => false,
        };
        if !extends {
            self.copy_short();
            self.blocks.push_back(Block::Shared(frames.clone()));
        }
        self.queued += len;
        self.largest = self.largest.max(len);
        self.check();
    }

    /// Replaces shared blocks with copies, where these take less memory, up to the first block whose batch is not complete. Looks at
    /// each block once.
    pub(super) fn copy_short(&mut self) {
        let is_open = |block: &Block| matches!(block, Block::Shared(one) if !one.are_complete());
        if self.blocks.get(self.checked).is_none_or(is_open) {
            return;
        }
        for block in self.blocks.split_off(self.checked) {
            match &block {
                Block::Shared(frames) if frames.are_better_copied() => {
                    let skip = if self.blocks.is_empty() {
                        self.written
                    } else {
                        0
                    };
                    self.append_copy(&frames.as_slice()[skip..], skip > 0);
                }
                _ => self.blocks.push_back(block),
            }
        }
        let open = self.blocks.iter().skip(self.checked).position(is_open);
        // The last block may grow.
        let last = self.blocks.len().saturating_sub(1);
        self.checked = open.map_or(last, |open| self.checked + open);
        self.check();
    }

    /// Appends a copy of bytes that are counted already. `continues` says that the start of the first frame was written.
    fn append_copy(&mut self, bytes: &[u8], continues: bool) {
        if continues {
            (self.written, self.begun) = (0, true);
        }
        match self.blocks.back_mut() {
            Some(Block::Own(last)) if last.len() + bytes.len() <= BLOCK => {
                last.extend_from_slice(bytes);
            }
            _ => self.blocks.push_back(Block::Own(bytes.to_vec())),
        }
    }

    /// Appends a message that is compressed when it is sent.
    pub(super) fn push_squeeze(&mut self, message: Squeeze) {
        self.queued += message.remaining();
        self.largest = self.largest.max(message.remaining());
        self.squeezes += 1;
        self.blocks.push_back(Block::Squeeze(message));
        self.check();
    }

    /// Whether a message waits to be compressed with the client's context, so that nothing else may be compressed before it.
    pub(super) fn has_squeeze(&self) -> bool {
        self.squeezes > 0
    }

    /// Whether the first block must be compressed before it is sent.
    pub(super) fn must_squeeze(&self) -> bool {
        self.blocks.front().is_some_and(Block::is_unmade)
    }

    /// Compresses a slice of the first block if it must be compressed, and returns the number of bytes compressed.
    pub(super) fn squeeze(
        &mut self,
        codec: Option<&mut Codec>,
        mut shared: Option<&mut Compression>,
        batches: &Batches,
    ) -> Result<Option<usize>, CompressionFailed> {
        if let (Some(Block::Long(message)), Some(shared)) =
            (self.blocks.front(), shared.as_deref_mut())
        {
            let (taken, frames) = message.next(shared, &batches.slots)?;
            if let Some(frames) = frames {
                self.queued = self.queued - message.len() + frames.len();
                self.blocks[0] = Block::Shared(frames);
            }
            self.check();
            return Ok(Some(taken));
        }
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
            self.squeezes -= 1;
            self.checked = self.checked.saturating_sub(1);
        }
        self.queued += frame.len();
        self.queued -= taken;
        if !frame.is_empty() {
            self.blocks.push_front(Block::Own(frame));
            self.checked += usize::from(self.checked > 0);
        }
        self.check();
        Ok(Some(taken))
    }

    /// Compresses every block that must be compressed before it is sent.
    pub(super) fn finish(
        &mut self,
        mut codec: Option<&mut Codec>,
        mut shared: Option<&mut Compression>,
        batches: &Batches,
    ) -> Result<(), CompressionFailed> {
        if !self.blocks.iter().any(Block::is_unmade) {
            return Ok(());
        }
        let mut made = VecDeque::new();
        while !self.blocks.is_empty() {
            while self.must_squeeze() {
                // The squeezed part comes before the rest.
                let (codec, shared) = (codec.as_deref_mut(), shared.as_deref_mut());
                if self.squeeze(codec, shared, batches)?.is_none() {
                    debug_assert!(false, "a message that waits to be compressed has a codec");
                    self.blocks.pop_front();
                }
            }
            if let Some(block) = self.blocks.pop_front() {
                self.queued -= block.len();
                made.push_back(block);
            }
        }
        (self.blocks, self.checked) = (made, 0);
        self.queued = self.blocks.iter().map(Block::len).sum::<usize>() - self.written;
        self.check();
        Ok(())
    }

    /// Drops every block of which no byte was written.
    pub(super) fn drop_unbegun(&mut self) {
        self.blocks
            .truncate(usize::from(self.written > 0 || self.begun));
        self.checked = self.checked.min(self.blocks.len());
        self.squeezes = self
            .blocks
            .iter()
            .filter(|block| matches!(block, Block::Squeeze(_)))
            .count();
        self.queued = self
            .blocks
            .front()
            .map_or(0, |block| block.len() - self.written);
        self.check();
    }

    /// Writes once and returns the number of bytes that the socket has taken.
    pub(super) fn write(&mut self, stream: &mut Stream, scratch: &mut Scratch) -> io::Result<u64> {
        let (taken, offered) = if self.blocks.len() == 1 {
            let bytes = &self.blocks[0].as_slice()[self.written..];
            (stream.write(&[IoSlice::new(bytes)], scratch)?, bytes.len())
        } else {
            self.write_blocks(stream, scratch)?
        };
        // After a short write, the socket is normally full. An event reports when it has room.
        self.blocked = taken < offered && !stream.has_room();
        self.advance(taken);
        Ok(stream.sent(taken))
    }

    /// Writes the first blocks. Returns the number of bytes that the socket has taken, and the number offered to it.
    fn write_blocks(
        &self,
        stream: &mut Stream,
        scratch: &mut Scratch,
    ) -> io::Result<(usize, usize)> {
        let mut slices = [IoSlice::new(&[]); BLOCKS_PER_WRITE];
        let mut count = 0;
        let mut offered = 0;
        let made = self.blocks.iter().take_while(|block| !block.is_unmade());
        for (slice, block) in slices.iter_mut().zip(made) {
            let skip = if count == 0 { self.written } else { 0 };
            let bytes = &block.as_slice()[skip..];
            *slice = IoSlice::new(bytes);
            count += 1;
            offered += bytes.len();
        }
        Ok((stream.write(&slices[..count], scratch)?, offered))
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
            self.checked = self.checked.saturating_sub(1);
        }
        if self.queued == 0 {
            (self.largest, self.taken) = (0, None);
            // A member of a topic keeps the room for a few blocks, because it is sent more soon.
            if self.blocks.capacity() > KEPT_BLOCKS {
                self.blocks.shrink_to(KEPT_BLOCKS);
            }
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
