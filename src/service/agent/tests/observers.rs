//! Clients that observe a session, and that approve for its client.

use super::*;

/// Attaches a client with this `_meta.outrigger`.
pub(super) fn attach(id: &str, outrigger: &Value) -> String {
    let params = json!({"sessionId": "s", "_meta": {"outrigger": outrigger}});
    request(id, "session/attach", &params)
}

/// A simulation in which client 1 has the session "s", and its watch token.
pub(super) fn live(approvals: Approvals) -> (Simulation, String) {
    let mut limits = Simulation::new().router.settings();
    limits.approvals = approvals;
    let mut sim = Simulation::with_limits(limits);
    sim.connect_as(1, named("ada"));
    let hello = json!({"protocolVersion": 1, "clientInfo": {"name": "editor", "version": "2", "title": "x"}});
    sim.hello(1, &hello);
    sim.session(1, "s");
    let token = sim.client_received(1)["result"]["_meta"]["outrigger"]["watchToken"].clone();
    sim.clear();
    (sim, token.as_str().expect("a token").to_owned())
}

/// Adds an observer who has the watch token.
pub(super) fn observe(sim: &mut Simulation, number: u64, token: &str) {
    sim.connect_as(number, named("bob"));
    sim.hello(
        number,
        &json!({"protocolVersion": 1, "clientInfo": {"name": "phone"}}),
    );
    sim.client_sends(number, &attach("9", &json!({"watchToken": token})));
    let is_attached = |message: &Value| message["result"]["role"] == "observer";
    assert!(received(sim, number).iter().any(is_attached));
}

pub(super) fn permission(id: &str) -> String {
    let params = json!({"sessionId": "s", "toolCall": {"toolCallId": "t1"}, "options": []});
    request(id, "session/request_permission", &params)
}

fn allow(id: &Value) -> String {
    let outcome = json!({"outcome": "selected", "optionId": "yes"});
    json!({"jsonrpc": "2.0", "id": id, "result": {"outcome": outcome}}).to_string()
}

/// The parsed messages that a client has received.
pub(super) fn received(sim: &Simulation, number: u64) -> Vec<Value> {
    let messages = sim
        .output
        .clients
        .get(&client(number))
        .into_iter()
        .flatten();
    let parse = |text: &String| serde_json::from_str(text).expect("JSON");
    messages.map(parse).collect()
}

/// The bug: each block of a prompt became a message for each observer, so 2 MB with 990,000 blocks and 64 observers stopped the
/// server for 10 seconds.
#[test]
fn the_observers_of_a_prompt_share_an_update_with_a_limited_number_of_blocks() {
    let (mut sim, token) = live(Approvals::Owner);
    (2..10).for_each(|number| observe(&mut sim, number, &token));
    sim.clear();
    sim.output.messages = 0;
    let mut prompt = |count: usize| {
        let blocks = vec![json!({"type": "text", "text": "hi"}); count];
        let prompt = json!({"sessionId": "s", "prompt": blocks});
        sim.clear();
        sim.client_sends(1, &request("5", "session/prompt", &prompt));
        let all: Vec<Vec<Value>> = (2..10).map(|number| received(&sim, number)).collect();
        assert!(all.iter().all(|one| one.len() == 1 && *one == all[0]));
        assert_eq!(std::mem::take(&mut sim.output.messages), 1);
        let shown = &all[0][0]["params"]["update"]["prompt"];
        shown.as_array().expect("blocks").clone()
    };
    assert_eq!(prompt(64).len(), 64);
    let shown = prompt(10_000);
    assert_eq!(shown.len(), 65);
    assert_eq!(
        shown[64]["text"],
        "[further blocks of the prompt are not shown]"
    );
}

#[test]
fn an_observer_sees_what_happens_and_controls_nothing() {
    let (mut sim, token) = live(Approvals::Owner);
    observe(&mut sim, 2, &token);
    let attached = sim.client_received(2)["result"].clone();
    assert_eq!(attached["sessionId"], "s");
    assert_eq!(attached["historyPolicy"], "full");
    assert_eq!(attached["clientId"], client(2).to_string());
    let id = client(1).to_string();
    let owner = json!({"clientId": id, "name": "editor", "version": "2", "principal": "ada", "role": "controller"});
    assert_eq!(attached["connectedClients"], json!([owner]));
    sim.clear();

    let blocks = json!([{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]);
    let prompt = json!({"sessionId": "s", "messageId": "u1", "prompt": blocks});
    sim.client_sends(1, &request("5", "session/prompt", &prompt));
    let turn = sim.agent_received()["id"].clone();
    let chunk = json!({"sessionUpdate": "agent_message_chunk", "messageId": "a1"});
    let update = json!({"sessionId": "s", "x": 1, "update": chunk});
    let update = notification("session/update", &update);
    sim.agent_sends(&update);
    sim.agent_sends(&permission("7"));
    sim.agent_sends(
        &json!({"jsonrpc": "2.0", "id": turn, "result": {"stopReason": "end_turn"}}).to_string(),
    );
    let seen = received(&sim, 2);
    let sent_by = json!({"clientId": id, "name": "editor", "version": "2", "principal": "ada"});
    let expected = json!({"sessionUpdate": "prompt_received", "type": "prompt_received", "messageId": "u1", "prompt": blocks, "sentBy": sent_by});
    assert_eq!(seen[0]["params"]["update"], expected);
    assert_eq!(seen[1]["params"]["x"], 1);
    assert_eq!(
        (&seen[2]["method"], &seen[2]["id"]),
        (&json!("session/request_permission"), &Value::Null)
    );
    assert_eq!(seen[2]["params"]["toolCall"]["toolCallId"], "t1");
    let complete = json!({"sessionUpdate": "turn_complete", "type": "turn_complete", "stopReason": "end_turn", "messageId": "a1"});
    assert_eq!(seen[3]["params"]["update"], complete);
    assert_eq!((seen.len(), received(&sim, 1).len()), (4, 3));

    // It controls nothing.
    sim.clear();
    for method in CLIENT_METHODS {
        if !["session/load", "session/resume", "session/cancel"].contains(&method) {
            sim.client_sends(2, &request("1", method, &json!({"sessionId": "s"})));
            assert_eq!(code(&sim.client_received(2)), -32010, "{method}");
        }
    }
    sim.client_sends(2, &allow(&json!(7)));
    sim.client_sends(
        2,
        &notification("session/cancel", &json!({"sessionId": "s"})),
    );
    assert!(sim.output.agent.is_empty());
    // It may leave.
    sim.client_sends(
        2,
        &request("2", "session/detach", &json!({"sessionId": "s"})),
    );
    assert_eq!(
        sim.client_received(2)["result"],
        json!({"sessionId": "s", "status": "detached"})
    );
    sim.client_sends(
        2,
        &request("3", "session/detach", &json!({"sessionId": "s"})),
    );
    assert_eq!(code(&sim.client_received(2)), -32600);
    sim.clear();
    sim.agent_sends(&update);
    assert!(received(&sim, 2).is_empty() && received(&sim, 1).len() == 1);
}

#[test]
fn who_may_attach_to_a_session_in_each_state() {
    // In each state: whether the holder of the watch token, the holder of the resume token, the same person, the same
    // unnamed token, an observer's token of the same unnamed token, another principal, and nobody may attach.
    for (state, permitted) in [
        ("live", [true, true, true, false, true, false, false]),
        ("detached", [true, true, true, false, true, false, false]),
        ("gone", [true, true, true, true, true, false, false]),
        ("gone, grace over", [false; 7]),
        ("closed", [false; 7]),
        ("lost", [false; 7]),
        ("lost and gone", [false; 7]),
        ("never seen", [false; 7]),
    ] {
        for (case, permitted) in permitted.into_iter().enumerate() {
            let (owner, other) = match case {
                0 | 1 | 5 => (named("ada"), named("bob")),
                2 => (named("ada"), named("ada")),
                3 | 4 => (Principal::Token, Principal::Token),
                _ => (Principal::Nobody, Principal::Nobody),
            };
            let (mut sim, resume_token) = sim_with_session(state, owner);
            let first = sim.output.clients.get(&client(1)).into_iter().flatten();
            let mut watch_token = first.filter_map(|text| {
                let message: Value = serde_json::from_str(text).expect("JSON");
                let token = &message["result"]["_meta"]["outrigger"]["watchToken"];
                token.as_str().map(str::to_owned)
            });
            let watch_token = watch_token.next_back();
            if case == 4 {
                sim.output.watchers.push(client(2));
            }
            sim.join_as(2, other);
            sim.clear();
            let outrigger = match case {
                0 => json!({"watchToken": watch_token}),
                1 => json!({"resumeToken": resume_token}),
                _ => json!({"watchToken": ""}),
            };
            sim.client_sends(2, &attach("3", &outrigger));
            let answer = sim.client_received(2);
            assert_eq!(
                answer["result"].is_object(),
                permitted,
                "{state} {case}: {answer}"
            );
            assert!(
                permitted || [-32001, -32002].contains(&code(&answer)),
                "{answer}"
            );
            let data = &answer["error"]["data"];
            assert!(permitted || data["sessionId"] == "s", "{answer}");
            assert!(sim.output.agent.is_empty(), "{state} {case}");
            sim.disconnect(2);
        }
    }
}

#[test]
fn a_token_that_permits_observing_only_permits_nothing_else() {
    let (mut sim, _) = live(Approvals::Any);
    sim.output.watchers.push(client(2));
    sim.connect_as(2, named("ada"));
    // It starts no process, although its capabilities differ.
    sim.hello(
        2,
        &json!({"protocolVersion": 1, "clientCapabilities": {"terminal": true}}),
    );
    assert_eq!(
        sim.client_received(2)["result"]["_meta"]["outrigger"]["watch"],
        true
    );
    assert!(sim.output.agent.is_empty());
    for method in CLIENT_METHODS.into_iter().chain(["session/new", "x"]) {
        sim.client_sends(2, &request("1", method, &json!({"sessionId": "s"})));
        assert_eq!(code(&sim.client_received(2)), -32010, "{method}");
    }
    sim.client_sends(
        2,
        &notification("session/cancel", &json!({"sessionId": "s"})),
    );
    sim.client_sends(2, &notification("x", &json!({})));
    assert!(sim.output.agent.is_empty());
    sim.client_sends(2, &request("2", "session/list", &json!({})));
    sim.agent_answers(&json!({"sessions": [{"sessionId": "s"}]}));
    assert_eq!(
        sim.client_received(2)["result"]["sessions"],
        json!([{"sessionId": "s"}])
    );
    sim.client_sends(2, &attach("3", &json!({})));
    assert_eq!(sim.client_received(2)["result"]["role"], "observer");
    sim.agent_sends(&permission("7"));
    let shown = sim.client_received(2);
    assert_eq!(
        (&shown["method"], &shown["id"]),
        (&json!("session/request_permission"), &Value::Null)
    );
    let id = sim.client_received(1)["id"].clone();
    sim.clear();
    sim.client_sends(2, &allow(&id));
    assert!(sim.output.agent.is_empty(), "it may not approve");
    sim.client_sends(1, &allow(&id));
    assert_eq!(sim.agent_received()["id"], 7);
    let resolved = sim.client_received(2)["params"]["update"].clone();
    assert_eq!(resolved["sessionUpdate"], "permission_resolved");
    assert_eq!(resolved["toolCallId"], "t1");
    assert_eq!(resolved["chosenOptionId"], "yes");
    assert_eq!(
        resolved["resolvedBy"],
        json!({"clientId": client(1).to_string(), "name": "editor", "version": "2", "principal": "ada"})
    );
}

#[test]
fn the_first_answer_to_a_permission_request_counts_and_the_others_are_told() {
    let (mut sim, token) = live(Approvals::Any);
    observe(&mut sim, 2, &token);
    observe(&mut sim, 3, &token);
    sim.clear();
    sim.agent_sends(&permission("7"));
    let id = sim.client_received(1)["id"].clone();
    for number in [2, 3] {
        assert_eq!(sim.client_received(number)["id"], id);
    }
    // A client that attaches now gets the request too.
    observe(&mut sim, 4, &token);
    assert_eq!(
        received(&sim, 4).len(),
        3,
        "initialize, attach, the request"
    );
    assert_eq!(sim.client_received(4)["id"], id);
    sim.clear();

    // An observer that cannot answer does not answer for the others.
    let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}});
    sim.client_sends(3, &error.to_string());
    assert!(sim.output.agent.is_empty());
    sim.client_sends(2, &allow(&id));
    assert_eq!(sim.agent_received()["id"], 7);
    for number in [1, 3, 4] {
        let told = received(&sim, number);
        assert_eq!(told[0]["method"], "$/cancel_request");
        assert_eq!(told[0]["params"]["requestId"], id);
        let resolved = &told[1]["params"]["update"];
        assert_eq!(resolved["sessionUpdate"], "permission_resolved");
        let by = json!({"clientId": client(2).to_string(), "name": "phone", "principal": "bob"});
        assert_eq!(resolved["resolvedBy"], by);
        assert_eq!(told.len(), 2);
    }
    assert!(received(&sim, 2).is_empty());
    sim.clear();
    sim.client_sends(1, &allow(&id));
    sim.client_sends(3, &allow(&id));
    assert!(sim.output.agent.is_empty(), "late answers are dropped");
    assert!(!sim.router.is_busy(client(1)));
}

#[test]
fn an_observer_may_become_the_client_and_observers_stay_with_the_session() {
    let (mut sim, token) = live(Approvals::Any);
    sim.connect_as(2, named("ada"));
    sim.hello(2, &json!({"protocolVersion": 1}));
    sim.client_sends(2, &attach("3", &json!({})));
    observe(&mut sim, 3, &token);
    sim.agent_sends(&permission("7"));
    let id = sim.client_received(1)["id"].clone();
    sim.clear();
    let take = json!({"sessionId": "s", "_meta": {"outrigger": {"takeover": true}}});
    sim.client_sends(2, &request("4", "session/load", &take));
    sim.agent_answers(&json!({}));
    assert_eq!(sim.router.owner_of("s"), Some(client(2)));
    assert_eq!(
        received(&sim, 2).len(),
        1,
        "it has the permission request already"
    );
    sim.clear();
    let update = notification("session/update", &json!({"sessionId": "s"}));
    sim.agent_sends(&update);
    assert_eq!(
        [1, 2, 3].map(|number| received(&sim, number).len()),
        [0, 1, 1]
    );
    sim.client_sends(2, &allow(&id));
    assert_eq!(sim.agent_received()["id"], 7);

    // When the client leaves, observers are told, and they still see the end of the turn.
    sim.clear();
    sim.disconnect(2);
    let left = &received(&sim, 3)[0]["params"]["update"];
    assert_eq!(left["sessionUpdate"], "client_disconnected");
    assert_eq!(left["client"]["role"], "controller");
    sim.agent_sends(&update);
    assert_eq!(received(&sim, 3).len(), 2);
    // The end of the session is told as well.
    sim.now = sim.now + GRACE;
    sim.router.handle_timeout(sim.now, &mut sim.output);
    let notices = sim.router.take_notices();
    let [(observer, text)] = &notices[..] else {
        panic!("{notices:?}");
    };
    assert_eq!(*observer, client(3));
    assert!(text.contains("_outrigger/session_ended"), "{text}");
}

#[test]
fn observers_are_limited_and_leave_nothing_behind() {
    let (mut sim, token) = live(Approvals::Any);
    for number in 2..66 {
        observe(&mut sim, number, &token);
    }
    sim.connect_as(70, named("bob"));
    sim.hello(70, &json!({"protocolVersion": 1}));
    sim.client_sends(70, &attach("3", &json!({"watchToken": token})));
    assert_eq!(code(&sim.client_received(70)), -32013);
    sim.client_sends(65, &attach("3", &json!({"watchToken": token})));
    assert!(
        sim.client_received(65)["result"].is_object(),
        "it may attach again"
    );
    sim.agent_sends(&permission("7"));
    for number in 2..66 {
        sim.disconnect(number);
    }
    let mut left = Vec::new();
    sim.router.clients(&mut |client| left.push(client));
    assert!(
        left.iter()
            .all(|left| [client(1), client(70)].contains(left)),
        "{left:?}"
    );
}

/// Several windows of one program have one name in `initialize`.
#[test]
fn an_observer_may_have_a_name_of_its_own() {
    let (mut sim, token) = live(Approvals::Owner);
    observe(&mut sim, 2, &token);
    sim.join_as(3, named("cy"));
    let params = json!({"sessionId": "s", "clientId": "own", "clientInfo": {"name": "dashboard", "version": "7"}, "_meta": {"outrigger": {"watchToken": token}}});
    sim.client_sends(3, &request("3", "session/attach", &params));
    sim.client_sends(2, &attach("4", &json!({"watchToken": token})));
    let known = sim.client_received(2)["result"]["connectedClients"][1].clone();
    let expected = json!({"clientId": "own", "name": "dashboard", "version": "7", "principal": "cy", "role": "observer"});
    assert_eq!(known, expected);
}

#[test]
fn observers_of_version_two_see_what_the_agent_sends() {
    let mut sim = Simulation::new();
    for number in [1, 2] {
        sim.connect_as(number, named("ada"));
        let hello = json!({"protocolVersion": 2, "info": {"name": "x", "version": "1"}});
        sim.hello(number, &hello);
    }
    sim.connect_as(3, named("ada"));
    sim.hello(3, &json!({"protocolVersion": 1}));
    sim.session(1, "s");
    sim.client_sends(3, &attach("3", &json!({})));
    assert_eq!(code(&sim.client_received(3)), -32003, "another version");
    sim.client_sends(2, &attach("3", &json!({})));
    sim.clear();
    let prompt = json!({"sessionId": "s", "prompt": [{"type": "text", "text": "hi"}]});
    sim.client_sends(1, &request("5", "session/prompt", &prompt));
    sim.agent_answers(&json!({"messageId": "m"}));
    assert!(received(&sim, 2).is_empty(), "the agent echoes the prompt");
    sim.agent_sends(&notification("session/update", &json!({"sessionId": "s"})));
    assert_eq!(received(&sim, 2).len(), 1);
    for (subject, call) in [
        (
            json!({"type": "tool_call", "toolCall": {"toolCallId": "t2"}}),
            json!("t2"),
        ),
        (
            json!({"type": "command", "command": "ls", "toolCallId": "t3"}),
            json!("t3"),
        ),
        (json!({"type": "command", "command": "ls"}), Value::Null),
        (Value::Null, Value::Null),
    ] {
        let mut params = json!({"sessionId": "s", "title": "May I?", "options": []});
        if !subject.is_null() {
            params["subject"] = subject;
        }
        sim.agent_sends(&request("7", "session/request_permission", &params));
        let id = sim.client_received(1)["id"].clone();
        sim.client_sends(1, &allow(&id));
        let resolved = &sim.client_received(2)["params"]["update"];
        assert_eq!(resolved["sessionUpdate"], "permission_resolved");
        assert_eq!(
            (&resolved["requestId"], &resolved["toolCallId"]),
            (&id, &call)
        );
    }
}

#[test]
fn the_holder_of_a_link_that_permits_it_answers_and_does_nothing_else() {
    for (approvals, may_answer, answers) in [
        (Approvals::Any, true, true),
        (Approvals::Any, false, false),
        (Approvals::Owner, true, false),
    ] {
        let (mut sim, _) = live(approvals);
        sim.output.watchers.push(client(5));
        let owner = named("ada");
        let guest = Viewer {
            may_answer,
            ..viewer(client(5), Principal::Link(7), Some(&owner))
        };
        let added = sim.router.handle_viewer(guest, "s", &mut sim.output);
        assert_eq!(added, Ok(()));
        sim.clear();
        sim.agent_sends(&permission("7"));
        let id = sim.client_received(1)["id"].clone();
        let shown = sim.client_received(5);
        assert_eq!(shown["method"], "session/request_permission");
        assert_eq!(shown["id"] == id, answers);
        sim.clear();
        // It sends no requests and no prompts, and no array hides an answer.
        for text in [
            request(
                "1",
                "session/prompt",
                &json!({"sessionId": "s", "prompt": []}),
            ),
            request("1", "session/load", &json!({"sessionId": "s"})),
            notification("session/cancel", &json!({"sessionId": "s"})),
            format!("[{}]", allow(&id)),
            allow(&json!(id.as_u64().expect("a number") + 1)),
            "nonsense".to_owned(),
        ] {
            sim.client_sends(5, &text);
            assert!(
                sim.output.agent.is_empty() && sim.output.clients.is_empty(),
                "{text}"
            );
        }
        sim.client_sends(5, &allow(&id));
        assert_eq!(sim.output.agent.len(), usize::from(answers));
        if answers {
            let resolved = sim.client_received(1);
            let by = &resolved["params"]["update"]["resolvedBy"];
            assert_eq!(by["principal"], "link:7", "{resolved}");
        }
    }
}

/// The bug: the answer to a prompt may name other sessions of the client, and observers of one session were shown all of it.
#[test]
fn the_end_of_a_turn_shows_observers_no_other_session() {
    let (mut sim, token) = live(Approvals::Owner);
    sim.session(1, "secret");
    sim.join_as(2, named("bob"));
    sim.client_sends(2, &attach("3", &json!({"watchToken": token})));
    for outcome in [
        json!({"error": {"code": 1, "message": "no", "data": {"sessionId": "secret"}}}),
        json!({"result": {"stopReason": {"sessionId": "secret"}}}),
    ] {
        let prompt = json!({"sessionId": "s", "prompt": []});
        sim.client_sends(1, &request("5", "session/prompt", &prompt));
        let mut answer = outcome;
        answer["jsonrpc"] = json!("2.0");
        answer["id"] = sim.agent_received()["id"].clone();
        sim.clear();
        sim.agent_sends(&answer.to_string());
        let shown = received(&sim, 2);
        assert_eq!(shown.len(), 1);
        assert!(!shown[0].to_string().contains("secret"), "{}", shown[0]);
    }
}
