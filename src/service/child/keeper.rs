//! A program that is started again when it exits.

use super::Child;
use super::backoff::{Backoff, RestartLimit};
use crate::{Context, TimerId};

/// The state of the program.
#[derive(Debug, Default)]
enum State {
    Running(Box<Child>),
    /// It is started again when this timer expires.
    Backoff(TimerId),
    /// It has not been started, or is not started again.
    #[default]
    Gone,
}

/// Keeps a program running. Its owner spawns the child and reports exits and failures; the keeper counts them and says when to
/// start the program again.
#[derive(Debug)]
pub(crate) struct Keeper {
    state: State,
    backoff: Backoff,
}

impl Keeper {
    /// A program that has not been started.
    pub(crate) fn new(limit: RestartLimit) -> Self {
        Self {
            state: State::Gone,
            backoff: Backoff::new(limit),
        }
    }

    /// The running program.
    pub(crate) fn child(&mut self) -> Option<&mut Child> {
        match &mut self.state {
            State::Running(child) => Some(child),
            State::Backoff(_) | State::Gone => None,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running(_))
    }

    /// Whether a queued start is still wanted: the program does not run, and no timer will start it.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone)
    }

    /// Whether the program does not run and has failed more often than the limit allows.
    pub(crate) fn is_failing(&self) -> bool {
        !self.is_running() && self.backoff.is_failing()
    }

    /// How often the program was, or will be, started again.
    pub(crate) fn restarts(&self) -> u64 {
        self.backoff.restarts()
    }

    /// Records that the program was started.
    pub(crate) fn handle_start(&mut self, child: Child) {
        self.state = State::Running(Box::new(child));
        self.backoff.handle_start();
    }

    /// Records that the program has exited.
    pub(crate) fn handle_exit(&mut self) {
        self.state = State::Gone;
    }

    /// Handles the exit of the program, or the failure to start it: it is started again after a delay. Returns false if the
    /// service must give up. `path` is the route of the service.
    pub(crate) fn handle_failure(&mut self, ctx: &mut Context, path: &str, why: &str) -> bool {
        let timer = self.backoff.handle_failure(ctx, path, why);
        self.state = timer.map_or(State::Gone, State::Backoff);
        timer.is_some()
    }

    /// Whether this timer, which has expired, is that of the next start. The owner queues the start.
    pub(crate) fn expire(&mut self, timer: TimerId) -> bool {
        let is_due = matches!(self.state, State::Backoff(own) if own == timer);
        if is_due {
            self.state = State::Gone;
        }
        is_due
    }

    /// Stops the program.
    pub(crate) fn stop(&mut self, ctx: &mut Context) {
        if let Some(child) = self.child() {
            child.stop(ctx);
        }
    }

    /// Gives the program up: it is not started again. Returns the child, which is being stopped, if it runs.
    pub(crate) fn give_up(self, ctx: &mut Context) -> Option<Child> {
        match self.state {
            State::Running(mut child) => {
                child.stop(ctx);
                Some(*child)
            }
            State::Backoff(timer) => {
                ctx.cancel_timer(timer);
                None
            }
            State::Gone => None,
        }
    }

    /// Takes the child out while it handles an event whose output needs the owner of the keeper.
    pub(crate) fn take_child(&mut self) -> Option<Box<Child>> {
        match std::mem::take(&mut self.state) {
            State::Running(child) => Some(child),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Puts back the child that was taken out.
    pub(crate) fn put_back(&mut self, child: Box<Child>) {
        self.state = State::Running(child);
    }
}
