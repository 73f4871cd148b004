//! `outrigger connect`: a program that speaks over standard streams reaches a server, and notices neither cuts nor tokens.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use crate::common::PATIENCE;
use crate::common::cutter::Cutter;
use crate::common::program::{Program, outrigger, wait};
use crate::common::traces::{TraceFile, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Starts `connect` with a URL and further arguments.
fn connect(url: &str, args: &[&str]) -> Program {
    Program::spawn(&mut command(url, args))
}

fn command(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.arg("connect").arg(url).args(args);
    command.env_remove("OUTRIGGER_TOKEN").env_remove("RUST_LOG");
    command
}

fn url(address: SocketAddr) -> String {
    format!("ws://{address}/")
}

/// A server whose clients' messages the test answers.
fn app(args: &[&str]) -> (Program, SocketAddr) {
    let app = Program::start(&[&["app"], args].concat());
    let address = app.address_of_event();
    (app, address)
}

/// Runs `connect` with this input, until its output ends with `last`. Returns the output.
fn exchange(command: &mut Command, input: &[u8], last: &[u8]) -> Vec<u8> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input).expect("it reads");
    drop(stdin);
    let mut stdout = child.stdout.take().expect("piped");
    let (mut output, mut buffer) = (Vec::new(), [0; 4096]);
    while !output.ends_with(last) {
        let count = stdout.read(&mut buffer).expect("a pipe");
        assert!(count > 0, "{:?}", String::from_utf8_lossy(&output));
        output.extend_from_slice(&buffer[..count]);
    }
    // It would wait for more messages.
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert_eq!(wait(&mut child).code(), Some(0));
    output
}

/// The next message of a client: the client and the message.
fn message(app: &Program) -> (String, Value) {
    let event = app.event_of("message");
    let text = event["text"].as_str().expect("text");
    let client = event["client"].as_str().expect("a client");
    (client.to_owned(), serde_json::from_str(text).expect("JSON"))
}

fn send(app: &mut Program, client: &str, message: &Value) {
    app.command(json!({"cmd": "send", "client": client, "text": message.to_string()}));
}

fn request(id: u64, method: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method})
}

fn answer(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": "done"})
}

/// The id and the code of an error.
fn failure(line: &Value) -> (Value, i64) {
    (
        line["id"].clone(),
        line["error"]["code"].as_i64().unwrap_or_default(),
    )
}

#[test]
fn whatever_is_cut_each_message_arrives_once_and_in_order() {
    let server = Program::start(&["echo", "--log", "off"]);
    // The lengths cut handshakes, frame headers, messages and CLOSE frames.
    let mut number = 1u32;
    let mut random = |below: u32| {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (number >> 8) % below
    };
    let limits: Vec<usize> = (0..60).map(|_| 300 + random(8000) as usize).collect();
    let cutter = Cutter::start(Some(server.address()), limits);
    let mut bridge = connect(&url(cutter.address), &[]);
    let mut sent = Vec::new();
    for number in 0..3000 {
        let text = "x".repeat(random(400) as usize);
        let line = json!({"jsonrpc": "2.0", "method": "n", "params": [number, text]}).to_string();
        bridge.write(&line);
        sent.push(line);
        if number % 100 == 99 {
            // What is not yet written meets connections that are cut later.
            for line in sent.drain(..) {
                assert_eq!(bridge.line(), line);
            }
        }
    }
    assert!(cutter.accepted() > 60, "{}", cutter.accepted());
    bridge.end_input();
    let (status, log) = bridge.wait_and_read_log();
    assert_eq!((status.code(), &*log), (Some(0), ""));
    assert_eq!(bridge.rest(), Vec::<String>::new());
}

/// The bug: this took 30 s.
#[test]
fn a_connection_that_a_nat_has_forgotten_is_replaced_soon() {
    let (mut app, address) = app(&["--ping-interval", "1h"]);
    let cutter = Cutter::start(Some(address), Vec::new());
    let mut bridge = connect(&url(cutter.address), &[]);
    bridge.write(&request(1, "initialize").to_string());
    let (client, _) = message(&app);
    send(&mut app, &client, &answer(1));
    assert_eq!(bridge.event(), answer(1));
    cutter.forget();
    bridge.write(&request(2, "work").to_string());
    assert_eq!(message(&app).1, request(2, "work"));
    send(&mut app, &client, &answer(2));
    assert_eq!(bridge.event(), answer(2));
}

#[test]
fn a_load_balancer_may_lead_the_client_to_another_node_first() {
    let (mut first, address) = app(&["--node", "one"]);
    let (_second, other) = app(&["--node", "two"]);
    let cutter = Cutter::start(Some(address), Vec::new());
    let mut bridge = connect(&url(cutter.address), &[]);
    bridge.write(&request(1, "initialize").to_string());
    let (client, _) = message(&first);
    cutter.set_target(Some(other));
    let before = cutter.accepted();
    cutter.cut();
    eventually("it has tried the other node", || cutter.accepted() > before);
    send(&mut first, &client, &answer(1));
    cutter.set_target(Some(address));
    assert_eq!(bridge.event(), answer(1));
}

#[test]
fn when_the_server_has_forgotten_the_client_the_next_initialize_begins_afresh() {
    let (mut first, address) = app(&[]);
    let (second, other) = app(&[]);
    let cutter = Cutter::start(Some(address), Vec::new());
    let mut bridge = connect(&url(cutter.address), &[]);
    bridge.write(&request(1, "initialize").to_string());
    let (client, initialize) = message(&first);
    assert_eq!(initialize, request(1, "initialize"));
    send(&mut first, &client, &answer(1));
    assert_eq!(bridge.event(), answer(1));
    send(&mut first, &client, &request(1, "ask"));
    assert_eq!(bridge.event(), request(1, "ask"));
    bridge.write(&request(2, "work").to_string());
    assert_eq!(message(&first).1, request(2, "work"));

    // The other server answers 410.
    cutter.set_target(Some(other));
    cutter.cut();
    let error = bridge.event();
    assert_eq!(failure(&error), (json!(2), -32016));
    let reason = error["error"]["data"]["reason"].as_str().expect("a reason");
    assert!(reason.contains("no longer knows"), "{reason}");
    // The answer is for the first server, and must not reach the second one.
    bridge.write(&answer(1).to_string());
    bridge.write(&request(3, "work").to_string());
    assert_eq!(failure(&bridge.event()), (json!(3), -32016));
    bridge.write(&request(4, "initialize").to_string());
    assert_eq!(message(&second).1, request(4, "initialize"));
    bridge.write(&request(5, "work").to_string());
    assert_eq!(message(&second).1, request(5, "work"));
    bridge.signal(Signal::TERM);
    let (status, log) = bridge.wait_and_read_log();
    assert_eq!(status.code(), Some(0));
    assert_eq!(log.matches("the connection was lost").count(), 1, "{log}");
}

#[test]
fn without_resumable_connections_a_cut_fails_what_waits_and_the_rest_goes_on() {
    for (server, client) in [(&["--no-resume"][..], &[][..]), (&[], &["--no-resume"])] {
        let (server, address) = app(server);
        let cutter = Cutter::start(Some(address), Vec::new());
        let mut bridge = connect(&url(cutter.address), client);
        bridge.write(&request(1, "work").to_string());
        assert_eq!(message(&server).1, request(1, "work"));
        cutter.cut();
        assert_eq!(failure(&bridge.event()), (json!(1), -32016));
        bridge.write(&request(2, "work").to_string());
        assert_eq!(message(&server).1, request(2, "work"));
    }
}

#[test]
fn what_is_written_before_the_server_is_there_is_delivered() {
    let (mut server, address) = app(&[]);
    let cutter = Cutter::start(None, Vec::new());
    let mut bridge = connect(&url(cutter.address), &["--log", "off"]);
    for id in 1..4 {
        bridge.write(&request(id, "work").to_string());
    }
    eventually("it tries to connect", || cutter.accepted() > 1);
    cutter.set_target(Some(address));
    for id in 1..4 {
        let (client, got) = message(&server);
        assert_eq!(got, request(id, "work"));
        send(&mut server, &client, &answer(id));
        assert_eq!(bridge.event(), answer(id));
    }
}

#[test]
fn many_short_messages_may_wait_for_the_first_connection() {
    const COUNT: u32 = 20_000;
    for args in [&[][..], &["--no-resume"]] {
        let server = Program::start(&["echo", "--log", "off"]);
        let cutter = Cutter::start(None, Vec::new());
        let mut bridge = connect(&url(cutter.address), &[args, &["--log", "off"]].concat());
        let line =
            |number: u32| json!({"jsonrpc": "2.0", "method": number.to_string()}).to_string();
        for number in 0..COUNT {
            bridge.write(&line(number));
        }
        cutter.set_target(Some(server.address()));
        for number in 0..COUNT {
            assert_eq!(bridge.line(), line(number));
        }
    }
}

#[test]
fn at_the_end_of_input_answers_are_awaited_and_the_server_gets_1000() {
    let (mut server, address) = app(&[]);
    let mut bridge = connect(&url(address), &["--linger", "60s"]);
    bridge.write(&request(1, "work").to_string());
    bridge.end_input();
    let (client, _) = message(&server);
    send(&mut server, &client, &answer(1));
    assert_eq!(bridge.event(), answer(1));
    let ended = server.event_of("disconnect");
    assert_eq!(
        (&ended["code"], &ended["cause"]),
        (&json!(1000), &json!("close"))
    );
    let (status, log) = bridge.wait_and_read_log();
    assert_eq!((status.code(), &*log), (Some(0), ""));

    // The bug: a request without an answer was forgotten without a word, and the exit code was 0.
    let mut bridge = connect(&url(address), &["--linger", "50ms"]);
    bridge.write(&request(2, "work").to_string());
    assert_eq!(message(&server).1, request(2, "work"));
    bridge.end_input();
    assert_eq!(server.event_of("disconnect")["code"], 1000);
    let (status, log) = bridge.wait_and_read_log();
    assert_eq!(status.code(), Some(1));
    assert_eq!(
        log,
        "outrigger: 1 request was not answered within 50ms after the end of the input\n"
    );
}

#[test]
fn messages_that_cannot_be_delivered_are_counted() {
    let (server, address) = app(&[]);
    let cutter = Cutter::start(None, Vec::new());
    let args = ["--linger", "200ms", "--log", "off"];
    let mut bridge = connect(&url(cutter.address), &args);
    let note = json!({"jsonrpc": "2.0", "method": "x"}).to_string();
    bridge.write(&note);
    bridge.write(&note);
    bridge.end_input();
    let (status, log) = bridge.wait_and_read_log();
    assert_eq!(status.code(), Some(1));
    assert_eq!(
        log,
        "outrigger: 2 messages may not have been delivered: the connection is down\n"
    );

    // Without messages, it still says that it could not connect.
    let mut bridge = connect(&url(cutter.address), &args);
    bridge.end_input();
    let (status, log) = bridge.wait_and_read_log();
    assert_eq!(status.code(), Some(1));
    assert!(log.starts_with("outrigger: cannot connect to "), "{log}");

    // The same for a connection that was cut.
    cutter.set_target(Some(address));
    let mut bridge = connect(&url(cutter.address), &args);
    bridge.write(&note);
    message(&server);
    cutter.set_target(None);
    let before = cutter.accepted();
    cutter.cut();
    eventually("it tries to come back", || cutter.accepted() > before);
    bridge.write(&note);
    bridge.end_input();
    let (status, log) = bridge.wait_and_read_log();
    assert_eq!(status.code(), Some(1));
    // The first message may or may not have been confirmed.
    assert!(
        log.contains(" not have been delivered: the connection is down\n"),
        "{log}"
    );
}

#[test]
fn a_refusal_is_one_line_with_the_servers_own_message() {
    let server = Program::start(&["echo", "--path", "/there", "--log", "off"]);
    let address = server.address();
    let token = TraceFile::new("connect-token");
    std::fs::write(token.path(), "a-token-of-the-server\n").expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.args([
        "echo",
        "--listen",
        "127.0.0.1:0",
        "--log",
        "off",
        "--token-file",
    ]);
    let closed = Program::spawn(command.arg(token.path()));
    for (url, status) in [(url(address), "404"), (url(closed.address()), "401")] {
        let mut bridge = connect(&url, &[]);
        bridge.write(&request(1, "work").to_string());
        let (status_code, log) = bridge.wait_and_read_log();
        assert_eq!(status_code.code(), Some(1), "{log}");
        let start = format!("outrigger: cannot connect to {url}: the server answered {status} ");
        assert!(log.starts_with(&start) && log.lines().count() == 1, "{log}");
        assert!(
            log.matches(": ").count() > 2,
            "it has the server's message: {log}"
        );
        // The request may have been read before the refusal arrived.
        for line in bridge.rest() {
            let line = serde_json::from_str(&line).expect("JSON");
            assert_eq!(failure(&line), (json!(1), -32016));
        }
    }
}

#[test]
fn it_gives_up_in_time_and_answers_what_waits() {
    let cutter = Cutter::start(None, Vec::new());
    let mut bridge = connect(
        &url(cutter.address),
        &["--give-up", "300ms", "--log", "off"],
    );
    bridge.write(&request(1, "work").to_string());
    assert_eq!(failure(&bridge.event()), (json!(1), -32016));
    let (status, log) = bridge.wait_and_read_log();
    assert_eq!(status.code(), Some(1));
    assert!(
        log.starts_with("outrigger: cannot connect to ws://"),
        "{log}"
    );
    assert_eq!(log.lines().count(), 1, "{log}");
}

#[test]
fn it_gives_up_to_come_back_in_time_too() {
    let (server, address) = app(&[]);
    let cutter = Cutter::start(Some(address), Vec::new());
    let args = ["--give-up", "300ms", "--log", "off"];
    let mut bridge = connect(&url(cutter.address), &args);
    bridge.write(&request(1, "work").to_string());
    message(&server);
    cutter.set_target(None);
    cutter.cut();
    assert_eq!(failure(&bridge.event()), (json!(1), -32016));
    let (status, log) = bridge.wait_and_read_log();
    assert_eq!(status.code(), Some(1));
    assert!(
        log.starts_with("outrigger: cannot connect to ws://") && log.contains(" again: "),
        "{log}"
    );
}

#[test]
fn the_server_decides_how_the_bridge_ends() {
    for (code, exit, says) in [
        (1000, 0, ""),
        (4001, 1, "outrigger: another connection has taken over\n"),
        // The bug: `connect` started the program again, for an hour.
        (
            4011,
            1,
            "outrigger: the program behind the server has failed: the connection was closed with code 4011\n",
        ),
    ] {
        let (mut server, address) = app(&[]);
        let mut bridge = connect(&url(address), &[]);
        bridge.write(&request(1, "work").to_string());
        let (client, _) = message(&server);
        let note = json!({"jsonrpc": "2.0", "method": "last"});
        send(&mut server, &client, &note);
        server.command(json!({"cmd": "close", "client": client, "code": code}));
        let (status, log) = bridge.wait_and_read_log();
        assert_eq!((status.code(), &*log), (Some(exit), says));
        assert_eq!(bridge.event(), note);
        assert_eq!(failure(&bridge.event()), (json!(1), -32016));
    }
    // Any other code ends the connection, and the next one begins.
    let (mut server, address) = app(&[]);
    let mut bridge = connect(&url(address), &["--log", "off"]);
    for id in 1..4 {
        bridge.write(&request(id, "work").to_string());
        let (client, got) = message(&server);
        assert_eq!(got, request(id, "work"));
        server.command(json!({"cmd": "close", "client": client, "code": 1011}));
        assert_eq!(failure(&bridge.event()), (json!(id), -32016));
    }
}

#[test]
fn the_end_of_the_reader_or_a_signal_leaves_the_server_with_1000() {
    let (server, address) = app(&[]);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut bridge = connect(&url(address), &[]);
        server.event_of("connect");
        bridge.signal(signal);
        assert_eq!(server.event_of("disconnect")["code"], 1000, "{signal:?}");
        let (status, log) = bridge.wait_and_read_log();
        assert_eq!((status.code(), &*log), (Some(0), ""), "{signal:?}");
    }
    let child = command(&url(address), &[])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.expect("it starts");
    server.event_of("connect");
    drop(child.stdout.take());
    assert_eq!(server.event_of("disconnect")["code"], 1000);
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_line_that_is_not_a_message_is_answered_and_the_rest_goes_on() {
    let (mut server, address) = app(&[]);
    let mut bridge = connect(&url(address), &["--max-message", "1000"]);
    let long = "x".repeat(2000);
    for (line, error) in [
        ("hello".to_owned(), (Value::Null, -32700)),
        ("{\"jsonrpc\":\"2.0\"".to_owned(), (Value::Null, -32700)),
        (
            format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{long}\",\"id\":7}}"),
            (json!(7), -32600),
        ),
        (long, (Value::Null, -32600)),
    ] {
        bridge.write("");
        bridge.write(&line);
        assert_eq!(failure(&bridge.event()), error, "{line}");
    }
    // The server decides about everything else that is JSON.
    for text in ["[]", "{\"id\":1}", "7"] {
        bridge.write(text);
        assert_eq!(server.event_of("message")["text"], text);
    }
    bridge.write(&request(1, "work").to_string());
    let (client, _) = message(&server);
    // Line feeds between the parts of a message do not divide it.
    server.command(json!({"cmd": "send", "client": client, "binary": "AAEC"}));
    server.command(json!({"cmd": "send", "client": client, "text": "{\n\"a\":\r\n1}"}));
    assert_eq!(bridge.line(), "{ \"a\":  1}");
}

#[test]
fn a_server_that_does_not_speak_json_rpc_gets_a_hint_and_nothing_on_standard_output() {
    let (mut server, address) = app(&[]);
    let mut bridge = connect(&url(address), &[]);
    let connected = server.event_of("connect");
    for text in ["Welcome to the chat!", r#"{"type":"role","role":"writer"}"#] {
        server.command(json!({"cmd": "send", "client": connected["client"], "text": text}));
    }
    let note = json!({"jsonrpc": "2.0", "method": "x"}).to_string();
    server.command(json!({"cmd": "send", "client": connected["client"], "text": note}));
    assert_eq!(bridge.line(), note);
    bridge.write("hello");
    assert_eq!(failure(&bridge.event()), (Value::Null, -32700));
    bridge.end_input();
    let (status, log) = bridge.wait_and_read_log();
    assert_eq!(status.code(), Some(0));
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(lines[0].contains("not JSON-RPC, and they are ignored; use --no-json"));
    assert!(lines[1].contains("standard input is not JSON-RPC; use --no-json"));
}

#[test]
fn what_cannot_pass_ends_connect_at_once_and_for_the_rest_it_says_how_long_it_tries() {
    let none = TraceFile::new("no-server.sock");
    let long = format!("/tmp/{}", "x".repeat(200));
    for (socket, says) in [
        (&*none.path(), "No such file or directory"),
        ("/dev/null/x", "Not a directory"),
        (&long, "has 205 bytes, and 10"),
    ] {
        let url = format!("ws+unix:{socket}:/");
        let (status, log) = connect(&url, &[]).wait_and_read_log();
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.starts_with("outrigger: cannot connect to "), "{log}");
        assert!(log.contains(says) && log.lines().count() == 1, "{log}");
    }
    // A file whose server has ended can come to life again.
    drop(std::os::unix::net::UnixListener::bind(none.path()).expect("a socket"));
    let mut bridge = connect(&format!("ws+unix:{}:/", none.path()), &["--give-up", "5m"]);
    let mut log = bridge.follow_log();
    log.expect("; trying again for 300s; --give-up sets for how long");
}

#[test]
fn without_json_lines_pass_through_untouched() {
    let server = Program::start(&["echo", "--log", "off"]);
    let mut command = command(&url(server.address()), &["--no-json", "--linger", "1h"]);
    let lines: [&[u8]; 5] = [b"", b"no JSON", b" \xff\x00 ", b"{\"id\":1}", b"last"];
    let input = lines.join(&b'\n');
    let output = [&*input, b"\n"].concat();
    assert_eq!(exchange(&mut command, &input, &output), output);
}

#[test]
fn messages_wait_while_nobody_reads_them_and_none_is_lost() {
    let (mut server, address) = app(&[]);
    let mut child = command(&url(address), &[])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let client = server.event_of("connect")["client"]
        .as_str()
        .expect("a client")
        .to_owned();
    let text = "x".repeat(10_000);
    let mut sent = 0;
    // The server keeps what is not confirmed, up to half of its buffer, and then waits.
    while sent < 700 {
        for _ in 0..10 {
            let note = json!({"jsonrpc": "2.0", "method": "n", "params": [sent, text]});
            send(&mut server, &client, &note);
            sent += 1;
        }
        // The answer shows that the commands were executed.
        assert_eq!(
            server.client_count(),
            1,
            "the client is not ended for reading slowly"
        );
        if sent == 300 {
            // From now on the test reads.
            let stdout = child.stdout.take().expect("piped");
            let (sender, lines) = mpsc::channel();
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
                lines.try_for_each(|line| sender.send(line))
            });
            for number in 0..300 {
                let line = lines.recv_timeout(PATIENCE).expect("a line");
                let line: Value = serde_json::from_str(&line).expect("JSON");
                assert_eq!(line["params"][0], number);
            }
            break;
        }
    }
    drop(child.stdin.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn a_token_is_presented_and_not_shown() {
    let secret = "0123456789abcdef0123456789abcdef";
    let file = TraceFile::new("client-token");
    std::fs::write(file.path(), format!("# of the server\n{secret}\n")).expect("a file");
    let mut server = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    server.args(["echo", "--listen", "127.0.0.1:0", "--log", "off"]);
    let server = Program::spawn(server.env("OUTRIGGER_TOKEN", secret));
    let url = url(server.address());
    let note = json!({"jsonrpc": "2.0", "method": "x"}).to_string();
    let in_url = format!("{url}?a=b&token={secret}");
    let file = file.path();
    for (url, args, variable) in [
        (&url, &["--token-file", &*file][..], None),
        (&url, &[], Some(secret)),
        (&in_url, &[], None),
        // The URL is more specific than the environment.
        (&in_url, &[], Some("another")),
    ] {
        let mut bridge = command(url, args);
        if let Some(variable) = variable {
            bridge.env("OUTRIGGER_TOKEN", variable);
        }
        let mut bridge = Program::spawn(&mut bridge);
        bridge.write(&note);
        assert_eq!(bridge.line(), note);
        let listed = std::fs::read(format!("/proc/{}/cmdline", bridge.pid())).expect("it runs");
        let listed = String::from_utf8_lossy(&listed);
        assert!(
            listed.contains(url.split('?').next().expect("a URL")) && !listed.contains(secret),
            "{listed}"
        );
        bridge.end_input();
        assert_eq!(bridge.wait().code(), Some(0));
    }
    let both = outrigger(&["connect", &in_url, "--token-file", &file]);
    let error = String::from_utf8(both.stderr).expect("UTF-8");
    assert_eq!(both.status.code(), Some(2), "{error}");
    assert!(!error.contains(secret), "{error}");
}

#[test]
fn messages_may_have_headers_with_their_length() {
    let server = Program::start(&["echo", "--log", "off"]);
    let url = url(server.address());
    let args = ["--framing", "content-length", "--linger", "1h"];
    let run = |input: &[u8]| {
        let mut child = command(&url, &args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(input).expect("it reads");
        drop(stdin);
        child.wait_with_output().expect("it ends")
    };
    let body = "{\n  \"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"\u{e4}\"\n}";
    let framed = |body: &str| format!("Content-Length: {}\r\n\r\n{body}", body.len());
    let framed_body = framed(body).into_bytes();
    let output = exchange(&mut command(&url, &args), &framed_body, &framed_body);
    assert_eq!(output, framed_body);
    // The wrong message is answered, and the next one still arrives.
    let input = [framed("x").as_bytes(), &framed_body].concat();
    let output = exchange(&mut command(&url, &args), &input, &framed_body);
    let text = String::from_utf8(output).expect("UTF-8");
    assert!(text.contains("-32700"), "{text}");
    for (input, says) in [
        ("hello\n\n".to_owned(), "No Content-Length: hello"),
        (
            framed("12345")[..20].to_owned(),
            "it ended inside a message",
        ),
    ] {
        let output = run(input.as_bytes());
        let log = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1), "{log}");
        let start = format!("outrigger: cannot read standard input: {says}");
        assert!(log.starts_with(&start) && log.lines().count() == 1, "{log}");
    }
    let raw = outrigger(&["connect", "ws://x/", "--framing", "raw"]);
    assert_eq!(raw.status.code(), Some(2));
}

#[test]
fn header_fields_are_added_to_the_handshake() {
    let (server, address) = app(&[]);
    let args = ["--header", "X-Tenant: blue", "--header", "X-Empty:"];
    let _bridge = connect(&format!("ws://{address}/a?b=c"), &args);
    let event = server.event_of("connect");
    assert_eq!(event["headers"]["x-tenant"], "blue", "{event}");
    assert_eq!(event["headers"]["x-empty"], "", "{event}");
    assert_eq!(
        (&event["path"], &event["query"]),
        (&json!("/a"), &json!("b=c"))
    );
}

#[cfg(feature = "tls")]
#[test]
fn a_certificate_is_trusted_by_its_fingerprint_or_as_a_ca() {
    let dir = TraceFile::new("connect-tls");
    let mut server = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    server.args([
        "echo",
        "--listen",
        "127.0.0.1:0",
        "--log",
        "off",
        "--tls-self-signed",
        "--tls-dir",
    ]);
    let server = Program::spawn(server.arg(dir.path()));
    let line = server.line();
    let (_, fingerprint) = line.rsplit_once(' ').expect("a fingerprint");
    let line = server.line();
    let url = line
        .strip_prefix("outrigger: listening on ")
        .expect("the listening line");
    let ca = format!("{}/outrigger.pem", dir.path());
    let note = json!({"jsonrpc": "2.0", "method": "x"}).to_string();
    for args in [["--fingerprint", fingerprint], ["--ca", &ca]] {
        let mut bridge = connect(url, &args);
        bridge.write(&note);
        assert_eq!(bridge.line(), note);
    }
    let other = "00".repeat(32);
    // Who has pinned a certificate is not told how to pin another one.
    for (args, is_advised) in [(&["--fingerprint", &*other][..], false), (&[], true)] {
        let (status, log) = connect(url, args).wait_and_read_log();
        let advice = "; use --ca FILE or --fingerprint SHA256\n";
        assert_eq!(log.ends_with(advice), is_advised, "{log}");
        assert_eq!(status.code(), Some(1));
        let start = format!("outrigger: cannot connect to {url}: TLS: ");
        assert!(log.starts_with(&start) && log.lines().count() == 1, "{log}");
    }
    for (args, says) in [
        (&["--ca", "/no/such/file"][..], "--ca: /no/such/file: "),
        (&["--fingerprint", "aa:bb"], "--fingerprint: "),
        (
            &["--ca", &ca, "--fingerprint", fingerprint],
            "--ca cannot be combined",
        ),
        (
            &["--tls-client-cert", &ca],
            "--tls-client-cert has no effect without --tls-client-key",
        ),
    ] {
        let output = outrigger(&[&["connect", url], args].concat());
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(
            error.contains(says) && error.lines().count() == 1,
            "{error}"
        );
    }
    drop(server);
    let _ = std::fs::remove_dir_all(dir.path());
}

#[test]
fn a_unix_socket_is_reached_by_its_url() {
    let socket = TraceFile::new("connect.sock");
    let mut server = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    server
        .args(["echo", "--log", "off", "--listen"])
        .arg(format!("unix:{}", socket.path()));
    let server = Program::spawn(&mut server);
    let line = server.line();
    let url = line
        .strip_prefix("outrigger: listening on ")
        .expect("the listening line");
    let mut bridge = connect(url, &[]);
    let note = json!({"jsonrpc": "2.0", "method": "x"}).to_string();
    bridge.write(&note);
    assert_eq!(bridge.line(), note);
}

#[test]
fn a_url_that_cannot_be_used_is_wrong_usage() {
    for url in [
        "",
        "localhost:7070",
        "ftp://x/",
        "ws://",
        "ws://user:pass@x/",
        "ws://x/#y",
    ] {
        let output = outrigger(&["connect", url]);
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{url}: {error}");
        assert!(error.starts_with("outrigger: URL: "), "{url}: {error}");
        assert_eq!(error.lines().count(), 1, "{url}: {error}");
    }
}
