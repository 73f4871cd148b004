//! Follows a program's output to know whether a full-screen program is running. There is no I/O in here.
//!
//! A full-screen program switches the terminal to its alternate screen (DEC private modes 47, 1047 and 1049) and back.

/// The modes that switch to the alternate screen.
const ALTERNATE: [u32; 3] = [47, 1047, 1049];

const ESC: u8 = 0x1b;

/// The state of the terminal's screen.
#[derive(Debug, Default)]
pub(super) struct Screen {
    is_alternate: bool,
    state: State,
    /// The number that is being read.
    number: u32,
    /// Whether one of the numbers of the sequence names the alternate screen.
    matches: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After `ESC [`.
    Bracket,
    /// After `ESC [ ?`.
    Numbers,
}

impl Screen {
    /// Whether the alternate screen is shown.
    pub(super) fn is_alternate(&self) -> bool {
        self.is_alternate
    }

    /// Follows a piece of output.
    pub(super) fn follow(&mut self, mut output: &[u8]) {
        while let Some(&byte) = output.first() {
            // Most output is text.
            if self.state == State::Text && byte != ESC {
                let next = output.iter().position(|byte| *byte == ESC);
                output = next.map_or(&[], |next| &output[next..]);
                continue;
            }
            self.take(byte);
            output = &output[1..];
        }
    }

    fn take(&mut self, byte: u8) {
        self.state = match (self.state, byte) {
            (_, ESC) => State::Escape,
            (State::Escape, b'[') => State::Bracket,
            (State::Escape, b'c') => {
                // A full reset.
                self.is_alternate = false;
                State::Text
            }
            (State::Bracket, b'?') => {
                self.number = 0;
                self.matches = false;
                State::Numbers
            }
            (State::Numbers, b'0'..=b'9') => {
                let digit = u32::from(byte - b'0');
                self.number = self.number.saturating_mul(10).saturating_add(digit);
                State::Numbers
            }
            (State::Numbers, b';') => {
                self.end_number();
                State::Numbers
            }
            (State::Numbers, b'h' | b'l') => {
                self.end_number();
                if self.matches {
                    self.is_alternate = byte == b'h';
                }
                State::Text
            }
            _ => State::Text,
        };
    }

    fn end_number(&mut self) {
        self.matches |= ALTERNATE.contains(&self.number);
        self.number = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pieces: &[&[u8]]) -> bool {
        let mut screen = Screen::default();
        for piece in pieces {
            screen.follow(piece);
        }
        screen.is_alternate()
    }

    #[test]
    fn the_alternate_screen_is_seen_however_the_output_is_divided() {
        for (output, is_alternate) in [
            (&b"plain text"[..], false),
            (b"\x1b[?1049h\x1b[22;0;0t\x1b[1;24r", true),
            (b"\x1b[?1049h vim \x1b[?1049l", false),
            (b"\x1b[?47h", true),
            (b"\x1b[?1;1047;7h", true),
            (b"\x1b[?1049h\x1bc", false),
            (b"\x1b[?25h", false),
            (b"\x1b[?10490h\x1b[1049h[?1049h", false),
            (b"\x1b[?1049h\x1b[?25l\x1b[?1l", true),
            (b"\x1b[?99999999999999999999h\x1b[?1049\x1b[0m", false),
            (b"\x1b\x1b[?1049h", true),
        ] {
            let whole = after(&[output]);
            assert_eq!(whole, is_alternate, "{output:?}");
            for cut in 0..output.len() {
                let (first, second) = output.split_at(cut);
                assert_eq!(after(&[first, second]), whole, "{output:?} at {cut}");
            }
        }
    }
}
