//! Requests that wait for a process of the pool: one that has not said what it supports, or has not started yet.

use std::time::Duration;

use super::{Pool, PoolChange, Purpose, Support};
use crate::service::jsonrpc::{Envelope, Forwarded, MessageKind, RequestKind, SenderIds, splice};
use crate::service::mcp::http_error::HttpError;
use crate::service::mcp::hub::Hub;
use crate::service::mcp::reply::Reply;
use crate::{Context, Principal};

impl Pool {
    /// Starts the processes that a request waits for.
    pub(super) fn start_held(&mut self, ctx: &mut Context, slot: usize) {
        if !self.is_stopping {
            self.slots[slot].program.queue(ctx);
            self.start_others(ctx);
        }
    }

    pub(super) fn hold(&mut self, request: u64, text: String) {
        if let Some(pending) = self.requests.get(request)
            && let Purpose::Call { principal, .. } = &pending.call
        {
            self.held.insert(request, principal, text);
        }
    }

    /// The ids of the requests that are held for the process of a slot.
    fn held_for(&self, slot: usize) -> Vec<u64> {
        let is_own = |id: &u64| {
            let request = self.requests.get(*id);
            request.is_some_and(|request| request.process == slot)
        };
        self.held.ids().filter(is_own).collect()
    }

    /// Sends a process of 2026-07-28 the requests that have waited for it. It has got the subscriptions.
    pub(super) fn send_held(&mut self, ctx: &mut Context, hub: &mut Hub, slot: usize) {
        for id in self.held_for(slot) {
            if self.refuse_held(ctx, hub, id) {
                continue;
            }
            let request = self.requests.get(id);
            let is_subscription = request.is_some_and(|request| request.call.is_subscription());
            if let Some(text) = self.held.remove(id)
                && !(is_subscription && self.is_probed)
            {
                self.send(ctx, slot, &text);
            }
            self.begin_delay(ctx, hub, id);
        }
    }

    /// Refuses a request of an unknown revision as soon as it is known which revisions the program supports. The error lists them.
    pub(crate) fn refuse_later(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        refusal: HttpError,
        reply: Reply,
    ) {
        let principal = ctx.principal(reply.caller);
        if let Err(error) = hub.take_request(&principal) {
            return reply.reject(ctx, &error, false);
        }
        let id = self.ids.next();
        let caller = reply.caller;
        let request = Forwarded {
            process: 0,
            upstream_id: id,
            sender_ids: Some(SenderIds {
                id: "null".into(),
                progress_token: None,
            }),
            call: Purpose::Call {
                reply,
                principal,
                listens: None,
                lists_tools: false,
                refusal: Some(Box::new(refusal)),
            },
        };
        self.last_used = ctx.now();
        self.insert(ctx, hub, caller, request);
        self.hold(id, String::new());
        self.start_held(ctx, 0);
    }

    /// Refuses a request that was held for this. Returns false if it is another one.
    pub(super) fn refuse_held(&mut self, ctx: &mut Context, hub: &mut Hub, id: u64) -> bool {
        let request = self.requests.get_mut(id);
        let refusal = request.and_then(|request| match &mut request.call {
            Purpose::Call { refusal, .. } => refusal.take(),
            Purpose::Probe | Purpose::ListTools => None,
        });
        let Some(refusal) = refusal else {
            return false;
        };
        let refusal = refusal.with_versions(&self.versions());
        if let Some((reply, _)) = self.take_call(hub, id) {
            reply.reject(ctx, &refusal, false);
        }
        true
    }

    /// Fails the requests that wait for a process that cannot be started.
    pub(super) fn fail_held(&mut self, ctx: &mut Context, hub: &mut Hub, slot: usize) {
        for id in self.held_for(slot) {
            if let Some((reply, own_id)) = self.take_call(hub, id) {
                reply.reject(ctx, &HttpError::cannot_start(&own_id), true);
            }
        }
    }

    /// Takes a request that waits out of the table, as its caller has sent it.
    pub(super) fn take_held(
        &mut self,
        hub: &mut Hub,
        id: u64,
    ) -> Option<(Reply, Principal, String)> {
        let text = self.held.remove(id)?;
        let request = self.take(hub, id)?;
        let Purpose::Call {
            reply, principal, ..
        } = request.call
        else {
            return None;
        };
        let own = request.sender_ids?;
        let restored = Envelope::parse(&text).ok().map(|envelope| {
            let at = match envelope.kind.clone() {
                MessageKind::Request { id, .. } => id,
                _ => 0..0,
            };
            let token = envelope.of_meta("progressToken");
            let token = token.zip(own.progress_token.as_deref());
            let mut edits: Vec<_> = [(at, &*own.id)].into_iter().chain(token).collect();
            splice(&text, &mut edits).concat()
        });
        Some((reply, principal, restored?))
    }

    /// Tells the processes to stop, if no request has needed them for this time.
    pub(crate) fn stop_idle(&mut self, ctx: &mut Context, idle: Duration) -> Vec<PoolChange> {
        let is_idle = ctx.now().since(self.last_used) >= idle;
        let is_needed = self.pending() > 0 || self.support != Support::Stateless;
        if !self.is_lazy || !is_idle || is_needed {
            return Vec::new();
        }
        let mut changes = Vec::new();
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if let Some(mut process) = slot.program.give_up(ctx) {
                process.stop(ctx);
                changes.push(PoolChange::Stopping(number, process));
            }
        }
        changes
    }
}
