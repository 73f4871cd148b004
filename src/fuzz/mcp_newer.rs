//! Fuzzes a client of an older revision in front of an MCP server of 2026-07-28. A model of both sides checks that each request is
//! answered once with what belongs to it, and that input reaches the request that needs it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::UPGRADE;
use crate::record::simulated::restored;
use crate::service::jsonrpc::Envelope;
use crate::service::mcp::fuzzed::{Side, ToNewer};

const URIS: [&str; 3] = ["file:///a", "file:///a/b", "memo:x"];
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// The input that a request needs: the server's state, and the answers to its questions that have been given.
#[derive(Default)]
struct Input {
    state: Option<String>,
    answers: BTreeMap<String, u64>,
    open: usize,
}

struct World {
    newer: ToNewer,
    serial: u64,
    /// The client's pending requests by id. The value is the serial number, and whether it is a call.
    pending: BTreeMap<u64, (u64, bool)>,
    /// The questions that the client has got: the serial number of the call, and the name.
    asked: BTreeMap<String, (u64, String)>,
    /// What the server has got and not answered: serial numbers by ids.
    received: BTreeMap<String, u64>,
    inputs: BTreeMap<u64, Input>,
    /// The subscriptions at the server: their resources, and those that the client has.
    listens: BTreeMap<String, String>,
    wanted: BTreeSet<String>,
}

/// Pairs of bytes: an operation and its argument.
pub fn mcp_newer(data: &[u8]) {
    let mut world = World {
        newer: ToNewer::new(),
        serial: 0,
        pending: BTreeMap::new(),
        asked: BTreeMap::new(),
        received: BTreeMap::new(),
        inputs: BTreeMap::new(),
        listens: BTreeMap::new(),
        wanted: BTreeSet::new(),
    };
    world.begin();
    for operation in data.chunks_exact(2) {
        world.step(operation[0], operation[1]);
    }
    world.end();
}

impl World {
    fn begin(&mut self) {
        let mut out = Vec::new();
        let first = r#"{"jsonrpc":"2.0","id":9,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}}}}"#;
        let refused = r#"{"jsonrpc":"2.0","id":9,"error":{"code":-32022,"message":"no"}}"#;
        let mut messages = [(true, first), (false, refused)].into_iter();
        for (is_client, text) in &mut messages {
            let envelope = Envelope::parse(text).expect("a message");
            match is_client {
                true => self.newer.handle_client(&envelope, &mut out),
                false => self.newer.handle_server(&envelope, &mut out),
            }
        }
        let Some(Side::Server(asked)) = out.pop() else {
            panic!("the server is asked");
        };
        let asked: Value = serde_json::from_str(&asked).expect("JSON");
        let result = json!({"supportedVersions": ["2026-07-28"], "capabilities": {}});
        let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": result}).to_string();
        let mut out = Vec::new();
        self.newer
            .handle_server(&Envelope::parse(&answer).expect("a message"), &mut out);
        assert!(self.newer.is_translating());
    }

    fn step(&mut self, operation: u8, argument: u8) {
        if operation >= UPGRADE {
            self.newer = restored(&self.newer);
            return;
        }
        let id = u64::from(argument >> 6);
        let uri = URIS[usize::from(argument) % URIS.len()];
        match operation % 14 {
            0 | 1 => self.request(id, "tools/call", json!({}), true),
            2 => self.request(id, "tools/list", json!({}), true),
            3 => self.subscribe(id, uri, "resources/subscribe"),
            4 => self.subscribe(id, uri, "resources/unsubscribe"),
            5 => self.request(id, "logging/setLevel", json!({"level": "error"}), false),
            6 => self.cancel(id),
            7 | 8 => self.answer(argument),
            9 | 10 => self.require_input(argument),
            11 => self.give_input(argument),
            12 => self.report(argument),
            _ => self.foreign(argument),
        }
    }

    fn request(&mut self, id: u64, method: &str, mut params: Value, is_call: bool) {
        if self.pending.contains_key(&id) {
            return;
        }
        self.serial += 1;
        self.pending.insert(id, (self.serial, is_call));
        params["for"] = self.serial.into();
        self.client_sends(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    fn subscribe(&mut self, id: u64, uri: &str, method: &str) {
        if self.pending.contains_key(&id) {
            return;
        }
        match method {
            "resources/subscribe" => _ = self.wanted.insert(uri.to_owned()),
            _ => _ = self.wanted.remove(uri),
        }
        self.request(id, method, json!({"uri": uri}), false);
    }

    fn cancel(&mut self, id: u64) {
        if let Some((serial, true)) = self.pending.get(&id).copied() {
            self.pending.remove(&id);
            self.inputs.remove(&serial);
            let params = json!({"requestId": id});
            self.client_sends(
                &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}),
            );
            assert!(
                self.asked.values().all(|(of, _)| *of != serial),
                "the client need not answer any more"
            );
        }
    }

    fn chosen(&self, argument: u8) -> Option<(String, u64)> {
        let chosen = usize::from(argument) % self.received.len().max(1);
        let found = self.received.iter().nth(chosen);
        found.map(|(id, serial)| (id.clone(), *serial))
    }

    fn answer(&mut self, argument: u8) {
        if let Some((id, serial)) = self.chosen(argument) {
            self.received.remove(&id);
            let id: Value = serde_json::from_str(&id).expect("an id");
            let answer = match argument.is_multiple_of(5) {
                true => json!({"jsonrpc": "2.0", "id": id, "error": {"code": 1, "message": "no"}}),
                false => json!({"jsonrpc": "2.0", "id": id, "result": {"for": serial}}),
            };
            self.server_sends(&answer);
        }
    }

    fn require_input(&mut self, argument: u8) {
        let Some((id, serial)) = self.chosen(argument) else {
            return;
        };
        self.received.remove(&id);
        let count = usize::from(argument >> 5) % 4;
        let has_state = count == 0 || argument.is_multiple_of(2);
        let names: Vec<String> = (0..count).map(|place| format!("q\"{place}")).collect();
        let mut result = json!({"resultType": "input_required"});
        for name in &names {
            let params = json!({"for": serial, "name": name});
            result["inputRequests"][name] =
                json!({"method": "elicitation/create", "params": params});
        }
        let state = format!("{serial}/{argument}");
        if has_state {
            result["requestState"] = json!(state);
        }
        let input = Input {
            state: has_state.then_some(state),
            answers: BTreeMap::new(),
            open: count,
        };
        self.inputs.insert(serial, input);
        let id: Value = serde_json::from_str(&id).expect("an id");
        self.server_sends(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    fn give_input(&mut self, argument: u8) {
        let chosen = usize::from(argument) % self.asked.len().max(1);
        let Some((id, (serial, name))) = self.asked.iter().nth(chosen) else {
            return;
        };
        let (id, serial, name) = (id.clone(), *serial, name.clone());
        self.asked.remove(&id);
        let id: Value = serde_json::from_str(&id).expect("an id");
        if argument.is_multiple_of(7) {
            self.inputs.remove(&serial);
            let error = json!({"code": -1, "message": "rejected"});
            return self.client_sends(&json!({"jsonrpc": "2.0", "id": id, "error": error}));
        }
        self.serial += 1;
        let input = self.inputs.get_mut(&serial).expect("it was asked for");
        input.answers.insert(name, self.serial);
        input.open -= 1;
        let result = json!({"by": self.serial});
        self.client_sends(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    /// The server says something about a subscription.
    fn report(&mut self, argument: u8) {
        let chosen = usize::from(argument >> 2) % self.listens.len().max(1);
        let found = self.listens.iter().nth(chosen);
        let Some((id, uri)) = found.map(|(id, uri)| (id.clone(), uri.clone())) else {
            return;
        };
        let raw: Value = serde_json::from_str(&id).expect("an id");
        let meta = json!({SUBSCRIPTION: raw});
        let (method, params) = match argument % 4 {
            0 => (
                "subscriptions/acknowledged",
                json!({"_meta": meta, "notifications": {"resourceSubscriptions": [uri]}}),
            ),
            1 => (
                "subscriptions/acknowledged",
                json!({"_meta": meta, "notifications": {}}),
            ),
            2 => ("resources/updated", json!({"_meta": meta, "uri": uri})),
            _ => ("cancelled", json!({"requestId": raw})),
        };
        if argument % 2 == 1 {
            self.listens.remove(&id);
        }
        let method = format!("notifications/{method}");
        self.server_sends(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Each side answers what it was not asked.
    fn foreign(&mut self, argument: u8) {
        let id = format!("outrigger-{}", 1_000_000 + u64::from(argument));
        self.client_sends(&json!({"jsonrpc": "2.0", "id": id, "result": {}}));
        self.server_sends(&json!({"jsonrpc": "2.0", "id": id, "method": "sampling/createMessage"}));
        let params = json!({"requestId": id});
        self.server_sends(
            &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}),
        );
    }

    fn client_sends(&mut self, message: &Value) {
        let (text, mut out) = (message.to_string(), Vec::new());
        let envelope = Envelope::parse(&text).expect("a message");
        self.newer.handle_client(&envelope, &mut out);
        self.take(out);
    }

    fn server_sends(&mut self, message: &Value) {
        let (text, mut out) = (message.to_string(), Vec::new());
        let envelope = Envelope::parse(&text).expect("a message");
        self.newer.handle_server(&envelope, &mut out);
        self.take(out);
    }

    fn take(&mut self, out: Vec<Side>) {
        for side in out {
            let (Side::Client(text) | Side::Server(text)) = &side;
            assert!(Envelope::parse(text).is_ok(), "{text}");
            let message = serde_json::from_str(text).expect("JSON");
            match side {
                Side::Client(_) => self.client_gets(&message),
                Side::Server(_) => self.server_gets(&message),
            }
        }
    }

    fn client_gets(&mut self, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str() {
            None => {
                let id = message["id"].as_u64().expect("its own id");
                let (serial, _) = self.pending.remove(&id).expect("it waits");
                let of = &message["result"]["for"];
                assert!(
                    of.is_null() || *of == serial,
                    "{message} is not for {serial}"
                );
                self.inputs.remove(&serial);
            }
            Some("elicitation/create") => {
                let serial = params["for"].as_u64().expect("a number");
                let mut pending = self.pending.values();
                assert!(pending.any(|(waits, _)| *waits == serial), "it waits");
                let name = params["name"].as_str().expect("a name").to_owned();
                let is_new = self.asked.insert(message["id"].to_string(), (serial, name));
                assert!(is_new.is_none(), "an id is not used again");
            }
            Some("notifications/cancelled") => {
                let id = params["requestId"].to_string();
                assert!(self.asked.remove(&id).is_some(), "it was asked");
            }
            Some(method) => {
                assert_eq!(method, "notifications/resources/updated");
                assert!(params["_meta"][SUBSCRIPTION].is_null());
            }
        }
    }

    fn server_gets(&mut self, message: &Value) {
        let (id, params) = (message["id"].to_string(), &message["params"]);
        match message["method"].as_str() {
            Some("subscriptions/listen") => {
                let uri = &params["notifications"]["resourceSubscriptions"][0];
                let uri = uri.as_str().expect("a resource").to_owned();
                assert!(self.wanted.contains(&uri));
                assert!(self.listens.insert(id, uri).is_none());
            }
            Some("notifications/cancelled") => {
                let id = params["requestId"].to_string();
                self.received.remove(&id);
                self.listens.remove(&id);
            }
            Some(method) => {
                let version = &params["_meta"]["io.modelcontextprotocol/protocolVersion"];
                assert_eq!(*version, "2026-07-28");
                let serial = params["for"].as_u64().expect("a number");
                assert!(self.received.insert(id, serial).is_none());
                let input = self.inputs.remove(&serial).unwrap_or_default();
                assert!(input.open == 0, "each question is answered");
                assert_eq!(params["requestState"].as_str(), input.state.as_deref());
                let answers: BTreeMap<String, u64> = match params["inputResponses"].as_object() {
                    Some(answers) => answers
                        .iter()
                        .map(|(name, one)| (name.clone(), one["by"].as_u64().expect("a number")))
                        .collect(),
                    None => BTreeMap::new(),
                };
                assert_eq!(answers, input.answers, "{method}");
            }
            None => assert!(message["error"].is_object()),
        }
    }

    /// The client cancels and ends everything. Nothing is left.
    fn end(mut self) {
        for id in 0..4 {
            self.cancel(id);
        }
        for uri in URIS {
            self.wanted.remove(uri);
            self.request(7, "resources/unsubscribe", json!({"uri": uri}), false);
        }
        assert!(self.pending.is_empty() && self.asked.is_empty());
        assert!(self.newer.is_idle(), "{:?}", self.newer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    #[test]
    fn each_request_of_a_translated_session_is_answered_once_with_its_own() {
        let mut random = Random::new(72);
        for _ in 0..rounds(4000) {
            let length = 2 * random.below(100);
            let data: Vec<u8> = (0..length).map(|_| random.byte()).collect();
            mcp_newer(&data);
        }
    }
}
