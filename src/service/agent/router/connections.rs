//! Clients that connect and disconnect.

use super::sessions::SessionKey;

use super::{AbandonedRequest, MAX_ORPHANED, RequestClass, Router, RouterOutput};
use crate::service::agent::response::client_gone;
use crate::service::json::quote;
use crate::service::jsonrpc::cancellation;
use crate::{ClientId, Principal, Time};

impl Router {
    /// Adds a client. `is_sole` says that no client of another principal can connect.
    pub(crate) fn handle_connected(
        &mut self,
        client: ClientId,
        principal: Principal,
        is_sole: bool,
    ) {
        let has_handshake = self.exchange.limits.protocol.has_handshake();
        let state = self.exchange.clients.add(client, principal, is_sole);
        state.initialized = !has_handshake;
        state.process = (!has_handshake).then_some(0);
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
                    // A session that was closed may belong to another client by now.
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
                bound.show_disconnected(session, &state, output);
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
        for process in self.exchange.processes.indices() {
            self.exchange.drop_early(process, output);
        }
        self.exchange.stop_unused(&self.sessions);
    }
}

/// The notification that cancels the turn of a session. `session` is its quoted id.
pub(super) fn cancel_session(session: &str) -> [&str; 3] {
    [
        r#"{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"#,
        session,
        "}}",
    ]
}
