//! Replaces the compressors in a build without the feature `deflate`. The types have no values, so no method can be
//! called.

use std::convert::Infallible;

use super::CompressionCounts;
use super::offer::{Agreement, Offer};
use crate::protocol::message::Assembly;
use crate::protocol::{Buffers, OpCode, ProtocolError};

/// The compressors that connections share. There are no values of this type in this build.
#[derive(Debug)]
pub struct Compression(Infallible);

/// The compression of one connection. There are no values of this type in this build.
#[derive(Debug)]
pub struct Codec(Infallible);

/// A partly decompressed message. There are no values of this type in this build.
#[derive(Debug)]
pub(crate) struct Unfinished {
    pub(crate) consumed: usize,
    _never: Infallible,
}

/// A message that is being compressed. There are no values of this type in this build.
#[derive(Debug)]
pub struct Squeeze(Infallible);

/// The maximum number of bytes of a message that are compressed at once. There is no compression in this build.
pub const SLICE: usize = isize::MAX as usize;

/// The compressor failed. There are no values of this type in this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressionFailed(Infallible);

impl std::fmt::Display for CompressionFailed {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {}
    }
}

impl std::error::Error for CompressionFailed {}

#[cfg(feature = "server")]
crate::record::record!(Codec as Infallible);

#[allow(
    missing_docs,
    reason = "the documentation is in the build with the feature"
)]
impl Squeeze {
    pub fn new(_: OpCode, _: &[u8]) -> Self {
        unreachable!("without a codec, no message is compressed")
    }

    pub fn remaining(&self) -> usize {
        match self.0 {}
    }

    pub fn next(
        &mut self,
        _: &mut Codec,
        _: &mut Compression,
        _: &mut Vec<u8>,
    ) -> Result<bool, CompressionFailed> {
        match self.0 {}
    }
}

#[allow(
    missing_docs,
    clippy::needless_pass_by_ref_mut,
    reason = "the documentation is in the build with the feature"
)]
impl Compression {
    #[cfg(feature = "server")]
    pub(crate) fn adopt(&self, _: &mut Codec) {
        match self.0 {}
    }

    pub fn accept(&self, _: Offer) -> Codec {
        match self.0 {}
    }

    pub fn connect(&self, _: Agreement) -> Codec {
        match self.0 {}
    }

    pub fn alone(&self, _: u8) -> Codec {
        match self.0 {}
    }

    pub fn compress_alone(&mut self, _: &[u8], _: u8) -> Option<Vec<u8>> {
        match self.0 {}
    }

    pub fn give_back(&mut self, _: Vec<u8>) {
        match self.0 {}
    }

    pub fn counts(&self) -> CompressionCounts {
        match self.0 {}
    }

    pub fn reserved(&self) -> usize {
        match self.0 {}
    }

    pub fn memory(&self) -> usize {
        match self.0 {}
    }

    pub fn clear(&mut self) {
        match self.0 {}
    }

    pub fn slice(&self) -> usize {
        match self.0 {}
    }
}

#[allow(
    missing_docs,
    clippy::needless_pass_by_ref_mut,
    reason = "the documentation is in the build with the feature"
)]
impl Codec {
    #[cfg(feature = "server")]
    pub(crate) fn keep_window(&mut self, _: &mut Compression) {
        match self.0 {}
    }

    pub fn agreement(&self) -> Agreement {
        match self.0 {}
    }

    pub fn window(&self) -> u8 {
        match self.0 {}
    }

    pub fn note_alone(&mut self) {
        match self.0 {}
    }

    pub fn compress(&mut self, _: &[u8], _: &mut Compression) -> Option<Vec<u8>> {
        match self.0 {}
    }

    pub fn is_worth_compressing(&self, _: usize, _: &Compression) -> bool {
        match self.0 {}
    }

    pub(crate) fn decompress(
        &mut self,
        _: &[u8],
        _: Option<Unfinished>,
        _: &mut Assembly,
        _: usize,
        _: &mut Compression,
        _: &mut Buffers,
    ) -> Result<Option<Unfinished>, ProtocolError> {
        match self.0 {}
    }

    pub(crate) fn release(&mut self) {
        match self.0 {}
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn held(&self) -> usize {
        match self.0 {}
    }
}
