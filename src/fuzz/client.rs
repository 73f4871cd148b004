//! The fuzz target for the client's side of the protocol.

use std::collections::VecDeque;

use crate::protocol::client::{ClientEvent, ClientHandshake, HandshakeRequest, ResponseHead};
use crate::protocol::deflate::{Codec, Compression};
use crate::protocol::{
    Accept, CloseReason, HttpConnection, HttpEvent, Input, Limits, Message, Request, Shared, State,
    Time, WebSocket,
};

const NOW: Time = Time::from_millis(1);

/// Masking keys that are the same in each run.
fn keys(bytes: &mut [u8]) {
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = (at * 37 + 11) as u8;
    }
}

/// The client's side: with any bytes from the server, the events do not depend on how they are split. With a server, each
/// side gets what the other one has sent, for any cuts.
pub fn client(data: &[u8]) {
    match data {
        [options, rest @ ..] if options & 1 == 0 => converse(options >> 1, rest),
        [options, cut, rest @ ..] => any_server(options >> 1, usize::from(*cut) + 1, rest),
        _ => {}
    }
}

#[cfg(feature = "deflate")]
fn compression(on: bool) -> Option<Compression> {
    use crate::protocol::deflate::DeflateConfig;
    on.then(|| {
        Compression::new(DeflateConfig {
            min: Some(8),
            ..DeflateConfig::default()
        })
    })
}

#[cfg(not(feature = "deflate"))]
fn compression(_: bool) -> Option<Compression> {
    None
}

/// The state that the connections of one side share.
fn shared(deflate: bool) -> Shared {
    let limits = Limits::default().with_max_message(64 << 10);
    Shared::new(limits, compression(deflate)).with_small_thresholds()
}

fn request(deflate: bool) -> HandshakeRequest {
    let request = HandshakeRequest::new("h", "/x").with_protocol("one");
    if deflate {
        request.with_deflate()
    } else {
        request
    }
}

/// Bytes from a server that may be anything: what the client makes of them.
fn any_server(options: u8, cut: usize, bytes: &[u8]) {
    let deflate = options & 1 != 0;
    // Most bytes are no valid response, so half of the runs begin behind one.
    let mut response = Vec::new();
    if options & 2 != 0 {
        let mut out = Vec::new();
        let (_, _) = accept(
            &requested(&mut ClientHandshake::default(), deflate),
            deflate,
            &mut out,
        );
        response = out;
    }
    response.extend_from_slice(bytes);
    let whole = hear(&response, usize::MAX, deflate);
    assert_eq!(
        hear(&response, cut, deflate),
        whole,
        "splitting has no effect"
    );
}

fn requested(handshake: &mut ClientHandshake, deflate: bool) -> Vec<u8> {
    let mut out = Vec::new();
    handshake.request(*b"the sample nonce", &request(deflate), &mut out);
    out
}

/// What a client makes of the bytes of a server, in pieces of `cut` bytes.
fn hear(bytes: &[u8], cut: usize, deflate: bool) -> (Vec<String>, Vec<u8>) {
    let (mut events, mut out) = (Vec::new(), Vec::new());
    let mut shared = shared(deflate);
    let mut handshake = ClientHandshake::default();
    requested(&mut handshake, deflate);
    let mut open: Option<WebSocket> = None;
    let mut has_failed = false;
    for piece in bytes.chunks(cut) {
        let mut piece = piece.to_vec();
        let mut input = Input::new(&mut piece);
        while !input.is_empty() {
            let Some(socket) = &mut open else {
                match handshake.receive(&mut input, 512) {
                    Some(ClientEvent::Opened { head, agreement }) => {
                        assert!(ResponseHead::parse(&head).is_some_and(|one| one.status() == 101));
                        let codec = shared.compression.as_ref().zip(agreement);
                        let codec = codec.map(|(one, agreed)| one.connect(agreed));
                        open = Some(WebSocket::connect(NOW, codec, keys));
                    }
                    Some(event) => {
                        assert!(!has_failed, "there is one error");
                        events.push(format!("{event:?}"));
                        has_failed = true;
                        assert!(input.is_empty());
                    }
                    None => assert!(input.is_empty()),
                }
                continue;
            };
            receive(socket, &mut input, &mut shared, &mut out, |message| {
                events.push(format!("{message:?}"));
            });
            let most = 3 * shared.limits.max_message + (512 << 10);
            let held = socket.held() + socket.held_by_codec();
            assert!(held <= most, "{held} bytes are held");
        }
    }
    match &open {
        Some(socket) => events.push(format!("{:?} {:?}", socket.state(), socket.close_reason())),
        None if !has_failed => events.push(handshake.handle_end().to_string()),
        None => {}
    }
    (events, out)
}

/// Receives all messages in the input.
fn receive(
    socket: &mut WebSocket,
    input: &mut Input<'_>,
    shared: &mut Shared,
    out: &mut Vec<u8>,
    mut heard: impl FnMut(Message<'_>),
) {
    loop {
        match socket.receive(NOW, input, shared, out) {
            Some(payload) => {
                heard(payload.as_message());
                payload.recycle(&mut shared.buffers);
            }
            None if socket.is_inflating() => {}
            None => break,
        }
    }
    assert!(input.is_empty());
}

/// The server's side accepts a request.
fn accept(request: &[u8], deflate: bool, out: &mut Vec<u8>) -> (WebSocket, Shared) {
    let shared = shared(deflate);
    let mut request = request.to_vec();
    let mut http = HttpConnection::new(NOW);
    let event = http.receive(NOW, &mut Input::new(&mut request), &shared.limits);
    let Some(HttpEvent::Head(head)) = event else {
        panic!("the request of a client is complete");
    };
    let request = Request::parse(&head).expect("the request of a client is valid");
    let upgrade = request.upgrade().expect("the request is a handshake");
    let (codec, accept) = negotiate(&request, &shared);
    let socket = WebSocket::accept(NOW, &upgrade, &accept.protocol("one"), codec, out);
    (socket, shared)
}

#[cfg(feature = "deflate")]
fn negotiate(request: &Request<'_>, shared: &Shared) -> (Option<Codec>, Accept) {
    let offer = crate::protocol::deflate::Offer::find(request).expect("the offer is valid");
    let agreed = shared
        .compression
        .as_ref()
        .zip(offer)
        .map(|(one, offer)| one.accept(offer));
    let Some(codec) = agreed else {
        return (None, Accept::default());
    };
    let value = codec.agreement().to_string();
    let accept = Accept::default().field("Sec-WebSocket-Extensions", value);
    (Some(codec), accept.expect("an agreement is a valid field"))
}

#[cfg(not(feature = "deflate"))]
fn negotiate(_: &Request<'_>, _: &Shared) -> (Option<Codec>, Accept) {
    (None, Accept::default())
}

/// One side of a conversation.
struct Side {
    socket: WebSocket,
    shared: Shared,
    /// The bytes that the other side has not received.
    wire: Vec<u8>,
    /// The messages that the other side has not received.
    said: VecDeque<(bool, Vec<u8>)>,
}

impl Side {
    fn say(&mut self, kind: u8, len: u8) {
        let byte = b'a' + kind % 26;
        let len = usize::from(len) * usize::from(len) / 4;
        let payload: Vec<u8> = (0..len)
            .map(|at| if at % 7 == 0 { byte } else { b'x' })
            .collect();
        let is_text = kind & 1 == 0;
        let message = match std::str::from_utf8(&payload) {
            Ok(text) if is_text => Message::Text(text),
            _ => Message::Binary(&payload),
        };
        if self.socket.is_open() {
            self.socket.send(message, &mut self.shared, &mut self.wire);
            self.said.push_back((is_text, payload));
        }
    }

    /// Receives up to `count` bytes from the other side.
    fn hear(&mut self, other: &mut Self, count: usize) {
        let mut bytes: Vec<u8> = other.wire.drain(..count.min(other.wire.len())).collect();
        let (socket, shared, wire) = (&mut self.socket, &mut self.shared, &mut self.wire);
        receive(
            socket,
            &mut Input::new(&mut bytes),
            shared,
            wire,
            |message| {
                let said = other.said.pop_front().expect("the other side has sent it");
                let is_text = matches!(message, Message::Text(_));
                assert_eq!((is_text, message.as_bytes()), (said.0, &*said.1));
            },
        );
    }
}

/// A client and a server that talk to each other.
fn converse(options: u8, plan: &[u8]) {
    let deflate = options & 1 != 0;
    let mut handshake = ClientHandshake::default();
    let request = requested(&mut handshake, deflate);
    let mut response = Vec::new();
    let (socket, shared_by_server) = accept(&request, deflate && options & 2 == 0, &mut response);
    let mut input = Input::new(&mut response);
    let opened = handshake.receive(&mut input, 1 << 10);
    let Some(ClientEvent::Opened { agreement, .. }) = opened else {
        panic!("the response of a server is valid: {opened:?}");
    };
    assert!(input.is_empty());
    let shared_by_client = shared(deflate);
    let codec = shared_by_client.compression.as_ref().zip(agreement);
    let codec = codec.map(|(one, agreed)| one.connect(agreed));
    let side = |socket, shared| Side {
        socket,
        shared,
        wire: Vec::new(),
        said: VecDeque::new(),
    };
    let mut server = side(socket, shared_by_server);
    let mut client = side(WebSocket::connect(NOW, codec, keys), shared_by_client);
    let mut was_closed = false;
    for step in plan.chunks_exact(2) {
        let (op, arg) = (step[0], step[1]);
        let (one, other) = if op & 0x80 == 0 {
            (&mut client, &mut server)
        } else {
            (&mut server, &mut client)
        };
        match op & 0x7f {
            0..40 => one.say(op, arg),
            40..110 => one.hear(other, usize::from(arg) * 3 + 1),
            110..120 => one.socket.ping(NOW, u64::from(arg), &mut one.wire),
            _ if arg < 40 => {
                was_closed = true;
                let reason = CloseReason::by_service(crate::CloseCode::NORMAL, "done");
                one.socket.close(NOW, reason, &mut one.wire);
            }
            _ => {}
        }
    }
    while !client.wire.is_empty() || !server.wire.is_empty() {
        client.hear(&mut server, usize::MAX);
        server.hear(&mut client, usize::MAX);
    }
    for side in [&client, &server] {
        if was_closed {
            assert_eq!(side.socket.state(), State::Closed);
        } else {
            assert!(side.socket.is_open(), "{:?}", side.socket.close_reason());
            assert!(side.said.is_empty(), "every message has arrived");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::random::{Random, rounds};

    #[test]
    fn a_client_and_a_server_understand_each_other() {
        let mut random = Random::new(23);
        for _ in 0..rounds(2000) {
            super::client(&random.bytes(200));
        }
    }
}
