//! One agent process for each kind of client.

use super::*;

fn with_files() -> Value {
    json!({"protocolVersion": 1, "clientCapabilities": {"fs": {"readTextFile": true, "writeTextFile": true}}})
}

fn without_files() -> Value {
    json!({"protocolVersion": 1, "clientCapabilities": {}})
}

/// A simulation in which client 1 announces files and client 2 does not.
fn two_kinds() -> Simulation {
    let mut sim = Simulation::new();
    sim.connect_as(1, named("ada"));
    sim.hello(1, &with_files());
    sim.connect_as(2, named("ada"));
    sim.hello(2, &without_files());
    sim.clear();
    sim
}

#[test]
fn clients_of_one_kind_share_a_process_and_others_get_another() {
    let mut sim = Simulation::new();
    sim.connect(1);
    sim.hello(1, &with_files());
    assert_eq!(sim.output.receivers, [0]);
    // The order of keys, the client's name and `_meta` make no difference.
    sim.connect(2);
    let same = r#"{"jsonrpc":"2.0","id":"x","method":"initialize","params":{"_meta":{"a":1},"clientInfo":{"name":"z"},
        "clientCapabilities":{"fs":{ "writeTextFile":true,"readTextFile" : true}},"protocolVersion":1}}"#;
    sim.client_sends(2, same);
    assert_eq!(sim.client_received(2)["id"], "x");
    assert!(sim.router.take_process_changes().is_empty());

    for (number, params) in [
        (3, without_files()),
        (4, json!({"protocolVersion": 2, "capabilities": {}})),
    ] {
        sim.connect(number);
        sim.clear();
        sim.client_sends(number, &request("7", "initialize", &params));
        let index = number as usize - 2;
        assert_eq!(sim.start_processes(), [ProcessChange::Start(index)]);
        let sent = sim.agent_received();
        assert_eq!(
            (&sent["method"], &sent["params"]),
            (&json!("initialize"), &params)
        );
        sim.agent_answers(&json!({"protocolVersion": params["protocolVersion"]}));
        assert_eq!(
            sim.client_received(number)["result"]["protocolVersion"],
            params["protocolVersion"]
        );
    }
    assert_eq!(sim.router.process_figures(0).clients, 2);
    assert_eq!(sim.router.process_figures(2).version, 2);

    // The limit is three.
    sim.connect(5);
    let fourth = json!({"protocolVersion": 1, "clientCapabilities": {"terminal": true}});
    sim.client_sends(5, &request("7", "initialize", &fourth));
    let refused = sim.client_received(5);
    assert_eq!(code(&refused), -32013);
    assert!(
        refused["error"]["data"]
            .to_string()
            .contains("limit of agent processes")
    );
    sim.client_sends(5, &request("8", "session/list", &json!({})));
    assert_eq!(code(&sim.client_received(5)), -32600);
    // It may try again as a kind that is there.
    sim.client_sends(5, &request("9", "initialize", &with_files()));
    assert!(sim.client_received(5)["result"].is_object());
    sim.client_sends(5, &request("9", "initialize", &without_files()));
    assert_eq!(
        code(&sim.client_received(5)),
        -32600,
        "a client has one kind"
    );
}

#[test]
fn a_process_that_nobody_uses_is_stopped_and_the_last_one_stays() {
    let mut sim = two_kinds();
    sim.session(2, "s");
    sim.disconnect(2);
    assert_eq!(
        sim.router.take_process_changes(),
        [],
        "its session may be loaded"
    );
    sim.now = sim.now + GRACE;
    sim.router.handle_timeout(sim.now, &mut sim.output);
    assert_eq!(sim.router.take_process_changes(), [ProcessChange::Stop(1)]);
    sim.disconnect(1);
    assert_eq!(sim.router.take_process_changes(), []);

    // A client of another kind replaces the only process, which nobody uses.
    sim.connect(3);
    sim.hello(3, &without_files());
    sim.connect(4);
    sim.hello(4, &json!({"protocolVersion": 2}));
    sim.clear();
    sim.client_sends(3, &request("1", "session/new", &json!({})));
    sim.client_sends(4, &request("1", "session/new", &json!({})));
    assert_eq!(sim.output.receivers.len(), 2);
    assert_ne!(sim.output.receivers[0], sim.output.receivers[1]);
}

#[test]
fn a_full_house_makes_room_by_stopping_what_nobody_uses() {
    let mut limits = Simulation::new().router.settings();
    limits.processes = 1;
    let mut sim = Simulation::with_limits(limits);
    sim.connect(1);
    sim.hello(1, &with_files());
    sim.connect(2);
    sim.client_sends(2, &request("0", "initialize", &without_files()));
    assert_eq!(code(&sim.client_received(2)), -32013);
    sim.disconnect(1);
    sim.client_sends(2, &request("1", "initialize", &without_files()));
    let changes = sim.start_processes();
    assert_eq!(changes, [ProcessChange::Stop(0), ProcessChange::Start(0)]);
    sim.agent_answers(&json!({"protocolVersion": 1}));
    assert_eq!(sim.client_received(2)["id"], 1);
}

#[test]
fn clients_that_come_and_go_do_not_pile_up_processes_that_are_stopping() {
    let mut limits = Simulation::new().router.settings();
    limits.processes = 1;
    let mut sim = Simulation::with_limits(limits);
    let hello = |version: u64| request("0", "initialize", &json!({"protocolVersion": version}));
    for number in 1..=3 {
        sim.connect(number);
        sim.client_sends(number, &hello(number));
        sim.disconnect(number);
    }
    let changes = sim.router.take_process_changes();
    assert_eq!(changes, [ProcessChange::Stop(0), ProcessChange::Start(0)]);
    assert_eq!(code(&sim.client_received(3)), -32013);
    sim.router.handle_stopped();
    sim.connect(4);
    sim.client_sends(4, &hello(4));
    assert_eq!(sim.router.take_process_changes().len(), 2);
}

#[test]
fn a_session_stays_in_its_process_whoever_loads_it() {
    let mut sim = two_kinds();
    sim.session(1, "s");
    sim.disconnect(1);
    assert_eq!(sim.router.take_process_changes(), []);
    sim.clear();
    sim.client_sends(2, &claim("3", "session/load", "s", None));
    sim.agent_answers(&json!({}));
    let prompt = json!({"sessionId": "s", "prompt": []});
    sim.client_sends(2, &request("4", "session/prompt", &prompt));
    sim.client_sends(
        2,
        &notification("session/cancel", &json!({"sessionId": "s"})),
    );
    sim.client_sends(2, &request("5", "session/list", &json!({})));
    assert_eq!(sim.output.receivers, [0, 0, 0, 1]);

    // What its new client did not announce is refused in its place.
    sim.clear();
    let read = json!({"sessionId": "s", "path": "/x"});
    sim.process_sends(0, &request("9", "fs/read_text_file", &read));
    assert_eq!(code(&sim.agent_received()), -32601);
    assert_eq!(sim.output.receivers, [0]);
    // Another process cannot reach the session.
    sim.clear();
    sim.process_sends(
        1,
        &notification("session/update", &json!({"sessionId": "s"})),
    );
    sim.process_sends(
        1,
        &request(
            "9",
            "session/request_permission",
            &json!({"sessionId": "s"}),
        ),
    );
    assert!(sim.output.clients.is_empty());
    assert_eq!(
        sim.agent_received()["result"]["outcome"]["outcome"],
        "cancelled"
    );
    assert_eq!(sim.output.receivers, [1]);
    // Nor can it answer requests that another process got.
    sim.clear();
    sim.client_sends(2, &request("6", "session/prompt", &prompt));
    let id = sim.agent_received()["id"].clone();
    sim.process_sends(
        1,
        &json!({"jsonrpc": "2.0", "id": id, "result": {}}).to_string(),
    );
    assert!(sim.output.clients.is_empty());
    sim.process_sends(
        0,
        &json!({"jsonrpc": "2.0", "id": id, "result": {}}).to_string(),
    );
    assert_eq!(sim.client_received(2)["id"], 6);
}

#[test]
fn the_exit_of_one_process_concerns_only_its_own_requests_and_sessions() {
    let mut sim = two_kinds();
    sim.session(1, "one");
    sim.session(2, "two");
    for (number, name) in [(1, "one"), (2, "two")] {
        let prompt = json!({"sessionId": name, "prompt": []});
        sim.client_sends(number, &request("4", "session/prompt", &prompt));
    }
    let two = sim.agent_received()["id"].clone();
    sim.clear();
    sim.router.handle_agent_exited(0, "{}", &mut sim.output);
    assert_eq!(code(&sim.client_received(1)), -32012);
    assert!(!sim.output.clients.contains_key(&client(2)));
    sim.process_sends(
        1,
        &json!({"jsonrpc": "2.0", "id": two, "result": {}}).to_string(),
    );
    assert_eq!(sim.client_received(2)["id"], 4);
    let prompt = |name: &str| request("5", "session/prompt", &json!({"sessionId": name}));
    sim.client_sends(1, &prompt("one"));
    assert_eq!(code(&sim.client_received(1)), -32002, "lost");
    sim.clear();
    sim.client_sends(2, &prompt("two"));
    assert_eq!(sim.output.receivers, [1]);

    // Given up, the process takes its clients with it.
    assert_eq!(
        sim.router.give_up(0, &mut sim.output),
        Some(vec![client(1)])
    );
    assert_eq!(sim.router.owner_of("one"), None);
    assert_eq!(sim.router.give_up(1, &mut sim.output), None, "the last one");
}

#[test]
fn a_session_of_another_protocol_version_is_loaded_only_when_its_client_has_left() {
    let mut sim = Simulation::new();
    sim.connect_as(1, named("ada"));
    sim.hello(1, &json!({"protocolVersion": 1}));
    sim.connect_as(2, named("ada"));
    sim.hello(2, &json!({"protocolVersion": 2}));
    sim.session(1, "s");
    let params = json!({"sessionId": "s", "_meta": {"outrigger": {"takeover": true}}});
    sim.client_sends(2, &request("3", "session/resume", &params));
    assert_eq!(code(&sim.client_received(2)), -32600);
    sim.disconnect(1);
    sim.clear();
    sim.client_sends(2, &request("3", "session/resume", &params));
    assert_eq!(sim.output.receivers, [1], "its own process loads it");
    sim.agent_answers(&json!({}));
    sim.client_sends(
        2,
        &request("4", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(sim.output.receivers, [1, 1]);
    assert_eq!(sim.router.process_figures(0).sessions, 0);
}

#[test]
fn initialize_that_is_not_answered_in_time_fails_and_is_sent_again() {
    let mut sim = Simulation::new();
    sim.connect(1);
    sim.client_sends(1, &request("1", "initialize", &json!({})));
    let first = sim.agent_received()["id"].clone();
    let deadline = sim.now + INITIALIZE_TIMEOUT;
    assert_eq!(sim.router.take_wakeup(), Some(deadline));
    sim.connect(2);
    sim.client_sends(2, &request("2", "initialize", &json!({})));
    assert_eq!(sim.output.agent.len(), 1);
    sim.now = deadline;
    sim.router.handle_timeout(sim.now, &mut sim.output);
    for number in [1, 2] {
        assert_eq!(code(&sim.client_received(number)), -32014);
    }
    sim.client_sends(1, &request("3", "initialize", &json!({})));
    assert_eq!(sim.output.agent.len(), 2, "it is sent again");
    let second = sim.agent_received()["id"].clone();
    assert_ne!(first, second);
    // The agent answers the first one late, and rejects the second one.
    sim.clear();
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": first, "result": {"a": 1}}).to_string());
    let answer = sim.client_received(1);
    assert_eq!(
        (&answer["id"], &answer["result"]["a"]),
        (&json!(3), &json!(1))
    );
    sim.clear();
    let twice = json!({"jsonrpc": "2.0", "id": second, "error": {"code": 1, "message": "twice"}});
    sim.agent_sends(&twice.to_string());
    assert!(sim.output.clients.is_empty());
    sim.connect(3);
    sim.client_sends(3, &request("4", "initialize", &json!({})));
    assert_eq!(sim.client_received(3)["result"]["a"], 1);
}

#[test]
fn initialize_whose_client_left_is_sent_again_for_the_next_one() {
    // The bug: the next client waited for an answer that might never come, and an error stopped the agent.
    let mut sim = Simulation::new();
    sim.connect(1);
    sim.client_sends(1, &request("1", "initialize", &json!({})));
    sim.disconnect(1);
    sim.connect(2);
    sim.client_sends(2, &request("2", "initialize", &json!({})));
    assert_eq!(sim.output.agent.len(), 2);
    sim.agent_answers(&json!({}));
    assert_eq!(sim.client_received(2)["id"], 2);

    let mut sim = Simulation::new();
    sim.connect(1);
    sim.client_sends(1, &request("1", "initialize", &json!({})));
    sim.disconnect(1);
    let id = sim.agent_received()["id"].clone();
    sim.agent_sends(
        &json!({"jsonrpc": "2.0", "id": id, "error": {"code": 1, "message": "no"}}).to_string(),
    );
    assert!(!sim.router.is_refused(0), "no agent accepted it before");
    // Another kind may now use the process.
    sim.connect(2);
    sim.hello(2, &with_files());
    assert_eq!(sim.output.receivers.last(), Some(&0));
}

#[test]
fn a_restarted_agent_that_does_not_answer_initialize_is_stopped() {
    let mut sim = Simulation::with(1);
    sim.router.handle_agent_exited(0, "{}", &mut sim.output);
    sim.router.handle_agent_started(sim.now, 0, &mut sim.output);
    assert!(sim.router.is_initializing(0) && !sim.router.is_refused(0));
    sim.now = sim.now + INITIALIZE_TIMEOUT;
    sim.router.handle_timeout(sim.now, &mut sim.output);
    assert!(sim.router.is_refused(0));
}

#[test]
fn one_person_cannot_bring_all_kinds_of_clients() {
    // The bug: four odd `initialize` of one person took all processes, and clients of other kinds were rejected.
    let odd = |number: u64| json!({"protocolVersion": 1, "clientCapabilities": {"odd": number}});
    let mut limits = Simulation::new().router.settings();
    limits.processes = 4;
    let refused = |sim: &mut Simulation, number: u64, principal: &Principal, kind: u64| {
        sim.router
            .handle_connected(client(number), principal.clone(), false);
        sim.hello(number, &odd(kind));
        code(&sim.client_received(number)) == -32013
    };
    let (ada, bob) = (named("ada"), named("bob"));
    let mut sim = Simulation::with_limits(limits);
    let tried = (1..=4).map(|number| refused(&mut sim, number, &ada, number));
    assert_eq!(tried.collect::<Vec<_>>(), [false, false, true, true]);
    assert!(!refused(&mut sim, 5, &bob, 5) && !refused(&mut sim, 6, &bob, 6));
    assert!(refused(&mut sim, 7, &bob, 7), "nor can another one");
    // A kind that is there is open to everyone.
    assert!(!refused(&mut sim, 8, &ada, 5));
    assert!(!refused(&mut sim, 3, &ada, 1), "a client may try again");
    // A kind that its principal does not use any more does not count.
    sim.disconnect(1);
    sim.disconnect(3);
    assert!(!refused(&mut sim, 9, &ada, 9));

    // Who is alone may bring all of them. Nothing tells clients without a principal apart.
    for principal in [Principal::Token, Principal::Nobody] {
        let mut sim = Simulation::with_limits(limits);
        for number in 1..=4 {
            let is_sole = principal == Principal::Token;
            sim.router
                .handle_connected(client(number), principal.clone(), is_sole);
            sim.hello(number, &odd(number));
            assert_eq!(code(&sim.client_received(number)), 0, "{principal:?}");
        }
    }
}
