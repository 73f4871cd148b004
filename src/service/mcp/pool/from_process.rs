//! Messages of processes: each one reaches the caller that it is for.

use std::ops::{ControlFlow, Range};

use super::rewrite::{
    SUBSCRIPTION_KEY, cancellation, no_requests, status_of, supports_stateless, with_subscription,
};
use super::{MAX_PAGES, PendingRequest, Pool, PoolChange, Purpose, Support};
use crate::service::child::{ChildEvent, ChildInput};
use crate::service::jsonrpc::{
    Envelope, MessageKind, RecoveredId, assigned, code, error, member, splice,
};
use crate::service::mcp::hub::Hub;
use crate::service::mcp::process::Received;
use crate::{Context, StatusCode};

impl Pool {
    /// Handles an event of the process of a slot.
    pub(in crate::service::mcp) fn handle(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        slot: usize,
        input: ChildInput,
    ) -> Option<PoolChange> {
        let mut process = self.slots[slot].program.take_child()?;
        self.in_hand = Some(slot);
        let mut was_probe = false;
        let event = process.handle(ctx, input, |ctx, received| {
            was_probe |= self.handle_received(ctx, hub, slot, received);
            ControlFlow::Continue(())
        });
        self.in_hand = None;
        for text in self.unsent.drain(..) {
            process.send(ctx, &text);
        }
        let exited = match event {
            ChildEvent::Exited(status) => Some(status),
            ChildEvent::NotMine | ChildEvent::Handled => {
                self.slots[slot].program.put_back(process);
                None
            }
        };
        let mut change = None;
        if was_probe {
            change = self.finish_probe(ctx, hub);
        }
        if let Some(status) = exited {
            self.handle_exit(ctx, hub, slot, status);
        }
        change
    }

    /// Handles what a process has sent. Returns whether it was the answer to the probe.
    fn handle_received(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        slot: usize,
        received: Received<'_>,
    ) -> bool {
        match received {
            Received::Message(envelope) => {
                return self.handle_message(ctx, hub, slot, &envelope);
            }
            Received::Unreadable(RecoveredId::Response(id), why) => {
                let id = assigned(&id);
                let taken = id.filter(|id| self.is_of(slot, *id));
                if let Some((_, purpose)) = taken.and_then(|id| self.take(hub, id)) {
                    return self.fail(ctx, purpose, &format!("the MCP server's answer {why}"));
                }
            }
            Received::Unreadable(RecoveredId::Request(id), _) => {
                self.send(ctx, slot, &no_requests(&id));
            }
            Received::Nothing => {}
        }
        false
    }

    /// Answers the caller of a request with an internal error. Returns whether the request was the probe.
    fn fail(&mut self, ctx: &mut Context, purpose: Purpose, why: &str) -> bool {
        match purpose {
            Purpose::Call { reply, id, .. } => {
                let failed = error(&id, code::INTERNAL, "Internal error", Some(why));
                reply.finish(ctx, StatusCode::OK, None, &failed);
                false
            }
            Purpose::Probe => {
                self.support = Support::Sessions;
                true
            }
            Purpose::ListTools => {
                self.listing = None;
                false
            }
        }
    }

    /// Whether a request was sent to the process of this slot.
    fn is_of(&self, slot: usize, id: u64) -> bool {
        self.requests
            .get(&id)
            .is_some_and(|request| request.slot == slot)
    }

    fn handle_message(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        slot: usize,
        envelope: &Envelope<'_>,
    ) -> bool {
        ctx.spend(2 + envelope.text.len() / 512);
        match &envelope.kind {
            MessageKind::Request { id, .. } => {
                self.send(ctx, slot, &no_requests(&envelope.text[id.clone()]));
                false
            }
            MessageKind::Notification { method } => {
                self.handle_notification(ctx, hub, slot, method, envelope);
                false
            }
            MessageKind::Response { id, result } => {
                let number = assigned(&envelope.text[id.clone()]);
                let number = number.filter(|number| self.is_of(slot, *number));
                let Some((number, (_, purpose))) =
                    number.and_then(|number| Some((number, self.take(hub, number)?)))
                else {
                    log::debug!("the MCP server has answered a request that does not wait");
                    hub.counts.dropped += 1;
                    return false;
                };
                self.handle_response(ctx, envelope, number, id, result.as_ref(), slot, purpose)
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one message")]
    fn handle_response(
        &mut self,
        ctx: &mut Context,
        envelope: &Envelope<'_>,
        number: u64,
        id: &Range<usize>,
        result: Option<&Range<usize>>,
        slot: usize,
        purpose: Purpose,
    ) -> bool {
        let text = envelope.text;
        match purpose {
            Purpose::Call {
                reply,
                id: own_id,
                lists_tools,
                listens,
                ..
            } => {
                if listens.is_some() && self.slots.len() > 1 {
                    // The other processes still listen for the caller.
                    self.send_to_all(ctx, &cancellation(number, "The server has ended it"));
                }
                if lists_tools && let Some(result) = result {
                    self.tools.learn(&text[result.clone()]);
                }
                let mut edits = vec![(id.clone(), &*own_id)];
                if let Some(range) = envelope.of_meta(SUBSCRIPTION_KEY)
                    && assigned(&text[range.clone()]) == Some(number)
                {
                    edits.push((range, &own_id));
                }
                let answer = splice(text, &mut edits).concat();
                if self.slots.len() > 1
                    && let Some(state) = envelope.of_body("requestState")
                {
                    self.states.learn(&text[state], slot);
                }
                reply.finish(ctx, status_of(text, result), None, &answer);
                false
            }
            Purpose::Probe => {
                self.support = if supports_stateless(text, result) {
                    Support::Stateless
                } else {
                    Support::Sessions
                };
                true
            }
            Purpose::ListTools => {
                self.handle_tools(ctx, slot, text, result);
                false
            }
        }
    }

    /// Learns a page of the tools, and asks for the next one.
    fn handle_tools(
        &mut self,
        ctx: &mut Context,
        slot: usize,
        text: &str,
        result: Option<&Range<usize>>,
    ) {
        let Some(mut listing) = self.listing.take() else {
            return;
        };
        if let Some(result) = result {
            listing.tools.learn(&text[result.clone()]);
            listing.pages += 1;
            let cursor = member(text, result, "nextCursor").map(|range| &text[range]);
            if let Some(cursor) = cursor.filter(|cursor| cursor.starts_with('"'))
                && listing.pages < MAX_PAGES
            {
                let params = format!(r#""cursor":{cursor},"#);
                self.listing = Some(listing);
                self.ask(ctx, slot, "tools/list", Purpose::ListTools, &params);
                return;
            }
            self.tools = listing.tools;
        }
        if listing.is_outdated {
            self.list_tools(ctx, slot);
        }
    }

    /// Passes a notification on to the caller that it is for.
    fn handle_notification(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        slot: usize,
        method: &str,
        envelope: &Envelope<'_>,
    ) {
        let text = envelope.text;
        let number = |range: &Range<usize>| {
            let id = assigned(&text[range.clone()]);
            id.filter(|id| self.is_of(slot, *id))
        };
        if method == "notifications/progress" {
            if let Some((range, id)) = envelope
                .of_body("progressToken")
                .and_then(|range| Some((range.clone(), number(&range)?)))
                && let Some(PendingRequest {
                    purpose:
                        Purpose::Call {
                            reply,
                            token: Some(token),
                            ..
                        },
                    ..
                }) = self.requests.get_mut(&id)
            {
                // The process is shared, so it cannot wait for a slow caller. What is only news is not queued for it.
                if ctx.is_congested(reply.caller) {
                    hub.counts.dropped += 1;
                } else {
                    reply.event(ctx, None, &splice(text, &mut [(range, token)]).concat());
                }
                return;
            }
        } else if method == "notifications/cancelled" {
            // A server ends a subscription with it.
            let id = envelope.request_id.as_ref().and_then(number);
            let is_subscription = |id: &u64| {
                let request = self.requests.get(id);
                request.is_some_and(|request| request.subscription().is_some())
            };
            if let Some(id) = id.filter(is_subscription)
                && let Some((reply, _)) = self.remove(ctx, hub, id, "The server has ended it")
            {
                reply.end(ctx);
                return;
            }
        } else if let Some(range) = envelope.of_meta(SUBSCRIPTION_KEY) {
            // Every process of the pool knows the subscription.
            if let Some(id) = assigned(&text[range.clone()])
                && let Some(PendingRequest {
                    purpose:
                        Purpose::Call {
                            reply,
                            id: own_id,
                            listens: Some(subscription),
                            ..
                        },
                    ..
                }) = self.requests.get_mut(&id)
            {
                let is_acknowledgement = method == "notifications/subscriptions/acknowledged";
                if !is_acknowledgement || !subscription.is_acknowledged {
                    subscription.is_acknowledged |= is_acknowledgement;
                    reply.event(ctx, None, &splice(text, &mut [(range, own_id)]).concat());
                }
                return;
            }
        } else {
            if method == "notifications/tools/list_changed" {
                self.list_tools(ctx, slot);
            }
            if self.tell_subscribers(ctx, method, envelope) {
                return;
            }
        }
        log::debug!("dropped a notification of the MCP server that names no request: {method}");
        hub.counts.dropped += 1;
    }

    /// Sends a notification that names no subscription to all subscribers of its kind. Returns whether there was one.
    fn tell_subscribers(
        &mut self,
        ctx: &mut Context,
        method: &str,
        envelope: &Envelope<'_>,
    ) -> bool {
        let mut was_told = false;
        for request in self.requests.values_mut() {
            if let Purpose::Call {
                reply,
                id,
                listens: Some(subscription),
                ..
            } = &mut request.purpose
                && subscription.filter.wants(method, envelope)
            {
                let text = with_subscription(envelope, id);
                reply.event(ctx, None, &text);
                was_told = true;
            }
        }
        was_told
    }
}
