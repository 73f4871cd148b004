//! The messages of a session in both directions: from the client and its callers to the process, and from the process to the stream
//! that each one belongs to.

use std::ops::ControlFlow;

use super::{Fate, GET_STREAM, PendingRequest, Session, Stream, Upstream};
use crate::service::child::{ChildEvent, ChildInput};
use crate::service::json::unescape;
use crate::service::jsonrpc::{Envelope, IdKey, MessageKind, PROGRESS, RecoveredId, code, error};
use crate::service::mcp::http_error::HttpError;
use crate::service::mcp::http_error::server_exited;
use crate::service::mcp::hub::{Call, Hub};
use crate::service::mcp::process::Received;
use crate::service::mcp::reply::{EventId, Reply};
use crate::service::mcp::shared::{Incoming, is_change};
use crate::service::mcp::takes_priming;
use crate::{ClientId, Context};

/// The error code for a request that its client has cancelled.
const CANCELLED: i32 = -32800;

impl Session {
    /// Opens the stream of a request, which the service then sends. The caller gets the answer later.
    pub(crate) fn request(
        &mut self,
        hub: &mut Hub,
        envelope: &Envelope<'_>,
        reply: Reply,
    ) -> Result<Option<Call>, HttpError> {
        let MessageKind::Request { id, method } = &envelope.kind else {
            return Ok(None);
        };
        let text = envelope.text;
        let own_id = &text[id.clone()];
        let key = IdKey::of(own_id);
        if self.pending.contains_key(&key) {
            let why = "Invalid request: a request with this id waits for its answer";
            return Err(HttpError::invalid(why).with_id(own_id));
        }
        hub.take_request(&self.principal)
            .map_err(|error| error.with_id(own_id))?;
        self.last_stream += 1;
        let stream = self.last_stream;
        let token = envelope.of_meta("progressToken");
        let pending = PendingRequest {
            stream,
            token: token.map(|range| IdKey::of(&text[range])),
            id: own_id.into(),
            is_initialize: method == "initialize",
        };
        self.pending.insert(key, pending);
        self.has_worked |= !is_routine(method);
        let call = Call::Session(self.id, stream);
        hub.callers.insert(reply.caller, call);
        let reply = Some(reply);
        let opened = Stream {
            reply,
            ..Stream::default()
        };
        self.streams.insert(stream, opened);
        Ok(Some(call))
    }

    /// Handles a notification or a response that the service has sent.
    pub(crate) fn notify(&mut self, ctx: &mut Context, hub: &mut Hub, envelope: &Envelope<'_>) {
        if let MessageKind::Notification { method } = &envelope.kind
            && method == "notifications/cancelled"
            && let Some(id) = &envelope.request_id
        {
            // The process does not answer it any more.
            let key = IdKey::of(&envelope.text[id.clone()]);
            if let Some(pending) = self.pending.remove(&key) {
                hub.counts.cancelled += 1;
                let cancelled = error(&pending.id, CANCELLED, "Request cancelled", None);
                self.finish(ctx, hub, &pending, &cancelled);
            }
        }
    }

    /// Opens the GET stream, or continues the stream of the last event that the client has got.
    pub(crate) fn listen(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        mut reply: Reply,
        last: Option<EventId>,
    ) -> Result<(), HttpError> {
        let number = last.map_or(GET_STREAM, |last| last.stream);
        if last.is_some_and(|last| !self.replay.has_used(last)) {
            return Err(HttpError::unknown_event());
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
            return Err(HttpError::unknown_event());
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
    pub(crate) fn begin_stream(&mut self, ctx: &mut Context, number: u32) {
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
    pub(crate) fn detach(&mut self, ctx: &mut Context, stream: u32, caller: ClientId) {
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
    pub(crate) fn resume(&mut self, ctx: &mut Context) {
        if self.is_paused
            && let Some(process) = self.process_mut()
        {
            process.resume(ctx);
            self.is_paused = false;
        }
    }

    /// Fails the request of a stream that has waited too long. Returns its cancellation, which the service sends.
    pub(crate) fn time_out(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        stream: u32,
    ) -> Option<String> {
        let mut pending = self.pending.iter();
        let waiting = pending.find(|(_, pending)| pending.stream == stream);
        let key = waiting.map(|(key, _)| key.clone());
        let pending = key.and_then(|key| self.pending.remove(&key))?;
        let cancelled = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{},"reason":"Request timed out"}}}}"#,
            pending.id
        );
        let failed = error(&pending.id, code::INTERNAL, "Request timed out", None);
        self.finish(ctx, hub, &pending, &failed);
        Some(cancelled)
    }
}

impl Session {
    /// Handles an event of the process.
    pub(crate) fn handle(&mut self, ctx: &mut Context, hub: &mut Hub, input: ChildInput) -> Fate {
        let Upstream::Own(process) = &mut self.upstream else {
            return Fate::Lives;
        };
        let Some(mut process) = process.take() else {
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
        let ChildEvent::Exited(exit) = event else {
            self.upstream = Upstream::Own(Some(process));
            return fate;
        };
        if let Some(error) = exit.start_error() {
            log::error!("{error}");
            self.refuse_all(ctx, hub);
            return Fate::NotStarted;
        }
        // The process is the session's own.
        let data = exit.data(true);
        self.finish_all(ctx, hub, |id| server_exited(id, &data));
        Fate::Exited
    }

    /// Sends a message to its own process.
    pub(crate) fn send(&mut self, ctx: &mut Context, hub: &mut Hub, text: &str) {
        let Some(process) = self.process_mut() else {
            return;
        };
        process.send(ctx, text);
        for text in process.take_early() {
            if let Ok(envelope) = Envelope::parse(&text) {
                let _ = self.handle_message(ctx, hub, &envelope);
            }
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
                if let Some(pending) = self.pending.remove(&IdKey::of(&id)) {
                    let why = format!("the MCP server's answer {why}");
                    let failed = error(&pending.id, code::INTERNAL, "Internal error", Some(&why));
                    self.finish(ctx, hub, &pending, &failed);
                    return (ControlFlow::Continue(()), pending.is_initialize);
                }
            }
            Received::Unreadable(RecoveredId::Request(id), why) => {
                let why = format!("the request {why}");
                let refused = error(&id, code::INVALID, "Invalid request", Some(&why));
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
        let incoming = match &envelope.kind {
            MessageKind::Response { id, .. } => Incoming::Answer(text[id.clone()].into()),
            MessageKind::Notification { method } if method == PROGRESS => {
                let token = envelope.of_body("progressToken");
                Incoming::Progress(token.map(|range| text[range].into()))
            }
            MessageKind::Notification { method } if is_change(method) => Incoming::Change,
            MessageKind::Notification { .. } => Incoming::Other,
            MessageKind::Request { .. } => Incoming::Request,
        };
        self.receive(ctx, hub, &incoming, text)
    }

    /// Passes a message on to the client. Returns whether to read the process on, and whether it has refused to initialize.
    pub(crate) fn receive(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        incoming: &Incoming<'_>,
        text: &str,
    ) -> (ControlFlow<()>, bool) {
        let stream = match incoming {
            Incoming::Answer(id) => {
                let Some(pending) = self.pending.remove(&IdKey::of(id)) else {
                    log::debug!("the MCP server has answered a request that does not wait");
                    hub.counts.dropped += 1;
                    return (ControlFlow::Continue(()), false);
                };
                let is_refused = pending.is_initialize && !self.begin(&pending, text);
                self.finish(ctx, hub, &pending, text);
                return (ControlFlow::Continue(()), is_refused);
            }
            Incoming::Progress(token) => {
                let token = token.as_deref().map(IdKey::of);
                let has_token =
                    |pending: &&PendingRequest| token.is_some() && pending.token == token;
                let pending = self.pending.values().find(has_token);
                pending.map_or_else(|| self.other_stream(false), |pending| pending.stream)
            }
            Incoming::Change => self.other_stream(true),
            Incoming::Request | Incoming::Other => self.other_stream(false),
        };
        let is_shared = matches!(self.upstream, Upstream::Shared(_));
        let is_news = matches!(incoming, Incoming::Progress(_) | Incoming::Other);
        if is_shared && is_news && self.is_congested(ctx, stream) {
            // A shared process cannot wait for a slow client. What is only news is not queued for it.
            hub.counts.dropped += 1;
            return (ControlFlow::Continue(()), false);
        }
        self.deliver(ctx, hub, stream, text);
        if !is_shared && self.is_congested(ctx, stream) {
            self.is_paused = true;
            return (ControlFlow::Break(()), false);
        }
        (ControlFlow::Continue(()), false)
    }

    /// Notes the answer to `initialize`. Returns false if it is an error.
    fn begin(&mut self, pending: &PendingRequest, text: &str) -> bool {
        let envelope = Envelope::parse(text).ok();
        let answer = envelope.filter(|envelope| {
            let kind = &envelope.kind;
            matches!(
                kind,
                MessageKind::Response {
                    result: Some(_),
                    ..
                }
            )
        });
        let Some(answer) = answer else {
            let stream = self.streams.get_mut(&pending.stream);
            if let Some(reply) = stream.and_then(|stream| stream.reply.as_mut()) {
                reply.forget_session();
            }
            return false;
        };
        let version = answer.of_body("protocolVersion").map(|at| &text[at]);
        let version = version.filter(|raw| raw.starts_with('"'));
        self.version = version.map(|raw| unescape(raw).into());
        true
    }

    /// Whether the client that reads a stream is behind.
    fn is_congested(&self, ctx: &Context, stream: u32) -> bool {
        let reply = self.streams.get(&stream).and_then(|one| one.reply.as_ref());
        reply.is_some_and(|reply| ctx.is_congested(reply.caller))
    }

    /// The stream for a message that names no request: that of the newest waiting request, because the message most likely belongs
    /// to it. A change goes to the GET stream if the client reads it.
    fn other_stream(&self, is_change: bool) -> u32 {
        let is_open = |stream: &Stream| stream.reply.as_ref().is_some_and(Reply::takes_events);
        let is_read = self.streams.get(&GET_STREAM).is_some_and(is_open);
        if is_change && is_read {
            return GET_STREAM;
        }
        let mut last_first = self.streams.iter().rev();
        let open = last_first.find(|(number, stream)| **number != GET_STREAM && is_open(stream));
        open.map_or(GET_STREAM, |(number, _)| *number)
    }

    /// Sends a message on a stream, and keeps it for a client that was cut.
    fn deliver(&mut self, ctx: &mut Context, hub: &mut Hub, stream: u32, text: &str) {
        self.begin_stream(ctx, stream);
        let id = self
            .replay
            .push(&mut hub.bytes, &self.principal, stream, text);
        if let Some(stream) = self.streams.get_mut(&stream)
            && let Some(reply) = &mut stream.reply
            && reply.event(ctx, Some(id), text)
        {
            stream.sent = id.number;
        }
    }
}

/// Whether a health check sends such a request, too.
fn is_routine(method: &str) -> bool {
    matches!(method, "initialize" | "ping" | "logging/setLevel") || method.ends_with("/list")
}
