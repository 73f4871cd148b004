//! Which process serves a client, and what follows from the end of a process.

use super::Router;
use super::batches::BatchSender;
use super::exchange::Exchange;
use super::output::RouterOutput;
use super::processes::{Process, ProcessChange, ProcessFigures};
use super::requests::{AgentRequest, ClientRequest, RequestClass};
use super::sessions::Sessions;
use crate::service::jsonrpc::{Envelope, code};
use crate::{ClientId, Principal};

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
        if self.processes.stopping() >= self.limits.processes {
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
        self.exchange.processes.take_changes()
    }

    /// Handles the exit of a process that the router wanted stopped.
    pub(crate) fn handle_stopped(&mut self) {
        self.exchange.processes.handle_stopped();
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
        self.exchange.processes.remove(process);
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
        let Some(state) = self.exchange.processes.begin_run(process) else {
            return;
        };
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
