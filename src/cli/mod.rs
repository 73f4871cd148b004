//! The `outrigger` program: reads the command line and the configuration file into settings, and runs a server or a client.
//!
//! Commands are defined in `commands`, and flags in `flags`, each in one place: the parser, the help, the configuration
//! file and the tests all read these tables.

mod addresses;
mod announce;
#[cfg(feature = "client")]
mod client;
mod commands;
mod config_file;
mod defaults;
mod flags;
mod help;
mod line_output;
mod logging;
mod lookup;
mod run;
mod settings;
#[cfg(feature = "tls")]
mod tls;
mod token;
mod values;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use lexopt::Arg;

use self::commands::{Command, ProgramArg};
use self::config_file::ConfigFile;
use self::flags::{Flag, Takes};
use self::settings::Settings;
use self::token::TokenCommand;
use crate::demo;

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It finished as requested.
    Clean,
    /// It failed while running, or a second signal ended it.
    Failure,
    /// The command line is wrong.
    Usage,
    /// It ended with the exit code of a remote program, or with another code of its own.
    #[cfg(feature = "client")]
    Code(u8),
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Clean => 0,
            Outcome::Failure => 1,
            Outcome::Usage => 2,
            #[cfg(feature = "client")]
            Outcome::Code(code) => code,
        })
    }
}

/// The action that the command line requests.
#[derive(Debug)]
enum Action {
    /// Print this and exit.
    Print(String),
    /// Run one of the programs that the demo uses.
    Example(fn() -> io::Result<()>),
    /// List or edit the tokens of a file.
    Token(TokenCommand),
    /// Run a server or a client.
    Run(&'static Command, Box<Settings>),
}

/// A wrong command line: one line that says what is wrong and what to do, and how the program ends.
#[derive(Debug)]
struct UsageError {
    message: String,
    outcome: Outcome,
}

impl From<String> for UsageError {
    fn from(message: String) -> Self {
        let outcome = Outcome::Usage;
        Self { message, outcome }
    }
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    let outcome = match parse(std::env::args_os()) {
        Ok(Action::Print(text)) => {
            print(&text);
            Outcome::Clean
        }
        Ok(Action::Example(example)) => match example() {
            Ok(()) => Outcome::Clean,
            Err(error) => fail(&error.to_string(), Outcome::Failure),
        },
        Ok(Action::Token(command)) => token::run(&command),
        Ok(Action::Run(command, settings)) => run::run(command, *settings),
        Err(error) => fail(&error.message, error.outcome),
    };
    logging::finish();
    outcome.into()
}

/// Writes an error message to standard error.
fn fail(error: &str, outcome: Outcome) -> Outcome {
    logging::write_line(&format!("outrigger: {error}\n"));
    outcome
}

/// Prints to standard output. A reader that has gone is not an error.
fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    drop(written.and_then(|()| stdout.flush()));
}

/// Parses the command line.
fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Action, UsageError> {
    // Everything after `--` belongs to the program.
    let mut args: Vec<OsString> = args.into_iter().collect();
    let program = args
        .iter()
        .position(|arg| arg == "--")
        .map(|at| args.split_off(at).split_off(1));
    let mut parser = lexopt::Parser::from_iter(args);
    let command = match parser.next().map_err(|error| error.to_string())? {
        None => return Err("missing command; see 'outrigger --help'".to_owned().into()),
        Some(Arg::Long("help") | Arg::Short('h')) => return Ok(Action::Print(help::overview())),
        Some(Arg::Long("version") | Arg::Short('V')) => {
            let version = env!("CARGO_PKG_VERSION");
            return Ok(Action::Print(format!("outrigger {version}\n")));
        }
        Some(Arg::Value(name)) => match (name.to_str().and_then(Command::find), name.to_str()) {
            (Some(command), _) => command,
            (None, Some("example-agent")) => return Ok(example(&mut parser, demo::run_agent)?),
            (None, Some("example-app")) => return Ok(example(&mut parser, demo::run_app)?),
            #[cfg(feature = "mcp")]
            (None, Some("example-mcp")) => return Ok(example(&mut parser, demo::run_mcp)?),
            (None, Some("token")) => return Ok(token::parse(&mut parser)?),
            (None, Some("help")) => return Ok(Action::Print(help_on(&mut parser))),
            (None, _) => {
                let name = name.to_string_lossy();
                return Err(format!("unknown command '{name}'; see 'outrigger --help'").into());
            }
        },
        Some(flag) => {
            return Err(format!("{}; see 'outrigger --help'", flag.unexpected()).into());
        }
    };
    let hint = |error: String| UsageError {
        message: format!("{error}; see 'outrigger {} --help'", command.name),
        outcome: command.usage_outcome,
    };
    parse_flags(&mut parser, command, program).map_err(hint)
}

/// `help`, or `help COMMAND`.
fn help_on(parser: &mut lexopt::Parser) -> String {
    let command = match parser.next() {
        Ok(Some(Arg::Value(name))) if name == "token" => return help::token(),
        Ok(Some(Arg::Value(name))) => name.to_str().and_then(Command::find),
        _ => None,
    };
    command.map_or_else(help::overview, help::of)
}

/// The arguments of one of the demo's programs. It takes none.
fn example(parser: &mut lexopt::Parser, program: fn() -> io::Result<()>) -> Result<Action, String> {
    match parser.next().map_err(|error| error.to_string())? {
        None => Ok(Action::Example(program)),
        Some(Arg::Long("help") | Arg::Short('h')) => Ok(Action::Print(help::examples())),
        Some(arg) => Err(format!("{}; see 'outrigger help'", arg.unexpected())),
    }
}

fn parse_flags(
    parser: &mut lexopt::Parser,
    command: &'static Command,
    program: Option<Vec<OsString>>,
) -> Result<Action, String> {
    let mut settings = Settings::new();
    let mut given: Vec<(&'static Flag, String)> = Vec::new();
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        let name = match arg {
            Arg::Long("help") | Arg::Short('h') => return Ok(Action::Print(help::of(command))),
            Arg::Long(name) => name.to_owned(),
            Arg::Value(value) if command.operand.is_some() && settings.operand.is_none() => {
                let value = value.into_string();
                let wrong = |value: OsString| format!("'{}' is not UTF-8", value.to_string_lossy());
                settings.operand = Some(value.map_err(wrong)?);
                continue;
            }
            Arg::Value(value) => {
                let value = value.to_string_lossy();
                return Err(match command.program {
                    ProgramArg::Required | ProgramArg::Optional => {
                        format!("unexpected argument '{value}'; put the program after '--'")
                    }
                    ProgramArg::None => format!("unexpected argument '{value}'"),
                });
            }
            Arg::Short(_) => return Err(arg.unexpected().to_string()),
        };
        let flag = Flag::find(&name, command).ok_or_else(|| unknown_flag(&name))?;
        let value = match flag.takes {
            Takes::Nothing => String::new(),
            Takes::One(_) | Takes::Many(_) => {
                let value = parser.value().map_err(|error| error.to_string())?;
                value
                    .into_string()
                    .map_err(|_| format!("--{name}: the value is not UTF-8"))?
            }
        };
        given.push((flag, value));
    }
    // The file is applied first and without the flags that are given, so that a flag replaces the file's list.
    if let Some((_, path)) = given.iter().rfind(|(flag, _)| flag.name == "config") {
        let file = ConfigFile::read(path.as_ref())?;
        file.apply(command, &mut settings, |name| {
            given.iter().any(|(flag, _)| flag.name == name)
        })?;
    }
    for (flag, value) in &given {
        let wrong = |error| format!("--{}: {error}", flag.name);
        flag.apply(&mut settings, value).map_err(wrong)?;
    }
    if let Some(program) = program {
        settings.program = program_after_dashes(command, program)?;
    }
    settings.complete(command)?;
    Ok(Action::Run(command, Box::new(settings)))
}

/// The error for a flag that this build does not have.
fn unknown_flag(name: &str) -> String {
    match values::missing_feature(name) {
        Some(why) => format!("--{name}: {why}"),
        None => format!("unknown option '--{name}'"),
    }
}

/// The program and its arguments after `--`.
fn program_after_dashes(command: &Command, program: Vec<OsString>) -> Result<Vec<String>, String> {
    let Some(first) = program.first() else {
        return Err(match command.program {
            ProgramArg::Required | ProgramArg::Optional => "missing program after '--'".to_owned(),
            ProgramArg::None => "unexpected argument '--'".to_owned(),
        });
    };
    if command.program == ProgramArg::None {
        let first = first.to_string_lossy();
        return Err(format!("unexpected argument '{first}' after '--'"));
    }
    let words: Result<Vec<_>, _> = program.into_iter().map(OsString::into_string).collect();
    words.map_err(|word| format!("'{}' is not UTF-8", word.to_string_lossy()))
}
