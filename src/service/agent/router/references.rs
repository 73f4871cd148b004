//! References of the agent's requests and of subscriptions in the Model Context Protocol, other than ids.

use std::ops::Range;

use super::{AgentRequest, Router, RouterOutput};
use crate::ClientId;
use crate::service::jsonrpc::{Envelope, IdRanges, RequestKind, SenderIds, is_same, sole_member};

impl Router {
    /// Where a request has the ids that are replaced. An error says why the request is refused.
    pub(super) fn id_ranges(
        &self,
        envelope: &Envelope<'_>,
        id: Range<usize>,
    ) -> Result<IdRanges, &'static str> {
        if self.limits.protocol.has_progress_tokens() {
            return IdRanges::find(envelope, id);
        }
        Ok(IdRanges {
            id,
            progress_token: None,
        })
    }

    /// The ids of a request of the agent. A progress token that cannot be read reliably is not kept, so no client may use it.
    pub(super) fn sender_ids(&self, envelope: &Envelope<'_>, id: Range<usize>) -> SenderIds {
        let found = self.id_ranges(envelope, id.clone());
        let ranges = found.unwrap_or(IdRanges {
            id,
            progress_token: None,
        });
        ranges.read(envelope.text)
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
            let own = request.ids.progress_token.as_deref();
            own.is_some_and(|own| is_same(own, token))
        };
        let state = self.clients.get(&client);
        let ids = state.map_or(&[][..], |state| &state.agent_requests);
        let mut requests = ids.iter().filter_map(|id| self.agent_requests.get(*id));
        requests.any(is_about)
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
        let request = self.client_requests.of_process(process, raw);
        let Some(request) = request.filter(|request| request.call.is_subscription()) else {
            return self.counters.dropped += 1;
        };
        let (client, upstream_id) = (request.call.client, request.upstream_id);
        request.restore(envelope, range, |parts| output.to_client(client, parts));
        // A cancelled request gets no response.
        self.forget_client_request(upstream_id);
    }
}
