//! The differences between the protocols that a shared agent can speak. No other file of the router compares protocols.

use std::ops::Range;

use crate::service::agent::AgentProtocol;
use crate::service::jsonrpc::{Envelope, IdRanges, SenderIds};

impl AgentProtocol {
    fn is_acp(self) -> bool {
        self == Self::Acp
    }

    /// Whether a client's first request is `initialize`, which the router answers for agents that are initialized, and which says
    /// what the client supports. Otherwise, `initialize` is a request like any other.
    pub(super) fn has_handshake(self) -> bool {
        self.is_acp()
    }

    /// Whether a version of the protocol has batches.
    pub(super) fn has_batches(self, version: u64) -> bool {
        self.is_acp() && version > 1
    }

    /// Whether the messages of the protocol have a schema that the router checks.
    pub(super) fn has_schema(self) -> bool {
        self.is_acp()
    }

    /// Whether there are sessions, each with an owner, turns and observers.
    pub(super) fn has_sessions(self) -> bool {
        self.is_acp()
    }

    /// Whether notifications find their receiver by a progress token or a subscription, whose ids the router replaces.
    pub(super) fn has_progress_tokens(self) -> bool {
        !self.is_acp()
    }

    /// Whether a notification without a session is for the client of all pending requests, if these have one client. Otherwise, it
    /// need not be about these requests.
    pub(super) fn notifies_sole_client(self) -> bool {
        self.is_acp()
    }

    /// Whether a request that the client has not answered in time is cancelled there. The client may still show the question to its
    /// user.
    pub(super) fn cancels_late_requests(self) -> bool {
        self.is_acp()
    }

    /// Whether a request that this notification cancels gets no response. In the Model Context Protocol, it gets none.
    pub(super) fn cancels_without_response(self, method: &str) -> bool {
        !self.is_acp() && method == "notifications/cancelled"
    }

    /// Where a request has the ids that are replaced. An error says why the request is refused.
    pub(super) fn id_ranges(
        self,
        envelope: &Envelope<'_>,
        id: Range<usize>,
    ) -> Result<IdRanges, &'static str> {
        if self.has_progress_tokens() {
            return IdRanges::find(envelope, id);
        }
        Ok(IdRanges {
            id,
            progress_token: None,
        })
    }

    /// The ids of a request from the agent. A progress token that cannot be read reliably is dropped, so no client may use it.
    pub(super) fn sender_ids(self, envelope: &Envelope<'_>, id: Range<usize>) -> SenderIds {
        let found = self.id_ranges(envelope, id.clone());
        let ranges = found.unwrap_or(IdRanges {
            id,
            progress_token: None,
        });
        ranges.read(envelope.text)
    }
}
