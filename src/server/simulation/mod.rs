//! A whole server in memory under simulated time, for tests and the operation fuzzer.
//!
//! Its service records every call. [`World::check`] compares the records with the registry after each operation.

pub(crate) mod memory_stream;
mod outgoing;
mod peer;
mod rooms;
mod upgrade;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mio::Poll;

use self::memory_stream::MemoryStream;
use self::outgoing::Ours;
use self::rooms::Rooms;
use super::agreement::Disagreement;
use super::client::{Delivery, ReadGate};
use super::event_loop::SocketEvent;
use super::event_loop::clock::{Nanos, Stopwatch};
use super::stream::Stream;
#[cfg(feature = "tls")]
use super::tls::{self, simulation::Peer};
use super::{
    ClientId, Config, Connect, ConnectError, Context, Ended, Outgoing, Peers, Portable, Remote,
    ResumeConfig, Route, Scope, Server, Service, ServiceId,
};
use crate::fuzz::protocol::visit_server_frames;
use crate::protocol::client::ResponseHead;
use crate::protocol::{
    Cause, CloseCode, CloseReason, Limits, Message, Rejection, Request, Response, Shared,
    StatusCode,
};

/// Records every call, and does what the first byte of a message says.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    pub(crate) present: BTreeSet<ClientId>,
    gone: BTreeSet<ClientId>,
    /// The callers that wait for an answer, and whether a stream has begun.
    pub(crate) calling: BTreeMap<ClientId, bool>,
    /// The number of messages from each client.
    pub(crate) told: BTreeMap<ClientId, u64>,
    /// The cause and the code with which each client ended.
    pub(crate) endings: BTreeMap<ClientId, (Cause, CloseCode)>,
    /// The starts of programs: for a client, or for the service itself.
    pub(crate) starts: Vec<Option<ClientId>>,
    /// The topics of the clients.
    rooms: Rooms,
    /// The connections that the service opens.
    pub(crate) ours: Ours,
}

impl Witness {
    /// Continues every call: begins or continues a stream, ends a stream, or answers the call.
    pub(super) fn answer(&mut self, ctx: &mut Context, with_stream: bool) {
        for (caller, begun) in std::mem::take(&mut self.calling) {
            let answered = match (begun, with_stream) {
                (false, true) => ctx.begin_stream(caller, &[]),
                (false, false) => ctx.try_respond(caller, &Response::json(StatusCode::OK, "true")),
                (true, true) => ctx.stream(caller, &[b'x'; 3000]),
                (true, false) => ctx.end_stream(caller),
            };
            // If the socket has failed, keep the caller: `abandoned` removes it later.
            if with_stream || answered.is_err() {
                self.calling.insert(caller, begun || with_stream);
            }
        }
    }
}

impl Service for Witness {
    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.present
            .iter()
            .chain(self.calling.keys())
            .chain(&self.ours.connecting)
            .copied()
            .for_each(visit);
    }

    fn keeps_every_client(&self, _: ServiceId) -> bool {
        true
    }

    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        let route = match request.path() {
            "/fuzz" => Route::web_socket(),
            _ => Route::call(),
        };
        Ok(match request.parameters("mode").next().as_deref() {
            Some("viewer") => route.with_scope(Scope::Watch),
            _ => route,
        })
    }

    fn call(&mut self, ctx: &mut Context, caller: ClientId, request: &Request<'_>, body: &[u8]) {
        assert!(!self.calling.contains_key(&caller), "one call at a time");
        assert!(body.len() <= 4);
        self.calling.insert(caller, false);
        if request.path() == "/now" {
            self.answer(ctx, false);
        }
    }

    fn abandoned(&mut self, ctx: &mut Context, caller: ClientId) {
        assert!(
            self.calling.remove(&caller).is_some(),
            "{caller} has called"
        );
        assert!(ctx.end_stream(caller).is_err(), "the caller is gone");
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, _: &Request<'_>) {
        assert!(
            self.present.insert(client) && !self.gone.contains(&client),
            "{client} connects once"
        );
        ctx.send(client, Message::Text("welcome"));
        if !client.serial().is_multiple_of(4) {
            self.rooms.act(ctx, client, b'u');
        }
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        assert!(self.present.contains(&client), "{client} is connected");
        let told = self.told.entry(client).or_default();
        *told += 1;
        let entry = ctx.core.registry.get(client).expect("registered");
        // A CLOSE that waits for unsent messages does not stop input.
        let waits = entry.wire.delivery().is_some_and(Delivery::is_closing);
        assert!(
            entry.wire.is_open() || waits || self.ours.is_ours(client),
            "the client is not being closed"
        );
        assert_eq!(
            entry.read_gate(&ctx.core.env),
            ReadGate::Ready,
            "the service takes messages"
        );
        assert_eq!(entry.traffic.messages_in, *told);
        let someone = self.present.iter().next().copied().unwrap_or(client);
        let bytes = message.as_bytes();
        if self.ours.is_ours(client) {
            self.ours.heard(client, bytes);
            return self.ours.act(ctx, client);
        }
        match bytes.first() {
            Some(b'c') => ctx.close(client, CloseCode::NORMAL, "asked"),
            Some(b'o') => ctx.close(someone, CloseCode(4000), "by another"),
            Some(b'b') => {
                ctx.broadcast(message, |_, _| true);
            }
            Some(b'e') => {
                ctx.broadcast(message, |id, _| id != client);
            }
            Some(b's') => ctx.send(someone, message),
            Some(b'm') => (0..50).for_each(|_| {
                ctx.send(client, Message::Binary(&[7; 3000]));
            }),
            Some(b'l') => ctx.send(client, Message::Binary(&[8; 40_000])),
            Some(b'r') => self.answer(ctx, false),
            Some(b't') => self.answer(ctx, true),
            Some(b'h') => {
                // Held until any client drains or disconnects, which may be at once.
                ctx.set_held(client, true);
                (0..20).for_each(|_| ctx.send(someone, Message::Binary(&[9; 3000])));
                ctx.send(client, message);
            }
            Some(letter @ (b'u' | b'k' | b'U' | b'v' | b'V')) => {
                self.rooms.act(ctx, client, *letter);
            }
            Some(b'q') => ctx.queue_start(client),
            Some(b'Q') => ctx.queue_own_start(),
            Some(b'p') => ctx.set_paused(true),
            Some(b'g') => ctx.set_paused(false),
            _ => ctx.send(client, message),
        }
    }

    fn start_program(&mut self, _: &mut Context, client: Option<ClientId>) {
        let is_here = client.is_none_or(|client| self.present.contains(&client));
        assert!(is_here, "the client is connected");
        self.starts.push(client);
    }

    fn input_ended(&mut self, ctx: &mut Context, client: ClientId) -> Duration {
        assert!(self.present.contains(&client), "{client} is connected");
        self.ours.act(ctx, client);
        Duration::from_secs(client.serial() % 3)
    }

    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        assert!(
            self.present.contains(&client) || self.calling.contains_key(&client),
            "{client} drains while it is connected, or reads an answer"
        );
        ctx.send(client, Message::Text("more"));
        self.let_go(ctx);
        self.ours.act(ctx, client);
    }

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, ending: &CloseReason) {
        assert!(self.present.remove(&client), "{client} was connected");
        self.endings.insert(client, (ending.cause, ending.code));
        assert!(self.gone.insert(client), "{client} disconnects once");
        assert!(
            ctx.try_send(client, Message::Text("late")).is_err(),
            "sending to a disconnected client fails"
        );
        ctx.broadcast(Message::Text("someone left"), |_, _| true);
        self.rooms.disconnected(ctx, client);
        self.let_go(ctx);
        self.ours.disconnected(client);
        self.ours.act(ctx, client);
    }

    fn draining(&mut self, ctx: &mut Context) {
        self.ours.act(ctx, ClientId::new(0, 1 << 30));
    }

    fn stopping(&mut self, ctx: &mut Context) {
        self.ours.act(ctx, ClientId::new(0, 1 << 30));
    }

    fn outgoing(&mut self) -> Option<&mut dyn Outgoing> {
        Some(self)
    }

    fn portable(&self) -> Option<&dyn Portable> {
        Some(self)
    }

    fn portable_mut(&mut self) -> Option<&mut dyn Portable> {
        Some(self)
    }
}

impl Outgoing for Witness {
    fn connect_opened(&mut self, ctx: &mut Context, client: ClientId, response: &ResponseHead<'_>) {
        assert_eq!(response.status(), 101);
        assert!(
            self.present.insert(client) && !self.gone.contains(&client),
            "{client} is opened once"
        );
        self.ours.opened(client);
        self.ours.act(ctx, client);
    }

    fn connect_failed(&mut self, ctx: &mut Context, client: ClientId, error: &ConnectError) {
        assert!(!self.gone.contains(&client), "nothing follows the end");
        self.ours.failed(client, error);
        assert!(self.gone.insert(client), "{client} fails once");
        self.ours.act(ctx, client);
    }

    fn connect_retrying(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        error: &ConnectError,
        delay: Duration,
    ) {
        self.ours.retrying(client, error, delay);
        self.ours.act(ctx, client);
    }

    fn cut(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        assert!(self.present.contains(&client), "{client} is connected");
        self.ours.cut(client);
        self.ours.act(ctx, client);
    }

    fn resumed(&mut self, ctx: &mut Context, client: ClientId) {
        assert!(self.present.contains(&client), "{client} is connected");
        self.ours.resumed(client);
        self.ours.act(ctx, client);
    }

    fn reconnect(&mut self, _: &mut Context, client: ClientId) -> Option<Connect> {
        self.ours.settings(client)
    }
}

impl Portable for Witness {}

impl Witness {
    fn let_go(&self, ctx: &mut Context) {
        for client in &self.present {
            ctx.set_held(*client, false);
        }
    }
}

/// The server, and the peers' ends of its connections.
pub(crate) struct World<S = Witness> {
    pub(crate) server: Server<S>,
    pub(crate) streams: BTreeMap<ClientId, MemoryStream>,
    /// How much of the output of each connection was checked.
    checked: BTreeMap<ClientId, usize>,
    /// Ids of clients that may be gone, for late events.
    pub(crate) old: Vec<ClientId>,
    /// The clients' sides of the TLS connections.
    #[cfg(feature = "tls")]
    peers: BTreeMap<ClientId, Peer>,
    /// The servers' ends of the connections that the service opens.
    upstream: peer::Upstream,
}

pub(crate) const HEAD: &[u8] =
    b"GET /fuzz HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

impl World {
    pub(crate) fn new(options: u8) -> io::Result<Self> {
        let config = Config {
            max_clients: 2 + usize::from(options % 8),
            // The limit is never reached, but clients are counted.
            max_clients_per_address: (options & 0x20 != 0).then_some(1000),
            trusted_proxies: (options & 0x24 == 0x24)
                .then_some(Peers::Network([127, 0, 0, 1].into(), 32))
                .into_iter()
                .collect(),
            limits: Limits {
                max_head: 400,
                max_headers: 16,
                max_message: 60_000,
            },
            max_outbound: 100_000,
            turn_bytes: 4096,
            soft_outbound: 10_000,
            rate_limit: (options & 0x40 != 0)
                .then_some(std::num::NonZeroU32::MIN.saturating_add(20)),
            resume: (options & 8 != 0).then(|| ResumeConfig {
                buffer: 20_000,
                ..ResumeConfig::default()
            }),
            memory: (options & 0x42 == 0x42).then_some(200_000),
            ..Config::default()
        };
        let mut world = Self::with_service(config, Witness::default())?;
        if options & 8 != 0 {
            world.server.ctx.core.dialer = Some(memory_stream::Dialer::default());
        }
        #[cfg(feature = "tls")]
        if options & 0x10 != 0 {
            world.server.ctx.core.env.config.tls = Some(tls::simulation::config());
        }
        if options & 0x80 != 0 {
            let env = &mut world.server.ctx.core.env;
            env.protocol = Shared::new(env.config.limits, None).with_small_thresholds();
        }
        Ok(world)
    }

    pub(crate) fn open(&mut self, argument: u8) {
        let Some(id) = self.add_connection(usize::from(argument) * 40) else {
            return;
        };
        if argument & 7 == 7 {
            let calls: [&[u8]; 4] = [
                b"GET /now HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n\
                    GET /later HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 192.0.2.2\r\n\r\nGET /now",
                b"POST /later HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbodyGET",
                b"POST /later HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbo",
                b"GET /later HTTP/1.0\r\nHost: localhost\r\n\r\n",
            ];
            self.give(id, calls[usize::from(argument >> 3) % 4]);
            self.event(id, true, true, false);
        } else if argument & 1 == 0 {
            self.give(id, &HEAD[..HEAD.len() - usize::from(argument % 16 == 6)]);
            self.event(id, true, true, false);
        }
    }
}

/// Checks what the server has sent on a connection, of which `checked` bytes were checked before. Checking all of it again after each
/// operation would take much of the time.
fn check_sent(sent: &[u8], checked: &mut usize, is_present: bool) {
    if *checked == 0 {
        let head = sent.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        match head.filter(|_| sent.starts_with(b"HTTP/1.1 101")) {
            Some(head) => *checked = head + 4,
            None => {
                assert!(!is_present || sent.len() < 200, "a client gets 101 first");
                return;
            }
        }
    }
    *checked += visit_server_frames(&sent[*checked..], |_, _| {});
}

impl<S: Service> World<S> {
    /// A world with any service.
    pub(crate) fn with_service(config: Config, service: S) -> io::Result<Self> {
        let mut server = Server::new(Poll::new()?, config, Vec::new(), Vec::new(), service)?;
        server.ctx.core.env.stopwatch = Stopwatch::simulated(1000);
        Ok(Self {
            server,
            streams: BTreeMap::new(),
            checked: BTreeMap::new(),
            old: Vec::new(),
            #[cfg(feature = "tls")]
            peers: BTreeMap::new(),
            upstream: peer::Upstream::default(),
        })
    }

    /// Adds a connection whose socket has this much room. `None` if there are as many as allowed.
    pub(crate) fn add_connection(&mut self, room: usize) -> Option<ClientId> {
        let stream = MemoryStream::default();
        stream.wire().room = room;
        let remote = Remote::from(SocketAddr::from(([127, 0, 0, 1], 1)));
        if self.server.ctx.core.registry.len() >= self.server.ctx.config().max_connections() {
            return None;
        }
        let stream_end = Stream::Memory(stream.clone());
        let core = &mut self.server.ctx.core;
        let tls = core.env.config.has_tls();
        let id = core.add_client(stream_end, remote, tls)?;
        self.streams.insert(id, stream);
        #[cfg(feature = "tls")]
        if tls {
            self.peers
                .insert(id, Peer::new(id.serial().is_multiple_of(3)));
        }
        self.old.push(id);
        Some(id)
    }

    pub(crate) fn service(&self) -> &S {
        &self.server.service
    }

    /// The context and the service.
    pub(crate) fn parts(&mut self) -> (&mut Context, &mut S) {
        (&mut self.server.ctx, &mut self.server.service)
    }

    /// The clients whose end the service has not seen yet.
    pub(crate) fn present(&self) -> Vec<ClientId> {
        let clients = self.server.ctx.core.registry.iter();
        let open = clients.filter(|client| client.wire.protocol.was_open());
        let mut present: Vec<_> = open.map(|client| client.id).collect();
        present.sort();
        assert_eq!(present.len(), self.server.ctx.core.registry.client_count());
        present
    }

    /// The most bytes that are kept for one client, and the memory of all that is kept.
    pub(crate) fn kept(&self) -> (usize, usize) {
        let core = &self.server.ctx.core;
        let kept = core.registry.iter().map(|client| client.wire.kept()).max();
        (kept.unwrap_or(0), core.held_memory())
    }

    /// Whether the server has closed its end of a connection. `stream` is one of the test's two ends.
    pub(crate) fn has_closed(stream: &MemoryStream) -> bool {
        stream.holders() < 3
    }

    /// The number of connections of any kind.
    pub(crate) fn connection_count(&self) -> usize {
        self.server.ctx.core.registry.len()
    }

    pub(crate) fn stream(&self, id: ClientId) -> &MemoryStream {
        &self.streams[&id]
    }

    /// Ends the peer's direction.
    pub(crate) fn end_input(&self, id: ClientId) {
        self.stream(id).wire().ended = true;
    }

    /// Resets the connection.
    pub(crate) fn reset(&self, id: ClientId) {
        self.stream(id).wire().reset = true;
    }

    /// Makes room in the socket.
    pub(crate) fn add_room(&self, id: ClientId, bytes: usize) {
        self.stream(id).wire().room += bytes;
    }

    /// Closes a client as a service does.
    pub(crate) fn close(&mut self, id: ClientId, code: CloseCode, reason: String) {
        self.server.ctx.close(id, code, reason);
    }

    /// Sends the server a signal.
    pub(crate) fn signal(&mut self) {
        self.server.handle_signal(&mut Ended::Cleanly);
    }

    /// Makes everything take so long that most work waits for another turn.
    pub(crate) fn slow_down(&mut self) {
        const STEP: Nanos = 700_000;
        self.server.ctx.core.env.stopwatch = Stopwatch::simulated(STEP);
    }

    /// Takes the part of a turn that follows its events.
    pub(crate) fn take_turn(&mut self) {
        self.server.ctx.core.env.turn += 1;
        self.server.ctx.core.env.turn_time = 0;
        // Tests call the context outside of the loop.
        self.server.act(|_| {});
        self.server.take_turn();
        assert_eq!(self.server.disagreement(), Disagreement::default());
    }

    /// Whether the loop has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.server.ctx.core.shutdown.is_over()
    }

    pub(crate) fn give(&mut self, id: ClientId, bytes: &[u8]) {
        #[cfg(feature = "tls")]
        if let Some(peer) = self.peers.get_mut(&id) {
            return peer.write(bytes, &self.streams[&id]);
        }
        self.give_raw(id, bytes);
    }

    /// Passes bytes to the server without encrypting them.
    pub(crate) fn give_raw(&self, id: ClientId, bytes: &[u8]) {
        self.stream(id).wire().to_server.extend(bytes);
    }

    pub(crate) fn event(&mut self, id: ClientId, readable: bool, writable: bool, hung_up: bool) {
        let event = SocketEvent {
            readable,
            writable,
            hung_up,
        };
        self.server.act(|server| server.handle_client(id, event));
        #[cfg(feature = "tls")]
        self.continue_handshake(id);
    }

    /// Lets the peer answer during its handshake.
    #[cfg(feature = "tls")]
    fn continue_handshake(&mut self, id: ClientId) {
        while let Some((peer, stream)) = self.peers.get_mut(&id).zip(self.streams.get(&id))
            && peer.pump(stream)
        {
            let event = SocketEvent {
                readable: true,
                ..SocketEvent::default()
            };
            self.server.act(|server| server.handle_client(id, event));
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        let before = self.server.ctx.core.env.now;
        let waited = self.server.timeout().map(|timeout| timeout.min(time));
        self.server.ctx.core.env.now = before + time;
        self.server.handle_jump(before, waited);
    }
}

impl World {
    /// Checks that the service's records agree with the registry, and that no client holds more than its limit.
    pub(crate) fn check(&mut self) {
        let ctx = &self.server.ctx;
        let mut present = BTreeSet::new();
        for client in ctx.core.registry.iter() {
            let id = client.id;
            if client.wire.protocol.was_open() {
                present.insert(id);
            }
            let most = 4 * ctx.config().max_outbound + ctx.config().limits.max_message + 4096;
            assert!(
                client.wire.queued() <= most,
                "{} bytes wait for {id}",
                client.wire.queued()
            );
            assert!(
                client.wire.protocol.held_with_codec()
                    <= 2 * ctx.config().limits.max_message + 1024
            );
        }
        self.server.service.rooms.check(ctx);
        let holders = ctx.core.registry.len() + ctx.core.sources.len();
        assert_eq!(ctx.core.env.scheduler.holders(), holders);
        assert_eq!(present, self.server.service.present);
        let calling = ctx
            .core
            .registry
            .iter()
            .filter(|client| client.wire.protocol.is_unanswered());
        let calling: BTreeSet<_> = calling.map(|client| client.id).collect();
        assert!(calling.iter().eq(self.server.service.calling.keys()));
        assert_eq!(calling.len(), ctx.core.env.calls);
        assert_eq!(present.len(), ctx.core.registry.client_count());
        let ours = |id: &&ClientId| self.server.service.ours.is_ours(**id);
        let admitted = present.iter().filter(|id| !ours(id)).count();
        assert!(admitted <= ctx.config().max_clients);
        let mut uses = BTreeMap::new();
        for client in ctx.core.registry.iter() {
            let is_admitted = client.wire.protocol.was_open() && !client.wire.is_ours();
            let count =
                usize::from(is_admitted) + usize::from(client.wire.protocol.is_unanswered());
            *uses.entry(client.wire.remote.ip()).or_default() += count;
        }
        assert_eq!(uses.values().sum::<usize>(), admitted + calling.len());
        let is_limited = ctx.config().max_clients_per_address.is_some();
        for (ip, count) in uses.into_iter().filter(|_| is_limited) {
            assert_eq!(ctx.core.env.addresses.clients(ip), count, "{ip}");
        }
        for (id, stream) in &self.streams {
            let checked = self.checked.entry(*id).or_default();
            #[cfg(feature = "tls")]
            if let Some(peer) = self.peers.get(id) {
                check_sent(&peer.plain, checked, present.contains(id));
                continue;
            }
            check_sent(&stream.wire().from_server, checked, present.contains(id));
        }
        let registry = &ctx.core.registry;
        self.streams.retain(|id, _| registry.get(*id).is_some());
        self.checked.retain(|id, _| registry.get(*id).is_some());
        #[cfg(feature = "tls")]
        self.peers.retain(|id, _| registry.get(*id).is_some());
        self.check_upstream();
    }

    /// Stops the server and checks that no client is left.
    pub(crate) fn finish(mut self) {
        // A client that may not be read does not keep the loop awake.
        for _ in 0..300 {
            if !self.server.ctx.core.has_work() {
                break;
            }
            self.take_turn();
        }
        assert!(!self.server.ctx.core.has_work());
        self.server.ctx.stop();
        for _ in 0..100 {
            self.pass(Duration::from_secs(1));
            self.server.handle_deadlines();
            self.take_turn();
            self.check();
            if self.is_over() {
                break;
            }
        }
        assert!(self.is_over());
        assert_eq!(
            self.server.ctx.core.registry.len(),
            0,
            "no connection is left"
        );
        assert!(
            self.server.ctx.core.env.addresses.is_empty(),
            "no address is counted"
        );
        assert_eq!(
            self.server.ctx.core.timers.next(),
            None,
            "no deadline is left"
        );
        assert!(
            self.server.service.present.is_empty(),
            "the service has seen every client disconnect"
        );
        assert!(
            self.server.service.calling.is_empty(),
            "the service has seen every caller leave"
        );
        self.server.service.ours.check_end();
    }
}
