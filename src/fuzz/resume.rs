//! The fuzz target for resumable connections: clients are cut and come back, with a whole server in memory under simulated
//! time.
//!
//! The service and each client number their messages. As long as the client has not ended, each message must arrive exactly
//! once and in order on both sides, whatever is cut. A PING must carry the number of messages before it. A client that comes
//! back may be rejected only if it has ended.

use std::collections::BTreeMap;
use std::time::Duration;

use super::protocol::write_frame;
use crate::protocol::{Cause, CloseCode, CloseReason, Limits, Message, Request};
use crate::server::memory_stream::MemoryStream;
use crate::server::simulation::World;
use crate::{ClientId, Config, Context, ResumeConfig, SendError, Service};

/// The maximum number of clients at once.
const PEERS: usize = 4;

const BUFFER: usize = 6000;
const MEMORY: usize = 40_000;
const MAX_MESSAGE: usize = 3000;

/// What the service knows of a client.
#[derive(Debug, Default)]
struct Account {
    /// The number of messages taken from it.
    taken: u64,
    /// The number of messages sent to it.
    sent: u64,
    /// Whether the service owes it something.
    is_pending: bool,
    /// Whether it ends for good: it has read too slowly, it was closed with 1008, or it leaves.
    is_doomed: bool,
    /// Whether the service has closed it.
    is_closed: bool,
}

/// A service that numbers its messages, and does what the last byte of a message says.
#[derive(Debug, Default)]
struct Ledger {
    accounts: BTreeMap<ClientId, Account>,
    ended: BTreeMap<ClientId, (Account, CloseReason)>,
    /// Whether the service has stopped holding back messages.
    is_settling: bool,
}

/// A numbered message. Even numbers are text.
fn numbered(number: u64, len: usize) -> Vec<u8> {
    let mut payload = format!("{number}:").into_bytes();
    payload.resize(payload.len() + len, b'.');
    payload
}

/// The number of a message.
fn number_of(payload: &[u8]) -> u64 {
    let digits: String = payload
        .iter()
        .map_while(|byte| byte.is_ascii_digit().then_some(char::from(*byte)))
        .collect();
    digits.parse().expect("a numbered message")
}

impl Ledger {
    fn send(&mut self, ctx: &mut Context, client: ClientId, len: usize) {
        let Some(account) = self.accounts.get_mut(&client) else {
            return;
        };
        let payload = numbered(account.sent + 1, len);
        let sent = match std::str::from_utf8(&payload) {
            Ok(text) if account.sent % 2 == 1 => ctx.try_send(client, Message::Text(text)),
            _ => ctx.try_send(client, Message::Binary(&payload)),
        };
        account.sent += u64::from(sent.is_ok());
        account.is_doomed |= sent == Err(SendError::SlowConsumer);
        let may_fail = account.is_doomed || account.is_closed;
        assert!(
            sent.is_ok() || may_fail,
            "{client} takes no message: {sent:?}"
        );
    }
}

impl Service for Ledger {
    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.accounts.keys().copied().for_each(visit);
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, _: &Request<'_>) {
        let known = self.accounts.insert(client, Account::default());
        assert!(known.is_none() && !self.ended.contains_key(&client));
        self.send(ctx, client, 3);
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let payload = message.as_bytes();
        let account = self.accounts.get_mut(&client).expect("connected");
        account.taken += 1;
        assert_eq!(
            number_of(payload),
            account.taken,
            "{client}: none is lost or doubled"
        );
        match payload.last() {
            Some(b'c') => {
                account.is_closed |= ctx.try_close(client, CloseCode::NORMAL, "asked").is_ok();
            }
            Some(b'p') => {
                account.is_doomed |= ctx.try_close(client, CloseCode::POLICY, "asked").is_ok();
            }
            Some(b'w') => account.is_pending = !account.is_pending,
            Some(b'h') if !self.is_settling => ctx.set_held(client, true),
            Some(b'a') => {
                let all: Vec<_> = self.accounts.keys().copied().collect();
                all.into_iter().for_each(|client| {
                    ctx.set_held(client, false);
                    self.send(ctx, client, 100);
                });
            }
            Some(b'm') => (0..12).for_each(|at| self.send(ctx, client, at * 60)),
            _ => self.send(ctx, client, payload.len()),
        }
    }

    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        self.send(ctx, client, 1);
    }

    fn input_ended(&mut self, _: &mut Context, client: ClientId) -> Duration {
        unreachable!("{client} is resumable")
    }

    fn is_waiting(&self, _: &Context, client: ClientId) -> bool {
        let account = self.accounts.get(&client);
        account.is_some_and(|account| account.is_pending)
    }

    fn disconnected(&mut self, _: &mut Context, client: ClientId, reason: &CloseReason) {
        let account = self.accounts.remove(&client).expect("connected");
        let before = self.ended.insert(client, (account, reason.clone()));
        assert!(before.is_none(), "{client} disconnects once");
    }
}

/// The state of a client's current connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// There is none, or the client has abandoned it.
    Cut,
    /// The response to the handshake is awaited.
    Handshake,
    Open,
    /// CLOSE has arrived.
    Closed,
}

/// One client.
#[derive(Debug)]
struct Peer {
    /// The client by its token.
    id: ClientId,
    /// The id for events of the present connection.
    connection: ClientId,
    stream: MemoryStream,
    /// The number of bytes of output that the client has read.
    read: usize,
    link: Link,
    token: String,
    /// The previous token, which may still be valid.
    earlier: String,
    wants_notice: bool,
    /// The number of received messages that the notice must have, while it is awaited.
    notice: Option<usize>,
    /// The messages of the client: the last byte of each.
    letters: Vec<u8>,
    /// The number of messages written, on the current connection and earlier ones.
    written: usize,
    received: u64,
    /// Payloads of PINGs that are not answered.
    pings: Vec<Vec<u8>>,
    is_over: bool,
}

/// The server with its clients.
type Sea = World<Ledger>;

impl Peer {
    /// Connects for the first time.
    fn arrive(world: &mut Sea, argument: u8) -> Option<Self> {
        let room = 600 + usize::from(argument) * 40;
        let connection = world.add_connection(room)?;
        let mut peer = Self {
            id: connection,
            connection,
            stream: world.stream(connection).clone(),
            read: 0,
            link: Link::Handshake,
            token: String::new(),
            earlier: String::new(),
            wants_notice: argument & 1 == 1,
            notice: None,
            letters: Vec::new(),
            written: 0,
            received: 0,
            pings: Vec::new(),
            is_over: false,
        };
        peer.ask(world, "resume=new", "");
        Some(peer)
    }

    /// Sends a handshake on the current connection.
    fn ask(&mut self, world: &mut Sea, query: &str, field: &str) {
        let notice = if self.wants_notice { "&notice=1" } else { "" };
        let head = format!(
            "GET /?{query}{notice} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            {field}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        self.link = Link::Handshake;
        self.read = 0;
        self.pings.clear();
        self.stream.wire().to_server.extend(head.as_bytes());
        self.event(world, false);
    }

    fn event(&self, world: &mut Sea, hung_up: bool) {
        world.event(self.connection, true, true, hung_up);
        world.take_turn();
    }

    /// Comes back, if there is room for another connection.
    fn come_back(&mut self, world: &mut Sea, argument: u8) {
        if self.token.is_empty() {
            return self.cut(world, 0);
        }
        let Some(connection) = world.add_connection(600 + usize::from(argument) * 40) else {
            return;
        };
        self.connection = connection;
        self.stream = world.stream(connection).clone();
        let token = if argument & 8 == 8 {
            self.earlier.clone()
        } else {
            self.token.clone()
        };
        let received = self.received;
        if argument & 2 == 2 {
            let field = format!("Outrigger-Resume: {token}; received={received}\r\n");
            self.ask(world, "x=1", &field);
        } else {
            self.ask(world, &format!("resume={token}&received={received}"), "");
        }
        self.take(world, usize::MAX, token == self.token);
    }

    /// Reads what has arrived, at most `most` more bytes. `is_latest` says whether a rejection means that the client has
    /// ended.
    fn take(&mut self, world: &mut Sea, most: usize, is_latest: bool) {
        let output = {
            let wire = self.stream.wire();
            let end = wire.from_server.len().min(self.read.saturating_add(most));
            wire.from_server[self.read..end].to_vec()
        };
        let mut rest = &output[..];
        if self.is_over {
            return;
        }
        if self.link == Link::Handshake {
            let Some(end) = rest.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
                return;
            };
            let head = String::from_utf8_lossy(&rest[..end + 4]).into_owned();
            rest = &rest[end + 4..];
            self.read += end + 4;
            self.handle_response(world, &head, is_latest);
        }
        while self.link == Link::Open
            && let Some((opcode, payload, len)) = frame(rest)
        {
            rest = &rest[len..];
            self.read += len;
            self.handle_frame(opcode, payload);
            if opcode == 0x8 {
                self.answer_close(world, payload);
            }
        }
    }

    /// Records that the client leaves.
    fn doom(&self, world: &mut Sea) {
        if let Some(account) = world.parts().1.accounts.get_mut(&self.id) {
            account.is_doomed = true;
        }
    }

    /// Completes the closing handshake. The client has every message, unless it has read too slowly.
    fn answer_close(&mut self, world: &mut Sea, payload: &[u8]) {
        let service = world.service();
        let ended = service.ended.get(&self.id).map(|(account, _)| account);
        let account = service.accounts.get(&self.id).or(ended).expect("a client");
        let code = payload.first_chunk().map(|code| u16::from_be_bytes(*code));
        if code != Some(1008) {
            assert_eq!(
                self.received, account.sent,
                "nothing is lost by CLOSE {code:?}"
            );
        }
        let mut close = Vec::new();
        write_frame(true, 8, payload, &mut close);
        self.doom(world);
        self.stream.wire().to_server.extend(close);
        self.event(world, false);
        self.is_over = true;
    }

    fn handle_response(&mut self, world: &Sea, head: &str, is_latest: bool) {
        let field = head
            .lines()
            .find_map(|line| line.strip_prefix("Outrigger-Resume: "));
        if !head.starts_with("HTTP/1.1 101 ") {
            self.link = Link::Cut;
            if head.starts_with("HTTP/1.1 410 ") && is_latest {
                let account = world.service().accounts.get(&self.id);
                let is_ending = account.is_none_or(|account| account.is_doomed);
                assert!(is_ending, "{} is refused, but has not ended", self.id);
                self.is_over = true;
            } else {
                // Only a new client is rejected at the limit of clients.
                self.is_over = self.token.is_empty();
                assert!(self.is_over || head.starts_with("HTTP/1.1 410 "), "{head}");
            }
            return;
        }
        let field = field.expect("a token");
        let (token, taken) = match field.split_once("; received=") {
            Some((token, taken)) => (token, taken.parse().expect("a number")),
            None => (field, 0),
        };
        let id = token.split_once('-').expect("a token").0;
        self.id = id.parse().expect("an id");
        self.connection = self.id;
        self.earlier = std::mem::replace(&mut self.token, token.to_owned());
        assert!(taken <= self.letters.len());
        self.written = taken;
        self.notice = self.wants_notice.then_some(taken);
        self.link = Link::Open;
    }

    fn handle_frame(&mut self, opcode: u8, payload: &[u8]) {
        match opcode {
            0x1 if self.notice.is_some() => {
                let taken = self.notice.take().unwrap_or_default();
                let text = String::from_utf8_lossy(payload);
                let token = &self.token;
                let expected =
                    format!(r#"{{"outrigger":{{"resume":"{token}","received":{taken}}}}}"#);
                assert_eq!(text, expected);
            }
            0x1 | 0x2 => {
                assert!(self.notice.is_none(), "the notice comes first");
                self.received += 1;
                assert_eq!(number_of(payload), self.received, "none is lost or doubled");
                assert_eq!(
                    opcode == 0x1,
                    self.received.is_multiple_of(2),
                    "the type is kept"
                );
            }
            0x9 => {
                assert_eq!(payload, self.received.to_string().as_bytes());
                self.pings.push(payload.to_vec());
            }
            0xa => {}
            0x8 => self.link = Link::Closed,
            _ => panic!("opcode {opcode}"),
        }
    }

    /// Writes the messages that the server has not received, but at most `cut` bytes in all.
    fn write(&mut self, world: &mut Sea, cut: usize) {
        if self.link != Link::Open {
            return;
        }
        let mut bytes = Vec::new();
        for ping in std::mem::take(&mut self.pings) {
            write_frame(true, 0xa, &ping, &mut bytes);
        }
        while let Some(letter) = self.letters.get(self.written) {
            self.written += 1;
            let mut payload = numbered(self.written as u64, usize::from(*letter));
            payload.push(*letter);
            write_frame(true, 2, &payload, &mut bytes);
        }
        bytes.truncate(cut);
        self.stream.wire().to_server.extend(bytes);
        self.event(world, false);
    }

    /// Cuts the connection: resets it, ends the client's direction, or abandons it silently.
    fn cut(&mut self, world: &mut Sea, how: u8) {
        if self.link == Link::Cut {
            return;
        }
        // If the handshake was not answered, this may be a new client, whose token is lost.
        self.is_over |= self.token.is_empty();
        self.link = Link::Cut;
        match how % 3 {
            0 => self.stream.wire().reset = true,
            1 => self.stream.wire().ended = true,
            _ => return,
        }
        self.event(world, true);
    }
}

/// The first frame of a server's output: its opcode, its payload and its length.
fn frame(bytes: &[u8]) -> Option<(u8, &[u8], usize)> {
    let (first, second) = (*bytes.first()?, *bytes.get(1)?);
    let (header, len) = match second {
        126 => (
            4,
            usize::from(u16::from_be_bytes(*bytes.get(2..4)?.first_chunk()?)),
        ),
        127 => (
            10,
            u64::from_be_bytes(*bytes.get(2..10)?.first_chunk()?) as usize,
        ),
        len => (2, usize::from(len)),
    };
    let payload = bytes.get(header..header + len)?;
    Some((first & 0xf, payload, header + len))
}

/// Runs arbitrary operations of resumable clients. Every message arrives once and in order, and every client ends once.
pub fn resume(data: &[u8]) {
    let Some((options, mut plan)) = data.split_first() else {
        return;
    };
    let config = Config {
        max_clients: PEERS,
        limits: Limits {
            max_head: 1000,
            max_headers: 16,
            max_message: MAX_MESSAGE,
        },
        max_outbound: 20_000,
        soft_outbound: 4000,
        turn_bytes: 4096,
        resume: Some(ResumeConfig {
            grace: Duration::from_secs(10),
            limit: Duration::from_secs(200),
            buffer: BUFFER,
            memory: MEMORY,
        }),
        max_clients_per_address: (options & 1 == 1).then_some(1000),
        ..Config::default()
    };
    let Ok(mut world) = World::with_service(config, Ledger::default()) else {
        return;
    };
    let mut peers: Vec<Peer> = Vec::new();
    while let [operation, argument, rest @ ..] = plan {
        plan = rest;
        operate(&mut world, &mut peers, *operation, *argument);
        world.take_turn();
        check(&world);
        peers.retain(|peer| !peer.is_over);
    }
    for mut peer in peers {
        settle(&mut world, &mut peer);
    }
    finish(world);
}

fn operate(world: &mut Sea, peers: &mut Vec<Peer>, operation: u8, argument: u8) {
    let count = peers.len().max(1);
    let Some(peer) = peers.get_mut(usize::from(argument) % count) else {
        peers.extend(Peer::arrive(world, argument));
        return;
    };
    match operation % 13 {
        0 if count < PEERS + 1 => peers.extend(Peer::arrive(world, argument)),
        0 | 1 => peer.come_back(world, argument),
        2 | 3 => {
            let letter = b"capwhm..m.am"[usize::from(operation / 13) % 12];
            let count = 1 + usize::from(argument / 4) % 8;
            peer.letters.extend(std::iter::repeat_n(letter, count));
            peer.write(world, usize::MAX);
        }
        4 => {
            // A cut in the middle of a message.
            peer.letters.extend([b'.', b'm']);
            peer.write(world, usize::from(argument) * 2);
            peer.cut(world, operation / 13);
        }
        5 => peer.cut(world, operation / 13),
        6 => {
            peer.stream.wire().room += usize::from(argument) * usize::from(operation);
            peer.event(world, false);
        }
        7 => peer.take(world, usize::from(argument) * usize::from(operation), false),
        8 => {
            peer.take(world, usize::MAX, false);
            peer.write(world, usize::MAX);
        }
        9 => world.pass(Duration::from_millis(u64::from(argument) * 20)),
        10 => world.pass(Duration::from_secs(u64::from(argument) / 4)),
        11 => {
            let id = peer.id;
            let (ctx, service) = world.parts();
            (0..argument % 5).for_each(|at| {
                service.send(ctx, id, usize::from(at) * usize::from(operation));
            });
        }
        _ if peer.link == Link::Open && operation > 128 => {
            let code: u16 = if argument & 1 == 1 { 1000 } else { 1001 };
            let mut close = Vec::new();
            write_frame(true, 8, &code.to_be_bytes(), &mut close);
            if code == 1000 {
                peer.doom(world);
            }
            peer.stream.wire().to_server.extend(close);
            peer.event(world, false);
            peer.link = Link::Closed;
            peer.is_over = code == 1000;
        }
        _ => {
            let code = CloseCode(if argument & 1 == 1 { 1000 } else { 4000 });
            let id = peer.id;
            let (ctx, service) = world.parts();
            let is_closed = ctx.try_close(id, code, "service").is_ok();
            if let Some(account) = service.accounts.get_mut(&id) {
                account.is_closed |= is_closed;
            }
        }
    }
}

/// Checks the limits and the counters.
fn check(world: &Sea) {
    let (most, memory) = world.kept();
    assert!(most <= BUFFER + MAX_MESSAGE + 1000, "{most}");
    assert!(
        memory <= MEMORY + PEERS * (MAX_MESSAGE + (16 << 10)),
        "{memory}"
    );
    let present = world.present();
    assert!(present.iter().eq(world.service().accounts.keys()));
    assert!(present.len() <= PEERS);
}

/// Lets a client and the server exchange everything. Afterwards both have all messages, or the client has ended.
fn settle(world: &mut Sea, peer: &mut Peer) {
    world.parts().1.is_settling = true;
    for _ in 0..60 {
        if peer.is_over {
            return;
        }
        if peer.link != Link::Open || Sea::has_closed(&peer.stream) {
            peer.cut(world, 0);
            peer.come_back(world, !8);
        }
        peer.stream.wire().room += 1 << 20;
        peer.event(world, false);
        peer.take(world, usize::MAX, true);
        peer.write(world, usize::MAX);
        let id = peer.id;
        world.parts().0.set_held(id, false);
        // The PONG may be behind messages that wait for it, and then the connection is cut.
        world.pass(Duration::from_secs(1));
        world.take_turn();
        check(world);
        let account = world.service().accounts.get(&id);
        if account.is_some_and(|account| {
            account.taken == peer.letters.len() as u64 && account.sent == peer.received
        }) {
            return;
        }
    }
    let account = world.service().accounts.get(&peer.id);
    assert!(
        account.is_none(),
        "not all has arrived: {account:?} {peer:?}"
    );
}

/// Checks that no cut has ended a client, and stops the server. All clients end.
fn finish(mut world: Sea) {
    for (client, (_, reason)) in &world.service().ended {
        let is_final = match reason.cause {
            Cause::PeerClose => reason.code != CloseCode::GOING_AWAY,
            Cause::SlowConsumer | Cause::NotResumed | Cause::Service => true,
            _ => false,
        };
        assert!(is_final, "{client} ended: {reason}");
    }
    world.parts().0.stop();
    for _ in 0..60 {
        world.pass(Duration::from_secs(1));
        world.take_turn();
    }
    assert!(world.is_over());
    assert_eq!((world.connection_count(), world.kept()), (0, (0, 0)));
    assert!(world.service().accounts.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn clients_that_resume_lose_no_message_whatever_is_cut() {
        let mut random = Random::new(16);
        for _ in 0..3000 {
            resume(&random.bytes(400));
        }
    }
}
