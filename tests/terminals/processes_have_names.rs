//! Processes with names: one process however often it is asked for, and attaching by name.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Barrier};

use crate::common::program::{Program, outrigger};
use crate::common::traces::{TraceFile, eventually};
use crate::common::{BINARY, CLOSE, TEXT, Wire, call, request};
use crate::processes;
use serde_json::{Value, json};

const WORK: &str = "/process/by-name/work";

fn script(text: &str) -> Value {
    json!({"command": "sh", "args": ["-c", text]})
}

fn put(address: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    call(address, "PUT", path, Some(body.clone()))
}

fn wait_for_exit(address: SocketAddr, path: &str) {
    eventually("the process ends", || {
        let (_, status) = call(address, "GET", &format!("{path}/status"), None);
        status["state"] == "exited"
    });
}

/// Reads output until it contains a text, or until CLOSE. Returns the events and the close code.
fn read_until(wire: &mut Wire, text: &str) -> (String, Vec<Value>, Option<u16>) {
    let (mut output, mut events) = (String::new(), Vec::new());
    loop {
        let frame = wire.read_frame();
        match frame.opcode {
            BINARY => output.push_str(&String::from_utf8_lossy(&frame.payload)),
            TEXT => events.push(serde_json::from_slice(&frame.payload).expect("JSON")),
            CLOSE => {
                let code = u16::from_be_bytes([frame.payload[0], frame.payload[1]]);
                return (output, events, Some(code));
            }
            _ => {}
        }
        if output.contains(text) {
            return (output, events, None);
        }
    }
}

/// The bug that names prevent: a call that is repeated after a lost answer runs its command twice.
#[test]
fn a_thousand_callers_of_a_name_start_one_process() {
    let (_server, address) = processes(&["--max-clients", "2000"]);
    let trace = TraceFile::new("names");
    let body = script(&format!(
        "echo started >> {}; exec sleep 1000",
        trace.path()
    ));
    let count = 1000;
    let barrier = Arc::new(Barrier::new(count));
    let callers: Vec<_> = (0..count)
        .map(|_| {
            let (barrier, body) = (Arc::clone(&barrier), body.clone());
            std::thread::spawn(move || {
                barrier.wait();
                put(address, WORK, &body)
            })
        })
        .collect();
    let answers: Vec<(u16, Value)> = callers
        .into_iter()
        .map(|caller| caller.join().expect("an answer"))
        .collect();
    let id = &answers[0].1["process_id"];
    let same = |(status, answer): &(u16, Value)| {
        *status == 200 && answer["process_id"] == *id && answer["state"] == "running"
    };
    assert!(answers.iter().all(same), "{answers:?}");
    let created = answers.iter().filter(|answer| answer.1["created"] == true);
    assert_eq!(created.count(), 1);
    eventually("it has started", || trace.text().starts_with("started"));
    assert_eq!(trace.text().trim(), "started");
    let (_, list) = call(address, "GET", "/process", None);
    assert_eq!(list["processes"].as_array().map(Vec::len), Some(1));
    assert_eq!(list["processes"][0]["name"], "work");
}

#[test]
fn a_name_stays_with_its_process_until_it_is_deleted_or_restarted() {
    let (_server, address) = processes(&[]);
    let body = json!({"command": "sh", "args": ["-c", "exit 7"], "env": {"A": "1", "B": "2"}});
    let (status, first) = put(address, WORK, &body);
    assert_eq!((status, &first["created"]), (200, &json!(true)), "{first}");
    wait_for_exit(address, WORK);
    // The same body with defaults and in another order.
    let same = json!({"env": {"B": "2", "A": "1"}, "args": ["-c", "exit 7"], "command": "sh", "cwd": null, "rows": 24});
    let (status, again) = put(address, WORK, &same);
    assert_eq!(
        (
            status,
            &again["created"],
            &again["state"],
            &again["exit_code"]
        ),
        (200, &json!(false), &json!("exited"), &json!(7))
    );
    assert_eq!(again["process_id"], first["process_id"]);
    let (status, _) = put(address, WORK, &script("exit 8"));
    assert_eq!(status, 409, "another body");
    // A restart that fails leaves the name with the process.
    let bad = json!({"command": "/no/such"});
    assert_eq!(put(address, &format!("{WORK}?restart=1"), &bad).0, 400);
    assert_eq!(
        put(address, WORK, &body).1["process_id"],
        first["process_id"]
    );
    let (status, second) = put(
        address,
        &format!("{WORK}?restart=1"),
        &script("exec sleep 1000"),
    );
    assert_eq!((status, &second["created"]), (200, &json!(true)));
    assert_ne!(second["process_id"], first["process_id"]);
    // It runs, so that it is not restarted.
    let (_, third) = put(
        address,
        &format!("{WORK}?restart=1"),
        &script("exec sleep 1000"),
    );
    assert_eq!(third["process_id"], second["process_id"]);
    assert_eq!(call(address, "DELETE", WORK, None).0, 409);
    let kill = Some(json!({"signal": "KILL"}));
    assert_eq!(call(address, "POST", &format!("{WORK}/kill"), kill).0, 200);
    wait_for_exit(address, WORK);
    assert_eq!(call(address, "DELETE", WORK, None).0, 200);
    assert_eq!(call(address, "DELETE", WORK, None).0, 404);
    assert_eq!(call(address, "GET", &format!("{WORK}/status"), None).0, 404);
    let first = first["process_id"].as_str().expect("an id");
    let path = format!("/process/{first}");
    assert_eq!(call(address, "GET", &format!("{path}/status"), None).0, 200);
    assert_eq!(call(address, "DELETE", &path, None).0, 200);
    assert_eq!(call(address, "DELETE", &path, None).0, 404);
    assert_eq!(put(address, "/process/by-name/..", &body).0, 400);
}

#[test]
fn names_are_a_principals_own_unless_they_are_shared() {
    let file = std::env::temp_dir().join(format!("outrigger-name-tokens-{}", std::process::id()));
    std::fs::write(
        &file,
        "ada all aaaaaaaaaaaaaaaaaaaa\nbob all bbbbbbbbbbbbbbbbbbbb\n",
    )
    .expect("a file");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, private).expect("ours");
    let path = file.display().to_string();
    let body = script("exec sleep 1000");
    for (shared, is_same) in [(&[][..], false), (&["--shared-names"][..], true)] {
        let options = [
            "processes",
            "--listen",
            "127.0.0.1:0",
            "--token-file",
            &path,
        ];
        let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
        let server = Program::spawn(command.args(options).args(shared));
        let address = server.address();
        let of = |token: &str| {
            let path = format!("{WORK}?token={}", token.repeat(20));
            let (status, answer) = put(address, &path, &body);
            assert_eq!(status, 200, "{answer}");
            answer["process_id"].clone()
        };
        assert_eq!(of("a") == of("b"), is_same);
    }
    std::fs::remove_file(&file).expect("it is there");
}

#[test]
fn attaching_to_a_name_starts_the_command_of_the_server() {
    let options = [
        "--session",
        "work=sh",
        "--sessions",
        "cat -u",
        "--sessions",
        "true",
    ];
    let (_server, address) = processes(&options);
    let mut first = Wire::connect(address, &format!("{WORK}?rows=10&cols=40"));
    first.send_frame(BINARY, b"stty size; echo $((6 * 7))-here\n");
    let (output, events, _) = read_until(&mut first, "42-here");
    assert!(output.contains("10 40"), "{output}");
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str()).collect();
    assert_eq!(kinds[..3], [Some("process"), Some("role"), Some("size")]);
    // A second writer is refused, and a viewer sees the same process.
    let mut second = Wire::open(address);
    second.send(&request(WORK));
    assert!(second.read_head().starts_with("HTTP/1.1 409 "));
    let mut viewer = Wire::connect(address, &format!("{WORK}/attach?mode=viewer"));
    let (_, seen, _) = read_until(&mut viewer, "42-here");
    assert_eq!(seen[0]["process_id"], events[0]["process_id"]);
    // Other names have the other commands.
    for (path, status) in [
        ("/process/by-name/other?mode=viewer", 404),
        ("/process/by-name/other?command=bash", 403),
        ("/process/by-name/other?command=true", 101),
    ] {
        let mut wire = Wire::open(address);
        wire.send(&request(path));
        let head = wire.read_head();
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path}: {head}"
        );
    }
    wait_for_exit(address, "/process/by-name/other");
    let mut wire = Wire::connect(address, "/process/by-name/other");
    let (_, events, code) = read_until(&mut wire, "never");
    assert_eq!(
        (events.last().expect("an exit")["exitCode"].as_i64(), code),
        (Some(0), Some(1000))
    );
    let mut wire = Wire::connect(address, "/process/by-name/other?restart=1");
    wire.send_frame(BINARY, b"hello\n\x04");
    let (output, _, code) = read_until(&mut wire, "never");
    assert!(output.contains("hello"), "{output}");
    assert_eq!(code, Some(1000));
}

#[test]
fn a_hundred_clients_that_attach_to_a_name_start_one_process() {
    let (_server, address) = processes(&["--sessions", "cat"]);
    let barrier = Arc::new(Barrier::new(100));
    let clients: Vec<_> = (0..100)
        .map(|_| {
            let barrier = Arc::clone(&barrier);
            std::thread::spawn(move || {
                barrier.wait();
                let mut wire = Wire::open(address);
                wire.send(&request(WORK));
                if !wire.read_head().starts_with("HTTP/1.1 101 ") {
                    return None;
                }
                // The writer is told its role, and another one is closed.
                let frame = wire.read_frame();
                (frame.opcode == TEXT).then_some(wire)
            })
        })
        .collect();
    let clients: Vec<_> = clients
        .into_iter()
        .map(|client| client.join().expect("an answer"))
        .collect();
    assert_eq!(clients.iter().flatten().count(), 1);
    let (_, list) = call(address, "GET", "/process", None);
    assert_eq!(list["processes"].as_array().map(Vec::len), Some(1));
}

/// A page learns from CLOSE why it is not attached, because it cannot see the status of a handshake.
#[test]
fn a_page_is_told_why_a_name_cannot_be_attached_to() {
    let (_server, address) = processes(&[]);
    let mut wire = Wire::open(address);
    let text = String::from_utf8(request(WORK)).expect("text");
    let origin = format!("Origin: http://{address}\r\n\r\n");
    let text = text.replace("Host: localhost", &format!("Host: {address}"));
    wire.send(
        text.replacen("\r\n\r\n", &format!("\r\n{origin}"), 1)
            .as_bytes(),
    );
    let head = wire.read_head();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let (_, events, code) = read_until(&mut wire, "never");
    assert_eq!(
        events,
        [json!({"type": "error", "message": "process not found"})]
    );
    assert_eq!(code, Some(1011));
}

#[cfg(feature = "client")]
#[test]
fn the_command_attach_takes_a_name() {
    let (_server, address) = processes(&["--session", "work=ls /no/such"]);
    let url = format!("ws://{address}{WORK}");
    assert_eq!(
        outrigger(&["attach", &url]).status.code(),
        Some(2),
        "sh says so"
    );
}

/// The bug: the page came back at the id of its process, where the server does not know the token of the connection. What it had
/// sent was lost, and its own former connection was the writer that kept it away.
#[test]
fn a_connection_to_a_name_is_resumed_at_the_name() {
    let (_server, address) = processes(&["--sessions", "cat"]);
    let mut wire = Wire::connect(address, &format!("{WORK}?resume=new&notice=1"));
    let (mut token, mut id) = (String::new(), String::new());
    let mut received = 0;
    while id.is_empty() {
        let frame = wire.read_frame();
        let event: Value = serde_json::from_slice(&frame.payload).expect("JSON");
        if let Some(notice) = event.get("outrigger") {
            token = notice["resume"].as_str().expect("a token").to_owned();
            continue;
        }
        received += 1;
        if event["type"] == "process" {
            id = event["process_id"].as_str().expect("an id").to_owned();
        }
    }
    wire.reset();
    let path = format!("{WORK}?resume={token}&received={received}&notice=1");
    let mut wire = Wire::open(address);
    wire.send(&request(&path));
    let head = wire.read_head();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
}

/// The bug: the holder of a link was told the id, went on at the id after a cut, and the link permits the path of the name only.
#[cfg(feature = "client")]
#[test]
fn the_holder_of_a_link_to_a_name_comes_back_after_a_cut() {
    use crate::common::cutter::Cutter;

    let file = std::env::temp_dir().join(format!("outrigger-link-tokens-{}", std::process::id()));
    std::fs::write(&file, "ada all aaaaaaaaaaaaaaaaaaaa\n").expect("a file");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, private).expect("ours");
    let path = file.display().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.args(["processes", "--listen", "127.0.0.1:0", "--no-resume"]);
    let server = Program::spawn(command.args(["--token-file", &path]));
    let address = server.address();
    let token = "a".repeat(20);
    let body =
        json!({"command": "sh", "args": ["-c", "echo ready; exec cat"], "allocate_tty": true});
    let (status, answer) = put(address, &format!("{WORK}?token={token}"), &body);
    assert_eq!(status, 200, "{answer}");
    let target = json!({"path": WORK, "ttl_s": 3600});
    let links = format!("/.outrigger/links?token={token}");
    let (status, link) = call(address, "POST", &links, Some(target));
    assert_eq!(status, 200, "{link}");
    let secret = link["token"].as_str().expect("a token");
    let cutter = Cutter::start(Some(address), Vec::new());
    let url = format!("ws://{}{WORK}?token={secret}", cutter.address);
    let mut viewer = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["attach", "--viewer", &url])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut ready = [0; 7];
    let stdout = viewer.stdout.as_mut().expect("piped");
    std::io::Read::read_exact(stdout, &mut ready).expect("output");
    cutter.cut();
    let mut writer = Wire::connect(address, &format!("{WORK}?token={token}"));
    eventually("the viewer has tried again", || cutter.accepted() >= 2);
    writer.send_frame(BINARY, b"hello\n\x04");
    read_until(&mut writer, "never");
    let output = viewer.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    std::fs::remove_file(&file).expect("it is there");
}

/// The bug: the id was put below the first half of the path, so that it became a name, and the server started its command again.
#[cfg(feature = "client")]
#[test]
fn a_client_of_the_name_by_name_comes_back_to_its_process() {
    use crate::common::cutter::Cutter;

    let (_server, address) = processes(&["--sessions", "cat", "--no-resume"]);
    let cutter = Cutter::start(Some(address), Vec::new());
    let url = format!("ws://{}/process/by-name/by-name/attach", cutter.address);
    let mut client = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["attach", &url])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    let known = || call(address, "GET", "/process", None).1["processes"].clone();
    // What it types shows that the connection is open on its side, too.
    let keys = client.stdin.as_mut().expect("piped");
    std::io::Write::write_all(keys, b"hello\n").expect("it reads");
    let screen = || call(address, "GET", "/process/by-name/by-name/screen", None).1;
    eventually("it is attached", || {
        screen()["lines"].to_string().contains("hello")
    });
    cutter.cut();
    let errors = std::io::BufReader::new(client.stderr.take().expect("piped"));
    let mut lines = std::io::BufRead::lines(errors).map_while(Result::ok);
    assert!(lines.any(|line| line.contains("connected again")));
    let count = known().as_array().map(Vec::len);
    drop(client.stdin.take());
    client.kill().expect("it runs");
    client.wait().expect("it ends");
    assert_eq!(count, Some(1), "one process");
}
