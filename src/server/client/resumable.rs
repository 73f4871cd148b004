//! A client that can resume its connection after a cut: what it has not confirmed, and its state while it is detached.
//!
//! A resumable client is not gone when its TCP connection is. It stays in the registry *detached*: the service hears
//! nothing, and messages to it wait in the outbox. The client comes back with a [`ResumeToken`] on a new connection, which
//! gives its socket to the detached client.

use std::time::Duration;

use super::outbox::Outbox;
use super::{Client, Connection, Flag, ReadGate, Why};
use crate::protocol::deflate::Codec;
use crate::protocol::handshake::Upgrade;
use crate::protocol::http::HttpConnection;
use crate::protocol::{
    Accept, Cause, CloseCode, CloseReason, Message, NextStep, SentHeader, State, StatusCode, Time,
    WebSocket,
};
use crate::server::config::ResumeConfig;
use crate::server::core::Env;
use crate::server::id::ClientId;
use crate::server::resumption::{ResumeToken, Secret};
use crate::server::run_queue::News;
use crate::server::status::ResumeStatus;
use crate::server::stream::Stream;

/// A PING that asks for a confirmation is sent after this fraction of the resume buffer.
const PING_SHARE: usize = 16;

/// The service should send no more while the client has not confirmed this fraction of the resume buffer. Half of it
/// ends that.
const CROWDED_SHARE: usize = 2;

/// The client's messages wait while it has not confirmed this fraction of the resume buffer.
const HELD_SHARE: (usize, usize) = (5, 8);

/// How long the service waits for a client that has all output but confirms none of it. Its PONG may be behind messages
/// that wait for the service. The connection is then cut: a client that comes back says what it has received.
const STUCK: Duration = Duration::from_secs(2);

/// How many bytes of messages are sent again in one turn, and how many of them count as a unit of work.
const RESENT: (usize, usize) = (64 << 10, 2048);

/// The same, if the messages are compressed.
const RESENT_COMPRESSED: (usize, usize) = (16 << 10, 40);

/// How long a message of the client waits for a PONG before it is let through, because the PONG may be behind it.
const PASS: Duration = Duration::from_millis(250);

/// The least time between two PINGs that ask for a confirmation, unless much is unconfirmed.
const PING_PAUSE: Duration = Duration::from_secs(1);

/// How often to ask the service whether something is pending for a detached client.
const CHECK: Duration = Duration::from_secs(1);

/// What a resumable client needs beyond other clients.
#[derive(Debug)]
pub(in crate::server) struct Resumable {
    /// The messages that the client has not confirmed, and those that its latest PONG has confirmed. The latter are kept
    /// until a PONG confirms more, because a client answers a PING before its application has handled the messages
    /// before it.
    outbox: Outbox,
    /// The secret of the latest token.
    secret: Secret,
    /// The secret of the token before it, and the number of messages that the client had sent when that token was used.
    /// It is good until the client sends another, which shows that it has read the latest token.
    earlier: Option<(Secret, u64)>,
    /// The number of bytes sent since the last PING that asks for a confirmation.
    unpinged: usize,
    /// The number of messages that the last of these PINGs carried, and when it was sent.
    pinged: (u64, Time),
    /// Whether the next message of the client is taken although much is unconfirmed.
    passes: bool,
    /// Since when the outbox has exceeded its share and the client has neither confirmed nor taken output.
    crowded: Option<Time>,
    /// The fields of the first 101 response. A resumed connection gets them again.
    accept: Accept,
    /// The CLOSE with which the service has closed the client after the cut. The client gets it when it comes back.
    closing: Option<CloseReason>,
    /// Why the client has ended for good after the cut.
    ended: Option<CloseReason>,
    /// Whether the client cannot come back when its present connection ends.
    is_final: bool,
    /// The turn of the loop in which the client came back. Events of the same turn are of its earlier connection.
    resumed_in: u64,
    /// The number of times that the client has come back.
    resumes: u64,
}

/// The state of a client whose connection was cut.
#[derive(Debug)]
pub(super) struct Detached {
    /// When the connection was cut.
    pub(super) since: Time,
    /// When the last data message was received or sent.
    pub(super) last_message: Time,
    /// When nothing was pending any more. `None` while something is.
    idle_since: Option<Time>,
    /// When to check again whether something is pending.
    check_at: Time,
    /// Why the connection was cut.
    cut: CloseReason,
}

impl Detached {
    /// When to call [`Client::check_detached`].
    pub(super) fn deadline(&self, limits: ResumeConfig) -> Time {
        self.check_at.min(self.since + limits.limit)
    }
}

/// The request of a new connection to continue a client.
#[derive(Debug)]
pub(in crate::server) struct Join {
    pub(super) target: ClientId,
    /// The number of messages that the client has received.
    pub(super) received: u64,
}

/// Why a client cannot continue with a number of received messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum WrongCount {
    /// Messages after it are no longer kept.
    TooFew,
    /// So many were never sent.
    TooMany,
}

/// Whether a connection that ended for this reason was cut, so that the client may come back.
/// `peer_close` is the code of the client's CLOSE.
fn is_cut(reason: &CloseReason, peer_close: Option<CloseCode>) -> bool {
    // A page that reloads sends 1001, for example. A client that leaves sends 1000 or no code.
    let leaves = |code| matches!(code, CloseCode::NORMAL | CloseCode::NONE);
    match reason.cause {
        Cause::Eof | Cause::ReadError | Cause::WriteError | Cause::PingTimeout => true,
        Cause::PeerClose => !leaves(reason.code),
        // Without an answer to the CLOSE, the client may not have received the last messages.
        Cause::Service => {
            let is_answered = |code| code == reason.code || leaves(code);
            !is_final(reason.code) && !peer_close.is_some_and(is_answered)
        }
        Cause::ProtocolError
        | Cause::IdleTimeout
        | Cause::SlowConsumer
        | Cause::RateLimit
        | Cause::NotResumed
        | Cause::Revoked
        | Cause::Shutdown => false,
    }
}

/// Whether a close code of the service ends a client for good: the client did something wrong.
fn is_final(code: CloseCode) -> bool {
    matches!(
        code,
        CloseCode::PROTOCOL | CloseCode::POLICY | CloseCode::TOO_BIG
    )
}

impl Client {
    #[inline]
    fn resumable(&self) -> Option<&Resumable> {
        self.backlog.as_ref()?.resumable.as_deref()
    }

    fn resumable_mut(&mut self) -> Option<&mut Resumable> {
        self.backlog.as_mut()?.resumable.as_deref_mut()
    }

    /// Whether the client can resume its connection after a cut.
    pub(in crate::server) fn is_resumable(&self) -> bool {
        self.resumable().is_some()
    }

    /// Whether the connection was cut and the client can still come back.
    pub(in crate::server) fn is_detached(&self) -> bool {
        matches!(self.connection, Connection::Detached(_))
    }

    /// Whether the client is detached and has not ended.
    pub(in crate::server) fn may_come_back(&self) -> bool {
        self.is_detached() && !self.has_ended()
    }

    /// Whether the client has ended for good after a cut.
    fn has_ended(&self) -> bool {
        self.resumable().is_some_and(|one| one.ended.is_some())
    }

    /// Takes the reason why the client has ended for good after a cut.
    pub(super) fn take_ended(&mut self) -> Option<CloseReason> {
        self.resumable_mut()?.ended.take()
    }

    /// Ends a client whose connection was cut for good. An earlier reason is kept.
    pub(super) fn end_cut(&mut self, reason: CloseReason) {
        if let Some(resumable) = self.resumable_mut()
            && resumable.ended.is_none()
        {
            resumable.ended = Some(resumable.closing.take().unwrap_or(reason));
        }
    }

    /// What to do with a detached client.
    pub(super) fn detached_step(&self) -> NextStep {
        if self.has_ended() {
            NextStep::Close
        } else {
            NextStep::Continue
        }
    }

    /// How long the client has been detached.
    pub(in crate::server) fn detached_for(&self, now: Time) -> Option<Duration> {
        match &self.connection {
            Connection::Detached(detached) => Some(now.since(detached.since)),
            _ => None,
        }
    }

    /// When nothing was pending any more for a detached client. `None` if something is, or if the client is connected.
    pub(in crate::server) fn idle_since(&self) -> Option<Time> {
        match &self.connection {
            Connection::Detached(detached) => detached.idle_since,
            _ => None,
        }
    }

    /// The number of bytes of messages that the client has not confirmed.
    pub(in crate::server) fn kept(&self) -> usize {
        self.resumable()
            .map_or(0, |resumable| resumable.outbox.len())
    }

    /// The memory of the messages that the client has not confirmed, in bytes.
    pub(in crate::server) fn kept_memory(&self) -> usize {
        self.resumable()
            .map_or(0, |resumable| resumable.outbox.memory())
    }

    /// The client's state for the status; `None` if it is not resumable.
    pub(in crate::server) fn resume_status(&self, now: Time) -> Option<ResumeStatus> {
        let resumable = self.resumable()?;
        Some(ResumeStatus {
            detached: self.detached_for(now),
            kept_bytes: resumable.outbox.len(),
            resumes: resumable.resumes,
        })
    }

    /// Makes the client resumable. With `notice`, its first message tells it the token.
    pub(in crate::server) fn make_resumable(
        &mut self,
        env: &mut Env,
        token: &ResumeToken,
        accept: Accept,
        notice: bool,
    ) {
        let backlog = self.backlog.get_or_insert_default();
        backlog.resumable = Some(Box::new(Resumable {
            outbox: Outbox::default(),
            secret: token.secret,
            earlier: None,
            unpinged: 0,
            pinged: (0, env.now),
            passes: false,
            crowded: None,
            accept,
            closing: None,
            ended: None,
            is_final: false,
            resumed_in: u64::MAX,
            resumes: 0,
        }));
        if notice {
            self.send_notice(env, token, 0);
        }
    }

    /// Sends the message that tells the client its token, and the number of messages that the server has taken. It does
    /// not count as a message.
    fn send_notice(&mut self, env: &mut Env, token: &ResumeToken, received: u64) {
        let notice = token.notice(received);
        self.transmit(env, |_, _, out| {
            let message = Message::Text(&notice);
            SentHeader::new(message.opcode(), notice.len()).append_with(notice.as_bytes(), out);
        });
    }

    // Sending.

    /// Whether messages to a client whose connection was cut are kept until it comes back. True from the cut on, even
    /// before the loop has detached the client.
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
        total.saturating_sub(largest) <= limits.buffer && env.kept_memory + size <= limits.memory
    }

    /// Keeps a message until the client confirms it. Returns whether the message must be sent now: it waits if earlier
    /// ones do, or if the connection was cut. Does nothing for a client that is not resumable.
    pub(super) fn keep(&mut self, env: &mut Env, message: Message<'_>) -> bool {
        let is_connected = self.is_connected();
        let Some(resumable) = self.resumable_mut() else {
            return true;
        };
        let outbox = &mut resumable.outbox;
        let before = outbox.memory();
        let len = outbox.push(message, !is_connected);
        env.kept_memory += outbox.memory() - before;
        let is_sent = outbox.unsent() == 0;
        resumable.unpinged += if is_sent { len } else { 0 };
        self.check_crowd(env);
        is_sent
    }

    /// Records that much is unconfirmed.
    fn check_crowd(&mut self, env: &mut Env) {
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

    /// The number of messages that were sent on the present connection and before.
    pub(super) fn sent_count(&self) -> u64 {
        let unsent = self.resumable().map_or(0, |one| one.outbox.unsent());
        self.traffic.messages_out - unsent
    }

    /// Whether messages wait to be sent on the present connection.
    pub(super) fn has_unsent(&self) -> bool {
        self.resumable().is_some_and(|one| one.outbox.unsent() > 0)
    }

    /// Sends the next messages that wait, a part of them at once, and then the CLOSE that waits behind them. Called when
    /// the socket has taken all earlier output.
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
            Connection::Http(_) | Connection::Detached(_) => false,
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
        } else if let Some(backlog) = self.backlog.as_deref_mut()
            && !backlog.blocked
            && !std::mem::replace(&mut backlog.dirty, true)
        {
            env.queue.push_dirty(self.id);
        }
    }

    /// Sends the CLOSE with which the service has closed the client while messages waited.
    fn send_waiting_close(&mut self, env: &mut Env) {
        let closing = self.resumable_mut().and_then(|one| one.closing.take());
        if let Some(closing) = closing {
            self.close(env, closing);
        }
    }

    /// Whether a CLOSE of the service waits until the client has been sent every message.
    pub(super) fn is_close_waiting(&self) -> bool {
        self.resumable().is_some_and(|one| one.closing.is_some())
    }

    /// Makes the CLOSE of the service wait for the unsent messages. Returns whether it must.
    pub(super) fn postpone_close(&mut self, reason: &CloseReason) -> bool {
        let waits = self.has_unsent() && reason.cause == Cause::Service && !is_final(reason.code);
        if waits && let Some(resumable) = self.resumable_mut() {
            resumable.closing = Some(reason.clone());
        }
        waits
    }

    /// Sends a PING that asks for a confirmation, if enough was sent since the last one. One PING is under way at a time,
    /// and unless much is unconfirmed, a second passes between two, because a client may answer several ahead of its
    /// application.
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
        self.end_pass();
        self.ping_if_due(env);
    }

    /// Drops messages, and reports that there is room again.
    fn release(&mut self, env: &mut Env, release: impl FnOnce(&mut Outbox)) {
        let limits = env.config.resume.unwrap_or_default();
        let Some(resumable) = self.resumable_mut() else {
            return;
        };
        let before = resumable.outbox.memory();
        release(&mut resumable.outbox);
        env.kept_memory -= before - resumable.outbox.memory();
        if resumable.crowded.is_some() {
            resumable.crowded = Some(env.now);
            if resumable.outbox.unconfirmed() <= limits.buffer / CROWDED_SHARE / 2 {
                resumable.crowded = None;
                if !self.is_congested() {
                    env.queue.push_news(self.id, News::Drained);
                }
            }
            self.rearm(env);
        }
        self.read_again(env);
    }

    /// When to check whether a connected client that confirms nothing is stuck.
    pub(super) fn stuck_at(&self, env: &Env) -> Option<Time> {
        let crowded = self.resumable()?.crowded.filter(|_| self.is_connected())?;
        let waits = self.awaits_confirmation(env);
        Some(crowded + if waits { PASS } else { STUCK })
    }

    /// Whether the client has had all output for some time, has confirmed none of it, and its PONG may be behind a
    /// message that cannot be taken. If the message only waits for the PONG, it is let through.
    pub(super) fn is_stuck(&mut self, env: &mut Env) -> bool {
        if self.stuck_at(env).is_none_or(|at| at > env.now) {
            return false;
        }
        let gate = self.read_gate(env);
        let is_idle = self.is_delivered() && !self.has_unsent();
        // The answer to a message that is let through must fit into the outbox.
        let largest = self.resumable().map_or(0, |one| one.outbox.largest());
        let is_full = gate == ReadGate::Held(Why::Unconfirmed) && !self.may_keep(env, largest);
        if is_idle && (gate == ReadGate::Held(Why::Service) || is_full) {
            return true;
        }
        let now = env.now;
        if let Some(resumable) = self.resumable_mut() {
            resumable.crowded = Some(now);
            resumable.passes = is_idle && gate == ReadGate::Held(Why::Unconfirmed);
            self.read_again(env);
        }
        false
    }

    /// Drops every message that is kept, because the client ends for good.
    pub(super) fn forget_kept(&mut self, env: &mut Env) {
        if let Some(resumable) = self.resumable_mut() {
            env.kept_memory -= resumable.outbox.memory();
            resumable.outbox = Outbox::default();
        }
    }

    /// Drops what the client has confirmed, because memory is short.
    pub(in crate::server) fn release_confirmed(&mut self, env: &mut Env) {
        self.release(env, Outbox::release_confirmed);
    }

    /// Makes room for a message of `size` bytes among those that are kept. If there is none, drops what the client has
    /// confirmed. Returns whether there is room.
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

    /// Whether so much is unconfirmed, not counting the longest message, that the client's next message, and its answer,
    /// must wait for a PONG. A message that has begun is taken, because a PONG cannot come inside it.
    #[inline]
    pub(super) fn awaits_confirmation(&self, env: &Env) -> bool {
        self.backlog.is_some() && self.is_unconfirmed(env)
    }

    #[cold]
    fn is_unconfirmed(&self, env: &Env) -> bool {
        let (Some(resumable), Some(limits)) = (self.resumable(), env.config.resume) else {
            return false;
        };
        let (part, whole) = HELD_SHARE;
        let outbox = &resumable.outbox;
        let unconfirmed = outbox.unconfirmed().saturating_sub(outbox.largest());
        let inside =
            matches!(&self.connection, Connection::WebSocket(socket) if socket.is_inside_message());
        unconfirmed > limits.buffer / whole * part && !resumable.passes && !inside
    }

    /// Records that a message was taken from the client.
    pub(super) fn end_pass(&mut self) {
        if let Some(resumable) = self.resumable_mut() {
            resumable.passes = false;
        }
    }

    // Detaching.

    /// Why the connection was cut, if it was and the client may come back. Called when the connection is over.
    pub(in crate::server) fn cut(&self) -> Option<CloseReason> {
        let Connection::WebSocket(socket) = &self.connection else {
            return None;
        };
        if self.resumable()?.is_final || self.has_ended() {
            return None;
        }
        let reason = socket.close_reason()?;
        is_cut(reason, socket.peer_close()).then(|| reason.clone())
    }

    /// Detaches a client whose connection was cut. `pending` says whether the service owes it something.
    pub(in crate::server) fn detach(
        &mut self,
        env: &mut Env,
        poll: &mio::Registry,
        cut: CloseReason,
        pending: bool,
    ) {
        self.deregister(poll);
        self.stream = Stream::Closed;
        if self.flags.set(Flag::Counted, false) {
            env.addresses.remove_connection(self.remote.ip());
        }
        let was_congested = self.is_congested();
        if let Some(backlog) = self.backlog.as_deref_mut() {
            backlog.forget_wire();
        }
        for flag in [Flag::Readable, Flag::HungUp, Flag::SendsLong] {
            self.flags.set(flag, false);
        }
        if cut.cause == Cause::Service
            && let Some(resumable) = self.resumable_mut()
        {
            resumable.closing = Some(cut.clone());
        }
        self.connection = Connection::Detached(Box::new(Detached {
            since: env.now,
            last_message: self.last_message(),
            idle_since: None,
            check_at: env.now,
            cut,
        }));
        self.check_detached(env, pending);
        if was_congested && !self.is_congested() {
            env.queue.push_news(self.id, News::Drained);
        }
    }

    /// Ends a detached client that was away for too long, or sets the time of the next check. `pending` says whether
    /// the service owes it something.
    pub(in crate::server) fn check_detached(&mut self, env: &mut Env, pending: bool) {
        let limits = env.config.resume.unwrap_or_default();
        let Connection::Detached(detached) = &mut self.connection else {
            return;
        };
        let now = env.now;
        detached.idle_since = match detached.idle_since {
            _ if pending => None,
            Some(since) => Some(since),
            None => Some(now),
        };
        detached.check_at = match detached.idle_since {
            Some(since) => since + limits.grace,
            None => now + CHECK,
        };
        if detached.deadline(limits) <= now {
            let reason = CloseReason::not_resumed(&detached.cut);
            return self.end(env, reason);
        }
        self.rearm(env);
    }

    /// Closes a client whose connection was cut. The client gets the CLOSE of a service when it comes back. Any other
    /// CLOSE, and a code that ends a client for good, ends it now.
    pub(super) fn close_cut(&mut self, env: &mut Env, reason: CloseReason) {
        let is_over = match &self.connection {
            Connection::Detached(_) => true,
            Connection::WebSocket(socket) => socket.state() == State::Closed,
            Connection::Http(_) => false,
        };
        if reason.cause == Cause::Service && !is_final(reason.code) {
            if self.takes_messages()
                && let Some(resumable) = self.resumable_mut()
            {
                resumable.closing = Some(reason);
            }
        } else if is_over && self.is_resumable() {
            self.end_cut(reason);
            self.disconnect(env);
        } else if let Some(resumable) = self.resumable_mut() {
            // The closing handshake goes on, but the client cannot come back.
            resumable.is_final = true;
        }
    }

    // Resuming.

    /// Whether a token opens the client now.
    pub(in crate::server) fn opens_with(&self, secret: &Secret) -> bool {
        let Some(resumable) = self.resumable() else {
            return false;
        };
        let is_over = match &self.connection {
            Connection::Detached(_) => self.has_ended(),
            Connection::WebSocket(socket) => !socket.is_open() && self.cut().is_none(),
            Connection::Http(_) => true,
        };
        let earlier = resumable.earlier.as_ref().filter(|(_, messages)| {
            // A message of the client shows that it has the latest token.
            *messages == self.traffic.messages_in
        });
        // Both comparisons are made, so that the time does not show which one is true.
        let is_latest = resumable.secret.is(secret);
        let is_earlier = earlier.is_some_and(|(earlier, _)| earlier.is(secret));
        (is_latest | is_earlier) && !is_over
    }

    /// Checks the number of messages that a client says it has received.
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

    /// Makes the next token the latest one. `used` is the secret with which the client comes back.
    pub(in crate::server) fn renew_token(&mut self, used: Secret, next: &ResumeToken) -> Accept {
        let messages_in = self.traffic.messages_in;
        let Some(resumable) = self.resumable_mut() else {
            return Accept::default();
        };
        resumable.earlier = Some((used, messages_in));
        resumable.secret = next.secret;
        resumable.accept.clone()
    }

    /// Answers the handshake of a connection that continues the client `target`, which has received `received`
    /// messages. No message of this connection is handled before [`Client::take_over`] has given it to the client.
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

    /// Sends the notice on a connection that continues another client.
    pub(in crate::server) fn notify(&mut self, env: &mut Env, token: &ResumeToken, received: u64) {
        self.send_notice(env, token, received);
    }

    /// The client that this connection continues, and the number of messages that it has received.
    #[inline]
    pub(in crate::server) fn joins(&self) -> Option<(ClientId, u64)> {
        let join = self.backlog.as_ref()?.join.as_ref()?;
        Some((join.target, join.received))
    }

    /// Takes over the connection of `new`, and sends every message after the first `received` ones. `new` gets the old
    /// connection, which ends with CLOSE 4001, and is not a client any more.
    pub(in crate::server) fn take_over(
        &mut self,
        env: &mut Env,
        poll: &mio::Registry,
        new: &mut Self,
        received: u64,
    ) {
        let was_congested = self.is_congested();
        self.swap_connections(env, poll, new);
        self.release(env, |outbox| outbox.resume_after(received));
        let turn = env.turn;
        if let Some(resumable) = self.resumable_mut() {
            resumable.unpinged = 0;
            resumable.pinged.0 = received;
            resumable.passes = false;
            resumable.resumes += 1;
            resumable.resumed_in = turn;
        }
        self.check_crowd(env);
        if was_congested && !self.is_congested() {
            env.queue.push_news(self.id, News::Drained);
        }
        self.mark_delivered();
        // Sends what waits at the end of the turn.
        if let Some(backlog) = self.backlog.as_deref_mut()
            && !std::mem::replace(&mut backlog.dirty, true)
        {
            env.queue.push_dirty(self.id);
        }
        if !self.has_unsent() {
            self.send_waiting_close(env);
        }
        self.read_again(env);
        self.settle(env);
        self.rearm(env);
        if matches!(&self.connection, Connection::WebSocket(socket) if socket.state() == State::Closed)
        {
            // Writing the handshake failed.
            self.disconnect(env);
        }
    }

    /// Whether an event of this turn belongs to an earlier connection of the client. The new socket was not registered
    /// for the client when the kernel reported the event.
    pub(in crate::server) fn is_stale_event(&self, env: &Env) -> bool {
        self.backlog.is_some()
            && self
                .resumable()
                .is_some_and(|one| one.resumed_in == env.turn)
    }

    /// Exchanges the connections of this client and of `new`. Ends the old one.
    fn swap_connections(&mut self, env: &mut Env, poll: &mio::Registry, new: &mut Self) {
        env.addresses.remove_client(self.remote.ip());
        env.addresses.add_client(new.remote.ip());
        new.path.clone_from(&self.path);
        std::mem::swap(&mut self.stream, &mut new.stream);
        std::mem::swap(&mut self.remote, &mut new.remote);
        std::mem::swap(&mut self.credential, &mut new.credential);
        for flag in [Flag::Counted, Flag::Readable, Flag::HungUp, Flag::SendsLong] {
            let (own, other) = (self.flags.has(flag), new.flags.has(flag));
            self.flags.set(flag, other);
            new.flags.set(flag, own);
        }
        for client in [&mut *self, &mut *new] {
            let (id, stream) = (client.id, &mut client.stream);
            if let Err(error) = stream.reregister(poll, id.token()) {
                log::warn!("{id}: its socket could not be registered again: {error}");
                client.flags.set(Flag::Readable, true);
            }
        }
        let mut wire = std::mem::take(new.backlog.get_or_insert_default());
        wire.join = None;
        let own = self.backlog.get_or_insert_default();
        std::mem::swap(own, &mut wire);
        own.resumable = wire.resumable.take();
        if std::mem::take(&mut own.dirty) {
            own.dirty = true;
            env.queue.push_dirty(self.id);
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
                env.queue.push_dirty(new.id);
                new.backlog = Some(wire);
                new.mark_delivered();
                new.rearm(env);
            }
            Connection::Http(_) => {}
        }
    }

    /// Whether a client with a backlog may not be read because its connection continues another client, or because the
    /// client has left too much unconfirmed and a message is next.
    #[cold]
    pub(super) fn resume_gate(&self, env: &Env) -> Option<Why> {
        if self.joins().is_some() {
            return Some(Why::Joining);
        }
        let waits = self.awaits_confirmation(env) && (self.has_unread() || self.awaits_data());
        waits.then_some(Why::Unconfirmed)
    }
}
