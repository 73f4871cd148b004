//! A connection that this side opens: the steps from its socket to the open WebSocket.

use std::io;

use super::takeover::Join;
use super::{Client, Connection, Flag};
use crate::protocol::client::ClientEvent;
use crate::protocol::deflate::Agreement;
use crate::protocol::{CloseReason, Input, RandomSource, WebSocket};
use crate::server::connector::{ConnectError, Outgoing, Phase};
use crate::server::env::Env;
use crate::server::id::ClientId;
use crate::server::stream::Stream;
use crate::server::tls::TlsStream;
use crate::sys::random_bytes;

/// The source of masking keys and nonces.
const RANDOM: RandomSource = random_bytes;

impl Client {
    /// Makes this a connection that is not open yet.
    pub(in crate::server) fn set_outgoing(&mut self, outgoing: Outgoing) {
        self.connection = Connection::Outgoing(Box::new(outgoing));
    }

    /// The state of a connection that is not open yet.
    pub(in crate::server) fn outgoing(&self) -> Option<&Outgoing> {
        match &self.connection {
            Connection::Outgoing(outgoing) => Some(outgoing),
            _ => None,
        }
    }

    /// The state of a connection that is not open yet.
    pub(in crate::server) fn outgoing_mut(&mut self) -> Option<&mut Outgoing> {
        match &mut self.connection {
            Connection::Outgoing(outgoing) => Some(outgoing),
            _ => None,
        }
    }

    /// Whether the connection is being opened by this side.
    #[inline]
    pub(in crate::server) fn is_outgoing(&self) -> bool {
        matches!(self.connection, Connection::Outgoing(_))
    }

    /// Whether this side opens, or has opened, the connection.
    pub(in crate::server) fn is_ours(&self) -> bool {
        match &self.connection {
            Connection::Outgoing(_) => true,
            Connection::WebSocket(socket) => socket.is_client(),
            Connection::Detached(_) => self.upstream().is_some(),
            Connection::Http(_) => false,
        }
    }

    /// Ends the attempt. The loop then makes another one, or gives up.
    pub(in crate::server) fn fail(&mut self, env: &mut Env, error: ConnectError) {
        if let Some(outgoing) = self.outgoing_mut() {
            outgoing.fail(error);
            self.disconnect(env);
        }
    }

    /// Gives the connection another socket, which it registers for events.
    pub(in crate::server) fn set_stream(
        &mut self,
        poll: &mio::Registry,
        stream: Stream,
    ) -> io::Result<()> {
        self.drop_stream(poll);
        self.stream = stream;
        self.register(poll)
    }

    /// Closes the socket, and drops what was read from it and what waits for it.
    pub(in crate::server) fn drop_stream(&mut self, poll: &mio::Registry) {
        if let Err(error) = self.stream.deregister(poll) {
            log::debug!("{} deregistering failed: {error}", self.id);
        }
        self.stream = Stream::Closed;
        self.backlog = None;
        for flag in [Flag::Readable, Flag::HungUp, Flag::SendsLong] {
            self.flags.set(flag, false);
        }
    }

    /// Whether the socket is connected. `None` if that is not known yet.
    pub(in crate::server) fn is_established(&self) -> Option<io::Result<()>> {
        self.stream.is_established()
    }

    /// The socket is connected: asks the proxy for a tunnel if there is one, or begins the handshake.
    pub(in crate::server) fn begin_exchange(&mut self, env: &mut Env) {
        let Some(outgoing) = self.outgoing_mut() else {
            return;
        };
        let connect = std::sync::Arc::clone(&outgoing.connect);
        self.stream.set_nodelay();
        let Some((authority, credentials)) = connect.tunnel() else {
            return self.begin_upgrade(env);
        };
        self.transmit(env, |connection, _, out| {
            if let Connection::Outgoing(outgoing) = connection {
                outgoing.begin_handshake(Phase::Tunnel);
                outgoing
                    .handshake
                    .request_tunnel(&authority, credentials, out);
            }
        });
    }

    /// Begins TLS if the URL asks for it, and sends the request of the opening handshake.
    pub(in crate::server) fn begin_upgrade(&mut self, env: &mut Env) {
        let Some(outgoing) = self.outgoing_mut() else {
            return;
        };
        let connect = std::sync::Arc::clone(&outgoing.connect);
        if connect.target().is_tls() {
            let socket = std::mem::replace(&mut self.stream, Stream::Closed);
            match connect.encrypt(socket) {
                Ok(stream) => self.stream = stream,
                Err(error) => return self.fail(env, error),
            }
        }
        let has_compression = env.protocol.compression.is_some();
        let resume = match &outgoing_field(&self.connection) {
            Some(field) => Some(field.clone()),
            None => connect.is_resumable().then(|| "new".to_owned()),
        };
        let request = connect.request(resume.as_deref(), has_compression);
        let mut nonce = [0; 16];
        RANDOM(&mut nonce);
        self.transmit(env, |connection, _, out| {
            if let Connection::Outgoing(outgoing) = connection {
                outgoing.begin_handshake(Phase::Handshake);
                outgoing.handshake.request(nonce, &request, out);
            }
        });
        // A client speaks first: its ClientHello precedes the request, which waits.
        if let Err(error) = self.stream.flush() {
            self.fail(env, ConnectError::Lost(error.to_string()));
        }
    }

    /// Parses input of a connection that is not open yet.
    pub(super) fn receive_response(
        &mut self,
        env: &Env,
        input: &mut Input<'_>,
    ) -> Option<ClientEvent> {
        let max_head = env.protocol.limits.max_head;
        self.outgoing_mut()?.handshake.receive(input, max_head)
    }

    /// The server has accepted the handshake: the connection is open. Returns its attempt.
    pub(in crate::server) fn open_outgoing(
        &mut self,
        env: &mut Env,
        path: std::sync::Arc<Box<str>>,
        agreement: Option<Agreement>,
    ) -> Option<Box<Outgoing>> {
        let compression = env.protocol.compression.as_ref();
        let codec = compression
            .zip(agreement)
            .map(|(one, agreed)| one.connect(agreed));
        let open = Connection::WebSocket(WebSocket::connect(env.now, codec, RANDOM));
        match std::mem::replace(&mut self.connection, open) {
            Connection::Outgoing(outgoing) => {
                self.path = Some(path);
                self.set_opened(env.now);
                self.rearm(env);
                Some(outgoing)
            }
            other => {
                self.connection = other;
                None
            }
        }
    }

    /// Makes this connection continue the client `target`, of which the server has received `received` messages.
    pub(in crate::server) fn join_later(&mut self, target: ClientId, received: u64) {
        self.backlog.get_or_insert_default().join = Some(Join { target, received });
    }

    /// TLS is established: sends the request, which has waited.
    #[cold]
    pub(super) fn handle_tls_connected(&mut self, env: &mut Env) {
        if let Some(tls) = self.stream.tls() {
            log::debug!("{} TLS handshake complete: {}", self.id, tls.describe());
        }
        self.handle_writable(env);
    }

    /// Reading has failed while the connection was being opened: the socket, or the TLS session.
    #[cold]
    pub(super) fn handle_tls_failure(&mut self, env: &mut Env, error: &io::Error) {
        self.flags.set(Flag::Readable, false);
        let failed = match error.kind() {
            io::ErrorKind::InvalidData => ConnectError::Tls {
                message: error.to_string(),
                is_certificate: self
                    .stream
                    .tls()
                    .is_some_and(TlsStream::is_certificate_error),
            },
            _ => ConnectError::Lost(format!(
                "the connection ended during the handshake: {error}"
            )),
        };
        self.fail(env, failed);
    }

    /// An error of the socket, or the end of its input, has ended the attempt.
    pub(super) fn abandon_attempt(&mut self, reason: &CloseReason) {
        let failed = self
            .stream
            .tls()
            .is_some_and(TlsStream::has_failed_handshake);
        if let Some(outgoing) = self.outgoing_mut() {
            let error = if reason.cause == crate::Cause::Shutdown {
                ConnectError::Cancelled
            } else if failed {
                ConnectError::Tls {
                    message: reason.reason.to_string(),
                    is_certificate: false,
                }
            } else {
                outgoing.end_of_input(ConnectError::Lost(format!(
                    "the connection ended during the handshake: {}",
                    reason.reason
                )))
            };
            outgoing.fail(error);
        }
    }
}

/// The field with which a client comes back.
fn outgoing_field(connection: &Connection) -> Option<String> {
    match connection {
        Connection::Outgoing(outgoing) => outgoing
            .returning
            .as_ref()
            .map(|returning| returning.field.clone()),
        _ => None,
    }
}
