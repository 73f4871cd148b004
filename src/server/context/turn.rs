//! What is remembered for later in the turn, or for the next.

use super::{Context, Life};
use crate::protocol::{Disconnect, Time};
use crate::server::client::{Client, Flags};
use crate::server::id::ClientId;

impl Context {
    /// Whether anyone waits for anything: clients, calls that are not answered, output on its way.
    pub(in crate::server) fn is_busy(&self) -> bool {
        self.registry.client_count() > 0
            || self.calls > 0
            || self.registry.has_queued()
            || self.has_newcomers()
    }

    /// Whether a stopping server still waits for the first request of a connection.
    fn has_newcomers(&self) -> bool {
        self.now < self.newcomers_until
            && self
                .registry
                .iter()
                .any(|(_, client)| client.connection.is_new())
    }

    /// Has a client read again in the next turn.
    pub(in crate::server) fn read_again(&mut self, id: ClientId) {
        if let Some(client) = self.registry.get_mut(id) {
            Self::mark_ready(&mut self.ready, id, client);
        }
    }

    pub(super) fn mark_ready(ready: &mut Vec<ClientId>, id: ClientId, client: &mut Client) {
        if client.has_input() && !client.flags.set(Flags::IN_READY, true) {
            ready.push(id);
        }
    }

    pub(in crate::server) fn take_ready(&mut self) -> Vec<ClientId> {
        let ready = std::mem::take(&mut self.ready);
        for id in &ready {
            if let Some(client) = self.registry.get_mut(*id) {
                client.flags.set(Flags::IN_READY, false);
            }
        }
        ready
    }

    pub(in crate::server) fn take_dirty(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.dirty)
    }

    /// Whether there is something for [`Context::pop_doomed`] or [`Context::pop_drained`].
    pub(in crate::server) fn has_news(&self) -> bool {
        !self.doomed.is_empty() || !self.drained.is_empty()
    }

    pub(in crate::server) fn pop_doomed(&mut self) -> Option<(ClientId, Disconnect)> {
        self.doomed.pop()
    }

    pub(in crate::server) fn pop_drained(&mut self) -> Option<ClientId> {
        self.drained.pop()
    }

    /// Whether something waits for the next turn, so that the loop must not sleep.
    pub(in crate::server) fn has_work(&self) -> bool {
        !self.ready.is_empty()
            || !self.dirty.is_empty()
            || !self.doomed.is_empty()
            || self.life == Life::StopAsked
    }

    /// When the loop has to turn at the latest.
    pub(in crate::server) fn next_turn(&self) -> Option<Time> {
        let until = match self.life {
            Life::Draining { .. } if self.now < self.newcomers_until => Some(self.newcomers_until),
            Life::Draining { until } | Life::Finishing { until } => Some(until),
            Life::Running | Life::StopAsked | Life::Over => None,
        };
        [
            self.registry.next_deadline(),
            self.sources.next_turn(),
            self.farewell.next_turn(self.now),
            until,
        ]
        .into_iter()
        .flatten()
        .min()
    }
}
