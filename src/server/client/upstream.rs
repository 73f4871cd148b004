//! The state of a resumable connection that this side has opened: its token, and its attempts to come back.

use std::sync::Arc;
use std::time::Duration;

use crate::protocol::Time;
use crate::record::record;
use crate::server::id::ClientId;
use crate::server::outgoing::{Connect, Failures};

/// A connection counts as stable if it lasts this long or carries a message.
const STABLE: Duration = Duration::from_secs(10);

/// How often to come back for a CLOSE that the server has not answered.
const MAX_UNANSWERED: u16 = 2;

/// The last connection of a client that was cut.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastConnection {
    /// How long it was open.
    pub(crate) lasted: Duration,
    /// Whether it was stable: it lasted, or messages arrived in either direction.
    pub(crate) was_stable: bool,
}

/// The additional state of a resumable connection that this side has opened.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// The settings of its connections. `None` after an upgrade, until the service has given them again.
    pub(crate) connect: Option<Arc<Connect>>,
    /// The latest token of the server.
    pub(crate) token: Box<str>,
    /// The connection that tries to come back, if there is one.
    pub(crate) joiner: Option<ClientId>,
    /// The failed attempts since the last stable connection.
    pub(crate) failures: Failures,
    /// When the last connection was opened.
    opened: Time,
    /// The number of times that this side's CLOSE was not answered.
    unanswered: u16,
    /// The number of messages received, and of those that the server has confirmed, when it was opened.
    mark: (u64, u64),
}

record!(Upstream {
    // The service gives them again.
    connect = None,
    token,
    // An attempt to come back begins anew.
    joiner = None,
    failures = Failures::default(),
    opened,
    unanswered,
    mark,
});

impl Upstream {
    /// The first connection has just been opened, and the server has sent `token`.
    pub(super) fn new(connect: Arc<Connect>, token: &str, now: Time) -> Self {
        Self {
            connect: Some(connect),
            token: token.into(),
            joiner: None,
            failures: Failures::default(),
            opened: now,
            unanswered: 0,
            mark: (0, 0),
        }
    }

    /// Whether to come back although this side has sent CLOSE: the server may lack messages, and has not answered yet.
    pub(super) fn may_close_again(&self) -> bool {
        self.unanswered < MAX_UNANSWERED
    }

    /// The server has accepted a new connection, and has sent a new token. `mark` says how many messages were received and
    /// confirmed.
    pub(super) fn begin(&mut self, now: Time, token: &str, mark: (u64, u64)) {
        self.token = token.into();
        self.opened = now;
        self.mark = mark;
        self.joiner = None;
    }

    /// The last connection, which was cut. `mark` says how many messages were received and confirmed, and `is_closing` whether this
    /// side has closed the connection.
    pub(super) fn last_connection(
        &self,
        now: Time,
        mark: (u64, u64),
        is_closing: bool,
    ) -> LastConnection {
        let lasted = now.since(self.opened);
        let was_used = self.mark != mark || lasted >= STABLE;
        LastConnection {
            lasted,
            was_stable: was_used && !is_closing,
        }
    }

    /// Counts a CLOSE of this side that the server has not answered.
    pub(super) fn count_unanswered(&mut self) {
        self.unanswered += 1;
    }
}
