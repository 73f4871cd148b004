//! What a resumable client keeps across its connections: the messages that it has not confirmed, its tokens, and its end.
//!
//! [`Delivery`] decides; the [`Client`](super::Client) that owns it sends, closes and tells the loop.

use std::time::Duration;

use super::cuts::may_wait;
use super::input::{ReadGate, Why};
use super::outbox::Outbox;
use super::upstream::{LastConnection, Upstream};
use crate::protocol::{Accept, Cause, CloseReason, Time};
use crate::record::record;
use crate::server::config::ResumeConfig;
use crate::server::resume::token::{ResumeToken, Secret};
use crate::server::tls::PeerCertificate;

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

/// A part of the resume buffer of this size may be unconfirmed in addition after each [`PASS`].
const ALLOWANCE_SHARE: usize = 8;

/// How often in a row. Then the connection is cut.
const ALLOWANCES: usize = 2;

/// How long the messages of a client wait for a PONG before more of them are let through, because the PONG may be behind
/// them.
const PASS: Duration = Duration::from_millis(250);

/// The minimum time between two PINGs that ask for a confirmation, unless much is unconfirmed.
const PING_PAUSE: Duration = Duration::from_secs(1);

/// How often to ask the service whether it still owes a detached client something.
const CHECK: Duration = Duration::from_secs(1);

/// The state that a resumable client keeps across its connections.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// The messages that the client has not confirmed, and those that its latest PONG has confirmed. The latter are kept
    /// until a PONG confirms more, because a client may answer a PING before its application has handled the messages
    /// that precede it.
    pub(super) outbox: Outbox,
    pub(super) limits: ResumeConfig,
    /// The secret of the latest token.
    secret: Secret,
    /// The secret of the previous token, and the number of messages that the client had sent when that token was used.
    /// The previous token is valid until the client sends another message, which shows that it has the latest token.
    earlier: Option<(Secret, u64)>,
    /// The number of bytes sent since the last PING that asks for a confirmation.
    pub(super) unpinged: usize,
    /// The count in the last of these PINGs, and when it was sent.
    pinged: (u64, Time),
    /// The number of additional bytes that may be unconfirmed before the client's messages wait.
    allowance: usize,
    /// When the client last made progress, while too much is unconfirmed for the service to send more. `None` otherwise.
    crowded: Option<Time>,
    /// The state of a connection that this side has opened.
    pub(super) upstream: Option<Box<Upstream>>,
    /// The certificate of the client.
    pub(super) certificate: Option<Box<PeerCertificate>>,
    /// The fields of the first 101 response. A resumed connection gets them again.
    accept: Accept,
    /// The CLOSE of the service that has not been sent. It follows the unsent messages, if necessary on the next
    /// connection.
    pub(super) closing: Option<CloseReason>,
    /// Why the client has ended for good after the cut.
    pub(super) ended: Option<CloseReason>,
    /// Whether the client can no longer come back when its current connection ends.
    pub(super) is_final: bool,
    /// The turn of the loop in which the client came back. Events of this turn belong to its earlier connection.
    pub(super) resumed_in: u64,
    /// The number of times that the client has come back.
    pub(super) resumes: u64,
}

record!(Delivery {
    outbox,
    limits,
    secret,
    earlier,
    unpinged,
    pinged,
    allowance,
    crowded,
    upstream,
    certificate,
    accept,
    closing,
    ended,
    is_final,
    // The next process counts its turns from 1.
    resumed_in = u64::MAX,
    resumes,
});

/// What to do about a client that has confirmed nothing for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stuck {
    /// Its PONG is behind messages that the service does not take, so only coming back can confirm anything.
    Cut,
    /// Go on. Some more of its messages may be let through.
    Wait,
}

/// Why a client cannot come back with its number of received messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrongCount {
    /// Some later messages are no longer kept.
    TooFew,
    /// It is more than the server has sent.
    TooMany,
}

impl Delivery {
    /// The state of a new resumable client, whose token has this secret.
    pub(super) fn new(
        limits: Option<ResumeConfig>,
        secret: Secret,
        accept: Accept,
        certificate: Option<Box<PeerCertificate>>,
        now: Time,
    ) -> Self {
        Self {
            outbox: Outbox::default(),
            limits: limits.unwrap_or_default(),
            secret,
            earlier: None,
            unpinged: 0,
            pinged: (0, now),
            allowance: 0,
            crowded: None,
            upstream: None,
            certificate,
            accept,
            closing: None,
            ended: None,
            is_final: false,
            resumed_in: u64::MAX,
            resumes: 0,
        }
    }

    // Keeping messages.

    /// Whether a message of `size` bytes may be kept until the client confirms it. The longest message does not count,
    /// so that one message always fits.
    pub(super) fn may_keep(&self, size: usize) -> bool {
        let total = self.outbox.len() + size;
        let largest = self.outbox.largest().max(size);
        total.saturating_sub(largest) <= self.limits.buffer
    }

    /// Keeps a message until the client confirms it. `add` adds it to the outbox and returns its length; its second argument says
    /// whether the message waits. Returns the length, and whether the message must be sent now: it waits if earlier ones do, or if
    /// the connection was cut.
    pub(super) fn keep(
        &mut self,
        is_connected: bool,
        add: impl FnOnce(&mut Outbox, bool) -> usize,
    ) -> (usize, bool) {
        let len = add(&mut self.outbox, !is_connected);
        let is_sent = self.outbox.unsent_count() == 0;
        self.unpinged += if is_sent { len } else { 0 };
        (len, is_sent)
    }

    /// The certificate with which the client has connected.
    pub(crate) fn certificate(&self) -> Option<&PeerCertificate> {
        self.certificate.as_deref()
    }

    /// Whether messages wait to be sent on the current connection.
    pub(super) fn has_unsent(&self) -> bool {
        self.outbox.unsent_count() > 0
    }

    /// Whether the service should send no more until the client has confirmed more.
    pub(super) fn is_crowded(&self) -> bool {
        self.crowded.is_some()
    }

    /// Notes whether too much is unconfirmed for the service to send more. Returns whether that has just begun.
    pub(super) fn check_crowd(&mut self, now: Time) -> bool {
        let begins = self.crowded.is_none()
            && self.outbox.unconfirmed_len() > self.limits.buffer / CROWDED_SHARE;
        if begins {
            self.crowded = Some(now);
        }
        begins
    }

    /// Drops messages with `release`. Returns whether the service may send again since.
    pub(super) fn release(&mut self, now: Time, release: impl FnOnce(&mut Outbox)) -> bool {
        release(&mut self.outbox);
        if self.crowded.is_none() {
            return false;
        }
        let is_relieved = self.outbox.unconfirmed_len() <= self.limits.buffer / CROWDED_SHARE / 2;
        self.crowded = (!is_relieved).then_some(now);
        is_relieved
    }

    /// Whether to send a PING that asks for a confirmation of the first `sent` messages: if enough was sent since the last one.
    /// Unless much is unconfirmed, it waits for the PONG of the last one and for [`PING_PAUSE`], because a client may answer
    /// several PINGs before its application handles the messages between them. Records the PING.
    pub(super) fn begin_ping(&mut self, sent: u64, now: Time) -> bool {
        let buffer = self.limits.buffer;
        let unconfirmed = self.outbox.unconfirmed_len();
        let is_urgent = unconfirmed > buffer / CROWDED_SHARE / 2;
        let is_answered = self.outbox.confirmed() >= self.pinged.0;
        let is_calm = is_answered && now.since(self.pinged.1) >= PING_PAUSE;
        let is_due = self.unpinged >= buffer / PING_SHARE
            && (is_calm || (is_urgent && is_answered) || unconfirmed > buffer / 2);
        if is_due {
            self.unpinged = 0;
            self.pinged = (sent, now);
        }
        is_due
    }

    /// Records a PONG, after which no additional bytes may be unconfirmed.
    pub(super) fn end_allowance(&mut self) {
        self.allowance = 0;
    }

    /// Whether so much is unconfirmed, not counting the longest message, that the client's next message must wait for a
    /// PONG.
    pub(super) fn awaits_confirmation(&self) -> bool {
        // A service limits what it sends to a server by itself.
        if self.upstream.is_some() {
            return false;
        }
        let (part, whole) = HELD_SHARE;
        let unconfirmed = self.outbox.unconfirmed_len();
        unconfirmed.saturating_sub(self.outbox.largest())
            > self.limits.buffer / whole * part + self.allowance
    }

    /// When to call [`Delivery::check_stuck`]. `waits` says whether the client's messages wait for a PONG.
    pub(super) fn stuck_at(&self, waits: bool) -> Option<Time> {
        Some(self.crowded? + if waits { PASS } else { STUCK })
    }

    /// Handles the time of [`Delivery::stuck_at`]. `gate` says why the client is not read, and `is_idle` whether it has had all
    /// output. If messages wait only for the PONG, some more of them are let through.
    pub(super) fn check_stuck(&mut self, gate: ReadGate, is_idle: bool, now: Time) -> Stuck {
        let share = self.limits.buffer / ALLOWANCE_SHARE;
        // The answer to a message that is let through must fit.
        let is_full = !self.may_keep(self.outbox.largest());
        let is_over = is_full || self.allowance >= share * ALLOWANCES;
        let waits = is_idle && gate == ReadGate::Held(Why::Unconfirmed);
        if (is_idle && gate == ReadGate::Held(Why::Service)) || (waits && is_over) {
            return Stuck::Cut;
        }
        if waits {
            self.allowance += share;
        }
        self.crowded = Some(now);
        Stuck::Wait
    }

    /// The number of messages that were not confirmed.
    pub(crate) fn unconfirmed_count(&self) -> u64 {
        self.outbox.unconfirmed_count()
    }

    /// The messages received, of which the client's traffic counts `messages_in`, and those that the peer has confirmed.
    fn progress(&self, messages_in: u64) -> (u64, u64) {
        (messages_in, self.outbox.confirmed())
    }

    // Coming back.

    /// The state of a connection that this side has opened.
    pub(crate) fn upstream(&self) -> Option<&Upstream> {
        self.upstream.as_deref()
    }

    pub(crate) fn upstream_mut(&mut self) -> Option<&mut Upstream> {
        self.upstream.as_deref_mut()
    }

    /// The server has accepted a new connection, and has sent a new token.
    pub(crate) fn begin_upstream(&mut self, now: Time, token: &str, messages_in: u64) {
        let mark = self.progress(messages_in);
        if let Some(upstream) = &mut self.upstream {
            upstream.begin(now, token, mark);
        }
    }

    /// The last connection of a client that was cut and comes back to its server by itself.
    pub(crate) fn last_connection(&self, now: Time, messages_in: u64) -> Option<LastConnection> {
        let (mark, is_closing) = (self.progress(messages_in), self.closing.is_some());
        Some(self.upstream()?.last_connection(now, mark, is_closing))
    }

    /// Whether a token of this secret opens the client, which has sent `messages_in` messages.
    pub(super) fn opens_with(&self, secret: &Secret, messages_in: u64) -> bool {
        // A connection that this side has opened is not resumed by its server.
        if self.upstream.is_some() {
            return false;
        }
        let earlier = self.earlier.as_ref();
        // A message of the client shows that it has the latest token.
        let earlier = earlier.filter(|(_, messages)| *messages == messages_in);
        // Both comparisons are made, so that the time does not show which one is true.
        let is_latest = self.secret.is(secret);
        let is_earlier = earlier.is_some_and(|(earlier, _)| earlier.is(secret));
        is_latest | is_earlier
    }

    /// Checks the number of messages that the client claims to have received. `sent` messages were sent to it.
    pub(crate) fn check_received(&self, received: u64, sent: u64) -> Result<(), WrongCount> {
        if received > sent {
            Err(WrongCount::TooMany)
        } else if received < self.outbox.before() {
            Err(WrongCount::TooFew)
        } else {
            Ok(())
        }
    }

    /// Makes `next` the latest token. `used` is the secret that the client presented after `messages_in` messages. Returns the
    /// fields of the first 101 response.
    pub(crate) fn renew_token(
        &mut self,
        used: Secret,
        next: &ResumeToken,
        messages_in: u64,
    ) -> Accept {
        self.earlier = Some((used, messages_in));
        self.secret = next.secret;
        self.accept.clone()
    }

    /// The client has come back in this turn, with this certificate, and has received `received` messages.
    pub(super) fn handle_return(
        &mut self,
        received: u64,
        certificate: Option<Box<PeerCertificate>>,
        turn: u64,
    ) {
        self.certificate = certificate;
        self.unpinged = 0;
        self.pinged.0 = received;
        self.allowance = 0;
        self.resumes += 1;
        self.resumed_in = turn;
    }

    // The end.

    /// Whether a CLOSE of the service waits for unsent messages.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Whether the service has closed the client, or the client has ended for good.
    pub(super) fn is_over(&self) -> bool {
        self.closing.is_some() || self.ended.is_some()
    }

    /// Ends the client for good after a cut. An earlier reason takes precedence.
    pub(super) fn end(&mut self, reason: CloseReason) {
        if self.ended.is_none() {
            // The peer has not received a CLOSE that waits, nor the messages before it.
            let closing = self.closing.take();
            let closing = closing.filter(|_| reason.cause != Cause::Unreachable);
            self.ended = Some(closing.unwrap_or(reason));
        }
    }

    /// Makes a CLOSE wait if it must follow unsent messages. Returns whether it waits.
    pub(super) fn postpone_close(&mut self, reason: &CloseReason) -> bool {
        let waits = self.has_unsent() && may_wait(reason);
        if waits {
            self.closing = Some(reason.clone());
        }
        waits
    }
}

/// The state of a client whose connection was cut.
#[derive(Debug)]
pub(crate) struct Detached {
    /// When the connection was cut.
    pub(crate) since: Time,
    /// When the last data message was received or sent.
    pub(super) last_message: Time,
    /// Since when the service owes the client nothing. `None` while it owes something.
    pub(crate) idle_since: Option<Time>,
    /// When to ask again what the service owes.
    check_at: Time,
    /// Why the connection was cut.
    pub(super) cut: CloseReason,
}

record!(Detached {
    since,
    last_message,
    idle_since,
    check_at,
    cut,
});

impl Detached {
    pub(super) fn new(now: Time, last_message: Time, cut: CloseReason) -> Self {
        Self {
            since: now,
            last_message,
            idle_since: None,
            check_at: now,
            cut,
        }
    }

    /// When to ask the service whether it owes the client something.
    pub(super) fn deadline(&self, limits: &ResumeConfig) -> Time {
        self.check_at.min(self.since + limits.limit)
    }

    /// Notes whether the service owes the client something, and sets the time of the next check. Returns whether the client was
    /// away for too long.
    pub(super) fn check(&mut self, limits: &ResumeConfig, pending: bool, now: Time) -> bool {
        self.idle_since = (!pending).then(|| self.idle_since.unwrap_or(now));
        self.check_at = match self.idle_since {
            Some(since) => since + limits.grace,
            None => now + CHECK,
        };
        self.deadline(limits) <= now
    }
}
