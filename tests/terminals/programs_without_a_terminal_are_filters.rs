//! Programs on pipes: their input ends, and `attach` carries their standard streams.

use std::net::SocketAddr;

use crate::common::program::Program;
use crate::common::{BINARY, CLOSE, TEXT, Wire, call};
use crate::processes;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

fn decode(value: &Value) -> String {
    let bytes = BASE64_STANDARD.decode(value.as_str().expect("base64"));
    String::from_utf8(bytes.expect("base64")).expect("UTF-8")
}

/// Starts a process on pipes, and returns its path.
fn spawn(address: SocketAddr, body: &Value) -> String {
    let (status, answer) = call(address, "POST", "/process/spawn", Some(body.clone()));
    assert_eq!(status, 200, "{answer}");
    format!("/process/{}", answer["process_id"].as_str().expect("an id"))
}

fn script(text: &str) -> Value {
    json!({"command": "sh", "args": ["-c", text]})
}

fn stdin(address: SocketAddr, process: &str, body: Value) -> (u16, Value) {
    call(address, "POST", &format!("{process}/stdin"), Some(body))
}

/// Reads until CLOSE: standard output, standard error, and the kinds of events with the exit code at last.
fn read_all(wire: &mut Wire) -> (Vec<u8>, String, Vec<String>) {
    let (mut output, mut errors, mut kinds) = (Vec::new(), String::new(), Vec::new());
    loop {
        let frame = wire.read_frame();
        match frame.opcode {
            BINARY => output.extend(frame.payload),
            TEXT => {
                let event: Value = serde_json::from_slice(&frame.payload).expect("JSON");
                match event["type"].as_str().expect("a type") {
                    "stderr" => errors.push_str(&decode(&event["data_b64"])),
                    "exit" => kinds.push(format!("exit {}", event["exitCode"])),
                    kind => kinds.push(kind.to_owned()),
                }
            }
            CLOSE => return (output, errors, kinds),
            _ => {}
        }
    }
}

/// The bug: a process on pipes never read the end of its input, so that no filter worked.
#[test]
fn input_ends_in_every_call_that_takes_input() {
    let (_server, address) = processes(&[]);
    let data = BASE64_STANDARD.encode("b\nc\na\n");
    let body = json!({"command": "sort", "stdin_b64": data});
    let (status, answer) = call(address, "POST", "/process/exec", Some(body.clone()));
    assert_eq!(
        (status, &*decode(&answer["stdout_b64"])),
        (200, "a\nb\nc\n")
    );
    let mut wire = Wire::connect(address, &format!("{}/attach", spawn(address, &body)));
    let (output, _, kinds) = read_all(&mut wire);
    assert_eq!(output, b"a\nb\nc\n");
    assert_eq!(kinds, ["role", "clients", "exit 0"]);

    let process = spawn(address, &json!({"command": "sort"}));
    assert_eq!(stdin(address, &process, json!({})).0, 400);
    assert_eq!(stdin(address, &process, json!({"data_b64": data})).0, 200);
    let last = json!({"data_b64": BASE64_STANDARD.encode("0\n"), "eof": true});
    assert_eq!(
        stdin(address, &process, last).1,
        json!({"written_bytes": 2})
    );
    let mut wire = Wire::connect(address, &format!("{process}/attach"));
    assert_eq!(read_all(&mut wire).0, b"0\na\nb\nc\n");
    // The end alone, and input after the end.
    let process = spawn(address, &script("cat; sleep 1000"));
    assert_eq!(stdin(address, &process, json!({"eof": true})).0, 200);
    let (status, answer) = stdin(address, &process, json!({"data_b64": ""}));
    assert_eq!(
        (status, &answer["message"]),
        (400, &json!("process has closed its input"))
    );
}

#[test]
fn a_terminal_has_no_end_of_input() {
    let (_server, address) = processes(&[]);
    let body = json!({"command": "cat", "allocate_tty": true});
    let process = spawn(address, &body);
    assert_eq!(stdin(address, &process, json!({"eof": true})).0, 400);
    let body = json!({"command": "cat", "allocate_tty": true, "stdin_b64": ""});
    for path in ["/process/spawn", "/process/exec"] {
        assert_eq!(
            call(address, "POST", path, Some(body.clone())).0,
            400,
            "{path}"
        );
    }
    // The message has no effect.
    let mut wire = Wire::attach(address, &format!("{process}/attach"));
    wire.send_frame(TEXT, br#"{"type":"eof"}"#);
    wire.send_frame(BINARY, b"still here\n\x04");
    let (output, _, kinds) = read_all(&mut wire);
    assert!(String::from_utf8_lossy(&output).contains("still here"));
    assert_eq!(kinds, ["exit 0"]);
}

#[test]
fn standard_error_is_apart_unless_the_client_merges_it() {
    let (_server, address) = processes(&[]);
    let process = spawn(
        address,
        &script("read x; echo out $x; echo err >&2; exit 3"),
    );
    let mut wire = Wire::connect(address, &format!("{process}/attach"));
    wire.send_frame(BINARY, b"5\n");
    let (output, errors, kinds) = read_all(&mut wire);
    assert_eq!((&*output, &*errors), (&b"out 5\n"[..], "err\n"));
    assert_eq!(kinds.last().map(String::as_str), Some("exit 3"));
    let mut wire = Wire::connect(address, &format!("{process}/attach?stderr=merge"));
    let (output, errors, _) = read_all(&mut wire);
    assert_eq!((output.len(), &*errors), (10, ""));
    // A client that comes back continues at its byte.
    let mut wire = Wire::connect(address, &format!("{process}/attach?stderr=merge&since=8"));
    assert_eq!(read_all(&mut wire).0.len(), 2);
}

#[test]
fn a_slow_reader_gets_every_byte_of_a_filter() {
    let (_server, address) = processes(&[]);
    let process = spawn(address, &json!({"command": "cat"}));
    let mut wire = Wire::connect(address, &format!("{process}/attach"));
    let piece: Vec<u8> = (0..60_000_u32)
        .flat_map(|at| (at % 251).to_le_bytes())
        .collect();
    let stream = wire.stream.try_clone().expect("a socket");
    let sent = piece.clone();
    let sender = std::thread::spawn(move || {
        let mut wire = Wire { stream };
        (0..100).for_each(|_| wire.send_frame(BINARY, &sent));
        wire.send_frame(TEXT, br#"{"type":"eof"}"#);
    });
    // 24 MB are more than the scrollback and all buffers, so the program has to wait for this reader.
    let (output, _, kinds) = read_all(&mut wire);
    sender.join().expect("all is sent");
    assert_eq!(output.len(), 100 * piece.len());
    assert!(output.chunks(piece.len()).all(|chunk| chunk == piece));
    assert_eq!(kinds.last().map(String::as_str), Some("exit 0"));
}

#[cfg(feature = "client")]
mod with_the_client {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    /// Pipes input through `outrigger attach`, and reads its output in small pieces.
    fn attach(url: &str, input: Vec<u8>) -> (Vec<u8>, String, Option<i32>) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_outrigger"))
            .args(["attach", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut stdin = child.stdin.take().expect("piped");
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let mut stdout = child.stdout.take().expect("piped");
        let (mut output, mut buffer) = (Vec::new(), [0; 777]);
        loop {
            match stdout.read(&mut buffer).expect("a pipe") {
                0 => break,
                count => output.extend_from_slice(&buffer[..count]),
            }
            std::thread::yield_now();
        }
        let mut errors = String::new();
        let mut stderr = child.stderr.take().expect("piped");
        stderr.read_to_string(&mut errors).expect("UTF-8");
        writer.join().expect("all is written");
        (output, errors, child.wait().expect("it ends").code())
    }

    #[test]
    fn a_filter_behind_a_server_works_as_one_of_this_machine() {
        let (_server, address) = processes(&[]);
        let mut lines: Vec<String> = (0..100_000)
            .map(|at| format!("{}\n", at * 7919 % 100_003))
            .collect();
        let input = lines.concat().into_bytes();
        lines.sort();
        let body = json!({"command": "sort", "env": {"LC_ALL": "C"}});
        let url = |process: &str| format!("ws://{address}{process}/attach");
        let (output, errors, code) = attach(&url(&spawn(address, &body)), input.clone());
        assert_eq!((code, &*errors), (Some(0), ""));
        assert!(output == lines.concat().into_bytes());
        let body = script("wc -c; echo done >&2; exit 9");
        let (output, errors, code) = attach(&url(&spawn(address, &body)), input.clone());
        let count: usize = String::from_utf8_lossy(&output)
            .trim()
            .parse()
            .expect("a number");
        assert_eq!((count, &*errors, code), (input.len(), "done\n", Some(9)));
        // A program that reads no input, and no input at all.
        let (output, _, code) = attach(&url(&spawn(address, &script("echo hi"))), input);
        assert_eq!((&*output, code), (&b"hi\n"[..], Some(0)));
        let (output, _, code) = attach(&url(&spawn(address, &script("cat; exit 4"))), Vec::new());
        assert_eq!((&*output, code), (&b""[..], Some(4)));
    }

    /// The bug: the end of an empty input counted as input that may be lost, so that a client which only reads did not survive a cut.
    #[test]
    fn a_client_that_has_sent_no_byte_survives_a_cut() {
        use crate::common::cutter::Cutter;
        use crate::common::traces::eventually;

        let server = Program::start(&["processes", "--no-resume"]);
        let address = server.address();
        let process = spawn(
            address,
            &script("cat; echo first; read x; sleep 1; echo last; exit 5"),
        );
        let cutter = Cutter::start(Some(address), Vec::new());
        let url = format!("ws://{}{process}/attach", cutter.address);
        let mut child = Command::new(env!("CARGO_BIN_EXE_outrigger"))
            .args(["attach", &url])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut first = [0; 6];
        let mut stdout = child.stdout.take().expect("piped");
        stdout.read_exact(&mut first).expect("output");
        cutter.cut();
        eventually("the client has tried again or ended", || {
            cutter.accepted() == 2 || child.try_wait().expect("ours").is_some()
        });
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).expect("UTF-8");
        let status = child.wait().expect("it ends");
        assert_eq!((status.code(), &*rest), (Some(5), "last\n"));
    }
}
