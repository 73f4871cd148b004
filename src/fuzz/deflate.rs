//! The fuzz target for compression.

use super::conversation::{converse, random_cuts};
use super::protocol::write_frame_with;
use crate::protocol::deflate::{Codec, Compression, DeflateConfig, Offer, Squeeze};
use crate::protocol::message::Assembly;
use crate::protocol::{Buffers, Limits, OpCode, Shared};

/// Offers that are used in addition to those in the data.
const OFFERS: [&str; 5] = [
    "permessage-deflate",
    "permessage-deflate; client_no_context_takeover",
    "permessage-deflate; server_no_context_takeover; server_max_window_bits=9",
    "permessage-deflate; client_no_context_takeover; server_no_context_takeover; client_max_window_bits=8",
    "permessage-deflate; server_max_window_bits=8; client_max_window_bits",
];

/// Any offer and any compressed messages: the events do not depend on how the bytes are split, memory stays within the
/// limits, and decompression restores what was compressed.
pub fn deflate(data: &[u8]) {
    let [options, cuts, plan @ ..] = data else {
        return;
    };
    let (offer, plan) = match usize::from(options >> 5) {
        at if at < OFFERS.len() => (OFFERS[at].as_bytes(), plan),
        _ => plan.split_at(plan.len().min(usize::from(*cuts))),
    };
    let found = Offer::find_in(offer);
    if let Some(offer) = found.flatten() {
        let codec = Compression::new(DeflateConfig::default()).accept(offer);
        let answer = codec.agreement().to_string();
        // The response is a valid offer with the same result.
        let again = Offer::find_in(answer.as_bytes()).flatten();
        let again = again.expect("a valid offer").accept(true, true).to_string();
        assert_eq!(again, answer);
        round_trip(codec, usize::from(options & 0x1f), plan);
    }
    let _ = any_messages(offer, found.flatten(), *cuts, plan);
}

/// One side decompresses what the other one compressed, including messages that were compressed without a context.
fn round_trip(mut codec: Codec, min: usize, plan: &[u8]) {
    let mut peer = codec.peer();
    let mut shared = Compression::new(DeflateConfig {
        level: 1 + (min % 9) as u8,
        memory: 0,
        min: Some(min),
    });
    shared.lower_threshold();
    let mut buffers = Buffers::default();
    let mut rest = plan;
    while let [kind, len, after @ ..] = rest {
        let (bytes, after) = after.split_at(usize::from(*len).min(after.len()));
        rest = after;
        let payload = bytes.repeat(1 + usize::from(kind & 0x7f));
        let compressed = if kind & 0x80 == 0 && payload.len() > shared.slice() {
            squeezed(&payload, &mut codec, &mut shared)
        } else if kind & 0x80 == 0 {
            codec.compress(&payload, &mut shared)
        } else {
            let alone = shared.compress_alone(&payload, codec.window());
            if alone.is_some() {
                codec.note_alone();
            }
            alone
        };
        let Some(compressed) = compressed else {
            continue;
        };
        assert!(payload.len() >= min);
        let mut message = Assembly::new(OpCode::Binary);
        let (mut unfinished, mut rest) = (None, &compressed[..]);
        loop {
            let most = payload.len();
            unfinished = peer
                .decompress(
                    rest,
                    unfinished,
                    &mut message,
                    most,
                    &mut shared,
                    &mut buffers,
                )
                .expect("valid compressed data");
            match &unfinished {
                Some(unfinished) => rest = &rest[unfinished.consumed..],
                None => break,
            }
        }
        let message = message.finish().expect("a binary message");
        assert_eq!(message.as_message().as_bytes(), payload);
        shared.give_back(compressed);
        #[cfg(feature = "server")]
        if kind % 4 == 0 {
            // An upgrade: the peer of the compressor continues in another process.
            peer.keep_window(&mut shared);
            if kind % 8 == 0 {
                peer = crate::record::simulated::restored(&peer);
            }
        }
    }
}

/// Compresses a message in slices, checks its frames, and returns their payloads. Returns `None` if the message is sent
/// uncompressed.
fn squeezed(payload: &[u8], codec: &mut Codec, shared: &mut Compression) -> Option<Vec<u8>> {
    let mut message = Squeeze::new(OpCode::Binary, payload);
    let mut frames = Vec::new();
    while !message
        .next(codec, shared, &mut frames)
        .expect("the compressor works")
    {}
    let mut compressed = Vec::new();
    let mut rest = &frames[..];
    let mut is_first = true;
    loop {
        let (last, kind) = (rest[0] & 0x80 != 0, rest[0] & 0x7f);
        let (len, begin) = match rest[1] {
            126 => (usize::from(u16::from_be_bytes([rest[2], rest[3]])), 4),
            len @ ..126 => (usize::from(len), 2),
            _ => unreachable!("a message of this length in one frame"),
        };
        if is_first && kind == 2 {
            assert!(
                last && &rest[begin..] == payload,
                "the message is sent uncompressed"
            );
            return None;
        }
        assert_eq!(kind, if is_first { 0x42 } else { 0 });
        is_first = false;
        compressed.extend_from_slice(&rest[begin..begin + len]);
        rest = &rest[begin + len..];
        if last {
            assert!(rest.is_empty());
            return Some(compressed);
        }
    }
}

/// Messages of a client, validly compressed or not, in one frame or several. Returns the expected events of validly
/// compressed messages, and the actual events.
fn any_messages(
    offer: &[u8],
    found: Option<Offer>,
    cuts: u8,
    plan: &[u8],
) -> (Vec<String>, Vec<String>) {
    let config = DeflateConfig {
        memory: if cuts & 1 == 0 { 0 } else { usize::MAX },
        min: Some(0),
        ..DeflateConfig::default()
    };
    let limits = Limits {
        max_message: 3000,
        ..Limits::default()
    };
    let mut stream = b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Extensions: "
        .to_vec();
    stream.extend(offer.iter().filter(|byte| !b"\r\n\0".contains(byte)));
    stream.extend_from_slice(b"\r\n\r\n");

    let mut compression = Compression::new(config);
    let mut codec = found.map(|offer| compression.accept(offer).peer());
    let mut sent = Vec::new();
    let mut rest = plan;
    while let [kind, len, after @ ..] = rest {
        let (bytes, after) = after.split_at(usize::from(*len).min(after.len()));
        rest = after;
        let payload = bytes.repeat(1 + usize::from(kind & 7) * 5);
        sent.push(format!("binary {payload:?}"));
        let text = 1 + (kind >> 3 & 1);
        let compressed = match &mut codec {
            // Valid compressed data.
            Some(codec) if kind & 0x80 == 0 => codec.compress(&payload, &mut compression),
            // Uncompressed data in a compressed message.
            _ => Some(payload.clone()),
        };
        let (first, payload) = match compressed {
            Some(compressed) => (0x40 | text, compressed),
            None => (text, payload),
        };
        let pieces = 1 + usize::from(kind >> 4 & 3);
        let mut parts = payload.chunks(payload.len().div_ceil(pieces).max(1));
        let mut part = parts.next().unwrap_or_default();
        let mut first = first;
        loop {
            let next = parts.next();
            let fin = if next.is_none() { 0x80 } else { 0 };
            write_frame_with(fin | first, part, &mut stream);
            let Some(next) = next else { break };
            (part, first) = (next, 0);
            if kind & 0x40 != 0 {
                write_frame_with(0x89, b"between", &mut stream);
            }
        }
    }

    let run = |cut: &mut dyn FnMut() -> usize, rooms, small: bool| {
        let shared = Shared::new(limits, Some(Compression::new(config)));
        let shared = if small {
            shared.with_small_thresholds()
        } else {
            shared
        };
        converse(&stream, cut, rooms, shared, None)
    };
    let whole = run(&mut || usize::MAX, false, true);
    assert_eq!(run(&mut || 1, true, true), whole, "byte by byte");
    let mut random = random_cuts(cuts, 90);
    assert_eq!(run(&mut random, true, true), whole, "split at random");
    assert_eq!(run(&mut random, true, false), whole, "usual thresholds");
    (sent, whole.events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    #[test]
    fn generated_compressed_messages() {
        let mut random = Random::new(51);
        for _ in 0..rounds(1500) {
            deflate(&random.bytes(400));
        }
    }

    #[test]
    fn validly_compressed_messages_arrive() {
        let mut random = Random::new(52);
        for offer in OFFERS {
            let found = Offer::find_in(offer.as_bytes()).expect("well formed");
            let mut plan = Vec::new();
            for _ in 0..50 {
                let bytes = random.bytes(60);
                // A valid binary message.
                plan.extend([random.byte() & 0x7f | 0x08, bytes.len() as u8]);
                plan.extend(bytes);
            }
            for cuts in 0..4 {
                let (sent, seen) = any_messages(offer.as_bytes(), found, cuts, &plan);
                // The first event is the handshake.
                assert_eq!(seen[1..], sent, "{offer}");
            }
        }
    }
}
