//! What clients may do: their principals and scopes, wrong tokens, and tokens that are no longer accepted.

use std::time::Duration;

use super::client::Remote;
use super::core::{Core, Env};
use super::id::ClientId;
use super::policy::{Access, CredentialId, Failures, Principal, REJECTION_DELAY, Scope};
use crate::protocol::{Rejection, StatusCode};

impl Core {
    /// The authenticated owner of a client's connection.
    pub(super) fn principal(&self, id: ClientId) -> Principal {
        let Some(client) = self.registry.get(id) else {
            return Principal::Nobody;
        };
        let tokens = &self.env.config.access.tokens;
        match (client.remote.user(), client.credential) {
            (Some(user), _) => Principal::User(user),
            (None, Some(credential)) => tokens
                .get(credential)
                .map_or(Principal::Nobody, |one| one.principal()),
            (None, None) => Principal::Nobody,
        }
    }

    /// What the token of a client's last request allows. A client that needs no token may do everything.
    pub(super) fn scope(&self, id: ClientId) -> Scope {
        let client = self.registry.get(id);
        let Some(credential) = client.and_then(|client| client.credential) else {
            return Scope::All;
        };
        let tokens = &self.env.config.access.tokens;
        tokens
            .get(credential)
            .map_or(Scope::Metrics, |one| one.scope())
    }

    /// Rejects a request that needs a higher scope than the client's token has.
    pub(super) fn check_scope(&self, id: ClientId, needed: Scope) -> Result<(), Rejection> {
        let scope = self.scope(id);
        if scope >= needed {
            return Ok(());
        }
        let why = format!(
            "this needs a token of the scope '{needed}', and the scope of yours is '{scope}'"
        );
        Err(Rejection::new(StatusCode::FORBIDDEN, why).because("scope"))
    }

    /// Replaces the access settings, and closes the connections whose tokens are no longer accepted. Returns how many.
    pub(super) fn replace_access(&mut self, access: Access) -> usize {
        let earlier = std::mem::replace(&mut self.env.config.access, access);
        let Self { registry, env, .. } = self;
        let mut revoked = 0;
        for client in registry.iter_mut() {
            let Some(credential) = client.credential else {
                continue;
            };
            let known = earlier.tokens.get(credential);
            let successor = known.and_then(|one| env.config.access.tokens.successor(one));
            client.credential = Some(successor.unwrap_or(CredentialId::REVOKED));
            if successor.is_none() {
                client.revoke(env);
                revoked += 1;
            }
        }
        revoked
    }
}

/// Counts a wrong token. Returns how long its rejection is delayed, because its address has presented too many.
pub(super) fn handle_wrong_token(env: &mut Env, remote: Remote) -> Option<Duration> {
    env.counters.wrong_tokens += 1;
    // The peers of a unix socket have no address.
    if remote.is_unix() {
        return None;
    }
    let ip = remote.ip();
    let wrong = env.failures.record(ip, env.now);
    if Failures::is_first_delayed(wrong) {
        log::warn!(
            "{ip} has presented {wrong} wrong tokens within a minute: rejecting more of them after {REJECTION_DELAY:?}"
        );
    }
    Failures::is_delayed(wrong).then_some(REJECTION_DELAY)
}
