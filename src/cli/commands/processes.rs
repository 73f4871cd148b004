//! Programs that clients start.
//!
//! `outrigger processes` is an HTTP API to start, watch and signal processes, and to attach to their terminals. With
//! `outrigger terminal`, each client gets a program on a terminal of its own.

use super::super::command::{Command, ProgramArg, Serves};
use super::super::flag::{Flag, Takes, put, samples, turn_on};
use super::super::flags::shared::{LINGER, PASS_ENV, RECORD, RECORD_INPUT, RECORD_LIMIT};
use super::super::values::{duration, number, size};
use crate::service::{
    Compat, Processes, ProcessesConfig, SessionCommand, Terminal, TerminalConfig,
};
use crate::web::RoutePage;

pub(super) static PROCESSES: Command = Command {
    name: "processes",
    summary: "spawn, watch, signal and attach to processes",
    brief: Some(
        "\
Starts processes over HTTP, and lets clients watch them and attach to their terminals. A process
outlives its clients.",
    ),
    about: "\
Starts processes, watches and signals them, and attaches clients to their terminals. A process
outlives its client. Its output is read and kept while no client is attached.

  POST /process/spawn         {\"command\",\"args\",\"cwd\",\"env\",\"as_user\",\"as_root\",\"allocate_tty\",
                              \"rows\",\"cols\",\"timeout_sec\",\"stdin_b64\",\"record\"}
  POST /process/exec          the same; answers when the process has exited, with all of its output
  GET  /process               all processes; ?usage=1 adds their use of processor and memory
  PUT  /process/by-name/NAME  starts a process as spawn does, unless one has the name; answers with
                              the process. ?restart=1 replaces one that has exited. The other
                              calls take by-name/NAME instead of ID
  DELETE /process/ID          forgets a process that has exited, with its name
  GET  /process/ID/status     its state, exit code, and use of processor and memory
  POST /process/ID/stdin      {\"data_b64\",\"eof\"}; \"eof\":true ends it
  POST /process/ID/kill       {\"signal\":\"TERM\"} or KILL, INT, HUP, to its whole process group
  POST /process/ID/resize     {\"rows\",\"cols\"}
  GET  /process/ID/stdout/stream   its output as server-sent events; ?since=OFFSET
  GET  /process/ID/attach     its terminal, or its standard streams, as a WebSocket; ?since=OFFSET,
                              ?mode=viewer, ?takeover=1, ?stderr=merge, ?replay=screen
  GET  /process/ID/screen     what its terminal shows; ?format=text or ansi, ?lines=N above it
  POST /process/ID/wait       {\"text\",\"regex\",\"idle_ms\",\"changed_since\",\"exit\",\"timeout_ms\"}:
                              answers when one of these is true, with the screen
  GET  /process/ID/recording  the recording of its terminal (--record), an asciicast
  POST /process/ID/input      {\"text\",\"keys\":[\"Enter\",\"C-c\"],\"paste\"}
  GET  /process/spec.json     this API in OpenAPI, without the WebSocket; spec.yaml as well

Attaching to /process/by-name/NAME starts the command of --session or --sessions if no process has
the name.

In a browser, / and /process are a console, and /process/ID/attach and /process/by-name/NAME are
terminals (feature web).
",
    examples: &[
        (
            "keep more output of each process, and keep it longer",
            "outrigger processes --scrollback 16MiB --retention 1h",
        ),
        (
            "attach to a shell by name, which the first client starts",
            "outrigger processes --sessions bash",
        ),
        (
            "replace the process API of kernel-images, for its clients",
            "outrigger processes --listen 0.0.0.0:10001 --compat kernel-images",
        ),
        (
            "let only your own programs connect, without a token",
            "outrigger processes --listen unix:/tmp/processes.sock",
        ),
    ],
    title: "Process options",
    flags: PROCESSES_FLAGS,
    default_path: "/process/...",
    serves_subtree: true,
    page: RoutePage::Processes,
    has_console: true,
    serves: Serves::One(|settings, params| {
        Ok(Box::new(Processes::new(ProcessesConfig {
            endpoint: params.endpoint,
            record: settings.recording(),
            ..settings.processes.clone()
        })))
    }),
    ..Command::BASE
};

const PROCESSES_FLAGS: &[Flag] = &[
    Flag {
        name: "scrollback",
        takes: Takes::One("BYTES"),
        default: Some("1MiB"),
        help: "output of a process to keep for clients that attach later",
        brief: Some("output to keep for each process"),
        set: |settings, value| {
            put(
                &mut settings.processes.scrollback,
                size(value, 4096..=1 << 40),
            )
        },
        accepts: samples(&["4KiB"]),
        rejects: &["4095", "lots"],
        ..Flag::BASE
    },
    Flag {
        name: "retention",
        takes: Takes::One("TIME"),
        default: Some("60s"),
        help: "how long an exited process stays visible",
        brief: Some("how long to keep an exited process"),
        set: |settings, value| {
            put(
                &mut settings.processes.retention,
                duration(value).map(Option::unwrap_or_default),
            )
        },
        ..Flag::BASE
    },
    Flag {
        name: "max-processes",
        takes: Takes::One("N"),
        default: Some("256"),
        help: "maximum processes that run at once; more get 503. If there are several principals, one may have half of them",
        brief: Some("maximum running processes"),
        set: |settings, value| {
            put(
                &mut settings.processes.max_processes,
                number(value, 1..=100_000),
            )
        },
        accepts: samples(&["1"]),
        rejects: &["0"],
        ..Flag::BASE
    },
    Flag {
        name: "max-exec-output",
        takes: Takes::One("BYTES"),
        default: Some("64MiB"),
        help: "maximum output buffered for all exec calls together; a call that exceeds it gets 503. A quarter of it is the default limit for one stream of a process",
        brief: Some("maximum output buffered for exec calls"),
        set: |settings, value| {
            put(
                &mut settings.processes.max_exec_output,
                size(value, 1024..=1 << 40),
            )
        },
        accepts: samples(&["1KiB"]),
        rejects: &["1023"],
        ..Flag::BASE
    },
    Flag {
        name: "wait-for-readers",
        help: "a process waits while --scrollback is full of output that no client was sent, or that a stream is still being sent; without this flag the oldest output is dropped",
        brief: Some("a process waits until its output is read"),
        set: |settings, _| turn_on(&mut settings.processes.wait_for_readers),
        ..Flag::BASE
    },
    Flag {
        name: "session",
        takes: Takes::Many("NAME=COMMAND"),
        help: "command that a client starts on a terminal when it attaches to /process/by-name/NAME and no process has this name; its words are separated by spaces",
        brief: Some("command that attaching to a name starts"),
        set: |settings, value| {
            let pair = value.split_once('=').filter(|(name, _)| !name.is_empty());
            let (name, command) = pair.ok_or_else(|| format!("'{value}' is not NAME=COMMAND"))?;
            SessionCommand::parse(Some(name), command)
                .map(|session| settings.processes.sessions.push(session))
        },
        accepts: samples(&["work=bash", "notes=vim -R notes.txt"]),
        rejects: &["bash", "=bash", "work=", "a/b=bash", "work=  "],
        ..Flag::BASE
    },
    Flag {
        name: "sessions",
        takes: Takes::Many("COMMAND"),
        help: "command that a client may start by attaching to any name. A client chooses one of several with ?command=COMMAND; the default is the first one",
        set: |settings, value| {
            SessionCommand::parse(None, value)
                .map(|session| settings.processes.sessions.push(session))
        },
        accepts: samples(&["bash", "bash -l"]),
        rejects: &["", "  "],
        ..Flag::BASE
    },
    Flag {
        name: "shared-names",
        help: "all principals share the names of processes; without this flag each principal has names of its own",
        set: |settings, _| turn_on(&mut settings.processes.shared_names),
        ..Flag::BASE
    },
    #[cfg(feature = "screen")]
    Flag {
        name: "scrollback-lines",
        takes: Takes::One("N"),
        default: Some("500"),
        help: "rows to keep above the screen of a terminal, for clients that ask for the screen",
        set: |settings, value| {
            let lines = number(value, 0..=100_000)?;
            settings.processes.screens = settings.processes.screens.map(|_| lines);
            Ok(())
        },
        accepts: samples(&["0", "10000"]),
        rejects: &["-1", "100001"],
        ..Flag::BASE
    },
    #[cfg(feature = "screen")]
    Flag {
        name: "no-screen",
        help: "do not follow what terminals show: clients that ask for a screen get output, and the calls screen, wait and input get 409",
        excludes: &[("scrollback-lines", "remove one of them")],
        set: |settings, _| {
            settings.processes.screens = None;
            Ok(())
        },
        ..Flag::BASE
    },
    RECORD,
    Flag {
        name: "record-on-request",
        help: "record only those terminals whose call has \"record\":true, instead of all",
        requires: Some("record"),
        set: |settings, _| turn_on(&mut settings.record.on_request),
        ..Flag::BASE
    },
    RECORD_INPUT,
    RECORD_LIMIT,
    PASS_ENV,
    LINGER,
    Flag {
        name: "compat",
        takes: Takes::One("SYSTEM"),
        words: &["kernel-images"],
        help: "kernel-images: accept its clients without a change. Bodies are read leniently; exec waits until its output is closed, and answers a time-out with 500; processes of other users keep the server's environment; processes wait for readers",
        brief: Some("accept the clients of kernel-images"),
        set: |settings, value| {
            settings.processes.compat = match value {
                "kernel-images" => Compat::KernelImages,
                _ => return Err(format!("'{value}' is not kernel-images")),
            };
            Ok(())
        },
        rejects: &["", "docker"],
        ..Flag::BASE
    },
];

pub(super) static TERMINAL: Command = Command {
    name: "terminal",
    usage: "[OPTIONS] -- PROGRAM [ARGS...]",
    summary: "run PROGRAM on a terminal for each client",
    brief: Some(
        "\
Runs PROGRAM on a terminal of its own for each client. The client gets the exit code after the
last byte of output.",
    ),
    about: "\
Runs PROGRAM on a new terminal for each client. When the client disconnects, PROGRAM gets HUP, TERM
one second later and KILL after five. Binary messages carry terminal input and output. Text messages
carry control:

To the terminal:    {\"type\":\"resize\",\"rows\":24,\"cols\":80}
From the terminal:  {\"type\":\"role\",\"role\":\"writer\"} and {\"type\":\"size\",\"rows\":24,\"cols\":80} first;
                    {\"type\":\"exit\",\"exitCode\":0} after the last byte of output, with \"signal\" if it
                    was killed; {\"type\":\"error\",\"message\"} if it cannot be started

The request sets the first size: /terminal?rows=24&cols=80. With ?input=text, text messages are
input. ttyd's subprotocol 'tty' works, too. In a browser, the address is a page (feature web).
",
    examples: &[
        (
            "give each client a shell",
            "outrigger terminal -p 8080 -- bash -l",
        ),
        (
            "show the processes of this machine to all its users",
            "outrigger terminal --read-only --no-auth -- top",
        ),
        #[cfg(feature = "tls")]
        (
            "give clients on the network a shell, over TLS",
            "outrigger terminal --listen 0.0.0.0:7443 --tls-self-signed -- bash",
        ),
    ],
    title: "Terminal options",
    flags: TERMINAL_FLAGS,
    program: ProgramArg::Required,
    default_path: "/terminal",
    page: RoutePage::Terminal,
    serves: Serves::One(|settings, params| {
        let terminal = Terminal::new(TerminalConfig {
            endpoint: params.endpoint,
            command: settings.program.clone(),
            record: settings.recording(),
            ..settings.terminal.clone()
        })?;
        Ok(Box::new(terminal))
    }),
    ..Command::BASE
};

const TERMINAL_FLAGS: &[Flag] = &[
    Flag {
        name: "cwd",
        takes: Takes::One("DIR"),
        help: "directory to start the program in",
        brief: Some("directory to start the program in"),
        set: |settings, value| {
            if !std::path::Path::new(value).is_dir() {
                return Err(format!("'{value}' is not a directory"));
            }
            put(&mut settings.terminal.cwd, Ok(Some(value.to_owned())))
        },
        accepts: samples(&["/"]),
        rejects: &["", "/no/such/directory"],
        ..Flag::BASE
    },
    Flag {
        name: "env",
        takes: Takes::Many("NAME=VALUE"),
        help: "variable for the program's environment; TERM is xterm-256color unless it is given",
        brief: Some("variable for the program's environment"),
        set: |settings, value| {
            let pair = value.split_once('=').filter(|(name, _)| !name.is_empty());
            let (name, value) = pair.ok_or_else(|| format!("'{value}' is not NAME=VALUE"))?;
            settings
                .terminal
                .env
                .push((name.to_owned(), value.to_owned()));
            Ok(())
        },
        accepts: samples(&["LANG=C", "EMPTY="]),
        rejects: &["LANG", "=C"],
        ..Flag::BASE
    },
    Flag {
        name: "user",
        takes: Takes::One("USER"),
        help: "user to run the program as: a name or number, or USER:GROUP with a numeric group; only root can choose another user",
        brief: Some("user to run the program as"),
        set: |settings, value| put(&mut settings.terminal.user, Ok(Some(value.to_owned()))),
        accepts: samples(&["nobody", "1000:1000"]),
        ..Flag::BASE
    },
    Flag {
        name: "read-only",
        help: "ignore what clients type",
        brief: Some("ignore what clients type"),
        set: |settings, _| turn_on(&mut settings.terminal.read_only),
        ..Flag::BASE
    },
    Flag {
        name: "once",
        help: "serve one client and stop when it disconnects",
        brief: Some("serve one client, then stop"),
        set: |settings, _| turn_on(&mut settings.terminal.once),
        ..Flag::BASE
    },
    RECORD,
    RECORD_INPUT,
    RECORD_LIMIT,
    PASS_ENV,
    LINGER,
];
