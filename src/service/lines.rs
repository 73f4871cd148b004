//! Lines out of a stream of bytes that is cut anywhere.

/// A line, or what is known of one that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// A line without its line feed (and carriage return).
    Whole(&'a [u8]),
    /// The first bytes of a line over the limit, told as soon as it is over.
    TooLong(&'a [u8]),
    /// A piece of that line, which is thrown away; all of them together are the line.
    Skipped(&'a [u8]),
    /// The end of that line.
    SkippedEnd,
}

/// Whether more lines are wanted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// The next one, if there is one.
    GoOn,
    /// None until reading is resumed.
    Stop,
}

impl Flow {
    /// Stops if either does.
    fn and(self, other: Self) -> Self {
        if self == Self::Stop { self } else { other }
    }
}

/// How many bytes are shown of a line that is too long.
const SHOWN: usize = 100;

/// Splits a stream into lines and numbers them from 1. What it holds never exceeds the limit.
#[derive(Debug)]
pub(crate) struct LineSplitter {
    limit: usize,
    held: Vec<u8>,
    /// Whether the rest of the present line is thrown away.
    skipping: bool,
    number: u64,
}

impl LineSplitter {
    /// A splitter for lines of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            held: Vec::new(),
            skipping: false,
            number: 0,
        }
    }

    /// Takes the next piece and calls `line` with each line it completes and the line's number, until that says to
    /// stop. Returns how many bytes were taken: all, or up to the line after which it stopped.
    pub(crate) fn push(
        &mut self,
        piece: &[u8],
        mut line: impl FnMut(u64, Line<'_>) -> Flow,
    ) -> usize {
        let mut taken = 0;
        while let Some(at) = piece[taken..].iter().position(|&byte| byte == b'\n') {
            let part = &piece[taken..taken + at];
            taken += at + 1;
            let flow = self.take(part, &mut line).and(self.end(&mut line));
            if flow == Flow::Stop {
                return taken;
            }
        }
        let _ = self.take(&piece[taken..], &mut line);
        piece.len()
    }

    /// The stream has ended: a last line may lack its line feed.
    pub(crate) fn finish(&mut self, mut line: impl FnMut(u64, Line<'_>) -> Flow) {
        if !self.held.is_empty() || self.skipping {
            let _ = self.end(&mut line);
        }
    }

    /// Adds to the present line.
    fn take(&mut self, bytes: &[u8], line: &mut impl FnMut(u64, Line<'_>) -> Flow) -> Flow {
        let number = self.number + 1;
        if self.skipping {
            return line(number, Line::Skipped(bytes));
        }
        if self.held.len() + bytes.len() > self.limit {
            self.skipping = true;
            let held = std::mem::take(&mut self.held);
            let shown: Vec<u8> = held.iter().chain(bytes).take(SHOWN).copied().collect();
            return line(number, Line::TooLong(&shown))
                .and(line(number, Line::Skipped(&held)))
                .and(line(number, Line::Skipped(bytes)));
        }
        self.held.extend_from_slice(bytes);
        Flow::GoOn
    }

    /// Ends the present line.
    fn end(&mut self, line: &mut impl FnMut(u64, Line<'_>) -> Flow) -> Flow {
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
                        return Flow::Stop;
                    }
                    Line::Skipped(bytes) => {
                        let skipped = skipped.as_mut().expect("a line that is too long");
                        skipped.extend_from_slice(bytes);
                        return Flow::Stop;
                    }
                    Line::SkippedEnd => {
                        format!("TOO LONG {}", text(&skipped.take().expect("its pieces")))
                    }
                },
            ));
            // Stopping and going on is the same as not stopping.
            Flow::Stop
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
    fn any_cut_gives_the_same_lines() {
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
    fn a_line_of_the_limit_passes_and_one_more_byte_does_not() {
        assert_eq!(split(&[b"1234567890\n"], 10), [(1, "1234567890".into())]);
        assert_eq!(
            split(&[b"12345678901\nx"], 10),
            [(1, "TOO LONG 12345678901".into()), (2, "x".into())]
        );
    }
}
