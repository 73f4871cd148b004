//! The event loop: polls for events, dispatches them, and disconnects clients. No other module removes a client.
//!
//! A turn of the loop waits for events or the next deadline. Then it performs tasks: it handles events, reads queued
//! clients, handles passed deadlines and writes queued output. Every action that may change a client goes through
//! [`Server::act`], which then handles the news in the run queue. Reads, writes, accepts and work are bounded in each
//! turn, so that no client can starve another.

use std::fmt;
use std::io;
use std::time::Duration;

use mio::event::Event as Readied;
use mio::{Events, Poll};

use super::address::ListenAddress;
use super::client::{Inbound, Input, Read, ReadGate, Why};
use super::clock::Clock;
use super::context::Context;
use super::core::{Core, earlier};
use super::error::Error;
use super::handle::{Handle, Inbox};
use super::id::{ClientId, Origin, ServiceId, SourceId};
use super::listener::{Accepted, EXHAUSTED_RETRY, Listener};
use super::policy::Access;
use super::requests::handle_http;
use super::run_queue::News;
use super::service::{Readiness, Service};
use super::signals::Signals;
use super::timers::Due;
use crate::protocol::{CloseReason, Rejection, Time, Timeout};
use crate::sys::{Reaper, monotonic_nanos};

/// The maximum number of events taken from the kernel in one turn.
const EVENTS_PER_TURN: usize = 1024;

/// The maximum number of connections that are evicted together to make room for new ones.
const EVICTED: usize = 64;

/// The minimum number of queued clients that are read in each turn, even if the turn's budget is spent.
const LEAST_READS: usize = 16;

/// The minimum number of queued clients that are written to in each turn, even if the turn's budget is spent.
const LEAST_WRITES: usize = 64;

/// Creates new access settings.
pub(super) type Reload = Box<dyn FnMut() -> Option<Access> + Send>;

/// A WebSocket server with the service it serves.
pub struct Server<S> {
    pub(super) poll: Poll,
    pub(super) ctx: Context,
    pub(super) service: S,
    pub(super) commands: Inbox,
    pub(super) listeners: Vec<Listener>,
    pub(super) signals: Option<Signals>,
    /// SIGHUP, and the function that then creates new access settings.
    pub(super) reload: Option<(Signals, Reload)>,
    /// SIGCHLD, if this process adopts orphans.
    pub(super) children: Option<Signals>,
    /// Reaps adopted processes that have exited.
    pub(super) reaper: Reaper,
    /// Whether the service was started.
    pub(super) started: bool,
    /// When the first signal arrived. A later one ends the server at once.
    pub(super) signalled: Option<Time>,
    /// When to try to accept connections again after slots or descriptors ran out, or the limit of a turn was reached.
    pub(super) accept_again: Option<Time>,
    pub(super) clock: Clock,
    pub(super) buffer: Box<[u8]>,
}

/// Parses the next event from a client's input and passes it to the service. Returns whether parsing can continue.
#[inline(never)]
fn receive<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    id: ClientId,
    input: &mut Input<'_>,
) -> bool {
    let Some((client, env)) = ctx.core.reading() else {
        return false;
    };
    if client.read_gate(env) != ReadGate::Ready {
        return false;
    }
    let event = client.receive(env, input);
    env.has_more_input = !input.is_empty();
    match event {
        None => return false,
        Some(Inbound::Message(payload)) => {
            service.message(ctx, id, payload.as_message());
            payload.recycle(&mut ctx.core.env.protocol.buffers);
        }
        Some(Inbound::OverRate) => {}
        Some(Inbound::Http(event)) => handle_http(ctx, service, id, event),
    }
    !input.is_empty()
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The clients and the service finished, or the drain timeout passed.
    Cleanly,
    /// A second signal ended the server before the drain timeout.
    AtOnce,
}

impl<S> fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("listen", &self.ctx.listen_addresses())
            .finish_non_exhaustive()
    }
}

/// A unit of work of the loop.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    /// A client's socket is ready.
    Client {
        id: ClientId,
        readable: bool,
        writable: bool,
        hung_up: bool,
    },
    /// A queued client may have more input.
    Read(ClientId),
    /// A client has queued output.
    Write(ClientId),
    /// A client's deadline, or a timer of a service, may have passed.
    Timer(Due),
    /// A descriptor that a service watches is ready.
    Source(SourceId, Readiness),
    /// Another thread has sent commands.
    Commands,
    /// An adopted process may have exited.
    Orphans,
}

impl<S: Service> Server<S> {
    /// The addresses that the server listens on, with the ports that were chosen for port 0.
    pub fn local_addresses(&self) -> &[ListenAddress] {
        self.ctx.listen_addresses()
    }

    /// A handle that controls the server from other threads.
    pub fn handle(&self) -> Handle {
        self.commands.handle()
    }

    /// Starts the service without running the loop, so that the caller can see whether it failed before announcing the
    /// server. Call [`Server::run`] in either case, because it stops everything that was started.
    ///
    /// # Errors
    ///
    /// The failure of the service ([`Service::failure`]).
    pub fn start(&mut self) -> Result<(), Error> {
        if !std::mem::replace(&mut self.started, true) {
            self.ctx.core.env.now = self.clock.now();
            self.act(|server| server.service.started(&mut server.ctx));
        }
        match self.service.failure() {
            Some(failure) => Err(Error::Service(failure.to_owned())),
            None => Ok(()),
        }
    }

    /// Runs the loop until the server is stopped. Returns the service and how the server ended.
    ///
    /// However the loop ends, the service has seen `disconnected` for every client, and `stopping`.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if waiting for events fails. No client can cause an error.
    pub fn run(mut self) -> Result<(S, Ended), Error> {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        // A service that fails to start stops the server, so the loop below ends.
        let _ = self.start();
        self.ctx.core.env.now = self.clock.now();
        let mut ended = Ended::Cleanly;
        while !self.ctx.core.shutdown.is_over() {
            let timeout = self.timeout();
            let before = self.ctx.now();
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    log::error!("waiting for events failed: {error}");
                    self.leave_at_once();
                    return Err(Error::system("wait for events")(error));
                }
            }
            let began = monotonic_nanos();
            self.ctx.core.begin_turn(self.clock.at(began));
            self.handle_jump(before, timeout);
            for event in &events {
                self.handle_event(event, &mut ended);
            }
            self.take_turn();
            let took = monotonic_nanos().saturating_sub(began);
            self.ctx.core.env.counters.turns.observe_nanos(took);
        }
        Ok((self.service, ended))
    }

    /// The part of a turn that follows its events.
    pub(super) fn take_turn(&mut self) {
        if self.reaper.has_work() {
            self.perform(Task::Orphans);
        }
        for index in 0..self.ctx.core.env.queue.readable_count() {
            let is_spent = index >= LEAST_READS && self.ctx.is_turn_spent();
            let Some(id) = self.ctx.core.env.queue.pop_readable(is_spent) else {
                break;
            };
            self.perform(Task::Read(id));
        }
        if self.ctx.core.sources.has_work() {
            for (source, readiness) in self.ctx.core.sources.take_again() {
                self.perform(Task::Source(source, readiness));
            }
        }
        if self.listeners.iter().any(|listener| listener.pending) {
            self.act(Self::accept_clients);
        }
        self.handle_deadlines();
        for index in 0..self.ctx.core.env.queue.dirty_count() {
            if index >= LEAST_WRITES && self.ctx.is_turn_spent() {
                break;
            }
            let Some(id) = self.ctx.core.env.queue.pop_dirty() else {
                break;
            };
            self.perform(Task::Write(id));
        }
        self.ctx.core.trim_if_due();
        self.handle_shutdown();
    }

    fn handle_event(&mut self, event: &Readied, ended: &mut Ended) {
        match Origin::from(event.token()) {
            Origin::Client(id) => {
                let hung_up = event.is_read_closed() || event.is_error();
                self.perform(Task::Client {
                    id,
                    readable: event.is_readable() || hung_up,
                    writable: event.is_writable(),
                    hung_up,
                });
            }
            Origin::Source(source) => {
                let failed = event.is_error();
                let readiness = Readiness {
                    readable: event.is_readable() || event.is_read_closed() || failed,
                    writable: event.is_writable() || event.is_write_closed() || failed,
                };
                self.perform(Task::Source(source, readiness));
            }
            Origin::Waker => self.perform(Task::Commands),
            Origin::Signals => {
                let count = self.signals.as_mut().map_or(0, Signals::take);
                for _ in 0..count {
                    self.handle_signal(ended);
                }
            }
            Origin::Reload => {
                if let Some((signals, make)) = &mut self.reload
                    && signals.take() > 0
                    && let Some(access) = make()
                {
                    self.ctx.core.env.config.access = access;
                    log::info!("hangup received: reloaded access settings");
                }
            }
            Origin::Children => {
                if self.children.as_mut().is_some_and(|pipe| pipe.take() > 0) {
                    self.reaper.child_has_ended();
                }
            }
            Origin::Listener(index) => {
                if let Some(listener) = self.listeners.get_mut(index) {
                    listener.pending = true;
                }
            }
        }
    }

    /// Performs a task, then handles its news. A task does nothing if its client, source or timer is gone, even if the
    /// slot was reused.
    pub(super) fn perform(&mut self, task: Task) {
        self.act(|server| server.start_task(task));
    }

    fn start_task(&mut self, task: Task) {
        match task {
            Task::Client {
                id,
                readable,
                writable,
                hung_up,
            } => self.handle_client(id, readable, writable, hung_up),
            Task::Read(id) => {
                self.ctx.core.with(id, |client, _| client.leave_queue());
                self.read_client(id);
            }
            Task::Write(id) => {
                self.ctx.core.with(id, |client, env| client.flush(env));
            }
            Task::Timer(Due::Client(id)) => self.handle_deadline(id),
            Task::Timer(Due::Service(timer, service_id)) => {
                self.ctx.core.service_id = service_id;
                self.service.timer(&mut self.ctx, timer);
            }
            Task::Source(source, readiness) => {
                if let Some(service_id) = self.ctx.core.sources.service_id(source) {
                    self.ctx.core.service_id = service_id;
                    self.service.ready(&mut self.ctx, source, readiness);
                }
            }
            Task::Commands => self.commands.run(&mut self.ctx, &self.service),
            Task::Orphans => {
                if self.reaper.reap() {
                    self.ctx.core.service_id = ServiceId::ALL;
                    self.service.orphans_changed(&mut self.ctx);
                }
            }
        }
    }

    /// Runs an action that may change clients or call the service, then handles its news. No other function calls
    /// `reap`.
    #[inline]
    pub(super) fn act(&mut self, action: impl FnOnce(&mut Self)) {
        action(self);
        self.reap();
    }

    fn handle_client(&mut self, id: ClientId, readable: bool, writable: bool, hung_up: bool) {
        let found = self.ctx.core.with(id, |client, env| {
            if readable {
                client.handle_readable(hung_up);
            }
            if writable {
                client.handle_writable(env);
            }
        });
        if found.is_none() || !readable {
            return;
        }
        // The turn's budget is spent, or clients that the last turn left unread come first.
        if self.ctx.core.env.queue.is_behind() || self.ctx.is_turn_spent() {
            self.ctx.core.with(id, |client, env| client.read_again(env));
        } else {
            self.read_client(id);
        }
    }

    /// Reads a client within its share of the turn, and passes its messages and requests to the service. The client is
    /// checked out of its slot meanwhile.
    fn read_client(&mut self, id: ClientId) {
        if self.ctx.core.begin_read(id) {
            let is_ready = self.is_ready_to_read();
            if is_ready {
                self.read_checked_out(id);
            }
            self.ctx.core.end_read(is_ready);
        }
    }

    /// Whether the client that is checked out may be read. A held client is queued again when the reason of the hold
    /// ends.
    fn is_ready_to_read(&mut self) -> bool {
        let Some((client, env)) = self.ctx.core.reading() else {
            return false;
        };
        let gate = client.read_gate(env);
        if gate == ReadGate::Held(Why::Answer) && client.is_hung_up() {
            // The end of file lies behind unread input, so only the event shows that the caller hung up.
            client.end(env, CloseReason::eof());
        }
        gate == ReadGate::Ready
    }

    fn read_checked_out(&mut self, id: ClientId) {
        let Some((client, _)) = self.ctx.core.reading() else {
            return;
        };
        // A message that is being decompressed, and kept input, must be handled before new input is read.
        if client.is_inflating() || client.has_unread() {
            let count = client.take_unread(&mut self.buffer);
            return self.handle_input(id, Read::Bytes(count));
        }
        let mut budget = self.buffer.len();
        while let Some((client, env)) = self.ctx.core.reading() {
            let read = client.read(env, &mut self.buffer, budget);
            match read {
                Read::Bytes(count) | Read::Placed(count) => budget -= count,
                Read::End => return self.handle_end_of_input(id),
                Read::Nothing => return,
            }
            self.handle_input(id, read);
            let Some((client, env)) = self.ctx.core.reading() else {
                return;
            };
            let gate = client.read_gate(env);
            if budget == 0 || gate == ReadGate::Held(Why::Turn) {
                env.counters.turn_reads += 1;
                return;
            }
            // Kept input must be handled before new input is read, even if the client is no longer held.
            let is_done = !client.is_readable() || client.is_inflating() || client.has_unread();
            if is_done || gate != ReadGate::Ready {
                return;
            }
        }
    }

    /// Parses the bytes that were read, and passes the resulting messages and requests to the service. Keeps input that
    /// must wait.
    fn handle_input(&mut self, id: ClientId, read: Read) {
        let Self {
            ctx,
            service,
            buffer,
            ..
        } = self;
        let mut input = match read {
            Read::Bytes(count) => Input::new(&mut buffer[..count]),
            Read::Placed(count) => Input::placed(count),
            Read::End | Read::Nothing => return,
        };
        ctx.core.env.has_more_input = true;
        while let Some((client, env)) = ctx.core.reading() {
            if let Some(message) = client.receive_whole(env, &mut input) {
                if input.peek().is_empty() {
                    env.has_more_input = false;
                    service.message(ctx, id, message);
                    break;
                }
                service.message(ctx, id, message);
            } else {
                let mut rest = input;
                let goes_on = receive(ctx, service, id, &mut rest);
                input = rest;
                if !goes_on {
                    break;
                }
            }
        }
        if !input.is_empty()
            && let Some((client, _)) = ctx.core.reading()
        {
            client.keep_unread(input.peek());
        }
    }

    /// The peer has half-closed the connection. Sends the queued output, and keeps the connection if the service still
    /// has output for it.
    fn handle_end_of_input(&mut self, id: ClientId) {
        let Some((client, _)) = self.ctx.core.reading() else {
            return;
        };
        if client.is_half_closed() {
            return;
        }
        let mut patience = Duration::ZERO;
        if client.is_open() {
            patience = self.service.input_ended(&mut self.ctx, id);
        }
        if let Some((client, env)) = self.ctx.core.reading() {
            client.write_output(env);
            if patience.is_zero() {
                client.abandon_input(env);
            } else {
                client.end_input(env, patience);
            }
        }
    }

    fn accept_clients(&mut self) {
        let due = self
            .accept_again
            .is_none_or(|again| self.ctx.now() >= again);
        if !due {
            return;
        }
        self.accept_again = None;
        let mut no_room = false;
        for listener in self
            .listeners
            .iter_mut()
            .filter(|listener| listener.pending)
        {
            let core = &mut self.ctx.core;
            let most = core.env.config.max_connections();
            let room = most.saturating_sub(core.registry.len());
            let most = core.env.config.turn_accepts.max(1);
            let accepted = listener.accept(most, room, |stream, remote| {
                // The loop already collects replies, so Nagle's algorithm would only delay them.
                if !remote.is_unix() {
                    stream.set_nodelay();
                }
                core.env.counters.accepted += 1;
                core.add_client(stream, remote);
            });
            let again = match accepted {
                Accepted::All => continue,
                Accepted::Some => {
                    core.env.counters.turn_accepts += 1;
                    core.env.now
                }
                Accepted::Exhausted => {
                    no_room |= room == 0;
                    core.env.now + EXHAUSTED_RETRY
                }
            };
            self.accept_again = Some(self.accept_again.map_or(again, |other| other.min(again)));
        }
        if no_room && self.make_room() {
            self.accept_again = Some(self.ctx.now());
        }
    }

    /// Ends the oldest unauthenticated connections to make room for new ones. Returns whether there were any.
    fn make_room(&mut self) -> bool {
        let core = &mut self.ctx.core;
        let strangers = core.registry.oldest_strangers(core.env.now, EVICTED);
        for id in &strangers {
            core.with(*id, |client, env| {
                if client.is_requesting() {
                    let rejection = Rejection::unavailable("too many connections");
                    client.reject(env, &rejection.because("max_connections"));
                }
                client.disconnect(env);
            });
        }
        !strangers.is_empty()
    }

    pub(super) fn handle_deadlines(&mut self) {
        loop {
            let core = &mut self.ctx.core;
            let Some(due) = core.timers.pop(&mut core.registry, core.env.now) else {
                return;
            };
            self.perform(Task::Timer(due));
        }
    }

    fn handle_deadline(&mut self, id: ClientId) {
        let handle = |server: &mut Self| {
            let core = &mut server.ctx.core;
            core.with(id, |client, env| client.handle_timeout(env))
        };
        if handle(self) == Some(Timeout::Continue) {
            return;
        }
        // If the loop was late, the bytes that show that the peer is alive may already be in the socket.
        self.ctx
            .core
            .with(id, |client, _| client.handle_readable(false));
        // Reading may end the connection, which then has no deadline.
        self.act(|server| server.read_client(id));
        let reason = match handle(self) {
            None | Some(Timeout::Continue) => return,
            Some(Timeout::Gone(_)) if self.gets_more_time(id) => return,
            Some(Timeout::Idle) if self.may_idle(id) => {
                self.ctx
                    .core
                    .with(id, |client, env| client.excuse_idleness(env));
                return;
            }
            Some(Timeout::Idle) => CloseReason::idle_timeout(),
            Some(Timeout::Gone(reason)) => {
                self.ctx.core.with(id, |client, env| {
                    env.counters.close_timeouts += u64::from(client.is_closing());
                    client.end(env, reason);
                });
                return;
            }
            Some(Timeout::Handshake) => {
                self.ctx
                    .core
                    .with(id, |client, env| client.reject(env, &Rejection::timeout()));
                return;
            }
        };
        self.ctx
            .core
            .with(id, |client, env| client.close(env, reason));
    }

    /// Whether an expired time limit restarts, because the client is still reading its output.
    fn gets_more_time(&mut self, id: ClientId) -> bool {
        let has_all = |server: &Self| {
            let client = server.ctx.core.registry.get(id);
            client.is_some_and(|client| client.has_what_was_owed())
        };
        let is_done = has_all(self) && !self.is_waiting(id);
        let core = &mut self.ctx.core;
        !is_done && core.with(id, |client, env| client.has_progressed(env)) == Some(true)
    }

    /// Whether the idle timeout does not apply to a client now.
    fn may_idle(&mut self, id: ClientId) -> bool {
        self.ctx.core.enter(id);
        self.service.may_idle(&self.ctx, id)
    }

    /// Whether the service still works for a client.
    pub(super) fn is_waiting(&mut self, id: ClientId) -> bool {
        self.ctx.core.enter(id);
        self.service.is_waiting(&self.ctx, id)
    }

    /// Handles the news of an action: sets deadlines, reports drained output and disconnects clients.
    #[inline]
    fn reap(&mut self) {
        while let Some((id, news)) = self.ctx.core.env.queue.pop_news() {
            match news {
                News::Rearm => self.ctx.core.rearm(id),
                News::Drained => self.report_drained(id),
                News::Closing => self.disconnect(id),
            }
        }
    }

    fn report_drained(&mut self, id: ClientId) {
        let sends = |core: &Core| {
            let client = core.registry.get(id);
            client.is_some_and(|client| client.is_open() || client.is_answering())
        };
        if sends(&self.ctx.core) {
            self.ctx.core.enter(id);
            self.service.drained(&mut self.ctx, id);
        }
    }

    /// Removes a connection from the registry, deregisters its socket and reports its end to the service. No other
    /// function does this. Does nothing if the connection is gone.
    fn disconnect(&mut self, id: ClientId) {
        let core = &mut self.ctx.core;
        if core.registry.get(id).is_none() {
            return;
        }
        core.timers
            .set_client(&mut core.registry, id, core.env.now, None);
        let Some(mut client) = core.registry.remove(id) else {
            return;
        };
        client.deregister(&core.poll);
        core.env.counters.ended(client.traffic, client.outcome());
        core.service_id = client.service_id;
        let remote = client.remote;
        if client.is_counted() {
            core.env.addresses.remove_connection(remote.ip());
        }
        if core.registry.client_count() == 0 {
            core.give_memory_back();
        }
        // `accept` may have been waiting for this descriptor.
        self.accept_again = self.accept_again.map(|_| core.env.now);
        if client.was_open() {
            core.env.addresses.remove_client(remote.ip());
            let path = client.path.take();
            let reason = client.into_close_reason().unwrap_or_else(CloseReason::eof);
            core.env.counters.disconnected(&reason);
            log::info!(
                "{id} disconnected: cause={} code={} reason={:?} path={:?} remote={remote}",
                reason.cause,
                reason.code,
                reason.reason,
                path.as_ref().map_or("", |path| path),
            );
            self.service.disconnected(&mut self.ctx, id, &reason);
        } else {
            log::debug!("{id} left: remote={remote}");
            if client.is_unanswered() {
                client.uncount_call(&mut core.env);
                self.service.abandoned(&mut self.ctx, id);
            }
        }
        #[cfg(debug_assertions)]
        self.check_service();
    }

    /// Checks that the service keeps state only for clients that are in the registry.
    #[cfg(any(debug_assertions, fuzzing))]
    pub(super) fn check_service(&self) {
        /// With more connections, the check would take too long, because it visits every client of the service.
        const FEW: usize = 64;
        if self.ctx.core.registry.len() <= FEW {
            self.service.clients(&mut |id| {
                let is_here = self.ctx.core.registry.get(id).is_some();
                assert!(is_here, "the service keeps {id}, which is gone");
            });
        }
    }

    /// Restarts the ping timeout of every client if much more time passed than the poll timeout. The machine was
    /// suspended or the loop was blocked, so the server could not read from the clients.
    pub(super) fn handle_jump(&mut self, before: Time, waited: Option<Duration>) {
        let interval = self.ctx.config().timeouts.ping_interval;
        let (Some(interval), Some(waited)) = (interval, waited) else {
            return;
        };
        let elapsed = self.ctx.now().since(before);
        if elapsed > interval && elapsed > waited + interval + interval / 2 {
            log::warn!(
                "no events were handled for {elapsed:?}; restarted the ping timeout of every client"
            );
            self.act(|server| {
                let Core { registry, env, .. } = &mut server.ctx.core;
                for client in registry.iter_mut() {
                    client.restart_ping_window(env);
                }
            });
        }
    }

    /// The time to wait for events. `None` means no limit.
    pub(super) fn timeout(&mut self) -> Option<Duration> {
        if self.ctx.core.has_work() || self.reaper.has_work() {
            return Some(Duration::ZERO);
        }
        let now = self.ctx.now();
        let pending = self.listeners.iter().any(|listener| listener.pending);
        let accept = self.accept_again.or(pending.then_some(now));
        let next = earlier(self.ctx.core.next_turn(), accept)?;
        Some(next.since(now))
    }
}
