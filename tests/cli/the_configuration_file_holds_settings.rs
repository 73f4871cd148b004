//! Tests of the configuration file with the real program. The parser has unit tests of its own.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use crate::common::Wire;
use crate::common::program::{Program, outrigger};
use crate::common::traces::TraceFile;

/// Starts `outrigger` with exactly these arguments.
fn run(args: &[&str]) -> Program {
    Program::spawn(Command::new(env!("CARGO_BIN_EXE_outrigger")).args(args))
}

/// The address in the `listening` line, which contains no token.
fn address(server: &Program) -> SocketAddr {
    let line = server.line();
    let url = line.strip_prefix("outrigger: listening on ws://");
    let (address, path) = url
        .expect("the listening line")
        .split_once('/')
        .expect("a path");
    assert!(!path.contains("token="), "{line}");
    address.parse().expect("an address")
}

#[test]
fn a_flag_overrides_the_file() {
    let file = TraceFile::new("config");
    let write = |text: &str| fs::write(file.path(), text).expect("a file");
    let check = |args: &[&str]| {
        let path = file.path();
        let output = outrigger(&[args, &["--config", &path]].concat());
        let text = if output.status.success() {
            output.stdout
        } else {
            output.stderr
        };
        (
            output.status.code(),
            String::from_utf8(text).expect("UTF-8"),
        )
    };
    write(
        r#"{"listen":["127.0.0.1:0"],"max-clients":1,"no-auth":true,"command":["cat"],"env":["A=b"],"log":"off"}"#,
    );
    assert_eq!(check(&["terminal", "--check"]).0, Some(0));
    let (code, text) = check(&["terminal", "--check", "--user", "nobody-of-this-name"]);
    assert_eq!(
        (code, text.contains("there is no user")),
        (Some(1), true),
        "{text}"
    );
    let server = run(&["terminal", "--config", &file.path(), "--cwd", "/"]);
    let listening = address(&server);
    let _first = Wire::connect(listening, "/terminal");
    let mut second = Wire::open(listening);
    second.send(&crate::common::request("/terminal"));
    assert!(second.read_head().starts_with("HTTP/1.1 503 "));
    let server = run(&["terminal", "--config", &file.path(), "--max-clients", "2"]);
    let listening = address(&server);
    let _first = Wire::connect(listening, "/terminal");
    Wire::connect(listening, "/terminal");

    for (text, says) in [
        (
            "{\n\"listen\": \"127.0.0.1:0\",\n\"max-cleints\": 5}",
            "line 3: \"max-cleints\": 'echo' has no such setting",
        ),
        (
            "{\n\"max-clients\": \"many\"}",
            "line 2: \"max-clients\": 'many' is not a number",
        ),
        (
            "{\"reuse-port\": 1}",
            "\"reuse-port\": expected true or false",
        ),
        (
            "{\"command\": [\"cat\"]}",
            "\"command\": 'echo' takes no program",
        ),
        (
            "{\"config\": \"x\"}",
            "\"config\": 'echo' has no such setting",
        ),
        ("{\"listen\": }", "line 1 column"),
        ("[]", "expected a JSON object"),
    ] {
        write(text);
        let (code, error) = check(&["echo"]);
        assert_eq!((code, error.lines().count()), (Some(2), 1), "{error}");
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn an_error_says_what_the_file_lacks_and_which_route_it_concerns() {
    let file = TraceFile::new("config-routes");
    for (text, says) in [
        // The bug: "missing --config", although it was given.
        ("{}", "--config: the file has no \"routes\""),
        (
            "{\"routes\": {\"/a\": {\"echo\": {}}, \"/b\": {\"terminal\": {\"command\": [\"no-such-program\"]}}}}",
            "/b: cannot start \"no-such-program\": not found in PATH",
        ),
    ] {
        fs::write(file.path(), text).expect("a file");
        let output = outrigger(&["serve", "--check", "--config", &file.path()]);
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1));
        assert!(error.contains(says), "{error}");
    }
}
