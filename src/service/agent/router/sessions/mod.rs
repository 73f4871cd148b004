//! Sessions: who owns them, and how they begin and end.
//!
//! A session belongs to a [`Principal`] and is controlled by at most one client. This is what a client may do with a
//! session that it names:
//!
//! | the session | its client | holder of its token | same person | same unnamed token | others |
//! |---|---|---|---|---|---|
//! | is controlled by a client | everything | take over | take over, list | nothing | nothing |
//! | is lost, because its agent process has exited | load, resume; else "lost" | take over | take over, list | nothing | nothing |
//! | is gone: its client has disconnected | - | load, resume | load, resume, list | load, resume, list | nothing |
//! | has ended: it was closed, or its grace period is over | - | load, resume | load, resume, list | load, resume, list | nothing |
//! | is unknown | - | - | load, resume, list if permitted | the same | the same |
//!
//! A client takes a session over if it loads or resumes the session while another client controls it. That other client
//! must be away ([`RouterOutput::is_away`](super::RouterOutput::is_away)), or the request must have
//! `_meta.outrigger.takeover`. A person is a principal for which [`Principal::is_person`] returns true. Several persons may
//! share an unnamed token.
//!
//! A detached client, whose connection was cut and may be resumed, has not disconnected. A session is gone only after
//! [`Router::handle_disconnected`].
//!
//! `load` and `resume` claim a session: the client controls it if the agent agrees, and the client's principal becomes the
//! owner. Until the agent has answered, the client is treated as if the agent had agreed. Two clients with
//! [`Principal::Nobody`] never have the same principal. Once the records of ended sessions are full, unknown sessions
//! cannot be used at all. Whether they can before is a setting ([`UnknownSessions`]).
//!
//! Other clients may observe a session (`observers.rs`).
//!
//! Ended sessions are in [`EndedSessions`](super::ended_sessions::EndedSessions), all others in the router's table.

mod access;
mod claims;
mod takeover;

use std::collections::HashMap;
use std::sync::Arc;

use super::ended_sessions::SessionRecord;
use super::turns::Activity;
use super::{AbandonedRequest, Router, RouterOutput, Run, remove};
#[cfg(doc)]
use crate::service::agent::config::UnknownSessions;
use crate::{ClientId, Principal, Time};

pub(super) use access::SessionError;
use claims::added_tokens;
pub(super) use claims::is_same_secret;
pub(super) use takeover::turn_ended;

/// A session in the table.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) principal: Principal,
    pub(super) state: SessionState,
    /// The secrets that open it for another connection. `None` before it has had a client.
    tokens: Option<Tokens>,
    /// The run of an agent process that has the session. A client must load the session before another run can use it.
    pub(super) run: Run,
    /// The pending request that loads or resumes it.
    pub(super) claim: Option<Claim>,
    pub(super) activity: Activity,
    /// The clients that observe it.
    pub(super) observers: Vec<ClientId>,
    /// The secret that lets any client observe it.
    pub(super) watch_token: Box<str>,
}

#[derive(Debug, PartialEq)]
pub(super) enum SessionState {
    /// Only a claim names it.
    Unknown,
    /// It has ended, and a client claims it. The record is restored if the claim fails.
    Ended(SessionRecord),
    /// Its client disconnected at this time.
    Gone(Time),
    Controlled(ClientId),
}

/// Secrets that open a session after its client has disconnected.
#[derive(Debug)]
struct Tokens {
    current: Box<str>,
    /// The previous token, until the current one has been used.
    earlier: Option<Box<str>>,
}

/// The secrets of a new session.
pub(super) struct NewTokens {
    resume: String,
    watch: String,
}

impl NewTokens {
    pub(super) fn new(output: &mut impl RouterOutput) -> Self {
        Self {
            resume: output.secret(),
            watch: output.secret(),
        }
    }

    /// What to add to the response that creates the session.
    pub(super) fn added(&self) -> String {
        added_tokens(&self.resume, &self.watch)
    }
}

/// A pending request of a client to control a session.
#[derive(Debug)]
pub(super) struct Claim {
    upstream_id: u64,
    /// The agent process that got the request.
    process: usize,
    client: ClientId,
    /// The token with which the client proved that it may have the session.
    token: Option<Box<str>>,
}

impl Session {
    /// The client that may use the session: the one that claims it, otherwise the one that controls it.
    pub(super) fn controller(&self) -> Option<ClientId> {
        match (&self.claim, &self.state) {
            (Some(claim), _) => Some(claim.client),
            (None, SessionState::Controlled(client)) => Some(*client),
            (None, _) => None,
        }
    }

    /// Whether a resume token opens the session.
    pub(super) fn is_opened_by(&self, token: &str) -> bool {
        let tokens = self.tokens.as_ref();
        tokens.is_some_and(|tokens| tokens.open_with(token))
    }

    /// The agent process that the session's messages belong to.
    pub(super) fn process(&self) -> usize {
        let claim = self.claim.as_ref();
        claim.map_or(self.run.process, |claim| claim.process)
    }

    /// Whether the session needs an agent process.
    pub(super) fn needs(&self, process: usize) -> bool {
        self.run.process == process || self.process() == process
    }

    /// The clients that control or claim the session.
    pub(super) fn clients(&self) -> impl Iterator<Item = ClientId> {
        let controller = match self.state {
            SessionState::Controlled(client) => Some(client),
            _ => None,
        };
        let claimant = self.claim.as_ref().map(|claim| claim.client);
        controller.into_iter().chain(claimant)
    }
}

/// What the status shows of a session.
#[derive(Debug)]
pub(crate) struct SessionFigures {
    pub(crate) id: Arc<str>,
    pub(crate) owner: Principal,
    /// The client that controls it.
    pub(crate) client: Option<ClientId>,
    /// Requests for it that the agent has not answered.
    pub(crate) waiting: usize,
    pub(crate) observers: usize,
}

impl Router {
    /// The sessions that a client controls or can still resume: at most `most`, in the order of their ids.
    pub(crate) fn session_figures(&self, most: usize) -> Vec<SessionFigures> {
        let mut names: Vec<&Arc<str>> = self.sessions.keys().collect();
        if names.len() > most {
            names.select_nth_unstable(most);
            names.truncate(most);
        }
        names.sort_unstable();
        let mut waiting: HashMap<&Arc<str>, usize> = HashMap::new();
        let requests = self.requests.of_clients.values();
        for session in requests.filter_map(|request| request.call.session.as_ref()) {
            *waiting.entry(session).or_default() += 1;
        }
        let figures = names.into_iter().filter_map(|name| {
            let bound = self.sessions.get(name)?;
            Some(SessionFigures {
                id: Arc::clone(name),
                owner: bound.principal.clone(),
                client: bound.controller(),
                waiting: waiting.get(name).copied().unwrap_or_default(),
                observers: bound.observers.len(),
            })
        });
        figures.collect()
    }

    /// The client that gets the session's messages.
    pub(super) fn controller_of(&self, session: &str) -> Option<ClientId> {
        self.sessions.get(session).and_then(Session::controller)
    }

    /// Whether a new session may have this id: no session has it, or only one that no agent process has any more.
    pub(super) fn is_free(&self, session: &str) -> bool {
        match self.sessions.get(session) {
            None => true,
            Some(bound) if bound.claim.is_some() => bound.state == SessionState::Unknown,
            Some(bound) => !self.processes.is_current(bound.run),
        }
    }

    /// Adds a session that the agent created for a client.
    pub(super) fn create(
        &mut self,
        client: ClientId,
        process: usize,
        session: &Arc<str>,
        tokens: NewTokens,
    ) {
        let Some(principal) = self
            .clients
            .get(client)
            .map(|state| state.principal.clone())
        else {
            return;
        };
        let state = SessionState::Controlled(client);
        self.insert(session, principal, state, process, tokens);
        self.add_to_client(client, session);
    }

    /// Adds a session that the agent opened for a client that has disconnected meanwhile. It belongs to the client's
    /// principal, and no client knows its token.
    pub(super) fn create_gone(
        &mut self,
        now: Time,
        abandoned: &AbandonedRequest,
        process: usize,
        session: &Arc<str>,
        tokens: NewTokens,
    ) {
        let is_free = if abandoned.session.is_some() {
            // The session was loaded, and another client may have claimed it since.
            !self.sessions.contains_key(session) && self.ended.get(session).is_none()
        } else {
            self.is_free(session)
        };
        if !is_free {
            return;
        }
        let state = SessionState::Gone(now);
        let principal = abandoned.principal.clone();
        self.insert(session, principal, state, process, tokens);
        self.begin_grace(now, session);
    }

    /// Adds a session and removes any earlier session with the same name.
    fn insert(
        &mut self,
        session: &Arc<str>,
        principal: Principal,
        state: SessionState,
        process: usize,
        NewTokens { resume, watch }: NewTokens,
    ) {
        if let Some(earlier) = self.sessions.remove(session) {
            for client in earlier.clients() {
                if let Some(state) = self.clients.get_mut(client) {
                    remove(&mut state.sessions, session);
                }
            }
            self.drop_observers(session, &earlier.observers);
        }
        self.ended.remove(session);
        let bound = Session {
            principal,
            state,
            tokens: Some(Tokens {
                current: resume.into(),
                earlier: None,
            }),
            run: self.processes.run(process),
            claim: None,
            activity: Activity::default(),
            observers: Vec::new(),
            watch_token: watch.into(),
        };
        self.sessions.insert(Arc::clone(session), bound);
    }

    fn add_to_client(&mut self, client: ClientId, session: &Arc<str>) {
        if let Some(state) = self.clients.get_mut(client) {
            state.add_session(session);
        }
    }

    /// Moves a session from the table to the records of ended sessions. `agent` is the process that still has it.
    pub(super) fn end(&mut self, session: &Arc<str>, agent: Option<u32>) {
        let Some(bound) = self.sessions.remove(session) else {
            return;
        };
        for client in bound.clients() {
            if let Some(state) = self.clients.get_mut(client) {
                state.end_session(session);
            }
        }
        self.drop_observers(session, &bound.observers);
        let record = match (bound.state, bound.tokens) {
            (SessionState::Ended(mut record), _) => {
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

    /// Ends a client's sessions that were lost with an earlier agent process.
    fn end_lost(&mut self, client: ClientId) {
        let Some(state) = self.clients.get(client) else {
            return;
        };
        for session in state.sessions.clone() {
            let lost =
                |bound: &Session| !self.processes.is_current(bound.run) && bound.claim.is_none();
            if self.sessions.get(&session).is_some_and(lost) {
                self.end(&session, None);
            }
        }
    }

    /// Releases a session whose client has disconnected. It ends at once if there is no grace period.
    pub(super) fn release(
        &mut self,
        now: Time,
        client: ClientId,
        session: &Arc<str>,
        output: &mut impl RouterOutput,
    ) {
        let Some(bound) = self.sessions.get_mut(session) else {
            return;
        };
        if let Some(claim) = bound.claim.as_ref().filter(|claim| claim.client == client) {
            let upstream_id = claim.upstream_id;
            self.unclaim(upstream_id, session, output);
        }
        let Some(bound) = self.sessions.get_mut(session) else {
            return;
        };
        if bound.state != SessionState::Controlled(client) {
            return;
        }
        bound.state = SessionState::Gone(now);
        bound.cancel_turn(session, output);
        self.begin_grace(now, session);
    }

    /// Begins the grace period of a session whose client is gone. Without one, the session ends at once, unless another
    /// client claims it.
    fn begin_grace(&mut self, now: Time, session: &Arc<str>) {
        if let Some(grace) = self.limits.grace {
            return self.requests.wakeup.set_by(Some(now + grace));
        }
        let bound = self.sessions.get(session);
        if let Some(agent) = bound
            .filter(|bound| bound.claim.is_none())
            .map(|bound| bound.run.number)
        {
            self.end(session, Some(agent));
        }
    }

    /// The time at which the first of the detached sessions was detached.
    pub(super) fn first_gone(&self) -> Option<Time> {
        let detached = |session: &Session| match session.state {
            SessionState::Gone(since) if session.claim.is_none() => Some(since),
            _ => None,
        };
        self.sessions.values().filter_map(detached).min()
    }

    /// Ends the detached sessions that are due by the time at which they were detached.
    pub(super) fn end_gone(&mut self, is_due: impl Fn(Time) -> bool) {
        let is_due = |session: &Session| match session.state {
            SessionState::Gone(since) => session.claim.is_none() && is_due(since),
            _ => false,
        };
        let sessions = self.sessions.iter();
        let due: Vec<_> = sessions
            .filter(|(_, session)| is_due(session))
            .map(|(name, session)| (Arc::clone(name), session.run.number))
            .collect();
        for (session, agent) in due {
            self.end(&session, Some(agent));
        }
    }

    /// Handles the exit of an agent process. Pending claims fail, and clients must load their sessions again.
    pub(super) fn mark_lost(&mut self, process: usize, output: &mut impl RouterOutput) {
        let claim = |session: &Session| {
            let claim = session.claim.as_ref();
            let claim = claim.filter(|claim| claim.process == process);
            claim.map(|claim| claim.upstream_id)
        };
        let sessions = self.sessions.iter();
        let claims: Vec<_> = sessions
            .filter_map(|(name, session)| Some((claim(session)?, Arc::clone(name))))
            .collect();
        for (upstream_id, session) in claims {
            self.unclaim(upstream_id, &session, output);
        }
    }
}
