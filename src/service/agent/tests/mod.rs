//! The router, with clients and an agent that are lines in memory.

mod routing;
mod sessions;

use serde_json::{Value, json};

use super::router::{Router, RouterLimits, Wires};
use crate::{ClientId, CloseCode, Principal, Time};
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
            ended_sessions: 30,
            asked: 8,
            acp: true,
            grace: Some(GRACE),
        };
        Self::with_limits(limits)
    }

    fn with_limits(limits: RouterLimits) -> Self {
        Self {
            router: Router::new(limits),
            record: Record::default(),
            now: Time::from_millis(1000),
        }
    }

    /// A world whose agent speaks another protocol, in which these clients are connected.
    fn jsonrpc(clients: u64) -> Self {
        let mut limits = Self::new().router.limits();
        limits.acp = false;
        let mut world = Self::with_limits(limits);
        (1..=clients).for_each(|number| world.connect(number));
        world
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

    /// A client that holds the token.
    fn connect(&mut self, number: u64) {
        self.connect_as(number, Principal::Token);
    }

    fn connect_as(&mut self, number: u64, principal: Principal) {
        self.router.handle_connected(client(number), principal);
    }

    /// A client of this principal that is initialized, as the first one was.
    fn join_as(&mut self, number: u64, principal: Principal) {
        self.connect_as(number, principal);
        self.say(number, &request("0", "initialize", &json!({})));
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
