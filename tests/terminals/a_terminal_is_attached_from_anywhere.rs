//! `outrigger attach`: all output arrives, also across cuts; the exit code is the program's; and the user's terminal is as it
//! was, whatever ends the client.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};

use crate::common::cutter::Cutter;
use crate::common::program::{Program, outrigger, wait};
use crate::common::terminal::OnTerminal;
use crate::common::traces::{TraceFile, eventually};
use crate::common::{PATIENCE, call};
use rustix::process::Signal;
use serde_json::json;

const OUTRIGGER: &str = env!("CARGO_BIN_EXE_outrigger");

/// Starts a terminal server that runs a script.
fn terminal(options: &[&str], script: &str) -> Program {
    Program::start(&[&["terminal"][..], options, &["--", "sh", "-c", script]].concat())
}

/// Starts a process with a terminal, and returns the path of its attach call.
fn spawn(address: SocketAddr, script: &str) -> String {
    let body = json!({"command": "sh", "args": ["-c", script], "allocate_tty": true});
    let (status, answer) = call(address, "POST", "/process/spawn", Some(body));
    assert_eq!(status, 200, "{answer}");
    let id = answer["process_id"].as_str().expect("an id");
    format!("/process/{id}")
}

fn state(address: SocketAddr, process: &str) -> String {
    let (_, status) = call(address, "GET", &format!("{process}/status"), None);
    status["state"].as_str().unwrap_or_default().to_owned()
}

fn url(address: SocketAddr, path: &str) -> String {
    format!("ws://{address}{path}")
}

/// Attaches on a terminal.
fn attach(options: &[&str], url: &str) -> OnTerminal {
    OnTerminal::start(&[&[OUTRIGGER, "attach"][..], options, &[url]].concat())
}

/// Attaches with pipes as standard streams, and returns all output.
fn attach_piped(options: &[&str], url: &str, input: &str) -> Output {
    let mut child = Command::new(OUTRIGGER)
        .arg("attach")
        .args(options)
        .arg(url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    let stdout = read_all(child.stdout.take().expect("piped"));
    let stderr = read_all(child.stderr.take().expect("piped"));
    let status = wait(&mut child);
    let end = |read: Receiver<Vec<u8>>| read.recv_timeout(PATIENCE).expect("the output ends");
    Output {
        status,
        stdout: end(stdout),
        stderr: end(stderr),
    }
}

/// Reads a stream to its end in a thread.
fn read_all(mut stream: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, read) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        sender.send(bytes)
    });
    read
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A script that writes this many numbers, a line each.
fn numbers(count: usize) -> String {
    format!("stty raw -echo; seq {count}; exit 5")
}

fn all_numbers(count: usize) -> String {
    (1..=count).map(|number| format!("{number}\n")).collect()
}

#[test]
fn the_exit_code_is_that_of_the_program_and_all_output_comes_before_it() {
    let killed = "outrigger: the program was killed by SIGTERM\n";
    for (script, code, message) in [
        ("echo begin; exit 7", 7, ""),
        ("echo begin; kill -TERM $$", 143, killed),
        ("echo begin", 0, ""),
    ] {
        let server = terminal(&[], script);
        let url = url(server.address(), "/terminal");
        let output = attach_piped(&[], &url, "");
        assert_eq!(text(&output.stdout), "begin\r\n");
        assert_eq!(text(&output.stderr), message);
        assert_eq!(output.status.code(), Some(code), "{script}");
        let mut client = attach(&[], &url);
        assert_eq!(client.code(), Some(code), "{script}");
        client.expect("begin\r\n");
    }
    let server = terminal(&[], &numbers(200_000));
    let output = attach_piped(&[], &url(server.address(), "/terminal"), "");
    assert!(text(&output.stdout) == all_numbers(200_000));
    assert_eq!(output.status.code(), Some(5));
}

#[test]
fn what_is_not_a_terminal_is_recognized() {
    // The bug: attach showed nothing, or what an echo service sent back, until the user gave up.
    let server = Program::start(&["echo", "--log", "off"]);
    let url = url(server.address(), "/");
    let output = attach_piped(&[], &url, "hello\n");
    let told = text(&output.stderr);
    assert_eq!(
        (output.status.code(), &*text(&output.stdout)),
        (Some(255), "")
    );
    assert!(told.contains("is neither a terminal nor a process") && told.lines().count() == 1);
    let mut client = attach(&[], &url);
    client.expect("outrigger: the server is silent, so this may be neither a terminal nor a process (Enter ~. leaves)\r\n");
    client.type_keys("\r~.");
    assert!(client.code().is_some());
}

#[test]
fn input_from_a_pipe_is_sent_and_followed_by_an_end_of_file() {
    // Without the last line, `sh` gets an end of file. With a command that takes a while, the terminal loses the first one.
    for (script, input, expected) in [
        ("exec sh", "echo $((6*7))\nexit 3\n", 3),
        ("exec sh", "echo $((6*7)); (exit 4)\n", 4),
        ("exec sh", "echo $((6*7)); sleep 0.3; (exit 5)\n", 5),
        (
            "stty -echo; read -r line; echo $((6*7)); cat",
            "x\nno newline",
            0,
        ),
    ] {
        let server = terminal(&[], script);
        let output = attach_piped(&[], &url(server.address(), "/terminal"), input);
        assert!(text(&output.stdout).contains("42"), "{input:?}");
        assert_eq!(output.status.code(), Some(expected), "{input:?}");
    }
}

#[test]
fn cuts_lose_no_output_and_no_keys() {
    let server = terminal(&[], &numbers(300_000));
    // A message has up to 64 KiB, and arrives as a whole or not at all.
    let cutter = Cutter::start(Some(server.address()), vec![150_000; 100]);
    let output = attach_piped(&[], &url(cutter.address, "/terminal"), "");
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{told}");
    let is_whole = text(&output.stdout) == all_numbers(300_000);
    assert!(is_whole, "{} bytes; {told}", output.stdout.len());
    assert!(cutter.accepted() > 10, "{}", cutter.accepted());
    let told = text(&output.stderr);
    assert!(
        told.starts_with("outrigger: connection lost; trying again\noutrigger: connected again\n"),
        "{told}"
    );

    // Keys that are typed while the connection is cut arrive when it is back.
    let server = terminal(
        &[],
        "stty -echo; echo ready; while read -r line; do echo \"<$line>\"; done",
    );
    let address = server.address();
    let cutter = Cutter::start(Some(address), Vec::new());
    let mut client = attach(&[], &url(cutter.address, "/terminal"));
    client.expect("ready");
    client.type_keys("one\r");
    client.expect("<one>");
    cutter.set_target(None);
    cutter.cut();
    client.expect(
        "\r\noutrigger: connection lost; trying again (keys are kept; Enter ~. leaves)\r\n",
    );
    client.type_keys("two\r");
    cutter.set_target(Some(address));
    client.expect("<two>");
    client.expect("\r\noutrigger: connected again\r\n");
    client.type_keys("\x04");
    assert_eq!(client.code(), Some(0));
    assert_eq!(client.text().matches("<two>").count(), 1);
}

/// The bug: this took 30 s, in which keys seemed to do nothing.
#[test]
fn keys_without_effect_show_that_the_connection_is_gone() {
    let script = "stty -echo; echo ready; while read -r line; do echo \"<$line>\"; done";
    let server = terminal(&["--ping-interval", "1h"], script);
    let cutter = Cutter::start(Some(server.address()), Vec::new());
    let mut client = attach(&[], &url(cutter.address, "/terminal"));
    client.expect("ready");
    client.type_keys("one\r");
    client.expect("<one>");
    cutter.forget();
    client.type_keys("two\r");
    client.expect("connection lost; trying again");
    client.expect("<two>");
    client.type_keys("\x04");
    assert_eq!(client.code(), Some(0));
    assert_eq!(client.text().matches("<two>").count(), 1);
}

#[test]
fn a_terminal_begins_anew_when_its_server_restarts() {
    for options in [&[][..], &["--no-resume"]] {
        let script = "echo one $$; read -r line; echo got $line; read -r line";
        let mut first = terminal(options, script);
        let second = terminal(options, script);
        let cutter = Cutter::start(Some(first.address()), Vec::new());
        let mut client = attach(&[], &url(cutter.address, "/terminal"));
        client.expect("one ");
        cutter.set_target(None);
        first.signal(Signal::TERM);
        client.expect("connection lost; trying again");
        // The new program does not get what was typed for the other one.
        client.type_keys("stale\r");
        eventually("it tries to come back", || cutter.accepted() > 3);
        cutter.set_target(Some(second.address()));
        client.expect("the server has restarted: this is a new program");
        client.type_keys("again\r");
        client.expect("got again");
        client.type_keys("\r");
        assert_eq!(client.code(), Some(0));
        assert!(first.wait().success());
    }
}

#[test]
fn a_script_does_not_begin_anew_when_its_server_restarts() {
    let started = TraceFile::new("attach-script");
    let script = format!("echo $$ >>{}; exec sleep 1000", started.path());
    let first = terminal(&[], &script);
    let second = terminal(&[], &script);
    let cutter = Cutter::start(Some(first.address()), Vec::new());
    let url = url(cutter.address, "/terminal");
    let script = std::thread::spawn(move || attach_piped(&[], &url, "x\n"));
    started.pids(1);
    cutter.set_target(Some(second.address()));
    first.signal(Signal::TERM);
    let output = script.join().expect("it ends");
    assert_eq!(output.status.code(), Some(255));
    assert!(text(&output.stderr).contains("connection lost: "));
    assert_eq!(started.pids(1).len(), 1, "no other program was started");
}

#[test]
fn a_process_is_attached_to_again_without_a_resumable_connection() {
    // Without a writer, the process does not wait, so all its output is kept.
    let server = Program::start(&["processes", "--no-resume", "--scrollback", "4MiB"]);
    let address = server.address();
    let process = spawn(address, &format!("read -r line; {}", numbers(300_000)));
    let cutter = Cutter::start(Some(address), vec![150_000; 100]);
    let mut client = attach(
        &["--no-resume"],
        &url(cutter.address, &format!("{process}/attach?replay=output")),
    );
    eventually("it is attached", || cutter.accepted() == 1);
    client.type_keys("go\r");
    assert_eq!(client.code(), Some(5));
    // The test may not have read all of it from the terminal.
    client.expect("\n300000\n");
    assert!(cutter.accepted() > 5, "{}", cutter.accepted());
    let told: String = client
        .text()
        .lines()
        .filter(|line| line.contains("connected again"))
        .collect();
    assert!(!told.is_empty());
    // What is left without the messages of the client is the output, once and in order.
    let shown = client.text().replace(
        "\r\noutrigger: connection lost; trying again (keys are kept; Enter ~. leaves)\r\n",
        "",
    );
    let shown = shown
        .replace("\r\noutrigger: connected again\r\n", "")
        .replace("go\r\n", "");
    assert!(shown == all_numbers(300_000), "{} bytes", shown.len());
}

#[test]
fn output_that_is_no_longer_kept_is_announced() {
    let server = Program::start(&["processes", "--no-resume", "--scrollback", "4KiB"]);
    let address = server.address();
    let process = spawn(
        address,
        "echo ready; while read -r line; do [ \"$line\" = end ] && exit 6; done",
    );
    let cutter = Cutter::start(Some(address), Vec::new());
    let mut client = attach(
        &[],
        &url(cutter.address, &format!("{process}/attach?replay=output")),
    );
    client.expect("ready");
    cutter.set_target(None);
    cutter.cut();
    client.expect("connection lost");
    // Without a writer, the process does not wait.
    eventually("the writer is gone", || {
        let (_, status) = call(address, "GET", "/status", None);
        status["clients"].as_array().is_some_and(Vec::is_empty)
    });
    let watch = url(address, &format!("{process}/attach"));
    let viewer = attach(&["--viewer"], &watch);
    viewer.expect("ready");
    let text = "x".repeat(3000);
    // A viewer that lags by more than what is kept would be disconnected, so it has to catch up with each line.
    for count in 1..=3 {
        let body = json!({"data_b64": base64(format!("{text}\n").as_bytes())});
        let (status, _) = call(address, "POST", &format!("{process}/stdin"), Some(body));
        assert_eq!(status, 200);
        eventually("the process has written it", || {
            viewer.text().matches('x').count() >= 3000 * count
        });
    }
    cutter.set_target(Some(address));
    client.expect("of the output are no longer kept\r\n");
    client.type_keys("end\r");
    assert_eq!(client.code(), Some(6));
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::prelude::BASE64_STANDARD.encode(bytes)
}

#[test]
fn the_program_gets_the_size_of_the_terminal() {
    let server = terminal(
        &[],
        "stty size; trap 'stty size' WINCH; echo ready; while :; do read -r line; done",
    );
    let mut client = attach(&[], &url(server.address(), "/terminal"));
    client.expect("24 80\r\nready");
    client.resize(33, 101);
    client.type_keys("\r");
    client.expect("33 101\r\n");
    client.type_keys("~.");
    assert_eq!(client.code(), Some(0));
}

#[test]
fn escapes_are_for_the_client_and_other_keys_for_the_program() {
    let server = Program::start(&["processes"]);
    let address = server.address();
    let process = spawn(address, "echo ready; exec cat -A");
    let attach_url = url(address, &format!("{process}/attach"));
    let mut client = attach(&[], &attach_url);
    client.expect("ready");
    client.type_keys("~?");
    client.expect("outrigger: ~.   leave\r\n");
    client.type_keys("~~a~.\r");
    client.expect("~a~.$");
    client.type_keys("~.");
    assert_eq!(client.code(), Some(0));
    client.expect("outrigger: detached; the process goes on\r\n");
    assert_eq!(state(address, &process), "running");

    // Another character, and none.
    let mut client = attach(&["--escape", "^]"], &attach_url);
    client.type_keys("~.b\r");
    client.expect("~.b$");
    client.type_keys("\x1d.");
    assert_eq!(client.code(), Some(0));
    let mut client = attach(&["--escape", "none"], &attach_url);
    client.type_keys("~.c\r");
    client.expect("~.c$");
    client.type_keys("\x04");
    assert_eq!(client.code(), Some(0));
}

#[test]
fn a_user_can_leave_while_the_connection_is_cut() {
    let server = Program::start(&["processes"]);
    let address = server.address();
    let process = spawn(address, "echo ready; exec cat");
    for options in [&[][..], &["--no-resume", "--takeover"]] {
        let cutter = Cutter::start(Some(address), Vec::new());
        let mut client = attach(options, &url(cutter.address, &format!("{process}/attach")));
        let plain = OnTerminal::start(&["true"]).attributes();
        client.expect("ready");
        client.type_keys("\r");
        cutter.set_target(None);
        cutter.cut();
        client.expect("connection lost");
        client.type_keys("not sent\r~.");
        assert_eq!(client.code(), Some(0));
        assert_eq!(client.attributes(), plain);
        assert_eq!(state(address, &process), "running");
        // The resumable client is still known to the server.
        let mut next = attach(&["--takeover"], &url(address, &format!("{process}/attach")));
        next.expect("ready");
        next.type_keys("~.");
        assert_eq!(next.code(), Some(0));
        assert!(!next.text().contains("not sent"));
    }
}

#[test]
fn a_process_has_one_writer_and_any_number_of_viewers() {
    let server = Program::start(&["processes"]);
    let address = server.address();
    let process = spawn(
        address,
        "stty -echo; echo ready; while read -r line; do echo \"<$line>\"; done",
    );
    let attach_url = url(address, &format!("{process}/attach"));
    let mut first = attach(&[], &attach_url);
    first.expect("ready");

    let mut refused = attach(&[], &attach_url);
    let before = refused.attributes();
    assert_eq!(refused.code(), Some(255));
    refused.expect("409 Conflict: process already has an active attach session; use --takeover to replace the other client, or --viewer to watch\r\n");
    assert_eq!(refused.attributes(), before);

    let mut viewer = attach(&["--viewer"], &attach_url);
    viewer.expect("ready");
    viewer.type_keys("not sent\r");
    first.type_keys("sent\r");
    viewer.expect("<sent>");
    viewer.type_keys("~.");
    assert_eq!(viewer.code(), Some(0));
    assert!(!first.text().contains("not sent"));

    let before = first.attributes();
    let mut second = attach(&["--takeover"], &attach_url);
    second.expect("<sent>");
    assert_eq!(first.code(), Some(255));
    first.expect("outrigger: another client has taken over\r\n");
    assert_ne!(
        first.attributes(),
        before,
        "the terminal was raw, and is not any longer"
    );
    second.type_keys("last\r\x04");
    assert_eq!(second.code(), Some(0));
    second.expect("<last>");
}

/// Waits until the terminal is in raw mode: it differs from `before`.
#[test]
fn the_user_is_told_once_that_a_terminal_is_read_only() {
    let server = terminal(&["--read-only"], "sleep 0.2; echo end; exit 4");
    let url = url(server.address(), "/terminal");
    let output = attach_piped(&[], &url, "typed\n");
    assert_eq!(text(&output.stdout), "end\r\n");
    let told = text(&output.stderr);
    assert_eq!(told, "outrigger: watching: the server ignores the keys\n");
    assert_eq!(output.status.code(), Some(4));
}

fn expect_raw(client: &OnTerminal, before: &str) {
    eventually("the terminal is raw", || client.attributes() != before);
}

#[test]
fn the_terminal_is_restored_whatever_ends_the_client() {
    let script = "echo ready; read -r line; exit 9";
    let plain = OnTerminal::start(&["true"]).attributes();
    let server = terminal(&["--no-resume"], script);
    let address = server.address();
    let address_url = url(address, "/terminal");

    let mut client = attach(&[], &address_url);
    client.expect("ready");
    expect_raw(&client, &plain);
    // O_NONBLOCK would reach the shell, which shares the open file description.
    assert!(!client.attributes().contains("NONBLOCK"));
    client.type_keys("\r");
    assert_eq!(client.code(), Some(9));
    assert_eq!(client.attributes(), plain);

    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let mut client = attach(&[], &address_url);
        client.expect("ready");
        expect_raw(&client, &plain);
        client.signal(signal);
        assert_eq!(client.code(), Some(255), "{signal:?}");
        assert_eq!(client.attributes(), plain, "{signal:?}");
        client.expect("outrigger: ended by SIG");
    }

    let cutter = Cutter::start(Some(address), Vec::new());
    let mut client = attach(&[], &url(cutter.address, "/terminal"));
    client.expect("ready");
    expect_raw(&client, &plain);
    cutter.cut();
    assert_eq!(client.code(), Some(255));
    assert_eq!(client.attributes(), plain);
    client.expect("outrigger: connection lost: ");

    let mut client = attach(&[], &address_url);
    client.expect("ready");
    expect_raw(&client, &plain);
    client.type_keys("~.");
    assert_eq!(client.code(), Some(0));
    assert_eq!(client.attributes(), plain);

    let mut client = attach(&[], &address_url);
    client.expect("ready");
    drop(server);
    assert_eq!(client.code(), Some(255));
    assert_eq!(client.attributes(), plain);
}

#[test]
fn a_shell_can_suspend_and_continue_the_client() {
    let server = terminal(&[], "echo ready; read -r line; echo \"<$line>\"; exit 9");
    let url = url(server.address(), "/terminal");
    let script = format!(
        "set -m; {OUTRIGGER} attach {url}; echo \"stopped $?\"; read -r line; fg >/dev/null; echo \"ended $?\"; read -r line"
    );
    let mut shell = OnTerminal::start(&["bash", "-c", &script]);
    let plain = OnTerminal::start(&["true"]).attributes();
    shell.expect("ready");
    expect_raw(&shell, &plain);
    shell.type_keys("~\x1a");
    // 128 and the number of SIGTSTP.
    shell.expect("stopped 148");
    assert_eq!(shell.attributes(), plain);
    shell.type_keys("\r");
    expect_raw(&shell, &plain);
    shell.type_keys("back\r");
    shell.expect("<back>");
    shell.expect("ended 9");
    assert_eq!(shell.attributes(), plain);
    shell.type_keys("\r");
    shell.wait();
}

#[test]
fn a_killed_client_leaves_the_process_running() {
    let server = Program::start(&["processes"]);
    let address = server.address();
    let process = spawn(address, "echo ready; read -r line; exit 4");
    let attach_url = url(address, &format!("{process}/attach"));
    let mut client = attach(&[], &attach_url);
    client.expect("ready");
    client.signal(Signal::KILL);
    assert_eq!(client.code(), None);
    assert_eq!(state(address, &process), "running");
    let mut next = attach(&["--takeover"], &attach_url);
    next.expect("ready");
    next.type_keys("\r");
    assert_eq!(next.code(), Some(4));
}

#[test]
fn failures_of_the_client_are_one_line_and_exit_code_255() {
    let server = terminal(&[], "exit 0");
    let address = server.address();
    let nothing = url(address, "/nothing");
    let size = url(address, "/terminal?rows=0");
    let resumed = url(
        address,
        "/process/2f1c4a52-6f0c-4c5c-9a53-0b54a8b0e1c3/attach",
    );
    let attach = |args: &[&str]| outrigger(&[&["attach"][..], args].concat());
    for (args, why) in [
        (
            &[&*nothing][..],
            "404 Not Found: nothing is served at this path\n",
        ),
        (&[&resumed], "404 Not Found"),
        (&[&size], "400 Bad Request"),
        (
            &["ws://127.0.0.1:1/"],
            "cannot connect to ws://127.0.0.1:1/",
        ),
        (&["ftp://h/"], "scheme"),
        (&[], "missing URL"),
        (&["--viewer", "--takeover", &nothing], "--takeover"),
        (&["--escape", "ab", &nothing], "--escape: 'ab' is not"),
        (&["--rows", "1", &nothing], "unknown option '--rows'"),
    ] {
        let output = attach(args);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(255), "{told}");
        assert!(
            told.starts_with("outrigger: ") && told.contains(why),
            "{args:?}: {told}"
        );
        assert_eq!(told.lines().count(), 1, "{told}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_token_is_presented_from_the_url_or_the_environment() {
    let server = Program::spawn(Command::new(OUTRIGGER).args([
        "terminal",
        "--listen",
        "127.0.0.1:0",
        "--",
        "sh",
        "-c",
        "exit 8",
    ]));
    let line = server.line();
    let url = line
        .strip_prefix("outrigger: listening on ")
        .expect("the listening line");
    let (bare, token) = url.split_once("?token=").expect("a token");
    let output = attach_piped(&[], url, "");
    assert_eq!(output.status.code(), Some(8), "{}", text(&output.stderr));
    let output = attach_piped(&[], bare, "");
    assert_eq!(output.status.code(), Some(255));
    let told = text(&output.stderr);
    assert!(told.contains("401 Unauthorized"), "{told}");
    assert!(
        told.ends_with("; present a token with --token-file or OUTRIGGER_TOKEN\n"),
        "{told}"
    );
    let status = Command::new(OUTRIGGER)
        .args(["attach", bare])
        .env("OUTRIGGER_TOKEN", token)
        .stdin(Stdio::null())
        .status();
    assert_eq!(status.expect("the program starts").code(), Some(8));
}

#[test]
fn a_program_that_cannot_be_started_is_named() {
    let folder = std::env::temp_dir().join(format!("outrigger-attach-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a new folder");
    let server = terminal(&["--cwd", folder.to_str().expect("UTF-8")], "exit 0");
    let url = url(server.address(), "/terminal");
    std::fs::remove_dir(&folder).expect("it is empty");
    let output = attach_piped(&[], &url, "");
    assert_eq!(output.status.code(), Some(255));
    let told = text(&output.stderr);
    assert!(
        told.starts_with("outrigger: failed to start process"),
        "{told}"
    );
}

#[test]
fn a_reader_that_leaves_ends_the_client() {
    let server = terminal(&[], "stty raw; while :; do echo line; done");
    let mut child = Command::new(OUTRIGGER)
        .args(["attach", &url(server.address(), "/terminal")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    assert_eq!(wait(&mut child).code(), Some(255));
}

/// The bug: "nothing is served at this path", at paths that answer calls.
#[test]
fn a_wrong_url_gets_the_right_one() {
    let config = TraceFile::new("attach-hints");
    let routes =
        json!({"routes": {"/process": {"processes": {}}, "/mcp": {"mcp": {"command": ["cat"]}}}});
    std::fs::write(config.path(), routes.to_string()).expect("a file");
    let server = Program::start(&["serve", "--no-auth", "--config", &config.path()]);
    let address = server.address();
    let id = "2f1c4a52-6f0c-4c5c-9a53-0b54a8b0e1c3";
    let attach = "attach to a process at /process/ID/attach or /process/by-name/NAME";
    for (path, says) in [
        (&*format!("/process/{id}"), attach),
        ("/process", attach),
        ("/process/spawn", attach),
        (
            "/status",
            "this path answers HTTP requests, and no WebSocket",
        ),
        ("/mcp/", "the path is /mcp, without the final '/'"),
        ("/sse", "use Streamable HTTP at the path of the server"),
    ] {
        let output = outrigger(&["attach", &format!("ws://{address}{path}")]);
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(error.contains(says), "{path}: {error}");
    }
    for (command, says) in [
        (
            "ls -l",
            "\"command\" is the program alone: write its arguments into \"args\"",
        ),
        ("no-such-program", "No such file"),
    ] {
        let (status, body) = call(
            address,
            "POST",
            "/process/exec",
            Some(json!({"command": command})),
        );
        let message = body["message"].as_str().expect("a message");
        assert!(status == 400 && message.contains(says), "{body}");
    }
}
