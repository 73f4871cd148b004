//! The command line: one table of options, from which parsing and `--help` are made.

mod access;
mod config;
mod help;
pub(crate) mod log;
pub(crate) mod names;
mod options;
pub(crate) mod output;
pub(crate) mod program;
mod values;

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::demo;
use lexopt::Arg;
use outrigger::Token;
#[cfg(feature = "deflate")]
use outrigger::protocol::deflate::DeflateConfig;
use outrigger::service::Endpoint;
use outrigger::service::agent::{AgentProtocol, RestartLimit};

use self::log::LogFormat;
use self::options::{OPTIONS, Option};

/// What to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Agent,
    Terminal,
    Processes,
    App,
    Echo,
    Serve,
    Demo,
}

/// What a command does with words behind `--`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Needed,
    Possible,
    None,
}

impl Command {
    const ALL: [Self; 7] = [
        Self::Agent,
        Self::Terminal,
        Self::Processes,
        Self::App,
        Self::Echo,
        Self::Serve,
        Self::Demo,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Terminal => "terminal",
            Self::Processes => "processes",
            Self::Echo => "echo",
            Self::App => "app",
            Self::Serve => "serve",
            Self::Demo => "demo",
        }
    }

    fn program(self) -> Program {
        match self {
            Self::Agent | Self::Terminal => Program::Needed,
            Self::App => Program::Possible,
            Self::Processes | Self::Echo | Self::Serve | Self::Demo => Program::None,
        }
    }

    /// Where it is found unless `--path` says otherwise.
    fn default_path(self) -> &'static str {
        match self {
            Self::Agent => "/acp",
            Self::Terminal => "/terminal",
            Self::Processes => "/process/...",
            Self::Echo | Self::Serve | Self::Demo => "/",
            Self::App => "/...",
        }
    }
}

/// An agent's client that is idle for this long is closed, unless an option says otherwise.
const AGENT_IDLE: Duration = Duration::from_secs(300);

/// How long output is read after a program's end, where one that it has started holds it open.
const LINGER: Duration = Duration::from_millis(250);

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Action {
    /// To print this and leave.
    Print(String),
    /// To be one of the programs that the demo has behind its services.
    Example(fn() -> std::io::Result<()>),
    /// To serve.
    Run(Command, Box<Settings>),
}

/// What the options set.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) server: outrigger::Config,
    pub(crate) port_range: std::option::Option<RangeInclusive<u16>>,
    pub(crate) announce: std::option::Option<String>,
    pub(crate) announce_extra: serde_json::Map<String, serde_json::Value>,
    pub(crate) token_file: std::option::Option<PathBuf>,
    pub(crate) no_auth: bool,
    /// Whether `--idle-timeout` was, so that it is for all clients.
    pub(crate) idle_given: bool,
    /// Whether messages are to be compressed.
    #[cfg(feature = "deflate")]
    pub(crate) deflates: bool,
    /// How, if it was said.
    #[cfg(feature = "deflate")]
    pub(crate) deflate: std::option::Option<DeflateConfig>,
    /// Whether only to say whether the settings are valid.
    pub(crate) check: bool,
    /// Whether the token was made here, so that nobody knows it who is not told.
    pub(crate) fresh_token: bool,
    pub(crate) path: std::option::Option<Endpoint>,
    /// What `serve` serves, each with settings of its own.
    pub(crate) routes: Vec<(Command, Self)>,
    pub(crate) program: Vec<String>,
    pub(crate) restart: bool,
    pub(crate) per_client: bool,
    pub(crate) protocol: AgentProtocol,
    pub(crate) grace: std::option::Option<Duration>,
    pub(crate) restart_limit: RestartLimit,
    pub(crate) subprotocols: Vec<String>,
    pub(crate) cwd: std::option::Option<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) user: std::option::Option<String>,
    pub(crate) read_only: bool,
    pub(crate) once: bool,
    pub(crate) scrollback: usize,
    pub(crate) retention: Duration,
    pub(crate) max_processes: usize,
    pub(crate) max_exec_output: usize,
    pub(crate) linger: Duration,
    pub(crate) pass_env: Vec<String>,
    pub(crate) log_level: std::option::Option<::log::LevelFilter>,
    pub(crate) log_format: LogFormat,
}

impl Settings {
    fn new() -> Self {
        Self {
            server: outrigger::Config {
                listen: Vec::new(),
                ..Default::default()
            },
            port_range: None,
            announce: None,
            announce_extra: serde_json::Map::new(),
            token_file: None,
            no_auth: false,
            idle_given: false,
            #[cfg(feature = "deflate")]
            deflates: false,
            #[cfg(feature = "deflate")]
            deflate: None,
            check: false,
            fresh_token: false,
            path: None,
            routes: Vec::new(),
            program: Vec::new(),
            restart: false,
            per_client: false,
            protocol: AgentProtocol::Acp,
            grace: Some(Duration::from_secs(300)),
            restart_limit: RestartLimit {
                count: 5,
                window: Duration::from_secs(60),
            },
            subprotocols: Vec::new(),
            cwd: None,
            env: Vec::new(),
            user: None,
            read_only: false,
            once: false,
            scrollback: 1 << 20,
            retention: Duration::from_secs(60),
            max_processes: 256,
            max_exec_output: 64 << 20,
            linger: LINGER,
            pass_env: Vec::new(),
            log_level: None,
            log_format: LogFormat::Text,
        }
    }

    /// The token, if nobody knows it who is not told.
    pub(crate) fn told_token(&self) -> std::option::Option<&Token> {
        self.server
            .access
            .token
            .as_ref()
            .filter(|_| self.fresh_token)
    }

    /// What is served: by `serve`, its routes; by another command, itself.
    pub(crate) fn services(&self, command: Command) -> Vec<(Command, &Self)> {
        match command {
            Command::Serve | Command::Demo => self
                .routes
                .iter()
                .map(|(command, settings)| (*command, settings))
                .collect(),
            _ => vec![(command, self)],
        }
    }

    /// Looks up the programs that clients start, and those that the server does.
    pub(crate) fn find_programs(&self, command: Command) -> Result<(), String> {
        for (_, service) in self.services(command) {
            if let Some(name) = service.program.first() {
                program::find(name, service.cwd.as_deref(), &service.env)?;
            }
        }
        Ok(())
    }

    /// Where the service is found.
    pub(crate) fn endpoint(&self, command: Command) -> Endpoint {
        match &self.path {
            Some(path) => path.clone(),
            None => command
                .default_path()
                .parse()
                .expect("the default paths are paths"),
        }
    }
}

/// Reads the command line; an error is one line that says what is wrong and what to do.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Action, String> {
    // Only what stands behind `--` is a program; a word before it is a mistake.
    let mut args: Vec<OsString> = args.into_iter().collect();
    let program = args
        .iter()
        .position(|arg| arg == "--")
        .map(|at| args.split_off(at).split_off(1));
    let mut parser = lexopt::Parser::from_iter(args);
    let command = match parser.next().map_err(|error| error.to_string())? {
        None => return Err("a command is missing; see 'outrigger --help'".to_owned()),
        Some(Arg::Long("help") | Arg::Short('h')) => return Ok(Action::Print(help::overview())),
        Some(Arg::Long("version") | Arg::Short('V')) => {
            return Ok(Action::Print(format!(
                "outrigger {}\n",
                env!("CARGO_PKG_VERSION")
            )));
        }
        Some(Arg::Value(name)) => {
            let known = Command::ALL
                .into_iter()
                .find(|command| name == command.name());
            match (known, name.to_str()) {
                (Some(command), _) => command,
                (None, Some("example-agent")) => return example(&mut parser, demo::run_agent),
                (None, Some("example-app")) => return example(&mut parser, demo::run_app),
                (None, Some("help")) => return Ok(Action::Print(help_on(&mut parser))),
                (None, _) => {
                    return Err(format!(
                        "unknown command '{}'; see 'outrigger --help'",
                        name.to_string_lossy()
                    ));
                }
            }
        }
        Some(option) => return Err(format!("{}; see 'outrigger --help'", option.unexpected())),
    };
    let hint = |error: String| format!("{error}; see 'outrigger {} --help'", command.name());
    parse_options(&mut parser, command, program).map_err(hint)
}

/// `help`, or `help COMMAND`.
fn help_on(parser: &mut lexopt::Parser) -> String {
    let command = match parser.next() {
        Ok(Some(Arg::Value(name))) => Command::ALL
            .into_iter()
            .find(|command| name == command.name()),
        _ => None,
    };
    command.map_or_else(help::overview, help::of)
}

fn parse_options(
    parser: &mut lexopt::Parser,
    command: Command,
    program: std::option::Option<Vec<OsString>>,
) -> Result<Action, String> {
    let mut settings = Settings::new();
    let mut given: Vec<(&'static Option, String)> = Vec::new();
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        let name = match arg {
            Arg::Long("help") | Arg::Short('h') => return Ok(Action::Print(help::of(command))),
            Arg::Long(name) => name.to_owned(),
            Arg::Value(value) => {
                let value = value.to_string_lossy();
                return Err(match command.program() {
                    Program::Needed | Program::Possible => {
                        format!("unexpected '{value}'; a program goes behind '--'")
                    }
                    Program::None => format!("unexpected '{value}'"),
                });
            }
            Arg::Short(_) => return Err(arg.unexpected().to_string()),
        };
        let Some(option) = Option::find(&name, command) else {
            return Err(format!("unknown option '--{name}'"));
        };
        let value = match option.value {
            None => String::new(),
            Some(_) => {
                let value = parser.value().map_err(|error| error.to_string())?;
                value
                    .into_string()
                    .map_err(|_| format!("--{name}: the value is not UTF-8"))?
            }
        };
        given.push((option, value));
    }
    // A flag wins over the file, so the file comes first and leaves out what was given.
    if let Some((_, path)) = given.iter().rfind(|(option, _)| option.name == "config") {
        let file = config::ConfigFile::read(path.as_ref())?;
        file.apply(command, &mut settings, |name| {
            given.iter().any(|(option, _)| option.name == name)
        })?;
    }
    for (option, value) in &given {
        let wrong = |error| format!("--{}: {error}", option.name);
        (option.apply)(&mut settings, value).map_err(wrong)?;
    }
    match (command.program(), program) {
        (Program::Needed, None) if settings.program.is_empty() => {
            return Err("a program is needed behind '--'".to_owned());
        }
        (_, None) => {}
        (Program::None, Some(_)) => return Err("it takes no program".to_owned()),
        (_, Some(program)) if program.is_empty() => {
            return Err("there is no program behind '--'".to_owned());
        }
        (_, Some(program)) => settings.program = words(program)?,
    }
    if command == Command::Serve && settings.routes.is_empty() {
        return Err("it needs --config with the routes to serve".to_owned());
    }
    if command == Command::Demo {
        settings.routes = demo_routes()?;
    }
    let mut services = settings.services(command).into_iter();
    if !settings.idle_given && services.any(|(command, _)| command == Command::Agent) {
        settings.server.timeouts.idle = Some(AGENT_IDLE);
    }
    #[cfg(feature = "deflate")]
    if settings.deflates {
        settings.server.deflate = Some(settings.deflate.unwrap_or_default());
    } else if settings.deflate.is_some() {
        return Err("how to compress is said, but not --deflate".to_owned());
    }
    settings.complete_listen()?;
    settings.complete_access(command)?;
    if settings.restart && settings.program.is_empty() {
        return Err("--restart needs a program behind '--'".to_owned());
    }
    settings.server.soft_outbound = settings
        .server
        .soft_outbound
        .min(settings.server.max_outbound);
    Ok(Action::Run(command, Box::new(settings)))
}

/// A program of the demo takes no arguments.
fn example(
    parser: &mut lexopt::Parser,
    program: fn() -> std::io::Result<()>,
) -> Result<Action, String> {
    match parser.next().map_err(|error| error.to_string())? {
        None => Ok(Action::Example(program)),
        Some(Arg::Long("help") | Arg::Short('h')) => Ok(Action::Print(help::examples())),
        Some(arg) => Err(format!("{}; see 'outrigger help'", arg.unexpected())),
    }
}

/// What the demo serves. Its programs are this one and the user's shell.
fn demo_routes() -> Result<Vec<(Command, Settings)>, String> {
    let ourselves = std::env::current_exe()
        .map_err(|error| format!("it does not know its own name: {error}"))?
        .into_os_string()
        .into_string()
        .map_err(|_| "its own name is not UTF-8")?;
    let shell = std::env::var("SHELL").ok();
    let shell = shell.filter(|shell| program::find(shell, None, &[]).is_ok());
    let shell = shell.unwrap_or_else(|| "/bin/sh".to_owned());
    let example = |name: &str| vec![ourselves.clone(), name.to_owned()];
    let routes = [
        (Command::Echo, "/echo", Vec::new()),
        (Command::Terminal, "/terminal", vec![shell]),
        (Command::Processes, "/process", Vec::new()),
        (Command::App, "/app", example("example-app")),
        (Command::Agent, "/acp", example("example-agent")),
    ];
    let route = |(command, path, program): (Command, &str, Vec<String>)| {
        let mut settings = Settings::new();
        settings.path = path.parse().ok();
        settings.program = program;
        (command, settings)
    };
    Ok(routes.into_iter().map(route).collect())
}

/// The words behind `--`.
fn words(program: Vec<OsString>) -> Result<Vec<String>, String> {
    let words: Result<Vec<_>, _> = program.into_iter().map(OsString::into_string).collect();
    words.map_err(|word| format!("'{}' is not UTF-8", word.to_string_lossy()))
}

/// The options that a command takes, in the order of its help.
fn options_of(command: Command) -> impl Iterator<Item = &'static Option> {
    OPTIONS.iter().filter(move |option| option.takes(command))
}
