//! The router of a shared agent. It decides which client or agent process gets each message.
//!
//! Messages, exits and the time come in as arguments; messages go out through [`RouterOutput`]. The router does no I/O of
//! its own. Tests and the fuzzer check these invariants:
//!
//! * A request is recorded before its bytes leave, and removed with its response or with its client.
//! * Every table entry has one owner and is removed with it.
//! * A message that names a session passes only between the agent and the client that controls the session. The rules
//!   are in `sessions/mod.rs`.
//! * A request is passed on under an upstream id, which is never reused. Its response goes back under the id that the
//!   sender wrote, byte for byte. In protocols other than ACP, the same is true of the request's progress token.
//!
//! `handle_*` methods take input. The other methods are getters, except `drain` and `take_*`.

mod approvals;
mod connections;
mod early_messages;
mod ended_sessions;
mod from_agent;
mod from_client;
mod handshakes;
mod mode;
mod observers;
mod processes;
mod receivers;
mod references;
mod sessions;
mod timeouts;
mod turns;
mod viewers;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::config::{AgentProtocol, Approvals, UnknownSessions};
use super::initialize::Capabilities;
use super::named::Places;
use crate::service::id_map::IdMap;
use crate::service::json::Skimmer;
use crate::service::jsonrpc::{
    Envelope, Forwarded, Pending, RequestKind, SenderIds, is_spelling_of,
};
use crate::service::sharing::Sharing;
use crate::{ClientId, CloseCode, Histogram, Principal, Scope, Time};
use ended_sessions::EndedSessions;
pub(crate) use processes::ProcessChange;
use processes::{Processes, Run};
use sessions::Session;

/// The maximum length of a client's first message in bytes. It is kept as long as the agent runs.
pub(super) const MAX_INITIALIZE: usize = 1 << 20;
/// The maximum number of recorded requests whose clients have disconnected. The agent may still work on them.
const MAX_ORPHANED: usize = 1024;
/// The maximum number of elicitations that are remembered for a client until they are completed.
const MAX_ELICITATIONS: usize = 64;
/// The maximum number of ended sessions that are remembered for a client.
const MAX_FORMER: usize = 64;
/// The maximum length of an elicitation id. Elicitations with longer ids are not remembered.
const MAX_ELICITATION_ID: usize = 256;
/// The maximum length of a permission request that is kept while a client answers it, in bytes.
const MAX_KEPT_REQUEST: usize = 64 << 10;
/// The maximum length of a session id in bytes, unescaped.
const MAX_SESSION_ID: usize = 1024;

/// The limits on what one client may hold, and on the totals of all clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouterLimits {
    /// Requests of one client that the agent has not answered.
    pub(crate) client_requests: usize,
    /// Requests of the agent that one client has not answered.
    pub(crate) agent_requests: usize,
    /// Sessions of one client.
    pub(crate) sessions: usize,
    /// Sessions of all clients, including detached ones and those that are being created.
    pub(crate) all_sessions: usize,
    /// Records of ended sessions.
    pub(crate) ended_sessions: usize,
    /// The protocol that the agent speaks. `mode.rs` says what depends on it.
    pub(crate) protocol: AgentProtocol,
    /// How long a session stays in the table after its client has disconnected.
    pub(crate) grace: Option<Duration>,
    /// Whether clients may load sessions that the router has never seen.
    pub(crate) unknown_sessions: UnknownSessions,
    /// Who may answer permission requests.
    pub(crate) approvals: Approvals,
    /// Agent processes.
    pub(crate) processes: usize,
    /// How long the agent may take to answer `initialize`.
    pub(crate) initialize_timeout: Option<Duration>,
    /// How long the agent may take to answer a client's request, except `session/prompt` and `initialize`.
    pub(crate) request_timeout: Option<Duration>,
    /// How long a client may take to answer the agent's request.
    pub(crate) answer_timeout: Option<Duration>,
}

/// Receives the messages that the router sends.
pub(crate) trait RouterOutput {
    /// Sends `initialize` to an agent process, before any other line.
    fn initialize_agent(&mut self, process: usize, parts: &[&str]);
    /// Sends a line to an agent process, in parts.
    fn to_agent(&mut self, process: usize, parts: &[&str]);
    /// Sends a message to a client, in parts.
    fn to_client(&mut self, client: ClientId, parts: &[&str]);
    /// Sends one message to several clients, which share it.
    fn to_clients(&mut self, clients: &[ClientId], text: &str) {
        for client in clients {
            self.to_client(*client, &[text]);
        }
    }
    /// Whether a client's message of this length must be refused, unless it is a prompt.
    fn is_long_json(&self, length: usize) -> bool {
        let _ = length;
        false
    }
    /// Counts a message that is refused because of its length.
    fn count_long_json(&mut self) {}
    /// Closes a client.
    fn close(&mut self, client: ClientId, code: CloseCode, reason: &str);
    /// Returns a new secret that cannot be guessed.
    fn secret(&mut self) -> String;
    /// Whether a client's connection was cut and can be resumed, or the client has not answered the last PING. Its
    /// sessions can then be taken over.
    fn is_away(&self, client: ClientId) -> bool;
    /// What a client's token permits.
    fn scope(&self, client: ClientId) -> Scope;
    /// Whether a client's token permits only observing.
    fn has_watch_scope(&self, client: ClientId) -> bool {
        self.scope(client) < Scope::Use
    }
    /// Whether a client's connection can be resumed after a cut.
    fn is_resumable(&self, client: ClientId) -> bool;
}

/// The router's state for one client.
#[derive(Debug)]
struct ClientState {
    principal: Principal,
    /// Whether the client has sent `initialize`. Always true for protocols other than ACP.
    initialized: bool,
    /// Whether the client is a viewer: it does nothing but observe one session. Its messages are ignored.
    is_viewer: bool,
    /// The agent process of its kind. `None` before `initialize`, and after it was rejected.
    process: Option<usize>,
    capabilities: Capabilities,
    /// Upstream ids of the client's requests to the agent.
    client_requests: Vec<u64>,
    /// Upstream ids of the agent's requests to the client.
    agent_requests: Vec<u64>,
    /// The sessions that the client controls or is loading.
    sessions: Vec<Arc<str>>,
    /// The latest sessions of the client that have ended. It may still learn of them.
    former: VecDeque<Arc<str>>,
    /// The sessions that the client observes.
    observed: Vec<Arc<str>>,
    /// The client's name and version, as a JSON object.
    name: Box<str>,
    /// The latest elicitations that were sent to this client, with the processes that sent them. Only it is notified of their completion.
    elicitations: VecDeque<(usize, Box<str>)>,
}

/// A client's request that the agent has not answered. It has no caller's ids if it is the turn of a session that the client has
/// taken over: the client gets a notification instead of the response.
type ClientRequest = Forwarded<ClientCall>;

/// The router's part of a client's request.
#[derive(Debug)]
struct ClientCall {
    client: ClientId,
    class: RequestClass,
    /// Where its response has session ids.
    places: Places,
    /// The session that the request names.
    session: Option<Arc<str>>,
    since: Time,
}

impl RequestKind for ClientCall {
    fn is_subscription(&self) -> bool {
        self.class == RequestClass::Listen
    }
}

/// The effect of a request on sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestClass {
    /// Creates a session: `session/new`, `session/fork`.
    Create,
    /// Gives the client control of the named session: `session/load`, `session/resume`.
    Claim,
    /// Ends the named session.
    End,
    List,
    Prompt,
    /// Stays open for notifications: `subscriptions/listen` of the Model Context Protocol.
    Listen,
    Other,
}

/// A request that has timed out, or whose client has disconnected, and whose response will open a session.
#[derive(Debug)]
struct AbandonedRequest {
    client: ClientId,
    principal: Principal,
    /// The session that it loads, or `None` if it creates one.
    session: Option<Arc<str>>,
}

/// A request of the agent that a client has not answered.
#[derive(Debug)]
struct AgentRequest {
    client: ClientId,
    /// The agent process that sent it.
    process: usize,
    /// The agent's own ids. Only the client that gets the request may use its progress token.
    ids: SenderIds,
    /// Where its response has session ids.
    places: Places,
    /// The session that the request names.
    session: Option<Arc<str>>,
    /// Whether it is `session/request_permission`.
    permission: bool,
    /// The message as the client got it, for a permission request that is not too long. It is sent again if another
    /// client takes the session over.
    text: Option<Box<str>>,
    /// The observers that may answer it too.
    approvers: Vec<ClientId>,
    since: Time,
}

/// The router's counters since its start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RouterCounters {
    /// Requests of clients that concern sessions, other than prompts.
    pub(crate) session_requests: u64,
    pub(crate) prompts: u64,
    pub(crate) other_requests: u64,
    pub(crate) initializes: u64,
    pub(crate) notifications: u64,
    /// Messages that were rejected because of the session that they name.
    pub(crate) denied: u64,
    /// Messages that had no receiver.
    pub(crate) dropped: u64,
    /// Messages of the agent that were dropped because they name sessions of several clients, or that of another client.
    pub(crate) crossing: u64,
    /// Requests that were not answered in time.
    pub(crate) timed_out: u64,
    /// The time from a request to its response.
    pub(crate) answers: Histogram,
}

impl RouterCounters {
    /// Counts and logs a message of the agent that names sessions of several clients.
    fn drop_crossing(&mut self, method: &str) {
        self.crossing += 1;
        let start = &method[..method.floor_char_boundary(100)];
        log::warn!("dropped a message of the agent: {start:?} names sessions of several clients");
    }

    /// Counts and logs a response of the agent to no request.
    fn drop_response(&mut self, id: &str) {
        self.dropped += 1;
        let start = &id[..id.floor_char_boundary(100)];
        log::debug!("dropped a response of the agent: no request has the id {start}");
    }

    /// Counts and logs a notification of the agent about a request that is not pending.
    fn drop_notification(&mut self, method: &str) {
        self.dropped += 1;
        let start = &method[..method.floor_char_boundary(100)];
        log::debug!("dropped a notification of the agent: {start:?} is about no pending request");
    }

    /// Counts a request of a client that is passed on.
    fn count_request(&mut self, class: RequestClass) {
        *match class {
            RequestClass::Create | RequestClass::Claim | RequestClass::End | RequestClass::List => {
                &mut self.session_requests
            }
            RequestClass::Prompt => &mut self.prompts,
            RequestClass::Listen | RequestClass::Other => &mut self.other_requests,
        } += 1;
    }

    /// Counts and logs a response or a notification of a client that has no receiver.
    fn drop_client_message(&mut self, client: ClientId, why: &str) {
        self.dropped += 1;
        log::debug!("dropped a response or a notification of {client}: {why}");
    }
}

/// The router of a shared agent.
#[derive(Debug)]
pub(crate) struct Router {
    limits: RouterLimits,
    /// The methods in whose messages session ids mean nothing.
    free_methods: Vec<String>,
    clients: IdMap<ClientId, ClientState>,
    sessions: HashMap<Arc<str>, Session>,
    client_requests: Pending<ClientRequest>,
    agent_requests: Pending<AgentRequest>,
    processes: Processes,
    /// Messages for clients that could not be sent at once.
    notices: Vec<(ClientId, String)>,
    ended: EndedSessions,
    /// The principal of the first client.
    first_principal: Option<Principal>,
    /// Whether clients of several principals may connect. Clients without one are several.
    has_several_principals: bool,
    /// Who shares the agent processes.
    sharing: Sharing,
    /// When [`Router::handle_timeout`] has to be called.
    wakeup: Option<Time>,
    /// Whether `wakeup` has changed since [`Router::take_wakeup`] was last called.
    has_new_wakeup: bool,
    /// Whether the server is stopping and new requests are rejected.
    is_draining: bool,
    /// The last upstream id.
    last_id: u64,
    counters: RouterCounters,
}

impl Router {
    pub(crate) fn new(limits: RouterLimits) -> Self {
        Self {
            limits,
            free_methods: Vec::new(),
            clients: IdMap::default(),
            sessions: HashMap::new(),
            client_requests: Pending::new(limits.request_timeout),
            agent_requests: Pending::new(limits.answer_timeout),
            processes: Processes::default(),
            notices: Vec::new(),
            ended: EndedSessions::new(limits.ended_sessions),
            first_principal: None,
            has_several_principals: false,
            sharing: Sharing::default(),
            wakeup: None,
            has_new_wakeup: false,
            is_draining: false,
            last_id: 0,
            counters: RouterCounters::default(),
        }
    }

    /// Lets messages of these methods name any session.
    pub(crate) fn with_free_methods(self, free_methods: Vec<String>) -> Self {
        Self {
            free_methods,
            ..self
        }
    }

    #[cfg(test)]
    pub(crate) fn limits(&self) -> RouterLimits {
        self.limits
    }

    /// The bytes that are kept for pending requests.
    #[cfg(test)]
    pub(crate) fn kept_for_requests(&self) -> usize {
        let length = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        let client_requests = self.client_requests.values().map(|request| {
            let session = request
                .call
                .session
                .as_ref()
                .map_or(0, |session| session.len());
            let ids = request.sender_ids.as_ref();
            session + ids.map_or(0, |ids| ids.id.len() + length(&ids.progress_token))
        });
        let agent_requests = self.agent_requests.values();
        let agent_requests = agent_requests
            .map(|request| request.ids.id.len() + length(&request.ids.progress_token));
        client_requests.chain(agent_requests).sum()
    }

    /// The number of client requests that the agent has not answered.
    pub(crate) fn client_request_count(&self) -> usize {
        self.client_requests.len()
    }

    /// The number of agent requests that clients have not answered.
    pub(crate) fn agent_request_count(&self) -> usize {
        self.agent_requests.len()
    }

    /// The number of sessions that a client controls or can still resume.
    pub(crate) fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// The number of observers of all sessions.
    pub(crate) fn observer_count(&self) -> usize {
        let clients = self.clients.values();
        clients.map(|state| state.observed.len()).sum()
    }

    /// The number of records of ended sessions.
    pub(crate) fn ended_count(&self) -> usize {
        self.ended.len()
    }

    /// The client that controls a session.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn owner_of(&self, session: &str) -> Option<ClientId> {
        self.controller_of(session)
    }

    pub(crate) fn counters(&self) -> RouterCounters {
        self.counters
    }

    /// Visits every client in every table. A client that is in several tables is visited several times.
    pub(crate) fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        let requests = self.client_requests.values();
        let requests = requests.map(|request| request.call.client);
        let agent_requests = self.agent_requests.values().map(|request| request.client);
        let observers = self.sessions.values();
        let observers = observers.flat_map(|session| session.observers.iter().copied());
        let approvers = self.agent_requests.values();
        let approvers = approvers.flat_map(|request| request.approvers.iter().copied());
        let processes = self.processes.iter();
        let wanted = processes.flat_map(|process| process.initialize.wanted());
        self.clients
            .keys()
            .copied()
            .chain(requests)
            .chain(agent_requests)
            .chain(wanted)
            .chain(self.sessions.values().flat_map(Session::clients))
            .chain(observers)
            .chain(approvers)
            .for_each(visit);
    }

    /// Whether a client waits for a response or for the end of a turn, or owes a response.
    pub(crate) fn is_busy(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|state| {
            let process = state
                .process
                .and_then(|process| self.processes.get(process));
            let mut requests = state.client_requests.iter();
            requests.any(|id| self.is_awaited(*id))
                || !state.agent_requests.is_empty()
                || process.is_some_and(|process| process.initialize.is_wanted_by(client))
        }) || self.has_running_turn(client)
    }

    /// Whether a client controls or observes a session.
    pub(crate) fn has_session(&self, client: ClientId) -> bool {
        let state = self.clients.get(&client);
        state.is_some_and(|state| !state.sessions.is_empty() || !state.observed.is_empty())
    }

    /// Rejects new requests from now on.
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Returns a new upstream id.
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Whether a client waits for the response to its request. It does not wait for that of a subscription.
    fn is_awaited(&self, upstream_id: u64) -> bool {
        let request = self.client_requests.get(upstream_id);
        request.is_some_and(|request| !request.call.is_subscription())
    }

    /// Removes a request from the table of all requests, but not from its client's list.
    fn remove_client_request(&mut self, upstream_id: u64) -> Option<ClientRequest> {
        let request = self.client_requests.remove(upstream_id)?;
        if request.call.class == RequestClass::Create
            && let Some(process) = self.processes.get_mut(request.process)
        {
            process.creating -= 1;
        }
        Some(request)
    }

    /// Removes a request of the agent from all tables.
    fn forget_agent_request(&mut self, upstream_id: u64) -> Option<AgentRequest> {
        let request = self.agent_requests.remove(upstream_id)?;
        if let Some(state) = self.clients.get_mut(&request.client) {
            remove(&mut state.agent_requests, &upstream_id);
        }
        Some(request)
    }
}

/// Whether a method cancels a request, in the Agent Client Protocol, the Language Server Protocol or the Model Context
/// Protocol.
fn is_cancellation(method: &str) -> bool {
    matches!(
        method,
        "$/cancel_request" | "$/cancelRequest" | "notifications/cancelled"
    )
}

/// Finds the request id in a cancellation.
fn cancelled_id(envelope: &Envelope<'_>) -> Result<Range<usize>, &'static str> {
    let missing = "a cancellation needs exactly one of \"requestId\" and \"id\"";
    let body = envelope.body.as_ref().ok_or(missing)?;
    let (mut found, mut count, mut is_spelled) = (None, 0, false);
    let scanned = Skimmer::at(envelope.text, body).object(|key, value| {
        if is_spelling_of(&key, "requestId") || is_spelling_of(&key, "id") {
            is_spelled = matches!(&*key, "requestId" | "id");
            found = Some(value);
            count += 1;
        }
    });
    debug_assert!(scanned.is_ok(), "the text has been validated");
    found.filter(|_| count == 1 && is_spelled).ok_or(missing)
}

/// Removes the first occurrence of an item. Does not keep the order.
fn remove<T: PartialEq>(list: &mut Vec<T>, item: &T) {
    if let Some(at) = list.iter().position(|other| other == item) {
        list.swap_remove(at);
    }
}
