//! The fuzz targets for the protocol.

use crate::protocol::deflate::Offer;
use crate::protocol::http::find_end;
use crate::protocol::{
    Accept, CloseCode, CloseReason, FrameCounts, FrameHeader, HttpConnection, HttpEvent, HttpState,
    Input, Limits, Message, Payload, ProtocolError, Rejection, Request, Response, Shared, State,
    StatusCode, Time, WebSocket, apply_mask,
};

/// A request that opens a WebSocket.
const UPGRADE: &[u8] =
    b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// The time of every event, as an HTTP date.
const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

/// Any bytes as a request head: the end of the head does not depend on how the bytes are split, and parsing the head
/// does not panic.
pub fn handshake(data: &[u8]) {
    let limit = 4096;
    let whole = find_end(b"", data, limit);
    for cut in (0..data.len()).step_by(1 + data.len() / 64) {
        let (held, fresh) = data.split_at(cut);
        let first = find_end(b"", held, limit);
        if first == Ok(None) {
            assert_eq!(
                find_end(held, fresh, limit).map(|end| end.map(|end| end + cut)),
                whole,
                "split at {cut}"
            );
        } else {
            assert_eq!(first, whole, "the result is known before {cut}");
        }
    }

    let head = whole.ok().flatten().map_or(data, |end| &data[..end]);
    let Ok(request) = Request::parse(head) else {
        return;
    };
    let mut out = Vec::new();
    match request.upgrade() {
        Ok(upgrade) => {
            assert!(request.header("host").is_some() && request.method() == "GET");
            upgrade.write_response(&Accept::default().protocol("chat"), &mut out);
            assert!(out.starts_with(b"HTTP/1.1 101 ") && out.ends_with(b"\r\n\r\n"));
        }
        Err(rejection) => {
            rejection.write_response(DATE, &mut out);
            assert!(out.starts_with(b"HTTP/1.1 4") || out.starts_with(b"HTTP/1.1 5"));
        }
    }
    assert_eq!(
        find_end(b"", &out, limit).map(|end| end.is_some()),
        Ok(true),
        "the response head is well formed"
    );
}

/// Any bytes as a frame header: every prefix gives the same result, which is that of a naive parser.
pub fn frame_header(data: &[u8]) {
    let data = &data[..data.len().min(16)];
    let whole = FrameHeader::parse(data, false);
    assert_eq!(
        whole.map(|header| header.map(|(header, len)| (header.payload_len, len))),
        naive_header(data)
    );
    for cut in 0..data.len() {
        let early = FrameHeader::parse(&data[..cut], false);
        assert!(
            early == Ok(None) || early == whole,
            "split at {cut}: {early:?}, {whole:?}"
        );
    }
}

/// Parses a frame header bit by bit, as in the figure of RFC 6455 section 5.2.
fn naive_header(data: &[u8]) -> Result<Option<(u64, usize)>, ProtocolError> {
    let bit = |at: usize| data[at / 8] >> (7 - at % 8) & 1;
    let bits =
        |from: usize, to: usize| (from..to).fold(0u64, |value, at| value << 1 | u64::from(bit(at)));
    if data.is_empty() {
        return Ok(None);
    }
    let opcode = bits(4, 8) as u8;
    if bits(1, 4) != 0 {
        return Err(ProtocolError::ReservedBits);
    }
    if !matches!(opcode, 0 | 1 | 2 | 8 | 9 | 10) {
        return Err(ProtocolError::ReservedOpcode(opcode));
    }
    if opcode >= 8 && bit(0) == 0 {
        return Err(ProtocolError::FragmentedControl);
    }
    if data.len() < 2 {
        return Ok(None);
    }
    if bit(8) == 0 {
        return Err(ProtocolError::Unmasked);
    }
    let short = bits(9, 16);
    if opcode >= 8 && short > 125 {
        return Err(ProtocolError::ControlTooLong);
    }
    let (length_bytes, least) = [(0, 0), (2, 126), (8, 65536)][short.saturating_sub(125) as usize];
    if length_bytes == 8 && data.len() > 2 && bit(16) == 1 {
        return Err(ProtocolError::LengthTopBit);
    }
    if data.len() < 2 + length_bytes {
        return Ok(None);
    }
    let length = if length_bytes == 0 {
        short
    } else {
        bits(16, 16 + 8 * length_bytes)
    };
    if length < least {
        return Err(ProtocolError::NonMinimalLength);
    }
    let total = 2 + length_bytes + 4;
    Ok((data.len() >= total).then_some((length, total)))
}

/// Any bytes as a PROXY protocol header: neither the address nor the bytes left for the request depend on how the bytes
/// are split.
pub fn proxy_header(data: &[u8]) {
    let read = |piece: usize| {
        let now = Time::from_millis(1);
        let mut connection = HttpConnection::new(now);
        connection.expect_proxy_header();
        let limits = Limits::default();
        let mut rest = data;
        while !rest.is_empty() {
            let (next, after) = rest.split_at(piece.min(rest.len()));
            rest = after;
            let mut next = next.to_vec();
            let mut input = Input::new(&mut next);
            match connection.receive(now, &mut input, &limits) {
                Some(HttpEvent::Proxied(address)) => {
                    if let Some(address) = address {
                        assert!(!address.ip().to_canonical().is_unspecified());
                    }
                    return Some(Ok((address, input.len() + rest.len())));
                }
                Some(HttpEvent::BadRequest(rejection)) => return Some(Err(rejection)),
                Some(event) => unreachable!("{event:?} before the header"),
                None => {}
            }
            assert!(connection.held() <= 2 * 4096);
        }
        None
    };
    let whole = read(usize::MAX);
    for piece in [1, 7, 16] {
        assert_eq!(read(piece), whole, "in pieces of {piece}");
    }
}

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

/// Any conversation: no panic, memory within the limits, and the same events and output however the bytes are split and
/// whether they are read into a room.
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
            Connection::WebSocket(websocket) => websocket.held(),
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
                http.reject(NOW, DATE, &rejection, &mut transcript.out);
            }
        },
        HttpEvent::Call { head, body } => {
            assert!(body.len() <= shared.limits.max_message);
            let request = Request::parse(&head).expect("parsed before");
            let path = request.path();
            transcript.events.push(format!("call {path} {body:?}"));
            http.respond(NOW, DATE, &ok(), &mut transcript.out);
        }
        HttpEvent::BadRequest(rejection) => {
            transcript.events.push(format!("bad request {rejection}"));
            http.reject(NOW, DATE, &rejection, &mut transcript.out);
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
            http.begin_stream(NOW, DATE, &[("Content-Type", "text/event-stream")], out);
            http.stream(NOW, b"data: x\n\n", out);
            http.end_stream(NOW, out);
        } else {
            http.respond(NOW, DATE, &ok(), out);
        }
    }
    Ok(None)
}

fn ok() -> Response {
    Response::json(StatusCode::OK, "{\"ok\":true}")
}

/// Any sequence of calls: every body arrives as it was sent, however it is split into chunks and reads. Anything else is
/// rejected.
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
            // Arbitrary bytes. The result of what follows is not checked.
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

/// Appends a frame of a client.
pub(crate) fn write_frame(fin: bool, opcode: u8, payload: &[u8], out: &mut Vec<u8>) {
    write_frame_with(u8::from(fin) << 7 | opcode, payload, out);
}

/// Appends a frame of a client with this first byte.
pub(crate) fn write_frame_with(first: u8, payload: &[u8], out: &mut Vec<u8>) {
    out.push(first);
    match payload.len() {
        len @ 0..=125 => out.push(0x80 | len as u8),
        len @ 126..=0xffff => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    let key = [0x37, 0xfa, 0x21, 0x3d];
    out.extend_from_slice(&key);
    let start = out.len();
    out.extend_from_slice(payload);
    apply_mask(&mut out[start..], key);
}

/// Checks the frames that a server sent: they are unmasked, only the last one is incomplete, and nothing follows CLOSE.
/// Returns the number of data messages.
#[cfg(feature = "server")]
pub(crate) fn check_server_frames(mut bytes: &[u8]) -> usize {
    let mut messages = 0;
    while let [first, second, ..] = bytes {
        let opcode = crate::protocol::OpCode::from_bits(first & 0xf).expect("a defined opcode");
        assert_eq!(
            first & 0xf0,
            0x80,
            "one frame per message, no reserved bits"
        );
        assert_eq!(second & 0x80, 0, "the frame is unmasked");
        let (header, len) = match second & 0x7f {
            126 if bytes.len() >= 4 => (4, usize::from(u16::from_be_bytes([bytes[2], bytes[3]]))),
            127 if bytes.len() >= 10 => (
                10,
                u64::from_be_bytes(*bytes[2..].first_chunk().expect("8 bytes")) as usize,
            ),
            126 | 127 => return messages,
            len => (2, usize::from(len)),
        };
        if bytes.len() < header + len {
            return messages;
        }
        bytes = &bytes[header + len..];
        if opcode == crate::protocol::OpCode::Close {
            assert!(bytes.is_empty(), "nothing after CLOSE");
        }
        messages += usize::from(!opcode.is_control());
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn generated_handshakes() {
        let mut random = Random::new(1);
        let good: &[u8] =
            b"GET /a HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
        for _ in 0..3000 {
            let mut data = good.to_vec();
            for _ in 0..random.below(4) {
                let at = random.below(data.len());
                data[at] = random.byte();
            }
            handshake(&data);
            handshake(&random.bytes(200));
        }
    }

    #[test]
    fn generated_frame_headers() {
        let mut random = Random::new(2);
        for first in 0..=255 {
            for second in 0..=255 {
                let mut data = random.bytes(16);
                data.splice(..data.len().min(2), [first, second]);
                frame_header(&data);
                data.iter_mut().skip(2).take(6).for_each(|byte| *byte = 0);
                frame_header(&data);
            }
        }
    }

    #[test]
    fn generated_proxy_headers() {
        let mut random = Random::new(41);
        let text = b"PROXY TCP4 192.0.2.1 10.0.0.1 51000 80\r\nGET / HTTP/1.1\r\n";
        let binary = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0cGET /";
        for good in [&text[..], binary] {
            proxy_header(good);
            for _ in 0..3000 {
                let mut data = good.to_vec();
                for _ in 0..random.below(3) {
                    let at = random.below(data.len());
                    data[at] = random.byte();
                }
                proxy_header(&data);
            }
        }
    }

    #[test]
    fn generated_calls() {
        let mut random = Random::new(31);
        for _ in 0..3000 {
            calls(&random.bytes(500));
        }
    }

    #[test]
    fn generated_conversations() {
        let mut random = Random::new(3);
        for _ in 0..5000 {
            connection(&random.bytes(400));
        }
    }

    /// The bug: no test ran the fast paths at the thresholds of release builds.
    #[test]
    fn thresholds_and_splits_do_not_change_a_conversation() {
        let mut random = Random::new(4);
        for round in 0..60u8 {
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
