//! HTTP calls on a connection: requests that are answered instead of upgraded, one after the other.

use std::time::Duration;

use super::body::Body;
use super::head::Request;
use super::rejection::Rejection;
use super::response::{AfterResponse, HttpDate, Response, Terms, write_chunk, write_stream_head};
use super::{HttpConnection, HttpState};
use crate::protocol::Time;

/// The interim response to a client that waits before it sends the body (RFC 9110 section 15.2.1).
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The end of a chunked body.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The properties of a request that its response depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallOptions {
    /// Whether the service has the request and has not completed the response.
    pub(super) unanswered: bool,
    /// Whether the connection continues after the response.
    keep_alive: bool,
    /// Whether the response has no body because the method is HEAD.
    pub(super) head_only: bool,
    /// Whether a body of unknown length is sent in chunks.
    pub(super) chunked: bool,
}

#[cfg(feature = "server")]
crate::record::record!(CallOptions {
    unanswered,
    keep_alive,
    head_only,
    chunked,
});

impl HttpConnection {
    /// Records the properties of a request that its response depends on. Call it before the request is answered.
    ///
    /// `origin` is the origin of the page that makes the request, if that page may read the response.
    pub fn begin_request(&mut self, request: &Request<'_>, origin: Option<&str>) {
        debug_assert_eq!(self.state, HttpState::Head);
        if let Some(origin) = origin {
            self.request.get_or_insert_default().origin = Some(origin.into());
        }
        self.call = CallOptions {
            unanswered: false,
            keep_alive: request.keeps_alive(),
            head_only: request.method() == "HEAD",
            chunked: request.takes_chunks(),
        };
    }

    /// Closes the connection after the response to the current request.
    pub fn end_keep_alive(&mut self) {
        self.call.keep_alive = false;
    }

    /// Accepts a request as a call. Returns true if the request is complete and can be answered now. Otherwise
    /// [`HttpEvent::Call`](super::HttpEvent::Call) follows when the body is complete.
    ///
    /// # Errors
    ///
    /// The length of the body is malformed or over `max_body` bytes. Pass the error to [`HttpConnection::reject`].
    pub fn begin_call(
        &mut self,
        now: Time,
        request: &Request<'_>,
        head: &[u8],
        max_body: usize,
        out: &mut Vec<u8>,
    ) -> Result<bool, Rejection> {
        debug_assert_eq!(self.state, HttpState::Head);
        let body = Body::new(request.framing()?, max_body)?;
        self.call.unanswered = body.is_complete();
        if body.is_complete() {
            self.state = HttpState::Answering;
            return Ok(true);
        }
        if request.expects_continue() {
            out.extend_from_slice(CONTINUE);
        }
        let request = self.request.get_or_insert_default();
        request.head = head.to_vec();
        request.body = Some(body);
        self.state = HttpState::Body;
        self.since = now;
        Ok(false)
    }

    /// Answers a request with an error. The connection ends after it. `date` is the current time.
    pub fn reject(&mut self, now: Time, date: HttpDate, rejection: &Rejection, out: &mut Vec<u8>) {
        debug_assert!(matches!(
            self.state,
            HttpState::Head | HttpState::Body | HttpState::Answering
        ));
        let terms = Terms {
            after: AfterResponse::Close,
            ..self.terms(date)
        };
        Response::from(rejection).write(terms, out);
        self.call.unanswered = false;
        self.drop_partial();
        self.state = HttpState::Closing;
        self.rejected = true;
        self.since = now;
    }

    /// Makes the peer wait for the rejection of its request: [`HttpConnection::handle_timeout`] returns
    /// [`Timeout::Rejection`] after `delay`, and [`HttpConnection::take_rejection`] returns the rejection. Until then,
    /// further input waits.
    ///
    /// [`Timeout::Rejection`]: crate::protocol::Timeout::Rejection
    pub fn reject_later(&mut self, now: Time, rejection: Rejection, delay: Duration) {
        debug_assert_eq!(self.state, HttpState::Head);
        self.state = HttpState::Answering;
        self.request.get_or_insert_default().rejection = Some(Box::new(rejection));
        self.since = now + delay;
    }

    /// The rejection that the peer waits for. Pass it to [`HttpConnection::reject`].
    pub fn take_rejection(&mut self) -> Option<Rejection> {
        let rejection = self.request.as_mut()?.rejection.take()?;
        self.shrink();
        Some(*rejection)
    }

    /// Whether the peer waits for the rejection of its request.
    pub(super) fn is_rejected_later(&self) -> bool {
        let request = self.request.as_ref();
        request.is_some_and(|request| request.rejection.is_some())
    }

    /// Whether a request was rejected.
    pub fn was_rejected(&self) -> bool {
        self.rejected
    }

    /// Answers a call. `date` is the current time.
    pub fn respond(&mut self, now: Time, date: HttpDate, response: &Response, out: &mut Vec<u8>) {
        debug_assert_eq!(self.state, HttpState::Answering);
        response.write(self.terms(date), out);
        self.end_call(now);
    }

    /// Answers a call, but leaves out a body that is long and part of the program. Returns such a body, which must follow
    /// `out`.
    #[must_use]
    pub fn respond_until_static_body(
        &mut self,
        now: Time,
        date: HttpDate,
        response: &Response,
        out: &mut Vec<u8>,
    ) -> Option<&'static [u8]> {
        debug_assert_eq!(self.state, HttpState::Answering);
        let rest = response.write_until_static_body(self.terms(date), out);
        self.end_call(now);
        rest
    }

    /// Begins to answer a call with a stream of events. If the method is HEAD, the response has no body and ends here.
    ///
    /// `date` is the current time. `fields` describe the stream.
    pub fn begin_stream(
        &mut self,
        now: Time,
        date: HttpDate,
        fields: &[(&str, &str)],
        out: &mut Vec<u8>,
    ) {
        debug_assert_eq!(self.state, HttpState::Answering);
        write_stream_head(fields, self.terms(date), out);
        if self.call.head_only {
            return self.end_call(now);
        }
        self.state = HttpState::Streaming;
        self.since = now;
        self.streamed = now;
    }

    /// Appends bytes to the stream.
    pub fn stream(&mut self, now: Time, bytes: &[u8], out: &mut Vec<u8>) {
        debug_assert_eq!(self.state, HttpState::Streaming);
        self.streamed = now;
        if self.call.chunked {
            write_chunk(bytes, out);
        } else {
            out.extend_from_slice(bytes);
        }
    }

    /// Ends the stream.
    pub fn end_stream(&mut self, now: Time, out: &mut Vec<u8>) {
        debug_assert_eq!(self.state, HttpState::Streaming);
        if self.call.chunked {
            out.extend_from_slice(LAST_CHUNK);
        }
        self.end_call(now);
    }

    /// Whether a call waits for its response or for the rest of it.
    pub fn is_answering(&self) -> bool {
        matches!(self.state, HttpState::Answering | HttpState::Streaming)
    }

    /// Whether the first request has not arrived completely.
    pub fn is_new(&self) -> bool {
        self.state == HttpState::Head && !self.called
    }

    /// Whether a call was made, answered or not.
    pub fn was_called(&self) -> bool {
        self.called || self.call.unanswered
    }

    /// Whether a call still has no complete response.
    pub fn is_unanswered(&self) -> bool {
        self.call.unanswered
    }

    /// Records that the caller has disconnected, so that the current call needs no response. Returns whether a call was
    /// waiting for its response.
    pub fn forget_call(&mut self) -> bool {
        let was_unanswered = std::mem::take(&mut self.call.unanswered);
        self.called |= was_unanswered;
        was_unanswered
    }

    fn terms(&self, date: HttpDate) -> Terms<'_> {
        let request = self.request.as_ref();
        Terms {
            after: if self.call.keep_alive {
                AfterResponse::KeepAlive
            } else {
                AfterResponse::Close
            },
            head_only: self.call.head_only,
            chunked: self.call.chunked,
            origin: request.and_then(|request| request.origin.as_deref()),
            date,
        }
    }

    fn end_call(&mut self, now: Time) {
        self.state = if self.call.keep_alive {
            HttpState::Head
        } else {
            HttpState::Closing
        };
        self.call.unanswered = false;
        self.called = true;
        self.since = now;
        if let Some(request) = &mut self.request {
            request.origin = None;
        }
        self.shrink();
    }
}
