//! The parts of `outrigger demo` that are not services of the library: what it prints, and example programs for the services,
//! so that the demo needs nothing installed.

mod agent;
mod app;
#[cfg(feature = "mcp")]
mod mcp;

use std::fmt::Write;

use crate::{ListenAddress, Token};
pub(crate) use agent::run as run_agent;
pub(crate) use app::run as run_app;
#[cfg(feature = "mcp")]
pub(crate) use mcp::run as run_mcp;

/// Describes what to try, with a command to paste for each service. `program` is the name with which this program was started,
/// `token` is the token if it may be printed, and `needs_token` says whether clients need one. `fingerprint` is that of the
/// certificate, if there is one.
pub(crate) fn instructions(
    program: &str,
    addresses: &[ListenAddress],
    token: Option<&Token>,
    needs_token: bool,
    fingerprint: Option<&str>,
) -> String {
    let Some(address) = addresses.iter().find(|address| address.tcp().is_some()) else {
        return "\nThe page and the example commands need a TCP port: --listen HOST:PORT.\n"
            .to_owned();
    };
    // A token that the user chose is not printed.
    let token = token.map_or("TOKEN", Token::reveal);
    let ws = |path: &str| {
        let query = if needs_token {
            format!("?token={token}")
        } else {
            String::new()
        };
        address.url(&format!("{path}{query}"))
    };
    let http = |path: &str| address.url(path).replacen("ws", "http", 1);
    let fingerprint = fingerprint.filter(|_| address.is_tls());
    let trust = fingerprint.map_or(String::new(), |one| format!("--fingerprint {one} "));
    let client = |command: &str, path: &str| format!("{program} {command} {trust}'{}'", ws(path));
    let mut text = String::new();
    let mut line = |what: &str, how: &str| {
        // A build without the clients prints what other programs can do.
        if cfg!(feature = "client") || !how.contains(program) {
            let _ = writeln!(text, "\n  {what}\n    {how}");
        }
    };
    let page = |path: &str| {
        let fragment = if needs_token {
            format!("#token={token}")
        } else {
            String::new()
        };
        http(path) + &fragment
    };
    line("the console: a page that shows the services", &page("/"));
    if cfg!(feature = "web") {
        line("a terminal in the browser", &page("/terminal"));
    }
    line(
        "echo: sends every message back",
        &client("connect --no-json", "/echo"),
    );
    line(
        "terminal: a shell on a terminal of its own; ~. leaves",
        &client("attach", "/terminal"),
    );
    let header = if needs_token {
        format!("-H 'Authorization: Bearer {token}' ")
    } else {
        String::new()
    };
    let authority = if address.is_tls() {
        "--cacert FILE "
    } else {
        ""
    };
    line(
        "processes: run one and get its output",
        &format!(
            "curl -sS {authority}{header}--json '{{\"command\":\"uname\",\"args\":[\"-a\"]}}' {}",
            http("/process/exec")
        ),
    );
    line(
        "app: a chat room, a program that reads and writes lines of JSON",
        &client("connect --no-json", "/app"),
    );
    line(
        "agent: one agent of the Agent Client Protocol, shared by all clients",
        &format!(
            "echo '{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{{\"protocolVersion\":1}}}}' | {}",
            client("connect", "/acp")
        ),
    );
    #[cfg(feature = "mcp")]
    line(
        "mcp: a server of the Model Context Protocol, over Streamable HTTP",
        &format!(
            "curl -sS {authority}{header}-H 'Accept: application/json, text/event-stream' --json '{}' {}",
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"curl","version":"1"}}}"#,
            http("/mcp")
        ),
    );
    text.push_str("\n^C ends the demo.\n");
    text
}
