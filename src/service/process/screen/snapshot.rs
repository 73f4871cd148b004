//! What a screen shows, as text and as the sequences that rebuild it on another terminal.

use std::fmt::Write;

use super::grid::{Buffer, Cell, Row, Saved};
use super::parser::Skipped;
use super::style::Style;
use super::width::width;
use super::{ASCII, Screen};

/// The formats of a screen for programs that read terminals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Text,
    /// Text with the sequences for colors and attributes.
    Ansi,
}

/// What a screen shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) cursor_row: usize,
    pub(crate) cursor_col: usize,
    pub(crate) is_cursor_visible: bool,
    pub(crate) title: String,
    pub(crate) is_alternate: bool,
    /// The rows above the screen, and those of the screen, without spaces at their ends.
    pub(crate) lines: Vec<String>,
}

/// The length in bytes from which on rows are left out of a snapshot. A screen of 50 x 200 colored cells has about a tenth of it.
const MAX_SNAPSHOT: usize = 256 << 10;

/// Returns a terminal to the state of a new one: the normal screen, no modes, no margins, and an empty screen.
const RESET: &str = "\x1b[?1047l\x1b[!p\x1b[?1;45;66;9;1000;1002;1003;1004;1006;1016;2004l\x1b[?7;25h\x1b[4;20l\x1b>\x1b[m\x1b(B\
     \x1b)B\x1b*B\x1b+B\x0f\x1b[r\x1b[H\x1b[2J";

impl Screen {
    /// What is shown, with up to `above` rows above the screen.
    pub(crate) fn view(&self, above: usize, format: Format) -> View {
        let buffer = self.buffer();
        let lines = self.rows(buffer, above).map(|row| match format {
            Format::Json | Format::Text => self.text(row),
            Format::Ansi => self.ansi(row),
        });
        View {
            rows: buffer.height(),
            cols: buffer.cols,
            cursor_row: buffer.y,
            cursor_col: buffer.x.min(buffer.cols - 1),
            is_cursor_visible: !self.is_cursor_hidden,
            title: self.title.clone(),
            is_alternate: self.alternate.is_some(),
            lines: lines.collect(),
        }
    }

    /// The last rows of the history and those of the screen.
    fn rows<'b>(&self, buffer: &'b Buffer, above: usize) -> impl Iterator<Item = &'b Row> {
        let history = buffer.history.as_ref().map(|history| {
            let skipped = history.rows.len().saturating_sub(above);
            history.rows.range(skipped..)
        });
        history.into_iter().flatten().chain(&buffer.rows)
    }

    fn text(&self, row: &Row) -> String {
        let mut text = String::new();
        let cells = row.shown(self.buffer().cols);
        for cell in cells.iter().filter(|cell| !cell.is_second_half()) {
            self.clusters.write(cell.content, &mut text);
        }
        text.truncate(text.trim_end_matches(' ').len());
        text
    }

    fn ansi(&self, row: &Row) -> String {
        let mut text = String::new();
        let mut style = Style::default();
        let cells = row.shown(self.buffer().cols);
        self.write_cells(&cells, &mut style, &mut text);
        if style != Style::default() {
            text.push_str("\x1b[m");
        }
        text
    }

    fn write_cells(&self, cells: &[Cell], style: &mut Style, out: &mut String) {
        for cell in cells.iter().filter(|cell| !cell.is_second_half()) {
            // A mark with a cell of its own follows a sequence. Otherwise it would join the character before.
            if cell.style != *style || cell.content.width() == 0 {
                *style = cell.style;
                style.write(out);
            }
            if self.is_lone_mark(cell) {
                out.push(' ');
            }
            self.clusters.write(cell.content, out);
        }
    }

    /// Whether a cell has a mark that has joined an empty cell.
    fn is_lone_mark(&self, cell: &Cell) -> bool {
        let first = match cell.content.get() {
            Ok(character) => Some(character),
            Err(_) => self.clusters.text(cell.content).chars().next(),
        };
        cell.content.width() > 0 && first.is_some_and(|first| width(first) == 0)
    }

    /// The output with which another terminal shows the same, with up to `above` rows above the normal screen. If it is too long, rows
    /// are left out: first those above the screen, then the lower ones of screens of which each cell has a style of its own.
    pub(super) fn rebuild(&self, above: usize) -> String {
        let mut out = self.rebuild_rows(above);
        if out.len() > MAX_SNAPSHOT && above > 0 {
            out = self.rebuild_rows(0);
        }
        out
    }

    fn rebuild_rows(&self, above: usize) -> String {
        let mut out = RESET.to_owned();
        if self.alternate.is_none() && self.alternate_saved != Saved::default() {
            out.push_str("\x1b[?47h");
            write_saved(&self.alternate_saved, &self.normal, 0, &mut out);
            out.push_str("\x1b[?47l");
        }
        self.write_buffer(&self.normal, above, &mut out);
        if let Some(alternate) = &self.alternate {
            out.push_str("\x1b[?47h");
            self.write_buffer(alternate, 0, &mut out);
        }
        self.write_cursor(&mut out);
        // The rest of a sequence follows of which the beginning was not kept.
        out.push_str(match self.skipped {
            None => "",
            Some(Skipped::Csi) => "\x1b[0<",
            Some(Skipped::Osc) => "\x1b]99999;",
            Some(Skipped::String) => "\x1b_",
        });
        out
    }

    /// The rows of a buffer, its tab stops and margins, and the cursor that it has saved.
    fn write_buffer(&self, buffer: &Buffer, above: usize, out: &mut String) {
        let mut style = Style::default();
        let mut rows = self.rows(buffer, above).peekable();
        out.push_str("\x1b[H");
        let limit = out.len() + MAX_SNAPSHOT;
        while let Some(row) = rows.next() {
            if out.len() > limit {
                break;
            }
            let cells = row.shown(buffer.cols);
            for run in cells.chunk_by(|one, next| one.is_erased() && next == one) {
                if !run[0].is_erased() {
                    self.write_cells(run, &mut style, out);
                    continue;
                }
                let count = run.len();
                // The rest of a row that continues another one may have the background of that one.
                if row.is_wrapped || run[0].style != Style::default() {
                    if style != run[0].style {
                        style = run[0].style;
                        style.write(out);
                    }
                    let _ = write!(out, "\x1b[{count}X");
                }
                let _ = write!(out, "\x1b[{count}C");
            }
            // An empty row below takes the background, and so does the rest of this one if it is a continuation.
            if style != Style::default() {
                out.push_str("\x1b[m");
                style = Style::default();
            }
            let is_full =
                cells.len() == buffer.cols && cells.last().is_some_and(|last| !last.is_erased());
            if row.is_wrapped && cells.len() < buffer.cols {
                out.push_str("\x1b[K");
            }
            match rows.peek() {
                // Its first character wraps, unless it has no width.
                Some(next) if next.is_wrapped && is_full && next.begins_with_text() => {}
                Some(_) => out.push_str("\r\n"),
                None => {}
            }
        }
        if !buffer.has_default_tabs() {
            out.push_str("\x1b[3g");
            for (column, _) in buffer.tabs.iter().enumerate().filter(|(_, tab)| **tab) {
                let _ = write!(out, "\x1b[{}G\x1bH", column + 1);
            }
        }
        write_saved(&buffer.saved, buffer, buffer.base(), out);
        let _ = write!(out, "\x1b[{};{}r", buffer.top + 1, buffer.bottom + 1);
    }

    /// The place of the cursor, and what the output that follows depends on: modes, the style and the character sets.
    fn write_cursor(&self, out: &mut String) {
        let buffer = self.buffer();
        if self.modes.origin {
            out.push_str("\x1b[?6h");
        }
        if let Some((column, cell)) = self.last_column() {
            self.write_modes(out);
            self.write_charsets(out);
            self.style.write(out);
            self.write_place(column, out);
            if self.modes.insert {
                let _ = write!(out, "\x1b[{}P", cell.content.width());
            }
            // A mark that follows belongs to this character, so nothing may come between them.
            self.clusters.write(cell.content, out);
            return;
        }
        if self.has_restored_charset() {
            self.write_charsets(out);
        }
        let is_behind = buffer.x >= buffer.cols;
        let mut column = buffer.x.min(buffer.cols - 1);
        let cell = |column| buffer.cell(column);
        if is_behind && cell(column).is_some_and(|cell| cell.is_second_half()) {
            column = column.saturating_sub(1);
        }
        self.write_place(column, out);
        if is_behind {
            // Only a character in the last column puts the cursor behind it.
            let mut style = Style::default();
            let last = cell(column);
            self.write_cells(last.as_slice(), &mut style, out);
        }
        self.style.write(out);
        if !self.has_restored_charset() {
            self.write_charsets(out);
        }
        self.write_modes(out);
    }

    /// Whether the character set in use came back with a saved cursor and is not the selected one.
    fn has_restored_charset(&self) -> bool {
        self.charsets.current != self.charsets.sets[self.charsets.level]
    }

    /// The column of the last character, if it was the last output and can be written once more.
    fn last_column(&self) -> Option<(usize, Cell)> {
        let buffer = self.buffer();
        let width = self.last_width.filter(|width| *width > 0)?;
        let column = buffer.x.checked_sub(usize::from(width))?;
        let cell = buffer.cell(column)?;
        let is_plain = self.charsets.current == ASCII
            || matches!(cell.content.get(), Ok(character) if !character.is_ascii());
        let is_same = cell.content.width() == width && cell.style == self.style;
        (is_same && is_plain && !cell.content.is_empty()).then_some((column, cell))
    }

    fn write_place(&self, column: usize, out: &mut String) {
        let buffer = self.buffer();
        let top = if self.modes.origin { buffer.top } else { 0 };
        let row = buffer.y.saturating_sub(top);
        let _ = write!(out, "\x1b[{};{}H", row + 1, column + 1);
    }

    fn write_charsets(&self, out: &mut String) {
        for (level, set) in self.charsets.sets.iter().enumerate() {
            if *set != ASCII {
                let designator = ['(', ')', '*', '+'][level];
                let _ = write!(out, "\x1b{designator}{}", char::from(*set));
            }
        }
        out.push_str(match self.charsets.level {
            0 => "",
            1 => "\x0e",
            2 => "\x1bn",
            _ => "\x1bo",
        });
        if self.has_restored_charset() {
            out.push_str("\x1b8");
        }
    }

    fn write_modes(&self, out: &mut String) {
        let modes = &self.modes;
        for (is_other, sequence) in [
            (modes.application_cursor, "\x1b[?1h"),
            (modes.application_keypad, "\x1b="),
            (modes.bracketed_paste, "\x1b[?2004h"),
            (modes.focus, "\x1b[?1004h"),
            (modes.insert, "\x1b[4h"),
            (modes.new_line, "\x1b[20h"),
            (modes.reverse_wrap, "\x1b[?45h"),
            (!modes.wrap, "\x1b[?7l"),
            (self.is_cursor_hidden, "\x1b[?25l"),
        ] {
            if is_other {
                out.push_str(sequence);
            }
        }
        for mode in [self.mouse.protocol, self.mouse.encoding] {
            if mode != 0 {
                let _ = write!(out, "\x1b[?{mode}h");
            }
        }
        if self.cursor_style != 0 {
            let _ = write!(out, "\x1b[{} q", self.cursor_style);
        }
        if !self.title.is_empty() {
            let _ = write!(out, "\x1b]2;{}\x07", self.title);
        }
    }
}

/// Saves a cursor. `base` is the number of rows above the screen.
fn write_saved(saved: &Saved, buffer: &Buffer, base: usize, out: &mut String) {
    let row = saved.y.saturating_sub(base).min(buffer.height() - 1);
    let column = saved.x.min(buffer.cols - 1);
    let _ = write!(out, "\x1b[{};{}H", row + 1, column + 1);
    saved.style.write(out);
    let _ = write!(out, "\x1b({}\x1b7\x1b(B\x1b[m", char::from(saved.charset));
}
