//! `outrigger mcp`: a stdio MCP server behind Streamable HTTP.

use super::super::command::{Command, ProgramArg, Serves};
use super::super::flag::{Flag, Takes, put, samples};
use super::super::flags::shared::{INITIALIZE_TIMEOUT, ON_FAILURE, REQUEST_TIMEOUT, RESTART_LIMIT};
use super::super::values::{choice, duration, number, size};
use crate::service::{Mcp, McpConfig, McpShare, McpStart};

pub(crate) static MCP: Command = Command {
    name: "mcp",
    usage: "[OPTIONS] -- PROGRAM [ARGS...]",
    summary: "serve an MCP server over Streamable HTTP",
    brief: Some(
        "\
Puts an MCP server that speaks on its standard streams on the network, over Streamable HTTP.
Clients of revision 2026-07-28 share one process. Sessions of earlier revisions have a process each,
or share one (--share).",
    ),
    about: "\
Serves PROGRAM, a server of the Model Context Protocol (MCP) on its standard streams, at
http://127.0.0.1:7070/mcp. MCP clients connect with Streamable HTTP. For clients that use WebSocket,
see 'outrigger help pipe'.

Requests of revision 2026-07-28 share a pool of processes. With the revisions 2025-03-26, 2025-06-18
and 2025-11-25, each session has a process of its own, which ends with the session. With --share,
sessions share a process. A client of a session whose connection was cut can come back and gets the
events that it has missed, up to --replay. With 2026-07-28, a closed connection cancels its request.
",
    examples: &[
        (
            "serve the example server at http://127.0.0.1:7070/mcp",
            "outrigger mcp -- outrigger example-mcp",
        ),
        (
            "start the server once for all sessions of a person",
            "outrigger mcp --share principal -- outrigger example-mcp",
        ),
        (
            "use four processes, and accept the tokens of a file",
            "outrigger mcp --pool 4 --token-file tokens -- outrigger example-mcp",
        ),
    ],
    title: "MCP options",
    flags: FLAGS,
    program: ProgramArg::Required,
    default_path: "/mcp",
    is_http: true,
    serves: Serves::One(|settings, params| {
        let config = McpConfig {
            endpoint: params.endpoint,
            command: settings.program.clone(),
            place: settings.mcp_place(),
            ..settings.mcp.clone()
        };
        Ok(Box::new(Mcp::new(config)))
    }),
    ..Command::BASE
};

/// The range of a limit on numbers of sessions or requests.
const COUNT: std::ops::RangeInclusive<usize> = 1..=1_000_000;

/// The range of a limit on kept events, in bytes.
const BYTES: std::ops::RangeInclusive<usize> = 0..=1 << 40;

const FLAGS: &[Flag] = &[
    Flag {
        name: "pool",
        takes: Takes::One("N"),
        default: Some("1"),
        help: "number of processes that answer requests of revision 2026-07-28",
        brief: Some("processes for clients of 2026-07-28"),
        set: |settings, value| put(&mut settings.mcp.pool, number(value, 1..=64)),
        accepts: samples(&["1", "64"]),
        rejects: &["0", "65"],
        ..Flag::BASE
    },
    Flag {
        name: "share",
        takes: Takes::One("WHO"),
        words: &["none", "principal", "all"],
        default: Some("none"),
        help: "which sessions share a process: none; those of one principal; or all. Clients with other revisions or capabilities use another process. Use none for a server that keeps something for its client, such as a browser",
        brief: Some("which sessions share a process"),
        set: |settings, value| {
            let words = [
                ("none", McpShare::None),
                ("principal", McpShare::Principal),
                ("all", McpShare::All),
            ];
            put(&mut settings.mcp.share, choice(value, words))
        },
        rejects: &["everybody"],
        ..Flag::BASE
    },
    Flag {
        name: "start",
        takes: Takes::One("WHEN"),
        words: &["now", "lazy"],
        default: Some("now"),
        help: "when the first process starts: with the server, or with the first request that needs it",
        set: |settings, value| {
            let words = [("now", McpStart::Now), ("lazy", McpStart::Lazy)];
            put(&mut settings.mcp.start, choice(value, words))
        },
        rejects: &["later"],
        ..Flag::BASE
    },
    Flag {
        name: "process-idle",
        takes: Takes::One("TIME"),
        default: Some("10m"),
        help: "stop a process that no request, question or subscription has needed for this time. It starts again when one does. Applies to shared processes and, with --start lazy, to the pool",
        set: |settings, value| {
            settings.mcp.process_idle = duration(value)?;
            Ok(())
        },
        ..Flag::BASE
    },
    Flag {
        name: "input-timeout",
        takes: Takes::One("TIME"),
        default: Some("10m"),
        help: "how long a call of a client of 2026-07-28 to an older server waits for the input that the client was asked for; after that, it is cancelled",
        set: |settings, value| {
            settings.mcp.input_timeout = duration(value)?;
            Ok(())
        },
        ..Flag::BASE
    },
    Flag {
        name: "session-idle",
        takes: Takes::One("TIME"),
        default: Some("30m"),
        help: "end a session and its process if its client sends no message and has no stream open for this time",
        brief: Some("end sessions that are idle for this time"),
        set: |settings, value| {
            settings.mcp.session_idle = duration(value)?;
            Ok(())
        },
        ..Flag::BASE
    },
    Flag {
        name: "list-idle",
        takes: Takes::One("TIME"),
        default: Some("2m"),
        help: "end a session that was idle for this time if its client has only asked for lists, as a health check does",
        set: |settings, value| {
            settings.mcp.list_idle = duration(value)?;
            Ok(())
        },
        ..Flag::BASE
    },
    Flag {
        name: "max-sessions",
        takes: Takes::One("N"),
        default: Some("256"),
        help: "maximum number of sessions and shared processes together; more get 503",
        brief: Some("maximum sessions"),
        set: |settings, value| put(&mut settings.mcp.max_sessions, number(value, COUNT)),
        accepts: samples(&["1"]),
        rejects: &["0"],
        ..Flag::BASE
    },
    Flag {
        name: "max-requests",
        takes: Takes::One("N"),
        default: Some("1024"),
        help: "maximum requests that wait for an answer; more get 503",
        set: |settings, value| put(&mut settings.mcp.max_requests, number(value, COUNT)),
        accepts: samples(&["1"]),
        rejects: &["0"],
        ..Flag::BASE
    },
    Flag {
        name: "replay",
        takes: Takes::One("BYTES"),
        default: Some("256KiB"),
        help: "maximum size of the events that a session keeps for a client whose connection was cut (Last-Event-ID); the oldest are dropped first",
        set: |settings, value| put(&mut settings.mcp.replay, size(value, BYTES)),
        accepts: samples(&["0", "1MiB"]),
        rejects: &["much"],
        ..Flag::BASE
    },
    Flag {
        name: "max-replay",
        takes: Takes::One("BYTES"),
        default: Some("16MiB"),
        help: "maximum size of the kept events of all sessions",
        set: |settings, value| put(&mut settings.mcp.max_replay, size(value, BYTES)),
        accepts: samples(&["0", "1GiB"]),
        rejects: &["much"],
        ..Flag::BASE
    },
    Flag {
        help: "how long the first process may take to say whether it supports revision 2026-07-28 (after that, only sessions are served), and the process of a session to answer initialize (after that, the session ends)",
        ..INITIALIZE_TIMEOUT
    },
    Flag {
        help: "how long a request may wait for its answer; after that, it is cancelled and fails with the error -32603. This includes subscriptions/listen",
        ..REQUEST_TIMEOUT
    },
    Flag {
        help: "how many times the first process may exit within TIME before it has answered server/discover; then the program serves only sessions. Later, a process that exits is always restarted, at least every 10 s",
        ..RESTART_LIMIT
    },
    Flag {
        help: "when the program cannot be started at all: 'exit' ends the server; 'retry' answers 503 and tries again, at least every 10 s",
        ..ON_FAILURE
    },
];
