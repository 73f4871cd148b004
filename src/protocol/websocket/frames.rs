//! The receive path: frames from any input, decompressed a slice at a time, and assembled into messages.

use super::cold::{Inflating, Partial};
use super::{Shared, State, WebSocket};
use crate::protocol::deflate::Unfinished;
use crate::protocol::frame::{FrameHeader, OpCode, Role};
use crate::protocol::message::{Assembly, Message, Payload, check_data_frame};
use crate::protocol::{Input, Limits, ProtocolError, Time};

/// The maximum number of bytes that are read into a room at once, so that they are unmasked while they are in the
/// processor's cache.
const ROOM: usize = 256 << 10;

impl WebSocket {
    /// Memory of a long message to read the next bytes into, which saves a copy. `None` unless the inside of a long
    /// binary message is arriving. After reading `count` bytes, call [`WebSocket::receive`] with
    /// [`Input::placed(count)`](Input::placed).
    pub fn room(&mut self, shared: &mut Shared) -> Option<&mut [u8]> {
        if self.state != State::Open {
            return None;
        }
        let long = shared.long_message;
        let partial = self.partial_mut()?;
        if partial.compressed.is_some() {
            return None;
        }
        let frame = partial.frame.as_ref()?;
        let rest = usize::try_from(frame.payload_len).ok()?;
        let Some(Assembly::Binary(message)) = &mut partial.message else {
            return None;
        };
        // The room is at most as long as what has arrived, so something must have arrived.
        let begun = message.len() >= long / 32;
        if !begun || message.len() + rest < long || frame.opcode.is_control() {
            return None;
        }
        let most = if frame.fin {
            message.len() + rest
        } else {
            shared.limits.max_message
        };
        Some(message.room(rest.min(ROOM), most, &mut shared.buffers))
    }

    /// Takes `count` bytes that were read into the [room](WebSocket::room).
    fn receive_placed(&mut self, count: usize) -> Option<Payload<'static>> {
        let mut partial = self.take_partial()?;
        let (Some(frame), Some(Assembly::Binary(message))) =
            (&mut partial.frame, &mut partial.message)
        else {
            debug_assert!(false, "bytes placed without a room");
            self.set_partial(partial);
            return None;
        };
        frame.unmask(message.advance(count));
        frame.payload_len -= count as u64;
        let (complete, last) = (frame.payload_len == 0, frame.fin);
        if complete {
            partial.frame = None;
        }
        if !(complete && last) {
            self.set_partial(partial);
            return None;
        }
        // A binary message is valid whatever its bytes.
        partial.message.take()?.finish().ok()
    }

    /// Whether the next bytes belong to the data frame that is arriving, or a message is being decompressed.
    pub fn awaits_data(&self) -> bool {
        self.state == State::Open
            && self.partial().is_some_and(|partial| {
                if let Some(frame) = &partial.frame {
                    return !frame.opcode.is_control();
                }
                partial.inflating.is_some()
                    || (partial.header_len > 0 && !is_control(partial.header[0]))
            })
    }

    /// Whether a data message has begun to arrive.
    #[cfg(feature = "server")]
    pub(crate) fn is_inside_message(&self) -> bool {
        self.awaits_data()
            || self
                .partial()
                .is_some_and(|partial| partial.message.is_some())
    }

    /// Whether the next bytes belong to a data frame.
    fn meets_data(&self, input: &Input<'_>) -> bool {
        let between_frames = self
            .partial()
            .is_none_or(|partial| partial.frame.is_none() && partial.header_len == 0);
        let first = input.peek().first();
        self.state == State::Open
            && (self.awaits_data()
                || (between_frames && first.is_some_and(|byte| !is_control(*byte))))
    }

    /// Consumes frames until a message is complete or the input is used up. With `control_only`, stops before the next
    /// data frame.
    pub(super) fn receive_frames<'a>(
        &mut self,
        now: Time,
        input: &mut Input<'a>,
        shared: &mut Shared,
        out: &mut Vec<u8>,
        control_only: bool,
    ) -> Result<Option<Payload<'a>>, ProtocolError> {
        if self.is_inflating() {
            return if control_only {
                Ok(None)
            } else {
                self.inflate_more(shared)
            };
        }
        let placed = input.take_placed();
        if placed > 0 {
            return Ok(self.receive_placed(placed));
        }
        while !input.is_empty() {
            if control_only && self.meets_data(input) {
                break;
            }
            if self.state == State::Closed {
                // "After sending a control frame indicating the connection should be closed, a peer does not send any
                // further data". Input after the peer's CLOSE is discarded.
                input.clear();
                break;
            }
            let payload = match self.take_partial() {
                Some(partial) => self.receive_rest(now, partial, input, shared, out)?,
                None => match self.parse_header(input.peek())? {
                    Some((header, len)) => {
                        shared.frames.count(header.opcode);
                        self.check_header(&header, None, &shared.limits)?;
                        input.take(len);
                        if header.payload_len <= input.len() as u64 {
                            let payload = input.take(header.payload_len as usize);
                            self.receive_whole_frame(now, header, payload, None, shared, out)?
                        } else {
                            self.begin_frame(Box::default(), header);
                            continue;
                        }
                    }
                    None => {
                        let mut partial = Box::<Partial>::default();
                        let bytes = input.take(input.len());
                        partial.header[..bytes.len()].copy_from_slice(bytes);
                        partial.header_len = bytes.len();
                        self.set_partial(partial);
                        break;
                    }
                },
            };
            if payload.is_some() {
                return Ok(payload);
            }
            if self.is_inflating() {
                break;
            }
        }
        Ok(None)
    }

    /// Continues an incomplete header, frame or message.
    fn receive_rest<'a>(
        &mut self,
        now: Time,
        mut partial: Box<Partial>,
        input: &mut Input<'a>,
        shared: &mut Shared,
        out: &mut Vec<u8>,
    ) -> Result<Option<Payload<'a>>, ProtocolError> {
        if partial.frame.is_some() {
            return self.receive_payload(now, partial, input, shared, out);
        }
        let header = loop {
            let header = &partial.header[..partial.header_len];
            match self.parse_header(header)? {
                Some((header, _)) => break header,
                None => match input.take(1) {
                    [byte] => {
                        partial.header[partial.header_len] = *byte;
                        partial.header_len += 1;
                    }
                    _ => {
                        self.set_partial(partial);
                        return Ok(None);
                    }
                },
            }
        };
        partial.header_len = 0;
        shared.frames.count(header.opcode);
        self.check_header(&header, Some(&partial), &shared.limits)?;
        if header.payload_len <= input.len() as u64 {
            let payload = input.take(header.payload_len as usize);
            return self.receive_whole_frame(now, header, payload, Some(partial), shared, out);
        }
        self.begin_frame(partial, header);
        Ok(None)
    }

    /// Begins a frame whose payload is not all in the input.
    fn begin_frame(&mut self, mut partial: Box<Partial>, header: FrameHeader) {
        if matches!(header.opcode, OpCode::Text | OpCode::Binary) && self.state == State::Open {
            Self::begin_message(&mut partial, header);
        }
        partial.frame = Some(header);
        self.set_partial(partial);
    }

    /// Consumes the next part of the payload of an incomplete frame.
    fn receive_payload<'a>(
        &mut self,
        now: Time,
        mut partial: Box<Partial>,
        input: &mut Input<'a>,
        shared: &mut Shared,
        out: &mut Vec<u8>,
    ) -> Result<Option<Payload<'a>>, ProtocolError> {
        let Some(mut frame) = partial.frame.take() else {
            return Ok(None);
        };
        let wanted = usize::try_from(frame.payload_len).unwrap_or(usize::MAX);
        let piece = input.take(wanted);
        frame.unmask(piece);
        frame.payload_len -= piece.len() as u64;
        let complete = frame.payload_len == 0;

        if frame.opcode.is_control() {
            partial.control.extend_from_slice(piece);
            if complete {
                let payload = std::mem::take(&mut partial.control);
                self.keep(partial);
                self.handle_control(now, frame.opcode, &payload, out)?;
                return Ok(None);
            }
        } else if self.state == State::Open {
            let rest = frame.fin.then_some(wanted);
            Self::push(&mut partial, piece, rest, shared)?;
            if complete && frame.fin {
                return self.finish(*partial, shared);
            }
        }
        partial.frame = (!complete).then_some(frame);
        self.keep(partial);
        Ok(None)
    }

    /// Handles a frame whose whole payload is in the input. `partial` holds the message that the frame may continue.
    fn receive_whole_frame<'a>(
        &mut self,
        now: Time,
        mut header: FrameHeader,
        payload: &'a mut [u8],
        partial: Option<Box<Partial>>,
        shared: &mut Shared,
        out: &mut Vec<u8>,
    ) -> Result<Option<Payload<'a>>, ProtocolError> {
        header.unmask(payload);
        if header.opcode.is_control() {
            if let Some(partial) = partial {
                self.keep(partial);
            }
            self.handle_control(now, header.opcode, payload, out)?;
            return Ok(None);
        }
        if self.state != State::Open {
            return Ok(None);
        }
        if header.fin && header.opcode != OpCode::Continuation {
            if header.compressed {
                let wire = Payload::Borrowed(Message::Binary(payload));
                return self.inflate(header.opcode, wire, shared);
            }
            return Payload::whole(header.opcode, payload).map(Some);
        }

        let mut partial = partial.unwrap_or_default();
        if partial.message.is_none() {
            Self::begin_message(&mut partial, header);
        }
        let rest = header.fin.then_some(payload.len());
        Self::push(&mut partial, payload, rest, shared)?;
        if header.fin {
            return self.finish(*partial, shared);
        }
        self.keep(partial);
        Ok(None)
    }

    /// Begins a message that arrives in several frames or reads.
    fn begin_message(partial: &mut Partial, header: FrameHeader) {
        let opcode = if header.compressed {
            OpCode::Binary
        } else {
            header.opcode
        };
        partial.message = Some(Assembly::new(opcode));
        partial.compressed = header.compressed.then_some(header.opcode);
    }

    /// Appends a piece to the message. `rest` is the number of bytes from this piece to the end of the message, if
    /// known.
    fn push(
        partial: &mut Partial,
        piece: &[u8],
        rest: Option<usize>,
        shared: &mut Shared,
    ) -> Result<(), ProtocolError> {
        let most = most_of_wire(partial.compressed.is_some(), &shared.limits);
        match &mut partial.message {
            Some(message) => {
                let most = rest.map_or(most, |rest| message.len() + rest);
                message.push(piece, most, &mut shared.buffers)
            }
            None => Ok(()),
        }
    }

    /// Completes the message.
    fn finish(
        &mut self,
        partial: Partial,
        shared: &mut Shared,
    ) -> Result<Option<Payload<'static>>, ProtocolError> {
        let Some(message) = partial.message else {
            return Ok(None);
        };
        let message = message.finish()?;
        let Some(opcode) = partial.compressed else {
            return Ok(Some(message));
        };
        self.inflate(opcode, message, shared)
    }

    /// Parses a header at the front of `bytes`.
    fn parse_header(&self, bytes: &[u8]) -> Result<Option<(FrameHeader, usize)>, ProtocolError> {
        let (mut from, mut compresses) = (Role::Client, false);
        if let Some(cold) = &self.cold {
            compresses = cold.codec.is_some();
            if cold.masks.is_some() {
                from = Role::Server;
            }
        }
        FrameHeader::parse(bytes, from, compresses)
    }

    /// Rejects a frame that is not allowed in the current state. While closing, data frames are discarded unchecked.
    fn check_header(
        &self,
        header: &FrameHeader,
        partial: Option<&Partial>,
        limits: &Limits,
    ) -> Result<(), ProtocolError> {
        if header.opcode.is_control() || self.state != State::Open {
            return Ok(());
        }
        let message = partial.and_then(|partial| partial.message.as_ref());
        let is_compressed =
            header.compressed || partial.is_some_and(|partial| partial.compressed.is_some());
        let most = most_of_wire(is_compressed, limits);
        check_data_frame(header, message, most)
    }
}

/// Whether the first byte of a header is that of a control frame (RFC 6455 section 5.5).
fn is_control(first: u8) -> bool {
    first & 0x08 != 0
}

/// The maximum length of a message on the wire. Compression makes incompressible data longer, by a few bytes for each
/// block and each flush.
fn most_of_wire(is_compressed: bool, limits: &Limits) -> usize {
    let most = limits.max_message;
    if is_compressed {
        most.saturating_add(most / 4 + 1024)
    } else {
        most
    }
}

impl WebSocket {
    /// Whether a long message is being decompressed. If so, call [`WebSocket::receive`] again without waiting for input.
    pub fn is_inflating(&self) -> bool {
        self.partial()
            .is_some_and(|partial| partial.inflating.is_some())
    }

    /// Decompresses a complete message. Returns `None` if part of a long message remains to be decompressed later.
    fn inflate(
        &mut self,
        opcode: OpCode,
        wire: Payload<'_>,
        shared: &mut Shared,
    ) -> Result<Option<Payload<'static>>, ProtocolError> {
        self.inflate_slice(wire, 0, Assembly::new(opcode), None, shared)
    }

    /// Decompresses the next slice of a long message.
    fn inflate_more(
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
