//! The [`Service`] trait: what the loop calls and asks.

use std::time::Duration;

use super::context::Context;
use super::id::{ClientId, ServiceId, SourceId, TimerId};
use super::metrics::Metrics;
use super::status::StatusFields;
use crate::protocol::{Accept, CloseReason, Message, Rejection, Request, Response, StatusCode};

/// How requests to a path are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Handshakes are upgraded: [`Service::accept`] and [`Service::connected`] follow.
    WebSocket,
    /// Requests are calls: [`Service::call`] follows with the whole request.
    Http,
}

/// What a file descriptor that a service watches is ready for.
///
/// Readiness is reported once (edge-triggered): read or write until `WouldBlock`, or request another call with
/// [`Context::again`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Reading will not block: there is data, end of file or an error.
    pub readable: bool,
    /// Writing will not block: there is room or an error.
    pub writable: bool,
}

/// What a server does with its clients. Every method has a default.
///
/// The loop calls all methods on its own thread, and nothing else runs meanwhile, so keep them short. A method acts on
/// clients through the [`Context`]. A client that the method closes, or that fails while the method sends to it, is
/// removed after the method has returned.
///
/// For every client, the loop calls `connected` once, then `message` and `drained` any number of times, then
/// `disconnected` once, whatever ended the connection, and nothing after that.
pub trait Service {
    /// The loop starts. File descriptors can be watched and timers set from here on.
    fn started(&mut self, ctx: &mut Context) {
        let _ = ctx;
    }

    /// Selects the service that handles a request, for a service that combines several. [`Context::service_id`] returns
    /// this id in every later call for the same client.
    fn service_id(&self, request: &Request<'_>) -> ServiceId {
        let _ = request;
        ServiceId::ALL
    }

    /// Decides how a request is handled, or rejects it, usually with [`Rejection::not_found`]. The loop asks as soon as
    /// the head has arrived, so that it does not wait for the body of a rejected request.
    fn route(&mut self, request: &Request<'_>) -> Result<Route, Rejection> {
        let _ = request;
        Ok(Route::WebSocket)
    }

    /// The maximum length of the body of a call that `route` has accepted. A longer body gets 413, and so does one over
    /// `max_message`.
    fn max_body(&self, request: &Request<'_>) -> usize {
        let _ = request;
        usize::MAX
    }

    /// Accepts or rejects an opening handshake. If it is accepted, `connected` follows at once.
    fn accept(&mut self, ctx: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        let _ = (ctx, request);
        Ok(Accept::default())
    }

    /// A client has connected. The service can send to it from here on.
    fn connected(&mut self, ctx: &mut Context, client: ClientId, request: &Request<'_>) {
        let _ = (ctx, client, request);
    }

    /// A client has sent a message.
    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let _ = (ctx, client, message);
    }

    /// The output of a client that was [congested](Context::is_congested) has drained.
    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        let _ = (ctx, client);
    }

    /// A client has ended its direction of the connection without CLOSE. It sends nothing more, but may still read, or
    /// may be gone. The service returns how long to keep the client while it takes no output, so that the service can
    /// still send to it. By default, the client is disconnected as soon as earlier output has been sent.
    fn input_ended(&mut self, ctx: &mut Context, client: ClientId) -> Duration {
        let _ = (ctx, client);
        Duration::ZERO
    }

    /// A client has disconnected. Its id is no longer valid and is never reused.
    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, ending: &CloseReason) {
        let _ = (ctx, client, ending);
    }

    /// Whether a client waits for the service, for example for an answer or for the last output of a program. A stopping
    /// server closes the client when it no longer waits.
    fn is_waiting(&self, ctx: &Context, client: ClientId) -> bool {
        let _ = (ctx, client);
        false
    }

    /// Whether a client is exempt from the idle timeout now. By default, a client that [waits](Service::is_waiting) is
    /// exempt.
    fn may_idle(&self, ctx: &Context, client: ClientId) -> bool {
        self.is_waiting(ctx, client)
    }

    /// The server begins to stop. It accepts no more clients. It closes each client when the client no longer
    /// [waits](Service::is_waiting) for the service, or shortly before the drain timeout at the latest. A service with
    /// endless work must end that work here, so that clients still get its last output.
    fn draining(&mut self, ctx: &mut Context) {
        let _ = ctx;
    }

    /// A call has arrived, with its whole body. The service must answer it, now or later, with [`Context::respond`] or
    /// [`Context::begin_stream`]. No other call of the same connection is delivered before that.
    fn call(&mut self, ctx: &mut Context, caller: ClientId, request: &Request<'_>, body: &[u8]) {
        let _ = (request, body);
        let rejection = Rejection::new(StatusCode::INTERNAL, "the service answers no calls");
        ctx.respond(caller, &Response::from(&rejection));
    }

    /// The caller has disconnected before its call was answered completely.
    fn abandoned(&mut self, ctx: &mut Context, caller: ClientId) {
        let _ = (ctx, caller);
    }

    /// Whether the service can serve clients now, for `GET /readyz`.
    fn is_ready(&self) -> bool {
        true
    }

    /// A watched file descriptor is ready.
    fn ready(&mut self, ctx: &mut Context, source: SourceId, readiness: Readiness) {
        let _ = (ctx, source, readiness);
    }

    /// A timer has expired.
    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        let _ = (ctx, timer);
    }

    /// An adopted orphan has exited. Only called after
    /// [`Server::adopt_orphans`](crate::Server::adopt_orphans).
    fn orphans_changed(&mut self, ctx: &mut Context) {
        let _ = ctx;
    }

    /// Visits every client and caller that the service keeps state for. Debug builds and fuzzers check each against the
    /// registry after every disconnect.
    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        let _ = visit;
    }

    /// The fields that the service adds to [`Status`](crate::Status).
    fn status(&self) -> StatusFields {
        StatusFields::default()
    }

    /// Writes the metrics of the service, for `GET /metrics`.
    fn metrics(&self, out: &mut Metrics) {
        let _ = out;
    }

    /// The failure for which the service stopped the server, if there was one. The caller asks after the loop has ended.
    fn failure(&self) -> Option<&str> {
        None
    }

    /// The server stops and all clients have disconnected. The service must end what it still runs.
    fn stopping(&mut self, ctx: &mut Context) {
        let _ = ctx;
    }

    /// Whether the loop may end. After `stopping`, the loop asks in every turn until the drain timeout.
    fn is_stopped(&self) -> bool {
        true
    }
}
