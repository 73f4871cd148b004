//! `outrigger example-agent`: a small agent of the Agent Client Protocol on standard input and output.
//!
//! It has no language model. For client authors, it shows the protocol: it keeps sessions, streams its answers word by
//! word, asks for permission, and stops when a prompt is cancelled.

use std::io::{self, BufRead, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The delay between two words of an answer.
const PACE: Duration = Duration::from_millis(40);

/// Error codes of JSON-RPC 2.0, section 5.1.
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;

/// Answers messages until standard input ends.
pub(crate) fn run() -> io::Result<()> {
    let (sender, lines) = mpsc::channel();
    // Reading blocks, so it has a thread of its own: a cancellation must be read while an answer is streamed.
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    serve(&lines, &mut io::stdout().lock())
}

fn serve(lines: &Receiver<String>, out: &mut impl Write) -> io::Result<()> {
    let mut agent = ExampleAgent::default();
    loop {
        let now = Instant::now();
        let next = agent.next_word.filter(|_| agent.is_streaming());
        let line = match next {
            Some(at) => lines.recv_timeout(at.saturating_duration_since(now)),
            None => lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match line {
            Ok(line) => agent.receive(&line),
            Err(RecvTimeoutError::Timeout) => agent.send_words(),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        for message in agent.out.drain(..) {
            writeln!(out, "{message}")?;
        }
        out.flush()?;
    }
}

#[derive(Default)]
struct ExampleAgent {
    sessions: Vec<Conversation>,
    /// The numbers of sessions and permission requests so far. They make up the next id.
    session_count: u64,
    permission_count: u64,
    next_word: Option<Instant>,
    /// Messages to write, as JSON. Each is one line.
    out: Vec<String>,
}

#[derive(Default)]
struct Conversation {
    name: String,
    /// The number of prompts so far.
    prompts: u64,
    answering: Option<PromptAnswer>,
}

/// The answer to a prompt, while it is streamed.
struct PromptAnswer {
    id: Value,
    words: Vec<String>,
    sent: usize,
    /// The id of the permission request that must be answered first.
    pending_permission: Option<String>,
}

impl ExampleAgent {
    fn is_streaming(&self) -> bool {
        let mut answering = self
            .sessions
            .iter()
            .filter_map(|session| session.answering.as_ref());
        answering.any(|answering| answering.pending_permission.is_none())
    }

    fn session(&mut self, name: &str) -> Option<&mut Conversation> {
        self.sessions
            .iter_mut()
            .find(|session| session.name == name)
    }

    fn receive(&mut self, line: &str) {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            return self.fail("null", -32700, "Parse error");
        };
        let id = message.get("id").cloned();
        let params = &message["params"];
        match (message["method"].as_str(), id) {
            (Some(method), Some(id)) => match self.answer(method, &id, params) {
                Ok(Some(result)) => self.succeed(&id, &result),
                Ok(None) => {}
                Err((code, text)) => self.fail(&id.to_string(), code, text),
            },
            (Some("session/cancel"), None) => {
                let name = params["sessionId"].as_str().unwrap_or_default();
                self.finish(name, "cancelled");
            }
            (Some(_), None) => {}
            (None, Some(id)) => self.receive_permission(&id, &message),
            (None, None) => {}
        }
    }

    /// Answers a request. Returns `None` if the answer follows later.
    fn answer(
        &mut self,
        method: &str,
        id: &Value,
        params: &Value,
    ) -> Result<Option<String>, (i64, &'static str)> {
        match method {
            "initialize" => Ok(Some(
                concat!(
                    r#"{"protocolVersion":1,"agentCapabilities":{"loadSession":false,"promptCapabilities":{}},"#,
                    r#""agentInfo":{"name":"outrigger example-agent","version":""#,
                    env!("CARGO_PKG_VERSION"),
                    r#""},"authMethods":[]}"#
                )
                .to_owned(),
            )),
            "session/new" => {
                self.session_count += 1;
                let name = format!("example-{}-{}", std::process::id(), self.session_count);
                let result = format!(r#"{{"sessionId":"{name}"}}"#);
                self.sessions.push(Conversation {
                    name,
                    ..Conversation::default()
                });
                Ok(Some(result))
            }
            "session/prompt" => {
                let name = params["sessionId"].as_str().unwrap_or_default();
                let Some(session) = self.session(name) else {
                    return Err((INVALID_PARAMS, "Unknown session"));
                };
                if session.answering.is_some() {
                    return Err((INVALID_PARAMS, "The session is answering another prompt"));
                }
                session.prompts += 1;
                let blocks = params["prompt"].as_array().map_or(&[][..], Vec::as_slice);
                let texts = blocks.iter().filter_map(|block| block["text"].as_str());
                let (words, asks) = reply(&texts.collect::<Vec<_>>().join(" "), session.prompts);
                session.answering = Some(PromptAnswer {
                    id: id.clone(),
                    words,
                    sent: 0,
                    pending_permission: None,
                });
                self.next_word = Some(Instant::now());
                if asks {
                    self.ask_permission(name);
                }
                Ok(None)
            }
            _ => Err((METHOD_NOT_FOUND, "Method not found")),
        }
    }

    fn succeed(&mut self, id: &Value, result: &str) {
        self.out.push(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#
        ));
    }

    fn fail(&mut self, id: &str, code: i64, text: &str) {
        self.out.push(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{text}"}}}}"#
        ));
    }

    /// Asks the client of a session for permission.
    fn ask_permission(&mut self, name: &str) {
        self.permission_count += 1;
        let id = format!("permission-{}", self.permission_count);
        if let Some(answering) = self
            .session(name)
            .and_then(|session| session.answering.as_mut())
        {
            answering.pending_permission = Some(id.clone());
        }
        self.out.push(format!(
            concat!(
                r#"{{"jsonrpc":"2.0","id":"{id}","method":"session/request_permission","params":{{"sessionId":"{name}","#,
                r#""toolCall":{{"toolCallId":"example","title":"Do nothing at all","kind":"other","status":"pending"}},"#,
                r#""options":[{{"optionId":"yes","name":"Do it","kind":"allow_once"}},"#,
                r#"{{"optionId":"no","name":"Do not","kind":"reject_once"}}]}}}}"#
            ),
            id = id,
            name = name
        ));
    }

    /// Handles the answer to a permission request.
    fn receive_permission(&mut self, id: &Value, message: &Value) {
        let waiting = self
            .sessions
            .iter_mut()
            .filter_map(|session| session.answering.as_mut());
        for answering in waiting {
            if id.as_str().is_some() && answering.pending_permission.as_deref() == id.as_str() {
                answering.pending_permission = None;
                let allowed = message["result"]["outcome"]["optionId"] == "yes";
                answering.words = words(if allowed {
                    "You allowed it, and nothing was done."
                } else {
                    "You rejected it, so nothing was done."
                });
                self.next_word = Some(Instant::now());
                return;
            }
        }
    }

    /// Sends the next word of each answer.
    fn send_words(&mut self) {
        let mut done = Vec::new();
        for session in &mut self.sessions {
            let Some(answering) = session
                .answering
                .as_mut()
                .filter(|answering| answering.pending_permission.is_none())
            else {
                continue;
            };
            match answering.words.get(answering.sent) {
                Some(word) => {
                    answering.sent += 1;
                    self.out.push(format!(
                        concat!(
                            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{name}","update":"#,
                            r#"{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":{word}}}}}}}}}"#
                        ),
                        name = session.name,
                        word = Value::from(word.as_str())
                    ));
                }
                None => done.push(session.name.clone()),
            }
        }
        for name in done {
            self.finish(&name, "end_turn");
        }
        self.next_word = Some(Instant::now() + PACE);
    }

    /// Ends the answer to a session's prompt.
    fn finish(&mut self, name: &str, reason: &str) {
        let answering = self
            .session(name)
            .and_then(|session| session.answering.take());
        if let Some(answering) = answering {
            self.succeed(&answering.id, &format!(r#"{{"stopReason":"{reason}"}}"#));
        }
    }
}

/// The words of the answer to a prompt, and whether the agent must ask for permission first.
fn reply(prompt: &str, number: u64) -> (Vec<String>, bool) {
    let first = prompt.split_whitespace().next().unwrap_or_default();
    match first {
        "/permission" => (Vec::new(), true),
        "/count" => {
            let to = prompt
                .split_whitespace()
                .nth(1)
                .and_then(|word| word.parse().ok());
            let to: u32 = to.unwrap_or(10);
            (
                (1..=to.min(1000))
                    .map(|number| format!("{number} "))
                    .collect(),
                false,
            )
        }
        _ => {
            let count = prompt.split_whitespace().count();
            let text = format!(
                "This is prompt {number} of this session, with {count} words. I am an example without a language model. \
                 '/count N' makes me count, so that you can cancel it. '/permission' makes me ask for permission."
            );
            (words(&text), false)
        }
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_inclusive(' ').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn take_messages(agent: &mut ExampleAgent) -> Vec<Value> {
        let messages = std::mem::take(&mut agent.out).into_iter();
        messages
            .map(|message| message.parse().expect("JSON"))
            .collect()
    }

    /// Sends a message and returns all answers to it.
    fn converse(agent: &mut ExampleAgent, message: Value) -> Vec<Value> {
        agent.receive(&message.to_string());
        for _ in 0..100 {
            if agent.is_streaming() {
                agent.send_words();
            }
        }
        take_messages(agent)
    }

    fn prompt(session: &str, id: u64, text: &str) -> Value {
        json!({"jsonrpc": "2.0", "id": id, "method": "session/prompt",
            "params": {"sessionId": session, "prompt": [{"type": "text", "text": text}]}})
    }

    #[test]
    fn prompts_are_streamed_cancelled_and_need_permission() {
        let mut agent = ExampleAgent::default();
        let started = converse(
            &mut agent,
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}),
        );
        assert_eq!(started[0]["result"]["protocolVersion"], 1);
        let opened = converse(
            &mut agent,
            json!({"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": {"cwd": "/", "mcpServers": []}}),
        );
        let session = opened[0]["result"]["sessionId"]
            .as_str()
            .expect("a session")
            .to_owned();

        let counted = converse(&mut agent, prompt(&session, 3, "/count 3"));
        let said: String = counted
            .iter()
            .filter_map(|message| message["params"]["update"]["content"]["text"].as_str())
            .collect();
        assert_eq!(said, "1 2 3 ");
        assert_eq!(
            counted.last().expect("an answer")["result"]["stopReason"],
            "end_turn"
        );

        let asked = converse(&mut agent, prompt(&session, 4, "/permission"));
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0]["method"], "session/request_permission");
        let answer = json!({"jsonrpc": "2.0", "id": asked[0]["id"], "result": {"outcome": {"outcome": "selected", "optionId": "yes"}}});
        let told = converse(&mut agent, answer);
        assert_eq!(told.last().expect("an answer")["id"], 4);

        agent.receive(&prompt(&session, 5, "/count 1000").to_string());
        agent.send_words();
        let busy = converse_once(&mut agent, &prompt(&session, 6, "again"));
        assert_eq!(
            busy.last().expect("an answer")["error"]["code"],
            INVALID_PARAMS
        );
        let cancelled = converse(
            &mut agent,
            json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}),
        );
        assert_eq!(
            cancelled.last().expect("an answer")["result"]["stopReason"],
            "cancelled"
        );

        assert_eq!(
            converse(&mut agent, prompt("other", 7, "hello"))[0]["error"]["code"],
            INVALID_PARAMS
        );
        assert_eq!(
            converse(
                &mut agent,
                json!({"jsonrpc": "2.0", "id": 8, "method": "session/load"})
            )[0]["error"]["code"],
            METHOD_NOT_FOUND
        );
    }

    fn converse_once(agent: &mut ExampleAgent, message: &Value) -> Vec<Value> {
        agent.receive(&message.to_string());
        take_messages(agent)
    }
}
