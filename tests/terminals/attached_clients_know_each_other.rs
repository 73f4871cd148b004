//! Clients that attach to a process are told their role, the size of the terminal, and who else is attached.

use std::net::SocketAddr;
use std::time::Instant;

use crate::common::program::Program;
use crate::common::traces::eventually;
use crate::common::{BINARY, CLOSE, PING, PONG, TEXT, Wire, call, request};
use crate::processes;
use serde_json::{Value, json};

/// Starts a process with a terminal, and returns the path to attach to it.
fn spawn(address: SocketAddr, script: &str) -> String {
    let body = json!({"command": "sh", "args": ["-c", script], "allocate_tty": true});
    let (status, answer) = call(address, "POST", "/process/spawn", Some(body));
    assert_eq!(status, 200, "{answer}");
    let id = answer["process_id"].as_str().expect("an id");
    format!("/process/{id}/attach")
}

/// Connects, and returns the greeting too.
fn attach(address: SocketAddr, path: &str) -> (Wire, Vec<Value>) {
    let mut wire = Wire::connect(address, path);
    let greeting = wire.read_greeting(path);
    (wire, greeting)
}

/// The handshake of a page of this server.
fn from_page(address: SocketAddr, path: &str) -> (Wire, String) {
    let mut wire = Wire::open(address);
    let head = String::from_utf8(request(path)).expect("ASCII");
    let (head, _) = head.split_at(head.len() - 2);
    wire.send(format!("{head}Origin: http://localhost\r\n\r\n").as_bytes());
    let head = wire.read_head();
    (wire, head)
}

/// The token in the answer to a handshake with which the client can come back.
fn resume_token(head: &str) -> String {
    let mut lines = head.lines();
    let token = lines.find_map(|line| line.strip_prefix("Outrigger-Resume: "));
    token.expect("a token").to_owned()
}

fn role(name: &str) -> Value {
    json!({"type": "role", "role": name})
}

fn size(rows: u16, cols: u16) -> Value {
    json!({"type": "size", "rows": rows, "cols": cols})
}

fn clients(writer: Option<&str>, viewers: usize) -> Value {
    json!({"type": "clients", "writer": writer, "viewers": viewers})
}

/// The next message, which must be an event.
fn read_event(wire: &mut Wire) -> Value {
    let frame = wire.read_frame();
    assert_eq!(frame.opcode, TEXT, "{:?}", frame.payload);
    serde_json::from_slice(&frame.payload).expect("JSON")
}

/// Checks that nothing was sent before the answer to a PING.
fn expect_nothing(wire: &mut Wire) {
    wire.send_frame(PING, b"");
    let frame = wire.read_frame();
    assert_eq!(frame.opcode, PONG, "{:?}", frame.payload);
}

fn detached(address: SocketAddr) -> Value {
    call(address, "GET", "/status", None).1["detached"].clone()
}

#[test]
fn every_change_of_the_size_and_the_clients_is_told() {
    // The bug: a viewer was not told the size of the terminal, so it could not show a program that fills the screen.
    let (_server, address) = processes(&[]);
    let path = spawn(address, "sleep 1000");
    let watch = format!("{path}?mode=viewer");
    let (mut viewer, greeting) = attach(address, &watch);
    assert_eq!(greeting, [role("viewer"), size(24, 80), clients(None, 1)]);
    let (mut writer, greeting) = attach(address, &format!("{path}?rows=30&cols=100"));
    let expected = clients(Some("nobody"), 1);
    assert_eq!(greeting, [role("writer"), size(30, 100), expected.clone()]);
    assert_eq!(read_event(&mut viewer), size(30, 100));
    assert_eq!(read_event(&mut viewer), expected);

    writer.send_frame(TEXT, br#"{"type":"resize","rows":40,"cols":120}"#);
    assert_eq!(read_event(&mut writer), size(40, 120));
    assert_eq!(read_event(&mut viewer), size(40, 120));
    let resize = path.replace("attach", "resize");
    for _ in 0..2 {
        let body = json!({"rows": 50, "cols": 130});
        let (status, _) = call(address, "POST", &resize, Some(body));
        assert_eq!(status, 200);
    }
    assert_eq!(read_event(&mut writer), size(50, 130));
    assert_eq!(read_event(&mut viewer), size(50, 130));
    // The second request, and a viewer, change nothing.
    viewer.send_frame(TEXT, br#"{"type":"resize","rows":1,"cols":1}"#);
    expect_nothing(&mut viewer);
    expect_nothing(&mut writer);

    // A second viewer learns of everybody at once, and the others learn of it.
    let (second, greeting) = attach(address, &watch);
    let expected = clients(Some("nobody"), 2);
    assert_eq!(greeting, [role("viewer"), size(50, 130), expected.clone()]);
    assert_eq!(read_event(&mut viewer), expected);
    assert_eq!(read_event(&mut writer), expected);
    second.reset();
    let expected = clients(Some("nobody"), 1);
    assert_eq!(read_event(&mut viewer), expected);
    assert_eq!(read_event(&mut writer), expected);

    // Who takes over has the same name, so nothing has changed for the viewer until there is no writer.
    let (third, greeting) = attach(address, &format!("{path}?takeover=1"));
    assert_eq!(greeting, [role("writer"), size(50, 130), expected]);
    assert_eq!(writer.read_close(), (4001, "Taken over".to_owned()));
    expect_nothing(&mut viewer);
    third.reset();
    assert_eq!(read_event(&mut viewer), clients(None, 1));
}

#[test]
fn many_clients_at_once_cause_few_events() {
    let (_server, address) = processes(&[]);
    let path = spawn(address, "sleep 1000");
    let watch = format!("{path}?mode=viewer");
    let (mut first, _) = attach(address, &watch);
    let begun = Instant::now();
    let crowd: Vec<Wire> = (0..200).map(|_| attach(address, &watch).0).collect();
    let mut told = 0;
    while read_event(&mut first) != clients(None, 201) {
        told += 1;
    }
    let most = begun.elapsed().as_secs() + 1;
    assert!(told <= most, "{told} events in {most} seconds");
    crowd.into_iter().for_each(Wire::reset);
    while read_event(&mut first) != clients(None, 1) {
        told += 1;
    }
    let most = begun.elapsed().as_secs() + 2;
    assert!(told <= most, "{told} events in {most} seconds");
}

#[test]
fn a_second_writer_in_a_browser_learns_why_it_is_refused() {
    let (_server, address) = processes(&[]);
    let path = spawn(
        address,
        "stty -echo; echo ready; read line; echo \"got:$line\"",
    );
    let (mut writer, _) = attach(address, &path);
    assert_eq!(writer.read_frame().payload, b"ready\r\n");
    // The bug: a page was told 409, which a browser does not show to it.
    for query in ["", "?resume=new&notice=1", "?input=text&rows=3&cols=3"] {
        let (mut page, head) = from_page(address, &format!("{path}{query}"));
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(!head.contains("Outrigger-Resume"), "{head}");
        page.send_frame(BINARY, b"from the page\n");
        let frame = page.read_frame();
        assert_eq!(frame.opcode, CLOSE, "nothing comes before it");
        let (code, why) = frame.payload.split_at(2);
        assert_eq!(code, 4009u16.to_be_bytes());
        assert_eq!(why, b"another client is the writer");
        // It does not answer the CLOSE, and leaves nothing behind.
        page.reset();
    }
    eventually("one client is left", || {
        let (_, status) = call(address, "GET", "/status", None);
        assert_eq!(status["detached"], 0);
        status["clients"].as_array().map(Vec::len) == Some(1)
    });
    let mut other = Wire::open(address);
    other.send(&request(&path));
    assert!(other.read_head().starts_with("HTTP/1.1 409 "));
    // The writer was not told of them, its size was not changed, and its input arrives.
    expect_nothing(&mut writer);
    writer.send_frame(BINARY, b"from the writer\n");
    assert_eq!(writer.read_frame().payload, b"got:from the writer\r\n");
}

#[test]
fn a_writer_that_was_cut_comes_back_and_others_are_refused_until_then() {
    let (_server, address) = processes(&[]);
    let path = spawn(
        address,
        "stty -echo; echo ready; read line; echo \"got:$line\"",
    );
    let (mut writer, head) = from_page(address, &format!("{path}?resume=new"));
    let token = resume_token(&head);
    writer.read_greeting(&path);
    assert_eq!(writer.read_frame().payload, b"ready\r\n");
    writer.reset();
    eventually("the writer is detached", || detached(address) == 1);
    let (mut page, _) = from_page(address, &format!("{path}?resume=new"));
    assert_eq!(page.read_close().0, 4009);
    assert_eq!(detached(address), 1);
    // The bug to avoid: who comes back is not a second writer.
    let back = format!("{path}?resume={token}&received=4");
    let (mut writer, head) = from_page(address, &back);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    writer.send_frame(BINARY, b"still here\n");
    assert_eq!(writer.read_frame().payload, b"got:still here\r\n");
}

#[test]
fn a_client_that_was_cut_gets_the_exit_of_a_process_that_was_removed_meanwhile() {
    // The bug: the handshake was answered with 404, and the last output and the exit were lost.
    let (_server, address) = processes(&["--retention", "100ms"]);
    let path = spawn(
        address,
        "stty -echo; echo ready; read line; echo last; exit 7",
    );
    let (mut writer, head) = from_page(address, &format!("{path}?resume=new"));
    let token = resume_token(&head);
    writer.read_greeting(&path);
    assert_eq!(writer.read_frame().payload, b"ready\r\n");
    writer.send_frame(BINARY, b"go\n");
    writer.reset();
    eventually("the process is removed", || {
        call(address, "GET", &path.replace("attach", "status"), None).0 == 404
    });
    let wrong = format!("{path}?resume=anything&received=4");
    assert_eq!(from_page_rejected(address, &wrong), 410);
    assert_eq!(from_page_rejected(address, &path), 404);
    let back = format!("{path}?resume={token}&received=4");
    let (mut writer, head) = from_page(address, &back);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let mut output = Vec::new();
    let exit = loop {
        let frame = writer.read_frame();
        match frame.opcode {
            BINARY => output.extend(frame.payload),
            _ if frame.payload.starts_with(br#"{"type":"exit""#) => break frame.payload,
            _ => {}
        }
    };
    assert_eq!(output, b"last\r\n");
    let exit: Value = serde_json::from_slice(&exit).expect("JSON");
    assert_eq!(exit["exitCode"], 7);
    assert_eq!(writer.read_close().0, 1000);
}

/// The status with which a handshake is rejected.
fn from_page_rejected(address: SocketAddr, path: &str) -> u16 {
    let (_, head) = from_page(address, path);
    head[9..12].parse().expect("a status")
}

#[test]
fn the_client_of_a_terminal_is_its_writer_unless_it_is_read_only() {
    for (options, expected) in [(&[][..], "writer"), (&["--read-only"], "viewer")] {
        let args = [&["terminal"], options, &["--", "sleep", "1000"]].concat();
        let server = Program::start(&args);
        let path = "/terminal?rows=10&cols=20";
        let (mut wire, greeting) = attach(server.address(), path);
        assert_eq!(greeting, [role(expected), size(10, 20)]);
        expect_nothing(&mut wire);
    }
}
