//! Fuzzes the router of a shared agent, with a model of its clients and its agent processes.

use std::collections::HashMap;
use std::time::Duration;

use super::agent_batches::Form;
use super::agent_checks::{check_attached, check_listed, check_passed, check_updates};
use super::agent_model::{RouterModel, Sent};
use super::agent_references::references;
use crate::record::simulated::{load_again, restored};
use crate::service::agent::router::{BatchSender, ProcessChange, Router, RouterSettings};
use crate::service::agent::{AgentProtocol, Approvals, UnknownSessions};
use crate::service::jsonrpc::IdRecovery;
use crate::{ClientId, Principal, Time};

const METHODS: [&str; 14] = [
    "_free",
    "session/attach",
    "session/detach",
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
const AGENT_METHODS: [&str; 6] = [
    "_free",
    "_vendor/x",
    "session/update",
    "session/request_permission",
    "fs/read_text_file",
    "$/cancel_request",
];
/// The ids of requests. The first and the third one are equal.
const IDS: [&str; 4] = ["1", "\"1\"", "1.0", "null"];
/// How a client names a session. `#` means its name.
const SPELLINGS: [&str; 11] = [
    r##""sessionId":"#""##,
    r##""sessionId":"#""##,
    r##""session_id":"#""##,
    r##""SESSION-ID":"#","sessionId":"#""##,
    r##""field_meta":{"sessionId":"#"}"##,
    r##""_meta2":0"##,
    r##""target":{"sessionId":"#"}"##,
    r##""sessions":["other","#"]"##,
    r##""parentSessionIDs":"#","content":{"sessionId":"s9"}"##,
    r##""session":{"id":"#"}"##,
    r##""field-meta":{"x":[{"session_ids":["#"]}]}"##,
];
/// How the agent names a session, and perhaps another one, for which `@` stands.
const AGENT_SPELLINGS: [&str; 12] = [
    "",
    r##""requestId":7"##,
    r##""session_id":"#""##,
    r##""sessionId":"#""##,
    r##""sessionId":"#""##,
    r##""sessionId":"#","_meta":{"sessionId":"@"}"##,
    r##""_meta":{"sessionId":"#"}"##,
    r##""target":{"parentSessionId":"#"}"##,
    r##""sessions":["#","@"]"##,
    r##""from":{"session_id":"@"},"to":{"sessionID":"#"}"##,
    r##""content":{"sessionId":"@"},"session":"#""##,
    r##""rawInput":[{"sessionId":"@"}]"##,
];

/// The principal with this number.
fn principal(number: usize) -> Principal {
    match number % 4 {
        0 => Principal::Token,
        1 => Principal::User(1),
        2 => Principal::Named("ada".into()),
        _ => Principal::Nobody,
    }
}

/// Runs any operations of clients whose ids and sessions collide, and of an agent that reorders, repeats and invents
/// responses, and exits.
pub fn router(data: &[u8]) {
    // Half of the inputs are for an agent that does not speak ACP.
    if data.first().is_some_and(|byte| byte & 128 > 0) {
        return references(&data[1..]);
    }
    let sent = run(data, true);
    assert!(sent == run(data, false), "an upgrade changes what is sent");
}

/// The router that continues what another one has written down.
fn continued(router: &Router, limits: RouterSettings) -> Router {
    let mut next = new_router(limits);
    load_again(router, &mut next);
    next
}

fn new_router(limits: RouterSettings) -> Router {
    Router::new(limits).with_free_methods(vec!["_free".to_owned()])
}

/// Runs the operations, with upgrades of the server or without them. Returns what the router has sent in each one, in order.
fn run(data: &[u8], upgrades: bool) -> Vec<Vec<String>> {
    let grace = Duration::from_secs(10);
    let flag = |bit: u8| data.first().is_some_and(|byte| byte & bit > 0);
    let limits = RouterSettings {
        client_requests: 6,
        sessions: 4,
        all_sessions: 9,
        ended_sessions: if data.first().is_some_and(|byte| byte % 2 == 0) {
            7
        } else {
            100
        },
        agent_requests: 3,
        protocol: AgentProtocol::Acp,
        grace: data
            .first()
            .is_some_and(|byte| byte % 3 > 0)
            .then_some(grace),
        processes: 3,
        is_one_process: data.get(1).is_some_and(|byte| byte % 4 == 0),
        initialize_timeout: flag(16).then_some(Duration::from_secs(1)),
        history: 4 << 10,
        approvals: if flag(64) {
            Approvals::Any
        } else {
            Approvals::Owner
        },
        unknown_sessions: if flag(32) {
            UnknownSessions::Auto
        } else {
            UnknownSessions::Allow
        },
        request_timeout: flag(4).then_some(Duration::from_secs(2)),
        answer_timeout: flag(8).then_some(Duration::from_secs(3)),
    };
    let mut router = new_router(limits);
    let mut sent = Vec::new();
    let mut model = RouterModel::default();
    let mut present: Vec<ClientId> = Vec::new();
    let (mut next_client, mut now) = (1u64, Time::from_millis(1));
    let mut sessions = 0u64;

    for chunk in data.chunks_exact(3) {
        let (operation, a, b) = (chunk[0], usize::from(chunk[1]), usize::from(chunk[2]));
        now = now + Duration::from_millis(b as u64);
        let client = (!present.is_empty()).then(|| present[a % present.len().max(1)]);
        let id = IDS[b % 4];
        match (operation % 12, client) {
            (0, _) | (_, None) if present.len() < 5 => {
                let client: ClientId = format!("c{next_client}").parse().expect("an id");
                let principal = principal(a);
                next_client += 1;
                model.principals.insert(client, principal.clone());
                router.handle_connected(client, principal, true);
                present.push(client);
                if b % 4 > 0 {
                    model
                        .expected
                        .entry(client)
                        .or_default()
                        .push("0".to_owned());
                    let version = [1, 1, 1, 2, 3][a / 4 % 5];
                    let text = format!(
                        r#"{{"method":"initialize","params":{{"protocolVersion":{version},"clientCapabilities":{{"fs":{{"readTextFile":{}}}}}}},"id":0,"jsonrpc":"2.0"}}"#,
                        b % 8 > 1
                    );
                    router.handle_client_message(now, client, &text, &mut model);
                }
            }
            (1..=3, Some(client)) => {
                let form = Form::of(operation, a / 7 + b);
                // One message of a batch may claim a session, or attach to it. The checks find its effect after the batch.
                let claiming = a % form.count;
                let token = format!("{:032}", b % 64);
                let takes_over = a % 2 == 0;
                let claimed = format!("s{}", (b + 5 * claiming) % 6);
                let mut messages = Vec::new();
                for position in 0..form.count {
                    let (a, b) = (a + 35 * position, b + 5 * position);
                    let session = format!("s{}", b % 6);
                    let method = match METHODS[a / 5 % METHODS.len()] {
                        "session/load" | "session/resume" | "session/attach" | "session/detach"
                            if position != claiming =>
                        {
                            "session/prompt"
                        }
                        method => method,
                    };
                    let spelled = SPELLINGS[(usize::from(operation) / 12 + position) % 11];
                    let spelled = spelled.replace('#', &session);
                    let spelled = match method {
                        "session/new" | "session/list" | "other" => r#""x":1"#.to_owned(),
                        _ => spelled,
                    };
                    // The response to `initialize` goes to all clients.
                    let key = if method == "initialize" {
                        "any"
                    } else {
                        "client"
                    };
                    let id = IDS[b % 4];
                    let is_notification = (usize::from(operation) + 3 * position) % 5 == 0;
                    // An ambiguous notification gets an error response without an id.
                    let answered = if is_notification { "null" } else { id };
                    let expected = model.expected.entry(client).or_default();
                    expected.push(answered.to_owned());
                    let with_id = if is_notification {
                        String::new()
                    } else {
                        format!(r#""id":{id},"#)
                    };
                    messages.push(format!(
                        r#"{{ {with_id}"jsonrpc":"2.0","method":"{method}","params":{{"position":{position},"{key}":"{client}",{spelled},"_meta":{{"outrigger":{{"resumeToken":"{token}","watchToken":"{token}","takeover":{takes_over}}}}}}}}}"#
                    ));
                }
                let text = form.text(&messages);
                // A message that is not valid, or a batch that is not, gets an error without an id.
                let expected = model.expected.entry(client).or_default();
                expected.extend(["null".to_owned(), "null".to_owned()]);
                let before: HashMap<(usize, String), Option<ClientId>> = (0..27)
                    .map(|at| (at % 3, format!("s{}", at / 3)))
                    .map(|key| (key.clone(), router.owner_in(key.0, &key.1)))
                    .collect();
                model
                    .awaited
                    .offer(BatchSender::Client(client), form, &messages);
                router.handle_client_message(now, client, &text, &mut model);
                check_passed(
                    &router,
                    &mut model,
                    &before,
                    (&token, takes_over, claiming as u64),
                );
                check_attached(&router, &mut model, &token);
                check_updates(&router, &mut model);
                // The agent has the session, so the router has answered itself.
                let own =
                    (0..3).find(|process| router.owner_in(*process, &claimed) == Some(client));
                model.note_token(own.unwrap_or_default(), &claimed, false);
            }
            (4, Some(client)) => {
                let text = format!(
                    r#"{{"jsonrpc":"2.0","method":"$/cancel_request","params":{{"requestId":{id}}}}}"#
                );
                router.handle_client_message(now, client, &text, &mut model);
            }
            (5, Some(client)) => {
                let asked = model.agent_requests.get(&present[b % present.len()]);
                let mut asked = asked.into_iter().flatten().rev();
                let form = Form::of(operation, b);
                let messages: Vec<_> = (0..form.count)
                    .map(|_| asked.next().cloned().unwrap_or_else(|| a.to_string()))
                    .map(|id| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#))
                    .collect();
                let text = form.text(&messages);
                let expected = model.expected.entry(client).or_default();
                expected.push("null".to_owned());
                model
                    .awaited
                    .offer(BatchSender::Client(client), form, &messages);
                router.handle_client_message(now, client, &text, &mut model);
            }
            (6, Some(client)) if b % 3 == 1 => {
                // Its connection is cut, or comes back.
                if b % 2 == 0 {
                    model.away.insert(client);
                } else {
                    model.away.remove(&client);
                }
            }
            (6, Some(_)) if b % 3 == 2 && upgrades => {
                router = continued(&router, limits);
                model.batches = restored(&model.batches);
            }
            (6, Some(client)) if b % 3 == 0 => {
                present.retain(|other| *other != client);
                router.handle_disconnected(now, client, &mut model);
                model.forget_batches(BatchSender::Client(client));
                check_updates(&router, &mut model);
                model.expected.remove(&client);
                model.agent_requests.remove(&client);
                model.closed.remove(&client);
            }
            (7 | 8, _) if !model.agent_has.is_empty() => {
                // The agent answers in any order, sometimes twice.
                let at = a % model.agent_has.len();
                let Sent {
                    process,
                    upstream_id,
                    client,
                    method,
                    session: named,
                    version,
                } = model.agent_has[at].clone();
                if b % 8 > 0 {
                    model.agent_has.remove(at);
                }
                let receiver =
                    client.map_or_else(|| "null".to_owned(), |client| format!("\"{client}\""));
                sessions += 1;
                let name = format!("s{}", sessions % 9);
                let success = b % 5 != 0;
                let text = if !success {
                    format!(
                        r#"{{"jsonrpc":"2.0","id":{upstream_id},"error":{{"code":1,"message":"no"}}}}"#
                    )
                } else if client.is_none() {
                    format!(
                        r#"{{"jsonrpc":"2.0","id":{upstream_id},"result":{{"protocolVersion":{},"agentCapabilities":{{}}}}}}"#,
                        version.min(2)
                    )
                } else {
                    format!(
                        r#"{{"jsonrpc":"2.0","id":{upstream_id},"result":{{"for":{receiver},"sessionId":"{name}","sessions":[{{"sessionId":"s1"}}]}}}}"#
                    )
                };
                let form = match operation % 7 {
                    0 => Form::SINGLE,
                    _ => Form::of(operation, b),
                };
                let mut messages = vec![text];
                while messages.len() < form.count
                    && let Some(at) = model
                        .agent_has
                        .iter()
                        .position(|sent| sent.process == process && sent.upstream_id != upstream_id)
                {
                    // The others fail.
                    let id = model.agent_has.remove(at).upstream_id;
                    messages.push(format!(
                        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":1,"message":"no"}}}}"#
                    ));
                }
                let text = form.text(&messages);
                let answers = model.answers;
                model.sender = Some(process);
                model.lists = method == "session/list";
                if operation % 7 == 0 {
                    let recovered = IdRecovery::of(text.as_bytes());
                    router.handle_unreadable(now, process, recovered, "is too long", &mut model);
                } else {
                    model
                        .awaited
                        .offer(BatchSender::Process(process), form, &messages);
                    router.handle_agent_message(now, process, &text, &mut model);
                }
                model.sender = None;
                check_listed(&router, &mut model, process);
                let creates = matches!(&*method, "session/new" | "session/fork");
                // Its client has left, or the request has timed out.
                let is_late = model.answers == answers;
                let opened = if creates { Some(&name) } else { named.as_ref() };
                if is_late
                    && success
                    && let Some(opened) = opened
                {
                    // The session may belong to the principal of that client. No client has its token.
                    let key = (process, opened.clone());
                    if creates {
                        model.owners.remove(&key);
                    }
                    model.hidden.insert(key);
                }
                model.note_token(
                    process,
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
                let form = Form::of(operation, a / 60 + b);
                let mut messages = Vec::new();
                for position in 0..form.count {
                    let (a, b) = (a + 11 * position, b + 7 * position);
                    let method = AGENT_METHODS[a % AGENT_METHODS.len()];
                    let id = match b % 2 {
                        0 => format!("\"id\":{},", IDS[b / 2 % 4]),
                        _ => String::new(),
                    };
                    let named = AGENT_SPELLINGS[a / 5 % 12].replace('#', &format!("s{}", b % 6));
                    let named = named.replace('@', &format!("s{}", b / 6 % 6));
                    messages.push(format!(
                        r#"{{"jsonrpc":"2.0",{id}"method":"{method}","params":{{{named}}}}}"#
                    ));
                }
                let text = form.text(&messages);
                let process = b / 36 % 3;
                model.sender = Some(process);
                model
                    .awaited
                    .offer(BatchSender::Process(process), form, &messages);
                router.handle_agent_message(now, process, &text, &mut model);
                model.sender = None;
                check_updates(&router, &mut model);
            }
            (10, _) if b % 9 == 0 => {
                let process = a % 3;
                router.handle_agent_exited(process, r#"{"code":1,"signal":null}"#, &mut model);
                model.agent_has.retain(|sent| sent.process != process);
                model.forget_batches(BatchSender::Process(process));
                assert!(!router.has_requests(process));
                router.handle_agent_started(now, process, &mut model);
                check_updates(&router, &mut model);
            }
            (11, _) => {
                // The agent invents a response.
                let text = format!(
                    r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#,
                    1_000_000 + a
                );
                router.handle_agent_message(now, b % 3, &text, &mut model);
                router.handle_timeout(now, &mut model);
            }
            _ => {}
        }
        model.awaited.withdraw();
        // A map may have another order after an upgrade.
        model.agent_has.sort_by_key(Sent::position);
        sent.push(model.take_sent());
        for change in router.take_process_changes() {
            match change {
                ProcessChange::Start(process) => {
                    router.handle_agent_started(now, process, &mut model)
                }
                ProcessChange::Stop(process) => {
                    model.agent_has.retain(|sent| sent.process != process);
                    model.forget_batches(BatchSender::Process(process));
                    router.handle_stopped();
                }
                // This agent gets every line at once, and answers later.
                ProcessChange::Discard(_) => {}
            }
        }
        router.take_notices();
        for (process, session) in (0..27).map(|at| (at % 3, format!("s{}", at / 3))) {
            if let Some(client) = router.owner_in(process, &session) {
                model.controlled.insert((client, process, session));
            }
        }
        model.passed.clear();
        model.tokens.clear();
        router.clients(&mut |client| {
            assert!(present.contains(&client), "state of {client} is left");
        });
        assert!(
            router.figures().client_requests <= 6 * present.len()
                && router.figures().agent_requests <= 3 * present.len()
                && router.figures().sessions <= limits.all_sessions
                && router.figures().ended_sessions <= limits.ended_sessions
        );
    }
    // The agent answers everything. Then nothing of a batch is unanswered.
    while let Some(sent) = model.agent_has.pop() {
        let id = sent.upstream_id;
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":1,"message":"no"}}}}"#);
        router.handle_agent_message(now, sent.process, &text, &mut model);
    }
    for client in &present {
        let unanswered = model.awaited.of(BatchSender::Client(*client));
        assert!(
            unanswered.is_empty() || model.closed.contains(client),
            "{client} waits for {unanswered:?}"
        );
    }
    for client in present {
        router.handle_disconnected(now, client, &mut model);
    }
    router.handle_timeout(now + grace, &mut model);
    assert_eq!(model.batches.held(), 0);
    for process in 0..3 {
        let unanswered = model.awaited.of(BatchSender::Process(process));
        assert!(unanswered.is_empty(), "{process} waits for {unanswered:?}");
    }
    let tables = (
        router.figures().client_requests,
        router.figures().agent_requests,
        router.figures().sessions,
    );
    assert_eq!(
        tables,
        (0, 0, 0),
        "tables are empty when all clients have disconnected"
    );
    sent.push(model.take_sent());
    sent
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    #[test]
    fn random_operations_keep_every_message_with_its_owner() {
        let mut random = Random::new(7);
        for _ in 0..rounds(2000) {
            router(&random.bytes(1500));
        }
    }
}
