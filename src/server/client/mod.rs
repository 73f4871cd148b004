//! One client: its socket, its protocol state, and all operations on it.
//!
//! A [`Client`] owns its socket and its protocol state. The event loop calls its methods, which read, write, answer
//! HTTP and close. They take [`Env`], the state that all clients of a loop share. They do not call services and do not
//! remove the client. Instead, they queue news for the loop.

mod backlog;
mod broadcast;
mod forwarding;
mod http;
mod inbound;
mod keeping;
mod lifecycle;
mod outbound;
mod outbox;
mod outgoing;
mod remote;
mod resumable;
mod takeover;
mod upstream;

use std::sync::Arc;
use std::time::Duration;

use self::backlog::Backlog;
pub(super) use self::broadcast::Broadcast;
pub(super) use self::inbound::{Inbound, Input, Read, ReadGate, SHORT_READ, Why};
pub use self::remote::Remote;
use self::resumable::Detached;
pub(super) use self::takeover::WrongCount;
use super::connector::Outgoing;
use super::env::Env;
use super::id::{ClientId, ServiceId};
use super::news::News;
use super::policy::CredentialId;
use super::scheduler::{AccountId, Work};
use super::stream::Stream;
use super::tls::{PeerCertificate, TlsStream};
use super::traffic::Traffic;
use super::wheel::Link;
use crate::protocol::http::{HttpConnection, TraceParent};
use crate::protocol::{Time, WebSocket};

/// The state of a client. Rarely used state is behind a pointer, which is `None` while the client is idle.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: ClientId,
    connection: Connection,
    /// Output that waits for the socket, input that waits for the service, and rarely used state.
    backlog: Option<Box<Backlog>>,
    /// The path of the handshake. Clients with the same path share the text.
    pub(super) path: Option<Arc<Box<str>>>,
    pub(super) traffic: Traffic,
    /// The position in the timer wheel.
    pub(super) timer: Link,
    stream: Stream,
    pub(super) remote: Remote,
    /// The token of the last request.
    pub(super) credential: Option<CredentialId>,
    /// The service of the last request.
    pub(super) service_id: ServiceId,
    /// Who pays for the work that the client causes.
    pub(super) account: AccountId,
    flags: Flags,
    /// The low bits of [`Client::delivered`] when progress was last measured.
    delivered_mark: u32,
    /// When the WebSocket was opened, in hundredths of a second since the loop started. They last 497 days.
    opened: u32,
}

/// The protocol of a connection.
#[derive(Debug)]
enum Connection {
    /// HTTP: every connection before its upgrade.
    Http(HttpConnection),
    /// WebSocket, after the upgrade.
    WebSocket(WebSocket),
    /// A connection that this side is opening.
    Outgoing(Box<Outgoing>),
    /// None: the connection was cut, and the client may resume it.
    Detached(Box<Detached>),
}

/// A point in time in hundredths of a second, modulo 2^32.
fn hundredths(time: Time) -> u32 {
    (time.as_millis() / 10) as u32
}

/// A set of [`Flag`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flags(u8);

/// A boolean property of a client.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
enum Flag {
    /// The socket may have more to read.
    Readable = 1,
    /// The peer has half-closed the connection, so end of file follows even after a short read.
    HungUp = 1 << 1,
    /// The service has called `set_held`: messages from this client wait.
    Held = 1 << 2,
    /// The last read ended inside a long message.
    SendsLong = 1 << 3,
    /// The client is in the queue of readable clients.
    Queued = 1 << 4,
    /// The connection is counted for its address.
    Counted = 1 << 5,
    /// The last request was authenticated, or the server requires no token.
    Trusted = 1 << 6,
    /// The client is checked out and being read. Its output goes to the loop's write buffer.
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
            credential: None,
            service_id: ServiceId::ALL,
            account: AccountId::SERVER,
            flags: Flags::default(),
            delivered_mark: 0,
            opened: 0,
        }
    }

    /// Records that the WebSocket is open.
    fn set_opened(&mut self, now: Time) {
        self.opened = hundredths(now);
    }

    /// How long the WebSocket has been open, without the time before the upgrade.
    pub(super) fn open_for(&self, now: Time) -> Duration {
        Duration::from_millis(u64::from(hundredths(now).wrapping_sub(self.opened)) * 10)
    }

    /// Keeps the trace of a request until the next one.
    pub(super) fn set_trace(&mut self, trace: Option<TraceParent>) {
        if let Some(trace) = trace {
            self.backlog.get_or_insert_default().trace = Some(Box::new(trace));
        } else if let Some(backlog) = &mut self.backlog {
            backlog.trace = None;
        }
    }

    /// The trace of the last request.
    pub(super) fn trace(&self) -> Option<&TraceParent> {
        self.backlog.as_ref()?.trace.as_deref()
    }

    /// The ids of the trace of the last request, for the log: of the trace, and of the span that made the request.
    pub(super) fn trace_ids(&self) -> Option<(String, String)> {
        let trace = self.trace()?;
        Some((trace.trace_id(), trace.parent_id()))
    }

    /// The path of the handshake. Empty before the upgrade.
    pub(super) fn path(&self) -> &str {
        self.path.as_ref().map_or("", |path| path)
    }

    /// Whether the service can send messages to the client.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        match &self.connection {
            Connection::WebSocket(socket) if socket.is_open() => !self.is_close_waiting(),
            Connection::WebSocket(_) => self.takes_messages(),
            Connection::Detached(_) => self.takes_messages(),
            Connection::Http(_) | Connection::Outgoing(_) => false,
        }
    }

    /// Whether the connection carries messages. That of a client that is [open](Client::is_open) may have been cut.
    #[inline]
    pub(super) fn is_connected(&self) -> bool {
        matches!(&self.connection, Connection::WebSocket(socket) if socket.is_open())
    }

    /// Whether the service has seen `connected` and is owed `disconnected`.
    pub(super) fn was_open(&self) -> bool {
        !matches!(
            self.connection,
            Connection::Http(_) | Connection::Outgoing(_)
        )
    }

    /// Whether the client has come through a listener, and its service has seen it.
    pub(super) fn is_admitted(&self) -> bool {
        self.was_open() && !self.is_ours()
    }

    /// When the current state of the connection began. For an open WebSocket: when it was opened.
    pub(super) fn since(&self) -> Time {
        match &self.connection {
            Connection::Http(http) => http.since(),
            Connection::Outgoing(outgoing) => outgoing.began,
            Connection::WebSocket(socket) => socket.since(),
            Connection::Detached(detached) => detached.since,
        }
    }

    /// When the last data message passed in either direction.
    pub(super) fn last_message(&self) -> Time {
        match &self.connection {
            Connection::Http(http) => http.since(),
            Connection::Outgoing(outgoing) => outgoing.began,
            Connection::WebSocket(socket) => socket.last_message(),
            Connection::Detached(detached) => detached.last_message,
        }
    }

    /// The time since the last bytes arrived from an upgraded client.
    pub(super) fn silence(&self, now: Time) -> Duration {
        match &self.connection {
            Connection::WebSocket(socket) => socket.silence(now),
            Connection::Http(_) | Connection::Outgoing(_) | Connection::Detached(_) => {
                now.since(self.since())
            }
        }
    }

    /// The number of bytes of output that wait for the socket.
    pub(super) fn queued(&self) -> usize {
        let backlog = self.backlog.as_ref();
        backlog.map_or(0, |backlog| backlog.queued()) + self.stream.sealed()
    }

    /// Whether the client is unauthenticated, not upgraded, and has no pending call.
    pub(super) fn is_stranger(&self) -> bool {
        let Connection::Http(http) = &self.connection else {
            return false;
        };
        !self.flags.has(Flag::Trusted) && !http.is_unanswered()
    }

    /// The TLS stream, if the connection uses TLS.
    pub(super) fn tls(&self) -> Option<&TlsStream> {
        self.stream.tls()
    }

    /// The certificate of a client that can resume its connection.
    pub(super) fn kept_certificate(&self) -> Option<&PeerCertificate> {
        self.resumable()?.certificate.as_deref()
    }

    /// The name in the certificate of the client. A client that was cut keeps it.
    pub(super) fn certificate_name(&self) -> Option<Arc<str>> {
        let name = self.tls().and_then(TlsStream::peer);
        let kept = || self.kept_certificate().map(PeerCertificate::name);
        name.or_else(kept).cloned()
    }

    /// Whether the client needs no token: the mode of a unix socket has admitted it, or its certificate, or a trusted proxy names
    /// its user.
    pub(super) fn needs_no_token(&self, env: &Env) -> bool {
        if self.is_from_trusted_proxy() {
            return self.forwarded_user().is_some();
        }
        let config = &env.config;
        let has_certificate = || self.tls().is_some_and(|tls| tls.peer().is_some());
        self.remote.user().is_some() || (config.is_client_auth_enough() && has_certificate())
    }

    /// Whether the connection is counted for its address.
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
            env.scheduler.push(self.account, Work::Read(self.id));
        }
    }

    /// Asks the loop to remove the client. The state of the connection does not change.
    pub(super) fn disconnect(&self, env: &mut Env) {
        env.push_news(self.id, News::Closing);
    }

    /// The connection in memory, if it is one.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn memory_stream(&self) -> Option<&super::memory_stream::MemoryStream> {
        match &self.stream {
            Stream::Memory(stream) => Some(stream),
            _ => None,
        }
    }

    /// The memory that the protocol holds for the peer, in bytes.
    fn held_by_protocol(&self) -> usize {
        match &self.connection {
            Connection::Http(http) => http.held(),
            Connection::WebSocket(socket) => socket.held(),
            Connection::Outgoing(_) | Connection::Detached(_) => 0,
        }
    }

    /// The memory that is held for the client, in bytes: what the end of the client would free.
    pub(super) fn holds(&self) -> usize {
        let backlog = self.backlog.as_ref();
        let tls = self.stream.tls().map_or(0, TlsStream::held);
        self.held_by_protocol() + backlog.map_or(0, |backlog| backlog.held()) + tls
    }

    /// The memory of the client's protocol and its compressors, in bytes.
    #[cfg(any(test, fuzzing))]
    pub(super) fn held(&self) -> usize {
        let codec = match &self.connection {
            Connection::WebSocket(socket) => socket.held_by_codec(),
            _ => 0,
        };
        self.held_by_protocol() + codec
    }
}

/// The maximum size of a client in the registry, in bytes, in a release build: ten thousand idle clients take 1.6 MB. With TLS
/// it is 8 bytes larger, for the pointer to the session, which is elsewhere.
#[cfg(any(test, not(any(fuzzing, debug_assertions))))]
const ENTRY: usize = if cfg!(feature = "tls") { 160 } else { 152 };

// The socket of a debug build is larger.
#[cfg(not(any(test, fuzzing, debug_assertions)))]
const _: () = assert!(size_of::<Client>() <= ENTRY);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stays_small() {
        // A new field shows here.
        assert!(
            size_of::<Client>() <= ENTRY + 24,
            "{} (the stream of a test build is 20 bytes larger, which makes 24 with padding)",
            size_of::<Client>()
        );
    }
}
