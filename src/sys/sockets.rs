//! Listening sockets with options that the standard library does not offer, and inherited sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
#[cfg(feature = "cli")]
use std::os::fd::{FromRawFd, RawFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
#[cfg(feature = "cli")]
use rustix::io::fcntl_getfd;
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::sockopt::{
    set_socket_keepalive, set_socket_reuseaddr, set_socket_reuseport, set_tcp_keepcnt,
    set_tcp_keepidle, set_tcp_keepintvl, socket_type,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, bind, getpeername, getsockname,
    listen, recvmsg, sendmsg, socket_with,
};
use rustix::process::umask;

/// The maximum number of connections that wait in the kernel to be accepted. The kernel may apply a lower limit.
const BACKLOG: i32 = 4096;

/// The number of probes after which the kernel gives a silent peer up.
const PROBES: u32 = 4;

/// Lets the kernel probe the peer of a TCP socket after `idle` of silence, and end the connection after `patience` without an answer.
/// With `limits_output`, it also ends one whose peer takes no output for that time. Does nothing if the socket is no TCP socket.
pub(crate) fn set_keepalive(
    socket: impl AsFd,
    idle: Option<Duration>,
    patience: Option<Duration>,
    limits_output: bool,
) -> io::Result<()> {
    if getpeername(&socket)?.is_none_or(|peer| peer.address_family() == AddressFamily::UNIX) {
        return Ok(());
    }
    set_socket_keepalive(&socket, true)?;
    // The options count whole seconds.
    let seconds = |time: Duration| Duration::from_secs(time.as_secs().max(1));
    if let Some(idle) = idle {
        set_tcp_keepidle(&socket, seconds(idle))?;
    }
    if let Some(patience) = patience {
        set_tcp_keepintvl(&socket, seconds(patience / PROBES))?;
        set_tcp_keepcnt(&socket, PROBES)?;
        #[cfg(target_os = "linux")]
        if limits_output {
            rustix::net::sockopt::set_tcp_user_timeout(
                &socket,
                u32::try_from(patience.as_millis()).unwrap_or(u32::MAX),
            )?;
        }
        #[cfg(not(target_os = "linux"))]
        let _ = limits_output;
    }
    Ok(())
}

/// Opens a non-blocking listening TCP socket. With `share`, other processes can listen on the same port, and the kernel
/// distributes connections among them.
pub(crate) fn tcp_listener(address: SocketAddr, share: bool) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::empty(), None)?;
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    fcntl_setfl(&socket, fcntl_getfl(&socket)? | OFlags::NONBLOCK)?;
    // Connections in TIME_WAIT do not keep the port from being bound again.
    set_socket_reuseaddr(&socket, true)?;
    if share {
        set_socket_reuseport(&socket, true)?;
    }
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Makes a TCP socket listen again that was shut down. It may have lost its port, if that was chosen by the system.
pub(crate) fn listen_again(socket: impl AsFd, address: SocketAddr) -> io::Result<()> {
    match bind(&socket, &address) {
        // It still has its port.
        Ok(()) | Err(Errno::INVAL) => Ok(listen(socket, BACKLOG)?),
        Err(error) => Err(error.into()),
    }
}

/// Sends bytes and descriptors over a unix socket. Without descriptors, it may be any stream.
pub(crate) fn send_with_descriptors(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut sent = 0;
    if !descriptors.is_empty() {
        let space = rustix::cmsg_space!(ScmRights(descriptors.len()));
        let mut space = vec![MaybeUninit::uninit(); space];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(descriptors));
        let bytes = [IoSlice::new(bytes)];
        sent = sendmsg(socket, &bytes, &mut control, SendFlags::empty())?;
    }
    while sent < bytes.len() {
        sent += rustix::io::write(socket, &bytes[sent..])?;
    }
    Ok(())
}

/// Receives what has arrived over a unix socket, up to its end.
pub(crate) fn receive_with_descriptors(socket: impl AsFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut bytes, mut descriptors) = (Vec::new(), Vec::new());
    loop {
        let mut buffer = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut buffer)];
        match recvmsg(&socket, into, &mut control, RecvFlags::DONTWAIT | CLOEXEC) {
            Ok(received) if received.bytes > 0 => bytes.extend(&buffer[..received.bytes]),
            Ok(_) | Err(Errno::AGAIN) => return Ok((bytes, descriptors)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
    }
}

/// The maximum number of descriptors that the system sends at once.
const MAX_DESCRIPTORS: usize = 253;

/// Received descriptors do not pass to child processes.
#[cfg(not(target_vendor = "apple"))]
const CLOEXEC: RecvFlags = RecvFlags::CMSG_CLOEXEC;

/// This system has no such flag.
#[cfg(target_vendor = "apple")]
const CLOEXEC: RecvFlags = RecvFlags::empty();

/// Checks the length of the path of a unix socket. The error of the standard library does not name the limit.
pub(crate) fn check_socket_path(path: &Path) -> io::Result<()> {
    // The size of `sun_path`, without the zero at its end.
    const MAX: usize = if cfg!(any(target_os = "linux", target_os = "android")) {
        107
    } else {
        103
    };
    let length = path.as_os_str().len();
    if length > MAX {
        let why = format!("the path of the socket has {length} bytes, and {MAX} are the limit");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(())
}

/// Whether a socket that was asked to connect is connected.
pub(crate) fn is_connected(socket: impl AsFd) -> io::Result<bool> {
    match getpeername(socket) {
        Ok(_) => Ok(true),
        Err(Errno::NOTCONN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A listening socket that was opened elsewhere.
#[derive(Debug)]
pub(crate) enum ListeningSocket {
    Tcp(OwnedFd),
    Unix(OwnedFd),
}

/// Prepares a listening socket that was opened elsewhere: it no longer blocks, and child processes do not inherit it.
pub(crate) fn inherited_listener(socket: OwnedFd) -> io::Result<ListeningSocket> {
    expect_listening(socket.as_fd())?;
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    fcntl_setfl(&socket, fcntl_getfl(&socket)? | OFlags::NONBLOCK)?;
    match getsockname(&socket)?.address_family() {
        AddressFamily::INET | AddressFamily::INET6 => Ok(ListeningSocket::Tcp(socket)),
        AddressFamily::UNIX => Ok(ListeningSocket::Unix(socket)),
        _ => Err(invalid("it is neither a TCP nor a unix socket")),
    }
}

fn expect_listening(socket: BorrowedFd<'_>) -> io::Result<()> {
    if !is_listening(socket) {
        return Err(invalid("it is not a listening socket"));
    }
    if socket_type(socket)? != SocketType::STREAM {
        return Err(invalid("it is not a stream socket"));
    }
    Ok(())
}

#[cfg(not(target_vendor = "apple"))]
fn is_listening(socket: BorrowedFd<'_>) -> bool {
    rustix::net::sockopt::socket_acceptconn(socket).unwrap_or(false)
}

/// This system does not report whether a socket listens. A socket that is bound and not connected can listen, so it is told
/// to; if it listens already, this changes nothing but the maximum number of waiting connections.
#[cfg(target_vendor = "apple")]
fn is_listening(socket: BorrowedFd<'_>) -> bool {
    use rustix::net::{SocketAddrAny, SocketAddrUnix};
    let is_bound = |address: SocketAddrAny| match SocketAddr::try_from(address.clone()) {
        Ok(address) => address.port() != 0,
        Err(_) => SocketAddrUnix::try_from(address).is_ok_and(|unix| unix.path().is_some()),
    };
    getsockname(socket).is_ok_and(is_bound)
        && matches!(getpeername(socket), Err(Errno::NOTCONN))
        && listen(socket, BACKLOG).is_ok()
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Takes ownership of a listening socket that this process was started with. Call it once for a number, before the server
/// opens sockets.
#[cfg(feature = "cli")]
pub(crate) fn take_descriptor(number: RawFd) -> io::Result<OwnedFd> {
    if number < 3 {
        return Err(invalid("the standard streams are not listening sockets"));
    }
    // SAFETY: the number is not negative, and the descriptor is borrowed for two calls, which fail if it is not open.
    #[allow(unsafe_code)]
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_getfd(borrowed)?;
    expect_listening(borrowed)?;
    // SAFETY: the descriptor is an open listening socket. This process has opened none yet, so it was started with this
    // one and nothing in it owns it. The caller takes each number once.
    #[allow(unsafe_code)]
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Keeps child processes from inheriting descriptors that this process was started with.
#[cfg(feature = "cli")]
pub(crate) fn keep_from_children(numbers: std::ops::Range<RawFd>) {
    for number in numbers.filter(|number| *number >= 3) {
        // SAFETY: the descriptor is borrowed for one call, which fails if it is not open.
        #[allow(unsafe_code)]
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        let _ = fcntl_setfd(borrowed, FdFlags::CLOEXEC);
    }
}

/// Runs `act` with a umask under which new files are accessible to this user alone.
pub(crate) fn with_private_umask<T>(act: impl FnOnce() -> T) -> T {
    let before = umask(rustix::fs::Mode::from_raw_mode(0o177));
    let done = act();
    umask(before);
    done
}
