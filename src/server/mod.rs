//! The event loop: listeners, one slab of clients, one way out of it.
//!
//! One turn of the loop is: wait for events or the next deadline; take connections, read and write what is ready; let
//! passed deadlines act; write what services queued. Reads, writes and accepts per turn are bounded, and who has more
//! to do is remembered in a list, so that no client can starve another.
//!
//! The invariants, by which the rest can be read:
//!
//! * *One registry*: a connection exists if and only if it is in the slab. Nothing else holds clients.
//! * *One disconnect*: [`Server::disconnect`] alone removes from the slab, deregisters and tells the service. It
//!   removes first, so a second call finds nothing.
//! * *Handlers return, the loop disconnects*: what a service or a failing write does to a client is noted, and acted on
//!   when the handler has returned.
//! * *Nothing is kept for an idle client*: input is parsed in the loop's one buffer, replies are gathered in one, and
//!   what exists only now and then lies behind a pointer in the client's entry.

mod address;
mod admin;
mod backlog;
mod client;
mod config;
mod context;
mod deadlines;
mod drain;
mod error;
mod handle;
mod histogram;
mod id;
mod interest;
mod listener;
mod metrics;
mod policy;
mod reading;
mod registry;
mod requests;
mod service;
mod signals;
mod sources;
mod starting;
mod status;
mod stopping;
mod stream;

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use mio::event::Event as Readied;
use mio::{Events, Poll};

pub use address::{InheritedSocket, Listen, ListenAddress, ParseListenError};
#[cfg(feature = "cli")]
pub(crate) use admin::ADMIN_PATHS;
pub use client::{Remote, Traffic};
pub use config::{Config, ConfigBuilder, ConfigError};
pub use context::{Context, SendError};
pub use error::Error;
pub use handle::{Handle, OwnedMessage, Stopped};
pub use histogram::Histogram;
pub use id::{ClientId, ParseClientIdError, ServiceId, SourceId, TimerId};
pub use interest::Interest;
pub use metrics::Metrics;
#[cfg(feature = "cli")]
pub(crate) use policy::RejectionHints;
pub use policy::{Access, ParsePeersError, Peers, Principal, Token};
pub(crate) use policy::{is_token_protocol, without_token};
pub use service::{Readiness, Route, Service};
pub use starting::AdoptedOrphans;
pub use status::{ClientStatus, Status, StatusFields, StatusValue};

use self::client::{Client, Flags};
use self::context::Life;
use self::handle::Inbox;
use self::id::Origin;
use self::listener::{Accepted, EXHAUSTED_RETRY, Listener};
use self::signals::Signals;
use self::stream::Stream;
use crate::protocol::{CloseReason, Rejection, Time, Timeout};
use crate::sys::{Clock, Reaper};

/// Events taken from the kernel in one turn.
const EVENTS_PER_TURN: usize = 1024;

/// How many connections are ended together to make room for new ones.
const EVICTED: usize = 64;

/// Waiting clients that are read in each turn, whatever else the turn has done.
const LEAST_READS: usize = 16;

/// Clients that are written to in each turn, whatever else the turn has done.
const LEAST_WRITES: usize = 64;

/// Makes the access anew.
type Reload = Box<dyn FnMut() -> Option<Access> + Send>;

/// A WebSocket server with the service it serves.
pub struct Server<S> {
    poll: Poll,
    ctx: Context,
    service: S,
    commands: Inbox,
    listeners: Vec<Listener>,
    signals: Option<Signals>,
    /// SIGHUP, and what then makes the access anew.
    reload: Option<(Signals, Reload)>,
    /// SIGCHLD, if processes that others have left behind are ours.
    children: Option<Signals>,
    /// Waits for those that have ended.
    reaper: Reaper,
    /// Whether the service was started.
    started: bool,
    /// When the first signal came: a later one means at once.
    signalled: Option<Time>,
    /// When to try again to take connections, after there was no room or no descriptor for them.
    accept_again: Option<Time>,
    clock: Clock,
    buffer: Box<[u8]>,
}

impl<S> fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("listen", &self.ctx.listen)
            .finish_non_exhaustive()
    }
}

impl<S: Service> Server<S> {
    /// Where it listens, with the ports that were taken for port 0.
    pub fn local_addresses(&self) -> &[ListenAddress] {
        &self.ctx.listen
    }

    /// A handle for other threads.
    pub fn handle(&self) -> Handle {
        self.commands.handle()
    }

    /// Starts the service without running the loop, so that the caller can see whether it failed before announcing the
    /// server. [`Server::run`] has to follow in either case: it ends what was started.
    ///
    /// # Errors
    ///
    /// The failure of the service ([`Service::failure`]).
    pub fn start(&mut self) -> Result<(), Error> {
        if !std::mem::replace(&mut self.started, true) {
            self.ctx.now = self.clock.now();
            self.service.started(&mut self.ctx);
            self.reap();
        }
        match self.service.failure() {
            Some(failure) => Err(Error::Service(failure.to_owned())),
            None => Ok(()),
        }
    }

    /// Turns the loop until the server is stopped, and returns the service and whether its clients and the service had
    /// the time they were to have.
    ///
    /// However it returns, the service has seen `disconnected` for every client, and `stopping`.
    ///
    /// # Errors
    ///
    /// Only where waiting for events fails. No client can end the loop.
    pub fn run(mut self) -> Result<(S, Ended), Error> {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        // A service that fails to start stops the server, so the loop below ends.
        let _ = self.start();
        self.ctx.now = self.clock.now();
        let mut ended = Ended::Cleanly;
        while self.ctx.life != Life::Over {
            let timeout = self.timeout();
            let before = self.ctx.now;
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    log::error!("waiting for events failed: {error}");
                    self.leave_at_once();
                    return Err(Error::system("wait for events")(error));
                }
            }
            let began = Instant::now();
            self.ctx.now = self.clock.now();
            self.ctx.begin_loop_turn();
            self.handle_jump(before, timeout);
            for event in &events {
                self.handle_event(event, &mut ended);
            }
            self.take_turn();
            self.ctx.counters.turns.observe(began.elapsed());
        }
        Ok((self.service, ended))
    }

    /// What is done in every turn once the events are handled.
    fn take_turn(&mut self) {
        if self.reaper.has_work() {
            self.reap_children();
        }
        for index in 0..self.ctx.ready_count() {
            let Some(id) = self.ctx.pop_ready(index < LEAST_READS) else {
                break;
            };
            self.read_client(id);
        }
        for (source, readiness) in self.ctx.sources.take_again() {
            self.handle_source(source, readiness);
        }
        self.accept_clients();
        self.handle_deadlines();
        for index in 0..self.ctx.dirty_count() {
            let Some(id) = self.ctx.pop_dirty(index < LEAST_WRITES) else {
                break;
            };
            self.ctx.flush(id);
        }
        self.reap();
        self.ctx.trim_if_due();
        self.handle_life();
    }

    fn handle_event(&mut self, event: &Readied, ended: &mut Ended) {
        match Origin::from(event.token()) {
            Origin::Client(id) => {
                let hung_up = event.is_read_closed() || event.is_error();
                self.handle_client(
                    id,
                    event.is_readable() || hung_up,
                    event.is_writable(),
                    hung_up,
                );
            }
            Origin::Source(source) => {
                let failed = event.is_error();
                let readiness = Readiness {
                    readable: event.is_readable() || event.is_read_closed() || failed,
                    writable: event.is_writable() || event.is_write_closed() || failed,
                };
                self.handle_source(source, readiness);
            }
            Origin::Waker => {
                self.commands.run(&mut self.ctx, &self.service);
                self.reap();
            }
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
                    self.ctx.config.access = access;
                    log::info!("hangup received: whom to let in was read again");
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

    /// Reaps orphaned processes, as many as one turn allows.
    fn reap_children(&mut self) {
        if self.reaper.reap() {
            self.ctx.service_id = ServiceId::ALL;
            self.service.orphans_changed(&mut self.ctx);
            self.reap();
        }
    }

    /// Handles the readiness of a client's socket. A client that is gone, even if its slot is someone else's now, is
    /// not found.
    fn handle_client(&mut self, id: ClientId, readable: bool, writable: bool, hung_up: bool) {
        let Some(client) = self.ctx.registry.get_mut(id) else {
            return;
        };
        if readable {
            client.flags.set(Flags::READABLE, true);
        }
        if hung_up {
            client.flags.set(Flags::HUNG_UP, true);
        }
        if writable && let Some(backlog) = client.backlog.as_deref_mut() {
            backlog.blocked = false;
            self.ctx.flush(id);
        }
        if readable {
            if self.ctx.has_to_queue() {
                self.ctx.read_again(id);
            } else {
                self.read_client(id);
            }
        }
        self.reap();
    }

    fn handle_source(&mut self, source: SourceId, readiness: Readiness) {
        if let Some(service_id) = self.ctx.sources.service_id(source) {
            self.ctx.service_id = service_id;
            self.service.ready(&mut self.ctx, source, readiness);
            self.reap();
        }
    }

    fn accept_clients(&mut self) {
        let due = self.accept_again.is_none_or(|again| self.ctx.now >= again);
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
            let ctx = &mut self.ctx;
            let room = ctx
                .config
                .max_connections()
                .saturating_sub(ctx.registry.len());
            let most = ctx.config.turn_accepts.max(1);
            let accepted = listener.accept(most, room, |stream, remote| {
                // Replies are gathered already; waiting for more would only delay them.
                if !remote.is_unix() {
                    stream.set_nodelay();
                }
                ctx.counters.accepted += 1;
                add_client(ctx, stream, remote);
            });
            let again = match accepted {
                Accepted::All => continue,
                Accepted::Some => {
                    self.ctx.counters.turn_accepts += 1;
                    self.ctx.now
                }
                Accepted::Exhausted => {
                    no_room |= room == 0;
                    self.ctx.now + EXHAUSTED_RETRY
                }
            };
            self.accept_again = Some(self.accept_again.map_or(again, |other| other.min(again)));
        }
        if no_room && self.make_room() {
            self.accept_again = Some(self.ctx.now);
        }
    }

    /// Ends connections that have shown no token, oldest first, to make room for holders of the token. Returns whether
    /// there were any.
    fn make_room(&mut self) -> bool {
        let strangers = self.ctx.registry.oldest_strangers(self.ctx.now, EVICTED);
        let found = !strangers.is_empty();
        for id in strangers {
            self.ctx.evict(id);
            self.disconnect(id, CloseReason::eof());
        }
        found
    }

    fn handle_deadlines(&mut self) {
        while let Some(id) = self.ctx.registry.pop_deadline(self.ctx.now) {
            if self.ctx.handle_timeout(id) == Timeout::Continue {
                continue;
            }
            // After the loop was held up, the sign of life that was waited for may lie in the socket.
            if let Some(client) = self.ctx.registry.get_mut(id) {
                client.flags.set(Flags::READABLE, true);
                self.read_client(id);
            }
            match self.ctx.handle_timeout(id) {
                Timeout::Continue => {}
                Timeout::Gone(_) if self.gets_more_time(id) => {}
                Timeout::Handshake => self.ctx.reject(id, &Rejection::timeout()),
                Timeout::Idle if self.may_idle(id) => self.ctx.excuse_idleness(id),
                Timeout::Idle => self.ctx.close_with(id, CloseReason::idle_timeout()),
                Timeout::Gone(ending) => {
                    self.ctx.count_close_timeout(id);
                    self.disconnect(id, ending);
                }
            }
        }
        self.reap();
        while let Some((timer, service_id)) = self.ctx.sources.pop_timer(self.ctx.now) {
            self.ctx.service_id = service_id;
            self.service.timer(&mut self.ctx, timer);
            self.reap();
        }
    }

    /// Whether a client whose time is up gets more of it, because it takes what it is sent.
    fn gets_more_time(&mut self, id: ClientId) -> bool {
        let is_done = self.ctx.has_what_was_owed(id) && !self.is_waiting(id);
        !is_done && self.ctx.has_progressed(id)
    }

    /// Whether the idle timeout does not apply to a client now.
    fn may_idle(&mut self, id: ClientId) -> bool {
        self.ctx.enter(id);
        self.service.may_idle(&self.ctx, id)
    }

    /// Whether the service still works for a client.
    fn is_waiting(&mut self, id: ClientId) -> bool {
        self.ctx.enter(id);
        self.service.is_waiting(&self.ctx, id)
    }

    /// Ends a connection: the only place that removes one from the registry, deregisters its socket and tells the
    /// service. `ending` is what is told unless the connection knows better.
    fn disconnect(&mut self, id: ClientId, ending: CloseReason) {
        let Some(mut client) = self.ctx.registry.remove(id) else {
            return;
        };
        if let Err(error) = client.stream.deregister(&self.ctx.poll) {
            log::debug!("{id} deregistering failed: {error}");
        }
        self.ctx.counters.ended(client.traffic, &client.connection);
        self.ctx.service_id = client.service_id;
        if self.ctx.registry.client_count() == 0 {
            self.ctx.give_memory_back();
        }
        // Its descriptor may be what `accept` was waiting for.
        self.accept_again = self.accept_again.map(|_| self.ctx.now);
        if client.connection.was_open() {
            let path = client.path.take();
            // CLOSE is the last thing that is sent, so it has not left while anything waits.
            let close_left = client.queued() == 0 && client.connection.ending().is_some();
            let mut ending = client.connection.into_ending(ending);
            if !close_left {
                ending = ending.without_close();
            }
            self.ctx.counters.disconnected(&ending);
            log::info!(
                "{id} disconnected: cause={} code={} reason={:?} path={:?} remote={}",
                ending.cause,
                ending.code,
                ending.reason,
                path.as_ref().map_or("", |path| path),
                client.remote
            );
            self.service.disconnected(&mut self.ctx, id, &ending);
        } else {
            log::debug!("{id} left: remote={}", client.remote);
            if client.connection.is_unanswered() {
                self.ctx.end_call_from(client.remote);
                self.service.abandoned(&mut self.ctx, id);
            }
        }
    }

    /// Acts on what handlers have noted: dead or finished clients, and clients whose output has drained.
    #[inline]
    fn reap(&mut self) {
        if self.ctx.has_news() {
            self.reap_all();
        }
    }

    fn reap_all(&mut self) {
        loop {
            if let Some((id, ending)) = self.ctx.pop_doomed() {
                self.disconnect(id, ending);
            } else if let Some(id) = self.ctx.pop_drained() {
                let sends = |client: &Client| {
                    client.connection.is_open() || client.connection.is_answering()
                };
                if self.ctx.registry.get(id).is_some_and(sends) {
                    self.ctx.enter(id);
                    self.service.drained(&mut self.ctx, id);
                }
            } else {
                return;
            }
        }
    }

    /// Gives every client a fresh ping window if far more time passed than was waited for: the machine was suspended,
    /// or the loop was held up, and the clients could not be heard.
    fn handle_jump(&mut self, before: Time, waited: Option<Duration>) {
        let (Some(interval), Some(waited)) = (self.ctx.config.timeouts.ping_interval, waited)
        else {
            return;
        };
        let elapsed = self.ctx.now.since(before);
        if elapsed > waited + interval.mul_f64(1.5) {
            log::warn!("the clock jumped by {elapsed:?}; every client gets a fresh ping window");
            self.ctx.restart_ping_windows();
        }
    }

    /// How long to wait for events.
    fn timeout(&self) -> Option<Duration> {
        if self.ctx.has_work() || self.reaper.has_work() {
            return Some(Duration::ZERO);
        }
        let pending = self.listeners.iter().any(|listener| listener.pending);
        let accept = self.accept_again.or(pending.then_some(self.ctx.now));
        let next = [self.ctx.next_turn(), accept].into_iter().flatten().min()?;
        Some(next.since(self.ctx.now))
    }
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Clients and service had the time they were to have.
    Cleanly,
    /// A second signal cut it short.
    AtOnce,
}

/// Takes a new connection into the registry and waits for its request.
fn add_client(ctx: &mut Context, stream: Stream, remote: Remote) -> Option<ClientId> {
    let now = ctx.now;
    let poll = &ctx.poll;
    match ctx.registry.insert(stream, remote, now, |stream, id| {
        stream.register(poll, id.token())
    }) {
        Ok(id) => {
            let known = |proxies: &Peers| proxies.contain(remote);
            if ctx.config.proxies.iter().any(known)
                && let Some(client) = ctx.registry.get_mut(id)
            {
                client.connection.expect_proxy_header();
            } else {
                ctx.count_connection(id);
            }
            ctx.set_deadline(id);
            Some(id)
        }
        Err(error) => {
            log::warn!("a connection from {remote} could not be registered: {error}");
            None
        }
    }
}
