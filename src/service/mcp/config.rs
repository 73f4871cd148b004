//! The settings of the service.

use std::time::Duration;

use crate::service::{Endpoint, RestartLimit};

/// The settings of [`Mcp`](super::Mcp).
///
/// ```
/// use std::time::Duration;
/// use outrigger::service::McpConfig;
///
/// let mut config = McpConfig::new("/mcp".parse()?, ["my-mcp-server"]);
/// config.pool = 2;
/// config.session_idle = Some(Duration::from_secs(600));
/// # Ok::<(), outrigger::service::ParseEndpointError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct McpConfig {
    /// The path of the MCP endpoint.
    pub endpoint: Endpoint,
    /// The program, a stdio MCP server, and its arguments.
    pub command: Vec<String>,
    /// The number of processes that all requests of revision 2026-07-28 share, at least 1.
    pub pool: usize,
    /// How often the first process may exit before it has said which revisions it supports. After that, the program serves only
    /// sessions.
    pub restart_limit: RestartLimit,
    /// How long the first process may take to say which revisions it supports, and the process of a session to answer `initialize`. `None` is no limit.
    pub initialize_timeout: Option<Duration>,
    /// How long a request may wait for its answer. `None` is no limit.
    pub request_timeout: Option<Duration>,
    /// How long a session may be unused before it ends. `None` is no limit.
    pub session_idle: Option<Duration>,
    /// The maximum number of sessions.
    pub max_sessions: usize,
    /// The maximum number of sessions of one principal. By default, this is `max_sessions`, and half of it if there are several
    /// principals. Clients without a principal count as one.
    pub max_sessions_each: Option<usize>,
    /// The maximum number of requests that wait for an answer.
    pub max_requests: usize,
    /// The maximum number of requests of one principal that wait for an answer. By default, it follows from `max_requests`.
    pub max_requests_each: Option<usize>,
    /// The maximum number of bytes of events that one session keeps for a client that was cut.
    pub replay: usize,
    /// The maximum number of bytes of events that all sessions keep.
    pub max_replay: usize,
    /// The maximum number of bytes of events that all sessions of one principal keep. By default, it follows from `max_replay`.
    pub max_replay_each: Option<usize>,
}

impl McpConfig {
    /// The default settings for a program.
    pub fn new<C>(endpoint: Endpoint, command: C) -> Self
    where
        C: IntoIterator,
        C::Item: Into<String>,
    {
        Self {
            endpoint,
            command: command.into_iter().map(Into::into).collect(),
            pool: 1,
            restart_limit: RestartLimit::default(),
            initialize_timeout: Some(Duration::from_secs(30)),
            request_timeout: None,
            session_idle: Some(Duration::from_secs(30 * 60)),
            max_sessions: 256,
            max_sessions_each: None,
            max_requests: 1024,
            max_requests_each: None,
            replay: 256 << 10,
            max_replay: 16 << 20,
            max_replay_each: None,
        }
    }
}
