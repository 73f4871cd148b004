//! The [`Service`] trait, whose methods the event loop calls, and [`Route`], its answer to how a request is handled.

use std::borrow::Cow;
use std::time::Duration;

use super::access::{LinkTarget, Principal, Scope};
use super::context::Context;
use super::event_loop::sources::Readiness;
use super::id::{ClientId, ServiceId, SourceId, TimerId};
use super::observe::exposition::{Histogram, Metrics};
use super::observe::status::StatusFields;
use super::outgoing::{Connect, ConnectError};
use crate::protocol::client::ResponseHead;
use crate::protocol::{Accept, CloseReason, Message, Rejection, Request, Response, StatusCode};
use crate::record::{Loader, RecordError, Saver};

/// The behavior of a server. Every method has a default, so implement only the methods that you need.
///
/// The loop calls all methods on its own thread, one at a time, so keep them short. Methods act on clients through the
/// [`Context`]. The server removes a closed or failed client only after the method has returned.
///
/// For every client, the loop calls `connected` once, then `message` and `drained` any number of times, then
/// `disconnected` once, whatever ended the connection. No call for that client follows.
///
/// A service that opens connections implements [`Outgoing`], too. One that reports status and metrics implements [`Report`], and one
/// whose clients stay connected when the program replaces itself implements [`Portable`]. It returns itself from the method of that
/// name.
pub trait Service {
    /// A client has connected. The service can send to it from now on.
    fn connected(&mut self, ctx: &mut Context, client: ClientId, request: &Request<'_>) {
        let _ = (ctx, client, request);
    }

    /// A client has sent a message.
    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let _ = (ctx, client, message);
    }

    /// A client has disconnected. Its id is no longer valid and is never reused.
    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, ending: &CloseReason) {
        let _ = (ctx, client, ending);
    }

    /// Returns how a request is handled, or rejects it, usually with [`Rejection::not_found`]. The loop calls this method once for
    /// each request that it does not answer itself, when the head has arrived, and before it knows whether the peer may make the
    /// request. An error is the same as [`Route::from`] the rejection: only a peer whose token has the scope
    /// [`Scope::Use`](super::Scope::Use) gets it. In later methods, [`Context::scope`] is the scope of the client's token.
    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        let _ = request;
        Ok(Route::web_socket())
    }

    /// Accepts or rejects an opening handshake. If it is accepted, `connected` follows at once.
    fn accept(&mut self, ctx: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        let _ = (ctx, request);
        Ok(Accept::default())
    }

    /// The output of a client that was [congested](Context::is_congested) has drained.
    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        let _ = (ctx, client);
    }

    /// A client has half-closed the connection (TCP FIN) without sending CLOSE. It may still read, or may be gone.
    /// Returns how long the server keeps the client while it accepts no output, so that the service can still send to
    /// it. By default, the server disconnects the client as soon as the queued output has been sent.
    fn input_ended(&mut self, ctx: &mut Context, client: ClientId) -> Duration {
        let _ = (ctx, client);
        Duration::ZERO
    }

    /// Whether the service still owes the client something, such as an answer or the last output of a program. A
    /// stopping server closes the client when this method returns false, or shortly before the drain timeout.
    fn is_waiting(&self, ctx: &Context, client: ClientId) -> bool {
        let _ = (ctx, client);
        false
    }

    /// Whether a client is exempt from the idle timeout now. By default, a client that [waits](Service::is_waiting) is
    /// exempt.
    fn may_idle(&self, ctx: &Context, client: ClientId) -> bool {
        self.is_waiting(ctx, client)
    }

    /// A complete HTTP call has arrived. The service must answer it, now or later, with [`Context::respond`] or
    /// [`Context::begin_stream`]. The next call on the same connection follows only after the answer.
    fn call(&mut self, ctx: &mut Context, caller: ClientId, request: &Request<'_>, body: &[u8]) {
        let _ = (request, body);
        let rejection = Rejection::new(StatusCode::INTERNAL, "the service answers no calls");
        ctx.respond(caller, &Response::from(&rejection));
    }

    /// The caller has hung up before its call was completely answered: its connection has ended, or it has half-closed the
    /// connection (TCP FIN). Output that was queued for it is still written. Nothing more can be sent to it. Or the server
    /// ends before the call was answered, and has answered it with 503.
    fn abandoned(&mut self, ctx: &mut Context, caller: ClientId) {
        let _ = (ctx, caller);
    }

    /// Whether a link to `target` may be issued for a caller: a token with which others watch the target. Rejects it unless
    /// the target exists and the caller may let others watch it. The service checks later that a client watches nothing else
    /// than the [target of its link](Context::link_target).
    fn share(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        target: &LinkTarget,
    ) -> Result<(), Rejection> {
        let _ = (ctx, caller, target);
        let why = "nothing at this path can be watched";
        Err(Rejection::new(StatusCode::NOT_FOUND, why))
    }

    /// Memory is short, and this principal holds most. Frees about so many bytes of what [`Report::held`] says of it: first what can
    /// be missed, then the largest parts. The log and the clients get the reason of what ends. Returns the number of bytes that were
    /// freed; 0 if nothing can be freed. Work for a few milliseconds at most, because the server calls this method again.
    fn free_memory(&mut self, ctx: &mut Context, principal: &Principal, bytes: usize) -> usize {
        let _ = (ctx, principal, bytes);
        0
    }

    /// The loop has started. Watch file descriptors and set timers here.
    fn started(&mut self, ctx: &mut Context) {
        let _ = ctx;
    }

    /// The service may start a program now: the one that this client has asked for, or its own. It follows
    /// [`Context::queue_start`] and [`Context::queue_own_start`].
    fn start_program(&mut self, ctx: &mut Context, client: Option<ClientId>) {
        let _ = (ctx, client);
    }

    /// A watched file descriptor is ready.
    fn ready(&mut self, ctx: &mut Context, source: SourceId, readiness: Readiness) {
        let _ = (ctx, source, readiness);
    }

    /// A timer has expired.
    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        let _ = (ctx, timer);
    }

    /// An adopted orphan has exited. The loop calls this method only after
    /// [`Server::adopt_orphans`](crate::Server::adopt_orphans).
    fn orphans_changed(&mut self, ctx: &mut Context) {
        let _ = ctx;
    }

    /// The server begins to stop. It accepts no new clients, and it closes each client when the client no longer
    /// [waits](Service::is_waiting) for the service, or shortly before the drain timeout. A client that is cut meanwhile can
    /// still come back. A service whose work does not
    /// end by itself must stop it here, so that clients still get the last output.
    fn draining(&mut self, ctx: &mut Context) {
        let _ = ctx;
    }

    /// The server stops, and all clients have disconnected. The service must stop everything that it still runs.
    fn stopping(&mut self, ctx: &mut Context) {
        let _ = ctx;
    }

    /// Whether the loop may end. The loop calls this method in every turn after `stopping`, until the drain timeout.
    fn is_stopped(&self) -> bool {
        true
    }

    /// The failure for which the service stopped the server, if there was one. [`Server::start`](crate::Server::start)
    /// checks it after `started`. [`Server::run`](crate::Server::run) returns the service, so that you can check it
    /// after the loop has ended.
    fn failure(&self) -> Option<&str> {
        None
    }

    /// Visits every client and caller that the service keeps state for. The loop compares them with the registry: debug builds
    /// and fuzzers after every disconnect, others now and then.
    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        let _ = visit;
    }

    /// Whether [`Service::clients`] visits every client of this service from `connected` on, until it is closed. The loop then
    /// checks that none is missing.
    fn keeps_every_client(&self, id: ServiceId) -> bool {
        let _ = id;
        false
    }

    /// The service with this id, for a service that [combines several](Route::with_service_id). The loop calls the methods that concern
    /// a client, a file descriptor or a timer on the service that it belongs to. `None` if there is no such service any more.
    fn select(&mut self, id: ServiceId) -> Option<&mut dyn Service>
    where
        Self: Sized,
    {
        let _ = id;
        Some(self)
    }

    /// The service itself, if it opens connections.
    fn outgoing(&mut self) -> Option<&mut dyn Outgoing> {
        None
    }

    /// The service itself, if it reports about itself.
    fn report(&self) -> Option<&dyn Report> {
        None
    }

    /// The service itself, if its clients pass to the program that replaces this one.
    fn portable(&self) -> Option<&dyn Portable> {
        None
    }

    /// The same as [`Service::portable`].
    fn portable_mut(&mut self) -> Option<&mut dyn Portable> {
        None
    }
}

/// What a service learns about the connections that it opens with [`Context::connect`] and [`Context::request`].
pub trait Outgoing {
    /// A connection that [`Context::connect`] began is open. The service can send to it from now on, and the methods
    /// of [`Service`] follow as for a client. `response` is the server's answer to the handshake.
    fn connect_opened(&mut self, ctx: &mut Context, client: ClientId, response: &ResponseHead<'_>) {
        let _ = (ctx, client, response);
    }

    /// A connection that [`Context::connect`] began could not be opened, and no further attempt is made. Its id is no longer
    /// valid.
    fn connect_failed(&mut self, ctx: &mut Context, client: ClientId, error: &ConnectError) {
        let _ = (ctx, client, error);
    }

    /// An attempt to open a connection, or to resume it after a cut, has failed. The next one follows after `delay`.
    fn connect_retrying(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        error: &ConnectError,
        delay: Duration,
    ) {
        let _ = (ctx, client, error, delay);
    }

    /// A resumable connection that [`Context::connect`] opened was cut. The loop comes back by itself. Messages to it are
    /// kept meanwhile. `resumed` or `disconnected` follows.
    fn cut(&mut self, ctx: &mut Context, client: ClientId, reason: &CloseReason) {
        let _ = (ctx, client, reason);
    }

    /// A connection that was [cut](Outgoing::cut) continues.
    fn resumed(&mut self, ctx: &mut Context, client: ClientId) {
        let _ = (ctx, client);
    }

    /// Returns the settings of a resumable connection again that the service had opened before the program replaced itself
    /// ([`Portable`]). With `None`, the connection ends.
    fn reconnect(&mut self, ctx: &mut Context, client: ClientId) -> Option<Connect> {
        let _ = (ctx, client);
        None
    }

    /// A part of the response to a request that [`Context::request`] has sent, or the end of the connection for it.
    fn response(&mut self, ctx: &mut Context, client: ClientId, event: ResponseEvent<'_>) {
        let _ = (ctx, client, event);
    }
}

/// What a service reports to operators.
pub trait Report {
    /// The fields that the service adds to [`Status`](crate::Status).
    fn status(&self) -> StatusFields {
        StatusFields::default()
    }

    /// Writes the metrics of the service, for `GET /metrics`.
    fn metrics(&self, out: &mut Metrics) {
        let _ = out;
    }

    /// How long the service took to answer requests, for the charts of the console. `None` if it does not measure it.
    fn answer_times(&self) -> Option<Histogram> {
        None
    }

    /// Whether the service can serve clients now. `GET /readyz` reports it. A service that combines others is ready if it can accept
    /// clients for any of them.
    fn is_ready(&self) -> bool {
        true
    }

    /// Visits what the service holds in memory for each principal, in bytes, besides what the server holds for connections. A
    /// principal may be visited several times. It counts for [`Config::memory`](crate::Config::memory). The server asks about once a
    /// second, and when memory may be short, so the answer must be fast.
    fn held(&self, visit: &mut dyn FnMut(&Principal, usize)) {
        let _ = visit;
    }

    /// The name of one of several services in the metrics, such as its path.
    fn name(&self, id: ServiceId) -> Option<&str> {
        let _ = id;
        None
    }

    /// Visits the path of each service that this one combines, and whether that service is ready. `GET /readyz` reports them.
    fn routes(&self, visit: &mut dyn FnMut(&str, bool)) {
        let _ = visit;
    }
}

/// What a service holds for its clients, in bytes.
pub(crate) fn held_by(service: &impl Service) -> usize {
    let mut held = 0;
    if let Some(report) = service.report() {
        report.held(&mut |_, bytes| held += bytes);
    }
    held
}

/// A service that the program passes on when it replaces itself.
pub trait Portable {
    /// What the service of this id is called in the state that the program passes on when it replaces itself. A service continues the
    /// one of the same name, and is started if there was none. The clients of one that no other continues get CLOSE 1012.
    fn state_name(&self, id: ServiceId) -> Option<Cow<'_, str>> {
        let _ = id;
        None
    }

    /// Whether the service passes on what it keeps for the clients of this id when the program replaces itself. Otherwise, they get
    /// CLOSE 1012 then.
    fn carries(&self, id: ServiceId) -> bool {
        let _ = id;
        true
    }

    /// Whether the service can also pass on the calls of this id that wait for its answer, and the streams of events. Otherwise, they
    /// get 503, or end.
    fn carries_calls(&self, id: ServiceId) -> bool {
        let _ = id;
        false
    }

    /// Completes what is half done: the program is about to replace itself. The calls that do not [pass](Portable::carries_calls) were
    /// answered with 503.
    fn make_portable(&mut self, ctx: &mut Context) {
        let _ = ctx;
    }

    /// Writes down what the service keeps, for [`Portable::restore`] of the program that replaces this one: at most one
    /// [value](Saver::value).
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        let _ = to;
    }

    /// Continues with what [`Portable::save`] of the program before has written. It is called in place of [`Service::started`], unless
    /// that service has written nothing or null. The clients are connected: `connected` is not called for them. If
    /// [`Loader::is_rehearsal`] is true, the state is only checked.
    ///
    /// # Errors
    ///
    /// The state cannot be read. The program that has written it goes on.
    fn restore(&mut self, ctx: &mut Context, from: &mut Loader) -> Result<(), RecordError> {
        let _ = (ctx, from);
        Ok(())
    }
}

/// Writes down what a service keeps; null if it keeps nothing.
pub(crate) fn save_service<'a>(service: &'a dyn Service, to: &mut Saver<'a>) {
    let before = to.written();
    if let Some(portable) = service.portable() {
        portable.save(to);
    }
    if to.written() == before {
        to.null();
    }
}

/// Continues a service with what the program before has written of it, or starts one of which that program has written nothing.
pub(crate) fn continue_service(
    service: &mut dyn Service,
    ctx: &mut Context,
    from: &mut Loader,
) -> Result<(), RecordError> {
    if !from.word("null") {
        match service.portable_mut() {
            Some(portable) => return portable.restore(ctx, from),
            None => from.skip()?,
        }
    }
    if !from.is_rehearsal() {
        service.started(ctx);
    }
    Ok(())
}

/// A part of the response to a request of a service, for [`Outgoing::response`]. `Head` comes first, then any number of `Data`, then
/// `End`. `Failed` may come before `End`, or after an `End` whose connection is reusable. Nothing follows it.
#[derive(Debug)]
#[non_exhaustive]
pub enum ResponseEvent<'a> {
    /// The status and the fields.
    Head(&'a ResponseHead<'a>),
    /// The next bytes of the body.
    Data(&'a [u8]),
    /// The response is complete.
    End {
        /// Whether [`Context::request_again`] may use the connection. If so, `Failed` follows when it has ended; otherwise nothing
        /// follows.
        is_reusable: bool,
    },
    /// The connection could not be opened, or has ended before the response was complete, or after it.
    Failed {
        /// Why.
        error: &'a ConnectError,
        /// Whether the server may have received the whole request, so that it may have acted on it.
        was_sent: bool,
    },
}

/// How a request is handled, and who may make it.
///
/// ```
/// use outrigger::{Rejection, Request, Route, Scope, Service};
///
/// struct Counter;
///
/// impl Service for Counter {
///     fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
///         match request.path() {
///             "/live" => Ok(Route::web_socket().with_scope(Scope::Watch)),
///             "/reset" => Ok(Route::call().with_scope(Scope::All).with_max_body(0)),
///             _ => Err(Rejection::not_found()),
///         }
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Route {
    pub(super) handling: Handling,
    pub(super) service_id: ServiceId,
    pub(super) scope: Scope,
    pub(super) is_public: bool,
    pub(super) is_resumable: bool,
    pub(super) max_body: usize,
    pub(super) hint: Option<&'static str>,
    pub(super) refusal: Option<Rejection>,
}

/// The methods that the loop calls for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handling {
    /// [`Service::accept`] and [`Service::connected`].
    WebSocket,
    /// [`Service::call`], with the whole request.
    Call,
}

impl Route {
    fn new(handling: Handling) -> Self {
        Self {
            handling,
            service_id: ServiceId::ALL,
            scope: Scope::Use,
            is_public: false,
            is_resumable: true,
            max_body: usize::MAX,
            hint: None,
            refusal: None,
        }
    }

    /// The request is a WebSocket handshake. [`Service::accept`] and
    /// [`Service::connected`] follow. Clients may make the connection resumable.
    #[must_use]
    pub fn web_socket() -> Self {
        Self::new(Handling::WebSocket)
    }

    /// The request is an HTTP call. [`Service::call`] follows with the whole request.
    #[must_use]
    pub fn call() -> Self {
        Self::new(Handling::Call)
    }

    /// Sets the service that handles the request, for a service that combines several. From then on,
    /// [`Context::service_id`] returns this id in every call that concerns the client.
    #[must_use]
    pub fn with_service_id(self, service_id: ServiceId) -> Self {
        Self { service_id, ..self }
    }

    /// Sets the lowest scope that the request needs; the default is [`Scope::Use`]. The server rejects the request of a client
    /// whose token has a lower scope with 403.
    #[must_use]
    pub fn with_scope(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    /// Sets the `detail` of the response to a request that is no WebSocket handshake: 405 or 426.
    #[must_use]
    pub fn with_hint(self, hint: &'static str) -> Self {
        let hint = Some(hint);
        Self { hint, ..self }
    }

    /// Requires neither a token nor a scope, because the answer holds nothing secret, such as a page. A token is not looked at, so
    /// [`Context::principal`] and [`Context::scope`] are those of a peer without one. Host and Origin are checked.
    #[must_use]
    pub fn public(self) -> Self {
        Self {
            is_public: true,
            ..self
        }
    }

    /// Sets whether clients may make their connection resumable with this handshake.
    #[must_use]
    pub fn with_resumption(self, is_resumable: bool) -> Self {
        Self {
            is_resumable,
            ..self
        }
    }

    /// Replaces a rejection with 404 by another one.
    pub(crate) fn with_not_found(mut self, rejection: Rejection) -> Self {
        if let Some(refusal) = &mut self.refusal
            && refusal.status == StatusCode::NOT_FOUND
        {
            *refusal = rejection;
        }
        self
    }

    /// Sets the maximum length of the body of the call. A body over this limit or over `max_message` gets 413.
    #[must_use]
    pub fn with_max_body(self, max_body: usize) -> Self {
        Self { max_body, ..self }
    }
}

/// Refuses the request. Only a client whose token has the scope of the route gets the rejection; others get 403, so that they do
/// not learn the reason.
impl From<Rejection> for Route {
    fn from(rejection: Rejection) -> Self {
        Self {
            refusal: Some(rejection),
            ..Self::call()
        }
    }
}
