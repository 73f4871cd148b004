//! The service: HTTP calls for the MCP endpoint.

mod calls;
mod limits;
mod processes;
mod translated;

use uuid::Uuid;

use self::processes::{Owner, StoppingProcess};
use super::McpConfig;
use super::hub::{Call, Hub};
use super::pool::{Pool, Support};
use super::reply::Reply;
use super::request::{Accepts, is_stateless};
use super::session::Session;
use super::shared::SharedServers;
use super::to_older::ToOlder;
use crate::record::{RecordError, state};
use crate::service::child::{ChildIndex, ChildInput, process_metrics};
use crate::service::deadlines::Alarm;
use crate::service::id_map::IdMap;
use crate::service::jsonrpc::code;
use crate::upgrade::Portable;
use crate::{
    ClientId, Context, Metrics, Principal, Readiness, Rejection, Report, Request, Route, Service,
    ServiceId, SourceId, StatusCode, StatusFields, TimerId,
};

/// The maximum number of sessions that the status lists.
const MAX_LISTED: usize = 200;

/// Why the requests fail that a stopping server does not wait for any longer.
const SHUTTING_DOWN: &str = "Server shutting down";

/// Why a WebSocket handshake is rejected.
const NO_WEBSOCKET: &str = "MCP is served over Streamable HTTP, not over WebSocket";
const OTHER_WEBSOCKET: &str =
    "send requests to this URL with POST; to serve a program over WebSocket, use 'outrigger pipe'";

/// A stdio MCP server on the network, over Streamable HTTP.
///
/// ```
/// use outrigger::service::{Mcp, McpConfig};
/// use outrigger::{Config, Server};
///
/// let mcp = Mcp::new(McpConfig::new("/mcp".parse()?, ["my-mcp-server"]));
/// let config = Config::new("127.0.0.1:0".parse()?);
/// let server = Server::bind(config, mcp)?;
/// // `server.run()` starts the MCP server and serves clients at the path /mcp.
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Mcp {
    config: McpConfig,
    hub: Hub,
    pool: Pool,
    sessions: IdMap<Uuid, Session>,
    shared: SharedServers,
    /// Calls to shared processes of clients of 2026-07-28.
    translated: ToOlder<Reply>,
    stopping: IdMap<u64, StoppingProcess>,
    last_stopping: u64,
    /// Finds the owner of a process by an event of the process.
    index: ChildIndex<Owner>,
    /// Looks for sessions that are idle.
    sweep: Alarm,
    /// Fails the requests that still wait when the server has been stopping for a while.
    last_call: Option<TimerId>,
    failure: Option<String>,
    /// The maximum length of a message.
    max_json: usize,
}

state!(Mcp {
    keep config,
    into hub,
    into pool,
    sessions,
    into shared,
    translated,
    stopping,
    last_stopping,
    // It is made anew.
    keep index,
    sweep,
    keep last_call,
    keep failure,
    keep max_json,
});

impl Mcp {
    /// Creates the service. The first process starts with the server.
    pub fn new(config: McpConfig) -> Self {
        Self {
            hub: Hub::new(&config),
            pool: Pool::new(&config),
            sessions: IdMap::default(),
            shared: SharedServers::new(&config),
            translated: ToOlder::new(),
            stopping: IdMap::default(),
            last_stopping: 0,
            index: ChildIndex::default(),
            sweep: Alarm::default(),
            last_call: None,
            failure: None,
            max_json: usize::MAX,
            config,
        }
    }

    fn check_state(&self) -> Result<(), RecordError> {
        Ok(())
    }

    fn supports_stateless(&self) -> bool {
        self.pool.tools().is_some()
    }
}

impl Service for Mcp {
    fn started(&mut self, ctx: &mut Context) {
        self.max_json = ctx.config().max_json;
        match self.pool.start(ctx, &mut self.hub, &self.config) {
            Ok(change) => self.apply(change),
            Err(error) => {
                self.failure = Some(error.to_string());
                ctx.stop();
            }
        }
    }

    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        if !self.config.endpoint.matches(request.path()) {
            return Err(Rejection::not_found());
        }
        if request.wants_websocket() {
            let rejection = Rejection::new(StatusCode::BAD_REQUEST, NO_WEBSOCKET);
            return Err(rejection.detail(OTHER_WEBSOCKET));
        }
        Ok(Route::call().with_max_body(self.max_json))
    }

    fn call(&mut self, ctx: &mut Context, caller: ClientId, request: &Request<'_>, body: &[u8]) {
        let is_sole = ctx.is_sole_principal(caller);
        self.hub.note(&ctx.principal(caller), is_sole);
        if let Err(error) = self.handle_call(ctx, caller, request, body) {
            let is_known = self.pool.support != Support::Unknown || ctx.is_stopping();
            if error.code == code::UNSUPPORTED_VERSION && !is_known {
                let reply = Reply::new(caller, Accepts::of(request));
                return self.pool.refuse_later(ctx, &mut self.hub, error, reply);
            }
            let error = error.with_versions(&self.pool.versions());
            log::debug!("{caller} was refused: {} {}", error.status.0, error.message);
            ctx.respond(caller, &error.to_response(is_stateless(request)));
        }
    }

    fn start_program(&mut self, ctx: &mut Context, client: Option<ClientId>) {
        let Some(client) = client else {
            if self.pool.has_queued() {
                let change = self.pool.start_next(ctx, &mut self.hub);
                self.apply(change);
                return self.begin_sweep(ctx);
            }
            return self.start_next_server(ctx);
        };
        let Some(call @ Call::Session(id, _)) = self.hub.callers.get(&client).copied() else {
            return;
        };
        let session = self.sessions.get(&id).filter(|session| session.is_alone);
        let server = session.map(|session| session.seat.server);
        let waits = |server: &u64| {
            let server = self.shared.get(*server);
            server.is_some_and(|server| server.sessions.needs_process())
        };
        if let Some(server) = server.filter(waits) {
            self.start_server(ctx, server);
            if self.hub.callers.get(&client) == Some(&call) {
                self.begin_limits(ctx, call);
            }
        }
    }

    fn abandoned(&mut self, ctx: &mut Context, caller: ClientId) {
        match self.hub.callers.remove(&caller) {
            Some(Call::Pool(id)) => self.pool.cancel(ctx, &mut self.hub, id),
            Some(Call::Translated(id, _)) => {
                self.hub.counts.cancelled += 1;
                self.end_translated(ctx, id);
            }
            Some(Call::Session(id, stream)) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.detach(ctx, stream, caller);
                    if session.is_unknown() {
                        self.end_session(ctx, id, "its client has gone before it began");
                    } else {
                        let server = session.seat.server;
                        self.read_on(ctx, server);
                    }
                }
            }
            None => {}
        }
    }

    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        if let Some(Call::Session(id, _)) = self.hub.callers.get(&client)
            && let Some(session) = self.sessions.get(id)
        {
            self.read_on(ctx, session.seat.server);
        }
    }

    fn is_waiting(&self, _: &Context, client: ClientId) -> bool {
        self.hub.callers.contains_key(&client)
    }

    fn draining(&mut self, ctx: &mut Context) {
        self.refuse_starting(ctx);
        self.pool.drain(ctx, &mut self.hub);
        self.end_all_translated(ctx, None);
        for session in self.sessions.values_mut() {
            session.close_get_stream(ctx, &mut self.hub);
        }
        let time = ctx.config().drain_timeout * 3 / 4;
        self.last_call = Some(ctx.set_timer(time));
    }

    /// Forgets the oldest events of the sessions that keep most. A client that comes back for them learns of it.
    fn free_memory(&mut self, _: &mut Context, principal: &Principal, bytes: usize) -> usize {
        let own = self.sessions.values_mut();
        let mut own: Vec<&mut Session> = own
            .filter(|session| session.principal == *principal)
            .collect();
        own.sort_unstable_by_key(|session| session.kept());
        let mut freed = 0;
        while freed < bytes
            && let Some(session) = own.pop()
        {
            freed += session.free(&mut self.hub, bytes - freed);
        }
        freed
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, _: Readiness) {
        let input = ChildInput::Ready(source);
        if let Some(owner) = self.index.find(input) {
            self.handle_process(ctx, owner, input);
        }
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        if self.expire_limits(ctx, timer) {
            return;
        }
        if self.last_call == Some(timer) {
            self.last_call = None;
            self.pool.fail_all(ctx, &mut self.hub, SHUTTING_DOWN);
            for session in self.sessions.values_mut() {
                session.fail_all(ctx, &mut self.hub, SHUTTING_DOWN, None);
            }
            return self.end_all_translated(ctx, Some(SHUTTING_DOWN));
        }
        if self.sweep.expire(timer) {
            return self.end_unused(ctx);
        }
        let was_known = self.pool.support != Support::Unknown;
        if let Some(change) = self.pool.handle_timer(ctx, &mut self.hub, timer) {
            self.apply(change);
            if !was_known {
                self.complete_pool(ctx);
                self.serve_unserved(ctx);
            }
            return;
        }
        let input = ChildInput::Timer(timer);
        if let Some(owner) = self.index.find(input) {
            return self.handle_process(ctx, owner, input);
        }
        // It searches all shared processes, but only starts and restarts set these timers.
        self.handle_shared_timer(ctx, timer);
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.hub.callers.keys().copied().for_each(&mut *visit);
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn stopping(&mut self, ctx: &mut Context) {
        let sessions: Vec<Uuid> = self.sessions.keys().copied().collect();
        for id in sessions {
            self.end_session(ctx, id, "server shutting down");
        }
        self.end_all_translated(ctx, Some(SHUTTING_DOWN));
        self.stop_servers(ctx);
        self.pool.stop(ctx);
        self.pool
            .slots()
            .for_each(|slot| self.note_change(Owner::Pool(slot)));
    }

    fn is_stopped(&self) -> bool {
        self.process_count() == 0
    }

    fn report(&self) -> Option<&dyn Report> {
        Some(self)
    }

    fn portable(&self) -> Option<&dyn Portable> {
        Some(self)
    }

    fn portable_mut(&mut self) -> Option<&mut dyn Portable> {
        Some(self)
    }
}

impl Report for Mcp {
    fn is_ready(&self) -> bool {
        self.pool.is_ready()
    }

    fn status(&self) -> StatusFields {
        let support = match self.pool.support {
            Support::Unknown => "unknown",
            Support::Stateless => "stateless",
            Support::Sessions => "sessions",
        };
        let pid = |session: &Session| {
            let server = self.shared.get(session.seat.server);
            let process = server.filter(|_| session.is_alone)?.process()?;
            Some(process.pid())
        };
        let sessions = self.sessions.values().take(MAX_LISTED);
        let sessions: Vec<_> = sessions.map(|one| one.status(pid(one))).collect();
        let pool = self.pool.slots().filter_map(|slot| self.pool.process(slot));
        let programs = pool.chain(self.shared.shared());
        let programs = programs.map(|process| serde_json::json!({"pid": process.pid()}));
        let programs: Vec<_> = programs.collect();
        StatusFields::from_value(serde_json::json!({
            "restarts": self.hub.counts.restarts,
            "session_list": sessions,
            "programs": programs,
            "support": support,
            "pool": self.pool.process_count(),
            "sessions": self.sessions.len(),
            "pending_requests": self.pending(),
            "kept_bytes": self.hub.bytes.used(),
            "shared": self.shared.shared().count(),
            "processes": self.process_count(),
        }))
    }

    fn metrics(&self, out: &mut Metrics) {
        let counts = self.hub.counts;
        process_metrics(out, self.process_count(), counts.processes);
        out.gauge("outrigger_mcp_sessions", "Sessions.", self.sessions.len());
        out.gauge(
            "outrigger_mcp_requests_pending",
            "Requests that wait for an answer.",
            self.pending(),
        );
        out.gauge(
            "outrigger_mcp_kept_bytes",
            "Bytes kept for clients: events for those that were cut, and questions and answers of calls that wait for input.",
            self.hub.bytes.used(),
        );
        for (name, help, value) in [
            (
                "outrigger_mcp_sessions_total",
                "Sessions begun.",
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
                "outrigger_mcp_refused_total",
                "Requests from MCP servers that are for no client, or for no single one.",
                counts.refused,
            ),
            (
                "outrigger_mcp_restarts_total",
                "Restarts of processes of the pool and of shared processes.",
                counts.restarts,
            ),
        ] {
            out.counter(name, help, value);
        }
    }

    fn held(&self, visit: &mut dyn FnMut(&Principal, usize)) {
        self.hub.bytes.visit(visit);
    }
}

impl Portable for Mcp {
    passes_on!();

    fn carries_calls(&self, _: ServiceId) -> bool {
        true
    }
}
