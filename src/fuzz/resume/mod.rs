//! Clients that resume their connections after any cut, with a whole server in memory under simulated time.
//!
//! The service and each client number their messages. As long as the client has not ended, each message must arrive exactly
//! once and in order on both sides, whatever is cut. A PING must carry the number of messages before it. A client that comes
//! back may be rejected only if it has ended.

mod peer;

use std::collections::BTreeMap;
use std::time::Duration;

use self::peer::{Link, Peer, Sea};
use super::protocol::write_frame;
use crate::protocol::{Cause, CloseCode, CloseReason, Limits, Message, Request};
use crate::server::simulation::World;
use crate::upgrade::Portable;
use crate::{ClientId, Config, Context, ResumeConfig, SendError, Service, ServiceId};

/// The maximum number of clients at once.
const PEERS: usize = 4;

const BUFFER: usize = 6000;
/// Too little for all clients: the server ends some of them.
const MEMORY: usize = 40_000;
const MAX_MESSAGE: usize = 3000;

/// Runs arbitrary operations of resumable clients. Every message arrives once and in order, and every client ends once.
pub fn resume(data: &[u8]) {
    let Some((options, mut plan)) = data.split_first() else {
        return;
    };
    let is_short = options & 2 == 2;
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
        }),
        memory: is_short.then_some(MEMORY),
        max_clients_per_address: (options & 1 == 1).then_some(1000),
        ..Config::default()
    };
    let Ok(mut world) = World::with_service(config, Ledger::new(is_short)) else {
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
        9 if operation >= 208 => {
            world.upgrade().expect("nothing prevents it");
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
            Cause::SlowConsumer | Cause::Memory | Cause::NotResumed | Cause::Service => true,
            _ => false,
        };
        assert!(is_final, "{client} ended: {reason}");
    }
    world.parts().0.stop();
    for _ in 0..60 {
        if world.is_over() {
            break;
        }
        world.pass(Duration::from_secs(1));
        world.take_turn();
    }
    assert!(world.is_over());
    assert_eq!((world.connection_count(), world.kept()), (0, (0, 0)));
    assert!(world.service().accounts.is_empty());
}

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
    /// Whether the server may end any client, because too little memory is left.
    is_short: bool,
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
    fn new(is_short: bool) -> Self {
        Self {
            is_short,
            ..Self::default()
        }
    }

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
        let may_fail = account.is_doomed || account.is_closed || self.is_short;
        assert!(
            sent.is_ok() || may_fail,
            "{client} takes no message: {sent:?}"
        );
    }
}

impl Service for Ledger {
    fn keeps_every_client(&self, _: ServiceId) -> bool {
        true
    }

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

    fn portable(&self) -> Option<&dyn Portable> {
        Some(self)
    }

    fn portable_mut(&mut self) -> Option<&mut dyn Portable> {
        Some(self)
    }
}

impl Portable for Ledger {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    #[test]
    fn clients_that_resume_lose_no_message_whatever_is_cut() {
        let mut random = Random::new(16);
        for _ in 0..rounds(3000) {
            resume(&random.bytes(400));
        }
    }
}
