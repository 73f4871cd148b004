//! A program on its own terminal for each client.

use std::io;
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::LINGER;
use super::accounts::find_account;
use super::attach::{Attachments, Replay, Role, Sharing};
use super::dialect::Dialect;
use super::fields::bad_request;
use super::program::{Launch, PassEnv, Program};
use super::programs::Programs;
use super::queries::{AttachQuery, size_of};
use super::recording::{RecordConfig, Recorder};
use super::responses::rfc3339;
use super::sink::{ContextOutput, RESTARTING, Sink};
use crate::log_event::{log_event, word};
use crate::record::{Loader, Read, RecordError, Saver, Set, object, record};
use crate::service::Endpoint;
use crate::service::child::{process_metrics, start_hint};
use crate::service::id_map::IdMap;
use crate::sys::{Account, PROGRAM_ID, TerminalSize, random_uuid};
use crate::upgrade::Portable;
use crate::{
    Accept, ClientId, CloseCode, CloseReason, Context, Message, Metrics, Principal, Readiness,
    Rejection, Report, Request, Route, Service, ServiceId, SourceId, StatusFields, TimerId,
};

/// The output that is kept for a client that is behind. A terminal has no other readers.
const SCROLLBACK: usize = 128 << 10;

/// The maximum number of programs that the status lists.
const MAX_LISTED: usize = 200;

/// How long a client that has half-closed its connection is kept while it takes no output. Its program has exited by
/// then.
const LAST_OUTPUT: Duration = Duration::from_secs(10);

/// The settings of a [`Terminal`] service.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TerminalConfig {
    /// The path of the service.
    pub endpoint: Endpoint,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The working directory of the program.
    pub cwd: Option<String>,
    /// Variables that are added to the environment of the program.
    pub env: Vec<(String, String)>,
    /// The user that the program runs as; `None` for the server's own.
    pub user: Option<String>,
    /// Whether input of clients is ignored.
    pub read_only: bool,
    /// Whether the server accepts one client only and stops when that disconnects.
    pub once: bool,
    /// How long output is read after the program's exit if another process holds the terminal open.
    pub linger: Duration,
    /// Variables of the server's environment that a program of another user gets too.
    pub pass_env: Vec<String>,
    /// How the terminals are recorded; `None` if they are not. [`RecordConfig::on_request`] has no effect.
    pub record: Option<RecordConfig>,
}

impl TerminalConfig {
    /// The default settings for a program.
    pub fn new(endpoint: Endpoint, command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoint,
            command: command.into_iter().map(Into::into).collect(),
            cwd: None,
            env: Vec::new(),
            user: None,
            read_only: false,
            once: false,
            linger: LINGER,
            pass_env: Vec::new(),
            record: None,
        }
    }
}

/// A service that runs a program on its own terminal for each client. The program is stopped when its client
/// disconnects. [`messages`](super::messages) describes what clients send and receive.
///
/// ```
/// use outrigger::service::{Terminal, TerminalConfig};
///
/// let mut config = TerminalConfig::new("/terminal".parse()?, ["bash", "--login"]);
/// config.cwd = Some("/tmp".to_owned());
/// let terminal = Terminal::new(config)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Terminal {
    config: TerminalConfig,
    /// The account that the programs run as; `None` for the server's own.
    account: Option<Account>,
    recorder: Option<Recorder>,
    programs: Programs,
    /// Clients whose programs are not started yet, as far as is known.
    waiting: IdMap<ClientId, Waiting>,
    /// Whether a client has connected.
    used: bool,
    started: u64,
    /// Whether the server stops, so that no more programs are started.
    draining: bool,
}

/// What a client has asked for whose program is not started yet.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    dialect: Dialect,
    size: TerminalSize,
    /// The program, once its start has begun.
    program: Option<Uuid>,
}

record!(Waiting {
    dialect,
    size,
    program,
});

impl Terminal {
    /// Creates the service.
    ///
    /// # Errors
    ///
    /// The user does not exist or may not be switched to, or `env` has a variable that the server sets itself.
    pub fn new(config: TerminalConfig) -> io::Result<Self> {
        let account = match &config.user {
            Some(name) => {
                find_account(name).map_err(|rejection| io::Error::other(rejection.message))?
            }
            None => None,
        };
        if config.env.iter().any(|(name, _)| name == PROGRAM_ID) {
            let why = format!("{PROGRAM_ID} is set by the server");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Self {
            recorder: config.record.clone().map(Recorder::new),
            config,
            account,
            programs: Programs::default(),
            waiting: IdMap::default(),
            used: false,
            started: 0,
            draining: false,
        })
    }

    fn launch(&self, owner: Principal, size: TerminalSize) -> Launch {
        Launch {
            id: random_uuid(),
            owner,
            command: self.config.command.clone(),
            cwd: self.config.cwd.clone(),
            env: self.config.env.clone(),
            account: self.account.clone(),
            pass_env: PassEnv::Named(self.config.pass_env.clone()),
            terminal: Some(size),
            takes_input: true,
            stdin: None,
            timeout: None,
            linger: Some(self.config.linger),
            recorder: self.recorder.clone(),
        }
    }

    /// Starts a client's program. The client is attached when the program has been executed.
    fn start(&mut self, ctx: &mut Context, client: ClientId, waiting: Waiting) {
        let size = waiting.size;
        let sharing = Sharing::Single {
            read_only: self.config.read_only,
        };
        let sink = Sink::Shared(Attachments::new(SCROLLBACK, sharing, Some(size)));
        let launch = self.launch(ctx.principal(client), size);
        match self.programs.start(ctx, launch, sink) {
            Ok(id) => {
                let program = Some(id);
                self.waiting.insert(client, Waiting { program, ..waiting });
            }
            Err(error) => self.refuse(ctx, client, waiting.dialect, &error),
        }
    }

    /// Attaches the clients whose programs have been executed.
    fn settle_starts(&mut self, ctx: &mut Context) {
        for id in self.programs.take_settled() {
            let mut waiting = self.waiting.iter();
            let waiting = waiting.find(|(_, waiting)| waiting.program == Some(id));
            let Some((&client, &Waiting { dialect, .. })) = waiting else {
                continue;
            };
            self.waiting.remove(&client);
            match self.programs.get(id).and_then(Program::start_error) {
                None => {
                    self.started += 1;
                    ctx.set_held(client, false);
                    let kind = (Role::Writer, dialect);
                    self.programs
                        .attach(ctx, id, client, kind, Replay::default());
                }
                Some(error) => {
                    self.programs.remove(ctx, id);
                    self.refuse(ctx, client, dialect, &error);
                }
            }
        }
    }

    /// Tells a client why its program cannot be started.
    fn refuse(&self, ctx: &mut Context, client: ClientId, dialect: Dialect, error: &io::Error) {
        ctx.set_held(client, false);
        let name = &self.config.command[0];
        let hint = start_hint(error, name, self.config.cwd.as_deref());
        let error = format!("{error}{hint}");
        log_event!(
            Error,
            "cannot start",
            client = word(&client),
            route = ctx.route(),
            program = name.as_str(),
            error = word(&error),
        );
        let why = format!("failed to start process: {error}");
        ContextOutput(ctx).fail(client, dialect, why);
    }

    /// Removes programs whose clients are gone and that have no processes left.
    fn remove_gone(&mut self, ctx: &mut Context) {
        for id in self.programs.take_gone() {
            self.programs.remove(ctx, id);
        }
    }
}

impl Service for Terminal {
    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        self.config.endpoint.route(request)
    }

    fn accept(&mut self, ctx: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        size_of(request)?;
        let dialect = Dialect::of(request)?;
        if AttachQuery::is_viewer(request) {
            let why = "each client of a terminal has a program of its own; a terminal of the process API can be watched";
            return Err(bad_request(why));
        }
        if self.used && self.config.once {
            return Err(Rejection::unavailable(
                "this terminal accepts one client only",
            ));
        }
        if self.draining {
            return Err(Rejection::unavailable("stopping").because("stopping"));
        }
        // Programs may outlive their clients for the few seconds until they are killed.
        let waiting = self.waiting.values();
        let waiting = waiting.filter(|waiting| waiting.program.is_none());
        if self.programs.len() + waiting.count() >= ctx.config().max_clients {
            return Err(Rejection::unavailable("too many terminals"));
        }
        Ok(dialect.accept())
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, request: &Request<'_>) {
        self.used = true;
        // Input waits until the program runs.
        ctx.set_held(client, true);
        let waiting = Waiting {
            // `accept` has checked both.
            dialect: Dialect::of(request).unwrap_or(Dialect::Json),
            size: size_of(request).unwrap_or_default(),
            program: None,
        };
        self.waiting.insert(client, waiting);
        ctx.queue_start(client);
    }

    fn start_program(&mut self, ctx: &mut Context, client: Option<ClientId>) {
        if let Some(client) = client
            && let Some(waiting) = self.waiting.remove(&client)
        {
            self.start(ctx, client, waiting);
        }
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        self.programs.message(ctx, client, message);
    }

    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        self.programs.drained(ctx, client);
    }

    /// There will be no more input, so the program is stopped. The client still gets its last output and its exit.
    fn input_ended(&mut self, ctx: &mut Context, client: ClientId) -> Duration {
        match self.programs.read_by(client) {
            Some(id) if self.programs.delivers_to(client) => {
                self.programs.stop(ctx, id);
                LAST_OUTPUT
            }
            _ => Duration::ZERO,
        }
    }

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        if let Some(id) = self.programs.detach(ctx, client) {
            self.programs.stop(ctx, id);
        } else if let Some(id) = self.waiting.remove(&client).and_then(|one| one.program) {
            self.programs.stop(ctx, id);
        }
        self.remove_gone(ctx);
        if self.config.once {
            ctx.stop();
        }
    }

    fn keeps_every_client(&self, _: ServiceId) -> bool {
        true
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.programs.clients(visit);
        self.waiting.keys().copied().for_each(visit);
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, readiness: Readiness) {
        self.programs.ready(ctx, source, readiness);
        self.settle_starts(ctx);
        self.programs.take_finished();
        self.remove_gone(ctx);
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        self.programs.timer(ctx, timer);
        self.settle_starts(ctx);
        self.programs.take_finished();
        self.remove_gone(ctx);
    }

    fn orphans_changed(&mut self, ctx: &mut Context) {
        self.programs.orphans_changed(ctx);
    }

    /// Whether a client has not been sent the last output of its program, and why it ended.
    fn is_waiting(&self, _: &Context, client: ClientId) -> bool {
        let program = self.programs.read_by(client);
        let program = program.and_then(|id| self.programs.get(id));
        program.is_some_and(|program| program.is_stopping() || self.draining)
            && self.programs.delivers_to(client)
    }

    /// Stops all programs. Their clients get the rest of the output, and CLOSE 1012.
    fn draining(&mut self, ctx: &mut Context) {
        self.draining = true;
        for (client, _) in std::mem::take(&mut self.waiting) {
            ctx.set_held(client, false);
            ctx.close(client, CloseCode::SERVICE_RESTART, RESTARTING);
        }
        for program in self.programs.iter_mut() {
            // A program that has exited, or whose client has ended its input, tells its own exit.
            if program.exit().is_none()
                && !program.is_stopping()
                && let Some(attachments) = program.sink.attachments()
            {
                attachments.begin_restart();
            }
        }
        self.programs.stop_all(ctx);
    }

    fn stopping(&mut self, ctx: &mut Context) {
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

impl Report for Terminal {
    fn held(&self, visit: &mut dyn FnMut(&Principal, usize)) {
        self.programs.held(visit);
    }

    fn status(&self) -> StatusFields {
        let listed = self.programs.iter().take(MAX_LISTED).map(|program| {
            json!({
                "pid": program.pid(),
                "client": program.sink.writer().map(|client| client.to_string()),
                "started_at": rfc3339(program.started),
                "state": if program.exit().is_some() { "exited" } else { "running" },
            })
        });
        let listed: Vec<_> = listed.collect();
        let status = json!({"processes": {"running": self.programs.len()}, "programs": listed});
        StatusFields::from_value(status)
    }

    fn metrics(&self, out: &mut Metrics) {
        process_metrics(out, self.programs.len(), self.started);
        if let Some(recorder) = &self.recorder {
            recorder.metrics(out);
        }
    }
}

impl Portable for Terminal {
    fn make_portable(&mut self, ctx: &mut Context) {
        self.programs.make_portable(ctx);
    }

    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.open(b'{');
        to.field("waiting", &self.waiting);
        to.field("used", &self.used);
        to.field("started", &self.started);
        to.member("programs", |to| self.programs.save(to));
        to.close(b'}');
    }

    fn restore(&mut self, ctx: &mut Context, from: &mut Loader) -> Result<(), RecordError> {
        let (programs, recorder) = (&mut self.programs, self.recorder.as_ref());
        let mut programs = Read(|from: &mut Loader| programs.restore(ctx, recorder, from));
        object!(from {
            waiting: Set(&mut self.waiting),
            used: Set(&mut self.used),
            started: Set(&mut self.started),
            programs,
        })?;
        for (client, waiting) in &self.waiting {
            if waiting.program.is_none() {
                ctx.queue_start(*client);
            }
        }
        self.remove_gone(ctx);
        Ok(())
    }
}
