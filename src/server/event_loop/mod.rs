//! The event loop: polls for events, dispatches them, and disconnects clients. No other module removes a client.
//!
//! A turn of the loop waits for events or the next deadline. Then it handles the events, reads queued
//! clients, handles passed deadlines and writes queued output. Every action that may change a client goes through
//! [`Server::act`], which then handles the news. Reads, writes, accepts and work are bounded in each
//! turn, so that no client can starve another.

pub(super) mod budget;
pub(super) mod clock;
pub(super) mod deadlines;
pub(super) mod draining;
pub(super) mod leftovers;
pub(super) mod reading;
pub(super) mod scheduler;
pub(super) mod shutdown;
pub(super) mod sources;
pub(super) mod startup;
pub(super) mod timers;
pub(super) mod wakeup;
pub(super) mod wheel;

use std::any::Any;
use std::fmt;
use std::io;
use std::time::Duration;

use mio::event::Event as Readied;
use mio::{Events, Poll};

use self::budget::{CLIENT_SHARE, SOURCE_SHARE, START};
use self::clock::{Clock, Nanos};
use self::scheduler::{AccountId, Phase, Work};
use self::sources::Readiness;
use self::wakeup::{Reloading, Signals};
use super::address::ListenAddress;
use super::client::ClientEnd;
use super::context::Context;
use super::core::{Core, earlier};
use super::env::News;
use super::error::Error;
use super::handle::{Handle, Inbox};
use super::id::{ClientId, Origin, ServiceId, SourceId};
use super::listener::{Accepted, EXHAUSTED_RETRY, Listener, Reserve};
use super::observe::health;
use super::service::{Outgoing, Service};
use super::tls::TlsStream;
use super::upgrade::Upgrading;
use crate::log_event::{log_event, word};
use crate::protocol::{CloseReason, Rejection, Time};
use crate::sys::{Reaper, monotonic_nanos};

/// The maximum number of events taken from the kernel in one turn.
const EVENTS_PER_TURN: usize = 1024;

/// The maximum number of unauthenticated connections that are ended together to make room for new ones.
const MOST_ENDED: usize = 64;

/// The time of a turn, in nanoseconds, after which events are queued instead of handled at once.
const EVENTS_TIME: Nanos = 1_000_000;

/// The time of a turn, in nanoseconds, after which no further input is handled.
const INPUT_TIME: Nanos = 4_000_000;

/// The time of a turn, in nanoseconds, after which no further output is written.
const OUTPUT_TIME: Nanos = 6_000_000;

/// A WebSocket server with the service it serves.
pub struct Server<S> {
    pub(super) poll: Poll,
    pub(super) ctx: Context,
    pub(super) service: S,
    pub(super) commands: Inbox<S>,
    pub(super) listeners: Vec<Listener>,
    /// For connections that arrive when no descriptor is left.
    pub(super) reserve: Reserve,
    pub(super) signals: Option<Signals>,
    /// Reads new settings on SIGHUP.
    pub(super) reload: Option<Reloading>,
    /// SIGCHLD, if this process adopts orphans.
    pub(super) children: Option<Signals>,
    /// Reaps adopted processes that have exited.
    pub(super) reaper: Reaper,
    /// Whether the service was started.
    pub(super) started: bool,
    /// When the first signal arrived. A later one ends the server at once.
    pub(super) signalled: Option<Time>,
    /// Dropped when the server begins to stop.
    pub(super) until_drain: Option<Box<dyn Any + Send>>,
    /// Replaces the program on request.
    pub(super) upgrading: Option<Box<Upgrading>>,
    /// When to try to accept connections again after slots or descriptors ran out, or the limit of a turn was reached.
    pub(super) accept_again: Option<Time>,
    /// When to compare the service's clients with the registry again.
    pub(super) check_at: Time,
    pub(super) clock: Clock,
    pub(super) buffer: Box<[u8]>,
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

/// What the kernel reports about a client's socket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SocketEvent {
    /// There is input, or its end.
    pub(super) readable: bool,
    /// There is room for output.
    pub(super) writable: bool,
    /// The peer has half-closed the connection, or the socket has failed.
    pub(super) hung_up: bool,
}

impl<S: Service> Server<S> {
    /// The addresses that the server listens on, with the ports that were chosen for port 0.
    pub fn local_addresses(&self) -> &[ListenAddress] {
        self.ctx.listen_addresses()
    }

    /// A handle that controls the server from other threads.
    pub fn handle(&self) -> Handle<S> {
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
            self.ctx.core.env.starts_wait = true;
            self.act(|server| server.service.started(&mut server.ctx));
            self.ctx.core.env.starts_wait = false;
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
    pub fn run(self) -> Result<(S, Ended), Error> {
        self.run_with(Events::with_capacity(EVENTS_PER_TURN))
    }

    /// Runs the loop, with room for this many events.
    pub(crate) fn run_with(mut self, mut events: Events) -> Result<(S, Ended), Error> {
        // A service that fails to start stops the server, so the loop below ends.
        let _ = self.start();
        self.ctx.core.env.now = self.clock.now();
        let mut ended = Ended::Cleanly;
        // The end of the last turn.
        let mut worked_until = monotonic_nanos();
        while !self.ctx.core.shutdown.is_over() {
            let timeout = self.timeout();
            let before = self.ctx.now();
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    log::error!("waiting for events failed: {error}");
                    self.leave_without_events();
                    return Err(Error::system("wait for events")(error));
                }
            }
            let began = self.begin_turn();
            self.handle_jump(before, timeout);
            let slept = self.clock.slept(began);
            if !slept.is_zero() {
                self.handle_sleep(slept);
            }
            if self.ctx.core.env.now >= self.ctx.core.sample_at {
                let until = self.clock.at(worked_until) + self.ctx.core.env.asleep;
                health::sample(&mut self.ctx, &self.service, until);
            }
            for event in &events {
                self.handle_event(event, &mut ended);
            }
            self.take_turn();
            let ended_at = monotonic_nanos();
            worked_until = ended_at;
            self.ctx.core.env.end_turn(ended_at);
            let counted = !std::mem::take(&mut self.ctx.core.env.is_uncounted);
            self.ctx.core.env.counters.turns.end_turn(ended_at, counted);
            if self.must_be_replaced() {
                self.replace_program();
            }
        }
        Ok((self.service, ended))
    }

    /// Begins a turn, and returns its time.
    #[inline]
    pub(super) fn begin_turn(&mut self) -> Nanos {
        let began = monotonic_nanos();
        self.ctx.core.env.begin_turn(began, self.clock.at(began));
        self.ctx.core.env.counters.turns.begin_turn(began);
        began
    }

    /// The part of a turn that follows its events.
    #[inline(always)]
    pub(super) fn take_turn(&mut self) {
        if !self.ctx.core.attempts.is_empty() {
            self.begin_attempts();
        }
        if !self.ctx.core.env.scheduler.is_idle(Phase::Input) {
            self.serve(Phase::Input, INPUT_TIME);
        }
        // After the programs that were started here have told their services of their exits, and are reaped.
        if self.reaper.has_work() {
            self.act(Self::reap_orphans);
        }
        if self.listeners.iter().any(|listener| listener.pending) {
            self.act(Self::accept_clients);
        }
        self.handle_deadlines();
        if !self.ctx.core.env.scheduler.is_idle(Phase::Output) {
            self.serve(Phase::Output, OUTPUT_TIME);
        }
        let env = &self.ctx.core.env;
        if env.memory.is_due(env.now) {
            self.keep_within_memory();
        }
        self.ctx.core.do_chores();
        if !self.ctx.core.upgrade_callers.is_empty() {
            self.act(Self::handle_upgrade_calls);
        }
        self.handle_shutdown();
    }

    /// Does the queued work of a phase until the turn has taken `most` nanoseconds, but at least one piece of it.
    fn serve(&mut self, phase: Phase, most: Nanos) {
        let mut is_first = true;
        while let Some((account, work)) = self.ctx.core.env.next_work(phase, most, is_first) {
            is_first = false;
            self.act(|server| server.do_work(account, work));
            // A fork takes about a millisecond, so it is the last work of its kind in a turn.
            if matches!(work, Work::Start(_) | Work::StartOwn(_)) {
                self.ctx.core.env.settle();
                break;
            }
        }
    }

    /// Whether input may be handled at once: nobody waits, and the turn has only begun.
    fn may_handle_now(&mut self) -> bool {
        let env = &mut self.ctx.core.env;
        env.turn_time() < EVENTS_TIME && env.scheduler.is_idle(Phase::Input)
    }

    fn handle_event(&mut self, event: &Readied, ended: &mut Ended) {
        match Origin::from(event.token()) {
            Origin::Client(id) => {
                let hung_up = event.is_read_closed() || event.is_error();
                let event = SocketEvent {
                    readable: event.is_readable() || hung_up,
                    writable: event.is_writable(),
                    hung_up,
                };
                self.act(|server| server.handle_client(id, event));
            }
            Origin::Source(source) => {
                let failed = event.is_error();
                let readiness = Readiness {
                    readable: event.is_readable() || event.is_read_closed() || failed,
                    writable: event.is_writable() || event.is_write_closed() || failed,
                };
                if self.may_handle_now() {
                    self.act(|server| server.call_ready(source, readiness));
                } else {
                    self.ctx.core.ready_again(source, readiness);
                }
            }
            Origin::Waker => {
                self.act(Self::run_commands);
                self.act(Self::handle_rehearsal);
                if let Some(reload) = self.reload.as_mut().and_then(Reloading::take) {
                    self.act(|server| server.ctx.core.reload(reload));
                }
            }
            Origin::Signals => {
                let count = self.signals.as_mut().map_or(0, Signals::take);
                for _ in 0..count {
                    self.handle_signal(ended);
                }
            }
            Origin::Reload => {
                if let Some(reload) = &mut self.reload {
                    reload.handle_signal();
                }
            }
            Origin::Children => {
                if self.children.as_mut().is_some_and(|pipe| pipe.take() > 0) {
                    self.reaper.child_has_ended();
                }
            }
            Origin::Upgrade => self.act(Self::handle_upgrade_signal),
            Origin::Listener(index) => {
                if let Some(listener) = self.listeners.get_mut(index) {
                    listener.pending = true;
                }
            }
        }
    }

    /// Does queued work of an account. Does nothing if its client or source is gone, even if the slot was reused.
    fn do_work(&mut self, account: AccountId, work: Work) {
        let core = &mut self.ctx.core;
        match work {
            Work::Read(id) => {
                core.with(id, |client, _| client.leave_queue());
                self.read_client(id);
            }
            Work::Write(id) => {
                core.env.begin_output(account);
                core.with(id, |client, env| client.flush(env));
            }
            Work::Source(source) => {
                if let Some(readiness) = core.sources.take_again(source) {
                    self.call_ready(source, readiness);
                }
            }
            Work::Start(id) => self.call_start(id),
            Work::StartOwn(service_id) => {
                core.env.begin_own_work();
                core.env.charge_service(service_id);
                core.enter_service(service_id);
                self.call_service(|service, ctx| service.start_program(ctx, None));
            }
        }
    }

    /// Performs what other threads have asked for.
    fn run_commands(&mut self) {
        self.ctx.core.env.begin_own_work();
        self.commands.run(&mut self.ctx, &mut self.service);
    }

    /// Reaps adopted processes that have exited.
    fn reap_orphans(&mut self) {
        if self.reaper.reap() {
            self.ctx.core.service_id = ServiceId::ALL;
            self.service.orphans_changed(&mut self.ctx);
        }
    }

    /// Notifies a service that a descriptor is ready. Does nothing if the service no longer watches it: an event may arrive late.
    fn call_ready(&mut self, source: SourceId, readiness: Readiness) {
        let core = &mut self.ctx.core;
        if let Some((service_id, account)) = core.sources.owner(source) {
            core.env.begin_slice(account, SOURCE_SHARE);
            core.enter_service(service_id);
            self.call_service(|service, ctx| service.ready(ctx, source, readiness));
        }
    }

    /// Tells a service that it may start the program of a client. Does nothing if the client is gone.
    fn call_start(&mut self, id: ClientId) {
        let core = &mut self.ctx.core;
        if let Some(client) = core.registry.get(id) {
            let (service_id, account) = (client.service_id, client.wire.account);
            core.env.begin_slice(account, CLIENT_SHARE);
            core.env.budget.spend(START);
            core.enter_service(service_id);
            self.call_service(|service, ctx| service.start_program(ctx, Some(id)));
        }
    }

    /// Calls a method of the service to which the current event belongs.
    pub(super) fn call_service(&mut self, call: impl FnOnce(&mut dyn Service, &mut Context)) {
        if let Some(service) = self.service.select(self.ctx.core.service_id) {
            call(service, &mut self.ctx);
        }
    }

    /// Calls a method of the service to which the current event of an outgoing connection belongs.
    pub(super) fn call_outgoing(&mut self, call: impl FnOnce(&mut dyn Outgoing, &mut Context)) {
        let service = self.service.select(self.ctx.core.service_id);
        if let Some(outgoing) = service.and_then(|service| service.outgoing()) {
            call(outgoing, &mut self.ctx);
        }
    }

    /// Runs an action that may change clients or call the service, then handles its news. No other function calls
    /// `reap`.
    #[inline]
    pub(super) fn act(&mut self, action: impl FnOnce(&mut Self)) {
        action(self);
        self.reap();
    }

    /// Handles an event of a client's socket. Does nothing if the client is gone, even if the slot was reused.
    pub(super) fn handle_client(&mut self, id: ClientId, event: SocketEvent) {
        let found = self.ctx.core.with(id, |client, env| {
            if client.wire.is_stale_event(env) {
                return false;
            }
            if event.readable {
                client.wire.handle_readable(event.hung_up);
            }
            if event.writable {
                client.handle_writable(env);
            }
            client.wire.protocol.is_outgoing()
        });
        if found == Some(true) {
            return self.handle_outgoing(id, event.readable);
        }
        if found.is_none() || !event.readable {
            return;
        }
        if self.may_handle_now() {
            self.read_client(id);
        } else {
            self.ctx.core.with(id, |client, env| client.read_again(env));
        }
    }

    fn accept_clients(&mut self) {
        let due = self
            .accept_again
            .is_none_or(|again| self.ctx.now() >= again);
        if !due {
            return;
        }
        if self.holds_connections() {
            self.accept_again = Some(self.ctx.now() + EXHAUSTED_RETRY);
            return;
        }
        self.ctx.core.env.begin_own_work();
        self.accept_again = None;
        self.reserve.refill();
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
            let tls = listener.is_tls();
            let reserve = &mut self.reserve;
            let accepted = listener.accept(most, room, reserve, |stream, remote| {
                // The loop already collects replies, so Nagle's algorithm would only delay them.
                if !remote.is_unix() {
                    stream.set_nodelay();
                }
                core.env.counters.accepted += 1;
                core.add_client(stream, remote, tls);
            });
            for _ in 0..reserve.take_refused() {
                core.env.counters.refused(&Reserve::refusal());
            }
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
        if no_room && self.end_oldest_unauthenticated() {
            self.accept_again = Some(self.ctx.now());
        }
    }

    /// Ends the oldest unauthenticated connections to make room for new ones. Returns whether there were any.
    fn end_oldest_unauthenticated(&mut self) -> bool {
        let core = &mut self.ctx.core;
        let strangers = core.registry.oldest_strangers(core.env.now, MOST_ENDED);
        for id in &strangers {
            core.with(*id, |client, env| {
                if client.wire.protocol.is_requesting() {
                    let rejection = Rejection::unavailable("too many connections");
                    client.reject(env, &rejection.because("max_connections"));
                }
                client.request_removal(env);
            });
        }
        !strangers.is_empty()
    }

    /// Handles the news of an action: sets deadlines, reports drained output and disconnects clients.
    #[inline(always)]
    fn reap(&mut self) {
        while let Some((id, news)) = self.ctx.core.env.news.pop_front() {
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
            client
                .is_some_and(|client| client.wire.is_open() || client.wire.protocol.is_answering())
        };
        if sends(&self.ctx.core) {
            self.ctx.core.enter(id);
            self.call_service(|service, ctx| service.drained(ctx, id));
        }
    }

    /// Removes a connection from the registry, deregisters its socket and reports its end to the service. No other
    /// function does this. Does nothing if the connection is gone. If the connection was cut and its client may
    /// come back, detaches the client instead.
    fn disconnect(&mut self, id: ClientId) {
        let Some(client) = self.ctx.core.registry.get(id) else {
            return;
        };
        let shutdown = &self.ctx.core.shutdown;
        if let Some(cut) = client.wire.cut_reason()
            && (!shutdown.is_stopping()
                || (!client.wire.is_ours() && shutdown.lets_clients_return()))
        {
            return self.detach(id, cut, true);
        }
        if client.wire.may_come_back() {
            // The news concerns the connection that was cut.
            return;
        }
        if client.wire.protocol.is_outgoing() && self.retry(id) {
            return;
        }
        let core = &mut self.ctx.core;
        core.timers
            .set_client(&mut core.registry, id, core.env.now, None);
        let Some(mut client) = core.registry.remove(id) else {
            return;
        };
        if client
            .wire
            .tls()
            .is_some_and(TlsStream::is_inside_handshake)
            && !client.wire.is_ours()
        {
            core.env.counters.tls_failed();
        }
        core.leave_topics(&client);
        client.wire.hang_up(id, &mut core.env.scratch, &core.poll);
        core.env.scheduler.release(client.wire.account);
        core.env.counters.ended(client.traffic, client.outcome());
        core.enter_service(client.service_id);
        let remote = client.wire.remote;
        if client.wire.is_counted() {
            core.env.addresses.remove_connection(remote.ip());
        }
        if core.registry.client_count() == 0 {
            core.give_memory_back();
        }
        // `accept` may have been waiting for this descriptor.
        self.accept_again = self.accept_again.map(|_| core.env.now);
        if let Some(outgoing) = client.wire.protocol.take_outgoing() {
            self.report_failure(id, outgoing);
        } else if client.wire.protocol.was_open() {
            if client.wire.is_ours() {
                core.end_return(&client);
            } else {
                core.env.addresses.remove_client(remote.ip());
            }
            let end = ClientEnd::of(&mut client, core.env.now);
            let reason = client.into_close_reason().unwrap_or_else(CloseReason::eof);
            self.report_end(id, &end, &reason);
        } else {
            log_event!(Debug, client = id, "left", remote = word(&remote));
            if client.wire.forget_call(&mut core.env) {
                self.call_service(|service, ctx| service.abandoned(ctx, id));
            }
        }
        self.sample_agreement();
    }

    /// Counts and logs the end of a client, and notifies the service. Each client ends here, once.
    fn report_end(&mut self, id: ClientId, end: &ClientEnd, reason: &CloseReason) {
        let core = &mut self.ctx.core;
        core.env.counters.disconnected(reason, end.duration);
        log_event!(
            Info,
            client = id,
            "disconnected",
            cause = word(&reason.cause),
            code = reason.code.0,
            reason = core.without_secrets(&reason.reason),
            path = end.handshake.as_ref().map_or("", |one| &*one.path),
            remote = word(&end.remote),
            duration = end.duration;
            trace = end.trace
        );
        self.call_service(|service, ctx| service.disconnected(ctx, id, reason));
    }

    /// Detaches a client whose connection was cut. The service is not told, unless this side has opened the connection. Then this side
    /// comes back if `returns` is true.
    pub(super) fn detach(&mut self, id: ClientId, cut: CloseReason, returns: bool) {
        let pending = self.is_waiting(id);
        let Core {
            registry,
            env,
            poll,
            ..
        } = &mut self.ctx.core;
        if let Some(client) = registry.get_mut(id) {
            let trace = client.wire.trace_ids();
            log_event!(
                Info,
                client = id,
                "detached",
                cause = word(&cut.cause),
                code = cut.code.0,
                reason = &*cut.reason,
                path = client.path(),
                remote = word(&client.wire.remote),
                kept = client.wire.kept();
                trace = trace
            );
            env.counters.detaches += 1;
            let is_ours = client.wire.is_ours();
            client.detach(env, poll, cut.clone(), pending);
            if is_ours {
                if returns {
                    self.ctx.core.begin_return(id);
                }
                self.call_outgoing(|service, ctx| service.cut(ctx, id, &cut));
            }
        }
        // `accept` may have been waiting for this descriptor.
        self.accept_again = self.accept_again.map(|_| self.ctx.core.env.now);
    }

    /// The time to wait for events. `None` means no limit.
    pub(super) fn timeout(&mut self) -> Option<Duration> {
        if self.ctx.core.has_work() || self.reaper.has_work() {
            return Some(Duration::ZERO);
        }
        let now = self.ctx.now();
        let pending = self.listeners.iter().any(|listener| listener.pending);
        let accept = self.accept_again.or(pending.then_some(now));
        let next = earlier(self.ctx.core.next_turn(), self.next_upgrade_check());
        let next = earlier(next, accept)?;
        Some(next.since(now))
    }
}
