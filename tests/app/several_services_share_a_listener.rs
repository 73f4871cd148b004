//! `outrigger serve`: several services share a listener, and each has only its own clients.

use std::io::Write;
use std::net::SocketAddr;

use crate::common::agent::example_agent;
use crate::common::program::{Program, outrigger};
use crate::common::traces::{TraceFile, eventually};
use crate::common::{BINARY, PING, TEXT, Wire, call};
use rustix::process::Signal;
use serde_json::{Value, json};

/// An app that reports its number of clients to all its clients when the first one connects.
const COUNTING: &str = r#"
    read listening
    read connect
    echo '{"cmd":"status","id":1}'
    read status
    case "$status" in
        *'"client_count":1,'*) echo '{"cmd":"broadcast","text":"alone"}';;
        *) echo '{"cmd":"broadcast","text":"in company"}';;
    esac
    while read -r message; do
        # A message that is a command is executed.
        case "$message" in
            *cmd*) echo "$message" | sed 's/.*"text":"\(.*\)"}$/\1/; s/\\"/"/g';;
        esac
        echo '{"cmd":"broadcast","text":"heard"}'
    done"#;

fn config_file(name: &str, config: &Value) -> TraceFile {
    let file = TraceFile::new(name);
    std::fs::write(file.path(), config.to_string()).expect("a temporary file");
    file
}

/// Starts `outrigger serve` with these routes. Returns it and its address.
fn serve(name: &str, routes: Value) -> (Program, SocketAddr) {
    let file = config_file(name, &json!({"log": "off", "routes": routes}));
    let server = Program::start(&["serve", "--config", &file.path()]);
    // Reading the address shows that the configuration file has been read, so it can be removed.
    let address = server.address();
    (server, address)
}

#[test]
fn each_route_has_its_own_clients_and_sees_no_others() {
    let app = json!({"app": {"command": ["sh", "-c", COUNTING]}});
    let terminal = json!({"terminal": {"command": ["sh", "-c", "printf out; exit 3"]}});
    let (mut server, address) = serve(
        "routes",
        json!({
            "/echo": {"echo": {}}, "/one": app, "/two/...": app, "/shell": terminal, "/process": {"processes": {}},
        }),
    );

    let mut echo = Wire::connect(address, "/echo");
    let mut one = Wire::connect(address, "/one");
    let mut two = Wire::connect(address, "/two/below");
    assert_eq!(one.read_frame().payload, b"alone");
    assert_eq!(two.read_frame().payload, b"alone");
    one.send_frame(TEXT, b"anyone?");
    assert_eq!(one.read_frame().payload, b"heard");
    for wire in [&mut echo, &mut two] {
        wire.send_frame(TEXT, b"mine");
    }
    assert_eq!(echo.read_frame().payload, b"mine", "no message of the app");
    assert_eq!(
        two.read_frame().payload,
        b"heard",
        "one message, from its own app"
    );

    // An app cannot reach a client of another service. The echo's client is c1, the app's is c2.
    for command in [
        r#"{"cmd":"send","client":"c1","text":"caught"}"#,
        r#"{"cmd":"close","client":"c1","code":1000}"#,
    ] {
        one.send_frame(TEXT, command.as_bytes());
        // The first event is the message, the second one the error.
        assert_eq!(one.read_frame().payload, b"heard");
        assert_eq!(one.read_frame().payload, b"heard");
    }
    echo.send_frame(TEXT, b"still mine");
    assert_eq!(echo.read_frame().payload, b"still mine");

    let mut shell = Wire::attach(address, "/shell");
    assert_eq!(shell.read_frame().payload, b"out");
    let exit: Value = serde_json::from_slice(&shell.read_frame().payload).expect("JSON");
    assert_eq!(exit, json!({"type": "exit", "exitCode": 3}));
    assert_eq!(shell.read_close().0, 1000);
    shell.send_close(1000);
    shell.expect_end();

    let body = json!({"command": "echo", "args": ["hi"]});
    let (status, answer) = call(address, "POST", "/process/exec", Some(body));
    assert_eq!((status, &answer["stdout_b64"]), (200, &json!("aGkK")));
    assert_eq!(call(address, "GET", "/nowhere", None).0, 404);
    assert_eq!(call(address, "GET", "/one/below", None).0, 404);

    let (_, status) = call(address, "GET", "/status", None);
    assert_eq!(status["client_count"], 3, "{status}");
    let processes = &status["routes"]["/process"]["processes"];
    assert_eq!(processes["started"], 1, "{status}");

    server.signal(Signal::TERM);
    for mut wire in [echo, one, two] {
        assert_eq!(wire.read_close().0, 1001);
    }
    assert!(server.wait().success());
}

#[test]
fn a_program_that_does_not_read_does_not_delay_other_services() {
    let deaf = json!({"app": {"command": ["sh", "-c", "exec sleep 1000"]}});
    let (_server, address) = serve(
        "deaf",
        json!({"/deaf": deaf, "/echo": {"echo": {}}, "/shell": {"terminal": {"command": ["cat"]}}}),
    );
    let mut flood = Wire::connect(address, "/deaf");
    flood.stream.set_nonblocking(true).expect("it can be set");
    let frame = crate::common::frame(true, BINARY, &[7; 60_000]);
    // The last frame may be incomplete. The test needs only a socket that takes no more bytes.
    while flood.stream.write(&frame).is_ok() {}
    eventually("the flooding client is paused", || {
        flood.stream.write(&frame).is_err()
    });
    // The bug: when one client filled the program's queue, new clients were rejected and PINGs got no answer.
    let mut late = Wire::connect(address, "/deaf");
    late.send_frame(PING, b"are you there?");
    assert_eq!(late.read_frame().payload, b"are you there?");
    assert_eq!(call(address, "GET", "/healthz", None).0, 200);
    let mut echo = Wire::connect(address, "/echo");
    echo.send_frame(TEXT, b"still here");
    assert_eq!(echo.read_frame().payload, b"still here");
    let mut shell = Wire::attach(address, "/shell");
    shell.send_frame(BINARY, b"typed\n");
    assert!(shell.read_frame().payload.starts_with(b"typed"));
}

#[test]
fn an_invalid_route_is_reported_with_its_key_and_line() {
    for (routes, says) in [
        (r#"{}"#, "\"routes\": expected an object of paths"),
        (r#"{"a": {"echo": {}}}"#, "\"a\": a path begins with '/'"),
        (
            r#"{"/a": {"dance": {}}}"#,
            "\"dance\": expected an object with one of agent, terminal",
        ),
        (
            r#"{"/a": {"echo": {}, "app": {}}}"#,
            "\"/a\": expected an object with one of",
        ),
        (r#"{"/a": {"app": {}}}"#, "\"app\": missing \"command\""),
        (
            r#"{"/a": {"echo": {"command": ["x"]}}}"#,
            "\"command\": 'echo' takes no program",
        ),
        (
            r#"{"/a": {"echo": {"listen": "x"}}}"#,
            "\"listen\": this is a setting of the server",
        ),
        (
            r#"{"/a": {"echo": {}}, "/a/...": {"echo": {}}}"#,
            "\"/a/...\": this path is used twice",
        ),
        (
            r#"{"/a": {"agent": {"command": ["x"], "grace": "soon"}}}"#,
            "\"grace\": 'soon' is not a time",
        ),
    ] {
        let file = TraceFile::new("wrong-routes");
        std::fs::write(file.path(), format!("{{\n\n\"routes\": {routes}}}")).expect("a file");
        let output = outrigger(&["serve", "--config", &file.path()]);
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{routes}: {error}");
        assert!(
            error.contains(", line 3: ") && error.contains(says),
            "{routes}: {error}"
        );
    }
    let error = String::from_utf8(outrigger(&["serve"]).stderr).expect("UTF-8");
    assert!(error.contains("missing --config"), "{error}");
}

/// The head of the answer to a handshake at this path.
fn handshake(address: SocketAddr, path: &str) -> String {
    let mut wire = Wire::open(address);
    wire.send(&crate::common::request(path));
    wire.read_head()
}

// The bug: an agent without its key used up its restarts in 3 s, and the server ended with all terminals of the other routes.
#[test]
fn a_program_that_fails_takes_down_its_own_route_until_it_works_again() {
    let key = TraceFile::new("key");
    let needs_key = |then: &str| {
        vec![
            "sh".to_owned(),
            "-c".to_owned(),
            format!("test -s {} || exit 1; {then}", key.path()),
        ]
    };
    let (_server, address) = serve(
        "failing",
        json!({
            "/acp": {"agent": {"restart-limit": "1/60s", "command": needs_key(&format!("exec {}", example_agent()))}},
            "/app": {"app": {"command": needs_key("while read line; do :; done")}},
            "/pipe": {"pipe": {"shared": true, "restart-limit": "1/60s", "command": needs_key("exec cat")}},
            "/echo": {"echo": {}},
            "/shell": {"terminal": {"command": ["cat"]}},
        }),
    );
    let mut echo = Wire::connect(address, "/echo");
    let mut shell = Wire::attach(address, "/shell");
    for path in ["/acp", "/app", "/pipe"] {
        eventually("new clients are rejected", || {
            let head = handshake(address, path);
            head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After")
        });
        // While it is being tried, the program runs for a moment.
        eventually("the route is not ready", || {
            call(address, "GET", &format!("/readyz?route={path}"), None).0 == 503
        });
    }
    let answer = call(address, "GET", "/readyz?route=/nothing", None);
    assert_eq!(answer.0, 404, "{}", answer.1);
    // The server accepts clients for the other routes.
    let answer = call(address, "GET", "/readyz", None);
    assert_eq!(answer.0, 200, "{}", answer.1);
    assert!(answer.1["routes"]["/acp"].is_string(), "{}", answer.1);
    assert_eq!(answer.1["routes"]["/echo"], "ready");
    echo.send_frame(TEXT, b"here");
    assert_eq!(echo.read_frame().payload, b"here");
    shell.send_frame(BINARY, b"typed\n");
    assert!(shell.read_frame().payload.starts_with(b"typed"));

    std::fs::write(key.path(), "secret").expect("a temporary file");
    for path in ["/acp", "/app", "/pipe"] {
        eventually("the route works again", || {
            handshake(address, path).starts_with("HTTP/1.1 101 ")
        });
        let answer = call(address, "GET", &format!("/readyz?route={path}"), None);
        assert_eq!(answer.0, 200, "{path}: {}", answer.1);
    }
}
