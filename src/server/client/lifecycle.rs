//! The life of a connection: the upgrade, time limits, and the steps of closing.
//!
//! | verb | what the peer still gets | for |
//! |---|---|---|
//! | [`close`](Client::close) | all queued output, then the closing handshake | an open WebSocket; a client that was cut gets it later |
//! | [`cut_off`](Client::cut_off) | frames that have begun, then the closing handshake | a client that reads too slowly, or takes too much memory |
//! | [`end`](Client::end) | nothing | an error, and a peer that is gone |
//! | [`abandon_input`](Client::abandon_input) | all queued output | a peer that has half-closed the connection |
//! | [`revoke`](Client::revoke) | as `close`, and before the upgrade as `end` | a token, link or certificate that is no longer accepted |
//! | [`drain`](Client::drain) | as `close`; a pending call is answered first | a server that stops |
//! | [`detach`](Client::detach) | nothing: the socket is closed, and the client stays | a cut, after which a resumable client may come back |
//! | [`reject`](Client::reject), [`fail`](Client::fail) | an HTTP error; nothing | a connection that is not open yet, of a peer or of this side |
//!
//! [`request_removal`](Client::request_removal) is the last step of each but `detach`: the connection is over. The loop then removes the
//! client, or detaches it if it was cut and may come back.

use std::sync::Arc;
use std::time::Duration;

use super::protocol::Protocol;
use super::wire::Wire;
use super::{Client, Handshake, ReadGate, Why};
use crate::protocol::deflate::Codec;
use crate::protocol::handshake::Upgrade;
use crate::protocol::http::HttpState;
use crate::protocol::{
    Accept, CloseCode, CloseReason, NextStep, StatusCode, Time, Timeout, WebSocket,
};
use crate::server::core::earlier;
use crate::server::env::{Env, News};
use crate::server::error::SendError;
use crate::server::observe::counters::Outcome;
use crate::server::outgoing::ConnectError;
use crate::server::tls::TlsStream;

/// The minimum rate, in bytes per second, at which the peer of a closing connection must read.
const SLOWEST_END: f64 = 1024.0;

impl Wire {
    /// Whether the drain schedule decides when to close the connection: true for an open WebSocket, for an event stream,
    /// and for a client that may come back.
    pub(crate) fn is_drained_in_order(&self) -> bool {
        match &self.protocol {
            Protocol::Http(http) => http.state() == HttpState::Streaming,
            Protocol::WebSocket(socket) => socket.is_open(),
            Protocol::Detached(_) => self.is_kept_for_return(),
            Protocol::Outgoing(_) => false,
        }
    }

    fn abandon(&mut self, now: Time, reason: CloseReason) {
        match &mut self.protocol {
            Protocol::Http(http) => http.abandon(now),
            Protocol::WebSocket(socket) => socket.abandon(now, reason),
            Protocol::Outgoing(_) => self.abandon_attempt(&reason),
            Protocol::Detached(_) => {
                if let Some(delivery) = self.delivery_mut() {
                    delivery.end(reason);
                }
            }
        }
    }

    /// When to call [`Client::handle_timeout`]. `None` means never.
    pub(crate) fn deadline(&self, env: &Env) -> Option<Time> {
        match &self.protocol {
            Protocol::Http(http) => http.deadline(&env.config.timeouts),
            Protocol::WebSocket(socket) => {
                earlier(socket.deadline(&env.config.timeouts), self.stuck_at())
            }
            Protocol::Outgoing(outgoing) => outgoing.deadline(),
            // The attempts to come back have time limits of their own.
            Protocol::Detached(_) if self.is_ours() => None,
            Protocol::Detached(detached) => Some(detached.deadline(&self.delivery()?.limits)),
        }
    }
}

impl Client {
    /// Opens the WebSocket connection: answers the handshake with 101. `handshake` is what the request has said.
    pub(crate) fn open(
        &mut self,
        env: &mut Env,
        upgrade: &Upgrade<'_>,
        accept: &Accept,
        handshake: Arc<Handshake>,
        codec: Option<Codec>,
    ) {
        debug_assert!(!self.wire.protocol.was_open());
        self.handshake = Some(handshake);
        self.set_opened(env.now);
        env.addresses.add_client(self.wire.remote.ip());
        env.counters.responded(StatusCode::SWITCHING_PROTOCOLS);
        self.transmit(env, |protocol, now, out| {
            *protocol = Protocol::WebSocket(WebSocket::accept(now, upgrade, accept, codec, out));
        });
    }

    /// Begins the closing handshake on behalf of a service.
    pub(crate) fn close_with_code(
        &mut self,
        env: &mut Env,
        code: CloseCode,
        reason: String,
    ) -> Result<(), SendError> {
        if self.wire.protocol.is_outgoing() {
            self.fail(env, ConnectError::Cancelled);
            return Ok(());
        }
        if !self.wire.is_open() {
            return Err(SendError::Closing);
        }
        self.close(env, CloseReason::by_service(code, reason));
        Ok(())
    }

    /// Counts messages that another message contained against the rate limit. Closes a client that exceeds it. Returns whether the
    /// client is within the limit.
    pub(crate) fn count_messages(&mut self, env: &mut Env, count: u32) -> bool {
        let is_over = self.wire.is_over_rate(env, count);
        if is_over {
            self.close(env, CloseReason::rate_limit());
        }
        !is_over
    }

    /// Begins the closing handshake. Does nothing unless the connection is open.
    pub(crate) fn close(&mut self, env: &mut Env, reason: CloseReason) {
        if self.wire.has_newest() {
            self.send_last_newest(env);
        }
        if !self.wire.protocol.is_connected() {
            self.close_cut(env, reason);
        } else if !self
            .wire
            .delivery_mut()
            .is_some_and(|one| one.postpone_close(&reason))
        {
            self.transmit(env, |protocol, now, out| {
                if let Protocol::WebSocket(socket) = protocol {
                    socket.close(now, reason, out);
                }
            });
        }
    }

    /// Ends the connection now, without a closing handshake. Queued output is dropped. An earlier close reason is kept.
    pub(crate) fn end(&mut self, env: &mut Env, reason: CloseReason) {
        self.wire.abandon(env.now, reason);
        self.request_removal(env);
    }

    /// Closes the connection because its token, link or certificate is no longer accepted. A pending call is not answered.
    pub(crate) fn revoke(&mut self, env: &mut Env, reason: CloseReason) {
        if self.wire.protocol.was_open() {
            self.close(env, reason);
        } else {
            self.end(env, reason);
        }
    }

    /// Ends the connection when the queued output is written, or after the close timeout. An earlier close reason is
    /// kept.
    fn end_when_written(&mut self, env: &mut Env, reason: CloseReason) {
        self.wire.abandon(env.now, reason);
        self.mark_delivered();
        self.rearm(env);
    }

    /// Takes the next step of closing if all output is written. Called after every operation that may have changed the
    /// state of the connection or written the last of its output.
    #[inline]
    pub(crate) fn settle(&mut self, env: &mut Env) {
        if !self.wire.protocol.is_connected() {
            self.settle_closing(env);
        }
    }

    fn settle_closing(&mut self, env: &mut Env) {
        if self.wire.protocol.since() == env.now {
            // The state has just begun, so measure progress from now: progress extends its time limit.
            self.mark_delivered();
            // A closing connection is always read, so queue it if it was held.
            self.read_again(env);
        }
        if self.wire.queued() == 0 {
            match self.wire.next_step() {
                NextStep::Continue => {}
                // The peer's remaining input is read and discarded: closing with unread data would reset the
                // connection, and the peer might never see why it ended.
                NextStep::EndOutput => self.wire.stream.end_output(&mut env.scratch),
                NextStep::Close => self.request_removal(env),
            }
        }
        self.rearm(env);
    }

    /// Keeps a half-closed client connected, so that the service can still send to it, until it accepts no output for
    /// `patience`.
    pub(crate) fn end_input(&mut self, env: &mut Env, patience: Duration) {
        let queued = self.wire.queued();
        let tls = self.wire.tls();
        let queued = tls.map_or(queued, |_| TlsStream::sealed_len(queued));
        let owed = self.traffic.bytes_out + queued as u64;
        if let Some(socket) = self.wire.protocol.websocket_mut() {
            socket.end_input(env.now, patience, owed);
        }
        self.mark_delivered();
        self.rearm(env);
        // A connection that is already closing does not wait for the peer's CLOSE.
        self.settle(env);
    }

    /// Ends a half-closed connection when its queued output is written, or after the close timeout.
    pub(crate) fn abandon_input(&mut self, env: &mut Env) {
        if self.wire.protocol.is_outgoing() {
            return self.end(env, CloseReason::eof());
        }
        self.flush(env);
        if self.wire.queued() == 0 {
            return self.end(env, CloseReason::eof());
        }
        self.end_when_written(env, CloseReason::eof());
    }

    /// Closes the connection because the server stops. Sends CLOSE on an open WebSocket. A pending call is answered
    /// first.
    pub(crate) fn drain(&mut self, env: &mut Env) {
        let queued = self.wire.queued();
        let Some(http) = self.wire.protocol.http_mut() else {
            if self.wire.protocol.is_in_exchange() {
                // Its service may have to say goodbye to the server, and ends it.
                return;
            }
            if self.wire.protocol.is_outgoing() {
                return self.end(env, CloseReason::shutdown());
            }
            return self.close(env, CloseReason::shutdown());
        };
        match http.state() {
            HttpState::Answering => http.end_keep_alive(),
            // The client connected before the server began to stop, so its request is served if it arrives soon.
            HttpState::Head if http.is_new() => {}
            // The last answer is not written completely.
            HttpState::Head if queued > 0 => self.end_when_written(env, CloseReason::shutdown()),
            HttpState::Head | HttpState::Body | HttpState::Streaming => {
                self.end(env, CloseReason::shutdown());
            }
            HttpState::Closing | HttpState::Closed => {}
        }
    }

    /// How the connection was used.
    pub(crate) fn outcome(&self) -> Outcome {
        match &self.wire.protocol {
            Protocol::WebSocket(_) | Protocol::Detached(_) => Outcome::WebSocket,
            // The connection was given to another client, or taken from it.
            Protocol::Http(_) if self.handshake.is_some() => Outcome::WebSocket,
            Protocol::Http(http) if http.was_called() => Outcome::Http,
            Protocol::Http(http) if http.was_rejected() => Outcome::Rejected,
            Protocol::Http(_) | Protocol::Outgoing(_) => Outcome::Unused,
        }
    }

    /// Why the connection ended. `None` if it was never a WebSocket.
    pub(crate) fn into_close_reason(mut self) -> Option<CloseReason> {
        if let Some(ended) = self.wire.delivery_mut().and_then(|one| one.ended.take()) {
            return Some(ended.without_close());
        }
        // CLOSE is the last frame, so it has not been written while output is queued.
        let close_left = self.wire.queued() == 0;
        let socket = match self.wire.protocol {
            Protocol::WebSocket(socket) => socket,
            Protocol::Http(_) | Protocol::Outgoing(_) | Protocol::Detached(_) => return None,
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

    /// Asks the loop to recompute the client's deadline.
    pub(crate) fn rearm(&self, env: &mut Env) {
        env.push_news(self.id, News::Rearm);
    }

    /// Handles a passed deadline: sends a PING, or returns what the loop must do.
    pub(crate) fn handle_timeout(&mut self, env: &mut Env) -> Timeout {
        if self.is_stalled_stream(env) {
            return Timeout::Gone(CloseReason::slow_consumer());
        }
        if self.is_stuck(env) {
            return Timeout::Gone(CloseReason::unconfirmed());
        }
        // While a message is held back, the input behind it is not read, so a missing PONG proves nothing. PINGs
        // continue, so that proxies keep the connection open.
        let is_unseen = self.read_gate(env) == ReadGate::Held(Why::Service);
        if is_unseen {
            self.wire.protocol.excuse_silence(env.now);
        }
        let timeouts = env.config.timeouts;
        let sent = self.wire.is_resumable().then(|| self.sent_count());
        let mut outcome = Timeout::Continue;
        let mut pinged = false;
        self.transmit(env, |protocol, now, out| {
            outcome = match protocol {
                Protocol::Http(http) => http.handle_timeout(now, &timeouts, out),
                Protocol::WebSocket(socket) => {
                    let outcome = socket.handle_timeout(now, &timeouts, sent, out);
                    pinged = !out.is_empty();
                    outcome
                }
                Protocol::Outgoing(_) | Protocol::Detached(_) => Timeout::Continue,
            };
        });
        if is_unseen {
            self.wire.protocol.excuse_silence(env.now);
        }
        if pinged {
            self.mark_delivered();
        }
        outcome
    }

    /// Sends a PING now, and ends the connection unless something arrives within `patience`. Does nothing while the service
    /// holds the client's messages, because nothing is read then.
    pub(crate) fn probe(&mut self, env: &mut Env, patience: Duration) {
        if !self.wire.protocol.is_connected() || matches!(self.read_gate(env), ReadGate::Held(_)) {
            return;
        }
        let sent = self.wire.is_resumable().then(|| self.sent_count());
        self.transmit(env, |protocol, now, out| {
            if let Protocol::WebSocket(socket) = protocol {
                socket.probe(now, patience, sent, out);
            }
        });
        self.mark_delivered();
        self.rearm(env);
    }

    /// Whether the reader of an event stream has stopped reading.
    fn is_stalled_stream(&mut self, env: &Env) -> bool {
        if self.wire.protocol.http_state() != Some(HttpState::Streaming) {
            return false;
        }
        let progressed =
            self.wire.measure_progress(self.traffic.bytes_out) > 0 || self.wire.is_delivered();
        let queued = self.wire.queued();
        let Some(http) = self.wire.protocol.http_mut() else {
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

    /// Whether a half-closed client has received all output that was queued when it half-closed. Later broadcasts do
    /// not keep it connected.
    pub(crate) fn has_what_was_owed(&self) -> bool {
        let owed = self.wire.protocol.websocket().and_then(WebSocket::owed);
        owed.is_some_and(|owed| self.wire.delivered(self.traffic.bytes_out) >= owed)
    }

    /// Whether the peer has accepted output since the current time limit began. If so, restarts the limit, because the
    /// PING or CLOSE that the peer must answer is queued behind that output.
    pub(crate) fn has_progressed(&mut self, env: &mut Env) -> bool {
        // On an open connection, any progress counts. A closing connection only occupies a slot, so it must make
        // progress at a minimum rate.
        let least = if self.wire.protocol.is_connected() {
            1.0
        } else {
            let close = env.config.timeouts.close.unwrap_or_default();
            (SLOWEST_END * close.as_secs_f64()).max(1.0)
        };
        let progressed = f64::from(self.wire.measure_progress(self.traffic.bytes_out)) >= least;
        if progressed {
            match &mut self.wire.protocol {
                Protocol::Http(http) => http.handle_progress(env.now),
                Protocol::WebSocket(socket) => socket.handle_progress(env.now),
                Protocol::Outgoing(_) | Protocol::Detached(_) => {}
            }
            self.rearm(env);
        }
        progressed
    }

    /// Restarts the idle timeout.
    pub(crate) fn excuse_idleness(&mut self, env: &mut Env) {
        if let Some(socket) = self.wire.protocol.websocket_mut() {
            socket.handle_message(env.now);
        }
        self.rearm(env);
    }

    /// Restarts the ping timeout of a WebSocket.
    pub(crate) fn restart_ping_window(&mut self, env: &mut Env) {
        if let Some(socket) = self.wire.protocol.websocket_mut() {
            socket.restart_ping_window(env.now);
        }
        self.rearm(env);
    }
}
