//! Listening sockets, and the connections that they accept.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mio::net::{TcpListener, UnixListener, UnixStream};
use mio::{Interest, Registry};
use rustix::net::{Shutdown, getsockname, shutdown};

use super::address::{Listen, ListenAddress, PLAIN, Place, Remote, TLS};
use super::id::listener_token;
use super::stream::Stream;
use crate::protocol::Rejection;
use crate::protocol::http::HttpDate;
use crate::record::{Loader, Read, Record, RecordError, Restored, Saver, Set, object, record};
use crate::sys::{
    ListeningSocket, check_socket_path, inherited_listener, is_exhausted, random_uuid,
    tcp_listener, with_private_umask,
};

/// The delay before accepting again after descriptors or slots ran out, unless a connection ends earlier.
pub(super) const EXHAUSTED_RETRY: Duration = Duration::from_millis(100);

/// The result of accepting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// The queue is empty. An event announces the next connection.
    All,
    /// The queue may contain more for the next turn.
    Some,
    /// No connection can be accepted until a resource is free.
    Exhausted,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The file of a unix socket that this server created. While the socket is open, no other file can get its inode number,
/// so the number shows whether the file may be removed.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// Removes the file if it is still this server's.
    fn remove(&self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode));
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            log::debug!("removing {} failed: {error}", self.path.display());
        }
    }
}

/// A descriptor that is kept so that connections can be refused after descriptors have run out. Otherwise, they would wait in
/// the kernel's queue for a connection to end, and health checks with them.
#[derive(Debug, Default)]
pub(super) struct Reserve {
    file: Option<File>,
    /// The number of refused connections that were not counted yet.
    refused: usize,
}

impl Reserve {
    /// Takes a descriptor.
    pub(super) fn take() -> Self {
        let mut reserve = Self::default();
        reserve.refill();
        reserve
    }

    /// Takes a descriptor if there is none. It may be a while until one is free again.
    pub(super) fn refill(&mut self) {
        if self.file.is_none() {
            self.file = File::open("/").ok();
        }
    }

    /// The answer to a connection for which there is no descriptor.
    pub(super) fn refusal() -> Rejection {
        Rejection::unavailable("too many open files").because("descriptors")
    }

    /// Takes the number of connections that were refused since the last call.
    pub(super) fn take_refused(&mut self) -> usize {
        std::mem::take(&mut self.refused)
    }

    /// Accepts a connection in place of the descriptor, and refuses it. Returns whether there was one.
    fn refuse_one(&mut self, listener: &Listener) -> bool {
        if self.file.take().is_none() {
            return false;
        }
        let accepted = listener.accept_one();
        let is_refused = accepted.is_ok();
        if let Ok((mut stream, _)) = accepted
            // A TLS client cannot read it.
            && !listener.is_tls
        {
            let mut answer = Vec::new();
            Self::refusal().write_response(HttpDate::now(), &mut answer);
            stream.refuse(&answer);
        }
        self.refill();
        self.refused += usize::from(is_refused);
        is_refused
    }
}

/// A listening socket. The system reports readiness once, so it is stored here until the queue is empty.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    /// The configured listen address. After an upgrade, it identifies the socket.
    name: String,
    file: Option<SocketFile>,
    /// Whether the queue may contain connections.
    pub(super) pending: bool,
    /// Whether exhaustion was logged since the last accepted connection.
    has_warned: bool,
    /// Whether its connections use TLS.
    is_tls: bool,
    /// Whether the socket was passed to this process, so that it goes on when this process ends.
    is_inherited: bool,
    /// The address of a socket that has stopped to listen.
    stopped: Option<SocketAddr>,
}

/// A listening socket on the way from one program to the next. When it is dropped, its file is removed.
#[derive(Debug)]
pub(crate) struct PassedListener {
    /// The configured listen address. After an upgrade, it identifies the socket.
    name: String,
    /// `None` in a rehearsal, for the sockets of the program before.
    socket: Option<OwnedFd>,
    /// The file of a unix socket that the server has created.
    file: Option<SocketFile>,
    /// The address of a TCP socket.
    address: Option<SocketAddr>,
}

impl PassedListener {
    /// Opens the socket of an address for another program.
    pub(super) fn open(listen: Listen, share: bool) -> io::Result<Self> {
        let name = listen.to_string();
        let (socket, file) = open(listen.place, share)?;
        let (ListeningSocket::Tcp(socket) | ListeningSocket::Unix(socket)) = socket;
        let address = SocketAddr::try_from(getsockname(&socket)?).ok();
        Ok(Self {
            name,
            socket: Some(socket),
            file,
            address,
        })
    }

    /// The same socket for another configured address.
    pub(super) fn named(mut self, name: String) -> Self {
        self.name = name;
        self
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is the socket of this configured address. Whether connections use TLS is a setting of the next program.
    pub(super) fn is_for(&self, name: &str) -> bool {
        without_tls(&self.name) == without_tls(name)
    }

    /// The address that clients connect to.
    pub(super) fn address(&self) -> ListenAddress {
        match (self.address, &self.file) {
            (Some(address), _) => ListenAddress::of_tcp(address),
            (None, Some(file)) => ListenAddress::of_unix(file.path.clone()),
            (None, None) => ListenAddress::of_shared_unix(PathBuf::new()),
        }
    }

    /// The socket; `None` in a rehearsal.
    pub(super) fn into_socket(mut self) -> Option<OwnedFd> {
        self.socket.take()
    }
}

impl Drop for PassedListener {
    fn drop(&mut self) {
        if let (Some(_), Some(file)) = (&self.socket, &self.file) {
            file.remove();
        }
    }
}

impl Record for PassedListener {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        let Self {
            name,
            socket,
            file,
            address,
        } = self;
        save_listener(name, socket.as_ref().map(AsFd::as_fd), file, *address, to);
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        let (mut name, mut socket) = (None, None);
        let (mut file, mut address) = (None, None);
        object!(from {
            name,
            socket: Read(|from: &mut Loader| {
                if let Restored::Descriptor(fd) = from.take()? {
                    socket = Some(fd);
                }
                Ok(())
            }),
            file: Set(&mut file),
            address: Set(&mut address),
        })?;
        Ok(Self {
            name: name.ok_or_else(RecordError::missing)?,
            socket,
            file,
            address,
        })
    }
}

/// Writes a socket down, as a [`PassedListener`].
fn save_listener<'a>(
    name: &'a String,
    socket: Option<BorrowedFd<'a>>,
    file: &'a Option<SocketFile>,
    address: Option<SocketAddr>,
    to: &mut Saver<'a>,
) {
    to.open(b'{');
    to.field("name", name);
    if let Some(socket) = socket {
        to.member("socket", |to| to.put_descriptor(socket));
    }
    to.field("file", file);
    to.member("address", |to| to.inline(&address));
    to.close(b'}');
}

record!(SocketFile {
    path,
    device,
    inode,
});

impl Listener {
    /// Writes the socket down, as a [`PassedListener`].
    pub(super) fn save<'a>(&'a self, to: &mut Saver<'a>) {
        let socket = match &self.socket {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
        };
        let address = self.local_address();
        save_listener(&self.name, Some(socket), &self.file, address, to);
    }

    /// The configured listen address.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The address of a TCP socket.
    fn local_address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(socket) => socket.local_addr().ok(),
            Socket::Unix(_) => None,
        }
    }

    /// The port of a TCP socket.
    pub(super) fn port(&self) -> Option<u16> {
        let address = self.stopped.or_else(|| self.local_address());
        address.map(|address| address.port())
    }

    /// Stops listening, so that another socket can have the port. The socket stays registered.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        if let (None, Socket::Tcp(socket)) = (self.stopped, &self.socket) {
            let address = socket.local_addr()?;
            shutdown(socket, Shutdown::Read)?;
            self.stopped = Some(address);
        }
        Ok(())
    }

    /// Listens again after [`Listener::stop`].
    pub(super) fn listen_again(&mut self) -> io::Result<()> {
        if let (Some(address), Socket::Tcp(socket)) = (self.stopped.take(), &self.socket) {
            return crate::sys::listen_again(socket, address);
        }
        Ok(())
    }

    /// Opens a listening socket, or takes over the one that has passed. With `share`, other processes may listen on the same port. With `tls`, its connections use
    /// TLS.
    pub(super) fn bind(
        registry: &Registry,
        listen: Listen,
        share: bool,
        tls: bool,
        index: usize,
        passed: Option<PassedListener>,
    ) -> io::Result<(Self, ListenAddress)> {
        let name = listen.to_string();
        let taken = passed.map(|mut one| (one.socket.take(), one.file.take()));
        let (passed, mut file) = taken.unwrap_or_default();
        // Connections may have arrived before the server took the socket over.
        let mut pending = passed.is_some();
        let mut inherited = false;
        let socket = match (listen.place, passed) {
            (Place::Inherited(socket), _) => {
                (inherited, pending) = (true, true);
                inherited_listener(socket.into_fd()?)?
            }
            (_, Some(passed)) => inherited_listener(passed)?,
            (place, None) => {
                let (socket, ours) = open(place, share)?;
                file = ours;
                socket
            }
        };
        let mut socket = match socket {
            ListeningSocket::Tcp(fd) => Socket::Tcp(TcpListener::from_std(fd.into())),
            ListeningSocket::Unix(fd) => Socket::Unix(UnixListener::from_std(fd.into())),
        };
        let address = match &mut socket {
            Socket::Tcp(socket) => {
                registry.register(socket, listener_token(index), Interest::READABLE)?;
                ListenAddress::of_tcp(socket.local_addr()?)
            }
            Socket::Unix(socket) => {
                registry.register(socket, listener_token(index), Interest::READABLE)?;
                let address = socket.local_addr()?;
                let path = address.as_pathname().map(Path::to_owned);
                let path = path.unwrap_or_default();
                if file.is_some() {
                    ListenAddress::of_unix(path)
                } else {
                    ListenAddress::of_shared_unix(path)
                }
            }
        };
        let listener = Self {
            socket,
            file,
            name,
            pending,
            has_warned: false,
            is_tls: tls,
            is_inherited: inherited,
            stopped: None,
        };
        Ok((listener, address.with_tls(tls)))
    }

    /// Whether its connections use TLS.
    pub(super) fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Whether the socket was passed to this process.
    pub(super) fn is_inherited(&self) -> bool {
        self.is_inherited
    }

    fn accept_one(&self) -> io::Result<(Stream, Remote)> {
        match &self.socket {
            Socket::Tcp(socket) => socket
                .accept()
                .map(|(stream, remote)| (stream.into(), remote.into())),
            Socket::Unix(socket) => socket
                .accept()
                .map(|(stream, _)| (self.unix_remote(&stream), stream))
                .map(|(remote, stream)| (stream.into(), remote)),
        }
    }

    /// Accepts connections, at most `most` and at most `room`. If no descriptor is left, refuses them.
    pub(super) fn accept(
        &mut self,
        most: usize,
        room: usize,
        reserve: &mut Reserve,
        mut take: impl FnMut(Stream, Remote),
    ) -> Accepted {
        for _ in 0..most.min(room) {
            match self.accept_one() {
                Ok((stream, remote)) => {
                    self.has_warned = false;
                    take(stream, remote);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.pending = false;
                    return Accepted::All;
                }
                Err(error) if is_exhausted(&error) => {
                    if !std::mem::replace(&mut self.has_warned, true) {
                        log::warn!("cannot accept connections at the moment: {error}");
                    }
                    if !reserve.refuse_one(self) {
                        return Accepted::Exhausted;
                    }
                }
                // The connection failed in the queue: it was aborted, or accept(2) reports a network error. Later
                // connections may be fine.
                Err(error) => log::debug!("a connection failed before it was accepted: {error}"),
            }
        }
        if room <= most {
            Accepted::Exhausted
        } else {
            Accepted::Some
        }
    }

    /// The origin of a connection to a unix socket. The peer's user is its principal only if this server created the
    /// socket, because otherwise the mode of the socket is unknown and a proxy may connect.
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

    /// Stops listening. Removes the file of a unix socket if it is still this server's.
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
        if let Some(file) = &self.file {
            file.remove();
        }
    }
}

/// The user that connected to a unix socket.
#[cfg(target_os = "linux")]
fn peer_user(stream: &UnixStream) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(stream)?.uid.as_raw())
}

/// The user that connected to a unix socket.
#[cfg(not(target_os = "linux"))]
fn peer_user(stream: &UnixStream) -> io::Result<u32> {
    let (user, _group) = nix::unistd::getpeereid(stream)?;
    Ok(user.as_raw())
}

/// Opens a listening socket, with the file of a unix socket.
fn open(place: Place, share: bool) -> io::Result<(ListeningSocket, Option<SocketFile>)> {
    let socket = match place {
        Place::Tcp(address) => tcp_listener(address, share)?,
        Place::PortRange(ip, ports) => bind_in_range(ip, &ports, share)?,
        Place::Unix(path) => {
            let (socket, file) = bind_unix(&path)?;
            return Ok((ListeningSocket::Unix(socket), Some(file)));
        }
        Place::Inherited(socket) => return Ok((inherited_listener(socket.into_fd()?)?, None)),
    };
    Ok((ListeningSocket::Tcp(socket), None))
}

/// A configured listen address without whether connections use TLS.
fn without_tls(name: &str) -> &str {
    let plain = || name.strip_prefix(PLAIN);
    name.strip_prefix(TLS).or_else(plain).unwrap_or(name)
}

/// Tries the ports of a range, beginning with a random one.
fn bind_in_range(ip: IpAddr, ports: &RangeInclusive<u16>, share: bool) -> io::Result<OwnedFd> {
    let (first, count) = (u32::from(*ports.start()), ports.len() as u32);
    let random = random_uuid().as_u128() as u32;
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for step in 0..count {
        let port = first + (random % count + step) % count;
        match tcp_listener(SocketAddr::new(ip, port as u16), share) {
            Ok(fd) => return Ok(fd),
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

/// Creates a unix socket that only the server's user can connect to.
fn bind_unix(path: &Path) -> io::Result<(OwnedFd, SocketFile)> {
    check_socket_path(path)?;
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            let why = "the file exists and is not a socket";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        // This does not block if the queue of a running server is full.
        match UnixStream::connect(path) {
            // The server has ended and left its file behind.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)?;
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {
                let why = "another process is listening on it";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
            }
        }
    }
    // The mode must be right from the start, because a client that connects before a change stays connected.
    let socket = with_private_umask(|| unix::UnixListener::bind(path))?;
    socket.set_nonblocking(true)?;
    let made = std::fs::symlink_metadata(path)?;
    let file = SocketFile {
        path: path.to_owned(),
        device: made.dev(),
        inode: made.ino(),
    };
    Ok((socket.into(), file))
}
