//! A command: its name, help, flags, and the service that it runs.

use std::io;
use std::time::Duration;

use super::action::Action;
use super::flag::Flag;
#[cfg(feature = "client")]
use super::outcome::Failure;
use super::outcome::Outcome;
use super::settings::Settings;
use crate::service::Endpoint;
use crate::web::RoutePage;
use crate::{Service, Token};

/// A command of the program. Start its definition from [`Command::BASE`].
#[derive(Debug)]
pub(crate) struct Command {
    pub(super) name: &'static str,
    /// Its arguments, for the usage line. It can have several lines.
    pub(super) usage: &'static str,
    /// What it does, in one line of the overview.
    pub(super) summary: &'static str,
    /// What it does in at most two sentences, for `-h`. Without this text, `-h` prints the whole help.
    pub(super) brief: Option<&'static str>,
    /// The text of its help above the usage line.
    pub(super) about: &'static str,
    /// What to try, each with its command line. A test parses them.
    pub(super) examples: &'static [(&'static str, &'static str)],
    /// The title of its own flags in the help.
    pub(super) title: &'static str,
    pub(super) flags: &'static [Flag],
    /// The argument that it requires besides flags, by its name in the usage line.
    pub(super) operand: Option<&'static str>,
    /// How many arguments it takes besides flags.
    pub(super) max_words: usize,
    /// What its first argument can be, for completions.
    pub(super) words: fn() -> Vec<&'static str>,
    pub(super) program: ProgramArg,
    /// The path that it serves without `--path`.
    pub(super) default_path: &'static str,
    /// Whether it also serves all paths below its own.
    pub(super) serves_subtree: bool,
    /// The idle timeout of its clients without `--idle-timeout`.
    pub(super) idle_timeout: Option<Duration>,
    /// Whether clients can run code through it. Such a command requires a token even on loopback.
    pub(super) runs_programs: bool,
    /// Whether most clients use HTTP, so that its URL begins with `http`.
    pub(super) is_http: bool,
    /// What a browser sees at its path.
    pub(super) page: RoutePage,
    /// Whether the console is at `/`, unless a route is there.
    pub(super) has_console: bool,
    /// Checks its flags against each other.
    pub(super) check: fn(&Settings) -> Result<(), String>,
    pub(super) serves: Serves,
    /// How the program ends if the command line is wrong.
    pub(super) usage_outcome: Outcome,
}

/// The title of a kind of commands, and whether a command is of this kind.
type Kind = (&'static str, fn(&Command) -> bool);

/// Whether a command takes a program after `--`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgramArg {
    Required,
    /// Without a program, the command uses its own standard input and output.
    Optional,
    None,
}

/// What a command serves.
#[derive(Clone, Copy, Debug)]
pub(super) enum Serves {
    /// One service at one path.
    One(fn(&Settings, ServiceParams<'_>) -> io::Result<Box<dyn Service>>),
    /// The routes of the configuration file.
    Routes,
    /// The routes of the demo.
    Demo,
    /// Nothing. The command is a client: it connects to a server, and this function runs it.
    #[cfg(feature = "client")]
    Client(fn(Settings) -> Result<Outcome, Failure>),
    /// Nothing. The command prints something or edits a file. The function checks its arguments.
    Tool(fn(Settings, &[String]) -> Result<Action, String>),
}

/// What a service needs besides its own settings.
pub(crate) struct ServiceParams<'a> {
    pub(crate) endpoint: Endpoint,
    /// The token that the server generated.
    pub(crate) generated_token: Option<&'a Token>,
    /// Whether clients that wait for nothing may stay idle, because no idle timeout was given.
    pub(crate) sessions_may_idle: bool,
}

impl Command {
    /// The kinds of commands, by their titles in the help.
    pub(super) const KINDS: &'static [Kind] = &[
        ("Servers", Self::is_server),
        #[cfg(feature = "client")]
        ("Clients", Self::is_client),
        ("Other commands", |command| {
            matches!(command.serves, Serves::Tool(_))
        }),
    ];

    /// A command without flags, program or routes.
    pub(super) const BASE: Self = Self {
        name: "",
        usage: "[OPTIONS]",
        summary: "",
        brief: None,
        about: "",
        examples: &[],
        title: "",
        flags: &[],
        operand: None,
        max_words: 0,
        words: Vec::new,
        program: ProgramArg::None,
        default_path: "/",
        serves_subtree: false,
        idle_timeout: None,
        runs_programs: true,
        is_http: false,
        page: RoutePage::None,
        has_console: false,
        check: |_| Ok(()),
        serves: Serves::Routes,
        usage_outcome: Outcome::Usage,
    };

    /// Whether the command serves several services, each at a path of its own.
    pub(super) fn serves_routes(&self) -> bool {
        matches!(self.serves, Serves::Routes | Serves::Demo)
    }

    /// Whether the command connects to a server instead of being one.
    pub(super) fn is_client(&self) -> bool {
        !self.is_server() && !matches!(self.serves, Serves::Tool(_))
    }

    pub(super) fn is_server(&self) -> bool {
        matches!(self.serves, Serves::One(_) | Serves::Routes | Serves::Demo)
    }

    pub(super) fn is_demo(&self) -> bool {
        matches!(self.serves, Serves::Demo)
    }
}
