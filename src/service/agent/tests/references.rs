//! Progress tokens, subscriptions, and notifications for all clients, in protocols other than ACP.

use super::*;

const PROGRESS: &str = "notifications/progress";
const LISTEN: &str = "subscriptions/listen";
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// A call with a progress token, which is given as JSON.
fn call(id: &str, token: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"t","_meta":{{"a":1, "progressToken" : {token} }}}}}}"#
    )
}

fn progress(token: &Value) -> String {
    notification(PROGRESS, &json!({"progressToken": token, "progress": 1}))
}

/// The messages that each client has got since the last call.
fn take_received(sim: &mut Simulation) -> Vec<(ClientId, String)> {
    let clients = std::mem::take(&mut sim.output.clients).into_iter();
    clients
        .flat_map(|(client, texts)| texts.into_iter().map(move |text| (client, text)))
        .collect()
}

/// The id and the progress token of the last request that the agent has got.
fn passed_on(sim: &Simulation) -> (Value, Value) {
    let line = sim.agent_received();
    let token = line["params"]["_meta"]["progressToken"].clone();
    (line["id"].clone(), token)
}

#[test]
fn equal_progress_tokens_of_many_clients_reach_who_asked_and_nobody_else() {
    // The bug: progress went to the only client with a request, or to all clients, whatever their tokens were.
    for token in ["1", "\"1\"", "1.0", r#""\u0061\"b""#, "-3e2", "\"\""] {
        let mut sim = Simulation::jsonrpc(3);
        let mut tokens = Vec::new();
        for number in 1..=3 {
            for _ in 0..2 {
                sim.client_sends(number, &call("7", token));
                let (id, upstream) = passed_on(&sim);
                assert_eq!(id, upstream, "{token}");
                let want = call(&id.to_string(), &upstream.to_string());
                assert_eq!(
                    sim.output.agent.last(),
                    Some(&want),
                    "no other byte differs"
                );
                tokens.push((number, id));
            }
        }
        for (number, upstream) in tokens.iter().rev() {
            sim.agent_sends(&progress(upstream));
            let want = progress(upstream).replace(
                &format!("\"progressToken\":{upstream}"),
                &format!("\"progressToken\":{token}"),
            );
            assert_eq!(take_received(&mut sim), [(client(*number), want)]);
        }
    }
}

#[test]
fn the_progress_token_is_forgotten_with_its_request() {
    let mut sim = Simulation::jsonrpc(2);
    let mut tokens = Vec::new();
    for (number, method) in [(1, "answered"), (1, "cancelled"), (2, "disconnected")] {
        sim.client_sends(number, &call(&format!("\"{method}\""), "5"));
        tokens.push(passed_on(&sim).1);
    }
    sim.client_sends(1, &request("9", "tools/call", &json!({"_meta": {"x": 1}})));
    let without_token = sim.agent_received()["id"].clone();
    let id = &tokens[0];
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": id, "result": {}}).to_string());
    let cancel = json!({"requestId": "cancelled"});
    sim.client_sends(1, &notification("notifications/cancelled", &cancel));
    sim.disconnect(2);
    sim.clear();
    let dropped = sim.router.counters().dropped;
    tokens.extend([
        without_token,
        json!(999),
        json!("1"),
        json!(1.0),
        json!(null),
    ]);
    for token in &tokens {
        sim.agent_sends(&progress(token));
    }
    let twice = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":4,"progressToken":4}}"#;
    sim.agent_sends(twice);
    sim.agent_sends(&notification(PROGRESS, &json!({"progress": 1})));
    assert_eq!(take_received(&mut sim), []);
    assert_eq!(
        sim.router.counters().dropped - dropped,
        tokens.len() as u64 + 2
    );
    // The same token is used again, as clients do that count their requests.
    sim.client_sends(1, &call("1", "5"));
    let (_, upstream) = passed_on(&sim);
    assert!(!tokens.contains(&upstream));
    sim.agent_sends(&progress(&upstream));
    assert_eq!(sim.client_received(1)["params"]["progressToken"], 5);
    assert_eq!(sim.router.figures().client_requests, 2);
}

#[test]
fn after_a_restart_of_the_agent_no_progress_is_passed_on_for_the_requests_before() {
    let mut sim = Simulation::jsonrpc(1);
    sim.client_sends(1, &call("1", "5"));
    let (_, upstream) = passed_on(&sim);
    sim.router.handle_agent_exited(0, "{}", &mut sim.output);
    sim.router.handle_agent_started(sim.now, 0, &mut sim.output);
    sim.clear();
    sim.agent_sends(&progress(&upstream));
    assert_eq!(take_received(&mut sim), []);
}

#[test]
fn a_progress_token_that_another_parser_could_read_differently_is_rejected() {
    // The danger: a client writes another client's upstream id where only the agent finds it, and the other client gets
    // progress of a request that it has not sent.
    let mut sim = Simulation::jsonrpc(2);
    sim.client_sends(1, &call("1", "5"));
    let stolen = passed_on(&sim).1;
    sim.clear();
    let long = format!("\"{}\"", "x".repeat(2000));
    for params in [
        format!(r#"{{"_meta":{{"progressToken":1,"progressToken":{stolen}}}}}"#),
        format!(r#"{{"_meta":{{"progress_token":{stolen}}}}}"#),
        format!(r#"{{"meta":{{"progressToken":{stolen}}}}}"#),
        format!(r#"{{"field_meta":{{"ProgressToken":{stolen}}},"_meta":{{"progressToken":1}}}}"#),
        r#"{"_meta":{"progressToken":[]}}"#.to_owned(),
        format!(r#"{{"_meta":{{"progressToken":{long}}}}}"#),
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{params}}}"#);
        sim.client_sends(2, &text);
        let received = sim.client_received(2);
        assert_eq!((code(&received), &received["id"]), (-32600, &json!(3)));
    }
    assert_eq!(sim.output.agent, [""; 0]);
    assert_eq!(sim.router.figures().client_requests, 1);
}

#[test]
fn a_cancelling_request_may_have_a_progress_token() {
    let mut sim = Simulation::jsonrpc(1);
    sim.client_sends(1, &request("\"a\"", "tools/call", &json!({})));
    let first = sim.agent_received()["id"].clone();
    for text in [
        r#"{"jsonrpc":"2.0","id":"b","method":"$/cancelRequest","params":{"_meta":{"progressToken":"t"},"id":"a"}}"#,
        r#"{"params":{"id":"a","_meta":{"progressToken":"t"}},"method":"$/cancelRequest","id":"b","jsonrpc":"2.0"}"#,
    ] {
        sim.client_sends(1, text);
        let (id, token) = passed_on(&sim);
        assert_eq!(
            (sim.agent_received()["params"]["id"].clone(), token),
            (first.clone(), id)
        );
    }
}

#[test]
fn in_acp_progress_tokens_are_not_touched() {
    let mut sim = Simulation::with(2);
    sim.client_sends(1, &call("7", "\"t\""));
    assert_eq!(passed_on(&sim).1, "t");
    sim.clear();
    sim.agent_sends(&progress(&json!("t")));
    assert_eq!(sim.client_received(1)["params"]["progressToken"], "t");
}

#[test]
fn a_client_reports_progress_only_for_requests_that_it_has_got() {
    let mut sim = Simulation::jsonrpc(2);
    sim.client_sends(1, &request("1", "tools/call", &json!({})));
    let asked = json!({"_meta": {"progressToken": "p"}});
    sim.agent_sends(&request("\"q\"", "sampling/createMessage", &asked));
    let id = sim.client_received(1)["id"].clone();
    sim.clear();
    sim.client_sends(2, &progress(&json!("p")));
    sim.client_sends(1, &progress(&json!("other")));
    let twice = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress_token":"x"}}"#;
    sim.client_sends(1, twice);
    assert_eq!(sim.output.agent, [""; 0]);
    sim.client_sends(1, &progress(&json!("p")));
    assert_eq!(sim.output.agent, [progress(&json!("p"))]);
    sim.client_sends(
        1,
        &json!({"jsonrpc": "2.0", "id": id, "result": {}}).to_string(),
    );
    sim.clear();
    sim.client_sends(1, &progress(&json!("p")));
    assert_eq!(sim.output.agent, [""; 0]);
}

#[test]
fn a_notification_without_a_recipient_goes_to_all_clients_of_the_process() {
    // The bug: it went only to the client with a request, if there was just one. The others kept an old list of tools.
    let mut sim = Simulation::jsonrpc(3);
    sim.output.watchers.push(client(4));
    sim.connect(4);
    sim.client_sends(2, &request("1", "tools/call", &json!({})));
    let id = sim.agent_received()["id"].clone();
    let changed = notification("notifications/tools/list_changed", &json!({}));
    let without_params = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    let in_other_protocols = notification("x", &json!({"sessionId": "s", "requestId": "r"}));
    for text in [&changed, without_params, &in_other_protocols] {
        sim.agent_sends(text);
        let all = [1, 2, 3].map(|number| (client(number), text.to_owned()));
        assert_eq!(take_received(&mut sim), all);
    }
    // A notification that names a request goes to its client, and is dropped once the request has been answered.
    let about = notification("_vendor/state", &json!({"requestId": id}));
    sim.agent_sends(&about);
    assert_eq!(sim.client_received(2)["params"]["requestId"], 1);
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": id, "result": {}}).to_string());
    sim.clear();
    sim.agent_sends(&about);
    assert_eq!(take_received(&mut sim), []);
}

#[test]
fn equal_ids_of_subscriptions_do_not_cross() {
    let mut sim = Simulation::jsonrpc(2);
    let mut ids = Vec::new();
    for (number, id) in [(1, "7"), (2, "7"), (2, "\"7\"")] {
        sim.client_sends(number, &request(id, LISTEN, &json!({"notifications": {}})));
        ids.push((number, id, sim.agent_received()["id"].clone()));
    }
    let tagged = |id: &Value| {
        let params = json!({"_meta": {SUBSCRIPTION: id}, "uri": "u"});
        notification("notifications/resources/updated", &params)
    };
    let mark = |message: &Value| message["params"]["_meta"][SUBSCRIPTION].to_string();
    for (number, id, upstream) in &ids {
        sim.clear();
        sim.agent_sends(&tagged(upstream));
        assert_eq!(mark(&sim.client_received(*number)), *id);
        assert_eq!(take_received(&mut sim).len(), 1);
        // Some servers write each subscription's id as a string.
        sim.agent_sends(&tagged(&json!(upstream.to_string())));
        assert_eq!(mark(&sim.client_received(*number)), "\"7\"");
        assert_eq!(take_received(&mut sim).len(), 1);
    }
    sim.agent_sends(&tagged(&json!(99)));
    sim.agent_sends(&tagged(&json!("x")));
    assert_eq!(take_received(&mut sim), []);

    // The agent ends a subscription with a response, or on standard streams with a cancellation.
    let (_, _, upstream) = &ids[0];
    let result = json!({"_meta": {SUBSCRIPTION: upstream}});
    sim.agent_sends(&json!({"jsonrpc": "2.0", "id": upstream, "result": result}).to_string());
    let ended = sim.client_received(1);
    let mark = &ended["result"]["_meta"][SUBSCRIPTION];
    assert_eq!((&ended["id"], mark), (&json!(7), &json!(7)));
    sim.clear();
    let (_, _, upstream) = &ids[1];
    let params = json!({"requestId": upstream, "_meta": {SUBSCRIPTION: upstream}});
    sim.agent_sends(&notification("notifications/cancelled", &params));
    let params = sim.client_received(2)["params"].clone();
    assert_eq!(params, json!({"requestId": 7, "_meta": {SUBSCRIPTION: 7}}));
    assert_eq!(take_received(&mut sim).len(), 1);
    assert_eq!(sim.router.figures().client_requests, 1);

    // The agent is told when a subscriber disconnects.
    sim.clear();
    sim.disconnect(2);
    let (_, _, upstream) = &ids[2];
    assert_eq!(sim.agent_received()["params"]["requestId"], *upstream);
    assert_eq!(sim.output.agent.len(), 1);
}

#[test]
fn the_agent_cancels_its_own_requests_and_subscriptions_only() {
    let mut sim = Simulation::jsonrpc(2);
    sim.client_sends(1, &request("1", "tools/call", &json!({})));
    let call = sim.agent_received()["id"].clone();
    let cancelled = |id: &Value| notification("notifications/cancelled", &json!({"requestId": id}));
    sim.clear();
    // It is late: the agent had a request with the same id.
    sim.agent_sends(&cancelled(&call));
    assert_eq!(take_received(&mut sim), []);
    sim.agent_sends(&request(
        &call.to_string(),
        "sampling/createMessage",
        &json!({}),
    ));
    let asked = sim.client_received(1)["id"].clone();
    sim.clear();
    sim.agent_sends(&cancelled(&call));
    let received = take_received(&mut sim);
    assert_eq!(received, [(client(1), cancelled(&asked))]);
    assert_eq!(sim.router.figures().client_requests, 1);
}

#[test]
fn a_subscription_has_no_time_limit_and_nobody_waits_for_its_end() {
    let mut limits = Simulation::jsonrpc(0).router.settings();
    limits.request_timeout = Some(Duration::from_secs(1));
    let mut sim = Simulation::with_limits(limits);
    sim.connect(1);
    sim.client_sends(1, &request("1", LISTEN, &json!({})));
    assert!(!sim.router.is_busy(client(1)));
    sim.now = sim.now + Duration::from_secs(5);
    sim.router.handle_timeout(sim.now, &mut sim.output);
    assert_eq!(sim.router.figures().client_requests, 1);
    sim.client_sends(1, &request("2", "tools/call", &json!({})));
    assert!(sim.router.is_busy(client(1)));
    sim.now = sim.now + Duration::from_secs(5);
    sim.router.handle_timeout(sim.now, &mut sim.output);
    assert_eq!(sim.router.figures().client_requests, 1);
}
