//! A program that is started again when it exits: [`Keeper`] knows whether it runs, and [`Backoff`] how often it has failed and when
//! it is started again.

use std::time::Duration;

use super::{Child, ProgramFailure};
use crate::record::{Record, record, state};
use crate::service::deadlines::Alarm;
use crate::{Context, Time, TimerId};

/// The delay before the first restart. Each further restart within the window doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// What a service does when its program keeps failing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// It stops the server with a failure.
    #[default]
    Exit,
    /// It rejects clients with 503 and keeps starting the program, at least every ten seconds. Other services of the server
    /// are not affected.
    Retry,
}

/// How often a child process may exit before its service counts it as failing.
///
/// ```
/// use std::time::Duration;
/// use outrigger::service::{OnFailure, RestartLimit};
///
/// // Three exits within a minute are tolerated. The fourth ends the server.
/// let mut limit = RestartLimit::new(3, Duration::from_secs(60));
/// // Now it does not.
/// limit.on_failure = OnFailure::Retry;
/// # assert_ne!(limit, RestartLimit::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartLimit {
    /// The number of exits that are tolerated within `window`.
    pub count: usize,
    /// The period in which exits are counted.
    pub window: Duration,
    /// What happens when it exits more often, or cannot be started.
    pub on_failure: OnFailure,
}

impl RestartLimit {
    /// This many exits within `window` are tolerated. One more ends the server.
    #[must_use]
    pub fn new(count: usize, window: Duration) -> Self {
        Self {
            count,
            window,
            on_failure: OnFailure::Exit,
        }
    }
}

impl Default for RestartLimit {
    /// Five exits in a minute.
    fn default() -> Self {
        Self::new(5, Duration::from_secs(60))
    }
}

/// Restarts a program after failures: counts them, waits longer after each one, and knows when to give up.
#[derive(Debug)]
struct Backoff {
    limit: RestartLimit,
    /// The failures within the window.
    failures: Vec<Time>,
    /// Whether the program could be started once, and whether this was known before its last start.
    has_run: bool,
    had_run: bool,
    /// How often the program was, or will be, started again.
    restarts: u64,
}

state!(Backoff {
    keep limit,
    failures,
    has_run,
    had_run,
    restarts,
});

impl Backoff {
    pub(super) fn new(limit: RestartLimit) -> Self {
        Self {
            limit,
            failures: Vec::new(),
            has_run: false,
            had_run: false,
            restarts: 0,
        }
    }

    /// Records that the program was started. If it turns out that it could not be executed, this is undone.
    pub(super) fn handle_start(&mut self) {
        self.had_run = self.has_run;
        self.has_run = true;
    }

    /// Handles the exit of the program, or the failure to start it. Returns the time of the next start, or `None` if the service
    /// must give up. `path` is the route of the service.
    pub(super) fn handle_failure(
        &mut self,
        now: Time,
        path: &str,
        failure: &ProgramFailure,
    ) -> Option<Time> {
        if !failure.has_run {
            self.has_run = self.had_run;
        }
        let delay = self.next_delay(now)?;
        failure.log(path, Some(delay), None);
        self.restarts += 1;
        Some(now + delay)
    }

    /// Records a failure. Returns the delay before the next start.
    fn next_delay(&mut self, now: Time) -> Option<Duration> {
        self.forget_old(now);
        self.failures.push(now);
        // What has run once can be started, so the cause of a failed start may pass. What never could may be misspelled.
        let gives_up = self.is_failing() || !self.has_run;
        if gives_up && self.limit.on_failure == OnFailure::Exit {
            return None;
        }
        let doublings = (self.failures.len() - 1).min(10) as u32;
        Some((FIRST_DELAY * 2u32.pow(doublings)).min(LONGEST_DELAY))
    }

    fn forget_old(&mut self, now: Time) {
        let window = self.limit.window;
        self.failures.retain(|&failure| now.since(failure) < window);
    }

    /// Whether one more failure would exceed the limit.
    #[cfg(feature = "mcp")]
    pub(super) fn is_exhausted(&mut self, now: Time) -> bool {
        self.forget_old(now);
        self.failures.len() >= self.limit.count
    }

    /// Whether the program has failed more often than the limit allows.
    pub(super) fn is_failing(&self) -> bool {
        self.failures.len() > self.limit.count
    }

    /// How often the program was, or will be, started again.
    pub(super) fn restarts(&self) -> u64 {
        self.restarts
    }
}

/// What the keeper does.
#[derive(Debug)]
enum Phase<P> {
    Running(Box<P>),
    /// The delay before the next start ends when this alarm goes off.
    Backoff(Alarm),
    /// The delay has ended.
    Ready,
    /// The start is queued in the loop.
    Queued,
    /// It has not been started, or is not started again.
    Gone,
}

record!(impl<P: Record> enum Phase<P> {
    Running(child),
    Backoff(alarm),
    Ready,
    Queued,
    Gone,
});

/// Keeps a program running. `P` is what the owner keeps for a running program.
///
/// The owner starts the program and reports starts, exits and failures (`handle_*`). After a failure, the keeper counts it and sets a
/// timer. When that timer has expired ([`Keeper::expire`]), the owner queues the start, and starts the program if [`Keeper::begin`]
/// says so. `child` and `is_*` are getters.
#[derive(Debug)]
pub(crate) struct Keeper<P = Child> {
    phase: Phase<P>,
    backoff: Backoff,
}

// Call [`Keeper::watch_again`] after loading it.
state!(impl<P: Record> Keeper<P> {
    phase,
    into backoff,
});

impl<P> Keeper<P> {
    /// Continues after the program of the server has replaced itself. The owner watches the child again.
    pub(crate) fn watch_again(&mut self, ctx: &mut Context) {
        match &mut self.phase {
            Phase::Backoff(alarm) => alarm.wake(ctx),
            Phase::Queued => ctx.queue_own_start(),
            Phase::Running(_) | Phase::Ready | Phase::Gone => {}
        }
    }

    /// A program that has not been started.
    pub(crate) fn new(limit: RestartLimit) -> Self {
        Self {
            phase: Phase::Gone,
            backoff: Backoff::new(limit),
        }
    }

    /// A program with the same limit that has not been started.
    #[cfg(feature = "mcp")]
    pub(crate) fn another(&self) -> Self {
        Self::new(self.backoff.limit)
    }

    /// The running program.
    pub(crate) fn child(&self) -> Option<&P> {
        match &self.phase {
            Phase::Running(child) => Some(child),
            _ => None,
        }
    }

    pub(crate) fn child_mut(&mut self) -> Option<&mut P> {
        match &mut self.phase {
            Phase::Running(child) => Some(child),
            _ => None,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running(_))
    }

    /// Whether the delay before the next start has ended, and the start is not queued yet.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready)
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
        if matches!(self.phase, Phase::Gone | Phase::Ready) {
            self.phase = Phase::Queued;
            ctx.queue_own_start();
        }
    }

    /// Whether the start is queued in the loop.
    #[cfg(feature = "mcp")]
    pub(crate) fn is_queued(&self) -> bool {
        matches!(self.phase, Phase::Queued)
    }

    /// Whether the owner must start the program now, because its start was queued. It is queued no more.
    pub(crate) fn begin(&mut self) -> bool {
        let is_queued = matches!(self.phase, Phase::Queued);
        if is_queued {
            self.phase = Phase::Gone;
        }
        is_queued
    }

    /// Records that the program was started.
    pub(crate) fn handle_start(&mut self, child: P) {
        self.phase = Phase::Running(Box::new(child));
        self.backoff.handle_start();
    }

    /// Records that the program has exited.
    pub(crate) fn handle_exit(&mut self) {
        self.phase = Phase::Gone;
    }

    /// Handles the exit of the program, or the failure to start it: it is started again after a delay. Returns false if the
    /// service must give up. `path` is the route of the service.
    pub(crate) fn handle_failure(
        &mut self,
        ctx: &mut Context,
        path: &str,
        failure: &ProgramFailure,
    ) -> bool {
        let Some(at) = self.backoff.handle_failure(ctx.now(), path, failure) else {
            self.phase = Phase::Gone;
            return false;
        };
        let mut alarm = Alarm::default();
        alarm.set(ctx, Some(at));
        self.phase = Phase::Backoff(alarm);
        true
    }

    /// Whether this timer, which has expired, is that of the next start.
    pub(crate) fn expire(&mut self, timer: TimerId) -> bool {
        let is_due = match &mut self.phase {
            Phase::Backoff(alarm) => alarm.expire(timer),
            _ => false,
        };
        if is_due {
            self.phase = Phase::Ready;
        }
        is_due
    }

    /// Takes the child out while it handles an event whose output needs the owner of the keeper, or for good.
    pub(crate) fn take_child(&mut self) -> Option<Box<P>> {
        match std::mem::replace(&mut self.phase, Phase::Gone) {
            Phase::Running(child) => Some(child),
            other => {
                self.phase = other;
                None
            }
        }
    }

    /// Puts back the child that was taken out.
    pub(crate) fn put_back(&mut self, child: Box<P>) {
        self.phase = Phase::Running(child);
    }

    /// Gives the program up: it is not started again. Returns the child if it runs.
    pub(crate) fn give_up(&mut self, ctx: &mut Context) -> Option<Box<P>> {
        match std::mem::replace(&mut self.phase, Phase::Gone) {
            Phase::Running(child) => Some(child),
            Phase::Backoff(mut alarm) => {
                alarm.set(ctx, None);
                None
            }
            Phase::Ready | Phase::Queued | Phase::Gone => None,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A backoff of a program that has run.
    fn backoff(count: usize, on_failure: OnFailure) -> Backoff {
        let mut limit = RestartLimit::new(count, Duration::from_secs(60));
        limit.on_failure = on_failure;
        let mut backoff = Backoff::new(limit);
        backoff.handle_start();
        backoff
    }

    #[test]
    fn the_delay_doubles_up_to_ten_seconds_and_ends_at_the_limit() {
        let mut backoff = backoff(9, OnFailure::Exit);
        let now = Time::from_millis(1);
        let delays: Vec<_> = std::iter::from_fn(|| backoff.next_delay(now))
            .map(|delay| delay.as_millis())
            .collect();
        let expected = [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000];
        assert_eq!(delays, expected);
    }

    #[test]
    fn failures_outside_the_window_do_not_count() {
        let mut backoff = backoff(1, OnFailure::Exit);
        let first = Time::from_millis(1);
        assert_eq!(backoff.next_delay(first), Some(FIRST_DELAY));
        let later = first + Duration::from_secs(60);
        assert_eq!(backoff.next_delay(later), Some(FIRST_DELAY));
        assert_eq!(backoff.next_delay(later), None);
    }

    #[test]
    fn a_program_that_is_tried_without_end_is_tried_every_ten_seconds() {
        // The bug: an agent without its key used up its restarts in 3 s, and ended the terminals of all other routes.
        let mut backoff = backoff(1, OnFailure::Retry);
        let mut now = Time::from_millis(1);
        for _ in 0..100 {
            let delay = backoff.next_delay(now).expect("it is tried again");
            assert!(delay <= LONGEST_DELAY);
            now = now + Duration::from_millis(1);
        }
        assert!(backoff.is_failing());
        assert_eq!(backoff.next_delay(now), Some(LONGEST_DELAY));
    }

    #[test]
    fn one_failed_start_of_a_program_that_has_run_is_no_failure() {
        // The bug: when the machine had no process left for a moment, a restart failed and ended the server.
        let mut has_run = backoff(5, OnFailure::Exit);
        assert_eq!(has_run.next_delay(Time::from_millis(1)), Some(FIRST_DELAY));
        let mut never = Backoff::new(RestartLimit::default());
        assert_eq!(never.next_delay(Time::from_millis(1)), None);
    }
}
