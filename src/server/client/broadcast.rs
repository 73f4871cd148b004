//! Broadcasts: messages whose frames many connections share.
//!
//! The frames of a turn's broadcasts are gathered, one behind the other, in a [`Batch`]. The output of a receiver refers to its part of
//! the batch. So several messages in a row are one block of its output and one buffer of its write, and they are in memory once,
//! however many clients have not taken them. A batch is complete before anything of it is written.

use std::sync::{Arc, OnceLock};

use crate::protocol::deflate::{Compression, SLICE};
use crate::protocol::{Message, OwnedMessage, SentHeader, WebSocket};

/// A batch that is at least this long gets no more frames.
const BATCH: usize = 64 << 10;

/// Frames of broadcasts, one behind the other. Empty until the batch is complete.
#[derive(Debug, Default)]
struct Batch(OnceLock<Box<[u8]>>);

/// Whole frames of a batch, or a part of one frame.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    batch: Arc<Batch>,
    start: usize,
    end: usize,
}

impl Frames {
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// The bytes. The batch must be complete.
    pub(super) fn as_slice(&self) -> &[u8] {
        debug_assert!(self.batch.0.get().is_some(), "the batch is complete");
        let batch = self.batch.0.get().map_or(&[][..], |batch| batch);
        batch.get(self.start..self.end).unwrap_or_default()
    }

    /// Whether `next` follows directly. Then these frames include it from now on.
    pub(super) fn extend(&mut self, next: &Self) -> bool {
        let follows = self.end == next.start && Arc::ptr_eq(&self.batch, &next.batch);
        if follows {
            self.end = next.end;
        }
        follows
    }

    /// The last `len` bytes.
    fn tail(&self, len: usize) -> Self {
        Self {
            start: self.end - len,
            ..self.clone()
        }
    }

    /// Whether a copy of the frames would take less memory than keeping their batch. The answer is no for a batch that is not
    /// complete, because more frames may follow.
    pub(super) fn are_better_copied(&self) -> bool {
        /// Shorter frames are copied. A block and a buffer of a write cost more than the copy.
        const SHORT: usize = 256;
        /// So are frames that are less than this part of their batch, because each of them keeps all of it.
        const PART: usize = 4;
        let batch = self.batch.0.get();
        batch.is_some_and(|batch| self.len() < SHORT.max(batch.len() / PART))
    }

    /// The part of the batch's memory, in bytes, that is attributed to these frames: those who refer to the batch share it equally.
    pub(super) fn held(&self) -> usize {
        let batch = self.batch.0.get().map_or(self.len(), |batch| batch.len());
        batch / Arc::strong_count(&self.batch)
    }
}

/// A batch to which frames are added.
#[derive(Debug, Default)]
struct OpenBatch {
    batch: Arc<Batch>,
    frames: Vec<u8>,
}

impl OpenBatch {
    fn add(&mut self, header: SentHeader, payload: &[u8]) -> Frames {
        if self.frames.len() >= BATCH {
            self.complete();
        }
        let start = self.frames.len();
        header.append_with(payload, &mut self.frames);
        Frames {
            batch: Arc::clone(&self.batch),
            start,
            end: self.frames.len(),
        }
    }

    fn complete(&mut self) {
        if !self.frames.is_empty() {
            let frames = std::mem::take(&mut self.frames).into_boxed_slice();
            let set = std::mem::take(&mut self.batch).0.set(frames);
            debug_assert!(set.is_ok(), "a batch is completed once");
        }
    }
}

/// The batches to which this turn's broadcasts are added.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    plain: OpenBatch,
    /// The compressed frames, by the bits of their window.
    compressed: Vec<(u8, OpenBatch)>,
    is_open: bool,
}

impl Batches {
    /// Completes the batches. Call it before output is written.
    #[inline]
    pub(super) fn complete(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.complete_open();
        }
    }

    #[inline(never)]
    fn complete_open(&mut self) {
        self.plain.complete();
        for (_, batch) in &mut self.compressed {
            batch.complete();
        }
    }

    fn add_plain(&mut self, message: Message<'_>) -> Frames {
        self.is_open = true;
        let payload = message.as_bytes();
        self.plain
            .add(SentHeader::new(message.opcode(), payload.len()), payload)
    }

    fn add_compressed(&mut self, message: Message<'_>, window: u8, compressed: &[u8]) -> Frames {
        self.is_open = true;
        let known = self.compressed.iter().position(|(bits, _)| *bits == window);
        let at = known.unwrap_or_else(|| {
            self.compressed.push((window, OpenBatch::default()));
            self.compressed.len() - 1
        });
        let header = SentHeader::compressed(message.opcode(), compressed.len());
        self.compressed[at].1.add(header, compressed)
    }
}

/// A message that several clients keep, each of them until it has confirmed it.
#[derive(Clone, Debug)]
pub(super) struct SharedMessage {
    pub(super) is_binary: bool,
    pub(super) payload: Frames,
}

/// A message to several clients: encoded once, and compressed once for each window that a receiver has negotiated.
#[derive(Debug)]
pub(crate) struct Broadcast<'a> {
    pub(super) message: Message<'a>,
    plain: Option<Frames>,
    /// The compressed frames by the bits of their window. `None` if compression does not make the message smaller.
    compressed: Vec<(u8, Option<Frames>)>,
    owned: Option<Arc<OwnedMessage>>,
}

impl<'a> Broadcast<'a> {
    pub(crate) fn new(message: Message<'a>) -> Self {
        Self {
            message,
            plain: None,
            compressed: Vec::new(),
            owned: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.message.as_bytes().len()
    }

    /// The frame for a client. `is_behind` says that a message waits to be compressed for it.
    pub(super) fn frame(
        &mut self,
        socket: &mut WebSocket,
        compression: &mut Option<Compression>,
        batches: &mut Batches,
        is_behind: bool,
    ) -> Frames {
        let (Some(codec), Some(compression)) = (socket.codec(), compression) else {
            return self.plain(batches);
        };
        // Compressing a long message would block the loop, and a message that waits to be compressed must be compressed
        // first.
        if is_behind || self.len() > SLICE {
            return self.plain(batches);
        }
        let window = codec.window();
        let known = self.compressed.iter().position(|(bits, _)| *bits == window);
        let at = known.unwrap_or_else(|| {
            let payload = self.message.as_bytes();
            let frame = compression.compress_alone(payload, window).map(|bytes| {
                let frame = batches.add_compressed(self.message, window, &bytes);
                compression.give_back(bytes);
                frame
            });
            self.compressed.push((window, frame));
            self.compressed.len() - 1
        });
        match &self.compressed[at].1 {
            Some(frame) => {
                codec.note_alone();
                frame.clone()
            }
            None => self.plain(batches),
        }
    }

    /// The uncompressed frame.
    fn plain(&mut self, batches: &mut Batches) -> Frames {
        let message = self.message;
        self.plain
            .get_or_insert_with(|| batches.add_plain(message))
            .clone()
    }

    /// The message for clients that keep it until they have confirmed it.
    pub(super) fn kept(&mut self, batches: &mut Batches) -> SharedMessage {
        SharedMessage {
            is_binary: matches!(self.message, Message::Binary(_)),
            payload: self.plain(batches).tail(self.len()),
        }
    }

    /// The message for clients that get it when they can take it.
    pub(super) fn owned(&mut self) -> Arc<OwnedMessage> {
        let message = self.message;
        Arc::clone(self.owned.get_or_insert_with(|| Arc::new(message.into())))
    }
}
