//! Fuzzes what `connect` remembers of the sessions of the Agent Client Protocol, and how it opens them again on another connection.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::service::connect::restoration::{Progress, Restoration};
use crate::service::connect::sessions::Sessions;
use crate::service::jsonrpc::Envelope;

/// The first byte selects what follows: operations of a client and an agent, which a model follows, or any messages.
pub fn restoration(data: &[u8]) {
    match data.split_first() {
        Some((0..128, plan)) => operate(plan),
        Some((_, messages)) => read_any(messages),
        None => {}
    }
}

/// Messages of both sides, one a line. Whatever they are, a restoration sends well-formed requests and ends.
fn read_any(messages: &[u8]) {
    let mut sessions = Sessions::default();
    let text = String::from_utf8_lossy(messages);
    // None of them answers the restoration.
    let lines = || {
        let lines = text.lines();
        lines.filter(|line| !line.contains("restore") && !line.contains("\\u"))
    };
    for (at, line) in lines().enumerate() {
        let Ok(envelope) = Envelope::parse(line) else {
            continue;
        };
        match at % 2 {
            0 => sessions.handle_local(&envelope),
            _ => sessions.handle_remote(&envelope),
        }
    }
    sessions.handle_loss(|_| true);
    if !sessions.can_be_restored() {
        return;
    }
    let (mut restoration, mut request) = Restoration::begin(&sessions);
    // At most two requests for each session and one for each setting.
    for _ in 0..messages.len() + 2 {
        let envelope = Envelope::parse(&request).expect("a request");
        let id = envelope.id().expect("a request has an id").to_owned();
        for line in lines() {
            let progress = restoration.handle(&mut sessions, line);
            assert!(
                matches!(progress, Progress::Unrelated | Progress::Taken),
                "{line}: {progress:?}"
            );
        }
        let result = sessions.initialized().unwrap_or("{}");
        let response = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
        request = match restoration.handle(&mut sessions, &response) {
            Progress::Send(next) => next,
            Progress::Done(_) | Progress::Failed(_) => return,
            other => panic!("{response}: {other:?}"),
        };
    }
    panic!("the restoration does not end");
}

/// What a client has asked for and the agent has not answered.
#[derive(Clone, Debug)]
enum Asked {
    Initialize(Value),
    Open(Value, bool),
    Close(String),
    Set(String, Setting),
}

#[derive(Clone, Debug)]
struct Setting {
    method: &'static str,
    option: Option<String>,
    params: Value,
}

#[derive(Clone, Debug)]
struct Session {
    id: String,
    params: Value,
    token: Option<String>,
    settings: Vec<Setting>,
    is_running: bool,
    was_running: bool,
}

impl Session {
    fn set(&mut self, setting: Setting) {
        let is_same = |one: &Setting| one.method == setting.method && one.option == setting.option;
        self.settings.retain(|one| !is_same(one));
        self.settings.push(setting);
    }

    /// The parameters of `session/resume` and `session/load`.
    fn params(&self) -> Value {
        let mut params = self.params.clone();
        params["sessionId"] = json!(self.id);
        if let Some(token) = &self.token {
            params["_meta"]["outrigger"] = json!({"resumeToken": token});
        }
        params
    }
}

/// A naive model of the sessions, beside the sessions themselves.
#[derive(Default)]
struct Model {
    sessions: Sessions,
    serial: u64,
    asked: VecDeque<(u64, Asked)>,
    initialize: Value,
    /// The result of `initialize`.
    initialized: Option<Value>,
    open: Vec<Session>,
    /// The sessions that could not continue and whose turn was running.
    broken: Vec<String>,
}

/// Remembers sessions, and restores them after cuts. Each request of a restoration is the one that the model expects, and
/// afterwards the same sessions are open.
fn operate(plan: &[u8]) {
    let mut model = Model::default();
    for step in plan.chunks_exact(2) {
        let [operation, argument] = [step[0], step[1]];
        match operation % 12 {
            0 => model.ask_to_initialize(argument),
            1 | 2 => model.ask_to_open(argument),
            3 => model.ask_to_close(argument),
            4 => model.ask_to_set(argument),
            5..=8 => model.answer(argument),
            9 | 10 => model.update(argument),
            _ => model.lose(operation / 12, argument),
        }
        assert_eq!(model.sessions.len(), model.open.len());
        assert_eq!(
            model.sessions.can_be_restored(),
            model.can_be_restored(),
            "{:?}",
            model.open
        );
        let result = model.sessions.initialized().map(parsed);
        assert_eq!(result, model.initialized);
    }
    model.lose(u8::MAX, u8::MAX);
}

/// What the id of a session that could not continue ends with until it is removed.
const GONE: &str = " is gone";

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// The name of a session, of an option or of a value.
fn name(argument: u8) -> String {
    ["a", "b\"", "c\u{e9}", ""][usize::from(argument) % 4].to_owned()
}

/// The result of `initialize` of an agent with these abilities.
fn result_of_initialize(argument: u8) -> Value {
    let resume = if argument & 1 == 0 {
        json!({})
    } else {
        json!({"resume": {}})
    };
    match argument & 4 {
        0 => {
            json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": argument & 2 != 0, "sessionCapabilities": resume}})
        }
        _ => json!({"protocolVersion": 2, "capabilities": {"session": {}}}),
    }
}

fn can_resume(result: &Value) -> bool {
    !result["capabilities"]["session"].is_null()
        || !result["agentCapabilities"]["sessionCapabilities"]["resume"].is_null()
}

fn can_load(result: &Value) -> bool {
    result["agentCapabilities"]["loadSession"] == true
}

impl Model {
    fn ask(&mut self, method: &str, params: &Value, asked: Asked) {
        if self.asked.len() == 8 {
            return;
        }
        self.serial += 1;
        let request =
            json!({"jsonrpc": "2.0", "id": self.serial, "method": method, "params": params});
        let request = request.to_string();
        self.sessions
            .handle_local(&Envelope::parse(&request).expect("a request"));
        if self.initialized.is_some() || matches!(asked, Asked::Initialize(_)) {
            self.asked.push_back((self.serial, asked));
        }
    }

    fn ask_to_initialize(&mut self, argument: u8) {
        let params = json!({"protocolVersion": 1 + argument % 2, "clientCapabilities": {}});
        self.ask("initialize", &params.clone(), Asked::Initialize(params));
    }

    fn ask_to_open(&mut self, argument: u8) {
        let (method, has_own) = [
            ("session/new", false),
            ("session/fork", false),
            ("session/load", true),
            ("session/resume", true),
        ][usize::from(argument) % 4];
        let mut params = json!({"cwd": format!("/{argument}"), "mcpServers": []});
        if method != "session/new" {
            params["sessionId"] = json!(name(argument / 4));
        }
        if argument & 64 != 0 {
            params["_meta"] = json!({"x": 1, "outrigger": {"resumeToken": "old"}});
        }
        self.ask(method, &params.clone(), Asked::Open(params, has_own));
    }

    fn ask_to_close(&mut self, argument: u8) {
        let session = name(argument);
        let method = ["session/close", "session/delete"][usize::from(argument / 4) % 2];
        let params = json!({"sessionId": session});
        self.ask(method, &params, Asked::Close(session));
    }

    fn ask_to_set(&mut self, argument: u8) {
        let session = name(argument);
        let value = name(argument / 4);
        let (method, option, params) = match argument / 16 % 3 {
            0 => (
                "session/set_mode",
                None,
                json!({"sessionId": session, "modeId": value}),
            ),
            1 => (
                "session/set_model",
                None,
                json!({"sessionId": session, "modelId": value}),
            ),
            _ => {
                let option = name(argument / 64);
                let params = json!({"sessionId": session, "configId": option, "value": value});
                ("session/set_config_option", Some(option), params)
            }
        };
        let setting = Setting {
            method,
            option,
            params: params.clone(),
        };
        self.ask(method, &params, Asked::Set(session, setting));
    }

    /// The agent answers one of the requests.
    fn answer(&mut self, argument: u8) {
        let index = usize::from(argument / 32) % self.asked.len().max(1);
        let Some((id, asked)) = self.asked.remove(index) else {
            return;
        };
        let mut result = json!({});
        match &asked {
            Asked::Initialize(_) => result = result_of_initialize(argument),
            Asked::Open(_, false) => result = json!({"sessionId": name(argument)}),
            _ => {}
        }
        let token = (argument & 8 != 0).then(|| format!("token {id}"));
        if let (Some(token), Asked::Open(..)) = (&token, &asked) {
            result["_meta"] = json!({"outrigger": {"resumeToken": token}});
        }
        let is_error = argument & 16 != 0;
        let response = match is_error {
            true => json!({"jsonrpc": "2.0", "id": id, "error": {"code": -1, "message": "no"}}),
            false => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        };
        self.receive(&response);
        if is_error {
            return;
        }
        match asked {
            Asked::Initialize(params) => {
                self.asked.clear();
                self.open.clear();
                self.broken.clear();
                (self.initialize, self.initialized) = (params, Some(result));
            }
            Asked::Open(params, has_own) => {
                let holder = if has_own { &params } else { &result };
                let id = holder["sessionId"].as_str().expect("a session").to_owned();
                self.open.retain(|one| one.id != id);
                self.open.push(Session {
                    id,
                    params,
                    token,
                    settings: Vec::new(),
                    is_running: false,
                    was_running: false,
                });
            }
            Asked::Close(session) => self.open.retain(|one| one.id != session),
            Asked::Set(session, setting) => {
                if let Some(session) = self.session(&session) {
                    session.set(setting);
                }
            }
        }
    }

    fn session(&mut self, id: &str) -> Option<&mut Session> {
        self.open.iter_mut().find(|one| one.id == id)
    }

    fn receive(&mut self, message: &Value) {
        let text = message.to_string();
        let envelope = Envelope::parse(&text).expect("a message");
        self.sessions.handle_remote(&envelope);
    }

    /// The agent notifies the client.
    fn update(&mut self, argument: u8) {
        let (id, value, option) = (name(argument), name(argument / 4), name(argument / 64));
        let update = match argument / 16 % 4 {
            0 => json!({"sessionUpdate": "state_update", "state": "running"}),
            1 => json!({"sessionUpdate": "state_update", "state": "idle"}),
            2 => json!({"sessionUpdate": "current_mode_update", "currentModeId": value}),
            _ => {
                json!({"sessionUpdate": "config_option_update", "configOptions": [{"id": option, "currentValue": value}]})
            }
        };
        let params = json!({"sessionId": id, "update": update});
        self.receive(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
        let Some(session) = self.session(&id) else {
            return;
        };
        match argument / 16 % 4 {
            kind @ (0 | 1) => {
                session.is_running = kind == 0;
                session.was_running = false;
            }
            2 => session.set(Setting {
                method: "session/set_mode",
                option: None,
                params: json!({"sessionId": id, "modeId": value}),
            }),
            _ => {
                let mut settings = session.settings.iter_mut();
                if let Some(setting) = settings.find(|one| one.option.as_ref() == Some(&option)) {
                    setting.params["value"] = json!(value);
                }
            }
        }
    }

    fn can_be_restored(&self) -> bool {
        let Some(result) = &self.initialized else {
            return false;
        };
        let can = |one: &Session| can_resume(result) || can_load(result) || one.token.is_some();
        self.open.is_empty() || self.open.iter().any(can)
    }

    /// The connection is lost, and the sessions are opened again on another one, on which the agent answers at most `most` requests.
    /// The bits of `answers` select its answers.
    fn lose(&mut self, most: u8, answers: u8) {
        self.sessions.handle_loss(|_| true);
        self.asked.clear();
        for session in &mut self.open {
            session.was_running |= std::mem::take(&mut session.is_running);
        }
        if !self.can_be_restored() {
            return;
        }
        let (restoration, first) = Restoration::begin(&self.sessions);
        let mut returning = Returning {
            restoration,
            progress: Progress::Send(first),
            left: most,
            answers: answers.rotate_right(3),
        };
        self.restore(&mut returning, answers);
        self.open.retain(|one| !one.id.ends_with(GONE));
    }

    /// Makes the requests of a restoration one after another. Returns `None` if the connection is lost before they are done.
    fn restore(&mut self, returning: &mut Returning, answers: u8) -> Option<()> {
        let before = self.initialized.clone().unwrap_or_default();
        let mut result = result_of_initialize(answers);
        if answers & 0x70 != 0 {
            result["protocolVersion"] = before["protocolVersion"].clone();
        }
        let is_same = result["protocolVersion"] == before["protocolVersion"];
        let answer = Some(result.clone()).filter(|_| answers & 0xf0 != 0x80);
        let is_initialized = is_same && answer.is_some();
        let sessions = &mut self.sessions;
        returning.ask(sessions, "initialize", &self.initialize, answer, None)?;
        if !is_initialized {
            let Progress::Failed(_) = returning.progress else {
                panic!("{:?} after {result}", returning.progress);
            };
            return None;
        }
        let (resume, load) = (can_resume(&result), can_load(&result));
        self.initialized = Some(result);
        for at in 0..self.open.len() {
            let session = &mut self.open[at];
            let (id, params) = (session.id.clone(), session.params());
            let mut methods = Vec::new();
            if resume || session.token.is_some() {
                methods.push("session/resume");
            }
            if load {
                methods.push("session/load");
            }
            let mut continues = false;
            for method in methods {
                let (answer, token) = returning.choose();
                continues = answer.is_some();
                returning.ask(sessions, method, &params, answer, Some(&id))?;
                if continues {
                    session.token = token.or(session.token.take());
                    break;
                }
            }
            for setting in session.settings.iter().filter(|_| continues) {
                let (answer, _) = returning.choose();
                returning.ask(sessions, setting.method, &setting.params, answer, Some(&id))?;
            }
            if !continues {
                let running = std::mem::take(&mut session.was_running);
                self.broken.extend(running.then(|| session.id.clone()));
                session.id.push_str(GONE);
            }
        }
        let Progress::Done(messages) = &returning.progress else {
            panic!("{:?} at the end", returning.progress);
        };
        let running = self.open.iter_mut().filter(|one| one.was_running);
        let ended = running.map(|one| {
            one.was_running = false;
            one.id.clone()
        });
        let ended: Vec<String> = self.broken.drain(..).chain(ended).collect();
        let seen = messages.iter().map(|message| {
            let message = parsed(message);
            assert_eq!(message["params"]["update"]["state"], "idle");
            message["params"]["sessionId"].as_str().map(str::to_owned)
        });
        assert!(seen.eq(ended.into_iter().map(Some)));
        Some(())
    }
}

/// A restoration, and the agent that answers its requests.
struct Returning {
    restoration: Restoration,
    progress: Progress,
    /// How many requests the agent answers before the connection is lost.
    left: u8,
    answers: u8,
}

impl Returning {
    /// The next result, and the token in it. `None` is an error.
    fn choose(&mut self) -> (Option<Value>, Option<String>) {
        self.answers = self.answers.rotate_left(1).wrapping_add(self.left);
        let token = (self.answers & 6 == 6).then(|| format!("token after {}", self.left));
        let result = match &token {
            Some(token) => json!({"_meta": {"outrigger": {"resumeToken": token}}}),
            None => json!({}),
        };
        let result = Some(result).filter(|_| self.answers & 24 != 0);
        (result, token)
    }

    /// The pending request is this one. The agent answers it.
    fn ask(
        &mut self,
        sessions: &mut Sessions,
        method: &str,
        params: &Value,
        answer: Option<Value>,
        session: Option<&str>,
    ) -> Option<()> {
        let Progress::Send(request) = &self.progress else {
            panic!("{:?} instead of {method}", self.progress);
        };
        let request = parsed(request);
        assert_eq!(request["method"], method);
        assert_eq!(&request["params"], params);
        self.left = self.left.checked_sub(1)?;
        // The history of a session that is loaded is for the restoration alone.
        let update = json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": {}}});
        let other = json!({"jsonrpc": "2.0", "id": request["id"], "method": "x"});
        let progress = self.restoration.handle(sessions, &update.to_string());
        assert_eq!(progress == Progress::Taken, method == "session/load");
        let progress = self.restoration.handle(sessions, &other.to_string());
        assert_eq!(progress, Progress::Unrelated);
        let response = match answer {
            Some(result) => json!({"jsonrpc": "2.0", "id": request["id"], "result": result}),
            None => {
                json!({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -1, "message": "no"}})
            }
        };
        self.progress = self.restoration.handle(sessions, &response.to_string());
        if let Progress::Send(_) = self.progress {
            let again = self.restoration.handle(sessions, &response.to_string());
            assert_eq!(again, Progress::Unrelated, "a response counts once");
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    #[test]
    fn sessions_continue_on_other_connections() {
        let mut random = Random::new(2208);
        for _ in 0..rounds(2000) {
            let mut plan = vec![0, 0, random.byte(), 5, random.byte() & 0xef];
            plan.extend(random.bytes(300));
            restoration(&plan);
        }
    }

    #[test]
    fn a_restoration_of_any_messages_ends() {
        let lines = [
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}"#,
            r#"{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}"#,
            r#"{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s","_meta":{"outrigger":{"resumeToken":"t"}}}}"#,
            r#"{"jsonrpc":"2.0","id":3,"method":"session/set_mode","params":{"sessionId":"s","modeId":"m"}}"#,
            r#"{"jsonrpc":"2.0","id":3,"result":null}"#,
        ];
        restoration(format!("\u{7f}{}", lines.join("\n")).as_bytes());
        let mut random = Random::new(2209);
        for _ in 0..rounds(2000) {
            let mut data = lines.join("\n").into_bytes();
            for _ in 0..random.below(6) {
                let at = random.below(data.len());
                data[at] = b"{}[],:\"\\10e-. nulst2"[random.below(20)];
            }
            data.insert(0, 128);
            restoration(&data);
        }
    }
}
