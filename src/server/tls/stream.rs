//! The byte stream of a connection over TLS.

use std::io::{self, IoSlice};
use std::sync::Arc;

use super::certificates::{PeerCertificate, peer_name};
use super::client::{ClientTls, server_name};
use super::config::TlsConfig;
use super::session::{Session, Wire};
use super::trust::{PLAIN_SERVER, describe_as_client, describe_as_server, is_about_certificate};
use crate::server::stream::{LastRead, LastWrite, Stream};
use crate::sys::monotonic_nanos;

/// The maximum number of bytes that are read from the socket at once.
const READ: usize = 64 << 10;

/// The maximum, unless the last read has brought much data: about a record. Messages without data, such as KeyUpdates, take
/// longer for their length.
const SHORT_READ: usize = 17 << 10;

/// The minimum, so that few bytes of plaintext do not take many reads.
const LEAST_READ: usize = 4 << 10;

/// The maximum number of bytes that are encrypted and then written at once.
const CHUNK: usize = 64 << 10;

/// The maximum number of bytes that one call of [`TlsStream::write`] takes.
const WRITE: usize = 1 << 20;

/// The maximum number of bytes that a client may send until its handshake is complete. A ClientHello usually has less than 2
/// KB.
const MAX_HANDSHAKE: usize = 16 << 10;

/// The same, if the client must send a certificate.
const MAX_CERTIFIED: usize = 48 << 10;

/// The maximum number of bytes that a server may send until the handshake is complete. Most of them are its certificates,
/// usually 2 to 6 KB.
const MAX_SERVER_HANDSHAKE: usize = 64 << 10;

/// The maximum number of bytes of an incomplete record, or of an incomplete handshake message after the handshake. A record
/// has at most 18,437 bytes (RFC 5246 section 6.2.3), and a KeyUpdate has 5.
const MAX_INCOMPLETE: usize = 20 << 10;

/// The same for what a server sends. A NewSessionTicket message may contain the client's certificates, and has at most 64
/// KB in rustls.
const MAX_SERVER_INCOMPLETE: usize = 84 << 10;

/// The content type of the record with which a TLS connection begins (RFC 8446 section 5.1).
const HANDSHAKE: u8 = 22;

/// Buffers that the streams of a loop share.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    incoming: Vec<u8>,
    gathered: Vec<u8>,
    wire: Wire,
}

/// A connection over TLS, of a client of the server or to another server.
#[derive(Debug)]
pub(crate) struct TlsStream(Box<Inner>);

#[derive(Debug)]
struct Inner {
    /// The socket. It is never another TLS stream.
    socket: Stream,
    session: Session,
    phase: Phase,
    /// Input that was read and is still needed: an incomplete record, an incomplete message of a handshake, or more records
    /// than are decrypted at once. While the session is in use, it expects this input again.
    received: Vec<u8>,
    /// Whether `received` may contain whole records.
    has_records: bool,
    /// Whether the last read has brought much data.
    reads_long: bool,
    /// Plaintext that the client has not taken.
    plain: Vec<u8>,
    /// Ciphertext that the socket has not taken.
    sealed: Vec<u8>,
    /// The number of bytes received during the handshake.
    handshake_bytes: usize,
    max_handshake: usize,
    /// Whether the handshake was completed.
    was_open: bool,
    /// Whether close_notify was sent.
    close_sent: bool,
    /// Whether a connection to a server has failed because of a certificate.
    is_certificate_error: bool,
    /// The name in the certificate of the peer.
    peer: Option<Arc<str>>,
    /// The error that has ended the session, while data that precedes it waits.
    failure: Option<io::Error>,
    last_read: LastRead,
    last_write: LastWrite,
}

/// What the socket carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The PROXY protocol header of a proxy, in plain text.
    Proxied,
    /// The handshake. Nothing can be written yet.
    Handshake,
    /// Data.
    Open,
    /// Plain text, because the peer does not speak TLS.
    Plain,
    /// Nothing more, because the session has failed. Data that was decrypted before is still read.
    Failed,
}

impl TlsStream {
    /// Encrypts the connection of a client. With `is_proxied`, a PROXY protocol header precedes the handshake:
    /// [`TlsStream::begin_handshake`] must follow it.
    pub(crate) fn new(socket: Stream, config: &TlsConfig, is_proxied: bool) -> io::Result<Self> {
        let session = Session::new(config.server()).map_err(io::Error::other)?;
        let phase = if is_proxied {
            Phase::Proxied
        } else {
            Phase::Handshake
        };
        let max_handshake = if config.requires_client_certificate() {
            MAX_CERTIFIED
        } else {
            MAX_HANDSHAKE
        };
        Ok(Self::begin(socket, session, phase, max_handshake))
    }

    /// Begins the handshake with a server over a connected socket. `name` is the DNS name or the IP address of the server.
    ///
    /// The ClientHello is [sealed](TlsStream::sealed) now and not yet written: the caller calls [`TlsStream::flush`] when the
    /// socket is writable, as for other sealed output, or [`TlsStream::write`], which takes no data before the handshake is
    /// complete. After that, it reads when the socket is readable. [`LastRead::opens`] is true for the read that completes the
    /// handshake, and data can be written afterwards. A read of zero bytes before that means that the server has ended the
    /// connection during the handshake.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `name` is not valid, `NotFound` if the authorities of the system are to be trusted and there are
    /// none. Trying again has the same result.
    pub(crate) fn connect(socket: Stream, tls: &ClientTls, name: &str) -> io::Result<Self> {
        let name = server_name(name)?;
        let mut session = Session::connect(tls.config()?, name).map_err(io::Error::other)?;
        let mut wire = Wire::default();
        session
            .receive(&mut [], &mut wire, |_| {})
            .map_err(io::Error::other)?;
        let mut stream = Self::begin(socket, session, Phase::Handshake, MAX_SERVER_HANDSHAKE);
        stream.0.sealed = wire.as_slice().to_vec();
        Ok(stream)
    }

    fn begin(socket: Stream, session: Session, phase: Phase, max_handshake: usize) -> Self {
        Self(Box::new(Inner {
            socket,
            session,
            phase,
            received: Vec::new(),
            has_records: false,
            reads_long: false,
            plain: Vec::new(),
            sealed: Vec::new(),
            handshake_bytes: 0,
            max_handshake,
            was_open: false,
            close_sent: false,
            is_certificate_error: false,
            peer: None,
            failure: None,
            last_read: LastRead::default(),
            last_write: LastWrite::default(),
        }))
    }

    /// The socket.
    pub(crate) fn socket(&self) -> &Stream {
        &self.0.socket
    }

    /// The socket.
    pub(crate) fn socket_mut(&mut self) -> &mut Stream {
        &mut self.0.socket
    }

    /// Whether the handshake is in progress.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.0.phase == Phase::Handshake
    }

    /// Whether the handshake has failed.
    pub(crate) fn has_failed_handshake(&self) -> bool {
        self.0.phase == Phase::Failed && !self.0.was_open
    }

    /// Whether a connection to a server has failed because of the certificate of either side, so that trying again has the same
    /// result. With TLS 1.3, the server can refuse the client's certificate after the handshake.
    pub(crate) fn is_certificate_error(&self) -> bool {
        self.0.is_certificate_error
    }

    /// Whether the peer has begun a handshake that was not completed.
    pub(crate) fn is_inside_handshake(&self) -> bool {
        (self.is_handshaking() && self.0.handshake_bytes > 0) || self.has_failed_handshake()
    }

    /// Whether the peer has resumed an earlier session.
    pub(crate) fn is_resumed(&self) -> bool {
        self.0.session.is_resumed()
    }

    /// The protocol version and the cipher suite.
    pub(crate) fn describe(&self) -> String {
        self.0.session.describe()
    }

    /// The name in the certificate of the client, which was verified. A server has none.
    pub(crate) fn peer(&self) -> Option<&Arc<str>> {
        self.0.peer.as_ref()
    }

    /// The certificate of the client, which was verified. A server has none.
    pub(crate) fn certificate(&self) -> Option<PeerCertificate> {
        Some(PeerCertificate {
            name: self.0.peer.clone()?,
            chain: self.0.session.peer_chain().to_vec(),
        })
    }

    /// Whether the certificate of the client, or its absence, would be accepted now. True before the handshake is complete,
    /// after a failure, and for a server.
    pub(crate) fn is_accepted_by(&self, config: &TlsConfig) -> bool {
        let session = &self.0.session;
        self.0.phase != Phase::Open || session.is_client() || config.accepts(session.peer_chain())
    }

    /// Whether the certificate of the client, if it has sent one, has not expired. True for a server.
    pub(crate) fn is_current(&self) -> bool {
        let session = &self.0.session;
        session.is_client() || TlsConfig::is_current(session.peer_chain())
    }

    /// The number of encrypted bytes that the socket has not taken.
    pub(crate) fn sealed(&self) -> usize {
        self.0.sealed.len()
    }

    /// Details of the last read.
    pub(crate) fn last_read(&self) -> LastRead {
        self.0.last_read
    }

    /// Details of the last write.
    pub(crate) fn last_write(&self) -> LastWrite {
        self.0.last_write
    }

    /// Begins the handshake behind a PROXY protocol header. `input` is what was read behind the header.
    pub(crate) fn begin_handshake(&mut self, input: &[u8]) {
        if self.0.phase == Phase::Proxied {
            self.0.phase = Phase::Handshake;
            self.0.received = input.to_vec();
            self.0.has_records = true;
        }
    }

    /// Reads the socket at most once, and puts decrypted bytes into `buffer`. Writes the output of the handshake. Zero bytes
    /// mean end of file.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is no plaintext yet, `InvalidData` if the peer violates TLS (an alert has been sent, RFC 8446
    /// section 6), and otherwise the error of the socket.
    pub(crate) fn read(&mut self, buffer: &mut [u8], scratch: &mut Scratch) -> io::Result<usize> {
        let inner = &mut *self.0;
        inner.last_read = LastRead::default();
        if !inner.plain.is_empty() {
            return Ok(inner.take_plain(buffer));
        }
        match inner.phase {
            Phase::Proxied | Phase::Plain => return inner.read_raw(buffer),
            Phase::Failed => {
                return match inner.failure.take() {
                    Some(failure) => Err(failure),
                    None => inner.discard(scratch),
                };
            }
            Phase::Handshake | Phase::Open => {}
        }
        if inner.session.is_peer_closed() {
            return Ok(0);
        }
        if inner.close_sent {
            return inner.discard(scratch);
        }
        let Some(input) = inner.fill(buffer.len(), &mut scratch.incoming)? else {
            return Ok(0);
        };
        if inner.phase == Phase::Handshake {
            inner.check_first(&scratch.incoming[..input.len], input.wire)?;
        }
        inner.decrypt(buffer, input, scratch)
    }

    /// Encrypts and writes. Returns the number of bytes taken, which is zero during the handshake. What the socket does not take
    /// of a record waits here.
    ///
    /// # Errors
    ///
    /// The error of the socket, that of a session that has failed, or `Other` if the keys have reached their usage limit (RFC
    /// 8446 section 5.5).
    pub(crate) fn write(
        &mut self,
        buffers: &[IoSlice<'_>],
        scratch: &mut Scratch,
    ) -> io::Result<usize> {
        let inner = &mut *self.0;
        inner.last_write = LastWrite::default();
        match inner.phase {
            Phase::Proxied | Phase::Plain => {
                let sent = inner.socket.write_plain(buffers)?;
                inner.last_write.sent = sent;
                return Ok(sent);
            }
            Phase::Handshake => {
                inner.last_write.sent = inner.flush()?;
                return Ok(0);
            }
            Phase::Failed => return Err(inner.take_failure()),
            Phase::Open => {}
        }
        inner.last_write.sent = inner.flush()?;
        let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let mut taken = 0;
        while inner.sealed.is_empty() && taken < total {
            if taken >= WRITE {
                inner.last_write.has_room = true;
                break;
            }
            let Scratch { gathered, wire, .. } = scratch;
            let chunk = gather(buffers, taken, gathered);
            let rest = rest(&mut inner.received, inner.has_records);
            wire.clear();
            let sealed = inner.session.seal(rest, chunk, wire);
            taken += chunk.len();
            inner.last_write.sent += inner.send(wire)?;
            sealed.map_err(io::Error::other)?;
        }
        Ok(taken)
    }

    /// Writes the encrypted bytes that wait, and returns how many the socket took.
    pub(crate) fn flush(&mut self) -> io::Result<usize> {
        self.0.flush()
    }

    /// Sends close_notify if the session is open and this was not done. The socket may not take it at once.
    pub(crate) fn close(&mut self, scratch: &mut Scratch) {
        let inner = &mut *self.0;
        if inner.phase == Phase::Open && !std::mem::replace(&mut inner.close_sent, true) {
            let rest = rest(&mut inner.received, inner.has_records);
            scratch.wire.clear();
            let sent = match inner.session.close(rest, &mut scratch.wire) {
                Ok(()) => inner.send(&mut scratch.wire).map(drop),
                Err(error) => Err(io::Error::other(error)),
            };
            if let Err(error) = sent {
                log::debug!("sending close_notify failed: {error}");
            }
        }
    }

    /// The memory that the stream holds for its peer, in bytes.
    pub(crate) fn held(&self) -> usize {
        let inner = &self.0;
        inner.received.capacity() + inner.plain.capacity() + inner.sealed.capacity()
    }

    /// The number of bytes that `len` bytes of output take on the socket, at most.
    pub(crate) fn sealed_len(len: usize) -> usize {
        /// The maximum length that encryption adds to a record.
        const OVERHEAD: usize = 64;
        /// The maximum length of a record.
        const RECORD: usize = 16 << 10;
        len + (len / RECORD + len / CHUNK + 2) * OVERHEAD
    }
}

/// The input of one read.
#[derive(Clone, Copy, Debug)]
struct Filled {
    /// The bytes in the shared buffer.
    len: usize,
    /// Those that have just been read from the socket.
    wire: usize,
    /// Whether the socket may have more.
    more: bool,
}

impl Inner {
    /// Describes an error of the session.
    fn describe(&mut self, error: &rustls::Error) -> io::Error {
        let text = if self.session.is_client() {
            self.is_certificate_error = is_about_certificate(error);
            describe_as_client(error)
        } else {
            describe_as_server(error)
        };
        invalid(text)
    }

    /// The maximum length of input that is incomplete after the handshake.
    fn max_incomplete(&self) -> usize {
        if self.session.is_client() {
            MAX_SERVER_INCOMPLETE
        } else {
            MAX_INCOMPLETE
        }
    }

    /// Ends the session because of an error. The `count` bytes that precede it are read first.
    fn fail(&mut self, error: io::Error, count: usize) -> io::Result<usize> {
        self.phase = Phase::Failed;
        self.received = Vec::new();
        if count == 0 {
            return Err(error);
        }
        self.failure = Some(error);
        self.last_read.more = true;
        Ok(count)
    }

    /// Why the session has failed.
    fn take_failure(&mut self) -> io::Error {
        let failure = self.failure.take();
        failure.unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    /// Reads the socket at most once, into `incoming` behind what was received before. Returns `None` at its end. `room` is the size
    /// of the buffer for plaintext.
    fn fill(&mut self, room: usize, incoming: &mut Vec<u8>) -> io::Result<Option<Filled>> {
        let kept = self.received.len();
        if incoming.len() < kept + READ {
            incoming.resize(kept + READ, 0);
        }
        incoming[..kept].copy_from_slice(&self.received);
        if self.has_records {
            return Ok(Some(Filled {
                len: kept,
                wire: 0,
                more: true,
            }));
        }
        let longest = if self.reads_long { READ } else { SHORT_READ };
        let most = room.clamp(LEAST_READ, longest);
        let wire = self.socket.read(&mut incoming[kept..kept + most])?;
        if wire == 0 {
            if self.phase == Phase::Open {
                log::debug!("a peer ended its TLS connection without close_notify");
            }
            return Ok(None);
        }
        Ok(Some(Filled {
            len: kept + wire,
            wire,
            // A short read has emptied the socket, and the next byte makes a new event.
            more: wire == most,
        }))
    }

    /// Checks the first byte of a handshake, which shows whether the peer uses TLS at all, and counts the bytes of the handshake.
    /// `wire` bytes of the input have just been read.
    fn check_first(&mut self, input: &[u8], wire: usize) -> io::Result<()> {
        let first = input.first().filter(|_| self.handshake_bytes == 0);
        if self.session.is_client() {
            if first.is_some_and(|first| !is_content_type(*first)) {
                self.last_read.wire = wire;
                return self.fail(invalid(PLAIN_SERVER), 0).map(drop);
            }
        } else if first.is_some_and(|first| is_plain_text(*first)) {
            self.phase = Phase::Plain;
            self.received = Vec::new();
            self.last_read = LastRead {
                wire,
                more: true,
                is_plain: true,
                ..LastRead::default()
            };
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // Input behind a PROXY protocol header was not read here.
        self.handshake_bytes += if self.has_records { input.len() } else { wire };
        Ok(())
    }

    /// Decrypts the input, and sends what the session answers.
    fn decrypt(
        &mut self,
        buffer: &mut [u8],
        input: Filled,
        scratch: &mut Scratch,
    ) -> io::Result<usize> {
        let began = monotonic_nanos();
        let mut count = 0;
        scratch.wire.clear();
        let plain = &mut self.plain;
        let received = self.session.receive(
            &mut scratch.incoming[..input.len],
            &mut scratch.wire,
            |data| {
                let fits = data.len().min(buffer.len() - count);
                buffer[count..count + fits].copy_from_slice(&data[..fits]);
                count += fits;
                plain.extend_from_slice(&data[fits..]);
            },
        );
        let sent = self.send(&mut scratch.wire);
        let received = received.map_err(|error| self.describe(&error));
        let opened = match received.and_then(|opened| sent.map(|_| opened)) {
            Ok(opened) => opened,
            Err(error) => {
                self.last_read.wire = input.wire;
                // Data that arrives with the end of a handshake that then fails must not reach the service.
                if self.phase == Phase::Handshake {
                    count = 0;
                }
                return self.fail(error, count);
            }
        };
        self.received.clear();
        self.received
            .extend_from_slice(&scratch.incoming[opened.consumed..input.len]);
        self.received.shrink_to(2 * self.received.len());
        self.has_records = opened.has_more;
        if scratch.incoming.len() > 4 * READ {
            scratch.incoming = Vec::new();
        }
        let ends = self.session.is_peer_closed();
        if ends {
            // What follows close_notify is ignored (RFC 8446 section 6.1).
            self.received = Vec::new();
            self.has_records = false;
        }
        self.reads_long = count >= SHORT_READ / 2;
        let micros = (monotonic_nanos().saturating_sub(began) / 1000) as usize;
        let was_handshake = self.phase == Phase::Handshake;
        if !was_handshake && !opened.has_more && self.received.len() > self.max_incomplete() {
            let error = invalid("a handshake message after the handshake is too long");
            return self.fail(error, count);
        }
        let opens = was_handshake && self.session.is_open();
        if opens {
            self.phase = Phase::Open;
            self.was_open = true;
            if !self.session.is_client() {
                self.peer = self.session.peer_chain().first().map(|one| peer_name(one));
            }
        }
        // The read that completes the handshake may contain data, too.
        if self.phase == Phase::Handshake && self.handshake_bytes > self.max_handshake {
            return self.fail(invalid("the TLS handshake is too long"), 0);
        }
        self.last_read = LastRead {
            wire: input.wire,
            more: input.more || ends || opened.has_more || !self.plain.is_empty(),
            // A unit is a microsecond. A handshake can take thousands of times as long as a record.
            work: micros.max(opened.records),
            opens,
            is_plain: false,
        };
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(count)
    }

    /// Reads plain text from the socket.
    fn read_raw(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.socket.read(buffer)?;
        self.last_read.wire = count;
        self.last_read.more = count == buffer.len();
        Ok(count)
    }

    /// Discards input after close_notify or an alert was sent. Only the end of the input is of interest.
    fn discard(&mut self, scratch: &mut Scratch) -> io::Result<usize> {
        scratch.incoming.resize(scratch.incoming.len().max(READ), 0);
        match self.read_raw(&mut scratch.incoming)? {
            0 => Ok(0),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Moves plaintext that waits to the front of `buffer`.
    fn take_plain(&mut self, buffer: &mut [u8]) -> usize {
        let count = self.plain.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.plain[..count]);
        if count == self.plain.len() {
            self.plain = Vec::new();
        } else {
            self.plain.drain(..count);
        }
        self.last_read.more = true;
        count
    }

    /// Writes ciphertext behind that which waits. What the socket does not take waits, too.
    fn send(&mut self, wire: &mut Wire) -> io::Result<usize> {
        let bytes = wire.as_slice();
        let sent = if bytes.is_empty() || !self.sealed.is_empty() {
            Ok(0)
        } else {
            self.socket.write_plain(&[IoSlice::new(bytes)])
        };
        if let Ok(sent) = sent {
            self.sealed.extend_from_slice(&bytes[sent..]);
        }
        wire.clear();
        sent
    }

    fn flush(&mut self) -> io::Result<usize> {
        if self.sealed.is_empty() {
            return Ok(0);
        }
        let sent = self.socket.write_plain(&[IoSlice::new(&self.sealed)])?;
        if sent == self.sealed.len() {
            self.sealed = Vec::new();
        } else {
            self.sealed.drain(..sent);
        }
        Ok(sent)
    }
}

/// The unconsumed input of the last read, which rustls expects to see again. Whole records that wait are not part of it.
fn rest(received: &mut [u8], has_records: bool) -> &mut [u8] {
    if has_records { &mut [] } else { received }
}

/// The next piece of output behind the first `skip` bytes, at most [`CHUNK`] bytes in one slice, so that short buffers share
/// a record.
fn gather<'a>(buffers: &'a [IoSlice<'_>], mut skip: usize, gathered: &'a mut Vec<u8>) -> &'a [u8] {
    gathered.clear();
    for buffer in buffers {
        let rest = &buffer[skip.min(buffer.len())..];
        skip -= skip.min(buffer.len());
        if gathered.is_empty() && rest.len() >= CHUNK {
            return &rest[..CHUNK];
        }
        let room = CHUNK - gathered.len();
        gathered.extend_from_slice(&rest[..rest.len().min(room)]);
        if gathered.len() == CHUNK {
            break;
        }
    }
    gathered
}

/// The error of a peer that violates TLS.
fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// Whether a record of TLS can begin with this byte: change_cipher_spec, alert, handshake, application_data (RFC 8446 section
/// 5.1) or heartbeat.
fn is_content_type(first: u8) -> bool {
    matches!(first, 20..=24)
}

/// Whether a connection begins with a request of HTTP rather than with TLS.
fn is_plain_text(first: u8) -> bool {
    const { assert!(!HANDSHAKE.is_ascii_graphic()) };
    first.is_ascii_alphabetic() || matches!(first, b'\r' | b'\n')
}
