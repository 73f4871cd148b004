//! Whose session is whose.
//!
//! A session belongs to a [`Principal`] and is controlled by one client. What each may do with a session that it names:
//!
//! | the session | its client | holder of its token | same principal | anyone else |
//! |---|---|---|---|---|
//! | is controlled | everything | nothing | nothing | nothing |
//! | is lost: its agent has died | load, resume; else "lost" | nothing | nothing | nothing |
//! | its client has left | - | load, resume | load, resume, see it listed | nothing |
//! | has ended: closed, or nobody came back in time | - | load, resume | load, resume, see it listed | nothing |
//! | is unknown | - | - | load, resume, see it listed | the same |
//!
//! `load` and `resume` give the client control of the session if the agent agrees; until the agent has answered, the
//! client is treated as if it had agreed. The principal of the client becomes the owner. No two clients with
//! [`Principal::Nobody`] are the same principal. Once more sessions have ended than are remembered, unknown sessions
//! cannot be used at all.
//!
//! Sessions that have ended are in [`Ended`], all others in the table.

use std::fmt;
use std::sync::Arc;

use super::ended::Record;
use super::{Abandoned, Class, MAX_SESSION_ID, Router, remove};
use crate::secret;
use crate::service::agent::answer::{code, error};
use crate::service::agent::envelope::{Envelope, is_spelling_of, member};
use crate::service::agent::json::{Skimmer, unescape};
use crate::{ClientId, Principal, Time};

/// A session in the table.
#[derive(Debug)]
pub(super) struct Session {
    principal: Principal,
    state: State,
    /// The secrets that open it for a new connection; none before it has had a client.
    tokens: Option<Tokens>,
    /// The agent that knows it. Another one has to load it before anything else.
    agent: u32,
    /// The request to load it that the agent has not answered.
    claim: Option<Claim>,
}

#[derive(Debug, PartialEq)]
enum State {
    /// Its name is only known from a client that asks for it.
    Unknown,
    /// It has ended, and a client asks for it.
    Ended(Record),
    /// Its client has left.
    Left(Time),
    Controlled(ClientId),
}

/// Secrets that open a session when its client has left.
#[derive(Debug)]
struct Tokens {
    current: Box<str>,
    /// The one before, as long as its holder may not have read the current one.
    earlier: Option<Box<str>>,
}

impl Tokens {
    fn open_with(&self, token: &str) -> bool {
        secret::is_equal(token.as_bytes(), self.current.as_bytes())
            || self
                .earlier
                .as_deref()
                .is_some_and(|earlier| secret::is_equal(token.as_bytes(), earlier.as_bytes()))
    }
}

/// A client's request for a session.
#[derive(Debug)]
struct Claim {
    /// The request's id on the way to the agent.
    id: u64,
    client: ClientId,
    /// The token that it has proven itself with.
    token: Option<Box<str>>,
}

impl Session {
    /// The client that may name it: the one that controls it, or the one that is loading it.
    fn controller(&self) -> Option<ClientId> {
        match (&self.claim, &self.state) {
            (Some(claim), _) => Some(claim.client),
            (None, State::Controlled(client)) => Some(*client),
            (None, _) => None,
        }
    }
}

/// Why a client cannot have what it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The message is not one that can be checked.
    Invalid(&'static str),
    /// The session is not the client's.
    Denied,
    /// Its owner is the same, but another connection controls it.
    Controlled,
    /// The agent that had the session has died.
    Lost,
    /// There are as many sessions as there may be.
    Full,
}

impl Refused {
    /// The answer to a request with this id.
    pub(super) fn answer(self, id: &str) -> String {
        let (code, message) = match self {
            Self::Invalid(_) => (code::INVALID, "Invalid request"),
            Self::Denied | Self::Controlled => (code::DENIED, "Access denied"),
            Self::Lost => (code::NOT_FOUND, "Session lost"),
            Self::Full => (code::TOO_MANY, "Too many sessions"),
        };
        error(id, code, message, Some(&self.to_string()))
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid(why) => why,
            Self::Denied => "the session does not belong to this connection",
            Self::Controlled => {
                "another connection controls the session; load it after that connection has ended"
            }
            Self::Lost => "the agent that had the session has exited; load the session again",
            Self::Full => "the limit of sessions is reached; close one first",
        })
    }
}

/// What a method does to sessions.
pub(super) fn class_of(method: &str) -> Class {
    match method {
        "session/new" | "session/fork" | "nes/start" => Class::Create,
        "session/load" | "session/resume" => Class::Claim,
        "session/close" | "session/delete" | "nes/close" => Class::End,
        "session/list" => Class::List,
        "session/prompt" => Class::Prompt,
        _ => Class::Other,
    }
}

/// Whether a method is about one session, so that it has to name it.
fn is_about_a_session(method: &str) -> bool {
    match method {
        "session/new" | "session/list" | "nes/start" => false,
        _ => ["session/", "nes/", "document/"]
            .iter()
            .any(|prefix| method.starts_with(prefix)),
    }
}

impl Router {
    /// The client that a session's messages go to.
    pub(super) fn controller_of(&self, session: &str) -> Option<ClientId> {
        self.sessions.get(session).and_then(Session::controller)
    }

    /// Whether a client may send a message that names the sessions that this one names. One that `claims` its session
    /// is looked at later.
    pub(super) fn check_names(
        &self,
        client: ClientId,
        method: &str,
        envelope: &Envelope<'_>,
        claims: bool,
    ) -> Result<(), Refused> {
        let named = envelope.session.as_deref();
        if is_about_a_session(method) {
            if envelope.misspelled_session.is_some() {
                return Err(Refused::Invalid("\"sessionId\" is spelled in another way"));
            }
            if named.is_none() {
                return Err(Refused::Invalid("\"sessionId\" is missing"));
            }
        }
        if let Some(session) = named.filter(|_| !claims) {
            let bound = self.sessions.get(session);
            match bound.filter(|bound| bound.controller() == Some(client)) {
                None => return Err(Refused::Denied),
                Some(bound) if bound.agent != self.agent && bound.claim.is_none() => {
                    return Err(Refused::Lost);
                }
                Some(_) => {}
            }
        }
        // Any other message may name any session except those of other clients.
        let is_anothers = |session: &str| match self.sessions.get(session) {
            Some(bound) => bound.controller() != Some(client) && named != Some(session),
            None => {
                let may_be_known = self.ended.is_full() || self.ended.get(session).is_some();
                may_be_known && named != Some(session)
            }
        };
        let mut denied = envelope
            .misspelled_session
            .as_deref()
            .is_some_and(is_anothers);
        envelope.sessions_in_meta(|session| denied |= is_anothers(session));
        if denied { Err(Refused::Denied) } else { Ok(()) }
    }

    /// Whether a client may have one more session, those counted that it has asked for; and whether all clients together
    /// may.
    pub(super) fn check_room(&mut self, client: ClientId) -> Result<(), Refused> {
        if self.is_client_full(client) {
            self.end_lost(client);
        }
        if self.is_client_full(client) || self.is_table_full() {
            return Err(Refused::Full);
        }
        Ok(())
    }

    fn is_client_full(&self, client: ClientId) -> bool {
        let Some(peer) = self.peers.get(&client) else {
            return true;
        };
        let creates = |id| {
            let waiting = self.waiting.get(id);
            waiting.is_some_and(|waiting| waiting.class == Class::Create)
        };
        let asked = peer.waiting.iter().filter(|id| creates(*id)).count();
        peer.sessions.len() + asked >= self.limits.sessions
    }

    /// Sessions that are under way count: the answer has to find room.
    fn is_table_full(&self) -> bool {
        self.sessions.len() + self.creating + self.abandoned.len() >= self.limits.all_sessions
    }

    /// Ends a client's sessions that were lost with the agent.
    fn end_lost(&mut self, client: ClientId) {
        let Some(peer) = self.peers.get(&client) else {
            return;
        };
        for session in peer.sessions.clone() {
            let lost = |bound: &Session| bound.agent != self.agent && bound.claim.is_none();
            if self.sessions.get(&session).is_some_and(lost) {
                self.end(&session, None);
            }
        }
    }

    /// Lets a client have a session that it asks for by name, until the agent has answered: what comes for it before
    /// the answer is the client's already. Returns whether the agent that runs has the session.
    pub(super) fn claim(
        &mut self,
        client: ClientId,
        ours: u64,
        session: &Arc<str>,
        envelope: &Envelope<'_>,
    ) -> Result<bool, Refused> {
        let Some(peer) = self.peers.get(&client) else {
            return Err(Refused::Denied);
        };
        if session.len() > MAX_SESSION_ID {
            return Err(Refused::Denied);
        }
        let principal = peer.principal;
        let token = envelope.resume_token();
        let claim = |proven: bool| Claim {
            id: ours,
            client,
            token: token.as_deref().filter(|_| proven).map(Into::into),
        };
        if let Some(bound) = self.sessions.get(session) {
            let proven = token
                .as_deref()
                .zip(bound.tokens.as_ref())
                .is_some_and(|(token, tokens)| tokens.open_with(token));
            let may_have = proven || bound.principal.is_same(principal);
            let mut needs_room = false;
            match bound.state {
                _ if bound.claim.is_some() => return Err(Refused::Denied),
                State::Controlled(owner) if owner == client => {}
                State::Controlled(_) if may_have => return Err(Refused::Controlled),
                State::Left(_) if may_have => needs_room = true,
                _ => return Err(Refused::Denied),
            }
            let is_kept = bound.agent == self.agent;
            let claim = claim(proven);
            if needs_room && self.is_client_full(client) {
                self.end_lost(client);
                if self.is_client_full(client) {
                    return Err(Refused::Full);
                }
            }
            if let Some(bound) = self.sessions.get_mut(session) {
                bound.claim = Some(claim);
            }
            self.note_controlled(client, session);
            return Ok(is_kept);
        }
        let record = self.ended.get(session);
        let (state, is_kept, proven) = match record {
            None if self.ended.is_full() => return Err(Refused::Denied),
            None => (State::Unknown, false, false),
            Some(record) => {
                let opens = |token: &str| self.ended.opens(session, &record, token);
                let proven = token.as_deref().is_some_and(opens);
                if !proven && !record.principal.is_same(principal) {
                    return Err(Refused::Denied);
                }
                let is_kept = record.agent == Some(self.agent);
                (State::Ended(record), is_kept, proven)
            }
        };
        self.check_room(client)?;
        self.ended.remove(session);
        let bound = Session {
            principal,
            state,
            tokens: None,
            agent: self.agent,
            claim: Some(claim(proven)),
        };
        self.sessions.insert(Arc::clone(session), bound);
        self.note_controlled(client, session);
        Ok(is_kept)
    }

    /// The agent has agreed: a session is the client's that has asked for it with the request `ours`. Returns the token
    /// that opens it next time, unless the session was closed, or given to another, while the answer was on its way.
    pub(super) fn confirm_claim(
        &mut self,
        ours: u64,
        session: &Arc<str>,
        secret: impl FnOnce() -> String,
    ) -> Option<Box<str>> {
        let bound = self.sessions.get_mut(session)?;
        let claim = bound.claim.take_if(|claim| claim.id == ours)?;
        let peer = self.peers.get_mut(&claim.client)?;
        let tokens = match (bound.tokens.take(), claim.token) {
            // The current token may never have been read, and was not used: it is the one to be read this time.
            (Some(tokens), token)
                if tokens.earlier.is_some()
                    && token.as_deref().is_none_or(|token| {
                        !secret::is_equal(token.as_bytes(), tokens.current.as_bytes())
                    }) =>
            {
                tokens
            }
            (tokens, token) => Tokens {
                current: secret().into(),
                earlier: tokens.map(|tokens| tokens.current).or(token),
            },
        };
        let current = tokens.current.clone();
        bound.principal = peer.principal;
        bound.state = State::Controlled(claim.client);
        bound.tokens = Some(tokens);
        bound.agent = self.agent;
        peer.unread.push(Arc::clone(session));
        Some(current)
    }

    /// A client has sent something after answers with tokens: it has read them.
    pub(super) fn confirm_tokens(&mut self, client: ClientId) {
        let unread = self.peers.get_mut(&client).map(|peer| &mut peer.unread);
        for session in unread.map(std::mem::take).unwrap_or_default() {
            let bound = self.sessions.get_mut(&session);
            let bound = bound.filter(|bound| bound.state == State::Controlled(client));
            if let Some(tokens) = bound.and_then(|bound| bound.tokens.as_mut()) {
                tokens.earlier = None;
            }
        }
    }

    /// The agent refused, or its answer is no longer awaited: restores the session of the request `ours`.
    pub(super) fn unclaim(&mut self, ours: u64, session: &Arc<str>) {
        let Some(bound) = self.sessions.get_mut(session) else {
            return;
        };
        let Some(claim) = bound.claim.take_if(|claim| claim.id == ours) else {
            return;
        };
        match bound.state {
            State::Controlled(_) => return,
            // Its time may have passed meanwhile.
            State::Left(_) => self.left = true,
            State::Unknown => _ = self.sessions.remove(session),
            State::Ended(record) => {
                self.sessions.remove(session);
                self.ended.insert(session, record);
            }
        }
        if let Some(peer) = self.peers.get_mut(&claim.client) {
            remove(&mut peer.sessions, session);
        }
    }

    fn note_controlled(&mut self, client: ClientId, session: &Arc<str>) {
        if let Some(peer) = self.peers.get_mut(&client)
            && !peer.sessions.contains(session)
        {
            peer.sessions.push(Arc::clone(session));
        }
    }

    /// Whether a new session may have this name: there is none, or none that the agent still has.
    pub(super) fn is_free(&self, session: &str) -> bool {
        match self.sessions.get(session) {
            None => true,
            Some(bound) if bound.claim.is_some() => bound.state == State::Unknown,
            Some(bound) => bound.agent != self.agent,
        }
    }

    /// A session has come for a client.
    pub(super) fn create(&mut self, client: ClientId, session: &Arc<str>, token: String) {
        let Some(principal) = self.peers.get(&client).map(|peer| peer.principal) else {
            return;
        };
        self.put(session, principal, State::Controlled(client), token);
        self.note_controlled(client, session);
    }

    /// A session has come for a client that has left: it is that client's principal's, and nobody knows its token.
    pub(super) fn create_for_nobody(
        &mut self,
        now: Time,
        abandoned: &Abandoned,
        session: &Arc<str>,
        token: String,
    ) {
        let is_free = if abandoned.session.is_some() {
            // A load: somebody else may have had the session since.
            !self.sessions.contains_key(session) && self.ended.get(session).is_none()
        } else {
            self.is_free(session)
        };
        if !is_free {
            return;
        }
        self.put(session, abandoned.principal, State::Left(now), token);
        self.left = true;
        if self.limits.grace.is_none() {
            self.end(session, Some(self.agent));
        }
    }

    fn put(&mut self, session: &Arc<str>, principal: Principal, state: State, token: String) {
        // What had this name before is no more.
        if let Some(peer) = self
            .controller_of(session)
            .and_then(|client| self.peers.get_mut(&client))
        {
            remove(&mut peer.sessions, session);
        }
        self.ended.remove(session);
        let bound = Session {
            principal,
            state,
            tokens: Some(Tokens {
                current: token.into(),
                earlier: None,
            }),
            agent: self.agent,
            claim: None,
        };
        self.sessions.insert(Arc::clone(session), bound);
    }

    /// A session leaves the table, and whose it was is remembered. `agent` is the one that still has it.
    pub(super) fn end(&mut self, session: &Arc<str>, agent: Option<u32>) {
        let client = self.controller_of(session);
        let Some(bound) = self.sessions.remove(session) else {
            return;
        };
        if let Some(peer) = client.and_then(|client| self.peers.get_mut(&client)) {
            remove(&mut peer.sessions, session);
        }
        let record = match (bound.state, bound.tokens) {
            (State::Ended(mut record), _) => {
                record.agent = agent;
                record
            }
            (_, tokens) => {
                let current = tokens.as_ref().map_or("", |tokens| &tokens.current);
                let earlier = tokens.as_ref().and_then(|tokens| tokens.earlier.as_deref());
                self.ended
                    .record(session, bound.principal, current, earlier, agent)
            }
        };
        self.ended.insert(session, record);
    }

    /// The client of a session has left.
    pub(super) fn leave(&mut self, now: Time, client: ClientId, session: &Arc<str>) {
        let Some(bound) = self.sessions.get_mut(session) else {
            return;
        };
        if let Some(claim) = bound.claim.as_ref().filter(|claim| claim.client == client) {
            let ours = claim.id;
            self.unclaim(ours, session);
        }
        let Some(bound) = self.sessions.get_mut(session) else {
            return;
        };
        if bound.state != State::Controlled(client) {
            return;
        }
        let agent = bound.agent;
        bound.state = State::Left(now);
        self.left = true;
        if self.limits.grace.is_none() {
            self.end(session, Some(agent));
        }
    }

    /// Whether a session is only known from the client's present request.
    pub(super) fn is_only_asked_for(&self, session: &str) -> bool {
        let bound = self.sessions.get(session);
        bound.is_some_and(|bound| bound.state == State::Unknown)
    }

    /// When the next session ends whose client has left.
    pub(super) fn first_left(&self) -> Option<Time> {
        let left = |session: &Session| match session.state {
            State::Left(since) if session.claim.is_none() => Some(since),
            _ => None,
        };
        self.sessions.values().filter_map(left).min()
    }

    /// Ends the sessions whose clients have left and not come back by now.
    pub(super) fn end_left(&mut self, is_due: impl Fn(Time) -> bool) {
        let due = |session: &Session| matches!(session.state, State::Left(since) if session.claim.is_none() && is_due(since));
        let sessions = self.sessions.iter();
        let ended: Vec<_> = sessions
            .filter(|(_, session)| due(session))
            .map(|(name, session)| (Arc::clone(name), session.agent))
            .collect();
        for (session, agent) in ended {
            self.end(&session, Some(agent));
        }
    }

    /// The agent has died: its pending requests get no answer, and its sessions must be loaded again.
    pub(super) fn lose_all(&mut self) {
        self.agent = self.agent.wrapping_add(1);
        let claim = |session: &Session| session.claim.as_ref().map(|claim| claim.id);
        let sessions = self.sessions.iter();
        let claims: Vec<_> = sessions
            .filter_map(|(name, session)| Some((claim(session)?, Arc::clone(name))))
            .collect();
        for (ours, session) in claims {
            self.unclaim(ours, &session);
        }
    }

    /// The agent's answer to `session/list` without the sessions that this client cannot load.
    pub(super) fn list_for(&self, client: ClientId, envelope: &Envelope<'_>) -> String {
        let text = envelope.text;
        let sessions = envelope
            .body
            .as_ref()
            .and_then(|result| member(text, result, "sessions"));
        let Some(sessions) = sessions.filter(|sessions| text.as_bytes()[sessions.start] == b'[')
        else {
            return text.to_owned();
        };
        let mut kept: Vec<&str> = Vec::new();
        let walked = Skimmer::at(text, &sessions).array(|element| {
            if self.may_see(client, text, &element) {
                kept.push(&text[element]);
            }
        });
        debug_assert!(walked.is_ok(), "the text was walked over before");
        [
            &text[..sessions.start],
            "[",
            &kept.join(","),
            "]",
            &text[sessions.end..],
        ]
        .concat()
    }

    /// Whether a client may see an entry of a list of sessions.
    fn may_see(&self, client: ClientId, text: &str, entry: &std::ops::Range<usize>) -> bool {
        let Some(peer) = self.peers.get(&client) else {
            return false;
        };
        if text.as_bytes()[entry.start] != b'{' {
            return true;
        }
        let mut is_visible = true;
        let walked = Skimmer::at(text, entry).object(|key, value| {
            if !is_spelling_of(&key, "sessionId") || text.as_bytes()[value.start] != b'"' {
                return;
            }
            let session = unescape(&text[value]);
            is_visible &= match self.sessions.get(&*session) {
                Some(bound) => match bound.controller() {
                    Some(controller) => controller == client,
                    None => bound.principal.is_same(peer.principal),
                },
                None => match self.ended.get(&session) {
                    Some(record) => record.principal.is_same(peer.principal),
                    None => !self.ended.is_full(),
                },
            };
        });
        debug_assert!(walked.is_ok(), "the text was walked over before");
        is_visible
    }
}
