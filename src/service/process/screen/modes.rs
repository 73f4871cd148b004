//! The modes and character sets of a terminal.

use super::Screen;
use super::grid::{self, Buffer};
use super::style::Style;

/// The mouse events that a program asks for: the private modes, or 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mouse {
    pub(super) protocol: u32,
    pub(super) encoding: u32,
}

/// The modes of a terminal.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a mode that a program turns on and off"
)]
pub(super) struct Modes {
    pub(super) application_cursor: bool,
    pub(super) application_keypad: bool,
    pub(super) bracketed_paste: bool,
    pub(super) focus: bool,
    pub(super) insert: bool,
    pub(super) new_line: bool,
    pub(super) origin: bool,
    pub(super) reverse_wrap: bool,
    /// The program is writing a frame, which the terminal shows when it is whole.
    pub(super) synchronized: bool,
    pub(super) wrap: bool,
}

impl Default for Modes {
    fn default() -> Self {
        Self {
            application_cursor: false,
            application_keypad: false,
            bracketed_paste: false,
            focus: false,
            insert: false,
            new_line: false,
            origin: false,
            reverse_wrap: false,
            synchronized: false,
            wrap: true,
        }
    }
}

impl Modes {
    /// Resets all but the new line mode, as xterm.js does.
    fn reset(&mut self) {
        *self = Self {
            new_line: self.new_line,
            ..Self::default()
        };
    }
}

/// The character sets G0 to G3, by the characters that select them, and which one is in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charsets {
    pub(super) sets: [u8; 4],
    pub(super) level: usize,
    pub(super) current: u8,
}

/// The character set without replacements.
pub(super) const ASCII: u8 = b'B';

impl Default for Charsets {
    fn default() -> Self {
        Self {
            sets: [ASCII; 4],
            level: 0,
            current: ASCII,
        }
    }
}

/// The line-drawing characters in the place of `` ` `` to `~`.
const LINE_DRAWING: [char; 31] = [
    '◆', '▒', '␉', '␌', '␍', '␊', '°', '±', '␤', '␋', '┘', '┐', '┌', '└', '┼', '⎺', '⎻', '─', '⎼',
    '⎽', '├', '┤', '┴', '┬', '│', '≤', '≥', 'π', '≠', '£', '·',
];

impl Charsets {
    pub(super) fn designate(&mut self, level: usize, set: u8) {
        // Sets of other languages differ in a few characters, and no program uses them any more.
        let set = if matches!(set, b'0' | b'A') {
            set
        } else {
            ASCII
        };
        self.sets[level] = set;
        if level == self.level {
            self.current = set;
        }
    }

    pub(super) fn shift(&mut self, level: usize) {
        self.level = level;
        self.current = self.sets[level];
    }

    pub(super) fn replace(&self, character: u8) -> char {
        match (self.current, character) {
            (b'0', b'`'..=b'~') => LINE_DRAWING[usize::from(character - b'`')],
            (b'A', b'#') => '£',
            _ => char::from(character),
        }
    }
}

impl Screen {
    pub(super) fn set_private(&mut self, mode: u32, on: bool) {
        match mode {
            1 => self.modes.application_cursor = on,
            2 if on => {
                (0..4).for_each(|level| self.charsets.designate(level, ASCII));
            }
            6 => {
                self.modes.origin = on;
                self.set_cursor(0, 0);
            }
            7 => self.modes.wrap = on,
            12 => self.blink = Some(on),
            25 => self.is_cursor_hidden = !on,
            45 => self.modes.reverse_wrap = on,
            66 => self.modes.application_keypad = on,
            9 | 1000 | 1002 | 1003 => self.mouse.protocol = if on { mode } else { 0 },
            1004 => self.modes.focus = on,
            1006 | 1016 => self.mouse.encoding = if on { mode } else { 0 },
            1048 if on => self.save_cursor(),
            1048 => self.restore_cursor(),
            47 | 1047 | 1049 => self.show_alternate(on, mode == 1049),
            2004 => self.modes.bracketed_paste = on,
            2026 => self.modes.synchronized = on,
            _ => {}
        }
    }

    fn show_alternate(&mut self, on: bool, with_cursor: bool) {
        if on {
            if with_cursor {
                self.save_cursor();
            }
            if self.alternate.is_none() {
                let normal = &self.normal;
                let mut buffer = Buffer::new(normal.height(), normal.cols, None);
                let style = self.style.erased();
                (0..buffer.height()).for_each(|row| buffer.clear_row(row, style));
                (buffer.x, buffer.y) = (normal.x, normal.y);
                buffer.saved = self.alternate_saved;
                self.alternate = Some(buffer);
            }
            return;
        }
        if let Some(buffer) = self.alternate.take() {
            self.alternate_saved = buffer.saved;
            self.normal.x = buffer.x.min(self.normal.cols);
            self.normal.y = buffer.y.min(self.normal.height() - 1);
        }
        if with_cursor {
            self.restore_cursor();
        }
    }

    /// Resets the terminal. As in xterm.js, the title stays, and a hidden cursor stays hidden. The memory is used again, because two bytes of output cause this.
    pub(super) fn reset(&mut self) {
        self.alternate = None;
        self.alternate_saved = grid::Saved::default();
        self.normal.reset();
        self.style = Style::default();
        self.charsets = Charsets::default();
        self.modes.reset();
        self.mouse = Mouse::default();
        self.cursor_style = 0;
        self.clusters.clear();
    }

    pub(super) fn soft_reset(&mut self) {
        self.is_cursor_hidden = false;
        self.cursor_style = 0;
        self.style = Style::default();
        self.modes.reset();
        self.charsets = Charsets::default();
        let buffer = self.buffer_mut();
        buffer.top = 0;
        buffer.bottom = buffer.height() - 1;
        buffer.saved = grid::Saved {
            y: buffer.base(),
            ..grid::Saved::default()
        };
    }
}
