//! Messages of clients: to the agent, or answered here.

use std::sync::Arc;

use super::{Class, Denied, MAX_ID, Router, Waiting, Wires, our_id, remove, same_id};
use crate::service::agent::answer::{code, denied, error, refusal_of};
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
            Kind::Notification { method } => self.notification(client, &envelope, method, wires),
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
        id: std::ops::Range<usize>,
        wires: &mut impl Wires,
    ) {
        let raw_id = &envelope.text[id.clone()];
        let Some(peer) = self.peers.get(&client) else {
            return;
        };
        let refused = |code, message, why| error(raw_id, code, message, Some(why));
        if peer.waiting.len() >= self.limits.waiting {
            return wires.to_client(
                client,
                &[&refused(
                    code::TOO_MANY,
                    "Too many requests",
                    "too many are waiting",
                )],
            );
        }
        let acp = self.limits.acp;
        let claims = acp && matches!(method, "session/load" | "session/resume");
        if (claims || (acp && matches!(method, "session/new" | "session/fork")))
            && !self.has_room_for_session(client)
        {
            return wires.to_client(
                client,
                &[&refused(
                    code::TOO_MANY,
                    "Too many sessions",
                    "close one first",
                )],
            );
        }
        if claims && envelope.session.is_none() {
            return wires.to_client(
                client,
                &[&refused(
                    code::INVALID,
                    "Invalid request",
                    "\"sessionId\" is missing",
                )],
            );
        }
        let mut class = match method {
            _ if !acp => Class::Other,
            "session/new" | "session/fork" => Class::Create,
            "session/close" | "session/delete" => Class::End,
            "session/list" => Class::List,
            "session/prompt" => Class::Prompt,
            _ => Class::Other,
        };
        let session: Option<Arc<str>> = envelope.session.as_deref().map(Into::into);
        self.next_id += 1;
        let ours = self.next_id;
        let mut kept_by_agent = false;
        if let Some(session) = &session {
            if claims {
                match self.claim(client, ours, session, envelope, wires) {
                    Ok(before) => {
                        kept_by_agent = before.as_ref().is_some_and(|before| !before.lost);
                        class = Class::Claim { before };
                    }
                    Err(Denied) => {
                        self.counters.denied += 1;
                        return wires.to_client(client, &[&denied(raw_id)]);
                    }
                }
            } else if acp && !self.may_use(client, session) {
                self.counters.denied += 1;
                return wires.to_client(client, &[&denied(raw_id)]);
            }
        }

        let counters = &mut self.counters;
        *match &class {
            Class::Create | Class::Claim { .. } | Class::End | Class::List => {
                &mut counters.session_requests
            }
            Class::Prompt => &mut counters.prompts,
            Class::Other => &mut counters.other_requests,
        } += 1;
        if kept_by_agent && method == "session/resume" && self.initialize.lacks_resume() {
            // The agent has kept the session and knows nothing of connections: it is enough to move it.
            let waiting = Waiting {
                client,
                ours,
                id: raw_id.into(),
                class,
                session,
                since: now,
            };
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{ours},"result":{{}}}}"#);
            self.record(ours, waiting);
            return self.receive_from_agent(now, &answer, wires);
        }
        // Recorded before its bytes leave: an answer can never come first.
        self.record(
            ours,
            Waiting {
                client,
                ours,
                id: raw_id.into(),
                class,
                session,
                since: now,
            },
        );
        let text = envelope.text;
        wires.to_agent(&[&text[..id.start], &ours.to_string(), &text[id.end..]]);
    }

    fn record(&mut self, id: u64, waiting: Waiting) {
        if let Some(peer) = self.peers.get_mut(&waiting.client) {
            peer.waiting.push(id);
        }
        self.waiting.insert(id, waiting);
    }

    fn notification(
        &mut self,
        client: ClientId,
        envelope: &Envelope<'_>,
        method: &str,
        wires: &mut impl Wires,
    ) {
        let named = envelope.session.as_deref().filter(|_| self.limits.acp);
        if named.is_some_and(|session| !self.may_use(client, session)) {
            self.counters.denied += 1;
            log::warn!(
                "{client} is not the owner of the session that its {method:?} names; dropped"
            );
            return;
        }
        self.counters.notifications += 1;
        let text = envelope.text;
        if method != "$/cancel_request" {
            return wires.to_agent(&[text]);
        }
        // The client's id becomes the one that the agent knows.
        let Some(requested) = envelope.request_id.clone() else {
            return self.drop_message(client, "without requestId");
        };
        let Some(peer) = self.peers.get(&client) else {
            return;
        };
        let ours = peer.waiting.iter().rev().find(|id| {
            self.waiting
                .get(id)
                .is_some_and(|waiting| same_id(&waiting.id, &text[requested.clone()]))
        });
        match ours {
            Some(ours) => wires.to_agent(&[
                &text[..requested.start],
                &ours.to_string(),
                &text[requested.end..],
            ]),
            None => self.drop_message(client, "for no request that is waiting"),
        }
    }

    /// A client answers what the agent has asked it.
    fn answer_agent(
        &mut self,
        client: ClientId,
        envelope: &Envelope<'_>,
        id: std::ops::Range<usize>,
        wires: &mut impl Wires,
    ) {
        let text = envelope.text;
        let ours = our_id(&text[id.clone()]).filter(|id| {
            self.asked
                .get(id)
                .is_some_and(|asked| asked.client == client)
        });
        let Some(asked) = ours.and_then(|ours| self.asked.remove(&ours)) else {
            return self.drop_message(client, "which it was not asked");
        };
        if let Some(peer) = self.peers.get_mut(&client) {
            remove(&mut peer.asked, &ours.unwrap_or_default());
        }
        wires.to_agent(&[&text[..id.start], &asked.id, &text[id.end..]]);
    }

    fn drop_message(&mut self, client: ClientId, why: &str) {
        self.counters.dropped += 1;
        log::debug!("{client} sent an answer or a cancellation {why}; dropped");
    }
}

/// The parameters of a message, whatever their kind.
fn params_of<'a>(envelope: &Envelope<'a>) -> Option<&'a str> {
    let whole = Skimmer::new(envelope.text).value().ok()?;
    member(envelope.text, &whole, "params").map(|params| &envelope.text[params])
}
