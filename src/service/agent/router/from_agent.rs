//! Messages of the agent: to the clients that they are for.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::{
    Asked, Class, MAX_ELICITATION_ID, MAX_ELICITATIONS, MAX_ID, MAX_SESSION_ID, Router, Waiting,
    Wires, cancelled_id, is_cancellation, our_id, remove, same_id, splice,
};
use crate::service::agent::answer::{answer_for_nobody, code, error, with_id, with_resume_token};
use crate::service::agent::envelope::{Envelope, Kind, member};
use crate::service::agent::initialize::Initialize;
use crate::service::agent::json::unescape;
use crate::service::agent::salvage::{Salvage, Salvaged};
use crate::{ClientId, Time};

impl Router {
    /// Handles a line of the agent.
    pub(crate) fn receive_from_agent(&mut self, now: Time, text: &str, wires: &mut impl Wires) {
        let envelope = match Envelope::parse(text) {
            Ok(envelope) => envelope,
            Err(invalid) => {
                let shown = &text[..text.floor_char_boundary(100)];
                log::warn!(
                    "skipped a line of the agent that is not a valid message ({invalid:?}): {shown:?}"
                );
                let salvaged = Salvage::of(text.as_bytes());
                return self.handle_unreadable(now, salvaged, "is not a valid message", wires);
            }
        };
        match &envelope.kind {
            Kind::Response { id, result } => {
                self.answer_client(now, &envelope, id.clone(), result.is_some(), wires)
            }
            Kind::Request { method, id } => self.ask_client(&envelope, method, id.clone(), wires),
            Kind::Notification { method } => self.notify_client(&envelope, method, wires),
        }
    }

    /// Handles a line of the agent that could not be passed on: if it was an answer, its request fails.
    pub(crate) fn handle_unreadable(
        &mut self,
        now: Time,
        salvaged: Option<Salvaged>,
        why: &str,
        wires: &mut impl Wires,
    ) {
        self.counters.dropped += 1;
        match salvaged {
            Some(Salvaged::Response(id)) if our_id(&id).is_some() => {
                let why = format!("the agent's answer {why}");
                let failed = error(&id, code::INTERNAL, "Internal error", Some(&why));
                self.receive_from_agent(now, &failed, wires);
            }
            Some(Salvaged::Request(id)) => {
                let why = format!("the request {why}");
                let refused = error(&id, code::INVALID, "Invalid request", Some(&why));
                wires.to_agent(&[&refused]);
            }
            _ => {}
        }
    }

    fn answer_client(
        &mut self,
        now: Time,
        envelope: &Envelope<'_>,
        id: Range<usize>,
        success: bool,
        wires: &mut impl Wires,
    ) {
        let text = envelope.text;
        let Some(ours) = our_id(&text[id.clone()]) else {
            return self.drop_answer(&text[id]);
        };
        if self.initialize.is_asked_as(ours) {
            return self.initialized(envelope, &id, wires);
        }
        let created = envelope
            .session
            .as_ref()
            .or(envelope.misspelled_session.as_ref())
            .filter(|session| success && session.len() <= MAX_SESSION_ID)
            .map(|session| Arc::from(&**session));
        if self.orphans.remove(&ours) {
            return;
        }
        if let Some(abandoned) = self.abandoned.remove(&ours) {
            let session = abandoned.session.clone().filter(|_| success).or(created);
            if let Some(session) = session {
                self.create_for_nobody(now, &abandoned, &session, wires.secret());
            }
            return;
        }
        let Some(waiting) = self.take_waiting(now, ours) else {
            return self.drop_answer(&text[id]);
        };
        let client = waiting.client;

        let mut token = None;
        match (waiting.class, &waiting.session) {
            (Class::Create, _) => {
                if let Some(session) = &created {
                    if !self.is_free(session) {
                        log::error!(
                            "the agent answered with a session that is in use: {session:?}"
                        );
                        let why = Some("the agent answered with a session that is in use");
                        let refused = error(&waiting.id, code::INTERNAL, "Internal error", why);
                        self.drop_early();
                        return wires.to_client(client, &[&refused]);
                    }
                    let secret = wires.secret();
                    self.create(client, session, secret.clone());
                    token = Some(secret.into());
                }
            }
            (Class::Claim, Some(session)) if success => {
                token = self.confirm_claim(ours, session, || wires.secret());
            }
            (Class::Claim, Some(session)) => self.unclaim(ours, session),
            (Class::End, Some(session))
                if success && self.controller_of(session) == Some(client) =>
            {
                self.end(session, None);
            }
            (Class::List, _) if success => {
                let listed = self.list_for(client, envelope);
                return wires.to_client(client, &[&with_id(&listed, &waiting.id)]);
            }
            _ => {}
        }
        match token {
            Some(token) => {
                let with_token = with_resume_token(envelope, &token);
                wires.to_client(client, &[&with_id(&with_token, &waiting.id)]);
            }
            None => wires.to_client(client, &[&text[..id.start], &waiting.id, &text[id.end..]]),
        }
        if waiting.class == Class::Create {
            for early in created
                .map(|session| self.early.take(&session))
                .into_iter()
                .flatten()
            {
                wires.to_client(client, &[&early]);
            }
            self.drop_early();
        }
    }

    pub(super) fn take_waiting(&mut self, now: Time, ours: u64) -> Option<Waiting> {
        let waiting = self.forget_waiting(ours)?;
        if let Some(peer) = self.peers.get_mut(&waiting.client) {
            remove(&mut peer.waiting, &ours);
        }
        self.counters.answers.observe(now.since(waiting.since));
        Some(waiting)
    }

    fn drop_answer(&mut self, id: &str) {
        self.counters.dropped += 1;
        let shown = &id[..id.floor_char_boundary(100)];
        log::debug!("the agent answered {shown}, which is not waited for; dropped");
    }

    /// The answer to the one `initialize` goes to all who wait for it, and to all who come later.
    fn initialized(&mut self, envelope: &Envelope<'_>, id: &Range<usize>, wires: &mut impl Wires) {
        let text = envelope.text;
        if let Initialize::Asked {
            wanted, refused, ..
        } = &mut self.initialize
            && wanted.is_empty()
            && matches!(envelope.kind, Kind::Response { result: None, .. })
        {
            log::error!(
                "the agent refuses to be initialized again: {}",
                &text[..text.floor_char_boundary(300)]
            );
            *refused = true;
            return;
        }
        let Initialize::Asked { params, wanted, .. } =
            std::mem::replace(&mut self.initialize, Initialize::Never)
        else {
            return;
        };
        for (client, theirs) in wanted {
            wires.to_client(client, &[&text[..id.start], &theirs, &text[id.end..]]);
        }
        if let Kind::Response {
            result: Some(result),
            ..
        } = &envelope.kind
        {
            let agent_resumes = agent_resumes(text, result);
            self.initialize = Initialize::Done {
                params,
                result: text[result.clone()].into(),
                agent_resumes,
            };
        }
    }

    fn ask_client(
        &mut self,
        envelope: &Envelope<'_>,
        method: &str,
        id: Range<usize>,
        wires: &mut impl Wires,
    ) {
        let text = envelope.text;
        let raw_id = &text[id.clone()];
        if raw_id.len() > MAX_ID {
            let why = Some("the id is too long");
            return wires.to_agent(&[&error("null", code::INVALID, "Invalid request", why)]);
        }
        let permission = method == "session/request_permission";
        // The request that it names, with the client's own id.
        let mut about = None;
        let client = if let Some(session) = self.session_of(envelope) {
            self.controller_of(session)
        } else if let Some((range, waiting)) = self.request_of(envelope) {
            about = Some((range, waiting.id.clone()));
            Some(waiting.client)
        } else if envelope.request_id.is_some() {
            // Its client has left.
            None
        } else if let Some(client) = self.only_asker() {
            Some(client)
        } else {
            let why =
                Some("the request names no session, and more than one client or none may be meant");
            return wires.to_agent(&[&error(raw_id, code::INVALID, "Invalid request", why)]);
        };
        let Some((client, peer)) =
            client.and_then(|client| Some((client, self.peers.get_mut(&client)?)))
        else {
            return wires.to_agent(&[&answer_for_nobody(raw_id, permission)]);
        };
        if !peer.capabilities.allow(method) && self.limits.acp {
            let why = Some("the client has not announced this capability");
            return wires.to_agent(&[&error(raw_id, code::NO_METHOD, "Method not found", why)]);
        }
        if peer.asked.len() >= self.limits.asked {
            let why = Some("too many requests wait for the client's answer");
            return wires.to_agent(&[&error(raw_id, code::TOO_MANY, "Too many requests", why)]);
        }
        if let Some(elicitation) = elicitation_of(envelope) {
            if peer.elicitations.len() == MAX_ELICITATIONS {
                peer.elicitations.pop_front();
            }
            peer.elicitations.push_back(elicitation.into());
        }
        self.next_id += 1;
        peer.asked.push(self.next_id);
        let asked = Asked {
            client,
            id: raw_id.into(),
            permission,
        };
        self.asked.insert(self.next_id, asked);
        let ours = self.next_id.to_string();
        match &about {
            Some((range, theirs)) => {
                wires.to_client(
                    client,
                    &splice(text, [(id, &ours), (range.clone(), theirs)]),
                );
            }
            None => wires.to_client(client, &[&text[..id.start], &ours, &text[id.end..]]),
        }
    }

    fn notify_client(&mut self, envelope: &Envelope<'_>, method: &str, wires: &mut impl Wires) {
        let text = envelope.text;
        if is_cancellation(method) {
            return self.cancel_asked(envelope, method, wires);
        }
        if let Some(session) = self.session_of(envelope) {
            match self.controller_of(session) {
                Some(client) => wires.to_client(client, &[text]),
                // Perhaps it is a new one, and the answer to `session/new` is still to come.
                None if self.creating > 0
                    && session.len() <= MAX_SESSION_ID
                    && self.is_free(session) =>
                {
                    self.counters.dropped += self.early.hold(session, text);
                }
                None => self.counters.dropped += 1,
            }
            return;
        }
        if let Some((range, waiting)) = self.request_of(envelope) {
            let parts = [&text[..range.start], &waiting.id, &text[range.end..]];
            return wires.to_client(waiting.client, &parts);
        }
        if let Some(elicitation) = elicitation_of(envelope) {
            for (&client, peer) in &mut self.peers {
                let known = peer.elicitations.iter().position(|id| **id == *elicitation);
                if known.and_then(|at| peer.elicitations.remove(at)).is_some() {
                    return wires.to_client(client, &[text]);
                }
            }
        }
        let mut peers = self.peers.iter();
        let to = match (self.only_client(|_| true), peers.next(), peers.next()) {
            (Some(client), ..) => vec![client],
            (None, Some((client, _)), None) => vec![*client],
            _ => {
                let peers = self.peers.iter().filter(|(_, peer)| peer.initialized);
                peers.map(|(client, _)| *client).collect()
            }
        };
        self.counters.dropped += u64::from(to.is_empty());
        for client in to {
            wires.to_client(client, &[text]);
        }
    }

    /// The agent cancels its own request.
    fn cancel_asked(&mut self, envelope: &Envelope<'_>, method: &str, wires: &mut impl Wires) {
        let text = envelope.text;
        let Ok(range) = cancelled_id(envelope) else {
            return self.counters.dropped += 1;
        };
        let mut asked = self.asked.iter();
        let asked = asked.find(|(_, asked)| same_id(&asked.id, &text[range.clone()]));
        let Some((&ours, &Asked { client, .. })) = asked else {
            return self.counters.dropped += 1;
        };
        wires.to_client(
            client,
            &[&text[..range.start], &ours.to_string(), &text[range.end..]],
        );
        // In this protocol, a cancelled request gets no answer.
        if method == "notifications/cancelled" && !self.limits.acp {
            self.asked.remove(&ours);
            if let Some(peer) = self.peers.get_mut(&client) {
                remove(&mut peer.asked, &ours);
            }
        }
    }

    /// The session that a message of the agent names.
    fn session_of<'a>(&self, envelope: &'a Envelope<'_>) -> Option<&'a str> {
        let session = envelope.session.as_deref();
        let session = session.or(envelope.misspelled_session.as_deref());
        session.filter(|_| self.limits.acp)
    }

    /// The client's request that a message of the agent names, and where.
    fn request_of(&self, envelope: &Envelope<'_>) -> Option<(Range<usize>, &Waiting)> {
        let range = envelope.request_id.clone()?;
        let ours = our_id(&envelope.text[range.clone()])?;
        Some((range, self.waiting.get(&ours)?))
    }

    /// The one client whose request the agent may be asking about when it names neither a session nor a request: such
    /// requests come of those that name no session themselves, if there are any.
    fn only_asker(&self) -> Option<ClientId> {
        if !self.orphans.is_empty() || self.abandoned.values().any(|it| it.session.is_none()) {
            return None;
        }
        let names_none = |waiting: &Waiting| waiting.session.is_none();
        if self.waiting.values().any(names_none) || self.initialize.is_wanted() {
            self.only_client(names_none)
        } else {
            self.only_client(|_| true)
        }
    }

    /// The client whose requests wait, of these, if they are all one client's.
    fn only_client(&self, of_these: impl Fn(&Waiting) -> bool) -> Option<ClientId> {
        let waiting = self.waiting.values().filter(|waiting| of_these(waiting));
        let mut clients = waiting
            .map(|waiting| waiting.client)
            .chain(self.initialize.wanted());
        let first = clients.next()?;
        clients.all(|client| client == first).then_some(first)
    }
}

/// The elicitation that a message of the agent asks for, or completes.
fn elicitation_of<'a>(envelope: &Envelope<'a>) -> Option<Cow<'a, str>> {
    let (Kind::Request { method, .. } | Kind::Notification { method }) = &envelope.kind else {
        return None;
    };
    let body = envelope
        .body
        .as_ref()
        .filter(|_| method.contains("elicitation/"))?;
    let id = &envelope.text[member(envelope.text, body, "elicitationId")?];
    let id = id.starts_with('"').then(|| unescape(id))?;
    (id.len() <= MAX_ELICITATION_ID).then_some(id)
}

/// Whether the agent's own `session/resume` is to be called.
fn agent_resumes(text: &str, result: &Range<usize>) -> bool {
    let path = ["agentCapabilities", "sessionCapabilities", "resume"];
    let found = path
        .iter()
        .try_fold(result.clone(), |range, name| member(text, &range, name));
    found.is_some_and(|found| !matches!(&text[found], "null" | "false"))
}
