//! The peer's address.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Where a client's connection comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// An IPv6 address, or an IPv4 address in its IPv6-mapped form. For a unix socket: [`UNIX`] and the user's id.
    ip: [u8; 16],
    port: u16,
}

/// The first bytes of an address that represents a unix socket. It is a multicast address, which no connection comes
/// from.
const UNIX: [u8; 2] = [0xff, 0];

impl Remote {
    /// A unix socket that does not identify the peer: another process has opened it, or a proxy forwards others'
    /// connections.
    pub(in crate::server) const SHARED_UNIX: Self = Self {
        ip: [UNIX[0], UNIX[1], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        port: 1,
    };

    /// A unix socket that the server created, to which the user with this id has connected.
    pub(in crate::server) fn unix(user: u32) -> Self {
        let mut ip = Self::SHARED_UNIX.ip;
        ip[12..].copy_from_slice(&user.to_be_bytes());
        Self { ip, port: 0 }
    }

    /// Whether the connection came through a unix socket of any kind.
    pub fn is_unix(self) -> bool {
        self.ip.starts_with(&UNIX)
    }

    /// The id of the user, if the connection came through a unix socket that the server created.
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
