//! Turns in version 2 of the Agent Client Protocol, where `session/prompt` is answered at once and `state_update` reports
//! the state of the turn.

use super::RouterOutput;
use super::connections::cancel_session;
use super::sessions::{Session, SessionState, Sessions};
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

impl Activity {
    /// Whether the agent works on a prompt.
    pub(super) fn is_running(&self) -> bool {
        self.is_running
    }

    /// A prompt is sent.
    pub(super) fn handle_prompt(&mut self) {
        self.is_reported = false;
    }

    /// The agent has accepted a prompt. It works from then on, unless it has reported another state since.
    pub(super) fn handle_accepted(&mut self) {
        self.is_running |= !self.is_reported;
    }

    /// The agent has sent an update of the session, which may have a state.
    pub(super) fn handle_update(&mut self, update: &Envelope<'_>) {
        let text = update.text;
        let state = || {
            let body = update.body.as_ref()?;
            let update = member(text, body, "update")?;
            let kind = member(text, &update, "sessionUpdate")?;
            let state = member(text, &update, "state")?;
            (&text[kind] == r#""state_update""#).then(|| &text[state])
        };
        if let Some(state) = state() {
            *self = Self {
                // An unknown state does not count as idle.
                is_running: state != r#""idle""#,
                is_reported: true,
            };
        }
    }
}

impl Session {
    /// Cancels the turn if no client controls the session any more.
    pub(super) fn cancel_turn(&self, name: &str, output: &mut impl RouterOutput) {
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
    pub(super) fn end_turns(&mut self, process: usize, data: &str, output: &mut impl RouterOutput) {
        for (name, bound) in self.iter_mut() {
            if bound.process() == process {
                bound.end_turn(name, data, output);
            }
        }
    }
}
