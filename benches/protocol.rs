//! The layers of the protocol: masking, frame headers, the handshake, UTF-8, and whole conversations.
//!
//! `cargo bench --bench protocol`

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use outrigger::protocol::{
    Accept, FrameHeader, Input, Limits, OpCode, Request, Role, Shared, Time, Utf8Stream, WebSocket,
    apply_mask, encode_frame, http::find_end,
};

const HEAD: &[u8] = b"GET /chat HTTP/1.1\r\nHost: 127.0.0.1:7070\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\n\
    Accept-Language: en-US,en;q=0.9\r\nAccept-Encoding: gzip, deflate, br\r\nOrigin: http://127.0.0.1:7070\r\n\
    Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\nSec-WebSocket-Version: 13\r\n\r\n";

fn mask(c: &mut Criterion) {
    let mut group = c.benchmark_group("mask");
    for size in [8, 20, 125, 1024, 65536] {
        let mut payload = vec![7; size];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| apply_mask(black_box(&mut payload), black_box([1, 2, 3, 4])));
        });
    }
}

fn frame(c: &mut Criterion) {
    let mut group = c.benchmark_group("frame");
    for (name, bytes) in [
        ("short", &[0x82, 0x94, 1, 2, 3, 4][..]),
        ("16-bit", &[0x82, 0xfe, 4, 0, 1, 2, 3, 4]),
        ("64-bit", &[0x82, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 1, 2, 3, 4]),
    ] {
        group.bench_function(BenchmarkId::new("parse", name), |b| {
            b.iter(|| FrameHeader::parse(black_box(bytes), Role::Client, false))
        });
    }
    let mut out = Vec::new();
    group.bench_function("encode 20 bytes", |b| {
        b.iter(|| {
            out.clear();
            encode_frame(OpCode::Binary, black_box(&[7; 20]), &mut out);
        });
    });
}

fn opening(c: &mut Criterion) {
    let mut out = Vec::new();
    c.bench_function("handshake", |b| {
        b.iter(|| {
            out.clear();
            let end = find_end(b"", black_box(HEAD), Limits::MAX_HEAD);
            let request = Request::parse(HEAD).expect("valid");
            request
                .upgrade()
                .expect("an upgrade")
                .write_response(&Accept::default(), &mut out);
            end
        });
    });
}

fn utf8(c: &mut Criterion) {
    let mut group = c.benchmark_group("utf8");
    for (name, text) in [
        ("ascii", "hello world. ".repeat(1260)),
        ("greek", "κόσμε ".repeat(1490)),
    ] {
        group.throughput(Throughput::Bytes(text.len() as u64));
        for piece in [16384, 1000] {
            group.bench_function(BenchmarkId::new(name, piece), |b| {
                b.iter_batched_ref(
                    || String::with_capacity(text.len()),
                    |whole| {
                        let mut stream = Utf8Stream::default();
                        for piece in black_box(text.as_bytes()).chunks(piece) {
                            stream.push(piece, whole).expect("valid");
                        }
                    },
                    BatchSize::SmallInput,
                );
            });
        }
    }
}

/// Receiving all messages of one read.
fn conversation(c: &mut Criterion) {
    let mut group = c.benchmark_group("conversation");
    for (size, count) in [(20usize, 1usize), (20, 32), (1024, 16), (16384, 1)] {
        let mut bytes = Vec::new();
        for _ in 0..count {
            let mut frame = vec![0x82];
            match size {
                ..126 => frame.push(0x80 | size as u8),
                _ => frame.extend([0x80 | 126, (size >> 8) as u8, size as u8]),
            }
            frame.extend([1, 2, 3, 4]);
            frame.resize(frame.len() + size, 7);
            bytes.extend(frame);
        }
        let now = Time::from_millis(0);
        let mut websocket = open_websocket(now);
        let (mut shared, mut out) = (Shared::default(), Vec::new());
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(format!("{count} of {size}"), |b| {
            b.iter(|| {
                let mut input = Input::new(black_box(&mut bytes));
                let mut messages = 0;
                while let Some(message) = websocket.receive(now, &mut input, &mut shared, &mut out)
                {
                    black_box(message.as_message());
                    messages += 1;
                }
                // The payloads are unmasked in place, so every other iteration sees them masked. The headers do not
                // change.
                assert_eq!(messages, count);
            });
        });
    }
}

fn open_websocket(now: Time) -> WebSocket {
    let request = Request::parse(HEAD).expect("valid");
    let upgrade = request.upgrade().expect("an upgrade");
    WebSocket::accept(now, &upgrade, &Accept::default(), None, &mut Vec::new())
}

criterion_group!(benches, mask, frame, opening, utf8, conversation);
criterion_main!(benches);
