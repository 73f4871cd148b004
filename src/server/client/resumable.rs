//! Resumable clients: their state while they are connected, and while they are detached after a cut.
//!
//! When its TCP connection is cut, a resumable client stays in the registry. It is then *detached*: the service is not told,
//! and messages to the client wait in the outbox. The client comes back with a [`ResumeToken`] on a new connection, which
//! hands its socket to the detached client.

use std::time::Duration;

use super::outbox::Outbox;
use super::upstream::{Upstream, is_cut_by_server};
use super::{Client, Connection, Flag};
use crate::protocol::{
    Accept, Cause, CloseCode, CloseReason, Message, NextStep, SentHeader, State, Time,
};
use crate::server::config::ResumeConfig;
use crate::server::env::Env;
use crate::server::news::News;
use crate::server::resume_token::{ResumeToken, Secret};
use crate::server::status::ResumeStatus;
use crate::server::stream::Stream;
use crate::server::tls::PeerCertificate;

/// How often to ask the service whether it still owes a detached client something.
const CHECK: Duration = Duration::from_secs(1);

/// The additional state of a resumable client.
#[derive(Debug)]
pub(in crate::server) struct Resumable {
    /// The messages that the client has not confirmed, and those that its latest PONG has confirmed. The latter are kept
    /// until a PONG confirms more, because a client may answer a PING before its application has handled the messages
    /// that precede it.
    pub(super) outbox: Outbox,
    /// The secret of the latest token.
    pub(super) secret: Secret,
    /// The secret of the previous token, and the number of messages that the client had sent when that token was used.
    /// The previous token is valid until the client sends another message, which shows that it has the latest token.
    pub(super) earlier: Option<(Secret, u64)>,
    /// The number of bytes sent since the last PING that asks for a confirmation.
    pub(super) unpinged: usize,
    /// The count in the last of these PINGs, and when it was sent.
    pub(super) pinged: (u64, Time),
    /// The number of additional bytes that may be unconfirmed before the client's messages wait.
    pub(super) allowance: usize,
    /// When the client last made progress, while too much is unconfirmed for the service to send more. `None` otherwise.
    pub(super) crowded: Option<Time>,
    /// The state of a connection that this side has opened.
    pub(super) upstream: Option<Box<Upstream>>,
    /// The certificate of the client.
    pub(super) certificate: Option<Box<PeerCertificate>>,
    /// The fields of the first 101 response. A resumed connection gets them again.
    pub(super) accept: Accept,
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

/// The state of a client whose connection was cut.
#[derive(Debug)]
pub(super) struct Detached {
    /// When the connection was cut.
    pub(super) since: Time,
    /// When the last data message was received or sent.
    pub(super) last_message: Time,
    /// Since when the service owes the client nothing. `None` while it owes something.
    idle_since: Option<Time>,
    /// When to ask again what the service owes.
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

/// Whether an end for this reason is a cut, after which the client may come back. `peer_close` is the code of the client's
/// CLOSE.
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
        | Cause::Memory
        | Cause::RateLimit
        | Cause::NotResumed
        | Cause::Revoked
        | Cause::Operator
        | Cause::Shutdown => false,
    }
}

/// Whether a close code of the service ends a client for good, because the client did something wrong.
pub(super) fn is_final(code: CloseCode) -> bool {
    matches!(
        code,
        CloseCode::PROTOCOL | CloseCode::POLICY | CloseCode::TOO_BIG
    )
}

impl Client {
    #[inline]
    pub(super) fn resumable(&self) -> Option<&Resumable> {
        self.backlog.as_ref()?.resumable.as_deref()
    }

    pub(super) fn resumable_mut(&mut self) -> Option<&mut Resumable> {
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

    /// Whether the client of another process can come back, now or after its connection is cut.
    pub(in crate::server) fn is_kept_for_return(&self) -> bool {
        self.is_resumable() && !self.is_ours() && (self.is_connected() || self.may_come_back())
    }

    /// Whether messages wait until they can be sent, or until a client that was cut comes back.
    pub(in crate::server) fn lacks_messages(&self) -> bool {
        self.has_unsent() || (self.is_detached() && self.unconfirmed_count() > 0)
    }

    /// Whether the client has ended for good after a cut.
    pub(super) fn has_ended(&self) -> bool {
        self.resumable().is_some_and(|one| one.ended.is_some())
    }

    /// Takes the reason why the client has ended for good after a cut.
    pub(super) fn take_ended(&mut self) -> Option<CloseReason> {
        self.resumable_mut()?.ended.take()
    }

    /// Ends a client for good after a cut. An earlier reason takes precedence.
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

    /// Since when the service owes a detached client nothing. `None` if it owes something, or if the client is connected.
    pub(in crate::server) fn idle_since(&self) -> Option<Time> {
        match &self.connection {
            Connection::Detached(detached) => detached.idle_since,
            _ => None,
        }
    }

    /// The number of bytes of the kept messages.
    pub(in crate::server) fn kept(&self) -> usize {
        self.resumable()
            .map_or(0, |resumable| resumable.outbox.len())
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

    /// Makes the client resumable. With `notice`, sends it the notice with its token.
    pub(in crate::server) fn make_resumable(
        &mut self,
        env: &mut Env,
        token: &ResumeToken,
        accept: Accept,
        notice: bool,
    ) {
        let certificate = self.certificate();
        let backlog = self.backlog.get_or_insert_default();
        backlog.resumable = Some(Box::new(Resumable {
            outbox: Outbox::default(),
            secret: token.secret,
            earlier: None,
            unpinged: 0,
            pinged: (0, env.now),
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
        }));
        if notice {
            self.send_notice(env, token, 0);
        }
    }

    /// The certificate that the client has presented on its connection.
    pub(super) fn certificate(&self) -> Option<Box<PeerCertificate>> {
        self.stream.tls()?.certificate().map(Box::new)
    }

    /// Sends the notice: the token and the number of messages that the server has received. It is not counted as a
    /// message.
    pub(super) fn send_notice(&mut self, env: &mut Env, token: &ResumeToken, received: u64) {
        let notice = token.notice(received);
        self.transmit(env, |_, _, out| {
            let message = Message::Text(&notice);
            SentHeader::new(message.opcode(), notice.len()).append_with(notice.as_bytes(), out);
        });
    }

    /// Why the connection was cut. `None` if it was not cut, or if the client may not come back. Called after the
    /// connection has ended.
    pub(in crate::server) fn cut(&self) -> Option<CloseReason> {
        let Connection::WebSocket(socket) = &self.connection else {
            return None;
        };
        if self.resumable()?.is_final || self.has_ended() {
            return None;
        }
        let reason = socket.close_reason()?;
        let is_cut = if socket.is_client() {
            is_cut_by_server(reason, socket.peer_close())
                && (reason.cause != Cause::Service || self.may_close_again())
        } else {
            is_cut(reason, socket.peer_close())
        };
        is_cut.then(|| reason.clone())
    }

    /// Detaches a client whose connection was cut. `pending` says whether the service owes it something.
    pub(in crate::server) fn detach(
        &mut self,
        env: &mut Env,
        poll: &mio::Registry,
        cut: CloseReason,
        pending: bool,
    ) {
        self.hang_up(env, poll);
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
        if cut.cause == Cause::Service {
            self.count_unanswered();
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
            env.push_news(self.id, News::Drained);
        }
    }

    /// Ends a detached client that was away for too long, or sets the time of the next check. `pending` says whether
    /// the service owes it something.
    pub(in crate::server) fn check_detached(&mut self, env: &mut Env, pending: bool) {
        let limits = env.config.resume.unwrap_or_default();
        if self.upstream().is_some() {
            return self.rearm(env);
        }
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

    /// Closes a client that is not connected. If the service closes it, the client gets the CLOSE when it comes back.
    /// For any other reason, or with a final code, the client ends now.
    pub(super) fn close_cut(&mut self, env: &mut Env, reason: CloseReason) {
        let is_over = match &self.connection {
            Connection::Detached(_) => true,
            Connection::WebSocket(socket) => socket.state() == State::Closed,
            Connection::Http(_) | Connection::Outgoing(_) => false,
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
}
