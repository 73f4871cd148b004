//! What a server does wrong while `outrigger connect` continues a connection neither loses, repeats nor mixes anything.

use std::collections::HashSet;

use crate::an_editor_continues_its_sessions::agent;
use crate::common::cutter::Cutter;
use crate::editor::{Editor, Played, initialize, update};
use rustix::process::Signal;
use serde_json::{Value, json};

/// An editor that has initialized its connection to a server.
fn initialized(result: &Value, args: &[&str]) -> (Editor, Played) {
    let (mut server, address) = Played::start();
    let mut editor = Editor::start(address, args);
    let version = result["protocolVersion"].as_u64().expect("a version");
    let id = editor.request("initialize", initialize(version));
    let asked = server.hear_request("initialize");
    server.answer(&asked, result);
    editor.answer_to(id);
    (editor, server)
}

/// The result of `initialize` of an agent that can load sessions.
fn loading() -> Value {
    json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}})
}

fn open_session(editor: &mut Editor, server: &mut Played, session: &str) {
    let id = editor.request("session/new", json!({"cwd": "/"}));
    let asked = server.hear_request("session/new");
    server.answer(&asked, &json!({"sessionId": session}));
    editor.answer_to(id);
}

/// Waits until the bridge has read everything that the editor has written.
fn wait_until_read(editor: &mut Editor) {
    editor.bridge.write("no JSON");
    assert_eq!(editor.bridge.event()["error"]["code"], -32700);
}

fn refuse(server: &mut Played, asked: &Value, message: &str) {
    let error = json!({"code": -32002, "message": message});
    server.say(&json!({"jsonrpc": "2.0", "id": asked["id"], "error": error}));
}

#[test]
fn a_session_that_is_opened_between_two_losses_is_loaded_after_the_next_one() {
    // The bug: the second loss forgot what the requests that still waited were for.
    let (mut editor, mut server) = initialized(&loading(), &[]);
    open_session(&mut editor, &mut server, "s");
    server.leave();
    server.hear_request("initialize");
    let id = editor.request("session/new", json!({"cwd": "/late"}));
    wait_until_read(&mut editor);
    server.leave();
    let asked = server.hear_request("initialize");
    server.answer(&asked, &loading());
    let asked = server.hear_request("session/load");
    server.answer(&asked, &json!({}));
    let asked = server.hear_request("session/new");
    server.answer(&asked, &json!({"sessionId": "t"}));
    assert_eq!(editor.answer_to(id).1["result"]["sessionId"], "t");

    server.leave();
    let asked = server.hear_request("initialize");
    server.answer(&asked, &loading());
    for (session, directory) in [("s", "/"), ("t", "/late")] {
        let asked = server.hear_request("session/load");
        assert_eq!(
            asked["params"],
            json!({"sessionId": session, "cwd": directory})
        );
        server.answer(&asked, &json!({}));
    }
}

#[test]
fn a_session_is_resumed_with_the_metadata_with_which_it_was_opened() {
    // The bug: the resume token replaced all of the editor's metadata.
    let (mut editor, mut server) = initialized(&loading(), &[]);
    let id = editor.request("session/new", json!({"_meta": {"x": 1}}));
    let asked = server.hear_request("session/new");
    let token = json!({"outrigger": {"resumeToken": "t"}});
    server.answer(&asked, &json!({"sessionId": "s", "_meta": token}));
    editor.answer_to(id);
    server.leave();
    let asked = server.hear_request("initialize");
    server.answer(&asked, &loading());
    let asked = server.hear_request("session/resume");
    let meta = json!({"x": 1, "outrigger": {"resumeToken": "t"}});
    assert_eq!(asked["params"], json!({"sessionId": "s", "_meta": meta}));
}

#[test]
fn a_mode_or_option_that_the_agent_has_changed_is_not_changed_back() {
    // The bug: the editor's last choice was set again, although the agent had left that mode.
    let (mut editor, mut server) = initialized(&loading(), &[]);
    open_session(&mut editor, &mut server, "s");
    let choices = [
        (
            "session/set_mode",
            json!({"sessionId": "s", "modeId": "free"}),
        ),
        (
            "session/set_config_option",
            json!({"sessionId": "s", "configId": "o", "value": "a"}),
        ),
    ];
    for (method, params) in choices {
        let id = editor.request(method, params);
        let asked = server.hear_request(method);
        server.answer(&asked, &json!({}));
        editor.answer_to(id);
    }
    let options = json!([{"id": "other", "currentValue": "x"}, {"id": "o", "currentValue": "b"}]);
    for change in [
        json!({"sessionUpdate": "current_mode_update", "currentModeId": "careful"}),
        json!({"sessionUpdate": "config_option_update", "configOptions": options}),
    ] {
        server.say(&update("s", &change));
        assert_eq!(editor.bridge.event(), update("s", &change));
    }
    server.leave();
    let asked = server.hear_request("initialize");
    server.answer(&asked, &loading());
    let asked = server.hear_request("session/load");
    server.answer(&asked, &json!({}));
    let asked = server.hear_request("session/set_config_option");
    let params = json!({"sessionId": "s", "configId": "o", "value": "b"});
    assert_eq!(asked["params"], params);
    server.answer(&asked, &json!({}));
    let asked = server.hear_request("session/set_mode");
    assert_eq!(
        asked["params"],
        json!({"sessionId": "s", "modeId": "careful"})
    );
    // Its failure is not hidden.
    refuse(&mut server, &asked, "no such mode");
    editor.prompt("s", "more");
    server.hear_request("session/prompt");
    editor.bridge.signal(Signal::TERM);
    let (_, log) = editor.bridge.wait_and_read_log();
    let failure = "session/set_mode failed in session s: no such mode";
    assert!(log.contains(failure), "{log}");
}

#[test]
fn an_agent_may_ask_the_editor_while_it_loads_a_session() {
    // The bug: the editor's answer waited for the end of the load, and the load for the answer.
    let (mut editor, mut server) = initialized(&loading(), &[]);
    open_session(&mut editor, &mut server, "s");
    server.leave();
    let asked = server.hear_request("initialize");
    server.answer(&asked, &loading());
    let load = server.hear_request("session/load");
    let prompt = editor.prompt("s", "more");
    server.say(&json!({"jsonrpc": "2.0", "id": 7, "method": "fs/read_text_file"}));
    assert_eq!(editor.bridge.event()["method"], "fs/read_text_file");
    let answer = json!({"jsonrpc": "2.0", "id": 7, "result": {"content": ""}});
    editor.say(&answer);
    assert_eq!(server.hear(), answer);
    server.answer(&load, &json!({}));
    // A second response to a request of the restoration is for nobody.
    server.answer(&load, &json!({}));
    let asked = server.hear_request("session/prompt");
    server.answer(&asked, &json!({"stopReason": "end_turn"}));
    let (before, _) = editor.answer_to(prompt);
    assert_eq!(before, Vec::<Value>::new());
}

#[test]
fn the_turn_of_a_session_that_cannot_be_resumed_ends() {
    // The bug: only sessions that continued got the end of their turn, so that this turn ran for ever.
    let capable = json!({"protocolVersion": 2, "capabilities": {"session": {}}});
    let (mut editor, mut server) = initialized(&capable, &[]);
    open_session(&mut editor, &mut server, "s");
    let running = json!({"sessionUpdate": "state_update", "state": "running"});
    server.say(&update("s", &running));
    assert_eq!(editor.bridge.event(), update("s", &running));
    server.leave();
    let asked = server.hear_request("initialize");
    server.answer(&asked, &capable);
    let asked = server.hear_request("session/resume");
    // What the server says must not reach a terminal as it is.
    refuse(
        &mut server,
        &asked,
        &format!("\u{1b}[2J{}", "x".repeat(100_000)),
    );
    let idle = json!({"sessionUpdate": "state_update", "state": "idle", "stopReason": "cancelled"});
    assert_eq!(editor.bridge.event(), update("s", &idle));
    editor.bridge.end_input();
    let (status, log) = editor.bridge.wait_and_read_log();
    assert_eq!(status.code(), Some(0));
    assert!(log.contains("session s could not be loaded again: \\u{1b}[2Jxxx"));
    assert!(log.len() < 2000, "{}", log.len());
}

#[test]
fn however_often_sessions_are_loaded_again_each_request_has_one_response() {
    let server = agent(&["--no-resume"]);
    // The lengths cut handshakes, `initialize`, `session/load` and turns.
    let mut number = 7u32;
    let limits = (0..5).map(|_| {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        700 + (number >> 8) as usize % 12_000
    });
    let cutter = Cutter::start(Some(server.address()), limits.collect());
    let mut editor = Editor::initialized(cutter.address, &[]);
    let sessions = [editor.new_session(), editor.new_session()];
    let (mut shown, mut responses, mut round) = (HashSet::new(), HashSet::new(), 0);
    let mut succeeded = 0;
    while cutter.accepted() <= 5 || succeeded == 0 {
        round += 1;
        let mut waiting = HashSet::new();
        for (index, session) in sessions.iter().enumerate() {
            let words: Vec<String> = (0..20)
                .map(|word| format!("{round}-{index}-{word}"))
                .collect();
            waiting.insert(editor.prompt(session, &words.join(" ")));
        }
        while !waiting.is_empty() {
            let message = editor.bridge.event();
            let Some(id) = message["id"].as_u64() else {
                if let Some(word) = message["params"]["update"]["content"]["text"].as_str() {
                    assert!(shown.insert(word.trim().to_owned()), "{message}");
                }
                continue;
            };
            assert!(waiting.remove(&id) && responses.insert(id), "{message}");
            let lost = message["error"]["code"] == -32016;
            assert!(
                lost || message["result"]["stopReason"] == "end_turn",
                "{message}"
            );
            succeeded += u64::from(!lost);
        }
    }
}

#[test]
fn sessions_that_cannot_continue_after_the_end_of_the_input_are_a_failure() {
    // The bug: the requests got errors, and the exit code said that all was well.
    let (mut editor, mut server) = initialized(&loading(), &["--linger", "60s"]);
    open_session(&mut editor, &mut server, "s");
    server.leave();
    let asked = server.hear_request("initialize");
    let prompt = editor.prompt("s", "more");
    editor.bridge.end_input();
    server.answer(&asked, &json!({"protocolVersion": 2, "capabilities": {}}));
    let (_, failed) = editor.answer_to(prompt);
    assert_eq!(failed["error"]["code"], -32016, "{failed}");
    let (status, log) = editor.bridge.wait_and_read_log();
    assert_eq!(status.code(), Some(1), "{log}");
}

#[test]
fn the_input_may_end_while_the_sessions_are_loaded() {
    let (mut editor, mut server) = initialized(&loading(), &["--linger", "60s"]);
    open_session(&mut editor, &mut server, "s");
    server.leave();
    let asked = server.hear_request("initialize");
    let prompt = editor.prompt("s", "more");
    editor.bridge.end_input();
    server.answer(&asked, &loading());
    let asked = server.hear_request("session/load");
    server.answer(&asked, &json!({}));
    let asked = server.hear_request("session/prompt");
    server.answer(&asked, &json!({"stopReason": "end_turn"}));
    let (_, answer) = editor.answer_to(prompt);
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    let (status, log) = editor.bridge.wait_and_read_log();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn sessions_that_could_not_continue_stay_lost() {
    // The bug: if the connection was lost before the new `initialize` was answered, the old sessions were loaded after all.
    let (mut editor, mut server) = initialized(&loading(), &[]);
    open_session(&mut editor, &mut server, "s");
    server.leave();
    let asked = server.hear_request("initialize");
    server.answer(&asked, &json!({"protocolVersion": 2, "capabilities": {}}));
    assert_eq!(
        editor.ask("session/list", json!({}))["error"]["code"],
        -32016
    );
    let id = editor.request("initialize", initialize(1));
    server.hear_request("initialize");
    server.leave();
    assert_eq!(editor.answer_to(id).1["error"]["code"], -32016);
    let id = editor.request("initialize", initialize(1));
    assert_eq!(server.hear_request("initialize")["id"], id);
}
