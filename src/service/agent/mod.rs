//! One stdio JSON-RPC agent, many clients, nothing crosses.

mod answer;
mod envelope;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod initialize;
pub(super) mod json;
mod per_client;
mod router;
mod salvage;
mod shared;

#[cfg(test)]
mod tests;

use std::time::Duration;

use uuid::Uuid;

pub use self::per_client::AgentPerClient;
use self::salvage::{Salvage, Salvaged};
pub use self::shared::Agent;
use super::Endpoint;
use super::lines::Line;
use crate::{Accept, Rejection, Request};

/// Bytes that an agent may leave unread before clients are no longer read.
const HIGH_WATER: usize = 1 << 20;
/// Clients are read again when this little is left.
const LOW_WATER: usize = 256 << 10;

/// While an agent has more unread bytes than this, our own answers to its requests (errors, cancelled permissions) are
/// dropped and new clients are refused.
const MAX_UNREAD: usize = 4 << 20;

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
    /// How long the agent's sessions are held ready for a client that is gone; `None` for not at all. Later they have to
    /// be loaded.
    pub grace: Option<Duration>,
    /// How many times a shared agent may end.
    pub restart_limit: RestartLimit,
    /// Whether the idle timeout does not apply to clients that have a session or their own process. If false, only a
    /// waiting request of the client suspends it.
    pub sessions_may_idle: bool,
}

impl AgentConfig {
    /// The answer to a handshake: a connection id, and the subprotocol if there is one to agree on.
    fn accept(&self, request: &Request<'_>) -> Result<Accept, Rejection> {
        let accept = Accept::default().field("Acp-Connection-Id", Uuid::new_v4().to_string())?;
        let mcp = self.protocol == AgentProtocol::JsonRpc
            && request
                .list("sec-websocket-protocol")
                .any(|offered| offered == "mcp");
        Ok(if mcp { accept.protocol("mcp") } else { accept })
    }
}

/// What is to be done about a line of an agent.
#[derive(Debug, PartialEq, Eq)]
enum Heard<'a> {
    /// Nothing, or nothing yet.
    Nothing,
    Text(&'a str),
    /// A message that cannot be passed on: what it was, as far as that is known, and why it cannot.
    Unreadable(Option<Salvaged>, &'static str),
}

/// Takes an agent's lines.
#[derive(Debug, Default)]
struct Ear {
    /// The line that is being skipped because it is too long.
    skipped: Option<Salvage>,
}

impl Ear {
    /// Takes a line. One that cannot be a message is logged.
    fn hear<'a>(&mut self, line: Line<'a>) -> Heard<'a> {
        match line {
            Line::Whole(bytes) if bytes.trim_ascii().is_empty() => Heard::Nothing,
            Line::Whole(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Heard::Text(text),
                Err(_) => {
                    let shown = shown(bytes);
                    log::warn!("a line of the agent is not UTF-8, skipped: {shown:?}");
                    Heard::Unreadable(Salvage::of(bytes), "is not UTF-8")
                }
            },
            Line::TooLong(bytes) => {
                let shown = shown(bytes);
                log::warn!("a line of the agent is over the message limit, skipped: {shown:?}");
                self.skipped = Some(Salvage::default());
                Heard::Nothing
            }
            Line::Skipped(bytes) => {
                if let Some(skipped) = &mut self.skipped {
                    skipped.push(bytes);
                }
                Heard::Nothing
            }
            Line::SkippedEnd => {
                let salvaged = self.skipped.take().and_then(Salvage::finish);
                Heard::Unreadable(salvaged, "is over the message limit")
            }
        }
    }
}

/// The beginning of a line, for the log.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned()
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
