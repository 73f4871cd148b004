//! `outrigger app`: events out and commands in, over a child's pipes or the server's own streams, and misbehaving peers.

use std::collections::HashMap;
use std::fs;
use std::io::Read;

use crate::common::program::Program;
use crate::common::traces::{TraceFile, eventually, expect_gone};
use crate::common::{BINARY, CLOSE, TEXT, Wire, frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

/// Starts `app` with a shell script as its program.
fn app(options: &[&str], script: &str) -> Program {
    Program::start(&[&["app"][..], options, &["--", "sh", "-c", script]].concat())
}

/// The messages to a client, up to the one that is `end`.
fn heard(wire: &mut Wire) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while messages.last().is_none_or(|last| last != b"end") {
        messages.push(wire.read_frame().payload);
    }
    messages
}

#[test]
fn a_message_over_the_limit_of_json_closes_its_client() {
    let app = Program::start(&["app", "--max-json", "1KiB"]);
    let address = app.address_of_event();
    for (opcode, message) in [
        (TEXT, vec![b'x'; 1025]),
        (BINARY, vec![b'x'; 1025]),
        // It is short, but its JSON has six times as many bytes.
        (TEXT, vec![1; 400]),
    ] {
        let mut wire = Wire::connect(address, "/");
        wire.send_frame(TEXT, &[b'x'; 1024]);
        wire.send_frame(opcode, &message);
        assert_eq!(app.event_of("message")["text"], "x".repeat(1024));
        let why = "message over the limit of JSON messages";
        assert_eq!(wire.read_close(), (1009, why.to_owned()));
        wire.send_close(1009);
        assert_eq!(app.event_of("disconnect")["code"], 1009);
    }
    let mut metrics = Wire::open(address);
    metrics.send(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n");
    let mut text = String::new();
    metrics.stream.read_to_string(&mut text).expect("the end");
    assert!(text.contains("outrigger_long_json_total 3\n"), "{text}");
}

#[test]
fn events_and_commands_use_standard_output_and_input() {
    let mut app = Program::start(&[
        "app",
        "--subprotocol",
        "chat",
        "--allow-origin",
        "http://example.org",
    ]);
    let address = app.address_of_event();

    let mut wire = Wire::open(address);
    let request = String::from_utf8(crate::common::request("/room/1?name=x")).expect("ASCII");
    let more = "Origin: http://example.org\r\nSec-WebSocket-Protocol: other, chat\r\nX-A: 1\r\nx-a: 2\r\nHost";
    wire.send(request.replacen("Host", more, 1).as_bytes());
    assert!(
        wire.read_head()
            .contains("\r\nSec-WebSocket-Protocol: chat\r\n")
    );
    let event = app.event();
    let client = event["client"].clone();
    assert_eq!(event["event"], "connect");
    assert_eq!(
        (&event["path"], &event["query"]),
        (&json!("/room/1"), &json!("name=x"))
    );
    assert_eq!(
        (&event["origin"], &event["protocol"]),
        (&json!("http://example.org"), &json!("chat"))
    );
    assert_eq!(
        event["remote"],
        wire.stream.local_addr().expect("connected").to_string()
    );
    assert_eq!(
        (&event["headers"]["host"], &event["headers"]["x-a"]),
        (&json!("localhost"), &json!("1, 2"))
    );

    wire.send_frame(TEXT, "a \"quoted\"\nκόσμε\u{0}".as_bytes());
    let event = app.event();
    assert_eq!(
        event,
        json!({"event": "message", "client": client, "text": "a \"quoted\"\nκόσμε\u{0}"})
    );
    wire.send_frame(BINARY, &[0, 255, 1]);
    assert_eq!(
        app.event(),
        json!({"event": "message", "client": client, "binary": "AP8B"})
    );

    app.command(json!({"cmd": "send", "client": client, "text": "τ"}));
    app.command(json!({"cmd": "send", "client": client, "binary": "AQID"}));
    app.write(""); // An empty line is ignored.
    app.command(json!({"cmd": "status", "id": {"any": 7}}));
    let received = [wire.read_frame(), wire.read_frame()];
    assert_eq!(
        (received[0].opcode, &received[0].payload[..]),
        (TEXT, "τ".as_bytes())
    );
    assert_eq!(
        (received[1].opcode, &received[1].payload[..]),
        (BINARY, &[1, 2, 3][..])
    );
    let status = app.event();
    assert_eq!(
        (&status["id"], &status["client_count"]),
        (&json!({"any": 7}), &json!(1))
    );
    assert_eq!(
        (&status["clients"][0]["id"], &status["pid"]),
        (&client, &json!(app.pid()))
    );

    app.command(json!({"cmd": "close", "client": client, "code": 4001, "reason": "enough"}));
    assert_eq!(wire.read_close(), (4001, "enough".to_owned()));
    wire.send_close(4001);
    let event = app.event();
    let want = json!({"event": "disconnect", "client": client, "code": 4001, "reason": "enough", "cause": "service"});
    assert_eq!(event, want);
    assert_eq!(app.client_count(), 0);

    app.end_input();
    assert_eq!(
        app.wait().code(),
        Some(0),
        "the end of input is a clean stop"
    );
}

#[test]
fn a_broadcast_skips_the_clients_in_except() {
    let mut app = Program::start(&["app"]);
    let address = app.address_of_event();
    let mut wires: Vec<_> = ["/a", "/a", "/b"]
        .iter()
        .map(|path| Wire::connect(address, path))
        .collect();
    let ids: Vec<Value> = (0..3)
        .map(|_| app.event_of("connect")["client"].clone())
        .collect();
    app.command(json!({"cmd": "broadcast", "text": "all"}));
    app.command(json!({"cmd": "broadcast", "text": "not the first", "except": [ids[0]]}));
    app.command(json!({"cmd": "broadcast", "binary": "AA==", "path": "/a"}));
    app.command(json!({"cmd": "broadcast", "text": "end"}));
    let mut heard = |at: usize| heard(&mut wires[at]);
    assert_eq!(heard(0), [&b"all"[..], b"\0", b"end"]);
    assert_eq!(heard(1), [&b"all"[..], b"not the first", b"\0", b"end"]);
    assert_eq!(heard(2), [&b"all"[..], b"not the first", b"end"]);
}

#[test]
fn a_program_publishes_to_the_members_of_a_topic() {
    let mut app = Program::start(&["app"]);
    let address = app.address_of_event();
    let mut wires: Vec<_> = (0..3).map(|_| Wire::connect(address, "/")).collect();
    let ids: Vec<Value> = (0..3)
        .map(|_| app.event_of("connect")["client"].clone())
        .collect();
    for (client, topic) in [(0, "a"), (1, "a"), (1, "b"), (2, "b"), (2, "b")] {
        app.command(json!({"cmd": "subscribe", "client": ids[client], "topic": topic}));
    }
    app.command(json!({"cmd": "topics", "id": 1}));
    let event = app.event_of("topics");
    let mut topics = event["topics"].as_array().expect("a list").clone();
    topics.sort_by_key(|topic| topic["topic"].to_string());
    let both = ["a", "b"].map(|name| json!({"topic": name, "client_count": 2}));
    assert_eq!((&event["id"], &event["count"]), (&json!(1), &json!(2)));
    assert_eq!(topics, both);
    app.command(json!({"cmd": "topics", "topic": "a"}));
    let event = app.event_of("topics");
    assert_eq!((&event["topic"], &event["id"]), (&json!("a"), &Value::Null));
    assert_eq!(event["clients"], json!([ids[0], ids[1]]));
    app.command(json!({"cmd": "topics", "client": ids[2]}));
    let want =
        json!({"event": "topics", "id": null, "client": ids[2], "topics": ["b"], "count": 1});
    assert_eq!(app.event_of("topics"), want);

    app.command(json!({"cmd": "publish", "topic": "a", "text": "to a"}));
    app.command(
        json!({"cmd": "publish", "topic": "b", "text": "not the third", "except": [ids[2]]}),
    );
    app.command(json!({"cmd": "publish", "topic": "c", "text": "nobody"}));
    app.command(json!({"cmd": "unsubscribe", "client": ids[1], "topic": "a"}));
    app.command(json!({"cmd": "unsubscribe", "client": ids[1], "topic": "a"}));
    app.command(json!({"cmd": "publish", "topic": "a", "binary": "AA=="}));
    app.command(json!({"cmd": "subscribe", "client": "c999", "topic": "a"}));
    let message = app.event_of("error")["message"].clone();
    assert_eq!(message, "unknown client c999");
    app.command(json!({"cmd": "subscribe", "client": ids[0], "topic": ""}));
    let message = app.event_of("error")["message"].clone();
    assert_eq!(message, "the name of a topic has 1 to 255 bytes");
    app.command(json!({"cmd": "broadcast", "text": "end"}));
    let mut heard = |at: usize| heard(&mut wires[at]);
    assert_eq!(heard(0), [&b"to a"[..], b"\0", b"end"]);
    assert_eq!(heard(1), [&b"to a"[..], b"not the third", b"end"]);
    assert_eq!(heard(2), [&b"end"[..]]);
    // A client that has left is in no topic.
    drop(wires.remove(0));
    app.event_of("disconnect");
    app.command(json!({"cmd": "topics"}));
    let want = json!([{"topic": "b", "client_count": 2}]);
    assert_eq!(app.event_of("topics")["topics"], want);
}

#[test]
fn an_invalid_line_causes_one_error_event_with_its_number() {
    let mut app = Program::start(&["app", "--max-message", "1000"]);
    let mut wire = Wire::connect(app.address_of_event(), "/");
    let client = app.event_of("connect")["client"]
        .as_str()
        .expect("a string")
        .to_owned();
    let lines = [
        ("this is not JSON".to_owned(), "not JSON"),
        ("\"text\"".to_owned(), "not a JSON object"),
        (json!({"cmd": "dance"}).to_string(), "unknown command"),
        (
            json!({"cmd": "send", "client": "c999", "text": "x"}).to_string(),
            "unknown client",
        ),
        (
            json!({"cmd": "send", "client": "nobody", "text": "x"}).to_string(),
            "unknown client",
        ),
        (
            json!({"cmd": "close", "client": "c999"}).to_string(),
            "unknown client",
        ),
        (
            json!({"cmd": "send", "client": client, "binary": "?"}).to_string(),
            "base64",
        ),
        (
            json!({"cmd": "send", "client": client, "text": "x", "binary": "AA=="}).to_string(),
            "both",
        ),
        (
            json!({"cmd": "send", "client": client, "text": "x".repeat(1001)}).to_string(),
            "message limit",
        ),
        (
            json!({"cmd": "close", "client": client, "code": 1005}).to_string(),
            "close code",
        ),
        (
            json!({"cmd": "send", "client": client, "txt": "x", "text": "x"}).to_string(),
            "unknown field \"txt\"",
        ),
        (
            format!(r#"{{"cmd":"send","client":"{client}","text":"x","text":"x"}}"#),
            "occurs twice",
        ),
    ];
    for (number, (line, says)) in (1..).zip(&lines) {
        app.write(line);
        let event = app.event();
        assert_eq!(
            (&event["event"], &event["line"]),
            (&json!("error"), &json!(number)),
            "{line}"
        );
        assert!(
            event["message"].as_str().expect("a message").contains(says),
            "{event}"
        );
    }
    app.command(json!({"cmd": "send", "client": client, "text": "still here"}));
    assert_eq!(
        wire.read_frame().payload,
        b"still here",
        "this is the first message"
    );
}

#[test]
fn a_line_may_be_longer_than_a_message_up_to_a_limit() {
    let mut app = Program::start(&["app", "--max-message", "1000"]);
    let mut wire = Wire::connect(app.address_of_event(), "/");
    let client = app.event_of("connect")["client"].clone();
    // A message of maximum length is longer in base64.
    let whole = "AAAA".repeat(333);
    app.command(json!({"cmd": "send", "client": client, "binary": whole}));
    assert_eq!(wire.read_frame().payload.len(), 999);
    app.write(&"x".repeat(100_000));
    let event = app.event_of("error");
    assert_eq!(event["line"], 2);
    assert!(
        event["message"]
            .as_str()
            .expect("a message")
            .contains("over 6096 bytes"),
        "{event}"
    );
    app.command(json!({"cmd": "send", "client": client, "text": "next"}));
    assert_eq!(wire.read_frame().payload, b"next");
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn answers_to_a_program_that_does_not_read_are_bounded() {
    // The bug: every invalid line queued an answer, and `yes` used up 140 MB a second. The first fix stopped reading the
    // program's output, which was a bug too: see the next test.
    for script in [
        "exec yes",
        "exec yes '{\"cmd\":\"status\",\"id\":\"0123456789\"}'",
        "exec yes '{\"cmd\":\"send\",\"client\":\"c9\",\"text\":\"\"}'",
    ] {
        let app = app(&["--log", "off"], script);
        let address = app.address();
        let field = |file: &str, name: &str| -> u64 {
            let path = format!("/proc/{}/{file}", app.pid());
            let text = fs::read_to_string(path).expect("it runs");
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            number.expect("a number").parse().expect("a number")
        };
        let before = field("io", "rchar:");
        eventually("commands are read", || {
            let read = field("io", "rchar:") - before;
            let resident = field("status", "VmRSS:");
            assert!(resident < 64 << 10, "{script}: {resident} kB");
            read > 4 << 20
        });
        // Other clients are still served.
        assert_eq!(crate::common::call(address, "GET", "/healthz", None).0, 200);
    }
}

#[test]
fn commands_are_read_while_a_program_is_far_behind() {
    // The bug: with more than 1 MiB of queued events, an answer paused the reading of commands until the program had read
    // most of the events. A program that writes a command for each event deadlocked.
    let gate = TraceFile::new("behind-gate");
    let script = r#"read -r listening; read -r first; read -r second
        client=${first#*\"client\":\"}; client=${client%%\"*}
        until [ -e GATE ]; do sleep 0.05; done
        echo '{"cmd":"send","client":"'$client'","text":"late"}'
        while read -r line; do case $line in
            *\"error\"*) echo '{"cmd":"broadcast","text":"error"}';;
            *\"message\"*) echo '{"cmd":"broadcast","text":"ANSWER"}';;
        esac; done"#;
    let script = script
        .replace("GATE", &gate.path())
        .replace("ANSWER", &"y".repeat(1000));
    let app = app(&[], &script);
    let address = app.address();
    let first = Wire::connect(address, "/");
    let mut second = Wire::connect(address, "/");
    drop(first);
    eventually("the first has left", || {
        crate::common::call(address, "GET", "/status", None).1["client_count"] == 1
    });
    for _ in 0..800 {
        second.send_frame(TEXT, &[b'x'; 1000]);
    }
    second.send_frame(TEXT, &[b'x'; 1 << 20]);
    eventually("the program is behind", || {
        let mut wire = Wire::open(address);
        wire.send(&crate::common::request("/"));
        wire.read_head().starts_with("HTTP/1.1 503 ")
    });
    fs::write(gate.path(), "").expect("a file");
    let (mut answers, mut errors) = (0, 0);
    while answers < 801 || errors < 1 {
        let frame = second.read_frame();
        match &frame.payload[..] {
            b"error" => errors += 1,
            payload if frame.opcode == TEXT => {
                assert_eq!(payload, "y".repeat(1000).as_bytes());
                answers += 1;
            }
            _ => {}
        }
    }
}

#[test]
fn error_events_stop_when_every_line_is_invalid() {
    // The bug: a program that echoes its input got an error event for it, echoed that, and so on without end.
    let trace = TraceFile::new("stray");
    let script = format!(
        "while read -r line; do echo \"got $line\"; echo line >>{}; done",
        trace.path()
    );
    let mut app = app(&[], &script);
    let address = app.address();
    // The `listening` event and 100 errors.
    eventually("it is told", || trace.text().lines().count() >= 101);
    let mut wire = Wire::connect(address, "/");
    wire.send_frame(TEXT, b"hello");
    eventually("it goes on", || trace.text().lines().count() >= 103);
    assert_eq!(crate::common::call(address, "GET", "/healthz", None).0, 200);
    assert_eq!(trace.text().lines().count(), 103);
    app.signal(Signal::TERM);
    wire.read_close();
    wire.send_close(1001);
    let (_, log) = app.wait_and_read_log();
    assert!(
        log.contains("line 1 from the program is not a command (not JSON"),
        "{log}"
    );
    assert!(
        log.contains("got {\"event\":\"listening\"") && log.contains("standard error"),
        "{log}"
    );
}

#[test]
fn errors_are_reported_again_after_a_valid_command() {
    let mut app = Program::start(&["app", "--log", "off"]);
    app.address_of_event();
    for _ in 0..150 {
        app.write("no");
    }
    for line in 1..=100 {
        let event = app.event();
        assert_eq!(
            (&event["event"], &event["line"]),
            (&json!("error"), &json!(line))
        );
        let last = event["message"]
            .as_str()
            .expect("text")
            .contains("no more errors");
        assert_eq!(last, line == 100, "{event}");
    }
    app.command(json!({"cmd": "status", "id": [1, {"a": "b"}]}));
    let status = app.event();
    assert_eq!(
        (&status["event"], &status["id"]),
        (&json!("status"), &json!([1, {"a": "b"}]))
    );
    let left_out = app.event();
    assert_eq!(
        (&left_out["event"], &left_out["count"], &left_out["line"]),
        (&json!("error"), &json!(50), &json!(150))
    );
}

#[test]
fn the_first_signal_after_the_end_of_input_does_not_cut_clients_off() {
    // The bug: draining for another reason counted as the first signal, so that SIGTERM disconnected all clients at once.
    let mut app = Program::start(&["app", "--close-timeout", "1h"]);
    let mut wire = Wire::connect(app.address_of_event(), "/");
    app.event_of("connect");
    app.end_input();
    assert_eq!(wire.read_close().0, 1001);
    app.signal(Signal::TERM);
    wire.send_close(1001);
    wire.expect_end();
    let disconnect = app.event_of("disconnect");
    assert_eq!(disconnect["cause"], "shutdown");
    assert_eq!(app.wait().code(), Some(0));
}

#[test]
fn the_exit_of_a_program_is_noticed_even_if_sigchld_is_ignored() {
    // The bug: with SIGCHLD ignored, the kernel reaps the child, and the server did not notice its exit.
    let mut command = std::process::Command::new("sh");
    let script = "trap '' CHLD; exec \"$0\" app --listen 127.0.0.1:0 --no-auth -- sh -c 'exit 3'";
    let mut app = Program::spawn(command.args(["-c", script, env!("CARGO_BIN_EXE_outrigger")]));
    app.address();
    let (status, log) = app.wait_and_read_log();
    assert_eq!(status.code(), Some(1));
    assert!(log.contains("outrigger: the program "), "{log}");
}

#[test]
fn standard_input_and_output_may_be_one_socket() {
    // The bug: at the end of input the socket became blocking again, and the output hung on a full socket.
    use std::io::{BufRead, Write};
    use std::os::unix::net::UnixStream;
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let input = std::os::fd::OwnedFd::from(theirs.try_clone().expect("a second handle"));
    let output = std::os::fd::OwnedFd::from(theirs);
    let mut app = std::process::Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args([
            "app",
            "--listen",
            "127.0.0.1:0",
            "--no-auth",
            "--log",
            "off",
        ])
        .stdin(input)
        .stdout(output)
        .spawn()
        .expect("the program starts");
    let mut lines = std::io::BufReader::new(ours.try_clone().expect("a second handle")).lines();
    let listening: Value =
        serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON");
    let port = listening["port"].as_u64().expect("a port") as u16;
    let mut wire = Wire::connect(std::net::SocketAddr::from(([127, 0, 0, 1], port)), "/");
    for _ in 0..100 {
        wire.send_frame(TEXT, &[b'x'; 10_000]);
    }
    // At the end of input, more output waits than the socket takes.
    (&ours)
        .write_all(b"{\"cmd\":\"status\",\"id\":1}\n")
        .expect("it reads");
    ours.shutdown(std::net::Shutdown::Write).expect("connected");
    assert_eq!(wire.read_close().0, 1001);
    wire.send_close(1001);
    let events: Vec<Value> = lines
        .map(|line| serde_json::from_str(&line.expect("text")).expect("whole lines"))
        .collect();
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).count();
    assert_eq!((of("disconnect"), of("status")), (1, 1));
    assert_eq!(app.wait().expect("it ends").code(), Some(0));
}

#[test]
fn when_the_program_exits_clients_get_1011_and_the_exit_code_is_1() {
    for (script, says) in [
        (
            "while read line; do case $line in *die*) exit 3;; esac; done",
            "exited with code 3",
        ),
        (
            "while read line; do case $line in *die*) exit 0;; esac; done",
            "exited with code 0",
        ),
        (
            "while read line; do case $line in *die*) kill -9 $$;; esac; done",
            "was killed by signal 9",
        ),
    ] {
        let mut app = app(&[], script);
        let mut wire = Wire::connect(app.address(), "/");
        wire.send_frame(TEXT, b"die");
        assert_eq!(wire.read_close(), (1011, "Program exited".to_owned()));
        wire.send_close(1011);
        let (status, log) = app.wait_and_read_log();
        assert_eq!(status.code(), Some(1));
        assert!(
            log.contains(&format!("outrigger: the program {says}")),
            "{log}"
        );
    }
}

#[test]
fn commands_before_the_programs_exit_are_executed() {
    let script =
        r#"read listening; read connect; echo '{"cmd":"broadcast","text":"last words"}'; exit 7"#;
    let mut app = app(&[], script);
    let mut wire = Wire::connect(app.address(), "/");
    assert_eq!(wire.read_frame().payload, b"last words");
    assert_eq!(wire.read_close().0, 1011);
    wire.send_close(1011);
    assert_eq!(app.wait().code(), Some(1));
}

#[test]
fn a_shutdown_command_stops_the_server_cleanly() {
    let script =
        r#"read listening; read connect; echo '{"cmd":"shutdown"}'; while read line; do :; done"#;
    let mut app = app(&[], script);
    let mut wire = Wire::connect(app.address(), "/");
    assert_eq!(wire.read_close(), (1001, "Server shutting down".to_owned()));
    wire.send_close(1001);
    assert_eq!(app.wait().code(), Some(0));
}

#[test]
fn a_restarted_program_gets_no_events_of_earlier_clients() {
    let log = TraceFile::new("restart");
    let script = format!(
        "echo start >>{0}; while read line; do echo \"$line\" >>{0}; case $line in *die*) exit 1;; esac; done",
        log.path()
    );
    let app = app(&["--restart"], &script);
    let address = app.address();
    let mut first = Wire::connect(address, "/first");
    first.send_frame(TEXT, b"die");
    assert_eq!(first.read_close(), (1011, "Program exited".to_owned()));
    // New clients get 503 until the program runs again.
    first.send_close(1011);
    let mut second = loop {
        let mut wire = Wire::open(address);
        wire.send(&crate::common::request("/second"));
        let head = wire.read_head();
        if head.starts_with("HTTP/1.1 101 ") {
            break wire;
        }
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    };
    second.send_frame(TEXT, b"hello");
    let seen = loop {
        let seen = log.text();
        if seen.contains("hello") {
            break seen;
        }
    };
    let (old, new) = seen.rsplit_once("start\n").expect("it was started twice");
    assert!(
        old.contains("/first") && !new.contains("/first") && !new.contains("disconnect"),
        "{seen}"
    );
    assert!(
        new.contains("\"event\":\"listening\"") && new.contains("/second"),
        "{seen}"
    );
}

#[test]
fn a_program_that_keeps_exiting_is_not_restarted_forever() {
    let mut app = app(&["--restart"], "exit 9");
    app.address();
    let (status, log) = app.wait_and_read_log();
    assert_eq!(status.code(), Some(1));
    assert_eq!(log.matches("restart_in=").count(), 5, "{log}");
    assert!(
        log.contains("outrigger: the program exited with code 9"),
        "{log}"
    );
}

#[test]
fn on_a_signal_the_program_finishes_and_its_background_processes_are_killed() {
    let note = TraceFile::new("signal");
    let script = format!(
        "sleep 1000 & echo $! >{0}; while read line; do :; done; echo finished >>{0}",
        note.path()
    );
    let mut app = app(&[], &script);
    let mut wire = Wire::connect(app.address(), "/");
    eventually("the program writes", || !note.text().is_empty());
    app.signal(Signal::TERM);
    assert_eq!(wire.read_close().0, 1001);
    wire.send_close(1001);
    assert_eq!(app.wait().code(), Some(0));
    let noted = note.text();
    let (left_behind, finished) = noted.split_once('\n').expect("two lines");
    assert_eq!(
        finished, "finished\n",
        "it reads the end of its input and finishes"
    );
    let left_behind = Pid::from_raw(left_behind.parse().expect("a number")).expect("a pid");
    expect_gone(left_behind);
}

#[test]
fn clients_wait_for_a_program_that_does_not_read_and_lose_nothing() {
    // The program reads nothing until a file appears, and then counts the messages.
    let gate = TraceFile::new("gate");
    let script = format!(
        "until [ -e {} ]; do sleep 0.05; done; n=0; while read -r line; do case $line in *\\\"message\\\"*) n=$((n+1));; \
         esac; case $line in *last*) echo \"{{\\\"cmd\\\":\\\"broadcast\\\",\\\"text\\\":\\\"$n\\\"}}\";; esac; done",
        gate.path()
    );
    let app = app(
        &["--ping-interval", "100ms", "--ping-timeout", "2s"],
        &script,
    );
    let mut wire = Wire::connect(app.address(), "/");
    let mut writer = Wire {
        stream: wire.stream.try_clone().expect("a second handle"),
    };
    let writing = std::thread::spawn(move || {
        for _ in 0..2000 {
            writer.send(&frame(true, TEXT, &[b'x'; 10_000]));
        }
        writer.send(&frame(true, TEXT, b"last"));
    });
    // The client does not answer PINGs while it is paused, and is not disconnected for that.
    for _ in 0..30 {
        assert_eq!(wire.read_frame().opcode, crate::common::PING);
    }
    fs::write(gate.path(), "").expect("a file");
    let answer = loop {
        let frame = wire.read_frame();
        assert_ne!(frame.opcode, CLOSE);
        if frame.opcode == TEXT {
            break frame.payload;
        }
        // The frames of the writing thread keep the connection alive. No other frame may be sent between their bytes.
        if writing.is_finished() {
            wire.send_frame(crate::common::PONG, b"");
        }
    };
    assert_eq!(answer, b"2001");
    writing.join().expect("all was written");
}

#[test]
fn a_closed_standard_output_is_a_failure() {
    // Standard output is a pipe whose reader exits after the first line.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let same = writer.try_clone().expect("a descriptor");
    let mut app = std::process::Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args([
            "app",
            "--listen",
            "127.0.0.1:0",
            "--no-auth",
            "--log",
            "off",
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(writer)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    let mut reader = std::io::BufReader::new(reader);
    std::io::BufRead::read_line(&mut reader, &mut line).expect("a line");
    drop(reader);
    // A child that another test starts has every descriptor until it executes its program.
    eventually("nobody has the reading end", || {
        let mut pipe = [PollFd::new(&same, PollFlags::empty())];
        let now = Timespec::default();
        poll(&mut pipe, Some(&now)).is_ok() && pipe[0].revents().contains(PollFlags::ERR)
    });
    let port = serde_json::from_str::<Value>(&line).expect("JSON")["port"]
        .as_u64()
        .expect("a port") as u16;
    let mut wire = Wire::connect(std::net::SocketAddr::from(([127, 0, 0, 1], port)), "/");
    assert_eq!(wire.read_close().0, 1011);
    wire.send_close(1011);
    assert_eq!(app.wait().expect("it ends").code(), Some(1));
}

#[test]
fn each_connect_event_has_one_disconnect_event() {
    let mut app = Program::start(&["app", "--log", "off"]);
    let address = app.address_of_event();
    let ways: [fn(Wire); 6] = [
        |mut wire| {
            wire.send_close(1000);
            wire.read_close();
        },
        drop,
        Wire::reset,
        |mut wire| {
            wire.send(&[0xff, 0xff]);
            wire.read_close();
        },
        |mut wire| wire.send(&frame(true, TEXT, b"hello")),
        |wire| wire.end_output(),
    ];
    let threads: Vec<_> = ways
        .into_iter()
        .map(|way| {
            std::thread::spawn(move || {
                for _ in 0..50 {
                    way(Wire::connect(address, "/"));
                }
            })
        })
        .collect();
    let mut ends: HashMap<String, u32> = HashMap::new();
    let mut open = 0;
    let mut seen = 0;
    while seen < 300 || open > 0 {
        let event = app.event();
        let client = event["client"].as_str().unwrap_or_default().to_owned();
        match event["event"].as_str() {
            Some("connect") => {
                assert_eq!(ends.insert(client, 0), None, "connected once");
                (open, seen) = (open + 1, seen + 1);
            }
            Some("disconnect") => {
                let ends = ends.get_mut(&client).expect("connected before");
                *ends += 1;
                assert_eq!(*ends, 1, "disconnected once");
                open -= 1;
            }
            _ => assert_eq!(ends.get(&client), Some(&0), "in between"),
        }
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("no client failed"));
    assert_eq!(app.client_count(), 0);
}
