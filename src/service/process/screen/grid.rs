//! The cells of a screen: a buffer of rows with its cursor, margins and tab stops.

use super::ASCII;
use super::history::History;
use super::row::{Cell, Row, Rows};
use super::style::Style;

/// A saved cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Saved {
    pub(super) x: usize,
    /// The row, counted from the first one of the history.
    pub(super) y: usize,
    pub(super) style: Style,
    /// The character set that was selected.
    pub(super) charset: u8,
}

impl Default for Saved {
    fn default() -> Self {
        Self {
            x: 0,
            y: 0,
            style: Style::default(),
            charset: ASCII,
        }
    }
}

/// The rows of a screen, with its cursor, margins and tab stops. There are two: the normal and the alternate one.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) rows: Rows,
    pub(super) cols: usize,
    /// The column of the cursor. It is equal to `cols` after a character in the last column.
    pub(super) x: usize,
    pub(super) y: usize,
    /// The first and the last row of the scrolling region.
    pub(super) top: usize,
    pub(super) bottom: usize,
    pub(super) saved: Saved,
    pub(super) tabs: Vec<bool>,
    /// Whether anything was written, scrolled, erased or set since the last reset.
    pub(super) is_used: bool,
    /// The rows that have scrolled out at the top. The alternate screen has none.
    pub(super) history: Option<History>,
}

/// The tab stops that a terminal begins with.
fn default_tabs(cols: usize) -> Vec<bool> {
    (0..cols).map(|column| column % 8 == 0).collect()
}

/// The memory of so many rows when all their cells are used, in bytes.
pub(super) fn held_by_rows(rows: usize, cols: usize) -> usize {
    rows * (cols * size_of::<Cell>() + size_of::<Row>())
}

impl Buffer {
    pub(super) fn new(rows: usize, cols: usize, history: Option<History>) -> Self {
        Self {
            rows: Rows::new(rows),
            cols,
            x: 0,
            y: 0,
            top: 0,
            bottom: rows - 1,
            saved: Saved::default(),
            tabs: default_tabs(cols),
            is_used: true,
            history,
        }
    }

    /// Resets the buffer.
    pub(super) fn reset(&mut self) {
        // The same again takes no time.
        if !std::mem::take(&mut self.is_used) && self.has_default_margins() {
            (self.x, self.y, self.saved) = (0, 0, Saved::default());
            return;
        }
        self.rows
            .iter_mut()
            .for_each(|row| row.clear(Cell::empty(Style::default())));
        if let Some(history) = &mut self.history {
            history.clear();
        }
        if !self.has_default_tabs() {
            self.tabs = default_tabs(self.cols);
        }
        (self.x, self.y, self.saved) = (0, 0, Saved::default());
        (self.top, self.bottom) = (0, self.rows.len() - 1);
    }

    fn has_default_margins(&self) -> bool {
        self.top == 0 && self.bottom + 1 == self.rows.len()
    }

    pub(super) fn height(&self) -> usize {
        self.rows.len()
    }

    /// The number of rows above the screen, including those that are no longer kept.
    pub(super) fn base(&self) -> usize {
        self.history.as_ref().map_or(0, |history| history.count)
    }

    /// The memory in bytes.
    pub(super) fn held(&self) -> usize {
        let rows = held_by_rows(self.rows.len(), self.cols);
        rows + self.tabs.len() + self.history.as_ref().map_or(0, History::held)
    }

    /// The row of the cursor, which is always on the screen.
    #[inline]
    pub(super) fn row(&mut self) -> &mut Row {
        self.is_used = true;
        &mut self.rows[self.y]
    }

    /// A cell, if the cursor's row has it.
    pub(super) fn cell(&self, column: usize) -> Option<Cell> {
        (column < self.cols).then(|| self.rows[self.y].cell(column))
    }

    /// Whether the tab stops are those of a new terminal.
    pub(super) fn has_default_tabs(&self) -> bool {
        self.tabs == default_tabs(self.cols)
    }

    /// Scrolls the region up by a row. At the top of the screen, the row becomes history.
    pub(super) fn scroll(&mut self, style: Style, is_wrapped: bool) {
        self.is_used = true;
        if self.top == 0
            && let Some(history) = &mut self.history
        {
            history.push(&self.rows[0]);
        }
        self.rows.rotate_up(self.top, self.bottom, 1);
        let row = &mut self.rows[self.bottom];
        row.clear(Cell::empty(style));
        row.is_wrapped = is_wrapped;
    }

    /// Shifts the rows from `first` to `last` up or down. Empty rows fill the gap.
    pub(super) fn shift(
        &mut self,
        first: usize,
        last: usize,
        count: usize,
        up: bool,
        style: Style,
    ) {
        self.is_used = true;
        let count = count.min(last + 1 - first);
        let free = if up {
            self.rows.rotate_up(first, last, count);
            last + 1 - count..last + 1
        } else {
            self.rows.rotate_down(first, last, count);
            first..first + count
        };
        for at in free {
            self.rows[at].clear(Cell::empty(style));
        }
    }

    /// Shifts the cells from a column on in all rows of the region. Empty ones fill the gap.
    pub(super) fn shift_columns(&mut self, at: usize, right: bool, count: usize, style: Style) {
        self.is_used = true;
        for y in self.top..=self.bottom {
            let row = &mut self.rows[y];
            if right {
                row.insert(at, count, self.cols, style);
            } else {
                row.delete(at, count, self.cols, style);
            }
            row.is_wrapped = false;
        }
    }

    pub(super) fn clear_row(&mut self, at: usize, style: Style) {
        self.is_used = true;
        self.rows[at].clear(Cell::empty(style));
    }

    pub(super) fn next_tab(&self, from: usize) -> usize {
        let next = (from + 1..self.cols).find(|column| self.tabs[*column]);
        next.unwrap_or(self.cols - 1)
    }

    pub(super) fn previous_tab(&self, from: usize) -> usize {
        let before = (0..from.min(self.cols)).rev();
        before
            .into_iter()
            .find(|column| self.tabs[*column])
            .unwrap_or(0)
    }

    /// Changes the size, without rearranging wrapped lines. Rows move to the history and back, so that the cursor keeps its row.
    pub(super) fn resize(&mut self, rows: usize, cols: usize) {
        self.is_used = true;
        let old = self.cols;
        for row in self.rows.iter_mut() {
            row.resize(old, cols);
        }
        self.tabs
            .extend((self.tabs.len()..cols).map(|column| column % 8 == 0));
        self.tabs.truncate(cols);
        self.cols = cols;
        while self.rows.len() < rows {
            let is_last = self.y + 1 == self.rows.len();
            let history = self.history.as_mut().filter(|_| is_last);
            match history.and_then(History::pop) {
                Some(mut row) => {
                    row.resize(old, cols);
                    self.rows.push_front(row);
                    self.y += 1;
                }
                None => self.rows.push_back(Row::default()),
            }
        }
        while self.rows.len() > rows {
            if self.y + 1 < self.rows.len() {
                self.rows.pop_back();
                continue;
            }
            let row = self.rows.pop_front();
            if let Some(history) = &mut self.history {
                history.push(&row);
            }
            self.y = self.y.saturating_sub(1);
        }
        self.x = self.x.min(cols - 1);
        self.y = self.y.min(rows - 1);
        self.saved.x = self.saved.x.min(cols - 1);
        self.top = 0;
        self.bottom = rows - 1;
    }
}
