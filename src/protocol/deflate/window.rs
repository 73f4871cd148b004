//! The window of a decompressor: the last bytes of its output, to which a later message may refer. Another process needs them to go on.
//!
//! The decompressor does not hand its window out, but a block may copy from it. So it is read by decompressing a block that repeats the
//! whole window, after which the window ends as it did before.

use zlib_rs::Inflate;

use super::codec::EMPTY_BLOCK;
use super::zlib::decompress;
use crate::protocol::ProtocolError;

/// The maximum length of a window (RFC 1951 section 2).
const MAX_WINDOW: usize = 1 << 15;

/// The longest copy, and its length code (RFC 1951 section 3.2.5).
const LONGEST: usize = 258;
const LONGEST_CODE: u32 = 285;

/// The lengths of copies whose codes have no extra bits: 3 to 10, whose codes begin with 257.
const SHORTEST: usize = 3;
const LONGEST_PLAIN: usize = 10;

/// Bits of a compressed block, of which the lowest bit of each byte is the first.
#[derive(Default)]
struct BitWriter {
    bytes: Vec<u8>,
    /// The number of bits in the last byte; 8 if it is full.
    used: u32,
}

impl BitWriter {
    /// Writes the lowest `count` bits, the lowest first.
    fn number(&mut self, bits: u32, count: u32) {
        for at in 0..count {
            if self.bytes.is_empty() || self.used == 8 {
                self.bytes.push(0);
                self.used = 0;
            }
            if let Some(last) = self.bytes.last_mut() {
                *last |= ((bits >> at & 1) as u8) << self.used;
            }
            self.used += 1;
        }
    }

    /// Writes a Huffman code, the highest bit first.
    fn code(&mut self, code: u32, count: u32) {
        for at in (0..count).rev() {
            self.number(code >> at & 1, 1);
        }
    }

    /// Writes a code for a literal or a length of at least 256, with the fixed codes (RFC 1951 section 3.2.6).
    fn length_code(&mut self, code: u32) {
        match code {
            ..280 => self.code(code - 256, 7),
            _ => self.code(0b1100_0000 + code - 280, 8),
        }
    }

    /// Writes a distance with the fixed Huffman codes (RFC 1951 section 3.2.6).
    fn distance(&mut self, distance: usize) {
        let rest = distance as u32 - 1;
        if rest < 4 {
            return self.code(rest, 5);
        }
        let extra = rest.ilog2() - 1;
        self.code(2 * (extra + 1) + (rest >> extra & 1), 5);
        self.number(rest & ((1 << extra) - 1), extra);
    }

    /// Writes a copy of this length.
    fn copy(&mut self, length: usize, distance: usize) {
        match length {
            LONGEST => self.length_code(LONGEST_CODE),
            _ => self.length_code(257 + (length - SHORTEST) as u32),
        }
        self.distance(distance);
    }
}

/// A block that repeats the last `count` bytes, and an empty block after it, up to the end of a byte.
fn repeat(count: usize) -> Vec<u8> {
    let mut bits = BitWriter::default();
    // Not the last block, and the fixed codes.
    bits.number(0b010, 3);
    // Few bytes are repeated until they are long enough for a copy. Repeated as a whole, they stay the last bytes.
    let mut left = if count < SHORTEST { 3 * count } else { count };
    while left > 0 {
        let length = match left {
            _ if left >= LONGEST + SHORTEST || left == LONGEST => LONGEST,
            // The rest is long enough for another copy.
            _ if left > LONGEST_PLAIN + SHORTEST || left == LONGEST_PLAIN => LONGEST_PLAIN,
            _ if left > LONGEST_PLAIN => left - SHORTEST,
            _ => left,
        };
        bits.copy(length, count);
        left -= length;
    }
    bits.length_code(256);
    // The empty block begins with three bits, and the rest of the byte is skipped.
    bits.number(0, 3);
    bits.bytes.extend_from_slice(&EMPTY_BLOCK[1..]);
    bits.bytes
}

/// Reads the window of a decompressor that is between two messages.
///
/// # Errors
///
/// The decompressor fails, which is not expected.
pub(super) fn read(inflate: &mut Inflate, piece: &mut [u8]) -> Result<Vec<u8>, ProtocolError> {
    let count = MAX_WINDOW.min(usize::try_from(inflate.total_out()).unwrap_or(MAX_WINDOW));
    let mut window = Vec::with_capacity(count + SHORTEST);
    if count > 0 {
        run(inflate, &repeat(count), piece, &mut |bytes| {
            window.extend_from_slice(bytes);
        })?;
        window.truncate(count);
    }
    Ok(window)
}

/// Gives a new decompressor a window.
///
/// # Errors
///
/// The decompressor fails, which is not expected.
pub(super) fn fill(
    inflate: &mut Inflate,
    window: &[u8],
    piece: &mut [u8],
) -> Result<(), ProtocolError> {
    let length = u16::try_from(window.len()).map_err(|_| ProtocolError::InvalidCompression)?;
    // A stored block that is not the last one (RFC 1951 section 3.2.4).
    let mut block = vec![0];
    block.extend(length.to_le_bytes());
    block.extend((!length).to_le_bytes());
    block.extend_from_slice(window);
    run(inflate, &block, piece, &mut |_| {})
}

fn run(
    inflate: &mut Inflate,
    mut block: &[u8],
    piece: &mut [u8],
    sink: &mut dyn FnMut(&[u8]),
) -> Result<(), ProtocolError> {
    let mut pass = |bytes: &[u8]| {
        sink(bytes);
        Ok(())
    };
    decompress(inflate, &mut block, piece, usize::MAX, &mut pass).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::deflate::offer::MAX_WINDOW_BITS;

    #[test]
    fn a_window_of_any_length_is_read_and_filled_again() {
        let text: Vec<u8> = (0..70_000u32)
            .map(|at| (at.wrapping_mul(at) / 7) as u8)
            .collect();
        let lengths = (0..600).chain([1000, 32_766, 32_767, 32_768, 32_769, 40_000, 65_535]);
        let mut piece = vec![0; 16 << 10];
        for length in lengths {
            let mut inflate = Inflate::new(false, MAX_WINDOW_BITS);
            fill(&mut inflate, &text[..length], &mut piece).expect("a stored block");
            let window = &text[length.saturating_sub(MAX_WINDOW)..length];
            let first = read(&mut inflate, &mut piece).expect("a copy");
            assert!(first == window, "{length}: {} bytes", first.len());
            // What was read is a part of the output, so a short window has become longer at its other end.
            let second = read(&mut inflate, &mut piece).expect("a copy");
            assert!(second.ends_with(window), "{length}");
        }
    }
}
