//! The sessions of a process, without I/O: what the sessions send.

use std::ops::Range;

use super::member::Level;
use super::multiplexer::{
    Effect, Ended, Incoming, Multiplexer, Output, PROCESS, Phase, Purpose, answered, uri_of,
};
use crate::service::jsonrpc::{
    Envelope, Forwarded, IdKey, IdRanges, MessageKind, PROGRESS, Reference, code, error,
    sole_member, splice,
};
use crate::service::mcp::hub::Handled;

/// What the answer to a request decides, and an edit of its text.
type Prepared = (Effect, Option<(Range<usize>, &'static str)>);

impl Multiplexer {
    /// Handles a message from a session. The answer to a request has the number `stream`.
    pub(crate) fn handle_session(
        &mut self,
        number: usize,
        stream: u32,
        envelope: &Envelope<'_>,
        out: &mut Vec<Output>,
    ) -> Handled {
        match &envelope.kind {
            MessageKind::Request { method, id } => {
                let ids = match self.is_own() {
                    true => Ok(IdRanges {
                        id: id.clone(),
                        progress_token: envelope.of_meta("progressToken"),
                    }),
                    false => IdRanges::find(envelope, id.clone()),
                };
                let sent =
                    ids.and_then(|ids| self.request(number, (method, stream), &ids, envelope, out));
                if let Err(why) = sent {
                    let own = &envelope.text[id.clone()];
                    let failed = error(own, code::PARAMS, "Invalid params", Some(why));
                    self.answer(number, Ended::new(own, stream), failed, out);
                }
                Handled::Passed
            }
            MessageKind::Notification { method } => self.notify(number, method, envelope, out),
            MessageKind::Response { .. } if self.is_own() => self.pass(envelope, out),
            MessageKind::Response { id, .. } => {
                let raw = &envelope.text[id.clone()];
                let question = self.questions.of_process(number, raw);
                let Some(upstream_id) = question.map(|question| question.upstream_id) else {
                    return Handled::Dropped;
                };
                let question = self.questions.remove(upstream_id);
                let restored = question.and_then(|question| {
                    question.with_sender_ids(envelope, id.clone(), |parts| parts.concat())
                });
                out.extend(restored.map(Output::Process));
                Handled::Passed
            }
        }
    }

    /// Passes a message on to the process as it is.
    fn pass(&self, envelope: &Envelope<'_>, out: &mut Vec<Output>) -> Handled {
        if !self.is_open() {
            return Handled::Dropped;
        }
        out.push(Output::Process(envelope.text.to_owned()));
        Handled::Passed
    }

    /// Notes what a request to a shared process changes for its session. Returns `None` if the request is answered here.
    fn prepare(
        &mut self,
        number: usize,
        (method, stream): (&str, u32),
        own: &str,
        envelope: &Envelope<'_>,
        out: &mut Vec<Output>,
    ) -> Result<Option<Prepared>, &'static str> {
        if !self.members.contains_key(&number) {
            return Err("the session has ended");
        }
        let answer = match method {
            "initialize" => match &self.result {
                Some(result) => answered(own, result),
                None => return Ok(Some((Effect::Initialize, None))),
            },
            // A process could take the second for a notification about a request of another session.
            _ if method.starts_with("tasks/")
                || method.starts_with("notifications/")
                || envelope.of_body("task").is_some() =>
            {
                let why = "a shared MCP server has no such requests, and no tasks";
                error(own, code::NO_METHOD, "Method not found", Some(why))
            }
            "logging/setLevel" => {
                let range = sole_member(envelope, "level").ok_or("\"level\" is missing")?;
                // The process rejects a level that it does not know.
                let Some(own) = Level::parse(&envelope.text[range.clone()]) else {
                    return Ok(Some((Effect::Nothing, None)));
                };
                let others = self.members.iter().filter(|(of, _)| **of != number);
                let others = others.filter_map(|(_, other)| other.level);
                let sent = others.fold(own, Level::min);
                self.level = Some(sent);
                return Ok(Some((Effect::Level(own), Some((range, sent.as_json())))));
            }
            "resources/subscribe" => {
                let uri = uri_of(envelope)?;
                let effect = match self.subscribe(number, &uri)? {
                    true => Effect::Subscribes(uri),
                    false => Effect::Nothing,
                };
                return Ok(Some((effect, None)));
            }
            "resources/unsubscribe" => {
                let uri = uri_of(envelope)?;
                self.unsubscribe(number, &uri);
                if !self.subscribers.contains_key(&uri) {
                    return Ok(Some((Effect::Nothing, None)));
                }
                answered(own, "{}")
            }
            _ => return Ok(Some((Effect::Nothing, None))),
        };
        self.answer(number, Ended::new(own, stream), answer, out);
        Ok(None)
    }

    /// Sends a request, or holds it until the process is ready.
    fn request(
        &mut self,
        number: usize,
        (method, stream): (&str, u32),
        ids: &IdRanges,
        envelope: &Envelope<'_>,
        out: &mut Vec<Output>,
    ) -> Result<(), &'static str> {
        let text = envelope.text;
        let own = &text[ids.id.clone()];
        let prepared = match method {
            "initialize" if self.is_own() => Some((Effect::Initialize, None)),
            _ if self.is_own() => Some((Effect::Nothing, None)),
            _ => self.prepare(number, (method, stream), own, envelope, out)?,
        };
        let Some((effect, edit)) = prepared else {
            return Ok(());
        };
        let upstream_id = self.ids.next();
        // A shared process is initialized by Outrigger, so this request only waits for that.
        let waits = !self.is_own() && matches!(effect, Effect::Initialize);
        let sent = match self.is_own() {
            _ if waits => String::new(),
            true => text.to_owned(),
            false => ids.with_upstream_id(text, upstream_id, edit, |parts| parts.concat()),
        };
        let key = (number, IdKey::of(own));
        self.own_ids.insert(key, upstream_id);
        let call = Forwarded {
            process: PROCESS,
            upstream_id,
            sender_ids: Some(ids.read(text)),
            call: Purpose::Call(number, stream, effect),
        };
        self.calls.insert(upstream_id, call);
        if self.is_open() && !waits {
            if !self.is_own() {
                self.initialized(out);
            }
            out.push(Output::Process(sent));
        } else if let Some(member) = self.members.get(&number) {
            self.held.insert(upstream_id, &member.principal, sent);
        }
        Ok(())
    }

    fn notify(
        &mut self,
        number: usize,
        method: &str,
        envelope: &Envelope<'_>,
        out: &mut Vec<Output>,
    ) -> Handled {
        let text = envelope.text;
        match method {
            "notifications/cancelled" => return self.cancel_call(number, envelope, out),
            _ if self.is_own() => return self.pass(envelope, out),
            "notifications/initialized" => self.initialized(out),
            PROGRESS => match self.questions.reference(number, method, envelope) {
                Reference::Progress(to) => out.push(Output::Process(to.parts(text).concat())),
                _ => return Handled::Dropped,
            },
            // Those about tasks name tasks that this process does not have. One person's sessions may say anything else.
            _ if self.is_one_person()
                && method.starts_with("notifications/")
                && !method.starts_with("notifications/tasks/") =>
            {
                return self.pass(envelope, out);
            }
            _ => return Handled::Dropped,
        }
        Handled::Passed
    }

    /// Handles the cancellation of a request by its session.
    fn cancel_call(
        &mut self,
        number: usize,
        envelope: &Envelope<'_>,
        out: &mut Vec<Output>,
    ) -> Handled {
        let text = envelope.text;
        let range = envelope.request_id.clone();
        let key = range.as_ref().map(|at| IdKey::of(&text[at.clone()]));
        let pending = key.and_then(|key| self.own_ids.get(&(number, key)).copied());
        let (Some(upstream_id), Some(range)) = (pending, range) else {
            // It may name something that only the process and its session know.
            return match self.is_own() {
                true => self.pass(envelope, out),
                false => Handled::Dropped,
            };
        };
        let call = self.take_call(upstream_id);
        if self.was_sent(upstream_id) {
            let id = upstream_id.to_string();
            out.push(Output::Process(match self.is_own() {
                true => text.to_owned(),
                false => splice(text, &mut [(range, &id)]).concat(),
            }));
        }
        let is_initialize = matches!(call, Some((.., Effect::Initialize)));
        if is_initialize && self.is_own() && self.phase == Phase::Initializing {
            // The process has nothing to answer any more, so no time limit ends it.
            self.phase = Phase::Ready;
        }
        if let Some((_, ended, _)) = call
            && let Some(member) = self.members.get(&number)
        {
            let text = error(&ended.id, code::CANCELLED, "Request cancelled", None);
            let cancelled = Incoming::Cancelled(ended);
            out.push(Output::Session(member.session, cancelled, text));
        }
        Handled::Passed
    }
}
