//! A program that is started again when it exits.

use super::Child;
use super::backoff::{Backoff, RestartLimit};
use crate::{Context, TimerId};

/// The state of the program.
#[derive(Debug)]
enum State<P> {
    Running(Box<P>),
    /// The delay before the next start ends when this timer expires.
    Backoff(TimerId),
    /// The delay has ended.
    Ready,
    /// The start is queued in the loop.
    Queued,
    /// It has not been started, or is not started again.
    Gone,
}

/// Keeps a program running. `P` is what the owner keeps for a running program.
///
/// The owner starts the program and reports starts, exits and failures (`handle_*`). After a failure, the keeper counts it and sets a
/// timer. When that timer has expired ([`Keeper::expire`]), the owner queues the start, and starts the program if [`Keeper::begin`]
/// says so. `child` and `is_*` are getters.
#[derive(Debug)]
pub(crate) struct Keeper<P = Child> {
    state: State<P>,
    backoff: Backoff,
}

impl<P> Keeper<P> {
    /// A program that has not been started.
    pub(crate) fn new(limit: RestartLimit) -> Self {
        Self {
            state: State::Gone,
            backoff: Backoff::new(limit),
        }
    }

    /// The running program.
    pub(crate) fn child(&self) -> Option<&P> {
        match &self.state {
            State::Running(child) => Some(child),
            _ => None,
        }
    }

    pub(crate) fn child_mut(&mut self) -> Option<&mut P> {
        match &mut self.state {
            State::Running(child) => Some(child),
            _ => None,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running(_))
    }

    /// Whether the delay before the next start has ended, and the start is not queued yet.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Whether the program does not run and has failed more often than the limit allows.
    pub(crate) fn is_failing(&self) -> bool {
        !self.is_running() && self.backoff.is_failing()
    }

    /// Whether one more failure would exceed the limit.
    #[cfg(feature = "mcp")]
    pub(crate) fn is_exhausted(&mut self, ctx: &Context) -> bool {
        self.backoff.is_exhausted(ctx.now())
    }

    /// How often the program was, or will be, started again.
    pub(crate) fn restarts(&self) -> u64 {
        self.backoff.restarts()
    }

    /// Queues a start in the loop, unless the program runs or is started later in any case.
    pub(crate) fn queue(&mut self, ctx: &mut Context) {
        if matches!(self.state, State::Gone | State::Ready) {
            self.state = State::Queued;
            ctx.queue_own_start();
        }
    }

    /// Whether the owner must start the program now, because its start was queued. It is queued no more.
    pub(crate) fn begin(&mut self) -> bool {
        let is_queued = matches!(self.state, State::Queued);
        if is_queued {
            self.state = State::Gone;
        }
        is_queued
    }

    /// Records that the program was started.
    pub(crate) fn handle_start(&mut self, child: P) {
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

    /// Whether this timer, which has expired, is that of the next start.
    pub(crate) fn expire(&mut self, timer: TimerId) -> bool {
        let is_due = matches!(self.state, State::Backoff(own) if own == timer);
        if is_due {
            self.state = State::Ready;
        }
        is_due
    }

    /// Takes the child out while it handles an event whose output needs the owner of the keeper, or for good.
    pub(crate) fn take_child(&mut self) -> Option<Box<P>> {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Running(child) => Some(child),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Puts back the child that was taken out.
    pub(crate) fn put_back(&mut self, child: Box<P>) {
        self.state = State::Running(child);
    }

    /// Gives the program up: it is not started again. Returns the child if it runs.
    pub(crate) fn give_up(&mut self, ctx: &mut Context) -> Option<Box<P>> {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Running(child) => Some(child),
            State::Backoff(timer) => {
                ctx.cancel_timer(timer);
                None
            }
            State::Ready | State::Queued | State::Gone => None,
        }
    }
}

impl Keeper {
    /// Stops the program.
    pub(crate) fn stop(&mut self, ctx: &mut Context) {
        if let Some(child) = self.child_mut() {
            child.stop(ctx);
        }
    }
}
