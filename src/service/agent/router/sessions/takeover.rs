//! Takeover: a client gets control of a session from another client, with its running turn and its open permission
//! requests.

use super::super::connections::cancel_session;
use super::super::{ClientCall, ClientRequest, RequestClass, Router, RouterOutput, remove};
use super::{SessionKey, SessionState};
use crate::ClientId;
use crate::log_event::{log_event, word};
use crate::service::agent::response::client_gone;
use crate::service::json::quote;
use crate::service::jsonrpc::{Envelope, MessageKind, code, error, member};

/// Tells a client that another one controls its session now.
const TAKEN_OVER: &str = "_outrigger/session_taken_over";
/// Tells a client how a turn ended that another client began.
const TURN_ENDED: &str = "_outrigger/turn_ended";

impl Router {
    /// Gives control of a session, and its pending requests, to another client.
    pub(super) fn take_over(
        &mut self,
        session: &SessionKey,
        old: ClientId,
        new: ClientId,
        output: &mut impl RouterOutput,
    ) {
        log_event!(
            Info,
            "session taken over",
            client = word(&new),
            from = word(&old),
        );
        self.hand_over(session, old, new, output);
        if let Some(state) = self.clients.get_mut(old) {
            remove(&mut state.sessions, session);
        }
        output.to_client(
            old,
            &[
                r#"{"jsonrpc":"2.0","method":""#,
                TAKEN_OVER,
                r#"","params":{"sessionId":"#,
                &quote(session),
                "}}",
            ],
        );
    }

    /// Gives the pending requests of a session to another client. The old client's requests fail, but the turn continues.
    fn hand_over(
        &mut self,
        session: &SessionKey,
        old: ClientId,
        new: ClientId,
        output: &mut impl RouterOutput,
    ) {
        let ids = self
            .clients
            .get(old)
            .map(|state| self.requests.ids_for(state, session));
        for id in ids.unwrap_or_default() {
            let Some(request) = self.requests.forget(&mut self.clients, id) else {
                continue;
            };
            let why = Some("another connection has taken the session over");
            if let Some(ids) = &request.sender_ids {
                let failed = error(&ids.id, code::DENIED, "Access denied", why);
                output.to_client(old, &[&failed]);
            }
            if request.call.class == RequestClass::Prompt {
                self.adopt(new, request);
            } else {
                self.expect_late_response(&request, output);
            }
        }
        self.hand_over_questions(session, old, new, output);
    }

    /// Gives the agent's open requests for a session to another client.
    pub(super) fn hand_over_questions(
        &mut self,
        session: &SessionKey,
        old: ClientId,
        new: ClientId,
        output: &mut impl RouterOutput,
    ) {
        let state = self.clients.get(old);
        let questions = state.map(|state| state.agent_requests.clone());
        for id in questions.unwrap_or_default() {
            let request = self.requests.of_agent.get_mut(id);
            let request = request.filter(|request| request.session.as_ref() == Some(session));
            let Some(request) = request else { continue };
            if let Some(state) = self.clients.get_mut(old) {
                remove(&mut state.agent_requests, &id);
            }
            match (self.clients.get_mut(new), &request.text) {
                (Some(state), Some(text))
                    if state.agent_requests.len() < self.limits.agent_requests =>
                {
                    state.agent_requests.push(id);
                    request.client = new;
                    // As an observer, it may have it already.
                    let had = request.approvers.contains(&new);
                    remove(&mut request.approvers, &new);
                    if !had {
                        output.to_client(new, &[text]);
                    }
                }
                _ => {
                    if let Some(request) = self.requests.of_agent.remove(id) {
                        request.revoke(id, Some(old), output);
                        let gone = client_gone(&request.ids.id, request.permission);
                        output.to_agent(request.process, &[&gone]);
                    }
                }
            }
        }
    }

    /// Moves a running turn to another client. If that client has too many requests, the turn continues without a client.
    fn adopt(&mut self, client: ClientId, request: ClientRequest) {
        let state = self.clients.get(client);
        if state.is_some_and(|state| state.client_requests.len() < self.limits.client_requests) {
            let call = ClientCall {
                client,
                ..request.call
            };
            self.requests.record(
                &mut self.clients,
                ClientRequest {
                    sender_ids: None,
                    call,
                    ..request
                },
            );
        }
    }

    /// Gives the pending requests in the sessions of a disconnected client to the clients that claim the sessions.
    pub(in super::super) fn hand_over_to_claimants(
        &mut self,
        client: ClientId,
        output: &mut impl RouterOutput,
    ) {
        let Some(state) = self.clients.get(client) else {
            return;
        };
        let claimed = |session: &SessionKey| {
            let claim = self.sessions.get(session)?.claim.as_ref()?;
            (claim.client != client).then(|| (session.clone(), claim.client))
        };
        let claimed: Vec<_> = state.sessions.iter().filter_map(claimed).collect();
        for (session, claimant) in claimed {
            self.hand_over(&session, client, claimant, output);
        }
    }

    /// Cancels the turn that a client has adopted, because its claim of the session failed.
    pub(super) fn drop_adopted(
        &mut self,
        client: ClientId,
        session: &SessionKey,
        output: &mut impl RouterOutput,
    ) {
        let is_controller = self.sessions.get(session).is_some_and(|bound| {
            matches!(bound.state, SessionState::Controlled(controller) if controller == client)
        });
        if is_controller {
            return;
        }
        let mut running = None;
        let ids = self
            .clients
            .get(client)
            .map(|state| self.requests.ids_for(state, session));
        for id in ids.unwrap_or_default() {
            let request = self.requests.of_clients.get(id);
            if request.is_some_and(ClientRequest::is_adopted) {
                running = self.requests.forget(&mut self.clients, id);
            }
        }
        if let Some(request) = running {
            output.to_agent(request.process, &cancel_session(&quote(session)));
        }
        let state = self.clients.get(client);
        let questions = state.map(|state| state.agent_requests.clone());
        for id in questions.unwrap_or_default() {
            let request = self.requests.of_agent.get(id);
            if request.is_some_and(|request| request.session.as_ref() == Some(session))
                && let Some(request) = self.requests.forget_of_agent(&mut self.clients, id)
            {
                request.revoke(id, None, output);
                let gone = client_gone(&request.ids.id, request.permission);
                output.to_agent(request.process, &[&gone]);
            }
        }
    }
}

/// The notification that a turn has ended with this response.
pub(in super::super) fn turn_ended(session: &str, response: &Envelope<'_>) -> String {
    let text = response.text;
    let outcome = match &response.kind {
        MessageKind::Response {
            result: Some(result),
            ..
        } => format!(r#""result":{}"#, &text[result.clone()]),
        _ => {
            let whole = 0..text.len();
            let failed = member(text, &whole, "error");
            format!(
                r#""error":{}"#,
                failed.map_or("null", |failed| &text[failed])
            )
        }
    };
    format!(
        r#"{{"jsonrpc":"2.0","method":"{TURN_ENDED}","params":{{"sessionId":{},{outcome}}}}}"#,
        quote(session)
    )
}
