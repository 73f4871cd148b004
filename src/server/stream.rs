//! The byte stream of one client.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix;

use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};

use super::tls::{Scratch, TlsStream};
use crate::protocol::Timeouts;
#[cfg(any(test, fuzzing))]
use crate::record::Saved;
use crate::record::{Loader, Record, RecordError, Restored, Saver};
use crate::sys::{is_connected, set_keepalive, unsent_bytes};

/// A client's socket, or a pair of buffers in tests and fuzzers.
#[derive(Debug)]
pub(crate) enum Stream {
    /// A TCP or unix socket. Both are read, written and shut down in the same way, and one variant keeps `Client` small.
    Socket(TcpStream),
    /// A socket whose bytes are encrypted.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "there is no TLS"))]
    Tls(TlsStream),
    /// The socket of a client whose connection was cut is closed. There is nothing to read, and no room to write.
    Closed,
    #[cfg(any(test, fuzzing))]
    Memory(super::simulation::memory_stream::MemoryStream),
}

/// A closed stream is saved as nothing. A stream over TLS cannot be saved: its client ends or is detached before.
impl Record for Stream {
    fn is_default(&self) -> bool {
        matches!(self, Self::Tls(_) | Self::Closed)
    }

    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        match self {
            Self::Socket(stream) => to.put_descriptor(stream.as_fd()),
            Self::Tls(_) | Self::Closed => to.null(),
            #[cfg(any(test, fuzzing))]
            Self::Memory(stream) => to.carry(Saved::Simulated(Box::new(stream.clone()))),
        }
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        match from.take()? {
            Restored::Descriptor(socket) => Ok(Self::Socket(TcpStream::from_std(socket.into()))),
            Restored::Rehearsed => Ok(Self::Closed),
            #[cfg(any(test, fuzzing))]
            Restored::Simulated(stream) => match stream.downcast() {
                Ok(stream) => Ok(Self::Memory(*stream)),
                Err(_) => Err(RecordError::new("a stream is expected")),
            },
        }
    }

    fn missing() -> Option<Self> {
        Some(Self::Closed)
    }
}

/// Details of the last read over TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastRead {
    /// The number of bytes that were read from the socket.
    pub(super) wire: usize,
    /// Whether there may be more to read now.
    pub(super) more: bool,
    /// The work of decrypting. See [`Budget`](super::event_loop::budget::Budget).
    pub(super) work: usize,
    /// Whether this read has completed the handshake.
    pub(super) opens: bool,
    /// Whether the peer does not speak TLS. From now on, the stream is in plain text.
    pub(super) is_plain: bool,
}

/// Details of the last write over TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastWrite {
    /// The number of bytes that were written to the socket.
    pub(super) sent: usize,
    /// Whether the socket may have room even if not all output was taken.
    pub(super) has_room: bool,
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
    /// Answers a request that was not read, if it has arrived, and ends the stream. What has arrived is read first: closing a
    /// socket with unread data could make the peer lose the answer.
    pub(super) fn refuse(&mut self, answer: &[u8]) {
        let mut request = [0; 4096];
        let _ = self.read(&mut request);
        let _ = self.write_plain(&[IoSlice::new(answer)]);
    }

    /// Reads once from a stream that is not encrypted. Zero bytes mean end of file.
    #[inline]
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Socket(stream) => retry(|| stream.read(buffer)),
            Self::Tls(_) | Self::Closed => Err(io::ErrorKind::WouldBlock.into()),
            #[cfg(any(test, fuzzing))]
            Self::Memory(stream) => retry(|| stream.read(buffer)),
        }
    }

    /// Writes once and returns the number of bytes written, which is zero if the socket is full. With TLS, some of
    /// them may be encrypted but not yet written to the socket: see [`TlsStream::last_write`].
    #[inline]
    pub(super) fn write(
        &mut self,
        buffers: &[IoSlice<'_>],
        scratch: &mut Scratch,
    ) -> io::Result<usize> {
        match self {
            Self::Tls(stream) => stream.write(buffers, scratch),
            plain => plain.write_plain(buffers),
        }
    }

    /// Writes once to a stream that is not encrypted.
    #[inline]
    pub(super) fn write_plain(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = match (self, buffers) {
            (Self::Socket(stream), [buffer]) => retry(|| stream.write(buffer)),
            (Self::Socket(stream), buffers) => retry(|| stream.write_vectored(buffers)),
            (Self::Tls(_) | Self::Closed, _) => Ok(0),
            #[cfg(any(test, fuzzing))]
            (Self::Memory(stream), buffers) => retry(|| stream.write_vectored(buffers)),
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            written => written,
        }
    }

    /// The number of bytes that the last write, which took `taken` bytes, has written to the socket.
    #[inline]
    pub(super) fn sent(&self, taken: usize) -> u64 {
        self.tls().map_or(taken, |tls| tls.last_write().sent) as u64
    }

    /// Whether the socket may have room although the last write did not take everything.
    pub(super) fn has_room(&self) -> bool {
        self.tls().is_some_and(|tls| tls.last_write().has_room)
    }

    /// Writes encrypted bytes that wait for the socket, and returns the number written.
    pub(super) fn flush(&mut self) -> io::Result<usize> {
        match self {
            Self::Tls(stream) => stream.flush(),
            _ => Ok(0),
        }
    }

    /// The number of encrypted bytes that wait for the socket.
    #[inline]
    pub(super) fn sealed(&self) -> usize {
        self.tls().map_or(0, TlsStream::sealed)
    }

    /// The TLS stream, if the connection uses TLS.
    #[inline]
    pub(super) fn tls(&self) -> Option<&TlsStream> {
        match self {
            Self::Tls(stream) => Some(stream),
            _ => None,
        }
    }

    /// The TLS stream, if the connection uses TLS.
    #[inline]
    pub(super) fn tls_mut(&mut self) -> Option<&mut TlsStream> {
        match self {
            Self::Tls(stream) => Some(stream),
            _ => None,
        }
    }

    /// Whether a socket that was asked to connect is connected. `None` if that is not known yet.
    pub(super) fn is_established(&self) -> Option<io::Result<()>> {
        #[cfg(any(test, fuzzing))]
        if let Self::Memory(stream) = self {
            return stream.is_established();
        }
        let Self::Socket(stream) = self else {
            return Some(Ok(()));
        };
        match stream.take_error() {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return Some(Err(error)),
        }
        match is_connected(stream) {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Lets the kernel probe the peer of a TCP socket after the interval of PINGs without a byte, and end the connection if nothing
    /// arrives for the time limit of PONGs. With `limits_output`, it also ends one whose peer takes no output for that time. Without
    /// these times, those of the system apply.
    pub(super) fn set_keepalive(&self, timeouts: &Timeouts, limits_output: bool) {
        let (idle, patience) = (timeouts.ping_interval, timeouts.ping_timeout);
        match self {
            Self::Socket(stream) => {
                if let Err(error) = set_keepalive(stream, idle, patience, limits_output) {
                    log::debug!("SO_KEEPALIVE failed: {error}");
                }
            }
            Self::Tls(stream) => stream.socket().set_keepalive(timeouts, limits_output),
            Self::Closed => {}
            #[cfg(any(test, fuzzing))]
            Self::Memory(_) => {}
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
            Self::Tls(stream) => stream.socket().set_nodelay(),
            Self::Closed => {}
            #[cfg(any(test, fuzzing))]
            Self::Memory(_) => {}
        }
    }

    /// The number of written bytes that the peer has not acknowledged, if the system reports it.
    pub(super) fn unsent_len(&self) -> Option<usize> {
        match self {
            Self::Socket(stream) => unsent_bytes(stream),
            Self::Tls(stream) => stream.socket().unsent_len(),
            Self::Closed => None,
            #[cfg(any(test, fuzzing))]
            Self::Memory(stream) => stream.unsent_len(),
        }
    }

    /// Shuts down the writing side. The peer reads end of file after the written bytes. With TLS, the socket may have to
    /// take close_notify first: call it again when nothing is [sealed](Stream::sealed).
    pub(super) fn end_output(&mut self, scratch: &mut Scratch) {
        match self {
            Self::Tls(stream) => {
                stream.close(scratch);
                if stream.sealed() == 0 {
                    stream.socket_mut().end_output(scratch);
                }
            }
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
            Self::Tls(stream) => stream.socket_mut().register(registry, token),
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
            Self::Tls(stream) => stream.socket_mut().reregister(registry, token),
            Self::Closed => Ok(()),
            #[cfg(any(test, fuzzing))]
            Self::Memory(stream) if stream.wire().refuses_events => {
                Err(io::ErrorKind::OutOfMemory.into())
            }
            #[cfg(any(test, fuzzing))]
            Self::Memory(_) => Ok(()),
        }
    }

    /// Deregisters the socket.
    pub(super) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Self::Socket(stream) => registry.deregister(stream),
            Self::Tls(stream) => stream.socket_mut().deregister(registry),
            Self::Closed => Ok(()),
            #[cfg(any(test, fuzzing))]
            Self::Memory(_) => Ok(()),
        }
    }
}

#[inline]
fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
