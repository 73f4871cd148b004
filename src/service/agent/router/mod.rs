//! Who gets which message: clients, agent and time in, lines and frames out. No I/O in here.
//!
//! The invariants, checked by the tests and the fuzzer:
//!
//! * A request is recorded before its bytes leave, and forgotten with its answer or its client.
//! * Every entry of every table has one owner, and goes when the owner goes.
//! * A message that names a session passes only between the agent and the client that controls the session
//!   (`sessions.rs` has the rules).
//! * Ids on the way are ours and never used twice; what comes back has the bytes that were sent.

mod early;
mod ended;
mod from_agent;
mod from_client;
mod sessions;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::answer::{answer_for_nobody, code};
use super::envelope::{Envelope, is_spelling_of};
use super::initialize::{Capabilities, Initialize};
use super::json::{Skimmer, quote, unescape};
use crate::{ClientId, CloseCode, Histogram, Principal, Time};
use early::Early;
use ended::Ended;
use sessions::Session;

/// The longest id, in bytes as it is written.
pub(super) const MAX_ID: usize = 1024;

/// The longest first message of a client, in bytes. It is kept for as long as the agent runs.
pub(super) const MAX_INITIALIZE: usize = 1 << 20;
/// The maximum of requests kept whose clients have disconnected; the agent may still work on them.
const MAX_ORPHANS: usize = 1024;
/// Elicitations of one client that are remembered until they are completed, and the longest id of one.
const MAX_ELICITATIONS: usize = 64;
const MAX_ELICITATION_ID: usize = 256;
/// The longest session id, in bytes of text.
const MAX_SESSION_ID: usize = 1024;

/// The most that one client may have, or be owed, at a time; and all together, where that is said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouterLimits {
    /// Requests that wait for the agent's answer.
    pub(crate) waiting: usize,
    /// Sessions.
    pub(crate) sessions: usize,
    /// Sessions of all clients together, those that wait for their clients and those that are under way included.
    pub(crate) all_sessions: usize,
    /// Sessions that have ended and are remembered.
    pub(crate) ended_sessions: usize,
    /// Requests of the agent that wait for the client's answer.
    pub(crate) asked: usize,
    /// Whether the agent speaks ACP: `initialize` comes first, and sessions have owners.
    pub(crate) acp: bool,
    /// How long a session waits in the table for its client to come back.
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
#[derive(Debug)]
struct Peer {
    principal: Principal,
    /// Whether its first message was `initialize`.
    initialized: bool,
    capabilities: Capabilities,
    waiting: Vec<u64>,
    asked: Vec<u64>,
    /// The sessions that it controls.
    sessions: Vec<Arc<str>>,
    /// Those whose tokens it was sent after its last message.
    unread: Vec<Arc<str>>,
    /// Elicitations that it was asked for, whose completion is for it alone: the last ones.
    elicitations: VecDeque<Box<str>>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// A session comes of it: `session/new`, `session/fork`.
    Create,
    /// The client gets the named session with it: `session/load`, `session/resume`.
    Claim,
    /// The named session ends with it.
    End,
    List,
    Prompt,
    Other,
}

/// A request for a session whose client has left.
#[derive(Debug)]
struct Abandoned {
    principal: Principal,
    /// The session that it names; `None` if a new one comes of it.
    session: Option<Arc<str>>,
}

/// A request of the agent that a client has.
#[derive(Debug)]
struct Asked {
    client: ClientId,
    /// The agent's id, as it was written.
    id: Box<str>,
    permission: bool,
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
    /// Messages that were refused because of the session that they name.
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
    /// How many of the waiting requests are for new sessions.
    creating: usize,
    /// Requests for sessions whose clients have left: what comes of them is kept for their principals.
    abandoned: HashMap<u64, Abandoned>,
    /// Other requests of clients that have left.
    orphans: HashSet<u64>,
    /// Messages of the agent for sessions that have no owner yet.
    early: Early,
    ended: Ended,
    /// The number of the agent that runs. Each one knows only its own sessions.
    agent: u32,
    initialize: Initialize,
    /// Whether a session has begun to wait for its client since this was last asked.
    left: bool,
    /// Whether the server stops, so that nothing new is begun.
    is_draining: bool,
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
            creating: 0,
            abandoned: HashMap::new(),
            orphans: HashSet::new(),
            early: Early::default(),
            ended: Ended::new(limits.ended_sessions),
            agent: 0,
            left: false,
            is_draining: false,
            initialize: Initialize::Never,
            next_id: 0,
            counters: Counters::default(),
        }
    }

    /// Refuses new requests from here on.
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
    }

    // Questions.

    #[cfg(test)]
    pub(crate) fn limits(&self) -> RouterLimits {
        self.limits
    }

    /// Bytes that are kept of the requests that wait.
    #[cfg(test)]
    pub(crate) fn kept_for_requests(&self) -> usize {
        let waiting = self.waiting.values();
        let waiting = waiting.map(|it| it.id.len() + it.session.as_ref().map_or(0, |it| it.len()));
        let asked = self.asked.values().map(|asked| asked.id.len());
        waiting.chain(asked).sum()
    }

    /// Requests that wait for the agent.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Requests of the agent that wait for clients.
    pub(crate) fn asked_count(&self) -> usize {
        self.asked.len()
    }

    /// Sessions that a client controls, or that wait for one to come back.
    pub(crate) fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Sessions that have ended and are remembered.
    pub(crate) fn ended_count(&self) -> usize {
        self.ended.len()
    }

    /// Who controls a session.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn owner_of(&self, session: &str) -> Option<ClientId> {
        self.controller_of(session)
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

    /// Whether a client controls a session.
    pub(crate) fn has_session(&self, client: ClientId) -> bool {
        let peer = self.peers.get(&client);
        peer.is_some_and(|peer| !peer.sessions.is_empty())
    }

    /// When [`Router::handle_timeout`] is to be called, if ever.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let grace = self.limits.grace?;
        self.first_left().map(|left| left + grace)
    }

    /// Whether a session has begun to wait for its client since the last call: there is a new deadline.
    pub(crate) fn take_left(&mut self) -> bool {
        std::mem::take(&mut self.left)
    }

    /// Whether the agent refuses to be initialized again: it is of no use to anyone.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.initialize, Initialize::Asked { refused: true, .. })
    }

    // Clients.

    pub(crate) fn handle_connected(&mut self, client: ClientId, principal: Principal) {
        self.peers.insert(
            client,
            Peer {
                principal,
                initialized: !self.limits.acp,
                capabilities: Capabilities::default(),
                waiting: Vec::new(),
                asked: Vec::new(),
                sessions: Vec::new(),
                unread: Vec::new(),
                elicitations: VecDeque::new(),
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
        let principal = peer.principal;
        for id in peer.waiting {
            let Some(waiting) = self.forget_waiting(id) else {
                continue;
            };
            match (waiting.class, waiting.session) {
                (Class::Prompt, Some(session)) => {
                    // One that was closed may be another's by now.
                    let is_own = self.controller_of(&session) == Some(client);
                    if is_own && !cancelled.contains(&session) {
                        cancelled.push(session);
                    }
                }
                (Class::Claim, Some(session)) if self.is_only_asked_for(&session) => {
                    let session = Some(session);
                    self.abandoned.insert(id, Abandoned { principal, session });
                }
                (Class::Create, _) => {
                    let session = None;
                    self.abandoned.insert(id, Abandoned { principal, session });
                }
                (_, None) if self.orphans.len() < MAX_ORPHANS => _ = self.orphans.insert(id),
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
            self.leave(now, client, &session);
        }
        self.drop_early();
    }

    /// Ends the sessions whose clients have not come back.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if let Some(grace) = self.limits.grace {
            self.end_left(|left| left + grace <= now);
        }
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
            if let Some(waiting) = self.forget_waiting(id) {
                wires.to_client(waiting.client, &[&failed(&waiting.id)]);
            }
        }
        self.asked.clear();
        self.abandoned.clear();
        self.orphans.clear();
        self.drop_early();
        for peer in self.peers.values_mut() {
            peer.waiting.clear();
            peer.asked.clear();
        }
        self.lose_all();
    }

    /// Takes a request out of those that wait.
    fn forget_waiting(&mut self, ours: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&ours)?;
        self.creating -= usize::from(waiting.class == Class::Create);
        Some(waiting)
    }

    /// No waiting request can create a session any more, so early messages are dropped.
    fn drop_early(&mut self) {
        if self.creating == 0 {
            self.counters.dropped += self.early.clear();
        }
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

/// Whether a method stops a request that it names: those of the Agent Client Protocol, of the Language Server Protocol,
/// and of the Model Context Protocol.
fn is_cancellation(method: &str) -> bool {
    matches!(
        method,
        "$/cancel_request" | "$/cancelRequest" | "notifications/cancelled"
    )
}

/// The id of the request that a cancellation names.
fn cancelled_id(envelope: &Envelope<'_>) -> Result<Range<usize>, &'static str> {
    let missing = "a cancellation needs exactly one of \"requestId\" and \"id\"";
    let body = envelope.body.as_ref().ok_or(missing)?;
    let (mut found, mut count, mut is_spelled) = (None, 0, false);
    let walked = Skimmer::at(envelope.text, body).object(|key, value| {
        if is_spelling_of(&key, "requestId") || is_spelling_of(&key, "id") {
            is_spelled = matches!(&*key, "requestId" | "id");
            found = Some(value);
            count += 1;
        }
    });
    debug_assert!(walked.is_ok(), "the text was walked over before");
    found.filter(|_| count == 1 && is_spelled).ok_or(missing)
}

/// A text with some of its ranges replaced, in parts.
fn splice<'a>(text: &'a str, mut pieces: [(Range<usize>, &'a str); 2]) -> [&'a str; 5] {
    pieces.sort_unstable_by_key(|(range, _)| range.start);
    let [(first, one), (second, other)] = pieces;
    [
        &text[..first.start],
        one,
        &text[first.end..second.start],
        other,
        &text[second.end..],
    ]
}

fn remove<T: PartialEq>(list: &mut Vec<T>, item: &T) {
    if let Some(at) = list.iter().position(|other| other == item) {
        list.swap_remove(at);
    }
}
