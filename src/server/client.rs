//! One entry of the registry.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::backlog::Backlog;
use super::deadlines::Link;
use super::id::ServiceId;
use super::stream::Stream;
use crate::protocol::{Connection, Phase, Time};

/// All there is of a client. What it needs only now and then lies behind a pointer that is empty while it waits.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) connection: Connection,
    pub(super) backlog: Option<Box<Backlog>>,
    /// The path of the request that made it a client. Clients of the same path share the text.
    pub(super) path: Option<Arc<Box<str>>>,
    pub(super) traffic: Traffic,
    pub(super) serial: u64,
    pub(super) link: Link,
    pub(super) stream: Stream,
    pub(super) remote: Remote,
    /// The service that its last request was for.
    pub(super) service_id: ServiceId,
    pub(super) flags: Flags,
    /// The low bits of [`Client::delivered`] when progress was last measured.
    delivered_mark: u32,
}

/// The flags of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags(u8);

impl Flags {
    /// The socket may have more to read than was read.
    pub(super) const READABLE: u8 = 1;
    /// The peer has ended its direction, so end of file follows even after a short read.
    pub(super) const HUNG_UP: u8 = 1 << 1;
    /// The service asked for no more input from it.
    pub(super) const HELD: u8 = 1 << 2;
    /// The bytes last read were in the middle of a long message.
    pub(super) const SENDS_LONG: u8 = 1 << 3;
    /// It stands in the queue of clients to read again.
    pub(super) const IN_READY: u8 = 1 << 4;
    /// It is counted among the connections of its address.
    pub(super) const COUNTED: u8 = 1 << 5;
    /// It has shown the token, or has made a request to a server that requires none.
    pub(super) const TRUSTED: u8 = 1 << 6;

    /// Whether a flag is set.
    pub(super) fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    /// Sets or clears a flag and returns what it was.
    pub(super) fn set(&mut self, flag: u8, on: bool) -> bool {
        let before = self.has(flag);
        self.0 = if on { self.0 | flag } else { self.0 & !flag };
        before
    }
}

/// What may be read from a client now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadGate {
    /// Everything.
    Open,
    /// Control frames and the end of the connection, up to the next data message.
    ControlOnly,
    /// Nothing, for this reason.
    Shut(Held),
}

/// Why a client is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// The service takes no data messages, and the next one is there.
    Service,
    /// Its output is over the soft limit and has not drained since.
    Output,
    /// A call has to be answered before what was read behind it is handled.
    Answer,
}

/// What went through a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes read from the socket.
    pub bytes_in: u64,
    /// Bytes written to the socket.
    pub bytes_out: u64,
    /// Data messages received.
    pub messages_in: u64,
    /// Data messages sent, those that still wait included.
    pub messages_out: u64,
}

impl Traffic {
    /// Adds what went through another connection.
    pub(super) fn add(&mut self, other: Self) {
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.messages_in += other.messages_in;
        self.messages_out += other.messages_out;
    }
}

impl Client {
    pub(super) fn new(stream: Stream, remote: Remote, serial: u64, now: Time) -> Self {
        Self {
            connection: Connection::new(now),
            backlog: None,
            path: None,
            traffic: Traffic::default(),
            serial,
            link: Link::default(),
            stream,
            remote,
            service_id: ServiceId::ALL,
            flags: Flags::default(),
            delivered_mark: 0,
        }
    }

    /// The path of the request that made it a client.
    pub(super) fn path(&self) -> &str {
        self.path.as_ref().map_or("", |path| path)
    }

    /// Bytes of output that wait.
    pub(super) fn queued(&self) -> usize {
        self.backlog.as_ref().map_or(0, |backlog| backlog.queued())
    }

    /// Whether it is unauthenticated: not a client, without a pending call, and without a token shown.
    pub(super) fn is_stranger(&self) -> bool {
        !self.flags.has(Flags::TRUSTED)
            && !self.connection.was_open()
            && !self.connection.is_unanswered()
    }

    /// The longest piece of output that waits, or more.
    pub(super) fn largest_queued(&self) -> usize {
        self.backlog.as_ref().map_or(0, |backlog| backlog.largest())
    }

    /// Whether the peer has taken output within `patience`.
    pub(super) fn takes_steadily(&mut self, now: Time, patience: Duration) -> bool {
        let delivered = self.delivered();
        match self.backlog.as_deref_mut() {
            Some(backlog) => backlog.takes_steadily(delivered, now, patience),
            None => true,
        }
    }

    /// Whether input was read that waits to be handled.
    pub(super) fn has_unread(&self) -> bool {
        self.backlog
            .as_ref()
            .is_some_and(|backlog| !backlog.unread.is_empty())
    }

    /// Whether there may be input: bytes in the socket, or input that was already read.
    pub(super) fn has_input(&self) -> bool {
        self.flags.has(Flags::READABLE) || self.has_unread() || self.connection.is_inflating()
    }

    /// What may be read from it. `paused` says that its service takes no data messages at the moment.
    pub(super) fn read_gate(&self, paused: bool) -> ReadGate {
        let phase = self.connection.phase();
        match phase {
            // What a closing connection still sends is discarded: closing a socket with unread data resets the
            // connection, and the reset destroys what the peer has not read yet.
            Phase::Answered | Phase::Closing | Phase::Failed | Phase::Finished => {
                return ReadGate::Open;
            }
            _ if self.is_congested() => return ReadGate::Shut(Held::Output),
            Phase::Answering | Phase::Streaming if self.has_unread() => {
                return ReadGate::Shut(Held::Answer);
            }
            _ => {}
        }
        if !self.is_held(paused) {
            ReadGate::Open
        } else if self.has_unread() || self.connection.awaits_data() {
            ReadGate::Shut(Held::Service)
        } else {
            ReadGate::ControlOnly
        }
    }

    /// Whether the service takes no data messages from it.
    pub(super) fn is_held(&self, paused: bool) -> bool {
        // Requests are always read, because some are not for the service. A peer that has ended its direction is read
        // to see the end of file behind its last bytes.
        (paused && self.connection.was_open())
            || (self.flags.has(Flags::HELD) && !self.flags.has(Flags::HUNG_UP))
    }

    /// Bytes that the peer's system has taken, as far as the system tells. For a unix socket it counts overhead too,
    /// so only differences mean something.
    pub(super) fn delivered(&self) -> u64 {
        let unsent = self.stream.unsent().unwrap_or(0) as u64;
        self.traffic.bytes_out.wrapping_sub(unsent)
    }

    /// Whether the peer's system has taken everything that was sent.
    pub(super) fn is_delivered(&self) -> bool {
        self.queued() == 0 && self.stream.unsent().unwrap_or(0) == 0
    }

    /// Begins to measure progress.
    pub(super) fn mark_delivered(&mut self) {
        self.delivered_mark = self.delivered() as u32;
    }

    /// Bytes that the peer's system has taken since progress was last measured. Writing to our own system is no
    /// progress: its buffer may grow while nobody reads.
    pub(super) fn measure_progress(&mut self) -> u32 {
        let before = self.delivered_mark;
        self.mark_delivered();
        let taken = self.delivered_mark.wrapping_sub(before) as i32;
        taken.max(0) as u32
    }

    /// Whether its input is held back until its output has drained.
    pub(super) fn is_congested(&self) -> bool {
        self.backlog
            .as_ref()
            .is_some_and(|backlog| backlog.congested)
    }
}

/// Where a client's connection comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// An IPv4 address is kept in its mapped form: one shape, 18 bytes. For a unix socket, [`UNIX`] and the user's id.
    ip: [u8; 16],
    port: u16,
}

/// The first bytes of an address that stands for a unix socket: a multicast address, from which nobody can connect.
const UNIX: [u8; 2] = [0xff, 0];

impl Remote {
    /// A unix socket that does not identify the peer: another process has opened it, or a proxy forwards others'
    /// connections.
    pub(super) const SHARED_UNIX: Self = Self {
        ip: [UNIX[0], UNIX[1], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        port: 1,
    };

    /// A unix socket that the server has made, to which the user with this id has connected.
    pub(super) fn unix(user: u32) -> Self {
        let mut ip = Self::SHARED_UNIX.ip;
        ip[12..].copy_from_slice(&user.to_be_bytes());
        Self { ip, port: 0 }
    }

    /// Whether it is a unix socket of any kind.
    pub fn is_unix(self) -> bool {
        self.ip.starts_with(&UNIX)
    }

    /// The id of the user who has connected to a unix socket of the server's own.
    pub fn user(self) -> Option<u32> {
        let id = [self.ip[12], self.ip[13], self.ip[14], self.ip[15]];
        (self.is_unix() && self.port == 0).then(|| u32::from_be_bytes(id))
    }

    /// The IP address; unspecified for a unix socket.
    pub fn ip(self) -> IpAddr {
        if self.is_unix() {
            return Ipv6Addr::UNSPECIFIED.into();
        }
        Ipv6Addr::from(self.ip).to_canonical()
    }
}

impl From<SocketAddr> for Remote {
    fn from(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            // A proxy may send any address; none of them turns a connection into a unix socket.
            IpAddr::V6(ip) if ip.octets().starts_with(&UNIX) => Ipv6Addr::UNSPECIFIED,
            IpAddr::V6(ip) => ip,
        };
        Self {
            ip: ip.octets(),
            port: address.port(),
        }
    }
}

impl From<Remote> for SocketAddr {
    fn from(remote: Remote) -> Self {
        Self::new(remote.ip(), remote.port)
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_unix() {
            return f.write_str("unix");
        }
        SocketAddr::from(*self).fmt(f)
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stays_small() {
        // Ten thousand idle clients are 1.4 MB. Whoever adds a field sees it here.
        assert!(
            size_of::<Client>() <= 136 + 16,
            "{} (the test build's stream is larger by 12, which makes 16)",
            size_of::<Client>()
        );
    }

    #[test]
    fn addresses_keep_their_family() {
        for text in ["127.0.0.1:80", "[::1]:80", "[2001:db8::1]:65535"] {
            assert_eq!(
                Remote::from(text.parse::<SocketAddr>().expect("an address")).to_string(),
                text
            );
        }
    }

    #[test]
    fn only_a_unix_socket_of_our_own_has_a_user_and_no_address_passes_for_one() {
        // The bug: a proxy that named [::]:0 made its client one of our own unix socket, which needs no token.
        for user in [0, 1000, u32::MAX] {
            let remote = Remote::unix(user);
            assert!(remote.is_unix() && remote.user() == Some(user));
            assert_eq!(remote.ip(), IpAddr::from(Ipv6Addr::UNSPECIFIED));
            assert_eq!(remote.to_string(), "unix");
        }
        assert!(Remote::SHARED_UNIX.is_unix() && Remote::SHARED_UNIX.user().is_none());
        for text in ["[::]:0", "[::]:1", "0.0.0.0:0", "[ff00::1]:0", "[ff00::]:1"] {
            let remote = Remote::from(text.parse::<SocketAddr>().expect("an address"));
            assert!(!remote.is_unix() && remote.user().is_none(), "{text}");
        }
    }
}
