//! What a service does its work with.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use super::address::ListenAddress;
use super::client::{Client, Remote};
use super::config::Config;
use super::core::Core;
use super::error::SendError;
use super::id::{ClientId, ServiceId, SourceId, TimerId};
use super::interest::Interest;
use super::policy::Principal;
use super::service::Readiness;
use super::status::Status;
use crate::protocol::{CloseCode, Message, Response, Time};

/// The server as a service sees it. Every method of a [`Service`](crate::Service) is given it.
///
/// A service sees only its own clients. Nothing here removes a client: one that is closed, or whose socket turns out to
/// be dead, is removed after the service's method has returned, and sending to it fails until then.
#[derive(Debug)]
pub struct Context {
    pub(super) core: Core,
}

impl Context {
    // Clients.

    /// Sends a message. It leaves at the end of the present turn at the latest, together with the client's other output.
    /// A client that cannot be sent to is skipped: its end is reported in any case.
    #[inline(never)]
    pub fn send<'m>(&mut self, id: ClientId, message: impl Into<Message<'m>>) {
        let _ = self.try_send(id, message);
    }

    /// Sends a message as [`Context::send`] does, and returns why it could not be sent.
    #[inline(always)]
    pub fn try_send<'m>(
        &mut self,
        id: ClientId,
        message: impl Into<Message<'m>>,
    ) -> Result<(), SendError> {
        let (client, env) = self.core.own(id).ok_or(SendError::Gone)?;
        client.push(env, message.into())
    }

    /// Sends a message to every client of the service for which `to`, given its id and path, returns true. Returns the
    /// number of clients that it was sent to. The frame is encoded once, and compressed once for each window size.
    pub fn broadcast<'m>(
        &mut self,
        message: impl Into<Message<'m>>,
        to: impl FnMut(ClientId, &str) -> bool,
    ) -> usize {
        self.core.broadcast(message.into(), to)
    }

    /// Begins the closing handshake (RFC 6455 section 7.1.2). An invalid code becomes 1011, and a reason over 123 bytes is
    /// shortened. A client that is gone or being closed is skipped.
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
        let (client, env) = self.core.own(id).ok_or(SendError::Gone)?;
        client.close_with_code(env, code, reason.into())
    }

    /// Closes a client that does not keep up, with [`Cause::SlowConsumer`](crate::Cause::SlowConsumer). Output that it
    /// has not begun to receive is dropped.
    pub fn cut_off(&mut self, id: ClientId) {
        if let Some((client, env)) = self.core.own(id) {
            client.cut_off(env);
        }
    }

    /// Whether more output waits for a client than the soft limit.
    /// [`Service::drained`](crate::Service::drained) reports the end of that.
    pub fn is_congested(&self, id: ClientId) -> bool {
        self.core.registry.get(id).is_some_and(Client::is_congested)
    }

    /// Stops or resumes the delivery of messages from all clients of the service. Control frames are still handled. While
    /// a message waits, the ping and idle timeouts do not apply to its client.
    pub fn set_paused(&mut self, paused: bool) {
        self.core.set_paused(paused);
    }

    /// Stops or resumes the delivery of messages from one client, as [`Context::set_paused`] does for all.
    pub fn set_held(&mut self, id: ClientId, held: bool) {
        if let Some((client, env)) = self.core.own(id) {
            client.set_held(env, held);
        }
    }

    /// The clients of the service that can be sent to.
    pub fn clients(&self) -> Vec<ClientId> {
        let clients = self.core.registry.iter().filter(|client| client.is_open());
        let ours = clients.filter(|client| self.core.service_id.includes(client.service_id));
        ours.map(|client| client.id).collect()
    }

    /// The number of clients of the service, including those that are being closed.
    pub fn client_count(&self) -> usize {
        self.core.client_count()
    }

    /// Time since the last message in either direction between the server and a client.
    pub fn quiet_for(&self, id: ClientId) -> Duration {
        let client = self.core.own_ref(id);
        client.map_or(Duration::MAX, |client| {
            self.now().since(client.last_message())
        })
    }

    /// The address of a client.
    pub fn remote(&self, id: ClientId) -> Option<Remote> {
        self.core.registry.get(id).map(|client| client.remote)
    }

    /// The authenticated owner of a client's connection.
    pub fn principal(&self, id: ClientId) -> Principal {
        self.core.principal(id)
    }

    // HTTP calls.

    /// Answers a call. One that is gone or answered already is skipped.
    pub fn respond(&mut self, id: ClientId, response: &Response) {
        let _ = self.try_respond(id, response);
    }

    /// Answers a call. One that is gone or answered already is [`SendError::Gone`].
    pub fn try_respond(&mut self, id: ClientId, response: &Response) -> Result<(), SendError> {
        let (client, env) = self.core.own(id).ok_or(SendError::Gone)?;
        client.respond(env, response)
    }

    /// Begins to answer a call with a stream of events (`text/event-stream`). `fields` are added to the head; they must be
    /// valid and must not frame the body. The answer to HEAD is complete with its head.
    pub fn begin_stream(&mut self, id: ClientId, fields: &[(&str, &str)]) -> Result<(), SendError> {
        let (client, env) = self.core.own(id).ok_or(SendError::Gone)?;
        client.begin_stream(env, fields)
    }

    /// Sends a piece of a stream. A reader that is behind by more than the limit of output is disconnected.
    pub fn stream(&mut self, id: ClientId, bytes: &[u8]) -> Result<(), SendError> {
        let (client, env) = self.core.own(id).ok_or(SendError::Gone)?;
        client.stream(env, bytes)
    }

    /// Ends a stream.
    pub fn end_stream(&mut self, id: ClientId) -> Result<(), SendError> {
        let (client, env) = self.core.own(id).ok_or(SendError::Gone)?;
        client.end_stream(env)
    }

    // File descriptors, timers and work.

    /// Watches a non-blocking file descriptor; [`Service::ready`](crate::Service::ready) reports what it is ready for. It
    /// has to be unwatched before it is closed.
    pub fn watch(&mut self, fd: impl AsFd, interest: Interest) -> io::Result<SourceId> {
        self.core.watch(fd, interest)
    }

    /// Ends what [`Context::watch`] began. No event follows.
    pub fn unwatch(&mut self, id: SourceId) {
        self.core.sources.unwatch(&self.core.poll, id);
    }

    /// Has `ready` called in the next turn: for a service that stops before `WouldBlock` to let others have their turn.
    pub fn again(&mut self, id: SourceId, readiness: Readiness) {
        self.core.sources.again(id, readiness);
    }

    /// Has [`Service::timer`](crate::Service::timer) called once, after this time.
    pub fn set_timer(&mut self, after: Duration) -> TimerId {
        self.core.set_timer(after)
    }

    /// Cancels a timer. One that has passed is ignored.
    pub fn cancel_timer(&mut self, id: TimerId) {
        self.core.timers.cancel_service(&mut self.core.registry, id);
    }

    /// Counts work that the service does for the client or the program whose input it handles, in units of about a
    /// microsecond. When the share of a turn is used up, further input waits for the next turn.
    pub fn spend(&mut self, units: usize) {
        self.core.env.budget.spend(units);
    }

    /// Whether this turn of the loop has used up its share of work. A service that handles a program's output then leaves
    /// the rest for the next turn.
    pub fn is_turn_spent(&self) -> bool {
        self.core.env.budget.is_turn_spent()
    }

    // The server.

    /// The service that is called, of several in one server.
    pub fn service_id(&self) -> ServiceId {
        self.core.service_id
    }

    /// Calls another of several services from here on: the other services' clients are out of its sight.
    pub fn set_service_id(&mut self, service_id: ServiceId) {
        self.core.service_id = service_id;
    }

    /// The server's status, without its service's part.
    pub fn status(&self) -> Status {
        self.core.status_page(None, usize::MAX)
    }

    /// The addresses that the server listens on.
    pub fn listen_addresses(&self) -> &[ListenAddress] {
        &self.core.listen
    }

    /// The settings of the server.
    pub fn config(&self) -> &Config {
        &self.core.env.config
    }

    /// The time of the present turn.
    pub fn now(&self) -> Time {
        self.core.env.now
    }

    /// Whether the server is being stopped.
    pub fn is_stopping(&self) -> bool {
        self.core.shutdown.is_stopping()
    }

    /// Stops the server after the service's method has returned.
    pub fn stop(&mut self) {
        self.core.shutdown.stop();
    }
}
