//! Follows the output of a program on a terminal, so that its screen is known when somebody asks.
//!
//! Output is laid out as late as possible, so a screen costs little while nobody asks for it. [`Skimmer`] looks for output that has only
//! text, line ends and colors. When there is much of it, the part that has scrolled away is skipped, and the rest waits until somebody
//! asks. The result is the same as if everything had been laid out at once, which the tests and the fuzzer check.

use super::Screen;
use super::keys::KeyModes;
use super::snapshot::{Format, View};
use super::style::Style;
use crate::service::process::scrollback::Scrollback;
use crate::sys::TerminalSize;

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
}

impl Follower {
    pub(crate) fn new(size: TerminalSize, settings: ScreenSettings) -> Self {
        Self {
            screen: Screen::new(size, settings.history),
            laid: 0,
            rest: Vec::new(),
            skimmer: Skimmer::default(),
            history: settings.history,
            searched: 0,
            work: 0,
        }
    }

    /// The work of laying out since the last call, in microseconds.
    pub(crate) fn take_work(&mut self) -> usize {
        std::mem::take(&mut self.work)
    }

    /// The memory in bytes.
    pub(crate) fn held(&self) -> usize {
        self.screen.held() + self.rest.capacity()
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
        let is_plain = self.skimmer.is_plain && self.rest.is_empty();
        let is_due = output.end() >= self.searched + pause as u64;
        if !is_plain || !is_due || !self.screen.scrolls_as_a_whole() {
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
    }

    /// The sequences that rebuild the screen with up to `above` rows above it, and the offset of the output that follows. It is the
    /// start of a sequence or character that is incomplete.
    pub(crate) fn rebuild(&mut self, output: &Scrollback, above: usize) -> (String, u64) {
        self.lay_out(output);
        (
            self.screen.rebuild(above),
            self.laid - self.rest.len() as u64,
        )
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
    let mut found = 0;
    let mut least = from;
    while end > least {
        let start = end.saturating_sub(4096).max(least);
        let bytes = bytes_between(output, start, end);
        let mut rest = &bytes[..];
        while found < count
            && let Some(at) = rest.iter().rposition(|byte| *byte == b'\n')
        {
            found += 1;
            rest = &rest[..at];
        }
        if found >= count {
            if let Some(at) = rest.iter().rposition(|byte| *byte == b'\r') {
                return Some(start + at as u64 + 1);
            }
            least = least.max(start.saturating_sub(PATIENCE));
        }
        end = start;
    }
    None
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

    /// Whether text scrolls the whole screen: there are no margins, and no long sequence is being skipped.
    fn scrolls_as_a_whole(&self) -> bool {
        let buffer = self.buffer();
        buffer.top == 0 && buffer.bottom + 1 == buffer.height() && self.skipped.is_none()
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
        let mut at = 0;
        while let Some(next) = bytes[at..].iter().position(|byte| *byte == ESC) {
            at += next;
            let taken = super::parser::parse_one(&bytes[at..], |params| self.apply(params));
            let Some(taken) = taken else {
                return at;
            };
            at += taken;
        }
        bytes.len()
    }
}

const ESC: u8 = 0x1b;

/// The offset of the last sequence that resets the style, or `from`.
fn last_reset(output: &Scrollback, from: u64, to: u64) -> u64 {
    const WINDOW: u64 = 4096;
    let mut end = to;
    while end > from {
        let start = end.saturating_sub(WINDOW).max(from);
        let bytes = bytes_between(output, start, end);
        let resets = |sequence: &[u8]| matches!(sequence, b"\x1b[m" | b"\x1b[0m" | b"\x1b[0;");
        let found = (0..bytes.len()).rev().find(|at| {
            let sequence = &bytes[*at..];
            resets(&sequence[..sequence.len().min(3)]) || resets(&sequence[..sequence.len().min(4)])
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
fn bytes_between(output: &Scrollback, from: u64, to: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((to - from) as usize);
    let mut at = from;
    while at < to {
        let (_, piece) = output.piece(at, (to - at) as usize);
        bytes.extend_from_slice(piece);
        at += piece.len() as u64;
    }
    bytes
}

/// Tells whether output is plain: text, line ends, tabs and sequences for colors and attributes.
#[derive(Debug)]
struct Skimmer {
    /// The output before this offset was looked at. It stays where it is once output is not plain.
    at: u64,
    /// Whether the output that is not laid out is plain so far.
    is_plain: bool,
    /// Whether it has any sequence.
    has_styles: bool,
    state: SkimState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SkimState {
    Text,
    Escape,
    Csi,
    /// After the first byte of the characters U+0080 to U+00BF, some of which are control characters.
    Latin,
}

impl Default for Skimmer {
    fn default() -> Self {
        Self {
            at: 0,
            is_plain: true,
            has_styles: false,
            state: SkimState::Text,
        }
    }
}

impl Skimmer {
    /// Starts again after all output before `at` was laid out. `is_at_unit` is false if the beginning of a sequence is left.
    fn restart(&mut self, at: u64, is_at_unit: bool) {
        self.at = at;
        self.is_plain = is_at_unit;
        self.has_styles = false;
        self.state = SkimState::Text;
    }

    /// Looks at new output.
    fn skim(&mut self, output: &Scrollback) {
        while self.is_plain && self.at < output.end() {
            let (_, piece) = output.piece(self.at, PENDING);
            self.at += piece.len() as u64;
            self.is_plain = self.take(piece);
        }
    }

    fn take(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            if self.state == SkimState::Text {
                // Most blocks have nothing but text. The compiler makes this a few instructions for each block.
                const BLOCK: usize = 16;
                while let Some((block, rest)) = bytes.split_first_chunk::<BLOCK>() {
                    if block
                        .iter()
                        .fold(false, |special, byte| special | is_special(*byte))
                    {
                        break;
                    }
                    bytes = rest;
                }
                let Some(next) = bytes.iter().position(|byte| is_special(*byte)) else {
                    return true;
                };
                bytes = &bytes[next..];
                // Most sequences are in one piece.
                if let [ESC, b'[', rest @ ..] = bytes
                    && let Some(last) = rest.iter().position(|byte| !matches!(byte, b'0'..=b';'))
                {
                    self.has_styles = true;
                    if rest[last] != b'm' {
                        return false;
                    }
                    bytes = &rest[last + 1..];
                    continue;
                }
            }
            let (byte, rest) = (bytes[0], &bytes[1..]);
            self.has_styles |= byte == ESC;
            self.state = match (self.state, byte) {
                (SkimState::Text, ESC) => SkimState::Escape,
                (SkimState::Text, 0xc2) => SkimState::Latin,
                (SkimState::Escape, b'[') => SkimState::Csi,
                (SkimState::Csi, b'0'..=b';') => SkimState::Csi,
                (SkimState::Csi, b'm') => SkimState::Text,
                (SkimState::Latin, 0xa0..) => SkimState::Text,
                _ => return false,
            };
            bytes = rest;
        }
        true
    }
}

/// Whether a byte is not part of plain text.
fn is_special(byte: u8) -> bool {
    (byte < 0x20) & (byte != b'\n') & (byte != b'\r') & (byte != b'\t')
        | (byte == 0x7f)
        | (byte == 0xc2)
}
