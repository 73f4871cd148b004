//! Batches of version 2, in both directions.

use super::*;

/// A simulation with the clients 1 to `clients` of version 2, each with a session `s1`, `s2`, ...
fn version_2(clients: u64) -> Simulation {
    let mut sim = Simulation::new();
    for number in 1..=clients {
        sim.connect_as(number, Principal::Named(format!("p{number}").into()));
        sim.hello(number, &json!({"protocolVersion": 2}));
        sim.session(number, &format!("s{number}"));
    }
    sim.clear();
    sim
}

fn batch(messages: &[String]) -> String {
    format!("[{}]", messages.join(","))
}

/// The ids of the responses in an array, in its order.
fn ids(array: &Value) -> Vec<&Value> {
    let responses = array.as_array().expect("an array");
    responses.iter().map(|response| &response["id"]).collect()
}

/// Answers a line that a process has received.
fn answer(sim: &mut Simulation, line: usize, result: &Value) {
    let request: Value = serde_json::from_str(&sim.output.agent[line]).expect("JSON");
    let response = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
    sim.agent_sends(&response.to_string());
}

/// The bug: a batch of a client of version 2 was an error, although the transport permits it.
#[test]
fn each_request_of_a_batch_is_routed_alone_and_the_answers_are_one_array() {
    let mut sim = version_2(2);
    sim.client_sends(
        1,
        &batch(&[
            request("1", "session/set_mode", &json!({"sessionId": "s1"})),
            notification("session/cancel", &json!({"sessionId": "s1"})),
            // The session of another client.
            request("\"b\"", "session/set_mode", &json!({"sessionId": "s2"})),
            request("1.0", "session/set_mode", &json!({"sessionId": "s1"})),
            json!({"jsonrpc": "2.0", "id": 9, "result": {}}).to_string(),
            "7".to_owned(),
            r#"{"jsonrpc":"2.0","id":8,"method":3}"#.to_owned(),
        ]),
    );
    assert_eq!(sim.output.agent.len(), 3, "{:?}", sim.output.agent);
    assert_eq!(sim.output.clients.get(&client(1)), None);
    answer(&mut sim, 2, &json!({"second": true}));
    assert_eq!(sim.output.clients.get(&client(1)), None);
    // A message that is no response to the batch does not wait for it.
    sim.agent_sends(&notification("session/update", &json!({"sessionId": "s1"})));
    assert_eq!(sim.client_received(1)["method"], "session/update");
    answer(&mut sim, 0, &json!({"first": true}));
    let array = sim.client_received(1);
    let expected = [json!(null), json!(null), json!("b"), json!(1.0), json!(1)];
    assert_eq!(ids(&array), expected.iter().collect::<Vec<_>>());
    assert_eq!(array[0]["error"]["code"], -32600);
    assert_eq!(array[1]["error"]["code"], -32600);
    assert_eq!(array[2]["error"]["code"], -32010);
    assert_eq!(sim.output.batches.len(), 0);
}

#[test]
fn an_array_that_is_no_batch_gets_one_error() {
    let mut sim = version_2(1);
    let many = |count| batch(&vec![notification("_x", &json!({})); count]);
    for (text, code) in [
        ("[]".to_owned(), -32600),
        ("[".to_owned(), -32700),
        ("[{}] x".to_owned(), -32700),
        ("[1,]".to_owned(), -32700),
        (many(1001), -32600),
        (many(10_010), -32600),
    ] {
        sim.clear();
        sim.client_sends(1, &text);
        let response = sim.client_received(1);
        assert_eq!(response["error"]["code"], code, "{text:.30}");
        assert_eq!(response["id"], json!(null));
        assert_eq!(sim.output.agent, [""; 0]);
    }
    sim.clear();
    sim.client_sends(1, &many(1000));
    assert_eq!(sim.output.agent.len(), 1000);
    // There is nothing to answer.
    assert_eq!(sim.output.clients.get(&client(1)), None);
    sim.clear();
    sim.client_sends(1, " [1, [2]]");
    assert_eq!(ids(&sim.client_received(1)), [&json!(null), &json!(null)]);
}

#[test]
fn version_1_and_other_protocols_have_no_batches() {
    let one = batch(&[request("1", "session/list", &json!({}))]);
    let mut sim = Simulation::with(1);
    sim.client_sends(1, &one);
    assert_eq!(code(&sim.client_received(1)), -32600);
    assert_eq!(sim.output.agent, [""; 0]);
    let mut sim = Simulation::jsonrpc(1);
    sim.client_sends(1, &one);
    assert_eq!(code(&sim.client_received(1)), -32600);
    // Nor does a connection before `initialize`.
    let mut sim = Simulation::new();
    sim.connect(1);
    sim.client_sends(
        1,
        &batch(&[request("0", "initialize", &json!({"protocolVersion": 2}))]),
    );
    assert_eq!(code(&sim.client_received(1)), -32600);
}

#[test]
fn the_batch_of_an_agent_is_taken_apart_for_its_receivers() {
    let mut sim = version_2(2);
    let asks = |id: &str, session: &str| {
        request(
            id,
            "session/request_permission",
            &json!({"sessionId": session, "options": []}),
        )
    };
    sim.agent_sends(&batch(&[
        asks("1", "s1"),
        notification("session/update", &json!({"sessionId": "s2", "n": 1})),
        asks("\"two\"", "s2"),
        request("3", "fs/read_text_file", &json!({"sessionId": "s1"})),
    ]));
    let upstream = |sim: &Simulation, number| sim.client_received(number)["id"].clone();
    assert_eq!(sim.output.clients[&client(1)].len(), 1);
    assert_eq!(sim.output.clients[&client(2)].len(), 2);
    // The error for what the client has not announced waits for the others.
    assert_eq!(sim.output.agent, [""; 0]);
    for number in [2, 1] {
        let id = upstream(&sim, number);
        let response =
            json!({"jsonrpc": "2.0", "id": id, "result": {"outcome": {"outcome": "cancelled"}}});
        sim.client_sends(number, &response.to_string());
    }
    let array = sim.agent_received();
    assert_eq!(ids(&array), [&json!(3), &json!("two"), &json!(1)]);
    assert_eq!(array[0]["error"]["code"], -32601);
}

#[test]
fn nothing_of_a_batch_is_left_when_its_sender_has_gone() {
    let mut sim = version_2(1);
    let asks = request("1", "session/set_mode", &json!({"sessionId": "s1"}));
    sim.client_sends(1, &batch(&[asks.clone(), asks]));
    let permission = request(
        "4",
        "session/request_permission",
        &json!({"sessionId": "s1"}),
    );
    sim.agent_sends(&batch(&[permission]));
    assert_eq!(sim.output.batches.len(), 2);
    sim.router.handle_agent_exited(0, "{}", &mut sim.output);
    // The client's requests fail. The agent's batch is dropped with its process.
    let array = sim.client_received(1);
    assert_eq!(ids(&array).len(), 2);
    assert_eq!(array[0]["error"]["code"], -32012);
    assert_eq!(sim.output.batches.len(), 0);
    sim.client_sends(1, &batch(&[request("1", "session/list", &json!({}))]));
    assert_eq!(sim.output.batches.len(), 1);
    sim.disconnect(1);
    assert_eq!(sim.output.batches.len(), 0);
}

/// Otherwise, the responses to one batch could take as much memory as a client likes.
#[test]
fn many_bytes_of_responses_do_not_wait_for_the_last_one() {
    let mut batches = Batches::default();
    let asks: Vec<_> = (0..3)
        .map(|id| request(&id.to_string(), "m", &json!({})))
        .collect();
    let sender = BatchSender::Client(client(1));
    assert!(batches.begin(sender, &batch(&asks)).is_ok());
    let long = json!({"jsonrpc": "2.0", "id": 0, "result": "x".repeat(1 << 20)}).to_string();
    let short = |id: u32| json!({"jsonrpc": "2.0", "id": id, "result": 0}).to_string();
    let mut sent = |text: &str| batches.collect(sender, &[text]).into_text(&[text]);
    assert_eq!(sent(&long).map(|array| array.len()), Some(long.len() + 2));
    assert_eq!(sent(&short(1)), None);
    assert_eq!(
        sent(&short(2)),
        Some(format!("[{},{}]", short(1), short(2)))
    );
    // A second response to a request is another message.
    assert_eq!(sent(&short(2)), Some(short(2)));
}

/// The bug: each of many batches could hold back answers of up to 1 MiB, because one request of it was not answered.
#[test]
fn the_answers_that_wait_for_others_are_limited_for_all_batches_of_a_client() {
    let mut limits = Simulation::new().router.settings();
    limits.client_requests = 1024;
    let mut sim = Simulation::with_limits(limits);
    sim.connect_as(1, Principal::Named("p".into()));
    sim.hello(1, &json!({"protocolVersion": 2}));
    sim.session(1, "s");
    sim.clear();
    for number in 0..100 {
        let mut messages = vec!["7".to_owned(); 999];
        let mode = json!({"sessionId": "s"});
        messages.push(request(&number.to_string(), "session/set_mode", &mode));
        sim.client_sends(1, &batch(&messages));
    }
    let held = sim.output.batches.held();
    assert!(held <= 2 << 20, "{held} bytes");
    assert_eq!(sim.output.batches.len(), 100);
}

/// The bug: the messages behind the one for which a client is closed were still passed on.
#[test]
fn the_rest_of_a_batch_is_not_handled_after_its_client_was_closed() {
    let mut sim = version_2(1);
    let mode = json!({"sessionId": "s1"});
    let long = format!("\"{}\"", "x".repeat(1100));
    sim.client_sends(
        1,
        &batch(&[
            request("1", "session/set_mode", &mode),
            request(&long, "session/set_mode", &mode),
            request("2", "session/set_mode", &mode),
            notification("session/cancel", &mode),
        ]),
    );
    assert_eq!(sim.output.closed, [(client(1), CloseCode::POLICY)]);
    assert_eq!(sim.output.agent.len(), 1, "{:?}", sim.output.agent);
    sim.client_sends(1, &request("3", "session/set_mode", &mode));
    assert_eq!(sim.output.agent.len(), 1);
}
