//! Listening sockets: TCP, unix, and those that somebody else has opened.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mio::net::{TcpListener, UnixListener, UnixStream};
use mio::{Interest, Registry};
#[cfg(target_os = "linux")]
use rustix::net::sockopt::socket_peercred;
use uuid::Uuid;

use super::client::Remote;
use super::id::listener_token;
use super::stream::Stream;
use crate::sys::{InheritedSocket, is_exhausted, tcp_listener, with_private_umask};

/// How long to wait before trying again where there were no descriptors left, unless one is closed before.
pub(super) const EXHAUSTED_RETRY: Duration = Duration::from_millis(100);

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address; port 0 takes a free port.
    Tcp(SocketAddr),
    /// A free port of a range, chosen at random.
    PortRange(IpAddr, RangeInclusive<u16>),
    /// A unix socket, which only our own user can connect to. One that a server has left behind which is gone is
    /// replaced.
    Unix(PathBuf),
    /// A listening socket that this process was given, by its number. It is taken over: nobody else may use it.
    Inherited(RawFd),
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
                write!(f, "{ip}, ports {} to {}", ports.start(), ports.end())
            }
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Inherited(number) => write!(f, "fd:{number}"),
        }
    }
}

/// Peers by where they connect from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// Whoever connects to a unix socket.
    Unix,
    /// The addresses that begin with the same bits as this one, so many of them.
    Network(IpAddr, u8),
}

impl Peers {
    /// Whether a connection comes from one of them.
    pub(super) fn contain(&self, remote: Remote) -> bool {
        let (ip, bits) = match self {
            Self::Unix => return remote.is_unix(),
            Self::Network(..) if remote.is_unix() => return false,
            Self::Network(ip, bits) => (*ip, u32::from(*bits)),
        };
        let same = |one: u128, other: u128, width: u32| {
            let rest = width.saturating_sub(bits);
            // Shifting all the bits out leaves nothing that could differ.
            one.checked_shr(rest).unwrap_or(0) == other.checked_shr(rest).unwrap_or(0)
        };
        match (ip.to_canonical(), remote.ip()) {
            (IpAddr::V4(one), IpAddr::V4(other)) => {
                same(one.to_bits().into(), other.to_bits().into(), 32)
            }
            (IpAddr::V6(one), IpAddr::V6(other)) => same(one.to_bits(), other.to_bits(), 128),
            _ => false,
        }
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A TCP address with its port.
    Tcp(SocketAddr),
    /// A unix socket of our own, whose mode says who can connect.
    Unix(PathBuf),
    /// A unix socket that somebody else has opened, or that a proxy passes others on to.
    SharedUnix(PathBuf),
}

impl ListenAddress {
    /// The TCP address, if it is one.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) | Self::SharedUnix(_) => None,
        }
    }

    /// Whether a token is asked for here, if the server has one.
    pub fn asks_for_token(&self) -> bool {
        !matches!(self, Self::Unix(_))
    }

    /// What a client connects to. For a unix socket it is written as npm's `ws` has it: `ws+unix:SOCKET:PATH`.
    pub fn url(&self, path: &str) -> String {
        match self {
            Self::Tcp(address) => {
                let mut address = *address;
                // One cannot connect to the unspecified address. Readers of this URL are on this machine.
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

/// What came of accepting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// The queue is empty: an event tells of the next connection.
    All,
    /// There may be more, for the next turn.
    Some,
    /// Nothing can be taken until something is given back.
    Exhausted,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The file of a unix socket that we have made, by which it is known as ours when it is removed: the socket, which is open
/// until then, keeps the inode, so that its number is given to no other file.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// A listening socket. Readiness is told once, so it is kept here until the queue is empty.
#[derive(Debug)]
pub(super) struct Listener {
    socket: Socket,
    file: Option<SocketFile>,
    /// Whether there may be connections in the queue.
    pub(super) pending: bool,
    /// Whether exhaustion was logged since a connection was last taken.
    complained: bool,
}

impl Listener {
    /// Opens a listening socket; with `share`, other processes may listen on the same port. One that is `inherited` was
    /// taken over before.
    pub(super) fn bind(
        registry: &Registry,
        listen: &Listen,
        inherited: Option<InheritedSocket>,
        share: bool,
        index: usize,
    ) -> io::Result<(Self, ListenAddress)> {
        let mut file = None;
        let mut socket = match listen {
            Listen::Tcp(address) => tcp(tcp_listener(*address, share)?),
            Listen::PortRange(ip, ports) => bind_in_range(*ip, ports, share)?,
            Listen::Unix(path) => {
                let (socket, ours) = bind_unix(path)?;
                file = Some(ours);
                socket
            }
            Listen::Inherited(_) => match inherited.ok_or(io::ErrorKind::InvalidInput)? {
                InheritedSocket::Tcp(fd) => tcp(fd),
                InheritedSocket::Unix(fd) => Socket::Unix(UnixListener::from_std(fd.into())),
            },
        };
        let address = match &mut socket {
            Socket::Tcp(socket) => {
                registry.register(socket, listener_token(index), Interest::READABLE)?;
                ListenAddress::Tcp(socket.local_addr()?)
            }
            Socket::Unix(socket) => {
                registry.register(socket, listener_token(index), Interest::READABLE)?;
                let address = socket.local_addr()?;
                let path = address.as_pathname().map(Path::to_owned);
                let path = path.unwrap_or_default();
                if file.is_some() {
                    ListenAddress::Unix(path)
                } else {
                    ListenAddress::SharedUnix(path)
                }
            }
        };
        let listener = Self {
            socket,
            file,
            // One that others have opened may have had connections before.
            pending: matches!(listen, Listen::Inherited(_)),
            complained: false,
        };
        Ok((listener, address))
    }

    /// Takes connections, at most `most` of them and at most as many as there is `room` for.
    pub(super) fn accept(
        &mut self,
        most: usize,
        room: usize,
        mut take: impl FnMut(Stream, Remote),
    ) -> Accepted {
        for _ in 0..most.min(room) {
            let accepted = match &self.socket {
                Socket::Tcp(socket) => socket
                    .accept()
                    .map(|(stream, remote)| (stream.into(), remote.into())),
                Socket::Unix(socket) => socket
                    .accept()
                    .map(|(stream, _)| (self.unix_remote(&stream), stream))
                    .map(|(remote, stream)| (stream.into(), remote)),
            };
            match accepted {
                Ok((stream, remote)) => {
                    self.complained = false;
                    take(stream, remote);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.pending = false;
                    return Accepted::All;
                }
                Err(error) if is_exhausted(&error) => {
                    if !std::mem::replace(&mut self.complained, true) {
                        log::warn!("no connection can be taken at the moment: {error}");
                    }
                    return Accepted::Exhausted;
                }
                // The connection failed while it was in the queue (aborted, or a network error that accept(2) passes
                // on). The next one is not worse for it.
                Err(error) => log::debug!("a connection failed before it was taken: {error}"),
            }
        }
        if room <= most {
            Accepted::Exhausted
        } else {
            Accepted::Some
        }
    }

    /// Only the mode of a socket that we have created is known, and only there the peer is the real user.
    fn unix_remote(&self, stream: &UnixStream) -> Remote {
        match peer_user(stream) {
            Ok(user) if self.file.is_some() => Remote::unix(user),
            Ok(_) => Remote::SHARED_UNIX,
            Err(error) => {
                log::warn!("cannot determine the user of a unix socket connection: {error}");
                Remote::SHARED_UNIX
            }
        }
    }

    /// Ends listening. The file of a unix socket goes, if it is still ours.
    pub(super) fn close(mut self, registry: &Registry) {
        let deregistered = match &mut self.socket {
            Socket::Tcp(socket) => registry.deregister(socket),
            Socket::Unix(socket) => registry.deregister(socket),
        };
        if let Err(error) = deregistered {
            log::debug!("deregistering a listener failed: {error}");
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some(file) = &self.file else { return };
        let ours = std::fs::symlink_metadata(&file.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (file.device, file.inode));
        if ours && let Err(error) = std::fs::remove_file(&file.path) {
            log::debug!("removing {} failed: {error}", file.path.display());
        }
    }
}

/// The user who has connected to a unix socket.
#[cfg(target_os = "linux")]
fn peer_user(stream: &UnixStream) -> io::Result<u32> {
    Ok(socket_peercred(stream)?.uid.as_raw())
}

/// The mode of the socket lets only our own user connect.
#[cfg(not(target_os = "linux"))]
fn peer_user(_: &UnixStream) -> io::Result<u32> {
    Ok(rustix::process::geteuid().as_raw())
}

fn tcp(fd: OwnedFd) -> Socket {
    Socket::Tcp(TcpListener::from_std(fd.into()))
}

/// Tries the ports of a range, from one at random on.
fn bind_in_range(ip: IpAddr, ports: &RangeInclusive<u16>, share: bool) -> io::Result<Socket> {
    let (first, count) = (u32::from(*ports.start()), ports.len() as u32);
    let random = Uuid::new_v4().as_u128() as u32;
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for step in 0..count {
        let port = first + (random % count + step) % count;
        match tcp_listener(SocketAddr::new(ip, port as u16), share) {
            Ok(fd) => return Ok(tcp(fd)),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied
                ) =>
            {
                last = error
            }
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// Makes a unix socket that only our user can connect to.
fn bind_unix(path: &Path) -> io::Result<(Socket, SocketFile)> {
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            let why = "there is a file that is no socket";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        // It must not wait: a live server may have a queue that is full.
        match UnixStream::connect(path) {
            // Its server is gone; the file stayed behind.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)?;
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {
                let why = "another process listens on it";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
            }
        }
    }
    // The mode has to be right from the start: whoever connects before it is changed stays connected.
    let socket = with_private_umask(|| unix::UnixListener::bind(path))?;
    socket.set_nonblocking(true)?;
    let made = std::fs::symlink_metadata(path)?;
    let file = SocketFile {
        path: path.to_owned(),
        device: made.dev(),
        inode: made.ino(),
    };
    Ok((Socket::Unix(UnixListener::from_std(socket)), file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_known_by_their_network() {
        let remote = |text: &str| Remote::from(text.parse::<SocketAddr>().expect("an address"));
        let network = |ip: &str, bits| Peers::Network(ip.parse().expect("an address"), bits);
        for (peers, from, contained) in [
            (network("10.1.2.3", 32), "10.1.2.3:1", true),
            (network("10.1.2.3", 32), "10.1.2.4:1", false),
            (network("10.1.0.0", 16), "10.1.255.4:1", true),
            (network("10.1.0.0", 16), "10.2.0.0:1", false),
            (network("10.1.0.0", 16), "[::ffff:10.1.0.9]:1", true),
            (network("0.0.0.0", 0), "200.1.1.1:1", true),
            (network("0.0.0.0", 0), "[::1]:1", false),
            (network("::", 0), "[::1]:1", true),
            (network("::", 0), "127.0.0.1:1", false),
            (network("2001:db8::", 32), "[2001:db8:1::1]:1", true),
            (network("2001:db8::", 32), "[2001:db9::1]:1", false),
            (Peers::Unix, "127.0.0.1:1", false),
        ] {
            assert_eq!(peers.contain(remote(from)), contained, "{peers:?} {from}");
        }
        assert!(Peers::Unix.contain(Remote::unix(0)) && Peers::Unix.contain(Remote::SHARED_UNIX));
        assert!(!network("::", 0).contain(Remote::unix(0)));
    }
}
