//! The cursors of the draft, against a naive server.

use std::collections::{HashSet, VecDeque};

use serde_json::{Value, json};

use super::value;
use crate::random::Random;
use crate::service::connect::durable::{Durable, Resumed};
use crate::service::jsonrpc::IdKey;

/// A client to which the server has given its first cursor.
fn with_cursors() -> Durable {
    let mut durable = Durable::default();
    durable.begin(Some("c"), true);
    let initialize = json!({"protocolVersion": 1});
    let text = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": initialize});
    durable.send(&text.to_string(), 1 << 20);
    let capabilities = json!({"transport": {"resumable": true}});
    let result = json!({"capabilities": capabilities, "_meta": {"acp/cursor": "a"}});
    durable.receive(&json!({"jsonrpc": "2.0", "id": 0, "result": result}).to_string());
    assert!(durable.can_return());
    durable
}

#[test]
fn what_a_server_makes_the_client_remember_is_limited() {
    // The bug: there was no limit to the length of a session's id.
    let mut durable = with_cursors();
    for number in 0..10 * 1024 {
        for length in [8, 900, 1100] {
            let session = format!("{number:0>length$}");
            let meta = json!({"acp/cursor": "b".repeat(900)});
            let params = json!({"sessionId": session, "_meta": meta});
            let text = json!({"jsonrpc": "2.0", "method": "session/update", "params": params});
            durable.receive(&text.to_string());
        }
    }
    let size = durable.resume().len();
    assert!(size < 3 << 20, "{size}");
    // A cursor that is too long, or none, changes nothing.
    for cursor in [json!("c".repeat(2000)), json!(7), json!(null), json!({})] {
        let meta = json!({"acp/cursor": cursor});
        let text = json!({"jsonrpc": "2.0", "method": "x", "params": {"_meta": meta}});
        durable.receive(&text.to_string());
    }
    assert_eq!(durable.resume().len(), size);
}

#[test]
fn short_messages_that_nobody_confirms_are_dropped_in_time() {
    // The bug: only their bytes counted, so that those of one byte took many times the limit.
    let mut durable = with_cursors();
    for _ in 0..100_000 {
        durable.send("7", 64 << 10);
    }
    assert!(durable.unconfirmed() <= 1024, "{}", durable.unconfirmed());
}

/// A naive server with the cursors of the draft, and the connection to it.
#[derive(Default)]
struct Draft {
    /// Whether it says how many messages it has received.
    says_received: bool,
    to_server: VecDeque<String>,
    to_client: VecDeque<String>,
    received: Vec<String>,
    /// Its messages, each with its number as the cursor.
    said: Vec<String>,
}

impl Draft {
    fn say(&mut self, mut message: Value) {
        let place = if message.get("method").is_some() {
            "params"
        } else {
            "result"
        };
        message[place]["_meta"]["acp/cursor"] = json!(self.said.len().to_string());
        self.said.push(message.to_string());
        self.to_client.push_back(message.to_string());
    }

    /// Receives a message. A request gets its response at once or never.
    fn receive(&mut self, answers: bool) {
        let Some(text) = self.to_server.pop_front() else {
            return;
        };
        let message = value(&text);
        self.received.push(text);
        if answers && message.get("id").is_some() {
            self.say(json!({"jsonrpc": "2.0", "id": message["id"], "result": {}}));
        }
    }

    /// The connection is cut, and the client resumes it.
    fn cut(&mut self, durable: &mut Durable) {
        self.to_server.clear();
        let resume = value(&durable.resume());
        let cursor = resume["params"]["cursor"].as_str().expect("a cursor");
        let cursor: usize = cursor.parse().expect("a number");
        self.to_client = self.said[cursor + 1..].iter().cloned().collect();
        let meta = match self.says_received {
            true => json!({"outrigger": {"received": self.received.len()}}),
            false => json!({}),
        };
        let result = json!({"_meta": meta});
        let answer = json!({"jsonrpc": "2.0", "id": resume["id"], "result": result});
        let Some(Resumed::Yes(again)) = durable.handle_answer(&answer.to_string()) else {
            panic!("it continues");
        };
        let again = again.into_iter().map(String::from);
        self.to_server.extend(again);
    }
}

#[test]
fn with_cursors_each_message_arrives_once_and_a_doubtful_request_is_known() {
    for seed in 0..600 {
        let mut random = Random::new(seed);
        let mut durable = Durable::default();
        durable.begin(Some("c"), true);
        let mut server = Draft {
            says_received: seed % 2 == 0,
            ..Draft::default()
        };
        let initialize = json!({"protocolVersion": 1});
        let text =
            json!({"jsonrpc": "2.0", "id": "i", "method": "initialize", "params": initialize});
        let mut sent = vec![durable.send(&text.to_string(), 1 << 20).into_owned()];
        server.received.push(sent[0].clone());
        let capabilities = json!({"transport": {"resumable": {}}});
        let result = json!({"capabilities": capabilities});
        server.say(json!({"jsonrpc": "2.0", "id": "i", "result": result}));
        let mut heard = vec![server.to_client.pop_front().expect("the result")];
        durable.receive(&heard[0]);
        let mut doubtful = HashSet::new();
        for number in 0..100 {
            match random.below(10) {
                0..4 => {
                    let method = json!({"jsonrpc": "2.0", "method": "m", "params": {"n": number}});
                    let mut message = method;
                    if random.below(2) == 0 {
                        message["id"] = json!(number);
                    }
                    let text = durable.send(&message.to_string(), 1 << 20).into_owned();
                    server.to_server.push_back(text.clone());
                    sent.push(text);
                }
                4..6 => server.receive(random.below(3) > 0),
                6 => {
                    let session = ["s", "t"][random.below(2)];
                    let params = json!({"sessionId": session});
                    server.say(json!({"jsonrpc": "2.0", "method": "u", "params": params}));
                }
                7..9 => {
                    if let Some(text) = server.to_client.pop_front() {
                        durable.receive(&text);
                        heard.push(text);
                    }
                }
                _ => {
                    server.cut(&mut durable);
                    doubtful.extend(durable.take_doubtful());
                }
            }
        }
        server.cut(&mut durable);
        doubtful.extend(durable.take_doubtful());
        while !server.to_server.is_empty() {
            server.receive(false);
        }
        heard.extend(server.to_client.drain(..));
        assert_eq!(heard, server.said, "seed {seed}");
        if server.says_received {
            assert_eq!(server.received, sent, "seed {seed}");
            assert!(doubtful.is_empty());
            continue;
        }
        for text in sent {
            let count = server.received.iter().filter(|one| **one == text).count();
            match value(&text).get("id") {
                Some(id) => assert!(count == 1 || doubtful.contains(&IdKey::of(&id.to_string()))),
                None => assert!(count >= 1, "seed {seed}: {text}"),
            }
            assert!(count <= 1 || value(&text).get("id").is_none(), "{text}");
        }
    }
}
