//! What the command line requests.

use std::io;
use std::path::PathBuf;

use super::command::Command;
use super::settings::Settings;
use crate::Scope;

/// The action that the command line requests.
#[derive(Debug)]
pub(crate) enum Action {
    /// Print this and exit.
    Print(String),
    /// Run one of the programs that the demo uses.
    Example(fn() -> io::Result<()>),
    /// List or edit the tokens of a file.
    Token(TokenCommand),
    /// Run a server or a client.
    Run(&'static Command, Box<Settings>),
}

/// The arguments of `outrigger token`.
#[derive(Debug)]
pub(crate) struct TokenCommand {
    pub(super) operation: TokenOperation,
    pub(super) file: PathBuf,
}

#[derive(Debug)]
pub(super) enum TokenOperation {
    Add(String, Scope),
    List,
    Revoke(String),
}
