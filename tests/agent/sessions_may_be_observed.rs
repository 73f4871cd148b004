//! Observers of a session of `outrigger agent`: they see what its client sees, may approve if that is permitted, and disturb
//! nobody.

use std::net::SocketAddr;

use crate::common::agent::{Client, error_code, example_agent, is_turn_complete};
use crate::common::program::Program;
use serde_json::{Value, json};

/// A server, and a client with a session and its watch token.
fn observed(flags: &[&str]) -> (Program, SocketAddr, Client, String, String) {
    let agent = example_agent();
    let mut arguments = vec!["agent"];
    arguments.extend(flags);
    arguments.extend(["--", &agent]);
    let server = Program::start(&arguments);
    let address = server.address();
    let mut client = Client::initialized(address);
    let created = client.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let session = text(&created["result"]["sessionId"]);
    let token = text(&created["result"]["_meta"]["outrigger"]["watchToken"]);
    (server, address, client, session, token)
}

#[test]
fn an_observer_sees_a_turn_live_and_may_approve_with_any() {
    for (approvals, approves) in [("owner", false), ("any", true)] {
        let (_server, address, mut client, session, token) = observed(&["--approvals", approvals]);
        let mut watcher = Client::observer(address, &session, &token);
        let refused = watcher.ask(
            "session/prompt",
            json!({"sessionId": session, "prompt": []}),
        );
        assert_eq!(error_code(&refused), -32010);
        let prompt = client.prompt(&session, "permission hello");
        let echoed = watcher.hear()["params"]["update"].clone();
        assert_eq!(echoed["sessionUpdate"], "prompt_received");
        assert_eq!(echoed["prompt"][0]["text"], "permission hello");
        assert!(echoed["sentBy"]["clientId"].is_string(), "{echoed}");
        let asked = client.hear();
        assert_eq!(asked["method"], "session/request_permission", "{asked}");
        let shown = watcher.hear();
        assert_eq!(shown["method"], "session/request_permission", "{shown}");
        assert_eq!(shown["params"]["options"], asked["params"]["options"]);
        let outcome = json!({"outcome": "selected", "optionId": "allow"});
        let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": outcome}});
        if approves {
            assert_eq!(shown["id"], asked["id"]);
            watcher.say(&answer);
            assert_eq!(client.hear()["method"], "$/cancel_request");
            let resolved = client.hear();
            let update = &resolved["params"]["update"];
            assert_eq!(update["sessionUpdate"], "permission_resolved", "{resolved}");
            assert_eq!(update["requestId"], asked["id"]);
        } else {
            assert_eq!(shown["id"], Value::Null);
            let outrigger = &shown["params"]["_meta"]["outrigger"];
            assert_eq!(outrigger["requestId"], asked["id"]);
            client.say(&answer);
        }
        assert_eq!(client.answer_to(prompt)["result"]["stopReason"], "end_turn");
        let mut last = watcher.hear();
        while !is_turn_complete(&last) {
            last = watcher.hear();
        }
        assert_eq!(last["params"]["update"]["stopReason"], "end_turn");
    }
}

#[test]
fn a_slow_observer_is_dropped_alone() {
    let flags = ["--max-outbound", "1MiB", "--close-timeout", "1h"];
    let (_server, address, mut client, session, token) = observed(&flags);
    let mut slow = Client::observer(address, &session, &token);
    let mut quick = Client::observer(address, &session, &token);
    for _ in 0..15 {
        // Ten updates of 100 kB each.
        let prompt = client.prompt(&session, &format!("{} ", "x".repeat(100_000)).repeat(10));
        assert_eq!(client.answer_to(prompt)["result"]["stopReason"], "end_turn");
        while !is_turn_complete(&quick.hear()) {}
    }
    assert_eq!(slow.wire.read_close(), (1008, "Slow consumer".to_owned()));
    let prompt = client.prompt(&session, "still here");
    assert_eq!(client.answer_to(prompt)["result"]["stopReason"], "end_turn");
}

/// The bug: what was kept for observers took the memory for clients, and new ones were refused as long as the sessions lasted.
#[test]
fn histories_do_not_keep_clients_out() {
    let server = Program::start(&["agent", "--memory", "4MiB", "--", &example_agent()]);
    let address = server.address();
    let mut client = Client::initialized(address);
    // The server measures what is held whenever 2 MiB more have passed, so it has measured more than one history too many.
    for _ in 0..80 {
        let created = client.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
        let session = created["result"]["sessionId"].as_str().expect("an id");
        let prompt = client.prompt(session, &"x".repeat(100_000));
        client.answer_to(prompt);
    }
    Client::initialized(address);
}
