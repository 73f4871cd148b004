//! A session of revisions 2025-03-26 to 2025-11-25: one client, its seat at a process, and the streams between them.
//!
//! Each POST with a request opens a stream, and a GET opens the GET stream. The events of all streams are kept for a while, so a
//! client that was cut can come back to a stream and misses nothing (`Last-Event-ID`). A cut does not cancel a request.

mod messages;

use std::collections::BTreeMap;

use serde_json::Value;
use uuid::Uuid;

use super::hub::Hub;
use super::reply::{Replay, Reply};
use super::shared::Seat;
use crate::record::record;
use crate::service::jsonrpc::{code, error};
use crate::service::mcp::http_error::HttpError;
use crate::{ClientId, Context, Principal, StatusCode, Time};

/// The GET stream, for messages that belong to no request.
const GET_STREAM: u32 = 0;

/// A stream whose request is not answered, or the GET stream.
#[derive(Debug, Default)]
struct Stream {
    /// The id of its request, as written. `None` for the GET stream.
    request: Option<Box<str>>,
    /// The caller that reads it. `None` while the client is cut.
    reply: Option<Reply>,
    /// The last event that was written to a caller.
    sent: u64,
    /// Whether the head of an answer was sent.
    has_begun: bool,
}

record!(Stream {
    request,
    reply,
    sent,
    has_begun,
});

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: Uuid,
    pub(super) principal: Principal,
    pub(super) seat: Seat,
    /// Whether its process serves no other session.
    pub(super) is_alone: bool,
    /// The stream of `initialize`, until it is answered.
    beginning: Option<u32>,
    streams: BTreeMap<u32, Stream>,
    last_stream: u32,
    replay: Replay,
    /// The negotiated revision.
    version: Option<Box<str>>,
    /// When the client has last sent or read something.
    last_active: Time,
    /// Whether the client has asked for anything but lists.
    has_worked: bool,
}

record!(Session {
    id,
    principal,
    seat,
    is_alone,
    beginning,
    streams,
    last_stream,
    replay,
    version,
    last_active,
    has_worked,
});

impl Session {
    /// A session with a seat at a process, which it may have alone.
    pub(super) fn new(
        id: Uuid,
        principal: Principal,
        (seat, is_alone): (Seat, bool),
        replay: usize,
        now: Time,
    ) -> Self {
        Self {
            id,
            principal,
            seat,
            is_alone,
            beginning: None,
            streams: BTreeMap::from([(GET_STREAM, Stream::default())]),
            last_stream: GET_STREAM,
            replay: Replay::new(replay),
            version: None,
            last_active: now,
            has_worked: false,
        }
    }

    /// Whether the client has a stream open.
    pub(super) fn is_reading(&self) -> bool {
        let mut streams = self.streams.values();
        streams.any(|stream| stream.reply.as_ref().is_some_and(Reply::takes_events))
    }

    /// The number of requests that wait for an answer.
    pub(super) fn pending(&self) -> usize {
        self.streams.len() - 1
    }

    /// The session in the status. `pid` is that of its own process.
    pub(super) fn status(&self, pid: Option<u32>) -> Value {
        serde_json::json!({
            // Only a prefix: a client proves its access to the session with the whole id.
            "id": &self.id.to_string()[..8],
            "owner": self.principal.to_string(),
            "version": self.version,
            "pending": self.pending(),
            "pid": pid,
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
        let stream = self.beginning.and_then(|stream| self.streams.get(&stream));
        stream.is_some_and(|stream| stream.reply.is_none() && !stream.has_begun)
    }

    /// Whether the session has got no request.
    pub(super) fn is_new(&self) -> bool {
        self.last_stream == GET_STREAM
    }

    /// The process has exited, so the error for `initialize` does not mean that the process has refused it.
    pub(super) fn give_up(&mut self) {
        self.beginning = None;
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

    /// The caller that waits for the answer to `initialize`.
    pub(super) fn beginning(&self) -> Option<ClientId> {
        let stream = self.streams.get(&self.beginning?)?;
        stream.reply.as_ref().map(|reply| reply.caller)
    }

    /// Fails all requests that wait with an internal error.
    pub(super) fn fail_all(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        message: &'static str,
        why: Option<&str>,
    ) {
        let waiting = self.streams.iter();
        let waiting = waiting.filter_map(|(number, stream)| {
            let id = stream.request.as_deref()?;
            Some((*number, error(id, code::INTERNAL, message, why)))
        });
        for (number, text) in waiting.collect::<Vec<_>>() {
            self.finish(ctx, hub, number, &text);
        }
    }

    /// Rejects the request of a stream.
    pub(super) fn reject(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        number: u32,
        error: HttpError,
    ) {
        let Some(stream) = self.streams.remove(&number) else {
            return;
        };
        hub.end_request(&self.principal);
        if let (Some(reply), Some(id)) = (stream.reply, stream.request) {
            hub.callers.remove(&reply.caller);
            reply.reject(ctx, &error.with_id(&id), false);
        }
    }

    /// Rejects `initialize`, because the session cannot begin.
    pub(super) fn refuse(&mut self, ctx: &mut Context, hub: &mut Hub, error: HttpError) {
        if let Some(stream) = self.beginning {
            self.reject(ctx, hub, stream, error);
        }
    }

    /// The bytes of the events that are kept for the client.
    pub(super) fn kept(&self) -> usize {
        self.replay.bytes()
    }

    /// Forgets the oldest events, although the client may come back for them. Returns the number of bytes that were freed.
    pub(super) fn free(&mut self, hub: &mut Hub, bytes: usize) -> usize {
        self.replay.free(&mut hub.bytes, &self.principal, bytes)
    }

    /// Sends the answer to a request, which ends its stream.
    fn finish(&mut self, ctx: &mut Context, hub: &mut Hub, number: u32, text: &str) {
        let Some(stream) = self.streams.remove(&number) else {
            return;
        };
        self.beginning.take_if(|first| *first == number);
        hub.end_request(&self.principal);
        self.last_active = ctx.now();
        match stream.reply {
            // An answer without a stream cannot be resumed, so it is not kept.
            Some(reply) if !reply.is_streaming() => {
                hub.callers.remove(&reply.caller);
                let id = self.replay.next_id(number);
                reply.finish(ctx, StatusCode::OK, Some(id), text);
            }
            reply => {
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

    /// Ends the session: its pending requests fail. Returns its principal.
    pub(super) fn end(mut self, ctx: &mut Context, hub: &mut Hub, why: &str) -> Principal {
        self.fail_all(ctx, hub, "Session ended", Some(why));
        self.close_get_stream(ctx, hub);
        self.replay.clear(&mut hub.bytes, &self.principal);
        self.principal
    }

    /// Ends the GET stream.
    pub(super) fn close_get_stream(&mut self, ctx: &mut Context, hub: &mut Hub) {
        let stream = self.streams.get_mut(&GET_STREAM);
        if let Some(reply) = stream.and_then(|stream| stream.reply.take()) {
            hub.callers.remove(&reply.caller);
            reply.end(ctx);
        }
    }
}
