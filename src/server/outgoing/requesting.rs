//! HTTP requests of services to other servers. Such a request is an outgoing connection like any other: an entry of the one registry,
//! which [`connecting`](super::connecting) opens. Where the opening handshake would follow, it sends the request. When the response is
//! complete, the connection can carry another request.
//!
//! ```text
//! Waiting -> Resolving -> Connecting -> (Tunnel) -> (TLS) Exchange <-> Idle
//! ```

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "client")]
use crate::protocol::client::HandshakeError;
use crate::protocol::client::{ExchangeEvent, HttpRequest, ResponseHead};
use crate::protocol::{CloseReason, Input};
use crate::server::context::Context;
use crate::server::core::Core;
use crate::server::error::SendError;
use crate::server::event_loop::Server;
use crate::server::id::ClientId;
use crate::server::outgoing::{Connect, ConnectError, Failures, Outgoing, Requesting};
use crate::server::service::{ResponseEvent, Service};

impl Context {
    /// Sends an HTTP request to the target of `connect`. Returns at once, with the id of the connection. [`Outgoing::response`](crate::Outgoing::response)
    /// follows. [`Connect::with_retry`] applies until the whole request is sent; after that, it is never repeated.
    ///
    /// To stop reading the response for a while, use [`Context::set_held`], and to drop it, [`Context::close`]. The connection does not
    /// count as a client. When the server stops, the service ends it, or it ends with the drain timeout.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Invalid`] if the URL or a field has characters that HTTP does not allow, and
    /// [`ConnectError::Cancelled`] if the loop has stopped or the program is about to be replaced. No event follows.
    pub fn request(
        &mut self,
        connect: &Arc<Connect>,
        request: HttpRequest,
    ) -> Result<ClientId, ConnectError> {
        connect.check()?;
        if !request.is_valid() {
            let why = "a header field contains characters that HTTP does not allow";
            return Err(ConnectError::Invalid(why.to_owned()));
        }
        let core = &mut self.core;
        if core.is_replaced || core.shutdown.finishes_until().is_some() {
            return Err(ConnectError::Cancelled);
        }
        let (now, first) = (core.env.now, Failures::default());
        let outgoing = Outgoing::new(Arc::clone(connect), None, first, now, Duration::ZERO);
        Ok(core.add_outgoing(outgoing.with_request(request)))
    }

    /// Sends another request on a connection whose last response has ended with `is_reusable`.
    ///
    /// # Errors
    ///
    /// The connection has ended, or is in use.
    pub fn request_again(
        &mut self,
        client: ClientId,
        request: HttpRequest,
    ) -> Result<(), SendError> {
        let (client, env) = self.core.own(client).ok_or(SendError::Gone)?;
        let now = env.now;
        let outgoing = client.wire.protocol.outgoing_mut();
        if !request.is_valid() || !outgoing.is_some_and(|one| one.request_again(now, request)) {
            return Err(SendError::Gone);
        }
        client.send_request(env);
        Ok(())
    }
}

impl Core {
    /// Whether the connection still carries a request of the service.
    fn is_requesting(&self, id: ClientId) -> bool {
        let client = self.registry.get(id);
        let outgoing = client.and_then(|client| client.wire.protocol.outgoing());
        outgoing.is_some_and(|one| !one.has_failed())
    }
}

/// Handles a part of the response to a request.
pub(crate) fn handle_exchange<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    id: ClientId,
    event: ExchangeEvent<'_>,
    input: &mut Input<'_>,
) {
    if !ctx.core.is_requesting(id) {
        // The service has closed the connection in the middle of its input.
        return input.clear();
    }
    let may_end = matches!(event, ExchangeEvent::Head(_) | ExchangeEvent::Data(_));
    match event {
        ExchangeEvent::Head(head) => {
            let Some(head) = ResponseHead::parse(&head) else {
                return;
            };
            ctx.core.with(id, |client, env| {
                if let Some(outgoing) = client.wire.protocol.outgoing_mut() {
                    outgoing.begin_body();
                    outgoing.connect.keep_cookies(&head);
                }
                client.rearm(env);
            });
            pass_on(ctx, service, id, ResponseEvent::Head(&head));
        }
        ExchangeEvent::Data(data) => {
            ctx.spend(1 + data.len() / 512);
            pass_on(ctx, service, id, ResponseEvent::Data(data));
        }
        ExchangeEvent::End { is_reusable } => {
            // What follows the response was not asked for.
            let is_reusable = is_reusable && input.is_empty();
            input.clear();
            ctx.core.with(id, |client, env| {
                if let Some(outgoing) = client.wire.protocol.outgoing_mut() {
                    outgoing.begin_idle(env.now);
                    if let Some(requesting) = &mut outgoing.requesting {
                        requesting.is_told = !is_reusable;
                    }
                }
                client.rearm(env);
            });
            pass_on(ctx, service, id, ResponseEvent::End { is_reusable });
            if !is_reusable {
                ctx.core
                    .with(id, |client, env| client.end(env, CloseReason::eof()));
            }
        }
        ExchangeEvent::Failed(error) => {
            input.clear();
            let error = ConnectError::Handshake(error);
            ctx.core.with(id, |client, env| client.fail(env, error));
        }
    }
    // The last bytes of a body end it, and no input follows that would show it.
    if may_end && ctx.core.is_requesting(id) {
        let end = ctx.core.with(id, |client, _| {
            let outgoing = client.wire.protocol.outgoing_mut()?;
            let requesting = outgoing.response()?;
            requesting.exchange.receive(&mut Input::default(), 0)
        });
        if let Some(end @ ExchangeEvent::End { .. }) = end.flatten() {
            handle_exchange(ctx, service, id, end, input);
        }
    }
}

/// Passes a part of a response to the service that has sent the request.
fn pass_on<S: Service>(ctx: &mut Context, service: &mut S, id: ClientId, event: ResponseEvent<'_>) {
    let service = service.select(ctx.core.service_id);
    if let Some(outgoing) = service.and_then(|service| service.outgoing()) {
        outgoing.response(ctx, id, event);
    }
}

impl<S: Service> Server<S> {
    /// Reports the end of a connection for requests.
    pub(super) fn report_exchange_end(
        &mut self,
        id: ClientId,
        requesting: &Requesting,
        outgoing: &mut Outgoing,
    ) {
        if requesting.is_told {
            return;
        }
        let error = outgoing.take_failure().unwrap_or(ConnectError::Cancelled);
        log::debug!("{id} request to {}: {error}", outgoing.connect.target());
        let event = if requesting.is_ended {
            ResponseEvent::End { is_reusable: false }
        } else {
            ResponseEvent::Failed {
                error: &error,
                was_sent: requesting.was_sent,
            }
        };
        self.call_outgoing(|service, ctx| service.response(ctx, id, event));
    }
}

impl ConnectError {
    /// Whether the server's response breaks a rule of HTTP, so that it would do so again.
    #[cfg(feature = "client")]
    pub(crate) fn is_malformed(&self) -> bool {
        matches!(self, Self::Handshake(HandshakeError::Invalid(_)))
    }
}
