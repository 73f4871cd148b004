//! An agent process of a shared agent: the child, the lines queued for it, and its restarts.

use crate::Context;
use crate::record::record;
use crate::service::child::{HIGH_WATER, Keeper, LOW_WATER, RestartLimit};
use crate::service::jsonrpc::LineDecoder;

/// An agent process of a shared agent.
#[derive(Debug)]
pub(crate) struct AgentProcess {
    pub(crate) program: Keeper,
    pub(crate) decoder: LineDecoder,
    /// Lines queued for the agent's input.
    pub(crate) lines: Vec<u8>,
    /// Lines that wait until the agent runs and is initialized.
    pub(crate) held: Vec<u8>,
    /// Whether new lines must wait.
    pub(crate) holds: bool,
    /// Whether the agent has left so much unread that its clients wait.
    is_behind: bool,
}

record!(with(restart_limit: RestartLimit) AgentProcess {
    program into(Keeper::new(restart_limit)),
    decoder,
    lines,
    held,
    holds,
    is_behind,
});

impl AgentProcess {
    pub(crate) fn new(restart_limit: RestartLimit) -> Self {
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
    pub(crate) fn unread(&mut self) -> usize {
        let queued = self.program.child_mut().map_or(0, |child| child.unread());
        queued + self.held.len()
    }

    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Decides whether the agent is behind, with some room between both answers. Returns whether this has changed.
    pub(crate) fn watch_unread(&mut self) -> bool {
        let limit = if self.is_behind {
            LOW_WATER
        } else {
            HIGH_WATER
        };
        let is_behind = self.unread() > limit;
        is_behind != std::mem::replace(&mut self.is_behind, is_behind)
    }

    /// Writes lines to the agent. Held lines follow once it is initialized. `is_refused` says that the agent must be
    /// stopped.
    pub(crate) fn send_lines(
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
    pub(crate) fn reset(&mut self) {
        self.program.handle_exit();
        self.decoder = LineDecoder::default();
        self.lines.clear();
        self.held.clear();
        self.holds = true;
    }
}
