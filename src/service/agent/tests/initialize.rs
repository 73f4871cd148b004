//! The handshake between clients, router and agent, and agent processes that cannot be started or do not accept `initialize`.

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

fn version_1() -> Value {
    json!({"protocolVersion": 1})
}

fn with_terminal() -> Value {
    json!({"protocolVersion": 1, "clientCapabilities": {"terminal": true}})
}

#[test]
fn a_process_that_is_given_up_leaves_no_request_behind() {
    let mut sim = Simulation::new();
    sim.connect_as(1, named("ada"));
    sim.hello(1, &version_1());
    sim.connect_as(2, named("ada"));
    sim.hello(2, &with_terminal());
    sim.session(2, "s");
    sim.disconnect(2);
    // While the process waits for its restart, a client of another kind uses its session.
    sim.router.handle_agent_exited(1, "{}", &mut sim.output);
    sim.clear();
    sim.client_sends(1, &claim("5", "session/load", "s", None));
    let fork = json!({"sessionId": "s"});
    sim.client_sends(1, &request("6", "session/fork", &fork));
    assert!(sim.router.is_busy(client(1)));
    assert_eq!(sim.router.give_up(1, &mut sim.output), Some(vec![]));
    let answers = &sim.output.clients[&client(1)];
    assert_eq!(answers.len(), 2, "each request is answered");
    assert!(answers.iter().all(|answer| answer.contains(r#""error""#)));
    assert_eq!(sim.router.figures().client_requests, 0);
    assert!(!sim.router.is_busy(client(1)));

    // The next process gets its place.
    sim.connect_as(3, named("bob"));
    sim.hello(3, &with_terminal());
    assert_eq!(sim.output.receivers.last(), Some(&1));
    sim.disconnect(1);
    sim.session(3, "t");
    assert_eq!(sim.router.owner_of("t"), Some(client(3)));
}

#[test]
fn a_restarted_agent_that_rejects_initialize_is_stopped_also_if_a_client_waits() {
    let mut sim = Simulation::new();
    sim.connect_as(1, named("ada"));
    sim.hello(1, &version_1());
    sim.session(1, "s");
    sim.router.handle_agent_exited(0, "{}", &mut sim.output);
    sim.router.handle_agent_started(sim.now, 0, &mut sim.output);
    let id = sim.agent_received()["id"].clone();
    sim.connect_as(2, named("ada"));
    sim.client_sends(2, &request("0", "initialize", &version_1()));
    let no = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32000, "message": "no"}});
    sim.agent_sends(&no.to_string());
    assert_eq!(code(&sim.client_received(2)), -32000);
    assert!(sim.router.is_refused(0) && sim.router.is_initializing(0));

    // The one that relies on the agent is answered by its successor.
    sim.router.handle_agent_exited(0, "{}", &mut sim.output);
    sim.router.handle_agent_started(sim.now, 0, &mut sim.output);
    assert_eq!(sim.agent_received()["method"], "initialize");
    sim.agent_answers(&version_1());
    sim.client_sends(1, &claim("5", "session/load", "s", None));
    assert_eq!(sim.agent_received()["method"], "session/load");
    sim.client_sends(2, &request("1", "initialize", &version_1()));
    assert!(sim.client_received(2)["result"].is_object());
}

#[test]
fn requests_that_follow_initialize_fail_with_it_when_the_agent_does_not_answer_in_time() {
    let mut sim = Simulation::new();
    sim.connect_as(1, named("ada"));
    sim.client_sends(1, &request("0", "initialize", &version_1()));
    sim.client_sends(1, &request("1", "session/new", &json!({})));
    sim.client_sends(1, &claim("2", "session/load", "s", None));
    sim.connect_as(2, named("ada"));
    sim.client_sends(2, &request("0", "initialize", &version_1()));
    sim.client_sends(2, &request("1", "session/list", &json!({})));
    sim.disconnect(2);
    sim.now = sim.now + INITIALIZE_TIMEOUT;
    sim.router.handle_timeout(sim.now, &mut sim.output);
    let answers = sim.output.clients[&client(1)].iter();
    let answers: Vec<Value> = answers
        .map(|text| serde_json::from_str(text).expect("JSON"))
        .collect();
    for (id, answer) in answers.iter().enumerate() {
        assert_eq!((code(answer), &answer["id"]), (-32014, &json!(id)));
    }
    assert_eq!(answers.len(), 3);
    assert_eq!(sim.router.figures().client_requests, 0);
    assert!(!sim.router.is_busy(client(1)));
    assert_eq!(sim.router.figures().sessions, 0, "the claim is undone");
    // The agent must not get what nobody waits for.
    let changes = sim.router.take_process_changes();
    assert_eq!(changes, [ProcessChange::Discard(0)]);

    sim.client_sends(1, &request("4", "initialize", &version_1()));
    sim.agent_answers(&version_1());
    sim.session(1, "s");
    assert_eq!(sim.router.owner_of("s"), Some(client(1)));
}

#[test]
fn initialize_is_not_sent_without_end_to_an_agent_that_does_not_answer() {
    let mut sim = Simulation::new();
    for number in 1..=100 {
        sim.connect(number);
        sim.client_sends(number, &request("0", "initialize", &version_1()));
        sim.disconnect(number);
    }
    let sent = sim.output.agent.clone();
    assert_eq!(sent.len(), 8);
    sim.connect(200);
    sim.client_sends(200, &request("0", "initialize", &version_1()));
    assert_eq!(sim.output.agent.len(), 8);
    sim.now = sim.now + INITIALIZE_TIMEOUT;
    sim.router.handle_timeout(sim.now, &mut sim.output);
    assert_eq!(
        code(&sim.client_received(200)),
        -32014,
        "it has a time limit"
    );

    // Each of the answers counts.
    sim.client_sends(200, &request("1", "initialize", &version_1()));
    let third: Value = serde_json::from_str(&sent[2]).expect("JSON");
    let answer = json!({"jsonrpc": "2.0", "id": third["id"], "result": version_1()});
    sim.agent_sends(&answer.to_string());
    assert!(sim.client_received(200)["result"].is_object());

    // Those that the agent does not send say nothing about who its questions are for.
    sim.session(200, "s");
    let prompt = json!({"sessionId": "s", "prompt": []});
    sim.client_sends(200, &request("3", "session/prompt", &prompt));
    sim.agent_sends(&request("9", "_vendor/ask", &json!({})));
    assert_eq!(sim.client_received(200)["method"], "_vendor/ask");
    let late: Value = serde_json::from_str(&sent[7]).expect("JSON");
    sim.clear();
    let late = json!({"jsonrpc": "2.0", "id": late["id"], "result": version_1()});
    sim.agent_sends(&late.to_string());
    assert!(sim.output.clients.is_empty() && sim.output.agent.is_empty());
}

/// Some agents hold state that must not exist twice, and a second process takes memory. The bug: the agent was told what the first
/// client can do, and did not ask the others for more.
#[test]
fn one_process_may_serve_clients_of_every_kind() {
    let mut limits = Simulation::new().router.settings();
    limits.is_one_process = true;
    let mut sim = Simulation::with_limits(limits);
    sim.connect(1);
    let own = json!({"fs": {"readTextFile": false, "x": 1}, "_meta": {"y": 2}});
    let params =
        json!({"protocolVersion": 1, "clientInfo": {"name": "a"}, "clientCapabilities": own});
    sim.hello(1, &params);
    let announced = json!({
        "fs": {"readTextFile": true, "writeTextFile": true, "x": 1},
        "terminal": true,
        "elicitation": {"form": {}, "url": {}},
        "_meta": {"y": 2},
    });
    let told = &sim.agent_received()["params"];
    assert_eq!(told["clientCapabilities"], announced);
    assert_eq!(told["clientInfo"], json!({"name": "a"}));
    sim.connect(2);
    sim.hello(2, &json!({"protocolVersion": 2, "capabilities": {}}));
    assert_eq!(sim.client_received(2)["result"]["protocolVersion"], 1);
    sim.connect(3);
    let can = json!({"fs": {"readTextFile": true}, "terminal": true, "elicitation": {"url": {}}});
    sim.hello(3, &json!({"protocolVersion": 1, "clientCapabilities": can}));
    assert_eq!(sim.router.take_process_changes(), []);
    let refusals = |sim: &mut Simulation, number: u64| {
        let name = format!("s{number}");
        sim.session(number, &name);
        let mut refusals = Vec::new();
        for (method, mode) in [
            ("fs/read_text_file", Value::Null),
            ("fs/write_text_file", Value::Null),
            ("terminal/create", Value::Null),
            ("elicitation/create", json!("form")),
            ("elicitation/create", json!("url")),
            ("elicitation/create", json!("_own")),
        ] {
            sim.clear();
            let params = json!({"sessionId": name, "mode": mode});
            sim.agent_sends(&request("5", method, &params));
            if sim.output.agent.is_empty() {
                assert_eq!(sim.client_received(number)["method"], method);
                continue;
            }
            let refused = sim.agent_received();
            assert_eq!(code(&refused), -32601);
            let why = refused["error"]["data"].as_str().expect("a reason");
            let missing = why.strip_prefix("the client has not announced the capability ");
            refusals.push(missing.expect("a capability").to_owned());
        }
        refusals
    };
    let all = [
        "fs.readTextFile",
        "fs.writeTextFile",
        "terminal",
        "elicitation.form",
        "elicitation.url",
        "elicitation",
    ];
    assert_eq!(refusals(&mut sim, 1), all);
    assert_eq!(refusals(&mut sim, 2), all);
    assert_eq!(
        refusals(&mut sim, 3),
        ["fs.writeTextFile", "elicitation.form"]
    );
    // The same client cannot initialize the connection with other capabilities, but that makes no difference here.
    sim.client_sends(
        2,
        &request("9", "initialize", &json!({"protocolVersion": 1})),
    );
    assert_eq!(sim.client_received(2)["result"]["protocolVersion"], 1);
}

#[test]
fn what_the_one_process_is_told_keeps_the_rest_of_the_first_clients_parameters() {
    let told = |params: &Value| {
        let mut limits = Simulation::new().router.settings();
        limits.is_one_process = true;
        let mut sim = Simulation::with_limits(limits);
        sim.connect(1);
        sim.hello(1, params);
        sim.agent_received()["params"].clone()
    };
    let elicitation = json!({"form": {}, "url": {}});
    let version_1 = json!({
        "fs": {"readTextFile": true, "writeTextFile": true},
        "terminal": true,
        "elicitation": elicitation,
    });
    for params in [
        json!({}),
        json!({"clientCapabilities": {}}),
        json!({"clientCapabilities": {"fs": {}, "elicitation": null}}),
    ] {
        assert_eq!(told(&params)["clientCapabilities"], version_1, "{params}");
    }
    let params = json!({"protocolVersion": 2, "info": {"name": "a"}, "capabilities": {"auth": {}}});
    let expected = json!({
        "protocolVersion": 2,
        "info": {"name": "a"},
        "capabilities": {"auth": {}, "elicitation": elicitation},
    });
    assert_eq!(told(&params), expected);
}

/// What a client says about its transport is not for the agent.
#[test]
fn the_transport_makes_no_other_kind_of_client() {
    let mut sim = Simulation::with(1);
    sim.connect(2);
    let capabilities = json!({"fs": {"readTextFile": true}, "transport": {"resumable": {}}});
    sim.hello(2, &json!({"clientCapabilities": capabilities}));
    assert_eq!(sim.client_received(2)["result"]["protocolVersion"], 1);
    assert_eq!(sim.router.take_process_changes(), []);
}
