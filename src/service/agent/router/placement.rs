//! Which process serves a client, and which processes are still in use.

use super::Router;
use super::process_table::Process;
use crate::Principal;

impl Router {
    /// The process for clients of a kind: the existing one, one that no client has used yet, or a new one. An error says why there
    /// are too many. A client that only watches can use any process of its protocol version, but starts none.
    pub(super) fn process_for(
        &mut self,
        kind: &str,
        principal: &Principal,
        has_watch_scope: bool,
    ) -> Result<usize, &'static str> {
        let processes = &self.exchange.processes;
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
        let share = self
            .exchange
            .clients
            .share_of(self.exchange.settings.processes);
        let too_many = "the limit of agent processes is reached; connect with the protocol version and capabilities of another client";
        let index = match found {
            Some(index) => index,
            None if has_watch_scope => return Err(too_many),
            None if share < self.exchange.settings.processes
                && self.kinds_of(principal) >= share =>
            {
                return Err(
                    "your clients use their share of the agent processes; connect with the protocol version and capabilities of another client",
                );
            }
            None => self.add_process().ok_or(too_many)?,
        };
        if let Some(process) = self.exchange.processes.get_mut(index)
            && process.kind.is_none()
        {
            process.kind = Some(kind.into());
            process.first = Some(principal.clone());
        }
        Ok(index)
    }

    /// The number of kinds that a principal has brought and still uses.
    fn kinds_of(&self, principal: &Principal) -> usize {
        let uses = |index: usize| {
            let mut clients = self.exchange.clients.iter();
            let mut bound = self.sessions.values();
            clients.any(|(_, state)| state.process == Some(index) && state.principal == *principal)
                || bound.any(|one| one.needs(index) && one.principal == *principal)
        };
        let has_brought = |index: &usize| {
            let process = self.exchange.processes.get(*index);
            process.is_some_and(|process| process.first.as_ref() == Some(principal))
        };
        let indices = self.exchange.processes.indices();
        indices
            .filter(has_brought)
            .filter(|index| uses(*index))
            .count()
    }

    /// Adds a process. At the limit, it replaces one that nobody uses. The processes that are being stopped
    /// have a limit of their own, which is as high.
    fn add_process(&mut self) -> Option<usize> {
        if self.exchange.processes.stopping() >= self.exchange.settings.processes {
            return None;
        }
        if self.exchange.processes.count() >= self.exchange.settings.processes {
            let unused = self
                .exchange
                .processes
                .indices()
                .find(|&index| !self.is_used(index))?;
            self.exchange.processes.stop(unused);
            self.exchange.clients.forget_elicitations(unused);
        }
        Some(self.exchange.processes.add())
    }

    /// Whether a client, a session or a pending request needs a process.
    pub(super) fn is_used(&self, process: usize) -> bool {
        let mut bound = self.sessions.values();
        self.exchange.clients.count_of_process(process) > 0
            || bound.any(|session| session.needs(process))
            || self.exchange.requests.has_any_of(process)
    }

    /// Stops the processes that nobody uses. The last process stays, so that the next client does not wait for a start.
    pub(super) fn stop_unused(&mut self) {
        for index in self.exchange.processes.indices() {
            if self.exchange.processes.count() < 2 {
                return;
            }
            let is_idle = |process: &Process| process.abandoned.is_empty();
            if self.exchange.processes.get(index).is_some_and(is_idle) && !self.is_used(index) {
                self.exchange.processes.stop(index);
                self.exchange.clients.forget_elicitations(index);
            }
        }
    }
}
