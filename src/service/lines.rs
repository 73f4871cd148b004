//! Splits a stream of bytes into lines, whatever pieces it arrives in.

use std::ops::ControlFlow;

use super::framing::FramingError;
use crate::record::record;

/// A line, or a part of a line over the limit. With other [framings](super::Framing) than lines, a message takes the place
/// of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// A line without its line feed (and carriage return).
    Whole(&'a [u8]),
    /// The first bytes of a line over the limit, as soon as it exceeds the limit.
    TooLong(&'a [u8]),
    /// A piece of a line over the limit. All pieces together are the whole line, including its first bytes.
    Skipped(&'a [u8]),
    /// The end of a line over the limit.
    SkippedEnd,
    /// The stream cannot be divided any further. Only framings other than lines fail.
    Broken(&'a FramingError),
}

/// Returns `Break` if either argument is `Break`.
fn both(one: ControlFlow<()>, other: ControlFlow<()>) -> ControlFlow<()> {
    if one.is_break() { one } else { other }
}

/// The maximum length of [`Line::TooLong`].
const SHOWN: usize = 100;

/// Splits a stream into lines and numbers them from 1. It never buffers more than the limit.
#[derive(Debug)]
pub(crate) struct LineSplitter {
    limit: usize,
    held: Vec<u8>,
    /// Whether the current line is over the limit.
    skipping: bool,
    number: u64,
}

record!(LineSplitter {
    limit,
    held,
    skipping,
    number,
});

impl LineSplitter {
    /// Accepts lines of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            held: Vec::new(),
            skipping: false,
            number: 0,
        }
    }

    /// Takes the next piece and calls `line` with the number and the text of each line that it completes, until `line`
    /// returns `Break`. Returns the number of bytes consumed: all of them, or those up to the end of the line for which
    /// it returned `Break`.
    pub(crate) fn push(
        &mut self,
        piece: &[u8],
        mut line: impl FnMut(u64, Line<'_>) -> ControlFlow<()>,
    ) -> usize {
        let mut taken = 0;
        while let Some(at) = piece[taken..].iter().position(|&byte| byte == b'\n') {
            let part = &piece[taken..taken + at];
            taken += at + 1;
            let flow = both(self.take(part, &mut line), self.end(&mut line));
            if flow.is_break() {
                return taken;
            }
        }
        let _ = self.take(&piece[taken..], &mut line);
        piece.len()
    }

    /// Completes a last line without a line feed at the end of the stream.
    pub(crate) fn finish(&mut self, mut line: impl FnMut(u64, Line<'_>) -> ControlFlow<()>) {
        if !self.held.is_empty() || self.skipping {
            let _ = self.end(&mut line);
        }
    }

    /// Adds bytes to the current line.
    fn take(
        &mut self,
        bytes: &[u8],
        line: &mut impl FnMut(u64, Line<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let number = self.number + 1;
        if self.skipping {
            return line(number, Line::Skipped(bytes));
        }
        if self.held.len() + bytes.len() > self.limit {
            self.skipping = true;
            let held = std::mem::take(&mut self.held);
            let shown: Vec<u8> = held.iter().chain(bytes).take(SHOWN).copied().collect();
            let flow = both(
                line(number, Line::TooLong(&shown)),
                line(number, Line::Skipped(&held)),
            );
            return both(flow, line(number, Line::Skipped(bytes)));
        }
        self.held.extend_from_slice(bytes);
        ControlFlow::Continue(())
    }

    /// Completes the current line.
    fn end(&mut self, line: &mut impl FnMut(u64, Line<'_>) -> ControlFlow<()>) -> ControlFlow<()> {
        self.number += 1;
        let whole = self.held.strip_suffix(b"\r").unwrap_or(&self.held);
        let flow = if std::mem::take(&mut self.skipping) {
            line(self.number, Line::SkippedEnd)
        } else {
            line(self.number, Line::Whole(whole))
        };
        self.held.clear();
        if self.held.capacity() > 64 << 10 {
            self.held = Vec::new();
        }
        flow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(pieces: &[&[u8]], limit: usize) -> Vec<(u64, String)> {
        let mut got = Vec::new();
        let mut splitter = LineSplitter::new(limit);
        let mut skipped: Option<Vec<u8>> = None;
        let mut note = |number, line: Line<'_>| {
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            got.push((
                number,
                match line {
                    Line::Whole(bytes) => text(bytes),
                    Line::TooLong(bytes) => {
                        assert!(skipped.replace(Vec::new()).is_none() && bytes.len() <= SHOWN);
                        return ControlFlow::Break(());
                    }
                    Line::Skipped(bytes) => {
                        let skipped = skipped.as_mut().expect("a line that is too long");
                        skipped.extend_from_slice(bytes);
                        return ControlFlow::Break(());
                    }
                    Line::Broken(error) => unreachable!("{error}"),
                    Line::SkippedEnd => {
                        format!("TOO LONG {}", text(&skipped.take().expect("its pieces")))
                    }
                },
            ));
            // Breaking after each line and pushing the rest gives the same lines as not breaking.
            ControlFlow::Break(())
        };
        for piece in pieces {
            let mut taken = 0;
            while taken < piece.len() {
                taken += splitter.push(&piece[taken..], &mut note);
            }
        }
        splitter.finish(&mut note);
        got
    }

    #[test]
    fn lines_do_not_depend_on_the_pieces() {
        let bytes = b"one\ntwo\r\n\n12345678901\nfive\n12345678901";
        let want = split(&[bytes], 10);
        assert_eq!(want[0], (1, "one".into()));
        assert_eq!(want[1], (2, "two".into()));
        assert_eq!(want[2], (3, String::new()));
        assert_eq!((want[3].0, &want[3].1[..9]), (4, "TOO LONG "));
        assert_eq!(want[4], (5, "five".into()));
        assert_eq!(want[5].0, 6);
        for cut in 0..bytes.len() {
            let got = split(&[&bytes[..cut], &bytes[cut..]], 10);
            assert_eq!(got, want);
        }
    }

    #[test]
    fn a_line_may_be_as_long_as_the_limit_and_no_longer() {
        assert_eq!(split(&[b"1234567890\n"], 10), [(1, "1234567890".into())]);
        assert_eq!(
            split(&[b"12345678901\nx"], 10),
            [(1, "TOO LONG 12345678901".into()), (2, "x".into())]
        );
    }
}
