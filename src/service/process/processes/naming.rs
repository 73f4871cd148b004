//! Starts processes that have names. However many clients ask for a name, one process is started.

use uuid::Uuid;

use super::{Processes, Purpose, Start, respond};
use crate::service::process::bodies::RunRequest;
use crate::service::process::calls::no_process;
use crate::service::process::names::{NameKey, Named, NamedProcess, RequestDigest, Waiter};
use crate::service::process::responses::ensured;
use crate::service::process::sink::ContextOutput;
use crate::{ClientId, Context, Principal, Rejection, Response, StatusCode};

impl Processes {
    /// The key of a name that a client uses. A client with a link uses the names of the principal that issued the link.
    pub(super) fn key(&self, ctx: &Context, client: ClientId, name: &str) -> NameKey {
        let owner = match ctx.link_issuer(client) {
            _ if self.config.shared_names => Principal::Nobody,
            Some(issuer) => issuer.clone(),
            None => ctx.principal(client),
        };
        NameKey {
            owner,
            name: name.into(),
        }
    }

    /// Starts the process of a name, or answers with the one that has it.
    pub(super) fn ensure(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        key: &NameKey,
        request: RunRequest,
        restart: bool,
    ) -> Result<Option<Response>, Rejection> {
        let digest = RequestDigest::of(&request);
        ctx.spend(request.stdin.as_ref().map_or(0, Vec::len) / 200);
        let waiter = Waiter::Caller(caller);
        match self.names.get(key) {
            Some(Named::Starting { digest: other, .. }) => {
                expect_same(&key.name, digest, *other)?;
                self.names.join(key, waiter);
                return Ok(None);
            }
            Some(Named::Started(NamedProcess { id, digest: other })) => {
                let kept = self.programs.get(*id);
                if let Some(program) = kept.filter(|one| !restart || one.exit().is_none()) {
                    expect_same(&key.name, digest, *other)?;
                    return Ok(Some(ensured(program, false)));
                }
            }
            None => {}
        }
        let purpose = Purpose::Name(key.clone());
        self.enqueue(ctx, caller, Start { request, purpose })?;
        self.names.begin(key, digest, waiter);
        Ok(None)
    }

    /// Tells the clients that wait for a process of a name that it runs, or why not.
    pub(super) fn settle(
        &mut self,
        ctx: &mut Context,
        key: &NameKey,
        result: Result<Uuid, Rejection>,
    ) {
        match result {
            Ok(id) => {
                for (at, waiter) in self.names.started(key, id).into_iter().enumerate() {
                    match waiter {
                        Waiter::Caller(caller) => {
                            let program = self.programs.get(id).ok_or_else(no_process);
                            let answer = program.map(|program| ensured(program, at == 0));
                            respond(ctx, caller, answer);
                        }
                        Waiter::Attached(client, attach) => {
                            ctx.set_held(client, false);
                            self.attach(ctx, id, client, attach);
                        }
                    }
                }
            }
            Err(rejection) => {
                for waiter in self.names.failed(key) {
                    refuse_waiter(ctx, &waiter, &rejection);
                }
            }
        }
    }

    /// Handles the end of a client, which may have been waiting for a process to start.
    pub(super) fn stop_waiting(&mut self, ctx: &mut Context, client: ClientId) {
        let start = self.waiting.remove(&client);
        // Whoever waits for the same process goes on with the start.
        if let (Some(next), Some(start)) = (self.names.leave(client), start) {
            self.waiting.insert(next, start);
            ctx.queue_start(next);
        }
        // A process whose start has begun stays.
        self.starting
            .retain(|_, one| one.caller != client || !matches!(one.purpose, Purpose::Spawn));
    }
}

/// Tells a client why the process that it waits for does not start.
pub(super) fn refuse_waiter(ctx: &mut Context, waiter: &Waiter, rejection: &Rejection) {
    match waiter {
        Waiter::Caller(caller) => ctx.respond(*caller, &Response::from(rejection)),
        Waiter::Attached(client, attach) => {
            ctx.set_held(*client, false);
            let why = rejection.message.clone().into_owned();
            ContextOutput(ctx).fail(*client, attach.dialect, why);
        }
    }
}

/// Checks that a request asks for the process that a name has.
fn expect_same(name: &str, asked: RequestDigest, has: RequestDigest) -> Result<(), Rejection> {
    if asked == has {
        return Ok(());
    }
    let why = format!("the process {name:?} was started with another body");
    Err(Rejection::new(StatusCode::CONFLICT, why))
}
