//! Follows the output of a program on a terminal, so that its screen is known when somebody asks.
//!
//! Output is laid out as late as possible, so a screen costs little while nobody asks for it. [`Skimmer`] looks for output that changes
//! nothing but the line of the cursor, and the color: text, line ends and colors. When there is much of it, the part that has scrolled
//! away is skipped, and the rest waits until somebody asks. The result is the same as if everything had been laid out at once, which
//! the tests and the fuzzer check.

use super::Screen;
use super::keys::KeyModes;
use super::parser::{Perform, Unit};
use super::skimmer::Skimmer;
use super::snapshot::{Format, View};
use super::style::Style;
use crate::record::{Beside, RecordError, record};
use crate::service::process::scrollback::Scrollback;
use crate::sys::{TerminalSize, bytes_between};

/// Output with other sequences than colors is laid out from this many bytes on, which takes less than a millisecond.
const PENDING: usize = 32 << 10;

/// Plain output is kept up to this size, or half of the scrollback. To lay it out takes up to 20 ns for each byte.
const PENDING_PLAIN: usize = 256 << 10;

/// The most that is laid out when output is added. It is more than is read at once, so less and less is pending.
const SLICE: usize = 96 << 10;

/// About so many bytes are laid out, or skipped, in a microsecond.
const LAID_OUT: usize = 40;
const SKIPPED: usize = 2000;

/// The settings of the screens of a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScreenSettings {
    /// The number of rows that are kept above a screen.
    pub(crate) history: usize,
}

impl ScreenSettings {
    /// Keeps so many rows above a screen. `None` in a build that keeps no screens.
    pub(crate) fn new(history: usize) -> Option<Self> {
        Some(Self { history })
    }
}

/// The screen of a program, and the output that is not laid out yet.
#[derive(Debug)]
pub(crate) struct Follower {
    screen: Screen,
    size: TerminalSize,
    /// The output before this offset is laid out, but for `rest`.
    laid: u64,
    /// The beginning of a sequence or of a character.
    rest: Vec<u8>,
    skimmer: Skimmer,
    history: usize,
    /// The end of the output when nothing was found that could be skipped.
    searched: u64,
    /// The work of laying out, in microseconds.
    work: usize,
    /// What rebuilds the screen of the program before this one, until something is laid out.
    prologue: Option<String>,
    /// What [`Follower::save`] writes down.
    saved: Option<Rebuild>,
}

record!(Follower {
    size,
    history,
    saved,
    screen = Screen::new(size, history),
    laid = 0,
    rest = Vec::new(),
    skimmer = Skimmer::default(),
    searched = 0,
    work = 0,
    prologue = None,
} => Self::continued);

/// The sequences that rebuild the screen, and where the output begins that is not in it.
#[derive(Debug, Default)]
struct Rebuild {
    text: String,
    from: u64,
}

record!(Rebuild { text(Beside), from });

impl Follower {
    pub(crate) fn new(size: TerminalSize, settings: ScreenSettings) -> Self {
        Self {
            screen: Screen::new(size, settings.history),
            size,
            laid: 0,
            rest: Vec::new(),
            skimmer: Skimmer::default(),
            history: settings.history,
            searched: 0,
            work: 0,
            prologue: None,
            saved: None,
        }
    }

    /// The work of laying out since the last call, in microseconds.
    pub(crate) fn take_work(&mut self) -> usize {
        std::mem::take(&mut self.work)
    }

    /// The memory in bytes.
    pub(crate) fn held(&self) -> usize {
        let prologue = self.prologue.as_ref().map_or(0, String::capacity);
        self.screen.held() + self.rest.capacity() + prologue
    }

    /// The memory that a screen of this size can take, in bytes, without the rows above it.
    pub(crate) fn held_at(size: TerminalSize) -> usize {
        Screen::held_at(size)
    }

    /// How many bytes more the screen can take at another size.
    pub(crate) fn growth(&self, size: TerminalSize) -> usize {
        self.screen.growth(size)
    }

    /// Lays out all output, so that it need not be kept, and drops the rows above the screen.
    pub(crate) fn shrink(&mut self, output: &Scrollback) {
        self.lay_out(output);
        self.screen.drop_above();
    }

    /// The memory that [`Follower::shrink`] frees, in bytes.
    pub(crate) fn held_above(&self) -> usize {
        self.screen.held_above()
    }

    /// The number of bytes at the end of the output that have to be kept, because they are not laid out.
    pub(crate) fn pending(&self, output: &Scrollback) -> usize {
        (output.end() - self.laid) as usize
    }

    /// Notes that output was added. If there is much, lays out a part that takes a few milliseconds at most.
    pub(crate) fn follow(&mut self, output: &Scrollback) {
        self.skimmer.skim(output);
        let half = output.capacity() / 2;
        let limit = if self.skimmer.is_plain {
            PENDING_PLAIN.min(half)
        } else {
            PENDING.min(half)
        };
        if self.pending(output) < limit {
            return;
        }
        self.skip(output, limit);
        if self.pending(output) >= limit {
            self.lay_out_at_most(output, SLICE);
        }
    }

    /// Lays out all output.
    pub(crate) fn lay_out(&mut self, output: &Scrollback) {
        self.skip(output, 0);
        self.lay_out_at_most(output, usize::MAX);
    }

    /// Lays out the next output, up to a number of bytes.
    fn lay_out_at_most(&mut self, output: &Scrollback, most: usize) {
        self.unfold();
        // Output that is no longer kept is skipped.
        let mut from = self.laid.max(output.start());
        let end = output.end().min(from.saturating_add(most as u64));
        self.work += (end - from) as usize / LAID_OUT;
        while from < end {
            let (_, piece) = output.piece(from, PENDING.min((end - from) as usize));
            from += piece.len() as u64;
            if self.rest.is_empty() {
                let taken = self.screen.feed(piece);
                self.rest.extend_from_slice(&piece[taken..]);
            } else {
                self.rest.extend_from_slice(piece);
                let taken = self.screen.feed(&self.rest);
                self.rest.drain(..taken);
            }
        }
        self.laid = from;
        self.rest.shrink_to(super::parser::MAX_SEQUENCE);
        // The rest of plain output is plain, too.
        if from == output.end() || !self.skimmer.is_plain {
            self.skimmer.restart(from, self.rest.is_empty());
        }
    }

    /// Skips plain output that has scrolled out of the screen and its history, up to a place at which the cursor is in the first
    /// column. If there is no such place, it is not looked for again before `pause` bytes have come.
    fn skip(&mut self, output: &Scrollback, pause: usize) {
        self.unfold();
        let is_plain = self.skimmer.is_plain && self.rest.is_empty();
        let is_due = output.end() >= self.searched + pause as u64;
        if !is_plain || !is_due || !self.screen.scrolls_with_text() {
            return;
        }
        let from = self.laid.max(output.start());
        // After this many lines, nothing that the screen shows now is left on it or in the history.
        let needed = 2 * self.screen.height() + self.history + 2;
        let Some(cut) = line_start(output, from, needed) else {
            self.searched = output.end();
            return;
        };
        self.work += (cut - from) as usize / SKIPPED;
        let style = self.screen.style;
        let style = if self.skimmer.has_styles {
            style_at(output, from, cut, style)
        } else {
            style
        };
        self.screen.begin_row(style);
        self.laid = cut;
    }

    /// Changes the size, for the output that follows.
    pub(crate) fn resize(&mut self, output: &Scrollback, size: TerminalSize) {
        self.lay_out(output);
        self.screen.resize(size);
        self.size = size;
    }

    /// Prepares [`Follower::save`]. `is_resized` says whether the terminal has had another size. The next program lays out what this one
    /// has not, so that an upgrade does not take longer.
    pub(crate) fn make_portable(&mut self, output: &Scrollback, is_resized: bool) {
        let limit = PENDING_PLAIN.min(output.capacity() / 2);
        let is_short = output.start() == 0 && output.end() < limit as u64;
        let (text, from) = match &self.prologue {
            // The next program can lay all output out again, if somebody asks.
            _ if is_short && !is_resized => (String::new(), 0),
            Some(prologue) => (prologue.clone(), self.laid),
            None => self.rebuild_laid(self.history),
        };
        self.saved = Some(Rebuild { text, from });
    }

    /// Continues with the screen that another program has saved. It is laid out when somebody asks.
    fn continued(mut self) -> Result<Self, RecordError> {
        let Rebuild { text, from } = self.saved.take().unwrap_or_default();
        (self.prologue, self.laid) = (Some(text), from);
        self.skimmer.restart(from, true);
        Ok(self)
    }

    /// Lays out what the program before has saved.
    fn unfold(&mut self) {
        if let Some(prologue) = self.prologue.take() {
            self.screen.feed(prologue.as_bytes());
        }
    }

    /// The sequences that rebuild the screen with up to `above` rows above it, and the offset of the output that follows. It is the
    /// start of a sequence or character that is incomplete.
    pub(crate) fn rebuild(&mut self, output: &Scrollback, above: usize) -> (String, u64) {
        self.lay_out(output);
        self.rebuild_laid(above)
    }

    /// As [`Follower::rebuild`], for the output that is laid out so far.
    fn rebuild_laid(&self, above: usize) -> (String, u64) {
        let rebuild = self.screen.rebuild(above);
        (rebuild, self.laid - self.rest.len() as u64)
    }

    /// The screen with all output.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn screen(&mut self, output: &Scrollback) -> &Screen {
        self.lay_out(output);
        &self.screen
    }

    /// What the screen shows, with up to `above` rows above it.
    pub(crate) fn view(&mut self, output: &Scrollback, above: usize, format: Format) -> View {
        self.lay_out(output);
        self.screen.view(above, format)
    }

    /// The modes that keys depend on.
    pub(crate) fn key_modes(&mut self, output: &Scrollback) -> KeyModes {
        self.lay_out(output);
        KeyModes::from(&self.screen.modes)
    }
}

/// The offset at which the cursor is at the beginning of a line and `count` lines follow: after a carriage return.
fn line_start(output: &Scrollback, from: u64, count: usize) -> Option<u64> {
    /// Output of which no line ends with a carriage return is given up after this many bytes.
    const PATIENCE: u64 = 64 << 10;
    let mut end = output.end();
    let mut missing = count;
    let mut least = from;
    while end > least {
        let start = end.saturating_sub(4096).max(least);
        let bytes = copy(output, start, end);
        let mut rest = &bytes[..];
        // To count is much faster than to look for each line.
        let lines = line_feeds(rest);
        if lines < missing {
            missing -= lines;
            end = start;
            continue;
        }
        while missing > 0
            && let Some(at) = rest.iter().rposition(|byte| *byte == b'\n')
        {
            missing -= 1;
            rest = &rest[..at];
        }
        if let Some(at) = rest.iter().rposition(|byte| *byte == b'\r') {
            return Some(start + at as u64 + 1);
        }
        least = least.max(start.saturating_sub(PATIENCE));
        end = start;
    }
    None
}

fn line_feeds(bytes: &[u8]) -> usize {
    let (blocks, rest) = bytes.as_chunks();
    let counts = blocks
        .iter()
        .map(|block| bytes_between(block, b'\n', b'\n').count_ones() as usize);
    counts.sum::<usize>() + rest.iter().filter(|byte| **byte == b'\n').count()
}

/// The style after plain output. Only what follows the last reset counts.
fn style_at(output: &Scrollback, from: u64, to: u64, mut style: Style) -> Style {
    let mut carry: Vec<u8> = Vec::new();
    let mut at = last_reset(output, from, to);
    while at < to {
        let (_, piece) = output.piece(at, PENDING.min((to - at) as usize));
        at += piece.len() as u64;
        carry.extend_from_slice(piece);
        let taken = style.apply_all(&carry);
        carry.drain(..taken);
    }
    style
}

impl Screen {
    fn height(&self) -> usize {
        self.buffer().height()
    }

    /// Whether lines of text scroll all that they change: the cursor is between the margins, and no long sequence is being skipped.
    fn scrolls_with_text(&self) -> bool {
        let buffer = self.buffer();
        (buffer.top..=buffer.bottom).contains(&buffer.y) && self.skipped.is_none()
    }

    /// Continues after output that was skipped, at the beginning of a row.
    fn begin_row(&mut self, style: Style) {
        self.style = style;
        self.last = None;
        self.buffer_mut().x = 0;
    }
}

impl Style {
    /// Applies the sequences in plain output. Returns the number of bytes that were looked at; the rest is the beginning of a sequence.
    fn apply_all(&mut self, bytes: &[u8]) -> usize {
        for at in escapes(bytes) {
            if super::parser::parse_one(&bytes[at..], self).is_none() {
                return at;
            }
        }
        bytes.len()
    }
}

impl Perform for Style {
    fn unit(&mut self, unit: Unit<'_>) {
        if let Unit::Csi(csi) = unit
            && csi.last == b'm'
        {
            self.apply(&csi.params);
        }
    }
}

/// The beginnings of sequences.
fn escapes(bytes: &[u8]) -> Vec<usize> {
    let mut found = Vec::with_capacity(bytes.len() / 16);
    let (blocks, rest) = bytes.as_chunks();
    for (number, block) in blocks.iter().enumerate() {
        let mut places = bytes_between(block, ESC, ESC);
        while places != 0 {
            found.push(number * block.len() + places.trailing_zeros() as usize);
            places &= places - 1;
        }
    }
    let rest = rest.iter().enumerate();
    let rest = rest.filter(|(_, byte)| **byte == ESC);
    found.extend(rest.map(|(at, _)| blocks.as_flattened().len() + at));
    found
}

const ESC: u8 = 0x1b;

/// The offset of the last sequence that resets the style, or `from`.
fn last_reset(output: &Scrollback, from: u64, to: u64) -> u64 {
    const WINDOW: u64 = 4096;
    let mut end = to;
    while end > from {
        let start = end.saturating_sub(WINDOW).max(from);
        let bytes = copy(output, start, end);
        let mut sequences = escapes(&bytes).into_iter().rev();
        let found = sequences.find(|at| {
            matches!(
                bytes[*at..],
                [ESC, b'[', b'm', ..] | [ESC, b'[', b'0', b'm' | b';', ..]
            )
        });
        if let Some(found) = found {
            return start + found as u64;
        }
        if start == from {
            break;
        }
        // A sequence may be divided by the window.
        end = start + 3;
    }
    from
}

/// A copy of output.
fn copy(output: &Scrollback, from: u64, to: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((to - from) as usize);
    let mut at = from;
    while at < to {
        let (_, piece) = output.piece(at, (to - at) as usize);
        bytes.extend_from_slice(piece);
        at += piece.len() as u64;
    }
    bytes
}
