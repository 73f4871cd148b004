//! Fuzzes clients of revision 2026-07-28 that share an MCP server of an older revision. A model of the clients and of the server checks
//! that each message reaches the call that it belongs to, and that a state continues one call, once.

mod server;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use uuid::Uuid;

use self::server::Process;
use super::UPGRADE;
use crate::Principal;
use crate::record::simulated::{load_again, restored};
use crate::service::jsonrpc::Envelope;
use crate::service::mcp::fuzzed::{
    Incoming, OlderOutput, Output, Quota, Seat, ToOlder, Who, state,
};

const URIS: [&str; 3] = ["file:///a", "file:///a/b", "memo:x"];
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
const PRINCIPALS: [Principal; 2] = [Principal::User(1), Principal::User(2)];
const MAX_CALLS: usize = 8;

/// The most bytes of questions and answers that are kept.
const MAX_BYTES: usize = 700;

/// What the client of a call waits for.
struct Request {
    serial: u64,
    id: u64,
    token: Option<&'static str>,
}

/// What a client has asked for.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Discover,
    /// Changes of tools, if the bit after those of the resources is set, and of the resources whose bits are set.
    Listen(u8),
    /// A method and the name that it is about. The server may ask for input before it answers the first four.
    Other(&'static str, &'static str),
}

const OTHER: [Kind; 6] = [
    Kind::Other("tools/call", "a"),
    Kind::Other("tools/call", "b"),
    Kind::Other("prompts/get", "a"),
    Kind::Other("resources/read", "a"),
    Kind::Other("tools/list", "a"),
    Kind::Other("completion/complete", "a"),
];

/// A call that is not answered.
struct Call {
    uuid: Uuid,
    principal: usize,
    kind: Kind,
    /// The request that waits, and the round in which it waits.
    open: Option<Request>,
    round: Option<u32>,
    /// The state with which the client can continue, the questions that it was asked with their keys, and the round of the time limit.
    state: Option<String>,
    asked: BTreeMap<u64, String>,
    /// The keys of questions that the server has taken back.
    withdrawn: Vec<String>,
    limit: Option<u32>,
    /// Whether the server has answered it, and whether it may fail.
    is_answered: bool,
    may_fail: bool,
    is_acknowledged: bool,
}

impl Call {
    /// Whether the server may ask the call's client for input.
    fn may_be_asked(&self) -> bool {
        matches!(
            self.kind,
            Kind::Other("tools/call" | "prompts/get" | "resources/read", _)
        ) && !self.is_answered
    }
}

struct World {
    older: ToOlder<u64>,
    bytes: Quota,
    processes: Vec<Process>,
    /// The calls, by the serial numbers of their first requests.
    calls: BTreeMap<u64, Call>,
    serial: u64,
    /// All upstream ids, by processes, and all states.
    used: BTreeSet<(usize, u64)>,
    states: BTreeSet<String>,
    /// The calls whose clients were asked the questions with these ids.
    questions: BTreeMap<u64, u64>,
    last_question: u64,
    /// The call that the client continues with this request, and the questions that it answers.
    resuming: Option<(u64, u64)>,
    answered: BTreeSet<u64>,
    /// The time limits of input that run.
    limits: Vec<(Uuid, u32)>,
}

/// Pairs of bytes: an operation and its argument. The first byte says whether each person has a process.
pub fn mcp_older(data: &[u8]) {
    let [who, data @ ..] = data else { return };
    let (who, count) = [(Who::Person, 2), (Who::Everybody, 1)][usize::from(who % 2)];
    let mut world = World {
        older: ToOlder::new(),
        bytes: Quota::new(MAX_BYTES),
        processes: (0..count).map(|_| Process::new(who)).collect(),
        calls: BTreeMap::new(),
        serial: 0,
        used: BTreeSet::new(),
        states: BTreeSet::new(),
        questions: BTreeMap::new(),
        last_question: 0,
        resuming: None,
        answered: BTreeSet::new(),
        limits: Vec::new(),
    };
    for operation in data.chunks_exact(2) {
        world.step(operation[0], operation[1]);
        world.check();
    }
    world.end();
}

impl World {
    fn step(&mut self, operation: u8, argument: u8) {
        if operation >= UPGRADE {
            self.older = restored(&self.older);
            let mut bytes = Quota::new(MAX_BYTES);
            load_again(&self.bytes, &mut bytes);
            self.bytes = bytes;
            for process in &mut self.processes {
                process.mux = restored(&process.mux);
            }
            return;
        }
        let server = usize::from(argument) % self.processes.len();
        let chosen = usize::from(argument) % self.calls.len().max(1);
        let key = self.calls.keys().nth(chosen).copied();
        match (operation % 20, key) {
            (0..=2, _) => {
                let kind = OTHER[usize::from(argument >> 3) % OTHER.len()];
                self.begin(argument, kind);
            }
            (3, _) => self.begin(argument, Kind::Discover),
            (4, _) => self.begin(argument, Kind::Listen(argument >> 3)),
            (5, Some(key)) => self.cancel(key),
            (6 | 7, _) => self.answer(server, argument),
            (8, _) => self.progress(server, argument),
            (9 | 10, _) => self.ask(server, argument),
            (11 | 12, Some(key)) => self.resume(key, argument, 0),
            (13, Some(key)) => self.resume(key, argument, 1 + argument % 5),
            (14, _) => self.expire(argument),
            (15, _) => self.start(server),
            (16, _) => self.exit(server),
            (17, _) => self.notify(server, argument),
            (18, _) => self.foreign(server, argument),
            (19, Some(key)) => self.time_out(key),
            _ => {}
        }
    }

    /// What holds after each step.
    fn check(&self) {
        assert!(self.bytes.used() <= MAX_BYTES, "what is kept is bounded");
        let gathering = self.calls.values().filter(|call| call.state.is_some());
        let want = (self.calls.len(), gathering.count());
        assert_eq!((self.older.len(), self.older.input_count()), want);
        for (key, call) in &self.calls {
            let round = call.round.expect("it has waited");
            let is_open = self.older.reply_in(call.uuid, round).is_some();
            assert_eq!(is_open, call.open.is_some(), "{key}");
            assert_eq!(is_open, call.state.is_none(), "{key}");
            if call.state.is_some() {
                let limit = (call.uuid, call.limit.expect("a time limit"));
                assert!(self.limits.contains(&limit), "a state has a time limit");
                assert!(self.older.is_waiting(limit.0, limit.1));
            } else {
                assert!(!call.is_answered, "an answer is not held back");
            }
        }
    }

    /// The number of the process that a principal uses.
    fn server_of(&self, principal: usize) -> usize {
        principal % self.processes.len()
    }

    fn call(&mut self, key: u64) -> &mut Call {
        self.calls.get_mut(&key).expect("it is there")
    }

    /// A request of revision 2026-07-28. All clients use the same ids and tokens.
    fn request(&self, kind: Kind, id: u64, token: Option<&str>, mut params: Value) -> Value {
        let method = match kind {
            Kind::Discover => "server/discover",
            Kind::Listen(bits) => {
                let uris = URIS.iter().enumerate();
                let uris = uris.filter(|(at, _)| bits & (1 << at) != 0);
                let uris: Vec<&str> = uris.map(|(_, uri)| *uri).collect();
                params["notifications"] = json!({"toolsListChanged": bits & 8 != 0, "promptsListChanged": bits & 16 != 0, "resourceSubscriptions": uris});
                "subscriptions/listen"
            }
            Kind::Other(method, name) => {
                params["name"] = name.into();
                method
            }
        };
        params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}});
        if let Some(token) = token {
            params["_meta"]["progressToken"] = token.into();
        }
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    fn begin(&mut self, argument: u8, kind: Kind) {
        if self.calls.len() == MAX_CALLS {
            return;
        }
        self.serial += 1;
        let (serial, id) = (self.serial, u64::from(argument >> 6));
        let token = (argument & 2 == 0).then_some("t");
        let principal = usize::from(argument % 2);
        let uuid = Uuid::from_u128(u128::from(serial));
        let server = self.server_of(principal);
        let mux = &mut self.processes[server].mux;
        let seat = Seat {
            server: server as u64,
            member: mux.join(uuid, &PRINCIPALS[principal]),
        };
        let call = Call {
            uuid,
            principal,
            kind,
            open: Some(Request { serial, id, token }),
            round: None,
            state: None,
            asked: BTreeMap::new(),
            withdrawn: Vec::new(),
            limit: None,
            is_answered: false,
            may_fail: false,
            is_acknowledged: false,
        };
        self.calls.insert(serial, call);
        let text = self.request(kind, id, token, json!({"for": serial}));
        let (text, mut out) = (text.to_string(), Vec::new());
        let envelope = Envelope::parse(&text).expect("a message");
        let principal = PRINCIPALS[principal].clone();
        let round = self
            .older
            .begin(uuid, (seat, principal), &envelope, serial, &mut out);
        self.call(serial).round = Some(round);
        self.perform(out);
    }

    /// The client of a call closes its connection.
    fn cancel(&mut self, key: u64) {
        if let Some(request) = self.call(key).open.take() {
            let (uuid, mut out) = (self.call(key).uuid, Vec::new());
            let reply = self.older.end(uuid, &mut self.bytes, &mut out);
            assert_eq!(reply, Some(request.serial));
            self.perform(out);
            self.calls.remove(&key);
            let mut processes = self.processes.iter();
            let has_it = |one: &Process| one.received.values().any(|of| *of == Some(key));
            assert!(
                !processes.any(has_it),
                "the server learns that the request has ended"
            );
        }
    }

    /// The time for a call is over.
    fn time_out(&mut self, key: u64) {
        let call = self.call(key);
        if call.open.is_some() {
            call.may_fail = true;
            let (uuid, mut out) = (call.uuid, Vec::new());
            self.older
                .fail(uuid, "Request timed out", &mut self.bytes, &mut out);
            self.perform(out);
            assert!(!self.calls.contains_key(&key), "it has failed");
        }
    }

    /// The time for some input is over.
    fn expire(&mut self, argument: u8) {
        if self.limits.is_empty() {
            return;
        }
        let chosen = usize::from(argument) % self.limits.len();
        let (uuid, round) = self.limits.swap_remove(chosen);
        let mut calls = self.calls.iter();
        let waits = calls.find(|(_, call)| {
            call.uuid == uuid && call.limit == Some(round) && call.state.is_some()
        });
        let waits = waits.map(|(key, _)| *key);
        assert_eq!(self.older.is_waiting(uuid, round), waits.is_some());
        if let Some(key) = waits {
            let mut out = Vec::new();
            let reply = self.older.end(uuid, &mut self.bytes, &mut out);
            assert_eq!(reply, None);
            self.calls.remove(&key);
            self.perform(out);
        }
    }

    /// A client continues a call. `fault` is 0 if everything is right.
    fn resume(&mut self, key: u64, argument: u8, fault: u8) {
        let call = &self.calls[&key];
        let (mut principal, mut kind) = (call.principal, call.kind);
        let used = self.states.iter().nth(usize::from(argument) % 7).cloned();
        let mut text = call.state.clone().or(used).unwrap_or_default();
        match fault {
            0 => {}
            1 => principal = 1 - principal,
            2 => kind = OTHER[usize::from(argument >> 3) % OTHER.len()],
            3 => text = self.states.first().cloned().unwrap_or_default(),
            4 => text = format!("{argument}{text}"),
            _ => {}
        }
        let mut responses = json!({"1000000": {"by": 0}});
        self.serial += 1;
        let serial = self.serial;
        for key in &call.withdrawn {
            responses[key] = json!({"by": serial});
        }
        let mut answered = BTreeSet::new();
        // The bits of the argument say which questions the client answers.
        let given = call.asked.iter().enumerate();
        for (_, (question, key)) in given.filter(|(at, _)| argument & (1 << (at % 3)) != 0) {
            answered.insert(*question);
            responses[key] = json!({"by": serial});
        }
        let first = answered.first().map(|question| &call.asked[question]);
        let malformed = first.filter(|_| fault == 5);
        if let Some(key) = malformed {
            responses[key] = json!(7);
        }
        let is_malformed = malformed.is_some();
        let id = u64::from(argument >> 6);
        let token = (argument & 8 == 0).then_some("u");
        let params = json!({"requestState": text, "inputResponses": responses});
        let message = self.request(kind, id, token, params).to_string();
        let envelope = Envelope::parse(&message).expect("a message");
        let sent = state(&envelope).expect("a state");
        let who = &PRINCIPALS[principal];
        let found = self.older.find_input(&envelope, &sent, who);
        let mut calls = self.calls.iter();
        let of_state = calls.find(|(_, call)| call.state.as_deref() == Some(&*text));
        let of_state = of_state.filter(|(of, call)| {
            let is_same = call.principal == principal && call.kind == kind;
            is_same && !(is_malformed && **of == key)
        });
        let Some(key) = of_state.map(|(key, _)| *key) else {
            assert!(found.is_err(), "the state is of no use: {message}");
            return;
        };
        let uuid = self.calls[&key].uuid;
        let (found, _) = found.expect("the state continues a call");
        assert_eq!(found, uuid, "it continues its own call");
        let server = self.server_of(principal);
        let open = &self.processes[server].open;
        let is_asked = |one: &&u64| open.contains(one) && self.calls[&key].asked.contains_key(one);
        self.answered = answered.iter().filter(is_asked).copied().collect();
        self.resuming = Some((key, serial));
        let call = self.call(key);
        call.state = None;
        call.asked
            .retain(|question, _| !answered.contains(question));
        call.open = Some(Request { serial, id, token });
        let is_answered = std::mem::take(&mut call.is_answered);
        let mut out = Vec::new();
        let round = self
            .older
            .resume(uuid, &envelope, serial, &mut self.bytes, &mut out);
        self.call(key).round = round;
        self.perform(out);
        self.resuming = None;
        assert!(self.answered.is_empty(), "the server gets the input");
        assert!(!is_answered || !self.calls.contains_key(&key));
    }

    /// What follows from a message to or from a process.
    fn act(&mut self, server: usize, out: Vec<Output>) {
        for output in out {
            let (receivers, incoming, text) = match output {
                Output::Process(text) | Output::AnswerToProcess(text) => {
                    self.process_gets(server, &text);
                    continue;
                }
                Output::Session(id, incoming, text) => (vec![id], incoming, text),
                Output::Change(receivers, text) => (receivers, Incoming::Change, text),
                Output::Refused => panic!("the process refuses nothing"),
            };
            for id in receivers {
                let mut out = Vec::new();
                self.older
                    .receive(id, &incoming, &text, &mut self.bytes, &mut out);
                self.perform(out);
            }
        }
    }

    /// What follows for the calls.
    fn perform(&mut self, out: Vec<OlderOutput<u64>>) {
        for output in out {
            match output {
                OlderOutput::Process(seat, text) => {
                    let server = seat.server as usize;
                    let envelope = Envelope::parse(&text).expect("a message");
                    let mut out = Vec::new();
                    let mux = &mut self.processes[server].mux;
                    mux.handle_session(seat.member, 0, &envelope, &mut out);
                    self.act(server, out);
                }
                OlderOutput::Event(id, text) | OlderOutput::News(id, text) => {
                    if self.older.reply(id).is_some() {
                        self.client_gets_event(id, &text);
                    }
                }
                OlderOutput::Answer(serial, text) => self.client_gets(serial, &text),
                OlderOutput::Wait(id, round) => {
                    let mut calls = self.calls.values_mut();
                    let call = calls.find(|call| call.uuid == id).expect("a call");
                    call.limit = Some(round);
                    self.limits.push((id, round));
                }
                OlderOutput::Listen(seat) => {
                    let mut out = Vec::new();
                    let server = seat.server as usize;
                    self.processes[server].mux.listen(seat.member, &mut out);
                    self.act(server, out);
                }
                OlderOutput::End(seat, principal) => {
                    let server = seat.server as usize;
                    let mut of = PRINCIPALS.iter();
                    let of = of.position(|one| *one == principal).expect("a principal");
                    assert_eq!(server, self.server_of(of));
                    let mut out = Vec::new();
                    self.processes[server].mux.leave(seat.member, &mut out);
                    self.act(server, out);
                }
            }
        }
    }

    /// The client of a call gets a message before the answer.
    fn client_gets_event(&mut self, uuid: Uuid, text: &str) {
        let message: Value = serde_json::from_str(text).expect("JSON");
        let params = &message["params"];
        let mut calls = self.calls.iter_mut();
        let (key, call) = calls.find(|(_, call)| call.uuid == uuid).expect("it waits");
        let request = call.open.as_ref().expect("it waits");
        let method = message["method"].as_str().expect("a method");
        match (method, call.kind) {
            ("notifications/progress", Kind::Other(..)) => {
                assert_eq!(params["for"], *key, "the progress is its own");
                let token = request.token.expect("it has asked for progress");
                assert_eq!(params["progressToken"], token);
            }
            ("notifications/subscriptions/acknowledged", Kind::Listen(_)) => {
                assert_eq!(params["_meta"][SUBSCRIPTION], request.id);
                assert!(!call.is_acknowledged);
                call.is_acknowledged = true;
                let server = call.principal % self.processes.len();
                let accepted = &self.processes[server].accepted;
                let honored = params["notifications"]["resourceSubscriptions"].as_array();
                let mut honored = honored.into_iter().flatten().filter_map(Value::as_str);
                assert!(
                    honored.all(|uri| accepted.contains(uri)),
                    "the server has accepted what the client is promised"
                );
            }
            (_, Kind::Listen(bits)) => {
                assert_eq!(params["_meta"][SUBSCRIPTION], request.id);
                assert!(call.is_acknowledged, "changes follow the acknowledgement");
                if let Some(uri) = params["uri"].as_str() {
                    let wanted = URIS.iter().enumerate();
                    let mut wanted = wanted.filter(|(at, _)| bits & (1 << at) != 0);
                    assert!(wanted.any(|(_, wanted)| uri.starts_with(wanted)));
                } else {
                    assert_eq!(method, "notifications/tools/list_changed");
                    assert!(bits & 8 != 0, "it has asked for it");
                }
            }
            _ => panic!("it is for nobody, or for another call: {message}"),
        }
    }

    /// The client of a call gets the answer to its request.
    fn client_gets(&mut self, serial: u64, text: &str) {
        let message: Value = serde_json::from_str(text).expect("JSON");
        let is_it = |call: &Call| call.open.as_ref().is_some_and(|one| one.serial == serial);
        let mut calls = self.calls.iter_mut();
        let found = calls.find(|(_, call)| is_it(call));
        let (&key, call) = found.expect("it waits, and is answered once");
        let request = call.open.take().expect("a request");
        assert_eq!(message["id"], request.id);
        let result = &message["result"];
        if result["resultType"] == "input_required" {
            let Kind::Other("tools/call" | "prompts/get" | "resources/read", _) = call.kind else {
                panic!("its client cannot be asked: {message}");
            };
            let state = result["requestState"].as_str().expect("a state");
            assert!(self.states.insert(state.to_owned()), "a state is new");
            call.state = Some(state.to_owned());
            call.asked.clear();
            for (id, asked) in result["inputRequests"].as_object().expect("questions") {
                let question = asked["params"]["question"].as_u64().expect("a number");
                assert_eq!(asked["method"], "elicitation/create");
                let of = *self.questions.entry(question).or_insert(key);
                assert_eq!(of, key, "one call gets a question");
                let server = call.principal % self.processes.len();
                let is_open = self.processes[server].open.contains(&question);
                assert!(is_open, "a question that was taken back is not asked");
                call.asked.insert(question, id.clone());
            }
            assert!(!call.asked.is_empty());
            return;
        }
        if message["error"].is_object() {
            assert!(call.may_fail, "{message}");
            let of = &message["error"]["data"]["for"];
            assert!(of.is_null() || *of == key, "the error is its own");
        } else if call.kind == Kind::Discover {
            assert_eq!(result["supportedVersions"][0], "2026-07-28");
            assert!(result["capabilities"]["logging"].is_null());
        } else if let Kind::Listen(_) = call.kind {
            assert_eq!(result["_meta"][SUBSCRIPTION], request.id);
        } else {
            assert_eq!(result["for"], key, "the answer is its own");
            assert_eq!(result["resultType"], "complete");
        }
        self.calls.remove(&key);
    }

    /// The server stops. Nothing is left of the calls.
    fn end(mut self) {
        for why in [None, Some("Server shutting down")] {
            for call in self.calls.values_mut() {
                call.may_fail = why.is_some();
            }
            let mut out = Vec::new();
            self.older.end_all(why, &mut self.bytes, &mut out);
            self.perform(out);
            let mut calls = self.calls.values();
            assert!(!calls.any(|call| matches!(call.kind, Kind::Listen(_))));
        }
        // Only clients that gather input were not told.
        assert!(self.calls.values().all(|call| call.open.is_none()));
        let left = self.older.len() + self.older.input_count() + self.bytes.used();
        assert_eq!(left, 0);
        for (argument, call) in self.calls.values().enumerate() {
            let params = json!({"requestState": call.state, "inputResponses": {}});
            let text = self.request(call.kind, argument as u64, None, params);
            let text = text.to_string();
            let envelope = Envelope::parse(&text).expect("a message");
            let sent = state(&envelope).expect("a state");
            let found = self
                .older
                .find_input(&envelope, &sent, &PRINCIPALS[call.principal]);
            assert!(found.is_err(), "the states are of no use");
        }
        for process in &self.processes {
            let mux = &process.mux;
            assert!(mux.is_idle() && !mux.has_members());
            assert!(mux.has_room(&Principal::Nobody, usize::MAX));
            let mut received = process.received.values();
            assert!(received.all(Option::is_none), "the calls are cancelled");
            assert!(
                process.subscribed.is_empty(),
                "nobody is subscribed any more"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    #[test]
    fn each_call_to_a_translated_server_gets_its_own_messages_and_input() {
        let mut random = Random::new(2026);
        for _ in 0..rounds(600) {
            let length = 1 + 2 * random.below(120);
            let mut data: Vec<u8> = (0..length).map(|_| random.byte()).collect();
            // Six of eight worlds begin with two calls and ready processes, and one with a call that was asked two questions.
            match random.below(8) {
                0 => {}
                1 => drop(data.splice(1..1, [0, 0, 15, 0, 6, 0, 9, 2, 9, 4])),
                _ => drop(data.splice(1..1, [0, 0, 0, 1, 15, 0, 15, 1, 6, 0, 6, 1])),
            }
            mcp_older(&data);
        }
    }
}
