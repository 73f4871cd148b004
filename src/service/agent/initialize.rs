//! `initialize`, which a shared agent sees once.

use std::ops::Range;

use super::envelope::member;
use crate::ClientId;

/// Where the one `initialize` stands.
#[derive(Debug)]
pub(super) enum Initialize {
    /// No client has asked for it, or the agent said no.
    Never,
    /// The agent has it under `id`; these clients want the answer under their own ids.
    Asked {
        id: u64,
        params: Box<str>,
        wanted: Vec<(ClientId, Box<str>)>,
        /// Whether the agent said no although it had said yes before.
        refused: bool,
    },
    /// It was answered with this result.
    Done {
        params: Box<str>,
        result: Box<str>,
        agent_resumes: bool,
    },
}

impl Initialize {
    /// Whether this is the id under which the agent has it.
    pub(super) fn is_asked_as(&self, id: u64) -> bool {
        matches!(self, Self::Asked { id: asked, .. } if *asked == id)
    }

    /// Whether this client waits for the answer.
    pub(super) fn is_wanted_by(&self, client: ClientId) -> bool {
        self.wanted().any(|who| who == client)
    }

    /// Whether the agent is known to have no `session/resume` of its own.
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
            Self::Asked { wanted, .. } => &wanted[..],
            Self::Never | Self::Done { .. } => &[],
        };
        wanted.iter().map(|(client, _)| *client)
    }

    /// Whether a client waits for the answer.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted().next().is_some()
    }

    /// A client is gone.
    pub(super) fn forget(&mut self, client: ClientId) {
        if let Self::Asked { wanted, .. } = self {
            wanted.retain(|(who, _)| *who != client);
        }
    }

    /// The agent is gone; those who wait for its answer.
    pub(super) fn take_wanted(&mut self) -> Vec<(ClientId, Box<str>)> {
        match self {
            Self::Asked { wanted, .. } => std::mem::take(wanted),
            Self::Never | Self::Done { .. } => Vec::new(),
        }
    }

    /// Turns to asking again, with the same parameters, if it was ever asked.
    pub(super) fn ask_again(&mut self, id: u64) -> bool {
        // Who asked while the agent was not there still waits.
        let (params, wanted) = match self {
            Self::Never => return false,
            Self::Asked { params, wanted, .. } => (std::mem::take(params), std::mem::take(wanted)),
            Self::Done { params, .. } => (std::mem::take(params), Vec::new()),
        };
        *self = Self::Asked {
            id,
            params,
            wanted,
            refused: false,
        };
        true
    }
}

/// What a client has announced that the agent may ask of it.
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

    /// Whether the agent may ask the client for this. Methods that no capability stands for are allowed.
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
