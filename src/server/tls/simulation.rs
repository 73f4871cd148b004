//! A TLS stream in memory whose peer is a client of rustls, for tests and the fuzzer.
//!
//! The bytes of the input say what happens next. Whatever it is, each side gets what the other has sent, in order and
//! without gaps, and nothing panics. Only after a corrupted byte may data be missing at the end.

use std::io::{self, IoSlice, Read, Write};
use std::sync::{Arc, OnceLock};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::stream::{Scratch, TlsStream};
use super::{TlsConfig, TlsIdentity};
use crate::server::memory_stream::MemoryStream;
use crate::server::stream::Stream;

/// More than the memory that a stream may hold for its peer: an incomplete record, one that was decrypted, and a read.
const MAX_HELD: usize = 256 << 10;

/// The settings of the server and of clients, created once.
fn settings() -> &'static (TlsConfig, [Arc<ClientConfig>; 2]) {
    static SETTINGS: OnceLock<(TlsConfig, [Arc<ClientConfig>; 2])> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let names = ["localhost".to_owned()];
        let (identity, _) = TlsIdentity::self_signed(&names).expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(identity.chain()[0].clone()).expect("a root");
        let client = |version| {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[version])
                .expect("the version is known")
                .with_root_certificates(roots.clone())
                .with_no_client_auth();
            Arc::new(config)
        };
        let clients = [
            client(&rustls::version::TLS13),
            client(&rustls::version::TLS12),
        ];
        (TlsConfig::new(identity).expect("valid"), clients)
    })
}

/// The settings of a server in memory.
pub(crate) fn config() -> TlsConfig {
    settings().0.clone()
}

/// A peer of a server in memory, which speaks TLS.
pub(crate) struct Peer {
    client: ClientConnection,
    /// The number of bytes of the server that were read.
    read: usize,
    /// What the server has sent, decrypted.
    pub(crate) plain: Vec<u8>,
}

impl Peer {
    pub(crate) fn new(is_tls12: bool) -> Self {
        let (_, clients) = settings();
        let name = ServerName::try_from("localhost").expect("a name");
        let config = Arc::clone(&clients[usize::from(is_tls12)]);
        Self {
            client: ClientConnection::new(config, name).expect("a client"),
            read: 0,
            plain: Vec::new(),
        }
    }

    /// Sends data, if necessary after the handshake.
    pub(crate) fn write(&mut self, data: &[u8], wire: &MemoryStream) {
        // rustls takes as much as it keeps during the handshake.
        drop(self.client.writer().write(data));
        self.pump(wire);
    }

    /// Reads what the server has sent, and sends what the session has to send. Returns whether it has sent something.
    pub(crate) fn pump(&mut self, wire: &MemoryStream) -> bool {
        let mut wire = wire.wire();
        let mut output = &wire.from_server[self.read..];
        self.read = wire.from_server.len();
        while let Ok(1..) = self.client.read_tls(&mut output) {
            // If the test has corrupted the session, the server ends it with an alert.
            if self.client.process_new_packets().is_err() {
                break;
            }
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = self.client.reader().read(&mut buffer) {
                self.plain.extend_from_slice(&buffer[..count]);
            }
        }
        let mut sent = Vec::new();
        while self.client.wants_write() {
            let taken = self.client.write_tls(&mut sent);
            taken.expect("memory takes everything");
        }
        wire.to_server.extend(&sent);
        !sent.is_empty()
    }
}

/// The stream and its peer.
struct Conversation {
    stream: TlsStream,
    scratch: Scratch,
    wire: MemoryStream,
    client: ClientConnection,
    /// What the client has encrypted and the network has not carried yet.
    on_the_way: Vec<u8>,
    /// The number of bytes that each side has sent, and that the other has got. Byte `n` is `n % 251`.
    client_sent: usize,
    server_got: usize,
    server_sent: usize,
    client_got: usize,
    is_corrupt: bool,
    has_failed: bool,
    client_ended: bool,
    server_ended: bool,
}

fn data(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| (at % 251) as u8).collect()
}

/// Runs a conversation.
pub(crate) fn converse(input: &[u8]) {
    let Some((&options, mut rest)) = input.split_first() else {
        return;
    };
    let (config, clients) = settings();
    let wire = MemoryStream::default();
    wire.wire().room = 1 << 20;
    let is_proxied = options & 2 != 0;
    let stream =
        TlsStream::new(Stream::Memory(wire.clone()), config, is_proxied).expect("a stream");
    let mut client_config = (*clients[usize::from(options & 1)]).clone();
    if options & 4 != 0 {
        client_config.max_fragment_size = Some(32 + usize::from(options >> 3));
    }
    let name = ServerName::try_from("localhost").expect("a name");
    let client = ClientConnection::new(Arc::new(client_config), name).expect("a client");
    let mut conversation = Conversation {
        stream,
        scratch: Scratch::default(),
        wire,
        client,
        on_the_way: Vec::new(),
        client_sent: 0,
        server_got: 0,
        server_sent: 0,
        client_got: 0,
        is_corrupt: false,
        has_failed: false,
        client_ended: false,
        server_ended: false,
    };
    if is_proxied {
        conversation.stream.begin_handshake(&[]);
    }
    while let [operation, argument, others @ ..] = rest {
        rest = others;
        conversation.perform(*operation, usize::from(*argument));
    }
    conversation.finish();
}

impl Conversation {
    fn perform(&mut self, operation: u8, argument: usize) {
        match operation % 14 {
            0 => self.client_writes(argument * argument / 3),
            1 | 2 => self.carry(argument),
            3 => self.carry(usize::MAX),
            4 => drop(self.server_reads(1 + argument * 97)),
            5 => drop(self.server_reads(1)),
            6 => self.server_writes(argument * 80, argument % 5 + 1),
            7 => self.wire.wire().room = argument * argument,
            8 => drop(self.stream.flush()),
            9 => self.client_reads(),
            10 => {
                if !self.client.is_handshaking() && !self.client_ended {
                    drop(self.client.refresh_traffic_keys());
                }
            }
            11 if argument == 0 && !self.client.is_handshaking() => {
                self.client.send_close_notify();
                self.client_ended = true;
            }
            12 if argument == 0 => {
                self.stream.close(&mut self.scratch);
                self.server_ended = true;
            }
            13 if argument < 8 => {
                // A byte is corrupted on the way, or bytes are added.
                self.take_from_client();
                let at = (self.on_the_way.len() / 8) * argument;
                match self.on_the_way.get_mut(at) {
                    Some(byte) => *byte ^= 1 << argument,
                    None => self.on_the_way.push(argument as u8 * 11),
                }
                self.is_corrupt = true;
            }
            _ => {
                self.client_writes(argument);
                self.carry(usize::MAX);
                self.server_reads(512);
                self.client_reads();
            }
        }
        let held = self.stream.held();
        assert!(held < MAX_HELD, "it holds {held} bytes");
    }

    fn client_writes(&mut self, len: usize) {
        if self.client_ended {
            return;
        }
        // rustls keeps only some of what is written during the handshake.
        if let Ok(count) = self.client.writer().write(&data(self.client_sent, len)) {
            self.client_sent += count;
        }
    }

    fn take_from_client(&mut self) {
        while self.client.wants_write() {
            let taken = self.client.write_tls(&mut self.on_the_way);
            taken.expect("memory takes everything");
        }
    }

    /// Carries bytes from the client to the server.
    fn carry(&mut self, most: usize) {
        self.take_from_client();
        let count = most.min(self.on_the_way.len());
        let mut wire = self.wire.wire();
        wire.to_server.extend(self.on_the_way.drain(..count));
    }

    /// Reads until there is no more. Returns whether the input has ended.
    fn server_reads(&mut self, size: usize) -> bool {
        if self.has_failed {
            return true;
        }
        let mut buffer = vec![0; size];
        for _ in 0..100_000 {
            match self.stream.read(&mut buffer, &mut self.scratch) {
                Ok(0) => return true,
                Ok(count) => {
                    assert_eq!(buffer[..count], data(self.server_got, count));
                    self.server_got += count;
                    assert!(self.server_got <= self.client_sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.stream.last_read().more {
                        return false;
                    }
                    if self.stream.last_read().is_plain {
                        self.has_failed = true;
                        return true;
                    }
                }
                Err(error) => {
                    assert!(
                        self.is_corrupt || self.has_failed,
                        "the client is correct: {error}"
                    );
                    self.has_failed = true;
                    return true;
                }
            }
        }
        panic!("reading does not end");
    }

    fn server_writes(&mut self, len: usize, parts: usize) {
        if self.server_ended || self.has_failed {
            return;
        }
        let bytes = data(self.server_sent, len);
        let slices: Vec<_> = bytes.chunks(len / parts + 1).map(IoSlice::new).collect();
        match self.stream.write(&slices, &mut self.scratch) {
            Ok(taken) => {
                assert!(taken <= len);
                self.server_sent += taken;
            }
            Err(_) => self.has_failed = true,
        }
    }

    fn client_reads(&mut self) {
        let output = std::mem::take(&mut self.wire.wire().from_server);
        let mut output = &output[..];
        while !output.is_empty() {
            match self.client.read_tls(&mut output) {
                Ok(0) => return,
                Ok(_) => {}
                Err(_) => {
                    // Its buffer is full.
                    self.take_plaintext();
                    continue;
                }
            }
            if let Err(error) = self.client.process_new_packets() {
                assert!(
                    self.is_corrupt || self.has_failed,
                    "the server is correct: {error}"
                );
                self.has_failed = true;
                return;
            }
            self.take_plaintext();
        }
    }

    fn take_plaintext(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = self.client.reader().read(&mut buffer) {
            assert_eq!(buffer[..count], data(self.client_got, count));
            self.client_got += count;
        }
    }

    /// Carries everything that is on the way, in both directions. Nothing may be missing.
    fn finish(&mut self) {
        self.wire.wire().room = usize::MAX / 2;
        for _ in 0..8 {
            self.carry(usize::MAX);
            self.server_reads(3000);
            drop(self.stream.flush());
            self.client_reads();
        }
        if self.is_corrupt || self.has_failed {
            return;
        }
        assert!(!self.stream.is_handshaking() && !self.client.is_handshaking());
        assert!(self.server_ended || self.server_got == self.client_sent);
        assert_eq!(self.client_got, self.server_sent);
        assert_eq!(self.stream.sealed(), 0);
    }
}
