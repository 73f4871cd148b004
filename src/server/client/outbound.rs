//! Output: the single path by which output reaches the socket.
//!
//! Output is added with [`Client::push`] (a message), [`Client::push_shared`] (a broadcast) or [`Client::transmit`]
//! (the protocol's own bytes), and [`Client::flush`] writes the queued output. Until then it is in one of three places:
//!
//! * While the client is being read: in the loop's write buffer, so that the replies to one read leave in one write.
//! * Otherwise: in the connection's [`Output`] until the end of the turn. Large pieces are written at once.
//! * After the socket has accepted only a part: the rest is in the [`Output`] until the socket has room.

use std::io::{self, IoSlice};

use super::Client;
use super::broadcast::Broadcast;
use super::delivery::Delivery;
use super::membership::{Keep, TopicId};
use super::outbox::Outbox;
use super::output::Output;
use super::protocol::Protocol;
use super::wire::{Flag, Wire};
use crate::protocol::deflate::{SLICE, Squeeze};
use crate::protocol::{CloseReason, Message, SentHeader, Time};
use crate::server::budget::WRITE;
use crate::server::env::{Env, News, WRITE_BUFFER};
use crate::server::error::SendError;
use crate::server::scheduler::Work;

/// A payload of at least this size is written without copying, unless more input waits.
const DIRECT: usize = 16 << 10;

/// A payload of at least this size is always written without copying. Below it, a copy costs less than another write.
const LARGE: usize = 128 << 10;

/// The maximum number of bytes written to one client in one piece of work.
const WRITE_PER_TURN: usize = 1 << 20;

/// How many bytes of messages that have waited are sent in one piece of work.
const WAITED: usize = 64 << 10;

/// The bytes that are compressed in one unit of work.
const COMPRESSED_IN_UNIT: usize = 64;

/// The cost of compressing a slice.
const SQUEEZE: usize = SLICE / COMPRESSED_IN_UNIT;

impl Client {
    /// Sends a message. It is written at the end of the current turn at the latest, together with the client's other
    /// output.
    #[inline(always)]
    pub(crate) fn push(&mut self, env: &mut Env, message: Message<'_>) -> Result<(), SendError> {
        if self.wire.is_quiet() {
            self.send_now(env, message)
        } else {
            self.push_behind(env, message)
        }
    }

    /// Sends a message that may have to wait, or that is kept until the client confirms it.
    #[inline(never)]
    fn push_behind(&mut self, env: &mut Env, message: Message<'_>) -> Result<(), SendError> {
        if !self.make_room(env, message.as_bytes().len()) {
            return Err(SendError::SlowConsumer);
        }
        if !self.wire.is_open() {
            return Err(SendError::Closing);
        }
        if !self.keep(env, message) {
            self.traffic.messages_out += 1;
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
        let Some(socket) = self.wire.protocol.websocket_mut() else {
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
        if payload.len() < DIRECT && self.wire.is_reading() {
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
        let is_reading = self.wire.is_reading();
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
            self.enqueue(env, |output| {
                output.push(&[header.encode().as_slice(), payload], 0);
            });
        }
    }

    /// Sends a message that is masked or compressed.
    #[inline(never)]
    fn push_transformed(&mut self, env: &mut Env, message: Message<'_>) -> bool {
        let is_reading = self.wire.is_reading();
        let Some(socket) = self.wire.protocol.websocket_mut() else {
            return false;
        };
        if !socket.is_client() {
            return self.push_compressed(env, message);
        }
        if is_reading {
            socket.send(message, &mut env.protocol, &mut env.output);
            if env.is_output_full() {
                self.write_output(env);
            }
        } else {
            let mut frame = Vec::new();
            socket.send(message, &mut env.protocol, &mut frame);
            if frame.len() < DIRECT {
                self.enqueue(env, |output| output.push(&[&frame], 0));
            } else {
                self.write(env, &[&frame]);
            }
        }
        true
    }

    /// Sends a message compressed, if that makes it smaller. A long message, and every message queued behind it, is
    /// compressed in slices when it is at the front of the output.
    #[inline(never)]
    fn push_compressed(&mut self, env: &mut Env, message: Message<'_>) -> bool {
        let payload = message.as_bytes();
        let waits = self.wire.has_squeeze();
        let Some(socket) = self.wire.protocol.websocket_mut() else {
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
            self.enqueue(env, |output| output.push_squeeze(message));
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

    /// Sends a message that several clients get. It is written at the end of the turn, together with the others. Returns whether it
    /// was sent: a client that has no room for it is closed.
    #[inline]
    pub(crate) fn push_shared(&mut self, env: &mut Env, broadcast: &mut Broadcast<'_>) -> bool {
        self.extend_shared(env, broadcast) || self.push_any_shared(env, broadcast)
    }

    /// Adds a message to the frames of this turn's earlier broadcasts. Returns false if there is more to consider: the state of the
    /// connection, its limits, or what is queued, kept or compressed.
    #[inline(always)]
    fn extend_shared(&mut self, env: &Env, broadcast: &Broadcast<'_>) -> bool {
        let Wire {
            protocol: Protocol::WebSocket(socket),
            rare: Some(rare),
            stream,
            flags,
            ..
        } = &mut self.wire
        else {
            return false;
        };
        let is_plain = socket.is_open()
            && socket.codec().is_none()
            && rare.delivery.is_none()
            && !flags.has(Flag::Reading)
            && stream.sealed() == 0;
        let most = env.config.soft_outbound;
        let frame = broadcast.known_plain().filter(|_| is_plain);
        let extends = frame.is_some_and(|frame| rare.output.extend_shared(frame, most));
        if extends {
            socket.handle_message(env.now);
            self.traffic.messages_out += 1;
        }
        extends
    }

    /// Sends a message that several clients get, as [`Client::push_shared`] does, in every case.
    #[inline(never)]
    fn push_any_shared(&mut self, env: &mut Env, broadcast: &mut Broadcast<'_>) -> bool {
        if self.wire.is_ours() {
            // Each of these connections masks its frames with keys of its own.
            return self.push(env, broadcast.message).is_ok();
        }
        if !self.wire.is_open() {
            return false;
        }
        if !self.wire.fits(env, broadcast.len())
            && (!self.make_room(env, broadcast.len()) || !self.wire.is_open())
        {
            return false;
        }
        if self.wire.is_reading() {
            // The replies to what is being read come first. Writing them may end the connection.
            self.write_output(env);
            if !self.wire.is_open() {
                return false;
            }
        }
        self.traffic.messages_out += 1;
        let is_resumable = self.wire.is_resumable();
        if is_resumable && !self.keep_shared(env, broadcast) {
            return true;
        }
        let is_behind = env.protocol.compression.is_some() && self.wire.has_squeeze();
        let Some(socket) = self.wire.protocol.websocket_mut() else {
            return false;
        };
        socket.handle_message(env.now);
        let compression = env.protocol.compression.as_mut();
        let encoded = broadcast.encoded(socket, compression, &mut env.batches, is_behind);
        let output = self.wire.output_mut();
        output.push_shared(encoded);
        if output.blocked {
            output.congested |= output.queued() > env.config.soft_outbound;
        } else {
            // What the socket takes at the end of the turn does not count.
            self.write_later(env);
        }
        if is_resumable {
            self.ping_if_due(env);
        }
        true
    }

    /// Sends a message of a topic, or lets it wait if the client keeps only the newest one and cannot take it now. Returns whether the
    /// client gets it, unless a newer one replaces it.
    pub(crate) fn publish(
        &mut self,
        env: &mut Env,
        topic: TopicId,
        keep: Keep,
        broadcast: &mut Broadcast<'_>,
    ) -> bool {
        if keep == Keep::All || !self.wire.is_open() || self.takes(topic) {
            return self.push_shared(env, broadcast);
        }
        let message = broadcast.owned();
        let replaces = self.wire.memberships_mut().replace_newest(topic, message);
        env.counters.replaced += u64::from(replaces);
        true
    }

    /// Whether a message of a topic would be sent at once.
    fn takes(&self, topic: TopicId) -> bool {
        self.takes_newest() && self.wire.memberships().is_none_or(|one| !one.awaits(topic))
    }

    /// Whether the client has taken all earlier output, apart from that of this turn.
    fn takes_newest(&self) -> bool {
        let is_blocked = self.wire.output().is_some_and(|output| output.blocked);
        let is_behind = is_blocked || self.wire.has_unsent() || self.wire.stream.sealed() > 0;
        self.wire.protocol.is_connected() && !is_behind && !self.is_congested()
    }

    /// Sends the messages that have waited until the client can take them, while it can.
    fn send_newest(&mut self, env: &mut Env) {
        let mut total = 0;
        while total < WAITED
            && self.takes_newest()
            && let Some(message) = self.wire.memberships_mut().take_newest()
        {
            total += message.as_message().as_bytes().len();
            // A client that cannot take the message is closed.
            let _ = self.push(env, message.as_message());
        }
        if self.takes_newest() && self.wire.has_newest() {
            self.write_later(env);
        }
    }

    /// Queues the message of a topic that has waited.
    pub(crate) fn queue_newest(&mut self, env: &mut Env, topic: TopicId) {
        let message = self.wire.memberships_mut().take_newest_of(topic);
        if let Some(message) = message {
            // A client that cannot take the message is closed.
            let _ = self.push(env, message.as_message());
        }
    }

    /// Sends messages that have waited before the client is closed, up to a limit.
    pub(super) fn send_last_newest(&mut self, env: &mut Env) {
        let mut total = 0;
        while total < WAITED
            && self.wire.is_open()
            && self.wire.has_newest()
            && let Some(message) = self.wire.memberships_mut().take_newest()
        {
            let len = message.as_message().as_bytes().len();
            if self.wire.fits(env, len) {
                let _ = self.push(env, message.as_message());
            }
            total += len;
        }
        self.wire.memberships_mut().drop_newest();
    }

    /// Runs an operation of the protocol on the connection and sends the bytes that it produces.
    pub(super) fn transmit(
        &mut self,
        env: &mut Env,
        operation: impl FnOnce(&mut Protocol, Time, &mut Vec<u8>),
    ) {
        if self.wire.is_reading() {
            operation(&mut self.wire.protocol, env.now, &mut env.output);
            if env.is_output_full() {
                self.write_output(env);
            }
        } else {
            let mut bytes = Vec::new();
            operation(&mut self.wire.protocol, env.now, &mut bytes);
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
        add: impl FnOnce(&mut Output),
    ) {
        self.write_output(env);
        self.enqueue(env, |output| {
            output.push(&[head], 0);
            add(output);
        });
        self.settle(env);
        self.rearm(env);
    }

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
    fn write(&mut self, env: &mut Env, parts: &[&[u8]]) {
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
    fn write_now(&mut self, env: &mut Env, parts: &[&[u8]]) {
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
    fn handle_write_error(&mut self, env: &mut Env, error: &io::Error) {
        // A violation of TLS was found when the socket was read.
        let reason = match error.kind() {
            io::ErrorKind::InvalidData => CloseReason::read_error(error),
            _ => CloseReason::write_error(error),
        };
        self.end(env, reason);
    }

    /// Appends output, to be written at the end of the turn.
    fn enqueue(&mut self, env: &mut Env, add: impl FnOnce(&mut Output)) {
        let output = self.wire.output_mut();
        let before = output.queued();
        add(output);
        env.memory.add(output.queued() - before);
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
    fn keep_rest(&mut self, env: &mut Env, add: impl FnOnce(&mut Output)) {
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
    fn flush_sealed(&mut self, env: &mut Env) -> bool {
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
    fn flush_early(&mut self, env: &mut Env) {
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
    fn write_queued(&mut self, env: &mut Env) -> bool {
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
                    env.budget.spend(SQUEEZE + WRITE);
                    return false;
                }
                let codec = match protocol {
                    Protocol::WebSocket(socket) => socket.codec(),
                    Protocol::Http(_) | Protocol::Outgoing(_) | Protocol::Detached(_) => None,
                };
                match output.squeeze(codec, env.protocol.compression.as_mut(), &env.batches) {
                    Ok(Some(count)) => {
                        squeezed += count;
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
    fn handle_drained(&mut self, env: &mut Env) {
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
    fn make_room(&mut self, env: &mut Env, size: usize) -> bool {
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
        self.offer(env);
    }

    /// Begins to measure progress.
    pub(super) fn mark_delivered(&mut self) {
        self.wire.mark_delivered(self.traffic.bytes_out);
    }
}
