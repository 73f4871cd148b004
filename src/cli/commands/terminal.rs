//! `outrigger terminal`: each client gets a program on a terminal of its own.

use super::super::flags::shared::{LINGER, PASS_ENV};
use super::super::flags::{Flag, Takes, put, samples, turn_on};
use super::{Command, ProgramArg, Serves};
use crate::service::{Terminal, TerminalConfig};
use crate::web::RoutePage;

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
    flags: FLAGS,
    program: ProgramArg::Required,
    default_path: "/terminal",
    page: RoutePage::Terminal,
    serves: Serves::One(|settings, params| {
        let terminal = Terminal::new(TerminalConfig {
            endpoint: params.endpoint,
            command: settings.program.clone(),
            ..settings.terminal.clone()
        })?;
        Ok(Box::new(terminal))
    }),
    ..Command::BASE
};

const FLAGS: &[Flag] = &[
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
    PASS_ENV,
    LINGER,
];
