//! The byte stream of one client.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix;

use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};

use crate::sys::unsent_bytes;

/// A client's socket; a pair of buffers in the operation fuzzer.
#[derive(Debug)]
pub(super) enum Stream {
    /// A TCP or unix socket. They are read, written and shut down alike; one variant keeps a client's entry small.
    Socket(TcpStream),
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
    /// Reads once; zero is the end.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        retry(|| match self {
            Self::Socket(stream) => stream.read(buffer),
            #[cfg(any(test, fuzzing))]
            Self::Memory(stream) => stream.read(buffer),
        })
    }

    /// Writes once and returns how much was taken; zero if nothing can be taken now.
    pub(super) fn write(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = retry(|| match (&mut *self, buffers) {
            (Self::Socket(stream), [buffer]) => stream.write(buffer),
            (Self::Socket(stream), buffers) => stream.write_vectored(buffers),
            #[cfg(any(test, fuzzing))]
            (Self::Memory(stream), buffers) => stream.write_vectored(buffers),
        });
        match written {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            written => written,
        }
    }

    /// Has small writes sent at once, for TCP.
    pub(super) fn set_nodelay(&self) {
        match self {
            Self::Socket(stream) => {
                if let Err(error) = stream.set_nodelay(true) {
                    log::debug!("TCP_NODELAY failed: {error}");
                }
            }
            #[cfg(any(test, fuzzing))]
            Self::Memory(_) => {}
        }
    }

    /// Bytes that were written and that the peer has not taken yet, where that can be known.
    pub(super) fn unsent(&self) -> Option<usize> {
        match self {
            Self::Socket(stream) => unsent_bytes(stream),
            #[cfg(any(test, fuzzing))]
            Self::Memory(stream) => stream.unsent(),
        }
    }

    /// Ends our direction: the peer reads an end after what was written.
    pub(super) fn end_output(&self) {
        match self {
            // A socket that is no longer connected has nothing left to end.
            Self::Socket(stream) => drop(stream.shutdown(Shutdown::Write)),
            #[cfg(any(test, fuzzing))]
            Self::Memory(_) => {}
        }
    }

    /// Asks for events under `token`, once for the connection's whole life.
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Self::Socket(stream) => {
                registry.register(stream, token, Interest::READABLE | Interest::WRITABLE)
            }
            #[cfg(any(test, fuzzing))]
            Self::Memory(_) => Ok(()),
        }
    }

    /// Ends what `register` began.
    pub(super) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Self::Socket(stream) => registry.deregister(stream),
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
