//! Writing: how queued output reaches the socket, and what happens if the socket takes it slowly.

use std::io::{self, IoSlice};

use super::Client;
use super::delivery::Delivery;
use super::outbound::COMPRESSED_IN_UNIT;
use super::outbox::Outbox;
use super::output::Output;
use super::protocol::Protocol;
use super::wire::Wire;
use crate::protocol::CloseReason;
use crate::protocol::deflate::SLICE;
use crate::server::env::{Env, News, WRITE_BUFFER};
use crate::server::event_loop::budget::WRITE;
use crate::server::event_loop::scheduler::Work;

/// The maximum number of bytes written to one client in one piece of work.
const WRITE_PER_TURN: usize = 1 << 20;

impl Client {
    /// Writes the replies to one read.
    #[inline(never)]
    pub(crate) fn write_output(&mut self, env: &mut Env) {
        if self.wire.is_reading() && !env.output.is_empty() {
            let output = std::mem::take(&mut env.output);
            self.write_now(env, &[&output]);
            env.output = output;
            env.output.clear();
        }
    }

    /// Writes the write buffer, followed by whole frames in at most two parts.
    pub(super) fn write(&mut self, env: &mut Env, parts: &[&[u8]]) {
        if self.wire.is_reading() && !env.output.is_empty() {
            let output = std::mem::take(&mut env.output);
            let mut all = vec![&*output];
            all.extend_from_slice(parts);
            self.write_now(env, &all);
            env.output = output;
            env.output.clear();
        } else {
            self.write_now(env, parts);
        }
    }

    /// Writes whole frames, at most four parts. What the socket does not take waits, and so does everything if
    /// anything waits already.
    pub(super) fn write_now(&mut self, env: &mut Env, parts: &[&[u8]]) {
        if self.wire.output().is_some_and(|output| output.queued() > 0) {
            return self.enqueue(env, |output| output.push(parts, 0));
        }
        let mut slices = [IoSlice::new(&[]); 4];
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        match self
            .wire
            .stream
            .write(&slices[..parts.len()], &mut env.scratch)
        {
            Ok(written) => {
                self.traffic.bytes_out += self.wire.stream.sent(written);
                if written < parts.iter().map(|part| part.len()).sum() {
                    self.keep_rest(env, |output| output.push(parts, written));
                }
            }
            Err(error) => self.handle_write_error(env, &error),
        }
    }

    #[cold]
    pub(super) fn handle_write_error(&mut self, env: &mut Env, error: &io::Error) {
        // A violation of TLS was found when the socket was read.
        let reason = match error.kind() {
            io::ErrorKind::InvalidData => CloseReason::read_error(error),
            _ => CloseReason::write_error(error),
        };
        self.end(env, reason);
    }

    /// Appends output, to be written at the end of the turn.
    pub(super) fn enqueue(&mut self, env: &mut Env, add: impl FnOnce(&mut Output)) {
        let output = self.wire.output_mut();
        let before = output.queued();
        add(output);
        env.memory.add(output.queued() - before);
        self.write_soon(env);
    }

    /// Writes queued output now if there is much, and otherwise at the end of the turn.
    pub(super) fn write_soon(&mut self, env: &mut Env) {
        let output = self.wire.output_mut();
        output.congested |= output.queued() > env.config.soft_outbound;
        if output.blocked {
            return;
        }
        // A service may send more than the limit in one call, so write early: only output that the socket does not
        // accept counts.
        if output.queued() >= WRITE_BUFFER && !output.must_squeeze() {
            self.flush_early(env);
        } else {
            self.write_later(env);
        }
    }

    /// Queues the rest of a short write. The socket is usually full then; with TLS it may have room.
    #[cold]
    pub(super) fn keep_rest(&mut self, env: &mut Env, add: impl FnOnce(&mut Output)) {
        let is_full = !self.wire.stream.has_room();
        let output = self.wire.output_mut();
        add(output);
        env.memory.add(output.queued());
        output.congested |= output.queued() > env.config.soft_outbound;
        if is_full {
            output.blocked = true;
        } else {
            self.write_later(env);
        }
    }

    /// Queues the client to be written at the end of the turn.
    pub(super) fn write_later(&mut self, env: &mut Env) {
        if !std::mem::replace(&mut self.wire.output_mut().dirty, true) {
            env.push_dirty(self.id);
        }
    }

    /// Records that the socket has room, and queues the client to be written to.
    pub(crate) fn handle_writable(&mut self, env: &mut Env) {
        let has_output = self.wire.queued() > 0 || self.wire.has_unsent() || self.wire.has_newest();
        if let Some(rare) = self.wire.rare.as_deref_mut() {
            rare.output.blocked = false;
            if has_output && std::mem::replace(&mut rare.output.dirty, true) {
                return;
            }
        }
        if !has_output {
            return;
        }
        env.scheduler.push(self.wire.account, Work::Write(self.id));
    }

    /// Writes encrypted bytes that the socket has not taken. Returns whether further output can be written.
    #[cold]
    pub(super) fn flush_sealed(&mut self, env: &mut Env) -> bool {
        match self.wire.stream.flush() {
            Ok(sent) => self.traffic.bytes_out += sent as u64,
            Err(error) => {
                self.handle_write_error(env, &error);
                return false;
            }
        }
        let is_full = self.wire.stream.sealed() > 0;
        if let Some(rare) = self.wire.rare.as_deref_mut() {
            rare.output.blocked = is_full;
            rare.output.dirty &= !is_full;
        }
        !is_full
    }

    /// Writes queued output, at most [`WRITE_PER_TURN`]. If all is written, sends messages that have waited for that, or takes the
    /// next step of closing.
    pub(crate) fn flush(&mut self, env: &mut Env) {
        if self.wire.is_reading() {
            return self.flush_early(env);
        }
        if self.write_queued(env) {
            if self.wire.has_unsent() && self.wire.queued() == 0 {
                self.send_unsent(env);
            }
            if self.wire.has_newest() && self.wire.queued() == 0 {
                self.send_newest(env);
            }
            self.settle(env);
        }
    }

    /// Writes queued output while more is added, or while the client is read. Messages that have waited would precede the output that
    /// is being added, so they are left to [`Client::flush`], at the end of the turn.
    pub(super) fn flush_early(&mut self, env: &mut Env) {
        if self.write_queued(env) {
            let has_waited = self.wire.has_unsent() || self.wire.has_newest();
            if has_waited && self.wire.queued() == 0 {
                self.write_later(env);
            }
            self.settle(env);
        }
    }

    /// Writes queued output, at most [`WRITE_PER_TURN`]. Returns false if the connection has failed or the client is queued for the
    /// rest.
    pub(super) fn write_queued(&mut self, env: &mut Env) -> bool {
        env.batches.complete();
        if self.wire.stream.sealed() > 0 && !self.flush_sealed(env) {
            return false;
        }
        let Wire {
            rare: Some(rare),
            protocol,
            stream,
            account,
            ..
        } = &mut self.wire
        else {
            return true;
        };
        let output = &mut rare.output;
        output.dirty = false;
        let before = self.traffic.bytes_out;
        let mut squeezed = 0;
        while output.queued() > 0 {
            if output.must_squeeze() {
                if squeezed >= SLICE {
                    output.dirty = true;
                    env.scheduler.push(*account, Work::Write(self.id));
                    env.budget.spend(WRITE);
                    return false;
                }
                let codec = match protocol {
                    Protocol::WebSocket(socket) => socket.codec(),
                    Protocol::Http(_) | Protocol::Outgoing(_) | Protocol::Detached(_) => None,
                };
                match output.squeeze(codec, env.protocol.compression.as_mut(), &env.batches) {
                    Ok(Some(count)) => {
                        squeezed += count;
                        env.budget.spend(count / COMPRESSED_IN_UNIT);
                        // The compressor may not have produced output yet.
                        continue;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        let reason = CloseReason::write_error(&io::Error::other(error));
                        self.end(env, reason);
                        return false;
                    }
                }
            }
            match output.write(stream, &mut env.scratch) {
                Ok(sent) => {
                    self.traffic.bytes_out += sent;
                    if output.blocked {
                        break;
                    }
                    let total = (self.traffic.bytes_out - before) as usize;
                    if total >= WRITE_PER_TURN && output.queued() > 0 {
                        output.dirty = true;
                        env.scheduler.push(*account, Work::Write(self.id));
                        env.budget.spend(WRITE + WRITE_PER_TURN / 2048);
                        return false;
                    }
                }
                Err(error) => {
                    self.handle_write_error(env, &error);
                    return false;
                }
            }
        }
        let written = (self.traffic.bytes_out - before) as usize;
        env.budget.spend(WRITE + written / 2048);
        if output.queued() > 0 {
            output.congested |= output.queued() > env.config.soft_outbound;
            output.copy_short();
        } else {
            let drained = std::mem::take(&mut output.congested);
            self.wire.shrink();
            if drained {
                self.handle_drained(env);
            }
        }
        true
    }

    /// The output has exceeded the soft limit and is written now.
    pub(super) fn handle_drained(&mut self, env: &mut Env) {
        if !self.is_congested() {
            env.push_news(self.id, News::Drained);
        }
        self.read_again(env);
    }

    /// Writes queued output unless the socket is known to be full.
    pub(super) fn offer(&mut self, env: &mut Env) {
        self.write_output(env);
        if self.wire.output().is_some_and(|output| !output.blocked) {
            self.flush_early(env);
        }
    }

    /// Whether the service should send no more until the client has taken, or confirmed, what was sent.
    pub(crate) fn is_congested(&self) -> bool {
        self.wire.is_congested() || self.wire.delivery().is_some_and(Delivery::is_crowded)
    }

    /// Makes room for a message of `size` bytes. If there is no room, closes the client as a slow consumer.
    #[cold]
    pub(super) fn make_room(&mut self, env: &mut Env, size: usize) -> bool {
        if !self.wire.is_open() || self.wire.fits(env, size) {
            return true;
        }
        if !self.wire.may_keep(size) {
            self.release_confirmed(env);
        }
        if self.wire.fits(env, size) {
            return true;
        }
        // The output may not have been written yet. Only output that the socket does not accept counts.
        self.offer(env);
        if self.wire.has_room(env, size, self.traffic.bytes_out) {
            return true;
        }
        self.cut_off(env, CloseReason::slow_consumer());
        false
    }

    /// Ends the client, and frees what is held for it, because too little memory is left.
    pub(crate) fn free_memory(&mut self, env: &mut Env, worthwhile: usize) {
        if self.wire.is_open() {
            self.cut_off(env, CloseReason::memory());
        }
        // The rest of a frame that has begun cannot be followed by a CLOSE any sooner, so the connection ends.
        if self.wire.holds() >= worthwhile {
            self.end(env, CloseReason::memory());
        }
    }

    /// Closes a client that reads too slowly, or for which there is no memory. Drops the frames of which nothing was written, so
    /// that CLOSE follows those that were begun.
    pub(crate) fn cut_off(&mut self, env: &mut Env, reason: CloseReason) {
        if self.wire.protocol.is_answering() {
            return self.end(env, reason);
        }
        if !self.wire.is_open() {
            // The output of a closing connection ends with its CLOSE.
            return;
        }
        self.write_output(env);
        if let Some(rare) = self.wire.rare.as_deref_mut() {
            rare.output.drop_unbegun();
            rare.memberships.drop_newest();
        }
        // The client ends for good.
        if let Some(delivery) = self.wire.delivery_mut() {
            delivery.outbox = Outbox::default();
        }
        self.close(env, reason);
        if self
            .wire
            .output()
            .is_some_and(|output| output.queued() > 0 && !output.blocked)
        {
            self.write_later(env);
        }
    }

    /// Begins to measure progress.
    pub(super) fn mark_delivered(&mut self) {
        self.wire.mark_delivered(self.traffic.bytes_out);
    }
}
