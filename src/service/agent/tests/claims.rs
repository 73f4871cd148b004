//! Loading and resuming sessions, with and without tokens.

use super::*;

#[test]
fn a_token_opens_one_session_once() {
    let mut sim = Simulation::with(1);
    (2..=4).for_each(|number| sim.join_as(number, Principal::User(2)));
    sim.clear();
    let token = sim.session(1, "s");
    let other = sim.session(1, "keeps");
    assert_ne!(token, other);
    let resume = |token: &str| {
        request(
            "5",
            "session/load",
            &json!({"sessionId": "s", "_meta": {"outrigger": {"resumeToken": token}}}),
        )
    };
    sim.disconnect(1);
    sim.client_sends(2, &resume("guess"));
    sim.client_sends(2, &resume(&other));
    sim.client_sends(2, &request("5", "session/load", &json!({"sessionId": "s"})));
    assert!(
        sim.output.clients[&client(2)]
            .iter()
            .all(|text| text.contains("-32010"))
    );

    sim.client_sends(2, &resume(&token));
    // The new owner gets the messages that precede the response.
    sim.agent_sends(&notification("session/update", &json!({"sessionId": "s"})));
    assert_eq!(sim.client_received(2)["method"], "session/update");
    let id = sim
        .output
        .agent
        .last()
        .and_then(|line| serde_json::from_str::<Value>(line).ok())
        .expect("JSON")["id"]
        .clone();
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": id, "result": null}).to_string());
    let fresh = sim.token(2);
    assert_ne!(fresh, token);
    sim.client_sends(3, &resume(&token));
    assert_eq!(
        code(&sim.client_received(3)),
        -32010,
        "a used token opens nothing"
    );

    sim.disconnect(2);
    sim.now = sim.now + GRACE + Duration::from_secs(1);
    sim.router.handle_timeout(sim.now, &mut sim.output);
    assert_eq!(
        (
            sim.router.figures().sessions,
            sim.router.figures().ended_sessions
        ),
        (0, 2),
        "after the grace period, only the records of both are left"
    );
    sim.client_sends(
        4,
        &request("5", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(code(&sim.client_received(4)), -32010);
}

#[test]
fn a_load_that_the_agent_rejects_changes_nothing() {
    let mut sim = Simulation::with(2);
    let token = sim.session(1, "s");
    sim.disconnect(1);
    let load = request(
        "5",
        "session/load",
        &json!({"sessionId": "s", "_meta": {"outrigger": {"resumeToken": token}}}),
    );
    sim.client_sends(2, &load);
    let id = sim.agent_received()["id"].clone();
    sim.agent_sends(
        &json!({"jsonrpc": "2.0", "id": id, "error": {"code": -1, "message": "not now"}})
            .to_string(),
    );
    assert_eq!(sim.client_received(2)["error"]["message"], "not now");
    sim.client_sends(
        2,
        &request("6", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(
        code(&sim.client_received(2)),
        -32010,
        "the session is not the client's"
    );
    sim.client_sends(2, &load);
    sim.agent_answers(&json!({}));
    assert!(
        sim.client_received(2)["result"].is_object(),
        "the token still works"
    );
    // A session that was unknown before is unknown again.
    sim.client_sends(
        2,
        &request("7", "session/load", &json!({"sessionId": "unknown"})),
    );
    sim.disconnect(2);
    assert_eq!(
        sim.router.figures().sessions,
        1,
        "only the loaded session is kept for its owner"
    );
}

#[test]
fn a_token_is_added_to_a_result_of_any_shape() {
    for (result, want) in [
        (
            r#"{"sessionId":"s"}"#,
            r#"{"_meta":{"outrigger":{"resumeToken":"T","watchToken":"W"}},"sessionId":"s"}"#,
        ),
        (
            r#"{"sessionId":"s","_meta":{ }}"#,
            r#"{"sessionId":"s","_meta":{"outrigger":{"resumeToken":"T","watchToken":"W"} }}"#,
        ),
        (
            r#"{"_meta":{"x":1},"sessionId":"s"}"#,
            r#"{"_meta":{"outrigger":{"resumeToken":"T","watchToken":"W"},"x":1},"sessionId":"s"}"#,
        ),
        (
            r#"{"_meta":null,"sessionId":"s"}"#,
            r#"{"_meta":{"outrigger":{"resumeToken":"T","watchToken":"W"}},"sessionId":"s"}"#,
        ),
        (
            r#"{"sessionId":"s","_meta":{"outrigger":7}}"#,
            r#"{"sessionId":"s","_meta":{"outrigger":{"resumeToken":"T","watchToken":"W"}}}"#,
        ),
    ] {
        let mut sim = Simulation::with(1);
        sim.client_sends(1, &request("1", "session/new", &json!({})));
        let id = sim.agent_received()["id"].clone();
        sim.agent_sends(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#
        ));
        let token = sim.token(1);
        let got = sim.output.clients[&client(1)]
            .last()
            .expect("an answer")
            .replace(&token, "T")
            .replace("secret-2", "W");
        assert_eq!(
            got,
            format!(r#"{{"jsonrpc":"2.0","id":1,"result":{want}}}"#)
        );
    }
}

#[test]
fn a_late_response_to_a_claim_affects_only_that_claim() {
    // The bug: the response to A's load arrived after A had closed the session and B had loaded it, and A got B's token.
    for success in [true, false] {
        let mut sim = Simulation::with(2);
        sim.client_sends(1, &claim("1", "session/load", "s", None));
        let slow = sim.agent_received()["id"].clone();
        sim.client_sends(
            1,
            &request("2", "session/close", &json!({"sessionId": "s"})),
        );
        sim.agent_answers(&json!({}));
        sim.client_sends(2, &claim("3", "session/load", "s", None));
        sim.agent_answers(&json!({}));
        let token = sim.token(2);
        let answer = if success {
            json!({"jsonrpc": "2.0", "id": slow, "result": {}})
        } else {
            json!({"jsonrpc": "2.0", "id": slow, "error": {"code": 1, "message": "no"}})
        };
        sim.agent_sends(&answer.to_string());
        assert!(
            !sim.output.clients[&client(1)]
                .iter()
                .any(|text| text.contains(&token))
        );
        assert_eq!(sim.router.owner_of("s"), Some(client(2)));
    }
}

#[test]
fn an_unconfirmed_claim_does_not_reserve_a_session_name() {
    // The bug: the router itself answered `session/resume` for any session.
    let mut sim = Simulation::with(2);
    sim.client_sends(2, &claim("1", "session/resume", "s9", None));
    assert_eq!(
        sim.agent_received()["method"],
        "session/resume",
        "the agent gets the request"
    );
    let token = sim.session(1, "s9");
    assert!(
        !token.is_empty(),
        "a new session of that name belongs to its creator"
    );
    assert_eq!(sim.router.owner_of("s9"), Some(client(1)));
}

#[test]
fn a_client_that_disconnects_while_it_reloads_its_session_still_owns_it() {
    let mut sim = Simulation::with(1);
    sim.join_as(2, Principal::User(2));
    sim.session(1, "s");
    sim.client_sends(1, &claim("1", "session/load", "s", None));
    sim.disconnect(1);
    sim.client_sends(2, &claim("1", "session/load", "s", None));
    assert_eq!(code(&sim.client_received(2)), -32010);
    assert!(
        sim.router.take_wakeup().is_some(),
        "the grace period begins"
    );
}

#[test]
fn a_session_created_for_a_disconnected_client_belongs_to_its_principal() {
    let mut sim = Simulation::with(1);
    sim.join_as(2, Principal::User(2));
    sim.connect(3);
    sim.client_sends(3, &request("0", "initialize", &json!({})));
    sim.session(1, "s");
    sim.client_sends(1, &request("1", "session/fork", &json!({"sessionId": "s"})));
    sim.disconnect(1);
    let line = sim
        .output
        .agent
        .iter()
        .find(|line| line.contains("session/fork"))
        .cloned()
        .expect("a request");
    let id = serde_json::from_str::<Value>(&line).expect("JSON")["id"].clone();
    sim.agent_sends(
        &json!({"jsonrpc": "2.0", "id": id, "result": {"sessionId": "fork"}}).to_string(),
    );
    sim.client_sends(2, &claim("1", "session/load", "fork", None));
    assert_eq!(code(&sim.client_received(2)), -32010);
    sim.client_sends(3, &claim("1", "session/load", "fork", None));
    assert_eq!(sim.agent_received()["method"], "session/load");
}

#[test]
fn a_failed_load_restores_the_session_in_each_state() {
    // The bug: the agent exited while the owner of a session was loading it, and then any client could load it.
    for state in STATES
        .into_iter()
        .filter(|state| !["live", "lost"].contains(state))
    {
        for end in ["rejected", "client disconnected", "agent exited"] {
            let what = format!("{state}, {end}");
            let (mut sim, token) = sim_with_session(state, Principal::Nobody);
            let known = (
                sim.router.figures().sessions,
                sim.router.figures().ended_sessions,
            );
            sim.join_as(2, Principal::Nobody);
            sim.client_sends(2, &claim("5", "session/load", "s", Some(&token)));
            let id = sim.agent_received()["id"].clone();
            match end {
                "rejected" => {
                    let no = json!({"code": 1, "message": "no"});
                    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": id, "error": no}).to_string());
                }
                "client disconnected" => sim.disconnect(2),
                _ => sim.router.handle_agent_exited(0, "{}", &mut sim.output),
            }
            let now = (
                sim.router.figures().sessions,
                sim.router.figures().ended_sessions,
            );
            assert_eq!(now, known, "{what}");
            sim.join_as(3, Principal::Token);
            sim.clear();
            sim.client_sends(3, &claim("6", "session/load", "s", None));
            let denied = !sim.output.clients.is_empty();
            assert_eq!(denied, state != "never seen", "{what}: another client");
            sim.join_as(4, Principal::Nobody);
            sim.clear();
            sim.client_sends(4, &claim("7", "session/load", "s", Some(&token)));
            let requests = sim.output.agent.len();
            assert_eq!(
                requests,
                usize::from(state != "never seen"),
                "{what}: the token works"
            );
        }
    }
    // A session that its client reloads after an exit of the agent stays with the client after a second exit.
    let mut sim = Simulation::with(2);
    sim.session(1, "s");
    for _ in 0..2 {
        sim.router.handle_agent_exited(0, "{}", &mut sim.output);
        sim.router.handle_agent_started(sim.now, 0, &mut sim.output);
        sim.agent_answers(&json!({"protocolVersion": 1}));
        sim.client_sends(1, &claim("1", "session/load", "s", None));
    }
    assert_eq!(sim.router.owner_of("s"), Some(client(1)));
    sim.client_sends(2, &claim("1", "session/load", "s", None));
    assert_eq!(code(&sim.client_received(2)), -32010);
}

#[test]
fn a_token_does_not_open_a_controlled_session_and_the_error_says_why() {
    let mut sim = Simulation::with(2);
    let token = sim.session(1, "s");
    sim.session(1, "other");
    sim.client_sends(2, &claim("5", "session/load", "s", Some(&token)));
    let received = sim.client_received(2);
    assert_eq!(code(&received), -32010);
    assert!(
        received["error"]["data"]
            .as_str()
            .is_some_and(|why| why.contains("another connection"))
    );
    sim.client_sends(2, &claim("6", "session/load", "unknown", Some(&token)));
    sim.agent_answers(&json!({}));
    sim.disconnect(1);
    sim.client_sends(2, &claim("7", "session/load", "s", Some(&token)));
    sim.agent_answers(&json!({}));
    assert_eq!(sim.router.owner_of("s"), Some(client(2)));
    assert_eq!(
        sim.router.owner_of("other"),
        None,
        "the other session is detached"
    );
}

#[test]
fn a_token_works_until_its_successor_is_used() {
    // The bug: a token became invalid with a response that its owner never read, because the connection was lost. Later, it
    // became invalid with the next message of the client, which may have been sent before the response arrived.
    for ends in [false, true] {
        let mut sim = Simulation::with(1);
        let first = sim.session(1, "s");
        sim.disconnect(1);
        let cut = |sim: &mut Simulation, number: u64| {
            sim.disconnect(number);
            if ends {
                sim.now = sim.now + GRACE + Duration::from_secs(1);
                sim.router.handle_timeout(sim.now, &mut sim.output);
            }
        };
        let open = |sim: &mut Simulation, number: u64, token: &str| {
            sim.join_as(number, Principal::Nobody);
            sim.client_sends(number, &claim("5", "session/load", "s", Some(token)));
            let denied = code(&sim.client_received(number)) == -32010;
            (!denied).then(|| {
                sim.agent_answers(&json!({}));
                sim.token(number)
            })
        };
        for number in 2..5 {
            let unread = open(&mut sim, number, &first).expect("the new token was never read");
            assert_ne!(unread, first);
            cut(&mut sim, number);
        }
        let second = open(&mut sim, 5, &first).expect("it still works");
        cut(&mut sim, 5);
        // The second token is used.
        let third = open(&mut sim, 6, &second).expect("it works");
        cut(&mut sim, 6);
        assert_eq!(open(&mut sim, 7, &first), None, "invalid");
        let again = open(&mut sim, 8, &second).expect("the third token was not read");
        assert!(ends || again == third);
        // The client may have sent this before the response arrived.
        sim.client_sends(
            8,
            &notification("session/cancel", &json!({"sessionId": "s"})),
        );
        cut(&mut sim, 8);
        let again = open(&mut sim, 9, &second).expect("the third token was not used");
        cut(&mut sim, 9);
        assert!(open(&mut sim, 10, &again).is_some());
        cut(&mut sim, 10);
        assert_eq!(
            open(&mut sim, 11, &second),
            None,
            "the third token was used"
        );
    }
}

#[test]
fn a_session_loaded_for_a_disconnected_client_belongs_to_its_principal() {
    let mut sim = Simulation::with(1);
    sim.join_as(2, Principal::User(2));
    sim.join_as(3, Principal::Token);
    sim.client_sends(1, &claim("1", "session/load", "old", None));
    let id = sim.agent_received()["id"].clone();
    sim.disconnect(1);
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": id, "result": null}).to_string());
    sim.client_sends(2, &claim("1", "session/load", "old", None));
    assert_eq!(code(&sim.client_received(2)), -32010);
    sim.clear();
    sim.client_sends(3, &claim("1", "session/load", "old", None));
    assert_eq!(sim.output.agent.len(), 1);
}
