//! The service: HTTP calls and WebSocket connections for the MCP endpoint.

use std::collections::HashMap;
use std::time::Duration;

use uuid::Uuid;

use super::McpConfig;
use super::accept::Accepts;
use super::headers::sole_header;
use super::http_error::{HttpError, code};
use super::hub::{Call, Hub, too_many};
use super::pool::{Pool, PoolChange, Support};
use super::process::{Input, Process};
use super::replay::EventId;
use super::reply::{Reply, accepted};
use super::request::{Post, check_media_types, check_version, is_stateless, read_post};
use super::session::{Fate, Session};
use crate::service::AgentPerClient;
use crate::service::agent::AgentConfig;
use crate::service::agent::AgentProtocol;
use crate::service::agent::envelope::{Envelope, MessageKind};
use crate::service::child::ChildEvent;
use crate::{
    Accept, ClientId, CloseCode, CloseReason, Context, Message, Metrics, Principal, Readiness,
    Rejection, Request, Response, Route, Service, SourceId, StatusCode, StatusFields, TimerId,
};

/// Why the requests fail that a stopping server does not wait for any longer.
const SHUTTING_DOWN: &str = "Server shutting down";

/// How often to look for sessions to end, at least.
const SWEEP: Duration = Duration::from_secs(15);

/// The owner of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The slot of the pool.
    Pool(usize),
    Session(Uuid),
    /// No owner: the process is being stopped.
    Stopping(u64),
}

/// A process that has no owner and will exit.
#[derive(Debug)]
struct StoppingProcess {
    process: Box<Process>,
    /// The principal whose session it belonged to.
    principal: Option<Principal>,
}

/// A stdio MCP server on the network: Streamable HTTP, and WebSocket on the same path.
///
/// ```
/// use outrigger::service::{Mcp, McpConfig};
/// use outrigger::{Config, Server};
///
/// let mcp = Mcp::new(McpConfig::new("/mcp".parse()?, ["my-mcp-server"]));
/// let config = Config::builder().listen("127.0.0.1:0".parse()?).build()?;
/// let server = Server::bind(config, mcp)?;
/// // `server.run()` starts the MCP server and serves clients at http://127.0.0.1:7070/mcp.
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Mcp {
    config: McpConfig,
    hub: Hub,
    pool: Pool,
    sessions: HashMap<Uuid, Session>,
    stopping: HashMap<u64, StoppingProcess>,
    last_stopping: u64,
    /// The owner of the process that a source belongs to.
    sources: HashMap<SourceId, Owner>,
    /// Looks for sessions that are idle.
    sweep: Option<TimerId>,
    /// Fails the requests that still wait when the server has been stopping for a while.
    last_call: Option<TimerId>,
    /// Clients that use WebSocket, each with a process of its own.
    websocket: AgentPerClient,
    /// The principals of these clients, each of which counts as a session.
    websocket_clients: HashMap<ClientId, Principal>,
    failure: Option<String>,
}

impl Mcp {
    /// Creates the service. The first process starts with the server.
    pub fn new(config: McpConfig) -> Self {
        let websocket = AgentConfig::new(config.endpoint.clone(), config.command.clone())
            .with_protocol(AgentProtocol::JsonRpc);
        Self {
            hub: Hub::new(&config),
            pool: Pool::new(&config),
            sessions: HashMap::new(),
            stopping: HashMap::new(),
            last_stopping: 0,
            sources: HashMap::new(),
            sweep: None,
            last_call: None,
            websocket: AgentPerClient::new(websocket),
            websocket_clients: HashMap::new(),
            failure: None,
            config,
        }
    }

    fn supports_stateless(&self) -> bool {
        self.pool.support != Support::Sessions
    }

    /// Handles a call, or returns why it is rejected.
    fn handle_call(
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
                code::INVALID_REQUEST,
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
        let post = read_post(request, body, self.pool.tools())?;
        if ctx.is_stopping() {
            return Err(HttpError::unavailable(SHUTTING_DOWN));
        }
        let reply = Reply::new(caller, accepts);
        match post {
            Post::Request(envelope) => {
                let principal = ctx.principal(caller);
                self.pool
                    .request(ctx, &mut self.hub, &envelope, reply, principal);
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
                return self.initialize(ctx, caller, &envelope, reply);
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
        // Only the spelling in which ids are given out is accepted.
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

    /// Begins a session with a process of its own.
    fn initialize(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        envelope: &Envelope<'_>,
        reply: Reply,
    ) -> Result<(), HttpError> {
        let request = envelope.id().unwrap_or("null");
        let principal = ctx.principal(caller);
        self.hub
            .sessions
            .take(&principal, 1)
            .map_err(|full| too_many("sessions", full).with_id(request))?;
        let process = match Process::start(ctx, &self.config.command) {
            Ok(process) => process,
            Err(error) => {
                log::error!("{error}");
                self.hub.sessions.give_back(&principal, 1);
                return Err(
                    HttpError::unavailable("The MCP server cannot be started").with_id(request)
                );
            }
        };
        self.hub.counts.processes += 1;
        self.hub.counts.sessions += 1;
        let id = Uuid::new_v4();
        log::info!(
            "session {} began: client={caller} principal={principal}",
            short(id)
        );
        let session = Session::new(id, principal, process, self.config.replay, ctx.now());
        self.sources
            .extend(session.sources().map(|source| (source, Owner::Session(id))));
        self.sessions.insert(id, session);
        self.begin_sweep(ctx);
        let reply = reply.with_session(id.to_string());
        let sent = self.send_in_session(ctx, caller, id, envelope, reply);
        if let Some(&call) = self.hub.callers.get(&caller) {
            let Self {
                hub,
                pool,
                sessions,
                ..
            } = self;
            hub.initializations
                .push(ctx, call, |call| is_waiting(pool, sessions, call));
        }
        if sent.is_err() {
            self.end_session(ctx, id, "its first request was rejected");
        }
        sent
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
        if !matches!(envelope.kind, MessageKind::Request { .. }) {
            session.notify(ctx, &mut self.hub, envelope)?;
            ctx.respond(caller, &accepted());
            return Ok(());
        }
        let call = session.request(ctx, &mut self.hub, envelope, reply);
        if let Some(call) = call? {
            let Self {
                hub,
                pool,
                sessions,
                ..
            } = self;
            hub.beginnings
                .push(ctx, call, |call| may_begin(pool, sessions, call));
            hub.timeouts
                .push(ctx, call, |call| is_waiting(pool, sessions, call));
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
            return Err(HttpError::new(
                StatusCode::NOT_ACCEPTABLE,
                code::INVALID_REQUEST,
                "Accept must allow text/event-stream",
            ));
        }
        let last = match request.header("last-event-id") {
            None => None,
            Some(text) => {
                let text = std::str::from_utf8(text).ok();
                let id = text.and_then(|text| text.parse::<EventId>().ok());
                Some(id.ok_or_else(|| {
                    HttpError::invalid("Last-Event-ID is unknown or no longer kept")
                })?)
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

    /// Ends a session and stops its process.
    fn end_session(&mut self, ctx: &mut Context, id: Uuid, why: &str) {
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        log::info!("session {} ended: {why}", short(id));
        let sources: Vec<SourceId> = session.sources().collect();
        let (principal, process) = session.end(ctx, &mut self.hub);
        match process {
            Some(process) => self.keep_until_exit(process, Some(principal), &sources),
            None => self.hub.sessions.give_back(&principal, 1),
        }
    }

    /// Keeps a process that was told to stop until it has exited.
    fn keep_until_exit(
        &mut self,
        process: Box<Process>,
        principal: Option<Principal>,
        sources: &[SourceId],
    ) {
        self.last_stopping += 1;
        let owner = Owner::Stopping(self.last_stopping);
        for source in sources {
            self.sources.insert(*source, owner);
        }
        let stopping = StoppingProcess { process, principal };
        self.stopping.insert(self.last_stopping, stopping);
    }

    fn apply(&mut self, change: Option<PoolChange>) {
        match change {
            Some(PoolChange::Started(slot)) => {
                let sources = self.pool.sources(slot);
                self.sources
                    .extend(sources.map(|source| (source, Owner::Pool(slot))));
            }
            Some(PoolChange::Stopping(process)) => {
                let sources: Vec<SourceId> = process.sources().collect();
                self.keep_until_exit(process, None, &sources);
            }
            None => {}
        }
    }

    /// Starts the other processes of the pool once the first has said what it supports.
    fn complete_pool(&mut self, ctx: &mut Context) {
        for change in self.pool.start_others(ctx, &mut self.hub) {
            self.apply(Some(change));
        }
    }

    /// Lets a process handle an event.
    fn handle_process(&mut self, ctx: &mut Context, owner: Owner, input: Input) {
        match owner {
            Owner::Pool(slot) => {
                let was_known = self.pool.support != Support::Unknown;
                let change = self.pool.handle(ctx, &mut self.hub, slot, input);
                self.apply(change);
                if !was_known && self.pool.support == Support::Stateless {
                    self.complete_pool(ctx);
                }
                self.forget_sources(owner, |service| service.pool.sources(slot).next().is_none());
            }
            Owner::Session(id) => {
                let Some(session) = self.sessions.get_mut(&id) else {
                    return;
                };
                match session.handle(ctx, &mut self.hub, input) {
                    Fate::Lives => {}
                    Fate::Exited => {
                        self.end_session(ctx, id, "its process has exited");
                        self.forget_sources(owner, |_| true);
                    }
                    Fate::Refused => {
                        self.end_session(ctx, id, "its process has refused to initialize");
                    }
                }
            }
            Owner::Stopping(number) => {
                let Some(stopping) = self.stopping.get_mut(&number) else {
                    return;
                };
                let event = stopping
                    .process
                    .handle(ctx, input, |_, _| std::ops::ControlFlow::Continue(()));
                if matches!(event, ChildEvent::Exited(_)) {
                    let principal = self
                        .stopping
                        .remove(&number)
                        .and_then(|gone| gone.principal);
                    if let Some(principal) = principal {
                        self.hub.sessions.give_back(&principal, 1);
                    }
                    self.forget_sources(owner, |_| true);
                }
            }
        }
    }

    /// Forgets the sources of a process that is gone.
    fn forget_sources(&mut self, owner: Owner, is_gone: impl Fn(&Self) -> bool) {
        if is_gone(self) {
            self.sources.retain(|_, other| *other != owner);
        }
    }

    /// Sets the timer that looks for sessions to end.
    fn begin_sweep(&mut self, ctx: &mut Context) {
        if self.sweep.is_none() && !self.sessions.is_empty() {
            let idle = self.config.session_idle.unwrap_or(Duration::MAX);
            self.sweep = Some(ctx.set_timer(SWEEP.min(idle / 4)));
        }
    }

    /// Ends the sessions that have been idle for too long, and those of principals whose token was revoked.
    fn end_unused(&mut self, ctx: &mut Context) {
        let (now, most) = (ctx.now(), self.config.session_idle);
        let tokens = &ctx.config().access.tokens;
        let reason = |session: &Session| match &session.principal {
            Principal::Named(name) if tokens.find(name).is_none() => Some("its token was revoked"),
            _ => {
                let idle = session.idle_since().map(|since| now.since(since));
                idle.zip(most)
                    .is_some_and(|(idle, most)| idle >= most)
                    .then_some("idle")
            }
        };
        let unused: Vec<(Uuid, &str)> = self
            .sessions
            .values()
            .filter_map(|session| Some((session.id, reason(session)?)))
            .collect();
        for (id, why) in unused {
            self.end_session(ctx, id, why);
        }
        self.begin_sweep(ctx);
    }

    /// The number of processes, including those that are being stopped.
    fn process_count(&self) -> usize {
        let websocket = self.websocket.process_count();
        self.pool.process_count() + self.sessions.len() + self.stopping.len() + websocket
    }

    fn pending(&self) -> usize {
        let in_sessions = self.sessions.values().map(Session::pending);
        self.pool.pending() + in_sessions.sum::<usize>()
    }
}

fn may_begin(pool: &Pool, sessions: &HashMap<Uuid, Session>, call: Call) -> bool {
    match call {
        Call::Pool(id) => pool.may_begin(id),
        Call::Session(id, stream) => sessions
            .get(&id)
            .is_some_and(|session| session.may_begin(stream)),
    }
}

fn is_waiting(pool: &Pool, sessions: &HashMap<Uuid, Session>, call: Call) -> bool {
    match call {
        Call::Pool(id) => pool.is_waiting(id),
        Call::Session(id, stream) => sessions
            .get(&id)
            .is_some_and(|session| session.is_waiting(stream)),
    }
}

/// The start of a session's id, for the log. The whole id is a secret.
fn short(id: Uuid) -> String {
    id.to_string()[..8].to_owned()
}

impl Service for Mcp {
    fn started(&mut self, ctx: &mut Context) {
        match self.pool.start(ctx, &mut self.hub, &self.config) {
            Ok(()) => self.apply(Some(PoolChange::Started(0))),
            Err(error) => {
                self.failure = Some(error.to_string());
                ctx.stop();
            }
        }
    }

    fn route(&mut self, request: &Request<'_>) -> Result<Route, Rejection> {
        if !self.config.endpoint.matches(request.path()) {
            return Err(Rejection::not_found());
        }
        Ok(if request.wants_websocket() {
            Route::WebSocket
        } else {
            Route::Http
        })
    }

    fn accept(&mut self, ctx: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        // A process outlives its client by the few seconds that it gets to exit.
        let stopping = self.websocket.process_count() - self.websocket_clients.len();
        if self.hub.sessions.used() + stopping >= self.config.max_sessions {
            return Err(Rejection::unavailable("too many sessions"));
        }
        self.websocket.accept(ctx, request)
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, request: &Request<'_>) {
        let principal = ctx.principal(client);
        if self.hub.sessions.take(&principal, 1).is_err() {
            ctx.close(
                client,
                CloseCode(1013),
                "Too many sessions of this principal",
            );
            return;
        }
        self.websocket_clients.insert(client, principal);
        self.websocket.connected(ctx, client, request);
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        self.websocket.message(ctx, client, message);
    }

    fn call(&mut self, ctx: &mut Context, caller: ClientId, request: &Request<'_>, body: &[u8]) {
        if let Err(error) = self.handle_call(ctx, caller, request, body) {
            log::debug!("{caller} was refused: {} {}", error.status.0, error.message);
            ctx.respond(caller, &error.to_response(is_stateless(request)));
        }
    }

    fn abandoned(&mut self, ctx: &mut Context, caller: ClientId) {
        match self.hub.callers.remove(&caller) {
            Some(Call::Pool(id)) => self.pool.cancel(ctx, &mut self.hub, id),
            Some(Call::Session(id, stream)) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.detach(ctx, stream, caller);
                    if session.is_unknown() {
                        self.end_session(ctx, id, "its client has gone before it began");
                    }
                }
            }
            None => {}
        }
    }

    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        match self.hub.callers.get(&client) {
            Some(Call::Session(id, _)) => {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.resume(ctx);
                }
            }
            Some(Call::Pool(_)) => {}
            None => self.websocket.drained(ctx, client),
        }
    }

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, ending: &CloseReason) {
        if let Some(principal) = self.websocket_clients.remove(&client) {
            self.hub.sessions.give_back(&principal, 1);
        }
        self.websocket.disconnected(ctx, client, ending);
    }

    fn is_waiting(&self, ctx: &Context, client: ClientId) -> bool {
        self.hub.callers.contains_key(&client) || self.websocket.is_waiting(ctx, client)
    }

    fn may_idle(&self, ctx: &Context, client: ClientId) -> bool {
        self.websocket.may_idle(ctx, client)
    }

    fn draining(&mut self, ctx: &mut Context) {
        self.pool.drain(ctx, &mut self.hub);
        for session in self.sessions.values_mut() {
            session.close_get_stream(ctx, &mut self.hub);
        }
        let time = ctx.config().drain_timeout * 3 / 4;
        self.last_call = Some(ctx.set_timer(time));
        self.websocket.draining(ctx);
    }

    fn is_ready(&self) -> bool {
        self.pool.is_ready()
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, readiness: Readiness) {
        match self.sources.get(&source) {
            Some(&owner) => self.handle_process(ctx, owner, Input::Ready(source)),
            None => self.websocket.ready(ctx, source, readiness),
        }
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        let Self {
            hub,
            pool,
            sessions,
            ..
        } = self;
        let due = hub
            .beginnings
            .expire(ctx, timer, |call| may_begin(pool, sessions, call));
        if let Some(due) = due {
            for call in due {
                match call {
                    Call::Pool(id) => pool.begin_stream(ctx, id),
                    Call::Session(id, stream) => {
                        if let Some(session) = sessions.get_mut(&id) {
                            session.begin_stream(ctx, stream);
                        }
                    }
                }
            }
            return;
        }
        let due = hub
            .timeouts
            .expire(ctx, timer, |call| is_waiting(pool, sessions, call));
        if let Some(due) = due {
            for call in due {
                match call {
                    Call::Pool(id) => pool.time_out(ctx, hub, id),
                    Call::Session(id, stream) => {
                        if let Some(session) = sessions.get_mut(&id) {
                            session.time_out(ctx, hub, stream);
                        }
                    }
                }
            }
            return;
        }
        let due = hub
            .initializations
            .expire(ctx, timer, |call| is_waiting(pool, sessions, call));
        if let Some(due) = due {
            for call in due {
                if let Call::Session(id, _) = call {
                    self.end_session(ctx, id, "its process has not answered initialize in time");
                }
            }
            return;
        }
        if self.last_call == Some(timer) {
            self.last_call = None;
            pool.fail_all(ctx, hub, SHUTTING_DOWN);
            for session in sessions.values_mut() {
                session.fail_all(ctx, hub, SHUTTING_DOWN);
            }
            return;
        }
        if self.sweep == Some(timer) {
            self.sweep = None;
            return self.end_unused(ctx);
        }
        let was_known = self.pool.support != Support::Unknown;
        if let Some(change) = self.pool.handle_timer(ctx, &mut self.hub, timer) {
            self.apply(change);
            if !was_known {
                self.complete_pool(ctx);
            }
            return;
        }
        match self.owner_of(timer) {
            Some(owner) => self.handle_process(ctx, owner, Input::Timer(timer)),
            None => self.websocket.timer(ctx, timer),
        }
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.hub.callers.keys().copied().for_each(&mut *visit);
        self.websocket.clients(visit);
    }

    fn status(&self) -> StatusFields {
        let support = match self.pool.support {
            Support::Unknown => "unknown",
            Support::Stateless => "stateless",
            Support::Sessions => "sessions",
        };
        StatusFields::from_value(serde_json::json!({
            "support": support,
            "pool": self.pool.process_count(),
            "sessions": self.sessions.len(),
            "websockets": self.websocket_clients.len(),
            "pending_requests": self.pending(),
            "kept_bytes": self.hub.bytes.used(),
            "processes": self.process_count(),
        }))
    }

    fn metrics(&self, out: &mut Metrics) {
        let counts = self.hub.counts;
        out.gauge(
            "outrigger_processes_running",
            "Running programs, including those that are being stopped.",
            self.process_count(),
        );
        out.counter(
            "outrigger_processes_started_total",
            "Programs started.",
            counts.processes + self.websocket.started,
        );
        out.gauge(
            "outrigger_mcp_sessions",
            "Sessions, without WebSocket clients.",
            self.sessions.len(),
        );
        out.gauge(
            "outrigger_mcp_websockets",
            "WebSocket clients, each with a process of its own.",
            self.websocket_clients.len(),
        );
        out.gauge(
            "outrigger_mcp_requests_pending",
            "Requests that wait for an answer.",
            self.pending(),
        );
        out.gauge(
            "outrigger_mcp_kept_bytes",
            "Bytes of events that are kept for clients that were cut.",
            self.hub.bytes.used(),
        );
        for (name, help, value) in [
            (
                "outrigger_mcp_sessions_total",
                "Sessions begun, without WebSocket clients.",
                counts.sessions,
            ),
            (
                "outrigger_mcp_requests_total",
                "Requests passed on to the server.",
                counts.requests,
            ),
            (
                "outrigger_mcp_cancelled_total",
                "Requests cancelled by their client, or by its disconnection.",
                counts.cancelled,
            ),
            (
                "outrigger_mcp_replayed_total",
                "Events sent again after a cut.",
                counts.replayed,
            ),
            (
                "outrigger_mcp_dropped_total",
                "Messages of MCP servers dropped because no client was waiting for them.",
                counts.dropped,
            ),
            (
                "outrigger_mcp_restarts_total",
                "Restarts of processes of the pool.",
                counts.restarts,
            ),
        ] {
            out.counter(name, help, value);
        }
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn stopping(&mut self, ctx: &mut Context) {
        let sessions: Vec<Uuid> = self.sessions.keys().copied().collect();
        for id in sessions {
            self.end_session(ctx, id, "server shutting down");
        }
        self.pool.stop(ctx);
        self.websocket.stopping(ctx);
    }

    fn is_stopped(&self) -> bool {
        self.process_count() == 0
    }
}

impl Mcp {
    /// The owner of the process that has set a timer. Only processes that are being stopped set timers.
    fn owner_of(&self, timer: TimerId) -> Option<Owner> {
        let mut stopping = self.stopping.iter();
        let stopped = stopping.find(|(_, stopping)| stopping.process.is_timer(timer));
        if let Some((number, _)) = stopped {
            return Some(Owner::Stopping(*number));
        }
        if let Some(slot) = self.pool.owner_of(timer) {
            return Some(Owner::Pool(slot));
        }
        // A session's process that has closed a stream is being stopped, too.
        let mut sessions = self.sessions.values();
        let session = sessions.find(|session| session.is_timer(timer))?;
        Some(Owner::Session(session.id))
    }
}
