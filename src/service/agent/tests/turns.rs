//! Turns of version 2, in which `session/prompt` is answered at once.

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
