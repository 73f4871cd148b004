//! Messages of clients: to the agent, or answered here.

use std::ops::Range;
use std::sync::Arc;

use super::sessions::{Refused, class_of};
use super::{
    Class, MAX_ID, MAX_INITIALIZE, Router, Waiting, Wires, cancelled_id, is_cancellation, our_id,
    remove, same_id, splice,
};
use crate::service::agent::answer::{code, error, refusal_of};
use crate::service::agent::envelope::{Envelope, EnvelopeError, Kind, member};
use crate::service::agent::initialize::{Capabilities, Initialize};
use crate::service::agent::json::Skimmer;
use crate::{ClientId, CloseCode, Time};

impl Router {
    /// Handles a message of a client.
    pub(crate) fn receive_from_client(
        &mut self,
        now: Time,
        client: ClientId,
        text: &str,
        wires: &mut impl Wires,
    ) {
        self.confirm_tokens(client);
        let is_first = self
            .peers
            .get(&client)
            .is_some_and(|peer| !peer.initialized);
        if is_first && text.len() > MAX_INITIALIZE {
            return wires.close(client, CloseCode::TOO_BIG, "initialize is over 1 MiB");
        }
        let envelope = match Envelope::parse(text) {
            Ok(envelope) => envelope,
            Err(EnvelopeError::Invalid { id: Some(id), .. }) if id.len() > MAX_ID => {
                return wires.close(client, CloseCode::POLICY, "Request id too long");
            }
            Err(invalid) => return wires.to_client(client, &[&refusal_of(text, &invalid)]),
        };
        if envelope.id().is_some_and(|id| id.len() > MAX_ID) {
            return wires.close(client, CloseCode::POLICY, "Request id too long");
        }
        let Some(peer) = self.peers.get_mut(&client) else {
            return;
        };
        if !peer.initialized {
            let first =
                matches!(&envelope.kind, Kind::Request { method, .. } if method == "initialize");
            if !first {
                return wires.close(
                    client,
                    CloseCode::PROTOCOL,
                    "The first message must be initialize",
                );
            }
            peer.initialized = true;
        }
        match &envelope.kind {
            Kind::Request { method, id } if method == "initialize" && self.limits.acp => {
                self.initialize(client, &envelope, &text[id.clone()], wires);
            }
            Kind::Request { method, id } => {
                self.request(now, client, &envelope, method, id.clone(), wires)
            }
            Kind::Notification { method } => {
                self.notification(now, client, &envelope, method, wires)
            }
            Kind::Response { id, .. } => self.answer_agent(client, &envelope, id.clone(), wires),
        }
    }

    fn initialize(
        &mut self,
        client: ClientId,
        envelope: &Envelope<'_>,
        id: &str,
        wires: &mut impl Wires,
    ) {
        self.counters.initializes += 1;
        let capabilities = envelope
            .body
            .as_ref()
            .and_then(|params| member(envelope.text, params, "clientCapabilities"));
        if let (Some(capabilities), Some(peer)) = (capabilities, self.peers.get_mut(&client)) {
            peer.capabilities = Capabilities::read(envelope.text, &capabilities);
        }
        match &mut self.initialize {
            Initialize::Done { result, .. } => {
                wires.to_client(
                    client,
                    &[
                        r#"{"jsonrpc":"2.0","id":"#,
                        id,
                        r#","result":"#,
                        result,
                        "}",
                    ],
                );
            }
            Initialize::Asked { wanted, .. } if wanted.iter().any(|(who, _)| *who == client) => {
                let why = "initialize is under way";
                let refused = error(id, code::INVALID, "Invalid request", Some(why));
                wires.to_client(client, &[&refused]);
            }
            Initialize::Asked { wanted, .. } => wanted.push((client, id.into())),
            Initialize::Never => {
                self.next_id += 1;
                let params = params_of(envelope).unwrap_or("{}");
                self.initialize = Initialize::Asked {
                    id: self.next_id,
                    params: params.into(),
                    wanted: vec![(client, id.into())],
                    refused: false,
                };
                self.ask_to_initialize(wires);
            }
        }
    }

    /// Sends the one `initialize`.
    pub(super) fn ask_to_initialize(&self, wires: &mut impl Wires) {
        if let Initialize::Asked { id, params, .. } = &self.initialize {
            let id = id.to_string();
            wires.initialize_agent(&[
                r#"{"jsonrpc":"2.0","id":"#,
                &id,
                r#","method":"initialize","params":"#,
                params,
                "}",
            ]);
        }
    }

    fn request(
        &mut self,
        now: Time,
        client: ClientId,
        envelope: &Envelope<'_>,
        method: &str,
        id: Range<usize>,
        wires: &mut impl Wires,
    ) {
        let raw_id = &envelope.text[id.clone()];
        let Some(peer) = self.peers.get(&client) else {
            return;
        };
        if self.is_draining {
            let refused = error(raw_id, code::STOPPING, "Server shutting down", None);
            return wires.to_client(client, &[&refused]);
        }
        if peer.waiting.len() >= self.limits.waiting {
            let why = Some("too many requests are waiting");
            let refused = error(raw_id, code::TOO_MANY, "Too many requests", why);
            return wires.to_client(client, &[&refused]);
        }
        self.next_id += 1;
        let ours = self.next_id;
        let (class, session, is_kept) = match self.admit(client, ours, envelope, method) {
            Ok(admitted) => admitted,
            Err(refused) => {
                if !matches!(refused, Refused::Invalid(_) | Refused::Full) {
                    self.counters.denied += 1;
                }
                return wires.to_client(client, &[&refused.answer(raw_id)]);
            }
        };
        let cancelled = match is_cancellation(method).then(|| self.find_cancelled(client, envelope))
        {
            Some(Err(why)) => {
                let refused = error(raw_id, code::INVALID, "Invalid request", Some(why));
                return wires.to_client(client, &[&refused]);
            }
            Some(Ok(cancelled)) => Some(cancelled),
            None => None,
        };

        let counters = &mut self.counters;
        *match class {
            Class::Create | Class::Claim | Class::End | Class::List => {
                &mut counters.session_requests
            }
            Class::Prompt => &mut counters.prompts,
            Class::Other => &mut counters.other_requests,
        } += 1;
        // Recorded before its bytes leave: an answer can never come first.
        self.record(Waiting {
            client,
            ours,
            id: raw_id.into(),
            class,
            session,
            since: now,
        });
        if is_kept && method == "session/resume" && self.initialize.lacks_resume() {
            // The agent has kept the session and does not know about connections, so no message to it is needed.
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{ours},"result":{{}}}}"#);
            return self.receive_from_agent(now, &answer, wires);
        }
        let (text, ours) = (envelope.text, ours.to_string());
        match cancelled {
            Some((range, other)) => {
                wires.to_agent(&splice(text, [(id, &ours), (range, &other.to_string())]));
            }
            None => wires.to_agent(&[&text[..id.start], &ours, &text[id.end..]]),
        }
    }

    /// Checks what a request does to sessions, and notes it. Returns its class, the session that it names, and whether
    /// the agent has a session that is asked for.
    fn admit(
        &mut self,
        client: ClientId,
        ours: u64,
        envelope: &Envelope<'_>,
        method: &str,
    ) -> Result<(Class, Option<Arc<str>>, bool), Refused> {
        if !self.limits.acp {
            return Ok((Class::Other, None, false));
        }
        let class = class_of(method);
        self.check_names(client, method, envelope, class == Class::Claim)?;
        let named = envelope.session.as_deref();
        match (class, named) {
            (Class::Claim, Some(name)) => {
                let session = Arc::from(name);
                let is_kept = self.claim(client, ours, &session, envelope)?;
                Ok((class, Some(session), is_kept))
            }
            _ => {
                if class == Class::Create {
                    self.check_room(client)?;
                }
                // The table's own text, which is bounded.
                let known = named.and_then(|name| self.sessions.get_key_value(name));
                Ok((class, known.map(|(name, _)| Arc::clone(name)), false))
            }
        }
    }

    /// The request of this client that it wants to cancel: where the message has its id, and the one that the agent
    /// knows it by.
    fn find_cancelled(
        &self,
        client: ClientId,
        envelope: &Envelope<'_>,
    ) -> Result<(Range<usize>, u64), &'static str> {
        let range = cancelled_id(envelope)?;
        let raw = &envelope.text[range.clone()];
        let peer = self.peers.get(&client);
        let mut waiting = peer.map_or(&[][..], |peer| &peer.waiting).iter().rev();
        let is_named = |id: &&u64| {
            let waiting = self.waiting.get(id);
            waiting.is_some_and(|waiting| same_id(&waiting.id, raw))
        };
        let ours = waiting.find(is_named);
        let ours = ours.ok_or("no request of this client with this id is waiting")?;
        Ok((range, *ours))
    }

    fn record(&mut self, waiting: Waiting) {
        if let Some(peer) = self.peers.get_mut(&waiting.client) {
            peer.waiting.push(waiting.ours);
        }
        self.creating += usize::from(waiting.class == Class::Create);
        self.waiting.insert(waiting.ours, waiting);
    }

    fn notification(
        &mut self,
        now: Time,
        client: ClientId,
        envelope: &Envelope<'_>,
        method: &str,
        wires: &mut impl Wires,
    ) {
        if self.limits.acp
            && let Err(refused) = self.check_names(client, method, envelope, false)
        {
            self.counters.denied += 1;
            log::warn!("dropped a notification {method:?} of {client}: {refused}");
            return;
        }
        self.counters.notifications += 1;
        let text = envelope.text;
        if !is_cancellation(method) {
            return wires.to_agent(&[text]);
        }
        match self.find_cancelled(client, envelope) {
            Ok((range, ours)) => {
                wires.to_agent(&[&text[..range.start], &ours.to_string(), &text[range.end..]]);
                // In this protocol, a cancelled request gets no answer.
                if method == "notifications/cancelled" && !self.limits.acp {
                    self.take_waiting(now, ours);
                }
            }
            Err(why) => self.drop_message(client, why),
        }
    }

    /// A client answers what the agent has asked it.
    fn answer_agent(
        &mut self,
        client: ClientId,
        envelope: &Envelope<'_>,
        id: Range<usize>,
        wires: &mut impl Wires,
    ) {
        let text = envelope.text;
        let ours = our_id(&text[id.clone()]).filter(|id| {
            self.asked
                .get(id)
                .is_some_and(|asked| asked.client == client)
        });
        let Some(asked) = ours.and_then(|ours| self.asked.remove(&ours)) else {
            return self.drop_message(client, "the answer matches no request to this client");
        };
        if let Some(peer) = self.peers.get_mut(&client) {
            remove(&mut peer.asked, &ours.unwrap_or_default());
        }
        wires.to_agent(&[&text[..id.start], &asked.id, &text[id.end..]]);
    }

    fn drop_message(&mut self, client: ClientId, why: &str) {
        self.counters.dropped += 1;
        log::debug!("dropped an answer or a cancellation of {client}: {why}");
    }
}

/// The parameters of a message, whatever their kind.
fn params_of<'a>(envelope: &Envelope<'a>) -> Option<&'a str> {
    let whole = Skimmer::new(envelope.text).value().ok()?;
    member(envelope.text, &whole, "params").map(|params| &envelope.text[params])
}
