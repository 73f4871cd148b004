//! A session of revisions 2025-03-26 to 2025-11-25: one client, a process of its own or a seat at a shared one, and the streams between
//! them.
//!
//! Each POST with a request opens a stream, and a GET opens the GET stream. The events of all streams are kept for a while, so a
//! client that was cut can come back to a stream and misses nothing (`Last-Event-ID`). A cut does not cancel a request.

mod messages;

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;
use uuid::Uuid;

use super::hub::Hub;
use super::process::Process;
use super::reply::{Replay, Reply};
use super::shared::Seat;
use crate::record::{RecordError, record};
use crate::service::jsonrpc::{IdKey, code, error};
use crate::service::mcp::http_error::HttpError;
use crate::{Context, Principal, StatusCode, Time};

/// The GET stream, for messages that belong to no request.
const GET_STREAM: u32 = 0;

/// A request of the client that the process has not answered.
#[derive(Debug)]
struct PendingRequest {
    stream: u32,
    /// Its progress token, in normal form.
    token: Option<IdKey>,
    /// The id, as written.
    id: Box<str>,
    is_initialize: bool,
}

record!(PendingRequest {
    stream,
    token,
    id,
    is_initialize,
});

/// A stream whose request is not answered, or the GET stream.
#[derive(Debug, Default)]
struct Stream {
    /// The caller that reads it. `None` while the client is cut.
    reply: Option<Reply>,
    /// The last event that was written to a caller.
    sent: u64,
    /// Whether the head of an answer was sent.
    has_begun: bool,
}

record!(Stream {
    reply,
    sent,
    has_begun,
});

/// Where the requests of a session are answered.
#[derive(Debug)]
pub(super) enum Upstream {
    /// A process of its own. `None` after its exit.
    Own(Option<Box<Process>>),
    /// A process that it shares with other sessions. The service sends the messages.
    Shared(Seat),
}

record!(
    enum Upstream {
        Own(process),
        Shared(seat),
    }
);

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: Uuid,
    pub(super) principal: Principal,
    upstream: Upstream,
    /// Requests that wait for an answer, by their ids in normal form.
    pending: HashMap<IdKey, PendingRequest>,
    streams: BTreeMap<u32, Stream>,
    last_stream: u32,
    replay: Replay,
    /// The negotiated revision.
    version: Option<Box<str>>,
    /// Whether the process is not read, because a caller is behind. Ends when any caller drains or leaves.
    is_paused: bool,
    /// When the client has last sent or read something.
    last_active: Time,
    /// Whether the client has asked for anything but lists.
    has_worked: bool,
}

record!(Session {
    id,
    principal,
    upstream,
    pending,
    streams,
    last_stream,
    replay,
    version,
    is_paused,
    last_active,
    has_worked,
});

/// Whether the session goes on after an event of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Lives,
    /// The process could not execute its program.
    NotStarted,
    /// The process has exited.
    Exited,
    /// The process has refused to initialize.
    Refused,
}

impl Session {
    /// A session with a process that was just started, or with a seat at a shared one.
    pub(super) fn new(
        id: Uuid,
        principal: Principal,
        upstream: Upstream,
        replay: usize,
        now: Time,
    ) -> Self {
        Self {
            id,
            principal,
            upstream,
            pending: HashMap::new(),
            streams: BTreeMap::from([(GET_STREAM, Stream::default())]),
            last_stream: GET_STREAM,
            replay: Replay::new(replay),
            version: None,
            is_paused: false,
            last_active: now,
            has_worked: false,
        }
    }

    /// Its own process, unless it has exited.
    pub(super) fn process(&self) -> Option<&Process> {
        match &self.upstream {
            Upstream::Own(process) => process.as_deref(),
            Upstream::Shared(_) => None,
        }
    }

    fn process_mut(&mut self) -> Option<&mut Process> {
        match &mut self.upstream {
            Upstream::Own(process) => process.as_deref_mut(),
            Upstream::Shared(_) => None,
        }
    }

    /// Continues after the program of the server has replaced itself.
    ///
    /// # Errors
    ///
    /// Its own process cannot be watched.
    pub(super) fn watch_again(&mut self, ctx: &mut Context) -> Result<(), RecordError> {
        match self.process_mut() {
            Some(process) => process.watch_again(ctx),
            None => Ok(()),
        }
    }

    /// Its seat at a shared process.
    pub(super) fn seat(&self) -> Option<Seat> {
        match self.upstream {
            Upstream::Own(_) => None,
            Upstream::Shared(seat) => Some(seat),
        }
    }

    /// Whether its own process takes no more messages now.
    pub(super) fn is_behind(&mut self) -> bool {
        let process = self.process_mut();
        process.is_none_or(|process| process.is_behind())
    }

    /// Whether the client has a stream open.
    pub(super) fn is_reading(&self) -> bool {
        let mut streams = self.streams.values();
        streams.any(|stream| stream.reply.as_ref().is_some_and(Reply::takes_events))
    }

    /// The number of requests that wait for an answer.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The session in the status. One with a process of its own has its pid.
    pub(super) fn status(&self) -> Value {
        serde_json::json!({
            // Only a prefix: a client proves its access to the session with the whole id.
            "id": &self.id.to_string()[..8],
            "owner": self.principal.to_string(),
            "version": self.version,
            "pending": self.pending.len(),
            "pid": self.process().map(Process::pid),
        })
    }

    /// The time at which the client last sent a message or read a stream. `None` while it reads a stream.
    pub(super) fn idle_since(&self) -> Option<Time> {
        let is_read = self.streams.values().any(|stream| stream.reply.is_some());
        (!is_read).then_some(self.last_active)
    }

    /// Whether the client has asked for anything but lists.
    pub(super) fn has_worked(&self) -> bool {
        self.has_worked
    }

    /// Whether no client knows the id of the session, because the caller of `initialize` disconnected before the answer.
    pub(super) fn is_unknown(&self) -> bool {
        let initializing = self.pending.values().find(|pending| pending.is_initialize);
        let stream = initializing.and_then(|pending| self.streams.get(&pending.stream));
        stream.is_some_and(|stream| stream.reply.is_none() && !stream.has_begun)
    }

    pub(super) fn touch(&mut self, now: Time) {
        self.last_active = now;
    }

    /// Whether a stream waits for its first message.
    pub(super) fn may_begin(&self, stream: u32) -> bool {
        let reply = self
            .streams
            .get(&stream)
            .and_then(|stream| stream.reply.as_ref());
        reply.is_some_and(|reply| !reply.is_streaming())
    }

    /// Whether the request of a stream waits for its answer.
    pub(super) fn is_waiting(&self, stream: u32) -> bool {
        stream != GET_STREAM && self.streams.contains_key(&stream)
    }

    /// Fails all requests that wait with an internal error.
    pub(super) fn fail_all(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        message: &'static str,
        why: Option<&str>,
    ) {
        self.finish_all(ctx, hub, |id| error(id, code::INTERNAL, message, why));
    }

    /// Answers all requests that wait.
    fn finish_all(&mut self, ctx: &mut Context, hub: &mut Hub, text: impl Fn(&str) -> String) {
        let mut all: Vec<PendingRequest> =
            self.pending.drain().map(|(_, pending)| pending).collect();
        all.sort_by_key(|pending| pending.stream);
        for pending in all {
            self.finish(ctx, hub, &pending, &text(&pending.id));
        }
    }

    /// Rejects all calls, because the process cannot be started, so that no session has begun.
    fn refuse_all(&mut self, ctx: &mut Context, hub: &mut Hub) {
        for (_, pending) in self.pending.drain() {
            hub.end_request(&self.principal);
            let stream = self.streams.remove(&pending.stream);
            if let Some(reply) = stream.and_then(|stream| stream.reply) {
                hub.callers.remove(&reply.caller);
                reply.reject(ctx, &HttpError::cannot_start(&pending.id), false);
            }
        }
    }

    /// Sends the answer to a request, which ends its stream.
    fn finish(&mut self, ctx: &mut Context, hub: &mut Hub, pending: &PendingRequest, text: &str) {
        hub.end_request(&self.principal);
        self.last_active = ctx.now();
        self.resume(ctx);
        let Some(stream) = self.streams.remove(&pending.stream) else {
            return;
        };
        match stream.reply {
            // An answer without a stream cannot be resumed, so it is not kept.
            Some(reply) if !reply.is_streaming() => {
                hub.callers.remove(&reply.caller);
                let id = self.replay.next_id(pending.stream);
                reply.finish(ctx, StatusCode::OK, Some(id), text);
            }
            reply => {
                let number = pending.stream;
                let id = self
                    .replay
                    .push(&mut hub.bytes, &self.principal, number, text);
                if let Some(reply) = reply {
                    hub.callers.remove(&reply.caller);
                    reply.finish(ctx, StatusCode::OK, Some(id), text);
                }
            }
        }
    }

    /// Ends the session: its pending requests fail, and its own process is stopped.
    pub(super) fn end(
        mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        why: &str,
    ) -> (Principal, Upstream) {
        self.fail_all(ctx, hub, "Session ended", Some(why));
        self.close_get_stream(ctx, hub);
        self.replay.clear(&mut hub.bytes, &self.principal);
        if let Some(process) = self.process_mut() {
            process.stop(ctx);
        }
        (self.principal, self.upstream)
    }

    /// Ends the GET stream.
    pub(super) fn close_get_stream(&mut self, ctx: &mut Context, hub: &mut Hub) {
        let stream = self.streams.get_mut(&GET_STREAM);
        if let Some(reply) = stream.and_then(|stream| stream.reply.take()) {
            hub.callers.remove(&reply.caller);
            reply.end(ctx);
            self.resume(ctx);
        }
    }
}
