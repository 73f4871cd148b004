//! Tests of the token file with the real program: names, scopes, revocation and wrong tokens.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::program::{Program, outrigger};
use crate::common::traces::{TraceFile, eventually};
use crate::common::{TEXT, Wire, request};
use rustix::process::Signal;
use serde_json::{Value, json};

const OUTRIGGER: &str = env!("CARGO_BIN_EXE_outrigger");

/// One token of each scope. Their secrets are as long as a secret should be.
const TEAM: &str = "\
# the team
alice all alice-0123456789abcdef
ursula use ursula-0123456789abcdef # since May
walter watch walter-0123456789abcdef

mona metrics mona-0123456789abcdef
";

fn secret(name: &str) -> String {
    format!("{name}-0123456789abcdef")
}

/// A token file.
fn tokens(name: &str, text: &str) -> TraceFile {
    let file = TraceFile::new(name);
    write_tokens(&file, text);
    file
}

fn write_tokens(file: &TraceFile, text: &str) {
    fs::write(file.path(), text).expect("a file");
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600)).expect("a file");
}

/// Starts `outrigger serve` with these tokens, one route of each command, and a log in a file.
fn serve(config: &TraceFile, file: &TraceFile, log: &str) -> (Program, SocketAddr) {
    let routes = json!({
        "/echo": {"echo": {}},
        "/terminal": {"terminal": {"command": ["cat"]}},
        "/process": {"processes": {}},
        "/app": {"app": {"command": ["cat"]}},
        "/acp": {"agent": {"command": [OUTRIGGER, "example-agent"]}},
    });
    fs::write(config.path(), json!({ "routes": routes }).to_string()).expect("a file");
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" \"$@\" 2>\"$LOG\"", OUTRIGGER, "serve"]);
    command.args(["--listen", "127.0.0.1:0", "--config", &config.path()]);
    command.args(["--token-file", &file.path()]).env("LOG", log);
    let server = Program::spawn(&mut command);
    let address = server.address();
    for _ in 1..5 {
        server.line();
    }
    (server, address)
}

/// Sends a request with a token. A target that begins with `ws` is a handshake.
fn send(address: SocketAddr, line: &str, secret: &str, body: &str) -> Wire {
    let mut wire = Wire::open(address);
    let token = format!("Authorization: Bearer {secret}\r\n");
    let head = match line.strip_prefix("ws ") {
        Some(target) => {
            let head = String::from_utf8(request(target)).expect("ASCII");
            head.replacen("Upgrade:", &format!("{token}Upgrade:"), 1)
        }
        None => format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\n{token}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ),
    };
    wire.send(head.as_bytes());
    wire
}

/// The status of a request with a token.
fn status(address: SocketAddr, line: &str, secret: &str) -> u16 {
    let body = if line.starts_with("POST") { "{}" } else { "" };
    let mut wire = send(address, line, secret, body);
    let head = wire.read_head();
    head[9..12].parse().expect("a number")
}

/// Opens a WebSocket with a token.
fn connect(address: SocketAddr, target: &str, secret: &str) -> Wire {
    let mut wire = send(address, &format!("ws {target}"), secret, "");
    let head = wire.read_head();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    wire
}

#[test]
fn a_refusal_names_the_scope_that_is_missing() {
    let file = tokens("scopes", TEAM);
    let (_server, address) = serve(&TraceFile::new("scopes-config"), &file, "/dev/null");
    // A page asks before it calls, without a token.
    let mut wire = Wire::open(address);
    wire.send(b"OPTIONS /process HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n");
    wire.send(b"Access-Control-Request-Method: POST\r\n\r\n");
    assert!(wire.read_head().starts_with("HTTP/1.1 204 "));
    // The error says what is missing. The connection is not kept.
    let mut wire = send(address, "ws /echo", &secret("walter"), "");
    let (head, error) = wire.read_response();
    assert!(head.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{head}");
    assert_eq!(
        error["message"],
        "this needs a token of the scope 'use', and the scope of yours is 'watch'"
    );
    let mut wire = send(address, "GET /metrics", &secret("mona"), "");
    let head = wire.read_head();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    let length = length.expect("a length").parse().expect("a number");
    let metrics = String::from_utf8(wire.read_exact(length)).expect("UTF-8");
    assert!(
        metrics.contains("\noutrigger_refusals_total{reason=\"scope\"} "),
        "{metrics}"
    );
    assert!(
        metrics.contains("\noutrigger_wrong_tokens_total 0\n")
            && metrics.contains("\noutrigger_registry_disagreements_total 0\n"),
        "{metrics}"
    );
}

#[test]
fn a_token_that_permits_less_cannot_resume_the_connection_of_its_name() {
    // The bug: a token of the scope `watch` came back as the writer that a token of the scope `all` had opened.
    let file = tokens(
        "resume-scope",
        "ada all all-0123456789abcdef\nada watch watch-0123456789abcdef\n",
    );
    let (_server, address) = serve(&TraceFile::new("resume-scope-config"), &file, "/dev/null");
    let body = json!({"command": "cat", "allocate_tty": true}).to_string();
    let mut wire = send(address, "POST /process/spawn", &secret("all"), &body);
    let process = wire.read_response().1["process_id"].clone();
    let attach = format!("ws /process/{}/attach", process.as_str().expect("an id"));
    let mut writer = send(address, &format!("{attach}?resume=new"), &secret("all"), "");
    let head = writer.read_head();
    let token = head
        .lines()
        .find_map(|line| line.strip_prefix("Outrigger-Resume: "));
    let resume = format!("resume={}&received=0", token.expect("a token"));
    writer.reset();
    let viewer = format!("{attach}?mode=viewer&{resume}");
    assert_eq!(status(address, &viewer, &secret("watch")), 410);
    assert_eq!(status(address, &viewer, &secret("all")), 101);
}

#[test]
fn a_viewer_with_the_scope_watch_changes_nothing() {
    let file = tokens("viewer", TEAM);
    let (_server, address) = serve(&TraceFile::new("viewer-config"), &file, "/dev/null");
    let body = json!({"command": "sh", "args": ["-c", "stty -echo; echo ready; read line; echo got $line; stty size"],
        "allocate_tty": true, "rows": 10, "cols": 20});
    let mut wire = send(
        address,
        "POST /process/spawn",
        &secret("alice"),
        &body.to_string(),
    );
    let process = wire.read_response().1["process_id"].clone();
    let target = format!("/process/{}/attach", process.as_str().expect("an id"));
    let mut writer = connect(address, &target, &secret("ursula"));
    let viewed = format!("{target}?mode=viewer&takeover=1&rows=99&cols=99");
    let mut viewer = connect(address, &viewed, &secret("walter"));
    let greeting = viewer.read_greeting(&viewed);
    assert_eq!(
        greeting,
        [
            json!({"type": "role", "role": "viewer"}),
            json!({"type": "size", "rows": 10, "cols": 20}),
            json!({"type": "clients", "writer": "ursula", "viewers": 1}),
        ]
    );
    let mut seen = Vec::new();
    while !seen.ends_with(b"ready\r\n") {
        seen.extend(viewer.read_frame().payload);
    }
    viewer.send_frame(crate::common::BINARY, b"from the viewer\n");
    viewer.send_frame(TEXT, br#"{"type":"resize","rows":98,"cols":98}"#);
    viewer.send_frame(crate::common::PING, b"");
    assert_eq!(viewer.read_frame().opcode, crate::common::PONG);
    writer.send_frame(crate::common::BINARY, b"from the writer\n");
    let expected = "ready\r\ngot from the writer\r\n10 20\r\n";
    while seen.len() < expected.len() {
        seen.extend(viewer.read_frame().payload);
    }
    assert_eq!(String::from_utf8_lossy(&seen), expected);
}

#[test]
fn a_hangup_closes_the_connections_of_revoked_tokens() {
    let file = tokens("revoked", TEAM);
    let config = TraceFile::new("revoked-config");
    let log = TraceFile::new("revoked-log");
    let (mut server, address) = serve(&config, &file, &log.path());
    let of = |name: &str| secret(name);
    let mut alice = connect(address, "/echo", &of("alice"));
    let mut ursula = connect(address, "/echo", &of("ursula"));
    let body = json!({"command": "sleep", "args": ["1000"]}).to_string();
    let mut wire = send(address, "POST /process/spawn", &of("alice"), &body);
    let process = wire.read_response().1["process_id"].clone();
    let stream = format!(
        "GET /process/{}/stdout/stream",
        process.as_str().expect("an id")
    );
    let mut stream = send(address, &stream, &of("alice"), "");
    assert!(stream.read_head().starts_with("HTTP/1.1 200 "));
    let mut exec = send(address, "POST /process/exec", &of("alice"), &body);
    let mut idle = send(address, "GET /process", &of("alice"), "");
    idle.read_response();
    let clients = || {
        let mut wire = send(address, "GET /status", &of("mona"), "");
        let status = wire.read_response().1;
        let clients = status["clients"].as_array().expect("a list").clone();
        let names = clients.iter().map(|one| one["principal"].clone());
        (names.collect::<Vec<Value>>(), status["calls"].clone())
    };
    eventually("all are connected", || {
        clients() == (vec!["alice".into(), "ursula".into()], 3.into())
    });

    // A file that is not valid changes nothing, and the log says why without a secret.
    write_tokens(
        &file,
        &format!("{TEAM}\nalice all other-0123456789abcdef\n"),
    );
    server.signal(Signal::HUP);
    eventually("the bad file is read", || {
        log.text().contains(": line 8: this name is used twice")
    });
    // A new secret and a lower scope are a new token. A higher scope and a digest of the same secret are not.
    let ada = "alice all alice-0123456789abcdef";
    let eve = "\neve all eve-0123456789abcdef\n";
    write_tokens(&file, &TEAM.replace(ada, &format!("{ada}{eve}")));
    eventually("the file with eve is read", || {
        server.signal(Signal::HUP);
        status(address, "ws /echo", &of("eve")) == 101
    });
    alice.send_frame(TEXT, b"still here");
    assert_eq!(alice.read_frame().payload, b"still here");
    let mut eve = connect(address, "/echo", &of("eve"));
    let revoke = ["token", "revoke", "alice", "--token-file", &file.path()];
    assert_eq!(outrigger(&revoke).status.code(), Some(0));
    let text = file.text();
    let digest = "sha256:4f3b18793309f077f93aeee666ff999f0b181ef964b59285c0c842eca40d966d";
    let changed = text
        .replace("eve all", "eve use")
        .replace("ursula use", "ursula all")
        .replace("ursula-0123456789abcdef", digest);
    assert!(
        !text.contains("alice") && changed.contains(digest),
        "{text}"
    );
    write_tokens(&file, &changed);
    server.signal(Signal::HUP);
    for wire in [&mut alice, &mut eve] {
        assert_eq!(
            wire.read_close(),
            (1008, "the token was revoked".to_owned())
        );
        wire.send_close(1008);
        wire.expect_end();
    }
    for wire in [&mut stream, &mut exec, &mut idle] {
        wire.expect_end();
    }
    ursula.send_frame(TEXT, b"still here");
    assert_eq!(ursula.read_frame().payload, b"still here");
    assert_eq!(status(address, "ws /echo", &of("alice")), 401);
    assert_eq!(status(address, "GET /process", &of("ursula")), 200);
    assert_eq!(status(address, "GET /metrics", &of("mona")), 200);
    drop(ursula);
    server.signal(Signal::TERM);
    server.wait();
    let log = log.text();
    for part in [
        "remote=127.0.0.1:",
        " principal=alice\n",
        " principal=ursula\n",
        "the settings stay unchanged: --token-file: ",
        "cause=revoked code=1008 reason=\"the token was revoked\"",
        "reloaded access settings: revoked_tokens=2 closed_connections=",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    assert!(
        !log.contains("0123456789abcdef") && !log.contains(digest),
        "{log}"
    );
}

#[test]
fn wrong_tokens_of_one_address_are_slowed_down_and_the_right_one_is_not() {
    let file = tokens("guessed", "s3cret-0123456789\n");
    let mut server = Program::spawn(Command::new(OUTRIGGER).args([
        "echo",
        "--listen",
        "127.0.0.1:0",
        "--proxy-protocol",
        "127.0.0.1",
        "--token-file",
        &file.path(),
    ]));
    let address = server.address();
    let guess = |from: &str, secret: &str| {
        let mut wire = Wire::open(address);
        let head = String::from_utf8(request(&format!("/?token={secret}"))).expect("ASCII");
        wire.send(format!("PROXY TCP4 {from} 10.0.0.1 1 2\r\n{head}").as_bytes());
        wire
    };
    let answer = |wire: &mut Wire| wire.read_head()[9..12].to_owned();
    for _ in 0..5 {
        assert_eq!(answer(&mut guess("10.1.1.1", "wrong")), "401");
    }
    // The right token, and other addresses, are answered at once, before the guess that came earlier.
    let mut waits = guess("10.1.1.1", "wrong");
    let mut right = guess("10.1.1.1", "s3cret-0123456789");
    let mut other = guess("10.1.1.2", "wrong");
    assert_eq!((&*answer(&mut right), &*answer(&mut other)), ("101", "401"));
    waits.stream.set_nonblocking(true).expect("a socket");
    let peeked = waits.stream.peek(&mut [0]);
    assert!(peeked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    waits.stream.set_nonblocking(false).expect("a socket");
    assert_eq!(answer(&mut waits), "401");
    waits.read_exact(1);
    server.signal(Signal::TERM);
    let (_, log) = server.wait_and_read_log();
    let says = "wrong tokens: remote=10.1.1.1 wrong_tokens=6 delay=";
    assert_eq!(log.matches(says).count(), 1, "{log}");
    assert!(
        !log.contains("remote=10.1.1.2 wrong_tokens") && !log.contains("s3cret"),
        "{log}"
    );
}

#[test]
fn a_program_sees_names_and_an_announcement_has_a_token_only_if_there_is_one() {
    let announced = TraceFile::new("names-announced");
    let run = |file: &TraceFile| {
        let mut command = Command::new(OUTRIGGER);
        command.args([
            "app",
            "--listen",
            "127.0.0.1:0",
            "--token-file",
            &file.path(),
        ]);
        let server = Program::spawn(command.args(["--announce", &announced.path()]));
        let address = server.address_of_event();
        let told: Value = serde_json::from_str(&announced.text()).expect("JSON");
        (server, address, told["authToken"].clone())
    };
    let file = tokens("names-one", "s3cret-0123456789\n");
    let (server, address, token) = run(&file);
    assert_eq!(token, "s3cret-0123456789");
    let _wire = connect(address, "/", "s3cret-0123456789");
    assert_eq!(server.event_of("connect")["principal"], "default");
    drop(server);

    let file = tokens("names-several", TEAM);
    let (mut server, address, token) = run(&file);
    assert_eq!(token, Value::Null);
    let _wire = connect(address, "/?a=b", &secret("ursula"));
    let event = server.event_of("connect");
    assert_eq!(
        (&event["principal"], &event["query"]),
        (&"ursula".into(), &"a=b".into())
    );
    assert!(!event.to_string().contains("0123456789abcdef"), "{event}");
    server.command(json!({"cmd": "status", "id": 1}));
    assert_eq!(
        server.event_of("status")["clients"][0]["principal"],
        "ursula"
    );
    server.signal(Signal::TERM);
    let (_, log) = server.wait_and_read_log();
    assert!(log.contains("--announce: authToken is null"), "{log}");
    assert!(!log.contains("0123456789abcdef"), "{log}");
}

#[test]
fn a_server_does_not_start_with_a_bad_token_file() {
    let file = TraceFile::new("bad-tokens");
    for (text, says) in [
        ("", ": there is no token"),
        ("# nothing\n", ": there is no token"),
        (
            "ada all s3cret\n\nbob s3cret2\n",
            ": line 3: expected NAME SCOPE SECRET",
        ),
        ("ada root s3cret\n", ": line 1: the scope is none of"),
        (
            "ada all s3cret\nada all s3cret2\n",
            ": line 2: this name is used twice",
        ),
        ("ada all sha256:s3cret\n", ": line 1: a token is one word"),
    ] {
        write_tokens(&file, text);
        let output = outrigger(&["echo", "--token-file", &file.path()]);
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(
            error.contains(&file.path()) && error.contains(says),
            "{error}"
        );
        assert!(
            !error.contains("s3cret") && error.lines().count() == 1,
            "{error}"
        );
    }
}
