//! What the client of a session sends, and its callers: from the call to the process.

use super::{GET_STREAM, PendingRequest, Session, Stream};
use crate::service::jsonrpc::{Envelope, IdKey, MessageKind, code, error};
use crate::service::mcp::http_error::HttpError;
use crate::service::mcp::hub::{Call, Hub};
use crate::service::mcp::replay::EventId;
use crate::service::mcp::reply::Reply;
use crate::service::mcp::versions::takes_priming;
use crate::{ClientId, Context};

/// The error code for a request that its client has cancelled.
const CANCELLED: i32 = -32800;

impl Session {
    /// Passes a request on to the process. The caller gets the answer later.
    pub(in crate::service::mcp) fn request(
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
        let key = IdKey::of(own_id);
        if self.pending.contains_key(&key) {
            let why = "Invalid request: a request with this id waits for its answer";
            return Err(HttpError::invalid(why).with_id(own_id));
        }
        let is_behind = self
            .process
            .as_mut()
            .is_none_or(|process| process.is_behind());
        if is_behind {
            return Err(HttpError::not_reading().with_id(own_id));
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
    pub(in crate::service::mcp) fn notify(
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
            return Err(HttpError::not_reading());
        }
        self.send(ctx, envelope.text);
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
        Ok(())
    }

    /// Opens the GET stream, or continues the stream of the last event that the client has got.
    pub(in crate::service::mcp) fn listen(
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
    pub(in crate::service::mcp) fn begin_stream(&mut self, ctx: &mut Context, number: u32) {
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
    pub(in crate::service::mcp) fn detach(
        &mut self,
        ctx: &mut Context,
        stream: u32,
        caller: ClientId,
    ) {
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
    pub(in crate::service::mcp) fn resume(&mut self, ctx: &mut Context) {
        if self.is_paused
            && let Some(process) = &mut self.process
        {
            self.is_paused = false;
            process.resume(ctx);
        }
    }

    /// Fails the request of a stream that has waited too long.
    pub(in crate::service::mcp) fn time_out(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        stream: u32,
    ) {
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
}
