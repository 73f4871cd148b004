//! What all connections of one event loop share: limits, counters, and memory for messages.

use crate::protocol::deflate::Compression;
use crate::protocol::{Buffers, Limits, OpCode};

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
