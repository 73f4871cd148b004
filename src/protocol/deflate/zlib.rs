//! Compression and decompression of whole buffers with zlib-rs.

use zlib_rs::{Deflate, DeflateConfig as Settings, DeflateFlush, Inflate, InflateFlush, Status};

use crate::protocol::ProtocolError;

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
pub(super) fn compress_piece(
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
