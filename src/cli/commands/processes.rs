//! `outrigger processes`: an HTTP API to start, watch and signal processes, and to attach to their terminals.

use super::super::flags::shared::{LINGER, PASS_ENV};
use super::super::flags::{Flag, Takes, put, samples, turn_on};
use super::super::values::{duration, number, size};
use super::{Command, Serves};
use crate::service::{Compat, Processes, ProcessesConfig};
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
                              \"rows\",\"cols\",\"timeout_sec\"}
  POST /process/exec          the same; answers when the process has exited, with all of its output
  GET  /process               all processes; ?usage=1 adds their use of processor and memory
  GET  /process/ID/status     its state, exit code, and use of processor and memory
  POST /process/ID/stdin      {\"data_b64\"}
  POST /process/ID/kill       {\"signal\":\"TERM\"} or KILL, INT, HUP, to its whole process group
  POST /process/ID/resize     {\"rows\",\"cols\"}
  GET  /process/ID/stdout/stream   its output as server-sent events; ?since=OFFSET
  GET  /process/ID/attach     its terminal as a WebSocket; ?since=OFFSET, ?mode=viewer, ?takeover=1
  GET  /process/spec.json     this API in OpenAPI, without the WebSocket; spec.yaml as well

In a browser, / and /process are a console, and /process/ID/attach is a terminal (feature web).
",
    examples: &[
        (
            "keep more output of each process, and keep it longer",
            "outrigger processes --scrollback 16MiB --retention 1h",
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
    flags: FLAGS,
    default_path: "/process/...",
    serves_subtree: true,
    page: RoutePage::Processes,
    has_console: true,
    serves: Serves::One(|settings, params| {
        Ok(Box::new(Processes::new(ProcessesConfig {
            endpoint: params.endpoint,
            ..settings.processes.clone()
        })))
    }),
    ..Command::BASE
};

const FLAGS: &[Flag] = &[
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
        help: "maximum processes that run at once; more get 503",
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
