//! The requests between the clients and the agent processes, in both directions.
//!
//! A request is recorded before it is sent. It is in the table of all requests and in the list of its client, and leaves both in one
//! call.

use std::ops::Range;
use std::sync::Arc;

use super::clients::{ClientState, Clients, remove};
use super::output::RouterOutput;
use super::session_key::SessionKey;
use super::settings::RouterSettings;
use super::updates::turn_ended;
use crate::record::{record, state};
use crate::service::agent::named::Places;
use crate::service::json::Skimmer;
use crate::service::jsonrpc::{
    Envelope, Forwarded, Pending, RequestKind, SenderIds, UpstreamIds, is_same, is_spelling_of,
    sole_member,
};
use crate::{ClientId, Principal, Time};

/// A client's request that the agent has not answered. It has no sender's ids if it is the turn of a session that the client has
/// taken over: the client gets a notification instead of the response.
pub(super) type ClientRequest = Forwarded<ClientCall>;

/// The router's part of a client's request.
#[derive(Debug)]
pub(super) struct ClientCall {
    pub(super) client: ClientId,
    pub(super) class: RequestClass,
    /// Where its response has session ids.
    pub(super) places: Places,
    /// The session that the request names.
    pub(super) session: Option<SessionKey>,
    pub(super) since: Time,
}

record!(ClientCall {
    client,
    class,
    places,
    session,
    since,
});

impl RequestKind for ClientCall {
    fn is_subscription(&self) -> bool {
        self.class == RequestClass::Listen
    }
}

/// A request that has timed out, or whose client has disconnected, and whose response will open a session.
#[derive(Debug)]
pub(super) struct AbandonedRequest {
    pub(super) client: ClientId,
    pub(super) principal: Principal,
    /// The session that it loads, or `None` if it creates one.
    pub(super) session: Option<Arc<str>>,
}

record!(AbandonedRequest {
    client,
    principal,
    session,
});

/// The effect of a request on sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestClass {
    /// Creates a session: `session/new`, `session/fork`.
    Create,
    /// Gives the client control of the named session: `session/load`, `session/resume`.
    Claim,
    /// Ends the named session.
    End,
    List,
    Prompt,
    /// Stays open for notifications: `subscriptions/listen` of the Model Context Protocol.
    Listen,
    Other,
}

record!(
    enum RequestClass {
        Create,
        Claim,
        End,
        List,
        Prompt,
        Listen,
        Other,
    }
);

impl RequestClass {
    /// Classifies a method of the Agent Client Protocol.
    pub(super) fn of(method: &str) -> Self {
        match method {
            "session/new" | "session/fork" | "nes/start" => Self::Create,
            "session/load" | "session/resume" => Self::Claim,
            "session/close" | "session/delete" | "nes/close" => Self::End,
            "session/list" => Self::List,
            "session/prompt" => Self::Prompt,
            _ => Self::Other,
        }
    }
}

impl ClientRequest {
    /// Whether the request is the turn of a session that its client has taken over.
    pub(super) fn is_adopted(&self) -> bool {
        self.sender_ids.is_none()
    }

    /// Sends the response that `failed` writes for an id. For an adopted turn, sends the notification that it has ended instead.
    pub(super) fn answer(&self, failed: impl Fn(&str) -> String, output: &mut impl RouterOutput) {
        let call = &self.call;
        if let Some(ids) = &self.sender_ids {
            output.to_client(call.client, &[&failed(&ids.id)]);
        } else if let (Some(session), Ok(envelope)) = (&call.session, Envelope::parse(&failed("0")))
        {
            output.to_client(call.client, &[&turn_ended(session, &envelope)]);
        }
    }
}

/// A request of the agent that a client has not answered.
#[derive(Debug)]
pub(super) struct AgentRequest {
    pub(super) client: ClientId,
    /// The agent process that sent it.
    pub(super) process: usize,
    /// The agent's own ids. Only the client that gets the request may use its progress token.
    pub(super) ids: SenderIds,
    /// Where its response has session ids.
    pub(super) places: Places,
    /// The session that the request names.
    pub(super) session: Option<SessionKey>,
    /// Whether it is `session/request_permission`.
    pub(super) permission: bool,
    /// The message as the client got it, for a permission request that is not too long. It is sent again if another
    /// client takes the session over.
    pub(super) text: Option<Box<str>>,
    /// The observers that may answer it too.
    pub(super) approvers: Vec<ClientId>,
    pub(super) since: Time,
}

record!(AgentRequest {
    client,
    process,
    ids,
    places,
    session,
    permission,
    text,
    approvers,
    since,
});

impl AgentRequest {
    /// Sends `$/cancel_request` to the clients that could have answered this request, except `except`.
    pub(super) fn revoke(
        &self,
        upstream_id: u64,
        except: Option<ClientId>,
        output: &mut impl RouterOutput,
    ) {
        let id = upstream_id.to_string();
        let clients = self.approvers.iter().chain(Some(&self.client));
        for client in clients.filter(|client| Some(**client) != except) {
            output.to_client(
                *client,
                &[
                    r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"#,
                    &id,
                    "}}",
                ],
            );
        }
    }
}

/// The time at which the router must be called, unless nothing is pending.
#[derive(Debug, Default)]
pub(super) struct Wakeup {
    at: Option<Time>,
    /// Whether `at` has changed since [`Wakeup::take`] was last called.
    is_new: bool,
}

impl Wakeup {
    /// Asks for a call at this time at the latest, if there is one.
    pub(super) fn set_by(&mut self, at: Option<Time>) {
        if let Some(at) = at
            && self.at.is_none_or(|earlier| at < earlier)
        {
            *self = Self {
                at: Some(at),
                is_new: true,
            };
        }
    }

    /// Asks for a call at the first of these times.
    pub(super) fn reset(&mut self, deadlines: impl Iterator<Item = Time>) {
        self.at = None;
        self.set_by(deadlines.min());
    }

    /// The time, if it has changed since the last call.
    pub(super) fn take(&mut self) -> Option<Time> {
        let is_new = std::mem::take(&mut self.is_new);
        self.at.filter(|_| is_new)
    }
}

/// The pending requests. Their ids are unique in both directions.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) of_clients: Pending<ClientRequest>,
    pub(super) of_agent: Pending<AgentRequest>,
    /// The number of client requests that create a session, by process.
    creating: Vec<usize>,
    /// The upstream ids of requests in both directions.
    ids: UpstreamIds,
    pub(super) wakeup: Wakeup,
}

state!(Requests {
    into of_clients,
    into of_agent,
    creating,
    ids,
    // The next wake-up finds out when it is needed again.
    keep wakeup,
});

impl Requests {
    pub(super) fn new(settings: &RouterSettings) -> Self {
        Self {
            of_clients: Pending::new(settings.request_timeout),
            of_agent: Pending::new(settings.answer_timeout),
            creating: Vec::new(),
            ids: UpstreamIds::default(),
            wakeup: Wakeup::default(),
        }
    }

    /// Returns a new upstream id.
    pub(super) fn next_id(&mut self) -> u64 {
        self.ids.next()
    }

    /// Records a client's request before it is sent. Its time limit begins, unless it is a prompt or a subscription.
    pub(super) fn record(&mut self, clients: &mut Clients, request: ClientRequest) {
        let id = request.upstream_id;
        if let Some(state) = clients.get_mut(request.call.client) {
            state.client_requests.push(id);
        }
        let since = request.call.since;
        match request.call.class {
            RequestClass::Prompt | RequestClass::Listen => {
                return self.of_clients.insert(id, request);
            }
            RequestClass::Create => *self.creating_mut(request.process) += 1,
            _ => {}
        }
        let deadline = self.of_clients.insert_timed(id, request, since);
        self.wakeup.set_by(deadline);
    }

    /// Removes a client's request.
    pub(super) fn forget(
        &mut self,
        clients: &mut Clients,
        upstream_id: u64,
    ) -> Option<ClientRequest> {
        let request = self.take(upstream_id)?;
        if let Some(state) = clients.get_mut(request.call.client) {
            remove(&mut state.client_requests, &upstream_id);
        }
        Some(request)
    }

    /// Removes the request of a client that has been removed itself.
    pub(super) fn take(&mut self, upstream_id: u64) -> Option<ClientRequest> {
        let request = self.of_clients.remove(upstream_id)?;
        if request.call.class == RequestClass::Create {
            *self.creating_mut(request.process) -= 1;
        }
        Some(request)
    }

    fn creating_mut(&mut self, process: usize) -> &mut usize {
        if self.creating.len() <= process {
            self.creating.resize(process + 1, 0);
        }
        &mut self.creating[process]
    }

    /// The number of client requests to a process that create a session.
    pub(super) fn creating(&self, process: usize) -> usize {
        self.creating.get(process).copied().unwrap_or_default()
    }

    /// The clients of these requests, once for each request.
    pub(super) fn creators(&self, process: usize) -> impl Iterator<Item = ClientId> {
        let requests = self.of_clients.values();
        let creating = requests.filter(move |request| {
            request.process == process && request.call.class == RequestClass::Create
        });
        creating.map(|request| request.call.client)
    }

    /// The number of client requests that create a session.
    pub(super) fn all_creating(&self) -> usize {
        self.creating.iter().sum()
    }

    /// Records a request of the agent before it is sent. Returns its upstream id.
    pub(super) fn record_of_agent(
        &mut self,
        clients: &mut Clients,
        request: AgentRequest,
        envelope: &Envelope<'_>,
    ) -> u64 {
        let id = self.next_id();
        if let Some(state) = clients.get_mut(request.client) {
            state.note_elicitation(request.process, envelope);
            state.agent_requests.push(id);
        }
        let since = request.since;
        let deadline = self.of_agent.insert_timed(id, request, since);
        self.wakeup.set_by(deadline);
        id
    }

    /// Removes a request of the agent.
    pub(super) fn forget_of_agent(
        &mut self,
        clients: &mut Clients,
        upstream_id: u64,
    ) -> Option<AgentRequest> {
        let request = self.of_agent.remove(upstream_id)?;
        if let Some(state) = clients.get_mut(request.client) {
            remove(&mut state.agent_requests, &upstream_id);
        }
        Some(request)
    }

    /// Whether a request is pending between clients and a process.
    pub(super) fn has_any_of(&self, process: usize) -> bool {
        let mut requests = self.of_clients.values();
        let mut of_agent = self.of_agent.values();
        requests.any(|request| request.process == process)
            || of_agent.any(|request| request.process == process)
    }

    /// The client of a request.
    pub(super) fn client_of(&self, upstream_id: u64) -> Option<ClientId> {
        let request = self.of_clients.get(upstream_id);
        request.map(|request| request.call.client)
    }

    /// The requests of a client.
    pub(super) fn of_client<'a>(
        &'a self,
        state: &'a ClientState,
    ) -> impl Iterator<Item = &'a ClientRequest> {
        let ids = state.client_requests.iter();
        ids.filter_map(|id| self.of_clients.get(*id))
    }

    /// Whether a client waits for a response, or owes one. It does not wait for the response to a subscription.
    pub(super) fn is_busy(&self, state: &ClientState) -> bool {
        let mut requests = self.of_client(state);
        requests.any(|request| !request.call.is_subscription()) || !state.agent_requests.is_empty()
    }

    /// The upstream ids of a client's requests that name a session, except claims of it.
    pub(super) fn ids_for(&self, state: &ClientState, session: &SessionKey) -> Vec<u64> {
        let requests = self.of_client(state).filter(|request| {
            let call = &request.call;
            call.class != RequestClass::Claim && call.session.as_ref() == Some(session)
        });
        requests.map(|request| request.upstream_id).collect()
    }

    /// Finds the request that a client cancels. Returns the range of its id in the message, and its upstream id.
    pub(super) fn find_cancelled(
        &self,
        state: Option<&ClientState>,
        envelope: &Envelope<'_>,
    ) -> Result<(Range<usize>, u64), &'static str> {
        let range = cancelled_id(envelope)?;
        let raw = &envelope.text[range.clone()];
        let requests = state.into_iter().flat_map(|state| self.of_client(state));
        let named = requests.filter(|request| {
            let ids = request.sender_ids.as_ref();
            ids.is_some_and(|ids| is_same(&ids.id, raw))
        });
        // The latest request counts if a client reuses an id.
        let upstream_id = named.map(|request| request.upstream_id).max();
        let upstream_id = upstream_id.ok_or("no request of this client with this id is waiting")?;
        Ok((range, upstream_id))
    }

    /// Finds the request of a process that the process cancels. Returns its upstream id.
    pub(super) fn find_of_agent(&self, process: usize, raw: &str) -> Option<u64> {
        let mut requests = self.of_agent.iter();
        let found = requests
            .find(|(_, request)| request.process == process && is_same(&request.ids.id, raw));
        found.map(|(id, _)| id)
    }

    /// Whether a client's progress notification is about a request of the agent to this client.
    pub(super) fn has_progress_token(
        &self,
        state: Option<&ClientState>,
        notification: &Envelope<'_>,
    ) -> bool {
        let Some(token) = sole_member(notification, "progressToken") else {
            return false;
        };
        let token = &notification.text[token];
        let ids = state.map_or(&[][..], |state| &state.agent_requests);
        let mut requests = ids.iter().filter_map(|id| self.of_agent.get(*id));
        requests.any(|request| {
            let own = request.ids.progress_token.as_deref();
            own.is_some_and(|own| is_same(own, token))
        })
    }

    /// Removes an observer of a session from those who may answer the session's permission requests.
    pub(super) fn remove_approver(&mut self, client: ClientId, session: &SessionKey) {
        for request in self.of_agent.values_mut() {
            if request.session.as_ref() == Some(session) {
                remove(&mut request.approvers, &client);
            }
        }
    }

    /// Detaches the agent's pending requests from a session that ends. Only the session's client can still answer them.
    pub(super) fn detach_session(&mut self, session: &SessionKey) {
        for request in self.of_agent.values_mut() {
            if request.session.as_ref() == Some(session) {
                request.session = None;
                request.approvers.clear();
            }
        }
    }

    /// Calls `visit` with every client of a request.
    pub(super) fn visit_clients(&self, visit: &mut dyn FnMut(ClientId)) {
        for request in self.of_clients.values() {
            visit(request.call.client);
        }
        for request in self.of_agent.values() {
            visit(request.client);
            request.approvers.iter().copied().for_each(&mut *visit);
        }
    }

    /// The bytes that are kept for pending requests.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        let length = |ids: &SenderIds| {
            let token = ids.progress_token.as_ref();
            ids.id.len() + token.map_or(0, |token| token.len())
        };
        let of_clients = self.of_clients.values().map(|request| {
            let session = request.call.session.as_ref();
            let session = session.map_or(0, |session| session.len());
            session + request.sender_ids.as_ref().map_or(0, length)
        });
        let of_agent = self.of_agent.values();
        of_clients.sum::<usize>() + of_agent.map(|request| length(&request.ids)).sum::<usize>()
    }
}

/// Whether a method cancels a request, in the Agent Client Protocol, the Language Server Protocol or the Model Context
/// Protocol.
pub(super) fn is_cancellation(method: &str) -> bool {
    matches!(
        method,
        "$/cancel_request" | "$/cancelRequest" | "notifications/cancelled"
    )
}

/// Finds the request id in a cancellation.
pub(super) fn cancelled_id(envelope: &Envelope<'_>) -> Result<Range<usize>, &'static str> {
    let missing = "a cancellation needs exactly one of \"requestId\" and \"id\"";
    let body = envelope.body.as_ref().ok_or(missing)?;
    let (mut found, mut count, mut is_spelled) = (None, 0, false);
    let scanned = Skimmer::at(envelope.text, body).object(|key, value| {
        if is_spelling_of(&key, "requestId") || is_spelling_of(&key, "id") {
            is_spelled = matches!(&*key, "requestId" | "id");
            found = Some(value);
            count += 1;
        }
    });
    debug_assert!(scanned.is_ok(), "the text has been validated");
    found.filter(|_| count == 1 && is_spelled).ok_or(missing)
}
