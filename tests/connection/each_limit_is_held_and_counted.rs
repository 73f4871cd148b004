//! Tests of each limit: what is within it passes, one more gets the documented answer, and the metrics count it.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

use crate::common::program::Program;
use crate::common::traces::{TraceFile, eventually};
use crate::common::{BINARY, TEXT, TestServer, Wire, frame, patient, request};

/// A server with one limit, and the metric that counts how often it is exceeded.
struct Limited {
    _program: Program,
    address: SocketAddr,
    metric: &'static str,
}

impl Limited {
    fn new(args: &[&str], metric: &'static str) -> Self {
        let program = Program::start(&[&["echo", "--log", "off"], args].concat());
        let address = program.address();
        let server = Self {
            _program: program,
            address,
            metric,
        };
        assert_eq!(server.count(), 0.0, "{metric} at the start");
        server
    }

    /// A sample of `/metrics`. A missing sample is 0.
    fn count(&self) -> f64 {
        sample(self.address, self.metric)
    }

    fn expect_count(&self, count: f64) {
        eventually(self.metric, || self.count() == count);
    }

    /// The status of a handshake.
    fn status(&self, request: &[u8]) -> (Wire, String) {
        let mut wire = Wire::open(self.address);
        wire.send(request);
        let status = wire.read_head()[9..12].to_owned();
        (wire, status)
    }
}

fn sample(address: SocketAddr, name: &str) -> f64 {
    let mut wire = Wire::open(address);
    wire.send(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n");
    let mut text = String::new();
    wire.stream.read_to_string(&mut text).expect("UTF-8");
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().expect("a number"))
}

/// A handshake with additional headers.
fn request_with(fields: &str) -> Vec<u8> {
    let request = String::from_utf8(request("/")).expect("ASCII");
    request
        .replacen("Upgrade:", &format!("{fields}Upgrade:"), 1)
        .into_bytes()
}

#[test]
fn clients() {
    for (limit, metric) in [
        (
            "--max-clients",
            "outrigger_refusals_total{reason=\"max_clients\"}",
        ),
        (
            "--max-clients-per-address",
            "outrigger_refusals_total{reason=\"max_clients_per_address\"}",
        ),
    ] {
        let server = Limited::new(&[limit, "2"], metric);
        let _both = [(); 2].map(|()| Wire::connect(server.address, "/"));
        server.expect_count(0.0);
        let (wire, status) = server.status(&request("/"));
        assert_eq!(status, "503");
        wire.end_output();
        server.expect_count(1.0);
        drop(_both);
        // The server must notice first that they have disconnected.
        eventually("there is room again", || {
            server.status(&request("/")).1 == "101"
        });
    }
}

#[test]
fn calls_of_an_address_count_with_its_clients() {
    let args = [
        "processes",
        "--log",
        "off",
        "--max-clients-per-address",
        "1",
    ];
    let program = Program::start(&args);
    let address = program.address();
    let exec = |arguments: &str| {
        let body = format!(r#"{{"command":"sleep","args":["{arguments}"]}}"#);
        let mut wire = Wire::open(address);
        let fields = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length";
        let length = body.len();
        let call = format!("POST /process/exec HTTP/1.1\r\n{fields}: {length}\r\n\r\n{body}");
        wire.send(call.as_bytes());
        wire
    };
    let pending = exec("1000");
    eventually("it is pending", || {
        sample(address, "outrigger_pending_calls") == 1.0
    });
    assert_eq!(&exec("0").read_head()[9..12], "503");
    drop(pending);
    eventually("its end is noticed", || {
        &exec("0").read_head()[9..12] == "200"
    });
    assert_eq!(&exec("0").read_head()[9..12], "200", "and that of this one");
}

#[test]
fn clients_of_a_principal() {
    // The bug: one person could take the places of all.
    let socket = TraceFile::new("principal.sock");
    let listen = format!("unix:{}", socket.path());
    let program = Program::start(&[
        "echo",
        "--log",
        "off",
        "--listen",
        "127.0.0.1:0",
        "--listen",
        &listen,
        "--max-clients-per-principal",
        "2",
    ]);
    let address = program.address();
    let metric = "outrigger_refusals_total{reason=\"max_clients_per_principal\"}";
    let connect = || {
        let mut stream = UnixStream::connect(socket.path()).expect("the server listens");
        stream.write_all(&request("/")).expect("a request");
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("an answer");
        (stream, String::from_utf8_lossy(&status[9..]).into_owned())
    };
    let [first, _second] = [connect(), connect()];
    assert_eq!((&*first.1, &*_second.1), ("101", "101"));
    assert_eq!(connect().1, "503");
    eventually(metric, || sample(address, metric) == 1.0);
    // Others are not limited, and clients without a name do not count together.
    let _others: Vec<_> = (0..4).map(|_| Wire::connect(address, "/")).collect();
    drop(first);
    eventually("there is room again", || connect().1 == "101");
}

#[test]
fn memory_that_services_hold() {
    let program = Program::start(&["processes", "--log", "off", "--memory", "1MiB"]);
    let address = program.address();
    let spawn = |script: &str| {
        let body = serde_json::json!({"command": "sh", "args": ["-c", script]});
        crate::common::call(address, "POST", "/process/spawn", Some(body))
    };
    // The output of processes counts. When too much is held, the oldest of it is dropped, and others are started.
    for _ in 0..4 {
        eventually("a process is started", || {
            let (status, answer) = spawn("head -c 2000000 /dev/zero; sleep 1000");
            assert!(status == 200 || answer["message"] == "too little memory");
            status == 200
        });
    }
    assert_eq!(
        sample(address, "outrigger_limit{limit=\"memory\"}"),
        1048576.0
    );
    eventually("output is given back", || {
        let held = sample(address, "outrigger_held_memory_bytes");
        (100_000.0..786_432.0).contains(&held)
    });
    // What was started goes on, and can be ended.
    let (status, list) = crate::common::call(address, "GET", "/process", None);
    assert_eq!(status, 200, "{list}");
}

#[test]
fn the_size_of_a_head() {
    let metric = "outrigger_refusals_total{reason=\"head_size\"}";
    let server = Limited::new(&["--max-head", "1024"], metric);
    let padding = 1024 - request_with("X: \r\n").len();
    let of = |padding| request_with(&format!("X: {}\r\n", "x".repeat(padding)));
    assert_eq!(of(padding).len(), 1024);
    assert_eq!(server.status(&of(padding)).1, "101");
    server.expect_count(0.0);
    assert_eq!(server.status(&of(padding + 1)).1, "431");
    server.expect_count(1.0);
}

#[test]
fn the_fields_of_a_head() {
    let metric = "outrigger_refusals_total{reason=\"head_fields\"}";
    let server = Limited::new(&[], metric);
    // At most 64, of which a handshake itself has five.
    let status = |more| server.status(&request_with(&"X: y\r\n".repeat(more))).1;
    assert_eq!(status(59), "101");
    server.expect_count(0.0);
    assert_eq!(status(60), "431");
    server.expect_count(1.0);
}

#[test]
fn the_length_of_a_message() {
    let metric = "outrigger_protocol_errors_total{code=\"1009\"}";
    let server = Limited::new(&["--max-message", "1000"], metric);
    let mut wire = Wire::connect(server.address, "/");
    wire.send_frame(TEXT, &[b'x'; 1000]);
    assert_eq!(wire.read_frame().payload.len(), 1000);
    wire.send_frame(TEXT, &[b'x'; 1001]);
    assert_eq!(wire.read_close().0, 1009);
    drop(wire);
    server.expect_count(1.0);
}

#[test]
fn the_rate_of_messages() {
    let metric = "outrigger_disconnects_total{cause=\"rate_limit\"}";
    let server = Limited::new(&["--rate-limit", "1"], metric);
    let mut wire = Wire::connect(server.address, "/");
    let message = frame(true, TEXT, b"x");
    wire.send(&[&message[..], &message].concat());
    assert_eq!(wire.read_frame().payload, b"x");
    assert_eq!(wire.read_close().0, 1008);
    drop(wire);
    server.expect_count(1.0);
}

#[test]
fn unread_output() {
    let metric = "outrigger_disconnects_total{cause=\"slow_consumer\"}";
    let mut app = Program::start(&["app", "--log", "off", "--max-outbound", "300KiB"]);
    let address = app.address_of_event();
    let _wire = Wire::connect(address, "/");
    app.event_of("connect");
    let text = "x".repeat(100_000);
    let command = serde_json::json!({"cmd": "broadcast", "text": text}).to_string();
    // The number of messages depends on the kernel's buffers.
    while sample(address, metric) == 0.0 {
        app.write(&command);
    }
    assert_eq!(app.event_of("disconnect")["cause"], "slow_consumer");
    assert_eq!(sample(address, metric), 1.0);
}

#[test]
fn the_time_of_each_phase() {
    let metric = "outrigger_refusals_total{reason=\"handshake_timeout\"}";
    let server = Limited::new(&["--handshake-timeout", "500ms"], metric);
    assert_eq!(server.status(b"GET / HTTP/1.1\r\n").1, "408");
    server.expect_count(1.0);

    let metric = "outrigger_disconnects_total{cause=\"ping_timeout\"}";
    let ping = ["--ping-interval", "50ms", "--ping-timeout", "50ms"];
    let server = Limited::new(&ping, metric);
    let mut silent = Wire::connect(server.address, "/");
    assert_eq!(silent.read_frame().opcode, crate::common::PING);
    silent.expect_end();
    server.expect_count(1.0);

    let metric = "outrigger_disconnects_total{cause=\"idle_timeout\"}";
    let server = Limited::new(&["--idle-timeout", "50ms"], metric);
    let mut idle = Wire::connect(server.address, "/");
    assert_eq!(idle.read_close().0, 1001);
    drop(idle);
    server.expect_count(1.0);

    let metric = "outrigger_close_timeouts_total";
    let close = ["--idle-timeout", "50ms", "--close-timeout", "50ms"];
    let server = Limited::new(&close, metric);
    let mut stubborn = Wire::connect(server.address, "/");
    assert_eq!(stubborn.read_close().0, 1001);
    stubborn.expect_end();
    server.expect_count(1.0);
}

#[test]
fn the_work_of_a_turn() {
    let mut config = patient();
    (config.turn_bytes, config.turn_accepts) = (4096, 1);
    let server = TestServer::echo(config);
    let metric = "outrigger_turn_limits_total{work=\"bytes\"}";
    let count = || sample(server.address, metric);
    let mut wire = Wire::connect(server.address, "/");
    // The frame header has eight bytes.
    wire.send_frame(BINARY, &[7; 4095 - 8]);
    assert_eq!(wire.read_frame().payload.len(), 4095 - 8);
    assert_eq!(count(), 0.0);
    wire.send_frame(BINARY, &[7; 4096 - 8]);
    assert_eq!(wire.read_frame().payload.len(), 4096 - 8);
    eventually(metric, || count() == 1.0);

    let metric = "outrigger_turn_limits_total{work=\"accepts\"}";
    let wires = [(); 5].map(|()| Wire::connect(server.address, "/"));
    // One turn per connection, including the one that requests the metrics.
    assert!(sample(server.address, metric) >= 6.0);
    drop(wires);
}

#[test]
fn the_outcomes_of_connections_and_frames_are_counted() {
    let server = Limited::new(
        &["--allow-host", "known"],
        "outrigger_refusals_total{reason=\"origin\"}",
    );
    let (_, status) = server.status(&request_with("Origin: http://elsewhere\r\n"));
    assert_eq!(status, "403");
    server.expect_count(1.0);
    let host = String::from_utf8(request("/")).expect("ASCII");
    let host = host.replace("localhost", "elsewhere");
    assert_eq!(server.status(host.as_bytes()).1, "403");
    assert_eq!(server.status(&request("/nowhere")).1, "404");
    drop(Wire::open(server.address));
    let mut wire = Wire::connect(server.address, "/");
    wire.send(&frame(false, TEXT, b"in "));
    wire.send_frame(crate::common::PING, b"");
    wire.send_frame(0, b"two");
    assert_eq!(wire.read_frame().opcode, crate::common::PONG);
    assert_eq!(wire.read_frame().payload, b"in two");
    wire.send_close(1000);
    wire.read_close();
    drop(wire);
    for (name, count) in [
        ("outrigger_refusals_total{reason=\"host\"}", 1.0),
        ("outrigger_refusals_total{reason=\"not_found\"}", 1.0),
        (
            "outrigger_connections_ended_total{outcome=\"websocket\"}",
            1.0,
        ),
        (
            "outrigger_connections_ended_total{outcome=\"refused\"}",
            3.0,
        ),
        ("outrigger_connections_ended_total{outcome=\"unused\"}", 1.0),
        ("outrigger_received_frames_total{opcode=\"text\"}", 1.0),
        (
            "outrigger_received_frames_total{opcode=\"continuation\"}",
            1.0,
        ),
        ("outrigger_received_frames_total{opcode=\"ping\"}", 1.0),
        ("outrigger_received_frames_total{opcode=\"close\"}", 1.0),
        ("outrigger_limit{limit=\"max_clients\"}", 10_000.0),
    ] {
        eventually(name, || sample(server.address, name) == count);
    }
}

/// The formula of the README: 6 MiB, 0.5 KiB for each connection, and twice the bytes that the server holds for clients.
#[test]
fn memory_stays_within_what_the_readme_says() {
    let server = Limited::new(
        &["--max-message", "1MiB"],
        "outrigger_refusals_total{reason=\"head_size\"}",
    );
    // The 6 MiB are 3.4 MB after the start of a release build, and what the loop adds. The code of a debug build is larger.
    let after_start = sample(server.address, "process_resident_memory_bytes");
    assert!(after_start > 0.0);
    let half_head = request_with(&format!("X: {}\r\n", "x".repeat(12_000)));
    let half_head = &half_head[..half_head.len() - 4];
    let half_message = &frame(true, BINARY, &vec![7; 500_000])[..200_000];
    let connect = |count: usize, bytes: &[u8], open: &dyn Fn() -> Wire| -> Vec<Wire> {
        let sent = |()| {
            let mut wire = open();
            wire.send(bytes);
            wire
        };
        vec![(); count].into_iter().map(sent).collect()
    };
    let open = || Wire::open(server.address);
    let silent = connect(200, b"", &open);
    let slow = connect(200, half_head, &open);
    let client = || Wire::connect(server.address, "/");
    let idle = connect(200, b"", &client);
    let unfinished = connect(20, half_message, &client);
    for mut endless in connect(20, &[b'x'; 1 << 20], &|| {
        let mut wire = open();
        wire.send(b"GET / HTTP/1.1\r\nX: ");
        wire
    }) {
        assert_eq!(&endless.read_head()[9..12], "431");
    }
    server.expect_count(20.0);
    let received = 200 * half_head.len() + 20 * half_message.len();
    eventually("all of it has come", || {
        sample(server.address, "outrigger_received_bytes_total") >= received as f64
    });
    let connections = silent.len() + slow.len() + idle.len() + unfinished.len();
    let bound = after_start as usize + (5 << 19) + connections * 512 + 2 * received;
    let resident = sample(server.address, "process_resident_memory_bytes");
    assert!(
        resident <= bound as f64,
        "{resident} of {bound}, {after_start} after the start"
    );
}

#[test]
fn a_proxy_names_the_client_of_a_connection() {
    let text = |ip: &str| format!("PROXY TCP4 {ip} 10.0.0.1 51000 80\r\n").into_bytes();
    let binary = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\x0a\0\0\x01\xc7\x38\0\x50";
    let app = Program::start(&[
        "app",
        "--log",
        "off",
        "--proxy-protocol",
        "127.0.0.0/8",
        "--max-clients-per-address",
        "1",
    ]);
    let address = app.address_of_event();
    let connect = |header: &[u8]| {
        let mut wire = Wire::open(address);
        wire.send(&[header, &request("/")].concat());
        let status = wire.read_head()[9..12].to_owned();
        (wire, status)
    };
    let (_first, status) = connect(&text("192.0.2.1"));
    assert_eq!(status, "101");
    assert_eq!(app.event_of("connect")["remote"], "192.0.2.1:51000");
    let (_second, status) = connect(binary);
    assert_eq!(status, "101");
    assert_eq!(app.event_of("connect")["remote"], "192.0.2.7:51000");
    assert_eq!(connect(&text("192.0.2.1")).1, "503", "one for each address");
    let (_own, status) = connect(b"PROXY UNKNOWN\r\n");
    assert_eq!(status, "101");
    let remote = app.event_of("connect")["remote"].to_string();
    assert!(remote.starts_with("\"127.0.0.1:"), "{remote}");
    for header in [&b""[..], b"PROXY TCP4 0.0.0.0 10.0.0.1 0 80\r\n"] {
        assert_eq!(
            connect(header).1,
            "400",
            "it has to come, and to name someone"
        );
    }

    // The server does not accept the header from other peers.
    let other = Program::start(&["echo", "--log", "off", "--proxy-protocol", "10.0.0.0/8"]);
    let address = other.address();
    let mut wire = Wire::open(address);
    wire.send(&[&text("192.0.2.1")[..], &request("/")].concat());
    assert_ne!(&wire.read_head()[9..12], "101");
    Wire::connect(address, "/");
}

#[test]
fn a_client_behind_a_proxy_is_not_local() {
    let socket = TraceFile::new("proxied.sock");
    let listen = format!("unix:{}", socket.path());
    for (args, has_token) in [
        (&["echo", "--listen", "127.0.0.1:0"][..], false),
        (
            &["echo", "--listen", "127.0.0.1:0", "--proxy-protocol", "::1"],
            true,
        ),
        (&["terminal", "--listen", &listen, "--", "cat"], false),
        (
            &[
                "terminal",
                "--listen",
                &listen,
                "--proxy-protocol",
                "unix",
                "--",
                "cat",
            ],
            true,
        ),
    ] {
        let args = [&args[..1], &["--log", "off", "--announce"], &args[1..]].concat();
        let announcement = TraceFile::new("proxied-announce");
        let path = announcement.path();
        let mut args = args;
        args.insert(4, &path);
        let program =
            Program::spawn(std::process::Command::new(env!("CARGO_BIN_EXE_outrigger")).args(&args));
        let line = program.line();
        let is_asked = line.contains("?token=");
        assert_eq!(
            is_asked, has_token,
            "the line contains a token that clients must present: {line}"
        );
        if args.contains(&"terminal") && has_token {
            // This includes connections whose origin the proxy does not know.
            let mut wire = UnixStream::connect(socket.path()).expect("the server listens");
            let head = [b"PROXY UNKNOWN\r\n", &request("/terminal")[..]].concat();
            wire.write_all(&head).expect("the server reads");
            let mut answer = [0; 12];
            wire.read_exact(&mut answer).expect("the server answers");
            assert_eq!(&answer, b"HTTP/1.1 401");
        }
        let announced: serde_json::Value =
            serde_json::from_str(&announcement.text()).expect("JSON");
        assert_eq!(announced["authToken"].is_string(), has_token, "{args:?}");
    }
}
