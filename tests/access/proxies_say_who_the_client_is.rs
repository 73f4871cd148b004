//! HTTP proxies in front of the real program: the address of a client from `X-Forwarded-For` and `Forwarded`, and its user
//! from the header of `--auth-header`.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::program::{Program, outrigger};
use crate::common::traces::{TraceFile, eventually};
use crate::common::{PATIENCE, TEXT, Wire, request};
use rustix::process::Signal;
use serde_json::Value;

const OUTRIGGER: &str = env!("CARGO_BIN_EXE_outrigger");

const SECRET: &str = "s3cret-0123456789";

/// The header of `--auth-header` in these tests.
const AS_ADA: &str = "X-User: ada\r\n";

/// Starts a server on a free port. It requires [`SECRET`], and accepts `X-User` from proxies on this machine.
fn behind_proxy(args: &[&str], after: &[&str]) -> (Program, TraceFile) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let file = TraceFile::new(&format!("proxied-token-{number}"));
    fs::write(file.path(), SECRET).expect("a file");
    let mut command = Command::new(OUTRIGGER);
    command.args(args);
    command.args(["--listen", "127.0.0.1:0", "--token-file", &file.path()]);
    command.args(["--trusted-proxy", "127.0.0.1", "--auth-header", "X-User"]);
    command.args(after);
    (Program::spawn(&mut command), file)
}

/// A handshake with additional header fields.
fn handshake(target: &str, fields: &str) -> Vec<u8> {
    let head = String::from_utf8(request(target)).expect("ASCII");
    head.replacen("Upgrade:", &format!("{fields}Upgrade:"), 1)
        .into_bytes()
}

/// Sends a handshake. Returns the connection, the status of the answer, and its head.
fn ask(address: SocketAddr, target: &str, fields: &str) -> (Wire, u16, String) {
    let mut wire = Wire::open(address);
    wire.send(&handshake(target, fields));
    let head = wire.read_head();
    let status = head[9..12].parse().expect("a status");
    (wire, status, head)
}

/// The status of a handshake.
fn status(address: SocketAddr, target: &str, fields: &str) -> u16 {
    ask(address, target, fields).1
}

/// Sends a call on a connection that is kept open. Returns the status and the JSON of the answer.
fn call(wire: &mut Wire, path: &str, fields: &str) -> (u16, Value) {
    wire.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n").as_bytes());
    let (head, body) = wire.read_response();
    (head[9..12].parse().expect("a status"), body)
}

/// The log of a program, after it was stopped.
fn stop(mut server: Program) -> String {
    server.signal(Signal::TERM);
    server.wait_and_read_log().1
}

#[test]
fn the_address_of_a_forwarded_client_is_in_events_status_and_log() {
    let (server, _file) = behind_proxy(&["app"], &["--trusted-proxy", "10.0.0.0/8"]);
    let address = server.address_of_event();
    for (fields, remote) in [
        (
            "X-Forwarded-For: 198.51.100.9, 192.0.2.1\r\n",
            "192.0.2.1:0",
        ),
        (
            "X-Forwarded-For: 192.0.2.2:4711, 10.9.9.9\r\n",
            "192.0.2.2:4711",
        ),
        (
            "X-Forwarded-For: 192.0.2.2\r\nX-Forwarded-For: 192.0.2.3\r\n",
            "192.0.2.3:0",
        ),
        (
            "Forwarded: for=198.51.100.9, for=\"[2001:db8::1]:4711\";proto=https\r\n",
            "[2001:db8::1]:4711",
        ),
        (
            "Forwarded: for=192.0.2.4\r\nX-Forwarded-For: 192.0.2.4\r\n",
            "192.0.2.4:0",
        ),
    ] {
        let (mut wire, code, _) = ask(address, "/", &format!("{fields}{AS_ADA}"));
        assert_eq!(code, 101);
        let event = server.event_of("connect");
        assert_eq!(event["remote"], remote, "{fields}");
        assert_eq!(event["principal"], "user:ada");
        assert_eq!(event["headers"]["x-user"], Value::Null, "{event}");
        let (_, answer) = call(&mut Wire::open(address), "/status", AS_ADA);
        assert_eq!(answer["clients"][0]["remote"], remote);
        assert_eq!(answer["clients"][0]["principal"], "user:ada");
        wire.send_close(1000);
        server.event_of("disconnect");
    }
    // Without an address that can be believed, it is that of the proxy.
    for fields in [
        "",
        "X-Forwarded-For: unknown\r\n",
        "X-Forwarded-For: 192.0.2.1, _hidden\r\n",
        "X-Forwarded-For: 192.0.2.1, 192.0.2.2x\r\n",
        "Forwarded: for=192.0.2.1, for=\"192.0.2.2\r\n",
        "Forwarded: for=192.0.2.1\r\nX-Forwarded-For: 192.0.2.2\r\n",
    ] {
        let (_wire, code, _) = ask(address, "/", &format!("{fields}{AS_ADA}"));
        assert_eq!(code, 101);
        let remote = server.event_of("connect")["remote"].to_string();
        assert!(remote.starts_with("\"127.0.0.1:"), "{fields} {remote}");
    }
    let log = stop(server);
    assert!(
        log.contains(" remote=192.0.2.2:4711 principal=user:ada\n"),
        "{log}"
    );
    let conflict = "forwards X-Forwarded-For (client 192.0.2.2:0) and Forwarded (client 192.0.2.1:0): neither is used";
    assert_eq!(log.matches(conflict).count(), 1, "{log}");
}

#[test]
fn clients_of_a_proxy_are_limited_by_their_own_addresses() {
    let (server, _file) = behind_proxy(&["echo"], &["--max-clients-per-address", "2"]);
    let address = server.address();
    let from = |client: &str| {
        ask(
            address,
            "/",
            &format!("{AS_ADA}X-Forwarded-For: {client}\r\n"),
        )
    };
    let mut open = Vec::new();
    for client in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
        for expected in [101, 101, 503] {
            let (wire, code, _) = from(client);
            assert_eq!(code, expected, "{client}");
            open.push(wire);
        }
    }
    // The limit is for a client, whatever the port, and however the proxy writes its address.
    for client in ["192.0.2.1:8", "[::ffff:192.0.2.1]:9"] {
        assert_eq!(from(client).1, 503);
    }
    // Connections that have sent no request are not those of one address.
    let mut waiting: Vec<_> = (0..8).map(|_| Wire::open(address)).collect();
    let last = waiting.last_mut().expect("8");
    last.send(&handshake(
        "/",
        &format!("{AS_ADA}X-Forwarded-For: 192.0.2.4\r\n"),
    ));
    assert!(last.read_head().starts_with("HTTP/1.1 101 "));
    open.remove(0).reset();
    eventually("the place is free", || from("192.0.2.1").1 == 101);
}

#[test]
fn a_connection_of_a_proxy_carries_requests_of_several_users() {
    let (server, _file) = behind_proxy(&["app"], &["--auth-scope", "metrics"]);
    let address = server.address_of_event();
    let mut wire = Wire::open(address);
    let bearer = format!("Authorization: Bearer {SECRET}\r\n");
    let forwarded = "X-Forwarded-For: 192.0.2.1\r\n";
    assert_eq!(
        call(&mut wire, "/status", &format!("{forwarded}{AS_ADA}")).0,
        200
    );
    assert_eq!(call(&mut wire, "/status", "X-User: bob\r\n").0, 200);
    assert_eq!(call(&mut wire, "/status", &bearer).0, 200);
    // The user of an earlier request does not authenticate a later one.
    assert_eq!(call(&mut wire, "/status", forwarded).0, 401);
    // The scope is that of the users of the proxy, even if the request has a token that may do more.
    assert_eq!(status(address, "/", &format!("{AS_ADA}{bearer}")), 403);
    // A later request on the same connection is of another user, at another address.
    let mut wire = Wire::open(address);
    assert_eq!(
        call(&mut wire, "/status", &format!("{forwarded}{AS_ADA}")).0,
        200
    );
    wire.send(&handshake(
        "/",
        &format!("{bearer}Forwarded: for=192.0.2.2\r\n"),
    ));
    assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
    let event = server.event_of("connect");
    assert_eq!(
        (&event["remote"], &event["principal"]),
        (&"192.0.2.2:0".into(), &"default".into())
    );
}

#[test]
fn a_name_that_is_not_valid_is_rejected() {
    let (server, _file) = behind_proxy(&["echo"], &[]);
    let address = server.address();
    let long = format!("X-User: {}\r\n", "x".repeat(256));
    for (fields, why) in [
        ("X-User:\r\n", "is empty"),
        ("X-User: ada\r\nX-User: bob\r\n", "is repeated"),
        (&long, "255 bytes"),
        ("X-User: ada remote=192.0.2.1\r\n", "255 bytes"),
        ("X-User: \u{202e}ada\r\n", "255 bytes"),
    ] {
        let (mut wire, code, head) = ask(address, "/", fields);
        assert_eq!(code, 400, "{fields}");
        let length = head.split("Content-Length: ").nth(1).expect("a length");
        let length = length.lines().next().and_then(|text| text.parse().ok());
        let body = String::from_utf8(wire.read_exact(length.expect("a number"))).expect("JSON");
        assert!(body.contains("X-User") && body.contains(why), "{body}");
    }
    assert_eq!(status(address, "/", "x-user: \t Ada Lovelace\t\r\n"), 101);
    let log = stop(server);
    assert!(log.contains("principal=user:Ada Lovelace\n"), "{log}");
}

#[test]
fn fields_of_a_peer_that_is_not_trusted_are_ignored_and_its_user_is_not_passed_on() {
    let file = TraceFile::new("untrusted-token");
    fs::write(file.path(), SECRET).expect("a file");
    let server = Program::spawn(Command::new(OUTRIGGER).args([
        "app",
        "--listen",
        "127.0.0.1:0",
        "--token-file",
        &file.path(),
        "--trusted-proxy",
        "10.0.0.1",
        "--trusted-proxy",
        "unix",
        "--auth-header",
        "X-User",
    ]));
    let address = server.address_of_event();
    let forged = "X-User: ada\r\nX-Forwarded-For: 10.0.0.1\r\nForwarded: for=10.0.0.1\r\n";
    assert_eq!(status(address, "/", forged), 401);
    // The name is not even checked.
    let (_wire, code, _) = ask(
        address,
        "/",
        &format!("{forged}x-user: b\r\nAuthorization: Bearer {SECRET}\r\n"),
    );
    assert_eq!(code, 101);
    let event = server.event_of("connect");
    assert!(
        event["remote"].to_string().starts_with("\"127.0.0.1:"),
        "{event}"
    );
    assert_eq!(event["principal"], "default");
    assert_eq!(event["headers"]["x-user"], Value::Null, "{event}");
    assert_eq!(event["headers"]["x-forwarded-for"], "10.0.0.1", "{event}");
}

#[test]
fn a_layer_4_proxy_is_never_trusted() {
    // The bug: such a proxy passes bytes on without looking at them, so its clients send any field.
    let trusted = [
        "--trusted-proxy",
        "192.0.2.1",
        "--proxy-protocol",
        "127.0.0.0/8",
    ];
    let (server, _file) = behind_proxy(&["echo"], &trusted);
    let address = server.address();
    let forged = format!("{AS_ADA}X-Forwarded-For: 198.51.100.1\r\n");
    let bearer = format!("Authorization: Bearer {SECRET}\r\n");
    for header in [
        &b"PROXY TCP4 192.0.2.1 10.0.0.1 51000 80\r\n"[..],
        b"PROXY TCP4 127.0.0.1 10.0.0.1 51000 80\r\n",
        b"PROXY UNKNOWN\r\n",
        // LOCAL: the connection is the proxy's own.
        b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
    ] {
        for (fields, expected) in [(&forged, 401), (&format!("{forged}{bearer}"), 101)] {
            let mut wire = Wire::open(address);
            wire.send(&[header, &handshake("/", fields)].concat());
            let head = wire.read_head();
            assert_eq!(head[9..12], expected.to_string(), "{header:?}");
        }
    }
    let log = stop(server);
    assert!(
        !log.contains("198.51.100.1") && !log.contains("user:"),
        "{log}"
    );
    assert_eq!(
        log.matches(" remote=192.0.2.1:51000 principal=default\n")
            .count(),
        1,
        "{log}"
    );
}

/// Sends a handshake through a unix socket. Returns the status.
fn ask_unix(path: &str, host: &str, fields: &str) -> (UnixStream, u16) {
    let mut stream = UnixStream::connect(path).expect("the server listens");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("a timeout can be set");
    let head = String::from_utf8(handshake("/", fields)).expect("ASCII");
    let head = head.replacen("Host: localhost", &format!("Host: {host}"), 1);
    stream.write_all(head.as_bytes()).expect("the server reads");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("the server answers");
    let code = std::str::from_utf8(&answer[9..]).expect("ASCII").parse();
    (stream, code.expect("a status"))
}

#[test]
fn a_client_behind_a_proxy_on_a_unix_socket_is_not_the_user_of_the_proxy() {
    // The bug: the clients of a proxy that connects to a unix socket needed no token, as if they were its user.
    let socket = TraceFile::new("forwarded.sock");
    let path = socket.path();
    let server = Program::spawn(Command::new(OUTRIGGER).args([
        "app",
        "--listen",
        &format!("unix:{path}"),
        "--trusted-proxy",
        "unix",
        "--auth-header",
        "X-User",
    ]));
    let url = server.event_of("listening")["url"].to_string();
    assert!(url.contains("token="), "a token is required: {url}");
    for (host, fields, code, remote, principal) in [
        // Some proxies let a client remove the field that they set.
        ("localhost", "", 401, "", ""),
        ("localhost", "X-Forwarded-For: 192.0.2.1\r\n", 401, "", ""),
        ("localhost", "X-Forwarded-For: unknown\r\n", 401, "", ""),
        ("localhost", "X-Forwarded-For:\r\n", 401, "", ""),
        ("localhost", "Forwarded: for=_x\r\n", 401, "", ""),
        ("localhost", "X-User: ada\r\n", 101, "unix", "user:ada"),
        (
            "localhost",
            "X-User: ada\r\nX-Forwarded-For: 192.0.2.1\r\n",
            101,
            "192.0.2.1:0",
            "user:ada",
        ),
        // A page with its own host name may reach the proxy.
        ("evil.example", "X-User: ada\r\n", 403, "", ""),
        (
            "evil.example",
            "X-Forwarded-For: 192.0.2.1\r\n",
            403,
            "",
            "",
        ),
    ] {
        let (_stream, answer) = ask_unix(&path, host, fields);
        assert_eq!(answer, code, "{host} {fields}");
        if code == 101 {
            let event = server.event_of("connect");
            assert_eq!(
                (&event["remote"], &event["principal"]),
                (&remote.into(), &principal.into())
            );
        }
    }
    // A socket that no proxy uses needs no token as before.
    let socket = TraceFile::new("forwarded-not.sock");
    let server = Program::spawn(Command::new(OUTRIGGER).args([
        "app",
        "--listen",
        &format!("unix:{}", socket.path()),
        "--trusted-proxy",
        "10.0.0.1",
    ]));
    let url = server.event_of("listening")["url"].to_string();
    assert!(!url.contains("token="), "{url}");
    assert_eq!(
        ask_unix(
            &socket.path(),
            "localhost",
            "X-Forwarded-For: 192.0.2.1\r\n"
        )
        .1,
        101
    );
}

#[test]
fn a_cut_connection_is_resumed_by_its_own_user_alone() {
    let (server, _file) = behind_proxy(&["echo"], &[]);
    let address = server.address();
    let from = |client: &str| format!("{AS_ADA}X-Forwarded-For: {client}\r\n");
    let (wire, code, head) = ask(address, "/?resume=new", &from("192.0.2.1"));
    assert_eq!(code, 101);
    let token = head
        .lines()
        .find_map(|line| line.strip_prefix("Outrigger-Resume: "))
        .expect("a token");
    let back = format!("/?resume={token}&received=0");
    let bearer = format!("Authorization: Bearer {SECRET}\r\n");
    let other = "X-User: bob\r\nX-Forwarded-For: 192.0.2.1\r\n";
    let clients = || call(&mut Wire::open(address), "/status", AS_ADA).1["clients"].clone();
    for is_cut in [false, true] {
        if is_cut {
            wire.stream
                .shutdown(std::net::Shutdown::Both)
                .expect("a socket");
            eventually("it is detached", || {
                clients()[0]["resume"]["detached_s"].is_number()
            });
            let kept = clients();
            assert_eq!(
                kept[0]["principal"], "user:ada",
                "a detached client keeps its user"
            );
            assert_eq!(kept[0]["remote"], "192.0.2.1:0");
        }
        assert_eq!(status(address, &back, other), 410);
        assert_eq!(status(address, &back, &bearer), 410);
        assert_eq!(status(address, &back, ""), 401);
    }
    let (mut wire, code, _) = ask(address, &back, &from("192.0.2.7"));
    assert_eq!(code, 101);
    wire.send_frame(TEXT, b"hello");
    assert_eq!(wire.read_frame().payload, b"hello");
    let now = clients();
    assert_eq!(now.as_array().map(Vec::len), Some(1), "{now}");
    assert_eq!(now[0]["remote"], "192.0.2.7:0");
    assert_eq!(now[0]["principal"], "user:ada");
}

#[test]
fn wrong_tokens_are_counted_for_the_client_and_a_hangup_changes_nothing() {
    let (server, _file) = behind_proxy(&["echo"], &[]);
    let address = server.address();
    let guess = |from: &str| {
        let mut wire = Wire::open(address);
        wire.send(&handshake(
            "/?token=wrong",
            &format!("X-Forwarded-For: {from}\r\n"),
        ));
        wire
    };
    let (mut kept, code, _) = ask(address, "/", AS_ADA);
    assert_eq!(code, 101);
    for _ in 0..6 {
        assert!(guess("192.0.2.1").read_head().starts_with("HTTP/1.1 401 "));
    }
    // This answer is delayed, and one for another client is not.
    let slow = guess("192.0.2.1");
    assert!(guess("192.0.2.2").read_head().starts_with("HTTP/1.1 401 "));
    slow.stream.set_nonblocking(true).expect("a socket");
    assert!(slow.stream.peek(&mut [0]).is_err(), "not answered yet");
    server.signal(Signal::HUP);
    kept.send_frame(TEXT, b"still here");
    assert_eq!(kept.read_frame().payload, b"still here");
    assert_eq!(status(address, "/", AS_ADA), 101);
    let log = stop(server);
    let slowed = "wrong tokens: remote=192.0.2.1 wrong_tokens=6";
    assert!(log.contains(slowed), "{log}");
    assert!(!log.contains("wrong tokens: remote=127.0.0.1"), "{log}");
}

#[test]
fn a_program_learns_the_user_and_the_address_from_its_variables() {
    let script =
        "echo $REMOTE_ADDR $REMOTE_PORT $REMOTE_USER user=$HTTP_X_USER for=$HTTP_X_FORWARDED_FOR";
    let (server, _file) = behind_proxy(&["pipe"], &["--", "sh", "-c", script]);
    let address = server.address();
    let fields = format!("{AS_ADA}X-Forwarded-For: 192.0.2.1:99\r\n");
    let (mut wire, code, _) = ask(address, "/", &fields);
    assert_eq!(code, 101);
    let said = String::from_utf8(wire.read_frame().payload).expect("text");
    assert_eq!(
        said.trim_end(),
        "192.0.2.1 99 user:ada user= for=192.0.2.1:99"
    );
}

#[test]
fn options_without_effect_are_errors_and_weak_ones_are_warnings() {
    for (args, why) in [
        (&["--auth-header", "X-User"][..], "--trusted-proxy"),
        (
            &["--trusted-proxy", "::1", "--auth-scope", "use"],
            "--auth-header",
        ),
        (
            &["--trusted-proxy", "::1", "--auth-header", "authorization"],
            "carries the token",
        ),
        (
            &[
                "--trusted-proxy",
                "::1",
                "--auth-header",
                "X-A",
                "--token-header",
                "x-a",
            ],
            "carries the token",
        ),
    ] {
        let output = outrigger(&[&["echo", "--check"], args].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?} {error}");
        assert!(error.contains(why), "{error}");
    }
    for (args, why) in [
        (
            &["--trusted-proxy", "0.0.0.0/0"][..],
            "can name any address as its own\n",
        ),
        (
            &["--trusted-proxy", "::/0", "--auth-header", "X-User"],
            "and be any user (--auth-header)\n",
        ),
    ] {
        let output = outrigger(&[&["echo", "--check"], args].concat());
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && log.contains(why), "{log}");
    }
    let output = outrigger(&["echo", "--check", "--trusted-proxy", "10.0.0.0/8"]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
