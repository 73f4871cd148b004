//! What the console uses: disconnecting a client, the newest log lines, and the figures of `/status`.

use crate::common::agent::Client;
use crate::common::guarded::{Guarded, secret};
use crate::common::traces::{TraceFile, eventually};
use crate::common::{BINARY, TEXT, Wire};
use serde_json::{Value, json};

const OUTRIGGER: &str = env!("CARGO_BIN_EXE_outrigger");

/// A server with a service of each kind, and the events that its app gets.
fn serve(args: &[&str]) -> (Guarded, TraceFile) {
    let events = TraceFile::new(&format!(
        "operator-events-{:?}",
        std::thread::current().id()
    ));
    let routes = json!({
        "/app": {"app": {"command": ["sh", "-c", format!("exec cat > '{}'", events.path())]}},
        "/echo": {"echo": {}},
        "/process": {"processes": {}},
        "/acp": {"agent": {"command": [OUTRIGGER, "example-agent"], "grace": "0"}},
    });
    (Guarded::serve(&routes, args), events)
}

/// The events of a kind that the app has got.
fn events(file: &TraceFile, kind: &str) -> Vec<Value> {
    let text = file.text();
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|event| event["event"] == kind).collect()
}

/// The clients at a path.
fn clients(server: &Guarded, path: &str) -> Vec<Value> {
    let status = server.get("/status", &secret("mona"));
    let clients = status["clients"].as_array().expect("a list").iter();
    clients
        .filter(|client| client["path"] == path)
        .cloned()
        .collect()
}

/// The id of the only client at a path.
fn client_at(server: &Guarded, path: &str) -> String {
    let clients = clients(server, path);
    assert_eq!(clients.len(), 1, "{clients:?}");
    clients[0]["id"].as_str().expect("an id").to_owned()
}

fn close(server: &Guarded, id: &str) -> (u16, Value) {
    let line = format!("POST /.outrigger/clients/{id}/close");
    server.call(&line, &secret("ada"), Some(json!({})))
}

const REASON: &str = "disconnected by an operator";

#[test]
fn a_client_is_disconnected_once_and_told_why() {
    let (server, file) = serve(&[]);
    let mut wire = server.connect("/app", &secret("ursula"));
    let mut other = server.connect("/app", &secret("ursula"));
    eventually("both are connected", || events(&file, "connect").len() == 2);
    let id = clients(&server, "/app")[0]["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    assert_eq!(close(&server, &id), (200, json!({"ok": true})));
    // Once more, before the client has answered.
    assert_eq!(close(&server, &id), (200, json!({"ok": true})));
    assert_eq!(wire.read_close(), (1008, REASON.to_owned()));
    wire.send_close(1008);
    wire.expect_end();
    eventually("the app is told", || {
        !events(&file, "disconnect").is_empty()
    });
    let (status, answer) = close(&server, &id);
    assert_eq!(
        (status, &answer["message"]),
        (404, &json!("there is no client of this id"))
    );
    other.send_frame(crate::common::PING, b"");
    assert_eq!(other.read_frame().opcode, crate::common::PONG);
    drop(other);
    eventually("the app is told of the other one", || {
        events(&file, "disconnect").len() >= 2
    });
    let told = events(&file, "disconnect");
    let own: Vec<_> = told.iter().filter(|event| event["client"] == *id).collect();
    assert_eq!((told.len(), own.len()), (2, 1), "{told:?}");
    assert_eq!(
        (&own[0]["cause"], &own[0]["code"], &own[0]["reason"]),
        (&json!("operator"), &json!(1008), &json!(REASON)),
        "{own:?}"
    );
    let log = server.log.text();
    assert!(
        log.contains(&format!("{id} disconnected by an operator: principal=ada")),
        "{log}"
    );
    assert!(
        log.contains("cause=operator code=1008 reason=\"disconnected by an operator\""),
        "{log}"
    );
    let mut metrics = server.send("GET /metrics", &secret("mona"), "", "");
    let head = metrics.read_head();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    let metrics = metrics.read_exact(length.expect("a length").parse().expect("a number"));
    let metrics = String::from_utf8(metrics).expect("UTF-8");
    assert!(
        metrics.contains("\noutrigger_disconnects_total{cause=\"operator\"} 1\n"),
        "{metrics}"
    );
}

#[test]
fn a_client_that_is_away_or_does_not_read_is_disconnected_too() {
    let (server, file) = serve(&["--close-timeout", "1s", "--ping-interval", "0"]);
    // Its connection was cut, and it could come back.
    let mut wire = server.connect("/app?resume=new&notice=1", &secret("ursula"));
    let notice: Value = serde_json::from_slice(&wire.read_frame().payload).expect("JSON");
    let resume = notice["outrigger"]["resume"]
        .as_str()
        .expect("a token")
        .to_owned();
    let id = client_at(&server, "/app");
    wire.reset();
    eventually("it is detached", || {
        server.get("/status", &secret("mona"))["detached"] == 1
    });
    assert_eq!(close(&server, &id).0, 200);
    eventually("the app is told", || events(&file, "disconnect").len() == 1);
    assert_eq!(close(&server, &id).0, 404);
    let back = format!("/app?resume={resume}&received=1");
    assert_eq!(server.ask(&back, &secret("ursula")).1, 410);
    let told = events(&file, "disconnect");
    assert_eq!(
        (told.len(), &told[0]["cause"]),
        (1, &json!("operator")),
        "{told:?}"
    );

    // It takes no more of what waits for it.
    let mut wire = server.connect("/echo", &secret("ursula"));
    wire.stream.set_nonblocking(true).expect("a socket");
    let frame = crate::common::frame(true, BINARY, &[b'x'; 65536]);
    eventually("output waits for it", || {
        let _ = std::io::Write::write(&mut wire.stream, &frame);
        let clients = clients(&server, "/echo");
        clients[0]["queued_bytes"].as_u64() > Some(10_000)
    });
    assert_eq!(close(&server, &client_at(&server, "/echo")).0, 200);
    eventually("it is gone", || clients(&server, "/echo").is_empty());

    // The process of a writer goes on without it.
    let process = server.spawn(&secret("ada"), "echo ready; exec cat");
    let path = format!("/process/{process}/attach");
    let mut writer = server.connect(&path, &secret("ursula"));
    assert_eq!(close(&server, &client_at(&server, &path)).0, 200);
    assert_eq!(writer.read_close(), (1008, REASON.to_owned()));
    writer.send_close(1008);
    writer.expect_end();
    let mut next = server.connect(&path, &secret("ursula"));
    let greeting = next.read_greeting(&path);
    assert_eq!(greeting[0]["role"], "writer");
}

#[test]
fn only_an_operator_on_a_page_of_the_server_can_disconnect() {
    let (server, _events) = serve(&[]);
    let mut wire = server.connect("/echo", &secret("ursula"));
    let id = client_at(&server, "/echo");
    let line = format!("POST /.outrigger/clients/{id}/close");
    let json = "Content-Type: application/json\r\n";
    let evil = "Origin: http://evil.example\r\n";
    for (name, fields, body, status) in [
        ("ada", "", "", "400"),
        ("ada", json, "", "400"),
        ("ada", json, "[]", "400"),
        ("ada", json, "{", "400"),
        ("ada", json, r#"{"code":1000}"#, "400"),
        // What a page of another origin can send without a preflight request.
        ("ada", "", "{}", "415"),
        ("ada", "Content-Type: text/plain\r\n", "{}", "415"),
        (
            "ada",
            "Content-Type: application/x-www-form-urlencoded\r\n",
            "{}",
            "415",
        ),
        (
            "ada",
            "Content-Type: multipart/form-data; boundary=x\r\n",
            "{}",
            "415",
        ),
        ("ada", &format!("{json}{evil}"), "{}", "403"),
        ("ada", &format!("{json}Origin: null\r\n"), "{}", "403"),
        (
            "ada",
            &format!("{json}Origin: https://localhost.evil.example\r\n"),
            "{}",
            "403",
        ),
        ("ursula", json, "{}", "403"),
        ("walter", json, "{}", "403"),
        ("mona", json, "{}", "403"),
        ("nobody", json, "{}", "401"),
    ] {
        let head = server.send(&line, &secret(name), fields, body).read_head();
        assert_eq!(&head[9..12], status, "{name} {fields} {body}");
    }
    for line in [
        "POST /.outrigger/clients/c999999/close",
        "POST /.outrigger/clients/c01/close",
        "POST /.outrigger/clients/c1.99999999/close",
        "POST /.outrigger/clients/c18446744073709551616/close",
        "POST /.outrigger/clients/-1/close",
        "POST /.outrigger/clients//close",
        &format!("POST /.outrigger/clients/{}/close", id.to_uppercase()),
        &format!("POST /.outrigger/clients/{id}/close/"),
    ] {
        let (status, answer) = server.call(line, &secret("ada"), Some(json!({})));
        assert_eq!(
            (status, &answer["type"]),
            (if line.ends_with('/') { 413 } else { 404 }, &json!("error")),
            "{line}"
        );
    }
    for method in ["GET", "PUT", "DELETE"] {
        let head = server
            .send(&line.replacen("POST", method, 1), &secret("ada"), "", "")
            .read_head();
        assert!(
            head.starts_with("HTTP/1.1 405 ") && head.contains("\r\nAllow: POST\r\n"),
            "{head}"
        );
    }
    // A page of the server itself may ask, and a browser asks before it sends DELETE.
    let own = "Origin: http://localhost\r\n";
    let preflight = "Access-Control-Request-Method: DELETE\r\n";
    for (origin, status) in [(own, "204"), (evil, "403")] {
        let fields = format!("{origin}{preflight}");
        let mut wire = Wire::open(server.address);
        wire.send(
            format!("OPTIONS /.outrigger/links/1 HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n")
                .as_bytes(),
        );
        let head = wire.read_head();
        assert_eq!(&head[9..12], status, "{head}");
        let allows = head.contains("\r\nAccess-Control-Allow-Methods: GET, HEAD, POST, DELETE\r\n");
        assert_eq!(allows, status == "204", "{head}");
    }
    wire.send_frame(TEXT, b"still here");
    assert_eq!(wire.read_frame().payload, b"still here");
    // A caller is not a client.
    let caller = server.send("GET /.outrigger/links", &secret("ada"), "", "");
    let serial: u64 = id[1..]
        .split('.')
        .next()
        .expect("a number")
        .parse()
        .expect("a number");
    for other in serial + 1..serial + 60 {
        for slot in ["", ".1", ".2", ".3"] {
            assert_eq!(close(&server, &format!("c{other}{slot}")).0, 404);
        }
    }
    drop(caller);
    let head = server
        .send(&line, &secret("ada"), &format!("{json}{own}"), "{}")
        .read_head();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(wire.read_close(), (1008, REASON.to_owned()));
}

/// The lines of the log after a number, and the number of the last one.
fn log_after(server: &Guarded, after: u64) -> (Vec<Value>, u64) {
    let log = server.get(&format!("/.outrigger/log?after={after}"), &secret("ada"));
    let lines = log["lines"].as_array().expect("a list").clone();
    (lines, log["next"].as_u64().expect("a number"))
}

#[test]
fn the_log_has_each_line_once_and_no_token() {
    let (server, _events) = serve(&[]);
    let all = server.get("/.outrigger/log", &secret("ada"));
    assert_eq!(all["dropped"], 0);
    let lines = all["lines"].as_array().expect("a list");
    let numbers: Vec<u64> = lines
        .iter()
        .map(|line| line["seq"].as_u64().expect("a number"))
        .collect();
    assert_eq!(numbers, (1..=lines.len() as u64).collect::<Vec<_>>());
    assert_eq!(all["next"], lines.len());
    let mut next = lines.len() as u64;
    let mut seen = Vec::new();
    for at in 0..4 {
        let path = format!("/echo?token={}&at={at}", secret("bob"));
        drop(server.connect(&path, &secret("ursula")));
        server.ask(&format!("/echo/{}", secret("bob")), "");
        server.ask(&format!("/echo?token=wr0ng-{at}"), "wr0ng-0123456789abcdef");
        let (lines, last) = log_after(&server, next);
        for line in &lines {
            next += 1;
            assert_eq!(line["seq"], next, "{line}");
            seen.push(line["message"].as_str().expect("a text").to_owned());
        }
        assert!(last >= next);
    }
    let first = lines[0].as_object().expect("an object");
    let names: Vec<_> = first.keys().map(String::as_str).collect();
    assert_eq!(names, ["level", "message", "seq", "target", "time"]);
    assert!(humantime::parse_rfc3339(first["time"].as_str().expect("a text")).is_ok());
    assert!(
        seen.iter()
            .any(|line| line.contains("connected: path=\"/echo\"")),
        "{seen:?}"
    );
    assert!(!seen.concat().contains("0123456789abcdef"), "{seen:?}");
    // A number that was not given out yet is from before a restart.
    let (again, _) = log_after(&server, next + 1_000_000);
    assert_eq!(again[0]["seq"], 1);
    for after in ["", "x", "-1", "1.5", "18446744073709551616"] {
        let (status, answer) = server.call(
            &format!("GET /.outrigger/log?after={after}"),
            &secret("ada"),
            None,
        );
        assert_eq!(
            (status, &answer["message"]),
            (400, &json!("'after' is not a number")),
            "{after}"
        );
    }
    assert!(log_after(&server, u64::MAX).0.len() > 10);
}

#[test]
fn the_figures_do_not_include_what_the_console_asks() {
    let (server, _events) = serve(&[]);
    let status = || server.get("/status", &secret("mona"));
    let expected = json!([
        {"path": "/acp", "service": "agent"}, {"path": "/app", "service": "app"},
        {"path": "/echo", "service": "echo"}, {"path": "/process", "service": "processes"},
    ]);
    let mut services = status()["services"].as_array().expect("a list").clone();
    services.sort_by_key(|one| one["path"].as_str().map(str::to_owned));
    assert_eq!(json!(services), expected);

    let before = status()["totals"].clone();
    assert_eq!(
        before,
        json!({"messages_in": 0, "messages_out": 0, "bytes_in": 0, "bytes_out": 0, "calls": 0})
    );
    let mut wire = server.connect("/echo", &secret("ursula"));
    for _ in 0..3 {
        wire.send_frame(TEXT, b"hello");
        wire.read_frame();
    }
    let open = status()["totals"].clone();
    assert_eq!(
        (&open["messages_in"], &open["messages_out"]),
        (&json!(3), &json!(3))
    );
    wire.send_close(1000);
    wire.read_close();
    wire.expect_end();
    eventually("it is gone", || status()["client_count"] == 0);
    let ended = status()["totals"].clone();
    assert_eq!(
        (&ended["messages_in"], &ended["messages_out"]),
        (&json!(3), &json!(3))
    );
    assert!(
        ended["bytes_in"].as_u64() >= open["bytes_in"].as_u64(),
        "{open} {ended}"
    );
    assert_eq!(ended["calls"], 0);

    // Requests of the console, on one connection.
    let count = || status()["turns"]["count"].as_u64().expect("a number");
    let ask = |wire: &mut Wire, fields: &str| {
        let token = format!("Authorization: Bearer {}\r\n", secret("ada"));
        for path in [
            "/process?usage=1",
            "/status",
            "/.outrigger/log",
            "/.outrigger/links",
        ] {
            wire.send(
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{token}{fields}\r\n").as_bytes(),
            );
            let (head, _) = wire.read_response();
            assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
        }
    };
    let mut wire = Wire::open(server.address);
    ask(&mut wire, "");
    let start = count();
    for _ in 0..25 {
        ask(&mut wire, "Outrigger-Console: 1\r\n");
    }
    let of_console = count() - start;
    let start = count();
    for _ in 0..25 {
        ask(&mut wire, "");
    }
    let of_others = count() - start;
    assert!(
        of_console < 50 && of_others >= 100,
        "{of_console} {of_others}"
    );
    assert_eq!(
        status()["totals"]["calls"],
        26,
        "the lists of processes without the field"
    );
}

#[test]
fn processes_and_sessions_have_figures() {
    let (server, _events) = serve(&[]);
    let busy = server.spawn(&secret("ada"), "while :; do :; done");
    let idle = server.spawn(&secret("ada"), "exec cat");
    let list = |query: &str| {
        let list = server.get(&format!("/process{query}"), &secret("ada"));
        list["processes"].as_array().expect("a list").clone()
    };
    for query in ["", "?usage=0"] {
        assert!(
            list(query)
                .iter()
                .all(|one| one.get("cpu_s").is_none() && one.get("mem_bytes").is_none())
        );
    }
    let usage = |id: &str| {
        let list = list("?usage=1");
        let one = list
            .iter()
            .find(|one| one["process_id"] == *id)
            .expect("listed");
        (
            one["cpu_s"].as_f64().expect("a number"),
            one["mem_bytes"].as_u64().expect("a number"),
        )
    };
    eventually("it has used some time", || usage(&busy).0 > 0.05);
    let (cpu, memory) = usage(&idle);
    assert!(cpu < 10.0 && memory > 10_000, "{cpu} {memory}");
    for id in [&busy, &idle] {
        let line = format!("POST /process/{id}/kill");
        assert_eq!(
            server
                .call(&line, &secret("ada"), Some(json!({"signal": "KILL"})))
                .0,
            200
        );
    }
    eventually("they have ended", || {
        list("?usage=1").iter().all(|one| one["mem_bytes"] == 0)
    });
    assert_eq!(
        server
            .call("GET /process?usage=yes", &secret("ada"), None)
            .0,
        400
    );

    let sessions = || {
        let status = server.get("/status", &secret("mona"));
        status["agent"]["session_list"]
            .as_array()
            .expect("a list")
            .clone()
    };
    assert_eq!(sessions(), [json!(null); 0]);
    let (mut client, session) = server.session("/acp", &secret("ada"));
    let id = client_at(&server, "/acp");
    let shown = json!({"id": session, "owner": "ada", "state": "idle", "client": id, "waiting": 0, "observers": 0});
    assert_eq!(sessions(), std::slice::from_ref(&shown));
    client.prompt(&session, "/permission");
    assert_eq!(client.hear()["method"], "session/request_permission");
    let mut active = shown;
    active["state"] = "active".into();
    active["waiting"] = 1.into();
    assert_eq!(sessions(), [active]);
    drop(client);
    eventually("the session has ended", || sessions().is_empty());
}

/// A client that can read files.
fn with_files(server: &Guarded) -> (Client, String) {
    let mut client = Client {
        wire: server.connect("/acp", &secret("bob")),
        next_id: 0,
    };
    let capabilities = json!({"fs": {"readTextFile": true}});
    client.ask(
        "initialize",
        json!({"protocolVersion": 1, "clientCapabilities": capabilities}),
    );
    let (client, session, _) = client.open_session();
    (client, session)
}

#[test]
fn watchers_neither_start_nor_keep_an_agent_process() {
    let (server, _events) = serve(&[]);
    let processes = || {
        let status = server.get("/status", &secret("mona"));
        status["agent"]["processes"]
            .as_array()
            .expect("a list")
            .len()
    };
    let (_first, session) = server.session("/acp", &secret("ada"));
    let (second, of_second) = with_files(&server);
    assert_eq!(processes(), 2);
    let watch = |session: &str, name: &str| {
        let mut wire = server.connect(&format!("/acp?watch={session}"), &secret(name));
        assert!(
            String::from_utf8_lossy(&wire.read_frame().payload).contains("_outrigger/watching")
        );
        wire
    };
    let _other = watch(&session, "ada");
    let mut watcher = watch(&of_second, "bob");
    assert_eq!(processes(), 2);
    second.wire.reset();
    eventually("the process that only a watcher wants is stopped", || {
        processes() == 1
    });
    let ended = loop {
        let message: Value = serde_json::from_slice(&watcher.read_frame().payload).expect("JSON");
        if message["method"] != "session/update" {
            break message;
        }
    };
    assert_eq!(ended["method"], "_outrigger/session_ended", "{ended}");
    assert_eq!(watcher.read_close().0, 1000);
}

#[test]
fn the_server_sorts_and_filters_its_clients() {
    let (server, _events) = serve(&[]);
    // Who sends most is not among the first by id.
    let mut wires = Vec::new();
    for number in 0..30_usize {
        let mut wire = server.connect("/echo", &secret("ursula"));
        wire.send_frame(TEXT, "x".repeat(100 * ((7 * number) % 30)).as_bytes());
        wire.read_frame();
        wires.push(wire);
    }
    let ask = |query: &str| server.get(&format!("/status?{query}"), &secret("mona"));
    let numbers = |status: &Value, field: &str| {
        let clients = status["clients"].as_array().expect("a list").iter();
        let numbers = clients.map(|client| client[field].as_u64().expect("a number"));
        numbers.collect::<Vec<u64>>()
    };
    let all = numbers(&ask(""), "bytes_in");
    let mut sorted = all.clone();
    sorted.sort_unstable();
    assert_ne!(all, sorted);
    let least = ask("sort=bytes_in&limit=5");
    assert_eq!(numbers(&least, "bytes_in"), sorted[..5]);
    sorted.reverse();
    let most = ask("sort=bytes_in&order=desc&limit=3");
    assert_eq!(numbers(&most, "bytes_in"), sorted[..3]);
    assert_eq!(
        (&most["matched"], &most["client_count"]),
        (&json!(30), &json!(30))
    );
    assert_eq!(most["clients_by_route"], json!({"/echo": 30}));
    for (filter, count) in [("ursula%20ECHO", 30), ("bob", 0), ("", 30)] {
        let found = ask(&format!("filter={filter}&limit=0"));
        assert_eq!(
            (&found["matched"], &found["clients"]),
            (&json!(count), &json!([]))
        );
    }
    let refused = server.call("GET /status?sort=age", &secret("mona"), None);
    assert_eq!(refused.0, 400);
}

#[test]
fn the_status_tells_what_the_handshake_said_and_how_well_the_server_is() {
    let (server, _events) = serve(&[]);
    let fields = format!(
        "User-Agent: {}\r\nOrigin: http://localhost\r\n\
         Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
        "agent/1.0 ".repeat(40)
    );
    let mut wire = server.send("GET /echo", &secret("ursula"), &fields, "");
    let head = wire.read_head();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let client = &clients(&server, "/echo")[0];
    assert_eq!(client["user_agent"], "agent/1.0 ".repeat(40)[..128]);
    assert_eq!(client["origin"], "http://localhost");
    assert_eq!(client["tls"], Value::Null);
    server.ask("/echo?token=wr0ng", "wr0ng-0123456789abcdef");
    let status = server.get("/status?health=1&usage=1", &secret("mona"));
    let health = &status["health"];
    assert_eq!(health["wrong_tokens"], 1);
    assert_eq!(health["refused"]["unauthorized"], 1, "{health}");
    for name in [
        "memory_bytes",
        "descriptors",
        "descriptor_limit",
        "max_clients",
        "suppressed_lines",
    ] {
        assert!(health[name].is_u64(), "{name}: {health}");
    }
    // The agent of the route runs, and its process is listed with its use.
    let agent = &status["agent"]["processes"][0];
    assert!(agent["mem_bytes"].as_u64() > Some(0), "{agent}");
    eventually("there is a sample", || {
        let status = server.get("/status?history=0", &secret("mona"));
        let history = &status["history"];
        let fields = history["fields"].as_array().expect("names");
        let refused = fields.iter().position(|name| name == "wrong_tokens");
        let samples = history["samples"].as_array().expect("samples").iter();
        let mut counts = samples.map(|sample| &sample[refused.expect("a field")]);
        counts.any(|count| *count == 1)
    });
    for query in ["history=x", "health=yes", "usage=2"] {
        let line = format!("GET /status?{query}");
        assert_eq!(server.call(&line, &secret("mona"), None).0, 400, "{query}");
    }
}
