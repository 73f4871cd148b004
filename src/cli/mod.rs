//! The `outrigger` program: reads the command line and the configuration file into settings, and runs a server or a client.
//!
//! Commands are defined in `commands`, and flags in `flags`, each in one place: the parser, the help, the manual page, the
//! completions of shells, the configuration file and the tests all read these tables.

mod action;
mod announce;
#[cfg(feature = "client")]
mod client;
#[cfg(feature = "client")]
mod client_flags;
mod command;
mod commands;
mod completions;
mod config_file;
mod defaults;
mod flag;
mod flags;
mod help;
mod logging;
mod manual;
#[cfg(feature = "mcp")]
mod mcp_servers;
mod outcome;
mod output;
mod parser;
mod passed_on;
mod programs;
mod run;
mod service_manager;
mod settings;
mod suggestion;
#[cfg(feature = "tls")]
mod tls;
mod values;

use std::process::ExitCode;

use self::action::Action;
use self::outcome::{Outcome, fail};
use self::output::print;
use self::parser::parse;
use crate::sys::unblock_signals_but_usr2;
use crate::upgrade::Passed;

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    // A program that replaces another one gets the signals of the time in between when it can handle them.
    if !Passed::is_coming()
        && let Err(error) = unblock_signals_but_usr2()
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
