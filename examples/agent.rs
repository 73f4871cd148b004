//! A small agent of the Agent Client Protocol on standard streams, for trying and testing `outrigger agent`.
//!
//!     cargo build --release --examples
//!     cargo run --release -- agent -- target/release/examples/agent
//!
//! It answers a prompt with its words, one update for each. Some words have a special meaning:
//! `permission` requests a permission first, `read` reads a file through the client, `wait` delays the answer until the prompt
//! is cancelled, `die` exits, `hold` delays the answer, and `release` sends all delayed answers, the last one first. With
//! `AGENT_LOG=FILE` it writes every line that it reads to FILE.

use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};

use serde_json::{Value, json};

#[derive(Default)]
struct Agent {
    initialized: bool,
    sessions: HashSet<String>,
    /// The request ids of prompts that wait for a cancellation, by session.
    waiting: HashMap<String, Value>,
    /// The agent's own requests by id, with the prompt that waits for the answer.
    asked: HashMap<u64, (Value, String)>,
    next_id: u64,
    held: Vec<Value>,
}

fn main() -> io::Result<()> {
    let mut log = std::env::var_os("AGENT_LOG")
        .map(|path| OpenOptions::new().create(true).append(true).open(path))
        .transpose()?;
    let mut agent = Agent::default();
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
                let capabilities =
                    json!({"loadSession": true, "sessionCapabilities": {"list": {}}});
                answer(
                    &id,
                    &json!({"protocolVersion": 1, "agentCapabilities": capabilities, "authMethods": []}),
                )
            }
            Some("session/new") => {
                let session = format!("session-{}-{}", std::process::id(), self.sessions.len());
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
                Some(prompt) => answer(&prompt, &json!({"stopReason": "cancelled"})),
                None => Ok(()),
            },
            Some(_) if id.is_null() => Ok(()),
            Some(method) => {
                let error = json!({"code": -32601, "message": "Method not found", "data": {"method": method}});
                say(&json!({"jsonrpc": "2.0", "id": id, "error": error}))
            }
            None => match id.as_u64().and_then(|id| self.asked.remove(&id)) {
                Some((prompt, session)) => {
                    update(&session, &message["result"].to_string())?;
                    answer(&prompt, &json!({"stopReason": "end_turn"}))
                }
                None => Ok(()),
            },
        }
    }

    fn prompt(&mut self, session: &str, id: Value, params: &Value) -> io::Result<()> {
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
                    self.held.push(id);
                    return update(session, "held");
                }
                "release" => {
                    for held in std::mem::take(&mut self.held).iter().rev() {
                        answer(held, &json!({"stopReason": "end_turn"}))?;
                    }
                }
                "permission" | "read" => {
                    self.next_id += 1;
                    self.asked.insert(self.next_id, (id, session.to_owned()));
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
        answer(&id, &json!({"stopReason": "end_turn"}))
    }
}

fn update(session: &str, text: &str) -> io::Result<()> {
    let update =
        json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}});
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
