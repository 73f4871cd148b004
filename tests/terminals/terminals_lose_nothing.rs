//! `outrigger terminal`: no output is lost, the exit comes after it, and no process outlives its client.

use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::common::program::Program;
use crate::common::traces::{
    TraceFile, eventually, expect_gone, expect_no_trace, is_zombie, open_files,
};
use crate::common::{BINARY, CLOSE, TEXT, Wire, call, request};
use rustix::process::{Pid, Signal, test_kill_process};

/// Starts a terminal server that runs a script.
fn terminal(options: &[&str], script: &str) -> Program {
    Program::start(&[&["terminal"][..], options, &["--", "sh", "-c", script]].concat())
}

/// Reads until CLOSE: the output, the events, and the close code.
fn read_all(wire: &mut Wire) -> (Vec<u8>, Vec<String>, u16) {
    let (mut output, mut events) = (Vec::new(), Vec::new());
    loop {
        let frame = wire.read_frame();
        match frame.opcode {
            BINARY => {
                assert!(events.is_empty(), "no output after {events:?}");
                output.extend(frame.payload);
            }
            TEXT => events.push(String::from_utf8(frame.payload).expect("UTF-8")),
            CLOSE => {
                let code = u16::from_be_bytes([frame.payload[0], frame.payload[1]]);
                wire.send_close(code);
                wire.expect_end();
                return (output, events, code);
            }
            _ => {}
        }
    }
}

/// Reads output until it contains a string.
fn read_until(wire: &mut Wire, text: &str) -> String {
    let mut output = String::new();
    while !output.contains(text) {
        let frame = wire.read_frame();
        assert_eq!(frame.opcode, BINARY, "{output}");
        output.push_str(&String::from_utf8_lossy(&frame.payload));
    }
    output
}

#[test]
fn a_half_closed_client_gets_the_last_output_and_the_exit_code() {
    // The bug: the client was treated as gone, and later output of the program was dropped.
    let server = terminal(
        &[],
        "trap 'echo last; exit 3' HUP; echo ready; while :; do sleep 0.05; done",
    );
    let mut wire = Wire::attach(server.address(), "/terminal");
    read_until(&mut wire, "ready");
    wire.end_output();
    let mut output = Vec::new();
    let mut events = Vec::new();
    loop {
        let frame = wire.read_frame();
        match frame.opcode {
            BINARY => output.extend(frame.payload),
            TEXT => events.push(String::from_utf8(frame.payload).expect("UTF-8")),
            CLOSE => break assert!(frame.payload.starts_with(&1000u16.to_be_bytes())),
            _ => {}
        }
    }
    wire.expect_end();
    assert!(output.ends_with(b"last\r\n"), "{output:?}");
    assert_eq!(events, [r#"{"type":"exit","exitCode":3}"#]);
}

#[test]
fn the_exit_code_comes_after_the_last_byte() {
    let server = terminal(
        &[],
        "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; exit 7",
    );
    let address = server.address();
    let expected: String = (0..2000).map(|i| format!("line {i}\r\n")).collect();
    for _ in 0..20 {
        let mut wire = Wire::attach(address, "/terminal");
        let (output, events, code) = read_all(&mut wire);
        assert_eq!(String::from_utf8(output).expect("UTF-8"), expected);
        assert_eq!(events, [r#"{"type":"exit","exitCode":7}"#]);
        assert_eq!(code, 1000);
    }
}

#[test]
fn input_size_and_signals_reach_the_program() {
    let server = terminal(&["--cwd", "/", "--env", "GREETING=hello there"], "exec sh");
    let mut wire = Wire::attach(server.address(), "/terminal?rows=30&cols=101");
    wire.send_frame(BINARY, b"stty size; pwd; echo \"$GREETING $TERM\"\n");
    let output = read_until(&mut wire, "hello there xterm-256color");
    assert!(output.contains("30 101\r\n/\r\n"), "{output}");
    wire.send_frame(TEXT, br#"{"type":"resize","rows":50,"cols":132}"#);
    let told = wire.read_frame().payload;
    assert_eq!(told, br#"{"type":"size","rows":50,"cols":132}"#);
    wire.send_frame(BINARY, b"stty size\n");
    read_until(&mut wire, "50 132");
    // ^C cancels the line of an interactive shell, and ends a program.
    wire.send_frame(BINARY, b"exec sh -c 'echo started; exec sleep 1000'\n");
    read_until(&mut wire, "started\r\n");
    wire.send_frame(BINARY, b"\x03");
    let (_, events, code) = read_all(&mut wire);
    let expected = r#"{"type":"exit","exitCode":130,"signal":"SIGINT"}"#;
    assert_eq!(events, [expected]);
    assert_eq!(code, 1000);
}

#[test]
fn unknown_text_is_ignored_and_only_its_length_is_logged() {
    let mut server = terminal(&[], "read line; exit 0");
    let mut wire = Wire::attach(server.address(), "/terminal");
    wire.send_frame(TEXT, br#"{"type":"resize","rows":0,"cols":80}"#);
    wire.send_frame(TEXT, format!("\x1b[2J{}", "x".repeat(300)).as_bytes());
    wire.send_frame(BINARY, b"\n");
    assert_eq!(read_all(&mut wire).1, [r#"{"type":"exit","exitCode":0}"#]);
    server.signal(Signal::TERM);
    let (_, log) = server.wait_and_read_log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), 2, "{log}");
    // The bug: the log had the text, which may be typed input.
    assert!(warnings[1].contains("a text message of 304 bytes"), "{log}");
    assert!(!log.contains("xxx"), "{log}");
    // A resize is not typed.
    assert!(
        warnings[0].contains("resize rejected: rows=0 cols=80"),
        "{log}"
    );
}

#[test]
fn a_request_for_an_invalid_size_is_rejected() {
    let server = terminal(&[], "true");
    let address = server.address();
    for query in ["rows=0", "cols=65536", "rows=-1", "cols=", "rows=x"] {
        let mut wire = Wire::open(address);
        wire.send(&request(&format!("/terminal?{query}")));
        let (head, body) = wire.read_response();
        assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
        assert!(
            body["message"]
                .as_str()
                .expect("a message")
                .contains("1 to 65535")
        );
    }
}

#[test]
fn a_slow_reader_gets_every_byte() {
    // More than the buffers of the kernel hold.
    let server = terminal(&[], "stty raw; seq 0 1199999; exit 3");
    let address = server.address();
    let mut wire = Wire::attach(address, "/terminal");
    // The client does not read until the program waits for it. Then it reads everything.
    let mut first = [0; 10];
    wire.stream.read_exact(&mut first).expect("output comes");
    eventually("the program waits for its reader", || {
        let (_, status) = call(address, "GET", "/status", None);
        status["clients"][0]["queued_bytes"].as_u64() > Some(0)
    });
    let mut stream = first.to_vec();
    wire.stream.read_to_end(&mut stream).expect("an end");
    let (mut output, mut rest) = (Vec::new(), &stream[..]);
    let mut events = Vec::new();
    while let [head, len, ..] = *rest {
        let (start, len) = match len {
            126 => (4, usize::from(u16::from_be_bytes([rest[2], rest[3]]))),
            127 => (
                10,
                u64::from_be_bytes(*rest[2..].first_chunk().expect("8 bytes")) as usize,
            ),
            len => (2, usize::from(len)),
        };
        let payload = &rest[start..start + len];
        match head & 0xf {
            BINARY => output.extend_from_slice(payload),
            TEXT => events.push(String::from_utf8_lossy(payload).into_owned()),
            _ => {}
        }
        rest = &rest[start + len..];
    }
    let expected: String = (0..1_200_000).map(|i| format!("{i}\n")).collect();
    assert!(
        output == expected.as_bytes(),
        "{} bytes of {}",
        output.len(),
        expected.len()
    );
    assert_eq!(events, [r#"{"type":"exit","exitCode":3}"#]);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "orphans are ended on Linux only")]
fn no_process_is_left_when_the_client_disconnects() {
    let pids = TraceFile::new("terminal-left");
    // Processes that ignore HUP and TERM, leave the session, stop themselves, or hide their origin, and a background job.
    let script = format!(
        "trap '' HUP TERM; echo $$ >>{0}; \
         setsid sh -c 'trap \"\" HUP TERM; echo $$ >>{0}; while :; do sleep 1000; done' & \
         sh -c 'echo $$ >>{0}; kill -STOP $$' & \
         env -i setsid sh -c 'echo $$ >>{0}; exec sleep 1000' & \
         sleep 1000 & echo $! >>{0}; \
         while :; do sleep 1000; done",
        pids.path()
    );
    let server = terminal(&["--log", "debug"], &script);
    let address = server.address();
    let files = open_files(server.pid());
    let wire = Wire::attach(address, "/terminal");
    let left = pids.pids(5);
    wire.reset();
    for pid in left {
        expect_no_trace(pid);
    }
    // A starting server may hold a descriptor for a moment, so that the first count is one higher.
    eventually("the descriptors are closed", || {
        open_files(server.pid()) <= files
    });
}

#[test]
fn unread_input_does_not_delay_the_exit_or_the_disconnect() {
    let pids = TraceFile::new("terminal-flood");
    let script = format!(
        "stty raw -echo; echo $$ >>{}; echo ready; sleep $TIME",
        pids.path()
    );
    for (time, leave) in [("1000", true), ("0.5", false)] {
        let server = terminal(&["--env", &format!("TIME={time}")], &script);
        let mut wire = Wire::attach(server.address(), "/terminal");
        read_until(&mut wire, "ready");
        for _ in 0..20 {
            wire.send_frame(BINARY, &[b'x'; 20_000]);
        }
        if leave {
            wire.reset();
            expect_gone(pids.pids(1)[0]);
        } else {
            // The client's CLOSE comes after input that the program does not read.
            let (_, events, code) = read_all(&mut wire);
            assert_eq!((events.len(), code), (1, 1000));
        }
    }
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn programs_do_not_inherit_ignored_signals() {
    let script = "trap '' HUP INT QUIT ALRM XFSZ; exec \"$0\" terminal --listen 127.0.0.1:0 --no-auth -- sh -c 'grep SigIgn /proc/self/status'";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_outrigger")]);
    let server = Program::spawn(&mut command);
    let mut wire = Wire::attach(server.address(), "/terminal");
    let (output, _, _) = read_all(&mut wire);
    let output = String::from_utf8_lossy(&output);
    let ignored = output.trim().rsplit_once('\t').expect("a mask").1;
    let ignored = u64::from_str_radix(ignored, 16).expect("in base 16");
    // Signals 32 and 33 belong to the C library and cannot be set.
    assert_eq!(ignored & 0x7fff_ffff, 0, "{output}");
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "orphans are ended on Linux only")]
fn no_process_is_left_when_the_server_stops() {
    let pids = TraceFile::new("terminal-stop");
    let script = format!(
        "trap '' HUP TERM; echo $$ >>{0}; (setsid sh -c 'echo $$ >>{0}; exec sleep 1000' &); while :; do sleep 1000; done",
        pids.path()
    );
    let mut server = terminal(&[], &script);
    let mut wire = Wire::attach(server.address(), "/terminal");
    let left = pids.pids(2);
    server.signal(Signal::TERM);
    // The program is killed first.
    let (_, events, code) = read_all(&mut wire);
    assert_eq!((code, events.len()), (1012, 0), "{events:?}");
    assert_eq!(server.wait().code(), Some(0));
    for pid in left {
        assert!(test_kill_process(pid).is_err() || is_zombie(pid), "at once");
    }
}

#[test]
fn a_killed_server_takes_its_children_with_it() {
    let pids = TraceFile::new("terminal-killed");
    let script = format!(
        "trap '' HUP; echo $$ >>{}; while :; do sleep 0.1; done",
        pids.path()
    );
    let mut server = terminal(&[], &script);
    let wire = Wire::attach(server.address(), "/terminal");
    let left: Vec<Pid> = pids.pids(1);
    server.signal(Signal::KILL);
    server.wait();
    left.into_iter().for_each(expect_gone);
    drop(wire);
}

#[test]
fn a_background_process_that_holds_the_terminal_does_not_hold_the_exit() {
    let pids = TraceFile::new("terminal-background");
    let script = format!(
        "(trap '' HUP; echo ready >&2; exec sleep 1000) & echo $! >>{}; sleep 0.3; echo done; exit 4",
        pids.path()
    );
    let server = terminal(&[], &script);
    let mut wire = Wire::attach(server.address(), "/terminal");
    let (mut output, mut events) = (Vec::new(), Vec::new());
    while events.is_empty() {
        let frame = wire.read_frame();
        match frame.opcode {
            BINARY => output.extend(frame.payload),
            _ => events.push(String::from_utf8(frame.payload).expect("UTF-8")),
        }
    }
    let background = pids.pids(1)[0];
    assert!(test_kill_process(background).is_ok(), "it still runs");
    let (code, _) = wire.read_close();
    wire.send_close(code);
    expect_gone(background);
    assert_eq!(output, b"ready\r\ndone\r\n");
    assert_eq!(
        (&*events, code),
        (&[r#"{"type":"exit","exitCode":4}"#.to_owned()][..], 1000)
    );
}

#[test]
fn read_only_and_once_work_and_a_failed_start_is_reported() {
    let mut server = terminal(
        &["--read-only", "--once"],
        "read -t 1 line 2>/dev/null; sleep 0.2; echo \"got:$line\"",
    );
    let address = server.address();
    let mut wire = Wire::attach(address, "/terminal");
    wire.send_frame(BINARY, b"typed\n");
    let mut second = Wire::open(address);
    second.send(&request("/terminal"));
    assert!(second.read_head().starts_with("HTTP/1.1 503 "));
    wire.send_frame(CLOSE, b"");
    assert_eq!(server.wait().code(), Some(0), "it was for one client");

    // The program exists when the server starts, but cannot be executed.
    let script = TraceFile::new("terminal-script");
    std::fs::write(script.path(), "#!/no/such/interpreter\n").expect("a file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(script.path(), mode).expect("a file");
    let server = Program::start(&["terminal", "--", &script.path()]);
    let mut wire = Wire::connect(server.address(), "/terminal");
    let frame = wire.read_frame();
    let event: serde_json::Value = serde_json::from_slice(&frame.payload).expect("JSON");
    assert_eq!((frame.opcode, &event["type"]), (TEXT, &"error".into()));
    assert_eq!(wire.read_close().0, 1011);
}

/// The bug: the programs of all clients that connected in one turn of the loop were started in that turn, which took 2.6
/// seconds for a thousand.
#[test]
fn clients_that_connect_at_once_each_get_a_program_and_lose_no_input() {
    let server = terminal(&[], "stty -echo; read line; echo \"got:$line\"; exit 5");
    let address = server.address();
    let mut wires: Vec<Wire> = (0..60).map(|_| Wire::open(address)).collect();
    for (at, wire) in wires.iter_mut().enumerate() {
        // The input arrives together with the request.
        let mut bytes = request("/terminal");
        let typed = format!("{at}\n");
        bytes.extend([0x80 | BINARY, 0x80 | typed.len() as u8, 0, 0, 0, 0]);
        bytes.extend(typed.as_bytes());
        wire.send(&bytes);
    }
    // Some clients disconnect before their programs start.
    let leaving: Vec<Wire> = (0..10).map(|_| wires.remove(20)).collect();
    leaving.into_iter().for_each(Wire::reset);
    let kept = (0..20).chain(30..60);
    for (at, wire) in kept.zip(&mut wires) {
        assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
        wire.read_greeting("/terminal");
        let (output, events, code) = read_all(wire);
        let output = String::from_utf8(output).expect("UTF-8");
        assert!(
            output.contains(&format!("got:{at}\r\n")),
            "{at}: {output:?}"
        );
        assert_eq!(events, [r#"{"type":"exit","exitCode":5}"#]);
        assert_eq!(code, 1000);
    }
    eventually("nothing runs", || {
        call(address, "GET", "/status", None).1["processes"]["running"] == 0
    });
}

/// The bug: each closed terminal walked the process table by itself, and a process whose name is not UTF-8 counted as
/// exited.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "orphans are ended on Linux only")]
fn no_process_is_left_when_many_clients_disconnect_at_once() {
    let pids = TraceFile::new("terminal-crowd");
    let script = format!(
        "for i in 1 2 3; do setsid sh -c 'trap \"\" HUP TERM; echo $$ >>{0}; while :; do sleep 1000; done' & done; \
         sleep 1000",
        pids.path()
    );
    let server = terminal(&[], &script);
    let address = server.address();
    let wires: Vec<Wire> = (0..20)
        .map(|_| Wire::attach(address, "/terminal"))
        .collect();
    let left = pids.pids(60);
    wires.into_iter().for_each(Wire::reset);
    left.into_iter().for_each(expect_no_trace);
    eventually("all are forgotten", || {
        call(address, "GET", "/status", None).1["processes"]["running"] == 0
    });
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "orphans are ended on Linux only")]
fn a_process_whose_name_is_not_utf8_does_not_outlive_its_terminal() {
    let pids = TraceFile::new("terminal-name");
    // The name of a process is the start of its file name, which may be any bytes.
    let name = [b"\xff\xfe-", std::process::id().to_string().as_bytes()].concat();
    let file = std::env::temp_dir().join(std::ffi::OsString::from_vec(name));
    let name = file.as_os_str().as_bytes();
    std::os::unix::fs::symlink("/bin/sh", &file).expect("a link");
    let octal: String = name.iter().map(|byte| format!("\\{byte:03o}")).collect();
    let inner = format!("echo $$ >>{}; while :; do sleep 1000; done", pids.path());
    let script =
        format!("INNER='{inner}'; setsid \"$(printf '{octal}')\" -c \"$INNER\" & sleep 1000");
    let server = terminal(&[], &script);
    let wire = Wire::attach(server.address(), "/terminal");
    let left = pids.pids(1);
    let comm = std::fs::read(format!("/proc/{}/comm", left[0].as_raw_pid()));
    std::fs::remove_file(&file).expect("it is ours");
    assert!(std::str::from_utf8(&comm.expect("it runs")).is_err());
    wire.reset();
    expect_no_trace(left[0]);
}

/// The bug: output of background processes after the program's exit was read for a fixed 250 ms.
#[test]
fn output_within_the_linger_time_comes_before_the_exit() {
    let script = "(trap '' HUP; sleep 0.5; echo LATE) & sleep 0.1; exit 4";
    let server = terminal(&["--linger", "1000s"], script);
    let mut wire = Wire::attach(server.address(), "/terminal");
    let (output, events, _) = read_all(&mut wire);
    assert_eq!(output, b"LATE\r\n");
    assert_eq!(events, [r#"{"type":"exit","exitCode":4}"#]);

    let mut server = terminal(&["--linger", "0"], script);
    let mut wire = Wire::attach(server.address(), "/terminal");
    let (output, events, _) = read_all(&mut wire);
    assert_eq!(output, b"");
    assert_eq!(events, [r#"{"type":"exit","exitCode":4}"#]);
    server.signal(Signal::TERM);
    let (_, log) = server.wait_and_read_log();
    assert!(
        log.contains("exited with code 4; other processes still hold its output open"),
        "{log}"
    );
}

/// The bug: a stopping server closed its terminals at once, and the last output was lost. Later, clients were told the exit
/// that the server had caused, with 1000, so that they did not come back.
#[test]
fn a_stopping_server_delivers_the_last_output_and_asks_clients_to_come_back() {
    let script =
        "trap 'sleep 0.2; echo last words; exit 7' HUP; echo ready; while :; do sleep 0.05; done";
    let mut server = terminal(&[], script);
    let address = server.address();
    let mut wires: Vec<Wire> = (0..5).map(|_| Wire::attach(address, "/terminal")).collect();
    for wire in &mut wires {
        read_until(wire, "ready");
    }
    server.signal(Signal::TERM);
    for wire in &mut wires {
        let (output, events, code) = read_all(wire);
        let output = String::from_utf8_lossy(&output);
        assert!(output.contains("last words\r\n"), "{output:?}");
        assert_eq!(events, Vec::<String>::new());
        assert_eq!(code, 1012);
    }
    assert_eq!(server.wait().code(), Some(0));
}
