//! Compressors and decompressors: those of one connection, and those that connections share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use zlib_rs::{Deflate, Inflate};

use super::offer::{Agreement, MAX_WINDOW_BITS, Offer};
use super::window;
use super::zlib::{TAIL, compress, decompress, new_deflate};
use super::{CompressionCounts, DeflateConfig, SLICE};
use crate::protocol::message::Assembly;
use crate::protocol::{Buffers, ProtocolError};

/// An empty stored block that is not the last one (RFC 1951 section 3.2.4).
pub(super) const EMPTY_BLOCK: [u8; 5] = [0, 0, 0, 0xff, 0xff];

/// The size of the buffer for decompressed bytes.
const PIECE: usize = 16 << 10;

/// The maximum number of bytes decompressed from one message at once.
const INFLATE_SLICE: usize = 512 << 10;

/// The memory of a decompressor, and of a compressor without its window. Measured; a test checks them.
const INFLATE_BYTES: usize = 48 << 10;
const DEFLATE_BYTES: usize = 146 << 10;

/// The maximum capacity kept for compressed messages.
const KEPT: usize = 256 << 10;

/// The smallest window of zlib-rs for raw data, in bits. Its output has no distance over 250 bytes, so it is also valid
/// for a window of 8 bits (256 bytes).
const MIN_WINDOW_BITS: u8 = 9;

/// The window to compress with, given the agreed one.
fn window(agreed: Option<u8>) -> u8 {
    agreed.unwrap_or(MAX_WINDOW_BITS).max(MIN_WINDOW_BITS)
}

fn deflate_bytes(window: u8) -> usize {
    // Two windows of bytes and one of 16-bit positions.
    DEFLATE_BYTES + (4 << window)
}

/// The compressors that all connections of an event loop share, and the memory that connections reserve.
pub struct Compression {
    config: DeflateConfig,
    /// The compressors for messages without context, by window.
    deflates: [Option<Box<Deflate>>; MAX_WINDOW_BITS as usize + 1],
    inflate: Option<Box<Inflate>>,
    piece: Vec<u8>,
    /// The buffer for a compressed message. It is empty while the buffer is in use.
    room: Vec<u8>,
    reserved: Arc<AtomicUsize>,
    counts: CompressionCounts,
    /// The maximum number of bytes decompressed from one message at once.
    inflate_slice: usize,
    slice: usize,
}

impl Compression {
    /// Creates the shared state. Compressors are allocated when they are first needed.
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

    /// The maximum number of bytes of a message that are compressed at once. Compress longer messages with
    /// [`Squeeze`](super::Squeeze).
    pub fn slice(&self) -> usize {
        self.slice
    }

    /// Gives a restored codec the memory that it had reserved, even if that is over the limit now.
    #[cfg(feature = "server")]
    pub(crate) fn adopt(&self, codec: &mut Codec) {
        let bytes = codec.reservation.bytes;
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        let total = Arc::clone(&self.reserved);
        codec.reservation = Reservation { total, bytes };
    }

    /// Accepts an offer for a connection. Context takeover is granted if there is memory for it.
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
            window: Vec::new(),
            has_gap: false,
            reservation,
        }
    }

    /// The codec of a client, after the server has accepted its offer.
    pub fn connect(&self, agreement: Agreement) -> Codec {
        Codec {
            // A codec compresses what the agreement calls the server's messages.
            agreement: agreement.reversed(),
            inflate: None,
            deflate: None,
            window: Vec::new(),
            has_gap: false,
            reservation: Reservation {
                total: Arc::clone(&self.reserved),
                bytes: 0,
            },
        }
    }

    /// A codec for messages that are compressed without a context, for all connections with this window.
    pub fn alone(&self, window: u8) -> Codec {
        let agreement = Agreement {
            server_context_takeover: false,
            client_context_takeover: false,
            server_max_window_bits: Some(window),
            client_max_window_bits: None,
        };
        self.connect(agreement.reversed())
    }

    /// Compresses a message without a context, for connections with this window. Returns `None` if the message is better
    /// sent uncompressed. Return the bytes with [`Compression::give_back`] after use.
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

    /// Takes the buffer for a compressed message. Return it with [`Compression::give_back`].
    pub(super) fn take_room(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.room)
    }

    /// Takes back the buffer of a compressed message.
    pub fn give_back(&mut self, mut room: Vec<u8>) {
        room.clear();
        room.shrink_to(KEPT);
        self.room = room;
    }

    /// Counts a compressed message.
    pub(super) fn count_out(&mut self, plain: usize, compressed: usize) {
        self.counts.messages_out += 1;
        self.counts.plain_out += plain as u64;
        self.counts.compressed_out += compressed as u64;
    }

    /// The messages and bytes so far.
    pub fn counts(&self) -> CompressionCounts {
        self.counts
    }

    /// The number of bytes that connections with context takeover have reserved.
    pub fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }

    /// The maximum value of [`Compression::reserved`].
    pub fn memory(&self) -> usize {
        self.config.memory
    }

    /// Frees the shared compressors and buffers. They are created again when they are needed.
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

/// Memory that a connection may use. Dropping it releases the reservation.
struct Reservation {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

// Counted when the codec gets the state that it shares: see `Compression::adopt`.
#[cfg(feature = "server")]
crate::record::record!(Reservation {
    total = Arc::new(AtomicUsize::new(usize::MAX / 2)),
    bytes,
});

impl Reservation {
    /// Reserves `bytes` more. Returns false if the total would exceed `most`.
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
    /// The number of bytes consumed in this slice.
    pub(crate) consumed: usize,
    inflate: Box<Inflate>,
}

impl fmt::Debug for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unfinished").finish_non_exhaustive()
    }
}

/// The compression of one connection. Its compressors are created with the first message that needs them.
pub struct Codec {
    agreement: Agreement,
    inflate: Option<Box<Inflate>>,
    deflate: Option<Box<Deflate>>,
    /// The window of `inflate`, as the process before has saved it, or as it is saved for the next one.
    window: Vec<u8>,
    /// Whether the peer received a compressed message that `deflate` did not produce, so that `deflate` must be reset.
    has_gap: bool,
    reservation: Reservation,
}

// The compressor of the next process starts anew, as after a broadcast.
#[cfg(feature = "server")]
crate::record::record!(Codec {
    agreement,
    inflate = None,
    deflate = None,
    window,
    has_gap = false,
    reservation,
});

impl Codec {
    /// Keeps the window of the decompressor, so that another process can continue it.
    #[cfg(feature = "server")]
    pub(crate) fn keep_window(&mut self, shared: &mut Compression) {
        if let Some(inflate) = &mut self.inflate {
            shared.piece.resize(PIECE, 0);
            // A decompressor that fails here fails with the next message, too.
            self.window = window::read(inflate, &mut shared.piece).unwrap_or_default();
        }
    }

    /// The negotiated parameters.
    pub fn agreement(&self) -> Agreement {
        self.agreement
    }

    /// The window to compress with, in bits.
    pub fn window(&self) -> u8 {
        window(self.agreement.server_max_window_bits)
    }

    /// Records that the peer is sent a message that was compressed without a context.
    pub fn note_alone(&mut self) {
        self.has_gap = true;
    }

    /// Compresses a message. Returns `None` if it is better sent uncompressed. Return the bytes with
    /// [`Compression::give_back`] after use.
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
            // The message is not sent, so later messages must not refer to it.
            self.has_gap = true;
            shared.give_back(out);
            return None;
        }
        // The message is sent even if it became longer, because later messages refer to it.
        shared.count_out(payload.len(), out.len());
        Some(out)
    }

    /// Whether sent messages may refer to earlier ones.
    pub(super) fn keeps_context(&self) -> bool {
        self.agreement.server_context_takeover
    }

    /// Whether a message of this length is compressed.
    pub fn is_worth_compressing(&self, len: usize, shared: &Compression) -> bool {
        len >= shared.config.min(self.keeps_context())
    }

    /// Takes the compressor for a message that is compressed in slices.
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

    /// Decompresses up to about `inflate_slice` bytes of a message. Returns `None` when the message is complete.
    /// Otherwise call it again with the returned state and the bytes that were not consumed.
    pub(crate) fn decompress(
        &mut self,
        bytes: &[u8],
        unfinished: Option<Unfinished>,
        message: &mut Assembly,
        max_message: usize,
        shared: &mut Compression,
        buffers: &mut Buffers,
    ) -> Result<Option<Unfinished>, ProtocolError> {
        let mut inflate = self.take_inflate(unfinished, shared)?;
        let before = message.len();
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
        // A complete message ends between two blocks, where an empty block produces no output. Inside a block, the same
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
        *self.inflate_slot(shared) = Some(inflate);
        Ok(None)
    }

    /// Takes the decompressor for the next bytes: the one that has not finished its message, the one that is kept, or a new one.
    /// Also makes room for a piece of output.
    fn take_inflate(
        &mut self,
        unfinished: Option<Unfinished>,
        shared: &mut Compression,
    ) -> Result<Box<Inflate>, ProtocolError> {
        let is_new = unfinished.is_none();
        let mut inflate = unfinished
            .map(|unfinished| unfinished.inflate)
            .or_else(|| self.inflate_slot(shared).take())
            .unwrap_or_else(|| Box::new(Inflate::new(false, MAX_WINDOW_BITS)));
        shared.piece.resize(PIECE, 0);
        if !self.window.is_empty() {
            let window = std::mem::take(&mut self.window);
            if inflate.total_out() == 0 {
                window::fill(&mut inflate, &window, &mut shared.piece)?;
            }
        }
        if !self.agreement.client_context_takeover && is_new {
            inflate.reset(false);
        }
        Ok(inflate)
    }

    /// Where the decompressor is kept between two messages.
    fn inflate_slot<'a>(&'a mut self, shared: &'a mut Compression) -> &'a mut Option<Box<Inflate>> {
        match self.agreement.client_context_takeover {
            true => &mut self.inflate,
            false => &mut shared.inflate,
        }
    }

    /// Frees the compressors and the reservation when the connection closes.
    pub(crate) fn release(&mut self) {
        self.inflate = None;
        self.deflate = None;
        self.window = Vec::new();
        let reservation = &mut self.reservation;
        let bytes = std::mem::take(&mut reservation.bytes);
        reservation.total.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The codec of the peer.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn peer(&self) -> Self {
        let agreement = self.agreement;
        Self {
            agreement: agreement.reversed(),
            inflate: None,
            deflate: None,
            window: Vec::new(),
            has_gap: false,
            reservation: Reservation {
                total: Arc::default(),
                bytes: 0,
            },
        }
    }

    /// The memory of the compressors of this connection.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn held(&self) -> usize {
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
