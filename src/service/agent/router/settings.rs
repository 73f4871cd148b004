//! The settings of the router.

use std::time::Duration;

use crate::service::agent::{AgentConfig, AgentProtocol, Approvals, UnknownSessions};

/// The maximum length of a client's first message in bytes. It is kept as long as the agent runs.
pub(super) const MAX_INITIALIZE: usize = 1 << 20;
/// The maximum number of recorded requests whose clients have disconnected. The agent may still work on them.
pub(super) const MAX_ORPHANED: usize = 1024;
/// The maximum length of a permission request that is kept while a client answers it, in bytes.
pub(super) const MAX_KEPT_REQUEST: usize = 64 << 10;
/// The maximum length of a session id in bytes, unescaped.
pub(super) const MAX_SESSION_ID: usize = 1024;

/// How long a message waits for a session that is being created, if there is no time limit for requests.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(30);

/// The defaults of the limits.
const MAX_CLIENT_REQUESTS: usize = 1024;
const MAX_AGENT_REQUESTS: usize = 256;
const MAX_SESSIONS: usize = 256;
const MAX_ALL_SESSIONS: usize = 16_384;
/// Once this limit is reached, unknown sessions can no longer be loaded, so it is high.
const MAX_ENDED_SESSIONS: usize = 1_000_000;

/// What one client may hold, the totals of all clients, and what depends on the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouterSettings {
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
    /// Whether one process serves clients of every kind.
    pub(crate) is_one_process: bool,
    /// How long the agent may take to answer `initialize`.
    pub(crate) initialize_timeout: Option<Duration>,
    /// How long the agent may take to answer a client's request, except `session/prompt` and `initialize`.
    pub(crate) request_timeout: Option<Duration>,
    /// How long a client may take to answer the agent's request.
    pub(crate) answer_timeout: Option<Duration>,
}

impl RouterSettings {
    pub(crate) fn of(config: &AgentConfig) -> Self {
        Self {
            client_requests: MAX_CLIENT_REQUESTS,
            agent_requests: MAX_AGENT_REQUESTS,
            sessions: MAX_SESSIONS,
            all_sessions: MAX_ALL_SESSIONS,
            ended_sessions: MAX_ENDED_SESSIONS,
            protocol: config.protocol,
            grace: config.grace,
            approvals: config.approvals,
            history: config.history,
            unknown_sessions: config.unknown_sessions,
            processes: config.max_agents.max(1),
            is_one_process: config.one_process,
            initialize_timeout: config.initialize_timeout,
            request_timeout: config.request_timeout,
            answer_timeout: config.answer_timeout,
        }
    }
}
