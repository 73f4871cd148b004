//! How a server stops: step by step, its clients first.

use std::time::Duration;

use rustix::process::Signal;

use super::context::Life;
use super::drain::Farewell;
use super::id::{ClientId, ServiceId};
use super::service::Service;
use super::{Ended, Server};
use crate::protocol::{CloseReason, Phase};
use crate::sys::{reap_orphans, signal_orphans};

/// Signals within this time of the first count as one. A supervisor may send both TERM and INT, and a wrapper may forward a
/// `^C` that the terminal has sent to us as well.
const ONE_SIGNAL: Duration = Duration::from_millis(100);

/// How long a stopping server waits for the requests of connections that it has taken.
const NEWCOMERS: Duration = Duration::from_millis(200);

impl<S: Service> Server<S> {
    pub(super) fn handle_signal(&mut self, ended: &mut Ended) {
        let now = self.ctx.now;
        let Some(first) = self.signalled else {
            self.signalled = Some(now);
            log::info!("signal received: stopping");
            return self.ctx.stop();
        };
        if now.since(first) >= ONE_SIGNAL {
            log::warn!("second signal received: leaving at once");
            *ended = Ended::AtOnce;
            self.leave_at_once();
        }
    }

    /// Takes the next step of stopping, if its time has come.
    pub(super) fn handle_life(&mut self) {
        let now = self.ctx.now;
        if self.ctx.life == Life::StopAsked {
            self.ctx.life = Life::Draining {
                until: now + self.ctx.config.drain_timeout,
            };
            self.ctx.newcomers_until = now + NEWCOMERS.min(self.ctx.config.drain_timeout);
            self.begin_drain();
        }
        if matches!(self.ctx.life, Life::Draining { .. }) {
            self.say_goodbye();
        }
        if let Life::Draining { until } = self.ctx.life
            && (!self.ctx.is_busy() || now >= until)
        {
            self.disconnect_all();
            self.ctx.service_id = ServiceId::ALL;
            self.service.stopping(&mut self.ctx);
            self.ctx.life = Life::Finishing {
                until: now + self.ctx.config.drain_timeout,
            };
        }
        if let Life::Finishing { until } = self.ctx.life
            && ((self.service.is_stopped() && !self.has_orphans()) || now >= until)
        {
            self.ctx.life = Life::Over;
        }
    }

    /// Whether there are processes that others have left to this one. They are asked to end.
    fn has_orphans(&self) -> bool {
        let left = self.children.is_some() && reap_orphans();
        if left {
            signal_orphans(Signal::TERM);
        }
        left
    }

    /// Stops listening and begins to send every client its CLOSE.
    fn begin_drain(&mut self) {
        for listener in self.listeners.drain(..) {
            listener.close(&self.ctx.poll);
        }
        self.accept_again = None;
        log::info!("draining {} clients", self.ctx.registry.client_count());
        self.ctx.service_id = ServiceId::ALL;
        self.service.draining(&mut self.ctx);
        self.reap();
        let now = self.ctx.now;
        let (clients, others): (Vec<_>, Vec<_>) =
            self.ctx.registry.ids().into_iter().partition(|id| {
                let client = self.ctx.registry.get(*id);
                let phase = client.map(|client| client.connection.phase());
                matches!(phase, Some(Phase::Open | Phase::Streaming))
            });
        others.into_iter().for_each(|id| self.drain_client(id));
        self.ctx.farewell = Farewell::begin(clients, now, self.ctx.config.drain_timeout);
        self.reap();
    }

    /// Sends CLOSE to the clients whose turn has come. The turn of a client that waits for the service comes when the
    /// service is done, or when time runs out.
    fn say_goodbye(&mut self) {
        let now = self.ctx.now;
        let Some(mut step) = self.ctx.farewell.begin_step(now) else {
            return;
        };
        while let Some((id, last_call)) = self.ctx.farewell.pop_due(&mut step, now) {
            if !last_call && self.is_waiting(id) {
                self.ctx.farewell.postpone(id);
            } else {
                self.drain_client(id);
            }
        }
        self.reap();
    }

    /// Tells a client that the server stops: CLOSE for WebSocket connections, the last answer for calls.
    fn drain_client(&mut self, id: ClientId) {
        let Some(client) = self.ctx.registry.get_mut(id) else {
            return;
        };
        match client.connection.phase() {
            Phase::Answering => client.connection.end_keep_alive(),
            // It was taken before, so it is served, if its request comes soon.
            Phase::Handshaking if client.connection.is_new() => {}
            // It is still taking an answer.
            Phase::Handshaking if client.queued() > 0 => {
                client
                    .connection
                    .abandon(self.ctx.now, CloseReason::shutdown());
                self.ctx.set_deadline(id);
            }
            Phase::Handshaking | Phase::Body | Phase::Streaming => {
                self.disconnect(id, CloseReason::shutdown());
            }
            _ => self.ctx.close_with(id, CloseReason::shutdown()),
        }
    }

    /// Ends every connection. Clients that have not been sent CLOSE are sent it if their socket has room.
    fn disconnect_all(&mut self) {
        for id in self.ctx.registry.ids() {
            self.ctx.close_with(id, CloseReason::shutdown());
            self.disconnect(id, CloseReason::shutdown());
        }
        self.reap();
    }

    /// Ends the loop without waiting for clients. The service still sees `disconnected` for every client, and
    /// `stopping`.
    pub(super) fn leave_at_once(&mut self) {
        self.disconnect_all();
        self.ctx.service_id = ServiceId::ALL;
        self.service.stopping(&mut self.ctx);
        self.ctx.life = Life::Over;
    }
}
