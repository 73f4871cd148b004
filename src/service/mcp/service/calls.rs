//! HTTP calls for the MCP endpoint.

use uuid::Uuid;

use super::processes::{Owner, short};
use super::{Mcp, SHUTTING_DOWN};
use crate::log_event::{log_event, word};
use crate::record::record;
use crate::service::jsonrpc::{Envelope, MessageKind, code};
use crate::service::mcp::McpShare;
use crate::service::mcp::headers::sole_header;
use crate::service::mcp::http_error::HttpError;
use crate::service::mcp::hub::too_many;
use crate::service::mcp::pool::Support;
use crate::service::mcp::process::Process;
use crate::service::mcp::reply::{EventId, Reply, accepted};
use crate::service::mcp::request::{
    Accepts, Post, check_media_types, check_version, is_stateless, read_post, readable,
};
use crate::service::mcp::session::{Session, Upstream};
use crate::service::mcp::shared::Seat;
use crate::sys::random_uuid;
use crate::{ClientId, Context, Principal, Request, Response, StatusCode};

/// The maximum length of the first message of a session, which is kept until its process runs.
const MAX_INITIALIZE: usize = 256 << 10;

/// A session whose process is not started yet.
#[derive(Debug)]
pub(super) struct StartingSession {
    principal: Principal,
    /// The first message.
    text: Box<str>,
    reply: Reply,
    /// Whether errors are written as revision 2026-07-28 asks for.
    is_stateless: bool,
}

record!(StartingSession {
    principal,
    text,
    reply,
    is_stateless,
});

impl Mcp {
    /// Forgets a session whose process is not started yet.
    pub(super) fn forget_starting(&mut self, caller: ClientId) -> bool {
        let starting = self.starting.remove(&caller);
        if let Some(starting) = &starting {
            self.hub.sessions.give_back(&starting.principal, 1);
        }
        starting.is_some()
    }

    /// Refuses the sessions whose processes are not started yet, because the server stops.
    pub(super) fn refuse_starting(&mut self, ctx: &mut Context) {
        for (caller, starting) in std::mem::take(&mut self.starting) {
            self.hub.sessions.give_back(&starting.principal, 1);
            let error = HttpError::unavailable(SHUTTING_DOWN);
            ctx.respond(caller, &error.to_response(starting.is_stateless));
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
                let is_stateless = is_stateless(request);
                return self.initialize(ctx, caller, &envelope, reply, is_stateless);
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

    /// Queues the start of the process of a session.
    fn initialize(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        envelope: &Envelope<'_>,
        reply: Reply,
        is_stateless: bool,
    ) -> Result<(), HttpError> {
        let request = envelope.id().unwrap_or("null");
        if envelope.text.len() > MAX_INITIALIZE {
            let why = "Invalid request: initialize is over 256 KiB";
            let status = StatusCode::CONTENT_TOO_LARGE;
            return Err(HttpError::new(status, code::INVALID, why).with_id(request));
        }
        let principal = ctx.principal(caller);
        if let Err(full) = self.hub.sessions.take(&principal, 1) {
            self.make_room(ctx, full, &principal);
            let again = self.hub.sessions.take(&principal, 1);
            again.map_err(|full| too_many("sessions", full).with_id(request))?;
        }
        if self.config.share != McpShare::None {
            let joined = self.join(ctx, caller, envelope, reply, &principal);
            return joined.map_err(|error| error.with_id(request));
        }
        let starting = StartingSession {
            principal,
            text: envelope.text.into(),
            reply,
            is_stateless,
        };
        self.starting.insert(caller, starting);
        ctx.queue_start(caller);
        Ok(())
    }

    /// Begins a session with a seat at a shared process.
    fn join(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        envelope: &Envelope<'_>,
        reply: Reply,
        principal: &Principal,
    ) -> Result<(), HttpError> {
        let id = random_uuid();
        let of_body = |name| envelope.of_body(name).map(|at| &envelope.text[at]);
        let version = of_body("protocolVersion").unwrap_or_default();
        let asked = (version, of_body("capabilities").unwrap_or("{}"));
        match self.take_seat(ctx, id, principal, asked) {
            Ok(seat) => {
                self.add_session(ctx, caller, id, principal, Upstream::Shared(seat));
                let reply = reply.with_session(id.to_string());
                let sent = self.send_in_session(ctx, caller, id, envelope, reply);
                if sent.is_err() {
                    self.end_session(ctx, id, "its first request was rejected");
                }
                sent
            }
            Err(error) => {
                self.hub.sessions.give_back(principal, 1);
                Err(error)
            }
        }
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

    /// Starts the process of a session, and answers the caller if that fails.
    pub(super) fn start_session(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        starting: StartingSession,
    ) {
        let is_stateless = starting.is_stateless;
        if let Err(error) = self.begin_session(ctx, caller, starting) {
            ctx.respond(caller, &error.to_response(is_stateless));
        }
    }

    /// Begins a session with a process of its own.
    fn begin_session(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        starting: StartingSession,
    ) -> Result<(), HttpError> {
        let StartingSession {
            principal,
            text,
            reply,
            ..
        } = starting;
        let envelope =
            &Envelope::parse(&text).map_err(|_| HttpError::invalid("Invalid request"))?;
        let request = envelope.id().unwrap_or("null");
        let process =
            match Process::start_for_sessions(ctx, &self.config.command, &self.config.place) {
                Ok(process) => process,
                Err(error) => {
                    log::error!("{error}");
                    self.hub.sessions.give_back(&principal, 1);
                    return Err(HttpError::cannot_start(request));
                }
            };
        self.hub.counts.processes += 1;
        let id = random_uuid();
        let process = Upstream::Own(Some(Box::new(process)));
        self.add_session(ctx, caller, id, &principal, process);
        self.note_start(Owner::Session(id));
        let reply = reply.with_session(id.to_string());
        let sent = self.send_in_session(ctx, caller, id, envelope, reply);
        if let Some(&call) = self.hub.callers.get(&caller) {
            let (hub, waiting) = self.split();
            let is_waiting = |call| waiting.is_waiting(call);
            hub.initializations.push(ctx, call, is_waiting);
        }
        if sent.is_err() {
            self.end_session(ctx, id, "its first request was rejected");
        }
        sent
    }

    fn add_session(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        id: Uuid,
        principal: &Principal,
        upstream: Upstream,
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
        let session = Session::new(id, principal, upstream, self.config.replay, ctx.now());
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
        let is_request = matches!(envelope.kind, MessageKind::Request { .. });
        let is_behind = match session.seat() {
            None => session.is_behind(),
            Some(seat) => {
                let server = self.shared.get_mut(seat.server);
                server.is_none_or(|server| server.is_behind(envelope, &session.principal))
            }
        };
        if is_behind {
            let id = envelope.id().filter(|_| is_request);
            let error = HttpError::not_reading();
            return Err(id.map_or(error.clone(), |id| error.with_id(id)));
        }
        if !is_request {
            self.pass_on(ctx, id, envelope);
            if let Some(session) = self.sessions.get_mut(&id) {
                session.notify(ctx, &mut self.hub, envelope);
            }
            ctx.respond(caller, &accepted());
            return Ok(());
        }
        let call = session.request(&mut self.hub, envelope, reply)?;
        self.pass_on(ctx, id, envelope);
        if let Some(call) = call {
            self.begin_limits(ctx, call);
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
        session.listen(ctx, &mut self.hub, Reply::new(caller, accepts), last)
    }
}
