//! One agent process that all clients share. The router passes messages between its streams and the clients.

use uuid::Uuid;

use super::line_decoder::{AgentLine, LineDecoder, push_line};
use super::router::{Router, RouterLimits, RouterOutput};
use super::{AgentConfig, AgentProtocol, HIGH_WATER, LOW_WATER, MAX_UNREAD};
use crate::service::backoff::Backoff;
use crate::service::child::{Child, ChildEvent, code_and_signal, describe};
use crate::service::lines::Line;
use crate::{
    Accept, ClientId, CloseCode, CloseReason, Context, Message, Metrics, Readiness, Rejection,
    Request, Route, Service, SourceId, StatusFields, Time, TimerId,
};
use std::ops::ControlFlow;
use std::time::Duration;

/// The limits of the router.
const MAX_CLIENT_REQUESTS: usize = 1024;
const MAX_AGENT_REQUESTS: usize = 256;
const MAX_SESSIONS: usize = 256;
const MAX_ALL_SESSIONS: usize = 16_384;
/// Once this limit is reached, unknown sessions can no longer be loaded, so it is high.
const MAX_ENDED_SESSIONS: usize = 1_000_000;

/// How long a client may take to answer a PING before it counts as silent.
const PING_ANSWER_TIME: Duration = Duration::from_secs(2);

/// The state of the agent process.
#[derive(Debug)]
enum AgentProcess {
    Running(Box<Child>),
    /// It is started again when this timer expires.
    Backoff(TimerId),
    /// It has not been started, or will not be started again.
    Gone,
}

/// One agent process that all clients share.
///
/// Each client gets the responses to its own requests and the messages of its own sessions. A process that exits is
/// started again, up to the [restart limit](AgentConfig::restart_limit).
///
/// ```
/// use outrigger::service::{Agent, AgentConfig};
/// use outrigger::{Config, Server};
///
/// let agent = Agent::new(AgentConfig::new("/acp".parse()?, ["my-agent"]));
/// let config = Config::builder().listen("127.0.0.1:0".parse()?).build()?;
/// let server = Server::bind(config, agent)?;
/// // `server.run()` starts the agent and serves clients at ws://127.0.0.1:7070/acp.
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Agent {
    config: AgentConfig,
    router: Router,
    process: AgentProcess,
    decoder: LineDecoder,
    /// Lines on their way to the agent's input.
    lines: Vec<u8>,
    /// Lines that wait until the agent runs and is initialized.
    held: Vec<u8>,
    backoff: Backoff,
    restarts: u64,
    /// The timer for the router's next deadline, and when it expires.
    wakeup: Option<(Time, TimerId)>,
    failure: Option<String>,
}

impl Agent {
    /// Creates the service. The agent process starts with the server.
    pub fn new(config: AgentConfig) -> Self {
        let router = Router::new(RouterLimits {
            client_requests: MAX_CLIENT_REQUESTS,
            agent_requests: MAX_AGENT_REQUESTS,
            sessions: MAX_SESSIONS,
            all_sessions: MAX_ALL_SESSIONS,
            ended_sessions: MAX_ENDED_SESSIONS,
            acp: config.protocol == AgentProtocol::Acp,
            grace: config.grace,
            unknown_sessions: config.unknown_sessions,
            request_timeout: config.request_timeout,
            answer_timeout: config.answer_timeout,
        });
        let backoff = Backoff::new(config.restart_limit);
        Self {
            config,
            router,
            process: AgentProcess::Gone,
            decoder: LineDecoder::default(),
            lines: Vec::new(),
            held: Vec::new(),
            backoff,
            restarts: 0,
            wakeup: None,
            failure: None,
        }
    }

    /// Lets the router handle an event and sends the resulting lines.
    fn route(
        &mut self,
        ctx: &mut Context,
        handle: impl FnOnce(&mut Router, &mut ContextOutput<'_>),
    ) {
        let hold = !self.is_running() || self.router.is_initializing();
        let mut output = ContextOutput {
            ctx: &mut *ctx,
            lines: &mut self.lines,
            held: &mut self.held,
            hold,
            max_queued: usize::MAX,
        };
        handle(&mut self.router, &mut output);
        self.send_lines(ctx);
    }

    fn is_running(&self) -> bool {
        matches!(self.process, AgentProcess::Running(_))
    }

    /// Writes lines to the agent. Held lines follow once it is initialized.
    fn send_lines(&mut self, ctx: &mut Context) {
        let AgentProcess::Running(child) = &mut self.process else {
            self.lines.clear();
            self.watch_deadline(ctx);
            return self.check_pressure(ctx);
        };
        if !self.router.is_initializing() {
            self.lines.append(&mut self.held);
        }
        match child.stdin() {
            Some(stdin) if !self.lines.is_empty() => {
                stdin.queue().append(&mut self.lines);
                stdin.written_to(ctx);
            }
            Some(_) => {}
            None => {
                self.lines.clear();
                self.held.clear();
            }
        }
        // An agent that closed a stream or rejected `initialize` cannot answer. Its exit fails the pending requests.
        if child.is_cut_off() || self.router.is_refused() {
            child.stop(ctx);
        }
        self.watch_deadline(ctx);
        self.check_pressure(ctx);
    }

    /// The number of bytes that the agent has not read.
    fn unread(&mut self) -> usize {
        let queued = match &mut self.process {
            AgentProcess::Running(child) => child.stdin().map_or(0, |stdin| stdin.queued()),
            AgentProcess::Backoff(_) | AgentProcess::Gone => 0,
        };
        queued + self.held.len()
    }

    /// Pauses reading from clients while the agent does not read.
    fn check_pressure(&mut self, ctx: &mut Context) {
        let unread = self.unread();
        if unread > HIGH_WATER {
            ctx.set_paused(true);
        } else if unread <= LOW_WATER {
            ctx.set_paused(false);
        }
    }

    fn start(&mut self, ctx: &mut Context) {
        let limit = ctx.config().limits.max_message;
        match Child::spawn(ctx, &self.config.command, limit) {
            Ok(child) => {
                self.process = AgentProcess::Running(Box::new(child));
                self.route(ctx, |router, output| router.handle_agent_started(output));
            }
            Err(error) => self.fail(ctx, error.to_string()),
        }
    }

    /// Stops the server with a failure, after closing the clients with an internal error.
    fn fail(&mut self, ctx: &mut Context, failure: String) {
        self.failure.get_or_insert(failure);
        for client in ctx.clients() {
            ctx.close(client, CloseCode::INTERNAL, "Agent exited");
        }
        ctx.stop();
    }

    fn handle_child(&mut self, ctx: &mut Context, event: ChildEvent) {
        let ChildEvent::Exited(status) = event else {
            return self.send_lines(ctx);
        };
        self.process = AgentProcess::Gone;
        self.decoder = LineDecoder::default();
        self.lines.clear();
        self.held.clear();
        let (code, signal) = code_and_signal(status);
        let data = serde_json::json!({"code": code, "signal": signal}).to_string();
        self.route(ctx, |router, output| {
            router.handle_agent_exited(&data, output)
        });
        if ctx.is_stopping() {
            return;
        }
        let failure = format!("the agent {}", describe(status));
        let Some(delay) = self.backoff.next_delay(ctx.now()) else {
            return self.fail(ctx, failure);
        };
        log::error!("{failure}; restarting it in {delay:?}");
        self.restarts += 1;
        self.process = AgentProcess::Backoff(ctx.set_timer(delay));
    }

    /// Sets the timer for the router's next deadline, unless it expires earlier.
    fn watch_deadline(&mut self, ctx: &mut Context) {
        let Some(at) = self.router.take_wakeup() else {
            return;
        };
        if let Some((earlier, timer)) = self.wakeup {
            if earlier <= at {
                return;
            }
            ctx.cancel_timer(timer);
        }
        self.wakeup = Some((at, ctx.set_timer(at.since(ctx.now()))));
    }

    /// Lets the child process handle an event. Its lines go through the router.
    fn with_child(
        &mut self,
        ctx: &mut Context,
        handle: impl FnOnce(
            &mut Child,
            &mut Context,
            &mut dyn FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
        ) -> ChildEvent,
    ) {
        let AgentProcess::Running(child) = &mut self.process else {
            return;
        };
        let queued = child.stdin().map_or(0, |stdin| stdin.queued());
        let (router, decoder) = (&mut self.router, &mut self.decoder);
        let (lines, held) = (&mut self.lines, &mut self.held);
        // Responses to the agent are not held, because it may wait for them during its start.
        let event = handle(child, ctx, &mut |ctx, _, line| {
            let now = ctx.now();
            let mut output = ContextOutput {
                ctx,
                lines,
                held,
                hold: false,
                max_queued: MAX_UNREAD.saturating_sub(queued),
            };
            match decoder.decode(line) {
                AgentLine::Nothing => {}
                AgentLine::Text(text) => router.handle_agent_message(now, text, &mut output),
                AgentLine::Unreadable(recovered, why) => {
                    router.handle_unreadable(now, recovered, why, &mut output)
                }
            }
            ControlFlow::Continue(())
        });
        self.handle_child(ctx, event);
    }
}

/// Sends the router's messages to the agent's input and to clients.
struct ContextOutput<'a> {
    ctx: &'a mut Context,
    lines: &'a mut Vec<u8>,
    held: &'a mut Vec<u8>,
    /// Whether lines are held until the agent is initialized.
    hold: bool,
    /// The maximum number of queued bytes. Further lines are dropped: they are responses to an agent that sends requests
    /// but does not read.
    max_queued: usize,
}

impl RouterOutput for ContextOutput<'_> {
    fn initialize_agent(&mut self, parts: &[&str]) {
        push_line(self.lines, parts);
        self.hold = true;
    }

    fn to_agent(&mut self, parts: &[&str]) {
        let lines = if self.hold {
            &mut *self.held
        } else {
            &mut *self.lines
        };
        if lines.len() < self.max_queued {
            push_line(lines, parts);
        } else {
            log::debug!("dropped a response to the agent, which does not read its input");
        }
    }

    fn to_client(&mut self, client: ClientId, parts: &[&str]) {
        // A client that has disconnected or is closing gets no more messages.
        let _ = match parts {
            [text] => self.ctx.try_send(client, Message::Text(text)),
            parts => self.ctx.try_send(client, Message::Text(&parts.concat())),
        };
    }

    fn close(&mut self, client: ClientId, code: CloseCode, reason: &str) {
        self.ctx.close(client, code, reason);
    }

    fn secret(&mut self) -> String {
        Uuid::new_v4().simple().to_string()
    }

    fn is_away(&self, client: ClientId) -> bool {
        let interval = self.ctx.config().timeouts.ping_interval;
        self.ctx.is_detached(client)
            || interval
                .is_some_and(|interval| self.ctx.silent_for(client) > interval + PING_ANSWER_TIME)
    }
}

impl Service for Agent {
    fn started(&mut self, ctx: &mut Context) {
        self.start(ctx);
    }

    fn route(&mut self, request: &Request<'_>) -> Result<Route, Rejection> {
        self.config.endpoint.route(request)
    }

    fn accept(&mut self, _: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        if self.unread() > MAX_UNREAD {
            let rejection = Rejection::unavailable("the agent does not read its input");
            return Err(rejection.because("program_busy"));
        }
        self.config.accept(request)
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, _: &Request<'_>) {
        let principal = ctx.principal(client);
        let is_sole = ctx.is_sole_principal(client);
        self.router.handle_connected(client, principal, is_sole);
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        // Binary frames are ignored.
        if let Message::Text(text) = message {
            // The cost grows with the length, because every byte is parsed.
            ctx.spend(3 + text.len() / 512);
            let now = ctx.now();
            self.route(ctx, |router, output| {
                router.handle_client_message(now, client, text, output)
            });
        }
    }

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        let now = ctx.now();
        self.route(ctx, |router, output| {
            router.handle_disconnected(now, client, output)
        });
    }

    fn is_waiting(&self, _: &Context, client: ClientId) -> bool {
        self.router.is_busy(client)
    }

    fn draining(&mut self, _: &mut Context) {
        self.router.drain();
    }

    fn may_idle(&self, ctx: &Context, client: ClientId) -> bool {
        self.is_waiting(ctx, client)
            || self.config.sessions_may_idle && self.router.has_session(client)
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, _: Readiness) {
        self.with_child(ctx, |child, ctx, line| {
            child.handle_ready(ctx, source, line)
        });
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        if self.wakeup.is_some_and(|(_, wakeup)| wakeup == timer) {
            self.wakeup = None;
            let now = ctx.now();
            self.route(ctx, |router, output| router.handle_timeout(now, output));
        } else if matches!(self.process, AgentProcess::Backoff(backoff) if backoff == timer) {
            if !ctx.is_stopping() {
                self.start(ctx);
            }
        } else {
            self.with_child(ctx, |child, ctx, line| child.handle_timer(ctx, timer, line));
        }
    }

    fn is_ready(&self) -> bool {
        self.is_running()
    }

    fn status(&self) -> StatusFields {
        let counters = self.router.counters();
        let status = serde_json::json!({
            "sessions": self.router.session_count(),
            "ended_sessions": self.router.ended_count(),
            "agent": {
                "running": self.is_running(),
                "restarts": self.restarts,
                "waiting": self.router.client_request_count(),
                "asked": self.router.agent_request_count(),
                "calls": {
                    "initialize": counters.initializes,
                    "session": counters.session_requests,
                    "prompt": counters.prompts,
                    "other": counters.other_requests,
                },
                "notifications": counters.notifications,
                "answers": counters.answers.to_value(),
                "denied": counters.denied,
                "dropped": counters.dropped,
                "timed_out": counters.timed_out,
            },
        });
        StatusFields::from_value(status)
    }

    fn metrics(&self, out: &mut Metrics) {
        let counters = self.router.counters();
        out.gauge(
            "outrigger_agent_running",
            "Whether the agent process is running.",
            u8::from(self.is_running()),
        );
        out.counter(
            "outrigger_agent_restarts_total",
            "Restarts of the agent process.",
            self.restarts,
        );
        out.gauge(
            "outrigger_agent_sessions",
            "Sessions that a client controls or can still resume.",
            self.router.session_count(),
        );
        out.gauge(
            "outrigger_agent_ended_sessions",
            "Ended sessions whose owner is remembered.",
            self.router.ended_count(),
        );
        out.gauge(
            "outrigger_agent_waiting_requests",
            "Requests of clients that the agent has not answered.",
            self.router.client_request_count(),
        );
        out.gauge(
            "outrigger_agent_asked_requests",
            "Requests of the agent that clients have not answered.",
            self.router.agent_request_count(),
        );
        out.counters(
            "outrigger_agent_requests_total",
            "Requests of clients, by class.",
            "class",
            [
                ("initialize", counters.initializes),
                ("session", counters.session_requests),
                ("prompt", counters.prompts),
                ("other", counters.other_requests),
            ],
        );
        for (name, help, value) in [
            (
                "outrigger_agent_notifications_total",
                "Notifications of clients.",
                counters.notifications,
            ),
            (
                "outrigger_agent_denied_total",
                "Messages refused because their client does not control the session that they name.",
                counters.denied,
            ),
            (
                "outrigger_agent_dropped_total",
                "Messages without a receiver.",
                counters.dropped,
            ),
            (
                "outrigger_agent_timed_out_total",
                "Requests in either direction that were not answered in time.",
                counters.timed_out,
            ),
        ] {
            out.counter(name, help, value);
        }
        out.histogram(
            "outrigger_agent_answer_seconds",
            "Time from a request to its response.",
            &counters.answers,
        );
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.router.clients(visit);
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn stopping(&mut self, ctx: &mut Context) {
        if let AgentProcess::Running(child) = &mut self.process {
            child.stop(ctx);
        }
    }

    fn is_stopped(&self) -> bool {
        !self.is_running()
    }
}
