//! HTTP before the upgrade: answers to calls, event streams and rejections.

use std::time::Duration;

use super::Client;
use super::protocol::Protocol;
use super::wire::Wire;
use crate::log_event::{Field, log_event, word};
use crate::protocol::http::{HttpConnection, HttpDate, HttpState};
use crate::protocol::{CloseReason, Rejection, Request, Response, StatusCode, Time};
use crate::server::env::Env;
use crate::server::error::SendError;
use crate::server::event_loop::budget::CALL;

impl Wire {
    /// Records that the caller is gone. Returns whether its call had not been completely answered, so that the service has
    /// to be told.
    pub(crate) fn forget_call(&mut self, env: &mut Env) -> bool {
        let Some(http) = self.protocol.http_mut() else {
            return false;
        };
        let was_unanswered = http.forget_call();
        if was_unanswered {
            self.uncount_call(env);
        }
        was_unanswered
    }
}

impl Client {
    /// Runs an operation on the connection while it is HTTP.
    fn transmit_http(
        &mut self,
        env: &mut Env,
        operation: impl FnOnce(&mut HttpConnection, Time, &mut Vec<u8>),
    ) {
        self.transmit(env, |protocol, now, out| {
            if let Protocol::Http(http) = protocol {
                operation(http, now, out);
            }
        });
    }

    /// Begins to receive a call. Returns whether its body has arrived.
    pub(crate) fn begin_call(
        &mut self,
        env: &mut Env,
        request: &Request<'_>,
        head: &[u8],
        max_body: usize,
    ) -> Result<bool, Rejection> {
        let max_body = max_body.min(env.config.limits.max_message);
        let http = self.wire.protocol.http_mut();
        if http.is_some_and(|http| !http.was_called()) {
            // HTTP has no PING, and the caller may vanish without a FIN while the service works for it. It may read slowly.
            self.wire.stream.set_keepalive(&env.config.timeouts, false);
        }
        let mut is_whole = Ok(false);
        self.transmit_http(env, |http, now, out| {
            is_whole = http.begin_call(now, request, head, max_body, out);
        });
        is_whole
    }

    /// Answers a request with an error and then closes the connection.
    pub(crate) fn reject(&mut self, env: &mut Env, rejection: &Rejection) {
        let reason = rejection.to_string();
        let reason = reason.split_once(' ').map_or("", |(_, reason)| reason);
        let trace = self.wire.trace_ids();
        log_event!(
            Info,
            client = self.id,
            "refused",
            status = Field::BareNumber(rejection.status.0.into()),
            reason = Field::Bare(&reason),
            path = rejection.path(),
            remote = word(&self.wire.remote);
            trace = trace
        );
        env.counters.refused(rejection);
        self.transmit_http(env, |http, now, out| {
            http.reject(now, HttpDate::now(), rejection, out)
        });
    }

    /// Ends a connection before its first request. Its input is discarded until the peer closes its side, so that the peer
    /// gets what was written.
    pub(crate) fn discard_input(&mut self, env: &mut Env) {
        self.transmit_http(env, |http, now, _| *http = HttpConnection::closing(now));
    }

    /// Makes the peer wait for the rejection of its request. The loop rejects it after `delay`.
    pub(crate) fn reject_later(&mut self, env: &mut Env, rejection: Rejection, delay: Duration) {
        self.transmit_http(env, |http, now, _| http.reject_later(now, rejection, delay));
    }

    /// Rejects a request whose delay has passed.
    pub(crate) fn reject_now(&mut self, env: &mut Env) {
        let http = self.wire.protocol.http_mut();
        if let Some(rejection) = http.and_then(HttpConnection::take_rejection) {
            self.reject(env, &rejection);
        }
    }

    /// Answers a call.
    pub(crate) fn respond(&mut self, env: &mut Env, response: &Response) -> Result<(), SendError> {
        self.begin_answer(env, response)?;
        env.budget.spend(CALL + response.body_len() / 256);
        match response.long_static_body() {
            Some(_) => self.respond_statically(env, response),
            None => self.transmit_http(env, |http, now, out| {
                http.respond(now, HttpDate::now(), response, out);
            }),
        }
        self.read_on(env);
        Ok(())
    }

    /// Answers a call. The blocks follow the body of the response.
    pub(crate) fn respond_in_blocks(
        &mut self,
        env: &mut Env,
        response: Response,
        blocks: Vec<Vec<u8>>,
    ) -> Result<(), SendError> {
        self.begin_answer(env, &response)?;
        env.budget.spend(CALL + blocks.len());
        let response = response.followed_by(blocks.iter().map(Vec::len).sum());
        if let Some(http) = self.wire.protocol.http_mut() {
            let mut beginning = Vec::new();
            http.respond(env.now, HttpDate::now(), &response, &mut beginning);
            self.transmit_followed(env, &beginning, |output| output.push_blocks(blocks));
        }
        self.read_on(env);
        Ok(())
    }

    /// Fails unless a call waits for its answer. Counts the answer.
    fn begin_answer(&self, env: &mut Env, response: &Response) -> Result<(), SendError> {
        self.wire.protocol.expect(HttpState::Answering)?;
        // The console would fill the log that it shows with the answers to its own questions.
        if !env.is_uncounted {
            log::debug!("{} answered: {}", self.id, response.status().0);
        }
        self.wire.uncount_call(env);
        env.counters.responded(response.status());
        Ok(())
    }

    /// Answers a call with a body that is part of the program.
    fn respond_statically(&mut self, env: &mut Env, response: &Response) {
        if let Some(http) = self.wire.protocol.http_mut() {
            let mut head = Vec::new();
            let body =
                http.respond_until_static_body(env.now, HttpDate::now(), response, &mut head);
            self.transmit_followed(env, &head, |output| {
                output.push_static(body.unwrap_or_default());
            });
        }
    }

    /// Begins to answer a call with an event stream, or with a body of any length. `fields` are added to the head.
    pub(crate) fn begin_stream(
        &mut self,
        env: &mut Env,
        content_type: &str,
        fields: &[(&str, &str)],
    ) -> Result<(), SendError> {
        self.wire.protocol.expect(HttpState::Answering)?;
        env.counters.responded(StatusCode::OK);
        let fields = [&[("Content-Type", content_type)], fields].concat();
        self.transmit_http(env, |http, now, out| {
            http.begin_stream(now, HttpDate::now(), &fields, out)
        });
        // The answer to HEAD is complete. The end of a caller whose socket is dead is counted with its disconnect.
        if !self.wire.protocol.is_unanswered() {
            self.wire.uncount_call(env);
            self.read_on(env);
        }
        Ok(())
    }

    /// Sends a piece of the stream. Disconnects the client if its unread output would exceed the limit.
    pub(crate) fn stream(&mut self, env: &mut Env, bytes: &[u8]) -> Result<(), SendError> {
        self.wire.protocol.expect(HttpState::Streaming)?;
        if !self.wire.has_room(env, bytes.len(), self.traffic.bytes_out) {
            self.end(env, CloseReason::slow_consumer());
            return Err(SendError::SlowConsumer);
        }
        self.transmit_http(env, |http, now, out| http.stream(now, bytes, out));
        Ok(())
    }

    /// Ends the stream.
    pub(crate) fn end_stream(&mut self, env: &mut Env) -> Result<(), SendError> {
        self.wire.protocol.expect(HttpState::Streaming)?;
        self.wire.uncount_call(env);
        self.transmit_http(env, |http, now, out| http.end_stream(now, out));
        self.read_on(env);
        Ok(())
    }

    /// Queues the client for reading, because the next request may have arrived behind the call.
    fn read_on(&mut self, env: &mut Env) {
        if !self.wire.is_reading() {
            self.read_again(env);
        }
    }
}
