//! Fuzzes a session with a process of its own. A model checks that every message passes unchanged, and that every request is answered
//! once, on its stream.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use uuid::Uuid;

use super::UPGRADE;
use crate::Principal;
use crate::record::simulated::restored;
use crate::service::jsonrpc::{Envelope, RecoveredId};
use crate::service::mcp::fuzzed::{Ended, Failure, Incoming, Multiplexer, Output, Reach, Who};

const TOKENS: [&str; 3] = ["0", "1", "2"];

struct World {
    mux: Multiplexer,
    member: usize,
    /// The streams of the requests that are not answered, by their ids.
    pending: BTreeMap<u64, u32>,
    /// The streams whose progress the client wants, by tokens.
    tokens: BTreeMap<&'static str, BTreeSet<u32>>,
    /// The ids of the requests that wait for the start of the process.
    held: Vec<u64>,
    last_stream: u32,
    runs: bool,
}

/// Pairs of bytes: an operation and its argument.
pub(super) fn mcp_alone(data: &[u8]) {
    let mut mux = Multiplexer::new(Who::Client, "null", "null");
    let member = mux.join(Uuid::from_u128(1), &Principal::Nobody);
    let mut world = World {
        mux,
        member,
        pending: BTreeMap::new(),
        tokens: BTreeMap::new(),
        held: Vec::new(),
        last_stream: 0,
        runs: false,
    };
    world.request(9, "initialize", None);
    for operation in data.chunks_exact(2) {
        world.step(operation[0], operation[1]);
    }
}

impl World {
    fn step(&mut self, operation: u8, argument: u8) {
        if operation >= UPGRADE {
            self.mux = restored(&self.mux);
            return;
        }
        let id = u64::from(argument % 5);
        let token = TOKENS.get(usize::from(argument >> 4) % 4).copied();
        match operation % 10 {
            0 | 1 => self.request(id, "tools/call", token),
            2 => self.cancel(id),
            3 | 4 => self.answer(id, argument),
            5 => self.progress(token),
            6 => self.passes_from_process(&json!({"method": "notifications/message"})),
            7 => self.passes_from_process(&json!({"method": "roots/list", "id": id})),
            8 => self.passes_from_session(&json!({"id": id, "result": {}})),
            _ if self.runs => self.exit(argument),
            _ => self.start(),
        }
    }

    /// A request, unless one with this id waits.
    fn request(&mut self, id: u64, method: &str, token: Option<&'static str>) {
        if self.mux.is_pending(self.member, &id.to_string()) {
            assert!(self.pending.contains_key(&id));
            return;
        }
        self.last_stream += 1;
        assert!(self.pending.insert(id, self.last_stream).is_none());
        let mut message = json!({"id": id, "method": method, "params": {"n": self.last_stream}});
        if let Some(token) = token {
            message["params"]["_meta"] = json!({"progressToken": token});
            let streams = self.tokens.entry(token).or_default();
            streams.insert(self.last_stream);
        }
        if !self.runs {
            self.held.push(id);
        }
        self.passes_from_session(&message);
    }

    fn cancel(&mut self, id: u64) {
        let params = json!({"requestId": id});
        let message = json!({"method": "notifications/cancelled", "params": params});
        let text = text_of(&message);
        let out = self.session_sends(&text);
        let mut to_process = self.runs;
        if let Some(stream) = self.forget(id) {
            let was_held = self.held.contains(&id);
            self.held.retain(|held| *held != id);
            to_process &= !was_held;
            match out.last() {
                Some(Output::Session(_, Incoming::Cancelled(ended), _)) => {
                    assert_eq!(read(ended), (id, stream));
                }
                other => panic!("the request is answered: {other:?}"),
            }
        }
        assert_eq!(lines(&out).eq([&*text]), to_process);
    }

    /// The process answers a request, or one that it has not got.
    fn answer(&mut self, id: u64, argument: u8) {
        if !self.runs {
            return;
        }
        let id = if argument >= 240 { 9 } else { id };
        let mut out = Vec::new();
        if argument.is_multiple_of(7) {
            let id = RecoveredId::Response(id.to_string());
            self.mux.handle_unreadable(&id, "is not JSON", &mut out);
        } else {
            let text = text_of(&json!({"id": id, "result": {}}));
            out = self.process_sends(&text);
        }
        match (self.forget(id), &out[..]) {
            (Some(stream), [Output::Session(_, Incoming::Answer(ended), answer)]) => {
                assert_eq!(read(ended), (id, stream));
                assert_eq!(value_of(answer)["id"], id);
            }
            (None, []) => {}
            other => panic!("{other:?}"),
        }
    }

    fn progress(&mut self, token: Option<&'static str>) {
        if !self.runs {
            return;
        }
        let token = token.unwrap_or("?");
        let params = json!({"progressToken": token, "progress": 1});
        let text = text_of(&json!({"method": "notifications/progress", "params": params}));
        let out = self.process_sends(&text);
        let [Output::Session(_, Incoming::Progress(stream), passed)] = &out[..] else {
            panic!("{out:?}");
        };
        assert_eq!(*passed, text);
        let streams = self.tokens.get(token).cloned().unwrap_or_default();
        match stream {
            Some(stream) => assert!(streams.contains(stream)),
            None => assert!(streams.is_empty()),
        }
    }

    fn passes_from_process(&mut self, message: &Value) {
        if !self.runs {
            return;
        }
        let text = text_of(message);
        match &self.process_sends(&text)[..] {
            [Output::Session(_, _, passed)] => assert_eq!(*passed, text),
            other => panic!("{other:?}"),
        }
    }

    fn passes_from_session(&mut self, message: &Value) {
        let text = text_of(message);
        let out = self.session_sends(&text);
        assert_eq!(lines(&out).eq([&*text]), self.runs);
        assert_eq!(out.len(), usize::from(self.runs));
    }

    fn start(&mut self) {
        if !self.mux.needs_process() {
            return;
        }
        self.runs = true;
        let mut out = Vec::new();
        self.mux.begin(&mut out);
        let ids = lines(&out).map(|line| value_of(line)["id"].as_u64().expect("an id"));
        assert_eq!(ids.collect::<Vec<_>>(), std::mem::take(&mut self.held));
    }

    fn exit(&mut self, argument: u8) {
        self.runs = false;
        let failure = match argument % 2 {
            0 => Failure::NotStarted,
            _ => Failure::Error(text_of(&json!({"id": null, "error": {}}))),
        };
        let mut out = Vec::new();
        self.mux.end(&failure, &mut out);
        for output in out {
            match output {
                Output::Session(_, Incoming::Answer(ended) | Incoming::NotStarted(ended), text) => {
                    let (id, stream) = read(&ended);
                    assert_eq!(self.forget(id), Some(stream));
                    assert_eq!(value_of(&text)["id"], id);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(self.pending.is_empty(), "every request is answered");
        assert!(self.mux.has_room(&Principal::Nobody, usize::MAX));
    }

    /// The request is answered. Returns its stream.
    fn forget(&mut self, id: u64) -> Option<u32> {
        let stream = self.pending.remove(&id)?;
        self.tokens.retain(|_, streams| {
            streams.remove(&stream);
            !streams.is_empty()
        });
        Some(stream)
    }

    fn session_sends(&mut self, text: &str) -> Vec<Output> {
        let envelope = Envelope::parse(text).expect("a message");
        let mut out = Vec::new();
        let stream = self.last_stream;
        self.mux
            .handle_session(self.member, stream, &envelope, &mut out);
        out
    }

    fn process_sends(&mut self, text: &str) -> Vec<Output> {
        let envelope = Envelope::parse(text).expect("a message");
        let mut out = Vec::new();
        self.mux
            .handle_process(&envelope, &|_| Reach::Never, &mut out);
        out
    }
}

fn text_of(message: &Value) -> String {
    let mut message = message.clone();
    message["jsonrpc"] = json!("2.0");
    message.to_string()
}

fn value_of(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn read(ended: &Ended) -> (u64, u32) {
    (ended.id.parse().expect("a number"), ended.stream)
}

/// What the process gets.
fn lines(out: &[Output]) -> impl Iterator<Item = &str> {
    out.iter().filter_map(|output| match output {
        Output::Process(text) => Some(&**text),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    #[test]
    fn a_session_with_a_process_of_its_own_is_passed_through() {
        let mut random = Random::new(53);
        for _ in 0..rounds(4000) {
            let length = 2 * random.below(80);
            let data: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
            mcp_alone(&data);
        }
    }
}
