//! What a loop passes to the one that replaces it.
//!
//! | | |
//! |---|---|
//! | WebSockets | pass with everything that is incomplete or queued. The peer notices nothing |
//! | detached clients | pass with the messages that they have not confirmed, and with their tokens |
//! | connections before the upgrade to WebSocket | pass with the part of the request that has arrived |
//! | HTTP calls | pass if their service can carry them, or if they are not complete. Otherwise, a call that waits gets 503, and a stream of events ends |
//! | compression | passes: the window of the decompressor is written down, and the compressor starts anew |
//! | TLS, and a message that is decompressed in part | cannot be written down. A resumable client is cut, and comes back by itself. Others get CLOSE 1012 |
//! | clients of a service that ends with the upgrade | get CLOSE 1012 before it. Their programs have a second to read of it |
//! | topics, links, counters, figures of the console | pass |
//! | requests of this side to other servers | end before, or fail when the drain timeout has passed. Idle connections are closed |
//! | WebSockets that this side has opened | pass as others. A resumable one that cannot pass is cut, and this side comes back with the settings that the service gives again. An attempt to open one fails when the drain timeout has passed |
//!
//! Times are points on the clock of the loop, which goes on: the next loop gets its origin.

use std::borrow::Cow;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use serde_json::json;

use super::CallForUpgrade;
use super::addresses::Occupied;
use crate::protocol::http::HttpState;
use crate::protocol::{
    Cause, CloseCode, CloseReason, Rejection, Response, StatusCode, Time, WebSocket,
};
use crate::record::{Loader, Record, RecordError, Saver, Set, object, record};
use crate::server::client::{Client, Delivery};
use crate::server::core::Core;
use crate::server::event_loop::Server;
use crate::server::event_loop::clock::Clock;
use crate::server::event_loop::scheduler::AccountId;
use crate::server::event_loop::timers::Timers;
use crate::server::id::{ClientId, ServiceId};
use crate::server::listener::PassedListener;
use crate::server::outgoing::{Connect, ConnectError};
use crate::server::registry::Registry;
use crate::server::service::{Portable, Service, continue_service};
use crate::server::stream::Stream;
use crate::server::topics::SavedTopic;

/// The CLOSE of clients that cannot be carried over.
fn restart() -> CloseReason {
    CloseReason::by_service(CloseCode::SERVICE_RESTART, "the server is upgraded")
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It passes to the next program.
    Passes,
    /// The socket ends, and the client comes back by itself.
    IsCut,
    /// The client gets CLOSE 1012.
    Ends,
}

/// How many connections of each kind an upgrade has carried over and ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Connections that have passed, and detached clients.
    pub(crate) passed: usize,
    /// Clients that were cut and can come back.
    pub(crate) cut: usize,
    /// Clients that got CLOSE 1012.
    pub(crate) closed: usize,
    /// Calls that got 503, and streams of events that ended.
    pub(crate) refused: usize,
}

record!(Carried {
    passed,
    cut,
    closed,
    refused,
});

/// What the next program says in the rehearsal.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    /// The services that no service of that program continues.
    pub(super) departing: Vec<ServiceId>,
    /// Whether that program compresses messages.
    pub(super) compresses: bool,
    /// The configured addresses for which it uses the sockets of the present program.
    pub(super) kept: Vec<String>,
    /// The sockets that it has opened for new addresses.
    pub(super) opened: Vec<PassedListener>,
    /// The new addresses that it cannot open yet.
    pub(super) occupied: Vec<Occupied>,
}

record!(Agreement {
    departing,
    compresses,
    kept,
    opened,
    occupied,
});

/// What follows after the loop.
#[derive(Debug, Default)]
pub(crate) struct Continued {
    /// The services that do not continue.
    pub(super) departing: Vec<ServiceId>,
    /// Connections of services that do not continue.
    orphans: Vec<ClientId>,
}

impl<S: Service> Server<S> {
    /// Why the state cannot be passed on. `None` if it can.
    pub(crate) fn obstacle(&self) -> Option<&'static str> {
        let is_stopping = self.ctx.core.shutdown.is_stopping();
        is_stopping.then_some("the server is stopping")
    }

    /// Ends the requests of this side to other servers and its attempts to open connections, and closes idle connections.
    pub(crate) fn end_outgoing(&mut self) {
        let why = "the server is upgraded";
        let why = CloseReason::new(Cause::Service, CloseCode::ABNORMAL, why);
        self.ctx.core.is_replaced = true;
        // First, because the end of an attempt would end the client that it is for.
        for id in self.ctx.core.registry.ids() {
            self.ctx.core.forget_return(id);
        }
        for id in self.ctx.core.registry.ids() {
            self.act(|server| {
                server.ctx.core.with(id, |client, env| {
                    if client.wire.protocol.is_for_requests() {
                        client.end(env, why.clone());
                    } else {
                        client.fail(env, ConnectError::Cancelled);
                    }
                });
            });
        }
    }

    /// Comes back for the clients whose outgoing connections are cut. After an upgrade, the services give the settings again.
    pub(crate) fn return_all(&mut self) {
        self.ctx.core.is_replaced = false;
        for id in self.ctx.core.registry.ids() {
            let client = self.ctx.core.registry.get(id);
            let ours = client.filter(|client| client.wire.is_ours());
            let Some(upstream) = ours.and_then(|client| client.wire.delivery()?.upstream()) else {
                continue;
            };
            let mut connect = upstream.connect.clone();
            if connect.is_none() {
                self.ctx.core.enter(id);
                self.call_outgoing(|service, ctx| {
                    connect = service.reconnect(ctx, id).map(Arc::new);
                });
            }
            self.act(|server| server.ctx.core.return_with(id, connect));
        }
    }

    fn fate(&self, client: &Client) -> Fate {
        let wire = &client.wire;
        let compresses = self
            .upgrading
            .as_ref()
            .is_none_or(|one| one.agreement.compresses);
        let is_portable = |socket: &WebSocket| socket.is_portable(compresses);
        let passes = wire.tls().is_none() && wire.protocol.websocket().is_none_or(is_portable);
        let carries = |service: &dyn Portable| service.carries(client.service_id);
        let is_departing = self.ctx.core.departing.contains(&client.service_id);
        let is_known = !wire.protocol.was_open()
            || (!is_departing && self.service.portable().is_some_and(carries));
        if passes && is_known {
            Fate::Passes
        } else if is_known && (wire.is_kept_for_return() || wire.may_be_resumed_by_us()) {
            Fate::IsCut
        } else {
            Fate::Ends
        }
    }

    /// Ends the clients that the next program does not know, and the calls of services that end with the upgrade. `is_last` says whether
    /// the loop has stopped. Before, a message that is decompressed in part may still be complete in time.
    pub(super) fn end_departing(&mut self, carried: &mut Carried, is_last: bool) {
        for id in self.ctx.core.registry.ids() {
            let Some(client) = self.ctx.core.registry.get(id) else {
                continue;
            };
            let service_id = client.service_id;
            let is_departing = self.ctx.core.departing.contains(&service_id);
            let is_encrypted = client.wire.tls().is_some();
            let is_inflating = client.wire.protocol.is_inflating();
            let may_pass_later = !is_last && !is_departing && !is_encrypted && is_inflating;
            if !client.wire.protocol.was_open() {
                if is_departing && self.call_for_upgrade(id) == CallForUpgrade::Other {
                    self.act(|server| carried.refused += usize::from(server.refuse_call(id)));
                }
            } else if self.fate(client) == Fate::Ends && !may_pass_later {
                carried.closed += 1;
                if let Some(upgrading) = &mut self.upgrading {
                    *upgrading.ended.entry(service_id).or_default() += 1;
                }
                self.act(|server| server.ctx.core.end_for_good(id));
            }
        }
    }

    /// Ends what cannot be passed on, and completes what is half done. From here until [`Server::save`], nothing may change.
    /// `carried` has what [`Server::end_departing`] has ended before.
    pub(crate) fn make_portable(&mut self, mut carried: Carried) -> Carried {
        for id in self.ctx.core.registry.ids() {
            match self.call_for_upgrade(id) {
                CallForUpgrade::Other => {
                    self.act(|server| carried.refused += usize::from(server.end_call(id)));
                }
                CallForUpgrade::AnsweredBefore => self.act(|server| server.answer_early(id)),
                CallForUpgrade::AnsweredAfter => {}
            }
        }
        self.ctx.core.service_id = ServiceId::ALL;
        self.act(|server| {
            if let Some(service) = server.service.portable_mut() {
                service.make_portable(&mut server.ctx);
            }
        });
        self.end_departing(&mut carried, true);
        for id in self.ctx.core.registry.ids() {
            let Some(client) = self.ctx.core.registry.get(id) else {
                continue;
            };
            let (fate, was_open) = (self.fate(client), client.wire.protocol.was_open());
            match fate {
                Fate::Passes => carried.passed += usize::from(was_open),
                Fate::IsCut => carried.cut += 1,
                Fate::Ends => debug_assert!(!was_open, "{id} has ended"),
            }
            self.act(|server| match fate {
                Fate::Passes => {
                    let core = &mut server.ctx.core;
                    core.with(id, |client, env| client.finish_output(env));
                }
                Fate::IsCut => server.cut_for_upgrade(id),
                Fate::Ends => {
                    let core = &mut server.ctx.core;
                    core.with(id, |client, env| {
                        client.flush(env);
                        client.end(env, restart());
                    });
                }
            });
        }
        carried
    }

    /// Answers who has asked for the upgrade and cannot get the answer after it.
    fn answer_early(&mut self, id: ClientId) {
        let message = "the server is being upgraded; its log says how it goes";
        let answer = json!({"message": message}).to_string();
        let answer = Response::json(StatusCode::ACCEPTED, answer);
        self.answer_callers(&[id], &answer);
    }

    /// Ends the call of a connection: with 503, or the end of the stream of events. Returns whether there was one.
    fn end_call(&mut self, id: ClientId) -> bool {
        !self.call_passes(id) && self.refuse_call(id)
    }

    /// Whether the call of a connection passes to the next program.
    fn call_passes(&self, id: ClientId) -> bool {
        let Some(client) = self.ctx.core.registry.get(id) else {
            return false;
        };
        let Some(http) = client.wire.protocol.http() else {
            return false;
        };
        let is_carried = || {
            let portable = self.service.portable();
            portable.is_some_and(|service| service.carries_calls(client.service_id))
        };
        client.wire.tls().is_none()
            && match http.state() {
                HttpState::Streaming => is_carried(),
                HttpState::Answering => http.is_unanswered() && is_carried(),
                HttpState::Body => !http.was_rejected(),
                HttpState::Head | HttpState::Closing | HttpState::Closed => false,
            }
    }

    /// Refuses the call of a connection with 503, or ends its stream of events. Returns whether there was one.
    fn refuse_call(&mut self, id: ClientId) -> bool {
        let refusal = || {
            let why = "the server is upgraded; try again";
            Rejection::unavailable(why).because("upgrade")
        };
        let client = self.ctx.core.registry.get(id);
        let Some(http) = client.and_then(|client| client.wire.protocol.http()) else {
            return false;
        };
        let (state, is_unanswered) = (http.state(), http.is_unanswered());
        let ended = self.ctx.core.with(id, |client, env| match state {
            HttpState::Streaming => client.end_stream(env).is_ok(),
            HttpState::Answering if is_unanswered => {
                client.respond(env, &Response::from(&refusal())).is_ok()
            }
            // The rest of the request would be missing, or it waits for its rejection.
            HttpState::Body | HttpState::Answering => {
                client.reject(env, &refusal());
                true
            }
            HttpState::Head | HttpState::Closing | HttpState::Closed => false,
        });
        if ended == Some(true) && is_unanswered {
            self.ctx.core.enter(id);
            self.call_service(|service, ctx| service.abandoned(ctx, id));
        }
        ended == Some(true)
    }

    /// Cuts a resumable client, which comes back by itself.
    fn cut_for_upgrade(&mut self, id: ClientId) {
        // The service has closed nothing, so the client gets no CLOSE when it comes back.
        let cut = CloseReason::new(Cause::Eof, CloseCode::ABNORMAL, "the server is upgraded");
        self.ctx.core.with(id, |client, env| client.flush(env));
        self.detach(id, cut, false);
    }

    /// Writes the state down. Call [`Server::make_portable`] before.
    pub(crate) fn save<'a>(&'a self, to: &mut Saver<'a>) {
        let Core {
            env,
            registry,
            topics,
            history,
            sample_at,
            leftovers,
            // The next loop has its own, or finds it out.
            timers: _,
            sources: _,
            shutdown: _,
            poll: _,
            resolver: _,
            attempts: _,
            listen: _,
            service_id: _,
            routes: _,
            handshaking: _,
            resume_behind: _,
            departing: _,
            is_replaced: _,
            chores_at: _,
            trim_at: _,
            certificate_check: _,
            upgrades: _,
            upgrade_callers: _,
            #[cfg(any(test, fuzzing))]
                dialer: _,
        } = &self.ctx.core;
        let names = self.names().into_iter();
        let names = names.map(|(id, name)| (id, name.into_owned()));
        to.open(b'{');
        to.field("clock", &self.clock);
        to.field("now", &env.now);
        to.field("asleep", &env.asleep);
        to.member("services", |to| to.inline(&names.collect::<Vec<_>>()));
        to.member("clients", |to| {
            // Before a rehearsal, connections of this side may still be in attempts or requests, which end before the upgrade.
            let clients = registry.iter();
            let clients = clients.filter(|client| !client.wire.protocol.is_outgoing());
            to.array(clients, |to, client| client.save(to));
        });
        to.member("next_serial", |to| to.number(registry.next_serial()));
        to.field("tokens", &env.config.access.tokens);
        to.member("topics", |to| topics.save(registry, to));
        to.field("counters", &env.counters);
        to.field("failures", &env.failures);
        to.field("links", &env.links);
        to.field("history", history);
        to.field("sample_at", sample_at);
        to.field("leftovers", leftovers);
        to.close(b'}');
    }

    /// Continues with what another loop has saved. The service follows with [`Server::restore_service`].
    pub(crate) fn restore(&mut self, from: &mut Loader) -> Result<Continued, RecordError> {
        let core = &mut self.ctx.core;
        let (mut clock, mut now) = (None::<Clock>, None::<Time>);
        let mut names = Vec::<(ServiceId, String)>::new();
        let (mut clients, mut next_serial) = (Vec::<Client>::new(), 0);
        let (mut tokens, mut topics) = (None, Vec::<SavedTopic>::new());
        object!(from {
            clock,
            now,
            asleep: Set(&mut core.env.asleep),
            services: Set(&mut names),
            clients: Set(&mut clients),
            next_serial: Set(&mut next_serial),
            tokens,
            topics: Set(&mut topics),
            counters: Set(&mut core.env.counters),
            failures: Set(&mut core.env.failures),
            links: Set(&mut core.env.links),
            history: Set(&mut core.history),
            sample_at: Set(&mut core.sample_at),
            leftovers: Set(&mut core.leftovers),
        })?;
        let services = self.successors(&names);
        let ids = names.iter().map(|(id, _)| *id);
        let departing = ids.filter(|id| !services.contains_key(id)).collect();
        let mut orphans = Vec::new();
        for client in &mut clients {
            client.service_id = match services.get(&client.service_id) {
                Some(successor) => *successor,
                // Its next request may be for any service.
                None if client.wire.protocol.awaits_head() => ServiceId::ALL,
                None => {
                    orphans.push(client.id);
                    ServiceId::ALWAYS_SERVED
                }
            };
        }
        let registry = Registry::restore(clients, next_serial)?;
        let continued = Continued { departing, orphans };
        if from.is_rehearsal() {
            return Ok(continued);
        }
        let core = &mut self.ctx.core;
        self.clock = clock.ok_or_else(RecordError::missing)?;
        core.env.now = now.ok_or_else(RecordError::missing)?;
        core.timers = Timers::new(core.env.now);
        core.registry = registry;
        core.restore_topics(topics, &services);
        let access = core.env.config.access.clone();
        core.env.config.access.tokens = tokens.ok_or_else(RecordError::missing)?;
        for id in core.registry.ids() {
            core.take_in(id);
        }
        core.replace_access(access);
        core.plan_chores();
        Ok(continued)
    }

    /// Continues the service, and ends the connections that belong to none, if the settings have changed since the rehearsal. Returns
    /// how many connections of each kind were ended.
    pub(crate) fn restore_service(
        &mut self,
        continued: Continued,
        callers: &[ClientId],
        from: &mut Loader,
    ) -> Result<Carried, RecordError> {
        let Continued { orphans, .. } = continued;
        self.ctx.core.service_id = ServiceId::ALL;
        continue_service(&mut self.service, &mut self.ctx, from)?;
        let mut ended = Carried::default();
        if !from.is_rehearsal() {
            let orphans = orphans.into_iter().filter(|id| !callers.contains(id));
            orphans.for_each(|id| self.end_orphan(id, &mut ended));
            self.return_all();
        }
        self.act(|_| {});
        Ok(ended)
    }

    /// Ends a client or a call of a service that does not continue.
    fn end_orphan(&mut self, id: ClientId, ended: &mut Carried) {
        let client = self.ctx.core.registry.get(id);
        let was_open = client.is_some_and(|client| client.wire.protocol.was_open());
        if was_open {
            ended.closed += 1;
            self.act(|server| server.ctx.core.end_for_good(id));
        } else {
            self.act(|server| ended.refused += usize::from(server.refuse_call(id)));
        }
    }

    /// The services that have a name.
    fn names(&self) -> Vec<(ServiceId, Cow<'_, str>)> {
        let Some(portable) = self.service.portable() else {
            return Vec::new();
        };
        let ids = (0..ServiceId::MOST).filter_map(ServiceId::new);
        let ids = std::iter::once(ServiceId::ALL).chain(ids);
        ids.filter_map(|id| Some((id, portable.state_name(id)?)))
            .collect()
    }

    /// Maps each service of the process before to the service of the same name. A service without a name continues the one without
    /// a name.
    fn successors(&self, names: &[(ServiceId, String)]) -> HashMap<ServiceId, ServiceId> {
        let own = self.names();
        let successor = |(id, name): &(ServiceId, String)| {
            let same = own.iter().find(|(_, own)| own == name)?;
            Some((*id, same.0))
        };
        let mut successors: HashMap<_, _> = names.iter().filter_map(successor).collect();
        if names.iter().all(|(id, _)| *id != ServiceId::ALL) {
            successors.insert(ServiceId::ALL, ServiceId::ALL);
        }
        successors.insert(ServiceId::ALWAYS_SERVED, ServiceId::ALWAYS_SERVED);
        successors
    }
}

impl Core {
    /// Ends a client that does not pass. Its connection stays until the peer has read the queued output and CLOSE 1012, or is passed on
    /// without a client.
    fn end_for_good(&mut self, id: ClientId) {
        let Some(client) = self.registry.get(id) else {
            return;
        };
        if client.wire.protocol.is_detached() {
            self.with(id, |client, env| client.end(env, restart()));
            return;
        }
        let (remote, now) = (client.wire.remote, self.env.now);
        let rest = |id| Ok::<_, Infallible>(Client::new(id, Stream::Closed, remote, now));
        let Ok(rest) = self.registry.insert(rest);
        self.env.scheduler.hold(AccountId::SERVER);
        // Each entry of the registry counts as a connection when it ends.
        self.env.counters.accepted += 1;
        if let Some((client, rest)) = self.registry.pair_mut(id, rest) {
            client.part(&mut self.env, &self.poll, rest, restart());
        }
    }

    /// Whether a request of this side to another server, or an attempt to open a connection, has not ended.
    pub(super) fn has_request(&self) -> bool {
        let mut clients = self.registry.iter();
        clients.any(|client| {
            let protocol = &client.wire.protocol;
            protocol.is_in_exchange() || protocol.is_connecting()
        })
    }

    /// Forgets who comes back for a client, so that the end of the attempt does not end the client.
    fn forget_return(&mut self, id: ClientId) {
        let client = self.registry.get_mut(id);
        let delivery = client.and_then(|client| client.wire.delivery_mut());
        if let Some(upstream) = delivery.and_then(Delivery::upstream_mut) {
            upstream.joiner = None;
        }
    }

    /// Continues a resumable client whose connection this side has opened. Begins to come back if it is cut. Without settings, the
    /// client ends.
    fn return_with(&mut self, id: ClientId, connect: Option<Arc<Connect>>) {
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        let mut is_cut = client.wire.may_come_back();
        let is_known = connect.is_some();
        let delivery = client.wire.delivery_mut();
        if let Some(upstream) = delivery.and_then(Delivery::upstream_mut) {
            upstream.connect = connect;
            // After an upgrade that has failed early, the attempts to come back go on.
            is_cut &= upstream.joiner.is_none();
        }
        if !is_known {
            self.end_unknown(id);
        } else if is_cut {
            self.begin_return(id);
        }
    }

    /// Whether programs of departing services have not read everything, or peers over TLS have not closed their side. They have no more
    /// chance when the program is replaced.
    pub(super) fn has_last_words(&self) -> bool {
        let is_closing = |client: &Client| {
            let http = client.wire.protocol.http();
            http.is_some_and(|http| http.state() == HttpState::Closing)
        };
        let mut clients = self.registry.iter();
        self.sources.have_unread(&self.departing)
            || clients.any(|client| client.wire.tls().is_some() && is_closing(client))
    }

    /// Registers a connection that another loop has opened, and counts what it had counted.
    fn take_in(&mut self, id: ClientId) {
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        let (env, poll) = (&mut self.env, &self.poll);
        env.scheduler.hold(client.wire.account);
        let registered = client.wire.register(id, poll);
        let is_usable = client.become_restored(env);
        self.assign_account(id);
        self.with(id, |client, env| match registered {
            Err(error) => client.end(env, CloseReason::read_error(&error)),
            Ok(()) if !is_usable => client.end(env, restart()),
            Ok(()) => client.continue_work(env),
        });
        self.rearm(id);
    }
}
