//! The fuzz targets for whole conversations.

use std::time::SystemTime;

use super::protocol::write_frame;
use crate::protocol::deflate::Offer;
use crate::protocol::{
    Accept, CloseCode, CloseReason, FrameCounts, HttpConnection, HttpEvent, HttpState, Input,
    Limits, Message, Payload, Rejection, Request, Response, Shared, State, StatusCode, Time,
    WebSocket,
};

/// A request that opens a WebSocket.
const UPGRADE: &[u8] =
    b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// The time of every response.
const DATE: SystemTime = SystemTime::UNIX_EPOCH;

/// Everything that can be observed of a conversation.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Transcript {
    pub(super) events: Vec<String>,
    messages: usize,
    frames: FrameCounts,
    out: Vec<u8>,
    http: Option<HttpState>,
    websocket: Option<State>,
    close_reason: Option<CloseReason>,
}

/// Runs any conversation. Nothing panics, memory stays within the limits, and the events and the output depend neither on
/// how the bytes are split nor on whether they are read into a room.
pub fn connection(data: &[u8]) {
    let [options, cuts, plan @ ..] = data else {
        return;
    };
    let limits = Limits {
        max_head: 1024,
        max_headers: 64,
        max_message: 300 + usize::from(*options >> 4) * 100,
    };
    let close_after = (options & 1 != 0).then_some(usize::from(*cuts % 4));
    let stream = conversation(options & 2 != 0, plan);
    let shared = || {
        let shared = Shared::new(limits, None);
        if options & 4 == 0 {
            shared.with_small_thresholds()
        } else {
            shared
        }
    };
    let run = |cut: &mut dyn FnMut() -> usize, rooms| {
        converse(&stream, cut, rooms, shared(), close_after)
    };
    let whole = run(&mut || usize::MAX, false);
    assert_eq!(run(&mut || 1, false), whole, "byte by byte");
    let mut random = random_cuts(*cuts, 40);
    assert_eq!(run(&mut random, false), whole, "split at random");
    assert_eq!(run(&mut || usize::MAX, true), whole, "with rooms");
    assert_eq!(run(&mut random, true), whole, "split at random, with rooms");
}

/// Lengths from 1 to `most`, the same ones for the same seed.
pub(super) fn random_cuts(seed: u8, most: usize) -> impl FnMut() -> usize {
    let mut state = u64::from(seed) + 1;
    move || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        1 + (state >> 33) as usize % most
    }
}

impl Transcript {
    /// Records a message. The service closes after the message number `close_after`.
    fn note(
        &mut self,
        payload: Payload<'_>,
        websocket: &mut WebSocket,
        shared: &mut Shared,
        close_after: Option<usize>,
    ) {
        self.events.push(match payload.as_message() {
            Message::Text(text) => format!("text {text}"),
            Message::Binary(bytes) => format!("binary {bytes:?}"),
        });
        payload.recycle(&mut shared.buffers);
        if close_after == Some(self.messages) {
            let reason = CloseReason::by_service(CloseCode::NORMAL, "enough");
            websocket.close(NOW, reason, &mut self.out);
        }
        self.messages += 1;
    }
}

/// The time of every event.
const NOW: Time = Time::from_millis(1);

/// A connection before or after the handshake.
enum Connection {
    Http(HttpConnection),
    WebSocket(WebSocket),
}

/// Feeds the stream to a connection in pieces; with `rooms`, into the room of a message where there is one.
pub(super) fn converse(
    stream: &[u8],
    cut: &mut dyn FnMut() -> usize,
    rooms: bool,
    mut shared: Shared,
    close_after: Option<usize>,
) -> Transcript {
    let mut transcript = Transcript::default();
    let mut connection = Connection::Http(HttpConnection::new(NOW));
    let limits = &shared.limits.clone();
    let mut rest = stream;
    while !rest.is_empty() {
        let len = cut().min(rest.len());
        let room = match &mut connection {
            Connection::WebSocket(websocket) if rooms => websocket.room(&mut shared),
            _ => None,
        };
        let len = room.as_ref().map_or(len, |room| len.min(room.len()));
        let (next, after) = rest.split_at(len);
        rest = after;
        let mut piece = Vec::new();
        let mut input = if let Some(room) = room {
            room[..len].copy_from_slice(next);
            Input::placed(len)
        } else {
            piece.extend_from_slice(next);
            Input::new(&mut piece)
        };
        loop {
            match &mut connection {
                Connection::Http(http) => {
                    let Some(event) = http.receive(NOW, &mut input, limits) else {
                        break;
                    };
                    if let Some(websocket) = answer(http, event, &shared, &mut transcript) {
                        connection = Connection::WebSocket(websocket);
                    }
                }
                Connection::WebSocket(websocket) => {
                    let out = &mut transcript.out;
                    match websocket.receive(NOW, &mut input, &mut shared, out) {
                        Some(payload) => {
                            transcript.note(payload, websocket, &mut shared, close_after)
                        }
                        None if websocket.is_inflating() => {}
                        None => break,
                    }
                }
            }
        }
        assert!(input.is_empty(), "nothing is left over");
        let held = match &connection {
            Connection::Http(http) => http.held(),
            Connection::WebSocket(websocket) => websocket.held() + websocket.held_by_codec(),
        };
        let most = 2 * limits.max_message.max(limits.max_head) + decompressor(&shared);
        assert!(held <= most, "memory is within the limits");
    }
    transcript.frames = shared.frames;
    match connection {
        Connection::Http(http) => transcript.http = Some(http.state()),
        Connection::WebSocket(websocket) => {
            transcript.websocket = Some(websocket.state());
            transcript.close_reason = websocket.close_reason().cloned();
        }
    }
    transcript
}

/// Answers a request as a server does. Returns the WebSocket if the request is accepted as one.
fn answer(
    http: &mut HttpConnection,
    event: HttpEvent<'_>,
    shared: &Shared,
    transcript: &mut Transcript,
) -> Option<WebSocket> {
    match event {
        HttpEvent::Proxied(_) => unreachable!("no PROXY protocol header is expected"),
        HttpEvent::Head(head) => match answer_head(http, &head, shared, transcript) {
            Ok(websocket) => return websocket,
            Err(rejection) => {
                transcript.events.push(format!("rejected {rejection}"));
                http.reject(NOW, DATE.into(), &rejection, &mut transcript.out);
            }
        },
        HttpEvent::Call { head, body } => {
            assert!(body.len() <= shared.limits.max_message);
            let request = Request::parse(&head).expect("parsed before");
            let path = request.path();
            transcript.events.push(format!("call {path} {body:?}"));
            http.respond(NOW, DATE.into(), &ok(), &mut transcript.out);
        }
        HttpEvent::BadRequest(rejection) => {
            transcript.events.push(format!("bad request {rejection}"));
            http.reject(NOW, DATE.into(), &rejection, &mut transcript.out);
        }
    }
    None
}

/// The memory that a connection may hold beside its message.
fn decompressor(shared: &Shared) -> usize {
    if shared.compression.is_some() {
        64 << 10
    } else {
        0
    }
}

fn answer_head(
    http: &mut HttpConnection,
    head: &[u8],
    shared: &Shared,
    transcript: &mut Transcript,
) -> Result<Option<WebSocket>, Rejection> {
    let request = Request::parse(head)?;
    let out = &mut transcript.out;
    let origin = request
        .header("origin")
        .map(|origin| String::from_utf8_lossy(origin));
    http.begin_request(&request, origin.as_deref());
    if request.wants_websocket() {
        let upgrade = request.upgrade()?;
        transcript.events.push(format!("upgrade {upgrade:?}"));
        let offer = Offer::find(&request)?;
        let codec = shared.compression.as_ref().zip(offer);
        let codec = codec.map(|(compression, offer)| compression.accept(offer));
        let websocket = WebSocket::accept(NOW, &upgrade, &Accept::default(), codec, out);
        return Ok(Some(websocket));
    }
    if http.begin_call(NOW, &request, head, shared.limits.max_message, out)? {
        transcript.events.push(format!("call {}", request.path()));
        if request.path() == "/stream" {
            http.begin_stream(
                NOW,
                DATE.into(),
                &[("Content-Type", "text/event-stream")],
                out,
            );
            // The answer to HEAD ends after its head.
            if http.state() == HttpState::Streaming {
                http.stream(NOW, b"data: x\n\n", out);
                http.end_stream(NOW, out);
            }
        } else {
            http.respond(NOW, DATE.into(), &ok(), out);
        }
    }
    Ok(None)
}

fn ok() -> Response {
    Response::json(StatusCode::OK, "{\"ok\":true}")
}

/// Runs any sequence of calls. Every body arrives as it was sent, however it is split into chunks and reads. Everything
/// else is rejected.
pub fn calls(data: &[u8]) {
    let [options, plan @ ..] = data else {
        return;
    };
    let limits = Limits {
        max_head: 1024,
        max_headers: 64,
        max_message: 600,
    };
    let mut stream = Vec::new();
    let mut sent = Vec::new();
    let mut rest = plan;
    while let [kind, len, after @ ..] = rest {
        let (bytes, after) = after.split_at(usize::from(*len).min(after.len()));
        rest = after;
        if kind & 0xf0 == 0xf0 {
            // Arbitrary bytes. Later results are not checked.
            stream.extend_from_slice(bytes);
            sent.push(None);
            continue;
        }
        let version = if kind & 0x40 == 0 { 1 } else { 0 };
        let close = if kind & 0x20 == 0 {
            ""
        } else {
            "Connection: close\r\n"
        };
        let head = format!("POST /{len} HTTP/1.{version}\r\nHost: h\r\n{close}");
        stream.extend_from_slice(head.as_bytes());
        if kind & 1 == 0 || version == 0 {
            stream.extend_from_slice(format!("Content-Length: {}\r\n\r\n", bytes.len()).as_bytes());
            stream.extend_from_slice(bytes);
        } else {
            stream.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            for chunk in bytes.chunks(1 + usize::from(kind >> 1 & 7) * 5) {
                stream.extend_from_slice(format!("{:X};x=y\r\n", chunk.len()).as_bytes());
                stream.extend_from_slice(chunk);
                stream.extend_from_slice(b"\r\n");
            }
            stream.extend_from_slice(b"0\r\nTrailer: z\r\n\r\n");
        }
        sent.push(Some((format!("/{len}"), bytes, kind & 0x60 != 0)));
    }
    let run = |cut: &mut dyn FnMut() -> usize| {
        converse(&stream, cut, false, Shared::new(limits, None), None)
    };
    let whole = run(&mut || usize::MAX);
    assert_eq!(run(&mut || 1), whole, "byte by byte");
    let step = 1 + usize::from(*options);
    assert_eq!(run(&mut || step), whole, "{step} bytes at a time");
    // Up to the first arbitrary bytes, each call arrives as it was sent.
    for (at, call) in sent.iter().enumerate() {
        let Some((path, bytes, last)) = call else {
            break;
        };
        let seen = whole.events.get(at).expect("the call arrives");
        assert!(
            *seen == format!("call {path} {bytes:?}")
                || (bytes.is_empty() && *seen == format!("call {path}"))
                || (bytes.is_empty() && *seen == format!("call {path} []")),
            "{seen}"
        );
        if *last {
            assert_eq!(whole.events.len(), at + 1, "no call follows the last one");
            break;
        }
    }
}

/// Turns a plan into the bytes of a client. Most frames are valid, since random bytes would fail at the first frame.
fn conversation(handshake: bool, mut plan: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    if handshake {
        let head_len = usize::from(plan.first().copied().unwrap_or(0)) * 2;
        let (head, rest) = plan.split_at(head_len.min(plan.len()));
        stream.extend_from_slice(head);
        plan = rest;
    } else {
        stream.extend_from_slice(UPGRADE);
    }
    while let [kind, len, rest @ ..] = plan {
        plan = rest;
        let (payload, after) = plan.split_at(usize::from(*len).min(plan.len()));
        if *kind >= 0xf0 {
            stream.extend_from_slice(payload);
            plan = after;
            continue;
        }
        let opcode = [0x0, 0x1, 0x2, 0x8, 0x9, 0xa, 0x1, 0x0][usize::from(kind & 7)];
        // Repeating the payload gives lengths of every form from short plans.
        let payload = payload.repeat(1 + usize::from(kind >> 3 & 3));
        write_frame(kind & 0x80 == 0, opcode, &payload, &mut stream);
        plan = after;
    }
    stream
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    #[test]
    fn generated_calls() {
        let mut random = Random::new(31);
        for _ in 0..rounds(3000) {
            calls(&random.bytes(500));
        }
    }

    #[test]
    fn an_answer_to_head_is_not_streamed() {
        let request = b"HEAD /stream HTTP/1.1\r\nHost: h\r\n\r\n";
        let data = [&[7, 0xf0, request.len() as u8], &request[..]].concat();
        calls(&data);
    }

    #[test]
    fn generated_conversations() {
        let mut random = Random::new(3);
        for _ in 0..rounds(5000) {
            connection(&random.bytes(400));
        }
    }

    #[test]
    fn a_tls_handshake_is_recognized_however_it_is_split() {
        // The bug: the first two bytes had to arrive together.
        connection(&[2, 7, 22, 3, 3, 3, 2, 3, 237, 3, 0]);
    }

    /// The bug: no test ran the fast paths at the thresholds of release builds.
    #[test]
    fn thresholds_and_splits_do_not_change_a_conversation() {
        let mut random = Random::new(4);
        for round in 0..rounds(60) as u8 {
            let mut stream = UPGRADE.to_vec();
            for _ in 0..6 {
                // Lengths around the thresholds of release builds: 128 KiB for rooms, 64 KiB for kept buffers.
                let len = match random.below(4) {
                    0 => random.below(200),
                    1 => (60 << 10) + random.below(10 << 10),
                    _ => (120 << 10) + random.below(200 << 10),
                };
                let opcode = 1 + u8::from(random.below(4) > 0);
                let payload: Vec<u8> = (0..len).map(|at| (at % 0x7f) as u8).collect();
                let cut = random.below(payload.len() + 1);
                match random.below(4) {
                    0 => {
                        write_frame(false, opcode, &payload[..cut], &mut stream);
                        write_frame(true, 9, b"ping", &mut stream);
                        write_frame(true, 0, &payload[cut..], &mut stream);
                    }
                    // A continuation without a message.
                    1 if random.below(8) == 0 => write_frame(true, 0, &payload, &mut stream),
                    _ => write_frame(true, opcode, &payload, &mut stream),
                }
            }
            let limits = Limits::default().with_max_message(300 << 10);
            let run = |cut: &mut dyn FnMut() -> usize, rooms, small: bool| {
                let shared = Shared::new(limits, None);
                let shared = if small {
                    shared.with_small_thresholds()
                } else {
                    shared
                };
                converse(&stream, cut, rooms, shared, None)
            };
            let whole = run(&mut || usize::MAX, false, false);
            assert!(whole.messages > 0 || whole.close_reason.is_some());
            for small in [false, true] {
                for rooms in [false, true] {
                    let mut cuts = random_cuts(round, 64 << 10);
                    let got = run(&mut cuts, rooms, small);
                    assert!(got == whole, "round {round}: {rooms}, {small}");
                }
            }
            if round == 0 {
                assert!(run(&mut || 1, true, false) == whole, "byte by byte");
                assert!(run(&mut || 1, true, true) == whole, "byte by byte");
            }
        }
    }
}
