//! The interface through which the router sends messages and asks its owner.

use super::batches::Batches;
use crate::{ClientId, CloseCode, Scope};

/// Receives the messages that the router sends.
pub(crate) trait RouterOutput {
    /// Sends `initialize` to an agent process, before any other line.
    fn initialize_agent(&mut self, process: usize, parts: &[&str]);
    /// Sends a line to an agent process, in parts.
    fn to_agent(&mut self, process: usize, parts: &[&str]);
    /// Sends a message to a client, in parts.
    fn to_client(&mut self, client: ClientId, parts: &[&str]);
    /// Sends one message to several clients, which share it.
    fn to_clients(&mut self, clients: &[ClientId], text: &str) {
        for client in clients {
            self.to_client(*client, &[text]);
        }
    }
    /// Whether a client's message of this length must be refused, unless it is a prompt.
    fn is_long_json(&self, length: usize) -> bool {
        let _ = length;
        false
    }
    /// Counts `more` messages of a client's batch against its rate limit. If the client exceeds the limit, closes it and returns
    /// false.
    fn count_messages(&mut self, client: ClientId, more: usize) -> bool {
        let _ = (client, more);
        true
    }
    /// Counts a message that is refused because of its length.
    fn count_long_json(&mut self) {}
    /// Closes a client.
    fn close(&mut self, client: ClientId, code: CloseCode, reason: &str);
    /// Charges the work of reading this many bytes.
    fn charge(&mut self, bytes: usize) {
        let _ = bytes;
    }
    /// Returns a new secret that cannot be guessed.
    fn secret(&mut self) -> String;
    /// Whether a client's connection was cut and can be resumed, or the client has not answered the last PING. Its
    /// sessions can then be taken over.
    fn is_away(&self, client: ClientId) -> bool;
    /// What a client's token permits.
    fn scope(&self, client: ClientId) -> Scope;
    /// Whether a client's token permits only observing.
    fn has_watch_scope(&self, client: ClientId) -> bool {
        self.scope(client) < Scope::Use
    }
    /// Whether a client's connection can be resumed after a cut.
    fn is_resumable(&self, client: ClientId) -> bool;
    /// The batches whose requests were not all answered. [`RouterOutput::to_client`] and [`RouterOutput::to_agent`] let them
    /// [collect](Batches::collect) the responses.
    fn batches(&mut self) -> &mut Batches;
    /// What the response to `initialize` says about the server.
    fn server_facts(&self) -> ServerFacts {
        ServerFacts::default()
    }
}

/// What clients learn about the server in the response to `initialize`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerFacts {
    /// The maximum length of a client's message in bytes.
    pub(crate) max_message: Option<usize>,
    /// The directory in which agents start, which is where a new session probably works.
    pub(crate) directory: Option<String>,
}
