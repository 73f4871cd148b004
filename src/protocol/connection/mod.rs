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

pub use frames::take_whole_message;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use super::close::{Cause, Disconnect, close_payload, parse_close};
use super::deflate::{Codec, Compression};
use super::frame::{FrameHeader, MAX_HEADER, OpCode, encode_frame};
use super::handshake::{self, Upgrade};
use super::http::{self, Body, Ending, Refusal, StatusCode};
use super::message::{Assembly, Payload};
use super::proxy::{self, Progress};
use super::{Buffers, Input, Limits, ProtocolError, Time, Timeouts};

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
    partial: Option<Box<Partial>>,
    /// How it ends, set exactly once: when the phase leaves `Open`.
    ending: Option<Disconnect>,
    /// Its compression, if that was agreed on.
    codec: Option<Codec>,
    /// Under a rate limit: when, in microseconds, the messages so far would have been due. 0 before the first.
    due: u64,
    /// The origin of the page that may read the answer to the present request.
    origin: Option<Box<str>>,
}

impl Rare {
    fn is_empty(&self) -> bool {
        let idle = self.partial.is_none() && self.ending.is_none() && self.codec.is_none();
        idle && self.due == 0 && self.origin.is_none()
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
            self.take_partial();
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
    pub fn handle_message(&mut self, now: Time) {
        self.last_message = now;
    }

    /// Counts a message against a limit of so many in a second, and says whether it is over: the generic cell rate
    /// algorithm with one second's worth of burst.
    pub fn is_over_rate(&mut self, rate: NonZeroU32, now: Time) -> bool {
        let now = now.as_millis() * 1000;
        let rare = self.rare.get_or_insert_default();
        rare.due = rare.due.max(now) + 1_000_000 / u64::from(rate.get());
        rare.due - now > 1_000_000
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
        let event = match self.phase {
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
        };
        self.tidy();
        event
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
        if let Some(rare) = &mut self.rare
            && rare.due <= now.as_millis() * 1000
        {
            // What came so long ago counts no more.
            rare.due = 0;
            self.tidy();
        }
        let passed = |start: Time, duration: Option<Duration>| {
            duration.is_some_and(|duration| now >= start + duration)
        };
        match self.phase {
            Phase::Handshaking | Phase::Body if passed(self.since, timeouts.handshake) => {
                // Who was answered and asks nothing more has done nothing wrong.
                if self.called && self.partial().is_none() {
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
            + self.partial().map_or(0, |partial| {
                partial.head.capacity()
                    + partial.control.capacity()
                    + partial.message.as_ref().map_or(0, Assembly::capacity)
                    + partial.body.as_ref().map_or(0, |body| body.capacity())
            })
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
                    let refusal = Refusal::new(StatusCode::BAD_REQUEST, error.to_string());
                    return Some(Event::BadRequest(refusal.because("proxy_header")));
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
            Err(refusal) => {
                input.clear();
                Some(Event::BadRequest(refusal))
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
                    Disconnect::new(Cause::PeerClose, code, reason.to_owned()),
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
            let ending = Disconnect::protocol_error(error);
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
    fn end(&mut self, now: Time, phase: Phase, ending: Disconnect) {
        debug_assert!(self.phase == Phase::Open && self.ending().is_none());
        if let Some(mut partial) = self.take_partial() {
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

    /// What is incomplete.
    fn partial(&self) -> Option<&Partial> {
        self.rare.as_ref()?.partial.as_deref()
    }

    fn partial_mut(&mut self) -> Option<&mut Partial> {
        self.rare.as_deref_mut()?.partial.as_deref_mut()
    }

    fn take_partial(&mut self) -> Option<Box<Partial>> {
        self.rare.as_deref_mut()?.partial.take()
    }

    /// Gives up the memory for what is rare, if there is nothing of it.
    fn tidy(&mut self) {
        if self.rare.as_ref().is_some_and(|rare| rare.is_empty()) {
            self.rare = None;
        }
    }

    fn set_partial(&mut self, partial: Box<Partial>) {
        self.rare.get_or_insert_default().partial = Some(partial);
    }

    /// Keeps what is incomplete, and only that.
    fn keep(&mut self, partial: Box<Partial>) {
        if !partial.is_empty() {
            self.set_partial(partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_limit_lets_a_seconds_worth_through_and_then_one_by_one() {
        let rate = NonZeroU32::new(10).expect("not zero");
        let mut connection = Connection::new(Time::default());
        let at = Time::from_millis;
        for _ in 0..10 {
            assert!(!connection.is_over_rate(rate, at(5000)));
        }
        assert!(
            connection.is_over_rate(rate, at(5000)),
            "the eleventh in one instant"
        );
        assert!(
            !connection.is_over_rate(rate, at(5300)),
            "and again after the time of two"
        );
        connection.handle_timeout(at(6199), &Timeouts::default(), &mut Vec::new());
        assert!(connection.rare.is_some(), "what counts is kept");
        connection.handle_timeout(at(6200), &Timeouts::default(), &mut Vec::new());
        assert!(connection.rare.is_none(), "and then forgotten");
    }
}
