//! The state of the event loop: the clients, the resources that they share, and the timers and file descriptors of
//! services.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::access::is_one_of;
use super::address::{ListenAddress, Remote};
use super::client::{Client, Join};
use super::config::Config;
use super::env::{Env, WRITE_BUFFER};
use super::event_loop::budget::CLIENT_SHARE;
use super::event_loop::leftovers::Leftovers;
use super::event_loop::scheduler::Work;
use super::event_loop::shutdown::Shutdown;
use super::event_loop::sources::{Readiness, Sources};
use super::event_loop::timers::Timers;
use super::id::{ClientId, ServiceId, SourceId};
use super::observe::client_query::ClientQuery;
use super::observe::history::{History, PERIOD};
use super::observe::status::{Status, StatusFields};
use super::outgoing::Resolver;
use super::registry::Registry;
use super::stream::Stream;
use super::topics::Topics;
use crate::protocol::Time;
use crate::sys::trim_heap;

/// The delay between the disconnect of the last client and the return of free memory to the system.
const TRIM_DELAY: Duration = Duration::from_millis(500);

/// The state of the loop. Services access it through [`Context`](crate::Context).
#[derive(Debug)]
pub(super) struct Core {
    pub(super) env: Env,
    pub(super) registry: Registry,
    pub(super) topics: Topics,
    pub(super) timers: Timers,
    pub(super) sources: Sources,
    pub(super) shutdown: Shutdown,
    pub(super) poll: mio::Registry,
    pub(super) resolver: Resolver,
    /// Outgoing connections whose first attempt begins in the next turn.
    pub(super) attempts: Vec<ClientId>,
    pub(super) listen: Vec<ListenAddress>,
    /// The service that is called.
    pub(super) service_id: ServiceId,
    /// The paths of the services, for the log.
    pub(super) routes: Vec<(ServiceId, Box<str>)>,
    /// The client whose handshake the service accepts or rejects.
    pub(super) handshaking: Option<ClientId>,
    /// The slot of the client that was being read when a pause began. Reading resumes with the slot after it, so that
    /// the same client does not always fill a program's queue first.
    pub(super) resume_behind: usize,
    /// When to do the next of the chores below.
    pub(super) chores_at: Option<Time>,
    /// What programs have left behind.
    pub(super) leftovers: Leftovers,
    /// When to return free memory to the system.
    pub(super) trim_at: Option<Time>,
    /// When to check whether the certificate for TLS expires.
    pub(super) certificate_check: Option<Time>,
    /// The figures of the last minutes.
    pub(super) history: History,
    /// When the next sample of them is due.
    pub(super) sample_at: Time,
    /// Whether an upgrade can be asked for: `None` if the program cannot replace itself, and otherwise whether over TCP, too.
    pub(super) upgrades: Option<bool>,
    /// The callers that have asked for an upgrade in this turn.
    pub(super) upgrade_callers: Vec<ClientId>,
    /// The services that end with the upgrade that is about to happen. They serve no new requests.
    pub(super) departing: Vec<ServiceId>,
    /// Whether the program is about to be replaced, so that nothing begins that could not pass.
    pub(super) is_replaced: bool,
    /// Opens connections in memory instead of sockets.
    #[cfg(any(test, fuzzing))]
    pub(super) dialer: Option<super::simulation::memory_stream::Dialer>,
}

impl Core {
    pub(super) fn new(
        config: Config,
        poll: mio::Registry,
        resolver: Resolver,
        listen: Vec<ListenAddress>,
        now: Time,
    ) -> Self {
        let certificate_check = config.has_tls().then_some(now);
        Self {
            registry: Registry::new(),
            topics: Topics::default(),
            timers: Timers::new(now),
            env: Env::new(config, now),
            sources: Sources::default(),
            shutdown: Shutdown::default(),
            poll,
            resolver,
            attempts: Vec::new(),
            listen,
            service_id: ServiceId::ALL,
            routes: Vec::new(),
            handshaking: None,
            resume_behind: 0,
            leftovers: Leftovers::default(),
            trim_at: None,
            history: History::default(),
            sample_at: Time::default() + PERIOD,
            chores_at: certificate_check,
            certificate_check,
            upgrades: None,
            upgrade_callers: Vec::new(),
            departing: Vec::new(),
            is_replaced: false,
            #[cfg(any(test, fuzzing))]
            dialer: None,
        }
    }

    /// The path of the current service.
    pub(super) fn route(&self) -> Option<&str> {
        let mut routes = self.routes.iter();
        let route = routes.find(|(id, _)| *id == self.service_id)?;
        Some(&route.1)
    }

    // Clients.

    /// Runs an operation on a client. Does nothing if the client is gone.
    pub(super) fn with<R>(
        &mut self,
        id: ClientId,
        operation: impl FnOnce(&mut Client, &mut Env) -> R,
    ) -> Option<R> {
        let client = self.registry.get_mut(id)?;
        Some(operation(client, &mut self.env))
    }

    /// A client of the current service, with the shared state.
    #[inline]
    pub(super) fn own(&mut self, id: ClientId) -> Option<(&mut Client, &mut Env)> {
        let client = self.registry.get_mut(id)?;
        self.service_id
            .includes(client.service_id)
            .then_some((client, &mut self.env))
    }

    /// A client of the service that is called.
    pub(super) fn own_ref(&self, id: ClientId) -> Option<&Client> {
        let client = self.registry.get(id)?;
        self.service_id
            .includes(client.service_id)
            .then_some(client)
    }

    /// Makes the client's service the current service.
    pub(super) fn enter(&mut self, id: ClientId) {
        let client = self.registry.get(id);
        self.enter_service(client.map_or(ServiceId::ALL, |client| client.service_id));
    }

    /// Makes a service the current one, and counts the time from now on as its own.
    #[inline]
    pub(super) fn enter_service(&mut self, service_id: ServiceId) {
        self.service_id = service_id;
        self.env.counters.turns.enter(service_id);
    }

    /// Checks a client out of its slot so that it can be read. Returns whether the client exists.
    pub(super) fn begin_read(&mut self, id: ClientId) -> bool {
        let Some(client) = self.registry.check_out(id) else {
            return false;
        };
        client.wire.set_reading(true);
        let (service_id, account) = (client.service_id, client.wire.account);
        self.enter_service(service_id);
        self.env.begin_slice(account, CLIENT_SHARE);
        true
    }

    /// The client that is being read.
    #[inline]
    pub(super) fn reading(&mut self) -> Option<(&mut Client, &mut Env)> {
        Some((self.registry.checked_out()?, &mut self.env))
    }

    /// Writes the replies to what was read, and puts the client back into its slot. `was_ready` says whether the gate
    /// let the client be read. A held client is not queued again, because the loop would then never sleep. If a
    /// client comes back on this connection, returns which one.
    pub(super) fn end_read(&mut self, was_ready: bool) -> Option<Join> {
        let (client, env) = self.reading()?;
        client.write_output(env);
        client.wire.set_reading(false);
        if env.protocol.compression.is_some() {
            env.count_decompressed();
        }
        if was_ready {
            client.settle(env);
            client.read_again(env);
        }
        let joins = client.wire.joins();
        debug_assert!(env.output.is_empty());
        if env.output.capacity() > 2 * WRITE_BUFFER {
            env.output = Vec::new();
        }
        self.registry.check_in();
        joins
    }

    /// Adds a connection and waits for its request, or with `tls` for its handshake.
    pub(super) fn add_client(
        &mut self,
        stream: Stream,
        remote: Remote,
        tls: bool,
    ) -> Option<ClientId> {
        let is_proxied = is_one_of(&self.env.config.proxies, remote);
        let is_trusted = !is_proxied && is_one_of(&self.env.config.trusted_proxies, remote);
        // A proxy passes on the requests of others, whose user is unknown.
        let is_shared = is_trusted && remote.is_unix();
        let remote = if is_shared {
            Remote::SHARED_UNIX
        } else {
            remote
        };
        let encrypted = if tls {
            self.env.config.encrypt(stream, is_proxied)
        } else {
            Ok(stream)
        };
        let stream = match encrypted {
            Ok(stream) => stream,
            Err(error) => {
                log::warn!("refused a connection: cannot start TLS: {error} remote={remote}");
                return None;
            }
        };
        let (now, poll, scheduler) = (self.env.now, &self.poll, &mut self.env.scheduler);
        let inserted = self.registry.insert(|id| {
            let mut client = Client::new(id, stream, remote, now);
            client.wire.register(id, poll)?;
            scheduler.hold(client.wire.account);
            io::Result::Ok(client)
        });
        let id = match inserted {
            Ok(id) => id,
            Err(error) => {
                log::warn!("a connection from {remote} could not be registered: {error}");
                return None;
            }
        };
        if is_proxied {
            self.with(id, |client, _| client.wire.protocol.expect_proxy_header());
        } else if is_trusted {
            // The connections of a proxy have many clients, so they are not limited as those of one address.
            self.with(id, |client, _| client.wire.expect_forwarded_requests());
        } else {
            self.count_connection(id);
        }
        self.assign_account(id);
        self.rearm(id);
        Some(id)
    }

    // Time.

    /// Recomputes a client's deadline and sets its timer.
    pub(super) fn rearm(&mut self, id: ClientId) {
        if let Some(client) = self.registry.get(id) {
            let deadline = client.wire.deadline(&self.env);
            self.timers
                .set_client(&mut self.registry, id, self.env.now, deadline);
        }
    }

    /// Frees the memory that is kept for reuse, and schedules its return to the system. Called when there are no
    /// clients.
    pub(super) fn give_memory_back(&mut self) {
        self.env.protocol.clear();
        self.trim_at.get_or_insert(self.env.now + TRIM_DELAY);
        self.plan_chores();
    }

    /// Does the chores that are due.
    #[inline]
    pub(super) fn do_chores(&mut self) {
        if self.chores_at.is_some_and(|at| self.env.now >= at) {
            self.do_due_chores();
        }
    }

    #[cold]
    fn do_due_chores(&mut self) {
        let now = self.env.now;
        if self.trim_at.take_if(|at| now >= *at).is_some() && self.registry.client_count() == 0 {
            trim_heap();
        }
        if self.certificate_check.is_some_and(|at| now >= at) {
            self.check_certificate();
        }
        self.expire_links();
        self.leftovers.end_due(now);
        self.plan_chores();
    }

    /// Sets the time of the next chore.
    pub(super) fn plan_chores(&mut self) {
        let asleep = self.env.asleep;
        let awake = |at: Time| Time::default() + at.since(Time::default() + asleep);
        let expiry = self.env.links.next_expiry().map(awake);
        let own = earlier(self.trim_at, self.certificate_check);
        self.chores_at = earlier(earlier(own, expiry), self.leftovers.due());
    }

    /// Whether work is left over for the next turn, so that the loop must not sleep.
    pub(super) fn has_work(&self) -> bool {
        let attempts = !self.attempts.is_empty();
        self.env.has_work() || !self.env.news.is_empty() || self.shutdown.is_asked() || attempts
    }

    /// The latest time of the next turn of the loop.
    pub(super) fn next_turn(&mut self) -> Option<Time> {
        let next = earlier(self.timers.next(), self.shutdown.next_turn(self.env.now));
        earlier(next, self.chores_at)
    }

    /// Whether a stopping server still waits for clients, calls or unsent output.
    pub(super) fn is_busy(&self) -> bool {
        self.registry.client_count() > 0
            || self.env.calls > 0
            || self
                .registry
                .iter()
                .any(|client| client.wire.queued() > 0 || client.wire.protocol.is_in_exchange())
            || (self.shutdown.awaits_newcomers(self.env.now)
                && self
                    .registry
                    .iter()
                    .any(|client| client.wire.protocol.is_new()))
    }

    /// Records the address behind a proxy. A connection through a unix socket without an address has an unknown user.
    pub(super) fn set_proxied(&mut self, id: ClientId, address: Option<SocketAddr>) {
        self.with(id, |client, _| {
            if let Some(address) = address {
                log::debug!("{id} is for {address}, through {}", client.wire.remote);
                client.wire.remote = address.into();
            } else if client.wire.remote.is_unix() {
                client.wire.remote = Remote::SHARED_UNIX;
            }
        });
        self.count_connection(id);
        self.assign_account(id);
    }

    /// The number of clients of the current service, including those that are being closed.
    pub(super) fn client_count(&self) -> usize {
        if self.service_id == ServiceId::ALL {
            return self.registry.client_count();
        }
        let ours = |client: &&Client| {
            client.wire.protocol.was_open() && client.service_id == self.service_id
        };
        self.registry.iter().filter(ours).count()
    }

    /// The server's status, with the clients that a query asks for.
    pub(super) fn status_page(&self, query: &ClientQuery) -> Status {
        let ours = self.registry.iter().filter(|client| {
            client.wire.protocol.was_open() && self.service_id.includes(client.service_id)
        });
        let page = query.select(self, ours);
        let mut totals = self.env.counters.ended_clients;
        let present = self
            .registry
            .iter()
            .filter(|client| client.wire.protocol.was_open());
        present.for_each(|client| totals.add(client.traffic));
        Status {
            client_count: self.client_count(),
            detached: self.detached_count(),
            connections: self.registry.len(),
            calls: self.env.calls,
            totals,
            total_calls: self.env.counters.service_calls,
            turns: self.env.counters.turns.turns(),
            matched: page.matched,
            has_more: page.has_more,
            running: !self.shutdown.is_stopping(),
            uptime: self.env.real_now().since(Time::default()),
            service: StatusFields::default(),
            listen: self.listen.iter().map(ToString::to_string).collect(),
            clients: page.clients,
        }
    }

    /// Queues a call of `ready`.
    pub(super) fn ready_again(&mut self, id: SourceId, readiness: Readiness) {
        if let Some(account) = self.sources.again(id, readiness) {
            self.env.scheduler.push(account, Work::Source(id));
        }
    }

    /// Asks for a call of `ready` for every source.
    pub(super) fn try_every_source(&mut self) {
        let readiness = Readiness {
            readable: true,
            writable: true,
        };
        for id in self.sources.ids() {
            self.ready_again(id, readiness);
        }
    }

    /// Finds out who pays for a client: after it has connected, and after each of its requests.
    pub(super) fn assign_account(&mut self, id: ClientId) {
        let payer = self.payer(id);
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        let scheduler = &mut self.env.scheduler;
        if !scheduler.is_of(client.wire.account, &payer) {
            let before = std::mem::replace(&mut client.wire.account, scheduler.acquire(payer));
            scheduler.release(before);
        }
    }
}

/// The earlier of two optional times.
#[inline]
pub(super) fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
