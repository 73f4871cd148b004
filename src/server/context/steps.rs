//! The steps that the loop takes with a client.

use std::net::SocketAddr;
use std::time::Duration;

use super::Context;
use super::calls::date;
use crate::protocol::deflate::Codec;
use crate::protocol::handshake::Upgrade;
use crate::protocol::{
    Accept, CloseReason, Connection, Event, Input, Phase, Rejection, Request, StatusCode, Time,
    Timeout,
};
use crate::server::client::{Client, Flags, Held, ReadGate, Remote};
use crate::server::id::{ClientId, ServiceId};
use crate::server::requests::too_many_of_address;
use crate::server::service::Service;
use crate::sys::trim_heap;

/// The minimum rate, in bytes a second, at which the peer of an ending connection must take its output.
const SLOWEST_END: f64 = 1024.0;

/// How long after the end of a connection free memory is returned to the system. Many ends within this time cause one
/// return.
const TRIM_DELAY: Duration = Duration::from_millis(500);

impl Context {
    /// Opens a connection whose request was accepted.
    pub(in crate::server) fn open(
        &mut self,
        id: ClientId,
        upgrade: &Upgrade<'_>,
        accept: &Accept,
        path: &str,
        codec: Option<Codec>,
    ) {
        self.registry.admit(id, path);
        self.counters.responded(StatusCode::SWITCHING_PROTOCOLS);
        self.with_connection(id, |connection, now, out| {
            connection.open(now, upgrade, accept, out);
            if let Some(codec) = codec {
                connection.compress_with(codec);
            }
        });
    }

    /// Answers a request with an error.
    pub(in crate::server) fn reject(&mut self, id: ClientId, rejection: &Rejection) {
        if let Some(client) = self.registry.get(id) {
            log::info!("{id} refused: {rejection} remote={}", client.remote);
        }
        self.counters.refused(rejection);
        self.with_connection(id, |connection, now, out| {
            connection.reject(now, &date(), rejection, out)
        });
    }

    /// Tells a connection that has shown no token that its place is needed.
    pub(in crate::server) fn evict(&mut self, id: ClientId) {
        let phase = self
            .registry
            .get(id)
            .map(|client| client.connection.phase());
        if matches!(phase, Some(Phase::Handshaking | Phase::Body)) {
            let rejection = Rejection::unavailable("too many connections");
            self.reject(id, &rejection.because("max_connections"));
        }
    }

    /// Returns memory that is kept for reuse to the system. Called when there are no clients.
    pub(in crate::server) fn give_memory_back(&mut self) {
        self.shared.clear();
        self.trim_at.get_or_insert(self.now + TRIM_DELAY);
    }

    /// Returns the heap's free memory to the system if that is due.
    pub(in crate::server) fn trim_if_due(&mut self) {
        if self.trim_at.is_some_and(|at| self.now >= at) {
            self.trim_at = None;
            if self.registry.client_count() == 0 {
                trim_heap();
            }
        }
    }

    /// Notes for whom a proxy has made a connection. One that comes through a unix socket and does not say is anyone's.
    pub(in crate::server) fn proxied(&mut self, id: ClientId, address: Option<SocketAddr>) {
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        if let Some(address) = address {
            log::debug!("{id} is for {address}, through {}", client.remote);
            client.remote = address.into();
        } else if client.remote.is_unix() {
            client.remote = Remote::SHARED_UNIX;
        }
        self.count_connection(id);
    }

    /// Counts a connection that has to go without its peer having done what it should at the end.
    pub(in crate::server) fn count_close_timeout(&mut self, id: ClientId) {
        let closing = |client: &Client| {
            client.connection.was_open() && client.connection.phase() != Phase::Open
        };
        if self.registry.get(id).is_some_and(closing) {
            self.counters.close_timeouts += 1;
        }
    }

    /// Begins the closing handshake with an ending of any cause.
    pub(in crate::server) fn close_with(&mut self, id: ClientId, ending: CloseReason) {
        self.with_connection(id, |connection, now, out| {
            connection.close(now, ending, out)
        });
    }

    /// Lets the passed deadline of a connection do what it asks for, and sets the next.
    pub(in crate::server) fn handle_timeout(&mut self, id: ClientId) -> Timeout {
        let timeouts = self.config.timeouts;
        let mut outcome = Timeout::Continue;
        // Signs of life behind a held-back message cannot be seen. PINGs continue, to keep proxies in between from
        // timing out.
        let unseen = self.read_gate(id) == ReadGate::Shut(Held::Service);
        if let Some(gone) = self.check_stream(id) {
            return gone;
        }
        let mut pinged = false;
        self.with_connection(id, |connection, now, out| {
            if unseen {
                connection.excuse_silence(now);
            }
            outcome = connection.handle_timeout(now, &timeouts, out);
            pinged = connection.is_open() && !out.is_empty();
            if unseen {
                connection.excuse_silence(now);
            }
        });
        if pinged && let Some(client) = self.registry.get_mut(id) {
            client.mark_delivered();
        }
        outcome
    }

    /// Whether a client that has ended its direction has received everything sent to it before. Later broadcasts do not
    /// keep it connected.
    pub(in crate::server) fn has_what_was_owed(&self, id: ClientId) -> bool {
        self.registry.get(id).is_some_and(|client| {
            let owed = client.connection.owed();
            owed.is_some_and(|owed| client.delivered() >= owed)
        })
    }

    /// Whether a client whose time is up has taken output since its time began, and so gets more time: the PING or
    /// CLOSE that it must answer is queued behind that output.
    pub(in crate::server) fn has_progressed(&mut self, id: ClientId) -> bool {
        let close = self.config.timeouts.close.unwrap_or_default();
        let now = self.now;
        let Some(client) = self.registry.get_mut(id) else {
            return false;
        };
        // Any progress is a sign of life. But an ending connection only occupies a place, so it must make progress at a
        // minimum rate.
        let least = if client.connection.is_open() {
            1.0
        } else {
            (SLOWEST_END * close.as_secs_f64()).max(1.0)
        };
        let progressed = f64::from(client.measure_progress()) >= least;
        if progressed {
            client.connection.handle_progress(now);
            self.set_deadline(id);
        }
        progressed
    }

    /// Ends a stream of events whose reader has stopped taking it.
    fn check_stream(&mut self, id: ClientId) -> Option<Timeout> {
        let (now, timeouts) = (self.now, self.config.timeouts);
        let client = self.registry.get_mut(id)?;
        if client.connection.phase() != Phase::Streaming {
            return None;
        }
        if client.measure_progress() > 0 || client.is_delivered() {
            client.connection.handle_progress(now);
        }
        if client.queued() > 0 {
            client.connection.skip_comment(now);
        }
        let patience = timeouts.ping_interval? + timeouts.ping_timeout?;
        (now.since(client.connection.since()) >= patience)
            .then(|| Timeout::Gone(CloseReason::slow_consumer()))
    }

    /// Whether input was read that waits to be handled.
    pub(in crate::server) fn has_unread(&self, id: ClientId) -> bool {
        self.registry.get(id).is_some_and(Client::has_unread)
    }

    /// Takes a client's silence for work of the service: its idle time begins again.
    pub(in crate::server) fn excuse_idleness(&mut self, id: ClientId) {
        if let Some(client) = self.registry.get_mut(id) {
            client.connection.handle_message(self.now);
            self.set_deadline(id);
        }
    }

    /// Runs `change` on a connection, sends the bytes it gives, and sets the connection's next deadline.
    pub(super) fn with_connection(
        &mut self,
        id: ClientId,
        change: impl FnOnce(&mut Connection, Time, &mut Vec<u8>),
    ) {
        let (now, corked) = (self.now, self.cork.client == Some(id));
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        if corked {
            change(&mut client.connection, now, &mut self.cork.bytes);
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

    pub(in crate::server) fn set_deadline(&mut self, id: ClientId) {
        if let Some(client) = self.registry.get(id) {
            let deadline = client.connection.deadline(&self.config.timeouts);
            self.registry.set_deadline(id, deadline);
        }
    }

    /// Gives every client a fresh ping window.
    pub(in crate::server) fn restart_ping_windows(&mut self) {
        for id in self.registry.ids() {
            if let Some(client) = self.registry.get_mut(id) {
                client.connection.restart_ping_window(self.now);
                self.set_deadline(id);
            }
        }
    }

    /// Hands bytes to the corked client's connection; an event if one came of them.
    pub(in crate::server) fn receive<'a>(
        &mut self,
        id: ClientId,
        input: &mut Input<'a>,
    ) -> Option<Event<'a>> {
        let paused = self.is_paused(self.service_id);
        let client = self.registry.get_mut(id)?;
        let (now, shared, out) = (self.now, &mut self.shared, &mut self.cork.bytes);
        let event = if client.is_held(paused) {
            client.connection.receive_control(now, input, shared, out)
        } else {
            client.connection.receive(now, input, shared, out)
        };
        if matches!(event, Some(Event::Message(_))) && !self.admit_message(id) {
            // What else it sends is thrown away, but its CLOSE is looked for.
            return self.receive(id, input);
        }
        self.cork.more_input = !input.is_empty();
        event
    }

    /// Whether a long message of a client is being decompressed.
    pub(in crate::server) fn is_inflating(&self, id: ClientId) -> bool {
        let client = self.registry.get(id);
        client.is_some_and(|client| client.connection.is_inflating())
    }

    /// Whether a flag of a client is set.
    pub(in crate::server) fn has(&self, id: ClientId, flag: u8) -> bool {
        self.registry
            .get(id)
            .is_some_and(|client| client.flags.has(flag))
    }

    /// Takes bytes that were read to their place in a message, and tells the service if they were its last.
    pub(in crate::server) fn receive_in_room(
        &mut self,
        service: &mut impl Service,
        id: ClientId,
        count: usize,
    ) {
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        let event = client.connection.receive_in_room(self.now, count);
        if let Some(Event::Message(payload)) = event {
            self.cork(id);
            if self.admit_message(id) {
                self.cork.more_input = false;
                service.message(self, id, payload.as_message());
            }
            payload.recycle(&mut self.shared.buffers);
            self.uncork(id);
        }
    }

    /// Counts a message. One over the rate limit closes its client, and is not told.
    fn admit_message(&mut self, id: ClientId) -> bool {
        let Some(client) = self.registry.get_mut(id) else {
            return false;
        };
        client.traffic.messages_in += 1;
        let rate = self.config.rate_limit;
        let over = rate.is_some_and(|rate| client.connection.is_over_rate(rate, self.now));
        if over {
            let ending = CloseReason::rate_limit();
            client
                .connection
                .close(self.now, ending, &mut self.cork.bytes);
        }
        !over
    }

    /// Keeps a client whose peer has ended its direction, so that the service can still send to it, as long as it takes
    /// output within `patience`.
    pub(in crate::server) fn end_input(&mut self, id: ClientId, patience: Duration) {
        if let Some(client) = self.registry.get_mut(id) {
            let owed = client.traffic.bytes_out + client.queued() as u64;
            client.connection.end_input(self.now, patience, owed);
            client.mark_delivered();
            self.set_deadline(id);
        }
        // A close that has already been decided needs no answer of the peer.
        self.settle(id);
    }

    /// Ends a connection whose peer has ended its direction. Returns whether it is over: not while there is output that
    /// the peer may still read, until the close timeout.
    pub(in crate::server) fn abandon_input(&mut self, id: ClientId) -> bool {
        self.flush(id);
        let Some(client) = self.registry.get_mut(id) else {
            return true;
        };
        if client.queued() == 0 {
            return true;
        }
        client.connection.abandon(self.now, CloseReason::eof());
        client.mark_delivered();
        self.set_deadline(id);
        false
    }

    /// Takes input that was held back.
    pub(in crate::server) fn take_unread(&mut self, id: ClientId) -> Vec<u8> {
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
    pub(in crate::server) fn keep_unread(&mut self, id: ClientId, input: &[u8]) {
        if let Some(client) = self.registry.get_mut(id) {
            let backlog = client.backlog.get_or_insert_default();
            debug_assert!(backlog.unread.is_empty());
            backlog.unread = input.to_vec();
        }
    }

    /// Whether anything may stand between a client and its input: a pause, output that waits, input that was held back.
    pub(in crate::server) fn is_hindered(&self, id: ClientId) -> bool {
        self.registry.get(id).is_some_and(|client| {
            client.backlog.is_some()
                || client.connection.is_inflating()
                || self.holds_input_of(client)
        })
    }

    /// What may be read from a client now. What is not read stays where it is.
    pub(in crate::server) fn read_gate(&self, id: ClientId) -> ReadGate {
        self.registry.get(id).map_or(ReadGate::Open, |client| {
            client.read_gate(self.is_paused(client.service_id))
        })
    }

    /// Whether a call of this client waits for its answer.
    pub(in crate::server) fn is_answering(&self, id: ClientId) -> bool {
        self.registry
            .get(id)
            .is_some_and(|client| client.connection.is_answering())
    }

    /// Whether a request is let in.
    pub(in crate::server) fn check_access(
        &self,
        id: ClientId,
        request: &Request<'_>,
    ) -> Result<(), Rejection> {
        let unix = self.remote(id).and_then(Remote::user).is_some();
        self.config.access.check(request, &self.listen, unix)
    }

    /// Records whether a request was authenticated. An unauthenticated connection is not kept alive for further
    /// requests.
    pub(in crate::server) fn note_authentication(&mut self, id: ClientId, request: &Request<'_>) {
        let unix = self.remote(id).and_then(Remote::user).is_some();
        let trusted = self.config.access.authenticates(request, unix);
        if let Some(client) = self.registry.get_mut(id) {
            client.flags.set(Flags::TRUSTED, trusted);
            if !trusted {
                client.connection.end_keep_alive();
            }
        }
    }

    /// Counts a connection whose address has just become known, and refuses it if its address has too many. An address
    /// may have twice as many connections as clients.
    pub(in crate::server) fn count_connection(&mut self, id: ClientId) {
        let Some(most) = self.config.max_clients_per_address else {
            return;
        };
        if self.registry.count_connection(id) > most.saturating_mul(2) {
            self.reject(id, &too_many_of_address());
            // Where room is scarce, the peer is not waited for.
            if self.registry.len() > self.config.max_connections() / 2 {
                self.doom(id, CloseReason::eof());
            }
        }
    }

    /// Whether there are as many clients as there may be: connections, and calls that wait for answers.
    pub(in crate::server) fn is_full(&self) -> bool {
        self.registry.client_count() + self.calls >= self.config.max_clients
    }

    /// Whether the address of a connection has as many clients as it may have, calls that wait for answers included. A
    /// unix socket has no address.
    pub(in crate::server) fn has_too_many(&self, id: ClientId) -> bool {
        let remote = self.remote(id).filter(|remote| !remote.is_unix());
        let (Some(most), Some(remote)) = (self.config.max_clients_per_address, remote) else {
            return false;
        };
        self.registry.count_of(remote) >= most
    }

    /// Whether a connection has not made a request before this one.
    pub(in crate::server) fn is_new(&self, id: ClientId) -> bool {
        self.registry
            .get(id)
            .is_some_and(|client| client.connection.is_new())
    }

    /// Notes what a request asks for, and of which service. A server that stops answers no second one.
    pub(in crate::server) fn begin_request(
        &mut self,
        id: ClientId,
        request: &Request<'_>,
        service_id: ServiceId,
    ) {
        let stopping = self.is_stopping();
        self.service_id = service_id;
        let origin = self.config.access.known_origin(request, &self.listen);
        if let Some(client) = self.registry.get_mut(id) {
            client.service_id = service_id;
            client.connection.begin_request(request, origin.as_deref());
            if stopping {
                client.connection.end_keep_alive();
            }
        }
    }

    /// Takes a request as a call. Returns whether it is there whole.
    pub(in crate::server) fn begin_call(
        &mut self,
        id: ClientId,
        request: &Request<'_>,
        head: &[u8],
        max_body: usize,
    ) -> Result<bool, Rejection> {
        let max_body = max_body.min(self.config.limits.max_message);
        let mut whole = Ok(false);
        self.with_connection(id, |connection, now, out| {
            whole = connection.begin_call(now, request, head, max_body, out);
        });
        whole
    }

    /// Whether the service takes no data messages from this client.
    pub(super) fn holds_input_of(&self, client: &Client) -> bool {
        client.is_held(self.is_paused(client.service_id))
    }

    /// Whether input is not taken from the clients of a service.
    pub(in crate::server) fn is_paused(&self, service_id: ServiceId) -> bool {
        self.paused & (ServiceId::ALL.bit() | service_id.bit()) != 0
    }

    /// Puts the service to work whose client this is.
    pub(in crate::server) fn enter(&mut self, id: ClientId) {
        self.service_id = self
            .registry
            .get(id)
            .map_or(ServiceId::ALL, |client| client.service_id);
    }
}
