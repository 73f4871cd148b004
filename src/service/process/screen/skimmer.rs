//! Looks for output that has nothing but text, line ends and colors, at a fraction of the cost of laying it out.

use crate::service::process::scrollback::Scrollback;
use crate::sys::{bytes_between, in_wide_registers};

const ESC: u8 = 0x1b;

/// Tells whether output is plain: text, line ends, tabs, and sequences for colors and attributes or that erase in a line.
#[derive(Debug)]
pub(super) struct Skimmer {
    /// The output before this offset was looked at. It stays where it is once output is not plain.
    at: u64,
    /// Whether the output that is not laid out is plain so far.
    pub(super) is_plain: bool,
    /// Whether it has any color or attribute.
    pub(super) has_styles: bool,
    state: State,
}

/// What precedes the next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    Escape,
    /// `ESC [` and any number of parameters.
    Csi,
    /// The first byte of the characters U+0080 to U+00BF, some of which are control characters.
    Latin,
}

impl Default for Skimmer {
    fn default() -> Self {
        Self {
            at: 0,
            is_plain: true,
            has_styles: false,
            state: State::Text,
        }
    }
}

impl Skimmer {
    /// Starts again after all output before `at` was laid out. `is_at_unit` is false if the beginning of a sequence is left.
    pub(super) fn restart(&mut self, at: u64, is_at_unit: bool) {
        self.at = at;
        self.is_plain = is_at_unit;
        self.has_styles = false;
        self.state = State::Text;
    }

    /// Looks at new output.
    pub(super) fn skim(&mut self, output: &Scrollback) {
        while self.is_plain && self.at < output.end() {
            let (_, piece) = output.piece(self.at, usize::MAX);
            self.at += piece.len() as u64;
            self.is_plain = in_wide_registers(|| self.take(piece));
        }
    }

    /// Returns whether the bytes are plain after those before.
    #[inline(always)]
    fn take(&mut self, mut bytes: &[u8]) -> bool {
        while let Some((block, rest)) = bytes.split_first_chunk() {
            let is_rare = block.iter().fold(false, |any, byte| any | is_rare(*byte));
            let is_plain = if is_rare || self.state == State::Latin {
                self.take_each(block)
            } else {
                self.take_block(block)
            };
            if !is_plain {
                return false;
            }
            bytes = rest;
        }
        self.take_each(bytes)
    }

    /// The same as [`take_each`](Self::take_each) for a block without rare bytes. Each step is one for all sequences of the block:
    /// bit N of a number belongs to byte N.
    #[inline(always)]
    fn take_block(&mut self, block: &[u8; 64]) -> bool {
        let escapes = bytes_between(block, ESC, ESC);
        if escapes == 0 && self.state == State::Text {
            return true;
        }
        let after_escape = escapes << 1 | u64::from(self.state == State::Escape);
        if after_escape & !bytes_between(block, b'[', b'[') != 0 {
            return false;
        }
        let starts = after_escape << 1 | u64::from(self.state == State::Csi);
        // A sum carries each start over its parameters to the byte after them.
        let params = bytes_between(block, b'0', b';');
        let (sum, is_open) = starts.overflowing_add(params);
        let ends = sum & !params;
        let styles = ends & bytes_between(block, b'm', b'm');
        self.has_styles |= styles != 0;
        let others = ends & !styles;
        if others != 0 && others & !bytes_between(block, b'K', b'K') != 0 {
            return false;
        }
        self.state = if escapes >> 63 != 0 {
            State::Escape
        } else if is_open || after_escape >> 63 != 0 {
            State::Csi
        } else {
            State::Text
        };
        true
    }

    fn take_each(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            self.has_styles |= self.state == State::Csi && *byte == b'm';
            self.state = match (self.state, *byte) {
                (State::Text, ESC) => State::Escape,
                (State::Text, 0xc2) => State::Latin,
                (State::Text, byte) if !is_rare(byte) => State::Text,
                (State::Escape, b'[') | (State::Csi, b'0'..=b';') => State::Csi,
                (State::Csi, b'm' | b'K') | (State::Latin, 0xa0..) => State::Text,
                _ => return false,
            };
        }
        true
    }
}

/// Whether a byte is neither plain text nor the beginning of a sequence.
#[inline(always)]
fn is_rare(byte: u8) -> bool {
    (byte < 0x20) & !matches!(byte, b'\t'..=b'\r' | ESC) | (byte == 0xc2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The shortcut for blocks finds the same as a look at each byte, wherever a sequence is divided.
    #[test]
    fn blocks_are_as_plain_as_their_bytes() {
        const PIECES: &[&str] = &[
            "some text",
            "\r\n",
            "\t",
            "\x1b[m",
            "\x1b[31m",
            "\x1b[1;38:5:200;4m",
            "\x1b[K",
            "\x1b[1K",
            "0;1",
            "[m",
            "m",
            "é",
            "°",
            "漢",
            "\x7f",
            "            ",
        ];
        const OTHERS: &[&str] = &[
            "\x1b",
            "\x1b[H",
            "\x1b[?1h",
            "\x1bM",
            "\x1b[",
            "\x08",
            "\x0e",
            "\u{9b}",
            "\x1b[\n",
            "\x1b[1\x1b[m",
            "\x1b\x1b",
            "\x1b[ m",
        ];
        let mut random = Random::new(37);
        let mut plain = 0;
        for _ in 0..20_000 {
            let mut bytes = Vec::new();
            while bytes.len() < 300 {
                let pieces = if random.below(100) == 0 {
                    OTHERS
                } else {
                    PIECES
                };
                bytes.extend_from_slice(pieces[random.below(pieces.len())].as_bytes());
            }
            let (mut one, mut each) = (Skimmer::default(), Skimmer::default());
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (piece, later) = rest.split_at(1 + random.below(rest.len()));
                let is_plain = one.take(piece);
                assert_eq!(
                    is_plain,
                    each.take_each(piece),
                    "{:?}",
                    String::from_utf8_lossy(&bytes)
                );
                if !is_plain {
                    break;
                }
                assert_eq!((one.state, one.has_styles), (each.state, each.has_styles));
                rest = later;
            }
            plain += usize::from(rest.is_empty());
        }
        assert!((4000..16_000).contains(&plain), "{plain}");
    }
}
