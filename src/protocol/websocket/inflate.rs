//! Decompression of received messages, a slice at a time.

use super::cold::{Inflating, Partial};
use super::{Shared, WebSocket};
use crate::protocol::ProtocolError;
use crate::protocol::deflate::Unfinished;
use crate::protocol::frame::OpCode;
use crate::protocol::message::{Assembly, Payload};

impl WebSocket {
    /// Whether a long message is being decompressed. If so, call [`WebSocket::receive`] again without waiting for input.
    pub fn is_inflating(&self) -> bool {
        self.partial()
            .is_some_and(|partial| partial.inflating.is_some())
    }

    /// Decompresses a complete message. Returns `None` if it is so long that the rest is left for later.
    pub(super) fn inflate(
        &mut self,
        opcode: OpCode,
        wire: Payload<'_>,
        shared: &mut Shared,
    ) -> Result<Option<Payload<'static>>, ProtocolError> {
        self.inflate_slice(wire, 0, Assembly::new(opcode), None, shared)
    }

    /// Decompresses the next slice of a long message.
    pub(super) fn inflate_more(
        &mut self,
        shared: &mut Shared,
    ) -> Result<Option<Payload<'static>>, ProtocolError> {
        let partial = self.take_partial();
        let Some(inflating) = partial.and_then(|partial| partial.inflating) else {
            return Ok(None);
        };
        let Inflating {
            wire,
            at,
            message,
            unfinished,
        } = *inflating;
        self.inflate_slice(wire, at, message, Some(unfinished), shared)
    }

    /// Decompresses `wire` from the byte `at` on, and appends to `message`.
    fn inflate_slice(
        &mut self,
        wire: Payload<'_>,
        at: usize,
        mut message: Assembly,
        unfinished: Option<Unfinished>,
        shared: &mut Shared,
    ) -> Result<Option<Payload<'static>>, ProtocolError> {
        let (Some(codec), Some(compression)) = (self.codec(), &mut shared.compression) else {
            return Ok(None);
        };
        let (max_message, buffers) = (shared.limits.max_message, &mut shared.buffers);
        let unfinished = codec.decompress(
            &wire.as_message().as_bytes()[at..],
            unfinished,
            &mut message,
            max_message,
            compression,
            buffers,
        )?;
        let Some(unfinished) = unfinished else {
            wire.recycle(buffers);
            return message.finish().map(Some);
        };
        self.set_partial(Box::new(Partial {
            inflating: Some(Box::new(Inflating {
                wire: wire.into_owned(),
                at: at + unfinished.consumed,
                message,
                unfinished,
            })),
            ..Partial::default()
        }));
        Ok(None)
    }
}
