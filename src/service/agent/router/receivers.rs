//! The receivers of the agent's messages.

use std::ops::Range;
use std::sync::Arc;

use super::processes::Process;
use super::{ClientRequest, MAX_SESSION_ID, Router, RouterOutput};
use crate::ClientId;
use crate::service::agent::named::Named;
use crate::service::jsonrpc::Envelope;

/// Who may get a message of the agent, by the sessions that it names.
#[derive(Debug)]
pub(super) enum Receiver {
    /// It names no session.
    Unnamed,
    /// The client of this session, and the observers of the session if `is_addressed`.
    Session {
        name: Arc<str>,
        /// `None` if only observers are left.
        client: Option<ClientId>,
        /// Whether the session is at `params.sessionId`.
        is_addressed: bool,
    },
    /// The client of this session, which is perhaps being created.
    Early(Box<str>),
    /// Nobody: the sessions have no clients, or belong to another process.
    Nobody,
    /// Nobody: they are sessions of several clients, one of whom must not know of the other's.
    Crossing,
}

impl Router {
    /// Who may get a message of the agent. A message for one session may name others, if their client may know of them.
    pub(super) fn receiver(
        &self,
        process: usize,
        named: &Named<'_>,
        output: &impl RouterOutput,
    ) -> Receiver {
        let candidates = match &named.address {
            Some(address) => std::slice::from_ref(address),
            None => &named.others,
        };
        if candidates.is_empty() {
            return Receiver::Unnamed;
        }
        let mut found: Option<(&Arc<str>, Option<ClientId>)> = None;
        for id in candidates {
            let Some((name, bound)) = self.sessions.get_key_value(&**id) else {
                continue;
            };
            let client = bound.controller();
            if bound.process() != process || client.is_none() && bound.observers.is_empty() {
                continue;
            }
            match found {
                Some((_, other)) if other != client => return Receiver::Crossing,
                _ => found = Some((name, client)),
            }
        }
        let Some((name, client)) = found else {
            let may_come = self.requests.creating(process) > 0;
            let mut candidates = candidates.iter().filter(|_| may_come);
            let early = candidates.find(|id| id.len() <= MAX_SESSION_ID && self.is_free(id));
            return early.map_or(Receiver::Nobody, |id| Receiver::Early((&**id).into()));
        };
        let names_more = !named.others.is_empty();
        if client.is_some_and(|client| names_more && !self.may_get(client, named, output)) {
            return Receiver::Crossing;
        }
        Receiver::Session {
            name: Arc::clone(name),
            client,
            is_addressed: named.address.is_some(),
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

    /// Whether a client may know of all sessions that a message names.
    pub(super) fn may_get(
        &self,
        client: ClientId,
        named: &Named<'_>,
        output: &impl RouterOutput,
    ) -> bool {
        let has_watch_scope = output.has_watch_scope(client);
        let may_know = |id| self.may_know(client, has_watch_scope, id).unwrap_or(true);
        named.all().all(may_know)
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
