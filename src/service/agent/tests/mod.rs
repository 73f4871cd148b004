//! Tests of the router with simulated clients, a simulated agent and a simulated clock.

mod batches;
mod claims;
mod creation;
mod histories;
mod initialize;
mod limits;
mod observers;
mod ownership;
mod places;
mod processes;
mod references;
mod requests;
mod separation;
mod table;
mod turns;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::router::{
    BatchSender, Batches, ProcessChange, Router, RouterOutput, RouterSettings, Viewer,
};
use super::{Approvals, UnknownSessions};
use crate::service::agent::AgentProtocol;
use crate::{ClientId, CloseCode, Principal, Scope, Time};

/// Records the messages that the router sends.
#[derive(Debug, Default)]
pub(super) struct RecordedOutput {
    pub(super) agent: Vec<String>,
    pub(super) clients: BTreeMap<ClientId, Vec<String>>,
    pub(super) closed: Vec<(ClientId, CloseCode)>,
    /// The processes that got the lines of `agent`.
    pub(super) receivers: Vec<usize>,
    /// The clients whose tokens permit observing only.
    pub(super) watchers: Vec<ClientId>,
    /// The clients that are away.
    pub(super) away: Vec<ClientId>,
    /// The maximum length of a client's message. 0 is no limit.
    pub(super) max_json: usize,
    /// The number of messages for clients. One for several clients counts once.
    pub(super) messages: usize,
    secrets: u64,
    batches: Batches,
}

impl RouterOutput for RecordedOutput {
    fn initialize_agent(&mut self, process: usize, parts: &[&str]) {
        self.to_agent(process, parts);
    }

    fn to_agent(&mut self, process: usize, parts: &[&str]) {
        let collected = self.batches.collect(BatchSender::Process(process), parts);
        if let Some(text) = collected.into_text(parts) {
            self.agent.push(text);
            self.receivers.push(process);
        }
    }

    fn to_client(&mut self, client: ClientId, parts: &[&str]) {
        let collected = self.batches.collect(BatchSender::Client(client), parts);
        if let Some(text) = collected.into_text(parts) {
            self.messages += 1;
            self.clients.entry(client).or_default().push(text);
        }
    }

    fn to_clients(&mut self, clients: &[ClientId], text: &str) {
        self.messages += 1;
        for client in clients {
            let received = self.clients.entry(*client).or_default();
            received.push(text.to_owned());
        }
    }

    fn is_long_json(&self, length: usize) -> bool {
        self.max_json > 0 && length > self.max_json
    }

    fn close(&mut self, client: ClientId, code: CloseCode, _: &str) {
        self.closed.push((client, code));
    }

    fn secret(&mut self) -> String {
        self.secrets += 1;
        format!("secret-{}", self.secrets)
    }

    fn is_away(&self, client: ClientId) -> bool {
        self.away.contains(&client)
    }

    fn scope(&self, client: ClientId) -> Scope {
        if self.watchers.contains(&client) {
            Scope::Watch
        } else {
            Scope::All
        }
    }

    fn is_resumable(&self, _: ClientId) -> bool {
        false
    }

    fn batches(&mut self) -> &mut Batches {
        &mut self.batches
    }
}

/// A router with its output and its clock.
struct Simulation {
    router: Router,
    output: RecordedOutput,
    now: Time,
}

const GRACE: Duration = Duration::from_secs(300);
const INITIALIZE_TIMEOUT: Duration = Duration::from_secs(30);

fn client(number: u64) -> ClientId {
    format!("c{number}").parse().expect("an id")
}

impl Simulation {
    fn new() -> Self {
        let limits = RouterSettings {
            client_requests: 16,
            sessions: 8,
            all_sessions: 20,
            ended_sessions: 30,
            agent_requests: 8,
            protocol: AgentProtocol::Acp,
            grace: Some(GRACE),
            processes: 3,
            is_one_process: false,
            initialize_timeout: Some(INITIALIZE_TIMEOUT),
            approvals: Approvals::Owner,
            history: 4 << 10,
            unknown_sessions: UnknownSessions::Allow,
            request_timeout: None,
            answer_timeout: None,
        };
        Self::with_limits(limits)
    }

    fn with_limits(limits: RouterSettings) -> Self {
        Self {
            router: Router::new(limits),
            output: RecordedOutput::default(),
            now: Time::from_millis(1000),
        }
    }

    /// A simulation with an agent of another protocol and connected clients 1 to `clients`.
    fn jsonrpc(clients: u64) -> Self {
        let mut limits = Self::new().router.settings();
        limits.protocol = AgentProtocol::JsonRpc;
        let mut sim = Self::with_limits(limits);
        (1..=clients).for_each(|number| sim.connect(number));
        sim
    }

    /// A simulation with the initialized clients 1 to `clients`.
    fn with(clients: u64) -> Self {
        let mut sim = Self::new();
        for number in 1..=clients {
            sim.connect(number);
            sim.client_sends(
                number,
                &request(
                    "\"init\"",
                    "initialize",
                    &json!({"clientCapabilities": {"fs": {"readTextFile": true}}}),
                ),
            );
            if number == 1 {
                sim.agent_answers(
                    &json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}),
                );
            }
        }
        sim.clear();
        sim
    }

    /// Connects a client that has shown the server's token.
    fn connect(&mut self, number: u64) {
        self.connect_as(number, Principal::Token);
    }

    fn connect_as(&mut self, number: u64, principal: Principal) {
        self.router
            .handle_connected(client(number), principal, true);
    }

    /// Connects and initializes a client.
    fn join_as(&mut self, number: u64, principal: Principal) {
        self.connect_as(number, principal);
        self.hello(number, &json!({}));
    }

    /// A client sends `initialize`. If it is the first one of its kind, its process starts and answers.
    fn hello(&mut self, number: u64, params: &Value) {
        let before = self.output.agent.len();
        self.client_sends(number, &request("0", "initialize", params));
        self.start_processes();
        if self.output.agent.len() > before {
            let version = params["protocolVersion"].as_u64().unwrap_or(1);
            self.agent_answers(&if version == 2 {
                json!({"protocolVersion": 2, "capabilities": {"session": {}}})
            } else {
                json!({"protocolVersion": version, "agentCapabilities": {"loadSession": true}})
            });
        }
    }

    /// Starts the processes that the router wants to have. Returns what it wants.
    fn start_processes(&mut self) -> Vec<ProcessChange> {
        let changes = self.router.take_process_changes();
        for change in &changes {
            match change {
                ProcessChange::Start(process) => {
                    self.router
                        .handle_agent_started(self.now, *process, &mut self.output);
                }
                ProcessChange::Stop(_) => self.router.handle_stopped(),
                ProcessChange::Discard(_) => {}
            }
        }
        changes
    }

    fn disconnect(&mut self, number: u64) {
        self.router
            .handle_disconnected(self.now, client(number), &mut self.output);
    }

    fn client_sends(&mut self, number: u64, text: &str) {
        self.router
            .handle_client_message(self.now, client(number), text, &mut self.output);
    }

    fn agent_sends(&mut self, text: &str) {
        self.process_sends(0, text);
    }

    fn process_sends(&mut self, process: usize, text: &str) {
        self.router
            .handle_agent_message(self.now, process, text, &mut self.output);
    }

    /// The agent answers the last line that it received.
    fn agent_answers(&mut self, result: &Value) {
        let id = self.agent_received()["id"].clone();
        let process = *self.output.receivers.last().expect("a receiver");
        self.process_sends(
            process,
            &json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string(),
        );
    }

    /// The last line that the agent received.
    fn agent_received(&self) -> Value {
        serde_json::from_str(self.output.agent.last().expect("the agent received a line"))
            .expect("JSON")
    }

    /// The last message that a client received.
    fn client_received(&self, number: u64) -> Value {
        let messages = self.output.clients.get(&client(number));
        serde_json::from_str(messages.and_then(|all| all.last()).expect("a message")).expect("JSON")
    }

    fn clear(&mut self) {
        self.output.agent.clear();
        self.output.receivers.clear();
        self.output.clients.clear();
    }

    /// Creates a session for a client and returns its token.
    fn session(&mut self, number: u64, name: &str) -> String {
        self.client_sends(number, &request("1", "session/new", &json!({})));
        self.agent_answers(&json!({"sessionId": name}));
        self.token(number)
    }

    fn token(&self, number: u64) -> String {
        let answer = self.client_received(number);
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

/// The methods of clients that can name a session.
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

/// The methods of the agent that can name a session.
const AGENT_METHODS: [&str; 6] = [
    "session/update",
    "session/request_permission",
    "fs/read_text_file",
    "terminal/create",
    "elicitation/create",
    "_vendor/anything",
];

/// A request that claims a session, with or without a token.
fn claim(id: &str, method: &str, session: &str, token: Option<&str>) -> String {
    let params = json!({"sessionId": session, "_meta": {"outrigger": {"resumeToken": token}}});
    request(id, method, &params)
}

/// The states of a session before another client claims it.
const STATES: [&str; 9] = [
    "live",
    "detached",
    "gone",
    "gone, grace over",
    "gone, no grace",
    "closed",
    "lost",
    "lost and gone",
    "never seen",
];

/// A simulation in which client 1 created the session "s", which is now in this state. Also returns the session's token.
fn sim_with_session(state: &str, owner: Principal) -> (Simulation, String) {
    let mut limits = Simulation::new().router.settings();
    if state == "gone, no grace" {
        limits.grace = None;
    }
    let mut sim = Simulation::with_limits(limits);
    sim.connect_as(1, owner);
    sim.client_sends(1, &request("0", "initialize", &json!({})));
    sim.agent_answers(&json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}));
    if state == "never seen" {
        return (sim, "none".to_owned());
    }
    let token = sim.session(1, "s");
    if state.starts_with("lost") {
        sim.router.handle_agent_exited(0, "{}", &mut sim.output);
        sim.router.handle_agent_started(sim.now, 0, &mut sim.output);
        sim.agent_answers(&json!({"protocolVersion": 1}));
    }
    match state {
        "live" | "lost" => {}
        "detached" => sim.output.away.push(client(1)),
        "closed" => {
            sim.client_sends(
                1,
                &request("8", "session/close", &json!({"sessionId": "s"})),
            );
            sim.agent_answers(&json!({}));
        }
        _ => sim.disconnect(1),
    }
    if state == "gone, grace over" {
        sim.now = sim.now + GRACE + Duration::from_secs(1);
        sim.router.handle_timeout(sim.now, &mut sim.output);
        assert_eq!(sim.router.figures().sessions, 0);
    }
    (sim, token)
}

/// A client that only watches.
fn viewer(client: ClientId, principal: Principal, owner: Option<&Principal>) -> Viewer<'_> {
    Viewer {
        client,
        principal,
        owner,
        may_answer: false,
    }
}

fn named(name: &str) -> Principal {
    Principal::Named(name.into())
}
