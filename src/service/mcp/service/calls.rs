//! HTTP calls for the MCP endpoint.

use uuid::Uuid;

use super::processes::short;
use super::{Mcp, SHUTTING_DOWN};
use crate::log_event::{log_event, word};
use crate::service::jsonrpc::{Envelope, MessageKind, code};
use crate::service::mcp::McpShare;
use crate::service::mcp::headers::sole_header;
use crate::service::mcp::http_error::HttpError;
use crate::service::mcp::hub::{Call, too_many};
use crate::service::mcp::pool::Support;
use crate::service::mcp::reply::{EventId, Reply, accepted};
use crate::service::mcp::request::{
    Accepts, Post, check_media_types, check_version, is_stateless, read_post, readable,
};
use crate::service::mcp::session::Session;
use crate::service::mcp::shared::Seat;
use crate::sys::random_uuid;
use crate::{ClientId, Context, Principal, Request, Response, StatusCode};

/// The maximum length of the first message of a session, which is kept until its process runs.
const MAX_INITIALIZE: usize = 256 << 10;

impl Mcp {
    /// Refuses the sessions whose own processes are not started yet, because the server stops.
    pub(super) fn refuse_starting(&mut self, ctx: &mut Context) {
        let is_starting = |session: &&Session| {
            let server = self.shared.get(session.seat.server);
            session.is_alone && server.is_some_and(|server| server.sessions.needs_process())
        };
        let starting = self.sessions.values().filter(is_starting);
        for id in starting.map(|session| session.id).collect::<Vec<_>>() {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.refuse(ctx, &mut self.hub, HttpError::unavailable(SHUTTING_DOWN));
            }
            self.end_session(ctx, id, "server shutting down");
        }
    }

    /// Handles a call, or returns why it is rejected.
    pub(super) fn handle_call(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        request: &Request<'_>,
        body: &[u8],
    ) -> Result<(), HttpError> {
        for name in ["MCP-Protocol-Version", "Mcp-Session-Id", "Last-Event-ID"] {
            sole_header(request, name)?;
        }
        match request.method() {
            "POST" => self.handle_post(ctx, caller, request, body),
            "GET" | "DELETE" if !is_stateless(request) => {
                check_version(request, self.supports_stateless())?;
                let session = self.session_of(ctx, caller, request)?;
                if request.method() == "DELETE" {
                    self.end_session(ctx, session, "deleted by its client");
                    let response = Response::new(StatusCode::NO_CONTENT, "", b"".as_slice());
                    ctx.respond(caller, &response);
                    return Ok(());
                }
                self.listen(ctx, caller, request, session)
            }
            method => Err(HttpError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                code::INVALID,
                format!("Method {method} is not allowed"),
            )),
        }
    }

    fn handle_post(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        request: &Request<'_>,
        body: &[u8],
    ) -> Result<(), HttpError> {
        let accepts = check_media_types(request)?;
        ctx.spend(2 + body.len() / 512);
        let body = readable(body);
        let post = read_post(request, &body, self.pool.tools())?;
        if ctx.is_stopping() {
            return Err(HttpError::unavailable(SHUTTING_DOWN));
        }
        let reply = Reply::new(caller, accepts);
        match post {
            Post::Request(envelope) => {
                let principal = ctx.principal(caller);
                if self.pool.support == Support::Sessions {
                    self.translate(ctx, &envelope, reply, principal);
                } else {
                    self.pool
                        .request(ctx, &mut self.hub, &envelope, reply, principal);
                }
            }
            Post::Notification(envelope) => {
                if let MessageKind::Notification { method } = &envelope.kind {
                    self.pool.notify(ctx, method, envelope.text);
                }
                ctx.respond(caller, &accepted());
            }
            Post::Initialize(envelope) => {
                if request.header("mcp-session-id").is_some() {
                    let id = envelope.id().unwrap_or("null");
                    let known = self.session_of(ctx, caller, request);
                    let why = "Invalid request: the session is initialized already";
                    return Err(match known {
                        Ok(_) => HttpError::invalid(why).with_id(id),
                        Err(error) => error.with_id(id),
                    });
                }
                let begun = self.initialize(ctx, caller, &envelope, reply);
                return begun.map_err(|error| error.with_id(envelope.id().unwrap_or("null")));
            }
            Post::InSession(envelope) => {
                let id = envelope
                    .id()
                    .filter(|_| matches!(envelope.kind, MessageKind::Request { .. }));
                let session = self
                    .session_of(ctx, caller, request)
                    .map_err(|error| match id {
                        Some(id) => error.with_id(id),
                        None => error,
                    })?;
                return self.send_in_session(ctx, caller, session, &envelope, reply);
            }
        }
        Ok(())
    }

    /// The session that a request names. It must belong to the caller.
    fn session_of(
        &self,
        ctx: &Context,
        caller: ClientId,
        request: &Request<'_>,
    ) -> Result<Uuid, HttpError> {
        let Some(id) = request.header("mcp-session-id") else {
            return Err(HttpError::invalid(
                "Invalid request: Mcp-Session-Id is missing",
            ));
        };
        // An id is accepted only in the form in which it was issued. `try_parse` accepts others.
        let id = std::str::from_utf8(id).ok().and_then(|text| {
            let id = Uuid::try_parse(text).ok();
            id.filter(|id| id.to_string() == text)
        });
        let session = id.and_then(|id| self.sessions.get(&id));
        let session = session.filter(|session| session.principal == ctx.principal(caller));
        session
            .map(|session| session.id)
            .ok_or_else(HttpError::no_session)
    }

    /// Begins a session.
    fn initialize(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        envelope: &Envelope<'_>,
        reply: Reply,
    ) -> Result<(), HttpError> {
        let is_alone = self.config.share == McpShare::None;
        if is_alone && envelope.text.len() > MAX_INITIALIZE {
            let why = "Invalid request: initialize is over 256 KiB";
            let status = StatusCode::CONTENT_TOO_LARGE;
            return Err(HttpError::new(status, code::INVALID, why));
        }
        let principal = ctx.principal(caller);
        if let Err(full) = self.hub.sessions.take(&principal, 1) {
            self.make_room(ctx, full, &principal);
            let again = self.hub.sessions.take(&principal, 1);
            again.map_err(|full| too_many("sessions", full))?;
        }
        let id = random_uuid();
        let seat = match is_alone {
            true => self.shared.join_alone(id, &principal, ctx.now()),
            false => {
                let of_body = |name| envelope.of_body(name).map(|at| &envelope.text[at]);
                let version = of_body("protocolVersion").unwrap_or_default();
                let asked = (version, of_body("capabilities").unwrap_or("{}"));
                self.take_seat(ctx, id, &principal, asked)
            }
        };
        let seat = seat.inspect_err(|_| self.hub.sessions.give_back(&principal, 1))?;
        self.add_session(ctx, caller, id, &principal, (seat, is_alone));
        let reply = reply.with_session(id.to_string());
        let sent = self.send_in_session(ctx, caller, id, envelope, reply);
        if sent.is_err() {
            self.end_session(ctx, id, "its first request was rejected");
        } else if is_alone {
            // It is charged to the client.
            ctx.queue_start(caller);
        }
        sent
    }

    /// Takes a seat at the shared process for this revision and these capabilities, which are JSON. If there are too many processes, an
    /// unused one makes room.
    pub(super) fn take_seat(
        &mut self,
        ctx: &mut Context,
        id: Uuid,
        principal: &Principal,
        asked: (&str, &str),
    ) -> Result<Seat, HttpError> {
        let mut has_made_room = false;
        loop {
            let sessions = &mut self.hub.sessions;
            let mut is_full = None;
            let may_add = || {
                let taken = sessions.take(principal, 1);
                is_full = taken.err();
                taken.map_err(|full| too_many("sessions", full))
            };
            let joined = self.shared.join(id, principal, asked, ctx.now(), may_add);
            match is_full {
                // A process that runs still counts until it has exited. Then the client has to try again.
                Some(full) if !has_made_room => self.make_room(ctx, full, principal),
                _ => return joined,
            }
            has_made_room = true;
        }
    }

    fn add_session(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        id: Uuid,
        principal: &Principal,
        seat: (Seat, bool),
    ) {
        self.hub.counts.sessions += 1;
        log_event!(
            Info,
            session = short(id),
            "began",
            client = word(&caller),
            principal = word(principal),
        );
        let principal = principal.clone();
        let session = Session::new(id, principal, seat, self.config.replay, ctx.now());
        self.sessions.insert(id, session);
        self.begin_sweep(ctx);
    }

    /// Passes a message on to the process of a session.
    fn send_in_session(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        id: Uuid,
        envelope: &Envelope<'_>,
        reply: Reply,
    ) -> Result<(), HttpError> {
        let session = self
            .sessions
            .get_mut(&id)
            .ok_or_else(HttpError::no_session)?;
        session.touch(ctx.now());
        let seat = session.seat;
        let request = match &envelope.kind {
            MessageKind::Request { method, id } => Some((method, &envelope.text[id.clone()])),
            _ => None,
        };
        let refused = |error: HttpError| match request {
            Some((_, own)) => Err(error.with_id(own)),
            None => Err(error),
        };
        let mut server = self.shared.get_mut(seat.server);
        let target = server.as_mut();
        if target.is_none_or(|one| one.is_behind(envelope, &session.principal)) {
            return refused(HttpError::not_reading());
        }
        let Some((method, own)) = request else {
            self.send_from_seat(ctx, seat, 0, envelope);
            self.read_on(ctx, seat.server);
            ctx.respond(caller, &accepted());
            return Ok(());
        };
        if server.is_some_and(|one| one.sessions.is_pending(seat.member, own)) {
            let why = "Invalid request: a request with this id waits for its answer";
            return refused(HttpError::invalid(why));
        }
        // The time limits of `initialize` begin when the process has started.
        let is_held = session.is_alone && session.is_new();
        let stream = session.request(&mut self.hub, method, own, reply)?;
        self.send_from_seat(ctx, seat, stream, envelope);
        if !is_held {
            self.begin_limits(ctx, Call::Session(id, stream));
        }
        Ok(())
    }

    /// Opens a stream of a session.
    fn listen(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        request: &Request<'_>,
        id: Uuid,
    ) -> Result<(), HttpError> {
        if !Accepts::of(request).events {
            return Err(HttpError::events_required());
        }
        let last = match request.header("last-event-id") {
            None => None,
            Some(text) => {
                let text = std::str::from_utf8(text).ok();
                let id = text.and_then(|text| text.parse::<EventId>().ok());
                Some(id.ok_or_else(HttpError::unknown_event)?)
            }
        };
        if ctx.is_stopping() {
            return Err(HttpError::unavailable(SHUTTING_DOWN));
        }
        let session = self
            .sessions
            .get_mut(&id)
            .ok_or_else(HttpError::no_session)?;
        session.touch(ctx.now());
        let accepts = Accepts {
            json: false,
            events: true,
        };
        let seat = session.seat;
        session.listen(ctx, &mut self.hub, Reply::new(caller, accepts), last)?;
        self.read_on(ctx, seat.server);
        Ok(())
    }
}
