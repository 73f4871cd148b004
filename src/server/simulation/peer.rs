//! The servers that the recording service connects to. They keep the rules of HTTP and RFC 6455, or break them, as the
//! operations say. What the service sends must be well formed in any case.

use std::net::SocketAddr;
use std::time::Duration;

use super::World;
use super::memory_stream::{Dial, MemoryStream};
use crate::protocol::handshake::accept_key;
use crate::protocol::{OpCode, apply_mask};
use crate::server::event_loop::SocketEvent;
use crate::server::{ClientId, Context};

/// All servers.
#[derive(Debug, Default)]
pub(crate) struct Upstream {
    links: Vec<Link>,
    sessions: Vec<Session>,
}

/// A connection, from its attempt on.
#[derive(Debug)]
struct Link {
    stream: MemoryStream,
    /// What the client has sent and was not handled.
    input: Vec<u8>,
    /// The request that waits for an answer.
    head: Option<String>,
    /// The session, after a 101 response.
    session: Option<usize>,
    /// The payloads of PINGs that were not answered.
    pings: Vec<Vec<u8>>,
    is_tunnelled: bool,
    is_over: bool,
    got_close: bool,
    sent_close: bool,
    /// What the network has not carried yet.
    later: Vec<u8>,
}

/// What a server keeps for a client.
#[derive(Debug, Default)]
struct Session {
    client: Option<ClientId>,
    token: String,
    /// The number of messages received, and the number of the next numbered one.
    received: usize,
    next: u64,
    sent: Vec<Vec<u8>>,
    /// Whether the server has lied, so that messages may be lost or repeated.
    has_lied: bool,
}

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        len @ 0..=125 => bytes.push(len as u8),
        len => {
            bytes.push(126);
            bytes.extend_from_slice(&(len as u16).to_be_bytes());
        }
    }
    bytes.extend_from_slice(payload);
    bytes
}

impl Link {
    fn new(stream: MemoryStream) -> Self {
        Self {
            stream,
            input: Vec::new(),
            head: None,
            session: None,
            pings: Vec::new(),
            is_tunnelled: false,
            is_over: false,
            got_close: false,
            sent_close: false,
            later: Vec::new(),
        }
    }

    /// Sends bytes, behind those that wait.
    fn give(&mut self, bytes: &[u8]) {
        self.later.extend_from_slice(bytes);
        let later = std::mem::take(&mut self.later);
        self.stream.wire().to_server.extend(later);
    }

    /// Handles what the client has sent.
    fn parse(&mut self, sessions: &mut [Session]) {
        let mut sent = std::mem::take(&mut self.stream.wire().from_server);
        self.input.append(&mut sent);
        while !self.input.is_empty() {
            assert_eq!(self.stream.wire().dial, Dial::Connected);
            match self.session {
                None => {
                    if !self.parse_head() {
                        return;
                    }
                }
                Some(session) => {
                    if !self.parse_frame(&mut sessions[session]) {
                        return;
                    }
                }
            }
        }
    }

    fn parse_head(&mut self) -> bool {
        assert!(self.head.is_none(), "nothing precedes the answer");
        let end = self.input.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = end else {
            return false;
        };
        let head = self.input.drain(..end + 4).collect();
        let head = String::from_utf8(head).expect("text");
        if head.starts_with("CONNECT ") {
            assert!(!self.is_tunnelled);
            assert!(
                head.starts_with("CONNECT 10.0.0.1:81 HTTP/1.1\r\nHost: 10.0.0.1:81\r\n")
                    || head.contains("name.example:80")
            );
            assert!(head.contains("\r\nProxy-Authorization: Basic "));
        } else {
            assert!(head.starts_with("GET /x HTTP/1.1\r\nHost: "));
            assert!(!head.contains("Proxy-Authorization"));
            for one in [
                "Upgrade: websocket",
                "Connection: Upgrade",
                "Sec-WebSocket-Version: 13",
            ] {
                assert!(head.contains(&format!("\r\n{one}\r\n")), "{head}");
            }
        }
        self.head = Some(head);
        true
    }

    fn parse_frame(&mut self, session: &mut Session) -> bool {
        let bytes = &self.input;
        let [first, second, ..] = bytes[..] else {
            return false;
        };
        let opcode = OpCode::from_bits(first & 0xf).expect("a defined opcode");
        assert_eq!(
            first & 0xf0,
            0x80,
            "one frame for each message, no reserved bits"
        );
        assert_eq!(second & 0x80, 0x80, "the frame is masked");
        let (header, len) = match second & 0x7f {
            126 if bytes.len() >= 4 => (4, usize::from(u16::from_be_bytes([bytes[2], bytes[3]]))),
            127 if bytes.len() >= 10 => (
                10,
                u64::from_be_bytes(*bytes[2..].first_chunk().expect("8 bytes")) as usize,
            ),
            126 | 127 => return false,
            len => (2, usize::from(len)),
        };
        assert!(header != 4 || len > 125);
        assert!(header != 10 || len > 0xffff);
        if bytes.len() < header + 4 + len {
            return false;
        }
        assert!(!self.got_close, "nothing follows CLOSE");
        let key = *bytes[header..].first_chunk().expect("4 bytes");
        let mut payload: Vec<u8> = self
            .input
            .drain(..header + 4 + len)
            .skip(header + 4)
            .collect();
        apply_mask(&mut payload, key);
        match opcode {
            OpCode::Text | OpCode::Binary => {
                session.received += 1;
                if let Ok(text) = std::str::from_utf8(&payload)
                    && let Some(rest) = text.strip_prefix("n:")
                    && !session.has_lied
                {
                    let number = rest.split(':').next().and_then(|one| one.parse().ok());
                    assert_eq!(number, Some(session.next), "once and in order");
                    session.next += 1;
                }
            }
            OpCode::Ping => {
                assert!(len <= 125);
                self.pings.push(payload);
            }
            OpCode::Close => self.got_close = true,
            OpCode::Pong => assert!(len <= 125),
            OpCode::Continuation => panic!("one frame for each message"),
        }
        true
    }

    fn field(&self, name: &str) -> Option<String> {
        let head = self.head.as_ref()?;
        let mut lines = head.lines();
        let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map(str::to_owned)
    }
}

impl World {
    /// The entry that has this connection now.
    fn owner(&self, link: usize) -> Option<ClientId> {
        let stream = &self.upstream.links.get(link)?.stream;
        let mut clients = self.server.ctx.core.registry.iter();
        let owner = clients.find(|one| {
            one.wire
                .memory_stream()
                .is_some_and(|own| own.is_same(stream))
        });
        owner.map(|client| client.id)
    }

    /// Handles what the service has sent to servers, and compares it with the records of both sides.
    pub(super) fn check_upstream(&mut self) {
        let core = &mut self.server.ctx.core;
        if let Some(dialer) = &mut core.dialer {
            let new = dialer.dialed.drain(..).map(Link::new);
            self.upstream.links.extend(new);
        }
        let Upstream { links, sessions } = &mut self.upstream;
        for link in links.iter_mut().filter(|link| !link.is_over) {
            link.parse(sessions);
        }
        // The server's own copy is the only one that is left.
        links.retain(|link| link.stream.holders() > 1);
        for at in 0..self.upstream.links.len() {
            let (Some(session), Some(owner)) = (self.upstream.links[at].session, self.owner(at))
            else {
                continue;
            };
            let service = &self.server.service;
            if service.ours.open.contains_key(&owner) && !self.upstream.links[at].is_over {
                let session = &mut self.upstream.sessions[session];
                let client = *session.client.get_or_insert(owner);
                assert_eq!(client, owner, "a session has one client");
            }
        }
        let ours = &self.server.service.ours;
        for session in &self.upstream.sessions {
            let heard = session.client.and_then(|client| ours.heard.get(&client));
            if let Some(heard) = heard
                && !session.has_lied
            {
                assert!(heard.len() <= session.sent.len(), "more than was sent");
                assert_eq!(heard[..], session.sent[..heard.len()], "once and in order");
            }
        }
        let core = &self.server.ctx.core;
        let pending = core
            .registry
            .iter()
            .filter(|one| one.wire.protocol.is_outgoing())
            .count();
        let cut = ours.open.values().filter(|cut| **cut).count();
        assert!(
            pending <= ours.connecting.len() + cut,
            "one attempt for each"
        );
        for (client, is_cut) in &ours.open {
            let entry = core.registry.get(*client).expect("it is registered");
            assert_eq!(
                entry.wire.protocol.is_detached(),
                *is_cut,
                "{client} was told of its cut"
            );
        }
    }

    /// Opens a connection for the service.
    pub(crate) fn open_ours(&mut self, argument: u8) {
        self.server
            .act(|server| server.service.ours.connect(&mut server.ctx, argument));
        self.check_upstream();
    }

    /// Says what the service does in its next methods.
    pub(crate) fn plan(&mut self, steps: &[u8]) {
        self.server.service.ours.plan = steps.to_vec();
    }

    /// Lets the service take a step now.
    pub(crate) fn act(&mut self, argument: u8, step: u8) {
        let Some(client) = self.one_of_ours(argument) else {
            return;
        };
        self.server.service.ours.plan.push(step);
        self.server
            .act(|server| server.service.ours.act(&mut server.ctx, client));
    }

    fn one_of_ours(&self, argument: u8) -> Option<ClientId> {
        let ours = &self.server.service.ours;
        let ids: Vec<_> = ours
            .connecting
            .iter()
            .chain(ours.open.keys())
            .copied()
            .collect();
        ids.get(usize::from(argument) % ids.len().max(1)).copied()
    }

    /// Sets what becomes of the next connection at once.
    pub(crate) fn set_dial(&mut self, argument: u8) {
        if let Some(dialer) = &mut self.server.ctx.core.dialer {
            dialer.next =
                [Dial::Connected, Dial::Pending, Dial::Refused][usize::from(argument % 3)];
        }
    }

    /// A name was resolved, or not.
    pub(crate) fn resolve(&mut self, argument: u8) {
        let Some(dialer) = &mut self.server.ctx.core.dialer else {
            return;
        };
        if dialer.resolving.is_empty() {
            return;
        }
        let at = usize::from(argument) % dialer.resolving.len();
        let (id, attempt) = dialer.resolving[at];
        if argument & 0x10 == 0 {
            dialer.resolving.remove(at);
        }
        let resolved = match argument >> 5 {
            0 => Err(std::io::ErrorKind::NotFound.into()),
            1 => Ok(Vec::new()),
            count => Ok((1..count)
                .map(|n| SocketAddr::from(([10, 0, 0, n], 80)))
                .collect()),
        };
        self.server
            .act(|server| server.ctx.core.handle_resolved(id, attempt, resolved));
    }

    fn chosen(&self, argument: u8) -> Option<usize> {
        let count = self.upstream.links.len();
        (count > 0).then(|| usize::from(argument) % count)
    }

    /// Tells the loop about a connection. Without a connection that is chosen by `argument`, does nothing.
    pub(crate) fn link_event(
        &mut self,
        argument: u8,
        readable: bool,
        writable: bool,
        hung_up: bool,
    ) {
        if let Some(id) = self.chosen(argument).and_then(|link| self.owner(link)) {
            let event = SocketEvent {
                readable,
                writable,
                hung_up,
            };
            self.server.act(|server| server.handle_client(id, event));
        }
    }

    /// An attempt succeeds or fails.
    pub(crate) fn establish(&mut self, argument: u8, refuses: bool) {
        let Some(link) = self.chosen(argument) else {
            return;
        };
        {
            let mut wire = self.upstream.links[link].stream.wire();
            if wire.dial == Dial::Pending {
                wire.dial = if refuses {
                    Dial::Refused
                } else {
                    Dial::Connected
                };
            }
        }
        self.link_event(argument, refuses, true, refuses);
    }

    /// A server answers a request.
    pub(crate) fn answer(&mut self, argument: u8, kind: u8) {
        let Some(at) = self.chosen(argument) else {
            return;
        };
        let Upstream { links, sessions } = &mut self.upstream;
        let link = &mut links[at];
        let Some(head) = link.head.clone().filter(|_| !link.is_over) else {
            return;
        };
        if head.starts_with("CONNECT ") {
            link.head = None;
            match kind % 8 {
                0 => link.give(b"HTTP/1.1 407 No\r\nContent-Length: 3\r\n\r\nabc"),
                1 => link.give(b"HTTP/1.1 200 OK\r\n\r\nwhatever\r\n\r\n"),
                2 => link.give(b"HTTP/1.1 503 Busy\r\nRetry-After: 2\r\n\r\n"),
                _ => {
                    link.is_tunnelled = true;
                    link.give(b"HTTP/1.1 200 OK\r\n\r\n");
                }
            }
            return;
        }
        let key = link.field("Sec-WebSocket-Key").expect("a key");
        let accept = String::from_utf8(accept_key(key.as_bytes()).to_vec()).expect("text");
        let asked = link.field("Outrigger-Resume");
        let mut response = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n"
        );
        match kind % 16 {
            10 => {
                let status = [
                    200, 204, 302, 401, 404, 408, 410, 426, 429, 500, 502, 503, 504, 505, 999, 103,
                ];
                let status = status[usize::from(kind >> 4)];
                let after = [
                    "",
                    "Retry-After: 3\r\n",
                    "Retry-After: 99999999999999999999\r\n",
                ];
                let after = after[usize::from(argument >> 4) % 3];
                let length = [
                    "Content-Length: 2\r\n",
                    "",
                    "Transfer-Encoding: chunked\r\n",
                ];
                let length = length[usize::from(argument >> 5) % 3];
                let text = format!("HTTP/1.1 {status} X\r\n{after}{length}\r\n{{}}");
                if status != 103 {
                    link.head = None;
                }
                return link.give(text.as_bytes());
            }
            11 => {
                link.head = None;
                return link.give(response.replace("Accept: ", "Accept: x").as_bytes());
            }
            12 => {
                link.head = None;
                return link.give(&[kind; 300]);
            }
            13 => {
                // The head is too long, or not complete.
                let fields = "X: y\r\n".repeat(usize::from(kind >> 4) * 10);
                return link.give(format!("HTTP/1.1 103 Early\r\n{fields}").as_bytes());
            }
            _ => {}
        }
        link.head = None;
        let back = asked
            .as_ref()
            .and_then(|asked| asked.split_once("; received="));
        let lies = kind % 16 == 14 || kind % 16 == 15;
        let mut resent = Vec::new();
        let session = match back {
            Some((token, received)) => {
                let received: usize = received.parse().expect("a number");
                let known = sessions.iter().position(|one| one.token == token);
                let Some(known) = known.filter(|_| kind % 16 != 9) else {
                    return link.give(b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n");
                };
                let session = &mut sessions[known];
                if !session.has_lied {
                    assert!(received <= session.sent.len(), "more than was sent");
                }
                for message in session.sent.iter().skip(received) {
                    resent.extend(frame(0x82, message));
                }
                known
            }
            None => {
                sessions.push(Session::default());
                sessions.len() - 1
            }
        };
        let count = sessions.len() + usize::from(argument);
        let one = &mut sessions[session];
        one.token = format!("token-{session}-{count}");
        let mut claimed = format!("{}", one.received);
        if lies && back.is_some() {
            one.has_lied = true;
            claimed = match kind >> 4 {
                0 => "99999999999999999999".to_owned(),
                1 => String::new(),
                2 => "-1".to_owned(),
                3 => format!("{}", one.received + 1),
                4 => "0".to_owned(),
                5 => format!("{}", one.received + 1000),
                _ => format!("{}", one.received.saturating_sub(1)),
            };
            one.received = claimed.parse().unwrap_or(one.received);
        }
        if asked.is_some() && !(back.is_none() && kind % 16 == 8) {
            let token = match kind >> 4 {
                7 if lies => "x".repeat(300),
                8 if lies => String::new(),
                9 if lies => "a b".to_owned(),
                _ => one.token.clone(),
            };
            response += &format!("Outrigger-Resume: {token}; received={claimed}\r\n");
        }
        response += "\r\n";
        let mut bytes = response.into_bytes();
        bytes.extend(resent);
        for other in links
            .iter_mut()
            .filter(|other| other.session == Some(session))
        {
            other.is_over = true;
        }
        let link = &mut links[at];
        link.session = Some(session);
        if kind % 16 == 7 {
            bytes.extend(frame(0x88, &[0x03, 0xe8 + (kind >> 4)]));
            link.sent_close = true;
        }
        let cut = if kind % 16 == 6 {
            bytes.len() * usize::from(kind >> 4) / 16
        } else {
            bytes.len()
        };
        link.give(&bytes[..cut]);
        link.later = bytes[cut..].to_vec();
    }

    /// A server sends something on an open connection.
    pub(crate) fn server_sends(&mut self, argument: u8, kind: u8) {
        let Some(at) = self.chosen(argument) else {
            return;
        };
        let Upstream { links, sessions } = &mut self.upstream;
        let link = &mut links[at];
        let Some(session) = link.session.filter(|_| !link.is_over && !link.sent_close) else {
            return link.give(&[]);
        };
        let session = &mut sessions[session];
        let bytes = match kind % 12 {
            0..=3 => {
                let mut text = format!("s:{}:", session.sent.len());
                text.push_str(&"y".repeat([3, 200, 3000, 0][usize::from(kind % 4)]));
                session.sent.push(text.clone().into_bytes());
                frame(0x82, text.as_bytes())
            }
            4 => frame(0x89, b"ping"),
            5 | 6 => {
                let pings = std::mem::take(&mut link.pings);
                pings.iter().flat_map(|ping| frame(0x8a, ping)).collect()
            }
            7 => {
                session.has_lied = true;
                let count = session.received as u64 + u64::from(kind >> 4);
                frame(0x8a, count.to_string().as_bytes())
            }
            8 => {
                link.sent_close = true;
                let code = [
                    1000u16, 1001, 1011, 1012, 1013, 1014, 4000, 1005, 1002, 1006, 999, 5000, 1008,
                    1009, 4001, 3000,
                ];
                frame(0x88, &code[usize::from(kind >> 4)].to_be_bytes())
            }
            9 => {
                link.sent_close = true;
                let wrong: [&[u8]; 6] = [
                    b"\x82\x81abcdx",
                    b"\xc2\x01x",
                    b"\x83\x01x",
                    b"\x80\x01x",
                    b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff",
                    b"\x81\x01\xff",
                ];
                wrong[usize::from(kind >> 4) % 6].to_vec()
            }
            10 => {
                link.sent_close = true;
                link.stream.wire().ended = true;
                Vec::new()
            }
            _ => {
                link.sent_close = true;
                link.is_over = true;
                link.stream.wire().reset = true;
                Vec::new()
            }
        };
        link.give(&bytes);
    }

    /// The connection ends.
    pub(crate) fn end_link(&mut self, argument: u8, resets: bool) {
        if let Some(at) = self.chosen(argument) {
            let link = &mut self.upstream.links[at];
            link.sent_close = true;
            if resets {
                link.is_over = true;
                link.stream.wire().reset = true;
            } else {
                link.stream.wire().ended = true;
            }
            self.link_event(argument, true, resets, true);
        }
    }

    /// Changes the room of a connection's socket.
    pub(crate) fn set_link_room(&mut self, argument: u8, room: usize) {
        if let Some(at) = self.chosen(argument) {
            self.upstream.links[at].stream.wire().room = room;
            self.link_event(argument, false, room > 0, false);
        }
    }

    /// Replaces the access settings.
    pub(crate) fn replace_access(&mut self) {
        let access = crate::server::access::Access {
            tokens: "s3cret".parse().expect("valid"),
            ..Default::default()
        };
        self.server.act(|server| {
            server.ctx.core.replace_access(access);
        });
    }

    /// All servers answer from now on. Checks that each attempt ends, and that all messages arrive.
    pub(crate) fn settle_upstream(&mut self) {
        let settled = |service: &super::Witness| {
            service.ours.connecting.is_empty() && !service.ours.open.values().any(|cut| *cut)
        };
        self.plan(&[]);
        for round in 0..200 {
            self.server.service.ours.plan.clear();
            let again = |ctx: &mut Context, clients: &[ClientId]| {
                ctx.set_paused(false);
                clients
                    .iter()
                    .for_each(|client| ctx.set_held(*client, false));
            };
            let mut clients: Vec<_> = self.server.service.present.iter().copied().collect();
            clients.extend(&self.server.service.ours.connecting);
            self.server.act(|server| again(&mut server.ctx, &clients));
            self.set_dial(0);
            self.resolve(0xe0);
            for at in (0..self.upstream.links.len()).rev() {
                let argument = at as u8;
                {
                    let mut wire = self.upstream.links[at].stream.wire();
                    wire.room = 1 << 20;
                    if wire.dial == Dial::Pending {
                        wire.dial = Dial::Connected;
                    }
                }
                self.answer(argument, 3);
                self.server_sends(argument, 5);
                let link = &mut self.upstream.links[at];
                if link.got_close && !link.sent_close {
                    link.sent_close = true;
                    link.give(&frame(0x88, &[0x03, 0xe8]));
                }
                if link.got_close || link.sent_close {
                    link.stream.wire().ended = true;
                }
                self.link_event(argument, true, true, false);
            }
            self.take_turn();
            self.check();
            if self.is_over() || (round > 20 && settled(&self.server.service)) {
                break;
            }
            self.pass(Duration::from_secs(if round % 4 == 3 { 10 } else { 0 }));
            self.take_turn();
            self.check();
        }
        if self.server.ctx.is_stopping() {
            return;
        }
        let ours = &self.server.service.ours;
        assert!(
            settled(&self.server.service),
            "each attempt has ended: {:?} {:?}",
            ours.connecting,
            ours.open
        );
        let ours = &self.server.service.ours;
        for link in &self.upstream.links {
            let session = link.session.map(|at| &self.upstream.sessions[at]);
            let Some(session) = session.filter(|one| {
                !one.has_lied && !link.is_over && !link.sent_close && !link.got_close
            }) else {
                continue;
            };
            let Some(client) = session.client.filter(|one| ours.open.contains_key(one)) else {
                continue;
            };
            let heard = ours.heard.get(&client).map_or(0, Vec::len);
            assert_eq!(heard, session.sent.len(), "{client} has heard everything");
            let said = ours.said.get(&client).copied().unwrap_or_default();
            assert_eq!(said, session.next, "{client} was heard");
        }
    }
}
