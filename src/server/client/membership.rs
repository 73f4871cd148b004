//! The topics of a client, and the newest message of each that the client could not take.

use std::sync::Arc;

use crate::protocol::OwnedMessage;
use crate::record::record;

/// The number of a topic while it has members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TopicId(pub(crate) u32);

/// Which messages of a topic wait for a member that cannot take them yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Keep {
    /// All of them. They are queued, and a member that does not keep up is closed, as with any other message.
    #[default]
    All,
    /// Only the newest one. Each message replaces the one before it until the member has taken all earlier output.
    Latest,
}

record!(
    enum Keep {
        All,
        Latest,
    }
);

/// A client's membership in a topic.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) topic: TopicId,
    /// The position of the client in the list of the topic's members.
    pub(crate) at: u32,
    /// The newest message, which waits until the client can take it.
    newest: Option<Arc<OwnedMessage>>,
}

impl Membership {
    /// The newest message, which waits until the client can take it.
    pub(crate) fn newest(&self) -> Option<&OwnedMessage> {
        self.newest.as_deref()
    }
}

/// The memberships of a client, sorted by topic.
#[derive(Debug, Default)]
pub(crate) struct Memberships {
    list: Vec<Membership>,
    /// The number of memberships with a message that waits.
    waiting: usize,
    /// Where to look for the next message that waits, so that each topic gets its turn.
    next: usize,
}

impl Memberships {
    /// The memory of a membership in bytes: here, and in the list of the topic's members.
    pub(crate) const EACH: usize = size_of::<Membership>() + 2 * size_of::<u64>();

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Membership> {
        self.list.iter()
    }

    fn find(&self, topic: TopicId) -> Result<usize, usize> {
        self.list.binary_search_by_key(&topic, |one| one.topic)
    }

    pub(crate) fn get(&self, topic: TopicId) -> Option<&Membership> {
        self.list.get(self.find(topic).ok()?)
    }

    /// Adds a membership, unless there is one.
    pub(crate) fn add(&mut self, topic: TopicId, at: u32) {
        if let Err(place) = self.find(topic) {
            let newest = None;
            self.list.insert(place, Membership { topic, at, newest });
        }
    }

    /// Changes the position in the list of the topic's members.
    pub(crate) fn set_at(&mut self, topic: TopicId, at: u32) {
        if let Ok(place) = self.find(topic) {
            self.list[place].at = at;
        }
    }

    pub(crate) fn remove(&mut self, topic: TopicId) -> Option<Membership> {
        let membership = self.list.remove(self.find(topic).ok()?);
        self.waiting -= usize::from(membership.newest.is_some());
        if self.list.is_empty() {
            self.list = Vec::new();
        }
        Some(membership)
    }

    /// Lets a message wait. Returns whether it replaces another one.
    pub(super) fn replace_newest(&mut self, topic: TopicId, message: Arc<OwnedMessage>) -> bool {
        let Ok(place) = self.find(topic) else {
            return false;
        };
        let replaces = self.list[place].newest.replace(message).is_some();
        self.waiting += usize::from(!replaces);
        replaces
    }

    /// Lets a message wait that has waited in another loop.
    pub(crate) fn restore_newest(&mut self, topic: TopicId, message: OwnedMessage) {
        self.replace_newest(topic, Arc::new(message));
    }

    /// Whether a message of a topic waits.
    pub(super) fn awaits(&self, topic: TopicId) -> bool {
        self.waiting > 0 && self.get(topic).is_some_and(|one| one.newest.is_some())
    }

    /// Whether any message waits.
    pub(super) fn has_newest(&self) -> bool {
        self.waiting > 0
    }

    /// Takes one of the messages that wait.
    pub(super) fn take_newest(&mut self) -> Option<Arc<OwnedMessage>> {
        if self.waiting == 0 {
            return None;
        }
        let begin = self.next.min(self.list.len());
        let (before, behind) = self.list.split_at_mut(begin);
        let mut all = behind.iter_mut().chain(before);
        let passed = all.position(|one| one.newest.is_some())?;
        let place = (begin + passed) % self.list.len();
        self.next = place + 1;
        self.waiting -= 1;
        self.list[place].newest.take()
    }

    /// Takes the message of a topic that waits.
    pub(super) fn take_newest_of(&mut self, topic: TopicId) -> Option<Arc<OwnedMessage>> {
        let place = self.find(topic).ok()?;
        let message = self.list[place].newest.take()?;
        self.waiting -= 1;
        Some(message)
    }

    /// Drops the messages that wait.
    pub(super) fn drop_newest(&mut self) {
        while self.take_newest().is_some() {}
    }

    /// The memory in bytes. Clients for which the same message waits share it equally.
    pub(super) fn held(&self) -> usize {
        let waiting = self.list.iter().filter(|_| self.waiting > 0);
        let messages = waiting.filter_map(|one| one.newest.as_ref());
        let messages =
            messages.map(|one| one.as_message().as_bytes().len() / Arc::strong_count(one));
        self.list.capacity() * Self::EACH + messages.sum::<usize>()
    }
}
