//! `outrigger processes`: spawn, watch, signal, attach, and their errors.

use std::net::SocketAddr;

use crate::common::program::Program;
use crate::common::traces::{TraceFile, eventually, expect_gone};
use crate::common::{BINARY, CLOSE, TEXT, Wire, call, request};
use crate::processes;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::{Value, json};

fn script(text: &str) -> Value {
    json!({"command": "sh", "args": ["-c", text], "allocate_tty": true})
}

/// Starts a process and returns its id and pid.
fn spawn(address: SocketAddr, body: Value) -> (String, Pid) {
    let (status, answer) = call(address, "POST", "/process/spawn", Some(body));
    assert_eq!(status, 200, "{answer}");
    let id = answer["process_id"].as_str().expect("an id").to_owned();
    assert!(
        answer["started_at"]
            .as_str()
            .expect("a time")
            .ends_with('Z')
    );
    let pid = answer["pid"].as_i64().expect("a pid") as i32;
    (id, Pid::from_raw(pid).expect("a pid"))
}

fn attach(address: SocketAddr, id: &str, query: &str) -> Wire {
    Wire::attach(address, &format!("/process/{id}/attach{query}"))
}

/// The answer to an attach request that is rejected.
fn rejected(address: SocketAddr, id: &str, query: &str) -> (String, Value) {
    let mut wire = Wire::open(address);
    wire.send(&request(&format!("/process/{id}/attach{query}")));
    let (head, body) = wire.read_response();
    assert!(
        head.contains("\r\nContent-Type: application/json\r\n"),
        "{head}"
    );
    assert_eq!(body["type"], "error");
    (head[9..12].to_owned(), body["message"].clone())
}

/// Reads until CLOSE: the output, the events except those about other clients, and the close code.
fn read_all(wire: &mut Wire) -> (Vec<u8>, Vec<String>, u16) {
    let (mut output, mut events) = (Vec::new(), Vec::new());
    loop {
        let frame = wire.read_frame();
        match frame.opcode {
            BINARY => output.extend(frame.payload),
            TEXT if frame.payload.starts_with(br#"{"type":"clients""#) => {}
            TEXT => events.push(String::from_utf8(frame.payload).expect("UTF-8")),
            CLOSE => {
                let code = u16::from_be_bytes([frame.payload[0], frame.payload[1]]);
                wire.send_close(code);
                return (output, events, code);
            }
            _ => {}
        }
    }
}

fn state(address: SocketAddr, id: &str) -> Value {
    let path = format!("/process/{id}/status?details=1");
    let (status, answer) = call(address, "GET", &path, None);
    assert_eq!(status, 200, "{answer}");
    answer
}

fn wait_for_exit(address: SocketAddr, id: &str) -> Value {
    let mut last = Value::Null;
    eventually("the process ends", || {
        last = state(address, id);
        last["state"] == "exited"
    });
    last
}

#[test]
fn a_process_is_spawned_watched_and_killed() {
    let (_server, address) = processes(&[]);
    let (id, _) = spawn(address, script("sleep 1000"));
    // A process that has just started may have no memory yet.
    eventually("it runs", || {
        let running = state(address, &id);
        assert_eq!(running["state"], "running");
        assert!(running["exit_code"].is_null(), "{running}");
        running["mem_bytes"].as_u64() > Some(0)
    });
    let (_, list) = call(address, "GET", "/process", None);
    assert_eq!(list["processes"][0]["process_id"], json!(id));

    let mut wire = attach(address, &id, "");
    let (status, answer) = call(
        address,
        "POST",
        &format!("/process/{id}/kill"),
        Some(json!({"signal": "TERM"})),
    );
    assert_eq!((status, answer), (200, json!({"ok": true})));
    let (_, events, code) = read_all(&mut wire);
    assert_eq!(
        events,
        [r#"{"type":"exit","exitCode":143,"signal":"SIGTERM"}"#]
    );
    assert_eq!(code, 1000);
    let exited = state(address, &id);
    assert_eq!(
        (&exited["state"], &exited["exit_code"], &exited["signal"]),
        (&json!("exited"), &json!(143), &json!("SIGTERM"))
    );
}

#[test]
fn exec_answers_with_all_the_output() {
    let (_server, address) = processes(&[]);
    let run = |body: Value| {
        let (status, answer) = call(address, "POST", "/process/exec?details=1", Some(body));
        assert_eq!(status, 200, "{answer}");
        let decode = |name: &str| {
            let text = answer[name].as_str().expect("base64");
            String::from_utf8(BASE64_STANDARD.decode(text).expect("base64")).expect("UTF-8")
        };
        (
            answer["exit_code"].clone(),
            decode("stdout_b64"),
            decode("stderr_b64"),
            answer,
        )
    };
    let piped = |text: &str| json!({"command": "sh", "args": ["-c", text]});
    let (code, stdout, stderr, _) = run(piped("echo out; echo err >&2; exit 5"));
    assert_eq!((code, &*stdout, &*stderr), (json!(5), "out\n", "err\n"));
    // Input is empty, and variables and directory are those of the call.
    let mut body = piped("cat; echo $NAME; pwd");
    body["env"] = json!({"NAME": "value"});
    body["cwd"] = json!("/");
    assert_eq!(run(body).1, "value\n/\n");
    let (_, stdout, _, _) = run(piped("head -c 3000000 /dev/zero | tr '\\0' x"));
    assert_eq!(stdout.len(), 3_000_000);
    let mut body = piped("echo begun; sleep 1000");
    body["timeout_sec"] = json!(0.2);
    let (code, stdout, _, answer) = run(body);
    assert_eq!(
        (code, &*stdout, &answer["timed_out"]),
        (json!(137), "begun\n", &json!(true))
    );
    assert_eq!(
        run(script("test -t 0 && test -t 1 && echo yes")).1,
        "yes\r\n"
    );
    // The answer does not wait for a background process that holds the output open.
    assert_eq!(run(piped("sleep 1000 & echo hi")).1, "hi\n");
    // It is not in the list of processes.
    assert_eq!(
        call(address, "GET", "/process", None).1,
        json!({"processes": []})
    );
}

/// The bug: a command that does not exist was the server's fault (500), so clients that repeat such calls tried it again.
#[test]
fn a_command_that_cannot_be_executed_is_the_fault_of_the_caller() {
    let (_server, address) = processes(&[]);
    let file = std::env::temp_dir().join(format!("outrigger-no-program-{}", std::process::id()));
    std::fs::write(&file, "text").expect("a file");
    let text = file.display().to_string();
    let below = format!("{text}/program");
    for (command, says) in [
        ("/no/such", "No such file"),
        ("no-such-program", "No such file"),
        ("/", "Permission denied"),
        (&text, "Permission denied"),
        (&below, "Not a directory"),
    ] {
        for (call_name, tty) in [("exec", false), ("spawn", false), ("spawn", true)] {
            let body = json!({"command": command, "allocate_tty": tty});
            let path = format!("/process/{call_name}");
            let (status, answer) = call(address, "POST", &path, Some(body));
            let message = answer["message"].as_str().expect("a message");
            assert!(
                status == 400 && message.contains(says),
                "{call_name} {command}: {status} {message}"
            );
        }
    }
    for cwd in ["/no/such", &text] {
        let body = json!({"command": "true", "cwd": cwd});
        let (status, answer) = call(address, "POST", "/process/exec", Some(body));
        let message = answer["message"].as_str().expect("a message");
        assert!(
            status == 400 && message.contains("\"cwd\""),
            "{status} {message}"
        );
    }
    std::fs::remove_file(&file).expect("the file");
}

#[test]
fn the_process_of_an_exec_is_killed_when_its_caller_disconnects() {
    let (_server, address) = processes(&[]);
    let pids = TraceFile::new("exec-left");
    let text = format!(
        "echo $$ >>{0}; sleep 1000 & echo $! >>{0}; wait",
        pids.path()
    );
    let body = json!({"command": "sh", "args": ["-c", text]}).to_string();
    let mut wire = Wire::open(address);
    let head = format!(
        "POST /process/exec HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    wire.send(head.as_bytes());
    wire.send(body.as_bytes());
    let left = pids.pids(2);
    drop(wire);
    left.into_iter().for_each(expect_gone);
}

#[test]
fn output_is_kept_while_no_client_is_attached() {
    let (_server, address) = processes(&["--scrollback", "100000"]);
    let (id, _) = spawn(
        address,
        script("stty raw; i=0; while [ $i -lt 50000 ]; do echo $i; i=$((i+1)); done; exit 6"),
    );
    wait_for_exit(address, &id);
    let all: String = (0..50_000).map(|i| format!("{i}\n")).collect();
    let all = all.as_bytes();
    let mut wire = attach(address, &id, "");
    let (output, events, code) = read_all(&mut wire);
    let start = all.len() - 100_000;
    assert_eq!(
        events,
        [
            json!({"type": "gap", "from": 0, "to": start})
                .to_string()
                .replace(
                    &format!(r#"{{"from":0,"to":{start},"type":"gap"}}"#),
                    &format!(r#"{{"type":"gap","from":0,"to":{start}}}"#)
                ),
            r#"{"type":"exit","exitCode":6}"#.to_owned()
        ]
    );
    assert!(output == all[start..], "{} bytes", output.len());
    assert_eq!(code, 1000);
    let since = all.len() - 10;
    let (output, events, _) = read_all(&mut attach(address, &id, &format!("?since={since}")));
    assert_eq!((&*output, events.len()), (&all[since..], 1), "no gap");
    let beyond = format!("?since={}", all.len() + 1);
    assert_eq!(rejected(address, &id, &beyond).0, "400");
}

#[test]
fn there_is_one_writer_and_any_number_of_viewers() {
    let (_server, address) = processes(&[]);
    let (id, _) = spawn(
        address,
        script("stty -echo; echo ready; while read line; do echo \"<$line>\"; done"),
    );
    let until = |wire: &mut Wire, text: &str| {
        let mut output = String::new();
        while !output.contains(text) {
            output.push_str(&String::from_utf8_lossy(&wire.read_frame().payload));
        }
    };
    let mut writer = attach(address, &id, "");
    until(&mut writer, "ready");
    let why = json!("process already has an active attach session");
    assert_eq!(rejected(address, &id, ""), ("409".to_owned(), why.clone()));
    let mut viewers: Vec<_> = (0..3)
        .map(|_| attach(address, &id, "?mode=viewer"))
        .collect();
    viewers[0].send_frame(BINARY, b"not me\n");
    writer.send_frame(BINARY, b"hello\n");
    until(&mut writer, "<hello>");
    for viewer in &mut viewers {
        until(viewer, "ready\r\n<hello>");
    }
    // The next writer is accepted directly after the close.
    writer.send_close(1000);
    assert_eq!(writer.read_close().0, 1000);
    let mut second = attach(address, &id, "");
    until(&mut second, "<hello>");
    let mut third = attach(address, &id, "?takeover=1");
    assert_eq!(second.read_close(), (4001, "Taken over".to_owned()));
    second.send_frame(BINARY, b"too late\n");
    third.send_frame(BINARY, b"mine\n");
    until(&mut third, "<mine>");
    assert_eq!(rejected(address, &id, "").1, why);
    third.reset();
    // A broken connection is removed as soon as the server notices.
    eventually("the place is free", || {
        let mut wire = Wire::open(address);
        wire.send(&request(&format!("/process/{id}/attach")));
        wire.read_head().starts_with("HTTP/1.1 101 ")
    });
}

#[test]
fn an_attach_request_can_set_the_terminal_size() {
    let (_server, address) = processes(&[]);
    let (id, _) = spawn(address, script("read line; stty size"));
    assert_eq!(rejected(address, &id, "?rows=0").0, "400");
    let mut wire = attach(address, &id, "?rows=33&cols=99");
    wire.send_frame(BINARY, b"\n");
    let (output, _, _) = read_all(&mut wire);
    assert!(
        String::from_utf8_lossy(&output).contains("33 99"),
        "{output:?}"
    );
}

/// The bug: the line about a size that is out of range did not say which.
#[test]
fn a_resize_that_cannot_be_applied_is_logged_with_its_reason() {
    let (mut server, address) = processes(&[]);
    let (id, _) = spawn(address, script("read line; stty size"));
    let mut wire = attach(address, &id, "?rows=33&cols=99");
    wire.send_frame(TEXT, br#"{"type":"resize","rows":0,"cols":70000}"#);
    wire.send_frame(BINARY, b"\n");
    let (output, _, _) = read_all(&mut wire);
    assert!(String::from_utf8_lossy(&output).contains("33 99"));
    server.signal(Signal::TERM);
    let (_, log) = server.wait_and_read_log();
    let says = r#"resize rejected: rows=0 cols=70000 reason="rows and cols must be whole numbers from 1 to 65535""#;
    let line = log.lines().find(|line| line.contains(says));
    assert!(line.is_some_and(|line| line.contains("WARN")), "{log}");
}

#[test]
fn only_one_of_many_concurrent_writers_is_accepted() {
    let (_server, address) = processes(&[]);
    let (id, _) = spawn(address, script("sleep 1000"));
    for _ in 0..5 {
        let mut wires: Vec<_> = (0..50).map(|_| Wire::open(address)).collect();
        let head = request(&format!("/process/{id}/attach"));
        wires.iter_mut().for_each(|wire| wire.send(&head));
        let heads: Vec<_> = wires.iter_mut().map(Wire::read_head).collect();
        let count = |status: &str| heads.iter().filter(|head| head.contains(status)).count();
        assert_eq!((count(" 101 "), count(" 409 ")), (1, 49));
        let winner = heads
            .iter()
            .position(|head| head.contains(" 101 "))
            .expect("one");
        wires[winner].send_close(1000);
        wires[winner].read_close();
    }
}

#[test]
fn a_stream_of_events_has_both_outputs_and_the_exit() {
    let (_server, address) = processes(&[]);
    let (id, _) = spawn(
        address,
        json!({"command": "sh", "args": ["-c", "read go; echo out; echo err >&2; exit 9"]}),
    );
    let mut wire = Wire::open(address);
    wire.send(
        format!("GET /process/{id}/stdout/stream HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes(),
    );
    let head = wire.read_head();
    assert!(
        head.contains("\r\nContent-Type: text/event-stream\r\n"),
        "{head}"
    );
    let data = BASE64_STANDARD.encode("go\n");
    let (status, answer) = call(
        address,
        "POST",
        &format!("/process/{id}/stdin"),
        Some(json!({"data_b64": data})),
    );
    assert_eq!((status, &answer["written_bytes"]), (200, &json!(3)));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut wire.stream, &mut text).expect("an end");
    let events: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).expect("JSON"))
        .collect();
    let of = |stream: &str| {
        let data = events.iter().filter(|event| event["stream"] == stream);
        let data = data.map(|event| event["data_b64"].as_str().expect("base64"));
        data.flat_map(|data| BASE64_STANDARD.decode(data).expect("base64"))
            .collect::<Vec<u8>>()
    };
    assert_eq!(
        (&*of("stdout"), &*of("stderr")),
        (&b"out\n"[..], &b"err\n"[..])
    );
    assert_eq!(
        events.last(),
        Some(&json!({"event": "exit", "exit_code": 9}))
    );
    // A reader that reconnects continues after the last event that it has seen.
    let mut wire = Wire::open(address);
    wire.send(
        format!("GET /process/{id}/stdout/stream HTTP/1.0\r\nHost: localhost\r\nLast-Event-ID: 8\r\n\r\n").as_bytes(),
    );
    wire.read_head();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut wire.stream, &mut rest).expect("an end");
    assert_eq!(rest, "data: {\"event\":\"exit\",\"exit_code\":9}\n\n");
    wire = Wire::open(address);
    wire.send(
        format!(
            "HEAD /process/{id}/stdout/stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        .as_bytes(),
    );
    assert!(wire.read_head().starts_with("HTTP/1.1 200 "));
    wire.expect_end();
}

#[test]
fn every_error_has_its_status_and_is_json() {
    let (_server, address) = processes(&[]);
    let (id, _) = spawn(address, json!({"command": "true"}));
    wait_for_exit(address, &id);
    let unknown = "00000000-0000-4000-8000-000000000000";
    let at = |id: &str, call: &str| format!("/process/{id}/{call}");
    for (method, path, body, status, says) in [
        ("GET", at(unknown, "status"), None, 404, "process not found"),
        ("GET", at("nonsense", "status"), None, 400, "not a UUID"),
        (
            "GET",
            at(&id.to_uppercase().replace('-', ""), "status"),
            None,
            400,
            "not a UUID",
        ),
        ("GET", at(unknown, "attach"), None, 404, "process not found"),
        ("GET", "/process/spawn".into(), None, 405, "methods: POST"),
        (
            "POST",
            "/process".into(),
            Some(json!({})),
            405,
            "methods: GET",
        ),
        ("GET", "/process/".into(), None, 404, "nothing is served"),
        ("GET", "/processes".into(), None, 404, "nothing is served"),
        ("POST", "/process/spawn".into(), None, 400, "JSON body"),
        (
            "POST",
            "/process/spawn".into(),
            Some(json!([])),
            400,
            "a JSON object",
        ),
        (
            "POST",
            "/process/spawn".into(),
            Some(json!({})),
            400,
            "command",
        ),
        (
            "POST",
            at(&id, "kill"),
            Some(json!({"signal": "TERM"})),
            404,
            "process not running",
        ),
        (
            "POST",
            at(&id, "kill"),
            Some(json!({"signal": "USR1"})),
            400,
            "signal",
        ),
        (
            "POST",
            at(&id, "stdin"),
            Some(json!({"data_b64": "eA=="})),
            404,
            "process not running",
        ),
        (
            "POST",
            at(&id, "stdin"),
            Some(json!({"data_b64": "?"})),
            400,
            "base64",
        ),
        (
            "POST",
            at(&id, "resize"),
            Some(json!({"rows": 24})),
            400,
            "cols",
        ),
        (
            "POST",
            at(unknown, "resize"),
            Some(json!({"rows": 24, "cols": 80})),
            404,
            "process not found",
        ),
    ] {
        let (got, answer) = call(address, method, &path, body);
        let message = answer["message"].as_str().expect("a message");
        assert!(
            got == status && message.contains(says),
            "{method} {path}: {got} {message}"
        );
    }
    for call_of in ["spawn", "exec"] {
        let body = json!({"command": "/no/such"});
        let (_, answer) = call(address, "POST", &format!("/process/{call_of}"), Some(body));
        let message = answer["message"].as_str().expect("the reason");
        assert!(message.contains("No such file"), "{message}");
    }
    let mut wire = Wire::open(address);
    wire.send(b"POST /process/spawn HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
    assert!(wire.read_response().0.starts_with("HTTP/1.1 415 "));
    // Only the body of `stdin` may be long.
    let id = spawn(address, json!({"command": "sleep", "args": ["1000"]})).0;
    for (path, length, status) in [
        ("/process/spawn".to_owned(), (1 << 20) + 1, "413"),
        ("/process/exec".to_owned(), (1 << 20) + 1, "413"),
        (at(&id, "kill"), (1 << 20) + 1, "413"),
        (at(&id, "stdin"), (16 << 20) + 1, "413"),
        (at(&id, "stdin"), 16 << 20, "100"),
    ] {
        let mut wire = Wire::open(address);
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        );
        wire.send(head.as_bytes());
        let head = wire.read_head();
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path}: {head}"
        );
    }
}

#[test]
fn input_that_a_process_does_not_take_is_rejected() {
    let (_server, address) = processes(&[]);
    let (id, _) = spawn(
        address,
        json!({"command": "sh", "args": ["-c", "exec <&-; echo closed; sleep 1000"]}),
    );
    let mut wire = Wire::open(address);
    wire.send(
        format!("GET /process/{id}/stdout/stream HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes(),
    );
    wire.read_head();
    wire.read_exact(20);
    let path = format!("/process/{id}/stdin");
    let (status, answer) = call(address, "POST", &path, Some(json!({"data_b64": "eA=="})));
    assert_eq!(
        (status, &answer["message"]),
        (400, &json!("process has closed its input"))
    );

    let (id, _) = spawn(address, json!({"command": "sleep", "args": ["1000"]}));
    let path = format!("/process/{id}/stdin");
    let megabyte = BASE64_STANDARD.encode(vec![b'x'; 1 << 20]);
    assert_eq!(
        call(address, "POST", &path, Some(json!({"data_b64": megabyte}))).0,
        200
    );
    let (status, answer) = call(address, "POST", &path, Some(json!({"data_b64": "eA=="})));
    assert_eq!(
        (status, &answer["message"]),
        (503, &json!("process does not read its input"))
    );
}

#[test]
fn exited_processes_expire_and_running_ones_are_limited() {
    let (_server, address) = processes(&["--retention", "100ms", "--max-processes", "2"]);
    let (id, _) = spawn(address, json!({"command": "true"}));
    eventually("it is forgotten", || {
        call(address, "GET", &format!("/process/{id}/status"), None).0 == 404
    });
    spawn(address, json!({"command": "sleep", "args": ["1000"]}));
    spawn(address, json!({"command": "sleep", "args": ["1000"]}));
    let (status, answer) = call(
        address,
        "POST",
        "/process/spawn",
        Some(json!({"command": "true"})),
    );
    assert_eq!(
        (status, &answer["message"]),
        (503, &json!("too many processes"))
    );
}

#[test]
fn a_process_outlives_its_client_but_not_the_server() {
    let (mut server, address) = processes(&[]);
    let (id, pid) = spawn(
        address,
        script("trap '' HUP; echo ready; read line; sleep 1000"),
    );
    let mut wire = attach(address, &id, "");
    wire.read_frame();
    wire.reset();
    eventually("the writer is gone", || {
        call(address, "GET", "/process", None).1["processes"][0]["attached"] == false
    });
    assert!(test_kill_process(pid).is_ok());
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    expect_gone(pid);
}

/// The bug: answers had fields that the schema of the kernel-images API forbids (`signal`, `timed_out`, `truncated`), calls
/// to exited processes got a status that it does not have, and streams did not state the type of their events.
#[test]
fn answers_have_only_the_fields_of_the_kernel_images_api() {
    let (_server, address) = processes(&[]);
    let expect = |call_and_answer: (u16, Value), fields: &[&str]| {
        let (status, answer) = call_and_answer;
        assert_eq!(status, 200, "{answer}");
        let object = answer.as_object().expect("an object");
        let mut names: Vec<&str> = object.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, fields);
        answer
    };
    let post = |path: &str, body: Value| call(address, "POST", path, Some(body));
    let sleep = json!({"command": "sleep", "args": ["1000"]});
    let spawned = expect(
        post("/process/spawn", sleep.clone()),
        &["pid", "process_id", "started_at"],
    );
    let id = spawned["process_id"].as_str().expect("an id");
    let path = |call: &str| format!("/process/{id}/{call}");
    let status = ["cpu_pct", "exit_code", "mem_bytes", "state"];
    let running = expect(call(address, "GET", &path("status"), None), &status);
    assert_eq!(
        (&running["state"], &running["exit_code"]),
        (&json!("running"), &json!(null))
    );
    let input = json!({"data_b64": "eA=="});
    expect(post(&path("stdin"), input), &["written_bytes"]);
    let mut stream = Wire::open(address);
    let request = format!(
        "GET {} HTTP/1.0\r\nHost: localhost\r\n\r\n",
        path("stdout/stream")
    );
    stream.send(request.as_bytes());
    let head = stream.read_head();
    assert!(
        head.contains("\r\nX-SSE-Content-Type: application/json\r\n"),
        "{head}"
    );
    expect(post(&path("kill"), json!({"signal": "KILL"})), &["ok"]);
    let mut events = String::new();
    std::io::Read::read_to_string(&mut stream.stream, &mut events).expect("an end");
    assert_eq!(events, "data: {\"event\":\"exit\",\"exit_code\":137}\n\n");
    let exited = expect(call(address, "GET", &path("status"), None), &status);
    assert_eq!(
        (&exited["state"], &exited["exit_code"]),
        (&json!("exited"), &json!(137))
    );
    let more = call(address, "GET", &path("status?details=1"), None);
    let status = [
        "cpu_pct",
        "exit_code",
        "mem_bytes",
        "signal",
        "state",
        "timed_out",
    ];
    assert_eq!(expect(more, &status)["signal"], "SIGKILL");

    let mut killed = sleep;
    killed["timeout_sec"] = json!(0.1);
    let fields = ["duration_ms", "exit_code", "stderr_b64", "stdout_b64"];
    let executed = expect(post("/process/exec", killed), &fields);
    assert_eq!(executed["exit_code"], 137);
    assert_eq!(
        post("/process/exec?details=2", json!({"command": "true"})).0,
        400
    );
}

/// The bugs: the limit of each output was `--max-message`, and there was no limit for all calls together. Output over the
/// limit was cut, and the answer was 200.
#[test]
fn exec_limits_the_output_of_a_call_and_of_all_calls() {
    let (_server, address) = processes(&["--max-exec-output", "300000"]);
    let exec = |script: &str, most: usize| {
        let body = json!({"command": "sh", "args": ["-c", script], "max_output_bytes": most});
        let body = body.to_string();
        let mut wire = Wire::open(address);
        wire.send(format!("POST /process/exec HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
        wire.read_response()
    };
    let stdout = |answer: &Value| {
        let text = answer["stdout_b64"].as_str().expect("base64");
        BASE64_STANDARD.decode(text).expect("base64").len()
    };
    let (_, answer) = exec("head -c 1000 /dev/zero", 1000);
    assert_eq!((stdout(&answer), &answer["exit_code"]), (1000, &json!(0)));
    for script in ["yes", "echo begun; yes >&2", "head -c 1001 /dev/zero"] {
        let (head, answer) = exec(script, 1000);
        assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
        let message = answer["message"].as_str().expect("a message");
        assert!(message.contains("more than 1000 bytes"), "{message}");
        assert_eq!(answer.get("stdout_b64"), None, "no part of the output");
    }
    // Output over the total limit is rejected, and its memory is free again.
    for _ in 0..3 {
        let (head, answer) = exec("head -c 290000 /dev/zero; yes >&2", 300_000);
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        let message = answer["message"].as_str().expect("a message");
        assert!(message.contains("exec calls together"), "{message}");
        let (_, answer) = exec("head -c 300000 /dev/zero", 300_000);
        assert_eq!(stdout(&answer), 300_000);
    }
}

/// The bug: all processes that were requested in one turn of the loop were started in that turn.
#[test]
fn processes_that_are_requested_at_once_are_all_started() {
    let (server, address) = processes(&["--max-processes", "60"]);
    let mut wires: Vec<Wire> = (0..60).map(|_| Wire::open(address)).collect();
    for (at, wire) in wires.iter_mut().enumerate() {
        let (path, script) = match at % 2 {
            0 => ("spawn", format!("echo {at}; sleep 1000")),
            _ => ("exec", format!("echo {at}")),
        };
        let body = json!({"command": "sh", "args": ["-c", script]}).to_string();
        wire.send(format!("POST /process/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
    }
    for (at, wire) in wires.iter_mut().enumerate() {
        let (head, answer) = wire.read_response();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        if at % 2 == 1 {
            let output = BASE64_STANDARD.encode(format!("{at}\n"));
            assert_eq!(answer["stdout_b64"], json!(output));
        }
    }
    let (_, list) = call(address, "GET", "/process", None);
    assert_eq!(list["processes"].as_array().map(Vec::len), Some(30));
    drop(server);
}

/// A process is not started if its caller disconnects while the call waits.
#[test]
fn a_waiting_call_is_dropped_when_its_caller_disconnects() {
    let (_server, address) = processes(&["--max-processes", "50"]);
    for _ in 0..3 {
        let wires: Vec<Wire> = (0..50)
            .map(|_| {
                let body = json!({"command": "sleep", "args": ["1000"]}).to_string();
                let mut wire = Wire::open(address);
                wire.send(format!("POST /process/exec HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
                wire
            })
            .collect();
        wires.into_iter().for_each(Wire::reset);
        eventually("all have ended", || {
            call(address, "GET", "/status", None).1["processes"]["running"] == 0
        });
    }
}

/// The bug: programs inherited the server's own inherited descriptors and its raised descriptor limit, and did not get
/// `OUTRIGGER_TOKEN` even if the call set it.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn a_process_inherits_only_its_streams_and_the_original_limit() {
    let script = "exec 7</dev/null 9>/dev/null; ulimit -Sn 300; \
        OUTRIGGER_TOKEN=secret-of-the-server exec \"$0\" processes --listen 127.0.0.1:0";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_outrigger")]);
    let server = Program::spawn(&mut command);
    let address = server.address();
    let exec = |body: Value| {
        let body = body.to_string();
        let mut wire = Wire::open(address);
        wire.send(format!("POST /process/exec HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret-of-the-server\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
        let (head, answer) = wire.read_response();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let output = answer["stdout_b64"].as_str().expect("base64");
        String::from_utf8(BASE64_STANDARD.decode(output).expect("base64")).expect("UTF-8")
    };
    let script = "ulimit -Sn; echo ${OUTRIGGER_TOKEN-none}; exec ls /proc/self/fd";
    let mut body = json!({"command": "sh", "args": ["-c", script]});
    // Descriptor 3 is the open directory.
    assert_eq!(exec(body.clone()), "300\nnone\n0\n1\n2\n3\n");
    body["env"] = json!({"OUTRIGGER_TOKEN": "the callers own"});
    assert_eq!(exec(body.clone()), "300\nthe callers own\n0\n1\n2\n3\n");
    body["allocate_tty"] = json!(true);
    assert_eq!(
        exec(body).split_whitespace().collect::<Vec<_>>(),
        ["300", "the", "callers", "own", "0", "1", "2", "3"]
    );
    // The same holds for the program of `app`.
    let trace = TraceFile::new("inherits");
    let program = format!(
        "ulimit -Sn >{0}; (exec ls /proc/self/fd) >>{0}; cat >&2",
        trace.path()
    );
    let script = "exec 7</dev/null 9>/dev/null; ulimit -Sn 300; exec \"$0\" app --listen 127.0.0.1:0 -- sh -c \"$1\"";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_outrigger"), &program]);
    let _server = Program::spawn(&mut command);
    eventually("it has its descriptors", || {
        trace.text() == "300\n0\n1\n2\n3\n"
    });
}

/// The bug: a process of another user inherited the whole environment of the server, including root's secrets.
#[test]
fn a_process_of_another_user_has_a_login_environment() {
    let script = "SECRET=1 PASSED=2 LC_TEST=3 LANG=C.UTF-8 exec \"$0\" processes --listen 127.0.0.1:0 --no-auth --pass-env PASSED";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_outrigger")]);
    let server = Program::spawn(&mut command);
    let address = server.address();
    let exec = |user: Value| {
        let body = json!({"command": "sh", "args": ["-c", "id -u; id -g; env"], "as_user": user, "env": {"MINE": "4"}});
        call(address, "POST", "/process/exec", Some(body))
    };
    let lines = |answer: &Value| -> Vec<String> {
        let output = answer["stdout_b64"].as_str().expect("base64");
        let output = BASE64_STANDARD.decode(output).expect("base64");
        let output = String::from_utf8(output).expect("UTF-8");
        output.lines().map(str::to_owned).collect()
    };
    let (status, answer) = exec(json!(null));
    assert_eq!(status, 200, "{answer}");
    assert!(
        lines(&answer).contains(&"SECRET=1".to_owned()),
        "the server's own user has the whole environment"
    );
    if !rustix::process::geteuid().is_root() {
        let (status, answer) = exec(json!("nobody"));
        let message = answer["message"].as_str().expect("a message");
        assert!(status == 400 && message.contains("only root"), "{answer}");
        return;
    }
    let (status, answer) = exec(json!("nobody"));
    assert_eq!(status, 200, "{answer}");
    let names: std::collections::BTreeSet<String> = lines(&answer)[2..]
        .iter()
        .filter_map(|line| line.split_once('='))
        // Variables that the shell itself sets.
        .filter(|(name, _)| !matches!(*name, "PWD" | "OLDPWD" | "SHLVL" | "_" | "TERM"))
        .map(|(name, _)| name.to_owned())
        .collect();
    let expected = [
        "HOME",
        "LANG",
        "LC_TEST",
        "LOGNAME",
        "MINE",
        "OUTRIGGER_PROCESS_ID",
        "PASSED",
        "PATH",
        "SHELL",
        "USER",
    ];
    assert_eq!(
        names.iter().collect::<Vec<_>>(),
        expected.iter().collect::<Vec<_>>()
    );
    let (uid, gid) = (lines(&answer)[0].clone(), lines(&answer)[1].clone());
    // The same user by number, with another group.
    let (_, answer) = exec(json!(uid));
    assert_eq!(lines(&answer)[..2], [uid.clone(), gid]);
    let (_, answer) = exec(json!(format!("{uid}:12345")));
    assert_eq!(lines(&answer)[..2], [uid.clone(), "12345".to_owned()]);
    for wrong in ["nobody:wheel", "no such user", "4294967295"] {
        assert_eq!(exec(json!(wrong)).0, 400, "{wrong}");
    }
}

/// The bug: output of a background process after the exit of its parent was lost without a log line.
#[test]
fn output_of_a_background_process_within_the_linger_time_is_not_lost() {
    let (_server, address) = processes(&["--linger", "1000s"]);
    let body = json!({"command": "sh", "args": ["-c", "(sleep 0.5; echo LATE) & exit 4"]});
    let (status, answer) = call(address, "POST", "/process/exec", Some(body));
    assert_eq!((status, &answer["exit_code"]), (200, &json!(4)));
    assert_eq!(
        answer["stdout_b64"],
        json!(BASE64_STANDARD.encode("LATE\n"))
    );

    let (mut server, address) = processes(&["--linger", "0"]);
    let body = json!({"command": "sh", "args": ["-c", "sleep 1000 & echo soon; exit 4"]});
    let (status, answer) = call(address, "POST", "/process/exec", Some(body));
    assert_eq!((status, &answer["exit_code"]), (200, &json!(4)));
    assert_eq!(
        answer["stdout_b64"],
        json!(BASE64_STANDARD.encode("soon\n"))
    );
    server.signal(Signal::TERM);
    let (_, log) = server.wait_and_read_log();
    assert!(
        log.contains("exited with code 4; other processes still hold its output open"),
        "{log}"
    );
}

/// The bug: a stopping server did not answer `exec` calls, and did not send readers the last output and the exit.
#[test]
fn a_stopping_server_answers_exec_and_sends_readers_the_exit() {
    let (mut server, address) = processes(&[]);
    let trace = TraceFile::new("exec-stopping");
    let text = format!("echo $$ >>{}; sleep 0.5; echo done", trace.path());
    let body = json!({"command": "sh", "args": ["-c", text]}).to_string();
    let mut exec = Wire::open(address);
    exec.send(format!("POST /process/exec HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
    trace.pids(1);
    let (id, _) = spawn(
        address,
        script("trap 'echo bye; exit 3' HUP; echo ready; while :; do sleep 0.05; done"),
    );
    let mut writer = attach(address, &id, "");
    writer.read_frame();
    let mut stream = Wire::open(address);
    stream.send(
        format!("GET /process/{id}/stdout/stream HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes(),
    );
    stream.read_head();
    server.signal(Signal::TERM);
    let (output, events, code) = read_all(&mut writer);
    assert!(
        String::from_utf8_lossy(&output).contains("bye\r\n"),
        "{output:?}"
    );
    assert_eq!(events, [r#"{"type":"exit","exitCode":3}"#]);
    assert_eq!(code, 1000);
    let mut events = String::new();
    std::io::Read::read_to_string(&mut stream.stream, &mut events).expect("an end");
    assert!(
        events.ends_with("data: {\"event\":\"exit\",\"exit_code\":3}\n\n"),
        "{events}"
    );
    let (head, answer) = exec.read_response();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(
        answer["stdout_b64"],
        json!(BASE64_STANDARD.encode("done\n"))
    );
    drop((exec, writer, stream));
    assert_eq!(server.wait().code(), Some(0));
}

/// The bug: the connection ended without an answer, so that the caller could not know why.
#[test]
fn exec_that_outlasts_a_stopping_server_is_answered() {
    let (mut server, address) = processes(&["--drain-timeout", "300ms"]);
    let trace = TraceFile::new("exec-outlasts");
    let text = format!("echo $$ >>{}; exec sleep 1000", trace.path());
    let body = json!({"command": "sh", "args": ["-c", text]}).to_string();
    let mut exec = Wire::open(address);
    exec.send(format!("POST /process/exec HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
    let pids = trace.pids(1);
    server.signal(Signal::TERM);
    let (head, answer) = exec.read_response();
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert_eq!(
        answer["message"],
        "the server stopped before the call was answered"
    );
    assert_eq!(server.wait().code(), Some(0));
    expect_gone(pids[0]);
}

/// A copy of `/bin/true` that cannot be executed until its lease is given up, as on a network file system that does not answer.
#[cfg(target_os = "linux")]
fn leased_program(name: &str) -> Option<(std::path::PathBuf, std::fs::File)> {
    use std::os::fd::AsRawFd;

    use nix::libc;

    /// The request that sets the signal with which the owner of a lease is asked for it.
    const F_SETSIG: libc::c_int = 10;

    let path = std::env::temp_dir().join(format!("outrigger-{name}-{}", std::process::id()));
    std::fs::copy("/bin/true", &path).expect("a program");
    let file = std::fs::OpenOptions::new().write(true).open(&path);
    let file = file.expect("the program");
    // SAFETY: the calls take numbers. The signal that asks for the lease is one that is ignored.
    #[allow(unsafe_code)]
    let leased = unsafe {
        libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG);
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
    };
    (leased == 0).then_some((path, file))
}

/// The bug: the whole server waited until the program was executed, for up to 3 s.
#[cfg(target_os = "linux")]
#[test]
fn a_start_is_answered_when_the_program_is_executed_and_nobody_else_waits() {
    use std::time::{Duration, Instant};

    let (_server, address) = processes(&[]);
    let Some((path, lease)) = leased_program("held") else {
        return println!("this file system has no leases");
    };
    let body = json!({"command": path});
    let post = |call: &'static str| {
        let body = body.clone();
        let path = format!("/process/{call}");
        std::thread::spawn(move || {
            let method = if call.contains('/') { "PUT" } else { "POST" };
            self::call(address, method, &path, Some(body))
        })
    };
    let held = ["spawn", "exec", "by-name/held"].map(post);
    // The process of a caller that leaves is started, too.
    let mut wire = Wire::open(address);
    let text = body.to_string();
    wire.send(format!("PUT /process/by-name/left HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}", text.len()).as_bytes());
    let list = || {
        let began = Instant::now();
        let (status, answer) = call(address, "GET", "/process", None);
        assert_eq!(status, 200, "{answer}");
        let took = began.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?}");
        answer["processes"].as_array().map(Vec::len)
    };
    eventually("they have been started", || list() == Some(3));
    drop(wire);
    assert!(held.iter().all(|caller| !caller.is_finished()));
    drop(lease);
    for caller in held {
        let (status, answer) = caller.join().expect("an answer");
        assert_eq!(status, 200, "{answer}");
    }
    eventually("the abandoned process has its name", || {
        let status = call(address, "GET", "/process/by-name/left/status", None);
        status.0 == 200 && status.1["state"] == "exited"
    });
    // A program that cannot be executed at all is given up.
    let (path, _lease) = leased_program("never").expect("as before");
    let body = json!({"command": path});
    let (status, answer) = call(address, "POST", "/process/spawn", Some(body));
    assert_eq!(status, 500, "{answer}");
    let detail = answer["detail"].as_str().expect("a detail");
    assert_eq!(detail, "the program could not be executed within 3s");
    assert_eq!(list(), Some(3));
    let _ = std::fs::remove_file(path);
}
