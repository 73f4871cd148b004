//! JSON-RPC agents on standard input and output, such as those of the Agent Client Protocol.
//!
//! [`Agent`] shares one agent process among all clients of a kind. Its router guarantees that each message reaches only the client
//! that it is for. [`PipePerClient`](super::PipePerClient) starts a process for each client instead.

mod figures;
mod initialize;
pub(crate) mod named;
mod processes;
mod receivers;
mod response;
pub(crate) mod router;
mod schema;
mod shared;

#[cfg(test)]
mod tests;

#[cfg(feature = "cli")]
pub(crate) use self::schema::has_session_rules;
pub use self::shared::Agent;
pub use super::child::RestartLimit;

use std::time::Duration;

use super::Endpoint;
use crate::record::record;
use crate::sys::random_uuid;
use crate::{Accept, Rejection, Request};

/// The query parameter with the session that a client only watches.
const WATCH: &str = "watch";
/// Why a binary message is ignored, or its client closed.
const BINARY: &str = "Messages must be text, not binary";
/// While an agent has more unread input than this, new clients are rejected, and responses that Outrigger itself would
/// send to the agent (errors, cancelled permissions) are dropped.
const MAX_UNREAD: usize = 4 << 20;

/// The protocol on an agent's standard input and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AgentProtocol {
    /// The Agent Client Protocol.
    Acp,
    /// Any other JSON-RPC 2.0 protocol, for example the Model Context Protocol.
    JsonRpc,
}

record!(
    enum AgentProtocol {
        Acp,
        JsonRpc,
    }
);

/// Whether clients may load sessions of a shared agent that the server has never seen, such as those in the agent's own
/// history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnknownSessions {
    /// Only while all clients have the same principal and no other principal can connect. Each client of
    /// [`Principal::Nobody`](crate::Principal::Nobody) counts as a different one.
    #[default]
    Auto,
    /// Every client may.
    Allow,
    /// No client may.
    Deny,
}

/// Who may answer the permission requests of a shared agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Approvals {
    /// The client that controls the session.
    #[default]
    Owner,
    /// Also observers of the session, if their token permits more than observing. The first answer counts.
    Any,
}

/// The settings of an [`Agent`].
///
/// ```
/// use std::time::Duration;
/// use outrigger::service::AgentConfig;
/// use outrigger::service::agent::AgentProtocol;
///
/// let mut config = AgentConfig::new("/mcp".parse()?, ["my-mcp-server", "--stdio"]);
/// config.protocol = AgentProtocol::JsonRpc;
/// config.grace = Some(Duration::from_secs(60));
/// # Ok::<(), outrigger::service::ParseEndpointError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AgentConfig {
    /// The path that clients connect to.
    pub endpoint: Endpoint,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The protocol that the program speaks.
    pub protocol: AgentProtocol,
    /// How long a session keeps its place in the table after its client has disconnected. With `None`, it loses the
    /// place at once. A client can still load the session later. By default, this is five minutes.
    pub grace: Option<Duration>,
    /// How often a shared agent may exit before the server stops.
    pub restart_limit: RestartLimit,
    /// The maximum number of processes of a shared agent, which has one for each kind of client. Clients are of one kind
    /// if their protocol version and capabilities are equal.
    /// If there are several principals, one of them can bring half of the kinds.
    pub max_agents: usize,
    /// Whether one process of a shared ACP agent serves clients of every kind. It gets the `initialize` of the first client, with every
    /// capability that lets it send requests. Requests for which a client lacks the capability are answered with an error in its place.
    pub one_process: bool,
    /// How long a shared agent may take to answer `initialize`.
    pub initialize_timeout: Option<Duration>,
    /// Who may answer permission requests.
    pub approvals: Approvals,
    /// The bytes of the last updates of each session of a shared ACP agent that are kept for clients that attach to the session. All
    /// sessions together keep 64 MiB at most, or a sixteenth of [`Config::memory`](crate::Config::memory) if that is less.
    pub history: usize,
    /// Whether clients may load sessions that the server has never seen.
    pub unknown_sessions: UnknownSessions,
    /// Methods of a shared ACP agent whose messages may name any session, in both directions. Methods of the protocol's schema
    /// cannot be among them: they are ignored.
    pub pass_methods: Vec<String>,
    /// How long a shared agent may take to answer a client's request other than `session/prompt`. By default there is no
    /// limit.
    pub request_timeout: Option<Duration>,
    /// How long a client may take to answer a request of a shared agent. By default there is no limit.
    pub answer_timeout: Option<Duration>,
    /// Whether the idle timeout is suspended for clients that have or observe a session.
    /// If false, only a pending request suspends it.
    pub sessions_may_idle: bool,
}

impl AgentConfig {
    /// The default settings of an agent that speaks ACP.
    pub fn new(endpoint: Endpoint, command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoint,
            command: command.into_iter().map(Into::into).collect(),
            protocol: AgentProtocol::Acp,
            grace: Some(Duration::from_secs(300)),
            restart_limit: RestartLimit::default(),
            max_agents: 4,
            one_process: false,
            initialize_timeout: Some(Duration::from_secs(30)),
            approvals: Approvals::Owner,
            history: 256 << 10,
            unknown_sessions: UnknownSessions::Auto,
            pass_methods: Vec::new(),
            request_timeout: None,
            answer_timeout: None,
            sessions_may_idle: true,
        }
    }

    /// Accepts a handshake with a new connection id, and with the subprotocol `mcp` if the client offers it.
    fn accept(&self, request: &Request<'_>) -> Result<Accept, Rejection> {
        let accept = Accept::default().field("Acp-Connection-Id", random_uuid().to_string())?;
        let mcp = self.protocol == AgentProtocol::JsonRpc
            && request
                .list("sec-websocket-protocol")
                .any(|offered| offered == "mcp");
        Ok(if mcp { accept.protocol("mcp") } else { accept })
    }
}
