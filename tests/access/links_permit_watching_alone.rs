//! Links: tokens that a running server issues. Each one permits watching one process or one session, until it expires, is
//! revoked, or the token of its issuer is.

use crate::common::agent::{Client, is_turn_complete};
use crate::common::guarded::{Guarded, TEAM, expect_silence, secret};
use crate::common::program::Program;
use crate::common::traces::eventually;
use crate::common::{BINARY, TEXT, Wire};
use rustix::process::Signal;
use serde_json::{Value, json};

const OUTRIGGER: &str = env!("CARGO_BIN_EXE_outrigger");

const LINKS: &str = "POST /.outrigger/links";

/// A server with a process API and two agents.
fn serve(args: &[&str]) -> Guarded {
    let routes = json!({
        "/process": {"processes": {}},
        "/terminal": {"terminal": {"command": ["cat"]}},
        "/acp": {"agent": {"command": [OUTRIGGER, "example-agent"]}},
        "/other": {"agent": {"command": [OUTRIGGER, "example-agent"]}},
    });
    Guarded::serve(&routes, args)
}

/// A server whose agents permit any observer to approve.
fn serve_with_approvals() -> Guarded {
    let routes = json!({
        "/acp": {"agent": {"command": [OUTRIGGER, "example-agent"], "approvals": "any"}},
        "/process": {"processes": {}},
    });
    Guarded::serve(&routes, &[])
}

/// Issues a link, which must succeed. Returns its number and its token.
fn issue(server: &Guarded, issuer: &str, target: Value) -> (String, String) {
    let (status, link) = server.call(LINKS, &secret(issuer), Some(target));
    assert_eq!(status, 200, "{link}");
    let text = |name: &str| link[name].as_str().expect("a text").to_owned();
    (text("id"), text("token"))
}

fn attach_path(process: &str) -> String {
    format!("/process/{process}/attach")
}

/// The links in the server's list, by their numbers.
fn listed(server: &Guarded) -> Vec<Value> {
    let links = server.get("/.outrigger/links", &secret("ada"));
    links["links"].as_array().expect("a list").clone()
}

/// The next message of a client that watches a session.
fn hear(wire: &mut Wire) -> Value {
    let frame = wire.read_frame();
    assert_eq!(
        frame.opcode,
        TEXT,
        "{}",
        String::from_utf8_lossy(&frame.payload)
    );
    serde_json::from_slice(&frame.payload).expect("JSON")
}

/// Watches a session. Reads the first message.
fn watch(server: &Guarded, path: &str, session: &str, token: &str) -> Wire {
    let mut wire = server.connect(&format!("{path}?watch={session}"), token);
    let first = hear(&mut wire);
    assert_eq!(first["method"], "_outrigger/watching", "{first}");
    assert_eq!(first["params"]["sessionId"], session);
    wire
}

/// A request to watch a session that is refused with a reason.
fn expect_refused(server: &Guarded, path: &str, token: &str, reason: &str) {
    let mut wire = server.connect(path, token);
    assert_eq!(wire.read_close(), (1008, reason.to_owned()), "{path}");
}

/// The reason if a session cannot be watched. It does not say whether there is such a session.
const NO_SESSION: &str = "there is no such session, or it has another owner";

#[test]
fn a_link_shows_one_process_until_it_is_revoked() {
    let server = serve(&[]);
    let process = server.spawn(&secret("ada"), "stty -echo; echo ready; exec cat");
    let path = attach_path(&process);
    let (status, link) = server.call(
        LINKS,
        &secret("ada"),
        Some(json!({"path": path, "ttl_s": 60})),
    );
    let token = link["token"].as_str().expect("a token").to_owned();
    let expected = json!({"id": "1", "token": token, "path": path, "session": null, "answers": false, "expires_s": 60});
    assert_eq!((status, link), (200, expected));
    assert!(token.len() >= 32, "{token}");
    let (other, other_token) = issue(&server, "bob", json!({"path": path, "session": null}));
    assert_eq!(other, "2");

    let session = server.get("/.outrigger/session", &token);
    assert_eq!(session["auth"], true);
    assert_eq!(
        (&session["principal"], &session["scope"]),
        (&json!("link:1"), &json!("watch"))
    );
    assert_eq!(
        session["only"],
        json!({"path": path, "session": null, "answers": false})
    );
    let left = session["expires_s"].as_u64().expect("a number");
    assert!((1..=60).contains(&left), "{left}");

    let mut viewer = server.connect(&format!("{path}?mode=viewer"), &token);
    let greeting = viewer.read_greeting(&path);
    assert_eq!(greeting[0], json!({"type": "role", "role": "viewer"}));
    let mut stays = server.connect(&format!("{path}?mode=viewer"), &other_token);
    stays.read_greeting(&path);
    let mut resumable = server.connect(&format!("{path}?mode=viewer&resume=new"), &token);
    resumable.read_greeting(&path);
    let links = listed(&server);
    let shown: Vec<_> = links
        .iter()
        .map(|link| (&link["id"], &link["by"], &link["clients"]))
        .collect();
    assert_eq!(
        shown,
        [
            (&json!("1"), &json!("ada"), &json!(2)),
            (&json!("2"), &json!("bob"), &json!(1))
        ]
    );
    assert!(
        links.iter().all(|link| link.get("token").is_none()),
        "{links:?}"
    );
    let status = server.get("/status", &secret("ada"));
    let names: Vec<_> = status["clients"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| &one["principal"])
        .collect();
    assert_eq!(names, ["link:1", "link:2", "link:1"]);

    // The viewer cannot type.
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("ready") {
        seen.extend(viewer.read_frame().payload);
    }
    viewer.send_frame(BINARY, b"from the viewer\n");
    viewer.send_frame(TEXT, br#"{"type":"resize","rows":5,"cols":5}"#);
    let mut writer = server.connect(&path, &secret("ada"));
    writer.send_frame(BINARY, b"from the writer\n");
    let mut seen = String::new();
    while !seen.contains("from the writer") {
        seen.push_str(&String::from_utf8_lossy(&viewer.read_frame().payload));
    }
    assert!(!seen.contains("from the viewer"), "{seen}");

    let mut idle = server.send("GET /.outrigger/session", &token, "", "");
    assert!(idle.read_response().0.starts_with("HTTP/1.1 200 "));
    assert_eq!(
        server.call("DELETE /.outrigger/links/1", &secret("ada"), None),
        (200, json!({"ok": true}))
    );
    idle.expect_end();
    for wire in [&mut viewer, &mut resumable] {
        assert_eq!(wire.read_close(), (1008, "the link was revoked".to_owned()));
        wire.send_close(1008);
        wire.expect_end();
    }
    assert_eq!(server.ask(&format!("{path}?mode=viewer"), &token).1, 401);
    assert_eq!(server.call("GET /.outrigger/session", &token, None).0, 401);
    let again = server.call("DELETE /.outrigger/links/1", &secret("ada"), None);
    assert_eq!(again.0, 404, "{}", again.1);
    stays.send_frame(crate::common::PING, b"");
    while stays.read_frame().opcode != crate::common::PONG {}
    assert_eq!(listed(&server).len(), 1);
    // A number is not used again, and a slot is not the earlier link's.
    let (third, _) = issue(&server, "ada", json!({"path": path}));
    assert_eq!(third, "3");
    assert_eq!(server.ask(&format!("{path}?mode=viewer"), &token).1, 401);
    let log = server.log.text();
    for part in [
        &format!("link issued: link=1 path={path:?} principal=ada seconds=60"),
        "principal=link:1",
        "cause=revoked code=1008 reason=\"the link was revoked\"",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    assert!(!log.contains(&token) && !log.contains(&other_token));
}

#[test]
fn a_link_opens_nothing_else() {
    let server = serve(&[]);
    let process = server.spawn(&secret("ada"), "exec cat");
    let other = server.spawn(&secret("ada"), "exec cat");
    let path = attach_path(&process);
    let (_, token) = issue(&server, "ada", json!({"path": path}));
    let (_client, session) = server.session("/acp", &secret("ada"));
    for target in [
        path.clone(),
        format!("{path}?mode=writer"),
        format!("{path}?takeover=1"),
        format!("{path}?mode=viewer&mode=writer"),
        format!("{path}?Mode=viewer"),
        format!("{path}/?mode=viewer"),
        format!("//process/{process}/attach?mode=viewer"),
        format!("/process/{}/attach?mode=viewer", process.to_uppercase()),
        format!(
            "/process/%{:x}{}/attach?mode=viewer",
            process.as_bytes()[0],
            &process[1..]
        ),
        format!("{}?mode=viewer", attach_path(&other)),
        format!("/process/{other}/../{process}/attach?mode=viewer"),
        "/terminal?mode=viewer".to_owned(),
        "/terminal".to_owned(),
        "/acp".to_owned(),
        format!("/acp?watch={session}"),
        "/status".to_owned(),
        "/.outrigger/session".to_owned(),
        "/.outrigger/log".to_owned(),
    ] {
        assert_eq!(server.ask(&target, &token).1, 403, "{target}");
    }
    let close = server.get("/status", &secret("ada"))["clients"][0]["id"].clone();
    let close = close.as_str().expect("an id");
    for line in [
        "GET /status",
        "HEAD /status",
        "GET /metrics",
        "GET /process",
        "GET /process?usage=1",
        "GET /.outrigger/log",
        "GET /.outrigger/links",
        "DELETE /.outrigger/links/1",
        "POST /.outrigger/session",
        &format!("GET /process/{process}/status"),
        &format!("GET /process/{process}/stdout/stream"),
        &format!("POST /process/{process}/kill"),
        &format!("POST /process/{process}/stdin"),
        &format!("POST /.outrigger/clients/{close}/close"),
        LINKS,
    ] {
        let body = line.starts_with("POST").then(|| json!({"path": path}));
        let fields = "Content-Type: application/json\r\n";
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let head = server.send(line, &token, fields, &body).read_head();
        assert!(head.starts_with("HTTP/1.1 403 "), "{line}: {head}");
    }
    // Beside another token, the link does not take anything away.
    let both = format!("{}\r\nX: y", secret("ada"));
    assert_eq!(
        server
            .call(&format!("GET /process?token={token}"), &both, None)
            .0,
        200
    );
    // With the scope, but in the wrong role.
    let (_, session_token) = issue(&server, "ada", json!({"path": "/acp", "session": session}));
    for target in [&format!("{path}?mode=viewer"), &path] {
        assert_eq!(server.ask(target, &session_token).1, 403, "{target}");
    }
}

#[test]
fn what_cannot_be_watched_gets_no_link() {
    let server = serve(&[]);
    let process = server.spawn(&secret("ada"), "exec cat");
    let path = attach_path(&process);
    let body = json!({"command": "sleep", "args": ["1000"]});
    let (_, spawned) = server.call("POST /process/spawn", &secret("ada"), Some(body));
    let silent = attach_path(spawned["process_id"].as_str().expect("an id"));
    let (_client, session) = server.session("/acp", &secret("ada"));
    let nobody = "/process/00000000-0000-4000-8000-000000000000/attach";
    let ttl = "\"ttl_s\" is not a number of seconds from 60 to 604800";
    for (body, status, why) in [
        (json!({}), 400, "\"path\" is missing"),
        (json!({"path": null}), 400, "\"path\" is missing"),
        (json!({"path": 1}), 400, "\"path\" is not a string"),
        (
            json!({"path": path, "session": 1}),
            400,
            "\"session\" is not a string",
        ),
        (
            json!({"path": path, "ttl": 60}),
            400,
            "unknown field \"ttl\"",
        ),
        (json!({"path": path, "ttl_s": 59}), 400, ttl),
        (json!({"path": path, "ttl_s": 604_801}), 400, ttl),
        (json!({"path": path, "ttl_s": -1}), 400, ttl),
        (json!({"path": path, "ttl_s": 60.5}), 400, ttl),
        (json!({"path": path, "ttl_s": "60"}), 400, ttl),
        (json!({"path": path, "ttl_s": true}), 400, ttl),
        (json!([path]), 400, "the body is not a JSON object"),
        (json!(null), 400, "the body is not a JSON object"),
        (json!({"path": nobody}), 404, "process not found"),
        (json!({"path": silent}), 400, "process is not PTY-backed"),
        (json!({"path": path, "session": "x"}), 404, ""),
        (json!({"path": format!("{path}/")}), 404, ""),
        (json!({"path": format!("{path}?mode=writer")}), 404, ""),
        (json!({"path": "/process"}), 404, ""),
        (json!({"path": "/process/spawn"}), 405, ""),
        (
            json!({"path": "/terminal"}),
            404,
            "nothing at this path can be watched",
        ),
        (json!({"path": "/nothing"}), 404, ""),
        (json!({"path": ""}), 404, ""),
        (json!({"path": "/"}), 404, ""),
        (json!({"path": "/status"}), 404, ""),
        (json!({"path": "/.outrigger/log"}), 404, ""),
        (
            json!({"path": "/acp"}),
            400,
            "\"session\" is missing: a link is for one session",
        ),
        (json!({"path": "/acp", "session": "other"}), 403, NO_SESSION),
        (json!({"path": "/acp", "session": ""}), 403, NO_SESSION),
        (
            json!({"path": "/other", "session": session}),
            403,
            NO_SESSION,
        ),
    ] {
        let (found, answer) = server.call(LINKS, &secret("ada"), Some(body.clone()));
        assert_eq!(
            (found, &answer["type"]),
            (status, &json!("error")),
            "{body}: {answer}"
        );
        assert!(
            why.is_empty() || answer["message"] == why,
            "{body}: {answer}"
        );
    }
    // Only the owner of a session can share it.
    let body = json!({"path": "/acp", "session": session});
    let (status, answer) = server.call(LINKS, &secret("bob"), Some(body.clone()));
    assert_eq!((status, &answer["message"]), (403, &json!(NO_SESSION)));
    for name in ["ursula", "walter", "mona"] {
        assert_eq!(
            server.call(LINKS, &secret(name), Some(body.clone())).0,
            403,
            "{name}"
        );
    }
    let status = |fields: &str, body: &str| {
        let head = server.send(LINKS, &secret("ada"), fields, body).read_head();
        head[9..12].to_owned()
    };
    let json = "Content-Type: application/json\r\n";
    assert_eq!(status(json, "{"), "400");
    assert_eq!(status(json, "{\"path\": \"/a\", \"path\": 1}"), "400");
    assert_eq!(status(json, ""), "400");
    assert_eq!(
        status("Content-Type: text/plain\r\n", &body.to_string()),
        "415"
    );
    assert_eq!(status("", &body.to_string()), "415");
    assert_eq!(
        status(&format!("{json}Origin: http://evil.example\r\n"), "{}"),
        "403"
    );
    let padded = |length: usize| format!("{}{}", body, " ".repeat(length - body.to_string().len()));
    assert_eq!(status(json, &padded(4096)), "200");
    assert_eq!(status(json, &padded(4097)), "413");
    let deep = "[".repeat(4000);
    assert_eq!(status(json, &deep), "400");
    assert_eq!(listed(&server).len(), 1);
}

#[test]
fn the_number_of_links_is_limited() {
    let server = serve(&[]);
    let process = server.spawn(&secret("ada"), "exec cat");
    let target = json!({"path": attach_path(&process)});
    let tokens: Vec<String> = (0..256)
        .map(|_| issue(&server, "ada", target.clone()).1)
        .collect();
    let (status, answer) = server.call(LINKS, &secret("bob"), Some(target.clone()));
    assert_eq!(
        (status, &answer["message"]),
        (503, &json!("there are 256 links: revoke one first"))
    );
    let path = format!("{}?mode=viewer", attach_path(&process));
    for token in [&tokens[0], &tokens[255]] {
        server.connect(&path, token);
    }
    assert_eq!(
        server
            .call("DELETE /.outrigger/links/256", &secret("bob"), None)
            .0,
        200
    );
    assert_eq!(server.ask(&path, &tokens[255]).1, 401);
    let (number, token) = issue(&server, "bob", target);
    assert_eq!(number, "257");
    server.connect(&path, &token);
    assert_eq!(server.ask(&path, &tokens[255]).1, 401);
}

#[test]
fn a_server_that_requires_no_token_has_no_links() {
    let server = Program::start(&["processes"]);
    let address = server.address();
    let body = json!({"command": "cat", "allocate_tty": true});
    let (_, spawned) = crate::common::call(address, "POST", "/process/spawn", Some(body));
    let path = attach_path(spawned["process_id"].as_str().expect("an id"));
    let (status, answer) = crate::common::call(
        address,
        "POST",
        "/.outrigger/links",
        Some(json!({"path": path})),
    );
    assert_eq!(status, 400);
    assert_eq!(
        answer["message"],
        "a link needs a server that requires tokens"
    );
    let (_, session) = crate::common::call(address, "GET", "/.outrigger/session", None);
    let expected = json!({
        "version": env!("CARGO_PKG_VERSION"), "auth": false, "principal": "nobody", "scope": "all",
        "expires_s": null, "only": null,
    });
    assert_eq!(session, expected);
    assert_eq!(
        crate::common::call(address, "GET", "/.outrigger/links", None),
        (200, json!({"links": []}))
    );
}

#[test]
fn a_link_ends_with_the_token_of_its_issuer() {
    let server = serve(&[]);
    let process = server.spawn(&secret("ada"), "exec cat");
    let target = json!({"path": attach_path(&process)});
    let path = format!("{}?mode=viewer", attach_path(&process));
    let (_, of_ada) = issue(&server, "ada", target.clone());
    let (_, of_bob) = issue(&server, "bob", target.clone());
    let mut by_ada = server.connect(&path, &of_ada);
    let mut by_bob = server.connect(&path, &of_bob);
    by_ada.read_greeting(&path);
    by_bob.read_greeting(&path);
    // A hangup without a change, and one with new tokens in another order, revoke nothing.
    let others = TEAM.replace("bob all bob-0123456789abcdef\n", "");
    for text in [
        TEAM.to_owned(),
        format!("eve use eve-0123456789abcdef\n{others}bob all bob-0123456789abcdef\n"),
    ] {
        server.write_tokens(&text);
        let before = server
            .log
            .text()
            .matches("reloaded access settings: revoked_tokens=0 closed_connections=0")
            .count();
        server.program.signal(Signal::HUP);
        eventually("the tokens are read", || {
            server
                .log
                .text()
                .matches("reloaded access settings: revoked_tokens=0 closed_connections=0")
                .count()
                > before
        });
    }
    assert_eq!(listed(&server).len(), 2);
    for (wire, token) in [(&mut by_ada, &of_ada), (&mut by_bob, &of_bob)] {
        wire.send_frame(crate::common::PING, b"");
        while wire.read_frame().opcode != crate::common::PONG {}
        server.connect(&path, token);
    }
    // bob loses the scope with which he issued his link.
    server.write_tokens(&format!("{others}bob use bob-0123456789abcdef\n"));
    server.program.signal(Signal::HUP);
    assert_eq!(
        by_bob.read_close(),
        (1008, "the link was revoked".to_owned())
    );
    assert_eq!(server.ask(&path, &of_bob).1, 401);
    server.connect(&path, &of_ada);
    let left = listed(&server);
    assert_eq!((left.len(), &left[0]["by"]), (1, &json!("ada")));
}

#[test]
fn the_holder_of_a_link_sees_the_turns_of_one_session() {
    let server = serve_with_approvals();
    let (mut client, session) = server.session("/acp", &secret("ada"));
    let (_other, other_session) = server.session("/acp", &secret("ada"));
    let (_, token) = issue(&server, "ada", json!({"path": "/acp", "session": session}));
    let only = server.get("/.outrigger/session", &token)["only"].clone();
    assert_eq!(
        only,
        json!({"path": "/acp", "session": session, "answers": false})
    );
    let mut watcher = watch(&server, "/acp", &session, &token);
    // The owner of the session may watch it without a link, and so may the same person with another scope.
    let mut owner = watch(&server, "/acp", &session, &secret("ada"));
    for (path, token, reason) in [
        (
            "/acp".to_owned(),
            &token,
            "this link is for another session",
        ),
        (
            "/acp?watch=".to_owned(),
            &token,
            "this link is for another session",
        ),
        (
            format!("/acp?watch={other_session}"),
            &token,
            "this link is for another session",
        ),
        (
            format!("/acp?watch={session}&watch={other_session}"),
            &token,
            "this link is for another session",
        ),
        (format!("/acp?watch={session}"), &secret("bob"), NO_SESSION),
        (
            format!("/acp?watch={session}"),
            &secret("ursula"),
            NO_SESSION,
        ),
        (
            format!("/acp?watch={session}"),
            &secret("walter"),
            NO_SESSION,
        ),
        ("/acp?watch=other".to_owned(), &secret("ada"), NO_SESSION),
        ("/acp?watch=".to_owned(), &secret("ada"), NO_SESSION),
    ] {
        expect_refused(&server, &path, token, reason);
    }
    // Whatever a watcher sends is ignored.
    for message in [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": {"sessionId": session, "prompt": []}}),
        json!({"jsonrpc": "2.0", "id": 3, "method": "session/attach", "params": {"sessionId": other_session}}),
        json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}),
        json!("not a message"),
    ] {
        for wire in [&mut watcher, &mut owner] {
            wire.send_frame(TEXT, message.to_string().as_bytes());
            wire.send_frame(TEXT, b"{");
            wire.send_frame(BINARY, b"binary");
        }
    }
    expect_silence(&mut watcher);
    expect_silence(&mut owner);

    // A permission request reaches watchers as a notification, although any observer may approve.
    let prompt = client.prompt(&session, "/permission please");
    let asked = client.hear();
    assert_eq!(asked["method"], "session/request_permission", "{asked}");
    for wire in [&mut watcher, &mut owner] {
        let shown = hear(wire);
        assert_eq!(
            shown["params"]["update"]["sessionUpdate"], "user_message_chunk",
            "{shown}"
        );
        let shown = hear(wire);
        assert_eq!(shown["method"], "session/request_permission", "{shown}");
        assert_eq!(
            (&shown["params"]["toolCall"], shown.get("id")),
            (&asked["params"]["toolCall"], None)
        );
        let outcome = json!({"outcome": {"outcome": "selected", "optionId": "yes"}});
        let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": outcome});
        wire.send_frame(TEXT, answer.to_string().as_bytes());
        expect_silence(wire);
    }
    let mut late = watch(&server, "/acp", &session, &token);
    let shown = hear(&mut late);
    assert_eq!(
        shown["params"]["update"]["content"]["text"], "/permission please",
        "{shown}"
    );
    let shown = hear(&mut late);
    assert_eq!(
        (&shown["method"], shown.get("id")),
        (&json!("session/request_permission"), None)
    );
    let outcome = json!({"outcome": {"outcome": "selected", "optionId": "no"}});
    client.say(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": outcome}));
    let mut text = String::new();
    let answer = loop {
        let message = client.hear();
        if message["id"] == prompt {
            break message;
        }
        text.push_str(
            message["params"]["update"]["content"]["text"]
                .as_str()
                .unwrap_or_default(),
        );
    };
    assert_eq!(answer["result"]["stopReason"], "end_turn");
    assert_eq!(text, "You rejected it, so nothing was done.");
    for wire in [&mut watcher, &mut owner, &mut late] {
        let mut shown = String::new();
        let last = loop {
            let message = hear(wire);
            if is_turn_complete(&message) {
                break message;
            }
            shown.push_str(
                message["params"]["update"]["content"]["text"]
                    .as_str()
                    .unwrap_or_default(),
            );
        };
        assert_eq!(last["params"]["update"]["stopReason"], "end_turn", "{last}");
        assert_eq!(shown, text);
    }
    // What happens in the other session is not shown.
    expect_silence(&mut watcher);
    let status = server.get("/status", &secret("ada"));
    let sessions = status["agent"]["session_list"].as_array().expect("a list");
    let shown = sessions
        .iter()
        .find(|one| one["id"] == *session)
        .expect("listed");
    assert_eq!(
        (&shown["owner"], &shown["observers"]),
        (&json!("ada"), &json!(3)),
        "{shown}"
    );
    drop(late);
    assert_eq!(
        server
            .call("DELETE /.outrigger/links/1", &secret("ada"), None)
            .0,
        200
    );
    assert_eq!(
        watcher.read_close(),
        (1008, "the link was revoked".to_owned())
    );
    expect_silence(&mut owner);
}

#[test]
fn a_watcher_comes_back_after_a_cut_and_has_missed_nothing() {
    let server = serve(&[]);
    let (mut client, session) = server.session("/acp", &secret("ada"));
    let (_, token) = issue(&server, "ada", json!({"path": "/acp", "session": session}));
    let path = format!("/acp?watch={session}&resume=new&notice=1");
    let mut watcher = server.connect(&path, &token);
    let notice = hear(&mut watcher);
    let resume = notice["outrigger"]["resume"]
        .as_str()
        .unwrap_or_else(|| panic!("{notice}"))
        .to_owned();
    assert_eq!(hear(&mut watcher)["method"], "_outrigger/watching");
    watcher.reset();
    eventually("the watcher is detached", || {
        server.get("/status", &secret("ada"))["detached"] == 1
    });
    let prompt = client.prompt(&session, "hello");
    assert_eq!(client.answer_to(prompt)["result"]["stopReason"], "end_turn");
    // Only the holder of the same link comes back with it.
    let back = format!("/acp?watch={session}&resume={resume}&received=1");
    for name in ["ada", "bob", "walter"] {
        assert_eq!(server.ask(&back, &secret(name)).1, 410, "{name}");
    }
    let (_, other) = issue(&server, "ada", json!({"path": "/acp", "session": session}));
    assert_eq!(server.ask(&back, &other).1, 410);
    let mut watcher = server.connect(&back, &token);
    let mut shown = Vec::new();
    loop {
        let message = hear(&mut watcher);
        if is_turn_complete(&message) {
            break;
        }
        shown.push(
            message["params"]["update"]["content"]["text"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        );
    }
    assert_eq!(shown[0], "hello");
    assert!(
        shown[1..]
            .concat()
            .starts_with("This is prompt 1 of this session"),
        "{shown:?}"
    );
    // A link that is revoked during a cut does not let its holder back.
    let mut again = server.connect(&path, &token);
    let notice = hear(&mut again);
    let resume = notice["outrigger"]["resume"]
        .as_str()
        .expect("a token")
        .to_owned();
    again.reset();
    eventually("the watcher is detached", || {
        server.get("/status", &secret("ada"))["detached"] == 1
    });
    assert_eq!(
        server
            .call("DELETE /.outrigger/links/1", &secret("ada"), None)
            .0,
        200
    );
    eventually("the watcher has ended", || {
        server.get("/status", &secret("ada"))["detached"] == 0
    });
    let back = format!("/acp?watch={session}&resume={resume}&received=1");
    assert_eq!(server.ask(&back, &token).1, 401);
    assert_eq!(server.ask(&back, &other).1, 410);
    assert_eq!(
        watcher.read_close(),
        (1008, "the link was revoked".to_owned())
    );
}

/// An agent that calls each session `same`.
const SAME: &str = r#"
while read -r line; do
  id=${line#*\"id\":}; id=${id%%[,\}]*}
  case $line in
    *'"initialize"'*) result='{"protocolVersion":1,"agentCapabilities":{}}' ;;
    *'"session/new"'*) result='{"sessionId":"same"}' ;;
    *'"session/prompt"'*)
      echo '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"same","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"secret"}}}}'
      result='{"stopReason":"end_turn"}' ;;
    *) continue ;;
  esac
  echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$result}"
done
"#;

#[test]
fn a_link_does_not_show_a_later_session_of_the_same_name() {
    let routes = json!({"/acp": {"agent": {"command": ["sh", "-c", SAME], "grace": "0"}}});
    let server = Guarded::serve(&routes, &[]);
    let (mut ada, session) = server.session("/acp", &secret("ada"));
    assert_eq!(session, "same");
    let (_, token) = issue(&server, "ada", json!({"path": "/acp", "session": "same"}));
    let mut watcher = watch(&server, "/acp", "same", &token);
    let prompt = ada.prompt("same", "hello");
    assert_eq!(ada.answer_to(prompt)["result"]["stopReason"], "end_turn");
    while !is_turn_complete(&hear(&mut watcher)) {}
    let mut bob = Client::initialized_on(server.connect("/acp", &secret("bob")));
    let params = json!({"cwd": "/", "mcpServers": []});
    let taken = bob.ask("session/new", params.clone());
    assert_eq!(
        taken["error"]["data"],
        "the agent answered with a session that is in use"
    );
    drop(ada);
    eventually("the name is free", || {
        bob.ask("session/new", params.clone())
            .get("error")
            .is_none()
    });
    let prompt = bob.prompt("same", "mine");
    assert_eq!(bob.answer_to(prompt)["result"]["stopReason"], "end_turn");
    loop {
        let message = hear(&mut watcher);
        assert!(!message.to_string().contains("secret"), "{message}");
        assert!(!message.to_string().contains("mine"), "{message}");
        if message["method"] == "_outrigger/session_ended" {
            break;
        }
    }
    let ended = (1000, "the session has ended".to_owned());
    assert_eq!(watcher.read_close(), ended);
    expect_refused(&server, "/acp?watch=same", &token, NO_SESSION);
    expect_refused(&server, "/acp?watch=same", &secret("ada"), NO_SESSION);
    let (status, _) = server.call(
        LINKS,
        &secret("ada"),
        Some(json!({"path": "/acp", "session": "same"})),
    );
    assert_eq!(status, 403);
}

/// A link whose creator chose it lets its holder answer the permission requests of one session, and nothing more.
#[test]
fn the_holder_of_a_link_that_permits_it_answers_permission_requests() {
    let server = serve(&[]);
    let process = server.spawn(&secret("ada"), "exec cat");
    let (_client, session) = server.session("/acp", &secret("ada"));
    for (target, refused) in [
        // This server lets only the client of a session answer.
        (
            json!({"path": "/acp", "session": session, "answers": true}),
            403,
        ),
        (json!({"path": attach_path(&process), "answers": true}), 400),
        (
            json!({"path": "/acp", "session": session, "answers": 1}),
            400,
        ),
    ] {
        let (status, answer) = server.call(LINKS, &secret("ada"), Some(target.clone()));
        assert_eq!(status, refused, "{target} {answer}");
    }

    let server = serve_with_approvals();
    let (mut client, session) = server.session("/acp", &secret("ada"));
    let target = json!({"path": "/acp", "session": session, "answers": true});
    let (_, token) = issue(&server, "ada", target);
    let who = server.get("/.outrigger/session", &token);
    assert_eq!(
        (&who["scope"], &who["only"]["answers"]),
        (&json!("watch"), &json!(true))
    );
    assert_eq!(listed(&server)[0]["answers"], true);
    let mut guest = watch(&server, "/acp", &session, &token);
    let prompt = client.prompt(&session, "/permission please");
    let asked = client.hear();
    let mut shown = hear(&mut guest);
    while shown["method"] != "session/request_permission" {
        shown = hear(&mut guest);
    }
    assert_eq!(shown["id"], asked["id"]);
    // It cannot stop the turn, or prompt.
    let cancel =
        json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}});
    guest.send_frame(TEXT, cancel.to_string().as_bytes());
    let outcome = json!({"outcome": {"outcome": "selected", "optionId": "yes"}});
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": outcome});
    guest.send_frame(TEXT, answer.to_string().as_bytes());
    let mut is_resolved = false;
    let ended = loop {
        let message = client.hear();
        let update = &message["params"]["update"];
        if update["sessionUpdate"] == "permission_resolved" {
            assert_eq!(update["resolvedBy"]["principal"], "link:1", "{message}");
            is_resolved = true;
        }
        if message["id"] == prompt && message.get("method").is_none() {
            break message;
        }
    };
    assert!(is_resolved);
    assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
}
