//! Fuzzes the router of a shared agent of the Model Context Protocol: ids, progress tokens and subscriptions.

use std::time::Duration;

use crate::service::agent::router::{Batches, Router, RouterOutput, RouterSettings};
use crate::service::agent::{AgentProtocol, Approvals, UnknownSessions};
use crate::service::jsonrpc::Envelope;
use crate::{ClientId, CloseCode, Principal, Scope, Time};

const IDS: [&str; 4] = ["1", "\"1\"", "1.0", "null"];
const TOKENS: [&str; 5] = ["1", "\"1\"", "-1.0", r#""\u0061""#, "\"\""];
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
/// Places for a forged token that an agent could read, but that are not its only place. `#` means the token.
const FORGED: [&str; 5] = [
    r##""_meta":{"progressToken":1,"progressToken":#}"##,
    r##""_meta":{"progress_token":#}"##,
    r##""meta":{"progressToken":#},"_meta":{"progressToken":1}"##,
    r##""field_meta":{"PROGRESS-TOKEN":#}"##,
    r##""_meta":{"progressToken":[#]}"##,
];

/// A request that the agent has received, and that is pending.
#[derive(Clone, Debug)]
struct Pending {
    client: ClientId,
    upstream_id: String,
    id: &'static str,
    token: Option<&'static str>,
    listens: bool,
}

/// The messages since the last check.
#[derive(Default)]
struct Sent {
    agent: Vec<String>,
    clients: Vec<(ClientId, String)>,
    batches: Batches,
}

impl RouterOutput for Sent {
    fn initialize_agent(&mut self, _: usize, parts: &[&str]) {
        panic!("the router sends no initialize of its own: {parts:?}");
    }

    fn to_agent(&mut self, _: usize, parts: &[&str]) {
        let text = parts.concat();
        Envelope::parse(&text).expect("the agent gets valid messages");
        self.agent.push(text);
    }

    fn to_client(&mut self, client: ClientId, parts: &[&str]) {
        let text = parts.concat();
        Envelope::parse(&text).expect("clients get valid messages");
        self.clients.push((client, text));
    }

    fn close(&mut self, client: ClientId, _: CloseCode, _: &str) {
        panic!("{client} is closed");
    }

    fn secret(&mut self) -> String {
        String::new()
    }

    fn is_away(&self, _: ClientId) -> bool {
        false
    }

    fn scope(&self, _: ClientId) -> Scope {
        Scope::All
    }

    fn is_resumable(&self, _: ClientId) -> bool {
        false
    }

    fn batches(&mut self) -> &mut Batches {
        // There are none without ACP.
        &mut self.batches
    }
}

/// The id or token as the agent writes it back, with another one in its place.
fn restored(text: &str, upstream: &str, own: &str) -> String {
    text.replacen(&format!("{upstream}@"), own, 1)
        .replace('@', "")
}

/// Runs any operations of clients whose ids and tokens collide. Every message of the agent reaches exactly the clients that
/// a naive model says, byte for byte.
pub(super) fn references(data: &[u8]) {
    let limits = RouterSettings {
        client_requests: 6,
        sessions: 4,
        all_sessions: 9,
        ended_sessions: 7,
        agent_requests: 3,
        protocol: AgentProtocol::JsonRpc,
        grace: None,
        processes: 1,
        is_one_process: false,
        initialize_timeout: None,
        approvals: Approvals::Owner,
        history: 4 << 10,
        unknown_sessions: UnknownSessions::Allow,
        request_timeout: None,
        answer_timeout: None,
    };
    let mut router = Router::new(limits);
    let mut present: Vec<ClientId> = Vec::new();
    // All upstream ids that the agent has seen, and the requests that are pending.
    let (mut seen, mut pending) = (vec!["0".to_owned()], Vec::<Pending>::new());
    let mut now = Time::from_millis(1);
    let mut next_client = 1u64;

    for chunk in data.chunks_exact(3) {
        let (operation, a, b) = (chunk[0] % 10, usize::from(chunk[1]), usize::from(chunk[2]));
        now = now + Duration::from_millis(1);
        let mut sent = Sent::default();
        let mut expected: Vec<(ClientId, String)> = Vec::new();
        let client = (!present.is_empty()).then(|| present[a % present.len().max(1)]);
        let upstream = &seen[b % seen.len()].clone();
        match (operation, client) {
            (0, _) | (_, None) if present.len() < 4 => {
                let client: ClientId = format!("c{next_client}").parse().expect("an id");
                next_client += 1;
                router.handle_connected(client, Principal::Token, true);
                present.push(client);
            }
            (1..=3, Some(client)) => {
                let id = IDS[b % 4];
                let token = (b / 4 % 6).checked_sub(1).map(|at| TOKENS[at]);
                let listens = operation == 3;
                let method = if listens {
                    "subscriptions/listen"
                } else {
                    "tools/call"
                };
                let meta = token.map_or_else(String::new, |token| {
                    format!(r#","_meta":{{"x":1, "progressToken" : {token} }}"#)
                });
                let with = |id: &str, meta: &str| {
                    format!(
                        r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"by":"{client}"{meta}}}}}"#
                    )
                };
                router.handle_client_message(now, client, &with(id, &meta), &mut sent);
                if pending.iter().filter(|one| one.client == client).count() == 6 {
                    assert!(sent.agent.is_empty() && sent.clients.len() == 1, "too many");
                    sent.clients.clear();
                } else {
                    let text = sent.agent.pop().expect("the agent gets the request");
                    let upstream_id = Envelope::parse(&text).expect("valid").id();
                    let upstream_id = upstream_id.expect("an id").to_owned();
                    assert!(!seen.contains(&upstream_id), "ids are never used twice");
                    let meta = match token {
                        Some(token) => {
                            meta.replace(&format!(" {token} "), &format!(" {upstream_id} "))
                        }
                        None => meta,
                    };
                    assert_eq!(text, with(&upstream_id, &meta));
                    seen.push(upstream_id.clone());
                    pending.push(Pending {
                        client,
                        upstream_id,
                        id,
                        token,
                        listens,
                    });
                }
            }
            (4, Some(client)) if b % 2 == 0 => {
                // A request with a forged token does not reach the agent.
                let forged = FORGED[b / 2 % 5].replace('#', upstream);
                let text =
                    format!(r#"{{"jsonrpc":"2.0","id":9,"method":"x","params":{{{forged}}}}}"#);
                router.handle_client_message(now, client, &text, &mut sent);
                assert_eq!(sent.clients.pop().map(|(client, _)| client), Some(client));
                // Nor does progress of a request that the agent has not sent.
                let text = format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{upstream}}}}}"#
                );
                router.handle_client_message(now, client, &text, &mut sent);
            }
            (4, Some(client)) => {
                let id = IDS[b / 2 % 4];
                let text = format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
                );
                router.handle_client_message(now, client, &text, &mut sent);
                let is_it = |one: &Pending| one.client == client && is_same_value(one.id, id);
                if let Some(at) = pending.iter().rposition(is_it) {
                    let one = pending.remove(at);
                    let want =
                        text.replace(&format!(":{id}}}"), &format!(":{}}}", one.upstream_id));
                    assert_eq!(sent.agent.pop(), Some(want));
                }
            }
            (5, Some(client)) if b % 4 == 0 => {
                present.retain(|other| *other != client);
                router.handle_disconnected(now, client, &mut sent);
                for one in pending.extract_if(.., |one| one.client == client) {
                    if one.listens {
                        let named = format!(r#""requestId":{}}}"#, one.upstream_id);
                        let at = sent.agent.iter().position(|text| text.contains(&named));
                        sent.agent.remove(at.expect("the agent is told"));
                    }
                }
            }
            (6 | 7, _) => {
                // The agent reports progress, or notifies a subscriber. The model marks what is replaced with `@`.
                let text = match a / 8 % 4 {
                    0 | 1 => format!(
                        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progress":{upstream},"progressToken":{upstream}@}}}}"#
                    ),
                    2 => format!(
                        r#"{{"jsonrpc":"2.0","method":"x","params":{{"_meta":{{"{SUBSCRIPTION}":{upstream}@}}}}}}"#
                    ),
                    _ => format!(
                        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{upstream}@}}}}"#
                    ),
                };
                let at = pending.iter().position(|one| one.upstream_id == *upstream);
                let own = at.map(|at| &pending[at]).and_then(|one| {
                    let own = match a / 8 % 4 {
                        0 | 1 => one.token?,
                        _ => one.listens.then_some(one.id)?,
                    };
                    Some((one.client, restored(&text, upstream, own)))
                });
                if let (Some(_), Some(at), 3) = (&own, at, a / 8 % 4) {
                    pending.remove(at);
                }
                expected.extend(own);
                router.handle_agent_message(now, 0, &text.replace('@', ""), &mut sent);
            }
            (8, _) if b % 16 == 0 => {
                router.handle_agent_exited(0, "{}", &mut sent);
                assert_eq!(sent.clients.len(), pending.len());
                router.handle_agent_started(now, 0, &mut sent);
                sent.clients.clear();
                pending.clear();
            }
            (8, _) => {
                let text = format!(
                    r#"{{"jsonrpc":"2.0","result":{{"_meta":{{"{SUBSCRIPTION}":{upstream}}}}},"id":{upstream}@}}"#
                );
                if let Some(at) = pending.iter().position(|one| one.upstream_id == *upstream) {
                    let one = pending.remove(at);
                    let mut want = restored(&text, upstream, one.id);
                    if one.listens {
                        want = want
                            .replace(&format!("\":{upstream}}}}}"), &format!("\":{}}}}}", one.id));
                    }
                    expected.push((one.client, want));
                }
                router.handle_agent_message(now, 0, &text.replace('@', ""), &mut sent);
            }
            (9, _) => {
                let text = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
                router.handle_agent_message(now, 0, text, &mut sent);
                expected = present
                    .iter()
                    .map(|client| (*client, text.to_owned()))
                    .collect();
            }
            _ => {}
        }
        sent.clients.sort();
        expected.sort();
        assert_eq!(sent.clients, expected);
        assert_eq!(sent.agent, [""; 0]);
        assert_eq!(router.figures().client_requests, pending.len());
    }
    for client in present {
        router.handle_disconnected(now, client, &mut Sent::default());
    }
    assert_eq!(router.figures().client_requests, 0);
}

/// Whether two ids are the same: the naive form of the rule.
fn is_same_value(one: &str, other: &str) -> bool {
    let value = |id: &str| serde_json::from_str::<serde_json::Value>(id).expect("JSON");
    let (one, other) = (value(one), value(other));
    one == other || (one.is_number() && one.as_f64() == other.as_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    #[test]
    fn random_operations_keep_every_reference_with_its_client() {
        let mut random = Random::new(11);
        for _ in 0..rounds(2000) {
            references(&random.bytes(1500));
        }
    }
}
