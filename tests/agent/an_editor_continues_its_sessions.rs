//! `outrigger connect` in front of servers without resumable connections: it loads the sessions again.

use crate::common::agent::example_agent;
use crate::common::cutter::Cutter;
use crate::common::program::Program;
use crate::editor::{Editor, Played, initialize, update};
use rustix::process::Signal;
use serde_json::{Value, json};

pub(crate) fn agent(options: &[&str]) -> Program {
    Program::start(&[&["agent"][..], options, &["--", &example_agent()]].concat())
}

fn words(messages: &[Value]) -> Vec<String> {
    let texts = messages
        .iter()
        .filter_map(|one| one["params"]["update"]["content"]["text"].as_str());
    texts.map(|text| text.trim().to_owned()).collect()
}

#[test]
fn a_server_without_resumable_connections_gets_the_sessions_again() {
    let server = agent(&["--no-resume"]);
    let cutter = Cutter::start(Some(server.address()), Vec::new());
    let mut editor = Editor::initialized(cutter.address, &["--log", "info"]);
    let sessions = [editor.new_session(), editor.new_session()];
    // A turn that is running fails, and the sessions go on.
    let running = editor.prompt(&sessions[0], "wait");
    for round in 0..3 {
        cutter.cut();
        if round == 0 {
            let (_, failed) = editor.answer_to(running);
            assert_eq!(failed["error"]["code"], -32016, "{failed}");
        }
        for session in &sessions {
            let id = editor.prompt(session, "one two");
            let (before, answer) = editor.answer_to(id);
            assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
            assert_eq!(words(&before), ["one", "two"]);
        }
    }
    // An editor that answers the error with `initialize` gets the same result again.
    let again = editor.ask("initialize", initialize(1));
    assert_eq!(again["result"]["protocolVersion"], 1, "{again}");
    editor.bridge.signal(Signal::TERM);
    let (status, log) = editor.bridge.wait_and_read_log();
    assert_eq!(status.code(), Some(0));
    let count = log
        .matches("2 sessions continue on a new connection")
        .count();
    assert_eq!(count, 3, "{log}");
}

#[test]
fn a_session_is_loaded_with_its_settings_and_its_history_is_not_shown_twice() {
    let (mut server, address) = Played::start();
    let mut editor = Editor::start(address, &[]);
    let capable = json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}});
    let id = editor.request("initialize", initialize(1));
    let asked = server.hear_request("initialize");
    server.answer(&asked, &capable);
    editor.answer_to(id);
    let id = editor.request("session/new", json!({"cwd": "/x", "mcpServers": [1]}));
    let asked = server.hear();
    server.answer(&asked, &json!({"sessionId": "s"}));
    editor.answer_to(id);
    for mode in ["plan", "code"] {
        let params = json!({"sessionId": "s", "modeId": mode});
        let id = editor.request("session/set_mode", params);
        let asked = server.hear();
        server.answer(&asked, &json!({}));
        editor.answer_to(id);
    }

    server.leave();
    let asked = server.hear_request("initialize");
    server.answer(&asked, &capable);
    let asked = server.hear_request("session/load");
    let params = json!({"sessionId": "s", "cwd": "/x", "mcpServers": [1]});
    assert_eq!(asked["params"], params);
    // What the editor sends meanwhile waits.
    let prompt = editor.prompt("s", "more");
    let words = json!({"sessionUpdate": "agent_message_chunk", "content": {"text": "old"}});
    server.say(&update("s", &words));
    server.answer(&asked, &json!({}));
    let asked = server.hear_request("session/set_mode");
    assert_eq!(asked["params"], json!({"sessionId": "s", "modeId": "code"}));
    server.answer(&asked, &json!({}));
    let asked = server.hear_request("session/prompt");
    server.answer(&asked, &json!({"stopReason": "end_turn"}));
    let (before, _) = editor.answer_to(prompt);
    assert_eq!(before, Vec::<Value>::new());

    // The server cannot load it any more. The editor learns it from its next request.
    server.leave();
    let asked = server.hear_request("initialize");
    server.answer(&asked, &capable);
    let asked = server.hear_request("session/load");
    let error = json!({"code": -32002, "message": "Resource not found"});
    server.say(&json!({"jsonrpc": "2.0", "id": asked["id"], "error": error}));
    editor.prompt("s", "more");
    server.hear_request("session/prompt");

    // It has another version of the protocol. The editor must begin anew.
    server.leave();
    assert_eq!(editor.bridge.event()["error"]["code"], -32016);
    let asked = server.hear_request("initialize");
    server.answer(&asked, &json!({"protocolVersion": 2, "capabilities": {}}));
    let failed = editor.ask("session/list", json!({}));
    assert_eq!(failed["error"]["code"], -32016, "{failed}");
    editor.bridge.signal(Signal::TERM);
    let (_, log) = editor.bridge.wait_and_read_log();
    assert!(
        log.contains("session s could not be loaded again: Resource not found"),
        "{log}"
    );
    assert!(log.contains("another version of the protocol"), "{log}");
}

#[test]
fn in_version_2_a_session_is_resumed_and_its_turn_ends() {
    let (mut server, address) = Played::start();
    let mut editor = Editor::start(address, &[]);
    let capable = json!({"protocolVersion": 2, "capabilities": {"session": {}}});
    let id = editor.request("initialize", initialize(2));
    let asked = server.hear_request("initialize");
    server.answer(&asked, &capable);
    editor.answer_to(id);
    let id = editor.request(
        "session/resume",
        json!({"sessionId": "s", "replayFrom": {"type": "start"}}),
    );
    let asked = server.hear();
    server.answer(&asked, &json!({}));
    editor.answer_to(id);
    let running = json!({"sessionUpdate": "state_update", "state": "running"});
    server.say(&update("s", &running));
    assert_eq!(editor.bridge.event(), update("s", &running));
    // An agent's request of the lost connection.
    server.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "ask"}));
    assert_eq!(editor.bridge.event()["method"], "ask");

    server.leave();
    let asked = server.hear_request("initialize");
    editor.say(&json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
    server.answer(&asked, &capable);
    let asked = server.hear_request("session/resume");
    assert_eq!(asked["params"], json!({"sessionId": "s"}));
    server.answer(&asked, &json!({}));
    let idle = json!({"sessionUpdate": "state_update", "state": "idle", "stopReason": "cancelled"});
    assert_eq!(editor.bridge.event(), update("s", &idle));
    editor.prompt("s", "more");
    server.hear_request("session/prompt");
}
