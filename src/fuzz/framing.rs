//! Fuzzes how messages of programs are read: the decoders of framed messages, against a naive one that sees the whole stream
//! at once, and the parser of JSON-RPC messages, against serde_json.

use std::mem::discriminant;
use std::ops::ControlFlow;

use super::agent_model::sessions_named;
use crate::service::Framing;
use crate::service::agent::named::{Named, Places};
use crate::service::framing::{Decoder, FramingError, MAX_HEADER};
use crate::service::jsonrpc::{
    Envelope, EnvelopeError, IdRecovery, MAX_ID, MessageKind, RecoveredId, is_spelling_of,
};
use crate::service::lines::Line;

/// What a stream contains.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Message(Vec<u8>),
    /// A line over the limit.
    TooLong(Vec<u8>),
    Failure(FramingError),
}

impl Item {
    /// Whether both are equal. An error shows what has arrived of a header block, which depends on the pieces.
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Failure(one), Self::Failure(other)) => discriminant(one) == discriminant(other),
            _ => self == other,
        }
    }
}

/// The framing, the limit, where to cut and the stream. What a decoder finds is what a naive one finds, however the stream
/// is cut and wherever the consumer pauses. What it finds can be encoded, and decodes to itself.
pub fn framing(data: &[u8]) {
    let [kind, limit, step, breaks, stream @ ..] = data else {
        return;
    };
    let framing = [Framing::Lines, Framing::Raw, Framing::ContentLength][usize::from(kind % 3)];
    let limit = 1 + usize::from(*limit);
    let cuts = |at: usize| 1 + (at * 7 + usize::from(*step)) % (1 + usize::from(*step));
    let found = decode(framing, limit, stream, cuts, *breaks);
    if framing == Framing::Raw {
        let all: Vec<u8> = found.iter().flat_map(message).copied().collect();
        assert_eq!(all, stream);
        assert!(found.iter().all(|item| message(item).len() <= limit));
        return;
    }
    let expected = match framing {
        Framing::Lines => lines(stream, limit),
        _ => content_length(stream, limit),
    };
    assert!(
        found.len() == expected.len()
            && found
                .iter()
                .zip(&expected)
                .all(|(one, other)| one.is_like(other)),
        "{found:?}\n{expected:?}"
    );
    let mut encoded = Vec::new();
    let messages = found.iter().filter(|item| matches!(item, Item::Message(_)));
    let messages: Vec<Item> = messages.cloned().collect();
    for item in &messages {
        framing.encode(message(item), &mut encoded);
    }
    // A carriage return at the end of a line belongs to its end.
    let is_exact = |item: &Item| !message(item).ends_with(b"\r");
    if framing == Framing::ContentLength || messages.iter().all(is_exact) {
        let again = decode(framing, limit, &encoded, cuts, *breaks);
        assert_eq!(again, messages);
    }
}

fn message(item: &Item) -> &[u8] {
    match item {
        Item::Message(bytes) => bytes,
        other => panic!("not a message: {other:?}"),
    }
}

/// Decodes a stream in pieces. `cuts` returns the length of the piece that begins at an offset.
fn decode(
    framing: Framing,
    limit: usize,
    stream: &[u8],
    cuts: impl Fn(usize) -> usize,
    breaks: u8,
) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    let mut decoder = Decoder::new(framing, limit);
    let mut last = 0;
    let mut skipped = None;
    let mut note = |number: u64, line: Line<'_>| {
        match line {
            Line::Whole(bytes) => items.push(Item::Message(bytes.to_vec())),
            Line::TooLong(_) => skipped = Some(Vec::new()),
            Line::Skipped(bytes) => skipped.as_mut().expect("too long").extend(bytes),
            Line::SkippedEnd => items.push(Item::TooLong(skipped.take().expect("too long"))),
            Line::Broken(error) => items.push(Item::Failure(error.clone())),
        }
        assert!(
            number == last || number == last + 1,
            "{number} after {last}"
        );
        last = number;
        if breaks != 0 && number.is_multiple_of(u64::from(breaks)) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let mut at = 0;
    while at < stream.len() {
        let end = stream.len().min(at + cuts(at).max(1));
        let taken = decoder.push(&stream[at..end], &mut note);
        assert!(taken > 0 && taken <= end - at, "{taken} of {}", end - at);
        at += taken;
    }
    decoder.finish(&mut note);
    items
}

/// The lines of a stream.
fn lines(stream: &[u8], limit: usize) -> Vec<Item> {
    let mut pieces: Vec<&[u8]> = stream.split(|&byte| byte == b'\n').collect();
    if pieces.last().is_some_and(|last| last.is_empty()) {
        pieces.pop();
    }
    let item = |piece: &[u8]| match piece.len() > limit {
        true => Item::TooLong(piece.to_vec()),
        false => Item::Message(piece.strip_suffix(b"\r").unwrap_or(piece).to_vec()),
    };
    pieces.into_iter().map(item).collect()
}

/// The messages of a stream with header blocks.
fn content_length(stream: &[u8], limit: usize) -> Vec<Item> {
    let mut items = Vec::new();
    let mut rest = stream;
    while !rest.is_empty() {
        match split_message(rest, limit) {
            Ok((body, after)) => {
                items.push(Item::Message(body.to_vec()));
                rest = after;
            }
            Err(error) => {
                items.push(Item::Failure(error));
                break;
            }
        }
    }
    items
}

/// The first message of a stream, and what follows it.
fn split_message(stream: &[u8], limit: usize) -> Result<(&[u8], &[u8]), FramingError> {
    let mut length = None;
    let mut at = 0;
    loop {
        let visible = &stream[at..stream.len().min(MAX_HEADER)];
        let Some(end) = visible.iter().position(|&byte| byte == b'\n') else {
            let is_field = visible.is_empty() || visible == b"\r" || is_named(visible);
            return Err(match is_field {
                false => FramingError::NoContentLength(String::new()),
                true if stream.len() >= MAX_HEADER => FramingError::HeaderTooLong(String::new()),
                true => FramingError::Truncated,
            });
        };
        let line = &visible[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        at += end + 1;
        let text = String::from_utf8_lossy(line).to_ascii_lowercase();
        if line.is_empty() {
            let length: String = length.ok_or(FramingError::NoContentLength(String::new()))?;
            let length = length.trim_start_matches('0');
            let length = match length.len() {
                0 => 0,
                1..=9 => length.parse().expect("a number"),
                _ => usize::MAX,
            };
            if length > limit {
                return Err(FramingError::MessageTooLong(limit));
            }
            let body = stream[at..].get(..length).ok_or(FramingError::Truncated)?;
            return Ok((body, &stream[at + length..]));
        } else if let Some(value) = text.strip_prefix("content-length:") {
            let digits = value.trim_matches([' ', '\t', '\r', '\x0c']);
            let is_number = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit());
            if !is_number || length.replace(digits.to_owned()).is_some() {
                return Err(FramingError::InvalidContentLength(String::new()));
            }
        } else if !(line.contains(&b':') && is_named(line)) {
            return Err(FramingError::NoContentLength(String::new()));
        }
        if at >= MAX_HEADER {
            return Err(FramingError::HeaderTooLong(String::new()));
        }
    }
}

/// Whether a line begins with the name of a field, or a part of it.
fn is_named(line: &[u8]) -> bool {
    let text = String::from_utf8_lossy(line);
    let name = text.split(':').next().unwrap_or_default();
    let others = "!#$%&'*+-.^_`|~";
    let is_allowed = |one: char| one.is_ascii_alphanumeric() || others.contains(one);
    !name.is_empty() && name.chars().all(is_allowed)
}

/// Parses any text as a message. The parser agrees with serde_json on what is JSON and on the values in it.
pub fn envelope(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let oracle = serde_json::from_str::<serde_json::Value>(text);
    let recovered = IdRecovery::of(data);
    match Envelope::parse(text) {
        Err(EnvelopeError::Parse) => {
            // serde_json has a slightly different limit on nesting.
            assert!(oracle.is_err() || nesting(text) > 100, "{text}");
        }
        Err(EnvelopeError::Invalid { id, .. }) => {
            if let Some(id) = id {
                assert!(serde_json::from_str::<serde_json::Value>(&text[id]).is_ok());
            }
        }
        Ok(envelope) => {
            let Ok(value) = oracle else { return };
            // The recovery of ids finds the same id as the parser.
            let id = envelope.id().map(str::to_owned);
            let id = id.filter(|id| id != "null" && id.len() <= MAX_ID);
            assert_eq!(
                recovered,
                id.map(|id| match envelope.kind {
                    MessageKind::Response { .. } => RecoveredId::Response(id),
                    _ => RecoveredId::Request(id),
                })
            );
            assert_eq!(value["jsonrpc"], "2.0");
            if let Some(id) = envelope.id() {
                assert_eq!(
                    serde_json::from_str::<serde_json::Value>(id).ok().as_ref(),
                    value.get("id")
                );
            }
            let body = if matches!(envelope.kind, MessageKind::Response { .. }) {
                "result"
            } else {
                "params"
            };
            let session = value[body]["sessionId"].as_str();
            assert_eq!(envelope.session.as_deref(), session);
            // The parser sees every key that could be read as `sessionId`, and accepts only one in requests.
            let body = value[body].as_object();
            let spellings = body.map_or(0, |body| {
                let keys = body.keys();
                keys.filter(|key| is_spelling_of(key, "sessionId")).count()
            });
            if !matches!(envelope.kind, MessageKind::Response { .. }) {
                assert!(spellings <= 1, "{text}");
                let seen = envelope.session.is_some() || envelope.misspelled_session.is_some();
                assert!(!seen || spellings == 1, "{text}");
            }
            // Of equal keys, the oracle knows the last one only.
            for (places, anywhere) in [(Places::Schema, false), (Places::Anywhere, true)] {
                // The schema has one of the spellings that a response may have.
                if spellings > 1 && !anywhere {
                    continue;
                }
                let Ok(named) = Named::find(&envelope, places) else {
                    continue;
                };
                for session in sessions_named(&value, anywhere) {
                    assert!(named.all().any(|one| one == session), "{session}: {text}");
                }
            }
            let _ = envelope.resume_token();
            let own = body.and_then(|body| body.get("_meta")?.get("progressToken"));
            match envelope.progress_token() {
                Ok(Some(token)) => {
                    let token = serde_json::from_str::<serde_json::Value>(&text[token]);
                    assert_eq!(token.ok().as_ref(), own, "{text}");
                }
                Ok(None) => assert!(own.is_none_or(serde_json::Value::is_null), "{text}"),
                Err(_) => {}
            }
        }
    }
}

fn nesting(text: &str) -> usize {
    text.bytes()
        .filter(|byte| matches!(byte, b'[' | b'{'))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    const STREAMS: [&[u8]; 8] = [
        b"Content-Length: 5\r\n\r\nhelloContent-Type: x; charset=utf-8\r\ncontent-length:\t2\r\n\r\n{}",
        b"Content-Length: 0\r\n\r\nContent-Length: 003\n\nabcContent-Length: 1\r\n\r\n",
        b"Content-Length: 3\r\n\r\nabc\r\nContent-Length: 3\r\n\r\nabc",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 99999999999999999999999999\r\n\r\nabc",
        b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
        b"{\"jsonrpc\":\"2.0\"}\nContent-Length: 1\r\n\r\na",
        b"one\r\ntwo\n\n\0\xff\nthree\r",
    ];

    #[test]
    fn streams_do_not_depend_on_how_they_are_cut() {
        for stream in STREAMS {
            for kind in 0..3 {
                for limit in [0, 4, 30, 255] {
                    for step in 0..stream.len() as u8 + 2 {
                        for breaks in 0..3 {
                            framing(&[&[kind, limit, step, breaks][..], stream].concat());
                        }
                    }
                }
            }
            // Each single cut.
            for kind in [Framing::Lines, Framing::ContentLength] {
                let whole = decode(kind, 1000, stream, |_| stream.len(), 0);
                for cut in 1..stream.len() {
                    let cut_at = |at: usize| if at < cut { cut - at } else { stream.len() };
                    let found = decode(kind, 1000, stream, cut_at, 0);
                    let mut pairs = found.iter().zip(&whole);
                    assert!(
                        pairs.all(|(one, other)| one.is_like(other)) && found.len() == whole.len()
                    );
                }
            }
        }
    }

    #[test]
    fn mutated_streams_agree_with_a_naive_decoder() {
        let mut random = Random::new(91);
        for _ in 0..rounds(40_000) {
            let mut data = random.bytes(3);
            data.resize(4, 2);
            for _ in 0..=random.below(3) {
                data.extend_from_slice(STREAMS[random.below(STREAMS.len())]);
            }
            for _ in 0..random.below(4) {
                let at = random.below(data.len());
                data[at] = b"\r\n: 0189cC-\xffx"[random.below(13)];
            }
            framing(&data);
        }
    }

    #[test]
    fn a_header_block_has_a_limit() {
        let mut random = Random::new(92);
        for length in MAX_HEADER - 60..MAX_HEADER + 60 {
            for end in ["", "\r\n", "\r\nContent-Length: 2\r\n\r\n{}", "\n\n", "\n"] {
                let start = "Content-Length: 1\r\nContent-Type: ";
                let block = format!("{start}{}{end}", "x".repeat(length - start.len()));
                framing(&[&[2, 9, random.byte(), 0][..], block.as_bytes()].concat());
                framing(&[&[2, 9, 0, 0][..], block.as_bytes()].concat());
            }
        }
    }

    #[test]
    fn params_of_a_response_name_no_session() {
        // The bug: this oracle, not the parser, read them.
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"result":{},"params":{"sessionId":"s"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"},"params":{"sessionId":"s"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"session_id":"s","sessionId":"t"}}"#,
        ] {
            envelope(text.as_bytes());
        }
    }

    #[test]
    fn mutated_messages_are_parsed_as_serde_json_parses_them() {
        let mut random = Random::new(6);
        let seed = br#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"sessionId":"a","_meta":{"outrigger":{"resumeToken":"t"},"progressToken":1}}}"#;
        for _ in 0..rounds(50_000) {
            let mut data = seed.to_vec();
            for _ in 0..random.below(5) {
                let at = random.below(data.len());
                data[at] = b"{}[],:\"\\10e-. nulid"[random.below(19)];
            }
            envelope(&data);
        }
        let seed = br#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"session_id":"a","x":[{"parentSessionId":"b","content":{"sessions":["c"]}}],"_meta":{"y":{"session":{"id":["d"]}}}}}"#;
        let response = br#"{"jsonrpc":"2.0","id":1,"result":{"session_id":"a","_meta":{"y":{"sessionId":"d"}}},"params":{"sessionId":"a"}}"#;
        for round in 0..rounds(50_000) {
            let mut data = if round % 2 == 0 { &seed[..] } else { response }.to_vec();
            for _ in 0..random.below(5) {
                let at = random.below(data.len());
                data[at] = b"{}[],:\"\\sSdi-_ x"[random.below(16)];
            }
            envelope(&data);
        }
    }
}
