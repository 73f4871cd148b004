//! A connection with context takeover uses the memory that was reserved for it. Other connections hold no memory for
//! compression between messages.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Read;
use std::net::SocketAddr;

use crate::common::Wire;
use crate::common::program::Program;
use outrigger::protocol::deflate::{Compression, DeflateConfig, Offer, SLICE, Squeeze};
use outrigger::protocol::{Input, OpCode, Shared, Time, WebSocket};
use outrigger::{Accept, Limits, Request};
use zlib_rs::{Deflate, DeflateFlush, Inflate, InflateFlush};

struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

fn allocated() -> usize {
    ALLOCATED.get()
}

// SAFETY: passes every call on to the system's allocator unchanged.
#[allow(unsafe_code, reason = "an allocator can be written in no other way")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|count| count.set(count.get().wrapping_add(layout.size())));
        // SAFETY: the caller upholds the allocator's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        let _ = ALLOCATED.try_with(|count| count.set(count.get().wrapping_sub(layout.size())));
        // SAFETY: the caller upholds the allocator's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NOW: Time = Time::from_millis(1);

/// A connection that has agreed to an offer.
fn open(offer: &str, shared: &Shared) -> WebSocket {
    let head = format!(
        "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: {offer}\r\n\r\n"
    );
    let request = Request::parse(head.as_bytes()).expect("a request");
    let offer = Offer::find(&request)
        .expect("well formed")
        .expect("an offer");
    let upgrade = request.upgrade().expect("a handshake");
    let compression = shared.compression.as_ref().expect("compression is on");
    let codec = Some(compression.accept(offer));
    WebSocket::accept(NOW, &upgrade, &Accept::default(), codec, &mut Vec::new())
}

fn shared(memory: usize) -> Shared {
    let mut config = DeflateConfig::default();
    config.memory = memory;
    Shared::new(Limits::default(), Some(Compression::new(config)))
}

/// A compressed message of a client, in one frame.
fn frame(payload: &[u8]) -> Vec<u8> {
    let mut compressed = vec![0; payload.len() + 100];
    let mut deflate = Deflate::new(6, false, 15);
    deflate
        .compress(payload, &mut compressed, DeflateFlush::SyncFlush)
        .expect("room for it");
    compressed.truncate(deflate.total_out() as usize - 4);
    let mut frame = crate::common::frame(true, 2, &compressed);
    frame[0] |= 0x40;
    frame
}

fn exchange(connection: &mut WebSocket, shared: &mut Shared, payload: &[u8]) {
    let mut frame = frame(payload);
    let mut input = Input::new(&mut frame);
    let mut out = Vec::new();
    let message = connection.receive(NOW, &mut input, shared, &mut out);
    let Some(message) = message else {
        panic!("closed: {:?}", connection.close_reason());
    };
    assert_eq!(message.as_message().as_bytes(), payload);
    let compression = shared.compression.as_mut().expect("compression is on");
    let codec = connection.codec().expect("it was agreed on");
    let compressed = codec.compress(payload, compression).expect("long enough");
    assert!(compressed.len() < payload.len());
    compression.give_back(compressed);
}

#[test]
fn long_messages_are_decompressed_and_compressed_in_slices() {
    // The bug: a compressed message of 16 MiB blocked the loop for half a second, because the whole message was
    // decompressed, and its echo compressed, in one turn.
    let mut shared = shared(usize::MAX);
    let mut connection = open("permessage-deflate", &shared);
    let payload = b"one and the same thing, ".repeat((8 << 20) / 16)[..8 << 20].to_vec();
    let mut frame = frame(&payload);
    let mut input = Input::new(&mut frame);
    let mut turns = 1;
    let message = loop {
        let message = connection.receive(NOW, &mut input, &mut shared, &mut Vec::new());
        if let Some(message) = message {
            break message;
        }
        assert!(connection.is_inflating(), "there is more of it");
        turns += 1;
    };
    assert!(turns >= 8, "{turns} turns");
    assert!(message.as_message().as_bytes() == payload);
    assert!(!connection.is_inflating() && input.is_empty());

    let mut slices = 1;
    let mut squeeze = Squeeze::new(OpCode::Binary, &payload);
    let compression = shared.compression.as_mut().expect("compression is on");
    let codec = connection.codec().expect("it was agreed on");
    while !squeeze
        .next(codec, compression, &mut Vec::new())
        .expect("a sound compressor")
    {
        slices += 1;
    }
    assert_eq!(slices, payload.len() / SLICE);
}

#[test]
fn connections_use_the_memory_that_was_reserved() {
    for (offer, least) in [
        ("permessage-deflate", 300 << 10),
        ("permessage-deflate; server_max_window_bits=10", 180 << 10),
        ("permessage-deflate; client_no_context_takeover", 260 << 10),
        ("permessage-deflate; server_no_context_takeover", 40 << 10),
    ] {
        let mut shared = shared(usize::MAX);
        // Allocates what all connections share.
        let mut other = open(
            "permessage-deflate; server_no_context_takeover; client_no_context_takeover; server_max_window_bits=10",
            &shared,
        );
        let mut another = open(
            "permessage-deflate; server_no_context_takeover; client_no_context_takeover",
            &shared,
        );
        let lines = (0..200).map(|line| format!("line {line} of a text, {}\n", line * line));
        let payload = lines.collect::<String>().into_bytes();
        exchange(&mut other, &mut shared, &payload);
        exchange(&mut another, &mut shared, &payload);
        let reserved = |shared: &Shared| shared.compression.as_ref().expect("on").reserved();
        assert_eq!(reserved(&shared), 0, "none keeps a context");

        let before = allocated();
        let mut connection = open(offer, &shared);
        assert!(
            allocated() - before < 1000,
            "nothing is made before a message needs it"
        );
        for _ in 0..20 {
            exchange(&mut connection, &mut shared, &payload);
        }
        let taken = allocated() - before;
        assert!(
            (least..=reserved(&shared) + 1000).contains(&taken),
            "{offer}: {taken} bytes of {} reserved",
            reserved(&shared)
        );
        connection.close(NOW, outrigger::CloseReason::shutdown(), &mut Vec::new());
        assert!(allocated() - before < 1000, "the end gives it back");
        assert_eq!(reserved(&shared), 0);
    }
}

#[test]
fn connections_over_the_limit_keep_no_context() {
    let shared = shared(700 << 10);
    let answers: Vec<(String, WebSocket)> = (0..4)
        .map(|_| {
            let mut connection = open("permessage-deflate", &shared);
            let agreement = connection.codec().expect("it was agreed on").agreement();
            (agreement.to_string(), connection)
        })
        .collect();
    let both = "permessage-deflate";
    let one = "permessage-deflate; server_no_context_takeover";
    let all: Vec<&str> = answers.iter().map(|(answer, _)| &**answer).collect();
    assert_eq!(
        all,
        [
            both,
            both,
            one,
            &format!("{one}; client_no_context_takeover")
        ]
    );
    drop(answers);
    let mut connection = open("permessage-deflate", &shared);
    let agreement = connection.codec().expect("it was agreed on").agreement();
    assert_eq!(agreement.to_string(), both);
}

/// A client of the program without context takeover, so that the test can compress messages in advance.
fn connect(address: SocketAddr) -> Wire {
    let mut wire = Wire::open(address);
    let request = String::from_utf8(crate::common::request("/")).expect("ASCII");
    let extension = "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n\r\n";
    wire.send(
        request
            .replace("\r\n\r\n", &format!("\r\n{extension}"))
            .as_bytes(),
    );
    let head = wire.read_head();
    assert!(
        head.contains("permessage-deflate; server_no_context_takeover; client_no_context_takeover"),
        "{head}"
    );
    wire
}

#[test]
fn the_program_limits_the_decompressed_size() {
    let program = Program::start(&["echo", "--deflate", "--max-message", "300000"]);
    let address = program.address();
    let mut wire = connect(address);
    // The server reads all of them at once, and each one needs more than a turn.
    let payload = vec![7; 200_000];
    wire.send(&frame(&payload).repeat(8));
    for _ in 0..8 {
        assert_eq!(wire.read_exact(2)[0], 0xc2, "a compressed binary message");
        let length = wire.read_exact(2);
        wire.read_exact(usize::from(u16::from_be_bytes([length[0], length[1]])));
    }
    let metrics = metrics(address);
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        let line = line.unwrap_or_else(|| panic!("{name} is not in {metrics}"));
        line.trim().parse::<u64>().expect("a number")
    };
    assert_eq!(
        value("outrigger_compressed_messages_total{direction=\"in\"}"),
        8
    );
    assert_eq!(
        value("outrigger_uncompressed_bytes_total{direction=\"out\"}"),
        1_600_000
    );
    assert!(value("outrigger_turn_limits_total{work=\"bytes\"}") >= 1);

    wire.send(&frame(&vec![7; 300_001]));
    assert_eq!(wire.read_close().0, 1009);
    for damaged in [
        // The beginning of a stored block of a hundred bytes; no bytes; bytes that are not DEFLATE.
        &b"\x00\x64\x00\x9b\xffAAAA"[..],
        b"",
        b"\xff\xff\xff\xff",
    ] {
        let mut wire = connect(address);
        let mut frame = crate::common::frame(true, 2, damaged);
        frame[0] |= 0x40;
        wire.send(&frame);
        assert_eq!(wire.read_close().0, 1007, "{damaged:?}");
    }
}

/// Reads a compressed message, in one or more frames, and decompresses it with a new context.
fn read_message(wire: &mut Wire) -> Vec<u8> {
    let mut compressed = Vec::new();
    loop {
        let head = wire.read_exact(2);
        let length = match head[1] {
            126 => wire.read_exact(2),
            127 => wire.read_exact(8),
            length => vec![length],
        };
        let length = length
            .iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        if compressed.is_empty() {
            assert_eq!(head[0] & 0x7f, 0x41, "a compressed text message");
        }
        compressed.extend(wire.read_exact(length));
        if head[0] & 0x80 != 0 {
            break;
        }
    }
    compressed.extend([0, 0, 0xff, 0xff]);
    let mut payload = vec![0; 4 << 20];
    let mut inflate = Inflate::new(false, 15);
    inflate
        .decompress(&compressed, &mut payload, InflateFlush::SyncFlush)
        .expect("compressed data");
    payload.truncate(inflate.total_out() as usize);
    payload
}

#[test]
fn a_long_broadcast_is_compressed_once_for_all() {
    // The bug: a broadcast of more than 256 KiB was sent uncompressed to every client.
    let mut app = Program::start(&["app", "--deflate"]);
    let address = app.address_of_event();
    let mut compressing: Vec<_> = (0..3).map(|_| connect(address)).collect();
    let mut plain = Wire::connect(address, "/");
    let long = "a long message of many words ".repeat(50_000);
    let short = "a short message of some words ".repeat(20);
    for text in [&long, &short, &long, &short] {
        app.command(serde_json::json!({"cmd": "broadcast", "text": text}));
    }
    for wire in &mut compressing {
        for text in [&long, &short, &long, &short] {
            assert!(read_message(wire) == text.as_bytes());
        }
    }
    for text in [&long, &short, &long, &short] {
        assert!(plain.read_frame().payload == text.as_bytes());
    }
    let metrics = metrics(address);
    let sent = "outrigger_compressed_messages_total{direction=\"out\"} 4\n";
    assert!(metrics.contains(sent), "{metrics}");
}

/// The metrics as text.
fn metrics(address: SocketAddr) -> String {
    let mut wire = Wire::open(address);
    wire.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut text = String::new();
    wire.stream.read_to_string(&mut text).expect("it answers");
    text
}
