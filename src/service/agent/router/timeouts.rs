//! Time limits: of requests in both directions, and of sessions whose client has disconnected.
//!
//! The router asks for one wake-up, at the earliest known deadline. The request may be answered before that, so a wake-up
//! may find nothing to do.

use super::MAX_ORPHANED;
use super::{AbandonedRequest, ClientRequest, RequestClass, Router, RouterOutput};
use crate::Time;
use crate::service::jsonrpc::{code, error};

impl Router {
    /// The time at which to call [`Router::handle_timeout`], if it has changed since the last call.
    pub(crate) fn take_wakeup(&mut self) -> Option<Time> {
        self.requests.wakeup.take()
    }

    /// Fails the requests that are due, and ends the sessions whose grace period is over.
    pub(crate) fn handle_timeout(&mut self, now: Time, output: &mut impl RouterOutput) {
        while let Some(id) = self.requests.of_clients.due(now) {
            self.time_out_client_request(id, output);
        }
        while let Some(id) = self.requests.of_agent.due(now) {
            self.time_out_agent_request(id, output);
        }
        for process in self.processes.indices() {
            self.time_out_initialize(now, process, output);
        }
        if let Some(grace) = self.limits.grace {
            self.end_gone(|since| since + grace <= now);
        }
        self.stop_unused();
        let gone = self.sessions.first_gone().zip(self.limits.grace);
        let deadlines = [
            self.requests.of_clients.deadline(),
            self.requests.of_agent.deadline(),
            gone.map(|(since, grace)| since + grace),
        ];
        let processes = self.processes.iter();
        let initializes = processes.filter_map(|process| process.initialize.deadline());
        let deadlines = deadlines.into_iter().flatten().chain(initializes);
        self.requests.wakeup.reset(deadlines);
    }

    /// Fails a request that the agent has not answered in time. Its response is dropped when it comes.
    fn time_out_client_request(&mut self, upstream_id: u64, output: &mut impl RouterOutput) {
        let Some(request) = self.requests.forget(&mut self.clients, upstream_id) else {
            return;
        };
        self.counters.timed_out += 1;
        let why = Some("the agent has not answered in time");
        let failed = |id: &str| error(id, code::TIMED_OUT, "Timed out", why);
        request.answer(failed, output);
        if let Some(process) = self.processes.get_mut(request.process)
            && !std::mem::replace(&mut process.is_silent, true)
        {
            log::warn!(
                "the agent has not answered a request in time: not ready until it sends a message"
            );
        }
        self.expect_late_response(&request, output);
        self.drop_early(request.process, output);
    }

    /// Remembers a request whose response comes too late. A session that it opens belongs to its client's principal.
    pub(super) fn expect_late_response(
        &mut self,
        request: &ClientRequest,
        output: &mut impl RouterOutput,
    ) {
        let id = request.upstream_id;
        let Some(principal) = self.clients.get(request.call.client) else {
            return;
        };
        let principal = principal.principal.clone();
        let claimed = request.call.session.as_ref();
        let claimed = claimed.filter(|_| request.call.class == RequestClass::Claim);
        let is_unconfirmed = claimed.is_some_and(|session| self.sessions.is_unconfirmed(session));
        if let Some(process) = self.processes.get_mut(request.process) {
            if request.call.class == RequestClass::Create || is_unconfirmed {
                let session = claimed.map(|key| (&**key).into());
                let abandoned = AbandonedRequest {
                    client: request.call.client,
                    principal,
                    session,
                };
                process.abandoned.insert(id, abandoned);
            } else if request.call.session.is_none() && process.orphaned.len() < MAX_ORPHANED {
                process.orphaned.insert(id, request.call.client);
            }
        }
        if let Some(session) = claimed {
            self.unclaim(id, session, output);
        }
    }

    /// Fails a request of the agent that its client has not answered in time.
    fn time_out_agent_request(&mut self, upstream_id: u64, output: &mut impl RouterOutput) {
        let Some(request) = self
            .requests
            .forget_of_agent(&mut self.clients, upstream_id)
        else {
            return;
        };
        self.counters.timed_out += 1;
        let why = Some("the client has not answered in time");
        let failed = error(&request.ids.id, code::TIMED_OUT, "Timed out", why);
        output.to_agent(request.process, &[&failed]);
        if self.limits.protocol.cancels_late_requests() {
            request.revoke(upstream_id, None, output);
        }
    }
}
