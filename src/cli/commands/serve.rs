//! The commands that serve several others behind one listener: `outrigger serve` takes them from a file, and `outrigger demo`
//! serves most of them with their defaults and prints links to try.

use super::super::command::{Command, Serves};
use super::super::flag::Flag;
#[cfg(feature = "mcp")]
use super::super::flag::{Takes, put, samples};
use super::super::programs;
use super::super::settings::Settings;

pub(super) static SERVE: Command = Command {
    name: "serve",
    usage: "--config FILE.json|--mcp-servers FILE [OPTIONS]",
    summary: "serve several of these on one listener",
    brief: Some(
        "\
Serves several commands on one listener, each at a path set in the configuration file.
A browser finds a console at /.",
    ),
    about: "\
Serves several of the other commands behind one listener, each at a path. The file names them:

  {
    \"listen\": [\"127.0.0.1:7070\"],
    \"routes\": {
      \"/acp\": {\"agent\": {\"command\": [\"my-agent\"], \"grace\": \"1m\"}},
      \"/shell\": {\"terminal\": {\"command\": [\"bash\", \"-l\"]}},
      \"/process\": {\"processes\": {}},
      \"/live/...\": {\"app\": {\"command\": [\"./app\"]}}
    }
  }

The settings of a route are the options of its command by their names. The longest path that matches
a request wins, and '/...' at the end of a path includes all paths below it. If one of the programs
fails, only its route stops: new clients get 503 until the program works again.

With --mcp-servers, the file of an MCP client (Claude Desktop, Claude Code, Cursor, VS Code) has the
programs. Each is at the path of its name, and starts with its first request; the sessions of one
person share it.

In a browser, / is a console that shows the activity of the routes, unless / is itself a route.
",
    examples: &[
        (
            "serve the routes of a file",
            "outrigger serve --config outrigger.json",
        ),
        (
            "serve the MCP servers of a client's file",
            "outrigger serve --mcp-servers mcp.json",
        ),
        (
            "check the file and look up its programs",
            "outrigger serve --config outrigger.json --check",
        ),
    ],
    title: "Route options",
    flags: FLAGS,
    has_console: true,
    serves: Serves::Routes,
    ..Command::BASE
};

const FLAGS: &[Flag] = &[
    #[cfg(feature = "mcp")]
    Flag {
        name: "mcp-servers",
        takes: Takes::One("FILE"),
        help: "serve the MCP servers of this file, which a client has written: each at /NAME, started with its first request, and shared by the sessions of one principal. Comments are allowed. Entries with a URL are skipped",
        brief: Some("serve the MCP servers of a client's file"),
        set: |settings, value| put(&mut settings.mcp_servers, Ok(Some(value.to_owned()))),
        accepts: samples(&["mcp.json"]),
        ..Flag::BASE
    },
];

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
pub(crate) fn routes() -> Result<Vec<(&'static Command, Settings)>, String> {
    let own_program = std::env::current_exe()
        .map_err(|error| format!("cannot determine the path of this program: {error}"))?
        .into_os_string()
        .into_string()
        .map_err(|_| "the path of this program is not UTF-8")?;
    let shell = std::env::var("SHELL").ok();
    let shell = shell.filter(|shell| programs::find(shell, None, &[]).is_ok());
    let shell = shell.unwrap_or_else(|| "/bin/sh".to_owned());
    let example = |name: &str| vec![own_program.clone(), name.to_owned()];
    let routes: Vec<(&'static Command, &str, Vec<String>)> = vec![
        (&super::pipe::ECHO, "/echo", Vec::new()),
        (&super::processes::TERMINAL, "/terminal", vec![shell]),
        (&super::processes::PROCESSES, "/process", Vec::new()),
        (&super::pipe::APP, "/app", example("example-app")),
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
