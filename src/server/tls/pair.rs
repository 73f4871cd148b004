//! A TLS stream to a server and a TLS stream of a client in memory, which talk to each other, for tests and the fuzzer.
//!
//! However the bytes are cut on the way, each side gets what the other has sent, in order and without gaps.

use std::io::{self, IoSlice};

use super::simulation::{self, MAX_HELD, client_tls, data};
use super::stream::{Scratch, TlsStream};
use super::{ClientTls, TlsConfig};
use crate::server::simulation::memory_stream::MemoryStream;
use crate::server::stream::Stream;

/// One side of the conversation. Byte `n` of what it sends is `n % 251`.
pub(super) struct Side {
    pub(super) stream: TlsStream,
    scratch: Scratch,
    pub(super) wire: MemoryStream,
    /// The number of bytes that it has sent.
    pub(super) sent: usize,
    /// The number of bytes that it has got.
    got: usize,
    /// The number of reads that have completed the handshake.
    pub(super) opened: usize,
    /// Whether it has sent close_notify.
    has_ended: bool,
    /// Whether it has read the end of the input.
    pub(super) has_read_end: bool,
    /// Why it has failed.
    pub(super) failure: Option<io::Error>,
}

impl Side {
    fn new(begin: impl FnOnce(Stream) -> io::Result<TlsStream>) -> Self {
        let wire = MemoryStream::default();
        wire.wire().room = 1 << 20;
        Self {
            stream: begin(Stream::Memory(wire.clone())).expect("a stream"),
            scratch: Scratch::default(),
            wire,
            sent: 0,
            got: 0,
            opened: 0,
            has_ended: false,
            has_read_end: false,
            failure: None,
        }
    }

    pub(super) fn write(&mut self, len: usize, parts: usize) {
        if self.has_ended || self.failure.is_some() {
            return;
        }
        let bytes = data(self.sent, len);
        let slices: Vec<_> = bytes.chunks(len / parts + 1).map(IoSlice::new).collect();
        let was_open = self.opened > 0;
        match self.stream.write(&slices, &mut self.scratch) {
            Ok(taken) => {
                assert!(
                    taken == 0 || was_open,
                    "data before the handshake is complete"
                );
                self.sent += taken;
            }
            Err(error) => self.failure = Some(error),
        }
    }

    /// Reads until there is no more.
    pub(super) fn read(&mut self, size: usize) {
        let mut buffer = vec![0; size];
        for _ in 0..100_000 {
            if self.failure.is_some() || self.has_read_end {
                return;
            }
            let read = self.stream.read(&mut buffer, &mut self.scratch);
            let last = self.stream.last_read();
            self.opened += usize::from(last.opens);
            match read {
                Ok(0) => self.has_read_end = true,
                Ok(count) => {
                    assert_eq!(self.opened, 1, "data before the handshake is complete");
                    assert_eq!(buffer[..count], data(self.got, count));
                    self.got += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !last.more || last.is_plain {
                        return;
                    }
                }
                Err(error) => self.failure = Some(error),
            }
        }
        panic!("reading does not end");
    }

    /// Sends close_notify, if the handshake is complete.
    pub(super) fn end(&mut self) {
        self.stream.close(&mut self.scratch);
        self.has_ended |= self.opened > 0 && self.failure.is_none();
    }

    /// Carries at most this many bytes to the other side. Returns their number.
    pub(super) fn carry(&self, to: &Self, most: usize) -> usize {
        let mut from = self.wire.wire();
        let count = most.min(from.from_server.len());
        let carried = from.from_server.drain(..count);
        to.wire.wire().to_server.extend(carried);
        count
    }
}

/// Both sides.
pub(super) struct Pair {
    pub(super) client: Side,
    pub(super) server: Side,
}

impl Pair {
    pub(super) fn new(config: &TlsConfig, tls: &ClientTls, name: &str) -> Self {
        Self {
            client: Side::new(|socket| TlsStream::connect(socket, tls, name)),
            server: Side::new(|socket| TlsStream::new(socket, config, false)),
        }
    }

    /// Carries everything that is on the way, in both directions.
    pub(super) fn settle(&mut self) {
        for side in [&mut self.client, &mut self.server] {
            side.wire.wire().room = usize::MAX / 2;
        }
        loop {
            self.client.read(3000);
            self.server.read(3000);
            // A socket whose peer is gone takes nothing.
            drop(self.client.stream.flush());
            drop(self.server.stream.flush());
            let carried = self.client.carry(&self.server, usize::MAX)
                + self.server.carry(&self.client, usize::MAX);
            if carried == 0 {
                return;
            }
        }
    }

    /// Checks that both sides are connected and nothing is missing.
    pub(super) fn check(&self) {
        for (side, other) in [(&self.client, &self.server), (&self.server, &self.client)] {
            assert!(side.failure.is_none(), "{:?}", side.failure);
            assert_eq!(side.opened, 1);
            assert!(side.has_ended || side.got == other.sent);
            assert!(side.has_read_end <= other.has_ended);
            assert!(side.has_ended || side.has_read_end == other.has_ended);
            assert_eq!(side.stream.sealed(), 0);
        }
    }

    fn perform(&mut self, operation: u8, argument: usize) {
        let (side, other) = if operation & 0x80 == 0 {
            (&mut self.client, &mut self.server)
        } else {
            (&mut self.server, &mut self.client)
        };
        match operation % 8 {
            0 => side.write(argument * 80, argument % 5 + 1),
            1 => side.read(1 + argument * 97),
            2 => side.read(1),
            3 => drop(side.stream.flush()),
            4 => side.wire.wire().room = argument * argument,
            5 if argument == 0 => side.end(),
            6 => drop(side.carry(other, usize::MAX)),
            _ => drop(side.carry(other, argument)),
        }
        let held = side.stream.held();
        assert!(held < MAX_HELD, "it holds {held} bytes");
    }
}

/// Runs a conversation.
pub(super) fn converse(options: u8, mut rest: &[u8]) {
    let (config, tls) = (simulation::config(), client_tls());
    let is_resumed = options & 1 != 0;
    if is_resumed {
        // The ticket arrives after the handshake.
        Pair::new(&config, &tls, "localhost").settle();
    }
    let mut pair = Pair::new(&config, &tls, "localhost");
    while let [operation, argument, others @ ..] = rest {
        rest = others;
        pair.perform(*operation, usize::from(*argument));
    }
    pair.settle();
    pair.check();
    assert_eq!(pair.client.stream.is_resumed(), is_resumed);
    assert_eq!(pair.server.stream.is_resumed(), is_resumed);
}
