//! Who gets which message: clients, agent and time in, lines and frames out. No I/O in here.
//!
//! The invariants, checked by the tests and the fuzzer:
//!
//! * A request is recorded before its bytes leave, and forgotten with its answer or its client.
//! * Every entry of every table has one owner, and goes when the owner goes.
//! * A message that names a session passes only between the agent and the session's owner.
//! * Ids on the way are ours and never used twice; what comes back has the bytes that were sent.

mod from_agent;
mod from_client;
mod sessions;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::answer::{answer_for_nobody, code};
use super::initialize::{Capabilities, Initialize};
use super::json::{quote, unescape};
use crate::{ClientId, CloseCode, Histogram, Time};

/// The longest id, in bytes as it is written.
pub(super) const MAX_ID: usize = 1024;
/// New sessions of clients that have left, to be caught when the agent answers.
const MAX_ABANDONED: usize = 1024;
/// The longest session id, in bytes of text.
const MAX_SESSION_ID: usize = 1024;

/// The most that one client may have, or be owed, at a time; and all together, where that is said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouterLimits {
    /// Requests that wait for the agent's answer.
    pub(crate) waiting: usize,
    /// Sessions.
    pub(crate) sessions: usize,
    /// Sessions of all clients together, those that wait for their owners included.
    pub(crate) all_sessions: usize,
    /// Requests of the agent that wait for the client's answer.
    pub(crate) asked: usize,
    /// Whether the agent speaks ACP: `initialize` comes first, and sessions have owners.
    pub(crate) acp: bool,
    /// How long a session waits for its owner to come back.
    pub(crate) grace: Option<Duration>,
}

/// Where messages go.
pub(crate) trait Wires {
    /// The line that has to come before all others.
    fn initialize_agent(&mut self, parts: &[&str]);
    /// A line to the agent, in parts.
    fn to_agent(&mut self, parts: &[&str]);
    /// A message to a client, in parts.
    fn to_client(&mut self, client: ClientId, parts: &[&str]);
    /// Ends a client.
    fn close(&mut self, client: ClientId, code: CloseCode, reason: &str);
    /// A fresh secret that nobody can guess.
    fn secret(&mut self) -> String;
}

/// What the router knows of a client.
#[derive(Debug, Default)]
struct Peer {
    /// Whether its first message was `initialize`.
    initialized: bool,
    capabilities: Capabilities,
    waiting: Vec<u64>,
    asked: Vec<u64>,
    sessions: Vec<Arc<str>>,
}

/// A client's request that the agent has.
#[derive(Debug)]
struct Waiting {
    client: ClientId,
    /// The id under which the agent has it.
    ours: u64,
    /// The client's id, as it was written.
    id: Box<str>,
    class: Class,
    /// The session it names.
    session: Option<Arc<str>>,
    since: Time,
}

/// What a request's answer means for the router.
#[derive(Debug, PartialEq, Eq)]
enum Class {
    /// A session comes of it: `session/new`, `session/fork`.
    Create,
    /// The named session is bound with it: `session/load`, `session/resume`. `before` is what it was bound to.
    Claim {
        before: Option<Before>,
    },
    /// The named session ends with it.
    End,
    List,
    Prompt,
    Other,
}

/// What a session was before a client asked for it: how it stands again if the agent says no.
#[derive(Debug, PartialEq, Eq)]
struct Before {
    owner: Option<ClientId>,
    token: String,
    left: Option<Time>,
    lost: bool,
}

/// A request of the agent that a client has.
#[derive(Debug)]
struct Asked {
    client: ClientId,
    /// The agent's id, as it was written.
    id: Box<str>,
    session: Box<str>,
    permission: bool,
}

#[derive(Debug)]
struct Session {
    owner: Option<ClientId>,
    /// What its owner can come back with.
    token: String,
    /// When its owner left.
    left: Option<Time>,
    /// The request that it is bound by, until the agent has answered it.
    claim: Option<u64>,
    /// Whether the agent that knew it has died: it has to be loaded again before anything else.
    lost: bool,
}

/// What was counted so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Requests that clients made of the agent: for sessions, prompts, and others.
    pub(crate) session_requests: u64,
    pub(crate) prompts: u64,
    pub(crate) other_requests: u64,
    pub(crate) initializes: u64,
    pub(crate) notifications: u64,
    /// Requests that were refused because the session is another's.
    pub(crate) denied: u64,
    /// Messages that were meant for nobody.
    pub(crate) dropped: u64,
    /// From a request to its answer.
    pub(crate) answers: Histogram,
}

/// The tables of a shared agent.
#[derive(Debug)]
pub(crate) struct Router {
    limits: RouterLimits,
    peers: HashMap<ClientId, Peer>,
    sessions: HashMap<Arc<str>, Session>,
    waiting: HashMap<u64, Waiting>,
    asked: HashMap<u64, Asked>,
    /// Requests for new sessions whose clients have left: their sessions are nobody's to have.
    abandoned: HashSet<u64>,
    initialize: Initialize,
    /// Whether a session has begun to wait for its owner since this was last asked.
    left: bool,
    next_id: u64,
    counters: Counters,
}

impl Router {
    pub(crate) fn new(limits: RouterLimits) -> Self {
        Self {
            limits,
            peers: HashMap::new(),
            sessions: HashMap::new(),
            waiting: HashMap::new(),
            asked: HashMap::new(),
            abandoned: HashSet::new(),
            left: false,
            initialize: Initialize::Never,
            next_id: 0,
            counters: Counters::default(),
        }
    }

    // Questions.

    /// Requests that wait for the agent.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Requests of the agent that wait for clients.
    pub(crate) fn asked_count(&self) -> usize {
        self.asked.len()
    }

    /// Sessions that are bound to a client, or wait for one to come back.
    pub(crate) fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Who a session is bound to.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn owner_of(&self, session: &str) -> Option<ClientId> {
        self.sessions.get(session).and_then(|session| session.owner)
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether a client waits for an answer, or owes one.
    pub(crate) fn is_busy(&self, client: ClientId) -> bool {
        self.peers
            .get(&client)
            .is_some_and(|peer| !peer.waiting.is_empty() || !peer.asked.is_empty())
            || self.initialize.is_wanted_by(client)
    }

    /// When [`Router::handle_timeout`] is to be called, if ever.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let grace = self.limits.grace?;
        self.sessions
            .values()
            .filter_map(|session| session.left)
            .min()
            .map(|left| left + grace)
    }

    /// Whether a session has begun to wait for its owner since the last call: there is a new deadline.
    pub(crate) fn take_left(&mut self) -> bool {
        std::mem::take(&mut self.left)
    }

    /// Whether the agent refuses to be initialized again: it is of no use to anyone.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.initialize, Initialize::Asked { refused: true, .. })
    }

    // Clients.

    pub(crate) fn handle_connected(&mut self, client: ClientId) {
        let initialized = !self.limits.acp;
        self.peers.insert(
            client,
            Peer {
                initialized,
                ..Peer::default()
            },
        );
    }

    /// A client is gone: everything of it goes.
    pub(crate) fn handle_disconnected(
        &mut self,
        now: Time,
        client: ClientId,
        wires: &mut impl Wires,
    ) {
        let Some(peer) = self.peers.remove(&client) else {
            return;
        };
        self.initialize.forget(client);
        let mut cancelled: Vec<Arc<str>> = Vec::new();
        for id in peer.waiting {
            let Some(waiting) = self.waiting.remove(&id) else {
                continue;
            };
            match (waiting.class, waiting.session) {
                // A session that has moved on is not this client's to stop.
                (Class::Prompt, Some(session))
                    if self.is_owner(client, &session) && !cancelled.contains(&session) =>
                {
                    cancelled.push(session);
                }
                (Class::Claim { before }, Some(session)) => self.unclaim(now, id, &session, before),
                (Class::Create, _) if self.abandoned.len() < MAX_ABANDONED => {
                    self.abandoned.insert(id);
                }
                _ => {}
            }
        }
        for session in cancelled {
            wires.to_agent(&cancel(&quote(&session)));
        }
        for id in peer.asked {
            if let Some(asked) = self.asked.remove(&id) {
                wires.to_agent(&[&answer_for_nobody(&asked.id, asked.permission)]);
            }
        }
        for session in peer.sessions {
            if self
                .sessions
                .get(&session)
                .is_none_or(|bound| bound.owner != Some(client))
            {
                continue;
            }
            if self.limits.grace.is_none() {
                self.sessions.remove(&session);
            } else if let Some(bound) = self.sessions.get_mut(&session) {
                bound.owner = None;
                bound.left = Some(now);
                self.left = true;
            }
        }
    }

    /// Releases the sessions whose owners have not come back.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        let Some(grace) = self.limits.grace else {
            return;
        };
        self.sessions
            .retain(|_, session| session.left.is_none_or(|left| left + grace > now));
    }

    // The agent.

    /// The agent is gone: whoever waits is told at once, and its sessions are gone with it.
    pub(crate) fn handle_agent_exited(&mut self, data: &str, wires: &mut impl Wires) {
        let failed = |id: &str| {
            let error = format!(
                r#"{{"code":{},"message":"Agent exited","data":{data}}}"#,
                code::EXITED
            );
            [r#"{"jsonrpc":"2.0","id":"#, id, r#","error":"#, &error, "}"].concat()
        };
        for (client, id) in self.initialize.take_wanted() {
            wires.to_client(client, &[&failed(&id)]);
        }
        let mut ids: Vec<u64> = self.waiting.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            if let Some(waiting) = self.waiting.remove(&id) {
                wires.to_client(waiting.client, &[&failed(&waiting.id)]);
            }
        }
        self.asked.clear();
        self.abandoned.clear();
        for peer in self.peers.values_mut() {
            peer.waiting.clear();
            peer.asked.clear();
        }
        // A session stays its owner's, for the agent may have kept it on disk; but this agent's memory of it is gone.
        let peers = &mut self.peers;
        self.sessions.retain(|session, bound| {
            if bound.claim.take().is_some() {
                // Not answered, so not bound.
                if let Some(peer) = bound.owner.and_then(|owner| peers.get_mut(&owner)) {
                    remove(&mut peer.sessions, session);
                }
                return false;
            }
            bound.lost = true;
            true
        });
    }

    /// A new agent is there: it is initialized with the parameters that the first one got.
    pub(crate) fn handle_agent_started(&mut self, wires: &mut impl Wires) {
        self.next_id += 1;
        if self.initialize.ask_again(self.next_id) {
            self.ask_to_initialize(wires);
        }
    }

    /// Whether `initialize` has been asked and not been answered.
    pub(crate) fn is_initializing(&self) -> bool {
        matches!(self.initialize, Initialize::Asked { .. })
    }
}

/// The client may not have the session that it named.
struct Denied;

/// The notification that stops what runs in a session, named by its quoted id.
fn cancel(session: &str) -> [&str; 3] {
    [
        r#"{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"#,
        session,
        "}}",
    ]
}

/// One of our own ids: a whole number as we write it, and not its string.
fn our_id(raw: &str) -> Option<u64> {
    raw.parse().ok().filter(|id: &u64| id.to_string() == raw)
}

/// Whether two ids are the same JSON value: 1 is not "1" and not 1.0, but "a" is "\u0061".
fn same_id(a: &str, b: &str) -> bool {
    match (a.starts_with('"'), b.starts_with('"')) {
        (true, true) => unescape(a) == unescape(b),
        (false, false) => a == b,
        _ => false,
    }
}

fn remove<T: PartialEq>(list: &mut Vec<T>, item: &T) {
    if let Some(at) = list.iter().position(|other| other == item) {
        list.swap_remove(at);
    }
}
