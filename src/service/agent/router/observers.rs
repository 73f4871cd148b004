//! Observers: clients that attach to a session to watch it, as in the proposal for `session/attach` of the Agent Client
//! Protocol. They may answer its permission requests if the settings permit it.
//!
//! An observer gets the agent's notifications for the session, the prompts of the session's client, and the permission
//! requests. These are requests if the observer may answer them, and notifications otherwise. It controls nothing.
//!
//! Viewers are observers that do nothing else, such as pages that connect with `?watch=SESSION`, also with a link. They send no
//! messages, not even `initialize`.

use std::ops::Range;

use super::clients::ClientState;
use super::sessions::{Session, SessionError, SessionKey, Sessions, turn_ended};
use super::{Exchange, Router, RouterOutput, remove};
use crate::service::agent::named::Named;
use crate::service::json::{Skimmer, quote};
use crate::service::jsonrpc::{Envelope, code, error, member};
use crate::{ClientId, Principal, Scope};

/// The maximum number of observers of a session.
pub(super) const MAX_OBSERVERS: usize = 64;
/// The maximum number of blocks of a prompt that observers are shown.
const MAX_SHOWN_BLOCKS: usize = 64;
/// The maximum length of a client's name and version, as JSON.
const MAX_NAME: usize = 256;

/// The name and version in the parameters of `initialize`, as a JSON object.
pub(super) fn name_of(initialize: &Envelope<'_>) -> Box<str> {
    let text = initialize.text;
    let params = initialize.body.as_ref();
    let info = params.and_then(|params| {
        member(text, params, "clientInfo").or_else(|| member(text, params, "info"))
    });
    let field = |name: &str| {
        let value = &text[member(text, info.as_ref()?, name)?];
        (value.starts_with('"') && value.len() <= MAX_NAME).then(|| format!("\"{name}\":{value}"))
    };
    let fields: Vec<_> = ["name", "version"].into_iter().filter_map(field).collect();
    format!("{{{}}}", fields.join(",")).into()
}

impl Router {
    /// Handles `session/attach` and `session/detach`. Returns false for other methods.
    pub(super) fn observe_request(
        &mut self,
        client: ClientId,
        envelope: &Envelope<'_>,
        method: &str,
        id: &str,
        output: &mut impl RouterOutput,
    ) -> bool {
        let result = match method {
            "session/attach" => self
                .sessions
                .attach(&mut self.exchange, client, envelope, output),
            "session/detach" => self.sessions.detach(&mut self.exchange, client, envelope),
            _ => return false,
        };
        self.exchange.counters.session_requests += 1;
        match result {
            Ok((session, result)) => {
                let parts = [
                    r#"{"jsonrpc":"2.0","id":"#,
                    id,
                    r#","result":"#,
                    &result,
                    "}",
                ];
                output.to_client(client, &parts);
                if method == "session/attach" && !result.contains(r#""historyPolicy":"none""#) {
                    self.sessions
                        .send_pending(&mut self.exchange, client, &session, output);
                }
            }
            Err(refused) => {
                self.exchange.counters.denied += u64::from(refused == SessionError::Denied);
                output.to_client(client, &[&refused.response(id)]);
            }
        }
        true
    }
}

impl Sessions {
    /// Attaches a client to a session. Of several processes' sessions with the same id, it means one that the client may observe,
    /// first that of the client's process. Returns the session and the result.
    fn attach(
        &mut self,
        exchange: &mut Exchange,
        client: ClientId,
        envelope: &Envelope<'_>,
        output: &impl RouterOutput,
    ) -> Result<(SessionKey, String), SessionError> {
        let id = named_session(envelope)?;
        let state = exchange.clients.get(client).ok_or(SessionError::Denied)?;
        let access = self.access(exchange);
        let may_observe = |session: &Session| {
            let is_there = access.check_present(session) != Err(SessionError::Denied);
            is_there && access.may_observe(client, session, envelope, output)
        };
        let found = self.named(id).max_by_key(|(_, session)| {
            let is_near = state.process == Some(session.process());
            (may_observe(session), is_near)
        });
        let Some((key, bound)) = found else {
            let mut records = self.ended.find(id);
            let is_own = records.any(|record| record.principal.is_same(&state.principal));
            return Err(if is_own {
                SessionError::NotFound
            } else {
                SessionError::Denied
            });
        };
        if !may_observe(bound) {
            return Err(SessionError::Denied);
        }
        if bound.controller() == Some(client) {
            return Err(SessionError::Invalid("the client controls the session"));
        }
        access.check_present(bound)?;
        self.check_single(client, key, Some(key))?;
        let own = state.process.ok_or(SessionError::Denied)?;
        if exchange.processes.version(own) != exchange.processes.version(bound.process()) {
            return Err(SessionError::Version);
        }
        if !bound.observers.contains(&client) {
            if bound.observers.len() >= MAX_OBSERVERS {
                return Err(SessionError::Observers);
            }
            if state.observed.len() >= exchange.limits.sessions {
                return Err(SessionError::Full);
            }
        }
        let policy = envelope.body.as_ref().and_then(|params| {
            let policy = member(envelope.text, params, "historyPolicy")?;
            Some(&envelope.text[policy])
        });
        // The router keeps no history. Only open permission requests are sent.
        let policy = if policy == Some(r#""none""#) {
            "none"
        } else {
            "pending_only"
        };
        let describe = |client: ClientId, role: &str| {
            let state = exchange.clients.get(client)?;
            Some(state.describe(role))
        };
        let controller = bound.controller();
        let controller = controller.and_then(|client| describe(client, "controller"));
        let observers = bound.observers.iter().filter(|other| **other != client);
        let observers = observers.filter_map(|other| describe(*other, "observer"));
        let connected: Vec<_> = controller.into_iter().chain(observers).collect();
        let result = format!(
            r#"{{"sessionId":{},"role":"observer","historyPolicy":"{policy}","connectedClients":[{}]}}"#,
            quote(id),
            connected.join(",")
        );
        let key = key.clone();
        if let (Some(bound), Some(state)) = (self.get_mut(&key), exchange.clients.get_mut(client))
            && !bound.observers.contains(&client)
        {
            bound.observers.push(client);
            state.observed.push(key.clone());
        }
        Ok((key, result))
    }

    fn detach(
        &mut self,
        exchange: &mut Exchange,
        client: ClientId,
        envelope: &Envelope<'_>,
    ) -> Result<(SessionKey, String), SessionError> {
        let id = named_session(envelope)?;
        let observes = |session: &Session| session.observers.contains(&client);
        let observed = self.named(id).find(|(_, session)| observes(session));
        let key = observed.map(|(key, _)| key.clone());
        let key = key.ok_or(SessionError::Invalid(
            "the client has not attached to the session",
        ))?;
        self.stop_observing(exchange, client, &key);
        if let Some(state) = exchange.clients.get_mut(client) {
            remove(&mut state.observed, &key);
        }
        let result = format!(r#"{{"sessionId":{},"status":"detached"}}"#, quote(&key));
        Ok((key, result))
    }

    /// Removes an observer from a session, but not the session from the observer's list.
    pub(super) fn stop_observing(
        &mut self,
        exchange: &mut Exchange,
        client: ClientId,
        session: &SessionKey,
    ) {
        if let Some(bound) = self.get_mut(session) {
            remove(&mut bound.observers, &client);
        }
        exchange.requests.remove_approver(client, session);
    }

    /// Sends a message of the agent to the observers of a session, except those who must not know of other sessions that it
    /// names.
    pub(super) fn pass_to_observers(
        &self,
        exchange: &Exchange,
        session: &SessionKey,
        text: &str,
        named: &Named<'_>,
        output: &mut impl RouterOutput,
    ) {
        let Some(bound) = self.get(session) else {
            return;
        };
        let controller = bound.controller();
        let names_more = !named.others.is_empty();
        for observer in &bound.observers {
            let may_get = !names_more
                || self
                    .access(exchange)
                    .may_get(*observer, bound.process(), named, output);
            if Some(*observer) != controller && may_get {
                output.to_client(*observer, &[text]);
            }
        }
    }
}

impl Session {
    /// Whether a client observes the session.
    pub(super) fn is_observed(&self) -> bool {
        !self.observers.is_empty()
    }

    /// Sends a message to the observers of the session.
    fn tell_observers(&self, text: &str, output: &mut impl RouterOutput) {
        let controller = self.controller();
        let observers = self.observers.iter().copied();
        let observers: Vec<ClientId> = observers
            .filter(|observer| Some(*observer) != controller)
            .collect();
        if !observers.is_empty() {
            output.to_clients(&observers, text);
        }
    }

    /// Shows a prompt to the observers of the session, as updates with its content. In version 2, the agent does that. An update
    /// has one block of content, so the number of blocks is limited. The last update says so.
    pub(super) fn show_prompt(
        &self,
        name: &str,
        prompt: &Envelope<'_>,
        output: &mut impl RouterOutput,
    ) {
        let text = prompt.text;
        let blocks = prompt.prompt.as_ref().filter(|_| self.is_observed());
        let Some(blocks) = blocks else {
            return;
        };
        let mut contents: Vec<Range<usize>> = Vec::new();
        let mut blocks = Skimmer::at(text, blocks);
        let Ok(has_more) = blocks.array_up_to(MAX_SHOWN_BLOCKS, |block| contents.push(block))
        else {
            return;
        };
        let session_json = quote(name);
        let mut show = |content: &str| {
            let update = format!(
                r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":{session_json},"update":{{"sessionUpdate":"user_message_chunk","content":{content}}}}}}}"#,
            );
            self.tell_observers(&update, output);
        };
        for content in contents {
            show(&text[content]);
        }
        if has_more {
            show(r#"{"type":"text","text":"[further blocks of the prompt are not shown]"}"#);
        }
    }

    /// Tells the observers of the session that a turn has ended. In version 2, the agent does that.
    pub(super) fn show_turn_ended(
        &self,
        name: &str,
        response: &Envelope<'_>,
        output: &mut impl RouterOutput,
    ) {
        if self.is_observed() {
            self.tell_observers(&turn_ended(name, response), output);
        }
    }

    /// Tells the observers of the session that its client has left.
    pub(super) fn show_disconnected(
        &self,
        name: &str,
        client: &ClientState,
        output: &mut impl RouterOutput,
    ) {
        if self.is_observed() {
            let update = format!(
                r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":{},"update":{{"sessionUpdate":"client_disconnected","type":"client_disconnected","client":{}}}}}}}"#,
                quote(name),
                client.describe("controller")
            );
            self.tell_observers(&update, output);
        }
    }
}

/// The session that a message names in `sessionId`, in exactly this spelling.
fn named_session<'a>(envelope: &'a Envelope<'_>) -> Result<&'a str, SessionError> {
    if envelope.misspelled_session.is_some() {
        return Err(SessionError::Invalid(
            "the session id must be named \"sessionId\"",
        ));
    }
    let session = envelope.session.as_deref();
    session.ok_or(SessionError::Invalid("\"sessionId\" is missing"))
}

/// The response to a request that a token with the scope `watch` does not permit.
pub(super) fn watch_only(id: &str) -> String {
    error(
        id,
        code::DENIED,
        "Access denied",
        Some("the token only permits listing and observing sessions"),
    )
}

/// Whether a token with the scope `watch` permits a request.
pub(super) fn is_for_watch_scope(method: &str) -> bool {
    matches!(
        method,
        "initialize" | "session/list" | "session/attach" | "session/detach"
    )
}

/// Why a client may not observe a session, for people.
fn why(error: SessionError) -> String {
    match error {
        SessionError::Denied => "there is no such session, or it has another owner".to_owned(),
        SessionError::Lost => "the agent process of the session has exited".to_owned(),
        error => error.to_string(),
    }
}

/// The first message to a viewer.
const WATCHING: &str = "_outrigger/watching";

impl Router {
    /// Checks that a caller may let others watch a session: the caller has the same principal as its owner, and the session is in
    /// use or was recently. Returns why not.
    pub(crate) fn check_share(&self, principal: &Principal, name: &str) -> Result<(), String> {
        let is_own = |session: &Session| session.principal.is_same(principal);
        let found = self.sessions.sole_named(&self.exchange, name, is_own);
        found.map(drop).map_err(why)
    }

    /// Adds a client that watches a session and does nothing else. `owner` is the principal that issued the client's link, if it
    /// has one. Without a link, the client must be the same person as the owner of the session, or have a token of the same
    /// principal that permits only watching, or that permits issuing a link. Returns why the client may not watch the session.
    pub(crate) fn handle_viewer(
        &mut self,
        client: ClientId,
        principal: Principal,
        owner: Option<&Principal>,
        name: &str,
        output: &mut impl RouterOutput,
    ) -> Result<(), String> {
        let may_watch = principal.is_person()
            || output.has_watch_scope(client)
            || output.scope(client) == Scope::All;
        let is_permitted = |session: &Session| match owner {
            Some(owner) => session.principal.is_same(owner),
            None => may_watch && session.principal.is_same(&principal),
        };
        let found = self.sessions.sole_named(&self.exchange, name, is_permitted);
        let (key, bound) = found.map_err(why)?;
        if bound.observers.len() >= MAX_OBSERVERS {
            return Err(why(SessionError::Observers));
        }
        let key = key.clone();
        let controller = bound.controller().and_then(|client| {
            let state = self.exchange.clients.get(client)?;
            Some(state.describe("controller"))
        });
        let watching = format!(
            r#"{{"jsonrpc":"2.0","method":"{WATCHING}","params":{{"sessionId":{},"connectedClients":[{}]}}}}"#,
            quote(&key),
            controller.unwrap_or_default()
        );
        self.exchange
            .clients
            .add_viewer(client, principal, key.clone());
        if let Some(bound) = self.sessions.get_mut(&key) {
            bound.observers.push(client);
        }
        output.to_client(client, &[&watching]);
        self.sessions
            .send_pending(&mut self.exchange, client, &key, output);
        Ok(())
    }
}
