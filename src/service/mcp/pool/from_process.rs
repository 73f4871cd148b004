//! Messages from processes: responses go to their callers, notifications to a caller or to subscribers. Requests are refused.

use std::ops::{ControlFlow, Range};

use super::{MAX_PAGES, MAX_VERSIONS, PendingRequest, Pool, PoolChange, Purpose, Support};
use crate::service::child::{ChildEvent, ChildInput};
use crate::service::json::{Skimmer, unescape};
use crate::service::jsonrpc::{
    Envelope, MessageKind, RecoveredId, Reference, RequestKind, cancellation, code, error, member,
};
use crate::service::mcp::STATELESS;
use crate::service::mcp::http_error::{error_code, status_of};
use crate::service::mcp::hub::Hub;
use crate::service::mcp::process::Received;
use crate::service::mcp::subscription::with_subscription;
use crate::{Context, StatusCode};

impl Pool {
    /// Handles an event of the process of a slot.
    pub(crate) fn handle(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        slot: usize,
        input: ChildInput,
    ) -> Option<PoolChange> {
        let mut process = self.slots[slot].program.take_child()?;
        self.in_hand = Some(slot);
        if self.requests.len() > 0 {
            self.last_used = ctx.now();
        }
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
            ChildEvent::Exited(exit) => Some(exit),
            ChildEvent::NotMine | ChildEvent::Handled => {
                self.slots[slot].program.put_back(process);
                None
            }
        };
        let mut change = None;
        if was_probe {
            change = self.finish_probe(ctx, hub);
        }
        if let Some(exit) = exited {
            change = self.handle_exit(ctx, hub, slot, exit).or(change);
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
                if let Some(request) = self.take_answered(hub, slot, &id) {
                    return self.fail(ctx, request, &format!("the MCP server's answer {why}"));
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
    fn fail(&mut self, ctx: &mut Context, request: PendingRequest, why: &str) -> bool {
        match request.call {
            Purpose::Call { reply, .. } => {
                if let Some(ids) = &request.sender_ids {
                    let failed = error(&ids.id, code::INTERNAL, "Internal error", Some(why));
                    reply.finish(ctx, StatusCode::OK, None, &failed);
                }
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

    /// Takes an answered request out of the table. `None` if the process has no pending request with this id.
    fn take_answered(&mut self, hub: &mut Hub, slot: usize, id: &str) -> Option<PendingRequest> {
        let request = self.requests.of_process(slot, id)?.upstream_id;
        self.take(hub, request)
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
                let answered = self.take_answered(hub, slot, &envelope.text[id.clone()]);
                let Some(request) = answered else {
                    log::debug!("the MCP server has answered a request that does not wait");
                    hub.counts.dropped += 1;
                    return false;
                };
                self.handle_response(ctx, envelope, (id, result.as_ref()), slot, request)
            }
        }
    }

    /// Handles the response to a request that has been taken out of the table. Returns whether the request was the probe.
    fn handle_response(
        &mut self,
        ctx: &mut Context,
        envelope: &Envelope<'_>,
        (id, result): (&Range<usize>, Option<&Range<usize>>),
        slot: usize,
        request: PendingRequest,
    ) -> bool {
        let text = envelope.text;
        let answer = request.with_sender_ids(envelope, id.clone(), |parts| parts.concat());
        match request.call {
            Purpose::Call {
                reply,
                lists_tools,
                listens,
                ..
            } => {
                if listens.is_some() && self.slots.len() > 1 {
                    // The other processes still listen for the caller.
                    let why = Some("The server has ended it");
                    self.send_to_all(ctx, &cancellation(request.upstream_id, why));
                }
                if lists_tools && let Some(result) = result {
                    self.tools.learn(&text[result.clone()]);
                }
                if self.slots.len() > 1
                    && let Some(state) = envelope.of_body("requestState")
                {
                    self.states.learn(&text[state], slot);
                }
                if let Some(answer) = answer {
                    reply.finish(ctx, status_of(text, result), None, &answer);
                }
                false
            }
            Purpose::Probe => {
                let versions = supported_versions(text, result).map(|at| &text[at]);
                self.support = match versions.is_some_and(lists_stateless) {
                    true => Support::Stateless,
                    false => Support::Sessions,
                };
                let versions = versions.filter(|list| list.len() <= MAX_VERSIONS);
                self.versions = versions.map(Into::into);
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
        if method == "notifications/cancelled" {
            return self.end_subscription(ctx, hub, slot, envelope);
        }
        if method == "notifications/tools/list_changed" {
            self.list_tools(ctx, slot);
        }
        match self.requests.reference(slot, method, envelope) {
            Reference::Progress(to) => {
                let event = to.parts(text).concat();
                if let Some(request) = self.requests.get_mut(to.upstream_id)
                    && let Purpose::Call { reply, .. } = &mut request.call
                {
                    // The process is shared, so it cannot wait for a slow caller. What is only news is not queued for it.
                    if ctx.is_congested(reply.caller) {
                        hub.counts.dropped += 1;
                    } else {
                        reply.event(ctx, None, &event);
                    }
                }
                return;
            }
            Reference::Subscription(to) => {
                let event = to.parts(text).concat();
                if let Some(request) = self.requests.get_mut(to.upstream_id)
                    && let Purpose::Call {
                        reply,
                        listens: Some(subscription),
                        ..
                    } = &mut request.call
                {
                    let is_acknowledgement = method == "notifications/subscriptions/acknowledged";
                    if !is_acknowledgement || !subscription.is_acknowledged {
                        subscription.is_acknowledged |= is_acknowledgement;
                        reply.event(ctx, None, &event);
                    }
                }
                return;
            }
            Reference::None => {
                if self.tell_subscribers(ctx, method, envelope) {
                    return;
                }
            }
            Reference::Id(_) | Reference::Gone => {}
        }
        log::debug!("dropped a notification from the MCP server that has no receiver: {method}");
        hub.counts.dropped += 1;
    }

    /// Ends the subscription that a process cancels. It may cancel no other request.
    fn end_subscription(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        slot: usize,
        envelope: &Envelope<'_>,
    ) {
        let named = envelope.request_id.clone();
        let named = named.and_then(|id| self.requests.of_process(slot, &envelope.text[id]));
        let subscription = named.filter(|request| request.call.is_subscription());
        let id = subscription.map(|request| request.upstream_id);
        match id.and_then(|id| self.remove(ctx, hub, id, "The server has ended it")) {
            Some((reply, _)) => reply.end(ctx),
            None => hub.counts.dropped += 1,
        }
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
                listens: Some(subscription),
                ..
            } = &mut request.call
                && let Some(ids) = &request.sender_ids
                && subscription.filter.wants(method, envelope)
            {
                let text = with_subscription(envelope, &ids.id);
                reply.event(ctx, None, &text);
                was_told = true;
            }
        }
        was_told
    }
}

/// The answer to a request of a shared process: it has no client of its own.
fn no_requests(id: &str) -> String {
    error(id, code::NO_METHOD, "Method not found", None)
}

/// The revisions that the answer to `server/discover` lists.
fn supported_versions(text: &str, result: Option<&Range<usize>>) -> Option<Range<usize>> {
    match result {
        Some(result) => member(text, result, "supportedVersions"),
        None if error_code(text) == Some(code::UNSUPPORTED_VERSION) => {
            let error = member(text, &(0..text.len()), "error")?;
            let data = member(text, &error, "data")?;
            member(text, &data, "supported")
        }
        None => None,
    }
}

/// Whether a list of revisions, which is JSON, has 2026-07-28.
fn lists_stateless(versions: &str) -> bool {
    let mut is_supported = false;
    let _ = Skimmer::new(versions).array(|version| {
        let raw = &versions[version];
        is_supported |= raw.starts_with('"') && unescape(raw) == STATELESS;
    });
    is_supported
}
