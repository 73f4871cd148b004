//! The receivers of the agent's messages.

use std::ops::Range;

use super::processes::Process;
use super::{ClientRequest, Router, RouterOutput, parse_upstream_id};
use crate::ClientId;
use crate::service::agent::envelope::Envelope;

impl Router {
    /// The session that a message from the agent names.
    pub(super) fn session_of<'a>(&self, envelope: &'a Envelope<'_>) -> Option<&'a str> {
        let session = envelope.session.as_deref();
        let session = session.or(envelope.misspelled_session.as_deref());
        session.filter(|_| self.limits.acp)
    }

    /// The client's request that a message from the agent refers to, and the range of its id in the message.
    pub(super) fn request_of(
        &self,
        process: usize,
        envelope: &Envelope<'_>,
    ) -> Option<(Range<usize>, &ClientRequest)> {
        let range = envelope.request_id.clone()?;
        let upstream_id = parse_upstream_id(&envelope.text[range.clone()])?;
        let request = self.client_requests.get(&upstream_id)?;
        let is_its = request.process == process && !request.is_adopted();
        is_its.then_some((range, request))
    }

    /// The only client to which a request of the agent without a session and a request id can belong. If some pending
    /// requests name no session, the agent's request belongs to one of these.
    pub(super) fn sole_requester(
        &self,
        process: usize,
        output: &impl RouterOutput,
    ) -> Option<ClientId> {
        let state = self.process(process)?;
        // The agent may still work on requests that have timed out, or whose clients have disconnected.
        if orphans(state).any(|client| !self.clients.contains_key(&client)) {
            return None;
        }
        let names_none = |request: &ClientRequest| request.session.is_none();
        let is_its = |request: &ClientRequest| request.process == process;
        let mut requests = self.client_requests.values();
        let acts = |request: &ClientRequest| !Self::only_watches(request.client, output);
        let is_pending = requests
            .any(|request| is_its(request) && names_none(request) && acts(request))
            || state.initialize.is_wanted();
        let mut orphans = orphans(state).filter(|client| !Self::only_watches(*client, output));
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
        let requests = self.client_requests.values();
        let mut clients = requests
            .filter(|request| request.process == process && filter(request))
            .map(|request| request.client)
            .chain(self.process(process)?.initialize.wanted())
            .filter(|client| !Self::only_watches(*client, output));
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
