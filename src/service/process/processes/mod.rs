//! The process API: starts, watches, signals and attaches to processes over HTTP.

mod answers;
mod attaching;
mod naming;
mod settings;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use self::attaching::Accepted;
pub use self::settings::{ProcessesConfig, SessionCommand};
use super::attach::{Attachments, Sharing};
use super::bodies::RunRequest;
use super::calls::{Action, Call, ProcessRef, no_process};
use super::compat::Compat;
use super::dialect::Dialect;
use super::event_stream::Details;
use super::exec::ExecCalls;
use super::fields::bad_request;
use super::names::{NameKey, Names, Waiter};
use super::program::{Launch, PassEnv, Program};
use super::programs::Programs;
use super::queries::AttachQuery;
use super::recording::{Downloads, Recorder};
use super::responses::{spawned, start_failed};
use super::screen::{Follower, ScreenSettings};
use super::sink::{ContextOutput, Sink};
use super::waits::Waits;
use crate::record::{Loader, Read, RecordError, Saver, Set, object};
use crate::server::too_little_memory;
use crate::service::child::{process_metrics, start_hint};
use crate::service::id_map::IdMap;
use crate::service::sharing::Sharing as PrincipalSharing;
use crate::sys::{TerminalSize, random_uuid};
use crate::upgrade::Portable;
use crate::{
    Accept, ClientId, CloseReason, Context, LinkTarget, Message, Metrics, Principal, Readiness,
    Rejection, Report, Request, Response, Route, Scope, Service, SourceId, StatusCode,
    StatusFields, TimerId,
};

/// How long a client that has half-closed its connection is kept while it has unread output and takes nothing.
const CATCHING_UP: Duration = Duration::from_secs(5);

/// The memory that a process takes at least, in bytes, besides its screen.
const FIRST_OUTPUT: usize = 4096;

/// The maximum number of processes that are kept, as a multiple of the maximum number of running ones.
const EXITED_PER_RUNNING: usize = 4;

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
    /// The processes that are not started yet, by the client that has asked for each.
    waiting: IdMap<ClientId, Start>,
    /// The processes of which it is not known yet whether their programs could be executed.
    starting: IdMap<Uuid, Starting>,
    exec_calls: ExecCalls,
    names: Names,
    /// The principals that start processes.
    sharing: PrincipalSharing,
    waits: Waits,
    /// Records terminals.
    recorder: Option<Recorder>,
    downloads: Downloads,
    /// The request of the handshake that was accepted last. `connected` follows at once.
    accepted: Option<Accepted>,
    started: u64,
    stopping: bool,
}

/// A call that starts a process.
#[derive(Debug)]
struct Start {
    request: RunRequest,
    purpose: Purpose,
}

/// A process that was started and whose call is not answered.
#[derive(Debug)]
struct Starting {
    caller: ClientId,
    cwd: Option<String>,
    purpose: Purpose,
}

/// What a process is started for.
#[derive(Debug)]
enum Purpose {
    Spawn,
    /// The limit of each output stream, and the fields of the answer.
    Exec(usize, Details),
    /// The process of a name, for which other clients may wait, too.
    Name(NameKey),
}

impl Processes {
    /// Creates the service, without processes.
    pub fn new(mut config: ProcessesConfig) -> Self {
        config.endpoint = config.endpoint.with_subtree();
        if cfg!(not(feature = "screen")) {
            config.screens = None;
        }
        Self {
            programs: Programs::default(),
            waiting: IdMap::default(),
            starting: IdMap::default(),
            exec_calls: ExecCalls::new(config.max_exec_output, config.compat),
            names: Names::default(),
            sharing: PrincipalSharing::default(),
            waits: Waits::default(),
            recorder: config.record.clone().map(Recorder::new),
            downloads: Downloads::default(),
            accepted: None,
            config,
            started: 0,
            stopping: false,
        }
    }

    /// The call that a request makes. Its process may not exist.
    fn parse_call<'r>(&self, request: &'r Request<'_>) -> Result<Call<'r>, Rejection> {
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

    /// Checks that the process of a call exists, and that its body will be JSON. Names are looked up later, when the caller is
    /// known.
    fn check_call(&self, call: Call<'_>, request: &Request<'_>) -> Result<(), Rejection> {
        if let Some(ProcessRef::Id(id)) = call.process()
            && !self.is_visible(id)
        {
            return Err(no_process());
        }
        if call.has_body() {
            self.config.compat.expect_json_body(request)?;
        }
        Ok(())
    }

    /// The process that a client refers to.
    fn find(
        &self,
        ctx: &Context,
        client: ClientId,
        which: ProcessRef<'_>,
    ) -> Result<Uuid, Rejection> {
        let id = match which {
            ProcessRef::Id(id) => Some(id),
            ProcessRef::Name(name) => self.names.process(&self.key(ctx, client, name)),
        };
        id.filter(|id| self.is_visible(*id)).ok_or_else(no_process)
    }

    /// Whether a process with this id exists that was not started by `exec`.
    fn is_visible(&self, id: Uuid) -> bool {
        self.programs.get(id).is_some_and(is_shared)
    }

    /// Decides whether the terminal of a request is recorded.
    fn decide_recording(&self, mut request: RunRequest) -> Result<RunRequest, Rejection> {
        match &self.recorder {
            None if request.record => {
                Err(bad_request("\"record\": the server keeps no recordings"))
            }
            None => Ok(request),
            Some(recorder) => {
                request.record |= recorder.records_all() && request.terminal.is_some();
                Ok(request)
            }
        }
    }

    /// Rejects the start of another process for a client if there are too many, or if there is too little memory for it.
    fn check_room(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        size: Option<TerminalSize>,
    ) -> Result<(), Rejection> {
        if self.stopping {
            return Err(Rejection::unavailable("stopping"));
        }
        let owner = ctx.principal(client);
        self.sharing.note(&owner, ctx.is_sole_principal(client));
        // An `exec` whose output is held open counts until it is answered.
        let running = self.programs.iter();
        let running = running.filter(|program| program.exit().is_none() || !is_shared(program));
        let (mut all, mut own) = (self.waiting.len(), 0);
        for program in running {
            all += 1;
            own += usize::from(program.owner == owner);
        }
        if all >= self.config.max_processes {
            return Err(Rejection::unavailable("too many processes"));
        }
        let waiting = self.waiting.keys();
        let share = self.sharing.share_of(self.config.max_processes);
        // While all processes together are fewer, those that wait need not be counted.
        if all >= share {
            own += waiting
                .filter(|other| ctx.principal(**other) == owner)
                .count();
            if own >= share {
                let why = "too many processes of this principal";
                return Err(Rejection::unavailable(why));
            }
        }
        self.check_memory(ctx, &owner, size)
    }

    /// Rejects the start of a process if there is too little memory for its screen and its first output.
    fn check_memory(
        &self,
        ctx: &mut Context,
        owner: &Principal,
        size: Option<TerminalSize>,
    ) -> Result<(), Rejection> {
        let screen = size.filter(|_| self.config.screens.is_some());
        let bytes = FIRST_OUTPUT + screen.map_or(0, Follower::held_at);
        if ctx.may_hold(owner, bytes) {
            Ok(())
        } else {
            Err(too_little_memory())
        }
    }

    /// Queues the start of a process for a client.
    fn enqueue(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        start: Start,
    ) -> Result<(), Rejection> {
        self.check_room(ctx, client, start.request.terminal)?;
        if matches!(start.purpose, Purpose::Exec(..)) {
            self.exec_calls.check_budget()?;
        }
        self.waiting.insert(client, start);
        ctx.queue_start(client);
        Ok(())
    }

    /// Starts a process. The call is answered when it is known whether the program could be executed.
    fn start(&mut self, ctx: &mut Context, caller: ClientId, start: Start) {
        let Start { request, purpose } = start;
        let owner = ctx.principal(caller);
        let name = request.command[0].clone();
        let cwd = request.cwd.clone();
        let is_exec = matches!(purpose, Purpose::Exec(..));
        let is_compatible = self.config.compat == Compat::KernelImages;
        let launch = Launch {
            id: random_uuid(),
            owner,
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
            takes_input: !is_exec || request.stdin.is_some(),
            stdin: request.stdin,
            timeout: request.timeout,
            linger: (!is_compatible || !is_exec).then_some(self.config.linger),
            recorder: self.recorder.clone().filter(|_| request.record),
        };
        let size = launch.terminal;
        let sink = match purpose {
            Purpose::Exec(limit, details) => self.exec_calls.sink(caller, limit, details),
            Purpose::Spawn | Purpose::Name(_) => {
                let output = Attachments::new(self.config.scrollback, Sharing::Shared, size);
                let waits = self.config.wait_for_readers || is_compatible;
                let settings = self.config.screens;
                let settings = settings.and_then(ScreenSettings::new);
                Sink::Shared(output.waiting_for_readers(waits).with_screen(settings))
            }
        };
        let starting = Starting {
            caller,
            cwd,
            purpose,
        };
        // Others may have started since the call was accepted.
        if let Err(rejection) = self.check_memory(ctx, &launch.owner, size) {
            return self.settle_start(ctx, starting, Err(rejection));
        }
        match self.programs.start(ctx, launch, sink) {
            Ok(id) => {
                match &starting.purpose {
                    Purpose::Exec(..) => self.exec_calls.insert(caller, id),
                    Purpose::Name(key) => self.names.handle_begun(key),
                    Purpose::Spawn => {}
                }
                self.starting.insert(id, starting);
            }
            Err(error) => {
                let rejection = cannot_start(&error, &name, starting.cwd.as_deref());
                self.settle_start(ctx, starting, Err(rejection));
            }
        }
    }

    /// Handles the processes of which it has become known whether their programs could be executed.
    fn settle_starts(&mut self, ctx: &mut Context) {
        for id in self.programs.take_settled() {
            let Some(starting) = self.starting.remove(&id) else {
                continue;
            };
            let program = self.programs.get(id);
            let error = program.and_then(|program| {
                let name = program.command.first().cloned();
                program.start_error().zip(name)
            });
            if error.is_some() {
                self.programs.remove(ctx, id);
                self.exec_calls.abandon(starting.caller);
            }
            let result = error.map_or(Ok(id), |(error, name)| {
                Err(cannot_start(&error, &name, starting.cwd.as_deref()))
            });
            self.settle_start(ctx, starting, result);
        }
    }

    /// Answers the call that has started a process, unless it is an `exec` whose process runs.
    fn settle_start(
        &mut self,
        ctx: &mut Context,
        starting: Starting,
        result: Result<Uuid, Rejection>,
    ) {
        let Starting {
            caller, purpose, ..
        } = starting;
        if result.is_ok() {
            self.started += 1;
            self.remove_oldest(ctx);
        }
        match (purpose, result) {
            (Purpose::Exec(..), Ok(_)) => {}
            (Purpose::Name(key), result) => self.settle(ctx, &key, result),
            (Purpose::Spawn | Purpose::Exec(..), result) => {
                let program = result.and_then(|id| self.programs.get(id).ok_or_else(no_process));
                respond(ctx, caller, program.map(spawned));
            }
        }
    }

    /// Removes the oldest exited process of whoever keeps most if there are too many.
    fn remove_oldest(&mut self, ctx: &mut Context) {
        if self.programs.len() <= self.config.max_processes * EXITED_PER_RUNNING {
            return;
        }
        let unread = |program: &&Program| program.is_finished() && !program.sink.is_read();
        let mut kept: HashMap<&Principal, usize> = HashMap::new();
        for program in self.programs.iter().filter(unread) {
            *kept.entry(&program.owner).or_default() += 1;
        }
        let oldest = self
            .programs
            .iter()
            .filter(unread)
            .min_by_key(|program| (Reverse(kept[&program.owner]), program.exited_at()))
            .map(|program| program.id);
        if let Some(id) = oldest {
            self.programs.remove(ctx, id);
        }
    }

    /// Whether a caller waits for a process that has no name to start.
    fn spawns(&self, caller: ClientId) -> bool {
        let mut starting = self.starting.values();
        starting.any(|one| one.caller == caller && matches!(one.purpose, Purpose::Spawn))
    }

    /// Refuses the starts that are queued.
    fn refuse_starts(&mut self, ctx: &mut Context, rejection: &Rejection) {
        for (caller, start) in std::mem::take(&mut self.waiting) {
            let rejection = rejection.clone();
            match start.purpose {
                Purpose::Name(key) => self.settle(ctx, &key, Err(rejection)),
                Purpose::Spawn | Purpose::Exec(..) => respond(ctx, caller, Err(rejection)),
            }
        }
    }

    /// Handles the processes that have started and finished: answers their `exec` calls, and lets the others expire.
    fn follow_up(&mut self, ctx: &mut Context) {
        self.settle_starts(ctx);
        for id in self.programs.take_finished() {
            if self.is_visible(id) {
                let at = ctx.now() + self.config.retention;
                self.programs.expire(ctx, id, at);
            } else {
                self.exec_calls.finish(id);
            }
        }
        self.exec_calls.answer_finished(ctx, &mut self.programs);
        // Those that were stopped expire as the others do.
        self.programs.take_gone();
        let programs = &self.programs;
        self.names
            .prune(programs.len(), |id| programs.get(id).is_some());
    }
}

/// Answers a call.
/// Why a process was not started.
fn cannot_start(error: &io::Error, name: &str, cwd: Option<&str>) -> Rejection {
    let hint = start_hint(error, name, cwd);
    log::warn!("cannot start {name:?}: {error}{hint}");
    start_failed(error, name, cwd.is_some(), &hint)
}

fn respond(ctx: &mut Context, caller: ClientId, answer: Result<Response, Rejection>) {
    let answer = answer.unwrap_or_else(|rejection| Response::from(&rejection));
    ctx.respond(caller, &answer);
}

/// Whether a process is visible to all clients: it was not started by `exec`.
fn is_shared(program: &Program) -> bool {
    matches!(program.sink, Sink::Shared(_))
}

impl Service for Processes {
    /// Only clients with the required scope learn which processes exist.
    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        let (route, scope) = match self.parse_call(request) {
            Ok(Call::Process(which, Action::Attach)) => {
                let is_viewer = AttachQuery::is_viewer(request);
                let scope = if is_viewer { Scope::Watch } else { Scope::Use };
                (self.route_attach(which, request), scope)
            }
            _ if request.wants_websocket() => {
                let base = self.config.endpoint.path().trim_end_matches('/');
                let why = format!("attach to a process at {base}/ID/attach or {base}/by-name/NAME");
                (Err(Rejection::new(StatusCode::NOT_FOUND, why)), Scope::Use)
            }
            Ok(call) => {
                let checked = self.check_call(call, request);
                let mut route = checked.map(|()| Route::call().with_max_body(call.max_body()));
                if matches!(call, Call::Spec(_)) && self.config.compat == Compat::KernelImages {
                    // Clients of kernel-images read it before they have a token. It says nothing about this server.
                    route = route.map(Route::public);
                }
                let scope = match call {
                    Call::Process(_, action) => action.scope(),
                    _ => Scope::All,
                };
                (route, scope)
            }
            Err(rejection) => (Err(rejection), Scope::All),
        };
        Ok(route.unwrap_or_else(Route::from).with_scope(scope))
    }

    /// Processes that have a terminal can be watched.
    fn share(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        target: &LinkTarget,
    ) -> Result<(), Rejection> {
        if target.may_answer() {
            return Err(bad_request(
                "a process asks nothing that a link could answer",
            ));
        }
        let below = self.config.endpoint.below(target.path());
        let call = Call::read("GET", below.ok_or_else(Rejection::not_found)?)?;
        let (Call::Process(which, Action::Attach), None) = (call, target.item()) else {
            return Err(Rejection::not_found());
        };
        let program = self.programs.get(self.find(ctx, caller, which)?);
        if program.ok_or_else(no_process)?.has_terminal() {
            return Ok(());
        }
        Err(bad_request("process is not PTY-backed"))
    }

    fn call(&mut self, ctx: &mut Context, caller: ClientId, request: &Request<'_>, body: &[u8]) {
        let answer = self.parse_call(request).and_then(|call| {
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
        self.stop_waiting(ctx, caller);
        self.waits.remove(caller);
        self.downloads.remove(caller);
        self.programs.detach(ctx, caller);
        self.follow_up(ctx);
    }

    fn is_waiting(&self, _: &Context, client: ClientId) -> bool {
        self.exec_calls.contains(client)
            || self.waiting.contains_key(&client)
            || self.spawns(client)
            || self.names.waits(client)
            || self.waits.contains(client)
            || self.downloads.contains(client)
            || (self.stopping && self.programs.delivers_to(client))
    }

    fn accept(&mut self, ctx: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        if self.stopping {
            return Err(Rejection::unavailable("stopping").because("stopping"));
        }
        let (Call::Process(which, Action::Attach), Some(client)) =
            (self.parse_call(request)?, ctx.handshaking())
        else {
            return Err(Rejection::not_found());
        };
        let is_page = request.header("origin").is_some();
        let dialect = Dialect::of(request)?;
        let accepted = match self.accept_attach(ctx, client, which, request) {
            // A page asks over HTTP why it was rejected. For a name, only the handshake knows: the answer depends on the caller.
            Err(rejection) if is_page && matches!(which, ProcessRef::Name(_)) => {
                Accepted::Refused(dialect, rejection)
            }
            accepted => accepted?,
        };
        if let Accepted::Process(id, attach) = &accepted
            && self.is_refused(*id, attach)
            && !is_page
        {
            let why = "process already has an active attach session";
            return Err(Rejection::new(StatusCode::CONFLICT, why));
        }
        self.accepted = Some(accepted);
        Ok(dialect.accept())
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, _: &Request<'_>) {
        match self.accepted.take() {
            Some(Accepted::Process(id, attach)) => self.attach(ctx, id, client, attach),
            Some(Accepted::Starting(key, attach)) => {
                ctx.set_held(client, true);
                self.names.join(&key, Waiter::Attached(client, attach));
            }
            Some(Accepted::Session(key, request, attach)) => {
                self.attach_to_session(ctx, client, &key, request, attach);
            }
            Some(Accepted::Refused(dialect, rejection)) => {
                let why = rejection.message.into_owned();
                ContextOutput(ctx).fail(client, dialect, why);
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
        self.downloads.send(ctx, client);
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
        self.stop_waiting(ctx, client);
        self.programs.detach(ctx, client);
        self.follow_up(ctx);
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.programs.clients(visit);
        self.exec_calls.clients(visit);
        self.names.clients(visit);
        self.waits.clients(visit);
        self.downloads.clients(visit);
        let spawning = self.starting.values();
        let spawning = spawning.filter(|one| matches!(one.purpose, Purpose::Spawn));
        spawning.for_each(|one| visit(one.caller));
        let waiting = self.waiting.keys().copied();
        waiting
            .filter(|client| !self.names.waits(*client))
            .for_each(visit);
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, readiness: Readiness) {
        self.programs.ready(ctx, source, readiness);
        self.follow_up(ctx);
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        if !self.waits.handle_timer(ctx, timer, &mut self.programs)
            && !self.downloads.handle_timer(ctx, timer)
        {
            self.programs.timer(ctx, timer);
        }
        self.follow_up(ctx);
    }

    fn orphans_changed(&mut self, ctx: &mut Context) {
        self.programs.orphans_changed(ctx);
    }

    /// Stops all processes except those of `exec` calls. Attached clients get the rest of the output and the exit.
    fn draining(&mut self, ctx: &mut Context) {
        self.stopping = true;
        self.refuse_starts(ctx, &Rejection::unavailable("stopping"));
        self.waits.end(ctx, &mut self.programs);
        self.programs.stop_those(ctx, is_shared);
    }

    fn stopping(&mut self, ctx: &mut Context) {
        self.stopping = true;
        self.programs.stop_all(ctx);
    }

    fn is_stopped(&self) -> bool {
        self.programs.are_gone()
    }

    fn free_memory(&mut self, ctx: &mut Context, principal: &Principal, bytes: usize) -> usize {
        self.programs.free(ctx, principal, bytes)
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

impl Report for Processes {
    fn held(&self, visit: &mut dyn FnMut(&Principal, usize)) {
        self.programs.held(visit);
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
        if let Some(recorder) = &self.recorder {
            recorder.metrics(out);
        }
    }
}

impl Portable for Processes {
    fn make_portable(&mut self, ctx: &mut Context) {
        self.refuse_starts(
            ctx,
            &Rejection::unavailable("the server is upgraded; try again"),
        );
        // Clients that wait for a process to start get it now. If its program cannot be executed, it exits.
        for (id, starting) in std::mem::take(&mut self.starting) {
            self.settle_start(ctx, starting, Ok(id));
        }
        self.programs.make_portable(ctx);
    }

    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.open(b'{');
        to.field("names", &self.names);
        to.field("sharing", &self.sharing);
        to.field("started", &self.started);
        to.member("programs", |to| self.programs.save(to));
        to.close(b'}');
    }

    fn restore(&mut self, ctx: &mut Context, from: &mut Loader) -> Result<(), RecordError> {
        let (programs, recorder) = (&mut self.programs, self.recorder.as_ref());
        let mut programs = Read(|from: &mut Loader| programs.restore(ctx, recorder, from));
        object!(from {
            names: Set(&mut self.names),
            sharing: Set(&mut self.sharing),
            started: Set(&mut self.started),
            programs,
        })?;
        self.follow_up(ctx);
        Ok(())
    }
}
