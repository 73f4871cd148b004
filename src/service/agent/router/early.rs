//! What a process has said about sessions that it is creating, and the requests that wait until it creates their sessions.
//! [`creation`](super::creation) decides about both.

use std::collections::VecDeque;

use crate::record::record;
use crate::{ClientId, Time};

/// The maximum number of sessions, and of messages and bytes for each session.
const MAX_SESSIONS: usize = 16;
const MAX_MESSAGES: usize = 64;
const MAX_BYTES: usize = 256 << 10;

/// The maximum number of a client's requests that wait for other clients' sessions, and of bytes of all these requests.
const MAX_WAITING: usize = 16;
const MAX_WAITING_BYTES: usize = 16 << 20;

/// The state of a process for the sessions that it is creating.
#[derive(Debug, Default)]
pub(super) struct Creation {
    /// What the agent has said about sessions that do not exist yet. Oldest session first.
    pub(super) early: VecDeque<EarlySession>,
    /// Whether the process creates sessions for one client at a time.
    pub(super) is_single: bool,
    /// Requests of clients that wait until no other client's session is being created. Oldest first.
    pub(super) waiting: VecDeque<WaitingRequest>,
}

record!(Creation {
    early,
    is_single,
    waiting,
});

/// A session that does not exist yet.
#[derive(Debug)]
pub(super) struct EarlySession {
    pub(super) id: Box<str>,
    /// The client that has received its messages.
    pub(super) client: Option<ClientId>,
    /// Whether the client was asked something about it.
    pub(super) is_bound: bool,
    /// The upstream ids of these questions. Those that are answered may be missing.
    pub(super) asked: Vec<u64>,
    /// If a client has received the messages, the updates among them, for those who attach to the session later. Otherwise the
    /// messages, which wait.
    pub(super) messages: VecDeque<Box<str>>,
    pub(super) bytes: usize,
    pub(super) since: Time,
}

record!(EarlySession {
    id,
    client,
    is_bound,
    asked,
    messages,
    bytes,
    since,
});

/// A request that creates a session, and that the agent has not received.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    pub(super) client: ClientId,
    /// The client's own id.
    pub(super) id: Box<str>,
    pub(super) text: Box<str>,
    pub(super) since: Time,
}

record!(WaitingRequest {
    client,
    id,
    text,
    since,
});

impl Creation {
    /// The bytes that wait for sessions, for the client of each.
    pub(super) fn held(&self) -> impl Iterator<Item = (ClientId, usize)> {
        let early = self.early.iter();
        let early = early.filter_map(|session| Some((session.client?, session.bytes)));
        let waiting = self.waiting.iter();
        early.chain(waiting.map(|request| (request.client, request.text.len())))
    }
}

impl EarlySession {
    /// Keeps a message. Returns the number of older messages that were dropped to make room.
    pub(super) fn keep(&mut self, text: &str) -> usize {
        self.bytes += text.len();
        self.messages.push_back(text.into());
        let before = self.messages.len();
        while self.bytes > MAX_BYTES || self.messages.len() > MAX_MESSAGES {
            let Some(oldest) = self.messages.pop_front() else {
                break;
            };
            self.bytes -= oldest.len();
        }
        before - self.messages.len()
    }
}

impl Creation {
    pub(super) fn get(&self, id: &str) -> Option<&EarlySession> {
        self.early.iter().find(|early| &*early.id == id)
    }

    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut EarlySession> {
        self.early.iter_mut().find(|early| &*early.id == id)
    }

    /// The entry of a session, which is new if there is none, and the number of messages that were dropped to make room for it.
    pub(super) fn entry(&mut self, id: &str, since: Time) -> (&mut EarlySession, usize) {
        let mut dropped = 0;
        let known = self.early.iter().position(|early| &*early.id == id);
        let at = known.unwrap_or_else(|| {
            if self.early.len() == MAX_SESSIONS {
                dropped = self.early.pop_front().map_or(0, |oldest| oldest.waiting());
            }
            self.early.push_back(EarlySession {
                id: id.into(),
                client: None,
                is_bound: false,
                asked: Vec::new(),
                messages: VecDeque::new(),
                bytes: 0,
                since,
            });
            self.early.len() - 1
        });
        (&mut self.early[at], dropped)
    }

    /// Keeps a message until its session exists. Returns the number of messages that were dropped to make room.
    pub(super) fn hold(&mut self, id: &str, text: &str, now: Time) -> usize {
        let (early, dropped) = self.entry(id, now);
        dropped + early.keep(text)
    }

    pub(super) fn take(&mut self, id: &str) -> Option<EarlySession> {
        let at = self.early.iter().position(|early| &*early.id == id)?;
        self.early.remove(at)
    }

    /// The number of sessions that were named in questions to a client.
    pub(super) fn bound_count(&self, client: ClientId) -> usize {
        let bound = self.early.iter();
        bound
            .filter(|early| early.is_bound && early.client == Some(client))
            .count()
    }

    /// Whether this id is bound to a client.
    pub(super) fn is_bound_to(&self, client: ClientId, id: &str) -> bool {
        let early = self.get(id);
        early.is_some_and(|early| early.is_bound && early.client == Some(client))
    }

    /// The number of a client's requests that wait.
    pub(super) fn waiting_of(&self, client: ClientId) -> usize {
        let waiting = self.waiting.iter();
        waiting.filter(|one| one.client == client).count()
    }

    /// Whether no more requests of a client may wait, with this one.
    pub(super) fn is_full_for(&self, client: ClientId, text: &str) -> bool {
        let bytes = self.waiting.iter().map(|one| one.text.len());
        self.waiting_of(client) >= MAX_WAITING
            || bytes.sum::<usize>() + text.len() > MAX_WAITING_BYTES
    }

    /// Forgets the sessions for which `is_over` is true. Returns the number of messages that have waited for them.
    pub(super) fn forget(&mut self, is_over: impl Fn(&EarlySession) -> bool) -> usize {
        let mut dropped = 0;
        self.early.retain(|early| {
            let is_over = is_over(early);
            dropped += if is_over { early.waiting() } else { 0 };
            !is_over
        });
        dropped
    }

    /// Forgets everything that a process has said. Returns the number of messages that have waited.
    pub(super) fn forget_early(&mut self) -> usize {
        self.forget(|_| true)
    }
}

impl EarlySession {
    /// The number of messages that wait.
    pub(super) fn waiting(&self) -> usize {
        if self.client.is_none() {
            self.messages.len()
        } else {
            0
        }
    }
}
