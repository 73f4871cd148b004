//! The byte stream of one client.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix;

use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};

use crate::sys::unsent_bytes;

/// A client's socket, or a pair of buffers in tests and fuzzers.
#[derive(Debug)]
pub(super) enum Stream {
    /// A TCP or unix socket. Both are read, written and shut down in the same way, and one variant keeps `Client` small.
    Socket(TcpStream),
    /// The socket of a client whose connection was cut is closed. There is nothing to read, and no room to write.
    Closed,
    #[cfg(any(test, fuzzing))]
    Memory(super::memory_stream::MemoryStream),
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Socket(stream)
    }
}

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Self {
        let fd = OwnedFd::from(unix::net::UnixStream::from(stream));
        Self::Socket(TcpStream::from_std(fd.into()))
    }
}

impl Stream {
    /// Reads once. Zero bytes mean end of file.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        retry(|| match self {
            Self::Socket(stream) => stream.read(buffer),
            Self::Closed => Err(io::ErrorKind::WouldBlock.into()),
            #[cfg(any(test, fuzzing))]
            Self::Memory(stream) => stream.read(buffer),
        })
    }

    /// Writes once and returns the number of bytes written, which is zero if the socket is full.
    pub(super) fn write(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = retry(|| match (&mut *self, buffers) {
            (Self::Socket(stream), [buffer]) => stream.write(buffer),
            (Self::Socket(stream), buffers) => stream.write_vectored(buffers),
            (Self::Closed, _) => Err(io::ErrorKind::WouldBlock.into()),
            #[cfg(any(test, fuzzing))]
            (Self::Memory(stream), buffers) => stream.write_vectored(buffers),
        });
        match written {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            written => written,
        }
    }

    /// Sets `TCP_NODELAY` on a TCP socket.
    pub(super) fn set_nodelay(&self) {
        match self {
            Self::Socket(stream) => {
                if let Err(error) = stream.set_nodelay(true) {
                    log::debug!("TCP_NODELAY failed: {error}");
                }
            }
            Self::Closed => {}
            #[cfg(any(test, fuzzing))]
            Self::Memory(_) => {}
        }
    }

    /// The number of written bytes that the peer has not acknowledged, if the system reports it.
    pub(super) fn unsent(&self) -> Option<usize> {
        match self {
            Self::Socket(stream) => unsent_bytes(stream),
            Self::Closed => None,
            #[cfg(any(test, fuzzing))]
            Self::Memory(stream) => stream.unsent(),
        }
    }

    /// Shuts down the writing side. The peer reads end of file after the written bytes.
    pub(super) fn end_output(&self) {
        match self {
            // This fails only if the socket is no longer connected.
            Self::Socket(stream) => drop(stream.shutdown(Shutdown::Write)),
            Self::Closed => {}
            #[cfg(any(test, fuzzing))]
            Self::Memory(_) => {}
        }
    }

    /// Registers the socket for events with `token`, once for the lifetime of the connection.
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Self::Socket(stream) => {
                registry.register(stream, token, Interest::READABLE | Interest::WRITABLE)
            }
            Self::Closed => Ok(()),
            #[cfg(any(test, fuzzing))]
            Self::Memory(_) => Ok(()),
        }
    }

    /// Registers the socket for events with another token. An event follows if the socket is ready.
    pub(super) fn reregister(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Self::Socket(stream) => {
                registry.reregister(stream, token, Interest::READABLE | Interest::WRITABLE)
            }
            Self::Closed => Ok(()),
            #[cfg(any(test, fuzzing))]
            Self::Memory(_) => Ok(()),
        }
    }

    /// Deregisters the socket.
    pub(super) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Self::Socket(stream) => registry.deregister(stream),
            Self::Closed => Ok(()),
            #[cfg(any(test, fuzzing))]
            Self::Memory(_) => Ok(()),
        }
    }
}

fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
