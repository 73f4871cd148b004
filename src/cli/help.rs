//! `--help`, made from the table of options.

use std::fmt::Write;

use super::options::Option;
use super::{Command, options_of};

const WIDTH: usize = 100;
const INDENT: usize = 34;

/// The help of the program.
pub(super) fn overview() -> String {
    "\
Outrigger puts programs on a WebSocket.

Usage:
  outrigger agent     [OPTIONS] -- PROGRAM [ARGS...]    a stdio JSON-RPC agent, shared by many clients
  outrigger terminal  [OPTIONS] -- PROGRAM [ARGS...]    each client gets PROGRAM on a terminal of its own
  outrigger processes [OPTIONS]                         spawn, watch, signal and attach to processes
  outrigger app       [OPTIONS] [-- PROGRAM [ARGS...]]  PROGRAM is the server: events in, commands out
  outrigger echo      [OPTIONS]                         every message comes back
  outrigger serve     --config FILE.json [OPTIONS]      several of these behind one listener
  outrigger demo      [OPTIONS]                         all of them, on defaults, with links to try

  outrigger COMMAND --help    the options of a command
  outrigger --version         the version

It prints 'outrigger: listening on ws://...' once clients can connect. Exit codes: 0 stopped as
asked, 1 failed while running, 2 wrong usage.
"
    .to_owned()
}

/// The help of a command.
pub(super) fn of(command: Command) -> String {
    let mut text = match command {
        Command::Agent => "\
Puts a JSON-RPC agent that speaks lines on its standard streams on a WebSocket, for many clients at
once: an agent of the Agent Client Protocol, or with --protocol jsonrpc any other. Every answer goes
to the client that asked, under the id it asked with; every session belongs to one connection.

With --mode per-client each connection has a PROGRAM of its own, and messages pass through as they
are: for MCP servers, '--mode per-client --protocol jsonrpc'.

Usage: outrigger agent [OPTIONS] -- PROGRAM [ARGS...]

Agent options:
"
        .to_owned(),
        Command::Terminal => "\
Gives each client PROGRAM on a terminal of its own, which ends with the connection: HUP, TERM a
second later, KILL after five. Binary messages are what is typed and what is shown; text is control:

To the terminal:    {\"type\":\"resize\",\"rows\":24,\"cols\":80}
From the terminal:  {\"type\":\"exit\",\"exitCode\":0} after the last byte of output, with \"signal\" if it
                    was killed; {\"type\":\"error\",\"message\"} if it cannot be started

The first size comes with the request: /terminal?rows=24&cols=80.

Usage: outrigger terminal [OPTIONS] -- PROGRAM [ARGS...]

Terminal options:
"
        .to_owned(),
        Command::Processes => "\
Starts processes, watches and signals them, and attaches clients to their terminals. A process
outlives its client, and its output is read and kept while nobody is attached.

  POST /process/spawn         {\"command\",\"args\",\"cwd\",\"env\",\"as_user\",\"as_root\",\"allocate_tty\",
                              \"rows\",\"cols\",\"timeout_sec\"}
  POST /process/exec          the same; the answer comes with the end and has all the output
  GET  /process               all processes
  GET  /process/ID/status     its state, exit code, use of processor and memory
  POST /process/ID/stdin      {\"data_b64\"}
  POST /process/ID/kill       {\"signal\":\"TERM\"} or KILL, INT, HUP, to its whole process group
  POST /process/ID/resize     {\"rows\",\"cols\"}
  GET  /process/ID/stdout/stream   its output as server-sent events; ?since=OFFSET
  GET  /process/ID/attach     its terminal as a WebSocket; ?since=OFFSET, ?mode=viewer, ?takeover=1

Usage: outrigger processes [OPTIONS]

Process options:
"
        .to_owned(),
        Command::Echo => "\
Sends every message back to the client that it came from: to try clients, proxies and networks.

Usage: outrigger echo [OPTIONS]
"
        .to_owned(),
        Command::Serve => "\
Serves several of the others behind one listener, each at a path. The file says which:

  {
    \"listen\": [\"127.0.0.1:7070\"],
    \"routes\": {
      \"/acp\": {\"agent\": {\"command\": [\"my-agent\"], \"grace\": \"1m\"}},
      \"/shell\": {\"terminal\": {\"command\": [\"bash\", \"-l\"]}},
      \"/process\": {\"processes\": {}},
      \"/live/...\": {\"app\": {\"command\": [\"./app\"]}}
    }
  }

A route's settings are the options of its command by their names; the longest path that fits wins,
and '/...' at its end takes all paths below. If one of the programs fails for good, all end.

Usage: outrigger serve --config FILE.json [OPTIONS]
"
        .to_owned(),
        Command::Demo => "\
Serves all the others at once, to be tried: /echo, /terminal with your shell, /process, /app with a
chat room and /acp with an agent, and at / a page that shows what is connected, with a console.
The room and the agent need nothing installed: they are 'outrigger example-app' and 'outrigger
example-agent', which speak on their standard streams.

It prints a line to paste for each. The token in them lets whoever has it use your shell.

Usage: outrigger demo [OPTIONS]
"
        .to_owned(),
        Command::App => "\
Runs PROGRAM as the server: it reads events as lines of JSON on its standard input and writes
commands as lines of JSON to its standard output; its standard error goes into the log. Without
PROGRAM, events go to our own standard output, commands come from our own standard input, and the
end of input is a clean stop.

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

Usage: outrigger app [OPTIONS] [-- PROGRAM [ARGS...]]

App options:
"
        .to_owned(),
    };
    for option in options_of(command).filter(|option| !option.is_general()) {
        describe(option, &mut text);
    }
    text.push_str("\nServer options:\n");
    for option in options_of(command).filter(|option| option.is_general()) {
        describe(option, &mut text);
    }
    text.push_str("\nTimes are written 500ms, 20s or 5m, sizes 65536, 64KiB or 16MiB.");
    if !matches!(command, Command::Serve | Command::Demo) {
        let path = command.default_path();
        let _ = write!(text, " The path is '{path}' by default.");
    }
    text.push('\n');
    text
}

/// The help of the demo's programs.
pub(super) fn examples() -> String {
    "\
Programs that 'outrigger demo' has behind its services. They speak on their standard streams and
take no arguments.

  outrigger example-agent    an agent of the Agent Client Protocol: keeps sessions, streams its
                             answers, asks for permission, can be cancelled. It has no model
  outrigger example-app      a chat room for 'outrigger app'

  outrigger agent -- outrigger example-agent
  outrigger app -- outrigger example-app
"
    .to_owned()
}

/// One option, its help broken to the width of a screen.
fn describe(option: &Option, text: &mut String) {
    let name = match option.value {
        Some(value) => format!("  --{} {value}", option.name),
        None => format!("  --{}", option.name),
    };
    let mut line = format!("{name:INDENT$}");
    for word in option.help.split(' ') {
        if line.len() + word.len() > WIDTH {
            text.push_str(line.trim_end());
            text.push('\n');
            line = " ".repeat(INDENT);
        }
        line.push_str(word);
        line.push(' ');
    }
    text.push_str(line.trim_end());
    text.push('\n');
}
