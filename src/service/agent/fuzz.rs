//! Entry points of the fuzz targets for the agent: the envelope, and the router under any operations.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::envelope::{Envelope, EnvelopeError, Kind, is_spelling_of};
use super::router::{MAX_ID, Router, RouterLimits, Wires};
use super::salvage::{Salvage, Salvaged};
use crate::{ClientId, CloseCode, Principal, Time};

/// Any text as a message: no panic, the ranges are what they say, and serde_json agrees on what is JSON.
pub fn envelope(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let oracle = serde_json::from_str::<serde_json::Value>(text);
    let salvaged = Salvage::of(data);
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
            // What finds the id of a message that cannot be read finds that of one that can.
            let id = envelope.id().map(str::to_owned);
            let id = id.filter(|id| id != "null" && id.len() <= MAX_ID);
            assert_eq!(
                salvaged,
                id.map(|id| match envelope.kind {
                    Kind::Response { .. } => Salvaged::Response(id),
                    _ => Salvaged::Request(id),
                })
            );
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
            let session = value[body]["sessionId"].as_str();
            assert_eq!(envelope.session.as_deref(), session);
            // No key that could be read as the session's stays unseen, and where it counts there is only one.
            let body = value[body].as_object();
            let spellings = body.map_or(0, |body| {
                let keys = body.keys();
                keys.filter(|key| is_spelling_of(key, "sessionId")).count()
            });
            if !matches!(envelope.kind, Kind::Response { .. }) {
                assert!(spellings <= 1, "{text}");
                let seen = envelope.session.is_some() || envelope.misspelled_session.is_some();
                assert!(!seen || spellings == 1, "{text}");
            }
            envelope.sessions_in_meta(|session| assert!(session.len() <= text.len()));
            let _ = envelope.resume_token();
        }
    }
}

fn nesting(text: &str) -> usize {
    text.bytes()
        .filter(|byte| matches!(byte, b'[' | b'{'))
        .count()
}

/// A request of a client that the agent has.
#[derive(Clone)]
struct Sent {
    /// Our id.
    ours: String,
    who: Option<ClientId>,
    method: String,
    /// The session that it names.
    session: Option<String>,
}

/// What is on the way, and who may get what.
#[derive(Default)]
struct Model {
    agent_has: Vec<Sent>,
    /// Answers that each client is owed, by its id.
    owed: BTreeMap<ClientId, Vec<String>>,
    /// Requests that clients were asked: our id.
    asked: BTreeMap<ClientId, Vec<String>>,
    closed: HashSet<ClientId>,
    secrets: u64,
    /// Sessions that messages to clients have named.
    updates: Vec<(ClientId, String)>,
    /// What the agent was just sent: by whom, the method, and the sessions that it names in any spelling and place.
    passed: Vec<(ClientId, String, HashSet<String>)>,
    /// Tokens that were just sent.
    tokens: Vec<(ClientId, String)>,
    principals: HashMap<ClientId, Principal>,
    /// Whose each session is, and the tokens that its clients were ever sent.
    belongs: HashMap<String, (Principal, HashSet<String>)>,
}

impl Model {
    /// A session is this client's, which was sent a token for it.
    fn note_token(&mut self, session: &str, is_new: bool) {
        for (client, token) in std::mem::take(&mut self.tokens) {
            let principal = self.principals[&client];
            let belongs = self.belongs.entry(session.to_owned());
            let belongs = belongs.or_insert_with(|| (principal, HashSet::new()));
            belongs.0 = principal;
            if is_new {
                belongs.1.clear();
            }
            belongs.1.insert(token);
        }
    }
}

/// The sessions that an object names in a way that somebody might read.
fn sessions_named(params: &serde_json::Value) -> HashSet<String> {
    let members = params.as_object().into_iter().flatten();
    let (mut named, mut inside) = (HashSet::new(), Vec::new());
    for (key, value) in members {
        if is_spelling_of(key, "sessionId") {
            named.extend(value.as_str().map(str::to_owned));
        } else if key.to_lowercase().contains("meta") {
            inside.push(value);
        }
    }
    let members = inside.into_iter().filter_map(|value| value.as_object());
    for (key, value) in members.flatten() {
        if is_spelling_of(key, "sessionId") {
            named.extend(value.as_str().map(str::to_owned));
        }
    }
    named
}

impl Wires for Model {
    fn initialize_agent(&mut self, parts: &[&str]) {
        self.to_agent(parts);
    }

    fn to_agent(&mut self, parts: &[&str]) {
        let text = parts.concat();
        let envelope = Envelope::parse(&text).expect("the agent gets whole messages");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let params = &value["params"];
        let who: Option<ClientId> = params["who"].as_str().and_then(|who| who.parse().ok());
        let method = value["method"].as_str().unwrap_or_default();
        if let Some(who) = who {
            let named = sessions_named(params);
            self.passed.push((who, method.to_owned(), named));
        }
        if let (Kind::Request { .. }, Some(id)) = (&envelope.kind, envelope.id()) {
            assert!(
                !self.agent_has.iter().any(|sent| sent.ours == id),
                "ids are never used twice"
            );
            self.agent_has.push(Sent {
                ours: id.to_owned(),
                who,
                method: method.to_owned(),
                session: params["sessionId"].as_str().map(str::to_owned),
            });
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
                    .unwrap_or_else(|| panic!("every request gets at most one answer: {text}"));
                owed.remove(at);
                if let Some(whose) = value["result"]["for"].as_str() {
                    assert_eq!(
                        whose,
                        client.to_string(),
                        "nothing reaches a client that is not its own"
                    );
                }
                let token = value["result"]["_meta"]["outrigger"]["resumeToken"].as_str();
                self.tokens
                    .extend(token.map(|token| (client, token.to_owned())));
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

const METHODS: [&str; 11] = [
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
    "_vendor/x",
];
const AGENT_METHODS: [&str; 4] = [
    "session/update",
    "session/request_permission",
    "fs/read_text_file",
    "$/cancel_request",
];
/// How a client names a session: `#` is its name.
const SPELLINGS: [&str; 6] = [
    r##""sessionId":"#""##,
    r##""sessionId":"#""##,
    r##""session_id":"#""##,
    r##""SESSION-ID":"#","sessionId":"#""##,
    r##""field_meta":{"sessionId":"#"}"##,
    r##""_meta2":0"##,
];
const PRINCIPALS: [Principal; 4] = [
    Principal::Token,
    Principal::User(1),
    Principal::Token,
    Principal::Nobody,
];

/// Any operations of clients with colliding ids and sessions, and of an agent that shuffles, repeats, invents and dies.
pub fn router(data: &[u8]) {
    let grace = Duration::from_secs(10);
    let limits = RouterLimits {
        waiting: 6,
        sessions: 4,
        all_sessions: 9,
        ended_sessions: if data.first().is_some_and(|byte| byte % 2 == 0) {
            7
        } else {
            100
        },
        asked: 3,
        acp: true,
        grace: data
            .first()
            .is_some_and(|byte| byte % 3 > 0)
            .then_some(grace),
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
                let principal = PRINCIPALS[a % 4];
                next_client += 1;
                model.principals.insert(client, principal);
                router.handle_connected(client, principal);
                present.push(client);
                if b % 4 > 0 {
                    model.owed.entry(client).or_default().push("0".to_owned());
                    let text = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"clientCapabilities":{"fs":{"readTextFile":true}}}}"#;
                    router.receive_from_client(now, client, text, &mut model);
                }
            }
            (1..=3, Some(client)) => {
                let method = METHODS[a / 5 % METHODS.len()];
                let token = format!("{:032}", b % 64);
                let spelled = SPELLINGS[usize::from(operation) / 12 % 6].replace('#', &session);
                let spelled = match method {
                    "session/new" | "session/list" | "other" => r#""x":1"#.to_owned(),
                    _ => spelled,
                };
                // The answer to `initialize` is for all.
                let who = if method == "initialize" { "any" } else { "who" };
                let is_notification = operation % 5 == 0;
                let with_id = if is_notification {
                    // One that could be read in two ways is answered, as an invalid message without an id is.
                    model
                        .owed
                        .entry(client)
                        .or_default()
                        .push("null".to_owned());
                    String::new()
                } else {
                    model.owed.entry(client).or_default().push(id.to_owned());
                    format!(r#""id":{id},"#)
                };
                let text = format!(
                    r#"{{"jsonrpc":"2.0",{with_id}"method":"{method}","params":{{"{who}":"{client}",{spelled},"_meta":{{"outrigger":{{"resumeToken":"{token}"}}}}}}}}"#
                );
                let before: HashMap<String, Option<ClientId>> = (0..9)
                    .map(|at| format!("s{at}"))
                    .map(|name| (name.clone(), router.owner_of(&name)))
                    .collect();
                router.receive_from_client(now, client, &text, &mut model);
                check_passed(&router, &mut model, &before, &token);
                model.note_token(&session, false);
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
                let Sent {
                    ours,
                    who,
                    method,
                    session: named,
                } = model.agent_has[at].clone();
                if b % 8 > 0 {
                    model.agent_has.remove(at);
                }
                let whose = who.map_or_else(|| "null".to_owned(), |who| format!("\"{who}\""));
                sessions += 1;
                let name = format!("s{}", sessions % 9);
                let success = b % 5 != 0;
                let text = if !success {
                    format!(
                        r#"{{"jsonrpc":"2.0","id":{ours},"error":{{"code":1,"message":"no"}}}}"#
                    )
                } else if who.is_none() {
                    format!(
                        r#"{{"jsonrpc":"2.0","id":{ours},"result":{{"agentCapabilities":{{}}}}}}"#
                    )
                } else {
                    format!(
                        r#"{{"jsonrpc":"2.0","id":{ours},"result":{{"for":{whose},"sessionId":"{name}","sessions":[{{"sessionId":"s1"}}]}}}}"#
                    )
                };
                if operation % 7 == 0 {
                    let salvaged = Salvage::of(text.as_bytes());
                    router.handle_unreadable(now, salvaged, "is too long", &mut model);
                } else {
                    router.receive_from_agent(now, &text, &mut model);
                }
                let creates = matches!(&*method, "session/new" | "session/fork");
                let has_left = who.is_some_and(|who| !present.contains(&who));
                if creates && has_left && success {
                    // It may be the principal's that has asked for it; nobody has its token.
                    model.belongs.remove(&name);
                }
                model.note_token(
                    if creates {
                        &name
                    } else {
                        named.as_deref().unwrap_or("")
                    },
                    creates,
                );
                check_updates(&router, &mut model);
            }
            (9, _) => {
                let method = AGENT_METHODS[a % AGENT_METHODS.len()];
                let id = if b % 2 == 0 {
                    format!("\"id\":{id},")
                } else {
                    String::new()
                };
                let named = match a / 4 % 5 {
                    0 => String::new(),
                    1 => format!("\"requestId\":{b}"),
                    2 => format!("\"session_id\":\"{session}\""),
                    _ => format!("\"sessionId\":\"{session}\""),
                };
                let text =
                    format!(r#"{{"jsonrpc":"2.0",{id}"method":"{method}","params":{{{named}}}}}"#);
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
        model.passed.clear();
        model.tokens.clear();
        assert!(
            router.waiting_count() <= 6 * present.len()
                && router.asked_count() <= 3 * present.len()
                && router.session_count() <= limits.all_sessions
                && router.ended_count() <= limits.ended_sessions
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

/// What was just sent to the agent names no session of another client, and asks for none that is another's.
fn check_passed(
    router: &Router,
    model: &mut Model,
    before: &HashMap<String, Option<ClientId>>,
    token: &str,
) {
    for (client, method, named) in model.passed.drain(..) {
        for session in named {
            let controller = before.get(&session).copied().flatten();
            let claims = matches!(&*method, "session/load" | "session/resume");
            let belongs = model.belongs.get(&session);
            if claims {
                assert_eq!(router.owner_of(&session), Some(client));
                assert!(controller.is_none_or(|controller| controller == client));
                if let (None, Some((principal, tokens))) = (controller, belongs) {
                    let own = model.principals[&client];
                    let is_same = *principal == own && own != Principal::Nobody;
                    assert!(is_same || tokens.contains(token), "{session} is another's");
                }
            } else if controller != Some(client) {
                assert_eq!(controller, None, "{session} is another client's");
                assert!(
                    method.starts_with('_'),
                    "{method} names a session that is not its own"
                );
                assert!(belongs.is_none(), "{session} was somebody's");
            }
        }
    }
}

/// What was just delivered for a session went to its client.
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
        for _ in 0..2000 {
            router(&random.bytes(1500));
        }
    }
}
