//! The agent processes of the router: their changes and their figures, and what follows from the end of a process or of a client's
//! request.

use super::Router;
use super::batches::BatchSender;
use super::output::RouterOutput;
use super::process_table::{Process, ProcessChange, ProcessFigures};
use super::requests::{AgentRequest, ClientRequest, RequestClass};
use crate::service::jsonrpc::{Envelope, code};
use crate::{ClientId, Time};

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

    /// Whether the clients of a process that has exited may get what it wrote to standard error.
    pub(crate) fn may_quote(&self, process: usize) -> bool {
        let state = self.exchange.processes.get(process);
        state.is_some_and(Process::may_quote)
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
        for client in self.exchange.clients.of_process(process) {
            state.note_client(client);
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
            let dropped = state.creation.forget_early();
            self.exchange.counters.dropped += dropped as u64;
        }
        self.exchange
            .refuse_waiting(|one, _| one == process, failed, output);
        // Claims fail first, so that only clients that keep their sessions are told.
        self.sessions.mark_lost(&mut self.exchange, process, output);
        self.sessions.end_turns(process, data, output);
    }

    /// Removes a request that is answered, or that gets no response any more.
    pub(super) fn finish_client_request(
        &mut self,
        now: Time,
        upstream_id: u64,
    ) -> Option<ClientRequest> {
        let request = self
            .exchange
            .requests
            .forget(&mut self.exchange.clients, upstream_id)?;
        self.exchange
            .counters
            .answers
            .observe(now.since(request.call.since));
        Some(request)
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
