//! The `outrigger` program as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::traces::{descendants, is_zombie};
use super::{PATIENCE, POLL_INTERVAL};

/// Runs a command that ends by itself, and returns its output.
pub fn outrigger(args: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    wait(&mut child);
    child.wait_with_output().expect("it has ended")
}

/// Waits for the end of a process. Kills it and panics if it does not end in time.
pub fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("a child of this process") {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("the program does not end");
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// Reads a stream to its end in a thread.
fn read_to_end(mut stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, text) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("UTF-8");
        sender.send(text)
    });
    text
}

/// A running program. Dropping it kills the program and, on Linux, every process that descends from it.
pub struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Receiver<String>,
    stderr: Option<ChildStderr>,
}

impl Program {
    /// Starts `outrigger` with these arguments on a free port, without access control.
    pub fn start(args: &[&str]) -> Self {
        let (before, after) = args.split_at(1);
        // A test may be too busy to answer a PING in time.
        let own = [
            "--listen",
            "127.0.0.1:0",
            "--no-auth",
            "--ping-interval",
            "0",
        ];
        let all = [before, &own, after].concat();
        Self::spawn(Command::new(env!("CARGO_BIN_EXE_outrigger")).args(all))
    }

    /// Starts a command that runs `outrigger`.
    pub fn spawn(command: &mut Command) -> Self {
        Self::spawn_with(command, Stdio::piped())
    }

    /// Starts a command with the given standard input.
    pub fn spawn_with(command: &mut Command, stdin: Stdio) -> Self {
        let mut child = command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let (sender, stdout) = mpsc::channel();
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Self {
            stdin: child.stdin.take(),
            stderr: child.stderr.take(),
            stdout,
            child,
        }
    }

    /// The next line of standard output.
    pub fn line(&self) -> String {
        self.stdout
            .recv_timeout(PATIENCE)
            .expect("a line of output")
    }

    /// The next line of standard output, as JSON.
    pub fn event(&self) -> Value {
        serde_json::from_str(&self.line()).expect("a line of JSON")
    }

    /// The next event of this kind. Skips other events.
    pub fn event_of(&self, kind: &str) -> Value {
        loop {
            let event = self.event();
            if event["event"] == kind {
                return event;
            }
        }
    }

    /// The remaining lines of standard output, to its end.
    pub fn rest(&self) -> Vec<String> {
        std::iter::from_fn(|| self.stdout.recv_timeout(PATIENCE).ok()).collect()
    }

    /// The address in the `listening` line.
    pub fn address(&self) -> SocketAddr {
        let line = self.line();
        let url = line
            .strip_prefix("outrigger: listening on ")
            .and_then(|url| Some(url.split_once("://")?.1))
            .expect("the listening line");
        url.split_once('/')
            .expect("a path")
            .0
            .parse()
            .expect("an address")
    }

    /// The address in the `listening` event.
    pub fn address_of_event(&self) -> SocketAddr {
        let event = self.event_of("listening");
        let port = event["port"].as_u64().expect("a port") as u16;
        assert!(
            event["url"]
                .as_str()
                .expect("a URL")
                .contains(&format!(":{port}/"))
        );
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// Writes a line to standard input.
    pub fn write(&mut self, line: &str) {
        self.write_text(&format!("{line}\n"));
    }

    /// Writes text to standard input.
    pub fn write_text(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().expect("standard input is open");
        stdin.write_all(text.as_bytes()).expect("the program reads");
    }

    /// Writes a command of the `app` protocol.
    pub fn command(&mut self, command: Value) {
        self.write(&command.to_string());
    }

    /// Queries the number of clients.
    pub fn client_count(&mut self) -> u64 {
        self.command(json!({"cmd": "status", "id": "count"}));
        self.event_of("status")["client_count"]
            .as_u64()
            .expect("a number")
    }

    pub fn end_input(&mut self) {
        self.stdin = None;
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process is there");
    }

    /// Waits for the end of the program.
    pub fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }

    /// Returns whether the program has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("a child of this process")
            .is_some()
    }

    /// Reads the log to its end in a thread.
    pub fn read_log(&mut self) -> std::thread::JoinHandle<String> {
        let mut stderr = self.stderr.take().expect("read once");
        std::thread::spawn(move || {
            let mut log = String::new();
            stderr.read_to_string(&mut log).expect("the log is UTF-8");
            log
        })
    }

    /// Reads the log line by line.
    pub fn follow_log(&mut self) -> Log {
        let stderr = self.stderr.take().expect("read once");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
            lines.try_for_each(|line| sender.send(line))
        });
        let text = String::new();
        Log { lines, text }
    }

    /// Waits for the end and returns the log.
    pub fn wait_and_read_log(&mut self) -> (ExitStatus, String) {
        let log = read_to_end(self.stderr.take().expect("read once"));
        let status = self.wait();
        (status, log.recv_timeout(PATIENCE).expect("the log ends"))
    }
}

/// The log of a running program.
pub struct Log {
    lines: Receiver<String>,
    text: String,
}

impl Log {
    /// Waits for a line with this text after those that were waited for. Returns the log until then.
    pub fn expect(&mut self, text: &str) -> &str {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("{text}: {}", self.text));
            self.text.push_str(&line);
            self.text.push('\n');
            if line.contains(text) {
                return &self.text;
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            end_descendants(self.child.id());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends the processes that a server's programs have started, which a killed server cannot do. The server is stopped first, because one
/// that runs starts its programs again.
fn end_descendants(server: u32) {
    let server_pid = Pid::from_raw(server as i32).expect("a process");
    let _ = kill_process(server_pid, Signal::STOP);
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let mut left = descendants(server);
        left.retain(|pid| !is_zombie(*pid));
        if left.is_empty() {
            return;
        }
        // Their children become the server's, if it adopts orphans, and are found in the next round.
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
}
