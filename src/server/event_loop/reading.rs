//! Reading a client: from its socket to the service, one read at a time.

use std::time::Duration;

use super::Server;
use super::clock::Nanos;
use crate::protocol::{CloseReason, Message};
use crate::server::client::{Inbound, Input, Read, ReadGate, SHORT_READ, Why};
use crate::server::context::Context;
use crate::server::id::ClientId;
use crate::server::outgoing::handle_answer;
use crate::server::outgoing::requesting::handle_exchange;
use crate::server::requests::handle_http;
use crate::server::service::Service;

/// The time in nanoseconds after which a slice ends, even if the client's input has not been handled.
const SLICE_TIME: Nanos = 1_000_000;

impl<S: Service> Server<S> {
    /// Reads a client within its share of the turn, and passes its messages and requests to the service. The client is
    /// checked out of its slot meanwhile.
    pub(crate) fn read_client(&mut self, id: ClientId) {
        if self.ctx.core.begin_read(id) {
            let is_ready = self.is_ready_to_read(id);
            if is_ready {
                self.read_checked_out(id);
            }
            if let Some(join) = self.ctx.core.end_read(is_ready) {
                self.ctx.core.join(id, join);
                self.report_own_resumed(join.target);
            }
        }
    }

    /// Whether the client that is checked out may be read. A held client is queued again when the reason of the hold
    /// ends.
    fn is_ready_to_read(&mut self, id: ClientId) -> bool {
        let Some((client, env)) = self.ctx.core.reading() else {
            return false;
        };
        let gate = client.read_gate(env);
        let is_held = matches!(gate, ReadGate::Held(Why::Answer | Why::Output));
        if is_held && client.wire.protocol.is_answering() && client.wire.is_hung_up() {
            // The caller is not read, so only the event shows that it hung up. Its input is discarded from now on.
            client.abandon_input(env);
            self.forget_call(id);
            return true;
        }
        gate == ReadGate::Ready
    }

    /// Reads the client that is checked out until its socket is empty, its share is used up, or it is held.
    fn read_checked_out(&mut self, id: ClientId) {
        let Some((client, _)) = self.ctx.core.reading() else {
            return;
        };
        // A message that is being decompressed, and kept input, must be handled before new input is read.
        if client.wire.protocol.is_inflating() || client.wire.has_unread() {
            let count = client.wire.take_unread(&mut self.buffer);
            return self.handle_input(id, Read::Bytes(count));
        }
        let mut budget = self.buffer.len();
        while let Some((client, env)) = self.ctx.core.reading() {
            let read = client.read(env, &mut self.buffer, budget);
            let count = match read {
                Read::Bytes(count) | Read::Placed(count) => count,
                Read::End => return self.handle_end_of_input(id),
                Read::Nothing => return,
            };
            budget -= count;
            self.handle_input(id, read);
            let Some((client, env)) = self.ctx.core.reading() else {
                return;
            };
            if !client.wire.has_input() {
                // The common case: everything that arrived has been handled.
                return;
            }
            let gate = client.read_gate(env);
            let is_over = count >= SHORT_READ && env.slice_time() >= SLICE_TIME;
            if budget == 0 || is_over || gate == ReadGate::Held(Why::Turn) {
                env.counters.turn_reads += 1;
                return;
            }
            // Kept input must be handled before new input is read, even if the client is no longer held.
            let is_done = !client.wire.is_readable()
                || client.wire.protocol.is_inflating()
                || client.wire.has_unread();
            if is_done || gate != ReadGate::Ready {
                return;
            }
        }
    }

    /// Parses the bytes that were read, and passes the resulting messages and requests to the service. Keeps input that
    /// must wait.
    fn handle_input(&mut self, id: ClientId, read: Read) {
        let Self {
            ctx,
            service,
            buffer,
            ..
        } = self;
        let mut input = match read {
            Read::Bytes(count) => Input::new(&mut buffer[..count]),
            Read::Placed(count) => Input::placed(count),
            Read::End | Read::Nothing => return,
        };
        ctx.core.env.has_more_input = true;
        while let Some((client, env)) = ctx.core.reading() {
            if let Some(message) = client.receive_whole(env, &mut input) {
                if input.peek().is_empty() {
                    env.has_more_input = false;
                    pass_on(ctx, service, id, message);
                    break;
                }
                pass_on(ctx, service, id, message);
            } else {
                let mut rest = input;
                let goes_on = receive(ctx, service, id, &mut rest);
                input = rest;
                if !goes_on {
                    break;
                }
            }
        }
        if !input.is_empty()
            && let Some((client, _)) = ctx.core.reading()
        {
            debug_assert_eq!(
                input.len(),
                input.peek().len(),
                "placed bytes are never kept"
            );
            client.wire.keep_unread(input.peek());
        }
    }

    /// The peer has half-closed the connection. Sends the queued output, and keeps the connection if the service still
    /// has output for it.
    fn handle_end_of_input(&mut self, id: ClientId) {
        let Some((client, env)) = self.ctx.core.reading() else {
            return;
        };
        if client.wire.protocol.is_half_closed() {
            return;
        }
        if client.wire.protocol.is_connected() && client.wire.is_resumable() {
            // The client may come back, so its service hears nothing.
            return client.end(env, CloseReason::eof());
        }
        let mut patience = Duration::ZERO;
        if client.wire.protocol.is_connected() {
            let service = self.service.select(self.ctx.core.service_id);
            patience = service.map_or(Duration::ZERO, |service| {
                service.input_ended(&mut self.ctx, id)
            });
        }
        if let Some((client, env)) = self.ctx.core.reading() {
            client.write_output(env);
            if patience.is_zero() {
                client.abandon_input(env);
            } else {
                client.end_input(env, patience);
            }
        }
        self.forget_call(id);
    }

    /// Tells the service that a caller has hung up. Queued output may still be written, which can take long.
    fn forget_call(&mut self, id: ClientId) {
        if let Some((client, env)) = self.ctx.core.reading()
            && client.wire.forget_call(env)
        {
            self.ctx.core.service_id = client.service_id;
            self.call_service(|service, ctx| service.abandoned(ctx, id));
        }
    }
}

/// Passes a message to the service of its client.
#[inline]
fn pass_on<S: Service>(ctx: &mut Context, service: &mut S, id: ClientId, message: Message<'_>) {
    if let Some(service) = service.select(ctx.core.service_id) {
        service.message(ctx, id, message);
    }
}

/// Parses the next event from a client's input and passes it to the service. Returns whether parsing can continue.
#[inline(never)]
fn receive<S: Service>(
    ctx: &mut Context,
    service: &mut S,
    id: ClientId,
    input: &mut Input<'_>,
) -> bool {
    let Some((client, env)) = ctx.core.reading() else {
        return false;
    };
    // Bytes that were read into the memory of a message must be handled now. Decrypting them may have used up the client's
    // share after the gate was checked.
    if !input.is_placed() && client.read_gate(env) != ReadGate::Ready {
        return false;
    }
    let event = client.receive(env, input);
    env.has_more_input = !input.is_empty();
    match event {
        None => return false,
        Some(Inbound::Message(payload)) => {
            // Most of it may have been read in earlier turns, but its handling takes time now.
            env.budget.read(payload.as_message().as_bytes().len());
            pass_on(ctx, service, id, payload.as_message());
            payload.recycle(&mut ctx.core.env.protocol.buffers);
        }
        Some(Inbound::OverRate) => {}
        Some(Inbound::Heartbeat(payload)) => payload.recycle(&mut ctx.core.env.protocol.buffers),
        Some(Inbound::Http(event)) => handle_http(ctx, service, id, event),
        Some(Inbound::Response(event)) => handle_answer(ctx, service, id, event, input),
        Some(Inbound::Exchange(event)) => handle_exchange(ctx, service, id, event, input),
    }
    !input.is_empty()
}
