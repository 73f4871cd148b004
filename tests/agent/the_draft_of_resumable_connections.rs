//! Resumable connections as the draft "Durable & Resumable HTTP/WS Transport" of the Agent Client Protocol describes them. The client
//! here knows nothing of `?resume=`.

use std::collections::HashSet;
use std::net::SocketAddr;

use crate::common::agent::{Client, error_code, example_agent};
use crate::common::program::Program;
use crate::common::traces::eventually;
use crate::common::{TEXT, Wire, call};
use crate::durable::{Durable, connect, cursor_of};
use rustix::process::Signal;
use serde_json::{Value, json};

fn agent(options: &[&str]) -> Program {
    Program::start(&[&["agent"][..], options, &["--", &example_agent()]].concat())
}

/// Where to cut, and how. The numbers are the same in each run.
struct Cuts {
    random: u64,
    count: u64,
    /// Connections that seem alive.
    old: Vec<Wire>,
}

impl Cuts {
    fn new() -> Self {
        Self {
            random: 1,
            count: 0,
            old: Vec::new(),
        }
    }

    /// Cuts the connection one time in four. Returns the result of `stream/resume` then.
    fn perhaps(&mut self, durable: &mut Durable) -> Option<Value> {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        if self.random >> 62 > 0 {
            return None;
        }
        self.count += 1;
        let (result, wire) = durable.come_back();
        match self.random >> 60 & 3 {
            0 => wire.reset(),
            1 if self.old.len() < 8 => self.old.push(wire),
            _ => drop(wire),
        }
        Some(result)
    }
}

/// The words of a prompt that no other one has.
fn words(of: u64) -> Vec<String> {
    (0..20).map(|word| format!("{of}-{word}")).collect()
}

/// The text of an update, if it has one.
fn text_of(message: &Value) -> Option<String> {
    let text = message["params"]["update"]["content"]["text"].as_str()?;
    Some(text.trim().to_owned())
}

#[test]
fn a_thousand_cuts_lose_and_double_nothing() {
    // A client that comes back is still one client.
    let server = agent(&["--max-clients", "3", "--max-clients-per-address", "3"]);
    let address = server.address();
    let mut durable = Durable::connect(address);
    let session = durable.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
    let session = session["sessionId"].as_str().expect("an id").to_owned();
    let mut cuts = Cuts::new();
    while cuts.count < 1000 {
        let words = words(cuts.count);
        let prompt = json!([{"type": "text", "text": words.join(" ")}]);
        let id = durable.request(
            "session/prompt",
            json!({"sessionId": session, "prompt": prompt}),
        );
        let mut heard = Vec::new();
        loop {
            if let Some(result) = cuts.perhaps(&mut durable) {
                let turn = &result["_meta"]["acp/turnState"];
                match turn["state"].as_str() {
                    // Perhaps the prompt has not arrived, or the answer is on its way.
                    Some("idle") => {}
                    Some("running") => assert_eq!(turn["promptRequestId"], id, "{result}"),
                    _ => panic!("{result}"),
                }
            }
            let message = durable.hear();
            if message["id"] == id {
                assert_eq!(message["result"]["stopReason"], "end_turn");
                break;
            }
            heard.push(text_of(&message).expect("a word"));
        }
        assert_eq!(heard, words);
    }
    let status = call(address, "GET", "/status", None).1;
    assert_eq!(status["agent"]["processes"][0]["clients"], 1, "{status}");
    assert_eq!(status["client_count"], 1, "{status}");
}

/// In version 2, the response to a prompt comes first, and the state of the session is an update. The server reports it after each
/// return.
#[test]
fn a_thousand_cuts_lose_and_double_nothing_in_version_2() {
    let server = Program::start(&["agent", "--", &example_agent(), "--v2"]);
    let mut durable = Durable::connect_with(server.address(), 2);
    let session = durable.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
    let session = session["sessionId"].as_str().expect("an id").to_owned();
    let (mut cuts, mut reports) = (Cuts::new(), 0);
    while cuts.count < 1000 {
        let words = words(cuts.count);
        let prompt = json!([{"type": "text", "text": words.join(" ")}]);
        let id = durable.request(
            "session/prompt",
            json!({"sessionId": session, "prompt": prompt}),
        );
        let (mut heard, mut is_answered) = (Vec::new(), false);
        loop {
            if let Some(result) = cuts.perhaps(&mut durable) {
                assert_eq!(result["_meta"]["acp/turnState"], Value::Null, "{result}");
            }
            let message = durable.hear();
            let update = &message["params"]["update"];
            if message["id"] == id {
                is_answered = true;
            } else if update["sessionUpdate"] != "state_update" {
                heard.push(text_of(&message).expect("a word"));
            } else if update["_meta"]["agent"] != true {
                reports += 1;
            } else if update["state"] == "idle" {
                assert_eq!(update["stopReason"], "end_turn");
                break;
            }
        }
        assert_eq!((heard, is_answered), (words, true));
    }
    // The last report may follow the end of the turn.
    let id = durable.request("session/list", json!({}));
    loop {
        let message = durable.hear();
        if message["id"] == id {
            break;
        }
        assert_eq!(message["params"]["update"]["sessionUpdate"], "state_update");
        reports += 1;
    }
    assert_eq!(reports, cuts.count, "one report for each return");
}

/// Each stream has a position of its own, and the client gets of each what follows.
#[test]
fn a_client_may_come_back_with_a_position_of_each_session() {
    let server = agent(&[]);
    let address = server.address();
    let mut durable = Durable::connect(address);
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let created = durable.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
        sessions.push(created["sessionId"].clone());
    }
    let connection = durable.cursor.clone();
    let mut positions = Vec::new();
    for session in &sessions {
        let prompt = json!([{"type": "text", "text": "one two three"}]);
        durable.ask(
            "session/prompt",
            json!({"sessionId": session, "prompt": prompt}),
        );
    }
    // What it has processed: of the first session everything, of the second one only the first word.
    let first = sessions[0].as_str().expect("an id");
    let second = sessions[1].as_str().expect("an id");
    let number = |cursor: &str| cursor.parse::<u64>().expect("a number");
    positions.push(number(&connection) + 4);
    positions.push(number(&connection) + 5);
    let (wire, _) = connect(address, Some(&durable.id));
    drop(std::mem::replace(&mut durable.client.wire, wire));
    let cursors = json!({
        "connection": connection,
        "sessions": {first: positions[0].to_string(), second: positions[1].to_string()},
    });
    durable
        .client
        .say(&json!({"jsonrpc": "2.0", "method": "stream/resume", "params": {"cursors": cursors}}));
    let mut heard = Vec::new();
    for _ in 0..4 {
        let message = durable.client.hear();
        let text = message["params"]["update"]["content"]["text"].as_str();
        heard.push(text.map_or("answer".to_owned(), |text| text.trim().to_owned()));
    }
    assert_eq!(heard, ["answer", "two", "three", "answer"]);
}

#[test]
fn a_client_that_cannot_come_back_is_told_and_may_begin_anew() {
    let server = agent(&[]);
    let address = server.address();
    let mut durable = Durable::connect(address);
    let last = durable.cursor.clone();
    let resume = |id: Option<&str>, params: Value| {
        let (wire, _) = connect(address, id);
        let mut client = Client { wire, next_id: 0 };
        let answer = client.ask("stream/resume", params);
        let failed = client.hear();
        assert_eq!(failed["method"], "stream/resume_failed");
        assert_eq!(failed["params"]["reason"], answer["error"]["data"]);
        assert_eq!(error_code(&answer), -32002);
        // The same connection can be initialized.
        let result = client.ask("initialize", json!({"protocolVersion": 1}));
        assert_eq!(result["result"]["protocolVersion"], 1, "{result}");
        assert_eq!(cursor_of(&result), None);
        answer["error"]["data"]
            .as_str()
            .expect("a reason")
            .to_owned()
    };
    let id = durable.id.clone();
    let own = Some(&*id);
    assert_eq!(resume(None, json!({"cursor": last})), "unknown_connection");
    assert_eq!(
        resume(Some("x"), json!({"cursor": last})),
        "unknown_connection"
    );
    for cursor in [
        json!("99"),
        json!(1),
        json!("x"),
        json!(""),
        json!("-1"),
        json!("+1"),
    ] {
        assert_eq!(
            resume(own, json!({"cursor": cursor})),
            "invalid_cursor",
            "{cursor}"
        );
    }
    assert_eq!(resume(own, json!({})), "invalid_cursor");
    // The client is as it was.
    durable.ask("session/list", json!({}));
    durable.come_back();
    durable.ask("session/list", json!({}));
    // CLOSE 1000 ends a connection for good.
    durable.client.wire.send_close(1000);
    eventually("the client is gone", || {
        call(address, "GET", "/status", None).1["client_count"] == 0
    });
    assert_eq!(
        resume(own, json!({"cursor": durable.cursor})),
        "unknown_connection"
    );
}

/// The bug: an interval of less than a second was announced as 0 seconds.
#[test]
fn the_announcement_says_what_the_server_does() {
    for (interval, seconds) in [
        ("0", Value::Null),
        ("100ms", json!(1)),
        ("2500ms", json!(3)),
    ] {
        let server = agent(&["--ping-interval", interval]);
        let durable = Durable::connect(server.address());
        let mut expected = json!({"retentionMessages": 1000, "retentionSeconds": 300});
        if !seconds.is_null() {
            expected["keepAliveSeconds"] = seconds;
        }
        assert_eq!(durable.resumable, expected);
    }
}

/// The server keeps messages although PONGs have confirmed them, because the application may not have processed them. It does not
/// keep them for ever.
#[test]
fn a_cursor_that_is_too_old_has_expired() {
    let server = agent(&["--resume-buffer", "64KiB"]);
    let address = server.address();
    let mut durable = Durable::connect(address);
    // So many messages of 2 KiB fit into half of the buffer.
    assert_eq!(durable.resumable["retentionMessages"], 16);
    let session = durable.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
    let early = durable.cursor.clone();
    for _ in 0..40 {
        let prompt = json!([{"type": "text", "text": "x".repeat(4000)}]);
        durable.ask(
            "session/prompt",
            json!({"sessionId": session["sessionId"], "prompt": prompt}),
        );
    }
    let late = std::mem::replace(&mut durable.cursor, early.clone());
    let (wire, _) = connect(address, Some(&durable.id));
    let mut other = Client { wire, next_id: 0 };
    let answer = other.ask("stream/resume", json!({"cursor": early}));
    assert_eq!(answer["error"]["data"], "expired_cursor", "{answer}");
    // The client has been sent much more than the buffer, and is there.
    durable.cursor = late;
    durable.come_back();
    durable.ask("session/list", json!({}));
}

/// A client with a resume token of Outrigger's own, and one that asks for nothing, get no cursors.
#[test]
fn only_clients_that_ask_get_cursors() {
    for (rule, asks, expected) in [
        ("auto", false, false),
        ("auto", true, true),
        ("always", false, true),
        ("never", true, false),
    ] {
        let server = agent(&["--acp-resumable", rule]);
        let address = server.address();
        for query in ["", "?resume=new"] {
            let wire = Wire::connect(address, &format!("/acp{query}"));
            let mut client = Client { wire, next_id: 0 };
            let transport = if asks {
                json!({"resumable": {}})
            } else {
                Value::Null
            };
            let capabilities = json!({"transport": transport});
            let params = json!({"protocolVersion": 1, "clientCapabilities": capabilities});
            let answer = client.ask("initialize", params);
            let has_cursors = cursor_of(&answer).is_some();
            assert_eq!(has_cursors, expected && query.is_empty(), "{rule} {query}");
            assert_eq!(answer["result"]["connectionId"].is_string(), has_cursors);
        }
    }
}

/// Waits until the server knows that its only client was cut.
fn wait_for_cut(address: SocketAddr) {
    eventually("the client is detached", || {
        let status = call(address, "GET", "/status", None).1;
        status["detached_count"] == 1 || status["detached"] == 1
    });
}

/// The bug: a `stream/resume` that had failed counted as a message of the client that began anew on its connection. When that
/// came back, it was told that the server had one message more than it had.
#[test]
fn a_failed_resumption_is_not_among_the_received_messages() {
    let server = agent(&[]);
    let address = server.address();
    let (wire, id) = connect(address, None);
    let mut client = Client { wire, next_id: 100 };
    for _ in 0..2 {
        let answer = client.ask("stream/resume", json!({"cursor": "1"}));
        assert_eq!(error_code(&answer), -32002);
        client.hear();
    }
    let mut durable = Durable {
        address,
        client,
        id,
        cursor: String::new(),
        seen: HashSet::new(),
        resumable: Value::Null,
        sent: Vec::new(),
    };
    let capabilities = json!({"transport": {"resumable": {}}});
    let params = json!({"protocolVersion": 1, "clientCapabilities": capabilities});
    durable.ask("initialize", params);
    durable.ask("session/list", json!({}));
    let (result, _) = durable.come_back();
    assert_eq!(
        result["_meta"]["outrigger"]["received"],
        durable.sent.len(),
        "{result}"
    );
}

/// The bug: each kept message was compared with each session that `stream/resume` named, a billion times.
#[test]
fn many_positions_do_not_hold_the_answer_up() {
    let server = agent(&[]);
    let address = server.address();
    let mut durable = Durable::connect(address);
    let session = durable.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
    let session = session["sessionId"].as_str().expect("an id").to_owned();
    let prompt = json!([{"type": "text", "text": "x ".repeat(15_000)}]);
    durable.request(
        "session/prompt",
        json!({"sessionId": session, "prompt": prompt}),
    );
    durable.hear();
    std::mem::replace(&mut durable.client.wire, Wire::open(address)).reset();
    wait_for_cut(address);
    eventually("the turn has ended", || {
        let status = call(address, "GET", "/status", None).1;
        status["clients"][0]["resume"]["kept_bytes"].as_u64() > Some(2 << 20)
    });
    for count in [0, 80_000] {
        // A busy machine takes up to 4 s for the long message. The billion comparisons took 40 s.
        let (wire, _) = connect(address, Some(&durable.id));
        let mut client = Client { wire, next_id: 0 };
        let mut sessions: serde_json::Map<_, _> = (0..count)
            .map(|number| {
                (
                    format!("{number:0width$}", width = session.len()),
                    json!("3"),
                )
            })
            .collect();
        sessions.insert(session.clone(), json!("3"));
        let began = std::time::Instant::now();
        let cursors = json!({"connection": "1", "sessions": sessions});
        client.ask("stream/resume", json!({"cursors": cursors}));
        let took = began.elapsed();
        assert!(took.as_secs() < 12, "{count} sessions: {took:?}");
        client.wire.reset();
        wait_for_cut(address);
    }
}

/// The bug: the states of the turns were added to messages that the client had received, and did not fit beside them.
#[test]
fn the_states_of_turns_fit_beside_what_the_client_has_received() {
    let script = r#"
n=0
while read -r line; do
  id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
  case "$line" in
    *'"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":2,"capabilities":{}}}' ;;
    *session/new*) n=$((n+1)); echo '{"jsonrpc":"2.0","id":'$id',"result":{"sessionId":"s'$n'"}}' ;;
    *session/prompt*)
      for i in 1 2 3 4 5 6; do
        echo '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{"text":"'$(printf '%04000d' 0)'"}}}'
      done
      echo '{"jsonrpc":"2.0","id":'$id',"result":{}}' ;;
  esac
done"#;
    let server = Program::start(&[
        "agent",
        "--resume-buffer",
        "64KiB",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let address = server.address();
    let (wire, id) = connect(address, None);
    let mut client = Client { wire, next_id: 0 };
    let capabilities = json!({"transport": {"resumable": {}}});
    let params = json!({"protocolVersion": 2, "capabilities": capabilities, "info": {"name": "x", "version": "1"}});
    client.ask("initialize", params);
    for _ in 0..150 {
        client.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
    }
    let answer = client.ask(
        "session/prompt",
        json!({"sessionId": "s1", "prompt": [{"type": "text", "text": "x"}]}),
    );
    let cursor = cursor_of(&answer).expect("a cursor").to_owned();
    let (wire, _) = connect(address, Some(&id));
    std::mem::replace(&mut client.wire, wire).reset();
    let answer = client.ask("stream/resume", json!({"cursor": cursor}));
    assert!(answer["result"].is_object(), "{answer}");
    for _ in 0..150 {
        assert!(client.hear()["params"]["update"]["state"].is_string());
    }
    client.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
}

/// Other connections cannot continue a client's, and those that can are one client together.
#[test]
fn who_may_continue_a_connection() {
    let server = agent(&[]);
    let address = server.address();
    let mut durable = Durable::connect(address);
    let session = durable.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
    let resume = json!({"jsonrpc": "2.0", "id": "back", "method": "stream/resume", "params": {"cursor": durable.cursor, "connectionId": durable.id}});
    // A client with a resume token, and a viewer.
    let mut token = Client {
        wire: Wire::connect(address, "/acp?resume=new"),
        next_id: 0,
    };
    token.say(&resume);
    assert_eq!(token.hear()["error"]["data"], "unknown_connection");
    let watched = session["sessionId"].as_str().expect("an id");
    let mut viewer = Client {
        wire: Wire::connect(address, &format!("/acp?watch={watched}")),
        next_id: 0,
    };
    viewer.say(&resume);
    // An initialized one.
    let mut other = Client::initialized(address);
    other.say(&resume);
    assert_eq!(error_code(&other.hear()), -32601);
    token.wire.send_close(1000);
    drop((viewer, other));
    // Several at the same time, each with more input behind stream/resume.
    let mut wires: Vec<_> = (0..20)
        .map(|_| connect(address, Some(&durable.id)).0)
        .collect();
    for wire in &mut wires {
        let list = json!({"jsonrpc": "2.0", "id": 77, "method": "session/list", "params": {}});
        let both = [resume.to_string(), list.to_string()];
        let frames: Vec<_> = both
            .iter()
            .flat_map(|text| crate::common::frame(true, TEXT, text.as_bytes()))
            .collect();
        wire.send(&frames);
    }
    eventually("one client is left", || {
        call(address, "GET", "/status", None).1["client_count"] == 1
    });
    let mut last = Client {
        wire: wires.pop().expect("a connection"),
        next_id: 100,
    };
    let answer = last.hear();
    assert_eq!(answer["id"], "back", "{answer}");
    assert!(answer["result"].is_object());
    last.ask("session/list", json!({}));
    last.wire.send_close(1000);
    eventually("no client is left", || {
        let status = call(address, "GET", "/status", None).1;
        status["client_count"] == 0 && status["agent"]["processes"][0]["clients"] == 0
    });
}

/// The bug: the newcomer needed a place, and got that of the client as which it came back.
#[test]
fn a_full_server_has_a_place_for_a_client_that_comes_back() {
    let server = agent(&["--max-clients", "1"]);
    let address = server.address();
    let mut durable = Durable::connect(address);
    durable.ask("session/list", json!({}));
    let (wire, _) = (Wire::open(address), ());
    std::mem::replace(&mut durable.client.wire, wire).reset();
    wait_for_cut(address);
    durable.come_back();
    durable.ask("session/list", json!({}));
    // The old connection seems alive.
    let (_, _old) = durable.come_back();
    durable.ask("session/list", json!({}));
}

/// A session that has long been idle lacks nothing. The client says so with `cursor`, and its old cursor has not expired.
#[test]
fn the_cursor_of_an_idle_session_does_not_expire() {
    let server = agent(&["--resume-buffer", "64KiB"]);
    let address = server.address();
    let mut durable = Durable::connect(address);
    let connection = durable.cursor.clone();
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let created = durable.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
        sessions.push(created["sessionId"].as_str().expect("an id").to_owned());
    }
    let idle = durable.cursor.clone();
    for _ in 0..40 {
        let prompt = json!([{"type": "text", "text": "x".repeat(4000)}]);
        durable.ask(
            "session/prompt",
            json!({"sessionId": sessions[0], "prompt": prompt}),
        );
    }
    let (wire, _) = connect(address, Some(&durable.id));
    drop(std::mem::replace(&mut durable.client.wire, wire));
    let cursors = json!({
        "connection": connection,
        "sessions": {&sessions[0]: durable.cursor, &sessions[1]: idle},
    });
    let answer = durable.client.ask(
        "stream/resume",
        json!({"cursor": durable.cursor, "cursors": cursors}),
    );
    assert!(answer["result"].is_object(), "{answer}");
}

/// The bug: a server that was being stopped refused clients that came back, and waited for them until its time ran out.
#[test]
fn a_client_may_come_back_while_the_server_is_stopped() {
    let mut server = agent(&["--drain-timeout", "8s"]);
    let address = server.address();
    let mut durable = Durable::connect(address);
    let session = durable.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
    let session = session["sessionId"].clone();
    let prompt = json!([{"type": "text", "text": "permission"}]);
    durable.request(
        "session/prompt",
        json!({"sessionId": session, "prompt": prompt}),
    );
    let asked = durable.hear();
    server.signal(Signal::TERM);
    eventually("the server stops", || {
        call(address, "GET", "/readyz", None).0 == 503
    });
    durable.come_back();
    durable
        .client
        .say(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"content": "x"}}));
    durable.hear();
    let answer = durable.hear();
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    server.wait();
}
