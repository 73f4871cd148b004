//! The messages of a session in both directions: from the client and its callers to the process, and from the process to the stream
//! that each one belongs to.

use super::{GET_STREAM, Session, Stream};
use crate::service::json::unescape;
use crate::service::jsonrpc::{Envelope, MessageKind, code, error};
use crate::service::mcp::http_error::HttpError;
use crate::service::mcp::hub::{Call, Hub};
use crate::service::mcp::reply::{EventId, Reply};
use crate::service::mcp::shared::Incoming;
use crate::service::mcp::takes_priming;
use crate::{ClientId, Context};

impl Session {
    /// Opens the stream of a request with the id `own`, which the service then sends. The caller gets the answer later. Returns the
    /// number of the stream.
    pub(crate) fn request(
        &mut self,
        hub: &mut Hub,
        method: &str,
        own: &str,
        reply: Reply,
    ) -> Result<u32, HttpError> {
        hub.take_request(&self.principal)
            .map_err(|error| error.with_id(own))?;
        self.last_stream += 1;
        let stream = self.last_stream;
        if method == "initialize" {
            self.beginning = Some(stream);
        }
        self.has_worked |= !is_routine(method);
        hub.callers
            .insert(reply.caller, Call::Session(self.id, stream));
        let opened = Stream {
            request: Some(own.into()),
            reply: Some(reply),
            ..Stream::default()
        };
        self.streams.insert(stream, opened);
        Ok(stream)
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
    pub(crate) fn detach(&mut self, ctx: &Context, stream: u32, caller: ClientId) {
        if let Some(stream) = self.streams.get_mut(&stream)
            && stream
                .reply
                .as_ref()
                .is_some_and(|reply| reply.caller == caller)
        {
            stream.reply = None;
        }
        self.last_active = ctx.now();
    }

    /// Fails the request of a stream that has waited too long. Returns its cancellation, which the service sends.
    pub(crate) fn time_out(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        stream: u32,
    ) -> Option<String> {
        let id = self.streams.get(&stream)?.request.clone()?;
        let cancelled = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"Request timed out"}}}}"#
        );
        let failed = error(&id, code::INTERNAL, "Request timed out", None);
        self.finish(ctx, hub, stream, &failed);
        Some(cancelled)
    }

    /// Passes a message from the process on to the client. Returns why the session must end, if it could not begin.
    pub(crate) fn receive(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        incoming: &Incoming,
        text: &str,
    ) -> Option<&'static str> {
        let stream = match incoming {
            Incoming::Answer(ended) => {
                let is_first = self.beginning == Some(ended.stream);
                let is_refused = is_first && !self.begin(ended.stream, text);
                self.finish(ctx, hub, ended.stream, text);
                return is_refused.then_some("its process has refused to initialize");
            }
            Incoming::NotStarted(ended) => {
                let is_first = self.beginning == Some(ended.stream);
                self.reject(ctx, hub, ended.stream, HttpError::not_started());
                return is_first.then_some("its process cannot be started");
            }
            Incoming::Cancelled(ended) => {
                if self.streams.contains_key(&ended.stream) {
                    hub.counts.cancelled += 1;
                    self.finish(ctx, hub, ended.stream, text);
                }
                return None;
            }
            Incoming::Progress(Some(stream)) => *stream,
            Incoming::Change => self.other_stream(true),
            Incoming::Progress(None) | Incoming::Request | Incoming::Other => {
                self.other_stream(false)
            }
        };
        let is_news = matches!(incoming, Incoming::Progress(_) | Incoming::Other);
        if !self.is_alone && is_news && self.is_congested(ctx, stream) {
            // A shared process cannot wait for a slow client. What is only news is not queued for it.
            hub.counts.dropped += 1;
        } else {
            self.deliver(ctx, hub, stream, text);
        }
        None
    }

    /// Notes the answer to `initialize`. Returns false if it is an error.
    fn begin(&mut self, stream: u32, text: &str) -> bool {
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
            let stream = self.streams.get_mut(&stream);
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

    /// Whether the client is behind with a stream.
    pub(crate) fn is_behind(&self, ctx: &Context) -> bool {
        let mut streams = self.streams.keys();
        streams.any(|stream| self.is_congested(ctx, *stream))
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
