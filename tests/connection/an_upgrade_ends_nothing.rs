//! The program replaces itself under its clients, which notice nothing of it. What cannot be carried over ends as at a restart.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use crate::common::program::{Program, outrigger};
use crate::common::traces::eventually;
use crate::common::{BINARY, PATIENCE, TEXT, Wire, call, frame, request, upgrade};
use outrigger::protocol::client::HttpRequest;
use outrigger::upgrade::Successor;
use outrigger::{
    ClientId, Config, Connect, Context, Outgoing, Rejection, Request, Response, ResponseEvent,
    Route, Server, Service, StatusCode,
};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Asks for an upgrade over TCP, with more fields. Returns the head of the response and its body.
fn ask_for_upgrade(address: SocketAddr, fields: &str) -> (String, Value) {
    let mut wire = Wire::open(address);
    let head = format!(
        "POST /upgrade HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
    );
    wire.send(head.as_bytes());
    wire.read_response()
}

fn descriptors(pid: u32) -> usize {
    let folder = PathBuf::from(format!("/proc/{pid}/fd"));
    fs::read_dir(folder).expect("the process runs").count()
}

fn metric(address: SocketAddr, name: &str) -> String {
    let mut wire = Wire::open(address);
    wire.send(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut wire.stream, &mut text).expect("the server answers");
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("{name} in {text}"))
        .to_owned()
}

#[test]
fn connections_go_on_wherever_they_are() {
    let program = Program::start(&["echo", "--allow-upgrade"]);
    let address = program.address();
    let (pid, before) = (program.pid(), descriptors(program.pid()));

    let mut idle = Wire::connect(address, "/");
    // A request, a frame, a message and a control frame that are incomplete, and output that is not read.
    let head = request("/");
    let mut handshaking = Wire::open(address);
    handshaking.send(&head[..head.len() / 2]);
    let text = frame(true, TEXT, "ένα μήνυμα".as_bytes());
    let mut inside_text = Wire::connect(address, "/");
    inside_text.send(&text[..9]);
    let mut between_frames = Wire::connect(address, "/");
    between_frames.send(&frame(false, BINARY, b"one and "));
    let ping = frame(true, 9, b"a ping");
    between_frames.send(&ping[..4]);
    let long = vec![b'x'; 3_000_000];
    let mut slow = Wire::connect(address, "/");
    slow.send_frame(BINARY, &long);

    for round in 1..=10 {
        let answer = upgrade(address);
        assert_eq!(answer["from"], env!("CARGO_PKG_VERSION"));
        assert_eq!(
            (&answer["passed"], &answer["closed"]),
            (&4.into(), &0.into()),
            "{answer}"
        );
        assert!(answer["pause_ms"].as_f64().is_some_and(|pause| pause > 0.0));
        idle.send_frame(TEXT, format!("round {round}").as_bytes());
        assert_eq!(
            idle.read_frame().payload,
            format!("round {round}").as_bytes()
        );
    }

    handshaking.send(&head[head.len() / 2..]);
    assert!(handshaking.read_head().starts_with("HTTP/1.1 101 "));
    inside_text.send(&text[9..]);
    assert_eq!(inside_text.read_frame().payload, "ένα μήνυμα".as_bytes());
    between_frames.send(&ping[4..]);
    assert_eq!(between_frames.read_frame().payload, b"a ping");
    between_frames.send(&frame(true, 0, b"another"));
    assert_eq!(between_frames.read_frame().payload, b"one and another");
    assert_eq!(slow.read_frame().payload, long);
    let mut new = Wire::connect(address, "/");
    new.send_frame(TEXT, b"new");
    assert_eq!(new.read_frame().payload, b"new");

    assert_eq!(program.pid(), pid);
    drop((idle, handshaking, inside_text, between_frames, slow, new));
    assert_eq!(
        metric(address, "outrigger_upgrades_total"),
        "outrigger_upgrades_total 10"
    );
    upgrade(address);
    // The connection that has asked may still be open, and so may the one that reads the metrics.
    assert!(
        descriptors(pid) <= before + 2,
        "{} descriptors, {before} before",
        descriptors(pid)
    );
}

/// A message of a client whose compressor keeps its context, so that it refers to the messages before.
#[cfg(feature = "deflate")]
fn compressed(deflate: &mut zlib_rs::Deflate, payload: &[u8]) -> Vec<u8> {
    let mut message = vec![0; payload.len() + 100];
    let before = deflate.total_out();
    deflate
        .compress(payload, &mut message, zlib_rs::DeflateFlush::SyncFlush)
        .expect("room for it");
    message.truncate((deflate.total_out() - before) as usize - 4);
    let mut frame = frame(true, TEXT, &message);
    frame[0] |= 0x40;
    frame
}

#[cfg(feature = "deflate")]
#[test]
fn a_compressed_message_refers_to_those_before_the_upgrade() {
    let program = Program::start(&["echo", "--allow-upgrade", "--deflate"]);
    let address = program.address();
    let mut wire = Wire::open(address);
    let head = String::from_utf8(request("/")).expect("ASCII");
    let offer = "Sec-WebSocket-Extensions: permessage-deflate\r\nHost";
    wire.send(head.replacen("Host", offer, 1).as_bytes());
    assert!(wire.read_head().contains("permessage-deflate"));
    let mut deflate = zlib_rs::Deflate::new(6, false, 15);
    let mut inflate = zlib_rs::Inflate::new(false, 15);
    let text: String = (0..3000).map(|number| format!("{number:x} ")).collect();
    let mut lengths = Vec::new();
    for round in 0..6 {
        // The first half before the upgrade, and the second one after it.
        let message = compressed(&mut deflate, text.as_bytes());
        lengths.push(message.len());
        let (first, second) = message.split_at(message.len() / 2);
        wire.send(first);
        if round > 0 {
            assert_eq!(upgrade(address)["closed"], 0);
        }
        wire.send(second);
        let [first, length] = wire.read_exact(2)[..] else {
            unreachable!("two bytes")
        };
        assert_eq!(first, 0xc0 | TEXT, "a compressed message");
        let length = match length {
            126 => usize::from(u16::from_be_bytes(
                wire.read_exact(2).try_into().expect("two bytes"),
            )),
            short => usize::from(short),
        };
        let input = [&wire.read_exact(length)[..], &[0, 0, 0xff, 0xff]].concat();
        let mut output = vec![0; text.len() + 1];
        let before = inflate.total_out();
        inflate
            .decompress(&input, &mut output, zlib_rs::InflateFlush::SyncFlush)
            .expect("compressed");
        output.truncate((inflate.total_out() - before) as usize);
        assert!(output == text.as_bytes(), "round {round}");
    }
    assert!(
        lengths[1] * 10 < lengths[0],
        "the second message refers to the first: {lengths:?}"
    );
}

#[cfg(feature = "deflate")]
#[test]
fn a_client_whose_compression_does_not_continue_ends_before_the_upgrade() {
    let settings = Settings::new("deflate", r#"{"deflate": true}"#);
    let options = ["echo", "--allow-upgrade", "--config", settings.path()];
    let mut program = Program::start(&options);
    let (address, mut log) = (program.address(), program.follow_log());
    let mut wire = Wire::open(address);
    let head = String::from_utf8(request("/")).expect("ASCII");
    let offer = "Sec-WebSocket-Extensions: permessage-deflate\r\nHost";
    wire.send(head.replacen("Host", offer, 1).as_bytes());
    assert!(wire.read_head().contains("permessage-deflate"));
    let mut plain = Wire::connect(address, "/");
    settings.change("{}");
    let answer = upgrade(address);
    assert_eq!(
        (&answer["passed"], &answer["closed"]),
        (&1.into(), &1.into())
    );
    assert_eq!(wire.read_close().0, 1012);
    wire.send_close(1012);
    wire.expect_end();
    let log = log.expect("upgraded from version");
    let before = log.split("replacing version").next().expect("a part");
    assert_eq!(before.matches(" disconnected: ").count(), 1, "{log}");
    plain.send_frame(TEXT, b"still here");
    assert_eq!(plain.read_frame().payload, b"still here");
}

#[test]
fn a_client_that_is_cut_comes_back_to_the_next_program() {
    let program = Program::start(&["echo", "--allow-upgrade"]);
    let address = program.address();
    let ask = |query: &str| {
        let mut wire = Wire::open(address);
        wire.send(&request(&format!("/?{query}")));
        let head = wire.read_head();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let token = head
            .lines()
            .find_map(|line| line.strip_prefix("Outrigger-Resume: "));
        let token = token.expect("a token").split(';').next().expect("a token");
        (wire, token.to_owned())
    };
    let (mut wire, mut token) = ask("resume=new");
    let mut received = 0;
    for round in 0..6 {
        // The connection is cut before or after the upgrade, with messages that the client has not read.
        for number in 0..3 {
            wire.send_frame(TEXT, format!("{round} {number}").as_bytes());
        }
        assert_eq!(wire.read_frame().payload, format!("{round} 0").as_bytes());
        received += 1;
        if round % 2 == 0 {
            wire.reset();
            assert_eq!(upgrade(address)["passed"], 1);
        } else {
            upgrade(address);
            wire.reset();
        }
        (wire, token) = ask(&format!("resume={token}&received={received}"));
        for number in 1..3 {
            assert_eq!(
                wire.read_frame().payload,
                format!("{round} {number}").as_bytes()
            );
            received += 1;
        }
    }
}

#[test]
fn a_program_that_cannot_continue_replaces_nothing() {
    let mut program = Program::start(&["echo", "--allow-upgrade", "--program", "/bin/false"]);
    let address = program.address();
    let mut log = program.follow_log();
    let mut client = Wire::connect(address, "/");
    let (head, body) = ask_for_upgrade(address, "");
    assert!(head.starts_with("HTTP/1.1 409 "), "{head}");
    assert_eq!(body["message"], "the new program has exited with code 1");
    program.signal(Signal::USR2);
    log.expect(
        "the upgrade has failed, and the server goes on: the new program has exited with code 1",
    );
    client.send_frame(TEXT, b"still here");
    assert_eq!(client.read_frame().payload, b"still here");
    log.expect("the upgrade has failed");
    assert_eq!(
        metric(address, "outrigger_failed_upgrades_total"),
        "outrigger_failed_upgrades_total 2"
    );

    let program = Program::start(&["echo", "--allow-upgrade", "--program", "/nonexistent"]);
    let (head, body) = ask_for_upgrade(program.address(), "");
    assert!(head.starts_with("HTTP/1.1 409 "), "{head}");
    let message = body["message"].as_str().expect("a message");
    assert!(message.contains("/nonexistent"), "{message}");
}

/// A folder of its own with a configuration file.
struct Settings {
    folder: PathBuf,
    file: String,
}

impl Settings {
    fn new(name: &str, settings: &str) -> Self {
        let name = format!("outrigger-upgrade-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("settings.json").display().to_string();
        let settings_file = Self { folder, file };
        settings_file.change(settings);
        settings_file
    }

    fn path(&self) -> &str {
        &self.file
    }

    fn change(&self, settings: &str) {
        fs::write(&self.file, settings).expect("written");
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Settings are read anew, so a mistake in the configuration file must be found before anything ends.
#[test]
fn changed_settings_are_in_force_after_the_upgrade_and_wrong_ones_prevent_it() {
    let settings = Settings::new("limits", r#"{"max-message": "1000"}"#);
    let program = Program::start(&["echo", "--allow-upgrade", "--config", settings.path()]);
    let address = program.address();
    let mut client = Wire::connect(address, "/");

    settings.change(r#"{"max-message": "many"}"#);
    let (head, body) = ask_for_upgrade(address, "");
    assert!(head.starts_with("HTTP/1.1 409 "), "{head}");
    let message = body["message"].as_str().expect("a message");
    assert!(message.contains("max-message"), "{message}");

    settings.change(r#"{"max-message": "5000"}"#);
    upgrade(address);
    client.send_frame(BINARY, &[7; 4000]);
    assert_eq!(client.read_frame().payload, [7; 4000]);
}

/// Starts an echo server that has its addresses from the configuration file. Returns its first address, too.
fn listening(settings: &Settings, listen: &Value) -> (Program, SocketAddr) {
    settings.change(&json!({"listen": listen}).to_string());
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.args(["echo", "--no-auth", "--allow-upgrade", "--config"]);
    let program = Program::spawn(command.arg(settings.path()));
    let address = program.address();
    (program, address)
}

/// Sends a message over each connection, and over a new one.
fn expect_echoes(address: SocketAddr, clients: &mut [Wire]) {
    let mut new = Wire::connect(address, "/");
    for client in clients.iter_mut().chain([&mut new]) {
        client.send_frame(TEXT, b"still here");
        assert_eq!(client.read_frame().payload, b"still here");
    }
}

/// The bug: the rehearsal said yes, and the server ended with all its clients when it could not listen, or not announce itself.
#[test]
fn an_address_or_an_announcement_that_does_not_work_prevents_the_upgrade() {
    let settings = Settings::new("faults", "");
    let (mut program, address) = listening(&settings, &json!(["127.0.0.1:0"]));
    let mut log = program.follow_log();
    let mut clients = [Wire::connect(address, "/"), Wire::connect(address, "/")];
    let path = |name: &str| settings.folder.join(name).display().to_string();
    let unix = |name: &str| format!("unix:{}", path(name));
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = tcp.local_addr().expect("an address").to_string();
    let _unix = UnixListener::bind(path("taken")).expect("a socket");
    fs::write(path("file"), "").expect("a file");
    // Another process has a part of the port that the server has for 127.0.0.1.
    let port = address.port();
    let _part = TcpListener::bind(("127.0.0.2", port)).expect("a port");
    let own = "127.0.0.1:0";
    let free = format!("127.0.0.3:{port}");
    let good = unix("new");
    let busy = "Address already in use";
    let faults = [
        (
            json!({"listen": [own, taken]}),
            &*format!("{taken}: {busy}"),
        ),
        (json!({"listen": [taken]}), busy),
        (
            json!({"listen": [own, "192.0.2.1:7070"]}),
            "192.0.2.1:7070: Cannot assign",
        ),
        (
            json!({"listen": [own, unix("taken")]}),
            "another process is listening on it",
        ),
        (
            json!({"listen": [own, unix("missing/x")]}),
            "missing/x: No such file",
        ),
        (
            json!({"listen": [own, unix("file")]}),
            "the file exists and is not a socket",
        ),
        (
            json!({"listen": [own, "fd:9"]}),
            "cannot listen on fd:9: the server was not started with this descriptor",
        ),
        (
            json!({"listen": [own, free, good, taken]}),
            &*format!("{taken}: {busy}"),
        ),
        (
            json!({"listen": [format!("0.0.0.0:{port}"), good]}),
            &*format!("0.0.0.0:{port}: {busy}"),
        ),
        (json!({"listen": [own, "tls:127.0.0.1:0"]}), "tls"),
        (
            json!({"listen": [own, good], "announce": path("file/x")}),
            "--announce: ",
        ),
        (
            json!({"listen": [own], "announce": path("")}),
            "--announce: ",
        ),
    ];
    for (fault, reason) in &faults {
        settings.change(&fault.to_string());
        let asked = outrigger(&["upgrade", &format!("http://{address}/")]);
        let said = String::from_utf8_lossy(&asked.stderr);
        assert_eq!(asked.status.code(), Some(1), "{fault}: {said}");
        assert!(said.contains(reason), "{fault}: {said}");
        program.signal(Signal::USR2);
        for _ in 0..2 {
            log.expect("the upgrade has failed, and the server goes on: ");
        }
        expect_echoes(address, &mut clients);
        // Nothing is left of the addresses that would have worked.
        assert!(!PathBuf::from(path("new")).exists(), "{fault}");
        assert!(TcpStream::connect(&free).is_err(), "{fault}");
    }
    drop(tcp);
    settings.change(&faults[0].0.to_string());
    assert_eq!(upgrade(address)["passed"], 2);
    expect_echoes(taken.parse().expect("an address"), &mut clients);
}

#[test]
fn new_addresses_are_open_after_an_upgrade_and_old_ones_closed() {
    let settings = Settings::new("addresses", "");
    let (program, address) = listening(&settings, &json!(["127.0.0.1:0"]));
    let mut clients = [Wire::connect(address, "/")];
    let socket = settings.folder.join("socket");
    let unix = format!("unix:{}", socket.display());
    let port = address.port();
    let other = format!("127.0.0.2:{port}");
    // The first address is in the way of the new one.
    let all = format!("0.0.0.0:{port}");
    for (listen, reached, has_file) in [
        (json!(["127.0.0.1:0", unix]), "127.0.0.1", true),
        (json!([unix, all]), "127.0.0.2", true),
        (json!([format!("plain:{all}")]), "127.0.0.3", false),
        (json!([other]), "127.0.0.2", false),
    ] {
        settings.change(&json!({"listen": listen}).to_string());
        // Over a connection to the last address.
        let from = if reached == "127.0.0.2" && !has_file {
            other.parse().expect("an address")
        } else {
            address
        };
        assert_eq!(upgrade(from)["passed"], 1, "{listen}");
        let reached = SocketAddr::new(reached.parse().expect("an address"), port);
        expect_echoes(reached, &mut clients);
        assert_eq!(socket.exists(), has_file, "{listen}");
        assert_eq!(UnixStream::connect(&socket).is_ok(), has_file, "{listen}");
    }
    assert!(TcpStream::connect(address).is_err());
    drop(program);
}

/// Asks another server when it is called, and keeps the connection to it.
struct Asking {
    connect: Arc<Connect>,
    idle: Option<ClientId>,
    heard: Sender<String>,
}

impl Service for Asking {
    fn route(&self, _: &Request<'_>) -> Result<Route, Rejection> {
        Ok(Route::call())
    }

    fn call(&mut self, ctx: &mut Context, caller: ClientId, _: &Request<'_>, _: &[u8]) {
        let request = HttpRequest::without_body("GET");
        let is_asked = match self.idle.take() {
            Some(idle) => ctx.request_again(idle, request).is_ok(),
            None => ctx.request(&self.connect, request).is_ok(),
        };
        assert!(is_asked);
        ctx.respond(caller, &Response::json(StatusCode::OK, "{}"));
    }

    fn outgoing(&mut self) -> Option<&mut dyn Outgoing> {
        Some(self)
    }
}

impl Outgoing for Asking {
    fn response(&mut self, _: &mut Context, client: ClientId, event: ResponseEvent<'_>) {
        let heard = match event {
            ResponseEvent::End { is_reusable } => {
                self.idle = is_reusable.then_some(client);
                "end".to_owned()
            }
            ResponseEvent::Failed { error, .. } => {
                self.idle = None;
                error.to_string()
            }
            _ => return,
        };
        self.heard.send(heard).expect("the test listens");
    }
}

/// Answers a request for each message on the channel.
fn answer_requests(listener: &TcpListener, go: &Receiver<()>) {
    for stream in listener.incoming() {
        let mut wire = Wire {
            stream: stream.expect("a connection"),
        };
        let mut byte = [0];
        while wire.stream.peek(&mut byte).is_ok_and(|count| count > 0) {
            wire.read_head();
            let Ok(()) = go.recv() else { return };
            // If the other side has given up, the next connection follows.
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
            let _ = wire.stream.write_all(answer);
        }
    }
}

/// The bug: any connection to another server prevented upgrades, also an idle one. The new program is gone when it is needed, so that the
/// test goes on.
#[test]
fn requests_to_other_servers_end_before_an_upgrade() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", other.local_addr().expect("an address"));
    let (go, answers) = mpsc::channel();
    let answering = std::thread::spawn(move || answer_requests(&other, &answers));
    let settings = Settings::new("requests", "");
    let program = settings.folder.join("program");
    let (heard, hears) = mpsc::channel();
    let (ready, started) = mpsc::channel();
    let successor = program.clone();
    let serving = std::thread::spawn(move || {
        let mut config = Config::new(([127, 0, 0, 1], 0).into());
        config.drain_timeout = Duration::from_secs(2);
        let asking = Asking {
            connect: Arc::new(Connect::new(url.parse().expect("a URL"))),
            idle: None,
            heard,
        };
        let mut server = Server::bind(config, asking).expect("a free port");
        let successor = Successor::new(successor, ["program".into()]).over_tcp(true);
        server.upgrade_to(successor).expect("signal handlers");
        let address = server.local_addresses()[0].tcp().expect("TCP");
        let started = ready.send((address, server.handle()));
        started.expect("the test waits");
        server.run().expect("it runs");
    });
    let (address, handle) = started.recv_timeout(PATIENCE).expect("it starts");
    let ask = || assert_eq!(call(address, "GET", "/", None).0, 200);
    let hear = || hears.recv_timeout(PATIENCE).expect("an event");
    let upgrade = || {
        let script = "#!/bin/sh\nrm \"$0\"\necho '{\"compresses\":true}'\n";
        fs::write(&program, script).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(&program, mode).expect("executable");
        let (status, answer) = call(address, "POST", "/upgrade", Some(json!({})));
        let why = answer["message"].as_str().expect("a message");
        assert_eq!(status, 409, "{answer}");
        assert!(why.starts_with("the program cannot be executed"), "{why}");
    };
    let cut = "the connection was cut: the server is upgraded";
    // An idle connection is closed, and the next request opens another one.
    ask();
    go.send(()).expect("it answers");
    assert_eq!(hear(), "end");
    upgrade();
    assert_eq!(hear(), cut);
    // The upgrade waits for the end of a request.
    ask();
    std::thread::scope(|scope| {
        let upgrading = scope.spawn(upgrade);
        eventually("the new program is tried", || !program.exists());
        let early = hears.recv_timeout(Duration::from_millis(200));
        assert!(early.is_err(), "{early:?}");
        go.send(()).expect("it answers");
        assert_eq!([hear(), hear()], ["end", cut]);
        upgrading.join().expect("it is refused");
    });
    // A request that takes longer fails.
    ask();
    upgrade();
    assert_eq!(hear(), cut);
    handle.stop().expect("it runs");
    serving.join().expect("it ends");
    drop(go);
    answering.join().expect("it ends");
}

#[test]
fn only_an_operator_can_ask_for_an_upgrade() {
    let program = Program::start(&["echo"]);
    let (head, body) = ask_for_upgrade(program.address(), "");
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    assert!(
        body["message"]
            .as_str()
            .is_some_and(|why| why.contains("unix socket"))
    );
    // The line with the address has the generated token.
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    let program = Program::spawn(command.args([
        "pipe",
        "--listen",
        "127.0.0.1:0",
        "--allow-upgrade",
        "--",
        "cat",
    ]));
    let line = program.line();
    let (_, url) = line.split_once("://").expect("a URL");
    let (address, token) = url.split_once("/?token=").expect("a token");
    let address: SocketAddr = address.parse().expect("an address");
    let (head, _) = ask_for_upgrade(address, "");
    assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
    let field = format!("Authorization: Bearer {token}\r\n");
    for _ in 0..2 {
        // The generated token stays the same.
        let (head, body) = ask_for_upgrade(address, &field);
        assert!(head.starts_with("HTTP/1.1 200 "), "{head} {body}");
    }
}

/// The bug: the handler noted the signal, and the next program did not know of it.
#[test]
fn a_signal_to_stop_during_the_upgrade_stops_the_next_program() {
    for _ in 0..4 {
        let mut program = Program::start(&["echo", "--allow-upgrade"]);
        let address = program.address();
        let mut log = program.follow_log();
        // It takes a while to write down what these clients have not read.
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let mut wire = Wire::connect(address, "/");
                wire.send_frame(BINARY, &vec![b'x'; 8 << 20]);
                wire.read_exact(1000);
                wire
            })
            .collect();
        program.signal(Signal::USR2);
        log.expect("replacing version");
        program.signal(Signal::TERM);
        drop(clients);
        assert_eq!(program.wait().code(), Some(0));
    }
}

/// The bug: the signal ended a program that did not handle it yet.
#[test]
fn a_signal_to_upgrade_at_the_start_waits_until_it_is_handled() {
    let script = "kill -USR2 $$; exec \"$0\" echo --listen 127.0.0.1:0";
    let mut command = Command::new("env");
    command.args(["--block-signal=USR2", "sh", "-c", script]);
    let mut program = Program::spawn(command.arg(env!("CARGO_BIN_EXE_outrigger")));
    let mut log = program.follow_log();
    log.expect("upgraded from version");
    Wire::connect(program.address(), "/");
}

/// The bug: the program that was tried did not take the service manager's sockets for its own, and tried to open the default address,
/// which another process had.
#[test]
fn the_sockets_of_a_service_manager_pass() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let _other = TcpListener::bind("127.0.0.1:7070");
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" echo --no-auth";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_outrigger")]);
    let mut program = Program::spawn_with(&mut command, Stdio::from(OwnedFd::from(listener)));
    let mut log = program.follow_log();
    let mut client = Wire::connect(address, "/");
    program.signal(Signal::USR2);
    log.expect("upgraded from version");
    client.send_frame(TEXT, b"still here");
    assert_eq!(client.read_frame().payload, b"still here");
    Wire::connect(address, "/");
}

/// The bug: the state could not be written, or the new program could not be tried.
#[test]
fn a_server_whose_descriptor_table_is_full_can_be_upgraded() {
    let script = "ulimit -n 80; exec \"$0\" echo --listen 127.0.0.1:0 --handshake-timeout 0";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_outrigger")]);
    let mut program = Program::spawn(&mut command);
    let (address, mut log) = (program.address(), program.follow_log());
    let mut client = Wire::connect(address, "/");
    let _others: Vec<_> = (0..100).map(|_| Wire::open(address)).collect();
    log.expect("cannot accept connections at the moment");
    for _ in 0..2 {
        program.signal(Signal::USR2);
        log.expect("upgraded from version");
        client.send_frame(TEXT, b"still here");
        assert_eq!(client.read_frame().payload, b"still here");
    }
}
