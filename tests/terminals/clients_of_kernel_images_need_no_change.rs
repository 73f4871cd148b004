//! `outrigger processes --compat kernel-images`, and what a process does that waits for its readers.

use std::io::Read;
use std::net::SocketAddr;

use crate::common::program::Program;
use crate::common::traces::{TraceFile, eventually};
use crate::common::{BINARY, TEXT, Wire, call};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustix::process::Signal;
use serde_json::{Value, json};

fn compatible(options: &[&str]) -> (Program, SocketAddr) {
    let server =
        Program::start(&[&["processes", "--compat", "kernel-images"][..], options].concat());
    let address = server.address();
    (server, address)
}

fn exec(address: SocketAddr, body: Value) -> (u16, Value) {
    call(address, "POST", "/process/exec", Some(body))
}

fn piped(script: &str) -> Value {
    json!({"command": "sh", "args": ["-c", script]})
}

fn stdout(answer: &Value) -> String {
    let text = answer["stdout_b64"].as_str().expect("base64");
    String::from_utf8(BASE64_STANDARD.decode(text).expect("base64")).expect("UTF-8")
}

fn spawn(address: SocketAddr, body: Value) -> String {
    let (status, answer) = call(address, "POST", "/process/spawn", Some(body));
    assert_eq!(status, 200, "{answer}");
    answer["process_id"].as_str().expect("an id").to_owned()
}

/// Opens the stream of a process, and reads its head.
fn stream(address: SocketAddr, id: &str) -> Wire {
    let mut wire = Wire::open(address);
    let path = format!("/process/{id}/stdout/stream");
    wire.send(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes());
    let head = wire.read_head();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    wire
}

/// Reads a stream to its end. Returns the length of the output, the number of gaps, and the last event.
fn read_events(mut wire: Wire) -> (usize, usize, String) {
    let mut events = String::new();
    wire.stream.read_to_string(&mut events).expect("an end");
    let gaps = events.lines().filter(|line| line.starts_with(": gap"));
    let (mut length, mut last) = (0, "");
    for event in events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
    {
        last = event;
        let event: Value = serde_json::from_str(event).expect("JSON");
        if let Some(text) = event["data_b64"].as_str() {
            length += BASE64_STANDARD.decode(text).expect("base64").len();
        }
    }
    (length, gaps.count(), last.to_owned())
}

/// The bug: output that a background process wrote 250 ms after the exit was lost. kernel-images waits for it.
#[test]
fn exec_waits_until_no_process_holds_the_output_open() {
    let (_server, address) = compatible(&["--linger", "0"]);
    let trace = TraceFile::new("compat-holds");
    // The child writes only after its parent has been reaped.
    let script = format!(
        "echo early; (while kill -0 $$ 2>/dev/null; do sleep 0.01; done; echo LATE; echo x >>{}) & exit 4",
        trace.path()
    );
    let (status, answer) = exec(address, piped(&script));
    assert_eq!((status, &answer["exit_code"]), (200, &json!(4)));
    assert_eq!(stdout(&answer), "early\nLATE\n");
}

/// The bugs: a time-out was answered with 200 and exit code 137; and nothing ended a call whose output stayed open.
#[test]
fn a_time_out_of_exec_is_an_error() {
    let (mut server, address) = compatible(&["--drain-timeout", "100ms"]);
    for script in [
        "echo begun; sleep 1000",
        // The process exits, and another one of another session holds the output open.
        "setsid sleep 1000 & exit 0",
    ] {
        let mut body = piped(script);
        body["timeout_sec"] = json!(1);
        let (status, answer) = exec(address, body);
        assert_eq!(
            (status, &answer["message"]),
            (500, &json!("process timed out")),
            "{script}"
        );
    }
    // Such a call does not keep the server from stopping.
    let trace = TraceFile::new("compat-stop");
    let body = piped(&format!("sleep 1000 & echo >>{}", trace.path())).to_string();
    let mut waiting = Wire::open(address);
    waiting.send(
        format!(
            "POST /process/exec HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .as_bytes(),
    );
    eventually("the process runs", || !trace.text().is_empty());
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

/// The bug: calls whose process had exited did not count, so that a client could hold any number of them open.
#[test]
fn calls_whose_output_is_held_open_count_as_processes() {
    let (_server, address) = compatible(&["--max-processes", "1"]);
    let trace = TraceFile::new("compat-count");
    let script = format!(
        "(while kill -0 $$ 2>/dev/null; do sleep 0.01; done; echo x >>{}; read line </dev/null; sleep 1000) & exit 0",
        trace.path()
    );
    let body = piped(&script).to_string();
    let mut waiting = Wire::open(address);
    waiting.send(
        format!(
            "POST /process/exec HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .as_bytes(),
    );
    eventually("the process has exited", || !trace.text().is_empty());
    let (status, answer) = exec(address, json!({"command": "true"}));
    assert_eq!(
        (status, &answer["message"]),
        (503, &json!("too many processes"))
    );
}

/// The bug: bodies were rejected that kernel-images accepts.
#[test]
fn bodies_are_read_as_kernel_images_reads_them() {
    let (mut server, address) = compatible(&[]);
    let post = |fields: &str, body: &str| {
        let mut wire = Wire::open(address);
        let head = format!(
            "POST /process/exec HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {}\r\n\r\n",
            body.len()
        );
        wire.send(format!("{head}{body}").as_bytes());
        let (head, answer) = wire.read_response();
        (head[9..12].to_owned(), answer)
    };
    let body = r#"{"command":"false","Command":"sh","args":["-c","pwd"],"cwd":"","as_user":"","unknown":[1]}"#;
    for fields in ["", "Content-Type: text/plain\r\n"] {
        let (status, answer) = post(fields, body);
        assert_eq!((&*status, stdout(&answer).is_empty()), ("200", false));
    }
    // A page could send this without a preflight request.
    let (status, _) = post(
        "Content-Type: text/plain\r\nSec-Fetch-Site: cross-site\r\n",
        body,
    );
    assert_eq!(status, "415");
    let (status, _) = post(
        "Content-Type: text/plain\r\nOrigin: http://elsewhere\r\n",
        body,
    );
    assert_eq!(status, "403");
    server.signal(Signal::TERM);
    let (_, log) = server.wait_and_read_log();
    for says in [
        "whose type is not application/json",
        "\"command\" is the first",
    ] {
        assert!(log.contains(says), "{says}: {log}");
    }
}

/// The bug: a process of another user had a login environment. That of kernel-images has the server's.
#[test]
fn a_process_of_another_user_keeps_the_servers_environment() {
    let script = "SECRET=1 OUTRIGGER_TOKEN=abcdefghijklmnopqrst exec \"$0\" processes --listen 127.0.0.1:0 --compat kernel-images";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_outrigger")]);
    let server = Program::spawn(&mut command);
    let mut body = piped("id -un; env");
    body["as_user"] = json!("nobody");
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let body = body.to_string();
    let mut wire = Wire::open(server.address());
    wire.send(format!("POST /process/exec HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer abcdefghijklmnopqrst\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
    let (head, answer) = wire.read_response();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let output = stdout(&answer);
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[0], "nobody");
    assert!(lines.contains(&"SECRET=1"), "{lines:?}");
    assert!(!output.contains("OUTRIGGER_TOKEN"), "{lines:?}");
}

/// The bug: output beyond 1 MiB was lost before the first reader came, and while a reader was slow.
#[test]
fn a_process_waits_for_its_readers() {
    for options in [
        &["processes", "--wait-for-readers"][..],
        &["processes", "--compat", "kernel-images"],
    ] {
        let server = Program::start(options);
        let address = server.address();
        let trace = TraceFile::new("compat-waits");
        let script = format!(
            "head -c 900000 /dev/zero; echo >>{0}; head -c 9000000 /dev/zero; echo >>{0}; exit 3",
            trace.path()
        );
        let id = spawn(address, piped(&script));
        eventually("it writes", || trace.text() == "\n");
        // The reader reads only after much more output than is kept was written, if the process did not wait.
        let wire = stream(address, &id);
        let (length, gaps, last) = read_events(wire);
        assert_eq!((length, gaps), (9_900_000, 0), "{options:?}");
        assert_eq!(last, r#"{"event":"exit","exit_code":3}"#);
        assert_eq!(trace.text(), "\n\n");
    }
    // What is in the pipes at the exit is kept, too.
    let (_server, address) = compatible(&["--scrollback", "100000"]);
    let script =
        "head -c 60000 /dev/zero; head -c 60000 /dev/zero >&2; head -c 60000 /dev/zero; exit 0";
    let id = spawn(address, piped(script));
    let path = format!("/process/{id}/status");
    eventually("it has exited", || {
        call(address, "GET", &path, None).1["state"] == "exited"
    });
    let (length, gaps, _) = read_events(stream(address, &id));
    assert_eq!((length, gaps), (180_000, 0));
}

/// Without the option, a process does not wait: one that nobody reads would stop.
#[test]
fn a_process_without_readers_runs_on() {
    let server = Program::start(&["processes"]);
    let address = server.address();
    let id = spawn(address, piped("head -c 9000000 /dev/zero; exit 3"));
    let path = format!("/process/{id}/status");
    eventually("it has exited", || {
        call(address, "GET", &path, None).1["state"] == "exited"
    });
    let (length, gaps, _) = read_events(stream(address, &id));
    assert_eq!((length, gaps), (1 << 20, 1));
}

/// The bug: the client got the role, the size and who is attached, which clients of kernel-images do not know.
#[test]
fn a_client_that_attaches_gets_output_and_the_exit_alone() {
    let (_server, address) = compatible(&[]);
    let mut body = piped("read line; exit 3");
    body["allocate_tty"] = true.into();
    let id = spawn(address, body);
    let mut wire = Wire::connect(address, &format!("/process/{id}/attach"));
    wire.send_frame(BINARY, b"go\n");
    let text = std::iter::repeat_with(|| wire.read_frame()).find(|frame| frame.opcode != BINARY);
    let text = text.expect("a frame");
    let exit = br#"{"type":"exit","exitCode":3}"#;
    assert_eq!((text.opcode, &*text.payload), (TEXT, &exit[..]));
    assert_eq!(wire.read_close().0, 1000);
}

#[test]
fn the_description_needs_no_token() {
    let tokens = TraceFile::new("compat-token");
    std::fs::write(tokens.path(), "a-token-that-nobody-else-would-guess").expect("written");
    let command = [
        "processes",
        "--compat",
        "kernel-images",
        "--listen",
        "127.0.0.1:0",
    ];
    let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_outrigger"));
    let server = Program::spawn(program.args(command).args(["--token-file", &tokens.path()]));
    let address = server.address();
    for (path, status) in [("/spec.yaml", 200), ("/spec.json", 200), ("/process", 401)] {
        let mut wire = Wire::open(address);
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        wire.send(request.as_bytes());
        let head = wire.read_head();
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path}: {head}"
        );
    }
}

#[test]
fn the_api_is_described_in_openapi() {
    let (_server, address) = compatible(&[]);
    let get = |path: &str| {
        let mut wire = Wire::open(address);
        wire.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
        wire.read_response()
    };
    let (head, spec) = get("/spec.json");
    assert!(
        head.contains("\r\nContent-Type: application/json\r\n"),
        "{head}"
    );
    for path in ["/spec.yaml", "/process/spec.json", "/process/spec.yaml"] {
        assert_eq!(get(path).1, spec, "JSON is YAML");
    }
    assert!(get("/spec.yaml").0.contains("application/vnd.oai.openapi"));
    // Every call in it exists.
    let id = spawn(address, json!({"command": "sleep", "args": ["1000"]}));
    let paths = spec["paths"].as_object().expect("an object");
    assert_eq!(paths.len(), 13);
    for (path, methods) in paths {
        let path = path.replace("{process_id}", &id).replace("{name}", "a");
        let mut keys = methods.as_object().expect("an object").keys();
        let method = keys.find(|key| *key != "parameters");
        let method = method.expect("a method").to_uppercase();
        let has_body = matches!(&*method, "POST" | "PUT");
        let body = has_body.then(|| json!([]));
        if !path.ends_with("/stream") {
            let (status, answer) = call(address, &method, &path, body);
            let is_known = matches!(status, 200 | 400)
                || (method == "DELETE" && status == 404)
                || answer["message"] == "the process has no recording"
                || status == 409;
            assert!(is_known, "{path}: {status} {answer}");
        }
    }
    // Without the option, the paths of the server belong to nobody.
    let server = Program::start(&["processes", "--path", "/browsers/b/process"]);
    let address = server.address();
    assert_eq!(call(address, "GET", "/spec.json", None).0, 404);
    let (status, spec) = call(address, "GET", "/browsers/b/process/spec.json", None);
    assert_eq!(status, 200);
    assert!(spec["paths"]["/browsers/b/process/exec"].is_object());
}
