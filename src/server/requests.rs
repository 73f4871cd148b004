//! Requests: whom they are for, and whether they are answered or upgraded.

use super::admin;
use super::context::Context;
use super::id::{ClientId, ServiceId};
use super::service::{Route, Service};
use crate::protocol::deflate::Offer;
use crate::protocol::{CloseReason, Rejection, Request, Response, StatusCode};

/// A subprotocol that says nothing: the messages are those of the service.
const OWN_PROTOCOL: &str = "outrigger";

/// The longest path of a client, in bytes. It is kept as long as the client is connected.
const MAX_PATH: usize = 1024;

/// Answers a whole request head, or has the rest of the request come.
pub(super) fn handle_head<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    id: ClientId,
    head: &[u8],
) {
    let max_headers = ctx.config.limits.max_headers;
    let answered = Request::parse_within(head, max_headers).and_then(|request| {
        let service_id = if admin::is_for(&request) {
            ServiceId::ALL
        } else {
            service.service_id(&request)
        };
        ctx.begin_request(id, &request, service_id);
        if !admin::is_open(&request) {
            ctx.check_access(id, &request)?;
        }
        ctx.note_authentication(id, &request);
        let route = if request.is_preflight() {
            // Who has shown no token may not have one kept.
            admin::expect_no_body(&request)?;
            Route::Http
        } else if admin::is_for(&request) {
            admin::check(&request)?;
            Route::Http
        } else if ctx.is_stopping() && !ctx.is_new(id) {
            return Err(Rejection::unavailable("stopping").because("stopping"));
        } else {
            service.route(&request)?
        };
        match route {
            Route::WebSocket => upgrade(ctx, service, id, &request),
            Route::Http if ctx.begin_call(id, &request, head, service.max_body(&request))? => {
                handle_call(ctx, service, id, &request, b"");
                Ok(())
            }
            Route::Http => Ok(()),
        }
    });
    if let Err(rejection) = answered {
        ctx.reject(id, &rejection);
    }
}

pub(super) fn too_many_of_address() -> Rejection {
    Rejection::unavailable("too many clients from this address").because("max_clients_per_address")
}

fn too_many_clients() -> Rejection {
    Rejection::unavailable("too many clients").because("max_clients")
}

/// Opens a connection, if the service takes it.
fn upgrade<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    id: ClientId,
    request: &Request<'_>,
) -> Result<(), Rejection> {
    let upgrade = request.upgrade()?;
    if request.path().len() > MAX_PATH {
        let why = format!("the path is longer than {MAX_PATH} bytes");
        return Err(Rejection::new(StatusCode::URI_TOO_LONG, why));
    }
    if ctx.is_full() {
        return Err(too_many_clients());
    }
    if ctx.has_too_many(id) {
        return Err(too_many_of_address());
    }
    let offer = match &ctx.shared.compression {
        Some(_) => Offer::find(request)?,
        None => None,
    };
    let mut accept = service.accept(ctx, request)?;
    if let Some(cookie) = &ctx.config.affinity_cookie {
        accept = accept.field("Set-Cookie", format!("{cookie}; Path=/; HttpOnly"))?;
    }
    // A browser that has to put the token among its subprotocols has to be answered with another of them.
    if !accept.has_protocol() && upgrade.protocols().contains(&OWN_PROTOCOL) {
        accept = accept.protocol(OWN_PROTOCOL);
    }
    let mut codec = None;
    if let Some((compression, offer)) = ctx.shared.compression.as_ref().zip(offer) {
        let agreed = compression.accept(offer);
        let value = agreed.agreement().to_string();
        accept = accept.field("Sec-WebSocket-Extensions", value)?;
        codec = Some(agreed);
    }
    ctx.open(id, &upgrade, &accept, request.path(), codec);
    if let Some(remote) = ctx.remote(id) {
        log::info!("{id} connected: path={:?} remote={remote}", request.path());
    }
    service.connected(ctx, id, request);
    if ctx.is_stopping() {
        ctx.close_with(id, CloseReason::shutdown());
    }
    Ok(())
}

/// Has a whole call answered.
pub(super) fn handle_call<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    id: ClientId,
    request: &Request<'_>,
    body: &[u8],
) {
    log::debug!("{id} {} {:?}", request.method(), request.path());
    let (full, too_many) = (ctx.is_full(), ctx.has_too_many(id));
    ctx.begin_call_of(id);
    if request.is_preflight() {
        ctx.respond(id, &Response::preflight());
    } else if admin::is_for(request) {
        ctx.service_id = ServiceId::ALL;
        let response = admin::answer(ctx, service, request);
        // Each of the clients that it lists costs more than its bytes do.
        ctx.spend(response.body_len() / 80);
        ctx.respond(id, &response);
    } else if full || too_many {
        let rejection = if full {
            too_many_clients()
        } else {
            too_many_of_address()
        };
        ctx.counters.counted(&rejection);
        ctx.respond(id, &Response::from(&rejection));
    } else {
        service.call(ctx, id, request, body);
    }
}
