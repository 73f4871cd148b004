//! HTTP calls come through the same listener as WebSocket connections, and out through the same registry.

mod common;

use std::time::Duration;

use common::{TestServer, Told, Wire, impatient, patient, request};
use outrigger::Limits;

fn call(path: &str, fields: &str, body: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n{body}").into_bytes()
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes()
}

#[test]
fn a_connection_makes_any_number_of_calls_and_may_be_upgraded_in_the_end() {
    let server = TestServer::echo(patient());
    let mut wire = Wire::open(server.address);
    wire.send(&call("/call", "Content-Length: 5\r\n", "hello"));
    assert_eq!(wire.read_response().1["body"], "hello");
    // Three in one go, the last one cut in the middle.
    let three = [
        call(
            "/call",
            "Transfer-Encoding: chunked\r\n",
            "3\r\none\r\n0\r\n\r\n",
        ),
        call("/call", "", ""),
        call("/call", "Content-Length: 5\r\n", "th"),
    ];
    wire.send(&three.concat());
    assert_eq!(wire.read_response().1["body"], "one");
    assert_eq!(wire.read_response().1["body"], "");
    wire.send(b"ree");
    let (head, body) = wire.read_response();
    assert_eq!(body["body"], "three");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("\r\nContent-Type: application/json\r\n"),
        "{head}"
    );
    assert!(!head.contains("Connection: close"), "{head}");

    wire.send(&request("/chat"));
    assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
    wire.send_frame(1, b"a message");
    assert_eq!(wire.read_frame().payload, b"a message");
    wire.send_close(1000);
    wire.read_close();
}

#[test]
fn the_last_answer_is_followed_by_the_end() {
    let server = TestServer::echo(patient());
    for request in [
        "POST /call HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
        "POST /call HTTP/1.0\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi",
    ] {
        let mut wire = Wire::open(server.address);
        wire.send(request.as_bytes());
        wire.end_output();
        let (head, body) = wire.read_response();
        assert!(head.contains("\r\nConnection: close\r\n"), "{head}");
        assert_eq!(body["body"], "hi");
        wire.expect_end();
    }
}

#[test]
fn a_body_that_cannot_be_taken_is_refused_before_it_comes() {
    let mut config = patient();
    config.limits = Limits {
        max_message: 1000,
        ..Limits::default()
    };
    let server = TestServer::echo(config);
    for (fields, code) in [
        ("Content-Length: 1001\r\n", 413),
        ("Transfer-Encoding: chunked\r\n", 413),
        ("Content-Length: five\r\n", 400),
        ("Content-Length: +5\r\n", 400),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", 400),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Transfer-Encoding: gzip, chunked\r\n", 501),
    ] {
        let mut wire = Wire::open(server.address);
        wire.send(&call("/call", fields, "3e9\r\n"));
        let (head, body) = wire.read_response();
        assert!(
            head.starts_with(&format!("HTTP/1.1 {code} ")),
            "{fields}: {head}"
        );
        assert_eq!(body["type"], "error");
        wire.expect_end();
    }
    let mut wire = Wire::open(server.address);
    wire.send(&call("/nothing", "Content-Length: 900\r\n", ""));
    assert!(wire.read_response().0.starts_with("HTTP/1.1 404 "));
}

#[test]
fn a_body_is_asked_for_where_it_waits() {
    let server = TestServer::echo(patient());
    let mut wire = Wire::open(server.address);
    wire.send(&call(
        "/call",
        "Expect: 100-continue\r\nContent-Length: 5\r\n",
        "",
    ));
    assert_eq!(wire.read_head(), "HTTP/1.1 100 Continue\r\n\r\n");
    wire.send(b"hello");
    assert_eq!(wire.read_response().1["body"], "hello");
}

#[test]
fn a_slow_body_gets_408_and_a_silent_connection_just_ends() {
    let mut config = impatient();
    config.timeouts = outrigger::Timeouts {
        handshake: Some(Duration::from_millis(200)),
        ..patient().timeouts
    };
    let server = TestServer::echo(config);
    let mut wire = Wire::open(server.address);
    wire.send(&call("/call", "Content-Length: 5\r\n", "hell"));
    assert!(wire.read_response().0.starts_with("HTTP/1.1 408 "));
    wire.expect_end();
    let mut wire = Wire::open(server.address);
    wire.send(&call("/call", "", ""));
    assert!(wire.read_response().0.starts_with("HTTP/1.1 200 "));
    wire.expect_end();
}

#[test]
fn who_leaves_before_the_answer_is_told_of_once() {
    let server = TestServer::echo(patient());
    for path in ["/call/never", "/call/stream"] {
        for reset in [false, true] {
            let mut wire = Wire::open(server.address);
            wire.send(&get(path));
            let Told::Called(caller, _) = server.told() else {
                panic!("the service is called");
            };
            if path == "/call/stream" {
                let head = wire.read_head();
                assert!(
                    head.contains("\r\nContent-Type: text/event-stream\r\n"),
                    "{head}"
                );
                assert!(
                    head.contains("\r\nTransfer-Encoding: chunked\r\n"),
                    "{head}"
                );
                assert_eq!(wire.read_exact(18), b"d\r\ndata: first\n\n\r\n");
            }
            if reset {
                wire.reset();
            } else {
                drop(wire);
            }
            assert!(matches!(server.told(), Told::Abandoned(gone) if gone == caller));
        }
    }
    // One that waits when the server stops is told of too.
    let mut wire = Wire::open(server.address);
    wire.send(&get("/call/stream"));
    assert!(matches!(server.told(), Told::Called(..)));
    let (_, told) = server.stop();
    assert!(matches!(*told, [Told::Abandoned(_)]), "{told:?}");
}

#[test]
fn what_a_caller_sends_behind_its_call_does_not_hide_its_end() {
    let server = TestServer::echo(patient());
    for reset in [false, true] {
        let mut wire = Wire::open(server.address);
        wire.send(&[get("/call/never"), b"\r\nGET".to_vec()].concat());
        let Told::Called(caller, _) = server.told() else {
            panic!("the service is called");
        };
        if reset {
            wire.reset();
        } else {
            drop(wire);
        }
        assert!(matches!(server.told(), Told::Abandoned(gone) if gone == caller));
    }
}

#[test]
fn an_answer_that_is_taken_slowly_is_taken_whole() {
    let mut config = patient();
    config.timeouts = impatient().timeouts;
    let server = TestServer::echo(config);
    let body = "x".repeat(4 << 20);
    let fields = format!("Content-Length: {}\r\n", body.len());
    for (head, last) in [("", false), ("Connection: close\r\n", true)] {
        let mut wire = Wire::open(server.address);
        rustix::net::sockopt::set_socket_recv_buffer_size(&wire.stream, 65536).expect("a socket");
        wire.send(&call("/call", &format!("{head}{fields}"), &body));
        let head = wire.read_head();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        // Six times as long as the server waits for who does nothing.
        let began = std::time::Instant::now();
        let mut length = 0;
        while length < body.len() + 11 {
            length += wire.read_exact(50_000.min(body.len() + 11 - length)).len();
            while began.elapsed() < Duration::from_millis(1200) * length as u32 / body.len() as u32
            {
                std::thread::yield_now();
            }
        }
        if last {
            wire.expect_end();
        }
    }
}

#[test]
fn the_answer_to_head_is_a_head() {
    let server = TestServer::echo(patient());
    let mut wire = Wire::open(server.address);
    let head = |path: &str| format!("HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes();
    wire.send(&[head("/call/stream"), b"\r\n\r\n".to_vec(), head("/nothing")].concat());
    assert!(
        wire.read_head()
            .contains("\r\nTransfer-Encoding: chunked\r\n")
    );
    assert!(wire.read_head().starts_with("HTTP/1.1 404 "));
    wire.expect_end();
}

#[test]
fn a_server_that_stops_answers_what_it_has_and_nothing_new() {
    let server = TestServer::echo(patient());
    let address = server.address;
    let mut idle = Wire::open(address);
    idle.send(&get("/healthz"));
    idle.read_response();
    let mut wire = Wire::open(address);
    wire.send(&get("/call/wait"));
    assert!(matches!(server.told(), Told::Called(..)));
    let stopping = std::thread::spawn(move || server.stop());
    idle.expect_end();
    wire.send(&get("/call"));
    // The service answers the first when it hears that the server stops.
    let (head, body) = wire.read_response();
    assert!(head.contains("\r\nConnection: close\r\n"), "{head}");
    assert_eq!(body["body"], "stopping");
    wire.expect_end();
    let (_, told) = stopping.join().expect("it stops");
    assert!(told.is_empty(), "{told:?}");
}

/// The samples of a page of metrics, checked as strictly as those who read them do.
fn samples(text: &str) -> std::collections::BTreeMap<String, f64> {
    let mut samples = std::collections::BTreeMap::new();
    let mut family = (String::new(), String::new());
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family.0 = help.split_once(' ').expect("a text").0.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a type");
            assert_eq!(name, family.0, "HELP and TYPE belong together");
            assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            family.1 = kind.to_owned();
        } else {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            let bare = name.split('{').next().expect("a name");
            let suffix = bare
                .strip_prefix(&*family.0)
                .expect("a sample of its family");
            assert_eq!(family.1 == "histogram", !suffix.is_empty(), "{line}");
            assert!(
                matches!(suffix, "" | "_bucket" | "_sum" | "_count"),
                "{line}"
            );
            let value = value.parse().expect("a number");
            assert!(
                samples.insert(name.to_owned(), value).is_none(),
                "{line} comes twice"
            );
        }
    }
    samples
}

#[test]
fn a_refusal_after_head_has_its_body() {
    let server = TestServer::echo(patient());
    let mut wire = Wire::open(server.address);
    wire.send(b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nmalformed\r\n\r\n");
    assert!(wire.read_head().starts_with("HTTP/1.1 200 "));
    let (head, body) = wire.read_response();
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert_eq!(body["type"], "error");
}

#[test]
fn metrics_count_what_happened() {
    let server = TestServer::echo(patient());
    let mut client = Wire::connect(server.address, "/");
    let id = server.connected();
    client.send_frame(1, b"hello");
    assert_eq!(client.read_frame().payload, b"hello");
    client.send_close(1000);
    client.read_close();
    server.disconnected(id);
    let stays = Wire::connect(server.address, "/");
    let mut wire = Wire::open(server.address);
    wire.send(&get("/nothing"));
    wire.read_response();
    let mut wire = Wire::open(server.address);
    wire.send(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n");
    let head = wire.read_head();
    assert!(
        head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
        "{head}"
    );
    let mut text = String::new();
    std::io::Read::read_to_string(&mut wire.stream, &mut text).expect("UTF-8");
    let samples = samples(&text);
    for (name, value) in [
        ("outrigger_clients", 1.0),
        ("outrigger_connections_accepted_total", 4.0),
        ("outrigger_responses_total{code=\"101\"}", 2.0),
        ("outrigger_responses_total{code=\"404\"}", 1.0),
        ("outrigger_disconnects_total{cause=\"close\"}", 1.0),
        ("outrigger_disconnects_total{cause=\"eof\"}", 0.0),
        ("outrigger_received_messages_total", 1.0),
        ("outrigger_sent_messages_total", 1.0),
        ("outrigger_queued_bytes", 0.0),
    ] {
        assert_eq!(samples.get(name), Some(&value), "{name}\n{text}");
    }
    assert!(samples["outrigger_received_bytes_total"] > 300.0);
    let turns = "outrigger_loop_turn_seconds";
    let buckets = samples
        .iter()
        .filter(|(name, _)| name.starts_with("outrigger_loop_turn_seconds_bucket"));
    assert!(
        buckets
            .clone()
            .all(|(_, count)| *count <= samples[&format!("{turns}_count")])
    );
    assert_eq!(
        samples[&format!("{turns}_bucket{{le=\"+Inf\"}}")],
        samples[&format!("{turns}_count")]
    );
    drop(stays);
}

#[test]
fn the_server_tells_of_itself() {
    let server = TestServer::echo(patient());
    let client = Wire::connect(server.address, "/chat");
    let mut wire = Wire::open(server.address);
    wire.send(&get("/healthz"));
    assert_eq!(wire.read_response().1["status"], "ok");
    wire.send(&get("/readyz"));
    assert_eq!(wire.read_response().1["status"], "ready");
    wire.send(&get("/status"));
    let (_, status) = wire.read_response();
    assert_eq!(status["client_count"], 1);
    assert_eq!(status["clients"][0]["path"], "/chat");
    wire.send(b"HEAD /status HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = wire.read_head();
    assert!(
        head.starts_with("HTTP/1.1 200 ") && head.contains("Content-Length: "),
        "{head}"
    );
    wire.send(&call("/status", "", ""));
    let (head, _) = wire.read_response();
    assert!(head.starts_with("HTTP/1.1 405 "), "{head}");
    assert!(head.contains("\r\nAllow: GET, HEAD\r\n"), "{head}");
    drop(client);
}
