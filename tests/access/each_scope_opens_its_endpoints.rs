//! What each kind of access opens: one table of every endpoint and every way to attach, checked with the real program.
//!
//! `cargo test --test access each_scope_opens_its_endpoints -- --nocapture` prints the table as Markdown.

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Instant;

use crate::common::agent::Client;
use crate::common::program::Program;
use crate::common::traces::TraceFile;
use crate::common::{CLOSE, PATIENCE, PING, POLL_INTERVAL, PONG, Wire, request};
use serde_json::{Value, json};

const OUTRIGGER: &str = env!("CARGO_BIN_EXE_outrigger");

/// Who asks: nobody, the tokens of each scope, a link to a process, a link to a session, and a user of `--auth-header` with the
/// scope `use`.
const COLUMNS: [&str; 8] = [
    "no token",
    "metrics",
    "watch",
    "use",
    "all",
    "process link",
    "session link",
    "proxy user",
];

/// A handshake that is accepted, and a connection that stays open.
const OK_WS: u16 = 101;

/// What each request gets: the status of the answer; for a WebSocket that is accepted and closed at once, the code of CLOSE.
///
/// The first word of a request is its method; `PAGE` is a GET request with `Accept: text/html`, `WS` a handshake, and `TTY` a
/// handshake with the subprotocol `tty`. `PROCESS` means a process with a terminal, and `SESSION` a session of the agent.
/// `NEW` means another process, whose only client is the one of this request, and `NOBODY` one that does not exist. The links are for
/// `PROCESS` and `SESSION`.
#[rustfmt::skip]
const TABLE: &[(&str, [u16; 8])] = &[
    //                                                    none  metr  watc  use   all   proc  sess  proxy
    ("GET /healthz",                                     [200,  200,  200,  200,  200,  200,  200,  200]),
    ("GET /readyz",                                      [200,  200,  200,  200,  200,  200,  200,  200]),
    ("GET /.well-known/oauth-protected-resource",        [200,  200,  200,  200,  200,  200,  200,  200]),
    ("GET /status",                                      [401,  200,  200,  200,  200,  403,  403,  200]),
    ("HEAD /status",                                     [401,  200,  200,  200,  200,  403,  403,  200]),
    ("GET /metrics",                                     [401,  200,  200,  200,  200,  403,  403,  200]),
    ("POST /metrics",                                    [401,  405,  405,  405,  405,  403,  403,  405]),

    ("PAGE /",                                           [200,  200,  200,  200,  200,  200,  200,  200]),
    ("PAGE /terminal",                                   [200,  200,  200,  200,  200,  200,  200,  200]),
    ("PAGE /process",                                    [200,  200,  200,  200,  200,  200,  200,  200]),
    ("PAGE PROCESS/attach",                              [200,  200,  200,  200,  200,  200,  200,  200]),
    ("PAGE /acp",                                        [200,  200,  200,  200,  200,  200,  200,  200]),
    ("GET /.outrigger/web/common.js",                    [200,  200,  200,  200,  200,  200,  200,  200]),
    ("GET /.outrigger/web/nothing.js",                   [404,  404,  404,  404,  404,  404,  404,  404]),
    ("POST /.outrigger/web/common.js",                   [405,  405,  405,  405,  405,  405,  405,  405]),
    ("PAGE /echo",                                       [401,  403,  403,  426,  426,  403,  403,  426]),
    ("PAGE /app",                                        [401,  403,  403,  426,  426,  403,  403,  426]),
    ("GET /echo",                                        [401,  403,  403,  426,  426,  403,  403,  426]),

    ("GET /.outrigger/session",                          [401,  200,  200,  200,  200,  200,  200,  200]),
    ("GET /.outrigger/log",                              [401,  403,  403,  403,  200,  403,  403,  403]),
    ("GET /.outrigger/links",                            [401,  403,  403,  403,  200,  403,  403,  403]),
    ("POST /.outrigger/links",                           [401,  403,  403,  403,  200,  403,  403,  403]),
    ("DELETE /.outrigger/links/1000000",                 [401,  403,  403,  403,  404,  403,  403,  403]),
    ("POST /.outrigger/clients/c1000000/close",          [401,  403,  403,  403,  404,  403,  403,  403]),
    ("WS /.outrigger/session",                           [401,  403,  404,  404,  404,  403,  403,  404]),
    ("WS /.outrigger/log",                               [401,  403,  404,  404,  404,  403,  403,  404]),
    ("WS /.outrigger/web/common.js",                     [401,  403,  404,  404,  404,  403,  403,  404]),
    ("WS /status",                                       [401,  403,  404,  404,  404,  403,  403,  404]),

    ("GET /process",                                     [401,  403,  403,  403,  200,  403,  403,  403]),
    ("HEAD /process",                                    [401,  403,  403,  403,  200,  403,  403,  403]),
    ("GET /process?usage=1",                             [401,  403,  403,  403,  200,  403,  403,  403]),
    ("POST /process/spawn",                              [401,  403,  403,  403,  200,  403,  403,  403]),
    ("POST /process/exec",                               [401,  403,  403,  403,  200,  403,  403,  403]),
    ("POST /process/exec/more",                          [401,  403,  403,  403,  404,  403,  403,  403]),
    ("GET PROCESS/status",                               [401,  403,  403,  403,  200,  403,  403,  403]),
    ("POST PROCESS/stdin",                               [401,  403,  403,  403,  200,  403,  403,  403]),
    ("POST PROCESS/resize",                              [401,  403,  403,  403,  200,  403,  403,  403]),
    ("GET PROCESS/stdout/stream",                        [401,  403,  403,  403,  200,  403,  403,  403]),
    ("GET PROCESS/stdout/stream?mode=viewer",            [401,  403,  403,  403,  200,  403,  403,  403]),
    ("GET PROCESS/screen",                               [401,  403,  200,  200,  200,  403,  403,  200]),
    ("POST PROCESS/wait",                                [401,  403,  200,  200,  200,  403,  403,  200]),
    ("POST PROCESS/input",                               [401,  403,  403,  200,  200,  403,  403,  200]),
    ("POST NEW/kill",                                    [401,  403,  403,  403,  200,  403,  403,  403]),
    ("GET PROCESS/attach",                               [401,  403,  403,  426,  426,  403,  403,  426]),
    ("GET NOBODY/status",                                [401,  403,  403,  403,  404,  403,  403,  403]),
    ("POST NOBODY/stdin",                                [401,  403,  403,  403,  404,  403,  403,  403]),
    ("POST NOBODY/resize",                               [401,  403,  403,  403,  404,  403,  403,  403]),
    ("POST NOBODY/kill",                                 [401,  403,  403,  403,  404,  403,  403,  403]),
    ("GET NOBODY/stdout/stream",                         [401,  403,  403,  403,  404,  403,  403,  403]),
    ("GET NOBODY/screen",                                [401,  403,  404,  404,  404,  403,  403,  404]),
    ("POST NOBODY/wait",                                 [401,  403,  404,  404,  404,  403,  403,  404]),
    ("POST NOBODY/input",                                [401,  403,  403,  404,  404,  403,  403,  404]),

    ("WS PROCESS/attach",                                [401,  403,  403,  101,  101,  403,  403,  101]),
    ("WS PROCESS/attach?mode=writer",                    [401,  403,  403,  101,  101,  403,  403,  101]),
    ("WS PROCESS/attach?takeover=1",                     [401,  403,  403,  101,  101,  403,  403,  101]),
    ("WS PROCESS/attach?input=text",                     [401,  403,  403,  101,  101,  403,  403,  101]),
    ("TTY PROCESS/attach",                               [401,  403,  403,  101,  101,  403,  403,  101]),
    ("WS PROCESS/attach?mode=viewer",                    [401,  403,  101,  101,  101,  101,  403,  101]),
    ("WS PROCESS/attach?mode=viewer&takeover=1",         [401,  403,  101,  101,  101,  101,  403,  101]),
    ("WS PROCESS/attach?mode=viewer&input=text",         [401,  403,  101,  101,  101,  101,  403,  101]),
    ("WS PROCESS/attach?mode=viewer&mode=writer",        [401,  403,  403,  101,  101,  403,  403,  101]),
    ("WS PROCESS/attach?mode=writer&takeover=1",         [401,  403,  403,  101,  101,  403,  403,  101]),
    ("WS PROCESS/attach?mode=boss",                      [401,  403,  403,  400,  400,  403,  403,  400]),
    ("WS PROCESS/attach?mode=viewer&resume=new",         [401,  403,  101,  101,  101,  101,  403,  101]),
    ("TTY PROCESS/attach?mode=viewer",                   [401,  403,  101,  101,  101,  101,  403,  101]),
    ("WS NEW/attach?mode=viewer",                        [401,  403,  101,  101,  101,  403,  403,  101]),
    ("WS NEW/attach",                                    [401,  403,  403,  101,  101,  403,  403,  101]),
    ("WS NOBODY/attach?mode=viewer",                     [401,  403,  404,  404,  404,  403,  403,  404]),

    ("WS /terminal",                                     [401,  403,  403,  101,  101,  403,  403,  101]),
    ("WS /terminal?mode=viewer",                         [401,  403,  403,  400,  400,  403,  403,  400]),
    ("WS /terminal?input=text",                          [401,  403,  403,  101,  101,  403,  403,  101]),
    ("TTY /terminal",                                    [401,  403,  403,  101,  101,  403,  403,  101]),

    ("WS /acp",                                          [401,  403,  101,  101,  101,  403, 1008,  101]),
    ("WS /acp?watch=SESSION",                            [401,  403, 1008, 1008,  101,  403,  101, 1008]),
    ("WS /acp?watch=SESSION&resume=new",                 [401,  403, 1008, 1008,  101,  403,  101, 1008]),
    ("WS /acp?watch=other",                              [401,  403, 1008, 1008, 1008,  403, 1008, 1008]),
    ("WS /acp?watch=SESSION&watch=other",                [401,  403, 1008, 1008, 1008,  403, 1008, 1008]),

    ("WS /echo",                                         [401,  403,  403,  101,  101,  403,  403,  101]),
    ("WS /app",                                          [401,  403,  403,  101,  101,  403,  403,  101]),
    ("WS /nothing",                                      [401,  403,  404,  404,  404,  403,  403,  404]),
];

const TOKENS: &str = "\
mona metrics mona-0123456789abcdef
walter watch walter-0123456789abcdef
ursula use ursula-0123456789abcdef
alice all alice-0123456789abcdef
";

/// A server with a route of each kind, a process with a terminal, a session, and a link to each.
struct Server {
    address: SocketAddr,
    /// The header fields of each column.
    fields: [String; 8],
    /// The path of the process, without a slash at the end.
    process: String,
    session: String,
    _owner: Client,
    _program: Program,
    _files: [TraceFile; 3],
}

impl Server {
    fn start() -> Self {
        let files =
            ["tokens", "config", "resource"].map(|name| TraceFile::new(&format!("table-{name}")));
        let [tokens, config, resource] = &files;
        fs::write(tokens.path(), TOKENS).expect("a file");
        fs::set_permissions(tokens.path(), fs::Permissions::from_mode(0o600)).expect("a file");
        let document = json!({"resource": "https://example.com", "authorization_servers": ["https://example.com"]});
        fs::write(resource.path(), document.to_string()).expect("a file");
        let routes = json!({
            "/echo": {"echo": {}},
            "/terminal": {"terminal": {"command": ["cat"]}},
            "/process": {"processes": {}},
            "/app": {"app": {"command": ["cat"]}},
            "/acp": {"agent": {"command": [OUTRIGGER, "example-agent"]}},
        });
        fs::write(config.path(), json!({ "routes": routes }).to_string()).expect("a file");
        let program = Program::spawn(Command::new(OUTRIGGER).args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--config",
            &config.path(),
            "--token-file",
            &tokens.path(),
            "--oauth-resource",
            &resource.path(),
            "--trusted-proxy",
            "127.0.0.1",
            "--auth-header",
            "X-User",
            "--auth-scope",
            "use",
        ]));
        let address = program.address();
        let token = |secret: &str| format!("Authorization: Bearer {secret}\r\n");
        let owner = token("alice-0123456789abcdef");
        let process = spawn(address, &owner);
        let mut wire = Wire::open(address);
        wire.send(&head("WS /acp", &owner, ""));
        assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
        let (client, session, _) = Client::initialized_on(wire).open_session();
        let link = |target: Value| {
            let issued = call(address, "POST /.outrigger/links", &owner, &target);
            token(
                issued["token"]
                    .as_str()
                    .unwrap_or_else(|| panic!("{issued}")),
            )
        };
        let fields = [
            String::new(),
            token("mona-0123456789abcdef"),
            token("walter-0123456789abcdef"),
            token("ursula-0123456789abcdef"),
            owner.clone(),
            link(json!({"path": format!("{process}/attach")})),
            link(json!({"path": "/acp", "session": session})),
            "X-User: peter\r\n".to_owned(),
        ];
        Self {
            address,
            fields,
            process,
            session,
            _owner: client,
            _program: program,
            _files: files,
        }
    }

    /// What a request of a column gets.
    fn outcome(&self, line: &str, column: usize) -> u16 {
        let is_for_new = line.contains("NEW");
        let owner = &self.fields[4];
        let other = if is_for_new {
            spawn(self.address, owner)
        } else {
            String::new()
        };
        let target = line
            .replace("PROCESS", &self.process)
            .replace("SESSION", &self.session)
            .replace("NEW", &other)
            .replace("NOBODY", "/process/00000000-0000-4000-8000-000000000000");
        let body = match line {
            "POST /.outrigger/links" => {
                json!({"path": format!("{}/attach", self.process)}).to_string()
            }
            "POST PROCESS/stdin" => json!({"data_b64": "aGVsbG8="}).to_string(),
            "POST PROCESS/resize" => json!({"rows": 24, "cols": 80}).to_string(),
            "POST PROCESS/wait" => json!({"idle_ms": 0}).to_string(),
            "POST PROCESS/input" => json!({"text": "x"}).to_string(),
            "POST NEW/kill" => json!({"signal": "TERM"}).to_string(),
            "POST /process/spawn" | "POST /process/exec" => json!({"command": "true"}).to_string(),
            line if line.starts_with("POST") && !line.contains("/web/") => "{}".to_owned(),
            _ => String::new(),
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut wire = Wire::open(self.address);
            wire.send(&head(&target, &self.fields[column], &body));
            let answer = wire.read_head();
            let status: u16 = answer[9..12].parse().expect("a number");
            // The writer of the column before is about to leave.
            if status == 409 && Instant::now() < deadline {
                std::thread::park_timeout(POLL_INTERVAL);
                continue;
            }
            return if status == OK_WS {
                opened(&mut wire)
            } else {
                status
            };
        }
    }
}

/// What becomes of a connection that was accepted: the code of CLOSE, or 101 if it answers PING.
fn opened(wire: &mut Wire) -> u16 {
    wire.send_frame(PING, b"");
    loop {
        let frame = wire.read_frame();
        match frame.opcode {
            PONG => return OK_WS,
            CLOSE => return u16::from_be_bytes([frame.payload[0], frame.payload[1]]),
            _ => {}
        }
    }
}

/// The bytes of a request. Its line is a line of the table.
fn head(line: &str, fields: &str, body: &str) -> Vec<u8> {
    let (method, target) = line.split_once(' ').expect("a method and a path");
    let handshake = |more: &str| {
        let head = String::from_utf8(request(target)).expect("ASCII");
        head.replacen("Upgrade:", &format!("{fields}{more}Upgrade:"), 1)
    };
    let text = match method {
        "WS" => handshake(""),
        "TTY" => handshake("Sec-WebSocket-Protocol: tty\r\n"),
        "PAGE" => {
            // A browser that opens an address sends no token in a header.
            let (query, fields) = match fields.strip_prefix("Authorization: Bearer ") {
                Some(token) => (format!("?token={}", token.trim_end()), ""),
                None => (String::new(), fields),
            };
            format!(
                "GET {target}{query} HTTP/1.1\r\nHost: localhost\r\n{fields}Accept: text/html,*/*;q=0.8\r\n\r\n"
            )
        }
        _ if body.is_empty() => {
            format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{fields}Accept: */*\r\n\r\n")
        }
        _ => format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ),
    };
    text.into_bytes()
}

/// Makes a call that must succeed.
fn call(address: SocketAddr, line: &str, fields: &str, body: &Value) -> Value {
    let mut wire = Wire::open(address);
    wire.send(&head(line, fields, &body.to_string()));
    wire.read_response().1
}

/// Starts a process with a terminal. Returns its path.
fn spawn(address: SocketAddr, fields: &str) -> String {
    let body = json!({"command": "cat", "allocate_tty": true});
    let spawned = call(address, "POST /process/spawn", fields, &body);
    format!(
        "/process/{}",
        spawned["process_id"].as_str().expect("an id")
    )
}

/// The table as Markdown.
fn markdown() -> String {
    let mut text = format!(
        "| request | {} |\n|---|{}\n",
        COLUMNS.join(" | "),
        "---|".repeat(COLUMNS.len())
    );
    for (line, expected) in TABLE {
        let cells = expected.map(|status| status.to_string()).join(" | ");
        let _ = writeln!(text, "| `{line}` | {cells} |");
    }
    text
}

#[test]
fn each_scope_opens_its_endpoints_and_nothing_else() {
    let server = Server::start();
    println!("{}", markdown());
    let mut wrong = String::new();
    for (line, expected) in TABLE {
        let columns: Vec<usize> = (0..COLUMNS.len()).collect();
        let found: Vec<u16> = columns
            .iter()
            .map(|column| server.outcome(line, *column))
            .collect();
        if found != *expected {
            let _ = writeln!(wrong, "{line}: expected {expected:?}, found {found:?}");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}
