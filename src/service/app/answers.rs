//! Answers to a program's commands: errors and statuses. They wait, within limits, while the program does not read.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::event::Events;
use crate::{ClientId, Context, Time};

/// The most answers that wait for a program that does not read.
const MOST: usize = 256;
/// The most bytes of what is kept for them.
const MOST_BYTES: usize = 64 << 10;

/// The most errors that are reported without a valid command in between.
pub(super) const ERRORS: u32 = 100;
/// A valid command earns one more error report, at most once in this time.
const EARNING: Duration = Duration::from_millis(100);
/// After this many invalid lines in a row, the program's output is read slowly.
const RUBBISH: u32 = 1000;

/// An answer that waits.
#[derive(Debug)]
enum Answer {
    Error { message: String, line: u64 },
    Status { id: String },
}

impl Answer {
    fn size(&self) -> usize {
        match self {
            Self::Error { message, .. } => message.len(),
            Self::Status { id } => id.len(),
        }
    }
}

/// Answers to commands.
#[derive(Debug)]
pub(super) struct Answers {
    waiting: VecDeque<Answer>,
    /// Bytes that are kept for those that wait.
    bytes: usize,
    /// Clients whose output has drained.
    drained: BTreeSet<ClientId>,
    /// Answers that were left out and not reported yet, and the line of the last of them.
    left_out: u64,
    left_out_line: u64,
    /// Errors that may still be reported.
    errors: u32,
    /// When the last one was earned.
    earned: Option<Time>,
    /// Wrong lines in a row.
    wrong: u32,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            bytes: 0,
            drained: BTreeSet::new(),
            left_out: 0,
            left_out_line: 0,
            errors: ERRORS,
            earned: None,
            wrong: 0,
        }
    }
}

impl Answers {
    /// A command was carried out.
    pub(super) fn valid(&mut self, now: Time) {
        self.wrong = 0;
        let may_earn = |earned| now.since(earned) >= EARNING;
        if self.errors < ERRORS && self.earned.is_none_or(may_earn) {
            self.errors += 1;
            self.earned = Some(now);
        }
    }

    /// A command was wrong.
    pub(super) fn error(&mut self, mut message: String, line: u64) {
        self.wrong = self.wrong.saturating_add(1);
        if self.errors == 0 {
            return self.leave_out(line);
        }
        self.errors -= 1;
        if self.errors == 0 {
            message.push_str("; no more errors are reported until a command is valid");
        }
        self.push(Answer::Error { message, line }, line);
    }

    /// The status was asked for, with this id, which is JSON.
    pub(super) fn status(&mut self, id: String, line: u64) {
        self.push(Answer::Status { id }, line);
    }

    /// A client has nothing unread any more.
    pub(super) fn drained(&mut self, client: ClientId) {
        self.drained.insert(client);
    }

    /// A client is gone.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.drained.remove(&client);
    }

    /// Whether the last [`RUBBISH`] lines were all wrong.
    pub(super) fn is_rubbish(&self) -> bool {
        self.wrong >= RUBBISH
    }

    fn push(&mut self, answer: Answer, line: u64) {
        let size = answer.size();
        if self.waiting.len() >= MOST || self.bytes + size > MOST_BYTES {
            return self.leave_out(line);
        }
        self.bytes += size;
        self.waiting.push_back(answer);
    }

    fn leave_out(&mut self, line: u64) {
        self.left_out += 1;
        self.left_out_line = line;
    }

    /// Turns answers into events until `events` has `most` bytes.
    pub(super) fn tell(&mut self, ctx: &Context, events: &mut Events, most: usize) {
        while events.len() < most {
            if let Some(client) = self.drained.pop_first() {
                events.drain(client);
            } else if let Some(answer) = self.waiting.pop_front() {
                self.bytes -= answer.size();
                match answer {
                    Answer::Error { message, line } => events.error(&message, line, None),
                    Answer::Status { id } => events.status(&id, &ctx.status()),
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
