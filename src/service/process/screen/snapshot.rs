//! What a screen shows, as text and as the sequences that rebuild it on another terminal.

use std::borrow::Cow;
use std::fmt::Write;

use super::graphemes::{Last, Step};
use super::grid::{Buffer, Saved};
use super::parser::Skipped;
use super::row::{Cell, Row};
use super::style::Style;
use super::{ASCII, Clusters, Screen};

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
const RESET: &str = "\x1b[?1047l\x1b[!p\x1b[?1;45;66;9;1000;1002;1003;1004;1006;1016;2004;2026l\x1b[?7;25h\x1b[4;20l\x1b>\x1b[m\x1b(B\
     \x1b)B\x1b*B\x1b+B\x0f\x1b[r\x1b[H\x1b[2J";

impl Screen {
    /// What is shown, with up to `above` rows above the screen.
    pub(crate) fn view(&self, above: usize, format: Format) -> View {
        let buffer = self.buffer();
        let lines = self.rows(buffer, above).map(|row| match format {
            Format::Json | Format::Text => self.text(&row),
            Format::Ansi => self.ansi(&row),
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
    fn rows<'b>(&self, buffer: &'b Buffer, above: usize) -> impl Iterator<Item = Cow<'b, Row>> {
        let history = buffer.history.as_ref();
        let history = history
            .into_iter()
            .flat_map(move |history| history.last(above));
        history
            .map(Cow::Owned)
            .chain(buffer.rows.iter().map(Cow::Borrowed))
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
        let mut writer = Writer::new(&self.clusters, &mut text);
        for cell in row.shown(self.buffer().cols).iter() {
            writer.cell(cell);
        }
        writer.select(Style::default());
        text
    }

    /// The output with which another terminal shows the same, with up to `above` rows above the normal screen. If it is too long, rows
    /// are left out: first those above the screen, then the lower ones of screens of which each cell has a style of its own.
    pub(crate) fn rebuild(&self, above: usize) -> String {
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
        let mut rows = self.rows(buffer, above).peekable();
        let limit = out.len() + MAX_SNAPSHOT;
        let mut writer = Writer::new(&self.clusters, out);
        writer.sequence(format_args!("\x1b[H"));
        while let Some(mut row) = rows.next() {
            if writer.out.len() > limit {
                break;
            }
            if row.cells.len() > buffer.cols {
                // It has scrolled out when the screen was wider.
                let width = row.cells.len();
                row.to_mut().resize(width, buffer.cols);
            }
            let cells = row.shown(buffer.cols);
            let next = rows.peek();
            let wrap = next.map_or(Wrap::None, |next| Wrap::between(&cells, next, buffer.cols));
            let written = match wrap {
                Wrap::OfWide => &cells[..cells.len().min(buffer.cols - 1)],
                _ => &cells[..],
            };
            writer.row(written, &row, buffer.cols);
            match wrap {
                // The first character of the next row wraps.
                Wrap::OfText => {}
                Wrap::OfWide => writer.sequence(format_args!("\x1b[{}G", buffer.cols)),
                Wrap::OfNothing => writer.wrap(cells.get(buffer.cols - 1), buffer.cols),
                Wrap::None => {
                    // An empty row takes the background.
                    writer.select(Style::default());
                    if next.is_some() {
                        writer.sequence(format_args!("\r\n"));
                    }
                }
            }
        }
        writer.select(Style::default());
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
                // The first character of a cluster makes room for itself, and further ones may widen it over the next cell.
                let text = self.clusters.text(cell.content);
                let first = text.chars().next().map(|first| Step::after(None, first));
                let _ = write!(out, "\x1b[{}P", first.map_or(1, |first| first.last.width));
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
            let mut writer = Writer::new(&self.clusters, out);
            if let Some(last) = cell(column) {
                writer.cell(&last);
            }
        }
        self.style.write(out);
        if !self.has_restored_charset() {
            self.write_charsets(out);
        }
        self.write_modes(out);
    }

    /// Whether the character set in use came back with a saved cursor and is not the selected one.
    pub(super) fn has_restored_charset(&self) -> bool {
        self.charsets.current != self.charsets.sets[self.charsets.level]
    }

    /// The column of the last character, if it was the last output and can be written once more.
    pub(super) fn last_column(&self) -> Option<(usize, Cell)> {
        let buffer = self.buffer();
        let width = self.last?.width;
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
            (modes.synchronized, "\x1b[?2026h"),
            (self.blink == Some(true), "\x1b[?12h"),
            (self.blink == Some(false), "\x1b[?12l"),
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

/// How a row of a buffer continues in the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrap {
    None,
    /// The row is full, so the first character of the next one wraps.
    OfText,
    /// The last cell is empty, because the wide character of the next row did not fit into it.
    OfWide,
    /// What has wrapped was erased.
    OfNothing,
}

impl Wrap {
    fn between(cells: &[Cell], next: &Row, cols: usize) -> Self {
        if !next.is_wrapped {
            return Self::None;
        }
        let last = cells.get(cols - 1);
        let first = next.cells.first().filter(|first| !first.content.is_empty());
        match (last, first) {
            (Some(last), Some(_)) if !last.content.is_empty() || last.is_second_half() => {
                Self::OfText
            }
            (_, Some(first))
                if first.content.width() == 2
                    && last
                        .copied()
                        .unwrap_or_else(|| Cell::empty(Style::default()))
                        == Cell::empty(first.style) =>
            {
                Self::OfWide
            }
            _ => Self::OfNothing,
        }
    }
}

/// Writes cells.
struct Writer<'w> {
    clusters: &'w Clusters,
    out: &'w mut String,
    style: Style,
    /// The last character, unless a sequence has followed it.
    last: Option<Last>,
}

impl<'w> Writer<'w> {
    /// A writer of output that ends with a sequence and has no style.
    fn new(clusters: &'w Clusters, out: &'w mut String) -> Self {
        Self {
            clusters,
            out,
            style: Style::default(),
            last: None,
        }
    }

    fn sequence(&mut self, sequence: std::fmt::Arguments<'_>) {
        let _ = self.out.write_fmt(sequence);
        self.last = None;
    }

    fn select(&mut self, style: Style) {
        if self.style != style {
            self.style = style;
            style.write(self.out);
            self.last = None;
        }
    }

    fn cell(&mut self, cell: &Cell) {
        if cell.is_second_half() {
            return;
        }
        self.select(cell.style);
        let start = self.out.len();
        self.clusters.write(cell.content, self.out);
        let mut before = self.last.take();
        let mut joins = false;
        for (at, next) in self.out[start..].chars().enumerate() {
            let step = Step::after(before, next);
            joins |= at == 0 && step.joined.is_some();
            before = Some(step.last);
        }
        self.last = before;
        if joins {
            // A sequence between them keeps the cell apart from the one before.
            let text = self.out.split_off(start);
            cell.style.write(self.out);
            self.last = text
                .chars()
                .fold(None, |last, next| Some(Step::after(last, next).last));
            self.out.push_str(&text);
        }
    }

    /// Writes the first cells of a row. The others are erased.
    fn row(&mut self, cells: &[Cell], row: &Row, cols: usize) {
        let mut at = 0;
        for run in cells.chunk_by(|one, next| one.is_erased() && next == one) {
            let count = run.len();
            at += count;
            if run[0].is_erased() {
                // The rest of a row that continues another one may have the background of that one.
                if row.is_wrapped || run[0].style != Style::default() {
                    self.select(run[0].style);
                    self.sequence(format_args!("\x1b[{count}X"));
                }
                self.sequence(format_args!("\x1b[{count}C"));
                continue;
            }
            let before = at
                .checked_sub(2)
                .map_or(0, |before| cells[before].content.width());
            if run[0].is_second_half() && before != 2 {
                // Its first half was shifted away.
                self.cell(&Cell::empty(run[0].style));
                continue;
            }
            let last = cells
                .get(at)
                .filter(|last| at + 1 == cols && !last.is_second_half());
            if let Some(last) = last.filter(|_| run[0].content.width() == 2) {
                // Something else has overwritten the second half of this wide character, without wrapping.
                self.sequence(format_args!("\x1b[?7l"));
                self.cell(&run[0]);
                self.cell(last);
                self.sequence(format_args!("\x1b[?7h"));
                return;
            }
            self.cell(&run[0]);
        }
        if row.is_wrapped && cells.len() < cols {
            self.select(Style::default());
            self.sequence(format_args!("\x1b[{}X", cols - cells.len()));
        }
    }

    /// Wraps to the next row, of which the first character was erased. `last` is the cell in the last column.
    fn wrap(&mut self, last: Option<&Cell>, cols: usize) {
        let last = last
            .copied()
            .unwrap_or_else(|| Cell::empty(Style::default()));
        let is_blank = last.content.is_empty() && !last.is_second_half();
        self.select(Style::default());
        if !is_blank {
            self.sequence(format_args!(" \r\x1b[X"));
            return;
        }
        self.sequence(format_args!("\x1b[{cols}G  \x1b[A\x1b[{cols}G"));
        if last.is_erased() {
            self.select(last.style);
            self.sequence(format_args!("\x1b[X"));
        } else {
            self.cell(&last);
        }
        self.select(Style::default());
        self.sequence(format_args!("\x1b[B\r\x1b[X"));
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
