//! Input: decides whether a client may be read, reads its socket, and parses the bytes.

use std::io;

use super::input::{Inbound, Input, Read, ReadGate, Why};
use super::protocol::Protocol;
use super::wire::Flag;
use super::{Client, ClientFlag};
use crate::log_event::{Field, log_event, word};
use crate::protocol::{CloseReason, Message, Rejection, StatusCode};
use crate::server::env::Env;
use crate::server::stream::LastRead;
use crate::server::tls::TlsStream;

/// The first read from a client that sends long messages is this fraction of a long message. A small first read lets
/// most of the next message go directly into its own memory.
const FIRST_READ_SHARE: usize = 8;

/// The maximum length of one read while only control frames are handled. It limits the input that is read and must
/// wait.
const CONTROL_READ: usize = 4 << 10;

/// The maximum length of one read into the buffer of all clients. It bounds the number of short messages that are handled before
/// the time is checked.
pub(crate) const SHORT_READ: usize = 64 << 10;

/// The rejection of a request in plain text on a port that requires TLS.
fn plain_text() -> Rejection {
    let why = "this port requires TLS; use https:// or wss://";
    Rejection::new(StatusCode::BAD_REQUEST, why).because("plain_text")
}

impl Client {
    /// Whether the client may be read now.
    #[inline]
    pub(crate) fn read_gate(&self, env: &Env) -> ReadGate {
        // Nothing is incomplete and nothing waits.
        if let Some(socket) = self.wire.protocol.websocket()
            && self.wire.is_quiet()
            && socket.is_between_messages()
        {
            return if env.is_share_spent() {
                ReadGate::Held(Why::Turn)
            } else {
                ReadGate::Ready
            };
        }
        self.find_hold(env)
    }

    /// [`Client::read_gate`] for any state.
    fn find_hold(&self, env: &Env) -> ReadGate {
        if self.wire.protocol.discards_input() {
            return ReadGate::Ready;
        }
        if self.wire.joins().is_some() {
            return ReadGate::Held(Why::Joining);
        }
        let is_message_next = self.wire.has_unread() || self.wire.protocol.awaits_data();
        if is_message_next && self.wire.awaits_confirmation() {
            return ReadGate::Held(Why::Unconfirmed);
        }
        if self.wire.is_congested() {
            return ReadGate::Held(Why::Output);
        }
        if self.wire.protocol.is_answering() && self.wire.has_unread() {
            return ReadGate::Held(Why::Answer);
        }
        if is_message_next && self.holds_messages(env) {
            return ReadGate::Held(Why::Service);
        }
        if env.is_share_spent() {
            return ReadGate::Held(Why::Turn);
        }
        ReadGate::Ready
    }

    /// Whether the service takes no messages from this client.
    pub(crate) fn holds_messages(&self, env: &Env) -> bool {
        // Requests are always read, because the server answers some of them itself. A peer that has half-closed is read
        // to find the end of file behind its last bytes.
        (env.is_paused(self.service_id) && self.wire.protocol.was_open())
            || (self.flags.has(ClientFlag::Held) && !self.wire.flags.has(Flag::HungUp))
    }

    /// Records that the client left the queue of clients to read.
    pub(crate) fn leave_queue(&mut self) {
        self.flags.set(ClientFlag::Queued, false);
    }

    /// Stops or resumes the delivery of messages from this client. See [`Context::set_held`](crate::Context::set_held).
    pub(crate) fn set_held(&mut self, env: &mut Env, held: bool) {
        if self.flags.set(ClientFlag::Held, held) && !held {
            self.wire.protocol.excuse_silence(env.now);
            self.read_again(env);
        }
    }

    /// Queues the client for reading after its service was resumed. Restarts the time limits if input waited.
    pub(crate) fn unpause(&mut self, env: &mut Env) {
        if self.wire.has_unread() {
            self.wire.protocol.excuse_silence(env.now);
            self.restart_ping_window(env);
        }
        self.read_again(env);
    }

    /// Reads at most `most` bytes from the socket, once: into `buffer`, or directly into the long message that they
    /// belong to.
    pub(crate) fn read(&mut self, env: &mut Env, buffer: &mut [u8], most: usize) -> Read {
        if !self.wire.flags.has(Flag::Readable) {
            return Read::Nothing;
        }
        let most = if self.holds_messages(env) || self.wire.awaits_confirmation() {
            most.min(CONTROL_READ)
        } else {
            most
        };
        let room = match &mut self.wire.protocol {
            Protocol::WebSocket(socket) => socket.room(&mut env.protocol),
            Protocol::Http(_) | Protocol::Outgoing(_) | Protocol::Detached(_) => None,
        };
        let is_placed = room.is_some();
        let space = match room {
            Some(room) => {
                let len = room.len().min(most);
                &mut room[..len]
            }
            None if self.wire.flags.has(Flag::SendsLong) => {
                let first = env.protocol.long_message / FIRST_READ_SHARE;
                &mut buffer[..most.min(first.max(1)).min(SHORT_READ)]
            }
            None => &mut buffer[..most.min(SHORT_READ)],
        };
        let len = space.len();
        if let Some(tls) = self.wire.stream.tls_mut() {
            let read = tls.read(space, &mut env.scratch);
            let last = tls.last_read();
            return self.handle_tls_read(env, read, last, is_placed);
        }
        match self.wire.stream.read(space) {
            Ok(0) => self.wire.handle_end(),
            Ok(count) => {
                self.traffic.bytes_in += count as u64;
                env.budget.read(count);
                env.memory.add(count);
                // A short read has emptied the socket, and the next byte makes a new event. The end of file may have
                // been announced already.
                let more = count == len || self.wire.flags.has(Flag::HungUp);
                self.handle_bytes(env, count, more, is_placed)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.wire.flags.set(Flag::Readable, false);
                Read::Nothing
            }
            Err(error) => self.handle_read_error(env, &error),
        }
    }

    /// Bytes were read. `more` says whether there may be more in the socket.
    #[inline]
    fn handle_bytes(&mut self, env: &mut Env, count: usize, more: bool, is_placed: bool) -> Read {
        self.wire.flags.set(Flag::Readable, more);
        self.wire.flags.set(Flag::SendsLong, is_placed);
        let has_new_limit = match &mut self.wire.protocol {
            Protocol::WebSocket(socket) => socket.handle_sign_of_life(env.now),
            // A further request has less time than the pause before it.
            Protocol::Http(http) => http.was_called(),
            Protocol::Outgoing(_) | Protocol::Detached(_) => false,
        };
        if has_new_limit {
            self.rearm(env);
        }
        if is_placed {
            Read::Placed(count)
        } else {
            Read::Bytes(count)
        }
    }

    fn handle_read_error(&mut self, env: &mut Env, error: &io::Error) -> Read {
        self.wire.flags.set(Flag::Readable, false);
        self.end(env, CloseReason::read_error(error));
        Read::Nothing
    }

    /// The result of a read over TLS.
    #[inline(never)]
    fn handle_tls_read(
        &mut self,
        env: &mut Env,
        read: io::Result<usize>,
        last: LastRead,
        is_placed: bool,
    ) -> Read {
        self.traffic.bytes_in += last.wire as u64;
        env.budget.spend(last.work);
        let more = last.more || self.wire.flags.has(Flag::HungUp);
        if last.opens {
            self.handle_tls_opened(env);
        }
        match read {
            Ok(0) => {
                let is_begun = self.wire.tls().is_some_and(TlsStream::is_inside_handshake);
                if is_begun && self.wire.is_tls_handshaking() && !self.wire.protocol.is_outgoing() {
                    let why = "the peer disconnected";
                    log_event!(
                        Info,
                        client = self.id,
                        "TLS handshake failed",
                        reason = Field::Bare(&why),
                        remote = word(&self.wire.remote),
                    );
                }
                self.wire.handle_end()
            }
            Ok(count) => self.handle_bytes(env, count, more, is_placed),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if last.wire > 0 {
                    self.handle_bytes(env, 0, more, false);
                }
                // If the socket had nothing, the next byte makes a new event.
                let is_empty = last.wire == 0 && !last.more;
                self.wire.flags.set(Flag::Readable, more && !is_empty);
                if last.is_plain {
                    if self.wire.protocol.is_requesting() {
                        self.reject(env, &plain_text());
                    }
                    // Output that waited for the handshake can be written now.
                    self.handle_writable(env);
                }
                Read::Nothing
            }
            Err(error) if self.wire.protocol.is_outgoing() => {
                self.handle_tls_failure(env, &error);
                Read::Nothing
            }
            // A violation of TLS. The peer was sent an alert.
            Err(error)
                if error.kind() == io::ErrorKind::InvalidData
                    && self.wire.tls().is_some_and(TlsStream::has_failed_handshake) =>
            {
                log_event!(
                    Info,
                    client = self.id,
                    "TLS handshake failed",
                    reason = Field::Bare(&error),
                    remote = word(&self.wire.remote),
                );
                // Output that waited for the handshake cannot be written.
                if let Some(rare) = self.wire.rare.as_deref_mut() {
                    rare.output.drop_unbegun();
                }
                self.discard_input(env);
                Read::Nothing
            }
            Err(error) => self.handle_read_error(env, &error),
        }
    }

    /// The fast path of [`Client::read_gate`] and [`Client::receive`]: returns the message at the front of the input if
    /// it is complete and nothing is held back or limited. Returns `None` in all other cases, which these two methods
    /// handle.
    #[inline(always)]
    pub(crate) fn receive_whole<'a>(
        &mut self,
        env: &mut Env,
        input: &mut Input<'a>,
    ) -> Option<Message<'a>> {
        let is_quiet = self.wire.is_quiet();
        let Protocol::WebSocket(socket) = &mut self.wire.protocol else {
            return None;
        };
        if !is_quiet || self.flags.has(ClientFlag::Held) || env.budget.has_exceptions() {
            return None;
        }
        let message = socket.receive_whole(env.now, input, &mut env.protocol, &mut env.output)?;
        self.traffic.messages_in += 1;
        Some(message)
    }

    /// Parses input up to the next event. Returns `None` if the input is used up or the rest must wait. Replies of the
    /// protocol go to the write buffer.
    pub(crate) fn receive<'a>(
        &mut self,
        env: &mut Env,
        input: &mut Input<'a>,
    ) -> Option<Inbound<'a>> {
        let holds = self.holds_messages(env) || self.wire.awaits_confirmation();
        let Protocol::WebSocket(socket) = &mut self.wire.protocol else {
            return self.wire.receive_head(env, input);
        };
        let last_message = socket.last_message();
        let payload = if holds {
            socket.receive_control(env.now, input, &mut env.protocol, &mut env.output);
            None
        } else {
            socket.receive(env.now, input, &mut env.protocol, &mut env.output)
        };
        if let Some(count) = socket.take_confirmed() {
            self.confirm(env, count);
        }
        let payload = payload?;
        let is_heartbeat = self.wire.is_heartbeat(payload.as_message());
        self.traffic.messages_in += u64::from(!is_heartbeat);
        if env.config.rate_limit.is_some() && self.wire.is_over_rate(env, 1) {
            if let Some(socket) = self.wire.protocol.websocket_mut() {
                // At once, without waiting for what a resumable client has not confirmed.
                socket.close(env.now, CloseReason::rate_limit(), &mut env.output);
            }
            return Some(Inbound::OverRate);
        }
        if is_heartbeat {
            // A page in the foreground is not active for that reason alone.
            if let Some(socket) = self.wire.protocol.websocket_mut() {
                socket.handle_message(last_message);
            }
            self.send_heartbeat(env, self.traffic.messages_in);
            return Some(Inbound::Heartbeat(payload));
        }
        Some(Inbound::Message(payload))
    }

    /// The TLS handshake is complete: counts it, and sends what was queued before.
    #[cold]
    fn handle_tls_opened(&mut self, env: &mut Env) {
        if self.wire.is_ours() {
            return self.handle_tls_connected(env);
        }
        if let Some(tls) = self.wire.stream.tls() {
            env.counters.tls_opened(tls.is_resumed());
            log::debug!("{} TLS handshake complete: {}", self.id, tls.describe());
            if !env.config.accepts_client(tls) {
                // It was connected before the authorities were replaced.
                log::info!("{} client certificate is no longer accepted", self.id);
                return self.end(env, CloseReason::revoked("certificate"));
            }
            if let Some(name) = tls.peer() {
                log::debug!("{} client certificate: principal=cert:{name}", self.id);
            }
        }
        self.handle_writable(env);
    }
}
