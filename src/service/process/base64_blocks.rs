//! Output as base64, encoded piece by piece while it arrives, in blocks that can be sent without a copy.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// The length of a block from which on further text goes into a new one. Blocks that grew without a limit would be copied
/// again and again.
const BLOCK: usize = 256 << 10;

/// Base64 encodes this many bytes at a time.
const GROUP: usize = 3;

/// Bytes as base64.
#[derive(Debug, Default)]
pub(super) struct Base64Blocks {
    blocks: Vec<String>,
    /// The bytes after the last whole group, fewer than [`GROUP`].
    rest: Vec<u8>,
    /// The number of bytes that were added.
    len: usize,
}

impl Base64Blocks {
    /// The number of bytes that were added.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds bytes.
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len();
        if !self.rest.is_empty() {
            let missing = (GROUP - self.rest.len()).min(bytes.len());
            let (first, others) = bytes.split_at(missing);
            self.rest.extend_from_slice(first);
            bytes = others;
            if self.rest.len() < GROUP {
                return;
            }
            let group = std::mem::take(&mut self.rest);
            self.encode(&group);
        }
        let (groups, rest) = bytes.split_at(bytes.len() / GROUP * GROUP);
        self.encode(groups);
        self.rest.extend_from_slice(rest);
    }

    fn encode(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let is_full = self.blocks.last().is_none_or(|last| last.len() >= BLOCK);
        if is_full {
            self.blocks.push(String::new());
        }
        if let Some(block) = self.blocks.last_mut() {
            BASE64_STANDARD.encode_string(bytes, block);
        }
    }

    /// The text, in blocks.
    pub(super) fn finish(mut self) -> Vec<String> {
        let rest = std::mem::take(&mut self.rest);
        self.encode(&rest);
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn pieces_are_encoded_as_the_whole() {
        let mut random = Random::new(91);
        for size in [0, 1, 2, 3, 4, 5, 100, 300_000, 1_000_000] {
            let whole = random.bytes(size);
            let mut blocks = Base64Blocks::default();
            let mut left = &whole[..];
            while !left.is_empty() {
                let most = [1, 2, 3, 7, 5000, 40_000][random.below(6)];
                let (piece, others) = left.split_at(left.len().min(random.below(most + 1)));
                blocks.push(piece);
                left = others;
            }
            assert_eq!(blocks.len(), whole.len());
            let blocks = blocks.finish();
            assert!(blocks.iter().all(|block| block.len() < 2 * BLOCK));
            assert_eq!(blocks.concat(), BASE64_STANDARD.encode(&whole), "{size}");
        }
    }
}
