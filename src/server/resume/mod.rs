//! The handshake of resumable connections: reads its parameters, checks its token, and hands the new connection to the
//! client that comes back.
//!
//! A client that connects with `resume=new` gets a token. After a cut, it comes back on a new connection with the token and
//! the number of messages that it has received. The server keeps the messages that it has not confirmed; see
//! `client/resumable.rs`.
//!
//! The new connection *joins* the client, and when its read ends, the client *takes over* its wire. The service sees nothing of this.
//!
//! ```text
//! requests::upgrade -> resume -> Client::open_to_join -> (end of the read) Core::join -> Client::take_over -> Outbox::resume_after
//!     -> (end of the turn) Client::flush -> send_unsent
//! ```

pub(super) mod token;

use std::borrow::Cow;

use self::token::ResumeToken;
use super::client::{Join, WrongCount, is_heartbeat_name};
use super::context::Context;
use super::core::Core;
use super::event_loop::Server;
use super::id::ClientId;
use super::service::Service;
use crate::log_event::{Field, log_event, word};
use crate::protocol::deflate::{Codec, Offer};
use crate::protocol::handshake::Upgrade;
use crate::protocol::{Accept, Rejection, Request, StatusCode};

/// The header field that carries a token, in requests and responses.
const FIELD: &str = "Outrigger-Resume";

/// The header field that names the node of a token which another node got.
const NODE_FIELD: &str = "Outrigger-Node";

/// The parameter that asks for heartbeats.
const HEARTBEAT: &str = "heartbeat";

/// What a handshake asks for with its `resume` parameter or header field.
#[derive(Debug)]
pub(super) enum Ask {
    /// A new resumable connection.
    New { notice: bool },
    /// To come back as an earlier client, which has received `received` messages.
    Back {
        token: ResumeToken,
        received: u64,
        notice: bool,
    },
}

/// The rejection if the token is unknown, its client has ended, or messages that the client lacks are no longer kept.
fn gone() -> Rejection {
    Rejection::new(
        StatusCode::GONE,
        "this connection cannot be resumed; connect with resume=new",
    )
    .because("resume")
}

/// The rejection of a token of another server, which may still know the client. A proxy or the client can try again there.
fn misdirected(node: &str) -> Rejection {
    let why = "this connection is at another node";
    Rejection::new(StatusCode::MISDIRECTED, why)
        .detail(node)
        .field(NODE_FIELD, node.to_owned())
}

/// Whether a handshake presents the token of an earlier connection.
pub(super) fn is_return(request: &Request<'_>) -> bool {
    token_and_count(request).is_some_and(|(token, _)| token.parse::<ResumeToken>().is_ok())
}

/// The token of a handshake, and the number of messages that the client has received.
fn token_and_count<'a>(request: &'a Request<'_>) -> Option<(Cow<'a, str>, Option<Cow<'a, str>>)> {
    let Some(field) = request.header("outrigger-resume") else {
        let token = request.parameters("resume").next()?;
        return Some((token, request.parameters("received").next()));
    };
    let field = std::str::from_utf8(field).unwrap_or_default();
    let (token, rest) = field.split_once(';').unwrap_or((field, ""));
    let received = rest.trim().strip_prefix("received=");
    let received = received.map(|received| Cow::Borrowed(received.trim()));
    Some((Cow::Borrowed(token.trim()), received))
}

/// Reads what a handshake asks of the server with the name `own`. If `is_offered` is false, a resume token is rejected, and
/// anything else is ignored.
pub(super) fn read(
    request: &Request<'_>,
    is_offered: bool,
    own: Option<&str>,
) -> Result<Option<Ask>, Rejection> {
    let bad = |why: &'static str| Rejection::new(StatusCode::BAD_REQUEST, why).because("resume");
    let Some((token, received)) = token_and_count(request) else {
        return Ok(None);
    };
    let parsed = token.parse::<ResumeToken>();
    if let Ok(ResumeToken {
        node: Some(node), ..
    }) = &parsed
        && Some(&**node) != own
    {
        return Err(misdirected(node));
    }
    if !is_offered {
        return match parsed {
            Ok(_) => Err(gone()),
            // The parameter or field is meant for the service.
            Err(_) => Ok(None),
        };
    }
    let notice = request.parameters("notice").any(|value| value == "1");
    if token == "new" {
        return Ok(Some(Ask::New { notice }));
    }
    let token = parsed.map_err(|_| gone())?;
    let received = received.ok_or_else(|| bad("received is missing"))?;
    let is_number = !received.is_empty() && received.bytes().all(|byte| byte.is_ascii_digit());
    let received = received.parse().ok().filter(|_| is_number);
    let received = received.ok_or_else(|| bad("received is not a number of messages"))?;
    Ok(Some(Ask::Back {
        token,
        received,
        notice,
    }))
}

/// The name of the heartbeat that a handshake asks for.
pub(super) fn heartbeat<'a>(request: &'a Request<'_>) -> Option<Cow<'a, str>> {
    request
        .parameters(HEARTBEAT)
        .find(|name| is_heartbeat_name(name))
}

/// Removes the parameters of this module from a query.
pub(crate) fn without_resume(query: &str) -> String {
    let is_ours = |pair: &&str| match pair.split_once('=') {
        Some((HEARTBEAT, name)) => is_heartbeat_name(name),
        Some((name, _)) => matches!(name, "resume" | "received" | "notice"),
        None => matches!(*pair, "resume" | "received" | "notice"),
    };
    let kept: Vec<_> = query.split('&').filter(|pair| !is_ours(pair)).collect();
    kept.join("&")
}

/// Adds the token of a new resumable connection to its 101 response.
pub(super) fn offer(accept: Accept, token: &ResumeToken) -> Result<Accept, Rejection> {
    accept.field(FIELD, token.to_string())
}

/// Adds the header fields that each connection needs anew, and negotiates compression.
pub(super) fn negotiate(
    ctx: &Context,
    id: ClientId,
    mut accept: Accept,
    offer: Option<Offer>,
) -> Result<(Accept, Option<Codec>), Rejection> {
    if let Some(cookie) = &ctx.config().affinity_cookie {
        let client = ctx.core.registry.get(id);
        let secure = match client.and_then(|client| client.wire.tls()) {
            Some(_) => "; Secure",
            None => "",
        };
        accept = accept.field(
            "Set-Cookie",
            format!("{cookie}; Path=/; HttpOnly; SameSite=Lax{secure}"),
        )?;
    }
    let mut codec = None;
    if let Some((compression, offer)) = ctx.core.env.protocol.compression.as_ref().zip(offer) {
        let agreed;
        (accept, agreed) = compression.negotiate(offer, accept)?;
        codec = Some(agreed);
    }
    Ok((accept, codec))
}

/// Checks that a token belongs to a client of the same service, path and principal, and that the messages after the first
/// `received` ones are still kept. `id` is the new connection.
pub(super) fn check(
    ctx: &Context,
    id: ClientId,
    request: &Request<'_>,
    token: &ResumeToken,
    received: u64,
) -> Result<(), Rejection> {
    let core = &ctx.core;
    let target = token.client;
    let client = core.registry.get(target).filter(|client| {
        client.opens_with(&token.secret)
            && client.service_id == core.service_id
            && client.path() == request.path()
            && core.principal(target) == core.principal(id)
            // A token of the same name that permits less must not continue, for example, the writer of a terminal.
            && core.scope(id) >= core.scope(target)
    });
    let Some((client, delivery)) =
        client.and_then(|client| Some((client, client.wire.delivery()?)))
    else {
        let why = "the token is unknown or has expired";
        log_event!(
            Info,
            client = id,
            "cannot resume",
            reason = Field::Bare(&why)
        );
        return Err(gone());
    };
    match delivery.check_received(received, client.traffic.messages_out) {
        Ok(()) => Ok(()),
        Err(WrongCount::TooFew) => {
            let lacking = received + 1;
            let why = format!("message {lacking} of {target} is no longer kept");
            log_event!(
                Info,
                client = id,
                "cannot resume",
                reason = Field::Bare(&why)
            );
            Err(gone())
        }
        Err(WrongCount::TooMany) => {
            let why = "received is more than the server has sent";
            Err(Rejection::new(StatusCode::BAD_REQUEST, why).because("resume"))
        }
    }
}

/// Answers the handshake of a client that comes back. `id` is the new connection.
pub(super) fn resume(
    ctx: &mut Context,
    id: ClientId,
    request: &Request<'_>,
    upgrade: &Upgrade<'_>,
    offer: Option<Offer>,
    (token, received, notice): (ResumeToken, u64, bool),
) -> Result<(), Rejection> {
    let target = token.client;
    check(ctx, id, request, &token, received)?;
    let next = ResumeToken::generate(target, ctx.config().node.as_deref());
    let Some(client) = ctx.core.registry.get_mut(target) else {
        return Err(gone());
    };
    let taken = client.traffic.messages_in;
    let delivery = client.wire.delivery_mut().ok_or_else(gone)?;
    let accept = delivery.renew_token(token.secret, &next, taken);
    let accept = accept.field(FIELD, format!("{next}; received={taken}"))?;
    let (accept, codec) = negotiate(ctx, id, accept, offer)?;
    // This connection is being read. When that ends, `Server::read_client` hands it over to the target (`Core::join`).
    ctx.core.with(id, |client, env| {
        let join = Join { target, received };
        client.open_to_join(env, upgrade, &accept, codec, join);
        if notice {
            client.send_notice(env, &next, taken);
        }
        if let Some(name) = heartbeat(request) {
            client.answer_heartbeats(env, &name, taken);
        }
    });
    Ok(())
}

impl Core {
    /// Hands the connection `id` to the client that comes back on it.
    /// Called right after the connection was read.
    pub(super) fn join(&mut self, id: ClientId, join: Join) {
        let Join { target, received } = join;
        let Some((new, client)) = self.registry.pair_mut(id, target) else {
            debug_assert!(false, "{target} cannot end while {id} is read");
            return;
        };
        let away = client.wire.protocol.detached_for(self.env.now);
        client.take_over(&mut self.env, &self.poll, new, received);
        let env = &mut self.env;
        env.counters.resumes += 1;
        env.counters.takeovers += u64::from(away.is_none());
        let trace = client.wire.trace_ids();
        log_event!(
            Info,
            client = target,
            "resumed",
            remote = word(&client.wire.remote),
            received = received,
            kept = client.wire.kept(),
            away = away,
            takeover = away.is_none().then_some(true);
            trace = trace
        );
    }

    /// The number of detached clients of the current service.
    pub(super) fn detached_count(&self) -> usize {
        let clients = self.registry.iter();
        let ours = clients.filter(|client| self.service_id.includes(client.service_id));
        ours.filter(|client| client.wire.protocol.is_detached())
            .count()
    }
}

impl<S: Service> Server<S> {
    /// Tells the service that a connection which this side has opened continues.
    pub(super) fn report_own_resumed(&mut self, id: ClientId) {
        if self
            .ctx
            .core
            .registry
            .get(id)
            .is_some_and(|client| client.wire.is_ours())
        {
            self.ctx.core.enter(id);
            self.call_outgoing(|service, ctx| service.resumed(ctx, id));
        }
    }
}
