//! Addresses: those to listen on, as configured, those that a server listens on, and those that clients come from.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::record::record;

/// An address to listen on.
///
/// ```
/// use outrigger::Listen;
///
/// for text in ["127.0.0.1:7070", "[::1]:0", "127.0.0.1:10000-20000", "unix:/run/outrigger.sock", "plain:[::1]:80"] {
///     let listen: Listen = text.parse()?;
///     assert_eq!(listen.to_string(), text);
/// }
///
/// // A socket that is already open.
/// let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
/// let listen = Listen::inherited(socket);
/// # Ok::<(), outrigger::ParseListenError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    pub(super) place: Place,
    tls: Option<bool>,
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Tcp(SocketAddr),
    PortRange(IpAddr, RangeInclusive<u16>),
    Unix(PathBuf),
    Inherited(InheritedSocket),
}

impl Listen {
    /// A TCP address. Port 0 takes a free port.
    pub fn tcp(address: impl Into<SocketAddr>) -> Self {
        Self::at(Place::Tcp(address.into()))
    }

    /// A random free port of a range.
    pub fn port_range(ip: impl Into<IpAddr>, ports: RangeInclusive<u16>) -> Self {
        Self::at(Place::PortRange(ip.into(), ports))
    }

    /// A unix socket that only the server's user can connect to. The socket file of a server that has ended is replaced.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::at(Place::Unix(path.into()))
    }

    /// A listening socket that is already open, such as one that a service manager has passed.
    pub fn inherited(socket: impl Into<OwnedFd>) -> Self {
        Self::at(Place::Inherited(InheritedSocket::new(socket.into(), None)))
    }

    /// The same socket in the program that replaces the one which was started with it, under its first number.
    pub(super) fn inherited_as(socket: OwnedFd, number: RawFd) -> Self {
        Self::at(Place::Inherited(InheritedSocket::new(socket, Some(number))))
    }

    /// Sets whether connections to this address use TLS. By default, those to TCP addresses do if
    /// [`Config::tls`](crate::Config) is set, and those to unix sockets and inherited sockets do not.
    /// [`Server::bind`](crate::Server::bind) fails if an address uses TLS and there is no certificate.
    #[must_use]
    pub fn with_tls(mut self, tls: bool) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Whether connections to this address use TLS. `is_configured` says whether the server has a certificate.
    pub(crate) fn uses_tls(&self, is_configured: bool) -> bool {
        let is_tcp = matches!(self.place, Place::Tcp(_) | Place::PortRange(..));
        self.tls.unwrap_or(is_configured && is_tcp)
    }

    /// The IP address, unless it is a unix socket or already open.
    #[cfg(feature = "cli")]
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match &self.place {
            Place::Tcp(address) => Some(address.ip()),
            Place::PortRange(ip, _) => Some(*ip),
            Place::Unix(_) | Place::Inherited(_) => None,
        }
    }

    /// Whether it is a unix socket that the server creates.
    #[cfg(feature = "cli")]
    pub(crate) fn is_unix(&self) -> bool {
        matches!(self.place, Place::Unix(_))
    }

    /// Replaces the port of a TCP address by a range of ports.
    #[cfg(feature = "cli")]
    pub(crate) fn set_ports(&mut self, ports: &RangeInclusive<u16>) {
        if let Place::Tcp(address) = self.place {
            self.place = Place::PortRange(address.ip(), ports.clone());
        }
    }

    fn at(place: Place) -> Self {
        Self { place, tls: None }
    }
}

impl<A: Into<SocketAddr>> From<A> for Listen {
    fn from(address: A) -> Self {
        Self::tcp(address)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tls {
            Some(true) => f.write_str(TLS)?,
            Some(false) => f.write_str(PLAIN)?,
            None => {}
        }
        match &self.place {
            Place::Tcp(address) => address.fmt(f),
            Place::PortRange(ip, ports) => {
                let (first, last) = (ports.start(), ports.end());
                write!(f, "{}-{last}", SocketAddr::new(*ip, *first))
            }
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
            Place::Inherited(socket) => write!(f, "fd:{}", socket.number),
        }
    }
}

/// A string that is not a [`Listen`] address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseListenError(());

impl fmt::Display for ParseListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "expected IP:PORT, IP:FIRST-LAST or unix:PATH, with an optional prefix tls: or plain:",
        )
    }
}

impl std::error::Error for ParseListenError {}

/// The prefix of an address whose connections use TLS.
pub(super) const TLS: &str = "tls:";

/// The prefix of an address whose connections do not use TLS.
pub(super) const PLAIN: &str = "plain:";

/// Splits the prefix `tls:` or `plain:` from an address. Returns whether its connections use TLS, if the prefix says so.
pub(crate) fn split_security(text: &str) -> (Option<bool>, &str) {
    match (text.strip_prefix(TLS), text.strip_prefix(PLAIN)) {
        (Some(rest), _) => (Some(true), rest),
        (None, Some(rest)) => (Some(false), rest),
        (None, None) => (None, text),
    }
}

impl FromStr for Listen {
    type Err = ParseListenError;

    /// Parses `IP:PORT`, `IP:FIRST-LAST` or `unix:PATH`, with an optional prefix `tls:` or `plain:` ([`Listen::with_tls`]). It
    /// does not resolve host names, and it does not take over descriptors: use [`Listen::inherited`].
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (tls, address) = split_security(text);
        let place = parse_place(address).ok_or(ParseListenError(()))?;
        Ok(Self { place, tls })
    }
}

fn parse_place(text: &str) -> Option<Place> {
    if let Some(path) = text.strip_prefix("unix:") {
        return (!path.is_empty()).then(|| Place::Unix(path.into()));
    }
    if let Ok(address) = text.parse() {
        return Some(Place::Tcp(address));
    }
    let (first, last) = text.rsplit_once('-')?;
    let first: SocketAddr = first.parse().ok()?;
    let ports = first.port()..=last.parse().ok()?;
    let is_range = *ports.start() > 0 && !ports.is_empty();
    is_range.then_some(Place::PortRange(first.ip(), ports))
}

/// A listening socket that is already open. The server takes it over, and closes it when it stops listening; clones
/// share the socket, so a clone keeps it open.
#[derive(Clone, Debug)]
pub(super) struct InheritedSocket {
    socket: Arc<OwnedFd>,
    /// The number of the descriptor with which the first program was started.
    number: RawFd,
}

impl InheritedSocket {
    fn new(socket: OwnedFd, number: Option<RawFd>) -> Self {
        Self {
            number: number.unwrap_or_else(|| socket.as_raw_fd()),
            socket: Arc::new(socket),
        }
    }

    /// The descriptor, or a duplicate if there are clones.
    pub(super) fn into_fd(self) -> io::Result<OwnedFd> {
        Arc::try_unwrap(self.socket).or_else(|shared| shared.try_clone())
    }
}

impl PartialEq for InheritedSocket {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for InheritedSocket {}

/// An address that a server listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    socket: ListenSocket,
    tls: bool,
}

/// The socket that a server listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ListenSocket {
    Tcp(SocketAddr),
    /// A unix socket that the server created. Its mode limits who can connect.
    Unix(PathBuf),
    /// A unix socket that the server did not create, or that a proxy connects to. Any user may connect.
    SharedUnix(PathBuf),
}

impl ListenAddress {
    /// A TCP address with its port.
    pub(crate) fn of_tcp(address: SocketAddr) -> Self {
        Self::of(ListenSocket::Tcp(address))
    }

    /// A unix socket that the server created.
    pub(crate) fn of_unix(path: PathBuf) -> Self {
        Self::of(ListenSocket::Unix(path))
    }

    /// A unix socket that the server did not create.
    pub(super) fn of_shared_unix(path: PathBuf) -> Self {
        Self::of(ListenSocket::SharedUnix(path))
    }

    fn of(socket: ListenSocket) -> Self {
        Self { socket, tls: false }
    }

    /// Sets whether connections use TLS.
    pub(crate) fn with_tls(self, tls: bool) -> Self {
        Self { tls, ..self }
    }

    /// Marks a unix socket as used by proxies, so that its mode does not authenticate clients.
    pub(super) fn share(&mut self) {
        if let ListenSocket::Unix(path) = &mut self.socket {
            self.socket = ListenSocket::SharedUnix(std::mem::take(path));
        }
    }

    /// The TCP address.
    #[must_use]
    pub fn tcp(&self) -> Option<SocketAddr> {
        match &self.socket {
            ListenSocket::Tcp(address) => Some(*address),
            ListenSocket::Unix(_) | ListenSocket::SharedUnix(_) => None,
        }
    }

    /// Whether connections use TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Whether the mode of a socket file limits who can connect.
    pub(super) fn is_guarded(&self) -> bool {
        matches!(&self.socket, ListenSocket::Unix(_))
    }

    /// Whether clients must present the token of the server, if it has one.
    #[must_use]
    pub fn asks_for_token(&self) -> bool {
        !self.is_guarded()
    }

    /// The URL that clients on this machine connect to. The URL of a unix socket has the form of npm's `ws`:
    /// `ws+unix:SOCKET:PATH`. With TLS, the scheme is `wss` or `wss+unix`.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        let scheme = if self.tls { "wss" } else { "ws" };
        match &self.socket {
            ListenSocket::Tcp(address) => {
                let mut address = *address;
                // Clients cannot connect to the unspecified address.
                match address.ip() {
                    IpAddr::V4(ip) if ip.is_unspecified() => {
                        address.set_ip(Ipv4Addr::LOCALHOST.into());
                    }
                    IpAddr::V6(ip) if ip.is_unspecified() => {
                        address.set_ip(Ipv6Addr::LOCALHOST.into());
                    }
                    _ => {}
                }
                format!("{scheme}://{address}{path}")
            }
            ListenSocket::Unix(socket) | ListenSocket::SharedUnix(socket) => {
                format!("{scheme}+unix:{}:{path}", socket.display())
            }
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tls {
            f.write_str(TLS)?;
        }
        match &self.socket {
            ListenSocket::Tcp(address) => address.fmt(f),
            ListenSocket::Unix(path) | ListenSocket::SharedUnix(path) => {
                write!(f, "unix:{}", path.display())
            }
        }
    }
}

/// Where a client's connection comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// An IPv6 address, or an IPv4 address in its IPv6-mapped form. For a unix socket: [`UNIX`] and the user's id.
    ip: [u8; 16],
    port: u16,
}

record!(Remote { ip, port });

/// The first bytes of an address that represents a unix socket. It is a multicast address, which no connection comes
/// from.
const UNIX: [u8; 2] = [0xff, 0];

impl Remote {
    /// A unix socket that does not identify the peer: another process has opened it, or a proxy forwards others'
    /// connections.
    pub(super) const SHARED_UNIX: Self = Self {
        ip: [UNIX[0], UNIX[1], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        port: 1,
    };

    /// A unix socket that the server created, to which the user with this id has connected.
    pub(super) fn unix(user: u32) -> Self {
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
    fn an_address_to_listen_on_is_parsed_as_it_is_displayed() {
        for text in [
            "127.0.0.1:0",
            "[::1]:7070",
            "0.0.0.0:1-65535",
            "[::]:7070-7070",
            "unix:relative.sock",
            "unix:/run/a-1:2.sock",
            "tls:127.0.0.1:443",
            "plain:[::1]:80-90",
            "tls:unix:x",
        ] {
            let listen: Listen = text.parse().expect(text);
            assert_eq!(listen.to_string(), text);
        }
        for text in [
            "",
            "7070",
            "127.0.0.1",
            "localhost:7070",
            "unix:",
            "fd:3",
            "127.0.0.1:0-9",
            "127.0.0.1:9-8",
            "127.0.0.1:1-65536",
            "tls:",
            "tls:plain:127.0.0.1:1",
        ] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
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
