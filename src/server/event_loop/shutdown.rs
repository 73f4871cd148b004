//! The stages of stopping, and the order and pace in which a stopping server closes its clients. [`draining`](super::draining) takes
//! the steps.
//!
//! Clients that are closed at the same time reconnect to the replacing server at the same time. So a server spreads the
//! closing of many clients evenly over most of the drain timeout, and closes a few clients at once. While the service
//! works for a client, each step checks the client again, and closes it when the work is done or time runs out.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use crate::protocol::Time;
use crate::server::id::ClientId;

/// How long a stopping server waits for the requests of connections that it has accepted.
const NEWCOMERS: Duration = Duration::from_millis(200);

/// The stage of the shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ShutdownState {
    #[default]
    Running,
    /// Stopping was requested but has not begun.
    Asked,
    /// The server sends CLOSE to its clients and waits for them. Clients that were cut can come back.
    Draining { until: Time },
    /// All clients have disconnected, and the server waits for the service.
    Finishing { until: Time },
    /// The loop ends now.
    Over,
}

/// The state of stopping.
#[derive(Debug, Default)]
pub(crate) struct Shutdown {
    state: ShutdownState,
    /// The connections whose first request had not arrived when the server began to stop.
    newcomers: HashSet<ClientId>,
    /// When to stop waiting for these requests.
    newcomers_until: Time,
    /// The clients to send CLOSE to.
    pub(crate) schedule: DrainSchedule,
}

impl Shutdown {
    /// Requests that the server stops.
    pub(crate) fn stop(&mut self) {
        if self.state == ShutdownState::Running {
            self.state = ShutdownState::Asked;
        }
    }

    /// Whether the server is being stopped.
    pub(crate) fn is_stopping(&self) -> bool {
        self.state != ShutdownState::Running
    }

    /// Whether stopping was requested but has not begun.
    pub(crate) fn is_asked(&self) -> bool {
        self.state == ShutdownState::Asked
    }

    /// Begins to drain if stopping was requested. Returns whether it did.
    pub(super) fn begin_draining(&mut self, now: Time, timeout: Duration) -> bool {
        let begins = self.is_asked();
        if begins {
            self.state = ShutdownState::Draining {
                until: now + timeout,
            };
            self.newcomers_until = now + NEWCOMERS.min(timeout);
        }
        begins
    }

    /// Serves the first requests of these connections, and sends CLOSE to the clients of the schedule.
    pub(crate) fn drain(&mut self, newcomers: HashSet<ClientId>, schedule: DrainSchedule) {
        self.newcomers = newcomers;
        self.schedule = schedule;
    }

    /// When the server stops waiting for its clients, while it does.
    pub(super) fn drains_until(&self) -> Option<Time> {
        match self.state {
            ShutdownState::Draining { until } => Some(until),
            _ => None,
        }
    }

    /// All clients have disconnected: waits for the service until `until`.
    pub(super) fn begin_finishing(&mut self, until: Time) {
        self.state = ShutdownState::Finishing { until };
    }

    /// When the server stops waiting for its service, while it does.
    pub(crate) fn finishes_until(&self) -> Option<Time> {
        match self.state {
            ShutdownState::Finishing { until } => Some(until),
            _ => None,
        }
    }

    /// Ends the loop.
    pub(crate) fn end(&mut self) {
        self.state = ShutdownState::Over;
    }

    /// Whether a client that is cut now can come back. A draining server lets it, so that it gets the end of its turn.
    pub(super) fn lets_clients_return(&self) -> bool {
        matches!(
            self.state,
            ShutdownState::Running | ShutdownState::Asked | ShutdownState::Draining { .. }
        )
    }

    /// Whether a stopping server serves the first request of a connection: it was accepted before the server began to stop.
    pub(crate) fn serves_newcomer(&self, id: ClientId) -> bool {
        self.is_asked() || self.newcomers.contains(&id)
    }

    /// Whether the loop ends.
    pub(crate) fn is_over(&self) -> bool {
        self.state == ShutdownState::Over
    }

    /// Whether the server still waits for the first requests of accepted connections.
    pub(crate) fn awaits_newcomers(&self, now: Time) -> bool {
        now < self.newcomers_until
    }

    /// When the next step may be due.
    pub(crate) fn next_turn(&self, now: Time) -> Option<Time> {
        let until = match self.state {
            ShutdownState::Draining { .. } if self.awaits_newcomers(now) => {
                Some(self.newcomers_until)
            }
            ShutdownState::Draining { until } | ShutdownState::Finishing { until } => Some(until),
            ShutdownState::Running | ShutdownState::Asked | ShutdownState::Over => None,
        };
        [until, self.schedule.next_step()]
            .into_iter()
            .flatten()
            .min()
    }
}

/// The fraction of the drain timeout over which clients are closed. The rest leaves time for their CLOSE frames.
const SHARE: f64 = 0.8;

/// The fraction of the drain timeout, after [`SHARE`], over which the clients that still wait for the service are
/// closed.
const LAST_SHARE: f64 = 0.1;

/// The average time between two closes if the drain timeout allows it, so that 625 clients reconnect per second.
const EACH: Duration = Duration::from_micros(1600);

/// The time between two steps.
const STEP: Duration = Duration::from_millis(20);

/// Clients that have not been closed yet.
#[derive(Debug, Default)]
pub(crate) struct DrainSchedule {
    /// Clients whose turn has not come.
    waiting: VecDeque<ClientId>,
    /// Clients whose turn came while the service worked for them.
    busy: VecDeque<ClientId>,
    total: usize,
    began: Time,
    takes: Duration,
    drain_timeout: Duration,
    next_step: Time,
}

/// What is left to do in one step.
#[derive(Debug)]
pub(crate) struct Step {
    /// The number of busy clients to check again.
    ask: usize,
    /// The number of busy clients to close even if the service still works for them.
    close: usize,
}

impl DrainSchedule {
    /// A schedule for these clients.
    pub(crate) fn begin(clients: Vec<ClientId>, now: Time, drain_timeout: Duration) -> Self {
        let total = clients.len();
        let takes = (EACH * total as u32).min(drain_timeout.mul_f64(SHARE));
        Self {
            waiting: clients.into(),
            busy: VecDeque::new(),
            total,
            began: now,
            takes: if takes < STEP { Duration::ZERO } else { takes },
            drain_timeout,
            next_step: now,
        }
    }

    /// Begins the next step if it is due.
    pub(super) fn begin_step(&mut self, now: Time) -> Option<Step> {
        if self.is_done() || now < self.next_step {
            return None;
        }
        self.next_step = now + STEP;
        let elapsed = now.since(self.began);
        let late = elapsed.saturating_sub(self.drain_timeout.mul_f64(SHARE));
        let steps_left = (self.drain_timeout.mul_f64(LAST_SHARE))
            .saturating_sub(late)
            .as_millis()
            / STEP.as_millis()
            + 1;
        let close = if late.is_zero() {
            0
        } else {
            self.busy.len().div_ceil(steps_left as usize)
        };
        Some(Step {
            ask: self.busy.len() - close,
            close,
        })
    }

    /// The next client whose turn has come, and whether to close it even if the service still works for it.
    pub(super) fn pop_due(&mut self, step: &mut Step, now: Time) -> Option<(ClientId, bool)> {
        if step.close > 0 {
            step.close -= 1;
            return Some((self.busy.pop_front()?, true));
        }
        if step.ask > 0 {
            step.ask -= 1;
            return Some((self.busy.pop_front()?, false));
        }
        let told = self.total - self.waiting.len();
        let elapsed = now.since(self.began);
        let due = elapsed >= self.takes || {
            let share = elapsed.as_secs_f64() / self.takes.as_secs_f64();
            told <= (share * self.total as f64) as usize
        };
        let id = if due { self.waiting.pop_front() } else { None };
        id.map(|id| (id, false))
    }

    /// Checks a client again in the next step.
    pub(super) fn postpone(&mut self, id: ClientId) {
        self.busy.push_back(id);
    }

    /// Whether all clients were closed.
    pub(crate) fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.busy.is_empty()
    }

    /// When the next step is due, if there is one.
    pub(crate) fn next_step(&self) -> Option<Time> {
        (!self.is_done()).then_some(self.next_step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(count: usize) -> Vec<ClientId> {
        (0..count).map(|slot| ClientId::new(slot, 1)).collect()
    }

    /// The number of clients that one step closes if the service works for none.
    fn closed(schedule: &mut DrainSchedule, millis: u64) -> usize {
        let now = Time::from_millis(millis);
        let Some(mut step) = schedule.begin_step(now) else {
            return 0;
        };
        std::iter::from_fn(|| schedule.pop_due(&mut step, now)).count()
    }

    #[test]
    fn many_clients_are_closed_evenly_and_a_few_at_once() {
        let drain = Duration::from_secs(10);
        let mut schedule = DrainSchedule::begin(clients(5000), Time::default(), drain);
        let mut told: Vec<_> = (0..=8)
            .map(|second| closed(&mut schedule, second * 1000))
            .collect();
        assert_eq!(told.remove(0), 1);
        assert!(
            told[..7].iter().all(|count| (600..650).contains(count)),
            "{told:?}"
        );
        assert_eq!(told.iter().sum::<usize>() + 1, 5000);
        assert!(schedule.is_done() && schedule.next_step().is_none());

        let mut schedule = DrainSchedule::begin(clients(10), Time::default(), drain);
        assert_eq!(closed(&mut schedule, 0), 10);
        // However many there are, the last one is closed in time for its CLOSE.
        let mut schedule = DrainSchedule::begin(clients(100_000), Time::default(), drain);
        assert_eq!(closed(&mut schedule, 8000), 100_000);
    }

    #[test]
    fn a_client_that_the_service_works_for_is_closed_when_the_work_is_done_or_time_runs_out() {
        // The bug: SIGTERM dropped pending answers, although the server waits for up to 10 s.
        let drain = Duration::from_secs(10);
        let mut schedule = DrainSchedule::begin(clients(3), Time::default(), drain);
        let mut closed = Vec::new();
        for millis in (0..10_000).step_by(20) {
            let now = Time::from_millis(millis);
            let Some(mut step) = schedule.begin_step(now) else {
                break;
            };
            while let Some((id, last_call)) = schedule.pop_due(&mut step, now) {
                // The work for the first client takes no time, for the second half a second; for the third it never ends.
                let is_working = [false, millis < 500, true][id.slot()];
                if is_working && !last_call {
                    schedule.postpone(id);
                } else {
                    closed.push((id.slot(), millis));
                }
            }
        }
        assert_eq!(closed[..2], [(0, 0), (1, 500)]);
        assert!(matches!(closed[2], (2, 8000..9100)), "{closed:?}");
    }
}
