//! Many sessions on one process, without I/O: what the sessions send.

use super::member::Level;
use super::multiplexer::{
    Effect, Incoming, Multiplexer, Output, PROCESS, Phase, Purpose, answered, uri_of,
};
use crate::service::jsonrpc::{
    Envelope, Forwarded, IdKey, IdRanges, MessageKind, PROGRESS, Reference, code, error, is_same,
    sole_member, splice,
};
use crate::service::mcp::hub::Handled;

impl Multiplexer {
    /// Handles a message from a session.
    pub(crate) fn handle_session(
        &mut self,
        number: usize,
        envelope: &Envelope<'_>,
        out: &mut Vec<Output>,
    ) -> Handled {
        match &envelope.kind {
            MessageKind::Request { method, id } => {
                let ids = IdRanges::find(envelope, id.clone());
                match ids.and_then(|ids| self.request(number, method, &ids, envelope, out)) {
                    Ok(()) => {}
                    Err(why) => {
                        let own = &envelope.text[id.clone()];
                        let failed = error(own, code::PARAMS, "Invalid params", Some(why));
                        self.answer(number, own, failed, out);
                    }
                }
                Handled::Passed
            }
            MessageKind::Notification { method } => self.notify(number, method, envelope, out),
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

    /// Answers a request of a session.
    pub(super) fn answer(&self, number: usize, id: &str, text: String, out: &mut Vec<Output>) {
        if let Some(member) = self.members.get(&number) {
            let answer = Incoming::Answer(id.to_owned().into());
            out.push(Output::Session(member.session, answer, text));
        }
    }

    fn request(
        &mut self,
        number: usize,
        method: &str,
        ids: &IdRanges,
        envelope: &Envelope<'_>,
        out: &mut Vec<Output>,
    ) -> Result<(), &'static str> {
        let text = envelope.text;
        let own = &text[ids.id.clone()];
        let mut effect = Effect::Nothing;
        let mut edit = None;
        if !self.members.contains_key(&number) {
            return Err("the session has ended");
        }
        match method {
            "initialize" => {
                match &self.result {
                    Some(result) => self.answer(number, own, answered(own, result), out),
                    None => self.arrivals.push((number, own.into())),
                }
                return Ok(());
            }
            // A process could take the second for a notification about a request of another session.
            _ if method.starts_with("tasks/")
                || method.starts_with("notifications/")
                || envelope.of_body("task").is_some() =>
            {
                let why = "a shared MCP server has no such requests, and no tasks";
                let failed = error(own, code::NO_METHOD, "Method not found", Some(why));
                self.answer(number, own, failed, out);
                return Ok(());
            }
            "logging/setLevel" => {
                let range = sole_member(envelope, "level").ok_or("\"level\" is missing")?;
                // The process rejects a level that it does not know.
                if let Some(own) = Level::parse(&text[range.clone()]) {
                    let others = self.members.iter().filter(|(of, _)| **of != number);
                    let others = others.filter_map(|(_, other)| other.level);
                    let sent = others.fold(own, Level::min);
                    self.level = Some(sent);
                    effect = Effect::Level(own);
                    edit = Some((range, sent.as_json()));
                }
            }
            "resources/subscribe" => {
                let uri = uri_of(envelope)?;
                if self.subscribe(number, &uri)? {
                    effect = Effect::Subscribes(uri);
                }
            }
            "resources/unsubscribe" => {
                let uri = uri_of(envelope)?;
                self.unsubscribe(number, &uri);
                if self.subscribers.contains_key(&uri) {
                    self.answer(number, own, answered(own, "{}"), out);
                    return Ok(());
                }
            }
            _ => {}
        }
        let upstream_id = self.ids.next();
        let sent = ids.with_upstream_id(text, upstream_id, edit, |parts| parts.concat());
        self.own_ids.insert((number, IdKey::of(own)), upstream_id);
        let call = Forwarded {
            process: PROCESS,
            upstream_id,
            sender_ids: Some(ids.read(text)),
            call: Purpose::Call(number, effect),
        };
        self.calls.insert(upstream_id, call);
        if self.phase == Phase::Ready {
            self.initialized(out);
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
            "notifications/initialized" => self.initialized(out),
            "notifications/cancelled" => {
                let Some(range) = envelope.request_id.clone() else {
                    return Handled::Dropped;
                };
                let raw = &text[range.clone()];
                let is_it =
                    |(arrival, id): &(usize, Box<str>)| *arrival == number && is_same(id, raw);
                self.arrivals.retain(|arrival| !is_it(arrival));
                let key = (number, IdKey::of(raw));
                let Some(&upstream_id) = self.own_ids.get(&key) else {
                    return Handled::Dropped;
                };
                if self.drop_call(upstream_id) {
                    let id = upstream_id.to_string();
                    let cancelled = splice(text, &mut [(range, &id)]).concat();
                    out.push(Output::Process(cancelled));
                }
            }
            PROGRESS => match self.questions.reference(number, method, envelope) {
                Reference::Progress(to) => out.push(Output::Process(to.parts(text).concat())),
                _ => return Handled::Dropped,
            },
            // Those about tasks name tasks that this process does not have. One person's sessions may say anything else.
            _ if self.is_one_person()
                && self.phase == Phase::Ready
                && method.starts_with("notifications/")
                && !method.starts_with("notifications/tasks/") =>
            {
                out.push(Output::Process(text.to_owned()));
            }
            _ => return Handled::Dropped,
        }
        Handled::Passed
    }
}
