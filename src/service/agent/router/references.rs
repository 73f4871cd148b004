//! References to requests in the Model Context Protocol, other than ids: progress tokens, and the ids of subscriptions.
//!
//! Clients choose their progress tokens, so several clients may choose the same one. The agent gets the upstream id of the
//! request instead, and notifications with it go to the client of that request, with the client's own token. The id of a
//! subscription is the id of the request `subscriptions/listen`, and is replaced in the same way. References to requests
//! that are not pending are dropped.

use std::ops::Range;

use super::pending::Pending;
use super::{AgentRequest, ClientRequest, RequestClass, Router, RouterOutput};
use crate::ClientId;
use crate::service::json::{Skimmer, quote};
use crate::service::jsonrpc::{
    Envelope, MAX_ID, assigned, is_same, is_spelling_of, member, splice,
};

/// Reports the progress of a request.
pub(super) const PROGRESS: &str = "notifications/progress";
/// The key in `_meta` that names the subscription of a message.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

impl Router {
    /// The progress token of a client's request, if the agent must get another one. An error says why the request is
    /// rejected.
    pub(super) fn progress_token_of(
        &self,
        envelope: &Envelope<'_>,
    ) -> Result<Option<Range<usize>>, &'static str> {
        if !self.limits.protocol.has_progress_tokens() {
            return Ok(None);
        }
        match envelope.progress_token()? {
            Some(token) if token.len() > MAX_ID => Err("the progress token is too long"),
            token => Ok(token),
        }
    }

    /// The progress token of an agent's request, as written. Only the client that gets the request may use it.
    pub(super) fn kept_progress_token(&self, envelope: &Envelope<'_>) -> Option<Box<str>> {
        let token = self.progress_token_of(envelope).ok()??;
        Some(envelope.text[token].into())
    }

    /// Whether a client's progress notification is about a request of the agent to this client.
    pub(super) fn may_report_progress(&self, client: ClientId, envelope: &Envelope<'_>) -> bool {
        if !self.limits.protocol.has_progress_tokens() {
            return true;
        }
        let Some(token) = sole_member(envelope, "progressToken") else {
            return false;
        };
        let token = &envelope.text[token];
        let is_about = |request: &AgentRequest| {
            let own = request.progress_token.as_deref();
            own.is_some_and(|own| is_same(own, token))
        };
        let state = self.clients.get(&client);
        let ids = state.map_or(&[][..], |state| &state.agent_requests);
        let mut requests = ids.iter().filter_map(|id| self.agent_requests.get(*id));
        requests.any(is_about)
    }

    /// Sends a notification of the agent to the client that its progress token or subscription belongs to, with the client's
    /// own token or id. Returns false if the notification has neither, and does not refer to a request that is not pending.
    pub(super) fn notify_requester(
        &mut self,
        process: usize,
        envelope: &Envelope<'_>,
        method: &str,
        output: &mut impl RouterOutput,
    ) -> bool {
        let text = envelope.text;
        let target = if method == PROGRESS {
            sole_member(envelope, "progressToken").and_then(|range| {
                let request = self
                    .client_requests
                    .of_process(process, &text[range.clone()])?;
                let token = request.progress_token.as_deref()?;
                Some((request.client, range, token.to_owned()))
            })
        } else if let Some(range) = subscription_in(envelope) {
            self.client_requests
                .subscriber(process, &text[range.clone()])
                .map(|(request, own)| (request.client, range, own))
        } else if let Some(range) = &envelope.request_id
            && assigned(&text[range.clone()]).is_some()
            && self.client_requests.named_in(process, envelope).is_none()
        {
            // The request has been answered, or its client has disconnected.
            None
        } else {
            return false;
        };
        match target {
            Some((client, range, own)) => {
                let parts = [&text[..range.start], &own, &text[range.end..]];
                output.to_client(client, &parts);
            }
            None => {
                self.counters.dropped += 1;
                let start = &method[..method.floor_char_boundary(100)];
                log::debug!(
                    "dropped a notification of the agent: {start:?} is about no pending request"
                );
            }
        }
        true
    }

    /// Forwards the agent's cancellation of a subscription. `range` is the id of its request. The agent may cancel no other
    /// request of a client.
    pub(super) fn cancel_subscription(
        &mut self,
        process: usize,
        envelope: &Envelope<'_>,
        range: Range<usize>,
        output: &mut impl RouterOutput,
    ) {
        let text = envelope.text;
        let request = self
            .client_requests
            .of_process(process, &text[range.clone()]);
        let Some(request) = request.filter(|request| request.class == RequestClass::Listen) else {
            return self.counters.dropped += 1;
        };
        let (client, upstream_id) = (request.client, request.upstream_id);
        let mut pieces = vec![(range, request.id.to_string())];
        if let Some(range) = subscription_in(envelope)
            && let Some((_, own)) = self
                .client_requests
                .subscriber(process, &text[range.clone()])
        {
            pieces.push((range, own));
        }
        let pieces = pieces.iter().map(|(range, own)| (range.clone(), &**own));
        output.to_client(client, &splice(text, &mut pieces.collect::<Vec<_>>()));
        // A cancelled request gets no response.
        self.forget_client_request(upstream_id);
    }
}

impl ClientRequest {
    /// Sends the response that ends a subscription to its client. The response may name the subscription.
    pub(super) fn end_subscription(
        &self,
        envelope: &Envelope<'_>,
        id: Range<usize>,
        output: &mut impl RouterOutput,
    ) {
        let text = envelope.text;
        let range = subscription_in(envelope);
        let own = range.and_then(|range| {
            let raw = &text[range.clone()];
            let is_its = upstream_id_in(raw) == Some(self.upstream_id);
            is_its.then(|| (range, own_id(self, raw)))
        });
        let mut pieces = vec![(id, &*self.id)];
        pieces.extend(own.as_ref().map(|(range, own)| (range.clone(), &**own)));
        output.to_client(self.client, &splice(text, &mut pieces));
    }
}

impl Pending<ClientRequest> {
    /// The client's request that a message from the agent refers to, and the range of its id in the message.
    pub(super) fn named_in(
        &self,
        process: usize,
        envelope: &Envelope<'_>,
    ) -> Option<(Range<usize>, &ClientRequest)> {
        let range = envelope.request_id.clone()?;
        let upstream_id = assigned(&envelope.text[range.clone()])?;
        let request = self.get(upstream_id)?;
        let is_its = request.process == process && !request.is_adopted();
        is_its.then_some((range, request))
    }

    /// Whether a client's request stays open only for notifications, so that its client does not wait for the response.
    pub(super) fn is_listening(&self, upstream_id: u64) -> bool {
        let request = self.get(upstream_id);
        request.is_some_and(|request| request.class == RequestClass::Listen)
    }

    /// The pending request that a process knows by this id.
    fn of_process(&self, process: usize, raw: &str) -> Option<&ClientRequest> {
        let request = self.get(assigned(raw)?)?;
        (request.process == process).then_some(request)
    }

    /// The request of the subscription that a process knows by this id, and the id for its client.
    fn subscriber(&self, process: usize, raw: &str) -> Option<(&ClientRequest, String)> {
        let request = self.get(upstream_id_in(raw)?)?;
        let is_it = request.process == process && request.class == RequestClass::Listen;
        is_it.then(|| (request, own_id(request, raw)))
    }
}

/// The notification that cancels a request of a client that has disconnected.
pub(super) fn cancel_request(upstream_id: u64) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{upstream_id}}}}}"#
    )
}

/// The id of the subscription in the `_meta` of a message.
fn subscription_in(envelope: &Envelope<'_>) -> Option<Range<usize>> {
    member(envelope.text, envelope.meta.as_ref()?, SUBSCRIPTION)
}

/// The upstream id that names a subscription. Some agents write it as a string.
fn upstream_id_in(raw: &str) -> Option<u64> {
    let inner = raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"'));
    assigned(inner.unwrap_or(raw))
}

/// The client's own id of a subscription: a string if the agent has written a string.
fn own_id(request: &ClientRequest, raw: &str) -> String {
    if raw.starts_with('"') && !request.id.starts_with('"') {
        quote(&request.id)
    } else {
        request.id.to_string()
    }
}

/// The member of the body with this key, unless it occurs twice or under another spelling too.
fn sole_member(envelope: &Envelope<'_>, name: &str) -> Option<Range<usize>> {
    let (mut found, mut count, mut is_spelled) = (None, 0, false);
    Skimmer::at(envelope.text, envelope.body.as_ref()?)
        .object(|key, value| {
            if is_spelling_of(&key, name) {
                is_spelled = key == name;
                found = Some(value);
                count += 1;
            }
        })
        .ok()?;
    found.filter(|_| count == 1 && is_spelled)
}
