//! The client's side of a draft of the Agent Client Protocol, "Durable & Resumable HTTP/WS Transport" (agent-client-protocol#2208,
//! `docs/rfds/durable-resumable-http-transport.mdx` at commit 3653fb4). Without I/O.
//!
//! [`Durable`] asks for cursors in `initialize` and remembers the last ones. After a cut, it sends them in `stream/resume` on another
//! connection. The draft numbers only the server's messages. If the server says how many of the client's messages it has received, as
//! Outrigger does, the rest is sent again.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};

use super::requests::{batch, is_request};
use super::restoration::{failure_in, shown};
use crate::service::json::{Skimmer, quote};
use crate::service::jsonrpc::{
    Envelope, IdKey, MessageKind, batch_messages, insert_member, is_array, is_same, member,
};

/// The id of `stream/resume`, as JSON.
pub(super) const RESUME_ID: &str = r#""outrigger-resume""#;

/// The maximum number of sessions whose cursors are kept. A session without one has the position of the connection.
const MAX_SESSIONS: usize = 1024;

/// The maximum length of a cursor, a connection id or a session id, in bytes.
const MAX_TEXT: usize = 1024;

/// The maximum number of responses without a cursor that are remembered.
const MAX_UNPLACED: usize = 1024;

/// What a kept message takes in addition to its bytes.
const OVERHEAD: usize = 64;

/// Whether the server sends cursors.
#[derive(Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing was sent on this connection.
    #[default]
    Fresh,
    /// `initialize` was sent, with this id.
    Asked(IdKey),
    Offered,
    Off,
}

/// The cursors of a connection and the last messages on it, with which another connection can resume it.
#[derive(Debug, Default)]
pub(super) struct Durable {
    stage: Stage,
    /// The id of the connection.
    id: Option<String>,
    /// The last cursors, as JSON: of all messages, of those without a session, and of each session.
    last: Option<Box<str>>,
    connection: Option<Box<str>>,
    sessions: HashMap<String, Box<str>>,
    sent: Sent,
    /// The pending requests that the server may not have received, and that were not sent again.
    doubtful: HashSet<IdKey>,
    /// The requests whose responses have arrived since the last cursor, without cursors. The server repeats them after a cut.
    unplaced: HashSet<IdKey>,
}

/// The last messages to the server, which it may not have received.
#[derive(Debug, Default)]
struct Sent {
    /// The number of messages before these.
    before: u64,
    messages: VecDeque<Box<str>>,
    /// The numbers of the requests among them.
    requests: HashMap<IdKey, u64>,
    bytes: usize,
}

impl Sent {
    fn push(&mut self, text: &str, limit: usize) {
        let number = self.before + self.messages.len() as u64;
        let ids = requests_in(text).into_iter();
        self.requests.extend(ids.map(|id| (id, number)));
        self.bytes += text.len() + OVERHEAD;
        self.messages.push_back(text.into());
        while self.bytes > limit && self.messages.len() > 1 {
            self.drop_before(self.before + 1);
        }
    }

    /// The server has received the messages before this number.
    fn drop_before(&mut self, number: u64) {
        while self.before < number
            && let Some(text) = self.messages.pop_front()
        {
            self.bytes -= text.len() + OVERHEAD;
            self.before += 1;
        }
        let before = self.before;
        self.requests.retain(|_, number| *number >= before);
    }

    /// Whether all messages after this number are kept.
    fn contains(&self, number: u64) -> bool {
        (self.before..=self.before + self.messages.len() as u64).contains(&number)
    }

    /// Removes the messages that must not be sent twice, and returns the ids of the requests among them. A request could run twice.
    /// A `session/cancel` before a prompt in the same session could cancel the turn of that prompt.
    fn take_requests(&mut self) -> Vec<IdKey> {
        let count = self.messages.len();
        let mut prompted = HashSet::new();
        let mut kept = VecDeque::new();
        for text in self.messages.drain(..).rev() {
            if let Some(session) = session_of(&text, "session/prompt") {
                prompted.insert(session);
            }
            let cancelled = session_of(&text, "session/cancel");
            let is_late = cancelled.is_some_and(|session| prompted.contains(&session));
            if !is_late && requests_in(&text).is_empty() {
                kept.push_front(text);
            }
        }
        self.bytes = kept.iter().map(|text| text.len() + OVERHEAD).sum();
        self.before += (count - kept.len()) as u64;
        self.messages = kept;
        self.requests.drain().map(|(id, _)| id).collect()
    }

    /// The server has received a request, and so all messages before it.
    fn confirm(&mut self, id: &str) {
        if let Some(number) = self.requests.remove(&IdKey::of(id)) {
            self.drop_before(number + 1);
        }
    }
}

/// The answer to `stream/resume`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Resumed {
    /// The connection continues. These messages must be sent again.
    Yes(Vec<Box<str>>),
    /// The connection cannot continue, for this reason.
    No(String),
}

impl Durable {
    /// Forgets the last connection for a new one. `id` is the connection id in the new one's handshake.
    pub(super) fn begin(&mut self, id: Option<&str>, is_wanted: bool) {
        *self = Self {
            stage: if is_wanted { Stage::Fresh } else { Stage::Off },
            id: id.filter(|id| id.len() <= MAX_TEXT).map(str::to_owned),
            ..Self::default()
        };
    }

    /// Gives the connection up.
    pub(super) fn end(&mut self) {
        self.begin(None, false);
    }

    /// Whether another connection can resume this one.
    pub(super) fn can_return(&self) -> bool {
        self.stage == Stage::Offered && self.id.is_some() && self.last.is_some()
    }

    /// The id of the connection, for the handshake of the next one.
    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref().filter(|_| self.can_return())
    }

    /// A message is sent to the server. Returns its text: `initialize` asks for cursors. At most `limit` bytes of messages are kept.
    pub(super) fn send<'a>(&mut self, text: &'a str, limit: usize) -> Cow<'a, str> {
        if self.stage == Stage::Off {
            return text.into();
        }
        let mut text = Cow::Borrowed(text);
        if self.stage == Stage::Fresh {
            match asking(&text) {
                Some((id, asking)) => {
                    self.stage = Stage::Asked(id);
                    text = asking.into();
                }
                None => {
                    self.end();
                    return text;
                }
            }
        }
        self.sent.push(&text, limit);
        text
    }

    /// A message has arrived from the server.
    pub(super) fn receive(&mut self, text: &str) {
        match &self.stage {
            Stage::Fresh | Stage::Off => return,
            Stage::Asked(_) | Stage::Offered => {}
        }
        if is_array(text) {
            let messages = batch_messages(text, Skimmer::new(text)).unwrap_or_default();
            // The last one has the cursor.
            return messages.into_iter().for_each(|one| self.receive_one(one));
        }
        self.receive_one(text);
    }

    fn receive_one(&mut self, text: &str) {
        let Ok(envelope) = Envelope::parse(text) else {
            return;
        };
        let response = match &envelope.kind {
            MessageKind::Response { id, .. } => Some(&text[id.clone()]),
            _ => None,
        };
        if let Some(id) = response {
            if self.stage == Stage::Asked(IdKey::of(id)) {
                self.handle_initialized(&envelope);
            }
            self.doubtful.remove(&IdKey::of(id));
            self.sent.confirm(id);
        }
        let outside = || {
            member(
                text,
                &member(text, &(0..text.len()), "_meta")?,
                "acp/cursor",
            )
        };
        if let Some(cursor) = envelope.of_meta("acp/cursor").or_else(outside) {
            self.note_cursor(&envelope, &text[cursor]);
        } else if let Some(id) = response
            && self.unplaced.len() < MAX_UNPLACED
        {
            self.unplaced.insert(IdKey::of(id));
        }
    }

    /// The requests whose response the server may repeat.
    pub(super) fn take_unplaced(&mut self) -> HashSet<IdKey> {
        std::mem::take(&mut self.unplaced)
    }

    /// `initialize` was answered.
    fn handle_initialized(&mut self, envelope: &Envelope<'_>) {
        let text = envelope.text;
        let resumable = || {
            let capabilities = envelope
                .of_body("capabilities")
                .or_else(|| envelope.of_body("agentCapabilities"))?;
            let transport = member(text, &capabilities, "transport")?;
            member(text, &transport, "resumable")
        };
        let is_offered = |value: &str| value.starts_with('{') || value == "true";
        if !resumable().is_some_and(|range| is_offered(&text[range])) {
            return self.end();
        }
        self.stage = Stage::Offered;
        if let Some(range) = envelope.of_body("connectionId")
            && let Ok(id) = serde_json::from_str::<String>(&text[range])
            && id.len() <= MAX_TEXT
        {
            self.id = Some(id);
        }
    }

    fn note_cursor(&mut self, envelope: &Envelope<'_>, cursor: &str) {
        if cursor.len() > MAX_TEXT || !cursor.starts_with('"') {
            return;
        }
        self.unplaced.clear();
        self.last = Some(cursor.into());
        match (&envelope.kind, &envelope.session) {
            // A response may belong to any stream.
            (MessageKind::Response { .. }, _) | (_, None) => self.connection = Some(cursor.into()),
            (_, Some(session)) => {
                let has_room = self.sessions.len() < MAX_SESSIONS && session.len() <= MAX_TEXT;
                if has_room || self.sessions.contains_key(&**session) {
                    self.sessions.insert(session.to_string(), cursor.into());
                }
            }
        }
    }

    /// The first message on the next connection.
    pub(super) fn resume(&self) -> String {
        let last = self.last.as_deref().unwrap_or("null");
        let connection = self.connection.as_deref().unwrap_or(last);
        let id = quote(self.id.as_deref().unwrap_or_default());
        let sessions = self.sessions.iter();
        let sessions = sessions.map(|(session, cursor)| format!("{}:{cursor}", quote(session)));
        let sessions = sessions.collect::<Vec<_>>().join(",");
        format!(
            r#"{{"jsonrpc":"2.0","id":{RESUME_ID},"method":"stream/resume","params":{{"connectionId":{id},"cursor":{last},"cursors":{{"connection":{connection},"sessions":{{{sessions}}}}}}}}}"#
        )
    }

    /// Handles a message on a connection on which `stream/resume` was sent. `None` if it is not the answer.
    pub(super) fn handle_answer(&mut self, text: &str) -> Option<Resumed> {
        let envelope = Envelope::parse(text).ok()?;
        match &envelope.kind {
            MessageKind::Notification { method } if method == "stream/resume_failed" => {
                let reason = envelope.of_body("reason");
                let reason = reason.and_then(|one| serde_json::from_str::<String>(&text[one]).ok());
                let reason = reason.as_deref().unwrap_or("no reason");
                Some(Resumed::No(shown(reason)))
            }
            MessageKind::Response { id, result } if is_same(&text[id.clone()], RESUME_ID) => {
                Some(match result {
                    Some(_) => self.handle_return(&envelope),
                    None => Resumed::No(failure_in(text)),
                })
            }
            _ => None,
        }
    }

    fn handle_return(&mut self, envelope: &Envelope<'_>) -> Resumed {
        let text = envelope.text;
        for turn in ["acp/turnState", "acp/turnStates"] {
            if let Some(turn) = envelope.of_meta(turn) {
                self.confirm_prompts(text, turn);
            }
        }
        let received = envelope
            .of_meta("outrigger")
            .and_then(|range| member(text, &range, "received"))
            .and_then(|range| text[range].parse().ok());
        match received {
            Some(received) if self.sent.contains(received) => self.sent.drop_before(received),
            Some(_) => return Resumed::No("the server has lost messages".to_owned()),
            None => self.doubtful.extend(self.sent.take_requests()),
        }
        Resumed::Yes(self.sent.messages.iter().cloned().collect())
    }

    /// Notes that the server has received the prompts of its turns. `states` is the state of a turn, or has one for each session.
    fn confirm_prompts(&mut self, text: &str, states: std::ops::Range<usize>) {
        let states: serde_json::Value = serde_json::from_str(&text[states]).unwrap_or_default();
        let each = states
            .as_object()
            .into_iter()
            .flat_map(|object| object.values());
        for state in std::iter::once(&states).chain(each) {
            if let Some(id) = state.get("promptRequestId") {
                let id = id.to_string();
                self.doubtful.remove(&IdKey::of(&id));
                self.sent.confirm(&id);
            }
        }
    }

    /// Returns the pending requests that the server may not have received, and forgets them.
    pub(super) fn take_doubtful(&mut self) -> HashSet<IdKey> {
        std::mem::take(&mut self.doubtful)
    }

    /// Whether there are such requests.
    pub(super) fn has_doubts(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// The number of messages that the server may not have received.
    pub(super) fn unconfirmed(&self) -> u64 {
        self.sent.messages.len() as u64
    }
}

/// The session of a message with this method.
fn session_of(text: &str, method: &str) -> Option<String> {
    let envelope = Envelope::parse(text).ok()?;
    let is_method = match &envelope.kind {
        MessageKind::Request { method: one, .. } | MessageKind::Notification { method: one } => {
            one == method
        }
        MessageKind::Response { .. } => false,
    };
    envelope.session.filter(|_| is_method).map(Cow::into_owned)
}

/// The ids of the requests in a message, which may be a batch.
fn requests_in(text: &str) -> Vec<IdKey> {
    let alone = Envelope::parse(text).ok();
    let all = alone.into_iter().chain(batch(text)).filter(is_request);
    all.filter_map(|one| one.id().map(IdKey::of)).collect()
}

/// The id of an `initialize` of the protocol, and the message with a request for cursors. `None` for any other message.
fn asking(text: &str) -> Option<(IdKey, String)> {
    let envelope = Envelope::parse(text).ok()?;
    let (MessageKind::Request { method, id }, Some(params)) = (&envelope.kind, &envelope.body)
    else {
        return None;
    };
    let version = envelope.of_body("protocolVersion")?;
    // In MCP it is a date.
    let version: u64 = text[version]
        .parse()
        .ok()
        .filter(|_| method == "initialize")?;
    let name = if version < 2 {
        "clientCapabilities"
    } else {
        "capabilities"
    };
    let resumable = r#""transport":{"resumable":{}}"#;
    let asking = match envelope.of_body(name) {
        Some(capabilities) if !text[capabilities.clone()].starts_with('{') => text.to_owned(),
        Some(capabilities) if member(text, &capabilities, "transport").is_some() => text.to_owned(),
        Some(capabilities) => insert_member(text, &capabilities, resumable),
        None => insert_member(text, params, &format!(r#""{name}":{{{resumable}}}"#)),
    };
    Some((IdKey::of(&text[id.clone()]), asking))
}
