//! Opens outgoing connections in the loop: resolves the name, connects, asks a proxy for a tunnel, begins TLS, and sends
//! the opening handshake. Failed attempts are repeated as [`Retry`] says.
//!
//! An outgoing connection is an entry of the one registry from [`Context::connect`](crate::Context::connect) on, and it ends
//! through the one `Server::disconnect`. A resumable one that was cut stays in the registry, detached. Another entry then
//! makes the attempts to come back, and hands its socket over, as on the server's side.
//!
//! ```text
//! Waiting -> Resolving -> Connecting -> (Tunnel) -> (TLS) Handshake -> open
//!    ^                                                 |
//!    +---------------- a failed attempt ---------------+
//! ```

use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mio::net::{TcpStream, UnixStream};

use crate::protocol::{Cause, CloseCode, CloseReason};
use crate::server::address::Remote;
use crate::server::client::{Client, Delivery, Upstream};
use crate::server::context::Context;
use crate::server::core::Core;
use crate::server::event_loop::Server;
use crate::server::event_loop::scheduler::AccountId;
use crate::server::id::ClientId;
use crate::server::outgoing::{
    Connect, ConnectError, Failures, Outgoing, Phase, Place, Resolved, Returning,
};
use crate::server::service::Service;
use crate::server::stream::Stream;
use crate::sys::{check_socket_path, random_bytes};

/// A connection that was lost sooner than this after it opened is reopened only after a delay.
const LEAST_APART: Duration = Duration::from_secs(1);

/// How a client comes back whose connection this side has opened. `None` for any other client.
fn upstream_of(client: &Client) -> Option<&Upstream> {
    client.wire.delivery().and_then(Delivery::upstream)
}

impl Core {
    /// Begins to open a connection for the current service.
    fn connect(&mut self, connect: Connect) -> Result<ClientId, ConnectError> {
        connect.check()?;
        if self.is_replaced || self.shutdown.is_stopping() {
            return Err(ConnectError::Cancelled);
        }
        let now = self.env.now;
        let first = Failures::default();
        Ok(self.add_outgoing(Outgoing::new(
            Arc::new(connect),
            None,
            first,
            now,
            Duration::ZERO,
        )))
    }

    /// Adds an entry for an outgoing connection. Its first attempt does not begin in this turn: a service that connects again whenever
    /// an attempt has failed does not keep the loop from handling events.
    pub(super) fn add_outgoing(&mut self, outgoing: Outgoing) -> ClientId {
        let (now, service_id) = (self.env.now, self.service_id);
        let is_due = outgoing.deadline().is_some_and(|at| at <= now);
        let Ok(id) = self.registry.insert(|id| {
            let mut client = Client::new(id, Stream::Closed, Remote::SHARED_UNIX, now);
            client.service_id = service_id;
            client.wire.protocol.set_outgoing(outgoing);
            Ok::<_, std::convert::Infallible>(client)
        });
        self.env.scheduler.hold(AccountId::SERVER);
        if is_due {
            self.attempts.push(id);
        }
        self.rearm(id);
        id
    }

    /// Begins an attempt: resolves the name, or connects at once if that is not necessary.
    fn begin_attempt(&mut self, id: ClientId) {
        let now = self.env.now;
        let resolver = &mut self.resolver;
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        let Some(outgoing) = client.wire.protocol.outgoing_mut() else {
            return;
        };
        if outgoing.phase != Phase::Waiting {
            return;
        }
        outgoing.begin(now);
        let connect = Arc::clone(&outgoing.connect);
        let is_known = match &*connect.place() {
            Place::Unix(_) => true,
            Place::Tcp { host, port } => match host.parse::<IpAddr>() {
                Ok(ip) => {
                    outgoing.addresses.push_back(SocketAddr::new(ip, *port));
                    true
                }
                Err(_) => {
                    #[cfg(any(test, fuzzing))]
                    if let Some(dialer) = &mut self.dialer {
                        dialer.resolving.push((id, outgoing.attempt));
                        return self.rearm(id);
                    }
                    resolver.resolve(id, outgoing.attempt, host.clone(), *port);
                    false
                }
            },
        };
        self.rearm(id);
        if is_known {
            self.connect_next(id, None);
        }
    }

    /// Takes what the resolver has found out since the bell rang.
    pub(crate) fn handle_resolved_names(&mut self) {
        while let Some(answer) = self.resolver.next_answer() {
            self.handle_resolved(answer.id, answer.attempt, answer.resolved);
        }
    }

    /// Takes the addresses of a host.
    pub(crate) fn handle_resolved(&mut self, id: ClientId, attempt: u32, resolved: Resolved) {
        self.resolver.resolve_next();
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        let Some(outgoing) = client.wire.protocol.outgoing_mut() else {
            return;
        };
        // The attempt may have timed out since.
        if outgoing.phase != Phase::Resolving || outgoing.attempt != attempt {
            return;
        }
        let connect = Arc::clone(&outgoing.connect);
        let failed = match resolved {
            Ok(addresses) if !addresses.is_empty() => {
                outgoing.addresses = addresses.into();
                return self.connect_next(id, None);
            }
            Ok(_) => io::Error::new(io::ErrorKind::NotFound, "it has no address"),
            Err(error) => error,
        };
        let host = match &*connect.place() {
            Place::Tcp { host, .. } => host.clone(),
            Place::Unix(socket) => socket.display().to_string(),
        };
        let error = ConnectError::Resolve {
            host,
            source: failed,
        };
        self.with(id, |client, env| client.fail(env, error));
    }

    /// Connects to the next address. `last` is the error of the previous one.
    fn connect_next(&mut self, id: ClientId, mut last: Option<ConnectError>) {
        let Self {
            registry,
            env,
            poll,
            #[cfg(any(test, fuzzing))]
            dialer,
            ..
        } = self;
        let Some(client) = registry.get_mut(id) else {
            return;
        };
        while let Some(outgoing) = client.wire.protocol.outgoing_mut() {
            let connect = Arc::clone(&outgoing.connect);
            let opened = match &*connect.place() {
                Place::Unix(_) if last.is_some() => break,
                Place::Unix(socket) => (
                    Remote::SHARED_UNIX,
                    socket.display().to_string(),
                    check_socket_path(socket)
                        .and_then(|()| UnixStream::connect(socket))
                        .map(Stream::from),
                ),
                Place::Tcp { .. } => {
                    let Some(address) = outgoing.addresses.pop_front() else {
                        break;
                    };
                    let open = || TcpStream::connect(address).map(Stream::from);
                    #[cfg(any(test, fuzzing))]
                    let mut open = || dialer.as_mut().map_or_else(open, |one| Ok(one.dial()));
                    let stream = open();
                    (Remote::from(address), address.to_string(), stream)
                }
            };
            let (remote, address, stream) = opened;
            outgoing.begin_address(env.now);
            client.wire.remote = remote;
            let registered =
                stream.and_then(|stream| client.set_stream(&mut env.scratch, poll, stream));
            match registered {
                Ok(()) => {
                    self.rearm(id);
                    // A unix socket is connected at once, and may cause no event for it.
                    return self.continue_connecting(id);
                }
                Err(source) => last = Some(ConnectError::Connect { address, source }),
            }
        }
        let error = last.unwrap_or(ConnectError::TimedOut);
        client.fail(env, error);
    }

    /// Checks whether the socket is connected, and takes the next step if so.
    fn continue_connecting(&mut self, id: ClientId) {
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        if client
            .wire
            .protocol
            .outgoing()
            .is_none_or(|one| one.phase != Phase::Connecting)
        {
            return;
        }
        match client.wire.is_established() {
            None => {}
            Some(Ok(())) => client.begin_exchange(&mut self.env),
            Some(Err(source)) => {
                let address = match client
                    .wire
                    .protocol
                    .outgoing()
                    .map(|one| one.connect.place().into_owned())
                {
                    Some(Place::Unix(socket)) => socket.display().to_string(),
                    _ => client.wire.remote.to_string(),
                };
                self.connect_next(id, Some(ConnectError::Connect { address, source }));
            }
        }
    }

    /// Ends the attempts to come back for a client that has ended.
    pub(crate) fn end_return(&mut self, client: &Client) {
        if let Some(joiner) = upstream_of(client).and_then(|upstream| upstream.joiner) {
            self.with(joiner, |client, env| {
                client.fail(env, ConnectError::Cancelled)
            });
        }
    }

    /// Ends a client of which its service does not know the settings after an upgrade.
    pub(crate) fn end_unknown(&mut self, target: ClientId) {
        let why = "the service does not continue the connection";
        let reason = CloseReason::new(Cause::NotResumed, CloseCode::ABNORMAL, why);
        self.with(target, |client, env| client.end(env, reason));
    }

    /// Begins to come back for a client whose outgoing connection was cut.
    pub(crate) fn begin_return(&mut self, target: ClientId) {
        if self.is_replaced {
            // `Server::return_all` follows, in this program or the next.
            return;
        }
        let now = self.env.now;
        let Some(client) = self.registry.get_mut(target) else {
            return;
        };
        self.service_id = client.service_id;
        let received = client.traffic.messages_in;
        let Some(delivery) = client.wire.delivery_mut() else {
            return;
        };
        let last = delivery.last_connection(now, received);
        let Some((last, upstream)) = last.zip(delivery.upstream_mut()) else {
            return;
        };
        let Some(connect) = upstream.connect.clone() else {
            return self.end_unknown(target);
        };
        let give_up = connect.retry.unwrap_or_default().give_up;
        let mut delay = Some(Duration::ZERO);
        if last.was_stable {
            upstream.failures = Failures::default();
            if last.lasted < LEAST_APART {
                delay = Some(Failures::first_delay(random()));
            }
        } else {
            let failures = &mut upstream.failures;
            delay = failures.next_delay(last.lasted, Duration::ZERO, give_up, random());
        }
        let returning = Returning {
            target,
            field: format!("{}; received={received}", upstream.token),
        };
        let failures = upstream.failures;
        let least = delay.unwrap_or_default();
        let joiner = self.add_outgoing(Outgoing::new(
            connect,
            Some(returning),
            failures,
            now,
            least,
        ));
        let delivery = self.registry.get_mut(target);
        let delivery = delivery.and_then(|client| client.wire.delivery_mut());
        if let Some(upstream) = delivery.and_then(Delivery::upstream_mut) {
            upstream.joiner = Some(joiner);
        }
        if delay.is_none() {
            let why = "each connection to the server is cut soon after it opens";
            self.with(joiner, |client, env| {
                client.fail(env, ConnectError::NotResumed(why));
            });
        }
    }
}

/// A random number, which spreads attempts.
fn random() -> u16 {
    let mut bytes = [0; 2];
    random_bytes(&mut bytes);
    u16::from_ne_bytes(bytes)
}

impl<S: Service> Server<S> {
    /// Begins the attempts that are due at once.
    #[cold]
    pub(crate) fn begin_attempts(&mut self) {
        for id in std::mem::take(&mut self.ctx.core.attempts) {
            self.act(|server| server.ctx.core.begin_attempt(id));
        }
    }

    /// Handles an event of the socket of a connection that is not open yet.
    pub(crate) fn handle_outgoing(&mut self, id: ClientId, readable: bool) {
        self.ctx.core.continue_connecting(id);
        let client = self.ctx.core.registry.get(id);
        let is_connected = client.is_some_and(|client| {
            !client.wire.protocol.outgoing().is_some_and(|one| {
                matches!(
                    one.phase,
                    Phase::Waiting | Phase::Resolving | Phase::Connecting
                )
            })
        });
        if readable && is_connected {
            self.read_client(id);
        }
    }

    /// Handles an expired time limit of a connection that is not open yet.
    pub(crate) fn handle_outgoing_deadline(&mut self, id: ClientId) {
        let now = self.ctx.now();
        let core = &mut self.ctx.core;
        let Some(outgoing) = core
            .registry
            .get_mut(id)
            .and_then(|client| client.wire.protocol.outgoing_mut())
        else {
            return;
        };
        if outgoing.deadline().is_none_or(|at| at > now) {
            return core.rearm(id);
        }
        match outgoing.phase {
            Phase::Waiting => core.begin_attempt(id),
            Phase::Exchange => {
                core.with(id, |client, env| client.handle_request_timeout(env));
            }
            Phase::Connecting if !outgoing.addresses.is_empty() => {
                core.connect_next(id, Some(ConnectError::TimedOut));
            }
            _ => {
                let error = outgoing.end_of_input(ConnectError::TimedOut);
                core.with(id, |client, env| client.fail(env, error));
            }
        }
    }

    /// Prepares the next attempt of a connection that is not open yet. Returns false if there is none, because the
    /// connection has failed for good.
    pub(crate) fn retry(&mut self, id: ClientId) -> bool {
        let is_stopping = self.ctx.is_stopping();
        let Core {
            registry,
            env,
            poll,
            resolver,
            ..
        } = &mut self.ctx.core;
        let Some(client) = registry.get_mut(id) else {
            return false;
        };
        resolver.forget(id);
        let was_sent = client.is_request_written();
        client.wire.close_socket(id, &mut env.scratch, poll);
        let service_id = client.service_id;
        let Some(outgoing) = client.wire.protocol.outgoing_mut() else {
            return false;
        };
        let Some(error) = outgoing.take_failure() else {
            // It was handled before.
            return true;
        };
        if let Some(requesting) = &mut outgoing.requesting {
            requesting.was_sent = was_sent;
        }
        let next = outgoing.next_delay(&error, env.now, random());
        let Some(delay) = next.filter(|_| !is_stopping) else {
            outgoing.fail(error);
            return false;
        };
        outgoing.wait(env.now, delay);
        let target = outgoing.returning.as_ref().map_or(id, |one| one.target);
        let url = outgoing.connect.target().to_string();
        log::info!("{target} cannot connect to {url}: {error}; trying again in {delay:.1?}");
        self.ctx.core.rearm(id);
        self.ctx.core.service_id = service_id;
        self.call_outgoing(|service, ctx| service.connect_retrying(ctx, target, &error, delay));
        true
    }

    /// Reports that a connection could not be opened. If a client wanted to come back on it, that client ends.
    pub(crate) fn report_failure(&mut self, id: ClientId, mut outgoing: Box<Outgoing>) {
        if let Some(requesting) = outgoing.requesting.take() {
            return self.report_exchange_end(id, &requesting, &mut outgoing);
        }
        let error = outgoing.take_failure().unwrap_or(ConnectError::Cancelled);
        let Some(returning) = outgoing.returning.take() else {
            log::info!(
                "{id} cannot connect to {}: {error}",
                outgoing.connect.target()
            );
            return self.call_outgoing(|service, ctx| service.connect_failed(ctx, id, &error));
        };
        let target = returning.target;
        let is_current =
            |client: &Client| upstream_of(client).is_some_and(|one| one.joiner == Some(id));
        if !self.ctx.core.registry.get(target).is_some_and(is_current) {
            return;
        }
        log::info!("{target} cannot come back: {error}");
        let gone = |why: &'static str| (Cause::NotResumed, why.into());
        let (cause, why): (_, Cow<'static, str>) = match error {
            ConnectError::NotResumed(why) => gone(why),
            ConnectError::Cancelled if self.ctx.is_stopping() => {
                (Cause::Shutdown, error.to_string().into())
            }
            // The server's message is meant for client developers, so it is replaced.
            _ => match error.status() {
                Some(410) => gone("the server no longer knows this connection"),
                Some(421) => gone("the node that has this connection is gone"),
                _ => (Cause::Unreachable, error.to_string().into()),
            },
        };
        let reason = CloseReason::new(cause, CloseCode::ABNORMAL, why);
        self.ctx
            .core
            .with(target, |client, env| client.end(env, reason));
    }
}

impl Context {
    /// Opens a connection to a WebSocket server. Returns at once, with the id of the connection. Exactly one of
    /// [`Outgoing::connect_opened`](crate::Outgoing::connect_opened) and
    /// [`Outgoing::connect_failed`](crate::Outgoing::connect_failed) follows. From `connect_opened` on, the server is a
    /// client like any other: the service gets `message`, `drained`, and `disconnected` once.
    ///
    /// The connection counts towards [`Config::max_clients`](crate::Config) when it is open.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Invalid`] if the URL or a field has characters that HTTP does not allow, and
    /// [`ConnectError::Cancelled`] if the loop is being stopped or the program is about to be replaced. Neither callback follows.
    pub fn connect(&mut self, connect: Connect) -> Result<ClientId, ConnectError> {
        self.core.connect(connect)
    }
}
