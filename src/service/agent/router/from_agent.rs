//! Messages from the agent.

use std::ops::Range;
use std::sync::Arc;

use super::processes::Process;
use super::sessions::{NewTokens, Receiver, SessionKey, turn_ended};
use super::{
    AgentRequest, ClientRequest, ClientState, MAX_KEPT_REQUEST, MAX_SESSION_ID, RequestClass,
    Router, RouterOutput, cancelled_id, is_cancellation,
};
use crate::service::agent::named::{Named, TooMany};
use crate::service::agent::response::{client_gone, with_meta};
use crate::service::jsonrpc::{
    Envelope, IdRecovery, MAX_ID, MessageKind, RecoveredId, Reference, RequestKind, assigned, code,
    error, is_same, splice, with_id,
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
    /// The client's request that the agent refers to: where the message has its id, and the client's own id.
    reference: Option<(Range<usize>, Box<str>)>,
}

impl Router {
    /// Handles a message from an agent process.
    pub(crate) fn handle_agent_message(
        &mut self,
        now: Time,
        process: usize,
        text: &str,
        output: &mut impl RouterOutput,
    ) {
        if self.limits.request_timeout.is_some()
            && let Some(process) = self.processes.get_mut(process)
            && std::mem::take(&mut process.is_silent)
        {
            log::info!("the agent sends messages again: ready");
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
                self.notification_from_agent(process, &envelope, method, output)
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
        self.counters.dropped += 1;
        match recovered {
            Some(RecoveredId::Response(id)) if assigned(&id).is_some() => {
                let why = format!("the agent's answer {why}");
                let failed = error(&id, code::INTERNAL, "Internal error", Some(&why));
                self.handle_agent_message(now, process, &failed, output);
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
            return self.counters.drop_response(&text[id]);
        };
        let Some(state) = self.processes.get_mut(process) else {
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
            // The client has left, but the session exists and may be loaded by others.
            let session = abandoned.session.clone().filter(|_| success).or(created);
            if let Some(session) = session {
                let tokens = NewTokens::new(output);
                self.create_gone(now, &abandoned, process, &session, tokens);
            }
            return self.stop_unused();
        }
        let Some(request) = self
            .requests
            .of_clients
            .of_process(process, &text[id.clone()])
        else {
            return self.counters.drop_response(&text[id]);
        };
        if !self.access().may_answer(request, envelope, output) {
            log::warn!("refused a response of the agent: it names a session of another client");
            self.counters.crossing += 1;
            let failed = Some(RecoveredId::Response(text[id].to_owned()));
            let why = "names a session of another client";
            return self.handle_unreadable(now, process, failed, why, output);
        }
        let Some(request) = self.finish_client_request(now, upstream_id) else {
            return;
        };
        if let (RequestClass::Create, Some(session)) = (request.call.class, &created)
            && !self.may_create(&request, session)
        {
            log::error!("the agent answered with a session that is in use: {session:?}");
            let why = Some("the agent answered with a session that is in use");
            let refused = |id: &str| error(id, code::INTERNAL, "Internal error", why);
            self.drop_early(process, output);
            return request.answer(refused, output);
        }
        let token = self.apply_answer(&request, envelope, created.as_ref(), success, output);
        self.pass_answer(&request, envelope, id, token, success, output);
        if request.call.class == RequestClass::Create {
            // What the agent has sent about the new session before its answer follows the answer.
            let state = self.processes.get_mut(process);
            let early = created.zip(state);
            let early = early.map(|(session, state)| state.early.take(&session));
            for message in early.into_iter().flatten() {
                self.handle_agent_message(now, process, &message, output);
            }
            self.drop_early(process, output);
        }
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
                self.create(client, process, session, tokens);
                return Some(token);
            }
            (RequestClass::Claim, Some(session)) if success => {
                return self.confirm_claim(upstream_id, session, output);
            }
            (RequestClass::Claim, Some(session)) => self.unclaim(upstream_id, session, output),
            (RequestClass::End, Some(session))
                if success && self.sessions.controller_of(session) == Some(client) =>
            {
                self.end(session, None);
                self.stop_unused();
            }
            (RequestClass::Prompt, Some(session)) if success && self.has_long_turns(process) => {
                if let Some(bound) = self.sessions.get_mut(session) {
                    bound.activity.handle_accepted();
                }
            }
            (RequestClass::Prompt, Some(session)) if !self.has_long_turns(process) => {
                if let Some(bound) = self.sessions.get(session) {
                    bound.show_turn_ended(session, envelope, output);
                }
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
            let listed = self
                .access()
                .list_for(client, has_watch_scope, request.process, envelope);
            output.to_client(client, &[&with_id(&listed, &ids.id)]);
        } else if let Some(token) = token {
            let with_token = with_meta(envelope, &token);
            output.to_client(client, &[&with_id(&with_token, &ids.id)]);
        } else {
            request.restore(envelope, id, |parts| output.to_client(client, parts));
        }
    }

    /// Removes a request that is answered, or that gets no response any more.
    pub(super) fn finish_client_request(
        &mut self,
        now: Time,
        upstream_id: u64,
    ) -> Option<ClientRequest> {
        let request = self.requests.forget(&mut self.clients, upstream_id)?;
        self.counters.answers.observe(now.since(request.call.since));
        Some(request)
    }

    /// Whether the session that a process has created for a request has an id of its own: in the process, and among the sessions of
    /// its client.
    fn may_create(&self, request: &ClientRequest, id: &str) -> bool {
        let process = request.process;
        let own = self.sessions.of_client(request.call.client, id);
        self.sessions.is_free(&self.processes, process, id)
            && own.is_none_or(|(_, session)| session.needs(process))
    }

    /// Who may get a message from a process, by the sessions that it names.
    fn receiver(&self, process: usize, named: &Named<'_>, output: &impl RouterOutput) -> Receiver {
        let is_creating = self.requests.creating(process) > 0;
        self.access().receiver(process, named, is_creating, output)
    }

    /// Keeps a message for a session that is perhaps being created.
    fn hold_early(
        &mut self,
        process: usize,
        session: &str,
        text: &str,
        output: &mut impl RouterOutput,
    ) {
        if let Some(state) = self.processes.get_mut(process) {
            let dropped = state.early.hold(session, text);
            self.refuse_early(process, &dropped, output);
        }
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
            return output.to_agent(
                process,
                &[&error("null", code::INVALID, "Invalid request", why)],
            );
        }
        let asked = match Named::find(envelope, self.places_of(method)) {
            Ok(named) => match self.receiver(process, &named, output) {
                Receiver::Early(name) => return self.hold_early(process, &name, text, output),
                receiver => self.asked_by(process, envelope, receiver, output),
            },
            Err(TooMany) => Err(CROSSING),
        };
        let asked = match asked {
            Ok(asked) => asked,
            Err(why) => {
                if why == CROSSING {
                    self.counters.drop_crossing(method);
                }
                let refused = error(raw_id, code::INVALID, "Invalid request", Some(why));
                return output.to_agent(process, &[&refused]);
            }
        };
        let permission = method == "session/request_permission";
        let client = match self.check_asked(asked.client, method) {
            Some(Ok(client)) => client,
            Some(Err((code, message, why))) => {
                return output.to_agent(process, &[&error(raw_id, code, message, Some(why))]);
            }
            None => return output.to_agent(process, &[&client_gone(raw_id, permission)]),
        };
        let watched = asked.session.clone();
        let watched = watched.filter(|name| {
            let bound = self.sessions.get(name);
            asked.is_addressed && bound.is_some_and(|bound| bound.is_observed())
        });
        let protocol = self.limits.protocol;
        let request = AgentRequest {
            client,
            process,
            ids: protocol.sender_ids(envelope, id.clone()),
            places: self.places_of(method),
            session: asked.session,
            permission,
            text: None,
            approvers: Vec::new(),
            since: now,
        };
        let number = self
            .requests
            .record_of_agent(&mut self.clients, request, envelope);
        let upstream_id = number.to_string();
        if permission {
            let sent = [&text[..id.start], &upstream_id, &text[id.end..]].concat();
            return self.ask_permission(number, client, watched.as_ref(), sent, output);
        }
        match &asked.reference {
            Some((range, client_id)) => {
                output.to_client(
                    client,
                    &splice(text, &mut [(id, &upstream_id), (range.clone(), client_id)]),
                );
            }
            None => output.to_client(client, &[&text[..id.start], &upstream_id, &text[id.end..]]),
        }
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
            self.show_permission(number, session, &sent, output);
        }
        if let Some(request) = self.requests.of_agent.get_mut(number)
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
                let refers = || self.reference_of(process, envelope, client);
                Ok(Asked {
                    client,
                    session: Some(key),
                    is_addressed,
                    reference: if is_addressed { None } else { refers() },
                })
            }
            Receiver::Nobody | Receiver::Early(_) => Ok(Asked::default()),
            Receiver::Crossing => Err(CROSSING),
            Receiver::Unnamed => {
                if let Some(to) = self.requests.of_clients.named_in(process, envelope) {
                    return Ok(Asked {
                        client: self.requests.client_of(to.upstream_id),
                        reference: Some((to.range, to.own.into())),
                        ..Asked::default()
                    });
                }
                // The client of the request that it names has disconnected.
                let client = match envelope.request_id {
                    Some(_) => None,
                    None => Some(self.sole_requester(process, output).ok_or(UNNAMED)?),
                };
                Ok(Asked {
                    client,
                    ..Asked::default()
                })
            }
        }
    }

    /// Checks whether a client can be asked. `None` if there is no client; otherwise the client, or the error for the agent.
    fn check_asked(
        &self,
        client: Option<ClientId>,
        method: &str,
    ) -> Option<Result<ClientId, (i32, &'static str, &'static str)>> {
        let client = client?;
        let state = self.clients.get(client)?;
        Some(
            if !state.capabilities.allow(method) && self.limits.protocol.has_handshake() {
                let why = "the client has not announced this capability";
                Err((code::NO_METHOD, "Method not found", why))
            } else if state.agent_requests.len() >= self.limits.agent_requests {
                let why = "too many requests wait for the client's answer";
                Err((code::TOO_MANY, "Too many requests", why))
            } else {
                Ok(client)
            },
        )
    }

    fn notification_from_agent(
        &mut self,
        process: usize,
        envelope: &Envelope<'_>,
        method: &str,
        output: &mut impl RouterOutput,
    ) {
        let text = envelope.text;
        if is_cancellation(method) {
            return self.cancel_agent_request(process, envelope, method, output);
        }
        let Ok(named) = Named::find(envelope, self.places_of(method)) else {
            return self.counters.drop_crossing(method);
        };
        if method == "session/update"
            && self.has_long_turns(process)
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
                    self.pass_to_observers(&key, text, &named, output);
                }
                let Some(to) = client else { return };
                let reference =
                    (!is_addressed).then(|| self.reference_of(process, envelope, client));
                return match reference.flatten() {
                    Some((range, id)) => {
                        output.to_client(to, &[&text[..range.start], &id, &text[range.end..]]);
                    }
                    None => output.to_client(to, &[text]),
                };
            }
            Receiver::Early(name) => return self.hold_early(process, &name, text, output),
            Receiver::Nobody => return self.counters.dropped += 1,
            Receiver::Crossing => return self.counters.drop_crossing(method),
        }
        let requests = &self.requests.of_clients;
        let reference = if self.limits.protocol.has_progress_tokens() {
            requests.reference(process, method, envelope)
        } else {
            let referred = requests.named_in(process, envelope);
            referred.map_or(Reference::None, Reference::Id)
        };
        match reference {
            Reference::None => {}
            Reference::Gone => return self.counters.drop_notification(method),
            Reference::Progress(to) | Reference::Subscription(to) | Reference::Id(to) => {
                if let Some(client) = self.requests.client_of(to.upstream_id) {
                    output.to_client(client, &to.parts(text));
                }
                return;
            }
        }
        if let Some(client) = self.clients.take_elicited(process, envelope) {
            return output.to_client(client, &[text]);
        }
        self.pass_to_all(process, text, output);
    }

    /// Passes a notification that is about no session and no request on to the clients of a process.
    fn pass_to_all(&mut self, process: usize, text: &str, output: &mut impl RouterOutput) {
        let serves = |client: ClientId, state: &ClientState| {
            state.process == Some(process) && !output.has_watch_scope(client)
        };
        let clients = self.clients.iter();
        let mut clients = clients.filter(|(client, state)| serves(*client, state));
        let sole = self.sole_client(process, output, |_| true);
        let sole = sole.filter(|_| self.limits.protocol.notifies_sole_client());
        let receivers = match (sole, clients.next(), clients.next()) {
            (Some(client), ..) => vec![client],
            (None, Some((client, _)), None) => vec![client],
            _ => {
                let clients = self.clients.iter();
                let clients = clients.filter(|(client, state)| serves(*client, state));
                clients.map(|(client, _)| client).collect()
            }
        };
        self.counters.dropped += u64::from(receivers.is_empty());
        for client in receivers {
            output.to_client(client, &[text]);
        }
    }

    /// Answers a request of the agent that waits for its session and is cancelled. Otherwise, the agent cancels a
    /// subscription.
    fn cancel_early(
        &mut self,
        process: usize,
        envelope: &Envelope<'_>,
        range: Range<usize>,
        output: &mut impl RouterOutput,
    ) {
        let is_it = |text: &str| {
            Envelope::parse(text).is_ok_and(|held| {
                let is_request = matches!(held.kind, MessageKind::Request { .. });
                let named = &envelope.text[range.clone()];
                is_request && held.id().is_some_and(|id| is_same(id, named))
            })
        };
        let state = self.processes.get_mut(process);
        match state.and_then(|state| state.early.remove(is_it)) {
            Some(cancelled) => self.refuse_early(process, &[cancelled], output),
            None => self.cancel_subscription(process, envelope, range, output),
        }
    }

    /// Passes on the agent's cancellation of a subscription. `range` is the id of its request. The agent may cancel no other
    /// request of a client.
    fn cancel_subscription(
        &mut self,
        process: usize,
        envelope: &Envelope<'_>,
        range: Range<usize>,
        output: &mut impl RouterOutput,
    ) {
        let raw = &envelope.text[range.clone()];
        let request = self.requests.of_clients.of_process(process, raw);
        let Some(request) = request.filter(|request| request.call.is_subscription()) else {
            return self.counters.dropped += 1;
        };
        let (client, upstream_id) = (request.call.client, request.upstream_id);
        request.restore(envelope, range, |parts| output.to_client(client, parts));
        // A cancelled request gets no response.
        self.requests.forget(&mut self.clients, upstream_id);
    }

    /// Forwards the cancellation of one of the agent's own requests, or of a subscription.
    fn cancel_agent_request(
        &mut self,
        process: usize,
        envelope: &Envelope<'_>,
        method: &str,
        output: &mut impl RouterOutput,
    ) {
        let text = envelope.text;
        let Ok(range) = cancelled_id(envelope) else {
            return self.counters.dropped += 1;
        };
        let found = self.requests.find_of_agent(process, &text[range.clone()]);
        let request = found.and_then(|id| Some((id, self.requests.of_agent.get(id)?)));
        let Some((upstream_id, request)) = request else {
            return self.cancel_early(process, envelope, range, output);
        };
        let id = upstream_id.to_string();
        for client in request.approvers.iter().chain(Some(&request.client)) {
            let parts = [&text[..range.start], &id, &text[range.end..]];
            output.to_client(*client, &parts);
        }
        if self.limits.protocol.cancels_without_response(method) {
            self.requests
                .forget_of_agent(&mut self.clients, upstream_id);
        }
    }

    /// The client's request that a message from the agent refers to beside a session of the client: the range of its id, and the
    /// client's own id.
    pub(super) fn reference_of(
        &self,
        process: usize,
        envelope: &Envelope<'_>,
        client: Option<ClientId>,
    ) -> Option<(Range<usize>, Box<str>)> {
        let referred = self.requests.of_clients.named_in(process, envelope)?;
        let request = self.requests.of_clients.get(referred.upstream_id)?;
        (Some(request.call.client) == client).then(|| (referred.range, referred.own.into()))
    }

    /// The only client to which a request of the agent without a session and a request id can belong. If some pending
    /// requests name no session, the agent's request belongs to one of these.
    pub(super) fn sole_requester(
        &self,
        process: usize,
        output: &impl RouterOutput,
    ) -> Option<ClientId> {
        let state = self.processes.get(process)?;
        // The agent may still work on requests that have timed out, or whose clients have disconnected.
        if orphans(state).any(|client| !self.clients.contains(client)) {
            return None;
        }
        let names_none = |request: &ClientRequest| request.call.session.is_none();
        let is_its = |request: &ClientRequest| request.process == process;
        let mut requests = self.requests.of_clients.values();
        let acts = |request: &ClientRequest| !output.has_watch_scope(request.call.client);
        let is_pending = requests
            .any(|request| is_its(request) && names_none(request) && acts(request))
            || state.initialize.is_wanted();
        let mut orphans = orphans(state).filter(|client| !output.has_watch_scope(*client));
        match orphans.next() {
            Some(orphan) => {
                let is_sole = orphans.all(|client| client == orphan)
                    && (!is_pending
                        || self.sole_client(process, output, names_none) == Some(orphan));
                is_sole.then_some(orphan)
            }
            None if is_pending => self.sole_client(process, output, names_none),
            None => self.sole_client(process, output, |_| true),
        }
    }

    /// The client of all pending requests to a process that match the filter, if they have the same client. Clients that
    /// only watch get no requests.
    pub(super) fn sole_client(
        &self,
        process: usize,
        output: &impl RouterOutput,
        filter: impl Fn(&ClientRequest) -> bool,
    ) -> Option<ClientId> {
        let requests = self.requests.of_clients.values();
        let mut clients = requests
            .filter(|request| request.process == process && filter(request))
            .map(|request| request.call.client)
            .chain(self.processes.get(process)?.initialize.wanted())
            .filter(|client| !output.has_watch_scope(*client));
        let first = clients.next()?;
        clients.all(|client| client == first).then_some(first)
    }
}

/// The clients of requests without a session that are no longer pending, but that the agent may still work on.
fn orphans(process: &Process) -> impl Iterator<Item = ClientId> {
    let abandoned = process.abandoned.values();
    let abandoned = abandoned.filter(|request| request.session.is_none());
    let clients = abandoned.map(|request| request.client);
    clients.chain(process.orphaned.values().copied())
}
