//! The steps that the loop takes with a client.

use std::net::SocketAddr;

use super::Context;
use super::calls::date;
use crate::protocol::deflate::Codec;
use crate::protocol::handshake::Upgrade;
use crate::protocol::{
    Accept, Connection, Disconnect, Event, Input, Phase, Refusal, Request, StatusCode, Time,
    Timeout,
};
use crate::server::client::{Client, Remote};
use crate::server::id::{ClientId, Mount};
use crate::server::service::Service;

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
    pub(in crate::server) fn refuse(&mut self, id: ClientId, refusal: &Refusal) {
        if let Some(client) = self.registry.get(id) {
            log::info!("{id} refused: {refusal} remote={}", client.remote);
        }
        self.counters.refused(refusal);
        self.with_connection(id, |connection, now, out| {
            connection.refuse(now, &date(), refusal, out)
        });
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
    pub(in crate::server) fn close_with(&mut self, id: ClientId, ending: Disconnect) {
        self.with_connection(id, |connection, now, out| {
            connection.close(now, ending, out)
        });
    }

    /// Lets the passed deadline of a connection do what it asks for, and sets the next.
    pub(in crate::server) fn handle_timeout(&mut self, id: ClientId) -> Timeout {
        let timeouts = self.config.timeouts;
        let mut outcome = Timeout::Continue;
        // What a client does whose input is not taken is not being seen. PINGs go on, for the proxies in between.
        let unseen = self.holds_input(id);
        self.look_for_progress(id);
        if let Some(gone) = self.check_stream(id) {
            return gone;
        }
        self.with_connection(id, |connection, now, out| {
            if unseen {
                connection.excuse_silence(now);
            }
            outcome = connection.handle_timeout(now, &timeouts, out);
            if unseen {
                connection.excuse_silence(now);
            }
        });
        outcome
    }

    /// Who takes what the socket holds is alive, although nothing of what waits behind it has moved: the system's own
    /// buffer can be larger than what a slow client takes within a time limit.
    fn look_for_progress(&mut self, id: ClientId) {
        let now = self.now;
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        let Some(backlog) = client
            .backlog
            .as_deref_mut()
            .filter(|backlog| backlog.queued() > 0)
        else {
            return;
        };
        let unsent = client.stream.unsent();
        let before = std::mem::replace(&mut backlog.unsent, unsent);
        if unsent.is_some() && before.is_none_or(|before| unsent < Some(before)) {
            client.connection.handle_written(now);
            client.connection.restart_ping_window(now);
        }
    }

    /// Ends a stream of events whose reader has stopped taking it.
    fn check_stream(&mut self, id: ClientId) -> Option<Timeout> {
        let (now, timeouts) = (self.now, self.config.timeouts);
        let client = self.registry.get_mut(id)?;
        if client.connection.phase() != Phase::Streaming || client.queued() == 0 {
            return None;
        }
        client.connection.skip_comment(now);
        let patience = timeouts.ping_interval? + timeouts.ping_timeout?;
        (now.since(client.connection.since()) >= patience)
            .then(|| Timeout::Gone(Disconnect::slow_consumer()))
    }

    /// Whether a caller has left although it has sent more than its call: what it sent hides its end.
    pub(in crate::server) fn has_left(&self, id: ClientId) -> bool {
        self.registry.get(id).is_some_and(|client| client.hung_up)
            && self.is_answering(id)
            && self.has_unread(id)
    }

    /// Whether input was read that waits to be handled.
    pub(in crate::server) fn has_unread(&self, id: ClientId) -> bool {
        let backlog = self
            .registry
            .get(id)
            .and_then(|client| client.backlog.as_ref());
        backlog.is_some_and(|backlog| !backlog.unread.is_empty())
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
        let client = self.registry.get_mut(id)?;
        let event =
            client
                .connection
                .receive(self.now, input, &mut self.shared, &mut self.cork.bytes);
        if matches!(event, Some(Event::Message(_))) && !self.admit_message(id) {
            // What else it sends is thrown away, but its CLOSE is looked for.
            return self.receive(id, input);
        }
        self.cork.more_input = !input.is_empty();
        event
    }

    /// Whether a client's socket may have more to read.
    pub(in crate::server) fn is_readable(&self, id: ClientId) -> bool {
        self.registry.get(id).is_some_and(|client| client.readable)
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
            let ending = Disconnect::rate_limit();
            client
                .connection
                .close(self.now, ending, &mut self.cork.bytes);
        }
        !over
    }

    /// The peer has ended its direction. Returns whether the connection is over: not while there is output that the
    /// peer may still read, until the close timeout.
    pub(in crate::server) fn handle_eof(&mut self, id: ClientId) -> bool {
        self.flush(id);
        let Some(client) = self.registry.get_mut(id) else {
            return true;
        };
        (client.readable, client.hung_up) = (false, false);
        if client.queued() == 0 {
            return true;
        }
        client.connection.abandon(self.now, Disconnect::eof());
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
        self.registry
            .get(id)
            .is_some_and(|client| client.backlog.is_some() || self.holds_input_of(client))
    }

    /// Whether this client's input is not to be taken now. What is there stays noted. While a call is answered, the
    /// next one waits, but the end of the connection is looked for.
    pub(in crate::server) fn holds_back(&self, id: ClientId) -> bool {
        self.holds_input(id)
            || self.is_congested(id)
            || (self.is_answering(id) && self.has_unread(id))
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
    ) -> Result<(), Refusal> {
        let unix = self.remote(id).and_then(Remote::user).is_some();
        self.config.access.check(request, &self.listen, unix)
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
        mount: Mount,
    ) {
        let stopping = self.is_stopping();
        self.mount = mount;
        let origin = self.config.access.known_origin(request, &self.listen);
        if let Some(client) = self.registry.get_mut(id) {
            client.mount = mount;
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
    ) -> Result<bool, Refusal> {
        let max_body = self.config.limits.max_message;
        let mut whole = Ok(false);
        self.with_connection(id, |connection, now, out| {
            whole = connection.begin_call(now, request, head, max_body, out);
        });
        whole
    }

    /// Whether the service asked for no more input from this client.
    pub(super) fn holds_input(&self, id: ClientId) -> bool {
        // What the last bytes of one that has left are followed by is its end, which is not to be missed.
        self.registry
            .get(id)
            .is_some_and(|client| self.holds_input_of(client))
    }

    pub(super) fn holds_input_of(&self, client: &Client) -> bool {
        // Requests are read always: there are some that the service has nothing to do with.
        (client.connection.was_open() && self.is_paused(client.mount))
            || (client.held && !client.hung_up)
    }

    /// Whether input is not taken from the clients of a service.
    pub(in crate::server) fn is_paused(&self, mount: Mount) -> bool {
        self.paused & (Mount::WHOLE.bit() | mount.bit()) != 0
    }

    /// Takes input from every client, whatever services asked for.
    pub(in crate::server) fn take_all_input(&mut self) {
        self.mount = Mount::WHOLE;
        self.paused = 0;
        self.take_input_again(|_| true);
        for id in self.registry.ids() {
            self.set_held(id, false);
        }
    }

    /// Puts the service to work whose client this is.
    pub(in crate::server) fn enter(&mut self, id: ClientId) {
        self.mount = self
            .registry
            .get(id)
            .map_or(Mount::WHOLE, |client| client.mount);
    }
}
