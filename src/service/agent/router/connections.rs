//! Clients that connect and disconnect, and time limits: of requests in both directions, and of sessions whose client has
//! disconnected.
//!
//! The router asks for one wake-up, at the earliest known deadline. The request may be answered before that, so a wake-up
//! may find nothing to do.

use super::Router;
use super::batches::BatchSender;
use super::output::RouterOutput;
use super::requests::{AbandonedRequest, RequestClass};
use super::session_key::SessionKey;
use super::settings::MAX_ORPHANED;
use super::updates::cancel_session;
use crate::service::agent::response::client_gone;
use crate::service::json::quote;
use crate::service::jsonrpc::{cancellation, code, error};
use crate::{ClientId, Principal, Time};

impl Router {
    /// Adds a client. `is_sole` says that no client of another principal can connect.
    pub(crate) fn handle_connected(
        &mut self,
        client: ClientId,
        principal: Principal,
        is_sole: bool,
    ) {
        let has_handshake = self.exchange.settings.protocol.has_handshake();
        let state = self.exchange.clients.add(client, principal, is_sole);
        state.initialized = !has_handshake;
        state.process = (!has_handshake).then_some(0);
        if !has_handshake {
            self.exchange.processes.note_client(0, client);
        }
    }

    /// Ends the requests of a client that has disconnected. Those that may still change a session are remembered until they are
    /// answered.
    fn abandon_requests(
        &mut self,
        client: ClientId,
        principal: &Principal,
        requests: &[u64],
        output: &mut impl RouterOutput,
    ) {
        let mut cancelled: Vec<(usize, SessionKey)> = Vec::new();
        for &id in requests {
            let Some(request) = self.exchange.requests.take(id) else {
                continue;
            };
            let abandon = |session| AbandonedRequest {
                client,
                principal: principal.clone(),
                session,
            };
            let is_unconfirmed = |session: &SessionKey| self.sessions.is_unconfirmed(session);
            match (request.call.class, request.call.session) {
                (RequestClass::Prompt, Some(session)) => {
                    // The session may have ended, or another client may have taken it over.
                    let is_own = self.sessions.controller_of(&session) == Some(client);
                    let cancel = (request.process, session);
                    if is_own && !cancelled.contains(&cancel) {
                        cancelled.push(cancel);
                    }
                }
                (RequestClass::Claim, Some(session)) if is_unconfirmed(&session) => {
                    let abandoned = abandon(Some(session.to_string().into()));
                    if let Some(process) = self.exchange.processes.get_mut(request.process) {
                        process.abandoned.insert(id, abandoned);
                    }
                }
                (RequestClass::Listen, _) => {
                    output.to_agent(request.process, &[&cancellation(id, None)]);
                }
                (class, session) => {
                    let Some(process) = self.exchange.processes.get_mut(request.process) else {
                        continue;
                    };
                    if class == RequestClass::Create {
                        process.abandoned.insert(id, abandon(None));
                    } else if session.is_none() && process.orphaned.len() < MAX_ORPHANED {
                        process.orphaned.insert(id, client);
                    }
                }
            }
        }
        for (process, session) in cancelled {
            output.to_agent(process, &cancel_session(&quote(&session)));
        }
    }

    /// Removes all state of a client, cancels its prompts, and answers the agent's requests to it.
    pub(crate) fn handle_disconnected(
        &mut self,
        now: Time,
        client: ClientId,
        output: &mut impl RouterOutput,
    ) {
        self.sessions
            .hand_over_to_claimants(&mut self.exchange, client, output);
        let Some(state) = self.exchange.clients.remove(client) else {
            return;
        };
        output.batches().forget(BatchSender::Client(client));
        for process in self.exchange.processes.iter_mut() {
            process.initialize.forget(client);
        }
        self.abandon_requests(client, &state.principal, &state.client_requests, output);
        for session in &state.observed {
            self.sessions
                .stop_observing(&mut self.exchange, client, session);
        }
        for session in &state.sessions {
            if let Some(bound) = self.sessions.get(session)
                && bound.controller() == Some(client)
            {
                bound.show_disconnected(session, (client, &state), output);
            }
        }
        for id in state.agent_requests {
            if let Some(request) = self.exchange.requests.of_agent.remove(id) {
                request.revoke(id, Some(client), output);
                let gone = client_gone(&request.ids.id, request.permission);
                output.to_agent(request.process, &[&gone]);
            }
        }
        for session in state.sessions {
            self.sessions
                .release(&mut self.exchange, now, client, &session, output);
        }
        self.exchange.forget_waiting(client);
        for process in self.exchange.processes.indices() {
            self.exchange.drop_early(process);
        }
        self.send_waiting(now, output);
        self.stop_unused();
    }
}

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
        let creation = self.exchange.time_out_creation(now, output);
        self.send_waiting(now, output);
        if let Some(grace) = self.exchange.settings.grace {
            self.sessions
                .end_gone(&mut self.exchange, |since| since + grace <= now);
        }
        self.stop_unused();
        let gone = self.sessions.first_gone().zip(self.exchange.settings.grace);
        let deadlines = [
            self.exchange.requests.of_clients.deadline(),
            self.exchange.requests.of_agent.deadline(),
            gone.map(|(since, grace)| since + grace),
            creation,
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
        if request.call.class == RequestClass::Create {
            let client = request.call.client;
            self.exchange.creation_failed(request.process, client);
        }
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
        if self.exchange.settings.protocol.cancels_late_requests() {
            request.revoke(upstream_id, None, output);
        }
    }
}
