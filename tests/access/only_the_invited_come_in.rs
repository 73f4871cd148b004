//! Tests of tokens, origins, hosts and listeners with the real program.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::common::program::{Program, outrigger};
use crate::common::traces::{TraceFile, eventually};
use crate::common::{BINARY, TEXT, Wire, call, request};
use rustix::process::Signal;
use serde_json::Value;

const OUTRIGGER: &str = env!("CARGO_BIN_EXE_outrigger");

/// Starts `outrigger` with exactly these arguments.
fn run(args: &[&str]) -> Program {
    Program::spawn(Command::new(OUTRIGGER).args(args))
}

/// The address and the token in the `listening` line.
fn listening(line: &str) -> (SocketAddr, Option<String>) {
    let url = line
        .strip_prefix("outrigger: listening on ws://")
        .expect("the listening line");
    let (address, target) = url.split_once('/').expect("a path");
    let token = target
        .split_once("?token=")
        .map(|(_, token)| token.to_owned());
    (address.parse().expect("an address"), token)
}

/// The status of a handshake with additional headers.
fn status(address: SocketAddr, target: &str, fields: &str) -> String {
    let mut wire = Wire::open(address);
    let request = String::from_utf8(request(target)).expect("ASCII");
    let request = request.replacen("Upgrade:", &format!("{fields}Upgrade:"), 1);
    wire.send(request.as_bytes());
    let head = wire.read_head();
    if head.contains(" 401 ") {
        assert!(head.contains("\r\nWWW-Authenticate: Bearer\r\n"), "{head}");
        assert!(
            head.contains("\r\nContent-Type: application/json\r\n"),
            "{head}"
        );
    }
    head[9..12].to_owned()
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn a_command_that_runs_programs_generates_a_token_and_prints_it_once() {
    let mut server = run(&[
        "terminal",
        "--listen",
        "127.0.0.1:0",
        "--log",
        "trace",
        "--",
        "cat",
    ]);
    let (address, token) = listening(&server.line());
    let token = token.expect("a fresh token");
    assert_eq!(status(address, "/terminal", ""), "401");
    assert_eq!(status(address, "/terminal?token=wrong", ""), "401");
    assert_eq!(
        status(address, &format!("/terminal?token={token}"), ""),
        "101"
    );
    let bearer = format!("Authorization: Bearer {token}\r\n");
    assert_eq!(status(address, "/terminal", &bearer), "101");
    // A browser can only name subprotocols. The answer must select one that is not the token.
    let mut wire = Wire::open(address);
    let offered = format!("Sec-WebSocket-Protocol: outrigger, outrigger.token.{token}\r\nUpgrade:");
    let head = String::from_utf8(request("/terminal")).expect("ASCII");
    wire.send(head.replacen("Upgrade:", &offered, 1).as_bytes());
    let head = wire.read_head();
    assert!(
        head.contains("\r\nSec-WebSocket-Protocol: outrigger\r\n") && !head.contains(&token),
        "{head}"
    );
    // The server does not wait for a body that no path accepts.
    for path in ["/healthz", "/status"] {
        let mut wire = Wire::open(address);
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n");
        wire.send(head.as_bytes());
        assert!(matches!(&wire.read_head()[9..12], "401" | "405"));
    }
    // Calls require the token like handshakes. Probes do not.
    assert_eq!(call(address, "GET", "/status", None).0, 401);
    assert_eq!(call(address, "GET", "/healthz", None).0, 200);
    let (code, body) = call(address, "GET", &format!("/status?token={token}"), None);
    assert!(code == 200 && !body.to_string().contains(&token));
    let command = fs::read_to_string(format!("/proc/{}/cmdline", server.pid())).expect("it runs");
    assert!(!command.contains(&token));
    server.signal(Signal::TERM);
    let (_, log) = server.wait_and_read_log();
    assert!(log.contains("401") && !log.contains(&token), "{log}");
}

#[test]
fn a_given_token_is_required_and_hidden_from_the_program() {
    let file = TraceFile::new("token");
    fs::write(file.path(), "chosen-by-us\n").expect("a file");
    let server = run(&[
        "app",
        "--listen",
        "127.0.0.1:0",
        "--token-file",
        &file.path(),
        "--token-header",
        "X-Ide-Token",
        "--log",
        "off",
    ]);
    let event = server.event();
    let url = event["url"].as_str().expect("a URL");
    assert!(!url.contains("token"), "who has given it knows it: {url}");
    let address: SocketAddr = url[5..].trim_end_matches('/').parse().expect("an address");
    assert_eq!(status(address, "/", "X-Ide-Token: chosen-by-u\r\n"), "401");
    for (target, fields) in [
        ("/?a=b&token=chosen-by-us", ""),
        ("/?a=b", "X-Ide-Token: chosen-by-us\r\n"),
        ("/?a=b", "Authorization: Bearer chosen-by-us\r\n"),
        (
            "/?a=b",
            "Sec-WebSocket-Protocol: chat, outrigger.token.chosen-by-us\r\n",
        ),
        (
            "/?a=b",
            "X-Ide-Token: chosen-by-us\r\nReferer: http://h/?token=chosen-by-us\r\nCookie: a=chosen%2dby-us\r\n",
        ),
    ] {
        assert_eq!(status(address, target, fields), "101", "{target} {fields}");
        let event = server.event_of("connect");
        assert_eq!(event["query"], "a=b");
        assert!(!event.to_string().contains("chosen"), "{event}");
    }
    // A path over the limit is refused by its length, before it is searched for tokens.
    let long = |len: usize| format!("/{:x<len$}", "");
    assert_eq!(status(address, &long(1023), ""), "401");
    assert_eq!(status(address, &long(1024), ""), "414");
    let call = format!("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", long(8000));
    let mut wire = Wire::open(address);
    wire.send(call.as_bytes());
    assert!(wire.read_head().starts_with("HTTP/1.1 414 "));
    // The environment variable is not passed on to programs.
    let server = Program::spawn(
        Command::new(OUTRIGGER)
            .args([
                "terminal",
                "--listen",
                "127.0.0.1:0",
                "--",
                "sh",
                "-c",
                "echo ${OUTRIGGER_TOKEN-unset}",
            ])
            .env("OUTRIGGER_TOKEN", "from-outside"),
    );
    let (address, told) = listening(&server.line());
    assert_eq!(told, None);
    let mut wire = Wire::attach(address, "/terminal?token=from-outside");
    assert_eq!(wire.read_frame().payload, b"unset\r\n");
}

#[test]
fn pages_of_other_origins_and_hosts_are_rejected() {
    let server = run(&[
        "echo",
        "--listen",
        "127.0.0.1:0",
        "--allow-origin",
        "https://app.example",
        "--allow-host",
        "agent.example",
    ]);
    let (address, token) = listening(&server.line());
    assert_eq!(token, None, "echo on loopback asks for none");
    let with = |host: &str, origin: &str| {
        let mut wire = Wire::open(address);
        let request = String::from_utf8(request("/")).expect("ASCII");
        let request = request.replacen("localhost", host, 1);
        let field = if origin.is_empty() {
            String::new()
        } else {
            format!("Origin: {origin}\r\n")
        };
        wire.send(
            request
                .replacen("Upgrade:", &format!("{field}Upgrade:"), 1)
                .as_bytes(),
        );
        wire.read_head()[9..12].to_owned()
    };
    let port = address.port();
    let own = format!("localhost:{port}");
    let rebound = format!("evil.example:{port}");
    for (host, origin, code) in [
        (&*own, "", "101"),
        (&*own, &*format!("http://{own}"), "101"),
        (&*own, "https://app.example", "101"),
        ("agent.example", "", "101"),
        (&*own, "https://evil.example", "403"),
        (&*own, "null", "403"),
        (&*rebound, "", "403"),
        (&*rebound, &*format!("http://{rebound}"), "403"),
    ] {
        assert_eq!(with(host, origin), code, "{host} {origin}");
    }
    eventually("nobody stays", || {
        call(address, "GET", "/status", None).1["client_count"] == 0
    });
}

#[test]
fn an_accepted_page_can_make_calls_and_read_the_answers() {
    let server = run(&[
        "processes",
        "--listen",
        "127.0.0.1:0",
        "--allow-origin",
        "https://app.example",
    ]);
    let (address, token) = listening(&server.line());
    let token = format!(
        "Authorization: Bearer {}\r\n",
        token.expect("a generated token")
    );
    let mut wire = Wire::open(address);
    let answer = |wire: &mut Wire, line: &str, fields: &str| {
        let length = "Content-Length: 0";
        wire.send(
            format!("{line} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n{fields}\r\n").as_bytes(),
        );
        let head = wire.read_head();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        wire.read_exact(length.map_or(0, |length| length.parse().expect("a number")));
        head
    };
    let page = "Origin: https://app.example\r\n";
    let readable = "\r\nAccess-Control-Allow-Origin: https://app.example\r\nVary: Origin\r\n";

    let asks =
        "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n";
    let head = answer(
        &mut wire,
        "OPTIONS /process/spawn",
        &format!("{page}{asks}"),
    );
    assert!(
        head.starts_with("HTTP/1.1 204 No Content\r\n") && head.contains(readable),
        "{head}"
    );
    for field in [
        "Methods: GET, HEAD, POST, DELETE",
        "Headers: Authorization, *",
    ] {
        let field = format!("\r\nAccess-Control-Allow-{field}\r\n");
        assert!(head.contains(&field), "{head}");
    }
    assert!(
        head.contains("\r\nConnection: close\r\n"),
        "no token was shown: {head}"
    );
    // A call of the page and, on the same connection, a call of a program, whose answer has no CORS headers.
    let mut wire = Wire::open(address);
    let head = answer(&mut wire, "GET /process", &format!("{page}{token}"));
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains(readable),
        "{head}"
    );
    let head = answer(&mut wire, "GET /process", &token);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        !head.contains("Access-Control") && !head.contains("Vary"),
        "{head}"
    );
    // Accepted pages can also read errors. Rejected pages cannot.
    let head = answer(&mut wire, "GET /process", page);
    assert!(
        head.starts_with("HTTP/1.1 401 ") && head.contains(readable),
        "{head}"
    );
    // Without a token, the server accepts neither a body nor a path that contains the token.
    let head = answer(
        &mut Wire::open(address),
        "OPTIONS /process/spawn",
        &format!("{page}{asks}Transfer-Encoding: chunked\r\n"),
    );
    assert!(head.starts_with("HTTP/1.1 400 "), "two lengths: {head}");
    let mut wire = Wire::open(address);
    wire.send(
        format!(
            "OPTIONS /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n{page}{asks}\r\n"
        )
        .as_bytes(),
    );
    assert!(wire.read_head().starts_with("HTTP/1.1 413 "));
    let secret = token.trim_end().rsplit(' ').next().expect("a token");
    let line = format!("OPTIONS /{secret}");
    let head = answer(&mut Wire::open(address), &line, &format!("{page}{asks}"));
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    let evil = "Origin: https://evil.example\r\n";
    for (line, status) in [
        ("OPTIONS /process", "403"),
        ("OPTIONS /healthz", "403"),
        ("GET /process", "403"),
        ("GET /healthz", "200"),
    ] {
        let head = answer(
            &mut Wire::open(address),
            line,
            &format!("{evil}{asks}{token}"),
        );
        assert_eq!(&head[9..12], status, "{line}");
        assert!(!head.contains("Access-Control"), "{head}");
    }
}

#[test]
fn a_unix_socket_is_for_its_user_and_replaces_a_stale_one() {
    let file = TraceFile::new("socket");
    let listen = format!("unix:{}", file.path());
    for _ in 0..2 {
        let mut server = run(&["app", "--listen", &listen, "--log", "off"]);
        let event = server.event();
        assert_eq!(
            (&event["url"], &event["port"]),
            (&format!("ws+unix:{}:/", file.path()).into(), &Value::Null)
        );
        let made = fs::metadata(file.path()).expect("the socket");
        assert!(made.file_type().is_socket() && made.permissions().mode() & 0o777 == 0o600);
        let socket = UnixStream::connect(file.path()).expect("it listens");
        // A unix stream is read and written like a TCP stream.
        let mut wire = Wire {
            stream: OwnedFd::from(socket).into(),
        };
        wire.send(&request("/"));
        assert!(
            wire.read_head().starts_with("HTTP/1.1 101 "),
            "no token is asked for"
        );
        let event = server.event_of("connect");
        assert_eq!(event["remote"], "unix");
        wire.send_frame(TEXT, b"hello");
        assert_eq!(server.event_of("message")["text"], "hello");

        let other = outrigger(&["echo", "--listen", &listen]);
        assert_eq!(other.status.code(), Some(1));
        assert!(
            String::from_utf8_lossy(&other.stderr).contains("another process is listening on it")
        );
        // A killed server leaves its file behind, and the next server replaces it.
        server.signal(Signal::KILL);
        server.wait();
        assert!(fs::metadata(file.path()).is_ok());
    }
    let mut server = run(&["echo", "--listen", &listen]);
    assert!(
        server
            .line()
            .starts_with("outrigger: listening on ws+unix:")
    );
    server.signal(Signal::TERM);
    server.wait();
    assert!(fs::metadata(file.path()).is_err(), "its file goes with it");
    fs::write(file.path(), "a file").expect("a file");
    let refused = outrigger(&["echo", "--listen", &listen]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not a socket"));
    assert_eq!(
        fs::read_to_string(file.path()).expect("it is there"),
        "a file"
    );
}

#[test]
fn an_inherited_socket_is_served() {
    for script in [
        "exec 3<&0 </dev/null; exec \"$0\" echo --no-auth --listen fd:3",
        "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" echo --no-auth",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        // A client that connects before the server starts waits for it.
        let mut early = Wire::open(address);
        early.send(&request("/"));
        let mut command = Command::new("sh");
        command.args(["-c", script, OUTRIGGER]);
        let server = Program::spawn_with(&mut command, Stdio::from(OwnedFd::from(listener)));
        assert_eq!(listening(&server.line()).0, address);
        assert!(early.read_head().starts_with("HTTP/1.1 101 "));
        Wire::connect(address, "/");
    }
    for (listen, says) in [
        ("fd:0", "standard streams"),
        ("fd:77", "fd:77"),
        ("fd:x", "fd:NUMBER"),
    ] {
        let refused = outrigger(&["echo", "--listen", listen]);
        assert!(
            String::from_utf8_lossy(&refused.stderr).contains(says),
            "{listen}"
        );
    }
}

#[test]
fn an_inherited_unix_socket_requires_the_token() {
    let file = TraceFile::new("given-socket");
    let listener = std::os::unix::net::UnixListener::bind(file.path()).expect("a socket");
    let script = "exec 3<&0 </dev/null; exec \"$0\" echo --listen fd:3";
    let mut command = Command::new("sh");
    command.args(["-c", script, OUTRIGGER]);
    let server = Program::spawn_with(&mut command, Stdio::from(OwnedFd::from(listener)));
    assert!(
        server
            .line()
            .starts_with("outrigger: listening on ws+unix:")
    );
    let socket = UnixStream::connect(file.path()).expect("it listens");
    let mut wire = Wire {
        stream: OwnedFd::from(socket).into(),
    };
    wire.send(&request("/"));
    assert!(wire.read_head().starts_with("HTTP/1.1 401 "));
    for args in [["fd:3", "fd:3"], ["127.0.0.1:0", "fd:9"]] {
        let script = format!(
            "exec 3<&0 </dev/null; exec \"$0\" echo --listen {} --listen {}",
            args[0], args[1]
        );
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let status = Command::new("sh")
            .args(["-c", &script, OUTRIGGER])
            .stdin(Stdio::from(OwnedFd::from(listener)))
            .stderr(Stdio::null())
            .status();
        assert_eq!(status.expect("it runs").code(), Some(1), "{args:?}");
    }
}

#[test]
fn an_announcement_contains_what_an_editor_needs_to_connect() {
    let folder = std::env::temp_dir().join(format!("outrigger-announce-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let name = folder.join("{port}.lock").display().to_string();
    let extra = r#"{"workspaceFolders":["/w"],"ideName":"Editor"}"#;
    let mut server = run(&[
        "app",
        "--port-range",
        "20000-60000",
        "--announce",
        &name,
        "--announce-extra",
        extra,
    ]);
    let event = server.event();
    let port = event["port"].as_u64().expect("a port");
    assert!((20000..=60000).contains(&port));
    let file = folder.join(format!("{port}.lock"));
    let told: Value =
        serde_json::from_str(&fs::read_to_string(&file).expect("the file")).expect("JSON");
    assert_eq!(
        fs::metadata(&file).expect("the file").permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(
        (&told["pid"], &told["port"], &told["transport"]),
        // The server belongs to the editor that has started it.
        (&std::process::id().into(), &port.into(), &"ws".into())
    );
    assert_eq!(
        (&told["ideName"], &told["workspaceFolders"][0]),
        (&"Editor".into(), &"/w".into())
    );
    let token = told["authToken"].as_str().expect("a token");
    let address = SocketAddr::from(([127, 0, 0, 1], port as u16));
    assert_eq!(
        status(address, "/", &format!("Authorization: Bearer {token}\r\n")),
        "101"
    );
    server.signal(Signal::TERM);
    server.wait();
    eventually("the file is removed", || !file.exists());
    fs::remove_dir(&folder).expect("nothing else is in it");
}

#[test]
fn several_processes_can_share_a_port() {
    let first = run(&["echo", "--listen", "127.0.0.1:0", "--reuse-port"]);
    let address = listening(&first.line()).0.to_string();
    let second = run(&["echo", "--listen", &address, "--reuse-port"]);
    assert_eq!(listening(&second.line()).0.to_string(), address);
    let refused = outrigger(&["echo", "--listen", &address]);
    assert_eq!(refused.status.code(), Some(1));
}

#[test]
fn an_open_server_logs_a_warning() {
    let mut server = run(&["echo", "--listen", "0.0.0.0:0", "--no-auth"]);
    server.line();
    server.signal(Signal::TERM);
    let (_, log) = server.wait_and_read_log();
    assert!(log.contains("WARN") && log.contains("--no-auth"), "{log}");
    let server = run(&["echo", "--listen", "0.0.0.0:0"]);
    assert!(
        listening(&server.line()).1.is_some(),
        "beyond loopback, echo requires a token, too"
    );
    for (args, says) in [
        (
            &["echo", "--no-auth", "--token-file", "x"][..],
            "cannot be combined with",
        ),
        (&["echo", "--token-file", "/no/such/file"], "/no/such/file"),
        (&["echo", "--port-range", "9-5"], "range of ports"),
        (&["echo", "--allow-origin", "example.com"], "not an origin"),
        (
            &["echo", "--announce-extra", "{\"a\":1}"],
            "has no effect without --announce",
        ),
    ] {
        let output = outrigger(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            String::from_utf8_lossy(&output.stderr).contains(says),
            "{args:?}"
        );
    }
}

#[test]
fn a_weak_setting_logs_a_warning() {
    // The bug: a token that can be guessed or read by others, or that was ignored, caused no warning.
    let token = TraceFile::new("weak-token");
    let warnings = |args: &[&str], variable: Option<&str>| {
        let mut command = Command::new(OUTRIGGER);
        command
            .args(args)
            .arg("--check")
            .env_remove("OUTRIGGER_TOKEN");
        if let Some(value) = variable {
            command.env("OUTRIGGER_TOKEN", value);
        }
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let write = |text: &str, mode| {
        fs::write(token.path(), text).expect("a file");
        fs::set_permissions(token.path(), fs::Permissions::from_mode(mode)).expect("a file");
    };
    let file = token.path();
    let with_file = ["echo", "--token-file", &file];
    write("0123456789abcdef", 0o600);
    assert_eq!(warnings(&with_file, None), "");
    write("0123456789abcde", 0o600);
    let said = warnings(&with_file, None);
    assert!(
        said.contains("WARN") && said.contains("15 characters"),
        "{said}"
    );
    assert!(!said.contains("0123"), "{said}");
    for mode in [0o640, 0o604, 0o620] {
        write("0123456789abcdef", mode);
        let said = warnings(&with_file, None);
        assert!(said.contains(&format!("(mode {mode:o})")), "{said}");
    }
    assert!(warnings(&["echo"], Some("short")).contains("5 characters"));
    let said = warnings(&["echo", "--no-auth"], Some("0123456789abcdef"));
    assert!(said.contains("OUTRIGGER_TOKEN is ignored"), "{said}");
    let open = ["echo", "--allow-origin", "*", "--allow-host", "*"];
    assert!(warnings(&open, None).contains("every web page can connect"));
    assert_eq!(warnings(&open, Some("0123456789abcdef")), "");
    assert_eq!(warnings(&open[..3], None), "");
}

#[test]
fn an_unspecified_address_is_printed_as_addresses_that_work() {
    // The bug: `listening on ws://0.0.0.0:7070/`, and 403 for who came by the machine's own name.
    let announced = TraceFile::new("everywhere");
    let file = announced.path();
    let server = run(&["echo", "--listen", "0.0.0.0:0", "--announce", &file]);
    let (address, token) = listening(&server.line());
    assert!(address.ip().is_loopback());
    let told: Value = serde_json::from_str(&announced.text()).expect("JSON");
    assert_eq!(told["url"], format!("ws://{address}/"));
    let name = rustix::system::uname();
    let name = name.nodename().to_str().expect("a name");
    let token = token.expect("a generated token");
    for (host, code) in [(name, "101"), ("evil.example", "403")] {
        let mut wire = Wire::open(address);
        let request = String::from_utf8(request(&format!("/?token={token}"))).expect("ASCII");
        wire.send(request.replacen("localhost", host, 1).as_bytes());
        assert_eq!(&wire.read_head()[9..12], code, "{host}");
    }
    server.signal(Signal::TERM);
    // The other addresses were printed as well.
    for line in server.rest() {
        let (other, _) = listening(&line);
        assert!(!other.ip().is_unspecified() && other.port() == address.port());
    }
}

#[test]
fn the_log_names_a_rejected_host_and_no_token() {
    // The bug: the log of a rejection did not name the Host or Origin, and could contain what a page sent for each key.
    let mut server = run(&[
        "terminal",
        "--listen",
        "127.0.0.1:0",
        "--no-auth",
        "--",
        "cat",
    ]);
    let (address, _) = listening(&server.line());
    let mut wire = Wire::open(address);
    wire.send(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert!(wire.read_head().starts_with("HTTP/1.1 403 "));
    let long = "x".repeat(2000);
    let origin = format!("Origin: https://\u{1b}[2J{long}\r\n");
    assert_eq!(
        status(address, "/terminal", &origin.replace('\u{1b}', "\u{9b}")),
        "403"
    );
    let mut wire = Wire::connect(address, "/terminal");
    wire.send_frame(TEXT, b"hunter2");
    wire.send_frame(BINARY, b"echo\n");
    while !wire.read_frame().payload.ends_with(b"echo\r\n") {}
    server.signal(Signal::TERM);
    wire.read_close();
    wire.send_close(1001);
    let (_, log) = server.wait_and_read_log();
    assert!(
        log.contains("403 this Host is not accepted (--allow-host): \"evil.example\""),
        "{log}"
    );
    assert!(
        log.contains("(--allow-origin): \"https://\\u{9b}[2Jxxx") && !log.contains(&long),
        "{log}"
    );
    assert!(
        log.contains("a text message of 7 bytes") && !log.contains("hunter2"),
        "{log}"
    );
}

#[test]
fn only_the_server_that_wrote_an_announcement_removes_it() {
    // The bug: the server identified its file by the inode number, which a new file can get once the first one is removed.
    let announced = TraceFile::new("inode");
    let file = announced.path();
    let mut server = run(&["echo", "--listen", "127.0.0.1:0", "--announce", &file]);
    server.line();
    let number = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&file).expect("a file"));
    let own = number();
    for _ in 0..100 {
        fs::remove_file(&file).expect("a file");
        fs::write(&file, "another's").expect("a file");
        assert_ne!(number(), own);
    }
    server.signal(Signal::TERM);
    server.wait();
    assert_eq!(announced.text(), "another's");
}

#[test]
fn a_hangup_reloads_the_token_and_the_lists() {
    let (file, config) = (
        TraceFile::new("reload-token"),
        TraceFile::new("reload-config"),
    );
    fs::write(file.path(), "first").expect("a file");
    fs::write(config.path(), r#"{"allow-origin":[]}"#).expect("a file");
    let server = run(&[
        "echo",
        "--listen",
        "127.0.0.1:0",
        "--token-file",
        &file.path(),
        "--config",
        &config.path(),
        "--log",
        "off",
    ]);
    let (address, _) = listening(&server.line());
    let mut revoked = Wire::connect(address, "/?token=first");
    let origin = "Origin: https://app.example\r\n";
    assert_eq!(status(address, "/?token=first", origin), "403");
    // A file that cannot be read changes nothing.
    fs::write(config.path(), "{").expect("a file");
    fs::write(file.path(), "second").expect("a file");
    server.signal(Signal::HUP);
    assert_eq!(status(address, "/?token=second", ""), "401");
    revoked.send_frame(TEXT, b"still here");
    assert_eq!(revoked.read_frame().payload, b"still here");
    fs::write(config.path(), r#"{"allow-origin":["https://app.example"]}"#).expect("a file");
    server.signal(Signal::HUP);
    eventually("the new token is taken", || {
        status(address, "/?token=second", origin) == "101"
    });
    assert_eq!(status(address, "/?token=first", ""), "401");
    let told = (1008, "the token was revoked".to_owned());
    assert_eq!(revoked.read_close(), told);
}

/// The bug: while a file of SIGHUP could not be read, as on a network file system, no client was served.
#[test]
fn a_file_that_blocks_does_not_hold_up_clients() {
    let file = TraceFile::new("reload-blocks");
    fs::write(file.path(), "first").expect("a file");
    let server = run(&[
        "echo",
        "--listen",
        "127.0.0.1:0",
        "--token-file",
        &file.path(),
    ]);
    let (address, _) = listening(&server.line());
    let mut client = Wire::connect(address, "/?token=first");
    // A pipe blocks its reader until a writer has written.
    fs::remove_file(file.path()).expect("the file");
    let made = Command::new("mkfifo").arg(file.path()).status();
    assert!(made.expect("it runs").success());
    server.signal(Signal::HUP);
    let mut writer = None;
    eventually("the server reads the file", || {
        // Without a reader, this fails.
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let mut options = fs::OpenOptions::new();
        writer = options
            .write(true)
            .custom_flags(flags)
            .open(file.path())
            .ok();
        writer.is_some()
    });
    client.send_frame(TEXT, b"still here");
    assert_eq!(client.read_frame().payload, b"still here");
    assert_eq!(status(address, "/?token=first", ""), "101");
    let mut writer = writer.expect("open");
    writer.write_all(b"second").expect("the server reads");
    drop(writer);
    eventually("the new token is taken", || {
        status(address, "/?token=second", "") == "101"
    });
}

#[test]
fn a_hangup_does_not_remove_the_token() {
    let config = TraceFile::new("reload-open");
    let write = |text: &str| fs::write(config.path(), text).expect("a file");
    let shell = r#"{"terminal":{"command":["cat"]}}"#;
    let file = |routes: &str, more: &str| {
        format!(r#"{{"listen":["127.0.0.1:0"],"log":"off",{more}"routes":{{{routes}}}}}"#)
    };
    write(&file(&format!(r#""/t":{shell}"#), ""));
    let server = run(&["serve", "--config", &config.path()]);
    let (address, token) = listening(&server.line());
    let target = format!("/t?token={}", token.expect("a generated token"));
    for changed in [
        file(
            r#""/t":{"echo":{}}"#,
            r#""allow-origin":["https://one.example"],"#,
        ),
        file(
            &format!(r#""/t":{shell}"#),
            r#""no-auth":true,"allow-origin":["https://two.example"],"#,
        ),
    ] {
        write(&changed);
        let from = changed.split('"').find(|word| word.starts_with("https"));
        let origin = format!("Origin: {}\r\n", from.expect("an origin"));
        server.signal(Signal::HUP);
        eventually("the file was read", || {
            status(address, &target, &origin) == "101"
        });
        assert_eq!(status(address, "/t", ""), "401", "{changed}");
    }
}

#[test]
fn the_affinity_cookie_is_set() {
    let server = run(&[
        "echo",
        "--listen",
        "127.0.0.1:0",
        "--affinity-cookie",
        "node=a1",
    ]);
    let (address, _) = listening(&server.line());
    let mut first = Wire::open(address);
    first.send(&request("/"));
    let head = first.read_head();
    assert!(
        head.contains("\r\nSet-Cookie: node=a1; Path=/; HttpOnly; SameSite=Lax\r\n"),
        "{head}"
    );
}
