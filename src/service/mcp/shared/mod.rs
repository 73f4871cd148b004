//! The processes of sessions. A process belongs to one session, or many sessions share it. A shared process is started when a session
//! needs it.

mod from_process;
mod from_session;
mod member;
mod multiplexer;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

pub(crate) use self::member::Level;
#[cfg(any(test, fuzzing))]
pub(crate) use self::multiplexer::Ended;
use self::multiplexer::is_change;
pub(crate) use self::multiplexer::{ENDED, Failure, Incoming, Multiplexer, Output, Reach, Who};
use super::http_error::{HttpError, server_exited};
use super::hub::{Handled, Hub};
use super::process::{Process, ProgramPlace, Received};
use super::{McpConfig, McpShare};
use crate::record::{
    Loader, Read, Record, RecordError, RecordWith, Saver, Set, State, object, record,
};
use crate::service::child::{
    ChildEvent, ChildInput, Keeper, OnFailure, ProgramFailure, RestartLimit,
};
use crate::service::deadlines::Alarm;
use crate::service::id_map::IdMap;
use crate::service::json::{quote, unescape};
use crate::service::jsonrpc::{Envelope, MessageKind, code};
use crate::{Context, Principal, StatusCode, Time, TimerId};

/// The maximum lengths of a client's protocol version and capabilities, which decide which process it shares.
const MAX_VERSION: usize = 64;
const MAX_CAPABILITIES: usize = 16 << 10;

/// After this many messages for sessions, the rest of the output of a process waits for another turn.
const MAX_DELIVERIES: usize = 1000;

/// After this many bytes, the process of one session is read on only if its client keeps up.
const MAX_AHEAD: usize = 64 << 10;

/// What the sessions of a process have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// The principal, unless everybody shares the process.
    principal: Option<Principal>,
    /// As JSON.
    version: String,
    capabilities: String,
}

record!(Key {
    principal,
    version,
    capabilities,
});

impl Key {
    /// The key for a revision and capabilities, as JSON. Tasks belong to one client, so a shared process does not get this capability.
    fn new(
        share: McpShare,
        principal: &Principal,
        (version, capabilities): (&str, &str),
    ) -> Result<Self, HttpError> {
        let invalid = |why| HttpError::new(StatusCode::BAD_REQUEST, code::PARAMS, why);
        if version.len() > MAX_VERSION || !version.starts_with('"') {
            return Err(invalid("Invalid params: protocolVersion"));
        }
        let parsed = (capabilities.len() <= MAX_CAPABILITIES)
            .then(|| serde_json::from_str::<serde_json::Map<_, Value>>(capabilities));
        let Some(Ok(mut capabilities)) = parsed else {
            let why = "Invalid params: capabilities is not an object of up to 16 KiB";
            return Err(invalid(why));
        };
        capabilities.remove("tasks");
        Ok(Self {
            principal: (share == McpShare::Principal).then(|| principal.clone()),
            version: quote(&unescape(version)),
            capabilities: Value::Object(capabilities).to_string(),
        })
    }

    fn who(&self) -> Who {
        match &self.principal {
            Some(principal) if principal.is_person() => Who::Person,
            _ => Who::Everybody,
        }
    }
}

/// The place of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    /// The number of the process.
    pub(crate) server: u64,
    /// The number of the session among those of the process.
    pub(crate) member: usize,
}

record!(Seat { server, member });

/// The process of a session, or of several that share it. It may not run, because it was idle or has failed.
#[derive(Debug)]
pub(super) struct SharedServer {
    /// `None` if the process belongs to one session.
    key: Option<Key>,
    /// The principal for whose session it was started first. It counts as a session of this principal. If it belongs to one session,
    /// both count as one.
    pub(super) founder: Principal,
    program: Keeper<Process>,
    pub(super) sessions: Multiplexer,
    /// When a session has last sent something, or has waited for something.
    last_used: Time,
    /// Expires when the process must have initialized.
    timer: Alarm,
    /// Whether the former process has been told to stop and has not exited. Until then, no other one starts.
    is_stopping: bool,
    /// Whether the process of one session is not read on, because its client is behind.
    is_paused: bool,
}

record!(with(limit: RestartLimit) SharedServer {
    key,
    founder,
    program into(Keeper::new(limit)),
    sessions,
    last_used,
    timer,
    is_stopping,
    is_paused,
});

impl SharedServer {
    /// Continues after the program of the server has replaced itself.
    fn watch_again(&mut self, ctx: &mut Context) -> Result<(), RecordError> {
        self.timer.wake(ctx);
        self.program.watch_again(ctx);
        match self.program.child_mut() {
            Some(process) => process.watch_again(ctx),
            None => Ok(()),
        }
    }

    pub(super) fn process(&self) -> Option<&Process> {
        self.program.child()
    }

    /// Whether a message from a principal has to wait. `initialize` never does at a shared process, which does not
    /// get it.
    pub(super) fn is_behind(&mut self, envelope: &Envelope<'_>, principal: &Principal) -> bool {
        let is_answered_here = self.is_shared()
            && matches!(envelope.kind, MessageKind::Request { .. })
            && matches!(envelope.method(), "initialize" | "server/discover");
        if is_answered_here {
            return false;
        }
        !self.sessions.has_room(principal, envelope.text.len())
            || self
                .program
                .child_mut()
                .is_some_and(|process| process.is_behind())
    }

    /// Handles a message from a session, to which a request has given the number `stream`. Starts the process if it is needed.
    pub(super) fn handle_session(
        &mut self,
        ctx: &mut Context,
        member: usize,
        stream: u32,
        envelope: &Envelope<'_>,
        out: &mut Vec<Output>,
    ) -> Handled {
        self.last_used = ctx.now();
        let handled = self.sessions.handle_session(member, stream, envelope, out);
        self.start_if_needed(ctx);
        handled
    }

    /// Queues the start of a shared process that a session needs. The client of a session queues the start of its own process.
    pub(super) fn start_if_needed(&mut self, ctx: &mut Context) {
        if self.key.is_some() && self.sessions.needs_process() && !self.is_stopping {
            self.program.queue(ctx);
        }
    }

    /// The process that was told to stop has exited.
    pub(super) fn handle_stopped(&mut self, ctx: &mut Context) {
        self.is_stopping = false;
        self.start_if_needed(ctx);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Sends a line to the process. Unless it must be sent, it is dropped if the process does not read. Returns what follows.
    pub(super) fn send(&mut self, ctx: &mut Context, text: &str, must: bool) -> Vec<Output> {
        let mut out = Vec::new();
        let Some(process) = self.program.child_mut() else {
            return out;
        };
        match must {
            true => process.send_always(ctx, text),
            false => process.send(ctx, text),
        }
        for text in process.take_early() {
            if let Ok(envelope) = Envelope::parse(&text) {
                let reach = |_| Reach::Never;
                self.sessions.handle_process(&envelope, &reach, &mut out);
            }
        }
        out
    }

    /// Handles an event of the process. `reach` returns whether a request from the process can reach a session's client. Returns what
    /// follows, and why the session of the process must end. Afterwards, the caller calls [`Self::read_on`].
    pub(super) fn handle(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        path: &str,
        input: ChildInput,
        reach: &dyn Fn(Uuid) -> Reach,
    ) -> (Vec<Output>, Option<&'static str>) {
        let mut out = Vec::new();
        let Some(mut process) = self.program.take_child() else {
            return (out, None);
        };
        let sessions = &mut self.sessions;
        if !sessions.is_idle() {
            self.last_used = ctx.now();
        }
        let is_shared = self.key.is_some();
        let is_paused = self.is_paused;
        let (mut deliveries, mut bytes) = (0, 0);
        let event = process.handle(ctx, input, |ctx, received| {
            match received {
                Received::Message(envelope) => {
                    ctx.spend(2 + envelope.text.len() / 512);
                    bytes += envelope.text.len();
                    let before = out.len();
                    let handled = sessions.handle_process(&envelope, reach, &mut out);
                    if deliveries >= MAX_DELIVERIES && is_change(envelope.method()) {
                        // The rest of the output of a process that has exited cannot wait.
                        hub.counts.dropped += u64::from(out.len() > before);
                        out.truncate(before);
                    }
                    deliveries += out[before..].iter().map(Output::deliveries).sum::<usize>();
                    hub.counts.note(handled);
                }
                Received::Unreadable(recovered, why) => {
                    sessions.handle_unreadable(&recovered, why, &mut out);
                }
                Received::Nothing => {}
            }
            let is_ahead = !is_shared && (is_paused || bytes >= MAX_AHEAD);
            match is_ahead || deliveries >= MAX_DELIVERIES {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        let ChildEvent::Exited(exit) = event else {
            self.program.put_back(process);
            return (out, None);
        };
        // Before a shared process is initialized, it has served nobody.
        let data = exit.data(!is_shared || !self.sessions.is_ready());
        let failure = match exit.start_error() {
            Some(_) => Failure::NotStarted,
            None => Failure::Error(server_exited("null", &data)),
        };
        self.sessions.end(&failure, &mut out);
        self.cancel_timer(ctx);
        match exit.start_error() {
            _ if is_shared => {
                self.fail(ctx, hub, path, &exit.failure("the MCP server"));
                (out, None)
            }
            None => (out, Some("its process has exited")),
            Some(error) => {
                log::error!("{error}");
                (out, Some("its process cannot be started"))
            }
        }
    }

    /// Reads the process on in another turn, if it was paused. That of one session waits while its client is behind.
    pub(super) fn read_on(&mut self, ctx: &mut Context, is_behind: bool) {
        self.is_paused = is_behind && self.key.is_none();
        if !self.is_paused
            && let Some(process) = self.program.child_mut()
        {
            process.resume(ctx);
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// The process has failed. Another one is started after a delay, if a session needs it.
    pub(super) fn fail(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        path: &str,
        why: &ProgramFailure,
    ) {
        self.program.handle_failure(ctx, path, why);
        hub.counts.restarts += 1;
    }

    fn cancel_timer(&mut self, ctx: &mut Context) {
        self.timer.set(ctx, None);
    }

    /// Notes that the process is initialized.
    pub(super) fn note_progress(&mut self, ctx: &mut Context) {
        if self.sessions.is_ready() {
            self.cancel_timer(ctx);
        }
    }

    /// Tells the process to stop, if it runs.
    pub(super) fn stop(&mut self, ctx: &mut Context) -> Option<Box<Process>> {
        self.cancel_timer(ctx);
        self.sessions.forget_process();
        let mut process = self.program.give_up(ctx)?;
        process.stop(ctx);
        self.is_stopping = true;
        Some(process)
    }

    /// Since when nobody has needed a shared process; `None` if somebody does.
    pub(super) fn idle_since(&self) -> Option<Time> {
        let is_idle = self.key.is_some() && self.sessions.is_idle();
        is_idle.then_some(self.last_used)
    }

    pub(super) fn last_used(&self) -> Time {
        self.last_used
    }

    /// The principal that alone shares the process.
    pub(super) fn principal(&self) -> Option<&Principal> {
        self.key.as_ref()?.principal.as_ref()
    }

    /// Whether sessions share the process.
    pub(super) fn is_shared(&self) -> bool {
        self.key.is_some()
    }
}

/// The processes of sessions.
#[derive(Debug)]
pub(super) struct SharedServers {
    share: McpShare,
    command: Vec<String>,
    place: ProgramPlace,
    initialize_timeout: Option<Duration>,
    limit: RestartLimit,
    servers: IdMap<u64, SharedServer>,
    numbers: HashMap<Key, u64>,
    last_number: u64,
}

/// Call [`SharedServers::watch_again`] after loading them.
impl State for SharedServers {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        let Self {
            share: _,
            command: _,
            place: _,
            initialize_timeout: _,
            limit: _,
            servers,
            // The servers have their keys.
            numbers: _,
            last_number,
        } = self;
        to.open(b'{');
        to.member("servers", |to| {
            to.array(servers, |to, (number, server)| {
                to.open(b'[');
                to.number(*number);
                to.next();
                RecordWith::save(server, to);
                to.close(b']');
            });
        });
        to.field("last_number", last_number);
        to.close(b'}');
    }

    fn load(&mut self, from: &mut Loader) -> Result<(), RecordError> {
        let (limit, numbers, servers) = (self.limit, &mut self.numbers, &mut self.servers);
        let mut read_servers = Read(|from: &mut Loader| {
            from.each(&mut |from| {
                from.pair(b'[')?;
                let number = Record::restore(from)?;
                from.pair(b',')?;
                let server = <SharedServer as RecordWith>::restore(from, limit)?;
                if let Some(key) = server.key.clone() {
                    numbers.insert(key, number);
                }
                servers.insert(number, server);
                from.pair(b']')
            })
        });
        object!(from {
            servers: read_servers,
            last_number: Set(&mut self.last_number),
        })
    }
}

impl SharedServers {
    /// Continues after the program of the server has replaced itself.
    ///
    /// # Errors
    ///
    /// A process cannot be watched.
    pub(super) fn watch_again(&mut self, ctx: &mut Context) -> Result<(), RecordError> {
        let mut servers = self.servers.values_mut();
        servers.try_for_each(|server| server.watch_again(ctx))
    }

    pub(super) fn new(config: &McpConfig) -> Self {
        let mut limit = config.restart_limit;
        limit.on_failure = OnFailure::Retry;
        Self {
            share: config.share,
            command: config.command.clone(),
            place: config.place.clone(),
            initialize_timeout: config.initialize_timeout,
            limit,
            servers: IdMap::default(),
            numbers: HashMap::new(),
            last_number: 0,
        }
    }

    pub(super) fn get(&self, number: u64) -> Option<&SharedServer> {
        self.servers.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut SharedServer> {
        self.servers.get_mut(&number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &SharedServer)> {
        self.servers
            .iter()
            .map(|(number, server)| (*number, server))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// The number of processes that run.
    pub(super) fn process_count(&self) -> usize {
        let servers = self.servers.values();
        servers.filter(|server| server.process().is_some()).count()
    }

    /// The processes that run and that sessions share.
    pub(super) fn shared(&self) -> impl Iterator<Item = &Process> {
        let shared = self.servers.values().filter(|server| server.is_shared());
        shared.filter_map(SharedServer::process)
    }

    /// Gives a session a seat at the process for this revision and these capabilities, which are JSON. `may_add` is asked whether there
    /// may be one more process.
    pub(super) fn join(
        &mut self,
        session: Uuid,
        principal: &Principal,
        asked: (&str, &str),
        now: Time,
        may_add: impl FnOnce() -> Result<(), HttpError>,
    ) -> Result<Seat, HttpError> {
        let key = Key::new(self.share, principal, asked)?;
        let number = match self.numbers.get(&key) {
            Some(number) => *number,
            None => {
                may_add()?;
                let sessions = Multiplexer::new(key.who(), &key.version, &key.capabilities);
                let number = self.add(Some(key.clone()), principal, sessions);
                self.numbers.insert(key, number);
                number
            }
        };
        self.seat(number, session, principal, now)
    }

    /// Gives a session a process of its own.
    pub(super) fn join_alone(
        &mut self,
        session: Uuid,
        principal: &Principal,
        now: Time,
    ) -> Result<Seat, HttpError> {
        let sessions = Multiplexer::new(Who::Client, "null", "null");
        let number = self.add(None, principal, sessions);
        self.seat(number, session, principal, now)
    }

    fn add(&mut self, key: Option<Key>, principal: &Principal, sessions: Multiplexer) -> u64 {
        self.last_number += 1;
        let server = SharedServer {
            founder: principal.clone(),
            program: Keeper::new(self.limit),
            sessions,
            last_used: Time::default(),
            timer: Alarm::default(),
            is_stopping: false,
            is_paused: false,
            key,
        };
        self.servers.insert(self.last_number, server);
        self.last_number
    }

    fn seat(
        &mut self,
        number: u64,
        session: Uuid,
        principal: &Principal,
        now: Time,
    ) -> Result<Seat, HttpError> {
        let server = self.servers.get_mut(&number);
        let server = server.ok_or_else(HttpError::no_session)?;
        server.last_used = now;
        Ok(Seat {
            server: number,
            member: server.sessions.join(session, principal),
        })
    }

    /// Removes a process that no session uses.
    pub(super) fn remove(&mut self, number: u64) -> Option<SharedServer> {
        let server = self.servers.remove(&number)?;
        if let Some(key) = &server.key {
            self.numbers.remove(key);
        }
        Some(server)
    }

    /// The next of the shared processes whose starts are queued.
    pub(super) fn next_start(&mut self) -> Option<u64> {
        let mut servers = self.servers.iter_mut();
        let next = servers.find_map(|(number, server)| server.program.begin().then_some(number));
        next.copied()
    }

    /// Starts a process. Returns what follows.
    pub(super) fn start(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        path: &str,
        number: u64,
    ) -> Vec<Output> {
        let mut out = Vec::new();
        let Some(server) = self.servers.get_mut(&number) else {
            return out;
        };
        if server.is_shared() {
            ctx.work_for_service();
        }
        match Process::start_for_sessions(ctx, &self.command, &self.place) {
            Ok(process) => {
                hub.counts.processes += 1;
                server.program.handle_start(process);
                server.last_used = ctx.now();
                let deadline = self.initialize_timeout.map(|limit| ctx.now() + limit);
                server.timer.set(ctx, deadline);
                server.sessions.begin(&mut out);
            }
            Err(error) => {
                server.sessions.end(&Failure::NotStarted, &mut out);
                match server.is_shared() {
                    true => server.fail(ctx, hub, path, &error.to_string().into()),
                    false => log::error!("{error}"),
                }
            }
        }
        out
    }

    /// Handles a timer. Returns the number of a process that has not initialized in time.
    pub(super) fn handle_timer(&mut self, ctx: &mut Context, timer: TimerId) -> Option<u64> {
        for (number, server) in &mut self.servers {
            if server.timer.expire(timer) {
                return Some(*number);
            }
            if server.program.expire(timer) {
                server.start_if_needed(ctx);
                return None;
            }
        }
        None
    }
}
