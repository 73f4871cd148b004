//! The answer to a caller: one JSON message, or a stream of server-sent events.

use super::http_error::{EXPOSED, HttpError};
use super::replay::EventId;
use super::request::Accepts;
use crate::{ClientId, Context, Response, StatusCode};

/// The response to a call that is not answered yet.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) caller: ClientId,
    accepts: Accepts,
    /// Whether the head of a stream was sent.
    is_streaming: bool,
    /// The session that the head of the answer names.
    session: Option<String>,
}

impl Reply {
    pub(super) fn new(caller: ClientId, accepts: Accepts) -> Self {
        Self {
            caller,
            accepts,
            is_streaming: false,
            session: None,
        }
    }

    /// Names the session in the head of the answer.
    pub(super) fn with_session(self, session: String) -> Self {
        Self {
            session: Some(session),
            ..self
        }
    }

    /// The session did not begin, so the head of the answer does not name it.
    pub(super) fn forget_session(&mut self) {
        self.session = None;
    }

    /// Whether the answer may be a stream.
    pub(super) fn takes_events(&self) -> bool {
        self.accepts.events
    }

    pub(super) fn is_streaming(&self) -> bool {
        self.is_streaming
    }

    /// Sends the head of a stream, unless it was sent. Returns false if the caller takes no stream, or is gone.
    pub(super) fn begin(&mut self, ctx: &mut Context) -> bool {
        if !self.is_streaming && self.accepts.events {
            let session = self.session.as_deref().map(|id| ("Mcp-Session-Id", id));
            let fields: Vec<_> = [EXPOSED].into_iter().chain(session).collect();
            self.is_streaming = ctx.begin_stream(self.caller, &fields).is_ok();
        }
        self.is_streaming
    }

    /// Sends a message before the answer. Returns false if it could not be sent.
    pub(super) fn event(&mut self, ctx: &mut Context, id: Option<EventId>, text: &str) -> bool {
        self.begin(ctx) && ctx.stream(self.caller, event(id, text).as_bytes()).is_ok()
    }

    /// Sends an event without data, with which a client can resume the stream before the first message. It asks clients to come
    /// back soon.
    pub(super) fn prime(&self, ctx: &mut Context, id: EventId) {
        let event = format!("id: {id}\nretry: 1000\ndata: \n\n");
        let _ = ctx.stream(self.caller, event.as_bytes());
    }

    /// Sends the answer, which ends the call. `status` is used only if no stream has begun.
    pub(super) fn finish(
        mut self,
        ctx: &mut Context,
        status: StatusCode,
        id: Option<EventId>,
        text: &str,
    ) {
        if self.is_streaming || !self.accepts.json {
            self.event(ctx, id, text);
            let _ = ctx.end_stream(self.caller);
            return;
        }
        let mut response = Response::json(status, text).field(EXPOSED.0, EXPOSED.1);
        if let Some(session) = self.session.take() {
            response = response.field("Mcp-Session-Id", session);
        }
        ctx.respond(self.caller, &response);
    }

    /// Ends the call without an answer, because the request was cancelled or the stream is not used any more.
    pub(super) fn end(mut self, ctx: &mut Context) {
        if self.begin(ctx) {
            let _ = ctx.end_stream(self.caller);
        } else {
            ctx.respond(self.caller, &accepted());
        }
    }

    /// Rejects the call.
    pub(super) fn reject(self, ctx: &mut Context, error: &HttpError, is_stateless: bool) {
        if self.is_streaming {
            self.finish(ctx, error.status, None, &error.to_json(is_stateless));
        } else {
            ctx.respond(self.caller, &error.to_response(is_stateless));
        }
    }
}

/// The response to a message that gets no answer.
pub(super) fn accepted() -> Response {
    Response::new(StatusCode::ACCEPTED, "application/json", b"".as_slice())
        .field(EXPOSED.0, EXPOSED.1)
}

/// A server-sent event with a message. In JSON, line ends are only white space between tokens.
fn event(id: Option<EventId>, text: &str) -> String {
    let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
    let is_line_end = |c| matches!(c, '\r' | '\n');
    if text.contains(is_line_end) {
        let text = text.replace(is_line_end, " ");
        return format!("event: message\n{id}data: {text}\n\n");
    }
    format!("event: message\n{id}data: {text}\n\n")
}
