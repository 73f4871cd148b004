//! Who may do what with a session, in each of its states.

use super::*;

/// The callers: how they relate to the session that client 1 created.
const CALLERS: [&str; 5] = [
    "resume token",
    "same person",
    "same unnamed token",
    "other principal",
    "nobody",
];

/// What each caller may do in each state: `i` the session is in its list, `l` it may load the session, `r` resume it, `t`
/// load it with `takeover`. Nobody but the session's client may prompt, fork, cancel or close it.
const TABLE: [(&str, [&str; 5]); 8] = [
    ("live", ["t", "it", "", "", ""]),
    ("detached", ["lrt", "ilrt", "", "", ""]),
    ("gone", ["lrt", "ilrt", "ilrt", "", ""]),
    ("gone, grace over", ["lrt", "ilrt", "ilrt", "", ""]),
    ("gone, no grace", ["lrt", "ilrt", "ilrt", "", ""]),
    ("closed", ["lrt", "ilrt", "ilrt", "", ""]),
    ("lost", ["t", "it", "", "", ""]),
    ("lost and gone", ["lrt", "ilrt", "ilrt", "", ""]),
];

/// A simulation with a session in this state, and the caller as client 2. Also returns the token that the caller presents.
fn sim_with_caller(state: &str, caller: &str) -> (Simulation, Option<String>) {
    let (owner, other) = match caller {
        "resume token" | "other principal" => (named("ada"), named("bob")),
        "same person" => (named("ada"), named("ada")),
        "same unnamed token" => (Principal::Token, Principal::Token),
        _ => (Principal::Nobody, Principal::Nobody),
    };
    let (mut sim, token) = sim_with_session(state, owner);
    sim.join_as(2, other);
    sim.clear();
    (sim, (caller == "resume token").then_some(token))
}

/// Whether client 2 sees the session in its list.
fn is_listed(sim: &mut Simulation) -> bool {
    sim.client_sends(2, &request("3", "session/list", &json!({})));
    sim.agent_answers(&json!({"sessions": [{"sessionId": "s"}, 7]}));
    sim.client_received(2)["result"]["sessions"] == json!([{"sessionId": "s"}, 7])
}

/// What client 2 may do with the session, as in [`TABLE`]. Each attempt has a simulation of its own.
fn permitted(state: &str, caller: &str) -> String {
    let mut permitted = String::new();
    let (mut sim, _) = sim_with_caller(state, caller);
    if is_listed(&mut sim) {
        permitted.push('i');
    }
    for (letter, method, takeover) in [
        ('l', "session/load", false),
        ('r', "session/resume", false),
        ('t', "session/load", true),
    ] {
        let (mut sim, token) = sim_with_caller(state, caller);
        let outrigger = json!({"resumeToken": token, "takeover": takeover});
        let params = json!({"sessionId": "s", "_meta": {"outrigger": outrigger}});
        sim.client_sends(2, &request("5", method, &params));
        if sim.router.owner_of("s") != Some(client(2)) {
            assert!(sim.output.agent.is_empty(), "{state} {caller}");
            assert_eq!(code(&sim.client_received(2)), -32010, "{state} {caller}");
            continue;
        }
        permitted.push(letter);
        if !sim.output.agent.is_empty() {
            sim.agent_answers(&json!({}));
        }
        assert!(!sim.token(2).is_empty(), "{state} {caller}");
        // The session now belongs to the principal of client 2.
        sim.disconnect(2);
        sim.join_as(3, Principal::User(9));
        sim.client_sends(3, &claim("5", "session/load", "s", None));
        assert_eq!(code(&sim.client_received(3)), -32010, "{state} {caller}");
    }
    permitted
}

#[test]
fn who_may_load_and_see_a_session_in_each_state() {
    // The bug: after its grace period, after `session/close` and without a grace period, any client could load a session,
    // while its owner without a token was denied after a lost connection.
    for (state, row) in TABLE {
        for (caller, want) in CALLERS.iter().zip(row) {
            assert_eq!(permitted(state, caller), want, "{state}, {caller}");
        }
    }
}

#[test]
fn only_the_client_of_a_session_may_prompt_fork_cancel_and_close_it() {
    for state in STATES {
        for caller in CALLERS {
            let (mut sim, token) = sim_with_caller(state, caller);
            for method in [
                "session/prompt",
                "session/fork",
                "session/close",
                "_vendor/x",
            ] {
                if (state, method) == ("never seen", "_vendor/x") {
                    continue;
                }
                let outrigger = json!({"resumeToken": token, "takeover": true});
                let params = json!({"sessionId": "s", "_meta": {"outrigger": outrigger}});
                sim.client_sends(2, &request("4", method, &params));
                let refused = sim.client_received(2);
                assert_eq!(code(&refused), -32010, "{state}, {caller}, {method}");
            }
            sim.client_sends(
                2,
                &notification("session/cancel", &json!({"sessionId": "s"})),
            );
            assert!(sim.output.agent.is_empty(), "{state}, {caller}");
        }
    }
}

#[test]
fn unknown_sessions_are_loaded_by_the_only_principal_or_by_rule() {
    let cases = [
        // The rule, the principals that connect, whether the last one may.
        (UnknownSessions::Auto, vec![Principal::Token; 2], true),
        (UnknownSessions::Auto, vec![Principal::User(1); 2], true),
        (
            UnknownSessions::Auto,
            vec![Principal::User(1), Principal::User(2)],
            false,
        ),
        (
            UnknownSessions::Auto,
            vec![Principal::User(1), Principal::Token, Principal::User(1)],
            false,
        ),
        // Others may have a token with another name.
        (UnknownSessions::Auto, vec![named("ada")], false),
        (UnknownSessions::Auto, vec![Principal::Nobody], false),
        (UnknownSessions::Allow, vec![Principal::Nobody; 2], true),
        (
            UnknownSessions::Allow,
            vec![named("ada"), named("bob")],
            true,
        ),
        (UnknownSessions::Deny, vec![Principal::Token], false),
    ];
    for (rule, principals, permitted) in cases {
        let mut limits = Simulation::new().router.settings();
        limits.unknown_sessions = rule;
        let mut sim = Simulation::with_limits(limits);
        for (number, principal) in (1..).zip(&principals) {
            let is_sole = matches!(principal, Principal::Token | Principal::User(_));
            sim.router
                .handle_connected(client(number), principal.clone(), is_sole);
            sim.client_sends(number, &request("0", "initialize", &json!({})));
            if number == 1 {
                sim.agent_answers(&json!({"protocolVersion": 1}));
            }
        }
        let last = principals.len() as u64;
        sim.clear();
        sim.client_sends(last, &request("1", "session/list", &json!({})));
        sim.agent_answers(&json!({"sessions": [{"sessionId": "s"}]}));
        let listed = sim.client_received(last)["result"]["sessions"]
            .as_array()
            .map(Vec::len);
        assert_eq!(
            listed,
            Some(usize::from(permitted)),
            "{rule:?} {principals:?}"
        );
        sim.client_sends(last, &claim("2", "session/load", "s", None));
        let is_loaded = sim.router.owner_of("s") == Some(client(last));
        assert_eq!(is_loaded, permitted, "{rule:?} {principals:?}");
        if !permitted {
            // The bug: a client whose server had restarted was not told what would let it load its session.
            let why = sim.client_received(last)["error"]["data"].to_string();
            for permits in ["unix socket", "token", "allows unknown sessions"] {
                assert!(why.contains(permits), "{why}");
            }
            sim.client_sends(
                last,
                &request("3", "_vendor/x", &json!({"session_id": "s"})),
            );
            assert_eq!(code(&sim.client_received(last)), -32010, "no other way");
        }
    }
}
