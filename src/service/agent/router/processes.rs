//! The agent processes: one for each kind of client, their start and their end. A process may send messages for a session before
//! its response to the request that creates the session; these are kept here.

use std::collections::VecDeque;

use super::exchange::Exchange;
use super::sessions::Sessions;
use super::{
    AbandonedRequest, AgentRequest, BatchSender, ClientRequest, RequestClass, Router, RouterOutput,
};
use crate::record::record;
use crate::service::agent::initialize::Initialize;
use crate::service::id_map::IdMap;
use crate::service::jsonrpc::{Envelope, code};
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
    first: Option<Principal>,
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
    /// Stop it, and ignore its further output. Call [`Router::handle_stopped`] when it has exited.
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

    fn count(&self) -> usize {
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
    fn find(&self, is_it: impl Fn(&Process) -> bool) -> Option<usize> {
        let mut indices = self.indices();
        indices.find(|&index| self.get(index).is_some_and(&is_it))
    }

    fn next_run(&mut self) -> u32 {
        self.last_run += 1;
        self.last_run
    }

    /// Adds a process, which the owner starts.
    fn add(&mut self) -> usize {
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
    fn stop(&mut self, index: usize) {
        self.slots[index] = None;
        self.stopping += 1;
        self.changes.push(ProcessChange::Stop(index));
    }

    /// Has the owner drop the lines that wait until a process has accepted `initialize`.
    pub(super) fn discard(&mut self, process: usize) {
        self.changes.push(ProcessChange::Discard(process));
    }
}

impl Exchange {
    /// The process for clients of a kind: the existing one, one that no client has used yet, or a new one. An error says why there
    /// are too many. A client that only watches can use any process of its protocol version, but starts none.
    pub(super) fn process_for(
        &mut self,
        sessions: &Sessions,
        kind: &str,
        principal: &Principal,
        has_watch_scope: bool,
    ) -> Result<usize, &'static str> {
        let processes = &self.processes;
        // A kind begins with its version.
        let version = kind.split_inclusive(',').next().unwrap_or(kind);
        let is_alike = |process: &Process| {
            let kind = process.kind.as_deref();
            kind.is_some_and(|kind| kind.starts_with(version))
        };
        let theirs = processes.find(|process| process.kind.as_deref() == Some(kind));
        let alike = || processes.find(is_alike).filter(|_| has_watch_scope);
        let unused = || processes.find(|process| process.kind.is_none());
        let found = theirs.or_else(alike).or_else(unused);
        let share = self.clients.share_of(self.limits.processes);
        let too_many = "the limit of agent processes is reached; connect with the protocol version and capabilities of another client";
        let index = match found {
            Some(index) => index,
            None if has_watch_scope => return Err(too_many),
            None if share < self.limits.processes
                && self.kinds_of(sessions, principal) >= share =>
            {
                return Err(
                    "your clients use their share of the agent processes; connect with the protocol version and capabilities of another client",
                );
            }
            None => self.add_process(sessions).ok_or(too_many)?,
        };
        if let Some(process) = self.processes.get_mut(index)
            && process.kind.is_none()
        {
            process.kind = Some(kind.into());
            process.first = Some(principal.clone());
        }
        Ok(index)
    }

    /// The number of kinds that a principal has brought and still uses.
    fn kinds_of(&self, sessions: &Sessions, principal: &Principal) -> usize {
        let uses = |index: usize| {
            let mut clients = self.clients.iter();
            let mut bound = sessions.values();
            clients.any(|(_, state)| state.process == Some(index) && state.principal == *principal)
                || bound.any(|one| one.needs(index) && one.principal == *principal)
        };
        let has_brought = |index: &usize| {
            let process = self.processes.get(*index);
            process.is_some_and(|process| process.first.as_ref() == Some(principal))
        };
        let indices = self.processes.indices();
        indices
            .filter(has_brought)
            .filter(|index| uses(*index))
            .count()
    }

    /// Adds a process. At the limit, it replaces one that nobody uses. The processes that are being stopped
    /// have a limit of their own, which is as high.
    fn add_process(&mut self, sessions: &Sessions) -> Option<usize> {
        if self.processes.stopping >= self.limits.processes {
            return None;
        }
        if self.processes.count() >= self.limits.processes {
            let unused = self
                .processes
                .indices()
                .find(|&index| !self.is_used(sessions, index))?;
            self.processes.stop(unused);
            self.clients.forget_elicitations(unused);
        }
        Some(self.processes.add())
    }

    /// Whether a client, a session or a pending request needs a process.
    pub(super) fn is_used(&self, sessions: &Sessions, process: usize) -> bool {
        let mut bound = sessions.values();
        self.clients.count_of_process(process) > 0
            || bound.any(|session| session.needs(process))
            || self.requests.has_any_of(process)
    }

    /// Stops the processes that nobody uses. The last process stays, so that the next client does not wait for a start.
    pub(super) fn stop_unused(&mut self, sessions: &Sessions) {
        for index in self.processes.indices() {
            if self.processes.count() < 2 {
                return;
            }
            let is_idle = |process: &Process| process.abandoned.is_empty();
            if self.processes.get(index).is_some_and(is_idle) && !self.is_used(sessions, index) {
                self.processes.stop(index);
                self.clients.forget_elicitations(index);
            }
        }
    }
}

impl Router {
    /// Takes what has to be done with the processes, in this order.
    pub(crate) fn take_process_changes(&mut self) -> Vec<ProcessChange> {
        std::mem::take(&mut self.exchange.processes.changes)
    }

    /// Handles the exit of a process that the router wanted stopped.
    pub(crate) fn handle_stopped(&mut self) {
        self.exchange.processes.stopping = self.exchange.processes.stopping.saturating_sub(1);
    }

    /// Whether a process has sent nothing since a request to it timed out.
    pub(crate) fn is_silent(&self, process: usize) -> bool {
        let state = self.exchange.processes.get(process);
        state.is_some_and(|state| state.is_silent)
    }

    /// The figures of a process.
    pub(crate) fn process_figures(&self, process: usize) -> ProcessFigures {
        let sessions = self.sessions.values();
        ProcessFigures {
            version: self.exchange.processes.version(process),
            clients: self.exchange.clients.count_of_process(process),
            sessions: sessions
                .filter(|session| session.process() == process)
                .count(),
        }
    }

    /// Whether a client's messages may go to a process.
    pub(crate) fn uses(&self, client: ClientId, process: usize) -> bool {
        self.sessions.access(&self.exchange).uses(client, process)
    }

    /// Gives up a process that exits too often or cannot be started, and its sessions. Returns its clients, which must be
    /// closed, or `None` if it is the only process.
    pub(crate) fn give_up(
        &mut self,
        process: usize,
        output: &mut impl RouterOutput,
    ) -> Option<Vec<ClientId>> {
        if self.exchange.processes.count() < 2 {
            return None;
        }
        // Requests may have come since its exit, also from clients of other processes.
        self.handle_agent_exited(process, r#"{"code":null,"signal":null}"#, output);
        for session in self.sessions.that_need(process) {
            self.sessions.end(&mut self.exchange, &session, None);
        }
        self.exchange.processes.slots[process] = None;
        Some(self.exchange.clients.leave_process(process))
    }

    /// Fails all pending requests of a process with its exit status `data`, and marks its sessions as lost.
    pub(crate) fn handle_agent_exited(
        &mut self,
        process: usize,
        data: &str,
        output: &mut impl RouterOutput,
    ) {
        let failed = |id: &str| {
            let error = format!(
                r#"{{"code":{},"message":"Agent exited","data":{data}}}"#,
                code::EXITED
            );
            [r#"{"jsonrpc":"2.0","id":"#, id, r#","error":"#, &error, "}"].concat()
        };
        output.batches().forget(BatchSender::Process(process));
        let number = self.exchange.processes.next_run();
        let Some(state) = self.exchange.processes.get_mut(process) else {
            return;
        };
        state.number = number;
        state.abandoned.clear();
        state.orphaned.clear();
        state.is_silent = false;
        if let Some(pending) = state.initialize.pending() {
            pending.ids.clear();
        }
        for (client, id) in state.initialize.take_wanted() {
            output.to_client(client, &[&failed(&id)]);
        }
        for id in self.exchange.requests.of_clients.ids_of_process(process) {
            self.fail_client_request(id, failed, output);
        }
        let is_its = |request: &AgentRequest| request.process == process;
        for id in self.exchange.requests.of_agent.ids_of(is_its) {
            self.exchange
                .requests
                .forget_of_agent(&mut self.exchange.clients, id);
        }
        self.exchange.clients.forget_elicitations(process);
        // The agent that has sent them needs no answer.
        if let Some(state) = self.exchange.processes.get_mut(process) {
            let dropped = state.early.take_all().len();
            self.exchange.counters.dropped += dropped as u64;
        }
        // Claims fail first, so that only clients that keep their sessions are told.
        self.sessions.mark_lost(&mut self.exchange, process, output);
        self.sessions.end_turns(process, data, output);
    }

    /// Answers a request with an error and removes it. `failed` writes the error for an id.
    pub(super) fn fail_client_request(
        &mut self,
        upstream_id: u64,
        failed: impl Fn(&str) -> String,
        output: &mut impl RouterOutput,
    ) -> Option<ClientRequest> {
        let request = self
            .exchange
            .requests
            .forget(&mut self.exchange.clients, upstream_id)?;
        if let (RequestClass::Prompt, Some(session), Ok(envelope)) = (
            request.call.class,
            &request.call.session,
            Envelope::parse(&failed("0")),
        ) {
            self.sessions.show_turn_complete(session, &envelope, output);
        }
        request.answer(failed, output);
        Some(request)
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
