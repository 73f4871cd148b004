//! The list of a client's own sessions, in pages: a method of Outrigger for agents that cannot list them.

use super::Router;
use super::output::RouterOutput;
use crate::ClientId;
use crate::service::json::{quote, unescape};
use crate::service::jsonrpc::{Envelope, code, error, success};

/// The method, and the maximum number of sessions in one answer.
pub(super) const OWN_SESSIONS: &str = "_outrigger/sessions";
const MAX_PAGE: usize = 200;

impl Router {
    /// Answers [`OWN_SESSIONS`] with the ids of the sessions whose owner has the client's principal, in order. `nextCursor`
    /// continues the list. Returns false for other methods.
    pub(super) fn list_request(
        &mut self,
        client: ClientId,
        envelope: &Envelope<'_>,
        method: &str,
        id: &str,
        output: &mut impl RouterOutput,
    ) -> bool {
        if method != OWN_SESSIONS {
            return false;
        }
        self.exchange.counters.session_requests += 1;
        let cursor = envelope
            .of_body("cursor")
            .map(|range| &envelope.text[range]);
        let cursor = cursor.filter(|cursor| *cursor != "null");
        if cursor.is_some_and(|cursor| !cursor.starts_with('"')) {
            let why = Some("params.cursor is not a string");
            let refused = error(id, code::PARAMS, "Invalid params", why);
            output.to_client(client, &[&refused]);
            return true;
        }
        let cursor = cursor.map(unescape);
        let Some(state) = self.exchange.clients.get(client) else {
            return true;
        };
        let all = self.sessions.iter();
        let own = all.filter(|(_, session)| {
            session.controller() == Some(client) || session.principal.is_same(&state.principal)
        });
        let mut own: Vec<&str> = own
            .map(|(key, _)| &**key)
            .filter(|id| cursor.as_deref().is_none_or(|cursor| *id > cursor))
            .collect();
        own.sort_unstable();
        // Two processes may have sessions with the same id.
        own.dedup();
        let next = (own.len() > MAX_PAGE).then(|| own[MAX_PAGE - 1]);
        own.truncate(MAX_PAGE);
        let next = next.map_or(String::new(), |id| {
            format!(r#","nextCursor":{}"#, quote(id))
        });
        let entry = |id: &str| format!(r#"{{"sessionId":{}}}"#, quote(id));
        let listed: Vec<String> = own.into_iter().map(entry).collect();
        let result = format!(r#"{{"sessions":[{}]{next}}}"#, listed.join(","));
        output.charge(self.sessions.len() * 16);
        output.to_client(client, &success(id, &result));
        true
    }
}
