//! Applies what trusted proxies say about a request: the address of its client, and its user.

use crate::protocol::{Rejection, Request};
use crate::server::access::{forwarded_client, forwarded_user};
use crate::server::core::Core;
use crate::server::id::ClientId;

impl Core {
    /// Begins to handle a request: the connection has the address of its peer, and no trace, until the request names others.
    pub(crate) fn begin_head(&mut self, id: ClientId) {
        let client = self.registry.get_mut(id);
        if let Some(client) = client.filter(|client| client.wire.protocol.awaits_head()) {
            client.wire.set_trace(None);
            client.wire.begin_forwarded_request();
        }
    }

    /// Reads the fields that a trusted proxy has set in a request head. The client then has the address that they name, and
    /// the user of [`Config::auth_header`](crate::Config::auth_header). Does nothing for a connection from any other peer.
    pub(crate) fn forward(&mut self, id: ClientId, request: &Request<'_>) -> Result<(), Rejection> {
        let Self { registry, env, .. } = self;
        let Some(client) = registry.get_mut(id) else {
            return Ok(());
        };
        let Some(peer) = client.wire.begin_forwarded_request() else {
            return Ok(());
        };
        debug_assert!(
            !client.wire.protocol.is_unanswered(),
            "a pending call counts for its address"
        );
        client.wire.remote = forwarded_client(peer, &env.config.trusted_proxies, request);
        if client.wire.remote != peer {
            log::debug!("{id} is for {}, through {peer}", client.wire.remote);
        }
        if let Some(header) = &env.config.auth_header {
            let user = forwarded_user(request, header)?;
            client.wire.set_forwarded_user(user);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Weak};
    use std::time::Duration;

    use crate::protocol::CloseCode;
    use crate::server::client::Client;
    use crate::server::simulation::{HEAD, World};
    use crate::server::*;

    /// The address of every connection of a world.
    const PEER: &str = "127.0.0.1:1";

    /// The header with which the proxy names a user.
    const AS_ADA: &str = "X-User: ada\r\n";

    /// A message that the service answers with 40,000 bytes.
    const LONG_ECHO: &[u8] = b"\x82\x81\0\0\0\0l";

    /// CLOSE with the code 1000.
    const CLOSE: &[u8] = b"\x88\x82\0\0\0\0\x03\xe8";

    impl World {
        /// A server that trusts the address from which all connections come, and requires a token.
        fn behind_proxy() -> Self {
            let mut world = Self::new(0x20 + 8 + 7).expect("an epoll instance");
            let config = &mut world.server.ctx.core.env.config;
            config.auth_header = Some("X-User".to_owned());
            config.auth_scope = Scope::All;
            config.access.tokens = "ada use one".parse().expect("valid");
            config.limits.max_head = 1000;
            config.limits.max_message = 1000;
            world
        }

        /// Sends a call with these fields on a connection. The service does not answer it.
        fn call(&mut self, id: ClientId, fields: &str) {
            let head = format!("GET /later HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
            self.give(id, head.as_bytes());
            self.event(id, true, true, false);
            self.check();
        }

        /// Answers the pending calls.
        fn answer_all(&mut self) {
            self.server
                .act(|server| server.service.answer(&mut server.ctx, false));
            self.take_turn();
            self.check();
        }

        fn connection(&mut self) -> ClientId {
            self.open(201);
            *self.old.last().expect("just opened")
        }

        /// Opens a connection and sends a handshake with these fields.
        fn ask(&mut self, path: &str, fields: &str) -> ClientId {
            let id = self.connection();
            let head = String::from_utf8_lossy(HEAD).replacen("/fuzz", path, 1);
            let head = head.replacen("Upgrade:", &format!("{fields}Upgrade:"), 1);
            self.give(id, head.as_bytes());
            self.event(id, true, true, false);
            id
        }

        /// Opens a resumable connection. Returns it, and the path with which its client comes back.
        fn ask_resumable(&mut self, fields: &str) -> (ClientId, String) {
            let id = self.ask("/fuzz?resume=new", fields);
            let written = self.stream(id).wire().from_server.clone();
            let written = String::from_utf8_lossy(&written).into_owned();
            let token = written.split("Outrigger-Resume: ").nth(1);
            let token = token.and_then(|text| text.lines().next()).expect("a token");
            (id, format!("/fuzz?resume={token}&received=0"))
        }

        /// Resets a connection.
        fn cut(&mut self, id: ClientId) {
            self.reset(id);
            self.event(id, true, true, true);
            self.take_turn();
            self.check();
        }

        /// Lets all time limits pass.
        fn wait_for_ends(&mut self) {
            for _ in 0..100 {
                self.pass(Duration::from_secs(60));
                self.server.handle_deadlines();
                self.take_turn();
                self.check();
            }
            // The account that was served last is kept until the next slice begins.
            self.server.ctx.core.env.begin_own_work();
        }

        /// Trusts these proxies from now on.
        fn trust(&mut self, proxies: &[Peers]) {
            self.server.ctx.core.env.config.trusted_proxies = proxies.to_vec();
        }

        fn client(&self, id: ClientId) -> &Client {
            self.server.ctx.core.registry.get(id).expect("connected")
        }

        /// Whether a client comes from a trusted proxy, and the user that the proxy has named.
        fn forwarding(&self, id: ClientId) -> (bool, Option<&str>) {
            let client = self.client(id);
            let user = client.wire.forwarded_user().map(|user| &**user);
            (client.wire.forwarding().is_some(), user)
        }

        /// The text of the name of a client's user, which is freed with the state of the connection.
        fn user(&self, id: ClientId) -> Weak<str> {
            Arc::downgrade(self.client(id).wire.forwarded_user().expect("a user"))
        }

        /// The remote address, the principal and the scope of a connection.
        fn identity(&self, id: ClientId) -> (String, String, Scope) {
            let core = &self.server.ctx.core;
            let remote = core.registry.get(id).expect("connected").wire.remote;
            (
                remote.to_string(),
                core.principal(id).to_string(),
                core.scope(id),
            )
        }

        fn clients_of(&self, ip: [u8; 4]) -> usize {
            self.server.ctx.core.env.addresses.clients(ip.into())
        }

        fn has_answered(&self, id: ClientId, status: &str) -> bool {
            let written = self.stream(id).wire().from_server.clone();
            String::from_utf8_lossy(&written).contains(&format!("HTTP/1.1 {status} "))
        }
    }

    #[test]
    fn each_request_of_a_kept_connection_has_the_address_and_the_user_of_its_own_fields() {
        // The bug: the next request on a connection of the proxy had the address or the user of the one before.
        let mut world = World::behind_proxy();
        let id = world.connection();
        assert_eq!(world.identity(id).0, PEER);
        world.call(id, "X-Forwarded-For: 192.0.2.1\r\nX-User: ada\r\n");
        let expected = ("192.0.2.1:0".to_owned(), "user:ada".to_owned(), Scope::All);
        assert_eq!(world.identity(id), expected);
        assert_eq!(
            (
                world.clients_of([192, 0, 2, 1]),
                world.clients_of([127, 0, 0, 1])
            ),
            (1, 0)
        );
        world.answer_all();
        assert_eq!(world.clients_of([192, 0, 2, 1]), 0);
        world.call(
            id,
            "Forwarded: for=\"192.0.2.2:7\"\r\nX-User: bob\r\nAuthorization: Bearer one\r\n",
        );
        let expected = ("192.0.2.2:7".to_owned(), "user:bob".to_owned(), Scope::All);
        assert_eq!(
            world.identity(id),
            expected,
            "the header wins over the token"
        );
        assert_eq!(world.clients_of([192, 0, 2, 2]), 1);
        world.answer_all();
        world.call(id, "Authorization: Bearer one\r\n");
        let expected = (PEER.to_owned(), "ada".to_owned(), Scope::Use);
        assert_eq!(world.identity(id), expected);
        assert_eq!(world.clients_of([127, 0, 0, 1]), 1);
        // The users of the proxy are other principals than the holder of the only token.
        let core = &mut world.server.ctx.core;
        assert!(!core.is_sole_principal(id));
        let header = core.env.config.auth_header.take();
        core.listen = vec![ListenAddress::of_tcp(([127, 0, 0, 1], 1).into())];
        assert!(core.is_sole_principal(id));
        core.env.config.auth_header = header;
        world.answer_all();
        world.call(id, "X-Forwarded-For: 192.0.2.3\r\n");
        assert!(world.has_answered(id, "401"));
        world.finish();
    }

    #[test]
    fn a_malformed_request_is_not_logged_for_the_client_before() {
        let mut world = World::behind_proxy();
        let id = world.connection();
        const TRACE: &str =
            "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
        let fields = format!("X-Forwarded-For: 192.0.2.1\r\nX-User: ada\r\n{TRACE}");
        world.call(id, &fields);
        world.answer_all();
        let trace = |world: &World| world.server.ctx.core.registry.get(id)?.wire.trace_ids();
        assert!(trace(&world).is_some());
        world.give(id, b"GET /\r\n\r\n");
        world.event(id, true, true, false);
        assert!(world.has_answered(id, "400"));
        assert_eq!(world.identity(id).0, PEER);
        assert_eq!(trace(&world), None);
        // The body of a request belongs to the client that its head names.
        let id = world.connection();
        world.call(
            id,
            "X-Forwarded-For: 192.0.2.1\r\nX-User: ada\r\nTransfer-Encoding: chunked\r\n",
        );
        world.give(id, b"x\r\n");
        world.event(id, true, true, false);
        assert!(world.has_answered(id, "400"));
        assert_eq!(world.identity(id).0, "192.0.2.1:0");
        world.finish();
    }

    #[test]
    fn the_fields_of_other_peers_are_ignored() {
        let mut world = World::behind_proxy();
        world.trust(&[Peers::Unix]);
        let id = world.connection();
        world.call(id, "X-Forwarded-For: 192.0.2.1\r\nX-User: ada\r\n");
        assert!(world.has_answered(id, "401"));
        let id = world.connection();
        // Not even a wrong one is looked at.
        world.call(
            id,
            "X-Forwarded-For: 192.0.2.1\r\nX-User:\r\nAuthorization: Bearer one\r\n",
        );
        let expected = (PEER.to_owned(), "ada".to_owned(), Scope::Use);
        assert_eq!(world.identity(id), expected);
        assert_eq!(world.clients_of([127, 0, 0, 1]), 1);
        world.finish();
    }

    #[test]
    fn a_wrong_name_is_rejected_and_names_nobody() {
        let mut world = World::behind_proxy();
        for fields in [
            "X-User:\r\n",
            "X-User: a\r\nX-User: b\r\n",
            "X-User: a b=c\r\n",
        ] {
            let id = world.connection();
            world.call(id, &format!("{fields}Authorization: Bearer one\r\n"));
            assert!(world.has_answered(id, "400"), "{fields}");
            assert_eq!(world.identity(id).1, "nobody");
        }
        world.finish();
    }

    #[test]
    fn clients_of_one_proxy_are_limited_by_their_own_addresses() {
        let mut world = World::behind_proxy();
        world.server.ctx.core.env.config.max_clients_per_address = Some(1);
        let upgrade = |world: &mut World, client: &str| {
            let fields = format!("X-Forwarded-For: {client}\r\n{AS_ADA}");
            world.ask("/fuzz", &fields)
        };
        let first = upgrade(&mut world, "192.0.2.1");
        assert!(world.has_answered(first, "101"));
        let second = upgrade(&mut world, "192.0.2.1");
        assert!(world.has_answered(second, "503"));
        let third = upgrade(&mut world, "192.0.2.2");
        assert!(world.has_answered(third, "101"));
        world.check();
        world.cut(first);
        let fourth = upgrade(&mut world, "192.0.2.1");
        assert!(world.has_answered(fourth, "101"));
        world.check();
        world.finish();
    }

    /// The bug: the client waited until a PING was not answered, because no event told that it had sent something.
    #[test]
    fn a_client_whose_new_connection_causes_no_events_is_cut_at_once() {
        let mut world = World::behind_proxy();
        for is_cut in [true, false] {
            let (first, path) = world.ask_resumable(AS_ADA);
            if is_cut {
                world.cut(first);
            }
            let second = world.connection();
            world.stream(second).wire().refuses_events = true;
            let head = String::from_utf8_lossy(HEAD).replacen("/fuzz", &path, 1);
            let head = head.replacen("Upgrade:", &format!("{AS_ADA}Upgrade:"), 1);
            world.give(second, head.as_bytes());
            world.event(second, true, true, false);
            world.take_turn();
            world.check();
            assert!(world.client(first).wire.protocol.is_detached(), "{is_cut}");
            let third = world.ask(&path, AS_ADA);
            assert!(world.has_answered(third, "101"));
            world.take_turn();
            world.check();
            assert!(!world.client(first).wire.protocol.is_detached());
        }
        world.finish();
    }

    #[test]
    fn a_client_that_comes_back_from_another_address_counts_for_that_one() {
        // The bug: the count of the first address was never given back, because the client had another one at its end.
        let mut world = World::behind_proxy();
        let fields = |client: &str| format!("X-Forwarded-For: {client}\r\n{AS_ADA}");
        for is_cut in [true, false] {
            let (first, path) = world.ask_resumable(&fields("192.0.2.1"));
            assert_eq!(world.clients_of([192, 0, 2, 1]), 1);
            if is_cut {
                world.cut(first);
                assert_eq!(world.identity(first).1, "user:ada", "it is detached");
                assert_eq!(world.clients_of([192, 0, 2, 1]), 1);
            }
            let second = world.ask(&path, &fields("192.0.2.2"));
            assert!(world.has_answered(second, "101"));
            world.take_turn();
            world.check();
            let back = ("192.0.2.2:0".to_owned(), "user:ada".to_owned(), Scope::All);
            assert_eq!(world.identity(first), back);
            let counts = (
                world.clients_of([192, 0, 2, 1]),
                world.clients_of([192, 0, 2, 2]),
            );
            assert_eq!(counts, (0, 1));
            // A reset connection can be resumed, so the service ends it.
            world.server.ctx.close(first, CloseCode::POLICY, "");
            world.pass(Duration::from_secs(60));
            world.server.handle_deadlines();
            world.take_turn();
            world.check();
        }
        world.finish();
    }

    #[test]
    fn a_resumed_client_has_the_state_of_its_newest_connection() {
        let mut world = World::behind_proxy();
        let proxies = world.server.ctx.config().trusted_proxies.clone();
        // The same token is the same principal with and without a proxy.
        let token = "Authorization: Bearer one\r\n";
        let (direct, through, of_ada) = ((false, None), (true, None), (true, Some("ada")));
        for (fields, first_state, second_state) in [
            (AS_ADA, of_ada, of_ada),
            (token, through, direct),
            (token, direct, through),
            (token, through, through),
        ] {
            for is_cut in [true, false] {
                world.trust(if first_state.0 { &proxies } else { &[] });
                let (first, path) = world.ask_resumable(fields);
                assert_eq!(world.forwarding(first), first_state);
                let principal = world.identity(first).1;
                if is_cut {
                    world.cut(first);
                    assert!(world.client(first).wire.protocol.is_detached());
                    assert_eq!(world.forwarding(first), first_state);
                    assert_eq!(world.identity(first).1, principal);
                }
                world.trust(if second_state.0 { &proxies } else { &[] });
                let second = world.ask(&path, fields);
                assert!(world.has_answered(second, "101"));
                assert_eq!(world.forwarding(first), second_state, "{fields}");
                assert_eq!(world.identity(first).1, principal);
                world.take_turn();
                world.check();
                world.server.ctx.close(first, CloseCode::POLICY, "");
                world.wait_for_ends();
                assert_eq!(world.connection_count(), 0);
            }
        }
        world.finish();
    }

    #[test]
    fn the_user_of_a_client_stays_while_output_and_input_wait_and_after_that() {
        let mut world = World::behind_proxy();
        let id = world.ask("/fuzz", AS_ADA);
        world.give(id, &[LONG_ECHO, LONG_ECHO].concat());
        world.event(id, true, false, false);
        let client = world.client(id);
        assert!(client.is_congested() && client.wire.has_unread());
        world.add_room(id, 200_000);
        world.event(id, false, true, false);
        (0..5).for_each(|_| world.take_turn());
        let client = world.client(id);
        assert!(client.wire.queued() == 0 && !client.wire.has_unread());
        assert_eq!(world.service().told[&id], 2);
        assert_eq!(world.forwarding(id), (true, Some("ada")));
        world.check();
        world.finish();
    }

    #[test]
    fn the_state_of_a_connection_ends_with_it() {
        type End = fn(&mut World, ClientId);
        let hang_up: End = |world, id| {
            world.end_input(id);
            world.event(id, true, false, true);
        };
        let ends: [(&str, &str, End); 7] = [
            ("/later", "hangs up", hang_up),
            ("/later", "is reset", World::cut),
            ("/fuzz", "hangs up", hang_up),
            ("/fuzz", "is reset", World::cut),
            ("/fuzz", "sends CLOSE", |world, id| {
                world.give(id, CLOSE);
                world.event(id, true, false, false);
            }),
            ("/fuzz", "is closed", |world, id| {
                world.server.ctx.close(id, CloseCode::POLICY, "");
            }),
            ("/fuzz?resume=new", "does not come back", World::cut),
        ];
        for (path, how, end) in ends {
            let mut world = World::behind_proxy();
            let id = if path == "/later" {
                let id = world.connection();
                world.call(id, AS_ADA);
                id
            } else {
                world.ask(path, AS_ADA)
            };
            let user = world.user(id);
            end(&mut world, id);
            world.wait_for_ends();
            assert_eq!(world.connection_count(), 0, "{path} {how}");
            assert_eq!(user.strong_count(), 0, "{path} {how}");
            world.finish();
        }
        // A client that comes back has the state of its new connection, and the old one ends.
        for is_cut in [true, false] {
            let mut world = World::behind_proxy();
            let (first, path) = world.ask_resumable(AS_ADA);
            let before = world.user(first);
            if is_cut {
                world.cut(first);
            }
            world.ask(&path, AS_ADA);
            let after = world.user(first);
            world.wait_for_ends();
            assert!(!before.ptr_eq(&after));
            // The account of the user, of which there is one, has the first text of the name.
            assert_eq!((before.strong_count(), after.strong_count()), (2, 1));
            world.finish();
            assert_eq!((before.strong_count(), after.strong_count()), (0, 0));
        }
    }
}
