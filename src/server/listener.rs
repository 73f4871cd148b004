//! Listening sockets.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry};

use super::id::listener_token;
use crate::sys::is_exhausted;

/// Connections taken from one listener in one turn of the loop.
const ACCEPTS_PER_TURN: usize = 256;

/// How long to wait before trying again where there were no descriptors left, unless one is closed before.
pub(super) const EXHAUSTED_RETRY: Duration = Duration::from_millis(100);

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

/// A listening socket. Readiness is told once, so it is kept here until the queue is empty.
#[derive(Debug)]
pub(super) struct Listener {
    socket: TcpListener,
    /// Whether there may be connections in the queue.
    pub(super) pending: bool,
    /// Whether exhaustion was logged since a connection was last taken.
    complained: bool,
}

impl Listener {
    pub(super) fn bind(
        registry: &Registry,
        address: SocketAddr,
        index: usize,
    ) -> io::Result<(Self, SocketAddr)> {
        let mut socket = TcpListener::bind(address)?;
        let address = socket.local_addr()?;
        registry.register(&mut socket, listener_token(index), Interest::READABLE)?;
        Ok((
            Self {
                socket,
                pending: false,
                complained: false,
            },
            address,
        ))
    }

    /// Takes connections, at most `room` of them.
    pub(super) fn accept(
        &mut self,
        room: usize,
        mut take: impl FnMut(TcpStream, SocketAddr),
    ) -> Accepted {
        for _ in 0..ACCEPTS_PER_TURN.min(room) {
            match self.socket.accept() {
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
        if room <= ACCEPTS_PER_TURN {
            Accepted::Exhausted
        } else {
            Accepted::Some
        }
    }

    pub(super) fn close(mut self, registry: &Registry) {
        if let Err(error) = registry.deregister(&mut self.socket) {
            log::debug!("deregistering a listener failed: {error}");
        }
    }
}
