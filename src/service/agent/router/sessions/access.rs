//! Access to sessions: which sessions a client may name, create and see.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::service::agent::config::UnknownSessions;
use crate::service::agent::named::{Named, Places};
use crate::service::agent::router::{RequestClass, Router};
use crate::service::agent::schema::{has_session_rules, kind_of_method, needs_session};
use crate::service::json::{Skimmer, unescape};
use crate::service::jsonrpc::{Envelope, code, error, is_spelling_of, member};
use crate::{ClientId, Principal};

const TOO_MANY_NAMED: SessionError = SessionError::Invalid("the message names too many sessions");

/// Why a message may not use a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum SessionError {
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
    pub(in super::super) fn response(self, id: &str) -> String {
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

impl Router {
    /// Where messages of a method, and responses to its requests, have session ids.
    pub(in super::super) fn places_of(&self, method: &str) -> Places {
        if !self.limits.protocol.has_sessions() {
            Places::Nowhere
        } else if kind_of_method(method).is_some() {
            Places::Schema
        } else if !has_session_rules(method) && self.free_methods.iter().any(|free| free == method)
        {
            Places::Nowhere
        } else {
            Places::Anywhere
        }
    }

    /// Checks whether a client may use all sessions that a message names, and returns the one that the message is about. Skips
    /// `sessionId` if the message `claims` that session, because `claim` checks it.
    pub(in super::super) fn check_names(
        &self,
        client: ClientId,
        method: &str,
        envelope: &Envelope<'_>,
        claims: bool,
    ) -> Result<Option<Arc<str>>, SessionError> {
        let places = self.places_of(method);
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
        if let Some(session) = named.filter(|_| !claims) {
            let found = self.sessions.get_key_value(session);
            match found.filter(|(_, bound)| bound.controller() == Some(client)) {
                None => return Err(SessionError::Denied),
                Some((_, bound))
                    if !self.processes.is_current(bound.run) && bound.claim.is_none() =>
                {
                    return Err(SessionError::Lost);
                }
                Some((name, _)) => about = Some(Arc::clone(name)),
            }
        }
        // In other places, a message may name any session that cannot be another client's.
        let all = Named::find(envelope, places).map_err(|_| TOO_MANY_NAMED)?;
        if all
            .all()
            .any(|session| named != Some(session) && self.is_foreign(client, session))
        {
            return Err(SessionError::Denied);
        }
        Ok(about.or_else(|| {
            let known = all.all().find_map(|name| self.sessions.get_key_value(name));
            known.map(|(name, _)| Arc::clone(name))
        }))
    }

    /// Checks the session ids in a client's response to a request of the agent.
    pub(in super::super) fn check_answer(
        &self,
        client: ClientId,
        places: Places,
        answer: &Envelope<'_>,
    ) -> Result<(), SessionError> {
        let all = Named::find(answer, places).map_err(|_| TOO_MANY_NAMED)?;
        if all.all().any(|session| self.is_foreign(client, session)) {
            return Err(SessionError::Denied);
        }
        Ok(())
    }

    /// Whether a session may belong to another client.
    fn is_foreign(&self, client: ClientId, session: &str) -> bool {
        match self.sessions.get(session) {
            Some(bound) => bound.controller() != Some(client),
            None => !self.may_load_unknown() || self.ended.get(session).is_some(),
        }
    }

    /// Whether a client may learn that a session exists. `None` if the router does not know the session.
    pub(in super::super) fn may_know(
        &self,
        client: ClientId,
        has_watch_scope: bool,
        session: &str,
    ) -> Option<bool> {
        let state = self.clients.get(client);
        let principal = state.map(|state| &state.principal);
        let is_same = |owner: &Principal| principal.is_some_and(|own| owner.is_same(own));
        let is_former = || state.is_some_and(|state| state.has_had(session));
        Some(match self.sessions.get(session) {
            Some(bound) => match bound.controller() {
                Some(controller) => {
                    let is_one = has_watch_scope || principal.is_some_and(Principal::is_person);
                    controller == client
                        || is_one && is_same(&bound.principal)
                        || bound.observers.contains(&client)
                }
                None => is_same(&bound.principal),
            },
            None => is_same(&self.ended.get(session)?.principal) || is_former(),
        })
    }

    /// Whether clients may load sessions that the router has never seen.
    pub(super) fn may_load_unknown(&self) -> bool {
        let permitted = match self.limits.unknown_sessions {
            UnknownSessions::Auto => !self.clients.has_several_principals(),
            UnknownSessions::Allow => true,
            UnknownSessions::Deny => false,
        };
        permitted && !self.ended.is_full()
    }

    /// Checks the limits for another session: that of the client and that of the table. If the table is full, ends the
    /// sessions whose clients left first.
    pub(in super::super) fn check_room(&mut self, client: ClientId) -> Result<(), SessionError> {
        if self.is_client_full(client) {
            self.end_lost(client);
        }
        if self.is_table_full()
            && let Some(first) = self.first_gone()
        {
            self.end_gone(|since| since <= first);
        }
        if self.is_client_full(client) || self.is_table_full() {
            return Err(SessionError::Full);
        }
        Ok(())
    }

    /// Whether a client has as many sessions as it may have, including those that are being created.
    pub(super) fn is_client_full(&self, client: ClientId) -> bool {
        let Some(state) = self.clients.get(client) else {
            return true;
        };
        let requests = self.requests.of_client(state);
        let creating = requests.filter(|request| request.call.class == RequestClass::Create);
        let creating = creating.count();
        state.sessions.len() + creating >= self.limits.sessions
    }

    /// Whether the table is full. Sessions that are being created count, because there must be room for them when the
    /// agent answers.
    fn is_table_full(&self) -> bool {
        let processes = self.processes.iter();
        let abandoned = processes.map(|process| process.abandoned.len());
        let expected = self.requests.all_creating() + abandoned.sum::<usize>();
        self.sessions.len() + expected >= self.limits.all_sessions
    }

    /// Removes the sessions that a client may not see from the agent's response to `session/list`.
    pub(in super::super) fn list_for(
        &self,
        client: ClientId,
        has_watch_scope: bool,
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
        let mut kept: Vec<&str> = Vec::new();
        let scanned = Skimmer::at(text, &sessions).array(|element| {
            if self.may_see(client, has_watch_scope, text, &element) {
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

    /// Whether a client may see an entry of the session list.
    fn may_see(
        &self,
        client: ClientId,
        has_watch_scope: bool,
        text: &str,
        entry: &Range<usize>,
    ) -> bool {
        if text.as_bytes()[entry.start] != b'{' {
            return true;
        }
        let mut is_visible = true;
        let scanned = Skimmer::at(text, entry).object(|key, value| {
            if !is_spelling_of(&key, "sessionId") || text.as_bytes()[value.start] != b'"' {
                return;
            }
            let known = self.may_know(client, has_watch_scope, &unescape(&text[value]));
            is_visible &= known.unwrap_or_else(|| self.may_load_unknown());
        });
        debug_assert!(scanned.is_ok(), "the text has been validated");
        is_visible
    }
}
