//! The processes of a shared agent: one for each kind of client. The router knows them by their index.

mod process;

use self::process::AgentProcess;
use super::MAX_UNREAD;
use super::router::Router;
use crate::record::{RecordError, record, state};
use crate::service::child::{Child, ChildEvent, RestartLimit};
use crate::{ClientId, Context, TimerId};

/// The processes of a shared agent, and the clients that may have to be held, or released, because a process does not read.
#[derive(Debug)]
pub(super) struct AgentProcesses {
    /// By their index in the router.
    present: Vec<Option<AgentProcess>>,
    /// Processes that are being stopped and have not exited yet.
    stopping: Vec<Child>,
    /// The restarts of processes that were stopped.
    ended_restarts: u64,
    restart_limit: RestartLimit,
    pressure: Pressure,
}

// Call [`AgentProcesses::watch_again`] after loading them.
state!(AgentProcesses {
    present(*restart_limit),
    stopping,
    ended_restarts,
    keep restart_limit,
    pressure,
});

impl AgentProcesses {
    /// Continues after the program of the server has replaced itself.
    ///
    /// # Errors
    ///
    /// A process cannot be watched.
    pub(super) fn watch_again(&mut self, ctx: &mut Context) -> Result<(), RecordError> {
        for (_, process) in self.iter_mut() {
            process.program.watch_again(ctx);
            if let Some(child) = process.program.child_mut() {
                child.watch_again(ctx)?;
            }
        }
        let mut stopping = self.stopping.iter_mut();
        stopping.try_for_each(|child| child.watch_again(ctx))
    }

    /// The first process, which has not been started.
    pub(super) fn new(restart_limit: RestartLimit) -> Self {
        Self {
            present: vec![Some(AgentProcess::new(restart_limit))],
            stopping: Vec::new(),
            ended_restarts: 0,
            restart_limit,
            pressure: Pressure::default(),
        }
    }

    /// The processes that are not being stopped, with their indices.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &AgentProcess)> {
        let present = self.present.iter().enumerate();
        present.filter_map(|(index, process)| Some((index, process.as_ref()?)))
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut AgentProcess)> {
        let present = self.present.iter_mut().enumerate();
        present.filter_map(|(index, process)| Some((index, process.as_mut()?)))
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut AgentProcess> {
        self.present.get_mut(index)?.as_mut()
    }

    /// One more than the last index.
    pub(super) fn len(&self) -> usize {
        self.present.len()
    }

    /// Whether a process runs.
    pub(super) fn is_any_running(&self) -> bool {
        self.iter().any(|(_, process)| process.program.is_running())
    }

    /// Whether a process runs and reads what it gets.
    pub(super) fn is_any_ready(&self, router: &Router) -> bool {
        let mut running = self.iter().filter(|(_, one)| one.program.is_running());
        running.any(|(index, _)| !router.is_silent(index))
    }

    /// Whether every process keeps failing, so that new clients are rejected.
    pub(super) fn are_failing(&self) -> bool {
        self.iter().all(|(_, process)| process.program.is_failing())
    }

    /// Whether every process has so much unread input that new clients are rejected.
    pub(super) fn are_flooded(&mut self) -> bool {
        self.iter_mut()
            .all(|(_, process)| process.unread() > MAX_UNREAD)
    }

    /// Whether every process has exited, those that are being stopped as well.
    pub(super) fn are_gone(&self) -> bool {
        self.stopping.is_empty() && !self.is_any_running()
    }

    /// The restarts of all processes.
    pub(super) fn restarts(&self) -> u64 {
        let present = self.iter().map(|(_, process)| process.program.restarts());
        self.ended_restarts + present.sum::<u64>()
    }

    /// Adds a process, and queues its start.
    pub(super) fn add(&mut self, ctx: &mut Context, index: usize) {
        if self.present.len() <= index {
            self.present.resize_with(index + 1, || None);
        }
        log::info!("starting an agent process for another kind of client");
        let mut process = AgentProcess::new(self.restart_limit);
        process.program.queue(ctx);
        self.present[index] = Some(process);
    }

    /// Removes a process. Returns whether it runs and must be stopped first.
    pub(super) fn remove(&mut self, ctx: &mut Context, index: usize) -> bool {
        let process = self.present.get_mut(index).and_then(Option::take);
        let Some(mut process) = process else {
            return false;
        };
        self.ended_restarts += process.program.restarts();
        if process.is_behind() {
            self.pressure.change();
        }
        let Some(mut child) = process.program.give_up(ctx) else {
            return false;
        };
        log::info!("stopping an agent process that no client uses");
        child.stop(ctx);
        self.stopping.push(*child);
        true
    }

    /// The process whose queued start is due. It is not in the queue any more.
    pub(super) fn begin(&mut self) -> Option<usize> {
        self.iter_mut()
            .find_map(|(index, process)| process.program.begin().then_some(index))
    }

    /// Queues the start of the process whose delay ends with this timer. Returns false if there is none.
    pub(super) fn expire(&mut self, ctx: &mut Context, timer: TimerId) -> bool {
        let mut processes = self.present.iter_mut().flatten();
        let due = processes.find_map(|process| process.program.expire(timer).then_some(process));
        if let Some(process) = due {
            process.program.queue(ctx);
            return true;
        }
        false
    }

    /// Writes the queued lines to the processes.
    pub(super) fn send_lines(&mut self, ctx: &mut Context, router: &Router) {
        for (index, process) in self.iter_mut() {
            let is_initializing = router.is_initializing(index);
            let is_refused = is_initializing && router.is_refused(index);
            process.send_lines(ctx, is_initializing, is_refused);
        }
    }

    /// Lets the processes that are being stopped handle an event. Their output is ignored.
    pub(super) fn handle_stopping(
        &mut self,
        mut handle: impl FnMut(&mut Child) -> ChildEvent,
    ) -> ChildEvent {
        for index in 0..self.stopping.len() {
            let event = handle(&mut self.stopping[index]);
            if matches!(event, ChildEvent::Exited(_)) {
                self.stopping.swap_remove(index);
            }
            if !matches!(event, ChildEvent::NotMine) {
                return event;
            }
        }
        ChildEvent::NotMine
    }

    /// Stops all processes.
    pub(super) fn stop(&mut self, ctx: &mut Context) {
        for (_, process) in self.iter_mut() {
            process.program.stop(ctx);
        }
    }

    /// A client has sent or got a message, so the processes that it uses may have changed.
    pub(super) fn touch(&mut self, client: ClientId) {
        self.pressure.touch(client);
    }

    /// Holds the clients of a process, and of its sessions, while it does not read.
    pub(super) fn check_pressure(&mut self, ctx: &mut Context, router: &Router) {
        let mut is_any_behind = false;
        for process in self.present.iter_mut().flatten() {
            if process.watch_unread() {
                self.pressure.change();
            }
            is_any_behind |= process.is_behind();
        }
        let clients = match self.pressure.take_affected(is_any_behind) {
            Affected::All => ctx.clients(),
            Affected::Only(clients) => clients,
        };
        for client in clients {
            let holds = |(index, process): (usize, &AgentProcess)| {
                process.is_behind() && router.uses(client, index)
            };
            let is_held = self.iter().any(holds);
            ctx.set_held(client, is_held);
        }
    }
}

/// Clients whose hold must be decided again.
#[derive(Debug, PartialEq, Eq)]
enum Affected {
    All,
    Only(Vec<ClientId>),
}

/// Notes what may change who is held. All clients are looked at once when a process gets behind or is no longer behind. While it
/// is behind, only clients that have sent or got a message are looked at, because no others can begin or end to use a process.
#[derive(Debug, Default)]
struct Pressure {
    /// Whether a process is behind.
    is_behind: bool,
    /// Whether a process got behind, or is no longer behind, since the clients were last looked at.
    has_changed: bool,
    /// Clients that have sent or got a message since then, while a process is behind.
    touched: Vec<ClientId>,
}

record!(Pressure {
    is_behind,
    has_changed,
    touched,
});

impl Pressure {
    /// A process got behind, is no longer behind, or was removed while it was behind.
    fn change(&mut self) {
        self.has_changed = true;
    }

    /// A client has sent or got a message, so the processes that it uses may have changed.
    fn touch(&mut self, client: ClientId) {
        if self.is_behind && self.touched.last() != Some(&client) {
            self.touched.push(client);
        }
    }

    /// The clients to look at. `is_behind` says whether a process is behind now.
    fn take_affected(&mut self, is_behind: bool) -> Affected {
        self.is_behind = is_behind;
        let touched = std::mem::take(&mut self.touched);
        if std::mem::take(&mut self.has_changed) {
            return Affected::All;
        }
        Affected::Only(touched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u64) -> ClientId {
        format!("c{number}").parse().expect("an id")
    }

    /// The bug: while an agent did not read, each message walked all clients, so 8,000 connections stopped the server for a second.
    #[test]
    fn a_message_to_a_slow_agent_affects_only_its_client() {
        let mut pressure = Pressure::default();
        let only = |clients: &[u64]| Affected::Only(clients.iter().map(|n| client(*n)).collect());
        // Nothing is noted while all processes read.
        pressure.touch(client(1));
        assert_eq!(pressure.take_affected(false), only(&[]));
        pressure.change();
        assert_eq!(pressure.take_affected(true), Affected::All);
        for number in 1..100 {
            pressure.touch(client(number));
            pressure.touch(client(number));
            assert_eq!(pressure.take_affected(true), only(&[number]));
        }
        assert_eq!(pressure.take_affected(true), only(&[]));
        pressure.touch(client(1));
        pressure.change();
        assert_eq!(pressure.take_affected(false), Affected::All);
        assert_eq!(pressure.take_affected(false), only(&[]));
    }
}
