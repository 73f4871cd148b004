//! What an agent says about a session before its response to the request that creates it.

use super::*;

const WAIT: Duration = Duration::from_secs(30);

fn update(session: &str, x: u64) -> String {
    notification("session/update", &json!({"sessionId": session, "x": x}))
}

fn ask(id: u64, session: &str) -> String {
    let params = json!({"sessionId": session});
    request(&id.to_string(), "session/request_permission", &params)
}

fn answer(id: &Value, result: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()
}

fn received(sim: &Simulation, number: u64) -> Vec<Value> {
    let texts = sim.output.clients.get(&client(number));
    let texts = texts.into_iter().flatten();
    texts
        .map(|text| serde_json::from_str(text).expect("JSON"))
        .collect()
}

/// A client asks for a new session. Returns the upstream id.
fn create(sim: &mut Simulation, number: u64, id: &str) -> Value {
    sim.client_sends(number, &request(id, "session/new", &json!({})));
    sim.agent_received()["id"].clone()
}

/// Two clients wait for new sessions, and a question of the agent was refused.
fn single() -> (Simulation, Value, Value) {
    let mut sim = Simulation::with(4);
    let first = create(&mut sim, 1, "1");
    let second = create(&mut sim, 2, "2");
    sim.agent_sends(&ask(7, "s"));
    assert_eq!(code(&sim.agent_received()), -32600);
    sim.clear();
    (sim, first, second)
}

fn wait(sim: &mut Simulation, time: Duration) {
    sim.now = sim.now + time;
    sim.router.handle_timeout(sim.now, &mut sim.output);
}

#[test]
fn a_question_before_the_response_reaches_the_only_client_that_waits_for_a_session() {
    // The bug: the question waited for the response, and the agent waited for the answer.
    for create in ["session/new", "session/fork"] {
        for method in [
            "session/request_permission",
            "fs/read_text_file",
            "_vendor/ask",
        ] {
            let mut sim = Simulation::with(2);
            sim.session(1, "old");
            sim.clear();
            sim.client_sends(1, &request("9", create, &json!({"sessionId": "old"})));
            let created = sim.agent_received()["id"].clone();
            sim.agent_sends(&request("7", method, &json!({"sessionId": "new"})));
            let asked = sim.client_received(1);
            assert_eq!(asked["method"], method, "{create}");
            sim.clear();
            sim.client_sends(1, &answer(&asked["id"], &json!({"sessionId": "new"})));
            assert_eq!(sim.agent_received()["id"], 7, "{create} {method}");
            assert_eq!(sim.agent_received()["result"]["sessionId"], "new");
            sim.agent_sends(&answer(&created, &json!({"sessionId": "new"})));
            assert_eq!(sim.client_received(1)["id"], 9);
            assert_eq!(sim.router.owner_of("new"), Some(client(1)));
        }
    }
}

#[test]
fn a_question_binds_the_session_id_to_the_request() {
    let mut sim = Simulation::with(2);
    let created = create(&mut sim, 1, "1");
    sim.agent_sends(&ask(7, "s"));
    // Another client's session cannot get the id.
    let other = create(&mut sim, 2, "2");
    sim.agent_sends(&answer(&other, &json!({"sessionId": "s"})));
    assert_eq!(code(&sim.client_received(2)), -32603);
    sim.agent_sends(&ask(8, "other"));
    assert_eq!(
        code(&sim.agent_received()),
        -32600,
        "it is not that session"
    );
    sim.agent_sends(&answer(&created, &json!({"sessionId": "t"})));
    assert_eq!(
        code(&sim.client_received(1)),
        -32603,
        "the agent must create the session that it has asked about"
    );
    assert_eq!(
        (sim.router.owner_of("s"), sim.router.owner_of("t")),
        (None, None)
    );
    // The question was for the client, whatever became of the session.
    let asked = received(&sim, 1)[0]["id"].clone();
    sim.client_sends(1, &answer(&asked, &json!({})));
    assert_eq!(sim.agent_received()["id"], 7);

    // One client may create several sessions. If one fails, nobody knows which one was meant.
    let mut sim = Simulation::with(1);
    let (first, second) = (create(&mut sim, 1, "1"), create(&mut sim, 1, "2"));
    sim.agent_sends(&ask(7, "s"));
    let failed = json!({"jsonrpc": "2.0", "id": first, "error": {"code": 1, "message": "no"}});
    sim.agent_sends(&failed.to_string());
    sim.agent_sends(&answer(&second, &json!({"sessionId": "t"})));
    assert_eq!(sim.router.owner_of("t"), Some(client(1)));
}

#[test]
fn notifications_before_the_response_reach_the_only_client_at_once_and_are_in_the_history() {
    let mut sim = Simulation::with(2);
    sim.session(2, "other");
    sim.clear();
    let created = create(&mut sim, 1, "1");
    sim.agent_sends(&update("s", 1));
    assert_eq!(sim.client_received(1)["params"]["x"], 1);
    // It binds nothing: the agent may speak of a session that it has ended long ago.
    sim.agent_sends(&update("stale", 2));
    // But what one client has seen cannot become another client's.
    let other = create(&mut sim, 2, "2");
    sim.agent_sends(&answer(&other, &json!({"sessionId": "s"})));
    assert_eq!(code(&sim.client_received(2)), -32603);
    sim.agent_sends(&answer(&created, &json!({"sessionId": "s"})));
    assert_eq!(sim.router.owner_of("s"), Some(client(1)));
    assert!(sim.router.figures().history > 0);
}

#[test]
fn a_question_that_may_mean_several_clients_is_refused() {
    let refused = |sim: &mut Simulation, why: &str| {
        sim.clear();
        sim.agent_sends(&ask(7, "s"));
        assert_eq!(code(&sim.agent_received()), -32600);
        let data = sim.agent_received()["error"]["data"].clone();
        assert!(
            data.as_str().is_some_and(|data| data.contains(why)),
            "{data}"
        );
        assert!(sim.output.clients.is_empty());
    };
    let mut sim = Simulation::with(2);
    create(&mut sim, 1, "1");
    create(&mut sim, 2, "2");
    refused(&mut sim, "more than one client");

    // The session of a client that has left may still be created.
    let mut sim = Simulation::with(2);
    create(&mut sim, 2, "2");
    sim.disconnect(2);
    create(&mut sim, 1, "1");
    refused(&mut sim, "more than one client");

    let mut sim = Simulation::with(2);
    sim.session(2, "other");
    let prompt = json!({"sessionId": "other", "prompt": []});
    sim.client_sends(2, &request("3", "session/prompt", &prompt));
    create(&mut sim, 1, "1");
    refused(&mut sim, "a turn of another client");

    let mut sim = Simulation::new();
    sim.join_as(1, named("ada"));
    sim.join_as(2, named("bob"));
    sim.session(2, "s");
    sim.client_sends(
        2,
        &request("3", "session/close", &json!({"sessionId": "s"})),
    );
    sim.agent_answers(&json!({}));
    create(&mut sim, 1, "1");
    refused(&mut sim, "belongs to another client");
}

#[test]
fn after_a_refused_question_sessions_are_created_for_one_client_at_a_time() {
    let (mut sim, first, second) = single();
    for number in [3, 4] {
        sim.client_sends(number, &request("5", "session/new", &json!({})));
    }
    sim.client_sends(1, &request("6", "session/new", &json!({})));
    assert!(
        sim.output.agent.is_empty(),
        "they wait, also behind each other"
    );
    assert!(sim.router.is_busy(client(3)));
    sim.agent_sends(&answer(&first, &json!({"sessionId": "a"})));
    assert!(sim.output.agent.is_empty());
    sim.agent_sends(&answer(&second, &json!({"sessionId": "b"})));
    assert_eq!(sim.output.agent.len(), 1);
    sim.agent_sends(&ask(8, "c"));
    assert_eq!(
        sim.client_received(3)["method"],
        "session/request_permission"
    );
    // A client that leaves is not waited for.
    sim.disconnect(4);
    sim.agent_answers(&json!({"sessionId": "c"}));
    assert_eq!(sim.output.agent.len(), 2);
    sim.agent_answers(&json!({"sessionId": "d"}));
    assert_eq!(sim.client_received(1)["id"], 6);
    assert_eq!(sim.router.owner_of("d"), Some(client(1)));
}

#[test]
fn a_request_that_waits_for_its_turn_ends_in_each_way_that_requests_end() {
    let waiting = || {
        let (mut sim, ..) = single();
        sim.client_sends(3, &request("5", "session/new", &json!({})));
        assert!(sim.output.clients.is_empty());
        sim
    };
    let mut sim = waiting();
    assert_eq!(sim.router.take_wakeup(), Some(sim.now + WAIT));
    wait(&mut sim, WAIT);
    assert_eq!(code(&sim.client_received(3)), -32014);

    let mut sim = waiting();
    sim.client_sends(
        3,
        &notification("$/cancel_request", &json!({"requestId": 5})),
    );
    assert_eq!(code(&sim.client_received(3)), -32800);
    assert!(sim.output.agent.is_empty());

    let mut sim = waiting();
    sim.router.handle_agent_exited(0, "{}", &mut sim.output);
    assert_eq!(code(&sim.client_received(3)), -32012);

    let mut sim = waiting();
    sim.router.drain(&mut sim.output);
    assert_eq!(code(&sim.client_received(3)), -32015);

    let mut sim = waiting();
    for id in 0..20 {
        sim.client_sends(3, &request(&id.to_string(), "session/new", &json!({})));
    }
    assert_eq!(
        code(&sim.client_received(3)),
        -32013,
        "their number is limited"
    );
    assert_eq!(received(&sim, 3).len(), 5);
}

#[test]
fn notifications_wait_for_the_response_while_several_clients_may_be_meant() {
    let two = || {
        let mut sim = Simulation::with(2);
        let ids = (create(&mut sim, 1, "1"), create(&mut sim, 2, "2"));
        sim.clear();
        (sim, ids)
    };
    let numbers = |sim: &Simulation, number| -> Vec<Value> {
        let received = received(sim, number).into_iter();
        received
            .map(|message| message["params"]["x"].clone())
            .collect()
    };
    let (mut sim, (first, second)) = two();
    for x in 0..70 {
        sim.agent_sends(&update("s", x));
    }
    sim.agent_sends(&update("unknown", 99));
    assert!(sim.output.clients.is_empty());
    sim.agent_sends(&answer(&first, &json!({"sessionId": "s"})));
    let after = numbers(&sim, 1).split_off(1);
    assert_eq!(
        json!(after),
        json!((6..70).collect::<Vec<_>>()),
        "the last 64"
    );
    // Once only one client is left, it gets what has waited, in order.
    sim.agent_sends(&update("unknown", 100));
    assert_eq!(json!(numbers(&sim, 2)), json!([99, 100]));
    sim.agent_sends(&answer(&second, &json!({"sessionId": "unknown"})));
    assert_eq!(received(&sim, 2).len(), 3);

    let (mut sim, (first, _)) = two();
    sim.agent_sends(&update("s", 1));
    wait(&mut sim, WAIT);
    sim.agent_sends(&answer(&first, &json!({"sessionId": "s"})));
    assert_eq!(received(&sim, 1).len(), 1, "they wait for a limited time");

    let (mut sim, _) = two();
    sim.agent_sends(&update("s", 1));
    sim.agent_sends(&update("s", 2));
    sim.disconnect(1);
    sim.disconnect(2);
    assert_eq!(sim.router.counters().dropped, 2);
}
