//! The state of a resumable connection that this side has opened: how to come back after a cut.

use std::sync::Arc;
use std::time::Duration;

use super::{Client, Connection};
use crate::protocol::{Accept, Cause, CloseCode, CloseReason, Time};
use crate::server::connector::{Connect, Failures, Outgoing};
use crate::server::env::Env;
use crate::server::id::ClientId;
use crate::server::resume_token::ResumeToken;

/// A connection counts as stable if it lasts this long or carries a message.
const STABLE: Duration = Duration::from_secs(10);

/// How often to come back for a CLOSE that the server has not answered.
const MAX_UNANSWERED: u8 = 2;

/// The last connection of a client that was cut.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::server) struct LastConnection {
    /// How long it was open.
    pub(in crate::server) lasted: Duration,
    /// Whether it was stable: it lasted, or messages arrived in either direction.
    pub(in crate::server) was_stable: bool,
}

/// The additional state of a resumable connection that this side has opened.
#[derive(Debug)]
pub(in crate::server) struct Upstream {
    pub(in crate::server) connect: Arc<Connect>,
    /// The latest token of the server.
    pub(in crate::server) token: Box<str>,
    /// The connection that makes the attempts to come back.
    pub(in crate::server) joiner: Option<ClientId>,
    /// The failed attempts since the last stable connection.
    pub(in crate::server) failures: Failures,
    /// When the last connection was opened.
    opened: Time,
    /// The number of times that this side's CLOSE was not answered.
    unanswered: u8,
    /// The number of messages received, and of those that the server has confirmed, when it was opened.
    mark: (u64, u64),
}

/// Whether an end for this reason is a cut, after which this side comes back. `peer_close` is the code of the server's
/// CLOSE.
pub(super) fn is_cut_by_server(reason: &CloseReason, peer_close: Option<CloseCode>) -> bool {
    match reason.cause {
        Cause::Eof | Cause::ReadError | Cause::WriteError | Cause::PingTimeout => true,
        // The message of a frame that breaks the protocol was not counted as received, so the server sends it again. It
        // would also send a message again that is too long or invalid.
        Cause::ProtocolError => reason.code == CloseCode::PROTOCOL,
        // Service restart, try again later, bad gateway (IANA's registry of close codes).
        Cause::PeerClose => matches!(reason.code.0, 1012..=1014),
        // Without an answer to the CLOSE, the server may not have received the last messages.
        Cause::Service => peer_close.is_none(),
        Cause::IdleTimeout
        | Cause::SlowConsumer
        | Cause::Memory
        | Cause::RateLimit
        | Cause::NotResumed
        | Cause::Revoked
        | Cause::Operator
        | Cause::Shutdown => false,
    }
}

impl Client {
    pub(in crate::server) fn upstream(&self) -> Option<&Upstream> {
        self.resumable()?.upstream.as_deref()
    }

    pub(in crate::server) fn upstream_mut(&mut self) -> Option<&mut Upstream> {
        self.resumable_mut()?.upstream.as_deref_mut()
    }

    /// Makes a connection that this side has opened resumable, with the token of the server.
    pub(in crate::server) fn make_upstream(
        &mut self,
        env: &mut Env,
        connect: Arc<Connect>,
        token: &str,
    ) {
        // The secret is never sent, so no peer can resume this client.
        let unused = ResumeToken::generate(self.id, None);
        self.make_resumable(env, &unused, Accept::default(), false);
        let upstream = Upstream {
            connect,
            token: token.into(),
            joiner: None,
            failures: Failures::default(),
            opened: env.now,
            unanswered: 0,
            mark: (0, 0),
        };
        if let Some(resumable) = self.resumable_mut() {
            resumable.certificate = None;
            resumable.upstream = Some(Box::new(upstream));
        }
    }

    /// The server has accepted a new connection, and has sent a new token.
    pub(in crate::server) fn begin_upstream(&mut self, now: Time, token: &str) {
        let mark = self.progress_mark();
        if let Some(upstream) = self.upstream_mut() {
            upstream.token = token.into();
            upstream.opened = now;
            upstream.mark = mark;
            upstream.joiner = None;
        }
    }

    /// The last connection of a client that was cut.
    pub(in crate::server) fn last_connection(&self, now: Time) -> LastConnection {
        let mark = self.progress_mark();
        let Some(upstream) = self.upstream() else {
            return LastConnection::default();
        };
        let lasted = now.since(upstream.opened);
        let was_used = upstream.mark != mark || lasted >= STABLE;
        LastConnection {
            lasted,
            was_stable: was_used && !self.is_close_waiting(),
        }
    }

    /// Whether to come back although this side has sent CLOSE: the server has not answered, and may lack messages.
    pub(super) fn may_close_again(&self) -> bool {
        let lacks = self
            .resumable()
            .is_some_and(|one| one.outbox.unconfirmed() > 0);
        let unanswered = self.upstream().map_or(0, |upstream| upstream.unanswered);
        lacks && unanswered < MAX_UNANSWERED
    }

    /// Counts a CLOSE of this side that the server has not answered.
    pub(super) fn count_unanswered(&mut self) {
        if let Some(upstream) = self.upstream_mut() {
            upstream.unanswered += 1;
        }
    }

    fn progress_mark(&self) -> (u64, u64) {
        let confirmed = self.resumable().map_or(0, |one| one.outbox.confirmed());
        (self.traffic.messages_in, confirmed)
    }

    /// Takes the state of a connection that could not be opened.
    pub(in crate::server) fn take_outgoing(&mut self) -> Option<Box<Outgoing>> {
        if !self.is_outgoing() {
            return None;
        }
        let closed = crate::protocol::http::HttpConnection::closing(self.since());
        match std::mem::replace(&mut self.connection, Connection::Http(closed)) {
            Connection::Outgoing(outgoing) => Some(outgoing),
            _ => None,
        }
    }
}
