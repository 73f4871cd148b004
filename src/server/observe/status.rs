//! Snapshots of a server and its clients, as structures and as JSON.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::counters::Traffic;
use super::exposition::Histogram;
use crate::server::access::Principal;
use crate::server::address::Remote;
use crate::server::id::ClientId;

/// A snapshot of a server.
///
/// ```
/// use outrigger::{Config, Server, Service};
///
/// struct Silent;
/// impl Service for Silent {}
///
/// let config = Config::new("127.0.0.1:0".parse()?);
/// let server = Server::bind(config, Silent)?;
/// let handle = server.handle();
/// let thread = std::thread::spawn(move || server.run().map(drop));
///
/// let status = handle.status()?;
/// assert!(status.running && status.clients.is_empty());
/// assert!(status.to_json().contains("\"client_count\":0"));
///
/// handle.stop()?;
/// thread.join().expect("the thread does not panic")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// Whether the server accepts new clients. It does not once it is stopping.
    pub running: bool,
    /// How long the loop has been running.
    pub uptime: Duration,
    /// The addresses that the server listens on.
    pub listen: Vec<String>,
    pub(crate) client_count: usize,
    /// How many of the clients are detached: their connection was cut, and they can still resume it.
    pub detached: usize,
    /// Connections of every kind: clients, calls, and those that have not sent a request yet.
    pub connections: usize,
    /// Calls that are being answered.
    pub calls: usize,
    /// The connected clients, or one page of them.
    pub clients: Vec<ClientStatus>,
    /// How many clients match the filter of the request.
    pub(crate) matched: usize,
    /// Whether more clients follow those of this page.
    pub(crate) has_more: bool,
    /// The traffic of all WebSocket clients since the start, including those that have disconnected.
    pub totals: Traffic,
    /// The calls that services have received since the start.
    pub total_calls: u64,
    /// The durations of turns of the loop, without waiting.
    pub turns: Histogram,
    /// The fields that the service adds.
    pub service: StatusFields,
}

/// A snapshot of one client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientStatus {
    /// Its id.
    pub id: ClientId,
    /// The path of its request.
    pub path: String,
    /// Where it connected from.
    pub remote: Remote,
    /// Its authenticated owner.
    pub principal: Principal,
    /// How long it has been connected.
    pub connected: Duration,
    /// How long ago its WebSocket was opened. A resumed connection continues the first one.
    pub opened: Duration,
    /// The beginning of the field User-Agent of its handshake.
    pub user_agent: Option<String>,
    /// The beginning of the field Origin of its handshake.
    pub origin: Option<String>,
    /// The TLS version and the cipher suite of its connection.
    pub tls: Option<String>,
    /// The bytes and messages that it sent and received.
    pub traffic: Traffic,
    /// Bytes of output that wait for it.
    pub queued_bytes: usize,
    /// How long ago the last PING was sent to it; `None` if there was none.
    pub last_ping: Option<Duration>,
    /// How long ago its last PONG arrived; `None` if there was none.
    pub last_pong: Option<Duration>,
    /// The state of a resumable client; `None` if the client is not resumable.
    pub resume: Option<ResumeStatus>,
}

/// A snapshot of a resumable client.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ResumeStatus {
    /// How long its connection has been cut; `None` while it is connected.
    pub detached: Option<Duration>,
    /// Bytes of messages that are kept for it.
    pub kept_bytes: usize,
    /// The number of times that it has come back.
    pub resumes: u64,
}

impl Status {
    /// The number of connected clients.
    #[must_use]
    pub fn client_count(&self) -> usize {
        self.client_count
    }

    /// The status as the text of a JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        self.to_value().to_string()
    }

    pub(crate) fn to_value(&self) -> Value {
        let clients: Vec<Value> = self.clients.iter().map(ClientStatus::to_value).collect();
        let mut status = json!({
            "running": self.running,
            "pid": std::process::id(),
            "uptime_s": seconds(self.uptime),
            "listen": self.listen,
            "client_count": self.client_count,
            "matched": self.matched,
            "detached": self.detached,
            "connections": self.connections,
            "calls": self.calls,
            "totals": {
                "messages_in": self.totals.messages_in,
                "messages_out": self.totals.messages_out,
                "bytes_in": self.totals.bytes_in,
                "bytes_out": self.totals.bytes_out,
                "calls": self.total_calls,
            },
            "turns": self.turns.to_value(),
            "clients": clients,
        });
        if self.has_more {
            let last = self.clients.last();
            status["next"] = last.map(|client| client.id.to_string()).into();
        }
        if let Value::Object(fields) = &mut status {
            fields.extend(self.service.0.clone());
        }
        status
    }
}

impl ClientStatus {
    /// The status as the text of a JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        self.to_value().to_string()
    }

    fn to_value(&self) -> Value {
        let mut status = json!({
            "id": self.id.to_string(),
            "path": self.path,
            "remote": self.remote.to_string(),
            "principal": self.principal.to_string(),
            "connected_s": seconds(self.connected),
            "opened_s": seconds(self.opened),
            "bytes_in": self.traffic.bytes_in,
            "bytes_out": self.traffic.bytes_out,
            "messages_in": self.traffic.messages_in,
            "messages_out": self.traffic.messages_out,
            "queued_bytes": self.queued_bytes,
            "last_ping_s": self.last_ping.map(seconds),
            "last_pong_s": self.last_pong.map(seconds),
        });
        for (name, text) in [
            ("user_agent", &self.user_agent),
            ("origin", &self.origin),
            ("tls", &self.tls),
        ] {
            if let Some(text) = text {
                status[name] = text.as_str().into();
            }
        }
        if let Some(resume) = self.resume {
            status["resume"] = json!({
                "detached_s": resume.detached.map(seconds),
                "kept_bytes": resume.kept_bytes,
                "resumes": resume.resumes,
            });
        }
        status
    }
}

/// Named values that a service adds to the [`Status`] of its server: a JSON object.
///
/// ```
/// use outrigger::StatusFields;
///
/// let rooms = StatusFields::new().set("open", 2).set("topic", "boats");
/// let fields = StatusFields::new().set("rooms", rooms);
/// assert_eq!(fields.to_json(), r#"{"rooms":{"open":2,"topic":"boats"}}"#);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusFields(pub(crate) Map<String, Value>);

impl StatusFields {
    /// No fields.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a field, or replaces the one of this name.
    #[must_use]
    pub fn set(mut self, name: impl Into<String>, value: impl Into<StatusValue>) -> Self {
        self.0.insert(name.into(), value.into().0);
        self
    }

    /// The fields as the text of a JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        Value::from(self.0.clone()).to_string()
    }

    /// The fields of a JSON object; none for any other value.
    pub(crate) fn from_value(value: Value) -> Self {
        match value {
            Value::Object(fields) => Self(fields),
            _ => Self::default(),
        }
    }
}

/// The value of a field in [`StatusFields`]: a number, a string, a truth value, an object or a histogram.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusValue(Value);

/// Converts types that JSON has.
macro_rules! status_values {
    ($($kind:ty),*) => {
        $(impl From<$kind> for StatusValue {
            fn from(value: $kind) -> Self {
                Self(value.into())
            }
        })*
    };
}

status_values!(bool, i32, i64, u8, u16, u32, u64, usize, f64, &str, String);

impl From<StatusFields> for StatusValue {
    fn from(fields: StatusFields) -> Self {
        Self(fields.0.into())
    }
}

impl From<Histogram> for StatusValue {
    fn from(histogram: Histogram) -> Self {
        Self(histogram.to_value())
    }
}

impl<T: Into<Self>> From<Vec<T>> for StatusValue {
    fn from(values: Vec<T>) -> Self {
        let values = values.into_iter().map(|value| value.into().0);
        Self(values.collect())
    }
}

/// Seconds, rounded to milliseconds.
fn seconds(duration: Duration) -> f64 {
    duration.as_millis() as f64 / 1000.0
}
