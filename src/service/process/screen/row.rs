//! The cells of a screen, in rows that can be cleared and scrolled without moving cells.

use std::borrow::Cow;
use std::ops::{Index, IndexMut};

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

    /// A printable ASCII character.
    pub(super) fn ascii(character: u8) -> Self {
        Self(u32::from(character) | (1 << WIDTH_SHIFT))
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
    /// The first cells. The others are like `fill`, so that neither a new row nor an erased one takes time for each column.
    pub(super) cells: Vec<Cell>,
    pub(super) fill: Cell,
    /// Whether it continues the row before it.
    pub(super) is_wrapped: bool,
}

impl Default for Row {
    fn default() -> Self {
        Self {
            cells: Vec::new(),
            fill: Cell::empty(Style::default()),
            is_wrapped: false,
        }
    }
}

impl Row {
    /// Makes all cells alike.
    #[inline]
    pub(super) fn clear(&mut self, fill: Cell) {
        self.cells.clear();
        self.fill = fill;
        self.is_wrapped = false;
    }

    /// Gives a row of `cols` columns at least the first `count` cells.
    #[inline]
    pub(super) fn reach(&mut self, count: usize, cols: usize) {
        if self.cells.len() < count {
            self.extend(count, cols);
        }
    }

    // Apart, so that the usual case of `reach` is two instructions.
    #[inline(never)]
    fn extend(&mut self, count: usize, cols: usize) {
        // The memory of a row never exceeds its columns.
        if self.cells.capacity() < cols {
            self.cells.reserve_exact(cols - self.cells.len());
        }
        self.cells.resize(count, self.fill);
    }

    pub(super) fn cell(&self, column: usize) -> Cell {
        self.cells.get(column).copied().unwrap_or(self.fill)
    }

    /// The cells up to the last one that differs from the fill.
    pub(super) fn filled(&self) -> &[Cell] {
        let last = self.cells.iter().rposition(|cell| *cell != self.fill);
        &self.cells[..last.map_or(0, |last| last + 1)]
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
    pub(super) fn resize(&mut self, old: usize, new: usize) {
        if !self.fill.is_default() {
            self.cells.resize(old, self.fill);
            self.fill = Cell::empty(Style::default());
        }
        self.cells.truncate(new);
        self.cells.shrink_to(new);
        self.split_before(new, Style::default());
    }

    #[inline]
    fn width_before(&self, at: usize) -> u8 {
        let before = at.checked_sub(1).and_then(|before| self.cells.get(before));
        before.map_or(1, |cell| cell.content.width())
    }

    /// Replaces the first half of a wide character whose second half begins at `at`.
    #[inline]
    pub(super) fn split_before(&mut self, at: usize, style: Style) {
        if self.width_before(at) == 2 {
            self.cells[at - 1] = Cell::empty(style);
        }
    }

    /// Replaces the second half of a wide character whose first half is gone.
    #[inline]
    pub(super) fn split_after(&mut self, at: usize, style: Style) {
        if let Some(cell) = self.cells.get_mut(at).filter(|cell| cell.is_second_half()) {
            *cell = Cell::empty(style);
        }
    }

    /// Writes printable ASCII characters, which have room from column `at` on.
    #[inline(always)]
    pub(super) fn write(&mut self, at: usize, text: &[u8], cols: usize, style: Style) {
        let end = at + text.len();
        self.split_before(at, style);
        self.reach(end, cols);
        let (before, after) = self.cells.split_at_mut(end);
        for (cell, byte) in before[at..].iter_mut().zip(text) {
            *cell = Cell {
                content: Content::ascii(*byte),
                style,
            };
        }
        if let Some(next) = after.first_mut()
            && next.is_second_half()
        {
            *next = Cell::empty(style);
        }
    }

    /// Erases cells.
    pub(super) fn erase(&mut self, from: usize, to: usize, cols: usize, style: Style) {
        let empty = Cell::empty(style);
        self.split_before(from, style);
        if to >= cols && (self.fill == empty || from == 0) {
            self.cells.truncate(from);
            self.fill = empty;
            return;
        }
        let to = to.min(cols);
        if self.width_before(to) == 2 && to < cols {
            self.cells[to] = empty;
        }
        if from < to {
            self.reach(to, cols);
            self.cells[from..to].fill(empty);
        }
    }

    /// Shifts cells to the right.
    pub(super) fn insert(&mut self, at: usize, count: usize, cols: usize, style: Style) {
        // The cursor may be behind the last column.
        let at = at % cols;
        let end = self.reach_shifted(at, count, cols, style);
        self.split_before(at, style);
        let count = count.min(end - at);
        self.cells.copy_within(at..end - count, at + count);
        self.cells[at..at + count].fill(Cell::empty(style));
        self.split_before(cols, style);
    }

    /// Shifts cells to the left.
    pub(super) fn delete(&mut self, at: usize, count: usize, cols: usize, style: Style) {
        let at = at % cols;
        let end = self.reach_shifted(at, 0, cols, style);
        let count = count.min(end - at);
        self.cells.copy_within(at + count..end, at);
        self.cells[end - count..].fill(Cell::empty(style));
        self.split_before(at, style);
        self.split_after(at, style);
    }

    /// Makes the cells from `at` on that are shifted by up to `more` columns. Returns the end of the cells that can change: if the row
    /// ends with cells like those that a shift adds, these are left out.
    fn reach_shifted(&mut self, at: usize, more: usize, cols: usize, style: Style) -> usize {
        let end = if self.fill == Cell::empty(style) {
            self.cells.len().max(at).saturating_add(more).min(cols)
        } else {
            cols
        };
        self.reach(end, cols);
        end
    }
}

/// The rows of a screen. They scroll by their numbers, and stay where they are.
#[derive(Debug)]
pub(super) struct Rows {
    slots: Vec<Row>,
    /// The slot of each row.
    order: Vec<u16>,
}

impl Rows {
    /// Empty rows, at most 65,535.
    pub(super) fn new(count: usize) -> Self {
        Self {
            slots: vec![Row::default(); count],
            order: (0..count as u16).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Row> {
        self.order
            .iter()
            .map(|slot| &self.slots[usize::from(*slot)])
    }

    /// The rows in any order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Row> {
        self.slots.iter_mut()
    }

    /// Moves the rows from `first` to `last` up. The upper ones come in again below.
    #[inline]
    pub(super) fn rotate_up(&mut self, first: usize, last: usize, count: usize) {
        let order = &mut self.order[first..=last];
        if let (1, [top, ..]) = (count, &*order) {
            // The frequent case is a short move of memory.
            let top = *top;
            order.copy_within(1.., 0);
            order[last - first] = top;
        } else {
            order.rotate_left(count);
        }
    }

    /// Moves the rows from `first` to `last` down. The lower ones come in again above.
    pub(super) fn rotate_down(&mut self, first: usize, last: usize, count: usize) {
        self.order[first..=last].rotate_right(count);
    }

    fn insert(&mut self, at: usize, row: Row) {
        self.order.insert(at, self.slots.len() as u16);
        self.slots.push(row);
    }

    pub(super) fn push_front(&mut self, row: Row) {
        self.insert(0, row);
    }

    pub(super) fn push_back(&mut self, row: Row) {
        self.insert(self.order.len(), row);
    }

    /// Removes a row. The last slot gets its place.
    fn remove(&mut self, at: usize) -> Row {
        let slot = self.order.remove(at);
        let row = self.slots.swap_remove(usize::from(slot));
        let moved = self.slots.len() as u16;
        if let Some(moved) = self.order.iter_mut().find(|slot| **slot == moved) {
            *moved = slot;
        }
        row
    }

    pub(super) fn pop_front(&mut self) -> Row {
        self.remove(0)
    }

    pub(super) fn pop_back(&mut self) -> Row {
        self.remove(self.order.len() - 1)
    }
}

impl Index<usize> for Rows {
    type Output = Row;

    #[inline]
    fn index(&self, at: usize) -> &Row {
        &self.slots[usize::from(self.order[at])]
    }
}

impl IndexMut<usize> for Rows {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut Row {
        &mut self.slots[usize::from(self.order[at])]
    }
}
