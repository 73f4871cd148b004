//! An agent process of a shared agent: the child, the lines queued for it, its restarts, and the clients that may have to be held, or
//! released, because it does not read.

use crate::service::child::{Keeper, RestartLimit};
use crate::service::jsonrpc::LineDecoder;
use crate::{ClientId, Context};

/// An agent process of a shared agent.
#[derive(Debug)]
pub(super) struct AgentProcess {
    pub(super) program: Keeper,
    pub(super) decoder: LineDecoder,
    /// Lines queued for the agent's input.
    pub(super) lines: Vec<u8>,
    /// Lines that wait until the agent runs and is initialized.
    pub(super) held: Vec<u8>,
    /// Whether new lines must wait.
    pub(super) holds: bool,
    /// Whether the agent has left so much unread that its clients wait.
    pub(super) is_behind: bool,
}

impl AgentProcess {
    pub(super) fn new(restart_limit: RestartLimit) -> Self {
        Self {
            program: Keeper::new(restart_limit),
            decoder: LineDecoder::default(),
            lines: Vec::new(),
            held: Vec::new(),
            holds: true,
            is_behind: false,
        }
    }

    /// The number of bytes that the agent has not read.
    pub(super) fn unread(&mut self) -> usize {
        let queued = self.program.child_mut().map_or(0, |child| child.unread());
        queued + self.held.len()
    }

    /// Writes lines to the agent. Held lines follow once it is initialized. `is_refused` says that the agent must be
    /// stopped.
    pub(super) fn send_lines(
        &mut self,
        ctx: &mut Context,
        is_initializing: bool,
        is_refused: bool,
    ) {
        let Some(child) = self.program.child_mut() else {
            self.lines.clear();
            return;
        };
        if !is_initializing {
            self.holds = false;
            self.lines.append(&mut self.held);
        }
        match child.stdin() {
            Some(stdin) if !self.lines.is_empty() => {
                stdin.append(ctx, |queue| {
                    if queue.is_empty() {
                        // A long line is not copied once more.
                        std::mem::swap(queue, &mut self.lines);
                    } else {
                        queue.append(&mut self.lines);
                    }
                });
            }
            Some(_) => {}
            None => {
                self.lines.clear();
                self.held.clear();
            }
        }
        // An agent that closed a stream or rejected `initialize` cannot answer. Its exit fails the pending requests.
        if child.is_cut_off() || is_refused {
            child.stop(ctx);
        }
    }

    /// Forgets what belongs to the process that has exited.
    pub(super) fn reset(&mut self) {
        self.program.handle_exit();
        self.decoder = LineDecoder::default();
        self.lines.clear();
        self.held.clear();
        self.holds = true;
    }
}

/// Clients whose hold must be decided again.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Affected {
    All,
    Only(Vec<ClientId>),
}

/// Notes what may change who is held. All clients are looked at once when a process gets behind or is no longer behind. While it
/// is behind, only clients that have sent or got a message are looked at, because no others can begin or end to use a process.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    /// Whether a process is behind.
    is_behind: bool,
    /// Whether a process got behind, or is no longer behind, since the clients were last looked at.
    has_changed: bool,
    /// Clients that have sent or got a message since then, while a process is behind.
    touched: Vec<ClientId>,
}

impl Pressure {
    /// A process got behind, is no longer behind, or was removed while it was behind.
    pub(super) fn change(&mut self) {
        self.has_changed = true;
    }

    /// A client has sent or got a message, so the processes that it uses may have changed.
    pub(super) fn touch(&mut self, client: ClientId) {
        if self.is_behind && self.touched.last() != Some(&client) {
            self.touched.push(client);
        }
    }

    /// The clients to look at. `is_behind` says whether a process is behind now.
    pub(super) fn take_affected(&mut self, is_behind: bool) -> Affected {
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
