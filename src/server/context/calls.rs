//! Answers to HTTP calls.

use std::time::SystemTime;

use super::work::CALL;
use super::{Context, SendError};
use crate::protocol::{CloseReason, Phase, Response, StatusCode};
use crate::server::client::Remote;
use crate::server::id::ClientId;

/// The type of a stream of events, as browsers' `EventSource` reads it.
const EVENT_STREAM: (&str, &str) = ("Content-Type", "text/event-stream");

/// The present time, as answers tell it.
pub(super) fn date() -> String {
    httpdate::fmt_http_date(SystemTime::now())
}

impl Context {
    /// Counts a call that the service is given.
    pub(in crate::server) fn begin_call_of(&mut self, id: ClientId) {
        self.calls += 1;
        if let Some(remote) = self.remote(id) {
            self.registry.begin_use(remote.ip());
        }
    }

    /// Counts a call less: it was answered to the end, or its caller is gone.
    pub(in crate::server) fn end_call_from(&mut self, remote: Remote) {
        self.calls = self.calls.saturating_sub(1);
        self.registry.end_use(remote.ip());
    }

    fn end_call(&mut self, id: ClientId) {
        if let Some(remote) = self.remote(id) {
            self.end_call_from(remote);
        }
    }

    /// Answers a call. One that is gone or answered already is passed over.
    pub fn respond(&mut self, id: ClientId, response: &Response) {
        let _ = self.try_respond(id, response);
    }

    /// Answers a call. One that is gone or answered already is [`SendError::Gone`].
    pub fn try_respond(&mut self, id: ClientId, response: &Response) -> Result<(), SendError> {
        self.expect_phase(id, Phase::Answering)?;
        log::debug!("{id} answered: {}", response.status().0);
        self.end_call(id);
        self.counters.responded(response.status());
        self.spend(CALL as usize + response.body_len() / 256);
        self.with_connection(id, |connection, now, out| {
            connection.respond(now, &date(), response, out)
        });
        self.read_on(id);
        Ok(())
    }

    /// Begins to answer a call with a stream of events; for HEAD that is all of the answer. [`Service::drained`](crate::Service::drained) tells when one
    /// that was [congested](Context::is_congested) has been read, [`Service::abandoned`](crate::Service::abandoned)
    /// when its reader is gone before its end.
    pub fn begin_stream(&mut self, id: ClientId) -> Result<(), SendError> {
        self.begin_stream_with(id, &[])
    }

    /// Like [`Context::begin_stream`], with additional fields in the head of the answer. They must be valid, and must
    /// not be fields that frame the body.
    pub fn begin_stream_with(
        &mut self,
        id: ClientId,
        fields: &[(&str, &str)],
    ) -> Result<(), SendError> {
        self.expect_phase(id, Phase::Answering)?;
        self.counters.responded(StatusCode::OK);
        self.with_connection(id, |connection, now, out| {
            let fields = [&[EVENT_STREAM], fields].concat();
            connection.begin_stream(now, &date(), &fields, out)
        });
        let caller = self.registry.get(id);
        if caller.is_some_and(|caller| !caller.connection.is_unanswered()) {
            // The answer to HEAD is whole. A caller whose socket is dead is counted out by its end.
            self.end_call(id);
            self.read_on(id);
        }
        Ok(())
    }

    /// Sends a piece of the stream. A reader that is behind by more than the limit of output is cut off.
    pub fn stream(&mut self, id: ClientId, bytes: &[u8]) -> Result<(), SendError> {
        self.expect_phase(id, Phase::Streaming)?;
        if !self.has_room(id, bytes.len()) {
            self.doom(id, CloseReason::slow_consumer());
            return Err(SendError::SlowConsumer);
        }
        self.with_connection(id, |connection, now, out| {
            connection.stream(now, bytes, out)
        });
        self.write_full_cork();
        Ok(())
    }

    /// Ends the stream.
    pub fn end_stream(&mut self, id: ClientId) -> Result<(), SendError> {
        self.expect_phase(id, Phase::Streaming)?;
        self.end_call(id);
        self.with_connection(id, |connection, now, out| connection.end_stream(now, out));
        self.read_on(id);
        Ok(())
    }

    fn expect_phase(&self, id: ClientId, phase: Phase) -> Result<(), SendError> {
        let client = self.own(id).ok_or(SendError::Gone)?;
        if client.connection.phase() == phase {
            Ok(())
        } else {
            Err(SendError::Gone)
        }
    }

    /// What the peer has sent behind its call is its next request.
    fn read_on(&mut self, id: ClientId) {
        if self.corked() != Some(id) {
            self.read_again(id);
        }
    }
}
