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
