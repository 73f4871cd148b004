//! Conversations of a client and a server, of which each sees its own revision.

use serde_json::{Value, json};

use super::*;
use crate::service::jsonrpc::SUBSCRIPTION;

/// A conversation. What each side gets is kept until it is taken.
struct World {
    newer: ToNewer,
    client: Vec<Value>,
    server: Vec<Value>,
}

impl World {
    /// A client with these capabilities, and a server of 2026-07-28 that has answered `server/discover`.
    fn new(capabilities: Value) -> Self {
        let mut world = Self {
            newer: ToNewer::new(),
            client: Vec::new(),
            server: Vec::new(),
        };
        let params = json!({"protocolVersion": "2025-06-18", "capabilities": capabilities, "clientInfo": {"name": "c"}});
        world.client_sends(json!({"id": 0, "method": "initialize", "params": params}));
        assert_eq!(world.server.remove(0)["method"], "initialize");
        world.server_sends(json!({"id": 0, "error": {"code": -32602, "message": "no"}}));
        let asked = world.server.remove(0);
        assert_eq!(asked["method"], "server/discover");
        let result = json!({"supportedVersions": [STATELESS], "instructions": "i",
            "capabilities": {"tools": {"listChanged": true}, "resources": {"subscribe": true}},
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "s"}}});
        world.server_sends(json!({"id": asked["id"], "result": result}));
        assert_eq!(
            world.client.remove(0),
            json!({"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": "2025-06-18",
                "capabilities": {"tools": {"listChanged": true}, "resources": {"subscribe": true}},
                "serverInfo": {"name": "s"}, "instructions": "i"}})
        );
        world
    }

    fn take(&mut self, out: Vec<Side>) {
        for side in out {
            let (Side::Client(text) | Side::Server(text)) = &side;
            let message = serde_json::from_str(text).expect("JSON");
            match side {
                Side::Client(_) => self.client.push(message),
                Side::Server(_) => self.server.push(message),
            }
        }
    }

    fn client_sends(&mut self, mut message: Value) {
        message["jsonrpc"] = "2.0".into();
        let (text, mut out) = (message.to_string(), Vec::new());
        let envelope = Envelope::parse(&text).expect("a message");
        self.newer.handle_client(&envelope, &mut out);
        self.take(out);
    }

    fn server_sends(&mut self, mut message: Value) {
        message["jsonrpc"] = "2.0".into();
        let (text, mut out) = (message.to_string(), Vec::new());
        let envelope = Envelope::parse(&text).expect("a message");
        self.newer.handle_server(&envelope, &mut out);
        self.take(out);
    }

    fn call(&mut self, id: Value, name: &str) -> Value {
        let params = json!({"name": name, "_meta": {"progressToken": 1}});
        self.client_sends(json!({"id": id, "method": "tools/call", "params": params}));
        self.server.remove(0)
    }

    fn ask(&mut self, id: &Value, requests: Value) {
        let result =
            json!({"resultType": "input_required", "inputRequests": requests, "requestState": "s"});
        self.server_sends(json!({"id": id, "result": result}));
    }
}

#[test]
fn a_server_that_answers_initialize_and_one_that_supports_nothing_else_are_left_alone() {
    for (first, second) in [
        (json!({"result": {"protocolVersion": "2025-06-18"}}), None),
        (
            json!({"error": {"code": 1}}),
            Some(json!({"error": {"code": 2}})),
        ),
        (
            json!({"error": {"code": 1}}),
            Some(json!({"result": {"supportedVersions": ["2027-01-01"]}})),
        ),
    ] {
        let mut world = World {
            newer: ToNewer::new(),
            client: Vec::new(),
            server: Vec::new(),
        };
        world.client_sends(json!({"id": "a", "method": "initialize", "params": {}}));
        let mut answer = first.clone();
        answer["id"] = "a".into();
        world.server_sends(answer);
        if let Some(mut second) = second {
            second["id"] = world.server[1]["id"].clone();
            world.server_sends(second);
        }
        assert!(world.newer.is_native());
        let got = world.client.remove(0);
        assert_eq!((&got["id"], &got["error"]), (&json!("a"), &first["error"]));
    }
}

#[test]
fn requests_get_an_envelope_with_the_level_that_the_client_has_set() {
    let mut world = World::new(json!({"roots": {}}));
    let call = world.call(json!(1), "t");
    let meta = json!({"progressToken": 1, "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientInfo": {"name": "c"}, "io.modelcontextprotocol/clientCapabilities": {"roots": {}}});
    assert_eq!(call["params"], json!({"name": "t", "_meta": meta}));
    for (id, method, params) in [
        (2, "ping", json!({})),
        (3, "logging/setLevel", json!({"level": "error"})),
        (4, "logging/setLevel", json!({"level": "loud"})),
        (5, "tasks/list", json!({})),
    ] {
        world.client_sends(json!({"id": id, "method": method, "params": params}));
    }
    let codes: Vec<Value> = world
        .client
        .drain(..)
        .map(|one| one["error"]["code"].clone())
        .collect();
    assert_eq!(
        codes,
        [json!(null), json!(null), json!(-32602), json!(-32601)]
    );
    world.client_sends(json!({"id": 6, "method": "tools/list"}));
    let list = world.server.remove(0);
    assert_eq!(
        list["params"]["_meta"]["io.modelcontextprotocol/logLevel"],
        "error"
    );
    let result = json!({"id": 6, "result": {"tools": [], "resultType": "complete"}});
    world.server_sends(result.clone());
    assert_eq!(world.client.remove(0)["result"], result["result"]);
    world.server_sends(json!({"id": 7, "method": "sampling/createMessage"}));
    assert_eq!(world.server.remove(0)["error"]["code"], -32601);
    assert!(world.client.is_empty() && world.server.is_empty());
}

#[test]
fn a_request_is_repeated_when_the_client_has_answered_all_questions() {
    let mut world = World::new(json!({"roots": {}, "elicitation": {"url": {}}}));
    let first = world.call(json!("same"), "t");
    let url = json!({"mode": "url", "url": "https://x", "message": "m"});
    world.ask(
        &first["id"],
        json!({
        "a": {"method": "roots/list"}, "b": {"method": "elicitation/create", "params": url}}),
    );
    let [roots, open] = [world.client.remove(0), world.client.remove(0)];
    assert_eq!(roots["method"], "roots/list");
    assert_eq!(open["params"]["elicitationId"], open["id"]);
    world.client_sends(json!({"id": open["id"], "result": {"action": "accept"}}));
    assert!(world.server.is_empty(), "one is open");
    world.client_sends(json!({"id": roots["id"], "result": {"roots": []}}));
    let again = world.server.remove(0);
    let (mut params, mut want) = (again["params"].clone(), first["params"].clone());
    want["inputResponses"] = json!({"a": {"roots": []}, "b": {"action": "accept"}});
    want["requestState"] = "s".into();
    assert_eq!(params.take(), want);
    assert!(again["id"] != first["id"]);
    // A state without a question is sent back at once.
    world.server_sends(
        json!({"id": again["id"], "result": {"resultType": "input_required", "requestState": "t"}}),
    );
    let third = world.server.remove(0);
    assert_eq!(
        (
            &third["params"]["requestState"],
            &third["params"]["inputResponses"]
        ),
        (&json!("t"), &Value::Null)
    );
    world.server_sends(json!({"id": third["id"], "result": {"content": []}}));
    assert_eq!(
        world.client.remove(0),
        json!({"jsonrpc": "2.0", "id": "same", "result": {"content": []}})
    );
    assert_eq!((world.newer.kept, world.newer.requests.len()), (0, 0));
}

#[test]
fn a_call_that_is_cancelled_or_cannot_go_on_leaves_nothing() {
    let mut world = World::new(json!({"sampling": {}}));
    let sampling = json!({"a": {"method": "sampling/createMessage", "params": {}}});
    // The client cancels a question, and the call before and after it is repeated.
    let call = world.call(json!(1), "t");
    world.ask(&call["id"], sampling.clone());
    let asked = world.client.remove(0);
    world.client_sends(json!({"method": "notifications/cancelled", "params": {"requestId": 1}}));
    let cancelled = world.client.remove(0);
    assert_eq!(cancelled["params"]["requestId"], asked["id"]);
    world.client_sends(json!({"id": asked["id"], "result": {}}));
    assert!(world.server.is_empty(), "the server has answered it");
    let call = world.call(json!(1), "t");
    world.ask(&call["id"], sampling.clone());
    let asked = world.client.remove(0);
    world.client_sends(json!({"id": asked["id"], "result": {}}));
    let again = world.server.remove(0);
    world.client_sends(json!({"method": "notifications/cancelled", "params": {"requestId": 1}}));
    assert_eq!(world.server.remove(0)["params"]["requestId"], again["id"]);
    // The client answers with an error, or the server asks for what it must not, or for nothing, or without end.
    let call = world.call(json!(1), "t");
    world.ask(&call["id"], sampling.clone());
    let asked = world.client.remove(0);
    world.client_sends(json!({"id": asked["id"], "error": {"code": -1, "message": "rejected"}}));
    assert_eq!(world.client.remove(0)["error"]["code"], -1);
    for requests in [
        json!({"a": sampling["a"], "b": {"method": "roots/list"}}),
        json!({"a": 7}),
    ] {
        let call = world.call(json!(1), "t");
        world.ask(&call["id"], requests);
        assert_eq!(
            world.client.pop().expect("an error")["error"]["code"],
            -32603
        );
        world.client.clear();
    }
    let mut call = world.call(json!(1), "t");
    for _ in 0..MAX_ROUNDS {
        world.ask(&call["id"], json!({}));
        call = world.server.remove(0);
    }
    world.ask(&call["id"], json!({}));
    assert_eq!(world.client.remove(0)["error"]["code"], -32603);
    assert!(world.server.is_empty() && world.client.is_empty());
    let newer = &world.newer;
    assert_eq!(
        (newer.kept, newer.requests.len(), newer.questions.len()),
        (0, 0, 0)
    );
}

#[test]
fn a_request_that_is_too_long_to_be_kept_is_sent_and_fails_if_it_needs_input() {
    let mut world = World::new(json!({"sampling": {}}));
    let call = world.call(json!(1), &"x".repeat(MAX_KEPT));
    world.ask(
        &call["id"],
        json!({"a": {"method": "sampling/createMessage"}}),
    );
    let failed = world.client.remove(0);
    assert_eq!(
        (&failed["id"], &failed["error"]["code"]),
        (&json!(1), &json!(-32603))
    );
}

#[test]
fn subscriptions_become_listening_requests() {
    let mut world = World::new(json!({}));
    world.client_sends(json!({"method": "notifications/initialized"}));
    let lists = world.server.remove(0);
    assert_eq!(
        lists["params"]["notifications"],
        json!({"toolsListChanged": true})
    );
    let meta = |id: &Value| json!({SUBSCRIPTION: id, "x": 1});
    let acknowledge = |id: &Value, honored: Value| {
        json!({"method": "notifications/subscriptions/acknowledged",
        "params": {"_meta": meta(id), "notifications": honored}})
    };
    world.server_sends(acknowledge(&lists["id"], json!({"toolsListChanged": true})));
    world.server_sends(json!({"method": "notifications/tools/list_changed", "params": {"_meta": meta(&lists["id"])}}));
    assert_eq!(world.client.remove(0)["params"], json!({"_meta": {"x": 1}}));
    let subscribe =
        |uri: &str| json!({"id": 1, "method": "resources/subscribe", "params": {"uri": uri}});
    for (uri, honored, is_result) in [("m:a", json!(["m:a"]), true), ("m:b", json!([]), false)] {
        world.client_sends(subscribe(uri));
        let listen = world.server.remove(0);
        assert_eq!(
            listen["params"]["notifications"],
            json!({"resourceSubscriptions": [uri]})
        );
        world.server_sends(acknowledge(
            &listen["id"],
            json!({"resourceSubscriptions": honored}),
        ));
        assert_eq!(world.client.remove(0)["result"].is_object(), is_result);
    }
    assert_eq!(
        world.server.remove(0)["method"],
        "notifications/cancelled",
        "it reports nothing"
    );
    // The server refuses one.
    world.client_sends(subscribe("m:c"));
    let id = world.server.remove(0)["id"].clone();
    world.server_sends(json!({"id": id, "error": {"code": -32602, "message": "no"}}));
    assert_eq!(world.client.remove(0)["error"]["message"], "no");
    for _ in 0..2 {
        world.client_sends(
            json!({"id": 1, "method": "resources/unsubscribe", "params": {"uri": "m:a"}}),
        );
        assert!(world.client.remove(0)["result"].is_object());
    }
    assert_eq!(world.server.len(), 1, "{:?}", world.server);
    assert_eq!((world.newer.kept, world.newer.requests.len()), (0, 1));
}
