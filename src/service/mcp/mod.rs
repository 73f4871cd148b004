//! MCP servers on the network: a program that speaks the Model Context Protocol on its standard streams, behind Streamable HTTP.
//!
//! Requests of revision 2026-07-28 are independent of each other. A small pool of processes answers them ([`pool`]). The revisions before
//! have sessions, each with a process of its own ([`session`]). Clients can also use WebSocket on the same path, each with a
//! process of its own.

mod accept;
mod config;
mod headers;
mod http_error;
mod hub;
mod listen;
mod pool;
mod process;
mod quota;
mod replay;
mod reply;
mod request;
mod service;
mod session;
mod tools;
mod versions;

pub use self::config::McpConfig;
pub use self::service::Mcp;

/// What the fuzz target checks.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed {
    use crate::Request;
    use crate::service::jsonrpc::{Envelope, IdRanges, MessageKind};

    use super::http_error::HttpError;
    use super::pool::with_subscription;
    use super::request::Post;
    pub(crate) use super::{replay::EventId, tools::Tools};

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
        Some((ids.replace(text, unique, None, |parts| parts.concat()), own))
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
