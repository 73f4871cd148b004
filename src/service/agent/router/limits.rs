//! The limits of the router.

use std::time::Duration;

use crate::service::agent::initialize::ClientToolSet;
use crate::service::agent::{AgentProtocol, Approvals, UnknownSessions};

/// The maximum length of a client's first message in bytes. It is kept as long as the agent runs.
pub(crate) const MAX_INITIALIZE: usize = 1 << 20;
/// The maximum number of recorded requests whose clients have disconnected. The agent may still work on them.
pub(super) const MAX_ORPHANED: usize = 1024;
/// The maximum length of a permission request that is kept while a client answers it, in bytes.
pub(super) const MAX_KEPT_REQUEST: usize = 64 << 10;
/// The maximum length of a session id in bytes, unescaped.
pub(super) const MAX_SESSION_ID: usize = 1024;

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
