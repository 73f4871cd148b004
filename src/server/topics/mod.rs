//! Topics: named sets of clients that get what is published to them.
//!
//! A membership is in the registry, with its client ([`Memberships`](super::client::Memberships)). For each topic, [`Topics`] has an
//! index of its members, so that publishing to a topic visits only these. Three functions of [`Core`] change both together:
//! `subscribe`, `unsubscribe`, and `leave_topics`, which the one disconnect calls. A topic exists while it has members.

use std::cell::Cell;
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use slab::Slab;

use super::client::{Broadcast, Client, Keep, Membership, Memberships, TopicId};
use super::core::Core;
use super::error::SendError;
use super::id::{ClientId, ServiceId};
use super::registry::Registry;
use crate::protocol::{Message, OwnedMessage};
use crate::record::{Saver, record};

/// The maximum length of a topic's name in bytes.
pub(super) const MAX_NAME: usize = 255;

/// Why a client could not be subscribed to a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The client is gone or is being closed.
    Client(SendError),
    /// The name of the topic is empty, or longer than 255 bytes.
    Name,
    /// The client is in as many topics as [`Config::max_topics_per_client`](crate::Config::max_topics_per_client) allows.
    TooManyOfClient,
    /// There are as many topics as [`Config::max_topics`](crate::Config::max_topics) allows.
    TooMany,
}

impl fmt::Display for SubscribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(error) => error.fmt(f),
            Self::Name => write!(f, "the name of a topic has 1 to {MAX_NAME} bytes"),
            Self::TooManyOfClient => f.write_str("the client is in too many topics"),
            Self::TooMany => f.write_str("there are too many topics"),
        }
    }
}

impl Error for SubscribeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Client(error) => Some(error),
            Self::Name | Self::TooManyOfClient | Self::TooMany => None,
        }
    }
}

/// A member of a topic.
#[derive(Clone, Copy, Debug)]
struct Member {
    client: ClientId,
    keep: Keep,
}

#[derive(Debug)]
struct Topic {
    name: Arc<str>,
    service_id: ServiceId,
    members: Vec<Member>,
}

/// A topic as another loop has saved it.
#[derive(Debug)]
pub(super) struct SavedTopic {
    name: String,
    service_id: ServiceId,
    members: Vec<SavedMember>,
}

record!(SavedTopic {
    name,
    service_id,
    members,
});

#[derive(Debug)]
struct SavedMember {
    client: ClientId,
    keep: Keep,
    /// The newest message, which the member has not taken.
    newest: Option<OwnedMessage>,
}

record!(SavedMember {
    client,
    keep,
    newest,
});

/// All topics.
#[derive(Debug, Default)]
pub(super) struct Topics {
    topics: Slab<Topic>,
    /// The topics of each service by name.
    names: HashMap<ServiceId, HashMap<Arc<str>, TopicId>>,
    /// The number of memberships.
    memberships: usize,
    /// The slot of the topic with which the next check begins.
    next_check: Cell<usize>,
}

impl Topics {
    /// The number of topics.
    pub(super) fn len(&self) -> usize {
        self.topics.len()
    }

    /// The number of memberships of all clients.
    pub(super) fn memberships(&self) -> usize {
        self.memberships
    }

    /// Writes the topics down, each as a [`SavedTopic`].
    pub(super) fn save<'a>(&'a self, registry: &'a Registry, to: &mut Saver<'a>) {
        to.array(&self.topics, |to, (slot, topic)| {
            let id = TopicId(slot as u32);
            to.open(b'{');
            to.field("name", &topic.name);
            to.field("service_id", &topic.service_id);
            to.member("members", |to| {
                to.array(&topic.members, |to, member| {
                    let client = registry.get(member.client);
                    let membership = client.and_then(|client| client.wire.memberships()?.get(id));
                    to.open(b'{');
                    to.field("client", &member.client);
                    to.field("keep", &member.keep);
                    if let Some(newest) = membership.and_then(Membership::newest) {
                        to.field("newest", newest);
                    }
                    to.close(b'}');
                });
            });
            to.close(b'}');
        });
    }

    fn find(&self, service_id: ServiceId, name: &str) -> Option<TopicId> {
        self.names.get(&service_id)?.get(name).copied()
    }

    /// The topics with this name of the services that `service_id` includes.
    fn find_all(&self, service_id: ServiceId, name: &str) -> impl Iterator<Item = TopicId> {
        let names = self.names.iter();
        let ours = names.filter(move |(id, _)| service_id.includes(**id));
        ours.filter_map(move |(_, names)| names.get(name).copied())
    }

    fn get(&self, id: TopicId) -> Option<&Topic> {
        self.topics.get(id.0 as usize)
    }

    fn create(&mut self, service_id: ServiceId, name: &str) -> TopicId {
        let name: Arc<str> = name.into();
        let slot = self.topics.insert(Topic {
            name: Arc::clone(&name),
            service_id,
            members: Vec::new(),
        });
        // There is memory for far fewer topics than this.
        let id = TopicId(u32::try_from(slot).unwrap_or(u32::MAX));
        self.names.entry(service_id).or_default().insert(name, id);
        id
    }

    /// Sets which messages wait for the member at a position.
    fn set_keep(&mut self, id: TopicId, at: u32, keep: Keep) {
        let topic = self.topics.get_mut(id.0 as usize);
        if let Some(member) = topic.and_then(|topic| topic.members.get_mut(at as usize)) {
            member.keep = keep;
        }
    }

    /// Adds a member and returns its position.
    fn add(&mut self, id: TopicId, member: Member) -> u32 {
        let members = &mut self.topics[id.0 as usize].members;
        members.push(member);
        self.memberships += 1;
        (members.len() - 1) as u32
    }

    /// Removes the member at a position, and the topic if it was the last one. Another member takes the position: returns which.
    fn remove(&mut self, id: TopicId, at: u32) -> Option<ClientId> {
        let topic = self.topics.get_mut(id.0 as usize)?;
        topic.members.swap_remove(at as usize);
        self.memberships -= 1;
        if topic.members.is_empty() {
            let topic = self.topics.remove(id.0 as usize);
            if let Some(names) = self.names.get_mut(&topic.service_id) {
                names.remove(&topic.name);
            }
            return None;
        }
        if topic.members.len() < topic.members.capacity() / 4 {
            topic.members.shrink_to(2 * topic.members.len());
        }
        topic.members.get(at as usize).map(|moved| moved.client)
    }

    /// The clients whose memberships and the index do not agree. There are none, unless there is a bug. Looks at some of the topics
    /// each time, so that it does not block the loop.
    pub(super) fn disagreement(&self, registry: &Registry) -> Vec<ClientId> {
        /// The number of memberships after which a check ends.
        const MOST: usize = 20_000;
        let mut wrong = Vec::new();
        let mut looked_at = 0;
        let begin = self.next_check.get();
        let behind = self.topics.iter().filter(|(slot, _)| *slot >= begin);
        let before = self.topics.iter().filter(|(slot, _)| *slot < begin);
        for (slot, topic) in behind.chain(before) {
            if looked_at >= MOST {
                break;
            }
            self.next_check.set(slot + 1);
            looked_at += topic.members.len();
            for (at, member) in topic.members.iter().enumerate() {
                let client = registry.get(member.client);
                let membership =
                    client.and_then(|client| client.wire.memberships()?.get(TopicId(slot as u32)));
                if membership.is_none_or(|one| one.at as usize != at) {
                    wrong.push(member.client);
                }
            }
        }
        let kept: usize = registry
            .iter()
            .map(|client| client.wire.memberships().map_or(0, Memberships::len))
            .sum();
        if kept != self.memberships {
            let members = registry
                .iter()
                .filter(|client| client.wire.memberships().is_some());
            wrong.extend(members.map(|client| client.id));
        }
        wrong
    }
}

impl Core {
    /// Subscribes a client of the current service to a topic, or changes what it keeps. Returns whether it was no member before.
    pub(super) fn subscribe(
        &mut self,
        id: ClientId,
        name: &str,
        keep: Keep,
    ) -> Result<bool, SubscribeError> {
        if !(1..=MAX_NAME).contains(&name.len()) {
            return Err(SubscribeError::Name);
        }
        let Self {
            topics,
            registry,
            env,
            service_id,
            ..
        } = self;
        let client = registry.get_mut(id);
        let client = client.filter(|client| service_id.includes(client.service_id));
        let client = client.ok_or(SubscribeError::Client(SendError::Gone))?;
        if !client.wire.is_open() {
            return Err(SubscribeError::Client(SendError::Closing));
        }
        let known = topics.find(client.service_id, name);
        let memberships = client.wire.memberships();
        let count = memberships.map_or(0, Memberships::len);
        let membership = memberships.and_then(|memberships| memberships.get(known?));
        if let (Some(topic), Some(membership)) = (known, membership) {
            topics.set_keep(topic, membership.at, keep);
            if keep == Keep::All {
                client.queue_newest(env, topic);
            }
            return Ok(false);
        }
        let limit = if count >= env.config.max_topics_per_client {
            Some(SubscribeError::TooManyOfClient)
        } else if known.is_none() && topics.len() >= env.config.max_topics {
            Some(SubscribeError::TooMany)
        } else {
            None
        };
        if let Some(limit) = limit {
            env.counters.refused_subscriptions += 1;
            return Err(limit);
        }
        let topic = known.unwrap_or_else(|| topics.create(client.service_id, name));
        let at = topics.add(topic, Member { client: id, keep });
        client.wire.memberships_mut().add(topic, at);
        env.memory.add(Memberships::EACH);
        Ok(true)
    }

    /// Ends a client's subscription. Returns whether it was a member.
    pub(super) fn unsubscribe(&mut self, id: ClientId, name: &str) -> bool {
        let Some(client) = self.own_ref(id) else {
            return false;
        };
        let Some(topic) = self.topics.find(client.service_id, name) else {
            return false;
        };
        let Some(client) = self.registry.get_mut(id) else {
            return false;
        };
        let removed = client.wire.memberships_mut().remove(topic);
        client.wire.shrink();
        match removed {
            Some(membership) => {
                self.forget_member(topic, membership.at);
                true
            }
            None => false,
        }
    }

    /// Ends all subscriptions of a client that was removed from the registry.
    pub(super) fn leave_topics(&mut self, client: &Client) {
        for membership in client
            .wire
            .memberships()
            .into_iter()
            .flat_map(Memberships::iter)
        {
            self.forget_member(membership.topic, membership.at);
        }
    }

    /// Makes the clients that another loop has saved members of their topics again.
    pub(super) fn restore_topics(
        &mut self,
        saved: Vec<SavedTopic>,
        services: &HashMap<ServiceId, ServiceId>,
    ) {
        for topic in saved {
            let Some(service_id) = services.get(&topic.service_id) else {
                continue;
            };
            let mut known = None;
            for SavedMember {
                client: id,
                keep,
                newest,
            } in topic.members
            {
                let Some(client) = self.registry.get_mut(id) else {
                    continue;
                };
                let topic =
                    *known.get_or_insert_with(|| self.topics.create(*service_id, &topic.name));
                let at = self.topics.add(topic, Member { client: id, keep });
                client.wire.memberships_mut().add(topic, at);
                if let Some(message) = newest {
                    client.wire.memberships_mut().restore_newest(topic, message);
                }
            }
        }
    }

    /// Removes a member from the index.
    fn forget_member(&mut self, topic: TopicId, at: u32) {
        let moved = self.topics.remove(topic, at);
        if let Some(client) = moved.and_then(|id| self.registry.get_mut(id)) {
            client.wire.memberships_mut().set_at(topic, at);
        }
    }

    /// Sends a message to the members of a topic for which `to` returns true. Returns the number of members that it
    /// was sent to, or for which it waits.
    pub(super) fn publish(
        &mut self,
        name: &str,
        message: Message<'_>,
        mut to: impl FnMut(ClientId) -> bool,
    ) -> usize {
        let Self {
            topics,
            registry,
            env,
            service_id,
            ..
        } = self;
        let (mut sent, mut visited) = (0, 0);
        let mut broadcast = Broadcast::new(message);
        for id in topics.find_all(*service_id, name) {
            let Some(topic) = topics.get(id) else {
                continue;
            };
            visited += topic.members.len();
            for member in &topic.members {
                if to(member.client)
                    && let Some(client) = registry.get_mut(member.client)
                {
                    let taken = client.publish(env, id, member.keep, &mut broadcast);
                    sent += usize::from(taken);
                }
            }
        }
        env.counters.published += 1;
        env.count_broadcast(&broadcast, visited, sent);
        sent
    }

    /// The members of a topic.
    pub(super) fn subscribers(&self, name: &str) -> impl Iterator<Item = ClientId> {
        let topics = self.topics.find_all(self.service_id, name);
        let members = topics.filter_map(|id| Some(&self.topics.get(id)?.members));
        members.flatten().map(|member| member.client)
    }

    /// The names of the topics of a client.
    pub(super) fn topics_of(&self, id: ClientId) -> impl Iterator<Item = &str> {
        let client = self.own_ref(id);
        let memberships = client.and_then(|client| client.wire.memberships());
        let memberships = memberships.into_iter().flat_map(Memberships::iter);
        memberships.filter_map(|one| Some(&*self.topics.get(one.topic)?.name))
    }

    /// The names of the topics of the current service, each with the number of its members.
    pub(super) fn all_topics(&self) -> impl Iterator<Item = (&str, usize)> {
        let topics = self.topics.topics.iter().map(|(_, topic)| topic);
        let ours = topics.filter(|topic| self.service_id.includes(topic.service_id));
        ours.map(|topic| (&*topic.name, topic.members.len()))
    }
}

#[cfg(test)]
mod tests;
