//! Exit codes, one-line errors, help, the `listening` line, signals.

mod common;

use std::process::Command;

use common::Wire;
use common::program::{Program, outrigger};
use rustix::process::Signal;

#[test]
fn help_and_version_go_to_standard_output_with_exit_code_0() {
    for args in [
        &["--help"][..],
        &["-h"],
        &["help"],
        &["echo", "--help"],
        &["app", "-h"],
        &["--version"],
    ] {
        let output = outrigger(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(
            !output.stdout.is_empty() && output.stderr.is_empty(),
            "{args:?}"
        );
    }
    let help = String::from_utf8(outrigger(&["app", "--help"]).stdout).expect("UTF-8");
    assert!(help.contains("--restart") && help.contains("--ping-interval"));
    assert!(
        help.lines().all(|line| line.chars().count() <= 100),
        "it fits a screen"
    );
    let help = String::from_utf8(outrigger(&["echo", "--help"]).stdout).expect("UTF-8");
    assert!(!help.contains("--restart"));
}

#[test]
fn wrong_usage_is_one_line_and_exit_code_2() {
    for (args, says) in [
        (&[][..], "a command is missing"),
        (&["dance"], "unknown command 'dance'"),
        (&["--dance"], "--dance"),
        (&["echo", "--dance"], "unknown option '--dance'"),
        (&["echo", "word"], "unexpected 'word'"),
        (&["echo", "--", "cat"], "takes no program"),
        (&["app", "cat"], "a program goes behind '--'"),
        (&["app", "--"], "no program behind '--'"),
        (&["app", "--restart"], "--restart needs a program"),
        (&["echo", "--restart"], "unknown option '--restart'"),
        (&["echo", "--listen"], "--listen"),
        (&["echo", "--listen", "7070"], "not HOST:PORT"),
        (&["echo", "--max-clients", "0"], "not a number from 1"),
        (&["echo", "--max-message", "lots"], "number of bytes"),
        (&["echo", "--ping-interval", "soon"], "not a time"),
        (&["echo", "--path", "chat"], "begins with '/'"),
        (&["echo", "--log", "loud"], "not one of"),
        (&["echo", "--log-format", "xml"], "neither text nor json"),
    ] {
        let output = outrigger(args);
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(
            error.starts_with("outrigger: ") && error.contains(says),
            "{args:?}: {error}"
        );
        assert_eq!(error.lines().count(), 1, "{args:?}: {error}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn an_address_in_use_is_one_line_and_exit_code_1() {
    let first = Program::start(&["echo", "--log", "off"]);
    let address = first.address().to_string();
    let output = outrigger(&["echo", "--listen", &address]);
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error.starts_with("outrigger: cannot listen on ") && error.contains(&address),
        "{error}"
    );
}

#[test]
fn a_program_that_cannot_be_started_is_exit_code_1() {
    let mut program = Program::start(&["app", "--", "/no/such/program"]);
    program.address();
    let (status, log) = program.wait_and_read_log();
    assert_eq!(status.code(), Some(1));
    assert!(
        log.contains("outrigger: cannot start \"/no/such/program\""),
        "{log}"
    );
}

#[test]
fn several_addresses_have_a_line_each() {
    let program = Program::start(&["echo", "--listen", "127.0.0.1:0", "--path", "/there"]);
    let (first, second) = (program.address(), program.address());
    assert_ne!(first, second);
    for address in [first, second] {
        let mut wire = Wire::connect(address, "/there");
        wire.send_frame(1, b"x");
        assert_eq!(wire.read_frame().payload, b"x");
    }
    let mut wire = Wire::open(first);
    wire.send(&common::request("/"));
    assert!(wire.read_response().0.starts_with("HTTP/1.1 404 "));
}

#[test]
fn a_signal_drains_and_leaves_with_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut program = Program::start(&["echo"]);
        let address = program.address();
        let mut wire = Wire::connect(address, "/");
        program.signal(signal);
        assert_eq!(wire.read_close(), (1001, "Server shutting down".to_owned()));
        assert!(
            std::net::TcpStream::connect(address).is_err(),
            "nobody is taken any more"
        );
        wire.send_close(1001);
        wire.expect_end();
        assert_eq!(program.wait().code(), Some(0));
    }
}

#[test]
fn clients_that_do_not_answer_are_waited_for_no_longer_than_the_drain_timeout() {
    let mut program =
        Program::start(&["echo", "--drain-timeout", "200ms", "--close-timeout", "1h"]);
    let mut wire = Wire::connect(program.address(), "/");
    program.signal(Signal::TERM);
    assert_eq!(wire.read_close().0, 1001);
    assert_eq!(program.wait().code(), Some(0));
    wire.expect_end();
}

#[test]
fn a_second_signal_leaves_at_once() {
    let mut program = Program::start(&["echo", "--drain-timeout", "1h", "--close-timeout", "1h"]);
    let mut wire = Wire::connect(program.address(), "/");
    program.signal(Signal::TERM);
    assert_eq!(wire.read_close().0, 1001);
    program.signal(Signal::TERM);
    let (status, log) = program.wait_and_read_log();
    assert_eq!(status.code(), Some(1));
    assert!(
        log.contains("cause=shutdown"),
        "everyone is told of all the same: {log}"
    );
}

#[test]
fn the_log_is_text_or_json_and_cannot_be_forged() {
    let mut program = Program::start(&["echo", "--log-format", "json", "--path", "/..."]);
    let mut wire = Wire::connect(program.address(), "/a%0a\"b");
    wire.send_frame(8, b"\x03\xe8two\nlines");
    wire.read_close();
    program.signal(Signal::TERM);
    let (_, log) = program.wait_and_read_log();
    for line in log.lines() {
        let record: serde_json::Value = serde_json::from_str(line).expect("each line is JSON");
        assert!(
            record["time"].is_string()
                && record["level"].is_string()
                && record["message"].is_string()
        );
    }
    assert!(log.contains("cause=close code=1000"), "{log}");
}

#[test]
fn a_failure_that_nobody_reads_is_still_exit_code_1() {
    // The bug: printing the failure to a closed pipe was a panic, and the exit code that of an abort.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["app", "--listen", "127.0.0.1:0", "--", "/no/such/program"])
        .stdout(writer.try_clone().expect("a second handle"))
        .stderr(writer)
        .status()
        .expect("the program runs");
    assert_eq!(status.code(), Some(1));
}

#[test]
fn running_out_of_descriptors_is_survived() {
    // A shell sets the limit, as `ulimit` does for a service.
    let script = "ulimit -n 40; exec \"$0\" echo --listen 127.0.0.1:0 --handshake-timeout 0";
    let program =
        Program::spawn(Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_outrigger")]));
    let address = program.address();
    let mut clients: Vec<_> = (0..20).map(|_| Wire::connect(address, "/")).collect();
    // These fill the process's table and wait in the kernel's queue after that.
    let mut waiting: Vec<_> = (0..30).map(|_| Wire::open(address)).collect();
    for client in &mut clients {
        client.send_frame(1, b"still here");
        assert_eq!(client.read_frame().payload, b"still here");
    }
    // When others leave, all who waited get their turn.
    drop(clients);
    for wire in &mut waiting[..15] {
        wire.send(&common::request("/"));
        assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
    }
}
