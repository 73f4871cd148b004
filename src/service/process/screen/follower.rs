//! Follows the output of a program on a terminal, so that its screen is known when somebody asks.
//!
//! Output is laid out as late as possible, so a screen costs little while nobody asks for it. [`Skimmer`] looks for output that has only
//! text, line ends and colors. Such output is laid out when there is much of it, without the part that has scrolled away. The result is
//! the same as if everything had been laid out at once, which the tests and the fuzzer check.

use super::Screen;
use super::keys::KeyModes;
use super::snapshot::{Format, View};
use super::style::Style;
use crate::service::process::scrollback::Scrollback;
use crate::sys::TerminalSize;

/// Output with other sequences than colors is laid out from this many bytes on, which takes less than a millisecond.
const PENDING: usize = 32 << 10;

/// Plain output is kept up to this size, or half of the scrollback. If its lines are so long that nothing could be skipped, up to the
/// smaller size, because laying it out takes up to 20 ns for each byte.
const PENDING_PLAIN: usize = 512 << 10;
const PENDING_LONG: usize = 256 << 10;

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

    /// Notes that output was added. Lays it out if there is much.
    pub(crate) fn follow(&mut self, output: &Scrollback) {
        self.skimmer.skim(output);
        let pending = self.pending(output);
        let half = output.capacity() / 2;
        let limit = if self.skimmer.is_plain {
            PENDING_PLAIN.min(half)
        } else {
            PENDING.min(half)
        };
        if pending >= limit || (pending >= PENDING_LONG && self.has_long_lines(output)) {
            self.lay_out(output);
        }
    }

    /// Whether the output that is not laid out has too few lines for skipping any. Looks once at each output.
    fn has_long_lines(&mut self, output: &Scrollback) -> bool {
        let from = self.laid.max(output.start());
        !std::mem::replace(&mut self.skimmer.is_measured, true)
            && line_start(output, from, self.needed_lines()).is_none()
    }

    /// After so many lines, nothing that the screen shows now is left on it or in the history.
    fn needed_lines(&self) -> usize {
        2 * self.screen.height() + self.history + 2
    }

    /// Lays out all output.
    pub(crate) fn lay_out(&mut self, output: &Scrollback) {
        // Output that is no longer kept is skipped.
        let mut from = self.laid.max(output.start());
        if self.skimmer.is_plain && self.rest.is_empty() && self.screen.scrolls_as_a_whole() {
            let begin = from;
            from = self.skip(output, from);
            self.work += (from - begin) as usize / SKIPPED;
        }
        self.work += (output.end() - from) as usize / LAID_OUT;
        while from < output.end() {
            let (_, piece) = output.piece(from, PENDING);
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
        self.skimmer.restart(from, self.rest.is_empty());
    }

    /// Skips plain output that has scrolled out of the screen and its history. Returns the offset from which on output has to be
    /// laid out: the beginning of a line.
    fn skip(&mut self, output: &Scrollback, from: u64) -> u64 {
        let Some(cut) = line_start(output, from, self.needed_lines()) else {
            return from;
        };
        let style = self.screen.style;
        let style = if self.skimmer.has_styles {
            style_at(output, from, cut, style)
        } else {
            style
        };
        self.screen.begin_row(style);
        cut
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

/// The offset of the line with which the last `count` lines begin. It follows a carriage return and a line feed.
fn line_start(output: &Scrollback, from: u64, count: usize) -> Option<u64> {
    let mut end = output.end();
    let mut found = 0;
    while end > from {
        let start = end.saturating_sub(4096).max(from);
        let bytes = bytes_between(output, start, end);
        for (at, _) in bytes
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, byte)| **byte == b'\n')
        {
            found += 1;
            if found >= count && at > 0 && bytes[at - 1] == b'\r' {
                return Some(start + at as u64 + 1);
            }
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
        self.last_width = None;
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
    /// Whether the length of its lines was looked at.
    is_measured: bool,
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
            is_measured: false,
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
        self.is_measured = false;
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
                // Most blocks have nothing but text. The compiler makes this a few instructions for each 16 bytes.
                const BLOCK: usize = 64;
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
