//! The agent processes: one for each kind of client, their start and their end.

use super::early::Creation;
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
    /// The first two clients of this run.
    clients: Vec<ClientId>,
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
    /// The sessions that it is creating.
    pub(super) creation: Creation,
    /// Whether the agent has sent nothing since a request timed out.
    pub(super) is_silent: bool,
}

record!(Process {
    number,
    kind,
    clients,
    first,
    version,
    initialize,
    abandoned,
    orphaned,
    creation,
    is_silent,
});

impl Process {
    pub(super) fn new(number: u32) -> Self {
        Self {
            number,
            kind: None,
            clients: Vec::new(),
            first: None,
            version: 1,
            initialize: Initialize::Never,
            abandoned: IdMap::default(),
            orphaned: IdMap::default(),
            creation: Creation::default(),
            is_silent: false,
        }
    }
}

impl Process {
    /// Notes that a client uses the process.
    pub(super) fn note_client(&mut self, client: ClientId) {
        if self.clients.len() < 2 && !self.clients.contains(&client) {
            self.clients.push(client);
        }
    }

    /// Whether what it has written to standard error cannot quote one client to another: it had one client at most, or has not
    /// answered `initialize`, before which it gets nothing else.
    pub(super) fn may_quote(&self) -> bool {
        self.clients.len() < 2 || self.initialize.is_pending()
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
        state.clients.clear();
        if let Some(pending) = state.initialize.pending() {
            pending.ids.clear();
        }
        Some(state)
    }

    /// Notes that a client uses a process.
    pub(super) fn note_client(&mut self, process: usize, client: ClientId) {
        if let Some(state) = self.get_mut(process) {
            state.note_client(client);
        }
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
