//! Coming back: a new connection is handed to the client that comes back on it, and the client's old connection ends.

use std::io;

use super::{Client, Connection, Flag};
use crate::protocol::deflate::Codec;
use crate::protocol::handshake::Upgrade;
use crate::protocol::http::HttpConnection;
use crate::protocol::{Accept, Cause, CloseCode, CloseReason, State, StatusCode, WebSocket};
use crate::server::env::Env;
use crate::server::id::ClientId;
use crate::server::news::News;
use crate::server::resume_token::{ResumeToken, Secret};

/// The request of a new connection to be handed to an earlier client.
#[derive(Debug)]
pub(in crate::server) struct Join {
    pub(super) target: ClientId,
    /// The number of messages that the client has received.
    pub(super) received: u64,
}

/// Why a client cannot come back with its number of received messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum WrongCount {
    /// Some later messages are no longer kept.
    TooFew,
    /// It is more than the server has sent.
    TooMany,
}

impl Client {
    /// Whether the client can come back now with a token of this secret.
    pub(in crate::server) fn opens_with(&self, secret: &Secret) -> bool {
        let Some(resumable) = self.resumable() else {
            return false;
        };
        let is_over = match &self.connection {
            Connection::Detached(_) => self.has_ended(),
            Connection::WebSocket(socket) => !socket.is_open() && self.cut().is_none(),
            Connection::Http(_) | Connection::Outgoing(_) => true,
        };
        // A connection that this side has opened is not resumed by its server.
        if resumable.upstream.is_some() {
            return false;
        }
        let earlier = resumable.earlier.as_ref().filter(|(_, messages)| {
            // A message of the client shows that it has the latest token.
            *messages == self.traffic.messages_in
        });
        // Both comparisons are made, so that the time does not show which one is true.
        let is_latest = resumable.secret.is(secret);
        let is_earlier = earlier.is_some_and(|(earlier, _)| earlier.is(secret));
        (is_latest | is_earlier) && !is_over
    }

    /// Checks the number of messages that the client claims to have received.
    pub(in crate::server) fn check_received(&self, received: u64) -> Result<(), WrongCount> {
        let kept_after = self
            .resumable()
            .map_or(u64::MAX, |resumable| resumable.outbox.before());
        if received > self.traffic.messages_out {
            Err(WrongCount::TooMany)
        } else if received < kept_after {
            Err(WrongCount::TooFew)
        } else {
            Ok(())
        }
    }

    /// Makes `next` the latest token. `used` is the secret that the client presented. Returns the fields of the first 101
    /// response.
    pub(in crate::server) fn renew_token(&mut self, used: Secret, next: &ResumeToken) -> Accept {
        let messages_in = self.traffic.messages_in;
        let Some(resumable) = self.resumable_mut() else {
            return Accept::default();
        };
        resumable.earlier = Some((used, messages_in));
        resumable.secret = next.secret;
        resumable.accept.clone()
    }

    /// Answers the handshake of this connection, on which the client `target` comes back. The client has received
    /// `received` messages. No message is read before [`Client::take_over`] has handed the connection to that client.
    pub(in crate::server) fn open_to_join(
        &mut self,
        env: &mut Env,
        upgrade: &Upgrade<'_>,
        accept: &Accept,
        codec: Option<Codec>,
        join: (ClientId, u64),
    ) {
        let (target, received) = join;
        env.counters.responded(StatusCode::SWITCHING_PROTOCOLS);
        self.backlog.get_or_insert_default().join = Some(Join { target, received });
        self.transmit(env, |connection, now, out| {
            *connection =
                Connection::WebSocket(WebSocket::accept(now, upgrade, accept, codec, out));
        });
    }

    /// Sends the notice on a connection that will be handed to another client.
    pub(in crate::server) fn notify(&mut self, env: &mut Env, token: &ResumeToken, received: u64) {
        self.send_notice(env, token, received);
    }

    /// The client that this connection is to be handed to, and the number of messages that it has received.
    #[inline]
    pub(in crate::server) fn joins(&self) -> Option<(ClientId, u64)> {
        let join = self.backlog.as_ref()?.join.as_ref()?;
        Some((join.target, join.received))
    }

    /// Takes over the connection of `new`, and sends all messages after the first `received` ones. In exchange, `new` gets
    /// the old connection, which ends with CLOSE 4001 if it is still open. `new` is no longer a client.
    pub(in crate::server) fn take_over(
        &mut self,
        env: &mut Env,
        poll: &mio::Registry,
        new: &mut Self,
        received: u64,
    ) {
        let was_congested = self.is_congested();
        let registered = self.swap_connections(env, poll, new);
        self.release(env, |outbox| outbox.resume_after(received));
        let turn = env.turn;
        let certificate = self.certificate().filter(|_| !self.is_ours());
        if let Some(resumable) = self.resumable_mut() {
            resumable.certificate = certificate;
            resumable.unpinged = 0;
            resumable.pinged.0 = received;
            resumable.allowance = 0;
            resumable.resumes += 1;
            resumable.resumed_in = turn;
        }
        self.check_crowd(env);
        if was_congested && !self.is_congested() {
            env.push_news(self.id, News::Drained);
        }
        self.mark_delivered();
        // The loop sends the waiting messages at the end of the turn.
        if let Some(backlog) = self.backlog.as_deref_mut()
            && !std::mem::replace(&mut backlog.dirty, true)
        {
            env.push_dirty(self.id);
        }
        if !self.has_unsent() {
            self.send_waiting_close(env);
        }
        self.read_again(env);
        self.settle(env);
        self.rearm(env);
        if let Err(error) = registered {
            // No event would ever come. The client may try again.
            return self.end(env, CloseReason::read_error(&error));
        }
        if matches!(&self.connection, Connection::WebSocket(socket) if socket.state() == State::Closed)
        {
            // Writing the handshake failed.
            self.disconnect(env);
        }
    }

    /// Whether events of this turn belong to an earlier connection of the client. When the kernel reported them, the new
    /// socket was not yet registered for the client.
    pub(in crate::server) fn is_stale_event(&self, env: &Env) -> bool {
        self.backlog.is_some()
            && self
                .resumable()
                .is_some_and(|one| one.resumed_in == env.turn)
    }

    /// Exchanges the connections of this client and of `new`. Ends the old one. Fails if no events will come for this client's
    /// new connection.
    fn swap_connections(
        &mut self,
        env: &mut Env,
        poll: &mio::Registry,
        new: &mut Self,
    ) -> io::Result<()> {
        if !self.is_ours() {
            env.addresses.remove_client(self.remote.ip());
            env.addresses.add_client(new.remote.ip());
        }
        new.path.clone_from(&self.path);
        std::mem::swap(&mut self.stream, &mut new.stream);
        std::mem::swap(&mut self.remote, &mut new.remote);
        std::mem::swap(&mut self.credential, &mut new.credential);
        std::mem::swap(&mut self.account, &mut new.account);
        for flag in [Flag::Counted, Flag::Readable, Flag::HungUp, Flag::SendsLong] {
            let (own, other) = (self.flags.has(flag), new.flags.has(flag));
            self.flags.set(flag, other);
            new.flags.set(flag, own);
        }
        let registered = self.stream.reregister(poll, self.id.token());
        if let Err(error) = new.stream.reregister(poll, new.id.token()) {
            // It is read no more, and closes after its time limit.
            log::warn!("{}: cannot register its socket again: {error}", new.id);
        }
        let mut wire = std::mem::take(new.backlog.get_or_insert_default());
        wire.join = None;
        let own = self.backlog.get_or_insert_default();
        std::mem::swap(own, &mut wire);
        own.resumable = wire.resumable.take();
        if own.dirty {
            // It was queued under the id of `new`.
            env.push_dirty(self.id);
        }
        let old = std::mem::replace(
            &mut self.connection,
            std::mem::replace(
                &mut new.connection,
                Connection::Http(HttpConnection::closing(env.now)),
            ),
        );
        wire.unread.clear();
        match old {
            Connection::Detached(_) => {
                new.backlog = None;
                new.disconnect(env);
            }
            Connection::WebSocket(mut socket) => {
                wire.drop_unbegun();
                let mut close = Vec::new();
                let closing = socket.close_reason().cloned();
                let closing = closing.filter(|reason| reason.cause == Cause::Service);
                if let Some(resumable) = self.resumable_mut() {
                    resumable.closing = resumable.closing.take().or(closing);
                }
                let reason = CloseReason::new(Cause::Service, CloseCode::TAKEN_OVER, "Taken over");
                socket.close(env.now, reason, &mut close);
                // Releases the compressor.
                socket.abandon(env.now, CloseReason::eof());
                if !close.is_empty() {
                    wire.push(&[&close], 0);
                }
                wire.dirty = true;
                env.push_dirty(new.id);
                new.backlog = Some(wire);
                new.mark_delivered();
                new.rearm(env);
            }
            Connection::Http(_) | Connection::Outgoing(_) => {}
        }
        registered
    }
}
