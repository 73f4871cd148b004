//! Tests of exit codes, one-line errors, help, the `listening` line, signals and the log.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use common::program::{Program, outrigger};
use common::traces::{TraceFile, eventually};
use common::{PATIENCE, Wire};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::OpenptFlags;

#[test]
fn help_and_version_go_to_standard_output_with_exit_code_0() {
    for args in [
        &["--help"][..],
        &["-h"],
        &["help"],
        &["echo", "--help"],
        &["app", "-h"],
        &["help", "token"],
        &["token", "--help"],
        &["token", "add", "-h"],
        &["--version"],
    ] {
        let output = outrigger(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(
            !output.stdout.is_empty() && output.stderr.is_empty(),
            "{args:?}"
        );
    }
    for args in [
        &["--help"][..],
        &["app", "--help"],
        &["serve", "--help"],
        &["token", "--help"],
    ] {
        let help = String::from_utf8(outrigger(args).stdout).expect("UTF-8");
        for line in help.lines() {
            assert!(line.chars().count() <= 100, "the line is too long: {line}");
        }
    }
    let help = String::from_utf8(outrigger(&["app", "--help"]).stdout).expect("UTF-8");
    assert!(help.contains("--restart") && help.contains("--ping-interval"));
    let help = String::from_utf8(outrigger(&["echo", "--help"]).stdout).expect("UTF-8");
    assert!(!help.contains("--restart"));
}

#[test]
fn wrong_usage_is_one_line_and_exit_code_2() {
    for (args, says) in [
        (&[][..], "missing command"),
        (&["dance"], "unknown command 'dance'"),
        (&["--dance"], "--dance"),
        (&["echo", "--dance"], "unknown option '--dance'"),
        (&["echo", "word"], "unexpected argument 'word'"),
        (
            &["echo", "--", "cat"],
            "unexpected argument 'cat' after '--'",
        ),
        (&["app", "cat"], "put the program after '--'"),
        (&["app", "--"], "missing program after '--'"),
        (&["agent"], "missing program after '--'"),
        (&["serve"], "missing --config FILE.json"),
        (&["token"], "expected 'add', 'list' or 'revoke'"),
        (&["token", "list"], "missing --token-file FILE"),
        (
            &["echo", "--announce-extra", "{}"],
            "--announce-extra has no effect without --announce",
        ),
        (&["app", "--restart"], "--restart requires a program"),
        (&["echo", "--restart"], "unknown option '--restart'"),
        (&["connect"], "missing URL"),
        (&["connect", "ws://x/", "y"], "unexpected argument 'y'"),
        (
            &["connect", "ws://x/", "--", "cat"],
            "unexpected argument 'cat' after '--'",
        ),
        (
            &["connect", "ws://x/", "--listen", "127.0.0.1:0"],
            "unknown option '--listen'",
        ),
        (&["echo", "--give-up", "1s"], "unknown option '--give-up'"),
        (
            &["connect", "ws://x/", "--token-file", "/no/such/file"],
            "--token-file: /no/such/file: ",
        ),
        (&["connect", "ws://x/", "--header", "X"], "NAME: VALUE"),
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
fn a_program_that_cannot_be_found_is_wrong_usage_and_nothing_listens() {
    // The bug: the server printed `listening`, and --check reported valid settings, although the program did not exist.
    let plain = TraceFile::new("no-program");
    fs::write(plain.path(), "text").expect("a file");
    for (program, says) in [
        ("no-such-program", "not found in PATH"),
        ("/no/such/program", "no such file"),
        (&*plain.path(), "it is not an executable file"),
        ("/", "it is not an executable file"),
    ] {
        for command in [
            &["app"][..],
            &["app", "--restart"],
            &["agent"],
            &["agent", "--mode", "per-client"],
            &["terminal"],
            &["terminal", "--check"],
            &["agent", "--check"],
        ] {
            let args = [command, &["--listen", "127.0.0.1:0", "--", program]].concat();
            let output = outrigger(&args);
            let error = String::from_utf8(output.stderr).expect("UTF-8");
            assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
            let start = format!("outrigger: cannot start {program:?}: ");
            assert!(
                error.starts_with(&start) && error.contains(says) && error.lines().count() == 1,
                "{args:?}: {error}"
            );
            assert!(output.stdout.is_empty());
        }
    }
    let found = outrigger(&["terminal", "--check", "--cwd", "/bin", "--", "./sh"]);
    assert_eq!(found.status.code(), Some(0));
}

#[test]
fn a_program_that_cannot_be_started_is_reported_once_and_nothing_listens() {
    // The bug: the failure was logged, and printed again after the `listening` line.
    let script = TraceFile::new("no-interpreter");
    fs::write(script.path(), "#!/no/such/interpreter\n").expect("a file");
    fs::set_permissions(script.path(), fs::Permissions::from_mode(0o755)).expect("a file");
    for command in ["app", "agent"] {
        let output = outrigger(&[command, "--listen", "127.0.0.1:0", "--", &script.path()]);
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(error.matches("cannot start").count(), 1, "{error}");
        assert!(error.contains("\noutrigger: cannot start "), "{error}");
        assert!(output.stdout.is_empty());
    }
    let output = outrigger(&["app", "--listen", "127.0.0.1:0", "--", "sh", "-c", "exit 3"]);
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(
        error.matches("the program exited with code 3").count(),
        1,
        "{error}"
    );
}

#[test]
fn each_address_gets_a_listening_line() {
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
fn a_signal_drains_clients_and_exits_with_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut program = Program::start(&["echo"]);
        let address = program.address();
        let mut wire = Wire::connect(address, "/");
        program.signal(signal);
        assert_eq!(wire.read_close(), (1001, "Server shutting down".to_owned()));
        assert!(
            std::net::TcpStream::connect(address).is_err(),
            "no client is accepted"
        );
        wire.send_close(1001);
        wire.expect_end();
        assert_eq!(program.wait().code(), Some(0));
    }
}

#[test]
fn the_drain_timeout_limits_the_wait_for_clients() {
    let mut program =
        Program::start(&["echo", "--drain-timeout", "200ms", "--close-timeout", "1h"]);
    let mut wire = Wire::connect(program.address(), "/");
    program.signal(Signal::TERM);
    assert_eq!(wire.read_close().0, 1001);
    assert_eq!(program.wait().code(), Some(0));
    wire.expect_end();
}

#[test]
fn a_second_signal_exits_at_once() {
    let mut program = Program::start(&["echo", "--drain-timeout", "1h", "--close-timeout", "1h"]);
    let mut wire = Wire::connect(program.address(), "/");
    program.signal(Signal::TERM);
    assert_eq!(wire.read_close().0, 1001);
    // A signal that arrives together with the first counts as the same.
    let mut sent = 0;
    eventually("the program exits", || {
        program.signal(Signal::TERM);
        sent += 1;
        program.has_ended()
    });
    assert!(sent > 1, "{sent}");
    let (status, log) = program.wait_and_read_log();
    assert_eq!(status.code(), Some(1));
    assert!(
        log.contains("cause=shutdown"),
        "the end of each client is logged: {log}"
    );
}

#[test]
fn signals_that_arrive_together_count_as_one() {
    // The bug: a supervisor that sends TERM and INT, or a `^C` that arrives twice, disconnected all clients at once.
    let mut program = Program::start(&["echo", "--close-timeout", "1h"]);
    let mut wire = Wire::connect(program.address(), "/");
    for signal in [Signal::TERM, Signal::INT, Signal::INT, Signal::TERM] {
        program.signal(signal);
    }
    assert_eq!(wire.read_close().0, 1001);
    wire.send_close(1001);
    wire.expect_end();
    assert_eq!(program.wait().code(), Some(0));
}

/// Starts `echo` with this standard error. Returns it and its address.
fn logging_to(stderr: impl Into<Stdio>) -> (Child, SocketAddr) {
    let mut server = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["echo", "--listen", "127.0.0.1:0", "--path", "/..."])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    let stdout = server.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    let url = line.rsplit("ws://").next().expect("a URL");
    let address = url.trim_end().trim_end_matches('/').parse();
    (server, address.expect("an address"))
}

/// The lines that are written to the other end.
fn lines_of(reader: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut all = BufReader::new(reader).lines().map_while(Result::ok);
        all.try_for_each(|line| sender.send(line))
    });
    lines
}

/// Connects some clients, each of which is logged.
fn come_and_go(address: SocketAddr, path: &str) {
    for _ in 0..10 {
        let mut wire = Wire::connect(address, path);
        wire.send_frame(1, b"still here");
        assert_eq!(wire.read_frame().payload, b"still here");
    }
}

#[test]
fn a_log_without_a_reader_does_not_block_the_server() {
    // The bugs: a full pipe kept the program from exiting, and lost lines were not reported.
    let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&writer, true).expect("a pipe");
    let mut filled = 0;
    while let Ok(count) = writer.write(&[b'x'; 4096]) {
        filled += count;
    }
    rustix::io::ioctl_fionbio(&writer, false).expect("a pipe");
    let (mut server, address) = logging_to(writer.try_clone().expect("a second handle"));
    come_and_go(address, "/");
    let flags = rustix::fs::fcntl_getfl(&writer).expect("a pipe");
    assert!(
        !flags.contains(rustix::fs::OFlags::NONBLOCK),
        "it is shared"
    );
    reader.read_exact(&mut vec![0; filled]).expect("it is full");
    come_and_go(address, "/again");
    let (mut dropped, mut again) = (false, false);
    let lines = lines_of(reader.try_clone().expect("a second handle"));
    while !again {
        let line = lines.recv_timeout(PATIENCE).expect("a line");
        dropped |= line.contains("lines of the log were dropped");
        again |= line.contains("/again");
    }
    assert!(dropped, "dropped lines are reported first");
    // With a full pipe, the program still exits, and so does one that reports a failure.
    rustix::io::ioctl_fionbio(&writer, true).expect("a pipe");
    while writer.write(&[b'x'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).expect("a pipe");
    kill_process(Pid::from_child(&server), Signal::TERM).expect("it runs");
    assert_eq!(server.wait().expect("it ends").code(), Some(0));
    let status = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["app", "--listen", "127.0.0.1:0", "--", "sh", "-c", "exit 3"])
        .stdout(writer.try_clone().expect("a second handle"))
        .stderr(writer)
        .status();
    assert_eq!(status.expect("it ends").code(), Some(1));
}

#[test]
fn a_stopped_terminal_does_not_block_the_server() {
    // The bug: ^S in the terminal of the log blocked the server.
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    rustix::pty::unlockpt(&master).expect("a terminal");
    let name = rustix::pty::ptsname(&master, Vec::new()).expect("a name");
    let name = name.into_string().expect("UTF-8");
    let slave = fs::File::options()
        .read(true)
        .write(true)
        .open(name)
        .expect("a terminal");
    let lines = lines_of(fs::File::from(master.try_clone().expect("a second handle")));
    let (mut server, address) = logging_to(slave.try_clone().expect("a second handle"));
    let mut master = fs::File::from(master);
    let mut press = |key: &[u8], goes: bool| {
        master.write_all(key).expect("a terminal");
        eventually("the terminal stops or continues", || {
            let mut fds = [PollFd::new(&slave, PollFlags::OUT)];
            (poll(&mut fds, Some(&Timespec::default())) == Ok(1)) == goes
        });
    };
    press(b"\x13", false);
    come_and_go(address, "/stopped");
    press(b"\x11", true);
    come_and_go(address, "/again");
    let (mut dropped, mut again) = (false, false);
    while !again {
        let line = lines.recv_timeout(PATIENCE).expect("a line");
        dropped |= line.contains("lines of the log were dropped");
        again |= line.contains("/again");
    }
    assert!(dropped, "dropped lines are reported first");
    press(b"\x13", false);
    kill_process(Pid::from_child(&server), Signal::TERM).expect("it runs");
    assert_eq!(server.wait().expect("it ends").code(), Some(0));
}

#[test]
fn clients_cannot_flood_the_log() {
    // The bug: a client without a token could cause 1.3 MB of log per second.
    let mut program = Program::start(&["echo", "--path", "/there"]);
    let address = program.address();
    for _ in 0..1000 {
        let mut wire = Wire::open(address);
        wire.send(&common::request("/nowhere"));
        assert!(wire.read_head().starts_with("HTTP/1.1 404 "));
    }
    let mut other = Wire::connect(address, "/there");
    other.send_close(1000);
    other.read_close();
    program.signal(Signal::TERM);
    let (_, log) = program.wait_and_read_log();
    let refused = log.matches("refused: 404").count();
    assert!((100..500).contains(&refused), "{refused}");
    assert!(log.contains("suppressed"), "{log}");
    assert!(
        log.contains("path=\"/there\""),
        "other kinds of lines have their own limit: {log}"
    );
    // At `debug` the log is complete.
    let mut program = Program::start(&["echo", "--path", "/there", "--log", "debug"]);
    let address = program.address();
    let reading = program.read_log();
    for _ in 0..300 {
        let mut wire = Wire::open(address);
        wire.send(&common::request("/nowhere"));
        wire.read_head();
    }
    program.signal(Signal::TERM);
    program.wait();
    let log = reading.join().expect("it is read");
    assert_eq!(log.matches("refused: 404").count(), 300);
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
    assert!(log.contains("\"code\":1000"), "{log}");
}

#[test]
fn a_failure_exits_with_1_even_if_standard_error_is_closed() {
    // The bug: printing the failure to a closed pipe panicked, and the exit code was that of an abort.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["app", "--listen", "127.0.0.1:0", "--", "sh", "-c", "exit 3"])
        .stdout(writer.try_clone().expect("a second handle"))
        .stderr(writer)
        .status()
        .expect("the program runs");
    assert_eq!(status.code(), Some(1));
}

#[test]
fn the_server_survives_running_out_of_descriptors() {
    // A shell sets the limit.
    let script = "ulimit -n 40; exec \"$0\" echo --listen 127.0.0.1:0 --handshake-timeout 0";
    let program =
        Program::spawn(Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_outrigger")]));
    let address = program.address();
    let mut clients: Vec<_> = (0..20).map(|_| Wire::connect(address, "/")).collect();
    // These fill the process's descriptor table. The rest waits in the kernel's queue.
    let mut waiting: Vec<_> = (0..30).map(|_| Wire::open(address)).collect();
    for client in &mut clients {
        client.send_frame(1, b"still here");
        assert_eq!(client.read_frame().payload, b"still here");
    }
    // When the clients leave, the waiting connections are accepted.
    drop(clients);
    for wire in &mut waiting[..15] {
        wire.send(&common::request("/"));
        assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
    }
}
