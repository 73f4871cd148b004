//! The `outrigger` program: reads the command line and the configuration file into settings, and runs a server or a client.
//!
//! Commands are defined in `commands`, and flags in `flags`, each in one place: the parser, the help, the manual page, the
//! completions of shells, the configuration file and the tests all read these tables.

mod announce;
#[cfg(feature = "client")]
mod client;
mod commands;
mod completions;
mod config_file;
mod defaults;
mod flags;
mod help;
mod logging;
mod manual;
#[cfg(feature = "mcp")]
mod mcp_servers;
mod output;
mod parser;
mod programs;
mod run;
mod service_manager;
mod settings;
#[cfg(feature = "tls")]
mod tls;
mod values;

use std::io::{self, Write};
use std::process::ExitCode;

use self::commands::Command;
use self::commands::token::TokenCommand;
use self::output::Colors;
use self::parser::parse;
use self::settings::Settings;
use crate::Passed;
use crate::sys::unblock_signals;

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
    // A program that replaces another one gets the signals of the time in between when it can handle them.
    if !Passed::is_coming()
        && let Err(error) = unblock_signals()
    {
        return fail(
            &format!("cannot unblock signals: {error}"),
            Outcome::Failure,
        )
        .into();
    }
    let outcome = match parse(std::env::args_os()) {
        Ok(Action::Print(text)) => {
            print(&text);
            Outcome::Clean
        }
        Ok(Action::Example(example)) => match example() {
            Ok(()) => Outcome::Clean,
            Err(error) => fail(&error.to_string(), Outcome::Failure),
        },
        Ok(Action::Token(command)) => commands::token::run(&command),
        Ok(Action::Run(command, settings)) => run::run(command, *settings),
        Err(error) => fail(&error.message, error.outcome),
    };
    logging::finish();
    outcome.into()
}

/// Writes an error message to standard error.
fn fail(error: &str, outcome: Outcome) -> Outcome {
    let name = Colors::stderr().error("outrigger:");
    logging::write_line(&format!("{name} {error}\n"));
    outcome
}

/// Prints to standard output. A reader that has gone is not an error.
fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    drop(written.and_then(|()| stdout.flush()));
}
