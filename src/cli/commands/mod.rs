//! The table of commands, each in a file with its flags and the service that it runs.

mod agent;
#[cfg(feature = "client")]
mod connect;
mod help;
#[cfg(feature = "client")]
mod listing;
#[cfg(feature = "mcp")]
mod mcp;
mod pipe;
mod processes;
mod serve;
pub(super) mod token;
#[cfg(feature = "client")]
mod upgrade;

use super::command::{Command, Serves};

impl Command {
    /// All commands, in the order of the help.
    pub(super) const ALL: &'static [&'static Self] = &[
        &agent::AGENT,
        &processes::TERMINAL,
        &processes::PROCESSES,
        &pipe::APP,
        #[cfg(feature = "mcp")]
        &MCP,
        &pipe::PIPE,
        &pipe::ECHO,
        &serve::SERVE,
        &serve::DEMO,
        #[cfg(feature = "client")]
        &connect::CONNECT,
        #[cfg(feature = "client")]
        &connect::ATTACH,
        #[cfg(feature = "client")]
        &upgrade::UPGRADE,
        &token::TOKEN,
        &help::COMPLETIONS,
        &help::MAN,
        &help::HELP,
    ];

    /// The command of this name.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        let mut commands = Self::ALL.iter().copied();
        commands.find(|command| command.name == name)
    }

    /// The commands that a route can name.
    pub(super) fn of_routes() -> impl Iterator<Item = &'static Self> {
        let commands = Self::ALL.iter().copied();
        commands.filter(|command| matches!(command.serves, Serves::One(_)))
    }
}

#[cfg(feature = "mcp")]
pub(super) use mcp::MCP;
pub(super) use serve::routes as demo_routes;
