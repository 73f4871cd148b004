//! Answers requests for the server itself: health, readiness, status, metrics, and where clients get a token.

use serde_json::{Map, Value};

use super::operator;
use crate::protocol::{Rejection, Request, Response, StatusCode};
use crate::server::access::{ProtectedResource, Scope};
use crate::server::context::Context;
use crate::server::id::ClientId;
use crate::server::observe::client_query::ClientQuery;
use crate::server::observe::status::StatusFields;
use crate::server::observe::{health, server_metrics};
use crate::server::service::{Report, Route, Service, held_by};

/// Whether the server is alive.
const HEALTH: &str = "/healthz";

/// The same, under the path that other servers of agents have.
const OTHER_HEALTH: &str = "/health";

/// Whether the server accepts clients.
const READINESS: &str = "/readyz";

const STATUS: &str = "/status";

const METRICS: &str = "/metrics";

/// Replaces the program.
const UPGRADE: &str = "/upgrade";

/// Whether the server itself answers calls to a path. A service cannot answer them.
pub(super) fn is_admin_path(path: &str) -> bool {
    [HEALTH, OTHER_HEALTH, READINESS, STATUS, METRICS, UPGRADE].contains(&path)
        || is_metadata_path(path)
        || operator::is_operator_path(path)
}

/// Whether no route can be at a path, because requests would not reach its service.
#[cfg(feature = "cli")]
pub(crate) fn is_reserved_path(path: &str) -> bool {
    let is_below = |prefix: &str| path.starts_with(prefix) || path == prefix.trim_end_matches('/');
    is_admin_path(path) || is_below(operator::PREFIX)
}

/// Whether the metadata of the protected resource are at a path. Clients append the path of the resource.
fn is_metadata_path(path: &str) -> bool {
    let rest = path.strip_prefix(ProtectedResource::PATH);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a request need not be below the base path. Probes do not come through the proxy, and the metadata have a path of their
/// own at the beginning of the proxy's paths.
pub(super) fn needs_no_base(request: &Request<'_>) -> bool {
    is_open(request) || (is_for(request) && is_metadata_path(request.path()))
}

/// Whether a request is for the server itself. A WebSocket upgrade is for the service, whatever its path.
pub(crate) fn is_for(request: &Request<'_>) -> bool {
    !request.wants_websocket() && is_admin_path(request.path())
}

/// How a request for the server itself is handled. [`check`] follows when the peer is known.
pub(crate) fn route(request: &Request<'_>) -> Route {
    let route = Route::call().with_max_body(operator::MAX_BODY);
    // The metadata say where to get a token.
    if is_metadata_path(request.path()) || is_open(request) {
        route.public()
    } else {
        route
    }
}

/// Whether a request needs no authorization. Probes have no token, and their answers reveal nothing.
pub(crate) fn is_open(request: &Request<'_>) -> bool {
    is_for(request)
        && matches!(request.path(), HEALTH | OTHER_HEALTH | READINESS)
        && !request.is_preflight()
}

/// The scope that a request needs. Rejects methods and bodies that these paths do not accept, before the body has arrived.
pub(crate) fn check(request: &Request<'_>) -> Result<Scope, Rejection> {
    if operator::is_operator_path(request.path()) {
        return operator::check(request);
    }
    if request.path() == UPGRADE {
        if request.method() != "POST" {
            return Err(Rejection::method_not_allowed("POST"));
        }
        // A page of another origin can send this type only after a CORS preflight.
        request.expect_json_body()?;
        return Ok(Scope::All);
    }
    if !matches!(request.method(), "GET" | "HEAD") {
        return Err(Rejection::method_not_allowed("GET, HEAD"));
    }
    request.expect_no_body()?;
    Ok(Scope::Metrics)
}

/// Answers a complete call to one of these paths. `None` if the answer follows later.
pub(crate) fn answer<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    caller: ClientId,
    request: &Request<'_>,
    body: &[u8],
) -> Option<Response> {
    Some(match request.path() {
        UPGRADE => match may_upgrade(ctx, caller) {
            Ok(()) => {
                ctx.core.upgrade_callers.push(caller);
                return None;
            }
            Err(rejection) => (&rejection).into(),
        },
        path if operator::is_operator_path(path) => {
            operator::answer(ctx, service, caller, request, body)
        }
        // The loop itself answers, so the answer shows that it runs.
        HEALTH | OTHER_HEALTH => Response::json(StatusCode::OK, r#"{"status":"ok"}"#),
        READINESS => match readiness(ctx, service, request) {
            Ok(body) => Response::json(StatusCode::OK, body),
            Err(rejection) => (&rejection).into(),
        },
        METRICS => Response::new(
            StatusCode::OK,
            server_metrics::CONTENT_TYPE,
            server_metrics::write(ctx, service, expect_ready(ctx, service).is_ok()).into_bytes(),
        ),
        path if is_metadata_path(path) => metadata(ctx),
        _ => match status(ctx, service, request) {
            Ok(status) => Response::json(StatusCode::OK, status),
            Err(rejection) => (&rejection).into(),
        },
    })
}

/// Whether a caller may replace the program.
fn may_upgrade(ctx: &Context, caller: ClientId) -> Result<(), Rejection> {
    let Some(over_tcp) = ctx.core.upgrades else {
        return Err(Rejection::not_found());
    };
    let client = ctx.core.registry.get(caller);
    if !over_tcp && client.is_none_or(|client| !client.wire.remote.is_unix()) {
        let why = "upgrades can be asked for only over a unix socket of this server";
        return Err(Rejection::new(StatusCode::FORBIDDEN, why));
    }
    Ok(())
}

/// Whether the server is ready, or with `?route=PATH` one of its routes. The body lists the routes.
fn readiness<S: Service>(
    ctx: &Context,
    service: &S,
    request: &Request<'_>,
) -> Result<String, Rejection> {
    let mut routes = Map::new();
    if let Some(report) = service.report() {
        report.routes(&mut |path, is_ready| {
            let state = if is_ready { "ready" } else { "not ready" };
            routes.insert(path.to_owned(), state.into());
        });
    }
    let Some(asked) = request.parameters("route").last() else {
        expect_ready(ctx, service)?;
        let mut body = serde_json::json!({"status": "ready"});
        if !routes.is_empty() {
            body["routes"] = routes.into();
        }
        return Ok(body.to_string());
    };
    match routes.get(&*asked).and_then(Value::as_str) {
        Some(_) if ctx.is_stopping() => Err(Rejection::unavailable("stopping")),
        Some("ready") => Ok(r#"{"status":"ready"}"#.to_owned()),
        Some(_) => Err(Rejection::unavailable(
            "the program of the route is not running",
        )),
        None => Err(Rejection::new(
            StatusCode::NOT_FOUND,
            "there is no such route",
        )),
    }
}

/// Rejects if the server stops or its only service is not ready.
fn expect_ready<S: Service>(ctx: &Context, service: &S) -> Result<(), Rejection> {
    if ctx.is_stopping() {
        return Err(Rejection::unavailable("stopping"));
    }
    if !service.report().is_none_or(Report::is_ready) {
        return Err(Rejection::unavailable("a required program is not running"));
    }
    Ok(())
}

/// The metadata of the protected resource.
fn metadata(ctx: &Context) -> Response {
    match &ctx.config().access.protected_resource {
        Some(resource) => Response::json(StatusCode::OK, resource.document()),
        None => (&Rejection::not_found()).into(),
    }
}

/// The answer to `/status`, with the parts that the query asks for.
fn status<S: Service>(
    ctx: &Context,
    service: &S,
    request: &Request<'_>,
) -> Result<String, Rejection> {
    let query = ClientQuery::read(request)?;
    let health = flag(request, "health")?;
    let usage = flag(request, "usage")?;
    let history = request.parameters("history").next();
    let history = history.map(|after| after.parse()).transpose();
    let history = history.map_err(|_| {
        let why = "history must be the number of a sample";
        Rejection::new(StatusCode::BAD_REQUEST, why)
    })?;
    let mut status = ctx.core.status_page(&query);
    let report = service.report();
    status.service = report.map(Report::status).unwrap_or_default();
    if usage {
        let mut fields = status.service.0.into();
        health::add_usage(&mut fields);
        status.service = StatusFields::from_value(fields);
    }
    let mut status = status.to_value();
    status["clients_by_route"] = clients_by_route(ctx, service);
    if health {
        status["health"] = health::to_value(ctx, held_by(service));
    }
    if let Some(after) = history {
        status["history"] = ctx.core.history.to_value(after);
    }
    Ok(status.to_string())
}

/// Whether a parameter is 1.
fn flag(request: &Request<'_>, name: &str) -> Result<bool, Rejection> {
    match request.parameters(name).last().as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(_) => {
            let why = format!("{name} must be 0 or 1");
            Err(Rejection::new(StatusCode::BAD_REQUEST, why))
        }
    }
}

/// The number of clients of each of several services, by its name.
fn clients_by_route<S: Service>(ctx: &Context, service: &S) -> Value {
    let mut counts = Map::new();
    let Some(report) = service.report() else {
        return counts.into();
    };
    for client in ctx.core.registry.iter() {
        if client.wire.protocol.was_open()
            && let Some(name) = report.name(client.service_id)
        {
            let count = counts.get(name).and_then(Value::as_u64).unwrap_or(0);
            counts.insert(name.to_owned(), (count + 1).into());
        }
    }
    counts.into()
}
