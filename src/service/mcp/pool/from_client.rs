//! Requests of callers: which process gets one, which notifications a subscription gets, and the ends of requests that do not come
//! from a process.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{PendingRequest, Pool, Purpose, Subscription, Support};
use crate::record::record;
use crate::service::jsonrpc::{
    Envelope, Forwarded, IdRanges, MessageKind, cancellation, code, error,
};
use crate::service::mcp::http_error::HttpError;
use crate::service::mcp::hub::{Call, Hub};
use crate::service::mcp::reply::Reply;
use crate::service::mcp::subscription::Filter;
use crate::{ClientId, Context, Principal, StatusCode};

/// The maximum length of a `subscriptions/listen` request, which is kept while the subscription lasts.
const MAX_SUBSCRIPTION: usize = 64 << 10;

/// Checks a `subscriptions/listen` request of this length.
pub(crate) fn check_subscription(reply: &Reply, length: usize) -> Result<(), HttpError> {
    if !reply.takes_events() {
        return Err(HttpError::events_required());
    }
    if length > MAX_SUBSCRIPTION {
        return Err(HttpError::new(
            StatusCode::CONTENT_TOO_LARGE,
            code::INVALID,
            format!("A subscription may have up to {MAX_SUBSCRIPTION} bytes"),
        ));
    }
    Ok(())
}

impl Pool {
    /// Whether a process has the request, and its stream has not begun.
    pub(crate) fn may_begin(&self, id: u64) -> bool {
        let request = self.requests.get(id);
        let request = request.filter(|_| !self.held.contains(id));
        request.is_some_and(
            |request| matches!(&request.call, Purpose::Call { reply, .. } if !reply.is_streaming()),
        )
    }

    /// Whether a request still waits for its answer.
    pub(crate) fn is_waiting(&self, id: u64) -> bool {
        self.requests.get(id).is_some()
    }

    /// The running process with the fewest pending requests; one whose input queue has room is preferred. `None` if none runs.
    fn least_busy(&mut self) -> Option<usize> {
        let slots = self.slots.iter_mut().enumerate();
        let running = slots.filter_map(|(index, slot)| {
            let is_behind = slot.program.child_mut()?.is_behind();
            Some((is_behind, slot.pending, index))
        });
        running.min().map(|(.., index)| index)
    }

    /// The running process that knows the state of a call with several rounds.
    fn knowing(&self, envelope: &Envelope<'_>) -> Option<usize> {
        if self.slots.len() == 1 {
            return None;
        }
        let state = envelope.of_body("requestState")?;
        let slot = self.states.slot_of(&envelope.text[state])?;
        let is_running = self.slots[slot].program.is_running();
        is_running.then_some(slot)
    }

    /// Passes a request on to a process. The caller gets the answer later.
    pub(crate) fn request(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        envelope: &Envelope<'_>,
        reply: Reply,
        principal: Principal,
    ) {
        let MessageKind::Request { method, id } = &envelope.kind else {
            return;
        };
        let own_id = &envelope.text[id.clone()];
        let is_subscription = method == "subscriptions/listen";
        match self.accept(hub, envelope, is_subscription, &reply, &principal) {
            Ok((slot, ids)) => {
                let request = self.ids.next();
                let caller = reply.caller;
                let text =
                    ids.with_upstream_id(envelope.text, request, None, |parts| parts.concat());
                self.last_used = ctx.now();
                let is_running = self.slots[slot].program.is_running();
                let is_held = self.support == Support::Unknown || !is_running;
                let purpose = Purpose::Call {
                    reply,
                    principal,
                    listens: is_subscription.then(|| {
                        Box::new(Subscription {
                            filter: Filter::of(envelope),
                            text: text.as_str().into(),
                            is_acknowledged: false,
                        })
                    }),
                    lists_tools: method == "tools/list",
                    refusal: None,
                };
                let pending = Forwarded {
                    process: slot,
                    upstream_id: request,
                    sender_ids: Some(ids.read(envelope.text)),
                    call: purpose,
                };
                self.insert(ctx, hub, caller, pending);
                if is_held {
                    self.hold(request, text);
                    self.start_held(ctx, slot);
                } else if is_subscription {
                    self.send_to_all(ctx, &text);
                } else {
                    self.send(ctx, slot, &text);
                }
                if !is_held {
                    self.begin_delay(ctx, hub, request);
                }
            }
            Err(error) => reply.reject(ctx, &error.with_id(own_id), true),
        }
    }

    /// Adds a request of a caller to the table, and begins its time limit.
    pub(super) fn insert(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        caller: ClientId,
        request: PendingRequest,
    ) {
        let call = Call::Pool(request.upstream_id);
        hub.callers.insert(caller, call);
        self.slots[request.process].pending += 1;
        self.requests.insert(request.upstream_id, request);
        hub.timeouts.push(ctx, call, |call| match call {
            Call::Pool(id) => self.is_waiting(id),
            Call::Session(..) | Call::Translated(..) => true,
        });
    }

    /// Begins the delay after which the answer to a request becomes a stream.
    pub(super) fn begin_delay(&self, ctx: &mut Context, hub: &mut Hub, request: u64) {
        hub.beginnings
            .push(ctx, Call::Pool(request), |call| match call {
                Call::Pool(id) => self.may_begin(id),
                Call::Session(..) | Call::Translated(..) => true,
            });
    }

    /// Chooses the process for a request. Returns its slot, and where the request has the ids that are replaced.
    fn accept(
        &mut self,
        hub: &mut Hub,
        envelope: &Envelope<'_>,
        is_subscription: bool,
        reply: &Reply,
        principal: &Principal,
    ) -> Result<(usize, IdRanges), HttpError> {
        let MessageKind::Request { id, .. } = &envelope.kind else {
            return Err(HttpError::invalid("Invalid request"));
        };
        let ids = IdRanges::find(envelope, id.clone())
            .map_err(|why| HttpError::invalid(format!("Invalid request: {why}")))?;
        if is_subscription {
            check_subscription(reply, envelope.text.len())?;
        }
        let slot = self
            .knowing(envelope)
            .or_else(|| self.least_busy())
            .or_else(|| self.is_lazy.then_some(0))
            .ok_or_else(|| HttpError::unavailable("The MCP server is not running"))?;
        let is_full = match self.slots[slot].program.child_mut() {
            Some(process) if self.support == Support::Stateless => process.is_behind(),
            _ => !self.held.has_room(principal, envelope.text.len()),
        };
        if is_full {
            return Err(HttpError::not_reading());
        }
        hub.take_request(principal)?;
        Ok((slot, ids))
    }

    /// Passes on a notification from a client, unless it concerns one request or the handshake: clients' ids mean nothing to a shared
    /// process.
    pub(crate) fn notify(&mut self, ctx: &mut Context, method: &str, text: &str) {
        let is_for_one_client = matches!(
            method,
            "notifications/cancelled" | "notifications/progress" | "notifications/initialized"
        );
        if is_for_one_client || self.support != Support::Stateless {
            return;
        }
        if let Some(slot) = self.least_busy() {
            self.send(ctx, slot, text);
        }
    }

    /// Begins the stream of a request that has waited for a while.
    pub(crate) fn begin_stream(&mut self, ctx: &mut Context, id: u64) {
        if let Some(request) = self.requests.get_mut(id)
            && let Purpose::Call { reply, .. } = &mut request.call
        {
            reply.begin(ctx);
        }
    }

    /// Cancels a request whose caller is gone.
    pub(crate) fn cancel(&mut self, ctx: &mut Context, hub: &mut Hub, id: u64) {
        if self.remove(ctx, hub, id, "Client disconnected").is_some() {
            hub.counts.cancelled += 1;
        }
    }

    /// Fails a request that has waited too long.
    pub(crate) fn time_out(&mut self, ctx: &mut Context, hub: &mut Hub, id: u64) {
        if let Some((reply, own_id)) = self.remove(ctx, hub, id, "Request timed out") {
            let failed = error(&own_id, code::INTERNAL, "Request timed out", None);
            reply.finish(ctx, StatusCode::OK, None, &failed);
        }
    }

    /// Fails all requests of callers with an internal error.
    pub(crate) fn fail_all(&mut self, ctx: &mut Context, hub: &mut Hub, why: &'static str) {
        for id in self.requests.ids_of(|_| true) {
            if let Some((reply, own_id)) = self.remove(ctx, hub, id, why) {
                let failed = error(&own_id, code::INTERNAL, why, None);
                reply.finish(ctx, StatusCode::OK, None, &failed);
            }
        }
    }

    /// Removes a request of a caller and tells the process.
    pub(super) fn remove(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        id: u64,
        why: &str,
    ) -> Option<(Reply, Box<str>)> {
        let was_held = self.held.contains(id);
        let request = self.take(hub, id)?;
        let Purpose::Call { reply, listens, .. } = request.call else {
            return None;
        };
        if !was_held {
            let cancelled = cancellation(id, Some(why));
            if listens.is_some() {
                self.send_to_all(ctx, &cancelled);
            } else {
                self.send(ctx, request.process, &cancelled);
            }
        }
        Some((reply, request.sender_ids?.id))
    }

    /// Takes a request out of the table.
    pub(super) fn take(&mut self, hub: &mut Hub, id: u64) -> Option<PendingRequest> {
        let request = self.requests.remove(id)?;
        self.held.remove(id);
        if let Purpose::Call {
            reply, principal, ..
        } = &request.call
        {
            self.slots[request.process].pending -= 1;
            hub.end_request(principal);
            hub.callers.remove(&reply.caller);
        }
        Some(request)
    }

    /// Takes a request of a caller out of the table. Returns its reply, and the caller's own id.
    pub(super) fn take_call(&mut self, hub: &mut Hub, id: u64) -> Option<(Reply, Box<str>)> {
        let request = self.take(hub, id)?;
        match request.call {
            Purpose::Call { reply, .. } => Some((reply, request.sender_ids?.id)),
            Purpose::Probe | Purpose::ListTools => None,
        }
    }
}

/// The maximum number of states that are remembered.
const MAX_STATES: usize = 4096;

/// The processes that have issued states. A state that is not known goes to any process.
#[derive(Debug, Default)]
pub(super) struct States {
    slots: HashMap<u64, usize>,
    /// The states, the oldest first.
    order: VecDeque<u64>,
}

record!(States { slots, order });

impl States {
    /// Remembers that the process of a slot has issued a state.
    pub(super) fn learn(&mut self, state: &str, slot: usize) {
        let hash = hash(state);
        if self.slots.insert(hash, slot).is_some() {
            return;
        }
        self.order.push_back(hash);
        if self.order.len() > MAX_STATES
            && let Some(oldest) = self.order.pop_front()
        {
            self.slots.remove(&oldest);
        }
    }

    /// The slot of the process that has issued a state.
    fn slot_of(&self, state: &str) -> Option<usize> {
        self.slots.get(&hash(state)).copied()
    }
}

fn hash(state: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_states_are_forgotten() {
        let mut states = States::default();
        for number in 0..MAX_STATES + 10 {
            states.learn(&number.to_string(), number % 3);
            states.learn(&number.to_string(), number % 3);
        }
        assert_eq!(states.slot_of("9"), None);
        assert_eq!(states.slot_of("10"), Some(1));
        assert_eq!(
            (states.slots.len(), states.order.len()),
            (MAX_STATES, MAX_STATES)
        );
    }
}
