//! The queues of clients with pending work: input to read, output to write, and news for the loop.

use std::collections::VecDeque;

use super::id::ClientId;

/// A change of a client that the loop handles before the next task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Its deadline may have changed.
    Rearm,
    /// Its output has drained after it was congested.
    Drained,
    /// Its connection is over.
    Closing,
}

/// The pending work of clients. The loop ignores the id of a client that is gone.
#[derive(Debug, Default)]
pub(super) struct RunQueue {
    /// Clients to read in the next turn.
    readable: VecDeque<ClientId>,
    /// Clients in their TLS handshake, to be read in the next turn after the other clients, because a handshake costs much
    /// more than a message.
    handshakes: VecDeque<ClientId>,
    /// Clients with output to write at the end of this turn.
    dirty: VecDeque<ClientId>,
    /// News that the loop handles after the current task.
    news: VecDeque<(ClientId, News)>,
    /// Whether the last turn left readable clients unread. They come before clients with new events.
    is_behind: bool,
}

impl RunQueue {
    /// Queues a client to be read in the next turn.
    pub(super) fn push_readable(&mut self, id: ClientId) {
        self.readable.push_back(id);
    }

    /// Queues a client to continue its TLS handshake in the next turn.
    pub(super) fn push_handshake(&mut self, id: ClientId) {
        self.handshakes.push_back(id);
    }

    /// The number of clients to continue a TLS handshake with.
    pub(super) fn handshake_count(&self) -> usize {
        self.handshakes.len()
    }

    /// The next client to continue a TLS handshake with.
    pub(super) fn pop_handshake(&mut self) -> Option<ClientId> {
        self.handshakes.pop_front()
    }

    /// Queues a client's output to be written at the end of this turn.
    pub(super) fn push_dirty(&mut self, id: ClientId) {
        self.dirty.push_back(id);
    }

    /// Queues news of a client.
    pub(super) fn push_news(&mut self, id: ClientId, news: News) {
        self.news.push_back((id, news));
    }

    /// The number of clients to read.
    pub(super) fn readable_count(&self) -> usize {
        self.readable.len()
    }

    /// The next client to read, or `None` if this turn has used up its budget (`is_spent`).
    pub(super) fn pop_readable(&mut self, is_spent: bool) -> Option<ClientId> {
        self.is_behind = is_spent && !self.readable.is_empty();
        if is_spent {
            return None;
        }
        self.readable.pop_front()
    }

    /// Whether the last turn left clients unread.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// The number of clients with output to write.
    pub(super) fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// The next client with output to write.
    pub(super) fn pop_dirty(&mut self) -> Option<ClientId> {
        self.dirty.pop_front()
    }

    /// The oldest news.
    pub(super) fn pop_news(&mut self) -> Option<(ClientId, News)> {
        self.news.pop_front()
    }

    /// Whether work is left over for the next turn, so that the loop must not sleep.
    pub(super) fn has_work(&self) -> bool {
        !self.readable.is_empty()
            || !self.handshakes.is_empty()
            || !self.dirty.is_empty()
            || !self.news.is_empty()
    }
}
