//! Access to sessions: which ones a client may name, create and see, and who gets a message that names some.

use std::fmt;
use std::ops::Range;

use super::claims::is_same_secret;
use super::{Session, SessionState, Sessions};
use crate::service::agent::UnknownSessions;
use crate::service::agent::named::{Named, Places};
use crate::service::agent::router::exchange::Exchange;
use crate::service::agent::router::output::RouterOutput;
use crate::service::agent::router::requests::{AgentRequest, ClientRequest, RequestClass};
use crate::service::agent::router::session_key::SessionKey;
use crate::service::agent::router::settings::MAX_SESSION_ID;
use crate::service::agent::schema::needs_session;
use crate::service::json::{Skimmer, unescape};
use crate::service::jsonrpc::{Envelope, code, error, is_spelling_of, member};
use crate::{ClientId, Principal};

const TOO_MANY_NAMED: SessionError = SessionError::Invalid("the message names too many sessions");

/// Why a message may not use a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionError {
    /// The message does not name its session correctly.
    Invalid(&'static str),
    /// The session is not the client's.
    Denied,
    /// Another connection controls the session, which the client may take over.
    Controlled,
    /// Another connection of the same unnamed token controls the session.
    NeedsToken,
    /// The server has never seen the session.
    Unknown,
    /// The session's agent process speaks another version of the protocol.
    Version,
    /// The session has ended.
    NotFound,
    /// The limit on observers is reached.
    Observers,
    /// The agent process that had the session has exited.
    Lost,
    /// The limit on sessions is reached.
    Full,
}

impl SessionError {
    /// The error response to a request with this id.
    pub(crate) fn response(self, id: &str) -> String {
        let (code, message) = match self {
            Self::Invalid(_) | Self::Version => (code::INVALID, "Invalid request"),
            Self::Denied | Self::Controlled | Self::NeedsToken | Self::Unknown => {
                (code::DENIED, "Access denied")
            }
            Self::NotFound => (code::NOT_FOUND, "Session not found"),
            Self::Observers => (code::TOO_MANY, "Too many observers"),
            Self::Lost => (code::NOT_FOUND, "Session lost"),
            Self::Full => (code::TOO_MANY, "Too many sessions"),
        };
        error(id, code, message, Some(&self.to_string()))
    }
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid(why) => why,
            Self::Denied => {
                "the session does not belong to this connection; a client may load it with its resume token, or as its owner, whom a token with a name or a unix socket identifies"
            }
            Self::Controlled => {
                "another connection controls the session; load it with \"takeover\": true, or after that connection has ended"
            }
            Self::NeedsToken => {
                "another connection controls the session; load it with its resume token"
            }
            Self::NotFound => "the session has ended",
            Self::Observers => "the limit of observers of a session is reached",
            Self::Version => "the session speaks another version of the protocol",
            Self::Unknown => {
                "the server has not seen the session since its start, and it could belong to another client; loading it is permitted if the server has one token or only a unix socket, or allows unknown sessions"
            }
            Self::Lost => "the agent that had the session has exited; load the session again",
            Self::Full => "the limit of sessions is reached; close one first",
        })
    }
}

/// Decides which clients may use a session, learn of it, or get a message about it. Read-only.
#[derive(Clone, Copy)]
pub(crate) struct Access<'a> {
    exchange: &'a Exchange,
    sessions: &'a Sessions,
}

impl<'a> Access<'a> {
    /// Whether a client's messages may go to a process: it is the client's, or it has a session of the client.
    pub(crate) fn uses(self, client: ClientId, process: usize) -> bool {
        let Some(state) = self.exchange.clients.get(client) else {
            return false;
        };
        let mut sessions = state.sessions.iter();
        state.process == Some(process)
            || sessions.any(|key| {
                let session = self.sessions.get(key);
                session.is_some_and(|session| session.process() == process)
            })
    }

    /// Checks whether a client may use all sessions that a message names in these places, and returns the one that the message is
    /// about. Skips `sessionId` if the message `claims` that session, because `claim` checks it.
    pub(crate) fn check_names(
        self,
        client: ClientId,
        (method, places): (&str, Places),
        envelope: &Envelope<'_>,
        claims: bool,
    ) -> Result<Option<SessionKey>, SessionError> {
        if places == Places::Nowhere {
            return Ok(None);
        }
        let named = envelope.session.as_deref();
        if needs_session(method) {
            if envelope.misspelled_session.is_some() {
                let why = "the session id must be named \"sessionId\"";
                return Err(SessionError::Invalid(why));
            }
            if named.is_none() {
                return Err(SessionError::Invalid("\"sessionId\" is missing"));
            }
        }
        let mut about = None;
        if let Some(id) = named.filter(|_| !claims) {
            let own = self.sessions.of_client(client, id);
            let (key, session) = own.ok_or(SessionError::Denied)?;
            if !self.exchange.processes.is_current(session.run) && session.claim.is_none() {
                return Err(SessionError::Lost);
            }
            about = Some(key);
        }
        // In other places, a message may name any session that cannot be another client's.
        let receiver = match about.and_then(|key| self.sessions.get(key)) {
            Some(session) => Some(session.process()),
            None => self.exchange.clients.process_of(client),
        };
        let all = Named::find(envelope, places).map_err(|_| TOO_MANY_NAMED)?;
        if all
            .all()
            .any(|id| named != Some(id) && self.is_foreign(client, receiver, id))
        {
            return Err(SessionError::Denied);
        }
        let own = || all.all().find_map(|id| self.sessions.of_client(client, id));
        Ok(about.or_else(|| own().map(|(key, _)| key)).cloned())
    }

    /// Checks the session ids in a client's response to a request from the agent.
    pub(crate) fn check_answer(
        self,
        client: ClientId,
        request: &AgentRequest,
        answer: &Envelope<'_>,
    ) -> Result<(), SessionError> {
        let all = Named::find(answer, request.places).map_err(|_| TOO_MANY_NAMED)?;
        let receiver = Some(request.process);
        if all.all().any(|id| self.is_foreign(client, receiver, id)) {
            return Err(SessionError::Denied);
        }
        Ok(())
    }

    /// Whether a session id may refer to a session that is not the client's. If the client has a session with this id, only
    /// sessions with the same id in `receiver`, or in a process that gets the client's messages, count.
    fn is_foreign(self, client: ClientId, receiver: Option<usize>, id: &str) -> bool {
        let state = self.exchange.clients.get(client);
        let is_same =
            |owner: &Principal| state.is_some_and(|state| owner.is_same(&state.principal));
        let gets = |process: usize| receiver == Some(process) || self.uses(client, process);
        let mut records = self.sessions.ended.find(id);
        let Some((_, own)) = self.sessions.of_client(client, id) else {
            // The agent has asked this client about the session that it is creating.
            let process = receiver.and_then(|process| self.exchange.processes.get(process));
            if process.is_some_and(|process| process.creation.is_bound_to(client, id)) {
                return false;
            }
            let is_known = self.sessions.named(id).next().is_some() || records.next().is_some();
            return is_known || !self.may_load_unknown();
        };
        // The receiver may know the id as that of another session only if it does not have the client's.
        let is_near = receiver == Some(own.process());
        let mut others = self.sessions.named(id);
        others.any(|(_, session)| {
            session.controller() != Some(client) && (!is_near || gets(session.process()))
        }) || records.any(|record| gets(record.process) || !is_near && !is_same(&record.principal))
    }

    /// Whether a client may learn that a process has a session with this id. `None` if the router does not know the session. If only
    /// other processes have the id, the process may mean one of those sessions.
    pub(crate) fn may_know(
        self,
        client: ClientId,
        has_watch_scope: bool,
        process: usize,
        id: &str,
    ) -> Option<bool> {
        let state = self.exchange.clients.get(client);
        let principal = state.map(|state| &state.principal);
        let is_same = |owner: &Principal| principal.is_some_and(|own| owner.is_same(own));
        let may_know = |session: &Session| match session.controller() {
            Some(controller) => {
                let is_one = has_watch_scope || principal.is_some_and(Principal::is_person);
                controller == client
                    || is_one && is_same(&session.principal)
                    || session.observers.contains(&client)
            }
            None => is_same(&session.principal),
        };
        if let Some((_, session)) = self.sessions.of_process(process, id) {
            return Some(may_know(session));
        }
        if let Some(record) = self.sessions.ended.get(process, id) {
            let run = self.exchange.processes.run(process);
            let has_had = state.is_some_and(|state| state.has_had(run, id));
            return Some(has_had || is_same(&record.principal));
        }
        let (sessions, records) = (|| self.sessions.named(id), || self.sessions.ended.find(id));
        let is_known = sessions().next().is_some() || records().next().is_some();
        is_known.then(|| {
            sessions().all(|(_, session)| may_know(session))
                && records().all(|record| is_same(&record.principal))
        })
    }

    /// Whether clients may load sessions that the router has never seen.
    pub(crate) fn may_load_unknown(self) -> bool {
        let permitted = match self.exchange.settings.unknown_sessions {
            UnknownSessions::Auto => !self.exchange.clients.has_several_principals(),
            UnknownSessions::Allow => true,
            UnknownSessions::Deny => false,
        };
        permitted && !self.sessions.ended.is_full()
    }

    /// Removes from a process's response to `session/list` the sessions that the client may not see.
    pub(crate) fn list_for(
        self,
        client: ClientId,
        has_watch_scope: bool,
        process: usize,
        envelope: &Envelope<'_>,
    ) -> String {
        let text = envelope.text;
        let sessions = envelope
            .body
            .as_ref()
            .and_then(|result| member(text, result, "sessions"));
        let Some(sessions) = sessions.filter(|sessions| text.as_bytes()[sessions.start] == b'[')
        else {
            return text.to_owned();
        };
        let may_see = |id: &str| {
            let known = self.may_know(client, has_watch_scope, process, id);
            known.unwrap_or_else(|| self.may_load_unknown())
        };
        let mut kept: Vec<&str> = Vec::new();
        let scanned = Skimmer::at(text, &sessions).array(|element| {
            if names_only(text, &element, may_see) {
                kept.push(&text[element]);
            }
        });
        debug_assert!(scanned.is_ok(), "the text has been validated");
        [
            &text[..sessions.start],
            "[",
            &kept.join(","),
            "]",
            &text[sessions.end..],
        ]
        .concat()
    }

    /// Whether a client may know of all sessions that a message from a process names.
    pub(crate) fn may_get(
        self,
        client: ClientId,
        process: usize,
        named: &Named<'_>,
        output: &impl RouterOutput,
    ) -> bool {
        let has_watch_scope = output.has_watch_scope(client);
        let may_know = |id| {
            let known = self.may_know(client, has_watch_scope, process, id);
            known.unwrap_or(true)
        };
        named.all().all(may_know)
    }

    /// Whether a response names no session that the client of its request must not know of.
    pub(crate) fn may_answer(
        self,
        request: &ClientRequest,
        response: &Envelope<'_>,
        output: &impl RouterOutput,
    ) -> bool {
        let call = &request.call;
        let named = Named::find(response, call.places).map(|named| Named {
            // The client knows the session that it has named. The one that a method of the schema creates belongs to nobody yet: the
            // agent may reuse the id of another one.
            address: named.address.filter(|address| {
                call.class != RequestClass::Create && call.session.as_deref() != Some(address)
            }),
            ..named
        });
        named.is_ok_and(|named| self.may_get(call.client, request.process, &named, output))
    }

    /// Who may get a message from a process. A message for one session may name others, if their client may know of them.
    /// `is_creating` says that the process may be creating a session.
    pub(crate) fn receiver(
        self,
        process: usize,
        named: &Named<'_>,
        is_creating: bool,
        output: &impl RouterOutput,
    ) -> Receiver {
        let candidates = match &named.address {
            Some(address) => std::slice::from_ref(address),
            None => &named.others,
        };
        if candidates.is_empty() {
            return Receiver::Unnamed;
        }
        let mut found: Option<(&SessionKey, Option<ClientId>)> = None;
        for id in candidates {
            let Some((key, session)) = self.sessions.of_process(process, id) else {
                continue;
            };
            let client = session.controller();
            // A session whose client has left keeps what is addressed to it, for the next client.
            let is_kept = named.address.is_some() && matches!(session.state, SessionState::Gone(_));
            if client.is_none() && session.observers.is_empty() && !is_kept {
                continue;
            }
            match found {
                Some((_, other)) if other != client => return Receiver::Crossing,
                _ => found = Some((key, client)),
            }
        }
        let Some((key, client)) = found else {
            let is_free = |id: &str| self.sessions.is_free(&self.exchange.processes, process, id);
            let mut candidates = candidates.iter().filter(|_| is_creating);
            let early = candidates.find(|id| id.len() <= MAX_SESSION_ID && is_free(id));
            return early.map_or(Receiver::Nobody, |id| Receiver::Early((&**id).into()));
        };
        let names_more = !named.others.is_empty();
        if client.is_some_and(|client| names_more && !self.may_get(client, process, named, output))
        {
            return Receiver::Crossing;
        }
        Receiver::Session {
            key: key.clone(),
            client,
            is_addressed: named.address.is_some(),
        }
    }

    /// Whether a client may observe a session: with the session's watch token or resume token, as the same person, or as the
    /// same principal with a token that permits only observing. If the session has no client, its principal may observe it, because
    /// that principal may also load it.
    pub(crate) fn may_observe(
        self,
        client: ClientId,
        session: &Session,
        envelope: &Envelope<'_>,
        output: &impl RouterOutput,
    ) -> bool {
        let principal = self
            .exchange
            .clients
            .get(client)
            .map(|state| &state.principal);
        let is_same = principal.is_some_and(|principal| {
            let may_load = matches!(session.state, SessionState::Gone(_));
            let is_one = principal.is_person() || output.has_watch_scope(client) || may_load;
            is_one && session.principal.is_same(principal)
        });
        let watch_token = envelope.outrigger_text("watchToken");
        let has_token = watch_token.is_some_and(|token| {
            !session.watch_token.is_empty() && is_same_secret(&token, &session.watch_token)
        });
        is_same
            || has_token
            || envelope
                .resume_token()
                .is_some_and(|token| session.is_opened_by(&token))
    }

    /// Checks that a session is in use or was recently, so that it can be observed.
    pub(crate) fn check_present(self, session: &Session) -> Result<(), SessionError> {
        let is_there = matches!(
            session.state,
            SessionState::Controlled(_) | SessionState::Gone(_)
        );
        match (is_there, self.exchange.processes.is_current(session.run)) {
            (false, _) => Err(SessionError::Denied),
            (true, false) => Err(SessionError::Lost),
            (true, true) => Ok(()),
        }
    }
}

/// Who may get a message of the agent, by the sessions that it names.
#[derive(Debug)]
pub(crate) enum Receiver {
    /// It names no session.
    Unnamed,
    /// The client of this session, and the observers of the session if `is_addressed`.
    Session {
        key: SessionKey,
        /// `None` if only observers are left.
        client: Option<ClientId>,
        /// Whether the session is at `params.sessionId`.
        is_addressed: bool,
    },
    /// The client of this session, which is perhaps being created.
    Early(Box<str>),
    /// Nobody: the sessions have no clients, or belong to another process.
    Nobody,
    /// Nobody: the sessions belong to several clients, which must not learn of each other's.
    Crossing,
}

impl Sessions {
    /// The rules of access, for the present clients and sessions.
    pub(crate) fn access<'a>(&'a self, exchange: &'a Exchange) -> Access<'a> {
        Access {
            exchange,
            sessions: self,
        }
    }

    /// Checks whether a client may use all sessions that a message of a method names; see [`Access::check_names`].
    pub(crate) fn check_names(
        &self,
        exchange: &Exchange,
        client: ClientId,
        method: &str,
        envelope: &Envelope<'_>,
        claims: bool,
    ) -> Result<Option<SessionKey>, SessionError> {
        let places = exchange.places_of(method);
        let access = self.access(exchange);
        access.check_names(client, (method, places), envelope, claims)
    }

    /// Checks the limits for another session: that of the client and that of the table. If the table is full, ends the
    /// sessions whose clients left first.
    pub(crate) fn check_room(
        &mut self,
        exchange: &mut Exchange,
        client: ClientId,
    ) -> Result<(), SessionError> {
        if self.is_client_full(exchange, client) {
            self.end_lost(exchange, client);
        }
        if self.is_table_full(exchange)
            && let Some(first) = self.first_gone()
        {
            self.end_gone(exchange, |since| since <= first);
        }
        if self.is_client_full(exchange, client) || self.is_table_full(exchange) {
            return Err(SessionError::Full);
        }
        Ok(())
    }

    /// Whether a client has as many sessions as it may have, including those that are being created.
    pub(super) fn is_client_full(&self, exchange: &Exchange, client: ClientId) -> bool {
        let Some(state) = exchange.clients.get(client) else {
            return true;
        };
        let requests = exchange.requests.of_client(state);
        let creating = requests.filter(|request| request.call.class == RequestClass::Create);
        state.sessions.len() + creating.count() >= exchange.settings.sessions
    }

    /// Whether the table is full. Sessions that are being created count, because there must be room for them when the
    /// agent answers.
    fn is_table_full(&self, exchange: &Exchange) -> bool {
        let processes = exchange.processes.iter();
        let abandoned = processes.map(|process| process.abandoned.len());
        let expected = exchange.requests.all_creating() + abandoned.sum::<usize>();
        self.len() + expected >= exchange.settings.all_sessions
    }
}

/// Whether an entry of the session list names only sessions that `may_see` accepts.
fn names_only(text: &str, entry: &Range<usize>, may_see: impl Fn(&str) -> bool) -> bool {
    if text.as_bytes()[entry.start] != b'{' {
        return true;
    }
    let mut is_visible = true;
    let scanned = Skimmer::at(text, entry).object(|key, value| {
        if is_spelling_of(&key, "sessionId") && text.as_bytes()[value.start] == b'"' {
            is_visible &= may_see(&unescape(&text[value]));
        }
    });
    debug_assert!(scanned.is_ok(), "the text has been validated");
    is_visible
}
