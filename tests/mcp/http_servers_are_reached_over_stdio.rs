//! `outrigger connect http://...`: a host that only starts programs reaches an MCP server over Streamable HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use crate::client::{STATELESS, example, figure, script};
use crate::common::cutter::Cutter;
use crate::common::program::Program;
use crate::common::traces::eventually;
use serde_json::{Value, json};

/// Starts `connect` for an address.
fn connect(address: SocketAddr, options: &[&str]) -> Program {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.env_remove("OUTRIGGER_TOKEN");
    command.args(["connect", &format!("http://{address}/mcp")]);
    Program::spawn(command.args(options))
}

fn send(host: &mut Program, id: u64, method: &str, params: Value) {
    let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    host.write(&request.to_string());
}

/// Begins a session.
fn initialize(host: &mut Program) {
    let info = json!({"name": "host", "version": "1"});
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info});
    send(host, 0, "initialize", params);
    assert_eq!(host.event()["result"]["protocolVersion"], "2025-11-25");
    host.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
}

#[test]
fn a_host_uses_both_generations_and_leaves_no_session() {
    let server = example(&[]);
    let address = server.address();
    let mut host = connect(address, &[]);
    initialize(&mut host);
    for id in 1..=20 {
        let arguments = json!({"a": id, "b": 1});
        send(
            &mut host,
            id,
            "tools/call",
            json!({"name": "add", "arguments": arguments}),
        );
    }
    let mut answers: Vec<_> = (1..=20).map(|_| host.event()).collect();
    answers.sort_by_key(|answer| answer["id"].as_u64());
    for (id, answer) in (1..).zip(answers) {
        let text = format!("{}", id + 1);
        assert_eq!(
            (&answer["id"], &answer["result"]["content"][0]["text"]),
            (&json!(id), &json!(text))
        );
    }
    let meta = json!({
        "progressToken": 1,
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let count = json!({"name": "count", "arguments": {"steps": 2}, "_meta": meta});
    send(&mut host, 30, "tools/call", count);
    for step in 1..=2 {
        assert_eq!(host.event()["params"]["progress"], step);
    }
    assert_eq!(host.event()["id"], 30);
    assert_eq!(figure(address, "sessions"), 1);
    // What the host still asks at its end is answered.
    send(&mut host, 31, "tools/list", json!({}));
    host.end_input();
    assert_eq!(host.event()["id"], 31);
    assert!(host.wait().success());
    eventually("the session ends", || figure(address, "sessions") == 0);
}

#[test]
fn a_call_that_may_have_run_gets_an_error_and_the_session_goes_on() {
    // The server never answers a call of a tool.
    let mut server = script(&[], r#"echo "$line" >&2"#);
    let address = server.address();
    let mut log = server.follow_log();
    let cutter = Cutter::start(Some(address), Vec::new());
    let mut host = connect(cutter.address, &[]);
    initialize(&mut host);
    send(&mut host, 1, "tools/call", json!({"name": "pay"}));
    log.expect(r#""pay""#);
    cutter.cut();
    let error = host.event();
    assert_eq!(
        (&error["id"], &error["error"]["code"]),
        (&json!(1), &json!(-32016))
    );
    let message = error["error"]["message"].as_str().expect("a text");
    assert!(message.contains("may have run"), "{message}");
    // The connection is new, and the session the same.
    send(&mut host, 2, "tools/call", json!({"name": "again"}));
    let text = log.expect(r#""again""#);
    assert_eq!(text.matches(r#""pay""#).count(), 1, "{text}");
    assert_eq!(figure(address, "sessions"), 1);
}

#[test]
fn a_session_begins_again_when_the_server_has_restarted() {
    let (first, second) = (example(&[]), example(&[]));
    let second_address = second.address();
    let cutter = Cutter::start(Some(first.address()), Vec::new());
    let mut host = connect(cutter.address, &[]);
    initialize(&mut host);
    send(&mut host, 1, "tools/list", json!({}));
    assert_eq!(host.event()["id"], 1);
    cutter.set_target(Some(second_address));
    drop(first);
    cutter.cut();
    let arguments = json!({"a": 1, "b": 2});
    send(
        &mut host,
        2,
        "tools/call",
        json!({"name": "add", "arguments": arguments}),
    );
    let answer = host.event();
    assert_eq!(
        (&answer["id"], &answer["result"]["content"][0]["text"]),
        (&json!(2), &json!("3"))
    );
    assert_eq!(figure(second_address, "sessions"), 1);
    host.end_input();
    assert!(host.wait().success());
    eventually("the session ends", || {
        figure(second_address, "sessions") == 0
    });
}

/// A server of its own: each request head and body comes in order, and the next response is what `answer` sends.
struct Raw {
    listener: TcpListener,
}

impl Raw {
    fn start() -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        (Self { listener }, address)
    }

    /// The next connection, with its request.
    fn request(&self) -> (TcpStream, String) {
        let (stream, _) = self.listener.accept().expect("a connection");
        let mut reader = BufReader::new(stream.try_clone().expect("a descriptor"));
        let mut text = String::new();
        while !text.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut text).expect("a request") > 0);
        }
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let length = length.map_or(0, |length| length.parse().expect("a number"));
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body");
        text.push_str(std::str::from_utf8(&body).expect("UTF-8"));
        (stream, text)
    }
}

fn respond(mut stream: TcpStream, head: &str, body: &str) {
    let length = body.len();
    let text =
        format!("HTTP/1.1 {head}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).expect("it is read");
}

/// Answers the handshake of a session, and refuses the GET stream.
fn serve_raw(raw: Raw) -> Receiver<(TcpStream, String)> {
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        loop {
            let (stream, text) = raw.request();
            if text.starts_with("GET ") && !text.contains("Last-Event-ID") {
                respond(stream, "405 Method Not Allowed\r\n", "");
            } else if sender.send((stream, text)).is_err() {
                return;
            }
        }
    });
    requests
}

#[test]
fn an_answer_is_resumed_and_cookies_tokens_and_fields_are_sent_each_time() {
    let (raw, address) = Raw::start();
    let requests = serve_raw(raw);
    let next = || {
        requests
            .recv_timeout(std::time::Duration::from_secs(30))
            .expect("a request")
    };
    let token = std::env::temp_dir().join(format!("outrigger-token-{}", std::process::id()));
    std::fs::write(&token, "s3cret\n").expect("a file");
    let options = [
        "--header",
        "X-Tenant: blue",
        "--token-file",
        token.to_str().expect("UTF-8"),
    ];
    let mut host = connect(address, &options);
    send(
        &mut host,
        0,
        "initialize",
        json!({"protocolVersion": "2025-11-25"}),
    );
    let (stream, text) = next();
    let own = ["X-Tenant: blue\r\n", "Authorization: Bearer s3cret\r\n"];
    assert!(own.iter().all(|field| text.contains(field)), "{text}");
    let result = r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25"}}"#;
    let head =
        "200 OK\r\nContent-Type: application/json\r\nMcp-Session-Id: s1\r\nSet-Cookie: node=a\r\n";
    respond(stream, head, result);
    host.event();
    send(&mut host, 1, "tools/call", json!({"name": "pay"}));
    let (mut stream, text) = next();
    for field in [
        "Mcp-Session-Id: s1\r\n",
        "MCP-Protocol-Version: 2025-11-25\r\n",
        "Cookie: node=a\r\n",
    ] {
        assert!(text.contains(field), "{text}");
    }
    // The connection is lost behind the first event.
    let event = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nid: 7\nretry: 10\ndata: \n\nid: 8\nda";
    stream.write_all(event.as_bytes()).expect("it is read");
    drop(stream);
    let (stream, text) = next();
    assert!(text.starts_with("GET /mcp"), "{text}");
    for field in ["Last-Event-ID: 7\r\n", "Cookie: node=a\r\n", own[0], own[1]] {
        assert!(text.contains(field), "{text}");
    }
    let answer = "id: 8\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";
    respond(
        stream,
        "200 OK\r\nContent-Type: text/event-stream\r\n",
        answer,
    );
    assert_eq!(
        host.event(),
        json!({"jsonrpc": "2.0", "id": 1, "result": {}})
    );
    host.end_input();
    let (stream, text) = next();
    assert!(
        text.starts_with("DELETE /mcp") && text.contains("Mcp-Session-Id: s1"),
        "{text}"
    );
    respond(stream, "200 OK\r\n", "");
    assert!(host.wait().success());
    std::fs::remove_file(token).expect("it is there");
}

#[test]
fn a_refusal_is_answered_and_explained() {
    let document = std::env::temp_dir().join(format!("outrigger-resource-{}", std::process::id()));
    std::fs::write(&document, r#"{"resource":"https://mcp.example.com/mcp"}"#).expect("a file");
    let program = env!("CARGO_BIN_EXE_outrigger");
    let path = document.to_str().expect("UTF-8");
    let server = Program::spawn(Command::new(program).args([
        "mcp",
        "--listen",
        "127.0.0.1:0",
        "--oauth-resource",
        path,
        "--",
        program,
        "example-mcp",
    ]));
    let address = server.address();
    let mut host = connect(address, &[]);
    send(&mut host, 0, "initialize", json!({}));
    let answer = host.event();
    let message = answer["error"]["message"].as_str().expect("an error");
    let metadata = format!("http://{address}/.well-known/oauth-protected-resource");
    assert!(
        message.contains("401") && message.contains(&metadata),
        "{message}"
    );
    let (status, log) = host.wait_and_read_log();
    assert_eq!(status.code(), Some(1));
    assert!(
        log.contains(&metadata) && log.contains("--token-file"),
        "{log}"
    );
    std::fs::remove_file(document).expect("it is there");

    // A WebSocket needs another URL.
    let echo = Program::start(&["echo", "--path", "/mcp"]);
    let mut host = connect(echo.address(), &[]);
    send(&mut host, 1, "ping", json!({}));
    let message = host.event()["error"]["message"].to_string();
    assert!(message.contains("ws://"), "{message}");
    for options in [["--no-json"], ["--no-resume"]] {
        let (status, log) = connect(address, &options).wait_and_read_log();
        assert_eq!(status.code(), Some(2), "{log}");
    }
}

#[test]
fn a_server_that_is_not_there_is_waited_for() {
    let cutter = Cutter::start(None, Vec::new());
    let mut host = connect(cutter.address, &[]);
    send(
        &mut host,
        0,
        "initialize",
        json!({"protocolVersion": "2025-11-25", "capabilities": {}}),
    );
    eventually("it tries again", || cutter.accepted() > 1);
    let server = example(&[]);
    cutter.set_target(Some(server.address()));
    assert_eq!(host.event()["id"], 0);
}

/// The bug: the host saw only "403 Forbidden", and not which setting the server lacks.
#[test]
fn a_refusal_has_the_reason_of_the_server() {
    let (raw, address) = Raw::start();
    let answering = std::thread::spawn(move || {
        let body = json!({"type": "error", "message": "this Host is not accepted; use --allow-host", "detail": "\"x\""});
        respond(raw.request().0, "403 Forbidden\r\n", &body.to_string());
    });
    let mut host = connect(address, &[]);
    send(&mut host, 0, "initialize", json!({}));
    let error = host.event()["error"]["message"].clone();
    let said =
        "the server answered 403 Forbidden: this Host is not accepted; use --allow-host: \"x\"";
    assert_eq!(error, said);
    answering.join().expect("it was asked");
}

/// The JSON objects in what `connect --list` prints, in their order.
fn blocks(text: &str) -> Vec<Value> {
    let parts = text.split("\n\n").filter(|part| part.starts_with('{'));
    parts
        .map(|part| serde_json::from_str(part).expect("JSON"))
        .collect()
}

/// Runs `connect --list`. Returns its exit code and its output on both streams.
fn list(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command
        .env_remove("OUTRIGGER_TOKEN")
        .args(["connect", "--list"])
        .args(arguments);
    let output = command.output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    (output.status.code(), text, error)
}

/// What `connect --list` prints about a server with this `/status`.
fn list_of_status(status: &Value) -> (Option<i32>, String, String) {
    let (raw, address) = Raw::start();
    let body = status.to_string();
    let answering = std::thread::spawn(move || respond(raw.request().0, "200 OK\r\n", &body));
    let listed = list(&[&format!("http://{address}")]);
    answering.join().expect("it was asked");
    listed
}

/// The bug: the settings had a server's paths as they were, so a command that was pasted ran what they said.
#[test]
fn what_a_server_calls_itself_is_data_in_every_setting() {
    let paths = [
        "/a;touch$IFS'x'",
        "/$(reboot)",
        "/`id`",
        "/it's\"\\",
        "/--scope",
        "/a/tools",
        "/b/tools",
    ];
    let services = paths.map(|path| json!({"service": "mcp", "path": path}));
    let (code, text, error) = list_of_status(&json!({"services": services}));
    assert_eq!((code, &*error), (Some(0), ""));
    // A shell reads each command, with `claude` as a function that shows its arguments.
    let commands = text.lines().filter(|line| line.starts_with("claude "));
    let commands: Vec<&str> = commands.collect();
    let script = format!(
        "claude() {{ printf '%s\n' \"$@\"; }}\n{}",
        commands.join("\n")
    );
    let shell = Command::new("sh").args(["-c", &script]).output();
    let shown = String::from_utf8(shell.expect("a shell").stdout).expect("UTF-8");
    let shown: Vec<&str> = shown.lines().collect();
    let arguments: Vec<&[&str]> = shown.chunks(6).collect();
    assert_eq!(arguments.len(), paths.len(), "{text}");
    let mut names = Vec::new();
    for (argument, path) in arguments.iter().zip(paths) {
        let [.., name, url] = argument else {
            panic!("{argument:?}")
        };
        assert!(url.ends_with(path), "{url}");
        assert!(
            name.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        );
        assert!(!name.starts_with('-') && !names.contains(name), "{name}");
        names.push(name);
        let cursor = &blocks(&text)[1]["mcpServers"][*name]["url"];
        assert_eq!(cursor, *url);
        let toml = format!("[mcp_servers.{}]\nurl = {}\n", json!(name), json!(url));
        assert!(text.contains(&toml), "{text}");
    }
    for bad in ["/a\nb", "/a\u{1b}[2J", "/a\u{202e}b", "/a b", "x"] {
        let services = [json!({"service": "mcp", "path": bad})];
        let (code, text, error) = list_of_status(&json!({"services": services}));
        assert_eq!((code, &*text), (Some(1), ""), "{bad:?}");
        assert!(error.contains("cannot be part of a URL"), "{error}");
        assert!(!error.trim_end().contains(char::is_control), "{error:?}");
    }
}

#[test]
fn the_settings_of_other_clients_are_listed() {
    let (code, text, _) = list(&[
        "https://devbox.example/mcp?token=s3cret",
        "--header",
        "X: hush",
    ]);
    assert_eq!(code, Some(0));
    // The bug: the value of a header field, which may be a key, was printed.
    assert!(!text.contains("s3cret") && !text.contains("hush"), "{text}");
    let command = "claude mcp add --transport http devbox https://devbox.example/mcp --header 'Authorization: Bearer TOKEN' --header 'X: VALUE'\n";
    assert!(
        text.contains(command) && text.contains("[mcp_servers.\"devbox\"]\n"),
        "{text}"
    );
    let blocks_of = blocks(&text);
    assert_eq!(blocks_of.len(), 5, "{text}");
    assert_eq!(
        blocks_of[0]["servers"]["devbox"]["url"],
        "https://devbox.example/mcp"
    );
    let headers = json!({"Authorization": "Bearer TOKEN", "X": "VALUE"});
    assert_eq!(blocks_of[0]["servers"]["devbox"]["headers"], headers);
    // The bug: this entry had no token.
    let program = json!({
        "command": "outrigger",
        "args": ["connect", "https://devbox.example/mcp", "--header", "X: VALUE"],
        "env": {"OUTRIGGER_TOKEN": "TOKEN"},
    });
    assert_eq!(blocks_of[4]["mcpServers"]["devbox"], program);
    assert!(
        text.contains("http_headers = { \"X\" = \"VALUE\" }\n"),
        "{text}"
    );

    // The servers of an Outrigger.
    let file = std::env::temp_dir().join(format!("outrigger-list-{}.json", std::process::id()));
    std::fs::write(
        &file,
        r#"{"mcpServers":{"a":{"command":"cat"},"b":{"command":"cat"}}}"#,
    )
    .expect("a file");
    let server = Program::start(&["serve", "--mcp-servers", file.to_str().expect("UTF-8")]);
    let address = server.address();
    let (code, text, error) = list(&[&format!("http://{address}")]);
    assert_eq!((code, &*error), (Some(0), ""));
    let servers = &blocks(&text)[1]["mcpServers"];
    assert_eq!(
        servers,
        &json!({"a": {"url": format!("http://{address}/a")}, "b": {"url": format!("http://{address}/b")}})
    );
    std::fs::remove_file(file).expect("it is there");
    let echo = Program::start(&["echo"]);
    let (code, text, error) = list(&[&format!("http://{}", echo.address())]);
    assert!(
        code == Some(1) && text.is_empty() && error.contains("no MCP server"),
        "{error}"
    );
    let (code, _, error) = list(&["ws://h/mcp"]);
    assert!(code == Some(2) && error.contains("http://"), "{error}");
}
