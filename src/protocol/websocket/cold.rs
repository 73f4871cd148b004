//! The state of a [`WebSocket`] that is rarely needed. It is allocated on demand.

use std::time::Duration;

use super::WebSocket;
use crate::protocol::Time;
use crate::protocol::close::{CloseCode, CloseReason};
use crate::protocol::deflate::{Codec, Unfinished};
use crate::protocol::frame::{FrameHeader, MAX_HEADER, OpCode};
use crate::protocol::message::{Assembly, Payload};
use crate::protocol::payload::MaskKeys;
#[cfg(feature = "server")]
use crate::record::RecordError;

/// State that exists only while a frame or a message is incomplete.
#[derive(Debug, Default)]
pub(super) struct Partial {
    /// The bytes of an incomplete frame header: `header[..header_len]`.
    pub(super) header: [u8; MAX_HEADER],
    pub(super) header_len: usize,
    /// The frame whose payload is arriving. `payload_len` and `mask` apply to the rest of it.
    pub(super) frame: Option<FrameHeader>,
    /// The part of a control frame's payload that has arrived, at most 125 bytes.
    pub(super) control: Vec<u8>,
    /// The message so far. A compressed message is decompressed when it is complete, so the connection holds no more
    /// than the peer sent.
    pub(super) message: Option<Assembly>,
    /// The opcode of `message` if it is compressed.
    pub(super) compressed: Option<OpCode>,
    /// A complete compressed message that is being decompressed.
    pub(super) inflating: Option<Box<Inflating>>,
}

#[cfg(feature = "server")]
crate::record::record!(Partial {
    header,
    header_len,
    frame,
    control,
    message,
    compressed,
    // A connection with such a message is not carried over.
    inflating = None,
} => Self::checked);

/// A compressed message, decompressed in part.
#[derive(Debug)]
pub(super) struct Inflating {
    /// The compressed message.
    pub(super) wire: Payload<'static>,
    /// The number of bytes of `wire` that were consumed.
    pub(super) at: usize,
    /// The decompressed part.
    pub(super) message: Assembly,
    pub(super) unfinished: Unfinished,
}

impl Partial {
    #[cfg(feature = "server")]
    fn checked(self) -> Result<Self, RecordError> {
        let wrong = || RecordError::new("the header is too long");
        let is_valid = self.header_len < MAX_HEADER;
        is_valid.then_some(self).ok_or_else(wrong)
    }

    fn is_empty(&self) -> bool {
        self.header_len == 0
            && self.frame.is_none()
            && self.message.is_none()
            && self.inflating.is_none()
    }
}

/// The state of a connection that the peer has half-closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct HalfClosed {
    /// When the peer half-closed the connection, or last accepted output after that.
    pub(super) since: Time,
    /// How long the connection is kept without progress.
    pub(super) patience: Duration,
    /// The value of the caller's byte counter at which the peer has received everything that was queued when it
    /// half-closed the connection.
    pub(super) owed: u64,
}

#[cfg(feature = "server")]
crate::record::record!(HalfClosed {
    since,
    patience,
    owed,
});

/// A PONG that is awaited for a shorter time than usual.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) until: Time,
    pub(super) patience: Duration,
}

#[cfg(feature = "server")]
crate::record::record!(Probe { until, patience });

/// State that few connections need, or that is needed only for a short time.
#[derive(Debug, Default)]
pub(super) struct ColdState {
    pub(super) partial: Option<Box<Partial>>,
    /// Set exactly once: when the state leaves `Open`.
    pub(super) close_reason: Option<CloseReason>,
    /// The code of the peer's CLOSE.
    pub(super) peer_close: Option<CloseCode>,
    /// The count in the last PONG that carried one.
    pub(super) confirmed: Option<u64>,
    /// Whether the peer violated the protocol, so that input cannot be read as frames.
    pub(super) failed: bool,
    /// Set when the peer has half-closed the connection and can still receive.
    pub(super) half_closed: Option<HalfClosed>,
    /// Set while a PONG is awaited for a shorter time than usual.
    pub(super) probe: Option<Probe>,
    /// The compression that was negotiated.
    pub(super) codec: Option<Codec>,
    /// The keys that mask sent frames. Only a client has them.
    pub(super) masks: Option<Box<MaskKeys>>,
    /// The theoretical arrival time of the rate limit (GCRA), in microseconds. 0 if the full burst is available.
    pub(super) due: u64,
}

#[cfg(feature = "server")]
crate::record::record!(ColdState {
    partial,
    close_reason,
    peer_close,
    confirmed,
    failed,
    half_closed,
    probe,
    codec,
    masks,
    due,
});

impl ColdState {
    fn is_empty(&self) -> bool {
        let idle = self.partial.is_none() && self.close_reason.is_none() && self.codec.is_none();
        let unread = self.confirmed.is_some() || self.peer_close.is_some();
        let role = self.masks.is_some() || self.probe.is_some();
        idle && self.due == 0 && self.half_closed.is_none() && !self.failed && !unread && !role
    }
}

impl WebSocket {
    pub(super) fn partial(&self) -> Option<&Partial> {
        self.cold.as_ref()?.partial.as_deref()
    }

    pub(super) fn partial_mut(&mut self) -> Option<&mut Partial> {
        self.cold.as_deref_mut()?.partial.as_deref_mut()
    }

    pub(super) fn take_partial(&mut self) -> Option<Box<Partial>> {
        self.cold.as_deref_mut()?.partial.take()
    }

    pub(super) fn set_partial(&mut self, partial: Box<Partial>) {
        self.cold.get_or_insert_default().partial = Some(partial);
    }

    /// Stores `partial` unless it is empty.
    pub(super) fn keep(&mut self, partial: Box<Partial>) {
        if !partial.is_empty() {
            self.set_partial(partial);
        }
    }

    /// Frees the memory of the cold state if it is empty.
    pub(super) fn shrink(&mut self) {
        if self.cold.as_ref().is_some_and(|cold| cold.is_empty()) {
            self.cold = None;
        }
    }

    /// The bytes of memory that the peer made the connection hold, without compressors, which have a limit of their own.
    pub fn held(&self) -> usize {
        self.partial().map_or(0, |partial| {
            partial.control.capacity()
                + partial.message.as_ref().map_or(0, Assembly::capacity)
                + partial.inflating.as_ref().map_or(0, |inflating| {
                    inflating.wire.as_message().as_bytes().len() + inflating.message.capacity()
                })
        })
    }

    /// The bytes of memory of the connection's compressors.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn held_by_codec(&self) -> usize {
        let codec = self.cold.as_ref().and_then(|cold| cold.codec.as_ref());
        codec.map_or(0, Codec::held)
    }
}
