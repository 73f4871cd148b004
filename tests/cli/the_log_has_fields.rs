//! The log as JSON, and what `/metrics` says about ended connections, services and the log itself.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::Wire;
use crate::common::program::Program;
use crate::common::traces::TraceFile;
use rustix::process::Signal;
use serde_json::{Value, json};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A handshake for a path with further fields.
fn handshake(path: &str, fields: &str) -> Vec<u8> {
    let request = String::from_utf8(crate::common::request(path)).expect("text");
    request
        .replacen("\r\n", &format!("\r\n{fields}"), 1)
        .into_bytes()
}

fn connect(address: SocketAddr, path: &str, fields: &str) -> Wire {
    let mut wire = Wire::open(address);
    wire.send(&handshake(path, fields));
    let head = wire.read_head();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    wire
}

fn records(log: &str) -> Vec<Value> {
    let lines = log.lines();
    lines
        .map(|line| line.parse().expect("each line is JSON"))
        .collect()
}

/// The values of metrics, by their names with labels.
fn metrics(address: SocketAddr) -> HashMap<String, f64> {
    let mut wire = Wire::open(address);
    wire.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let head = wire.read_head();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "))
        .expect("a length");
    let body = wire.read_exact(length.parse().expect("a number"));
    let text = String::from_utf8(body).expect("text");
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

#[test]
fn each_fact_of_an_event_is_a_field() {
    // The bug: a record was one text with everything inside, so a query could not select by client, path or cause.
    let mut program = Program::start(&[
        "echo",
        "--no-auth",
        "--log-format",
        "json",
        "--path",
        "/a/...",
    ]);
    let address = program.address();
    let mut wire = connect(address, "/a/b", &format!("traceparent: {TRACE}\r\n"));
    wire.send_frame(8, b"\x03\xe8two\nlines");
    wire.read_close();
    drop(wire);
    let mut wire = Wire::open(address);
    wire.send(&handshake("/nowhere", &format!("Traceparent: {TRACE}\r\n")));
    assert!(wire.read_head().starts_with("HTTP/1.1 404 "));
    // Two fields are as good as none, and so is one that is malformed.
    drop(connect(
        address,
        "/a/c",
        &format!("traceparent: {TRACE}\r\ntraceparent: {TRACE}\r\n"),
    ));
    drop(connect(
        address,
        "/a/c",
        &format!("traceparent: {}\r\n", &TRACE[1..]),
    ));
    program.signal(Signal::TERM);
    let (_, log) = program.wait_and_read_log();
    let records = records(&log);
    let of = |message: &str, path: &str| {
        let mut found = records
            .iter()
            .filter(|record| record["message"] == message && record["path"] == path);
        found
            .next()
            .unwrap_or_else(|| panic!("{message} {path}: {log}"))
            .clone()
    };
    let connected = of("connected", "/a/b");
    assert_eq!(connected["level"], "info");
    assert_eq!(connected["target"], "outrigger::server::requests");
    assert_eq!(connected["trace_id"], TRACE[3..35]);
    assert_eq!(connected["span_id"], TRACE[36..52]);
    let disconnected = of("disconnected", "/a/b");
    assert_eq!(disconnected["client"], connected["client"]);
    assert_eq!(disconnected["remote"], connected["remote"]);
    assert_eq!(disconnected["cause"], "close");
    assert_eq!(disconnected["code"], 1000);
    assert_eq!(disconnected["reason"], "two\nlines");
    assert_eq!(disconnected["trace_id"], TRACE[3..35]);
    assert!(disconnected["duration"].is_f64(), "{disconnected}");
    let refused = records.iter().find(|record| record["message"] == "refused");
    let refused = refused.unwrap_or_else(|| panic!("{log}"));
    assert_eq!(refused["status"], 404);
    assert_eq!(refused["path"], "/nowhere");
    assert_eq!(refused["trace_id"], TRACE[3..35]);
    assert!(refused["reason"].is_string(), "{refused}");
    let untraced = records
        .iter()
        .filter(|record| record["path"] == "/a/c" && record["message"] == "connected");
    let traces: Vec<_> = untraced.map(|record| record.get("trace_id")).collect();
    assert_eq!(traces, [None, None]);
}

#[test]
fn the_reason_of_a_peer_does_not_bring_a_token_into_the_log() {
    let token = "0123456789abcdef";
    let file = TraceFile::new("log-token");
    fs::write(file.path(), token).expect("a file");
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600)).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.args(["echo", "--listen", "127.0.0.1:0", "--token-file"]);
    let mut program = Program::spawn(command.arg(file.path()));
    let authorization = format!("Authorization: Bearer {token}\r\n");
    let mut wire = connect(program.address(), "/", &authorization);
    wire.send_frame(8, &[b"\x03\xe8x", token.as_bytes()].concat());
    wire.read_close();
    program.signal(Signal::TERM);
    let (_, log) = program.wait_and_read_log();
    assert!(log.contains("(not shown: it contains the token)"), "{log}");
    assert!(!log.contains(token), "{log}");
}

#[test]
fn a_refused_path_is_in_the_log_without_a_token() {
    let token = "0123456789abcdef";
    let file = TraceFile::new("log-path");
    fs::write(file.path(), token).expect("a file");
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600)).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.args(["echo", "--listen", "127.0.0.1:0", "--token-file"]);
    let mut program = Program::spawn(command.arg(file.path()));
    let address = program.address();
    let refuse = |path: &str, fields: &str| {
        let mut wire = Wire::open(address);
        wire.send(&handshake(path, fields));
        wire.read_head()
    };
    let long = format!("/{}", "x".repeat(1000));
    let split = format!("/{}{token}", "y".repeat(247));
    for (path, fields, status) in [
        ("/missing", "", "401"),
        (
            "/wrong",
            "Authorization: Bearer fedcba9876543210\r\n",
            "401",
        ),
        (&*long, "", "401"),
        (&*split, "", "400"),
        ("/0123456789abcde%66", "Origin: http://elsewhere\r\n", "403"),
    ] {
        let head = refuse(path, fields);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    }
    program.signal(Signal::TERM);
    let (_, log) = program.wait_and_read_log();
    for path in ["/missing", "/wrong", &long[..256]] {
        assert!(log.contains(&format!(" path=\"{path}\" ")), "{path}: {log}");
    }
    assert_eq!(log.matches(" path=\"(not shown").count(), 2, "{log}");
    assert!(!log.contains(&token[..8]), "{log}");
}

#[test]
fn the_text_has_the_same_facts() {
    let mut program = Program::start(&["echo", "--no-auth"]);
    let address = program.address();
    let mut wire = connect(address, "/", &format!("traceparent: {TRACE}\r\n"));
    wire.send_close(1000);
    wire.read_close();
    program.signal(Signal::TERM);
    let (_, log) = program.wait_and_read_log();
    let line = |event: &str| {
        let found = log.lines().find(|line| line.contains(event));
        found.unwrap_or_else(|| panic!("{event}: {log}"))
    };
    let ids = format!("trace_id={} span_id={}", &TRACE[3..35], &TRACE[36..52]);
    assert!(
        line(" connected: path=\"/\" remote=127.0.0.1:").ends_with(&ids),
        "{log}"
    );
    let disconnected =
        line(" disconnected: cause=close code=1000 reason=\"\" path=\"/\" remote=127.0.0.1:");
    assert!(
        disconnected.contains(" duration=") && disconnected.ends_with(&ids),
        "{log}"
    );
}

#[test]
fn an_app_learns_the_trace_of_a_handshake() {
    let mut program = Program::start(&["app", "--no-auth"]);
    let address = program.address_of_event();
    for (field, expected) in [
        (format!("traceparent: {TRACE}\r\n"), json!(TRACE)),
        ("traceparent: 00-0\r\n".to_owned(), Value::Null),
        (String::new(), Value::Null),
    ] {
        let mut wire = Wire::open(address);
        wire.send(&handshake("/", &field));
        assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
        assert_eq!(program.event_of("connect")["traceparent"], expected);
    }
    program.end_input();
    program.wait();
}

#[test]
fn metrics_have_durations_by_cause_and_the_time_of_each_service() {
    let routes = json!({"routes": {"/one": {"echo": {}}, "/two": {"echo": {}}}});
    let folder = std::env::temp_dir().join(format!("outrigger-metrics-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("config.json");
    fs::write(&file, routes.to_string()).expect("written");
    let mut program = Program::start(&[
        "serve",
        "--no-auth",
        "--config",
        file.to_str().expect("text"),
    ]);
    let address = program.address();
    fs::remove_dir_all(&folder).expect("removed");
    let mut wire = connect(address, "/one", "");
    wire.send_frame(1, b"x");
    wire.read_frame();
    wire.send_close(1000);
    wire.read_close();
    wire.expect_end();
    let values = metrics(address);
    let value = |name: &str| {
        *values
            .get(name)
            .unwrap_or_else(|| panic!("{name}: {values:?}"))
    };
    assert_eq!(
        value("outrigger_connection_duration_seconds_count{cause=\"close\"}"),
        1.0
    );
    assert_eq!(
        value("outrigger_connection_duration_seconds_bucket{cause=\"close\",le=\"+Inf\"}"),
        1.0
    );
    assert!(!values.contains_key("outrigger_connection_duration_seconds_count{cause=\"eof\"}"));
    assert!(value("outrigger_service_turn_seconds_count{route=\"/one\"}") >= 1.0);
    assert!(value("outrigger_service_turn_seconds_count{route=\"server\"}") >= 1.0);
    assert!(!values.contains_key("outrigger_service_turn_seconds_count{route=\"/two\"}"));
    assert_eq!(value("outrigger_log_lines_suppressed_total"), 0.0);
    assert_eq!(value("outrigger_log_lines_dropped_total"), 0.0);
    program.signal(Signal::TERM);
    program.wait();
}

#[test]
fn suppressed_lines_are_counted() {
    let mut program = Program::start(&["echo", "--no-auth", "--path", "/there"]);
    let address = program.address();
    for _ in 0..400 {
        let mut wire = Wire::open(address);
        wire.send(&crate::common::request("/nowhere"));
        assert!(wire.read_head().starts_with("HTTP/1.1 404 "));
    }
    let suppressed = metrics(address)["outrigger_log_lines_suppressed_total"];
    program.signal(Signal::TERM);
    let (_, log) = program.wait_and_read_log();
    // A notice of suppressed lines has an example of them, or is at the end of the next line.
    let most = log.matches("refused: 404").count();
    let least = most - log.matches("suppressed").count();
    assert!(
        suppressed > 0.0 && most as f64 + suppressed >= 400.0 && least as f64 + suppressed <= 400.0,
        "{suppressed} of 400: {log}"
    );
}

/// The bug: with several routes, nobody knew whose program a line was about.
#[test]
fn a_line_about_a_program_has_its_route_and_its_pid() {
    let config = TraceFile::new("log-routes");
    let script = "echo $$ hello >&2; read line; exit 3";
    let pipe = json!({"pipe": {"command": ["sh", "-c", script]}});
    let routes = json!({"routes": {"/one": pipe, "/two": {"echo": {}}}});
    fs::write(config.path(), routes.to_string()).expect("a file");
    for format in ["json", "text"] {
        let options = ["--log", "info", "--log-format", format];
        let file = config.path();
        let arguments = [&["serve", "--config", file.as_str()][..], &options].concat();
        let mut program = Program::start(&arguments);
        let mut wire = connect(program.address(), "/one", "");
        wire.send_frame(1, b"x");
        let (_, reason) = wire.read_close();
        let (_, said) = reason.split_once(": ").expect("its last line");
        let pid = said.split(' ').next().expect("a pid").to_owned();
        program.signal(Signal::TERM);
        let (_, log) = program.wait_and_read_log();
        let has = |message: &str, line: &str| match format {
            "json" => {
                let record: Value = line.parse().expect("JSON");
                let is_its =
                    record["route"] == "/one" && record["pid"].as_u64() == pid.parse().ok();
                record["message"] == message && is_its
            }
            _ if message == said => line.contains(&format!("program /one {pid}: {message}")),
            _ => ["route=\"/one\"", &format!("pid={pid}"), message]
                .iter()
                .all(|part| line.contains(part)),
        };
        for message in ["started", "exited", said] {
            assert!(
                log.lines().any(|line| has(message, line)),
                "{message}: {log}"
            );
        }
    }
}
