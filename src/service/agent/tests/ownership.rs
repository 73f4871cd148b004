//! Which client may use, see and get the messages of a session.

use super::*;

#[test]
fn the_agents_messages_reach_only_the_sessions_owner() {
    for method in AGENT_METHODS {
        let mut sim = Simulation::with(3);
        sim.session(1, "a");
        sim.session(2, "b");
        sim.clear();
        sim.agent_sends(&notification(method, &json!({"sessionId": "b", "x": 1})));
        assert_eq!(
            sim.output.clients.keys().copied().collect::<Vec<_>>(),
            [client(2)],
            "{method}"
        );
        sim.agent_sends(&notification(method, &json!({"sessionId": "unknown"})));
        assert_eq!(sim.output.clients[&client(2)].len(), 1);

        // A request gets an upstream id, and only its receiver can answer it.
        sim.clear();
        sim.agent_sends(&request("\"r\"", method, &json!({"sessionId": "b"})));
        if matches!(method, "terminal/create" | "elicitation/create") {
            assert_eq!(
                code(&sim.agent_received()),
                -32601,
                "the client has not announced {method}"
            );
            assert!(sim.output.clients.is_empty());
            continue;
        }
        let upstream_id = sim.client_received(2)["id"].clone();
        let answer = json!({"jsonrpc": "2.0", "id": upstream_id, "result": {"ok": 1}}).to_string();
        sim.client_sends(1, &answer);
        sim.client_sends(3, &answer);
        assert!(
            sim.output.agent.is_empty(),
            "other clients cannot answer {method}"
        );
        sim.client_sends(2, &answer);
        assert_eq!(
            sim.agent_received(),
            json!({"jsonrpc": "2.0", "id": "r", "result": {"ok": 1}})
        );
        sim.client_sends(2, &answer);
        assert_eq!(sim.output.agent.len(), 1, "it can be answered once");
    }
}

#[test]
fn when_a_client_disconnects_its_requests_are_cancelled_and_removed() {
    let mut sim = Simulation::with(2);
    sim.session(1, "s");
    sim.session(1, "idle");
    sim.session(2, "t");
    sim.client_sends(
        1,
        &request("5", "session/prompt", &json!({"sessionId": "s"})),
    );
    let prompt = sim.agent_received()["id"].clone();
    sim.agent_sends(&request(
        "100",
        "session/request_permission",
        &json!({"sessionId": "s"}),
    ));
    sim.agent_sends(&request(
        "101",
        "fs/read_text_file",
        &json!({"sessionId": "s"}),
    ));
    sim.clear();
    sim.disconnect(1);
    let lines: Vec<Value> = sim
        .output
        .agent
        .iter()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines.contains(
        &json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}})
    ));
    assert!(lines.contains(
        &json!({"jsonrpc": "2.0", "id": 100, "result": {"outcome": {"outcome": "cancelled"}}})
    ));
    let gone = lines
        .iter()
        .find(|line| line["id"] == 101)
        .expect("an answer");
    assert_eq!(
        (code(gone), &gone["error"]["message"]),
        (-32800, &json!("Client disconnected"))
    );

    sim.clear();
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": prompt, "result": {}}).to_string());
    sim.agent_sends(&notification("session/update", &json!({"sessionId": "s"})));
    sim.agent_sends(&request(
        "102",
        "session/request_permission",
        &json!({"sessionId": "s"}),
    ));
    assert!(sim.output.clients.is_empty(), "no client receives anything");
    assert_eq!(
        sim.agent_received()["result"]["outcome"]["outcome"],
        "cancelled",
        "the agent gets an answer at once"
    );
    assert_eq!(
        (
            sim.router.figures().client_requests,
            sim.router.figures().agent_requests
        ),
        (0, 0)
    );
}

#[test]
fn a_list_shows_a_client_its_own_and_unknown_sessions() {
    let mut sim = Simulation::with(2);
    sim.session(1, "mine");
    sim.session(2, "theirs");
    sim.client_sends(1, &request("4", "session/list", &json!({})));
    let id = sim.agent_received()["id"].clone();
    let answer = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"sessions":[ {{"sessionId":"theirs"}}, {{"sessionId" : "mine","x":[1]}},{{"sessionId":"old"}}],"nextCursor":"c"}}}}"#
    );
    sim.agent_sends(&answer);
    let got = sim.output.clients[&client(1)]
        .last()
        .expect("an answer")
        .clone();
    assert_eq!(
        got,
        r#"{"jsonrpc":"2.0","id":4,"result":{"sessions":[{"sessionId" : "mine","x":[1]},{"sessionId":"old"}],"nextCursor":"c"}}"#
    );
}

#[test]
fn a_closed_session_cannot_be_used() {
    let mut sim = Simulation::with(1);
    sim.session(1, "s");
    sim.client_sends(
        1,
        &request("4", "session/close", &json!({"sessionId": "s"})),
    );
    sim.agent_answers(&json!({}));
    assert_eq!(sim.router.figures().sessions, 0);
    sim.client_sends(
        1,
        &request("5", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(
        code(&sim.client_received(1)),
        -32010,
        "the closed session is denied"
    );
}

#[test]
fn an_agent_cannot_give_one_clients_session_to_another() {
    let mut sim = Simulation::with(2);
    sim.session(1, "s");
    sim.client_sends(2, &request("1", "session/new", &json!({})));
    sim.agent_answers(&json!({"sessionId": "s"}));
    assert_eq!(code(&sim.client_received(2)), -32603);
    sim.clear();
    sim.agent_sends(&notification("session/update", &json!({"sessionId": "s"})));
    assert_eq!(
        sim.output.clients.keys().copied().collect::<Vec<_>>(),
        [client(1)]
    );
}

#[test]
fn after_the_agent_exits_sessions_still_belong_to_their_clients() {
    let mut sim = Simulation::with(2);
    sim.session(1, "s");
    sim.router.handle_agent_exited(0, "{}", &mut sim.output);
    sim.router.handle_agent_started(sim.now, 0, &mut sim.output);
    sim.agent_answers(&json!({"protocolVersion": 1}));
    sim.client_sends(2, &claim("1", "session/load", "s", None));
    assert_eq!(code(&sim.client_received(2)), -32010);
    sim.client_sends(
        1,
        &request("2", "session/prompt", &json!({"sessionId": "s"})),
    );
    // The bug: the error was "Access denied", and clients did not know that they could load the session.
    let received = sim.client_received(1);
    assert_eq!(
        (code(&received), &received["error"]["message"]),
        (-32002, &json!("Session lost")),
        "the new agent does not have the session"
    );
    sim.client_sends(1, &claim("3", "session/load", "s", None));
    sim.agent_answers(&json!({}));
    sim.clear();
    sim.client_sends(
        1,
        &request("4", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(sim.agent_received()["method"], "session/prompt");
}

#[test]
fn a_misspelled_key_reaches_no_session() {
    // The bug: the official Python SDK accepts `session_id` for `sessionId`, so a client could prompt, fork, read, cancel
    // and close another client's session.
    for method in CLIENT_METHODS {
        for key in [
            "session_id",
            "SessionId",
            "session-id",
            "SESSION_ID",
            "sessionid",
        ] {
            let mut sim = Simulation::with(2);
            sim.session(1, "s");
            sim.clear();
            for params in [
                json!({key: "s"}),
                json!({key: "s", "sessionId": "s"}),
                json!({key: "s", "sessionId": "mine"}),
                json!({"_meta": {key: "s"}}),
                json!({"sessionId": "unknown", "field_meta": {key: "s"}}),
            ] {
                sim.client_sends(2, &notification(method, &params));
                sim.client_sends(2, &request("5", method, &params));
                let received = sim.client_received(2);
                assert!(
                    matches!(code(&received), -32600 | -32010),
                    "{method} {params}: {received}"
                );
                assert!(sim.output.agent.is_empty(), "{method} {params}");
            }
            // The owner too must spell the key correctly in a session method.
            sim.client_sends(1, &request("6", method, &json!({key: "s"})));
            let is_vendors = method.starts_with('_');
            assert_eq!(
                sim.output.agent.len(),
                usize::from(is_vendors),
                "{method} {key}"
            );
            sim.clear();
            // A vendor method may name unknown sessions under any key.
            sim.client_sends(
                2,
                &request(
                    "7",
                    "_vendor/x",
                    &json!({key: "other", "_meta": {key: "x"}}),
                ),
            );
            assert_eq!(sim.output.agent.len(), 1);
        }
    }
    // The same holds for a session without a client.
    for state in ["detached", "closed"] {
        let (mut sim, _) = sim_with_session(state, Principal::Token);
        sim.join_as(2, Principal::User(2));
        sim.clear();
        sim.client_sends(2, &request("7", "_vendor/x", &json!({"session_id": "s"})));
        assert_eq!(code(&sim.client_received(2)), -32010, "{state}");
    }
}

#[test]
fn an_agent_may_reuse_the_name_of_a_closed_or_lost_session() {
    let mut sim = Simulation::with(2);
    sim.session(1, "s");
    sim.session(1, "closed");
    sim.client_sends(
        1,
        &request("8", "session/close", &json!({"sessionId": "closed"})),
    );
    sim.agent_answers(&json!({}));
    sim.session(2, "closed");
    sim.router.handle_agent_exited(0, "{}", &mut sim.output);
    sim.router.handle_agent_started(sim.now, 0, &mut sim.output);
    sim.agent_answers(&json!({"protocolVersion": 1}));
    sim.session(2, "s");
    assert_eq!(sim.router.owner_of("s"), Some(client(2)));
    sim.client_sends(
        1,
        &request("9", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(code(&sim.client_received(1)), -32010);
    sim.disconnect(1);
    assert_eq!(sim.router.owner_of("s"), Some(client(2)));
}

#[test]
fn no_method_reaches_another_clients_session() {
    for method in CLIENT_METHODS {
        for (role, who, session) in [
            ("owner", 1, "s"),
            ("other client", 2, "s"),
            ("unknown", 2, "other"),
        ] {
            let mut sim = Simulation::with(2);
            sim.session(1, "s");
            sim.clear();
            sim.client_sends(who, &notification(method, &json!({"sessionId": session})));
            let claims = matches!(method, "session/load" | "session/resume");
            let may_be_notification = matches!(method, "session/cancel" | "_vendor/anything");
            assert_eq!(
                sim.output.agent.len(),
                usize::from(role == "owner" && may_be_notification),
                "{role} {method}"
            );
            assert_eq!(
                sim.output.clients.is_empty(),
                may_be_notification,
                "a notification has no answer"
            );
            sim.clear();
            if method == "session/cancel" {
                continue;
            }
            sim.client_sends(who, &request("9", method, &json!({"sessionId": session})));
            let allowed = role == "owner" || (role == "unknown" && claims);
            // The agent still has the owner's session and does not support `session/resume`.
            let is_local = role == "owner" && method == "session/resume";
            assert_eq!(
                sim.output.agent.len(),
                usize::from(allowed && !is_local),
                "{role} {method}"
            );
            if !allowed {
                let received = sim.client_received(who);
                let message = &received["error"]["message"];
                assert_eq!(
                    (code(&received), message),
                    (-32010, &json!("Access denied"))
                );
            }
        }
    }
}
