//! `outrigger echo`: sends every message back.

use super::{Command, Serves};
use crate::service::Echo;

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
