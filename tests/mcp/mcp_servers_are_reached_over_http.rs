//! `outrigger mcp`: a stdio MCP server is reached over Streamable HTTP, in the revision without sessions and in those with them.

use crate::client::{ANY, JSON, STATELESS, Session, example, figure, request, script, send};
use crate::common::Wire;
use crate::common::program::Program;
use crate::common::traces::{TraceFile, eventually, expect_gone};
use serde_json::{Value, json};

#[test]
fn a_message_over_the_limit_of_json_is_refused() {
    let server = example(&["--max-json", "2KiB"]);
    let address = server.address();
    let call = |length: usize| {
        let params = json!({"name": "echo", "arguments": {"text": "x".repeat(length)}});
        request(address, json!(1), "tools/call", params)
    };
    assert_eq!(call(100).status, 200);
    assert_eq!(call(2000).status, 413, "from the head, before the body");
}

/// The bug: a message with a method that a shared process does not get was queued without a limit for the process of a session.
#[test]
fn a_process_that_does_not_read_gets_no_more_messages_of_any_kind() {
    let program = r#"read -r line
        case "$line" in
        *server/discover*) echo '{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}'; cat >/dev/null;;
        *) echo '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25"}}'; exec sleep 1000;;
        esac"#;
    let server = Program::start(&["mcp", "--", "sh", "-c", program]);
    let session = Session::begin(server.address());
    let long = "x".repeat(1 << 20);
    for method in ["server/discover", "initialize", "notifications/x"] {
        let message = json!({"jsonrpc": "2.0", "method": method, "params": {"x": long}});
        let mut sent = (0..10).map(|_| session.send(message.clone()).status);
        assert!(sent.any(|status| status == 503), "{method}");
    }
}

/// The bug: what sessions keep for clients that were cut was never given back, so a client that only read was ended in its place.
#[test]
fn the_oldest_events_of_a_session_make_room_when_memory_is_short() {
    let flood = r#"id=${line#*\"id\":}; id=${id%%,*}
        case "$line" in
        *flood*) for n in $(seq 60); do
            printf '{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"'
            head -c 100000 /dev/zero | tr '\0' x; echo '"}}'; done;;
        *ping*) echo '{"jsonrpc":"2.0","id":'$id',"result":{}}';;
        esac"#;
    let options = ["--memory", "4MiB", "--replay", "8MiB"];
    let server = script(&options, flood);
    let address = server.address();
    let (session, other) = (Session::begin(address), Session::begin(address));
    let mut reader = other.listen(None);
    let flood = json!({"jsonrpc": "2.0", "id": 1, "method": "flood"});
    let mut cut = session.send(flood);
    let (first, _) = cut.event().expect("an event");
    let number = |id: &str| id.split_once('-').expect("an id").1.parse::<u64>();
    let number = |id: &str| number(id).expect("a number");
    drop(cut);
    eventually("events are kept and given back", || {
        let sent = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"});
        assert_eq!(other.send(sent).status, 200);
        let (next, _) = session.listen(Some(&first)).event().expect("an event");
        number(&next) > number(&first) + 1
    });
    let kept = figure(address, "kept_bytes");
    assert!((1 << 20..=4 << 20).contains(&kept), "{kept}");
    assert_eq!(figure(address, "sessions"), 2);
    // The client that only reads has not been ended.
    other.send(json!({"jsonrpc": "2.0", "id": 3, "method": "flood"}));
    while reader.event().expect("it is open").1["method"].is_null() {}
}

#[test]
fn requests_of_the_revision_without_sessions_share_a_process() {
    let server = example(&[]);
    let address = server.address();
    for id in [json!(1), json!("a\"b"), json!(0)] {
        let answer = request(
            address,
            id.clone(),
            "tools/call",
            json!({"name": "add", "arguments": {"a": 1, "b": 2}}),
        );
        assert_eq!((answer.status, answer.field("Mcp-Session-Id")), (200, None));
        let answer = answer.json();
        assert_eq!(
            (&answer["id"], &answer["result"]["content"][0]["text"]),
            (&id, &json!("3"))
        );
    }
    // Progress comes first, under the caller's own token.
    let count =
        json!({"name": "count", "arguments": {"steps": 2}, "_meta": {"progressToken": "p"}});
    let mut answer = request(address, json!(7), "tools/call", count);
    for step in 1..=2 {
        let (id, progress) = answer.event().expect("progress");
        assert_eq!(id, "", "such a stream cannot be resumed");
        assert_eq!(
            (
                &progress["params"]["progressToken"],
                &progress["params"]["progress"]
            ),
            (&json!("p"), &json!(step))
        );
    }
    assert_eq!(answer.event().expect("the answer").1["id"], 7);
    assert!(answer.event().is_none());
    let answer = request(address, json!(1), "no/such", json!({}));
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (404, &json!(-32601))
    );
    assert_eq!(figure(address, "processes"), 1);
}

#[test]
fn a_progress_token_that_the_server_could_read_elsewhere_is_an_error() {
    // The bug: a token under a key that occurs twice reached the shared process, which then named the request of somebody else.
    let server = example(&[]);
    let address = server.address();
    for tokens in [
        r#""progressToken":1,"progressToken":2"#,
        r#""progress_token":2"#,
    ] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"_meta":{{{tokens},"io.modelcontextprotocol/protocolVersion":"{STATELESS}","io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#
        );
        let version = format!("MCP-Protocol-Version: {STATELESS}");
        let answer = send(
            address,
            "POST",
            &[JSON, ANY, &version, "Mcp-Method: tools/list"],
            &body,
        );
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (400, &json!(-32600)),
            "{tokens}"
        );
    }
}

#[test]
fn header_fields_are_checked_for_tools_of_every_page() {
    // The bug: only the first page of the tools was read.
    let script = r#"
        while read -r line; do
            id=${line#*'"id":'}; id=${id%%,*}
            case "$line" in
            *server/discover*) result='{"supportedVersions":["2026-07-28"]}';;
            *'"cursor":"two"'*) result='{"tools":[{"name":"q","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}}]}';;
            *tools/list*) result='{"tools":[],"nextCursor":"two"}';;
            *) result='{}';;
            esac
            printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
        done
    "#;
    let server = Program::start(&["mcp", "--", "sh", "-c", script]);
    let address = server.address();
    let call = json!({"name": "q", "arguments": {"a": "x"}});
    eventually("the tools are known", || {
        let answer = request(address, json!(1), "tools/call", call.clone());
        answer.status == 400 && answer.json()["error"]["code"] == -32020
    });
}

#[test]
fn bad_input_gets_a_precise_error() {
    let server = example(&[]);
    let address = server.address();
    let session = Session::begin(address);
    let list = r#"{"jsonrpc":"2.0","id":5,"method":"tools/list"}"#;
    let own = &*session.field;
    let stranger = "Mcp-Session-Id: 5cf1e8b4-1c1b-4b6e-9a3a-8d7f5f0f3b11";
    let modern = "MCP-Protocol-Version: 2026-07-28";
    for (method, fields, body, status, code) in [
        ("POST", &[ANY, own][..], list, 415, -32600),
        (
            "POST",
            &[ANY, own, "Content-Type: text/plain"],
            list,
            415,
            -32600,
        ),
        ("POST", &[JSON, own, "Accept: text/html"], list, 406, -32600),
        ("POST", &[JSON, ANY, own], "{", 400, -32700),
        ("POST", &[JSON, ANY, own], "[]", 400, -32600),
        ("POST", &[JSON, ANY], list, 400, -32600),
        ("POST", &[JSON, ANY, stranger], list, 404, -32001),
        ("POST", &[JSON, ANY, "Mcp-Session-Id: x"], list, 404, -32001),
        (
            "POST",
            &[JSON, ANY, own, "MCP-Protocol-Version: 1999-01-01"],
            list,
            400,
            -32022,
        ),
        (
            "POST",
            &[JSON, ANY, modern, "Mcp-Method: tools/list"],
            list,
            400,
            -32602,
        ),
        (
            "POST",
            &[JSON, ANY, own],
            r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
            400,
            -32600,
        ),
        (
            "POST",
            &[JSON, ANY, own],
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}"#,
            400,
            -32600,
        ),
        (
            "POST",
            &[JSON, ANY, own],
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","x":1}"#,
            400,
            -32600,
        ),
        (
            "POST",
            &[JSON, ANY, own],
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#,
            400,
            -32600,
        ),
        (
            "POST",
            &[JSON, ANY, stranger],
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#,
            404,
            -32001,
        ),
        ("GET", &[ANY], "", 400, -32600),
        ("GET", &[own, "Accept: application/json"], "", 406, -32600),
        ("GET", &[own, ANY, "Last-Event-ID: x"], "", 400, -32600),
        ("GET", &[own, ANY, "Last-Event-ID: 0-999"], "", 400, -32600),
        ("GET", &[modern], "", 405, -32600),
        ("POST", &[JSON, ANY, own, own], list, 400, -32020),
        ("PUT", &[own], "", 405, -32600),
        ("DELETE", &[stranger], "", 404, -32001),
    ] {
        let answer = send(address, method, fields, body);
        let (got, head) = (answer.status, answer.head.clone());
        let allow = answer.field("Allow").is_some();
        let error = answer.json();
        assert_eq!(
            (got, &error["error"]["code"]),
            (status, &json!(code)),
            "{method} {fields:?} {body}: {head}{error}"
        );
        assert_eq!(allow, status == 405, "{head}");
        if code == -32022 {
            assert_eq!(error["error"]["data"]["requested"], "1999-01-01");
            assert!(
                error["error"]["data"]["supported"]
                    .as_array()
                    .is_some_and(|all| all.contains(&json!("2025-11-25")))
            );
        }
    }
    // The session is as it was.
    let answer = session.send(serde_json::from_str(list).expect("JSON"));
    assert_eq!((answer.status, &answer.json()["id"]), (200, &json!(5)));
}

#[test]
fn a_session_has_a_process_that_ends_with_it() {
    let trace = TraceFile::new("mcp-sessions");
    let server = script(&[], &format!("echo $$ >> {}", trace.path()));
    let address = server.address();
    let sessions = [Session::begin(address), Session::begin(address)];
    let mut pids = Vec::new();
    for session in &sessions {
        let accepted =
            session.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        assert_eq!(
            (accepted.status, accepted.field("Content-Length")),
            (202, Some("0"))
        );
        pids = trace.pids(pids.len() + 1);
    }
    assert_ne!(pids[0], pids[1]);
    assert_eq!(figure(address, "sessions"), 2);
    for (session, pid) in sessions.iter().zip(pids) {
        let deleted = send(address, "DELETE", &[&session.field], "");
        assert_eq!(deleted.status, 204);
        expect_gone(pid);
        let gone = session.send(json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}));
        assert_eq!(
            (gone.status, &gone.json()["error"]["code"]),
            (404, &json!(-32001))
        );
    }
    eventually("no process is left", || figure(address, "processes") == 0);
}

#[test]
fn a_client_that_was_cut_gets_what_it_missed() {
    // The call reports its progress, and ends when the client sends a notification.
    let on_message = r#"
        case "$line" in
        *'"tools/call"'*) echo '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}';;
        *go*) echo '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":2}}'
            echo '{"jsonrpc":"2.0","id":9,"result":{}}';;
        *) echo '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}';;
        esac"#;
    let server = script(&[], on_message);
    let address = server.address();
    let session = Session::begin(address);
    let call = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "t", "_meta": {"progressToken": "p"}}});
    let mut answer = session.send(call.clone());
    let (first, nothing) = answer.event().expect("an event to begin with");
    assert_eq!(nothing, Value::Null, "it has no data");
    let (second, progress) = answer.event().expect("progress");
    assert_eq!(progress["params"]["progress"], 1);
    // A second call with the same id would get the answer of the first.
    let twice = session.send(call);
    assert_eq!(
        (twice.status, &twice.json()["error"]["code"]),
        (400, &json!(-32600))
    );
    drop(answer);
    eventually("the cut is noticed", || figure(address, "calls") == 1);
    assert_eq!(
        session
            .send(json!({"jsonrpc": "2.0", "method": "go"}))
            .status,
        202
    );
    eventually("the call has ended", || {
        figure(address, "pending_requests") == 0
    });
    for (last, missed) in [(&first, 3), (&second, 2)] {
        let mut rest = session.listen(Some(last));
        let all: Vec<Value> = std::iter::from_fn(|| rest.event())
            .map(|(_, data)| data)
            .collect();
        assert_eq!(all.len(), missed, "{all:?}");
        assert_eq!(all[missed - 1]["id"], 9);
    }
    // A message that belongs to no request waits for the stream of the client.
    assert_eq!(
        session
            .send(json!({"jsonrpc": "2.0", "method": "change"}))
            .status,
        202
    );
    let mut stream = session.listen(None);
    let (before, nothing) = stream.event().expect("an event to begin with");
    assert_eq!((&*before, nothing), ("0-0", Value::Null));
    let (id, changed) = stream.event().expect("the change");
    assert_eq!(changed["method"], "notifications/tools/list_changed");
    // The bug: a client that was cut before it had the first event of the stream never got it.
    drop(stream);
    let mut stream = session.listen(Some(&before));
    assert_eq!(stream.event().map(|(id, _)| id), Some(id.clone()));
    // A client that comes back takes the stream over.
    let mut again = session.listen(Some(&id));
    assert!(stream.event().is_none(), "the former stream ends");
    assert_eq!(
        session
            .send(json!({"jsonrpc": "2.0", "method": "change"}))
            .status,
        202
    );
    assert!(again.event().is_some());
}

#[test]
fn a_server_that_exits_fails_its_requests_at_once() {
    let server = script(&["--restart-limit", "5/60s"], "exit 3");
    let session = Session::begin(server.address());
    let failed = session
        .send(json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}))
        .json();
    assert_eq!(
        (&failed["id"], &failed["error"]["data"]["code"]),
        (&json!(2), &json!(3)),
        "{failed}"
    );
    let gone = session.send(json!({"jsonrpc": "2.0", "id": 3, "method": "tools/list"}));
    assert_eq!(gone.status, 404);
    // It has no process for the revision without sessions.
    let answer = request(session.address, json!(1), "tools/list", json!({}));
    let (status, error) = (answer.status, answer.json());
    assert_eq!((status, &error["error"]["code"]), (400, &json!(-32022)));
    assert!(
        error["error"]["data"]["supported"]
            .as_array()
            .is_some_and(|all| !all.contains(&json!(STATELESS)))
    );
}

#[test]
fn a_program_that_exits_after_its_first_answer_serves_sessions() {
    // The bug: such a process was started again for the pool, although the program supports only sessions.
    let script = r#"read -r line; case "$line" in
        *server/discover*) echo '{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}'; exit 0;;
        *) echo '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25"}}'; read -r line;;
        esac"#;
    let server = Program::start(&["mcp", "--", "sh", "-c", script]);
    let address = server.address();
    let answer = request(address, json!(1), "tools/list", json!({}));
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (400, &json!(-32022))
    );
    eventually("the first process is gone", || {
        figure(address, "processes") == 0
    });
    let session = Session::begin(address);
    assert_eq!(figure(address, "processes"), 1);
    drop(session);
}

#[test]
fn unused_and_unknown_sessions_end() {
    let server = script(&["--session-idle", "3s"], ":");
    let address = server.address();
    let session = Session::begin(address);
    let stream = session.listen(None);
    let idle = Session::begin(address);
    eventually("the unused session ends", || {
        figure(address, "sessions") == 1
    });
    assert_eq!(
        idle.send(json!({"jsonrpc": "2.0", "method": "x"})).status,
        404
    );
    assert_eq!(
        session
            .send(json!({"jsonrpc": "2.0", "method": "x"}))
            .status,
        202
    );
    drop(stream);
    eventually("no session is left", || figure(address, "processes") == 0);
    // The bug: a session whose client had gone before it could learn its id lived for ever, if its process did not answer.
    let server = Program::start(&[
        "mcp",
        "--initialize-timeout",
        "4s",
        "--",
        "sh",
        "-c",
        "cat > /dev/null",
    ]);
    let address = server.address();
    let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#;
    let post = |length: usize| {
        format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\n{ANY}\r\nContent-Length: {length}\r\n\r\n{initialize}"
        )
    };
    let mut wire = Wire::open(address);
    wire.send(post(initialize.len()).as_bytes());
    eventually("the session begins", || figure(address, "sessions") == 1);
    drop(wire);
    eventually("the session ends", || figure(address, "sessions") == 0);
    let failed = send(address, "POST", &[JSON, ANY], initialize);
    let mut failed = failed;
    // The bug: the client learned only "Session ended".
    let error = failed.event().expect("an error").1["error"].clone();
    let why = "its process has not answered initialize in time";
    assert_eq!(
        (&error["message"], &error["data"]),
        (&json!("Session ended"), &json!(why))
    );
    eventually("no process is left", || figure(address, "processes") == 0);
}

#[test]
fn a_client_learns_why_its_server_does_not_run() {
    let fails = "read line; echo API key missing >&2; exit 3";
    for share in ["none", "all"] {
        let server = Program::start(&["mcp", "--share", share, "--", "sh", "-c", fails]);
        let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"a","version":"1"}}}"#;
        let failed = send(server.address(), "POST", &[JSON, ANY], initialize);
        let error = failed.response()["error"].clone();
        let data = json!({"code": 3, "signal": null, "stderr": "API key missing"});
        assert_eq!(
            (&error["message"], &error["data"]),
            (&json!("MCP server exited"), &data)
        );
    }
}

#[test]
fn limits_are_held() {
    let server = script(&["--max-sessions", "2", "--max-requests", "1"], ":");
    let address = server.address();
    let session = Session::begin(address);
    let waiting = Session::begin(address);
    let full = send(
        address,
        "POST",
        &[JSON, ANY],
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#,
    );
    assert_eq!((full.status, full.field("Retry-After")), (503, Some("1")));
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "wait"}).to_string();
    let mut wire = Wire::open(address);
    let length = body.len();
    wire.send(format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\n{ANY}\r\n{}\r\nContent-Length: {length}\r\n\r\n{body}", waiting.field).as_bytes());
    eventually("the request waits", || {
        figure(address, "pending_requests") == 1
    });
    let full = session.send(json!({"jsonrpc": "2.0", "id": 1, "method": "wait"}));
    assert_eq!((full.status, &full.json()["id"]), (503, &json!(1)));
    assert_eq!(send(address, "DELETE", &[&waiting.field], "").status, 204);
    let head = wire.read_head();
    assert!(
        head.starts_with("HTTP/1.1 200 "),
        "the request has failed: {head}"
    );
    eventually("there is room", || figure(address, "pending_requests") == 0);
}

#[test]
fn a_websocket_handshake_learns_the_way_out() {
    let server = example(&[]);
    let mut wire = Wire::open(server.address());
    wire.send(&crate::common::request("/mcp"));
    let (head, body) = wire.read_response();
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    let message = body["message"].as_str().expect("a text");
    let detail = body["detail"].as_str().expect("a text");
    assert!(message.contains("Streamable HTTP"), "{body}");
    assert!(detail.contains("outrigger pipe"), "{body}");
}
