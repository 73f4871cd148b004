//! The stages of stopping. [`draining`](super::draining) takes the steps.

use std::collections::HashSet;
use std::time::Duration;

use super::drain_schedule::DrainSchedule;
use super::id::ClientId;
use crate::protocol::Time;

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
pub(super) struct Shutdown {
    state: ShutdownState,
    /// The connections whose first request had not arrived when the server began to stop.
    newcomers: HashSet<ClientId>,
    /// When to stop waiting for these requests.
    newcomers_until: Time,
    /// The clients to send CLOSE to.
    pub(super) schedule: DrainSchedule,
}

impl Shutdown {
    /// Requests that the server stops.
    pub(super) fn stop(&mut self) {
        if self.state == ShutdownState::Running {
            self.state = ShutdownState::Asked;
        }
    }

    /// Whether the server is being stopped.
    pub(super) fn is_stopping(&self) -> bool {
        self.state != ShutdownState::Running
    }

    /// Whether stopping was requested but has not begun.
    pub(super) fn is_asked(&self) -> bool {
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
    pub(super) fn drain(&mut self, newcomers: HashSet<ClientId>, schedule: DrainSchedule) {
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
    pub(super) fn finishes_until(&self) -> Option<Time> {
        match self.state {
            ShutdownState::Finishing { until } => Some(until),
            _ => None,
        }
    }

    /// Ends the loop.
    pub(super) fn end(&mut self) {
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
    pub(super) fn serves_newcomer(&self, id: ClientId) -> bool {
        self.is_asked() || self.newcomers.contains(&id)
    }

    /// Whether the loop ends.
    pub(super) fn is_over(&self) -> bool {
        self.state == ShutdownState::Over
    }

    /// Whether the server still waits for the first requests of accepted connections.
    pub(super) fn awaits_newcomers(&self, now: Time) -> bool {
        now < self.newcomers_until
    }

    /// When the next step may be due.
    pub(super) fn next_turn(&self, now: Time) -> Option<Time> {
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
