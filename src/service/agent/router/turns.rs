//! Turns in version 2 of the Agent Client Protocol, where `session/prompt` is answered at once and `state_update` reports
//! the state of the turn.

use std::sync::Arc;

use super::connections::cancel_session;
use super::sessions::SessionState;
use super::{Router, RouterOutput};
use crate::ClientId;
use crate::service::json::quote;
use crate::service::jsonrpc::{Envelope, code, member};

/// The foreground activity of a session. Version 1 does not use it: there, a turn lasts as long as its request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Activity {
    /// Whether the agent works, or waits for the user's action.
    is_running: bool,
    /// Whether the agent has reported the state since the last prompt was sent.
    is_reported: bool,
}

impl Router {
    /// Whether turns of a process outlast their requests.
    pub(super) fn has_long_turns(&self, process: usize) -> bool {
        self.processes.version(process) > 1
    }

    /// Notes that a prompt is sent.
    pub(super) fn note_prompt(&mut self, session: &str) {
        if let Some(bound) = self.sessions.get_mut(session) {
            bound.activity.is_reported = false;
        }
    }

    /// Notes that the agent has accepted a prompt. It works from then on, unless it has reported another state since.
    pub(super) fn note_accepted(&mut self, session: &str) {
        if let Some(bound) = self.sessions.get_mut(session) {
            bound.activity.is_running |= !bound.activity.is_reported;
        }
    }

    /// Notes the state in an update of a session.
    pub(super) fn note_update(&mut self, session: &str, update: &Envelope<'_>) {
        let text = update.text;
        let state = || {
            let body = update.body.as_ref()?;
            let update = member(text, body, "update")?;
            let kind = member(text, &update, "sessionUpdate")?;
            let state = member(text, &update, "state")?;
            (&text[kind] == r#""state_update""#).then(|| &text[state])
        };
        if let (Some(state), Some(bound)) = (state(), self.sessions.get_mut(session)) {
            bound.activity = Activity {
                // An unknown state does not count as idle.
                is_running: state != r#""idle""#,
                is_reported: true,
            };
        }
    }

    /// Whether a turn runs in a session of the client.
    pub(super) fn has_running_turn(&self, client: ClientId) -> bool {
        let Some(state) = self.clients.get(&client) else {
            return false;
        };
        state.sessions.iter().any(|session| {
            let bound = self.sessions.get(session);
            bound.is_some_and(|bound| {
                bound.activity.is_running && bound.controller() == Some(client)
            })
        })
    }

    /// Cancels the turn of a session that no client controls any more.
    pub(super) fn cancel_turn(&self, session: &Arc<str>, output: &mut impl RouterOutput) {
        let running = self.sessions.get(session).filter(|bound| {
            let is_controlled = matches!(bound.state, SessionState::Controlled(_));
            bound.activity.is_running && !is_controlled && bound.claim.is_none()
        });
        if let Some(bound) = running {
            output.to_agent(bound.process(), &cancel_session(&quote(session)));
        }
    }

    /// Tells the clients of a process that has exited that their turns have ended.
    pub(super) fn end_turns(&mut self, process: usize, data: &str, output: &mut impl RouterOutput) {
        for (name, bound) in &mut self.sessions {
            if bound.process() != process || !std::mem::take(&mut bound.activity).is_running {
                continue;
            }
            if let Some(client) = bound.controller() {
                let update = format!(
                    r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":{},"update":{{"sessionUpdate":"state_update","state":"idle","stopReason":"error","error":{{"code":{},"message":"Agent exited","data":{data}}}}}}}}}"#,
                    quote(name),
                    code::EXITED,
                );
                output.to_client(client, &[&update]);
            }
        }
    }
}
