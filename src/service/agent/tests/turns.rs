//! Turns of version 2, in which `session/prompt` is answered at once, and clients that take a session over during a turn.

use super::*;

/// A simulation of version 2 in which client 1 has the session "s".
fn version_two() -> Simulation {
    let mut sim = Simulation::new();
    sim.connect_as(1, named("ada"));
    sim.hello(
        1,
        &json!({"protocolVersion": 2, "info": {"name": "x", "version": "1"}, "capabilities": {}}),
    );
    sim.session(1, "s");
    sim.clear();
    sim
}

impl Simulation {
    fn state(&mut self, state: &str) {
        let update = json!({"sessionUpdate": "state_update", "state": state});
        let params = json!({"sessionId": "s", "update": update});
        self.agent_sends(&notification("session/update", &params));
    }

    fn prompts(&mut self) {
        let prompt = json!({"sessionId": "s", "prompt": []});
        self.client_sends(1, &request("5", "session/prompt", &prompt));
    }
}

#[test]
fn a_turn_is_pending_until_the_session_is_idle() {
    let mut sim = version_two();
    assert!(!sim.router.is_busy(client(1)));
    sim.prompts();
    sim.agent_answers(&json!({"messageId": "m"}));
    assert_eq!(sim.client_received(1)["result"]["messageId"], "m");
    assert!(sim.router.is_busy(client(1)), "the prompt is only accepted");
    for state in ["running", "requires_action", "_custom", "running"] {
        sim.state(state);
        assert!(sim.router.is_busy(client(1)), "{state}");
    }
    sim.state("idle");
    assert!(!sim.router.is_busy(client(1)));

    // The whole turn may pass before the response.
    sim.prompts();
    let id = sim.agent_received()["id"].clone();
    sim.state("running");
    sim.state("idle");
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": id, "result": {"messageId": "m"}}).to_string());
    assert!(!sim.router.is_busy(client(1)));

    // A rejected prompt begins no turn. The agent may begin one by itself.
    sim.prompts();
    let id = sim.agent_received()["id"].clone();
    sim.agent_sends(
        &json!({"jsonrpc": "2.0", "id": id, "error": {"code": 1, "message": "no"}}).to_string(),
    );
    assert!(!sim.router.is_busy(client(1)));
    sim.state("running");
    assert!(sim.router.is_busy(client(1)));
}

#[test]
fn a_running_turn_is_cancelled_when_its_client_is_gone() {
    let mut sim = version_two();
    sim.prompts();
    sim.agent_answers(&json!({"messageId": "m"}));
    sim.clear();
    sim.disconnect(1);
    assert_eq!(sim.output.agent.len(), 1);
    assert_eq!(sim.agent_received()["method"], "session/cancel");
    assert_eq!(sim.agent_received()["params"]["sessionId"], "s");

    let mut sim = version_two();
    sim.state("running");
    sim.state("idle");
    sim.clear();
    sim.disconnect(1);
    assert!(sim.output.agent.is_empty());
}

#[test]
fn a_running_turn_goes_on_for_the_client_that_takes_its_session_over() {
    for succeeds in [true, false] {
        let mut sim = version_two();
        sim.connect_as(2, named("ada"));
        sim.hello(2, &json!({"protocolVersion": 2, "capabilities": {}}));
        sim.prompts();
        sim.agent_answers(&json!({"messageId": "m"}));
        sim.output.away.push(client(1));
        sim.client_sends(2, &claim("6", "session/resume", "s", None));
        let resume = sim.agent_received()["id"].clone();
        assert_eq!(sim.agent_received()["method"], "session/resume");
        sim.disconnect(1);
        assert_eq!(
            sim.agent_received()["method"],
            "session/resume",
            "no cancel"
        );
        if succeeds {
            sim.agent_sends(&json!({"jsonrpc": "2.0", "id": resume, "result": {}}).to_string());
            assert!(sim.router.is_busy(client(2)));
            sim.state("idle");
            assert!(!sim.router.is_busy(client(2)));
        } else {
            let no = json!({"code": 1, "message": "no"});
            sim.agent_sends(&json!({"jsonrpc": "2.0", "id": resume, "error": no}).to_string());
            assert_eq!(sim.agent_received()["method"], "session/cancel");
        }
    }
}

#[test]
fn an_exit_of_the_agent_ends_the_turn() {
    let mut sim = version_two();
    sim.prompts();
    sim.agent_answers(&json!({"messageId": "m"}));
    sim.clear();
    sim.router
        .handle_agent_exited(0, r#"{"code":1}"#, &mut sim.output);
    let update = &sim.client_received(1)["params"]["update"];
    assert_eq!(update["state"], "idle");
    assert_eq!(update["stopReason"], "error");
    assert_eq!(update["error"]["code"], -32012);
    assert!(!sim.router.is_busy(client(1)));
}

#[test]
fn elicitation_of_version_two_is_announced_in_capabilities() {
    for (capabilities, permitted) in [(json!({"elicitation": {}}), true), (json!({}), false)] {
        let mut sim = Simulation::new();
        sim.connect(1);
        sim.hello(
            1,
            &json!({"protocolVersion": 2, "capabilities": capabilities}),
        );
        sim.session(1, "s");
        sim.clear();
        sim.agent_sends(&request(
            "1",
            "elicitation/create",
            &json!({"sessionId": "s"}),
        ));
        assert_eq!(sim.output.clients.contains_key(&client(1)), permitted);
    }
}

#[test]
fn an_exit_during_a_takeover_is_told_to_the_client_that_keeps_the_session() {
    // The bug: the client whose claim failed was told, and the client that kept the session was not.
    let mut sim = version_two();
    sim.connect_as(2, named("ada"));
    sim.hello(2, &json!({"protocolVersion": 2, "capabilities": {}}));
    sim.prompts();
    sim.agent_answers(&json!({"messageId": "m"}));
    sim.output.away.push(client(1));
    sim.client_sends(2, &claim("6", "session/resume", "s", None));
    sim.clear();
    sim.router.handle_agent_exited(0, "{}", &mut sim.output);
    assert_eq!(
        sim.client_received(1)["params"]["update"]["stopReason"],
        "error"
    );
    assert_eq!(code(&sim.client_received(2)), -32012);
    assert_eq!(sim.output.clients[&client(2)].len(), 1);
}

fn prompt(id: &str) -> String {
    request(
        id,
        "session/prompt",
        &json!({"sessionId": "s", "prompt": []}),
    )
}

fn take(id: &str) -> String {
    let params = json!({"sessionId": "s", "_meta": {"outrigger": {"takeover": true}}});
    request(id, "session/load", &params)
}

/// A simulation in which client 1 has the session "s", and client 2 is the same person.
fn two_of_ada() -> Simulation {
    let (mut sim, _) = sim_with_session("live", named("ada"));
    sim.join_as(2, named("ada"));
    sim.clear();
    sim
}

/// The parsed messages that a client has received.
fn received(sim: &Simulation, number: u64) -> Vec<Value> {
    let messages = sim.output.clients.get(&client(number));
    let messages = messages.into_iter().flatten();
    let parse = |text: &String| serde_json::from_str(text).expect("JSON");
    messages.map(parse).collect()
}

#[test]
fn a_turn_and_its_permissions_go_on_for_the_new_client() {
    let mut sim = two_of_ada();
    sim.client_sends(1, &prompt("7"));
    let turn = sim.agent_received()["id"].clone();
    sim.client_sends(
        1,
        &request("8", "session/set_mode", &json!({"sessionId": "s"})),
    );
    let mode = sim.agent_received()["id"].clone();
    sim.agent_sends(&request(
        "\"p\"",
        "session/request_permission",
        &json!({"sessionId": "s"}),
    ));
    let question = sim.client_received(1)["id"].clone();
    sim.agent_sends(&request(
        "\"f\"",
        "fs/read_text_file",
        &json!({"sessionId": "s"}),
    ));
    sim.clear();

    sim.client_sends(2, &take("3"));
    let load = sim.agent_received()["id"].clone();
    assert!(
        !sim.output.clients.contains_key(&client(1)),
        "the old client learns of it only when the agent agrees"
    );
    sim.client_sends(1, &prompt("9"));
    assert_eq!(code(&sim.client_received(1)), -32010);
    sim.clear();
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": load, "result": null}).to_string());

    let told = received(&sim, 1);
    let failed: Vec<_> = told
        .iter()
        .map(|message| (code(message), &message["id"]))
        .collect();
    assert_eq!(
        failed,
        [(-32010, &json!(7)), (-32010, &json!(8)), (0, &Value::Null)]
    );
    assert_eq!(told[2]["method"], "_outrigger/session_taken_over");
    assert_eq!(told[2]["params"], json!({"sessionId": "s"}));
    let got = received(&sim, 2);
    assert_eq!(
        (&got[0]["method"], &got[0]["id"]),
        (&json!("session/request_permission"), &question)
    );
    assert_eq!(got[1]["id"], 3);
    assert!(sim.router.is_busy(client(2)) && !sim.router.is_busy(client(1)));

    // The old client can no longer answer, and the new one can.
    sim.clear();
    let answer = json!({"jsonrpc": "2.0", "id": question, "result": {}}).to_string();
    sim.client_sends(1, &answer);
    assert!(sim.output.agent.is_empty());
    sim.client_sends(2, &answer);
    assert_eq!(sim.agent_received()["id"], "p");
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": mode, "result": {}}).to_string());
    assert!(sim.output.clients.is_empty(), "nobody waits for it");

    let result = json!({"stopReason": "end_turn"});
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": turn, "result": result}).to_string());
    let ended = sim.client_received(2);
    assert_eq!(ended["method"], "_outrigger/turn_ended");
    assert_eq!(ended["params"], json!({"sessionId": "s", "result": result}));
    assert!(!sim.router.is_busy(client(2)));
    assert!(!sim.output.clients.contains_key(&client(1)));
}

#[test]
fn a_file_that_the_old_client_was_asked_for_is_refused_in_its_place() {
    let mut sim = Simulation::with(1);
    sim.disconnect(1);
    sim.connect_as(2, named("ada"));
    let hello = json!({"clientCapabilities": {"fs": {"readTextFile": true}}});
    sim.client_sends(2, &request("0", "initialize", &hello));
    sim.session(2, "s");
    sim.join_as(3, named("ada"));
    sim.agent_sends(&request(
        "\"f\"",
        "fs/read_text_file",
        &json!({"sessionId": "s"}),
    ));
    assert_eq!(sim.router.figures().agent_requests, 1);
    sim.client_sends(3, &take("3"));
    sim.agent_answers(&json!({}));
    assert_eq!(sim.agent_received()["id"], "f");
    assert_eq!(code(&sim.agent_received()), -32800);
    assert_eq!(sim.router.figures().agent_requests, 0);
}

#[test]
fn a_takeover_that_the_agent_refuses_changes_nothing() {
    let mut sim = two_of_ada();
    sim.client_sends(1, &prompt("7"));
    let turn = sim.agent_received()["id"].clone();
    sim.client_sends(2, &take("3"));
    let load = sim.agent_received()["id"].clone();
    sim.clear();
    let refused = json!({"jsonrpc": "2.0", "id": load, "error": {"code": 1, "message": "no"}});
    sim.agent_sends(&refused.to_string());
    assert_eq!(sim.router.owner_of("s"), Some(client(1)));
    assert!(!sim.router.has_session(client(2)));
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": turn, "result": {}}).to_string());
    assert_eq!(sim.client_received(1)["id"], 7);
}

#[test]
fn a_client_that_leaves_while_its_session_is_taken_over_does_not_end_the_turn() {
    for succeeds in [true, false] {
        let mut sim = two_of_ada();
        sim.client_sends(1, &prompt("7"));
        let turn = sim.agent_received()["id"].clone();
        sim.client_sends(2, &take("3"));
        let load = sim.agent_received()["id"].clone();
        sim.clear();
        sim.disconnect(1);
        assert!(sim.output.agent.is_empty(), "the turn is not cancelled");
        let answer = if succeeds {
            json!({"jsonrpc": "2.0", "id": load, "result": {}})
        } else {
            json!({"jsonrpc": "2.0", "id": load, "error": {"code": 1, "message": "no"}})
        };
        sim.agent_sends(&answer.to_string());
        if succeeds {
            assert_eq!(sim.router.owner_of("s"), Some(client(2)));
            sim.agent_sends(
                &json!({"jsonrpc": "2.0", "id": turn, "error": {"code": 5, "message": "x"}})
                    .to_string(),
            );
            let ended = sim.client_received(2);
            assert_eq!(ended["method"], "_outrigger/turn_ended");
            assert_eq!(ended["params"]["error"]["code"], 5);
        } else {
            assert_eq!(sim.router.owner_of("s"), None);
            assert_eq!(sim.agent_received()["method"], "session/cancel");
            assert_eq!(sim.router.figures().client_requests, 0);
        }
    }
}

#[test]
fn an_adopted_turn_is_cancelled_when_its_new_client_leaves() {
    let mut sim = two_of_ada();
    sim.client_sends(1, &prompt("7"));
    sim.client_sends(2, &take("3"));
    sim.agent_answers(&json!({}));
    sim.clear();
    sim.disconnect(2);
    assert_eq!(sim.agent_received()["method"], "session/cancel");

    let mut sim = two_of_ada();
    sim.client_sends(1, &prompt("7"));
    sim.client_sends(2, &take("3"));
    sim.agent_answers(&json!({}));
    sim.router.handle_agent_exited(0, "{}", &mut sim.output);
    let ended = sim.client_received(2);
    assert_eq!(ended["method"], "_outrigger/turn_ended");
    assert_eq!(ended["params"]["error"]["code"], -32012);
}

#[test]
fn the_old_client_may_take_its_session_back() {
    let mut sim = two_of_ada();
    sim.client_sends(2, &take("3"));
    sim.agent_answers(&json!({}));
    sim.client_sends(1, &claim("4", "session/load", "s", None));
    assert_eq!(code(&sim.client_received(1)), -32010);
    let why = sim.client_received(1)["error"]["data"].to_string();
    assert!(why.contains("takeover"), "{why}");
    sim.output.away.push(client(2));
    sim.client_sends(1, &claim("5", "session/load", "s", None));
    sim.agent_answers(&json!({}));
    assert_eq!(sim.router.owner_of("s"), Some(client(1)));
    assert_eq!(
        sim.client_received(2)["method"],
        "_outrigger/session_taken_over"
    );
}
