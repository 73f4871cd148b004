//! The cells of a screen: rows, and a buffer of rows with its cursor, margins and tab stops.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::ASCII;
use super::style::Style;

/// A cell. The second half of a wide character has the width 0 and no content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) content: Content,
    pub(super) style: Style,
}

// The memory of screens is counted in cells.
const _: () = assert!(size_of::<Cell>() == 16);

/// A character, the number of a cluster of characters, or nothing; and the width in columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content(u32);

const CLUSTER: u32 = 1 << 31;
const WIDTH_SHIFT: u32 = 24;
const WIDTH: u32 = 3 << WIDTH_SHIFT;
const VALUE: u32 = (1 << WIDTH_SHIFT) - 1;

impl Content {
    /// Nothing, one column wide.
    const EMPTY: Self = Self(1 << WIDTH_SHIFT);
    /// The second half of a wide character.
    const SECOND_HALF: Self = Self(0);

    pub(super) fn character(character: char, width: u8) -> Self {
        Self(u32::from(character) | (u32::from(width) << WIDTH_SHIFT))
    }

    pub(super) fn cluster(index: usize, width: u8) -> Self {
        Self(CLUSTER | (u32::from(width) << WIDTH_SHIFT) | index as u32)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 & !WIDTH == 0
    }

    pub(super) fn width(self) -> u8 {
        ((self.0 & WIDTH) >> WIDTH_SHIFT) as u8
    }

    /// The character, or the number of the cluster.
    pub(super) fn get(self) -> Result<char, usize> {
        if self.0 & CLUSTER != 0 {
            return Err((self.0 & VALUE) as usize);
        }
        Ok(char::from_u32(self.0 & VALUE)
            .filter(|character| *character != '\0')
            .unwrap_or(' '))
    }
}

impl Cell {
    /// An empty cell.
    pub(super) fn empty(style: Style) -> Self {
        Self {
            content: Content::EMPTY,
            style,
        }
    }

    pub(super) fn second_half(style: Style) -> Self {
        Self {
            content: Content::SECOND_HALF,
            style,
        }
    }

    /// Whether it is like an erased cell: empty, with a background alone.
    pub(super) fn is_erased(&self) -> bool {
        *self == Self::empty(self.style.erased())
    }

    fn is_default(&self) -> bool {
        *self == Self::empty(Style::default())
    }

    /// Whether it is the second half of a wide character.
    pub(super) fn is_second_half(&self) -> bool {
        self.content == Content::SECOND_HALF
    }
}

/// A row of cells.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// The first cells. The others are like `fill`, so that erasing a row takes no time, whatever its length.
    pub(super) cells: Vec<Cell>,
    fill: Cell,
    /// Whether it continues the row before it.
    pub(super) is_wrapped: bool,
}

impl Default for Row {
    fn default() -> Self {
        Self::new(Cell::empty(Style::default()))
    }
}

impl Row {
    fn new(fill: Cell) -> Self {
        Self {
            cells: Vec::new(),
            fill,
            is_wrapped: false,
        }
    }

    /// The cells that `cells` does not have.
    #[cfg(any(test, fuzzing))]
    pub(super) fn fill(&self) -> Cell {
        self.fill
    }

    /// Makes all cells alike.
    pub(super) fn clear(&mut self, fill: Cell) {
        self.cells.clear();
        self.fill = fill;
        self.is_wrapped = false;
    }

    /// The cells up to the last one that shows anything.
    pub(super) fn shown(&self, cols: usize) -> Cow<'_, [Cell]> {
        if !self.fill.is_default() && self.cells.len() < cols {
            let mut cells = self.cells.clone();
            cells.resize(cols, self.fill);
            return Cow::Owned(cells);
        }
        let last = self.cells.iter().rposition(|cell| !cell.is_default());
        Cow::Borrowed(&self.cells[..last.map_or(0, |last| last + 1)])
    }

    /// Changes the number of columns. New ones are empty.
    fn resize(&mut self, old: usize, new: usize) {
        if !self.fill.is_default() {
            self.cells.resize(old, self.fill);
            self.fill = Cell::empty(Style::default());
        }
        self.cells.truncate(new);
        if self.cells.len() == new {
            self.split_before(new, Style::default());
        }
    }

    fn width_before(&self, at: usize) -> u8 {
        match at.checked_sub(1) {
            Some(before) => self
                .cells
                .get(before)
                .map_or(1, |cell| cell.content.width()),
            None => 1,
        }
    }

    /// Replaces the first half of a wide character whose second half begins at `at`.
    pub(super) fn split_before(&mut self, at: usize, style: Style) {
        if self.width_before(at) == 2 {
            self.cells[at - 1] = Cell::empty(style);
        }
    }

    /// Replaces the second half of a wide character whose first half is gone.
    pub(super) fn split_after(&mut self, at: usize, style: Style) {
        if let Some(cell) = self.cells.get_mut(at).filter(|cell| cell.is_second_half()) {
            *cell = Cell::empty(style);
        }
    }

    /// Erases cells.
    pub(super) fn erase(&mut self, from: usize, to: usize, style: Style) {
        let to = to.min(self.cells.len());
        self.split_before(from, style);
        if self.width_before(to) == 2 && to < self.cells.len() {
            self.cells[to] = Cell::empty(style);
        }
        if from < to {
            self.cells[from..to].fill(Cell::empty(style));
        }
    }

    /// Shifts cells to the right.
    pub(super) fn insert(&mut self, at: usize, count: usize, style: Style) {
        let len = self.cells.len();
        // The cursor may be behind the last column.
        let at = at % len;
        self.split_before(at, style);
        let count = count.min(len - at);
        self.cells.copy_within(at..len - count, at + count);
        self.cells[at..at + count].fill(Cell::empty(style));
        self.split_before(len, style);
    }

    /// Shifts cells to the left.
    pub(super) fn delete(&mut self, at: usize, count: usize, style: Style) {
        let len = self.cells.len();
        let at = at % len;
        let count = count.min(len - at);
        self.cells.copy_within(at + count..len, at);
        self.cells[len - count..].fill(Cell::empty(style));
        self.split_before(at, style);
        self.split_after(at, style);
    }
}

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
    pub(super) rows: VecDeque<Row>,
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

/// The rows above the screen.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) rows: VecDeque<Row>,
    /// The number of cells in `rows`.
    cells: usize,
    max_rows: usize,
    /// The maximum number of cells: those of `max_rows` rows of 80 columns.
    max_cells: usize,
    /// The number of rows that have scrolled out since the history was cleared.
    pub(super) count: usize,
}

impl History {
    pub(super) fn new(max_rows: usize) -> Self {
        Self {
            max_rows,
            max_cells: max_rows.saturating_mul(80),
            ..Self::default()
        }
    }

    /// Adds a row. Returns one whose memory can be used again.
    fn push(&mut self, mut row: Row) -> Option<Row> {
        self.count += 1;
        if self.max_rows == 0 {
            return Some(row);
        }
        let last = row.cells.iter().rposition(|cell| *cell != row.fill);
        let kept = Row {
            cells: row.cells[..last.map_or(0, |last| last + 1)].to_vec(),
            ..row
        };
        self.cells += kept.cells.len();
        row.cells.clear();
        self.rows.push_back(kept);
        while self.rows.len() > self.max_rows || self.cells > self.max_cells {
            let Some(oldest) = self.rows.pop_front() else {
                break;
            };
            self.cells -= oldest.cells.len();
        }
        Some(row)
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.cells = 0;
        self.count = 0;
    }

    fn held(&self) -> usize {
        self.cells * size_of::<Cell>() + self.rows.capacity() * size_of::<Row>()
    }
}

/// The tab stops that a terminal begins with.
fn default_tabs(cols: usize) -> Vec<bool> {
    (0..cols).map(|column| column % 8 == 0).collect()
}

impl Buffer {
    pub(super) fn new(rows: usize, cols: usize, history: Option<History>) -> Self {
        Self {
            rows: (0..rows).map(|_| Row::default()).collect(),
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
        let rows = self.rows.len() * (self.cols * size_of::<Cell>() + size_of::<Row>());
        rows + self.tabs.len() + self.history.as_ref().map_or(0, History::held)
    }

    /// The row of the cursor, with all its cells.
    pub(super) fn row(&mut self) -> &mut Row {
        self.is_used = true;
        // The cursor is always on the screen.
        let row = &mut self.rows[self.y];
        row.cells.resize(self.cols, row.fill);
        row
    }

    /// A cell, if the cursor's row has it.
    pub(super) fn cell(&self, column: usize) -> Option<Cell> {
        let row = &self.rows[self.y];
        let cell = row.cells.get(column).copied();
        cell.or((column < self.cols).then_some(row.fill))
    }

    /// Whether the tab stops are those of a new terminal.
    pub(super) fn has_default_tabs(&self) -> bool {
        self.tabs == default_tabs(self.cols)
    }

    /// Scrolls the region up by a row. At the top of the screen, the row becomes history.
    pub(super) fn scroll(&mut self, style: Style, is_wrapped: bool) {
        self.is_used = true;
        if self.top > 0 {
            self.shift(self.top, self.bottom, 1, true, style);
        } else if let Some(first) = self.rows.pop_front() {
            let spare = match &mut self.history {
                Some(history) => history.push(first),
                None => Some(first),
            };
            let mut row = spare.unwrap_or_default();
            row.clear(Cell::empty(style));
            self.rows.insert(self.bottom, row);
        }
        self.rows[self.bottom].is_wrapped = is_wrapped;
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
        let rows = &mut self.rows.make_contiguous()[first..=last];
        let count = count.min(rows.len());
        let free = if up {
            rows.rotate_left(count);
            rows.len() - count..rows.len()
        } else {
            rows.rotate_right(count);
            0..count
        };
        for row in &mut rows[free] {
            row.clear(Cell::empty(style));
        }
    }

    /// Shifts the cells from a column on in all rows of the region. Empty ones fill the gap.
    pub(super) fn shift_columns(&mut self, at: usize, right: bool, count: usize, style: Style) {
        self.is_used = true;
        for row in self.rows.range_mut(self.top..=self.bottom) {
            row.cells.resize(self.cols, row.fill);
            if right {
                row.insert(at, count, style);
            } else {
                row.delete(at, count, style);
            }
            row.is_wrapped = false;
        }
    }

    pub(super) fn clear_row(&mut self, at: usize, style: Style) {
        self.is_used = true;
        if let Some(row) = self.rows.get_mut(at) {
            row.clear(Cell::empty(style));
        }
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
        for row in &mut self.rows {
            row.resize(old, cols);
        }
        self.tabs
            .extend((self.tabs.len()..cols).map(|column| column % 8 == 0));
        self.tabs.truncate(cols);
        self.cols = cols;
        while self.rows.len() < rows {
            let is_last = self.y + 1 == self.rows.len();
            let history = self.history.as_mut().filter(|_| is_last);
            let back = history.and_then(|history| {
                let row = history.rows.pop_back()?;
                history.cells -= row.cells.len();
                history.count -= 1;
                Some(row)
            });
            match back {
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
            if let (Some(row), Some(history)) = (self.rows.pop_front(), &mut self.history) {
                history.push(row);
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
