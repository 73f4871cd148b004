//! A client of the model: it numbers its messages, reads what it likes, is cut, and comes back.

use super::{Ledger, number_of, numbered};
use crate::ClientId;
use crate::fuzz::protocol::write_frame;
use crate::server::simulation::World;
use crate::server::simulation::memory_stream::MemoryStream;

/// The state of a client's current connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
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
pub(super) struct Peer {
    /// The client by its token.
    pub(super) id: ClientId,
    /// The id for events of the present connection.
    connection: ClientId,
    pub(super) stream: MemoryStream,
    /// The number of bytes of output that the client has read.
    pub(super) read: usize,
    pub(super) link: Link,
    pub(super) token: String,
    /// The previous token, which may still be valid.
    earlier: String,
    wants_notice: bool,
    /// The number of received messages that the notice must have, while it is awaited.
    notice: Option<usize>,
    /// The messages of the client: the last byte of each.
    pub(super) letters: Vec<u8>,
    /// The number of messages written, on the current connection and earlier ones.
    written: usize,
    pub(super) received: u64,
    /// Payloads of PINGs that are not answered.
    pings: Vec<Vec<u8>>,
    pub(super) is_over: bool,
}

/// The server with its clients.
pub(super) type Sea = World<Ledger>;

impl Peer {
    /// Connects for the first time.
    pub(super) fn arrive(world: &mut Sea, argument: u8) -> Option<Self> {
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

    pub(super) fn event(&self, world: &mut Sea, hung_up: bool) {
        world.event(self.connection, true, true, hung_up);
        world.take_turn();
    }

    /// Comes back, if there is room for another connection.
    pub(super) fn come_back(&mut self, world: &mut Sea, argument: u8) {
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

    /// Reads what has arrived, at most `most` bytes more. `is_latest` says whether a refusal means that the client has
    /// ended.
    pub(super) fn take(&mut self, world: &mut Sea, most: usize, is_latest: bool) {
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
    pub(super) fn doom(&self, world: &mut Sea) {
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
                let is_ending =
                    account.is_none_or(|account| account.is_doomed) || world.service().is_short;
                assert!(is_ending, "{} is refused, but has not ended", self.id);
                self.is_over = true;
            } else {
                // Only a new client is refused because there are as many as allowed.
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

    /// Writes messages that the server has not got on this connection, and at most `cut` bytes in all.
    pub(super) fn write(&mut self, world: &mut Sea, cut: usize) {
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
    pub(super) fn cut(&mut self, world: &mut Sea, how: u8) {
        if self.link == Link::Cut {
            return;
        }
        // A connection whose handshake was not answered may be a new client, whose token is lost.
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
