//! `outrigger agent` runs a process for each kind of client: those with the same protocol version and capabilities.

use std::net::SocketAddr;

use crate::common::Wire;
use crate::common::agent::{Client, error_code, example_agent};
use crate::common::program::Program;
use crate::common::traces::{TraceFile, eventually};
use serde_json::{Value, json};

/// The processes in the response to `GET /status`.
fn processes(address: SocketAddr) -> Vec<Value> {
    let mut wire = Wire::open(address);
    wire.send(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = wire.read_head().to_lowercase();
    let (_, length) = head.split_once("content-length: ").expect("a length");
    let length = length.lines().next().and_then(|length| length.parse().ok());
    let body = wire.read_exact(length.expect("a number"));
    let status: Value = serde_json::from_slice(&body).expect("JSON");
    let processes = status["agent"]["processes"].as_array();
    processes.expect("a list").clone()
}

#[test]
fn two_kinds_have_two_processes_and_an_exit_concerns_one() {
    let server = Program::start(&[
        "agent",
        "--grace",
        "0",
        "--max-agents",
        "2",
        "--",
        &example_agent(),
    ]);
    let address = server.address();
    let (mut one, first, _) = Client::with_session(address);
    assert_eq!(processes(address).len(), 1);
    let (mut two, second, _) = Client::with_files(address).open_session();
    assert_eq!(processes(address).len(), 2);
    let pid = |session: &str| session.split('-').nth(1).map(str::to_owned);
    assert_ne!(pid(&first), pid(&second));
    let prompt = two.prompt(&second, "read");
    let asked = two.hear();
    assert_eq!(asked["method"], "fs/read_text_file", "{asked}");
    two.say(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"content": "x"}}));
    assert_eq!(two.answer_to(prompt)["result"]["stopReason"], "end_turn");

    // A third kind is one too many.
    let mut third = Client::connect(address);
    let params = json!({"protocolVersion": 1, "clientCapabilities": {"terminal": true}});
    assert_eq!(error_code(&third.ask("initialize", params)), -32013);

    let died = one.prompt(&first, "die");
    assert_eq!(error_code(&one.answer_to(died)), -32012);
    let prompt = two.prompt(&second, "goes on");
    assert_eq!(two.answer_to(prompt)["result"]["stopReason"], "end_turn");
    let lost = one.prompt(&first, "lost");
    assert_eq!(error_code(&one.answer_to(lost)), -32002);

    two.wire.reset();
    eventually("the process that nobody uses is stopped", || {
        processes(address).len() == 1
    });
    let (mut one, session, _) = one.open_session();
    let prompt = one.prompt(&session, "still here");
    assert_eq!(one.answer_to(prompt)["result"]["stopReason"], "end_turn");
}

/// The bug: the second kind's `session/new` failed, because the id of its session was that of the first kind's.
#[test]
fn two_processes_may_count_their_sessions() {
    let agent = example_agent();
    let server = Program::start(&["agent", "--", &agent, "--count"]);
    let address = server.address();
    let (mut one, first, _) = Client::with_session(address);
    let (mut two, second, _) = Client::with_files(address).open_session();
    assert_eq!((&*first, &*second), ("session-0", "session-0"));
    assert_eq!(processes(address).len(), 2);
    for (client, text) in [(&mut one, "un"), (&mut two, "deux")] {
        let prompt = client.prompt("session-0", text);
        let update = client.hear();
        assert_eq!(
            update["params"]["update"]["content"]["text"], text,
            "{update}"
        );
        assert_eq!(client.answer_to(prompt)["result"]["stopReason"], "end_turn");
    }
    // Each process lists its own session, and each client sees only its own.
    let listed = two.ask("session/list", json!({}));
    assert_eq!(
        listed["result"]["sessions"].as_array().map(Vec::len),
        Some(1),
        "{listed}"
    );
    let died = one.prompt("session-0", "die");
    assert_eq!(error_code(&one.answer_to(died)), -32012);
    let prompt = two.prompt("session-0", "goes on");
    assert_eq!(two.answer_to(prompt)["result"]["stopReason"], "end_turn");
}

#[test]
fn an_agent_that_does_not_answer_initialize_is_given_up_in_time() {
    let server = Program::start(&[
        "agent",
        "--initialize-timeout",
        "100ms",
        "--",
        "sh",
        "-c",
        "while read line; do :; done",
    ]);
    let mut client = Client::connect(server.address());
    for _ in 0..2 {
        let answer = client.ask("initialize", json!({"protocolVersion": 1}));
        assert_eq!(error_code(&answer), -32014, "{answer}");
    }
}

#[test]
fn a_request_that_is_not_answered_fails_in_time() {
    let flags = [
        "agent",
        "--request-timeout",
        "100ms",
        "--answer-timeout",
        "100ms",
        "--",
    ];
    let mut arguments = flags.to_vec();
    // It answers `initialize` only.
    let script = r#"read line; id=${line#*\"id\":}; printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":1}}\n' "${id%%,*}"; while read line; do :; done"#;
    arguments.extend(["sh", "-c", script]);
    let server = Program::start(&arguments);
    let mut client = Client::initialized(server.address());
    let answer = client.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
    assert_eq!(error_code(&answer), -32014, "{answer}");
}

/// The bug: the one process was told what its first client can do, and never learned of the files of the others.
#[test]
fn one_process_is_told_what_any_client_may_be_able_to_do() {
    let log = TraceFile::new("one-process");
    let script = format!("AGENT_LOG={} exec {}", log.path(), example_agent());
    let server = Program::start(&["agent", "--one-process", "--", "sh", "-c", &script]);
    let address = server.address();
    let (mut without, first, _) = Client::with_session(address);
    let (mut with, second, _) = Client::with_files(address).open_session();
    assert_eq!(processes(address).len(), 1);
    let parsed = |line: Option<&str>| -> Value {
        serde_json::from_str(line.expect("a line")).expect("JSON")
    };
    let told = parsed(log.text().lines().next());
    let capabilities = &told["params"]["clientCapabilities"];
    assert_eq!(capabilities["fs"]["readTextFile"], true, "{told}");
    assert_eq!(capabilities["terminal"], true);
    // One client is asked, and the server answers for the other one.
    let prompt = with.prompt(&second, "read");
    let asked = with.hear();
    assert_eq!(asked["method"], "fs/read_text_file", "{asked}");
    with.say(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"content": "x"}}));
    assert_eq!(with.answer_to(prompt)["result"]["stopReason"], "end_turn");
    let prompt = without.prompt(&first, "read");
    assert_eq!(
        without.answer_to(prompt)["result"]["stopReason"],
        "end_turn"
    );
    let refused = parsed(log.text().lines().last());
    assert_eq!(error_code(&refused), -32601, "{refused}");
    let why = refused["error"]["data"].as_str().expect("a reason");
    assert!(why.contains("fs.readTextFile"), "{why}");
}
