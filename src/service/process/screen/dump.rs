//! All of a screen as text, for tests: tests/interop/screen/compare.mjs writes xterm.js in the same way.

use std::fmt::Write;

use super::Screen;
use super::grid::Buffer;
use super::row::{Cell, Row};
use super::style::Color;
use crate::sys::TerminalSize;

impl Screen {
    /// Everything that later output can show, with a line for each row.
    pub(crate) fn dump(&self) -> String {
        let mut out = String::new();
        let shown = self.buffer();
        let x = shown.x.min(shown.cols);
        let _ = writeln!(out, "size {} {}", shown.height(), shown.cols);
        let _ = writeln!(
            out,
            "cursor {x} {} hidden {}",
            shown.y, self.is_cursor_hidden
        );
        let _ = writeln!(out, "cursor style {}", self.cursor_style);
        let _ = writeln!(out, "style {}", self.style_text(&Cell::empty(self.style)));
        let _ = writeln!(out, "charset {}", char::from(self.charsets.current));
        let _ = writeln!(out, "title {}", self.title);
        let modes = &self.modes;
        for (name, is_on) in [
            ("application cursor", modes.application_cursor),
            ("application keypad", modes.application_keypad),
            ("bracketed paste", modes.bracketed_paste),
            ("focus", modes.focus),
            ("insert", modes.insert),
            ("new line", modes.new_line),
            ("origin", modes.origin),
            ("reverse wrap", modes.reverse_wrap),
            ("synchronized", modes.synchronized),
            ("wrap", modes.wrap),
        ] {
            let _ = writeln!(out, "mode {name} {is_on}");
        }
        let _ = writeln!(out, "mouse {} {}", self.mouse.protocol, self.mouse.encoding);
        let _ = writeln!(out, "alternate {}", self.alternate.is_some());
        self.dump_buffer(&self.normal, &mut out);
        if let Some(alternate) = &self.alternate {
            self.dump_buffer(alternate, &mut out);
        }
        out
    }

    /// The same without what nobody sees and no snapshot keeps: whether an empty cell has a space, or was half of a wide character, and
    /// which rows continue others, because a snapshot does not know it of its first row.
    pub(crate) fn dump_loosely(&self) -> String {
        let dump = self.dump();
        let rows = dump.lines().map(|line| {
            let line = match line.starts_with("row") {
                true => line.replacen(" true ", " false ", 1),
                false => line.to_owned(),
            };
            let mut before = 0;
            let cells = line.split('\u{1e}').map(|cell| {
                let Some((text, rest)) = cell.split_once('\u{1f}') else {
                    return cell.to_owned();
                };
                let is_stray = rest.starts_with('0') && before != 2;
                before = rest.bytes().next().map_or(0, |width| width - b'0');
                match (is_stray, text.strip_suffix(' ')) {
                    (true, _) => format!("{text}\u{1f}1{}", &rest[1..]),
                    // The prefix of a row ends with a space, too.
                    (_, Some(text)) if !text.starts_with("row") || text.ends_with(' ') => {
                        format!("{text}\u{1f}{rest}")
                    }
                    _ => cell.to_owned(),
                }
            });
            cells.collect::<Vec<_>>().join("\u{1e}")
        });
        rows.collect::<Vec<_>>().join("\n")
    }

    /// An empty screen of the same size.
    pub(crate) fn empty(&self) -> Self {
        let buffer = self.buffer();
        let size = TerminalSize {
            rows: buffer.height() as u16,
            cols: buffer.cols as u16,
        };
        Self::new(size, 3)
    }

    /// Whether a snapshot rebuilds all of the screen. It cannot select a character set that came back with the saved cursor of the other
    /// buffer, put the cursor outside the region in origin mode, or let a mark join a character that it cannot write again.
    pub(crate) fn has_exact_snapshot(&self) -> bool {
        let buffer = self.buffer();
        let has_charset =
            !self.has_restored_charset() || buffer.saved.charset == self.charsets.current;
        let is_inside = !self.modes.origin || (buffer.top..=buffer.bottom).contains(&buffer.y);
        let has_last = self.last.is_none() || self.last_column().is_some();
        has_charset && is_inside && has_last
    }

    fn dump_buffer(&self, buffer: &Buffer, out: &mut String) {
        let _ = writeln!(out, "margins {} {}", buffer.top, buffer.bottom);
        let saved = &buffer.saved;
        let row = saved
            .y
            .saturating_sub(buffer.base())
            .min(buffer.height() - 1);
        let style = self.style_text(&Cell::empty(saved.style));
        let charset = char::from(saved.charset);
        let _ = writeln!(
            out,
            "saved {} {row} {style} {charset}",
            saved.x.min(buffer.cols - 1)
        );
        let tabs = buffer
            .tabs
            .iter()
            .enumerate()
            .filter(|(_, is_set)| **is_set);
        let tabs: Vec<String> = tabs.map(|(column, _)| column.to_string()).collect();
        let _ = writeln!(out, "tabs {}", tabs.join(" "));
        for (at, row) in buffer.rows.iter().enumerate() {
            let is_wrapped = row.is_wrapped && at > 0;
            let _ = writeln!(
                out,
                "row {at} {is_wrapped} {}",
                self.cells(row, buffer.cols)
            );
        }
    }

    fn cells(&self, row: &Row, cols: usize) -> String {
        let mut row = row.clone();
        row.reach(cols, cols);
        let cells = row.cells.iter().map(|cell| {
            let text = match cell.content.is_empty() {
                true => String::new(),
                false => self.clusters.text(cell.content),
            };
            format!(
                "{text}\u{1f}{}\u{1f}{}",
                cell.content.width(),
                self.style_text(cell)
            )
        });
        cells.collect::<Vec<_>>().join("\u{1e}")
    }

    fn style_text(&self, cell: &Cell) -> String {
        let color = |color: Color| match color.parts() {
            (0, _) => "-".to_owned(),
            (1, index) => format!("p{index}"),
            (_, rgb) => format!("#{rgb:06x}"),
        };
        let style = cell.style;
        format!(
            "{},{},{:x}",
            color(style.foreground),
            color(style.background),
            style.flags
        )
    }
}
