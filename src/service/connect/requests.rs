//! The JSON-RPC requests that pass through a bridge, without I/O.
//!
//! [`Requests`] sees every message of both sides. It knows which requests wait for an answer, so that each one gets an error
//! when the connection is lost for good. After that, no message of the old connection reaches the new one:
//!
//! * The local side's answers to requests of the old connection are dropped. If a request on the new connection has the id of
//!   such a request, the local side sees it under another id.
//! * If the local side has sent `initialize`, its messages are not passed on until it sends `initialize` again, or until the new
//!   connection has taken the place of the old one.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use super::restoration::RESTORE_ID;
use super::sessions::Sessions;
use crate::service::json::{Skimmer, quote};
use crate::service::jsonrpc::{
    Envelope, EnvelopeError, IdKey, MAX_ID, MessageKind, WaitingIds, batch_messages, code, error,
    invalid_message_error, is_array, member, success, with_id,
};
use crate::service::process::AttachEvent;

/// The maximum number of requests of each side that wait for an answer.
pub(super) const MAX_WAITING: usize = 4096;

/// What to do with a message of the local side.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Local<'a> {
    /// Pass it on.
    Pass(Cow<'a, str>),
    /// Begin a new connection and pass it on.
    Begin(&'a str),
    /// Do not pass it on, and write this response to the local side.
    Reply(String),
    /// Do not pass it on.
    Drop,
}

/// What to do with a message of the remote side.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Remote<'a> {
    /// Pass it on.
    Pass(Cow<'a, str>),
    /// Do not pass it on, and send this to the remote side.
    Refuse(String),
    /// Do not pass it on. It is not a message of JSON-RPC.
    Ignore,
    /// Do not pass it on. It answers a request of the bridge that is no longer pending.
    Drop,
}

/// The requests of both sides.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// The local side's requests that the remote side has not answered.
    local: WaitingIds,
    /// The remote side's requests that the local side has not answered, by the ids that the local side knows.
    remote: WaitingIds,
    /// Requests of lost connections that the local side may still answer.
    stale: WaitingIds,
    /// The remote side's ids of requests that have another id on the local side, by the latter.
    renamed: HashMap<IdKey, Box<str>>,
    /// The number of ids that were replaced.
    renames: u64,
    /// Whether the local side has sent `initialize` on this connection.
    is_initialized: bool,
    /// Why the connection was lost, until the local side sends `initialize` again.
    lost: Option<Box<str>>,
    /// The local side's sessions, for the next connection.
    pub(super) sessions: Sessions,
    /// Whether another connection has taken the place of the one on which the local side has sent `initialize`.
    is_restored: bool,
}

impl Requests {
    /// Whether requests of the local side wait for an answer.
    pub(super) fn has_waiting(&self) -> bool {
        !self.local.is_empty()
    }

    /// The number of requests of the local side that wait for an answer.
    pub(super) fn waiting_count(&self) -> usize {
        self.local.len()
    }

    /// Whether the connection was lost and only `initialize` begins another one.
    pub(super) fn awaits_initialize(&self) -> bool {
        self.lost.is_some()
    }

    /// Handles a message of the local side.
    pub(super) fn handle_local<'a>(&mut self, text: &'a str) -> Local<'a> {
        let envelope = match Envelope::parse(text) {
            Ok(envelope) => envelope,
            Err(error @ EnvelopeError::Parse) => {
                return Local::Reply(invalid_message_error(text, &error));
            }
            // The server decides about a batch, and about other versions of JSON-RPC.
            Err(EnvelopeError::Invalid { .. }) if self.lost.is_none() => {
                self.note_local_batch(text);
                return Local::Pass(text.into());
            }
            Err(error) => return Local::Reply(invalid_message_error(text, &error)),
        };
        match &envelope.kind {
            MessageKind::Request { method, id } => {
                let raw = &text[id.clone()];
                let local = self.handle_local_request(text, method == "initialize", raw);
                if matches!(local, Local::Pass(_) | Local::Begin(_)) {
                    self.sessions.handle_local(&envelope);
                }
                local
            }
            MessageKind::Notification { .. } if self.lost.is_some() => Local::Drop,
            MessageKind::Notification { .. } => {
                if let Some((id, true)) = cancelled(&envelope) {
                    self.local.remove(&IdKey::of(&text[id]));
                }
                Local::Pass(text.into())
            }
            MessageKind::Response { id, .. } => match self.answer(&text[id.clone()]) {
                Answer::Stale => Local::Drop,
                Answer::Renamed(original) => Local::Pass(with_id(text, &original).into()),
                Answer::Same => Local::Pass(text.into()),
            },
        }
    }

    fn handle_local_request<'a>(
        &mut self,
        text: &'a str,
        is_initialize: bool,
        id: &str,
    ) -> Local<'a> {
        if id.len() > MAX_ID {
            let why = Some("the id is too long");
            return Local::Reply(error(id, code::INVALID, "Invalid request", why));
        }
        if is_initialize
            && self.is_restored
            && let Some(result) = self.sessions.initialized()
        {
            // Some local sides do so after an error about the connection.
            return Local::Reply(success(id, result).concat());
        }
        match self.lost.take_if(|_| is_initialize) {
            Some(_) => {
                self.is_initialized = true;
                self.local.insert(id);
                return Local::Begin(text);
            }
            None => {
                if let Some(reason) = &self.lost {
                    return Local::Reply(lost_error(id, reason));
                }
            }
        }
        if self.local.len() == MAX_WAITING {
            return Local::Reply(too_many(id));
        }
        self.is_initialized |= is_initialize;
        self.local.insert(id);
        Local::Pass(text.into())
    }

    /// Notes the requests in a batch, if the message is one.
    fn note_local_batch(&mut self, text: &str) {
        for envelope in batch(text) {
            if let Some(id) = envelope.id().filter(|_| is_request(&envelope))
                && self.local.len() < MAX_WAITING
            {
                self.local.insert(id);
                self.sessions.handle_local(&envelope);
            }
        }
    }

    /// Notes the responses and requests in a batch, if the message is one.
    fn note_remote_batch(&mut self, text: &str) {
        for envelope in batch(text) {
            self.sessions.handle_remote(&envelope);
            match envelope.id() {
                Some(id) if is_request(&envelope) && self.remote.len() < MAX_WAITING => {
                    self.remote.insert(id);
                }
                Some(id) if !is_request(&envelope) => _ = self.local.remove(&IdKey::of(id)),
                _ => {}
            }
        }
    }

    /// The request that an answer of the local side is for.
    fn answer(&mut self, id: &str) -> Answer {
        let key = IdKey::of(id);
        if self.stale.remove(&key) || self.lost.is_some() {
            return Answer::Stale;
        }
        self.remote.remove(&key);
        match self.renamed.remove(&key) {
            Some(original) => Answer::Renamed(original),
            None => Answer::Same,
        }
    }

    /// Handles a message of the remote side.
    pub(super) fn handle_remote<'a>(&mut self, text: &'a str) -> Remote<'a> {
        let envelope = match Envelope::parse(text) {
            Ok(envelope) => envelope,
            Err(EnvelopeError::Invalid { .. }) if may_be_message(text) => {
                self.note_remote_batch(text);
                return Remote::Pass(text.into());
            }
            Err(_) => return Remote::Ignore,
        };
        self.sessions.handle_remote(&envelope);
        match &envelope.kind {
            MessageKind::Request { id, .. } => {
                let raw = &text[id.clone()];
                if raw.len() > MAX_ID {
                    let why = Some("the id is too long");
                    return Remote::Refuse(error(raw, code::INVALID, "Invalid request", why));
                }
                if self.remote.len() == MAX_WAITING {
                    return Remote::Refuse(too_many(raw));
                }
                let key = IdKey::of(raw);
                if self.stale.contains(&key) || self.renamed.contains_key(&key) {
                    let id = self.rename(raw);
                    self.remote.insert(&id);
                    return Remote::Pass(with_id(text, &id).into());
                }
                self.remote.insert(raw);
            }
            MessageKind::Notification { .. } => {
                if let Some((id, ends)) = cancelled(&envelope) {
                    return self.handle_cancellation(text, id, ends);
                }
            }
            MessageKind::Response { id, .. } => {
                let raw = &text[id.clone()];
                let key = IdKey::of(raw);
                // The local side may use such an id too, so its own request comes first.
                if !self.local.remove(&key) && is_own(raw) {
                    return Remote::Drop;
                }
            }
        }
        Remote::Pass(text.into())
    }

    /// Another id for a request of the remote side.
    fn rename(&mut self, raw: &str) -> String {
        loop {
            self.renames += 1;
            let id = quote(&format!("outrigger-{}", self.renames));
            let key = IdKey::of(&id);
            if !self.stale.contains(&key) && !self.remote.contains(&key) {
                self.renamed.insert(key, raw.into());
                return id;
            }
        }
    }

    /// The remote side cancels its request with the id at `range`. It gets no answer if `ends`.
    fn handle_cancellation<'a>(
        &mut self,
        text: &'a str,
        range: Range<usize>,
        ends: bool,
    ) -> Remote<'a> {
        let key = IdKey::of(&text[range.clone()]);
        let mut renamed = self.renamed.iter();
        let local = renamed.find(|(_, original)| IdKey::of(original) == key);
        let local = local.map(|(local, _)| local.clone());
        if ends {
            let known = local.as_ref().unwrap_or(&key);
            self.remote.remove(known);
            self.renamed.remove(known);
        }
        match local {
            Some(local) => {
                let id = local.to_raw();
                Remote::Pass(
                    [&text[..range.start], &id, &text[range.end..]]
                        .concat()
                        .into(),
                )
            }
            None => Remote::Pass(text.into()),
        }
    }

    /// The connection is lost for good. Returns an error for each request of the local side that waits, in the order of the
    /// requests.
    pub(super) fn handle_loss(&mut self, reason: &str) -> Vec<String> {
        self.handle_loss_of(reason, |_| true)
    }

    /// Like [`Self::handle_loss`], but only requests for which `is_sent` is true get an error. The others stay pending.
    pub(super) fn handle_loss_of(
        &mut self,
        reason: &str,
        is_sent: impl Fn(&IdKey) -> bool,
    ) -> Vec<String> {
        if self.is_initialized {
            self.lost = Some(reason.into());
            self.is_initialized = false;
        }
        self.is_restored = false;
        self.sessions.handle_loss(&is_sent);
        self.renamed.clear();
        // A local side that never answers must not make this grow.
        let room = MAX_WAITING.saturating_sub(self.stale.len());
        for id in self.remote.take().into_iter().take(room) {
            self.stale.insert(&id);
        }
        let mut errors = Vec::new();
        for id in self.local.take() {
            if is_sent(&IdKey::of(&id)) {
                errors.push(lost_error(&id, reason));
            } else {
                self.local.insert(&id);
            }
        }
        errors
    }

    /// The next connection takes the place of the one that was lost, so the local side need not send `initialize` again.
    pub(super) fn continue_on_next(&mut self) {
        self.is_initialized |= self.lost.take().is_some();
        self.is_restored = true;
    }
}

/// The messages of a batch that are valid. None if the text is no batch.
fn batch(text: &str) -> Vec<Envelope<'_>> {
    if !is_array(text) {
        return Vec::new();
    }
    let messages = batch_messages(text, Skimmer::new(text)).unwrap_or_default();
    let messages = messages.into_iter().map(Envelope::parse);
    messages.filter_map(Result::ok).collect()
}

fn is_request(envelope: &Envelope<'_>) -> bool {
    matches!(envelope.kind, MessageKind::Request { .. })
}

/// Whether the bridge gives its own requests such ids.
fn is_own(id: &str) -> bool {
    id.starts_with(RESTORE_ID)
}

/// The request that an answer is for.
enum Answer {
    /// One of a lost connection.
    Stale,
    /// One that has this id on the remote side.
    Renamed(Box<str>),
    /// One with the same id on both sides, or none.
    Same,
}

/// Whether a JSON text may be a batch, or a message of another version of JSON-RPC or of a similar protocol, such as that of
/// debug adapters. The server of a terminal is recognized by its own messages.
fn may_be_message(text: &str) -> bool {
    let is_structured = text.trim_ascii_start().starts_with(['{', '[']);
    is_structured && AttachEvent::parse(text).is_none()
}

/// The id in a notification that cancels a request, and whether the request then gets no answer.
fn cancelled(envelope: &Envelope<'_>) -> Option<(Range<usize>, bool)> {
    let MessageKind::Notification { method } = &envelope.kind else {
        return None;
    };
    let body = envelope.body.as_ref()?;
    match &**method {
        "notifications/cancelled" => Some((member(envelope.text, body, "requestId")?, true)),
        "$/cancel_request" => Some((member(envelope.text, body, "requestId")?, false)),
        "$/cancelRequest" => Some((member(envelope.text, body, "id")?, false)),
        _ => None,
    }
}

/// The error for a request whose connection was lost.
fn lost_error(id: &str, reason: &str) -> String {
    let reason = quote(reason);
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{},"message":"Connection lost","data":{{"reason":{reason}}}}}}}"#,
        code::CONNECTION_LOST
    )
}

fn too_many(id: &str) -> String {
    error(id, code::TOO_MANY, "Too many waiting requests", None)
}
