//! Fuzzes sessions that share an MCP server. Each message contains the name of its receiver, and a model checks that it arrives there.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use uuid::Uuid;

use super::UPGRADE;
use super::mcp_alone::mcp_alone;
use crate::Principal;
use crate::record::simulated::restored;
use crate::service::jsonrpc::{Envelope, RecoveredId};
use crate::service::mcp::fuzzed::{Failure, Incoming, Multiplexer, Output, Reach, Who};

/// The resources that sessions subscribe to.
const URIS: [&str; 3] = ["file:///a", "file:///a/b", "memo:x"];
const LEVELS: [&str; 3] = ["debug", "warning", "emergency"];
const MAX_SESSIONS: usize = 5;

/// A session. All sessions use the same ids and tokens.
#[derive(Default)]
struct Session {
    uuid: Uuid,
    /// The serial numbers of the requests that wait, by their ids.
    pending: BTreeMap<u64, u64>,
    wants: BTreeSet<&'static str>,
    level: Option<usize>,
    /// The levels that it has asked for and the process has not confirmed, by serial numbers.
    levels: BTreeMap<u64, usize>,
    /// The requests from the process: their ids, and the process's own ids.
    asked: BTreeMap<u64, u64>,
}

struct World {
    sessions: BTreeMap<usize, Session>,
    ever: usize,
    serial: u64,
    mux: Multiplexer,
    who: Who,
    /// What the process has got and not answered: its session and serial number, by the upstream id.
    received: BTreeMap<u64, (usize, u64)>,
    initialize: Option<u64>,
    /// All upstream ids, and all ids of requests from the process.
    used: BTreeSet<u64>,
    questions: u64,
    runs: bool,
}

/// Pairs of bytes: an operation and its argument.
pub fn mcp_sessions(data: &[u8]) {
    let [who, data @ ..] = data else { return };
    let who = match who % 3 {
        0 => Who::Person,
        1 => Who::Everybody,
        _ => return mcp_alone(data),
    };
    let mut world = World {
        sessions: BTreeMap::new(),
        ever: 0,
        serial: 0,
        mux: Multiplexer::new(who, r#""2025-11-25""#, "{}"),
        who,
        received: BTreeMap::new(),
        initialize: None,
        used: BTreeSet::new(),
        questions: 0,
        runs: false,
    };
    for operation in data.chunks_exact(2) {
        world.step(operation[0], operation[1]);
    }
    world.end();
}

impl World {
    fn step(&mut self, operation: u8, argument: u8) {
        if operation >= UPGRADE {
            self.mux = restored(&self.mux);
            return;
        }
        let chosen = usize::from(argument) % self.sessions.len().max(1);
        let number = self.sessions.keys().nth(chosen).copied();
        let id = u64::from(argument >> 6);
        match (operation % 18, number) {
            (0, _) => self.join(),
            (1, Some(number)) => self.leave(number),
            (2 | 3, Some(number)) => self.call(number, id, "tools/call", json!({})),
            (4, Some(number)) => {
                let uri = URIS[usize::from(argument >> 4) % URIS.len()];
                let is_new = self.session(number).wants.insert(uri);
                if !self.call_with(number, id, "resources/subscribe", json!({"uri": uri})) && is_new
                {
                    self.session(number).wants.remove(uri);
                }
            }
            (5, Some(number)) => {
                let uri = URIS[usize::from(argument >> 4) % URIS.len()];
                if self.call_with(number, id, "resources/unsubscribe", json!({"uri": uri})) {
                    self.session(number).wants.remove(uri);
                }
            }
            (6, Some(number)) => {
                let level = usize::from(argument >> 4) % LEVELS.len();
                let params = json!({"level": LEVELS[level]});
                if self.call_with(number, id, "logging/setLevel", params) {
                    let serial = self.serial;
                    self.session(number).levels.insert(serial, level);
                }
            }
            (7, Some(number)) => self.cancel(number, id),
            (8 | 9, _) => self.answer(argument),
            (10, _) => self.foreign(argument),
            (11, _) => self.progress(argument),
            (12, _) => self.ask(argument),
            (13, Some(number)) => self.reply(number, argument),
            (14, _) => self.notify(argument),
            (15, _) => self.start(),
            (16, _) => self.exit(),
            (17, Some(number)) => {
                self.session_sends(
                    number,
                    &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
                );
            }
            _ => {}
        }
        assert!(
            self.mux.has_room(&Principal::Nobody, 3 << 20),
            "it is bounded by the requests"
        );
    }

    fn session(&mut self, number: usize) -> &mut Session {
        self.sessions.get_mut(&number).expect("it is there")
    }

    fn join(&mut self) {
        if self.sessions.len() == MAX_SESSIONS {
            return;
        }
        self.ever += 1;
        let uuid = Uuid::from_u128(self.ever as u128);
        let number = self.mux.join(uuid, &Principal::Nobody);
        let session = Session {
            uuid,
            ..Session::default()
        };
        assert!(self.sessions.insert(number, session).is_none());
        self.call(number, 9, "initialize", json!({}));
    }

    fn leave(&mut self, number: usize) {
        self.sessions.remove(&number);
        let mut out = Vec::new();
        self.mux.leave(number, &mut out);
        self.take(out, None);
    }

    fn call(&mut self, number: usize, id: u64, method: &str, params: Value) {
        self.call_with(number, id, method, params);
    }

    /// Sends a request, unless one with this id waits.
    fn call_with(&mut self, number: usize, id: u64, method: &str, mut params: Value) -> bool {
        self.serial += 1;
        let serial = self.serial;
        let pending = &mut self.session(number).pending;
        if pending.contains_key(&id) {
            return false;
        }
        pending.insert(id, serial);
        params["for"] = json!([number, serial]);
        params["_meta"] = json!({"progressToken": "t"});
        let text = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.session_sends(number, &text);
        true
    }

    fn cancel(&mut self, number: usize, id: u64) {
        self.session(number).pending.remove(&id);
        let params = json!({"requestId": id});
        let text = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        self.session_sends(number, &text);
    }

    fn session_sends(&mut self, number: usize, message: &Value) {
        let text = message.to_string();
        let envelope = Envelope::parse(&text).expect("a message");
        let mut out = Vec::new();
        let stream = u32::try_from(self.serial).expect("few requests");
        self.mux.handle_session(number, stream, &envelope, &mut out);
        self.take(out, Some(number));
    }

    fn process_sends(&mut self, message: &Value) {
        let text = message.to_string();
        let envelope = Envelope::parse(&text).expect("a message");
        let mut out = Vec::new();
        let reach = |uuid: Uuid| match uuid.as_u128() % 2 {
            0 => Reach::Now,
            _ => Reach::Later,
        };
        self.mux.handle_process(&envelope, &reach, &mut out);
        self.take(out, None);
    }

    fn start(&mut self) {
        if !self.runs && self.mux.needs_process() {
            self.runs = true;
            let mut out = Vec::new();
            self.mux.begin(&mut out);
            self.take(out, None);
        }
    }

    fn exit(&mut self) {
        if !std::mem::take(&mut self.runs) {
            return;
        }
        self.received.clear();
        self.initialize = None;
        let mut out = Vec::new();
        let exited = r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"exited"}}"#;
        let failure = match self.serial % 2 {
            0 => Failure::Error(exited.to_owned()),
            _ => Failure::NotStarted,
        };
        self.mux.end(&failure, &mut out);
        for session in self.sessions.values_mut() {
            session.asked.clear();
            session.levels.clear();
        }
        self.take(out, None);
        let waits = self.sessions.values().map(|session| session.pending.len());
        assert_eq!(
            waits.sum::<usize>(),
            0,
            "every request of a process that exits is answered"
        );
    }

    /// The process answers a request that it has got, twice if it is in the mood.
    fn answer(&mut self, argument: u8) {
        if let Some(id) = self.initialize.take() {
            let result = json!({"protocolVersion": "2025-11-25", "capabilities": {"tasks": {}}});
            return self.process_sends(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
        }
        let chosen = usize::from(argument) % self.received.len().max(1);
        let Some((id, (number, serial))) =
            self.received.iter().nth(chosen).map(|(id, to)| (*id, *to))
        else {
            return;
        };
        self.received.remove(&id);
        let mut answer = json!({"jsonrpc": "2.0", "id": id, "result": {"for": [number, serial]}});
        let mut sessions = self.sessions.values();
        let sets_level = sessions.any(|session| session.levels.contains_key(&serial));
        if sets_level && argument.is_multiple_of(3) {
            answer =
                json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": "no"}});
        }
        self.process_sends(&answer);
        if argument.is_multiple_of(4) {
            self.process_sends(&answer);
        }
    }

    /// The process answers, or reports about, what it has not got.
    fn foreign(&mut self, argument: u8) {
        let id = if argument.is_multiple_of(2) {
            // A request that waits has not been sent.
            (1..200).find(|id| !self.used.contains(id)).unwrap_or(1)
        } else {
            1_000_000 + u64::from(argument)
        };
        let foreign = json!({"for": [usize::MAX, 0]});
        self.process_sends(&json!({"jsonrpc": "2.0", "id": id, "result": foreign}));
        let params = json!({"progressToken": 1_000_000, "progress": 1, "for": [usize::MAX, 0]});
        self.process_sends(
            &json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}),
        );
        let mut out = Vec::new();
        let lost = RecoveredId::Response("1000000".into());
        self.mux.handle_unreadable(&lost, "is garbage", &mut out);
        self.take(out, None);
    }

    fn progress(&mut self, argument: u8) {
        let chosen = usize::from(argument) % self.received.len().max(1);
        if let Some((id, (number, serial))) = self.received.iter().nth(chosen) {
            let params = json!({"progressToken": id, "progress": 1, "for": [number, serial]});
            self.process_sends(
                &json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}),
            );
        }
    }

    /// The process asks its client, and takes some requests back.
    fn ask(&mut self, argument: u8) {
        if !self.runs {
            return;
        }
        self.questions += 1;
        let id = self.questions;
        let params = json!({"question": id});
        self.process_sends(&json!({"jsonrpc": "2.0", "id": id, "method": "sampling/createMessage", "params": params}));
        if argument.is_multiple_of(4) {
            let params = json!({"requestId": id});
            self.process_sends(
                &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}),
            );
        }
    }

    /// A session answers a request from the process, or one that it has not got.
    fn reply(&mut self, number: usize, argument: u8) {
        let asked = &self.session(number).asked;
        let own = asked.iter().next().map(|(id, own)| (*id, *own));
        let mut sessions = self.sessions.values();
        let other = sessions.find_map(|session| session.asked.keys().next().copied());
        let id = match (own, other) {
            (Some((id, _)), _) if !argument.is_multiple_of(3) => id,
            (_, Some(other)) => other,
            _ => u64::from(argument),
        };
        let result = json!({"by": number});
        self.session_sends(
            number,
            &json!({"jsonrpc": "2.0", "id": id, "result": result}),
        );
    }

    fn notify(&mut self, argument: u8) {
        if !self.runs {
            return;
        }
        let (method, params) = match argument % 3 {
            0 => ("tools/list_changed", json!({})),
            1 => (
                "resources/updated",
                json!({"uri": URIS[usize::from(argument >> 4) % URIS.len()]}),
            ),
            _ => (
                "message",
                json!({"level": LEVELS[usize::from(argument >> 4) % LEVELS.len()]}),
            ),
        };
        let method = format!("notifications/{method}");
        self.process_sends(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Checks what follows from a message. `from` is the session that has sent it.
    fn take(&mut self, out: Vec<Output>, from: Option<usize>) {
        for output in out {
            match output {
                Output::Process(text) | Output::AnswerToProcess(text) => {
                    self.take_line(&text, from)
                }
                Output::Session(uuid, incoming, text) => self.take_message(uuid, &incoming, &text),
                Output::Change(receivers, text) => {
                    for uuid in receivers {
                        self.take_message(uuid, &Incoming::Change, &text);
                    }
                }
                Output::Refused => panic!("the process refuses nothing"),
            }
        }
    }

    /// The process gets a line.
    fn take_line(&mut self, text: &str, from: Option<usize>) {
        assert!(
            self.runs,
            "nothing is sent to a process that does not run: {text}"
        );
        let message: Value = serde_json::from_str(text).expect("JSON");
        let id = message["id"].as_u64();
        match (message["method"].as_str(), id) {
            (Some(method), Some(id)) => {
                assert!(self.used.insert(id), "an upstream id is not used again");
                match message["params"]["for"].as_array() {
                    Some(to) => {
                        let [number, serial] = [0, 1].map(|at| to[at].as_u64().expect("a number"));
                        assert_eq!(message["params"]["_meta"]["progressToken"], id);
                        self.received.insert(id, (number as usize, serial));
                    }
                    None if method == "initialize" => self.initialize = Some(id),
                    None => {}
                }
            }
            (Some("notifications/cancelled"), None) => {
                let id = message["params"]["requestId"]
                    .as_u64()
                    .expect("an upstream id");
                assert!(self.used.contains(&id), "the process knows the request");
                self.received.remove(&id);
            }
            (Some(_), None) => {}
            (None, Some(own)) if message["result"]["by"].is_u64() => {
                let by = message["result"]["by"].as_u64().map(|by| by as usize);
                assert_eq!(by, from);
                let session = self.session(from.expect("a session"));
                let asked = session.asked.iter().find(|(_, asked)| **asked == own);
                let id = asked
                    .map(|(id, _)| *id)
                    .expect("only who was asked answers");
                session.asked.remove(&id);
            }
            (None, _) => assert!(message["error"].is_object()),
        }
    }

    /// A session gets a message.
    fn take_message(&mut self, uuid: Uuid, incoming: &Incoming, text: &str) {
        let message: Value = serde_json::from_str(text).expect("JSON");
        let is_sole = match self.who {
            Who::Person | Who::Client => self.sessions.len() == 1,
            Who::Everybody => self.ever == 1,
        };
        let is_person = self.who == Who::Person;
        let mut sessions = self.sessions.iter_mut();
        let (number, session) = sessions
            .find(|(_, one)| one.uuid == uuid)
            .expect("a session");
        match incoming {
            Incoming::Answer(ended) | Incoming::NotStarted(ended) => {
                assert_eq!(message["id"].to_string(), *ended.id);
                let own = message["id"].as_u64().expect("its own id");
                let serial = session
                    .pending
                    .remove(&own)
                    .expect("it waits, and is answered once");
                assert_eq!(u64::from(ended.stream), serial);
                let level = session.levels.remove(&serial);
                if let Some(to) = message["result"]["for"].as_array() {
                    session.level = level.or(session.level);
                    assert_eq!(*to, [json!(number), json!(serial)], "the answer is its own");
                }
                assert!(message["result"]["capabilities"]["tasks"].is_null());
            }
            // The session has ended it.
            Incoming::Cancelled(ended) => {
                assert_eq!(message["id"].to_string(), *ended.id);
                let serial = u64::from(ended.stream);
                assert!(session.pending.values().all(|waits| *waits != serial));
            }
            Incoming::Progress(stream) => {
                assert_eq!(message["params"]["progressToken"], "t");
                assert_eq!(message["params"]["for"][0], json!(number));
                let serial = message["params"]["for"][1].as_u64().expect("a number");
                assert!(session.pending.values().any(|waits| *waits == serial));
                assert_eq!(stream.map(u64::from), Some(serial));
            }
            Incoming::Change => {
                if let Some(uri) = message["params"]["uri"].as_str() {
                    assert!(session.wants.iter().any(|wanted| uri.starts_with(wanted)));
                }
            }
            Incoming::Request => {
                assert!(is_person || is_sole, "it is for one person");
                let id = message["id"].as_u64().expect("an id of its own");
                assert!(self.used.insert(id), "an id is not used again");
                let own = message["params"]["question"].as_u64().expect("a number");
                session.asked.insert(id, own);
            }
            Incoming::Other if message["method"] == "notifications/cancelled" => {
                let id = message["params"]["requestId"].as_u64().expect("an id");
                assert!(session.asked.remove(&id).is_some(), "it was asked");
            }
            Incoming::Other => {
                assert!(is_sole, "no other session could have caused it");
                let level = LEVELS
                    .iter()
                    .position(|level| message["params"]["level"] == *level);
                assert!(session.level.is_none_or(|least| level >= Some(least)));
            }
        }
    }

    /// All sessions leave. Nothing is left of them.
    fn end(mut self) {
        let numbers: Vec<usize> = self.sessions.keys().copied().collect();
        for number in numbers {
            self.leave(number);
        }
        assert!(self.mux.is_idle() && self.mux.has_room(&Principal::Nobody, usize::MAX));
        assert!(self.received.is_empty() || self.runs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    #[test]
    fn nothing_crosses_between_sessions_that_share_a_process() {
        let mut random = Random::new(35);
        for _ in 0..rounds(4000) {
            let length = 1 + 2 * random.below(120);
            let mut data: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
            // Most worlds begin with two sessions and a process that is ready.
            if random.below(8) > 0 {
                data.splice(1..1, [0, 0, 0, 0, 15, 0, 8, 0]);
            }
            mcp_sessions(&data);
        }
    }
}
