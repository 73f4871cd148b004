//! What is done to every byte of a payload: masking (RFC 6455 section 5.3), and validation of UTF-8 that arrives in pieces
//! (RFC 3629, RFC 6455 section 8.1).

use super::ProtocolError;
#[cfg(feature = "server")]
use crate::sys::random_bytes;
use crate::sys::{ascii_text, xor_words};

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

// New keys come from the system.
#[cfg(feature = "server")]
crate::record::record!(MaskKeys {
    fill = random_bytes,
    keys = [[0; 4]; MaskKeys::BATCH],
    next = MaskKeys::BATCH,
});

/// Below this length, an ASCII check is faster than vector instructions.
const SHORT: usize = 64;

/// Validates complete text.
#[inline(always)]
pub(super) fn check_utf8(bytes: &[u8]) -> Result<&str, ProtocolError> {
    if bytes.len() < SHORT
        && let Some(text) = ascii_text(bytes)
    {
        return Ok(text);
    }
    check_any(bytes)
}

#[inline(never)]
fn check_any(bytes: &[u8]) -> Result<&str, ProtocolError> {
    simdutf8::basic::from_utf8(bytes).map_err(|_| ProtocolError::InvalidUtf8)
}

/// Validates text that arrives in pieces. Pieces may end inside a character. Invalid text is rejected at the first byte
/// that makes it invalid.
#[derive(Debug, Default)]
pub struct Utf8Stream {
    /// The first bytes of an incomplete character: `tail[..len]`, at most three.
    tail: [u8; 4],
    len: u8,
}

#[cfg(feature = "server")]
crate::record::record!(Utf8Stream as Vec<u16>, Self::begun, Self::of_begun);

#[cfg(feature = "server")]
impl Utf8Stream {
    /// The first bytes of an incomplete character.
    fn begun(&self) -> Vec<u16> {
        let bytes = &self.tail[..usize::from(self.len)];
        bytes.iter().map(|byte| u16::from(*byte)).collect()
    }

    fn of_begun(bytes: Vec<u16>) -> Option<Self> {
        let (mut stream, mut whole) = (Self::default(), String::new());
        for byte in bytes {
            stream.push(&[u8::try_from(byte).ok()?], &mut whole).ok()?;
        }
        whole.is_empty().then_some(stream)
    }
}

impl Utf8Stream {
    /// Validates the next piece and appends its complete characters to `text`.
    pub fn push(&mut self, mut piece: &[u8], text: &mut String) -> Result<(), ProtocolError> {
        while self.len > 0 {
            let Some((&byte, rest)) = piece.split_first() else {
                return Ok(());
            };
            piece = rest;
            self.complete(byte, text)?;
        }
        match simdutf8::compat::from_utf8(piece) {
            Ok(valid) => text.push_str(valid),
            Err(error) if error.error_len().is_some() => return Err(ProtocolError::InvalidUtf8),
            Err(error) => {
                let (valid, tail) = piece.split_at(error.valid_up_to());
                text.push_str(check_utf8(valid)?);
                self.tail[..tail.len()].copy_from_slice(tail);
                self.len = tail.len() as u8;
            }
        }
        Ok(())
    }

    /// Checks that the text does not end inside a character.
    pub fn finish(&self) -> Result<(), ProtocolError> {
        if self.len == 0 {
            Ok(())
        } else {
            Err(ProtocolError::InvalidUtf8)
        }
    }

    /// The number of bytes held of an incomplete character.
    pub fn pending(&self) -> usize {
        usize::from(self.len)
    }

    /// Adds one byte to the incomplete character.
    fn complete(&mut self, byte: u8, text: &mut String) -> Result<(), ProtocolError> {
        self.tail[usize::from(self.len)] = byte;
        self.len += 1;
        match std::str::from_utf8(&self.tail[..usize::from(self.len)]) {
            Ok(character) => {
                text.push_str(character);
                self.len = 0;
                Ok(())
            }
            // Four bytes are either a character or an error, so an incomplete one never fills the tail.
            Err(error) if error.error_len().is_none() => Ok(()),
            Err(_) => Err(ProtocolError::InvalidUtf8),
        }
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

    /// The length of the shortest prefix that no continuation can make valid. It tries every prefix.
    fn first_bad_prefix(bytes: &[u8]) -> Option<usize> {
        (1..=bytes.len()).find(
            |&n| matches!(std::str::from_utf8(&bytes[..n]), Err(e) if e.error_len().is_some()),
        )
    }

    #[test]
    fn invalid_text_is_rejected_at_the_first_invalid_byte() {
        let cases: [&[u8]; 12] = [
            b"plain",
            "κόσμε, \u{10ffff}\u{d7ff}\u{e000}".as_bytes(),
            b"\xc0\xaf",
            b"a\xe0\x9f\x80",
            b"a\xed\xa0\x80z",
            b"\xf0\x8f\xbf\xbf",
            b"\xf4\x90\x80\x80",
            b"\xf8\x88\x80\x80\x80",
            b"\x80",
            b"ok\xe2\x82(",
            b"\xff",
            b"\xce\xba\xce",
        ];
        for bytes in cases {
            let (mut stream, mut text) = (Utf8Stream::default(), String::new());
            let refused = bytes
                .iter()
                .position(|byte| stream.push(&[*byte], &mut text).is_err())
                .map(|at| at + 1);
            assert_eq!(refused, first_bad_prefix(bytes), "{bytes:?}");
            if refused.is_none() {
                assert_eq!(
                    stream.finish().is_ok(),
                    std::str::from_utf8(bytes).is_ok(),
                    "{bytes:?}"
                );
            }
        }
    }

    #[test]
    fn valid_text_may_be_split_anywhere() {
        let text = "aé€😀 ".repeat(3) + "\u{7ff}\u{800}\u{ffff}\u{10000}";
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let (mut stream, mut got) = (Utf8Stream::default(), String::new());
                let bytes = text.as_bytes();
                for piece in [&bytes[..first], &bytes[first..second], &bytes[second..]] {
                    stream.push(piece, &mut got).expect("valid text");
                }
                stream.finish().expect("whole text");
                assert_eq!(got, text);
            }
        }
    }
}
