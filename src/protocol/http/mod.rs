//! A subset of HTTP/1.1 (RFC 9110, RFC 9112) for handshakes and calls: request heads, bodies and responses.
//! An [`HttpConnection`] is a connection before the WebSocket handshake.
//!
//! ```text
//! bytes -> head (Request: method, path, fields, framing) -> body (length or chunks, up to a limit) -> service
//! service -> Response, complete or as a stream of events -> bytes
//! ```

mod body;
mod calls;
mod field;
mod forwarded;
mod head;
mod rejection;
mod response;
mod trace;

pub use body::Body;
pub(crate) use body::BodyDecoder;
pub use field::is_field;
pub(crate) use field::is_token_byte;
pub use forwarded::{forwarded, x_forwarded_for};
pub use head::{Framing, MAX_HEADERS, Request, find_end};
pub use rejection::{Rejection, StatusCode};
pub(super) use response::write_field;
pub use response::{HttpDate, Response};
pub use trace::TraceParent;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;

use self::calls::CallOptions;
use super::input::KEEP_ALIVE;
use super::proxy::{self, Progress};
use super::{CloseReason, Input, Limits, NextStep, Time, Timeout, Timeouts};

/// The first byte of a TLS connection: the content type of a record (RFC 8446 section 5.1). No request begins with it.
const TLS_HANDSHAKE: u8 = 22;

/// The state of an [`HttpConnection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpState {
    /// A request head is arriving.
    Head,
    /// The body of a call is arriving.
    Body,
    /// A call is complete and waits for its response, or a request waits for its rejection
    /// ([`HttpConnection::reject_later`]). Further input waits.
    Answering,
    /// A call is being answered with a stream of events. Further input waits.
    Streaming,
    /// The last response is written. Input is discarded until the peer closes its side.
    Closing,
    /// The connection was abandoned.
    Closed,
}

#[cfg(feature = "server")]
crate::record::record!(
    enum HttpState {
        Head,
        Body,
        Answering,
        Streaming,
        Closing,
        Closed,
    }
);

/// What [`HttpConnection::receive`] found in the input.
#[derive(Debug)]
pub enum HttpEvent<'a> {
    /// A complete request head. Answer it with [`WebSocket::accept`](crate::protocol::WebSocket::accept),
    /// [`HttpConnection::begin_call`] or [`HttpConnection::reject`].
    Head(Cow<'a, [u8]>),
    /// The body of a call whose head came before. Answer the call now or later.
    Call {
        /// The request head.
        head: Vec<u8>,
        /// The request body.
        body: Vec<u8>,
    },
    /// The PROXY protocol header names the client's address. `None` if the connection is the proxy's own.
    Proxied(Option<SocketAddr>),
    /// The request is malformed. Pass the rejection to [`HttpConnection::reject`].
    BadRequest(Rejection),
}

/// State that exists only while a request arrives or is answered.
#[derive(Debug, Default)]
struct RequestState {
    /// Whether a PROXY protocol header is arriving.
    proxied: bool,
    /// The bytes of an incomplete request head or PROXY protocol header, or the head of the call whose body arrives.
    head: Vec<u8>,
    /// The body of a call.
    body: Option<Body>,
    /// The origin of the page that may read the response.
    origin: Option<Box<str>>,
    /// The rejection that the peer waits for.
    rejection: Option<Box<Rejection>>,
}

#[cfg(feature = "server")]
crate::record::record!(RequestState {
    proxied,
    head,
    body,
    origin,
    // A connection with a pending rejection is not carried over by an upgrade.
    rejection = None,
});

impl RequestState {
    /// Whether a head or a body is incomplete.
    fn is_partial(&self) -> bool {
        self.proxied || !self.head.is_empty() || self.body.is_some()
    }

    fn is_empty(&self) -> bool {
        !self.is_partial() && self.origin.is_none() && self.rejection.is_none()
    }
}

/// The server's side of a connection before it becomes a WebSocket. See [the module](crate::protocol) for an example.
#[derive(Debug)]
pub struct HttpConnection {
    /// `None` while the connection is idle, so that an idle connection owns no heap memory.
    request: Option<Box<RequestState>>,
    /// When the current state began, or when the delayed rejection is due.
    since: Time,
    /// When bytes were last written to the stream of events.
    streamed: Time,
    state: HttpState,
    /// Whether an earlier call was answered.
    called: bool,
    /// Whether a request was rejected.
    rejected: bool,
    call: CallOptions,
}

#[cfg(feature = "server")]
crate::record::record!(HttpConnection {
    request,
    since,
    streamed,
    state,
    called,
    rejected,
    call,
});

impl HttpConnection {
    /// Creates a connection that waits for its first byte.
    pub fn new(now: Time) -> Self {
        Self {
            request: None,
            since: now,
            streamed: now,
            state: HttpState::Head,
            called: false,
            rejected: false,
            call: CallOptions::default(),
        }
    }

    /// Creates the end of a connection that is over: input is discarded until the peer closes its side.
    pub fn closing(now: Time) -> Self {
        Self {
            state: HttpState::Closing,
            ..Self::new(now)
        }
    }

    /// Requires a PROXY protocol header before the first request.
    pub fn expect_proxy_header(&mut self) {
        debug_assert!(self.is_new());
        self.request.get_or_insert_default().proxied = true;
    }

    /// The current state.
    pub fn state(&self) -> HttpState {
        self.state
    }

    /// When the current state began.
    pub fn since(&self) -> Time {
        self.since
    }

    /// Consumes input until there is an event, the input is used up, or the current call must be answered first.
    ///
    /// After [`HttpEvent::Head`] and [`HttpEvent::BadRequest`], answer the request before the next call.
    pub fn receive<'a>(
        &mut self,
        now: Time,
        input: &mut Input<'a>,
        limits: &Limits,
    ) -> Option<HttpEvent<'a>> {
        let event = match self.state {
            HttpState::Head if self.request.as_ref().is_some_and(|request| request.proxied) => {
                self.receive_proxy_header(input)
            }
            HttpState::Head => self.receive_head(now, input, limits),
            HttpState::Body => self.receive_body(now, input),
            HttpState::Answering | HttpState::Streaming => None,
            HttpState::Closing | HttpState::Closed => {
                input.clear();
                None
            }
        };
        self.shrink();
        event
    }

    /// Collects the PROXY protocol header.
    fn receive_proxy_header<'a>(&mut self, input: &mut Input<'a>) -> Option<HttpEvent<'a>> {
        let request = self.request.get_or_insert_default();
        let event = loop {
            match proxy::read_header(&request.head) {
                Ok(Progress::Whole(address)) => break HttpEvent::Proxied(address),
                Ok(Progress::More(_)) if input.is_empty() => return None,
                Ok(Progress::More(count)) => request.head.extend_from_slice(input.take(count)),
                Err(error) => {
                    input.clear();
                    let rejection = Rejection::new(StatusCode::BAD_REQUEST, error.to_string());
                    break HttpEvent::BadRequest(rejection.because("proxy_header"));
                }
            }
        };
        self.drop_partial();
        Some(event)
    }

    /// Collects the request head up to its empty line.
    fn receive_head<'a>(
        &mut self,
        now: Time,
        input: &mut Input<'a>,
        limits: &Limits,
    ) -> Option<HttpEvent<'a>> {
        let request = self.request.as_deref_mut();
        let mut held = request
            .map(|request| std::mem::take(&mut request.head))
            .unwrap_or_default();
        // A server ignores empty lines before a request (RFC 9112 section 2.2).
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
        if held.is_empty() && input.peek().first() == Some(&TLS_HANDSHAKE) {
            input.clear();
            let why = "the client sent a TLS handshake to a port without TLS; use http:// or ws://";
            let rejection = Rejection::new(StatusCode::BAD_REQUEST, why);
            return Some(HttpEvent::BadRequest(rejection.because("tls_handshake")));
        }
        if self.called && held.is_empty() && !input.is_empty() {
            // The time limit of a further request begins with its first byte.
            self.since = now;
        }
        self.call = CallOptions::default();
        match find_end(&held, input.peek(), limits.max_head) {
            Ok(Some(len)) if held.is_empty() => {
                Some(HttpEvent::Head(Cow::Borrowed(input.take(len))))
            }
            Ok(Some(len)) => {
                held.extend_from_slice(input.take(len));
                Some(HttpEvent::Head(Cow::Owned(held)))
            }
            Ok(None) => {
                held.extend_from_slice(input.take(input.len()));
                if !held.is_empty() {
                    self.request.get_or_insert_default().head = held;
                }
                None
            }
            Err(rejection) => {
                input.clear();
                Some(HttpEvent::BadRequest(rejection))
            }
        }
    }

    /// Collects the body of a call.
    fn receive_body<'a>(&mut self, now: Time, input: &mut Input<'a>) -> Option<HttpEvent<'a>> {
        let request = self.request.as_deref_mut()?;
        let body = request.body.as_mut()?;
        if let Err(rejection) = body.push(input) {
            input.clear();
            return Some(HttpEvent::BadRequest(rejection));
        }
        if !body.is_complete() {
            return None;
        }
        let head = std::mem::take(&mut request.head);
        let body = request.body.take()?.into_bytes();
        self.state = HttpState::Answering;
        self.call.unanswered = true;
        self.since = now;
        Some(HttpEvent::Call { head, body })
    }

    /// Skips the next comment of the stream, because other output is queued.
    pub fn skip_comment(&mut self, now: Time) {
        self.streamed = now;
    }

    /// Restarts the time limit of an incomplete request, because the caller did not read from the peer.
    pub fn excuse_silence(&mut self, now: Time) {
        if matches!(self.state, HttpState::Head | HttpState::Body) {
            self.since = now;
        }
    }

    /// Restarts the time limit of the current state, because the peer has accepted output.
    pub fn handle_progress(&mut self, now: Time) {
        self.since = now;
    }

    /// Abandons the connection. Nothing more is received, and no output is produced.
    pub fn abandon(&mut self, now: Time) {
        if self.state != HttpState::Closed {
            self.drop_partial();
            self.state = HttpState::Closed;
            self.since = now;
        }
    }

    /// When to call [`HttpConnection::handle_timeout`], if at all.
    pub fn deadline(&self, timeouts: &Timeouts) -> Option<Time> {
        let (start, duration) = self.time_limit(timeouts);
        duration.map(|duration| start + duration)
    }

    /// Handles a deadline that has passed. A comment that keeps a stream of events alive is appended to `out`.
    pub fn handle_timeout(&mut self, now: Time, timeouts: &Timeouts, out: &mut Vec<u8>) -> Timeout {
        let (start, duration) = self.time_limit(timeouts);
        if duration.is_none_or(|duration| now < start + duration) {
            return Timeout::Continue;
        }
        match self.state {
            // An idle keep-alive connection is not an error, so it is closed without 408.
            HttpState::Head if self.is_idle() => Timeout::Gone(CloseReason::eof()),
            HttpState::Head | HttpState::Body => Timeout::Handshake,
            HttpState::Answering if self.is_rejected_later() => Timeout::Rejection,
            HttpState::Answering => Timeout::Continue,
            HttpState::Streaming => {
                // Proxies close connections on which nothing is sent.
                self.stream(now, b":\n\n", out);
                Timeout::Continue
            }
            HttpState::Closing | HttpState::Closed => Timeout::Gone(CloseReason::eof()),
        }
    }

    /// The time limit of the current state and when it began.
    fn time_limit(&self, timeouts: &Timeouts) -> (Time, Option<Duration>) {
        match self.state {
            HttpState::Head if self.is_idle() => (self.since, Some(KEEP_ALIVE)),
            HttpState::Head | HttpState::Body => (self.since, timeouts.handshake),
            HttpState::Answering => {
                let is_due = self.is_rejected_later().then_some(Duration::ZERO);
                (self.since, is_due)
            }
            HttpState::Streaming => (self.streamed, timeouts.ping_interval),
            HttpState::Closing | HttpState::Closed => (self.since, timeouts.close),
        }
    }

    /// What to do with the connection once all output is written.
    pub fn next_step(&self) -> NextStep {
        match self.state {
            HttpState::Closing => NextStep::EndOutput,
            HttpState::Closed => NextStep::Close,
            HttpState::Head | HttpState::Body | HttpState::Answering | HttpState::Streaming => {
                NextStep::Continue
            }
        }
    }

    /// Whether the connection waits for another request.
    fn is_idle(&self) -> bool {
        self.called && !self.is_partial()
    }

    fn is_partial(&self) -> bool {
        self.request
            .as_ref()
            .is_some_and(|request| request.is_partial())
    }

    /// Drops an incomplete head or body.
    fn drop_partial(&mut self) {
        if let Some(request) = &mut self.request {
            request.proxied = false;
            request.rejection = None;
            request.head = Vec::new();
            request.body = None;
        }
    }

    /// Frees the memory of the request state if it is empty.
    fn shrink(&mut self) {
        if self
            .request
            .as_ref()
            .is_some_and(|request| request.is_empty())
        {
            self.request = None;
        }
    }

    /// The bytes of memory that the peer made the connection hold.
    pub fn held(&self) -> usize {
        self.request.as_ref().map_or(0, |request| {
            request.head.capacity() + request.body.as_ref().map_or(0, Body::capacity)
        })
    }
}

// Idle connections are many, so the struct stays small.
const _: () = assert!(size_of::<HttpConnection>() <= 40);
