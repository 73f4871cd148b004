//! `pipe`: programs that exchange messages with clients over their standard streams.
//!
//! With `outrigger pipe`, a message is a line of the program. With `outrigger app`, the program reads events and writes
//! commands. `outrigger echo` needs no program: it sends every message back.

use super::super::command::{Command, ProgramArg, Serves};
use super::super::flag::{Flag, turn_on};
use super::super::flags::shared::{FRAMING, ON_FAILURE, RESTART_LIMIT, SUBPROTOCOL};
use crate::service::{App, AppConfig, Echo, PipeConfig, PipePerClient, PipeShared};

pub(super) static PIPE: Command = Command {
    name: "pipe",
    usage: "[OPTIONS] -- PROGRAM [ARGS...]",
    summary: "turn messages into PROGRAM's input, and its output into messages",
    brief: Some(
        "\
Runs PROGRAM for each client. A message becomes a line of its input, and a line of its output
becomes a message.",
    ),
    about: "\
Runs PROGRAM for each client. A message of the client becomes a line on PROGRAM's standard input,
and a line on its standard output becomes a message. Its standard error goes to the log. Its
environment has the variables of CGI, such as REMOTE_ADDR, PATH_INFO, QUERY_STRING and
HTTP_USER_AGENT.

With --shared, one PROGRAM serves all clients: each line that it writes goes to every client, and a
line of any client goes to it.

With --framing raw or content-length, messages are bytes or have headers instead of line feeds.

When a client disconnects, PROGRAM reads the end of its input, and gets TERM two seconds later and
KILL five seconds after that. When PROGRAM exits, its client gets the rest of the output and CLOSE
1000 for exit code 0, or CLOSE 1011 with the reason.
",
    examples: &[
        (
            "number the lines that a client sends",
            "outrigger pipe -- cat -n",
        ),
        (
            "send each line of a log to all clients",
            "outrigger pipe --shared -- tail -F app.log",
        ),
        #[cfg(feature = "mcp")]
        (
            "give each client a server of the Model Context Protocol",
            "outrigger pipe --path /mcp --subprotocol mcp -- outrigger example-mcp",
        ),
    ],
    title: "Pipe options",
    flags: PIPE_FLAGS,
    program: ProgramArg::Required,
    default_path: "/...",
    serves_subtree: true,
    serves: Serves::One(|settings, params| {
        let config = PipeConfig {
            endpoint: params.endpoint,
            command: settings.program.clone(),
            ..settings.pipe.clone()
        };
        Ok(if settings.has("shared") {
            Box::new(PipeShared::new(config))
        } else {
            Box::new(PipePerClient::new(config))
        })
    }),
    ..Command::BASE
};

const PIPE_FLAGS: &[Flag] = &[
    Flag {
        name: "shared",
        help: "run one program for all clients, from the start of the server",
        brief: Some("one program for all clients"),
        ..Flag::BASE
    },
    Flag {
        help: "lines: each line is a message; raw: bytes, as binary messages; content-length: each message follows a header with its length, as in the protocols of language servers (LSP) and debug adapters (DAP)",
        ..FRAMING
    },
    SUBPROTOCOL,
    Flag {
        help: "with --shared: how many times the program may exit within TIME and be restarted; the server fails when it exits more often",
        requires: Some("shared"),
        ..RESTART_LIMIT
    },
    Flag {
        help: "with --shared, when the program cannot be started or keeps exiting: 'exit' ends the server; 'retry' rejects clients with 503 and starts the program again, at least every 10 s",
        requires: Some("shared"),
        ..ON_FAILURE
    },
];

pub(super) static APP: Command = Command {
    name: "app",
    usage: "[OPTIONS] [-- PROGRAM [ARGS...]]",
    summary: "run PROGRAM as a server that reads and writes JSON lines",
    brief: Some(
        "\
Runs PROGRAM as the server: it reads events and writes commands as lines of JSON. Without PROGRAM,
outrigger exchanges them with the process that started it.",
    ),
    about: "\
Runs PROGRAM as the server: it reads events as lines of JSON on its standard input and writes
commands as lines of JSON to its standard output. Its standard error goes to the log. Without
PROGRAM, outrigger writes events to its own standard output and reads commands from its own standard
input, and the end of input is a clean stop.

Events:    {\"event\":\"listening\",\"url\",\"port\"}
           {\"event\":\"connect\",\"client\",\"path\",\"query\",\"remote\",\"origin\",\"protocol\",\"headers\"}
           {\"event\":\"message\",\"client\",\"text\"} or \"binary\" in base64
           {\"event\":\"drain\",\"client\"}
           {\"event\":\"disconnect\",\"client\",\"code\",\"reason\",\"cause\"}
           {\"event\":\"status\",\"id\",...}    {\"event\":\"error\",\"message\",\"line\"}
Commands:  {\"cmd\":\"send\",\"client\",\"text\"} or \"binary\" in base64
           {\"cmd\":\"broadcast\",\"text\"|\"binary\",\"except\":[...],\"path\"}
           {\"cmd\":\"close\",\"client\",\"code\",\"reason\"}
           {\"cmd\":\"status\",\"id\"}    {\"cmd\":\"shutdown\"}
",
    examples: &[
        (
            "run the example chat room",
            "outrigger app -- outrigger example-app",
        ),
        (
            "restart it when it fails, and serve one path",
            "outrigger app --restart --path /chat -- outrigger example-app",
        ),
    ],
    title: "App options",
    flags: APP_FLAGS,
    program: ProgramArg::Optional,
    default_path: "/...",
    serves: Serves::One(|settings, params| {
        let config = AppConfig {
            endpoint: params.endpoint,
            command: settings.program.clone(),
            announced_token: params.generated_token.cloned(),
            ..settings.app.clone()
        };
        Ok(Box::new(App::new(config)))
    }),
    ..Command::BASE
};

const APP_FLAGS: &[Flag] = &[
    Flag {
        name: "restart",
        help: "start the program again when it exits, after closing all clients with 1011. More than 5 exits in 60s are a failure",
        brief: Some("restart the program when it fails"),
        set: |settings, _| turn_on(&mut settings.app.restart),
        ..Flag::BASE
    },
    Flag {
        help: "when the program fails: 'exit' ends the server; 'retry' closes all clients with 1011, rejects others with 503, and starts the program again, at least every 10 s",
        ..ON_FAILURE
    },
    SUBPROTOCOL,
];

pub(super) static ECHO: Command = Command {
    name: "echo",
    summary: "send every message back",
    brief: Some(
        "\
Sends every message back to the client that sent it. Use it to test clients, proxies and networks.",
    ),
    about: "\
Sends every message back to the client that sent it, to test clients, proxies and networks.
",
    examples: &[
        ("echo on another port", "outrigger echo -p 8080"),
        (
            "echo for clients on the network that have a token",
            "outrigger echo --listen 0.0.0.0:8080 --token-file tokens",
        ),
    ],
    runs_programs: false,
    serves: Serves::One(|_, params| Ok(Box::new(Echo::new(params.endpoint)))),
    ..Command::BASE
};
