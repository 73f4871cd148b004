//! Output: the single path by which output reaches the socket.
//!
//! Output is added with [`Client::push`] (a message), [`Client::push_shared`] (a broadcast) or [`Client::transmit`]
//! (the protocol's own bytes), and [`Client::flush`] writes the queued output. Until then it is in one of three places:
//!
//! * While the client is being read: in the loop's write buffer, so that the replies to one read leave in one write.
//! * Otherwise: in the client's backlog until the end of the turn. Large pieces are written at once.
//! * After the socket has accepted only a part: the rest is in the backlog until the socket has room.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use super::{Broadcast, Client, Connection, Flag};
use crate::protocol::deflate::{SLICE, Squeeze};
use crate::protocol::{CloseReason, Message, SentHeader, Time};
use crate::server::budget::WRITE;
use crate::server::config::Config;
use crate::server::env::{Env, WRITE_BUFFER};
use crate::server::error::SendError;
use crate::server::news::News;
use crate::server::scheduler::Work;

/// A payload of at least this size is written without copying, unless more input waits.
const DIRECT: usize = 16 << 10;

/// A payload of at least this size is always written without copying. Below it, a copy costs less than another write.
const LARGE: usize = 128 << 10;

/// The maximum number of bytes written to one client in one turn of the loop.
const WRITE_PER_TURN: usize = 1 << 20;

/// The bytes that are compressed in one unit of work.
const COMPRESSED_IN_UNIT: usize = 64;

/// The cost of compressing a slice.
const SQUEEZE: usize = SLICE / COMPRESSED_IN_UNIT;

/// A broadcast up to this size is copied to each backlog; the clients share a longer one.
const COPIED: usize = 4 << 10;

/// The factor by which the output limit is higher for a client that keeps reading.
const STEADY_FACTOR: usize = 4;

/// A client keeps reading if it has accepted output within this time.
const STEADY: Duration = Duration::from_secs(5);

impl Client {
    /// Sends a message. It is written at the end of the current turn at the latest, together with the client's other
    /// output.
    #[inline(always)]
    pub(in crate::server) fn push(
        &mut self,
        env: &mut Env,
        message: Message<'_>,
    ) -> Result<(), SendError> {
        if self.backlog.is_some() {
            return self.push_behind(env, message);
        }
        self.send_now(env, message)
    }

    /// Sends a message of a client that has a backlog.
    #[inline(never)]
    fn push_behind(&mut self, env: &mut Env, message: Message<'_>) -> Result<(), SendError> {
        if !self.make_room(env, message.as_bytes().len()) {
            return Err(SendError::SlowConsumer);
        }
        if !self.is_open() {
            return Err(SendError::Closing);
        }
        if !self.keep(env, message) {
            self.traffic.messages_out += 1;
            if let Connection::Detached(detached) = &mut self.connection {
                detached.last_message = env.now;
            }
            return Ok(());
        }
        let sent = self.send_now(env, message);
        self.ping_if_due(env);
        sent
    }

    /// Counts a message and adds it to the output, or writes it if it is large.
    #[inline(always)]
    pub(super) fn send_now(
        &mut self,
        env: &mut Env,
        message: Message<'_>,
    ) -> Result<(), SendError> {
        let payload = message.as_bytes();
        let Connection::WebSocket(socket) = &mut self.connection else {
            return Err(SendError::Closing);
        };
        if !socket.is_open() {
            return Err(SendError::Closing);
        }
        self.traffic.messages_out += 1;
        socket.handle_message(env.now);
        if socket.transforms_messages() && self.push_transformed(env, message) {
            return Ok(());
        }
        let header = SentHeader::new(message.opcode(), payload.len());
        if payload.len() < DIRECT && self.flags.has(Flag::Reading) {
            header.append_with(payload, &mut env.output);
            if env.is_output_full() {
                self.write_output(env);
            }
        } else {
            self.push_frame(env, header, payload);
        }
        Ok(())
    }

    /// Adds a frame to the output, or writes it if it is large.
    #[inline(never)]
    fn push_frame(&mut self, env: &mut Env, header: SentHeader, payload: &[u8]) {
        let is_reading = self.flags.has(Flag::Reading);
        let direct = if is_reading && env.has_more_input {
            LARGE
        } else {
            DIRECT
        };
        if payload.len() >= direct {
            self.write(env, &[header.encode().as_slice(), payload]);
        } else if is_reading {
            header.append_with(payload, &mut env.output);
            if env.is_output_full() {
                self.write_output(env);
            }
        } else {
            self.enqueue(env, |backlog| {
                backlog.push(&[header.encode().as_slice(), payload], 0);
            });
        }
    }

    /// Sends a message that is masked or compressed.
    #[inline(never)]
    fn push_transformed(&mut self, env: &mut Env, message: Message<'_>) -> bool {
        let Connection::WebSocket(socket) = &mut self.connection else {
            return false;
        };
        if !socket.is_client() {
            return self.push_compressed(env, message);
        }
        if self.flags.has(Flag::Reading) {
            socket.send(message, &mut env.protocol, &mut env.output);
            if env.is_output_full() {
                self.write_output(env);
            }
        } else {
            let mut frame = Vec::new();
            socket.send(message, &mut env.protocol, &mut frame);
            if frame.len() < DIRECT {
                self.enqueue(env, |backlog| backlog.push(&[&frame], 0));
            } else {
                self.write(env, &[&frame]);
            }
        }
        true
    }

    /// Sends a message compressed, if that makes it smaller. A long message, and every message queued behind it, is
    /// compressed in slices when it is at the front of the backlog.
    #[inline(never)]
    fn push_compressed(&mut self, env: &mut Env, message: Message<'_>) -> bool {
        let payload = message.as_bytes();
        let waits = self.has_squeeze();
        let Connection::WebSocket(socket) = &mut self.connection else {
            return false;
        };
        let (Some(compression), Some(codec)) = (&mut env.protocol.compression, socket.codec())
        else {
            return false;
        };
        if waits || payload.len() > SLICE {
            if !codec.is_worth_compressing(payload.len(), compression) {
                return false;
            }
            self.write_output(env);
            let message = Squeeze::new(message.opcode(), payload);
            self.enqueue(env, |backlog| backlog.push_squeeze(message));
            return true;
        }
        env.budget.spend(payload.len() / COMPRESSED_IN_UNIT);
        let Some(compressed) = codec.compress(payload, compression) else {
            return false;
        };
        let header = SentHeader::compressed(message.opcode(), compressed.len());
        self.push_frame(env, header, &compressed);
        if let Some(compression) = &mut env.protocol.compression {
            compression.give_back(compressed);
        }
        true
    }

    /// Sends the frame of a broadcast that suits the client. It is written at the end of the turn, together with the others.
    pub(in crate::server) fn push_shared(&mut self, env: &mut Env, broadcast: &mut Broadcast<'_>) {
        if self.backlog.is_some() && self.is_resumable() {
            // A client that cannot take the message is closed.
            let _ = self.push_behind(env, broadcast.message);
            return;
        }
        if self.is_ours() {
            let _ = self.send_now(env, broadcast.message);
            return;
        }
        let is_behind = self.has_squeeze();
        let Connection::WebSocket(socket) = &mut self.connection else {
            return;
        };
        self.traffic.messages_out += 1;
        socket.handle_message(env.now);
        let frame = broadcast.frame(socket, &mut env.protocol.compression, is_behind);
        if self.flags.has(Flag::Reading) {
            env.output.extend_from_slice(frame);
            return;
        }
        self.enqueue(env, |backlog| {
            if frame.len() <= COPIED {
                backlog.push(&[frame], 0);
            } else {
                backlog.push_shared(Arc::clone(frame), 0);
            }
        });
    }

    /// Runs an operation of the protocol on the connection and sends the bytes that it produces.
    pub(super) fn transmit(
        &mut self,
        env: &mut Env,
        operation: impl FnOnce(&mut Connection, Time, &mut Vec<u8>),
    ) {
        if self.flags.has(Flag::Reading) {
            operation(&mut self.connection, env.now, &mut env.output);
            if env.is_output_full() {
                self.write_output(env);
            }
        } else {
            let mut bytes = Vec::new();
            operation(&mut self.connection, env.now, &mut bytes);
            if !bytes.is_empty() {
                self.write(env, &[&bytes]);
            }
            self.settle(env);
        }
        self.rearm(env);
    }

    /// Sends bytes that are followed by others, which `add` queues without a copy.
    pub(super) fn transmit_followed(
        &mut self,
        env: &mut Env,
        head: &[u8],
        add: impl FnOnce(&mut super::Backlog),
    ) {
        self.write_output(env);
        self.enqueue(env, |backlog| {
            backlog.push(&[head], 0);
            add(backlog);
        });
        self.settle(env);
        self.rearm(env);
    }

    /// Writes the replies to one read.
    #[inline(never)]
    pub(in crate::server) fn write_output(&mut self, env: &mut Env) {
        if self.flags.has(Flag::Reading) && !env.output.is_empty() {
            let output = std::mem::take(&mut env.output);
            self.write_now(env, &[&output]);
            env.output = output;
            env.output.clear();
        }
    }

    /// Writes the write buffer, followed by whole frames in at most two parts.
    fn write(&mut self, env: &mut Env, parts: &[&[u8]]) {
        if self.flags.has(Flag::Reading) && !env.output.is_empty() {
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
    fn write_now(&mut self, env: &mut Env, parts: &[&[u8]]) {
        if self
            .backlog
            .as_ref()
            .is_some_and(|backlog| backlog.queued() > 0)
        {
            return self.enqueue(env, |backlog| backlog.push(parts, 0));
        }
        let mut slices = [IoSlice::new(&[]); 4];
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        match self.stream.write(&slices[..parts.len()], &mut env.scratch) {
            Ok(written) => {
                self.traffic.bytes_out += self.stream.sent(written);
                if written < parts.iter().map(|part| part.len()).sum() {
                    self.keep_rest(env, |backlog| backlog.push(parts, written));
                }
            }
            Err(error) => self.handle_write_error(env, &error),
        }
    }

    #[cold]
    fn handle_write_error(&mut self, env: &mut Env, error: &io::Error) {
        // A violation of TLS was found when the socket was read.
        let reason = match error.kind() {
            io::ErrorKind::InvalidData => CloseReason::read_error(error),
            _ => CloseReason::write_error(error),
        };
        self.end(env, reason);
    }

    /// Appends output to the backlog, to be written at the end of the turn.
    fn enqueue(&mut self, env: &mut Env, add: impl FnOnce(&mut super::Backlog)) {
        let backlog = self.backlog.get_or_insert_default();
        let before = backlog.queued();
        add(backlog);
        env.memory.add(backlog.queued() - before);
        backlog.congested |= backlog.queued() > env.config.soft_outbound;
        if backlog.blocked {
            return;
        }
        // A service may send more than the limit in one call, so write early: only output that the socket does not
        // accept counts.
        if backlog.queued() >= WRITE_BUFFER && !backlog.must_squeeze() {
            self.flush(env);
        } else if !std::mem::replace(&mut backlog.dirty, true) {
            env.push_dirty(self.id);
        }
    }

    /// Queues the rest of a short write. The socket is usually full then; with TLS it may have room.
    #[cold]
    fn keep_rest(&mut self, env: &mut Env, add: impl FnOnce(&mut super::Backlog)) {
        let backlog = self.backlog.get_or_insert_default();
        add(backlog);
        env.memory.add(backlog.queued());
        backlog.congested |= backlog.queued() > env.config.soft_outbound;
        if !self.stream.has_room() {
            backlog.blocked = true;
        } else if !std::mem::replace(&mut backlog.dirty, true) {
            env.push_dirty(self.id);
        }
    }

    /// Records that the socket has room, and queues the client to be written to.
    pub(in crate::server) fn handle_writable(&mut self, env: &mut Env) {
        if let Some(backlog) = self.backlog.as_deref_mut() {
            backlog.blocked = false;
            if std::mem::replace(&mut backlog.dirty, true) {
                return;
            }
        } else if self.stream.sealed() == 0 {
            return;
        }
        env.scheduler.push(self.account, Work::Write(self.id));
    }

    /// Writes encrypted bytes that the socket has not taken. Returns whether further output can be written.
    #[cold]
    fn flush_sealed(&mut self, env: &mut Env) -> bool {
        match self.stream.flush() {
            Ok(sent) => self.traffic.bytes_out += sent as u64,
            Err(error) => {
                self.handle_write_error(env, &error);
                return false;
            }
        }
        let is_full = self.stream.sealed() > 0;
        if is_full && let Some(backlog) = self.backlog.as_deref_mut() {
            backlog.blocked = true;
            backlog.dirty = false;
        }
        !is_full
    }

    /// Writes queued output, at most [`WRITE_PER_TURN`], and takes the next step of closing if all is written.
    pub(in crate::server) fn flush(&mut self, env: &mut Env) {
        if self.stream.sealed() > 0 && !self.flush_sealed(env) {
            return;
        }
        let Some(backlog) = self.backlog.as_deref_mut() else {
            return self.settle(env);
        };
        backlog.dirty = false;
        let before = self.traffic.bytes_out;
        let mut squeezed = 0;
        while backlog.queued() > 0 {
            if squeezed < SLICE {
                let codec = match &mut self.connection {
                    Connection::WebSocket(socket) => socket.codec(),
                    Connection::Http(_) | Connection::Outgoing(_) | Connection::Detached(_) => None,
                };
                match backlog.squeeze(codec, env.protocol.compression.as_mut()) {
                    Ok(Some(count)) => {
                        squeezed += count;
                        // The compressor may not have produced output yet.
                        continue;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        let reason = CloseReason::write_error(&io::Error::other(error));
                        return self.end(env, reason);
                    }
                }
            } else if backlog.must_squeeze() {
                backlog.dirty = true;
                env.scheduler.push(self.account, Work::Write(self.id));
                return env.budget.spend(SQUEEZE + WRITE);
            }
            match backlog.write(&mut self.stream, &mut env.scratch) {
                Ok(sent) => {
                    self.traffic.bytes_out += sent;
                    if backlog.blocked {
                        break;
                    }
                    let total = (self.traffic.bytes_out - before) as usize;
                    if total >= WRITE_PER_TURN && backlog.queued() > 0 {
                        backlog.dirty = true;
                        env.scheduler.push(self.account, Work::Write(self.id));
                        return env.budget.spend(WRITE + WRITE_PER_TURN / 2048);
                    }
                }
                Err(error) => return self.handle_write_error(env, &error),
            }
        }
        let written = (self.traffic.bytes_out - before) as usize;
        if backlog.queued() == 0 {
            let drained = std::mem::take(&mut backlog.congested);
            if backlog.is_empty() {
                self.backlog = None;
            }
            if drained {
                if !self.is_congested() {
                    env.push_news(self.id, News::Drained);
                }
                self.read_again(env);
            }
        }
        env.budget.spend(WRITE + written / 2048);
        if self.has_unsent() && self.queued() == 0 {
            self.send_unsent(env);
        }
        self.settle(env);
    }

    /// Writes queued output unless the socket is known to be full.
    pub(super) fn offer(&mut self, env: &mut Env) {
        self.write_output(env);
        let backlog = self.backlog.as_ref();
        if backlog.is_some_and(|backlog| !backlog.blocked) {
            self.flush(env);
        }
    }

    /// Whether the client's input is held back until its output has drained.
    pub(super) fn is_output_held(&self) -> bool {
        let backlog = self.backlog.as_ref();
        backlog.is_some_and(|backlog| backlog.congested)
    }

    /// Whether the service should send no more until the client has taken, or confirmed, what was sent.
    pub(in crate::server) fn is_congested(&self) -> bool {
        self.is_output_held() || self.is_crowded()
    }

    /// Whether a message waits to be compressed, so that nothing else may be compressed before it.
    fn has_squeeze(&self) -> bool {
        let backlog = self.backlog.as_ref();
        backlog.is_some_and(|backlog| backlog.has_squeeze())
    }

    /// Makes room for a message of `size` bytes. If there is no room, closes the client as a slow consumer.
    #[cold]
    fn make_room(&mut self, env: &mut Env, size: usize) -> bool {
        if !self.is_open() || self.fits(env, size) {
            return true;
        }
        if self.make_room_to_keep(env, size) && self.fits(env, size) {
            return true;
        }
        // The output may not have been written yet. Only output that the socket does not accept counts.
        self.offer(env);
        if self.has_room(env, size) {
            return true;
        }
        self.cut_off(env);
        false
    }

    /// Whether a message of `size` bytes may be queued without checking whether the client keeps reading.
    pub(in crate::server) fn fits(&self, env: &Env, size: usize) -> bool {
        let waiting = self.waiting(env);
        let fits = waiting <= env.config.soft_outbound
            || self.fits_within(waiting, size, env.config.max_outbound, &env.config);
        fits && self.may_keep(env, size)
    }

    /// Whether another `size` bytes may be queued. The limit is higher for a client that keeps reading.
    pub(super) fn has_room(&mut self, env: &Env, size: usize) -> bool {
        if self.fits(env, size) {
            return true;
        }
        if !self.may_keep(env, size) {
            return false;
        }
        let most = STEADY_FACTOR.saturating_mul(env.config.max_outbound);
        if !self.fits_within(self.waiting(env), size, most, &env.config) {
            return false;
        }
        let delivered = self.delivered();
        self.backlog
            .as_deref_mut()
            .is_none_or(|backlog| backlog.takes_steadily(delivered, env.now, STEADY))
    }

    /// Whether the output stays within `most` bytes if `size` bytes are added. The longest message does not count, so
    /// that one message always fits.
    fn fits_within(&self, waiting: usize, size: usize, most: usize, config: &Config) -> bool {
        let backlog = self.backlog.as_ref();
        let largest = backlog.map_or(0, |backlog| backlog.largest());
        let total = waiting + size;
        let largest = largest.min(config.limits.max_message).max(size).min(total);
        total - largest <= most
    }

    /// The number of bytes in the backlog and, while the client is read, in the write buffer.
    fn waiting(&self, env: &Env) -> usize {
        let gathered = if self.flags.has(Flag::Reading) {
            env.output.len()
        } else {
            0
        };
        gathered + self.queued()
    }

    /// Closes a client that reads too slowly. Drops the frames of which nothing was written, so that CLOSE follows
    /// those that were begun. See [`Cause::SlowConsumer`](crate::Cause::SlowConsumer).
    pub(in crate::server) fn cut_off(&mut self, env: &mut Env) {
        self.cut_off_for(env, CloseReason::slow_consumer());
    }

    /// Ends the client, and frees what is held for it, because too little memory is left.
    pub(in crate::server) fn free_memory(&mut self, env: &mut Env, worthwhile: usize) {
        if self.is_open() {
            self.cut_off_for(env, CloseReason::memory());
        }
        // The rest of a frame that has begun cannot be followed by a CLOSE any sooner, so the connection ends.
        if self.holds() >= worthwhile {
            self.end(env, CloseReason::memory());
        }
    }

    fn cut_off_for(&mut self, env: &mut Env, reason: CloseReason) {
        if self.is_answering() {
            return self.end(env, reason);
        }
        if !self.is_open() {
            // The output of a closing connection ends with its CLOSE.
            return;
        }
        self.write_output(env);
        if let Some(backlog) = self.backlog.as_deref_mut() {
            backlog.drop_unbegun();
        }
        self.forget_kept();
        self.close(env, reason);
        self.offer(env);
    }

    /// The number of bytes that the peer's kernel has acknowledged, as far as this kernel reports it. For a unix socket
    /// the number includes overhead, so only compare two values.
    pub(super) fn delivered(&self) -> u64 {
        let unsent = self.stream.unsent().unwrap_or(0) as u64;
        self.traffic.bytes_out.wrapping_sub(unsent)
    }

    /// Whether the peer's kernel has acknowledged all output.
    pub(super) fn is_delivered(&self) -> bool {
        self.queued() == 0 && self.stream.unsent().unwrap_or(0) == 0
    }

    /// Begins to measure progress.
    pub(super) fn mark_delivered(&mut self) {
        self.delivered_mark = self.delivered() as u32;
    }

    /// The number of bytes that the peer's kernel has acknowledged since progress was last measured. Bytes in this
    /// kernel's send buffer do not count, because the buffer may grow while the peer reads nothing.
    pub(super) fn measure_progress(&mut self) -> u32 {
        let before = self.delivered_mark;
        self.mark_delivered();
        let taken = self.delivered_mark.wrapping_sub(before) as i32;
        taken.max(0) as u32
    }
}
