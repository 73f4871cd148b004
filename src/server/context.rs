//! The state of the loop, and all that a service may do to it.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use mio::Interest;

use super::client::{Client, Remote};
use super::config::Config;
use super::id::{ClientId, SourceId, TimerId};
use super::registry::Registry;
use super::service::Readiness;
use super::sources::Sources;
use super::status::{ClientStatus, Status};
use crate::protocol::handshake::Upgrade;
use crate::protocol::{
    Accept, CloseCode, Connection, Disconnect, Event, HeaderBytes, Input, Message, Phase, Refusal,
    Time, Timeout,
};

/// Replies of one read are gathered up to this size before they are written.
const CORK: usize = 128 << 10;

/// A payload of this size is written from where it lies instead of being gathered.
const DIRECT: usize = 16 << 10;

/// The most that is written to one client in one turn of the loop.
const WRITE_PER_TURN: usize = 1 << 20;

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

/// Whether a message of `size` bytes may be added to `waiting` bytes of a client's output.
fn fits(waiting: usize, size: usize, config: &Config) -> bool {
    waiting <= config.soft_outbound || waiting + size <= config.max_outbound
}

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
    pub(super) listen: Vec<SocketAddr>,
    /// Output for the client that is being read, written in one piece afterwards. Not empty only while `corked`.
    cork: Vec<u8>,
    corked: Option<ClientId>,
    /// Clients that have output to write at the end of the turn.
    dirty: Vec<ClientId>,
    /// Clients that are to be disconnected as soon as the service's method has returned.
    doomed: Vec<(ClientId, Disconnect)>,
    /// Clients whose output has drained, to be told to the service.
    drained: Vec<ClientId>,
    /// Clients with more input, to be read in the next turn.
    ready: Vec<ClientId>,
    /// Whether no client's input is taken at all.
    paused: bool,
}

impl Context {
    pub(super) fn new(
        config: Config,
        poll: mio::Registry,
        listen: Vec<SocketAddr>,
        now: Time,
    ) -> Self {
        Self {
            config,
            registry: Registry::new(now),
            poll,
            sources: Sources::default(),
            now,
            life: Life::Running,
            listen,
            cork: Vec::new(),
            corked: None,
            dirty: Vec::new(),
            doomed: Vec::new(),
            drained: Vec::new(),
            ready: Vec::new(),
            paused: false,
        }
    }

    // Clients.

    /// Sends a message to a client. It leaves at the end of the present turn at the latest, together with everything
    /// else for the same client.
    pub fn send(&mut self, id: ClientId, message: Message<'_>) -> Result<(), SendError> {
        let payload = message.as_bytes();
        if !self.has_room(id, payload.len()) {
            // Perhaps nothing was offered to the socket yet: only what it does not take counts.
            self.offer(id);
            if !self.has_room(id, payload.len()) {
                self.cut_off(id);
                return Err(SendError::SlowConsumer);
            }
        }
        let client = self.registry.get_mut(id).ok_or(SendError::Gone)?;
        if !client.connection.is_open() {
            return Err(SendError::Closing);
        }
        client.traffic.messages_out += 1;
        client.connection.handle_message_sent(self.now);

        let header = HeaderBytes::new(message.opcode(), payload.len());
        if payload.len() >= DIRECT {
            self.write(id, &[header.as_slice(), payload]);
        } else if self.corked == Some(id) {
            self.cork.extend_from_slice(header.as_slice());
            self.cork.extend_from_slice(payload);
            if self.cork.len() >= CORK {
                self.write_cork(id);
            }
        } else {
            self.queue(id, &[header.as_slice(), payload]);
        }
        Ok(())
    }

    /// Sends a message to every client for which `to` says so, given its id and path, and returns how many that were.
    /// The frame is encoded once, and clients that do not keep up share its bytes.
    pub fn broadcast(
        &mut self,
        message: Message<'_>,
        mut to: impl FnMut(ClientId, &str) -> bool,
    ) -> usize {
        let payload = message.as_bytes();
        let header = HeaderBytes::new(message.opcode(), payload.len());
        let frame: Arc<[u8]> = [header.as_slice(), payload].concat().into();
        let (now, config) = (self.now, &self.config);
        let mut sent = 0;
        let mut full = Vec::new();

        for (id, client) in self.registry.iter_mut() {
            if !client.connection.is_open() || !to(id, &client.path) {
                continue;
            }
            let corked = self.corked == Some(id);
            let waiting = client.queued() + if corked { self.cork.len() } else { 0 };
            if !fits(waiting, payload.len(), config) {
                full.push(id);
                continue;
            }
            sent += 1;
            client.traffic.messages_out += 1;
            client.connection.handle_message_sent(now);
            if corked {
                self.cork.extend_from_slice(&frame);
                continue;
            }
            let written = if client.queued() > 0 {
                Ok(0)
            } else {
                client.stream.write(&[IoSlice::new(&frame)])
            };
            match written {
                Ok(written) => {
                    client.traffic.bytes_out += written as u64;
                    if written < frame.len() {
                        let backlog = client.backlog.get_or_insert_default();
                        // A write that was tried and came back short leaves the socket full.
                        backlog.blocked |= backlog.queued() == 0;
                        backlog.push_shared(Arc::clone(&frame), written);
                        backlog.congested |= backlog.queued() > config.soft_outbound;
                    }
                }
                Err(error) => {
                    let ending = Disconnect::write_error(&error);
                    client.connection.abandon(now, ending.clone());
                    self.doomed.push((id, ending));
                }
            }
        }
        // These get another chance, and are cut off if they do not take it.
        for id in full {
            sent += usize::from(self.send(id, message).is_ok());
        }
        sent
    }

    /// Begins the closing handshake with a client. A code that may not be sent, or a reason over 123 bytes, is an
    /// error of the caller and closes with what can be said.
    pub fn close(
        &mut self,
        id: ClientId,
        code: CloseCode,
        reason: impl Into<String>,
    ) -> Result<(), SendError> {
        let client = self.registry.get(id).ok_or(SendError::Gone)?;
        if !client.connection.is_open() {
            return Err(SendError::Closing);
        }
        self.close_with(id, Disconnect::by_service(code, reason.into()));
        Ok(())
    }

    /// Whether more output waits for this client than the soft limit. [`Service::drained`](crate::Service::drained)
    /// tells when that is over.
    pub fn is_congested(&self, id: ClientId) -> bool {
        self.registry.get(id).is_some_and(Client::is_congested)
    }

    /// The clients that can be sent to.
    pub fn clients(&self) -> Vec<ClientId> {
        self.registry
            .iter()
            .filter(|(_, client)| client.connection.is_open())
            .map(|(id, _)| id)
            .collect()
    }

    /// The number of clients, those that are being closed included.
    pub fn client_count(&self) -> usize {
        self.registry.client_count()
    }

    /// Where a client's connection comes from.
    pub fn remote(&self, id: ClientId) -> Option<Remote> {
        self.registry.get(id).map(|client| client.remote)
    }

    /// Stops taking input from clients, new ones included, or goes on with it: for a service whose own output does not
    /// keep up. While paused, the silence of a client is not held against it.
    pub fn set_paused(&mut self, paused: bool) {
        // A stopping server only waits for the answers to CLOSE, and they have to be read.
        let paused = paused && !self.is_stopping();
        if self.paused == paused {
            return;
        }
        self.paused = paused;
        if !paused {
            for (id, client) in self.registry.iter_mut() {
                client.connection.excuse_silence(self.now);
                Self::mark_ready(&mut self.ready, id, client);
            }
            self.restart_ping_windows();
        }
    }

    // The server.

    /// What the server says about itself now.
    pub fn status(&self) -> Status {
        let clients = self
            .registry
            .iter()
            .filter(|(_, client)| client.connection.was_open());
        Status {
            running: self.life == Life::Running,
            uptime: self.now.since(Time::default()),
            listen: self.listen.iter().map(ToString::to_string).collect(),
            clients: clients
                .map(|(id, client)| ClientStatus {
                    id,
                    path: client.path.to_string(),
                    remote: client.remote,
                    connected: self.now.since(client.connection.since()),
                    traffic: client.traffic,
                    queued_bytes: client.queued(),
                })
                .collect(),
        }
    }

    /// The addresses the server listens on.
    pub fn listen_addresses(&self) -> &[SocketAddr] {
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
        self.sources.watch(&self.poll, fd, interest)
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
        self.sources.set_timer(self.now, after)
    }

    /// Takes a timer back. One that has run out is passed over.
    pub fn cancel_timer(&mut self, id: TimerId) {
        self.sources.cancel_timer(id);
    }

    // From here on: for the loop.

    /// Opens a connection whose request was accepted.
    pub(super) fn open(
        &mut self,
        id: ClientId,
        upgrade: &Upgrade<'_>,
        accept: &Accept,
        path: &str,
    ) {
        self.registry.admit(id, path);
        self.with_connection(id, |connection, now, out| {
            connection.open(now, upgrade, accept, out)
        });
    }

    /// Answers a request with an error.
    pub(super) fn refuse(&mut self, id: ClientId, refusal: &Refusal) {
        if let Some(client) = self.registry.get(id) {
            log::info!("{id} refused: {refusal} remote={}", client.remote);
        }
        self.with_connection(id, |connection, now, out| {
            connection.refuse(now, refusal, out)
        });
    }

    /// Begins the closing handshake with an ending of any cause.
    pub(super) fn close_with(&mut self, id: ClientId, ending: Disconnect) {
        self.with_connection(id, |connection, now, out| {
            connection.close(now, ending, out)
        });
    }

    /// Lets the passed deadline of a connection do what it asks for, and sets the next.
    pub(super) fn handle_timeout(&mut self, id: ClientId) -> Timeout {
        let timeouts = self.config.timeouts;
        let mut outcome = Timeout::Continue;
        if self.paused
            && let Some(client) = self.registry.get_mut(id)
        {
            // What it does is not being seen. PINGs go on, for the proxies in between.
            client.connection.excuse_silence(self.now);
        }
        self.with_connection(id, |connection, now, out| {
            outcome = connection.handle_timeout(now, &timeouts, out)
        });
        outcome
    }

    /// Runs `change` on a connection, sends the bytes it gives, and sets the connection's next deadline.
    fn with_connection(
        &mut self,
        id: ClientId,
        change: impl FnOnce(&mut Connection, Time, &mut Vec<u8>),
    ) {
        let (now, corked) = (self.now, self.corked == Some(id));
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        if corked {
            change(&mut client.connection, now, &mut self.cork);
        } else {
            let mut out = Vec::new();
            change(&mut client.connection, now, &mut out);
            if !out.is_empty() {
                self.write(id, &[&out]);
            }
            self.settle(id);
        }
        self.set_deadline(id);
    }

    pub(super) fn set_deadline(&mut self, id: ClientId) {
        if let Some(client) = self.registry.get(id) {
            let deadline = client.connection.deadline(&self.config.timeouts);
            self.registry.set_deadline(id, deadline);
        }
    }

    /// Gives every client a fresh ping window.
    pub(super) fn restart_ping_windows(&mut self) {
        for id in self.registry.ids() {
            if let Some(client) = self.registry.get_mut(id) {
                client.connection.restart_ping_window(self.now);
                self.set_deadline(id);
            }
        }
    }

    /// From here to `uncork`, output for this client is gathered.
    pub(super) fn cork(&mut self, id: ClientId) {
        debug_assert!(self.corked.is_none() && self.cork.is_empty());
        self.corked = Some(id);
    }

    /// Hands bytes to the corked client's connection; an event if one came of them.
    pub(super) fn receive<'a>(&mut self, id: ClientId, input: &mut Input<'a>) -> Option<Event<'a>> {
        let client = self.registry.get_mut(id)?;
        let event = client
            .connection
            .receive(self.now, input, &self.config.limits, &mut self.cork);
        if let Some(Event::Message(_)) = event {
            client.traffic.messages_in += 1;
            if client.is_over_rate(&self.config, self.now) {
                client
                    .connection
                    .close(self.now, Disconnect::rate_limit(), &mut self.cork);
                // What else it sends is thrown away, but its CLOSE is looked for.
                return self.receive(id, input);
            }
        }
        event
    }

    /// Whether the corked client's input has to wait: its output is over the soft limit, or the service asked for a
    /// pause.
    pub(super) fn has_to_wait(&mut self, id: ClientId) -> bool {
        if self.cork.len() >= CORK {
            self.write_cork(id);
        }
        self.paused || self.is_congested(id)
    }

    /// Writes what was gathered.
    pub(super) fn uncork(&mut self, id: ClientId) {
        self.write_cork(id);
        self.corked = None;
        if self.cork.capacity() > 2 * CORK {
            self.cork = Vec::new();
        }
        self.settle(id);
    }

    fn write_cork(&mut self, id: ClientId) {
        if self.cork.is_empty() {
            return;
        }
        let cork = std::mem::take(&mut self.cork);
        self.corked = None;
        self.write(id, &[&cork]);
        self.corked = Some(id);
        self.cork = cork;
        self.cork.clear();
    }

    /// Writes whole frames, after what was gathered for the same client; what the socket does not take waits.
    fn write(&mut self, id: ClientId, parts: &[&[u8]]) {
        if self.corked == Some(id) && !self.cork.is_empty() {
            let cork = std::mem::take(&mut self.cork);
            let mut all = vec![&*cork];
            all.extend_from_slice(parts);
            self.write_now(id, &all);
            self.cork = cork;
            self.cork.clear();
        } else {
            self.write_now(id, parts);
        }
    }

    fn write_now(&mut self, id: ClientId, parts: &[&[u8]]) {
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        if client.queued() > 0 {
            return self.queue(id, parts);
        }
        let total = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut slices = [IoSlice::new(&[]); 4];
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        match client.stream.write(&slices[..parts.len()]) {
            Ok(written) => {
                client.traffic.bytes_out += written as u64;
                if written < total {
                    let backlog = client.backlog.get_or_insert_default();
                    backlog.push(parts, written);
                    backlog.blocked = true;
                    backlog.congested |= backlog.queued() > self.config.soft_outbound;
                }
            }
            Err(error) => self.doom(id, Disconnect::write_error(&error)),
        }
    }

    /// Queues whole frames, to be written at the end of the turn.
    fn queue(&mut self, id: ClientId, parts: &[&[u8]]) {
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        let backlog = client.backlog.get_or_insert_default();
        backlog.push(parts, 0);
        backlog.congested |= backlog.queued() > self.config.soft_outbound;
        if backlog.blocked {
            return;
        }
        // What a service sends in one go may be more than the limit although the client would read it.
        if backlog.queued() >= CORK {
            self.flush(id);
        } else if !std::mem::replace(&mut backlog.dirty, true) {
            self.dirty.push(id);
        }
    }

    /// Writes what waits for a client, up to a turn's worth.
    pub(super) fn flush(&mut self, id: ClientId) {
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        let Some(backlog) = client.backlog.as_deref_mut() else {
            return self.settle(id);
        };
        backlog.dirty = false;
        let mut budget = WRITE_PER_TURN;
        while backlog.queued() > 0 {
            match backlog.write(&mut client.stream) {
                Ok(written) => {
                    client.traffic.bytes_out += written as u64;
                    // A client that reads is alive, even while its own frames wait to be read.
                    if written > 0 && backlog.congested {
                        client.connection.restart_ping_window(self.now);
                    }
                    if backlog.blocked {
                        break;
                    }
                    budget = budget.saturating_sub(written);
                    if budget == 0 && backlog.queued() > 0 {
                        backlog.dirty = true;
                        self.dirty.push(id);
                        return;
                    }
                }
                Err(error) => return self.doom(id, Disconnect::write_error(&error)),
            }
        }
        if backlog.queued() == 0 {
            if std::mem::take(&mut backlog.congested) {
                self.drained.push(id);
                Self::mark_ready(&mut self.ready, id, client);
            }
            if client
                .backlog
                .as_ref()
                .is_some_and(|backlog| backlog.is_empty())
            {
                client.backlog = None;
            }
        }
        self.settle(id);
    }

    /// Does what the phase asks for once the output is written.
    fn settle(&mut self, id: ClientId) {
        let Some(client) = self.registry.get(id) else {
            return;
        };
        let phase = client.connection.phase();
        if phase == Phase::Open {
            return;
        }
        match phase {
            _ if client.queued() > 0 => {}
            Phase::Finished => {
                let ending = client
                    .connection
                    .ending()
                    .cloned()
                    .unwrap_or_else(Disconnect::eof);
                self.doomed.push((id, ending));
            }
            // What the peer still sends is read and thrown away: closing with unread data would reset the connection,
            // and the peer might never see why it ended.
            Phase::Refused | Phase::Failed => client.stream.end_output(),
            Phase::Handshaking | Phase::Open | Phase::Closing => {}
        }
        self.set_deadline(id);
    }

    /// Ends a client that left too much unread: what was not begun is dropped, so that CLOSE comes after at most the
    /// frames that were.
    fn cut_off(&mut self, id: ClientId) {
        if self.corked == Some(id) {
            self.write_cork(id);
        }
        let client = self.registry.get_mut(id);
        if let Some(backlog) = client.and_then(|client| client.backlog.as_deref_mut()) {
            backlog.drop_unbegun();
        }
        self.close_with(id, Disconnect::slow_consumer());
        self.offer(id);
    }

    /// Whether a message of this size may wait for a client. One that is not open is for others to refuse.
    fn has_room(&self, id: ClientId, size: usize) -> bool {
        let Some(client) = self
            .registry
            .get(id)
            .filter(|client| client.connection.is_open())
        else {
            return true;
        };
        let corked = if self.corked == Some(id) {
            self.cork.len()
        } else {
            0
        };
        fits(corked + client.queued(), size, &self.config)
    }

    /// Offers the socket all that waits for a client, unless it is known to be full.
    fn offer(&mut self, id: ClientId) {
        if self.corked == Some(id) {
            self.write_cork(id);
        }
        let waits = |client: &Client| {
            client
                .backlog
                .as_ref()
                .is_some_and(|backlog| !backlog.blocked)
        };
        if self.registry.get(id).is_some_and(waits) {
            self.flush(id);
        }
    }

    /// Marks a client whose connection is dead. The first reason stands.
    fn doom(&mut self, id: ClientId, ending: Disconnect) {
        if let Some(client) = self.registry.get_mut(id) {
            client.backlog = None;
            client.connection.abandon(self.now, ending.clone());
            self.doomed.push((id, ending));
        }
    }

    /// The peer has ended its direction. Returns whether the connection is over: not while there is output that the
    /// peer may still read, until the close timeout.
    pub(super) fn handle_eof(&mut self, id: ClientId) -> bool {
        self.flush(id);
        let Some(client) = self.registry.get_mut(id) else {
            return true;
        };
        (client.readable, client.hung_up) = (false, false);
        if client.queued() == 0 || !client.connection.was_open() {
            return true;
        }
        client.connection.abandon(self.now, Disconnect::eof());
        self.set_deadline(id);
        false
    }

    /// Takes input that was held back.
    pub(super) fn take_unread(&mut self, id: ClientId) -> Vec<u8> {
        let Some(client) = self.registry.get_mut(id) else {
            return Vec::new();
        };
        let Some(backlog) = client.backlog.as_deref_mut() else {
            return Vec::new();
        };
        let unread = std::mem::take(&mut backlog.unread);
        if backlog.is_empty() {
            client.backlog = None;
        }
        unread
    }

    /// Holds input back.
    pub(super) fn keep_unread(&mut self, id: ClientId, input: &[u8]) {
        if let Some(client) = self.registry.get_mut(id)
            && !input.is_empty()
        {
            let backlog = client.backlog.get_or_insert_default();
            debug_assert!(backlog.unread.is_empty());
            backlog.unread = input.to_vec();
        }
    }

    /// Whether this client's input is not to be taken now. What is there stays noted.
    pub(super) fn holds_back(&self, id: ClientId) -> bool {
        self.paused || self.is_congested(id)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Has a client read again in the next turn.
    pub(super) fn read_again(&mut self, id: ClientId) {
        if let Some(client) = self.registry.get_mut(id) {
            Self::mark_ready(&mut self.ready, id, client);
        }
    }

    fn mark_ready(ready: &mut Vec<ClientId>, id: ClientId, client: &mut Client) {
        let has_input = client.readable
            || client
                .backlog
                .as_ref()
                .is_some_and(|backlog| !backlog.unread.is_empty());
        if has_input && !std::mem::replace(&mut client.in_ready, true) {
            ready.push(id);
        }
    }

    pub(super) fn take_ready(&mut self) -> Vec<ClientId> {
        let ready = std::mem::take(&mut self.ready);
        for id in &ready {
            if let Some(client) = self.registry.get_mut(*id) {
                client.in_ready = false;
            }
        }
        ready
    }

    pub(super) fn take_dirty(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.dirty)
    }

    pub(super) fn pop_doomed(&mut self) -> Option<(ClientId, Disconnect)> {
        self.doomed.pop()
    }

    pub(super) fn pop_drained(&mut self) -> Option<ClientId> {
        self.drained.pop()
    }

    /// Whether something waits for the next turn, so that the loop must not sleep.
    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty()
            || !self.dirty.is_empty()
            || !self.doomed.is_empty()
            || self.life == Life::StopAsked
    }

    /// When the loop has to turn at the latest.
    pub(super) fn next_turn(&self) -> Option<Time> {
        let until = match self.life {
            Life::Draining { until } | Life::Finishing { until } => Some(until),
            Life::Running | Life::StopAsked | Life::Over => None,
        };
        [
            self.registry.next_deadline(),
            self.sources.next_turn(),
            until,
        ]
        .into_iter()
        .flatten()
        .min()
    }
}
