//! The screen of a terminal: what a terminal shows after it has got the output of a program, by the rules of xterm.js.
//!
//! ```text
//! output -> Follower (keeps what need not be laid out yet) -> parser -> Screen (two buffers of cells, modes)
//!                                                                           |
//!                                      snapshot (sequences that rebuild it), text, keys
//! ```
//!
//! No output can make it panic. Its memory is bounded by its size, the history and [`clusters`].

mod clusters;
mod follower;
mod grid;
mod keys;
mod parser;
mod snapshot;
mod style;
#[cfg(test)]
mod tests;
mod width;

pub(crate) use self::follower::{Follower, ScreenSettings};
pub(crate) use self::keys::{InvalidKey, KeyModes, key_bytes, paste_bytes};
pub(crate) use self::snapshot::{Format, View};

use self::clusters::Clusters;
use self::grid::{Buffer, Cell, Content, History};
use self::parser::{Csi, Params, Skipped, Unit, parse};
use self::style::Style;
use self::width::width;
use crate::sys::TerminalSize;

/// The largest screen. A larger one is cut off, because its memory grows with its size, which the program and clients choose.
const MAX_ROWS: usize = 500;
const MAX_COLS: usize = 1000;
const MAX_CELLS: usize = 200_000;

/// The maximum length of a title in bytes.
const MAX_TITLE: usize = 1000;

/// The mouse events that a program asks for: the private modes, or 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mouse {
    protocol: u32,
    encoding: u32,
}

/// The modes of a terminal.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a mode that a program turns on and off"
)]
struct Modes {
    application_cursor: bool,
    application_keypad: bool,
    bracketed_paste: bool,
    focus: bool,
    insert: bool,
    new_line: bool,
    origin: bool,
    reverse_wrap: bool,
    wrap: bool,
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
            wrap: true,
        }
    }
}

/// The character sets G0 to G3, by the characters that select them, and which one is in use.
#[derive(Clone, Copy, Debug)]
struct Charsets {
    sets: [u8; 4],
    level: usize,
    current: u8,
}

/// The character set without replacements.
const ASCII: u8 = b'B';

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
    fn designate(&mut self, level: usize, set: u8) {
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

    fn shift(&mut self, level: usize) {
        self.level = level;
        self.current = self.sets[level];
    }

    fn replace(&self, character: u8) -> char {
        match (self.current, character) {
            (b'0', b'`'..=b'~') => LINE_DRAWING[usize::from(character - b'`')],
            (b'A', b'#') => '£',
            _ => char::from(character),
        }
    }
}

/// What a terminal shows. [`Screen::feed`] takes output; the getters and [`snapshot`] show the result.
#[derive(Debug)]
pub(super) struct Screen {
    normal: Buffer,
    /// The alternate screen, while it is shown.
    alternate: Option<Buffer>,
    /// The cursor that the alternate screen has saved, which outlives it.
    alternate_saved: grid::Saved,
    style: Style,
    charsets: Charsets,
    modes: Modes,
    mouse: Mouse,
    is_cursor_hidden: bool,
    /// The parameter of DECSCUSR.
    cursor_style: u32,
    title: String,
    clusters: Clusters,
    skipped: Option<Skipped>,
    /// The width of the last character, unless something else has followed it.
    last_width: Option<u8>,
    history_rows: usize,
}

/// A size within the limits. A terminal has at least two columns, so that a wide character fits.
fn clipped(size: TerminalSize) -> (usize, usize) {
    let cols = usize::from(size.cols).clamp(2, MAX_COLS);
    let rows = usize::from(size.rows).clamp(1, MAX_ROWS.min(MAX_CELLS / cols));
    (rows, cols)
}

impl Screen {
    /// An empty screen, which keeps up to `history_rows` rows that scroll out of it.
    pub(super) fn new(size: TerminalSize, history_rows: usize) -> Self {
        let (rows, cols) = clipped(size);
        Self {
            normal: Buffer::new(rows, cols, Some(History::new(history_rows))),
            alternate: None,
            alternate_saved: grid::Saved::default(),
            style: Style::default(),
            charsets: Charsets::default(),
            modes: Modes::default(),
            mouse: Mouse::default(),
            is_cursor_hidden: false,
            cursor_style: 0,
            title: String::new(),
            clusters: Clusters::default(),
            skipped: None,
            last_width: None,
            history_rows,
        }
    }

    /// The memory in bytes.
    pub(super) fn held(&self) -> usize {
        let alternate = self.alternate.as_ref().map_or(0, Buffer::held);
        self.normal.held() + alternate + self.clusters.held() + self.title.capacity()
    }

    pub(super) fn resize(&mut self, size: TerminalSize) {
        let (rows, cols) = clipped(size);
        self.normal.resize(rows, cols);
        if let Some(alternate) = &mut self.alternate {
            alternate.resize(rows, cols);
        }
        self.last_width = None;
    }

    fn buffer(&self) -> &Buffer {
        self.alternate.as_ref().unwrap_or(&self.normal)
    }

    fn buffer_mut(&mut self) -> &mut Buffer {
        self.alternate.as_mut().unwrap_or(&mut self.normal)
    }

    /// Takes output. Returns the number of bytes that were taken; the rest is the beginning of a sequence or a character.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> usize {
        let mut skipped = self.skipped.take();
        let taken = parse(bytes, &mut skipped, |unit| self.apply(unit));
        self.skipped = skipped;
        taken
    }

    fn apply(&mut self, unit: Unit<'_>) {
        match unit {
            Unit::Ascii(text) => return self.print_ascii(text),
            Unit::Character(character) => return self.print(character),
            Unit::Control(control) => self.control(control),
            Unit::Escape { intermediate, last } => self.escape(intermediate, last),
            Unit::Csi(csi) => self.csi(csi),
            Unit::Osc(text) => self.osc(text),
            Unit::Nothing | Unit::Long => {}
        }
        self.last_width = None;
    }

    // Printing.

    fn print_ascii(&mut self, mut text: &[u8]) {
        if self.modes.insert || self.charsets.current != ASCII {
            for byte in text {
                self.print(self.charsets.replace(*byte));
            }
            return;
        }
        while !text.is_empty() {
            let style = self.style;
            let cols = self.buffer().cols;
            if self.buffer().x >= cols {
                // It wraps, or overwrites the last column.
                self.print(char::from(text[0]));
                text = &text[1..];
                continue;
            }
            let buffer = self.buffer_mut();
            let x = buffer.x;
            let (now, later) = text.split_at(text.len().min(cols - x));
            let row = buffer.row();
            row.split_before(x, style);
            for (cell, byte) in row.cells[x..].iter_mut().zip(now) {
                *cell = Cell {
                    content: Content::character(char::from(*byte), 1),
                    style,
                };
            }
            row.split_after(x + now.len(), style);
            buffer.x = x + now.len();
            self.last_width = Some(1);
            text = later;
        }
    }

    fn print(&mut self, character: char) {
        let style = self.style;
        let columns = width(character);
        if columns == 0
            && let Some(last) = self.last_width.filter(|last| *last > 0)
        {
            return self.join(character, last);
        }
        self.last_width = Some(columns);
        let wraps = self.modes.wrap;
        let inserts = self.modes.insert;
        let buffer = self.buffer_mut();
        let cols = buffer.cols;
        let columns = usize::from(columns);
        buffer.x = buffer.x.min(cols);
        let x = buffer.x;
        buffer.row().split_before(x, style);
        if buffer.x + columns > cols {
            if wraps {
                let row = buffer.row();
                row.cells[x..].fill(Cell::empty(style));
                buffer.x = 0;
                if buffer.y == buffer.bottom {
                    buffer.scroll(style.erased(), true);
                } else {
                    buffer.y = (buffer.y + 1).min(buffer.height() - 1);
                    buffer.row().is_wrapped = true;
                }
            } else {
                buffer.x = cols - 1;
                if columns == 2 {
                    return;
                }
            }
        }
        let x = buffer.x.min(cols - 1);
        let row = buffer.row();
        if inserts {
            row.insert(x, columns, style);
            row.split_before(cols, style);
        }
        row.cells[x] = Cell {
            content: Content::character(character, columns as u8),
            style,
        };
        if columns == 2 {
            row.cells[x + 1] = Cell {
                content: Content::SECOND_HALF,
                style,
            };
        }
        let next = x + columns.max(1);
        row.split_after(next, style);
        buffer.x = next;
    }

    /// Adds a character without a width to the one before.
    fn join(&mut self, character: char, last: u8) {
        let buffer = self.alternate.as_mut().unwrap_or(&mut self.normal);
        let at = buffer.x.saturating_sub(usize::from(last));
        let Some(content) = buffer.row().cells.get(at).map(|cell| cell.content) else {
            return;
        };
        if let Some(joined) = self.clusters.join(content, character) {
            self.buffer_mut().row().cells[at].content = joined;
        } else if self.clusters.needs_collection() {
            self.collect_clusters();
        }
    }

    /// Forgets the clusters that are no longer shown.
    fn collect_clusters(&mut self) {
        let buffers = [Some(&mut self.normal), self.alternate.as_mut()];
        let rows = buffers.into_iter().flatten().flat_map(|buffer| {
            let history = buffer.history.iter_mut();
            let history = history.flat_map(|history| history.rows.iter_mut());
            buffer.rows.iter_mut().chain(history)
        });
        let cells = rows.flat_map(|row| row.cells.iter_mut());
        self.clusters.collect(cells.map(|cell| &mut cell.content));
    }

    // Controls.

    fn control(&mut self, control: u8) {
        let new_line = self.modes.new_line;
        match control {
            0x08 => self.backspace(),
            b'\t' => {
                let buffer = self.buffer_mut();
                if buffer.x < buffer.cols {
                    buffer.x = buffer.next_tab(buffer.x);
                }
            }
            b'\n' | 0x0b | 0x0c => {
                if new_line {
                    self.buffer_mut().x = 0;
                }
                self.line_feed();
            }
            b'\r' => self.buffer_mut().x = 0,
            0x0e => self.charsets.shift(1),
            0x0f => self.charsets.shift(0),
            0x84 => self.index(),
            0x85 => self.next_line(),
            0x88 => self.set_tab(),
            _ => {}
        }
    }

    fn backspace(&mut self) {
        let reverse_wrap = self.modes.reverse_wrap;
        if !reverse_wrap {
            self.restrict();
            let buffer = self.buffer_mut();
            buffer.x = buffer.x.saturating_sub(1);
            return;
        }
        let buffer = self.buffer_mut();
        if buffer.x > 0 {
            buffer.x -= 1;
        } else if buffer.y > buffer.top && buffer.y <= buffer.bottom && buffer.row().is_wrapped {
            buffer.row().is_wrapped = false;
            buffer.y -= 1;
            buffer.x = buffer.cols - 1;
            let at = buffer.x;
            let last = buffer.row().cells[at];
            if last.content.width() > 0 && last.content.is_empty() {
                buffer.x -= 1;
            }
        }
        self.restrict();
    }

    fn line_feed(&mut self) {
        let style = self.style.erased();
        let buffer = self.buffer_mut();
        if buffer.y == buffer.bottom {
            buffer.scroll(style, false);
        } else if buffer.y + 1 < buffer.height() {
            buffer.y += 1;
            buffer.row().is_wrapped = false;
        }
        if buffer.x >= buffer.cols {
            buffer.x = buffer.cols - 1;
        }
    }

    fn index(&mut self) {
        self.restrict();
        let style = self.style.erased();
        let buffer = self.buffer_mut();
        if buffer.y == buffer.bottom {
            buffer.scroll(style, false);
        } else {
            buffer.y = (buffer.y + 1).min(buffer.height() - 1);
        }
        self.restrict();
    }

    fn reverse_index(&mut self) {
        self.restrict();
        let style = self.style.erased();
        let buffer = self.buffer_mut();
        if buffer.y == buffer.top {
            buffer.move_row(buffer.bottom, buffer.top, style);
        } else {
            buffer.y = buffer.y.saturating_sub(1);
            self.restrict();
        }
    }

    fn next_line(&mut self) {
        self.buffer_mut().x = 0;
        self.index();
    }

    fn set_tab(&mut self) {
        let buffer = self.buffer_mut();
        if let Some(tab) = buffer.tabs.get_mut(buffer.x) {
            *tab = true;
        }
    }

    /// Keeps the cursor on the screen, or with the origin mode in the scrolling region.
    fn restrict(&mut self) {
        let max = self.buffer().cols - 1;
        self.restrict_to(max);
    }

    fn restrict_to(&mut self, max: usize) {
        let origin = self.modes.origin;
        let buffer = self.buffer_mut();
        buffer.x = buffer.x.min(max);
        buffer.y = if origin {
            buffer.y.clamp(buffer.top, buffer.bottom)
        } else {
            buffer.y.min(buffer.height() - 1)
        };
    }

    fn set_cursor(&mut self, x: usize, y: usize) {
        let origin = self.modes.origin;
        let buffer = self.buffer_mut();
        buffer.x = x;
        buffer.y = if origin {
            buffer.top.saturating_add(y)
        } else {
            y
        };
        self.restrict();
    }

    /// Moves the cursor. With the origin mode, xterm.js counts rows from the top of the region once more.
    fn move_cursor(&mut self, x: isize, y: isize) {
        self.restrict();
        let buffer = self.buffer();
        let x = buffer.x.saturating_add_signed(x);
        let y = buffer.y.saturating_add_signed(y);
        self.set_cursor(x, y);
    }

    fn save_cursor(&mut self) {
        let (style, charset) = (self.style, self.charsets.current);
        let buffer = self.buffer_mut();
        buffer.saved = grid::Saved {
            x: buffer.x,
            y: buffer.base() + buffer.y,
            style,
            charset,
        };
    }

    fn restore_cursor(&mut self) {
        let buffer = self.buffer_mut();
        let saved = buffer.saved;
        buffer.x = saved.x;
        buffer.y = saved.y.saturating_sub(buffer.base());
        self.style = saved.style;
        self.charsets.current = saved.charset;
        self.restrict();
    }

    fn escape(&mut self, intermediate: u8, last: u8) {
        match (intermediate, last) {
            (0, b'7') => self.save_cursor(),
            (0, b'8') => self.restore_cursor(),
            (0, b'D') => self.index(),
            (0, b'E') => self.next_line(),
            (0, b'H') => self.set_tab(),
            (0, b'M') => self.reverse_index(),
            (0, b'=') => self.modes.application_keypad = true,
            (0, b'>') => self.modes.application_keypad = false,
            (0, b'c') => {
                let buffer = self.buffer();
                let size = TerminalSize {
                    rows: buffer.height() as u16,
                    cols: buffer.cols as u16,
                };
                let title = std::mem::take(&mut self.title);
                *self = Self::new(size, self.history_rows);
                self.title = title;
            }
            (0, b'n' | b'}') => self.charsets.shift(2),
            (0, b'o' | b'|') => self.charsets.shift(3),
            (0, b'~') => self.charsets.shift(1),
            (b'%', b'@' | b'G') => {
                self.charsets.shift(0);
                self.charsets.designate(0, ASCII);
            }
            (b'(', set) => self.charsets.designate(0, set),
            (b')' | b'-', set) => self.charsets.designate(1, set),
            (b'*' | b'.', set) => self.charsets.designate(2, set),
            (b'+', set) => self.charsets.designate(3, set),
            (b'#', b'8') => {
                let style = self.style;
                self.set_cursor(0, 0);
                let full = Cell {
                    content: Content::character('E', 1),
                    style,
                };
                let buffer = self.buffer_mut();
                let top = buffer.y;
                for row in buffer.rows.iter_mut().skip(top) {
                    row.cells.fill(full);
                    row.is_wrapped = false;
                }
            }
            _ => {}
        }
    }

    fn osc(&mut self, text: &[u8]) {
        let split = text.iter().position(|byte| *byte == b';');
        let Some((number, text)) = split.map(|at| (&text[..at], &text[at + 1..])) else {
            return;
        };
        if matches!(number, b"0" | b"2") {
            let mut title = String::from_utf8_lossy(text).into_owned();
            title.retain(|character| !character.is_control());
            title.truncate(title.floor_char_boundary(MAX_TITLE));
            title.shrink_to_fit();
            self.title = title;
        }
    }

    fn csi(&mut self, csi: &Csi) {
        let params = &csi.params;
        match (csi.prefix, csi.intermediate, csi.last) {
            (0, 0, b'm') => self.style.apply(params),
            (0 | b'?', 0, b'J') => self.erase_display(params.get(0)),
            (0 | b'?', 0, b'K') => self.erase_line(params.get(0)),
            (b'?', 0, b'h') => params.iter().for_each(|mode| self.set_private(mode, true)),
            (b'?', 0, b'l') => params.iter().for_each(|mode| self.set_private(mode, false)),
            (0, 0, b'h' | b'l') => {
                let on = csi.last == b'h';
                for mode in params.iter() {
                    match mode {
                        4 => self.modes.insert = on,
                        20 => self.modes.new_line = on,
                        _ => {}
                    }
                }
            }
            (0, b'!', b'p') => self.soft_reset(),
            (0, b' ', b'q') => self.cursor_style = params.get(0),
            (0, b' ', b'@') => self.shift_columns(0, params.count(0), false),
            (0, b' ', b'A') => self.shift_columns(0, params.count(0), true),
            (0, b'\'', b'}') => self.shift_columns(self.buffer().x, params.count(0), true),
            (0, b'\'', b'~') => self.shift_columns(self.buffer().x, params.count(0), false),
            (0, 0, last) => self.plain_csi(last, params),
            _ => {}
        }
    }

    /// Moves the cursor, and inserts and deletes cells and rows.
    fn plain_csi(&mut self, last: u8, params: &Params) {
        let count = params.count(0);
        let step = count as isize;
        let style = self.style.erased();
        let at_most = |limit: usize| count.min(limit);
        match last {
            b'A' | b'F' => {
                let buffer = self.buffer();
                let above = buffer.y.checked_sub(buffer.top);
                self.move_cursor(0, -above.map_or(step, |above| at_most(above) as isize));
                if last == b'F' {
                    self.buffer_mut().x = 0;
                }
            }
            b'B' | b'E' => {
                let buffer = self.buffer();
                let below = buffer.bottom.checked_sub(buffer.y);
                self.move_cursor(0, below.map_or(step, |below| at_most(below) as isize));
                if last == b'E' {
                    self.buffer_mut().x = 0;
                }
            }
            b'C' | b'a' => self.move_cursor(step, 0),
            b'D' => self.move_cursor(-step, 0),
            b'e' => self.move_cursor(0, step),
            b'G' | b'`' => self.set_cursor(count - 1, self.buffer().y),
            b'd' => self.set_cursor(self.buffer().x, count - 1),
            b'H' | b'f' => self.set_cursor(params.count(1) - 1, count - 1),
            b'I' | b'Z' => {
                let buffer = self.buffer_mut();
                for _ in 0..at_most(buffer.cols) {
                    if buffer.x < buffer.cols {
                        buffer.x = match last {
                            b'I' => buffer.next_tab(buffer.x),
                            _ => buffer.previous_tab(buffer.x),
                        };
                    }
                }
            }
            b'g' => {
                let buffer = self.buffer_mut();
                match params.get(0) {
                    0 if buffer.x < buffer.cols => buffer.tabs[buffer.x] = false,
                    3 => buffer.tabs.fill(false),
                    _ => {}
                }
            }
            b'@' | b'P' | b'X' => {
                self.restrict();
                let buffer = self.buffer_mut();
                let x = buffer.x;
                match last {
                    b'@' => buffer.row().insert(x, count, style),
                    b'P' => buffer.row().delete(x, count, style),
                    _ => buffer.row().erase(x, x.saturating_add(count), style),
                }
            }
            b'L' | b'M' => {
                self.restrict();
                let buffer = self.buffer_mut();
                let (y, top, bottom) = (buffer.y, buffer.top, buffer.bottom);
                if (top..=bottom).contains(&y) {
                    for _ in 0..at_most(bottom - y + 1) {
                        match last {
                            b'L' => buffer.move_row(bottom, y, style),
                            _ => buffer.move_row(y, bottom, style),
                        }
                    }
                    buffer.x = 0;
                }
            }
            b'S' | b'T' => {
                let buffer = self.buffer_mut();
                let (top, bottom) = (buffer.top, buffer.bottom);
                for _ in 0..at_most(bottom - top + 1) {
                    match last {
                        b'S' => buffer.move_row(top, bottom, style),
                        _ => buffer.move_row(bottom, top, Style::default()),
                    }
                }
            }
            b'b' => self.repeat(count),
            b'r' => self.set_region(params),
            b's' => self.save_cursor(),
            b'u' => self.restore_cursor(),
            _ => {}
        }
    }

    /// Prints the last character again.
    fn repeat(&mut self, count: usize) {
        let Some(last) = self.last_width else {
            return;
        };
        let buffer = self.buffer();
        let count = count.min(buffer.height() * buffer.cols);
        let at = buffer.x.saturating_sub(usize::from(last));
        let Some(cell) = buffer.rows[buffer.y].cells.get(at) else {
            return;
        };
        let text = self.clusters.text(cell.content);
        let text: Vec<char> = text.chars().collect();
        for _ in 0..count {
            text.iter().for_each(|character| self.print(*character));
        }
    }

    fn set_region(&mut self, params: &Params) {
        let height = self.buffer().height();
        let top = params.count(0);
        let bottom = match params.get(1) as usize {
            bottom if bottom == 0 || bottom > height => height,
            bottom => bottom,
        };
        if bottom > top {
            let buffer = self.buffer_mut();
            buffer.top = top - 1;
            buffer.bottom = bottom - 1;
            self.set_cursor(0, 0);
        }
    }

    fn shift_columns(&mut self, at: usize, count: usize, right: bool) {
        let style = self.style.erased();
        let buffer = self.buffer_mut();
        let region = buffer.top..=buffer.bottom;
        if !region.contains(&buffer.y) {
            return;
        }
        for row in buffer.rows.range_mut(region) {
            if right {
                row.insert(at, count, style);
            } else {
                row.delete(at, count, style);
            }
            row.is_wrapped = false;
        }
    }

    fn erase_display(&mut self, what: u32) {
        self.restrict_to(self.buffer().cols);
        let style = self.style.erased();
        let buffer = self.buffer_mut();
        let (x, y, cols) = (buffer.x, buffer.y, buffer.cols);
        match what {
            0 => {
                self.erase_line(0);
                let buffer = self.buffer_mut();
                (y + 1..buffer.height()).for_each(|row| buffer.clear_row(row, style));
            }
            1 => {
                buffer.row().erase(0, x + 1, style);
                buffer.row().is_wrapped = false;
                if x + 1 >= cols
                    && let Some(next) = buffer.rows.get_mut(y + 1)
                {
                    next.is_wrapped = false;
                }
                (0..y).for_each(|row| buffer.clear_row(row, style));
            }
            2 => (0..buffer.height()).for_each(|row| buffer.clear_row(row, style)),
            3 => {
                if let Some(history) = &mut buffer.history {
                    history.clear();
                }
            }
            _ => {}
        }
    }

    fn erase_line(&mut self, what: u32) {
        self.restrict_to(self.buffer().cols);
        let style = self.style.erased();
        let buffer = self.buffer_mut();
        let (x, cols) = (buffer.x, buffer.cols);
        let row = buffer.row();
        match what {
            0 => {
                row.erase(x, cols, style);
                row.is_wrapped &= x > 0;
            }
            1 => row.erase(0, x + 1, style),
            2 => {
                row.erase(0, cols, style);
                row.is_wrapped = false;
            }
            _ => {}
        }
    }

    // Modes.

    fn set_private(&mut self, mode: u32, on: bool) {
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

    fn soft_reset(&mut self) {
        self.is_cursor_hidden = false;
        self.style = Style::default();
        self.modes = Modes::default();
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
