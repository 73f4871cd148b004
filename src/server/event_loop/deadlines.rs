//! Expired deadlines: time limits of clients, timers of services, and jumps of the clock.

use std::time::Duration;

use super::Server;
use super::timers::Due;
use crate::log_event::{log_event, word};
use crate::protocol::{CloseReason, Rejection, Time, Timeout};
use crate::server::core::Core;
use crate::server::id::ClientId;
use crate::server::service::Service;
use crate::server::tls::TlsStream;

impl<S: Service> Server<S> {
    /// Handles every deadline that has expired.
    pub(crate) fn handle_deadlines(&mut self) {
        loop {
            let core = &mut self.ctx.core;
            let Some(due) = core.timers.pop(&mut core.registry, core.env.now) else {
                return;
            };
            self.act(|server| server.handle_due(due));
        }
    }

    /// Handles one expired deadline. Does nothing if its client or timer is gone, even if the slot was reused.
    fn handle_due(&mut self, due: Due) {
        match due {
            Due::Client(id) => self.handle_deadline(id),
            Due::Service(timer, service_id) => {
                self.ctx.core.env.begin_own_work();
                self.ctx.core.enter_service(service_id);
                self.call_service(|service, ctx| service.timer(ctx, timer));
            }
        }
    }

    /// Handles an expired time limit of a client: sends a PING, restarts the limit, or ends the connection.
    fn handle_deadline(&mut self, id: ClientId) {
        let client = self.ctx.core.registry.get(id);
        if client.is_some_and(|client| client.wire.protocol.is_outgoing()) {
            return self.handle_outgoing_deadline(id);
        }
        if client.is_some_and(|client| client.wire.protocol.is_detached()) {
            let pending = self.is_waiting(id);
            self.ctx
                .core
                .with(id, |client, env| client.check_detached(env, pending));
            return;
        }
        let handle = |server: &mut Self| {
            let core = &mut server.ctx.core;
            core.with(id, |client, env| client.handle_timeout(env))
        };
        if handle(self) == Some(Timeout::Continue) {
            return;
        }
        let client = self.ctx.core.registry.get(id);
        if client.is_some_and(|client| client.wire.is_tls_handshaking()) {
            // It could not read a response. It is not read again, because a handshake takes long and many may expire at
            // once.
            self.ctx.core.with(id, |client, env| {
                if client
                    .wire
                    .tls()
                    .is_some_and(TlsStream::is_inside_handshake)
                {
                    log_event!(
                        Info,
                        client = id,
                        "TLS handshake timed out",
                        remote = word(&client.wire.remote),
                    );
                }
                client.end(env, CloseReason::eof());
            });
            return;
        }
        // If the loop was late, the bytes that show that the peer is alive may already be in the socket.
        self.ctx
            .core
            .with(id, |client, _| client.wire.handle_readable(false));
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
                    env.counters.close_timeouts += u64::from(client.wire.protocol.is_closing());
                    client.end(env, reason);
                });
                return;
            }
            Some(Timeout::Rejection) => {
                self.ctx.core.with(id, |client, env| client.reject_now(env));
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
    pub(crate) fn is_waiting(&mut self, id: ClientId) -> bool {
        self.ctx.core.enter(id);
        let service = self.service.select(self.ctx.core.service_id);
        service.is_some_and(|service| service.is_waiting(&self.ctx, id))
    }

    /// Handles that the machine was suspended. The time asleep counts for no time limit, but links have expired in it. A PING
    /// from before it may be lost, so the ping timeout of every client restarts.
    #[cold]
    pub(crate) fn handle_sleep(&mut self, slept: Duration) {
        log::info!(
            "the machine was suspended for {slept:.1?}; restarted the ping timeout of every client"
        );
        self.ctx.core.env.asleep += slept;
        self.act(|server| {
            server.ctx.core.expire_links();
            server.ctx.core.plan_chores();
        });
        self.restart_ping_windows();
    }

    /// Restarts the ping timeout of every client if much more time passed than the poll timeout. The loop was blocked, so the
    /// server could not read from the clients.
    pub(crate) fn handle_jump(&mut self, before: Time, waited: Option<Duration>) {
        let interval = self.ctx.config().timeouts.ping_interval;
        let (Some(interval), Some(waited)) = (interval, waited) else {
            return;
        };
        let elapsed = self.ctx.now().since(before);
        if elapsed > interval && elapsed > waited + interval + interval / 2 {
            log::warn!(
                "no events were handled for {elapsed:?}; restarted the ping timeout of every client"
            );
            self.restart_ping_windows();
        }
    }

    fn restart_ping_windows(&mut self) {
        self.act(|server| {
            let Core { registry, env, .. } = &mut server.ctx.core;
            for client in registry.iter_mut() {
                client.restart_ping_window(env);
            }
        });
    }
}
