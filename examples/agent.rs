//! A small agent of the Agent Client Protocol on standard input and output, for trying and testing `outrigger agent`.
//!
//!     cargo build --release --examples
//!     cargo run --release -- agent -- target/release/examples/agent
//!
//! It answers a prompt with the prompt's own words, one update per word. Some words have an effect:
//!
//! * `permission` asks for permission first.
//! * `read` reads a file through the client.
//! * `wait` answers only when the prompt is cancelled.
//! * `die` exits.
//! * `hold` withholds the answer. `release` sends all withheld answers, the last one first.
//!
//! With `AGENT_LOG=FILE` it appends each line that it reads to the file. With the argument `--count`, the sessions of each process are
//! `session-0`, `session-1` and so on, as some agents call them. With `--v2`, it speaks version 2 of the protocol: a prompt is answered
//! at once, and `state_update` says when its turn begins and ends.

use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};

use serde_json::{Value, json};

#[derive(Default)]
struct Agent {
    initialized: bool,
    sessions: HashSet<String>,
    /// Whether the ids of sessions are only a number.
    counts: bool,
    /// Whether it speaks version 2.
    is_version_2: bool,
    /// The ids of the waiting prompts, by session.
    waiting: HashMap<String, Value>,
    /// The pending requests to the client, by id: the prompt's id and its session.
    requests: HashMap<u64, (Value, String)>,
    next_id: u64,
    /// The ids and sessions of the prompts whose answers are withheld.
    held: Vec<(Value, String)>,
}

fn main() -> io::Result<()> {
    let mut log = std::env::var_os("AGENT_LOG")
        .map(|path| OpenOptions::new().create(true).append(true).open(path))
        .transpose()?;
    let mut agent = Agent {
        counts: std::env::args().any(|argument| argument == "--count"),
        is_version_2: std::env::args().any(|argument| argument == "--v2"),
        ..Agent::default()
    };
    for line in io::stdin().lock().lines() {
        let line = line?;
        if let Some(log) = &mut log {
            writeln!(log, "{line}")?;
        }
        match serde_json::from_str(&line) {
            Ok(message) => agent.handle(&message)?,
            Err(error) => eprintln!("not JSON: {error}"),
        }
    }
    Ok(())
}

impl Agent {
    fn handle(&mut self, message: &Value) -> io::Result<()> {
        let (id, params) = (message["id"].clone(), &message["params"]);
        let session = params["sessionId"].as_str().unwrap_or_default().to_owned();
        match message["method"].as_str() {
            Some("initialize") => {
                if std::mem::replace(&mut self.initialized, true) {
                    eprintln!("initialized twice");
                    std::process::exit(9);
                }
                if self.is_version_2 {
                    let info = json!({"name": "example", "version": "1"});
                    let capabilities = json!({"session": {}});
                    return answer(
                        &id,
                        &json!({"protocolVersion": 2, "capabilities": capabilities, "info": info}),
                    );
                }
                let capabilities =
                    json!({"loadSession": true, "sessionCapabilities": {"list": {}}});
                answer(
                    &id,
                    &json!({"protocolVersion": 1, "agentCapabilities": capabilities, "authMethods": []}),
                )
            }
            Some("session/new") => {
                let number = self.sessions.len();
                let session = if self.counts {
                    format!("session-{number}")
                } else {
                    format!("session-{}-{number}", std::process::id())
                };
                self.sessions.insert(session.clone());
                answer(&id, &json!({"sessionId": session}))
            }
            Some("session/load") if self.sessions.contains(&session) => {
                update(&session, "(as it was)")?;
                answer(&id, &Value::Null)
            }
            Some("session/list") => {
                let sessions: Vec<_> = self
                    .sessions
                    .iter()
                    .map(|session| json!({"sessionId": session, "cwd": "/"}))
                    .collect();
                answer(&id, &json!({"sessions": sessions}))
            }
            Some("session/prompt") => self.prompt(&session, id, params),
            Some("session/cancel") => match self.waiting.remove(&session) {
                Some(prompt) => self.end(&prompt, &session, "cancelled"),
                None => Ok(()),
            },
            Some(_) if id.is_null() => Ok(()),
            Some(method) => {
                let error = json!({"code": -32601, "message": "Method not found", "data": {"method": method}});
                say(&json!({"jsonrpc": "2.0", "id": id, "error": error}))
            }
            None => match id.as_u64().and_then(|id| self.requests.remove(&id)) {
                Some((prompt, session)) => {
                    let answered = message.get("result").unwrap_or(&message["error"]);
                    update(&session, &answered.to_string())?;
                    self.end(&prompt, &session, "end_turn")
                }
                None => Ok(()),
            },
        }
    }

    /// Ends the turn of a prompt.
    fn end(&self, prompt: &Value, session: &str, reason: &str) -> io::Result<()> {
        if !self.is_version_2 {
            return answer(prompt, &json!({"stopReason": reason}));
        }
        // Outrigger reports the state of a session, too. `_meta` says which reports are the agent's.
        let state = json!({"sessionUpdate": "state_update", "state": "idle", "stopReason": reason, "_meta": {"agent": true}});
        send_update(session, &state)
    }

    fn prompt(&mut self, session: &str, id: Value, params: &Value) -> io::Result<()> {
        if self.is_version_2 {
            answer(&id, &json!({}))?;
            let state = json!({"sessionUpdate": "state_update", "state": "running", "_meta": {"agent": true}});
            send_update(session, &state)?;
        }
        let text: String = params["prompt"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|block| block["text"].as_str())
            .collect();
        for word in text.split_whitespace() {
            match word {
                "die" => std::process::exit(3),
                "wait" => {
                    update(session, "waiting")?;
                    self.waiting.insert(session.to_owned(), id);
                    return Ok(());
                }
                "hold" => {
                    self.held.push((id, session.to_owned()));
                    return update(session, "held");
                }
                "release" => {
                    for (held, session) in std::mem::take(&mut self.held).iter().rev() {
                        self.end(held, session, "end_turn")?;
                    }
                }
                "permission" | "read" => {
                    self.next_id += 1;
                    self.requests.insert(self.next_id, (id, session.to_owned()));
                    let (method, params) = if word == "read" {
                        (
                            "fs/read_text_file",
                            json!({"sessionId": session, "path": "/etc/hostname"}),
                        )
                    } else {
                        let options =
                            json!([{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]);
                        let call = json!({"toolCallId": "1", "title": "something"});
                        (
                            "session/request_permission",
                            json!({"sessionId": session, "toolCall": call, "options": options}),
                        )
                    };
                    return say(
                        &json!({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params}),
                    );
                }
                word => update(session, word)?,
            }
        }
        self.end(&id, session, "end_turn")
    }
}

fn update(session: &str, text: &str) -> io::Result<()> {
    let content = json!({"type": "text", "text": text});
    send_update(
        session,
        &json!({"sessionUpdate": "agent_message_chunk", "content": content}),
    )
}

fn send_update(session: &str, update: &Value) -> io::Result<()> {
    say(
        &json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}}),
    )
}

fn answer(id: &Value, result: &Value) -> io::Result<()> {
    say(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

fn say(message: &Value) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{message}")?;
    stdout.flush()
}
