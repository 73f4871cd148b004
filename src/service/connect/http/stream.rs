//! The GET stream, on which the server speaks first. Without I/O.

use std::time::Duration;

use super::conversation::{RETRY, delay};
use crate::Time;

/// More failures do not delay the stream any longer.
const MAX_FAILURES: u32 = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The server has none, or there is no session yet.
    #[default]
    Off,
    /// It is opened at this time.
    Waiting(Time),
    /// The HTTP request of this number carries it.
    Open(u64),
}

/// The GET stream: when to open it, and after which event.
#[derive(Debug, Default)]
pub(super) struct GetStream {
    state: State,
    last_id: Option<String>,
    /// How long the server asks to wait.
    retry: Option<Duration>,
    /// How often it has ended at once.
    failures: u32,
}

impl GetStream {
    pub(super) fn is_off(&self) -> bool {
        self.state == State::Off
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// When to open it.
    pub(super) fn due(&self) -> Option<Time> {
        match self.state {
            State::Waiting(until) => Some(until),
            State::Off | State::Open(_) => None,
        }
    }

    /// The last event, after which it continues.
    pub(super) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// Opens it at this time, unless it is in use.
    pub(super) fn begin(&mut self, now: Time) {
        if self.is_off() {
            self.state = State::Waiting(now);
        }
    }

    /// The HTTP request of this number carries it.
    pub(super) fn open(&mut self, number: u64) {
        self.state = State::Open(number);
    }

    pub(super) fn turn_off(&mut self) {
        self.state = State::Off;
    }

    /// The server has forgotten the session. Returns the number of the HTTP request.
    pub(super) fn lose(&mut self) -> Option<u64> {
        self.last_id = None;
        match std::mem::take(&mut self.state) {
            State::Open(number) => Some(number),
            State::Off | State::Waiting(_) => None,
        }
    }

    /// The server has forgotten the events. Returns whether there were any.
    pub(super) fn lose_events(&mut self) -> bool {
        self.last_id.take().is_some()
    }

    /// Notes what the events say about the stream.
    pub(super) fn note(&mut self, last_id: Option<String>, retry: Option<Duration>) {
        if last_id.is_some() && self.last_id != last_id {
            self.last_id = last_id;
            self.failures = 0;
        }
        self.retry = retry.or(self.retry);
    }

    /// It has lasted, so earlier failures no longer count.
    pub(super) fn forget_failures(&mut self) {
        self.failures = 0;
    }

    /// It has ended, and comes back later.
    pub(super) fn handle_end(&mut self, now: Time) {
        let wait = self.retry.unwrap_or(RETRY).max(delay(self.failures));
        self.failures = (self.failures + 1).min(MAX_FAILURES);
        self.state = State::Waiting(now + wait);
    }
}
