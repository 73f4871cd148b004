//! Messages of the agent: to the clients that they are for.

use super::{Asked, Class, MAX_SESSION_ID, Router, Waiting, Wires, our_id, remove, same_id};
use crate::Time;
use crate::service::agent::answer::{answer_for_nobody, code, error, with_id, with_resume_token};
use crate::service::agent::envelope::{Envelope, EnvelopeError, Kind, member};
use crate::service::agent::initialize::Initialize;

impl Router {
    /// Handles a line of the agent.
    pub(crate) fn receive_from_agent(&mut self, now: Time, text: &str, wires: &mut impl Wires) {
        let envelope = match Envelope::parse(text) {
            Ok(envelope) => envelope,
            Err(invalid) => {
                self.counters.dropped += 1;
                let shown = &text[..text.floor_char_boundary(100)];
                log::warn!("a line of the agent is no message ({invalid:?}), skipped: {shown:?}");
                // Whoever waits for it must not wait for ever.
                let EnvelopeError::Invalid { id: Some(id), why } = invalid else {
                    return;
                };
                let Some(waiting) = our_id(&text[id]).and_then(|ours| self.take_waiting(now, ours))
                else {
                    return;
                };
                if let (Class::Claim { before }, Some(session)) = (waiting.class, &waiting.session)
                {
                    self.unclaim(now, waiting.ours, session, before);
                }
                let why = format!("the agent's answer is no message: {why}");
                let refused = error(&waiting.id, code::INTERNAL, "Internal error", Some(&why));
                return wires.to_client(waiting.client, &[&refused]);
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

    fn answer_client(
        &mut self,
        now: Time,
        envelope: &Envelope<'_>,
        id: std::ops::Range<usize>,
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
        if self.abandoned.remove(&ours) {
            return self.keep_from_all(now, envelope, wires);
        }
        let Some(waiting) = self.take_waiting(now, ours) else {
            return self.drop_answer(&text[id]);
        };
        let client = waiting.client;

        let (before_id, after_id) = (&text[..id.start], &text[id.end..]);
        let mut token = None;
        match (&waiting.class, &waiting.session) {
            (Class::Create, _) if success => {
                let Some(session) = envelope
                    .session
                    .as_deref()
                    .filter(|session| session.len() <= MAX_SESSION_ID)
                else {
                    return wires.to_client(client, &[before_id, &waiting.id, after_id]);
                };
                if !self.is_free(session) {
                    log::error!("the agent answered with a session that is in use: {session:?}");
                    let why = "the agent answered with a session that is in use";
                    let refused = error(&waiting.id, code::INTERNAL, "Internal error", Some(why));
                    return wires.to_client(client, &[&refused]);
                }
                let secret = wires.secret();
                self.bind(client, &session.into(), secret.clone(), None);
                token = Some(secret);
            }
            (Class::Claim { .. }, Some(session)) if success => {
                // Unless it was closed, or given to another, while this was on its way.
                if let Some(bound) = self
                    .sessions
                    .get_mut(session)
                    .filter(|bound| bound.claim == Some(ours))
                {
                    bound.claim = None;
                    token = Some(bound.token.clone());
                    self.release_asked(client, session, wires);
                }
            }
            (Class::Claim { .. }, Some(_)) => {
                if let (Class::Claim { before }, Some(session)) = (waiting.class, waiting.session) {
                    self.unclaim(now, ours, &session, before);
                }
                return wires.to_client(client, &[before_id, &waiting.id, after_id]);
            }
            (Class::End, Some(session)) if success && self.is_owner(client, session) => {
                self.unbind(session)
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
            None => wires.to_client(client, &[before_id, &waiting.id, after_id]),
        }
    }

    fn take_waiting(&mut self, now: Time, ours: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&ours)?;
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
    fn initialized(
        &mut self,
        envelope: &Envelope<'_>,
        id: &std::ops::Range<usize>,
        wires: &mut impl Wires,
    ) {
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
        id: std::ops::Range<usize>,
        wires: &mut impl Wires,
    ) {
        let text = envelope.text;
        let raw_id = &text[id.clone()];
        let permission = method == "session/request_permission";
        let Some(session) = envelope.session.as_deref() else {
            let why = "a request to a client names its session";
            return wires.to_agent(&[&error(raw_id, code::INVALID, "Invalid request", Some(why))]);
        };
        let owner = self.sessions.get(session).and_then(|session| session.owner);
        let Some((client, peer)) =
            owner.and_then(|owner| Some((owner, self.peers.get_mut(&owner)?)))
        else {
            return wires.to_agent(&[&answer_for_nobody(raw_id, permission)]);
        };
        if !peer.capabilities.allow(method) {
            let why = "the client has not announced this capability";
            return wires.to_agent(&[&error(
                raw_id,
                code::NO_METHOD,
                "Method not found",
                Some(why),
            )]);
        }
        if peer.asked.len() >= self.limits.asked {
            let why = "too many requests wait for the client's answer";
            return wires.to_agent(&[&error(
                raw_id,
                code::TOO_MANY,
                "Too many requests",
                Some(why),
            )]);
        }
        self.next_id += 1;
        peer.asked.push(self.next_id);
        self.asked.insert(
            self.next_id,
            Asked {
                client,
                id: raw_id.into(),
                session: session.into(),
                permission,
            },
        );
        wires.to_client(
            client,
            &[
                &text[..id.start],
                &self.next_id.to_string(),
                &text[id.end..],
            ],
        );
    }

    fn notify_client(&mut self, envelope: &Envelope<'_>, method: &str, wires: &mut impl Wires) {
        let text = envelope.text;
        if let ("$/cancel_request", Some(requested)) = (method, envelope.request_id.clone()) {
            let asked = self
                .asked
                .iter()
                .find(|(_, asked)| same_id(&asked.id, &text[requested.clone()]));
            if let Some((ours, asked)) = asked {
                let parts = [
                    &text[..requested.start],
                    &ours.to_string(),
                    &text[requested.end..],
                ];
                return wires.to_client(asked.client, &parts);
            }
        }
        if let Some(session) = envelope.session.as_deref() {
            match self.sessions.get(session).and_then(|session| session.owner) {
                Some(owner) => wires.to_client(owner, &[text]),
                None => self.counters.dropped += 1,
            }
            return;
        }
        self.counters.dropped += 1;
        log::debug!("the agent's notification {method:?} names no session; dropped");
    }
}

/// Whether the agent's own `session/resume` is to be called.
fn agent_resumes(text: &str, result: &std::ops::Range<usize>) -> bool {
    let path = ["agentCapabilities", "sessionCapabilities", "resume"];
    let found = path
        .iter()
        .try_fold(result.clone(), |range, name| member(text, &range, name));
    found.is_some_and(|found| !matches!(&text[found], "null" | "false"))
}
