//! A program for each client.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::time::Duration;

use serde_json::json;

use super::environment::{Environment, check_size};
use super::{PipeConfig, ending, line_too_long, to_message};
use crate::record::{RecordError, record, state};
use crate::service::child::{
    Child, ChildEvent, ChildIndex, ChildInput, HIGH_WATER, LOW_WATER, TurnOutput, process_metrics,
};
use crate::service::endpoint;
use crate::service::framing::{Decoder, Framing};
use crate::service::id_map::IdMap;
use crate::service::lines::Line;
use crate::upgrade::Portable;
use crate::{
    Accept, ClientId, CloseCode, CloseReason, Context, Message, Metrics, Principal, Readiness,
    Rejection, Report, Request, Route, Service, ServiceId, SourceId, StatusFields, TimerId,
};

/// How long a client that has half-closed its connection is kept while it takes no output. Its program has exited by
/// then.
const LAST_OUTPUT: Duration = Duration::from_secs(10);

/// The maximum number of programs that the status lists.
const MAX_LISTED: usize = 200;

/// A client whose program is not started yet.
#[derive(Debug)]
struct Waiting {
    environment: Environment,
    /// Whether the client has half-closed its connection.
    has_ended: bool,
}

record!(Waiting {
    environment,
    has_ended,
});

/// The program of one client.
#[derive(Debug)]
struct Program {
    child: Child,
    /// The principal of the client.
    owner: Principal,
    /// Whether the client is gone, and the program is being stopped.
    is_orphan: bool,
    /// Whether the program's output is ignored, because it is invalid.
    is_ignored: bool,
}

record!(Program {
    child,
    owner,
    is_orphan,
    is_ignored,
});

/// Passes a message of a program on to its client. Returns why the output is invalid, if it is.
fn pass_on(
    ctx: &mut Context,
    client: ClientId,
    framing: Framing,
    line: Line<'_>,
) -> Option<String> {
    match line {
        Line::Whole(bytes) => ctx.send(client, to_message(framing, bytes)),
        Line::TooLong(_) => return Some(line_too_long(ctx)),
        Line::Broken(error) => return Some(error.to_string()),
        Line::Skipped(_) | Line::SkippedEnd => {}
    }
    None
}

/// A program for each client. It starts when the client connects and is stopped when the client disconnects.
///
/// ```
/// use outrigger::service::{PipeConfig, PipePerClient};
/// use outrigger::{Config, Server};
///
/// let programs = PipePerClient::new(PipeConfig::new("/...".parse()?, ["wc", "-w"]));
/// let config = Config::new("127.0.0.1:0".parse()?);
/// let server = Server::bind(config, programs)?;
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PipePerClient {
    config: PipeConfig,
    /// Clients whose programs are not started yet. Their messages are held.
    starting: IdMap<ClientId, Waiting>,
    /// The programs, by their client, which may be gone. Such a program keeps its place until it has exited.
    programs: IdMap<ClientId, Program>,
    index: ChildIndex<ClientId>,
    started: u64,
    /// Whether the server stops: all programs were told to stop, and no more are started.
    is_stopping: bool,
}

state!(PipePerClient {
    keep config,
    starting,
    programs,
    // It is made anew.
    keep index,
    started,
    // A server that stops is not saved.
    keep is_stopping,
});

impl PipePerClient {
    /// Creates the service. Programs start when clients connect.
    pub fn new(config: PipeConfig) -> Self {
        Self {
            config,
            starting: IdMap::default(),
            programs: IdMap::default(),
            index: ChildIndex::default(),
            started: 0,
            is_stopping: false,
        }
    }

    /// Checks that the programs that run have the framing of the settings.
    fn check_state(&self) -> Result<(), RecordError> {
        let mut programs = self.programs.values();
        programs.try_for_each(|program| program.child.check_framing(self.config.framing))
    }

    /// Continues after the program of the server has replaced itself.
    fn watch_again(&mut self, ctx: &mut Context) -> Result<(), RecordError> {
        for client in self.starting.keys() {
            ctx.queue_start(*client);
        }
        for (client, Program { child, .. }) in &mut self.programs {
            child.watch_again(ctx)?;
            self.index.add(*client, child.sources(), child.timer());
        }
        Ok(())
    }

    /// The program of a client that is connected.
    fn program(&self, client: ClientId) -> Option<&Program> {
        let program = self.programs.get(&client);
        program.filter(|program| !program.is_orphan)
    }

    /// Lets a client's program handle an event. Its output goes to the client. It waits while the client is congested, and
    /// when the program has had its share of the turn.
    fn handle(&mut self, ctx: &mut Context, input: ChildInput) {
        let Some(client) = self.index.find(input) else {
            return;
        };
        let Some(program) = self.programs.get_mut(&client) else {
            return;
        };
        let (child, is_ignored) = (&mut program.child, &mut program.is_ignored);
        let (framing, is_orphan) = (self.config.framing, program.is_orphan);
        let mut turn = TurnOutput::default();
        // As for all children, so that the code for their output exists once.
        let output: &mut dyn FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()> =
            &mut |ctx, _, line| {
                if !is_orphan
                    && !*is_ignored
                    && let Some(failure) = pass_on(ctx, client, framing, line)
                {
                    log::warn!("invalid output of the program of {client}: {failure}");
                    *is_ignored = true;
                    ctx.close(client, CloseCode::PROGRAM_FAILED, failure);
                }
                if turn.is_over(ctx) || (!is_orphan && ctx.is_congested(client)) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
        let event = match input {
            ChildInput::Ready(source) => child.handle_ready(ctx, source, output),
            ChildInput::Timer(timer) => child.handle_timer(ctx, timer, output),
        };
        if let ChildEvent::Exited(exit) = event {
            self.programs.remove(&client);
            self.index.remove(client);
            if exit.start_error().is_none() {
                log::debug!("the program of {client} {}", exit.describe());
            }
            // A stopping server closes the client itself.
            if !self.is_stopping {
                let (code, mut reason) = ending(&exit, CloseCode::PROGRAM_FAILED);
                // Nobody else has used the program.
                if let Some(line) = exit.last_line().filter(|_| !exit.is_clean()) {
                    reason = format!("{reason}: {line}");
                }
                ctx.close(client, code, reason);
            }
            return;
        }
        if child.unread() <= LOW_WATER {
            ctx.set_held(client, false);
        }
        if is_orphan || !ctx.is_congested(client) {
            child.resume(ctx);
        }
        // A program that has closed its output cannot send anything more.
        if *is_ignored || child.is_mute() {
            child.stop(ctx);
        }
        self.index.set_timer(client, child.timer());
    }

    /// Stops a client's program.
    fn stop(&mut self, ctx: &mut Context, client: ClientId) {
        if let Some(Program { child, .. }) = self.programs.get_mut(&client) {
            child.stop(ctx);
            self.index.set_timer(client, child.timer());
        }
    }
}

impl Service for PipePerClient {
    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        self.config.endpoint.route(request)
    }

    fn accept(&mut self, ctx: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        if self.is_stopping {
            return Err(Rejection::unavailable("stopping").because("stopping"));
        }
        // A program may outlive its client by the few seconds that it gets to exit.
        if self.starting.len() + self.programs.len() >= ctx.config().max_clients {
            return Err(Rejection::unavailable("too many processes"));
        }
        check_size(request)?;
        Ok(endpoint::accept(request, &self.config.subprotocols))
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, request: &Request<'_>) {
        let environment = Environment::new(ctx, client, &self.config.endpoint, request);
        let waiting = Waiting {
            environment,
            has_ended: false,
        };
        self.starting.insert(client, waiting);
        ctx.set_held(client, true);
        ctx.queue_start(client);
    }

    fn start_program(&mut self, ctx: &mut Context, client: Option<ClientId>) {
        let Some(client) = client.filter(|_| !self.is_stopping) else {
            return;
        };
        let Some(waiting) = self.starting.remove(&client) else {
            return;
        };
        ctx.set_held(client, false);
        let decoder = Decoder::new(self.config.framing, ctx.config().limits.max_message);
        let child = Child::spawn_with(ctx, &self.config.command, decoder, |command| {
            waiting.environment.apply(command);
        });
        match child {
            Ok(child) => {
                self.started += 1;
                self.index.add(client, child.sources(), child.timer());
                let program = Program {
                    child,
                    owner: ctx.principal(client),
                    is_orphan: false,
                    is_ignored: false,
                };
                self.programs.insert(client, program);
                if waiting.has_ended {
                    self.stop(ctx, client);
                }
            }
            Err(error) => {
                log::error!("{error}");
                ctx.close(client, CloseCode::PROGRAM_FAILED, error.to_string());
            }
        }
    }

    /// A program that has closed its input gets no more messages. The client is held while the program has too much unread
    /// input.
    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let framing = self.config.framing;
        let program = self.programs.get_mut(&client);
        if let Some(stdin) = program.and_then(|program| program.child.stdin()) {
            stdin.append(ctx, |input| framing.encode(message.as_bytes(), input));
            if stdin.queued() > HIGH_WATER {
                ctx.set_held(client, true);
            }
        }
    }

    /// There will be no more input, so the program is stopped, beginning with the end of its input. The client still gets
    /// its last output.
    fn input_ended(&mut self, ctx: &mut Context, client: ClientId) -> Duration {
        if let Some(waiting) = self.starting.get_mut(&client) {
            waiting.has_ended = true;
        } else if self.program(client).is_some() {
            self.stop(ctx, client);
        } else {
            return Duration::ZERO;
        }
        LAST_OUTPUT
    }

    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        if let Some(program) = self.programs.get_mut(&client) {
            program.child.resume(ctx);
        }
    }

    /// Stops the program. Its output is read and ignored, because a full pipe could keep it from exiting.
    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        self.starting.remove(&client);
        if let Some(program) = self.programs.get_mut(&client) {
            program.is_orphan = true;
            program.child.resume(ctx);
            self.stop(ctx, client);
        }
    }

    /// Whether the server is draining and the client's program may still have output for it.
    fn is_waiting(&self, _: &Context, client: ClientId) -> bool {
        self.is_stopping && self.program(client).is_some()
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, _: Readiness) {
        self.handle(ctx, ChildInput::Ready(source));
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        self.handle(ctx, ChildInput::Timer(timer));
    }

    /// While the server stops, it closes the clients whose programs have exited.
    fn keeps_every_client(&self, _: ServiceId) -> bool {
        !self.is_stopping
    }

    /// Ends the clients whose programs have most unread input. The programs do not get it.
    fn free_memory(&mut self, ctx: &mut Context, principal: &Principal, bytes: usize) -> usize {
        let programs = self.programs.iter_mut();
        let mut own: Vec<(ClientId, &mut Program)> = programs
            .filter(|(_, program)| program.owner == *principal)
            .map(|(client, program)| (*client, program))
            .collect();
        own.sort_unstable_by_key(|(_, program)| program.child.unread());
        let mut freed = 0;
        while freed < bytes
            && let Some((client, program)) = own.pop()
        {
            let unread = program.child.unread();
            if unread == 0 {
                break;
            }
            log::warn!(
                "ending {client}, whose program has {unread} bytes of unread input: too little memory is left"
            );
            program.child.drop_input();
            ctx.end_for_memory(client);
            freed += unread;
        }
        freed
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.starting.keys().copied().for_each(&mut *visit);
        let programs = self.programs.iter();
        let connected = programs.filter(|(_, program)| !program.is_orphan);
        connected.for_each(|(client, _)| visit(*client));
    }

    /// Ends the input of all programs. Their clients get the rest of the output.
    fn draining(&mut self, ctx: &mut Context) {
        self.stopping(ctx);
    }

    /// A client whose start is queued waits for the end of its connection.
    fn stopping(&mut self, ctx: &mut Context) {
        self.is_stopping = true;
        let clients: Vec<ClientId> = self.programs.keys().copied().collect();
        for client in clients {
            self.stop(ctx, client);
        }
    }

    fn is_stopped(&self) -> bool {
        self.programs.is_empty()
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

impl Report for PipePerClient {
    fn held(&self, visit: &mut dyn FnMut(&Principal, usize)) {
        let programs = self.programs.values();
        let behind = programs.filter(|program| program.child.unread() > 0);
        behind.for_each(|program| visit(&program.owner, program.child.unread()));
    }

    fn status(&self) -> StatusFields {
        let listed = self.programs.iter().take(MAX_LISTED);
        let listed = listed
            .map(|(client, one)| json!({"client": client.to_string(), "pid": one.child.pid()}));
        let listed: Vec<_> = listed.collect();
        StatusFields::from_value(json!({"processes": self.programs.len(), "programs": listed}))
    }

    fn metrics(&self, out: &mut Metrics) {
        process_metrics(out, self.programs.len(), self.started);
    }
}

impl Portable for PipePerClient {
    fn state_name(&self, id: ServiceId) -> Option<Cow<'_, str>> {
        (id == ServiceId::ALL).then_some("per-client".into())
    }

    passes_on!();
}
