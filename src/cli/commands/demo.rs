//! `outrigger demo`: runs several services with their defaults and prints links to try.

use super::super::lookup;
use super::super::settings::Settings;
use super::{Command, Serves};

pub(super) static DEMO: Command = Command {
    name: "demo",
    summary: "run several services and print links to try",
    brief: Some(
        "\
Serves several commands at once, with a console for browsers. It prints links and commands to try.",
    ),
    about: "\
Serves several commands at once: echo at /echo, your shell at /terminal, processes at /process, a
chat room at /app, an agent at /acp and, with the feature mcp, an MCP server at /mcp. The console at
/ is a page for browsers that shows and controls them. The chat room, the agent and the MCP server
are part of outrigger: 'outrigger example-app', 'outrigger example-agent' and
'outrigger example-mcp'.

The demo prints a line to paste for each. Every holder of the token in these lines can use your
shell.
",
    examples: &[
        ("start the demo and try what it prints", "outrigger demo"),
        ("use another port", "outrigger demo -p 8080"),
    ],
    has_console: true,
    serves: Serves::Demo,
    ..Command::BASE
};

/// The routes of the demo. They run this executable and the user's shell.
pub(in crate::cli) fn routes() -> Result<Vec<(&'static Command, Settings)>, String> {
    let own_program = std::env::current_exe()
        .map_err(|error| format!("cannot determine the path of this program: {error}"))?
        .into_os_string()
        .into_string()
        .map_err(|_| "the path of this program is not UTF-8")?;
    let shell = std::env::var("SHELL").ok();
    let shell = shell.filter(|shell| lookup::find(shell, None, &[]).is_ok());
    let shell = shell.unwrap_or_else(|| "/bin/sh".to_owned());
    let example = |name: &str| vec![own_program.clone(), name.to_owned()];
    let routes: Vec<(&'static Command, &str, Vec<String>)> = vec![
        (&super::echo::ECHO, "/echo", Vec::new()),
        (&super::terminal::TERMINAL, "/terminal", vec![shell]),
        (&super::processes::PROCESSES, "/process", Vec::new()),
        (&super::app::APP, "/app", example("example-app")),
        (&super::agent::AGENT, "/acp", example("example-agent")),
        #[cfg(feature = "mcp")]
        (&super::mcp::MCP, "/mcp", example("example-mcp")),
    ];
    let route = |(command, path, program): (&'static Command, &str, Vec<String>)| {
        let mut settings = Settings::new();
        settings.path = path.parse().ok();
        settings.program = program;
        (command, settings)
    };
    Ok(routes.into_iter().map(route).collect())
}
