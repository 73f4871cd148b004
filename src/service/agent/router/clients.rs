//! The clients of the router: what each has announced, and what it holds.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::process_table::Run;
use super::session_key::SessionKey;
use crate::record::record;
use crate::service::agent::initialize::Capabilities;
use crate::service::id_map::IdMap;
use crate::service::json::{quote, unescape};
use crate::service::jsonrpc::{Envelope, MessageKind, member};
use crate::service::sharing::Sharing;
use crate::{ClientId, Principal};

/// The maximum number of elicitations that are remembered for a client until they are completed.
const MAX_ELICITATIONS: usize = 64;
/// The maximum length of an elicitation id. Elicitations with longer ids are not remembered.
const MAX_ELICITATION_ID: usize = 256;
/// The maximum number of ended sessions that are remembered for a client.
const MAX_FORMER: usize = 64;

/// The router's state for one client.
#[derive(Debug)]
pub(super) struct ClientState {
    pub(super) principal: Principal,
    /// Whether the client has sent `initialize`. Always true for protocols other than ACP.
    pub(super) initialized: bool,
    /// Whether the client has sent a text message.
    pub(super) has_spoken: bool,
    /// Whether the router has closed the client. The rest of a batch is not handled.
    pub(super) is_closed: bool,
    /// Whether the client is a viewer: it does nothing but observe one session. Its messages are ignored.
    pub(super) is_viewer: bool,
    /// Whether it is a viewer that may answer permission requests.
    pub(super) may_answer: bool,
    /// The agent process of its kind. `None` before `initialize`, and after it was rejected.
    pub(super) process: Option<usize>,
    pub(super) capabilities: Capabilities,
    /// Upstream ids of the client's requests to the agent.
    pub(super) client_requests: Vec<u64>,
    /// Upstream ids of the agent's requests to the client.
    pub(super) agent_requests: Vec<u64>,
    /// The sessions that the client controls or is loading.
    pub(super) sessions: Vec<SessionKey>,
    /// The latest sessions of the client that have ended. It may still learn of them.
    former: VecDeque<(Run, SessionKey)>,
    /// The sessions that the client observes.
    pub(super) observed: Vec<SessionKey>,
    /// The client's name and version, as a JSON object.
    pub(super) name: Box<str>,
    /// The `clientId` with which it has attached to a session, as JSON.
    pub(super) own_id: Option<Box<str>>,
    /// The latest elicitations that were sent to this client, with the processes that sent them. Only it is notified of their completion.
    elicitations: VecDeque<(usize, Box<str>)>,
}

record!(ClientState {
    principal,
    initialized,
    has_spoken,
    is_closed,
    is_viewer,
    may_answer,
    process,
    capabilities,
    client_requests,
    agent_requests,
    sessions,
    former,
    observed,
    name,
    own_id,
    elicitations,
});

impl ClientState {
    /// The state of a client that has sent nothing.
    fn new(principal: Principal) -> Self {
        Self {
            principal,
            initialized: false,
            has_spoken: false,
            is_closed: false,
            is_viewer: false,
            may_answer: false,
            process: None,
            capabilities: Capabilities::default(),
            client_requests: Vec::new(),
            agent_requests: Vec::new(),
            sessions: Vec::new(),
            former: VecDeque::new(),
            observed: Vec::new(),
            name: "{}".into(),
            own_id: None,
            elicitations: VecDeque::new(),
        }
    }

    /// The id by which other clients know this one, as JSON: its own, or the one that the server gave it.
    pub(super) fn shown_id(&self, client: ClientId) -> String {
        let own = self.own_id.as_deref();
        own.map_or_else(|| quote(&client.to_string()), str::to_owned)
    }

    /// The client, with its role if there is one, as JSON.
    pub(super) fn describe(&self, client: ClientId, role: Option<&str>) -> String {
        let id = self.shown_id(client);
        let name = &self.name[1..self.name.len() - 1];
        let comma = if name.is_empty() { "" } else { "," };
        let role = role.map_or(String::new(), |role| format!(r#","role":"{role}""#));
        // The name of a token that several persons may share says nothing.
        let is_known = self.principal.is_person() || matches!(self.principal, Principal::Link(_));
        let principal = match is_known {
            true => format!(r#","principal":{}"#, quote(&self.principal.to_string())),
            false => String::new(),
        };
        format!(r#"{{"clientId":{id}{comma}{name}{principal}{role}}}"#)
    }

    /// Notes that the client controls or loads a session.
    pub(super) fn add_session(&mut self, session: &SessionKey) {
        if !self.sessions.contains(session) {
            self.sessions.push(session.clone());
        }
    }

    /// Notes that a session of the client has ended.
    pub(super) fn end_session(&mut self, run: Run, session: &SessionKey) {
        remove(&mut self.sessions, session);
        if self.former.len() == MAX_FORMER {
            self.former.pop_front();
        }
        self.former.push_back((run, session.clone()));
    }

    /// Whether the client has had a session of a run that has ended.
    pub(super) fn has_had(&self, run: Run, session: &str) -> bool {
        self.former
            .iter()
            .any(|(of, one)| *of == run && **one == *session)
    }

    /// Remembers the elicitation that a request of a process starts, if it is one.
    pub(super) fn note_elicitation(&mut self, process: usize, request: &Envelope<'_>) {
        let Some(elicitation) = elicitation_of(request) else {
            return;
        };
        if self.elicitations.len() == MAX_ELICITATIONS {
            self.elicitations.pop_front();
        }
        self.elicitations.push_back((process, elicitation.into()));
    }
}

/// The clients, by their ids.
#[derive(Debug, Default)]
pub(super) struct Clients {
    states: IdMap<ClientId, ClientState>,
    /// The principal of the first client.
    first_principal: Option<Principal>,
    /// Whether clients of several principals may connect. Clients without one are several.
    has_several_principals: bool,
    /// Who shares the agent processes.
    sharing: Sharing,
    /// Messages for clients that could not be sent at once.
    notices: Vec<(ClientId, String)>,
}

record!(Clients {
    states,
    first_principal,
    has_several_principals,
    sharing,
    notices,
});

impl Clients {
    pub(super) fn get(&self, client: ClientId) -> Option<&ClientState> {
        self.states.get(&client)
    }

    pub(super) fn get_mut(&mut self, client: ClientId) -> Option<&mut ClientState> {
        self.states.get_mut(&client)
    }

    pub(super) fn contains(&self, client: ClientId) -> bool {
        self.states.contains_key(&client)
    }

    /// All clients, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ClientId, &ClientState)> {
        self.states.iter().map(|(client, state)| (*client, state))
    }

    /// Adds a client. `is_sole` says that no client of another principal can connect.
    pub(super) fn add(
        &mut self,
        client: ClientId,
        principal: Principal,
        is_sole: bool,
    ) -> &mut ClientState {
        let first = self
            .first_principal
            .get_or_insert_with(|| principal.clone());
        self.has_several_principals |= !is_sole || !first.is_same(&principal);
        self.sharing.note(&principal, is_sole);
        let state = self.states.entry(client);
        state.insert_entry(ClientState::new(principal)).into_mut()
    }

    /// Adds a client that does nothing but observe a session.
    pub(super) fn add_viewer(
        &mut self,
        client: ClientId,
        principal: Principal,
        session: SessionKey,
        may_answer: bool,
    ) {
        let state = ClientState {
            initialized: true,
            is_viewer: true,
            may_answer,
            observed: vec![session],
            ..ClientState::new(principal)
        };
        self.states.insert(client, state);
    }

    pub(super) fn remove(&mut self, client: ClientId) -> Option<ClientState> {
        self.states.remove(&client)
    }

    /// Whether clients of several principals may connect.
    pub(super) fn has_several_principals(&self) -> bool {
        self.has_several_principals
    }

    /// A principal's share of a limit.
    pub(super) fn share_of(&self, limit: usize) -> usize {
        self.sharing.share_of(limit)
    }

    /// The process of a client, if its `initialize` was not rejected.
    pub(super) fn process_of(&self, client: ClientId) -> Option<usize> {
        self.get(client)?.process
    }

    /// The clients of a process.
    pub(super) fn of_process(&self, process: usize) -> impl Iterator<Item = ClientId> {
        let its = self
            .iter()
            .filter(move |(_, state)| state.process == Some(process));
        its.map(|(client, _)| client)
    }

    /// The number of clients of a process.
    pub(super) fn count_of_process(&self, process: usize) -> usize {
        self.of_process(process).count()
    }

    /// Takes a process from its clients. Returns the clients.
    pub(super) fn leave_process(&mut self, process: usize) -> Vec<ClientId> {
        let states = self.states.iter_mut();
        let states = states.filter(|(_, state)| state.process == Some(process));
        states
            .map(|(client, state)| {
                state.process = None;
                *client
            })
            .collect()
    }

    /// Whether a client is a viewer.
    pub(super) fn is_viewer(&self, client: ClientId) -> bool {
        self.get(client).is_some_and(|state| state.is_viewer)
    }

    /// Whether a client is a viewer that may answer permission requests.
    pub(super) fn is_answering_viewer(&self, client: ClientId) -> bool {
        self.get(client).is_some_and(|state| state.may_answer)
    }

    /// Whether a client is a viewer whose session has ended.
    pub(super) fn has_nothing_to_watch(&self, client: ClientId) -> bool {
        let state = self.get(client);
        state.is_some_and(|state| state.is_viewer && state.observed.is_empty())
    }

    /// The number of observers of all sessions.
    pub(super) fn observer_count(&self) -> usize {
        let states = self.states.values();
        states.map(|state| state.observed.len()).sum()
    }

    /// Returns the client that got the elicitation which this notification completes, and forgets the elicitation.
    pub(super) fn take_elicited(
        &mut self,
        process: usize,
        notification: &Envelope<'_>,
    ) -> Option<ClientId> {
        let elicitation = elicitation_of(notification)?;
        let is_it = |(of, id): &(usize, Box<str>)| *of == process && **id == *elicitation;
        self.states.iter_mut().find_map(|(&client, state)| {
            let at = state.elicitations.iter().position(is_it)?;
            state.elicitations.remove(at).map(|_| client)
        })
    }

    /// Forgets the elicitations of a process that has exited or is stopped.
    pub(super) fn forget_elicitations(&mut self, process: usize) {
        for state in self.states.values_mut() {
            state.elicitations.retain(|(of, _)| *of != process);
        }
    }

    /// Has a message sent to a client later.
    pub(super) fn notice(&mut self, client: ClientId, text: String) {
        self.notices.push((client, text));
    }

    /// Takes the messages that have to be sent.
    pub(super) fn take_notices(&mut self) -> Vec<(ClientId, String)> {
        std::mem::take(&mut self.notices)
    }
}

/// The id of the elicitation that a message from the agent starts or completes.
fn elicitation_of<'a>(envelope: &Envelope<'a>) -> Option<Cow<'a, str>> {
    let (MessageKind::Request { method, .. } | MessageKind::Notification { method }) =
        &envelope.kind
    else {
        return None;
    };
    let body = envelope
        .body
        .as_ref()
        .filter(|_| method.contains("elicitation/"))?;
    let id = &envelope.text[member(envelope.text, body, "elicitationId")?];
    let id = id.starts_with('"').then(|| unescape(id))?;
    (id.len() <= MAX_ELICITATION_ID).then_some(id)
}

/// Removes the first occurrence of an item. Does not keep the order.
pub(super) fn remove<T: PartialEq>(list: &mut Vec<T>, item: &T) {
    if let Some(at) = list.iter().position(|other| other == item) {
        list.swap_remove(at);
    }
}
