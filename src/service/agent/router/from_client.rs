//! Messages from clients.

use std::ops::Range;

use super::Router;
use super::batches::BatchSender;
use super::observers::{is_for_watch_scope, watch_only};
use super::output::RouterOutput;
use super::requests::{ClientCall, ClientRequest, RequestClass, is_cancellation};
use super::session_key::SessionKey;
use super::sessions::{Session, SessionError};
use super::settings::MAX_INITIALIZE;
use crate::service::agent::BINARY;
use crate::service::jsonrpc::{
    Envelope, EnvelopeError, IdRanges, MAX_ID, MessageKind, PROGRESS, TOO_LONG, assigned, code,
    error, invalid_message_error, is_array, member, success,
};
use crate::{ClientId, CloseCode, Time};

/// Why a client is closed that sends an id of over [`MAX_ID`] bytes.
const ID_TOO_LONG: &str = "Request id too long";

/// The result of the checks on a request.
struct Admitted {
    class: RequestClass,
    /// The session that the request names.
    session: Option<SessionKey>,
    /// The agent process that gets it.
    process: usize,
    /// Whether that process has the session that the request claims.
    is_kept: bool,
}

/// Whether the agent answers a claim with the earlier updates of the session.
fn replays(envelope: &Envelope<'_>, method: &str) -> bool {
    let params = envelope.body.as_ref();
    let asks = || params.and_then(|params| member(envelope.text, params, "replayFrom"));
    method == "session/load" || asks().is_some()
}

impl Router {
    /// Handles a message from a client.
    pub(crate) fn handle_client_message(
        &mut self,
        now: Time,
        client: ClientId,
        text: &str,
        output: &mut impl RouterOutput,
    ) {
        if self.exchange.clients.is_viewer(client) {
            return self.message_of_viewer(client, text, output);
        }
        if let Some(state) = self.exchange.clients.get_mut(client) {
            if state.is_closed {
                return;
            }
            state.has_spoken = true;
        }
        if self.batch_from_client(now, client, text, output) {
            return;
        }
        let envelope = match self.read_client_message(client, text, output) {
            Some(Ok(envelope)) => envelope,
            Some(Err((code, why))) => return self.close(client, code, why, output),
            None => return,
        };
        let has_watch_scope = output.has_watch_scope(client);
        if has_watch_scope && !self.admit_with_watch_scope(client, &envelope, output) {
            return;
        }
        if output.is_long_json(text.len()) && !self.exchange.is_prompt(&envelope) {
            output.count_long_json();
            return self.refuse_long(client, &envelope, output);
        }
        let known = match self.exchange.check_schema(&envelope) {
            Ok(known) => known,
            Err(refused) => return output.to_client(client, &[&refused]),
        };
        // If the client may only watch, pass on only the parameters in the schema: others could have unexpected effects.
        let reduced = known.filter(|_| has_watch_scope);
        let envelope = match reduced.as_deref().map(Envelope::parse) {
            Some(Ok(reduced)) => reduced,
            _ => envelope,
        };
        match &envelope.kind {
            MessageKind::Request { method, id }
                if method == "initialize" && self.exchange.settings.protocol.has_handshake() =>
            {
                let id = &envelope.text[id.clone()];
                self.initialize_from_client(now, client, &envelope, id, output);
            }
            MessageKind::Request { method, id } => {
                self.request_from_client(now, client, &envelope, method, id.clone(), output)
            }
            MessageKind::Notification { method } => {
                self.notification_from_client(now, client, &envelope, method, output)
            }
            MessageKind::Response { id, .. } => {
                self.response_from_client(client, &envelope, id.clone(), output)
            }
        }
    }

    /// Whether a client may send batches: it has initialized the connection with a version of the protocol that has them.
    fn takes_batches(&self, client: ClientId) -> bool {
        let state = self.exchange.clients.get(client);
        let process = state.and_then(|state| state.process);
        process.is_some_and(|process| self.exchange.has_batches(process))
    }

    /// Takes the message of a client apart if it is a batch, and handles its messages. Returns false if it is none.
    pub(super) fn batch_from_client(
        &mut self,
        now: Time,
        client: ClientId,
        text: &str,
        output: &mut impl RouterOutput,
    ) -> bool {
        if !is_array(text) || !self.takes_batches(client) {
            return false;
        }
        if output.is_long_json(text.len()) {
            output.count_long_json();
            let refused = error("null", code::INVALID, "Invalid request", Some(TOO_LONG));
            output.to_client(client, &[&refused]);
            return true;
        }
        let sender = BatchSender::Client(client);
        match output.batches().begin(sender, text) {
            Ok((messages, answer)) => {
                if !output.count_messages(client, messages.len().saturating_sub(1)) {
                    return true;
                }
                for message in messages {
                    self.handle_client_message(now, client, message, output);
                }
                if let Some(answer) = answer {
                    output.to_client(client, &[&answer]);
                }
            }
            Err(refused) => output.to_client(client, &[&refused]),
        }
        true
    }

    /// Parses a client's message, and checks that the first one is `initialize`. `Some(Err(_))` closes the client. `None` means that
    /// the client has got an answer already, or is gone.
    fn read_client_message<'a>(
        &mut self,
        client: ClientId,
        text: &'a str,
        output: &mut impl RouterOutput,
    ) -> Option<Result<Envelope<'a>, (CloseCode, &'static str)>> {
        let state = self.exchange.clients.get_mut(client)?;
        if !state.initialized && text.len() > MAX_INITIALIZE {
            return Some(Err((CloseCode::TOO_BIG, "initialize is over 1 MiB")));
        }
        let envelope = match Envelope::parse_client(text) {
            Ok(envelope) => envelope,
            Err(EnvelopeError::Invalid { id: Some(id), .. }) if id.len() > MAX_ID => {
                return Some(Err((CloseCode::POLICY, ID_TOO_LONG)));
            }
            Err(invalid) => {
                output.to_client(client, &[&invalid_message_error(text, &invalid)]);
                return None;
            }
        };
        if envelope.id().is_some_and(|id| id.len() > MAX_ID) {
            return Some(Err((CloseCode::POLICY, ID_TOO_LONG)));
        }
        if !state.initialized {
            let is_initialize = matches!(&envelope.kind, MessageKind::Request { method, .. } if method == "initialize");
            if !is_initialize {
                let why = "The first message must be initialize";
                return Some(Err((CloseCode::PROTOCOL, why)));
            }
            state.initialized = true;
        }
        Some(Ok(envelope))
    }

    /// Handles a message from a viewer, which may answer permission requests at most. Other messages are ignored.
    fn message_of_viewer(&mut self, client: ClientId, text: &str, output: &mut impl RouterOutput) {
        if self.exchange.clients.is_answering_viewer(client)
            && !output.is_long_json(text.len())
            && let Ok(envelope) = Envelope::parse_client(text)
            && let MessageKind::Response { id, .. } = &envelope.kind
        {
            return self.response_from_client(client, &envelope, id.clone(), output);
        }
        log::debug!("{client} only watches: a message was ignored");
    }

    /// Handles a binary message. The transport has only text messages, and others are ignored. A client that has sent nothing else is
    /// closed, because it would wait for an answer for ever.
    pub(crate) fn handle_binary(&mut self, client: ClientId, output: &mut impl RouterOutput) {
        let state = self.exchange.clients.get(client);
        if state.is_some_and(|state| !state.has_spoken && !state.is_viewer) {
            return self.close(client, CloseCode::UNSUPPORTED, BINARY, output);
        }
        self.exchange.counters.drop_client_message(client, BINARY);
    }

    /// Closes a client, and ignores what it sends after that.
    fn close(
        &mut self,
        client: ClientId,
        code: CloseCode,
        reason: &str,
        output: &mut impl RouterOutput,
    ) {
        if let Some(state) = self.exchange.clients.get_mut(client) {
            state.is_closed = true;
        }
        output.close(client, code, reason);
    }

    /// Refuses a message that is too long. If it is an answer, the agent gets an error in its place.
    fn refuse_long(
        &mut self,
        client: ClientId,
        envelope: &Envelope<'_>,
        output: &mut impl RouterOutput,
    ) {
        match &envelope.kind {
            MessageKind::Request { id, .. } => {
                let id = &envelope.text[id.clone()];
                let refused = error(id, code::INVALID, "Invalid request", Some(TOO_LONG));
                output.to_client(client, &[&refused]);
            }
            MessageKind::Notification { .. } => {
                self.exchange.counters.drop_client_message(client, TOO_LONG)
            }
            MessageKind::Response { id, .. } => {
                let id = &envelope.text[id.clone()];
                let failed = error(id, code::INTERNAL, "Internal error", Some(TOO_LONG));
                if let Ok(failed) = Envelope::parse(&failed)
                    && let MessageKind::Response { id, .. } = &failed.kind
                {
                    self.response_from_client(client, &failed, id.clone(), output);
                }
            }
        }
    }

    /// Returns whether a client with the `watch` scope may send this message. If not, counts it, and answers a request with an error.
    fn admit_with_watch_scope(
        &mut self,
        client: ClientId,
        envelope: &Envelope<'_>,
        output: &mut impl RouterOutput,
    ) -> bool {
        if let MessageKind::Request { method, id } = &envelope.kind {
            if self.exchange.settings.protocol.has_sessions() && is_for_watch_scope(method) {
                return true;
            }
            output.to_client(client, &[&watch_only(&envelope.text[id.clone()])]);
        }
        self.exchange.counters.denied += 1;
        false
    }

    pub(super) fn request_from_client(
        &mut self,
        now: Time,
        client: ClientId,
        envelope: &Envelope<'_>,
        method: &str,
        id: Range<usize>,
        output: &mut impl RouterOutput,
    ) {
        let raw_id = &envelope.text[id.clone()];
        if self.is_draining {
            let refused = error(raw_id, code::STOPPING, "Server shutting down", None);
            return output.to_client(client, &[&refused]);
        }
        if self.exchange.settings.protocol.has_sessions()
            && (self.observe_request(client, envelope, method, raw_id, output)
                || self.list_request(client, envelope, method, raw_id, output))
        {
            return;
        }
        let own = match self.exchange.own_process(client, raw_id) {
            Some(Ok(own)) => own,
            Some(Err(refused)) => return output.to_client(client, &[&refused]),
            None => return,
        };
        let creates = self.exchange.settings.protocol.has_sessions()
            && RequestClass::of(method) == RequestClass::Create;
        if creates && self.waits_for_turn(now, (client, own), (raw_id, envelope.text), output) {
            return;
        }
        let upstream_id = self.exchange.requests.next_id();
        let admitted = match self.admit((client, own), upstream_id, envelope, method, output) {
            Ok(admitted) => admitted,
            Err(error) => {
                if !matches!(error, SessionError::Invalid(_) | SessionError::Full) {
                    self.exchange.counters.denied += 1;
                }
                return output.to_client(client, &[&error.response(raw_id)]);
            }
        };
        let (cancelled, ids) = match self.references_in(client, method, envelope, id) {
            Ok(references) => references,
            Err(why) => {
                let refused = error(raw_id, code::INVALID, "Invalid request", Some(why));
                return output.to_client(client, &[&refused]);
            }
        };

        self.exchange.counters.count_request(admitted.class);
        if let (RequestClass::Prompt, Some(session)) = (admitted.class, &admitted.session) {
            self.begin_turn((client, admitted.process), session, envelope, output);
        }
        // The request is recorded before it is sent, so its response cannot arrive first.
        let process = admitted.process;
        let places = self.exchange.places_of(method);
        self.exchange.requests.record(
            &mut self.exchange.clients,
            ClientRequest {
                process,
                upstream_id,
                sender_ids: Some(ids.read(envelope.text)),
                call: ClientCall {
                    client,
                    class: admitted.class,
                    places,
                    session: admitted.session,
                    since: now,
                },
            },
        );
        if admitted.is_kept && method == "session/resume" && self.exchange.lacks_resume(process) {
            // The agent still has the session and does not know about connections, so no message to it is needed.
            let response = success(&upstream_id.to_string(), "{}").concat();
            return self.route_from_agent(now, process, &response, output);
        }
        let cancelled = cancelled.map(|(range, cancelled)| (range, cancelled.to_string()));
        let cancelled = cancelled.as_ref().map(|(range, id)| (range.clone(), &**id));
        ids.with_upstream_id(envelope.text, upstream_id, cancelled, |parts| {
            output.to_agent(process, parts);
        });
    }

    /// The request that a request cancels, and where the request has its own ids.
    #[expect(clippy::type_complexity, reason = "it is taken apart at once")]
    fn references_in(
        &self,
        client: ClientId,
        method: &str,
        envelope: &Envelope<'_>,
        id: Range<usize>,
    ) -> Result<(Option<(Range<usize>, u64)>, IdRanges), &'static str> {
        let cancelled = is_cancellation(method).then(|| {
            self.exchange
                .requests
                .find_cancelled(self.exchange.clients.get(client), envelope)
        });
        Ok((
            cancelled.transpose()?,
            self.exchange.settings.protocol.id_ranges(envelope, id)?,
        ))
    }

    /// Notes that a prompt begins a turn of a session, and shows it to the observers.
    fn begin_turn(
        &mut self,
        (client, process): (ClientId, usize),
        session: &SessionKey,
        envelope: &Envelope<'_>,
        output: &mut impl RouterOutput,
    ) {
        if !self.exchange.has_long_turns(process) {
            self.sessions
                .show_prompt(&self.exchange, client, session, envelope, output);
        } else if let Some(bound) = self.sessions.get_mut(session) {
            bound.activity.handle_prompt();
        }
    }

    /// Checks whether a request may use the sessions that it names, and records a claim.
    fn admit(
        &mut self,
        (client, own): (ClientId, usize),
        upstream_id: u64,
        envelope: &Envelope<'_>,
        method: &str,
        output: &impl RouterOutput,
    ) -> Result<Admitted, SessionError> {
        if !self.exchange.settings.protocol.has_sessions() {
            let class = match method {
                "subscriptions/listen" => RequestClass::Listen,
                _ => RequestClass::Other,
            };
            return Ok(Admitted {
                class,
                session: None,
                process: own,
                is_kept: false,
            });
        }
        let class = RequestClass::of(method);
        let about = self.sessions.check_names(
            &self.exchange,
            client,
            method,
            envelope,
            class == RequestClass::Claim,
        )?;
        match (class, envelope.session.as_deref()) {
            (RequestClass::Claim, Some(id)) => {
                let claimed = self.sessions.claim(
                    &mut self.exchange,
                    client,
                    upstream_id,
                    id,
                    envelope,
                    output,
                )?;
                self.exchange.processes.note_client(claimed.process, client);
                if replays(envelope, method) {
                    self.sessions
                        .forget_history_for(upstream_id, &claimed.session);
                }
                Ok(Admitted {
                    class,
                    session: Some(claimed.session),
                    process: claimed.process,
                    is_kept: claimed.is_kept,
                })
            }
            _ => {
                if class == RequestClass::Create {
                    self.sessions.check_room(&mut self.exchange, client)?;
                }
                let bound = about.as_ref().and_then(|about| self.sessions.get(about));
                Ok(Admitted {
                    class,
                    process: bound.map_or(own, Session::process),
                    session: about,
                    is_kept: false,
                })
            }
        }
    }

    fn notification_from_client(
        &mut self,
        now: Time,
        client: ClientId,
        envelope: &Envelope<'_>,
        method: &str,
        output: &mut impl RouterOutput,
    ) {
        let about = match self
            .sessions
            .check_names(&self.exchange, client, method, envelope, false)
        {
            Ok(about) => about,
            Err(error) => {
                self.exchange.counters.denied += 1;
                let start = &method[..method.floor_char_boundary(100)];
                return log::warn!("dropped a notification {start:?} of {client}: {error}");
            }
        };
        self.exchange.counters.notifications += 1;
        let text = envelope.text;
        if method == PROGRESS
            && self.exchange.settings.protocol.has_progress_tokens()
            && !self
                .exchange
                .requests
                .has_progress_token(self.exchange.clients.get(client), envelope)
        {
            let why = "the progress token belongs to no request to this client";
            return self.exchange.counters.drop_client_message(client, why);
        }
        if !is_cancellation(method) {
            let session = about.and_then(|session| self.sessions.get(&session));
            let process = session.map(Session::process);
            if let Some(process) = process.or(self.exchange.clients.process_of(client)) {
                output.to_agent(process, &[text]);
            }
            return;
        }
        match self
            .exchange
            .requests
            .find_cancelled(self.exchange.clients.get(client), envelope)
        {
            Ok((range, upstream_id)) => {
                let id = upstream_id.to_string();
                let Some(request) = self.exchange.requests.of_clients.get(upstream_id) else {
                    return;
                };
                let process = request.process;
                output.to_agent(process, &[&text[..range.start], &id, &text[range.end..]]);
                if self
                    .exchange
                    .settings
                    .protocol
                    .cancels_without_response(method)
                {
                    self.finish_client_request(now, upstream_id);
                }
            }
            Err(_) if self.exchange.cancel_waiting(client, envelope, output) => {}
            Err(why) => self.exchange.counters.drop_client_message(client, why),
        }
    }

    /// Passes a client's response to a request of the agent on.
    fn response_from_client(
        &mut self,
        client: ClientId,
        envelope: &Envelope<'_>,
        id: Range<usize>,
        output: &mut impl RouterOutput,
    ) {
        let text = envelope.text;
        let success = matches!(
            envelope.kind,
            MessageKind::Response {
                result: Some(_),
                ..
            }
        );
        let upstream_id = assigned(&text[id.clone()]).filter(|upstream_id| {
            let request = self.exchange.requests.of_agent.get(*upstream_id);
            request.is_some_and(|request| {
                // An observer that cannot answer says so with an error, which is no answer.
                let approves = success && request.approvers.contains(&client);
                request.client == client || approves
            })
        });
        let answered = upstream_id.and_then(|id| {
            Some((
                id,
                self.exchange
                    .requests
                    .forget_of_agent(&mut self.exchange.clients, id)?,
            ))
        });
        let Some((upstream_id, request)) = answered else {
            let why = "the answer matches no request to this client";
            return self.exchange.counters.drop_client_message(client, why);
        };
        if let Err(refused) = self
            .sessions
            .access(&self.exchange)
            .check_answer(client, &request, envelope)
        {
            self.exchange.counters.denied += 1;
            log::warn!("refused the answer of {client} to a request of the agent: {refused}");
            request.revoke(upstream_id, Some(client), output);
            return output.to_agent(request.process, &[&refused.response(&request.ids.id)]);
        }
        let parts = [&text[..id.start], &request.ids.id, &text[id.end..]];
        output.to_agent(request.process, &parts);
        if request.permission {
            self.sessions.note_approval(
                &self.exchange,
                upstream_id,
                &request,
                client,
                envelope,
                output,
            );
        }
    }
}
