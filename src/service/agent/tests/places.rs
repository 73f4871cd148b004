//! Who gets a message that names a session, by the state of the session, the sender and the place of the id. The tables in
//! `docs/protocols.md` are made by these tests.

use super::*;

/// The states of the session "s" of client 1, Ada.
const STATES: [&str; 5] = [
    "in use",
    "detached",
    "being created",
    "closed",
    "never seen",
];

/// The places of a session id: a title, and the method and the parameters, in which `#` means the id. The method is not in
/// the schema if it begins with `_`.
const PLACES: [(&str, &str, &str); 9] = [
    ("`sessionId`", "schema", r##"{"sessionId":"#"}"##),
    (
        "`_meta`",
        "schema",
        r##"{"_meta":{"a":{"sessionId":"#"}}}"##,
    ),
    ("`sessionId`", "_x", r##"{"sessionId":"#"}"##),
    ("`_meta`", "_x", r##"{"_meta":{"sessionId":"#"}}"##),
    ("nested", "_x", r##"{"target":{"sessionId":"#"}}"##),
    ("in a list", "_x", r##"{"sessions":["#"]}"##),
    ("other spelling", "_x", r##"{"parent_session_ID":"#"}"##),
    ("opaque", "_x", r##"{"content":{"sessionId":"#"}}"##),
    ("`--pass-methods`", "_free", r##"{"sessionId":"#"}"##),
];

const OWNER: u64 = 1;
const OTHER: u64 = 2;
const OBSERVER: u64 = 3;
const WATCHER: u64 = 4;
const ROLES: [(u64, &str); 4] = [
    (OWNER, "owner"),
    (OTHER, "other client"),
    (OBSERVER, "observer"),
    (WATCHER, "watcher"),
];

/// Clients 1 to 4 with these roles for the session "s" in this state. Bob, the other client, has the session "b" and may work in
/// it.
fn sim_with_roles(state: &str, bob_works: bool) -> Simulation {
    let mut limits = Simulation::new().router.settings();
    limits.unknown_sessions = UnknownSessions::Auto;
    let mut sim = Simulation::with_limits(limits);
    sim.router = sim.router.with_free_methods(vec!["_free".to_owned()]);
    for (number, name) in [(OWNER, "ada"), (OTHER, "bob"), (OBSERVER, "eve")] {
        let principal = named(name);
        sim.router
            .handle_connected(client(number), principal, false);
        sim.hello(number, &json!({"protocolVersion": 1}));
    }
    sim.session(OTHER, "b");
    if !matches!(state, "being created" | "never seen") {
        sim.client_sends(OWNER, &request("1", "session/new", &json!({})));
        sim.agent_answers(&json!({"sessionId": "s"}));
        let tokens = &sim.client_received(OWNER)["result"]["_meta"]["outrigger"];
        let outrigger = json!({"watchToken": tokens["watchToken"]});
        let attach = json!({"sessionId": "s", "_meta": {"outrigger": outrigger}});
        sim.client_sends(OBSERVER, &request("1", "session/attach", &attach));
        let added = sim.router.handle_viewer(
            viewer(client(WATCHER), named("ada"), None),
            "s",
            &mut sim.output,
        );
        assert_eq!(added, Ok(()));
    }
    match state {
        "detached" => sim.output.away.push(client(OWNER)),
        "closed" => {
            let close = request("2", "session/close", &json!({"sessionId": "s"}));
            sim.client_sends(OWNER, &close);
            sim.agent_answers(&json!({}));
        }
        _ => {}
    }
    if bob_works {
        let prompt = request("3", "session/prompt", &json!({"sessionId": "b"}));
        sim.client_sends(OTHER, &prompt);
    }
    if state == "being created" {
        sim.client_sends(OWNER, &request("1", "session/new", &json!({})));
    }
    sim.router.take_notices();
    sim.output.clients.clear();
    sim
}

/// What becomes of a client's message.
fn fate_of_client_message(state: &str, sender: u64, is_request: bool, place: usize) -> String {
    let mut sim = sim_with_roles(state, false);
    sim.output.agent.clear();
    let (title, method, params) = PLACES[place];
    let method = match (method, title, is_request) {
        ("schema", "`sessionId`", true) => "session/prompt",
        ("schema", "`sessionId`", false) => "session/cancel",
        ("schema", ..) => "mcp/message",
        (method, ..) => method,
    };
    let params: Value = serde_json::from_str(&params.replace('#', "s")).expect("JSON");
    let text = if is_request {
        request("9", method, &params)
    } else {
        notification(method, &params)
    };
    sim.client_sends(sender, &text);
    if !sim.output.agent.is_empty() {
        return "agent".to_owned();
    }
    match sim.output.clients.get(&client(sender)) {
        Some(_) => code(&sim.client_received(sender)).to_string(),
        None => "-".to_owned(),
    }
}

/// Who gets a message of the agent. Another session is named beside "s" if `with` says so.
fn receivers(
    (state, bob_works): (&str, bool),
    with: Option<&str>,
    is_request: bool,
    place: usize,
) -> String {
    let mut sim = sim_with_roles(state, bob_works);
    let creating = sim.agent_received()["id"].clone();
    sim.output.agent.clear();
    let (title, method, params) = PLACES[place];
    let method = match (method, title, is_request) {
        ("schema", "`sessionId`", true) => "session/request_permission",
        ("schema", "`sessionId`", false) => "session/update",
        ("schema", ..) => "mcp/message",
        (method, ..) => method,
    };
    let mut params: Value = serde_json::from_str(&params.replace('#', "s")).expect("JSON");
    if let Some(with) = with {
        params["_meta"]["alsoSessionId"] = json!(with);
    }
    let text = if is_request {
        request("\"r\"", method, &params)
    } else {
        notification(method, &params)
    };
    sim.agent_sends(&text);
    let mut who = roles_that_got(&mut sim, method);
    if who.is_empty() && state == "being created" && sim.output.agent.is_empty() {
        let answer = json!({"jsonrpc": "2.0", "id": creating, "result": {"sessionId": "s"}});
        sim.agent_sends(&answer.to_string());
        who = roles_that_got(&mut sim, method);
        who.iter_mut().for_each(|role| role.push_str(", later"));
    }
    if let Some(answer) = sim.output.agent.first() {
        assert!(who.is_empty() && is_request, "{answer}");
        let answer: Value = serde_json::from_str(answer).expect("JSON");
        assert_eq!(answer["id"], "r");
        return match code(&answer) {
            0 => "cancelled".to_owned(),
            code => code.to_string(),
        };
    }
    if who.is_empty() {
        "-".to_owned()
    } else {
        who.join(", ")
    }
}

/// The roles of the clients that have got a message of this method.
fn roles_that_got(sim: &mut Simulation, method: &str) -> Vec<String> {
    let got = std::mem::take(&mut sim.output.clients);
    let has_got = |number: u64| {
        let texts = got.get(&client(number)).into_iter().flatten();
        let mut messages = texts.map(|text| serde_json::from_str::<Value>(text).expect("JSON"));
        messages.any(|message| message["method"] == method)
    };
    let roles = ROLES.iter().filter(|(number, _)| has_got(*number));
    roles.map(|(_, role)| (*role).to_owned()).collect()
}

/// A table of Markdown whose last columns are the places. States with equal cells for the same sender or kind share a row.
fn table(heads: &[&str], rows: Vec<(&str, &str, Vec<String>)>) -> String {
    let titles = PLACES.iter().map(|(title, method, _)| match *method {
        "schema" => format!("schema: {title}"),
        "_x" => format!("other: {title}"),
        _ => format!("other: {title}"),
    });
    let heads: Vec<String> = heads
        .iter()
        .map(|head| (*head).to_owned())
        .chain(titles)
        .collect();
    let mut lines = vec![
        format!("| {} |", heads.join(" | ")),
        format!("|{}", "---|".repeat(heads.len())),
    ];
    let mut merged: Vec<(Vec<&str>, &str, Vec<String>)> = Vec::new();
    for (state, label, cells) in rows {
        let equal = merged
            .iter_mut()
            .find(|row| (row.1, &row.2) == (label, &cells));
        match equal {
            Some((states, ..)) => states.push(state),
            None => merged.push((vec![state], label, cells)),
        }
    }
    for (states, label, cells) in merged {
        let states = states.join("; ");
        lines.push(format!("| {states} | {label} | {} |", cells.join(" | ")));
    }
    lines.join("\n")
}

/// Checks that the documentation has this table.
fn check_document(table: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/protocols.md");
    let document = std::fs::read_to_string(path).expect("the documentation");
    assert!(
        document.contains(&format!("\n{table}\n")),
        "docs/protocols.md does not have this table:\n{table}"
    );
}

#[test]
fn what_becomes_of_a_clients_message_is_documented() {
    let mut rows = Vec::new();
    for state in STATES {
        for (sender, role) in ROLES {
            let has_role = !matches!(
                (state, sender),
                ("being created" | "never seen", OBSERVER | WATCHER)
            );
            if !has_role || (state, sender) == ("never seen", OWNER) {
                continue;
            }
            let fate = |place| fate_of_client_message(state, sender, true, place);
            let cells: Vec<_> = (0..PLACES.len()).map(fate).collect();
            for (place, cell) in cells.iter().enumerate() {
                // A notification reaches the agent if and only if a request does.
                let notified = fate_of_client_message(state, sender, false, place);
                assert_eq!(
                    notified == "agent",
                    cell == "agent",
                    "{state} {role} {place}"
                );
                assert!(notified == "agent" || notified == "-");
            }
            rows.push((state, role, cells));
        }
    }
    check_document(&table(&["the session is", "from"], rows));
}

#[test]
fn who_gets_a_message_of_the_agent_is_documented() {
    // The bug: only `params.sessionId` counted. A notification with Ada's session in `_meta` or in another place went to all
    // clients, and to Bob alone while his prompt ran.
    let mut rows = Vec::new();
    for state in STATES {
        for (kind, is_request) in [("notification", false), ("request", true)] {
            let bob_works = state != "being created";
            let got = |place| receivers((state, bob_works), None, is_request, place);
            rows.push((state, kind, (0..PLACES.len()).map(got).collect()));
        }
    }
    for (kind, is_request) in [("notification", false), ("request", true)] {
        let got = |place| receivers(("being created", true), None, is_request, place);
        let label = "being created, while another client has a turn";
        rows.push((label, kind, (0..PLACES.len()).map(got).collect()));
    }
    for (kind, is_request) in [("notification", false), ("request", true)] {
        let got = |place| receivers(("in use", true), Some("b"), is_request, place);
        let label = "in use, with another client's session in `_meta`";
        rows.push((label, kind, (0..PLACES.len()).map(got).collect()));
    }
    check_document(&table(&["the session is", "the agent's"], rows));
}

/// A simulation in which clients 1 and 2, of different principals, have the sessions "a" and "b".
fn sim_of_two() -> Simulation {
    sim_of_principals([named("ada"), named("bob")])
}

fn sim_of_principals(principals: [Principal; 2]) -> Simulation {
    let mut sim = Simulation::new();
    for ((number, name), principal) in [(1, "a"), (2, "b")].into_iter().zip(principals) {
        sim.join_as(number, principal);
        sim.session(number, name);
    }
    sim.clear();
    sim
}

#[test]
fn an_answer_that_names_another_clients_session_is_not_passed_on() {
    let mut sim = sim_of_two();
    for (result, is_passed) in [
        (json!({"sessions": ["a", "new"]}), true),
        (json!({"sessions": ["a", "b"]}), false),
        (json!({"x": [{"parentSessionId": "b"}]}), false),
        (json!({"_meta": {"sessionId": "b"}}), false),
        (json!({"content": {"sessionId": "b"}}), true),
    ] {
        sim.client_sends(1, &request("5", "_vendor/list", &json!({})));
        sim.agent_answers(&result);
        let received = sim.client_received(1);
        let want = if is_passed { 0 } else { -32603 };
        assert_eq!(code(&received), want, "{result}");
        assert_eq!(received["result"] == result, is_passed);
        assert_eq!(sim.router.figures().client_requests, 0);

        sim.clear();
        let ask = request("\"q\"", "_vendor/ask", &json!({"sessionId": "a"}));
        sim.agent_sends(&ask);
        let id = sim.client_received(1)["id"].clone();
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
        // Here, clients may name sessions that the server has never seen.
        sim.client_sends(1, &answer.to_string());
        let received = sim.agent_received();
        assert_eq!(received["id"], "q");
        assert_eq!(received["result"] == result, is_passed, "{result}");
        assert_eq!(code(&received), if is_passed { 0 } else { -32010 });
    }
    assert_eq!(sim.router.counters().crossing, 3);
    // An error of the agent may name sessions too.
    sim.client_sends(1, &request("6", "_vendor/list", &json!({})));
    let id = sim.agent_received()["id"].clone();
    let data = json!({"code": 1, "message": "no", "data": {"sessionId": "b"}});
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": id, "error": data}).to_string());
    assert_eq!(code(&sim.client_received(1)), -32603);
}

#[test]
fn initialize_names_no_session_of_another_client() {
    let mut sim = sim_of_two();
    sim.connect_as(3, named("eve"));
    let params = json!({"protocolVersion": 2, "_meta": {"x": {"sessionId": "a"}}});
    sim.client_sends(3, &request("1", "initialize", &params));
    assert_eq!(code(&sim.client_received(3)), -32010);
    assert!(sim.router.take_process_changes().is_empty());
    sim.hello(3, &json!({"protocolVersion": 2}));
    assert_eq!(sim.client_received(3)["result"]["protocolVersion"], 2);
}

#[test]
fn sessions_of_one_client_may_be_named_together() {
    for principals in [
        [named("ada"), named("bob")],
        [Principal::Nobody, Principal::Nobody],
    ] {
        let mut sim = sim_of_principals(principals);
        sim.session(1, "a2");
        sim.clear();
        let both = json!({"sessions": ["a", "a2", "never seen"]});
        sim.agent_sends(&notification("_vendor/x", &both));
        assert_eq!(sim.output.clients.len(), 1);
        assert_eq!(sim.client_received(1)["params"], both);
        sim.client_sends(
            1,
            &request("7", "_vendor/x", &json!({"sessions": ["a", "a2"]})),
        );
        assert_eq!(sim.agent_received()["method"], "_vendor/x");
        // A session that the client has closed is still its own.
        sim.client_sends(
            1,
            &request("8", "session/close", &json!({"sessionId": "a2"})),
        );
        sim.agent_answers(&json!({}));
        sim.clear();
        let parent = json!({"sessionId": "a", "_meta": {"parentSessionId": "a2"}});
        sim.agent_sends(&notification("session/update", &parent));
        assert_eq!(sim.client_received(1)["params"], parent);
        sim.clear();
        let parent = json!({"sessionId": "b", "_meta": {"parentSessionId": "a2"}});
        sim.agent_sends(&notification("session/update", &parent));
        assert!(
            sim.output.clients.is_empty(),
            "client 2 must not know of it"
        );
    }
}

#[test]
fn observers_do_not_learn_of_other_sessions() {
    let mut sim = sim_of_two();
    sim.session(1, "a2");
    sim.client_sends(1, &request("1", "session/load", &json!({"sessionId": "a"})));
    sim.agent_answers(&json!({}));
    let token = sim.client_received(1)["result"]["_meta"]["outrigger"]["watchToken"].clone();
    let attach = json!({"sessionId": "a", "_meta": {"outrigger": {"watchToken": token}}});
    sim.client_sends(2, &request("1", "session/attach", &attach));
    sim.clear();
    for (params, receivers) in [
        (json!({"sessionId": "a"}), 2),
        (json!({"sessionId": "a", "_meta": {"sessionId": "a"}}), 2),
        (json!({"sessionId": "a", "_meta": {"sessionId": "a2"}}), 1),
    ] {
        sim.agent_sends(&notification("session/update", &params));
        assert_eq!(sim.output.clients.len(), receivers, "{params}");
        sim.clear();
    }
}

#[test]
fn a_request_id_is_restored_beside_a_session_in_meta() {
    let mut sim = sim_of_two();
    sim.client_sends(1, &request("\"own\"", "_vendor/work", &json!({})));
    let upstream = sim.agent_received()["id"].clone();
    let params = json!({"requestId": upstream, "_meta": {"sessionId": "a"}});
    for text in [
        request("1", "mcp/message", &params),
        notification("_vendor/progress", &params),
    ] {
        sim.clear();
        sim.agent_sends(&text);
        assert_eq!(
            sim.client_received(1)["params"]["requestId"],
            "own",
            "{text}"
        );
    }
    // The session decides if the request is another client's.
    sim.clear();
    let params = json!({"requestId": upstream, "_meta": {"sessionId": "b"}});
    sim.agent_sends(&notification("_vendor/progress", &params));
    assert_eq!(sim.client_received(2)["params"]["requestId"], upstream);
    assert_eq!(sim.output.clients.len(), 1);
}
