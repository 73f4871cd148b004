//! Ids, cancellations, invalid messages, and the exit of the agent.

use super::*;

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
