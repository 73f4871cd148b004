//! The server replaces its program under `app` and `pipe`: their programs go on, and no message is lost, doubled or out of order.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::program::Program;
use crate::common::traces::{TraceFile, descendants, eventually, expect_gone};
use crate::common::{BINARY, TEXT, Wire, call, frame, upgrade};
use serde_json::{Value, json};

/// Starts a service that may be upgraded over TCP, with a shell script as its program.
fn service(command: &str, options: &[&str], script: &str) -> (Program, SocketAddr) {
    let options = [&[command, "--allow-upgrade"][..], options].concat();
    let server = Program::start(&[&options[..], &["--", "sh", "-c", script]].concat());
    let address = server.address();
    (server, address)
}

fn text(wire: &mut Wire) -> String {
    let frame = wire.read_frame();
    let text = String::from_utf8(frame.payload).expect("UTF-8");
    assert_eq!(frame.opcode, TEXT, "{text:?}");
    text
}

fn status(address: SocketAddr) -> Value {
    call(address, "GET", "/status", None).1
}

/// What the status says about clients and messages, without figures of time.
fn figures(address: SocketAddr) -> Value {
    let mut status = status(address);
    for client in status["clients"].as_array_mut().expect("a list") {
        for name in ["idle_s", "opened_s", "connected_s"] {
            client[name] = Value::Null;
        }
    }
    json!([status["clients"], status["totals"], status["client_count"]])
}

/// The part of an `app` in shell that takes an event apart: its client in `c` and its text in `t`.
const TAKE_APART: &str = r#"c=${e#*\"client\":\"}; c=${c%%\"*}; t=${e#*\"text\":\"}; t=${t%%\"*}"#;

#[test]
fn an_app_goes_on_with_all_messages_in_both_directions() {
    let trace = TraceFile::new("upgraded-app");
    // Each answer has the pid, the number of the event, and the text. `half` is answered at once, with half of a command behind it,
    // which the next event completes.
    let script = format!(
        r#"n=0; half=
        while read -r e; do
            n=$((n + 1)); {TAKE_APART}
            case $e in *'"event":"message"'*) ;; *) echo "${{e%%,*}}" >>{}; continue;; esac
            if [ "$half" ]; then echo " and the rest\"}}"; half=; fi
            printf '{{"cmd":"send","client":"%s","text":"%s %s %s"}}\n' "$c" $$ $n "$t"
            case $t in *half) half=1; printf '{{"cmd":"send","client":"%s","text":"half' "$c";; esac
        done"#,
        trace.path()
    );
    let (server, address) = service("app", &[], &script);
    let mut clients = [Wire::connect(address, "/"), Wire::connect(address, "/")];
    let (mut events, mut pid) = (3, String::new());
    for round in 0..10 {
        for client in &mut clients {
            for number in 0..10 {
                client.send_frame(TEXT, format!("{round} {number}").as_bytes());
            }
            client.send_frame(TEXT, format!("{round} half").as_bytes());
            for number in 0..11 {
                let answer = text(client);
                events += 1;
                if pid.is_empty() {
                    pid = answer.split(' ').next().expect("a pid").to_owned();
                }
                let said = if number < 10 {
                    format!("{round} {number}")
                } else {
                    format!("{round} half")
                };
                assert_eq!(answer, format!("{pid} {events} {said}"));
            }
            // These are on their way while the program is replaced.
            for number in 0..5 {
                client.send_frame(TEXT, format!("{round} {number}").as_bytes());
            }
            assert_eq!(upgrade(address)["passed"], 2);
            assert_eq!(text(client), "half and the rest");
            for number in 0..5 {
                events += 1;
                let answer = format!("{pid} {events} {round} {number}");
                assert_eq!(text(client), answer);
            }
        }
        let before = figures(address);
        upgrade(address);
        assert_eq!(figures(address), before);
    }
    let totals = &status(address)["totals"];
    assert_eq!(totals["messages_in"], 10 * 2 * 16, "{totals}");
    assert_eq!(totals["messages_out"], 10 * 2 * 17, "{totals}");
    // The program has been told once where the server listens.
    let events = trace.text();
    let kinds: Vec<&str> = events.lines().collect();
    let kind = |name: &str| format!(r#"{{"event":"{name}""#);
    let want = [kind("listening"), kind("connect"), kind("connect")];
    assert_eq!(kinds, want);
    drop(server);
}

/// The bug to prevent: what the program has not read is lost, or its clients are never read again.
#[test]
fn an_app_that_does_not_read_gets_everything_later() {
    let go = TraceFile::new("upgraded-app-reads");
    let script = format!(
        r#"n=0
        while read -r e; do
            {TAKE_APART}
            case $e in *'"event":"message"'*) ;; *) continue;; esac
            case $t in first*) while [ ! -e {} ]; do sleep 0.02; done;; esac
            n=$((n + 1)); printf '{{"cmd":"send","client":"%s","text":"%s %s"}}\n' "$c" $n "${{t%%x*}}"
        done"#,
        go.path()
    );
    let (_server, address) = service("app", &[], &script);
    let mut wire = Wire::connect(address, "/");
    wire.send_frame(TEXT, b"first");
    // More than the server queues, so that it stops to read.
    let count = 60;
    let mut sender = wire.stream.try_clone().expect("a descriptor");
    let sending = std::thread::spawn(move || {
        for number in 0..count {
            let message = format!("{number} {}", "x".repeat(60_000));
            let sent = sender.write_all(&frame(true, TEXT, message.as_bytes()));
            sent.expect("the server reads");
        }
    });
    let taken = || status(address)["totals"]["messages_in"].as_u64();
    let (mut last, mut same) = (None, 0);
    eventually("the client is paused", || {
        let now = taken();
        same = if now == last { same + 1 } else { 0 };
        last = now;
        same > 20 && now > Some(17)
    });
    assert!(taken() < Some(count), "{:?}", taken());
    for _ in 0..3 {
        upgrade(address);
    }
    // It waits for the program as before.
    assert!(taken() < Some(count), "{:?}", taken());
    std::fs::write(go.path(), "").expect("a file");
    assert_eq!(text(&mut wire), "1 first");
    for number in 0..count {
        assert_eq!(text(&mut wire), format!("{} {number} ", number + 2));
    }
    sending.join().expect("everything is sent");
}

#[test]
fn an_app_on_the_servers_own_streams_goes_on() {
    let mut app = Program::start(&["app", "--allow-upgrade"]);
    let address = app.address_of_event();
    let mut wire = Wire::connect(address, "/");
    let client = app.event_of("connect")["client"].clone();
    let pid = app.pid();
    for round in 0..10 {
        wire.send_frame(TEXT, format!("to {round}").as_bytes());
        let want = json!({"event": "message", "client": client, "text": format!("to {round}")});
        assert_eq!(app.event(), want);
        // The status shows that the half of a command behind it has been read.
        let command = json!({"cmd": "send", "client": client, "text": format!("from {round}")});
        let command = command.to_string();
        let (half, rest) = command.split_at(20);
        app.write_text(&format!("{{\"cmd\":\"status\",\"id\":{round}}}\n{half}"));
        let answer = app.event();
        assert_eq!(
            (&answer["id"], &answer["pid"]),
            (&json!(round), &json!(pid))
        );
        wire.send_frame(TEXT, b"under way");
        assert_eq!(upgrade(address)["passed"], 1);
        app.write(rest);
        assert_eq!(text(&mut wire), format!("from {round}"));
        assert_eq!(app.event()["text"], "under way");
    }
    wire.send_close(1000);
    assert_eq!(app.event()["event"], "disconnect");
    app.end_input();
    assert_eq!(app.wait().code(), Some(0));
    assert_eq!(app.rest(), Vec::<String>::new());
}

/// The program of a client, or one that all clients share.
const SHARINGS: [&[&str]; 2] = [&[], &["--shared"]];

#[test]
fn a_pipe_of_lines_goes_on_inside_a_line() {
    let script = r#"n=0; while read -r line; do n=$((n + 1)); printf '%s\n%s' "$$ $n $line" half; read -r line; echo " $line"; done"#;
    for options in SHARINGS {
        let (_server, address) = service("pipe", options, script);
        let mut wire = Wire::connect(address, "/");
        let mut pid = String::new();
        for round in 1..=10 {
            wire.send_frame(TEXT, format!("line {round}").as_bytes());
            let answer = text(&mut wire);
            if round == 1 {
                pid = answer.split(' ').next().expect("a pid").to_owned();
            }
            assert_eq!(answer, format!("{pid} {round} line {round}"));
            // Half of a message is read of the program, and half of one of the client.
            let rest = frame(true, TEXT, format!("rest {round}").as_bytes());
            wire.send(&rest[..7]);
            assert_eq!(upgrade(address)["passed"], 1);
            wire.send(&rest[7..]);
            assert_eq!(text(&mut wire), format!("half rest {round}"));
            let running = &status(address)["programs"][0]["pid"];
            assert_eq!(running.to_string(), pid, "{options:?}");
        }
    }
}

#[test]
fn a_pipe_with_content_length_goes_on_inside_a_message() {
    // Each message of the client has 23 bytes with its header.
    let script = r"while head -c 23 | grep -q go; do
        printf 'Content-Length: 5\r\n\r\nwholeContent-Le'; head -c 23 >/dev/null
        printf 'ngth: 9\r\n\r\nhalf'; head -c 23 >/dev/null
        printf ' restContent-Length: 5\r\n\r\nwhole'
    done";
    for options in SHARINGS {
        let options = [options, &["--framing", "content-length"]].concat();
        let (_server, address) = service("pipe", &options, script);
        let mut wire = Wire::connect(address, "/");
        for _ in 0..5 {
            wire.send_frame(TEXT, b"go");
            // Half of a header has been read, and then half of a body.
            assert_eq!(text(&mut wire), "whole");
            upgrade(address);
            wire.send_frame(TEXT, b"go");
            upgrade(address);
            wire.send_frame(TEXT, b"go");
            assert_eq!(text(&mut wire), "half rest");
            assert_eq!(text(&mut wire), "whole");
        }
    }
}

#[test]
fn a_pipe_of_raw_bytes_loses_none_to_a_client_that_reads_slowly() {
    for options in SHARINGS {
        let options = [options, &["--framing", "raw"]].concat();
        let (_server, address) = service("pipe", &options, "exec cat");
        let mut wire = Wire::connect(address, "/");
        let bytes: Vec<u8> = (0..10_000_000).map(|at| (at * 7 / 3) as u8).collect();
        let mut sender = wire.stream.try_clone().expect("a descriptor");
        let sent = bytes.clone();
        let sending = std::thread::spawn(move || {
            for piece in sent.chunks(70_000) {
                let sent = sender.write_all(&frame(true, BINARY, piece));
                sent.expect("the server reads");
            }
        });
        // It is not read: the socket, the server and both pipes are full.
        let (mut last, mut same) = (0, 0);
        eventually("nothing moves", || {
            let now = status(address)["totals"]["messages_in"].as_u64();
            let now = now.expect("a number");
            same = if now == last && now > 0 { same + 1 } else { 0 };
            last = now;
            same > 10
        });
        for _ in 0..5 {
            assert_eq!(upgrade(address)["passed"], 1);
        }
        let mut found = Vec::new();
        let mut next = 0;
        while found.len() < bytes.len() {
            let frame = wire.read_frame();
            assert_eq!(frame.opcode, BINARY);
            found.extend(frame.payload);
            if found.len() > next {
                upgrade(address);
                next += 2_000_000;
            }
        }
        assert!(found == bytes, "{options:?}");
        sending.join().expect("everything is sent");
    }
}

/// The bug to prevent: a program whose start is queued or whose exit comes during the upgrade is forgotten, or started twice.
#[test]
fn programs_that_start_or_exit_during_an_upgrade_are_not_forgotten() {
    let script = "read -r n; echo $n; read -r pause; sleep 0.0$pause; echo end $n; exit $n";
    let (_server, address) = service("pipe", &[], script);
    for round in 0..10_u16 {
        let mut wires: Vec<Wire> = (0..12).map(|_| Wire::open(address)).collect();
        for wire in &mut wires {
            wire.send(&crate::common::request("/"));
        }
        upgrade(address);
        for (number, wire) in wires.iter_mut().enumerate() {
            let head = wire.read_head();
            assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
            wire.send_frame(TEXT, number.to_string().as_bytes());
        }
        upgrade(address);
        for (number, wire) in wires.iter_mut().enumerate() {
            assert_eq!(text(wire), number.to_string());
            let pause = (usize::from(round) + number) % 10;
            wire.send_frame(TEXT, pause.to_string().as_bytes());
        }
        upgrade(address);
        for (number, wire) in wires.iter_mut().enumerate() {
            assert_eq!(text(wire), format!("end {number}"));
            let code = if number == 0 { 1000 } else { 4011 };
            let reason = format!("Program exited with code {number}");
            assert_eq!(wire.read_close(), (code, reason));
            wire.send_close(code);
            wire.expect_end();
        }
        eventually("no program is left", || status(address)["processes"] == 0);
    }
}

#[test]
fn a_program_in_its_restart_delay_is_started_after_it() {
    let trace = TraceFile::new("upgraded-delay");
    // It fails four times, so the last delay is 800 ms.
    let script = format!(
        "echo $$ >>{0}; if [ $(wc -l <{0}) -lt 5 ]; then exit 1; fi; exec cat",
        trace.path()
    );
    let (_server, address) = service("pipe", &["--shared"], &script);
    trace.pids(4);
    eventually("the program has failed", || {
        status(address)["restarts"] == 4
    });
    upgrade(address);
    assert_eq!(status(address)["restarts"], 4);
    eventually("the program runs", || status(address)["processes"] == 1);
    let mut wire = Wire::connect(address, "/");
    wire.send_frame(TEXT, b"hello");
    assert_eq!(text(&mut wire), "hello");
    // One start after the upgrade, and no more.
    upgrade(address);
    assert_eq!(trace.pids(5).len(), 5);
    assert_eq!(status(address)["restarts"], 4);
}

/// An app waits with the next program until all clients of the last one are gone.
#[test]
fn an_app_that_waits_for_its_clients_is_started_when_they_are_gone() {
    let trace = TraceFile::new("upgraded-ready");
    let script = format!(
        "echo $$ >>{}; while read -r e; do case $e in *die*) exit 1;; esac; done",
        trace.path()
    );
    let options = ["--restart", "--close-timeout", "1h"];
    let (_server, address) = service("app", &options, &script);
    let mut wire = Wire::connect(address, "/");
    wire.send_frame(TEXT, b"die");
    assert_eq!(wire.read_close().0, 1011);
    upgrade(address);
    upgrade(address);
    assert_eq!(trace.pids(1).len(), 1, "a client of the first one is left");
    wire.send_close(1011);
    wire.expect_end();
    assert_eq!(trace.pids(2).len(), 2);
    eventually("the program runs", || {
        call(address, "GET", "/readyz", None).0 == 200
    });
    Wire::connect(address, "/");
}

/// A configuration file in a folder of its own.
struct Settings(PathBuf);

impl Settings {
    fn new(name: &str, settings: &Value) -> Self {
        let name = format!("outrigger-{name}-{}.json", std::process::id());
        let file = Self(std::env::temp_dir().join(name));
        file.change(settings);
        file
    }

    fn change(&self, settings: &Value) {
        std::fs::write(&self.0, settings.to_string()).expect("written");
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn changed_routes_are_started_and_ended_and_the_others_go_on() {
    let trace = TraceFile::new("upgraded-routes");
    let numbers = json!([
        "sh",
        "-c",
        "n=0; while read -r line; do n=$((n + 1)); echo $n; done"
    ]);
    let written = format!("echo $$ >>{}; exec cat", trace.path());
    let kept = json!({"pipe": {"command": numbers}});
    let gone = json!({"pipe": {"command": ["sh", "-c", written], "shared": true}});
    let app = r#"while read -r e; do case $e in *'"event":"message"'*) echo '{"cmd":"broadcast","text":"heard"}';; esac; done"#;
    let new = json!({"app": {"command": ["sh", "-c", app]}});
    let file = Settings::new("routes", &json!({"routes": {"/kept": kept, "/gone": gone}}));
    let name = file.0.to_str().expect("UTF-8");
    let server = Program::start(&["serve", "--allow-upgrade", "--config", name]);
    let address = server.address();
    let mut kept_client = Wire::connect(address, "/kept");
    let mut gone_client = Wire::connect(address, "/gone");
    for (wire, answer) in [(&mut kept_client, "1"), (&mut gone_client, "x")] {
        wire.send_frame(TEXT, b"x");
        assert_eq!(text(wire), answer);
    }
    let pid = trace.pids(1)[0];

    file.change(&json!({"routes": {"/kept": kept, "/new": new}}));
    let answer = upgrade(address);
    assert_eq!(
        (&answer["passed"], &answer["closed"]),
        (&json!(1), &json!(1)),
        "{answer}"
    );
    assert_eq!(gone_client.read_close(), restart());
    expect_gone(pid);
    assert_eq!(call(address, "GET", "/gone", None).0, 404);
    let mut new_client = Wire::connect(address, "/new");
    for round in 2..5 {
        for (wire, answer) in [
            (&mut kept_client, &*round.to_string()),
            (&mut new_client, "heard"),
        ] {
            wire.send_frame(TEXT, b"x");
            assert_eq!(text(wire), answer);
        }
        assert_eq!(upgrade(address)["closed"], 0);
    }

    // What cannot be changed under a program is found before anything ends. The answer arrives while other services are busy.
    let raw = json!({"pipe": {"command": numbers, "framing": "raw"}});
    file.change(&json!({"routes": {"/kept": raw, "/new": new}}));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                new_client.send_frame(TEXT, b"x");
                assert_eq!(text(&mut new_client), "heard");
            }
        });
        for _ in 0..5 {
            let (status, answer) = call(address, "POST", "/upgrade", Some(json!({})));
            let why = answer["message"].as_str().expect("a message");
            assert_eq!(status, 409, "{answer}");
            assert!(
                why.contains("/kept") && why.contains("framing lines, which cannot be changed"),
                "{why}"
            );
        }
        is_over.store(true, Ordering::Relaxed);
    });
    kept_client.send_frame(TEXT, b"x");
    assert_eq!(text(&mut kept_client), "5");
}

/// The CLOSE of a client whose route is gone.
fn restart() -> (u16, String) {
    (1012, "the server is upgraded".to_owned())
}

/// The bug: the clients were given to the new service, which knew nothing of them.
#[test]
fn a_route_that_becomes_another_service_ends_and_starts_anew() {
    let shell = |script: &str| json!(["sh", "-c", script]);
    let reads = shell("while read -r line; do :; done");
    let cat = shell("exec cat");
    let services = [
        json!({"/x": {"app": {"command": reads}}}),
        json!({"/x": {"pipe": {"command": cat}}}),
        json!({"/x": {"pipe": {"command": cat, "shared": true}}}),
        json!({"/x": {"terminal": {"command": cat}}}),
        json!({"/x": {"agent": {"command": cat}}}),
        json!({"/x": {"echo": {}}}),
        // The same service, but at another path.
        json!({"/y": {"echo": {}}}),
    ];
    let file = Settings::new("kinds", &json!({"routes": services[0]}));
    let name = file.0.to_str().expect("UTF-8");
    let server = Program::start(&["serve", "--allow-upgrade", "--config", name]);
    let address = server.address();
    // A connection without a request stays, whatever becomes of the services.
    let half = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut early = Wire::open(address);
    early.send(&half[..20]);
    for next in services[1..].iter().chain(&services[..1]) {
        let path = if next == &services[0] { "/y" } else { "/x" };
        let mut client = Wire::connect(address, path);
        let before = descendants(server.pid());
        file.change(&json!({"routes": next}));
        let answer = upgrade(address);
        assert_eq!(
            (&answer["passed"], &answer["closed"]),
            (&json!(0), &json!(1)),
            "{next}: {answer}"
        );
        assert_eq!(client.read_close(), restart(), "{next}");
        before.into_iter().for_each(expect_gone);
        assert_eq!(upgrade(address)["closed"], 0);
    }
    early.send(&half[20..]);
    assert!(early.read_head().starts_with("HTTP/1.1 200 "));
}

/// The bug: the clients of removed routes ended on a way of their own. An `app` got TERM, and no event of their ends.
#[test]
fn each_service_that_an_upgrade_removes_hears_of_each_end_once() {
    let trace = TraceFile::new("removed-app");
    let shell = |script: &str| json!(["sh", "-c", script]);
    // It takes a while to read its events.
    let app = format!(
        "while read -r e; do sleep 0.03; echo \"$e\" >>{}; done",
        trace.path()
    );
    let mcp = r#"while read -r m; do case $m in *'"initialize"'*) echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}}';; esac; done"#;
    let routes = json!({
        "/agent": {"agent": {"command": shell("exec cat >/dev/null")}},
        "/app": {"app": {"command": shell(&app)}},
        "/echo": {"echo": {}},
        "/kept": {"echo": {}},
        "/mcp": {"mcp": {"command": shell(mcp)}},
        "/pipe": {"pipe": {"command": shell("exec cat")}},
        "/process/...": {"processes": {}},
        "/shared": {"pipe": {"command": shell("exec cat"), "shared": true}},
        "/terminal": {"terminal": {"command": shell("exec cat")}},
    });
    let file = Settings::new("removed", &json!({"routes": routes}));
    let name = file.0.to_str().expect("UTF-8");
    let mut server = Program::start(&["serve", "--allow-upgrade", "--config", name]);
    let (address, mut log) = (server.address(), server.follow_log());
    let spawned = call(
        address,
        "POST",
        "/process/spawn",
        Some(json!({"command": "cat"})),
    );
    let process = format!(
        "/process/{}/attach",
        spawned.1["process_id"].as_str().expect("an id")
    );
    let paths = [
        "/agent",
        "/app",
        "/echo",
        "/pipe",
        &process,
        "/shared",
        "/terminal",
    ];
    let mut kept = Wire::connect(address, "/kept");
    let mut clients: Vec<(&str, Wire)> = [paths, paths]
        .concat()
        .into_iter()
        .map(|path| {
            let query = if path == process { "?mode=viewer" } else { "" };
            (path, Wire::connect(address, &format!("{path}{query}")))
        })
        .collect();
    let mut calling = Wire::open(address);
    let post = |fields: &str, body: Value| {
        let body = body.to_string();
        format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: application/json, text/event-stream\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n{fields}\r\n{body}",
            body.len()
        )
    };
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}});
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    calling.send(post("", initialize).as_bytes());
    let (head, _) = calling.read_response();
    let session = head
        .lines()
        .find(|line| line.to_lowercase().starts_with("mcp-session-id"));
    let session = format!("{}\r\n", session.expect("a session"));
    let slow = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "x"}});
    calling.send(post(&session, slow).as_bytes());
    eventually("the call is pending", || {
        status(address)["routes"]["/mcp"]["pending_requests"] == 1
    });

    file.change(&json!({"routes": {"/kept": {"echo": {}}}}));
    let answer = upgrade(address);
    let counts = ["passed", "closed", "refused"].map(|name| answer[name].as_u64());
    assert_eq!(counts, [Some(1), Some(14), Some(1)], "{answer}");
    for (path, client) in &mut clients {
        assert_eq!(client.read_close(), restart(), "{path}");
        client.send_close(1012);
        client.expect_end();
    }
    // On a slow machine, the call has waited so long that its answer has begun as a stream.
    let refusal = calling.read_head();
    let has_begun = refusal.contains("text/event-stream");
    assert!(
        has_begun || refusal.starts_with("HTTP/1.1 503 "),
        "{refusal}"
    );
    let log = log.expect("upgraded from version").to_owned();
    let (before, after) = log
        .split_once("replacing version")
        .expect("the program was replaced");
    for path in paths {
        let is_end = |line: &&str| {
            line.contains(" disconnected: ") && line.contains(&format!("path={path:?} "))
        };
        assert_eq!(before.lines().filter(is_end).count(), 2, "{path}: {log}");
    }
    assert!(!after.contains(" disconnected: "), "{log}");
    assert!(
        before.contains("ending clients for the upgrade: 14 (2 of \"/agent\", "),
        "{log}"
    );
    let events = trace.text();
    let kinds = events.lines().map(|event| {
        let event: Value = serde_json::from_str(event).expect("an event");
        (
            event["event"].as_str().expect("a kind").to_owned(),
            event["code"].as_u64(),
        )
    });
    let kinds: Vec<_> = kinds.collect();
    let end = ("disconnect".to_owned(), Some(1012));
    let ends = kinds.iter().filter(|kind| **kind == end);
    assert_eq!((kinds.len(), ends.count()), (5, 2), "{events}");
    kept.send_frame(TEXT, b"still here");
    assert_eq!(text(&mut kept), "still here");
}

/// What a slow reader has not got yet, and CLOSE behind it, arrives although its client has ended.
#[test]
fn a_client_of_a_removed_service_gets_its_queued_output() {
    let echo = json!({"echo": {}});
    let file = Settings::new("queued", &json!({"routes": {"/a": echo, "/b": echo}}));
    let name = file.0.to_str().expect("UTF-8");
    let server = Program::start(&["serve", "--allow-upgrade", "--config", name]);
    let address = server.address();
    let long = vec![b'x'; 4_000_000];
    let mut slow = Wire::connect(address, "/a");
    slow.send_frame(BINARY, &long);
    slow.read_exact(10);
    file.change(&json!({"routes": {"/b": echo}}));
    assert_eq!(upgrade(address)["closed"], 1);
    assert_eq!(upgrade(address)["closed"], 0);
    assert!(slow.read_exact(long.len()) == long);
    assert_eq!(slow.read_close(), restart());
    slow.send_close(1012);
    slow.expect_end();
}

/// The program is gone when it is needed, after clients have ended for it.
#[test]
fn a_failed_upgrade_says_who_has_ended_for_it_and_their_service_goes_on() {
    let script = TraceFile::new("removed-program");
    std::fs::write(
        script.path(),
        format!("#!/bin/sh\nexec {BINARY_FILE} \"$@\"\n"),
    )
    .expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(script.path(), mode).expect("executable");
    let app = format!(
        "while read -r e; do case $e in *'\"disconnect\"'*) rm -f {};; esac; done",
        script.path()
    );
    let routes = json!({"/app": {"app": {"command": ["sh", "-c", app]}}, "/kept": {"echo": {}}});
    let file = Settings::new("failing", &json!({"routes": routes}));
    let name = file.0.to_str().expect("UTF-8");
    let program = script.path();
    let options = ["--allow-upgrade", "--config", name, "--program", &program];
    let server = Program::start(&[&["serve"], &options[..]].concat());
    let address = server.address();
    let mut kept = Wire::connect(address, "/kept");
    let mut ended = Wire::connect(address, "/app");
    file.change(&json!({"routes": {"/kept": {"echo": {}}}}));
    let (status, answer) = call(address, "POST", "/upgrade", Some(json!({})));
    let why = answer["message"].as_str().expect("a message");
    assert_eq!(status, 409, "{answer}");
    assert!(
        why.ends_with("; it has ended clients: 1 (1 of \"/app\")"),
        "{why}"
    );
    assert_eq!(ended.read_close(), restart());
    kept.send_frame(TEXT, b"still here");
    assert_eq!(text(&mut kept), "still here");
    Wire::connect(address, "/app");
}

/// The bug: the server ended with all its clients. The settings change while a program reads of the end of its client.
#[test]
fn settings_that_become_wrong_after_the_rehearsal_end_no_server() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = other.local_addr().expect("an address").to_string();
    let file = Settings::new("later", &json!({}));
    let name = file.0.to_str().expect("UTF-8");
    let own = "127.0.0.1:0";
    let kept = json!({"/kept": {"echo": {}}});
    let wrong = json!({"listen": [own, taken], "announce": "/dev/null/x", "routes": kept});
    let app = format!(
        "while read -r e; do case $e in *'\"disconnect\"'*) echo '{wrong}' >{name};; esac; done"
    );
    let app = json!({"app": {"command": ["sh", "-c", app]}});
    let routes = json!({"/app": app, "/kept": {"echo": {}}});
    file.change(&json!({"listen": [own], "routes": routes}));
    let mut command = std::process::Command::new(BINARY_FILE);
    command.args(["serve", "--no-auth", "--allow-upgrade", "--config", name]);
    let mut server = Program::spawn(&mut command);
    let (address, mut log) = (server.address(), server.follow_log());
    let mut kept_client = Wire::connect(address, "/kept");
    let _ended = Wire::connect(address, "/app");
    file.change(&json!({"listen": [own], "routes": kept}));
    assert_eq!(upgrade(address)["closed"], 1);
    kept_client.send_frame(TEXT, b"still here");
    assert_eq!(text(&mut kept_client), "still here");
    log.expect(&format!("cannot listen on {taken}: Address already in use"));
    log.expect("--announce: /dev/null/x: ");
    Wire::connect(address, "/kept");
}

const BINARY_FILE: &str = env!("CARGO_BIN_EXE_outrigger");
