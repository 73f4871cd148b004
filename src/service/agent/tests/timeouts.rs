//! Time limits of requests.

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

/// A simulation with both limits and the clients 1 and 2.
fn limited() -> Simulation {
    let mut limits = Simulation::new().router.limits();
    limits.request_timeout = Some(LIMIT);
    limits.answer_timeout = Some(LIMIT * 2);
    let mut sim = Simulation::with_limits(limits);
    sim.connect(1);
    sim.client_sends(1, &request("0", "initialize", &json!({})));
    sim.agent_answers(&json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}));
    sim.join_as(2, Principal::User(2));
    sim.clear();
    sim
}

impl Simulation {
    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        self.router.handle_timeout(self.now, &mut self.output);
    }
}

/// The bug: an agent that hung was never noticed, and load balancers sent it more clients.
#[test]
fn an_agent_is_silent_from_a_request_that_timed_out_until_its_next_message() {
    let mut sim = limited();
    sim.client_sends(1, &request("5", "x", &json!({})));
    let late = sim.agent_received()["id"].clone();
    sim.wait(LIMIT / 2);
    assert!(!sim.router.is_silent(0));
    sim.wait(LIMIT / 2);
    assert!(sim.router.is_silent(0) && !sim.router.is_silent(1));
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": late, "result": {}}).to_string());
    assert!(!sim.router.is_silent(0));
    // A prompt has no time limit, and other messages show that the agent lives.
    sim.session(1, "s");
    sim.client_sends(1, &request("6", "y", &json!({})));
    sim.wait(LIMIT);
    assert!(sim.router.is_silent(0));
    let update =
        json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s"}});
    sim.agent_sends(&update.to_string());
    assert!(!sim.router.is_silent(0));
    sim.client_sends(1, &request("7", "y", &json!({})));
    sim.wait(LIMIT);
    sim.router.handle_agent_exited(0, "{}", &mut sim.output);
    assert!(!sim.router.is_silent(0));
}

#[test]
fn a_request_that_the_agent_does_not_answer_fails_once() {
    let mut sim = limited();
    sim.session(1, "s");
    let started = sim.now;
    sim.client_sends(1, &request("5", "x", &json!({})));
    assert_eq!(sim.router.take_wakeup(), Some(started + LIMIT));
    let late = sim.agent_received()["id"].clone();
    sim.wait(LIMIT / 2);
    sim.client_sends(2, &request("6", "y", &json!({})));
    let prompt = json!({"sessionId": "s", "prompt": []});
    sim.client_sends(1, &request("7", "session/prompt", &prompt));
    sim.clear();

    sim.wait(LIMIT / 2);
    let failed = sim.client_received(1);
    assert_eq!((code(&failed), &failed["id"]), (-32014, &json!(5)));
    assert_eq!(failed["error"]["message"], "Timed out");
    assert_eq!(sim.output.clients.get(&client(2)), None);
    assert_eq!(sim.router.take_wakeup(), Some(started + LIMIT / 2 + LIMIT));

    sim.clear();
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": late, "result": {}}).to_string());
    assert!(
        sim.output.clients.is_empty(),
        "the late response is dropped"
    );
    sim.wait(LIMIT * 100);
    assert_eq!(code(&sim.client_received(2)), -32014);
    assert_eq!(
        sim.output.clients.get(&client(1)),
        None,
        "a prompt has no time limit"
    );
    assert_eq!(sim.router.counters().timed_out, 2);
    assert_eq!(sim.router.figures().client_requests, 1);
}

#[test]
fn a_session_that_is_created_too_late_belongs_to_its_principal() {
    let mut sim = limited();
    sim.client_sends(1, &request("5", "session/new", &json!({})));
    let late = sim.agent_received()["id"].clone();
    sim.wait(LIMIT);
    assert_eq!(code(&sim.client_received(1)), -32014);
    let created = json!({"jsonrpc": "2.0", "id": late, "result": {"sessionId": "s"}});
    sim.agent_sends(&created.to_string());
    sim.client_sends(2, &claim("6", "session/load", "s", None));
    assert_eq!(code(&sim.client_received(2)), -32010);
    sim.client_sends(1, &claim("7", "session/load", "s", None));
    assert_eq!(sim.agent_received()["method"], "session/load");

    sim.wait(LIMIT);
    assert_eq!(code(&sim.client_received(1)), -32014);
    assert_eq!(sim.router.owner_of("s"), None, "the claim is undone");
}

#[test]
fn a_question_that_a_client_does_not_answer_fails_once() {
    let mut sim = limited();
    sim.session(1, "s");
    sim.clear();
    let params = json!({"sessionId": "s"});
    sim.agent_sends(&request("\"q\"", "session/request_permission", &params));
    let upstream_id = sim.client_received(1)["id"].clone();
    sim.wait(LIMIT);
    assert!(sim.output.agent.is_empty());
    sim.wait(LIMIT);
    let failed = sim.agent_received();
    assert_eq!((code(&failed), &failed["id"]), (-32014, &json!("q")));
    let cancelled = sim.client_received(1);
    assert_eq!(cancelled["method"], "$/cancel_request");
    assert_eq!(cancelled["params"]["requestId"], upstream_id);

    sim.clear();
    let answer = json!({"jsonrpc": "2.0", "id": upstream_id, "result": {}});
    sim.client_sends(1, &answer.to_string());
    assert!(sim.output.agent.is_empty(), "the late answer is dropped");
    assert_eq!(sim.router.figures().agent_requests, 0);
}

#[test]
fn an_exit_of_the_agent_leaves_no_time_limit_behind() {
    let mut sim = limited();
    sim.session(1, "s");
    sim.client_sends(1, &request("5", "x", &json!({})));
    sim.agent_sends(&request(
        "1",
        "session/request_permission",
        &json!({"sessionId": "s"}),
    ));
    sim.router.handle_agent_exited(0, "{}", &mut sim.output);
    sim.clear();
    sim.wait(LIMIT * 4);
    assert!(sim.output.clients.is_empty() && sim.output.agent.is_empty());
}

#[test]
fn a_question_finds_the_client_whose_request_has_timed_out() {
    let mut sim = limited();
    sim.session(1, "s");
    sim.session(2, "t");
    sim.client_sends(1, &request("5", "session/list", &json!({})));
    sim.client_sends(1, &request("6", "session/new", &json!({})));
    sim.wait(LIMIT);
    let prompt = json!({"sessionId": "s", "prompt": []});
    sim.client_sends(1, &request("7", "session/prompt", &prompt));
    sim.clear();
    sim.agent_sends(&request("8", "_vendor/ask", &json!({})));
    assert_eq!(sim.client_received(1)["method"], "_vendor/ask");

    // Once it has left, the question may have been for it, and nobody else gets it.
    sim.disconnect(1);
    let prompt = json!({"sessionId": "t", "prompt": []});
    sim.client_sends(2, &request("7", "session/prompt", &prompt));
    sim.clear();
    sim.agent_sends(&request("9", "_vendor/ask", &json!({})));
    assert_eq!(code(&sim.agent_received()), -32600);
    assert!(sim.output.clients.is_empty());
}
