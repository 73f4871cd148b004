//! The addresses to listen on, as configured, and the addresses that a server listens on.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// An address to listen on.
///
/// ```
/// use outrigger::Listen;
///
/// for text in ["127.0.0.1:7070", "[::1]:0", "127.0.0.1:10000-20000", "unix:/run/outrigger.sock"] {
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
#[non_exhaustive]
pub enum Listen {
    /// A TCP address. Port 0 takes a free port.
    Tcp(SocketAddr),
    /// A random free port of a range.
    PortRange(IpAddr, RangeInclusive<u16>),
    /// A unix socket that only the server's user can connect to. The socket file of a server that has ended is replaced.
    Unix(PathBuf),
    /// A listening socket that is already open.
    Inherited(InheritedSocket),
}

impl Listen {
    /// A listening socket that is already open, such as one that a service manager has passed.
    pub fn inherited(socket: impl Into<OwnedFd>) -> Self {
        Self::Inherited(InheritedSocket::from(socket.into()))
    }
}

impl<A: Into<SocketAddr>> From<A> for Listen {
    fn from(address: A) -> Self {
        Self::Tcp(address.into())
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::PortRange(ip, ports) => {
                let (first, last) = (ports.start(), ports.end());
                write!(f, "{}-{last}", SocketAddr::new(*ip, *first))
            }
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Inherited(socket) => write!(f, "fd:{}", socket.0.as_raw_fd()),
        }
    }
}

/// A text that is not a [`Listen`] address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseListenError(());

impl fmt::Display for ParseListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected IP:PORT, IP:FIRST-LAST or unix:PATH")
    }
}

impl std::error::Error for ParseListenError {}

impl FromStr for Listen {
    type Err = ParseListenError;

    /// Parses `IP:PORT`, `IP:FIRST-LAST` or `unix:PATH`. It does not resolve host names, and it does not take over
    /// descriptors: use [`Listen::inherited`].
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = ParseListenError(());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = Some(path).filter(|path| !path.is_empty());
            return path.map(|path| Self::Unix(path.into())).ok_or(wrong);
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Tcp(address));
        }
        let (first, last) = text.rsplit_once('-').ok_or(wrong)?;
        let first: SocketAddr = first.parse().map_err(|_| wrong)?;
        let ports = first.port()..=last.parse().map_err(|_| wrong)?;
        if *ports.start() == 0 || ports.is_empty() {
            return Err(wrong);
        }
        Ok(Self::PortRange(first.ip(), ports))
    }
}

/// A listening socket that is already open. The server takes it over, and closes it when it stops listening; clones
/// share the socket, so a clone keeps it open.
#[derive(Clone, Debug)]
pub struct InheritedSocket(Arc<OwnedFd>);

impl InheritedSocket {
    /// The descriptor, or a duplicate if there are clones.
    pub(super) fn into_fd(self) -> io::Result<OwnedFd> {
        Arc::try_unwrap(self.0).or_else(|shared| shared.try_clone())
    }
}

impl From<OwnedFd> for InheritedSocket {
    fn from(socket: OwnedFd) -> Self {
        Self(Arc::new(socket))
    }
}

impl PartialEq for InheritedSocket {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_raw_fd() == other.0.as_raw_fd()
    }
}

impl Eq for InheritedSocket {}

/// An address that a server listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListenAddress {
    /// A TCP address with its port.
    Tcp(SocketAddr),
    /// A unix socket that the server created. Its mode limits who can connect.
    Unix(PathBuf),
    /// A unix socket that the server did not create, or that a proxy connects to. Any user may connect.
    SharedUnix(PathBuf),
}

impl ListenAddress {
    /// The TCP address.
    #[must_use]
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) | Self::SharedUnix(_) => None,
        }
    }

    /// Whether clients must present the token of the server, if it has one.
    #[must_use]
    pub fn asks_for_token(&self) -> bool {
        !matches!(self, Self::Unix(_))
    }

    /// The URL that clients on this machine connect to. The URL of a unix socket has the form of npm's `ws`:
    /// `ws+unix:SOCKET:PATH`.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        match self {
            Self::Tcp(address) => {
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
                format!("ws://{address}{path}")
            }
            Self::Unix(socket) | Self::SharedUnix(socket) => {
                format!("ws+unix:{}:{path}", socket.display())
            }
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) | Self::SharedUnix(path) => write!(f, "unix:{}", path.display()),
        }
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
        ] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }
}
