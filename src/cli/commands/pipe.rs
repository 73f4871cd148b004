//! `outrigger pipe`: the standard input and output of a program are the messages of clients.

use super::super::flags::Flag;
use super::super::flags::shared::{FRAMING, ON_FAILURE, RESTART_LIMIT};
use super::{Command, ProgramArg, Serves};
use crate::service::{PipeConfig, PipePerClient, PipeShared};

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
    ],
    title: "Pipe options",
    flags: FLAGS,
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

const FLAGS: &[Flag] = &[
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
