//! Turns, and takeovers: a client gets control of a session from another client, with its running turn and its open permission
//! requests.
//!
//! In version 1 of the Agent Client Protocol, a turn lasts as long as its request. In version 2, `session/prompt` is answered at
//! once, and `state_update` reports the state of the turn.

use super::{Session, SessionState, Sessions};
use crate::ClientId;
use crate::log_event::{log_event, word};
use crate::record::record;
use crate::service::agent::response::client_gone;
use crate::service::agent::router::clients::remove;
use crate::service::agent::router::exchange::Exchange;
use crate::service::agent::router::output::RouterOutput;
use crate::service::agent::router::requests::{AbandonedRequest, ClientRequest, RequestClass};
use crate::service::agent::router::session_key::SessionKey;
use crate::service::agent::router::settings::MAX_ORPHANED;
use crate::service::agent::router::updates::cancel_session;
use crate::service::json::quote;
use crate::service::jsonrpc::{Envelope, code, error, member};

/// The foreground activity of a session. Version 1 does not use it: there, a turn lasts as long as its request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activity {
    /// Whether the agent works, or waits for the user's action.
    is_running: bool,
    /// Whether the agent has reported the state since the last prompt was sent.
    is_reported: bool,
    /// Why the last turn ended, as JSON, if the agent has said so.
    stop_reason: Option<Box<str>>,
}

record!(Activity {
    is_running,
    is_reported,
    stop_reason,
});

/// The maximum length of a stop reason that is kept.
const MAX_STOP_REASON: usize = 64;

impl Activity {
    /// Whether the agent works on a prompt.
    pub(crate) fn is_running(&self) -> bool {
        self.is_running
    }

    /// A prompt is sent.
    pub(crate) fn handle_prompt(&mut self) {
        self.is_reported = false;
    }

    /// The agent has accepted a prompt. It works from then on, unless it has reported another state since.
    pub(crate) fn handle_accepted(&mut self) {
        self.is_running |= !self.is_reported;
    }

    /// The agent has sent an update of the session, which may have a state.
    pub(crate) fn handle_update(&mut self, update: &Envelope<'_>) {
        let text = update.text;
        let state = || {
            let body = update.body.as_ref()?;
            let update = member(text, body, "update")?;
            let kind = member(text, &update, "sessionUpdate")?;
            let state = member(text, &update, "state")?;
            let stop_reason = member(text, &update, "stopReason").map(|range| &text[range]);
            (&text[kind] == r#""state_update""#).then(|| (&text[state], stop_reason))
        };
        if let Some((state, stop_reason)) = state() {
            let stop_reason = stop_reason.filter(|reason| reason.len() <= MAX_STOP_REASON);
            *self = Self {
                // An unknown state does not count as idle.
                is_running: state != r#""idle""#,
                is_reported: true,
                stop_reason: stop_reason.map(Into::into),
            };
        }
    }
}

impl Session {
    /// Cancels the turn if no client controls the session any more.
    pub(crate) fn cancel_turn(&self, name: &str, output: &mut impl RouterOutput) {
        let is_controlled = matches!(self.state, SessionState::Controlled(_));
        if self.activity.is_running && !is_controlled && self.claim.is_none() {
            output.to_agent(self.process(), &cancel_session(&quote(name)));
        }
    }

    /// Tells the client that its turn has ended, because the process has exited with the status `data`.
    fn end_turn(&mut self, name: &str, data: &str, output: &mut impl RouterOutput) {
        let was_running = std::mem::take(&mut self.activity).is_running;
        if let Some(client) = self.controller().filter(|_| was_running) {
            let update = format!(
                r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":{},"update":{{"sessionUpdate":"state_update","state":"idle","stopReason":"error","error":{{"code":{},"message":"Agent exited","data":{data}}}}}}}}}"#,
                quote(name),
                code::EXITED,
            );
            output.to_client(client, &[&update]);
        }
    }
}

impl Sessions {
    /// Tells the clients of a process that has exited that their turns have ended.
    pub(crate) fn end_turns(&mut self, process: usize, data: &str, output: &mut impl RouterOutput) {
        for (name, bound) in self.iter_mut() {
            if bound.process() == process {
                bound.end_turn(name, data, output);
            }
        }
    }
}

/// Tells a client that another one controls its session now.
const TAKEN_OVER: &str = "_outrigger/session_taken_over";
impl Sessions {
    /// Gives control of a session, and its pending requests, to another client.
    pub(crate) fn take_over(
        &mut self,
        exchange: &mut Exchange,
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
        self.hand_over(exchange, session, old, new, output);
        if let Some(state) = exchange.clients.get_mut(old) {
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
        exchange: &mut Exchange,
        session: &SessionKey,
        old: ClientId,
        new: ClientId,
        output: &mut impl RouterOutput,
    ) {
        let ids = exchange
            .clients
            .get(old)
            .map(|state| exchange.requests.ids_for(state, session));
        for id in ids.unwrap_or_default() {
            let Some(request) = exchange.requests.forget(&mut exchange.clients, id) else {
                continue;
            };
            let why = Some("another connection has taken the session over");
            if let Some(ids) = &request.sender_ids {
                let failed = error(&ids.id, code::DENIED, "Access denied", why);
                output.to_client(old, &[&failed]);
            }
            if request.call.class == RequestClass::Prompt {
                exchange.adopt(new, request);
            } else {
                self.expect_late_response(exchange, &request, output);
            }
        }
        exchange.hand_over_questions(session, old, new, output);
    }

    /// Gives the pending requests in the sessions of a disconnected client to the clients that claim the sessions.
    pub(crate) fn hand_over_to_claimants(
        &mut self,
        exchange: &mut Exchange,
        client: ClientId,
        output: &mut impl RouterOutput,
    ) {
        let Some(state) = exchange.clients.get(client) else {
            return;
        };
        let claimed = |session: &SessionKey| {
            let claim = self.get(session)?.claim.as_ref()?;
            (claim.client != client).then(|| (session.clone(), claim.client))
        };
        let claimed: Vec<_> = state.sessions.iter().filter_map(claimed).collect();
        for (session, claimant) in claimed {
            self.hand_over(exchange, &session, client, claimant, output);
        }
    }

    /// Cancels the turn that a client has adopted, because its claim of the session failed.
    pub(crate) fn drop_adopted(
        &self,
        exchange: &mut Exchange,
        client: ClientId,
        session: &SessionKey,
        output: &mut impl RouterOutput,
    ) {
        let is_controller = self.get(session).is_some_and(|bound| {
            matches!(bound.state, SessionState::Controlled(controller) if controller == client)
        });
        if is_controller {
            return;
        }
        let mut running = None;
        let ids = exchange
            .clients
            .get(client)
            .map(|state| exchange.requests.ids_for(state, session));
        for id in ids.unwrap_or_default() {
            let request = exchange.requests.of_clients.get(id);
            if request.is_some_and(ClientRequest::is_adopted) {
                running = exchange.requests.forget(&mut exchange.clients, id);
            }
        }
        if let Some(request) = running {
            output.to_agent(request.process, &cancel_session(&quote(session)));
        }
        let state = exchange.clients.get(client);
        let questions = state.map(|state| state.agent_requests.clone());
        for id in questions.unwrap_or_default() {
            let request = exchange.requests.of_agent.get(id);
            if request.is_some_and(|request| request.session.as_ref() == Some(session))
                && let Some(request) = exchange.requests.forget_of_agent(&mut exchange.clients, id)
            {
                request.revoke(id, None, output);
                let gone = client_gone(&request.ids.id, request.permission);
                output.to_agent(request.process, &[&gone]);
            }
        }
    }

    /// Remembers a request whose response comes too late. A session that it opens belongs to its client's principal.
    pub(crate) fn expect_late_response(
        &mut self,
        exchange: &mut Exchange,
        request: &ClientRequest,
        output: &mut impl RouterOutput,
    ) {
        let id = request.upstream_id;
        let Some(principal) = exchange.clients.get(request.call.client) else {
            return;
        };
        let principal = principal.principal.clone();
        let claimed = request.call.session.as_ref();
        let claimed = claimed.filter(|_| request.call.class == RequestClass::Claim);
        let is_unconfirmed = claimed.is_some_and(|session| self.is_unconfirmed(session));
        if let Some(process) = exchange.processes.get_mut(request.process) {
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
            self.unclaim(exchange, id, session, output);
        }
    }
}
