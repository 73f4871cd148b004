//! Observers: clients that attach to a session to watch it, as in the proposal for `session/attach` of the Agent Client
//! Protocol. They may answer its permission requests if the settings permit it.
//!
//! An observer gets the agent's notifications for the session, the prompts of the session's client, and the permission
//! requests. Those that have attached are told of prompts and turns as the proposal says; viewers, and a replay, have the prompts as
//! messages of the user. These are requests if the observer may answer them, and notifications otherwise. It controls nothing.
//!
//! Viewers are observers that do nothing else, such as pages that connect with `?watch=SESSION`, also with a link. They send no
//! messages, not even `initialize`.

use super::Router;
use super::clients::{ClientState, remove};
use super::exchange::Exchange;
use super::history::{Entry, HistoryPolicy};
use super::listing::OWN_SESSIONS;
use super::output::RouterOutput;
use super::session_key::SessionKey;
use super::sessions::{Session, SessionError, Sessions};
use super::updates::{MAX_NAME, prompt_received, prompt_updates, turn_complete};
use crate::service::agent::named::Named;
use crate::service::json::quote;
use crate::service::jsonrpc::{Envelope, code, error, error_with, member, success};
use crate::{ClientId, Principal, Scope};

/// The maximum number of observers of a session.
pub(super) const MAX_OBSERVERS: usize = 64;

/// The name and version in the parameters of `initialize` or `session/attach`, as a JSON object.
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
            Ok(Observation {
                session,
                result,
                policy,
            }) => {
                output.to_client(client, &success(id, &result));
                self.sessions.replay(&session, policy, client, output);
                if policy != HistoryPolicy::None {
                    self.sessions
                        .send_pending(&mut self.exchange, client, &session, output);
                }
            }
            Err(refused) => {
                self.exchange.counters.denied += u64::from(refused == SessionError::Denied);
                let session = envelope.session.as_deref().unwrap_or_default();
                output.to_client(client, &[&not_attached(refused, id, session)]);
            }
        }
        true
    }
}

impl Sessions {
    /// Attaches a client to a session. Of several processes' sessions with the same id, it means one that the client may observe,
    /// first that of the client's process.
    fn attach(
        &mut self,
        exchange: &mut Exchange,
        client: ClientId,
        envelope: &Envelope<'_>,
        output: &impl RouterOutput,
    ) -> Result<Observation, SessionError> {
        let key = self.find_observed(exchange, client, envelope, output)?;
        let bound = self.get(&key).ok_or(SessionError::Denied)?;
        let policy = bound.history.policy(envelope);
        if let Some(state) = exchange.clients.get_mut(client) {
            if let Some(own_id) = own_id(envelope) {
                state.own_id = Some(own_id.into());
            }
            let name = name_of(envelope);
            if &*name != "{}" {
                state.name = name;
            }
        }
        let result = self.attached(exchange, client, &key, policy);
        let result = result.ok_or(SessionError::Denied)?;
        if let (Some(bound), Some(state)) = (self.get_mut(&key), exchange.clients.get_mut(client))
            && !bound.observers.contains(&client)
        {
            bound.observers.push(client);
            state.observed.push(key.clone());
        }
        Ok(Observation {
            session: key,
            result,
            policy,
        })
    }

    /// Finds the session that a client asks to observe. Fails if the client may not observe it, or if a limit is reached.
    fn find_observed(
        &self,
        exchange: &Exchange,
        client: ClientId,
        envelope: &Envelope<'_>,
        output: &impl RouterOutput,
    ) -> Result<SessionKey, SessionError> {
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
            if state.observed.len() >= exchange.settings.sessions {
                return Err(SessionError::Full);
            }
        }
        Ok(key.clone())
    }

    /// The result of `session/attach` for an observer with this history policy.
    fn attached(
        &self,
        exchange: &Exchange,
        client: ClientId,
        key: &SessionKey,
        policy: HistoryPolicy,
    ) -> Option<String> {
        let bound = self.get(key)?;
        let cut = match policy {
            HistoryPolicy::Full => history_cut(bound),
            _ => "",
        };
        let describe = |client: ClientId, role: &str| {
            let state = exchange.clients.get(client)?;
            Some(state.describe(client, Some(role)))
        };
        let controller = bound.controller();
        let controller = controller.and_then(|client| describe(client, "controller"));
        let observers = bound.observers.iter().filter(|other| **other != client);
        let observers = observers.filter_map(|other| describe(*other, "observer"));
        let connected: Vec<_> = controller.into_iter().chain(observers).collect();
        let own = exchange.clients.get(client)?.shown_id(client);
        let history = match policy {
            HistoryPolicy::None => String::new(),
            _ => format!(
                r#""history":[{}],"#,
                exchange.pending_history(key).join(",")
            ),
        };
        Some(format!(
            r#"{{"sessionId":{},"role":"observer","clientId":{own},"historyPolicy":"{}",{history}"connectedClients":[{}]{cut}}}"#,
            quote(key),
            policy.as_str(),
            connected.join(",")
        ))
    }

    fn detach(
        &mut self,
        exchange: &mut Exchange,
        client: ClientId,
        envelope: &Envelope<'_>,
    ) -> Result<Observation, SessionError> {
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
        Ok(Observation {
            session: key,
            result,
            policy: HistoryPolicy::None,
        })
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

impl Sessions {
    /// Shows a client's prompt to the observers of a session, and keeps it for those who attach later. In version 2, the agent's
    /// updates do both.
    pub(super) fn show_prompt(
        &mut self,
        exchange: &Exchange,
        client: ClientId,
        key: &SessionKey,
        prompt: &Envelope<'_>,
        output: &mut impl RouterOutput,
    ) {
        let Some(blocks) = &prompt.prompt else {
            return;
        };
        let blocks = &prompt.text[blocks.clone()];
        if let Some(session) = self.get(key).filter(|session| session.is_observed()) {
            let is_viewer = |observer: &ClientId| exchange.clients.is_viewer(*observer);
            let (viewers, attached): (Vec<_>, Vec<_>) =
                session.others().into_iter().partition(is_viewer);
            if !viewers.is_empty() {
                for update in prompt_updates(key, blocks) {
                    output.to_clients(&viewers, &update);
                }
            }
            if !attached.is_empty() {
                let sender = exchange.clients.get(client);
                let by = sender.map_or("{}".to_owned(), |state| state.describe(client, None));
                output.to_clients(&attached, &prompt_received(key, prompt, blocks, &by));
            }
        }
        self.remember(key, Entry::Prompt, blocks);
    }

    /// Tells the observers of a session that a turn has ended, as [`Sessions::show_prompt`] does.
    pub(super) fn show_turn_complete(
        &mut self,
        key: &SessionKey,
        response: &Envelope<'_>,
        output: &mut impl RouterOutput,
    ) {
        if let Some(session) = self.get(key).filter(|session| session.is_observed()) {
            let last = session.history.last_message();
            let update = turn_complete(key, response, last.as_deref());
            session.tell_observers(&update, output);
        }
        self.remember(key, Entry::TurnComplete, response.text);
    }
}

impl Session {
    /// Whether a client observes the session.
    pub(super) fn is_observed(&self) -> bool {
        !self.observers.is_empty()
    }

    /// The observers of the session, without the client that controls it.
    fn others(&self) -> Vec<ClientId> {
        let controller = self.controller();
        let observers = self.observers.iter().copied();
        observers
            .filter(|observer| Some(*observer) != controller)
            .collect()
    }

    /// Sends a message to the observers of the session.
    fn tell_observers(&self, text: &str, output: &mut impl RouterOutput) {
        let observers = self.others();
        if !observers.is_empty() {
            output.to_clients(&observers, text);
        }
    }

    /// Tells the observers of the session that its client has left.
    pub(super) fn show_disconnected(
        &self,
        name: &str,
        (client, state): (ClientId, &ClientState),
        output: &mut impl RouterOutput,
    ) {
        if self.is_observed() {
            let update = format!(
                r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":{},"update":{{"sessionUpdate":"client_disconnected","type":"client_disconnected","client":{}}}}}}}"#,
                quote(name),
                state.describe(client, Some("controller"))
            );
            self.tell_observers(&update, output);
        }
    }
}

/// The member that says that earlier updates are no longer kept, if they are not.
fn history_cut(session: &Session) -> &'static str {
    if session.history.is_cut() {
        r#","_meta":{"outrigger":{"historyCut":true}}"#
    } else {
        ""
    }
}

/// A client's request to observe a session, or to stop.
struct Observation {
    session: SessionKey,
    /// The result of the request, as JSON.
    result: String,
    /// What follows the response.
    policy: HistoryPolicy,
}

/// The `clientId` in the parameters of `session/attach`, as JSON.
fn own_id<'a>(attach: &'a Envelope<'_>) -> Option<&'a str> {
    let id = member(attach.text, attach.body.as_ref()?, "clientId")?;
    let id = &attach.text[id];
    (id.starts_with('"') && id.len() <= MAX_NAME).then_some(id)
}

/// The response to a `session/attach` or `session/detach` that is refused, with the codes of the proposal, and the session in `data`.
fn not_attached(refused: SessionError, id: &str, session: &str) -> String {
    let (code, message) = match refused {
        SessionError::NotFound | SessionError::Lost => (code::NO_SESSION, "Session not found"),
        SessionError::Denied
        | SessionError::Controlled
        | SessionError::NeedsToken
        | SessionError::Unknown => (
            code::NOT_AUTHORISED,
            "Not authorised to attach to this session",
        ),
        SessionError::Version => (
            code::NO_ATTACH,
            "Session does not support multi-client attach",
        ),
        SessionError::Invalid(_) | SessionError::Observers | SessionError::Full => {
            return refused.response(id);
        }
    };
    let reason = quote(&refused.to_string());
    let data = format!(r#"{{"sessionId":{},"reason":{reason}}}"#, quote(session));
    error_with(Some(id), code, message, Some(&data))
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
        "initialize" | "session/list" | "session/attach" | "session/detach" | OWN_SESSIONS
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

/// A client that watches one session.
pub(crate) struct Viewer<'a> {
    pub(crate) client: ClientId,
    pub(crate) principal: Principal,
    /// The principal that issued the client's link, if it has one.
    pub(crate) owner: Option<&'a Principal>,
    /// Whether its link permits to answer permission requests, if the settings let observers do so.
    pub(crate) may_answer: bool,
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

    /// Adds a client that watches a session and does nothing else, but may answer its permission requests. Without a link, the client
    /// must be the same person as the owner of the session, or have a token of the same principal that permits only watching, or
    /// that permits issuing a link. Returns why the client may not watch the session.
    pub(crate) fn handle_viewer(
        &mut self,
        viewer: Viewer<'_>,
        name: &str,
        output: &mut impl RouterOutput,
    ) -> Result<(), String> {
        let Viewer {
            client,
            principal,
            owner,
            may_answer,
        } = viewer;
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
            Some(state.describe(client, Some("controller")))
        });
        let watching = format!(
            r#"{{"jsonrpc":"2.0","method":"{WATCHING}","params":{{"sessionId":{},"connectedClients":[{}]{}}}}}"#,
            quote(&key),
            controller.unwrap_or_default(),
            history_cut(bound)
        );
        self.exchange
            .clients
            .add_viewer(client, principal, key.clone(), may_answer);
        if let Some(bound) = self.sessions.get_mut(&key) {
            bound.observers.push(client);
        }
        output.to_client(client, &[&watching]);
        self.sessions
            .replay(&key, HistoryPolicy::Full, client, output);
        self.sessions
            .send_pending(&mut self.exchange, client, &key, output);
        Ok(())
    }
}
