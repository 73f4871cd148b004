//! The server's side of one connection on any byte stream: a socket of another event loop, a task of an async runtime, a
//! serial line.
//!
//! A [`Driver`] joins [`HttpConnection`] and [`WebSocket`], and keeps their buffers. The caller reads from the stream and
//! writes to it:
//!
//! ```
//! use std::io::{self, Read, Write};
//! use std::time::Instant;
//!
//! use outrigger::protocol::driver::{Driver, Event};
//! use outrigger::protocol::{Accept, NextStep, Time};
//!
//! fn echo(mut stream: impl Read + Write) -> io::Result<()> {
//!     let begin = Instant::now();
//!     let now = || Time::from_millis(begin.elapsed().as_millis() as u64);
//!     let mut driver = Driver::new(now(), |_request| Ok(Accept::default()));
//!     let mut buffer = [0; 16 << 10];
//!     while driver.next_step() == NextStep::Continue {
//!         let count = stream.read(&mut buffer)?;
//!         if count == 0 {
//!             driver.handle_end(now());
//!         }
//!         driver.handle_input(&buffer[..count]);
//!         while let Some(event) = driver.poll_event(now()) {
//!             match event {
//!                 Event::Opened => {}
//!                 Event::Message(message) => driver.send(now(), &message),
//!                 Event::Closed(reason) => println!("closed: {reason}"),
//!             }
//!         }
//!         stream.write_all(&driver.take_output())?;
//!     }
//!     Ok(())
//! }
//! ```
//!
//! The order of calls: pass on what you have read with [`Driver::handle_input`], call [`Driver::poll_event`] until it
//! returns `None`, and write [`Driver::take_output`] to the stream. Then do what [`Driver::next_step`] says. When
//! [`Driver::deadline`] has passed, call [`Driver::handle_timeout`]. A caller that blocks in `read`, as above, has no time
//! limits.

use std::fmt;

use super::deflate::Offer;
#[cfg(feature = "deflate")]
use super::deflate::{Compression, DeflateConfig};
use super::http::HttpDate;
use super::{
    Accept, CloseReason, HttpConnection, HttpEvent, Input, Limits, Message, NextStep, OwnedMessage,
    Rejection, Request, Shared, Time, Timeout, Timeouts, WebSocket,
};

/// Decides about a handshake: the fields of the 101 response, or the response that rejects it.
type AcceptFn = Box<dyn FnMut(&Request<'_>) -> Result<Accept, Rejection> + Send>;

/// One connection of a server: bytes and time in, events and bytes out. See [the module](self) for an example.
///
/// * Settings: `with_*`, before the first input.
/// * Input: `handle_*` takes bytes and the time.
/// * Commands: [`Driver::send`] and [`Driver::close`].
/// * Output: [`Driver::poll_event`] and [`Driver::take_output`].
///
/// Input that has arrived is bounded by [`Limits`]. Output is not: if the peer reads slowly, stop reading from it.
pub struct Driver {
    connection: Connection,
    accept: AcceptFn,
    shared: Shared,
    timeouts: Timeouts,
    /// Input that is not consumed yet, from `consumed` on.
    input: Vec<u8>,
    consumed: usize,
    output: Vec<u8>,
    /// Whether the caller was told that the connection has closed.
    is_closed: bool,
}

enum Connection {
    Http(HttpConnection),
    WebSocket(WebSocket),
}

/// What happened on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The handshake was accepted.
    Opened,
    /// A complete message has arrived. Text is valid UTF-8.
    Message(OwnedMessage),
    /// An opened connection has ended. It is the last event.
    Closed(CloseReason),
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

impl Driver {
    /// Creates a connection that waits for its first byte. `accept` decides about its handshake. Requests that are not a
    /// WebSocket handshake are rejected without asking it.
    pub fn new(
        now: Time,
        accept: impl FnMut(&Request<'_>) -> Result<Accept, Rejection> + Send + 'static,
    ) -> Self {
        Self {
            connection: Connection::Http(HttpConnection::new(now)),
            accept: Box::new(accept),
            shared: Shared::default(),
            timeouts: Timeouts::default(),
            input: Vec::new(),
            consumed: 0,
            output: Vec::new(),
            is_closed: false,
        }
    }

    /// Sets the limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.shared.limits = limits;
        self
    }

    /// Sets the time limits.
    #[must_use]
    pub fn with_timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Offers permessage-deflate (RFC 7692).
    #[cfg(feature = "deflate")]
    #[must_use]
    pub fn with_deflate(mut self, config: DeflateConfig) -> Self {
        self.shared.compression = Some(Compression::new(config));
        self
    }

    /// Takes bytes that the peer has sent.
    pub fn handle_input(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Takes the end of the peer's bytes: it has closed the stream, or its side of it.
    pub fn handle_end(&mut self, now: Time) {
        match &mut self.connection {
            Connection::Http(http) => http.abandon(now),
            Connection::WebSocket(socket) => socket.abandon(now, CloseReason::eof()),
        }
    }

    /// Handles a [deadline](Driver::deadline) that has passed: sends a PING, or ends a connection whose peer is silent.
    pub fn handle_timeout(&mut self, now: Time) {
        let (timeouts, output) = (&self.timeouts, &mut self.output);
        let timeout = match &mut self.connection {
            Connection::Http(http) => http.handle_timeout(now, timeouts, output),
            Connection::WebSocket(socket) => socket.handle_timeout(now, timeouts, None, output),
        };
        match (timeout, &mut self.connection) {
            (Timeout::Continue | Timeout::Rejection, _) => {}
            (Timeout::Handshake, Connection::Http(http)) => {
                let rejection = Rejection::timeout();
                http.reject(now, HttpDate::now(), &rejection, output);
            }
            (_, Connection::Http(http)) => http.abandon(now),
            (Timeout::Gone(reason), Connection::WebSocket(socket)) => socket.abandon(now, reason),
            (_, Connection::WebSocket(socket)) => {
                socket.close(now, CloseReason::idle_timeout(), output);
            }
        }
    }

    /// When to call [`Driver::handle_timeout`], if at all.
    pub fn deadline(&self) -> Option<Time> {
        match &self.connection {
            Connection::Http(http) => http.deadline(&self.timeouts),
            Connection::WebSocket(socket) => socket.deadline(&self.timeouts),
        }
    }

    /// Sends a message. Does nothing unless the connection is open.
    pub fn send<'m>(&mut self, now: Time, message: impl Into<Message<'m>>) {
        if let Connection::WebSocket(socket) = &mut self.connection {
            socket.send(message.into(), &mut self.shared, &mut self.output);
            socket.handle_message(now);
        }
    }

    /// Begins the closing handshake. Does nothing unless the connection is open.
    pub fn close(&mut self, now: Time, reason: CloseReason) {
        if let Connection::WebSocket(socket) = &mut self.connection {
            socket.close(now, reason, &mut self.output);
        }
    }

    /// The next event. `None` if more input is needed, or the connection is over.
    pub fn poll_event(&mut self, now: Time) -> Option<Event> {
        let mut input = std::mem::take(&mut self.input);
        let event = self.next_event(now, &mut input);
        if self.consumed == input.len() {
            input.clear();
            self.consumed = 0;
        }
        self.input = input;
        event
    }

    fn next_event(&mut self, now: Time, bytes: &mut [u8]) -> Option<Event> {
        let total = bytes.len();
        let mut input = Input::new(&mut bytes[self.consumed..]);
        let event = match &mut self.connection {
            Connection::Http(http) => {
                let event = http.receive(now, &mut input, &self.shared.limits);
                self.handle_http(now, event)
            }
            Connection::WebSocket(socket) => {
                if !input.is_empty() {
                    socket.handle_sign_of_life(now);
                }
                self.next_message(now, &mut input)
            }
        };
        self.consumed = total - input.len();
        event.or_else(|| self.closed())
    }

    fn handle_http(&mut self, now: Time, event: Option<HttpEvent<'_>>) -> Option<Event> {
        let opened = match event? {
            HttpEvent::Head(head) => self.open(now, &head),
            HttpEvent::BadRequest(rejection) => Err(rejection),
            // Nothing expects the PROXY protocol or the body of a call.
            HttpEvent::Call { .. } | HttpEvent::Proxied(_) => return None,
        };
        match (opened, &mut self.connection) {
            (Ok(socket), connection) => {
                *connection = Connection::WebSocket(socket);
                return Some(Event::Opened);
            }
            (Err(rejection), Connection::Http(http)) => {
                http.reject(now, HttpDate::now(), &rejection, &mut self.output);
            }
            (Err(_), Connection::WebSocket(_)) => {}
        }
        None
    }

    fn next_message(&mut self, now: Time, input: &mut Input<'_>) -> Option<Event> {
        let Connection::WebSocket(socket) = &mut self.connection else {
            return None;
        };
        loop {
            let payload = socket.receive(now, input, &mut self.shared, &mut self.output);
            if let Some(payload) = payload {
                let message = OwnedMessage::from(payload.as_message());
                payload.recycle(&mut self.shared.buffers);
                return Some(Event::Message(message));
            }
            // A long message is decompressed in several steps.
            if !socket.is_inflating() {
                return None;
            }
        }
    }

    /// The last event, once.
    fn closed(&mut self) -> Option<Event> {
        let Connection::WebSocket(socket) = &self.connection else {
            return None;
        };
        let is_over = socket.next_step() != NextStep::Continue;
        if !is_over || std::mem::replace(&mut self.is_closed, true) {
            return None;
        }
        let reason = socket.close_reason().cloned();
        Some(Event::Closed(reason.unwrap_or_else(CloseReason::eof)))
    }

    /// Checks a request and accepts its handshake.
    fn open(&mut self, now: Time, head: &[u8]) -> Result<WebSocket, Rejection> {
        let request = Request::parse(head)?;
        let upgrade = request.upgrade()?;
        let mut accept = (self.accept)(&request)?;
        let mut codec = None;
        if let Some(compression) = &self.shared.compression
            && let Some(offer) = Offer::find(&request)?
        {
            let agreed;
            (accept, agreed) = compression.negotiate(offer, accept)?;
            codec = Some(agreed);
        }
        let output = &mut self.output;
        Ok(WebSocket::accept(now, &upgrade, &accept, codec, output))
    }

    /// The bytes to write to the stream. They are written once: the next call returns what was added since.
    #[must_use]
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// What to do once all output is written.
    pub fn next_step(&self) -> NextStep {
        match &self.connection {
            Connection::Http(http) => http.next_step(),
            Connection::WebSocket(socket) => socket.next_step(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::{Cause, CloseCode, OpCode};
    use crate::random::Random;

    const NOW: Time = Time::from_millis(0);

    const HANDSHAKE: &[u8] =
        b"GET /chat HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

    /// A masked frame whose mask is zero.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).expect("short") | 0x80;
        [&[first, length, 0, 0, 0, 0], payload].concat()
    }

    fn driver() -> Driver {
        Driver::new(NOW, |request| match request.path() {
            "/chat" => Ok(Accept::default()),
            _ => Err(Rejection::not_found()),
        })
    }

    fn events(driver: &mut Driver) -> Vec<Event> {
        std::iter::from_fn(|| driver.poll_event(NOW)).collect()
    }

    /// An open connection whose 101 response was taken.
    fn opened() -> Driver {
        let mut driver = driver();
        driver.handle_input(HANDSHAKE);
        assert_eq!(events(&mut driver), [Event::Opened]);
        let response = driver.take_output();
        assert!(response.starts_with(b"HTTP/1.1 101 "));
        driver
    }

    #[test]
    fn the_events_and_the_output_do_not_depend_on_the_pieces_of_the_input() {
        let input = [
            HANDSHAKE,
            &frame(0x81, b"hello"),
            &frame(0x89, b"ping"),
            &frame(0x02, b"one, "),
            &frame(0x80, b"two"),
            &frame(0x88, b"\x03\xe8bye"),
            b"ignored",
        ]
        .concat();
        let run = |pieces: &mut dyn FnMut(usize) -> usize| {
            let mut driver = driver();
            let (mut rest, mut found, mut output) = (&input[..], Vec::new(), Vec::new());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(pieces(rest.len()));
                driver.handle_input(piece);
                while let Some(event) = driver.poll_event(NOW) {
                    if let Event::Message(message) = &event {
                        driver.send(NOW, message);
                    }
                    found.push(event);
                }
                output.extend(driver.take_output());
                rest = after;
            }
            assert_eq!(driver.next_step(), NextStep::Close);
            (found, output)
        };
        let whole = run(&mut |len| len);
        let (found, output) = &whole;
        let reason = CloseReason::new(Cause::PeerClose, CloseCode::NORMAL, "bye");
        assert_eq!(
            found[..],
            [
                Event::Opened,
                Event::Message("hello".into()),
                Event::Message(b"one, two".to_vec().into()),
                Event::Closed(reason),
            ]
        );
        let expected = b"\x81\x05hello\x8a\x04ping\x82\x08one, two\x88\x02\x03\xe8";
        assert!(output.ends_with(expected), "{output:?}");
        assert_eq!(run(&mut |_| 1), whole);
        let mut random = Random::new(1);
        for _ in 0..200 {
            assert_eq!(run(&mut |len| 1 + random.below(len)), whole);
        }
    }

    #[test]
    fn what_is_not_a_handshake_is_rejected_and_opens_nothing() {
        for (input, status) in [
            ("GET /chat HTTP/1.1\r\nHost: h\r\n\r\n", "426"),
            ("nonsense\r\n\r\n", "400"),
            (
                &String::from_utf8_lossy(HANDSHAKE).replace("/chat", "/other"),
                "404",
            ),
        ] {
            let mut driver = driver();
            driver.handle_input(input.as_bytes());
            assert_eq!(events(&mut driver), []);
            let response = String::from_utf8(driver.take_output()).expect("ASCII");
            assert!(
                response.starts_with(&format!("HTTP/1.1 {status} ")),
                "{response}"
            );
            assert_eq!(driver.next_step(), NextStep::EndOutput);
            driver.handle_end(NOW);
            assert_eq!(events(&mut driver), []);
            assert_eq!(driver.next_step(), NextStep::Close);
        }
    }

    #[test]
    fn an_end_without_close_is_reported_once() {
        let mut driver = opened();
        driver.handle_input(&frame(0x01, b"incomplete"));
        driver.handle_end(NOW);
        assert_eq!(events(&mut driver), [Event::Closed(CloseReason::eof())]);
        driver.handle_end(NOW);
        assert_eq!(events(&mut driver), []);
    }

    #[test]
    fn a_violation_is_answered_with_close_and_reported() {
        let mut driver = opened();
        driver.handle_input(&frame(0x81, b"\xff"));
        let found = events(&mut driver);
        assert!(
            matches!(&found[..], [Event::Closed(reason)] if reason.code == CloseCode(1007)),
            "{found:?}"
        );
        assert!(driver.take_output().starts_with(b"\x88"));
        assert_eq!(driver.next_step(), NextStep::EndOutput);
    }

    #[test]
    fn a_silent_peer_gets_a_ping_and_is_then_given_up() {
        let mut driver = opened();
        let deadline = driver.deadline().expect("a PING interval");
        driver.handle_timeout(deadline);
        assert_eq!(driver.take_output(), b"\x89\x00");
        let deadline = driver.deadline().expect("a PING timeout");
        driver.handle_timeout(deadline);
        let found = events(&mut driver);
        assert_eq!(found, [Event::Closed(CloseReason::ping_timeout())]);
    }

    #[test]
    fn a_request_that_never_ends_is_rejected_in_time() {
        let timeouts = Timeouts::default().with_handshake(Duration::from_secs(1));
        let mut driver = driver().with_timeouts(timeouts);
        driver.handle_input(b"GET /");
        assert_eq!(events(&mut driver), []);
        driver.handle_timeout(NOW + Duration::from_millis(999));
        assert_eq!(driver.take_output(), b"");
        driver.handle_timeout(NOW + Duration::from_secs(1));
        assert!(driver.take_output().starts_with(b"HTTP/1.1 408 "));
    }

    #[test]
    fn our_close_ends_with_the_answer_of_the_peer() {
        let mut driver = opened();
        let reason = CloseReason::new(Cause::Service, CloseCode(4000), "done");
        driver.close(NOW, reason.clone());
        assert_eq!(driver.take_output(), b"\x88\x06\x0f\xa0done");
        driver.handle_input(&frame(0x81, b"dropped"));
        assert_eq!(events(&mut driver), []);
        driver.handle_input(&frame(0x88, b"\x0f\xa0"));
        assert_eq!(events(&mut driver), [Event::Closed(reason)]);
        assert_eq!(driver.next_step(), NextStep::Close);
    }

    #[cfg(feature = "deflate")]
    #[test]
    fn compressed_messages_arrive_and_are_sent_compressed() {
        let config = DeflateConfig::default();
        let mut driver = driver().with_deflate(config).with_limits(Limits::default());
        let offer =
            b"\r\nSec-WebSocket-Extensions: permessage-deflate; client_no_context_takeover\r\n\r\n";
        let head = [&HANDSHAKE[..HANDSHAKE.len() - 4], offer].concat();
        driver.handle_input(&head);
        assert_eq!(events(&mut driver), [Event::Opened]);
        let response = String::from_utf8(driver.take_output()).expect("ASCII");
        assert!(response.contains("\r\nSec-WebSocket-Extensions: permessage-deflate"));
        // "Hello" compressed, the example of RFC 7692 section 7.2.3.1.
        let hello = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        driver.handle_input(&frame(0xc1, &hello));
        let found = events(&mut driver);
        assert_eq!(found, [Event::Message("Hello".into())]);
        let long = "Hello".repeat(1000);
        driver.send(NOW, &long);
        let output = driver.take_output();
        assert_eq!(output[0], 0xc0 | OpCode::Text as u8);
        assert!(output.len() < 100);
    }
}
