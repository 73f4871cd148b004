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
//! The way of a message from a client, and of one from the agent:
//!
//! ```text
//! Routes::message -> Agent::message -> Router::handle_client_message -> Requests::record -> RouterOutput::to_agent
//!     -> AgentProcess::send_lines -> the queue of the pipe, which is written when the loop calls Service::ready
//! Agent::ready -> AgentProcess -> Router::handle_agent_message -> response_from_agent -> pass_answer -> RouterOutput::to_client
//!     -> Context::send
//! ```
//!
//! `handle_*` methods take input. `drain`, `give_up` and `take_*` also change the router. The other methods are getters.

mod approvals;
mod batches;
mod clients;
mod connections;
mod counters;
mod creation;
mod early;
mod ended_sessions;
mod ends;
mod exchange;
mod from_agent;
mod from_client;
mod handshakes;
mod history;
mod listing;
mod mode;
mod observers;
mod output;
mod placement;
mod process_table;
mod requests;
mod session_key;
mod sessions;
mod settings;
mod updates;

use exchange::Exchange;
use history::{MAX_ALL, MAX_SHARE};
use sessions::{SessionFigures, Sessions};

use crate::record::state;
use crate::service::agent::Approvals;
use crate::service::jsonrpc::{code, error};
use crate::{ClientId, Principal};

pub(crate) use self::batches::{BatchSender, Batches, Collected};
pub(crate) use self::counters::RouterCounters;
pub(crate) use self::observers::Viewer;
pub(crate) use self::output::{RouterOutput, ServerFacts};
pub(crate) use self::process_table::ProcessChange;
pub(crate) use self::settings::RouterSettings;

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
    pub(crate) fn new(settings: RouterSettings) -> Self {
        Self {
            exchange: Exchange::new(settings),
            sessions: Sessions::new(&settings),
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
        self.exchange.settings.approvals
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

    /// The principal of a client.
    pub(crate) fn principal(&self, client: ClientId) -> Option<&Principal> {
        let state = self.exchange.clients.get(client);
        state.map(|state| &state.principal)
    }

    /// Visits the bytes that are kept for each principal: histories, and requests and messages that wait for a session.
    pub(crate) fn held(&self, visit: &mut dyn FnMut(&Principal, usize)) {
        self.sessions.held(visit);
        for process in self.exchange.processes.iter() {
            for (client, bytes) in process.creation.held() {
                if let Some(principal) = self.principal(client) {
                    visit(principal, bytes);
                }
            }
        }
    }

    /// Forgets histories of a principal, because memory is short. Returns the number of bytes.
    pub(crate) fn free_histories(&mut self, principal: &Principal, wanted: usize) -> usize {
        self.sessions.free_histories(principal, wanted)
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
            || self.exchange.waiting_count(client) > 0
            || process.is_some_and(|process| process.initialize.is_wanted_by(client))
            || self.sessions.has_running_turn(client, &state.sessions)
    }

    /// Whether a client controls or observes a session.
    pub(crate) fn has_session(&self, client: ClientId) -> bool {
        let state = self.exchange.clients.get(client);
        state.is_some_and(|state| !state.sessions.is_empty() || !state.observed.is_empty())
    }

    /// The sessions that a client controls or can still resume: at most `most`, in the order of their ids.
    pub(crate) fn session_figures(&self, most: usize) -> Vec<SessionFigures> {
        self.sessions.figures(&self.exchange.requests, most)
    }

    /// Limits the histories to a part of `memory`, the bytes that may be held for clients. Otherwise, they could keep new clients out.
    pub(crate) fn limit_histories(&mut self, memory: usize) {
        self.sessions.history.all = MAX_ALL.min(memory / MAX_SHARE);
    }

    /// Rejects new requests from now on, and those that the agent has not received.
    pub(crate) fn drain(&mut self, output: &mut impl RouterOutput) {
        self.is_draining = true;
        let failed = |id: &str| error(id, code::STOPPING, "Server shutting down", None);
        self.exchange.refuse_waiting(|_, _| true, failed, output);
    }
}

/// What tests look at.
#[cfg(any(test, fuzzing))]
impl Router {
    #[cfg(test)]
    pub(crate) fn settings(&self) -> RouterSettings {
        self.exchange.settings
    }

    /// The bytes that are kept for pending requests.
    #[cfg(test)]
    pub(crate) fn kept_for_requests(&self) -> usize {
        self.exchange.requests.kept()
    }

    /// Whether a client waits for a session that a process creates.
    pub(crate) fn creates_in(&self, process: usize, client: ClientId) -> bool {
        let mut creators = self.exchange.requests.creators(process);
        creators.any(|creator| creator == client)
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
