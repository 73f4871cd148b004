//! Entry points of the fuzz targets for the protocol. The unit tests run them too, on bytes of a small generator.

use super::deflate::Offer;
use super::http::find_end;
use super::{
    Accept, CloseReason, Connection, Event, FrameCounts, FrameHeader, Input, Limits, Payload,
    Phase, ProtocolError, Rejection, Request, Response, Shared, StatusCode, Time, apply_mask,
    take_whole_message,
};

/// It is always the same time here.
const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

/// Any bytes as a request head: the end is found wherever the bytes are cut, and judging it never panics.
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
                "cut at {cut}"
            );
        } else {
            assert_eq!(first, whole, "decided before {cut}");
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
        "our own heads are well formed"
    );
}

/// Any bytes as a frame header: the same outcome for every prefix, and the one that the RFC's own words give.
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
            "cut at {cut}: {early:?}, {whole:?}"
        );
    }
}

/// A frame header read field by field, as section 5.2 draws it.
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

/// Any bytes as the header of the PROXY protocol: the same address, and the same bytes left for the request, wherever
/// they are cut.
pub fn proxy_header(data: &[u8]) {
    let read = |piece: usize| {
        let now = Time::from_millis(1);
        let mut connection = Connection::new(now);
        connection.expect_proxy_header();
        let (mut shared, mut out) = (Shared::default(), Vec::new());
        let mut rest = data;
        while !rest.is_empty() {
            let (next, after) = rest.split_at(piece.min(rest.len()));
            rest = after;
            let mut next = next.to_vec();
            let mut input = Input::new(&mut next);
            match connection.receive(now, &mut input, &mut shared, &mut out) {
                Some(Event::Proxied(address)) => {
                    if let Some(address) = address {
                        assert!(!address.ip().to_canonical().is_unspecified());
                    }
                    return Some(Ok((address, input.len() + rest.len())));
                }
                Some(Event::BadRequest(rejection)) => return Some(Err(rejection)),
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

/// Everything that can be seen of a conversation.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Transcript {
    pub(super) events: Vec<String>,
    messages: usize,
    frames: FrameCounts,
    out: Vec<u8>,
    phase: Option<Phase>,
    ending: Option<CloseReason>,
}

/// Any conversation, cut anywhere: the same events and output for every cut, no panic, and memory within the limits.
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

    let run = |cut: &mut dyn FnMut() -> usize, short| {
        converse(&stream, cut, short, within(limits), close_after)
    };
    let whole = run(&mut || usize::MAX, false);
    assert_eq!(run(&mut || 1, false), whole, "byte by byte");
    let mut state = u64::from(*cuts) + 1;
    let mut random = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        1 + (state >> 33) as usize % 40
    };
    assert_eq!(run(&mut random, false), whole, "cut at random");
    assert_eq!(run(&mut || usize::MAX, true), whole, "by the short ways");
    assert_eq!(run(&mut random, true), whole, "each byte to its place");
}

impl Transcript {
    /// Notes a message. After the `close_after`th the service closes.
    fn note(
        &mut self,
        payload: Payload<'_>,
        connection: &mut Connection,
        shared: &mut Shared,
        close_after: Option<usize>,
    ) {
        self.events.push(match &payload {
            Payload::Text(text) => format!("text {text}"),
            Payload::Binary(bytes) => format!("binary {:?}", &bytes[..]),
        });
        payload.recycle(&mut shared.buffers);
        if close_after == Some(self.messages) {
            let ending = CloseReason::by_service(super::CloseCode::NORMAL, "enough");
            connection.close(Time::from_millis(1), ending, &mut self.out);
        }
        self.messages += 1;
    }
}

fn within(limits: Limits) -> Shared {
    Shared {
        limits,
        ..Shared::default()
    }
}

/// Feeds the stream in pieces; with `short`, messages go the short ways where they can: whole ones past the connection,
/// and the inside of long ones to its place at once.
pub(super) fn converse(
    stream: &[u8],
    cut: &mut dyn FnMut() -> usize,
    short: bool,
    mut shared: Shared,
    close_after: Option<usize>,
) -> Transcript {
    let mut transcript = Transcript::default();
    let now = Time::from_millis(1);
    let mut connection = Connection::new(now);
    let limits = &shared.limits.clone();
    let mut rest = stream;
    while !rest.is_empty() {
        if short && let Some(room) = connection.room(&mut shared) {
            let count = cut().min(rest.len()).min(room.len());
            let (piece, after) = rest.split_at(count);
            rest = after;
            room[..count].copy_from_slice(piece);
            if let Some(Event::Message(payload)) = connection.receive_in_room(now, count) {
                transcript.note(payload, &mut connection, &mut shared, close_after);
            }
            continue;
        }
        let (piece, after) = rest.split_at(cut().min(rest.len()));
        rest = after;
        let mut piece = piece.to_vec();
        let mut input = Input::new(&mut piece);
        loop {
            let taken = (short && connection.is_at_rest())
                .then(|| take_whole_message(&mut input, &mut shared))
                .flatten();
            if let Some(taken) = taken {
                match taken {
                    Ok(message) => {
                        transcript.note(message.into(), &mut connection, &mut shared, close_after)
                    }
                    Err(error) => {
                        input.clear();
                        connection.fail(now, error, &mut transcript.out);
                    }
                }
                continue;
            }
            let out = &mut transcript.out;
            let Some(event) = connection.receive(now, &mut input, &mut shared, out) else {
                if connection.is_inflating() {
                    continue;
                }
                break;
            };
            match event {
                Event::Proxied(_) => unreachable!("none is expected"),
                Event::Head(head) => {
                    let refused = take_head(now, &mut connection, &head, &shared, &mut transcript);
                    if let Err(rejection) = refused {
                        transcript.events.push(format!("refused {rejection}"));
                        connection.reject(now, DATE, &rejection, &mut transcript.out);
                    }
                }
                Event::Call { head, body } => {
                    assert!(body.len() <= limits.max_message);
                    let path = Request::parse(&head)
                        .expect("read before")
                        .path()
                        .to_owned();
                    transcript.events.push(format!("call {path} {body:?}"));
                    connection.respond(now, DATE, &answer(), &mut transcript.out);
                }
                Event::BadRequest(rejection) => {
                    transcript.events.push(format!("bad request {rejection}"));
                    connection.reject(now, DATE, &rejection, &mut transcript.out);
                }
                Event::Message(payload) => {
                    transcript.note(payload, &mut connection, &mut shared, close_after)
                }
            }
        }
        assert!(input.is_empty(), "nothing is left over");
        assert!(
            connection.held()
                <= 2 * limits.max_message.max(limits.max_head) + decompressor(&shared),
            "memory is within the limits"
        );
    }
    transcript.frames = shared.frames;
    transcript.phase = Some(connection.phase());
    transcript.ending = connection.ending().cloned();
    transcript
}

/// What a connection may hold beside its message.
fn decompressor(shared: &Shared) -> usize {
    if shared.compression.is_some() {
        64 << 10
    } else {
        0
    }
}

/// Answers a request as a server does: an upgrade, or a call.
fn take_head(
    now: Time,
    connection: &mut Connection,
    head: &[u8],
    shared: &Shared,
    transcript: &mut Transcript,
) -> Result<(), Rejection> {
    let request = Request::parse(head)?;
    let out = &mut transcript.out;
    // Any origin is let in here.
    let origin = request
        .header("origin")
        .map(|origin| String::from_utf8_lossy(origin));
    connection.begin_request(&request, origin.as_deref());
    if request.wants_websocket() {
        let upgrade = request.upgrade()?;
        transcript.events.push(format!("upgrade {upgrade:?}"));
        let offer = Offer::find(&request)?;
        connection.open(now, &upgrade, &Accept::default(), out);
        if let Some((compression, offer)) = shared.compression.as_ref().zip(offer) {
            connection.compress_with(compression.accept(offer));
        }
    } else if connection.begin_call(now, &request, head, shared.limits.max_message, out)? {
        transcript.events.push(format!("call {}", request.path()));
        if request.path() == "/stream" {
            connection.begin_stream(now, DATE, &[("Content-Type", "text/event-stream")], out);
            connection.stream(now, b"data: x\n\n", out);
            connection.end_stream(now, out);
        } else {
            connection.respond(now, DATE, &answer(), out);
        }
    }
    Ok(())
}

fn answer() -> Response {
    Response::json(StatusCode::OK, &serde_json::json!({"ok": true}))
}

/// Any calls one after the other: what was sent in the body arrives, however it is cut into chunks and reads, and what
/// is no call is refused.
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
            // Anything at all, and nothing is expected of what follows.
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
    let run = |cut: &mut dyn FnMut() -> usize| converse(&stream, cut, false, within(limits), None);
    let whole = run(&mut || usize::MAX);
    assert_eq!(run(&mut || 1), whole, "byte by byte");
    let step = 1 + usize::from(*options);
    assert_eq!(run(&mut || step), whole, "{step} bytes at a time");
    // Up to the first that is not well formed, each call arrives as it was sent.
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
            assert_eq!(whole.events.len(), at + 1, "the connection ends with it");
            break;
        }
    }
}

/// Turns a plan into the bytes of a client: mostly valid frames, since random bytes would never get past the first.
fn conversation(handshake: bool, mut plan: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    if handshake {
        let head_len = usize::from(plan.first().copied().unwrap_or(0)) * 2;
        let (head, rest) = plan.split_at(head_len.min(plan.len()));
        stream.extend_from_slice(head);
        plan = rest;
    } else {
        stream.extend_from_slice(
            b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
              Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        );
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
        // Lengths of every form from few bytes: the payload is repeated.
        let payload = payload.repeat(1 + usize::from(kind >> 3 & 3));
        write_frame(kind & 0x80 == 0, opcode, &payload, &mut stream);
        plan = after;
    }
    stream
}

/// A client's frame.
pub(crate) fn write_frame(fin: bool, opcode: u8, payload: &[u8], out: &mut Vec<u8>) {
    write_frame_with(u8::from(fin) << 7 | opcode, payload, out);
}

/// A client's frame with this first byte.
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

/// Checks that bytes are frames as a server may send them: unmasked, whole but for the last, nothing after CLOSE.
/// Returns how many data messages they hold.
#[cfg(feature = "server")]
pub(crate) fn check_server_frames(mut bytes: &[u8]) -> usize {
    use super::OpCode;
    let mut messages = 0;
    while let [first, second, ..] = bytes {
        let opcode = OpCode::from_bits(first & 0xf).expect("a defined opcode");
        assert_eq!(first & 0xf0, 0x80, "one frame a message, no reserved bits");
        assert_eq!(second & 0x80, 0, "not masked");
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
        if opcode == OpCode::Close {
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
    fn handshakes_of_every_kind_and_cut() {
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
    fn frame_headers_of_every_kind_and_cut() {
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
    fn proxy_headers_of_every_kind_and_cut() {
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
    fn calls_of_every_kind_and_cut() {
        let mut random = Random::new(31);
        for _ in 0..3000 {
            calls(&random.bytes(500));
        }
    }

    #[test]
    fn conversations_of_every_kind_and_cut() {
        let mut random = Random::new(3);
        for _ in 0..5000 {
            connection(&random.bytes(400));
        }
    }
}
