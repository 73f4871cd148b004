//! Limits the work of one turn of the loop, in total and for one client.
//!
//! A unit of work is about a microsecond. Work that a few bytes can cause (calls, broadcasts, parsed messages) is
//! counted here. Work in proportion to bytes (echoed messages) is not; `turn_bytes` bounds it. A client that has used
//! up its share waits in the queue of ready clients behind those that have not.

use super::Context;

/// The most work for one client before others have their turn.
const CLIENT_SHARE: u32 = 200;

/// The most work of one turn before new events are looked at.
const TURN_SHARE: u32 = 10_000;

/// A call that is answered, besides its answer's length.
pub(in crate::server) const CALL: u32 = 10;

/// A write to a socket.
pub(super) const WRITE: u32 = 5;

/// Work done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// For the client whose turn it is.
    client: u32,
    /// In this turn of the loop.
    turn: u32,
}

impl Context {
    /// Counts work that a service does for the client or the program whose input it handles. One unit is about a
    /// microsecond. When the share of a turn is used up, further input waits for the next turn.
    pub fn spend(&mut self, units: usize) {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        self.work.client = self.work.client.saturating_add(units);
        self.work.turn = self.work.turn.saturating_add(units);
        if self.is_share_spent() {
            self.registry.note_change();
        }
    }

    /// Whether this turn of the loop has used up its share of work. A service that handles a program's output then
    /// leaves the rest for the next turn.
    pub fn is_turn_spent(&self) -> bool {
        self.work.turn >= TURN_SHARE
    }

    /// Whether a client that has just become readable has to wait: this turn has done enough, or the one before left
    /// clients unread, which come first.
    pub(in crate::server) fn has_to_queue(&self) -> bool {
        self.is_behind || self.is_turn_spent()
    }

    /// Whether the client whose turn it is has had its share.
    pub(super) fn is_share_spent(&self) -> bool {
        self.work.client >= CLIENT_SHARE
    }

    /// Begins the next client's share.
    pub(super) fn begin_share(&mut self) {
        self.work.client = 0;
    }

    /// Begins a turn of the loop.
    pub(in crate::server) fn begin_loop_turn(&mut self) {
        self.work = Work::default();
        self.broadcasts = 0;
    }
}
