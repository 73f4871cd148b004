//! Which process serves a client. The sessions say which processes are in use.

use super::exchange::Exchange;
use super::processes::Process;
use super::sessions::Sessions;
use crate::Principal;

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
        let share = self.clients.share_of(self.settings.processes);
        let too_many = "the limit of agent processes is reached; connect with the protocol version and capabilities of another client";
        let index = match found {
            Some(index) => index,
            None if has_watch_scope => return Err(too_many),
            None if share < self.settings.processes
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
        if self.processes.stopping() >= self.settings.processes {
            return None;
        }
        if self.processes.count() >= self.settings.processes {
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
