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
//! [`Router::handle_disconnected`](super::Router::handle_disconnected).
//!
//! `load` and `resume` claim a session: the client controls it if the agent agrees, and the client's principal becomes the
//! owner. Until the agent has answered, the client is treated as if the agent had agreed. Two clients with
//! [`Principal::Nobody`] never have the same principal. Once the records of ended sessions are full, unknown sessions
//! cannot be used at all. Whether they can before is a setting ([`UnknownSessions`]).
//!
//! Other clients may observe a session (`observers.rs`).
//!
//! A session belongs to an agent process. The agent chooses the session's id, so two processes may use the same id: some count
//! from 0. In a message from a process, an id refers to the session of that process. In a message from a client, it refers to
//! the session that the client controls. In a claim, it refers to the first match in this order: the session that the client
//! controls, one that its token opens, one that its principal owns in the client's process, one that its principal owns in
//! another. A client uses only one session with an id at a time. A session can move to another process only if all sessions
//! with its id, including ended ones, have the same principal. Otherwise, that process could confuse it with another owner's. The
//! same is true of a session that its process may have forgotten, because it was closed or the process has exited.
//!
//! Ended sessions are in [`EndedSessions`](super::ended_sessions::EndedSessions), all others in the table.

mod access;
mod claims;
mod histories;
mod turns;

use std::collections::HashMap;
use std::sync::Arc;

use super::ended_sessions::{EndedSessions, SessionRecord};
use super::exchange::Exchange;
use super::history::{History, HistoryBudget, MAX_ALL};
use super::output::RouterOutput;
use super::process_table::{Processes, Run};
use super::requests::{AbandonedRequest, Requests};
use super::session_key::SessionKey;
use super::settings::RouterSettings;

use crate::record::{Load, Loader, Record, RecordError, Saver, Set, State, object, record};
#[cfg(doc)]
use crate::service::agent::UnknownSessions;
use crate::service::id_map::IdMap;
use crate::{ClientId, Principal, Time};

use super::clients::remove;
pub(super) use access::{Receiver, SessionError};
use claims::added_tokens;
pub(super) use turns::Activity;

/// A session in the table.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) principal: Principal,
    pub(super) state: SessionState,
    /// The secrets that open it for another connection. `None` while its state is `Unknown` or `Ended`.
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
    pub(super) history: History,
}

record!(Session {
    principal,
    state,
    tokens,
    run,
    claim,
    activity,
    observers,
    watch_token,
    history,
});

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

record!(
    enum SessionState {
        Unknown,
        Ended(record),
        Gone(since),
        Controlled(client),
    }
);

/// Secrets with which another connection may claim or observe a session.
#[derive(Debug)]
struct Tokens {
    current: Box<str>,
    /// The previous token, until the current one has been used.
    earlier: Option<Box<str>>,
}

record!(Tokens { current, earlier });

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

record!(Claim {
    upstream_id,
    process,
    client,
    token,
});

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

    /// Whether a client controls or observes the session.
    pub(super) fn is_used_by(&self, client: ClientId) -> bool {
        self.controller() == Some(client) || self.observers.contains(&client)
    }

    /// The time at which the client of a session that is gone disconnected. `None` if another client claims the session.
    fn gone_since(&self) -> Option<Time> {
        match self.state {
            SessionState::Gone(since) if self.claim.is_none() => Some(since),
            _ => None,
        }
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

/// The sessions, and the records of those that have ended. No process has two sessions with the same id.
#[derive(Debug)]
pub(super) struct Sessions {
    table: IdMap<SessionKey, Session>,
    /// The keys of the sessions with the same id.
    keys: HashMap<Arc<str>, Vec<SessionKey>>,
    pub(super) ended: EndedSessions,
    pub(super) history: HistoryBudget,
}

impl State for Sessions {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        let Self {
            table,
            keys,
            ended,
            history,
        } = self;
        to.open(b'{');
        to.field("table", table);
        to.member("keys", |to| {
            to.array(keys.values(), |to, keys| keys.save(to))
        });
        to.member("ended", |to| ended.save(to));
        to.member("history", |to| history.save(to));
        to.close(b'}');
    }

    fn load(&mut self, from: &mut Loader) -> Result<(), RecordError> {
        let mut keys = Vec::<Vec<SessionKey>>::new();
        object!(from {
            table: Set(&mut self.table),
            keys: Set(&mut keys),
            ended: Load(&mut self.ended),
            history: Load(&mut self.history),
        })?;
        let named = |keys: Vec<SessionKey>| Some((Arc::clone(keys.first()?.id()), keys));
        self.keys = keys.into_iter().filter_map(named).collect();
        Ok(())
    }
}

impl Sessions {
    pub(super) fn new(settings: &RouterSettings) -> Self {
        Self {
            table: IdMap::default(),
            keys: HashMap::new(),
            ended: EndedSessions::new(settings.ended_sessions, settings.processes),
            history: HistoryBudget {
                each: settings.history,
                all: MAX_ALL,
                bytes: 0,
            },
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn get(&self, key: &SessionKey) -> Option<&Session> {
        self.table.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &SessionKey) -> Option<&mut Session> {
        self.table.get_mut(key)
    }

    /// All sessions, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&SessionKey, &Session)> {
        self.table.iter()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Session> {
        self.table.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&SessionKey, &mut Session)> {
        self.table.iter_mut()
    }

    /// The sessions with this id.
    pub(super) fn named(&self, id: &str) -> impl Iterator<Item = (&SessionKey, &Session)> {
        let keys = self.keys.get(id).into_iter().flatten();
        keys.filter_map(|key| self.table.get_key_value(key))
    }

    /// The session that a process knows by this id.
    pub(super) fn of_process(&self, process: usize, id: &str) -> Option<(&SessionKey, &Session)> {
        self.named(id)
            .find(|(_, session)| session.process() == process)
    }

    /// The session with this id that a client may use.
    pub(super) fn of_client(&self, client: ClientId, id: &str) -> Option<(&SessionKey, &Session)> {
        self.named(id)
            .find(|(_, session)| session.controller() == Some(client))
    }

    /// The client that gets a session's messages.
    pub(super) fn controller_of(&self, key: &SessionKey) -> Option<ClientId> {
        self.get(key).and_then(Session::controller)
    }

    /// Whether a process may create a session with this id: it has no session with the id, or only one of an earlier run, or one
    /// that the router knows only from a pending claim.
    pub(super) fn is_free(&self, processes: &Processes, process: usize, id: &str) -> bool {
        let mut its = self.named(id).filter(|(_, session)| session.needs(process));
        its.all(|(_, session)| {
            if session.claim.is_some() {
                session.state == SessionState::Unknown
            } else {
                !processes.is_current(session.run)
            }
        })
    }

    /// Checks that a client uses no other session with this id than `except`: it could not tell their messages apart.
    pub(super) fn check_single(
        &self,
        client: ClientId,
        id: &str,
        except: Option<&SessionKey>,
    ) -> Result<(), SessionError> {
        let mut others = self.named(id).filter(|(key, _)| Some(*key) != except);
        if others.any(|(_, session)| session.is_used_by(client)) {
            let why = "the client uses another session with this id";
            return Err(SessionError::Invalid(why));
        }
        Ok(())
    }

    /// The session with this id that may be watched, of those that `is_permitted` matches. There must be only one.
    pub(super) fn sole_named(
        &self,
        exchange: &Exchange,
        id: &str,
        is_permitted: impl Fn(&Session) -> bool,
    ) -> Result<(&SessionKey, &Session), SessionError> {
        let access = self.access(exchange);
        let permitted = || self.named(id).filter(|(_, session)| is_permitted(session));
        let mut present = permitted().filter(|(_, session)| access.check_present(session).is_ok());
        match (present.next(), present.next(), permitted().next()) {
            (Some(found), None, _) => Ok(found),
            (Some(_), Some(_), _) => Err(SessionError::Invalid("several sessions have this id")),
            (None, _, Some((_, session))) => Err(access
                .check_present(session)
                .err()
                .unwrap_or(SessionError::Denied)),
            (None, _, None) => Err(SessionError::Denied),
        }
    }

    /// Whether a session is in the table only because of a claim.
    pub(super) fn is_unconfirmed(&self, key: &SessionKey) -> bool {
        let session = self.get(key);
        session.is_some_and(|session| session.state == SessionState::Unknown)
    }

    /// Whether a turn runs in one of these sessions of a client.
    pub(super) fn has_running_turn(&self, client: ClientId, sessions: &[SessionKey]) -> bool {
        let mut sessions = sessions.iter().filter_map(|key| self.get(key));
        sessions
            .any(|session| session.activity.is_running() && session.controller() == Some(client))
    }

    fn insert(&mut self, id: &str, session: Session) -> SessionKey {
        let key = SessionKey::new(id);
        self.table.insert(key.clone(), session);
        let keys = self.keys.entry(Arc::clone(key.id())).or_default();
        keys.push(key.clone());
        key
    }

    fn remove(&mut self, key: &SessionKey) -> Option<Session> {
        self.forget_history(key);
        if let Some(keys) = self.keys.get_mut(key.id()) {
            remove(keys, key);
            if keys.is_empty() {
                self.keys.remove(key.id());
            }
        }
        self.table.remove(key)
    }

    /// Makes a record of a session that has ended. `agent` is the run that still has it.
    fn record(&mut self, id: &str, session: Session, agent: Option<u32>) {
        if let SessionState::Ended(mut record) = session.state {
            record.agent = agent;
            return self.restore(id, record);
        }
        let tokens = session.tokens.as_ref();
        let current = tokens.map_or("", |tokens| &tokens.current);
        let earlier = tokens.and_then(|tokens| tokens.earlier.as_deref());
        let process = session.run.process;
        let record = self
            .ended
            .record(id, process, session.principal, (current, earlier), agent);
        self.ended.insert(id, record);
    }

    /// Restores the record of a session whose claim has failed, unless its process has had another session with this id since.
    fn restore(&mut self, id: &str, record: SessionRecord) {
        let process = record.process;
        let is_used = self.named(id).any(|(_, session)| session.needs(process));
        if !is_used && self.ended.get(process, id).is_none() {
            self.ended.insert(id, record);
        }
    }

    /// The earliest time at which the client of a session that is still gone and unclaimed disconnected.
    pub(super) fn first_gone(&self) -> Option<Time> {
        self.values().filter_map(Session::gone_since).min()
    }

    /// The unclaimed sessions whose client disconnected at a time that `is_due` accepts, with the runs that still have them.
    fn gone(&self, is_due: impl Fn(Time) -> bool) -> Vec<(SessionKey, u32)> {
        let due = self
            .iter()
            .filter(|(_, session)| session.gone_since().is_some_and(&is_due));
        due.map(|(key, session)| (key.clone(), session.run.number))
            .collect()
    }

    /// The sessions that need a process.
    pub(super) fn that_need(&self, process: usize) -> Vec<SessionKey> {
        let sessions = self.iter().filter(|(_, session)| session.needs(process));
        sessions.map(|(key, _)| key.clone()).collect()
    }

    /// The sessions that a client controls or can still resume: at most `most`, in the order of their ids.
    pub(super) fn figures(&self, requests: &Requests, most: usize) -> Vec<SessionFigures> {
        let mut sessions: Vec<(&SessionKey, &Session)> = self.iter().collect();
        let id =
            |(key, session): &(&SessionKey, &Session)| (Arc::clone(key.id()), session.process());
        if sessions.len() > most {
            sessions.select_nth_unstable_by_key(most, id);
            sessions.truncate(most);
        }
        sessions.sort_unstable_by_key(id);
        let mut waiting: HashMap<&SessionKey, usize> = HashMap::new();
        let pending = requests.of_clients.values();
        for key in pending.filter_map(|request| request.call.session.as_ref()) {
            *waiting.entry(key).or_default() += 1;
        }
        let figures = sessions.into_iter().map(|(key, session)| SessionFigures {
            id: Arc::clone(key.id()),
            owner: session.principal.clone(),
            client: session.controller(),
            waiting: waiting.get(key).copied().unwrap_or_default(),
            observers: session.observers.len(),
        });
        figures.collect()
    }
}

impl Sessions {
    /// Adds a session that the agent created for a client.
    pub(super) fn create(
        &mut self,
        exchange: &mut Exchange,
        client: ClientId,
        process: usize,
        id: &str,
        tokens: NewTokens,
    ) {
        let Some(state) = exchange.clients.get(client) else {
            return;
        };
        let principal = state.principal.clone();
        let key = self.open(
            exchange,
            id,
            principal,
            SessionState::Controlled(client),
            process,
            tokens,
        );
        if let Some(state) = exchange.clients.get_mut(client) {
            state.add_session(&key);
        }
    }

    /// Adds a session that the agent opened for a client that has since disconnected. It belongs to the client's
    /// principal, and no client knows its token.
    pub(super) fn create_gone(
        &mut self,
        exchange: &mut Exchange,
        now: Time,
        abandoned: &AbandonedRequest,
        process: usize,
        id: &str,
        tokens: NewTokens,
    ) {
        let is_free = if abandoned.session.is_some() {
            // The session was loaded, and another client may have claimed it since, also in another process.
            self.named(id).next().is_none() && self.ended.find(id).next().is_none()
        } else {
            self.is_free(&exchange.processes, process, id)
        };
        if !is_free {
            return;
        }
        let principal = abandoned.principal.clone();
        let key = self.open(
            exchange,
            id,
            principal,
            SessionState::Gone(now),
            process,
            tokens,
        );
        self.begin_grace(exchange, now, &key);
    }

    /// Adds a session and removes any earlier session of the process with the same id.
    fn open(
        &mut self,
        exchange: &mut Exchange,
        id: &str,
        principal: Principal,
        state: SessionState,
        process: usize,
        NewTokens { resume, watch }: NewTokens,
    ) -> SessionKey {
        // A claim of a session that the router has not seen is over, too: it could be this one.
        let is_over = |session: &Session| {
            let is_unseen = session.state == SessionState::Unknown;
            session.needs(process) || is_unseen && !session.principal.is_same(&principal)
        };
        let earlier = self.named(id).filter(|(_, session)| is_over(session));
        let earlier: Vec<SessionKey> = earlier.map(|(key, _)| key.clone()).collect();
        for key in earlier {
            let Some(session) = self.remove(&key) else {
                continue;
            };
            for client in session.clients() {
                if let Some(state) = exchange.clients.get_mut(client) {
                    remove(&mut state.sessions, &key);
                }
            }
            exchange.drop_observers(&key, &session.observers);
        }
        self.ended.remove(process, id);
        let session = Session {
            principal,
            state,
            tokens: Some(Tokens {
                current: resume.into(),
                earlier: None,
            }),
            run: exchange.processes.run(process),
            claim: None,
            activity: Activity::default(),
            observers: Vec::new(),
            watch_token: watch.into(),
            history: History::default(),
        };
        self.insert(id, session)
    }

    /// Moves a session from the table to the records of ended sessions. `agent` is the run that still has it.
    pub(super) fn end(&mut self, exchange: &mut Exchange, key: &SessionKey, agent: Option<u32>) {
        let Some(session) = self.remove(key) else {
            return;
        };
        for client in session.clients() {
            if let Some(state) = exchange.clients.get_mut(client) {
                state.end_session(session.run, key);
            }
        }
        exchange.drop_observers(key, &session.observers);
        self.record(key, session, agent);
    }

    /// Ends a client's sessions that were lost with an earlier agent process.
    fn end_lost(&mut self, exchange: &mut Exchange, client: ClientId) {
        let Some(state) = exchange.clients.get(client) else {
            return;
        };
        for key in state.sessions.clone() {
            let lost = |session: &Session| {
                !exchange.processes.is_current(session.run) && session.claim.is_none()
            };
            if self.get(&key).is_some_and(lost) {
                self.end(exchange, &key, None);
            }
        }
    }

    /// Releases a session whose client has disconnected. It ends at once if there is no grace period.
    pub(super) fn release(
        &mut self,
        exchange: &mut Exchange,
        now: Time,
        client: ClientId,
        key: &SessionKey,
        output: &mut impl RouterOutput,
    ) {
        let claim = self.get(key).and_then(|session| session.claim.as_ref());
        if let Some(claim) = claim.filter(|claim| claim.client == client) {
            let upstream_id = claim.upstream_id;
            self.unclaim(exchange, upstream_id, key, output);
        }
        let Some(session) = self.get_mut(key) else {
            return;
        };
        if session.state != SessionState::Controlled(client) {
            return;
        }
        session.state = SessionState::Gone(now);
        session.cancel_turn(key, output);
        self.make_room_for_histories(key);
        self.begin_grace(exchange, now, key);
    }

    /// Begins the grace period of a session whose client left at `since`. Without one, the session ends at once, unless another
    /// client claims it.
    fn begin_grace(&mut self, exchange: &mut Exchange, since: Time, key: &SessionKey) {
        if let Some(grace) = exchange.settings.grace {
            return exchange.requests.wakeup.set_by(Some(since + grace));
        }
        let session = self.get(key);
        let session = session.filter(|session| session.claim.is_none());
        if let Some(run) = session.map(|session| session.run.number) {
            self.end(exchange, key, Some(run));
        }
    }

    /// Ends the sessions that are gone and whose client disconnected at a time that `is_due` accepts.
    pub(super) fn end_gone(&mut self, exchange: &mut Exchange, is_due: impl Fn(Time) -> bool) {
        for (key, run) in self.gone(is_due) {
            self.end(exchange, &key, Some(run));
        }
    }

    /// Handles the exit of an agent process. Pending claims fail, and clients must load their sessions again.
    pub(super) fn mark_lost(
        &mut self,
        exchange: &mut Exchange,
        process: usize,
        output: &mut impl RouterOutput,
    ) {
        let claims = self.iter().filter_map(|(key, session)| {
            let claim = session.claim.as_ref();
            let claim = claim.filter(|claim| claim.process == process)?;
            Some((claim.upstream_id, key.clone()))
        });
        let claims: Vec<_> = claims.collect();
        for (upstream_id, key) in claims {
            self.unclaim(exchange, upstream_id, &key, output);
        }
    }
}
