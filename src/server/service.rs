//! What a server serves.

use std::time::Duration;

use super::context::Context;
use super::id::{ClientId, ServiceId, SourceId, TimerId};
use super::metrics::Metrics;
use super::status::StatusFields;
use crate::protocol::{Accept, CloseReason, Message, Rejection, Request, Response, StatusCode};

/// What a path is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To be upgraded: [`Service::accept`] and [`Service::connected`] follow.
    WebSocket,
    /// To be called: [`Service::call`] follows with the whole request.
    Http,
}

/// What has become possible on a file descriptor that a service watches.
///
/// Readiness is told once (edge-triggered): read or write until `WouldBlock`, or ask for another turn with
/// [`Context::again`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Reading will not block: there is data, an end or an error.
    pub readable: bool,
    /// Writing will not block: there is room or an error.
    pub writable: bool,
}

/// What clients reach through a server. Every method has a default, so a service writes down what it cares about.
///
/// All methods are called on the loop's own thread, and while one runs nothing else does: keep them short. What they
/// do to clients goes through the [`Context`]; a client that a method closes, or that turns out to be dead while it is
/// sent to, is removed after the method has returned.
///
/// For every client, `connected` is called once, then `message` and `drained` any number of times, then
/// `disconnected` once, whatever ended the connection; nothing after it.
pub trait Service {
    /// The loop begins to turn: the place to watch file descriptors and set timers.
    fn started(&mut self, ctx: &mut Context) {
        let _ = ctx;
    }

    /// Which of several services that it is made of a request is for. [`Context::service_id`] says so from then on whenever
    /// something of that client is told.
    fn service_id(&self, request: &Request<'_>) -> ServiceId {
        let _ = request;
        ServiceId::ALL
    }

    /// What is at a request's path, or why there is nothing for it: usually [`Rejection::not_found`]. It is asked when
    /// the head is there, so that a body that nobody wants is not waited for.
    fn route(&mut self, request: &Request<'_>) -> Result<Route, Rejection> {
        let _ = request;
        Ok(Route::WebSocket)
    }

    /// The longest body of a call to a path that `route` has let through. A longer one gets 413, and so does one over
    /// `max_message`.
    fn max_body(&self, request: &Request<'_>) -> usize {
        let _ = request;
        usize::MAX
    }

    /// Admits or refuses a complete opening handshake. If it is admitted, `connected` follows at once.
    fn accept(&mut self, ctx: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        let _ = (ctx, request);
        Ok(Accept::default())
    }

    /// A client is connected; it can be sent to from now on.
    fn connected(&mut self, ctx: &mut Context, client: ClientId, request: &Request<'_>) {
        let _ = (ctx, client, request);
    }

    /// A client sent a message.
    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let _ = (ctx, client, message);
    }

    /// The output of a client that was [congested](Context::is_congested) has drained.
    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        let _ = (ctx, client);
    }

    /// A client has ended its direction of the connection without CLOSE: it sends nothing more, but may still read, or
    /// may be gone. The result says how long the client is kept without taking output, so that the service can still
    /// send to it. By default it is disconnected as soon as earlier output has been sent.
    fn input_ended(&mut self, ctx: &mut Context, client: ClientId) -> Duration {
        let _ = (ctx, client);
        Duration::ZERO
    }

    /// A client is gone. Its id finds nothing any more, and will never be another client's.
    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, ending: &CloseReason) {
        let _ = (ctx, client, ending);
    }

    /// Whether a client waits for something that the service still does: an answer, or the last output of a program. A
    /// server that stops closes it when that is done.
    fn is_waiting(&self, ctx: &Context, client: ClientId) -> bool {
        let _ = (ctx, client);
        false
    }

    /// Whether the idle timeout does not apply to a client now. By default it does not apply to one that
    /// [waits](Service::is_waiting).
    fn may_idle(&self, ctx: &Context, client: ClientId) -> bool {
        self.is_waiting(ctx, client)
    }

    /// The server begins to stop. It takes no new clients, and closes each client when it no longer
    /// [waits](Service::is_waiting) for the service, or shortly before the drain timeout at the latest. A service with
    /// endless work must end it here, so that clients still get its last output.
    fn draining(&mut self, ctx: &mut Context) {
        let _ = ctx;
    }

    /// A call came whole. It has to be answered, now or later, with [`Context::respond`] or
    /// [`Context::begin_stream`]; its connection sends no other before.
    fn call(&mut self, ctx: &mut Context, caller: ClientId, request: &Request<'_>, body: &[u8]) {
        let _ = (request, body);
        let rejection = Rejection::new(StatusCode::INTERNAL, "nobody answers this call");
        ctx.respond(caller, &Response::from(&rejection));
    }

    /// The caller is gone before its call was answered to the end.
    fn abandoned(&mut self, ctx: &mut Context, caller: ClientId) {
        let _ = (ctx, caller);
    }

    /// Whether clients can be served now. `GET /readyz` tells.
    fn is_ready(&self) -> bool {
        true
    }

    /// A watched file descriptor is ready.
    fn ready(&mut self, ctx: &mut Context, source: SourceId, readiness: Readiness) {
        let _ = (ctx, source, readiness);
    }

    /// A timer has run out.
    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        let _ = (ctx, timer);
    }

    /// A process has ended that another one had left to this one: only with
    /// [`Server::adopt_orphans`](crate::Server::adopt_orphans).
    fn orphans_changed(&mut self, ctx: &mut Context) {
        let _ = ctx;
    }

    /// Visits every client and caller that the service keeps state for. Debug builds and fuzzers check each against the
    /// registry after every disconnect.
    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        let _ = visit;
    }

    /// What the service says about itself, beside what the server knows: fields of [`Status`](crate::Status).
    fn status(&self) -> StatusFields {
        StatusFields::default()
    }

    /// What the service has counted, for `GET /metrics`.
    fn metrics(&self, out: &mut Metrics) {
        let _ = out;
    }

    /// Why the service had the server stop, if that was not as it should be. It is asked when the loop has ended.
    fn failure(&self) -> Option<&str> {
        None
    }

    /// The server stops and all clients are gone: end what the service itself runs.
    fn stopping(&mut self, ctx: &mut Context) {
        let _ = ctx;
    }

    /// Whether the loop may end. It is asked after `stopping`, on every turn until the drain timeout.
    fn is_stopped(&self) -> bool {
        true
    }
}
