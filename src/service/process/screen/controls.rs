//! Control characters and control sequences: what they do to a screen.

use super::Screen;
use super::graphemes::Step;
use super::grid;
use super::modes::ASCII;
use super::parser::{Csi, Params};
use super::row::{Cell, Content};
use super::style::Style;

/// The maximum length of a title in bytes.
const MAX_TITLE: usize = 1000;

impl Screen {
    pub(super) fn control(&mut self, control: u8) {
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
            let last = buffer.cell(buffer.x);
            if last.is_some_and(|last| last.content.width() > 0 && last.content.is_empty()) {
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
            buffer.shift(buffer.top, buffer.bottom, 1, false, style);
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
        buffer.is_used = true;
        if let Some(tab) = buffer.tabs.get_mut(buffer.x) {
            *tab = true;
        }
    }

    /// Keeps the cursor on the screen, or with the origin mode in the scrolling region.
    pub(super) fn restrict(&mut self) {
        let max = self.buffer().cols - 1;
        self.restrict_to(max);
    }

    pub(super) fn restrict_to(&mut self, max: usize) {
        let origin = self.modes.origin;
        let buffer = self.buffer_mut();
        buffer.x = buffer.x.min(max);
        buffer.y = if origin {
            buffer.y.clamp(buffer.top, buffer.bottom)
        } else {
            buffer.y.min(buffer.height() - 1)
        };
    }

    #[inline]
    pub(super) fn set_cursor(&mut self, x: usize, y: usize) {
        let origin = self.modes.origin;
        let buffer = self.buffer_mut();
        buffer.x = x.min(buffer.cols - 1);
        buffer.y = if origin {
            buffer.top.saturating_add(y).min(buffer.bottom)
        } else {
            y.min(buffer.height() - 1)
        };
    }

    /// Moves the cursor. In origin mode, xterm.js adds the top of the region to the row a second time.
    fn move_cursor(&mut self, x: isize, y: isize) {
        self.restrict();
        let buffer = self.buffer();
        let x = buffer.x.saturating_add_signed(x);
        let y = buffer.y.saturating_add_signed(y);
        self.set_cursor(x, y);
    }

    pub(super) fn save_cursor(&mut self) {
        let (style, charset) = (self.style, self.charsets.current);
        let buffer = self.buffer_mut();
        buffer.saved = grid::Saved {
            x: buffer.x,
            y: buffer.base() + buffer.y,
            style,
            charset,
        };
    }

    pub(super) fn restore_cursor(&mut self) {
        let buffer = self.buffer_mut();
        let saved = buffer.saved;
        buffer.x = saved.x;
        buffer.y = saved.y.saturating_sub(buffer.base());
        self.style = saved.style;
        self.charsets.current = saved.charset;
        self.restrict();
    }

    pub(super) fn escape(&mut self, intermediate: u8, last: u8) {
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
                self.reset();
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
                (buffer.y..buffer.height()).for_each(|row| buffer.rows[row].clear(full));
            }
            _ => {}
        }
    }

    pub(super) fn osc(&mut self, text: &[u8]) {
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

    pub(super) fn csi(&mut self, csi: &Csi) {
        let params = &csi.params;
        match (csi.prefix, csi.intermediate, csi.last) {
            (0, 0, last) => self.plain_csi(last, params),
            (b'?', 0, b'J') => self.erase_display(params.get(0)),
            (b'?', 0, b'K') => self.erase_line(params.get(0)),
            (b'?', 0, b'h') => params.iter().for_each(|mode| self.set_private(mode, true)),
            (b'?', 0, b'l') => params.iter().for_each(|mode| self.set_private(mode, false)),
            (0, b'!', b'p') => self.soft_reset(),
            (0, b' ', b'q') if params.get(0) <= 6 => self.cursor_style = params.get(0),
            (0, b' ', b'@' | b'A') => self.shift_columns(0, csi.last == b'A', params.count(0)),
            (0, b'\'', b'}' | b'~') => {
                let x = self.buffer().x;
                self.shift_columns(x, csi.last == b'}', params.count(0));
            }
            _ => {}
        }
    }

    fn set_modes(&mut self, params: &Params, on: bool) {
        for mode in params.iter() {
            match mode {
                4 => self.modes.insert = on,
                20 => self.modes.new_line = on,
                _ => {}
            }
        }
    }

    /// Sequences without a prefix and intermediate characters.
    fn plain_csi(&mut self, last: u8, params: &Params) {
        let count = params.count(0);
        let step = count as isize;
        let style = self.style.erased();
        let at_most = |limit: usize| count.min(limit);
        match last {
            b'm' => self.style.apply(params),
            b'H' | b'f' => self.set_cursor(params.count(1) - 1, count - 1),
            b'J' => self.erase_display(params.get(0)),
            b'K' => self.erase_line(params.get(0)),
            b'h' | b'l' => self.set_modes(params, last == b'h'),
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
            b'I' | b'Z' => self.move_to_tab(count, last == b'I'),
            b'g' => self.clear_tabs(params.get(0)),
            b'@' | b'P' | b'X' => {
                self.restrict();
                let buffer = self.buffer_mut();
                let (x, cols) = (buffer.x, buffer.cols);
                let row = buffer.row();
                match last {
                    b'@' => row.insert(x, count, cols, style),
                    b'P' => row.delete(x, count, cols, style),
                    _ => row.erase(x, x.saturating_add(count), cols, style),
                }
            }
            b'L' | b'M' => {
                self.restrict();
                let buffer = self.buffer_mut();
                let (y, top, bottom) = (buffer.y, buffer.top, buffer.bottom);
                if (top..=bottom).contains(&y) {
                    buffer.shift(y, bottom, count, last == b'M', style);
                    buffer.x = 0;
                }
            }
            b'S' | b'T' => {
                let buffer = self.buffer_mut();
                let (top, bottom) = (buffer.top, buffer.bottom);
                let style = if last == b'S' {
                    style
                } else {
                    Style::default()
                };
                buffer.shift(top, bottom, count, last == b'S', style);
            }
            b'b' => self.repeat(count),
            b'r' => self.set_region(params),
            b's' => self.save_cursor(),
            b'u' => self.restore_cursor(),
            _ => {}
        }
    }

    /// Shifts the columns from `at` on, in all rows of the scrolling region.
    fn shift_columns(&mut self, at: usize, right: bool, count: usize) {
        let style = self.style.erased();
        let buffer = self.buffer_mut();
        let y = buffer.y;
        if (buffer.top..=buffer.bottom).contains(&y) {
            buffer.shift_columns(at, right, count, style);
        }
    }

    fn move_to_tab(&mut self, count: usize, forward: bool) {
        let buffer = self.buffer_mut();
        for _ in 0..count.min(buffer.cols) {
            if buffer.x < buffer.cols {
                buffer.x = if forward {
                    buffer.next_tab(buffer.x)
                } else {
                    buffer.previous_tab(buffer.x)
                };
            }
        }
    }

    fn clear_tabs(&mut self, which: u32) {
        let buffer = self.buffer_mut();
        buffer.is_used = true;
        match which {
            0 if buffer.x < buffer.cols => buffer.tabs[buffer.x] = false,
            3 => buffer.tabs.fill(false),
            _ => {}
        }
    }

    /// Prints the last character again.
    fn repeat(&mut self, count: usize) {
        let Some(last) = self.last else { return };
        let buffer = self.buffer();
        // More than a row would let a few bytes cause much work.
        let count = count.min(buffer.cols);
        let cell = buffer.x.checked_sub(usize::from(last.width));
        let Some(cell) = cell.and_then(|at| buffer.cell(at)) else {
            return;
        };
        match cell.content.get() {
            Ok(character) if character.is_ascii() && self.charsets.current == ASCII => {
                self.print_ascii(&vec![character as u8; count]);
            }
            _ => self.repeat_cell(cell.content, count),
        }
    }

    /// Prints a cluster of characters again. The cell is copied, because a few bytes of output can repeat a long cluster.
    fn repeat_cell(&mut self, content: Content, count: usize) {
        let text = self.clusters.text(content);
        let Some(first) = text.chars().next() else {
            return;
        };
        let columns = usize::from(content.width());
        let steps = text.chars().scan(None, |last, next| {
            *last = Some(Step::after(*last, next).last);
            Some(*last)
        });
        let last = steps.last().flatten();
        for _ in 0..count {
            let step = Step::after(self.last, first);
            if step.joined.is_some() {
                // Such characters have no width of their own that could be repeated.
                return;
            }
            self.print_apart(first, step.last.with_width(content.width()));
            let buffer = self.buffer_mut();
            let at = buffer.x.checked_sub(columns);
            if let Some(cell) = at.and_then(|at| buffer.row().cells.get_mut(at))
                && cell.content == Content::character(first, content.width())
            {
                cell.content = content;
                self.last = last;
            }
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
                buffer.row().erase(0, x + 1, cols, style);
                buffer.row().is_wrapped = false;
                if x + 1 >= cols && y + 1 < buffer.height() {
                    buffer.rows[y + 1].is_wrapped = false;
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
                row.erase(x, cols, cols, style);
                row.is_wrapped &= x > 0;
            }
            1 => row.erase(0, x + 1, cols, style),
            2 => {
                row.erase(0, cols, cols, style);
                row.is_wrapped = false;
            }
            _ => {}
        }
    }
}
