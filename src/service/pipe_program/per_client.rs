//! A program for each client.

use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
use std::process::ExitStatus;
use std::time::Duration;

use super::environment::{Environment, check_size};
use super::{HIGH_WATER, LOW_WATER, PipeConfig, TurnOutput, ending, line_too_long, to_message};
use crate::service::child::{Child, ChildEvent, describe};
use crate::service::framing::Decoder;
use crate::service::lines::Line;
use crate::{
    Accept, ClientId, CloseCode, CloseReason, Context, Message, Metrics, Readiness, Rejection,
    Request, Route, Service, ServiceId, SourceId, StatusFields, TimerId,
};

/// How long a client that has half-closed its connection is kept while it takes no output. Its program has exited by
/// then.
const LAST_OUTPUT: Duration = Duration::from_secs(10);

/// The program of one client.
#[derive(Debug)]
struct ClientProgram {
    child: Child,
    /// The sources of its events.
    sources: Vec<SourceId>,
    /// Whether its output is ignored, because the client is gone or the output is invalid.
    is_ignored: bool,
}

/// A client whose program is not started yet.
#[derive(Debug)]
struct Waiting {
    environment: Environment,
    /// Whether the client has half-closed its connection.
    has_ended: bool,
}

/// A program for each client. It starts when the client connects and is stopped when the client disconnects.
///
/// ```
/// use outrigger::service::{PipeConfig, PipePerClient};
/// use outrigger::{Config, Server};
///
/// let programs = PipePerClient::new(PipeConfig::new("/...".parse()?, ["wc", "-w"]));
/// let config = Config::builder().listen("127.0.0.1:0".parse()?).build()?;
/// let server = Server::bind(config, programs)?;
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PipePerClient {
    config: PipeConfig,
    /// Clients whose programs are not started yet.
    waiting: HashMap<ClientId, Waiting>,
    /// The programs of connected clients.
    programs: HashMap<ClientId, ClientProgram>,
    /// Programs that are being stopped, by the former id of their disconnected client.
    stopping: HashMap<ClientId, ClientProgram>,
    /// The client whose program uses a source.
    sources: HashMap<SourceId, ClientId>,
    started: u64,
    /// Whether the server stops, so that no more programs are started.
    draining: bool,
}

impl PipePerClient {
    /// Creates the service. Programs start when clients connect.
    pub fn new(config: PipeConfig) -> Self {
        Self {
            config,
            waiting: HashMap::new(),
            programs: HashMap::new(),
            stopping: HashMap::new(),
            sources: HashMap::new(),
            started: 0,
            draining: false,
        }
    }

    /// The number of programs, including those that are being stopped.
    fn program_count(&self) -> usize {
        self.programs.len() + self.stopping.len()
    }

    fn start(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        environment: Environment,
    ) -> io::Result<()> {
        let decoder = Decoder::new(self.config.framing, ctx.config().limits.max_message);
        let child = Child::spawn_with(ctx, &self.config.command, decoder, |command| {
            environment.apply(command);
        })?;
        self.started += 1;
        let sources: Vec<SourceId> = child.sources().collect();
        self.sources
            .extend(sources.iter().map(|&source| (source, client)));
        let program = ClientProgram {
            child,
            sources,
            is_ignored: false,
        };
        self.programs.insert(client, program);
        Ok(())
    }

    /// Lets a client's program handle an event. Its output goes to the client. Returns false if the event belongs to
    /// another program.
    fn with_child(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        handle: impl FnOnce(
            &mut Child,
            &mut Context,
            &mut dyn FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
        ) -> ChildEvent,
    ) -> bool {
        let connected = self.programs.get_mut(&client);
        let Some(program) = connected.or_else(|| self.stopping.get_mut(&client)) else {
            return false;
        };
        let framing = self.config.framing;
        let ClientProgram {
            child, is_ignored, ..
        } = program;
        let mut turn = TurnOutput::default();
        let event = handle(child, ctx, &mut |ctx, _, line| {
            let failure = match line {
                _ if *is_ignored => None,
                Line::Whole(bytes) => {
                    ctx.send(client, to_message(framing, bytes));
                    None
                }
                Line::TooLong(_) => Some(line_too_long(ctx)),
                Line::Broken(error) => Some(error.to_string()),
                Line::Skipped(_) | Line::SkippedEnd => None,
            };
            if let Some(failure) = failure {
                log::warn!("invalid output of the program of {client}: {failure}");
                *is_ignored = true;
                ctx.close(client, CloseCode::INTERNAL, failure);
            }
            // The program is not read while its client is congested.
            if turn.is_over(ctx) || ctx.is_congested(client) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        match event {
            ChildEvent::NotMine => return false,
            ChildEvent::Handled => {
                let queued = child.stdin().map_or(0, |stdin| stdin.queued());
                if queued <= LOW_WATER {
                    ctx.set_held(client, false);
                }
                // A program that has closed its output cannot send anything more.
                if *is_ignored || child.is_mute() {
                    child.stop(ctx);
                }
                if !ctx.is_congested(client) {
                    child.resume(ctx);
                }
            }
            ChildEvent::Exited(status) => self.handle_exit(ctx, client, status),
        }
        true
    }

    fn handle_exit(&mut self, ctx: &mut Context, client: ClientId, status: Option<ExitStatus>) {
        let running = self.programs.remove(&client);
        for program in [running, self.stopping.remove(&client)]
            .into_iter()
            .flatten()
        {
            for source in program.sources {
                self.sources.remove(&source);
            }
        }
        log::debug!("the program of {client} {}", describe(status));
        // A stopping server closes the client itself.
        if !self.draining {
            let (code, reason) = ending(status);
            ctx.close(client, code, reason);
        }
    }
}

impl Service for PipePerClient {
    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        self.config.endpoint.route(request)
    }

    fn accept(&mut self, ctx: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        if self.draining {
            return Err(Rejection::unavailable("stopping").because("stopping"));
        }
        // A program may outlive its client by the few seconds that it gets to exit.
        if self.waiting.len() + self.program_count() >= ctx.config().max_clients {
            return Err(Rejection::unavailable("too many processes"));
        }
        check_size(request)?;
        Ok(Accept::default())
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, request: &Request<'_>) {
        let environment = Environment::new(ctx, client, &self.config.endpoint, request);
        let waiting = Waiting {
            environment,
            has_ended: false,
        };
        self.waiting.insert(client, waiting);
        // Input waits until the program runs.
        ctx.set_held(client, true);
        ctx.queue_start(client);
    }

    fn start_program(&mut self, ctx: &mut Context, client: Option<ClientId>) {
        let Some(client) = client else { return };
        let Some(waiting) = self.waiting.remove(&client) else {
            return;
        };
        ctx.set_held(client, false);
        match self.start(ctx, client, waiting.environment) {
            Ok(()) => {
                if waiting.has_ended
                    && let Some(program) = self.programs.get_mut(&client)
                {
                    program.child.stop(ctx);
                }
            }
            Err(error) => {
                log::error!("{error}");
                ctx.close(client, CloseCode::INTERNAL, error.to_string());
            }
        }
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let Some(program) = self.programs.get_mut(&client) else {
            return;
        };
        // A program that has closed its input gets no more messages.
        if let Some(stdin) = program.child.stdin() {
            let framing = self.config.framing;
            framing.encode(message.as_bytes(), stdin.queue());
            stdin.written_to(ctx);
            if stdin.queued() > HIGH_WATER {
                ctx.set_held(client, true);
            }
        }
    }

    /// There will be no more input, so the program is stopped, beginning with the end of its input. The client still gets
    /// its last output.
    fn input_ended(&mut self, ctx: &mut Context, client: ClientId) -> Duration {
        if let Some(program) = self.programs.get_mut(&client) {
            program.child.stop(ctx);
        } else if let Some(waiting) = self.waiting.get_mut(&client) {
            waiting.has_ended = true;
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

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        self.waiting.remove(&client);
        if let Some(mut program) = self.programs.remove(&client) {
            // Its output is read and discarded, because a full pipe could keep it from exiting.
            program.is_ignored = true;
            program.child.resume(ctx);
            program.child.stop(ctx);
            self.stopping.insert(client, program);
        }
    }

    /// Whether a client has not been sent the last output of its program.
    fn is_waiting(&self, _: &Context, client: ClientId) -> bool {
        self.draining && self.programs.contains_key(&client)
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, _: Readiness) {
        if let Some(&client) = self.sources.get(&source) {
            self.with_child(ctx, client, |child, ctx, line| {
                child.handle_ready(ctx, source, line)
            });
        }
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        let clients = self.programs.keys().chain(self.stopping.keys());
        let clients: Vec<ClientId> = clients.copied().collect();
        let mut handle = |client| {
            self.with_child(ctx, client, |child, ctx, line| {
                child.handle_timer(ctx, timer, line)
            })
        };
        let _ = clients.into_iter().any(&mut handle);
    }

    fn status(&self) -> StatusFields {
        let status = serde_json::json!({"processes": self.program_count()});
        StatusFields::from_value(status)
    }

    fn metrics(&self, out: &mut Metrics) {
        out.gauge(
            "outrigger_processes_running",
            "Running programs, including those that are being stopped.",
            self.program_count(),
        );
        out.counter(
            "outrigger_processes_started_total",
            "Programs started.",
            self.started,
        );
    }

    fn keeps_every_client(&self, _: ServiceId) -> bool {
        true
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        let waiting = self.waiting.keys();
        waiting.chain(self.programs.keys()).copied().for_each(visit);
    }

    /// Ends the input of all programs. Their clients get the rest of the output.
    fn draining(&mut self, ctx: &mut Context) {
        self.draining = true;
        for (client, _) in std::mem::take(&mut self.waiting) {
            ctx.set_held(client, false);
        }
        for program in self.programs.values_mut() {
            program.child.stop(ctx);
        }
    }

    fn stopping(&mut self, ctx: &mut Context) {
        for program in self.programs.values_mut() {
            program.child.stop(ctx);
        }
    }

    fn is_stopped(&self) -> bool {
        self.program_count() == 0
    }
}
