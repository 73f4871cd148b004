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
mod controls;
mod follower;
mod grid;
mod keys;
mod modes;
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
use self::modes::{ASCII, Charsets, Modes, Mouse};
use self::parser::{Skipped, Unit, parse};
use self::style::Style;
use self::width::width;
use crate::sys::TerminalSize;

/// The largest screen. A larger one is cut off, because its memory grows with its size, which the program and clients choose.
const MAX_ROWS: usize = 500;
const MAX_COLS: usize = 1000;
const MAX_CELLS: usize = 200_000;

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
}
