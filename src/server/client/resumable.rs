//! Resumable clients: sending what they have not confirmed, the cut, and coming back.
//!
//! When its TCP connection is cut, a resumable client stays in the registry. It is then *detached*: the service is not told,
//! and messages to the client wait in the outbox. The client comes back with a [`ResumeToken`] on a new connection, and takes its
//! wire over.

use std::io;

use super::Client;
use super::broadcast::Broadcast;
use super::cuts::{is_cut, is_cut_by_server, may_wait};
use super::delivery::{Delivery, Detached, Stuck};
use super::outbound::add_frame;
use super::outbox::Outbox;
use super::protocol::Protocol;
use super::rare::{Join, Rare};
use super::wire::{Flag, Wire};
use crate::protocol::deflate::Codec;
use crate::protocol::handshake::Upgrade;
use crate::protocol::http::HttpConnection;
use crate::protocol::{
    Accept, Cause, CloseCode, CloseReason, Message, State, StatusCode, Time, WebSocket,
};
use crate::server::env::{Env, News};
use crate::server::observe::status::ResumeStatus;
use crate::server::resume::token::{ResumeToken, Secret};

/// How many bytes of messages are resent in one piece of work, and how many of these bytes count as a unit of work.
const RESENT: (usize, usize) = (64 << 10, 2048);

/// The same, if the messages are compressed.
const RESENT_COMPRESSED: (usize, usize) = (16 << 10, 40);

impl Wire {
    /// What the client keeps across its connections, if it is resumable.
    #[inline]
    pub(crate) fn delivery(&self) -> Option<&Delivery> {
        self.rare.as_ref()?.delivery.as_deref()
    }

    pub(crate) fn delivery_mut(&mut self) -> Option<&mut Delivery> {
        self.rare.as_mut()?.delivery.as_deref_mut()
    }

    /// Whether the client can resume its connection after a cut.
    #[inline]
    pub(crate) fn is_resumable(&self) -> bool {
        self.delivery().is_some()
    }

    /// Whether the client is detached and has not ended.
    pub(crate) fn may_come_back(&self) -> bool {
        self.protocol.is_detached() && !self.has_ended()
    }

    /// Whether the client of another process can come back, now or after its connection is cut.
    pub(crate) fn is_kept_for_return(&self) -> bool {
        let may_return = self.protocol.is_connected() || self.may_come_back();
        self.is_resumable() && !self.is_ours() && may_return
    }

    /// Whether this side can come back to the server, now or after the connection is cut.
    pub(crate) fn may_be_resumed_by_us(&self) -> bool {
        let may_return = self.protocol.is_connected() || self.may_come_back();
        self.is_resumable() && self.is_ours() && may_return
    }

    /// Whether the client has ended for good after a cut.
    pub(super) fn has_ended(&self) -> bool {
        self.delivery().is_some_and(|one| one.ended.is_some())
    }

    /// The client's state for the status; `None` if it is not resumable.
    pub(crate) fn resume_status(&self, now: Time) -> Option<ResumeStatus> {
        let delivery = self.delivery()?;
        Some(ResumeStatus {
            detached: self.protocol.detached_for(now),
            kept_bytes: delivery.outbox.len(),
            resumes: delivery.resumes,
        })
    }

    /// The number of bytes of the kept messages.
    pub(crate) fn kept(&self) -> usize {
        self.delivery().map_or(0, |one| one.outbox.len())
    }

    /// Whether the connection was cut and messages are kept until the client comes back. This is true as soon as the
    /// connection has ended, even before the loop has detached the client.
    pub(super) fn takes_messages(&self) -> bool {
        let Some(delivery) = self.delivery() else {
            return false;
        };
        let is_cut = self.protocol.is_detached()
            || self
                .cut_reason()
                .is_some_and(|cut| cut.cause != Cause::Service);
        is_cut && !delivery.is_over()
    }

    /// Whether messages wait to be sent on the current connection.
    pub(super) fn has_unsent(&self) -> bool {
        self.delivery().is_some_and(Delivery::has_unsent)
    }

    /// Whether messages wait until they can be sent, or until a client that was cut comes back.
    pub(crate) fn lacks_messages(&self) -> bool {
        let is_detached = self.protocol.is_detached();
        self.delivery()
            .is_some_and(|one| one.has_unsent() || (is_detached && one.unconfirmed_count() > 0))
            || (is_detached && self.has_newest())
    }

    /// Whether so much is unconfirmed that the client's next message must wait for a PONG. A message that has begun to arrive
    /// does not wait, because its rest may precede the PONG.
    #[inline]
    pub(super) fn awaits_confirmation(&self) -> bool {
        let socket = || self.protocol.websocket();
        self.delivery().is_some_and(Delivery::awaits_confirmation)
            && !socket().is_some_and(WebSocket::is_inside_message)
    }

    /// When to call [`Client::is_stuck`] for a connected client that confirms nothing.
    pub(super) fn stuck_at(&self) -> Option<Time> {
        let delivery = self.delivery().filter(|_| self.protocol.is_connected())?;
        delivery.stuck_at(self.awaits_confirmation())
    }

    /// Why the connection was cut. `None` if it was not cut, or if the client may not come back. While the WebSocket is closing,
    /// the reason if it ended now.
    pub(crate) fn cut_reason(&self) -> Option<CloseReason> {
        let socket = self.protocol.websocket()?;
        let delivery = self.delivery()?;
        if delivery.is_final || delivery.ended.is_some() {
            return None;
        }
        let reason = socket.close_reason()?;
        let is_cut = match &delivery.upstream {
            Some(upstream) => {
                let lacks = delivery.outbox.unconfirmed_len() > 0;
                is_cut_by_server(reason, socket.peer_close())
                    && (reason.cause != Cause::Service || (lacks && upstream.may_close_again()))
            }
            None => is_cut(reason, socket.peer_close()),
        };
        is_cut.then(|| reason.clone())
    }

    /// Whether events of this turn belong to an earlier connection of the client. When the kernel reported them, the new
    /// socket was not yet registered for the client.
    pub(crate) fn is_stale_event(&self, env: &Env) -> bool {
        let delivery = self.delivery();
        delivery.is_some_and(|one| one.resumed_in == env.turn)
    }
}

impl Client {
    /// Makes the client resumable. With `notice`, sends it the notice with its token.
    pub(crate) fn make_resumable(
        &mut self,
        env: &mut Env,
        token: &ResumeToken,
        accept: Accept,
        notice: bool,
    ) {
        let certificate = self.wire.certificate();
        let limits = env.config.resume;
        let delivery = Delivery::new(limits, token.secret, accept, certificate, env.now);
        self.wire.queues_mut().delivery = Some(Box::new(delivery));
        if notice {
            self.send_notice(env, token, 0);
        }
    }

    /// Sends the notice: the token and the number of messages that the server has received. It is not counted as a
    /// message.
    pub(crate) fn send_notice(&mut self, env: &mut Env, token: &ResumeToken, received: u64) {
        self.send_uncounted(env, &token.notice(received));
    }

    // Sending.

    /// Keeps a message until the client confirms it. Returns whether the message must be sent now. Does nothing for a client
    /// that is not resumable.
    pub(super) fn keep(&mut self, env: &mut Env, message: Message<'_>) -> bool {
        let (is_sent, len) = self.keep_with(env, |outbox, waits| outbox.push(message, waits));
        env.memory.add(len);
        is_sent
    }

    /// Keeps a message that several clients get, as [`Client::keep`] does.
    pub(super) fn keep_shared(&mut self, env: &mut Env, broadcast: &mut Broadcast<'_>) -> bool {
        let kept = broadcast.kept(&mut env.batches);
        let message = broadcast.message;
        let (is_sent, _) = self.keep_with(env, |outbox, waits| {
            outbox.push_shared(message, kept, waits)
        });
        is_sent
    }

    /// Keeps a message with `add`. Returns whether it must be sent now, and its length.
    fn keep_with(
        &mut self,
        env: &mut Env,
        add: impl FnOnce(&mut Outbox, bool) -> usize,
    ) -> (bool, usize) {
        let is_connected = self.wire.protocol.is_connected();
        let Some(delivery) = self.wire.delivery_mut() else {
            return (true, 0);
        };
        let (len, is_sent) = delivery.keep(is_connected, add);
        if !is_sent && let Protocol::Detached(detached) = &mut self.wire.protocol {
            detached.last_message = env.now;
        }
        if let Some(delivery) = self.wire.delivery_mut()
            && delivery.check_crowd(env.now)
        {
            self.rearm(env);
        }
        (is_sent, len)
    }

    /// The number of messages that were sent, on the current connection and earlier ones.
    pub(super) fn sent_count(&self) -> u64 {
        let unsent = self
            .wire
            .delivery()
            .map_or(0, |one| one.outbox.unsent_count());
        self.traffic.messages_out - unsent
    }

    /// Sends the next unsent messages, up to the limit for one turn. Sends the CLOSE that waits behind them after the last
    /// one. Called when all earlier output has been written to the socket.
    pub(super) fn send_unsent(&mut self, env: &mut Env) {
        let Wire {
            protocol: Protocol::WebSocket(socket),
            rare: Some(rare),
            ..
        } = &mut self.wire
        else {
            return;
        };
        let Rare {
            output,
            delivery: Some(delivery),
            ..
        } = &mut **rare
        else {
            return;
        };
        let (most, cost) = if socket.codec().is_some() {
            RESENT_COMPRESSED
        } else {
            RESENT
        };
        let before = output.queued();
        let mut total = 0;
        // The messages were counted when the service sent them.
        while total < most
            && socket.is_open()
            && let Some(message) = delivery.outbox.next_unsent()
        {
            add_frame(socket, env, message, output);
            total += delivery.outbox.advance();
        }
        env.memory.add(output.queued() - before);
        env.budget.spend(total / cost);
        delivery.unpinged += total;
        self.write_soon(env);
        self.ping_if_due(env);
        if !self.wire.has_unsent() {
            self.send_waiting_close(env);
        } else if self.wire.protocol.is_connected() && !self.wire.output_mut().blocked {
            self.write_later(env);
        }
    }

    /// Sends the CLOSE of the service that has waited for unsent messages.
    fn send_waiting_close(&mut self, env: &mut Env) {
        let closing = self.wire.delivery_mut().and_then(|one| one.closing.take());
        if let Some(closing) = closing {
            self.close(env, closing);
        }
    }

    /// Sends a PING that asks for a confirmation, if one is due.
    pub(super) fn ping_if_due(&mut self, env: &mut Env) {
        let sent = self.sent_count();
        if self
            .wire
            .delivery_mut()
            .is_some_and(|one| one.begin_ping(sent, env.now))
        {
            let now = env.now;
            self.transmit(env, |protocol, _, out| {
                if let Protocol::WebSocket(socket) = protocol {
                    socket.ping(now, sent, out);
                }
            });
        }
    }

    /// Handles a PONG that confirms the first `count` messages.
    pub(super) fn confirm(&mut self, env: &mut Env, count: u64) {
        self.release(env, |outbox| outbox.confirm(count));
        if let Some(delivery) = self.wire.delivery_mut() {
            delivery.end_allowance();
        }
        self.ping_if_due(env);
    }

    /// Drops what the client has confirmed, because memory is short.
    pub(crate) fn release_confirmed(&mut self, env: &mut Env) {
        self.release(env, Outbox::release_confirmed);
    }

    /// Drops messages with `release`, and reports if there is room again.
    fn release(&mut self, env: &mut Env, release: impl FnOnce(&mut Outbox)) {
        let Some(delivery) = self.wire.delivery_mut() else {
            return;
        };
        let was_crowded = delivery.is_crowded();
        let is_relieved = delivery.release(env.now, release);
        if is_relieved && !self.is_congested() {
            env.push_news(self.id, News::Drained);
        }
        if was_crowded {
            self.rearm(env);
        }
        if is_relieved && self.wire.has_newest() {
            self.write_later(env);
        }
        self.read_again(env);
    }

    /// Whether the client has had all output for some time, has confirmed none of it, and its PONG may be behind a
    /// message that the service does not take.
    pub(super) fn is_stuck(&mut self, env: &mut Env) -> bool {
        if self.wire.stuck_at().is_none_or(|at| at > env.now) {
            return false;
        }
        let gate = self.read_gate(env);
        let is_idle = self.wire.is_delivered() && !self.wire.has_unsent();
        let delivery = self.wire.delivery_mut();
        if delivery.is_some_and(|one| one.check_stuck(gate, is_idle, env.now) == Stuck::Cut) {
            return true;
        }
        self.read_again(env);
        false
    }

    // The cut.

    /// Detaches a client whose connection was cut. `pending` says whether the service owes it something.
    pub(crate) fn detach(
        &mut self,
        env: &mut Env,
        poll: &mio::Registry,
        cut: CloseReason,
        pending: bool,
    ) {
        let was_congested = self.is_congested();
        self.wire.close_socket(self.id, &mut env.scratch, poll);
        if self.wire.flags.set(Flag::Counted, false) {
            env.addresses.remove_connection(self.wire.remote.ip());
        }
        if cut.cause == Cause::Service
            && let Some(delivery) = self.wire.delivery_mut()
        {
            if let Some(upstream) = &mut delivery.upstream {
                upstream.count_unanswered();
            }
            delivery.closing = Some(cut.clone());
        }
        let detached = Detached::new(env.now, self.wire.protocol.last_message(), cut);
        self.wire.protocol = Protocol::Detached(Box::new(detached));
        self.check_detached(env, pending);
        if was_congested && !self.is_congested() {
            env.push_news(self.id, News::Drained);
        }
    }

    /// Ends a detached client that was away for too long, or sets the time of the next check. `pending` says whether
    /// the service owes it something.
    pub(crate) fn check_detached(&mut self, env: &mut Env, pending: bool) {
        let Some(limits) = self.wire.delivery().map(|one| one.limits) else {
            return;
        };
        if !self.wire.is_ours()
            && let Protocol::Detached(detached) = &mut self.wire.protocol
            && detached.check(&limits, pending, env.now)
        {
            let reason = CloseReason::not_resumed(&detached.cut);
            return self.end(env, reason);
        }
        self.rearm(env);
    }

    /// Closes a client that is not connected. If the service closes it, the client gets the CLOSE when it comes back.
    /// For any other reason, or with a final code, the client ends now.
    pub(super) fn close_cut(&mut self, env: &mut Env, reason: CloseReason) {
        let takes_messages = self.wire.takes_messages();
        let is_over = match &self.wire.protocol {
            Protocol::Detached(_) => true,
            Protocol::WebSocket(socket) => socket.state() == State::Closed,
            Protocol::Http(_) | Protocol::Outgoing(_) => false,
        };
        let Some(delivery) = self.wire.delivery_mut() else {
            return;
        };
        if may_wait(&reason) {
            if takes_messages {
                delivery.closing = Some(reason);
            }
        } else if is_over {
            delivery.end(reason);
            self.request_removal(env);
        } else {
            // The closing handshake goes on, but the client cannot come back.
            delivery.is_final = true;
        }
    }

    // Coming back.

    /// Whether the client can come back now with a token of this secret.
    pub(crate) fn opens_with(&self, secret: &Secret) -> bool {
        let is_over = match &self.wire.protocol {
            Protocol::Detached(_) => self.wire.has_ended(),
            Protocol::WebSocket(socket) => !socket.is_open() && self.wire.cut_reason().is_none(),
            Protocol::Http(_) | Protocol::Outgoing(_) => true,
        };
        let messages_in = self.traffic.messages_in;
        let delivery = self.wire.delivery();
        delivery.is_some_and(|one| one.opens_with(secret, messages_in)) && !is_over
    }

    /// Answers the handshake of this connection, on which another client comes back. No message is read before
    /// [`Client::take_over`] has handed the connection to that client.
    pub(crate) fn open_to_join(
        &mut self,
        env: &mut Env,
        upgrade: &Upgrade<'_>,
        accept: &Accept,
        codec: Option<Codec>,
        join: Join,
    ) {
        env.counters.responded(StatusCode::SWITCHING_PROTOCOLS);
        self.wire.join_later(join);
        self.transmit(env, |protocol, now, out| {
            *protocol = Protocol::WebSocket(WebSocket::accept(now, upgrade, accept, codec, out));
        });
    }

    /// Takes over the connection of `new`, and sends all messages after the first `received` ones. In exchange, `new` gets
    /// the old connection, which ends with CLOSE 4001 if it is still open. `new` is no longer a client.
    pub(crate) fn take_over(
        &mut self,
        env: &mut Env,
        poll: &mio::Registry,
        new: &mut Self,
        received: u64,
    ) {
        let was_congested = self.is_congested();
        if !self.wire.is_ours() {
            env.addresses.remove_client(self.wire.remote.ip());
            env.addresses.add_client(new.wire.remote.ip());
        }
        let registered = self.swap_wires(poll, new);
        // From here on, `new` holds the old connection.
        new.end_old_wire(env, self.wire.delivery_mut());
        self.release(env, |outbox| outbox.resume_after(received));
        let certificate = self.wire.certificate().filter(|_| !self.wire.is_ours());
        if let Some(delivery) = self.wire.delivery_mut() {
            delivery.handle_return(received, certificate, env.turn);
            delivery.check_crowd(env.now);
        }
        if was_congested && !self.is_congested() {
            env.push_news(self.id, News::Drained);
        }
        self.mark_delivered();
        // The loop sends the waiting messages at the end of the turn.
        self.write_later(env);
        if !self.wire.has_unsent() {
            self.send_waiting_close(env);
        }
        self.read_again(env);
        self.settle(env);
        self.rearm(env);
        if let Err(error) = registered {
            // No event would ever come. The client may try again.
            return self.end(env, CloseReason::read_error(&error));
        }
        let socket = self.wire.protocol.websocket();
        if socket.is_some_and(|socket| socket.state() == State::Closed) {
            // Writing the handshake failed.
            self.request_removal(env);
        }
    }

    /// Exchanges the connections of this client and of `new`. Fails if no events will come for this client's new connection.
    pub(super) fn swap_wires(&mut self, poll: &mio::Registry, new: &mut Self) -> io::Result<()> {
        std::mem::swap(&mut self.wire, &mut new.wire);
        let own = self.wire.queues_mut();
        let old = new.wire.rare.get_or_insert_default();
        own.take_client_state(old);
        new.handshake.clone_from(&self.handshake);
        if let Err(error) = new.wire.stream.reregister(poll, new.id.token()) {
            // It is read no more, and closes after its time limit.
            log::warn!("{}: cannot register its socket again: {error}", new.id);
        }
        self.wire.stream.reregister(poll, self.id.token())
    }

    /// Ends a connection that another client has left. The CLOSE of a service that was not answered is kept in `delivery`.
    fn end_old_wire(&mut self, env: &mut Env, delivery: Option<&mut Delivery>) {
        let socket = self.wire.protocol.websocket();
        let closing = socket.and_then(|socket| socket.close_reason().cloned());
        let closing = closing.filter(|reason| reason.cause == Cause::Service);
        if let Some(delivery) = delivery {
            delivery.closing = delivery.closing.take().or(closing);
        }
        if let Some(rare) = self.wire.rare.as_deref_mut() {
            rare.output.drop_unbegun();
        }
        let reason = CloseReason::new(Cause::Service, CloseCode::TAKEN_OVER, "Taken over");
        self.end_wire(env, reason);
    }

    /// Ends a WebSocket that has no client any more: with CLOSE behind the queued output. The connection stays until the peer has closed
    /// its side. Returns the WebSocket, which has ended.
    pub(super) fn end_wire(&mut self, env: &mut Env, reason: CloseReason) -> Option<WebSocket> {
        let over = Protocol::Http(HttpConnection::closing(env.now));
        let Protocol::WebSocket(mut socket) = std::mem::replace(&mut self.wire.protocol, over)
        else {
            self.wire.rare = None;
            self.request_removal(env);
            return None;
        };
        let mut close = Vec::new();
        socket.close(env.now, reason, &mut close);
        // Releases the compressor.
        socket.abandon(env.now, CloseReason::eof());
        if !close.is_empty() {
            self.wire.output_mut().push(&[&close], 0);
        }
        self.write_later(env);
        self.mark_delivered();
        self.rearm(env);
        Some(socket)
    }
}
