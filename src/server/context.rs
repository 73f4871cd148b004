//! The interface through which a service acts on its clients and the loop.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use uuid::Uuid;

use super::access::{LinkTarget, Principal, Scope};
use super::address::{ListenAddress, Remote};
use super::client::{Broadcast, Client, Delivery, Keep};
use super::config::Config;
use super::core::Core;
use super::error::SendError;
use super::event_loop::scheduler::{Payer, Work};
use super::event_loop::sources::{Interest, Readiness};
use super::id::{ClientId, ServiceId, SourceId, TimerId};
use super::observe::client_query::ClientQuery;
use super::observe::status::Status;
use super::topics::SubscribeError;
use crate::protocol::{CloseCode, CloseReason, Message, Response, Time};

/// The media type of server-sent events, which a browser's `EventSource` reads.
const EVENT_STREAM: &str = "text/event-stream";

/// The server's interface for services. Most methods of a [`Service`](crate::Service) take it as an argument.
///
/// A service acts only on its own clients. No method removes a client: the server removes a closed or failed client
/// after the service's method has returned. Until then, sending to it fails.
#[derive(Debug)]
pub struct Context {
    pub(super) core: Core,
}

impl Context {
    // Clients.

    /// Sends a message. The server writes it at the end of the current turn at the latest, together with the client's
    /// other output. Does nothing if the client is gone or closing, which
    /// [`Service::disconnected`](crate::Service::disconnected) reports.
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
        mut to: impl FnMut(ClientId, &str) -> bool,
    ) -> usize {
        let core = &mut self.core;
        let mut broadcast = Broadcast::new(message.into());
        let mut sent = 0;
        for client in core.registry.iter_mut() {
            let ours = core.service_id.includes(client.service_id) && client.wire.is_open();
            if ours && to(client.id, client.path()) {
                sent += usize::from(client.push_shared(&mut core.env, &mut broadcast));
            }
        }
        core.env
            .count_broadcast(&broadcast, core.registry.len(), sent);
        sent
    }

    /// Sends a message to each of these clients, as [`Context::broadcast`] does to all of them. Its time does not depend on the
    /// number of other clients.
    pub fn send_to_all<'m>(&mut self, ids: &[ClientId], message: impl Into<Message<'m>>) -> usize {
        let core = &mut self.core;
        let mut broadcast = Broadcast::new(message.into());
        let mut sent = 0;
        for &id in ids {
            if let Some((client, env)) = core.own(id) {
                sent += usize::from(client.push_shared(env, &mut broadcast));
            }
        }
        core.env.count_broadcast(&broadcast, ids.len(), sent);
        sent
    }

    // Topics.

    /// Subscribes a client to a topic: it gets what is [published](Context::publish) there, until it is unsubscribed or disconnects.
    /// A client that resumes its connection stays a member. Returns whether it was no member before.
    ///
    /// A topic exists while it has members. Its name is any text of 1 to 255 bytes, and is compared byte by byte. Each service has
    /// topics of its own.
    ///
    /// ```
    /// use outrigger::{ClientId, Context, Message, Request, Service};
    ///
    /// struct Rooms;
    ///
    /// impl Service for Rooms {
    ///     fn connected(&mut self, ctx: &mut Context, client: ClientId, request: &Request<'_>) {
    ///         if ctx.subscribe(client, request.path()).is_err() {
    ///             ctx.close(client, outrigger::CloseCode::TRY_AGAIN, "too many rooms");
    ///         }
    ///     }
    ///
    ///     fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
    ///         let room = ctx.path(client).unwrap_or_default().to_owned();
    ///         ctx.publish_except(client, &room, message);
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The client is gone, the name is not valid, or a limit is reached.
    pub fn subscribe(&mut self, id: ClientId, topic: &str) -> Result<bool, SubscribeError> {
        self.subscribe_keeping(id, topic, Keep::All)
    }

    /// Subscribes a client as [`Context::subscribe`] does, and says which messages wait while it cannot take them. For a member,
    /// changes this from the next message on.
    ///
    /// # Errors
    ///
    /// Those of [`Context::subscribe`].
    pub fn subscribe_keeping(
        &mut self,
        id: ClientId,
        topic: &str,
        keep: Keep,
    ) -> Result<bool, SubscribeError> {
        self.core.subscribe(id, topic, keep)
    }

    /// Ends a subscription. A message of the topic that waits for the client is dropped. Returns whether the client was a member.
    pub fn unsubscribe(&mut self, id: ClientId, topic: &str) -> bool {
        self.core.unsubscribe(id, topic)
    }

    /// Sends a message to the members of a topic. Returns the number of members that it was sent to, or for which it waits. Its time
    /// depends on the number of members only. The frame is encoded once, and compressed once for each window size.
    pub fn publish<'m>(&mut self, topic: &str, message: impl Into<Message<'m>>) -> usize {
        self.publish_to(topic, message, |_| true)
    }

    /// Publishes a message as [`Context::publish`] does, but not to one client: usually the one that has sent it.
    pub fn publish_except<'m>(
        &mut self,
        client: ClientId,
        topic: &str,
        message: impl Into<Message<'m>>,
    ) -> usize {
        self.publish_to(topic, message, |member| member != client)
    }

    /// Publishes a message as [`Context::publish`] does, but only to the members for which `to` returns true.
    pub fn publish_to<'m>(
        &mut self,
        topic: &str,
        message: impl Into<Message<'m>>,
        to: impl FnMut(ClientId) -> bool,
    ) -> usize {
        self.core.publish(topic, message.into(), to)
    }

    /// The topics of a client, in no particular order.
    pub fn topics(&self, id: ClientId) -> impl Iterator<Item = &str> {
        self.core.topics_of(id)
    }

    /// The members of a topic, in no particular order.
    pub fn subscribers(&self, topic: &str) -> impl Iterator<Item = ClientId> {
        self.core.subscribers(topic)
    }

    /// The topics of the service, each with the number of its members, in no particular order.
    pub fn all_topics(&self) -> impl Iterator<Item = (&str, usize)> {
        self.core.all_topics()
    }

    /// Begins the closing handshake (RFC 6455 section 7.1.2). An invalid code becomes 1011, and a reason over 123 bytes
    /// is shortened. Does nothing if the client is gone or closing.
    ///
    /// A resumable client whose connection was cut gets the CLOSE when it comes back, behind its messages. Messages that it
    /// sends until then still arrive.
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

    /// Counts `more` messages against [`Config::rate_limit`](crate::Config::rate_limit). Call it if one WebSocket message contains
    /// several messages of the service's protocol; the first of them is already counted. If the client exceeds the limit, it is closed
    /// with [`Cause::RateLimit`](crate::Cause::RateLimit), and the result is false.
    pub fn count_messages(&mut self, id: ClientId, more: u32) -> bool {
        let client = self.core.own(id);
        client.is_some_and(|(client, env)| client.count_messages(env, more))
    }

    /// Closes a client that reads too slowly, with [`Cause::SlowConsumer`](crate::Cause::SlowConsumer). Output that it
    /// has not begun to receive is dropped.
    pub fn cut_off(&mut self, id: ClientId) {
        if let Some((client, env)) = self.core.own(id) {
            client.cut_off(env, CloseReason::slow_consumer());
        }
    }

    /// Closes a client with [`Cause::Memory`](crate::Cause::Memory), because memory is short. Output that it has not begun to
    /// receive is dropped.
    pub fn end_for_memory(&mut self, id: ClientId) {
        if let Some((client, env)) = self.core.own(id) {
            client.cut_off(env, CloseReason::memory());
        }
    }

    /// Whether a client's unsent output has exceeded the soft limit and has not drained since.
    /// [`Service::drained`](crate::Service::drained) follows when it has drained.
    pub fn is_congested(&self, id: ClientId) -> bool {
        self.core.registry.get(id).is_some_and(Client::is_congested)
    }

    /// Stops or resumes the delivery of messages from all clients of the service. Control frames are still handled. While
    /// a message waits, the ping and idle timeouts do not apply to its client.
    pub fn set_paused(&mut self, paused: bool) {
        let core = &mut self.core;
        let service_id = core.service_id;
        if paused {
            if let Some(client) = core.registry.checked_out() {
                core.resume_behind = client.id.slot();
            }
            core.env.pause(service_id);
        } else if core.env.unpause(service_id) {
            let mut ids = core.registry.ids();
            let behind = ids.partition_point(|id| id.slot() <= core.resume_behind);
            ids.rotate_left(behind);
            for id in ids {
                core.with(id, |client, env| {
                    if service_id.includes(client.service_id) {
                        client.unpause(env);
                    }
                });
            }
        }
    }

    /// Stops or resumes the delivery of messages from one client, as [`Context::set_paused`] does for all clients.
    pub fn set_held(&mut self, id: ClientId, held: bool) {
        if let Some((client, env)) = self.core.own(id) {
            client.set_held(env, held);
        }
    }

    /// The clients of the service that can be sent to.
    pub fn clients(&self) -> Vec<ClientId> {
        let clients = self
            .core
            .registry
            .iter()
            .filter(|client| client.wire.is_open());
        let ours = clients.filter(|client| self.core.service_id.includes(client.service_id));
        ours.map(|client| client.id).collect()
    }

    /// Whether every client of the service is [congested](Context::is_congested). A client whose connection was cut does not
    /// count, and without another one the answer is no.
    pub fn is_every_client_congested(&self) -> bool {
        let service_id = self.core.service_id;
        let mut clients = self.core.registry.iter().filter(|client| {
            client.wire.protocol.is_connected() && service_id.includes(client.service_id)
        });
        clients.next().is_some_and(Client::is_congested) && clients.all(Client::is_congested)
    }

    /// The number of clients of the service, including those that are being closed.
    pub fn client_count(&self) -> usize {
        self.core.client_count()
    }

    /// The time since the last message between the server and a client, in either direction.
    pub fn quiet_for(&self, id: ClientId) -> Duration {
        let client = self.core.own_ref(id);
        client.map_or(Duration::MAX, |client| {
            self.now().since(client.wire.protocol.last_message())
        })
    }

    /// The path of the request with which a client connected, without the query. `None` if the client is gone.
    pub fn path(&self, id: ClientId) -> Option<&str> {
        self.core.own_ref(id).map(Client::path)
    }

    /// Whether the service may hold so many bytes more for a principal, within [`Config::memory`](crate::Config::memory). If not,
    /// refuse what a client asks for, such as the start of a program. Of what another principal holds, more is freed instead if that
    /// is the one that holds most.
    pub fn may_hold(&mut self, principal: &Principal, bytes: usize) -> bool {
        let env = &mut self.core.env;
        let (limit, now) = (env.config.memory, env.now);
        let payer = Payer::Principal(principal.clone());
        limit.is_none_or(|limit| env.memory.has_room(limit, now, &payer, bytes))
    }

    /// Records that something that the service holds for a principal has changed its size, from `before` to `after` bytes. It is
    /// measured later in any case ([`Report::held`](crate::Report::held)), but [`Context::may_hold`] counts it at once.
    pub fn note_held(&mut self, principal: &Principal, before: usize, after: usize) {
        let env = &mut self.core.env;
        if before != after && env.config.memory.is_some() {
            let payer = Payer::Principal(principal.clone());
            env.memory.note(payer, before, after);
        }
    }

    /// The address of a client.
    pub fn remote(&self, id: ClientId) -> Option<Remote> {
        self.core.registry.get(id).map(|client| client.wire.remote)
    }

    /// Whether a client's connection uses TLS. False for a client whose connection was cut.
    pub fn is_encrypted(&self, id: ClientId) -> bool {
        let client = self.core.registry.get(id);
        client.is_some_and(|client| client.wire.tls().is_some())
    }

    /// The authenticated owner of a client's connection.
    pub fn principal(&self, id: ClientId) -> Principal {
        self.core.principal(id)
    }

    /// The client whose handshake [`Service::accept`](crate::Service::accept) accepts or rejects. It has no other state yet than
    /// its principal and its scope.
    pub fn handshaking(&self) -> Option<ClientId> {
        self.core.handshaking
    }

    /// Whether the settings admit clients of this client's principal only: there is one token or one unix socket, and no
    /// way in without them.
    pub fn is_sole_principal(&self, id: ClientId) -> bool {
        self.core.is_sole_principal(id)
    }

    /// The scope of the token of a client's last request.
    pub fn scope(&self, id: ClientId) -> Scope {
        self.core.scope(id)
    }

    /// What the link permits that a client has presented. `None` without a link.
    pub fn link_target(&self, id: ClientId) -> Option<&LinkTarget> {
        self.core.link(id).map(|link| &link.target)
    }

    /// Who asked for the link that a client has presented. `None` without a link.
    pub fn link_issuer(&self, id: ClientId) -> Option<&Principal> {
        self.core.link(id).map(|link| &link.issuer)
    }

    /// Whether a client's connection can be resumed after a cut.
    pub fn is_resumable(&self, id: ClientId) -> bool {
        self.core
            .registry
            .get(id)
            .is_some_and(|client| client.wire.is_resumable())
    }

    /// Whether a client's connection was cut and can still be resumed. Messages to it wait meanwhile.
    pub fn is_detached(&self, id: ClientId) -> bool {
        self.core
            .registry
            .get(id)
            .is_some_and(|client| client.wire.protocol.is_detached())
    }

    /// The number of messages to a client that can resume its connection which it has not confirmed. 0 for other clients.
    pub fn unconfirmed(&self, id: ClientId) -> u64 {
        let delivery = self
            .core
            .own_ref(id)
            .and_then(|client| client.wire.delivery());
        delivery.map_or(0, Delivery::unconfirmed_count)
    }

    /// Sends a client a PING now. Unless something arrives within `patience`, the connection counts as cut.
    pub(crate) fn probe(&mut self, id: ClientId, patience: Duration) {
        if let Some((client, env)) = self.core.own(id) {
            client.probe(env, patience);
        }
    }

    /// The time since the last bytes arrived from a client, including PONG. A live client answers the PING that the server
    /// sends in each ping interval.
    pub fn silent_for(&self, id: ClientId) -> Duration {
        let client = self.core.own_ref(id);
        client.map_or(Duration::MAX, |client| {
            client.wire.protocol.silence(self.now())
        })
    }

    // HTTP calls.

    /// Answers a call. Does nothing if the caller is gone or the call has been answered.
    pub fn respond(&mut self, id: ClientId, response: &Response) {
        let _ = self.try_respond(id, response);
    }

    /// Answers a call. Returns [`SendError::Gone`] if the caller is gone or the call has been answered.
    pub fn try_respond(&mut self, id: ClientId, response: &Response) -> Result<(), SendError> {
        let is_compressed = self.core.env.gzip_for == Some(id);
        let (client, env) = self.core.own(id).ok_or(SendError::Gone)?;
        if is_compressed {
            env.budget.spend(response.body_len() / 80);
            return client.respond(env, &response.clone().in_gzip());
        }
        client.respond(env, response)
    }

    /// Answers a call. The blocks follow the body of the response, and are not copied. The method of the call is not HEAD.
    pub(crate) fn respond_in_blocks(
        &mut self,
        id: ClientId,
        response: Response,
        blocks: Vec<Vec<u8>>,
    ) {
        if let Some((client, env)) = self.core.own(id) {
            let _ = client.respond_in_blocks(env, response, blocks);
        }
    }

    /// Begins to answer a call with a stream of events (`text/event-stream`). `fields` are added to the head; they must
    /// be valid, and must not describe the length or encoding of the body. The answer to a HEAD request ends after its
    /// head.
    pub fn begin_stream(&mut self, id: ClientId, fields: &[(&str, &str)]) -> Result<(), SendError> {
        let (client, env) = self.core.own(id).ok_or(SendError::Gone)?;
        client.begin_stream(env, EVENT_STREAM, fields)
    }

    /// Begins to answer a call with a body of any length. Its pieces follow as those of a stream, without a pause: while nothing is
    /// queued for the caller, the server may send a comment of an event stream.
    pub(crate) fn begin_body(&mut self, id: ClientId, content_type: &str) -> Result<(), SendError> {
        let (client, env) = self.core.own(id).ok_or(SendError::Gone)?;
        client.begin_stream(env, content_type, &[])
    }

    /// Sends a piece of a stream: one or more whole events, because the server sends a comment between two pieces if nothing
    /// was sent for [`Timeouts::ping_interval`](crate::Timeouts::ping_interval). A reader that is behind by more than the
    /// limit of output is disconnected.
    pub fn stream(&mut self, id: ClientId, bytes: &[u8]) -> Result<(), SendError> {
        let (client, env) = self.core.own(id).ok_or(SendError::Gone)?;
        client.stream(env, bytes)
    }

    /// Ends a stream.
    pub fn end_stream(&mut self, id: ClientId) -> Result<(), SendError> {
        let (client, env) = self.core.own(id).ok_or(SendError::Gone)?;
        client.end_stream(env)
    }

    /// Whether a message of a client is over [`Config::max_json`], so that the service must refuse it.
    pub(crate) fn is_long_json(&self, length: usize) -> bool {
        length > self.core.env.config.max_json
    }

    /// Counts a message that a service refuses because of its length.
    pub(crate) fn count_long_json(&mut self) {
        self.core.env.counters.long_json += 1;
    }

    // File descriptors, timers and work.

    /// Watches a non-blocking file descriptor. [`Service::ready`](crate::Service::ready) reports its readiness. Unwatch
    /// the descriptor before you close it.
    pub fn watch(&mut self, fd: impl AsFd, interest: Interest) -> io::Result<SourceId> {
        let core = &mut self.core;
        let account = core.env.scheduler.current();
        let owner = (core.service_id, account);
        let interest = interest.to_mio();
        let id = core.sources.watch(&core.poll, owner, fd, interest)?;
        core.env.scheduler.hold(account);
        Ok(id)
    }

    /// Stops watching a file descriptor. No event for it follows.
    pub fn unwatch(&mut self, id: SourceId) {
        let core = &mut self.core;
        if let Some(account) = core.sources.unwatch(&core.poll, id) {
            core.env.scheduler.release(account);
        }
    }

    /// Calls `ready` again, in the next turn of the loop at the latest. Use it if you stop before `WouldBlock` so that
    /// others get their turn. A call made while a client is read is usually served in the same turn.
    pub fn again(&mut self, id: SourceId, readiness: Readiness) {
        self.core.ready_again(id, readiness);
    }

    /// Calls [`Service::timer`](crate::Service::timer) once, after this time.
    pub fn set_timer(&mut self, after: Duration) -> TimerId {
        let core = &mut self.core;
        core.timers
            .set_service(&mut core.registry, core.service_id, core.env.now, after)
    }

    /// Cancels a timer. Does nothing if the timer has expired.
    pub fn cancel_timer(&mut self, id: TimerId) {
        self.core.timers.cancel_service(&mut self.core.registry, id);
    }

    /// Queues the start of a program that a client has asked for. [`Service::start_program`](crate::Service::start_program) is
    /// called when it is the client's turn: one program is started in a turn of the loop, whatever its service, and who asks for
    /// many waits behind the others. It is not called if the client has disconnected by then.
    pub fn queue_start(&mut self, id: ClientId) {
        if let Some((client, env)) = self.core.own(id) {
            env.scheduler.push(client.wire.account, Work::Start(id));
        }
    }

    /// Whether the server does not serve yet, so that a service may wait until its program is executed. If it cannot be, the server
    /// fails before it is announced.
    pub(crate) fn starts_wait(&self) -> bool {
        self.core.env.starts_wait
    }

    /// Queues the start of a program for the service itself, as [`Context::queue_start`] does for a client.
    pub fn queue_own_start(&mut self) {
        let service_id = self.core.service_id;
        self.core.env.queue_own_start(service_id);
    }

    /// Ends what a program has left behind, a moment after its exit: the processes with this id in their environment. `program` is its
    /// name and its process id, for the log.
    pub(crate) fn end_leftovers(&mut self, id: Uuid, program: (&str, u32)) {
        let core = &mut self.core;
        let route = core.route().map(str::to_owned);
        core.leftovers.add(core.env.now, id, program, route);
        core.plan_chores();
    }

    /// Counts work that the service does for the client or the program whose input it handles, in units of about a
    /// microsecond. When its share is used up, its further input waits until others had theirs.
    pub fn spend(&mut self, units: usize) {
        self.core.env.budget.spend(units);
    }

    /// Whether the client or the program whose input is handled has used up its share. A service that handles a program's output
    /// should then call [`Context::again`] and leave the rest for later.
    pub fn is_share_spent(&self) -> bool {
        self.core.env.budget.is_spent()
    }

    /// From now on in this call, counts the work for the current service itself, and not for the client that has caused it. Call
    /// it before you start a program that all clients of the service share, so that its output is not charged to the first of
    /// them.
    pub fn work_for_service(&mut self) {
        let service_id = self.core.service_id;
        self.core.env.charge_service(service_id);
    }

    // The server.

    /// The path of the current service, if it has one.
    pub(crate) fn route(&self) -> Option<&str> {
        self.core.route()
    }

    /// The current service, if the server has several.
    pub fn service_id(&self) -> ServiceId {
        self.core.service_id
    }

    /// Changes the current service. From then on, the context acts only on that service's clients.
    pub fn set_service_id(&mut self, service_id: ServiceId) {
        self.core.service_id = service_id;
    }

    /// The server's status, without the fields of the service.
    pub fn status(&self) -> Status {
        self.core.status_page(&ClientQuery::default())
    }

    /// The addresses that the server listens on.
    pub fn listen_addresses(&self) -> &[ListenAddress] {
        &self.core.listen
    }

    /// The settings of the server.
    pub fn config(&self) -> &Config {
        &self.core.env.config
    }

    /// The time of the current turn.
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
