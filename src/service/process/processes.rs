//! The process API: spawn, watch, signal and attach to processes over HTTP.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use super::api::{
    Call, Details, RunRequest, bad, check_content_type, executed, no_process, read_data, read_exec,
    read_signal, read_size, read_spawn, size_of, spawned, status, summary,
};
use super::attach::{Attachments, Role};
use super::program::{Launch, Program};
use super::programs::Programs;
use super::sink::{AllGathered, Gathered, Sink};
use crate::service::Endpoint;
use crate::sys::TerminalSize;
use crate::{
    Accept, ClientId, CloseReason, Context, Message, Metrics, Readiness, Rejection, Request,
    Response, Route, Service, SourceId, StatusCode, StatusFields, Time, TimerId,
};

/// Says what the events of a stream are.
const EVENTS_ARE_JSON: (&str, &str) = ("X-SSE-Content-Type", "application/json");

/// How long a program that has expired is still kept for who reads it.
pub(super) const READING_ON: Duration = Duration::from_secs(5);

/// How long a client that has ended its direction and has unread output is kept while it takes nothing.
const CATCHING_UP: Duration = Duration::from_secs(5);

/// Bytes of output after which no more calls are answered with output in one turn of the loop.
const ANSWERED_PER_TURN: usize = 1 << 20;

/// Exited processes that are kept, as many times as there may be running ones.
const EXITED_PER_RUNNING: usize = 4;

/// The settings of the process API.
#[derive(Clone, Debug)]
pub struct ProcessesConfig {
    /// Where it is found.
    pub endpoint: Endpoint,
    /// Bytes of a process's output that are kept.
    pub scrollback: usize,
    /// How long an exited process stays visible.
    pub retention: Duration,
    /// The most processes that run at once.
    pub max_processes: usize,
    /// Bytes of output that are held for all `exec` calls together. A call for whose output there is no room gets 503.
    pub max_exec_output: usize,
    /// How long output is read after a process's end, where one that it has started holds it open.
    pub linger: Duration,
    /// Variables of the server's environment that processes of other users get too.
    pub pass_env: Vec<String>,
}

/// Processes that clients start, and that outlive them.
#[derive(Debug)]
pub struct Processes {
    config: ProcessesConfig,
    programs: Programs,
    /// Calls whose processes are to be started in later turns, in the order in which they came.
    waiting: VecDeque<Start>,
    /// Calls that wait for a process's end.
    callers: HashMap<ClientId, Uuid>,
    /// Processes of these calls that have ended, in the order in which they are answered.
    ended: VecDeque<Uuid>,
    /// The turn in which calls were last answered with output, and with how many bytes of it.
    answered: (Time, usize),
    gathered: AllGathered,
    started: u64,
    stopping: bool,
}

/// A call that starts a process.
#[derive(Debug)]
struct Start {
    caller: ClientId,
    request: RunRequest,
    /// What `exec` takes of each output, and what it answers; `None` for `spawn`.
    exec: Option<(usize, Details)>,
}

/// How a client wants to be attached.
#[derive(Clone, Copy, Debug)]
struct AttachRequest {
    id: Uuid,
    role: Role,
    since: u64,
    takeover: bool,
    /// The terminal's new size, if the client says one.
    size: Option<TerminalSize>,
}

impl Processes {
    /// An API without processes.
    pub fn new(mut config: ProcessesConfig) -> Self {
        config.endpoint = config.endpoint.with_subtree();
        Self {
            programs: Programs::default(),
            waiting: VecDeque::new(),
            callers: HashMap::new(),
            ended: VecDeque::new(),
            answered: (Time::default(), 0),
            gathered: AllGathered::new(config.max_exec_output),
            config,
            started: 0,
            stopping: false,
        }
    }

    fn read_call(&self, request: &Request<'_>) -> Result<Call, Rejection> {
        let below = self
            .config
            .endpoint
            .below(request.path())
            .ok_or_else(Rejection::not_found)?;
        let method = match request.method() {
            "HEAD" => "GET",
            method => method,
        };
        let call = Call::read(method, below)?;
        match call.id() {
            Some(id) if !self.is_visible(id) => Err(no_process()),
            _ => Ok(call),
        }
    }

    /// Whether there is a process of this id that was not started for an answer only.
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
        let ok = || Response::json(StatusCode::OK, &json!({"ok": true}));
        Ok(Some(match call {
            Call::List => self.list(ctx),
            Call::Spawn => {
                let start = Start {
                    caller,
                    request: read_spawn(body)?,
                    exec: None,
                };
                return self.take(ctx, start).map(|()| None);
            }
            Call::Exec => {
                let details = Details::of(request)?;
                let (request, limit) = read_exec(body, ctx.config().limits.max_message)?;
                let start = Start {
                    caller,
                    request,
                    exec: Some((limit, details)),
                };
                return self.take(ctx, start).map(|()| None);
            }
            Call::Status(id) => {
                let program = self.programs.get(id).ok_or_else(no_process)?;
                status(program, ctx.now(), Details::of(request)?)
            }
            Call::Stdin(id) => self.write(ctx, id, &read_data(body)?)?,
            Call::Kill(id) => {
                let signal = read_signal(body)?;
                self.running(id)?.signal(signal);
                ok()
            }
            Call::Resize(id) => {
                let size = read_size(body)?;
                let program = self.running(id)?;
                if !program.has_terminal() {
                    return Err(bad("process is not PTY-backed"));
                }
                program.resize(size).map_err(|error| {
                    Rejection::new(StatusCode::INTERNAL, format!("resizing failed: {error}"))
                })?;
                ok()
            }
            Call::Stream(id) => {
                let since = self.since(id, request)?;
                let role = Role::Listener(Details::of(request)?);
                let _ = ctx.begin_stream_with(caller, &[EVENTS_ARE_JSON]);
                if request.method() == "HEAD" {
                    return Ok(None);
                }
                self.programs.attach(ctx, id, caller, role, since);
                return Ok(None);
            }
            Call::Attach(_) => return Err(Rejection::not_found()),
        }))
    }

    /// Has a process started for a call: now, or in a later turn if enough were started in this one.
    fn take(&mut self, ctx: &mut Context, start: Start) -> Result<(), Rejection> {
        if self.stopping {
            return Err(Rejection::unavailable("stopping"));
        }
        let running = self
            .programs
            .iter()
            .filter(|program| program.exit().is_none())
            .count();
        if running + self.waiting.len() >= self.config.max_processes {
            return Err(Rejection::unavailable("too many processes"));
        }
        if start.exec.is_some() && self.gathered.is_full() {
            return Err(no_room());
        }
        self.waiting.push_back(start);
        self.start_waiting(ctx);
        Ok(())
    }

    /// Starts as many processes as may be started in this turn.
    fn start_waiting(&mut self, ctx: &mut Context) {
        while !self.waiting.is_empty() && self.programs.may_start(ctx) {
            if let Some(start) = self.waiting.pop_front() {
                self.start(ctx, start);
            }
        }
    }

    /// Starts a process, and answers the call unless it waits for the process's end.
    fn start(&mut self, ctx: &mut Context, start: Start) {
        let Start {
            caller,
            request,
            exec,
        } = start;
        let name = request.command[0].clone();
        let launch = Launch {
            id: Uuid::new_v4(),
            command: request.command,
            cwd: request.cwd,
            env: request.env,
            account: request.account,
            pass_env: self.config.pass_env.clone(),
            terminal: request.terminal,
            takes_input: exec.is_none(),
            timeout: request.timeout,
            linger: self.config.linger,
        };
        let sink = match exec {
            Some((limit, details)) => {
                let all = self.gathered.clone();
                Sink::Gathered(Gathered::new(caller, details, limit, all))
            }
            None => Sink::Shared(Attachments::new(self.config.scrollback)),
        };
        let answer = match self.programs.start(ctx, launch, sink) {
            Ok(id) => {
                self.started += 1;
                self.forget_oldest(ctx);
                if exec.is_some() {
                    self.callers.insert(caller, id);
                    return;
                }
                let program = self.programs.get(id).ok_or_else(no_process);
                program.map(spawned)
            }
            Err(error) => {
                log::warn!("cannot start {name:?}: {error}");
                let detail = error.to_string();
                Err(Rejection::new(StatusCode::INTERNAL, "failed to start process").detail(detail))
            }
        };
        let answer = answer.unwrap_or_else(|rejection| Response::from(&rejection));
        ctx.respond(caller, &answer);
    }

    /// Keeps the number of exited processes within bounds.
    fn forget_oldest(&mut self, ctx: &mut Context) {
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

    fn list(&mut self, ctx: &Context) -> Response {
        let now = ctx.now();
        let visible = |program: &&mut Program| is_shared(program);
        let mut programs: Vec<&mut Program> = self.programs.iter_mut().filter(visible).collect();
        programs.sort_by_key(|program| program.started);
        let programs: Vec<Value> = programs
            .into_iter()
            .map(|program| summary(program, now))
            .collect();
        Response::json(StatusCode::OK, &json!({"processes": programs}))
    }

    /// A process that has not ended.
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
        let mut taken = false;
        self.programs.with(ctx, id, |program, ctx| {
            taken = program.push_input(ctx, data)
        });
        if !taken {
            return Err(bad("process has closed its input"));
        }
        Ok(Response::json(
            StatusCode::OK,
            &json!({"written_bytes": data.len()}),
        ))
    }

    /// From which offset a reader wants output: `since`, or what a browser that comes back says.
    fn since(&self, id: Uuid, request: &Request<'_>) -> Result<u64, Rejection> {
        let last = request
            .header("last-event-id")
            .and_then(|value| std::str::from_utf8(value).ok());
        let Some(since) = request.parameters("since").last().or(last) else {
            return Ok(0);
        };
        let end = self.programs.get(id).map_or(0, Program::output_end);
        let since = Some(since)
            .filter(|since| since.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|since| since.parse().ok())
            .ok_or_else(|| bad("'since' is not an offset"))?;
        if since > end {
            return Err(bad("'since' is beyond the output"));
        }
        Ok(since)
    }

    fn read_attach(&self, request: &Request<'_>) -> Result<AttachRequest, Rejection> {
        let Call::Attach(id) = self.read_call(request)? else {
            return Err(Rejection::not_found());
        };
        let program = self.programs.get(id).ok_or_else(no_process)?;
        if !program.has_terminal() {
            return Err(bad("process is not PTY-backed"));
        }
        let role = match request.parameters("mode").last() {
            None | Some("writer") => Role::Writer,
            Some("viewer") => Role::Viewer,
            Some(_) => return Err(bad("'mode' is not writer or viewer")),
        };
        let takeover = match request.parameters("takeover").last() {
            None | Some("0" | "false") => false,
            Some("1" | "true") => true,
            Some(_) => return Err(bad("'takeover' is not 0 or 1")),
        };
        let sized = ["rows", "cols"]
            .iter()
            .any(|name| request.parameters(name).next().is_some());
        Ok(AttachRequest {
            size: sized.then(|| size_of(request)).transpose()?,
            id,
            role,
            since: self.since(id, request)?,
            takeover,
        })
    }

    /// Answers calls whose processes have ended, and has ended processes forgotten in time.
    fn follow_up(&mut self, ctx: &mut Context) {
        for id in self.programs.take_finished() {
            if self.is_visible(id) {
                let at = ctx.now() + self.config.retention;
                self.programs.expire(ctx, id, at);
            } else {
                self.ended.push_back(id);
            }
        }
        self.answer_ended(ctx);
    }

    /// Answers as many calls whose processes have ended as may be answered in this turn.
    fn answer_ended(&mut self, ctx: &mut Context) {
        if self.answered.0 != ctx.now() {
            self.answered = (ctx.now(), 0);
        }
        while !self.ended.is_empty() {
            if self.answered.1 >= ANSWERED_PER_TURN {
                return self.programs.wake(ctx);
            }
            // It is gone already if its caller is.
            let program = self.ended.pop_front();
            let program = program.and_then(|id| self.programs.remove(ctx, id));
            let Some(program) = program else { continue };
            if let Sink::Gathered(output) = &program.sink
                && self.callers.remove(&output.caller).is_some()
            {
                self.answered.1 += output.stdout.len() + output.stderr.len();
                let answer = if output.had_no_room() {
                    Response::from(&no_room())
                } else {
                    executed(&program, output, ctx.now())
                };
                ctx.respond(output.caller, &answer);
            }
        }
    }
}

/// Whether a process can be watched: it was not started by `exec`.
fn is_shared(program: &Program) -> bool {
    matches!(program.sink, Sink::Shared(_))
}

fn no_room() -> Rejection {
    Rejection::unavailable("too much output is held for all exec calls together")
}

impl Service for Processes {
    fn route(&mut self, request: &Request<'_>) -> Result<Route, Rejection> {
        match self.read_call(request)? {
            Call::Attach(_) => {
                self.read_attach(request)?;
                Ok(Route::WebSocket)
            }
            call => {
                if call.has_body() {
                    check_content_type(request)?;
                }
                Ok(Route::Http)
            }
        }
    }

    fn max_body(&self, request: &Request<'_>) -> usize {
        self.read_call(request).map_or(usize::MAX, Call::max_body)
    }

    fn call(&mut self, ctx: &mut Context, caller: ClientId, request: &Request<'_>, body: &[u8]) {
        let answer = self
            .read_call(request)
            .and_then(|call| self.answer(ctx, caller, call, request, body));
        match answer {
            Ok(None) => {}
            Ok(Some(response)) => ctx.respond(caller, &response),
            Err(rejection) => ctx.respond(caller, &Response::from(&rejection)),
        }
        self.follow_up(ctx);
    }

    fn abandoned(&mut self, ctx: &mut Context, caller: ClientId) {
        if let Some(id) = self.callers.remove(&caller) {
            log::info!("the caller of process {id} is gone: KILL");
            self.programs.remove(ctx, id);
        }
        self.waiting.retain(|start| start.caller != caller);
        self.programs.detach(ctx, caller);
        self.follow_up(ctx);
    }

    fn is_waiting(&self, _: &Context, client: ClientId) -> bool {
        self.callers.contains_key(&client)
            || self.waiting.iter().any(|start| start.caller == client)
            || (self.stopping && self.programs.delivers_to(client))
    }

    fn accept(&mut self, _: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        if self.stopping {
            return Err(Rejection::unavailable("stopping").because("stopping"));
        }
        let attach = self.read_attach(request)?;
        let writer = self
            .programs
            .get_mut(attach.id)
            .and_then(|program| program.sink.attachments()?.writer());
        if attach.role == Role::Writer && !attach.takeover && writer.is_some() {
            let why = "process already has an active attach session";
            return Err(Rejection::new(StatusCode::CONFLICT, why));
        }
        Ok(Accept::default())
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, request: &Request<'_>) {
        if let Ok(AttachRequest {
            id,
            role,
            since,
            size,
            ..
        }) = self.read_attach(request)
        {
            if let (Role::Writer, Some(size), Some(program)) = (role, size, self.programs.get(id))
                && let Err(error) = program.resize(size)
            {
                log::debug!("resizing the terminal of {client} failed: {error}");
            }
            self.programs.attach(ctx, id, client, role, since);
        }
        self.follow_up(ctx);
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        self.programs.message(ctx, client, message, false);
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

    fn ready(&mut self, ctx: &mut Context, source: SourceId, readiness: Readiness) {
        self.programs.ready(ctx, source, readiness);
        self.follow_up(ctx);
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        self.programs.timer(ctx, timer);
        self.start_waiting(ctx);
        self.follow_up(ctx);
    }

    fn orphans_changed(&mut self, ctx: &mut Context) {
        self.programs.look_around(ctx);
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
        out.gauge(
            "outrigger_processes_running",
            "Programs that run, those that are being ended included.",
            self.programs
                .iter()
                .filter(|program| program.exit().is_none())
                .count(),
        );
        out.counter(
            "outrigger_processes_started_total",
            "Programs that were started.",
            self.started,
        );
    }

    /// Ends all processes except those whose callers wait for their exit. Attached clients get the output until the
    /// end.
    fn draining(&mut self, ctx: &mut Context) {
        self.stopping = true;
        for start in std::mem::take(&mut self.waiting) {
            let rejection = Rejection::unavailable("stopping");
            ctx.respond(start.caller, &Response::from(&rejection));
        }
        self.programs.end_those(ctx, is_shared);
    }

    fn stopping(&mut self, ctx: &mut Context) {
        self.stopping = true;
        self.programs.end_all(ctx);
    }

    fn is_stopped(&self) -> bool {
        self.programs.are_gone()
    }
}
