//! HTTP calls use the same listener and the same registry as WebSocket connections.

use std::io::ErrorKind;
use std::time::Duration;

use outrigger::{
    ClientId, Context, Rejection, Report, Request, Response, Route, Server, Service, StatusCode,
    Token,
};

use crate::common::{PATIENCE, TestServer, Told, Wire, impatient, patient, request};

fn call(path: &str, fields: &str, body: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n{body}").into_bytes()
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes()
}

#[test]
fn a_connection_makes_any_number_of_calls_and_can_then_be_upgraded() {
    let server = TestServer::echo(patient());
    let mut wire = Wire::open(server.address);
    wire.send(&call("/call", "Content-Length: 5\r\n", "hello"));
    assert_eq!(wire.read_response().1["body"], "hello");
    // Three calls in one write, the last one incomplete.
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
fn a_value_that_a_service_puts_into_a_field_cannot_split_the_answer() {
    let server = TestServer::echo(patient());
    let mut wire = Wire::open(server.address);
    let delete = |value: &str| {
        let length = value.len();
        let line = "DELETE /call/accepted HTTP/1.1\r\nHost: localhost";
        wire.send(format!("{line}\r\nContent-Length: {length}\r\n\r\n{value}").as_bytes());
        wire.read_head()
    };
    let answers = [
        "7f3",
        "",
        "7\r\nX-Evil: 1",
        "7\n",
        "7\r\n\r\nHTTP/1.1 200 OK\r\n",
    ]
    .map(delete);
    for head in &answers {
        assert!(head.starts_with("HTTP/1.1 202 Accepted\r\n"), "{head}");
        assert!(head.contains("\r\nContent-Length: 0\r\n"), "{head}");
        assert!(!head.contains("Content-Type"), "{head}");
    }
    assert!(answers[0].contains("\r\nX-Text: 7f3\r\n"));
    assert!(answers[1].contains("\r\nX-Text: \r\n"));
    for head in &answers[2..] {
        assert!(
            !head.contains("X-Text") && !head.contains("X-Evil"),
            "{head}"
        );
    }
    // The connection is still in step.
    wire.send(&call("/call", "Content-Length: 5\r\n", "hello"));
    assert_eq!(wire.read_response().1["body"], "hello");
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
fn a_body_that_is_not_allowed_is_rejected_from_its_header() {
    let mut config = patient();
    config.limits = outrigger::Limits::default().with_max_message(1000);
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
fn a_body_with_expect_gets_100_continue() {
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
fn a_slow_request_gets_408_and_an_idle_connection_is_kept_as_announced() {
    let mut config = impatient();
    config.timeouts = patient()
        .timeouts
        .with_handshake(Duration::from_millis(500));
    let server = TestServer::echo(config);
    let mut wire = Wire::open(server.address);
    wire.send(&call("/call", "Content-Length: 5\r\n", "hell"));
    assert!(wire.read_response().0.starts_with("HTTP/1.1 408 "));
    wire.expect_end();
    let mut wire = Wire::open(server.address);
    wire.send(&call("/call", "", ""));
    let (head, _) = wire.read_response();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("\r\nKeep-Alive: timeout=75\r\n"), "{head}");
    // The bug: an idle connection ended after the time limit of a request, while a proxy sent another one.
    let pause = Some(Duration::from_secs(1));
    wire.stream.set_read_timeout(pause).expect("a socket");
    let end = std::io::Read::read(&mut wire.stream, &mut [0]);
    assert!(end.is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
    wire.stream
        .set_read_timeout(Some(PATIENCE))
        .expect("a socket");
    wire.send(&call("/call", "", ""));
    assert!(wire.read_response().0.starts_with("HTTP/1.1 200 "));
    // A request that has begun has less time.
    wire.send(b"POST /call HTTP/1.1\r\nHost: localhost\r\n");
    assert!(wire.read_response().0.starts_with("HTTP/1.1 408 "));
    wire.expect_end();
}

/// The kernel shows the timer of a connection that it probes as 2.
#[cfg(target_os = "linux")]
#[test]
fn a_caller_that_may_vanish_without_a_fin_is_probed() {
    let server = TestServer::echo(patient());
    let mut wire = Wire::open(server.address);
    wire.send(&get("/call/never"));
    assert!(matches!(server.told(), Told::Called(..)));
    let client = wire.stream.local_addr().expect("connected").port();
    let (from, to) = (server.address.port(), client);
    let ends = [format!(":{from:04X} "), format!(":{to:04X} ")];
    let table = std::fs::read_to_string("/proc/net/tcp").expect("readable");
    let line = table.lines().find(|line| {
        let mut fields = line
            .split_inclusive(' ')
            .filter(|field| *field != " ")
            .skip(1);
        ends.iter()
            .all(|end| fields.next().is_some_and(|field| field.ends_with(end)))
    });
    let timer = line.and_then(|line| line.split_whitespace().nth(5));
    // The bug: a call whose caller was gone ran for ever.
    assert!(
        timer.is_some_and(|timer| timer.starts_with("02:")),
        "{table}"
    );
}

#[test]
fn a_caller_that_disconnects_before_its_answer_is_reported_once() {
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
    // A call that waits when the server stops is reported, too.
    let mut wire = Wire::open(server.address);
    wire.send(&get("/call/stream"));
    assert!(matches!(server.told(), Told::Called(..)));
    let (_, told) = server.stop();
    assert!(matches!(*told, [Told::Abandoned(_)]), "{told:?}");
}

#[test]
fn input_after_a_call_does_not_hide_the_end_of_the_connection() {
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
fn a_slow_caller_gets_its_whole_answer() {
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
        // Six times as long as the server waits for an idle caller.
        let began = std::time::Instant::now();
        let mut length = 0;
        while length < body.len() + 11 {
            length += wire.read_exact(50_000.min(body.len() + 11 - length)).len();
            let due = Duration::from_millis(3000) * length as u32 / body.len() as u32;
            std::thread::park_timeout(due.saturating_sub(began.elapsed()));
        }
        if last {
            wire.expect_end();
        }
    }
}

#[test]
fn the_answer_to_head_has_no_body() {
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
fn a_stopping_server_answers_pending_calls_and_no_new_ones() {
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
    // The service answers the first call when the server begins to stop.
    let (head, body) = wire.read_response();
    assert!(head.contains("\r\nConnection: close\r\n"), "{head}");
    assert_eq!(body["body"], "stopping");
    wire.expect_end();
    let (_, told) = stopping.join().expect("it stops");
    assert!(told.is_empty(), "{told:?}");
}

/// The samples of a page of metrics, parsed strictly.
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
fn a_rejection_after_head_has_its_body() {
    let server = TestServer::echo(patient());
    let mut wire = Wire::open(server.address);
    wire.send(b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nmalformed\r\n\r\n");
    assert!(wire.read_head().starts_with("HTTP/1.1 200 "));
    let (head, body) = wire.read_response();
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert_eq!(body["type"], "error");
}

#[test]
fn metrics_count_events() {
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

/// A service that is never ready.
struct NotReady;

impl Service for NotReady {
    fn report(&self) -> Option<&dyn Report> {
        Some(self)
    }
}

impl Report for NotReady {
    fn is_ready(&self) -> bool {
        false
    }
}

/// A service that everybody may call.
struct Page;

impl Service for Page {
    fn route(&self, _: &Request<'_>) -> Result<Route, Rejection> {
        Ok(Route::call().public())
    }

    fn call(&mut self, ctx: &mut Context, caller: ClientId, _: &Request<'_>, _: &[u8]) {
        ctx.respond(caller, &Response::json(StatusCode::OK, "{}"));
    }
}

#[test]
fn a_public_call_needs_neither_a_token_nor_a_scope() {
    // The bug: everybody got 403 once there was a token, because a peer without one has the lowest scope.
    let mut config = patient();
    config.listen = vec![([127, 0, 0, 1], 0).into()];
    config.access.tokens = Token::new("s3cret").into();
    let server = Server::bind(config, Page).expect("a free port");
    let address = server.local_addresses()[0].tcp().expect("TCP");
    let handle = server.handle();
    let loop_thread = std::thread::spawn(move || server.run().expect("the loop runs"));
    for target in ["/page", "/page?token=s3cret", "/page?token=wrong"] {
        let mut wire = Wire::open(address);
        wire.send(&get(target));
        let (answer, _) = wire.read_response();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    handle.stop().expect("the server runs");
    loop_thread.join().expect("no panic");
}

#[test]
fn readiness_is_an_answer_and_a_metric() {
    let mut config = patient();
    config.listen = vec![([127, 0, 0, 1], 0).into()];
    let server = Server::bind(config, NotReady).expect("a free port");
    let address = server.local_addresses()[0].tcp().expect("TCP");
    let handle = server.handle();
    let loop_thread = std::thread::spawn(move || server.run().expect("the loop runs"));
    let ready = TestServer::echo(patient());
    for (address, head, value) in [
        (address, "HTTP/1.1 503 ", "outrigger_ready 0"),
        (ready.address, "HTTP/1.1 200 ", "outrigger_ready 1"),
    ] {
        let mut wire = Wire::open(address);
        wire.send(&get("/readyz"));
        let (answer, _) = wire.read_response();
        assert!(answer.starts_with(head), "{answer}");
        let mut wire = Wire::open(address);
        wire.send(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n");
        wire.read_head();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut wire.stream, &mut text).expect("UTF-8");
        assert!(text.lines().any(|line| line == value), "{text}");
    }
    handle.stop().expect("the server runs");
    loop_thread.join().expect("no panic");
}

#[test]
fn status_and_metrics_describe_the_server() {
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
