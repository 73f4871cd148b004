//! Calls of clients of revision 2026-07-28 to a shared process of an older revision: the I/O of [`ToOlder`].

use uuid::Uuid;

use super::Mcp;
use crate::service::jsonrpc::{Envelope, MessageKind, code};
use crate::service::mcp::http_error::HttpError;
use crate::service::mcp::http_error::status_of;
use crate::service::mcp::hub::{Call, Handled};
use crate::service::mcp::pool::check_subscription;
use crate::service::mcp::quota::Quota;
use crate::service::mcp::reply::Reply;
use crate::service::mcp::shared::{Incoming, Seat};
use crate::service::mcp::to_older::{self, Output, ToOlder};
use crate::sys::random_uuid;
use crate::{Context, Principal, StatusCode};

impl Mcp {
    /// Handles a request of revision 2026-07-28 for a server of an older one.
    pub(super) fn translate(
        &mut self,
        ctx: &mut Context,
        envelope: &Envelope<'_>,
        reply: Reply,
        principal: Principal,
    ) {
        let state = to_older::state(envelope);
        let ready = match &state {
            Some(state) => self.find_input(envelope, state, &principal),
            None => self.take_call_seat(ctx, envelope, &reply, &principal),
        };
        let (id, seat) = match ready {
            Ok(ready) => ready,
            Err(error) => {
                let own = envelope.id().unwrap_or("null");
                return reply.reject(ctx, &error.with_id(own), true);
            }
        };
        let caller = reply.caller;
        let mut round = None;
        let out = self.update_translated(|older, bytes, out| {
            round = match seat {
                Some(seat) => Some(older.begin(id, (seat, principal), envelope, reply, out)),
                None => older.resume(id, envelope, reply, bytes, out),
            };
        });
        if let Some(round) = round {
            let call = Call::Translated(id, round);
            self.hub.callers.insert(caller, call);
            self.begin_limits(ctx, call);
        }
        self.begin_sweep(ctx);
        self.perform(ctx, out);
    }

    /// The call that a request continues with its input. The state is used up, unless the request is refused.
    fn find_input(
        &mut self,
        envelope: &Envelope<'_>,
        state: &str,
        principal: &Principal,
    ) -> Result<(Uuid, Option<Seat>), HttpError> {
        let (id, asked) = self.translated.find_input(envelope, state, principal)?;
        let server = asked.and_then(|seat| self.shared.get_mut(seat.server));
        if server.is_some_and(|one| one.is_behind(envelope, principal)) {
            return Err(HttpError::not_reading());
        }
        Ok((id, None))
    }

    /// Reserves a session at a shared process (a [`Seat`]) for a new call.
    fn take_call_seat(
        &mut self,
        ctx: &mut Context,
        envelope: &Envelope<'_>,
        reply: &Reply,
        principal: &Principal,
    ) -> Result<(Uuid, Option<Seat>), HttpError> {
        let method = envelope.method();
        if to_older::is_unknown(method) {
            let why = "Method not found";
            return Err(HttpError::new(StatusCode::NOT_FOUND, code::NO_METHOD, why));
        }
        if method == "subscriptions/listen" {
            check_subscription(reply, envelope.text.len())?;
        }
        self.hub.take_request(principal)?;
        let id = random_uuid();
        let asked = (to_older::ASKED, to_older::capabilities_of(envelope));
        let joined = self.take_seat(ctx, id, principal, asked);
        let seat = joined.and_then(|seat| {
            let server = self.shared.get_mut(seat.server);
            let server = server.ok_or_else(HttpError::not_reading)?;
            if server.is_behind(envelope, principal) {
                server.sessions.leave(seat.member, &mut Vec::new());
                return Err(HttpError::not_reading());
            }
            Ok(seat)
        });
        if seat.is_err() {
            self.hub.end_request(principal);
        }
        Ok((id, Some(seat?)))
    }

    /// Lets the translated calls handle something. The caller acts on what follows.
    pub(super) fn update_translated(
        &mut self,
        update: impl FnOnce(&mut ToOlder<Reply>, &mut Quota, &mut Vec<Output<Reply>>),
    ) -> Vec<Output<Reply>> {
        let mut out = Vec::new();
        update(&mut self.translated, &mut self.hub.bytes, &mut out);
        out
    }

    /// Forwards a message from the process to the call that it belongs to.
    pub(super) fn receive_translated(
        &mut self,
        ctx: &mut Context,
        id: Uuid,
        incoming: &Incoming,
        text: &str,
    ) {
        let mut handled = Handled::Passed;
        let out = self.update_translated(|older, bytes, out| {
            handled = older.receive(id, incoming, text, bytes, out);
        });
        self.hub.counts.note(handled);
        self.perform(ctx, out);
    }

    /// Does what follows for translated calls.
    pub(super) fn perform(&mut self, ctx: &mut Context, out: Vec<Output<Reply>>) {
        for output in out {
            match output {
                Output::Process(seat, text) => {
                    if let Ok(envelope) = Envelope::parse(&text) {
                        self.send_from_seat(ctx, seat, 0, &envelope);
                    }
                }
                Output::Event(id, text) => {
                    if let Some(reply) = self.translated.reply(id) {
                        reply.event(ctx, None, &text);
                    }
                }
                Output::News(id, text) => match self.translated.reply(id) {
                    // A shared process cannot wait for a slow client.
                    Some(reply) if ctx.is_congested(reply.caller) => self.hub.counts.dropped += 1,
                    Some(reply) => _ = reply.event(ctx, None, &text),
                    None => {}
                },
                Output::Answer(reply, text) => {
                    self.hub.callers.remove(&reply.caller);
                    let envelope = Envelope::parse(&text).ok();
                    let result = envelope.and_then(|envelope| match envelope.kind {
                        MessageKind::Response { result, .. } => result,
                        _ => None,
                    });
                    reply.finish(ctx, status_of(&text, result.as_ref()), None, &text);
                }
                Output::Wait(id, round) => {
                    let (hub, waiting) = self.split();
                    let input = Call::Translated(id, round);
                    hub.inputs.push(ctx, input, |call| waiting.is_waiting(call));
                }
                Output::Listen(seat) => {
                    let mut out = Vec::new();
                    if let Some(server) = self.shared.get_mut(seat.server) {
                        server.sessions.listen(seat.member, &mut out);
                        server.start_if_needed(ctx);
                    }
                    self.act(ctx, seat.server, out);
                }
                Output::End(seat, principal) => {
                    self.hub.end_request(&principal);
                    self.leave(ctx, seat);
                }
            }
        }
    }

    /// Removes a call, which is cancelled. Nobody waits for its answer.
    pub(super) fn end_translated(&mut self, ctx: &mut Context, id: Uuid) {
        let out = self.update_translated(|older, bytes, out| _ = older.end(id, bytes, out));
        self.perform(ctx, out);
    }

    /// Fails a call.
    pub(super) fn fail_translated(&mut self, ctx: &mut Context, id: Uuid, why: &str) {
        let out = self.update_translated(|older, bytes, out| older.fail(id, why, bytes, out));
        self.perform(ctx, out);
    }

    /// Ends the subscriptions, or all calls, because the server stops.
    pub(super) fn end_all_translated(&mut self, ctx: &mut Context, why: Option<&str>) {
        let out = self.update_translated(|older, bytes, out| older.end_all(why, bytes, out));
        self.perform(ctx, out);
    }
}
