//! A program on a terminal of its own for each client.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::api::{find_account, size_of};
use super::attach::{Attachments, Role};
use super::program::{Launch, MARK};
use super::programs::Programs;
use super::sink::Sink;
use crate::service::Endpoint;
use crate::sys::{Account, TerminalSize};
use crate::{
    Accept, ClientId, CloseCode, CloseReason, Context, Message, Metrics, Readiness, Rejection,
    Request, Route, Service, SourceId, StatusFields, TimerId,
};

/// Output that is kept for a client that is behind. Nobody else comes to read it.
const SCROLLBACK: usize = 128 << 10;

/// How long a client that has ended its direction is kept while it takes nothing. Its program has ended by then.
const LAST_OUTPUT: Duration = Duration::from_secs(10);

/// The settings of terminals.
#[derive(Clone, Debug)]
pub struct TerminalConfig {
    /// Where they are found.
    pub endpoint: Endpoint,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Where it is started.
    pub cwd: Option<String>,
    /// Variables that are added to its environment.
    pub env: Vec<(String, String)>,
    /// Who runs it, unless it is us.
    pub user: Option<String>,
    /// Whether clients only watch.
    pub read_only: bool,
    /// Whether the server stops with the first client.
    pub once: bool,
    /// How long output is read after the program's end, where one that it has started holds the terminal open.
    pub linger: Duration,
    /// Variables of the server's environment that a program of another user gets too.
    pub pass_env: Vec<String>,
}

/// Terminals that end with their clients.
#[derive(Debug)]
pub struct Terminal {
    config: TerminalConfig,
    /// Who runs them, unless it is us.
    account: Option<Account>,
    programs: Programs,
    /// Clients whose programs are to be started in later turns, in the order in which they came. Those that have left
    /// meanwhile have no size.
    waiting: VecDeque<ClientId>,
    sizes: HashMap<ClientId, TerminalSize>,
    /// Whether a client has come.
    used: bool,
    started: u64,
    /// Whether the server stops, so that clients only get what is still to come.
    draining: bool,
}

impl Terminal {
    /// Terminals that are opened as clients come.
    ///
    /// # Errors
    ///
    /// A user that does not exist, or that we may not become; a variable that the server sets itself.
    pub fn new(config: TerminalConfig) -> io::Result<Self> {
        let account = match &config.user {
            Some(name) => {
                find_account(name).map_err(|rejection| io::Error::other(rejection.message))?
            }
            None => None,
        };
        if config.env.iter().any(|(name, _)| name == MARK) {
            let why = format!("{MARK} is set by the server");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Self {
            config,
            account,
            programs: Programs::default(),
            waiting: VecDeque::new(),
            sizes: HashMap::new(),
            used: false,
            started: 0,
            draining: false,
        })
    }

    fn launch(&self, size: TerminalSize) -> Launch {
        Launch {
            id: Uuid::new_v4(),
            command: self.config.command.clone(),
            cwd: self.config.cwd.clone(),
            env: self.config.env.clone(),
            account: self.account.clone(),
            pass_env: self.config.pass_env.clone(),
            terminal: Some(size),
            takes_input: true,
            timeout: None,
            linger: self.config.linger,
        }
    }

    /// Starts as many programs as may be started in this turn.
    fn start_waiting(&mut self, ctx: &mut Context) {
        while let Some(&client) = self.waiting.front() {
            if self.sizes.contains_key(&client) && !self.programs.may_start(ctx) {
                return;
            }
            self.waiting.pop_front();
            if let Some(size) = self.sizes.remove(&client) {
                ctx.set_held(client, false);
                self.start(ctx, client, size);
            }
        }
    }

    /// Starts a client's program.
    fn start(&mut self, ctx: &mut Context, client: ClientId, size: TerminalSize) {
        let sink = Sink::Shared(Attachments::new(SCROLLBACK));
        let started = self.programs.start(ctx, self.launch(size), sink);
        match started {
            Ok(id) => {
                self.started += 1;
                self.programs.attach(ctx, id, client, Role::Writer, 0);
            }
            Err(error) => {
                log::error!(
                    "cannot start {:?} for {client}: {error}",
                    self.config.command[0]
                );
                let why = format!("failed to start process: {error}");
                let event = json!({"type": "error", "message": why});
                ctx.send(client, Message::Text(&event.to_string()));
                ctx.close(client, CloseCode::INTERNAL, "failed to start process");
            }
        }
    }

    /// Forgets programs whose clients are gone and of which nothing is left.
    fn forget_gone(&mut self, ctx: &mut Context) {
        for id in self.programs.take_gone() {
            self.programs.remove(ctx, id);
        }
    }
}

impl Service for Terminal {
    fn route(&mut self, request: &Request<'_>) -> Result<Route, Rejection> {
        self.config.endpoint.route(request)
    }

    fn accept(&mut self, ctx: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        size_of(request)?;
        if self.used && self.config.once {
            return Err(Rejection::unavailable(
                "this terminal was for one client only",
            ));
        }
        if self.draining {
            return Err(Rejection::unavailable("stopping").because("stopping"));
        }
        // Programs may outlive their clients for the few seconds that they are given to end.
        if self.programs.len() + self.sizes.len() >= ctx.config().max_clients {
            return Err(Rejection::unavailable("too many terminals"));
        }
        Ok(Accept::default())
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, request: &Request<'_>) {
        self.used = true;
        // What it types before its program runs waits.
        ctx.set_held(client, true);
        self.sizes
            .insert(client, size_of(request).unwrap_or_default());
        self.waiting.push_back(client);
        self.start_waiting(ctx);
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        self.programs
            .message(ctx, client, message, self.config.read_only);
    }

    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        self.programs.drained(ctx, client);
    }

    /// Nothing more will be typed, so the program is hung up on. Its last output and its end still go to the client.
    fn input_ended(&mut self, ctx: &mut Context, client: ClientId) -> Duration {
        match self.programs.read_by(client) {
            Some(id) if self.programs.delivers_to(client) => {
                self.programs.end(ctx, id);
                LAST_OUTPUT
            }
            _ => Duration::ZERO,
        }
    }

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        self.sizes.remove(&client);
        if let Some(id) = self.programs.detach(ctx, client) {
            self.programs.end(ctx, id);
        }
        self.forget_gone(ctx);
        if self.config.once {
            ctx.stop();
        }
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, readiness: Readiness) {
        self.programs.ready(ctx, source, readiness);
        self.programs.take_finished();
        self.forget_gone(ctx);
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        self.programs.timer(ctx, timer);
        self.programs.take_finished();
        self.forget_gone(ctx);
        self.start_waiting(ctx);
    }

    fn orphans_changed(&mut self, ctx: &mut Context) {
        self.programs.look_around(ctx);
    }

    fn status(&self) -> StatusFields {
        let status = json!({"processes": {"running": self.programs.len()}});
        StatusFields::from_value(status)
    }

    fn metrics(&self, out: &mut Metrics) {
        out.gauge(
            "outrigger_processes_running",
            "Programs that run, those that are being ended included.",
            self.programs.len(),
        );
        out.counter(
            "outrigger_processes_started_total",
            "Programs that were started.",
            self.started,
        );
    }

    /// Whether the last output of a client's program, and its end, are on their way.
    fn is_waiting(&self, _: &Context, client: ClientId) -> bool {
        let program = self.programs.read_by(client);
        let program = program.and_then(|id| self.programs.get(id));
        program.is_some_and(|program| program.is_ending() || self.draining)
            && self.programs.delivers_to(client)
    }

    /// Ends all programs. Their clients get the output until the end, and the exit.
    fn draining(&mut self, ctx: &mut Context) {
        self.draining = true;
        self.waiting.clear();
        for (client, _) in std::mem::take(&mut self.sizes) {
            ctx.set_held(client, false);
        }
        self.programs.end_all(ctx);
    }

    fn stopping(&mut self, ctx: &mut Context) {
        self.programs.end_all(ctx);
    }

    fn is_stopped(&self) -> bool {
        self.programs.are_gone()
    }
}
