//! Broadcasts: messages whose frames many connections share.
//!
//! The frames of a turn's broadcasts are gathered, one behind the other, in a [`Batch`]. The output of a receiver refers to its part of
//! the batch. So several messages in a row are one block of its output and one buffer of its write, and they are in memory once,
//! however many clients have not taken them. A batch is complete before anything of it is written.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::protocol::deflate::{Codec, Compression, CompressionFailed, Squeeze};
use crate::protocol::{Message, OpCode, OwnedMessage, SentHeader, WebSocket};

/// A batch that is at least this long gets no more frames.
const BATCH: usize = 64 << 10;

/// A frame whose payload is at least this long is a batch of its own.
const LONG: usize = BATCH / 4;

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
    /// Frames in a batch of their own.
    fn alone(frames: Vec<u8>) -> Self {
        Self {
            start: 0,
            end: frames.len(),
            batch: Arc::new(Batch(OnceLock::from(frames.into_boxed_slice()))),
        }
    }

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

    /// Whether no more frames follow in the batch.
    pub(super) fn are_complete(&self) -> bool {
        self.batch.0.get().is_some()
    }

    /// Whether a copy of the frames would take less memory than keeping their batch. The answer is no for a batch that is not
    /// complete.
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

/// The number of long messages that are compressed at the same time. Further ones are sent uncompressed.
const LONG_AT_ONCE: usize = 4;

/// A long message that is compressed once for several connections: a slice at a time, when one of them has room for it.
#[derive(Clone, Debug)]
pub(super) struct LongMessage {
    state: Arc<Mutex<LongState>>,
    opcode: OpCode,
    /// The length of the message before it is compressed.
    len: usize,
}

#[derive(Debug)]
enum LongState {
    Waiting {
        /// The uncompressed frame.
        frame: Frames,
        window: u8,
    },
    Working {
        squeeze: Squeeze,
        codec: Codec,
        /// The frames so far.
        frames: Vec<u8>,
        /// Counts as one of [`LONG_AT_ONCE`].
        _slot: Arc<()>,
    },
    Done(Frames),
    Failed(CompressionFailed),
}

impl LongMessage {
    fn new(message: Message<'_>, frame: Frames, window: u8) -> Self {
        Self {
            state: Arc::new(Mutex::new(LongState::Waiting { frame, window })),
            opcode: message.opcode(),
            len: message.as_bytes().len(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The part of the memory, in bytes, that is attributed to one of the connections: they share it equally.
    pub(super) fn held(&self) -> usize {
        self.len / Arc::strong_count(&self.state)
    }

    /// Compresses the next slice. Returns the number of bytes that were compressed, and the frames if all are. `slots` counts the
    /// messages that are compressed now.
    ///
    /// # Errors
    ///
    /// The compressor failed. The message cannot be completed.
    pub(super) fn next(
        &self,
        shared: &mut Compression,
        slots: &Arc<()>,
    ) -> Result<(usize, Option<Frames>), CompressionFailed> {
        // The loop is one thread.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let LongState::Waiting { frame, window } = &*state {
            *state = if Arc::strong_count(slots) > LONG_AT_ONCE {
                LongState::Done(frame.clone())
            } else {
                LongState::Working {
                    squeeze: Squeeze::new(self.opcode, frame.tail(self.len).as_slice()),
                    codec: shared.alone(*window),
                    frames: Vec::new(),
                    _slot: Arc::clone(slots),
                }
            };
        }
        let mut taken = 0;
        if let LongState::Working {
            squeeze,
            codec,
            frames,
            ..
        } = &mut *state
        {
            let before = squeeze.remaining();
            let done = squeeze.next(codec, shared, frames);
            taken = before - squeeze.remaining();
            match done {
                Ok(true) => *state = LongState::Done(Frames::alone(std::mem::take(frames))),
                Ok(false) => {}
                Err(error) => *state = LongState::Failed(error),
            }
        }
        match &*state {
            LongState::Done(frames) => Ok((taken, Some(frames.clone()))),
            LongState::Waiting { .. } | LongState::Working { .. } => Ok((taken, None)),
            LongState::Failed(error) => Err(*error),
        }
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
        if payload.len() >= LONG {
            return Frames::alone([header.encode().as_slice(), payload].concat());
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
    /// Counts the long messages that are being compressed: each of them has a clone.
    pub(super) slots: Arc<()>,
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

/// A message in the form that a connection gets.
#[derive(Clone, Copy, Debug)]
pub(super) enum Encoded<'a> {
    Frames(&'a Frames),
    /// It is compressed when it is at the front of the output.
    Long(&'a LongMessage),
}

/// What clients with the same window get.
#[derive(Debug)]
struct Form {
    /// The bits of the window.
    window: u8,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// The uncompressed frame. Compression does not make it smaller.
    Plain(Frames),
    Compressed(Frames),
    Long(LongMessage),
}

/// A message to several clients: encoded once, and compressed once for each window that a receiver has negotiated.
#[derive(Debug)]
pub(crate) struct Broadcast<'a> {
    pub(super) message: Message<'a>,
    /// The uncompressed frame, once a client needs it.
    plain: Option<Frames>,
    /// The forms for clients that have negotiated compression.
    forms: Vec<Form>,
    owned: Option<Arc<OwnedMessage>>,
    /// The bytes of all forms that were created.
    created: usize,
}

impl<'a> Broadcast<'a> {
    pub(crate) fn new(message: Message<'a>) -> Self {
        Self {
            message,
            plain: None,
            forms: Vec::new(),
            owned: None,
            created: 0,
        }
    }

    /// The bytes of all forms that were created. What clients share is counted once.
    pub(crate) fn created(&self) -> usize {
        self.created
    }

    pub(crate) fn len(&self) -> usize {
        self.message.as_bytes().len()
    }

    /// The uncompressed frame, if a client has got it.
    pub(super) fn known_plain(&self) -> Option<&Frames> {
        self.plain.as_ref()
    }

    /// The message for a client. `is_behind` says that an earlier message waits to be compressed with the client's own context.
    pub(super) fn encoded(
        &mut self,
        socket: &mut WebSocket,
        compression: Option<&mut Compression>,
        batches: &mut Batches,
        is_behind: bool,
    ) -> Encoded<'_> {
        let (Some(compression), Some(codec), false) = (compression, socket.codec(), is_behind)
        else {
            return Encoded::Frames(self.plain(batches));
        };
        let content = self.content(codec.window(), compression, batches);
        if !matches!(content, Content::Plain(_)) {
            codec.note_alone();
        }
        match content {
            Content::Plain(frames) | Content::Compressed(frames) => Encoded::Frames(frames),
            Content::Long(message) => Encoded::Long(message),
        }
    }

    /// What clients with a window get.
    fn content(
        &mut self,
        window: u8,
        compression: &mut Compression,
        batches: &mut Batches,
    ) -> &Content {
        let known = self.forms.iter().position(|form| form.window == window);
        let at = known.unwrap_or_else(|| {
            self.created += self.len();
            let content = self.compress(window, compression, batches);
            self.forms.push(Form { window, content });
            self.forms.len() - 1
        });
        &self.forms[at].content
    }

    fn compress(
        &mut self,
        window: u8,
        compression: &mut Compression,
        batches: &mut Batches,
    ) -> Content {
        if self.len() > compression.slice() {
            // Compressing it at once would block the loop.
            let frame = self.plain(batches).clone();
            return Content::Long(LongMessage::new(self.message, frame, window));
        }
        let Some(bytes) = compression.compress_alone(self.message.as_bytes(), window) else {
            return Content::Plain(self.plain(batches).clone());
        };
        let frame = batches.add_compressed(self.message, window, &bytes);
        compression.give_back(bytes);
        Content::Compressed(frame)
    }

    /// The uncompressed frame.
    fn plain(&mut self, batches: &mut Batches) -> &Frames {
        let message = self.message;
        self.plain.get_or_insert_with(|| {
            self.created += message.as_bytes().len();
            batches.add_plain(message)
        })
    }

    /// The message for clients that keep it until they have confirmed it.
    pub(super) fn kept(&mut self, batches: &mut Batches) -> SharedMessage {
        let len = self.len();
        SharedMessage {
            is_binary: matches!(self.message, Message::Binary(_)),
            payload: self.plain(batches).tail(len),
        }
    }

    /// The message for clients that get it when they can take it.
    pub(super) fn owned(&mut self) -> Arc<OwnedMessage> {
        let message = self.message;
        let owned = self.owned.get_or_insert_with(|| {
            self.created += message.as_bytes().len();
            Arc::new(message.into())
        });
        Arc::clone(owned)
    }
}
