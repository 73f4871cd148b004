//! Messages of the process of a session: each one goes to the stream that it belongs to.

use std::ops::ControlFlow;

use super::{Fate, GET_STREAM, PendingRequest, Session, Stream};
use crate::service::child::{ChildEvent, ChildInput, code_and_signal};
use crate::service::json::unescape;
use crate::service::jsonrpc::{Envelope, IdKey, MessageKind, RecoveredId, code, error};
use crate::service::mcp::hub::Hub;
use crate::service::mcp::pool::server_exited;
use crate::service::mcp::process::Received;
use crate::service::mcp::reply::Reply;
use crate::{ClientId, Context};

impl Session {
    /// Handles an event of the process.
    pub(in crate::service::mcp) fn handle(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        input: ChildInput,
    ) -> Fate {
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
        let stream = match &envelope.kind {
            MessageKind::Response { id, result } => {
                let Some(pending) = self.pending.remove(&IdKey::of(&text[id.clone()])) else {
                    log::debug!("the MCP server has answered a request that does not wait");
                    hub.counts.dropped += 1;
                    return (ControlFlow::Continue(()), false);
                };
                if pending.is_initialize && result.is_some() {
                    let version = envelope.of_body("protocolVersion");
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
                let token = envelope.of_body("progressToken");
                let token = token.map(|range| IdKey::of(&text[range]));
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
        let is_read = self.streams.get(&GET_STREAM).is_some_and(is_open);
        if is_change && is_read {
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
}

/// Whether a notification reports a change, which belongs to no request.
fn is_change(method: &str) -> bool {
    method.ends_with("/list_changed") || method == "notifications/resources/updated"
}
