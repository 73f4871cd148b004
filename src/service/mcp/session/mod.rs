//! A session of revisions 2025-03-26 to 2025-11-25: one client, one process, and the streams between them.
//!
//! Each POST with a request opens a stream, and a GET opens the GET stream. The events of all streams are kept for a while, so a
//! client that was cut can come back to a stream and misses nothing (`Last-Event-ID`). A cut does not cancel a request.

mod messages;

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use super::hub::Hub;
use super::process::Process;
use super::reply::{Replay, Reply};
use crate::service::jsonrpc::{IdKey, code, error};
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

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: Uuid,
    pub(super) principal: Principal,
    process: Option<Box<Process>>,
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
}

/// Whether the session goes on after an event of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Lives,
    /// The process has exited.
    Exited,
    /// The process has refused to initialize.
    Refused,
}

impl Session {
    /// A session with a process that was just started.
    pub(super) fn new(
        id: Uuid,
        principal: Principal,
        process: Process,
        replay: usize,
        now: Time,
    ) -> Self {
        Self {
            id,
            principal,
            process: Some(Box::new(process)),
            pending: HashMap::new(),
            streams: BTreeMap::from([(GET_STREAM, Stream::default())]),
            last_stream: GET_STREAM,
            replay: Replay::new(replay),
            version: None,
            is_paused: false,
            last_active: now,
        }
    }

    /// The process, unless it has exited.
    pub(super) fn process(&self) -> Option<&Process> {
        self.process.as_deref()
    }

    /// The number of requests that wait for an answer.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// When the client has last sent a message or read a stream. `None` if it reads one now.
    pub(super) fn idle_since(&self) -> Option<Time> {
        let is_read = self.streams.values().any(|stream| stream.reply.is_some());
        (!is_read).then_some(self.last_active)
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

    fn send(&mut self, ctx: &mut Context, text: &str) {
        if let Some(process) = &mut self.process {
            process.send(ctx, text);
        }
    }

    /// Fails all requests that wait with an internal error.
    pub(super) fn fail_all(&mut self, ctx: &mut Context, hub: &mut Hub, why: &'static str) {
        self.finish_all(ctx, hub, |id| error(id, code::INTERNAL, why, None));
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

    /// Ends the session. Requests that wait fail. Returns the process, unless it has exited.
    pub(super) fn end(
        mut self,
        ctx: &mut Context,
        hub: &mut Hub,
    ) -> (Principal, Option<Box<Process>>) {
        self.fail_all(ctx, hub, "Session ended");
        self.close_get_stream(ctx, hub);
        self.replay.clear(&mut hub.bytes, &self.principal);
        if let Some(process) = &mut self.process {
            process.stop(ctx);
        }
        (self.principal, self.process)
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
