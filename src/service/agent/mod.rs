//! JSON-RPC agents on standard input and output, such as those of the Agent Client Protocol.
//!
//! [`Agent`] shares one agent process among all clients of a kind. Its router guarantees that each message reaches only the client
//! that it is for. [`AgentPerClient`] starts a process for each client and passes messages through unchanged.

mod config;
mod figures;
mod initialize;
pub(crate) mod named;
mod per_client;
mod process;
mod response;
pub(crate) mod router;
mod schema;
mod shared;

#[cfg(test)]
mod tests;

pub use self::config::{AgentConfig, AgentProtocol, Approvals, UnknownSessions};
pub use self::per_client::AgentPerClient;
#[cfg(feature = "cli")]
pub(crate) use self::schema::has_session_rules;
pub use self::shared::Agent;
pub use super::child::RestartLimit;

/// The query parameter with the session that a client only watches.
const WATCH: &str = "watch";
/// While an agent has more unread input than this, new clients are rejected, and responses that Outrigger itself would
/// send to the agent (errors, cancelled permissions) are dropped.
const MAX_UNREAD: usize = 4 << 20;
