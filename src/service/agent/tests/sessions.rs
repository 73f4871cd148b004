//! Whose session is whose.

use super::*;

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
fn a_token_moves_one_session_once() {
    let mut world = World::with(1);
    (2..=4).for_each(|number| world.join_as(number, Principal::User(2)));
    world.forget();
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
        (world.router.session_count(), world.router.ended_count()),
        (0, 2),
        "after the grace time both are only remembered"
    );
    world.say(
        4,
        &request("5", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(code(&world.heard(4)), -32010);
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
    let mut world = World::with(1);
    world.join_as(2, Principal::User(2));
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
    // The bug: this said "Access denied", and clients did not know that they could load it.
    let heard = world.heard(1);
    assert_eq!(
        (code(&heard), &heard["error"]["message"]),
        (-32002, &json!("Session lost")),
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
fn a_session_that_comes_for_a_client_that_has_left_is_kept_from_others() {
    let mut world = World::with(1);
    world.join_as(2, Principal::User(2));
    world.connect(3);
    world.say(3, &request("0", "initialize", &json!({})));
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
    world.say(3, &claim("1", "session/load", "fork", None));
    assert_eq!(world.agent_heard()["method"], "session/load");
}

/// What has become of a session, and who wants it.
const STATES: [&str; 7] = [
    "controlled",
    "left",
    "left and its time is over",
    "left without any time",
    "closed",
    "lost and left",
    "unknown",
];

/// A world in which client 1 had the session "s", with its token.
fn world_with(state: &str, owner: Principal) -> (World, String) {
    let mut limits = World::new().router.limits();
    if state == "left without any time" {
        limits.grace = None;
    }
    let mut world = World::with_limits(limits);
    world.connect_as(1, owner);
    world.say(1, &request("0", "initialize", &json!({})));
    world.answer(&json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}));
    if state == "unknown" {
        return (world, "none".to_owned());
    }
    let token = world.session(1, "s");
    match state {
        "controlled" => {}
        "closed" => {
            world.say(
                1,
                &request("8", "session/close", &json!({"sessionId": "s"})),
            );
            world.answer(&json!({}));
        }
        "lost and left" => {
            world.router.handle_agent_exited("{}", &mut world.record);
            world.router.handle_agent_started(&mut world.record);
            world.answer(&json!({"protocolVersion": 1}));
            world.leave(1);
        }
        _ => world.leave(1),
    }
    if state == "left and its time is over" {
        world.now = world.now + GRACE + Duration::from_secs(1);
        world.router.handle_timeout(world.now);
        assert_eq!(world.router.session_count(), 0);
    }
    (world, token)
}

#[test]
fn a_session_is_its_clients_then_its_principals_and_its_tokens_and_never_anyone_elses() {
    // The bug: after its grace time, after session/close and without any grace time a session was anyone's, while its
    // owner, who knows nothing of tokens, was denied it after a cut.
    let principals = [Principal::Nobody, Principal::Token, Principal::User(1)];
    for state in STATES {
        for owner in principals {
            for other in principals {
                for with_token in [true, false] {
                    let what = format!("{state} {owner:?} {other:?} {with_token}");
                    let (mut world, token) = world_with(state, owner);
                    world.join_as(2, other);
                    world.forget();
                    let allowed = match state {
                        "controlled" => false,
                        "unknown" => true,
                        _ => with_token || (owner == other && owner != Principal::Nobody),
                    };
                    world.say(2, &request("3", "session/list", &json!({})));
                    world.answer(&json!({"sessions": [{"sessionId": "s"}]}));
                    let listed = world.heard(2)["result"]["sessions"]
                        .as_array()
                        .map(Vec::len);
                    let is_same = owner == other && owner != Principal::Nobody;
                    let visible = state == "unknown" || (is_same && state != "controlled");
                    assert_eq!(listed, Some(usize::from(visible)), "{what}");

                    // Nothing else is for anybody before it is loaded.
                    for method in [
                        "session/prompt",
                        "session/close",
                        "_vendor/x",
                        "session/fork",
                    ] {
                        world.say(2, &request("4", method, &json!({"sessionId": "s"})));
                        assert_eq!(code(&world.heard(2)), -32010, "{what} {method}");
                    }
                    world.forget();
                    let token = with_token.then_some(&*token);
                    world.say(2, &claim("5", "session/load", "s", token));
                    assert_eq!(world.record.agent.len(), usize::from(allowed), "{what}");
                    if !allowed {
                        assert_eq!(code(&world.heard(2)), -32010, "{what}");
                        continue;
                    }
                    world.answer(&json!({}));
                    assert_eq!(world.router.owner_of("s"), Some(client(2)), "{what}");
                    // It is another principal's now, or the same's as before.
                    world.leave(2);
                    world.join_as(3, Principal::User(9));
                    world.say(3, &claim("5", "session/load", "s", None));
                    assert_eq!(code(&world.heard(3)), -32010, "{what}");
                }
            }
        }
    }
}

#[test]
fn a_load_that_fails_leaves_a_session_as_it_was_in_every_state() {
    // The bug: the agent died while the owner of a session was loading it, and then the session was anyone's.
    for state in STATES.into_iter().filter(|state| *state != "controlled") {
        for end in ["refused", "client left", "agent died"] {
            let what = format!("{state}, {end}");
            let (mut world, token) = world_with(state, Principal::Nobody);
            let known = (world.router.session_count(), world.router.ended_count());
            world.join_as(2, Principal::Nobody);
            world.say(2, &claim("5", "session/load", "s", Some(&token)));
            let id = world.agent_heard()["id"].clone();
            match end {
                "refused" => {
                    let no = json!({"code": 1, "message": "no"});
                    world.agent_says(&json!({"jsonrpc": "2.0", "id": id, "error": no}).to_string());
                }
                "client left" => world.leave(2),
                _ => world.router.handle_agent_exited("{}", &mut world.record),
            }
            let now = (world.router.session_count(), world.router.ended_count());
            assert_eq!(now, known, "{what}");
            world.join_as(3, Principal::Token);
            world.forget();
            world.say(3, &claim("6", "session/load", "s", None));
            let denied = !world.record.clients.is_empty();
            assert_eq!(denied, state != "unknown", "{what}: a stranger");
            world.join_as(4, Principal::Nobody);
            world.forget();
            world.say(4, &claim("7", "session/load", "s", Some(&token)));
            let asked = world.record.agent.len();
            assert_eq!(
                asked,
                usize::from(state != "unknown"),
                "{what}: the token is good"
            );
        }
    }
    // One that its client is loading anew, after the agent died, stays its client's when the next agent dies as well.
    let mut world = World::with(2);
    world.session(1, "s");
    for _ in 0..2 {
        world.router.handle_agent_exited("{}", &mut world.record);
        world.router.handle_agent_started(&mut world.record);
        world.answer(&json!({"protocolVersion": 1}));
        world.say(1, &claim("1", "session/load", "s", None));
    }
    assert_eq!(world.router.owner_of("s"), Some(client(1)));
    world.say(2, &claim("1", "session/load", "s", None));
    assert_eq!(code(&world.heard(2)), -32010);
}

#[test]
fn a_token_that_is_shown_while_the_connection_lives_opens_nothing_and_the_answer_says_why() {
    let mut world = World::with(2);
    let token = world.session(1, "s");
    world.session(1, "other");
    world.say(2, &claim("5", "session/load", "s", Some(&token)));
    let heard = world.heard(2);
    assert_eq!(code(&heard), -32010);
    assert!(
        heard["error"]["data"]
            .as_str()
            .is_some_and(|why| why.contains("another connection"))
    );
    world.say(2, &claim("6", "session/load", "unheard of", Some(&token)));
    world.answer(&json!({}));
    world.leave(1);
    world.say(2, &claim("7", "session/load", "s", Some(&token)));
    world.answer(&json!({}));
    assert_eq!(world.router.owner_of("s"), Some(client(2)));
    assert_eq!(world.router.owner_of("other"), None, "the other one waits");
}

#[test]
fn a_token_stays_good_until_its_successor_was_used_or_its_client_has_spoken() {
    // The bug: the token was spent by an answer that its owner never read, because the connection was cut.
    for ends in [false, true] {
        let mut world = World::with(1);
        let first = world.session(1, "s");
        world.leave(1);
        let cut = |world: &mut World, number: u64| {
            world.leave(number);
            if ends {
                world.now = world.now + GRACE + Duration::from_secs(1);
                world.router.handle_timeout(world.now);
            }
        };
        let open = |world: &mut World, number: u64, token: &str| {
            world.join_as(number, Principal::Nobody);
            world.say(number, &claim("5", "session/load", "s", Some(token)));
            let denied = code(&world.heard(number)) == -32010;
            (!denied).then(|| {
                world.answer(&json!({}));
                world.token(number)
            })
        };
        for number in 2..5 {
            let unread = open(&mut world, number, &first).expect("never read");
            assert_ne!(unread, first);
            cut(&mut world, number);
        }
        let second = open(&mut world, 5, &first).expect("still good");
        cut(&mut world, 5);
        // The successor is used.
        let third = open(&mut world, 6, &second).expect("its successor");
        cut(&mut world, 6);
        assert_eq!(open(&mut world, 7, &first), None, "spent");
        let again = open(&mut world, 8, &second).expect("the third one was not read");
        assert!(ends || again == third);
        // The client speaks, so it has read what came before.
        world.say(
            8,
            &notification("session/cancel", &json!({"sessionId": "s"})),
        );
        cut(&mut world, 8);
        assert_eq!(open(&mut world, 9, &second), None, "spent");
        assert!(open(&mut world, 10, &again).is_some());
    }
}

#[test]
fn a_full_table_refuses_newcomers_and_lets_nobody_go() {
    // The bug: 65 clients with 256 new sessions each pushed a session out of the table, and it was anyone's.
    let mut world = World::with(4);
    let new = |id: u64| request(&id.to_string(), "session/new", &json!({}));
    // Those that are only asked for count, and go on counting when their client has left.
    for id in 1..=8 {
        world.say(1, &new(id));
    }
    world.forget();
    world.say(1, &new(9));
    assert_eq!(code(&world.heard(1)), -32013, "8 are under way");
    world.leave(1);
    for (number, count) in [(2, 8), (3, 4)] {
        for at in 0..count {
            world.session(number, &format!("s{number}-{at}"));
        }
    }
    for text in [new(100), claim("101", "session/load", "old", None)] {
        world.say(4, &text);
        assert_eq!(
            code(&world.heard(4)),
            -32013,
            "20 are there, or on their way"
        );
    }
    world.leave(2);
    world.say(4, &new(102));
    assert_eq!(
        code(&world.heard(4)),
        -32013,
        "those that wait for their client stay"
    );
    world.say(4, &claim("103", "session/load", "s2-0", None));
    world.answer(&json!({}));
    assert_eq!(
        world.router.owner_of("s2-0"),
        Some(client(4)),
        "and can be loaded"
    );
    world.now = world.now + GRACE;
    world.router.handle_timeout(world.now);
    assert_eq!(
        (world.router.session_count(), world.router.ended_count()),
        (5, 7)
    );
    world.session(4, "one more");
}

#[test]
fn when_no_more_can_be_remembered_nothing_unknown_is_loaded() {
    let mut world = World::with(1);
    for at in 0..30 {
        world.session(1, &format!("s{at}"));
        world.say(
            1,
            &request(
                "2",
                "session/close",
                &json!({"sessionId": format!("s{at}")}),
            ),
        );
        world.answer(&json!({}));
    }
    assert_eq!(world.router.ended_count(), 30);
    world.say(1, &claim("3", "session/load", "old", None));
    assert_eq!(code(&world.heard(1)), -32010);
    world.say(1, &request("4", "session/list", &json!({})));
    world.answer(&json!({"sessions": [{"sessionId": "old"}, {"sessionId": "s3"}]}));
    assert_eq!(
        world.heard(1)["result"]["sessions"],
        json!([{"sessionId": "s3"}])
    );
    // One more is forgotten, and nobody has it any more.
    world.session(1, "forgotten");
    world.say(
        1,
        &request("5", "session/close", &json!({"sessionId": "forgotten"})),
    );
    world.answer(&json!({}));
    world.say(1, &claim("6", "session/load", "s3", None));
    world.answer(&json!({}));
    assert_eq!(world.router.owner_of("s3"), Some(client(1)));
    world.say(1, &claim("7", "session/load", "forgotten", None));
    assert_eq!(code(&world.heard(1)), -32010);
}

#[test]
fn another_spelling_of_a_key_reaches_no_session() {
    // The bug: the official Python SDK takes `session_id` for `sessionId`, so a stranger could prompt, fork, read,
    // cancel and close another's session.
    for method in CLIENT_METHODS {
        for key in [
            "session_id",
            "SessionId",
            "session-id",
            "SESSION_ID",
            "sessionid",
        ] {
            let mut world = World::with(2);
            world.session(1, "s");
            world.forget();
            for params in [
                json!({key: "s"}),
                json!({key: "s", "sessionId": "s"}),
                json!({key: "s", "sessionId": "mine"}),
                json!({"_meta": {key: "s"}}),
                json!({"sessionId": "unknown", "field_meta": {key: "s"}}),
            ] {
                world.say(2, &notification(method, &params));
                world.say(2, &request("5", method, &params));
                let heard = world.heard(2);
                assert!(
                    matches!(code(&heard), -32600 | -32010),
                    "{method} {params}: {heard}"
                );
                assert!(world.record.agent.is_empty(), "{method} {params}");
            }
            // A session method needs the key as it is, of its own client too.
            world.say(1, &request("6", method, &json!({key: "s"})));
            let is_vendors = method.starts_with('_');
            assert_eq!(
                world.record.agent.len(),
                usize::from(is_vendors),
                "{method} {key}"
            );
            world.forget();
            // What is nobody's may be named where it means nothing to us.
            world.say(
                2,
                &request(
                    "7",
                    "_vendor/x",
                    &json!({key: "other", "_meta": {key: "x"}}),
                ),
            );
            assert_eq!(world.record.agent.len(), 1);
        }
    }
    // Nor does a session that waits for its client, or has ended.
    for state in ["left", "closed"] {
        let (mut world, _) = world_with(state, Principal::Token);
        world.join_as(2, Principal::User(2));
        world.forget();
        world.say(2, &request("7", "_vendor/x", &json!({"session_id": "s"})));
        assert_eq!(code(&world.heard(2)), -32010, "{state}");
    }
}

#[test]
fn what_comes_before_the_answer_to_session_new_is_delivered_after_it() {
    // The bug: it was dropped, since the session was nobody's yet.
    let mut world = World::with(2);
    world.session(2, "other");
    world.forget();
    let update = |session: &str, x: u64| {
        notification("session/update", &json!({"sessionId": session, "x": x}))
    };
    world.say(1, &request("1", "session/new", &json!({})));
    world.agent_says(&update("s", 1));
    world.agent_says(&update("unheard of", 2));
    world.agent_says(&update("s", 3));
    assert!(world.record.clients.is_empty(), "it is nobody's yet");
    world.answer(&json!({"sessionId": "s"}));
    let heard: Vec<Value> = world.record.clients[&client(1)]
        .iter()
        .map(|text| serde_json::from_str(text).expect("JSON"))
        .collect();
    assert_eq!(heard.len(), 3);
    assert_eq!(heard[0]["id"], 1);
    assert_eq!(
        (&heard[1]["params"]["x"], &heard[2]["params"]["x"]),
        (&json!(1), &json!(3))
    );
    // What nobody has asked for is not kept for the next who asks.
    world.say(2, &request("2", "session/new", &json!({})));
    world.answer(&json!({"sessionId": "unheard of"}));
    assert!(
        world
            .record
            .clients
            .get(&client(2))
            .is_some_and(|heard| heard.len() == 1)
    );
}

#[test]
fn an_agent_may_give_a_name_again_that_only_a_dead_agent_or_nobody_knows() {
    let mut world = World::with(2);
    world.session(1, "s");
    world.session(1, "closed");
    world.say(
        1,
        &request("8", "session/close", &json!({"sessionId": "closed"})),
    );
    world.answer(&json!({}));
    world.session(2, "closed");
    world.router.handle_agent_exited("{}", &mut world.record);
    world.router.handle_agent_started(&mut world.record);
    world.answer(&json!({"protocolVersion": 1}));
    world.session(2, "s");
    assert_eq!(world.router.owner_of("s"), Some(client(2)));
    world.say(
        1,
        &request("9", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(code(&world.heard(1)), -32010);
    world.leave(1);
    assert_eq!(world.router.owner_of("s"), Some(client(2)));
}

#[test]
fn a_load_whose_client_has_left_is_its_principals_when_the_agent_agrees() {
    let mut world = World::with(1);
    world.join_as(2, Principal::User(2));
    world.join_as(3, Principal::Token);
    world.say(1, &claim("1", "session/load", "old", None));
    let id = world.agent_heard()["id"].clone();
    world.leave(1);
    world.agent_says(&json!({"jsonrpc": "2.0", "id": id, "result": null}).to_string());
    world.say(2, &claim("1", "session/load", "old", None));
    assert_eq!(code(&world.heard(2)), -32010);
    world.forget();
    world.say(3, &claim("1", "session/load", "old", None));
    assert_eq!(world.record.agent.len(), 1);
}

#[test]
fn strangers_reach_no_session_by_any_method() {
    for method in CLIENT_METHODS {
        for (role, who, session) in [
            ("owner", 1, "s"),
            ("stranger", 2, "s"),
            ("unknown", 2, "other"),
        ] {
            let mut world = World::with(2);
            world.session(1, "s");
            world.forget();
            world.say(who, &notification(method, &json!({"sessionId": session})));
            // A notification loads nothing, so it does not matter whose the session is.
            let claims = matches!(method, "session/load" | "session/resume");
            assert_eq!(
                world.record.agent.len(),
                usize::from(role == "owner"),
                "{role} {method}"
            );
            assert!(
                world.record.clients.is_empty(),
                "a notification has no answer"
            );
            world.forget();
            world.say(who, &request("9", method, &json!({"sessionId": session})));
            let allowed = role == "owner" || (role == "unknown" && claims);
            // The agent has kept the owner's session, and has no `session/resume`.
            let is_local = role == "owner" && method == "session/resume";
            assert_eq!(
                world.record.agent.len(),
                usize::from(allowed && !is_local),
                "{role} {method}"
            );
            if !allowed {
                let heard = world.heard(who);
                let message = &heard["error"]["message"];
                assert_eq!((code(&heard), message), (-32010, &json!("Access denied")));
            }
        }
    }
}
