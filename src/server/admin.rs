//! What an operator asks the server itself: is it alive, is it ready, what does it do.

use super::context::Context;
use super::id::ClientId;
use super::metrics;
use super::service::Service;
use crate::protocol::http::Framing;
use crate::protocol::{Rejection, Request, Response, StatusCode};

/// Whether a request is for the server itself. An upgrade to WebSocket is the service's, whatever its path.
pub(super) fn is_for(request: &Request<'_>) -> bool {
    !request.wants_websocket()
        && matches!(
            request.path(),
            "/healthz" | "/readyz" | "/status" | "/metrics"
        )
}

/// Whether a request needs nobody's leave: probes have no token, and tell nothing.
pub(super) fn is_open(request: &Request<'_>) -> bool {
    is_for(request) && matches!(request.path(), "/healthz" | "/readyz") && !request.is_preflight()
}

/// Refuses what no such path takes, before a body is waited for.
pub(super) fn check(request: &Request<'_>) -> Result<(), Rejection> {
    if !matches!(request.method(), "GET" | "HEAD") {
        return Err(Rejection::method_not_allowed("GET, HEAD"));
    }
    expect_no_body(request)
}

/// Refuses a request with a body, before that is waited for.
pub(super) fn expect_no_body(request: &Request<'_>) -> Result<(), Rejection> {
    if request.framing()? == Framing::Length(0) {
        return Ok(());
    }
    let why = "a body is not taken here";
    Err(Rejection::new(StatusCode::CONTENT_TOO_LARGE, why))
}

/// The maximum number of clients in one answer to `/status`.
const PAGE: usize = 1000;

/// Answers a call to such a path.
pub(super) fn answer<S: Service>(ctx: &Context, service: &S, request: &Request<'_>) -> Response {
    match request.path() {
        // Whoever reads this was answered by the loop.
        "/healthz" => Response::json(StatusCode::OK, r#"{"status":"ok"}"#),
        "/readyz" if ctx.is_stopping() => (&Rejection::unavailable("stopping")).into(),
        "/readyz" if !service.is_ready() => {
            (&Rejection::unavailable("a program that is needed is not running")).into()
        }
        "/readyz" => Response::json(StatusCode::OK, r#"{"status":"ready"}"#),
        "/metrics" => Response::new(
            StatusCode::OK,
            metrics::CONTENT_TYPE,
            metrics::write(ctx, service).into_bytes(),
        ),
        _ => match page(request) {
            Ok((after, most)) => {
                let mut status = ctx.core.status_page(after, most);
                status.service = service.status();
                Response::json(StatusCode::OK, status.to_json().to_string())
            }
            Err(rejection) => (&rejection).into(),
        },
    }
}

/// The page of clients that `/status` is asked for: those after `after`, at most `limit` of them.
fn page(request: &Request<'_>) -> Result<(Option<ClientId>, usize), Rejection> {
    let wrong = |why: String| Rejection::new(StatusCode::BAD_REQUEST, why);
    let mut after = None;
    if let Some(text) = request.parameters("after").next() {
        let id = text.parse();
        after = Some(id.map_err(|_| wrong(format!("after={text:?} is not a client id")))?);
    }
    let mut most = PAGE;
    if let Some(text) = request.parameters("limit").next() {
        let limit = text.parse().ok().filter(|limit| (1..=PAGE).contains(limit));
        most = limit.ok_or_else(|| wrong(format!("limit must be a number from 1 to {PAGE}")))?;
    }
    Ok((after, most))
}
