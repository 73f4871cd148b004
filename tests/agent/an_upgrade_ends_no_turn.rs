//! The server replaces its program under agents: turns and requests go on, each answer reaches who has asked for it, and sessions stay
//! with their owners.
#![cfg(target_os = "linux")]

use std::collections::HashSet;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::agent::{Client, error_code, example_agent, is_turn_complete, load};
use crate::common::program::Program;
use crate::common::traces::{TraceFile, eventually};
use crate::common::{Wire, call, request, upgrade};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Starts an agent that may be upgraded over TCP.
fn agent(options: &[&str], command: &[&str]) -> (Program, SocketAddr) {
    let options = [&["agent", "--allow-upgrade"], options, &["--"], command].concat();
    let server = Program::start(&options);
    let address = server.address();
    (server, address)
}

/// Starts the example agent, which writes what it reads to a file.
fn logging_agent(options: &[&str], log: &TraceFile) -> (Program, SocketAddr) {
    let script = format!("AGENT_LOG={} exec {}", log.path(), example_agent());
    agent(options, &["sh", "-c", &script])
}

fn status(address: SocketAddr) -> Value {
    call(address, "GET", "/status", None).1
}

/// The process ids of the agent.
fn pids(address: SocketAddr) -> Vec<u64> {
    let status = status(address);
    let processes = status["agent"]["processes"].as_array().expect("a list");
    let pids = processes.iter().map(|process| process["pid"].as_u64());
    pids.map(|pid| pid.expect("it runs")).collect()
}

/// The text of the next message, which must be an update.
fn word(client: &mut Client) -> String {
    let message = client.hear();
    let text = message["params"]["update"]["content"]["text"].as_str();
    text.unwrap_or_else(|| panic!("{message}"))
        .trim()
        .to_owned()
}

/// The next message, which must be the answer to a prompt.
fn expect_end_of_turn(client: &mut Client, prompt: u64) {
    let answer = client.hear();
    assert_eq!(
        (&answer["id"], &answer["result"]["stopReason"]),
        (&json!(prompt), &json!("end_turn")),
        "{answer}"
    );
}

#[test]
fn turns_of_two_kinds_of_clients_go_on() {
    let (_server, address) = agent(&[], &[&example_agent()]);
    let mut clients = [
        Client::with_session(address),
        Client::with_files(address).open_session(),
    ];
    let before = pids(address);
    assert_eq!(before.len(), 2);
    for round in 0..10 {
        let mut prompts = Vec::new();
        for (client, session, _) in &mut clients {
            let held = client.prompt(session, "hold");
            assert_eq!(word(client), "held");
            prompts.push(held);
        }
        let quiet = |address| {
            let mut status = status(address);
            for session in status["agent"]["session_list"]
                .as_array_mut()
                .expect("a list")
            {
                session
                    .as_object_mut()
                    .expect("an object")
                    .retain(|name, _| !name.ends_with("_s"));
            }
            status["agent"].clone()
        };
        let figures = quiet(address);
        upgrade(address);
        assert_eq!(quiet(address), figures);
        // Words are on their way while the program is replaced, from the clients and from the agents.
        let words: Vec<String> = (0..200).map(|word| format!("{round}-{word}")).collect();
        let mut more = Vec::new();
        for (client, session, _) in &mut clients {
            more.push(client.prompt(session, &words.join(" ")));
        }
        upgrade(address);
        for ((client, session, _), (held, more)) in clients.iter_mut().zip(prompts.iter().zip(more))
        {
            for word_of_turn in &words {
                assert_eq!(&word(client), word_of_turn);
            }
            expect_end_of_turn(client, more);
            let release = client.prompt(session, "release");
            expect_end_of_turn(client, *held);
            expect_end_of_turn(client, release);
        }
        assert_eq!(pids(address), before);
    }
}

#[test]
fn observers_stay_and_later_ones_get_the_history() {
    let (_server, address) = agent(&[], &[&example_agent()]);
    let mut client = Client::initialized(address);
    let created = client.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let session = text(&created["result"]["sessionId"]);
    let token = text(&created["result"]["_meta"]["outrigger"]["watchToken"]);
    let mut observer = Client::observer(address, &session, &token);
    let seen = |observer: &mut Client| {
        let mut words = Vec::new();
        loop {
            let message = observer.hear();
            if is_turn_complete(&message) {
                return words.join(" ");
            }
            let update = &message["params"]["update"];
            if update["sessionUpdate"] == "agent_message_chunk" {
                let word = update["content"]["text"].as_str();
                words.push(word.expect("a text").trim().to_owned());
            }
        }
    };
    for round in 0..5 {
        upgrade(address);
        let prompt = client.prompt(&session, &format!("words of {round}"));
        upgrade(address);
        assert_eq!(client.answer_to(prompt)["result"]["stopReason"], "end_turn");
        assert_eq!(seen(&mut observer), format!("words of {round}"));
    }
    // What the server has kept for late observers.
    let mut late = Client::initialized(address);
    let meta = json!({"outrigger": {"watchToken": token}});
    late.request(
        "session/attach",
        json!({"sessionId": session, "_meta": meta}),
    );
    for round in 0..5 {
        assert_eq!(seen(&mut late), format!("words of {round}"));
    }
}

#[test]
fn what_the_agent_has_asked_is_answered_afterwards() {
    let allow = |asked: &Value| {
        let outcome = json!({"outcome": "selected", "optionId": "yes"});
        json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": outcome}})
    };
    let (_server, address) = agent(&["--approvals", "any"], &[&example_agent()]);
    let mut client = Client::initialized(address);
    let created = client.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let session = text(&created["result"]["sessionId"]);
    let token = text(&created["result"]["_meta"]["outrigger"]["watchToken"]);
    let mut observer = Client::observer(address, &session, &token);
    for observer_approves in [false, true, false, true] {
        let prompt = client.prompt(&session, "permission");
        let asked = client.hear();
        assert_eq!(asked["method"], "session/request_permission", "{asked}");
        let mut shown = observer.hear();
        while shown["method"] != "session/request_permission" {
            shown = observer.hear();
        }
        assert_eq!(shown["id"], asked["id"]);
        upgrade(address);
        upgrade(address);
        if observer_approves {
            observer.say(&allow(&shown));
            assert_eq!(client.hear()["method"], "$/cancel_request");
        } else {
            client.say(&allow(&asked));
        }
        assert_eq!(client.answer_to(prompt)["result"]["stopReason"], "end_turn");
        while !is_turn_complete(&observer.hear()) {}
    }
}

/// A client that names its resume token in the address.
fn connect_resumable(address: SocketAddr, query: &str) -> (Wire, String) {
    let mut wire = Wire::open(address);
    wire.send(&request(&format!("/acp?{query}")));
    let head = wire.read_head();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let token = head
        .lines()
        .find_map(|line| line.strip_prefix("Outrigger-Resume: "));
    let token = token.and_then(|token| token.split(';').next());
    (wire, token.expect("a token").to_owned())
}

#[test]
fn a_client_that_is_cut_gets_the_answer_of_its_turn_when_it_comes_back() {
    let (_server, address) = agent(&[], &[&example_agent()]);
    let (wire, mut token) = connect_resumable(address, "resume=new");
    let (mut client, session, _) = Client::initialized_on(wire).open_session();
    let (mut other, others, _) = Client::with_session(address);
    let mut received = 2;
    for cut_before in [true, false, true] {
        let held = client.prompt(&session, "hold");
        assert_eq!(word(&mut client), "held");
        received += 1;
        if cut_before {
            client.wire.reset();
            upgrade(address);
        } else {
            upgrade(address);
            client.wire.reset();
        }
        // The turn ends while nobody is connected for it.
        let release = other.prompt(&others, "release");
        expect_end_of_turn(&mut other, release);
        upgrade(address);
        let next_id = client.next_id;
        let (wire, next) =
            connect_resumable(address, &format!("resume={token}&received={received}"));
        (client, token) = (Client { wire, next_id }, next);
        expect_end_of_turn(&mut client, held);
        received += 1;
    }
}

#[test]
fn sessions_stay_with_their_owners_and_tokens_open_them() {
    let log = TraceFile::new("upgraded-owners");
    let (_server, address) = logging_agent(&["--grace", "0"], &log);
    let (mut owner, session, token) = Client::with_session(address);
    let (gone, ended, ended_token) = Client::with_session(address);
    gone.wire.reset();
    eventually("the session has ended", || {
        status(address)["ended_sessions"] == 1
    });
    for _ in 0..3 {
        upgrade(address);
        assert_eq!(status(address)["ended_sessions"], 1);
        let mut stranger = Client::initialized(address);
        for params in [
            load(&session, None),
            load(&session, Some("guess")),
            load(&ended, None),
            load(&ended, Some("guess")),
            load(&ended, Some(&token)),
        ] {
            let answer = stranger.ask("session/load", params);
            assert_eq!(error_code(&answer), -32010, "{answer}");
        }
        for session in [&session, &ended] {
            let stolen = stranger.prompt(session, "stolen");
            assert_ne!(error_code(&stranger.answer_to(stolen)), 0);
        }
        let listed = stranger.ask("session/list", json!({}));
        assert_eq!(listed["result"]["sessions"], json!([]), "{listed}");
        let prompt = owner.prompt(&session, "mine");
        assert_eq!(owner.answer_to(prompt)["result"]["stopReason"], "end_turn");
        let listed = owner.ask("session/list", json!({}));
        let listed = listed["result"]["sessions"].as_array();
        assert_eq!(listed.map(Vec::len), Some(1));
    }
    // The tokens of a session that is controlled and of one that has ended open them.
    owner.wire.reset();
    eventually("the owner is gone", || {
        status(address)["ended_sessions"] == 2
    });
    upgrade(address);
    for (session, token) in [(&session, &token), (&ended, &ended_token)] {
        let mut next = Client::initialized(address);
        let loaded = next.ask("session/load", load(session, Some(token)));
        assert!(loaded.get("result").is_some(), "{loaded}");
        upgrade(address);
        let prompt = next.prompt(session, "goes on");
        assert_eq!(next.answer_to(prompt)["result"]["stopReason"], "end_turn");
    }
    assert!(!log.text().contains("stolen"));
}

/// The bug: the router was not told of clients that end before it continues.
#[test]
fn a_client_whose_token_is_gone_leaves_its_session() {
    let file = TraceFile::new("upgraded-tokens");
    let write = |names: &[&str]| {
        let tokens = names
            .iter()
            .map(|name| format!("{name} all {name}-0123456789abcdef\n"));
        std::fs::write(file.path(), tokens.collect::<String>()).expect("a file");
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(file.path(), private).expect("a file");
    };
    write(&["alice", "bob"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.args([
        "agent",
        "--listen",
        "127.0.0.1:0",
        "--token-file",
        &file.path(),
    ]);
    let server = Program::spawn(command.args(["--", &example_agent()]));
    let address = server.address();
    let open = |name: &str, query: &str| {
        let mut wire = Wire::open(address);
        let path = format!("/acp?token={name}-0123456789abcdef{query}");
        wire.send(&request(&path));
        assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
        Client::initialized_on(wire).open_session()
    };
    let (mut alice, kept, _) = open("alice", "");
    let (mut bob, ..) = open("bob", "");
    // This one is cut, so it ends at once.
    let (cut, ..) = open("bob", "&resume=new");
    cut.wire.reset();
    let clients = || {
        let mut wire = Wire::open(address);
        let field = "Authorization: Bearer alice-0123456789abcdef";
        wire.send(format!("GET /status HTTP/1.1\r\nHost: localhost\r\n{field}\r\n\r\n").as_bytes());
        wire.read_response().1["agent"]["processes"][0]["clients"].clone()
    };
    assert_eq!(clients(), 3);
    write(&["alice"]);
    server.signal(Signal::USR2);
    assert_eq!(bob.wire.read_close().0, 1008);
    bob.wire.send_close(1008);
    bob.wire.expect_end();
    eventually("the router knows it", || clients() == 1);
    let prompt = alice.prompt(&kept, "goes on");
    assert_eq!(alice.answer_to(prompt)["result"]["stopReason"], "end_turn");
}

#[test]
fn no_id_is_used_twice() {
    let log = TraceFile::new("upgraded-ids");
    let (_server, address) = logging_agent(&[], &log);
    let mut names = HashSet::new();
    for round in 0..5 {
        let (mut client, session, _) = Client::with_session(address);
        let prompt = client.prompt(&session, "hello");
        client.answer_to(prompt);
        let connected = status(address)["clients"].clone();
        let name = connected[0]["id"].as_str().expect("an id");
        assert!(names.insert(name.to_owned()), "{name} in round {round}");
        client.wire.send_close(1000);
        eventually("the client is gone", || {
            status(address)["client_count"] == 0
        });
        upgrade(address);
    }
    let text = log.text();
    let requests = text.lines().map(|line| {
        let message: Value = serde_json::from_str(line).expect("JSON");
        message["id"].clone()
    });
    let ids: Vec<u64> = requests.filter_map(|id| id.as_u64()).collect();
    let different: HashSet<_> = ids.iter().collect();
    // One `initialize`, and two requests of each client.
    assert_eq!((ids.len(), different.len()), (11, 11), "{text}");
}

#[test]
fn a_batch_that_is_half_answered_is_answered_whole() {
    let script = r#"while read -r line; do
        id=${line#*\"id\":}; id=${id%%[,\}]*}
        case $line in
            *'"initialize"'*) result='{"protocolVersion":2,"capabilities":{},"info":{"name":"x","version":"1"}}';;
            *_hold*) held=$id; continue;;
            *_release*) echo '{"jsonrpc":"2.0","id":'$held',"result":"held"}'; result='"released"';;
            *) result='"quick"';;
        esac
        echo '{"jsonrpc":"2.0","id":'$id',"result":'$result'}'
    done"#;
    let (_server, address) = agent(&[], &["sh", "-c", script]);
    let mut client = Client::connect(address);
    let info = json!({"name": "x", "version": "1"});
    let params = json!({"protocolVersion": 2, "info": info, "capabilities": {}});
    let answer = client.ask("initialize", params);
    assert_eq!(answer["result"]["protocolVersion"], 2, "{answer}");
    for round in 0..3 {
        let one = |id: &str, method: &str| json!({"jsonrpc": "2.0", "id": id, "method": method});
        client.say(&json!([one("a", "_hold"), one("b", "_quick")]));
        // The agent answers in order, so the second request of the batch has been answered.
        assert_eq!(client.ask("_other", json!({}))["result"], "quick");
        for _ in 0..=round {
            upgrade(address);
        }
        let release = client.request("_release", json!({}));
        let batch = client.hear();
        let mut answers = batch.as_array().expect("a batch").clone();
        answers.sort_by_key(|answer| answer["id"].to_string());
        assert_eq!(answers.len(), 2, "{batch}");
        assert_eq!(
            (&answers[0]["id"], &answers[0]["result"]),
            (&json!("a"), &json!("held"))
        );
        assert_eq!(
            (&answers[1]["id"], &answers[1]["result"]),
            (&json!("b"), &json!("quick"))
        );
        assert_eq!(client.answer_to(release)["result"], "released");
    }
}

#[test]
fn time_limits_expire_after_an_upgrade() {
    // It answers `initialize` and `session/new`, and asks for permission for a prompt.
    let script = r#"while read -r line; do
        id=${line#*\"id\":}; id=${id%%[,\}]*}
        case $line in
            *'"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":1}}';;
            *session/new*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"sessionId":"s"}}';;
            *session/prompt*) prompt=$id
                echo '{"jsonrpc":"2.0","id":7,"method":"session/request_permission","params":{"sessionId":"s","options":[]}}';;
            *'"id":7'*) echo '{"jsonrpc":"2.0","id":'$prompt',"result":{"stopReason":"refusal"}}';;
        esac
    done"#;
    let limits = [
        "--request-timeout",
        "1s",
        "--answer-timeout",
        "1s",
        "--grace",
        "1s",
    ];
    let (_server, address) = agent(&limits, &["sh", "-c", script]);
    let (mut client, session, _) = Client::with_session(address);
    let late = client.request("_never", json!({}));
    upgrade(address);
    let answer = client.answer_to(late);
    assert_eq!(error_code(&answer), -32014, "{answer}");
    // The client does not answer the agent in time.
    let prompt = client.prompt(&session, "x");
    assert_eq!(client.hear()["method"], "session/request_permission");
    upgrade(address);
    assert_eq!(client.answer_to(prompt)["result"]["stopReason"], "refusal");
    // The session of a client that is gone ends after its grace.
    client.wire.reset();
    eventually("the client is gone", || {
        status(address)["client_count"] == 0
    });
    upgrade(address);
    eventually("the session has ended", || {
        status(address)["ended_sessions"] == 1
    });
}

/// The agent of a kind is stopped once its last client is gone, unless it is the first one.
#[test]
fn an_agent_that_nobody_uses_is_stopped_after_an_upgrade() {
    let (_server, address) = agent(&["--grace", "1s"], &[&example_agent()]);
    let (_one, ..) = Client::with_session(address);
    let (two, ..) = Client::with_files(address).open_session();
    assert_eq!(pids(address).len(), 2);
    two.wire.reset();
    eventually("the client is gone", || {
        status(address)["client_count"] == 1
    });
    upgrade(address);
    eventually("its process is stopped", || pids(address).len() == 1);
}

#[test]
fn an_initialize_that_is_pending_is_answered_once_or_expires() {
    let go = TraceFile::new("upgraded-initialize");
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.02; done; exec {}",
        go.path(),
        example_agent()
    );
    let (_server, address) = agent(&[], &["sh", "-c", &script]);
    let params = json!({"protocolVersion": 1, "clientCapabilities": {}});
    // The first one is sent on to the agent, and the second one waits for its answer.
    let mut clients = [Client::connect(address), Client::connect(address)];
    let asked = clients
        .each_mut()
        .map(|client| client.request("initialize", params.clone()));
    eventually("the server has both", || {
        status(address)["totals"]["messages_in"] == 2
    });
    upgrade(address);
    upgrade(address);
    std::fs::write(go.path(), "").expect("a file");
    for (client, id) in clients.iter_mut().zip(asked) {
        assert_eq!(client.answer_to(id)["result"]["protocolVersion"], 1);
        let created = client.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
        assert!(created["result"]["sessionId"].is_string(), "{created}");
    }

    let limit = ["--initialize-timeout", "1s"];
    let (_server, address) = agent(&limit, &["sh", "-c", "while read line; do :; done"]);
    let mut client = Client::connect(address);
    let id = client.request("initialize", params);
    eventually("the server has it", || {
        status(address)["totals"]["messages_in"] == 1
    });
    upgrade(address);
    assert_eq!(error_code(&client.answer_to(id)), -32014);
}

/// The bug to prevent: what the agent has not read is lost, or its clients are never read again.
#[test]
fn an_agent_that_does_not_read_gets_everything_later() {
    let (_server, address) = agent(&[], &[&example_agent()]);
    let mut clients: Vec<_> = (0..3)
        .map(|_| {
            let mut client = Client::initialized(address);
            let created = client.ask("session/new", json!({"cwd": "/", "mcpServers": []}));
            let session = created["result"]["sessionId"].as_str().expect("an id");
            (client, session.to_owned())
        })
        .collect();
    let programs = pids(address);
    let signal = |signal| {
        for pid in &programs {
            let pid = Pid::from_raw(*pid as i32).expect("a pid");
            kill_process(pid, signal).expect("it runs");
        }
    };
    signal(Signal::STOP);
    let sending: Vec<_> = clients
        .iter_mut()
        .map(|(client, session)| {
            let stream = client.wire.stream.try_clone().expect("a descriptor");
            let wire = Wire { stream };
            let mut sender = Client {
                wire,
                next_id: client.next_id,
            };
            let session = session.clone();
            std::thread::spawn(move || {
                for number in 0..60 {
                    sender.prompt(&session, &format!("{number} {}", "x".repeat(60_000)));
                }
            })
        })
        .collect();
    let taken = || status(address)["totals"]["messages_in"].as_u64();
    let (mut last, mut same) = (None, 0);
    eventually("the clients are paused", || {
        let now = taken();
        same = if now == last { same + 1 } else { 0 };
        last = now;
        same > 20 && now > Some(20)
    });
    assert!(taken() < Some(180), "{:?}", taken());
    (0..3).for_each(|_| drop(upgrade(address)));
    assert!(taken() < Some(180), "{:?}", taken());
    signal(Signal::CONT);
    for (client, _) in &mut clients {
        let first = client.next_id + 1;
        for number in 0..60 {
            assert_eq!(word(client), number.to_string());
            assert_eq!(word(client).len(), 60_000);
            expect_end_of_turn(client, first + number);
        }
    }
    for sender in sending {
        sender.join().expect("everything is sent");
    }
}

/// The bug to prevent: an exit that comes with an upgrade is not noticed, or the agent is not started again.
#[test]
fn an_agent_that_exits_with_an_upgrade_is_started_again() {
    let trace = TraceFile::new("upgraded-exits");
    let script = format!("echo $$ >>{}; exec {}", trace.path(), example_agent());
    let options = ["--restart-limit", "100/60s"];
    let (_server, address) = agent(&options, &["sh", "-c", &script]);
    for round in 0..4 {
        let (mut client, session, _) = Client::with_session(address);
        let held = client.prompt(&session, "hold");
        assert_eq!(word(&mut client), "held");
        let pid = trace.pids(round + 1)[round];
        kill_process(pid, Signal::KILL).expect("it runs");
        upgrade(address);
        upgrade(address);
        assert_eq!(error_code(&client.answer_to(held)), -32012);
        // It is started again after its delay, and once.
        trace.pids(round + 2);
        eventually("the agent runs", || pids(address).len() == 1);
        assert_eq!(status(address)["agent"]["restarts"], round + 1);
    }
    assert_eq!(trace.pids(5).len(), 5);
}
