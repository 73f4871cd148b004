//! The output of a resumable client: keeps messages until the client has confirmed them, and resends them after a cut.

use std::time::Duration;

use super::outbox::Outbox;
use super::resumable::is_final;
use super::{Client, Connection, ReadGate, Why};
use crate::protocol::{Cause, CloseReason, Message, Time};
use crate::server::env::Env;
use crate::server::news::News;

/// A PING that asks for a confirmation is sent after messages of 1/16 of the resume buffer.
const PING_SHARE: usize = 16;

/// The service should send no more once 1/2 of the resume buffer is unconfirmed, until at most 1/4 is.
const CROWDED_SHARE: usize = 2;

/// The client's messages wait while more than 5/8 of the resume buffer are unconfirmed.
const HELD_SHARE: (usize, usize) = (5, 8);

/// How long a client may confirm nothing although it has been sent everything. Its PONG may be behind messages that the
/// service does not accept yet. After this time the server cuts the connection: when the client comes back, it says what it
/// has received.
const STUCK: Duration = Duration::from_secs(2);

/// How many bytes of messages are resent in one turn, and how many of these bytes count as a unit of work.
const RESENT: (usize, usize) = (64 << 10, 2048);

/// The same, if the messages are compressed.
const RESENT_COMPRESSED: (usize, usize) = (16 << 10, 40);

/// A part of the resume buffer of this size may be unconfirmed in addition after each [`PASS`].
const ALLOWANCE_SHARE: usize = 8;

/// How often in a row. Then the connection is cut.
const ALLOWANCES: usize = 2;

/// How long the messages of a client wait for a PONG before more of them are let through, because the PONG may be behind
/// them.
const PASS: Duration = Duration::from_millis(250);

/// The minimum time between two PINGs that ask for a confirmation, unless much is unconfirmed.
const PING_PAUSE: Duration = Duration::from_secs(1);

impl Client {
    /// Whether the connection was cut and messages are kept until the client comes back. This is true as soon as the
    /// connection has ended, even before the loop has detached the client.
    pub(super) fn takes_messages(&self) -> bool {
        let Some(resumable) = self.resumable() else {
            return false;
        };
        let is_closed = resumable.closing.is_some() || resumable.ended.is_some();
        let is_cut =
            self.is_detached() || self.cut().is_some_and(|cut| cut.cause != Cause::Service);
        is_cut && !is_closed
    }

    /// Whether a message of `size` bytes may be kept until the client confirms it. The longest message does not count,
    /// so that one message always fits.
    pub(super) fn may_keep(&self, env: &Env, size: usize) -> bool {
        let (Some(resumable), Some(limits)) = (self.resumable(), env.config.resume) else {
            return true;
        };
        let total = resumable.outbox.len() + size;
        let largest = resumable.outbox.largest().max(size);
        total.saturating_sub(largest) <= limits.buffer
    }

    /// Keeps a message until the client confirms it. Returns whether the message must be sent now: it waits if earlier
    /// ones do, or if the connection was cut. Does nothing for a client that is not resumable.
    pub(super) fn keep(&mut self, env: &mut Env, message: Message<'_>) -> bool {
        let is_connected = self.is_connected();
        let Some(resumable) = self.resumable_mut() else {
            return true;
        };
        let outbox = &mut resumable.outbox;
        let len = outbox.push(message, !is_connected);
        env.memory.add(len);
        let is_sent = outbox.unsent() == 0;
        resumable.unpinged += if is_sent { len } else { 0 };
        self.check_crowd(env);
        is_sent
    }

    /// Notes whether too much is unconfirmed for the service to send more.
    pub(super) fn check_crowd(&mut self, env: &mut Env) {
        let limits = env.config.resume.unwrap_or_default();
        let now = env.now;
        if let Some(resumable) = self.resumable_mut()
            && resumable.crowded.is_none()
            && resumable.outbox.unconfirmed() > limits.buffer / CROWDED_SHARE
        {
            resumable.crowded = Some(now);
            self.rearm(env);
        }
    }

    /// The number of messages that were sent, on the current connection and earlier ones.
    pub(super) fn sent_count(&self) -> u64 {
        let unsent = self.resumable().map_or(0, |one| one.outbox.unsent());
        self.traffic.messages_out - unsent
    }

    /// The number of messages that the client has not confirmed, if it is resumable.
    pub(in crate::server) fn unconfirmed_count(&self) -> u64 {
        self.resumable()
            .map_or(0, |one| one.outbox.unconfirmed_count())
    }

    /// Whether messages wait to be sent on the current connection.
    pub(super) fn has_unsent(&self) -> bool {
        self.resumable().is_some_and(|one| one.outbox.unsent() > 0)
    }

    /// Sends the next unsent messages, up to the limit for one turn. Sends the CLOSE that waits behind them after the last
    /// one. Called when all earlier output has been written to the socket.
    pub(super) fn send_unsent(&mut self, env: &mut Env) {
        let resumable = self
            .backlog
            .as_mut()
            .and_then(|backlog| backlog.resumable.take());
        let Some(mut resumable) = resumable else {
            return;
        };
        let compresses = match &mut self.connection {
            Connection::WebSocket(socket) => socket.codec().is_some(),
            Connection::Http(_) | Connection::Outgoing(_) | Connection::Detached(_) => false,
        };
        let (most, cost) = if compresses {
            RESENT_COMPRESSED
        } else {
            RESENT
        };
        // The messages were counted when the service sent them.
        let counted = self.traffic.messages_out;
        let mut total = 0;
        while total < most
            && let Some(message) = resumable.outbox.next_unsent()
            && self.send_now(env, message).is_ok()
        {
            total += resumable.outbox.advance();
        }
        self.traffic.messages_out = counted;
        env.budget.spend(total / cost);
        resumable.unpinged += total;
        self.backlog.get_or_insert_default().resumable = Some(resumable);
        self.ping_if_due(env);
        if !self.has_unsent() {
            self.send_waiting_close(env);
        } else if self.is_connected()
            && let Some(backlog) = self.backlog.as_deref_mut()
            && !backlog.blocked
            && !std::mem::replace(&mut backlog.dirty, true)
        {
            env.push_dirty(self.id);
        }
    }

    /// Sends the CLOSE of the service that has waited for unsent messages.
    pub(super) fn send_waiting_close(&mut self, env: &mut Env) {
        let closing = self.resumable_mut().and_then(|one| one.closing.take());
        if let Some(closing) = closing {
            self.close(env, closing);
        }
    }

    /// Whether a CLOSE of the service waits for unsent messages.
    pub(in crate::server) fn is_close_waiting(&self) -> bool {
        self.resumable().is_some_and(|one| one.closing.is_some())
    }

    /// Makes a CLOSE wait if it must follow unsent messages. Returns whether it waits.
    pub(super) fn postpone_close(&mut self, reason: &CloseReason) -> bool {
        let waits = self.has_unsent() && reason.cause == Cause::Service && !is_final(reason.code);
        if waits && let Some(resumable) = self.resumable_mut() {
            resumable.closing = Some(reason.clone());
        }
        waits
    }

    /// Sends a PING that asks for a confirmation, if enough was sent since the last one. Unless much is unconfirmed, it
    /// waits for the PONG of the last one and for [`PING_PAUSE`], because a client may answer several PINGs before its
    /// application handles the messages between them.
    pub(super) fn ping_if_due(&mut self, env: &mut Env) {
        let limits = env.config.resume.unwrap_or_default();
        let (now, sent) = (env.now, self.sent_count());
        let Some(resumable) = self.resumable_mut() else {
            return;
        };
        let outbox = &resumable.outbox;
        let is_urgent = outbox.unconfirmed() > limits.buffer / CROWDED_SHARE / 2;
        let is_answered = outbox.confirmed() >= resumable.pinged.0;
        let is_calm = is_answered && now.since(resumable.pinged.1) >= PING_PAUSE;
        if resumable.unpinged >= limits.buffer / PING_SHARE
            && (is_calm || (is_urgent && is_answered) || outbox.unconfirmed() > limits.buffer / 2)
        {
            resumable.unpinged = 0;
            resumable.pinged = (sent, now);
            self.transmit(env, |connection, _, out| {
                if let Connection::WebSocket(socket) = connection {
                    socket.ping(sent, out);
                }
            });
        }
    }

    /// Handles a PONG that confirms the first `count` messages.
    pub(super) fn confirm(&mut self, env: &mut Env, count: u64) {
        self.release(env, |outbox| outbox.confirm(count));
        if let Some(resumable) = self.resumable_mut() {
            resumable.allowance = 0;
        }
        self.ping_if_due(env);
    }

    /// Drops messages with `release`, and reports if there is room again.
    pub(super) fn release(&mut self, env: &mut Env, release: impl FnOnce(&mut Outbox)) {
        let limits = env.config.resume.unwrap_or_default();
        let Some(resumable) = self.resumable_mut() else {
            return;
        };
        release(&mut resumable.outbox);
        if resumable.crowded.is_some() {
            resumable.crowded = Some(env.now);
            if resumable.outbox.unconfirmed() <= limits.buffer / CROWDED_SHARE / 2 {
                resumable.crowded = None;
                if !self.is_congested() {
                    env.push_news(self.id, News::Drained);
                }
            }
            self.rearm(env);
        }
        self.read_again(env);
    }

    /// When to call [`Client::is_stuck`] for a connected client that confirms nothing.
    pub(super) fn stuck_at(&self, env: &Env) -> Option<Time> {
        let crowded = self.resumable()?.crowded.filter(|_| self.is_connected())?;
        let waits = self.awaits_confirmation(env);
        Some(crowded + if waits { PASS } else { STUCK })
    }

    /// Whether the client has had all output for some time, has confirmed none of it, and its PONG may be behind a
    /// message that the service does not take. If messages wait only for the PONG, some more of them are let through.
    pub(super) fn is_stuck(&mut self, env: &mut Env) -> bool {
        if self.stuck_at(env).is_none_or(|at| at > env.now) {
            return false;
        }
        let gate = self.read_gate(env);
        let is_idle = self.is_delivered() && !self.has_unsent();
        let limits = env.config.resume.unwrap_or_default();
        let largest = self.resumable().map_or(0, |one| one.outbox.largest());
        // The answer to a message that is let through must fit.
        let is_full = !self.may_keep(env, largest);
        let Some(resumable) = self.resumable_mut() else {
            return false;
        };
        let most = limits.buffer / ALLOWANCE_SHARE * ALLOWANCES;
        let is_over = is_full || resumable.allowance >= most;
        let waits = is_idle && gate == ReadGate::Held(Why::Unconfirmed);
        if (is_idle && gate == ReadGate::Held(Why::Service)) || (waits && is_over) {
            return true;
        }
        if waits {
            resumable.allowance += limits.buffer / ALLOWANCE_SHARE;
        }
        resumable.crowded = Some(env.now);
        self.read_again(env);
        false
    }

    /// Drops all kept messages, because the client ends for good.
    pub(super) fn forget_kept(&mut self) {
        if let Some(resumable) = self.resumable_mut() {
            resumable.outbox = Outbox::default();
        }
    }

    /// Drops what the client has confirmed, because memory is short.
    pub(in crate::server) fn release_confirmed(&mut self, env: &mut Env) {
        self.release(env, Outbox::release_confirmed);
    }

    /// Makes room for another kept message of `size` bytes: drops the messages that the client has confirmed, if
    /// necessary. Returns whether there is room.
    pub(super) fn make_room_to_keep(&mut self, env: &mut Env, size: usize) -> bool {
        if !self.may_keep(env, size) {
            self.release(env, Outbox::release_confirmed);
        }
        self.may_keep(env, size)
    }

    /// Whether the service should send no more until the client has confirmed more.
    pub(super) fn is_crowded(&self) -> bool {
        self.resumable().is_some_and(|one| one.crowded.is_some())
    }

    /// Whether so much is unconfirmed, not counting the longest message, that the client's next message must wait for a
    /// PONG. A message that has begun to arrive does not wait, because its rest may precede the PONG.
    #[inline]
    pub(super) fn awaits_confirmation(&self, env: &Env) -> bool {
        self.backlog.is_some() && self.is_unconfirmed(env)
    }

    #[cold]
    fn is_unconfirmed(&self, env: &Env) -> bool {
        let (Some(resumable), Some(limits)) = (self.resumable(), env.config.resume) else {
            return false;
        };
        // A service limits what it sends to a server by itself.
        if resumable.upstream.is_some() {
            return false;
        }
        let (part, whole) = HELD_SHARE;
        let outbox = &resumable.outbox;
        let unconfirmed = outbox.unconfirmed().saturating_sub(outbox.largest());
        let inside =
            matches!(&self.connection, Connection::WebSocket(socket) if socket.is_inside_message());
        unconfirmed > limits.buffer / whole * part + resumable.allowance && !inside
    }

    /// Why a client with a backlog may not be read: its connection is to be handed to another client, or a message is next
    /// and the client has left too much unconfirmed.
    #[cold]
    pub(super) fn resume_gate(&self, env: &Env) -> Option<Why> {
        if self.joins().is_some() {
            return Some(Why::Joining);
        }
        let waits = self.awaits_confirmation(env) && (self.has_unread() || self.awaits_data());
        waits.then_some(Why::Unconfirmed)
    }
}
