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
mod frames;
mod rare;
mod timeouts;

use std::borrow::Cow;
use std::net::SocketAddr;

pub use frames::take_whole_message;
pub use timeouts::Timeout;

use self::rare::{Partial, Rare};
use super::close::{Cause, CloseReason, close_payload, parse_close};
use super::deflate::{Codec, Compression};
use super::frame::{OpCode, encode_frame};
use super::handshake::{self, Upgrade};
use super::http::{self, Body, Ending, Rejection, StatusCode};
use super::message::Payload;
use super::proxy::{self, Progress};
use super::{Buffers, Input, Limits, ProtocolError, Time};

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
    /// [`Connection::reject`].
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
    /// The request cannot be read; the rejection is to be passed to [`Connection::reject`].
    BadRequest(Rejection),
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

/// The server's side of one WebSocket connection.
#[derive(Debug)]
pub struct Connection {
    /// `None` between two messages: a connection that waits owns no heap memory, unless compression was agreed on.
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
        self.set_partial(Box::new(Partial {
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

    /// When the last data message went either way.
    pub fn last_message(&self) -> Time {
        self.last_message
    }

    /// How it ends, once that is known.
    pub fn ending(&self) -> Option<&CloseReason> {
        self.rare.as_ref()?.ending.as_ref()
    }

    /// How it ended: the ending that was set first, or else `now`.
    pub fn into_ending(self, now: CloseReason) -> CloseReason {
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
        self.rare = None;
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
    pub fn close(&mut self, now: Time, ending: CloseReason, out: &mut Vec<u8>) {
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
    pub fn abandon(&mut self, now: Time, ending: CloseReason) {
        if self.phase == Phase::Open {
            self.end(now, Phase::Finished, ending);
        } else if self.phase != Phase::Finished {
            self.take_partial();
            self.phase = Phase::Finished;
            self.since = now;
        }
    }

    /// Takes bytes until there is an event, or the input is used up, or the present call has to be answered before more
    /// is taken, or a long message [is being decompressed](Connection::is_inflating) (`None`). PONG and CLOSE replies
    /// go to `out`.
    ///
    /// `shared` is what the connections of a loop have in common. After `Head` or `BadRequest` the request has to be answered before the next call.
    pub fn receive<'a>(
        &mut self,
        now: Time,
        input: &mut Input<'a>,
        shared: &mut Shared,
        out: &mut Vec<u8>,
    ) -> Option<Event<'a>> {
        self.receive_any(now, input, shared, out, false)
    }

    /// Like [`Connection::receive`], but on an open connection only control frames are consumed: input from the next
    /// data frame on is left. For a service that cannot take messages at the moment; PING and CLOSE are still answered.
    pub fn receive_control<'a>(
        &mut self,
        now: Time,
        input: &mut Input<'a>,
        shared: &mut Shared,
        out: &mut Vec<u8>,
    ) -> Option<Event<'a>> {
        self.receive_any(now, input, shared, out, true)
    }

    fn receive_any<'a>(
        &mut self,
        now: Time,
        input: &mut Input<'a>,
        shared: &mut Shared,
        out: &mut Vec<u8>,
        control_only: bool,
    ) -> Option<Event<'a>> {
        let event = match self.phase {
            Phase::Handshaking if self.is_proxied() => self.receive_proxy_header(input),
            Phase::Handshaking => self.receive_head(now, input, &shared.limits),
            Phase::Open | Phase::Closing => {
                match self.receive_frames(now, input, shared, out, control_only) {
                    Ok(event) => event,
                    Err(error) => {
                        input.clear();
                        self.fail(now, error, out);
                        None
                    }
                }
            }
            Phase::Body => self.receive_body(now, input),
            Phase::Answering | Phase::Streaming => None,
            Phase::Answered | Phase::Failed | Phase::Finished => {
                input.clear();
                None
            }
        };
        self.tidy();
        event
    }

    /// Collects the header of the PROXY protocol.
    fn receive_proxy_header<'a>(&mut self, input: &mut Input<'a>) -> Option<Event<'a>> {
        let mut partial = self.take_partial().unwrap_or_default();
        loop {
            match proxy::read_header(&partial.head) {
                Ok(Progress::Whole(address)) => return Some(Event::Proxied(address)),
                Ok(Progress::More(_)) if input.is_empty() => break,
                Ok(Progress::More(count)) => partial.head.extend_from_slice(input.take(count)),
                Err(error) => {
                    input.clear();
                    let rejection = Rejection::new(StatusCode::BAD_REQUEST, error.to_string());
                    return Some(Event::BadRequest(rejection.because("proxy_header")));
                }
            }
        }
        self.set_partial(partial);
        None
    }

    fn is_proxied(&self) -> bool {
        let partial = self.partial();
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
            .take_partial()
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
                    self.set_partial(Box::new(Partial {
                        head: held,
                        ..Partial::default()
                    }));
                }
                None
            }
            Err(rejection) => {
                input.clear();
                Some(Event::BadRequest(rejection))
            }
        }
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
                    CloseReason::new(Cause::PeerClose, code, reason.to_owned()),
                );
            }
            (OpCode::Close, _) => {
                self.take_partial();
                self.phase = Phase::Finished;
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether it is open and nothing is begun or agreed on, so that the next message can be taken by
    /// [`take_whole_message`].
    pub fn is_at_rest(&self) -> bool {
        self.phase == Phase::Open && self.rare.is_none()
    }

    /// Fails the connection, RFC 6455 section 7.1.7. While closing, the framing is lost and with it the peer's CLOSE;
    /// the ending stays what it was.
    pub fn fail(&mut self, now: Time, error: ProtocolError, out: &mut Vec<u8>) {
        if self.phase == Phase::Open {
            let ending = CloseReason::protocol_error(error);
            encode_frame(
                OpCode::Close,
                &close_payload(ending.code, &ending.reason),
                out,
            );
            self.end(now, Phase::Failed, ending);
        } else {
            self.take_partial();
            self.phase = Phase::Failed;
        }
    }

    /// Leaves `Open`. A frame that is arriving keeps its place in the stream; the message it belonged to is dropped.
    fn end(&mut self, now: Time, phase: Phase, ending: CloseReason) {
        debug_assert!(self.phase == Phase::Open && self.ending().is_none());
        if let Some(mut partial) = self.take_partial() {
            partial.message = None;
            partial.compressed = None;
            partial.inflating = None;
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
}
