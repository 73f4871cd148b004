//! Masking of payloads, RFC 6455 section 5.3.

use crate::sys::xor_words;

/// Applies a masking key to `payload` in place and returns the key, rotated to where the next byte of the same frame
/// continues. Masking and unmasking are the same operation.
///
/// The loop processes whole words, so that the compiler can use vector registers. The rest is processed by four bytes
/// and then byte by byte.
#[inline]
pub fn apply_mask(payload: &mut [u8], key: [u8; 4]) -> [u8; 4] {
    let word = u32::from_ne_bytes(key);
    let wide = u64::from(word) | u64::from(word) << 32;

    let (words, tail) = payload.as_chunks_mut::<8>();
    xor_words(words, wide);
    // Whole words are a multiple of four bytes, so the key is not rotated here.
    let tail = match tail.split_first_chunk_mut::<4>() {
        Some((bytes, tail)) => {
            *bytes = (u32::from_ne_bytes(*bytes) ^ word).to_ne_bytes();
            tail
        }
        None => tail,
    };
    for (byte, key) in tail.iter_mut().zip(key) {
        *byte ^= key;
    }

    let mut next = key;
    next.rotate_left(tail.len());
    next
}

/// Fills a slice with unpredictable bytes from the system.
pub type RandomSource = fn(&mut [u8]);

/// The masking keys of a client: each one is unpredictable, and none is used twice (RFC 6455 section 10.3).
#[derive(Debug)]
pub(super) struct MaskKeys {
    fill: RandomSource,
    /// Keys that were not used are in `keys[next..]`.
    keys: [[u8; 4]; Self::BATCH],
    next: usize,
}

impl MaskKeys {
    /// The number of keys that are taken from the source at once.
    const BATCH: usize = 64;

    pub(super) fn new(fill: RandomSource) -> Self {
        Self {
            fill,
            keys: [[0; 4]; Self::BATCH],
            next: Self::BATCH,
        }
    }

    /// The key for the next frame.
    pub(super) fn next(&mut self) -> [u8; 4] {
        if self.next == Self::BATCH {
            (self.fill)(self.keys.as_flattened_mut());
            self.next = 0;
        }
        // A used key is forgotten, so that later memory does not show it.
        let key = std::mem::take(&mut self.keys[self.next]);
        self.next += 1;
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formula of RFC 6455 section 5.3: `j = i MOD 4`, `transformed[i] = original[i] XOR key[j]`.
    fn naive(payload: &[u8], key: [u8; 4]) -> Vec<u8> {
        payload
            .iter()
            .enumerate()
            .map(|(i, byte)| byte ^ key[i % 4])
            .collect()
    }

    #[test]
    fn every_length_and_alignment_agrees_with_the_rfc() {
        let key = [0x12, 0x9a, 0x3c, 0xe7];
        let bytes: Vec<u8> = (0..200u8)
            .map(|i| i.wrapping_mul(131).wrapping_add(7))
            .collect();
        for start in 0..17 {
            for end in start..bytes.len() {
                let mut masked = bytes.clone();
                apply_mask(&mut masked[start..end], key);
                assert_eq!(masked[start..end], naive(&bytes[start..end], key));
                assert_eq!(
                    masked[..start],
                    bytes[..start],
                    "bytes before are untouched"
                );
                assert_eq!(masked[end..], bytes[end..], "bytes after are untouched");
            }
        }
    }

    #[test]
    fn a_payload_in_pieces_continues_with_the_returned_key() {
        let key = [1, 2, 3, 4];
        let bytes: Vec<u8> = (0..97).collect();
        for cut in 0..bytes.len() {
            let mut pieces = bytes.clone();
            let (head, tail) = pieces.split_at_mut(cut);
            let next = apply_mask(head, key);
            apply_mask(tail, next);
            assert_eq!(pieces, naive(&bytes, key), "cut at {cut}");
        }
    }
}
