//! The bug that started the project: two tables of clients drifted apart, because only one of the ways in which a connection
//! ends notified the upper layer. These tests end connections in every way over real sockets. Each time the service gets one
//! `disconnected` with the cause, code and reason of the table in docs/operating.md, and the registry is empty.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::common::traces::eventually;
use crate::common::{
    BINARY, PING, TEXT, TestServer, Told, Wire, frame, impatient, patient, request,
};
use outrigger::{Cause, CloseCode, CloseReason, Message};

/// Connects a client, lets `leave` end it, and returns the reason that the service gets.
fn ending(server: TestServer, leave: impl FnOnce(&TestServer, Wire)) -> CloseReason {
    let wire = Wire::connect(server.address, "/");
    let client = server.connected();
    leave(&server, wire);
    let ending = server.disconnected(client);
    server.stop_and_expect_silence();
    ending
}

fn told(cause: Cause, code: u16, reason: &str) -> CloseReason {
    CloseReason::new(cause, CloseCode(code), reason.to_owned())
}

#[test]
fn close_by_the_peer() {
    let got = ending(TestServer::echo(patient()), |_, mut wire| {
        wire.send_frame(8, b"\x0f\xa1done here");
        assert_eq!(
            wire.read_close(),
            (4001, String::new()),
            "the code is echoed"
        );
        wire.expect_end();
    });
    assert_eq!(got, told(Cause::PeerClose, 4001, "done here"));
}

#[test]
fn close_by_the_peer_without_a_code() {
    let got = ending(TestServer::echo(patient()), |_, mut wire| {
        wire.send_frame(8, b"");
        assert_eq!(
            wire.read_frame().payload,
            b"",
            "1005 never goes on the wire"
        );
        wire.expect_end();
    });
    assert_eq!(got, told(Cause::PeerClose, 1005, ""));
}

#[test]
fn close_with_data_and_an_end_behind_it() {
    let got = ending(TestServer::echo(patient()), |_, mut wire| {
        wire.send(
            &[
                frame(true, 8, b"\x03\xe8"),
                frame(true, TEXT, b"late"),
                vec![0xff; 50],
            ]
            .concat(),
        );
        wire.end_output();
        assert_eq!(wire.read_close().0, 1000);
        wire.expect_end();
    });
    assert_eq!(got, told(Cause::PeerClose, 1000, ""));
}

#[test]
fn end_of_the_connection_without_close() {
    let got = ending(TestServer::echo(patient()), |_, wire| drop(wire));
    assert_eq!(got, told(Cause::Eof, 1006, "EOF"));
}

#[test]
fn half_close_after_messages_still_gets_their_answers() {
    let got = ending(TestServer::echo(patient()), |_, mut wire| {
        wire.send(&[frame(true, TEXT, b"one"), frame(true, TEXT, b"two")].concat());
        wire.end_output();
        assert_eq!(wire.read_frame().payload, b"one");
        assert_eq!(wire.read_frame().payload, b"two");
        wire.expect_end();
    });
    assert_eq!(got, told(Cause::Eof, 1006, "EOF"));
}

#[test]
fn reset() {
    let got = ending(TestServer::echo(patient()), |_, wire| wire.reset());
    assert_eq!(got.code, CloseCode::ABNORMAL);
    assert_eq!(got.cause, Cause::ReadError);
    assert!(
        got.reason.starts_with("Client read error: "),
        "{}",
        got.reason
    );
}

#[test]
fn failing_write() {
    // The service keeps sending to a client that is gone. Either the write or the read fails first, but the end is
    // reported once.
    let server = TestServer::start(patient(), |ctx, client, _| {
        for _ in 0..100 {
            ctx.send(client, Message::Binary(&[0; 100_000]));
        }
    });
    let got = ending(server, |_, mut wire| {
        wire.send_frame(TEXT, b"go");
        wire.read_exact(1000);
        wire.reset();
    });
    assert!(
        matches!(
            got.cause,
            Cause::WriteError | Cause::ReadError | Cause::SlowConsumer
        ),
        "{got:?}"
    );
}

#[test]
fn each_protocol_error() {
    let big = {
        let mut config = patient();
        config.limits = outrigger::Limits::default().with_max_message(1000);
        config
    };
    for (bytes, code, reason) in [
        (
            vec![0xc1, 0x80],
            1002,
            "Reserved bits set where they have no meaning",
        ),
        (vec![0x83, 0x80], 1002, "Reserved opcode 0x3"),
        (vec![0x81, 0x05], 1002, "Frame without a mask"),
        (frame(false, PING, b""), 1002, "Fragmented control frame"),
        (vec![0x89, 0xfe], 1002, "Control frame over 125 bytes"),
        (
            vec![0x81, 0xfe, 0, 1],
            1002,
            "Length not in its shortest form",
        ),
        (vec![0x81, 0xff, 0x80], 1002, "Length over 63 bits"),
        (frame(true, 0, b"x"), 1002, "Continuation without a message"),
        (
            [frame(false, TEXT, b"x"), frame(true, TEXT, b"y")].concat(),
            1002,
            "New message inside an unfinished one",
        ),
        (
            frame(true, 8, b"\x03"),
            1002,
            "CLOSE frame with half a code",
        ),
        (frame(true, 8, b"\x03\xee"), 1002, "Invalid close code 1006"),
        (frame(true, TEXT, b"a\xff"), 1007, "Invalid UTF-8"),
        (frame(true, BINARY, &[0; 1001]), 1009, "Message too big"),
        (
            [
                frame(false, TEXT, &[b'x'; 600]),
                frame(true, 0, &[b'x'; 401]),
            ]
            .concat(),
            1009,
            "Message too big",
        ),
    ] {
        let got = ending(TestServer::echo(big.clone()), |_, mut wire| {
            wire.send(&bytes);
            assert_eq!(wire.read_close(), (code, reason.to_owned()));
            wire.expect_end();
        });
        assert_eq!(got, told(Cause::ProtocolError, code, reason));
    }
}

#[test]
fn invalid_text_fails_in_the_middle_of_a_frame() {
    let got = ending(TestServer::echo(patient()), |_, mut wire| {
        // The frame announces a megabyte. The server fails the connection at the first invalid byte.
        let mut bytes = vec![0x81, 0xff, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0];
        bytes.extend_from_slice(b"good\xff");
        wire.send(&bytes);
        assert_eq!(wire.read_close().0, 1007);
    });
    assert_eq!(got, told(Cause::ProtocolError, 1007, "Invalid UTF-8"));
}

#[test]
fn an_oversized_message_is_answered_while_it_is_still_being_sent() {
    // Closing with unread input would reset the connection, and the client could not read the reason.
    let mut config = patient();
    config.limits = outrigger::Limits::default().with_max_message(1000);
    let got = ending(TestServer::echo(config), |_, mut wire| {
        wire.send(&frame(true, BINARY, &vec![0; 8 << 20]));
        assert_eq!(wire.read_close(), (1009, "Message too big".to_owned()));
        wire.expect_end();
    });
    assert_eq!(got, told(Cause::ProtocolError, 1009, "Message too big"));
}

#[test]
fn silence_after_a_ping() {
    let got = ending(TestServer::echo(impatient()), |_, mut wire| {
        assert_eq!(wire.read_frame().opcode, PING);
        wire.expect_end();
    });
    assert_eq!(got, told(Cause::PingTimeout, 1006, "Connection timeout"));
}

#[test]
fn idleness() {
    let mut config = patient();
    config.timeouts.idle = Some(Duration::from_millis(100));
    let got = ending(TestServer::echo(config), |_, mut wire| {
        assert_eq!(wire.read_close(), (1001, "Idle timeout".to_owned()));
        wire.send_close(1001);
        wire.expect_end();
    });
    assert_eq!(got, told(Cause::IdleTimeout, 1001, "Idle timeout"));
}

#[test]
fn a_slow_consumer() {
    let mut config = patient();
    config.max_outbound = 1 << 20;
    config.timeouts.close = Some(Duration::from_millis(200));
    let server = TestServer::echo(config);
    let wire = Wire::connect(server.address, "/");
    let client = server.connected();
    // The client does not read. Output fills the socket, then the queue up to its limit.
    eventually("the client is disconnected", || {
        server
            .handle
            .send(client, vec![0; 100_000])
            .expect("the server runs");
        server.client_count() == 0
    });
    assert_eq!(
        server.disconnected(client),
        told(Cause::SlowConsumer, 1006, "Slow consumer"),
        "its CLOSE never left"
    );
    drop(wire);
    server.stop_and_expect_silence();
}

#[test]
fn a_slow_consumer_that_reads_later_gets_whole_frames_and_the_reason() {
    let server = TestServer::echo({
        let mut config = patient();
        config.max_outbound = 1 << 20;
        config
    });
    let mut wire = Wire::connect(server.address, "/");
    let client = server.connected();
    for _ in 0..200 {
        server
            .handle
            .send(client, vec![7; 100_000])
            .expect("the server runs");
    }
    server.client_count();
    assert_eq!(wire.read_close(), (1008, "Slow consumer".to_owned()));
    wire.send_close(1008);
    wire.expect_end();
    assert_eq!(
        server.disconnected(client),
        told(Cause::SlowConsumer, 1008, "Slow consumer")
    );
    server.stop_and_expect_silence();
}

#[test]
fn too_many_messages() {
    let mut config = patient();
    config.rate_limit = NonZeroU32::new(10);
    let got = ending(TestServer::echo(config), |_, mut wire| {
        wire.send(&frame(true, TEXT, b"x").repeat(30));
        assert_eq!(wire.read_close(), (1008, "Rate limit".to_owned()));
        wire.send_close(1008);
        wire.expect_end();
    });
    assert_eq!(got, told(Cause::RateLimit, 1008, "Rate limit"));
}

#[test]
fn the_peers_close_is_seen_behind_messages_over_the_rate_limit() {
    // The bug: the server discarded the rest of the input, which had the peer's CLOSE, and then waited for that CLOSE.
    let mut config = patient();
    config.rate_limit = NonZeroU32::new(1);
    config.timeouts.close = None;
    let got = ending(TestServer::echo(config), |_, mut wire| {
        wire.send(
            &[
                frame(true, TEXT, b"x").repeat(20),
                frame(true, 8, b"\x03\xe8"),
            ]
            .concat(),
        );
        assert_eq!(wire.read_close().0, 1008);
        wire.expect_end();
    });
    assert_eq!(got, told(Cause::RateLimit, 1008, "Rate limit"));
}

#[test]
fn close_by_the_service_inside_message() {
    let server = TestServer::start(patient(), |ctx, client, message| {
        ctx.send(client, message);
        ctx.try_close(client, CloseCode(4242), "enough")
            .expect("it is open");
        assert!(
            ctx.try_close(client, CloseCode::NORMAL, "again").is_err(),
            "the first reason stands"
        );
        assert!(
            ctx.try_send(client, message).is_err(),
            "nothing goes out behind CLOSE"
        );
    });
    let got = ending(server, |_, mut wire| {
        wire.send(
            &[
                frame(true, TEXT, b"last"),
                frame(true, TEXT, b"not handled"),
            ]
            .concat(),
        );
        assert_eq!(wire.read_frame().payload, b"last");
        assert_eq!(wire.read_close(), (4242, "enough".to_owned()));
        wire.send(&frame(true, TEXT, b"not handled either"));
        wire.send_close(4242);
        wire.expect_end();
    });
    assert_eq!(got, told(Cause::Service, 4242, "enough"));
}

#[test]
fn close_by_the_service_to_a_peer_that_never_answers() {
    let server = TestServer::echo(impatient());
    let mut wire = Wire::connect(server.address, "/");
    let client = server.connected();
    server
        .handle
        .close(client, CloseCode(4000), "bye")
        .expect("the server runs");
    assert_eq!(wire.read_close(), (4000, "bye".to_owned()));
    // The client sends neither CLOSE nor an end of input.
    assert_eq!(
        server.disconnected(client),
        told(Cause::Service, 4000, "bye")
    );
    wire.expect_end();
    server.stop_and_expect_silence();
}

#[test]
fn shutdown() {
    let server = TestServer::echo(patient());
    let mut wires: Vec<_> = (0..5).map(|_| Wire::connect(server.address, "/")).collect();
    let mut clients: Vec<_> = (0..5).map(|_| server.connected()).collect();
    server.handle.stop().expect("the server runs");
    for wire in &mut wires {
        assert_eq!(wire.read_close(), (1001, "Server shutting down".to_owned()));
        wire.send_close(1001);
        wire.expect_end();
    }
    let mut gone = Vec::new();
    for _ in 0..5 {
        let Told::Disconnected(client, ending) = server.told() else {
            panic!("only ends are left")
        };
        assert_eq!(ending, told(Cause::Shutdown, 1001, "Server shutting down"));
        gone.push(client);
    }
    gone.sort();
    clients.sort();
    assert_eq!(gone, clients);
}

#[test]
fn shutdown_of_peers_that_never_answer() {
    let server = TestServer::echo(impatient());
    let _wires: Vec<_> = (0..5).map(|_| Wire::connect(server.address, "/")).collect();
    for _ in 0..5 {
        server.connected();
    }
    let (_, rest) = server.stop();
    assert_eq!(rest.len(), 5);
    for told_last in rest {
        assert!(
            matches!(told_last, Told::Disconnected(_, ending) if ending.cause == Cause::Shutdown)
        );
    }
}

#[test]
fn a_peer_that_never_finishes_the_handshake_is_not_reported() {
    let server = TestServer::echo(impatient());
    let mut silent = Wire::open(server.address);
    let mut half = Wire::open(server.address);
    half.send(&request("/")[..40]);
    let gone = Wire::open(server.address);
    drop(gone);
    let refused = Wire::open(server.address);
    { refused }.send(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(silent.read_response().0.starts_with("HTTP/1.1 408 "));
    assert!(half.read_response().0.starts_with("HTTP/1.1 408 "));
    server.stop_and_expect_silence();
}

#[test]
fn a_client_in_a_reused_slot_has_a_new_id() {
    let server = TestServer::echo(patient());
    let mut seen = std::collections::HashSet::new();
    for _ in 0..50 {
        let wire = Wire::connect(server.address, "/");
        let client = server.connected();
        assert!(seen.insert(client.to_string()), "{client} was used before");
        drop(wire);
        server.disconnected(client);
        // Late output for the old client does not reach the next client in its slot.
        server.handle.send(client, "late").expect("the server runs");
        server
            .handle
            .close(client, CloseCode::NORMAL, "late")
            .expect("the server runs");
    }
    server.stop_and_expect_silence();
}
