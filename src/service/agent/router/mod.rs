//! Who gets which message: clients, agent and time in, lines and frames out. No I/O in here.
//!
//! The invariants, checked by the tests and the fuzzer:
//!
//! * A request is recorded before its bytes leave, and forgotten with its answer or its client.
//! * Every entry of every table has one owner, and goes when the owner goes.
//! * A message that names a session passes only between the agent and the session's owner.
//! * Ids on the way are ours and never used twice; what comes back has the bytes that were sent.

mod sessions;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::answer::{
    answer_for_nobody, code, denied, error, refusal_of, with_id, with_resume_token,
};
use super::envelope::{Envelope, EnvelopeError, Kind, member};
use super::initialize::{Capabilities, Initialize};
use super::json::{Skimmer, quote, unescape};
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

    /// Handles a message of a client.
    pub(crate) fn receive_from_client(
        &mut self,
        now: Time,
        client: ClientId,
        text: &str,
        wires: &mut impl Wires,
    ) {
        let envelope = match Envelope::parse(text) {
            Ok(envelope) => envelope,
            Err(EnvelopeError::Invalid { id: Some(id), .. }) if id.len() > MAX_ID => {
                return wires.close(client, CloseCode::POLICY, "Request id too long");
            }
            Err(invalid) => return wires.to_client(client, &[&refusal_of(text, &invalid)]),
        };
        if envelope.id().is_some_and(|id| id.len() > MAX_ID) {
            return wires.close(client, CloseCode::POLICY, "Request id too long");
        }
        let Some(peer) = self.peers.get_mut(&client) else {
            return;
        };
        if !peer.initialized {
            let first =
                matches!(&envelope.kind, Kind::Request { method, .. } if method == "initialize");
            if !first {
                return wires.close(
                    client,
                    CloseCode::PROTOCOL,
                    "The first message must be initialize",
                );
            }
            peer.initialized = true;
        }
        match &envelope.kind {
            Kind::Request { method, id } if method == "initialize" && self.limits.acp => {
                self.initialize(client, &envelope, &text[id.clone()], wires);
            }
            Kind::Request { method, id } => {
                self.request(now, client, &envelope, method, id.clone(), wires)
            }
            Kind::Notification { method } => self.notification(client, &envelope, method, wires),
            Kind::Response { id, .. } => self.answer_agent(client, &envelope, id.clone(), wires),
        }
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

    fn initialize(
        &mut self,
        client: ClientId,
        envelope: &Envelope<'_>,
        id: &str,
        wires: &mut impl Wires,
    ) {
        self.counters.initializes += 1;
        let capabilities = envelope
            .body
            .as_ref()
            .and_then(|params| member(envelope.text, params, "clientCapabilities"));
        if let (Some(capabilities), Some(peer)) = (capabilities, self.peers.get_mut(&client)) {
            peer.capabilities = Capabilities::read(envelope.text, &capabilities);
        }
        match &mut self.initialize {
            Initialize::Done { result, .. } => {
                wires.to_client(
                    client,
                    &[
                        r#"{"jsonrpc":"2.0","id":"#,
                        id,
                        r#","result":"#,
                        result,
                        "}",
                    ],
                );
            }
            Initialize::Asked { wanted, .. } if wanted.iter().any(|(who, _)| *who == client) => {
                let why = "initialize is under way";
                let refused = error(id, code::INVALID, "Invalid request", Some(why));
                wires.to_client(client, &[&refused]);
            }
            Initialize::Asked { wanted, .. } => wanted.push((client, id.into())),
            Initialize::Never => {
                self.next_id += 1;
                let params = params_of(envelope).unwrap_or("{}");
                self.initialize = Initialize::Asked {
                    id: self.next_id,
                    params: params.into(),
                    wanted: vec![(client, id.into())],
                    refused: false,
                };
                self.ask_to_initialize(wires);
            }
        }
    }

    /// Sends the one `initialize`.
    fn ask_to_initialize(&self, wires: &mut impl Wires) {
        if let Initialize::Asked { id, params, .. } = &self.initialize {
            let id = id.to_string();
            wires.initialize_agent(&[
                r#"{"jsonrpc":"2.0","id":"#,
                &id,
                r#","method":"initialize","params":"#,
                params,
                "}",
            ]);
        }
    }

    fn request(
        &mut self,
        now: Time,
        client: ClientId,
        envelope: &Envelope<'_>,
        method: &str,
        id: std::ops::Range<usize>,
        wires: &mut impl Wires,
    ) {
        let raw_id = &envelope.text[id.clone()];
        let Some(peer) = self.peers.get(&client) else {
            return;
        };
        let refused = |code, message, why| error(raw_id, code, message, Some(why));
        if peer.waiting.len() >= self.limits.waiting {
            return wires.to_client(
                client,
                &[&refused(
                    code::TOO_MANY,
                    "Too many requests",
                    "too many are waiting",
                )],
            );
        }
        let acp = self.limits.acp;
        let claims = acp && matches!(method, "session/load" | "session/resume");
        if (claims || (acp && matches!(method, "session/new" | "session/fork")))
            && !self.has_room_for_session(client)
        {
            return wires.to_client(
                client,
                &[&refused(
                    code::TOO_MANY,
                    "Too many sessions",
                    "close one first",
                )],
            );
        }
        if claims && envelope.session.is_none() {
            return wires.to_client(
                client,
                &[&refused(
                    code::INVALID,
                    "Invalid request",
                    "\"sessionId\" is missing",
                )],
            );
        }
        let mut class = match method {
            _ if !acp => Class::Other,
            "session/new" | "session/fork" => Class::Create,
            "session/close" | "session/delete" => Class::End,
            "session/list" => Class::List,
            "session/prompt" => Class::Prompt,
            _ => Class::Other,
        };
        let session: Option<Arc<str>> = envelope.session.as_deref().map(Into::into);
        self.next_id += 1;
        let ours = self.next_id;
        let mut kept_by_agent = false;
        if let Some(session) = &session {
            if claims {
                match self.claim(client, ours, session, envelope, wires) {
                    Ok(before) => {
                        kept_by_agent = before.as_ref().is_some_and(|before| !before.lost);
                        class = Class::Claim { before };
                    }
                    Err(Denied) => {
                        self.counters.denied += 1;
                        return wires.to_client(client, &[&denied(raw_id)]);
                    }
                }
            } else if acp && !self.may_use(client, session) {
                self.counters.denied += 1;
                return wires.to_client(client, &[&denied(raw_id)]);
            }
        }

        let counters = &mut self.counters;
        *match &class {
            Class::Create | Class::Claim { .. } | Class::End | Class::List => {
                &mut counters.session_requests
            }
            Class::Prompt => &mut counters.prompts,
            Class::Other => &mut counters.other_requests,
        } += 1;
        if kept_by_agent && method == "session/resume" && self.initialize.lacks_resume() {
            // The agent has kept the session and knows nothing of connections: it is enough to move it.
            let waiting = Waiting {
                client,
                ours,
                id: raw_id.into(),
                class,
                session,
                since: now,
            };
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{ours},"result":{{}}}}"#);
            self.record(ours, waiting);
            return self.receive_from_agent(now, &answer, wires);
        }
        // Recorded before its bytes leave: an answer can never come first.
        self.record(
            ours,
            Waiting {
                client,
                ours,
                id: raw_id.into(),
                class,
                session,
                since: now,
            },
        );
        let text = envelope.text;
        wires.to_agent(&[&text[..id.start], &ours.to_string(), &text[id.end..]]);
    }

    fn record(&mut self, id: u64, waiting: Waiting) {
        if let Some(peer) = self.peers.get_mut(&waiting.client) {
            peer.waiting.push(id);
        }
        self.waiting.insert(id, waiting);
    }

    fn notification(
        &mut self,
        client: ClientId,
        envelope: &Envelope<'_>,
        method: &str,
        wires: &mut impl Wires,
    ) {
        let named = envelope.session.as_deref().filter(|_| self.limits.acp);
        if named.is_some_and(|session| !self.may_use(client, session)) {
            self.counters.denied += 1;
            log::warn!(
                "{client} is not the owner of the session that its {method:?} names; dropped"
            );
            return;
        }
        self.counters.notifications += 1;
        let text = envelope.text;
        if method != "$/cancel_request" {
            return wires.to_agent(&[text]);
        }
        // The client's id becomes the one that the agent knows.
        let Some(requested) = envelope.request_id.clone() else {
            return self.drop_message(client, "without requestId");
        };
        let Some(peer) = self.peers.get(&client) else {
            return;
        };
        let ours = peer.waiting.iter().rev().find(|id| {
            self.waiting
                .get(id)
                .is_some_and(|waiting| same_id(&waiting.id, &text[requested.clone()]))
        });
        match ours {
            Some(ours) => wires.to_agent(&[
                &text[..requested.start],
                &ours.to_string(),
                &text[requested.end..],
            ]),
            None => self.drop_message(client, "for no request that is waiting"),
        }
    }

    /// A client answers what the agent has asked it.
    fn answer_agent(
        &mut self,
        client: ClientId,
        envelope: &Envelope<'_>,
        id: std::ops::Range<usize>,
        wires: &mut impl Wires,
    ) {
        let text = envelope.text;
        let ours = our_id(&text[id.clone()]).filter(|id| {
            self.asked
                .get(id)
                .is_some_and(|asked| asked.client == client)
        });
        let Some(asked) = ours.and_then(|ours| self.asked.remove(&ours)) else {
            return self.drop_message(client, "which it was not asked");
        };
        if let Some(peer) = self.peers.get_mut(&client) {
            remove(&mut peer.asked, &ours.unwrap_or_default());
        }
        wires.to_agent(&[&text[..id.start], &asked.id, &text[id.end..]]);
    }

    fn drop_message(&mut self, client: ClientId, why: &str) {
        self.counters.dropped += 1;
        log::debug!("{client} sent an answer or a cancellation {why}; dropped");
    }

    // The agent.

    /// Handles a line of the agent.
    pub(crate) fn receive_from_agent(&mut self, now: Time, text: &str, wires: &mut impl Wires) {
        let envelope = match Envelope::parse(text) {
            Ok(envelope) => envelope,
            Err(invalid) => {
                self.counters.dropped += 1;
                let shown = &text[..text.floor_char_boundary(100)];
                log::warn!("a line of the agent is no message ({invalid:?}), skipped: {shown:?}");
                // Whoever waits for it must not wait for ever.
                let EnvelopeError::Invalid { id: Some(id), why } = invalid else {
                    return;
                };
                let Some(waiting) = our_id(&text[id]).and_then(|ours| self.take_waiting(now, ours))
                else {
                    return;
                };
                if let (Class::Claim { before }, Some(session)) = (waiting.class, &waiting.session)
                {
                    self.unclaim(now, waiting.ours, session, before);
                }
                let why = format!("the agent's answer is no message: {why}");
                let refused = error(&waiting.id, code::INTERNAL, "Internal error", Some(&why));
                return wires.to_client(waiting.client, &[&refused]);
            }
        };
        match &envelope.kind {
            Kind::Response { id, result } => {
                self.answer_client(now, &envelope, id.clone(), result.is_some(), wires)
            }
            Kind::Request { method, id } => self.ask_client(&envelope, method, id.clone(), wires),
            Kind::Notification { method } => self.notify_client(&envelope, method, wires),
        }
    }

    fn answer_client(
        &mut self,
        now: Time,
        envelope: &Envelope<'_>,
        id: std::ops::Range<usize>,
        success: bool,
        wires: &mut impl Wires,
    ) {
        let text = envelope.text;
        let Some(ours) = our_id(&text[id.clone()]) else {
            return self.drop_answer(&text[id]);
        };
        if self.initialize.is_asked_as(ours) {
            return self.initialized(envelope, &id, wires);
        }
        if self.abandoned.remove(&ours) {
            return self.keep_from_all(now, envelope, wires);
        }
        let Some(waiting) = self.take_waiting(now, ours) else {
            return self.drop_answer(&text[id]);
        };
        let client = waiting.client;

        let (before_id, after_id) = (&text[..id.start], &text[id.end..]);
        let mut token = None;
        match (&waiting.class, &waiting.session) {
            (Class::Create, _) if success => {
                let Some(session) = envelope
                    .session
                    .as_deref()
                    .filter(|session| session.len() <= MAX_SESSION_ID)
                else {
                    return wires.to_client(client, &[before_id, &waiting.id, after_id]);
                };
                if !self.is_free(session) {
                    log::error!("the agent answered with a session that is in use: {session:?}");
                    let why = "the agent answered with a session that is in use";
                    let refused = error(&waiting.id, code::INTERNAL, "Internal error", Some(why));
                    return wires.to_client(client, &[&refused]);
                }
                let secret = wires.secret();
                self.bind(client, &session.into(), secret.clone(), None);
                token = Some(secret);
            }
            (Class::Claim { .. }, Some(session)) if success => {
                // Unless it was closed, or given to another, while this was on its way.
                if let Some(bound) = self
                    .sessions
                    .get_mut(session)
                    .filter(|bound| bound.claim == Some(ours))
                {
                    bound.claim = None;
                    token = Some(bound.token.clone());
                    self.release_asked(client, session, wires);
                }
            }
            (Class::Claim { .. }, Some(_)) => {
                if let (Class::Claim { before }, Some(session)) = (waiting.class, waiting.session) {
                    self.unclaim(now, ours, &session, before);
                }
                return wires.to_client(client, &[before_id, &waiting.id, after_id]);
            }
            (Class::End, Some(session)) if success && self.is_owner(client, session) => {
                self.unbind(session)
            }
            (Class::List, _) if success => {
                let listed = self.list_for(client, envelope);
                return wires.to_client(client, &[&with_id(&listed, &waiting.id)]);
            }
            _ => {}
        }
        match token {
            Some(token) => {
                let with_token = with_resume_token(envelope, &token);
                wires.to_client(client, &[&with_id(&with_token, &waiting.id)]);
            }
            None => wires.to_client(client, &[before_id, &waiting.id, after_id]),
        }
    }

    fn take_waiting(&mut self, now: Time, ours: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&ours)?;
        if let Some(peer) = self.peers.get_mut(&waiting.client) {
            remove(&mut peer.waiting, &ours);
        }
        self.counters.answers.observe(now.since(waiting.since));
        Some(waiting)
    }

    fn drop_answer(&mut self, id: &str) {
        self.counters.dropped += 1;
        let shown = &id[..id.floor_char_boundary(100)];
        log::debug!("the agent answered {shown}, which is not waited for; dropped");
    }

    /// The answer to the one `initialize` goes to all who wait for it, and to all who come later.
    fn initialized(
        &mut self,
        envelope: &Envelope<'_>,
        id: &std::ops::Range<usize>,
        wires: &mut impl Wires,
    ) {
        let text = envelope.text;
        if let Initialize::Asked {
            wanted, refused, ..
        } = &mut self.initialize
            && wanted.is_empty()
            && matches!(envelope.kind, Kind::Response { result: None, .. })
        {
            log::error!(
                "the agent refuses to be initialized again: {}",
                &text[..text.floor_char_boundary(300)]
            );
            *refused = true;
            return;
        }
        let Initialize::Asked { params, wanted, .. } =
            std::mem::replace(&mut self.initialize, Initialize::Never)
        else {
            return;
        };
        for (client, theirs) in wanted {
            wires.to_client(client, &[&text[..id.start], &theirs, &text[id.end..]]);
        }
        if let Kind::Response {
            result: Some(result),
            ..
        } = &envelope.kind
        {
            let agent_resumes = agent_resumes(text, result);
            self.initialize = Initialize::Done {
                params,
                result: text[result.clone()].into(),
                agent_resumes,
            };
        }
    }

    fn ask_client(
        &mut self,
        envelope: &Envelope<'_>,
        method: &str,
        id: std::ops::Range<usize>,
        wires: &mut impl Wires,
    ) {
        let text = envelope.text;
        let raw_id = &text[id.clone()];
        let permission = method == "session/request_permission";
        let Some(session) = envelope.session.as_deref() else {
            let why = "a request to a client names its session";
            return wires.to_agent(&[&error(raw_id, code::INVALID, "Invalid request", Some(why))]);
        };
        let owner = self.sessions.get(session).and_then(|session| session.owner);
        let Some((client, peer)) =
            owner.and_then(|owner| Some((owner, self.peers.get_mut(&owner)?)))
        else {
            return wires.to_agent(&[&answer_for_nobody(raw_id, permission)]);
        };
        if !peer.capabilities.allow(method) {
            let why = "the client has not announced this capability";
            return wires.to_agent(&[&error(
                raw_id,
                code::NO_METHOD,
                "Method not found",
                Some(why),
            )]);
        }
        if peer.asked.len() >= self.limits.asked {
            let why = "too many requests wait for the client's answer";
            return wires.to_agent(&[&error(
                raw_id,
                code::TOO_MANY,
                "Too many requests",
                Some(why),
            )]);
        }
        self.next_id += 1;
        peer.asked.push(self.next_id);
        self.asked.insert(
            self.next_id,
            Asked {
                client,
                id: raw_id.into(),
                session: session.into(),
                permission,
            },
        );
        wires.to_client(
            client,
            &[
                &text[..id.start],
                &self.next_id.to_string(),
                &text[id.end..],
            ],
        );
    }

    fn notify_client(&mut self, envelope: &Envelope<'_>, method: &str, wires: &mut impl Wires) {
        let text = envelope.text;
        if let ("$/cancel_request", Some(requested)) = (method, envelope.request_id.clone()) {
            let asked = self
                .asked
                .iter()
                .find(|(_, asked)| same_id(&asked.id, &text[requested.clone()]));
            if let Some((ours, asked)) = asked {
                let parts = [
                    &text[..requested.start],
                    &ours.to_string(),
                    &text[requested.end..],
                ];
                return wires.to_client(asked.client, &parts);
            }
        }
        if let Some(session) = envelope.session.as_deref() {
            match self.sessions.get(session).and_then(|session| session.owner) {
                Some(owner) => wires.to_client(owner, &[text]),
                None => self.counters.dropped += 1,
            }
            return;
        }
        self.counters.dropped += 1;
        log::debug!("the agent's notification {method:?} names no session; dropped");
    }

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

/// Whether the agent's own `session/resume` is to be called.
fn agent_resumes(text: &str, result: &std::ops::Range<usize>) -> bool {
    let path = ["agentCapabilities", "sessionCapabilities", "resume"];
    let found = path
        .iter()
        .try_fold(result.clone(), |range, name| member(text, &range, name));
    found.is_some_and(|found| !matches!(&text[found], "null" | "false"))
}

/// The parameters of a message, whatever their kind.
fn params_of<'a>(envelope: &Envelope<'a>) -> Option<&'a str> {
    let whole = Skimmer::new(envelope.text).value().ok()?;
    member(envelope.text, &whole, "params").map(|params| &envelope.text[params])
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

/// Compares without telling by its time how much is the same.
fn is_same_secret(a: &str, b: &str) -> bool {
    a.len() == b.len()
        && a.bytes()
            .zip(b.bytes())
            .fold(0, |difference, (a, b)| difference | (a ^ b))
            == 0
}

fn remove<T: PartialEq>(list: &mut Vec<T>, item: &T) {
    if let Some(at) = list.iter().position(|other| other == item) {
        list.swap_remove(at);
    }
}
