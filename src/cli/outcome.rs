//! How the program ends: its exit code, and its errors.

use std::error::Error;
use std::process::ExitCode;

use super::logging;
use super::output::Colors;
use crate::text::printable;

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
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

/// A wrong command line: one line that says what is wrong and what to do, and how the program ends.
#[derive(Debug)]
pub(super) struct UsageError {
    pub(super) message: String,
    pub(super) outcome: Outcome,
}

impl From<String> for UsageError {
    fn from(message: String) -> Self {
        let outcome = Outcome::Usage;
        Self { message, outcome }
    }
}

/// An error of the server, or why its settings cannot be used.
pub(super) type Failure = Box<dyn Error>;

/// Writes an error message to standard error. It may quote a server, or a program.
pub(super) fn fail(error: &str, outcome: Outcome) -> Outcome {
    let name = Colors::stderr().error("outrigger:");
    let error = printable(error.as_bytes());
    logging::write_line(&format!("{name} {error}\n"));
    outcome
}

/// An error with its causes, in one line.
pub(super) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
