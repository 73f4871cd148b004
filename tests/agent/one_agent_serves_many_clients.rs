//! `outrigger agent` with a real agent process: which client gets which message, and what happens when a client
//! disconnects or the agent exits.

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::common::agent::{Client, error_code, example_agent};
use crate::common::program::Program;
use crate::common::traces::{TraceFile, descendants, eventually, expect_gone};
use crate::common::{BINARY, TEXT, Wire, call};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

fn agent(options: &[&str]) -> Program {
    Program::start(&[&["agent"][..], options, &["--", &example_agent()]].concat())
}

/// Connects, and returns the value of a field of the 101 response.
fn connect(address: SocketAddr, path: &str, field: &str) -> (Wire, String) {
    let mut wire = Wire::open(address);
    wire.send(&crate::common::request(path));
    let head = wire.read_head();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    let value = lines
        .find(|(name, _)| *name == field)
        .map(|(_, value)| value);
    let value = value.unwrap_or_else(|| panic!("{field} in {head}"));
    (wire, value.to_owned())
}

#[test]
fn the_101_names_the_connection() {
    let server = agent(&[]);
    let (wire, id) = connect(server.address(), "/acp", "Acp-Connection-Id");
    assert_eq!((id.len(), id.matches('-').count()), (36, 4), "{id}");
    let mut client = Client { wire, next_id: 0 };
    assert_eq!(
        client.ask("initialize", json!({}))["result"]["protocolVersion"],
        1
    );
}

/// A server behind the connection id, such as a log, knows the client by one id.
#[test]
fn the_id_of_a_connection_stays_the_same_after_a_resumption() {
    let server = agent(&[]);
    let address = server.address();
    let (mut wire, head) = (
        Wire::open(address),
        crate::common::request("/acp?resume=new"),
    );
    wire.send(&head);
    let head = wire.read_head();
    let field = |name: &str| {
        let found = head.lines().find_map(|line| line.strip_prefix(name));
        found
            .unwrap_or_else(|| panic!("{name} in {head}"))
            .to_owned()
    };
    let id = field("Acp-Connection-Id: ");
    let resume = field("Outrigger-Resume: ");
    let token = resume.split(';').next().expect("a token");
    let mut client = Client::initialized_on(wire);
    client.ask("session/list", json!({}));
    client.wire.reset();
    let path = format!("/acp?resume={token}&received=2");
    let (wire, same) = connect(address, &path, "Acp-Connection-Id");
    assert_eq!(same, id);
    let mut client = Client { wire, next_id: 9 };
    client.ask("session/list", json!({}));
}

#[test]
fn clients_with_the_same_ids_each_get_their_own_answers_and_updates() {
    let server = agent(&[]);
    let address = server.address();
    let threads: Vec<_> = (0..16)
        .map(|number| {
            std::thread::spawn(move || {
                let (mut client, session, _) = Client::with_session(address);
                for round in 0..50 {
                    let id = client.prompt(&session, &format!("words of {number} round {round}"));
                    let mut words = Vec::new();
                    loop {
                        let message = client.hear();
                        if message["method"] == "session/update" {
                            assert_eq!(message["params"]["sessionId"], session);
                            words.push(
                                message["params"]["update"]["content"]["text"]
                                    .as_str()
                                    .expect("text")
                                    .to_owned(),
                            );
                        } else {
                            assert_eq!(
                                (&message["id"], &message["result"]["stopReason"]),
                                (&json!(id), &json!("end_turn"))
                            );
                            break;
                        }
                    }
                    assert_eq!(words.join(" "), format!("words of {number} round {round}"));
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("only its own messages"));
}

#[test]
fn equal_progress_tokens_reach_who_asked_and_other_notifications_reach_everybody() {
    // The agent reports progress for each call, with the call's number, and announces new tools.
    let script = r#"while read -r line; do
        case $line in
            *announce*) echo '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'; continue;;
            *unanswered*) continue;;
        esac
        token=${line##*\"progressToken\":}; token=${token%%[!0-9]*}
        number=${line##*\"number\":}; number=${number%%[!0-9]*}
        echo '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":'$token',"progress":'$number'}}'
        echo '{"jsonrpc":"2.0","id":'$token',"result":{"number":'$number'}}'
        echo '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":'$token',"progress":"late"}}'
    done"#;
    let server = Program::start(&["agent", "--protocol", "jsonrpc", "--", "sh", "-c", script]);
    let address = server.address();
    let threads: Vec<_> = (0..16)
        .map(|client| {
            std::thread::spawn(move || {
                let mut wire = Client::connect(address);
                for round in 0..30 {
                    let number = client * 1000 + round;
                    let params = json!({"number": number, "_meta": {"progressToken": "t"}});
                    wire.say(
                        &json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}),
                    );
                    let progress = &wire.hear()["params"];
                    assert_eq!(progress, &json!({"progressToken": "t", "progress": number}));
                    let answer = wire.hear();
                    assert_eq!(answer["id"], 1);
                    assert_eq!(answer["result"], json!({"number": number}));
                }
                wire
            })
        })
        .collect();
    let clients = threads.into_iter().map(|thread| thread.join());
    let mut clients: Vec<_> = clients
        .map(|client| client.expect("only its own messages"))
        .collect();
    clients[0].request("unanswered", json!({}));
    clients[0].say(&json!({"jsonrpc": "2.0", "method": "announce"}));
    for client in &mut clients {
        assert_eq!(client.hear()["method"], "notifications/tools/list_changed");
    }
}

#[test]
fn responses_out_of_order_reach_their_clients() {
    let server = agent(&[]);
    let address = server.address();
    let mut clients: Vec<_> = (0..8).map(|_| Client::with_session(address)).collect();
    let mut ids = HashMap::new();
    for (number, (client, session, _)) in clients.iter_mut().enumerate() {
        for _ in 0..5 {
            ids.entry(number)
                .or_insert_with(Vec::new)
                .push(client.prompt(session, "hold"));
            // The update shows that the agent has the prompt.
            client.hear();
        }
    }
    let (last, session, _) = &mut clients[0];
    let releasing = last.prompt(&session.clone(), "release");
    ids.get_mut(&0).expect("the first").insert(0, releasing);
    for (number, (client, ..)) in clients.iter_mut().enumerate() {
        let mut want = ids.remove(&number).expect("its requests");
        while !want.is_empty() {
            let message = client.hear();
            let id = message["id"].as_u64().expect("a number");
            let at = want
                .iter()
                .position(|want| *want == id)
                .expect("the id of a pending request");
            want.remove(at);
        }
    }
}

#[test]
fn a_request_for_another_clients_session_is_denied_and_does_not_reach_the_agent() {
    let log = TraceFile::new("stranger");
    let script = format!("AGENT_LOG={} exec {}", log.path(), example_agent());
    let server = Program::start(&["agent", "--", "sh", "-c", &script]);
    let address = server.address();
    let (mut owner, session, _) = Client::with_session(address);
    let mut stranger = Client::initialized(address);
    for method in [
        "session/prompt",
        "session/load",
        "session/resume",
        "session/set_mode",
        "session/close",
    ] {
        let answer = stranger.ask(method, json!({"sessionId": session, "secret": "stranger"}));
        assert_eq!(
            (error_code(&answer), &answer["error"]["message"]),
            (-32010, &json!("Access denied")),
            "{method}"
        );
    }
    stranger.say(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session, "secret": "stranger"}}));
    let listed = stranger.ask("session/list", json!({}));
    assert_eq!(
        listed["result"]["sessions"],
        json!([]),
        "another client's session is not listed"
    );
    assert_eq!(
        owner.ask("session/list", json!({}))["result"]["sessions"][0]["sessionId"],
        json!(session)
    );
    let id = owner.prompt(&session, "done");
    owner.answer_to(id);
    let seen = log.text();
    assert!(
        seen.contains("session/prompt") && !seen.contains("stranger"),
        "{seen}"
    );
}

#[test]
fn a_line_feed_between_tokens_does_not_start_a_second_message() {
    let server = agent(&[]);
    let address = server.address();
    let (_owner, session, _) = Client::with_session(address);
    let mut stranger = Client::initialized(address);
    let smuggled = json!({"jsonrpc": "2.0", "id": 99, "method": "session/prompt", "params": {"sessionId": session, "prompt": []}});
    // In opaque content, the message may name any session.
    let text = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"x\",\"params\":{{\"content\":\n{smuggled}\r\n}}}}"
    );
    stranger.wire.send_frame(TEXT, text.as_bytes());
    let answer = stranger.hear();
    assert_eq!(
        (&answer["id"], error_code(&answer)),
        (&json!(5), -32601),
        "one message gets one response"
    );
}

#[test]
fn after_a_lost_connection_prompts_are_cancelled_and_the_session_can_be_resumed() {
    let log = TraceFile::new("cut");
    let script = format!("AGENT_LOG={} exec {}", log.path(), example_agent());
    let server = Program::start(&["agent", "--", "sh", "-c", &script]);
    let address = server.address();
    let (mut bystander, calm, _) = Client::with_session(address);
    let (mut client, session, mut token) = Client::with_session(address);
    let long = "x".repeat(4 << 20);
    for (text, sent) in [
        ("wait", Some("session/cancel")),
        ("permission", Some("\"outcome\":\"cancelled\"")),
        // The answer does not fit into the socket buffers, so the connection is lost in the middle of it.
        (&long, None),
    ] {
        client.prompt(&session, text);
        if let Some(sent) = sent {
            client.hear();
            client.wire.reset();
            eventually("the agent gets the cancellation", || {
                log.text().contains(sent)
            });
        } else {
            client.wire.read_exact(1000);
            client.wire.reset();
        }

        let id = bystander.prompt(&calm, "still here");
        assert_eq!(
            bystander.answer_to(id)["result"]["stopReason"],
            "end_turn",
            "other clients are not affected"
        );

        client = Client::initialized(address);
        let load = |token: &str| json!({"sessionId": session, "cwd": "/", "mcpServers": [], "_meta": {"outrigger": {"resumeToken": token}}});
        assert_eq!(
            error_code(&client.ask("session/load", load("wrong"))),
            -32010
        );
        let answer = loop {
            let answer = client.ask("session/load", load(&token));
            // Nothing orders the reset before what other connections send, so the server may not have seen it yet.
            let why = answer["error"]["data"].as_str().unwrap_or_default();
            if !why.starts_with("another connection controls the session") {
                break answer;
            }
        };
        let fresh = answer["result"]["_meta"]["outrigger"]["resumeToken"]
            .as_str()
            .unwrap_or_else(|| panic!("the session is loaded, with a new token: {answer}"))
            .to_owned();
        let mut other = Client::initialized(address);
        assert_eq!(
            error_code(&other.ask("session/load", load(&token))),
            -32010,
            "a used token opens nothing"
        );
        token = fresh;
        let id = client.prompt(&session, "goes on");
        assert_eq!(client.answer_to(id)["result"]["stopReason"], "end_turn");
    }
}

#[test]
fn when_the_agent_exits_requests_fail_and_a_new_agent_serves_the_same_connections() {
    let pids = TraceFile::new("death");
    let script = format!("echo $$ >>{}; exec {}", pids.path(), example_agent());
    let server = Program::start(&["agent", "--", "sh", "-c", &script]);
    let address = server.address();
    let mut clients: Vec<_> = (0..10).map(|_| Client::with_session(address)).collect();
    let mut asked = Vec::new();
    for (client, session, _) in &mut clients {
        let ids: Vec<_> = (0..5).map(|_| client.prompt(session, "hold")).collect();
        (0..5).for_each(|_| drop(client.hear()));
        asked.push(ids);
    }
    kill_process(pids.pids(1)[0], Signal::KILL).expect("it runs");
    for ((client, session, _), ids) in clients.iter_mut().zip(asked) {
        for id in ids {
            let answer = client.answer_to(id);
            assert_eq!(
                (error_code(&answer), &answer["error"]["message"]),
                (-32012, &json!("Agent exited"))
            );
            assert_eq!(
                answer["error"]["data"],
                json!({"code": null, "signal": "SIGKILL"})
            );
        }
        let id = client.prompt(session, "x");
        assert_eq!(
            error_code(&client.answer_to(id)),
            -32002,
            "the sessions are lost with the agent"
        );
        let new = client.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
        let session = new["result"]["sessionId"]
            .as_str()
            .expect("a session")
            .to_owned();
        let id = client.prompt(&session, "hello");
        assert_eq!(client.answer_to(id)["result"]["stopReason"], "end_turn");
    }
    assert_eq!(pids.pids(2).len(), 2, "the agent was restarted once");
}

/// The bug: the log said only that the agent is started again, and never why.
#[test]
fn an_agent_that_fails_says_why() {
    let script = "read line; printf 'API key\\033[2J missing\\n' >&2; exit 3";
    let options = ["--log", "warn", "--restart-limit", "1/60s", "--"];
    let mut server = Program::start(&[&["agent"][..], &options, &["sh", "-c", script]].concat());
    let mut client = Client::connect(server.address());
    let error = &client.ask("initialize", json!({"protocolVersion": 1}))["error"];
    let data = json!({"code": 3, "signal": null, "stderr": "API key\\u{1b}[2J missing"});
    assert_eq!(
        (&error["message"], &error["data"]),
        (&json!("Agent exited"), &data)
    );
    client.request("initialize", json!({"protocolVersion": 1}));
    let (_, log) = server.wait_and_read_log();
    let failed = log.lines().find(|line| line.contains("program failed"));
    let failed = failed.unwrap_or_else(|| panic!("{log}"));
    for part in [
        "route=\"/acp\"",
        "pid=",
        "exited with code 3",
        "missing",
        "restart_in=",
    ] {
        assert!(failed.contains(part), "{part}: {failed}");
    }
    let last = log.lines().last().expect("a line");
    assert!(
        last.contains("exited with code 3. Its last output was: API key"),
        "{log}"
    );
}

#[test]
fn a_client_never_gets_what_the_agent_wrote_about_another() {
    let script = format!("echo 'a secret of the first' >&2; exec {}", example_agent());
    for client_count in [1, 2] {
        let server = Program::start(&["agent", "--", "sh", "-c", &script]);
        let address = server.address();
        let (mut client, session, _) = Client::with_session(address);
        // A client that has left counts, too.
        let others = (1..client_count).map(|_| Client::with_session(address));
        drop(others.collect::<Vec<_>>());
        let id = client.prompt(&session, "hold");
        drop(client.hear());
        for pid in descendants(server.pid()) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let data = client.answer_to(id)["error"]["data"].clone();
        let quoted = (client_count == 1).then_some("a secret of the first");
        assert_eq!(data["signal"], "SIGKILL");
        assert_eq!(data["stderr"].as_str(), quoted);
    }
}

#[test]
fn the_server_stops_when_the_agent_exits_too_often() {
    let mut server = Program::start(&[
        "agent",
        "--restart-limit",
        "2/60s",
        "--",
        "sh",
        "-c",
        "exit 4",
    ]);
    let address = server.address();
    let mut wire = Wire::connect(address, "/acp");
    assert_eq!(wire.read_close(), (1011, "Agent exited".to_owned()));
    wire.send_close(1011);
    let (status, log) = server.wait_and_read_log();
    assert_eq!(status.code(), Some(1));
    assert_eq!(log.matches("restart_in=").count(), 2, "{log}");
}

#[test]
fn invalid_lines_of_the_agent_are_skipped() {
    let script = format!(
        "echo garbage; head -c 300000 /dev/zero | tr '\\0' x; echo; echo '[1]'; exec {}",
        example_agent()
    );
    let server = Program::start(&[
        "agent",
        "--max-message",
        "100KiB",
        "--",
        "sh",
        "-c",
        &script,
    ]);
    let (mut client, session, _) = Client::with_session(server.address());
    let id = client.prompt(&session, "fine");
    assert_eq!(client.answer_to(id)["result"]["stopReason"], "end_turn");
}

#[test]
fn invalid_messages_of_a_client_get_errors() {
    let server = agent(&[]);
    let address = server.address();
    let mut early = Client::connect(address);
    early.request("session/new", json!({}));
    assert_eq!(
        early.wire.read_close(),
        (1002, "The first message must be initialize".to_owned())
    );
    let mut client = Client::initialized(address);
    client.wire.send_frame(TEXT, b"nonsense");
    assert_eq!(error_code(&client.hear()), -32700);
    client.wire.send_frame(TEXT, b"[]");
    assert_eq!(error_code(&client.hear()), -32600);
    client.say(&json!({"jsonrpc": "2.0", "id": "x".repeat(2000), "method": "x"}));
    assert_eq!(
        client.wire.read_close(),
        (1008, "Request id too long".to_owned())
    );
}

#[test]
fn a_client_that_does_not_read_is_closed_and_does_not_delay_others() {
    let server = agent(&["--max-outbound", "1MiB", "--close-timeout", "1h"]);
    let address = server.address();
    let (mut deaf, session, _) = Client::with_session(address);
    let (mut other, own, _) = Client::with_session(address);
    // The client does not read 150 updates of 100 kB each.
    deaf.prompt(&session, &format!("{} ", "x".repeat(100_000)).repeat(150));
    for _ in 0..100 {
        let id = other.prompt(&own, "quick");
        assert_eq!(other.answer_to(id)["result"]["stopReason"], "end_turn");
    }
    assert_eq!(deaf.wire.read_close(), (1008, "Slow consumer".to_owned()));
}

#[test]
fn a_signal_stops_all_agent_processes() {
    let pids = TraceFile::new("signal");
    let script = format!(
        "trap '' HUP; sleep 1000 & echo $! >>{}; cat >/dev/null",
        pids.path()
    );
    let mut server = Program::start(&["agent", "--protocol", "jsonrpc", "--", "sh", "-c", &script]);
    let mut wire = Wire::connect(server.address(), "/acp");
    let left = pids.pids(1)[0];
    server.signal(Signal::TERM);
    assert_eq!(wire.read_close().0, 1001);
    wire.send_close(1001);
    assert_eq!(server.wait().code(), Some(0));
    expect_gone(left);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn responses_to_an_agent_that_does_not_read_take_bounded_memory() {
    // The bug: each of its requests got an error response, and the queue of responses grew without limit: 1.5 GB in 6 s.
    let done = TraceFile::new("agent-asks");
    let script = format!(
        r#"yes '{{"jsonrpc":"2.0","id":1,"method":"x","params":{{}}}}' | head -c 20000000; echo done >{}; exec sleep 1000"#,
        done.path()
    );
    let server = Program::start(&["agent", "--log", "off", "--", "sh", "-c", &script]);
    server.address();
    eventually("all requests were read", || !done.text().is_empty());
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()));
    let status = status.expect("it runs");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident: u64 = resident
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .and_then(|kilobytes| kilobytes.parse().ok())
        .expect("a number");
    assert!(resident < 40_000, "{resident} kB");
}

#[test]
fn a_stopping_server_waits_for_pending_responses() {
    // The bug: SIGTERM closed every client at once. None of ten prompts that needed 0.3 s got its response, although the
    // drain timeout is 10 s.
    let mut server = agent(&[]);
    let address = server.address();
    let (mut busy, session, _) = Client::with_session(address);
    let (mut idle, ..) = Client::with_session(address);
    let prompt = busy.prompt(&session, "permission");
    let asked = loop {
        let message = busy.hear();
        if message["method"] == "session/request_permission" {
            break message["id"].clone();
        }
    };
    server.signal(Signal::TERM);
    assert_eq!(idle.wire.read_close().0, 1001, "it has no pending request");
    idle.wire.send_close(1001);
    let refused = busy.ask("session/list", json!({}));
    assert_eq!(error_code(&refused), -32015, "new requests are rejected");
    let outcome = json!({"outcome": {"outcome": "selected", "optionId": "yes"}});
    busy.say(&json!({"jsonrpc": "2.0", "id": asked, "result": outcome}));
    assert_eq!(
        busy.answer_to(prompt)["result"]["stopReason"],
        "end_turn",
        "the pending request gets its response"
    );
    assert_eq!(busy.wire.read_close().0, 1001);
    busy.wire.send_close(1001);
    assert_eq!(server.wait().code(), Some(0));
}

/// Opens a connection that can be resumed, or comes back. Returns its status and its resume token.
fn resumable(address: SocketAddr, field: &str) -> (Wire, String, String) {
    let mut wire = Wire::open(address);
    let head = String::from_utf8(crate::common::request("/acp")).expect("ASCII");
    let field = format!("Outrigger-Resume: {field}\r\nUpgrade:");
    wire.send(head.replacen("Upgrade:", &field, 1).as_bytes());
    let head = wire.read_head();
    let token = head.lines().find_map(|line| {
        let value = line.strip_prefix("Outrigger-Resume: ")?;
        Some(value.split(';').next()?.to_owned())
    });
    (wire, head[9..12].to_owned(), token.unwrap_or_default())
}

/// The bug: a stopping server stopped listening, so that a client that was cut meanwhile lost a turn that would have ended.
#[test]
fn a_client_that_is_cut_while_the_server_stops_comes_back_for_its_answer() {
    let mut server = agent(&[]);
    let address = server.address();
    let (wire, status, token) = resumable(address, "new");
    assert_eq!(status, "101");
    let mut client = Client { wire, next_id: 0 };
    let mut received = 0;
    let mut answer = |client: &mut Client, id: u64| loop {
        let message = client.hear();
        received += 1;
        if message["id"] == id && message.get("method").is_none() {
            return message["result"].clone();
        }
        if message["method"] == "session/request_permission" {
            return message["id"].clone();
        }
    };
    let id = client.request("initialize", json!({"protocolVersion": 1}));
    answer(&mut client, id);
    let id = client.request("session/new", json!({"cwd": "/", "mcpServers": []}));
    let session = answer(&mut client, id)["sessionId"].clone();
    let prompt = client.prompt(session.as_str().expect("an id"), "permission");
    let asked = answer(&mut client, prompt);
    server.signal(Signal::TERM);
    eventually("the server stops", || {
        call(address, "GET", "/readyz", None).0 == 503
    });
    client.wire.reset();
    assert_eq!(
        resumable(address, "new").1,
        "503",
        "new clients are refused"
    );
    assert_eq!(call(address, "GET", "/acp", None).0, 503);

    let (wire, status, _) = resumable(address, &format!("{token}; received={received}"));
    assert_eq!(status, "101");
    client.wire = wire;
    let outcome = json!({"outcome": {"outcome": "selected", "optionId": "yes"}});
    client.say(&json!({"jsonrpc": "2.0", "id": asked, "result": outcome}));
    assert_eq!(client.answer_to(prompt)["result"]["stopReason"], "end_turn");
    assert_eq!(client.wire.read_close().0, 1001);
    client.wire.send_close(1001);
    assert_eq!(server.wait().code(), Some(0));
}

/// The bug: the answer of an agent to a client that was away when the server began to stop was dropped at once.
#[test]
fn a_stopping_server_keeps_an_answer_for_a_client_that_is_away() {
    let mut server = agent(&[]);
    let address = server.address();
    let (wire, _, token) = resumable(address, "new");
    let mut client = Client { wire, next_id: 0 };
    client.request("initialize", json!({"protocolVersion": 1}));
    client.wire.reset();
    eventually("the client is detached", || {
        call(address, "GET", "/status", None).1["detached"] == 1
    });
    server.signal(Signal::TERM);
    eventually("the server stops", || {
        call(address, "GET", "/readyz", None).0 == 503
    });
    let (wire, status, _) = resumable(address, &format!("{token}; received=0"));
    assert_eq!(status, "101");
    client.wire = wire;
    assert_eq!(client.answer_to(1)["result"]["protocolVersion"], 1);
    assert_eq!(client.wire.read_close().0, 1001);
    client.wire.send_close(1001);
    assert_eq!(server.wait().code(), Some(0));
}

/// The bug: an agent that hung was never noticed, and load balancers sent it more clients.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn a_route_is_not_ready_while_its_agent_hangs() {
    let server = agent(&["--request-timeout", "200ms"]);
    let address = server.address();
    let mut client = Client::initialized(address);
    let ready = || call(address, "GET", "/readyz?route=/acp", None).0;
    assert_eq!(ready(), 200);
    let agent = descendants(server.pid())[0];
    kill_process(agent, Signal::STOP).expect("it runs");
    let failed = client.ask("session/list", json!({}));
    assert_eq!(error_code(&failed), -32014);
    assert_eq!(ready(), 503);
    assert_eq!(call(address, "GET", "/readyz", None).0, 503);
    kill_process(agent, Signal::CONT).expect("it runs");
    // It answers late.
    eventually("the route is ready", || ready() == 200);
}

/// The bug: a client whose library sends binary messages waited for ever.
#[test]
fn a_client_that_speaks_only_binary_is_told() {
    let server = agent(&[]);
    let address = server.address();
    let initialize = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}});
    let mut binary = Wire::connect(address, "/acp");
    binary.send_frame(BINARY, initialize.to_string().as_bytes());
    let reason = "Messages must be text, not binary".to_owned();
    assert_eq!(binary.read_close(), (1003, reason));
    // Later ones are ignored, and counted.
    let mut client = Client::initialized(address);
    client.wire.send_frame(BINARY, b"{}");
    client.wire.send_frame(BINARY, b"");
    let created = client.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
    assert!(created["result"]["sessionId"].is_string(), "{created}");
    let status = call(address, "GET", "/status", None).1;
    assert_eq!(status["agent"]["dropped"], 2, "{status}");
}

#[test]
fn a_request_that_is_no_handshake_learns_that_there_is_only_websocket() {
    let server = agent(&[]);
    let address = server.address();
    for (method, status, field) in [
        ("GET", 426, "Upgrade: websocket"),
        ("POST", 405, "Allow: GET"),
        ("DELETE", 405, "Allow: GET"),
    ] {
        let mut wire = Wire::open(address);
        let head = format!("{method} /acp HTTP/1.1\r\nHost: localhost\r\n\r\n");
        wire.send(head.as_bytes());
        let (head, body) = wire.read_response();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert!(head.contains(&format!("\r\n{field}\r\n")), "{head}");
        let detail =
            "this agent (ACP) is only served over WebSocket; an MCP server is another service";
        assert_eq!(body["detail"], detail);
    }
    assert_eq!(call(address, "GET", "/health", None).0, 200);
}

/// The bug: a batch of a thousand messages counted as one.
#[test]
fn each_message_of_a_batch_counts_towards_the_rate_limit() {
    // Answers each request.
    let answers = concat!(
        r#"s/.*"id":([^,]*),.*"initialize".*/{"jsonrpc":"2.0","id":\1,"result":{"protocolVersion":2,"capabilities":{}}}/p;t;"#,
        r#"s/.*"id":([^,]*),.*/{"jsonrpc":"2.0","id":\1,"result":{"sessions":[]}}/p"#,
    );
    let options = ["agent", "--rate-limit", "50", "--", "sed", "-Eun", answers];
    let server = Program::start(&options);
    let mut client = Client::connect(server.address());
    let hello = json!({"protocolVersion": 2, "info": {"name": "t", "version": "1"}});
    client.say(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}));
    client.hear();
    let batch = |count: u32| {
        let list = |id| json!({"jsonrpc": "2.0", "id": id, "method": "session/list"});
        Value::from_iter((0..count).map(list))
    };
    client.say(&batch(20));
    assert_eq!(client.hear().as_array().map(Vec::len), Some(20));
    client.say(&batch(500));
    assert_eq!(client.wire.read_close(), (1008, "Rate limit".to_owned()));
}
