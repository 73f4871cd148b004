//! Replies to the program: errors, statuses and `drain` notices. They wait, within limits, while the program does not read.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::events::Events;
use crate::{ClientId, Context, Time};

/// The maximum number of replies that wait.
const MAX_REPLIES: usize = 256;
/// The maximum number of bytes that are kept for waiting replies.
const MAX_BYTES: usize = 64 << 10;

/// The maximum number of errors that are reported without a valid command in between.
pub(super) const MAX_ERRORS: u32 = 100;
/// A valid command allows one more error report, at most once in this interval.
const ERROR_INTERVAL: Duration = Duration::from_millis(100);
/// After this many invalid lines in a row, the program's output is read slowly.
const INVALID_RUN: u32 = 1000;

/// A reply that waits.
#[derive(Debug)]
enum Reply {
    Error { message: String, line: u64 },
    Status { id: String },
}

impl Reply {
    fn size(&self) -> usize {
        match self {
            Self::Error { message, .. } => message.len(),
            Self::Status { id } => id.len(),
        }
    }
}

/// The replies that wait.
#[derive(Debug)]
pub(super) struct ReplyQueue {
    waiting: VecDeque<Reply>,
    /// The bytes that are kept for waiting replies.
    bytes: usize,
    /// Clients whose output has drained and whose `drain` event waits.
    drained: BTreeSet<ClientId>,
    /// The number of replies that were left out and not reported yet, and the line of the last one.
    left_out: u64,
    left_out_line: u64,
    /// The number of errors that may still be reported.
    errors: u32,
    /// When a valid command last allowed one more.
    allowed_at: Option<Time>,
    /// The number of invalid lines in a row.
    invalid: u32,
}

impl Default for ReplyQueue {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            bytes: 0,
            drained: BTreeSet::new(),
            left_out: 0,
            left_out_line: 0,
            errors: MAX_ERRORS,
            allowed_at: None,
            invalid: 0,
        }
    }
}

impl ReplyQueue {
    /// Records a valid command.
    pub(super) fn record_valid(&mut self, now: Time) {
        self.invalid = 0;
        let is_due = |last| now.since(last) >= ERROR_INTERVAL;
        if self.errors < MAX_ERRORS && self.allowed_at.is_none_or(is_due) {
            self.errors += 1;
            self.allowed_at = Some(now);
        }
    }

    /// Queues the error of an invalid command.
    pub(super) fn push_error(&mut self, mut message: String, line: u64) {
        self.invalid = self.invalid.saturating_add(1);
        if self.errors == 0 {
            return self.leave_out(line);
        }
        self.errors -= 1;
        if self.errors == 0 {
            message.push_str("; no more errors are reported until a command is valid");
        }
        self.push(Reply::Error { message, line }, line);
    }

    /// Queues a status. `id` is JSON.
    pub(super) fn push_status(&mut self, id: String, line: u64) {
        self.push(Reply::Status { id }, line);
    }

    /// Queues a `drain` event.
    pub(super) fn push_drained(&mut self, client: ClientId) {
        self.drained.insert(client);
    }

    /// Removes a client that has disconnected.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.drained.remove(&client);
    }

    /// The clients with a waiting `drain` event.
    pub(super) fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.drained.iter().copied()
    }

    /// Whether the last [`INVALID_RUN`] lines were all invalid.
    pub(super) fn only_invalid(&self) -> bool {
        self.invalid >= INVALID_RUN
    }

    fn push(&mut self, reply: Reply, line: u64) {
        let size = reply.size();
        if self.waiting.len() >= MAX_REPLIES || self.bytes + size > MAX_BYTES {
            return self.leave_out(line);
        }
        self.bytes += size;
        self.waiting.push_back(reply);
    }

    fn leave_out(&mut self, line: u64) {
        self.left_out += 1;
        self.left_out_line = line;
    }

    /// Moves replies to `events` until these have `limit` bytes.
    pub(super) fn flush_to(&mut self, ctx: &Context, events: &mut Events, limit: usize) {
        while events.len() < limit {
            if let Some(client) = self.drained.pop_first() {
                events.drain(client);
            } else if let Some(reply) = self.waiting.pop_front() {
                self.bytes -= reply.size();
                match reply {
                    Reply::Error { message, line } => events.error(&message, line, None),
                    Reply::Status { id } => events.status(&id, &ctx.status()),
                }
            } else if self.left_out > 0 && self.errors > 0 {
                self.errors -= 1;
                let count = std::mem::take(&mut self.left_out);
                let message = format!("{count} errors and status answers were left out");
                events.error(&message, self.left_out_line, Some(count));
            } else {
                return;
            }
        }
    }
}
