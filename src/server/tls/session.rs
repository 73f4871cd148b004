//! One TLS session without its socket: ciphertext in, plaintext out, and the reverse.

use std::fmt;
use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{ClientConfig, CommonState, Error, HandshakeKind, ServerConfig};

/// The maximum number of records with data that one call of [`Session::receive`] decrypts. A peer can make a record as
/// short as a byte, and each one takes about as long as a short message.
const MAX_RECORDS: usize = 256;

/// One side of a TLS session.
pub(super) struct Session {
    connection: Connection,
    /// Whether the peer has sent close_notify.
    peer_closed: bool,
}

/// The state of either side in rustls.
enum Connection {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// What both sides have in common. Their types differ, but not what they do here.
trait Side {
    type Data;

    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    fn has_output(&self) -> bool;
}

impl Side for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(input)
    }

    fn has_output(&self) -> bool {
        self.wants_write()
    }
}

impl Side for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(input)
    }

    fn has_output(&self) -> bool {
        self.wants_write()
    }
}

/// What [`write`] appends.
#[derive(Clone, Copy)]
enum Output<'a> {
    Data(&'a [u8]),
    CloseNotify,
}

/// What [`Session::receive`] did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Opened {
    /// The number of input bytes that are no longer needed. The caller must pass the rest again, before new input.
    pub(super) consumed: usize,
    /// The number of application data records (RFC 8446 section 5.1).
    pub(super) records: usize,
    /// Whether the rest of the input may contain whole records.
    pub(super) has_more: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    /// The server's side.
    pub(super) fn new(config: Arc<ServerConfig>) -> Result<Self, Error> {
        let connection = UnbufferedServerConnection::new(config)?;
        Ok(Self {
            connection: Connection::Server(connection),
            peer_closed: false,
        })
    }

    /// The client's side. The first call of `receive`, without input, appends the ClientHello.
    pub(super) fn connect(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, Error> {
        let connection = UnbufferedClientConnection::new(config, name)?;
        Ok(Self {
            connection: Connection::Client(connection),
            peer_closed: false,
        })
    }

    fn common(&self) -> &CommonState {
        match &self.connection {
            Connection::Server(connection) => connection,
            Connection::Client(connection) => connection,
        }
    }

    /// Whether this is the client's side.
    pub(super) fn is_client(&self) -> bool {
        matches!(self.connection, Connection::Client(_))
    }

    /// Whether the handshake is complete.
    pub(super) fn is_open(&self) -> bool {
        !self.common().is_handshaking()
    }

    /// Whether the peer has sent close_notify: no data follows.
    pub(super) fn is_peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Whether the handshake resumed an earlier session.
    pub(super) fn is_resumed(&self) -> bool {
        self.common().handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The protocol version and the cipher suite, for the log.
    pub(super) fn describe(&self) -> String {
        let version = self.common().protocol_version();
        let suite = self.common().negotiated_cipher_suite();
        let version = version.map_or("", |version| version.as_str().unwrap_or_default());
        let version = version.replace('_', ".");
        let suite = suite.map_or("", |suite| suite.suite().as_str().unwrap_or_default());
        // rustls adds the version to the names of RFC 8446 appendix B.4.
        let suite = suite.replacen("TLS13", "TLS", 1);
        format!("{version} {suite}")
    }

    /// The certificates of the peer, its own one first. Empty if it has sent none.
    pub(super) fn peer_chain(&self) -> &[rustls::pki_types::CertificateDer<'static>] {
        self.common().peer_certificates().unwrap_or_default()
    }

    /// Decrypts input in place. Passes the data of each record to `sink`, and appends the session's own output to
    /// `wire`, such as handshake messages and alerts.
    ///
    /// After an error, `wire` contains the alert that tells the peer, and the session is over.
    pub(super) fn receive(
        &mut self,
        input: &mut [u8],
        wire: &mut Wire,
        sink: impl FnMut(&[u8]),
    ) -> Result<Opened, Error> {
        let peer_closed = &mut self.peer_closed;
        match &mut self.connection {
            Connection::Server(connection) => receive(connection, peer_closed, input, wire, sink),
            Connection::Client(connection) => receive(connection, peer_closed, input, wire, sink),
        }
    }

    /// Encrypts data and appends it to `wire`, after pending output of the session. `input` must be the unconsumed input of
    /// the last call of `receive`: rustls expects to see a partly received handshake message again.
    pub(super) fn seal(
        &mut self,
        input: &mut [u8],
        data: &[u8],
        wire: &mut Wire,
    ) -> Result<(), Error> {
        self.write(input, wire, Output::Data(data))
    }

    /// Appends close_notify to `wire`. Nothing can be sealed afterwards. `input` is that of `seal`.
    pub(super) fn close(&mut self, input: &mut [u8], wire: &mut Wire) -> Result<(), Error> {
        self.write(input, wire, Output::CloseNotify)
    }

    fn write(
        &mut self,
        input: &mut [u8],
        wire: &mut Wire,
        output: Output<'_>,
    ) -> Result<(), Error> {
        let peer_closed = &mut self.peer_closed;
        match &mut self.connection {
            Connection::Server(connection) => write(connection, peer_closed, input, wire, output),
            Connection::Client(connection) => write(connection, peer_closed, input, wire, output),
        }
    }
}

/// See [`Session::receive`].
fn receive(
    connection: &mut impl Side,
    peer_closed: &mut bool,
    input: &mut [u8],
    wire: &mut Wire,
    mut sink: impl FnMut(&[u8]),
) -> Result<Opened, Error> {
    let mut opened = Opened::default();
    loop {
        let rest = &mut input[opened.consumed..];
        let UnbufferedStatus { discard, state } = connection.process(rest);
        let mut discard = discard;
        let is_done;
        match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    discard += record.discard;
                    opened.records += 1;
                    sink(record.payload);
                }
                opened.has_more = opened.records >= MAX_RECORDS;
                is_done = opened.has_more;
            }
            Ok(ConnectionState::WriteTraffic(_)) => is_done = true,
            Ok(state) => is_done = !step(state, wire, peer_closed)?,
            Err(error) => {
                let rest = &mut input[opened.consumed + discard..];
                take_alert(connection, peer_closed, rest, wire);
                return Err(error);
            }
        }
        opened.consumed += discard;
        if is_done {
            return Ok(opened);
        }
    }
}

/// Appends the pending alert after an error. `input` is the rest of the input. It is not processed again, because rustls
/// returns pending output first.
fn take_alert(
    connection: &mut impl Side,
    peer_closed: &mut bool,
    input: &mut [u8],
    wire: &mut Wire,
) {
    while connection.has_output()
        && let Ok(state) = connection.process(input).state
        && step(state, wire, peer_closed).is_ok()
    {}
}

/// Appends `output` to `wire`, after pending output of the session.
fn write(
    connection: &mut impl Side,
    peer_closed: &mut bool,
    input: &mut [u8],
    wire: &mut Wire,
    output: Output<'_>,
) -> Result<(), Error> {
    loop {
        let UnbufferedStatus { discard, state } = connection.process(input);
        debug_assert_eq!(discard, 0, "the input was handled before");
        match state? {
            ConnectionState::WriteTraffic(mut traffic) => {
                let appended = wire.append(|out| {
                    let written = match output {
                        Output::Data(data) => traffic.encrypt(data, out),
                        Output::CloseNotify => traffic.queue_close_notify(out),
                    };
                    written.map_err(|error| match error {
                        EncryptError::InsufficientSize(size) => Some(size),
                        EncryptError::EncryptExhausted => None,
                    })
                });
                return appended.ok_or(Error::EncryptError);
            }
            state => {
                if !step(state, wire, peer_closed)? {
                    return Err(Error::HandshakeNotComplete);
                }
            }
        }
    }
}

/// Handles a state in which the session has output or news of the peer. Returns whether the session may have more.
fn step<Data>(
    state: ConnectionState<'_, '_, Data>,
    wire: &mut Wire,
    peer_closed: &mut bool,
) -> Result<bool, Error> {
    match state {
        ConnectionState::EncodeTlsData(mut data) => {
            let appended = wire.append(|out| match data.encode(out) {
                Err(EncodeError::InsufficientSize(size)) => Err(Some(size)),
                Err(EncodeError::AlreadyEncoded) => Err(None),
                Ok(count) => Ok(count),
            });
            appended.map(|()| true).ok_or(Error::EncryptError)
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(true)
        }
        ConnectionState::PeerClosed => {
            *peer_closed = true;
            Ok(true)
        }
        ConnectionState::Closed => {
            *peer_closed = true;
            Ok(false)
        }
        ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_) => Ok(false),
        state => Err(Error::General(format!("unexpected state {state:?}"))),
    }
}

/// A reusable buffer for ciphertext.
#[derive(Debug, Default)]
pub(super) struct Wire {
    bytes: Vec<u8>,
    len: usize,
}

impl Wire {
    /// The size of the memory that is kept.
    const KEPT: usize = 80 << 10;

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
        if self.bytes.len() > Self::KEPT {
            self.bytes = Vec::new();
        }
    }

    /// Appends what `write` puts at the front of the space that it is given. If the space is too small, `write` returns
    /// the size that it needs, and is called again. Returns `None` if it fails otherwise.
    fn append(
        &mut self,
        mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<InsufficientSizeError>>,
    ) -> Option<()> {
        loop {
            match write(&mut self.bytes[self.len..]) {
                Ok(count) => {
                    self.len += count;
                    return Some(());
                }
                Err(Some(size)) => {
                    let needed = self.len + size.required_size;
                    self.bytes.resize(needed.max(Self::KEPT), 0);
                }
                Err(None) => return None,
            }
        }
    }
}
