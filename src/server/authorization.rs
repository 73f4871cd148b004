//! What clients may do: determines principals and scopes, counts wrong tokens, and handles revoked tokens.

use std::collections::BTreeSet;
use std::time::Duration;

use super::address::ListenAddress;
use super::client::Remote;
use super::core::{Core, Env};
use super::event_loop::Reload;
use super::id::ClientId;
use super::policy::{Access, CredentialId, Failures, Principal, REJECTION_DELAY, Scope};
#[cfg(feature = "tls")]
use super::tls::TlsConfig;
use crate::protocol::{Rejection, StatusCode};

impl Core {
    /// The authenticated owner of a client's connection.
    pub(super) fn principal(&self, id: ClientId) -> Principal {
        let Some(client) = self.registry.get(id) else {
            return Principal::Nobody;
        };
        if let Some(user) = client.remote.user() {
            return Principal::User(user);
        }
        if let Some(name) = client.certificate_name() {
            return Principal::Certificate(name);
        }
        let tokens = &self.env.config.access.tokens;
        let credential = client.credential.and_then(|one| tokens.get(one));
        credential.map_or(Principal::Nobody, |one| one.principal())
    }

    /// The scope of the token of a client's last request. A client that needs no token may do everything.
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

    /// Whether no client of another principal can connect, by the settings.
    pub(super) fn is_sole_principal(&self, id: ClientId) -> bool {
        // A token of the scope `metrics` reaches no service.
        let tokens = self.env.config.access.tokens.iter();
        let tokens = tokens.filter(|one| one.scope() >= Scope::Watch);
        let tokens = tokens.map(|one| one.name()).collect::<BTreeSet<_>>().len();
        let has_users = self.listen.iter().any(ListenAddress::is_guarded);
        #[cfg(feature = "tls")]
        if self
            .env
            .config
            .tls
            .as_ref()
            .is_some_and(TlsConfig::requires_client_certificate)
        {
            return false;
        }
        let is_open = tokens == 0 && !self.listen.iter().all(ListenAddress::is_guarded);
        let principals = tokens + usize::from(has_users) + usize::from(is_open);
        principals == 1 && self.principal(id) != Principal::Nobody
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

    /// Replaces settings, and logs it.
    pub(super) fn reload(&mut self, reload: Reload) {
        if let Some(access) = reload.access {
            let revoked = self.replace_access(access);
            log::info!("hangup received: reloaded access settings; revoked={revoked}");
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = reload.tls.filter(|_| self.env.config.tls.is_some()) {
            let fingerprint = tls.identity().fingerprint();
            let expiry = humantime::format_rfc3339_seconds(tls.identity().not_after());
            let is_new = self.env.config.tls.as_ref() != Some(&tls);
            let revoked = self.replace_tls(tls);
            if is_new || revoked > 0 {
                log::info!(
                    "hangup received: reloaded the TLS settings: fingerprint={fingerprint} expiry={expiry} revoked={revoked}"
                );
            }
        }
    }

    /// Replaces the access settings, and closes the connections whose tokens were revoked. Returns how many it closed.
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
                client.revoke(env, "token");
                revoked += 1;
            }
        }
        revoked
    }
}

/// Counts a wrong token. Returns the delay of its rejection, if its address has presented too many.
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
            "{ip} has presented {wrong} wrong tokens within a minute: delaying further rejections by {REJECTION_DELAY:?}"
        );
    }
    Failures::is_delayed(wrong).then_some(REJECTION_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Cause;
    use crate::server::simulation::{HEAD, World};

    impl World {
        /// A server that accepts these tokens.
        fn with_tokens(tokens: &str) -> Self {
            let mut world = Self::new(7).expect("an epoll instance");
            world.server.ctx.core.env.config.access = access(tokens);
            world
        }

        /// Connects a client that asks for a path with this token.
        fn request(&mut self, line: &str) -> ClientId {
            self.open(201);
            let id = *self.old.last().expect("just opened");
            let head = String::from_utf8_lossy(HEAD);
            self.give(id, head.replacen("GET /fuzz", line, 1).as_bytes());
            self.event(id, true, true, false);
            id
        }

        /// The first line of what the server has written.
        fn status(&self, id: ClientId) -> String {
            let written = self.stream(id).wire().from_server.clone();
            let text = String::from_utf8_lossy(&written);
            text.lines().next().unwrap_or_default().to_owned()
        }

        fn pass_and_check(&mut self, time: Duration) {
            self.pass(time);
            self.take_turn();
            self.check();
        }
    }

    fn access(tokens: &str) -> Access {
        Access {
            tokens: tokens.parse().expect("valid"),
            ..Access::default()
        }
    }

    #[test]
    fn the_rejection_of_the_sixth_wrong_token_is_delayed_and_a_right_one_is_not() {
        let mut world = World::with_tokens("s3cret");
        for _ in 0..5 {
            let id = world.request("GET /?token=wrong");
            assert_eq!(world.status(id), "HTTP/1.1 401 Unauthorized");
        }
        // A guess behind another one on the same connection is not looked at.
        let waits = world.request("GET /?token=wrong");
        world.give(waits, HEAD);
        world.event(waits, true, false, false);
        let leaves = world.request("GET /?token=wrong");
        let without = world.request("GET /");
        assert_eq!(world.status(without), "HTTP/1.1 401 Unauthorized");
        let right = world.request("GET /fuzz?token=s3cret");
        assert_eq!(world.status(right), "HTTP/1.1 101 Switching Protocols");
        world.pass_and_check(Duration::from_millis(900));
        assert_eq!(world.status(waits), "");
        world.end_input(leaves);
        world.event(leaves, true, false, true);
        world.pass_and_check(Duration::from_millis(300));
        assert_eq!(world.status(waits), "HTTP/1.1 401 Unauthorized");
        assert!(!world.streams.contains_key(&leaves));
        world.pass_and_check(Duration::from_secs(60));
        let later = world.request("GET /?token=wrong");
        assert_eq!(world.status(later), "HTTP/1.1 401 Unauthorized");
        assert_eq!(world.server.ctx.core.env.counters.wrong_tokens, 8);
        world.finish();
    }

    #[test]
    fn a_connection_that_waits_for_its_rejection_can_be_evicted_and_ends_with_the_server() {
        let mut world = World::with_tokens("s3cret");
        for _ in 0..6 {
            world.request("GET /?token=wrong");
        }
        let waits = *world.old.last().expect("six");
        let client = world.server.ctx.core.registry.get(waits);
        assert!(client.is_some_and(|client| client.is_stranger() && !client.is_unanswered()));
        world.finish();
    }

    #[test]
    fn a_reload_closes_the_connections_of_revoked_tokens_alone() {
        let mut world = World::with_tokens("ada all one\nbob all two\neve all three");
        let paths = ["/fuzz", "/later"];
        let mut clients = Vec::new();
        for secret in ["one", "two", "three"] {
            for path in paths {
                let line = format!("GET {path}?token={secret}");
                clients.push((secret, world.request(&line)));
            }
        }
        world.check();
        let core = &mut world.server.ctx.core;
        assert_eq!(core.env.calls, 3);
        let revoked = core.replace_access(access("bob use two\nada all one"));
        assert_eq!(revoked, 4);
        world.take_turn();
        world.check();
        for (secret, id) in clients {
            let ctx = &world.server.ctx;
            let (is_calling, is_open) = (
                world.server.service.calling.contains_key(&id),
                ctx.clients().contains(&id),
            );
            assert_eq!(is_calling || is_open, secret == "one", "{secret}");
            if is_open {
                assert_eq!(ctx.principal(id), Principal::Named("ada".into()));
            }
        }
        world.pass_and_check(Duration::from_secs(60));
        let endings = world.server.service.endings.values();
        assert!(endings.clone().count() == 2 && endings.clone().all(|one| one.0 == Cause::Revoked));
        world.finish();
    }
}
