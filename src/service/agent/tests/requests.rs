//! Ids, cancellations, messages that name no session, messages that are invalid or cannot be passed on, and the exit of the agent.

use super::*;
use crate::service::jsonrpc::RecoveredId;

#[test]
fn an_invalid_message_gets_an_error_and_does_not_reach_the_agent() {
    let mut sim = Simulation::with(1);
    for (text, want, id) in [
        ("nonsense", -32700, json!(null)),
        ("[]", -32600, json!(null)),
        ("7", -32600, json!(null)),
        (r#"{"jsonrpc":"2.0","id":3}"#, -32600, json!(3)),
        (
            r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#,
            -32600,
            json!(null),
        ),
    ] {
        sim.client_sends(1, text);
        let received = sim.client_received(1);
        assert_eq!((code(&received), &received["id"]), (want, &id), "{text}");
        assert!(
            received["error"].get("data").is_some(),
            "errors always have data"
        );
    }
    assert!(sim.output.agent.is_empty());
    // The bug: the error of a string that is not JSON did not say where.
    sim.client_sends(1, r#"{"jsonrpc":"2.0" "id":1}"#);
    let why = &sim.client_received(1)["error"]["data"];
    assert_eq!(why, "byte 17: expected `,` or `}`");
    sim.client_sends(
        1,
        &request(&format!("\"{}\"", "x".repeat(1030)), "x", &json!({})),
    );
    assert_eq!(sim.output.closed, [(client(1), CloseCode::POLICY)]);
}

#[test]
fn ids_come_back_byte_for_byte_and_never_collide() {
    let mut sim = Simulation::with(3);
    let ids = [
        "1",
        "\"1\"",
        "1.0",
        "1e0",
        "null",
        "\"\\u0031\"",
        "-7",
        "\"\"",
    ];
    let mut sent = Vec::new();
    for number in 1..=3 {
        for id in ids {
            sim.client_sends(number, &request(id, "authenticate", &json!({"x": number})));
            sent.push((
                number,
                id,
                sim.agent_received()["id"].as_u64().expect("a number"),
            ));
        }
    }
    let mut upstream_ids: Vec<u64> = sent.iter().map(|(.., id)| *id).collect();
    upstream_ids.sort_unstable();
    upstream_ids.dedup();
    assert_eq!(upstream_ids.len(), 24, "all upstream ids differ");
    for (number, id, upstream_id) in sent.iter().rev() {
        sim.agent_sends(&format!(
            r#"{{ "jsonrpc":"2.0","result":[1.50, "é"],"id":{upstream_id} }}"#
        ));
        let got = sim.output.clients[&client(*number)]
            .last()
            .expect("an answer");
        assert_eq!(
            got,
            &format!(r#"{{ "jsonrpc":"2.0","result":[1.50, "é"],"id":{id} }}"#)
        );
    }
    let before = sim.output.clients.clone();
    for upstream_id in upstream_ids {
        sim.agent_sends(&format!(
            r#"{{"jsonrpc":"2.0","result":0,"id":{upstream_id}}}"#
        ));
        sim.agent_sends(&format!(
            r#"{{"jsonrpc":"2.0","result":0,"id":"{upstream_id}"}}"#
        ));
    }
    assert_eq!(
        sim.output.clients, before,
        "a second response is dropped, and so is a response whose id is a string"
    );
    assert_eq!(sim.router.figures().client_requests, 0);
}

#[test]
fn cancellations_name_the_receivers_id() {
    let mut sim = Simulation::with(2);
    sim.session(1, "s");
    sim.client_sends(
        1,
        &request("\"\\u0061\"", "session/prompt", &json!({"sessionId": "s"})),
    );
    let upstream_id = sim.agent_received()["id"].clone();
    sim.clear();
    sim.client_sends(
        2,
        &notification("$/cancel_request", &json!({"requestId": "a"})),
    );
    sim.client_sends(
        1,
        &notification("$/cancel_request", &json!({"requestId": "b"})),
    );
    assert!(
        sim.output.agent.is_empty(),
        "neither another client's request nor an unknown one can be cancelled"
    );
    sim.client_sends(
        1,
        &notification("$/cancel_request", &json!({"requestId": "a"})),
    );
    assert_eq!(sim.agent_received()["params"]["requestId"], upstream_id);

    sim.agent_sends(&request(
        "\"q\"",
        "session/request_permission",
        &json!({"sessionId": "s"}),
    ));
    let upstream_id = sim.client_received(1)["id"].clone();
    sim.agent_sends(&notification(
        "$/cancel_request",
        &json!({"requestId": "q"}),
    ));
    assert_eq!(sim.client_received(1)["params"]["requestId"], upstream_id);
}

#[test]
fn when_the_agent_exits_all_requests_fail_and_the_new_agent_gets_the_same_initialize() {
    let mut sim = Simulation::with(3);
    for number in 1..=3 {
        sim.session(number, &format!("s{number}"));
        sim.client_sends(
            number,
            &request(
                "\"p\"",
                "session/prompt",
                &json!({"sessionId": format!("s{number}")}),
            ),
        );
    }
    sim.clear();
    sim.router
        .handle_agent_exited(0, r#"{"code":null,"signal":"SIGKILL"}"#, &mut sim.output);
    for number in 1..=3 {
        let received = sim.client_received(number);
        assert_eq!((code(&received), &received["id"]), (-32012, &json!("p")));
        assert_eq!(received["error"]["data"]["signal"], "SIGKILL");
    }
    assert_eq!(
        (
            sim.router.figures().client_requests,
            sim.router.figures().agent_requests
        ),
        (0, 0)
    );
    sim.router.handle_agent_started(sim.now, 0, &mut sim.output);
    let again = sim.agent_received();
    assert_eq!(again["method"], "initialize");
    assert_eq!(
        again["params"]["clientCapabilities"]["fs"]["readTextFile"], true,
        "with the same parameters"
    );
    sim.agent_answers(&json!({"protocolVersion": 1}));
    sim.session(2, "new");
}

#[test]
fn an_invalid_response_fails_its_request() {
    let mut sim = Simulation::with(1);
    sim.client_sends(1, &request("\"a\"", "authenticate", &json!({})));
    let id = sim.agent_received()["id"].clone();
    sim.agent_sends(&format!(r#"{{"id":{id},"result":{{}}}}"#));
    assert_eq!(
        (code(&sim.client_received(1)), &sim.client_received(1)["id"]),
        (-32603, &json!("a"))
    );
    assert_eq!(sim.router.figures().client_requests, 0);
}

/// An elicitation that refers to a request, as the protocol requires where no session exists.
fn elicitation(id: &str, request_id: &Value) -> String {
    request(
        id,
        "elicitation/create",
        &json!({"requestId": request_id, "mode": "form", "message": "?"}),
    )
}

/// A simulation with clients that support elicitations.
fn sim_with_elicitations(clients: u64) -> Simulation {
    let mut sim = Simulation::new();
    for number in 1..=clients {
        sim.connect(number);
        let hello = json!({"clientCapabilities": {"elicitation": {"form": {}, "url": {}}}});
        sim.client_sends(number, &request("0", "initialize", &hello));
        if number == 1 {
            sim.agent_answers(&json!({"protocolVersion": 1}));
        }
    }
    sim.clear();
    sim
}

fn receivers(sim: &Simulation) -> Vec<ClientId> {
    sim.output.clients.keys().copied().collect()
}

#[test]
fn a_request_without_a_session_goes_to_the_client_whose_request_it_refers_to() {
    // The bug: the request was rejected, so a login form was impossible.
    let mut sim = sim_with_elicitations(3);
    sim.client_sends(
        1,
        &request("\"a\"", "authenticate", &json!({"methodId": "x"})),
    );
    let first = sim.agent_received()["id"].clone();
    sim.client_sends(
        2,
        &request("\"a\"", "authenticate", &json!({"methodId": "x"})),
    );
    let second = sim.agent_received()["id"].clone();
    sim.clear();
    // The agent refers to the request by the upstream id. The client receives its own id.
    sim.agent_sends(&elicitation("\"e\"", &second));
    assert_eq!(receivers(&sim), [client(2)]);
    let received = sim.client_received(2);
    assert_eq!(received["params"]["requestId"], "a");
    let answer = json!({"jsonrpc": "2.0", "id": received["id"], "result": {"action": "accept"}});
    sim.client_sends(1, &answer.to_string());
    assert!(
        sim.output.agent.is_empty(),
        "another client cannot answer it"
    );
    sim.client_sends(2, &answer.to_string());
    assert_eq!(sim.agent_received()["id"], "e");

    // A request without a reference is rejected if it may belong to two clients.
    let nameless = request(
        "9",
        "elicitation/create",
        &json!({"mode": "form", "message": "?"}),
    );
    sim.clear();
    sim.agent_sends(&nameless);
    assert_eq!(
        (code(&sim.agent_received()), receivers(&sim).len()),
        (-32600, 0)
    );
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": first, "result": {}}).to_string());
    sim.session(3, "s");
    sim.client_sends(
        3,
        &request("7", "session/prompt", &json!({"sessionId": "s"})),
    );
    sim.clear();
    sim.agent_sends(&nameless);
    assert_eq!(
        receivers(&sim),
        [client(2)],
        "only one client is left: a request during a prompt would name its session"
    );

    // The request does not go to another client after its client has disconnected.
    sim.disconnect(2);
    sim.client_sends(1, &request("8", "authenticate", &json!({"methodId": "x"})));
    sim.clear();
    sim.agent_sends(&nameless);
    assert_eq!(
        (code(&sim.agent_received()), receivers(&sim).len()),
        (-32600, 0)
    );
    sim.agent_sends(&elicitation("10", &second));
    assert_eq!(
        (code(&sim.agent_received()), receivers(&sim).len()),
        (-32800, 0)
    );
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": second, "result": {}}).to_string());
    sim.agent_sends(&nameless);
    assert_eq!(receivers(&sim), [client(1)]);
}

#[test]
fn a_notification_without_a_session_is_delivered() {
    // The bug: it was dropped, and a client waited for `elicitation/complete` forever.
    let mut sim = sim_with_elicitations(3);
    sim.connect(4);
    let complete = notification("elicitation/complete", &json!({"elicitationId": "e"}));
    sim.agent_sends(&complete);
    let all = [client(1), client(2), client(3)];
    assert_eq!(
        receivers(&sim),
        all,
        "without a pending request, all initialized clients get it"
    );
    sim.client_sends(2, &request("5", "authenticate", &json!({})));
    let id = sim.agent_received()["id"].clone();
    sim.clear();
    sim.agent_sends(&complete);
    assert_eq!(
        receivers(&sim),
        [client(2)],
        "the only client with a pending request gets it"
    );
    sim.session(1, "s");
    sim.client_sends(
        1,
        &request("6", "session/prompt", &json!({"sessionId": "s"})),
    );
    sim.clear();
    sim.agent_sends(&complete);
    assert_eq!(receivers(&sim), all);
    sim.clear();
    sim.agent_sends(&notification("_vendor/progress", &json!({"requestId": id})));
    assert_eq!(receivers(&sim), [client(2)], "it refers to a request");
    assert_eq!(sim.client_received(2)["params"]["requestId"], 5);
    // The completion of an elicitation goes only to the client that got the elicitation.
    let params =
        json!({"sessionId": "s", "mode": "url", "elicitationId": "e", "url": "x", "message": "?"});
    sim.agent_sends(&request("70", "elicitation/create", &params));
    sim.clear();
    sim.agent_sends(&complete);
    assert_eq!(receivers(&sim), [client(1)]);
    sim.clear();
    sim.agent_sends(&complete);
    assert_eq!(receivers(&sim), all, "an elicitation is completed once");
    // With one client, the notification goes to it. Without clients, it is dropped.
    (2..=4).for_each(|number| sim.disconnect(number));
    sim.clear();
    sim.agent_sends(&complete);
    assert_eq!(receivers(&sim), [client(1)]);
    sim.disconnect(1);
    sim.clear();
    sim.agent_sends(&complete);
    assert!(receivers(&sim).is_empty());
}

#[test]
fn in_each_protocol_a_client_can_cancel_only_its_own_requests() {
    // The bug: only the id in the notification `$/cancel_request` was replaced. All other cancellations passed through, so a
    // client that guessed an upstream id could cancel another client's call.
    for (method, key) in [
        ("$/cancel_request", "requestId"),
        ("$/cancelRequest", "id"),
        ("notifications/cancelled", "requestId"),
    ] {
        let mut sim = Simulation::jsonrpc(2);
        sim.client_sends(1, &request("77", "tools/call", &json!({})));
        let first = sim.agent_received()["id"].clone();
        sim.client_sends(2, &request("77", "tools/call", &json!({})));
        let second = sim.agent_received()["id"].clone();
        sim.clear();
        for raw in [&first, &json!(78), &json!("77")] {
            sim.client_sends(2, &notification(method, &json!({key: raw})));
            sim.client_sends(2, &request("5", method, &json!({key: raw})));
            assert_eq!(code(&sim.client_received(2)), -32600, "{method}");
        }
        for params in [
            json!({}),
            json!({"request_id": 77}),
            json!({"requestId": 77, "id": 77}),
        ] {
            sim.client_sends(2, &notification(method, &params));
            sim.client_sends(2, &request("5", method, &params));
        }
        assert!(
            sim.output.agent.is_empty(),
            "{method}: {:?}",
            sim.output.agent
        );
        sim.client_sends(2, &request("\"c\"", method, &json!({key: 77})));
        let received = sim.agent_received();
        assert_eq!(received["params"][key], second, "{method}");
        assert!(received["id"].is_u64() && received["id"] != second);
        sim.client_sends(2, &notification(method, &json!({key: 77})));
        assert_eq!(sim.agent_received()["params"][key], second, "{method}");
        // A cancelled request of the Model Context Protocol gets no response and is no longer pending.
        let pending = if method == "notifications/cancelled" {
            2
        } else {
            3
        };
        assert_eq!(sim.router.figures().client_requests, pending, "{method}");
    }
    let mut sim = Simulation::jsonrpc(2);
    sim.client_sends(1, &request("1", "tools/call", &json!({})));
    sim.agent_sends(&request("\"q\"", "sampling/createMessage", &json!({})));
    let upstream_id = sim.client_received(1)["id"].clone();
    sim.agent_sends(&notification(
        "notifications/cancelled",
        &json!({"requestId": "q"}),
    ));
    assert_eq!(sim.client_received(1)["params"]["requestId"], upstream_id);
    assert_eq!(sim.router.figures().agent_requests, 0);
    sim.clear();
    sim.agent_sends(&notification(
        "notifications/cancelled",
        &json!({"requestId": "q"}),
    ));
    assert!(
        receivers(&sim).is_empty(),
        "the cancellation is dropped, not broadcast"
    );
}

#[test]
fn a_response_that_cannot_be_passed_on_fails_its_request() {
    // The bug: after a response over the message limit or with an unpaired surrogate, the request waited forever.
    let mut sim = Simulation::with(1);
    let fail = |sim: &mut Simulation, id: &Value| {
        let recovered = Some(RecoveredId::Response(id.to_string()));
        let now = sim.now;
        sim.router
            .handle_unreadable(now, 0, recovered, "is over the limit", &mut sim.output);
    };
    sim.client_sends(1, &request("\"a\"", "authenticate", &json!({})));
    let id = sim.agent_received()["id"].clone();
    fail(&mut sim, &id);
    let received = sim.client_received(1);
    assert_eq!((code(&received), &received["id"]), (-32603, &json!("a")));
    assert_eq!(
        received["error"]["data"],
        "the agent's answer is over the limit"
    );

    sim.client_sends(1, &request("\"b\"", "authenticate", &json!({})));
    let id = sim.agent_received()["id"].clone();
    sim.agent_sends(&format!(
        r#"{{"jsonrpc":"2.0","result":"\ud800","id":{id}}}"#
    ));
    assert_eq!(sim.client_received(1)["id"], "b");

    // A load fails in the same way.
    sim.client_sends(
        1,
        &request("\"c\"", "session/load", &json!({"sessionId": "old"})),
    );
    let id = sim.agent_received()["id"].clone();
    fail(&mut sim, &id);
    assert_eq!(
        (
            sim.router.owner_of("old"),
            sim.router.figures().client_requests
        ),
        (None, 0)
    );

    // After a failed `initialize`, the next one is sent to the agent.
    let mut sim = Simulation::new();
    sim.connect(1);
    sim.client_sends(1, &request("\"i\"", "initialize", &json!({})));
    let id = sim.agent_received()["id"].clone();
    fail(&mut sim, &id);
    assert_eq!(
        (code(&sim.client_received(1)), &sim.client_received(1)["id"]),
        (-32603, &json!("i"))
    );
    sim.client_sends(1, &request("\"j\"", "initialize", &json!({})));
    assert_eq!(sim.output.agent.len(), 2);

    // An invalid request of the agent gets an error and is not mistaken for a response with the same id.
    sim.agent_answers(&json!({"protocolVersion": 1}));
    sim.client_sends(1, &request("\"d\"", "authenticate", &json!({})));
    let id = sim.agent_received()["id"].clone();
    sim.clear();
    let line = request(
        &id.to_string(),
        "fs/read_text_file",
        &json!({"sessionId": 5}),
    );
    sim.agent_sends(&line);
    assert_eq!(
        (code(&sim.agent_received()), &sim.agent_received()["id"]),
        (-32600, &id)
    );
    assert!(sim.output.clients.is_empty());
    assert_eq!(sim.router.figures().client_requests, 1);
}
