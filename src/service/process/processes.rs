//! The process API: starts, watches, signals and attaches to processes over HTTP.

use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use super::LINGER;
use super::attach::{Attachments, Role, Sharing};
use super::body::bad_request;
use super::calls::{
    AttachQuery, Call, RunRequest, no_process, read_data, read_exec, read_signal, read_size,
    read_spawn, since,
};
use super::compat::Compat;
use super::dialect::{Dialect, log_failed_resize};
use super::exec::ExecCalls;
use super::program::{Launch, PassEnv, Program};
use super::programs::Programs;
use super::responses::{Details, spawned, spec, start_failed, status, summary};
use super::sink::Sink;
use crate::server::too_little_memory;
use crate::service::Endpoint;
use crate::service::child::process_metrics;
use crate::service::id_map::IdMap;
use crate::sys::random_uuid;
use crate::{
    Accept, ClientId, CloseCode, CloseReason, Context, LinkTarget, Message, Metrics, Readiness,
    Rejection, Request, Response, Route, Scope, Service, SourceId, StatusCode, StatusFields,
    TimerId,
};

/// The header field that names the content type of a stream's events.
const EVENTS_ARE_JSON: (&str, &str) = ("X-SSE-Content-Type", "application/json");

/// How long a client that has half-closed its connection is kept while it has unread output and takes nothing.
const CATCHING_UP: Duration = Duration::from_secs(5);

/// The work of reading the use of processor time and memory of one process, in the units of [`Context::spend`].
const USAGE: usize = 20;

/// The maximum number of processes that are kept, as a multiple of the maximum number of running ones.
const EXITED_PER_RUNNING: usize = 4;

/// The settings of the process API.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProcessesConfig {
    /// The path of the API.
    pub endpoint: Endpoint,
    /// The bytes of output that are kept of each process.
    pub scrollback: usize,
    /// How long an exited process is kept.
    pub retention: Duration,
    /// The maximum number of processes that run at once.
    pub max_processes: usize,
    /// The maximum number of bytes of output that are held for all `exec` calls together. A call whose output exceeds it
    /// gets 503. A quarter of it is the default limit for one stream of a process.
    pub max_exec_output: usize,
    /// Whether a process waits while its output has no reader, or a stream is behind. Otherwise the oldest output is
    /// dropped.
    pub wait_for_readers: bool,
    /// How long output is read after a process's exit if another process holds the output open.
    pub linger: Duration,
    /// The server whose clients are accepted without a change.
    pub compat: Compat,
    /// Variables of the server's environment that processes of other users get too.
    pub pass_env: Vec<String>,
}

impl ProcessesConfig {
    /// The default settings.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            scrollback: 1 << 20,
            retention: Duration::from_secs(60),
            max_processes: 256,
            max_exec_output: 64 << 20,
            wait_for_readers: false,
            linger: LINGER,
            compat: Compat::None,
            pass_env: Vec::new(),
        }
    }
}

/// A service whose clients start processes over HTTP. The processes outlive the clients.
/// [`messages`](super::messages) describes what attached clients send and receive.
///
/// ```
/// use std::time::Duration;
///
/// use outrigger::service::{Processes, ProcessesConfig};
///
/// let mut config = ProcessesConfig::new("/process".parse()?);
/// config.retention = Duration::from_secs(600);
/// let processes = Processes::new(config);
/// # Ok::<(), outrigger::service::ParseEndpointError>(())
/// ```
#[derive(Debug)]
pub struct Processes {
    config: ProcessesConfig,
    programs: Programs,
    /// What the callers have asked for whose processes are not started yet.
    waiting: IdMap<ClientId, Start>,
    exec_calls: ExecCalls,
    /// The request of the handshake that was accepted last. `connected` follows at once.
    accepted: Option<AttachRequest>,
    started: u64,
    stopping: bool,
}

/// A call that starts a process.
#[derive(Debug)]
struct Start {
    request: RunRequest,
    /// For `exec`, the limit of each output stream and the fields of the answer; `None` for `spawn`.
    exec: Option<(usize, Details)>,
}

/// A valid attach request.
#[derive(Clone, Copy, Debug)]
struct AttachRequest {
    id: Uuid,
    query: AttachQuery,
    dialect: Dialect,
    since: u64,
}

impl Processes {
    /// Creates the service, without processes.
    pub fn new(mut config: ProcessesConfig) -> Self {
        config.endpoint = config.endpoint.with_subtree();
        Self {
            programs: Programs::default(),
            waiting: IdMap::default(),
            exec_calls: ExecCalls::new(config.max_exec_output, config.compat),
            accepted: None,
            config,
            started: 0,
            stopping: false,
        }
    }

    /// The call that a request makes. Its process may not exist.
    fn parse_call(&self, request: &Request<'_>) -> Result<Call, Rejection> {
        let path = request.path();
        let is_compatible = self.config.compat == Compat::KernelImages;
        let below = match self.config.endpoint.below(path) {
            Some(below) => below,
            // kernel-images describes itself at its root.
            None if is_compatible && matches!(path, "/spec.json" | "/spec.yaml") => path,
            None => return Err(Rejection::not_found()),
        };
        let method = match request.method() {
            "HEAD" => "GET",
            method => method,
        };
        Call::read(method, below)
    }

    /// Checks that the process of a call exists.
    fn expect_process(&self, call: Call) -> Result<(), Rejection> {
        match call.id() {
            Some(id) if !self.is_visible(id) => Err(no_process()),
            _ => Ok(()),
        }
    }

    /// Checks that the process of a call exists, and that its body will be JSON.
    fn check_call(&self, call: Call, request: &Request<'_>) -> Result<(), Rejection> {
        self.expect_process(call)?;
        if call.has_body() {
            self.config.compat.expect_json_body(request)?;
        }
        Ok(())
    }

    /// Whether a process with this id exists that was not started by `exec`.
    fn is_visible(&self, id: Uuid) -> bool {
        self.programs.get(id).is_some_and(is_shared)
    }

    fn answer(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        call: Call,
        request: &Request<'_>,
        body: &[u8],
    ) -> Result<Option<Response>, Rejection> {
        let ok = || Response::json(StatusCode::OK, json!({"ok": true}).to_string());
        let compat = self.config.compat;
        Ok(Some(match call {
            Call::List => self.list(ctx, reads_usage(request)?),
            Call::Spawn => {
                let start = Start {
                    request: read_spawn(body, compat)?,
                    exec: None,
                };
                return self.enqueue(ctx, caller, start).map(|()| None);
            }
            Call::Exec => {
                let details = Details::of(request)?;
                let most = self.config.max_exec_output;
                let (request, limit) = read_exec(body, most, compat)?;
                let start = Start {
                    request,
                    exec: Some((limit, details)),
                };
                return self.enqueue(ctx, caller, start).map(|()| None);
            }
            Call::Status(id) => {
                let program = self.programs.get(id).ok_or_else(no_process)?;
                status(program, ctx.now(), Details::of(request)?)
            }
            Call::Stdin(id) => self.write(ctx, id, &read_data(body, compat)?)?,
            Call::Kill(id) => {
                let signal = read_signal(body, compat)?;
                self.running(id)?.signal(signal);
                ok()
            }
            Call::Resize(id) => {
                let size = read_size(body, compat)?;
                let program = self.running(id)?;
                if !program.has_terminal() {
                    return Err(bad_request("process is not PTY-backed"));
                }
                self.programs.resize(ctx, id, size).map_err(|error| {
                    log_failed_resize(caller, size, &error);
                    Rejection::new(StatusCode::INTERNAL, format!("resizing failed: {error}"))
                })?;
                ok()
            }
            Call::Stream(id) => {
                let since = since(request, self.output_end(id))?;
                let kind = (Role::Listener, Dialect::EventStream(Details::of(request)?));
                let begun = ctx.begin_stream(caller, &[EVENTS_ARE_JSON]);
                if begun.is_err() || request.method() == "HEAD" {
                    return Ok(None);
                }
                self.programs.attach(ctx, id, caller, kind, since);
                return Ok(None);
            }
            Call::Attach(_) => return Err(Rejection::not_found()),
            Call::Spec(format) => spec(format, &self.config.endpoint),
        }))
    }

    /// Queues the start of a process for a call.
    fn enqueue(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        start: Start,
    ) -> Result<(), Rejection> {
        if self.stopping {
            return Err(Rejection::unavailable("stopping"));
        }
        // An `exec` whose output is held open counts until it is answered.
        let is_running = |program: &&Program| program.exit().is_none() || !is_shared(program);
        let running = self.programs.iter().filter(is_running).count();
        if running + self.waiting.len() >= self.config.max_processes {
            return Err(Rejection::unavailable("too many processes"));
        }
        if ctx.is_short_of_memory() {
            return Err(too_little_memory());
        }
        if start.exec.is_some() {
            self.exec_calls.check_budget()?;
        }
        self.waiting.insert(caller, start);
        ctx.queue_start(caller);
        Ok(())
    }

    /// Starts a process. Answers the call unless it is an `exec`.
    fn start(&mut self, ctx: &mut Context, caller: ClientId, start: Start) {
        let Start { request, exec } = start;
        let name = request.command[0].clone();
        let has_cwd = request.cwd.is_some();
        let is_compatible = self.config.compat == Compat::KernelImages;
        let launch = Launch {
            id: random_uuid(),
            command: request.command,
            cwd: request.cwd,
            env: request.env,
            account: request.account,
            pass_env: if is_compatible {
                PassEnv::All
            } else {
                PassEnv::Named(self.config.pass_env.clone())
            },
            terminal: request.terminal,
            takes_input: exec.is_none(),
            timeout: request.timeout,
            linger: (!is_compatible || exec.is_none()).then_some(self.config.linger),
        };
        let size = launch.terminal;
        let sink = match exec {
            Some((limit, details)) => self.exec_calls.sink(caller, limit, details),
            None => {
                let output = Attachments::new(self.config.scrollback, Sharing::Shared, size);
                let waits = self.config.wait_for_readers || is_compatible;
                Sink::Shared(output.waiting_for_readers(waits))
            }
        };
        let answer = match self.programs.start(ctx, launch, sink) {
            Ok(id) => {
                self.started += 1;
                self.remove_oldest(ctx);
                if exec.is_some() {
                    self.exec_calls.insert(caller, id);
                    return;
                }
                let program = self.programs.get(id).ok_or_else(no_process);
                program.map(spawned)
            }
            Err(error) => {
                log::warn!("cannot start {name:?}: {error}");
                Err(start_failed(&error, has_cwd))
            }
        };
        let answer = answer.unwrap_or_else(|rejection| Response::from(&rejection));
        ctx.respond(caller, &answer);
    }

    /// Removes the oldest exited process if there are too many.
    fn remove_oldest(&mut self, ctx: &mut Context) {
        if self.programs.len() <= self.config.max_processes * EXITED_PER_RUNNING {
            return;
        }
        let unread = |program: &&Program| program.is_finished() && !program.sink.is_read();
        let oldest = self
            .programs
            .iter()
            .filter(unread)
            .min_by_key(|program| program.exited_at())
            .map(|program| program.id);
        if let Some(id) = oldest {
            self.programs.remove(ctx, id);
        }
    }

    fn list(&mut self, ctx: &mut Context, with_usage: bool) -> Response {
        let now = ctx.now();
        let visible = |program: &&mut Program| is_shared(program);
        let mut programs: Vec<&mut Program> = self.programs.iter_mut().filter(visible).collect();
        programs.sort_by_key(|program| program.started);
        let programs: Vec<Value> = programs
            .into_iter()
            .map(|program| summary(program, now, with_usage))
            .collect();
        if with_usage {
            // Reading the use of one process from the system takes about this time.
            ctx.spend(programs.len() * USAGE);
        }
        Response::json(StatusCode::OK, json!({"processes": programs}).to_string())
    }

    /// A process that has not exited.
    fn running(&self, id: Uuid) -> Result<&Program, Rejection> {
        let program = self.programs.get(id).ok_or_else(no_process)?;
        if program.exit().is_some() {
            let why = "process not running";
            return Err(Rejection::new(StatusCode::NOT_FOUND, why));
        }
        Ok(program)
    }

    fn write(&mut self, ctx: &mut Context, id: Uuid, data: &[u8]) -> Result<Response, Rejection> {
        if self.running(id)?.is_behind() {
            return Err(Rejection::unavailable("process does not read its input"));
        }
        let mut open = false;
        self.programs
            .with(ctx, id, |program, ctx| open = program.push_input(ctx, data));
        if !open {
            return Err(bad_request("process has closed its input"));
        }
        Ok(Response::json(
            StatusCode::OK,
            json!({"written_bytes": data.len()}).to_string(),
        ))
    }

    fn output_end(&self, id: Uuid) -> u64 {
        self.programs.get(id).map_or(0, Program::output_end)
    }

    fn read_attach(&self, id: Uuid, request: &Request<'_>) -> Result<AttachRequest, Rejection> {
        let program = self.programs.get(id).filter(|program| is_shared(program));
        let program = program.ok_or_else(no_process)?;
        if !program.has_terminal() {
            return Err(bad_request("process is not PTY-backed"));
        }
        Ok(AttachRequest {
            id,
            query: AttachQuery::read(request)?,
            dialect: Dialect::of(request)?,
            since: since(request, program.output_end())?,
        })
    }

    fn route_attach(&self, id: Uuid, request: &Request<'_>) -> Result<Route, Rejection> {
        let route = Route::web_socket();
        // The process of a client that comes back may have been removed, and its last output still waits for the client.
        if asks_to_come_back(request) {
            return Ok(route);
        }
        let attach = self.read_attach(id, request)?;
        // A client that is refused leaves no connection that could be resumed.
        let is_refused = asks_for_new_connection(request) && self.is_refused(&attach);
        Ok(route.with_resumption(!is_refused))
    }

    /// Whether a client would be a second writer of its process.
    fn is_refused(&self, attach: &AttachRequest) -> bool {
        let program = self.programs.get(attach.id);
        attach.query.role == Role::Writer
            && !attach.query.takeover
            && program.is_some_and(|program| program.sink.writer().is_some())
    }

    /// Handles the processes that have finished: answers their `exec` calls, and lets the others expire.
    fn follow_up(&mut self, ctx: &mut Context) {
        for id in self.programs.take_finished() {
            if self.is_visible(id) {
                let at = ctx.now() + self.config.retention;
                self.programs.expire(ctx, id, at);
            } else {
                self.exec_calls.finish(id);
            }
        }
        self.exec_calls.answer_finished(ctx, &mut self.programs);
    }
}

/// Whether a list of processes has their use of processor time and memory: `?usage=1`.
fn reads_usage(request: &Request<'_>) -> Result<bool, Rejection> {
    match request.parameters("usage").last().as_deref() {
        None | Some("0" | "false") => Ok(false),
        Some("1" | "true") => Ok(true),
        Some(_) => Err(bad_request("'usage' is not 0 or 1")),
    }
}

/// Whether a process is visible to all clients: it was not started by `exec`.
fn is_shared(program: &Program) -> bool {
    matches!(program.sink, Sink::Shared(_))
}

/// Whether a client asks for a connection that can be resumed, rather than to resume one.
fn asks_for_new_connection(request: &Request<'_>) -> bool {
    let field = request.header("outrigger-resume");
    let parameter = request.parameters("resume").next();
    field.map_or(parameter.as_deref() == Some("new"), |field| {
        field.trim_ascii().starts_with(b"new")
    })
}

/// Whether a client asks to come back after a cut. The server knows the client by its token.
fn asks_to_come_back(request: &Request<'_>) -> bool {
    let is_resume = request.header("outrigger-resume").is_some()
        || request.parameters("resume").next().is_some();
    is_resume && !asks_for_new_connection(request)
}

impl Service for Processes {
    /// Which processes exist is known only to clients with the scope.
    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        let (route, scope) = match self.parse_call(request) {
            Ok(Call::Attach(id)) => {
                let is_viewer = AttachQuery::is_viewer(request);
                let scope = if is_viewer { Scope::Watch } else { Scope::Use };
                (self.route_attach(id, request), scope)
            }
            Ok(call) => {
                let checked = self.check_call(call, request);
                let route = checked.map(|()| Route::call().with_max_body(call.max_body()));
                (route, Scope::All)
            }
            Err(rejection) => (Err(rejection), Scope::All),
        };
        Ok(route.unwrap_or_else(Route::from).with_scope(scope))
    }

    /// Processes that have a terminal can be watched.
    fn share(
        &mut self,
        _: &mut Context,
        _: ClientId,
        target: &LinkTarget,
    ) -> Result<(), Rejection> {
        let below = self.config.endpoint.below(target.path());
        let call = Call::read("GET", below.ok_or_else(Rejection::not_found)?)?;
        let (Call::Attach(id), None) = (call, target.item()) else {
            return Err(Rejection::not_found());
        };
        let program = self.programs.get(id).filter(|program| is_shared(program));
        if program.ok_or_else(no_process)?.has_terminal() {
            return Ok(());
        }
        Err(bad_request("process is not PTY-backed"))
    }

    fn call(&mut self, ctx: &mut Context, caller: ClientId, request: &Request<'_>, body: &[u8]) {
        let answer = self.parse_call(request).and_then(|call| {
            // It may have been removed since the head arrived.
            self.expect_process(call)?;
            if call.has_body() {
                self.config.compat.log_body_type(request);
            }
            self.answer(ctx, caller, call, request, body)
        });
        match answer {
            Ok(None) => {}
            Ok(Some(response)) => ctx.respond(caller, &response),
            Err(rejection) => ctx.respond(caller, &Response::from(&rejection)),
        }
        self.follow_up(ctx);
    }

    fn start_program(&mut self, ctx: &mut Context, client: Option<ClientId>) {
        if let Some(caller) = client
            && let Some(start) = self.waiting.remove(&caller)
        {
            self.start(ctx, caller, start);
            self.follow_up(ctx);
        }
    }

    fn abandoned(&mut self, ctx: &mut Context, caller: ClientId) {
        if let Some(id) = self.exec_calls.abandon(caller) {
            log::info!("the caller of process {id} disconnected: KILL");
            self.programs.remove(ctx, id);
        }
        self.waiting.remove(&caller);
        self.programs.detach(ctx, caller);
        self.follow_up(ctx);
    }

    fn is_waiting(&self, _: &Context, client: ClientId) -> bool {
        self.exec_calls.contains(client)
            || self.waiting.contains_key(&client)
            || (self.stopping && self.programs.delivers_to(client))
    }

    fn accept(&mut self, _: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        if self.stopping {
            return Err(Rejection::unavailable("stopping").because("stopping"));
        }
        let Call::Attach(id) = self.parse_call(request)? else {
            return Err(Rejection::not_found());
        };
        let attach = self.read_attach(id, request)?;
        // A page cannot see the status of a failed handshake. It gets CLOSE instead, from `connected`.
        if self.is_refused(&attach) && request.header("origin").is_none() {
            let why = "process already has an active attach session";
            return Err(Rejection::new(StatusCode::CONFLICT, why));
        }
        let accept = attach.dialect.accept();
        self.accepted = Some(attach);
        Ok(accept)
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, _: &Request<'_>) {
        match self.accepted.take() {
            Some(attach) if self.is_refused(&attach) => {
                let why = "another client is the writer";
                ctx.close(client, CloseCode::CONFLICT, why);
            }
            Some(attach) => {
                let AttachRequest {
                    id,
                    query,
                    dialect,
                    since,
                } = attach;
                if let (Role::Writer, Some(size)) = (query.role, query.size)
                    && let Err(error) = self.programs.resize(ctx, id, size)
                {
                    log_failed_resize(client, size, &error);
                }
                let kind = (query.role, dialect);
                self.programs.attach(ctx, id, client, kind, since);
            }
            None => {}
        }
        self.follow_up(ctx);
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        self.programs.message(ctx, client, message);
        self.follow_up(ctx);
    }

    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        self.programs.drained(ctx, client);
        self.follow_up(ctx);
    }

    fn input_ended(&mut self, ctx: &mut Context, client: ClientId) -> Duration {
        if ctx.is_congested(client) {
            CATCHING_UP
        } else {
            Duration::ZERO
        }
    }

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        self.programs.detach(ctx, client);
        self.follow_up(ctx);
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.programs.clients(visit);
        self.exec_calls.clients(visit);
        self.waiting.keys().copied().for_each(visit);
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, readiness: Readiness) {
        self.programs.ready(ctx, source, readiness);
        self.follow_up(ctx);
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        self.programs.timer(ctx, timer);
        self.follow_up(ctx);
    }

    fn orphans_changed(&mut self, ctx: &mut Context) {
        self.programs.orphans_changed(ctx);
    }

    fn held(&self) -> usize {
        self.programs.held_memory()
    }

    fn status(&self) -> StatusFields {
        let running = self
            .programs
            .iter()
            .filter(|program| program.exit().is_none());
        let status = json!({"processes": {
            "running": running.count(),
            "known": self.programs.len(),
            "started": self.started,
        }});
        StatusFields::from_value(status)
    }

    fn metrics(&self, out: &mut Metrics) {
        let programs = self.programs.iter();
        let running = programs.filter(|program| program.exit().is_none());
        process_metrics(out, running.count(), self.started);
    }

    /// Stops all processes except those of `exec` calls. Attached clients get the rest of the output and the exit.
    fn draining(&mut self, ctx: &mut Context) {
        self.stopping = true;
        for (caller, _) in std::mem::take(&mut self.waiting) {
            let rejection = Rejection::unavailable("stopping");
            ctx.respond(caller, &Response::from(&rejection));
        }
        self.programs.stop_those(ctx, is_shared);
    }

    fn stopping(&mut self, ctx: &mut Context) {
        self.stopping = true;
        self.programs.stop_all(ctx);
    }

    fn is_stopped(&self) -> bool {
        self.programs.are_gone()
    }
}
