//! One stdio JSON-RPC agent, many clients, nothing crosses.

mod answer;
mod envelope;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod initialize;
pub(super) mod json;
mod per_client;
mod router;
mod shared;

#[cfg(test)]
mod tests;

use std::time::Duration;

use uuid::Uuid;

pub use self::per_client::AgentPerClient;
pub use self::shared::Agent;
use super::Endpoint;
use super::lines::Line;
use crate::{Accept, Refusal, Request};

/// Bytes that an agent may leave unread before clients are no longer read.
const HIGH_WATER: usize = 1 << 20;
/// Clients are read again when this little is left.
const LOW_WATER: usize = 256 << 10;

/// What is spoken on an agent's standard streams, one message a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentProtocol {
    /// The Agent Client Protocol.
    Acp,
    /// Any JSON-RPC 2.0, the Model Context Protocol for example.
    JsonRpc,
}

/// How many times an agent may end before it is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartLimit {
    /// This many ends are put up with,
    pub count: usize,
    /// within this time.
    pub window: Duration,
}

/// The settings of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Where clients find it.
    pub endpoint: Endpoint,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// What it speaks.
    pub protocol: AgentProtocol,
    /// How long the sessions of a client that is gone wait for it; `None` for not at all.
    pub grace: Option<Duration>,
    /// How many times a shared agent may end.
    pub restart_limit: RestartLimit,
}

impl AgentConfig {
    /// The answer to a handshake: a connection id, and the subprotocol if there is one to agree on.
    fn accept(&self, request: &Request<'_>) -> Result<Accept, Refusal> {
        let accept = Accept::default().field("Acp-Connection-Id", Uuid::new_v4().to_string())?;
        let mcp = self.protocol == AgentProtocol::JsonRpc
            && request
                .list("sec-websocket-protocol")
                .any(|offered| offered == "mcp");
        Ok(if mcp { accept.protocol("mcp") } else { accept })
    }
}

/// The text of an agent's line; one that cannot be a message is logged and skipped.
fn text_of(line: Line<'_>) -> Option<&str> {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned();
    match line {
        Line::Whole(bytes) if bytes.trim_ascii().is_empty() => None,
        Line::Whole(bytes) => std::str::from_utf8(bytes)
            .inspect_err(|_| {
                log::warn!(
                    "a line of the agent is not UTF-8, skipped: {:?}",
                    shown(bytes)
                )
            })
            .ok(),
        Line::TooLong(bytes) => {
            log::warn!(
                "a line of the agent is over the message limit, skipped: {:?}",
                shown(bytes)
            );
            None
        }
    }
}

/// Appends a line. In JSON a line feed can only be white space between tokens; as a space it cannot end the line early
/// and make two messages of one. U+2028 and U+2029, at which some readers of lines break as well, can only stand in
/// strings and are written as escapes.
fn push_line(lines: &mut Vec<u8>, parts: &[&str]) {
    let start = lines.len();
    for part in parts {
        // Both begin with the same byte, and the search for a byte is far quicker.
        if part.as_bytes().contains(&0xe2) && part.contains(['\u{2028}', '\u{2029}']) {
            let escaped = part
                .replace('\u{2028}', "\\u2028")
                .replace('\u{2029}', "\\u2029");
            lines.extend_from_slice(escaped.as_bytes());
        } else {
            lines.extend_from_slice(part.as_bytes());
        }
    }
    for byte in &mut lines[start..] {
        // Each byte is written, so that several can be at once.
        *byte = if matches!(byte, b'\n' | b'\r') {
            b' '
        } else {
            *byte
        };
    }
    lines.push(b'\n');
}
