//! Ids, cancellations, invalid messages, and the exit of the agent.

use super::*;

#[test]
fn an_invalid_message_gets_an_error_and_does_not_reach_the_agent() {
    let mut world = World::with(1);
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
        world.client_sends(1, text);
        let heard = world.client_received(1);
        assert_eq!((code(&heard), &heard["id"]), (want, &id), "{text}");
        assert!(
            heard["error"].get("data").is_some(),
            "errors always have data"
        );
    }
    assert!(world.output.agent.is_empty());
    world.client_sends(
        1,
        &request(&format!("\"{}\"", "x".repeat(1030)), "x", &json!({})),
    );
    assert_eq!(world.output.closed, [(client(1), CloseCode::POLICY)]);
}

#[test]
fn ids_come_back_byte_for_byte_and_never_collide() {
    let mut world = World::with(3);
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
            world.client_sends(number, &request(id, "authenticate", &json!({"x": number})));
            sent.push((
                number,
                id,
                world.agent_received()["id"].as_u64().expect("a number"),
            ));
        }
    }
    let mut upstream_ids: Vec<u64> = sent.iter().map(|(.., id)| *id).collect();
    upstream_ids.sort_unstable();
    upstream_ids.dedup();
    assert_eq!(upstream_ids.len(), 24, "all upstream ids differ");
    for (number, id, upstream_id) in sent.iter().rev() {
        world.agent_sends(&format!(
            r#"{{ "jsonrpc":"2.0","result":[1.50, "é"],"id":{upstream_id} }}"#
        ));
        let got = world.output.clients[&client(*number)]
            .last()
            .expect("an answer");
        assert_eq!(
            got,
            &format!(r#"{{ "jsonrpc":"2.0","result":[1.50, "é"],"id":{id} }}"#)
        );
    }
    let before = world.output.clients.clone();
    for upstream_id in upstream_ids {
        world.agent_sends(&format!(
            r#"{{"jsonrpc":"2.0","result":0,"id":{upstream_id}}}"#
        ));
        world.agent_sends(&format!(
            r#"{{"jsonrpc":"2.0","result":0,"id":"{upstream_id}"}}"#
        ));
    }
    assert_eq!(
        world.output.clients, before,
        "a second response is dropped, and so is a response whose id is a string"
    );
    assert_eq!(world.router.client_request_count(), 0);
}

#[test]
fn cancellations_name_the_receivers_id() {
    let mut world = World::with(2);
    world.session(1, "s");
    world.client_sends(
        1,
        &request("\"\\u0061\"", "session/prompt", &json!({"sessionId": "s"})),
    );
    let upstream_id = world.agent_received()["id"].clone();
    world.clear();
    world.client_sends(
        2,
        &notification("$/cancel_request", &json!({"requestId": "a"})),
    );
    world.client_sends(
        1,
        &notification("$/cancel_request", &json!({"requestId": "b"})),
    );
    assert!(
        world.output.agent.is_empty(),
        "neither another client's request nor an unknown one can be cancelled"
    );
    world.client_sends(
        1,
        &notification("$/cancel_request", &json!({"requestId": "a"})),
    );
    assert_eq!(world.agent_received()["params"]["requestId"], upstream_id);

    world.agent_sends(&request(
        "\"q\"",
        "session/request_permission",
        &json!({"sessionId": "s"}),
    ));
    let asked = world.client_received(1)["id"].clone();
    world.agent_sends(&notification(
        "$/cancel_request",
        &json!({"requestId": "q"}),
    ));
    assert_eq!(world.client_received(1)["params"]["requestId"], asked);
}

#[test]
fn when_the_agent_exits_all_requests_fail_and_the_new_agent_gets_the_same_initialize() {
    let mut world = World::with(3);
    for number in 1..=3 {
        world.session(number, &format!("s{number}"));
        world.client_sends(
            number,
            &request(
                "\"p\"",
                "session/prompt",
                &json!({"sessionId": format!("s{number}")}),
            ),
        );
    }
    world.clear();
    world
        .router
        .handle_agent_exited(r#"{"code":null,"signal":"SIGKILL"}"#, &mut world.output);
    for number in 1..=3 {
        let heard = world.client_received(number);
        assert_eq!((code(&heard), &heard["id"]), (-32012, &json!("p")));
        assert_eq!(heard["error"]["data"]["signal"], "SIGKILL");
    }
    assert_eq!(
        (
            world.router.client_request_count(),
            world.router.agent_request_count()
        ),
        (0, 0)
    );
    world.router.handle_agent_started(&mut world.output);
    let again = world.agent_received();
    assert_eq!(again["method"], "initialize");
    assert_eq!(
        again["params"]["clientCapabilities"]["fs"]["readTextFile"], true,
        "with the same parameters"
    );
    world.agent_answers(&json!({"protocolVersion": 1}));
    world.session(2, "new");
}

#[test]
fn an_invalid_response_fails_its_request() {
    let mut world = World::with(1);
    world.client_sends(1, &request("\"a\"", "authenticate", &json!({})));
    let id = world.agent_received()["id"].clone();
    world.agent_sends(&format!(r#"{{"id":{id},"result":{{}}}}"#));
    assert_eq!(
        (
            code(&world.client_received(1)),
            &world.client_received(1)["id"]
        ),
        (-32603, &json!("a"))
    );
    assert_eq!(world.router.client_request_count(), 0);
}
