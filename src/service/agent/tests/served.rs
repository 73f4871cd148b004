//! Requests of the agent that the server answers in the place of a client, and the list of a client's own sessions.

use super::*;
use crate::service::agent::router::ServedError;

/// A simulation whose server has files and terminals. Client 1 asks for them and has the session "s".
fn serving() -> Simulation {
    let mut limits = Simulation::new().router.settings();
    limits.tools = ClientToolSet {
        read_files: true,
        write_files: true,
        terminals: true,
    };
    let mut sim = Simulation::with_limits(limits);
    sim.connect_as(1, named("ada"));
    sim.hello(1, &asking(json!({})));
    sim.session(1, "s");
    sim
}

/// The parameters of an `initialize` that asks for the server's tools.
fn asking(capabilities: Value) -> Value {
    let meta = json!({"outrigger": {"clientTools": true}});
    json!({"protocolVersion": 1, "clientCapabilities": capabilities, "_meta": meta})
}

fn ask(id: &str, method: &str) -> String {
    request(id, method, &json!({"sessionId": "s", "path": "/x"}))
}

#[test]
fn a_client_that_asks_for_tools_gets_those_that_it_does_not_have_itself() {
    let sim = serving();
    let hello: Value = serde_json::from_str(&sim.output.agent[0]).expect("JSON");
    let fs = json!({"readTextFile": true, "writeTextFile": true});
    let all = json!({"fs": fs, "terminal": true});
    assert_eq!(hello["params"]["clientCapabilities"], all);
    for (params, want, served) in [
        // An editor's own capabilities stay its own.
        (
            asking(json!({"fs": {"readTextFile": true}, "x": 1})),
            json!({"fs": fs, "terminal": true, "x": 1}),
            json!({"readTextFile": false, "writeTextFile": true, "terminal": true, "directory": null}),
        ),
        (
            json!({"protocolVersion": 1, "clientCapabilities": {}}),
            json!({}),
            Value::Null,
        ),
        // Version 2 has no such requests.
        (
            json!({"protocolVersion": 2, "_meta": {"outrigger": {"clientTools": true}}}),
            Value::Null,
            Value::Null,
        ),
        (
            json!({"protocolVersion": 1, "_meta": {"outrigger": {"clientTools": true}}}),
            all.clone(),
            json!({"readTextFile": true, "writeTextFile": true, "terminal": true, "directory": null}),
        ),
    ] {
        let mut sim = serving();
        let before = sim.output.agent.len();
        sim.join_with(2, &params);
        let told = &sim.client_received(2)["result"]["_meta"]["outrigger"]["clientTools"];
        assert_eq!(told, &served, "{params}");
        // A client of the same kind shares the process, which does not get another message.
        if let Some(hello) = sim.output.agent.get(before) {
            let hello: Value = serde_json::from_str(hello).expect("JSON");
            assert_eq!(hello["params"]["clientCapabilities"], want, "{params}");
        }
    }
}

impl Simulation {
    fn join_with(&mut self, number: u64, params: &Value) {
        self.connect_as(number, named("ada"));
        self.hello(number, params);
    }
}

#[test]
fn the_server_answers_in_the_place_of_the_client_and_once() {
    let mut sim = serving();
    sim.clear();
    for (at, method) in ["fs/read_text_file", "fs/write_text_file", "terminal/create"]
        .into_iter()
        .enumerate()
    {
        sim.agent_sends(&ask(&format!("\"a{at}\""), method));
        let (id, served, has_session) = sim.output.served.pop().expect("it is served");
        assert_eq!((&*served, has_session), (method, true));
        assert!(sim.output.clients.is_empty(), "the client gets nothing");
        let done = Ok(r#"{"x":1}"#.to_owned());
        sim.router.handle_served(id, &done, &mut sim.output);
        assert_eq!(
            sim.agent_received(),
            json!({"jsonrpc": "2.0", "id": format!("a{at}"), "result": {"x": 1}})
        );
        let count = sim.output.agent.len();
        sim.router.handle_served(id, &done, &mut sim.output);
        assert_eq!(sim.output.agent.len(), count);
    }
    // A question for a person is still the client's.
    sim.agent_sends(&request(
        "9",
        "session/request_permission",
        &json!({"sessionId": "s", "options": []}),
    ));
    assert_eq!(
        sim.client_received(1)["method"],
        "session/request_permission"
    );
    assert!(sim.output.served.is_empty());
}

#[test]
fn what_the_server_does_ends_with_the_client_and_goes_on_with_its_successor() {
    let mut sim = serving();
    sim.agent_sends(&ask("5", "terminal/wait_for_exit"));
    let id = sim.output.served[0].0;
    // The same person comes back on another connection, which asks for the tools, too.
    sim.join_with(2, &asking(json!({})));
    let claim = json!({"sessionId": "s", "_meta": {"outrigger": {"takeover": true}}});
    sim.client_sends(2, &request("1", "session/load", &claim));
    sim.agent_answers(&json!({}));
    assert_eq!(sim.router.owner_of("s"), Some(client(2)));
    sim.disconnect(1);
    sim.clear();
    let failed = Err(ServedError::not_found("gone"));
    sim.router.handle_served(id, &failed, &mut sim.output);
    let answer = sim.agent_received();
    assert_eq!((&answer["id"], code(&answer)), (&json!(5), -32002));
    // Without a successor, the agent is told at once that the client is gone.
    sim.agent_sends(&ask("6", "terminal/wait_for_exit"));
    sim.disconnect(2);
    assert_eq!(code(&sim.agent_received()), -32800);
}

#[test]
fn a_client_lists_its_own_sessions_in_pages() {
    let mut limits = Simulation::new().router.settings();
    (limits.sessions, limits.all_sessions) = (1000, 1000);
    let mut sim = Simulation::with_limits(limits);
    for (number, name) in [(1, "ada"), (2, "bob")] {
        sim.join_as(number, named(name));
    }
    for at in 0..450 {
        let number = 1 + u64::from(at % 3 == 2);
        sim.session(number, &format!("s{at:04}"));
    }
    let mut all = Vec::new();
    let mut cursor = Value::Null;
    loop {
        sim.client_sends(
            1,
            &request("1", "_outrigger/sessions", &json!({"cursor": cursor})),
        );
        let page = sim.client_received(1)["result"].clone();
        let sessions = page["sessions"].as_array().expect("a list").clone();
        assert!((1..=200).contains(&sessions.len()));
        all.extend(sessions);
        cursor = page["nextCursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    let own = (0..450).filter(|at| at % 3 < 2);
    let want: Vec<Value> = own
        .map(|at| json!({"sessionId": format!("s{at:04}")}))
        .collect();
    assert_eq!(all, want);
    sim.client_sends(
        1,
        &request("2", "_outrigger/sessions", &json!({"cursor": 7})),
    );
    assert_eq!(code(&sim.client_received(1)), -32602);
}
