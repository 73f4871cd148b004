//! Compressors and decompressors, of one connection and of all.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use zlib_rs::{Deflate, DeflateConfig as Settings, DeflateFlush, Inflate, InflateFlush, Status};

use super::offer::{Agreement, MAX_WINDOW_BITS, Offer};
use super::{CompressionCounts, DeflateConfig, SLICE};
use crate::protocol::message::Assembly;
use crate::protocol::{Buffers, ProtocolError};

/// The end of what a sender flushes, which is left out of each message (RFC 7692 section 7.2.1).
pub(super) const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// A block that is not the last, is stored as it is, and has nothing in it (RFC 1951 section 3.2.4).
const EMPTY_BLOCK: [u8; 5] = [0, 0, 0, 0xff, 0xff];

/// Decompressed bytes are handed on in pieces of at most this size.
const PIECE: usize = 16 << 10;

/// The maximum of bytes decompressed from one message at once.
const INFLATE_SLICE: usize = 512 << 10;

/// zlib's measure of how much is gathered before a block is written. More costs memory and helps only long messages.
const MEM_LEVEL: i32 = 5;

/// What a decompressor takes, and a compressor beside its window: measured, and held to by a test.
const INFLATE_BYTES: usize = 48 << 10;
const DEFLATE_BYTES: usize = 146 << 10;

/// The most room that is made for compressed bytes at once: zlib counts in 32 bits.
const STEP: usize = 1 << 30;

/// What is kept of the room for compressed messages.
const KEPT: usize = 256 << 10;

/// The smallest window that zlib-rs compresses raw data with, in bits. Distances in it are at most 250, so it stands in
/// for 8 bits as well.
const MIN_WINDOW_BITS: u8 = 9;

/// The window to compress with where so many bits are agreed on.
fn window(agreed: Option<u8>) -> u8 {
    agreed.unwrap_or(MAX_WINDOW_BITS).max(MIN_WINDOW_BITS)
}

fn deflate_bytes(window: u8) -> usize {
    // Two windows of bytes and one of 16-bit positions.
    DEFLATE_BYTES + (4 << window)
}

/// What compression needs that the connections of a loop can share.
pub struct Compression {
    config: DeflateConfig,
    /// For messages without context, by window.
    deflates: [Option<Box<Deflate>>; MAX_WINDOW_BITS as usize + 1],
    inflate: Option<Box<Inflate>>,
    piece: Vec<u8>,
    /// Room for a compressed message, while none is being sent.
    room: Vec<u8>,
    reserved: Arc<AtomicUsize>,
    counts: CompressionCounts,
    /// The maximum of bytes decompressed from one message at once.
    inflate_slice: usize,
    slice: usize,
}

impl Compression {
    /// Nothing is allocated before it is needed.
    pub fn new(config: DeflateConfig) -> Self {
        Self {
            config,
            deflates: Default::default(),
            inflate: None,
            piece: Vec::new(),
            room: Vec::new(),
            reserved: Arc::default(),
            counts: CompressionCounts::default(),
            inflate_slice: INFLATE_SLICE,
            slice: SLICE,
        }
    }

    /// Makes slices so short that short messages consist of several.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn lower_threshold(&mut self) {
        self.inflate_slice = 1 << 10;
        self.slice = 1 << 10;
    }

    /// The maximum of bytes of a message that are compressed at once. Compress longer messages with
    /// [`Squeeze`](super::Squeeze).
    pub fn slice(&self) -> usize {
        self.slice
    }

    /// One connection's side of what an offer comes to. Context takeover is agreed to while there is memory for it.
    pub fn accept(&self, offer: Offer) -> Codec {
        let mut reservation = Reservation {
            total: Arc::clone(&self.reserved),
            bytes: 0,
        };
        let window = window(offer.accept(true, true).server_max_window_bits);
        let memory = self.config.memory;
        let server_may_keep =
            !offer.asks_for_no_server_context() && reservation.add(deflate_bytes(window), memory);
        let client_may_keep =
            !offer.asks_for_no_client_context() && reservation.add(INFLATE_BYTES, memory);
        Codec {
            agreement: offer.accept(server_may_keep, client_may_keep),
            inflate: None,
            deflate: None,
            has_gap: false,
            reservation,
        }
    }

    /// Compresses a message by itself, for a connection with this window. `None` if it is better sent as it is. The bytes
    /// are to be given back with [`Compression::give_back`].
    pub fn compress_alone(&mut self, payload: &[u8], window: u8) -> Option<Vec<u8>> {
        if payload.len() < self.config.min(false) {
            return None;
        }
        let mut out = std::mem::take(&mut self.room);
        let level = self.config.level;
        let deflate =
            self.deflates[usize::from(window)].get_or_insert_with(|| new_deflate(level, window));
        deflate.reset();
        if !compress(deflate, payload, &mut out) || out.len() >= payload.len() {
            self.give_back(out);
            return None;
        }
        self.count_out(payload.len(), out.len());
        Some(out)
    }

    /// Room for a compressed message, to be given back.
    pub(super) fn take_room(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.room)
    }

    /// Takes the room of a compressed message back.
    pub fn give_back(&mut self, mut room: Vec<u8>) {
        room.clear();
        room.shrink_to(KEPT);
        self.room = room;
    }

    /// Counts a message that was compressed.
    pub(super) fn count_out(&mut self, plain: usize, compressed: usize) {
        self.counts.messages_out += 1;
        self.counts.plain_out += plain as u64;
        self.counts.compressed_out += compressed as u64;
    }

    /// What was done so far.
    pub fn counts(&self) -> CompressionCounts {
        self.counts
    }

    /// Bytes that connections with context takeover have reserved.
    pub fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }

    /// The most bytes that they may reserve.
    pub fn memory(&self) -> usize {
        self.config.memory
    }

    /// Gives what is shared back to the system. It is made anew when it is needed.
    pub fn clear(&mut self) {
        self.deflates = Default::default();
        self.inflate = None;
        self.piece = Vec::new();
        self.room = Vec::new();
    }
}

impl fmt::Debug for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compression")
            .field("config", &self.config)
            .field("reserved", &self.reserved())
            .finish_non_exhaustive()
    }
}

/// Memory that a connection may come to use, until it is dropped.
struct Reservation {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl Reservation {
    /// Reserves more; false if that would be more than `most` in all.
    fn add(&mut self, bytes: usize, most: usize) -> bool {
        let fits = self.total.load(Ordering::Relaxed).saturating_add(bytes) <= most;
        if fits {
            self.total.fetch_add(bytes, Ordering::Relaxed);
            self.bytes += bytes;
        }
        fits
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A partly decompressed message.
pub(crate) struct Unfinished {
    /// Bytes that were consumed of those that were given.
    pub(crate) consumed: usize,
    inflate: Box<Inflate>,
}

impl fmt::Debug for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unfinished").finish_non_exhaustive()
    }
}

/// One connection's compression. Its own compressors are made with the first message that needs them.
pub struct Codec {
    agreement: Agreement,
    inflate: Option<Box<Inflate>>,
    deflate: Option<Box<Deflate>>,
    /// Whether the peer has had a compressed message that did not come from `deflate`, so that distances back over it
    /// would be wrong.
    has_gap: bool,
    reservation: Reservation,
}

impl Codec {
    /// What was agreed on.
    pub fn agreement(&self) -> Agreement {
        self.agreement
    }

    /// The window to compress with, in bits.
    pub fn window(&self) -> u8 {
        window(self.agreement.server_max_window_bits)
    }

    /// Notes that the peer is sent a message that was compressed by itself.
    pub fn note_alone(&mut self) {
        self.has_gap = true;
    }

    /// Compresses a message. `None` if it is better sent as it is. The bytes are to be given back with
    /// [`Compression::give_back`].
    pub fn compress(&mut self, payload: &[u8], shared: &mut Compression) -> Option<Vec<u8>> {
        if !self.agreement.server_context_takeover {
            return shared.compress_alone(payload, self.window());
        }
        if payload.len() < shared.config.min(true) {
            return None;
        }
        let (level, window) = (shared.config.level, self.window());
        let deflate = self
            .deflate
            .get_or_insert_with(|| new_deflate(level, window));
        if std::mem::take(&mut self.has_gap) {
            deflate.reset();
        }
        let mut out = std::mem::take(&mut shared.room);
        if !compress(deflate, payload, &mut out) {
            // Nothing of it is sent, and nothing may refer to it.
            self.has_gap = true;
            shared.give_back(out);
            return None;
        }
        // It is sent even if it has grown a little: what follows refers to it.
        shared.count_out(payload.len(), out.len());
        Some(out)
    }

    /// Whether messages may refer to earlier ones of this side.
    pub(super) fn keeps_context(&self) -> bool {
        self.agreement.server_context_takeover
    }

    /// Whether a message of this length is compressed at all.
    pub fn is_worth_compressing(&self, len: usize, shared: &Compression) -> bool {
        len >= shared.config.min(self.keeps_context())
    }

    /// Lends the compressor for a message that is compressed in slices.
    pub(super) fn borrow_deflate(&mut self, shared: &mut Compression) -> Box<Deflate> {
        let (level, window) = (shared.config.level, self.window());
        let slot = if self.keeps_context() {
            &mut self.deflate
        } else {
            &mut shared.deflates[usize::from(window)]
        };
        let mut deflate = slot.take().unwrap_or_else(|| new_deflate(level, window));
        if !self.keeps_context() || std::mem::take(&mut self.has_gap) {
            deflate.reset();
        }
        deflate
    }

    /// Takes the compressor back.
    pub(super) fn return_deflate(&mut self, deflate: Box<Deflate>, shared: &mut Compression) {
        let window = usize::from(self.window());
        let slot = if self.keeps_context() {
            &mut self.deflate
        } else {
            &mut shared.deflates[window]
        };
        *slot = Some(deflate);
    }

    /// Decompresses a message, as far as the limit allows, and at most `inflate_slice` bytes of it at once. Returns
    /// what is left to do, to be given back together with the bytes that were not consumed.
    pub(crate) fn decompress(
        &mut self,
        bytes: &[u8],
        unfinished: Option<Unfinished>,
        message: &mut Assembly,
        max_message: usize,
        shared: &mut Compression,
        buffers: &mut Buffers,
    ) -> Result<Option<Unfinished>, ProtocolError> {
        let keeps = self.agreement.client_context_takeover;
        let is_new = unfinished.is_none();
        let slot = if keeps {
            &mut self.inflate
        } else {
            &mut shared.inflate
        };
        let mut inflate = unfinished
            .map(|unfinished| unfinished.inflate)
            .or_else(|| slot.take())
            .unwrap_or_else(|| Box::new(Inflate::new(false, MAX_WINDOW_BITS)));
        if !keeps && is_new {
            inflate.reset(false);
        }
        let before = message.len();
        shared.piece.resize(PIECE, 0);
        let mut sink = |piece: &[u8]| {
            let room = max_message - message.len();
            message.push(&piece[..piece.len().min(room)], max_message, buffers)?;
            if piece.len() > room {
                return Err(ProtocolError::MessageTooBig);
            }
            Ok(())
        };
        let mut rest = bytes;
        let result = decompress(
            &mut inflate,
            &mut rest,
            &mut shared.piece,
            shared.inflate_slice,
            &mut sink,
        );
        let result = match result {
            Ok(true) => {
                let mut tail = &TAIL[..];
                decompress(
                    &mut inflate,
                    &mut tail,
                    &mut shared.piece,
                    usize::MAX,
                    &mut sink,
                )
            }
            result => result,
        };
        shared.counts.plain_in += (message.len() - before) as u64;
        shared.counts.compressed_in += (bytes.len() - rest.len()) as u64;
        if !result? {
            let consumed = bytes.len() - rest.len();
            return Ok(Some(Unfinished { consumed, inflate }));
        }
        // After a whole message the next block may begin, and an empty one is nothing. In the middle of a block the same
        // bytes would be content.
        let (piece, mut block) = (&mut shared.piece, &EMPTY_BLOCK[..]);
        decompress(&mut inflate, &mut block, piece, usize::MAX, &mut |piece| {
            if piece.is_empty() {
                Ok(())
            } else {
                Err(ProtocolError::InvalidCompression)
            }
        })?;
        shared.counts.messages_in += 1;
        let slot = if keeps {
            &mut self.inflate
        } else {
            &mut shared.inflate
        };
        *slot = Some(inflate);
        Ok(None)
    }

    /// Gives its memory back, once no message is received or sent any more.
    pub(in crate::protocol) fn release(&mut self) {
        self.inflate = None;
        self.deflate = None;
        let reservation = &mut self.reservation;
        let bytes = std::mem::take(&mut reservation.bytes);
        reservation.total.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The other side of the same agreement.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn peer(&self) -> Self {
        let agreement = self.agreement;
        Self {
            agreement: Agreement {
                server_context_takeover: agreement.client_context_takeover,
                client_context_takeover: agreement.server_context_takeover,
                server_max_window_bits: agreement.client_max_window_bits,
                client_max_window_bits: agreement.server_max_window_bits,
            },
            inflate: None,
            deflate: None,
            has_gap: false,
            reservation: Reservation {
                total: Arc::default(),
                bytes: 0,
            },
        }
    }

    /// Bytes of memory of its own.
    #[cfg(any(test, fuzzing))]
    pub(in crate::protocol) fn held(&self) -> usize {
        let deflate = self.deflate.as_ref().map(|_| deflate_bytes(self.window()));
        let inflate = self.inflate.as_ref().map(|_| INFLATE_BYTES);
        deflate.unwrap_or(0) + inflate.unwrap_or(0)
    }
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Codec")
            .field("agreement", &self.agreement)
            .field("reserved", &self.reservation.bytes)
            .finish_non_exhaustive()
    }
}

fn new_deflate(level: u8, window: u8) -> Box<Deflate> {
    Box::new(Deflate::new_with_config(Settings {
        level: i32::from(level),
        // Negative for data without a header.
        window_bits: -i32::from(window),
        mem_level: MEM_LEVEL,
        ..Settings::default()
    }))
}

/// Compresses a message into `out`, in place of what was there. False if the compressor refuses, which it does not.
fn compress(deflate: &mut Deflate, payload: &[u8], out: &mut Vec<u8>) -> bool {
    if !compress_piece(deflate, payload, DeflateFlush::SyncFlush, out) {
        return false;
    }
    debug_assert!(out.ends_with(&TAIL));
    out.truncate(out.len().saturating_sub(TAIL.len()));
    true
}

/// Compresses a part of a message into `out`, in place of what was there. Without a flush the compressor may keep some or
/// all of it.
pub(super) fn compress_piece(
    deflate: &mut Deflate,
    mut payload: &[u8],
    flush: DeflateFlush,
    out: &mut Vec<u8>,
) -> bool {
    out.clear();
    loop {
        let begin = out.len();
        // More than what cannot be made shorter grows to. Where it is not enough there is another turn.
        let room = payload.len() + payload.len() / 8 + 128;
        out.resize(begin + room.min(STEP), 0);
        let (read, written) = (deflate.total_in(), deflate.total_out());
        if deflate.compress(payload, &mut out[begin..], flush).is_err() {
            return false;
        }
        let written = (deflate.total_out() - written) as usize;
        payload = &payload[(deflate.total_in() - read) as usize..];
        let is_full = begin + written == out.len();
        out.truncate(begin + written);
        // Room that is left over means that everything was flushed, of what was taken.
        if !is_full && payload.is_empty() {
            return true;
        }
    }
}

/// Decompresses `bytes` and passes on the output piece by piece. Returns whether that was everything: it stops after
/// `most` bytes of output, and leaves unconsumed input in `bytes`.
fn decompress(
    inflate: &mut Inflate,
    bytes: &mut &[u8],
    piece: &mut [u8],
    most: usize,
    sink: &mut impl FnMut(&[u8]) -> Result<(), ProtocolError>,
) -> Result<bool, ProtocolError> {
    let mut total = 0;
    loop {
        let (read, written) = (inflate.total_in(), inflate.total_out());
        let status = inflate.decompress(bytes, piece, InflateFlush::SyncFlush);
        let written = (inflate.total_out() - written) as usize;
        *bytes = &bytes[(inflate.total_in() - read) as usize..];
        sink(&piece[..written])?;
        total += written;
        match status {
            Err(_) => return Err(ProtocolError::InvalidCompression),
            // A last block: what follows is a stream of its own (RFC 7692 section 7.2.3.4).
            Ok(Status::StreamEnd) => inflate.reset(false),
            Ok(Status::Ok | Status::BufError) => {}
        }
        if bytes.is_empty() && written < piece.len() {
            return Ok(true);
        }
        if total >= most {
            return Ok(false);
        }
        if status == Ok(Status::BufError) {
            // Neither input nor room is lacking: it does not go on.
            return Err(ProtocolError::InvalidCompression);
        }
    }
}
