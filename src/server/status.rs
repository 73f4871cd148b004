//! What a server says about itself.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::client::{Remote, Traffic};
use super::id::ClientId;

/// A picture of the server at one moment, made from the registry when it was asked for.
#[derive(Clone, Debug)]
pub struct Status {
    /// Whether new clients are taken: not once the server stops.
    pub running: bool,
    /// How long the loop has been turning.
    pub uptime: Duration,
    /// The addresses it listens on.
    pub listen: Vec<String>,
    pub(super) client_count: usize,
    /// Connections of every kind: clients, calls, and those whose request has not come.
    pub connections: usize,
    /// Calls that are being answered.
    pub calls: usize,
    /// The clients that are connected, or some of them if they were asked for by pages.
    pub clients: Vec<ClientStatus>,
    /// Whether more clients come behind those of this page.
    pub(super) has_more: bool,
    /// What the service says about itself.
    pub service: Map<String, Value>,
}

/// A picture of one client.
#[derive(Clone, Debug)]
pub struct ClientStatus {
    /// Its id.
    pub id: ClientId,
    /// The path it asked for.
    pub path: String,
    /// Where it comes from.
    pub remote: Remote,
    /// How long it has been connected.
    pub connected: Duration,
    /// What went through.
    pub traffic: Traffic,
    /// Bytes of output that it has not taken yet.
    pub queued_bytes: usize,
}

impl Status {
    /// How many clients are connected.
    pub fn client_count(&self) -> usize {
        self.client_count
    }

    /// The status as a JSON object.
    pub fn to_json(&self) -> Value {
        let mut status = json!({
            "running": self.running,
            "pid": std::process::id(),
            "uptime_s": seconds(self.uptime),
            "listen": self.listen,
            "client_count": self.client_count,
            "connections": self.connections,
            "calls": self.calls,
            "clients": self.clients.iter().map(ClientStatus::to_json).collect::<Vec<_>>(),
        });
        if self.has_more {
            status["next"] = self
                .clients
                .last()
                .map(|client| client.id.to_string())
                .into();
        }
        if let Value::Object(fields) = &mut status {
            fields.extend(self.service.clone());
        }
        status
    }
}

impl ClientStatus {
    /// The client's status as a JSON object.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id.to_string(),
            "path": self.path,
            "remote": self.remote.to_string(),
            "connected_s": seconds(self.connected),
            "bytes_in": self.traffic.bytes_in,
            "bytes_out": self.traffic.bytes_out,
            "messages_in": self.traffic.messages_in,
            "messages_out": self.traffic.messages_out,
            "queued_bytes": self.queued_bytes,
        })
    }
}

/// Seconds to the millisecond.
fn seconds(duration: Duration) -> f64 {
    duration.as_millis() as f64 / 1000.0
}
