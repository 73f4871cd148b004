//! The router of a shared agent. It decides which client or agent process gets each message.
//!
//! Messages, exits and the time come in as arguments; messages go out through [`RouterOutput`]. The router does no I/O of
//! its own. Tests and the fuzzer check these invariants:
//!
//! * A request is recorded before its bytes leave, and removed with its response, its time limit or its client.
//! * Every table entry has one owner and is removed with it.
//! * A message about a session passes only between the session's process and the client that controls it. Observers get copies.
//!   The rules are in `sessions/mod.rs`.
//! * A request is passed on under an upstream id, which is never reused. Its response goes back under the id that the
//!   sender wrote, byte for byte. In protocols other than ACP, the same is true of the request's progress token.
//!
//! `handle_*` methods take input. `drain`, `give_up` and `take_*` also change the router. The other methods are getters.

mod approvals;
mod batches;
mod clients;
mod connections;
mod ended_sessions;
mod exchange;
mod from_agent;
mod from_client;
mod handshakes;
mod history;
mod listing;
mod mode;
mod observers;
mod processes;
mod requests;
mod served;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use super::durable::Announcement;
use super::initialize::{Capabilities, ClientToolSet};
use super::{AgentProtocol, Approvals, UnknownSessions};
use crate::record::{record, state};
use crate::{ClientId, CloseCode, Histogram, Principal, Scope};
pub(crate) use batches::{BatchSender, Batches, Collected};
use exchange::Exchange;
pub(crate) use observers::Viewer;
pub(crate) use processes::ProcessChange;
use processes::Run;
use requests::{AgentRequest, ClientCall, ClientRequest, RequestClass, is_cancellation};
pub(crate) use served::{ServedError, ServedRequest};
pub(crate) use sessions::SessionKey;
use sessions::Sessions;

/// The maximum length of a client's first message in bytes. It is kept as long as the agent runs.
pub(super) const MAX_INITIALIZE: usize = 1 << 20;
/// The maximum number of recorded requests whose clients have disconnected. The agent may still work on them.
const MAX_ORPHANED: usize = 1024;
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
    /// The bytes of the last updates of each session that are kept for those who attach to it.
    pub(crate) history: usize,
    /// Agent processes.
    pub(crate) processes: usize,
    /// What the server can do for the agent in the place of clients that ask for it.
    pub(crate) tools: ClientToolSet,
    /// Whether one process serves clients of every kind.
    pub(crate) is_one_process: bool,
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
    /// Passes on a request of the agent that the server answers in the place of a client. [`Router::handle_served`] takes the
    /// answer.
    fn serve(&mut self, request: ServedRequest<'_>) {
        let _ = request;
    }
    /// Whether a client's message of this length must be refused, unless it is a prompt.
    fn is_long_json(&self, length: usize) -> bool {
        let _ = length;
        false
    }
    /// Counts `more` messages of a client's batch against its rate limit. If it exceeds the limit, it is closed, and the result is false.
    fn count_messages(&mut self, client: ClientId, more: usize) -> bool {
        let _ = (client, more);
        true
    }
    /// Counts a message that is refused because of its length.
    fn count_long_json(&mut self) {}
    /// Closes a client.
    fn close(&mut self, client: ClientId, code: CloseCode, reason: &str);
    /// Charges the work of reading this many bytes.
    fn charge(&mut self, bytes: usize) {
        let _ = bytes;
    }
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
    /// The batches whose requests were not all answered. [`RouterOutput::to_client`] and [`RouterOutput::to_agent`] let them
    /// [collect](Batches::collect) the responses.
    fn batches(&mut self) -> &mut Batches;
    /// What the response to `initialize` announces to a client that can resume its connection with cursors.
    fn announcement(&self, client: ClientId) -> Option<Announcement> {
        let _ = client;
        None
    }
    /// What the response to `initialize` says about the server.
    fn server_facts(&self) -> ServerFacts {
        ServerFacts::default()
    }
}

/// What clients learn about the server in the response to `initialize`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerFacts {
    /// The maximum length of a client's message in bytes.
    pub(crate) max_message: Option<usize>,
    /// The directory in which agents start, which is where a new session probably works.
    pub(crate) directory: Option<String>,
    /// The directory below which the server reads and writes files for clients.
    pub(crate) files_below: Option<String>,
}

/// A request that has timed out, or whose client has disconnected, and whose response will open a session.
#[derive(Debug)]
struct AbandonedRequest {
    client: ClientId,
    principal: Principal,
    /// The session that it loads, or `None` if it creates one.
    session: Option<Arc<str>>,
}

record!(AbandonedRequest {
    client,
    principal,
    session,
});

/// What the router holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouterFigures {
    /// Client requests that the agent has not answered.
    pub(crate) client_requests: usize,
    /// Agent requests that clients have not answered.
    pub(crate) agent_requests: usize,
    /// Sessions that a client controls or can still resume.
    pub(crate) sessions: usize,
    /// Observers of all sessions.
    pub(crate) observers: usize,
    /// The bytes of updates that are kept for those who attach to a session.
    pub(crate) history: usize,
    /// Records of ended sessions.
    pub(crate) ended_sessions: usize,
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

record!(RouterCounters {
    session_requests,
    prompts,
    other_requests,
    initializes,
    notifications,
    denied,
    dropped,
    crossing,
    timed_out,
    answers,
});

impl RouterCounters {
    /// Counts and logs a message from the agent that refers to sessions of several clients.
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
    exchange: Exchange,
    sessions: Sessions,
    /// Whether the server is stopping and new requests are rejected.
    is_draining: bool,
}

// A server that stops is not saved.
state!(Router {
    into exchange,
    into sessions,
    keep is_draining,
});

impl Router {
    pub(crate) fn new(limits: RouterLimits) -> Self {
        Self {
            exchange: Exchange::new(limits),
            sessions: Sessions::new(&limits),
            is_draining: false,
        }
    }

    /// Lets messages of these methods name any session.
    pub(crate) fn with_free_methods(mut self, free_methods: Vec<String>) -> Self {
        self.exchange.free_methods = free_methods;
        self
    }

    /// Who may answer permission requests.
    pub(crate) fn approvals(&self) -> Approvals {
        self.exchange.limits.approvals
    }

    /// What the router holds.
    pub(crate) fn figures(&self) -> RouterFigures {
        RouterFigures {
            client_requests: self.exchange.requests.of_clients.len(),
            agent_requests: self.exchange.requests.of_agent.len(),
            sessions: self.sessions.len(),
            observers: self.exchange.clients.observer_count(),
            history: self.sessions.history.bytes,
            ended_sessions: self.sessions.ended.len(),
        }
    }

    /// Takes messages for clients that could not be sent at once.
    pub(crate) fn take_notices(&mut self) -> Vec<(ClientId, String)> {
        self.exchange.clients.take_notices()
    }

    /// Whether a client is a viewer whose session has ended.
    pub(crate) fn has_nothing_to_watch(&self, client: ClientId) -> bool {
        self.exchange.clients.has_nothing_to_watch(client)
    }

    pub(crate) fn counters(&self) -> RouterCounters {
        self.exchange.counters
    }

    /// Visits every client in every table. A client that is in several tables is visited several times.
    pub(crate) fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.exchange
            .clients
            .iter()
            .for_each(|(client, _)| visit(client));
        self.exchange.requests.visit_clients(visit);
        for process in self.exchange.processes.iter() {
            process.initialize.wanted().for_each(&mut *visit);
        }
        for session in self.sessions.values() {
            session.clients().for_each(&mut *visit);
            session.observers.iter().copied().for_each(&mut *visit);
        }
    }

    /// Whether a client waits for a response or for the end of a turn, or owes a response.
    pub(crate) fn is_busy(&self, client: ClientId) -> bool {
        let Some(state) = self.exchange.clients.get(client) else {
            return false;
        };
        let process = state
            .process
            .and_then(|process| self.exchange.processes.get(process));
        self.exchange.requests.is_busy(state)
            || process.is_some_and(|process| process.initialize.is_wanted_by(client))
            || self.sessions.has_running_turn(client, &state.sessions)
    }

    /// Whether a client controls or observes a session.
    pub(crate) fn has_session(&self, client: ClientId) -> bool {
        let state = self.exchange.clients.get(client);
        state.is_some_and(|state| !state.sessions.is_empty() || !state.observed.is_empty())
    }

    /// Rejects new requests from now on.
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
    }
}

/// What tests look at.
#[cfg(any(test, fuzzing))]
impl Router {
    #[cfg(test)]
    pub(crate) fn limits(&self) -> RouterLimits {
        self.exchange.limits
    }

    /// The bytes that are kept for pending requests.
    #[cfg(test)]
    pub(crate) fn kept_for_requests(&self) -> usize {
        self.exchange.requests.kept()
    }

    /// The client that controls the session that a process knows by this id.
    pub(crate) fn owner_in(&self, process: usize, session: &str) -> Option<ClientId> {
        self.sessions.of_process(process, session)?.1.controller()
    }

    /// The client that controls a session.
    #[cfg(test)]
    pub(crate) fn owner_of(&self, session: &str) -> Option<ClientId> {
        self.sessions
            .named(session)
            .find_map(|(_, one)| one.controller())
    }

    /// Whether requests in either direction are pending between clients and a process.
    pub(crate) fn has_requests(&self, process: usize) -> bool {
        self.exchange.requests.has_any_of(process)
    }

    /// Whether a client has attached to the session that a process knows by this id.
    pub(crate) fn is_observer_in(&self, process: usize, client: ClientId, id: &str) -> bool {
        let session = self.sessions.of_process(process, id);
        session.is_some_and(|(_, session)| session.observers.contains(&client))
    }
}

/// Removes the first occurrence of an item. Does not keep the order.
fn remove<T: PartialEq>(list: &mut Vec<T>, item: &T) {
    if let Some(at) = list.iter().position(|other| other == item) {
        list.swap_remove(at);
    }
}
