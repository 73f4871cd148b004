//! Reading a client: what comes, whose it is, and when to stop.

use std::io;

use super::Server;
use super::client::{Flags, Held, ReadGate};
use super::id::ClientId;
use super::requests::{handle_call, handle_head};
use super::service::Service;
use crate::protocol::{CloseReason, Event, Input, Request};

/// The first read from a client whose messages are long. Fuzzers and tests have short messages.
const FIRST_READ: usize = if cfg!(any(test, fuzzing)) {
    64
} else {
    16 << 10
};

/// The most that is read at once from a client of which only control frames may be taken, so that a data message
/// which has to wait keeps little memory.
const CONTROL_READ: usize = 4 << 10;

impl<S: Service> Server<S> {
    /// Takes a turn's worth of input from a client.
    pub(super) fn read_client(&mut self, id: ClientId) {
        self.ctx.begin_turn();
        let mut gate = ReadGate::Open;
        if self.ctx.is_hindered(id) {
            gate = self.ctx.read_gate(id);
            match gate {
                // The end of a caller that has sent more than its call is hidden behind what it sent.
                ReadGate::Shut(Held::Answer) if self.ctx.has(id, Flags::HUNG_UP) => {
                    return self.disconnect(id, CloseReason::eof());
                }
                ReadGate::Shut(_) => return,
                ReadGate::ControlOnly | ReadGate::Open => {}
            }
            // A message that is being decompressed, and what was held back, come before what is in the socket.
            let is_inflating = self.ctx.is_inflating(id);
            let unread = self.ctx.take_unread(id);
            if is_inflating || !unread.is_empty() {
                self.buffer[..unread.len()].copy_from_slice(&unread);
                self.handle_input(id, unread.len(), is_inflating);
                return self.ctx.read_again(id);
            }
        }
        let mut budget = self.buffer.len();
        while let Some(count) = self.read_once(id, budget, gate) {
            budget -= count;
            if budget == 0 || self.ctx.is_turn_over() {
                self.ctx.counters.turn_reads += 1;
                break;
            }
            if !self.ctx.has(id, Flags::READABLE) {
                break;
            }
            if self.ctx.is_hindered(id) {
                gate = self.ctx.read_gate(id);
                // What was held back comes before what is in the socket, even if nothing holds it any more.
                let is_first = self.ctx.has_unread(id) || self.ctx.is_inflating(id);
                if matches!(gate, ReadGate::Shut(_)) || is_first {
                    break;
                }
            }
        }
        self.ctx.read_again(id);
    }

    /// Reads once from a client's socket, at most `most` bytes, and handles what came. Returns how much that was;
    /// `None` if the client has nothing more or is gone.
    fn read_once(&mut self, id: ClientId, most: usize, gate: ReadGate) -> Option<usize> {
        let Self {
            ctx,
            buffer,
            service,
            ..
        } = self;
        let client = ctx
            .registry
            .get_mut(id)
            .filter(|client| client.flags.has(Flags::READABLE))?;
        let most = match gate {
            ReadGate::ControlOnly => most.min(CONTROL_READ),
            ReadGate::Open | ReadGate::Shut(_) => most,
        };
        // The inside of a long message goes to its place at once.
        let room = client.connection.room(&mut ctx.shared).map(|room| {
            let len = room.len().min(most);
            &mut room[..len]
        });
        let in_room = room.is_some();
        // From who sends long messages little is read at first, so that most of the next one can go there.
        let first = if client.flags.has(Flags::SENDS_LONG) {
            FIRST_READ
        } else {
            most
        };
        let space = room.unwrap_or(&mut buffer[..first.min(most)]);
        let len = space.len();
        match client.stream.read(space) {
            Ok(0) => {
                client.flags.set(Flags::READABLE, false);
                client.flags.set(Flags::HUNG_UP, false);
                self.handle_eof(id);
                None
            }
            Ok(count) => {
                client.traffic.bytes_in += count as u64;
                // A short read has emptied the socket, and the next byte makes a new event. Not so for its end, which
                // may have been announced already.
                let more = count == len || client.flags.has(Flags::HUNG_UP);
                client.flags.set(Flags::READABLE, more);
                client.flags.set(Flags::SENDS_LONG, in_room);
                let deadline_changes = client.connection.handle_sign_of_life();
                if in_room {
                    ctx.receive_in_room(service, id, count);
                    self.reap();
                } else {
                    self.handle_input(id, count, false);
                }
                if deadline_changes {
                    self.ctx.set_deadline(id);
                }
                Some(count)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                client.flags.set(Flags::READABLE, false);
                None
            }
            Err(error) => {
                self.disconnect(id, CloseReason::read_error(&error));
                None
            }
        }
    }

    /// The peer has ended its direction. Queued output is still sent, and so is what the service still has for it.
    fn handle_eof(&mut self, id: ClientId) {
        let client = self.ctx.registry.get(id);
        if client.is_some_and(|client| client.connection.is_half_closed()) {
            return;
        }
        if client.is_some_and(|client| client.connection.is_open()) {
            self.ctx.enter(id);
            let patience = self.service.input_ended(&mut self.ctx, id);
            if !patience.is_zero() {
                self.ctx.end_input(id, patience);
                return self.reap();
            }
        }
        if self.ctx.abandon_input(id) {
            self.disconnect(id, CloseReason::eof());
        }
    }

    /// Passes `count` bytes of the loop's buffer to a client's connection, and the resulting events to the service.
    /// With `is_inflating`, the connection has something to do even without input.
    fn handle_input(&mut self, id: ClientId, count: usize, mut is_inflating: bool) {
        let Self {
            ctx,
            service,
            buffer,
            ..
        } = self;
        let mut input = Input::new(&mut buffer[..count]);
        ctx.cork(id);
        while is_inflating || !input.is_empty() {
            is_inflating = false;
            if let Some(message) = ctx.receive_whole(id, &mut input) {
                service.message(ctx, id, message);
            } else if let Some(event) = ctx.receive(id, &mut input) {
                match event {
                    Event::Message(payload) => {
                        service.message(ctx, id, payload.as_message());
                        payload.recycle(&mut ctx.shared.buffers);
                    }
                    Event::Head(head) => handle_head(ctx, service, id, &head),
                    Event::Call { head, body } => match Request::parse(&head) {
                        Ok(request) => handle_call(ctx, service, id, &request, &body),
                        Err(rejection) => ctx.reject(id, &rejection),
                    },
                    Event::Proxied(address) => ctx.proxied(id, address),
                    Event::BadRequest(rejection) => ctx.reject(id, &rejection),
                }
            } else {
                break;
            }
            if ctx.has_to_wait(id) {
                break;
            }
        }
        if !input.is_empty() {
            ctx.keep_unread(id, input.peek());
        }
        ctx.uncork(id);
        self.reap();
    }
}
