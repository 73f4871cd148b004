//! An open WebSocket connection: bytes and time in, messages and bytes out. It takes the role of the server or of the
//! client.
//!
//! ```text
//! accept --> Open --+-- close, or a violation by the peer --> Closing --+--> Closed
//!                   +-- CLOSE from the peer ----------------------------+
//! ```

mod cold;
mod frames;
mod timeouts;

pub use super::shared::{FrameCounts, Shared};

use self::cold::ColdState;
use super::close::{Cause, CloseCode, CloseReason, close_payload, parse_close};
use super::deflate::Codec;
use super::frame::{OpCode, SentHeader, encode_frame};
use super::handshake::{Accept, Upgrade};
use super::message::{Message, Payload};
use super::payload::{MaskKeys, RandomSource, check_utf8};
use super::{Input, NextStep, ProtocolError, Time, apply_mask};

/// The state of a [`WebSocket`], RFC 6455 sections 4.1 and 7.1. The state CONNECTING is an
/// [`HttpConnection`](super::HttpConnection).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Messages go both ways.
    Open,
    /// Our CLOSE is written. Messages from the peer are discarded until its CLOSE arrives.
    Closing,
    /// Both sides sent CLOSE, or the connection was abandoned.
    Closed,
}

#[cfg(feature = "server")]
crate::record::record!(
    enum State {
        Open,
        Closing,
        Closed,
    }
);

/// One side of a WebSocket connection: the server's side after [`WebSocket::accept`], the client's after
/// [`WebSocket::connect`]. See [the module](crate::protocol) for an example.
#[derive(Debug)]
pub struct WebSocket {
    /// State that is rarely needed. `None` while the connection is idle and uncompressed, so that it owns no heap
    /// memory.
    cold: Option<Box<ColdState>>,
    /// When the current state began.
    since: Time,
    /// When the last PING was written, or the connection was opened.
    pinged: Time,
    /// When the last data message was received or sent.
    last_message: Time,
    /// The low bits of the time in milliseconds when the last bytes arrived.
    heard_at: u32,
    /// The same of the last PING sent and of the last PONG received; 0 if there was none.
    pinged_at: u32,
    ponged_at: u32,
    state: State,
    /// Whether the peer sent anything after the last PING.
    heard: bool,
    /// Whether PINGs carry the number of messages sent, so that a PONG confirms them.
    counts: bool,
}

#[cfg(feature = "server")]
crate::record::record!(WebSocket {
    cold,
    since,
    pinged,
    last_message,
    heard_at,
    pinged_at,
    ponged_at,
    state,
    heard,
    counts,
});

impl WebSocket {
    /// Accepts a handshake: writes the 101 response to `out` and opens the connection.
    ///
    /// With a `codec`, messages are compressed as agreed. The caller adds the agreement to `accept` as the field
    /// `Sec-WebSocket-Extensions`.
    pub fn accept(
        now: Time,
        upgrade: &Upgrade<'_>,
        accept: &Accept,
        codec: Option<Codec>,
        out: &mut Vec<u8>,
    ) -> Self {
        upgrade.write_response(accept, out);
        Self::opened(now, codec)
    }

    /// Opens the client's side of a connection, after [the response](super::client) has accepted the handshake. The keys
    /// that mask its frames come from `random`. With a `codec`, messages are compressed as agreed.
    pub fn connect(now: Time, codec: Option<Codec>, random: RandomSource) -> Self {
        let mut socket = Self::opened(now, codec);
        socket.cold.get_or_insert_default().masks = Some(Box::new(MaskKeys::new(random)));
        socket
    }

    fn opened(now: Time, codec: Option<Codec>) -> Self {
        let cold = codec.map(|codec| {
            Box::new(ColdState {
                codec: Some(codec),
                ..ColdState::default()
            })
        });
        Self {
            cold,
            since: now,
            pinged: now,
            last_message: now,
            heard_at: now.as_millis() as u32,
            pinged_at: 0,
            ponged_at: 0,
            state: State::Open,
            heard: true,
            counts: false,
        }
    }

    /// The current state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether messages can be sent.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// When the current state began.
    pub fn since(&self) -> Time {
        self.since
    }

    /// When the last data message was received or sent.
    pub fn last_message(&self) -> Time {
        self.last_message
    }

    /// Whether this is the client's side of the connection.
    pub fn is_client(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.masks.is_some())
    }

    /// Appends a message to `out`: compressed, if that was negotiated and makes it smaller, and masked, if this is the
    /// client's side. Does nothing unless the connection is open.
    pub fn send(&mut self, message: Message<'_>, shared: &mut Shared, out: &mut Vec<u8>) {
        if self.state != State::Open {
            return;
        }
        let payload = message.as_bytes();
        let compressed = match (self.codec(), &mut shared.compression) {
            (Some(codec), Some(compression)) => codec.compress(payload, compression),
            _ => None,
        };
        match &compressed {
            Some(bytes) => {
                let header = SentHeader::compressed(message.opcode(), bytes.len());
                self.append(header, bytes, out);
            }
            None => self.append(
                SentHeader::new(message.opcode(), payload.len()),
                payload,
                out,
            ),
        }
        if let (Some(bytes), Some(compression)) = (compressed, &mut shared.compression) {
            compression.give_back(bytes);
        }
    }

    /// Appends a frame, masked if this is the client's side.
    fn append(&mut self, header: SentHeader, payload: &[u8], out: &mut Vec<u8>) {
        match self.cold.as_mut().and_then(|cold| cold.masks.as_mut()) {
            Some(keys) => header.append_masked(payload, keys.next(), out),
            None => header.append_with(payload, out),
        }
    }

    /// Appends a control frame.
    fn append_control(&mut self, opcode: OpCode, payload: &[u8], out: &mut Vec<u8>) {
        if self.is_client() {
            self.append(SentHeader::new(opcode, payload.len()), payload, out);
        } else {
            encode_frame(opcode, payload, out);
        }
    }

    /// Whether sent messages need more than a frame header: they are compressed or masked.
    #[cfg(feature = "server")]
    #[inline(always)]
    pub(crate) fn transforms_messages(&self) -> bool {
        self.cold
            .as_ref()
            .is_some_and(|cold| cold.codec.is_some() || cold.masks.is_some())
    }

    /// Whether another process can continue the connection: no message is decompressed in part, and the process compresses messages if
    /// that was negotiated.
    #[cfg(feature = "server")]
    pub(crate) fn is_portable(&self, to_compressing: bool) -> bool {
        let has_codec = self.cold.as_ref().is_some_and(|cold| cold.codec.is_some());
        !self.is_inflating() && (to_compressing || !has_codec)
    }

    /// The compression of this connection, if it was negotiated.
    pub fn codec(&mut self) -> Option<&mut Codec> {
        self.cold.as_deref_mut()?.codec.as_mut()
    }

    /// Why the connection ends. `None` while it is open.
    pub fn close_reason(&self) -> Option<&CloseReason> {
        self.cold.as_ref()?.close_reason.as_ref()
    }

    /// Why the connection ended: the first reason that was recorded, or else `default`.
    pub fn into_close_reason(self, default: CloseReason) -> CloseReason {
        self.cold
            .and_then(|cold| cold.close_reason)
            .unwrap_or(default)
    }

    /// Whether input is discarded, apart from the peer's CLOSE.
    pub fn discards_input(&self) -> bool {
        self.state != State::Open
    }

    /// Begins the closing handshake: writes CLOSE to `out`. Does nothing unless the connection is open.
    pub fn close(&mut self, now: Time, reason: CloseReason, out: &mut Vec<u8>) {
        if self.state == State::Open {
            let payload = close_payload(reason.code, &reason.reason);
            self.append_control(OpCode::Close, &payload, out);
            self.end(now, State::Closing, reason);
        }
    }

    /// Gives the connection up. Nothing more is received, and no output is produced. An earlier reason stands.
    pub fn abandon(&mut self, now: Time, reason: CloseReason) {
        if self.state == State::Open {
            self.end(now, State::Closed, reason);
        } else if self.state != State::Closed {
            self.take_partial();
            self.state = State::Closed;
            self.since = now;
        }
    }

    /// Consumes input up to the end of the next message and returns that message. PONG and CLOSE are written to `out`.
    ///
    /// Returns `None` when the input is used up, when the connection closes, or when a part of a long message was
    /// [decompressed](WebSocket::is_inflating); call it again in the last case. A violation of the protocol writes
    /// CLOSE and changes the state to [`State::Closing`].
    #[inline]
    pub fn receive<'a>(
        &mut self,
        now: Time,
        input: &mut Input<'a>,
        shared: &mut Shared,
        out: &mut Vec<u8>,
    ) -> Option<Payload<'a>> {
        if let Some(message) = self.receive_whole(now, input, shared, out) {
            return Some(Payload::Borrowed(message));
        }
        self.receive_any(now, input, shared, out, false)
    }

    /// Whether the connection is open and has no cold state: nothing is incomplete, and compression is off.
    #[inline(always)]
    pub(crate) fn is_between_messages(&self) -> bool {
        self.state == State::Open && self.cold.is_none()
    }

    /// The prologue of [`WebSocket::receive`] for the common case: nothing is incomplete, and a whole message lies in one
    /// frame of less than 64 KiB. `None` for everything else, which `receive` handles.
    #[inline(always)]
    pub(crate) fn receive_whole<'a>(
        &mut self,
        now: Time,
        input: &mut Input<'a>,
        shared: &mut Shared,
        out: &mut Vec<u8>,
    ) -> Option<Message<'a>> {
        if !self.is_between_messages() {
            return None;
        }
        let (is_binary, header_len, len) = whole_message(input.peek())?;
        if header_len + len > input.peek().len() || len > shared.limits.max_message {
            return None;
        }
        self.last_message = now;
        let (header, payload) = input.take(header_len + len).split_at_mut(header_len);
        apply_mask(payload, *header.last_chunk()?);
        if is_binary {
            shared.frames.count(OpCode::Binary);
            return Some(Message::Binary(payload));
        }
        shared.frames.count(OpCode::Text);
        match check_utf8(payload) {
            Ok(text) => Some(Message::Text(text)),
            Err(error) => {
                self.fail(now, error, input, out);
                None
            }
        }
    }

    /// Consumes control frames, up to the next data frame, and answers PING and CLOSE. For a caller that cannot take
    /// messages at the moment.
    pub fn receive_control(
        &mut self,
        now: Time,
        input: &mut Input<'_>,
        shared: &mut Shared,
        out: &mut Vec<u8>,
    ) {
        self.receive_any(now, input, shared, out, true);
    }

    /// Handles any input in any state.
    #[inline(never)]
    fn receive_any<'a>(
        &mut self,
        now: Time,
        input: &mut Input<'a>,
        shared: &mut Shared,
        out: &mut Vec<u8>,
        control_only: bool,
    ) -> Option<Payload<'a>> {
        if self.state == State::Closed || self.has_failed() {
            input.clear();
            return None;
        }
        let payload = match self.receive_frames(now, input, shared, out, control_only) {
            Ok(payload) => payload,
            Err(error) => {
                self.fail(now, error, input, out);
                None
            }
        };
        if payload.is_some() {
            self.last_message = now;
        }
        self.shrink();
        payload
    }

    /// Handles a complete control frame.
    fn handle_control(
        &mut self,
        now: Time,
        opcode: OpCode,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        match (opcode, self.state) {
            // "Upon receipt of a Ping frame, an endpoint MUST send a Pong frame in response, unless it already received
            // a Close frame." After our own CLOSE nothing may be sent either.
            (OpCode::Ping, State::Open) => self.append_control(OpCode::Pong, payload, out),
            // "If an endpoint receives a Close frame and did not previously send a Close frame, the endpoint MUST send
            // a Close frame in response", typically echoing the status code.
            (OpCode::Close, State::Open) => {
                let (code, reason) = parse_close(payload)?;
                self.append_control(OpCode::Close, &close_payload(code, ""), out);
                self.end(
                    now,
                    State::Closed,
                    CloseReason::new(Cause::PeerClose, code, reason.to_owned()),
                );
                self.cold.get_or_insert_default().peer_close = Some(code);
            }
            (OpCode::Close, _) => {
                self.take_partial();
                self.state = State::Closed;
                let code = parse_close(payload).map_or(CloseCode::NONE, |(code, _)| code);
                self.cold.get_or_insert_default().peer_close = Some(code);
            }
            (OpCode::Pong, _) => {
                self.ponged_at = (now.as_millis() as u32).max(1);
                if self.counts
                    && let Some(count) = parse_count(payload)
                {
                    self.cold.get_or_insert_default().confirmed = Some(count);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Fails the connection, RFC 6455 section 7.1.7. If CLOSE is already written, the reason does not change, but the
    /// peer's CLOSE can no longer be found in the input.
    #[cold]
    fn fail(&mut self, now: Time, error: ProtocolError, input: &mut Input<'_>, out: &mut Vec<u8>) {
        input.clear();
        self.close(now, CloseReason::protocol_error(error), out);
        self.take_partial();
        self.cold.get_or_insert_default().failed = true;
    }

    /// The code of the peer's CLOSE, if that has arrived: the answer to our CLOSE, or one that the peer sent first.
    pub fn peer_close(&self) -> Option<CloseCode> {
        self.cold.as_ref()?.peer_close
    }

    fn has_failed(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.failed)
    }

    /// Leaves `Open`. The rest of an incomplete frame is still parsed, but its message is dropped.
    fn end(&mut self, now: Time, state: State, reason: CloseReason) {
        debug_assert!(self.state == State::Open && self.close_reason().is_none());
        if let Some(mut partial) = self.take_partial() {
            partial.message = None;
            partial.compressed = None;
            partial.inflating = None;
            self.keep(partial);
        }
        self.state = state;
        self.since = now;
        let cold = self.cold.get_or_insert_default();
        cold.close_reason = Some(reason);
        if let Some(codec) = &mut cold.codec {
            codec.release();
        }
    }

    /// What to do with the connection once all output is written.
    pub fn next_step(&self) -> NextStep {
        match self.state {
            State::Open => NextStep::Continue,
            State::Closing if self.has_failed() => NextStep::EndOutput,
            // The peer has half-closed the connection, so it cannot send CLOSE.
            State::Closing if self.is_half_closed() => NextStep::Close,
            State::Closing => NextStep::Continue,
            State::Closed => NextStep::Close,
        }
    }
}

/// Reads the count in the payload of a PONG: decimal digits, as in the PING. Any other payload answers no PING of ours.
fn parse_count(payload: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(payload).ok()?;
    let count = digits.parse().ok()?;
    digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then_some(count)
}

/// Reads the header of a data frame of less than 64 KiB that is a whole, uncompressed message. Returns whether the message
/// is binary, the length of the header and the length of the payload.
#[inline(always)]
fn whole_message(bytes: &[u8]) -> Option<(bool, usize, usize)> {
    const TEXT: u8 = 0x81;
    const BINARY: u8 = 0x82;
    match *bytes {
        [first @ (TEXT | BINARY), length @ 0x80..=0xfd, ..] => {
            Some((first == BINARY, 6, usize::from(length & 0x7f)))
        }
        [first @ (TEXT | BINARY), 0xfe, high, low, ..] => {
            match usize::from(u16::from_be_bytes([high, low])) {
                // The length is not minimally encoded.
                ..126 => None,
                len => Some((first == BINARY, 8, len)),
            }
        }
        _ => None,
    }
}

// Idle connections are many, so the struct stays small.
const _: () = assert!(size_of::<WebSocket>() <= 48);
