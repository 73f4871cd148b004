//! Listening sockets with options that the standard library does not offer, and inherited sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::net::sockopt::{
    set_socket_reuseaddr, set_socket_reuseport, socket_acceptconn, socket_domain, socket_type,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::umask;

/// The maximum of connections that wait in the kernel to be accepted. The kernel may apply a lower limit.
const BACKLOG: i32 = 4096;

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

/// A listening socket that was opened by the process that started this one.
#[derive(Debug)]
pub(crate) enum InheritedSocket {
    Tcp(OwnedFd),
    Unix(OwnedFd),
}

/// Takes ownership of a listening socket that this process was started with.
pub(crate) fn take_inherited_socket(number: RawFd) -> io::Result<InheritedSocket> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
    if number < 3 {
        return Err(invalid("the standard streams are not listening sockets"));
    }
    // SAFETY: this is called before anything else is opened, and once for each number, so nothing in this process owns the
    // descriptor. The standard streams, which other code uses, are excluded above. Whether it is open is checked next.
    #[allow(unsafe_code)]
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    fcntl_getfd(borrowed)?;
    if !socket_acceptconn(borrowed).unwrap_or(false) {
        return Err(invalid("not a listening socket"));
    }
    if socket_type(borrowed)? != SocketType::STREAM {
        return Err(invalid("not a stream socket"));
    }
    // SAFETY: nothing else owns the descriptor, as above, and `fcntl_getfd` has shown that it is open.
    #[allow(unsafe_code)]
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    fcntl_setfl(&socket, fcntl_getfl(&socket)? | OFlags::NONBLOCK)?;
    match socket_domain(&socket)? {
        AddressFamily::INET | AddressFamily::INET6 => Ok(InheritedSocket::Tcp(socket)),
        AddressFamily::UNIX => Ok(InheritedSocket::Unix(socket)),
        _ => Err(invalid("neither a TCP nor a unix socket")),
    }
}

/// Marks inherited descriptors as close-on-exec, so that programs started by this process do not inherit them. Skips
/// the standard streams.
pub fn keep_from_children(numbers: std::ops::Range<RawFd>) {
    for number in numbers.filter(|number| *number >= 3) {
        // SAFETY: the descriptor is borrowed for one call, which fails if it is not open.
        #[allow(unsafe_code)]
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
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
