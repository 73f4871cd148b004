//! The handshake of a shared agent, which gets `initialize` once for all clients.

use std::ops::Range;

use super::envelope::member;
use crate::ClientId;

/// The state of the agent's one `initialize`.
#[derive(Debug)]
pub(super) enum Initialize {
    /// No client has sent it, or the agent answered with an error.
    Never,
    /// The agent has not answered the request `id`. The clients in `wanted` get the answer under their own request ids.
    Pending {
        id: u64,
        params: Box<str>,
        wanted: Vec<(ClientId, Box<str>)>,
        /// Whether a restarted agent answered with an error although its predecessor accepted.
        refused: bool,
    },
    /// The agent answered with this result.
    Done {
        params: Box<str>,
        result: Box<str>,
        agent_resumes: bool,
    },
}

impl Initialize {
    /// Whether `id` is the pending `initialize`.
    pub(super) fn is_pending_as(&self, id: u64) -> bool {
        matches!(self, Self::Pending { id: pending, .. } if *pending == id)
    }

    /// Whether a client waits for the answer.
    pub(super) fn is_wanted_by(&self, client: ClientId) -> bool {
        self.wanted().any(|wanted| wanted == client)
    }

    /// Whether the agent has declared that it does not support `session/resume`.
    pub(super) fn lacks_resume(&self) -> bool {
        matches!(
            self,
            Self::Done {
                agent_resumes: false,
                ..
            }
        )
    }

    /// The clients that wait for the answer.
    pub(super) fn wanted(&self) -> impl Iterator<Item = ClientId> {
        let wanted = match self {
            Self::Pending { wanted, .. } => &wanted[..],
            Self::Never | Self::Done { .. } => &[],
        };
        wanted.iter().map(|(client, _)| *client)
    }

    /// Whether any client waits for the answer.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted().next().is_some()
    }

    /// Removes a client that has disconnected.
    pub(super) fn forget(&mut self, client: ClientId) {
        if let Self::Pending { wanted, .. } = self {
            wanted.retain(|(other, _)| *other != client);
        }
    }

    /// Takes the clients that wait for the answer of an agent that has exited.
    pub(super) fn take_wanted(&mut self) -> Vec<(ClientId, Box<str>)> {
        match self {
            Self::Pending { wanted, .. } => std::mem::take(wanted),
            Self::Never | Self::Done { .. } => Vec::new(),
        }
    }

    /// Prepares to send `initialize` with the same parameters to a restarted agent. Returns false if no client has sent it.
    pub(super) fn restart(&mut self, id: u64) -> bool {
        // Clients that sent it while no agent was running still wait.
        let (params, wanted) = match self {
            Self::Never => return false,
            Self::Pending { params, wanted, .. } => {
                (std::mem::take(params), std::mem::take(wanted))
            }
            Self::Done { params, .. } => (std::mem::take(params), Vec::new()),
        };
        *self = Self::Pending {
            id,
            params,
            wanted,
            refused: false,
        };
        true
    }
}

/// The requests that a client has declared it supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Capabilities {
    read_files: bool,
    write_files: bool,
    terminal: bool,
    elicitation: bool,
}

impl Capabilities {
    /// Reads the object `clientCapabilities`.
    pub(super) fn read(text: &str, range: &Range<usize>) -> Self {
        let value = |path: &[&str]| {
            let found = path
                .iter()
                .try_fold(range.clone(), |range, name| member(text, &range, name));
            found.map(|found| &text[found])
        };
        let is_true = |path: &[&str]| value(path) == Some("true");
        Self {
            read_files: is_true(&["fs", "readTextFile"]),
            write_files: is_true(&["fs", "writeTextFile"]),
            terminal: is_true(&["terminal"]),
            elicitation: value(&["elicitation"]).is_some_and(|value| value.starts_with('{')),
        }
    }

    /// Whether the agent may send the client this request. Methods without a capability are allowed.
    pub(super) fn allow(self, method: &str) -> bool {
        match method {
            "fs/read_text_file" => self.read_files,
            "fs/write_text_file" => self.write_files,
            "elicitation/create" => self.elicitation,
            _ if method.starts_with("terminal/") => self.terminal,
            _ => true,
        }
    }
}
