//! An editor that speaks over `outrigger connect`, and a server whose part the test plays.

use std::net::SocketAddr;
use std::process::Command;

use crate::common::program::Program;
use serde_json::{Value, json};

/// An editor that speaks over the standard streams of `connect`.
pub(crate) struct Editor {
    pub(crate) bridge: Program,
    next_id: u64,
}

impl Editor {
    pub(crate) fn start(address: SocketAddr, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
        command
            .arg("connect")
            .arg(format!("ws://{address}/acp"))
            .args(args);
        command.env_remove("OUTRIGGER_TOKEN").env_remove("RUST_LOG");
        Self {
            bridge: Program::spawn(&mut command),
            next_id: 0,
        }
    }

    pub(crate) fn initialized(address: SocketAddr, args: &[&str]) -> Self {
        let mut editor = Self::start(address, args);
        let result = editor.ask("initialize", initialize(1));
        assert_eq!(result["result"]["protocolVersion"], 1, "{result}");
        editor
    }

    pub(crate) fn say(&mut self, message: &Value) {
        self.bridge.write(&message.to_string());
    }

    pub(crate) fn request(&mut self, method: &str, params: Value) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// Sends a request and waits for its response. Other messages are discarded.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        self.answer_to(id).1
    }

    /// The messages before the response to a request, and the response.
    pub(crate) fn answer_to(&self, id: u64) -> (Vec<Value>, Value) {
        let mut before = Vec::new();
        loop {
            let message = self.bridge.event();
            if message["id"] == id && message.get("method").is_none() {
                return (before, message);
            }
            before.push(message);
        }
    }

    pub(crate) fn new_session(&mut self) -> String {
        let answer = self.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
        let session = answer["result"]["sessionId"].as_str();
        session.unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    pub(crate) fn prompt(&mut self, session: &str, text: &str) -> u64 {
        let prompt = json!([{"type": "text", "text": text}]);
        self.request(
            "session/prompt",
            json!({"sessionId": session, "prompt": prompt}),
        )
    }
}

pub(crate) fn initialize(version: u64) -> Value {
    let capabilities = if version == 1 {
        "clientCapabilities"
    } else {
        "capabilities"
    };
    json!({"protocolVersion": version, capabilities: {}})
}

/// A server whose part the test plays.
pub(crate) struct Played {
    app: Program,
    client: String,
}

impl Played {
    pub(crate) fn start() -> (Self, SocketAddr) {
        let app = Program::start(&["app", "--no-resume"]);
        let address = app.address_of_event();
        let client = String::new();
        (Self { app, client }, address)
    }

    /// The next message of any client.
    pub(crate) fn hear(&mut self) -> Value {
        let event = self.app.event_of("message");
        self.client = event["client"].as_str().expect("a client").to_owned();
        serde_json::from_str(event["text"].as_str().expect("text")).expect("JSON")
    }

    /// The next message, which is a request with this method.
    pub(crate) fn hear_request(&mut self, method: &str) -> Value {
        let message = self.hear();
        assert_eq!(message["method"], method, "{message}");
        message
    }

    pub(crate) fn say(&mut self, message: &Value) {
        let text = message.to_string();
        self.app
            .command(json!({"cmd": "send", "client": self.client, "text": text}));
    }

    pub(crate) fn answer(&mut self, request: &Value, result: &Value) {
        self.say(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result}));
    }

    /// Ends the connection, as a server does that restarts.
    pub(crate) fn leave(&mut self) {
        self.app
            .command(json!({"cmd": "close", "client": self.client, "code": 1012}));
    }
}

pub(crate) fn update(session: &str, update: &Value) -> Value {
    let params = json!({"sessionId": session, "update": update});
    json!({"jsonrpc": "2.0", "method": "session/update", "params": params})
}
