//! The programs that `outrigger demo` runs, each of which is a command of its own.

use std::io;

use crate::demo;

/// A program that uses its standard streams and takes no arguments.
#[derive(Debug)]
pub(super) struct Example {
    pub(super) name: &'static str,
    /// What it is, in one line of the overview.
    pub(super) summary: &'static str,
    pub(super) about: &'static str,
    /// The command that serves it.
    pub(super) command: &'static str,
    pub(super) run: fn() -> io::Result<()>,
}

pub(super) const ALL: &[Example] = &[
    Example {
        name: "example-agent",
        summary: "an agent of the Agent Client Protocol without a model",
        about: "an agent of the Agent Client Protocol: keeps sessions, streams its answers, asks for permission, can be cancelled. It uses no model",
        command: "agent",
        run: demo::run_agent,
    },
    Example {
        name: "example-app",
        summary: "a chat room",
        about: "a chat room",
        command: "app",
        run: demo::run_app,
    },
    #[cfg(feature = "mcp")]
    Example {
        name: "example-mcp",
        summary: "an MCP server with three tools",
        about: "a server of the Model Context Protocol with three tools",
        command: "mcp",
        run: demo::run_mcp,
    },
];

/// The program of this name.
pub(super) fn find(name: &str) -> Option<&'static Example> {
    ALL.iter().find(|example| example.name == name)
}
