//! Compression and decompression with zlib-rs: of whole buffers, and of long messages while they are sent.
//!
//! A long message is sent as fragments of one message (RFC 7692 section 7.2.1). Each fragment is compressed when the socket
//! has room for it.

use std::fmt;

use zlib_rs::{Deflate, DeflateConfig as Settings, DeflateFlush, Inflate, InflateFlush, Status};

use super::codec::{Codec, Compression};
use crate::protocol::ProtocolError;
use crate::protocol::frame::{OpCode, SentHeader};

/// The bytes at the end of a flush, which are removed from each message (RFC 7692 section 7.2.1).
pub(super) const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// zlib's `memLevel`, which sets how much input is collected for one block. A higher level takes more memory and helps
/// only long messages.
const MEM_LEVEL: i32 = 5;

/// The maximum number of bytes reserved for output at once, because zlib counts in 32 bits.
const STEP: usize = 1 << 30;

/// Creates a compressor for raw data.
pub(super) fn new_deflate(level: u8, window: u8) -> Box<Deflate> {
    Box::new(Deflate::new_with_config(Settings {
        level: i32::from(level),
        // Negative for data without a header.
        window_bits: -i32::from(window),
        mem_level: MEM_LEVEL,
        ..Settings::default()
    }))
}

/// Compresses a message and replaces the content of `out`. Returns false if the compressor fails, which is not expected.
pub(super) fn compress(deflate: &mut Deflate, payload: &[u8], out: &mut Vec<u8>) -> bool {
    if !compress_piece(deflate, payload, DeflateFlush::SyncFlush, out) {
        return false;
    }
    debug_assert!(out.ends_with(&TAIL));
    out.truncate(out.len().saturating_sub(TAIL.len()));
    true
}

/// Compresses a part of a message and replaces the content of `out`. Without a flush, the compressor may keep some or
/// all of the output.
fn compress_piece(
    deflate: &mut Deflate,
    mut payload: &[u8],
    flush: DeflateFlush,
    out: &mut Vec<u8>,
) -> bool {
    out.clear();
    loop {
        let begin = out.len();
        // Enough for incompressible data. If it is not, the loop continues.
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
        // If there is room left, the compressor has flushed everything that it consumed.
        if !is_full && payload.is_empty() {
            return true;
        }
    }
}

/// Decompresses `bytes` and passes the output to `sink`. Returns true if all input was consumed. Otherwise it stopped
/// after `most` bytes of output, and `bytes` has the rest of the input.
pub(super) fn decompress(
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
            // After a last block, a new stream begins (RFC 7692 section 7.2.3.4).
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
            // There is input and room for output, but no progress.
            return Err(ProtocolError::InvalidCompression);
        }
    }
}

/// The maximum number of bytes of a message that are compressed at once, by default. See [`Compression::slice`].
pub const SLICE: usize = 256 << 10;

/// A long message that is compressed a slice at a time.
pub struct Squeeze {
    opcode: OpCode,
    payload: Vec<u8>,
    /// The number of bytes of the payload that were compressed.
    at: usize,
    /// Whether the first frame was written.
    begun: bool,
    /// The compressor, held from the first slice to the last, so that no other message uses it.
    deflate: Option<Box<Deflate>>,
    /// The number of compressed bytes so far.
    compressed: usize,
}

impl Squeeze {
    /// Copies a message to compress.
    pub fn new(opcode: OpCode, payload: &[u8]) -> Self {
        Self {
            opcode,
            payload: payload.to_vec(),
            at: 0,
            begun: false,
            deflate: None,
            compressed: 0,
        }
    }

    /// The number of bytes that are not compressed yet.
    pub fn remaining(&self) -> usize {
        self.payload.len() - self.at
    }

    /// Compresses the next slice and appends its frame to `out`. There is no frame if the compressor keeps all of the
    /// output for the next slice. Returns true after the last slice.
    ///
    /// # Errors
    ///
    /// The compressor failed. The message cannot be completed.
    pub fn next(
        &mut self,
        codec: &mut Codec,
        shared: &mut Compression,
        out: &mut Vec<u8>,
    ) -> Result<bool, CompressionFailed> {
        let first = self.deflate.is_none();
        let deflate = self
            .deflate
            .get_or_insert_with(|| codec.borrow_deflate(shared));
        let slice = &self.payload[self.at..];
        let slice = &slice[..slice.len().min(shared.slice())];
        let last = self.at + slice.len() == self.payload.len();
        let flush = if last {
            DeflateFlush::SyncFlush
        } else {
            DeflateFlush::NoFlush
        };
        let mut bytes = shared.take_room();
        if !compress_piece(deflate, slice, flush, &mut bytes) {
            return Err(CompressionFailed);
        }
        self.at += slice.len();
        if last {
            debug_assert!(bytes.ends_with(&TAIL));
            bytes.truncate(bytes.len() - TAIL.len());
        }
        // Without a context, a message that does not shrink is sent uncompressed. With one, later messages refer to it.
        let is_worth_it = codec.keeps_context() || !first || bytes.len() < slice.len() / 4 * 3;
        let done = if is_worth_it {
            if last || !bytes.is_empty() {
                let opcode = (!self.begun).then_some(self.opcode);
                SentHeader::fragment(opcode, last, bytes.len()).append_with(&bytes, out);
                self.begun = true;
                self.compressed += bytes.len();
            }
            last
        } else {
            SentHeader::new(self.opcode, self.payload.len()).append_with(&self.payload, out);
            self.at = self.payload.len();
            true
        };
        shared.give_back(bytes);
        if done {
            if self.begun {
                shared.count_out(self.payload.len(), self.compressed);
            }
            if let Some(deflate) = self.deflate.take() {
                codec.return_deflate(deflate, shared);
            }
        }
        Ok(done)
    }
}

impl fmt::Debug for Squeeze {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Squeeze")
            .field("opcode", &self.opcode)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// The compressor failed, which is not expected for any input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressionFailed;

impl fmt::Display for CompressionFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("compression failed")
    }
}

impl std::error::Error for CompressionFailed {}
