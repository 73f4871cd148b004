//! Messages that name no session, cancellations, and messages that cannot be passed on.

use super::*;
use crate::service::agent::salvage::Salvaged;

/// The elicitation of a request, as the protocol has it where there is no session yet.
fn elicitation(id: &str, request_id: &Value) -> String {
    request(
        id,
        "elicitation/create",
        &json!({"requestId": request_id, "mode": "form", "message": "?"}),
    )
}

/// A world in which these clients can be asked for anything.
fn open_world(clients: u64) -> World {
    let mut world = World::new();
    for number in 1..=clients {
        world.connect(number);
        let hello = json!({"clientCapabilities": {"elicitation": {"form": {}}}});
        world.say(number, &request("0", "initialize", &hello));
        if number == 1 {
            world.answer(&json!({"protocolVersion": 1}));
        }
    }
    world.forget();
    world
}

fn who_heard(world: &World) -> Vec<ClientId> {
    world.record.clients.keys().copied().collect()
}

#[test]
fn a_request_without_a_session_goes_to_the_client_that_asked() {
    // The bug: it was refused, so nobody could log in through a form.
    let mut world = open_world(3);
    world.say(
        1,
        &request("\"a\"", "authenticate", &json!({"methodId": "x"})),
    );
    let first = world.agent_heard()["id"].clone();
    world.say(
        2,
        &request("\"a\"", "authenticate", &json!({"methodId": "x"})),
    );
    let second = world.agent_heard()["id"].clone();
    world.forget();
    // It says which request it is about, in its own id, and the client reads its own.
    world.agent_says(&elicitation("\"e\"", &second));
    assert_eq!(who_heard(&world), [client(2)]);
    let heard = world.heard(2);
    assert_eq!(heard["params"]["requestId"], "a");
    let answer = json!({"jsonrpc": "2.0", "id": heard["id"], "result": {"action": "accept"}});
    world.say(1, &answer.to_string());
    assert!(world.record.agent.is_empty(), "another cannot answer it");
    world.say(2, &answer.to_string());
    assert_eq!(world.agent_heard()["id"], "e");

    // Where it does not say so and two may be meant, nobody is asked.
    let nameless = request(
        "9",
        "elicitation/create",
        &json!({"mode": "form", "message": "?"}),
    );
    world.forget();
    world.agent_says(&nameless);
    assert_eq!(
        (code(&world.agent_heard()), who_heard(&world).len()),
        (-32600, 0)
    );
    world.agent_says(&json!({"jsonrpc": "2.0", "id": first, "result": {}}).to_string());
    world.session(3, "s");
    world.say(
        3,
        &request("7", "session/prompt", &json!({"sessionId": "s"})),
    );
    world.forget();
    world.agent_says(&nameless);
    assert_eq!(
        who_heard(&world),
        [client(2)],
        "one is left, and a prompt's question names its session"
    );

    // Neither is somebody else, when the one who asked has left.
    world.leave(2);
    world.say(1, &request("8", "authenticate", &json!({"methodId": "x"})));
    world.forget();
    world.agent_says(&nameless);
    assert_eq!(
        (code(&world.agent_heard()), who_heard(&world).len()),
        (-32600, 0)
    );
    world.agent_says(&elicitation("10", &second));
    assert_eq!(
        (code(&world.agent_heard()), who_heard(&world).len()),
        (-32800, 0)
    );
    world.agent_says(&json!({"jsonrpc": "2.0", "id": second, "result": {}}).to_string());
    world.agent_says(&nameless);
    assert_eq!(who_heard(&world), [client(1)]);
}

#[test]
fn a_notification_without_a_session_is_not_lost() {
    // The bug: it was dropped, and a client waited for `elicitation/complete` for ever.
    let mut world = open_world(3);
    world.connect(4);
    let complete = notification("elicitation/complete", &json!({"elicitationId": "e"}));
    world.agent_says(&complete);
    let all = [client(1), client(2), client(3)];
    assert_eq!(
        who_heard(&world),
        all,
        "nobody asks for anything: all who are initialized hear it"
    );
    world.say(2, &request("5", "authenticate", &json!({})));
    let id = world.agent_heard()["id"].clone();
    world.forget();
    world.agent_says(&complete);
    assert_eq!(
        who_heard(&world),
        [client(2)],
        "the one whose request is being answered"
    );
    world.session(1, "s");
    world.say(
        1,
        &request("6", "session/prompt", &json!({"sessionId": "s"})),
    );
    world.forget();
    world.agent_says(&complete);
    assert_eq!(who_heard(&world), all);
    world.forget();
    world.agent_says(&notification("_vendor/progress", &json!({"requestId": id})));
    assert_eq!(who_heard(&world), [client(2)], "it says whose it is");
    assert_eq!(world.heard(2)["params"]["requestId"], 5);
    // An elicitation is completed for the client that was asked, whoever else waits.
    let params =
        json!({"sessionId": "s", "mode": "url", "elicitationId": "e", "url": "x", "message": "?"});
    world.agent_says(&request("70", "elicitation/create", &params));
    world.forget();
    world.agent_says(&complete);
    assert_eq!(who_heard(&world), [client(1)]);
    world.forget();
    world.agent_says(&complete);
    assert_eq!(who_heard(&world), all, "it is completed once");
    // The only client, and nobody at all.
    (2..=4).for_each(|number| world.leave(number));
    world.forget();
    world.agent_says(&complete);
    assert_eq!(who_heard(&world), [client(1)]);
    world.leave(1);
    world.forget();
    world.agent_says(&complete);
    assert!(who_heard(&world).is_empty());
}

#[test]
fn a_cancellation_stops_only_a_request_of_its_own_client_by_any_protocols_name() {
    // The bug: only `$/cancel_request` as a notification had its id exchanged. The others named the id that the agent
    // knows, so a client that guessed a number cancelled another's call.
    for (method, key) in [
        ("$/cancel_request", "requestId"),
        ("$/cancelRequest", "id"),
        ("notifications/cancelled", "requestId"),
    ] {
        let mut world = World::jsonrpc(2);
        world.say(1, &request("77", "tools/call", &json!({})));
        let first = world.agent_heard()["id"].clone();
        world.say(2, &request("77", "tools/call", &json!({})));
        let second = world.agent_heard()["id"].clone();
        world.forget();
        for raw in [&first, &json!(78), &json!("77")] {
            world.say(2, &notification(method, &json!({key: raw})));
            world.say(2, &request("5", method, &json!({key: raw})));
            assert_eq!(code(&world.heard(2)), -32600, "{method}");
        }
        for params in [
            json!({}),
            json!({"request_id": 77}),
            json!({"requestId": 77, "id": 77}),
        ] {
            world.say(2, &notification(method, &params));
            world.say(2, &request("5", method, &params));
        }
        assert!(
            world.record.agent.is_empty(),
            "{method}: {:?}",
            world.record.agent
        );
        world.say(2, &request("\"c\"", method, &json!({key: 77})));
        let heard = world.agent_heard();
        assert_eq!(heard["params"][key], second, "{method}");
        assert!(heard["id"].is_u64() && heard["id"] != second);
        world.say(2, &notification(method, &json!({key: 77})));
        assert_eq!(world.agent_heard()["params"][key], second, "{method}");
        // A call of the Model Context Protocol that was cancelled is not answered, and does not wait for ever.
        let waits = if method == "notifications/cancelled" {
            2
        } else {
            3
        };
        assert_eq!(world.router.waiting_count(), waits, "{method}");
    }
    let mut world = World::jsonrpc(2);
    world.say(1, &request("1", "tools/call", &json!({})));
    world.agent_says(&request("\"q\"", "sampling/createMessage", &json!({})));
    let asked = world.heard(1)["id"].clone();
    world.agent_says(&notification(
        "notifications/cancelled",
        &json!({"requestId": "q"}),
    ));
    assert_eq!(world.heard(1)["params"]["requestId"], asked);
    assert_eq!(world.router.asked_count(), 0);
    world.forget();
    world.agent_says(&notification(
        "notifications/cancelled",
        &json!({"requestId": "q"}),
    ));
    assert!(who_heard(&world).is_empty(), "for nobody, and not for all");
}

#[test]
fn what_is_kept_for_a_waiting_request_is_bounded() {
    // The bug: `params.sessionId` of any length was kept for each of them, 100 of 15 MB.
    let long = "x".repeat(100_000);
    let mut world = World::jsonrpc(1);
    world.say(1, &request("1", "tools/call", &json!({"sessionId": long})));
    world.agent_says(&request("1", "tools/call", &json!({"sessionId": long})));
    world.agent_says(&request(&json!(long).to_string(), "x", &json!({})));
    assert_eq!(
        code(&world.agent_heard()),
        -32600,
        "the agent's ids have a limit, too"
    );
    assert_eq!(
        (world.router.waiting_count(), world.router.asked_count()),
        (1, 1)
    );
    assert!(
        world.router.kept_for_requests() < 100,
        "{}",
        world.router.kept_for_requests()
    );
    let mut world = World::with(1);
    for method in ["session/load", "session/prompt", "_vendor/x"] {
        world.say(1, &request("1", method, &json!({"sessionId": long})));
        assert_eq!(code(&world.heard(1)), -32010);
    }
    assert_eq!(world.router.waiting_count(), 0);
}

#[test]
fn an_answer_that_cannot_be_passed_on_is_answered_for() {
    // The bug: an answer over --max-message, or with half of a surrogate pair, left its request waiting for ever.
    let mut world = World::with(1);
    let fail = |world: &mut World, id: &Value| {
        let salvaged = Some(Salvaged::Response(id.to_string()));
        let now = world.now;
        world
            .router
            .handle_unreadable(now, salvaged, "is over the limit", &mut world.record);
    };
    world.say(1, &request("\"a\"", "authenticate", &json!({})));
    let id = world.agent_heard()["id"].clone();
    fail(&mut world, &id);
    let heard = world.heard(1);
    assert_eq!((code(&heard), &heard["id"]), (-32603, &json!("a")));
    assert_eq!(
        heard["error"]["data"],
        "the agent's answer is over the limit"
    );

    world.say(1, &request("\"b\"", "authenticate", &json!({})));
    let id = world.agent_heard()["id"].clone();
    world.agent_says(&format!(
        r#"{{"jsonrpc":"2.0","result":"\ud800","id":{id}}}"#
    ));
    assert_eq!(world.heard(1)["id"], "b");

    // A load that fails so is a load that failed.
    world.say(
        1,
        &request("\"c\"", "session/load", &json!({"sessionId": "old"})),
    );
    let id = world.agent_heard()["id"].clone();
    fail(&mut world, &id);
    assert_eq!(
        (world.router.owner_of("old"), world.router.waiting_count()),
        (None, 0)
    );

    // `initialize` can be asked for again.
    let mut world = World::new();
    world.connect(1);
    world.say(1, &request("\"i\"", "initialize", &json!({})));
    let id = world.agent_heard()["id"].clone();
    fail(&mut world, &id);
    assert_eq!(
        (code(&world.heard(1)), &world.heard(1)["id"]),
        (-32603, &json!("i"))
    );
    world.say(1, &request("\"j\"", "initialize", &json!({})));
    assert_eq!(world.record.agent.len(), 2);

    // A request of the agent is answered as well, and is not taken for an answer of the same number.
    world.answer(&json!({"protocolVersion": 1}));
    world.say(1, &request("\"d\"", "authenticate", &json!({})));
    let id = world.agent_heard()["id"].clone();
    world.forget();
    let line = request(
        &id.to_string(),
        "fs/read_text_file",
        &json!({"sessionId": 5}),
    );
    world.agent_says(&line);
    assert_eq!(
        (code(&world.agent_heard()), &world.agent_heard()["id"]),
        (-32600, &id)
    );
    assert!(world.record.clients.is_empty());
    assert_eq!(world.router.waiting_count(), 1);
}
