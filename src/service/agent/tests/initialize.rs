//! The handshake between clients, router and agent.

use super::*;

#[test]
fn initialize_reaches_the_agent_once() {
    let mut sim = Simulation::new();
    for number in 1..=3 {
        sim.connect(number);
        sim.client_sends(
            number,
            &request(&format!("\"i{number}\""), "initialize", &json!({"a": 1})),
        );
    }
    assert_eq!(sim.output.agent.len(), 1);
    sim.agent_sends(r#"{"id":1, "jsonrpc":"2.0","result":{"protocolVersion" : 1.0}}"#);
    sim.connect(4);
    sim.client_sends(4, &request("null", "initialize", &json!({"a": 2})));
    assert_eq!(
        sim.output.agent.len(),
        1,
        "later clients get the first response"
    );
    assert_eq!(
        sim.output.clients[&client(2)],
        [
            r#"{"id":"i2", "jsonrpc":"2.0","result":{"_meta":{"outrigger":{"resume":false,"takeover":true,"watch":true}},"protocolVersion" : 1.0}}"#
        ]
    );
    let late = r#"{"jsonrpc":"2.0","id":null,"result":{"_meta":{"outrigger":{"resume":false,"takeover":true,"watch":true}},"protocolVersion" : 1.0}}"#;
    assert_eq!(sim.output.clients[&client(4)], [late]);
}

#[test]
fn initialize_is_sent_again_after_an_error() {
    let mut sim = Simulation::new();
    sim.connect(1);
    sim.client_sends(1, &request("7", "initialize", &json!({})));
    sim.agent_sends(
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no","data":{"why":"busy"}}}"#,
    );
    assert_eq!(
        sim.client_received(1)["error"]["data"]["why"],
        "busy",
        "errors keep their data"
    );
    sim.client_sends(1, &request("8", "initialize", &json!({})));
    assert_eq!(sim.output.agent.len(), 2);
}

#[test]
fn a_first_message_other_than_initialize_closes_the_client() {
    for text in [
        request("1", "session/new", &json!({})),
        notification("x", &json!({})),
    ] {
        let mut sim = Simulation::new();
        sim.connect(1);
        sim.client_sends(1, &text);
        assert_eq!(sim.output.closed, [(client(1), CloseCode::PROTOCOL)]);
        assert!(sim.output.agent.is_empty());
    }
}

#[test]
fn initialize_is_answered_if_it_was_sent_while_the_agent_was_restarting() {
    let mut sim = Simulation::new();
    sim.connect(1);
    sim.client_sends(1, &request("1", "initialize", &json!({})));
    sim.router.handle_agent_exited(0, "{}", &mut sim.output);
    assert_eq!(code(&sim.client_received(1)), -32012);
    sim.client_sends(1, &request("2", "initialize", &json!({})));
    sim.client_sends(1, &request("3", "initialize", &json!({})));
    assert_eq!(code(&sim.client_received(1)), -32600, "one at a time");
    sim.router.handle_agent_started(sim.now, 0, &mut sim.output);
    sim.agent_answers(&json!({"protocolVersion": 1}));
    assert_eq!(sim.client_received(1)["id"], 2);
}

#[test]
fn a_client_cannot_make_an_agent_exit_with_a_wrong_type_or_a_message_of_the_wrong_kind() {
    // The bug: such messages reached the agent, and some agents exit then. After some exits the server stopped, and a token
    // that permits watching only was enough.
    for params in [
        json!([]),
        json!({"protocolVersion": "1"}),
        json!({"protocolVersion": 1.5}),
        json!({"protocolVersion": 1, "clientCapabilities": []}),
        json!({"protocolVersion": 1, "clientCapabilities": {"fs": {"readTextFile": "yes"}}}),
        json!({"protocolVersion": 2, "capabilities": {"elicitation": true}}),
        json!({"protocolVersion": 1, "clientInfo": "editor"}),
    ] {
        let mut sim = Simulation::new();
        sim.connect(1);
        sim.client_sends(1, &request("1", "initialize", &params));
        let received = sim.client_received(1);
        assert_eq!(code(&received), -32602, "{params}");
        let why = received["error"]["data"].as_str().unwrap_or_default();
        assert!(why.starts_with("params"), "{why}");
        assert!(sim.output.agent.is_empty());
        // The client may try again.
        sim.client_sends(
            1,
            &request("2", "initialize", &json!({"protocolVersion": 1})),
        );
        assert_eq!(sim.output.agent.len(), 1);
    }
    let mut sim = Simulation::with(1);
    for text in [
        request("1", "session/list", &json!({"cursor": 5})),
        request("1", "session/list", &json!({"cwd": {}})),
        request("1", "session/cancel", &json!({"sessionId": "s"})),
        request("1", "document/didOpen", &json!({"sessionId": "s"})),
        notification("session/list", &json!({})),
        notification("session/new", &json!({})),
        notification("initialize", &json!({})),
        notification("authenticate", &json!({})),
    ] {
        sim.client_sends(1, &text);
        let received = sim.client_received(1);
        assert!(matches!(code(&received), -32600 | -32602), "{text}");
        let id = if text.contains("\"id\"") {
            json!(1)
        } else {
            json!(null)
        };
        assert_eq!(received["id"], id);
        assert!(sim.output.agent.is_empty(), "{text}");
        sim.clear();
    }
    for text in [
        request(
            "1",
            "session/list",
            &json!({"cursor": null, "cwd": "/", "x": 1}),
        ),
        request("1", "$/cancel_request", &json!({"requestId": 1})),
        request("1", "_vendor/x", &json!({})),
        notification("_vendor/x", &json!({})),
    ] {
        sim.client_sends(1, &text);
    }
    assert_eq!(sim.output.agent.len(), 4, "all of these are permitted");
}

#[test]
fn only_known_parameters_of_an_observer_reach_the_agent() {
    let mut sim = Simulation::new();
    sim.connect(1);
    sim.output.watchers.push(client(1));
    let params = json!({
        "protocolVersion": 1,
        "clientCapabilities": {"fs": {"readTextFile": false, "x": 1}, "odd": {"y": 2}},
        "clientInfo": {"name": "n", "version": "1", "z": []},
        "_meta": {"a": 1},
    });
    // The id is not where it is in the message without the other parameters.
    let text =
        format!(r#"{{ "é":0,"params":{params},"method":"initialize","id":"i","jsonrpc":"2.0"}}"#);
    sim.client_sends(1, &text);
    let known = json!({
        "protocolVersion": 1,
        "clientCapabilities": {"fs": {"readTextFile": false}},
        "clientInfo": {"name": "n", "version": "1"},
    });
    assert_eq!(sim.agent_received()["params"], known);
    sim.agent_answers(&json!({"protocolVersion": 1}));
    assert_eq!(sim.client_received(1)["id"], "i");
    let params = json!({"cursor": "c", "x": {}, "_meta": {"a": 1}});
    sim.client_sends(1, &request("2", "session/list", &params));
    assert_eq!(sim.agent_received()["params"], json!({"cursor": "c"}));
    sim.agent_answers(&json!({"sessions": []}));
    assert_eq!(sim.client_received(1)["id"], 2);
}
