//! A model of the MCP server of an older revision that the calls of a [`World`] share.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use uuid::Uuid;

use super::{Call, URIS, World};
use crate::service::jsonrpc::{Envelope, RecoveredId};
use crate::service::mcp::fuzzed::{Failure, Multiplexer, Who};

/// A process of the server.
pub(super) struct Process {
    pub(super) mux: Multiplexer,
    pub(super) runs: bool,
    initialize: Option<u64>,
    /// What it has got and not answered: the first serial number of the call, or `None` for a subscription.
    pub(super) received: BTreeMap<u64, Option<u64>>,
    /// The resource of each pending subscribe request, by the id of the request.
    subscribing: BTreeMap<u64, String>,
    /// The resources with an active subscription.
    pub(super) subscribed: BTreeSet<String>,
    /// All resources for which it has accepted a subscription since it was started.
    pub(super) accepted: BTreeSet<String>,
    /// The ids of its questions that are not answered.
    pub(super) open: BTreeSet<u64>,
}

impl Process {
    pub(super) fn new(who: Who) -> Self {
        Self {
            mux: Multiplexer::new(who, r#""2025-11-25""#, "{}"),
            runs: false,
            initialize: None,
            received: BTreeMap::new(),
            subscribing: BTreeMap::new(),
            subscribed: BTreeSet::new(),
            accepted: BTreeSet::new(),
            open: BTreeSet::new(),
        }
    }
}

impl World {
    pub(super) fn start(&mut self, server: usize) {
        let process = &mut self.processes[server];
        if !process.runs && process.mux.needs_process() {
            process.runs = true;
            let mut out = Vec::new();
            process.mux.begin(&mut out);
            self.act(server, out);
        }
    }

    pub(super) fn exit(&mut self, server: usize) {
        let process = &mut self.processes[server];
        if !std::mem::take(&mut process.runs) {
            return;
        }
        process.received.clear();
        process.subscribing.clear();
        process.subscribed.clear();
        process.accepted.clear();
        process.open.clear();
        process.initialize = None;
        let mut out = Vec::new();
        let exited = r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"exited"}}"#;
        process
            .mux
            .end(&Failure::Error(exited.to_owned()), &mut out);
        let count = self.processes.len();
        let mut fails = Vec::new();
        for (key, call) in &mut self.calls {
            if call.principal % count == server {
                call.may_fail = true;
                call.is_answered |= call.state.is_some();
                // No acknowledgement is expected any more.
                call.is_acknowledged = true;
                fails.extend(call.open.is_some().then_some(*key));
            }
        }
        self.act(server, out);
        let mut fails = fails.iter();
        assert!(
            !fails.any(|key| self.calls.contains_key(key)),
            "it fails its calls"
        );
    }

    /// The process answers a request that it has got, twice if it is in the mood.
    pub(super) fn answer(&mut self, server: usize, argument: u8) {
        let process = &mut self.processes[server];
        if let Some(id) = process.initialize.take() {
            let capabilities = json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}, "logging": {}});
            let result = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": {"name": "s"}});
            let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
            return self.process_sends(server, &answer);
        }
        let chosen = usize::from(argument) % process.received.len().max(1);
        let Some((id, key)) = process
            .received
            .iter()
            .nth(chosen)
            .map(|(id, to)| (*id, *to))
        else {
            return;
        };
        process.received.remove(&id);
        let fails = argument.is_multiple_of(5);
        let subscribed = process.subscribing.remove(&id).filter(|_| !fails);
        process.accepted.extend(subscribed.clone());
        process.subscribed.extend(subscribed);
        let answer = match fails {
            true => {
                json!({"jsonrpc": "2.0", "id": id, "error": {"code": 1, "message": "no", "data": {"for": key}}})
            }
            false => json!({"jsonrpc": "2.0", "id": id, "result": {"for": key}}),
        };
        let call = key.and_then(|key| self.calls.get_mut(&key));
        let was_open = call.is_some_and(|call| {
            call.is_answered = true;
            // A long answer to a client that gathers input is not kept.
            call.may_fail |= fails || call.state.is_some();
            call.open.is_some()
        });
        self.process_sends(server, &answer);
        assert!(!was_open || key.is_none_or(|key| !self.calls.contains_key(&key)));
        if argument.is_multiple_of(4) {
            self.process_sends(server, &answer);
        }
    }

    pub(super) fn progress(&mut self, server: usize, argument: u8) {
        let received = &self.processes[server].received;
        let chosen = usize::from(argument) % received.len().max(1);
        if let Some((id, key)) = received.iter().nth(chosen) {
            let params = json!({"progressToken": id, "progress": 1, "for": key});
            let text =
                json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
            self.process_sends(server, &text);
        }
    }

    /// The process asks its client, and takes some questions back.
    pub(super) fn ask(&mut self, server: usize, argument: u8) {
        if !self.processes[server].runs {
            return;
        }
        self.last_question += 1;
        let (id, count) = (self.last_question, self.processes.len());
        self.processes[server].open.insert(id);
        let method = match argument.is_multiple_of(7) {
            true => "roots/list",
            false => "elicitation/create",
        };
        let params = json!({"question": id});
        self.process_sends(
            server,
            &json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}),
        );
        // One that was refused is not open.
        let is_known = self.processes[server].open.contains(&id);
        let mut calls = self.calls.values();
        let is_asked = |call: &Call| call.principal % count == server && call.may_be_asked();
        assert!(
            !is_known || calls.any(is_asked),
            "a question waits for a call that the server has not answered"
        );
        if is_known && argument.is_multiple_of(4) {
            self.processes[server].open.remove(&id);
            let params = json!({"requestId": id});
            let text =
                json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
            self.process_sends(server, &text);
            for call in self.calls.values_mut() {
                call.withdrawn.extend(call.asked.remove(&id));
            }
        }
    }

    /// The process answers what it has not got, or writes something that is no message.
    pub(super) fn foreign(&mut self, server: usize, argument: u8) {
        let (id, wrong) = (1_000_000 + u64::from(argument), json!({"for": 0}));
        self.process_sends(
            server,
            &json!({"jsonrpc": "2.0", "id": id, "result": wrong}),
        );
        let params = json!({"progressToken": id, "progress": 1, "for": 0});
        let text = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
        self.process_sends(server, &text);
        let process = &mut self.processes[server];
        let lost = process.received.pop_first();
        if let Some(call) = lost.and_then(|(_, key)| self.calls.get_mut(&key?)) {
            call.may_fail = true;
            call.is_answered = true;
        }
        let lost = lost.map_or(id, |(id, _)| id).to_string();
        let (lost, mut out) = (RecoveredId::Response(lost), Vec::new());
        process.mux.handle_unreadable(&lost, "is garbage", &mut out);
        self.act(server, out);
    }

    pub(super) fn notify(&mut self, server: usize, argument: u8) {
        let uri = URIS[usize::from(argument >> 4) % URIS.len()];
        let (method, params) = match argument % 3 {
            0 if argument > 127 => ("prompts/list_changed", json!({})),
            0 => ("tools/list_changed", json!({})),
            1 => ("resources/updated", json!({"uri": uri})),
            _ => ("message", json!({"level": "error"})),
        };
        let method = format!("notifications/{method}");
        self.process_sends(
            server,
            &json!({"jsonrpc": "2.0", "method": method, "params": params}),
        );
    }

    pub(super) fn process_sends(&mut self, server: usize, message: &Value) {
        let process = &mut self.processes[server];
        if !process.runs {
            return;
        }
        let text = message.to_string();
        let envelope = Envelope::parse(&text).expect("a message");
        let (older, mut out) = (&self.older, Vec::new());
        let reach = |id: Uuid| older.reach(id);
        process.mux.handle_process(&envelope, &reach, &mut out);
        self.act(server, out);
    }

    /// The process gets a line.
    pub(super) fn process_gets(&mut self, server: usize, text: &str) {
        let message: Value = serde_json::from_str(text).expect("JSON");
        let (id, params) = (message["id"].as_u64(), &message["params"]);
        let process = &mut self.processes[server];
        assert!(
            process.runs,
            "nothing is sent to a process that does not run"
        );
        match (message["method"].as_str(), id) {
            (Some(method), Some(id)) => {
                assert!(self.used.insert((server, id)), "an id is not used again");
                let meta = &params["_meta"];
                let of_envelope = "io.modelcontextprotocol/clientCapabilities";
                assert!(meta[of_envelope].is_null(), "it has no envelope");
                match (params["for"].as_u64(), method) {
                    (Some(key), _) => {
                        let call = self.calls.get(&key).expect("it waits");
                        assert_eq!(call.principal % self.processes.len(), server);
                        let token = &meta["progressToken"];
                        assert!(token.is_null() || *token == id);
                        self.processes[server].received.insert(id, Some(key));
                    }
                    (None, "initialize") => process.initialize = Some(id),
                    (None, "resources/subscribe") => {
                        let uri = params["uri"].as_str().expect("a resource");
                        process.subscribing.insert(id, uri.to_owned());
                        process.received.insert(id, None);
                    }
                    (None, "resources/unsubscribe") => {
                        let uri = params["uri"].as_str().expect("a resource");
                        process.subscribed.remove(uri);
                        process.received.insert(id, None);
                    }
                    (None, _) => panic!("no call sends it: {message}"),
                }
            }
            (Some("notifications/cancelled"), None) => {
                let id = params["requestId"].as_u64().expect("an upstream id");
                assert!(self.used.contains(&(server, id)), "it knows the request");
                process.received.remove(&id);
            }
            (Some(method), None) => assert_eq!(method, "notifications/initialized"),
            (None, id) => {
                let id = id.expect("its own id");
                assert!(
                    process.open.remove(&id),
                    "it has asked, and is answered once"
                );
                if message["error"].is_null() {
                    let (key, serial) = self.resuming.expect("a client has sent the input");
                    assert_eq!(self.questions.get(&id), Some(&key), "who was asked answers");
                    assert_eq!(message["result"]["by"], serial);
                    assert!(self.answered.remove(&id), "it was answered");
                }
            }
        }
    }
}
