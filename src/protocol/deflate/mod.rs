//! Compressed messages: the extension permessage-deflate, RFC 7692.
//!
//! An [`Offer`] is the client's proposal in the handshake, and an [`Agreement`] is the result. A [`Codec`] compresses and
//! decompresses for one connection. A [`Compression`] is shared by all connections of an event loop: it has the
//! compressors of connections without context takeover, and the count of memory that the others reserve.
//!
//! A compressor with its context takes a third of a megabyte, which is far more than an idle connection takes otherwise.
//! Context takeover is therefore granted only while its memory fits a limit. The other connections share one compressor.
//! A message to many clients is compressed once for all of them, without a context.
//!
//! Long messages are processed in slices. A received message is decompressed in several calls of
//! [`WebSocket::receive`](super::WebSocket::receive). A sent message is a [`Squeeze`], which compresses it fragment by
//! fragment as the socket accepts it.
//!
//! The compressor, zlib-rs, is behind the cargo feature `deflate`. Without the feature, a [`Compression`] cannot be
//! created, and the code that needs one is compiled away.

#[cfg(feature = "deflate")]
mod codec;
#[cfg(not(feature = "deflate"))]
#[path = "none.rs"]
mod codec;
#[cfg(all(feature = "deflate", feature = "server"))]
mod gzip;
mod offer;
#[cfg(feature = "deflate")]
#[cfg_attr(
    not(feature = "server"),
    expect(dead_code, reason = "only a server passes a connection on")
)]
mod window;
#[cfg(feature = "deflate")]
mod zlib;

pub(super) use codec::Unfinished;
pub use codec::{Codec, Compression};
#[cfg(not(feature = "deflate"))]
pub use codec::{CompressionFailed, SLICE, Squeeze};
#[cfg(all(feature = "deflate", feature = "server"))]
pub(crate) use gzip::gzip;
pub use offer::{Agreement, InvalidAgreement, Offer};
#[cfg(feature = "deflate")]
pub use zlib::{CompressionFailed, SLICE, Squeeze};

use crate::protocol::{Accept, Rejection};

/// A body in gzip. `None`, because this build has no compressor.
#[cfg(all(not(feature = "deflate"), feature = "server"))]
pub(crate) fn gzip(_: &[u8]) -> Option<Vec<u8>> {
    None
}

impl Compression {
    /// Accepts an offer, and adds the agreement to the fields of the 101 response.
    ///
    /// # Errors
    ///
    /// The response cannot have the field. That does not happen.
    pub fn negotiate(&self, offer: Offer, accept: Accept) -> Result<(Accept, Codec), Rejection> {
        let codec = self.accept(offer);
        let agreement = codec.agreement().to_string();
        let accept = accept.field("Sec-WebSocket-Extensions", agreement)?;
        Ok((accept, codec))
    }
}

/// The settings of compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeflateConfig {
    /// The compression level, from 1 (fastest) to 9 (smallest).
    pub level: u8,
    /// The maximum number of bytes that all connections with context takeover reserve. Further connections get no
    /// context takeover.
    pub memory: usize,
    /// Messages shorter than this are sent uncompressed. `None` means [`DeflateConfig::MIN`] with context takeover
    /// and [`DeflateConfig::MIN_ALONE`] without.
    pub min: Option<usize>,
}

impl DeflateConfig {
    /// The default for [`DeflateConfig::level`]. It makes JSON smaller by four fifths at a third of the cost of zlib's
    /// default level.
    pub const LEVEL: u8 = 3;
    /// The default for [`DeflateConfig::memory`]: 64 MiB, enough for about 200 connections.
    pub const MEMORY: usize = 64 << 20;
    /// The length of the shortest message that is compressed with context takeover.
    pub const MIN: usize = 64;
    /// The length of the shortest message that is compressed without context takeover.
    pub const MIN_ALONE: usize = 512;

    /// The length of the shortest message that is compressed.
    #[cfg(feature = "deflate")]
    fn min(&self, has_context: bool) -> usize {
        let usual = if has_context {
            Self::MIN
        } else {
            Self::MIN_ALONE
        };
        // An empty message is never compressed.
        self.min.unwrap_or(usual).max(1)
    }
}

impl Default for DeflateConfig {
    fn default() -> Self {
        Self {
            level: Self::LEVEL,
            memory: Self::MEMORY,
            min: None,
        }
    }
}

/// The sizes of messages before and after compression, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompressionCounts {
    /// Compressed messages received.
    pub messages_in: u64,
    /// The size of these messages on the wire, without headers.
    pub compressed_in: u64,
    /// The size of these messages after decompression.
    pub plain_in: u64,
    /// Compressed messages sent. A message to many clients counts once.
    pub messages_out: u64,
    /// The size of these messages before compression.
    pub plain_out: u64,
    /// The size of these messages on the wire, without headers.
    pub compressed_out: u64,
}
