//! Standard output: writes the program's output with backpressure, follows it to know whether a full-screen program is
//! running, and formats the messages to the user.
//!
//! A full-screen program switches the terminal to its alternate screen (DEC private modes 47, 1047 and 1049) and back.

use std::io::{self, IsTerminal};

use crate::service::pipe::{PipeState, Writer};
use crate::sys::NonblockingFd;
use crate::{Context, SourceId, TimerId};

/// The server's messages are held while this much output waits for standard output.
const HIGH: usize = 64 << 10;

/// They continue when this much is left.
const LOW: usize = 16 << 10;

/// Leaves the alternate screen, and turns off what full-screen programs turn on: colors, a hidden cursor, the
/// application's keypad and cursor keys, reports of the mouse, of the focus and of pastes.
const RESET: &[u8] = b"\x1b[m\x1b[?25h\x1b[?1l\x1b>\x1b[?1000;1002;1003;1004;1006;2004l\x1b[?1049l";

/// The program's output on standard output.
#[derive(Debug)]
pub(super) struct Display {
    pub(super) writer: Writer,
    /// The program's standard error, if it has any of its own.
    pub(super) errors: Option<Writer>,
    pub(super) screen: Screen,
    pub(super) is_terminal: bool,
    /// The offset of the next byte of the program's output.
    pub(super) offset: u64,
    pub(super) is_full: bool,
}

impl Display {
    /// Writes to standard output. `offset` is the offset of the first byte.
    pub(super) fn watch(ctx: &mut Context, offset: u64) -> io::Result<Self> {
        let fd = NonblockingFd::shared(io::stdout())?;
        Ok(Self {
            writer: Writer::new(ctx, fd)?,
            errors: None,
            screen: Screen::default(),
            is_terminal: io::stdout().is_terminal(),
            offset,
            is_full: false,
        })
    }

    pub(super) fn is(&self, source: SourceId) -> bool {
        self.writers().any(|writer| writer.is(source))
    }

    pub(super) fn is_timer(&self, timer: TimerId) -> bool {
        self.writers().any(|writer| writer.is_timer(timer))
    }

    fn writers(&self) -> impl Iterator<Item = &Writer> {
        [&self.writer].into_iter().chain(&self.errors)
    }

    /// The number of bytes that wait.
    fn queued(&self) -> usize {
        self.writers().map(Writer::queued).sum()
    }

    /// The offset of the next byte of the program's output.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Skips output that is no longer kept.
    pub(super) fn skip_to(&mut self, offset: u64) {
        self.offset = self.offset.max(offset);
    }

    /// Whether a full-screen program is shown.
    pub(super) fn is_full_screen(&self) -> bool {
        self.is_terminal && self.screen.is_alternate()
    }

    /// Shows a piece of output.
    pub(super) fn show(&mut self, ctx: &mut Context, output: &[u8]) {
        self.offset += output.len() as u64;
        self.screen.follow(output);
        self.append(ctx, output);
    }

    /// Shows the whole screen. Output from `offset` on follows.
    pub(super) fn show_screen(&mut self, ctx: &mut Context, data: &str, offset: u64) {
        self.offset = offset;
        self.screen.follow(data.as_bytes());
        self.append(ctx, data.as_bytes());
    }

    /// Writes a piece of the program's standard error.
    pub(super) fn show_error(&mut self, ctx: &mut Context, output: &[u8]) -> io::Result<()> {
        self.offset += output.len() as u64;
        let errors = match &mut self.errors {
            Some(errors) => errors,
            None => {
                let fd = NonblockingFd::shared(io::stderr())?;
                self.errors.insert(Writer::new(ctx, fd)?)
            }
        };
        errors.append(ctx, |queue| queue.extend_from_slice(output));
        Ok(())
    }

    /// Leaves a full-screen program that goes on without this client.
    pub(super) fn leave_full_screen(&mut self, ctx: &mut Context) {
        if self.is_full_screen() {
            self.screen = Screen::default();
            self.append(ctx, RESET);
        }
    }

    fn append(&mut self, ctx: &mut Context, bytes: &[u8]) {
        self.writer
            .append(ctx, |queue| queue.extend_from_slice(bytes));
    }

    /// Writes as much as standard output and standard error take.
    pub(super) fn write(&mut self) -> PipeState {
        if let Some(errors) = &mut self.errors {
            // If standard error is closed, its output is dropped, and the program goes on.
            errors.write();
        }
        self.writer.write()
    }

    /// Whether everything is written.
    pub(super) fn is_written(&self) -> bool {
        self.queued() == 0
    }

    /// Whether the server's messages must wait.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Whether the server's messages must wait, if that has changed.
    pub(super) fn changed_fullness(&mut self) -> Option<bool> {
        let queued = self.queued();
        let is_full = if self.is_full {
            queued > LOW
        } else {
            queued > HIGH
        };
        let has_changed = std::mem::replace(&mut self.is_full, is_full) != is_full;
        has_changed.then_some(is_full)
    }
}

/// The modes that switch to the alternate screen.
const ALTERNATE: [u32; 3] = [47, 1047, 1049];

const ESC: u8 = 0x1b;

/// The state of the terminal's screen.
#[derive(Debug, Default)]
pub(super) struct Screen {
    is_alternate: bool,
    state: State,
    /// The value of the number read so far.
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
    fn is_alternate(&self) -> bool {
        self.is_alternate
    }

    /// Follows a piece of output.
    fn follow(&mut self, mut output: &[u8]) {
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

/// Formats a message as lines of their own. The terminal is in raw mode if the client is interactive, so the message begins on
/// a new line.
pub(super) fn notice_lines(is_interactive: bool, texts: &[String]) -> String {
    let mut lines = String::new();
    if is_interactive {
        lines.push('\n');
    }
    for text in texts {
        lines.push_str(&format!("outrigger: {text}\n"));
    }
    lines
}

/// Formats a message for a terminal that shows a full-screen program: it covers the last row, and the cursor returns to
/// where it was.
pub(super) fn notice_over_full_screen(texts: &[String]) -> String {
    format!(
        "\x1b7\x1b[999;1H\x1b[0;7moutrigger: {}\x1b[m\x1b[K\x1b8",
        texts.join("; ")
    )
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
