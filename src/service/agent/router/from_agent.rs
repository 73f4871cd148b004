//! Messages from the agent.

use std::ops::Range;
use std::sync::Arc;

use super::Router;
use super::batches::BatchSender;
use super::exchange::Exchange;
use super::history::Entry;
use super::output::RouterOutput;
use super::requests::{
    AbandonedRequest, AgentRequest, ClientRequest, RequestClass, is_cancellation,
};
use super::session_key::SessionKey;
use super::sessions::{NewTokens, Receiver, Session};
use super::settings::{MAX_KEPT_REQUEST, MAX_SESSION_ID};
use super::updates::turn_ended;
use crate::service::agent::named::{Named, TooMany};
use crate::service::agent::response::{client_gone, with_meta};
use crate::service::jsonrpc::{
    Envelope, IdRecovery, MAX_ID, MessageKind, RecoveredId, Reference, assigned, code, error,
    is_array, splice, with_id,
};
use crate::{ClientId, Time};

/// Why a request of the agent has no receiver.
const CROSSING: &str = "the request names sessions of several clients";
const UNNAMED: &str = "the request names no session, and more than one client or none may be meant";

/// Whom a request of the agent is for.
#[derive(Debug, Default)]
struct Asked {
    /// `None` if the client has disconnected.
    client: Option<ClientId>,
    session: Option<SessionKey>,
    /// Whether the request names the session where its method has one.
    is_addressed: bool,
    /// The session that it names, if this session does not exist yet.
    early: Option<Box<str>>,
    /// The client's request that the agent refers to: where the message has its id, and the client's own id.
    reference: Option<(Range<usize>, Box<str>)>,
}

impl Router {
    /// Handles a message from an agent process, which is a sign of life.
    pub(crate) fn handle_agent_message(
        &mut self,
        now: Time,
        process: usize,
        text: &str,
        output: &mut impl RouterOutput,
    ) {
        if self.exchange.settings.request_timeout.is_some()
            && let Some(process) = self.exchange.processes.get_mut(process)
            && std::mem::take(&mut process.is_silent)
        {
            log::info!("the agent sends messages again: ready");
        }
        self.route_from_agent(now, process, text, output);
    }

    /// Takes the message of an agent process apart if it is a batch, and handles its messages. Returns false if it is none.
    pub(super) fn batch_from_agent(
        &mut self,
        now: Time,
        process: usize,
        text: &str,
        output: &mut impl RouterOutput,
    ) -> bool {
        if !is_array(text) || !self.exchange.has_batches(process) {
            return false;
        }
        match output.batches().begin(BatchSender::Process(process), text) {
            Ok((messages, answer)) => {
                for message in messages {
                    self.route_from_agent(now, process, message, output);
                }
                if let Some(answer) = answer {
                    output.to_agent(process, &[&answer]);
                }
            }
            Err(refused) => {
                log::warn!("refused a batch of the agent: {refused}");
                output.to_agent(process, &[&refused]);
            }
        }
        true
    }

    /// Passes on a message from an agent process, or one in its place.
    pub(super) fn route_from_agent(
        &mut self,
        now: Time,
        process: usize,
        text: &str,
        output: &mut impl RouterOutput,
    ) {
        if self.batch_from_agent(now, process, text, output) {
            return;
        }
        let envelope = match Envelope::parse(text) {
            Ok(envelope) => envelope,
            Err(invalid) => {
                let start = &text[..text.floor_char_boundary(100)];
                log::warn!(
                    "skipped a line of the agent that is not a valid message ({invalid:?}): {start:?}"
                );
                let recovered = IdRecovery::of(text.as_bytes());
                return self.handle_unreadable(
                    now,
                    process,
                    recovered,
                    "is not a valid message",
                    output,
                );
            }
        };
        match &envelope.kind {
            MessageKind::Response { id, result } => {
                let success = result.is_some();
                self.response_from_agent(now, process, &envelope, (id.clone(), success), output)
            }
            MessageKind::Request { method, id } => {
                self.request_from_agent(now, process, &envelope, method, id.clone(), output)
            }
            MessageKind::Notification { method } => {
                self.notification_from_agent(now, process, &envelope, method, output)
            }
        }
    }

    /// Handles a message from the agent that cannot be passed on. A response becomes an error response to its request. A
    /// request is answered with an error.
    pub(crate) fn handle_unreadable(
        &mut self,
        now: Time,
        process: usize,
        recovered: Option<RecoveredId>,
        why: &str,
        output: &mut impl RouterOutput,
    ) {
        self.exchange.counters.dropped += 1;
        match recovered {
            Some(RecoveredId::Response(id)) if assigned(&id).is_some() => {
                let why = format!("the agent's answer {why}");
                let failed = error(&id, code::INTERNAL, "Internal error", Some(&why));
                self.route_from_agent(now, process, &failed, output);
            }
            Some(RecoveredId::Request(id)) => {
                let why = format!("the request {why}");
                let refused = error(&id, code::INVALID, "Invalid request", Some(&why));
                output.to_agent(process, &[&refused]);
            }
            _ => {}
        }
    }

    fn response_from_agent(
        &mut self,
        now: Time,
        process: usize,
        envelope: &Envelope<'_>,
        (id, success): (Range<usize>, bool),
        output: &mut impl RouterOutput,
    ) {
        let text = envelope.text;
        let Some(upstream_id) = assigned(&text[id.clone()]) else {
            return self.exchange.counters.drop_response(&text[id]);
        };
        let Some(state) = self.exchange.processes.get_mut(process) else {
            return;
        };
        if state.initialize.is_pending_as(upstream_id) {
            return self.initialize_from_agent(process, upstream_id, envelope, &id, output);
        }
        if state.orphaned.remove(&upstream_id).is_some() {
            return;
        }
        let abandoned = state.abandoned.remove(&upstream_id);
        let created = envelope
            .session
            .as_ref()
            .or(envelope.misspelled_session.as_ref())
            .filter(|session| success && session.len() <= MAX_SESSION_ID)
            .map(|session| Arc::from(&**session));
        if let Some(abandoned) = abandoned {
            let session = abandoned.session.clone().filter(|_| success).or(created);
            return self.finish_abandoned(now, process, &abandoned, session, output);
        }
        let requests = &self.exchange.requests.of_clients;
        let Some(request) = requests.of_process(process, &text[id.clone()]) else {
            return self.exchange.counters.drop_response(&text[id]);
        };
        let access = self.sessions.access(&self.exchange);
        if !access.may_answer(request, envelope, output) {
            log::warn!("refused a response of the agent: it names a session of another client");
            self.exchange.counters.crossing += 1;
            let failed = Some(RecoveredId::Response(text[id].to_owned()));
            let why = "names a session of another client";
            return self.handle_unreadable(now, process, failed, why, output);
        }
        let Some(request) = self.finish_client_request(now, upstream_id) else {
            return;
        };
        let creates = request.call.class == RequestClass::Create;
        if creates
            && let Some(session) = &created
            && let Some(why) = self.why_not_created(&request, session)
        {
            log::error!("{why}: {session:?}");
            let refused = |id: &str| error(id, code::INTERNAL, "Internal error", Some(why));
            request.answer(refused, output);
            self.exchange.creation_failed(process, request.call.client);
            return self.send_waiting(now, output);
        }
        let token = self.apply_answer(&request, envelope, created.as_ref(), success, output);
        self.pass_answer(&request, envelope, id, token, success, output);
        if creates {
            // What the agent has said about the new session before this response is passed on after it.
            match &created {
                Some(session) => self.finish_creation(now, process, session, output),
                None => self.exchange.creation_failed(process, request.call.client),
            }
            self.send_waiting(now, output);
        }
    }

    /// Handles the response to a request whose client has left. The session that it has opened exists, and others may load it.
    fn finish_abandoned(
        &mut self,
        now: Time,
        process: usize,
        abandoned: &AbandonedRequest,
        session: Option<Arc<str>>,
        output: &mut impl RouterOutput,
    ) {
        if let Some(session) = session {
            let tokens = NewTokens::new(output);
            let exchange = &mut self.exchange;
            self.sessions
                .create_gone(exchange, now, abandoned, process, &session, tokens);
        }
        self.stop_unused();
    }

    /// Changes the sessions as the answer to a request says. `created` is the session that it names. Returns the resume token that
    /// the client gets with the answer.
    fn apply_answer(
        &mut self,
        request: &ClientRequest,
        envelope: &Envelope<'_>,
        created: Option<&Arc<str>>,
        success: bool,
        output: &mut impl RouterOutput,
    ) -> Option<String> {
        let (client, process) = (request.call.client, request.process);
        let upstream_id = request.upstream_id;
        match (request.call.class, &request.call.session) {
            (RequestClass::Create, _) => {
                let session = created?;
                let tokens = NewTokens::new(output);
                let token = tokens.added();
                self.sessions
                    .create(&mut self.exchange, client, process, session, tokens);
                return Some(token);
            }
            (RequestClass::Claim, Some(session)) if success => {
                return self.sessions.confirm_claim(
                    &mut self.exchange,
                    upstream_id,
                    session,
                    output,
                );
            }
            (RequestClass::Claim, Some(session)) => {
                self.sessions
                    .unclaim(&mut self.exchange, upstream_id, session, output)
            }
            (RequestClass::End, Some(session))
                if success && self.sessions.controller_of(session) == Some(client) =>
            {
                self.sessions.end(&mut self.exchange, session, None);
                self.stop_unused();
            }
            (RequestClass::Prompt, Some(session))
                if success && self.exchange.has_long_turns(process) =>
            {
                if let Some(bound) = self.sessions.get_mut(session) {
                    bound.activity.handle_accepted();
                }
            }
            (RequestClass::Prompt, Some(session)) if !self.exchange.has_long_turns(process) => {
                self.sessions.show_turn_complete(session, envelope, output);
            }
            _ => {}
        }
        None
    }

    /// Passes an answer on to the client, with its own id. The range `id` has the upstream id.
    fn pass_answer(
        &self,
        request: &ClientRequest,
        envelope: &Envelope<'_>,
        id: Range<usize>,
        token: Option<String>,
        success: bool,
        output: &mut impl RouterOutput,
    ) {
        let client = request.call.client;
        let Some(ids) = &request.sender_ids else {
            // The turn has moved to another client, which has not asked for it.
            if let Some(session) = &request.call.session {
                output.to_client(client, &[&turn_ended(session, envelope)]);
            }
            return;
        };
        if request.call.class == RequestClass::List && success {
            let has_watch_scope = output.has_watch_scope(client);
            let listed = self.sessions.access(&self.exchange).list_for(
                client,
                has_watch_scope,
                request.process,
                envelope,
            );
            output.to_client(client, &[&with_id(&listed, &ids.id)]);
        } else if let Some(token) = token {
            let with_token = with_meta(envelope, &token);
            output.to_client(client, &[&with_id(&with_token, &ids.id)]);
        } else {
            request.with_sender_ids(envelope, id, |parts| output.to_client(client, parts));
        }
    }

    /// Who may get a message from a process, by the sessions that it names.
    fn receiver(&self, process: usize, named: &Named<'_>, output: &impl RouterOutput) -> Receiver {
        let is_creating = self.exchange.requests.creating(process) > 0;
        self.sessions
            .access(&self.exchange)
            .receiver(process, named, is_creating, output)
    }

    fn request_from_agent(
        &mut self,
        now: Time,
        process: usize,
        envelope: &Envelope<'_>,
        method: &str,
        id: Range<usize>,
        output: &mut impl RouterOutput,
    ) {
        let text = envelope.text;
        let raw_id = &text[id.clone()];
        if raw_id.len() > MAX_ID {
            let why = Some("the id is too long");
            let refused = error("null", code::INVALID, "Invalid request", why);
            return output.to_agent(process, &[&refused]);
        }
        let Some(mut asked) = self.find_asked(now, process, envelope, method, raw_id, output)
        else {
            return;
        };
        let early = asked.early.take();
        let permission = method == "session/request_permission";
        let client = match self.exchange.check_asked(asked.client, method, envelope) {
            Some(Ok(client)) => client,
            Some(Err((code, message, why))) => {
                return output.to_agent(process, &[&error(raw_id, code, message, Some(why))]);
            }
            None => return output.to_agent(process, &[&client_gone(raw_id, permission)]),
        };
        let is_observed = |key: &SessionKey| {
            let session = self.sessions.get(key);
            asked.is_addressed && session.is_some_and(Session::is_observed)
        };
        let watched = asked.session.clone().filter(is_observed);
        let ids = self
            .exchange
            .settings
            .protocol
            .sender_ids(envelope, id.clone());
        let request = AgentRequest {
            client,
            process,
            ids,
            places: self.exchange.places_of(method),
            session: asked.session,
            permission,
            text: None,
            approvers: Vec::new(),
            since: now,
        };
        let Exchange {
            requests, clients, ..
        } = &mut self.exchange;
        let number = requests.record_of_agent(clients, request, envelope);
        if let Some(session) = early {
            self.exchange.note_early_question(process, &session, number);
        }
        let upstream_id = number.to_string();
        let mut edits = vec![(id, &*upstream_id)];
        if permission {
            let sent = splice(text, &mut edits).concat();
            return self.ask_permission(number, client, watched.as_ref(), sent, output);
        }
        if let Some((range, client_id)) = &asked.reference {
            edits.push((range.clone(), client_id));
        }
        output.to_client(client, &splice(text, &mut edits));
    }

    /// Finds the client that a request from the agent is for. Returns `None` if the request is refused.
    fn find_asked(
        &mut self,
        now: Time,
        process: usize,
        envelope: &Envelope<'_>,
        method: &str,
        raw_id: &str,
        output: &mut impl RouterOutput,
    ) -> Option<Asked> {
        let asked = match Named::find(envelope, self.exchange.places_of(method)) {
            Ok(named) => match self.receiver(process, &named, output) {
                Receiver::Early(session) => {
                    let client =
                        self.early_receiver(now, process, (&session, &named), true, output);
                    client.map(|client| Asked {
                        client: Some(client),
                        early: Some(session),
                        ..Asked::default()
                    })
                }
                receiver => self.asked_by(process, envelope, receiver, output),
            },
            Err(TooMany) => Err(CROSSING),
        };
        asked
            .inspect_err(|why| {
                if *why == CROSSING {
                    self.exchange.counters.drop_crossing(method);
                }
                let refused = error(raw_id, code::INVALID, "Invalid request", Some(why));
                output.to_agent(process, &[&refused]);
            })
            .ok()
    }

    /// Asks a client, and the observers of the session if there are any, for a permission. The request is kept for those that come
    /// later.
    fn ask_permission(
        &mut self,
        number: u64,
        client: ClientId,
        watched: Option<&SessionKey>,
        sent: String,
        output: &mut impl RouterOutput,
    ) {
        output.to_client(client, &[&sent]);
        if let Some(session) = watched {
            self.sessions
                .show_permission(&mut self.exchange, number, session, &sent, output);
        }
        if let Some(request) = self.exchange.requests.of_agent.get_mut(number)
            && sent.len() <= MAX_KEPT_REQUEST
        {
            request.text = Some(sent.into());
        }
    }

    /// Finds the client that a request of the agent is for, or says why there is none.
    fn asked_by(
        &self,
        process: usize,
        envelope: &Envelope<'_>,
        receiver: Receiver,
        output: &impl RouterOutput,
    ) -> Result<Asked, &'static str> {
        match receiver {
            Receiver::Session {
                key,
                client,
                is_addressed,
            } => {
                let refers = || self.exchange.reference_of(process, envelope, client);
                Ok(Asked {
                    client,
                    session: Some(key),
                    is_addressed,
                    early: None,
                    reference: if is_addressed { None } else { refers() },
                })
            }
            Receiver::Nobody | Receiver::Early(_) => Ok(Asked::default()),
            Receiver::Crossing => Err(CROSSING),
            Receiver::Unnamed => {
                if let Some(to) = self
                    .exchange
                    .requests
                    .of_clients
                    .named_in(process, envelope)
                {
                    return Ok(Asked {
                        client: self.exchange.requests.client_of(to.upstream_id),
                        reference: Some((to.range, to.own.into())),
                        ..Asked::default()
                    });
                }
                // The client of the request that it names has disconnected.
                let client = match envelope.request_id {
                    Some(_) => None,
                    None => Some(
                        self.exchange
                            .sole_requester(process, output)
                            .ok_or(UNNAMED)?,
                    ),
                };
                Ok(Asked {
                    client,
                    ..Asked::default()
                })
            }
        }
    }

    fn notification_from_agent(
        &mut self,
        now: Time,
        process: usize,
        envelope: &Envelope<'_>,
        method: &str,
        output: &mut impl RouterOutput,
    ) {
        let text = envelope.text;
        if is_cancellation(method) {
            return self
                .exchange
                .cancel_agent_request(process, envelope, method, output);
        }
        let Ok(named) = Named::find(envelope, self.exchange.places_of(method)) else {
            return self.exchange.counters.drop_crossing(method);
        };
        if method == "session/update"
            && self.exchange.has_long_turns(process)
            && let Some(session) = &named.address
            && let Some((key, _)) = self.sessions.of_process(process, session)
            && let key = key.clone()
            && let Some(bound) = self.sessions.get_mut(&key)
        {
            bound.activity.handle_update(envelope);
        }
        match self.receiver(process, &named, output) {
            Receiver::Unnamed => {}
            Receiver::Session {
                key,
                client,
                is_addressed,
            } => {
                if is_addressed {
                    self.sessions
                        .pass_to_observers(&self.exchange, &key, text, &named, output);
                    // Who attaches later may not know of other sessions.
                    if method == "session/update" && named.others.is_empty() {
                        self.sessions.remember(&key, Entry::Update, text);
                    }
                }
                let Some(to) = client else { return };
                let reference =
                    (!is_addressed).then(|| self.exchange.reference_of(process, envelope, client));
                return match reference.flatten() {
                    Some((range, id)) => {
                        output.to_client(to, &[&text[..range.start], &id, &text[range.end..]]);
                    }
                    None => output.to_client(to, &[text]),
                };
            }
            Receiver::Early(session) => {
                match self.early_receiver(now, process, (&session, &named), false, output) {
                    Ok(client) => {
                        output.to_client(client, &[text]);
                        if method == "session/update" && named.others.is_empty() {
                            self.keep_early_update(process, &session, text);
                        }
                    }
                    Err(_) => self.exchange.hold_early(now, process, &session, text),
                }
                return;
            }
            Receiver::Nobody => return self.exchange.counters.dropped += 1,
            Receiver::Crossing => return self.exchange.counters.drop_crossing(method),
        }
        let requests = &self.exchange.requests.of_clients;
        let reference = if self.exchange.settings.protocol.has_progress_tokens() {
            requests.reference(process, method, envelope)
        } else {
            // A number in `requestId` may be the agent's own, so it does not count as a stale reference.
            let referred = requests.named_in(process, envelope);
            referred.map_or(Reference::None, Reference::Id)
        };
        match reference {
            Reference::None => {}
            Reference::Gone => return self.exchange.counters.drop_notification(method),
            Reference::Progress(to) | Reference::Subscription(to) | Reference::Id(to) => {
                if let Some(client) = self.exchange.requests.client_of(to.upstream_id) {
                    output.to_client(client, &to.parts(text));
                }
                return;
            }
        }
        if let Some(client) = self.exchange.clients.take_elicited(process, envelope) {
            return output.to_client(client, &[text]);
        }
        self.exchange.pass_to_all(process, text, output);
    }
}
