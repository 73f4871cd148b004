//! `outrigger agent`: a JSON-RPC agent on standard streams, shared by many clients.

use std::time::Duration;

use super::super::command::{Command, ProgramArg, Serves};
use super::super::flag::{Flag, Takes, put, samples, turn_on};
use super::super::flags::shared::{INITIALIZE_TIMEOUT, ON_FAILURE, REQUEST_TIMEOUT, RESTART_LIMIT};
use super::super::values::{choice, duration, number, size};
use crate::service::agent::{AgentProtocol, Approvals, UnknownSessions, has_session_rules};
use crate::service::{Agent, AgentConfig};
use crate::web::RoutePage;

pub(super) static AGENT: Command = Command {
    name: "agent",
    usage: "[OPTIONS] -- PROGRAM [ARGS...]",
    summary: "share one JSON-RPC agent between clients",
    brief: Some(
        "\
Connects many clients to one JSON-RPC agent that reads and writes lines on its standard streams.
Every answer goes to the client that asked, and every session belongs to one client.",
    ),
    about: "\
Connects many WebSocket clients to one JSON-RPC agent that reads and writes lines on its standard
streams: an agent of the Agent Client Protocol, or any other with --protocol jsonrpc. Every answer
goes to the client that sent the request, under the id that it used. Every session belongs to one
connection at a time. There is one agent process for each protocol version and set of capabilities.

To give each connection a PROGRAM of its own, use 'outrigger pipe'. To serve an MCP server over
Streamable HTTP, use 'outrigger mcp'.
",
    examples: &[
        (
            "share the example agent between clients",
            "outrigger agent -- outrigger example-agent",
        ),
        (
            "let observers answer permission requests, if their token allows it",
            "outrigger agent --approvals any --token-file tokens -- outrigger example-agent",
        ),
    ],
    title: "Agent options",
    flags: FLAGS,
    program: ProgramArg::Required,
    default_path: "/acp",
    idle_timeout: Some(Duration::from_secs(300)),
    page: RoutePage::Agent,
    serves: Serves::One(|settings, params| {
        let config = AgentConfig {
            endpoint: params.endpoint,
            command: settings.program.clone(),
            sessions_may_idle: params.sessions_may_idle,
            ..settings.agent.clone()
        };
        Ok(Box::new(Agent::new(config)))
    }),
    ..Command::BASE
};

const FLAGS: &[Flag] = &[
    Flag {
        name: "protocol",
        takes: Takes::One("PROTOCOL"),
        words: &["acp", "jsonrpc"],
        default: Some("acp"),
        help: "acp: clients must send initialize first, and sessions have owners; jsonrpc: neither, for MCP servers and others",
        brief: Some("acp or jsonrpc"),
        set: |settings, value| {
            let words = [
                ("acp", AgentProtocol::Acp),
                ("jsonrpc", AgentProtocol::JsonRpc),
            ];
            put(&mut settings.agent.protocol, choice(value, words))
        },
        rejects: &["mcp"],
        ..Flag::BASE
    },
    Flag {
        name: "grace",
        takes: Takes::One("TIME"),
        default: Some("5m"),
        help: "how long a session keeps its place in the table after its client has disconnected; with 0 it loses the place at once. A session can still be loaded later",
        set: |settings, value| put(&mut settings.agent.grace, duration(value)),
        ..Flag::BASE
    },
    Flag {
        help: "how many times an agent process may exit within TIME and be restarted; after more exits of the last process, --on-failure decides",
        ..RESTART_LIMIT
    },
    ON_FAILURE,
    Flag {
        name: "max-agents",
        takes: Takes::One("N"),
        default: Some("4"),
        help: "maximum agent processes. There is one for each kind of client, by protocol version and capabilities. If there are several principals, one of them can bring half of the kinds",
        set: |settings, value| put(&mut settings.agent.max_agents, number(value, 1..=64)),
        accepts: samples(&["1", "64"]),
        rejects: &["0", "65"],
        ..Flag::BASE
    },
    Flag {
        name: "one-process",
        help: "one agent process for clients of every kind, with the version of the first client. The agent may request files, terminals and elicitations from all clients. Requests for which a client lacks the capability get the error -32601",
        set: |settings, _| turn_on(&mut settings.agent.one_process),
        ..Flag::BASE
    },
    Flag {
        help: "how long the agent may take to answer initialize; after that, the waiting clients get the error -32014",
        ..INITIALIZE_TIMEOUT
    },
    Flag {
        name: "approvals",
        takes: Takes::One("WHO"),
        words: &["owner", "any"],
        default: Some("owner"),
        help: "who may answer a session's permission requests. owner: only its client; any: also observers whose token has the scope 'use' or 'all', and the first answer counts",
        brief: Some("who may answer permission requests: owner or any"),
        set: |settings, value| {
            let words = [("owner", Approvals::Owner), ("any", Approvals::Any)];
            put(&mut settings.agent.approvals, choice(value, words))
        },
        rejects: &["nobody"],
        ..Flag::BASE
    },
    Flag {
        name: "history",
        takes: Takes::One("SIZE"),
        default: Some("256KiB"),
        help: "how much of the last updates of each session is kept for clients that attach to the session; 0 keeps none; all sessions together keep at most 64MiB, or a sixteenth of --memory if that is less",
        set: |settings, value| put(&mut settings.agent.history, size(value, 0..=64 << 20)),
        accepts: samples(&["0", "64MiB"]),
        rejects: &["65MiB"],
        ..Flag::BASE
    },
    Flag {
        name: "unknown-sessions",
        takes: Takes::One("RULE"),
        words: &["allow", "deny"],
        default_note: Some("allow if there is one principal, otherwise deny"),
        help: "allow or deny: whether clients may load sessions that the server has never seen, such as those in the agent's own history",
        set: |settings, value| {
            let words = [
                ("allow", UnknownSessions::Allow),
                ("deny", UnknownSessions::Deny),
            ];
            put(&mut settings.agent.unknown_sessions, choice(value, words))
        },
        rejects: &["some"],
        ..Flag::BASE
    },
    Flag {
        name: "pass-methods",
        takes: Takes::Many("METHOD,..."),
        help: "methods outside the schema of the Agent Client Protocol whose messages may name any session, in both directions; a list with commas",
        brief: Some("methods whose messages may name any session"),
        set: |settings, value| {
            for method in value.split(',') {
                if method.is_empty() || has_session_rules(method) {
                    return Err(format!(
                        "'{method}' is not a method outside the schema of the Agent Client Protocol"
                    ));
                }
                settings.agent.pass_methods.push(method.to_owned());
            }
            Ok(())
        },
        accepts: samples(&["_vendor/thing", "_vendor/a,_vendor/b"]),
        rejects: &["", "_vendor/a,", "session/prompt", "session/other"],
        ..Flag::BASE
    },
    Flag {
        help: "how long the agent may take to answer a request other than session/prompt; after that, the client gets the error -32014, and the route is not ready until the agent sends a message",
        ..REQUEST_TIMEOUT
    },
    Flag {
        name: "answer-timeout",
        takes: Takes::One("TIME"),
        default: Some("off"),
        help: "how long a client may take to answer a request of the agent, such as for a permission; after that, the agent gets the error -32014",
        set: |settings, value| put(&mut settings.agent.answer_timeout, duration(value)),
        ..Flag::BASE
    },
];
