//! One entry of the registry.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::backlog::Backlog;
use super::deadlines::Link;
use super::id::Mount;
use super::stream::Stream;
use crate::protocol::{Connection, Time};

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
    pub(super) mount: Mount,
    /// Whether the socket may have more to read than was read.
    pub(super) readable: bool,
    /// Whether the peer has ended its direction, so that even a short read has an end behind it.
    pub(super) hung_up: bool,
    /// Whether the service asked for no more input from it.
    pub(super) held: bool,
    /// Whether its last bytes were the inside of a long message.
    pub(super) sends_long: bool,
    /// Whether it stands in the list of clients that are read again.
    pub(super) in_ready: bool,
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
            mount: Mount::WHOLE,
            readable: false,
            hung_up: false,
            held: false,
            sends_long: false,
            in_ready: false,
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
    /// A unix socket whose mode does not say who that is: somebody else has opened it, or a proxy passes others on.
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
            // A proxy may say anything; no address makes a unix socket of a connection.
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
