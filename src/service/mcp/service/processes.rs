//! The processes of the endpoint: whose they are, and when they and their sessions end.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Duration;

use uuid::Uuid;

use super::Mcp;
use crate::log_event::{Field, log_event};
use crate::record::{RecordError, record};
use crate::service::child::{ChildEvent, ChildInput};
use crate::service::jsonrpc::{Envelope, code, error};
use crate::service::mcp::pool::{PoolChange, Support};
use crate::service::mcp::process::Process;
use crate::service::mcp::quota::Full;
use crate::service::mcp::session::Session;
use crate::service::mcp::shared::{Failure, Incoming, Output, Reach, Seat};
use crate::{Context, Principal, TimerId};

/// How often to look for sessions to end, at least.
const SWEEP: Duration = Duration::from_secs(15);

/// The owner of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// The slot of the pool.
    Pool(usize),
    /// The number of the process of sessions.
    Shared(u64),
    /// No owner: the process is being stopped.
    Stopping(u64),
}

/// A process that has no owner and will exit.
#[derive(Debug)]
pub(super) struct StoppingProcess {
    pub(super) process: Box<Process>,
    pub(super) place: Place,
}

/// What a process counts towards until it has exited.
#[derive(Debug)]
pub(super) enum Place {
    /// One of the pool.
    Pool,
    /// A session of this principal, which is given back.
    Session(Principal),
    /// The shared process of this number, which may start again.
    Shared(u64),
}

record!(StoppingProcess { process, place });

record!(
    enum Place {
        Pool,
        Session(principal),
        Shared(number),
    }
);

impl Mcp {
    /// Continues after the program of the server has replaced itself.
    ///
    /// # Errors
    ///
    /// A process cannot be watched.
    pub(super) fn watch_again(&mut self, ctx: &mut Context) -> Result<(), RecordError> {
        self.max_json = ctx.config().max_json;
        self.hub.wake(ctx);
        self.pool.watch_again(ctx, &self.config)?;
        self.shared.watch_again(ctx)?;
        let mut stopping = self.stopping.values_mut();
        stopping.try_for_each(|stopping| stopping.process.watch_again(ctx))?;
        let mut owners: Vec<Owner> = self.pool.slots().map(Owner::Pool).collect();
        owners.extend(self.shared.iter().map(|(number, _)| Owner::Shared(number)));
        owners.extend(self.stopping.keys().copied().map(Owner::Stopping));
        owners.into_iter().for_each(|owner| self.note_start(owner));
        for session in self.sessions.values().filter(|one| one.is_alone) {
            let server = self.shared.get(session.seat.server);
            let waits = server.is_some_and(|server| server.sessions.needs_process());
            if let Some(caller) = session.beginning().filter(|_| waits) {
                ctx.queue_start(caller);
            }
        }
        self.sweep.wake(ctx);
        Ok(())
    }

    /// Ends a session and stops its process.
    pub(super) fn end_session(&mut self, ctx: &mut Context, id: Uuid, why: &str) {
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        log_event!(
            Info,
            session = short(id),
            "ended",
            reason = Field::Bare(&why)
        );
        let (seat, is_alone) = (session.seat, session.is_alone);
        let principal = session.end(ctx, &mut self.hub, why);
        if is_alone {
            // It counts until its process has exited.
            return self.remove_server(ctx, seat.server);
        }
        self.hub.sessions.give_back(&principal, 1);
        self.leave(ctx, seat);
    }

    /// Gives up a seat at a shared process.
    pub(super) fn leave(&mut self, ctx: &mut Context, seat: Seat) {
        let mut out = Vec::new();
        if let Some(server) = self.shared.get_mut(seat.server) {
            server.sessions.leave(seat.member, &mut out);
        }
        self.act(ctx, seat.server, out);
    }

    /// Sends a message from a seat to the process. A request has the number `stream`.
    pub(super) fn send_from_seat(
        &mut self,
        ctx: &mut Context,
        seat: Seat,
        stream: u32,
        envelope: &Envelope<'_>,
    ) {
        let mut out = Vec::new();
        if let Some(server) = self.shared.get_mut(seat.server) {
            let handled = server.handle_session(ctx, seat.member, stream, envelope, &mut out);
            self.hub.counts.note(handled);
        }
        self.act(ctx, seat.server, out);
    }

    /// Fails a request of a session that has waited too long.
    pub(super) fn time_out(&mut self, ctx: &mut Context, id: Uuid, stream: u32) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let seat = session.seat;
        let cancelled = session.time_out(ctx, &mut self.hub, stream);
        if let Some(envelope) = cancelled.as_deref().map(Envelope::parse)
            && let Ok(envelope) = envelope
        {
            self.send_from_seat(ctx, seat, 0, &envelope);
            self.read_on(ctx, seat.server);
        }
    }

    /// Reads a process on that has waited for the client of its session, if the client has caught up.
    pub(super) fn read_on(&mut self, ctx: &mut Context, number: u64) {
        let server = self.shared.get_mut(number);
        let Some(server) = server.filter(|server| server.is_paused()) else {
            return;
        };
        let owner = server.sessions.owner();
        let session = owner.and_then(|owner| self.sessions.get(&owner));
        server.read_on(ctx, session.is_some_and(|session| session.is_behind(ctx)));
    }

    /// Does what follows from a message to or from a shared process.
    pub(super) fn act(&mut self, ctx: &mut Context, number: u64, out: Vec<Output>) {
        let mut ended = Vec::new();
        let mut is_refused = false;
        let mut out = VecDeque::from(out);
        while let Some(output) = out.pop_front() {
            let (text, must) = match output {
                Output::Process(text) => (text, true),
                Output::AnswerToProcess(text) => (text, false),
                Output::Session(id, incoming, text) => {
                    let why = self.receive(ctx, id, &incoming, &text);
                    ended.extend(why.map(|why| (id, why)));
                    continue;
                }
                Output::Change(receivers, text) => {
                    for id in receivers {
                        self.receive(ctx, id, &Incoming::Change, &text);
                    }
                    continue;
                }
                Output::Refused => {
                    is_refused = true;
                    continue;
                }
            };
            if let Some(server) = self.shared.get_mut(number) {
                out.extend(server.send(ctx, &text, must));
            }
        }
        for (id, why) in ended {
            self.end_session(ctx, id, why);
        }
        if is_refused {
            self.fail_server(ctx, number, "the MCP server has refused to initialize");
        } else if let Some(server) = self.shared.get_mut(number) {
            server.note_progress(ctx);
        }
    }

    /// Passes a message from a process on to a session, or to the caller of a translated call. Returns why the session must end, if it
    /// could not begin.
    fn receive(
        &mut self,
        ctx: &mut Context,
        id: Uuid,
        incoming: &Incoming,
        text: &str,
    ) -> Option<&'static str> {
        ctx.spend(1);
        if let Some(session) = self.sessions.get_mut(&id) {
            return session.receive(ctx, &mut self.hub, incoming, text);
        }
        self.receive_translated(ctx, id, incoming, text);
        None
    }

    /// Stops a shared process that cannot be used.
    fn fail_server(&mut self, ctx: &mut Context, number: u64, why: &str) {
        self.stop_server(ctx, number);
        if let Some(server) = self.shared.get_mut(number) {
            let path = self.config.endpoint.path();
            server.fail(ctx, &mut self.hub, path, &why.to_owned().into());
        }
    }

    /// Tells a shared process to stop. Its sessions keep their seats.
    fn stop_server(&mut self, ctx: &mut Context, number: u64) {
        if let Some(process) = self.shared.get_mut(number).and_then(|one| one.stop(ctx)) {
            self.keep_until_exit(Owner::Shared(number), process, Place::Shared(number));
        }
    }

    /// Forgets a process that no session uses. It counts until it has exited.
    fn remove_server(&mut self, ctx: &mut Context, number: u64) {
        let process = self.shared.get_mut(number).and_then(|one| one.stop(ctx));
        let Some(server) = self.shared.remove(number) else {
            return;
        };
        match process {
            Some(process) => {
                let place = Place::Session(server.founder);
                self.keep_until_exit(Owner::Shared(number), process, place);
            }
            None if server.is_stopping() => {
                let mut stopping = self.stopping.values_mut();
                let own = |one: &&mut StoppingProcess| matches!(one.place, Place::Shared(of) if of == number);
                if let Some(stopping) = stopping.find(own) {
                    stopping.place = Place::Session(server.founder);
                }
            }
            None => self.hub.sessions.give_back(&server.founder, 1),
        }
    }

    /// Makes room for a session or a process of a principal: of the processes that no session uses, forgets the one that was not used
    /// for the longest time. If the limit of the principal is reached, it must be one of its own.
    pub(super) fn make_room(&mut self, ctx: &mut Context, full: Full, principal: &Principal) {
        let unused = self.shared.iter();
        let unused = unused.filter(|(_, server)| {
            let frees = full == Full::All || server.founder == *principal;
            frees && !server.sessions.has_members()
        });
        let oldest = unused.min_by_key(|(_, server)| server.last_used());
        if let Some(number) = oldest.map(|(number, _)| number) {
            self.remove_server(ctx, number);
        }
    }

    /// Stops the shared processes that were idle for too long, and forgets those that no session uses.
    fn end_unused_servers(&mut self, ctx: &mut Context) {
        let (now, most) = (ctx.now(), self.config.process_idle);
        let is_revoked = |principal: &Principal| {
            let tokens = &ctx.config().access.tokens;
            matches!(principal, Principal::Named(name) if tokens.find(name).is_none())
        };
        let idle: Vec<u64> = self
            .shared
            .iter()
            .filter(|(_, server)| {
                let idle = server.idle_since().map(|since| now.since(since));
                idle.zip(most).is_some_and(|(idle, most)| idle >= most)
                    || (!server.sessions.has_members()
                        && server.principal().is_some_and(is_revoked))
            })
            .map(|(number, _)| number)
            .collect();
        for number in idle {
            if self
                .shared
                .get(number)
                .is_some_and(|one| one.sessions.has_members())
            {
                self.stop_server(ctx, number);
            } else {
                self.remove_server(ctx, number);
            }
        }
    }

    /// Handles a timer of a shared process, if it is one.
    pub(super) fn handle_shared_timer(&mut self, ctx: &mut Context, timer: TimerId) {
        let Some(number) = self.shared.handle_timer(ctx, timer) else {
            return;
        };
        let Some(server) = self.shared.get_mut(number) else {
            return;
        };
        if let Some(session) = server.sessions.owner() {
            let why = "its process has not answered initialize in time";
            return self.end_session(ctx, session, why);
        }
        let mut out = Vec::new();
        let error = error("null", code::INTERNAL, "Request timed out", None);
        server.sessions.end(&Failure::Error(error), &mut out);
        self.act(ctx, number, out);
        self.fail_server(ctx, number, "the MCP server has not initialized in time");
    }

    /// Starts the next shared process whose start is queued.
    pub(super) fn start_next_server(&mut self, ctx: &mut Context) {
        if let Some(number) = self.shared.next_start() {
            self.start_server(ctx, number);
        }
    }

    /// Starts a process of sessions.
    pub(super) fn start_server(&mut self, ctx: &mut Context, number: u64) {
        let path = self.config.endpoint.path();
        let out = self.shared.start(ctx, &mut self.hub, path, number);
        self.note_start(Owner::Shared(number));
        self.act(ctx, number, out);
    }

    /// Stops all processes of sessions, because the server stops.
    pub(super) fn stop_servers(&mut self, ctx: &mut Context) {
        let numbers: Vec<u64> = self.shared.iter().map(|(number, _)| number).collect();
        for number in numbers {
            self.remove_server(ctx, number);
        }
    }

    /// Keeps a process that was told to stop until it has exited.
    fn keep_until_exit(&mut self, owner: Owner, process: Box<Process>, place: Place) {
        self.last_stopping += 1;
        let stopping = Owner::Stopping(self.last_stopping);
        self.index.rename(owner, stopping);
        self.index.set_timer(stopping, process.timer());
        let stopping = StoppingProcess { process, place };
        self.stopping.insert(self.last_stopping, stopping);
    }

    pub(super) fn apply(&mut self, change: Option<PoolChange>) {
        match change {
            Some(PoolChange::Started(slot)) => self.note_start(Owner::Pool(slot)),
            Some(PoolChange::Stopping(slot, process)) => {
                self.keep_until_exit(Owner::Pool(slot), process, Place::Pool);
            }
            Some(PoolChange::Failed(why)) => self.failure = Some(why),
            None => {}
        }
    }

    /// The process of an owner.
    fn process(&self, owner: Owner) -> Option<&Process> {
        match owner {
            Owner::Pool(slot) => self.pool.process(slot),
            Owner::Shared(number) => self.shared.get(number)?.process(),
            Owner::Stopping(number) => Some(&self.stopping.get(&number)?.process),
        }
    }

    /// A process was started: its events are passed on.
    pub(super) fn note_start(&mut self, owner: Owner) {
        if let Some(process) = self.process(owner) {
            let (sources, timer): (Vec<_>, _) = (process.sources().collect(), process.timer());
            self.index.add(owner, sources, timer);
        }
    }

    /// A process has handled an event, or was stopped: its timer may be another, and it may be gone.
    pub(super) fn note_change(&mut self, owner: Owner) {
        match self.process(owner).map(Process::timer) {
            Some(timer) => self.index.set_timer(owner, timer),
            None => self.index.remove(owner),
        }
    }

    /// Starts the other processes of the pool once the first has said what it supports.
    pub(super) fn complete_pool(&mut self, ctx: &mut Context) {
        self.pool.start_others(ctx);
    }

    /// Handles the requests that the pool has held for a process that does not support them.
    pub(super) fn serve_unserved(&mut self, ctx: &mut Context) {
        for (reply, principal, text) in std::mem::take(&mut self.pool.unserved) {
            if let Ok(envelope) = Envelope::parse(&text) {
                self.translate(ctx, &envelope, reply, principal);
            }
        }
    }

    /// Lets a process handle an event.
    pub(super) fn handle_process(&mut self, ctx: &mut Context, owner: Owner, input: ChildInput) {
        match owner {
            Owner::Pool(slot) => {
                let was_known = self.pool.support != Support::Unknown;
                let change = self.pool.handle(ctx, &mut self.hub, slot, input);
                self.apply(change);
                if !was_known && self.pool.support == Support::Stateless {
                    self.complete_pool(ctx);
                }
                self.serve_unserved(ctx);
            }
            Owner::Shared(number) => self.handle_server(ctx, number, input),
            Owner::Stopping(number) => {
                let Some(stopping) = self.stopping.get_mut(&number) else {
                    return;
                };
                let event = stopping
                    .process
                    .handle(ctx, input, |_, _| ControlFlow::Continue(()));
                if matches!(event, ChildEvent::Exited(_)) {
                    match self.stopping.remove(&number).map(|gone| gone.place) {
                        Some(Place::Session(principal)) => {
                            self.hub.sessions.give_back(&principal, 1);
                        }
                        Some(Place::Shared(number)) => {
                            if let Some(server) = self.shared.get_mut(number) {
                                server.handle_stopped(ctx);
                            }
                        }
                        Some(Place::Pool) | None => {}
                    }
                }
            }
        }
        self.note_change(owner);
    }

    /// Lets a process of sessions handle an event.
    fn handle_server(&mut self, ctx: &mut Context, number: u64, input: ChildInput) {
        let Self {
            hub,
            sessions,
            translated,
            shared,
            config,
            ..
        } = self;
        let Some(server) = shared.get_mut(number) else {
            return;
        };
        let path = config.endpoint.path();
        let reach = |id| match sessions.get(&id) {
            Some(session) if session.is_reading() => Reach::Now,
            Some(_) => Reach::Later,
            None => translated.reach(id),
        };
        let (out, ended) = server.handle(ctx, hub, path, input, &reach);
        let owner = server.sessions.owner();
        if let Some(session) = owner.and_then(|owner| self.sessions.get_mut(&owner))
            && ended.is_some()
        {
            session.give_up();
        }
        self.act(ctx, number, out);
        if let Some((owner, why)) = owner.zip(ended) {
            return self.end_session(ctx, owner, why);
        }
        let session = owner.and_then(|owner| self.sessions.get(&owner));
        let is_behind = session.is_some_and(|session| session.is_behind(ctx));
        if let Some(server) = self.shared.get_mut(number) {
            server.read_on(ctx, is_behind);
        }
    }

    /// Sets the timer that looks for sessions to end.
    pub(super) fn begin_sweep(&mut self, ctx: &mut Context) {
        let is_unused = self.sessions.is_empty() && self.shared.is_empty();
        if self.sweep.deadline().is_none() && !(is_unused && self.pool.process_count() == 0) {
            let config = &self.config;
            let idle = [config.session_idle, config.list_idle, config.process_idle];
            let idle = idle.into_iter().flatten().min().unwrap_or(Duration::MAX);
            let at = ctx.now() + SWEEP.min(idle / 4);
            self.sweep.set(ctx, Some(at));
        }
    }

    /// Ends the sessions that have been idle for too long, and those of principals whose token was revoked.
    pub(super) fn end_unused(&mut self, ctx: &mut Context) {
        let now = ctx.now();
        let (working, listing) = (self.config.session_idle, self.config.list_idle);
        let tokens = &ctx.config().access.tokens;
        let reason = |session: &Session| match &session.principal {
            Principal::Named(name) if tokens.find(name).is_none() => Some("its token was revoked"),
            _ => {
                let idle = session.idle_since().map(|since| now.since(since));
                let most = if session.has_worked() {
                    working
                } else {
                    working.into_iter().chain(listing).min()
                };
                idle.zip(most)
                    .is_some_and(|(idle, most)| idle >= most)
                    .then_some("idle")
            }
        };
        let unused: Vec<(Uuid, &str)> = self
            .sessions
            .values()
            .filter_map(|session| Some((session.id, reason(session)?)))
            .collect();
        for (id, why) in unused {
            self.end_session(ctx, id, why);
        }
        self.end_unused_servers(ctx);
        if let Some(idle) = self.config.process_idle {
            for change in self.pool.stop_idle(ctx, idle) {
                self.apply(Some(change));
            }
        }
        self.begin_sweep(ctx);
    }

    /// The number of processes, including those that are being stopped.
    pub(super) fn process_count(&self) -> usize {
        self.pool.process_count() + self.shared.process_count() + self.stopping.len()
    }

    pub(super) fn pending(&self) -> usize {
        let in_sessions = self.sessions.values().map(Session::pending);
        self.pool.pending() + in_sessions.sum::<usize>() + self.translated.len()
    }
}

/// The start of a session's id, for the log. The whole id is a secret.
pub(super) fn short(id: Uuid) -> String {
    id.to_string()[..8].to_owned()
}
