//! The server replaces its program under terminals and processes: they go on, and their readers miss nothing.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::common::program::Program;
use crate::common::traces::eventually;
use crate::common::{BINARY, CLOSE, TEXT, Wire, call, upgrade};
use crate::processes;
use serde_json::{Value, json};

/// Starts `outrigger processes`, which may be upgraded over TCP.
fn server(options: &[&str]) -> (Program, SocketAddr) {
    processes(&[&["--allow-upgrade"][..], options].concat())
}

fn spawn(address: SocketAddr, script: &str, terminal: bool) -> (String, u64) {
    let body = json!({"command": "sh", "args": ["-c", script], "allocate_tty": terminal});
    let (status, process) = call(address, "POST", "/process/spawn", Some(body));
    assert_eq!(status, 200, "{process}");
    let id = process["process_id"].as_str().expect("an id").to_owned();
    (id, process["pid"].as_u64().expect("a pid"))
}

fn status(address: SocketAddr, id: &str) -> Value {
    call(address, "GET", &format!("/process/{id}/status"), None).1
}

/// Reads output up to the exit. Returns it with the last event and the close code.
fn read_to_exit(wire: &mut Wire) -> (String, Value, u16) {
    let (mut output, mut event) = (String::new(), Value::Null);
    loop {
        let frame = wire.read_frame();
        match frame.opcode {
            BINARY => output.push_str(&String::from_utf8_lossy(&frame.payload)),
            TEXT => event = serde_json::from_slice(&frame.payload).expect("JSON"),
            CLOSE => {
                let code = u16::from_be_bytes([frame.payload[0], frame.payload[1]]);
                return (output, event, code);
            }
            _ => {}
        }
    }
}

/// Reads output until it contains a text.
fn read_until(wire: &mut Wire, text: &str) -> String {
    let mut output = String::new();
    while !output.contains(text) {
        let frame = wire.read_frame();
        assert_ne!(frame.opcode, CLOSE, "{output}");
        if frame.opcode == BINARY {
            output.push_str(&String::from_utf8_lossy(&frame.payload));
        }
    }
    output
}

const COUNT: u64 = 2_000_000;

fn numbers() -> String {
    (1..=COUNT).map(|number| format!("{number}\r\n")).collect()
}

#[test]
fn readers_get_each_byte_once_and_the_exit_last() {
    let (_program, address) = server(&["--scrollback", "4MiB"]);
    // It waits for its writer, so it runs until the end of the test.
    let script = format!("read go; seq {COUNT}; exit 7");
    let (id, pid) = spawn(address, &script, true);
    let program = |pid: u64| std::fs::read_link(format!("/proc/{pid}/exe"));
    let shell = program(pid).expect("it runs");
    let path = format!("/process/{id}/attach");
    let mut writer = Wire::attach(address, &path);
    writer.send_frame(BINARY, b"go\n");
    let mut output = read_until(&mut writer, "\n1000\r\n");
    for _ in 0..10 {
        upgrade(address);
        output += &read_until(&mut writer, "\n");
        assert_eq!(status(address, &id)["state"], "running");
        assert_eq!(program(pid).expect("it runs"), shell);
    }
    let (rest, event, code) = read_to_exit(&mut writer);
    output += &rest;
    assert_eq!(
        (event["exitCode"].as_i64(), code),
        (Some(7), 1000),
        "{event}"
    );
    let output = output
        .split_once("go\r\n")
        .expect("the echo of the input")
        .1;
    assert!(output == numbers(), "{} bytes", output.len());
    assert_eq!(status(address, &id)["exit_code"], 7);
}

#[test]
fn a_process_keeps_its_input_its_name_and_its_place() {
    let (_program, address) = server(&[]);
    let script =
        "n=0; while read line; do n=$((n + 1)); echo $n $line; echo to $n >&2; done; exit 9";
    let body = json!({"command": "sh", "args": ["-c", script]});
    let ask = || call(address, "PUT", "/process/by-name/work", Some(body.clone()));
    let (_, made) = ask();
    let id = made["process_id"].as_str().expect("an id").to_owned();
    let mut wire = Wire::connect(address, &format!("/process/{id}/attach?stderr=merge"));
    for number in 1..=5 {
        wire.send_frame(BINARY, format!("line {number}\n").as_bytes());
        upgrade(address);
        let output = read_until(&mut wire, &format!("to {number}\n"));
        assert!(
            output.contains(&format!("{number} line {number}\n")),
            "{output}"
        );
        let (status, same) = ask();
        assert_eq!(
            (status, &same["created"], &same["pid"]),
            (200, &json!(false), &made["pid"])
        );
    }
    wire.send_frame(TEXT, br#"{"type":"eof"}"#);
    let (_, event, _) = read_to_exit(&mut wire);
    assert_eq!(event["exitCode"], 9, "{event}");
    upgrade(address);
    assert_eq!(ask().1["exit_code"], 9);
    let (status, _) = call(address, "DELETE", "/process/by-name/work", None);
    assert_eq!(status, 200);
}

/// The bug to prevent: SIGCHLD of a child that exits while the program is replaced is lost.
#[test]
fn no_exit_is_lost_however_short_before_or_after_the_upgrade_it_is() {
    let (_program, address) = server(&[]);
    let mut expected = BTreeMap::new();
    for round in 0..20_u64 {
        for step in 0..4_u64 {
            let script = format!(
                "sleep 0.0{}; exit {}",
                (round + 3 * step) % 10,
                round + step
            );
            let (id, _) = spawn(address, &script, step % 2 == 0);
            expected.insert(id, round + step);
        }
        upgrade(address);
    }
    for (id, code) in expected {
        eventually("the exit is noticed", || {
            status(address, &id)["state"] == "exited"
        });
        assert_eq!(status(address, &id)["exit_code"], code, "{id}");
    }
}

#[test]
fn a_shell_of_a_terminal_goes_on() {
    let server = Program::start(&["terminal", "--allow-upgrade", "--", "sh", "-i"]);
    let address = server.address();
    let mut wire = Wire::attach(address, "/terminal");
    wire.send_frame(BINARY, b"x=40; echo ready $((x))\n");
    read_until(&mut wire, "ready 40");
    for round in 1..4 {
        assert_eq!(upgrade(address)["passed"], 1);
        wire.send_frame(BINARY, format!("echo value $((x + {round}))\n").as_bytes());
        read_until(&mut wire, &format!("value {}", 40 + round));
    }
    wire.send_frame(BINARY, b"exit 3\n");
    let (_, event, _) = read_to_exit(&mut wire);
    assert_eq!(event["exitCode"], 3, "{event}");
}

#[cfg(feature = "screen")]
#[test]
fn a_screen_is_the_same_after_an_upgrade() {
    let (_program, address) = server(&[]);
    // It ends in the middle of a sequence, with the alternate screen and colors.
    let script = r"printf 'above\n\033[?1049h\033[2;3H\033[31mred \033[7mreverse\033[5;1H\033[1'; read go; printf ';4mbold'; read go";
    let (id, _) = spawn(address, script, true);
    let screen = |format: &str| {
        let path = format!("/process/{id}/screen{format}");
        let mut wire = Wire::open(address);
        wire.send(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes());
        let mut text = String::new();
        std::io::Read::read_to_string(&mut wire.stream, &mut text).expect("an answer");
        text.split_once("\r\n\r\n").expect("a body").1.to_owned()
    };
    eventually("the screen is drawn", || screen("").contains("reverse"));
    let without_time = |text: String| -> Value {
        let mut value: Value = serde_json::from_str(&text).expect("JSON");
        value["idle_ms"] = Value::Null;
        value
    };
    let before = (without_time(screen("")), screen("?format=ansi"));
    for _ in 0..3 {
        upgrade(address);
        assert_eq!((without_time(screen("")), screen("?format=ansi")), before);
    }
    call(
        address,
        "POST",
        &format!("/process/{id}/input"),
        Some(json!({"keys": ["Enter"]})),
    );
    eventually("the sequence is completed", || screen("").contains("bold"));
    assert!(screen("?format=ansi").contains("\u{1b}[0;1;7;4;31mbold"));
    assert!(!screen("").contains("4mbold"));
}

/// A descriptor of the server in a child could keep a connection open for ever.
#[test]
fn children_inherit_no_descriptor_after_many_upgrades() {
    let (_program, address) = server(&[]);
    let _attached = Wire::connect(
        address,
        &format!("/process/{}/attach", spawn(address, "sleep 1000", true).0),
    );
    let limit = || {
        let body =
            json!({"command": "sh", "args": ["-c", "ulimit -n; env | grep OUTRIGGER_STATE"]});
        call(address, "POST", "/process/exec", Some(body)).1["stdout_b64"].clone()
    };
    let before = limit();
    (0..20).for_each(|_| drop(upgrade(address)));
    assert_eq!(limit(), before);
    let body = json!({"command": "sh", "args": ["-c", "ls /proc/self/fd | wc -l"]});
    let (_, answer) = call(address, "POST", "/process/exec", Some(body));
    // The three streams, and the one with which ls reads the folder.
    assert_eq!(answer["stdout_b64"], "NAo=", "{answer}");
}

#[test]
fn a_call_that_is_pending_is_refused_and_its_process_ends() {
    let (program, address) = server(&[]);
    let caller = std::thread::spawn(move || {
        let body = json!({"command": "sh", "args": ["-c", "sleep 1000"]});
        call(address, "POST", "/process/exec", Some(body))
    });
    let children = || {
        let path = format!("/proc/{0}/task/{0}/children", program.pid());
        std::fs::read_to_string(path)
            .expect("the server runs")
            .trim()
            .to_owned()
    };
    eventually("the process runs", || !children().is_empty());
    assert_eq!(upgrade(address)["refused"], 1);
    let (status, answer) = caller.join().expect("an answer");
    assert_eq!(status, 503, "{answer}");
    eventually("the process has ended", || children().is_empty());
}
