//! Selects the service for each request, and upgrades, answers or rejects the request.

pub(super) mod admin;
pub(super) mod operator;

use super::access::authorization::handle_wrong_token;
use super::access::{RequestSource, Scope};
use super::address::Remote;
use super::client::Handshake;
use super::context::Context;
use super::core::Core;
use super::env::Env;
use super::id::{ClientId, ServiceId};
use super::resume::token::ResumeToken;
use super::resume::{self, Ask};
use super::service::{Handling, Route, Service};
use crate::log_event::{log_event, word};
use crate::protocol::deflate::Offer;
use crate::protocol::handshake::Upgrade;
use crate::protocol::http::HttpEvent;
use crate::protocol::{Accept, CloseReason, Rejection, Request, Response, StatusCode};

/// The subprotocol that clients can offer beside their token. It does not change the messages.
const OWN_PROTOCOL: &str = "outrigger";

/// The field with which the console marks its requests, so that its figures do not include them.
const UNCOUNTED: &str = "outrigger-console";

/// The maximum length of a request's path in bytes. The server keeps the path while the client is connected.
const MAX_PATH: usize = 1024;

/// The maximum length of the path in the log line of a rejection. It is kept while the rejection is delayed.
const MAX_REJECTED_PATH: usize = 256;

/// Handles an HTTP event of a connection that is not upgraded.
#[inline(never)]
pub(super) fn handle_http<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    id: ClientId,
    event: HttpEvent<'_>,
) {
    ctx.core.begin_head(id);
    let rejected = match event {
        HttpEvent::Head(head) => return handle_head(ctx, service, id, &head),
        HttpEvent::Call { head, body } => match Request::parse_again(&head) {
            Ok(mut request) => {
                // The head was accepted before, so the path is below the base path or needs none.
                request.take_base(&ctx.config().base_path);
                return handle_call(ctx, service, id, &request, &body);
            }
            Err(rejection) => rejection,
        },
        HttpEvent::Proxied(address) => return ctx.core.set_proxied(id, address),
        HttpEvent::BadRequest(rejection) => rejection,
    };
    ctx.core
        .with(id, |client, env| client.reject(env, &rejected));
}

/// Answers a request head, or waits for the request's body.
fn handle_head<S: Service>(ctx: &mut Context, service: &mut S, id: ClientId, head: &[u8]) {
    let max_headers = ctx.config().limits.max_headers;
    let answered = Request::parse_within(head, max_headers).and_then(|mut request| {
        let is_known = request.take_base(&ctx.config().base_path) || admin::needs_no_base(&request);
        route(ctx, service, id, &request, head, is_known)
            .map_err(|rejection| with_path(rejection, &request, &ctx.core.env))
    });
    if let Err(rejection) = answered {
        ctx.core
            .with(id, |client, env| client.reject(env, &rejection));
    }
}

/// Records the beginning of a request's path in its rejection, unless the path contains a token.
fn with_path(rejection: Rejection, request: &Request<'_>, env: &Env) -> Rejection {
    let path = request.path();
    // More is searched than shown, so that a token that is cut off at the end is found.
    let searched = &path[..path.floor_char_boundary(MAX_PATH)];
    let shown = env.config.access.without_secrets(searched, &env.links);
    rejection.at(&shown[..shown.floor_char_boundary(MAX_REJECTED_PATH)])
}

/// Asks the service how it handles the request, checks access, and upgrades or answers the request, or waits for its body. With
/// `is_known` false, the path is not below the base path.
fn route<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    id: ClientId,
    request: &Request<'_>,
    head: &[u8],
    is_known: bool,
) -> Result<(), Rejection> {
    ctx.core.forward(id, request)?;
    if !is_known {
        let why = format!("paths begin with {}/", ctx.config().base_path);
        return Err(Rejection::not_found().detail(why));
    }
    // A longer path is not searched for tokens, which would take time.
    if request.path().len() > MAX_PATH {
        let why = format!("the path is longer than {MAX_PATH} bytes");
        return Err(Rejection::new(StatusCode::URI_TOO_LONG, why));
    }
    let is_admin = admin::is_for(request);
    // Only a peer with the scope learns why a request is refused.
    let mut route = if is_admin {
        admin::route(request)
    } else {
        service.route(request).unwrap_or_else(Route::from)
    };
    // A service may have the path for WebSockets.
    if admin::is_admin_path(request.path())
        && let Some(refusal) = &mut route.refusal
        && refusal.status == StatusCode::NOT_FOUND
    {
        refusal.message = "this path answers HTTP requests, and no WebSocket".into();
    }
    let is_served = ctx.core.begin_request(id, request, route.service_id);
    if !ctx.core.authenticate(id, request, route.is_public)? {
        return Ok(());
    }
    ctx.core.assign_account(id);
    ctx.core.check_link(id, request)?;
    let route = if request.is_preflight() {
        // The server keeps no memory for a peer without a token.
        request.expect_no_body()?;
        Route::call()
    } else if is_admin {
        let needed = admin::check(request)?;
        ctx.core.check_scope(id, needed)?;
        route
    } else if !is_served && !resume::is_return(request) {
        return Err(Rejection::unavailable("stopping").because("stopping"));
    } else {
        if !route.is_public {
            ctx.core.check_scope(id, route.scope)?;
        }
        route
    };
    match route {
        Route {
            refusal: Some(rejection),
            ..
        } => Err(rejection),
        Route {
            handling: Handling::WebSocket,
            is_resumable,
            hint,
            ..
        } => upgrade(ctx, service, id, request, is_resumable).map_err(|rejection| {
            match (rejection.status, hint) {
                (StatusCode::METHOD_NOT_ALLOWED | StatusCode::UPGRADE_REQUIRED, Some(hint)) => {
                    rejection.detail(hint)
                }
                _ => rejection,
            }
        }),
        Route { max_body, .. } => begin_call(ctx, service, id, request, head, max_body),
    }
}

/// Waits for the body of a call, or handles the call if it has none.
fn begin_call<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    id: ClientId,
    request: &Request<'_>,
    head: &[u8],
    max_body: usize,
) -> Result<(), Rejection> {
    let begun = ctx.core.with(id, |client, env| {
        client.begin_call(env, request, head, max_body)
    });
    if begun.transpose()? == Some(true) {
        handle_call(ctx, service, id, request, b"");
    }
    Ok(())
}

impl Core {
    /// Begins a request for a service. Returns whether it may be served: not if the service ends with the upgrade that is about to
    /// happen, and a stopping server serves only the first request of a connection that it had accepted.
    fn begin_request(
        &mut self,
        id: ClientId,
        request: &Request<'_>,
        service_id: ServiceId,
    ) -> bool {
        self.enter_service(service_id);
        let is_stopping = self.shutdown.is_stopping();
        let is_departing = self.departing.contains(&service_id);
        let Some(client) = self.registry.get_mut(id) else {
            return false;
        };
        client.service_id = service_id;
        client.wire.set_trace(request.trace_parent());
        let is_served =
            !is_stopping || (client.wire.protocol.is_new() && self.shutdown.serves_newcomer(id));
        is_served && !is_departing
    }

    /// Identifies the peer that makes a request, and checks that it may connect. Returns `false` if the request is rejected later,
    /// because its token is wrong.
    fn authenticate(
        &mut self,
        id: ClientId,
        request: &Request<'_>,
        is_public: bool,
    ) -> Result<bool, Rejection> {
        let is_stopping = self.shutdown.is_stopping();
        let Self {
            registry,
            env,
            listen,
            ..
        } = self;
        let Some(client) = registry.get_mut(id) else {
            return Ok(false);
        };
        let access = &env.config.access;
        let is_user = client.wire.remote.user().is_some();
        let from = RequestSource {
            listen,
            links: &env.links,
            is_guarded: is_user,
            is_encrypted: client.wire.tls().is_some(),
        };
        let origin = access.known_origin(request, from);
        // A stopping server answers one request on each connection and then closes it.
        client
            .wire
            .begin_request(request, origin.as_deref(), is_stopping);
        let needs_no_token = client.wire.needs_no_token(env);
        let is_named = is_user || client.wire.forwarded_user().is_some();
        // The answer to a request that needs no token must not show whether its token is right.
        client.wire.credential = if is_named || is_public {
            None
        } else {
            let link = || access.link(request, &env.links);
            access.credential(request).or_else(link)
        };
        let is_known = client.wire.credential.is_some();
        // A certificate does not make up for a token that was revoked: the holder of a token gets no more than it permits.
        let has_wrong_token =
            !is_named && !is_known && !access.tokens.is_empty() && access.presents_token(request);
        let is_authenticated = (needs_no_token && !has_wrong_token) || is_known || is_public;
        if !admin::is_open(request)
            && let Err(rejection) = access.check(request, from, is_authenticated)
        {
            let is_wrong = rejection.status == StatusCode::UNAUTHORIZED;
            if is_wrong
                && access.presents_token(request)
                && let Some(delay) = handle_wrong_token(env, client.wire.remote)
            {
                let rejection = with_path(rejection, request, env);
                client.reject_later(env, rejection, delay);
                return Ok(false);
            }
            return Err(rejection);
        }
        let needs_token = !access.tokens.is_empty() && !needs_no_token;
        client.wire.set_trusted(!needs_token || is_known);
        Ok(true)
    }
}

/// Makes room for a new client and asks its service. Returns what the 101 response says.
fn admit<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    id: ClientId,
    request: &Request<'_>,
    upgrade: &Upgrade<'_>,
) -> Result<Accept, Rejection> {
    let leaver = ctx.core.find_room(id)?;
    ctx.core.check_link_clients(id)?;
    ctx.core.handshaking = Some(id);
    let service = service.select(ctx.core.service_id);
    let accept = service.map_or_else(
        || Err(Rejection::not_found()),
        |service| service.accept(ctx, request),
    );
    ctx.core.handshaking = None;
    let accept = accept?;
    if let Some(leaver) = leaver {
        ctx.core.evict(leaver);
    }
    // A browser that sends the token as a subprotocol requires another of its subprotocols in the response.
    if !accept.has_protocol() && upgrade.protocols().contains(&OWN_PROTOCOL) {
        return Ok(accept.protocol(OWN_PROTOCOL));
    }
    Ok(accept)
}

/// Opens a connection, if the service accepts it.
fn upgrade<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    id: ClientId,
    request: &Request<'_>,
    is_resumable: bool,
) -> Result<(), Rejection> {
    let is_offered = ctx.config().resume.is_some() && is_resumable;
    let asked = resume::read(request, is_offered, ctx.config().node.as_deref())?;
    if let Some(Ask::Back {
        token, received, ..
    }) = &asked
        && !request.wants_websocket()
    {
        // A page cannot see the status of a failed handshake, so it sends a plain request to learn it.
        resume::check(ctx, id, request, token, *received)?;
    }
    let upgrade = request.upgrade()?;
    let Some(remote) = ctx.remote(id) else {
        return Ok(());
    };
    let offer = match &ctx.core.env.protocol.compression {
        Some(_) => Offer::find(request)?,
        None => None,
    };
    let notice = match asked {
        Some(Ask::Back {
            token,
            received,
            notice,
        }) => {
            let asked = (token, received, notice);
            return resume::resume(ctx, id, request, &upgrade, offer, asked);
        }
        Some(Ask::New { notice }) => Some(notice),
        None => None,
    };
    let mut accept = admit(ctx, service, id, request, &upgrade)?;
    let token = notice.map(|_| ResumeToken::generate(id, ctx.config().node.as_deref()));
    let lasting = accept.clone();
    if let Some(token) = &token {
        accept = resume::offer(accept, token)?;
    }
    let (accept, codec) = resume::negotiate(ctx, id, accept, offer)?;
    let handshake = Handshake::of(request);
    let handshake = ctx.core.registry.share_handshake(handshake);
    ctx.core.registry.count_client();
    ctx.core.with(id, |client, env| {
        client.open(env, &upgrade, &accept, handshake, codec);
        if let Some((token, notice)) = token.zip(notice) {
            client.make_resumable(env, &token, lasting, notice);
        }
        if let Some(name) = resume::heartbeat(request) {
            client.answer_heartbeats(env, &name, 0);
        }
    });
    log_connected(ctx, id, request, &remote);
    if let Some(service) = service.select(ctx.core.service_id) {
        service.connected(ctx, id, request);
    }
    if ctx.is_stopping() {
        ctx.core
            .with(id, |client, env| client.close(env, CloseReason::shutdown()));
    }
    Ok(())
}

fn log_connected(ctx: &Context, id: ClientId, request: &Request<'_>, remote: &Remote) {
    let principal = ctx.principal(id);
    let client = ctx.core.registry.get(id);
    let trace = client.and_then(|client| client.wire.trace_ids());
    log_event!(
        Info,
        client = id,
        "connected",
        path = request.path(),
        remote = word(remote),
        principal = word(&principal);
        trace = trace
    );
}

/// Answers a complete call, or passes it to the service.
fn handle_call<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    id: ClientId,
    request: &Request<'_>,
    body: &[u8],
) {
    ctx.core.env.budget.read(body.len());
    let asks_not_to_count = request.header(UNCOUNTED).is_some();
    let leaves_no_trace = asks_not_to_count && ctx.core.scope(id) >= Scope::All;
    let is_poll = leaves_no_trace && matches!(request.method(), "GET" | "HEAD");
    // The console would fill the log that it shows with its own questions.
    if !is_poll {
        log_event!(
            Debug,
            client = id,
            "calls",
            method = word(&request.method()),
            path = request.path(),
        );
    }
    let no_room = ctx.core.room(id).rejection();
    let service_id = ctx.core.registry.get(id).map(|client| client.service_id);
    let is_always_served = service_id == Some(ServiceId::ALWAYS_SERVED);
    ctx.core.env.is_uncounted |= leaves_no_trace;
    let accepts_gzip = request.accepts("accept-encoding", "gzip");
    ctx.core.with(id, |client, env| client.wire.count_call(env));
    if request.is_preflight() {
        ctx.respond(id, &Response::preflight());
    } else if admin::is_for(request) {
        ctx.core.service_id = ServiceId::ALL;
        let response = admin::answer(ctx, service, id, request, body);
        ctx.core.service_id = ServiceId::ALL;
        let Some(response) = response else {
            return;
        };
        // Listing clients takes more time than the length of the response accounts for.
        ctx.spend(response.body_len() / 80);
        let response = if accepts_gzip {
            ctx.spend(response.body_len() / 80);
            response.in_gzip()
        } else {
            response
        };
        ctx.respond(id, &response);
    } else if let Some(rejection) = no_room.filter(|_| !is_always_served) {
        ctx.core.env.counters.counted(&rejection);
        ctx.respond(id, &Response::from(&rejection));
    } else {
        if !leaves_no_trace && !is_always_served {
            ctx.core.env.counters.service_calls += 1;
        }
        // The answers to other callers keep their form.
        ctx.core.env.gzip_for = (accepts_gzip && asks_not_to_count).then_some(id);
        if let Some(service) = service.select(ctx.core.service_id) {
            service.call(ctx, id, request, body);
        }
        ctx.core.env.gzip_for = None;
    }
}
