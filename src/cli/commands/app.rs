//! `outrigger app`: a program that reads events and writes commands is the server.

use super::super::flags::shared::ON_FAILURE;
use super::super::flags::{Flag, Takes, samples, turn_on};
use super::{Command, ProgramArg, Serves};
use crate::service::{App, AppConfig};

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
    flags: FLAGS,
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

const FLAGS: &[Flag] = &[
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
    Flag {
        name: "subprotocol",
        takes: Takes::Many("NAME"),
        help: "subprotocol that the program speaks; the server selects the first one that a client offers",
        brief: Some("subprotocol to select"),
        set: |settings, value| {
            let valid = |byte: u8| byte.is_ascii_graphic() && byte != b',';
            if value.is_empty() || !value.bytes().all(valid) {
                return Err(format!("'{value}' is not the name of a subprotocol"));
            }
            settings.app.subprotocols.push(value.to_owned());
            Ok(())
        },
        accepts: samples(&["chat.v1"]),
        rejects: &["", "a,b", "a b"],
        ..Flag::BASE
    },
];
