//! Viewers: clients that do nothing but observe one session, such as pages that connect with `?watch=SESSION`, also with a link.
//! Unlike other observers they send no messages, not even `initialize`.

use std::sync::Arc;

use super::observers::MAX_OBSERVERS;
use super::sessions::{Session, SessionError, SessionState};
use super::{Router, RouterOutput};
use crate::service::json::quote;
use crate::{ClientId, Principal, Scope};

/// Why a client may not observe a session, for people.
fn why(error: SessionError) -> String {
    match error {
        SessionError::Denied => "there is no such session, or it has another owner".to_owned(),
        SessionError::Lost => "the agent process of the session has exited".to_owned(),
        error => error.to_string(),
    }
}

/// The first message to such a client.
const WATCHING: &str = "_outrigger/watching";

impl Router {
    /// Checks that a caller may let others watch a session: the caller has the same principal as its owner, and the session is in
    /// use or was recently. Returns why not.
    pub(crate) fn check_share(&self, principal: &Principal, name: &str) -> Result<(), String> {
        let bound = self.sessions.get(name);
        let bound = bound.filter(|bound| bound.principal.is_same(principal));
        let present = self.check_present(bound.ok_or_else(|| why(SessionError::Denied))?);
        present.map_err(why)
    }

    fn check_present(&self, bound: &Session) -> Result<(), SessionError> {
        let is_there = matches!(
            bound.state,
            SessionState::Controlled(_) | SessionState::Gone(_)
        );
        match (is_there, self.processes.is_current(bound.run)) {
            (false, _) => Err(SessionError::Denied),
            (true, false) => Err(SessionError::Lost),
            (true, true) => Ok(()),
        }
    }

    /// Adds a client that watches a session and does nothing else. `owner` is the principal that issued the client's link, if it
    /// has one. Without a link, the client must be the same person as the owner of the session, or have a token of the same
    /// principal that permits only watching, or that permits issuing a link. Returns why the client may not watch the session.
    pub(crate) fn handle_viewer(
        &mut self,
        client: ClientId,
        principal: Principal,
        owner: Option<&Principal>,
        name: &str,
        output: &mut impl RouterOutput,
    ) -> Result<(), String> {
        let found = self.sessions.get_key_value(name);
        let (name, bound) = found.ok_or_else(|| why(SessionError::Denied))?;
        let is_permitted = match owner {
            Some(owner) => bound.principal.is_same(owner),
            None => {
                let may_watch = principal.is_person()
                    || output.has_watch_scope(client)
                    || output.scope(client) == Scope::All;
                may_watch && bound.principal.is_same(&principal)
            }
        };
        if !is_permitted {
            return Err(why(SessionError::Denied));
        }
        self.check_present(bound).map_err(why)?;
        if bound.observers.len() >= MAX_OBSERVERS {
            return Err(why(SessionError::Observers));
        }
        let name = Arc::clone(name);
        let controller = bound.controller().and_then(|client| {
            let state = self.clients.get(client)?;
            Some(state.describe("controller"))
        });
        let watching = format!(
            r#"{{"jsonrpc":"2.0","method":"{WATCHING}","params":{{"sessionId":{},"connectedClients":[{}]}}}}"#,
            quote(&name),
            controller.unwrap_or_default()
        );
        self.clients
            .add_viewer(client, principal, Arc::clone(&name));
        if let Some(bound) = self.sessions.get_mut(&name) {
            bound.observers.push(client);
        }
        output.to_client(client, &[&watching]);
        self.send_pending(client, Some(&name), output);
        Ok(())
    }
}
