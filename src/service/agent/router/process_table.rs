//! The agent processes: one for each kind of client, their start and their end. A process may send messages for a session before
//! its response to the request that creates the session; these are kept here.

use std::collections::VecDeque;

use super::requests::AbandonedRequest;
use crate::record::record;
use crate::service::agent::initialize::Initialize;
use crate::service::id_map::IdMap;
use crate::{ClientId, Principal};

/// A process and one of its runs: a restart begins another one. Each run knows only its own sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The index of the process.
    pub(super) process: usize,
    /// The number of the run. No other run has it, of any process.
    pub(super) number: u32,
}

record!(Run { process, number });

/// The router's state for an agent process.
#[derive(Debug)]
pub(super) struct Process {
    /// The number of its run.
    number: u32,
    /// The kind of its clients. `None` until a client has sent `initialize`.
    pub(super) kind: Option<Box<str>>,
    /// Whose client was the first of this kind.
    pub(super) first: Option<Principal>,
    /// The protocol version that the agent has chosen.
    pub(super) version: u64,
    pub(super) initialize: Initialize,
    /// Requests that have timed out, or whose clients have disconnected. The sessions that they open are kept for the
    /// clients' principals.
    pub(super) abandoned: IdMap<u64, AbandonedRequest>,
    /// The clients of other such requests, if they name no session.
    pub(super) orphaned: IdMap<u64, ClientId>,
    /// Messages of the agent for sessions that have no owner yet.
    pub(super) early: EarlyMessages,
    /// Whether the agent has sent nothing since a request timed out.
    pub(super) is_silent: bool,
}

record!(Process {
    number,
    kind,
    first,
    version,
    initialize,
    abandoned,
    orphaned,
    early,
    is_silent,
});

impl Process {
    pub(super) fn new(number: u32) -> Self {
        Self {
            number,
            kind: None,
            first: None,
            version: 1,
            initialize: Initialize::Never,
            abandoned: IdMap::default(),
            orphaned: IdMap::default(),
            early: EarlyMessages::default(),
            is_silent: false,
        }
    }
}

/// What the owner of the processes must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessChange {
    /// Start the process with this index.
    Start(usize),
    /// Stop it, and ignore its further output. Call [`Router::handle_stopped`](super::Router::handle_stopped) when it has exited.
    Stop(usize),
    /// Drop the lines that wait until it has accepted `initialize`.
    Discard(usize),
}

/// The figures of a process, for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessFigures {
    pub(crate) version: u64,
    pub(crate) clients: usize,
    pub(crate) sessions: usize,
}

/// The agent processes. The first one may serve any kind of client, until a client has sent `initialize`.
#[derive(Debug)]
pub(super) struct Processes {
    /// By index. `None` is free.
    slots: Vec<Option<Process>>,
    /// What the owner of the processes has not been told yet.
    changes: Vec<ProcessChange>,
    /// The number of stopped processes that have not exited.
    stopping: usize,
    /// The number of the last run of a process.
    last_run: u32,
}

record!(Processes {
    slots,
    // The owner has taken them.
    changes = Vec::new(),
    stopping,
    last_run,
});

impl Default for Processes {
    fn default() -> Self {
        Self {
            slots: vec![Some(Process::new(0))],
            changes: Vec::new(),
            stopping: 0,
            last_run: 0,
        }
    }
}

impl Processes {
    pub(super) fn get(&self, process: usize) -> Option<&Process> {
        self.slots.get(process)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, process: usize) -> Option<&mut Process> {
        self.slots.get_mut(process)?.as_mut()
    }

    /// The indices of all processes, and of free places between them.
    pub(super) fn indices(&self) -> std::ops::Range<usize> {
        0..self.slots.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Process> {
        self.slots.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        self.slots.iter_mut().flatten()
    }

    pub(super) fn count(&self) -> usize {
        self.iter().count()
    }

    /// The protocol version that a process speaks.
    pub(super) fn version(&self, process: usize) -> u64 {
        self.get(process).map_or(1, |process| process.version)
    }

    /// The current run of a process.
    pub(super) fn run(&self, process: usize) -> Run {
        let number = self.get(process).map_or(u32::MAX, |state| state.number);
        Run { process, number }
    }

    /// Whether a process still has the sessions of this run.
    pub(super) fn is_current(&self, run: Run) -> bool {
        self.run(run.process) == run
    }

    /// The process whose current run has this number.
    pub(super) fn of_run(&self, number: u32) -> Option<usize> {
        self.find(|process| process.number == number)
    }

    /// The first process for which `is_it` is true.
    pub(super) fn find(&self, is_it: impl Fn(&Process) -> bool) -> Option<usize> {
        let mut indices = self.indices();
        indices.find(|&index| self.get(index).is_some_and(&is_it))
    }

    fn next_run(&mut self) -> u32 {
        self.last_run += 1;
        self.last_run
    }

    /// Adds a process, which the owner starts.
    pub(super) fn add(&mut self) -> usize {
        let process = Process::new(self.next_run());
        let free = self.slots.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[index] = Some(process);
        self.changes.push(ProcessChange::Start(index));
        index
    }

    /// Removes a process, which the owner stops.
    pub(super) fn stop(&mut self, index: usize) {
        self.slots[index] = None;
        self.stopping += 1;
        self.changes.push(ProcessChange::Stop(index));
    }

    /// Removes a process that has exited for good.
    pub(super) fn remove(&mut self, index: usize) {
        self.slots[index] = None;
    }

    /// Begins the next run of a process that has exited: gives it a new number, and clears its abandoned and orphaned requests and
    /// the ids of its `initialize`.
    pub(super) fn begin_run(&mut self, process: usize) -> Option<&mut Process> {
        let number = self.next_run();
        let state = self.get_mut(process)?;
        state.number = number;
        state.abandoned.clear();
        state.orphaned.clear();
        state.is_silent = false;
        if let Some(pending) = state.initialize.pending() {
            pending.ids.clear();
        }
        Some(state)
    }

    /// Takes the changes that the owner must apply, in order.
    pub(super) fn take_changes(&mut self) -> Vec<ProcessChange> {
        std::mem::take(&mut self.changes)
    }

    /// The number of stopped processes that have not exited.
    pub(super) fn stopping(&self) -> usize {
        self.stopping
    }

    /// Handles the exit of a stopped process.
    pub(super) fn handle_stopped(&mut self) {
        self.stopping = self.stopping.saturating_sub(1);
    }

    /// Has the owner drop the lines that wait until a process has accepted `initialize`.
    pub(super) fn discard(&mut self, process: usize) {
        self.changes.push(ProcessChange::Discard(process));
    }
}

/// The maximum number of sessions, and of messages and bytes for each session.
const MAX_SESSIONS: usize = 16;
const MAX_MESSAGES: usize = 64;
const MAX_BYTES: usize = 256 << 10;

/// The messages that wait, by session.
#[derive(Debug, Default)]
pub(super) struct EarlyMessages {
    /// Oldest session first.
    sessions: VecDeque<WaitingSession>,
}

#[derive(Debug)]
struct WaitingSession {
    name: Box<str>,
    messages: VecDeque<Box<str>>,
    bytes: usize,
}

record!(EarlyMessages { sessions });
record!(WaitingSession {
    name,
    messages,
    bytes,
});

impl EarlyMessages {
    /// Keeps a message. Returns the older messages that were dropped to make room.
    pub(super) fn hold(&mut self, session: &str, text: &str) -> Vec<Box<str>> {
        let mut dropped = Vec::new();
        let known = self.sessions.iter().position(|held| &*held.name == session);
        let at = known.unwrap_or_else(|| {
            if self.sessions.len() == MAX_SESSIONS {
                let oldest = self.sessions.pop_front();
                dropped.extend(oldest.into_iter().flat_map(|oldest| oldest.messages));
            }
            self.sessions.push_back(WaitingSession {
                name: session.into(),
                messages: VecDeque::new(),
                bytes: 0,
            });
            self.sessions.len() - 1
        });
        let held = &mut self.sessions[at];
        held.bytes += text.len();
        held.messages.push_back(text.into());
        while held.bytes > MAX_BYTES || held.messages.len() > MAX_MESSAGES {
            let Some(oldest) = held.messages.pop_front() else {
                break;
            };
            held.bytes -= oldest.len();
            dropped.push(oldest);
        }
        if !dropped.is_empty() {
            log::warn!(
                "dropped {} messages of the agent: too many arrived before the responses that create their sessions",
                dropped.len()
            );
        }
        dropped
    }

    /// Takes the messages of a session, oldest first.
    pub(super) fn take(&mut self, session: &str) -> VecDeque<Box<str>> {
        let known = self.sessions.iter().position(|held| &*held.name == session);
        let taken = known.and_then(|at| self.sessions.remove(at));
        taken.map(|held| held.messages).unwrap_or_default()
    }

    /// Takes all messages.
    pub(super) fn take_all(&mut self) -> Vec<Box<str>> {
        let sessions = std::mem::take(&mut self.sessions).into_iter();
        sessions.flat_map(|held| held.messages).collect()
    }

    /// Takes the first message that `is_it` matches.
    pub(super) fn remove(&mut self, is_it: impl Fn(&str) -> bool) -> Option<Box<str>> {
        self.sessions.iter_mut().find_map(|held| {
            let at = held.messages.iter().position(|text| is_it(text))?;
            let removed = held.messages.remove(at)?;
            held.bytes -= removed.len();
            Some(removed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_messages_are_limited_and_the_oldest_are_dropped_first() {
        let mut early = EarlyMessages::default();
        let dropped = (0..100).flat_map(|at| early.hold("a", &at.to_string()));
        let want: Vec<Box<str>> = (0..36).map(|at| at.to_string().into()).collect();
        assert_eq!(dropped.collect::<Vec<_>>(), want);
        let held = early.take("a");
        assert_eq!(
            (held.len(), held.front().map(|text| &**text)),
            (64, Some("36"))
        );
        assert!(early.take("a").is_empty());

        assert_eq!(early.hold("b", &"x".repeat(MAX_BYTES)).len(), 0);
        assert_eq!(early.hold("b", "y").len(), 1, "bytes are limited too");
        assert_eq!(early.hold("b", &"x".repeat(MAX_BYTES + 1)).len(), 2);
        for at in 0..MAX_SESSIONS {
            early.hold(&format!("s{at}"), "z");
        }
        assert_eq!(early.sessions.len(), MAX_SESSIONS);
        assert!(early.take("b").is_empty() && early.take("s0").len() == 1);
        assert_eq!(early.take_all().len(), MAX_SESSIONS - 1);
    }
}
