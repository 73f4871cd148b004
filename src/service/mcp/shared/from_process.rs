//! The sessions of a process, without I/O: what the process sends.

use std::collections::BTreeSet;
use std::ops::Range;

use super::member::Level;
use super::multiplexer::{
    Ended, Failure, Incoming, Multiplexer, Output, PROCESS, Phase, Purpose, Question, Reach,
    answered, is_change, uri_of,
};
use uuid::Uuid;

use crate::service::jsonrpc::{
    Envelope, Forwarded, IdKey, IdRanges, MessageKind, PROGRESS, RecoveredId, Reference, SenderIds,
    code, error, is_same, member, splice, with_id,
};
use crate::service::mcp::hub::Handled;
use crate::service::mcp::subscription::with_parents;

/// The maximum length of the result of `initialize`, which is kept.
const MAX_RESULT: usize = 1 << 20;

/// The maximum length of a notification that goes to several sessions. It only says that something has changed.
const MAX_CHANGE: usize = 64 << 10;

/// The maximum number of requests from the process that sessions have not answered.
const MAX_QUESTIONS: usize = 256;

impl Multiplexer {
    /// Handles a message from the process. `reach` says whether a request reaches the client of a session.
    pub(crate) fn handle_process(
        &mut self,
        envelope: &Envelope<'_>,
        reach: &dyn Fn(Uuid) -> Reach,
        out: &mut Vec<Output>,
    ) -> Handled {
        match &envelope.kind {
            MessageKind::Response { id, result } => {
                match self.take_answered(&envelope.text[id.clone()]) {
                    Some(call) => {
                        self.handle_response(call, envelope, id, result.as_ref(), out);
                        Handled::Passed
                    }
                    None => {
                        log::debug!("the MCP server has answered a request that does not wait");
                        Handled::Dropped
                    }
                }
            }
            _ if self.is_own() => self.pass_to_owner(envelope, out),
            MessageKind::Request { method, id } => {
                self.handle_request(method, id, envelope, reach, out)
            }
            MessageKind::Notification { method } => self.handle_notification(method, envelope, out),
        }
    }

    /// Takes the request that the process answers under this id. A request that is held has not been sent.
    fn take_answered(&mut self, raw: &str) -> Option<Forwarded<Purpose>> {
        let known = if self.is_own() {
            let (number, _) = self.members.first_key_value()?;
            self.own_ids.get(&(*number, IdKey::of(raw))).copied()
        } else {
            let call = self.calls.of_process(PROCESS, raw);
            call.map(|call| call.upstream_id)
        };
        let known = known.filter(|id| !self.held.contains(*id))?;
        self.take(known)
    }

    /// Passes a request or a notification on to the only session, as it is.
    fn pass_to_owner(&self, envelope: &Envelope<'_>, out: &mut Vec<Output>) -> Handled {
        let Some(session) = self.owner() else {
            return Handled::Dropped;
        };
        let text = envelope.text;
        let incoming = match &envelope.kind {
            MessageKind::Request { .. } => Incoming::Request,
            MessageKind::Notification { method } if method == PROGRESS => {
                let token = envelope.of_body("progressToken").map(|at| &text[at]);
                let has_token = |call: &&Forwarded<Purpose>| {
                    let ids = call.sender_ids.as_ref();
                    let own = ids.and_then(|ids| ids.progress_token.as_deref());
                    own.zip(token)
                        .is_some_and(|(own, token)| is_same(own, token))
                };
                let call = self.calls.values().find(has_token);
                Incoming::Progress(call.and_then(|call| match call.call {
                    Purpose::Call(_, stream, _) => Some(stream),
                    _ => None,
                }))
            }
            MessageKind::Notification { method } if is_change(method) => Incoming::Change,
            _ => Incoming::Other,
        };
        out.push(Output::Session(session, incoming, text.to_owned()));
        Handled::Passed
    }

    /// Handles a line from the process that is not a message.
    pub(crate) fn handle_unreadable(
        &mut self,
        recovered: &RecoveredId,
        why: &str,
        out: &mut Vec<Output>,
    ) {
        match recovered {
            RecoveredId::Request(id) => {
                let why = format!("the request {why}");
                let failed = error(id, code::INVALID, "Invalid request", Some(&why));
                out.push(Output::AnswerToProcess(failed));
            }
            RecoveredId::Response(id) => {
                let Some(call) = self.take_answered(id) else {
                    return;
                };
                let why = format!("the MCP server's answer {why}");
                let failed = error("null", code::INTERNAL, "Internal error", Some(&why));
                match (call.call, call.sender_ids) {
                    (Purpose::Begin, _) => self.refuse(failed, out),
                    (Purpose::Call(number, stream, effect), Some(SenderIds { id, .. })) => {
                        self.settle(number, effect, false, out);
                        let failed = with_id(&failed, &id);
                        self.answer(number, Ended { id, stream }, failed, out);
                    }
                    _ => {}
                }
            }
        }
    }

    fn handle_response(
        &mut self,
        call: Forwarded<Purpose>,
        envelope: &Envelope<'_>,
        id: &Range<usize>,
        result: Option<&Range<usize>>,
        out: &mut Vec<Output>,
    ) {
        let text = envelope.text;
        let restored = call.with_sender_ids(envelope, id.clone(), |parts| parts.concat());
        match (call.call, call.sender_ids) {
            (Purpose::Begin, _) => {
                let kept = result.and_then(|result| without_tasks(&text[result.clone()]));
                match (kept, result) {
                    (Some(kept), _) => self.handle_initialized(kept, out),
                    (None, Some(_)) => {
                        let why = "the MCP server's answer is too long or has no capabilities";
                        let failed = error("null", code::INTERNAL, "Internal error", Some(why));
                        self.refuse(failed, out);
                    }
                    (None, None) => self.refuse(text.to_owned(), out),
                }
            }
            (Purpose::Call(number, stream, effect), Some(SenderIds { id, .. })) => {
                self.settle(number, effect, result.is_some(), out);
                self.answer(
                    number,
                    Ended { id, stream },
                    restored.unwrap_or_default(),
                    out,
                );
            }
            _ => {}
        }
    }

    /// Handles the result of `initialize`: the process is initialized.
    fn handle_initialized(&mut self, result: Box<str>, out: &mut Vec<Output>) {
        self.result = Some(result);
        self.complete(out);
    }

    /// Gives up a process that cannot be initialized. All requests get the error.
    fn refuse(&mut self, error: String, out: &mut Vec<Output>) {
        self.end(&Failure::Error(error), out);
        out.push(Output::Refused);
    }

    /// Passes a request from the process on to the session that it is for.
    fn handle_request(
        &mut self,
        method: &str,
        id: &Range<usize>,
        envelope: &Envelope<'_>,
        reach: &dyn Fn(Uuid) -> Reach,
        out: &mut Vec<Output>,
    ) -> Handled {
        let own = &envelope.text[id.clone()];
        let refuse = |code, message, why| error(own, code, message, Some(why));
        if method == "ping" {
            out.push(Output::AnswerToProcess(answered(own, "{}")));
            return Handled::Passed;
        }
        let receiver = self.receiver(reach);
        let ids = IdRanges::find(envelope, id.clone());
        let refused = match (receiver, ids) {
            _ if method.starts_with("tasks/") || self.phase != Phase::Ready => {
                refuse(code::NO_METHOD, "Method not found", "there is no such task")
            }
            (None, _) => {
                let why = "several clients share this server, and none of them is the one to ask";
                refuse(code::NO_METHOD, "Method not found", why)
            }
            (_, Err(why)) => refuse(code::INVALID, "Invalid request", why),
            _ if self.questions.len() >= MAX_QUESTIONS => {
                let why = "too many requests wait for clients";
                refuse(code::INTERNAL, "Internal error", why)
            }
            (Some((number, session)), Ok(ids)) => {
                let upstream_id = self.ids.next();
                let question = Forwarded {
                    process: number,
                    upstream_id,
                    sender_ids: Some(ids.read(envelope.text)),
                    call: Question,
                };
                self.questions.insert(upstream_id, question);
                let text =
                    ids.with_upstream_id(envelope.text, upstream_id, None, |parts| parts.concat());
                out.push(Output::Session(session, Incoming::Request, text));
                return Handled::Passed;
            }
        };
        out.push(Output::AnswerToProcess(refused));
        Handled::Refused
    }

    /// The session that gets a request from the process. If all sessions belong to one person, it is the newest that the request reaches
    /// now, or else the newest that it reaches later. Otherwise it is the only session.
    fn receiver(&self, reach: &dyn Fn(Uuid) -> Reach) -> Option<(usize, Uuid)> {
        let sole = self.sole();
        let newest = |wanted: Reach| {
            let mut newest_first = self.members.iter().rev();
            let found = newest_first.find(|(_, member)| {
                let may_get = self.is_one_person() || Some(member.session) == sole;
                may_get && reach(member.session) == wanted
            });
            found.map(|(number, member)| (*number, member.session))
        };
        newest(Reach::Now).or_else(|| newest(Reach::Later))
    }

    fn handle_notification(
        &mut self,
        method: &str,
        envelope: &Envelope<'_>,
        out: &mut Vec<Output>,
    ) -> Handled {
        let text = envelope.text;
        let before = out.len();
        match method {
            PROGRESS => {
                if let Reference::Progress(to) = self.calls.reference(PROCESS, method, envelope)
                    && let Some(call) = self.calls.get(to.upstream_id)
                    && let Purpose::Call(number, stream, _) = call.call
                    && let Some(member) = self.members.get(&number)
                {
                    let incoming = Incoming::Progress(Some(stream));
                    let restored = to.parts(text).concat();
                    out.push(Output::Session(member.session, incoming, restored));
                }
            }
            "notifications/cancelled" => self.cancel_question(envelope, out),
            _ if is_change(method) && text.len() > MAX_CHANGE => {}
            "notifications/resources/updated" => {
                if let Ok(uri) = uri_of(envelope) {
                    let subscribers =
                        with_parents(&uri).filter_map(|uri| self.subscribers.get(uri));
                    let numbers: BTreeSet<usize> = subscribers.flatten().copied().collect();
                    self.change(numbers.iter(), text, out);
                }
            }
            "notifications/message" => {
                let raised = envelope
                    .of_body("level")
                    .and_then(|at| Level::parse(&text[at]));
                let mut members = self.members.values();
                let sole = self.sole();
                let sole = members.find(|member| Some(member.session) == sole);
                let wanted =
                    sole.filter(|member| member.level.is_none_or(|least| raised >= Some(least)));
                out.extend(wanted.map(|member| other(member.session, text)));
            }
            _ if method.ends_with("/list_changed")
                || (method == "notifications/elicitation/complete" && self.is_one_person()) =>
            {
                // The client that knows the elicitation recognizes its id.
                self.change(self.members.keys(), text, out);
            }
            _ => out.extend(self.sole().map(|session| other(session, text))),
        }
        if out.len() > before {
            Handled::Passed
        } else {
            Handled::Dropped
        }
    }

    /// Passes a change on to these members.
    fn change<'a>(
        &self,
        numbers: impl Iterator<Item = &'a usize>,
        text: &str,
        out: &mut Vec<Output>,
    ) {
        let members = numbers.filter_map(|number| self.members.get(number));
        let sessions: Vec<Uuid> = members.map(|member| member.session).collect();
        if !sessions.is_empty() {
            out.push(Output::Change(sessions, text.to_owned()));
        }
    }

    /// Handles the cancellation of a request from the process.
    fn cancel_question(&mut self, envelope: &Envelope<'_>, out: &mut Vec<Output>) {
        let Some(range) = envelope.request_id.clone() else {
            return;
        };
        let raw = &envelope.text[range.clone()];
        let is_it = |question: &Forwarded<Question>| {
            let ids = question.sender_ids.as_ref();
            ids.is_some_and(|ids| is_same(&ids.id, raw))
        };
        let id = self.questions.ids_of(is_it).pop();
        if let Some(question) = id.and_then(|id| self.questions.remove(id))
            && let Some(member) = self.members.get(&question.process)
        {
            let id = question.upstream_id.to_string();
            let cancelled = splice(envelope.text, &mut [(range, &id)]).concat();
            out.push(Output::Session(member.session, Incoming::Other, cancelled));
        }
    }
}

fn other(session: Uuid, text: &str) -> Output {
    Output::Session(session, Incoming::Other, text.to_owned())
}

/// The result of `initialize` without the capability of tasks, which belong to one client. `None` if the result is no object, or is
/// too long.
fn without_tasks(result: &str) -> Option<Box<str>> {
    if result.len() > MAX_RESULT || !result.starts_with('{') {
        return None;
    }
    let capabilities = member(result, &(0..result.len()), "capabilities");
    if !capabilities.is_some_and(|range| result[range].contains("\"tasks\"")) {
        return Some(result.into());
    }
    let mut value: serde_json::Value = serde_json::from_str(result).ok()?;
    value
        .get_mut("capabilities")?
        .as_object_mut()?
        .remove("tasks");
    Some(value.to_string().into())
}
