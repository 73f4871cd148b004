//! The rows above a screen. Their cells lie one after another, so a row that scrolls out takes no memory of its own.

use std::collections::VecDeque;

use super::row::{Cell, Row};

/// A row without its cells.
#[derive(Debug)]
struct Past {
    len: usize,
    fill: Cell,
    is_wrapped: bool,
}

/// The rows above the screen.
#[derive(Debug, Default)]
pub(super) struct History {
    cells: VecDeque<Cell>,
    rows: VecDeque<Past>,
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

    /// Adds a row.
    pub(super) fn push(&mut self, row: &Row) {
        self.count += 1;
        if self.max_rows == 0 {
            return;
        }
        let cells = row.filled();
        let most = self.max_cells.saturating_sub(cells.len());
        while self.rows.len() >= self.max_rows || self.cells.len() > most {
            let Some(oldest) = self.rows.pop_front() else {
                break;
            };
            self.cells.drain(..oldest.len);
        }
        if cells.len() > self.max_cells {
            return;
        }
        let needed = self.cells.len() + cells.len();
        if needed > self.cells.capacity() {
            let capacity = (2 * self.cells.capacity()).clamp(needed, self.max_cells);
            self.cells.reserve_exact(capacity - self.cells.len());
        }
        self.cells.extend(cells);
        self.rows.push_back(Past {
            len: cells.len(),
            fill: row.fill,
            is_wrapped: row.is_wrapped,
        });
    }

    /// Takes the last row back.
    pub(super) fn pop(&mut self) -> Option<Row> {
        let row = self.last(1).next()?;
        self.rows.pop_back();
        self.cells.truncate(self.cells.len() - row.cells.len());
        self.count -= 1;
        Some(row)
    }

    /// Copies of the last rows.
    pub(super) fn last(&self, count: usize) -> impl Iterator<Item = Row> {
        let rows = self.rows.range(self.rows.len().saturating_sub(count)..);
        let cells: usize = rows.clone().map(|row| row.len).sum();
        let mut at = self.cells.len() - cells;
        rows.map(move |row| {
            let from = at;
            at += row.len;
            Row {
                cells: self.cells.range(from..at).copied().collect(),
                fill: row.fill,
                is_wrapped: row.is_wrapped,
            }
        })
    }

    /// All cells.
    pub(super) fn cells_mut(&mut self) -> impl Iterator<Item = &mut Cell> {
        self.cells.iter_mut()
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.cells.clear();
        self.count = 0;
    }

    /// Drops all rows and frees their memory. The count of rows stays.
    pub(super) fn free(&mut self) {
        (self.cells, self.rows) = Default::default();
    }

    /// The memory in bytes.
    pub(super) fn held(&self) -> usize {
        self.cells.capacity() * size_of::<Cell>() + self.rows.capacity() * size_of::<Past>()
    }
}
