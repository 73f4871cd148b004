//! Tests of `--oauth-resource` with the real program: the document, and the 401 responses that name it.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use crate::common::Wire;
use crate::common::program::{Program, outrigger};
use crate::common::traces::{TraceFile, eventually};
use rustix::process::Signal;

const OUTRIGGER: &str = env!("CARGO_BIN_EXE_outrigger");

const PATH: &str = "/.well-known/oauth-protected-resource";

/// A server with a document and a token.
struct Resource {
    server: Program,
    address: SocketAddr,
    document: TraceFile,
    log: TraceFile,
    _token: TraceFile,
}

impl Resource {
    fn start(name: &str, document: &str, more: &[&str]) -> Self {
        let file = |kind: &str| TraceFile::new(&format!("resource-{name}-{kind}"));
        let (document_file, token, log) = (file("document"), file("token"), file("log"));
        fs::write(document_file.path(), document).expect("a file");
        fs::write(token.path(), "right\n").expect("a file");
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec \"$0\" \"$@\" 2>\"$LOG\"", OUTRIGGER, "echo"])
            .args(["--listen", "127.0.0.1:0", "--token-file", &token.path()])
            .args(["--oauth-resource", &document_file.path()])
            .args(more)
            .env("LOG", log.path());
        let server = Program::spawn(&mut command);
        let address = server.address();
        Self {
            server,
            address,
            document: document_file,
            log,
            _token: token,
        }
    }

    /// Replaces the document, and makes the server read it.
    fn replace(&self, document: &str) {
        fs::write(self.document.path(), document).expect("a file");
        self.server.signal(Signal::HUP);
    }
}

/// The head and the body of the answer to a request.
fn answer(address: SocketAddr, line: &str, fields: &str) -> (String, String) {
    let mut wire = Wire::open(address);
    wire.send(format!("{line} HTTP/1.1\r\n{fields}\r\n").as_bytes());
    let head = wire.read_head();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    let length = length.map_or(0, |length| length.parse().expect("a number"));
    let body = match line.split(' ').next() {
        Some("HEAD") => Vec::new(),
        _ => wire.read_exact(length),
    };
    (head, String::from_utf8(body).expect("UTF-8"))
}

#[test]
fn the_document_needs_no_token_and_401_names_it() {
    let document =
        r#"{"resource":"https://mcp.example/mcp","authorization_servers":["https://a"]}"#;
    let page = "https://app.example";
    let more = ["--allow-host", "mcp.example", "--allow-origin", page];
    let resource = Resource::start("open", document, &more);
    let address = resource.address;
    let host = "Host: localhost:7070\r\n";
    let origin = format!("Origin: {page}\r\n");

    for path in [
        PATH.to_owned(),
        format!("{PATH}/mcp"),
        format!("{PATH}?x=1"),
    ] {
        let (head, body) = answer(address, &format!("GET {path}"), host);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains("\r\nContent-Type: application/json\r\n"),
            "{head}"
        );
        assert_eq!(body, document);
    }
    let (head, _) = answer(address, &format!("HEAD {PATH}"), host);
    let length = format!("\r\nContent-Length: {}\r\n", document.len());
    assert!(head.contains(&length), "{head}");
    let (head, _) = answer(address, &format!("GET {PATH}"), &format!("{host}{origin}"));
    let allowed = format!("\r\nAccess-Control-Allow-Origin: {page}\r\n");
    assert!(head.contains(&allowed), "{head}");
    let asks = "Access-Control-Request-Method: GET\r\n";
    let (head, _) = answer(
        address,
        &format!("OPTIONS {PATH}"),
        &format!("{host}{origin}{asks}"),
    );
    assert!(
        head.starts_with("HTTP/1.1 204 ") && head.contains(&allowed),
        "{head}"
    );

    // Host, Origin and method are checked. A path that only begins alike is another path.
    let evil = format!("{host}Origin: https://evil.example\r\n");
    for (line, fields, status) in [
        (format!("GET {PATH}"), "Host: evil.example\r\n", "403"),
        (format!("GET {PATH}"), &*evil, "403"),
        (format!("DELETE {PATH}"), host, "405"),
        (format!("GET {PATH}s"), host, "401"),
        ("GET /.well-known/oauth".to_owned(), host, "401"),
    ] {
        let (head, _) = answer(address, &line, fields);
        assert_eq!(&head[9..12], status, "{line}: {head}");
    }

    // The address in 401 is the one that the client used. Behind a proxy with TLS, the document says `https`.
    for (name, scheme) in [("localhost:7070", "http"), ("mcp.example", "https")] {
        let challenge = format!(
            "\r\nWWW-Authenticate: Bearer resource_metadata=\"{scheme}://{name}{PATH}\"\r\n"
        );
        let host = format!("Host: {name}\r\n");
        for fields in [
            host.clone(),
            format!("{host}Authorization: Bearer wrong\r\n"),
        ] {
            let (head, _) = answer(address, "POST /", &fields);
            assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
            assert!(head.contains(&challenge), "{head}");
            assert!(!head.contains("Expose-Headers"), "{head}");
        }
        // A page can read the field.
        let (head, _) = answer(address, "POST /", &format!("{host}{origin}"));
        let exposed = "\r\nAccess-Control-Expose-Headers: WWW-Authenticate\r\n";
        assert!(
            head.contains(&challenge) && head.contains(exposed) && head.contains(&allowed),
            "{head}"
        );
    }
    // A wrong token that is rejected after a delay gets the same response.
    let wrong = format!("{host}Authorization: Bearer wrong\r\n");
    for _ in 0..5 {
        let (head, _) = answer(address, "GET /status", &wrong);
        let challenge = format!("resource_metadata=\"http://localhost:7070{PATH}\"\r\n");
        assert!(
            head.starts_with("HTTP/1.1 401 ") && head.contains(&challenge),
            "{head}"
        );
    }
}

#[test]
fn a_server_without_a_document_answers_404_and_a_plain_401() {
    let server = Program::spawn(Command::new(OUTRIGGER).args([
        "terminal",
        "--listen",
        "127.0.0.1:0",
        "--",
        "cat",
    ]));
    let line = server.line();
    let address = line
        .split_once("ws://")
        .and_then(|(_, rest)| rest.split_once('/'))
        .expect("the listening line")
        .0
        .parse()
        .expect("an address");
    let host = "Host: localhost\r\n";
    for path in [PATH.to_owned(), format!("{PATH}/terminal")] {
        let (head, _) = answer(address, &format!("GET {path}"), host);
        assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    }
    let (head, _) = answer(address, "GET /terminal", host);
    assert!(head.contains("\r\nWWW-Authenticate: Bearer\r\n"), "{head}");
}

#[test]
fn a_hangup_reads_the_document_again_and_keeps_it_if_the_new_one_is_not_valid() {
    let (one, two) = (r#"{"resource":"one"}"#, r#"{"resource":"two"}"#);
    let resource = Resource::start("reload", one, &[]);
    let line = format!("GET {PATH}");
    let read = || answer(resource.address, &line, "Host: localhost\r\n").1;
    assert_eq!(read(), one);
    resource.replace(two);
    eventually("the new document", || read() == two);
    resource.replace("[]");
    eventually("the error", || {
        let log = resource.log.text();
        log.contains("the settings stay unchanged: --oauth-resource") && log.contains("JSON object")
    });
    assert_eq!(read(), two);
}

#[test]
fn a_file_that_is_not_a_document_is_wrong_usage() {
    let file = TraceFile::new("resource-invalid");
    let long = format!("{{\"resource\":\"{}\"}}", "x".repeat(64 << 10));
    for (content, says) in [
        (&b"[]"[..], "is not a JSON object"),
        (b"{\"resource\":\"\xff\"}", "is not a JSON object"),
        (b"", "is not a JSON object"),
        (long.as_bytes(), "is longer than 64 KiB"),
    ] {
        fs::write(file.path(), content).expect("a file");
        check_refused(&file.path(), says);
    }
    check_refused("/dev/zero", "is longer than 64 KiB");
    check_refused("/", "directory");
    check_refused("/does/not/exist", "No such file");
}

fn check_refused(file: &str, says: &str) {
    let output = outrigger(&["echo", "--listen", "127.0.0.1:0", "--oauth-resource", file]);
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(
        error.contains("--oauth-resource") && error.contains(says),
        "{error}"
    );
}
