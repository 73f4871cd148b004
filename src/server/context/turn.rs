//! What is remembered for later in the turn, or for the next.

use std::collections::VecDeque;

use super::{Context, Life};
use crate::protocol::{CloseReason, Time};
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

    pub(super) fn mark_ready(ready: &mut VecDeque<ClientId>, id: ClientId, client: &mut Client) {
        if client.has_input() && !client.flags.set(Flags::IN_READY, true) {
            ready.push_back(id);
        }
    }

    /// The number of clients that wait to be read.
    pub(in crate::server) fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// The next client to read. After the work of a turn at least one is read.
    pub(in crate::server) fn pop_ready(&mut self, first: bool) -> Option<ClientId> {
        self.is_behind = self.is_turn_spent() && !first;
        if self.is_behind {
            return None;
        }
        let id = self.ready.pop_front()?;
        if let Some(client) = self.registry.get_mut(id) {
            client.flags.set(Flags::IN_READY, false);
        }
        Some(id)
    }

    /// How many clients have output to write.
    pub(in crate::server) fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// The next client with output to write. After the work of a turn at least one is written to.
    pub(in crate::server) fn pop_dirty(&mut self, first: bool) -> Option<ClientId> {
        if self.is_turn_spent() && !first {
            return None;
        }
        self.dirty.pop_front()
    }

    /// Whether there is something for [`Context::pop_doomed`] or [`Context::pop_drained`].
    pub(in crate::server) fn has_news(&self) -> bool {
        !self.doomed.is_empty() || !self.drained.is_empty()
    }

    pub(in crate::server) fn pop_doomed(&mut self) -> Option<(ClientId, CloseReason)> {
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
            self.farewell.next_step(),
            self.trim_at,
            until,
        ]
        .into_iter()
        .flatten()
        .min()
    }
}
