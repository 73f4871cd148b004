//! Stops a server in steps: first its clients, then its service.

use std::time::Duration;

use rustix::event::{Timespec, poll};
use rustix::process::Signal;

use super::shutdown::DrainSchedule;
use crate::protocol::{CloseReason, Rejection, Response};
use crate::server::core::Core;
use crate::server::event_loop::{Ended, Server};
use crate::server::id::ServiceId;
use crate::server::listener::Listener;
use crate::server::service::Service;
use crate::sys::{reap_orphans, signal_orphans};

/// Signals within this time of the first count as one. A supervisor may send both TERM and INT, and a wrapper may
/// forward a `^C` that the terminal has sent to this process as well.
const ONE_SIGNAL: Duration = Duration::from_millis(100);

/// How long programs may take to stop if waiting for events has failed, and the time between two turns then.
const LAST_CHANCE: Duration = Duration::from_secs(2);
const LAST_CHANCE_TURN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

impl<S: Service> Server<S> {
    pub(crate) fn handle_signal(&mut self, ended: &mut Ended) {
        let now = self.ctx.now();
        let Some(first) = self.signalled else {
            self.signalled = Some(now);
            log::info!("signal received: stopping");
            return self.ctx.stop();
        };
        if now.since(first) >= ONE_SIGNAL {
            log::warn!("second signal received: exiting immediately");
            *ended = Ended::AtOnce;
            self.leave_at_once();
        }
    }

    /// Takes the next step of the shutdown if it is due.
    #[inline]
    pub(super) fn handle_shutdown(&mut self) {
        if self.ctx.core.shutdown.is_stopping() {
            self.advance_shutdown();
        }
    }

    #[cold]
    fn advance_shutdown(&mut self) {
        let now = self.ctx.now();
        let timeout = self.ctx.config().drain_timeout;
        if self.ctx.core.shutdown.begin_draining(now, timeout) {
            self.begin_drain();
        }
        if let Some(until) = self.ctx.core.shutdown.drains_until() {
            self.drain_due_clients();
            if !self.ctx.core.is_busy() || now >= until {
                self.end_clients();
                self.ctx.core.shutdown.begin_finishing(now + timeout);
            }
        }
        if let Some(until) = self.ctx.core.shutdown.finishes_until()
            && ((self.service.is_stopped() && !self.has_orphans()) || now >= until)
        {
            self.ctx.core.shutdown.end();
        }
    }

    /// Whether adopted processes still run. Sends TERM to them.
    fn has_orphans(&self) -> bool {
        let left = self.children.is_some() && reap_orphans();
        if left {
            signal_orphans(Signal::TERM);
        }
        left
    }

    /// Begins to close every client. Stops listening, unless clients may be cut that have to come back.
    fn begin_drain(&mut self) {
        self.until_drain = None;
        if self.ctx.config().reuse_port || self.listeners.iter().any(Listener::is_inherited) {
            // Another process serves new clients at the same address.
            self.stop_listening();
        }
        self.check_returns();
        log::info!("draining {} clients", self.ctx.core.registry.client_count());
        self.ctx.core.service_id = ServiceId::ALL;
        self.act(|server| server.service.draining(&mut server.ctx));
        self.act(|server| {
            let Core {
                registry,
                env,
                shutdown,
                ..
            } = &mut server.ctx.core;
            let newcomers = registry
                .iter()
                .filter(|client| client.wire.protocol.is_new());
            let newcomers = newcomers.map(|client| client.id).collect();
            let mut scheduled = Vec::new();
            for client in registry.iter_mut() {
                if client.wire.is_drained_in_order() {
                    scheduled.push(client.id);
                } else {
                    client.drain(env);
                }
            }
            let timeout = env.config.drain_timeout;
            let schedule = DrainSchedule::begin(scheduled, env.now, timeout);
            shutdown.drain(newcomers, schedule);
        });
    }

    fn stop_listening(&mut self) {
        for listener in self.listeners.drain(..) {
            listener.close(&self.ctx.core.poll);
        }
        self.accept_again = None;
    }

    /// Closes the clients that are due. A client that waits for the service, or for messages that it lacks, is closed when
    /// it has everything, or when time runs out. Stops listening when no client can come back any more.
    fn drain_due_clients(&mut self) {
        let now = self.ctx.now();
        if let Some(mut step) = self.ctx.core.shutdown.schedule.begin_step(now) {
            while let Some((id, last_call)) =
                self.ctx.core.shutdown.schedule.pop_due(&mut step, now)
            {
                let lacks = |server: &Self| {
                    let client = server.ctx.core.registry.get(id);
                    client.is_some_and(|client| client.wire.lacks_messages())
                };
                if !last_call && (self.is_waiting(id) || lacks(self)) {
                    self.ctx.core.shutdown.schedule.postpone(id);
                } else {
                    self.act(|server| {
                        server.ctx.core.with(id, |client, env| client.drain(env));
                    });
                }
            }
        } else if !self.ctx.core.shutdown.schedule.is_done() {
            return;
        }
        self.check_returns();
    }

    /// Stops listening if no client can come back.
    fn check_returns(&mut self) {
        let registry = &self.ctx.core.registry;
        if !self.listeners.is_empty()
            && !registry
                .iter()
                .any(|client| client.wire.is_kept_for_return())
        {
            self.stop_listening();
        }
    }

    /// Ends every connection, then calls `stopping`. Each client that has not been sent CLOSE gets it first, and each caller
    /// that waits for an answer gets 503, if its socket has room.
    fn end_clients(&mut self) {
        self.stop_listening();
        let unfinished = Rejection::unavailable("the server stopped before the call was answered");
        let unfinished = Response::from(&unfinished.because("stopping"));
        for id in self.ctx.core.registry.ids() {
            self.act(|server| {
                let answered = server.ctx.core.with(id, |client, env| {
                    client.wire.protocol.is_unanswered() && client.respond(env, &unfinished).is_ok()
                });
                if answered == Some(true) {
                    server.ctx.core.enter(id);
                    server.call_service(|service, ctx| service.abandoned(ctx, id));
                }
                server.ctx.core.with(id, |client, env| {
                    client.close(env, CloseReason::shutdown());
                    client.end(env, CloseReason::shutdown());
                });
            });
        }
        self.ctx.core.service_id = ServiceId::ALL;
        self.service.stopping(&mut self.ctx);
    }

    /// Ends the loop without waiting for clients. The service still sees `disconnected` for every client, and
    /// `stopping`.
    pub(crate) fn leave_at_once(&mut self) {
        self.end_clients();
        self.ctx.core.shutdown.end();
    }

    /// Ends the loop after waiting for events has failed. The services get a last chance to write what they have queued and to
    /// stop their programs: as events are missing, every descriptor is tried in turn.
    pub(super) fn leave_without_events(&mut self) {
        self.begin_turn();
        self.end_clients();
        let patience = LAST_CHANCE.min(self.ctx.config().drain_timeout);
        let until = self.ctx.now() + patience;
        self.ctx.core.shutdown.begin_finishing(until);
        while !self.ctx.core.shutdown.is_over() {
            self.begin_turn();
            self.ctx.core.try_every_source();
            self.take_turn();
            // It may fail as well. Then the loop is busy until the time has passed.
            let _ = poll(&mut [], Some(&LAST_CHANCE_TURN));
        }
    }
}
