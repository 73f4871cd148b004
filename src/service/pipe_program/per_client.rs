//! A program for each client.

use std::borrow::Cow;
use std::time::Duration;

use super::environment::{Environment, check_size};
use super::{PipeConfig, ending, line_too_long, to_message};
use crate::record::{RecordError, record, state};
use crate::service::child::{Child, ChildEvent, ChildInput, ClientPrograms, describe};
use crate::service::endpoint;
use crate::service::framing::Decoder;
use crate::service::lines::Line;
use crate::{
    Accept, ClientId, CloseCode, CloseReason, Context, Message, Metrics, Readiness, Rejection,
    Request, Route, Service, ServiceId, SourceId, StatusFields, TimerId,
};

/// How long a client that has half-closed its connection is kept while it takes no output. Its program has exited by
/// then.
const LAST_OUTPUT: Duration = Duration::from_secs(10);

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
    programs: ClientPrograms<Waiting, Output>,
}

/// What is kept for a program that runs.
#[derive(Debug, Default)]
struct Output {
    /// Whether the program's output is ignored, because it is invalid.
    is_ignored: bool,
}

record!(Output { is_ignored });

state!(PipePerClient {
    keep config,
    programs,
});

impl PipePerClient {
    /// Creates the service. Programs start when clients connect.
    pub fn new(config: PipeConfig) -> Self {
        Self {
            config,
            programs: ClientPrograms::default(),
        }
    }

    /// Checks that the programs that run have the framing of the settings.
    fn check_state(&self) -> Result<(), RecordError> {
        self.programs.check_framing(self.config.framing)
    }

    /// Continues after the program of the server has replaced itself.
    fn watch_again(&mut self, ctx: &mut Context) -> Result<(), RecordError> {
        self.programs.watch_again(ctx)
    }

    /// Lets a client's program handle an event. Its output goes to the client.
    fn handle(&mut self, ctx: &mut Context, input: ChildInput) {
        let framing = self.config.framing;
        let handled = self
            .programs
            .handle(ctx, input, |ctx, client, output, line| {
                let failure = match line {
                    _ if output.is_ignored => None,
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
                    output.is_ignored = true;
                    ctx.close(client, CloseCode::INTERNAL, failure);
                }
            });
        match handled {
            Some((client, ChildEvent::Exited(status))) => {
                log::debug!("the program of {client} {}", describe(status));
                // A stopping server closes the client itself.
                if !self.programs.is_draining() {
                    let (code, reason) = ending(status);
                    ctx.close(client, code, reason);
                }
            }
            Some((client, _)) => {
                let is_ignored = self
                    .programs
                    .state(client)
                    .is_some_and(|one| one.is_ignored);
                // A program that has closed its output cannot send anything more.
                if is_ignored || self.programs.child(client).is_some_and(Child::is_mute) {
                    self.programs.stop(ctx, client);
                }
            }
            None => {}
        }
    }
}

impl Service for PipePerClient {
    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        self.config.endpoint.route(request)
    }

    fn accept(&mut self, ctx: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        self.programs.accept(ctx)?;
        check_size(request)?;
        Ok(endpoint::accept(request, &self.config.subprotocols))
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, request: &Request<'_>) {
        let environment = Environment::new(ctx, client, &self.config.endpoint, request);
        let waiting = Waiting {
            environment,
            has_ended: false,
        };
        self.programs.queue(ctx, client, waiting);
    }

    fn start_program(&mut self, ctx: &mut Context, client: Option<ClientId>) {
        let Some(client) = client else { return };
        let Some(waiting) = self.programs.begin(ctx, client) else {
            return;
        };
        let decoder = Decoder::new(self.config.framing, ctx.config().limits.max_message);
        let child = Child::spawn_with(ctx, &self.config.command, decoder, |command| {
            waiting.environment.apply(command);
        });
        match child {
            Ok(child) => {
                self.programs.add(client, child, Output::default());
                if waiting.has_ended {
                    self.programs.stop(ctx, client);
                }
            }
            Err(error) => {
                log::error!("{error}");
                ctx.close(client, CloseCode::INTERNAL, error.to_string());
            }
        }
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let framing = self.config.framing;
        self.programs.write(ctx, client, |input| {
            framing.encode(message.as_bytes(), input)
        });
    }

    /// There will be no more input, so the program is stopped, beginning with the end of its input. The client still gets
    /// its last output.
    fn input_ended(&mut self, ctx: &mut Context, client: ClientId) -> Duration {
        if let Some(waiting) = self.programs.starting_mut(client) {
            waiting.has_ended = true;
        } else if self.programs.has_program(client) {
            self.programs.stop(ctx, client);
        } else {
            return Duration::ZERO;
        }
        LAST_OUTPUT
    }

    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        self.programs.resume(ctx, client);
    }

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        self.programs.disconnect(ctx, client);
    }

    /// Whether the server is draining and the client's program may still have output for it.
    fn is_waiting(&self, _: &Context, client: ClientId) -> bool {
        self.programs.is_draining() && self.programs.has_program(client)
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, _: Readiness) {
        self.handle(ctx, ChildInput::Ready(source));
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        self.handle(ctx, ChildInput::Timer(timer));
    }

    fn status(&self) -> StatusFields {
        self.programs.status()
    }

    fn metrics(&self, out: &mut Metrics) {
        self.programs.metrics(out);
    }

    /// While the server stops, it closes the clients whose programs have exited.
    fn keeps_every_client(&self, _: ServiceId) -> bool {
        !self.programs.is_draining()
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.programs.clients(visit);
    }

    fn state_name(&self, id: ServiceId) -> Option<Cow<'_, str>> {
        (id == ServiceId::ALL).then_some("per-client".into())
    }

    passes_on!();

    /// Ends the input of all programs. Their clients get the rest of the output.
    fn draining(&mut self, ctx: &mut Context) {
        self.programs.drain();
        self.programs.stop_all(ctx);
    }

    fn stopping(&mut self, ctx: &mut Context) {
        self.programs.stop_all(ctx);
    }

    fn is_stopped(&self) -> bool {
        self.programs.count() == 0
    }
}
