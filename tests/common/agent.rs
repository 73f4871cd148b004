//! The example agent, and a client of an agent.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::{CLOSE, TEXT, Wire};

/// The path of `examples/agent.rs`, which cargo builds with the tests.
pub fn example_agent() -> String {
    let test = std::env::current_exe().expect("a path");
    let agent = test
        .parent()
        .and_then(|deps| deps.parent())
        .expect("a target folder")
        .join("examples/agent");
    assert!(
        agent.exists(),
        "cargo builds the examples with the tests: {}",
        agent.display()
    );
    agent.to_str().expect("UTF-8").to_owned()
}

/// A JSON-RPC client.
pub struct Client {
    pub wire: Wire,
    pub next_id: u64,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        Self {
            wire: Wire::connect(address, "/acp"),
            next_id: 0,
        }
    }

    /// Connects and initializes a client.
    pub fn initialized(address: SocketAddr) -> Self {
        Self::initialized_on(Wire::connect(address, "/acp"))
    }

    /// Initializes a client on an open connection.
    pub fn initialized_on(wire: Wire) -> Self {
        let mut client = Self { wire, next_id: 0 };
        let answer = client.ask(
            "initialize",
            json!({"protocolVersion": 1, "clientCapabilities": {}}),
        );
        assert_eq!(answer["result"]["protocolVersion"], 1, "{answer}");
        client
    }

    /// Connects a client that can read files, which is another kind of client.
    pub fn with_files(address: SocketAddr) -> Self {
        let mut client = Self::connect(address);
        let capabilities = json!({"fs": {"readTextFile": true}});
        let params = json!({"protocolVersion": 1, "clientCapabilities": capabilities});
        let answer = client.ask("initialize", params);
        assert_eq!(answer["result"]["protocolVersion"], 1, "{answer}");
        assert_eq!(answer["result"]["_meta"]["outrigger"]["watch"], true);
        client
    }

    /// Connects an observer of a session.
    pub fn observer(address: SocketAddr, session: &str, token: &str) -> Self {
        let mut observer = Self::initialized(address);
        let meta = json!({"outrigger": {"watchToken": token}});
        let params = json!({"sessionId": session, "_meta": meta});
        let attached = observer.ask("session/attach", params);
        assert_eq!(attached["result"]["role"], "observer", "{attached}");
        observer
    }

    /// Connects a client with a session. Returns its session id and resume token, too.
    pub fn with_session(address: SocketAddr) -> (Self, String, String) {
        Self::initialized(address).open_session()
    }

    /// Opens a session. Returns its id and resume token, too.
    pub fn open_session(self) -> (Self, String, String) {
        let mut client = self;
        let answer = client.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
        let text = |value: &Value| {
            value
                .as_str()
                .unwrap_or_else(|| panic!("{answer}"))
                .to_owned()
        };
        let session = text(&answer["result"]["sessionId"]);
        let token = text(&answer["result"]["_meta"]["outrigger"]["resumeToken"]);
        (client, session, token)
    }

    pub fn say(&mut self, message: &Value) {
        self.wire.send_frame(TEXT, message.to_string().as_bytes());
    }

    pub fn request(&mut self, method: &str, params: Value) -> u64 {
        self.next_id += 1;
        self.say(
            &json!({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params}),
        );
        self.next_id
    }

    pub fn prompt(&mut self, session: &str, text: &str) -> u64 {
        let prompt = json!([{"type": "text", "text": text}]);
        self.request(
            "session/prompt",
            json!({"sessionId": session, "prompt": prompt}),
        )
    }

    pub fn hear(&mut self) -> Value {
        loop {
            let frame = self.wire.read_frame();
            match frame.opcode {
                TEXT => return serde_json::from_slice(&frame.payload).expect("JSON"),
                CLOSE => panic!("closed: {:?}", String::from_utf8_lossy(&frame.payload)),
                _ => {}
            }
        }
    }

    /// Sends a request and returns its answer. Skips other messages.
    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        self.answer_to(id)
    }

    pub fn answer_to(&mut self, id: u64) -> Value {
        loop {
            let message = self.hear();
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
        }
    }
}

/// The parameters of `session/load`.
pub fn load(session: &str, token: Option<&str>) -> Value {
    json!({"sessionId": session, "cwd": "/", "mcpServers": [], "_meta": {"outrigger": {"resumeToken": token}}})
}

pub fn error_code(message: &Value) -> i64 {
    message["error"]["code"].as_i64().unwrap_or_default()
}

/// Whether a message tells an observer that a turn has ended.
pub fn is_turn_complete(message: &Value) -> bool {
    message["params"]["update"]["sessionUpdate"] == "turn_complete"
}
