//! A session of revisions 2025-03-26 to 2025-11-25: one client, one process, and the streams between them.
//!
//! Each POST with a request opens a stream, and a GET opens the GET stream. The events of all streams are kept for a while, so a
//! client that was cut can come back to a stream and misses nothing (`Last-Event-ID`). A cut does not cancel a request.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use uuid::Uuid;

use super::http_error::{HttpError, code};
use super::hub::{Call, Hub};
use super::pool::server_exited;
use super::process::{Input, Process, Received};
use super::replay::{EventId, Replay};
use super::reply::Reply;
use super::versions::takes_priming;
use crate::service::agent::envelope::{Envelope, MessageKind, member};
use crate::service::agent::recover_id::RecoveredId;
use crate::service::child::{ChildEvent, code_and_signal};
use crate::service::json::unescape;
use crate::service::mcp::http_error::error;
use crate::{ClientId, Context, Principal, SourceId, StatusCode, Time, TimerId};

/// The GET stream, for messages that belong to no request.
const GET_STREAM: u32 = 0;

/// The error code for a request that its client has cancelled.
const CANCELLED: i32 = -32800;

/// A request of the client that the process has not answered.
#[derive(Debug)]
struct PendingRequest {
    stream: u32,
    /// Its progress token, in normal form.
    token: Option<Box<str>>,
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
    pending: HashMap<Box<str>, PendingRequest>,
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

    pub(super) fn sources(&self) -> impl Iterator<Item = SourceId> {
        let process = self.process.as_ref();
        process.into_iter().flat_map(|process| process.sources())
    }

    /// Whether the process has set this timer.
    pub(super) fn is_timer(&self, timer: TimerId) -> bool {
        let process = self.process.as_ref();
        process.is_some_and(|process| process.is_timer(timer))
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

    /// Whether nobody can know the id of the session, because the caller of `initialize` has gone before the answer.
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

    /// Passes a request on to the process. The caller gets the answer later.
    pub(super) fn request(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        envelope: &Envelope<'_>,
        reply: Reply,
    ) -> Result<Option<Call>, HttpError> {
        let MessageKind::Request { id, method } = &envelope.kind else {
            return Ok(None);
        };
        let text = envelope.text;
        let own_id = &text[id.clone()];
        let key = normal(own_id);
        if self.pending.contains_key(&key) {
            let why = "Invalid request: a request with this id waits for its answer";
            return Err(HttpError::invalid(why).with_id(own_id));
        }
        let is_behind = self
            .process
            .as_mut()
            .is_none_or(|process| process.is_behind());
        if is_behind {
            return Err(not_reading().with_id(own_id));
        }
        hub.take_request(&self.principal)
            .map_err(|error| error.with_id(own_id))?;
        self.last_stream += 1;
        let stream = self.last_stream;
        let token = envelope.meta.as_ref();
        let token = token.and_then(|meta| member(text, meta, "progressToken"));
        let pending = PendingRequest {
            stream,
            token: token.map(|range| normal(&text[range])),
            id: own_id.into(),
            is_initialize: method == "initialize",
        };
        self.pending.insert(key, pending);
        let call = Call::Session(self.id, stream);
        hub.callers.insert(reply.caller, call);
        let reply = Some(reply);
        let opened = Stream {
            reply,
            ..Stream::default()
        };
        self.streams.insert(stream, opened);
        self.send(ctx, text);
        Ok(Some(call))
    }

    /// Passes a notification or a response on to the process.
    pub(super) fn notify(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        envelope: &Envelope<'_>,
    ) -> Result<(), HttpError> {
        let is_behind = self
            .process
            .as_mut()
            .is_none_or(|process| process.is_behind());
        if is_behind {
            return Err(not_reading());
        }
        self.send(ctx, envelope.text);
        if let MessageKind::Notification { method } = &envelope.kind
            && method == "notifications/cancelled"
            && let Some(id) = &envelope.request_id
        {
            // The process does not answer it any more.
            let key = normal(&envelope.text[id.clone()]);
            if let Some(pending) = self.pending.remove(&key) {
                hub.counts.cancelled += 1;
                let cancelled = error(&pending.id, CANCELLED, "Request cancelled", None);
                self.finish(ctx, hub, &pending, &cancelled);
            }
        }
        Ok(())
    }

    fn send(&mut self, ctx: &mut Context, text: &str) {
        if let Some(process) = &mut self.process {
            process.send(ctx, text);
        }
    }

    /// Opens the GET stream, or continues the stream of the last event that the client has got.
    pub(super) fn listen(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        mut reply: Reply,
        last: Option<EventId>,
    ) -> Result<(), HttpError> {
        let number = last.map_or(GET_STREAM, |last| last.stream);
        let unknown = || HttpError::invalid("Last-Event-ID is unknown or no longer kept");
        if last.is_some_and(|last| !self.replay.has_used(last)) {
            return Err(unknown());
        }
        let is_over = !self.streams.contains_key(&number);
        let after = last.unwrap_or(EventId {
            stream: GET_STREAM,
            number: self
                .streams
                .get(&GET_STREAM)
                .map_or(0, |stream| stream.sent),
        });
        if is_over && self.replay.after(after).next().is_none() {
            return Err(unknown());
        }
        let caller = reply.caller;
        if !reply.begin(ctx) {
            return Ok(());
        }
        if last.is_none() && takes_priming(self.version.as_deref().unwrap_or_default()) {
            reply.prime(ctx, after);
        }
        let mut sent = after.number;
        for (id, text) in self.replay.after(after) {
            hub.counts.replayed += 1;
            sent = id.number;
            if !reply.event(ctx, Some(id), text) {
                break;
            }
        }
        match self.streams.get_mut(&number) {
            Some(stream) => {
                stream.sent = sent;
                // The client has come back before the end of its former connection was noticed.
                if let Some(former) = stream.reply.replace(reply) {
                    hub.callers.remove(&former.caller);
                    former.end(ctx);
                }
                hub.callers.insert(caller, Call::Session(self.id, number));
                self.resume(ctx);
            }
            None => reply.end(ctx),
        }
        Ok(())
    }

    /// Begins the stream of a request that has waited for a while.
    pub(super) fn begin_stream(&mut self, ctx: &mut Context, number: u32) {
        let version = self.version.as_deref().unwrap_or_default();
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        let Some(reply) = stream.reply.as_mut().filter(|reply| !reply.is_streaming()) else {
            return;
        };
        if reply.begin(ctx) {
            stream.has_begun = true;
            if takes_priming(version) {
                reply.prime(ctx, self.replay.next_id(number));
            }
        }
    }

    /// The caller of a stream is gone. The request goes on.
    pub(super) fn detach(&mut self, ctx: &mut Context, stream: u32, caller: ClientId) {
        if let Some(stream) = self.streams.get_mut(&stream)
            && stream
                .reply
                .as_ref()
                .is_some_and(|reply| reply.caller == caller)
        {
            stream.reply = None;
        }
        self.last_active = ctx.now();
        self.resume(ctx);
    }

    /// Continues to read the process, which waited for a slow caller.
    pub(super) fn resume(&mut self, ctx: &mut Context) {
        if self.is_paused
            && let Some(process) = &mut self.process
        {
            self.is_paused = false;
            process.resume(ctx);
        }
    }

    /// Fails the request of a stream that has waited too long.
    pub(super) fn time_out(&mut self, ctx: &mut Context, hub: &mut Hub, stream: u32) {
        let mut pending = self.pending.iter();
        let waiting = pending.find(|(_, pending)| pending.stream == stream);
        let key = waiting.map(|(key, _)| key.clone());
        let Some(pending) = key.and_then(|key| self.pending.remove(&key)) else {
            return;
        };
        let cancelled = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{},"reason":"Request timed out"}}}}"#,
            pending.id
        );
        self.send(ctx, &cancelled);
        let failed = error(&pending.id, code::INTERNAL, "Request timed out", None);
        self.finish(ctx, hub, &pending, &failed);
    }

    /// Handles an event of the process.
    pub(super) fn handle(&mut self, ctx: &mut Context, hub: &mut Hub, input: Input) -> Fate {
        let Some(mut process) = self.process.take() else {
            return Fate::Lives;
        };
        let mut answers = Vec::new();
        let mut fate = Fate::Lives;
        let event = process.handle(ctx, input, |ctx, received| {
            let (flow, is_refused) = self.handle_received(ctx, hub, received, &mut answers);
            if is_refused {
                fate = Fate::Refused;
            }
            flow
        });
        for answer in &answers {
            process.send(ctx, answer);
        }
        self.process = Some(process);
        let ChildEvent::Exited(status) = event else {
            return fate;
        };
        self.process = None;
        let (code, signal) = code_and_signal(status);
        let data = serde_json::json!({"code": code, "signal": signal}).to_string();
        self.finish_all(ctx, hub, |id| server_exited(id, &data));
        Fate::Exited
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

    /// Handles what the process has sent. Returns whether to read on, and whether the process has refused to initialize.
    fn handle_received(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        received: Received<'_>,
        answers: &mut Vec<String>,
    ) -> (ControlFlow<()>, bool) {
        match received {
            Received::Message(envelope) => return self.handle_message(ctx, hub, &envelope),
            Received::Unreadable(RecoveredId::Response(id), why) => {
                if let Some(pending) = self.pending.remove(&normal(&id)) {
                    let why = format!("the MCP server's answer {why}");
                    let failed = error(&pending.id, code::INTERNAL, "Internal error", Some(&why));
                    self.finish(ctx, hub, &pending, &failed);
                    return (ControlFlow::Continue(()), pending.is_initialize);
                }
            }
            Received::Unreadable(RecoveredId::Request(id), why) => {
                let why = format!("the request {why}");
                let refused = error(&id, code::INVALID_REQUEST, "Invalid request", Some(&why));
                answers.push(refused);
            }
            Received::Nothing => {}
        }
        (ControlFlow::Continue(()), false)
    }

    fn handle_message(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        envelope: &Envelope<'_>,
    ) -> (ControlFlow<()>, bool) {
        let text = envelope.text;
        ctx.spend(2 + text.len() / 512);
        let stream = match &envelope.kind {
            MessageKind::Response { id, result } => {
                let Some(pending) = self.pending.remove(&normal(&text[id.clone()])) else {
                    log::debug!("the MCP server has answered a request that does not wait");
                    hub.counts.dropped += 1;
                    return (ControlFlow::Continue(()), false);
                };
                if pending.is_initialize
                    && let Some(result) = result
                {
                    let version = member(text, result, "protocolVersion");
                    let version = version.map(|range| &text[range]);
                    self.version = version
                        .filter(|raw| raw.starts_with('"'))
                        .map(|raw| unescape(raw).into());
                }
                let is_refused = pending.is_initialize && result.is_none();
                if is_refused
                    && let Some(stream) = self.streams.get_mut(&pending.stream)
                    && let Some(reply) = &mut stream.reply
                {
                    reply.forget_session();
                }
                self.finish(ctx, hub, &pending, text);
                return (ControlFlow::Continue(()), is_refused);
            }
            MessageKind::Notification { method } if method == "notifications/progress" => {
                let token = envelope.body.as_ref();
                let token = token.and_then(|params| member(text, params, "progressToken"));
                let token = token.map(|range| normal(&text[range]));
                let has_token =
                    |pending: &&PendingRequest| token.is_some() && pending.token == token;
                let pending = self.pending.values().find(has_token);
                pending.map_or_else(|| self.other_stream(false), |pending| pending.stream)
            }
            MessageKind::Notification { method } => self.other_stream(is_change(method)),
            MessageKind::Request { .. } => self.other_stream(false),
        };
        let is_congested = self
            .deliver(ctx, hub, stream, text)
            .is_some_and(|caller| ctx.is_congested(caller));
        let flow = if is_congested {
            self.is_paused = true;
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        };
        (flow, false)
    }

    /// The stream for a message that names no request: that of the newest waiting request, because the message most likely belongs
    /// to it. A change goes to the GET stream if the client reads it.
    fn other_stream(&self, is_change: bool) -> u32 {
        let is_open = |stream: &Stream| stream.reply.as_ref().is_some_and(Reply::takes_events);
        let main = self.streams.get(&GET_STREAM).is_some_and(is_open);
        if is_change && main {
            return GET_STREAM;
        }
        let mut last_first = self.streams.iter().rev();
        let open = last_first.find(|(number, stream)| **number != GET_STREAM && is_open(stream));
        open.map_or(GET_STREAM, |(number, _)| *number)
    }

    /// Sends a message on a stream, and keeps it for a client that was cut. Returns the caller that it was sent to.
    fn deliver(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        stream: u32,
        text: &str,
    ) -> Option<ClientId> {
        self.begin_stream(ctx, stream);
        let id = self
            .replay
            .push(&mut hub.bytes, &self.principal, stream, text);
        let stream = self.streams.get_mut(&stream)?;
        let reply = stream.reply.as_mut()?;
        if reply.event(ctx, Some(id), text) {
            stream.sent = id.number;
        }
        Some(reply.caller)
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
        let main = self.streams.get_mut(&GET_STREAM);
        if let Some(reply) = main.and_then(|main| main.reply.take()) {
            hub.callers.remove(&reply.caller);
            reply.end(ctx);
            self.resume(ctx);
        }
    }
}

/// 503 because the process has too much unread input.
fn not_reading() -> HttpError {
    HttpError::unavailable("The MCP server does not read its input")
}

/// Whether a notification reports a change, which belongs to no request.
fn is_change(method: &str) -> bool {
    method.ends_with("/list_changed") || method == "notifications/resources/updated"
}

/// An id or a token in a form that does not depend on the escapes in it.
fn normal(raw: &str) -> Box<str> {
    if raw.starts_with('"') {
        return format!("\"{}", unescape(raw)).into();
    }
    raw.into()
}
