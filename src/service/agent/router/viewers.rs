//! Viewers: clients that do nothing but observe one session, such as pages that connect with `?watch=SESSION`, also with a link.
//! Unlike other observers they send no messages, not even `initialize`.

use super::observers::MAX_OBSERVERS;
use super::sessions::{Session, SessionError};
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
        let found = self.sessions.named(name);
        let mut own = found.filter(|(_, session)| session.principal.is_same(principal));
        let (_, session) = own.next().ok_or_else(|| why(SessionError::Denied))?;
        self.sessions
            .access(&self.exchange)
            .check_present(session)
            .map_err(why)
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
        let may_watch = principal.is_person()
            || output.has_watch_scope(client)
            || output.scope(client) == Scope::All;
        let is_permitted = |session: &Session| match owner {
            Some(owner) => session.principal.is_same(owner),
            None => may_watch && session.principal.is_same(&principal),
        };
        let sessions = || self.sessions.named(name);
        let found = sessions().find(|(_, session)| is_permitted(session));
        let (key, bound) = found.ok_or_else(|| why(SessionError::Denied))?;
        self.sessions
            .access(&self.exchange)
            .check_present(bound)
            .map_err(why)?;
        if bound.observers.len() >= MAX_OBSERVERS {
            return Err(why(SessionError::Observers));
        }
        let key = key.clone();
        let controller = bound.controller().and_then(|client| {
            let state = self.exchange.clients.get(client)?;
            Some(state.describe("controller"))
        });
        let watching = format!(
            r#"{{"jsonrpc":"2.0","method":"{WATCHING}","params":{{"sessionId":{},"connectedClients":[{}]}}}}"#,
            quote(&key),
            controller.unwrap_or_default()
        );
        self.exchange
            .clients
            .add_viewer(client, principal, key.clone());
        if let Some(bound) = self.sessions.get_mut(&key) {
            bound.observers.push(client);
        }
        output.to_client(client, &[&watching]);
        self.sessions
            .send_pending(&mut self.exchange, client, &key, output);
        Ok(())
    }
}
