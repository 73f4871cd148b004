//! The router, with clients and an agent that are lines in memory.

use serde_json::{Value, json};

use super::router::{Router, RouterLimits, Wires};
use crate::{ClientId, CloseCode, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// Writes down what goes where.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) agent: Vec<String>,
    pub(super) clients: BTreeMap<ClientId, Vec<String>>,
    pub(super) closed: Vec<(ClientId, CloseCode)>,
    secrets: u64,
}

impl Wires for Record {
    fn initialize_agent(&mut self, parts: &[&str]) {
        self.agent.push(parts.concat());
    }

    fn to_agent(&mut self, parts: &[&str]) {
        self.agent.push(parts.concat());
    }

    fn to_client(&mut self, client: ClientId, parts: &[&str]) {
        self.clients.entry(client).or_default().push(parts.concat());
    }

    fn close(&mut self, client: ClientId, code: CloseCode, _: &str) {
        self.closed.push((client, code));
    }

    fn secret(&mut self) -> String {
        self.secrets += 1;
        format!("secret-{}", self.secrets)
    }
}

/// A router with its surroundings.
struct World {
    router: Router,
    record: Record,
    now: Time,
}

const GRACE: Duration = Duration::from_secs(300);

fn client(number: u64) -> ClientId {
    format!("c{number}").parse().expect("an id")
}

impl World {
    fn new() -> Self {
        let limits = RouterLimits {
            waiting: 16,
            sessions: 8,
            all_sessions: 20,
            asked: 8,
            acp: true,
            grace: Some(GRACE),
        };
        Self {
            router: Router::new(limits),
            record: Record::default(),
            now: Time::from_millis(1000),
        }
    }

    /// A world in which these clients are connected and initialized.
    fn with(clients: u64) -> Self {
        let mut world = Self::new();
        for number in 1..=clients {
            world.connect(number);
            world.say(
                number,
                &request(
                    "\"init\"",
                    "initialize",
                    &json!({"clientCapabilities": {"fs": {"readTextFile": true}}}),
                ),
            );
            if number == 1 {
                world.answer(
                    &json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}),
                );
            }
        }
        world.forget();
        world
    }

    fn connect(&mut self, number: u64) {
        self.router.handle_connected(client(number));
    }

    fn leave(&mut self, number: u64) {
        self.router
            .handle_disconnected(self.now, client(number), &mut self.record);
    }

    fn say(&mut self, number: u64, text: &str) {
        self.router
            .receive_from_client(self.now, client(number), text, &mut self.record);
    }

    fn agent_says(&mut self, text: &str) {
        self.router
            .receive_from_agent(self.now, text, &mut self.record);
    }

    /// The agent answers the last line it got.
    fn answer(&mut self, result: &Value) {
        let id = self.agent_heard()["id"].clone();
        self.agent_says(&json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string());
    }

    /// The last line the agent got.
    fn agent_heard(&self) -> Value {
        serde_json::from_str(self.record.agent.last().expect("the agent got a line")).expect("JSON")
    }

    /// The last message a client got.
    fn heard(&self, number: u64) -> Value {
        let messages = self.record.clients.get(&client(number));
        serde_json::from_str(messages.and_then(|all| all.last()).expect("a message")).expect("JSON")
    }

    fn forget(&mut self) {
        self.record.agent.clear();
        self.record.clients.clear();
    }

    /// A session of a client's, and its token.
    fn session(&mut self, number: u64, name: &str) -> String {
        self.say(number, &request("1", "session/new", &json!({})));
        self.answer(&json!({"sessionId": name}));
        self.token(number)
    }

    fn token(&self, number: u64) -> String {
        let answer = self.heard(number);
        answer["result"]["_meta"]["outrigger"]["resumeToken"]
            .as_str()
            .expect("a token")
            .to_owned()
    }
}

fn request(id: &str, method: &str, params: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

fn notification(method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()
}

fn code(message: &Value) -> i64 {
    message["error"]["code"].as_i64().unwrap_or_default()
}

#[test]
fn initialize_reaches_the_agent_once() {
    let mut world = World::new();
    for number in 1..=3 {
        world.connect(number);
        world.say(
            number,
            &request(&format!("\"i{number}\""), "initialize", &json!({"a": 1})),
        );
    }
    assert_eq!(world.record.agent.len(), 1);
    world.agent_says(r#"{"id":1, "jsonrpc":"2.0","result":{"protocolVersion" : 1.0}}"#);
    world.connect(4);
    world.say(4, &request("null", "initialize", &json!({})));
    assert_eq!(
        world.record.agent.len(),
        1,
        "later clients are answered from the first answer"
    );
    assert_eq!(
        world.record.clients[&client(2)],
        [r#"{"id":"i2", "jsonrpc":"2.0","result":{"protocolVersion" : 1.0}}"#]
    );
    let late = r#"{"jsonrpc":"2.0","id":null,"result":{"protocolVersion" : 1.0}}"#;
    assert_eq!(world.record.clients[&client(4)], [late]);
}

#[test]
fn an_agent_that_says_no_to_initialize_is_asked_again() {
    let mut world = World::new();
    world.connect(1);
    world.say(1, &request("7", "initialize", &json!({})));
    world.agent_says(
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no","data":{"why":"busy"}}}"#,
    );
    assert_eq!(
        world.heard(1)["error"]["data"]["why"],
        "busy",
        "errors keep their data"
    );
    world.say(1, &request("8", "initialize", &json!({})));
    assert_eq!(world.record.agent.len(), 2);
}

#[test]
fn a_first_message_that_is_not_initialize_closes() {
    for text in [
        request("1", "session/new", &json!({})),
        notification("x", &json!({})),
    ] {
        let mut world = World::new();
        world.connect(1);
        world.say(1, &text);
        assert_eq!(world.record.closed, [(client(1), CloseCode::PROTOCOL)]);
        assert!(world.record.agent.is_empty());
    }
}

#[test]
fn bad_input_is_answered_and_reaches_nobody() {
    let mut world = World::with(1);
    for (text, want, id) in [
        ("nonsense", -32700, json!(null)),
        ("[]", -32600, json!(null)),
        ("7", -32600, json!(null)),
        (r#"{"jsonrpc":"2.0","id":3}"#, -32600, json!(3)),
        (
            r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#,
            -32600,
            json!(null),
        ),
    ] {
        world.say(1, text);
        let heard = world.heard(1);
        assert_eq!((code(&heard), &heard["id"]), (want, &id), "{text}");
        assert!(
            heard["error"].get("data").is_some(),
            "errors always have data"
        );
    }
    assert!(world.record.agent.is_empty());
    world.say(
        1,
        &request(&format!("\"{}\"", "x".repeat(1030)), "x", &json!({})),
    );
    assert_eq!(world.record.closed, [(client(1), CloseCode::POLICY)]);
}

#[test]
fn ids_come_back_byte_for_byte_and_never_meet() {
    let mut world = World::with(3);
    let ids = [
        "1",
        "\"1\"",
        "1.0",
        "1e0",
        "null",
        "\"\\u0031\"",
        "-7",
        "\"\"",
    ];
    let mut sent = Vec::new();
    for number in 1..=3 {
        for id in ids {
            world.say(number, &request(id, "authenticate", &json!({"x": number})));
            sent.push((
                number,
                id,
                world.agent_heard()["id"]
                    .as_u64()
                    .expect("ours is a number"),
            ));
        }
    }
    let mut ours: Vec<u64> = sent.iter().map(|(.., ours)| *ours).collect();
    ours.sort_unstable();
    ours.dedup();
    assert_eq!(ours.len(), 24, "ours are all different");
    for (number, id, ours) in sent.iter().rev() {
        world.agent_says(&format!(
            r#"{{ "jsonrpc":"2.0","result":[1.50, "é"],"id":{ours} }}"#
        ));
        let got = world.record.clients[&client(*number)]
            .last()
            .expect("an answer");
        assert_eq!(
            got,
            &format!(r#"{{ "jsonrpc":"2.0","result":[1.50, "é"],"id":{id} }}"#)
        );
    }
    let before = world.record.clients.clone();
    for ours in ours {
        world.agent_says(&format!(r#"{{"jsonrpc":"2.0","result":0,"id":{ours}}}"#));
        world.agent_says(&format!(r#"{{"jsonrpc":"2.0","result":0,"id":"{ours}"}}"#));
    }
    assert_eq!(
        world.record.clients, before,
        "a second answer is dropped, and so is one under a string"
    );
    assert_eq!(world.router.waiting_count(), 0);
}

/// Every method of the protocol that can name a session, from a client.
const CLIENT_METHODS: [&str; 10] = [
    "session/prompt",
    "session/cancel",
    "session/set_mode",
    "session/set_config_option",
    "session/close",
    "session/delete",
    "session/fork",
    "session/load",
    "session/resume",
    "_vendor/anything",
];

/// And from the agent.
const AGENT_METHODS: [&str; 6] = [
    "session/update",
    "session/request_permission",
    "fs/read_text_file",
    "terminal/create",
    "elicitation/create",
    "_vendor/anything",
];

#[test]
fn strangers_reach_no_session_by_any_method() {
    for method in CLIENT_METHODS {
        for role in ["owner", "stranger", "nobody's", "left", "resumed"] {
            let mut world = World::with(2);
            let token = world.session(1, "s");
            let (who, session) = match role {
                "owner" => (1, "s"),
                "stranger" => (2, "s"),
                "nobody's" => (2, "other"),
                "left" => {
                    world.leave(1);
                    (2, "s")
                }
                _ => {
                    let params =
                        json!({"sessionId": "s", "_meta": {"outrigger": {"resumeToken": token}}});
                    world.say(2, &request("5", "session/resume", &params));
                    (2, "s")
                }
            };
            world.forget();
            let claims = matches!(method, "session/load" | "session/resume");
            let allowed = matches!(role, "owner" | "resumed") || (role == "nobody's" && claims);
            let local = method == "session/resume" && role != "nobody's";

            world.say(who, &notification(method, &json!({"sessionId": session})));
            let named = role == "owner" || role == "resumed";
            assert_eq!(
                world.record.agent.len(),
                usize::from(named),
                "{role} notifies {method}"
            );
            assert!(
                world.record.clients.is_empty(),
                "a notification has no answer"
            );

            world.forget();
            world.say(who, &request("9", method, &json!({"sessionId": session})));
            assert_eq!(
                world.record.agent.len(),
                usize::from(allowed && !local),
                "{role} asks {method}"
            );
            if !allowed {
                let heard = world.heard(who);
                assert_eq!(
                    (code(&heard), &heard["error"]["message"]),
                    (-32010, &json!("Access denied")),
                    "{role} {method}"
                );
            }
            // The one who had it before it was resumed is a stranger now.
            if role == "resumed" {
                world.say(1, &request("9", method, &json!({"sessionId": session})));
                assert_eq!(code(&world.heard(1)), -32010, "{method}");
            }
        }
    }
}

#[test]
fn what_the_agent_says_reaches_the_owner_and_no_one_else() {
    for method in AGENT_METHODS {
        let mut world = World::with(3);
        world.session(1, "a");
        world.session(2, "b");
        world.forget();
        world.agent_says(&notification(method, &json!({"sessionId": "b", "x": 1})));
        assert_eq!(
            world.record.clients.keys().copied().collect::<Vec<_>>(),
            [client(2)],
            "{method}"
        );
        world.agent_says(&notification(method, &json!({"sessionId": "nobody's"})));
        world.agent_says(&notification(method, &json!({})));
        assert_eq!(world.record.clients[&client(2)].len(), 1);

        // A request gets an id of ours, and its answer counts only from the one who was asked.
        world.forget();
        world.agent_says(&request("\"r\"", method, &json!({"sessionId": "b"})));
        if matches!(method, "terminal/create" | "elicitation/create") {
            assert_eq!(
                code(&world.agent_heard()),
                -32601,
                "the client has not announced {method}"
            );
            assert!(world.record.clients.is_empty());
            continue;
        }
        let asked = world.heard(2)["id"].clone();
        let answer = json!({"jsonrpc": "2.0", "id": asked, "result": {"ok": 1}}).to_string();
        world.say(1, &answer);
        world.say(3, &answer);
        assert!(
            world.record.agent.is_empty(),
            "strangers cannot answer {method}"
        );
        world.say(2, &answer);
        assert_eq!(
            world.agent_heard(),
            json!({"jsonrpc": "2.0", "id": "r", "result": {"ok": 1}})
        );
        world.say(2, &answer);
        assert_eq!(world.record.agent.len(), 1, "and it can be answered once");
    }
}

#[test]
fn a_client_that_leaves_takes_everything_with_it() {
    let mut world = World::with(2);
    world.session(1, "s");
    world.session(1, "idle");
    world.session(2, "t");
    world.say(
        1,
        &request("5", "session/prompt", &json!({"sessionId": "s"})),
    );
    let prompt = world.agent_heard()["id"].clone();
    world.agent_says(&request(
        "100",
        "session/request_permission",
        &json!({"sessionId": "s"}),
    ));
    world.agent_says(&request(
        "101",
        "fs/read_text_file",
        &json!({"sessionId": "s"}),
    ));
    world.forget();
    world.leave(1);
    let lines: Vec<Value> = world
        .record
        .agent
        .iter()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines.contains(
        &json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}})
    ));
    assert!(lines.contains(
        &json!({"jsonrpc": "2.0", "id": 100, "result": {"outcome": {"outcome": "cancelled"}}})
    ));
    let gone = lines
        .iter()
        .find(|line| line["id"] == 101)
        .expect("an answer");
    assert_eq!(
        (code(gone), &gone["error"]["message"]),
        (-32800, &json!("Client disconnected"))
    );

    world.forget();
    world.agent_says(&json!({"jsonrpc": "2.0", "id": prompt, "result": {}}).to_string());
    world.agent_says(&notification("session/update", &json!({"sessionId": "s"})));
    world.agent_says(&request(
        "102",
        "session/request_permission",
        &json!({"sessionId": "s"}),
    ));
    assert!(world.record.clients.is_empty(), "nobody hears of it");
    assert_eq!(
        world.agent_heard()["result"]["outcome"]["outcome"],
        "cancelled",
        "and the agent does not wait"
    );
    assert_eq!(
        (world.router.waiting_count(), world.router.asked_count()),
        (0, 0)
    );
}

#[test]
fn a_token_moves_one_session_once_within_the_grace_time() {
    let mut world = World::with(4);
    let token = world.session(1, "s");
    let other = world.session(1, "keeps");
    assert_ne!(token, other);
    let resume = |token: &str| {
        request(
            "5",
            "session/load",
            &json!({"sessionId": "s", "_meta": {"outrigger": {"resumeToken": token}}}),
        )
    };
    world.leave(1);
    world.say(2, &resume("guess"));
    world.say(2, &resume(&other));
    world.say(2, &request("5", "session/load", &json!({"sessionId": "s"})));
    assert!(
        world.record.clients[&client(2)]
            .iter()
            .all(|text| text.contains("-32010"))
    );

    world.say(2, &resume(&token));
    // What comes before the answer is the new owner's already.
    world.agent_says(&notification("session/update", &json!({"sessionId": "s"})));
    assert_eq!(world.heard(2)["method"], "session/update");
    let id = world
        .record
        .agent
        .last()
        .and_then(|line| serde_json::from_str::<Value>(line).ok())
        .expect("JSON")["id"]
        .clone();
    world.agent_says(&json!({"jsonrpc": "2.0", "id": id, "result": null}).to_string());
    let fresh = world.token(2);
    assert_ne!(fresh, token);
    world.say(3, &resume(&token));
    assert_eq!(
        code(&world.heard(3)),
        -32010,
        "a used token is worth nothing"
    );

    world.leave(2);
    world.now = world.now + GRACE + Duration::from_secs(1);
    world.router.handle_timeout(world.now);
    assert_eq!(
        world.router.session_count(),
        0,
        "after the grace time all are released"
    );
    world.say(
        4,
        &request("5", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(code(&world.heard(4)), -32010);
}

#[test]
fn resuming_one_session_leaves_the_owners_others_alone() {
    let mut world = World::with(2);
    let token = world.session(1, "moves");
    world.session(1, "stays");
    world.say(
        2,
        &request(
            "5",
            "session/resume",
            &json!({"sessionId": "moves", "_meta": {"outrigger": {"resumeToken": token}}}),
        ),
    );
    assert!(world.heard(2)["result"]["_meta"]["outrigger"]["resumeToken"].is_string());
    world.forget();
    world.say(
        1,
        &request("6", "session/prompt", &json!({"sessionId": "stays"})),
    );
    assert_eq!(world.record.agent.len(), 1);
    world.say(
        1,
        &request("7", "session/prompt", &json!({"sessionId": "moves"})),
    );
    assert_eq!(code(&world.heard(1)), -32010);
}

#[test]
fn what_a_former_owner_has_running_is_stopped_when_its_session_moves() {
    let mut world = World::with(2);
    let token = world.session(1, "moves");
    world.say(
        1,
        &request("1", "session/prompt", &json!({"sessionId": "moves"})),
    );
    world.forget();
    let resume = json!({"sessionId": "moves", "_meta": {"outrigger": {"resumeToken": token}}});
    world.say(2, &request("5", "session/load", &resume));
    let heard: Vec<String> = world.record.agent.clone();
    assert!(
        heard[0].contains("session/cancel") && heard[1].contains("session/load"),
        "{heard:?}"
    );
}

#[test]
fn sessions_have_a_limit_for_each_client_and_for_all() {
    let mut world = World::with(4);
    let new = |id: u64| request(&id.to_string(), "session/new", &json!({}));
    // Those that are only asked for count.
    for id in 1..=8 {
        world.say(1, &new(id));
    }
    world.forget();
    world.say(1, &new(9));
    assert_eq!(code(&world.heard(1)), -32013, "8 are under way");
    world.leave(1);
    // Sessions that wait for an owner make room, the oldest first; those that have one do not.
    for (number, count) in [(2, 8), (3, 8), (4, 4)] {
        for at in 0..count {
            world.session(number, &format!("s{number}-{at}"));
        }
    }
    world.say(4, &new(100));
    assert_eq!(code(&world.heard(4)), -32013, "20 are there");
    world.leave(2);
    world.forget();
    world.session(4, "one more");
    assert_eq!(world.router.session_count(), 20);
}

#[test]
fn a_load_that_the_agent_refuses_changes_nothing() {
    let mut world = World::with(2);
    let token = world.session(1, "s");
    world.leave(1);
    let load = request(
        "5",
        "session/load",
        &json!({"sessionId": "s", "_meta": {"outrigger": {"resumeToken": token}}}),
    );
    world.say(2, &load);
    let id = world.agent_heard()["id"].clone();
    world.agent_says(
        &json!({"jsonrpc": "2.0", "id": id, "error": {"code": -1, "message": "not now"}})
            .to_string(),
    );
    assert_eq!(world.heard(2)["error"]["message"], "not now");
    world.say(
        2,
        &request("6", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(code(&world.heard(2)), -32010, "it is not bound");
    world.say(2, &load);
    world.answer(&json!({}));
    assert!(
        world.heard(2)["result"].is_object(),
        "and the token is still good"
    );
    // One that nobody had is nobody's again.
    world.say(
        2,
        &request("7", "session/load", &json!({"sessionId": "unknown"})),
    );
    world.leave(2);
    assert_eq!(
        world.router.session_count(),
        1,
        "only the session that was bound waits for its owner"
    );
}

#[test]
fn cancellations_name_the_other_sides_id() {
    let mut world = World::with(2);
    world.session(1, "s");
    world.say(
        1,
        &request("\"\\u0061\"", "session/prompt", &json!({"sessionId": "s"})),
    );
    let ours = world.agent_heard()["id"].clone();
    world.forget();
    world.say(
        2,
        &notification("$/cancel_request", &json!({"requestId": "a"})),
    );
    world.say(
        1,
        &notification("$/cancel_request", &json!({"requestId": "b"})),
    );
    assert!(
        world.record.agent.is_empty(),
        "another's request, or none, cannot be cancelled"
    );
    world.say(
        1,
        &notification("$/cancel_request", &json!({"requestId": "a"})),
    );
    assert_eq!(world.agent_heard()["params"]["requestId"], ours);

    world.agent_says(&request(
        "\"q\"",
        "session/request_permission",
        &json!({"sessionId": "s"}),
    ));
    let asked = world.heard(1)["id"].clone();
    world.agent_says(&notification(
        "$/cancel_request",
        &json!({"requestId": "q"}),
    ));
    assert_eq!(world.heard(1)["params"]["requestId"], asked);
}

#[test]
fn a_list_shows_only_ones_own_and_unowned_sessions() {
    let mut world = World::with(2);
    world.session(1, "mine");
    world.session(2, "theirs");
    world.say(1, &request("4", "session/list", &json!({})));
    let id = world.agent_heard()["id"].clone();
    let answer = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"sessions":[ {{"sessionId":"theirs"}}, {{"sessionId" : "mine","x":[1]}},{{"sessionId":"old"}}],"nextCursor":"c"}}}}"#
    );
    world.agent_says(&answer);
    let got = world.record.clients[&client(1)]
        .last()
        .expect("an answer")
        .clone();
    assert_eq!(
        got,
        r#"{"jsonrpc":"2.0","id":4,"result":{"sessions":[{"sessionId" : "mine","x":[1]},{"sessionId":"old"}],"nextCursor":"c"}}"#
    );
}

#[test]
fn a_session_that_is_closed_is_nobodys() {
    let mut world = World::with(1);
    world.session(1, "s");
    world.say(
        1,
        &request("4", "session/close", &json!({"sessionId": "s"})),
    );
    world.answer(&json!({}));
    assert_eq!(world.router.session_count(), 0);
    world.say(
        1,
        &request("5", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(
        code(&world.heard(1)),
        -32010,
        "a stale session is not used again"
    );
}

#[test]
fn an_agent_that_hands_out_another_clients_session_is_not_believed() {
    let mut world = World::with(2);
    world.session(1, "s");
    world.say(2, &request("1", "session/new", &json!({})));
    world.answer(&json!({"sessionId": "s"}));
    assert_eq!(code(&world.heard(2)), -32603);
    world.forget();
    world.agent_says(&notification("session/update", &json!({"sessionId": "s"})));
    assert_eq!(
        world.record.clients.keys().copied().collect::<Vec<_>>(),
        [client(1)]
    );
}

#[test]
fn the_agents_death_is_told_to_all_who_wait_and_the_new_one_is_initialized_alike() {
    let mut world = World::with(3);
    for number in 1..=3 {
        world.session(number, &format!("s{number}"));
        world.say(
            number,
            &request(
                "\"p\"",
                "session/prompt",
                &json!({"sessionId": format!("s{number}")}),
            ),
        );
    }
    world.forget();
    world
        .router
        .handle_agent_exited(r#"{"code":null,"signal":"SIGKILL"}"#, &mut world.record);
    for number in 1..=3 {
        let heard = world.heard(number);
        assert_eq!((code(&heard), &heard["id"]), (-32012, &json!("p")));
        assert_eq!(heard["error"]["data"]["signal"], "SIGKILL");
    }
    assert_eq!(
        (world.router.waiting_count(), world.router.asked_count()),
        (0, 0)
    );
    world.router.handle_agent_started(&mut world.record);
    let again = world.agent_heard();
    assert_eq!(again["method"], "initialize");
    assert_eq!(
        again["params"]["clientCapabilities"]["fs"]["readTextFile"], true,
        "with the same parameters"
    );
    world.answer(&json!({"protocolVersion": 1}));
    world.session(2, "new");
}

#[test]
fn one_client_cannot_fill_the_tables() {
    let mut world = World::with(2);
    world.session(1, "s");
    for _ in 0..16 {
        world.say(1, &request("1", "x", &json!({})));
    }
    assert_eq!(world.router.waiting_count(), 16);
    world.say(1, &request("1", "x", &json!({})));
    assert_eq!(code(&world.heard(1)), -32013);
    world.say(2, &request("1", "x", &json!({})));
    assert_eq!(world.router.waiting_count(), 17, "another is not held up");
    for id in 0..9 {
        world.agent_says(&request(
            &id.to_string(),
            "session/request_permission",
            &json!({"sessionId": "s"}),
        ));
    }
    assert_eq!(world.router.asked_count(), 8);
    assert_eq!(code(&world.agent_heard()), -32013);
    for name in 0..8 {
        world.say(2, &request("1", "session/new", &json!({})));
        world.answer(&json!({"sessionId": format!("n{name}")}));
    }
    world.say(2, &request("1", "session/new", &json!({})));
    assert_eq!(code(&world.heard(2)), -32013);
}

#[test]
fn a_token_fits_into_every_shape_of_result() {
    for (result, want) in [
        (
            r#"{"sessionId":"s"}"#,
            r#"{"_meta":{"outrigger":{"resumeToken":"T"}},"sessionId":"s"}"#,
        ),
        (
            r#"{"sessionId":"s","_meta":{ }}"#,
            r#"{"sessionId":"s","_meta":{"outrigger":{"resumeToken":"T"} }}"#,
        ),
        (
            r#"{"_meta":{"x":1},"sessionId":"s"}"#,
            r#"{"_meta":{"outrigger":{"resumeToken":"T"},"x":1},"sessionId":"s"}"#,
        ),
        (
            r#"{"_meta":null,"sessionId":"s"}"#,
            r#"{"_meta":{"outrigger":{"resumeToken":"T"}},"sessionId":"s"}"#,
        ),
        (
            r#"{"sessionId":"s","_meta":{"outrigger":7}}"#,
            r#"{"sessionId":"s","_meta":{"outrigger":{"resumeToken":"T"}}}"#,
        ),
    ] {
        let mut world = World::with(1);
        world.say(1, &request("1", "session/new", &json!({})));
        let id = world.agent_heard()["id"].clone();
        world.agent_says(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#
        ));
        let token = world.token(1);
        let got = world.record.clients[&client(1)]
            .last()
            .expect("an answer")
            .replace(&token, "T");
        assert_eq!(
            got,
            format!(r#"{{"jsonrpc":"2.0","id":1,"result":{want}}}"#)
        );
    }
}

/// A request for a session by its name, with or without a token.
fn claim(id: &str, method: &str, session: &str, token: Option<&str>) -> String {
    let params = json!({"sessionId": session, "_meta": {"outrigger": {"resumeToken": token}}});
    request(id, method, &params)
}

#[test]
fn a_late_answer_to_a_claim_touches_only_what_that_claim_has_bound() {
    // The bug: A's load was answered after A had closed the session and B had loaded it; A was given B's token.
    for success in [true, false] {
        let mut world = World::with(2);
        world.say(1, &claim("1", "session/load", "s", None));
        let slow = world.agent_heard()["id"].clone();
        world.say(
            1,
            &request("2", "session/close", &json!({"sessionId": "s"})),
        );
        world.answer(&json!({}));
        world.say(2, &claim("3", "session/load", "s", None));
        world.answer(&json!({}));
        let token = world.token(2);
        let answer = if success {
            json!({"jsonrpc": "2.0", "id": slow, "result": {}})
        } else {
            json!({"jsonrpc": "2.0", "id": slow, "error": {"code": 1, "message": "no"}})
        };
        world.agent_says(&answer.to_string());
        assert!(
            !world.record.clients[&client(1)]
                .iter()
                .any(|text| text.contains(&token))
        );
        assert_eq!(world.router.owner_of("s"), Some(client(2)));
    }
}

#[test]
fn a_session_that_the_agent_has_not_confirmed_cannot_be_squatted() {
    // The bug: `session/resume` was answered for the agent, whatever session it named.
    let mut world = World::with(2);
    world.say(2, &claim("1", "session/resume", "s9", None));
    assert_eq!(
        world.agent_heard()["method"],
        "session/resume",
        "the agent is asked"
    );
    let token = world.session(1, "s9");
    assert!(
        !token.is_empty(),
        "and a new session of that name is its creator's"
    );
    assert_eq!(world.router.owner_of("s9"), Some(client(1)));
}

#[test]
fn initialize_is_answered_even_if_it_was_asked_while_the_agent_was_away() {
    let mut world = World::new();
    world.connect(1);
    world.say(1, &request("1", "initialize", &json!({})));
    world.router.handle_agent_exited("{}", &mut world.record);
    assert_eq!(code(&world.heard(1)), -32012);
    world.say(1, &request("2", "initialize", &json!({})));
    world.say(1, &request("3", "initialize", &json!({})));
    assert_eq!(code(&world.heard(1)), -32600, "one at a time");
    world.router.handle_agent_started(&mut world.record);
    world.answer(&json!({"protocolVersion": 1}));
    assert_eq!(world.heard(1)["id"], 2);
}

#[test]
fn who_leaves_during_a_claim_of_its_own_session_can_come_back_and_nobody_else_can() {
    let mut world = World::with(2);
    world.session(1, "s");
    world.say(1, &claim("1", "session/load", "s", None));
    world.leave(1);
    world.say(2, &claim("1", "session/load", "s", None));
    assert_eq!(code(&world.heard(2)), -32010);
    assert!(world.router.take_left(), "the grace time is waited for");
}

#[test]
fn the_agents_death_gives_nobody_elses_session_away() {
    let mut world = World::with(2);
    world.session(1, "s");
    world.router.handle_agent_exited("{}", &mut world.record);
    world.router.handle_agent_started(&mut world.record);
    world.answer(&json!({"protocolVersion": 1}));
    world.say(2, &claim("1", "session/load", "s", None));
    assert_eq!(code(&world.heard(2)), -32010);
    world.say(
        1,
        &request("2", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(
        code(&world.heard(1)),
        -32010,
        "the new agent does not know it"
    );
    world.say(1, &claim("3", "session/load", "s", None));
    world.answer(&json!({}));
    world.forget();
    world.say(
        1,
        &request("4", "session/prompt", &json!({"sessionId": "s"})),
    );
    assert_eq!(world.agent_heard()["method"], "session/prompt");
}

#[test]
fn a_former_owner_that_leaves_does_not_stop_the_new_owners_prompt() {
    let mut world = World::with(2);
    let token = world.session(1, "s");
    world.say(
        1,
        &request("1", "session/prompt", &json!({"sessionId": "s"})),
    );
    world.agent_says(&request(
        "70",
        "session/request_permission",
        &json!({"sessionId": "s"}),
    ));
    world.say(2, &claim("1", "session/resume", "s", Some(&token)));
    assert_eq!(
        world.agent_heard()["result"]["outcome"]["outcome"],
        "cancelled",
        "what it was asked is answered"
    );
    world.forget();
    world.leave(1);
    assert!(world.record.agent.is_empty(), "{:?}", world.record.agent);
}

#[test]
fn a_session_that_comes_for_a_client_that_has_left_is_kept_from_others() {
    let mut world = World::with(2);
    world.session(1, "s");
    world.say(1, &request("1", "session/fork", &json!({"sessionId": "s"})));
    world.leave(1);
    let ours = world
        .record
        .agent
        .iter()
        .find(|line| line.contains("session/fork"))
        .cloned()
        .expect("asked");
    let id = serde_json::from_str::<Value>(&ours).expect("JSON")["id"].clone();
    world.agent_says(
        &json!({"jsonrpc": "2.0", "id": id, "result": {"sessionId": "fork"}}).to_string(),
    );
    world.say(2, &claim("1", "session/load", "fork", None));
    assert_eq!(code(&world.heard(2)), -32010);
}

#[test]
fn an_answer_that_is_no_message_is_answered_for() {
    let mut world = World::with(1);
    world.say(1, &request("\"a\"", "authenticate", &json!({})));
    let id = world.agent_heard()["id"].clone();
    world.agent_says(&format!(r#"{{"id":{id},"result":{{}}}}"#));
    assert_eq!(
        (code(&world.heard(1)), &world.heard(1)["id"]),
        (-32603, &json!("a"))
    );
    assert_eq!(world.router.waiting_count(), 0);
}
