//! Limits the work of one turn of the loop, in total and for each client.
//!
//! A unit of work is about a microsecond. Only work that a few bytes can cause (calls, broadcasts, parsed messages) is
//! counted. Work in proportion to bytes (echoed messages) is not counted, because `turn_bytes` limits it. A client that
//! has used up its share waits in the run queue behind those that have not.

/// The maximum work for one client before other clients get their turn.
const CLIENT_SHARE: u32 = 200;

/// The maximum work of one turn before the loop polls for new events.
const TURN_SHARE: u32 = 10_000;

/// The maximum work for queued TLS handshakes in one turn. At least one makes progress.
pub(super) const HANDSHAKE_SHARE: u32 = 2_000;

/// The cost of answering a call, besides the length of the answer.
pub(super) const CALL: usize = 10;

/// The cost of a write to a socket.
pub(super) const WRITE: usize = 5;

/// Work done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    /// For the client that is being read.
    client: u32,
    /// In this turn of the loop.
    turn: u32,
    /// Whether the client's share is used up, or its messages may have to be held back for another reason.
    has_exceptions: bool,
}

impl Budget {
    /// Begins a turn of the loop.
    pub(super) fn begin_turn(&mut self) {
        *self = Self::default();
    }

    /// Begins the share of the next client.
    pub(super) fn begin_client(&mut self, may_hold: bool) {
        self.client = 0;
        self.has_exceptions = may_hold;
    }

    /// Records that messages of the current client may have to be held back.
    pub(super) fn add_exception(&mut self) {
        self.has_exceptions = true;
    }

    /// Whether an uncompressed message of the current client may have to be held back.
    #[inline(always)]
    pub(super) fn has_exceptions(self) -> bool {
        self.has_exceptions
    }

    /// Counts work.
    pub(super) fn spend(&mut self, units: usize) {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        self.client = self.client.saturating_add(units);
        self.turn = self.turn.saturating_add(units);
        self.has_exceptions |= self.is_client_spent();
    }

    /// Whether the client that is being read has used up its share.
    pub(super) fn is_client_spent(self) -> bool {
        self.client >= CLIENT_SHARE
    }

    /// The work of this turn.
    pub(super) fn turn_work(self) -> u32 {
        self.turn
    }

    /// Whether this turn has used up its share.
    pub(super) fn is_turn_spent(self) -> bool {
        self.turn >= TURN_SHARE
    }
}
