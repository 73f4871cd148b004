//! Output: the single path by which output reaches the socket.
//!
//! Output is added with [`Client::push`] (a message), [`Client::push_shared`] (a broadcast) or [`Client::transmit`]
//! (the protocol's own bytes), and [`Client::flush`] writes the queued output. Until then it is in one of three places:
//!
//! * While the client is being read: in the loop's write buffer, so that the replies to one read leave in one write.
//! * Otherwise: in the connection's [`Output`] until the end of the turn. Large pieces are written at once.
//! * After the socket has accepted only a part: the rest is in the [`Output`] until the socket has room.

use super::Client;
use super::broadcast::Broadcast;
use super::membership::{Keep, TopicId};
use super::output::Output;
use super::protocol::Protocol;
use super::wire::{Flag, Wire};
use crate::protocol::deflate::{SLICE, Squeeze};
use crate::protocol::{Message, SentHeader, Time, WebSocket};
use crate::server::env::Env;
use crate::server::error::SendError;

/// A payload of at least this size is written without copying, unless more input waits.
const DIRECT: usize = 16 << 10;

/// A payload of at least this size is always written without copying. Below it, a copy costs less than another write.
const LARGE: usize = 128 << 10;

/// How many bytes of messages that have waited are sent in one piece of work.
const WAITED: usize = 64 << 10;

/// The bytes that are compressed in one unit of work.
pub(super) const COMPRESSED_IN_UNIT: usize = 64;

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
        let waits = self.wire.has_squeeze();
        let Some(socket) = self.wire.protocol.websocket_mut() else {
            return false;
        };
        match compress(socket, env, message, waits) {
            Compressed::No => return false,
            Compressed::Later(message) => {
                self.write_output(env);
                self.enqueue(env, |output| output.push_squeeze(message));
            }
            Compressed::Now(header, payload) => {
                self.push_frame(env, header, &payload);
                give_back(env, payload);
            }
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
        if !self.wire.fits(env, broadcast.len()) {
            if !self.wire.may_keep(broadcast.len()) {
                self.release_confirmed(env);
            }
            // Writing to many clients takes long, so it is left to the end of the turn.
            let is_first = self.wire.has_room_at_first(env, broadcast.len());
            if !is_first && (!self.make_room(env, broadcast.len()) || !self.wire.is_open()) {
                return false;
            }
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
    pub(super) fn send_newest(&mut self, env: &mut Env) {
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
}

/// A message whose compression was tried.
enum Compressed {
    /// It is sent as it is.
    No,
    /// It is compressed when it is at the front of the output.
    Later(Squeeze),
    Now(SentHeader, Vec<u8>),
}

/// Compresses a message, unless that does not make it smaller. `waits` says whether such a message waits in the output: one
/// compressor sees the messages in their order.
fn compress(
    socket: &mut WebSocket,
    env: &mut Env,
    message: Message<'_>,
    waits: bool,
) -> Compressed {
    let payload = message.as_bytes();
    let (Some(compression), Some(codec)) = (&mut env.protocol.compression, socket.codec()) else {
        return Compressed::No;
    };
    if waits || payload.len() > SLICE {
        return match codec.is_worth_compressing(payload.len(), compression) {
            true => Compressed::Later(Squeeze::new(message.opcode(), payload)),
            false => Compressed::No,
        };
    }
    env.budget.spend(payload.len() / COMPRESSED_IN_UNIT);
    match codec.compress(payload, compression) {
        Some(compressed) => {
            let header = SentHeader::compressed(message.opcode(), compressed.len());
            Compressed::Now(header, compressed)
        }
        None => Compressed::No,
    }
}

/// Returns the memory of a compressed message that was copied to the output.
fn give_back(env: &mut Env, payload: Vec<u8>) {
    if let Some(compression) = &mut env.protocol.compression {
        compression.give_back(payload);
    }
}

/// Adds the frame of a message to the output.
pub(super) fn add_frame(
    socket: &mut WebSocket,
    env: &mut Env,
    message: Message<'_>,
    output: &mut Output,
) {
    socket.handle_message(env.now);
    if socket.is_client() {
        let mut frame = Vec::new();
        socket.send(message, &mut env.protocol, &mut frame);
        return output.push(&[&frame], 0);
    }
    match compress(socket, env, message, output.has_squeeze()) {
        Compressed::No => {
            let payload = message.as_bytes();
            let header = SentHeader::new(message.opcode(), payload.len());
            output.push(&[header.encode().as_slice(), payload], 0);
        }
        Compressed::Later(message) => output.push_squeeze(message),
        Compressed::Now(header, payload) => {
            output.push(&[header.encode().as_slice(), &payload], 0);
            give_back(env, payload);
        }
    }
}
