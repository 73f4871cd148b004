//! What every JSON-RPC agent needs: the clients, the agent processes, and the requests between them. Sessions are a layer on it:
//! the exchange also does what a change of a session does to these requests.

use std::ops::Range;

use super::clients::{ClientState, Clients, remove};
use super::counters::RouterCounters;
use super::output::RouterOutput;
use super::process_table::{Process, Processes};
use super::requests::{ClientCall, ClientRequest, RequestClass, Requests, cancelled_id};
use super::session_key::SessionKey;
use super::settings::RouterSettings;
use crate::ClientId;
use crate::record::state;
use crate::service::agent::Approvals;
use crate::service::agent::named::Places;
use crate::service::agent::response::{client_gone, with_meta};
use crate::service::agent::schema::{has_session_rules, kind_of_method, known_params, wrong_kind};
use crate::service::json::quote;
use crate::service::jsonrpc::{Envelope, MessageKind, RequestKind, code, error};

/// Tells an observer that its session has ended.
const SESSION_ENDED: &str = "_outrigger/session_ended";

/// The clients, the agent processes, and the requests between them.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) settings: RouterSettings,
    /// The methods in whose messages session ids mean nothing.
    pub(super) free_methods: Vec<String>,
    pub(super) clients: Clients,
    pub(super) requests: Requests,
    pub(super) processes: Processes,
    pub(super) counters: RouterCounters,
}

state!(Exchange {
    keep settings,
    keep free_methods,
    clients,
    into requests,
    processes,
    counters,
});

impl Exchange {
    pub(super) fn new(settings: RouterSettings) -> Self {
        Self {
            settings,
            free_methods: Vec::new(),
            clients: Clients::default(),
            requests: Requests::new(&settings),
            processes: Processes::default(),
            counters: RouterCounters::default(),
        }
    }

    /// Moves a running turn to another client. If that client has too many requests, the turn continues without a client.
    pub(super) fn adopt(&mut self, client: ClientId, request: ClientRequest) {
        let state = self.clients.get(client);
        if state.is_some_and(|state| state.client_requests.len() < self.settings.client_requests) {
            let call = ClientCall {
                client,
                ..request.call
            };
            self.requests.record(
                &mut self.clients,
                ClientRequest {
                    sender_ids: None,
                    call,
                    ..request
                },
            );
        }
    }

    /// Where messages of a method, and responses to its requests, have session ids.
    pub(super) fn places_of(&self, method: &str) -> Places {
        if !self.settings.protocol.has_sessions() {
            Places::Nowhere
        } else if kind_of_method(method).is_some() {
            Places::Schema
        } else if !has_session_rules(method) && self.free_methods.iter().any(|free| free == method)
        {
            Places::Nowhere
        } else {
            Places::Anywhere
        }
    }

    /// Whether turns of a process outlast their requests.
    pub(super) fn has_long_turns(&self, process: usize) -> bool {
        self.processes.version(process) > 1
    }

    /// Whether a process and its clients may send batches.
    pub(super) fn has_batches(&self, process: usize) -> bool {
        let version = self.processes.version(process);
        self.settings.protocol.has_batches(version)
    }

    /// Sends the pending `initialize` to the agent.
    pub(super) fn send_initialize(&mut self, process: usize, output: &mut impl RouterOutput) {
        let state = self.processes.get_mut(process);
        let Some(pending) = state.and_then(|state| state.initialize.pending()) else {
            return;
        };
        let deadline = pending.deadline;
        if let Some(id) = pending.ids.last() {
            output.initialize_agent(
                process,
                &[
                    r#"{"jsonrpc":"2.0","id":"#,
                    &id.to_string(),
                    r#","method":"initialize","params":"#,
                    &pending.params,
                    "}",
                ],
            );
        }
        self.requests.wakeup.set_by(deadline);
    }

    /// Sends errors to clients that wait for `initialize`. They may send it again, even with other capabilities.
    pub(super) fn reject_initialize(
        &mut self,
        wanted: Vec<(ClientId, Box<str>)>,
        output: &mut impl RouterOutput,
        failed: impl Fn(&str) -> String,
    ) {
        for (client, id) in wanted {
            if let Some(state) = self.clients.get_mut(client) {
                state.process = None;
            }
            output.to_client(client, &[&failed(&id)]);
        }
    }

    /// Checks that a message is what the schema says: a request or a notification, and with the right types in the parameters
    /// with which a client could otherwise make the agent exit. Returns the message with only the parameters that the schema has,
    /// if it is one of these, or the error response.
    pub(super) fn check_schema(&self, envelope: &Envelope<'_>) -> Result<Option<String>, String> {
        let (method, id) = match &envelope.kind {
            MessageKind::Request { method, id } => (method, Some(&envelope.text[id.clone()])),
            MessageKind::Notification { method } => (method, None),
            MessageKind::Response { .. } => return Ok(None),
        };
        if !self.settings.protocol.has_schema() {
            return Ok(None);
        }
        if let Some(why) = wrong_kind(method, id.is_some()) {
            let id = id.unwrap_or("null");
            return Err(error(id, code::INVALID, "Invalid request", Some(why)));
        }
        let Some(id) = id else { return Ok(None) };
        match known_params(envelope.text, method) {
            Ok(None) => Ok(None),
            Ok(Some(params)) => Ok(Some(format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
            ))),
            Err(why) => Err(error(id, code::PARAMS, "Invalid params", Some(&why))),
        }
    }

    /// Whether a message is a prompt, which may have long images.
    pub(super) fn is_prompt(&self, envelope: &Envelope<'_>) -> bool {
        let MessageKind::Request { method, .. } = &envelope.kind else {
            return false;
        };
        self.settings.protocol.has_sessions() && RequestClass::of(method) == RequestClass::Prompt
    }

    /// Whether the agent does not have `session/resume`.
    pub(super) fn lacks_resume(&self, process: usize) -> bool {
        let process = self.processes.get(process);
        process.is_some_and(|process| process.initialize.lacks_resume())
    }

    /// The process that a client's request can go to, or the error for the client. `None` if there is no such client.
    pub(super) fn own_process(
        &self,
        client: ClientId,
        raw_id: &str,
    ) -> Option<Result<usize, String>> {
        let state = self.clients.get(client)?;
        if state.client_requests.len() >= self.settings.client_requests {
            let why = Some("too many requests are waiting");
            let refused = error(raw_id, code::TOO_MANY, "Too many requests", why);
            return Some(Err(refused));
        }
        Some(state.process.ok_or_else(|| {
            let why = Some("initialize has not succeeded");
            error(raw_id, code::INVALID, "Invalid request", why)
        }))
    }

    /// Checks whether a client can be asked. `None` if there is no client; otherwise the client, or the error for the agent.
    pub(super) fn check_asked(
        &self,
        client: Option<ClientId>,
        method: &str,
        request: &Envelope<'_>,
    ) -> Option<Result<ClientId, (i32, &'static str, &'static str)>> {
        let client = client?;
        let state = self.clients.get(client)?;
        let missing = || state.capabilities.missing_for(method, request);
        let has_handshake = self.settings.protocol.has_handshake();
        Some(if let Some(why) = has_handshake.then(missing).flatten() {
            Err((code::NO_METHOD, "Method not found", why))
        } else if state.agent_requests.len() >= self.settings.agent_requests {
            let why = "too many requests wait for the client's answer";
            Err((code::TOO_MANY, "Too many requests", why))
        } else {
            Ok(client)
        })
    }

    /// Passes on a notification that refers to no session and no request. It goes to the client of all pending requests if that
    /// is only one (see `notifies_sole_client`), otherwise to all clients of the process that may do more than watch.
    pub(super) fn pass_to_all(
        &mut self,
        process: usize,
        text: &str,
        output: &mut impl RouterOutput,
    ) {
        let serves = |client: ClientId, state: &ClientState| {
            state.process == Some(process) && !output.has_watch_scope(client)
        };
        let clients = self.clients.iter();
        let mut clients = clients.filter(|(client, state)| serves(*client, state));
        let sole = self.sole_client(process, output, |_| true);
        let sole = sole.filter(|_| self.settings.protocol.notifies_sole_client());
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

    /// Passes on the agent's cancellation of a subscription. `range` is the id of its request. The agent may cancel no other
    /// request of a client.
    pub(super) fn cancel_subscription(
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
        request.with_sender_ids(envelope, range, |parts| output.to_client(client, parts));
        // A cancelled request gets no response.
        self.requests.forget(&mut self.clients, upstream_id);
    }

    /// Forwards the cancellation of one of the agent's own requests, or of a subscription.
    pub(super) fn cancel_agent_request(
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
            return self.cancel_subscription(process, envelope, range, output);
        };
        let id = upstream_id.to_string();
        for client in request.approvers.iter().chain(Some(&request.client)) {
            let parts = [&text[..range.start], &id, &text[range.end..]];
            output.to_client(*client, &parts);
        }
        if self.settings.protocol.cancels_without_response(method) {
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

    /// Whether a client may answer permission requests in sessions that it observes.
    pub(super) fn may_approve(&self, client: ClientId, output: &impl RouterOutput) -> bool {
        let is_observer = !output.has_watch_scope(client) && !self.clients.is_viewer(client);
        self.settings.approvals == Approvals::Any
            && (is_observer || self.clients.is_answering_viewer(client))
    }

    /// Gives the agent's pending requests about a session to another client.
    pub(super) fn hand_over_questions(
        &mut self,
        session: &SessionKey,
        old: ClientId,
        new: ClientId,
        output: &mut impl RouterOutput,
    ) {
        let state = self.clients.get(old);
        let questions = state.map(|state| state.agent_requests.clone());
        for id in questions.unwrap_or_default() {
            let request = self.requests.of_agent.get_mut(id);
            let request = request.filter(|request| request.session.as_ref() == Some(session));
            let Some(request) = request else { continue };
            if let Some(state) = self.clients.get_mut(old) {
                remove(&mut state.agent_requests, &id);
            }
            match (self.clients.get_mut(new), &request.text) {
                (Some(state), Some(text))
                    if state.agent_requests.len() < self.settings.agent_requests =>
                {
                    state.agent_requests.push(id);
                    request.client = new;
                    // As an observer, it may have it already.
                    let had = request.approvers.contains(&new);
                    remove(&mut request.approvers, &new);
                    if !had {
                        output.to_client(new, &[text]);
                    }
                }
                _ => {
                    if let Some(request) = self.requests.of_agent.remove(id) {
                        request.revoke(id, Some(old), output);
                        let gone = client_gone(&request.ids.id, request.permission);
                        output.to_agent(request.process, &[&gone]);
                    }
                }
            }
        }
    }

    /// Sends an observer a permission request that the session's client has received: as a request if the observer may answer it,
    /// otherwise as a notification.
    pub(super) fn show_permission_to(
        &mut self,
        observer: ClientId,
        upstream_id: u64,
        sent: &str,
        output: &mut impl RouterOutput,
    ) {
        if self.may_approve(observer, output) {
            let request = self.requests.of_agent.get_mut(upstream_id);
            if let Some(request) = request.filter(|request| !request.approvers.contains(&observer))
            {
                request.approvers.push(observer);
                output.to_client(observer, &[sent]);
            }
        } else if let Ok(envelope) = Envelope::parse(sent)
            && let sent = with_meta(&envelope, &format!(r#"{{"requestId":{upstream_id}}}"#))
            && let Ok(envelope) = Envelope::parse(&sent)
            && let Some(params) = &envelope.body
        {
            output.to_client(
                observer,
                &[
                    r#"{"jsonrpc":"2.0","method":"session/request_permission","params":"#,
                    &sent[params.clone()],
                    "}",
                ],
            );
        }
    }

    /// Forgets the observers of a session that ends, and tells them. They can no longer answer its permission requests.
    pub(super) fn drop_observers(&mut self, session: &SessionKey, observers: &[ClientId]) {
        self.requests.detach_session(session);
        for observer in observers {
            if let Some(state) = self.clients.get_mut(*observer) {
                remove(&mut state.observed, session);
                let ended = format!(
                    r#"{{"jsonrpc":"2.0","method":"{SESSION_ENDED}","params":{{"sessionId":{}}}}}"#,
                    quote(session)
                );
                self.clients.notice(*observer, ended);
            }
        }
    }
}

/// The clients of requests without a session that are no longer pending, but that the agent may still work on.
fn orphans(process: &Process) -> impl Iterator<Item = ClientId> {
    let abandoned = process.abandoned.values();
    let abandoned = abandoned.filter(|request| request.session.is_none());
    let clients = abandoned.map(|request| request.client);
    clients.chain(process.orphaned.values().copied())
}
