//! Answers what the console and the pages of a server ask: what a token permits, links, and disconnecting a client.

use std::time::Duration;

use serde_json::{Value, json};

use crate::log_event::{log_event, word};
use crate::protocol::{Rejection, Request, Response, StatusCode};
use crate::server::access::{LinkTarget, Scope};
use crate::server::context::Context;
use crate::server::id::ClientId;
use crate::server::service::Service;
use crate::text::bytes_without_mark;

/// The prefix of these paths and of those of the pages. No service can be reached at such a path.
pub(crate) const PREFIX: &str = "/.outrigger/";

/// The maximum length of a body.
pub(crate) const MAX_BODY: usize = 4096;

/// How long a link may last, in seconds: from a minute to a week.
const LINK_SECONDS: std::ops::RangeInclusive<u64> = 60..=7 * 24 * 3600;

/// How long a link lasts if the caller does not say it.
const DEFAULT_LINK_SECONDS: u64 = 3600;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// What the caller's token permits.
    Session,
    Links,
    IssueLink,
    RevokeLink(u64),
    CloseClient(ClientId),
}

impl Call {
    /// Parses the method and the path of a request. `None` if nothing is at this path.
    fn read(method: &str, path: &str) -> Option<Result<Self, Rejection>> {
        let segments: Vec<&str> = path.strip_prefix(PREFIX)?.split('/').collect();
        let method = if method == "HEAD" { "GET" } else { method };
        let (call, allow) = match (segments.as_slice(), method) {
            (["session"], _) => (Self::Session, "GET"),
            (["links"], "POST") => return Some(Ok(Self::IssueLink)),
            (["links"], "GET") => return Some(Ok(Self::Links)),
            (["links"], _) => (Self::Links, "GET, POST"),
            (["links", id], _) => match id.parse() {
                Ok(id) => (Self::RevokeLink(id), "DELETE"),
                Err(_) => return Some(Err(no_link())),
            },
            (["clients", id, "close"], _) => match id.parse() {
                Ok(id) => (Self::CloseClient(id), "POST"),
                Err(_) => return Some(Err(no_client())),
            },
            _ => return None,
        };
        Some(if method == allow {
            Ok(call)
        } else {
            Err(Rejection::method_not_allowed(allow))
        })
    }

    fn of(request: &Request<'_>) -> Result<Self, Rejection> {
        let call = Self::read(request.method(), request.path());
        call.unwrap_or_else(|| Err(Rejection::not_found()))
    }
}

fn no_link() -> Rejection {
    Rejection::new(StatusCode::NOT_FOUND, "there is no link of this number")
}

fn no_client() -> Rejection {
    Rejection::new(StatusCode::NOT_FOUND, "there is no client of this id")
}

fn bad_request(why: &'static str) -> Rejection {
    Rejection::new(StatusCode::BAD_REQUEST, why)
}

/// Whether this module answers requests for a path.
pub(super) fn is_operator_path(path: &str) -> bool {
    Call::read("GET", path).is_some()
}

/// Whether every token permits a request, also that of a link. A WebSocket upgrade is for a service, whatever its path.
pub(crate) fn is_for_everyone(request: &Request<'_>) -> bool {
    !request.wants_websocket() && matches!(Call::of(request), Ok(Call::Session))
}

/// The scope that a request needs. Rejects a request whose head is not valid, before the body has arrived.
pub(crate) fn check(request: &Request<'_>) -> Result<Scope, Rejection> {
    match Call::of(request)? {
        Call::Session => {
            request.expect_no_body()?;
            Ok(Scope::Metrics)
        }
        Call::Links | Call::RevokeLink(_) => {
            request.expect_no_body()?;
            Ok(Scope::All)
        }
        Call::IssueLink | Call::CloseClient(_) => {
            // A page of another origin can send this type only after a CORS preflight.
            request.expect_json_body()?;
            Ok(Scope::All)
        }
    }
}

/// Answers a complete call.
pub(crate) fn answer<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    caller: ClientId,
    request: &Request<'_>,
    body: &[u8],
) -> Response {
    let answer = Call::of(request).and_then(|call| match call {
        Call::Session => Ok(session(ctx, caller)),
        Call::Links => Ok(links(ctx)),
        Call::IssueLink => issue_link(ctx, service, caller, body),
        Call::RevokeLink(id) => match ctx.core.revoke_links(|link| link.id == id) {
            0 => Err(no_link()),
            _ => Ok(ok()),
        },
        Call::CloseClient(id) => {
            read_body(body, &[])?;
            if ctx.core.close_by_operator(id) {
                let principal = ctx.principal(caller);
                log_event!(
                    Info,
                    client = id,
                    "disconnected by an operator",
                    principal = word(&principal),
                );
                Ok(ok())
            } else {
                Err(no_client())
            }
        }
    });
    answer.unwrap_or_else(|rejection| Response::from(&rejection))
}

fn ok() -> Response {
    Response::json(StatusCode::OK, r#"{"ok":true}"#)
}

/// What the caller's token permits.
fn session(ctx: &Context, caller: ClientId) -> Response {
    let access = &ctx.config().access;
    let link = ctx.core.link(caller);
    let session = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "auth": !access.tokens.is_empty(),
        "principal": ctx.principal(caller).to_string(),
        "scope": ctx.scope(caller).to_string(),
        "expires_s": link.map(|link| link.expires_in(ctx.core.env.real_now()).as_secs()),
        "only": link.map(|link| json!({
            "path": link.target.path(),
            "session": link.target.item(),
            "answers": link.target.may_answer(),
        })),
    });
    Response::json(StatusCode::OK, session.to_string())
}

fn links(ctx: &Context) -> Response {
    let links = ctx.core.env.links.all();
    let clients = |credential| {
        let clients = ctx.core.registry.iter();
        let watching = clients.filter(|client| client.wire.protocol.was_open());
        let watching = watching.filter(|client| client.wire.credential == Some(credential));
        watching.count()
    };
    let links = links.into_iter().map(|(credential, link)| {
        json!({
            "id": link.id.to_string(),
            "path": link.target.path(),
            "session": link.target.item(),
            "answers": link.target.may_answer(),
            "by": link.issuer.to_string(),
            "expires_s": link.expires_in(ctx.core.env.real_now()).as_secs(),
            "clients": clients(credential),
        })
    });
    let links: Vec<Value> = links.collect();
    Response::json(StatusCode::OK, json!({"links": links}).to_string())
}

/// Reads a body that is a JSON object with no other fields than these.
fn read_body(body: &[u8], fields: &[&str]) -> Result<Value, Rejection> {
    let value: Value = serde_json::from_slice(bytes_without_mark(body))
        .map_err(|_| bad_request("the body is not JSON"))?;
    let object = value
        .as_object()
        .ok_or_else(|| bad_request("the body is not a JSON object"))?;
    match object.keys().find(|name| !fields.contains(&name.as_str())) {
        None => Ok(value),
        Some(name) => {
            let why = format!("unknown field {name:?}");
            Err(Rejection::new(StatusCode::BAD_REQUEST, why))
        }
    }
}

fn issue_link<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    caller: ClientId,
    body: &[u8],
) -> Result<Response, Rejection> {
    let fields = read_body(body, &["path", "session", "ttl_s", "answers"])?;
    let text = |name: &str, wrong| match &fields[name] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.as_str())),
        _ => Err(bad_request(wrong)),
    };
    let path = text("path", "\"path\" is not a string")?;
    let path = path.ok_or_else(|| bad_request("\"path\" is missing"))?;
    let item = text("session", "\"session\" is not a string")?;
    let seconds = match &fields["ttl_s"] {
        Value::Null => Some(DEFAULT_LINK_SECONDS),
        ttl => ttl.as_u64().filter(|ttl| LINK_SECONDS.contains(ttl)),
    };
    let seconds = seconds.ok_or_else(|| {
        let why = format!(
            "\"ttl_s\" is not a number of seconds from {} to {}",
            LINK_SECONDS.start(),
            LINK_SECONDS.end()
        );
        Rejection::new(StatusCode::BAD_REQUEST, why)
    })?;
    if ctx.config().access.tokens.is_empty() {
        return Err(bad_request("a link needs a server that requires tokens"));
    }
    let mut target = LinkTarget::new(path);
    if let Some(item) = item {
        target = target.with_item(item);
    }
    match fields["answers"] {
        Value::Null | Value::Bool(false) => {}
        Value::Bool(true) => target = target.with_answers(),
        _ => return Err(bad_request("\"answers\" is not a boolean")),
    }
    service.share(ctx, caller, &target)?;
    let lasts = Duration::from_secs(seconds);
    let (id, token) = ctx.core.issue_link(caller, target.clone(), lasts)?;
    let (path, principal) = (target.path(), ctx.principal(caller));
    log_event!(
        Info,
        "link issued",
        link = word(&id),
        path = path,
        principal = word(&principal),
        seconds = seconds,
        answers = target.may_answer(),
    );
    let link = json!({
        "id": id.to_string(),
        "token": token.reveal(),
        "path": target.path(),
        "session": target.item(),
        "answers": target.may_answer(),
        "expires_s": seconds,
    });
    Ok(Response::json(StatusCode::OK, link.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_from_its_method_and_path() {
        let read = |method, path| Call::read(method, path).map(|call| call.ok());
        assert_eq!(
            read("GET", "/.outrigger/session"),
            Some(Some(Call::Session))
        );
        assert_eq!(
            read("HEAD", "/.outrigger/session"),
            Some(Some(Call::Session))
        );
        assert_eq!(
            read("POST", "/.outrigger/links"),
            Some(Some(Call::IssueLink))
        );
        assert_eq!(
            read("DELETE", "/.outrigger/links/7"),
            Some(Some(Call::RevokeLink(7)))
        );
        let client = "c3.1".parse().expect("an id");
        assert_eq!(
            read("POST", "/.outrigger/clients/c3.1/close"),
            Some(Some(Call::CloseClient(client)))
        );
        for (method, path) in [
            ("POST", "/.outrigger/session"),
            ("PUT", "/.outrigger/links"),
            ("GET", "/.outrigger/links/7"),
            ("DELETE", "/.outrigger/links/x"),
            ("GET", "/.outrigger/clients/c3/close"),
            ("POST", "/.outrigger/clients/3/close"),
        ] {
            assert_eq!(read(method, path), Some(None), "{method} {path}");
        }
        for path in ["/", "/.outrigger", "/.outrigger/", "/.outrigger/web/x.js"] {
            assert_eq!(read("GET", path), None, "{path}");
        }
    }
}
