//! In place of the compressors in a build without them: there is none, so nothing can be done with one.

use std::convert::Infallible;

use super::CompressionCounts;
use super::offer::{Agreement, Offer};
use crate::protocol::message::Assembly;
use crate::protocol::{Buffers, OpCode, ProtocolError};

/// What compression needs that the connections of a loop can share. There is none in this build.
#[derive(Debug)]
pub struct Compression(Infallible);

/// One connection's compression. There is none in this build.
#[derive(Debug)]
pub struct Codec(Infallible);

/// A partly decompressed message. There is none in this build.
#[derive(Debug)]
pub(crate) struct Unfinished {
    pub(crate) consumed: usize,
    _never: Infallible,
}

/// A message that waits to be compressed. There is none in this build.
#[derive(Debug)]
pub struct Squeeze(Infallible);

/// The maximum of bytes of a message that are compressed at once. There is no compression in this build.
pub const SLICE: usize = isize::MAX as usize;

/// The compressor refused. There is none in this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressionFailed(Infallible);

impl std::fmt::Display for CompressionFailed {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {}
    }
}

impl std::error::Error for CompressionFailed {}

#[allow(
    missing_docs,
    reason = "documented where they do something, and of the same form"
)]
impl Squeeze {
    pub fn new(_: OpCode, _: &[u8]) -> Self {
        unreachable!("there is no codec that would ask for it")
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
    reason = "documented where they do something, and of the same form"
)]
impl Compression {
    pub fn accept(&self, _: Offer) -> Codec {
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
    reason = "documented where they do something, and of the same form"
)]
impl Codec {
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

    pub(in crate::protocol) fn release(&mut self) {
        match self.0 {}
    }

    #[cfg(any(test, fuzzing))]
    pub(in crate::protocol) fn held(&self) -> usize {
        match self.0 {}
    }
}
