//! The parts of `outrigger demo` that are not services of the library: what it prints, and example programs for the services,
//! each of which is a command of its own, so that the demo needs nothing installed.

mod agent;
mod app;
#[cfg(feature = "mcp")]
mod mcp;

use std::fmt::Write;
use std::io;

use crate::{ListenAddress, Token};

/// A program that uses its standard streams and takes no arguments.
#[derive(Debug)]
pub(crate) struct Example {
    pub(crate) name: &'static str,
    /// What it is, in one line of the overview.
    pub(crate) summary: &'static str,
    pub(crate) about: &'static str,
    /// The command that serves it.
    pub(crate) command: &'static str,
    pub(crate) run: fn() -> io::Result<()>,
}

pub(crate) const EXAMPLES: &[Example] = &[
    Example {
        name: "example-agent",
        summary: "an agent of the Agent Client Protocol without a model",
        about: "an agent of the Agent Client Protocol: keeps sessions, streams its answers, asks for permission, can be cancelled. It uses no model",
        command: "agent",
        run: agent::run,
    },
    Example {
        name: "example-app",
        summary: "a chat room",
        about: "a chat room",
        command: "app",
        run: app::run,
    },
    #[cfg(feature = "mcp")]
    Example {
        name: "example-mcp",
        summary: "an MCP server with three tools",
        about: "a server of the Model Context Protocol with three tools",
        command: "mcp",
        run: mcp::run,
    },
];

impl Example {
    /// The program of this name.
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        EXAMPLES.iter().find(|example| example.name == name)
    }
}

/// What the demo prints.
#[derive(Debug)]
pub(crate) struct Demo<'a> {
    /// A command that starts this program.
    pub(crate) program: String,
    pub(crate) address: &'a ListenAddress,
    /// The beginning of all paths.
    pub(crate) base_path: &'a str,
    /// The token, if it may be printed.
    pub(crate) token: Option<&'a Token>,
    pub(crate) needs_token: bool,
    /// The fingerprint of the certificate, if there is one.
    pub(crate) fingerprint: Option<String>,
}

impl Demo<'_> {
    /// The address of the console, and a command to paste for each service.
    pub(crate) fn instructions(&self) -> String {
        let mut text = format!("Open the console in a browser:\n\n  {}\n", self.page("/"));
        if cfg!(feature = "web") {
            let page = self.page("/terminal");
            let _ = write!(text, "\nOr a terminal:\n\n  {page}\n");
        }
        text.push_str("\nOr paste a command into another shell:\n");
        for (what, command) in self.commands() {
            let _ = write!(text, "\n  # {what}\n  {command}\n");
        }
        text.push('\n');
        text
    }

    /// Each service with a command that uses it.
    fn commands(&self) -> Vec<(&'static str, String)> {
        let mut commands = Vec::new();
        // A build without the clients prints what other programs can do.
        if cfg!(feature = "client") {
            commands.extend([
                (
                    "terminal: a shell on a terminal of its own; ~. leaves",
                    self.client("attach", "/terminal"),
                ),
                (
                    "agent: one agent of the Agent Client Protocol, shared by all clients",
                    format!(
                        "echo '{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{{\"protocolVersion\":1}}}}' | {}",
                        self.client("connect", "/acp")
                    ),
                ),
                (
                    "app: a chat room, a program that reads and writes lines of JSON",
                    self.client("connect --no-json", "/app"),
                ),
                (
                    "echo: sends every message back",
                    self.client("connect --no-json", "/echo"),
                ),
            ]);
        }
        commands.push((
            "processes: run one and get its output",
            self.curl("", r#"{"command":"uname","args":["-a"]}"#, "/process/exec"),
        ));
        #[cfg(feature = "mcp")]
        commands.push((
            "mcp: a server of the Model Context Protocol, over Streamable HTTP",
            self.curl(
                "-H 'Accept: application/json, text/event-stream' ",
                r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"curl","version":"1"}}}"#,
                "/mcp",
            ),
        ));
        commands
    }

    /// The token, or a word in place of one that the user chose. `None` if clients need none.
    fn token(&self) -> Option<&str> {
        self.needs_token
            .then(|| self.token.map_or("TOKEN", Token::reveal))
    }

    fn url(&self, path: &str) -> String {
        self.address.url(&format!("{}{path}", self.base_path))
    }

    fn http(&self, path: &str) -> String {
        self.url(path).replacen("ws", "http", 1)
    }

    /// The address of a page. Browsers do not send what follows `#`.
    fn page(&self, path: &str) -> String {
        let fragment = self.token().map(|token| format!("#token={token}"));
        self.http(path) + &fragment.unwrap_or_default()
    }

    fn client(&self, command: &str, path: &str) -> String {
        let query = self.token().map(|token| format!("?token={token}"));
        let url = self.url(&format!("{path}{}", query.unwrap_or_default()));
        let fingerprint = self.fingerprint.as_ref().filter(|_| self.address.is_tls());
        let trust = fingerprint.map_or(String::new(), |one| format!("--fingerprint {one} "));
        format!("{} {command} {trust}'{url}'", self.program)
    }

    fn curl(&self, fields: &str, body: &str, path: &str) -> String {
        let token = self.token();
        let token = token.map(|token| format!("-H 'Authorization: Bearer {token}' "));
        let token = token.unwrap_or_default();
        // curl cannot check a fingerprint.
        let trust = match (self.address.is_tls(), &self.fingerprint) {
            (true, Some(_)) => "--insecure ",
            _ => "",
        };
        let url = self.http(path);
        format!("curl -sS {trust}{token}{fields}--json '{body}' '{url}'; echo")
    }
}
