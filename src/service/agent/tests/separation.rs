//! Clients, processes and observers that share an agent do not get into each other's way, also if several processes use the same id.

use super::*;

const ELICITATION: &str = "elicitation/create";

/// Parameters of `initialize` in version 2.
fn version_two() -> Value {
    json!({"protocolVersion": 2, "capabilities": {"a": 1}})
}

/// Connects a client of version 1.
fn join(sim: &mut Simulation, number: u64, name: &str) {
    sim.connect_as(number, named(name));
    sim.hello(number, &json!({"protocolVersion": 1}));
}

fn take_over(id: &str, token: Option<&str>) -> String {
    let outrigger = json!({"takeover": true, "resumeToken": token});
    let params = json!({"sessionId": "s", "_meta": {"outrigger": outrigger}});
    request(id, "session/load", &params)
}

fn permission(id: &str) -> String {
    let params = json!({"sessionId": "s", "toolCall": {"toolCallId": "t"}, "options": []});
    request(id, "session/request_permission", &params)
}

/// The methods and errors of the messages that a client has got.
fn received_by(sim: &Simulation, number: u64) -> Vec<Value> {
    let messages = sim.output.clients.get(&client(number));
    let messages = messages.map_or(&[][..], |messages| messages);
    let parsed = messages.iter().map(|text| serde_json::from_str(text));
    parsed.map(|message| message.expect("JSON")).collect()
}

fn has_method(messages: &[Value], method: &str) -> bool {
    messages.iter().any(|message| message["method"] == method)
}

#[test]
fn a_turn_that_ends_while_its_session_is_gone_is_not_pending_for_the_next_client() {
    let mut sim = Simulation::new();
    sim.connect_as(1, named("ada"));
    sim.hello(1, &version_two());
    sim.session(1, "s");
    let prompt = json!({"sessionId": "s", "prompt": []});
    sim.client_sends(1, &request("2", "session/prompt", &prompt));
    sim.agent_answers(&json!({}));
    assert!(sim.router.is_busy(client(1)));
    sim.disconnect(1);
    let idle =
        json!({"sessionId": "s", "update": {"sessionUpdate": "state_update", "state": "idle"}});
    sim.agent_sends(&notification("session/update", &idle));

    sim.connect_as(2, named("ada"));
    sim.hello(2, &version_two());
    sim.client_sends(2, &claim("1", "session/load", "s", None));
    sim.agent_answers(&json!({}));
    assert!(!sim.router.is_busy(client(2)));
}

#[test]
fn the_end_of_an_elicitation_is_told_to_the_client_of_the_same_process() {
    let mut sim = Simulation::new();
    let kinds = [
        json!({"elicitation": {}}),
        json!({"elicitation": {}, "terminal": true}),
    ];
    for (number, kind) in (1..=2).zip(kinds) {
        sim.connect_as(number, named(&format!("person{number}")));
        sim.hello(
            number,
            &json!({"protocolVersion": 1, "clientCapabilities": kind}),
        );
        sim.client_sends(number, &request("1", "session/new", &json!({})));
        sim.agent_answers(&json!({"sessionId": format!("s{number}")}));
    }
    for (process, session) in ["s1", "s2"].into_iter().enumerate() {
        let params = json!({"sessionId": session, "mode": "url", "elicitationId": "1"});
        sim.process_sends(process, &request("7", ELICITATION, &params));
    }
    for (process, own, other) in [(1, 2, 1), (0, 1, 2)] {
        sim.clear();
        let complete = notification("elicitation/complete", &json!({"elicitationId": "1"}));
        sim.process_sends(process, &complete);
        assert_eq!(received_by(&sim, own).len(), 1);
        assert!(received_by(&sim, other).is_empty());
    }
}

#[test]
fn a_client_that_only_observes_gets_no_requests_and_starts_no_process() {
    let mut sim = Simulation::new();
    let hello = json!({"protocolVersion": 1, "clientCapabilities": {"elicitation": {}}});
    sim.connect_as(1, named("ada"));
    sim.hello(1, &hello);
    sim.session(1, "s");
    sim.client_sends(
        1,
        &request(
            "2",
            "session/prompt",
            &json!({"sessionId": "s", "prompt": []}),
        ),
    );
    sim.output.watchers.push(client(2));
    sim.connect_as(2, named("eve"));
    sim.hello(2, &hello);
    sim.client_sends(2, &request("1", "session/list", &json!({})));
    sim.clear();
    sim.agent_sends(&request(
        "9",
        ELICITATION,
        &json!({"message": "Your password?"}),
    ));
    assert!(has_method(&received_by(&sim, 1), ELICITATION));
    assert!(received_by(&sim, 2).is_empty());

    for number in 3..=6 {
        sim.output.watchers.push(client(number));
        sim.connect_as(number, named("eve"));
        let params = json!({"protocolVersion": 100 + number}).to_string();
        sim.client_sends(
            number,
            &request("1", "initialize", &params.parse().expect("JSON")),
        );
        assert_eq!(code(&sim.client_received(number)), -32013);
    }
}

#[test]
fn what_the_agent_asks_during_a_failed_takeover_is_asked_of_the_client_that_keeps_the_session() {
    let mut sim = Simulation::new();
    (1..=2).for_each(|number| join(&mut sim, number, "ada"));
    sim.session(1, "s");
    sim.client_sends(
        1,
        &request(
            "2",
            "session/prompt",
            &json!({"sessionId": "s", "prompt": []}),
        ),
    );
    sim.client_sends(2, &take_over("3", None));
    let load = sim.agent_received()["id"].clone();
    sim.clear();
    sim.agent_sends(&permission("9"));
    assert!(has_method(
        &received_by(&sim, 2),
        "session/request_permission"
    ));
    let failed = json!({"jsonrpc": "2.0", "id": load, "error": {"code": -32601, "message": "no"}});
    sim.agent_sends(&failed.to_string());
    let asked = received_by(&sim, 1);
    assert!(has_method(&asked, "session/request_permission"));

    // The answer of the client whose takeover failed does not count.
    sim.clear();
    let answer = json!({"outcome": {"outcome": "selected", "optionId": "allow"}});
    let id = &asked[0]["id"];
    let message = json!({"jsonrpc": "2.0", "id": id, "result": answer}).to_string();
    sim.client_sends(2, &message);
    assert!(sim.output.agent.is_empty());
    sim.client_sends(1, &message);
    assert_eq!(sim.agent_received()["id"], 9);
}

#[test]
fn a_failed_claim_of_a_session_whose_client_has_left_leaves_no_open_question() {
    let mut sim = Simulation::new();
    (1..=2).for_each(|number| join(&mut sim, number, "ada"));
    sim.session(1, "s");
    sim.client_sends(
        1,
        &request(
            "2",
            "session/prompt",
            &json!({"sessionId": "s", "prompt": []}),
        ),
    );
    sim.agent_sends(&permission("9"));
    sim.client_sends(2, &take_over("3", None));
    let load = sim.agent_received()["id"].clone();
    sim.disconnect(1);
    sim.clear();
    let failed = json!({"jsonrpc": "2.0", "id": load, "error": {"code": -32601, "message": "no"}});
    sim.agent_sends(&failed.to_string());
    assert_eq!(sim.router.figures().agent_requests, 0);
    let answers = sim.output.agent.iter();
    assert!(
        answers.into_iter().any(|text| text.contains(r#""id":9"#)),
        "it is cancelled"
    );
}

#[test]
fn observers_stay_with_the_owner_and_the_version_of_a_session() {
    for changes_owner in [true, false] {
        let mut sim = Simulation::new();
        (1..=2).for_each(|number| join(&mut sim, number, "ada"));
        let token = sim.session(1, "s");
        sim.client_sends(
            2,
            &request("3", "session/attach", &json!({"sessionId": "s"})),
        );
        assert!(sim.router.is_observer_in(0, client(2), "s"));
        if changes_owner {
            join(&mut sim, 3, "bob");
            sim.client_sends(3, &take_over("3", Some(&token)));
        } else {
            sim.disconnect(1);
            sim.connect_as(3, named("ada"));
            sim.hello(3, &version_two());
            sim.client_sends(3, &claim("1", "session/load", "s", None));
        }
        sim.agent_answers(&json!({}));
        assert_eq!(sim.router.owner_of("s"), Some(client(3)));
        assert!(!sim.router.is_observer_in(0, client(2), "s"));
    }
}

const ALICE: Principal = Principal::User(1);
const BOB: Principal = Principal::User(2);

/// Clients 1 and 2 are of two kinds and persons, and each controls session `s0` of its own process.
///
/// The bug: an agent that counts its sessions from 0 in each process gave two kinds of clients the same id, and the second
/// `session/new` failed.
fn two_counters() -> (Simulation, String, String) {
    let mut sim = Simulation::new();
    sim.connect_as(1, ALICE);
    sim.hello(1, &json!({}));
    join_second_kind(&mut sim, 2, BOB);
    let first = sim.session(1, "s0");
    let second = sim.session(2, "s0");
    sim.clear();
    (sim, first, second)
}

/// Connects and initializes a client of the kind that process 1 serves.
fn join_second_kind(sim: &mut Simulation, number: u64, principal: Principal) {
    sim.connect_as(number, principal);
    sim.hello(number, &json!({"clientCapabilities": {"terminal": true}}));
}

/// A client closes its session `s0`, and the agent agrees.
fn close(sim: &mut Simulation, number: u64) {
    let params = json!({"sessionId": "s0"});
    sim.client_sends(number, &request("1", "session/close", &params));
    sim.agent_answers(&json!({}));
}

#[test]
fn each_process_and_its_client_mean_their_own_session() {
    let (mut sim, ..) = two_counters();
    for (number, process) in [(1, 0), (2, 1)] {
        assert_eq!(sim.router.owner_in(process, "s0"), Some(client(number)));
        let prompt = json!({"sessionId": "s0", "prompt": []});
        sim.client_sends(number, &request("1", "session/prompt", &prompt));
        assert_eq!(sim.output.receivers.last(), Some(&process));
        let update = json!({"sessionId": "s0", "update": {"from": process}});
        sim.process_sends(process, &notification("session/update", &update));
        let received = sim.client_received(number);
        assert_eq!(received["params"]["update"]["from"], process);
        let asked = json!({"sessionId": "s0", "options": []});
        sim.process_sends(process, &request("5", "session/request_permission", &asked));
        let received = sim.client_received(number);
        assert_eq!(received["method"], "session/request_permission");
        assert_eq!(sim.output.clients.len(), 1, "nobody else gets anything");
        sim.clear();
    }
}

#[test]
fn a_load_means_the_session_that_the_client_may_have() {
    let (mut sim, first, second) = two_counters();
    sim.disconnect(1);
    sim.disconnect(2);
    // Both persons come back with the other one's kind of client.
    sim.join_as(3, BOB);
    join_second_kind(&mut sim, 4, ALICE);
    for (number, token, process) in [(3, &second, 1), (4, &first, 0)] {
        sim.clear();
        sim.client_sends(number, &claim("7", "session/load", "s0", Some(token)));
        assert_eq!(
            sim.output.receivers,
            [process],
            "the session stays in its process"
        );
        sim.agent_answers(&json!({}));
        assert_eq!(sim.router.owner_in(process, "s0"), Some(client(number)));
    }
    // A third person may have neither.
    sim.clear();
    sim.join_as(5, Principal::User(3));
    sim.client_sends(5, &claim("8", "session/load", "s0", None));
    assert_eq!(code(&sim.client_received(5)), -32010);
    assert!(
        sim.output.receivers.is_empty(),
        "no process gets the request"
    );
}

#[test]
fn ended_sessions_are_remembered_for_each_process() {
    let (mut sim, ..) = two_counters();
    sim.join_as(3, ALICE);
    join_second_kind(&mut sim, 4, BOB);
    sim.disconnect(1);
    sim.disconnect(2);
    sim.now = sim.now + GRACE;
    let now = sim.now;
    sim.router.handle_timeout(now, &mut sim.output);
    let figures = sim.router.figures();
    assert_eq!((figures.sessions, figures.ended_sessions), (0, 2));
    // The processes still have the sessions.
    for (number, process) in [(3, 0), (4, 1)] {
        sim.clear();
        sim.client_sends(number, &claim("7", "session/load", "s0", None));
        assert_eq!(sim.output.receivers, [process]);
        sim.agent_answers(&json!({}));
        assert_eq!(sim.router.owner_in(process, "s0"), Some(client(number)));
    }
}

/// A process looks a session up that it does not have any more, perhaps where it finds the other owner's.
#[test]
fn a_closed_or_lost_session_is_not_loaded_while_another_owner_has_its_id() {
    let (mut sim, first, _) = two_counters();
    sim.router
        .handle_agent_exited(0, r#"{"code":1,"signal":null}"#, &mut sim.output);
    sim.router.handle_agent_started(sim.now, 0, &mut sim.output);
    sim.agent_answers(&json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}));
    sim.clear();
    sim.client_sends(1, &claim("7", "session/load", "s0", Some(&first)));
    assert_eq!(code(&sim.client_received(1)), -32010);
    close(&mut sim, 2);
    sim.clear();
    sim.client_sends(2, &claim("8", "session/load", "s0", None));
    assert_eq!(code(&sim.client_received(2)), -32010);
    assert!(sim.output.receivers.is_empty(), "no process gets a request");
}

#[test]
fn a_list_does_not_show_a_session_that_has_ended_in_another_process() {
    let mut sim = Simulation::new();
    sim.join_as(1, ALICE);
    join_second_kind(&mut sim, 2, BOB);
    sim.connect_as(3, BOB);
    sim.hello(3, &json!({"clientCapabilities": {"terminal": false}}));
    // Alice's session has ended in process 0, and Bob has the id in process 1. Process 2 lists what it finds on the disk.
    let _ = sim.session(1, "s0");
    close(&mut sim, 1);
    let _ = sim.session(2, "s0");
    sim.clear();
    sim.client_sends(3, &request("7", "session/list", &json!({})));
    sim.agent_answers(&json!({"sessions": [{"sessionId": "s0", "title": "Alice's"}]}));
    assert_eq!(sim.client_received(3)["result"]["sessions"], json!([]));
}

#[test]
fn a_process_cannot_get_a_second_session_with_an_id() {
    let (mut sim, first, _) = two_counters();
    // The client would need the session in its own process, because it speaks another version.
    sim.connect_as(3, ALICE);
    sim.hello(3, &json!({"protocolVersion": 2}));
    let _ = sim.session(3, "other");
    sim.connect_as(4, BOB);
    sim.hello(4, &json!({"protocolVersion": 2}));
    let _ = sim.session(4, "s0");
    sim.disconnect(1);
    sim.clear();
    sim.client_sends(3, &claim("7", "session/load", "s0", Some(&first)));
    assert_eq!(code(&sim.client_received(3)), -32010);
    assert!(sim.output.receivers.is_empty());
}

#[test]
fn a_client_cannot_name_another_clients_session_in_a_process_that_it_uses() {
    let (mut sim, _, second) = two_counters();
    // Alice uses both processes: she controls a session in Bob's process, whose token he has given to her.
    let shared = sim.session(2, "shared");
    sim.client_sends(1, &claim("7", "session/load", "shared", Some(&shared)));
    assert_eq!(code(&sim.client_received(1)), -32010, "Bob controls it");
    sim.disconnect(2);
    sim.client_sends(1, &claim("8", "session/load", "shared", Some(&shared)));
    sim.agent_answers(&json!({}));
    sim.join_as(3, BOB);
    sim.client_sends(3, &claim("9", "session/load", "s0", Some(&second)));
    sim.agent_answers(&json!({}));
    sim.clear();
    // The process of `shared` would read Bob's `s0`.
    let params = json!({"sessionId": "shared", "sessions": ["s0"]});
    sim.client_sends(1, &request("1", "_vendor/anything", &params));
    assert_eq!(code(&sim.client_received(1)), -32010);
    assert!(sim.output.receivers.is_empty());
}

#[test]
fn a_client_cannot_name_another_clients_ended_session_in_a_process_that_it_uses() {
    let (mut sim, ..) = two_counters();
    let shared = sim.session(2, "shared");
    close(&mut sim, 2);
    sim.disconnect(2);
    sim.client_sends(1, &claim("8", "session/load", "shared", Some(&shared)));
    sim.agent_answers(&json!({}));
    sim.clear();
    let params = json!({"sessionId": "shared", "sessions": ["s0"]});
    sim.client_sends(1, &request("1", "_vendor/anything", &params));
    assert_eq!(code(&sim.client_received(1)), -32010);
    assert!(sim.output.receivers.is_empty());
}

#[test]
fn the_agent_cannot_give_a_client_two_sessions_with_one_id() {
    let (mut sim, ..) = two_counters();
    let shared = sim.session(2, "shared");
    sim.disconnect(2);
    sim.client_sends(1, &claim("8", "session/load", "shared", Some(&shared)));
    sim.agent_answers(&json!({}));
    // `shared` exists in the other process, and client 1 controls it.
    sim.client_sends(1, &request("9", "session/new", &json!({})));
    sim.agent_answers(&json!({"sessionId": "shared"}));
    assert_eq!(code(&sim.client_received(1)), -32603);
}

/// The bug: the process would have loaded the other person's closed session.
#[test]
fn a_claim_does_not_move_to_a_process_where_another_owner_has_the_id() {
    let (mut sim, ..) = two_counters();
    for number in [1, 2] {
        close(&mut sim, number);
    }
    join_second_kind(&mut sim, 3, ALICE);
    sim.clear();
    sim.client_sends(3, &claim("7", "session/load", "s0", None));
    assert_eq!(code(&sim.client_received(3)), -32010);
    assert!(sim.output.receivers.is_empty());
}

#[test]
fn a_claim_does_not_reach_a_session_whose_grace_period_is_over() {
    let (mut sim, ..) = two_counters();
    close(&mut sim, 1);
    join_second_kind(&mut sim, 3, ALICE);
    sim.disconnect(2);
    sim.now = sim.now + GRACE;
    let now = sim.now;
    sim.router.handle_timeout(now, &mut sim.output);
    sim.clear();
    sim.client_sends(3, &claim("7", "session/load", "s0", None));
    assert_eq!(code(&sim.client_received(3)), -32010);
    assert!(sim.output.receivers.is_empty());
}

#[test]
fn a_claim_of_another_version_does_not_reach_an_ended_session() {
    let (mut sim, first, _) = two_counters();
    sim.connect_as(4, BOB);
    sim.hello(4, &json!({"protocolVersion": 2}));
    let _ = sim.session(4, "s0");
    close(&mut sim, 4);
    sim.connect_as(3, ALICE);
    sim.hello(3, &json!({"protocolVersion": 2}));
    sim.disconnect(1);
    sim.clear();
    sim.client_sends(3, &claim("7", "session/resume", "s0", Some(&first)));
    assert!(sim.output.receivers.is_empty());
}

#[test]
fn a_list_does_not_show_the_ended_session_of_another_owner() {
    let (mut sim, ..) = two_counters();
    close(&mut sim, 2);
    join_second_kind(&mut sim, 3, ALICE);
    sim.clear();
    sim.client_sends(3, &request("7", "session/list", &json!({})));
    assert_eq!(sim.output.receivers, [1]);
    sim.agent_answers(
        &json!({"sessions": [{"sessionId": "s0", "cwd": "/home/bob", "title": "Bob's secret"}]}),
    );
    let got = sim.client_received(3);
    assert_eq!(got["result"]["sessions"], json!([]));
}

#[test]
fn having_had_a_session_shows_no_session_of_another_process() {
    let (mut sim, first, _) = two_counters();
    close(&mut sim, 2);
    sim.disconnect(1);
    join_second_kind(&mut sim, 3, ALICE);
    sim.client_sends(3, &claim("7", "session/load", "s0", Some(&first)));
    assert_eq!(sim.output.receivers.last(), Some(&0));
    sim.agent_answers(&json!({}));
    let params = json!({"sessionId": "s0"});
    sim.client_sends(3, &request("8", "session/close", &params));
    assert_eq!(sim.output.receivers.last(), Some(&0));
    sim.agent_answers(&json!({}));
    sim.clear();
    sim.client_sends(3, &request("9", "session/list", &json!({})));
    assert_eq!(sim.output.receivers, [1]);
    sim.agent_answers(
        &json!({"sessions": [{"sessionId": "s0", "cwd": "/home/bob", "title": "Bob's secret"}]}),
    );
    let got = sim.client_received(3);
    assert_eq!(got["result"]["sessions"], json!([]));
}

#[test]
fn a_failed_claim_does_not_replace_the_record_of_another_session() {
    let mut sim = Simulation::new();
    sim.connect_as(1, ALICE);
    sim.hello(1, &json!({}));
    join_second_kind(&mut sim, 2, ALICE);
    let _ = sim.session(1, "s0");
    close(&mut sim, 1);
    // Alice loads it in process 1. The answer is late.
    sim.clear();
    sim.client_sends(2, &claim("7", "session/load", "s0", None));
    assert_eq!(sim.output.receivers, [1]);
    let id = sim.agent_received()["id"].clone();
    // Meanwhile Bob gets s0 from process 0 and closes it.
    sim.join_as(3, BOB);
    let bobs = sim.session(3, "s0");
    close(&mut sim, 3);
    sim.process_sends(
        1,
        &json!({"jsonrpc":"2.0","id":id,"error":{"code":-1,"message":"no"}}).to_string(),
    );
    sim.clear();
    sim.client_sends(1, &claim("8", "session/load", "s0", None));
    let alice_reaches = sim.output.receivers == [0];
    sim.clear();
    sim.client_sends(3, &claim("9", "session/load", "s0", Some(&bobs)));
    assert!(!alice_reaches, "Alice loads Bob's session in process 0");
}

#[test]
fn a_client_does_not_control_one_session_and_observe_another_with_its_id() {
    let (mut sim, ..) = two_counters();
    sim.clear();
    sim.connect_as(3, BOB);
    sim.hello(3, &json!({}));
    sim.client_sends(
        3,
        &request("1", "session/attach", &json!({"sessionId": "s0"})),
    );
    // Process 0 closes Alice's and gives s0 to client 3.
    close(&mut sim, 1);
    sim.client_sends(3, &request("2", "session/new", &json!({})));
    sim.agent_answers(&json!({"sessionId": "s0"}));
    assert!(
        !(sim.router.owner_in(0, "s0") == Some(client(3))
            && sim.router.is_observer_in(1, client(3), "s0"))
    );
}

#[test]
fn a_load_prefers_the_session_of_the_clients_process() {
    let mut sim = Simulation::new();
    sim.connect_as(1, ALICE);
    sim.hello(1, &json!({}));
    join_second_kind(&mut sim, 2, ALICE);
    let _ = sim.session(1, "s0");
    let _ = sim.session(2, "s0");
    close(&mut sim, 2);
    sim.disconnect(1);
    sim.clear();
    sim.client_sends(2, &request("7", "session/list", &json!({})));
    sim.agent_answers(&json!({"sessions": [{"sessionId": "s0", "title": "of process 1"}]}));
    sim.clear();
    sim.client_sends(2, &claim("8", "session/load", "s0", None));
    assert_eq!(sim.output.receivers, [1]);
}

#[test]
fn an_id_of_several_sessions_of_their_owner_cannot_be_shared() {
    let mut sim = Simulation::new();
    sim.connect_as(1, ALICE);
    sim.hello(1, &json!({}));
    join_second_kind(&mut sim, 2, ALICE);
    let _ = sim.session(1, "s0");
    assert_eq!(sim.router.check_share(&ALICE, "s0"), Ok(()));
    let _ = sim.session(2, "s0");
    assert!(sim.router.check_share(&ALICE, "s0").is_err());
    let link = Principal::Named("link".into());
    let seen =
        sim.router
            .handle_viewer(viewer(client(9), link, Some(&ALICE)), "s0", &mut sim.output);
    assert!(seen.is_err());
}
