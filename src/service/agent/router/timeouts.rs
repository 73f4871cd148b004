//! Time limits: of requests in both directions, and of sessions whose client has disconnected.
//!
//! The router asks for one wake-up, at the earliest known deadline. The request may be answered before that, so a wake-up
//! may find nothing to do.

use super::{Router, RouterOutput};
use crate::Time;
use crate::service::jsonrpc::{code, error};

impl Router {
    /// The time at which to call [`Router::handle_timeout`], if it has changed since the last call.
    pub(crate) fn take_wakeup(&mut self) -> Option<Time> {
        self.exchange.requests.wakeup.take()
    }

    /// Fails the requests that are due, and ends the sessions whose grace period is over.
    pub(crate) fn handle_timeout(&mut self, now: Time, output: &mut impl RouterOutput) {
        while let Some(id) = self.exchange.requests.of_clients.due(now) {
            self.time_out_client_request(id, output);
        }
        while let Some(id) = self.exchange.requests.of_agent.due(now) {
            self.time_out_agent_request(id, output);
        }
        for process in self.exchange.processes.indices() {
            self.time_out_initialize(now, process, output);
        }
        if let Some(grace) = self.exchange.limits.grace {
            self.sessions
                .end_gone(&mut self.exchange, |since| since + grace <= now);
        }
        self.exchange.stop_unused(&self.sessions);
        let gone = self.sessions.first_gone().zip(self.exchange.limits.grace);
        let deadlines = [
            self.exchange.requests.of_clients.deadline(),
            self.exchange.requests.of_agent.deadline(),
            gone.map(|(since, grace)| since + grace),
        ];
        let processes = self.exchange.processes.iter();
        let initializes = processes.filter_map(|process| process.initialize.deadline());
        let deadlines = deadlines.into_iter().flatten().chain(initializes);
        self.exchange.requests.wakeup.reset(deadlines);
    }

    /// Fails a request that the agent has not answered in time. Its response is dropped when it comes.
    fn time_out_client_request(&mut self, upstream_id: u64, output: &mut impl RouterOutput) {
        let Some(request) = self
            .exchange
            .requests
            .forget(&mut self.exchange.clients, upstream_id)
        else {
            return;
        };
        self.exchange.counters.timed_out += 1;
        let why = Some("the agent has not answered in time");
        let failed = |id: &str| error(id, code::TIMED_OUT, "Timed out", why);
        request.answer(failed, output);
        if let Some(process) = self.exchange.processes.get_mut(request.process)
            && !std::mem::replace(&mut process.is_silent, true)
        {
            log::warn!(
                "the agent has not answered a request in time: not ready until it sends a message"
            );
        }
        self.sessions
            .expect_late_response(&mut self.exchange, &request, output);
        self.exchange.drop_early(request.process, output);
    }

    /// Fails a request of the agent that its client has not answered in time.
    fn time_out_agent_request(&mut self, upstream_id: u64, output: &mut impl RouterOutput) {
        let Some(request) = self
            .exchange
            .requests
            .forget_of_agent(&mut self.exchange.clients, upstream_id)
        else {
            return;
        };
        self.exchange.counters.timed_out += 1;
        let why = Some("the client has not answered in time");
        let failed = error(&request.ids.id, code::TIMED_OUT, "Timed out", why);
        output.to_agent(request.process, &[&failed]);
        if self.exchange.limits.protocol.cancels_late_requests() {
            request.revoke(upstream_id, None, output);
        }
    }
}
