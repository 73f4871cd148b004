//! Sessions of several agent processes with the same id.
//!
//! The bug: an agent that counts its sessions from 0 in each process gave two kinds of clients the same id, and the second
//! `session/new` failed.

use serde_json::json;

use super::{Simulation, claim, client, code, notification, request};
use crate::Principal;

const ALICE: Principal = Principal::User(1);
const BOB: Principal = Principal::User(2);

/// Clients 1 and 2 are of two kinds and persons, and each controls session `s0` of its own process.
fn two_counters() -> (Simulation, String, String) {
    let mut sim = Simulation::new();
    sim.connect_as(1, ALICE);
    sim.hello(1, &json!({}));
    sim.connect_as(2, BOB);
    sim.hello(2, &json!({"clientCapabilities": {"terminal": true}}));
    let first = sim.session(1, "s0");
    let second = sim.session(2, "s0");
    sim.clear();
    (sim, first, second)
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
    sim.connect_as(4, ALICE);
    sim.hello(4, &json!({"clientCapabilities": {"terminal": true}}));
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
    for number in [1, 2] {
        let params = json!({"sessionId": "s0"});
        sim.client_sends(number, &request("1", "session/close", &params));
        sim.agent_answers(&json!({}));
    }
    assert_eq!(
        (
            sim.router.figures().sessions,
            sim.router.figures().ended_sessions
        ),
        (0, 2)
    );
    for (number, process) in [(1, 0), (2, 1)] {
        sim.clear();
        sim.client_sends(number, &claim("7", "session/load", "s0", None));
        assert_eq!(sim.output.receivers, [process]);
        sim.agent_answers(&json!({}));
        assert_eq!(sim.router.owner_in(process, "s0"), Some(client(number)));
    }
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
    // Alice uses both processes: she watches over a session of Bob's process that he has given to her.
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
    let params = json!({"sessionId": "s0"});
    sim.client_sends(2, &request("1", "session/close", &params));
    sim.agent_answers(&json!({}));
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
