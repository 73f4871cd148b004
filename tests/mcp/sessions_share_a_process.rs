//! `outrigger mcp --share`: sessions of older revisions share a process, and nothing crosses.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::{ANY, Answer, JSON, Session, example, figure, request, send, send_to};
use crate::common::call;
use crate::common::program::Program;
use crate::common::traces::{TraceFile, descendants, eventually};

/// A server that supports only revisions with sessions. It logs the lines that it gets to the file `$LOG`, and answers each request
/// with the arguments that it has got. `$line` is the request, and `$id` its id.
const SERVER: &str = r#"
    while read -r line; do
        echo "$line" >> "$LOG"
        id=${line#*'"id":'}; id=${id%%[,\}]*}
        case "$line" in
        *server/discover*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}\n' "$id";;
        *'"method":"initialize"'*REFUSE*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"no"}}\n' "$id";;
        *'"method":"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tasks":{}},"pid":%s}}\n' "$id" $$;;
        *'"method":"notifications/'*) ;;
        *'"result":'*|*'"error":'*) ;;
        *setLevel*'"level":"info"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"no"}}\n' "$id";;
        *exit*) exit 3;;
        *ask*) echo '{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}'
            printf '{"jsonrpc":"2.0","id":%s,"result":{}}\n' "$id";;
        *change*) printf '{"jsonrpc":"2.0","id":%s,"result":{}}\n' "$id"
            echo '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"memo:a"}}';;
        *never*) ;;
        *'"arguments"'*) arguments=${line#*'"arguments":'}; arguments=${arguments%%\}*}
            token=${line#*'"progressToken":'}; token=${token%%[,\}]*}
            case "$line" in *progressToken*) printf '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1,"message":"%s"}}\n' "$token" "${arguments#*:}";; esac
            printf '{"jsonrpc":"2.0","id":%s,"result":%s}}\n' "$id" "$arguments";;
        *) printf '{"jsonrpc":"2.0","id":%s,"result":{}}\n' "$id";;
        esac
    done
"#;

fn script(log: &TraceFile) -> String {
    format!("LOG='{}'\n{SERVER}", log.path())
}

fn serve(name: &str, options: &[&str]) -> (Program, TraceFile) {
    let log = TraceFile::new(&format!("mcp-share-{name}"));
    let script = script(&log);
    let args = [&["mcp"][..], options, &["--", "sh", "-c", &script]].concat();
    (Program::start(&args), log)
}

fn lines(log: &TraceFile, part: &str) -> usize {
    log.text()
        .lines()
        .filter(|line| line.contains(part))
        .count()
}

/// Begins a session of a client with this revision and these capabilities.
fn begin(address: SocketAddr, version: &str, capabilities: Value, fields: &[&str]) -> Answer {
    let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"},
    }});
    send(
        address,
        "POST",
        &[&[JSON, ANY], fields].concat(),
        &body.to_string(),
    )
}

fn echo(session: &Session, id: Value, text: &str) -> Value {
    let params = json!({"name": "echo", "arguments": {"text": text}});
    session
        .send(json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}))
        .response()
}

#[test]
fn each_session_gets_its_own_answers_and_progress_from_one_process() {
    let (server, log) = serve("own", &["--share", "all"]);
    let address = server.address();
    let sessions: Vec<Session> = (0..8).map(|_| Session::begin(address)).collect();
    for round in 0..5 {
        for (number, session) in sessions.iter().enumerate() {
            let text = format!("{round}-{number}");
            let answer = echo(session, json!("same"), &text);
            assert_eq!(
                (&answer["id"], &answer["result"]["text"]),
                (&json!("same"), &json!(text))
            );
        }
    }
    for (number, session) in sessions.iter().enumerate() {
        let params = json!({"arguments": {"n": number}, "_meta": {"progressToken": "t"}});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let mut answer = session.send(call);
        assert_eq!(
            answer.event().expect("an event without data").1,
            Value::Null
        );
        let (_, progress) = answer.event().expect("progress");
        assert_eq!(progress["params"]["progressToken"], "t");
        assert_eq!(progress["params"]["message"], number.to_string());
        assert_eq!(answer.event().expect("the answer").1["result"]["n"], number);
    }
    assert_eq!(
        (figure(address, "shared"), lines(&log, "\"initialize\"")),
        (1, 1)
    );
    eventually("the process that was asked for its revisions exits", || {
        figure(address, "processes") == 1
    });
    for session in &sessions {
        assert_eq!(send(address, "DELETE", &[&session.field], "").status, 204);
    }
    assert_eq!(figure(address, "sessions"), 0);
}

#[test]
fn clients_with_other_revisions_or_capabilities_get_another_process() {
    let (server, log) = serve("kinds", &["--share", "principal"]);
    let address = server.address();
    for (version, capabilities) in [
        ("2025-11-25", json!({})),
        ("2025-06-18", json!({})),
        (
            "2025-11-25",
            json!({"roots": {"listChanged": true}, "sampling": {}}),
        ),
        (
            "2025-11-25",
            json!({"sampling": {}, "roots": {"listChanged": true}}),
        ),
        ("2025-11-25", json!({"tasks": {}})),
    ] {
        let answer = begin(address, version, capabilities, &[]).response();
        assert!(answer["result"]["pid"].is_u64());
        assert!(answer["result"]["capabilities"]["tasks"].is_null());
    }
    assert_eq!(
        (figure(address, "shared"), lines(&log, "\"initialize\"")),
        (3, 3)
    );
    let refused = begin(address, "2025-11-25", json!([]), &[]);
    assert_eq!(
        (refused.status, &refused.response()["error"]["code"]),
        (400, &json!(-32602))
    );
}

#[test]
fn a_process_that_exits_fails_its_calls_and_is_started_again_with_what_it_knew() {
    let (server, log) = serve("exit", &["--share", "all"]);
    let address = server.address();
    let (one, other) = (Session::begin(address), Session::begin(address));
    for (session, level) in [(&one, "debug"), (&other, "error")] {
        let call = json!({"jsonrpc": "2.0", "id": 5, "method": "logging/setLevel", "params": {"level": level}});
        assert!(session.send(call).response()["id"] == 5);
    }
    let subscribe = json!({"jsonrpc": "2.0", "id": 6, "method": "resources/subscribe", "params": {"uri": "memo:a"}});
    assert!(other.send(subscribe).response()["id"] == 6);
    let answer = one
        .send(json!({"jsonrpc": "2.0", "id": 7, "method": "exit"}))
        .response();
    assert_eq!(answer["error"]["message"], "MCP server exited");
    assert_eq!(answer["error"]["data"]["code"], 3);
    assert_eq!(echo(&other, json!(8), "again")["result"]["text"], "again");
    assert_eq!(lines(&log, "\"initialize\""), 2);
    assert_eq!(
        lines(&log, r#"setLevel","params":{"level":"debug"}"#),
        3,
        "the most verbose one"
    );
    assert_eq!(lines(&log, "resources/subscribe"), 2);
    // Its subscriber is told of the change, and nobody else.
    let mut stream = other.listen(None);
    stream.event();
    let (mut quiet, change) = (
        one.listen(None),
        json!({"jsonrpc": "2.0", "id": 9, "method": "change"}),
    );
    quiet.event();
    assert!(one.send(change).response()["id"] == 9);
    assert_eq!(
        stream.event().expect("a change").1["params"]["uri"],
        "memo:a"
    );
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "resources/unsubscribe", "params": {"uri": "memo:a"}});
    assert!(other.send(call).response()["id"] == 1);
}

#[test]
fn an_idle_process_is_stopped_and_starts_with_the_next_request() {
    let (server, log) = serve("idle", &["--share", "principal", "--process-idle", "1s"]);
    let address = server.address();
    let session = Session::begin(address);
    assert_eq!(echo(&session, json!(1), "a")["result"]["text"], "a");
    eventually("the process is stopped", || {
        figure(address, "processes") == 0
    });
    assert_eq!(figure(address, "sessions"), 1);
    assert_eq!(echo(&session, json!(2), "b")["result"]["text"], "b");
    assert_eq!(lines(&log, "\"initialize\""), 2);
    // A subscription keeps it.
    let call = json!({"jsonrpc": "2.0", "id": 3, "method": "resources/subscribe", "params": {"uri": "memo:a"}});
    assert!(session.send(call).response()["id"] == 3);
    assert_eq!(send(address, "DELETE", &[&session.field], "").status, 204);
    eventually("the last session has left", || {
        figure(address, "processes") == 0
    });
    assert_eq!(lines(&log, "resources/unsubscribe"), 1);
}

#[test]
fn a_request_from_the_process_reaches_the_newest_session_of_a_person_and_nobody_among_several() {
    let token = TraceFile::new("mcp-share-token");
    // Several persons may use a token without a name.
    let cases = [
        ("principal", "ada all ", 1),
        ("principal", "", 0),
        ("all", "ada all ", 0),
    ];
    for (share, name, status) in cases {
        let tokens = format!("{name}secret-of-somebody-1234567890\n");
        std::fs::write(token.path(), tokens).expect("a file");
        let options = ["--listen", "127.0.0.1:0", "--share", share, "--token-file"];
        let log = TraceFile::new("mcp-share-ask");
        let (script, token) = (script(&log), token.path());
        let args = [&["mcp"][..], &options, &[&token, "--", "sh", "-c", &script]].concat();
        let server = Program::spawn(Command::new(env!("CARGO_BIN_EXE_outrigger")).args(args));
        let address = server.address();
        let sessions: Vec<Session> = (0..2)
            .map(|_| {
                let answer = begin(address, "2025-11-25", json!({}), &[TOKEN]);
                let field = format!(
                    "Mcp-Session-Id: {}",
                    answer.field("Mcp-Session-Id").expect("an id")
                );
                Session {
                    address,
                    field: format!("{field}\r\n{TOKEN}"),
                }
            })
            .collect();
        let mut stream = sessions[1].listen(None);
        stream.event();
        let asked = sessions[0]
            .send(json!({"jsonrpc": "2.0", "id": 1, "method": "ask"}))
            .response();
        assert_eq!(asked["id"], 1);
        if status == 1 {
            let question = stream.event().expect("a request").1;
            assert_eq!(question["method"], "sampling/createMessage");
            // Another session cannot answer it.
            let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"by": "one"}});
            assert_eq!(sessions[0].send(answer).status, 202);
            let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"by": "other"}});
            assert_eq!(sessions[1].send(answer).status, 202);
            eventually("the process has the answer", || {
                lines(&log, r#""by":"other""#) == 1
            });
            assert_eq!(lines(&log, r#""by":"one""#), 0);
        } else {
            eventually("the process is told", || lines(&log, "-32601") == 1);
        }
    }
}

const TOKEN: &str = "Authorization: Bearer secret-of-somebody-1234567890";

#[test]
fn a_lazy_server_starts_with_its_first_request_and_stops_when_it_is_idle() {
    let options = ["--start", "lazy", "--process-idle", "1s", "--pool", "2"];
    let server = example(&options);
    let address = server.address();
    assert_eq!(call(address, "GET", "/readyz", None).0, 200);
    assert_eq!(figure(address, "processes"), 0);
    for _ in 0..2 {
        let add = json!({"name": "add", "arguments": {"a": 1, "b": 2}});
        let answer = request(address, json!(1), "tools/call", add).response();
        assert_eq!(answer["result"]["content"][0]["text"], "3");
        eventually("the processes are stopped", || {
            figure(address, "processes") == 0
        });
    }
}

#[test]
fn a_session_that_has_only_asked_for_lists_ends_soon() {
    let server = example(&["--list-idle", "1s"]);
    let address = server.address();
    let (checked, working, reading) = (
        Session::begin(address),
        Session::begin(address),
        Session::begin(address),
    );
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert!(checked.send(list.clone()).response()["result"]["tools"].is_array());
    assert!(echo(&working, json!(2), "a")["result"].is_object());
    let _stream = reading.listen(None);
    eventually("the health check ends", || figure(address, "sessions") == 2);
    assert_eq!(checked.send(list.clone()).status, 404);
    assert_eq!(
        (working.send(list.clone()).status, reading.send(list).status),
        (200, 200)
    );
}

#[test]
fn a_process_that_refuses_to_initialize_ends_its_sessions_only() {
    let (server, _log) = serve("refuse", &["--share", "all"]);
    let address = server.address();
    let session = Session::begin(address);
    let answer = begin(
        address,
        "2025-11-25",
        json!({"experimental": {"REFUSE": {}}}),
        &[],
    );
    assert!(answer.field("Mcp-Session-Id").is_none());
    assert_eq!(answer.response()["error"]["message"], "no");
    assert_eq!(figure(address, "sessions"), 1);
    assert_eq!(echo(&session, json!(1), "a")["result"]["text"], "a");
}

#[test]
fn tasks_are_refused_and_limits_hold() {
    let (server, _log) = serve("limits", &["--share", "all", "--max-sessions", "2"]);
    let address = server.address();
    let session = Session::begin(address);
    let other = begin(address, "2025-06-18", json!({}), &[]);
    assert_eq!(other.status, 503, "a process counts as a session");
    let tasks = session
        .send(json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/list"}))
        .response();
    assert_eq!(tasks["error"]["code"], -32601);
    let uri = format!("memo:{}", "x".repeat(40_000));
    let mut codes = Vec::new();
    for place in ["a", "b"] {
        let params = json!({"uri": format!("{uri}{place}"), "arguments": {"a": 1}});
        let call =
            json!({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": params});
        codes.push(session.send(call).response()["error"]["code"].clone());
    }
    assert_eq!(codes, [Value::Null, json!(-32602)]);
    let never = json!({"jsonrpc": "2.0", "id": 1, "method": "never"});
    let mut waiting = session.send(never);
    waiting.event();
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    assert_eq!(session.send(cancel).status, 202);
    assert_eq!(
        waiting.event().expect("an error").1["error"]["code"],
        -32800
    );
}

#[test]
fn the_servers_of_a_clients_file_start_with_their_first_request() {
    let file = TraceFile::new("mcp-servers.json");
    let command = r#"id=$(head -n 1 | sed 's/.*"id"://; s/,.*//')
        printf '{"jsonrpc":"2.0","id":%s,"result":{"capabilities":{},"cwd":"%s","value":"%s"}}\n' "$id" "$PWD" "$VALUE"; cat > /dev/null"#;
    let entry = json!({"command": "sh", "args": ["-c", command], "env": {"VALUE": "${NO_SUCH_VARIABLE:-7}"}, "cwd": "/"});
    let mut servers: serde_json::Map<String, Value> = (0..20)
        .map(|number| (format!("server-{number}"), entry.clone()))
        .collect();
    servers.insert(
        "remote".into(),
        json!({"type": "http", "url": "https://example.com/mcp"}),
    );
    let text = json!({"mcpServers": servers}).to_string();
    std::fs::write(file.path(), format!("// For all clients.\n{text}\n")).expect("a file");
    let server = Program::start(&["serve", "--mcp-servers", &file.path()]);
    let address = server.address();
    assert_eq!(descendants(server.pid()), []);
    for path in ["/server-0", "/server-19"] {
        let body = json!({"jsonrpc": "2.0", "id": 9, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}});
        let answer = send_to(address, path, "POST", &[JSON, ANY], &body.to_string());
        let answer = answer.response();
        assert_eq!(
            (
                &answer["id"],
                &answer["result"]["value"],
                &answer["result"]["cwd"]
            ),
            (&json!(9), &json!("7"), &json!("/"))
        );
    }
    assert_eq!(send_to(address, "/remote", "GET", &[ANY], "").status, 404);
    if cfg!(target_os = "linux") {
        assert!(descendants(server.pid()).len() >= 2);
    }
}

#[test]
fn a_change_for_all_sessions_is_not_held_once_for_each() {
    let script = script_with(
        r#"*change*) printf '{"jsonrpc":"2.0","id":%s,"result":{}}\n' "$id"
            printf '{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"x":"'
            head -c 4000000 /dev/zero | tr '\0' x
            printf '"}}\n'"#,
    );
    let options = ["mcp", "--share", "all", "--start", "lazy"];
    let server = Program::start(&[&options[..], &["--", "sh", "-c", &script]].concat());
    let address = server.address();
    let sessions: Vec<Session> = (0..200).map(|_| Session::begin(address)).collect();
    let change = json!({"jsonrpc": "2.0", "id": 1, "method": "change"});
    assert_eq!(sessions[0].send(change).response()["id"], 1);
    assert_eq!(echo(&sessions[1], json!(2), "a")["result"]["text"], "a");
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("linux");
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("a peak");
    let peak: u64 = peak
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number");
    assert!(
        peak < 256 << 10,
        "{peak} KiB for one message of 4 MB and 200 sessions"
    );
}

fn script_with(case: &str) -> String {
    let anchor = "*never*) ;;";
    format!("LOG=/dev/null\n{SERVER}").replace(anchor, &format!("{anchor}\n        {case};;")).replace("*change*) printf '{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\\n' \"$id\"\n            echo", "*unused*) echo")
}

#[test]
fn processes_that_refuse_to_initialize_count_until_they_have_exited() {
    let script = r#"
        trap '' TERM
        while read -r line; do
            id=${line#*'"id":'}; id=${id%%[,\}]*}
            printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"no"}}\n' "$id"
        done
        exec sleep 60
    "#;
    let options = [
        "mcp",
        "--share",
        "all",
        "--start",
        "lazy",
        "--max-sessions",
        "4",
    ];
    let server = Program::start(&[&options[..], &["--", "sh", "-c", script]].concat());
    let address = server.address();
    for _ in 0..12 {
        begin(address, "2025-11-25", json!({}), &[]);
    }
    let count = figure(address, "processes");
    assert!(count <= 4, "{count} processes with --max-sessions 4");
}

#[test]
fn the_answer_to_a_cancelled_initialize_is_not_the_answer_to_the_next_request_with_its_id() {
    let log = TraceFile::new("mcp-share-cancelled");
    let go = TraceFile::new("mcp-share-cancelled-go");
    let wait = format!(
        "while read -r line; do case \"$line\" in *'\"initialize\"'*) while [ ! -e '{}' ]; do sleep 0.05; done;; esac; printf '%s\\n' \"$line\"; done | (\n{}\n)",
        go.path(),
        script(&log)
    );
    let options = ["mcp", "--share", "all", "--start", "lazy"];
    let server = Program::start(&[&options[..], &["--", "sh", "-c", &wait]].concat());
    let address = server.address();
    let first = begin(address, "2025-11-25", json!({}), &[]);
    let id = first.field("Mcp-Session-Id").expect("a session");
    let session = Session {
        address,
        field: format!("Mcp-Session-Id: {id}"),
    };
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}});
    assert_eq!(session.send(cancel).status, 202);
    let params = json!({"name": "echo", "arguments": {"text": "mine"}});
    let call =
        session.send(json!({"jsonrpc": "2.0", "id": 0, "method": "tools/call", "params": params}));
    std::fs::write(go.path(), "").expect("a file");
    let answer = call.response();
    assert_eq!(answer["result"]["text"], "mine", "{answer}");
}

#[test]
fn unused_processes_make_room_for_sessions() {
    let (server, _log) = serve(
        "room",
        &["--share", "all", "--start", "lazy", "--max-sessions", "4"],
    );
    let address = server.address();
    let _live = Session::begin(address);
    let unused = begin(address, "2025-06-18", json!({}), &[]);
    let id = unused.field("Mcp-Session-Id").expect("a session");
    assert_eq!(
        send(address, "DELETE", &[&format!("Mcp-Session-Id: {id}")], "").status,
        204
    );
    for _ in 0..2 {
        // The process counts until it has exited.
        eventually("there is room", || {
            begin(address, "2025-11-25", json!({}), &[]).status == 200
        });
    }
}

#[test]
fn a_principal_at_its_limit_does_not_end_the_processes_of_others() {
    let tokens = TraceFile::new("mcp-share-two-tokens");
    std::fs::write(
        tokens.path(),
        "ada all secret-of-somebody-1234567890\nbob all secret-of-another-1234567890\n",
    )
    .expect("a file");
    let log = TraceFile::new("mcp-share-evict");
    let (script, path) = (script(&log), tokens.path());
    let options = [
        "mcp",
        "--listen",
        "127.0.0.1:0",
        "--share",
        "principal",
        "--start",
        "lazy",
        "--max-sessions",
        "6",
        "--token-file",
    ];
    let args = [&options[..], &[&path, "--", "sh", "-c", &script]].concat();
    let server = Program::spawn(Command::new(env!("CARGO_BIN_EXE_outrigger")).args(args));
    let address = server.address();
    let bob = "Authorization: Bearer secret-of-another-1234567890";
    let answer = begin(address, "2025-11-25", json!({}), &[bob]);
    let id = answer
        .field("Mcp-Session-Id")
        .expect("a session")
        .to_owned();
    let warm = answer.response()["result"]["pid"].clone();
    assert_eq!(
        send(
            address,
            "DELETE",
            &[bob, &format!("Mcp-Session-Id: {id}")],
            ""
        )
        .status,
        204
    );
    let statuses = ["2025-11-25", "2025-06-18", "2025-03-26"]
        .map(|version| begin(address, version, json!({}), &[TOKEN]).status);
    assert_eq!(statuses, [200, 503, 503]);
    let again = begin(address, "2025-11-25", json!({}), &[bob]).response();
    assert_eq!(again["result"]["pid"], warm, "bob's process has gone");
}

#[test]
fn a_request_fails_if_the_lazy_server_cannot_be_started() {
    use std::os::unix::fs::PermissionsExt;
    let file = TraceFile::new("mcp-lazy-gone");
    std::fs::write(file.path(), "#!/bin/sh\nexec cat\n").expect("a file");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(file.path(), mode).expect("it is ours");
    let path = file.path();
    let options = ["mcp", "--start", "lazy", "--initialize-timeout", "1s"];
    let server = Program::start(&[&options[..], &["--", &path]].concat());
    let address = server.address();
    std::fs::remove_file(file.path()).expect("it is there");
    let answer = request(address, json!(1), "tools/list", json!({})).response();
    assert!(answer["error"].is_object(), "{answer}");
}

#[test]
fn what_a_process_logs_does_not_keep_it() {
    let log = TraceFile::new("mcp-share-chatter");
    let script = format!(
        "(while kill -0 $$ 2> /dev/null; do echo alive >&2; sleep 0.2; done) < /dev/null > /dev/null &\n{}",
        script(&log)
    );
    let options = [
        "mcp",
        "--share",
        "all",
        "--start",
        "lazy",
        "--process-idle",
        "1s",
    ];
    let server = Program::start(&[&options[..], &["--", "sh", "-c", &script]].concat());
    let address = server.address();
    let session = Session::begin(address);
    assert_eq!(echo(&session, json!(1), "a")["result"]["text"], "a");
    eventually("the process is stopped", || {
        figure(address, "processes") == 0
    });
}

#[test]
fn a_uri_under_another_spelling_is_refused() {
    let (server, log) = serve("spelling", &["--share", "all"]);
    let address = server.address();
    let (one, other) = (Session::begin(address), Session::begin(address));
    let subscribe = json!({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": {"uri": "memo:a"}});
    assert_eq!(one.send(subscribe).response()["id"], 1);
    // A program that ignores the case of keys takes the last one, and ends the subscription of the other session.
    let params = json!({"uri": "memo:b", "URI": "memo:a"});
    let call =
        json!({"jsonrpc": "2.0", "id": 1, "method": "resources/unsubscribe", "params": params});
    let answer = other.send(call).response();
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert_eq!(lines(&log, "resources/unsubscribe"), 0);
}

#[test]
fn a_request_that_waits_for_the_process_does_not_keep_other_sessions_out() {
    let options = ["mcp", "--share", "all", "--start", "lazy"];
    let server = Program::start(&[&options[..], &["--", "sh", "-c", "cat > /dev/null"]].concat());
    let address = server.address();
    let first = begin(address, "2025-11-25", json!({}), &[]);
    let id = first.field("Mcp-Session-Id").expect("a session");
    let session = Session {
        address,
        field: format!("Mcp-Session-Id: {id}"),
    };
    let params = json!({"name": "echo", "arguments": {"text": "x".repeat(4_194_190)}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let waiting = session.send(call);
    assert_eq!(waiting.status, 200);
    let other = begin(address, "2025-11-25", json!({}), &[]);
    assert_eq!(other.status, 200, "{}", other.head);
}

#[test]
fn a_request_with_the_method_of_a_notification_is_refused() {
    let (server, log) = serve("method", &["--share", "all"]);
    let address = server.address();
    let (one, other) = (Session::begin(address), Session::begin(address));
    let mut waiting = one.send(json!({"jsonrpc": "2.0", "id": 1, "method": "never"}));
    waiting.event();
    // 2 is the request of the other session, as the process knows it.
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "notifications/cancelled", "params": {"requestId": 2}});
    let answer = other.send(call);
    assert_eq!(lines(&log, "notifications/cancelled"), 0);
    assert!(answer.response()["error"].is_object());
}

#[test]
fn a_level_that_the_process_refuses_changes_nothing() {
    // The bug: the process was thought to have the level that it had refused.
    let (server, log) = serve("level", &["--share", "all"]);
    let session = Session::begin(server.address());
    let mut codes = Vec::new();
    for level in ["error", "info"] {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": {"level": level}});
        codes.push(session.send(call).response()["error"]["code"].clone());
    }
    assert_eq!(codes, [Value::Null, json!(-32602)]);
    eventually("the process is told the level that holds", || {
        lines(&log, r#""level":"error""#) == 2
    });
}

#[test]
fn an_unused_process_that_does_not_run_makes_room_at_once() {
    // The bug: it was forgotten, but the session was refused nevertheless.
    let options = ["--share", "all", "--start", "lazy", "--max-sessions", "2"];
    let idle = ["--process-idle", "1s"];
    let (server, _log) = serve("room-idle", &[&options[..], &idle].concat());
    let address = server.address();
    let session = Session::begin(address);
    eventually("the process is stopped", || {
        figure(address, "processes") == 0
    });
    assert_eq!(send(address, "DELETE", &[&session.field], "").status, 204);
    assert_eq!(begin(address, "2025-06-18", json!({}), &[]).status, 200);
}

#[test]
fn the_subscriptions_of_all_sessions_of_a_principal_are_limited() {
    let (server, _log) = serve("subscriptions", &["--share", "all"]);
    let address = server.address();
    let uri = |number: usize| format!("memo:{number}/{}", "x".repeat(60_000));
    let subscribe = |session: &Session, number: usize| {
        let params = json!({"uri": uri(number)});
        let call =
            json!({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": params});
        session.send(call).response()["error"]["code"].clone()
    };
    let sessions: Vec<Session> = (0..18).map(|_| Session::begin(address)).collect();
    let codes: Vec<Value> = sessions
        .iter()
        .enumerate()
        .map(|(number, session)| subscribe(session, number))
        .collect();
    let refused = codes.iter().position(|code| *code == -32602);
    assert_eq!(refused, Some(17), "{codes:?}");
    assert_eq!(
        send(address, "DELETE", &[&sessions[0].field], "").status,
        204
    );
    assert_eq!(subscribe(&sessions[17], 17), Value::Null);
}
