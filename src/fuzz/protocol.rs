//! The fuzz targets for single parsers of the protocol, and helpers for frames.

use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use crate::protocol::http::{find_end, forwarded, x_forwarded_for};
use crate::protocol::{
    Accept, FrameHeader, HttpConnection, HttpEvent, Input, Limits, ProtocolError, Request, Role,
    Time, apply_mask,
};

/// The time of every response.
const DATE: SystemTime = SystemTime::UNIX_EPOCH;

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
    check_forwarded(&request);
    let mut out = Vec::new();
    match request.upgrade() {
        Ok(upgrade) => {
            assert!(request.header("host").is_some() && request.method() == "GET");
            upgrade.write_response(&Accept::default().protocol("chat"), &mut out);
            assert!(out.starts_with(b"HTTP/1.1 101 ") && out.ends_with(b"\r\n\r\n"));
        }
        Err(rejection) => {
            rejection.write_response(DATE.into(), &mut out);
            assert!(out.starts_with(b"HTTP/1.1 4") || out.starts_with(b"HTTP/1.1 5"));
        }
    }
    assert_eq!(
        find_end(b"", &out, limit).map(|end| end.is_some()),
        Ok(true),
        "the response head is well formed"
    );
}

/// The fields of proxies: their entries are those that a naive search finds in one long list, from the left.
fn check_forwarded(request: &Request<'_>) {
    let values = |name: &str| {
        let fields = request.headers();
        let fields = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
        fields.map(|(_, value)| value).collect::<Vec<_>>()
    };
    let list = values("x-forwarded-for");
    let text = String::from_utf8_lossy(&list.join(&b","[..])).into_owned();
    let entries = text.split(',').map(|entry| entry.trim_matches([' ', '\t']));
    let mut naive: Vec<_> = entries
        .filter(|entry| !entry.is_empty())
        .map(naive_address)
        .collect();
    naive.reverse();
    assert_eq!(
        x_forwarded_for(&list).collect::<Vec<_>>(),
        naive,
        "{text:?}"
    );

    let standard = values("forwarded");
    let hops: Vec<_> = forwarded(&standard).collect();
    let commas = standard.iter().flat_map(|value| *value);
    let commas = commas.filter(|byte| **byte == b',').count();
    assert!(hops.len() <= standard.len() + commas);
    // Each value is read by itself.
    let singly = standard.iter().rev();
    let singly: Vec<_> = singly
        .flat_map(|value| forwarded(&[value]).collect::<Vec<_>>())
        .collect();
    assert_eq!(hops, singly);
    // A value of plain elements alone agrees with a list of their addresses.
    for value in &standard {
        let Some(plain) = std::str::from_utf8(value).ok().and_then(|value| {
            let elements = value
                .split(',')
                .map(|element| element.trim_matches([' ', '\t']));
            let nodes = elements.map(|element| element.strip_prefix("for="));
            let is_plain = |node: &str| node.parse::<std::net::Ipv4Addr>().is_ok();
            nodes
                .map(|node| node.filter(|node| is_plain(node)))
                .collect::<Option<Vec<_>>>()
        }) else {
            continue;
        };
        let plain = plain.join(",");
        let expected = x_forwarded_for(&[plain.as_bytes()]).collect::<Vec<_>>();
        assert_eq!(forwarded(&[value]).collect::<Vec<_>>(), expected);
    }
}

/// The address of an entry of `X-Forwarded-For`.
fn naive_address(entry: &str) -> Option<SocketAddr> {
    let ip: Option<IpAddr> = entry.parse().ok();
    let bracketed = || format!("{entry}:0").parse().ok();
    // The standard library also accepts a zone in brackets, and a port with leading zeros.
    let is_plain =
        !entry.contains('%') && entry.rsplit(':').next().is_none_or(|port| port.len() <= 5);
    let with_port = || entry.parse().ok().filter(|_| is_plain);
    match ip {
        Some(ip) => Some(SocketAddr::new(ip, 0)),
        None if entry.starts_with('[') && entry.ends_with(']') => {
            bracketed().filter(|_| !entry.contains('%'))
        }
        None => with_port(),
    }
}

/// Any bytes as a frame header: every prefix gives the same result, which is that of a naive parser.
pub fn frame_header(data: &[u8]) {
    let data = &data[..data.len().min(16)];
    let whole = FrameHeader::parse(data, Role::Client, false);
    assert_eq!(
        whole.map(|header| header.map(|(header, len)| (header.payload_len, len))),
        naive_header(data)
    );
    for cut in 0..data.len() {
        let early = FrameHeader::parse(&data[..cut], Role::Client, false);
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

/// Visits the whole frames of a server. They are unmasked, only the last one may be incomplete, and nothing follows CLOSE. Returns the
/// length of the frames before the last whole one, from where a later visit can continue.
#[cfg(feature = "server")]
pub(crate) fn visit_server_frames(
    bytes: &[u8],
    mut visit: impl FnMut(crate::protocol::OpCode, &[u8]),
) -> usize {
    let (mut rest, mut last) = (bytes, 0);
    while let [first, second, ..] = rest {
        let opcode = crate::protocol::OpCode::from_bits(first & 0xf).expect("a defined opcode");
        assert_eq!(
            first & 0xf0,
            0x80,
            "one frame per message, no reserved bits"
        );
        assert_eq!(second & 0x80, 0, "the frame is unmasked");
        let (header, len) = match second & 0x7f {
            126 if rest.len() >= 4 => (4, usize::from(u16::from_be_bytes([rest[2], rest[3]]))),
            127 if rest.len() >= 10 => (
                10,
                u64::from_be_bytes(*rest[2..].first_chunk().expect("8 bytes")) as usize,
            ),
            126 | 127 => break,
            len => (2, usize::from(len)),
        };
        let Some((frame, others)) = rest.split_at_checked(header + len) else {
            break;
        };
        visit(opcode, &frame[header..]);
        last = bytes.len() - rest.len();
        rest = others;
        if opcode == crate::protocol::OpCode::Close {
            assert!(rest.is_empty(), "nothing after CLOSE");
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    #[test]
    fn generated_handshakes() {
        let mut random = Random::new(1);
        let good: &[u8] =
            b"GET /a HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
        for _ in 0..rounds(3000) {
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
    fn generated_fields_of_proxies() {
        let mut random = Random::new(90);
        let pieces = [
            "1.2.3.4",
            "[2001:db8::1]",
            "::1",
            ":80",
            ":",
            ",",
            ", ",
            ";",
            "for=",
            "\"",
            "\\",
            "_x",
            "unknown",
            "=",
            "\r\nForwarded: ",
            "\r\nX-Forwarded-For: ",
            " ",
            "%1",
            "0",
            "\u{e9}",
        ];
        for _ in 0..rounds(5000) {
            let mut head = "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: ".to_owned();
            for _ in 0..random.below(14) {
                head += pieces[random.below(pieces.len())];
            }
            handshake((head + "\r\n\r\n").as_bytes());
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
            for _ in 0..rounds(3000) {
                let mut data = good.to_vec();
                for _ in 0..random.below(3) {
                    let at = random.below(data.len());
                    data[at] = random.byte();
                }
                proxy_header(&data);
            }
        }
    }
}
