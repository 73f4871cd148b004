//! A client of MCP servers over HTTP, and servers for it.

use std::net::SocketAddr;

use crate::common::program::Program;
use crate::common::{Wire, call};
use serde_json::{Value, json};

pub(crate) const STATELESS: &str = "2026-07-28";

/// Starts `mcp` in front of the example server.
pub(crate) fn example(options: &[&str]) -> Program {
    let program = env!("CARGO_BIN_EXE_outrigger");
    Program::start(&[&["mcp"][..], options, &["--", program, "example-mcp"]].concat())
}

/// Starts `mcp` in front of a shell script, which supports only revisions with sessions. `on_message` handles the messages after
/// `initialize`, which are in `$line`. The first process, which is asked what it supports, answers with an error.
pub(crate) fn script(options: &[&str], on_message: &str) -> Program {
    let script = format!(
        r#"
        while read -r line; do
            case "$line" in
            *server/discover*) echo '{{"jsonrpc":"2.0","id":1,"error":{{"code":-32601,"message":"no"}}}}';;
            *'"initialize"'*) echo '{{"jsonrpc":"2.0","id":0,"result":{{"protocolVersion":"2025-11-25"}}}}';;
            *) {on_message};;
            esac
        done
        "#
    );
    Program::start(&[&["mcp"][..], options, &["--", "sh", "-c", &script]].concat())
}

/// An answer to a call.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) wire: Wire,
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        let field = fields.find(|(field, _)| field.eq_ignore_ascii_case(name));
        field.map(|(_, value)| value)
    }

    /// The body, which is one JSON message.
    pub(crate) fn json(mut self) -> Value {
        assert_eq!(
            self.field("Content-Type"),
            Some("application/json"),
            "{}",
            self.head
        );
        let length = self.field("Content-Length").expect("a length");
        let length = length.parse().expect("a number");
        serde_json::from_slice(&self.wire.read_exact(length)).expect("JSON")
    }

    /// The response in the body, or the first one in the stream.
    pub(crate) fn response(mut self) -> Value {
        if self.field("Content-Type") == Some("application/json") {
            return self.json();
        }
        loop {
            let (_, message) = self.event().expect("a response");
            if message["method"].is_null() && !message.is_null() {
                return message;
            }
        }
    }

    /// The next event of a stream: its id and its data. `None` at the end of the stream.
    pub(crate) fn event(&mut self) -> Option<(String, Value)> {
        assert_eq!(
            self.field("Content-Type"),
            Some("text/event-stream"),
            "{}",
            self.head
        );
        let chunk = loop {
            let mut size = Vec::new();
            while !size.ends_with(b"\r\n") {
                size.extend(self.wire.read_exact(1));
            }
            let size = std::str::from_utf8(&size).expect("ASCII").trim_end();
            let size = usize::from_str_radix(size, 16).expect("the size of a chunk");
            let chunk = String::from_utf8(self.wire.read_exact(size)).expect("UTF-8");
            self.wire.read_exact(2);
            if size == 0 {
                return None;
            }
            // A silent stream gets comments.
            if !chunk.starts_with(':') {
                break chunk;
            }
        };
        let field = |name: &str| chunk.lines().find_map(|line| line.strip_prefix(name));
        let data = field("data: ").expect("data");
        let id = field("id: ").unwrap_or_default().to_owned();
        Some((id, serde_json::from_str(data).unwrap_or(Value::Null)))
    }
}

/// Makes a call with these fields.
pub(crate) fn send(address: SocketAddr, method: &str, fields: &[&str], body: &str) -> Answer {
    send_to(address, "/mcp", method, fields, body)
}

/// Makes a call at a path.
pub(crate) fn send_to(
    address: SocketAddr,
    path: &str,
    method: &str,
    fields: &[&str],
    body: &str,
) -> Answer {
    let mut wire = Wire::open(address);
    let fields: String = fields.iter().flat_map(|field| [field, "\r\n"]).collect();
    let length = body.len();
    let length = if body.is_empty() {
        String::new()
    } else {
        format!("Content-Length: {length}\r\n")
    };
    wire.send(
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{length}{fields}\r\n{body}")
            .as_bytes(),
    );
    let head = wire.read_head();
    let status = head.split(' ').nth(1).expect("a status");
    Answer {
        status: status.parse().expect("a number"),
        head,
        wire,
    }
}

pub(crate) const JSON: &str = "Content-Type: application/json";
pub(crate) const ANY: &str = "Accept: application/json, text/event-stream";

/// Sends a request of revision 2026-07-28.
pub(crate) fn request(address: SocketAddr, id: Value, method: &str, params: Value) -> Answer {
    let mut params = params;
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = STATELESS.into();
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    let name = params["name"]
        .as_str()
        .map(|name| format!("Mcp-Name: {name}"));
    let version = format!("MCP-Protocol-Version: {STATELESS}");
    let mirrored = format!("Mcp-Method: {method}");
    let mut fields = vec![JSON, ANY, &version, &mirrored];
    fields.extend(name.as_deref());
    let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    send(address, "POST", &fields, &body.to_string())
}

/// A session of a client.
pub(crate) struct Session {
    pub(crate) address: SocketAddr,
    pub(crate) field: String,
}

impl Session {
    pub(crate) fn begin(address: SocketAddr) -> Self {
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
        }});
        let answer = send(address, "POST", &[JSON, ANY], &body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.head);
        let id = answer
            .field("Mcp-Session-Id")
            .expect("a session")
            .to_owned();
        let result = answer.json();
        assert_eq!(result["result"]["protocolVersion"], "2025-11-25");
        Self {
            address,
            field: format!("Mcp-Session-Id: {id}"),
        }
    }

    pub(crate) fn send(&self, message: Value) -> Answer {
        send(
            self.address,
            "POST",
            &[JSON, ANY, &self.field],
            &message.to_string(),
        )
    }

    pub(crate) fn listen(&self, last: Option<&str>) -> Answer {
        let last = last.map(|last| format!("Last-Event-ID: {last}"));
        let mut fields = vec!["Accept: text/event-stream", &*self.field];
        fields.extend(last.as_deref());
        send(self.address, "GET", &fields, "")
    }
}

/// The number at a field of the status.
pub(crate) fn figure(address: SocketAddr, name: &str) -> u64 {
    let (_, status) = call(address, "GET", "/status", None);
    status[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} in {status}"))
}
