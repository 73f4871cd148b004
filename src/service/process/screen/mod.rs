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
#[cfg(any(test, fuzzing))]
mod dump;
mod follower;
mod grapheme_table;
mod graphemes;
mod grid;
mod history;
mod keys;
mod modes;
mod parser;
mod row;
mod skimmer;
mod snapshot;
mod style;
#[cfg(test)]
mod tests;

pub(crate) use self::follower::{Follower, ScreenSettings};
pub(crate) use self::keys::{InvalidKey, KeyModes, key_bytes, paste_bytes};
pub(crate) use self::snapshot::{Format, View};

use self::clusters::Clusters;
use self::graphemes::{Last, Step};
use self::grid::Buffer;
use self::history::History;
use self::modes::{ASCII, Charsets, Modes, Mouse};
use self::parser::{Perform, Skipped, Unit, parse};
use self::row::{Cell, Content};
use self::style::Style;
use crate::sys::TerminalSize;

/// The largest screen. A larger one is cut off, because its memory grows with its size, which the program and clients choose.
const MAX_ROWS: usize = 500;
const MAX_COLS: usize = 1000;
const MAX_CELLS: usize = 200_000;

/// What a terminal shows. [`Screen::feed`] takes output; the getters and [`snapshot`] show the result.
#[derive(Debug)]
pub(crate) struct Screen {
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
    /// Whether the cursor blinks, if a program has chosen.
    blink: Option<bool>,
    /// The parameter of DECSCUSR.
    cursor_style: u32,
    title: String,
    clusters: Clusters,
    skipped: Option<Skipped>,
    /// The last character, unless something else has followed it.
    last: Option<Last>,
}

/// A size within the limits. A terminal has at least two columns, so that a wide character fits.
fn clipped(size: TerminalSize) -> (usize, usize) {
    let cols = usize::from(size.cols).clamp(2, MAX_COLS);
    let rows = usize::from(size.rows).clamp(1, MAX_ROWS.min(MAX_CELLS / cols));
    (rows, cols)
}

impl Screen {
    /// An empty screen, which keeps up to `history_rows` rows that scroll out of it.
    pub(crate) fn new(size: TerminalSize, history_rows: usize) -> Self {
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
            blink: None,
            cursor_style: 0,
            title: String::new(),
            clusters: Clusters::default(),
            skipped: None,
            last: None,
        }
    }

    /// The memory in bytes.
    pub(crate) fn held(&self) -> usize {
        let alternate = self.alternate.as_ref().map_or(0, Buffer::held);
        self.normal.held() + alternate + self.clusters.held() + self.title.capacity()
    }

    /// The memory that a screen of this size can take while a full-screen program is not shown, in bytes.
    fn held_at(size: TerminalSize) -> usize {
        let (rows, cols) = clipped(size);
        grid::held_by_rows(rows, cols)
    }

    /// How many bytes more the screen can take at another size.
    fn growth(&self, size: TerminalSize) -> usize {
        let buffers = 1 + usize::from(self.alternate.is_some());
        let now = grid::held_by_rows(self.normal.height(), self.normal.cols);
        buffers * Self::held_at(size).saturating_sub(now)
    }

    /// The memory of the rows above the screen, in bytes.
    fn held_above(&self) -> usize {
        self.normal.history.as_ref().map_or(0, History::held)
    }

    /// Drops the rows above the screen.
    fn drop_above(&mut self) {
        if let Some(history) = &mut self.normal.history {
            history.free();
        }
    }

    pub(crate) fn resize(&mut self, size: TerminalSize) {
        let (rows, cols) = clipped(size);
        self.normal.resize(rows, cols);
        if let Some(alternate) = &mut self.alternate {
            alternate.resize(rows, cols);
        }
        self.last = None;
    }

    #[inline]
    fn buffer(&self) -> &Buffer {
        self.alternate.as_ref().unwrap_or(&self.normal)
    }

    #[inline]
    fn buffer_mut(&mut self) -> &mut Buffer {
        self.alternate.as_mut().unwrap_or(&mut self.normal)
    }

    /// Takes output. Returns the number of bytes that were taken; the rest is the beginning of a sequence or a character.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> usize {
        let mut skipped = self.skipped.take();
        let taken = parse(bytes, &mut skipped, self);
        self.skipped = skipped;
        taken
    }

    // Printing.

    #[inline]
    fn print_ascii(&mut self, text: &[u8]) {
        let is_usual = !self.modes.insert
            && self.charsets.current == ASCII
            && !self.last.is_some_and(Last::joins_all);
        let style = self.style;
        let buffer = self.buffer_mut();
        let (x, cols) = (buffer.x, buffer.cols);
        if is_usual && x + text.len() <= cols {
            buffer.row().write(x, text, cols, style);
            buffer.x = x + text.len();
            self.last = Some(Last::ASCII);
        } else {
            self.print_ascii_anyhow(text);
        }
    }

    /// Prints text that replaces other characters, joins one, or does not fit into the row.
    fn print_ascii_anyhow(&mut self, mut text: &[u8]) {
        if self.modes.insert || self.charsets.current != ASCII {
            for byte in text {
                self.print(self.charsets.replace(*byte));
            }
            return;
        }
        while let Some((first, others)) = text.split_first() {
            let style = self.style;
            let joins = self.last.is_some_and(Last::joins_all);
            let buffer = self.buffer_mut();
            let (x, cols) = (buffer.x, buffer.cols);
            if x >= cols || joins {
                // It wraps, overwrites the last column, or joins a character.
                self.print(char::from(*first));
                text = others;
                continue;
            }
            let (now, later) = text.split_at(text.len().min(cols - x));
            buffer.row().write(x, now, cols, style);
            buffer.x = x + now.len();
            self.last = Some(Last::ASCII);
            text = later;
        }
    }

    fn print(&mut self, character: char) {
        let step = Step::after(self.last, character);
        match step.joined {
            Some(joined) => self.join(character, step.last, usize::from(joined)),
            None => self.print_apart(character, step.last),
        }
    }

    /// Prints a character that begins a cluster.
    fn print_apart(&mut self, character: char, last: Last) {
        let style = self.style;
        let columns = usize::from(last.width);
        self.last = Some(last);
        let inserts = self.modes.insert;
        let buffer = self.buffer_mut();
        let cols = buffer.cols;
        buffer.x = buffer.x.min(cols);
        let x = buffer.x;
        buffer.row().split_before(x, style);
        if x + columns > cols && !self.make_room(0) && columns == 2 {
            // It is not shown, so nothing can join it.
            self.last = None;
            return;
        }
        let buffer = self.buffer_mut();
        let x = buffer.x;
        let row = buffer.row();
        if inserts {
            row.insert(x, columns, cols, style);
            row.split_before(cols, style);
        }
        row.reach(x + columns, cols);
        row.cells[x] = Cell {
            content: Content::character(character, last.width),
            style,
        };
        if columns == 2 {
            row.cells[x + 1] = Cell::second_half(style);
        }
        row.split_after(x + columns, style);
        buffer.x = x + columns;
    }

    /// Goes to the next row with the cells of a cluster that gets too wide, or to the last column if text does not wrap. Returns
    /// whether it wraps.
    fn make_room(&mut self, moved: usize) -> bool {
        let style = self.style;
        let wraps = self.modes.wrap;
        let buffer = self.buffer_mut();
        if !wraps {
            buffer.x = buffer.cols - 1;
            return false;
        }
        let (x, cols) = (buffer.x - moved, buffer.cols);
        let row = buffer.row();
        row.reach(cols, cols);
        let cells = row.cells[x..x + moved].to_vec();
        row.cells[x..].fill(Cell::empty(style));
        if buffer.y == buffer.bottom {
            buffer.scroll(style.erased(), true);
        } else {
            buffer.y = (buffer.y + 1).min(buffer.height() - 1);
            buffer.row().is_wrapped = true;
        }
        let row = buffer.row();
        row.reach(moved, cols);
        row.cells[..moved].copy_from_slice(&cells);
        buffer.x = moved;
        true
    }

    /// Adds a character to the cluster before the cursor, which had `before` columns.
    fn join(&mut self, character: char, last: Last, before: usize) {
        let style = self.style;
        let grows = usize::from(last.width) - before;
        let buffer = self.alternate.as_mut().unwrap_or(&mut self.normal);
        let at = buffer.x.saturating_sub(before);
        let Some(content) = buffer.cell(at).map(|cell| cell.content) else {
            return;
        };
        let Some(joined) = self.clusters.join(content, character, last.width) else {
            // It is left out, also for what follows: a snapshot does not have it either.
            if self.clusters.needs_collection() {
                self.collect_clusters();
            }
            return;
        };
        self.last = Some(last);
        if buffer.x + grows > buffer.cols && !self.make_room(before) {
            self.last = None;
            return;
        }
        let buffer = self.buffer_mut();
        let (x, cols) = (buffer.x, buffer.cols);
        let row = buffer.row();
        row.reach(x + grows, cols);
        row.cells[x - before].content = joined;
        row.cells[x..x + grows].fill(Cell::second_half(style));
        row.split_after(x + grows, style);
        buffer.x = x + grows;
    }

    /// Forgets the clusters that are no longer shown.
    fn collect_clusters(&mut self) {
        let buffers = [Some(&mut self.normal), self.alternate.as_mut()];
        let cells = buffers.into_iter().flatten().flat_map(|buffer| {
            let history = buffer.history.iter_mut();
            let rows = buffer.rows.iter_mut();
            rows.flat_map(|row| row.cells.iter_mut())
                .chain(history.flat_map(History::cells_mut))
        });
        self.clusters.collect(cells.map(|cell| &mut cell.content));
    }
}

impl Perform for Screen {
    // Each place of the parser that finds a unit gets the branch for its kind alone.
    #[inline(always)]
    fn unit(&mut self, unit: Unit<'_>) {
        match unit {
            Unit::Ascii(text) => return self.print_ascii(text),
            Unit::Character(character) => return self.print(character),
            Unit::Control(control) => self.control(control),
            Unit::Escape { intermediate, last } => self.escape(intermediate, last),
            // The most frequent sequences need no call.
            Unit::Csi(csi) => match (csi.prefix, csi.intermediate, csi.last) {
                (0, 0, b'm') => self.style.apply(&csi.params),
                (0, 0, b'H') => self.set_cursor(csi.params.count(1) - 1, csi.params.count(0) - 1),
                _ => self.csi(csi),
            },
            Unit::Osc(text) => self.osc(text),
            Unit::Nothing | Unit::Long => {}
        }
        self.last = None;
    }
}
