//! A running program with a token file, and requests with its tokens.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::agent::Client;
use super::program::Program;
use super::traces::TraceFile;
use super::{PING, PONG, Wire, request};

/// One token of each scope, and a second one of the scope `all`.
pub const TEAM: &str = "\
ada all ada-0123456789abcdef
bob all bob-0123456789abcdef
ursula use ursula-0123456789abcdef
walter watch walter-0123456789abcdef
mona metrics mona-0123456789abcdef
";

/// The secret of a name in [`TEAM`].
pub fn secret(name: &str) -> String {
    format!("{name}-0123456789abcdef")
}

/// A program with the tokens of [`TEAM`].
pub struct Guarded {
    pub program: Program,
    pub address: SocketAddr,
    pub log: TraceFile,
    tokens: TraceFile,
    _config: TraceFile,
}

impl Guarded {
    /// Starts `outrigger serve` with these routes, and more arguments.
    pub fn serve(routes: &Value, args: &[&str]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let file = |kind: &str| TraceFile::new(&format!("guarded-{kind}-{number}"));
        let (tokens, config, log) = (file("tokens"), file("config"), file("log"));
        write(&tokens, TEAM);
        fs::write(config.path(), json!({ "routes": routes }).to_string()).expect("a file");
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 2>\"$LOG\""]);
        command.args([env!("CARGO_BIN_EXE_outrigger"), "serve"]);
        command.args(["--listen", "127.0.0.1:0", "--log", "debug"]);
        command.args(["--config", &config.path(), "--token-file", &tokens.path()]);
        let program = Program::spawn(command.args(args).env("LOG", log.path()));
        let address = program.address();
        Self {
            program,
            address,
            log,
            tokens,
            _config: config,
        }
    }

    /// Replaces the tokens. The program reads them at the next hangup.
    pub fn write_tokens(&self, text: &str) {
        write(&self.tokens, text);
    }

    /// Makes a call with a token, and more header fields. Returns the connection.
    pub fn send(&self, line: &str, secret: &str, fields: &str, body: &str) -> Wire {
        let mut wire = Wire::open(self.address);
        wire.send(&call_with(line, secret, fields, body));
        wire
    }

    /// Makes a call with a token. Returns the status and the JSON of the answer.
    pub fn call(&self, line: &str, secret: &str, body: Option<Value>) -> (u16, Value) {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let fields = if body.is_empty() {
            ""
        } else {
            "Content-Type: application/json\r\n"
        };
        let (head, answer) = self.send(line, secret, fields, &body).read_response();
        (head[9..12].parse().expect("a number"), answer)
    }

    /// Makes a call that succeeds.
    pub fn get(&self, path: &str, secret: &str) -> Value {
        let (status, answer) = self.call(&format!("GET {path}"), secret, None);
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// Sends a handshake with a token. Returns the connection and the status.
    pub fn ask(&self, path: &str, secret: &str) -> (Wire, u16) {
        let mut wire = Wire::open(self.address);
        let head = String::from_utf8(request(path)).expect("ASCII");
        let field = format!("Authorization: Bearer {secret}\r\nUpgrade:");
        wire.send(head.replacen("Upgrade:", &field, 1).as_bytes());
        let head = wire.read_head();
        (wire, head[9..12].parse().expect("a number"))
    }

    /// Opens a WebSocket with a token.
    pub fn connect(&self, path: &str, secret: &str) -> Wire {
        let (wire, status) = self.ask(path, secret);
        assert_eq!(status, 101, "{path}");
        wire
    }

    /// Starts a process with a terminal. Returns its id.
    pub fn spawn(&self, secret: &str, script: &str) -> String {
        let body = json!({"command": "sh", "args": ["-c", script], "allocate_tty": true});
        let (status, answer) = self.call("POST /process/spawn", secret, Some(body));
        assert_eq!(status, 200, "{answer}");
        answer["process_id"].as_str().expect("an id").to_owned()
    }

    /// A client of the agent with a session. Returns the name of the session, too.
    pub fn session(&self, path: &str, secret: &str) -> (Client, String) {
        let client = Client::initialized_on(self.connect(path, secret));
        let (client, session, _) = client.open_session();
        (client, session)
    }
}

fn write(file: &TraceFile, text: &str) {
    fs::write(file.path(), text).expect("a file");
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600)).expect("a file");
}

fn call_with(line: &str, secret: &str, fields: &str, body: &str) -> Vec<u8> {
    let length = if body.is_empty() {
        String::new()
    } else {
        format!("Content-Length: {}\r\n", body.len())
    };
    format!(
        "{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n{fields}{length}\r\n{body}"
    )
    .into_bytes()
}

/// Waits until the server has handled everything that was sent. Nothing else may arrive before that.
pub fn expect_silence(wire: &mut Wire) {
    wire.send_frame(PING, b"still there");
    let frame = wire.read_frame();
    assert_eq!(
        frame.opcode,
        PONG,
        "{}",
        String::from_utf8_lossy(&frame.payload)
    );
}
