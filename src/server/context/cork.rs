//! The cork: output for the client whose input is being handled, and the short way of its messages.

use super::Context;
use crate::protocol::{Input, Message, SentHeader, take_whole_message};
use crate::server::client::{Client, Traffic};
use crate::server::id::ClientId;

/// Replies of one read are gathered up to this size before they are written.
pub(super) const CORK: usize = 256 << 10;

/// A payload of this size is written from where it lies instead of being gathered, if nothing comes after it.
pub(super) const DIRECT: usize = 16 << 10;

/// A payload of this size is never gathered: below it, a copy costs less than a further write.
pub(super) const LARGE: usize = 128 << 10;

/// Output for the client that is being read, written in one piece afterwards.
///
/// Most of what is read is a number of short messages of a client about which there is nothing out of the ordinary,
/// and short answers to them. Such a client is looked at once, before the first of them, and then only after the
/// registry has given out any connection to be changed; what is to be noted about it is noted at the end.
#[derive(Debug, Default)]
pub(super) struct Cork {
    /// Whose output it is.
    pub(super) client: Option<ClientId>,
    /// The output: nothing while there is no client.
    pub(super) bytes: Vec<u8>,
    /// Whether the client has sent more than the message that is being handled, so that more output may follow.
    pub(super) more_input: bool,
    /// Messages that came the short way and are not yet noted.
    received: u64,
    /// Messages that left the short way and are not yet noted.
    sent: u64,
}

impl Cork {
    /// The bytes that are gathered for a client.
    pub(super) fn gathered(&self, id: ClientId) -> usize {
        if self.client == Some(id) {
            self.bytes.len()
        } else {
            0
        }
    }
}

impl Context {
    /// From here to `uncork`, its service is at work and output for this client is gathered.
    pub(in crate::server) fn cork(&mut self, id: ClientId) {
        debug_assert!(self.cork.client.is_none() && self.cork.bytes.is_empty());
        self.enter(id);
        self.cork.client = Some(id);
        self.look_at(id);
    }

    /// Writes what was gathered.
    pub(in crate::server) fn uncork(&mut self, id: ClientId) {
        self.write_cork(id);
        self.note_messages(id);
        self.cork.client = None;
        if self.cork.bytes.capacity() > 2 * CORK {
            self.cork.bytes = Vec::new();
        }
        self.settle(id);
    }

    /// Sees whether the messages of the corked client can go the short way from here on.
    fn look_at(&mut self, id: ClientId) {
        // The rate limit has to be asked before each message is told.
        let is_plain = self.config.rate_limit.is_none()
            && self.registry.get(id).is_some_and(|client| {
                client.connection.is_at_rest()
                    && self.service_id.includes(client.service_id)
                    && client.backlog.is_none()
                    && !self.holds_input_of(client)
            });
        if is_plain {
            self.registry.watch();
        } else {
            self.registry.note_change();
        }
    }

    /// Takes a message from the corked client that lies whole at the front of its input, if it can go the short way.
    pub(in crate::server) fn receive_whole<'a>(
        &mut self,
        id: ClientId,
        input: &mut Input<'a>,
    ) -> Option<Message<'a>> {
        if !self.registry.is_unchanged() {
            return None;
        }
        match take_whole_message(input, &mut self.shared)? {
            Ok(message) => {
                self.cork.received += 1;
                self.cork.more_input = !input.is_empty();
                Some(message)
            }
            Err(error) => {
                input.clear();
                let client = self.registry.get_mut(id)?;
                client
                    .connection
                    .fail(self.now, error, &mut self.cork.bytes);
                None
            }
        }
    }

    /// Gathers a message, if it is one to the corked client that can go the short way.
    #[inline(always)]
    pub(super) fn gather(&mut self, id: ClientId, message: Message<'_>) -> bool {
        let payload = message.as_bytes();
        let most = self.config.soft_outbound.min(CORK - DIRECT);
        let is_plain = self.cork.client == Some(id) && self.registry.is_unchanged();
        if !is_plain || payload.len() >= DIRECT || self.cork.bytes.len() > most {
            return false;
        }
        self.cork.sent += 1;
        SentHeader::new(message.opcode(), payload.len()).append_with(payload, &mut self.cork.bytes);
        true
    }

    /// What went through a connection, what is not yet noted included.
    pub(in crate::server) fn traffic_of(&self, id: ClientId, client: &Client) -> Traffic {
        let mut traffic = client.traffic;
        if self.cork.client == Some(id) {
            traffic.messages_in += self.cork.received;
            traffic.messages_out += self.cork.sent;
        }
        traffic
    }

    /// Notes the messages that came and left the short way.
    fn note_messages(&mut self, id: ClientId) {
        let (received, sent) = (self.cork.received, self.cork.sent);
        if received + sent == 0 {
            return;
        }
        (self.cork.received, self.cork.sent) = (0, 0);
        if let Some(client) = self.registry.get_mut(id) {
            client.traffic.messages_in += received;
            client.traffic.messages_out += sent;
            client.connection.handle_message(self.now);
        }
    }

    /// Whether the corked client's input has to wait: its output is over the soft limit, its call is not answered, or
    /// it has had its turn. A service that takes no messages holds back only those: see [`Context::receive`].
    pub(in crate::server) fn has_to_wait(&mut self, id: ClientId) -> bool {
        // Nothing can have become of it.
        if self.registry.is_unchanged() && self.paused == 0 {
            return false;
        }
        self.write_full_cork();
        let waits = self.is_congested(id) || self.is_answering(id) || self.is_turn_over();
        if !waits {
            self.look_at(id);
        }
        waits
    }

    /// Begins a client's turn.
    pub(in crate::server) fn begin_turn(&mut self) {
        self.turn_began = self.shared.decompressed();
        self.begin_share();
    }

    /// Whether the messages of this turn have used up the client's share: in decompressed bytes, or in work.
    pub(in crate::server) fn is_turn_over(&self) -> bool {
        self.is_share_spent()
            || self.shared.decompressed() - self.turn_began >= self.config.turn_bytes.max(1) as u64
    }

    /// Writes what was gathered, if that is enough for a write.
    pub(super) fn write_full_cork(&mut self) {
        if let Some(id) = self.cork.client
            && self.cork.bytes.len() >= CORK
        {
            self.write_cork(id);
        }
    }

    pub(super) fn write_cork(&mut self, id: ClientId) {
        if self.cork.bytes.is_empty() {
            return;
        }
        let bytes = std::mem::take(&mut self.cork.bytes);
        self.write_now(id, &[&bytes]);
        self.cork.bytes = bytes;
        self.cork.bytes.clear();
    }
}
