//! A connection in memory, for tests and fuzzers.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::server::id::ClientId;
use crate::server::stream::Stream;

/// A connection in memory. The server has one end, and the test or fuzzer has the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryStream(Arc<Mutex<Wire>>);

#[derive(Debug, Default)]
pub(crate) struct Wire {
    pub(crate) to_server: VecDeque<u8>,
    /// The client ended its direction.
    pub(crate) ended: bool,
    /// The client reset the connection.
    pub(crate) reset: bool,
    /// All bytes that the server wrote.
    pub(crate) from_server: Vec<u8>,
    /// The free space of the simulated send buffer.
    pub(crate) room: usize,
    /// The number of those bytes that the client's system has taken, if that is known.
    pub(crate) taken: Option<usize>,
    /// Whether the system refuses to report events of the connection to another client.
    pub(crate) refuses_events: bool,
    /// What has become of the attempt to connect.
    pub(crate) dial: Dial,
}

/// The state of a connection that the server opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dial {
    #[default]
    Connected,
    Pending,
    Refused,
}

impl MemoryStream {
    pub(crate) fn wire(&self) -> MutexGuard<'_, Wire> {
        self.0.lock().expect("one thread")
    }

    /// Whether the socket is connected. `None` if that is not known yet.
    pub(crate) fn is_established(&self) -> Option<io::Result<()>> {
        match self.wire().dial {
            Dial::Connected => Some(Ok(())),
            Dial::Pending => None,
            Dial::Refused => Some(Err(io::ErrorKind::ConnectionRefused.into())),
        }
    }

    /// Whether both values are ends of the same connection.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The number of copies of this value: one at the server until it closes the connection.
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Bytes that the server wrote and the client's system has not taken.
    pub(crate) fn unsent_len(&self) -> Option<usize> {
        let wire = self.wire();
        wire.taken
            .map(|taken| wire.from_server.len().saturating_sub(taken))
    }
}

impl Read for MemoryStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut wire = self.wire();
        if wire.reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if wire.to_server.is_empty() && !wire.ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // The bytes may be in two parts of the queue. A socket would return both.
        wire.to_server.make_contiguous();
        wire.to_server.read(buffer)
    }
}

impl Write for MemoryStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut wire = self.wire();
        if wire.reset {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut taken = 0;
        for buffer in buffers {
            let count = buffer.len().min(wire.room);
            wire.from_server.extend_from_slice(&buffer[..count]);
            wire.room -= count;
            taken += count;
        }
        if taken == 0 {
            Err(io::ErrorKind::WouldBlock.into())
        } else {
            Ok(taken)
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Gives the loop connections in memory instead of sockets.
#[derive(Debug, Default)]
pub(crate) struct Dialer {
    /// The attempts whose host is being resolved.
    pub(crate) resolving: Vec<(ClientId, u32)>,
    /// The test's ends of new connections.
    pub(crate) dialed: Vec<MemoryStream>,
    /// What becomes of the next connection at once.
    pub(crate) next: Dial,
}

impl Dialer {
    /// Opens a connection.
    pub(crate) fn dial(&mut self) -> Stream {
        let stream = MemoryStream::default();
        stream.wire().dial = self.next;
        stream.wire().room = 1 << 16;
        self.dialed.push(stream.clone());
        Stream::Memory(stream)
    }
}
