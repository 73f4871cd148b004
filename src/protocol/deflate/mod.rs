//! Compressed messages: the extension permessage-deflate, RFC 7692.
//!
//! [`Offer`] is what a client proposes in its handshake, [`Agreement`] what the two settle on; both are plain data. A
//! [`Codec`] is one connection's side of the agreement, and [`Compression`] what the connections of a loop share:
//! compressors for those that keep no context, and a count of what those that do have reserved.
//!
//! A compressor with its context is a third of a megabyte, a hundred times what an idle connection takes otherwise. So
//! context takeover is agreed to only while its memory fits a limit; the others borrow one compressor in turn. What goes
//! to many clients is compressed once, without a context, for all of them.
//!
//! Work is done in slices: a long message that comes is decompressed over several turns, and one that is sent is a
//! [`Squeeze`], compressed fragment by fragment as the socket takes it.
//!
//! The compressor itself, zlib-rs, is behind the cargo feature `deflate`. Without it [`Compression`] cannot be made and
//! everything that needs one is compiled away.

#[cfg(feature = "deflate")]
mod codec;
#[cfg(not(feature = "deflate"))]
#[path = "none.rs"]
mod codec;
mod offer;
#[cfg(feature = "deflate")]
mod squeeze;

pub(super) use codec::Unfinished;
pub use codec::{Codec, Compression};
#[cfg(not(feature = "deflate"))]
pub use codec::{CompressionFailed, SLICE, Squeeze};
pub use offer::{Agreement, Offer};
#[cfg(feature = "deflate")]
pub use squeeze::{CompressionFailed, SLICE, Squeeze};

/// How messages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeflateConfig {
    /// From 1, fast, to 9, small.
    pub level: u8,
    /// The most bytes that connections with context takeover reserve in all. Further ones are given none.
    pub memory: usize,
    /// Messages shorter than this go out as they are; `None` for [`DeflateConfig::MIN`] where a context is kept, and
    /// [`DeflateConfig::MIN_ALONE`] where a message is compressed by itself.
    pub min: Option<usize>,
}

impl DeflateConfig {
    /// The default for [`DeflateConfig::level`]: where JSON shrinks by four fifths for a third of what zlib's usual level
    /// costs.
    pub const LEVEL: u8 = 3;
    /// The default for [`DeflateConfig::memory`]: 64 MiB, some 200 connections.
    pub const MEMORY: usize = 64 << 20;
    /// The shortest message that is worth compressing after others like it.
    pub const MIN: usize = 64;
    /// The shortest message that is worth compressing by itself.
    pub const MIN_ALONE: usize = 512;

    /// Sets [`DeflateConfig::level`].
    #[must_use]
    pub fn with_level(mut self, level: u8) -> Self {
        self.level = level;
        self
    }

    /// Sets [`DeflateConfig::memory`].
    #[must_use]
    pub fn with_memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// Sets [`DeflateConfig::min`].
    #[must_use]
    pub fn with_min(mut self, bytes: impl Into<Option<usize>>) -> Self {
        self.min = bytes.into();
        self
    }

    /// The shortest message that is compressed, with a context or without.
    #[cfg(feature = "deflate")]
    fn min(&self, has_context: bool) -> usize {
        let usual = if has_context {
            Self::MIN
        } else {
            Self::MIN_ALONE
        };
        // Nothing comes of compressing nothing.
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
    /// Their bytes on the wire, without headers.
    pub compressed_in: u64,
    /// Their bytes as messages.
    pub plain_in: u64,
    /// Compressed messages sent. One that goes to many clients is counted once.
    pub messages_out: u64,
    /// Their bytes as messages.
    pub plain_out: u64,
    /// Their bytes on the wire, without headers.
    pub compressed_out: u64,
}
