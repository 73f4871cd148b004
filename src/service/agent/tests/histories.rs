//! What late observers of a session get of its past.

use super::observers::{attach, live, observe, permission, received};
use super::*;

/// The texts and kinds of the updates that a client got after the answer to `session/attach`.
fn replayed(sim: &Simulation, number: u64) -> Vec<String> {
    let updates = received(sim, number).into_iter().skip(1);
    let shown = updates.map(|message| match &message["params"]["update"] {
        Value::Null => message["method"].as_str().unwrap_or_default().to_owned(),
        update if update["content"].is_null() => update["sessionUpdate"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        update => update["content"]["text"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
    });
    shown.collect()
}

/// The bug: a client that attached late saw nothing of the turn that was running.
#[test]
fn a_late_observer_gets_the_history_that_it_asks_for() {
    let (mut sim, token) = live(Approvals::Owner);
    sim.join_as(2, named("bob"));
    let chunk = |text: &str, id: &str| {
        let content = json!({"type": "text", "text": text});
        let update =
            json!({"sessionUpdate": "agent_message_chunk", "messageId": id, "content": content});
        notification(
            "session/update",
            &json!({"sessionId": "s", "update": update}),
        )
    };
    let prompt = json!({"sessionId": "s", "prompt": [{"type": "text", "text": "hi"}]});
    sim.client_sends(1, &request("5", "session/prompt", &prompt));
    let turn = sim.agent_received()["id"].clone();
    sim.agent_sends(&chunk("one", "m1"));
    sim.agent_sends(&chunk("two", "m1"));
    sim.agent_sends(&chunk("three", "m2"));
    sim.agent_sends(
        &json!({"jsonrpc": "2.0", "id": turn, "result": {"stopReason": "end_turn"}}).to_string(),
    );
    sim.agent_sends(&permission("7"));
    let ask = |sim: &mut Simulation, params: Value| {
        sim.clear();
        let mut params = params;
        params["sessionId"] = json!("s");
        params["_meta"] = json!({"outrigger": {"watchToken": token}});
        sim.client_sends(2, &request("3", "session/attach", &params));
        received(sim, 2)[0]["result"].clone()
    };
    let all = [
        "hi",
        "one",
        "two",
        "three",
        "turn_complete",
        "session/request_permission",
    ];
    let pending = |result: &Value| result["history"][0]["toolCallId"].clone();
    for policy in [Value::Null, json!("full"), json!("other")] {
        let result = ask(
            &mut sim,
            json!({"historyPolicy": policy, "clientId": "mine"}),
        );
        let complete = &received(&sim, 2)[5]["params"]["update"];
        assert_eq!(complete["messageId"], "m2", "the agent's last message");
        assert_eq!(result["historyPolicy"], "full");
        assert_eq!(result["clientId"], "mine");
        assert_eq!(pending(&result), "t1");
        assert_eq!(replayed(&sim, 2), all);
    }
    let result = ask(&mut sim, json!({"historyPolicy": "pending_only"}));
    assert_eq!(
        (&result["historyPolicy"], pending(&result)),
        (&json!("pending_only"), json!("t1"))
    );
    assert_eq!(replayed(&sim, 2), all[5..]);
    let result = ask(&mut sim, json!({"historyPolicy": "none"}));
    assert_eq!(
        (&result["historyPolicy"], &result["history"]),
        (&json!("none"), &Value::Null)
    );
    assert_eq!(replayed(&sim, 2), [""; 0]);
    let after = |id: &str| json!({"historyPolicy": "after_message", "afterMessageId": id});
    let result = ask(&mut sim, after("m1"));
    assert_eq!(result["historyPolicy"], "after_message");
    assert_eq!(replayed(&sim, 2), all[3..]);
    let result = ask(&mut sim, after("gone"));
    assert_eq!(result["historyPolicy"], "full");
    assert_eq!(replayed(&sim, 2), all);
    // A viewer gets the same after the notification that it watches.
    let viewer = client(3);
    let joined = sim.router.handle_viewer(
        super::viewer(viewer, named("ada"), None),
        "s",
        &mut sim.output,
    );
    assert_eq!(joined, Ok(()));
    assert_eq!(received(&sim, 3)[0]["method"], "_outrigger/watching");
    assert_eq!(replayed(&sim, 3), all);
}

/// The bug: what the agent sent for a session whose client had left was missing in its history.
#[test]
fn a_session_without_a_client_keeps_what_its_agent_sends() {
    let (mut sim, token) = live(Approvals::Owner);
    sim.disconnect(1);
    let content = json!({"type": "text", "text": "late"});
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": content});
    let params = json!({"sessionId": "s", "update": update});
    sim.agent_sends(&notification("session/update", &params));
    observe(&mut sim, 2, &token);
    assert_eq!(replayed(&sim, 2).last().map(String::as_str), Some("late"));
}

/// An update of the session with 100 digits.
fn update(number: usize) -> String {
    let content = json!({"type": "text", "text": format!("{number:0100}")});
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": content});
    notification(
        "session/update",
        &json!({"sessionId": "s", "update": update}),
    )
}

/// The bug: sessions whose clients had left took all memory for histories, and sessions with clients got none.
#[test]
fn histories_of_sessions_without_a_client_leave_half_of_the_memory() {
    // The history of one session takes less than half of the first limit, and more than half of the second.
    for (memory, is_kept) in [(16 * (10 << 10), true), (16 * (5 << 10), false)] {
        let (mut sim, token) = live(Approvals::Owner);
        sim.router.limit_histories(memory);
        for number in 0..50 {
            sim.agent_sends(&update(number));
        }
        let before = sim.router.figures().history;
        sim.disconnect(1);
        assert_eq!(
            sim.router.figures().history,
            if is_kept { before } else { 0 }
        );
        sim.join_as(2, named("bob"));
        sim.clear();
        sim.client_sends(2, &attach("9", &json!({"watchToken": token})));
        let result = received(&sim, 2)[0]["result"].clone();
        assert_eq!(result["_meta"]["outrigger"]["historyCut"], true);
        assert_eq!(replayed(&sim, 2).is_empty(), !is_kept);
    }
}

#[test]
fn a_history_keeps_the_last_updates_within_its_limit() {
    let (mut sim, token) = live(Approvals::Owner);
    let most = sim.router.settings().history;
    for number in 0..1000 {
        sim.agent_sends(&update(number));
        assert!(sim.router.figures().history <= most);
    }
    sim.join_as(2, named("bob"));
    sim.clear();
    sim.client_sends(2, &attach("9", &json!({"watchToken": token})));
    let result = received(&sim, 2)[0]["result"].clone();
    assert_eq!(result["_meta"]["outrigger"]["historyCut"], true);
    let shown = replayed(&sim, 2);
    assert_eq!(shown.len(), most / update(0).len());
    let first = 1000 - shown.len();
    assert!(
        (first..1000)
            .map(|number| format!("{number:0100}"))
            .eq(shown)
    );
    // One that is longer than the limit takes the place of all others.
    let long = json!({"sessionId": "s", "update": {"sessionUpdate": "x".repeat(most)}});
    sim.agent_sends(&notification("session/update", &long));
    assert_eq!(sim.router.figures().history, 0);
    // The agent is about to send everything again.
    sim.agent_sends(&update(1));
    assert!(sim.router.figures().history > 0);
    sim.client_sends(1, &claim("8", "session/load", "s", None));
    assert_eq!(sim.router.figures().history, 0);
    sim.agent_answers(&json!({}));
    sim.agent_sends(&update(1));
    sim.disconnect(1);
    sim.router
        .handle_timeout(sim.now + GRACE * 2, &mut sim.output);
    assert_eq!(sim.router.figures().history, 0);
}

/// The bug: the history was forgotten although the agent refused to load the session, and nobody was told that it was gone.
#[test]
fn a_history_survives_a_refused_load_or_counts_as_cut() {
    let (mut sim, token) = live(Approvals::Owner);
    sim.agent_sends(&notification(
        "session/update",
        &json!({"sessionId": "s", "update": {"sessionUpdate": "agent_message_chunk"}}),
    ));
    sim.client_sends(1, &claim("9", "session/load", "s", None));
    let load = sim.agent_received();
    assert_eq!(load["method"], "session/load");
    let refused =
        json!({"jsonrpc": "2.0", "id": load["id"], "error": {"code": -1, "message": "no"}});
    sim.agent_sends(&refused.to_string());
    sim.join_as(2, named("bob"));
    sim.clear();
    sim.client_sends(2, &attach("3", &json!({"watchToken": token})));
    let got = received(&sim, 2);
    let is_cut = got[0]["result"]["_meta"]["outrigger"]["historyCut"] == true;
    assert!(is_cut || got.len() > 1, "{got:?}");
}
