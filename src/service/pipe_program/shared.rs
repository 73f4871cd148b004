//! One program for all clients.

use std::borrow::Cow;
use std::ops::ControlFlow;

use std::time::Duration;

use super::{PipeConfig, ending, line_too_long, to_message};
use crate::record::{RecordError, state};
use crate::service::child::{
    Child, ChildEvent, HIGH_WATER, Keeper, LOW_WATER, ProgramExit, ProgramFailure, TurnOutput,
    process_metrics,
};
use crate::service::endpoint;
use crate::service::framing::Decoder;
use crate::service::lines::Line;
use crate::upgrade::Portable;
use crate::{
    Accept, ClientId, CloseCode, CloseReason, Context, Message, Metrics, Readiness, Rejection,
    Report, Request, Route, Service, ServiceId, SourceId, StatusFields, TimerId,
};

/// How often to check whether a program that no client lets write may continue. A client whose connection was cut holds it no
/// longer, and that is no event.
const HELD_CHECK: Duration = Duration::from_secs(1);

/// One program for all clients. Each message that it writes goes to every client, and a message of any client goes to it.
/// A program that exits is started again, up to the [restart limit](PipeConfig::restart_limit).
///
/// ```
/// use outrigger::service::{PipeConfig, PipeShared};
/// use outrigger::{Config, Server};
///
/// let program = PipeShared::new(PipeConfig::new("/...".parse()?, ["./chat"]));
/// let config = Config::new("127.0.0.1:0".parse()?);
/// let server = Server::bind(config, program)?;
/// // `server.run()` starts the program.
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PipeShared {
    config: PipeConfig,
    program: Keeper,
    /// Why the output of the running program cannot be passed on any further.
    invalid: Option<String>,
    /// The timer for the next check while the program is held back.
    held_check: Option<TimerId>,
    started: u64,
    /// Whether the server stops.
    draining: bool,
    failure: Option<String>,
}

state!(PipeShared {
    keep config,
    into program,
    invalid,
    // It is set again if it is needed.
    keep held_check,
    started,
    keep draining,
    keep failure,
});

impl PipeShared {
    /// Creates the service. The program starts with the server.
    pub fn new(config: PipeConfig) -> Self {
        Self {
            program: Keeper::new(config.restart_limit),
            config,
            invalid: None,
            held_check: None,
            started: 0,
            draining: false,
            failure: None,
        }
    }

    /// Checks that a program that runs has the framing of the settings.
    fn check_state(&self) -> Result<(), RecordError> {
        let child = self.program.child();
        child.map_or(Ok(()), |child| child.check_framing(self.config.framing))
    }

    /// Continues after the program of the server has replaced itself.
    fn watch_again(&mut self, ctx: &mut Context) -> Result<(), RecordError> {
        self.program.watch_again(ctx);
        if let Some(child) = self.program.child_mut() {
            child.watch_again(ctx)?;
            ctx.set_paused(child.unread() > HIGH_WATER);
        }
        self.resume(ctx);
        Ok(())
    }

    fn start(&mut self, ctx: &mut Context) {
        ctx.work_for_service();
        let decoder = Decoder::new(self.config.framing, ctx.config().limits.max_message);
        match Child::spawn_with(ctx, &self.config.command, decoder, |_| {}) {
            Ok(child) => {
                self.started += 1;
                self.invalid = None;
                self.program.handle_start(child);
            }
            Err(error) => self.handle_failure(ctx, error.to_string().into()),
        }
    }

    /// Starts the program again after a delay, or stops the server with a failure.
    fn handle_failure(&mut self, ctx: &mut Context, failure: ProgramFailure) {
        let path = self.config.endpoint.path();
        if !self.program.handle_failure(ctx, path, &failure) {
            self.failure.get_or_insert(failure.to_string());
            ctx.stop();
        }
    }

    /// Lets the program handle an event. Its output goes to all clients.
    fn with_child(
        &mut self,
        ctx: &mut Context,
        handle: impl FnOnce(
            &mut Child,
            &mut Context,
            &mut dyn FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
        ) -> ChildEvent,
    ) {
        let Some(child) = self.program.child_mut() else {
            return;
        };
        let (framing, invalid) = (self.config.framing, &mut self.invalid);
        let mut turn = TurnOutput::default();
        let event = handle(child, ctx, &mut |ctx, _, line| {
            match line {
                _ if invalid.is_some() => {}
                Line::Whole(bytes) => {
                    ctx.broadcast(to_message(framing, bytes), |_, _| true);
                }
                // The clients can use the lines that follow.
                Line::TooLong(_) => log::warn!("skipped: {}", line_too_long(ctx)),
                Line::Broken(error) => {
                    log::error!("invalid output of the program: {error}");
                    *invalid = Some(error.to_string());
                }
                Line::Skipped(_) | Line::SkippedEnd => {}
            }
            // Output that only some clients take is not held back for the others: a client that reads too slowly is disconnected.
            if turn.is_over(ctx) || ctx.is_every_client_congested() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        match event {
            ChildEvent::NotMine => {}
            ChildEvent::Handled => {
                if child.unread() <= LOW_WATER {
                    ctx.set_paused(false);
                }
                // A program that has closed its output cannot send anything more.
                if self.invalid.is_some() || child.is_mute() {
                    child.stop(ctx);
                }
                self.resume(ctx);
            }
            ChildEvent::Exited(exit) => self.handle_exit(ctx, exit),
        }
    }

    /// Continues to read the program's output, unless no client takes it.
    fn resume(&mut self, ctx: &mut Context) {
        let Some(child) = self.program.child_mut() else {
            return;
        };
        if !ctx.is_every_client_congested() {
            child.resume(ctx);
        } else if self.held_check.is_none() {
            self.held_check = Some(ctx.set_timer(HELD_CHECK));
        }
    }

    fn handle_exit(&mut self, ctx: &mut Context, exit: ProgramExit) {
        self.program.handle_exit();
        ctx.set_paused(false);
        if self.draining || ctx.is_stopping() {
            return;
        }
        let (code, reason) = match self.invalid.take() {
            Some(reason) => (CloseCode::INTERNAL, reason),
            None => ending(&exit, CloseCode::INTERNAL),
        };
        for client in ctx.clients() {
            ctx.close(client, code, reason.clone());
        }
        self.handle_failure(ctx, exit.failure("the program"));
    }
}

impl Service for PipeShared {
    fn started(&mut self, ctx: &mut Context) {
        self.start(ctx);
    }

    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        self.config.endpoint.route(request)
    }

    fn accept(&mut self, _: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        if !self.program.is_running() || self.invalid.is_some() {
            return Err(Rejection::unavailable("the program is not running"));
        }
        Ok(endpoint::accept(request, &self.config.subprotocols))
    }

    fn connected(&mut self, ctx: &mut Context, _: ClientId, _: &Request<'_>) {
        self.resume(ctx);
    }

    fn message(&mut self, ctx: &mut Context, _: ClientId, message: Message<'_>) {
        let framing = self.config.framing;
        // A program that has closed its input gets no more messages.
        if let Some(stdin) = self.program.child_mut().and_then(Child::stdin) {
            stdin.append(ctx, |queue| framing.encode(message.as_bytes(), queue));
            if stdin.queued() > HIGH_WATER {
                ctx.set_paused(true);
            }
        }
    }

    fn drained(&mut self, ctx: &mut Context, _: ClientId) {
        self.resume(ctx);
    }

    fn disconnected(&mut self, ctx: &mut Context, _: ClientId, _: &CloseReason) {
        self.resume(ctx);
    }

    /// While the server drains, clients stay until the program exits, because it may still write output.
    fn is_waiting(&self, _: &Context, _: ClientId) -> bool {
        self.draining && self.program.is_running()
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, _: Readiness) {
        self.with_child(ctx, |child, ctx, line| {
            child.handle_ready(ctx, source, line)
        });
    }

    fn start_program(&mut self, ctx: &mut Context, _: Option<ClientId>) {
        if self.program.begin() && !ctx.is_stopping() {
            self.start(ctx);
        }
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        if self.program.expire(timer) {
            return self.program.queue(ctx);
        }
        if self.held_check == Some(timer) {
            self.held_check = None;
            return self.resume(ctx);
        }
        self.with_child(ctx, |child, ctx, line| child.handle_timer(ctx, timer, line));
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Ends the program's input. The clients get the rest of its output.
    fn draining(&mut self, ctx: &mut Context) {
        self.draining = true;
        self.program.stop(ctx);
    }

    fn stopping(&mut self, ctx: &mut Context) {
        self.program.stop(ctx);
    }

    fn is_stopped(&self) -> bool {
        !self.program.is_running()
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

impl Report for PipeShared {
    fn is_ready(&self) -> bool {
        self.program.is_running()
    }

    fn status(&self) -> StatusFields {
        let status = serde_json::json!({
            "processes": usize::from(self.program.is_running()),
            "restarts": self.program.restarts(),
            "programs": self.program.child().map(|child| vec![serde_json::json!({"pid": child.pid()})]),
        });
        StatusFields::from_value(status)
    }

    fn metrics(&self, out: &mut Metrics) {
        process_metrics(out, usize::from(self.program.is_running()), self.started);
    }
}

impl Portable for PipeShared {
    fn state_name(&self, id: ServiceId) -> Option<Cow<'_, str>> {
        (id == ServiceId::ALL).then_some("shared".into())
    }

    passes_on!();
}
