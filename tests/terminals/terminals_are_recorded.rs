//! Recordings of terminals: what the files have, who gets one, and what ends one.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::common::program::{Program, outrigger};
use crate::common::traces::eventually;
use crate::common::{BINARY, CLOSE, Wire, call};
use crate::processes;
use serde_json::{Value, json};

/// A directory for recordings. Dropping it removes it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("outrigger-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("a directory");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }

    /// The recordings, in the order of their names.
    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).expect("a directory");
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("one").path()).collect();
        files.sort();
        files
    }

    /// The only recording.
    fn file(&self) -> PathBuf {
        let files = self.files();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts a script, and returns its path.
fn spawn(address: SocketAddr, script: &str, more: &Value) -> String {
    let mut body = json!({"command": "sh", "args": ["-c", script], "allocate_tty": true, "rows": 10, "cols": 40});
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    let (status, answer) = call(address, "POST", "/process/spawn", Some(body));
    assert_eq!(status, 200, "{answer}");
    format!("/process/{}", answer["process_id"].as_str().expect("an id"))
}

fn post(address: SocketAddr, path: &str, body: Value) {
    let (status, answer) = call(address, "POST", path, Some(body));
    assert_eq!(status, 200, "{path}: {answer}");
}

fn wait_for(address: SocketAddr, process: &str, mut condition: Value) {
    condition["timeout_ms"] = json!(30_000);
    let (_, answer) = call(
        address,
        "POST",
        &format!("{process}/wait"),
        Some(condition.clone()),
    );
    assert_ne!(answer["reason"], "timeout", "{condition}: {answer}");
}

/// The header and the events of a recording.
fn read(text: &str) -> (Value, Vec<(f64, String, String)>) {
    assert!(text.ends_with('\n'), "whole lines: {text}");
    let mut lines = text.lines();
    let header = serde_json::from_str(lines.next().expect("a header")).expect("JSON");
    let events = lines.map(|line| serde_json::from_str(line).expect(line));
    (header, events.collect())
}

/// The data of all events of a kind.
fn data(events: &[(f64, String, String)], code: &str) -> String {
    let of_code = events.iter().filter(|event| event.1 == code);
    of_code.map(|event| &*event.2).collect()
}

/// The answer to a request for a recording, which ends with the connection: its status and its body without chunks.
fn download(address: SocketAddr, process: &str) -> (String, String) {
    let mut wire = Wire::open(address);
    let head = format!("GET {process}/recording HTTP/1.0\r\nHost: localhost\r\n\r\n");
    wire.send(head.as_bytes());
    let head = wire.read_head();
    let mut body = String::new();
    std::io::Read::read_to_string(&mut wire.stream, &mut body).expect("UTF-8");
    let is_cast = head.contains("\r\nContent-Type: application/x-asciicast\r\n");
    assert_eq!(is_cast, head.starts_with("HTTP/1.1 200 "), "{head}");
    (head[9..12].to_owned(), body)
}

fn metric(address: SocketAddr, name: &str) -> Option<u64> {
    let mut wire = Wire::open(address);
    wire.send(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n");
    let mut body = String::new();
    std::io::Read::read_to_string(&mut wire.stream, &mut body).expect("UTF-8");
    let line = body.lines().find_map(|line| line.strip_prefix(name));
    line.map(|value| value.trim().parse().expect("a number"))
}

#[test]
fn a_terminal_is_recorded_from_its_start_to_its_exit() {
    let folder = Folder::new("recorded");
    let (_server, address) = processes(&["--record", folder.path()]);
    // A character is written in two pieces.
    let script =
        "stty -echo; printf 'caf\\303'; read x; printf '\\251 got-%s\\n' $x; read x; exit 3";
    let process = spawn(address, script, &json!({"env": {"TERM": "vt220"}}));
    wait_for(address, &process, json!({"text": "caf"}));
    post(
        address,
        &format!("{process}/resize"),
        json!({"rows": 20, "cols": 50}),
    );
    post(
        address,
        &format!("{process}/input"),
        json!({"text": "secret\n"}),
    );
    wait_for(address, &process, json!({"text": "got-secret"}));

    let file = folder.file();
    let name = file.file_name().and_then(|name| name.to_str());
    let id = process.strip_prefix("/process/").expect("an id");
    assert!(name.is_some_and(|name| name.ends_with(&format!("-{id}.cast"))));
    let mode = fs::metadata(&file).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // It is written without further events.
    eventually("the output is in the file", || {
        fs::read_to_string(&file).is_ok_and(|text| text.contains("got-secret"))
    });
    assert_eq!(metric(address, "outrigger_recordings_open "), Some(1));
    let (_, so_far) = download(address, &process);
    assert!(data(&read(&so_far).1, "o").contains("caf\u{e9} got-secret\r\n"));

    post(address, &format!("{process}/input"), json!({"text": "\n"}));
    wait_for(address, &process, json!({"exit": true}));
    let text = fs::read_to_string(&file).expect("a file");
    let (header, events) = read(&text);
    assert_eq!(header["version"], 3);
    assert_eq!(
        header["term"],
        json!({"rows": 10, "cols": 40, "type": "vt220"})
    );
    assert!(
        header["command"]
            .as_str()
            .is_some_and(|command| command.starts_with("sh -c "))
    );
    assert!(header["timestamp"].as_u64() > Some(1_600_000_000));
    assert!(data(&events, "o").contains("caf\u{e9} got-secret\r\n"));
    assert_eq!(data(&events, "r"), "50x20");
    assert_eq!(data(&events, "i"), "", "input is not recorded");
    assert_eq!(events.last().map(|event| &*event.2), Some("3"));
    assert_eq!(data(&events, "x"), "3");
    assert!(text.starts_with(&so_far), "a recording only grows");
    assert_eq!(
        download(address, &process),
        ("200".to_owned(), text.clone())
    );
    assert_eq!(metric(address, "outrigger_recordings_open "), Some(0));
    let written = metric(address, "outrigger_recording_bytes_total ");
    assert_eq!(written, Some(text.len() as u64));

    // Another file in its place is not handed out.
    fs::remove_file(&file).expect("it is there");
    std::os::unix::fs::symlink("/etc/passwd", &file).expect("a link");
    assert_eq!(download(address, &process).0, "404");
    let piped = spawn(address, "read x", &json!({"allocate_tty": false}));
    assert_eq!(download(address, &piped).0, "404");
    assert_eq!(folder.files().len(), 1, "only terminals are recorded");
}

#[test]
fn input_is_recorded_if_the_operator_wants_it() {
    let folder = Folder::new("recorded-input");
    let (_server, address) = processes(&["--record", folder.path(), "--record-input"]);
    let process = spawn(address, "stty -echo; read x; exit 0", &json!({}));
    post(
        address,
        &format!("{process}/input"),
        json!({"text": "typed\n"}),
    );
    wait_for(address, &process, json!({"exit": true}));
    let (_, events) = read(&fs::read_to_string(folder.file()).expect("a file"));
    assert_eq!(data(&events, "i"), "typed\n");
}

#[test]
fn a_call_asks_for_a_recording() {
    let folder = Folder::new("recorded-asked");
    let (_server, address) = processes(&["--record", folder.path(), "--record-on-request"]);
    let silent = spawn(address, "read x", &json!({}));
    assert_eq!(download(address, &silent).0, "404");
    assert!(folder.files().is_empty());
    let asked = spawn(address, "read x", &json!({"record": true}));
    assert_eq!(download(address, &asked).0, "200");
    // A name has one process, recorded or not.
    let put = |record: bool| {
        let body = json!({"command": "cat", "allocate_tty": true, "record": record});
        call(address, "PUT", "/process/by-name/work", Some(body))
    };
    assert_eq!(put(true).1["created"], true);
    assert_eq!(put(true).1["created"], false);
    assert_eq!(put(false).0, 409);
    assert_eq!(download(address, "/process/by-name/work").0, "200");
    assert_eq!(folder.files().len(), 2);

    let (_server, address) = processes(&[]);
    let body = json!({"command": "cat", "allocate_tty": true, "record": true});
    let (status, answer) = call(address, "POST", "/process/spawn", Some(body));
    assert_eq!(status, 400);
    assert!(
        answer.to_string().contains("keeps no recordings"),
        "{answer}"
    );
    assert_eq!(metric(address, "outrigger_recordings_open "), None);
    // The server records all terminals, whether or not a call asks for it.
    let all = Folder::new("recorded-all");
    let (_server, address) = processes(&["--record", all.path()]);
    let put = |record: bool| {
        let body = json!({"command": "cat", "allocate_tty": true, "record": record});
        call(address, "PUT", "/process/by-name/work", Some(body))
    };
    assert_eq!(put(false).1["created"], true);
    assert_eq!(put(true).1["created"], false, "the same after defaults");
    assert_eq!(all.files().len(), 1);
}

#[test]
fn a_recording_that_cannot_go_on_ends_without_the_terminal() {
    let folder = Folder::new("recorded-limit");
    let (mut server, address) = processes(&["--record", folder.path(), "--record-limit", "4KiB"]);
    let mut log = server.follow_log();
    let process = spawn(address, "seq 5000; read x", &json!({}));
    wait_for(address, &process, json!({"text": "5000"}));
    log.expect("recording stopped");
    let text = fs::read_to_string(folder.file()).expect("a file");
    assert!(text.len() <= 4096, "{}", text.len());
    let (_, events) = read(&text);
    assert_eq!(data(&events, "x"), "");
    let stopped = |reason: &str| {
        let name = format!("outrigger_recordings_stopped_total{{reason=\"{reason}\"}} ");
        metric(address, &name)
    };
    assert_eq!((stopped("limit"), stopped("error")), (Some(1), Some(0)));
    // The directory is gone.
    fs::remove_dir_all(&folder.0).expect("it is there");
    let other = spawn(address, "seq 5000; read x", &json!({}));
    wait_for(address, &other, json!({"text": "5000"}));
    log.expect("recording stopped");
    assert_eq!((stopped("limit"), stopped("error")), (Some(1), Some(1)));
    assert_eq!(download(address, &other).0, "404");
    fs::create_dir(&folder.0).expect("a directory");
}

#[test]
fn a_caller_that_reads_slowly_gets_a_whole_recording() {
    let folder = Folder::new("recorded-long");
    let (_server, address) = processes(&["--record", folder.path(), "--max-outbound", "256KiB"]);
    let process = spawn(address, "seq 2000000; exit 0", &json!({}));
    wait_for(address, &process, json!({"exit": true}));
    let mut wire = Wire::open(address);
    let head = format!("GET {process}/recording HTTP/1.0\r\nHost: localhost\r\n\r\n");
    wire.send(head.as_bytes());
    // While it does not read, others are served, and more is not read from the file.
    let (status, _) = call(address, "GET", &format!("{process}/status"), None);
    assert_eq!(status, 200);
    wire.read_head();
    let mut body = String::new();
    std::io::Read::read_to_string(&mut wire.stream, &mut body).expect("UTF-8");
    let whole = fs::read_to_string(folder.file()).expect("a file");
    assert!(body == whole && body.len() > 10_000_000, "{}", body.len());
    let output = data(&read(&body).1, "o");
    let expected: String = (1..=2_000_000)
        .map(|number| format!("{number}\r\n"))
        .collect();
    assert!(output == expected, "{} bytes of output", output.len());
}

#[test]
fn each_terminal_of_a_terminal_server_is_recorded() {
    let folder = Folder::new("recorded-terminals");
    let options = ["terminal", "--record", folder.path(), "--", "sh", "-c"];
    let server = Program::start(&[&options[..], &["echo out; exit 4"]].concat());
    let address = server.address();
    for _ in 0..2 {
        let mut wire = Wire::attach(address, "/terminal?rows=11&cols=44");
        loop {
            let frame = wire.read_frame();
            if frame.opcode == CLOSE {
                break;
            }
            assert!(frame.opcode != BINARY || frame.payload.starts_with(b"out"));
        }
    }
    eventually("both recordings are complete", || {
        let files = folder.files();
        let texts = files
            .iter()
            .map(|file| fs::read_to_string(file).expect("a file"));
        texts.filter(|text| text.contains("\"x\", \"4\"")).count() == 2
    });
    let (header, events) = read(&fs::read_to_string(&folder.files()[0]).expect("a file"));
    assert_eq!(header["term"]["cols"], 44);
    assert_eq!(data(&events, "o"), "out\r\n");
}

#[test]
fn a_directory_that_cannot_be_used_is_noticed_at_the_start() {
    for bad in ["/no/such/directory", "/dev/null"] {
        let output = outrigger(&["processes", "--record", bad, "--check"]);
        assert!(!output.status.success());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("cannot create files in"), "{error}");
    }
    let output = outrigger(&["processes", "--record-input", "--check"]);
    assert!(!output.status.success());
}
