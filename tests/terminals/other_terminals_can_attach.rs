//! Terminals that know only text, and clients of ttyd, attach to `outrigger terminal` and to processes.

use std::net::SocketAddr;

use crate::common::program::Program;
use crate::common::traces::TraceFile;
use crate::common::{BINARY, CLOSE, PING, PONG, TEXT, Wire, call, request};
use rustix::process::Signal;
use serde_json::json;

/// The three dialects: the parameters and the fields of a request.
const JSON: (&str, &str) = ("", "");
const PLAIN: (&str, &str) = ("input=text", "");
const TTY: (&str, &str) = ("", "Sec-WebSocket-Protocol: tty\r\n");

/// A server whose clients can attach to a program.
struct Server {
    program: Program,
    address: SocketAddr,
    /// The path to attach to.
    path: String,
}

impl Server {
    /// A terminal server.
    fn terminal(options: &[&str], script: &str) -> Self {
        let args = [&["terminal"][..], options, &["--", "sh", "-c", script]].concat();
        let program = Program::start(&args);
        let address = program.address();
        let path = "/terminal".to_owned();
        Self {
            program,
            address,
            path,
        }
    }

    /// A process API with a process.
    fn process(options: &[&str], script: &str) -> Self {
        let program = Program::start(&[&["processes"][..], options].concat());
        let line = program.line();
        let at = line.find("127.0.0.1:").expect("the listening line");
        let end = line[at..].find('/').map_or(line.len(), |end| at + end);
        let address = line[at..end].parse().expect("an address");
        let body = json!({"command": "sh", "args": ["-c", script], "allocate_tty": true});
        let (status, answer) = call(address, "POST", "/process/spawn", Some(body));
        assert_eq!(status, 200, "{answer}");
        let id = answer["process_id"].as_str().expect("an id");
        let path = format!("/process/{id}/attach");
        Self {
            program,
            address,
            path,
        }
    }

    fn both(script: &str) -> [Self; 2] {
        [Self::terminal(&[], script), Self::process(&[], script)]
    }

    /// Attaches in a dialect, with more parameters.
    fn attach(&self, (parameters, fields): (&str, &str), more: &str) -> Wire {
        let path = format!("{}?{parameters}&{more}", self.path);
        let (wire, head) = ask(self.address, &path, fields);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let chosen = head.contains("\r\nSec-WebSocket-Protocol: tty\r\n");
        assert_eq!(chosen, !fields.is_empty(), "{head}");
        wire
    }
}

/// Sends a handshake with additional fields.
fn ask(address: SocketAddr, path: &str, fields: &str) -> (Wire, String) {
    let mut wire = Wire::open(address);
    let head = String::from_utf8(request(path)).expect("ASCII");
    let (head, _) = head.split_at(head.len() - 2);
    wire.send(format!("{head}{fields}\r\n").as_bytes());
    let head = wire.read_head();
    (wire, head)
}

/// What a client got until CLOSE.
#[derive(Debug, Default)]
struct Seen {
    /// The binary messages, joined.
    output: Vec<u8>,
    texts: Vec<String>,
    code: u16,
    reason: String,
}

impl Seen {
    fn output(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }
}

/// Reads until CLOSE.
fn read_all(wire: &mut Wire) -> Seen {
    let mut seen = Seen::default();
    loop {
        let frame = wire.read_frame();
        match frame.opcode {
            BINARY => seen.output.extend(frame.payload),
            TEXT => seen
                .texts
                .push(String::from_utf8(frame.payload).expect("UTF-8")),
            CLOSE => {
                let (code, reason) = frame.payload.split_at(2);
                seen.code = u16::from_be_bytes([code[0], code[1]]);
                seen.reason = String::from_utf8(reason.to_vec()).expect("UTF-8");
                wire.send_close(seen.code);
                return seen;
            }
            _ => {}
        }
    }
}

/// Reads until CLOSE. Every message is output of a `tty` server, whose command is taken off.
fn read_tty(wire: &mut Wire) -> Seen {
    let mut seen = Seen::default();
    loop {
        let frame = wire.read_frame();
        match (frame.opcode, &*frame.payload) {
            (BINARY, [b'0', output @ ..]) => seen.output.extend(output),
            (CLOSE, [high, low, reason @ ..]) => {
                seen.code = u16::from_be_bytes([*high, *low]);
                seen.reason = String::from_utf8(reason.to_vec()).expect("UTF-8");
                wire.send_close(seen.code);
                return seen;
            }
            (PONG, _) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Reads the title and the preferences, and returns the title.
fn read_tty_greeting(wire: &mut Wire) -> String {
    let title = wire.read_frame();
    assert_eq!((title.opcode, title.payload[0]), (BINARY, b'1'));
    let preferences = wire.read_frame();
    assert_eq!(
        (preferences.opcode, &*preferences.payload),
        (BINARY, &b"2{}"[..])
    );
    String::from_utf8(title.payload[1..].to_vec()).expect("UTF-8")
}

/// Reads output until it ends with a string, and returns it without the commands of `tty`.
fn read_until(wire: &mut Wire, is_tty: bool, text: &str) -> String {
    let mut output = Vec::new();
    while !output.ends_with(text.as_bytes()) {
        let frame = wire.read_frame();
        assert_eq!(frame.opcode, BINARY, "{:?}", frame.payload);
        let command = if is_tty { &b"0"[..] } else { b"" };
        output.extend(frame.payload.strip_prefix(command).expect("output"));
    }
    String::from_utf8(output).expect("UTF-8")
}

/// A line for the program, in a dialect.
fn type_line(wire: &mut Wire, dialect: (&str, &str), line: &str) {
    match dialect {
        JSON => wire.send_frame(BINARY, format!("{line}\n").as_bytes()),
        PLAIN => wire.send_frame(TEXT, format!("{line}\n").as_bytes()),
        _ => wire.send_frame(BINARY, format!("0{line}\n").as_bytes()),
    }
}

#[test]
fn text_is_input_and_the_exit_code_is_in_the_close_code() {
    let script = "stty -echo; echo ready; read one; read two; echo \"$one,$two\"; exit 3";
    for server in Server::both(script) {
        let mut wire = server.attach(PLAIN, "");
        read_until(&mut wire, false, "ready\r\n");
        // A control message is input too.
        wire.send_frame(TEXT, br#"{"type":"resize","rows":9,"cols":9}"#);
        wire.send_frame(TEXT, b"\n");
        wire.send_frame(BINARY, b"binary\n");
        let seen = read_all(&mut wire);
        let expected = "{\"type\":\"resize\",\"rows\":9,\"cols\":9},binary\r\n";
        assert_eq!(seen.output(), expected);
        assert_eq!(seen.texts, [""; 0], "no events");
        assert_eq!((seen.code, &*seen.reason), (4303, "exited with code 3"));
    }
}

#[test]
fn every_exit_has_its_close_code() {
    for (script, code, reason) in [
        ("exit 0", 4300, "exited with code 0"),
        ("exit 255", 4555, "exited with code 255"),
        ("kill -TERM $$", 4443, "killed by SIGTERM"),
        ("kill -KILL $$", 4437, "killed by SIGKILL"),
    ] {
        for server in Server::both(&format!("read line; {script}")) {
            let mut wire = server.attach(PLAIN, "");
            type_line(&mut wire, PLAIN, "");
            let seen = read_all(&mut wire);
            assert_eq!((seen.code, &*seen.reason), (code, reason));
        }
        for server in Server::both(&format!("read line; {script}")) {
            let mut wire = server.attach(TTY, "");
            read_tty_greeting(&mut wire);
            type_line(&mut wire, TTY, "");
            let seen = read_tty(&mut wire);
            assert_eq!((seen.code, &*seen.reason), (1000, reason));
        }
    }
}

#[test]
fn a_program_that_cannot_be_started_is_reported_in_each_dialect() {
    let script = TraceFile::new("other-terminals-script");
    std::fs::write(script.path(), "#!/no/such/interpreter\n").expect("a file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(script.path(), mode).expect("a file");
    let program = Program::start(&["terminal", "--", &script.path()]);
    let address = program.address();
    for (parameters, fields) in [PLAIN, TTY] {
        let path = format!("/terminal?{parameters}");
        let (mut wire, _) = ask(address, &path, fields);
        let frame = wire.read_frame();
        assert_eq!(frame.opcode, CLOSE, "no events");
        assert_eq!(frame.payload[..2], 1011u16.to_be_bytes());
        let reason = String::from_utf8_lossy(&frame.payload[2..]);
        assert!(reason.starts_with("failed to start process: "), "{reason}");
    }
}

#[test]
fn an_unknown_kind_of_input_is_rejected() {
    for server in Server::both("sleep 1000") {
        for (query, fields) in [
            ("input=json", ""),
            ("input=", ""),
            ("input=text&input=Text", ""),
            ("input=text", TTY.1),
        ] {
            let path = format!("{}?{query}", server.path);
            let mut wire = Wire::open(server.address);
            let head = String::from_utf8(request(&path)).expect("ASCII");
            let (head, _) = head.split_at(head.len() - 2);
            wire.send(format!("{head}{fields}\r\n").as_bytes());
            let (head, body) = wire.read_response();
            assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
            let message = body["message"].as_str().expect("a message");
            assert!(message.starts_with("'input' is "), "{message}");
        }
        // The default has a name.
        Wire::attach(server.address, &format!("{}?input=binary", server.path));
    }
}

#[test]
fn the_first_known_subprotocol_selects_the_messages() {
    for server in Server::both("sleep 1000") {
        for (offered, chosen) in [
            ("tty, outrigger", "tty"),
            ("other, tty, outrigger.token.x", "tty"),
            ("outrigger, tty", "outrigger"),
        ] {
            let fields = format!("Sec-WebSocket-Protocol: {offered}\r\n");
            let path = format!("{}?takeover=1", server.path);
            let (mut wire, head) = ask(server.address, &path, &fields);
            let field = format!("\r\nSec-WebSocket-Protocol: {chosen}\r\n");
            assert!(head.contains(&field), "{head}");
            if chosen == "tty" {
                read_tty_greeting(&mut wire);
            } else {
                wire.read_greeting(&path);
            }
        }
    }
}

#[test]
fn a_client_of_ttyd_types_and_resizes() {
    let script =
        "stty -echo; echo ready; while read line; do echo \"$line $(stty size)\"; done; exit 3";
    let options = ["--log", "debug"];
    let servers = [
        Server::terminal(&options, script),
        Server::process(&options, script),
    ];
    for mut server in servers {
        let mut wire = server.attach(TTY, "rows=11&cols=22");
        let title = read_tty_greeting(&mut wire);
        let system = rustix::system::uname();
        let host = system.nodename().to_str().expect("UTF-8");
        assert_eq!(title, format!("sh -c {script} ({host})"));
        read_until(&mut wire, true, "ready\r\n");
        type_line(&mut wire, TTY, "one");
        read_until(&mut wire, true, "one 11 22\r\n");
        // Messages of both kinds are accepted. What is unknown or malformed is ignored.
        wire.send_frame(BINARY, br#"{"AuthToken":"SECRET","columns":80,"rows":24}"#);
        wire.send_frame(TEXT, b"0two\n");
        read_until(&mut wire, true, "two 24 80\r\n");
        wire.send_frame(TEXT, br#"1{"columns":132,"rows":50}"#);
        for ignored in [
            &b"1{\"columns\":0,\"rows\":50}"[..],
            b"1{\"columns\":SECRET",
            b"{\"AuthToken\":\"SECRET\"}",
            b"SECRET",
            b"",
            b"\xff",
        ] {
            wire.send_frame(BINARY, ignored);
        }
        type_line(&mut wire, TTY, "three");
        read_until(&mut wire, true, "three 50 132\r\n");
        // The end of the input.
        wire.send_frame(BINARY, b"0\x04");
        let seen = read_tty(&mut wire);
        assert_eq!((seen.code, &*seen.reason), (1000, "exited with code 3"));
        server.program.signal(Signal::TERM);
        let (_, log) = server.program.wait_and_read_log();
        assert!(
            log.contains("a message of 6 bytes that has no command"),
            "{log}"
        );
        // The command line, which the log has, does not contain it.
        assert!(
            !log.contains("SECRET") && !log.contains("AuthToken"),
            "{log}"
        );
    }
}

/// The output of `seq`: 10 MB.
const SEQUENCE: &str = "stty raw -echo; echo ready; read line; seq 1 1450000; exit 4";

fn sequence() -> Vec<u8> {
    let lines = (1..=1_450_000).map(|line| format!("{line}\n"));
    lines.collect::<String>().into_bytes()
}

#[test]
fn a_client_of_ttyd_pauses_the_output_and_loses_nothing() {
    let expected = sequence();
    assert!(expected.len() > 10_000_000);
    for server in Server::both(SEQUENCE) {
        let mut wire = server.attach(TTY, "");
        read_tty_greeting(&mut wire);
        read_until(&mut wire, true, "ready\n");
        type_line(&mut wire, TTY, "go");
        let mut output = Vec::<u8>::new();
        let mut rounds = 0;
        while output.len() < 5_000_000 {
            let frame = wire.read_frame();
            assert_eq!((frame.opcode, frame.payload[0]), (BINARY, b'0'));
            output.extend(&frame.payload[1..]);
            if output.len() < rounds * 1_000_000 {
                continue;
            }
            rounds += 1;
            wire.send_frame(BINARY, b"2");
            wire.send_frame(PING, b"");
            loop {
                let frame = wire.read_frame();
                if frame.opcode == PONG {
                    break;
                }
                output.extend(&frame.payload[1..]);
            }
            // The program has more output, but it waits.
            for _ in 0..20 {
                call(server.address, "GET", "/healthz?", None);
                wire.send_frame(PING, b"");
                assert_eq!(wire.read_frame().opcode, PONG, "no output comes");
            }
            wire.send_frame(TEXT, b"3");
        }
        assert!(rounds > 2);
        let seen = read_tty(&mut wire);
        output.extend(&seen.output);
        assert!(output == expected, "{} bytes", output.len());
        assert_eq!((seen.code, &*seen.reason), (1000, "exited with code 4"));
    }
}

#[test]
fn the_output_of_a_program_that_has_exited_is_not_paused() {
    // The bug: a program wrote more than is read for a writer that is behind and exited, and its exit was never noticed.
    let expected: String = (1..=8000).map(|line| format!("{line}\n")).collect();
    for server in Server::both("stty raw -echo; echo ready; read line; seq 1 8000; exit 5") {
        let mut wire = server.attach(TTY, "");
        read_tty_greeting(&mut wire);
        read_until(&mut wire, true, "ready\n");
        wire.send_frame(BINARY, b"2");
        type_line(&mut wire, TTY, "");
        let seen = read_tty(&mut wire);
        assert!(seen.output == expected.as_bytes(), "{}", seen.output.len());
        assert_eq!((seen.code, &*seen.reason), (1000, "exited with code 5"));
    }
}

#[test]
fn a_viewer_that_pauses_for_too_long_is_disconnected() {
    let server = Server::process(&["--scrollback", "100000"], SEQUENCE);
    let mut viewer = server.attach(TTY, "mode=viewer");
    read_tty_greeting(&mut viewer);
    read_until(&mut viewer, true, "ready\n");
    viewer.send_frame(BINARY, b"2");
    viewer.send_frame(PING, b"");
    assert_eq!(viewer.read_frame().opcode, PONG);
    // The program waits for the writer alone.
    let mut writer = server.attach(PLAIN, "");
    read_until(&mut writer, false, "ready\n");
    type_line(&mut writer, PLAIN, "go");
    let seen = read_all(&mut writer);
    assert!(seen.output == sequence(), "{} bytes", seen.output.len());
    assert_eq!(seen.code, 4304);
    assert_eq!(viewer.read_close().0, 1008);
}

#[test]
fn viewers_in_each_dialect_see_the_output_and_change_nothing() {
    let script = "stty -echo; echo ready; read line; echo \"got:$line $(stty size)\"; exit 6";
    let server = Server::process(&[], script);
    let mut viewers = [JSON, PLAIN, TTY].map(|dialect| {
        let mut wire = server.attach(dialect, "mode=viewer&rows=1&cols=1");
        if dialect == TTY {
            // The arguments may contain secrets.
            let title = read_tty_greeting(&mut wire);
            assert!(title.starts_with("sh ("), "{title}");
        } else if dialect == JSON {
            wire.read_greeting(&server.path);
        }
        type_line(&mut wire, dialect, "from a viewer");
        let resize = if dialect == TTY {
            &br#"1{"columns":2,"rows":2}"#[..]
        } else {
            br#"{"type":"resize","rows":2,"cols":2}"#
        };
        wire.send_frame(TEXT, resize);
        (wire, dialect)
    });
    for (wire, dialect) in &mut viewers {
        // The server has handled what the viewer sent when it answers.
        wire.send_frame(PING, b"");
        let mut output = Vec::new();
        loop {
            let frame = wire.read_frame();
            match frame.opcode {
                BINARY => output.extend(frame.payload),
                PONG if output.ends_with(b"ready\r\n") => break,
                PONG => wire.send_frame(PING, b""),
                _ => assert_eq!(*dialect, JSON, "an event about other clients"),
            }
        }
    }
    let mut writer = server.attach(PLAIN, "");
    read_until(&mut writer, false, "ready\r\n");
    type_line(&mut writer, PLAIN, "from the writer");
    let expected = "got:from the writer 24 80\r\n";
    assert_eq!(read_all(&mut writer).output(), expected);
    for (mut wire, dialect) in viewers {
        let seen = if dialect == TTY {
            read_tty(&mut wire)
        } else {
            read_all(&mut wire)
        };
        assert_eq!(seen.output(), expected);
        let (code, last) = match dialect {
            JSON => (1000, Some(r#"{"type":"exit","exitCode":6}"#)),
            PLAIN => (4306, None),
            _ => (1000, None),
        };
        assert_eq!(seen.code, code);
        assert_eq!(seen.texts.last().map(String::as_str), last);
    }
}

#[test]
fn a_read_only_terminal_ignores_input_in_each_dialect() {
    let script = "stty -echo; echo ready; read -t 1 line; echo \"got:$line\"; exit 7";
    let server = Server::terminal(&["--read-only"], &format!("exec bash -c '{script}'"));
    for dialect in [JSON, PLAIN, TTY] {
        let mut wire = server.attach(dialect, "");
        if dialect == TTY {
            read_tty_greeting(&mut wire);
        } else if dialect == JSON {
            wire.read_greeting(&server.path);
        }
        read_until(&mut wire, dialect == TTY, "ready\r\n");
        type_line(&mut wire, dialect, "typed");
        let seen = if dialect == TTY {
            read_tty(&mut wire)
        } else {
            read_all(&mut wire)
        };
        assert_eq!(seen.output(), "got:\r\n");
    }
}

#[test]
fn a_gap_is_announced_only_to_clients_that_know_events() {
    let server = Server::process(
        &["--scrollback", "100000"],
        "stty raw; seq 1 100000; exit 8",
    );
    let expected: String = (1..=100_000).map(|line| format!("{line}\n")).collect();
    let expected = &expected[expected.len() - 100_000..];
    let status = server.path.replace("attach", "status");
    crate::common::traces::eventually("the process ends", || {
        call(server.address, "GET", &status, None).1["state"] == "exited"
    });
    for (dialect, code, texts) in [(JSON, 1000, 5), (PLAIN, 4308, 0)] {
        let seen = read_all(&mut server.attach(dialect, ""));
        assert!(seen.output == expected.as_bytes(), "{}", seen.output.len());
        assert_eq!(
            (seen.code, seen.texts.len()),
            (code, texts),
            "{:?}",
            seen.texts
        );
    }
    let mut wire = server.attach(TTY, "");
    read_tty_greeting(&mut wire);
    let seen = read_tty(&mut wire);
    assert!(seen.output == expected.as_bytes(), "{}", seen.output.len());
    assert_eq!(seen.code, 1000);
}

#[test]
fn a_connection_in_each_dialect_can_be_resumed() {
    for server in Server::both("stty -echo; echo ready; read line; echo \"got:$line\"; exit 9") {
        for dialect in [PLAIN, TTY] {
            if dialect == TTY && server.path != "/terminal" {
                // The process has exited.
                continue;
            }
            let path = format!("{}?{}", server.path, dialect.0);
            let (mut wire, head) = ask(server.address, &format!("{path}&resume=new"), dialect.1);
            let token = head
                .lines()
                .find_map(|line| line.strip_prefix("Outrigger-Resume: "))
                .expect("a token")
                .to_owned();
            let mut received = 0;
            loop {
                received += 1;
                if wire.read_frame().payload.ends_with(b"ready\r\n") {
                    break;
                }
            }
            wire.reset();
            crate::common::traces::eventually("the client is detached", || {
                call(server.address, "GET", "/status", None).1["detached"] == 1
            });
            let back = format!("{path}&resume={token}&received={received}");
            let (mut wire, head) = ask(server.address, &back, dialect.1);
            assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
            type_line(&mut wire, dialect, "again");
            let seen = if dialect == TTY {
                assert!(
                    head.contains("\r\nSec-WebSocket-Protocol: tty\r\n"),
                    "{head}"
                );
                read_tty(&mut wire)
            } else {
                read_all(&mut wire)
            };
            assert_eq!(seen.output(), "got:again\r\n");
            assert_eq!(seen.reason, "exited with code 9");
        }
    }
}
