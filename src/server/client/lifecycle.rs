//! From the handshake to the end: opening, time limits, and the steps of closing.

use std::sync::Arc;
use std::time::Duration;

use super::{Client, Connection, Flag, ReadGate, Why};
use crate::protocol::deflate::Codec;
use crate::protocol::handshake::Upgrade;
use crate::protocol::http::HttpState;
use crate::protocol::{
    Accept, CloseCode, CloseReason, NextStep, State, StatusCode, Time, Timeout, WebSocket,
};
use crate::server::core::Env;
use crate::server::counters::Outcome;
use crate::server::error::SendError;
use crate::server::run_queue::News;

/// The minimum rate, in bytes a second, at which the peer of a closing connection must take its output.
const SLOWEST_END: f64 = 1024.0;

impl Client {
    /// Opens the WebSocket connection: answers the handshake with 101. `path` is that of the request.
    pub(in crate::server) fn open(
        &mut self,
        env: &mut Env,
        upgrade: &Upgrade<'_>,
        accept: &Accept,
        path: Arc<Box<str>>,
        codec: Option<Codec>,
    ) {
        debug_assert!(!self.was_open());
        self.path = Some(path);
        env.addresses.add_client(self.remote.ip());
        env.counters.responded(StatusCode::SWITCHING_PROTOCOLS);
        self.transmit(env, |connection, now, out| {
            *connection =
                Connection::WebSocket(WebSocket::accept(now, upgrade, accept, codec, out));
        });
    }

    /// Begins the closing handshake on behalf of a service.
    pub(in crate::server) fn close_with_code(
        &mut self,
        env: &mut Env,
        code: CloseCode,
        reason: String,
    ) -> Result<(), SendError> {
        if !self.is_open() {
            return Err(SendError::Closing);
        }
        self.close(env, CloseReason::by_service(code, reason));
        Ok(())
    }

    /// Begins the closing handshake. Does nothing unless the connection is open.
    pub(in crate::server) fn close(&mut self, env: &mut Env, reason: CloseReason) {
        if self.is_open() {
            self.transmit(env, |connection, now, out| {
                if let Connection::WebSocket(socket) = connection {
                    socket.close(now, reason, out);
                }
            });
        }
    }

    /// Ends the connection now, without a closing handshake. What is queued is dropped. The first reason stands.
    pub(in crate::server) fn end(&mut self, env: &mut Env, reason: CloseReason) {
        self.abandon(env.now, reason);
        self.disconnect(env);
    }

    /// Ends the connection when what is queued is written, or after the close timeout. The first reason stands.
    fn end_when_written(&mut self, env: &mut Env, reason: CloseReason) {
        self.abandon(env.now, reason);
        self.mark_delivered();
        self.rearm(env);
    }

    fn abandon(&mut self, now: Time, reason: CloseReason) {
        match &mut self.connection {
            Connection::Http(http) => http.abandon(now),
            Connection::WebSocket(socket) => socket.abandon(now, reason),
        }
    }

    /// Takes the next step of closing if all output is written. To be called after every operation that may have
    /// changed the state of the connection, or finished its output.
    #[inline]
    pub(in crate::server) fn settle(&mut self, env: &mut Env) {
        if !self.is_open() {
            self.settle_closing(env);
        }
    }

    fn settle_closing(&mut self, env: &mut Env) {
        if self.since() == env.now {
            // The state has just begun, and with it a time limit that progress extends.
            self.mark_delivered();
            // Its input may be read again.
            self.read_again(env);
        }
        if self.queued() == 0 {
            match self.next_step() {
                NextStep::Continue => {}
                // The peer's remaining input is read and discarded: closing with unread data would reset the
                // connection, and the peer might never see why it ended.
                NextStep::EndOutput => self.stream.end_output(),
                NextStep::Close => self.disconnect(env),
            }
        }
        self.rearm(env);
    }

    fn next_step(&self) -> NextStep {
        match &self.connection {
            Connection::Http(http) => http.next_step(),
            Connection::WebSocket(socket) => socket.next_step(),
        }
    }

    /// Keeps a client whose peer has ended its direction, so that the service can still send to it, as long as it takes
    /// output within `patience`.
    pub(in crate::server) fn end_input(&mut self, env: &mut Env, patience: Duration) {
        let owed = self.traffic.bytes_out + self.queued() as u64;
        if let Connection::WebSocket(socket) = &mut self.connection {
            socket.end_input(env.now, patience, owed);
        }
        self.mark_delivered();
        self.rearm(env);
        // A close that is already decided needs no answer of the peer.
        self.settle(env);
    }

    /// Ends a connection whose peer has ended its direction, once the peer has what is queued for it or the close
    /// timeout has passed.
    pub(in crate::server) fn abandon_input(&mut self, env: &mut Env) {
        self.flush(env);
        if self.queued() == 0 {
            return self.end(env, CloseReason::eof());
        }
        self.end_when_written(env, CloseReason::eof());
    }

    /// Tells a client that the server stops: CLOSE for an open WebSocket, the last answer for a call.
    pub(in crate::server) fn drain(&mut self, env: &mut Env) {
        let queued = self.queued();
        let Connection::Http(http) = &mut self.connection else {
            return self.close(env, CloseReason::shutdown());
        };
        match http.state() {
            HttpState::Answering => http.end_keep_alive(),
            // It connected before the server stopped, so its request is served if it arrives soon.
            HttpState::Head if http.is_new() => {}
            // It is still taking an answer.
            HttpState::Head if queued > 0 => self.end_when_written(env, CloseReason::shutdown()),
            HttpState::Head | HttpState::Body | HttpState::Streaming => {
                self.end(env, CloseReason::shutdown());
            }
            HttpState::Closing | HttpState::Closed => {}
        }
    }

    /// Whether a stopping server closes it in the order of the drain schedule: a client, or a stream of events.
    pub(in crate::server) fn is_drained_in_order(&self) -> bool {
        match &self.connection {
            Connection::Http(http) => http.state() == HttpState::Streaming,
            Connection::WebSocket(socket) => socket.is_open(),
        }
    }

    /// Whether its first request is still to come, or arriving.
    pub(in crate::server) fn is_new(&self) -> bool {
        matches!(&self.connection, Connection::Http(http) if http.is_new())
    }

    /// What the connection was used for.
    pub(in crate::server) fn outcome(&self) -> Outcome {
        match &self.connection {
            Connection::WebSocket(_) => Outcome::WebSocket,
            Connection::Http(http) if http.was_called() => Outcome::Http,
            Connection::Http(http) if http.was_rejected() => Outcome::Rejected,
            Connection::Http(_) => Outcome::Unused,
        }
    }

    /// Why the connection ended. `None` for one that was never open.
    pub(in crate::server) fn into_close_reason(self) -> Option<CloseReason> {
        // CLOSE is the last thing that is sent, so it has not left while anything waits.
        let close_left = self.queued() == 0;
        let Connection::WebSocket(socket) = self.connection else {
            return None;
        };
        let close_left = close_left && socket.close_reason().is_some();
        let reason = socket.into_close_reason(CloseReason::eof());
        Some(if close_left {
            reason
        } else {
            reason.without_close()
        })
    }

    // Time limits.

    /// Asks the loop to look at the client's deadline again.
    pub(super) fn rearm(&self, env: &mut Env) {
        env.queue.push_news(self.id, News::Rearm);
    }

    /// When [`Client::handle_timeout`] has to be called, if ever.
    pub(in crate::server) fn deadline(&self, env: &Env) -> Option<Time> {
        match &self.connection {
            Connection::Http(http) => http.deadline(&env.config.timeouts),
            Connection::WebSocket(socket) => socket.deadline(&env.config.timeouts),
        }
    }

    /// Does what the passed deadline asks for, such as sending a PING, or returns what the loop has to do.
    pub(in crate::server) fn handle_timeout(&mut self, env: &mut Env) -> Timeout {
        if self.is_stalled_stream(env) {
            return Timeout::Gone(CloseReason::slow_consumer());
        }
        // Signs of life behind a message that is held back cannot be seen. PINGs continue, so that proxies in between do
        // not time out.
        let is_unseen = self.read_gate(env) == ReadGate::Held(Why::Service);
        if is_unseen {
            self.excuse_silence(env.now);
        }
        let timeouts = env.config.timeouts;
        let mut outcome = Timeout::Continue;
        let mut pinged = false;
        self.transmit(env, |connection, now, out| {
            outcome = match connection {
                Connection::Http(http) => http.handle_timeout(now, &timeouts, out),
                Connection::WebSocket(socket) => {
                    let outcome = socket.handle_timeout(now, &timeouts, out);
                    pinged = !out.is_empty();
                    outcome
                }
            };
        });
        if is_unseen {
            self.excuse_silence(env.now);
        }
        if pinged {
            self.mark_delivered();
        }
        outcome
    }

    /// Whether a reader of a stream of events has stopped taking it.
    fn is_stalled_stream(&mut self, env: &Env) -> bool {
        if !matches!(&self.connection, Connection::Http(http) if http.state() == HttpState::Streaming)
        {
            return false;
        }
        let progressed = self.measure_progress() > 0 || self.is_delivered();
        let queued = self.queued();
        let Connection::Http(http) = &mut self.connection else {
            return false;
        };
        if progressed {
            http.handle_progress(env.now);
        }
        if queued > 0 {
            http.skip_comment(env.now);
        }
        let timeouts = env.config.timeouts;
        let patience = timeouts.ping_interval.zip(timeouts.ping_timeout);
        patience
            .is_some_and(|(interval, timeout)| env.now.since(http.since()) >= interval + timeout)
    }

    /// Whether a client that has ended its direction has everything that was sent to it before. Later broadcasts do not
    /// keep it connected.
    pub(in crate::server) fn has_what_was_owed(&self) -> bool {
        let Connection::WebSocket(socket) = &self.connection else {
            return false;
        };
        socket.owed().is_some_and(|owed| self.delivered() >= owed)
    }

    /// Whether a client whose time is up has taken output since its time began, and so gets more time: the PING or
    /// CLOSE that it must answer is queued behind that output.
    pub(in crate::server) fn has_progressed(&mut self, env: &mut Env) -> bool {
        // Any progress is a sign of life. But a closing connection only occupies a place, so it must make progress at a
        // minimum rate.
        let least = if self.is_open() {
            1.0
        } else {
            let close = env.config.timeouts.close.unwrap_or_default();
            (SLOWEST_END * close.as_secs_f64()).max(1.0)
        };
        let progressed = f64::from(self.measure_progress()) >= least;
        if progressed {
            match &mut self.connection {
                Connection::Http(http) => http.handle_progress(env.now),
                Connection::WebSocket(socket) => socket.handle_progress(env.now),
            }
            self.rearm(env);
        }
        progressed
    }

    /// Whether it was open and is closing.
    pub(in crate::server) fn is_closing(&self) -> bool {
        matches!(&self.connection, Connection::WebSocket(socket) if socket.state() != State::Open)
    }

    /// Restarts the idle time limit.
    pub(in crate::server) fn excuse_idleness(&mut self, env: &mut Env) {
        if let Connection::WebSocket(socket) = &mut self.connection {
            socket.handle_message(env.now);
        }
        self.rearm(env);
    }

    /// Restarts the time limits of a peer that could not be heard: no PONG is missed.
    pub(super) fn excuse_silence(&mut self, now: Time) {
        match &mut self.connection {
            Connection::Http(http) => http.excuse_silence(now),
            Connection::WebSocket(socket) => socket.excuse_silence(now),
        }
    }

    /// Gives the peer a fresh ping window. Before the upgrade there is none.
    pub(in crate::server) fn restart_ping_window(&mut self, env: &mut Env) {
        if let Connection::WebSocket(socket) = &mut self.connection {
            socket.restart_ping_window(env.now);
        }
        self.rearm(env);
    }

    // The socket.

    /// Asks for events of the socket, for the whole life of the connection.
    pub(in crate::server) fn register(&mut self, registry: &mio::Registry) -> std::io::Result<()> {
        self.stream.register(registry, self.id.token())
    }

    /// Ends what [`Client::register`] began.
    pub(in crate::server) fn deregister(&mut self, registry: &mio::Registry) {
        if let Err(error) = self.stream.deregister(registry) {
            log::debug!("{} deregistering failed: {error}", self.id);
        }
    }

    /// Makes the client wait for a PROXY protocol header before its first request.
    pub(in crate::server) fn expect_proxy_header(&mut self) {
        if let Connection::Http(http) = &mut self.connection {
            http.expect_proxy_header();
        }
    }

    /// Counts the connection for its address, now that the address is known, and returns how many the address has.
    pub(in crate::server) fn count_for_address(&mut self, env: &mut Env) -> usize {
        if self.remote.is_unix() {
            return 0;
        }
        let was_counted = self.flags.set(Flag::Counted, true);
        debug_assert!(!was_counted);
        env.addresses.add_connection(self.remote.ip())
    }
}
