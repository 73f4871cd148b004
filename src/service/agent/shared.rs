//! One agent process for all clients: the router between its streams and them.

use std::time::Duration;

use uuid::Uuid;

use super::router::{Router, RouterLimits, Wires};
use super::{AgentConfig, AgentProtocol, Ear, HIGH_WATER, Heard, LOW_WATER, MAX_UNREAD, push_line};
use crate::service::child::{Child, ChildEvent, code_and_signal, describe};
use crate::service::lines::{Flow, Line};
use crate::{
    Accept, ClientId, CloseCode, CloseReason, Context, Message, Metrics, Readiness, Rejection,
    Request, Route, Service, SourceId, StatusFields, Time, TimerId,
};

/// An agent that ends is started again this soon at first, then after twice the time each time.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// The longest time between an end and the next start.
const LAST_BACKOFF: Duration = Duration::from_secs(10);

/// Requests of one client that may wait for the agent.
const MAX_WAITING: usize = 1024;
/// Sessions of one client.
const MAX_SESSIONS: usize = 256;
/// Sessions of all clients, and of those who may come back.
const MAX_ALL_SESSIONS: usize = 16_384;
/// Sessions that have ended and are remembered, so that nobody but their owners can load them.
const MAX_ENDED_SESSIONS: usize = 1_000_000;
/// Requests of the agent that may wait for one client.
const MAX_ASKED: usize = 256;

/// Whether the agent's process is there.
#[derive(Debug)]
enum Process {
    Running(Box<Child>),
    /// It is started again when this timer runs out.
    Backoff(TimerId),
    /// It is not there and will not be.
    Gone,
}

/// One agent process, shared by all clients.
#[derive(Debug)]
pub struct Agent {
    config: AgentConfig,
    router: Router,
    process: Process,
    ear: Ear,
    /// Lines for the agent, on their way to its input.
    lines: Vec<u8>,
    /// Lines that wait for the agent to be there and initialized.
    held: Vec<u8>,
    /// When it ended, for the ends that are counted.
    ends: Vec<Time>,
    restarts: u64,
    /// The timer for sessions whose owners have not come back.
    grace: Option<TimerId>,
    failure: Option<String>,
}

impl Agent {
    /// An agent that is started with the server.
    pub fn new(config: AgentConfig) -> Self {
        let router = Router::new(RouterLimits {
            waiting: MAX_WAITING,
            sessions: MAX_SESSIONS,
            all_sessions: MAX_ALL_SESSIONS,
            ended_sessions: MAX_ENDED_SESSIONS,
            asked: MAX_ASKED,
            acp: config.protocol == AgentProtocol::Acp,
            grace: config.grace,
        });
        Self {
            config,
            router,
            process: Process::Gone,
            ear: Ear::default(),
            lines: Vec::new(),
            held: Vec::new(),
            ends: Vec::new(),
            restarts: 0,
            grace: None,
            failure: None,
        }
    }

    /// Runs the router on something that happened, and sends on what came of it.
    fn route(&mut self, ctx: &mut Context, happened: impl FnOnce(&mut Router, &mut Outlets<'_>)) {
        let hold = !matches!(self.process, Process::Running(_)) || self.router.is_initializing();
        let mut outlets = Outlets {
            ctx: &mut *ctx,
            lines: &mut self.lines,
            held: &mut self.held,
            hold,
            room: usize::MAX,
        };
        happened(&mut self.router, &mut outlets);
        self.send_lines(ctx);
    }

    /// Hands lines to the agent, those that were held back too once it is ready for them.
    fn send_lines(&mut self, ctx: &mut Context) {
        let Process::Running(child) = &mut self.process else {
            self.lines.clear();
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
        // One that does not listen or speak any more, or will not be initialized, answers nobody. Its end does.
        if child.is_cut_off() || self.router.is_refused() {
            child.stop(ctx);
        }
        if self.router.take_left() {
            self.watch_grace(ctx);
        }
        self.check_pressure(ctx);
    }

    /// Bytes of lines that the agent has not read.
    fn unread(&mut self) -> usize {
        let queued = match &mut self.process {
            Process::Running(child) => child.stdin().map_or(0, |stdin| stdin.queued()),
            Process::Backoff(_) | Process::Gone => 0,
        };
        queued + self.held.len()
    }

    /// Stops taking messages while the agent does not read.
    fn check_pressure(&mut self, ctx: &mut Context) {
        let waiting = self.unread();
        if waiting > HIGH_WATER {
            ctx.set_paused(true);
        } else if waiting <= LOW_WATER {
            ctx.set_paused(false);
        }
    }

    fn start(&mut self, ctx: &mut Context) {
        let limit = ctx.config().limits.max_message;
        match Child::spawn(ctx, &self.config.command, limit) {
            Ok(child) => {
                self.process = Process::Running(Box::new(child));
                self.route(ctx, |router, outlets| router.handle_agent_started(outlets));
            }
            Err(error) => self.fail(ctx, error.to_string()),
        }
    }

    /// Ends the server with a failure; clients are told that it is not their fault.
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
        self.process = Process::Gone;
        self.ear = Ear::default();
        self.lines.clear();
        self.held.clear();
        let (code, signal) = code_and_signal(status);
        let data = serde_json::json!({"code": code, "signal": signal}).to_string();
        self.route(ctx, |router, outlets| {
            router.handle_agent_exited(&data, outlets)
        });
        self.check_pressure(ctx);
        if ctx.is_stopping() {
            return;
        }
        let failure = format!("the agent {}", describe(status));
        let now = ctx.now();
        self.ends
            .retain(|&end| now.since(end) < self.config.restart_limit.window);
        self.ends.push(now);
        if self.ends.len() > self.config.restart_limit.count {
            return self.fail(ctx, failure);
        }
        let doublings = (self.ends.len() - 1).min(10) as u32;
        let backoff = (FIRST_BACKOFF * 2u32.pow(doublings)).min(LAST_BACKOFF);
        log::error!("{failure}; starting it again in {backoff:?}");
        self.restarts += 1;
        self.process = Process::Backoff(ctx.set_timer(backoff));
    }

    /// Has a timer set while sessions wait for their owners.
    fn watch_grace(&mut self, ctx: &mut Context) {
        if self.grace.is_none()
            && let Some(deadline) = self.router.deadline()
        {
            self.grace = Some(ctx.set_timer(deadline.since(ctx.now())));
        }
    }

    /// Lets the child handle an event. Its lines go through the router.
    fn with_child(
        &mut self,
        ctx: &mut Context,
        handle: impl FnOnce(
            &mut Child,
            &mut Context,
            &mut dyn FnMut(&mut Context, u64, Line<'_>) -> Flow,
        ) -> ChildEvent,
    ) {
        let Process::Running(child) = &mut self.process else {
            return;
        };
        let queued = child.stdin().map_or(0, |stdin| stdin.queued());
        let (router, ear) = (&mut self.router, &mut self.ear);
        let (lines, held) = (&mut self.lines, &mut self.held);
        // What it is answered is not held back: it may be waiting for that before it goes on.
        let event = handle(child, ctx, &mut |ctx, _, line| {
            let now = ctx.now();
            let mut outlets = Outlets {
                ctx,
                lines,
                held,
                hold: false,
                room: MAX_UNREAD.saturating_sub(queued),
            };
            match ear.hear(line) {
                Heard::Nothing => {}
                Heard::Text(text) => router.receive_from_agent(now, text, &mut outlets),
                Heard::Unreadable(salvaged, why) => {
                    router.handle_unreadable(now, salvaged, why, &mut outlets)
                }
            }
            Flow::GoOn
        });
        self.handle_child(ctx, event);
    }
}

/// Where the router's messages go.
struct Outlets<'a> {
    ctx: &'a mut Context,
    lines: &'a mut Vec<u8>,
    held: &'a mut Vec<u8>,
    /// Whether lines wait for the agent to be ready.
    hold: bool,
    /// The maximum of queued bytes. Answers to an agent that sends requests but does not read are dropped beyond it.
    room: usize,
}

impl Wires for Outlets<'_> {
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
        if lines.len() < self.room {
            push_line(lines, parts);
        } else {
            log::debug!("dropped an answer to the agent, which does not read its input");
        }
    }

    fn to_client(&mut self, client: ClientId, parts: &[&str]) {
        // One that is gone or closing has nothing coming to it any more.
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
        self.router.handle_connected(client, principal);
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        // Binary frames are ignored.
        if let Message::Text(text) = message {
            // Every byte of it is looked at.
            ctx.spend(3 + text.len() / 512);
            let now = ctx.now();
            self.route(ctx, |router, outlets| {
                router.receive_from_client(now, client, text, outlets)
            });
        }
    }

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        let now = ctx.now();
        self.route(ctx, |router, outlets| {
            router.handle_disconnected(now, client, outlets)
        });
        self.watch_grace(ctx);
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
        if self.grace == Some(timer) {
            self.grace = None;
            self.router.handle_timeout(ctx.now());
            self.watch_grace(ctx);
        } else if matches!(self.process, Process::Backoff(backoff) if backoff == timer) {
            if !ctx.is_stopping() {
                self.start(ctx);
            }
        } else {
            self.with_child(ctx, |child, ctx, line| child.handle_timer(ctx, timer, line));
        }
    }

    fn is_ready(&self) -> bool {
        matches!(self.process, Process::Running(_))
    }

    fn status(&self) -> StatusFields {
        let counters = self.router.counters();
        let status = serde_json::json!({
            "sessions": self.router.session_count(),
            "ended_sessions": self.router.ended_count(),
            "agent": {
                "running": matches!(self.process, Process::Running(_)),
                "restarts": self.restarts,
                "waiting": self.router.waiting_count(),
                "asked": self.router.asked_count(),
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
            },
        });
        StatusFields::from_value(status)
    }

    fn metrics(&self, out: &mut Metrics) {
        let counters = self.router.counters();
        let running = matches!(self.process, Process::Running(_));
        out.gauge(
            "outrigger_agent_running",
            "Whether the agent's process is there.",
            u8::from(running),
        );
        out.counter(
            "outrigger_agent_restarts_total",
            "Times that the agent was started again.",
            self.restarts,
        );
        out.gauge(
            "outrigger_agent_sessions",
            "Sessions that a client controls, or that wait for their client to return.",
            self.router.session_count(),
        );
        out.gauge(
            "outrigger_agent_ended_sessions",
            "Sessions that have ended and are remembered.",
            self.router.ended_count(),
        );
        out.gauge(
            "outrigger_agent_waiting_requests",
            "Requests of clients that the agent has not answered.",
            self.router.waiting_count(),
        );
        out.gauge(
            "outrigger_agent_asked_requests",
            "Requests of the agent that clients have not answered.",
            self.router.asked_count(),
        );
        out.counters(
            "outrigger_agent_requests_total",
            "Requests of clients by what they are for.",
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
                "Messages that were meant for nobody.",
                counters.dropped,
            ),
        ] {
            out.counter(name, help, value);
        }
        out.histogram(
            "outrigger_agent_answer_seconds",
            "From a request to its answer.",
            &counters.answers,
        );
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn stopping(&mut self, ctx: &mut Context) {
        if let Process::Running(child) = &mut self.process {
            child.stop(ctx);
        }
    }

    fn is_stopped(&self) -> bool {
        !matches!(self.process, Process::Running(_))
    }
}
