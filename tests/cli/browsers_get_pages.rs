//! Pages and their files, as the real program hands them out: without a token, to browsers alone, and at no cost to others.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::program::{Program, outrigger};
use crate::common::traces::TraceFile;
#[cfg(feature = "web")]
use crate::common::traces::eventually;
use crate::common::{Wire, request};
use rustix::process::Signal;
use serde_json::{Value, json};

const OUTRIGGER: &str = env!("CARGO_BIN_EXE_outrigger");

const SECRET: &str = "s3cret-0123456789";

/// What a browser accepts when it opens an address.
const BROWSER: &str = "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n";

const AUTHORIZED: &str = "Authorization: Bearer s3cret-0123456789\r\n";

/// A running program that requires [`SECRET`], and its files.
struct Server {
    program: Program,
    address: SocketAddr,
    log: TraceFile,
    _files: [TraceFile; 2],
}

impl Server {
    /// Starts a command with more arguments.
    fn start(args: &[&str], after: &[&str]) -> Self {
        Self::start_with(args, after, &json!({}))
    }

    /// Starts `outrigger serve` with these routes.
    fn serve(routes: &Value) -> Self {
        Self::start_with(&["serve"], &[], &json!({ "routes": routes }))
    }

    fn start_with(args: &[&str], after: &[&str], config: &Value) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let file = |kind: &str| TraceFile::new(&format!("pages-{kind}-{number}"));
        let (token, config_file, log) = (file("token"), file("config"), file("log"));
        fs::write(token.path(), SECRET).expect("a file");
        fs::set_permissions(token.path(), fs::Permissions::from_mode(0o600)).expect("a file");
        fs::write(config_file.path(), config.to_string()).expect("a file");
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 2>\"$LOG\"", OUTRIGGER]);
        command.args(args).env("LOG", log.path());
        command.args(["--listen", "127.0.0.1:0", "--log", "debug"]);
        command.args([
            "--config",
            &config_file.path(),
            "--token-file",
            &token.path(),
        ]);
        let program = Program::spawn(command.args(after));
        let address = program.address();
        Self {
            program,
            address,
            log,
            _files: [token, config_file],
        }
    }

    /// A server with a route of each kind that has a page, and one that has none.
    fn with_all_pages() -> Self {
        Self::serve(&json!({
            "/echo": {"echo": {}},
            "/terminal": {"terminal": {"command": ["cat"]}},
            "/process": {"processes": {}},
            "/acp": {"agent": {"command": [OUTRIGGER, "example-agent"]}},
        }))
    }

    /// Sends a request without a body.
    fn send(&self, line: &str, fields: &str) -> Answer {
        Answer::of(self.address, line, fields)
    }

    fn status(&self, line: &str, fields: &str) -> u16 {
        self.send(line, fields).status
    }
}

/// An answer, and the connection that it came from.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
    wire: Wire,
}

impl Answer {
    fn of(address: SocketAddr, line: &str, fields: &str) -> Self {
        let mut wire = Wire::open(address);
        let host = if fields.contains("Host: ") {
            ""
        } else {
            "Host: localhost\r\n"
        };
        wire.send(format!("{line} HTTP/1.1\r\n{host}{fields}\r\n").as_bytes());
        Self::read(wire, line)
    }

    fn read(wire: Wire, line: &str) -> Self {
        let mut wire = wire;
        let head = wire.read_head();
        let mut answer = Self {
            status: head[9..12].parse().expect("a number"),
            head,
            body: Vec::new(),
            wire,
        };
        if let Some(length) = answer.field("Content-Length")
            && !line.starts_with("HEAD ")
        {
            let length = length.parse().expect("a number");
            answer.body = answer.wire.read_exact(length);
        }
        answer
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// The body as text, decompressed.
    fn text(&self) -> String {
        let mut content = self.body.clone();
        if self.field("Content-Encoding") == Some("gzip") {
            // 16 more than the window: the gzip format.
            let config = zlib_rs::InflateConfig {
                window_bits: 16 + 15,
            };
            let mut space = vec![0; 100 * content.len()];
            let (text, code) = zlib_rs::decompress_slice(&mut space, &content, config);
            assert_eq!(code, zlib_rs::ReturnCode::Ok);
            content = text.to_vec();
        }
        String::from_utf8(content).expect("UTF-8")
    }
}

/// A handshake with the token.
fn handshake(path: &str) -> Vec<u8> {
    let head = String::from_utf8(request(path)).expect("ASCII");
    head.replacen("Upgrade:", &format!("{AUTHORIZED}Upgrade:"), 1)
        .into_bytes()
}

const NOBODY: &str = "/process/00000000-0000-4000-8000-000000000000";

#[test]
fn pages_and_their_files_need_no_token_and_may_load_nothing_from_elsewhere() {
    let server = Server::with_all_pages();
    // Browsers ask for an icon of addresses that have no page.
    let icon = server.send("GET /favicon.ico", "Accept: image/*\r\n");
    assert_eq!(icon.status, 204);
    assert_eq!(icon.field("Cache-Control"), Some("max-age=86400"));
    assert!(!server.log.text().contains("refused"));
    let attach = format!("{NOBODY}/attach");
    let html = "text/html; charset=utf-8";
    let script = "text/javascript; charset=utf-8";
    for (path, media_type) in [
        ("/", html),
        ("/?token=wrong", html),
        ("/terminal", html),
        ("/terminal?rows=10", html),
        ("/process", html),
        ("/process/", html),
        (&attach, html),
        ("/process/by-name/work", html),
        ("/process/by-name/work/attach", html),
        ("/acp", html),
        ("/.outrigger/web/common.js", script),
        ("/.outrigger/web/console.js", script),
        ("/.outrigger/web/agent.js", script),
        ("/.outrigger/web/common.css", "text/css; charset=utf-8"),
    ] {
        let mut answer = server.send(&format!("GET {path}"), BROWSER);
        assert_eq!(answer.status, 200, "{path}");
        for (name, value) in [
            ("Content-Type", media_type),
            ("Cache-Control", "no-cache"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            // The peer has not presented a token, so it cannot hold the connection.
            ("Connection", "close"),
            (
                "Content-Security-Policy",
                "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; \
                 img-src 'self' data:; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; \
                 frame-ancestors 'none'",
            ),
        ] {
            assert_eq!(answer.field(name), Some(value), "{path}: {}", answer.head);
        }
        // At the path of a page, the response depends on `Accept`: browsers get the page, other clients do not.
        let varies = if media_type == html {
            "Accept, Accept-Encoding"
        } else {
            "Accept-Encoding"
        };
        assert_eq!(answer.field("Vary"), Some(varies), "{path}");
        assert!(!answer.text().contains(SECRET) && !answer.body.is_empty());
        let tag = answer.field("ETag").expect(&answer.head).to_owned();
        answer.wire.end_output();
        answer.wire.expect_end();

        let mut head = server.send(&format!("HEAD {path}"), BROWSER);
        let length = answer.body.len().to_string();
        assert_eq!(
            (head.status, head.field("Content-Length")),
            (200, Some(&*length))
        );
        head.wire.end_output();
        head.wire.expect_end();

        for (known, status) in [
            (tag.clone(), 304),
            (format!("\"other\", {tag}"), 304),
            ("\"other\"".to_owned(), 200),
        ] {
            let fields = format!("{BROWSER}If-None-Match: {known}\r\n");
            let mut answer = server.send(&format!("GET {path}"), &fields);
            assert_eq!(answer.status, status, "{path} {known}");
            assert_eq!(answer.field("ETag"), Some(&*tag));
            answer.wire.end_output();
            answer.wire.expect_end();
        }
    }
    // No page is in the figures of calls.
    let status = server.send("GET /status", AUTHORIZED);
    let status: Value = serde_json::from_slice(&status.body).expect("JSON");
    assert_eq!(status["totals"]["calls"], 0, "{status}");
}

#[test]
fn only_browsers_that_open_an_address_get_a_page() {
    let server = Server::with_all_pages();
    for fields in [
        "",
        "Accept: */*\r\n",
        "Accept: application/json\r\n",
        "Accept: text/html;q=0, */*\r\n",
        // The default of a library for programs.
        "Accept: text/html, image/gif, *; q=.2, */*; q=.2\r\n",
    ] {
        let authorized = format!("{fields}{AUTHORIZED}");
        for path in ["/terminal", "/acp"] {
            let line = format!("GET {path}");
            assert_eq!(server.status(&line, &authorized), 426, "{path} {fields}");
            let is_html = fields.contains("html, ");
            let without = if is_html { 200 } else { 401 };
            assert_eq!(server.status(&line, fields), without, "{path} {fields}");
        }
        let list = server.send("GET /process", &authorized);
        assert_eq!((list.status, &*list.text()), (200, r#"{"processes":[]}"#));
        let is_html = fields.contains("html, ");
        let without = if is_html { 200 } else { 401 };
        assert_eq!(server.status("GET /process", fields), without);
    }
    for accept in ["TEXT/HTML", "text/html ;level=1", "image/png, text/html"] {
        let fields = format!("Accept: {accept}\r\n");
        assert_eq!(server.status("GET /terminal", &fields), 200, "{accept}");
    }
    // Other paths of the process API, and services without a page, answer as they always did.
    for (path, status) in [("/echo", 426), ("/process/spawn", 405), ("/nothing", 404)] {
        let line = format!("GET {path}");
        assert_eq!(server.status(&line, BROWSER), 401, "{path}");
        let fields = format!("{BROWSER}{AUTHORIZED}");
        assert_eq!(server.status(&line, &fields), status, "{path}");
    }
    for method in ["POST", "PUT", "DELETE"] {
        let line = |path: &str| format!("{method} {path}");
        let at_file = server.send(&line("/.outrigger/web/common.js"), "Content-Length: 0\r\n");
        assert_eq!(
            (at_file.status, at_file.field("Allow")),
            (405, Some("GET, HEAD"))
        );
        assert_eq!(server.status(&line("/terminal"), BROWSER), 401);
    }
    // A handshake is for the service, although it accepts HTML.
    let mut wire = Wire::open(server.address);
    let handshake = String::from_utf8(request("/terminal")).expect("ASCII");
    let fields = format!("{BROWSER}{AUTHORIZED}Upgrade:");
    wire.send(handshake.replacen("Upgrade:", &fields, 1).as_bytes());
    assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
}

#[test]
fn pages_are_for_known_hosts_and_origins() {
    let server = Server::with_all_pages();
    for path in [
        "/",
        "/terminal",
        "/.outrigger/web/common.js",
        "/.outrigger/nothing",
    ] {
        let line = format!("GET {path}");
        let status = |fields: &str| server.status(&line, &format!("{BROWSER}{fields}"));
        assert_eq!(status("Host: evil.example\r\n"), 403, "{path}");
        assert_eq!(status("Origin: http://evil.example\r\n"), 403, "{path}");
        assert_ne!(
            status("Host: here\r\nOrigin: http://here\r\n"),
            200,
            "{path}"
        );
        let own = status("Host: localhost\r\nOrigin: http://localhost\r\n");
        assert_eq!(
            own,
            if path.ends_with("nothing") { 404 } else { 200 },
            "{path}"
        );
    }
}

#[test]
fn a_route_at_the_root_wins_over_the_console() {
    let fields = format!("{BROWSER}{AUTHORIZED}");
    for path in ["/", "/..."] {
        let mut server = Server::serve(&json!({
            (path): {"app": {"command": ["cat"]}},
            "/terminal": {"terminal": {"command": ["cat"]}},
        }));
        assert_eq!(server.status("GET /", BROWSER), 401, "{path}");
        assert_eq!(server.status("GET /", &fields), 426, "{path}");
        let other = server.status("GET /other", &fields);
        assert_eq!(other, if path == "/" { 404 } else { 426 });
        assert_eq!(server.status("GET /terminal", BROWSER), 200, "{path}");
        assert_eq!(
            server.status("GET /.outrigger/web/common.js", ""),
            200,
            "{path}"
        );
        assert_eq!(server.status("GET /.outrigger/nothing", ""), 404, "{path}");
        server.program.signal(Signal::TERM);
        server.program.wait();
        let lines = server.program.rest();
        assert!(
            !lines.iter().any(|line| line.contains("console at")),
            "{lines:?}"
        );
    }
    // The process API itself may be there: its page is the console.
    let server = Server::serve(&json!({"/...": {"processes": {}}}));
    assert!(
        server
            .send("GET /", BROWSER)
            .text()
            .contains("/.outrigger/web/console.js")
    );
    assert_eq!(server.status("GET /", "Accept: */*\r\n"), 401);
}

#[test]
fn all_paths_can_begin_with_that_of_a_proxy() {
    // The bug: behind a proxy that passes paths on unchanged, nothing was found.
    let config = json!({"routes": {
        "/terminal": {"terminal": {"command": ["cat"]}},
        "/process": {"processes": {}},
    }});
    let mut server = Server::start_with(&["serve", "--base-path", "/tools/x/"], &[], &config);
    for (path, root) in [
        ("/tools/x/", "\"./"),
        ("/tools/x/terminal", "\"./"),
        ("/tools/x/process/by-name/y", "\"../../"),
    ] {
        let text = server.send(&format!("GET {path}"), BROWSER).text();
        let file = format!("{root}.outrigger/web/common.css");
        assert!(text.contains(&file), "{path}: {text}");
        assert!(!text.contains("\"/"), "{path}: {text}");
    }
    for (path, status) in [
        ("/tools/x/.outrigger/web/common.js", 200),
        ("/tools/x/status", 200),
        ("/tools/x/process", 200),
        ("/tools/x/healthz", 200),
        // Probes do not come through the proxy.
        ("/healthz", 200),
        ("/readyz", 200),
        ("/status", 404),
        ("/terminal", 404),
        ("/.outrigger/web/common.js", 404),
        ("/tools/x", 404),
        ("/tools/xy/status", 404),
        ("/tools/x/tools/x/status", 404),
    ] {
        let line = format!("GET {path}");
        assert_eq!(server.status(&line, AUTHORIZED), status, "{path}");
    }
    // A call with a body, whose path is read twice.
    let body = r#"{"command":"true"}"#;
    let fields = format!(
        "{AUTHORIZED}Content-Type: application/json\r\nContent-Length: {}\r\n",
        body.len()
    );
    let mut wire = Wire::open(server.address);
    let head = format!("POST /tools/x/process/exec HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    wire.send(format!("{head}{body}").as_bytes());
    assert_eq!(Answer::read(wire, "POST").status, 200);
    let mut wire = Wire::open(server.address);
    let handshake = String::from_utf8(request("/tools/x/terminal")).expect("ASCII");
    let fields = format!("{AUTHORIZED}Upgrade:");
    wire.send(handshake.replacen("Upgrade:", &fields, 1).as_bytes());
    assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
    server.program.signal(Signal::TERM);
    server.program.wait();
    let lines = server.program.rest();
    let expected = format!("console at http://{}/tools/x/", server.address);
    assert!(
        lines.iter().any(|line| line.ends_with(&expected)),
        "{lines:?}"
    );
}

#[test]
fn no_spelling_of_a_path_skips_the_token() {
    let server = Server::with_all_pages();
    for path in [
        "/.outrigger/log",
        "/.outrigger/log?after=0",
        "/.outrigger/log?",
        "http://localhost/.outrigger/log",
        "/.outrigger/links",
        "/.outrigger/links?x",
        "/.outrigger/links/",
        "/.outrigger/links/1",
        "/.outrigger/session",
        "/.outrigger/clients/c1/close",
        "//.outrigger/links",
        "/./.outrigger/links",
        "/%2eoutrigger/links",
        "/.Outrigger/links",
        "/.outrigger",
        "/process/../.outrigger/log",
        "/status",
        "/metrics",
    ] {
        let line = format!("GET {path}");
        assert_eq!(server.status(&line, BROWSER), 401, "{path}");
    }
    // Nothing is at these paths, for anyone.
    for path in [
        "/.outrigger/",
        "/.outrigger/log/",
        "/.outrigger/LOG",
        "/.outrigger/../status",
        "/.outrigger/web/../log",
        "/.outrigger/web/..%2flog",
        "/.outrigger/web/",
        "/.outrigger/web",
        "/.outrigger/web//common.js",
        "/.outrigger/web/Common.js",
        "/.outrigger/web/dist/xterm.mjs",
        "/.outrigger//links",
        "/.outrigger/links%2f",
        "/.outrigger/clients/c1",
    ] {
        for method in ["GET", "HEAD"] {
            let answer = server.send(&format!("{method} {path}"), BROWSER);
            assert_eq!(answer.status, 404, "{method} {path}");
        }
    }
    // A handshake needs a token, whatever its path.
    for path in [
        "/.outrigger/web/common.js",
        "/.outrigger/log",
        "/.outrigger/x",
        "/",
        "/acp",
    ] {
        let mut wire = Wire::open(server.address);
        wire.send(&request(path));
        assert!(wire.read_head().starts_with("HTTP/1.1 401 "), "{path}");
    }
}

#[test]
fn a_stranger_gets_one_page_on_each_connection() {
    let server = Server::with_all_pages();
    let line = "GET /terminal";
    // A second request behind the first one, without a token and with one.
    for fields in ["", AUTHORIZED] {
        let mut wire = Wire::open(server.address);
        let page = format!("{line} HTTP/1.1\r\nHost: localhost\r\n{BROWSER}\r\n");
        let next = format!("GET /process HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        wire.send(format!("{page}{next}").as_bytes());
        let mut answer = Answer::read(wire, line);
        assert_eq!(
            (answer.status, answer.field("Connection")),
            (200, Some("close"))
        );
        answer.wire.end_output();
        answer.wire.expect_end();
    }
    // The holder of the token keeps its connection, and each of its requests is checked on its own.
    let answer = server.send("GET /process", AUTHORIZED);
    assert_eq!(
        (answer.status, answer.field("Connection")),
        (200, Some("keep-alive"))
    );
    let mut wire = answer.wire;
    wire.send(format!("GET /process HTTP/1.1\r\nHost: localhost\r\n{AUTHORIZED}\r\n").as_bytes());
    let answer = Answer::read(wire, "GET /process");
    assert_eq!(
        (answer.status, answer.field("Connection")),
        (200, Some("keep-alive"))
    );
    let mut wire = answer.wire;
    wire.send(b"GET /process HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let answer = Answer::read(wire, "GET /process");
    assert_eq!(
        (answer.status, answer.field("Connection")),
        (401, Some("close"))
    );
}

#[test]
fn a_stranger_cannot_send_a_body() {
    let server = Server::with_all_pages();
    for (line, status) in [
        ("GET /terminal", 413),
        ("GET /.outrigger/web/common.js", 413),
        ("POST /.outrigger/web/common.js", 413),
        ("POST /.outrigger/nothing", 413),
        ("GET /.well-known/oauth-protected-resource", 413),
        ("POST /.outrigger/links", 401),
        ("POST /.outrigger/session", 401),
    ] {
        for framing in [
            "Content-Length: 1",
            "Content-Length: 1000000000",
            "Transfer-Encoding: chunked",
        ] {
            for expect in ["", "Expect: 100-continue\r\n"] {
                let fields =
                    format!("{BROWSER}Content-Type: application/json\r\n{framing}\r\n{expect}");
                let answer = server.send(line, &fields);
                // A chunked body may be empty, so it is not rejected before its first chunk.
                if answer.status == 100 {
                    assert!(framing.contains("chunked"), "{line} {framing}");
                    continue;
                }
                assert_eq!(
                    (answer.status, answer.field("Connection")),
                    (status, Some("close")),
                    "{line} {framing}"
                );
            }
        }
    }
}

/// Without the terminal page, no file is long enough to wait in the server.
#[cfg(feature = "web")]
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn readers_that_do_not_read_cost_no_memory() {
    const COUNT: usize = 150;
    /// The bytes that wait for each reader.
    const LEAST: usize = 30_000;
    // A connection is kept for more requests, which a stranger's is not, if the server requires no token.
    let program = Program::start(&["terminal", "--", "cat"]);
    let address = program.address();
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", program.pid()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.expect("a figure").trim().trim_end_matches(" kB");
        kib.parse::<usize>().expect("a number") << 10
    };
    let line = "GET /.outrigger/web/xterm.mjs".to_owned();
    let length = Answer::of(address, &line, "").body.len();
    // The pages of the program that answer are in memory from now on.
    Answer::of(address, "GET /metrics", "");
    let before = resident();
    // The kernel takes some megabytes for each connection, so each one asks for more. The rest waits in the server.
    let requests = format!("{line} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let requests = requests.repeat((16 << 20) / length);
    let wires: Vec<Wire> = (0..COUNT)
        .map(|_| {
            let mut wire = Wire::open(address);
            wire.send(requests.as_bytes());
            wire
        })
        .collect();
    let mut queued = 0;
    eventually("long output waits in the server", || {
        let metrics = Answer::of(address, "GET /metrics", "").text();
        let mut lines = metrics.lines();
        let figure = lines.find_map(|line| line.strip_prefix("outrigger_queued_bytes "));
        queued = figure
            .and_then(|figure| figure.parse().ok())
            .expect("a figure");
        queued > COUNT * LEAST
    });
    let grown = resident().saturating_sub(before);
    println!("{queued} bytes wait for {COUNT} readers: {grown} bytes more");
    assert!(grown < queued / 2, "{grown} bytes more, {queued} wait");
    drop(wires);
}

#[test]
fn a_stopping_server_answers_a_connection_that_was_there_once_and_ends() {
    let ignores = "trap '' HUP TERM; echo ready; exec sleep 1000";
    let mut server = Server::start(
        &["terminal", "--drain-timeout", "4s"],
        &["--", "sh", "-c", ignores],
    );
    let mut attached = Wire::open(server.address);
    attached.send(&handshake("/terminal"));
    assert!(attached.read_head().starts_with("HTTP/1.1 101 "));
    attached.read_greeting("/terminal");
    let mut shown = Vec::new();
    while !shown.starts_with(b"ready") {
        shown.extend(attached.read_frame().payload);
    }
    let mut kept = server
        .send("GET /terminal", &format!("{BROWSER}{AUTHORIZED}"))
        .wire;
    let waits = Wire::open(server.address);
    server.program.signal(Signal::TERM);
    kept.expect_end();
    let line = "GET /terminal";
    let mut waits = waits;
    waits.send(format!("{line} HTTP/1.1\r\nHost: localhost\r\n{BROWSER}\r\n").as_bytes());
    let mut answer = Answer::read(waits, line);
    assert_eq!(
        (answer.status, answer.field("Connection")),
        (200, Some("close"))
    );
    answer.wire.end_output();
    answer.wire.expect_end();
    assert_eq!(attached.read_close().0, 1001);
    assert!(server.program.wait().code().is_some());
}

#[test]
fn the_pages_of_sixty_three_routes_are_there() {
    let mut routes = serde_json::Map::new();
    for at in 0..62 {
        routes.insert(format!("/{at}"), json!({"echo": {}}));
    }
    routes.insert(
        "/terminal".to_owned(),
        json!({"terminal": {"command": ["cat"]}}),
    );
    let server = Server::serve(&routes.into());
    assert_eq!(server.status("GET /terminal", BROWSER), 200);
    assert!(
        server
            .send("GET /", BROWSER)
            .text()
            .contains("/.outrigger/web/console.js")
    );
    let mut wire = Wire::open(server.address);
    wire.send(&handshake("/61"));
    assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
    wire.send_frame(crate::common::TEXT, b"hello");
    assert_eq!(wire.read_frame().payload, b"hello");
}

#[test]
fn a_full_server_still_has_its_console() {
    let routes = json!({"/echo": {"echo": {}}, "/process": {"processes": {}}});
    let server = Server::start_with(
        &["serve"],
        &["--max-clients", "1"],
        &json!({ "routes": routes }),
    );
    let mut wire = Wire::open(server.address);
    wire.send(&handshake("/echo"));
    assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
    assert_eq!(server.status("GET /process", AUTHORIZED), 503);
    for path in ["/", "/process", "/.outrigger/web/console.js"] {
        assert_eq!(
            server.status(&format!("GET {path}"), BROWSER),
            200,
            "{path}"
        );
    }
    assert_eq!(server.status("GET /.outrigger/log", AUTHORIZED), 200);
    assert_eq!(server.status("GET /status", AUTHORIZED), 200);
}

#[test]
fn no_token_of_an_address_is_in_the_log() {
    let mut server = Server::with_all_pages();
    for path in [
        "/",
        "/terminal",
        "/process",
        "/acp",
        "/.outrigger/web/common.js",
        "/.outrigger/nothing",
        "/.outrigger/log",
    ] {
        for method in ["GET", "POST"] {
            let line = format!("{method} {path}?token={SECRET}");
            let fields = format!("{BROWSER}Referer: http://localhost{path}?token={SECRET}\r\n");
            server.send(&line, &fields);
        }
        server.send(&format!("GET {path}?token=wr0ng-0123456789"), BROWSER);
    }
    let log = server.send("GET /.outrigger/log", AUTHORIZED);
    assert!(log.text().contains("/terminal"), "{}", log.text());
    server.program.signal(Signal::TERM);
    server.program.wait();
    for text in [log.text(), server.log.text()] {
        assert!(
            text.contains("GET") && !text.contains("0123456789"),
            "{text}"
        );
    }
}

/// The lines that a program prints before it serves, for these arguments.
fn printed(args: &[&str]) -> Vec<String> {
    let mut program = Program::spawn(Command::new(OUTRIGGER).args(args));
    let first = program.line();
    program.signal(Signal::TERM);
    program.wait();
    [vec![first], program.rest()].concat()
}

#[test]
fn addresses_of_pages_are_printed_with_the_token_behind_a_number_sign() {
    let socket = TraceFile::new("pages-socket");
    let unix = format!("unix:{}", socket.path());
    let routes = TraceFile::new("pages-routes");
    let all = json!({"routes": {"/shell": {"terminal": {"command": ["cat"]}}, "/process": {"processes": {}}}});
    fs::write(routes.path(), all.to_string()).expect("a file");
    let listen = ["--listen", "127.0.0.1:0"];
    let has_terminal = cfg!(feature = "web");
    for (command, path, pages) in [
        (
            &["terminal"][..],
            "/terminal",
            if has_terminal { &["page"][..] } else { &[] },
        ),
        (&["processes"], "/", &["console"]),
        (&["processes", "--path", "/..."], "/", &["console"]),
        (
            &["serve", "--config", &routes.path()],
            "/",
            if has_terminal {
                &["page", "console"]
            } else {
                &["console"]
            },
        ),
        (&["echo"], "", &[]),
        (&["agent"], "/acp", &["page"]),
        (&["agent", "--protocol", "jsonrpc"], "", &[]),
    ] {
        let program: &[&str] = match command[0] {
            "terminal" | "agent" => &["--", "cat"],
            _ => &[],
        };
        let lines = |more: &[&str]| printed(&[command, more, program].concat());
        let named = |lines: &[String]| {
            let names = lines.iter().filter_map(|line| {
                let (name, url) = line.strip_prefix("outrigger: ")?.split_once(" at ")?;
                Some((name.to_owned(), url.to_owned()))
            });
            names.collect::<Vec<_>>()
        };
        let with_token = lines(&listen);
        let found = named(&with_token);
        assert_eq!(
            found.iter().map(|one| &*one.0).collect::<Vec<_>>(),
            pages,
            "{with_token:?}"
        );
        for (name, url) in &found {
            let (page, token) = url.split_once("#token=").expect(url);
            let path = if name == "page" && command[0] == "serve" {
                "/shell"
            } else {
                path
            };
            assert!(
                page.starts_with("http://127.0.0.1:") && page.ends_with(path),
                "{url}"
            );
            assert!(
                with_token[0].ends_with(token) || command[0] == "serve",
                "{with_token:?}"
            );
        }
        let without = named(&lines(&[&listen[..], &["--no-auth"]].concat()));
        assert_eq!(without.len(), found.len());
        assert!(
            without.iter().all(|(_, url)| !url.contains('#')),
            "{without:?}"
        );
        let unix = lines(&["--listen", &unix]);
        assert_eq!(named(&unix), [], "{unix:?}");
    }
}

#[test]
fn pages_are_sent_compressed_to_all_who_accept_it() {
    let server = Server::with_all_pages();
    let line = "GET /.outrigger/web/console.js";
    let plain = server.send(line, "");
    assert_eq!(plain.status, 200);
    for (accept, is_accepted) in [
        ("gzip", true),
        ("br, gzip;q=0.5", true),
        ("deflate, GZIP ;q=1", true),
        ("*", true),
        ("gzip;q=0", false),
        ("gzip; q=0.000, br", false),
        ("identity", false),
    ] {
        let answer = server.send(line, &format!("Accept-Encoding: {accept}\r\n"));
        if !is_accepted {
            assert_eq!(answer.status, 406, "{accept}");
            continue;
        }
        assert_eq!(answer.field("Content-Encoding"), Some("gzip"), "{accept}");
        assert_eq!(answer.text(), plain.text(), "{accept}");
        assert_eq!(answer.field("ETag"), plain.field("ETag"));
    }
}

#[test]
fn any_server_has_a_console_if_it_is_asked_for_one() {
    let with = Server::start(&["app"], &["--console", "--path", "/", "--", "cat"]);
    let page = with.send("GET /", BROWSER);
    assert!(page.text().contains("/.outrigger/web/console.js"));
    // Other clients get what they got before.
    let other = with.send("GET /", &format!("Accept: */*\r\n{AUTHORIZED}"));
    assert_eq!(other.status, 426);
    let log = with.send("GET /.outrigger/log", AUTHORIZED);
    assert!(log.text().contains("started"), "{}", log.text());
    let status = with.send("GET /status", AUTHORIZED).text();
    let status: Value = status.parse().expect("JSON");
    let pages = json!({"terminal": cfg!(feature = "web"), "demo": false});
    assert_eq!(status["pages"], pages);
    let without = Server::start(&["app"], &["--path", "/", "--", "cat"]);
    assert_eq!(without.status("GET /", BROWSER), 401);
}

#[test]
fn figures_are_sent_compressed_to_who_accepts_it() {
    let server = Server::with_all_pages();
    let plain = server.send("GET /status", AUTHORIZED);
    assert_eq!(plain.field("Content-Encoding"), None);
    let fields = format!("{AUTHORIZED}Accept-Encoding: br, gzip\r\n");
    for line in ["GET /status", "GET /metrics"] {
        let answer = server.send(line, &fields);
        let is_compressed = cfg!(feature = "deflate").then_some("gzip");
        assert_eq!(answer.field("Content-Encoding"), is_compressed, "{line}");
        assert!(answer.text().contains("client"), "{line}");
    }
    // A service's answers are compressed for the console alone.
    let line = "GET /process/spec.json";
    assert_eq!(server.send(line, &fields).field("Content-Encoding"), None);
    let console = server.send(line, &format!("{fields}Outrigger-Console: 1\r\n"));
    assert!(console.text().contains("openapi"));
    assert_eq!(
        console.field("Content-Encoding").is_some(),
        cfg!(feature = "deflate")
    );
}

#[cfg(feature = "web")]
#[test]
fn the_page_of_a_terminal_and_its_files_are_there() {
    let server = Server::with_all_pages();
    let page = server.send("GET /terminal", BROWSER);
    assert!(page.text().contains("/.outrigger/web/terminal.js"));
    let file = server.send("GET /.outrigger/web/xterm.mjs", "");
    assert!(file.text().contains("Terminal"));
}

#[cfg(not(feature = "web"))]
#[test]
fn without_the_terminal_page_its_address_says_how_to_get_it() {
    let server = Server::with_all_pages();
    let page = server.send("GET /terminal", BROWSER);
    assert!(
        page.status == 200 && page.text().contains("web"),
        "{}",
        page.text()
    );
    assert_eq!(server.status("GET /.outrigger/web/xterm.mjs", ""), 404);
}

#[test]
fn no_route_can_be_where_the_pages_have_their_files() {
    let config = TraceFile::new("pages-reserved");
    for path in [
        "/.outrigger",
        "/.outrigger/...",
        "/.outrigger/web/x",
        "/.outrigger/links",
        "/status",
    ] {
        let routes = json!({"routes": {(path): {"echo": {}}}});
        fs::write(config.path(), routes.to_string()).expect("a file");
        let output = outrigger(&["serve", "--check", "--config", &config.path()]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{path}");
        assert!(
            error.contains("this path is reserved for the server"),
            "{error}"
        );
    }
}
