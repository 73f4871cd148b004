//! Continues the sessions of the Agent Client Protocol on another connection. Without I/O.
//!
//! When a connection is lost for good, a [`Restoration`] repeats on the next one what [`Sessions`] remembers, so that the local side need
//! not know of the loss. Only the requests that were pending have failed.

use std::collections::VecDeque;

use serde_json::Value;

use super::sessions::{Abilities, Sessions, Setting, version};
use crate::service::jsonrpc::{Envelope, MessageKind, is_same};
use crate::text::printable;

/// The maximum length of the server's text in an error or in the log, in bytes.
const MAX_SHOWN: usize = 256;

/// How the id of each request of a restoration begins, as JSON.
pub(super) const RESTORE_ID: &str = "\"outrigger-restore-";

/// The next step of a restoration.
#[derive(Debug)]
enum Step {
    Initialize,
    Resume,
    Load,
    Set(Setting),
}

/// What a message on the new connection means for a restoration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It has nothing to do with the restoration.
    Unrelated,
    /// The message is for the restoration alone.
    Taken,
    /// The next request.
    Send(String),
    /// All is done. The local side gets these messages.
    Done(Vec<String>),
    /// The connection cannot take the place of the lost one.
    Failed(String),
}

/// Repeats `initialize` on a new connection and opens the sessions there again.
#[derive(Debug, Default)]
pub(crate) struct Restoration {
    /// The sessions that are left, and the steps that are left for the first of them.
    left: VecDeque<String>,
    steps: VecDeque<Step>,
    current: Option<Step>,
    /// The id of the current request is made of this number.
    serial: u64,
    /// What could not be restored, in words.
    failures: Vec<String>,
}

impl Restoration {
    /// Begins on a new connection. Returns the first request.
    pub(crate) fn begin(sessions: &Sessions) -> (Self, String) {
        let mut restoration = Self {
            left: sessions.open.iter().map(|one| one.id.clone()).collect(),
            steps: VecDeque::from([Step::Initialize]),
            ..Self::default()
        };
        let first = restoration.next_request(sessions).unwrap_or_default();
        (restoration, first)
    }

    /// Handles a message of the remote side.
    pub(crate) fn handle(&mut self, sessions: &mut Sessions, text: &str) -> Progress {
        let Ok(envelope) = Envelope::parse(text) else {
            return Progress::Unrelated;
        };
        match &envelope.kind {
            MessageKind::Response { id, result } if is_same(&text[id.clone()], &self.id()) => {
                let result = result.clone().map(|result| &text[result]);
                self.handle_response(sessions, &envelope, result)
            }
            // The local side has the history.
            MessageKind::Notification { method }
                if method == "session/update"
                    && matches!(self.current, Some(Step::Load))
                    && envelope.session.as_deref() == self.left.front().map(String::as_str) =>
            {
                Progress::Taken
            }
            _ => Progress::Unrelated,
        }
    }

    fn handle_response(
        &mut self,
        sessions: &mut Sessions,
        envelope: &Envelope<'_>,
        result: Option<&str>,
    ) -> Progress {
        match (self.current.take(), result) {
            (Some(Step::Initialize), Some(result)) => {
                let before = sessions.initialized.as_deref().unwrap_or_default();
                if version_of(before) != version(envelope) {
                    let why = "the server has another version of the protocol now";
                    return Progress::Failed(why.to_owned());
                }
                sessions.initialized = Some(result.into());
                self.begin_session(sessions);
            }
            (Some(Step::Initialize), None) => {
                return Progress::Failed(failure_in(envelope.text));
            }
            (Some(Step::Resume | Step::Load), Some(_)) => {
                self.handle_continued(sessions, envelope);
            }
            (Some(Step::Resume), None) if matches!(self.steps.front(), Some(Step::Load)) => {}
            (Some(Step::Resume | Step::Load), None) => {
                self.fail_session(sessions, &failure_in(envelope.text));
                self.begin_session(sessions);
            }
            (Some(Step::Set(setting)), None) => {
                let session = shown(self.left.front().map_or("", String::as_str));
                let (method, why) = (&setting.method, failure_in(envelope.text));
                let failure = format!("{method} failed in session {session}: {why}");
                self.failures.push(failure);
            }
            (Some(Step::Set(_)) | None, _) => {}
        }
        loop {
            if let Some(request) = self.next_request(sessions) {
                return Progress::Send(request);
            }
            // The steps of this session are done.
            self.left.pop_front();
            if self.left.is_empty() {
                return Progress::Done(sessions.end_turns());
            }
            self.begin_session(sessions);
        }
    }

    /// The first session that is left cannot continue.
    fn fail_session(&mut self, sessions: &mut Sessions, why: &str) {
        let session = self.left.pop_front().unwrap_or_default();
        sessions.forget(&session);
        let session = shown(&session);
        let failure = format!("session {session} could not be loaded again: {why}");
        self.failures.push(failure);
    }

    /// A session continues. Its settings follow.
    fn handle_continued(&mut self, sessions: &mut Sessions, envelope: &Envelope<'_>) {
        self.steps.clear();
        let id = self.left.front().cloned().unwrap_or_default();
        let Some(session) = sessions.open.iter_mut().find(|one| one.id == id) else {
            return;
        };
        if let Some(token) = envelope.resume_token() {
            session.resume_token = Some(token.into_owned());
        }
        self.steps
            .extend(session.settings.iter().cloned().map(Step::Set));
    }

    /// Plans the steps for the next session that is left. Those that the agent has no method for fail.
    fn begin_session(&mut self, sessions: &mut Sessions) {
        self.steps.clear();
        let result = sessions.initialized.as_deref().unwrap_or_default();
        let abilities = Abilities::of(result);
        while let Some(first) = self.left.front() {
            let mut open = sessions.open.iter();
            let has_token = open.any(|one| one.id == *first && one.resume_token.is_some());
            if abilities.resume || has_token {
                self.steps.push_back(Step::Resume);
            }
            if abilities.load {
                self.steps.push_back(Step::Load);
            }
            if !self.steps.is_empty() {
                return;
            }
            let why = "the agent can neither resume nor load sessions";
            self.fail_session(sessions, why);
        }
    }

    /// The request of the next step. `None` if there is no step.
    fn next_request(&mut self, sessions: &Sessions) -> Option<String> {
        let step = self.steps.pop_front()?;
        let first = self.left.front();
        let session = sessions.open.iter().find(|one| Some(&one.id) == first);
        let params = session.map_or_else(|| "{}".to_owned(), |one| one.params().to_string());
        let (method, params) = match &step {
            Step::Initialize => ("initialize", &*sessions.initialize),
            Step::Resume => ("session/resume", &*params),
            Step::Load => ("session/load", &*params),
            Step::Set(setting) => (&*setting.method, &*setting.params),
        };
        self.serial += 1;
        let request = format!(
            r#"{{"jsonrpc":"2.0","id":{},"method":"{method}","params":{params}}}"#,
            self.id()
        );
        self.current = Some(step);
        Some(request)
    }

    /// The id of the current request, as JSON.
    fn id(&self) -> String {
        format!(r#"{RESTORE_ID}{}""#, self.serial)
    }

    /// What could not be restored, in words.
    pub(super) fn failures(&self) -> &[String] {
        &self.failures
    }
}

/// `protocolVersion` of a result.
fn version_of(result: &str) -> Option<u64> {
    let result: Value = serde_json::from_str(result).ok()?;
    result["protocolVersion"].as_u64()
}

/// The message of an error response, for people.
fn failure_in(text: &str) -> String {
    let response: Value = serde_json::from_str(text).unwrap_or_default();
    let error = &response["error"];
    let message = error["message"].as_str();
    let message = message.unwrap_or("the server has refused it");
    match error["data"].as_str() {
        Some(data) => shown(&format!("{message}: {data}")),
        None => shown(message),
    }
}

/// The server's text for people: without control characters, and not long, because each pending request gets it in an error.
fn shown(text: &str) -> String {
    printable(&text.as_bytes()[..text.floor_char_boundary(MAX_SHOWN)])
}
