//! A TLS stream in memory whose peer is a client or a server of rustls, for tests and the fuzzer.
//!
//! The bytes of the input say what happens next. Whatever it is, each side gets what the other has sent, in order and
//! without gaps, and nothing panics. Only after a corrupted byte may data be missing at the end.

use std::io::{self, IoSlice, Read, Write};
use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};

use super::stream::{Scratch, TlsStream};
use super::{ClientTls, TlsConfig, TlsIdentity};
use crate::server::simulation::memory_stream::MemoryStream;
use crate::server::stream::Stream;

/// More than the memory that a stream may hold for its peer: an incomplete record, one that was decrypted, and a read.
pub(super) const MAX_HELD: usize = 256 << 10;

/// The settings of both sides, created once.
struct Settings {
    config: TlsConfig,
    /// Those of rustls, for TLS 1.3 and TLS 1.2.
    servers: [Arc<ServerConfig>; 2],
    clients: [Arc<ClientConfig>; 2],
}

fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let names = ["localhost".to_owned()];
        let (identity, _) = TlsIdentity::self_signed(&names).expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(identity.chain()[0].clone()).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
        // X25519 is not optimized in these builds, and would take most of the time of a simulation with many clients.
        let fast = Arc::new(CryptoProvider {
            kx_groups: vec![rustls::crypto::ring::kx_group::SECP256R1],
            ..rustls::crypto::ring::default_provider()
        });
        let clients = versions.map(|version| {
            let config = ClientConfig::builder_with_provider(Arc::clone(&fast))
                .with_protocol_versions(&[version])
                .expect("the version is known")
                .with_root_certificates(roots.clone())
                .with_no_client_auth();
            Arc::new(config)
        });
        let servers = versions.map(|version| {
            let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[version])
                .expect("the version is known")
                .with_no_client_auth()
                .with_single_cert(identity.chain().to_vec(), identity.key());
            Arc::new(config.expect("valid"))
        });
        Settings {
            config: TlsConfig::new(identity).expect("valid"),
            servers,
            clients,
        }
    })
}

/// The settings of a server in memory.
pub(crate) fn config() -> TlsConfig {
    settings().config.clone()
}

/// Settings of a client of this server, without sessions to resume.
pub(super) fn client_tls() -> ClientTls {
    let fingerprint = settings().config.identity().fingerprint();
    let tls = ClientTls::new().with_fingerprint(&fingerprint);
    tls.expect("a fingerprint")
}

/// A TLS client of a server in memory.
pub(crate) struct Peer {
    client: ClientConnection,
    /// The number of bytes of the server that were read.
    read: usize,
    /// What the server has sent, decrypted.
    pub(crate) plain: Vec<u8>,
}

impl Peer {
    pub(crate) fn new(is_tls12: bool) -> Self {
        let clients = &settings().clients;
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

/// The stream, in either role, and its peer.
struct Conversation {
    stream: TlsStream,
    scratch: Scratch,
    wire: MemoryStream,
    peer: Connection,
    /// What the peer has encrypted and the network has not carried yet.
    on_the_way: Vec<u8>,
    /// The number of bytes that each side has sent, and that the other has got. Byte `n` is `n % 251`.
    peer_sent: usize,
    stream_got: usize,
    stream_sent: usize,
    peer_got: usize,
    is_corrupt: bool,
    has_failed: bool,
    peer_ended: bool,
    stream_ended: bool,
}

/// What either side sends from this position.
pub(super) fn data(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| (at % 251) as u8).collect()
}

/// Runs a conversation, of which the first byte of the input selects the roles and the version.
pub(crate) fn converse(input: &[u8]) {
    let Some((&options, mut rest)) = input.split_first() else {
        return;
    };
    if options & 0xc0 == 0xc0 {
        super::pair::converse(options, rest);
        return;
    }
    let wire = MemoryStream::default();
    wire.wire().room = 1 << 20;
    let is_proxied = options & 2 != 0;
    let fragment = (options & 4 != 0).then_some(32 + usize::from(options >> 3 & 15));
    let is_tls12 = usize::from(options & 1);
    let settings = settings();
    let socket = Stream::Memory(wire.clone());
    let (stream, peer) = if options & 0x80 == 0 {
        let stream = TlsStream::new(socket, &settings.config, is_proxied);
        let mut config = (*settings.clients[is_tls12]).clone();
        config.max_fragment_size = fragment;
        let name = ServerName::try_from("localhost").expect("a name");
        let client = ClientConnection::new(Arc::new(config), name).expect("a client");
        (stream, Connection::Client(client))
    } else {
        let stream = TlsStream::connect(socket, &client_tls(), "localhost");
        let mut config = (*settings.servers[is_tls12]).clone();
        config.max_fragment_size = fragment;
        config.send_half_rtt_data = is_proxied;
        let server = ServerConnection::new(Arc::new(config)).expect("a server");
        (stream, Connection::Server(server))
    };
    let mut conversation = Conversation {
        stream: stream.expect("a stream"),
        scratch: Scratch::default(),
        wire,
        peer,
        on_the_way: Vec::new(),
        peer_sent: 0,
        stream_got: 0,
        stream_sent: 0,
        peer_got: 0,
        is_corrupt: false,
        has_failed: false,
        peer_ended: false,
        stream_ended: false,
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
            0 => self.peer_writes(argument * argument / 3),
            1 | 2 => self.carry(argument),
            3 => self.carry(usize::MAX),
            4 => drop(self.stream_reads(1 + argument * 97)),
            5 => drop(self.stream_reads(1)),
            6 => self.stream_writes(argument * 80, argument % 5 + 1),
            7 => self.wire.wire().room = argument * argument,
            8 => drop(self.stream.flush()),
            9 => self.peer_reads(),
            10 => {
                if !self.peer.is_handshaking() && !self.peer_ended {
                    drop(self.peer.refresh_traffic_keys());
                }
            }
            11 if argument == 0 && !self.peer.is_handshaking() => {
                self.peer.send_close_notify();
                self.peer_ended = true;
            }
            12 if argument == 0 => {
                self.stream.close(&mut self.scratch);
                self.stream_ended = true;
            }
            13 if argument < 8 => {
                // A byte is corrupted on the way, or bytes are added.
                self.take_from_peer();
                let at = (self.on_the_way.len() / 8) * argument;
                match self.on_the_way.get_mut(at) {
                    Some(byte) => *byte ^= 1 << argument,
                    None => self.on_the_way.push(argument as u8 * 11),
                }
                self.is_corrupt = true;
            }
            _ => {
                self.peer_writes(argument);
                self.carry(usize::MAX);
                self.stream_reads(512);
                self.peer_reads();
            }
        }
        let held = self.stream.held();
        assert!(held < MAX_HELD, "it holds {held} bytes");
    }

    fn peer_writes(&mut self, len: usize) {
        if self.peer_ended {
            return;
        }
        // rustls keeps only some of what is written during the handshake.
        if let Ok(count) = self.peer.writer().write(&data(self.peer_sent, len)) {
            self.peer_sent += count;
        }
    }

    fn take_from_peer(&mut self) {
        while self.peer.wants_write() {
            let taken = self.peer.write_tls(&mut self.on_the_way);
            taken.expect("memory takes everything");
        }
    }

    /// Carries bytes from the peer to the stream.
    fn carry(&mut self, most: usize) {
        self.take_from_peer();
        let count = most.min(self.on_the_way.len());
        let mut wire = self.wire.wire();
        wire.to_server.extend(self.on_the_way.drain(..count));
    }

    /// Reads until there is no more. Returns whether the input has ended.
    fn stream_reads(&mut self, size: usize) -> bool {
        if self.has_failed {
            return true;
        }
        let mut buffer = vec![0; size];
        for _ in 0..100_000 {
            match self.stream.read(&mut buffer, &mut self.scratch) {
                Ok(0) => return true,
                Ok(count) => {
                    assert_eq!(buffer[..count], data(self.stream_got, count));
                    self.stream_got += count;
                    assert!(self.stream_got <= self.peer_sent);
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
                        "the peer is correct: {error}"
                    );
                    self.has_failed = true;
                    return true;
                }
            }
        }
        panic!("reading does not end");
    }

    fn stream_writes(&mut self, len: usize, parts: usize) {
        if self.stream_ended || self.has_failed {
            return;
        }
        let bytes = data(self.stream_sent, len);
        let slices: Vec<_> = bytes.chunks(len / parts + 1).map(IoSlice::new).collect();
        match self.stream.write(&slices, &mut self.scratch) {
            Ok(taken) => {
                assert!(taken <= len);
                self.stream_sent += taken;
            }
            Err(_) => self.has_failed = true,
        }
    }

    fn peer_reads(&mut self) {
        let output = std::mem::take(&mut self.wire.wire().from_server);
        let mut output = &output[..];
        while !output.is_empty() {
            match self.peer.read_tls(&mut output) {
                Ok(0) => return,
                Ok(_) => {}
                Err(_) => {
                    // Its buffer is full.
                    self.take_plaintext();
                    continue;
                }
            }
            if let Err(error) = self.peer.process_new_packets() {
                assert!(
                    self.is_corrupt || self.has_failed,
                    "the stream is correct: {error}"
                );
                self.has_failed = true;
                return;
            }
            self.take_plaintext();
        }
    }

    fn take_plaintext(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = self.peer.reader().read(&mut buffer) {
            assert_eq!(buffer[..count], data(self.peer_got, count));
            self.peer_got += count;
        }
    }

    /// Carries everything that is on the way, in both directions. Nothing may be missing.
    fn finish(&mut self) {
        self.wire.wire().room = usize::MAX / 2;
        for _ in 0..8 {
            self.carry(usize::MAX);
            self.stream_reads(3000);
            drop(self.stream.flush());
            self.peer_reads();
        }
        if self.is_corrupt || self.has_failed {
            return;
        }
        assert!(!self.stream.is_handshaking() && !self.peer.is_handshaking());
        assert!(self.stream_ended || self.stream_got == self.peer_sent);
        assert_eq!(self.peer_got, self.stream_sent);
        assert_eq!(self.stream.sealed(), 0);
    }
}
