//! The state of the loop, and all that a service may do to it.

mod calls;
mod cork;
mod output;
mod steps;
mod turn;
pub(super) mod work;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use cork::Cork;
use work::Work;

use crate::protocol::deflate::Compression;
use crate::protocol::{CloseCode, CloseReason, Shared, Time};
use crate::server::address::ListenAddress;
use crate::server::client::{Client, Flags, Remote};
use crate::server::config::Config;
use crate::server::drain::Farewell;
use crate::server::id::{ClientId, ServiceId, SourceId, TimerId};
use crate::server::interest::Interest;
use crate::server::metrics::Counters;
use crate::server::policy::Principal;
use crate::server::registry::Registry;
use crate::server::service::Readiness;
use crate::server::sources::Sources;
use crate::server::status::{ClientStatus, Status, StatusFields};

/// Why a message could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// There is no such client, or not any more.
    Gone,
    /// The client is being closed.
    Closing,
    /// The client has left too much unread; it is being closed for that.
    SlowConsumer,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "unknown client",
            Self::Closing => "the client is being closed",
            Self::SlowConsumer => "the client does not keep up",
        })
    }
}

impl std::error::Error for SendError {}

/// Where the server stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Running,
    /// Stopping was asked for and has not begun.
    StopAsked,
    /// Clients have their CLOSE and are waited for.
    Draining {
        until: Time,
    },
    /// Clients are gone and the service is waited for.
    Finishing {
        until: Time,
    },
    /// The loop ends now.
    Over,
}

/// What a service does its work with: every method of a [`Service`](crate::Service) is given it.
///
/// Nothing here removes a client. A client that is closed, or whose socket turns out to be dead, is marked and removed
/// by the loop once the service's method has returned; until then sending to it fails.
#[derive(Debug)]
pub struct Context {
    pub(super) config: Config,
    pub(super) registry: Registry,
    pub(super) poll: mio::Registry,
    pub(super) sources: Sources,
    pub(super) now: Time,
    pub(super) life: Life,
    pub(super) listen: Vec<ListenAddress>,
    /// Output for the client that is being read.
    cork: Cork,
    /// Clients that have output to write at the end of the turn.
    dirty: VecDeque<ClientId>,
    /// Clients that are to be disconnected as soon as the service's method has returned.
    doomed: Vec<(ClientId, CloseReason)>,
    /// Clients whose output has drained, to be told to the service.
    drained: Vec<ClientId>,
    /// Clients with more input, to be read in the next turn.
    ready: VecDeque<ClientId>,
    /// Whether the last turn left some of them unread.
    is_behind: bool,
    /// What this turn of the loop has done so far.
    work: Work,
    /// Broadcasts of this turn.
    broadcasts: u32,
    /// The slot after which reading continues after a pause, so that not always the same client fills a program's queue
    /// first.
    resume_behind: usize,
    /// When to return free memory to the system.
    trim_at: Option<Time>,
    /// The service that is at work.
    pub(super) service_id: ServiceId,
    /// The services whose clients' input is not taken, a bit for each.
    paused: u64,
    /// Calls that the service has and has not answered to the end.
    pub(super) calls: usize,
    pub(super) counters: Counters,
    /// What compressed messages had come to when the present client's turn began.
    turn_began: u64,
    /// What the protocol side of all connections has in common.
    pub(super) shared: Shared,
    /// Until when a stopping server waits for requests of connections that it has taken.
    pub(super) newcomers_until: Time,
    /// Clients that have not been told that the server stops.
    pub(super) farewell: Farewell,
}

#[cfg(feature = "deflate")]
fn compression(config: &Config) -> Option<Compression> {
    config.deflate.map(Compression::new)
}

#[cfg(not(feature = "deflate"))]
fn compression(_: &Config) -> Option<Compression> {
    None
}

impl Context {
    pub(super) fn new(
        config: Config,
        poll: mio::Registry,
        listen: Vec<ListenAddress>,
        now: Time,
    ) -> Self {
        Self {
            registry: Registry::new(now, config.max_clients_per_address.is_some()),
            turn_began: 0,
            shared: Shared {
                limits: config.limits,
                compression: compression(&config),
                ..Shared::default()
            },
            config,
            poll,
            sources: Sources::default(),
            now,
            life: Life::Running,
            listen,
            cork: Cork::default(),
            dirty: VecDeque::new(),
            doomed: Vec::new(),
            drained: Vec::new(),
            ready: VecDeque::new(),
            is_behind: false,
            work: Work::default(),
            broadcasts: 0,
            resume_behind: 0,
            trim_at: None,
            service_id: ServiceId::ALL,
            paused: 0,
            calls: 0,
            counters: Counters::default(),
            newcomers_until: Time::default(),
            farewell: Farewell::default(),
        }
    }

    /// Begins the closing handshake with a client. A code that may not be sent, or a reason over 123 bytes, is an
    /// error of the caller and closes with what can be said. A client that is gone or being closed is passed over.
    pub fn close(&mut self, id: ClientId, code: CloseCode, reason: impl Into<String>) {
        let _ = self.try_close(id, code, reason);
    }

    /// Closes a client as [`Context::close`] does, and returns why it could not be closed.
    pub fn try_close(
        &mut self,
        id: ClientId,
        code: CloseCode,
        reason: impl Into<String>,
    ) -> Result<(), SendError> {
        let client = self.own(id).ok_or(SendError::Gone)?;
        if !client.connection.is_open() {
            return Err(SendError::Closing);
        }
        self.close_with(id, CloseReason::by_service(code, reason.into()));
        Ok(())
    }

    /// A client of the service that is at work.
    fn own(&self, id: ClientId) -> Option<&Client> {
        let client = self.registry.get(id)?;
        self.service_id
            .includes(client.service_id)
            .then_some(client)
    }

    /// Whether more output waits for this client than the soft limit. [`Service::drained`](crate::Service::drained)
    /// tells when that is over.
    pub fn is_congested(&self, id: ClientId) -> bool {
        self.registry.get(id).is_some_and(Client::is_congested)
    }

    /// The service's clients that can be sent to.
    pub fn clients(&self) -> Vec<ClientId> {
        self.registry
            .iter()
            .filter(|(_, client)| {
                client.connection.is_open() && self.service_id.includes(client.service_id)
            })
            .map(|(id, _)| id)
            .collect()
    }

    /// The number of the service's clients, those that are being closed included.
    pub fn client_count(&self) -> usize {
        if self.service_id == ServiceId::ALL {
            return self.registry.client_count();
        }
        let ours =
            |client: &Client| client.connection.was_open() && client.service_id == self.service_id;
        self.registry
            .iter()
            .filter(|(_, client)| ours(client))
            .count()
    }

    /// Which of several services in the server is at work: the one whose client, file descriptor or timer it is that
    /// is being told of.
    pub fn service_id(&self) -> ServiceId {
        self.service_id
    }

    /// Puts another of several services to work: clients, file descriptors and timers are its own from here on, and
    /// the other services' clients are out of its sight.
    pub fn set_service_id(&mut self, service_id: ServiceId) {
        self.registry.note_change();
        self.service_id = service_id;
    }

    /// Time since the last message in either direction between the server and a client.
    pub fn quiet_for(&self, id: ClientId) -> Duration {
        self.own(id).map_or(Duration::MAX, |client| {
            self.now.since(client.connection.last_message())
        })
    }

    /// Where a client's connection comes from.
    pub fn remote(&self, id: ClientId) -> Option<Remote> {
        self.registry.get(id).map(|client| client.remote)
    }

    /// The authenticated owner of a client's connection.
    pub fn principal(&self, id: ClientId) -> Principal {
        match self.remote(id).and_then(Remote::user) {
            Some(user) => Principal::User(user),
            None if self.config.access.token.is_some() => Principal::Token,
            None => Principal::Nobody,
        }
    }

    /// Pauses or resumes messages from the service's clients, for a service whose own output is behind. A client is
    /// still read up to its next message, so PING, CLOSE and the end of its connection take effect at once. While a
    /// message is held back, the ping and idle timeouts do not apply to its client.
    pub fn set_paused(&mut self, paused: bool) {
        let bit = self.service_id.bit();
        if paused {
            if let Some(client) = self.cork.client {
                self.resume_behind = client.slot();
            }
            self.paused |= bit;
        } else if self.paused & bit != 0 {
            self.paused &= !bit;
            let service_id = self.service_id;
            self.take_input_again(|client| service_id.includes(client.service_id));
        }
    }

    /// Reads these clients again, whose input was not taken.
    fn take_input_again(&mut self, whose: impl Fn(&Client) -> bool) {
        let mut ids = self.registry.ids();
        let behind = ids.partition_point(|id| id.slot() <= self.resume_behind);
        ids.rotate_left(behind);
        for id in ids {
            let held = |client: &Client| whose(client) && client.has_unread();
            if let Some(client) = self.registry.get_mut(id).filter(|client| held(client)) {
                client.connection.excuse_silence(self.now);
                client.connection.restart_ping_window(self.now);
            }
            if let Some(client) = self.registry.get_mut(id).filter(|client| whose(client)) {
                Self::mark_ready(&mut self.ready, id, client);
                self.set_deadline(id);
            }
        }
    }

    /// Pauses or resumes messages from one client, as [`Context::set_paused`] does for all clients. For a service with
    /// a separate input queue for each client, when the queue of this client is full.
    pub fn set_held(&mut self, id: ClientId, held: bool) {
        let (now, service_id) = (self.now, self.service_id);
        let client = self.registry.get_mut(id);
        let Some(client) = client.filter(|client| service_id.includes(client.service_id)) else {
            return;
        };
        if client.flags.set(Flags::HELD, held) && !held {
            client.connection.excuse_silence(now);
            Self::mark_ready(&mut self.ready, id, client);
        }
    }

    /// The client whose input is being handled.
    fn corked(&self) -> Option<ClientId> {
        self.cork.client
    }

    // The server.

    /// What the server says about itself now, without its service's part.
    pub fn status(&self) -> Status {
        self.status_page(None, usize::MAX)
    }

    /// The same with at most `most` clients: those behind `after` in the order of the registry.
    pub(super) fn status_page(&self, after: Option<ClientId>, most: usize) -> Status {
        let ours = self.registry.iter().filter(|(_, client)| {
            client.connection.was_open() && self.service_id.includes(client.service_id)
        });
        let mut clients = ours
            .skip_while(|(id, _)| after.is_some_and(|after| id.slot() <= after.slot()))
            .peekable();
        let mut page = Vec::new();
        while page.len() < most
            && let Some((id, client)) = clients.next()
        {
            page.push(ClientStatus {
                id,
                path: client.path().to_owned(),
                remote: client.remote,
                connected: self.now.since(client.connection.since()),
                traffic: self.traffic_of(id, client),
                queued_bytes: client.queued(),
            });
        }
        Status {
            client_count: self.client_count(),
            connections: self.registry.len(),
            calls: self.calls,
            has_more: clients.peek().is_some(),
            running: self.life == Life::Running,
            uptime: self.now.since(Time::default()),
            service: StatusFields::default(),
            listen: self.listen.iter().map(ToString::to_string).collect(),
            clients: page,
        }
    }

    /// Where the server listens.
    pub fn listen_addresses(&self) -> &[ListenAddress] {
        &self.listen
    }

    /// The settings of the server.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The time of the present turn.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Whether the server is being stopped.
    pub fn is_stopping(&self) -> bool {
        self.life != Life::Running
    }

    /// Stops the server once the service's method has returned.
    pub fn stop(&mut self) {
        if self.life == Life::Running {
            self.life = Life::StopAsked;
        }
    }

    // What a service waits for beside its clients.

    /// Watches a file descriptor, which has to be non-blocking; [`Service::ready`](crate::Service::ready) tells what it
    /// is ready for. It has to be unwatched before it is closed.
    pub fn watch(&mut self, fd: impl AsFd, interest: Interest) -> io::Result<SourceId> {
        self.sources
            .watch(&self.poll, self.service_id, fd, interest.to_mio())
    }

    /// Ends what [`Context::watch`] began. No event comes after it, not even one that was under way.
    pub fn unwatch(&mut self, id: SourceId) {
        self.sources.unwatch(&self.poll, id);
    }

    /// Asks for `ready` to be called in the next turn: for a service that stops before `WouldBlock` so that others get
    /// their turn.
    pub fn again(&mut self, id: SourceId, readiness: Readiness) {
        self.sources.again(id, readiness);
    }

    /// Has [`Service::timer`](crate::Service::timer) called once, after this time.
    pub fn set_timer(&mut self, after: Duration) -> TimerId {
        self.sources.set_timer(self.service_id, self.now, after)
    }

    /// Takes a timer back. One that has run out is passed over.
    pub fn cancel_timer(&mut self, id: TimerId) {
        self.sources.cancel_timer(id);
    }
}
