//! The way of output: gathered while a client is read, written in one piece, queued where the socket is full.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use super::cork::{CORK, DIRECT, LARGE};
use super::work::WRITE;
use super::{Context, SendError};
use crate::protocol::deflate::{Compression, SLICE, Squeeze};
use crate::protocol::{CloseReason, Connection, Message, OpCode, Phase, SentHeader};
use crate::server::client::Client;
use crate::server::config::Config;
use crate::server::id::ClientId;

/// The most that is written to one client in one turn of the loop.
const WRITE_PER_TURN: usize = 1 << 20;

/// What compressing a slice costs.
const SQUEEZE: usize = 2000;

/// A broadcast of this size is copied to each client's output; a longer one is shared by all.
const COPIED: usize = 4 << 10;

/// The limit of output is multiplied by this for a client that keeps reading.
const STEADY_FACTOR: usize = 4;

/// A client keeps reading if it has taken output within this time.
const STEADY: Duration = Duration::from_secs(5);

/// Whether `size` bytes may be added to a client's output of which `waiting` bytes wait, if at most `most` may wait.
/// One message always fits, whatever comes before or after it: the largest one is not counted.
fn fits(client: &Client, waiting: usize, size: usize, most: usize, config: &Config) -> bool {
    let largest = client.largest_queued().min(config.limits.max_message);
    let total = waiting + size;
    total - largest.max(size).min(total) <= most
}

/// Whether a message of `size` bytes may be queued for a client without checking whether it keeps reading.
fn fits_client(client: &Client, gathered: usize, size: usize, config: &Config) -> bool {
    let waiting = gathered + client.queued();
    waiting <= config.soft_outbound || fits(client, waiting, size, config.max_outbound, config)
}

/// The frame of a broadcast, and the same compressed for each size of window that is agreed on with any client.
struct Frames<'a> {
    message: Message<'a>,
    plain: Arc<[u8]>,
    /// By window, in bits. `None` where it is better sent as it is.
    compressed: Vec<(u8, Option<Arc<[u8]>>)>,
}

impl<'a> Frames<'a> {
    fn new(message: Message<'a>) -> Self {
        let payload = message.as_bytes();
        let header = SentHeader::new(message.opcode(), payload.len());
        Self {
            message,
            plain: [header.encode().as_slice(), payload].concat().into(),
            compressed: Vec::new(),
        }
    }

    /// The one for a client. `is_behind` says that a message waits to be compressed for it.
    fn of(
        &mut self,
        connection: &mut Connection,
        compression: &mut Option<Compression>,
        is_behind: bool,
    ) -> &Arc<[u8]> {
        let (Some(codec), Some(compression)) = (connection.codec(), compression) else {
            return &self.plain;
        };
        // Compressing a long one would hold up the loop, and what waits to be compressed comes first.
        if is_behind || self.message.as_bytes().len() > SLICE {
            return &self.plain;
        }
        let window = codec.window();
        let known = self.compressed.iter().position(|(bits, _)| *bits == window);
        let at = known.unwrap_or_else(|| {
            let payload = self.message.as_bytes();
            let frame = compression.compress_alone(payload, window).map(|bytes| {
                let header = SentHeader::compressed(self.message.opcode(), bytes.len());
                let frame = [header.encode().as_slice(), &bytes].concat().into();
                compression.give_back(bytes);
                frame
            });
            self.compressed.push((window, frame));
            self.compressed.len() - 1
        });
        match &self.compressed[at].1 {
            Some(frame) => {
                codec.note_alone();
                frame
            }
            None => &self.plain,
        }
    }
}

impl Context {
    /// Sends a message to a client. It leaves at the end of the present turn at the latest, together with everything
    /// else for the same client. A client that cannot be sent to is passed over: its end is told in any case. See
    /// [`Context::try_send`] for the reason.
    #[inline]
    pub fn send<'m>(&mut self, id: ClientId, message: impl Into<Message<'m>>) {
        let _ = self.try_send(id, message);
    }

    /// Sends a message as [`Context::send`] does, and returns why it could not be sent.
    #[inline]
    pub fn try_send<'m>(
        &mut self,
        id: ClientId,
        message: impl Into<Message<'m>>,
    ) -> Result<(), SendError> {
        let message = message.into();
        if self.gather(id, message) {
            return Ok(());
        }
        self.send_any(id, message)
    }

    /// The way of every message that cannot go the short way.
    #[inline(never)]
    fn send_any(&mut self, id: ClientId, message: Message<'_>) -> Result<(), SendError> {
        let payload = message.as_bytes();
        let gathered = self.cork.gathered(id);
        let service_id = self.service_id;
        let mut client = self
            .registry
            .get_mut(id)
            .filter(|client| service_id.includes(client.service_id))
            .ok_or(SendError::Gone)?;
        if !client.connection.is_open() {
            return Err(SendError::Closing);
        }
        if !fits_client(client, gathered, payload.len(), &self.config) {
            // Perhaps nothing was offered to the socket yet: only what it does not take counts.
            self.offer(id);
            if !self.has_room(id, payload.len()) {
                self.cut_off(id);
                return Err(SendError::SlowConsumer);
            }
            client = self.registry.get_mut(id).ok_or(SendError::Gone)?;
            if !client.connection.is_open() {
                return Err(SendError::Closing);
            }
        }
        client.traffic.messages_out += 1;
        client.connection.handle_message(self.now);
        let waits = client
            .backlog
            .as_ref()
            .is_some_and(|backlog| backlog.has_squeeze());
        if let Some(compression) = &mut self.shared.compression
            && let Some(codec) = client.connection.codec()
            && (waits || payload.len() > SLICE)
            && codec.is_worth_compressing(payload.len(), compression)
        {
            self.put_squeeze(id, Squeeze::new(message.opcode(), payload));
        } else if let Some(compression) = &mut self.shared.compression
            && let Some(codec) = client.connection.codec()
            && !waits
            && let Some(compressed) = codec.compress(payload, compression)
        {
            self.put_compressed(id, message.opcode(), compressed);
        } else {
            self.put(
                id,
                SentHeader::new(message.opcode(), payload.len()),
                payload,
            );
        }
        Ok(())
    }

    /// Queues a message that is compressed when its turn comes.
    fn put_squeeze(&mut self, id: ClientId, message: Squeeze) {
        if self.cork.client == Some(id) {
            self.write_cork(id);
        }
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        let backlog = client.backlog.get_or_insert_default();
        backlog.push_squeeze(message);
        backlog.congested |= backlog.queued() > self.config.soft_outbound;
        if !backlog.blocked && !std::mem::replace(&mut backlog.dirty, true) {
            self.dirty.push_back(id);
        }
    }

    /// Puts the frame of a compressed message to a client's output.
    fn put_compressed(&mut self, id: ClientId, opcode: OpCode, payload: Vec<u8>) {
        let header = SentHeader::compressed(opcode, payload.len());
        self.put(id, header, &payload);
        if let Some(compression) = &mut self.shared.compression {
            compression.give_back(payload);
        }
    }

    /// Puts a frame to a client's output, or writes it.
    fn put(&mut self, id: ClientId, header: SentHeader, payload: &[u8]) {
        let corked = self.cork.client == Some(id);
        let direct = if corked && self.cork.more_input {
            LARGE
        } else {
            DIRECT
        };
        if corked && payload.len() < direct {
            header.append_with(payload, &mut self.cork.bytes);
            if self.cork.bytes.len() >= CORK {
                self.write_cork(id);
            }
        } else if payload.len() >= direct {
            self.write(id, &[header.encode().as_slice(), payload]);
        } else {
            self.queue(id, &[header.encode().as_slice(), payload]);
        }
    }

    /// Sends a message to every client of the service for which `to` says so, given its id and path, and returns how many that were.
    /// The frame is encoded once, and compressed once for all clients that take it compressed; clients that do not keep up
    /// share its bytes.
    pub fn broadcast(
        &mut self,
        message: Message<'_>,
        mut to: impl FnMut(ClientId, &str) -> bool,
    ) -> usize {
        let payload = message.as_bytes();
        let mut frames = Frames::new(message);
        let (now, config) = (self.now, &self.config);
        let (mut sent, mut writes) = (0, 0);
        let mut full = Vec::new();
        let mut overdue = Vec::new();
        // One broadcast is written as it comes. From the second one of a turn on they are gathered, so that each client is
        // written to once for all of them.
        let gathers = self.broadcasts > 0;
        self.broadcasts += 1;

        for (id, client) in self.registry.iter_mut() {
            let ours = self.service_id.includes(client.service_id);
            if !ours || !client.connection.is_open() || !to(id, client.path()) {
                continue;
            }
            if !fits_client(client, self.cork.gathered(id), payload.len(), config) {
                full.push(id);
                continue;
            }
            sent += 1;
            client.traffic.messages_out += 1;
            client.connection.handle_message(now);
            let is_behind = client
                .backlog
                .as_ref()
                .is_some_and(|backlog| backlog.has_squeeze());
            let compression = &mut self.shared.compression;
            let frame = frames.of(&mut client.connection, compression, is_behind);
            if self.cork.client == Some(id) {
                self.cork.bytes.extend_from_slice(frame);
                continue;
            }
            if gathers || client.queued() > 0 {
                let backlog = client.backlog.get_or_insert_default();
                if frame.len() <= COPIED {
                    backlog.push(&[frame], 0);
                } else {
                    backlog.push_shared(Arc::clone(frame), 0);
                }
                backlog.congested |= backlog.queued() > config.soft_outbound;
                if backlog.blocked {
                    continue;
                }
                if backlog.queued() >= CORK {
                    overdue.push(id);
                } else if !std::mem::replace(&mut backlog.dirty, true) {
                    self.dirty.push_back(id);
                }
                continue;
            }
            let written = client.stream.write(&[IoSlice::new(frame)]);
            writes += 1;
            match written {
                Ok(written) => {
                    client.traffic.bytes_out += written as u64;
                    if written < frame.len() {
                        let backlog = client.backlog.get_or_insert_default();
                        // A write that came back short leaves the socket full.
                        backlog.blocked = true;
                        backlog.push_shared(Arc::clone(frame), written);
                        backlog.congested |= backlog.queued() > config.soft_outbound;
                    }
                }
                Err(error) => {
                    let ending = CloseReason::write_error(&error);
                    client.connection.abandon(now, ending.clone());
                    self.doomed.push((id, ending));
                }
            }
        }
        self.spend(writes * WRITE as usize + sent / 16);
        for id in overdue {
            self.flush(id);
        }
        // These get another chance, and are cut off if they do not take it.
        for id in full {
            sent += usize::from(self.try_send(id, message).is_ok());
        }
        sent
    }

    /// Writes whole frames, after what was gathered for the same client; what the socket does not take waits.
    pub(super) fn write(&mut self, id: ClientId, parts: &[&[u8]]) {
        if self.cork.gathered(id) > 0 {
            let gathered = std::mem::take(&mut self.cork.bytes);
            let mut all = vec![&*gathered];
            all.extend_from_slice(parts);
            self.write_now(id, &all);
            self.cork.bytes = gathered;
            self.cork.bytes.clear();
        } else {
            self.write_now(id, parts);
        }
    }

    pub(super) fn write_now(&mut self, id: ClientId, parts: &[&[u8]]) {
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        if client.queued() > 0 {
            return self.queue(id, parts);
        }
        let total = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut slices = [IoSlice::new(&[]); 4];
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        match client.stream.write(&slices[..parts.len()]) {
            Ok(written) => {
                client.traffic.bytes_out += written as u64;
                if written < total {
                    let backlog = client.backlog.get_or_insert_default();
                    backlog.push(parts, written);
                    backlog.blocked = true;
                    backlog.congested |= backlog.queued() > self.config.soft_outbound;
                }
            }
            Err(error) => self.doom(id, CloseReason::write_error(&error)),
        }
    }

    /// Queues whole frames, to be written at the end of the turn.
    pub(super) fn queue(&mut self, id: ClientId, parts: &[&[u8]]) {
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        let backlog = client.backlog.get_or_insert_default();
        backlog.push(parts, 0);
        backlog.congested |= backlog.queued() > self.config.soft_outbound;
        if backlog.blocked {
            return;
        }
        // What a service sends in one go may be more than the limit although the client would read it.
        if backlog.queued() >= CORK {
            self.flush(id);
        } else if !std::mem::replace(&mut backlog.dirty, true) {
            self.dirty.push_back(id);
        }
    }

    /// Writes what waits for a client, up to a turn's worth.
    pub(in crate::server) fn flush(&mut self, id: ClientId) {
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        let Some(backlog) = client.backlog.as_deref_mut() else {
            return self.settle(id);
        };
        backlog.dirty = false;
        let mut budget = WRITE_PER_TURN;
        let before = client.traffic.bytes_out;
        let (mut squeezed, mut failed) = (0, None);
        while backlog.queued() > 0 {
            let compression = self.shared.compression.as_mut();
            if squeezed < SLICE {
                match backlog.squeeze(client.connection.codec(), compression) {
                    Ok(Some(count)) => {
                        squeezed += count;
                        // The compressor may have kept all of it.
                        continue;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        failed = Some(CloseReason::write_error(&io::Error::other(error)));
                        break;
                    }
                }
            } else if backlog.must_squeeze() {
                backlog.dirty = true;
                self.dirty.push_back(id);
                return self.spend(SQUEEZE + WRITE as usize);
            }
            match backlog.write(&mut client.stream) {
                Ok(written) => {
                    client.traffic.bytes_out += written as u64;
                    if backlog.blocked {
                        break;
                    }
                    budget = budget.saturating_sub(written);
                    if budget == 0 && backlog.queued() > 0 {
                        backlog.dirty = true;
                        self.dirty.push_back(id);
                        return self.spend(WRITE as usize + WRITE_PER_TURN / 2048);
                    }
                }
                Err(error) => return self.doom(id, CloseReason::write_error(&error)),
            }
        }
        if let Some(ending) = failed {
            return self.doom(id, ending);
        }
        let written = (client.traffic.bytes_out - before) as usize;
        if backlog.queued() == 0 {
            if std::mem::take(&mut backlog.congested) {
                self.drained.push(id);
                Self::mark_ready(&mut self.ready, id, client);
            }
            if client
                .backlog
                .as_ref()
                .is_some_and(|backlog| backlog.is_empty())
            {
                client.backlog = None;
            }
        }
        self.spend(WRITE as usize + written / 2048);
        self.settle(id);
    }

    /// Does what the phase asks for once the output is written.
    pub(super) fn settle(&mut self, id: ClientId) {
        let Some(client) = self.registry.get_mut(id) else {
            return;
        };
        let phase = client.connection.phase();
        if phase == Phase::Open {
            return;
        }
        if client.connection.since() == self.now {
            // The phase has just begun, and with it a time limit that progress extends.
            client.mark_delivered();
            // Its input may be read again now.
            Self::mark_ready(&mut self.ready, id, client);
        }
        match phase {
            _ if client.queued() > 0 => {}
            // The peer has ended its direction, so its CLOSE cannot come.
            Phase::Closing if !client.connection.is_half_closed() => {}
            Phase::Closing | Phase::Finished => {
                let ending = client
                    .connection
                    .ending()
                    .cloned()
                    .unwrap_or_else(CloseReason::eof);
                self.doomed.push((id, ending));
            }
            // What the peer still sends is read and thrown away: closing with unread data would reset the connection,
            // and the peer might never see why it ended.
            Phase::Answered | Phase::Failed => client.stream.end_output(),
            _ => {}
        }
        self.set_deadline(id);
    }

    /// Ends a client that left too much unread: what was not begun is dropped, so that CLOSE comes after at most the
    /// frames that were. It is told as [`Cause::SlowConsumer`](crate::Cause::SlowConsumer).
    pub fn cut_off(&mut self, id: ClientId) {
        if self.own(id).is_none() {
            return;
        }
        if self.is_answering(id) {
            return self.doom(id, CloseReason::slow_consumer());
        }
        let client = self.registry.get(id);
        if client.is_none_or(|client| !client.connection.is_open()) {
            // What is queued for it ends with its CLOSE.
            return;
        }
        if self.cork.client == Some(id) {
            self.write_cork(id);
        }
        let client = self.registry.get_mut(id);
        if let Some(backlog) = client.and_then(|client| client.backlog.as_deref_mut()) {
            backlog.drop_unbegun();
        }
        self.close_with(id, CloseReason::slow_consumer());
        self.offer(id);
    }

    /// Whether another `size` bytes may be queued for a client. The limit is for clients that do not read; it is higher
    /// for a client that keeps reading.
    pub(super) fn has_room(&mut self, id: ClientId, size: usize) -> bool {
        let (now, gathered) = (self.now, self.cork.gathered(id));
        let Some(client) = self.registry.get_mut(id) else {
            return true;
        };
        if fits_client(client, gathered, size, &self.config) {
            return true;
        }
        let waiting = gathered + client.queued();
        let most = STEADY_FACTOR.saturating_mul(self.config.max_outbound);
        fits(client, waiting, size, most, &self.config) && client.takes_steadily(now, STEADY)
    }

    /// Offers the socket all that waits for a client, unless it is known to be full.
    pub(super) fn offer(&mut self, id: ClientId) {
        if self.cork.client == Some(id) {
            self.write_cork(id);
        }
        let waits = |client: &Client| {
            client
                .backlog
                .as_ref()
                .is_some_and(|backlog| !backlog.blocked)
        };
        if self.registry.get(id).is_some_and(waits) {
            self.flush(id);
        }
    }

    /// Marks a client whose connection is dead. The first reason stands.
    pub(super) fn doom(&mut self, id: ClientId, ending: CloseReason) {
        if let Some(client) = self.registry.get_mut(id) {
            client.connection.abandon(self.now, ending.clone());
            self.doomed.push((id, ending));
        }
    }
}
