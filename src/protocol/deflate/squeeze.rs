//! Compression of long messages while they are sent, as fragments of one message (RFC 7692 section 7.2.1). Each
//! fragment is compressed when the socket has room for it.

use std::fmt;

use zlib_rs::{Deflate, DeflateFlush};

use super::codec::{Codec, Compression};
use super::zlib::{TAIL, compress_piece};
use crate::protocol::frame::{OpCode, SentHeader};

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
