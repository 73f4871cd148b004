//! The answer of a server to the handshake of an outgoing connection: opens the connection, or lets a client that was cut
//! continue on it.

use super::ConnectError;
use crate::log_event::{log_event, word};
use crate::protocol::Input;
use crate::protocol::client::{ClientEvent, HandshakeError, ResponseHead};
use crate::protocol::deflate::Agreement;
use crate::server::address::Remote;
use crate::server::client::{Handshake, Join};
use crate::server::context::Context;
use crate::server::core::Core;
use crate::server::id::ClientId;
use crate::server::service::Service;

/// The longest resume token that is accepted from a server.
const MAX_TOKEN: usize = 256;

/// Handles the answer of a server, or of a proxy, to a handshake. `input` is what was read behind it.
pub(crate) fn handle_answer<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    id: ClientId,
    event: ClientEvent,
    input: &mut Input<'_>,
) {
    match event {
        // What precedes the TLS handshake does not come from the server.
        ClientEvent::Tunnelled if !input.is_empty() => {
            input.clear();
            let why = "the proxy sent data before the server was asked";
            let error = ConnectError::Handshake(HandshakeError::Invalid(why));
            ctx.core.with(id, |client, env| client.fail(env, error));
        }
        ClientEvent::Tunnelled => {
            ctx.core.with(id, |client, env| {
                client.write_output(env);
                client.begin_upgrade(env);
            });
        }
        ClientEvent::Failed(error) => {
            input.clear();
            ctx.core.with(id, |client, env| {
                client.fail(env, ConnectError::Handshake(error))
            });
        }
        ClientEvent::Opened { head, agreement } => {
            if let Some(response) = ResponseHead::parse(&head) {
                handle_opened(ctx, service, id, &response, agreement, input);
            }
        }
    }
}

/// The server has accepted the handshake of a new connection, or of one on which a client comes back.
fn handle_opened<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    id: ClientId,
    response: &ResponseHead<'_>,
    agreement: Option<Agreement>,
    input: &mut Input<'_>,
) {
    let field = response.single("outrigger-resume").unwrap_or_default();
    let (token, received) = split_resume(field);
    let client = ctx.core.registry.get(id);
    let Some(outgoing) = client.and_then(|client| client.wire.protocol.outgoing()) else {
        return;
    };
    outgoing.connect.keep_cookies(response);
    let target = outgoing.returning.as_ref().map(|one| one.target);
    let path = outgoing.connect.target().path().to_owned();
    let handshake = ctx.core.registry.share_handshake(Handshake::to(&path));
    match target {
        Some(target) => {
            if let Err(why) = check_return(&ctx.core, target, token, received) {
                input.clear();
                let error = ConnectError::NotResumed(why);
                ctx.core.with(id, |client, env| client.fail(env, error));
                return;
            }
            ctx.core.with(id, |client, env| {
                client.open_outgoing(env, handshake, agreement);
                let received = received.unwrap_or_default();
                client.wire.join_later(Join { target, received });
            });
            ctx.core.with(target, |client, env| {
                let messages_in = client.traffic.messages_in;
                if let Some(delivery) = client.wire.delivery_mut() {
                    let token = token.unwrap_or_default();
                    delivery.begin_upstream(env.now, token, messages_in);
                }
            });
        }
        None => {
            ctx.core.registry.count_client();
            ctx.core.with(id, |client, env| {
                if let Some(outgoing) = client.open_outgoing(env, handshake, agreement)
                    && outgoing.connect.is_resumable()
                    && let Some(token) = token
                {
                    client.make_upstream(env, outgoing.connect, token);
                }
            });
            let remote = ctx.remote(id).unwrap_or(Remote::SHARED_UNIX);
            log_event!(
                Info,
                client = id,
                "opened",
                remote = word(&remote),
                resumable = ctx.is_resumable(id),
            );
            let service = service.select(ctx.core.service_id);
            if let Some(outgoing) = service.and_then(|service| service.outgoing()) {
                outgoing.connect_opened(ctx, id, response);
            }
        }
    }
}

/// Splits the value of Outrigger-Resume: the token, and the number of messages that the server has received.
fn split_resume(field: &str) -> (Option<&str>, Option<u64>) {
    let (token, rest) = field.split_once(';').unwrap_or((field, ""));
    let token = token.trim();
    let is_token = !token.is_empty()
        && token.len() <= MAX_TOKEN
        && token.bytes().all(|byte| byte.is_ascii_graphic());
    let received = rest
        .trim()
        .strip_prefix("received=")
        .filter(|count| count.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|count| count.parse().ok());
    (Some(token).filter(|_| is_token), received)
}

/// Checks whether the answer of the server lets the client `target` continue.
fn check_return(
    core: &Core,
    target: ClientId,
    token: Option<&str>,
    received: Option<u64>,
) -> Result<(), &'static str> {
    let client = core.registry.get(target);
    let client = client.filter(|client| client.wire.may_come_back());
    let Some((client, delivery)) =
        client.and_then(|client| Some((client, client.wire.delivery()?)))
    else {
        return Err("the connection has ended");
    };
    let Some(_) = token else {
        return Err("the server no longer offers resumable connections");
    };
    let received = received.ok_or("the server's Outrigger-Resume field is not valid")?;
    delivery
        .check_received(received, client.traffic.messages_out)
        .map_err(|_| "the server reports an impossible number of received messages")
}
