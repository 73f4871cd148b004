//! A connection that this side opens: the steps from its socket to the open WebSocket, and how to come back after a cut.

use std::io;
use std::sync::Arc;

use super::protocol::Protocol;
use super::upstream::Upstream;
use super::wire::{Flag, Wire};
use super::{Client, Handshake};
use crate::protocol::deflate::Agreement;
use crate::protocol::{Accept, RandomSource, WebSocket};
use crate::server::env::Env;
use crate::server::outgoing::{Connect, ConnectError, Outgoing, Phase};
use crate::server::resume::token::ResumeToken;
use crate::server::stream::Stream;
use crate::server::tls::{Scratch, TlsStream};
use crate::sys::random_bytes;

/// The source of masking keys and nonces.
const RANDOM: RandomSource = random_bytes;

impl Wire {
    /// Whether this side opens, or has opened, the connection.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        match &self.protocol {
            Protocol::Outgoing(_) => true,
            Protocol::WebSocket(socket) => socket.is_client(),
            Protocol::Detached(_) => self.delivery().is_some_and(|one| one.upstream.is_some()),
            Protocol::Http(_) => false,
        }
    }
}

impl Client {
    /// Ends the attempt. The loop then makes another one, or gives up.
    pub(crate) fn fail(&mut self, env: &mut Env, error: ConnectError) {
        if let Some(outgoing) = self.wire.protocol.outgoing_mut() {
            outgoing.fail(error);
            self.request_removal(env);
        }
    }

    /// Gives the connection another socket, which it registers for events.
    pub(crate) fn set_stream(
        &mut self,
        scratch: &mut Scratch,
        poll: &mio::Registry,
        stream: Stream,
    ) -> io::Result<()> {
        self.wire.close_socket(self.id, scratch, poll);
        self.wire.stream = stream;
        self.wire.register(self.id, poll)
    }

    /// The socket is connected: asks the proxy for a tunnel if there is one, or begins the handshake.
    pub(crate) fn begin_exchange(&mut self, env: &mut Env) {
        let Some(outgoing) = self.wire.protocol.outgoing_mut() else {
            return;
        };
        let connect = Arc::clone(&outgoing.connect);
        self.wire.stream.set_nodelay();
        if outgoing.requesting.is_some() {
            // HTTP has no PING, and a response may take any time.
            self.wire.stream.set_keepalive(&env.config.timeouts, true);
        }
        let Some((authority, credentials)) = connect.tunnel() else {
            return self.begin_upgrade(env);
        };
        self.transmit(env, |protocol, _, out| {
            if let Protocol::Outgoing(outgoing) = protocol {
                outgoing.begin_handshake(Phase::Tunnel);
                outgoing
                    .handshake
                    .request_tunnel(&authority, credentials, out);
            }
        });
    }

    /// Begins TLS if the URL asks for it, and sends the request of the opening handshake.
    pub(crate) fn begin_upgrade(&mut self, env: &mut Env) {
        let Some(outgoing) = self.wire.protocol.outgoing_mut() else {
            return;
        };
        let connect = Arc::clone(&outgoing.connect);
        let returning = outgoing.returning.as_ref();
        let resume = match returning.map(|returning| returning.field.clone()) {
            Some(field) => Some(field),
            None => connect.is_resumable().then(|| "new".to_owned()),
        };
        if connect.target().is_tls() {
            let socket = std::mem::replace(&mut self.wire.stream, Stream::Closed);
            match connect.encrypt(socket) {
                Ok(stream) => self.wire.stream = stream,
                Err(error) => return self.fail(env, error),
            }
        }
        if self.wire.protocol.is_for_requests() {
            self.send_request(env);
            if let Err(error) = self.wire.stream.flush() {
                self.fail(env, ConnectError::Lost(error.to_string()));
            }
            return;
        }
        let has_compression = env.protocol.compression.is_some();
        let request = connect.request(resume.as_deref(), has_compression);
        let mut nonce = [0; 16];
        RANDOM(&mut nonce);
        self.transmit(env, |protocol, _, out| {
            if let Protocol::Outgoing(outgoing) = protocol {
                outgoing.begin_handshake(Phase::Handshake);
                outgoing.handshake.request(nonce, &request, out);
            }
        });
        // A client speaks first: its ClientHello precedes the request, which waits.
        if let Err(error) = self.wire.stream.flush() {
            self.fail(env, ConnectError::Lost(error.to_string()));
        }
    }

    /// Sends the request that this connection is for, or the next one.
    pub(crate) fn send_request(&mut self, env: &mut Env) {
        self.transmit(env, |protocol, _, out| {
            if let Protocol::Outgoing(outgoing) = protocol {
                outgoing.write_request(out);
            }
        });
    }

    /// Whether the whole request has left this side, so that the server may act on it.
    pub(crate) fn is_request_written(&self) -> bool {
        let phase = self.wire.protocol.outgoing().map(|one| one.phase);
        phase == Some(Phase::Exchange) && !self.wire.is_tls_handshaking() && self.wire.queued() == 0
    }

    /// Handles a passed time limit of a request.
    pub(crate) fn handle_request_timeout(&mut self, env: &mut Env) {
        let is_written = self.is_request_written();
        let has_progressed = self.wire.measure_progress(self.traffic.bytes_out) > 0;
        let Some(outgoing) = self.wire.protocol.outgoing_mut() else {
            return;
        };
        if outgoing.extend(env.now, is_written, has_progressed) {
            self.rearm(env);
        } else {
            self.fail(env, ConnectError::TimedOut);
        }
    }

    /// The server has accepted the handshake: the connection is open. Returns its attempt.
    pub(crate) fn open_outgoing(
        &mut self,
        env: &mut Env,
        handshake: Arc<Handshake>,
        agreement: Option<Agreement>,
    ) -> Option<Box<Outgoing>> {
        let compression = env.protocol.compression.as_ref();
        let codec = compression
            .zip(agreement)
            .map(|(one, agreed)| one.connect(agreed));
        let open = Protocol::WebSocket(WebSocket::connect(env.now, codec, RANDOM));
        match std::mem::replace(&mut self.wire.protocol, open) {
            Protocol::Outgoing(outgoing) => {
                self.handshake = Some(handshake);
                self.set_opened(env.now);
                self.rearm(env);
                Some(outgoing)
            }
            other => {
                self.wire.protocol = other;
                None
            }
        }
    }

    /// TLS is established: sends the request, which has waited.
    #[cold]
    pub(super) fn handle_tls_connected(&mut self, env: &mut Env) {
        if let Some(tls) = self.wire.stream.tls() {
            log::debug!("{} TLS handshake complete: {}", self.id, tls.describe());
        }
        self.handle_writable(env);
    }

    /// Reading has failed while the connection was being opened: the socket, or the TLS session.
    #[cold]
    pub(super) fn handle_tls_failure(&mut self, env: &mut Env, error: &io::Error) {
        self.wire.flags.set(Flag::Readable, false);
        let failed = match error.kind() {
            io::ErrorKind::InvalidData => ConnectError::Tls {
                message: error.to_string(),
                is_certificate: self.wire.tls().is_some_and(TlsStream::is_certificate_error),
            },
            _ => match self.wire.protocol.outgoing() {
                Some(outgoing) => outgoing.lost(&error.to_string()),
                None => return,
            },
        };
        self.fail(env, failed);
    }

    // Coming back to a server.

    /// Makes a connection that this side has opened resumable, with the token of the server.
    pub(crate) fn make_upstream(&mut self, env: &mut Env, connect: Arc<Connect>, token: &str) {
        // The secret is never sent, so no peer can resume this client.
        let unused = ResumeToken::generate(self.id, None);
        self.make_resumable(env, &unused, Accept::default(), false);
        let upstream = Upstream::new(connect, token, env.now);
        if let Some(delivery) = self.wire.delivery_mut() {
            delivery.certificate = None;
            delivery.upstream = Some(Box::new(upstream));
        }
    }
}
