//! Standard output: writes the program's output with backpressure, and follows it.

use std::io::{self, IsTerminal};

use super::screen::Screen;
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
    writer: Writer,
    screen: Screen,
    is_terminal: bool,
    /// The offset of the next byte of the program's output.
    offset: u64,
    is_full: bool,
}

impl Display {
    /// Writes to standard output. `offset` is the offset of the first byte.
    pub(super) fn watch(ctx: &mut Context, offset: u64) -> io::Result<Self> {
        let fd = NonblockingFd::shared(io::stdout())?;
        Ok(Self {
            writer: Writer::new(ctx, fd)?,
            screen: Screen::default(),
            is_terminal: io::stdout().is_terminal(),
            offset,
            is_full: false,
        })
    }

    pub(super) fn is(&self, source: SourceId) -> bool {
        self.writer.is(source)
    }

    pub(super) fn is_timer(&self, timer: TimerId) -> bool {
        self.writer.is_timer(timer)
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

    /// Writes as much as standard output takes.
    pub(super) fn write(&mut self) -> PipeState {
        self.writer.write()
    }

    /// Whether everything is written.
    pub(super) fn is_written(&self) -> bool {
        self.writer.queued() == 0
    }

    /// Whether the server's messages must wait.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Whether the server's messages must wait, if that has changed.
    pub(super) fn changed_fullness(&mut self) -> Option<bool> {
        let queued = self.writer.queued();
        let is_full = if self.is_full {
            queued > LOW
        } else {
            queued > HIGH
        };
        let has_changed = std::mem::replace(&mut self.is_full, is_full) != is_full;
        has_changed.then_some(is_full)
    }
}
