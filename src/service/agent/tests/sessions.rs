//! Whose session is whose.

use super::*;

#[test]
fn strangers_reach_no_session_by_any_method() {
    for method in CLIENT_METHODS {
        for role in ["owner", "stranger", "nobody's", "left", "resumed"] {
            let mut world = World::with(2);
            let token = world.session(1, "s");
            let (who, session) = match role {
                "owner" => (1, "s"),
                "stranger" => (2, "s"),
                "nobody's" => (2, "other"),
                "left" => {
                    world.leave(1);
                    (2, "s")
                }
                _ => {
                    let params =
                        json!({"sessionId": "s", "_meta": {"outrigger": {"resumeToken": token}}});
                    world.say(2, &request("5", "session/resume", &params));
                    (2, "s")
                }
            };
            world.forget();
            let claims = matches!(method, "session/load" | "session/resume");
            let allowed = matches!(role, "owner" | "resumed") || (role == "nobody's" && claims);
            let local = method == "session/resume" && role != "nobody's";

            world.say(who, &notification(method, &json!({"sessionId": session})));
            let named = role == "owner" || role == "resumed";
            assert_eq!(
                world.record.agent.len(),
                usize::from(named),
                "{role} notifies {method}"
            );
            assert!(
                world.record.clients.is_empty(),
                "a notification has no answer"
            );

            world.forget();
            world.say(who, &request("9", method, &json!({"sessionId": session})));
            assert_eq!(
                world.record.agent.len(),
                usize::from(allowed && !local),
                "{role} asks {method}"
            );
            if !allowed {
                let heard = world.heard(who);
                assert_eq!(
                    (code(&heard), &heard["error"]["message"]),
                    (-32010, &json!("Access denied")),
                    "{role} {method}"
                );
            }
            // The one who had it before it was resumed is a stranger now.
            if role == "resumed" {
                world.say(1, &request("9", method, &json!({"sessionId": session})));
                assert_eq!(code(&world.heard(1)), -32010, "{method}");
            }
        }
    }
}

#[test]
fn what_the_agent_says_reaches_the_owner_and_no_one_else() {
    for method in AGENT_METHODS {
        let mut world = World::with(3);
        world.session(1, "a");
        world.session(2, "b");
        world.forget();
        world.agent_says(&notification(method, &json!({"sessionId": "b", "x": 1})));
        assert_eq!(
            world.record.clients.keys().copied().collect::<Vec<_>>(),
            [client(2)],
            "{method}"
        );
        world.agent_says(&notification(method, &json!({"sessionId": "nobody's"})));
        world.agent_says(&notification(method, &json!({})));
        assert_eq!(world.record.clients[&client(2)].len(), 1);

        // A request gets an id of ours, and its answer counts only from the one who was asked.
        world.forget();
        world.agent_says(&request("\"r\"", method, &json!({"sessionId": "b"})));
        if matches!(method, "terminal/create" | "elicitation/create") {
            assert_eq!(
                code(&world.agent_heard()),
                -32601,
                "the client has not announced {method}"
            );
            assert!(world.record.clients.is_empty());
            continue;
        }
        let asked = world.heard(2)["id"].clone();
        let answer = json!({"jsonrpc": "2.0", "id": asked, "result": {"ok": 1}}).to_string();
        world.say(1, &answer);
        world.say(3, &answer);
        assert!(
            world.record.agent.is_empty(),
            "strangers cannot answer {method}"
        );
        world.say(2, &answer);
        assert_eq!(
            world.agent_heard(),
            json!({"jsonrpc": "2.0", "id": "r", "result": {"ok": 1}})
        );
        world.say(2, &answer);
        assert_eq!(world.record.agent.len(), 1, "and it can be answered once");
    }
}

#[test]
fn a_client_that_leaves_takes_everything_with_it() {
    let mut world = World::with(2);
    world.session(1, "s");
    world.session(1, "idle");
    world.session(2, "t");
    world.say(
        1,
        &request("5", "session/prompt", &json!({"sessionId": "s"})),
    );
    let prompt = world.agent_heard()["id"].clone();
    world.agent_says(&request(
        "100",
        "session/request_permission",
        &json!({"sessionId": "s"}),
    ));
    world.agent_says(&request(
        "101",
        "fs/read_text_file",
        &json!({"sessionId": "s"}),
    ));
    world.forget();
    world.leave(1);
    let lines: Vec<Value> = world
        .record
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

    world.forget();
    world.agent_says(&json!({"jsonrpc": "2.0", "id": prompt, "result": {}}).to_string());
    world.agent_says(&notification("session/update", &json!({"sessionId": "s"})));
    world.agent_says(&request(
        "102",
        "session/request_permission",
        &json!({"sessionId": "s"}),
    ));
    assert!(world.record.clients.is_empty(), "nobody hears of it");
    assert_eq!(
        world.agent_heard()["result"]["outcome"]["outcome"],
        "cancelled",
        "and the agent does not wait"
    );
    assert_eq!(
        (world.router.waiting_count(), world.router.asked_count()),
        (0, 0)
    );
}

#[test]
fn a_token_moves_one_session_once_within_the_grace_time() {
    let mut world = World::with(4);
    let token = world.session(1, "s");
    let other = world.session(1, "keeps");
    assert_ne!(token, other);
    let resume = |token: &str| {
        request(
            "5",
            "session/load",
            &json!({"sessionId": "s", "_meta": {"outrigger": {"resumeToken": token}}}),
        )
    };
    world.leave(1);
    world.say(2, &resume("guess"));
    world.say(2, &resume(&other));
    world.say(2, &request("5", "session/load", &json!({"sessionId": "s"})));
    assert!(
        world.record.clients[&client(2)]
            .iter()
            .all(|text| text.contains("-32010"))
    );

    world.say(2, &resume(&token));
    // What comes before the answer is the new owner's already.
    world.agent_says(&notification("session/update", &json!({"sessionId": "s"})));
    assert_eq!(world.heard(2)["method"], "session/update");
    let id = world
        .record
        .agent
        .last()
        .and_then(|line| serde_json::from_str::<Value>(line).ok())
        .expect("JSON")["id"]
        .clone();
    world.agent_says(&json!({"jsonrpc": "2.0", "id": id, "result": null}).to_string());
    let fresh = world.token(2);
    assert_ne!(fresh, token);
    world.say(3, &resume(&token));
    assert_eq!(
        code(&world.heard(3)),
        -32010,
        "a used token is worth nothing"
    );

    world.leave(2);
    world.now = world.now + GRACE + Duration::from_secs(1);
    world.router.handle_timeout(world.now);
    assert_eq!(
        world.router.session_count(),
        0,
        "after the grace time all are released"
    );
    world.say(
        4,
        &request("5", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(code(&world.heard(4)), -32010);
}

#[test]
fn resuming_one_session_leaves_the_owners_others_alone() {
    let mut world = World::with(2);
    let token = world.session(1, "moves");
    world.session(1, "stays");
    world.say(
        2,
        &request(
            "5",
            "session/resume",
            &json!({"sessionId": "moves", "_meta": {"outrigger": {"resumeToken": token}}}),
        ),
    );
    assert!(world.heard(2)["result"]["_meta"]["outrigger"]["resumeToken"].is_string());
    world.forget();
    world.say(
        1,
        &request("6", "session/prompt", &json!({"sessionId": "stays"})),
    );
    assert_eq!(world.record.agent.len(), 1);
    world.say(
        1,
        &request("7", "session/prompt", &json!({"sessionId": "moves"})),
    );
    assert_eq!(code(&world.heard(1)), -32010);
}

#[test]
fn what_a_former_owner_has_running_is_stopped_when_its_session_moves() {
    let mut world = World::with(2);
    let token = world.session(1, "moves");
    world.say(
        1,
        &request("1", "session/prompt", &json!({"sessionId": "moves"})),
    );
    world.forget();
    let resume = json!({"sessionId": "moves", "_meta": {"outrigger": {"resumeToken": token}}});
    world.say(2, &request("5", "session/load", &resume));
    let heard: Vec<String> = world.record.agent.clone();
    assert!(
        heard[0].contains("session/cancel") && heard[1].contains("session/load"),
        "{heard:?}"
    );
}

#[test]
fn sessions_have_a_limit_for_each_client_and_for_all() {
    let mut world = World::with(4);
    let new = |id: u64| request(&id.to_string(), "session/new", &json!({}));
    // Those that are only asked for count.
    for id in 1..=8 {
        world.say(1, &new(id));
    }
    world.forget();
    world.say(1, &new(9));
    assert_eq!(code(&world.heard(1)), -32013, "8 are under way");
    world.leave(1);
    // Sessions that wait for an owner make room, the oldest first; those that have one do not.
    for (number, count) in [(2, 8), (3, 8), (4, 4)] {
        for at in 0..count {
            world.session(number, &format!("s{number}-{at}"));
        }
    }
    world.say(4, &new(100));
    assert_eq!(code(&world.heard(4)), -32013, "20 are there");
    world.leave(2);
    world.forget();
    world.session(4, "one more");
    assert_eq!(world.router.session_count(), 20);
}

#[test]
fn a_load_that_the_agent_refuses_changes_nothing() {
    let mut world = World::with(2);
    let token = world.session(1, "s");
    world.leave(1);
    let load = request(
        "5",
        "session/load",
        &json!({"sessionId": "s", "_meta": {"outrigger": {"resumeToken": token}}}),
    );
    world.say(2, &load);
    let id = world.agent_heard()["id"].clone();
    world.agent_says(
        &json!({"jsonrpc": "2.0", "id": id, "error": {"code": -1, "message": "not now"}})
            .to_string(),
    );
    assert_eq!(world.heard(2)["error"]["message"], "not now");
    world.say(
        2,
        &request("6", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(code(&world.heard(2)), -32010, "it is not bound");
    world.say(2, &load);
    world.answer(&json!({}));
    assert!(
        world.heard(2)["result"].is_object(),
        "and the token is still good"
    );
    // One that nobody had is nobody's again.
    world.say(
        2,
        &request("7", "session/load", &json!({"sessionId": "unknown"})),
    );
    world.leave(2);
    assert_eq!(
        world.router.session_count(),
        1,
        "only the session that was bound waits for its owner"
    );
}

#[test]
fn a_list_shows_only_ones_own_and_unowned_sessions() {
    let mut world = World::with(2);
    world.session(1, "mine");
    world.session(2, "theirs");
    world.say(1, &request("4", "session/list", &json!({})));
    let id = world.agent_heard()["id"].clone();
    let answer = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"sessions":[ {{"sessionId":"theirs"}}, {{"sessionId" : "mine","x":[1]}},{{"sessionId":"old"}}],"nextCursor":"c"}}}}"#
    );
    world.agent_says(&answer);
    let got = world.record.clients[&client(1)]
        .last()
        .expect("an answer")
        .clone();
    assert_eq!(
        got,
        r#"{"jsonrpc":"2.0","id":4,"result":{"sessions":[{"sessionId" : "mine","x":[1]},{"sessionId":"old"}],"nextCursor":"c"}}"#
    );
}

#[test]
fn a_session_that_is_closed_is_nobodys() {
    let mut world = World::with(1);
    world.session(1, "s");
    world.say(
        1,
        &request("4", "session/close", &json!({"sessionId": "s"})),
    );
    world.answer(&json!({}));
    assert_eq!(world.router.session_count(), 0);
    world.say(
        1,
        &request("5", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(
        code(&world.heard(1)),
        -32010,
        "a stale session is not used again"
    );
}

#[test]
fn an_agent_that_hands_out_another_clients_session_is_not_believed() {
    let mut world = World::with(2);
    world.session(1, "s");
    world.say(2, &request("1", "session/new", &json!({})));
    world.answer(&json!({"sessionId": "s"}));
    assert_eq!(code(&world.heard(2)), -32603);
    world.forget();
    world.agent_says(&notification("session/update", &json!({"sessionId": "s"})));
    assert_eq!(
        world.record.clients.keys().copied().collect::<Vec<_>>(),
        [client(1)]
    );
}

#[test]
fn a_token_fits_into_every_shape_of_result() {
    for (result, want) in [
        (
            r#"{"sessionId":"s"}"#,
            r#"{"_meta":{"outrigger":{"resumeToken":"T"}},"sessionId":"s"}"#,
        ),
        (
            r#"{"sessionId":"s","_meta":{ }}"#,
            r#"{"sessionId":"s","_meta":{"outrigger":{"resumeToken":"T"} }}"#,
        ),
        (
            r#"{"_meta":{"x":1},"sessionId":"s"}"#,
            r#"{"_meta":{"outrigger":{"resumeToken":"T"},"x":1},"sessionId":"s"}"#,
        ),
        (
            r#"{"_meta":null,"sessionId":"s"}"#,
            r#"{"_meta":{"outrigger":{"resumeToken":"T"}},"sessionId":"s"}"#,
        ),
        (
            r#"{"sessionId":"s","_meta":{"outrigger":7}}"#,
            r#"{"sessionId":"s","_meta":{"outrigger":{"resumeToken":"T"}}}"#,
        ),
    ] {
        let mut world = World::with(1);
        world.say(1, &request("1", "session/new", &json!({})));
        let id = world.agent_heard()["id"].clone();
        world.agent_says(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#
        ));
        let token = world.token(1);
        let got = world.record.clients[&client(1)]
            .last()
            .expect("an answer")
            .replace(&token, "T");
        assert_eq!(
            got,
            format!(r#"{{"jsonrpc":"2.0","id":1,"result":{want}}}"#)
        );
    }
}

/// A request for a session by its name, with or without a token.
fn claim(id: &str, method: &str, session: &str, token: Option<&str>) -> String {
    let params = json!({"sessionId": session, "_meta": {"outrigger": {"resumeToken": token}}});
    request(id, method, &params)
}

#[test]
fn a_late_answer_to_a_claim_touches_only_what_that_claim_has_bound() {
    // The bug: A's load was answered after A had closed the session and B had loaded it; A was given B's token.
    for success in [true, false] {
        let mut world = World::with(2);
        world.say(1, &claim("1", "session/load", "s", None));
        let slow = world.agent_heard()["id"].clone();
        world.say(
            1,
            &request("2", "session/close", &json!({"sessionId": "s"})),
        );
        world.answer(&json!({}));
        world.say(2, &claim("3", "session/load", "s", None));
        world.answer(&json!({}));
        let token = world.token(2);
        let answer = if success {
            json!({"jsonrpc": "2.0", "id": slow, "result": {}})
        } else {
            json!({"jsonrpc": "2.0", "id": slow, "error": {"code": 1, "message": "no"}})
        };
        world.agent_says(&answer.to_string());
        assert!(
            !world.record.clients[&client(1)]
                .iter()
                .any(|text| text.contains(&token))
        );
        assert_eq!(world.router.owner_of("s"), Some(client(2)));
    }
}

#[test]
fn a_session_that_the_agent_has_not_confirmed_cannot_be_squatted() {
    // The bug: `session/resume` was answered for the agent, whatever session it named.
    let mut world = World::with(2);
    world.say(2, &claim("1", "session/resume", "s9", None));
    assert_eq!(
        world.agent_heard()["method"],
        "session/resume",
        "the agent is asked"
    );
    let token = world.session(1, "s9");
    assert!(
        !token.is_empty(),
        "and a new session of that name is its creator's"
    );
    assert_eq!(world.router.owner_of("s9"), Some(client(1)));
}

#[test]
fn who_leaves_during_a_claim_of_its_own_session_can_come_back_and_nobody_else_can() {
    let mut world = World::with(2);
    world.session(1, "s");
    world.say(1, &claim("1", "session/load", "s", None));
    world.leave(1);
    world.say(2, &claim("1", "session/load", "s", None));
    assert_eq!(code(&world.heard(2)), -32010);
    assert!(world.router.take_left(), "the grace time is waited for");
}

#[test]
fn the_agents_death_gives_nobody_elses_session_away() {
    let mut world = World::with(2);
    world.session(1, "s");
    world.router.handle_agent_exited("{}", &mut world.record);
    world.router.handle_agent_started(&mut world.record);
    world.answer(&json!({"protocolVersion": 1}));
    world.say(2, &claim("1", "session/load", "s", None));
    assert_eq!(code(&world.heard(2)), -32010);
    world.say(
        1,
        &request("2", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(
        code(&world.heard(1)),
        -32010,
        "the new agent does not know it"
    );
    world.say(1, &claim("3", "session/load", "s", None));
    world.answer(&json!({}));
    world.forget();
    world.say(
        1,
        &request("4", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(world.agent_heard()["method"], "session/prompt");
}

#[test]
fn a_former_owner_that_leaves_does_not_stop_the_new_owners_prompt() {
    let mut world = World::with(2);
    let token = world.session(1, "s");
    world.say(
        1,
        &request("1", "session/prompt", &json!({"sessionId": "s"})),
    );
    world.agent_says(&request(
        "70",
        "session/request_permission",
        &json!({"sessionId": "s"}),
    ));
    world.say(2, &claim("1", "session/resume", "s", Some(&token)));
    assert_eq!(
        world.agent_heard()["result"]["outcome"]["outcome"],
        "cancelled",
        "what it was asked is answered"
    );
    world.forget();
    world.leave(1);
    assert!(world.record.agent.is_empty(), "{:?}", world.record.agent);
}

#[test]
fn a_session_that_comes_for_a_client_that_has_left_is_kept_from_others() {
    let mut world = World::with(2);
    world.session(1, "s");
    world.say(1, &request("1", "session/fork", &json!({"sessionId": "s"})));
    world.leave(1);
    let ours = world
        .record
        .agent
        .iter()
        .find(|line| line.contains("session/fork"))
        .cloned()
        .expect("asked");
    let id = serde_json::from_str::<Value>(&ours).expect("JSON")["id"].clone();
    world.agent_says(
        &json!({"jsonrpc": "2.0", "id": id, "result": {"sessionId": "fork"}}).to_string(),
    );
    world.say(2, &claim("1", "session/load", "fork", None));
    assert_eq!(code(&world.heard(2)), -32010);
}
