//! The limits of the router, and the time limits of requests.

use super::*;

#[test]
fn each_client_has_its_own_limits() {
    let mut sim = Simulation::with(2);
    sim.session(1, "s");
    for _ in 0..16 {
        sim.client_sends(1, &request("1", "x", &json!({})));
    }
    assert_eq!(sim.router.figures().client_requests, 16);
    sim.client_sends(1, &request("1", "x", &json!({})));
    assert_eq!(code(&sim.client_received(1)), -32013);
    sim.client_sends(2, &request("1", "x", &json!({})));
    assert_eq!(
        sim.router.figures().client_requests,
        17,
        "another client is not affected"
    );
    for id in 0..9 {
        sim.agent_sends(&request(
            &id.to_string(),
            "session/request_permission",
            &json!({"sessionId": "s"}),
        ));
    }
    assert_eq!(sim.router.figures().agent_requests, 8);
    assert_eq!(code(&sim.agent_received()), -32013);
    for name in 0..8 {
        sim.client_sends(2, &request("1", "session/new", &json!({})));
        sim.agent_answers(&json!({"sessionId": format!("n{name}")}));
    }
    sim.client_sends(2, &request("1", "session/new", &json!({})));
    assert_eq!(code(&sim.client_received(2)), -32013);
}

#[test]
fn a_long_message_is_refused_unless_it_is_a_prompt() {
    let mut sim = Simulation::with(1);
    sim.session(1, "s");
    sim.output.max_json = 2000;
    sim.clear();
    let long = json!({"sessionId": "s", "x": "x".repeat(2000)});
    sim.client_sends(1, &request("7", "session/set_mode", &long));
    let refused = sim.client_received(1);
    assert_eq!((code(&refused), &refused["id"]), (-32600, &json!(7)));
    sim.client_sends(1, &notification("session/cancel", &long));
    assert!(sim.output.agent.is_empty() && sim.router.figures().client_requests == 0);
    // The agent gets an error in place of a long answer.
    sim.agent_sends(&request(
        "\"q\"",
        "fs/read_text_file",
        &json!({"sessionId": "s"}),
    ));
    let id = sim.client_received(1)["id"].clone();
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": {"content": "x".repeat(2000)}});
    sim.client_sends(1, &answer.to_string());
    let answer = sim.agent_received();
    assert_eq!((code(&answer), &answer["id"]), (-32603, &json!("q")));
    assert_eq!(sim.router.figures().agent_requests, 0);
    // A prompt carries images.
    sim.client_sends(1, &request("8", "session/prompt", &long));
    assert_eq!(sim.agent_received()["method"], "session/prompt");
}

#[test]
fn the_memory_of_a_pending_request_is_limited() {
    // The bug: `params.sessionId` of any length was kept for each request, so 100 requests took 1.5 GB.
    let long = "x".repeat(100_000);
    let mut sim = Simulation::jsonrpc(1);
    sim.client_sends(1, &request("1", "tools/call", &json!({"sessionId": long})));
    sim.agent_sends(&request("1", "tools/call", &json!({"sessionId": long})));
    sim.agent_sends(&request(&json!(long).to_string(), "x", &json!({})));
    assert_eq!(
        code(&sim.agent_received()),
        -32600,
        "the agent's ids are limited too"
    );
    assert_eq!(
        (
            sim.router.figures().client_requests,
            sim.router.figures().agent_requests
        ),
        (1, 1)
    );
    assert!(
        sim.router.kept_for_requests() < 100,
        "{}",
        sim.router.kept_for_requests()
    );
    let mut sim = Simulation::with(1);
    for method in ["session/load", "session/prompt", "_vendor/x"] {
        sim.client_sends(1, &request("1", method, &json!({"sessionId": long})));
        assert_eq!(code(&sim.client_received(1)), -32010);
    }
    assert_eq!(sim.router.figures().client_requests, 0);
}

#[test]
fn a_full_table_rejects_new_sessions_and_keeps_all_others() {
    // The bug: 65 clients with 256 new sessions each pushed a session out of the table, and then any client could load it.
    let mut sim = Simulation::with(4);
    let new = |id: u64| request(&id.to_string(), "session/new", &json!({}));
    // Sessions that are being created count, even after their client has disconnected.
    for id in 1..=8 {
        sim.client_sends(1, &new(id));
    }
    sim.clear();
    sim.client_sends(1, &new(9));
    assert_eq!(
        code(&sim.client_received(1)),
        -32013,
        "8 sessions are being created"
    );
    sim.disconnect(1);
    for (number, count) in [(2, 8), (3, 4)] {
        for at in 0..count {
            sim.session(number, &format!("s{number}-{at}"));
        }
    }
    for text in [new(100), claim("101", "session/load", "old", None)] {
        sim.client_sends(4, &text);
        assert_eq!(
            code(&sim.client_received(4)),
            -32013,
            "20 sessions exist or are being created"
        );
    }
    sim.disconnect(2);
    sim.client_sends(4, &new(102));
    assert_eq!(
        code(&sim.client_received(4)),
        -32013,
        "detached sessions are kept"
    );
    sim.client_sends(4, &claim("103", "session/load", "s2-0", None));
    sim.agent_answers(&json!({}));
    assert_eq!(
        sim.router.owner_of("s2-0"),
        Some(client(4)),
        "detached sessions can be loaded"
    );
    sim.now = sim.now + GRACE;
    sim.router.handle_timeout(sim.now, &mut sim.output);
    assert_eq!(
        (
            sim.router.figures().sessions,
            sim.router.figures().ended_sessions
        ),
        (5, 7)
    );
    sim.session(4, "one more");
}

#[test]
fn when_the_records_are_full_unknown_sessions_cannot_be_loaded() {
    let mut sim = Simulation::with(1);
    for at in 0..30 {
        sim.session(1, &format!("s{at}"));
        sim.client_sends(
            1,
            &request(
                "2",
                "session/close",
                &json!({"sessionId": format!("s{at}")}),
            ),
        );
        sim.agent_answers(&json!({}));
    }
    assert_eq!(sim.router.figures().ended_sessions, 30);
    sim.client_sends(1, &claim("3", "session/load", "old", None));
    assert_eq!(code(&sim.client_received(1)), -32010);
    sim.client_sends(1, &request("4", "session/list", &json!({})));
    sim.agent_answers(&json!({"sessions": [{"sessionId": "old"}, {"sessionId": "s3"}]}));
    assert_eq!(
        sim.client_received(1)["result"]["sessions"],
        json!([{"sessionId": "s3"}])
    );
    // The next ended session gets no record, so no client can load it.
    sim.session(1, "unrecorded");
    sim.client_sends(
        1,
        &request("5", "session/close", &json!({"sessionId": "unrecorded"})),
    );
    sim.agent_answers(&json!({}));
    sim.client_sends(1, &claim("6", "session/load", "s3", None));
    sim.agent_answers(&json!({}));
    assert_eq!(sim.router.owner_of("s3"), Some(client(1)));
    sim.client_sends(1, &claim("7", "session/load", "unrecorded", None));
    assert_eq!(code(&sim.client_received(1)), -32010);
}

#[test]
fn in_a_full_table_the_session_whose_client_left_first_loses_its_place() {
    let mut sim = Simulation::with(3);
    for name in 0..8 {
        sim.session(1, &format!("a{name}"));
    }
    sim.disconnect(1);
    sim.now = sim.now + Duration::from_secs(1);
    for name in 0..8 {
        sim.session(2, &format!("b{name}"));
    }
    for name in 0..6 {
        sim.session(3, &format!("c{name}"));
    }
    assert_eq!(sim.router.owner_of("b7"), Some(client(2)));
    let kept = (
        sim.router.figures().sessions,
        sim.router.figures().ended_sessions,
    );
    assert_eq!(kept, (14, 8), "those of client 1 left the table together");
    sim.client_sends(3, &claim("5", "session/load", "a0", None));
    assert_eq!(sim.agent_received()["method"], "session/load");
}

const LIMIT: Duration = Duration::from_secs(30);

/// A simulation with both limits and the clients 1 and 2.
fn limited() -> Simulation {
    let mut limits = Simulation::new().router.settings();
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
