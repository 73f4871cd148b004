//! A client of an agent that comes back after a cut as the draft of resumable connections says.

use std::collections::HashSet;
use std::net::SocketAddr;

use crate::common::agent::Client;
use crate::common::{PING, PONG, TEXT, Wire, request};
use serde_json::{Value, json};

/// The cursor of a message.
pub(crate) fn cursor_of(message: &Value) -> Option<&str> {
    let places = [
        &message["params"]["_meta"],
        &message["result"]["_meta"],
        &message["_meta"],
    ];
    places.iter().find_map(|meta| meta["acp/cursor"].as_str())
}

/// Connects with the id of an earlier connection, and returns the id in the response.
pub(crate) fn connect(address: SocketAddr, id: Option<&str>) -> (Wire, String) {
    let mut wire = Wire::open(address);
    let head = String::from_utf8(request("/acp")).expect("ASCII");
    let field = id.map_or(String::new(), |id| format!("Acp-Connection-Id: {id}\r\n"));
    wire.send(
        head.replacen("Upgrade:", &format!("{field}Upgrade:"), 1)
            .as_bytes(),
    );
    let head = wire.read_head();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let id = head
        .lines()
        .find_map(|line| line.strip_prefix("Acp-Connection-Id: "));
    (wire, id.expect("an id").to_owned())
}

/// A client that comes back with its last cursor.
pub(crate) struct Durable {
    pub(crate) address: SocketAddr,
    pub(crate) client: Client,
    pub(crate) id: String,
    pub(crate) cursor: String,
    /// The cursors of all messages.
    pub(crate) seen: HashSet<String>,
    /// What the server has announced.
    pub(crate) resumable: Value,
    /// All messages that it has sent, because the draft does not say how many the server has received.
    pub(crate) sent: Vec<Value>,
}

impl Durable {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::connect_with(address, 1)
    }

    /// Connects a client of a version of the protocol.
    pub(crate) fn connect_with(address: SocketAddr, version: u64) -> Self {
        let (wire, id) = connect(address, None);
        let mut durable = Self {
            address,
            client: Client { wire, next_id: 0 },
            id,
            cursor: String::new(),
            seen: HashSet::new(),
            resumable: Value::Null,
            sent: Vec::new(),
        };
        let capabilities = json!({"transport": {"resumable": {}}});
        let mut params = json!({"protocolVersion": version, "info": {"name": "x", "version": "1"}});
        let name = ["clientCapabilities", "capabilities"][usize::from(version > 1)];
        params[name] = capabilities;
        let result = durable.ask("initialize", params);
        assert_eq!(result["protocolVersion"], version);
        assert_eq!(result["connectionId"], durable.id);
        durable.resumable = result["capabilities"]["transport"]["resumable"].clone();
        durable
    }

    pub(crate) fn request(&mut self, method: &str, params: Value) -> u64 {
        self.client.next_id += 1;
        let id = self.client.next_id;
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.client.say(&message);
        self.sent.push(message);
        id
    }

    pub(crate) fn hear(&mut self) -> Value {
        let mut frame = self.client.wire.read_frame();
        while frame.opcode == PING {
            self.client.wire.send_frame(PONG, &frame.payload);
            frame = self.client.wire.read_frame();
        }
        assert_eq!(
            frame.opcode,
            TEXT,
            "{:?}",
            String::from_utf8_lossy(&frame.payload)
        );
        let message: Value = serde_json::from_slice(&frame.payload).expect("JSON");
        let cursor = cursor_of(&message).unwrap_or_else(|| panic!("{message} has no cursor"));
        assert!(self.seen.insert(cursor.to_owned()), "{message} came twice");
        self.cursor = cursor.to_owned();
        message
    }

    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        loop {
            let message = self.hear();
            if message["id"] == id {
                return message["result"].clone();
            }
        }
    }

    /// Comes back on a new connection. Returns the result of `stream/resume`, and the old connection.
    pub(crate) fn come_back(&mut self) -> (Value, Wire) {
        let (wire, id) = connect(self.address, Some(&self.id));
        assert_eq!(id, self.id);
        let old = std::mem::replace(&mut self.client.wire, wire);
        let params = json!({"cursor": self.cursor});
        self.client.say(
            &json!({"jsonrpc": "2.0", "id": "back", "method": "stream/resume", "params": params}),
        );
        let answer = self.client.hear();
        assert_eq!(answer["id"], "back", "{answer}");
        let result = answer["result"].clone();
        // The draft leaves the other direction open. Outrigger says what it has.
        let received = result["_meta"]["outrigger"]["received"].as_u64();
        for message in &self.sent[received.expect("a number") as usize..] {
            self.client.say(message);
        }
        (result, old)
    }
}
