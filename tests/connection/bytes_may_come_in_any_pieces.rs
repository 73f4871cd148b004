//! TCP has no message boundaries: the same bytes have the same effect in any pieces.

use crate::common::{BINARY, CLOSE, PING, PONG, TEXT, TestServer, Wire, frame, patient, request};
use outrigger::Cause;

#[test]
fn one_byte_per_segment() {
    let server = TestServer::echo(patient());
    let mut wire = Wire::open(server.address);
    for byte in request("/") {
        wire.send(&[byte]);
    }
    assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
    let parts = [
        frame(false, TEXT, "κόσ".as_bytes()),
        frame(true, PING, b"between"),
        frame(true, 0, "με".as_bytes()),
        frame(true, BINARY, &[9; 300]),
        frame(true, CLOSE, b"\x03\xe8"),
    ];
    for byte in parts.concat() {
        wire.send(&[byte]);
    }
    let pong = wire.read_frame();
    assert_eq!((pong.opcode, &pong.payload[..]), (PONG, &b"between"[..]));
    let text = wire.read_frame();
    assert_eq!((text.opcode, &text.payload[..]), (TEXT, "κόσμε".as_bytes()));
    assert_eq!(wire.read_frame().payload, [9; 300]);
    assert_eq!(wire.read_close().0, 1000);
}

#[test]
fn a_thousand_frames_in_one_segment() {
    let server = TestServer::echo(patient());
    let mut wire = Wire::connect(server.address, "/");
    let bytes: Vec<u8> = (0..1000)
        .flat_map(|n: u32| frame(true, BINARY, &n.to_be_bytes()))
        .collect();
    wire.send(&bytes);
    for n in 0..1000u32 {
        assert_eq!(wire.read_frame().payload, n.to_be_bytes());
    }
}

#[test]
fn frames_may_come_together_with_the_request() {
    let server = TestServer::echo(patient());
    let mut wire = Wire::open(server.address);
    wire.send(&[request("/"), frame(true, TEXT, b"early")].concat());
    assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
    assert_eq!(wire.read_frame().payload, b"early");
}

#[test]
fn messages_of_every_size_are_echoed_unchanged() {
    let server = TestServer::echo(patient());
    let mut wire = Wire::connect(server.address, "/");
    for size in [
        0,
        1,
        125,
        126,
        127,
        65535,
        65536,
        65537,
        1 << 20,
        (16 << 20) - 1,
        16 << 20,
    ] {
        let payload: Vec<u8> = (0..size).map(|at: usize| (at * 131 + 7) as u8).collect();
        wire.send_frame(BINARY, &payload);
        assert!(wire.read_frame().payload == payload, "{size} bytes");
    }
    wire.send_frame(BINARY, &vec![0; (16 << 20) + 1]);
    assert_eq!(wire.read_close().0, 1009, "one byte over the default limit");
}

#[test]
fn a_fragmented_message_counts_as_a_whole_against_the_limit() {
    let limits = outrigger::Limits::default().with_max_message(1000);
    let server = TestServer::echo({
        let mut config = patient();
        config.limits = limits;
        config
    });
    let mut wire = Wire::connect(server.address, "/");
    for _ in 0..10 {
        wire.send(&frame(false, BINARY, &[1; 500]));
        wire.send(&frame(true, 0, &[2; 500]));
        assert_eq!(wire.read_frame().payload.len(), 1000);
    }
    let client = server.connected();
    wire.send(&frame(false, BINARY, &[1; 1000]));
    wire.send(&frame(true, 0, &[2; 1]));
    assert_eq!(wire.read_close().0, 1009);
    drop(wire);
    assert_eq!(server.disconnected(client).cause, Cause::ProtocolError);
}
