//! Every rejected request gets an answer that names the error, as JSON with the right type and length.

use std::io::Write;
use std::time::Instant;

use crate::common::{PATIENCE, TestServer, Wire, impatient, patient, request};

/// Sends a request with one part replaced. Returns the status code and the error message.
fn refused(server: &TestServer, from: &str, to: &str) -> (u16, String, String) {
    let good = String::from_utf8(request("/")).expect("ASCII");
    assert!(good.contains(from), "{from}");
    let mut wire = Wire::open(server.address);
    wire.send(good.replacen(from, to, 1).as_bytes());
    let (head, body) = wire.read_response();
    assert!(
        head.contains("\r\nContent-Type: application/json\r\n"),
        "{head}"
    );
    assert!(head.contains("close\r\n"), "{head}");
    assert_eq!(body["type"], "error");
    wire.expect_end();
    let code = head
        .split(' ')
        .nth(1)
        .expect("a status")
        .parse()
        .expect("a number");
    (
        code,
        head,
        body["message"].as_str().expect("a message").to_owned(),
    )
}

#[test]
fn each_error_has_its_status_and_message() {
    let server = TestServer::echo(patient());
    for (from, to, code, says) in [
        ("GET / ", "POST / ", 405, "methods: GET"),
        ("GET / ", "GET /nothing ", 404, "nothing is served"),
        ("GET / ", "GET  / ", 400, "malformed"),
        ("HTTP/1.1", "HTTP/1.0", 505, "HTTP/1.1"),
        ("HTTP/1.1", "HTTP/2.0", 505, "HTTP/1.1"),
        ("HTTP/1.1", "HTTP/3", 505, "HTTP/1.1"),
        // The bug: the text after a space in the target was parsed as the version.
        ("GET / ", "GET /a b ", 400, "malformed"),
        ("GET / ", "GET /a HTTP/2.0 ", 400, "malformed"),
        ("Upgrade: websocket\r\n", "", 426, "WebSocket endpoint"),
        (
            "Connection: Upgrade",
            "Connection: close",
            400,
            "Connection",
        ),
        ("Version: 13", "Version: 7", 426, "13"),
        (
            "Sec-WebSocket-Key: ",
            "Sec-WebSocket-Key: A",
            400,
            "16 bytes",
        ),
        ("Host: localhost\r\n", "", 400, "Host"),
        (
            "Host: localhost\r\n",
            "Host: a\r\nHost: b\r\n",
            400,
            "duplicate field host",
        ),
        ("Host: localhost\r\n", "Host: a\r\n b\r\n", 400, "malformed"),
        ("Host: localhost\r\n", "Host: a\nX: y\r\n", 400, "malformed"),
        (
            "Host: localhost\r\n",
            "Host: localhost\r\nContent-Length: 3\r\n",
            400,
            "body",
        ),
    ] {
        let (got, head, message) = refused(&server, from, to);
        assert_eq!(got, code, "{to:?}: {message}");
        assert!(message.contains(says), "{to:?}: {message}");
        if code == 426 {
            assert!(head.contains("\r\nUpgrade: websocket\r\n"), "{head}");
            assert_eq!(
                head.contains("\r\nSec-WebSocket-Version: 13\r\n"),
                to.contains('7'),
                "{head}"
            );
        }
        if code == 405 {
            assert!(head.contains("\r\nAllow: GET\r\n"), "{head}");
        }
    }
    server.stop_and_expect_silence();
}

#[test]
fn too_large_a_head_is_431_and_too_slow_a_head_408() {
    let server = TestServer::echo(impatient());
    let (code, ..) = refused(
        &server,
        "Host",
        &format!("X: {}\r\nHost", "x".repeat(20_000)),
    );
    assert_eq!(code, 431);
    let (code, ..) = refused(&server, "Host", &format!("{}Host", "X: y\r\n".repeat(100)));
    assert_eq!(code, 431);
    let mut slow = Wire::open(server.address);
    slow.send(b"GET / HTTP/1.1\r\nHost: x\r\n");
    assert!(slow.read_response().0.starts_with("HTTP/1.1 408 "));
    slow.expect_end();
}

#[test]
fn input_that_is_not_http_is_rejected_at_once() {
    let server = TestServer::echo(patient());
    let mut tls = Wire::open(server.address);
    tls.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
    assert!(tls.read_response().0.starts_with("HTTP/1.1 400 "));
    tls.expect_end();
}

#[test]
fn a_client_over_the_limit_gets_503_until_another_disconnects() {
    let server = TestServer::echo({
        let mut config = patient();
        config.max_clients = 2;
        config
    });
    let first = Wire::connect(server.address, "/");
    let id = server.connected();
    let _second = Wire::connect(server.address, "/");
    let (code, head, _) = refused(&server, "GET", "GET");
    assert_eq!(code, 503);
    assert!(head.contains("\r\nRetry-After: 1\r\n"), "{head}");
    drop(first);
    server.connected();
    server.disconnected(id);
    let _third = Wire::connect(server.address, "/");
}

#[test]
fn a_rejected_peer_that_stays_connected_is_disconnected() {
    let server = TestServer::echo(impatient());
    let mut wire = Wire::open(server.address);
    wire.send(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n");
    wire.read_response();
    wire.expect_end();
    // The client does not close its side. The server discards its input until it closes the connection.
    let deadline = Instant::now() + PATIENCE;
    while wire.stream.write_all(b"more").is_ok() {
        assert!(
            Instant::now() < deadline,
            "the server closes the connection"
        );
    }
}
