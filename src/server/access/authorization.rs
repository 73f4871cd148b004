//! What clients may do: determines principals and scopes, counts wrong tokens, and handles revoked tokens.

use std::sync::Arc;
use std::time::Duration;

use crate::log_event::{log_event, word};
use crate::protocol::{CloseReason, Rejection, Request, StatusCode};
use crate::server::access::{
    Access, Credential, CredentialId, Failures, Link, LinkTarget, Links, Principal,
    REJECTION_DELAY, Scope, Token,
};
use crate::server::address::{ListenAddress, Remote};
use crate::server::core::Core;
use crate::server::env::Env;
use crate::server::event_loop::scheduler::Payer;
use crate::server::event_loop::wakeup::Reload;
use crate::server::id::ClientId;
use crate::server::requests::operator;
#[cfg(feature = "tls")]
use crate::server::tls::TlsConfig;

impl Core {
    /// The authenticated owner of a client's connection.
    pub(crate) fn principal(&self, id: ClientId) -> Principal {
        let Some(client) = self.registry.get(id) else {
            return Principal::Nobody;
        };
        if let Some(user) = client.wire.forwarded_user() {
            return Principal::Proxied(Arc::clone(user));
        }
        if let Some(user) = client.wire.remote.user() {
            return Principal::User(user);
        }
        // The certificate of a trusted proxy does not identify its clients.
        if client.wire.forwarding().is_none()
            && let Some(name) = client.wire.certificate_name()
        {
            return Principal::Certificate(name);
        }
        let Some(credential) = client.wire.credential else {
            return Principal::Nobody;
        };
        if let Some(link) = self.env.links.get(credential) {
            return Principal::Link(link.id);
        }
        let credential = self.env.config.access.tokens.get(credential);
        credential.map_or(Principal::Nobody, Credential::principal)
    }

    /// Who pays for the work that a client causes. A link is paid for by its creator.
    pub(crate) fn payer(&self, id: ClientId) -> Payer {
        let Some(client) = self.registry.get(id) else {
            return Payer::Server;
        };
        let ip = client.wire.remote.ip();
        if client.wire.is_ours() {
            return Payer::Server;
        }
        if client.wire.is_stranger() && client.wire.remote.user().is_none() {
            return Payer::strangers(ip);
        }
        let principal = match self.link(id) {
            Some(link) => link.issuer.clone(),
            None => self.principal(id),
        };
        Payer::client(principal, ip)
    }

    /// Text from a peer for the log, or a note in its place if it contains a token.
    pub(crate) fn without_secrets<'a>(&self, text: &'a str) -> &'a str {
        self.env
            .config
            .access
            .without_secrets(text, &self.env.links)
    }

    /// The link whose token a client has presented.
    pub(crate) fn link(&self, id: ClientId) -> Option<&Link> {
        self.env.links.get(self.registry.get(id)?.wire.credential?)
    }

    /// The scope of the token of a client's last request, or of the users of trusted proxies. Any other client that needs no
    /// token may do everything. One that should have presented a token, and has sent a request that needs none, may do the
    /// least.
    pub(crate) fn scope(&self, id: ClientId) -> Scope {
        let Some(client) = self.registry.get(id) else {
            return Scope::Metrics;
        };
        if client.wire.forwarded_user().is_some() {
            return self.env.config.auth_scope;
        }
        let Some(credential) = client.wire.credential else {
            let config = &self.env.config;
            let needs_none =
                config.access.tokens.is_empty() || client.wire.needs_no_token(&self.env);
            return if needs_none {
                Scope::All
            } else {
                Scope::Metrics
            };
        };
        if self.env.links.get(credential).is_some() {
            return Scope::Watch;
        }
        let credential = self.env.config.access.tokens.get(credential);
        credential.map_or(Scope::Metrics, Credential::scope)
    }

    /// Rejects a request for anything but what the link of a client shows. Does nothing if the client has presented no link.
    pub(crate) fn check_link(&self, id: ClientId, request: &Request<'_>) -> Result<(), Rejection> {
        let Some(link) = self.link(id) else {
            return Ok(());
        };
        let path = link.target.path();
        if request.path() == path || operator::is_for_everyone(request) {
            return Ok(());
        }
        let why = format!("this link permits requests to {path} only");
        Err(Rejection::new(StatusCode::FORBIDDEN, why).because("scope"))
    }

    /// Rejects another client of a link that has too many.
    pub(crate) fn check_link_clients(&self, id: ClientId) -> Result<(), Rejection> {
        if self.link(id).is_none() {
            return Ok(());
        }
        let credential = self
            .registry
            .get(id)
            .and_then(|client| client.wire.credential);
        let clients = self
            .registry
            .iter()
            .filter(|client| client.wire.protocol.was_open());
        let same = clients.filter(|client| client.wire.credential == credential);
        if same.count() < Links::MOST_CLIENTS {
            return Ok(());
        }
        let why = format!("{} clients use this link", Links::MOST_CLIENTS);
        Err(Rejection::unavailable(why).because("links"))
    }

    /// Issues a link on behalf of a caller. Returns its number and its token.
    pub(crate) fn issue_link(
        &mut self,
        caller: ClientId,
        target: LinkTarget,
        lasts: Duration,
    ) -> Result<(u64, Token), Rejection> {
        let issuer = self.principal(caller);
        let client = self.registry.get(caller);
        let credential = client.and_then(|client| {
            let tokens = &self.env.config.access.tokens;
            tokens.get(client.wire.credential?).cloned()
        });
        let expires = self.env.real_now() + lasts;
        let issued = self.env.links.issue(target, issuer, credential, expires);
        self.plan_chores();
        issued.ok_or_else(|| {
            let why = format!("there are {} links: revoke one first", Links::MOST);
            Rejection::unavailable(why).because("links")
        })
    }

    /// Revokes links, and closes the connections that use them. Returns the number of links.
    pub(crate) fn revoke_links(&mut self, is_revoked: impl FnMut(&Link) -> bool) -> usize {
        self.end_links(is_revoked, &CloseReason::revoked("link"))
    }

    fn end_links(&mut self, is_over: impl FnMut(&Link) -> bool, reason: &CloseReason) -> usize {
        let Self { registry, env, .. } = self;
        let removed = env.links.remove(is_over);
        for client in registry.iter_mut() {
            if client
                .wire
                .credential
                .is_some_and(|one| removed.contains(&one))
            {
                client.wire.credential = Some(CredentialId::REVOKED);
                client.revoke(env, reason.clone());
            }
        }
        removed.len()
    }

    /// Revokes the links that have expired.
    pub(crate) fn expire_links(&mut self) {
        let now = self.env.real_now();
        if self.env.links.next_expiry().is_some_and(|at| at <= now) {
            let expired = self.end_links(|link| link.expires <= now, &CloseReason::link_expired());
            log::info!("links expired: {expired}");
        }
    }

    /// Disconnects a WebSocket client at the request of an operator. Returns false if it is gone.
    pub(crate) fn close_by_operator(&mut self, id: ClientId) -> bool {
        let found = self.with(id, |client, env| {
            let was_open = client.wire.protocol.was_open();
            if was_open {
                client.close(env, CloseReason::by_operator());
            }
            was_open
        });
        found == Some(true)
    }

    /// Whether no client of another principal can connect, by the settings.
    pub(crate) fn is_sole_principal(&self, id: ClientId) -> bool {
        if self.env.config.auth_header.is_some() {
            return false;
        }
        // A token of the scope `metrics` reaches no service.
        let tokens = self.env.config.access.tokens.iter();
        let tokens = tokens.filter(|one| one.scope() >= Scope::Watch);
        let mut names = tokens.map(|one| one.name());
        // Two names decide it. There may be hundreds, and every connection and every call asks.
        let tokens = match names.next() {
            None => 0,
            Some(first) if names.all(|name| name == first) => 1,
            Some(_) => 2,
        };
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
    pub(crate) fn check_scope(&self, id: ClientId, needed: Scope) -> Result<(), Rejection> {
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
    pub(crate) fn reload(&mut self, reload: Reload) {
        if let Some(access) = reload.access {
            let tokens = access.tokens.clone();
            let is_gone = |one: &&Credential| tokens.successor(one).is_none();
            let revoked = self.env.config.access.tokens.iter().filter(is_gone).count();
            let closed = self.replace_access(access);
            log_event!(
                Info,
                "hangup received: reloaded access settings",
                revoked_tokens = revoked,
                closed_connections = closed,
            );
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = reload.tls.filter(|_| self.env.config.tls.is_some()) {
            let fingerprint = tls.identity().fingerprint();
            let expiry = humantime::format_rfc3339_seconds(tls.identity().not_after());
            let is_new = self.env.config.tls.as_ref() != Some(&tls);
            let revoked = self.replace_tls(tls);
            if is_new || revoked > 0 {
                log_event!(
                    Info,
                    "hangup received: reloaded the TLS settings",
                    fingerprint = word(&fingerprint),
                    expiry = word(&expiry),
                    closed_connections = revoked,
                );
            }
        }
    }

    /// Replaces the access settings, and closes the connections whose tokens were revoked. Returns how many it closed.
    pub(crate) fn replace_access(&mut self, access: Access) -> usize {
        let earlier = std::mem::replace(&mut self.env.config.access, access);
        let Self { registry, env, .. } = self;
        let mut revoked = 0;
        for client in registry.iter_mut() {
            let Some(credential) = client.wire.credential else {
                continue;
            };
            if env.links.get(credential).is_some() {
                continue;
            }
            let known = earlier.tokens.get(credential);
            let successor = known.and_then(|one| env.config.access.tokens.successor(one));
            client.wire.credential = Some(successor.unwrap_or(CredentialId::REVOKED));
            if successor.is_none() {
                client.revoke(env, CloseReason::revoked("token"));
                revoked += 1;
            }
        }
        let tokens = self.env.config.access.tokens.clone();
        let is_revoked = |one: &Credential| tokens.successor(one).is_none();
        self.revoke_links(|link| link.credential().is_some_and(is_revoked));
        revoked
    }
}

/// Counts a wrong token. Returns the delay of its rejection, if its address has presented too many.
pub(crate) fn handle_wrong_token(env: &mut Env, remote: Remote) -> Option<Duration> {
    env.counters.wrong_tokens += 1;
    // The peers of a unix socket have no address.
    if remote.is_unix() {
        return None;
    }
    let ip = remote.ip();
    let wrong = env.failures.record(ip, env.now);
    if Failures::is_first_delayed(wrong) {
        log_event!(
            Warn,
            "wrong tokens",
            remote = word(&ip),
            wrong_tokens = wrong,
            delay = REJECTION_DELAY,
        );
    }
    Failures::is_delayed(wrong).then_some(REJECTION_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Cause, CloseCode};
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
            self.take_turn();
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
        // A request behind a delayed rejection on the same connection is not handled.
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
        assert!(client.is_some_and(
            |client| client.wire.is_stranger() && !client.wire.protocol.is_unanswered()
        ));
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

    #[test]
    fn only_who_may_see_the_console_can_leave_requests_out_of_its_figures() {
        // The bug: a peer without a token could hide how long turns of the loop take.
        let mut world = World::with_tokens("ada all one\nbob watch two");
        for (token, status, is_left_out) in [
            ("", "401 Unauthorized", false),
            ("?token=wrong", "401 Unauthorized", false),
            ("?token=two", "200 OK", false),
            ("?token=one", "200 OK", true),
        ] {
            world.open(201);
            let id = *world.old.last().expect("just opened");
            let fields = "Host: localhost\r\nOutrigger-Console: 1\r\n";
            let head = format!("GET /status{token} HTTP/1.1\r\n{fields}\r\n");
            world.give(id, head.as_bytes());
            world.event(id, true, true, false);
            assert_eq!(world.status(id), format!("HTTP/1.1 {status}"));
            let flag = &mut world.server.ctx.core.env.is_uncounted;
            assert_eq!(std::mem::take(flag), is_left_out, "{token}");
        }
        world.finish();
    }

    /// Issues a link to `/fuzz`, on behalf of a client that may do everything.
    fn issue(world: &mut World, caller: ClientId, seconds: u64) -> String {
        let lasts = Duration::from_secs(seconds);
        let target = LinkTarget::new("/fuzz");
        let core = &mut world.server.ctx.core;
        let (_, token) = core.issue_link(caller, target, lasts).expect("room");
        token.reveal().to_owned()
    }

    /// Whether the server has closed a connection with this reason.
    fn was_told(world: &World, id: ClientId, reason: &str) -> bool {
        let written = world.stream(id).wire().from_server.clone();
        let code = 1008_u16.to_be_bytes();
        let frame = [
            &[0x88, reason.len() as u8 + 2],
            &code[..],
            reason.as_bytes(),
        ]
        .concat();
        written.ends_with(&frame)
    }

    #[test]
    fn a_link_expires_on_time_and_its_slot_is_not_mistaken_for_another_link() {
        let mut world = World::with_tokens("ada all one");
        let ada = world.request("GET /later?token=one");
        let (short, long) = (issue(&mut world, ada, 60), issue(&mut world, ada, 90));
        // The loop does not sleep longer than the first link lasts.
        let wakes = world.server.timeout().expect("a link expires");
        assert!(wakes <= Duration::from_secs(60), "{wakes:?}");
        let view = |token: &str| format!("GET /fuzz?mode=viewer&token={token}");
        let first = world.request(&view(&short));
        let second = world.request(&view(&long));
        for id in [first, second] {
            assert_eq!(world.status(id), "HTTP/1.1 101 Switching Protocols");
            assert_eq!(world.server.ctx.scope(id), Scope::Watch);
        }
        for line in ["GET /fuzz?token=", "GET /later?mode=viewer&token="] {
            let rejected = world.request(&format!("{line}{short}"));
            assert_eq!(world.status(rejected), "HTTP/1.1 403 Forbidden");
        }
        world.pass_and_check(Duration::from_secs(59));
        assert!(world.server.ctx.clients().contains(&first));
        world.pass_and_check(Duration::from_secs(1));
        assert!(was_told(&world, first, "the link has expired"));
        assert!(world.server.ctx.clients().contains(&second));
        let late = world.request(&view(&short));
        assert_eq!(world.status(late), "HTTP/1.1 401 Unauthorized");

        // The next link has the slot of the first one. A client that has not answered CLOSE does not become its holder.
        let third = issue(&mut world, ada, 600);
        assert_eq!(world.server.ctx.principal(first), Principal::Nobody);
        let holder = world.request(&view(&third));
        assert_eq!(world.server.ctx.principal(holder), Principal::Link(3));
        world.pass_and_check(Duration::from_secs(31));
        assert!(was_told(&world, second, "the link has expired"));
        assert!(world.server.ctx.clients().contains(&holder));
        assert_eq!(world.server.ctx.core.revoke_links(|link| link.id == 3), 1);
        world.take_turn();
        assert!(was_told(&world, holder, "the link was revoked"));
        assert!(world.server.ctx.core.env.links.is_empty());

        // Time in which the machine sleeps counts for links, also for those that are issued later.
        let fourth = issue(&mut world, ada, 600);
        let sleeper = world.request(&view(&fourth));
        world.server.handle_sleep(Duration::from_secs(599));
        world.take_turn();
        assert!(world.server.ctx.clients().contains(&sleeper));
        let fifth = issue(&mut world, ada, 60);
        let wakes = world.server.timeout().expect("a link expires");
        assert!(wakes <= Duration::from_secs(1), "{wakes:?}");
        world.server.handle_sleep(Duration::from_secs(1));
        assert!(was_told(&world, sleeper, "the link has expired"));
        let awake = world.request(&view(&fifth));
        assert_eq!(world.status(awake), "HTTP/1.1 101 Switching Protocols");
        world.server.ctx.core.revoke_links(|_| true);
        world.pass_and_check(Duration::from_secs(60));
        let endings = &world.server.service.endings;
        for id in [first, second, holder, sleeper] {
            assert_eq!(endings.get(&id), Some(&(Cause::Revoked, CloseCode::POLICY)));
        }
        world.finish();
    }
}
