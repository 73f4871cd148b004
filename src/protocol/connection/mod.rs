//! One connection's state machine: bytes and time in, events and bytes out.
//!
//! ```text
//!        +----------- keep-alive -----------+
//!        v                                  |
//! Handshaking -+-> Body -> Answering -> Streaming --+-> Answered ----------+
//!              |   (an HTTP call)                   |                      |
//!              +--------- (refused) ----------------+                      +-> gone, when the socket is
//!              |                                                           |
//!              +-> Open --+-> Closing --+                                  |
//!                         |   (we first)+-> Finished ----------------------+
//!                         +-> (peer first) --^                             |
//!                         +-> Failed --------------------------------------+
//! ```

mod exchange;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;

use super::close::{Cause, Disconnect, close_payload, parse_close};
use super::deflate::{Codec, Compression};
use super::frame::{FrameHeader, MAX_HEADER, OpCode, encode_frame};
use super::handshake::{self, Upgrade};
use super::http::{self, Body, Ending, Refusal, StatusCode};
use super::message::{Assembly, Message, Payload, check_data_frame};
use super::proxy::{self, Progress};
use super::utf8;
use super::{Buffers, Input, Limits, ProtocolError, Time, Timeouts, apply_mask};

/// The shortest message whose bytes are read to their place rather than through the input. Fuzzers and tests have short
/// messages.
const LONG: usize = if cfg!(any(test, fuzzing)) {
    64
} else {
    128 << 10
};

/// The most that is read to its place at once: it is unmasked while the processor's cache still has it.
const ROOM: usize = 256 << 10;

/// Where a connection stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The request head is arriving.
    Handshaking,
    /// The body of a call is arriving.
    Body,
    /// A call is there whole and is to be answered. Further input waits.
    Answering,
    /// A call is being answered by a stream of events. Further input waits.
    Streaming,
    /// The last answer is out; input is thrown away until the peer is gone.
    Answered,
    /// Messages go both ways.
    Open,
    /// Our CLOSE is out; the peer's is awaited and its data thrown away.
    Closing,
    /// The peer broke the protocol and was sent CLOSE; input is thrown away until the peer is gone.
    Failed,
    /// The peer's CLOSE came and ours is out: the TCP connection may end as soon as everything is written.
    Finished,
}

/// What came out of the peer's bytes.
#[derive(Debug)]
pub enum Event<'a> {
    /// A whole request head, to be answered with [`Connection::open`], [`Connection::begin_call`] or
    /// [`Connection::refuse`].
    Head(Cow<'a, [u8]>),
    /// The rest of a call whose head came before. It is to be answered, now or later.
    Call {
        /// The request head.
        head: Vec<u8>,
        /// The request's body.
        body: Vec<u8>,
    },
    /// A proxy has said for whom the connection is; nobody, if it is the proxy's own.
    Proxied(Option<SocketAddr>),
    /// The request cannot be read; the refusal is to be passed to [`Connection::refuse`].
    BadRequest(Refusal),
    /// A whole message.
    Message(Payload<'a>),
}

/// How many frames came, by opcode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCounts([u64; 16]);

impl FrameCounts {
    /// How many frames came with an opcode.
    pub fn of(&self, opcode: OpCode) -> u64 {
        self.0[usize::from(opcode as u8)]
    }

    fn count(&mut self, opcode: OpCode) {
        // Opcodes have four bits.
        self.0[usize::from(opcode as u8 & 0xf)] += 1;
    }
}

/// What the connections of one loop have in common.
#[derive(Debug, Default)]
pub struct Shared {
    /// What a peer may make a connection hold.
    pub limits: Limits,
    /// What frames came.
    pub frames: FrameCounts,
    /// Memory for messages that come in pieces.
    pub buffers: Buffers,
    /// For compressed messages; `None` if the extension is off.
    pub compression: Option<Compression>,
}

impl Shared {
    /// How many bytes compressed messages have come to so far.
    pub fn decompressed(&self) -> u64 {
        let compression = self.compression.as_ref();
        compression.map_or(0, |compression| compression.counts().plain_in)
    }

    /// Gives memory that is only kept to be used again back to the system.
    pub fn clear(&mut self) {
        self.buffers.clear();
        if let Some(compression) = &mut self.compression {
            compression.clear();
        }
    }
}

/// What to do now that a deadline has passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// Nothing, or a PING was written: ask for the next deadline.
    Continue,
    /// The request took too long: refuse with 408.
    Handshake,
    /// No data message for too long: close with [`Disconnect::idle_timeout`], unless the service still waits.
    Idle,
    /// The connection is over: end it at once.
    Gone(Disconnect),
}

/// What exists only while a head, a frame or a message is incomplete.
#[derive(Debug, Default)]
struct Partial {
    /// Whether what is arriving is the header of the PROXY protocol and not yet a request.
    proxied: bool,
    /// The request head so far, and while its body arrives.
    head: Vec<u8>,
    /// The body of a call that is arriving.
    body: Option<Box<Body>>,
    /// Bytes of an incomplete frame header: `header[..header_len]`.
    header: [u8; MAX_HEADER],
    header_len: u8,
    /// The frame whose payload is arriving; `payload_len` and `mask` are those of the rest.
    frame: Option<FrameHeader>,
    /// The payload of a control frame that is arriving, at most 125 bytes.
    control: Vec<u8>,
    /// The message that is being put together.
    message: Option<Assembly>,
    /// What that message is if it comes compressed. It is decompressed when it is there whole, so that what is held is
    /// what was sent.
    compressed: Option<OpCode>,
}

impl Partial {
    fn is_empty(&self) -> bool {
        self.header_len == 0 && self.frame.is_none() && self.message.is_none()
    }
}

/// What few connections have, or none for long.
#[derive(Debug, Default)]
struct Rare {
    /// How it ends, set exactly once: when the phase leaves `Open`.
    ending: Option<Disconnect>,
    /// Its compression, if that was agreed on.
    codec: Option<Codec>,
}

/// The server's side of one WebSocket connection.
#[derive(Debug)]
pub struct Connection {
    /// `None` between two messages: a connection that waits owns no heap memory.
    partial: Option<Box<Partial>>,
    rare: Option<Box<Rare>>,
    /// When the present phase began.
    since: Time,
    /// When the last ping window began: at opening, or with the last PING.
    pinged: Time,
    /// When the last data message went either way.
    last_message: Time,
    phase: Phase,
    /// Whether any byte came since `pinged` (when that began with a PING).
    heard: bool,
    /// Whether it was opened, so that its end has to be told.
    opened: bool,
    /// Whether a call has been answered before.
    called: bool,
    /// What the call that is being answered asked for.
    call: exchange::Terms,
}

impl Connection {
    /// A connection whose first byte has not come yet.
    pub fn new(now: Time) -> Self {
        Self {
            partial: None,
            rare: None,
            since: now,
            pinged: now,
            last_message: now,
            phase: Phase::Handshaking,
            heard: true,
            opened: false,
            called: false,
            call: exchange::Terms::default(),
        }
    }

    /// Has a header of the PROXY protocol come before the first request: the peer is a proxy that sends one.
    pub fn expect_proxy_header(&mut self) {
        debug_assert!(self.is_new());
        self.partial = Some(Box::new(Partial {
            proxied: true,
            ..Partial::default()
        }));
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether messages can be sent.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether it was admitted, so that its end has to be told.
    pub fn was_open(&self) -> bool {
        self.opened
    }

    /// When the present phase began: for an open connection, when it was opened.
    pub fn since(&self) -> Time {
        self.since
    }

    /// How it ends, once that is known.
    pub fn ending(&self) -> Option<&Disconnect> {
        self.rare.as_ref()?.ending.as_ref()
    }

    /// How it ended: the ending that was set first, or else `now`.
    pub fn into_ending(self, now: Disconnect) -> Disconnect {
        self.rare.and_then(|rare| rare.ending).unwrap_or(now)
    }

    /// Answers the request head with 101 and opens the connection.
    pub fn open(
        &mut self,
        now: Time,
        upgrade: &Upgrade<'_>,
        accept: &handshake::Accept,
        out: &mut Vec<u8>,
    ) {
        debug_assert_eq!(self.phase, Phase::Handshaking);
        upgrade.write_response(accept, out);
        self.partial = None;
        self.phase = Phase::Open;
        self.opened = true;
        self.since = now;
        self.last_message = now;
        self.restart_ping_window(now);
    }

    /// Has messages compressed from here on as was agreed on in the answer that has just opened the connection.
    pub fn compress_with(&mut self, codec: Codec) {
        debug_assert_eq!(self.phase, Phase::Open);
        self.rare.get_or_insert_default().codec = Some(codec);
    }

    /// Its compression, if that was agreed on.
    pub fn codec(&mut self) -> Option<&mut Codec> {
        self.rare.as_deref_mut()?.codec.as_mut()
    }

    /// Begins the closing handshake with CLOSE for `ending`. Nothing happens unless the connection is open: the first
    /// reason stands.
    pub fn close(&mut self, now: Time, ending: Disconnect, out: &mut Vec<u8>) {
        if self.phase == Phase::Open {
            encode_frame(
                OpCode::Close,
                &close_payload(ending.code, &ending.reason),
                out,
            );
            self.end(now, Phase::Closing, ending);
        }
    }

    /// Notes that the connection is dead: nothing more can be received, and nothing sent but what waits already. The
    /// first ending stands, and a connection that was never open has none.
    pub fn abandon(&mut self, now: Time, ending: Disconnect) {
        if self.phase == Phase::Open {
            self.end(now, Phase::Finished, ending);
        } else if self.phase != Phase::Finished {
            self.partial = None;
            self.phase = Phase::Finished;
            self.since = now;
        }
    }

    /// Notes that bytes came from the peer: a sign of life. Returns whether one was being waited for, so that there is
    /// a new deadline.
    pub fn handle_sign_of_life(&mut self) -> bool {
        !std::mem::replace(&mut self.heard, true)
    }

    /// Notes that a data message went either way.
    pub fn handle_message_sent(&mut self, now: Time) {
        self.last_message = now;
    }

    /// What the peer does cannot be seen at the moment: its time limits begin again, and no PONG is missed.
    pub fn excuse_silence(&mut self, now: Time) {
        match self.phase {
            Phase::Handshaking | Phase::Body => self.since = now,
            Phase::Open => {
                self.last_message = now;
                self.heard = true;
            }
            _ => {}
        }
    }

    /// Gives the peer a fresh ping window, as after the machine was suspended.
    pub fn restart_ping_window(&mut self, now: Time) {
        self.pinged = now;
        self.heard = true;
    }

    /// Takes bytes until there is an event, or the input is used up, or the present call has to be answered before more
    /// is taken (`None`). PONG and CLOSE replies go to `out`.
    ///
    /// `shared` is what the connections of a loop have in common. After `Head` or `BadRequest` the request has to be answered before the next call.
    pub fn receive<'a>(
        &mut self,
        now: Time,
        input: &mut Input<'a>,
        shared: &mut Shared,
        out: &mut Vec<u8>,
    ) -> Option<Event<'a>> {
        match self.phase {
            Phase::Handshaking if self.is_proxied() => self.receive_proxy_header(input),
            Phase::Handshaking => self.receive_head(now, input, &shared.limits),
            Phase::Open | Phase::Closing => match self.receive_frames(now, input, shared, out) {
                Ok(event) => event,
                Err(error) => {
                    input.clear();
                    self.fail(now, error, out);
                    None
                }
            },
            Phase::Body => self.receive_body(now, input),
            Phase::Answering | Phase::Streaming => None,
            Phase::Answered | Phase::Failed | Phase::Finished => {
                input.clear();
                None
            }
        }
    }

    /// Takes a message that lies whole in one frame of less than 64 KiB at the front of the input: the way of almost all
    /// messages, and short for that. `None` if anything else is there, which is for [`Connection::receive`] to see to.
    pub fn receive_whole<'a>(
        &mut self,
        now: Time,
        input: &mut Input<'a>,
        shared: &mut Shared,
        out: &mut Vec<u8>,
    ) -> Option<Message<'a>> {
        if self.phase != Phase::Open || self.partial.is_some() {
            return None;
        }
        // The last of its message and masked, without reserved bits, and with the length in as few bytes as it needs.
        let (opcode, begin, len) = match *input.peek() {
            [first @ (0x81 | 0x82), length @ 0x80..=0xfd, ..] => {
                (first, 6, usize::from(length & 0x7f))
            }
            [first @ (0x81 | 0x82), 0xfe, high, low, ..] => {
                match usize::from(u16::from_be_bytes([high, low])) {
                    ..126 => return None,
                    len => (first, 8, len),
                }
            }
            _ => return None,
        };
        if begin + len > input.len() || len > shared.limits.max_message {
            return None;
        }
        let (header, payload) = input.take(begin + len).split_at_mut(begin);
        apply_mask(payload, *header.last_chunk()?);
        if opcode == 0x82 {
            shared.frames.count(OpCode::Binary);
            self.last_message = now;
            return Some(Message::Binary(payload));
        }
        shared.frames.count(OpCode::Text);
        match utf8::check(payload) {
            Ok(text) => {
                self.last_message = now;
                Some(Message::Text(text))
            }
            Err(error) => {
                input.clear();
                self.fail(now, error, out);
                None
            }
        }
    }

    /// Where the next bytes from the peer can be read to without a detour, if they are the inside of a long binary
    /// message: into its own memory. To be followed by [`Connection::receive_in_room`].
    pub fn room(&mut self, shared: &mut Shared) -> Option<&mut [u8]> {
        if self.phase != Phase::Open {
            return None;
        }
        let partial = self.partial.as_deref_mut()?;
        if partial.compressed.is_some() {
            return None;
        }
        let frame = partial.frame.as_ref()?;
        let rest = usize::try_from(frame.payload_len).ok()?;
        let Some(Assembly::Binary(message)) = &mut partial.message else {
            return None;
        };
        // Room is made for as much as has come, so something has to have come.
        let begun = message.len() >= LONG / 32;
        if !begun || message.len() + rest < LONG || frame.opcode.is_control() {
            return None;
        }
        let most = if frame.fin {
            message.len() + rest
        } else {
            shared.limits.max_message
        };
        Some(message.room(rest.min(ROOM), most, &mut shared.buffers))
    }

    /// Takes `count` bytes that were read to where [`Connection::room`] said.
    pub fn receive_in_room(&mut self, now: Time, count: usize) -> Option<Event<'static>> {
        let mut partial = self.partial.take()?;
        let (Some(frame), Some(Assembly::Binary(message))) =
            (&mut partial.frame, &mut partial.message)
        else {
            self.partial = Some(partial);
            return None;
        };
        frame.mask = apply_mask(message.advance(count), frame.mask);
        frame.payload_len -= count as u64;
        let (complete, last) = (frame.payload_len == 0, frame.fin);
        if complete {
            partial.frame = None;
        }
        if !(complete && last) {
            self.partial = Some(partial);
            return None;
        }
        self.last_message = now;
        // Binary messages are never refused in the end.
        let payload = partial.message.take()?.finish().ok()?;
        Some(Event::Message(payload))
    }

    /// When [`Connection::handle_timeout`] is to be called, if ever.
    pub fn deadline(&self, timeouts: &Timeouts) -> Option<Time> {
        let after =
            |start: Time, duration: Option<Duration>| duration.map(|duration| start + duration);
        match self.phase {
            Phase::Handshaking | Phase::Body => after(self.since, timeouts.handshake),
            Phase::Answering => None,
            Phase::Streaming => after(self.pinged, timeouts.ping_interval),
            Phase::Open => {
                let ping = after(
                    self.pinged,
                    if self.heard {
                        timeouts.ping_interval
                    } else {
                        timeouts.ping_timeout
                    },
                );
                let idle = after(self.last_message, timeouts.idle);
                [ping, idle].into_iter().flatten().min()
            }
            Phase::Answered | Phase::Closing | Phase::Failed | Phase::Finished => {
                after(self.since, timeouts.close)
            }
        }
    }

    /// Does what the passed deadline asks for; a PING goes to `out`.
    pub fn handle_timeout(&mut self, now: Time, timeouts: &Timeouts, out: &mut Vec<u8>) -> Timeout {
        let passed = |start: Time, duration: Option<Duration>| {
            duration.is_some_and(|duration| now >= start + duration)
        };
        match self.phase {
            Phase::Handshaking | Phase::Body if passed(self.since, timeouts.handshake) => {
                // Who was answered and asks nothing more has done nothing wrong.
                if self.called && self.partial.is_none() {
                    return Timeout::Gone(Disconnect::eof());
                }
                Timeout::Handshake
            }
            Phase::Streaming if passed(self.pinged, timeouts.ping_interval) => {
                self.keep_stream_alive(now, out);
                Timeout::Continue
            }
            Phase::Open if !self.heard && passed(self.pinged, timeouts.ping_timeout) => {
                Timeout::Gone(Disconnect::ping_timeout())
            }
            Phase::Open if passed(self.last_message, timeouts.idle) => Timeout::Idle,
            Phase::Open if self.heard && passed(self.pinged, timeouts.ping_interval) => {
                encode_frame(OpCode::Ping, b"", out);
                self.pinged = now;
                // Without a ping timeout the PING only keeps proxies awake and nothing is waited for.
                self.heard = timeouts.ping_timeout.is_none();
                Timeout::Continue
            }
            Phase::Answered | Phase::Closing | Phase::Failed | Phase::Finished
                if passed(self.since, timeouts.close) =>
            {
                // The ending is known already (or is told to no one); this one does not replace it.
                Timeout::Gone(Disconnect::eof())
            }
            _ => Timeout::Continue,
        }
    }

    /// Bytes of memory that the peer has made it hold.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn held(&self) -> usize {
        let rare = self.rare.as_ref();
        let codec = rare.and_then(|rare| rare.codec.as_ref());
        codec.map_or(0, Codec::held)
            + self.partial.as_ref().map_or(0, |partial| {
                partial.head.capacity()
                    + partial.control.capacity()
                    + partial.message.as_ref().map_or(0, Assembly::capacity)
                    + partial.body.as_ref().map_or(0, |body| body.capacity())
            })
    }

    /// Collects the header of the PROXY protocol.
    fn receive_proxy_header<'a>(&mut self, input: &mut Input<'a>) -> Option<Event<'a>> {
        let mut partial = self.partial.take().unwrap_or_default();
        loop {
            match proxy::read_header(&partial.head) {
                Ok(Progress::Whole(address)) => return Some(Event::Proxied(address)),
                Ok(Progress::More(_)) if input.is_empty() => break,
                Ok(Progress::More(count)) => partial.head.extend_from_slice(input.take(count)),
                Err(error) => {
                    input.clear();
                    let refusal = Refusal::new(StatusCode::BAD_REQUEST, error.to_string());
                    return Some(Event::BadRequest(refusal.because("proxy_header")));
                }
            }
        }
        self.partial = Some(partial);
        None
    }

    fn is_proxied(&self) -> bool {
        let partial = self.partial.as_ref();
        partial.is_some_and(|partial| partial.proxied)
    }

    /// Collects the request head up to its empty line.
    fn receive_head<'a>(
        &mut self,
        now: Time,
        input: &mut Input<'a>,
        limits: &Limits,
    ) -> Option<Event<'a>> {
        let mut held = self
            .partial
            .take()
            .map(|partial| partial.head)
            .unwrap_or_default();
        // Empty lines before a request are passed over (RFC 9112 section 2.2).
        while held.len() < 2 && (held.is_empty() || held == b"\r") {
            let expected = if held.is_empty() { b'\r' } else { b'\n' };
            if input.peek().first() != Some(&expected) {
                break;
            }
            input.take(1);
            if held.pop().is_none() {
                held.push(b'\r');
            }
        }
        if self.called && held.is_empty() && !input.is_empty() {
            // The time before a further request is not the request's own.
            self.since = now;
        }
        // What an earlier request asked for is over.
        self.call = exchange::Terms::default();
        match http::find_end(&held, input.peek(), limits.max_head) {
            Ok(Some(len)) if held.is_empty() => Some(Event::Head(Cow::Borrowed(input.take(len)))),
            Ok(Some(len)) => {
                held.extend_from_slice(input.take(len));
                Some(Event::Head(Cow::Owned(held)))
            }
            Ok(None) => {
                held.extend_from_slice(input.take(input.len()));
                if !held.is_empty() {
                    self.partial = Some(Box::new(Partial {
                        head: held,
                        ..Partial::default()
                    }));
                }
                None
            }
            Err(refusal) => {
                input.clear();
                Some(Event::BadRequest(refusal))
            }
        }
    }

    /// Takes frames until one completes a message or the input is used up.
    fn receive_frames<'a>(
        &mut self,
        now: Time,
        input: &mut Input<'a>,
        shared: &mut Shared,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event<'a>>, ProtocolError> {
        while !input.is_empty() {
            if matches!(self.phase, Phase::Finished) {
                // "After sending a control frame indicating the connection should be closed, a peer does not send any
                // further data": what comes after the peer's CLOSE is not looked at.
                input.clear();
                break;
            }
            let event = match self.partial.take() {
                Some(partial) => self.receive_rest(now, partial, input, shared, out)?,
                None => match FrameHeader::parse(input.peek(), self.compresses())? {
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
                        partial.header_len = bytes.len() as u8;
                        self.partial = Some(partial);
                        break;
                    }
                },
            };
            if let Some(payload) = event {
                self.last_message = now;
                return Ok(Some(Event::Message(payload)));
            }
        }
        Ok(None)
    }

    /// Goes on with an incomplete header, frame or message.
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
            let header = &partial.header[..usize::from(partial.header_len)];
            match FrameHeader::parse(header, self.compresses())? {
                Some((header, _)) => break header,
                None => match input.take(1) {
                    [byte] => {
                        partial.header[usize::from(partial.header_len)] = *byte;
                        partial.header_len += 1;
                    }
                    _ => {
                        self.partial = Some(partial);
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

    /// Notes a frame whose payload has not all come.
    fn begin_frame(&mut self, mut partial: Box<Partial>, header: FrameHeader) {
        if matches!(header.opcode, OpCode::Text | OpCode::Binary) && self.phase == Phase::Open {
            Self::begin_message(&mut partial, header);
        }
        partial.frame = Some(header);
        self.partial = Some(partial);
    }

    /// Takes what has come of the payload of an incomplete frame.
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
        frame.mask = apply_mask(piece, frame.mask);
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
        } else if self.phase == Phase::Open {
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

    /// Handles a frame all of whose payload lies in the input. `partial` holds the message it may belong to.
    fn receive_whole_frame<'a>(
        &mut self,
        now: Time,
        header: FrameHeader,
        payload: &'a mut [u8],
        partial: Option<Box<Partial>>,
        shared: &mut Shared,
        out: &mut Vec<u8>,
    ) -> Result<Option<Payload<'a>>, ProtocolError> {
        apply_mask(payload, header.mask);
        if header.opcode.is_control() {
            if let Some(partial) = partial {
                self.keep(partial);
            }
            self.handle_control(now, header.opcode, payload, out)?;
            return Ok(None);
        }
        if self.phase != Phase::Open {
            return Ok(None);
        }
        if header.fin && header.opcode != OpCode::Continuation {
            if header.compressed {
                return self.decompress(header.opcode, payload, shared).map(Some);
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

    /// Begins to put a message together.
    fn begin_message(partial: &mut Partial, header: FrameHeader) {
        let opcode = if header.compressed {
            OpCode::Binary
        } else {
            header.opcode
        };
        partial.message = Some(Assembly::new(opcode));
        partial.compressed = header.compressed.then_some(header.opcode);
    }

    /// Puts a piece to the message that is arriving. `rest` is what is to come of the message, this piece included, if
    /// that is known.
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

    /// The message that has all come.
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
        let whole = self.decompress(opcode, message.as_message().as_bytes(), shared);
        message.recycle(&mut shared.buffers);
        whole.map(Some)
    }

    /// A compressed message all of which is there.
    fn decompress(
        &mut self,
        opcode: OpCode,
        bytes: &[u8],
        shared: &mut Shared,
    ) -> Result<Payload<'static>, ProtocolError> {
        let mut message = Assembly::new(opcode);
        if let (Some(codec), Some(compression)) = (self.codec(), &mut shared.compression) {
            let (most, buffers) = (shared.limits.max_message, &mut shared.buffers);
            codec.decompress(bytes, &mut message, most, compression, buffers)?;
        }
        message.finish()
    }

    /// Whether messages may come compressed.
    fn compresses(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.codec.is_some())
    }

    /// Refuses a frame that may not come now. While closing, data is thrown away, so anything may come.
    fn check_header(
        &self,
        header: &FrameHeader,
        partial: Option<&Partial>,
        limits: &Limits,
    ) -> Result<(), ProtocolError> {
        if header.opcode.is_control() || self.phase != Phase::Open {
            return Ok(());
        }
        let message = partial.and_then(|partial| partial.message.as_ref());
        let is_compressed =
            header.compressed || partial.is_some_and(|partial| partial.compressed.is_some());
        let most = most_of_wire(is_compressed, limits);
        check_data_frame(header, message, most)
    }

    /// Handles a whole control frame.
    fn handle_control(
        &mut self,
        now: Time,
        opcode: OpCode,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        match (opcode, self.phase) {
            // "Upon receipt of a Ping frame, an endpoint MUST send a Pong frame in response, unless it already received
            // a Close frame." After our own CLOSE nothing may be sent either.
            (OpCode::Ping, Phase::Open) => encode_frame(OpCode::Pong, payload, out),
            // "If an endpoint receives a Close frame and did not previously send a Close frame, the endpoint MUST send
            // a Close frame in response", typically echoing the status code.
            (OpCode::Close, Phase::Open) => {
                let (code, reason) = parse_close(payload)?;
                encode_frame(OpCode::Close, &close_payload(code, ""), out);
                self.end(
                    now,
                    Phase::Finished,
                    Disconnect::new(Cause::PeerClose, code, reason.to_owned()),
                );
            }
            (OpCode::Close, _) => {
                self.partial = None;
                self.phase = Phase::Finished;
            }
            _ => {}
        }
        Ok(())
    }

    /// Fails the connection, RFC 6455 section 7.1.7. While closing, the framing is lost and with it the peer's CLOSE;
    /// the ending stays what it was.
    fn fail(&mut self, now: Time, error: ProtocolError, out: &mut Vec<u8>) {
        if self.phase == Phase::Open {
            let ending = Disconnect::protocol_error(error);
            encode_frame(
                OpCode::Close,
                &close_payload(ending.code, &ending.reason),
                out,
            );
            self.end(now, Phase::Failed, ending);
        } else {
            self.partial = None;
            self.phase = Phase::Failed;
        }
    }

    /// Leaves `Open`. A frame that is arriving keeps its place in the stream; the message it belonged to is dropped.
    fn end(&mut self, now: Time, phase: Phase, ending: Disconnect) {
        debug_assert!(self.phase == Phase::Open && self.ending().is_none());
        if let Some(mut partial) = self.partial.take() {
            partial.message = None;
            partial.compressed = None;
            self.keep(partial);
        }
        self.phase = phase;
        self.since = now;
        let rare = self.rare.get_or_insert_default();
        rare.ending = Some(ending);
        if let Some(codec) = &mut rare.codec {
            codec.release();
        }
    }

    /// Keeps what is incomplete, and only that.
    fn keep(&mut self, partial: Box<Partial>) {
        if !partial.is_empty() {
            self.partial = Some(partial);
        }
    }
}

/// The most bytes that a message may have on the wire. What cannot be made shorter grows when it is compressed, by a few
/// bytes for each block and each flush of the sender's.
fn most_of_wire(is_compressed: bool, limits: &Limits) -> usize {
    let most = limits.max_message;
    if is_compressed {
        most.saturating_add(most / 4 + 1024)
    } else {
        most
    }
}
