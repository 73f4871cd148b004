//! Entry points of the fuzz targets for the agent: the envelope, and the router under any operations.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::envelope::{Envelope, EnvelopeError, Kind};
use super::router::{Router, RouterLimits, Wires};
use crate::{ClientId, CloseCode, Principal, Time};

/// Any text as a message: no panic, the ranges are what they say, and serde_json agrees on what is JSON.
pub fn envelope(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let oracle = serde_json::from_str::<serde_json::Value>(text);
    match Envelope::parse(text) {
        Err(EnvelopeError::Parse) => {
            // serde_json's limit of nesting is a little lower or higher than ours.
            assert!(oracle.is_err() || nesting(text) > 100, "{text}");
        }
        Err(EnvelopeError::Invalid { id, .. }) => {
            if let Some(id) = id {
                assert!(serde_json::from_str::<serde_json::Value>(&text[id]).is_ok());
            }
        }
        Ok(envelope) => {
            let Ok(value) = oracle else { return };
            assert_eq!(value["jsonrpc"], "2.0");
            if let Some(id) = envelope.id() {
                assert_eq!(
                    serde_json::from_str::<serde_json::Value>(id).ok().as_ref(),
                    value.get("id")
                );
            }
            let body = if matches!(envelope.kind, Kind::Response { .. }) {
                "result"
            } else {
                "params"
            };
            assert_eq!(
                envelope.session.as_deref(),
                value[body]["sessionId"].as_str()
            );
            let _ = envelope.resume_token();
        }
    }
}

fn nesting(text: &str) -> usize {
    text.bytes()
        .filter(|byte| matches!(byte, b'[' | b'{'))
        .count()
}

/// What is on the way, and who may get what.
#[derive(Default)]
struct Model {
    /// Requests of clients that the agent has: our id, the client, the client's id.
    agent_has: Vec<(String, Option<ClientId>)>,
    /// Answers that each client is owed, by its id.
    owed: BTreeMap<ClientId, Vec<String>>,
    /// Requests that clients were asked: our id.
    asked: BTreeMap<ClientId, Vec<String>>,
    closed: HashSet<ClientId>,
    secrets: u64,
    updates: Vec<(ClientId, String)>,
}

impl Wires for Model {
    fn initialize_agent(&mut self, parts: &[&str]) {
        self.to_agent(parts);
    }

    fn to_agent(&mut self, parts: &[&str]) {
        let text = parts.concat();
        let envelope = Envelope::parse(&text).expect("the agent gets whole messages");
        if let (Kind::Request { .. }, Some(id)) = (&envelope.kind, envelope.id()) {
            let params = serde_json::from_str::<serde_json::Value>(&text).expect("JSON")["params"]
                ["who"]
                .clone();
            let who = params.as_str().and_then(|who| who.parse().ok());
            assert!(
                !self.agent_has.iter().any(|(ours, _)| ours == id),
                "ids are never used twice"
            );
            self.agent_has.push((id.to_owned(), who));
        }
    }

    fn to_client(&mut self, client: ClientId, parts: &[&str]) {
        let text = parts.concat();
        let envelope = Envelope::parse(&text).expect("clients get whole messages");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        match &envelope.kind {
            Kind::Response { .. } => {
                let id = envelope.id().unwrap_or_default();
                let owed = self.owed.entry(client).or_default();
                let at = owed
                    .iter()
                    .position(|owed| owed == id)
                    .expect("every request gets at most one answer");
                owed.remove(at);
                if let Some(whose) = value["result"]["for"].as_str() {
                    assert_eq!(
                        whose,
                        client.to_string(),
                        "nothing reaches a client that is not its own"
                    );
                }
            }
            Kind::Request { .. } => {
                self.asked
                    .entry(client)
                    .or_default()
                    .push(envelope.id().unwrap_or_default().to_owned());
                self.updates
                    .push((client, envelope.session.unwrap_or_default().into_owned()));
            }
            Kind::Notification { .. } => {
                self.updates
                    .push((client, envelope.session.unwrap_or_default().into_owned()));
            }
        }
    }

    fn close(&mut self, client: ClientId, _: CloseCode, _: &str) {
        self.closed.insert(client);
    }

    fn secret(&mut self) -> String {
        self.secrets += 1;
        format!("{:032}", self.secrets)
    }
}

const METHODS: [&str; 10] = [
    "session/new",
    "session/load",
    "session/prompt",
    "session/list",
    "session/close",
    "session/resume",
    "session/fork",
    "other",
    "initialize",
    "session/set_mode",
];
const AGENT_METHODS: [&str; 4] = [
    "session/update",
    "session/request_permission",
    "fs/read_text_file",
    "$/cancel_request",
];

/// Any operations of clients with colliding ids and sessions, and of an agent that shuffles, repeats, invents and dies.
pub fn router(data: &[u8]) {
    let grace = Duration::from_secs(10);
    let limits = RouterLimits {
        waiting: 6,
        sessions: 4,
        all_sessions: 9,
        ended_sessions: 7,
        asked: 3,
        acp: true,
        grace: Some(grace),
    };
    let mut router = Router::new(limits);
    let mut model = Model::default();
    let mut present: Vec<ClientId> = Vec::new();
    let (mut next_client, mut now) = (1u64, Time::from_millis(1));
    let mut sessions = 0u64;

    for chunk in data.chunks_exact(3) {
        let (operation, a, b) = (chunk[0], usize::from(chunk[1]), usize::from(chunk[2]));
        now = now + Duration::from_millis(b as u64);
        let someone = (!present.is_empty()).then(|| present[a % present.len().max(1)]);
        let session = format!("s{}", b % 6);
        let id = ["1", "\"1\"", "1.0", "null"][b % 4];
        match (operation % 12, someone) {
            (0, _) | (_, None) if present.len() < 5 => {
                let client: ClientId = format!("c{next_client}").parse().expect("an id");
                next_client += 1;
                router.handle_connected(client, Principal::Token);
                present.push(client);
                if b % 4 > 0 {
                    model.owed.entry(client).or_default().push("0".to_owned());
                    let text = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"clientCapabilities":{"fs":{"readTextFile":true}}}}"#;
                    router.receive_from_client(now, client, text, &mut model);
                }
            }
            (1..=3, Some(client)) => {
                let method = METHODS[a / 5 % METHODS.len()];
                model.owed.entry(client).or_default().push(id.to_owned());
                let token = format!("{b:032}");
                let text = format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"who":"{client}","sessionId":"{session}","_meta":{{"outrigger":{{"resumeToken":"{token}"}}}}}}}}"#
                );
                let text =
                    if method == "session/new" || method == "session/list" || method == "other" {
                        text.replace(&format!("\"sessionId\":\"{session}\","), "")
                    } else {
                        text
                    };
                // The answer to `initialize` is for all.
                let text = if method == "initialize" {
                    text.replace("who", "any")
                } else {
                    text
                };
                router.receive_from_client(now, client, &text, &mut model);
            }
            (4, Some(client)) => {
                let text = format!(
                    r#"{{"jsonrpc":"2.0","method":"$/cancel_request","params":{{"requestId":{id}}}}}"#
                );
                router.receive_from_client(now, client, &text, &mut model);
            }
            (5, Some(client)) => {
                let asked = model
                    .asked
                    .get(&present[b % present.len()])
                    .and_then(|asked| asked.last())
                    .cloned();
                let id = asked.unwrap_or_else(|| a.to_string());
                let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
                router.receive_from_client(now, client, &text, &mut model);
            }
            (6, Some(client)) if b % 3 == 0 => {
                present.retain(|other| *other != client);
                router.handle_disconnected(now, client, &mut model);
                model.owed.remove(&client);
                model.asked.remove(&client);
                model.closed.remove(&client);
            }
            (7 | 8, _) if !model.agent_has.is_empty() => {
                // Answers in any order, sometimes twice.
                let at = a % model.agent_has.len();
                let (ours, who) = model.agent_has[at].clone();
                if b % 8 > 0 {
                    model.agent_has.remove(at);
                }
                let whose = who.map_or_else(|| "null".to_owned(), |who| format!("\"{who}\""));
                sessions += 1;
                let text = if b % 5 == 0 {
                    format!(
                        r#"{{"jsonrpc":"2.0","id":{ours},"error":{{"code":1,"message":"no"}}}}"#
                    )
                } else if who.is_none() {
                    format!(
                        r#"{{"jsonrpc":"2.0","id":{ours},"result":{{"agentCapabilities":{{}}}}}}"#
                    )
                } else {
                    let name = sessions % 9;
                    format!(
                        r#"{{"jsonrpc":"2.0","id":{ours},"result":{{"for":{whose},"sessionId":"s{name}","sessions":[{{"sessionId":"s1"}}]}}}}"#
                    )
                };
                router.receive_from_agent(now, &text, &mut model);
                check_updates(&router, &mut model);
            }
            (9, _) => {
                let method = AGENT_METHODS[a % AGENT_METHODS.len()];
                let id = if b % 2 == 0 {
                    format!("\"id\":{id},")
                } else {
                    String::new()
                };
                let text = format!(
                    r#"{{"jsonrpc":"2.0",{id}"method":"{method}","params":{{"sessionId":"{session}"}}}}"#
                );
                router.receive_from_agent(now, &text, &mut model);
                check_updates(&router, &mut model);
            }
            (10, _) if b % 9 == 0 => {
                router.handle_agent_exited(r#"{"code":1,"signal":null}"#, &mut model);
                model.agent_has.clear();
                model.asked.clear();
                assert_eq!((router.waiting_count(), router.asked_count()), (0, 0));
                router.handle_agent_started(&mut model);
            }
            (11, _) => {
                // An invented answer.
                let text = format!(
                    r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#,
                    1_000_000 + a
                );
                router.receive_from_agent(now, &text, &mut model);
                router.handle_timeout(now);
            }
            _ => {}
        }
        assert!(
            router.waiting_count() <= 6 * present.len()
                && router.asked_count() <= 3 * present.len()
        );
    }
    for client in present {
        router.handle_disconnected(now, client, &mut model);
    }
    router.handle_timeout(now + grace);
    let tables = (
        router.waiting_count(),
        router.asked_count(),
        router.session_count(),
    );
    assert_eq!(tables, (0, 0, 0), "tables are empty when everyone has left");
}

/// What was just delivered for a session went to its owner.
fn check_updates(router: &Router, model: &mut Model) {
    for (client, session) in model.updates.drain(..) {
        if !session.is_empty() {
            assert_eq!(router.owner_of(&session), Some(client));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn envelopes_of_every_kind() {
        let mut random = Random::new(6);
        let seed = br#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"sessionId":"a","_meta":{"outrigger":{"resumeToken":"t"}}}}"#;
        for _ in 0..50_000 {
            let mut data = seed.to_vec();
            for _ in 0..random.below(5) {
                let at = random.below(data.len());
                data[at] = b"{}[],:\"\\10e-. nulid"[random.below(19)];
            }
            envelope(&data);
        }
    }

    #[test]
    fn operations_of_every_kind() {
        let mut random = Random::new(7);
        for _ in 0..3000 {
            router(&random.bytes(1500));
        }
    }
}
