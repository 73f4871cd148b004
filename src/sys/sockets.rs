//! Sockets that the standard library cannot make as they are needed.

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

/// Connections that may wait in the kernel to be taken. The kernel has a limit of its own below it.
const BACKLOG: i32 = 4096;

/// A listening TCP socket that does not block. With `share`, other processes may listen on the same port, and the kernel
/// deals connections out to all of them.
pub(crate) fn tcp_listener(address: SocketAddr, share: bool) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::empty(), None)?;
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    fcntl_setfl(&socket, fcntl_getfl(&socket)? | OFlags::NONBLOCK)?;
    // A port whose last connections are not forgotten yet can be taken again.
    set_socket_reuseaddr(&socket, true)?;
    if share {
        set_socket_reuseport(&socket, true)?;
    }
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// A listening socket that somebody else has opened.
#[derive(Debug)]
pub(crate) enum InheritedSocket {
    Tcp(OwnedFd),
    Unix(OwnedFd),
}

/// Takes over a listening socket that this process was started with.
pub(crate) fn take_inherited_socket(number: RawFd) -> io::Result<InheritedSocket> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
    if number < 3 {
        return Err(invalid("the standard streams are no listening sockets"));
    }
    // SAFETY: this is called before anything else is opened, and once for a number, so nothing in this process owns it; the
    // standard streams, which others use, are excluded above. That it is open at all is asked next.
    #[allow(unsafe_code)]
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    fcntl_getfd(borrowed)?;
    if !socket_acceptconn(borrowed).unwrap_or(false) {
        return Err(invalid("it is no listening socket"));
    }
    if socket_type(borrowed)? != SocketType::STREAM {
        return Err(invalid("it is no stream socket"));
    }
    // SAFETY: as above, and it is open.
    #[allow(unsafe_code)]
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    fcntl_setfl(&socket, fcntl_getfl(&socket)? | OFlags::NONBLOCK)?;
    match socket_domain(&socket)? {
        AddressFamily::INET | AddressFamily::INET6 => Ok(InheritedSocket::Tcp(socket)),
        AddressFamily::UNIX => Ok(InheritedSocket::Unix(socket)),
        _ => Err(invalid("it is neither a TCP nor a unix socket")),
    }
}

/// Keeps descriptors that this process was started with from the programs that it starts.
pub fn keep_from_children(numbers: std::ops::Range<RawFd>) {
    for number in numbers.filter(|number| *number >= 3) {
        // SAFETY: it is borrowed for one call, which fails if it is not open.
        #[allow(unsafe_code)]
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        let _ = fcntl_setfd(borrowed, FdFlags::CLOEXEC);
    }
}

/// Does something while new files are for our own user alone.
pub(crate) fn with_private_umask<T>(act: impl FnOnce() -> T) -> T {
    let before = umask(rustix::fs::Mode::from_raw_mode(0o177));
    let done = act();
    umask(before);
    done
}
