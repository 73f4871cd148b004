//! MCP servers on the network: a program that speaks the Model Context Protocol on its standard streams, behind Streamable HTTP.
//!
//! Requests of revision 2026-07-28 are independent of each other. A small pool of processes answers them ([`pool`]). The revisions before
//! have sessions ([`session`]), each with a process of its own, or several with one ([`shared`]). If the program supports only older
//! revisions, requests of 2026-07-28 are translated for a shared process ([`to_older`]). If it supports only 2026-07-28, sessions are
//! translated ([`to_newer`]).

mod headers;
mod held_requests;
mod http_error;
mod hub;
mod pool;
mod process;
mod quota;
mod reply;
mod request;
mod service;
mod session;
mod shared;
mod subscription;
mod to_newer;
mod to_older;

pub use self::process::ProgramPlace;
pub use self::service::Mcp;

use std::time::Duration;

use super::{Endpoint, RestartLimit};

/// The revision of the Model Context Protocol without sessions: requests are independent of each other.
const STATELESS: &str = "2026-07-28";

/// The revisions with sessions, the newest first.
const SESSION_VERSIONS: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];

/// Earlier revisions, which programs still negotiate. Clients then name them in each request.
const EARLIER_VERSIONS: [&str; 2] = ["2024-11-05", "2024-10-07"];

/// The first revision whose clients take an event with an id and no data, which lets them resume before the first message.
const FIRST_PRIMED: &str = "2025-11-25";

/// Whether streams for clients of this revision begin with an event without data.
fn takes_priming(version: &str) -> bool {
    version >= FIRST_PRIMED
}

/// Which sessions of the revisions before 2026-07-28 share a process. Sessions of clients with different revisions or capabilities
/// never do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum McpShare {
    /// None: each session has a process of its own. For servers that keep something for their client, such as a browser.
    #[default]
    None,
    /// Those of one principal.
    Principal,
    /// All.
    All,
}

/// When the first process starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum McpStart {
    /// With the server.
    #[default]
    Now,
    /// With the first request that needs it. A process of the pool is also stopped when it is idle ([`McpConfig::process_idle`]).
    Lazy,
}

/// The settings of [`Mcp`].
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
    /// Where the program runs.
    pub place: ProgramPlace,
    /// The number of processes that all requests of revision 2026-07-28 share, at least 1.
    pub pool: usize,
    /// How often the first process may exit before it has said which revisions it supports. After that, the program serves only
    /// sessions.
    pub restart_limit: RestartLimit,
    /// How long the first process may take to say which revisions it supports, and the process of a session to answer `initialize`. `None` is no limit.
    pub initialize_timeout: Option<Duration>,
    /// How long a request may wait for its answer. `None` is no limit.
    pub request_timeout: Option<Duration>,
    /// How long a call waits for the input that its client was asked for, if the client speaks revision 2026-07-28 and the server an older
    /// one. `None` is no limit.
    pub input_timeout: Option<Duration>,
    /// Which sessions share a process.
    pub share: McpShare,
    /// When the first process starts.
    pub start: McpStart,
    /// How long a process that sessions share, or one of the pool with [`McpStart::Lazy`], may be unused before it is stopped. It is
    /// started again when it is needed. `None` is no limit.
    pub process_idle: Option<Duration>,
    /// How long a session may be unused before it ends. `None` is no limit.
    pub session_idle: Option<Duration>,
    /// The same for a session whose client has only asked for lists, as a health check does. `None` is no limit.
    pub list_idle: Option<Duration>,
    /// The maximum number of sessions. If there are several principals, one of them may have half of it. This also holds for the next
    /// limits. Clients without a principal count as one.
    pub max_sessions: usize,
    /// The maximum number of requests that wait for an answer.
    pub max_requests: usize,
    /// The maximum number of bytes of events that one session keeps for a client that was cut.
    pub replay: usize,
    /// The maximum number of bytes of events that all sessions keep.
    pub max_replay: usize,
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
            place: ProgramPlace::default(),
            pool: 1,
            restart_limit: RestartLimit::default(),
            initialize_timeout: Some(Duration::from_secs(30)),
            request_timeout: None,
            input_timeout: Some(Duration::from_secs(10 * 60)),
            share: McpShare::None,
            process_idle: Some(Duration::from_secs(10 * 60)),
            start: McpStart::Now,
            session_idle: Some(Duration::from_secs(30 * 60)),
            list_idle: Some(Duration::from_secs(2 * 60)),
            max_sessions: 256,
            max_requests: 1024,
            replay: 256 << 10,
            max_replay: 16 << 20,
        }
    }
}

/// What the fuzz target checks.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed {
    use crate::Request;
    use crate::service::jsonrpc::{Envelope, IdRanges, MessageKind};

    use super::http_error::HttpError;
    pub(crate) use super::quota::Quota;
    use super::request::Post;
    pub(crate) use super::shared::{
        Ended, Failure, Incoming, Multiplexer, Output, Reach, Seat, Who,
    };
    use super::subscription::with_subscription;
    pub(crate) use super::to_newer::{Side, ToNewer};
    pub(crate) use super::to_older::{
        Output as OlderOutput, ToOlder, answer, discovery, request as older_request, state,
    };
    pub(crate) use super::{headers::Tools, reply::EventId};

    /// Whether a POST is a valid request of revision 2026-07-28.
    pub(crate) fn is_stateless_request(request: &Request<'_>, body: &[u8], tools: &Tools) -> bool {
        let read: Result<Post<'_>, HttpError> =
            super::request::read_post(request, body, Some(tools));
        matches!(read, Ok(Post::Request(_)))
    }

    /// A request with another id and progress token, and its own token. `None` if it is not a request that a pool takes.
    pub(crate) fn rewrite_request(text: &str, unique: u64) -> Option<(String, Option<String>)> {
        let envelope = Envelope::parse(text).ok()?;
        let MessageKind::Request { id, .. } = &envelope.kind else {
            return None;
        };
        let ids = IdRanges::find(&envelope, id.clone()).ok()?;
        let own = ids.read(text).progress_token.map(String::from);
        Some((
            ids.with_upstream_id(text, unique, None, |parts| parts.concat()),
            own,
        ))
    }

    /// A notification with the id of a subscription. `None` if it is not a notification without one.
    pub(crate) fn rewrite_subscription(text: &str, id: &str) -> Option<String> {
        let envelope = Envelope::parse(text).ok()?;
        let is_notification = matches!(envelope.kind, MessageKind::Notification { .. });
        let has_params = text.contains("params");
        let is_usual = envelope.body.is_some() || !has_params;
        (is_notification && is_usual && !text.contains("subscriptionId"))
            .then(|| with_subscription(&envelope, id))
    }
}
