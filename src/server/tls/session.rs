//! One TLS session without its socket: ciphertext in, plaintext out, and the reverse.

use std::fmt;
use std::sync::Arc;

use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{CertificateError, Error, HandshakeKind, ServerConfig};

/// The maximum number of records with data that one call of [`Session::receive`] decrypts. A peer can make a record as
/// short as a byte, and each one takes about as long as a short message.
const MAX_RECORDS: usize = 256;

/// The server's side of a TLS session.
pub(super) struct Session {
    connection: UnbufferedServerConnection,
    /// Whether the peer has sent close_notify.
    peer_closed: bool,
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
    pub(super) fn new(config: Arc<ServerConfig>) -> Result<Self, Error> {
        Ok(Self {
            connection: UnbufferedServerConnection::new(config)?,
            peer_closed: false,
        })
    }

    /// Whether the handshake is complete.
    pub(super) fn is_open(&self) -> bool {
        !self.connection.is_handshaking()
    }

    /// Whether the peer has sent close_notify: no data follows.
    pub(super) fn is_peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Describes an error for the log.
    pub(super) fn explain(error: &Error) -> String {
        let problem = match error {
            Error::InvalidCertificate(problem) => problem,
            Error::NoCertificatesPresented => return "the client sent no certificate".to_owned(),
            error => return error.to_string(),
        };
        let problem = match problem {
            CertificateError::Other(other) => other.0.to_string(),
            CertificateError::UnknownIssuer => "its CA is unknown".to_owned(),
            CertificateError::BadSignature => "its signature is wrong".to_owned(),
            CertificateError::Expired => "it has expired".to_owned(),
            problem => problem.to_string(),
        };
        let problem = match problem.as_str() {
            "UnsupportedCertVersion" => "it is not of X.509 version 3",
            "CaUsedAsEndEntity" => "it is a CA certificate, or signed with its own key",
            problem => problem,
        };
        format!("the client certificate is not accepted: {problem}")
    }

    /// Whether the handshake resumed an earlier session.
    pub(super) fn is_resumed(&self) -> bool {
        self.connection.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The protocol version and the cipher suite, for the log.
    pub(super) fn describe(&self) -> String {
        let version = self.connection.protocol_version();
        let suite = self.connection.negotiated_cipher_suite();
        let version = version.map_or("", |version| version.as_str().unwrap_or_default());
        let version = version.replace('_', ".");
        let suite = suite.map_or("", |suite| suite.suite().as_str().unwrap_or_default());
        // rustls adds the version to the names of RFC 8446 appendix B.4.
        let suite = suite.replacen("TLS13", "TLS", 1);
        format!("{version} {suite}")
    }

    /// The certificates of the peer, its own one first. Empty if it has sent none.
    pub(super) fn peer_chain(&self) -> &[rustls::pki_types::CertificateDer<'static>] {
        self.connection.peer_certificates().unwrap_or_default()
    }

    /// Decrypts input in place. Passes the data of each record to `sink`, and appends the session's own output to
    /// `wire`, such as handshake messages and alerts.
    ///
    /// After an error, `wire` contains the alert that tells the peer, and the session is over.
    pub(super) fn receive(
        &mut self,
        input: &mut [u8],
        wire: &mut Wire,
        mut sink: impl FnMut(&[u8]),
    ) -> Result<Opened, Error> {
        let mut opened = Opened::default();
        loop {
            let rest = &mut input[opened.consumed..];
            let UnbufferedStatus { discard, state } = self.connection.process_tls_records(rest);
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
                Ok(state) => is_done = !step(state, wire, &mut self.peer_closed)?,
                Err(error) => {
                    self.take_alert(&mut input[opened.consumed + discard..], wire);
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
    fn take_alert(&mut self, input: &mut [u8], wire: &mut Wire) {
        while self.connection.wants_write()
            && let Ok(state) = self.connection.process_tls_records(input).state
            && step(state, wire, &mut self.peer_closed).is_ok()
        {}
    }

    /// Encrypts data and appends it to `wire`, after pending output of the session. `input` must be the unconsumed input of
    /// the last call of `receive`: rustls expects to see a partly received handshake message again.
    pub(super) fn seal(
        &mut self,
        input: &mut [u8],
        data: &[u8],
        wire: &mut Wire,
    ) -> Result<(), Error> {
        self.write(input, wire, |traffic, out| traffic.encrypt(data, out))
    }

    /// Appends close_notify to `wire`. Nothing can be sealed afterwards. `input` is that of `seal`.
    pub(super) fn close(&mut self, input: &mut [u8], wire: &mut Wire) -> Result<(), Error> {
        self.write(input, wire, |traffic, out| traffic.queue_close_notify(out))
    }

    fn write(
        &mut self,
        input: &mut [u8],
        wire: &mut Wire,
        mut operation: impl FnMut(
            &mut rustls::unbuffered::WriteTraffic<'_, ServerConnectionData>,
            &mut [u8],
        ) -> Result<usize, EncryptError>,
    ) -> Result<(), Error> {
        loop {
            let UnbufferedStatus { discard, state } = self.connection.process_tls_records(input);
            debug_assert_eq!(discard, 0, "the input was handled before");
            match state? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    return wire
                        .append(|out| match operation(&mut traffic, out) {
                            Err(EncryptError::InsufficientSize(size)) => Err(Some(size)),
                            Err(EncryptError::EncryptExhausted) => Err(None),
                            Ok(count) => Ok(count),
                        })
                        .ok_or(Error::EncryptError);
                }
                state => {
                    if !step(state, wire, &mut self.peer_closed)? {
                        return Err(Error::HandshakeNotComplete);
                    }
                }
            }
        }
    }
}

/// Handles a state in which the session has output or news of the peer. Returns whether the session may have more.
fn step(
    state: ConnectionState<'_, '_, ServerConnectionData>,
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
