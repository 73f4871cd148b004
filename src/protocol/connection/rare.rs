//! What a connection has only now and then, behind the one pointer that is empty otherwise.

use std::time::Duration;

use super::Connection;
use crate::protocol::Time;
use crate::protocol::close::CloseReason;
use crate::protocol::deflate::{Codec, Unfinished};
use crate::protocol::frame::{FrameHeader, MAX_HEADER, OpCode};
use crate::protocol::http::Body;
use crate::protocol::message::{Assembly, Payload};

/// What exists only while a head, a frame or a message is incomplete.
#[derive(Debug, Default)]
pub(super) struct Partial {
    /// Whether what is arriving is the header of the PROXY protocol and not yet a request.
    pub(super) proxied: bool,
    /// The request head so far, and while its body arrives.
    pub(super) head: Vec<u8>,
    /// The body of a call that is arriving.
    pub(super) body: Option<Box<Body>>,
    /// Bytes of an incomplete frame header: `header[..header_len]`.
    pub(super) header: [u8; MAX_HEADER],
    pub(super) header_len: u8,
    /// The frame whose payload is arriving; `payload_len` and `mask` are those of the rest.
    pub(super) frame: Option<FrameHeader>,
    /// The payload of a control frame that is arriving, at most 125 bytes.
    pub(super) control: Vec<u8>,
    /// The message that is being put together.
    pub(super) message: Option<Assembly>,
    /// What that message is if it comes compressed. It is decompressed when it is there whole, so that what is held is
    /// what was sent.
    pub(super) compressed: Option<OpCode>,
    /// A compressed message that is there whole and is being decompressed.
    pub(super) inflating: Option<Box<Inflating>>,
}

/// A compressed message of which a part has been decompressed.
#[derive(Debug)]
pub(super) struct Inflating {
    /// What came on the wire.
    pub(super) wire: Payload<'static>,
    /// Bytes of `wire` that were consumed.
    pub(super) at: usize,
    pub(super) message: Assembly,
    pub(super) unfinished: Unfinished,
}

impl Partial {
    pub(super) fn is_empty(&self) -> bool {
        self.header_len == 0
            && self.frame.is_none()
            && self.message.is_none()
            && self.inflating.is_none()
    }
}

/// A connection whose peer sends nothing more.
#[derive(Clone, Copy, Debug)]
pub(super) struct HalfClosed {
    /// When the peer ended its direction, or last took output after that.
    pub(super) since: Time,
    /// How long it is kept without progress.
    pub(super) patience: Duration,
    /// The value of the caller's byte counter at which the peer has everything that was sent before.
    pub(super) owed: u64,
}

/// What few connections have, or none for long.
#[derive(Debug, Default)]
pub(super) struct Rare {
    pub(super) partial: Option<Box<Partial>>,
    /// How it ends, set exactly once: when the phase leaves `Open`.
    pub(super) ending: Option<CloseReason>,
    /// Whether the peer has ended its direction while it may still be sent to.
    pub(super) half_closed: Option<HalfClosed>,
    /// Its compression, if that was agreed on.
    pub(super) codec: Option<Codec>,
    /// Under a rate limit: when, in microseconds, the messages so far would have been due. 0 before the first.
    pub(super) due: u64,
    /// The origin of the page that may read the answer to the present request.
    pub(super) origin: Option<Box<str>>,
}

impl Rare {
    pub(super) fn is_empty(&self) -> bool {
        let idle = self.partial.is_none() && self.ending.is_none() && self.codec.is_none();
        idle && self.due == 0 && self.origin.is_none() && self.half_closed.is_none()
    }
}

impl Connection {
    /// What is incomplete.
    pub(super) fn partial(&self) -> Option<&Partial> {
        self.rare.as_ref()?.partial.as_deref()
    }

    pub(super) fn partial_mut(&mut self) -> Option<&mut Partial> {
        self.rare.as_deref_mut()?.partial.as_deref_mut()
    }

    pub(super) fn take_partial(&mut self) -> Option<Box<Partial>> {
        self.rare.as_deref_mut()?.partial.take()
    }

    /// Gives up the memory for what is rare, if there is nothing of it.
    pub(super) fn tidy(&mut self) {
        if self.rare.as_ref().is_some_and(|rare| rare.is_empty()) {
            self.rare = None;
        }
    }

    pub(super) fn set_partial(&mut self, partial: Box<Partial>) {
        self.rare.get_or_insert_default().partial = Some(partial);
    }

    /// Keeps what is incomplete, and only that.
    pub(super) fn keep(&mut self, partial: Box<Partial>) {
        if !partial.is_empty() {
            self.set_partial(partial);
        }
    }

    /// Bytes of memory that the peer has made it hold.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn held(&self) -> usize {
        let rare = self.rare.as_ref();
        let codec = rare.and_then(|rare| rare.codec.as_ref());
        codec.map_or(0, Codec::held)
            + self.partial().map_or(0, |partial| {
                partial.head.capacity()
                    + partial.control.capacity()
                    + partial.message.as_ref().map_or(0, Assembly::capacity)
                    + partial.inflating.as_ref().map_or(0, |inflating| {
                        inflating.wire.as_message().as_bytes().len() + inflating.message.capacity()
                    })
                    + partial.body.as_ref().map_or(0, |body| body.capacity())
            })
    }
}
