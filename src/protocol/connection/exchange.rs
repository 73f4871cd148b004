//! HTTP calls on a connection: requests that are answered instead of upgraded, one after the other.

use super::{Body, Connection, Ending, Event, Partial, Phase};
use crate::protocol::http::{
    self, CONTINUE, LAST_CHUNK, Rejection, Request, Response, write_chunk, write_stream_head,
};
use crate::protocol::{Input, Time};

/// What has to be kept of a request until its answer is out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Terms {
    /// Whether the service was given it and has not answered it to the end.
    unanswered: bool,
    /// Whether the connection goes on after the answer.
    keep_alive: bool,
    /// Whether the answer is to have no body: the method was HEAD.
    head_only: bool,
    /// Whether a body of unknown length is sent in chunks.
    chunked: bool,
}

impl Terms {
    fn ending(self) -> Ending {
        if self.keep_alive {
            Ending::KeepAlive
        } else {
            Ending::Close
        }
    }
}

impl Connection {
    /// Notes what a request asks for, before it is answered in any way. `origin` is that of the page which makes it, if
    /// it may read the answer.
    pub fn begin_request(&mut self, request: &Request<'_>, origin: Option<&str>) {
        debug_assert_eq!(self.phase, Phase::Handshaking);
        if let Some(origin) = origin {
            self.rare.get_or_insert_default().origin = Some(origin.into());
        }
        self.call = Terms {
            unanswered: false,
            keep_alive: request.keeps_alive(),
            head_only: request.method() == "HEAD",
            chunked: request.takes_chunks(),
        };
    }

    /// Makes the answer to the present request the last one.
    pub fn end_keep_alive(&mut self) {
        self.call.keep_alive = false;
    }

    /// Takes a request as a call. Returns whether it is there whole, so that it is to be answered now; otherwise
    /// [`Event::Call`] comes with its body.
    ///
    /// # Errors
    ///
    /// A body whose length is malformed or over `max_body` bytes: to be passed to [`Connection::reject`].
    pub fn begin_call(
        &mut self,
        now: Time,
        request: &Request<'_>,
        head: &[u8],
        max_body: usize,
        out: &mut Vec<u8>,
    ) -> Result<bool, Rejection> {
        debug_assert_eq!(self.phase, Phase::Handshaking);
        let body = Body::new(request.framing()?, max_body)?;
        self.call.unanswered = body.is_complete();
        if body.is_complete() {
            self.phase = Phase::Answering;
            return Ok(true);
        }
        if request.expects_continue() {
            out.extend_from_slice(CONTINUE);
        }
        self.set_partial(Box::new(Partial {
            head: head.to_vec(),
            body: Some(Box::new(body)),
            ..Partial::default()
        }));
        self.phase = Phase::Body;
        self.since = now;
        Ok(false)
    }

    /// Goes on with a call's body.
    pub(super) fn receive_body<'a>(
        &mut self,
        now: Time,
        input: &mut Input<'a>,
    ) -> Option<Event<'a>> {
        let partial = self.partial_mut()?;
        let body = partial.body.as_deref_mut()?;
        if let Err(rejection) = body.push(input) {
            input.clear();
            return Some(Event::BadRequest(rejection));
        }
        if !body.is_complete() {
            return None;
        }
        let head = std::mem::take(&mut partial.head);
        let body = partial.body.take()?.into_bytes();
        self.take_partial();
        self.phase = Phase::Answering;
        self.call.unanswered = true;
        self.since = now;
        Some(Event::Call { head, body })
    }

    /// Answers a request with an error after which nothing more is taken.
    /// `date` is the present time as an HTTP date.
    pub fn reject(&mut self, now: Time, date: &str, rejection: &Rejection, out: &mut Vec<u8>) {
        debug_assert!(matches!(
            self.phase,
            Phase::Handshaking | Phase::Body | Phase::Answering
        ));
        let terms = http::Terms {
            ending: Ending::Close,
            ..self.terms(date)
        };
        Response::from(rejection).write(terms, out);
        self.call.unanswered = false;
        self.take_partial();
        self.phase = Phase::Answered;
        self.since = now;
    }

    /// Answers a call. `date` is the present time as an HTTP date.
    pub fn respond(&mut self, now: Time, date: &str, response: &Response, out: &mut Vec<u8>) {
        debug_assert_eq!(self.phase, Phase::Answering);
        response.write(self.terms(date), out);
        self.end_call(now);
    }

    /// Begins to answer a call with a stream of events. The answer to HEAD has none and ends here.
    /// `date` is the present time as an HTTP date; the fields say what the stream is.
    pub fn begin_stream(
        &mut self,
        now: Time,
        date: &str,
        fields: &[(&str, &str)],
        out: &mut Vec<u8>,
    ) {
        debug_assert_eq!(self.phase, Phase::Answering);
        write_stream_head(fields, self.terms(date), out);
        if self.call.head_only {
            return self.end_call(now);
        }
        self.phase = Phase::Streaming;
        self.since = now;
        self.pinged = now;
    }

    /// Appends bytes to the stream.
    pub fn stream(&mut self, now: Time, bytes: &[u8], out: &mut Vec<u8>) {
        debug_assert_eq!(self.phase, Phase::Streaming);
        self.pinged = now;
        if self.call.chunked {
            write_chunk(bytes, out);
        } else {
            out.extend_from_slice(bytes);
        }
    }

    /// Ends the stream.
    pub fn end_stream(&mut self, now: Time, out: &mut Vec<u8>) {
        debug_assert_eq!(self.phase, Phase::Streaming);
        if self.call.chunked {
            out.extend_from_slice(LAST_CHUNK);
        }
        self.end_call(now);
    }

    /// Whether a call waits for its answer, or for the rest of it.
    pub fn is_answering(&self) -> bool {
        matches!(self.phase, Phase::Answering | Phase::Streaming)
    }

    /// Whether its first request is still to come, or coming.
    pub fn is_new(&self) -> bool {
        self.phase == Phase::Handshaking && !self.called
    }

    /// Whether a call was made, answered or not.
    pub fn was_called(&self) -> bool {
        self.called || self.call.unanswered
    }

    /// Whether a call was left without its answer, or the rest of it.
    pub fn is_unanswered(&self) -> bool {
        self.call.unanswered
    }

    /// Leaves the next comment of the stream out: there is other output on its way.
    pub fn skip_comment(&mut self, now: Time) {
        self.pinged = now;
    }

    /// Sends a comment in the stream of events, so that proxies see that it is in use.
    pub(super) fn keep_stream_alive(&mut self, now: Time, out: &mut Vec<u8>) {
        self.stream(now, b":\n\n", out);
    }

    /// What the present call's answer has beside what it says.
    fn terms<'a>(&'a self, date: &'a str) -> http::Terms<'a> {
        let rare = self.rare.as_ref();
        http::Terms {
            ending: self.call.ending(),
            head_only: self.call.head_only,
            chunked: self.call.chunked,
            origin: rare.and_then(|rare| rare.origin.as_deref()),
            date,
        }
    }

    fn end_call(&mut self, now: Time) {
        self.phase = if self.call.keep_alive {
            Phase::Handshaking
        } else {
            Phase::Answered
        };
        self.call.unanswered = false;
        self.called = true;
        self.since = now;
        if let Some(rare) = &mut self.rare {
            rare.origin = None;
        }
        self.tidy();
    }
}
