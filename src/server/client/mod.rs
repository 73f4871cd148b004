//! One client and everything that is done to it.
//!
//! A [`Client`] owns its socket and its protocol state. It reads, writes, answers HTTP and closes
//! itself; the loop asks it to. Methods take [`Env`], which is what the clients of a loop use together. They do not call
//! services and do not remove the client: what the loop has to act on goes to the run queue as news.

mod backlog;
mod http;
mod inbound;
mod lifecycle;
mod outbound;
mod remote;

use std::sync::Arc;

use self::backlog::Backlog;
pub(super) use self::inbound::{Inbound, Input, Read, ReadGate, Why};
pub(super) use self::outbound::{Broadcast, WRITE_BUFFER};
pub use self::remote::Remote;
use super::core::Env;
use super::id::{ClientId, ServiceId};
use super::run_queue::News;
use super::stream::Stream;
use super::timers::Link;
use crate::protocol::http::HttpConnection;
use crate::protocol::{Time, WebSocket};

/// The state of a client. What it needs only now and then is behind a pointer that is empty while it is idle.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: ClientId,
    connection: Connection,
    /// Output that waits for the socket, and input that waits for the service.
    backlog: Option<Box<Backlog>>,
    /// The path of its handshake. Clients with the same path share the text.
    pub(super) path: Option<Arc<Box<str>>>,
    pub(super) traffic: Traffic,
    /// Its place in the timer wheel.
    pub(super) timer: Link,
    stream: Stream,
    pub(super) remote: Remote,
    /// The service of its last request.
    pub(super) service_id: ServiceId,
    flags: Flags,
    /// The low bits of [`Client::delivered`] when progress was last measured.
    delivered_mark: u32,
}

/// What a client speaks.
#[derive(Debug)]
enum Connection {
    /// HTTP: every connection before its upgrade.
    Http(HttpConnection),
    /// WebSocket, after the upgrade.
    WebSocket(WebSocket),
}

/// A set of [`Flag`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flags(u8);

/// What is true of a client.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
enum Flag {
    /// The socket may have more to read.
    Readable = 1,
    /// The peer has ended its direction, so end of file follows even after a short read.
    HungUp = 1 << 1,
    /// The service takes no messages from this client.
    Held = 1 << 2,
    /// The last read ended inside a long message.
    SendsLong = 1 << 3,
    /// It is in the run queue of readable clients.
    Queued = 1 << 4,
    /// It is counted among the connections of its address.
    Counted = 1 << 5,
    /// Its last request was authenticated, or the server requires no token.
    Trusted = 1 << 6,
    /// It is checked out and being read: its output goes to the loop's write buffer.
    Reading = 1 << 7,
}

impl Flags {
    fn has(self, flag: Flag) -> bool {
        self.0 & flag as u8 != 0
    }

    /// Sets or clears a flag and returns what it was.
    fn set(&mut self, flag: Flag, on: bool) -> bool {
        let before = self.has(flag);
        self.0 = if on {
            self.0 | flag as u8
        } else {
            self.0 & !(flag as u8)
        };
        before
    }
}

/// The number of bytes and messages that a connection has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Bytes read from the socket.
    pub bytes_in: u64,
    /// Bytes written to the socket.
    pub bytes_out: u64,
    /// Data messages received.
    pub messages_in: u64,
    /// Data messages sent, including those that are still queued.
    pub messages_out: u64,
}

impl Traffic {
    /// Adds the traffic of another connection.
    pub(super) fn add(&mut self, other: Self) {
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.messages_in += other.messages_in;
        self.messages_out += other.messages_out;
    }
}

impl Client {
    /// A client that has just connected.
    pub(super) fn new(id: ClientId, stream: Stream, remote: Remote, now: Time) -> Self {
        Self {
            id,
            connection: Connection::Http(HttpConnection::new(now)),
            backlog: None,
            path: None,
            traffic: Traffic::default(),
            timer: Link::default(),
            stream,
            remote,
            service_id: ServiceId::ALL,
            flags: Flags::default(),
            delivered_mark: 0,
        }
    }

    /// The path of its handshake; empty before that.
    pub(super) fn path(&self) -> &str {
        self.path.as_ref().map_or("", |path| path)
    }

    /// Whether it can be sent messages.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        matches!(&self.connection, Connection::WebSocket(socket) if socket.is_open())
    }

    /// Whether the service has seen `connected` and is owed `disconnected`.
    pub(super) fn was_open(&self) -> bool {
        matches!(self.connection, Connection::WebSocket(_))
    }

    /// When the present state of the connection began. For an open WebSocket: when it was opened.
    pub(super) fn since(&self) -> Time {
        match &self.connection {
            Connection::Http(http) => http.since(),
            Connection::WebSocket(socket) => socket.since(),
        }
    }

    /// When the last data message passed in either direction.
    pub(super) fn last_message(&self) -> Time {
        match &self.connection {
            Connection::Http(http) => http.since(),
            Connection::WebSocket(socket) => socket.last_message(),
        }
    }

    /// Bytes of output that wait for the socket.
    pub(super) fn queued(&self) -> usize {
        self.backlog.as_ref().map_or(0, |backlog| backlog.queued())
    }

    /// Whether it has shown no token, is not open, and has no pending call.
    pub(super) fn is_stranger(&self) -> bool {
        let Connection::Http(http) = &self.connection else {
            return false;
        };
        !self.flags.has(Flag::Trusted) && !http.is_unanswered()
    }

    /// Whether it is counted among the connections of its address.
    pub(super) fn is_counted(&self) -> bool {
        self.flags.has(Flag::Counted)
    }

    /// Marks the client as checked out of its slot, or as back in it.
    pub(super) fn set_reading(&mut self, reading: bool) {
        self.flags.set(Flag::Reading, reading);
    }

    /// Queues the client for reading if there may be input.
    pub(super) fn read_again(&mut self, env: &mut Env) {
        if self.has_input() && !self.flags.set(Flag::Queued, true) {
            env.queue.push_readable(self.id);
        }
    }

    /// Tells the loop that the connection is over. Its state does not change.
    pub(super) fn disconnect(&self, env: &mut Env) {
        env.queue.push_news(self.id, News::Closing);
    }

    /// Memory that the peer has made the connection hold, in bytes.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn held(&self) -> usize {
        match &self.connection {
            Connection::Http(http) => http.held(),
            Connection::WebSocket(socket) => socket.held(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stays_small() {
        // Ten thousand idle clients take 1.4 MB. A new field shows here.
        assert!(
            size_of::<Client>() <= 136 + 16,
            "{} (the stream of a test build is 12 bytes larger, which makes 16 with padding)",
            size_of::<Client>()
        );
    }
}
