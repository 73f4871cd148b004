//! The settings of the process API.

use std::time::Duration;

use crate::service::Endpoint;
use crate::service::process::LINGER;
#[cfg(feature = "cli")]
use crate::service::process::calls::check_name;
use crate::service::process::compat::Compat;
use crate::service::process::recording::RecordConfig;

/// The settings of the process API.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProcessesConfig {
    /// The path of the API.
    pub endpoint: Endpoint,
    /// The bytes of output that are kept of each process.
    pub scrollback: usize,
    /// How long an exited process is kept.
    pub retention: Duration,
    /// The maximum number of processes that run at once.
    pub max_processes: usize,
    /// The maximum number of bytes of output that are held for all `exec` calls together. A call whose output exceeds it
    /// gets 503. A quarter of it is the default limit for one stream of a process.
    pub max_exec_output: usize,
    /// Whether a process waits while its output has no reader, or a stream is behind. Otherwise the oldest output is
    /// dropped.
    pub wait_for_readers: bool,
    /// How long output is read after a process's exit if another process holds the output open.
    pub linger: Duration,
    /// The server whose clients are accepted without a change.
    pub compat: Compat,
    /// Variables of the server's environment that processes of other users get too.
    pub pass_env: Vec<String>,
    /// The commands that clients start by attaching to a name that has no process.
    pub sessions: Vec<SessionCommand>,
    /// Whether names belong to all principals together, instead of each having names of its own.
    pub shared_names: bool,
    /// Whether the screens of terminals are kept, and how many rows above each. Only a build with the feature `screen` keeps them.
    pub screens: Option<usize>,
    /// How terminals are recorded; `None` if none is.
    pub record: Option<RecordConfig>,
}

/// A command that a client starts on a terminal when it attaches to a name that has no process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionCommand {
    /// The name that it is for; `None` for every name.
    pub name: Option<String>,
    /// The program and its arguments.
    pub command: Vec<String>,
}

impl ProcessesConfig {
    /// The default settings.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            scrollback: 1 << 20,
            retention: Duration::from_secs(60),
            max_processes: 256,
            max_exec_output: 64 << 20,
            wait_for_readers: false,
            linger: LINGER,
            compat: Compat::None,
            pass_env: Vec::new(),
            sessions: Vec::new(),
            shared_names: false,
            screens: Some(500),
            record: None,
        }
    }
}

impl SessionCommand {
    /// Splits a command at its spaces.
    #[cfg(feature = "cli")]
    pub(crate) fn parse(name: Option<&str>, command: &str) -> Result<Self, String> {
        if let Some(name) = name {
            check_name(name).map_err(|rejection| format!("'{name}': {}", rejection.message))?;
        }
        let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        if words.is_empty() {
            return Err(format!("'{command}' is not a command"));
        }
        Ok(Self {
            name: name.map(str::to_owned),
            command: words,
        })
    }
}
