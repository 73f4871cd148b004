//! Output on standard streams: colors for terminals, in the help, in errors and in the log, and lines that are written without
//! blocking.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use log::Level;

use crate::sys::NonblockingFd;

const RESET: &str = "\x1b[0m";
const BOLD: &str = "\x1b[1m";
const CYAN: &str = "\x1b[36m";
const BOLD_RED: &str = "\x1b[1;31m";

/// Whether the text for a stream has colors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Colors(bool);

impl Colors {
    /// The colors of standard output.
    pub(super) fn stdout() -> Self {
        Self::of(io::stdout().is_terminal(), |name| std::env::var_os(name))
    }

    /// The colors of standard error, which are determined once.
    pub(super) fn stderr() -> Self {
        static COLORS: OnceLock<Colors> = OnceLock::new();
        *COLORS.get_or_init(|| Self::of(io::stderr().is_terminal(), |name| std::env::var_os(name)))
    }

    /// `NO_COLOR` turns colors off and `CLICOLOR_FORCE` turns them on. Otherwise, only a terminal that supports colors has them.
    fn of(is_terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let is_forced = given("CLICOLOR_FORCE").is_some_and(|value| value != "0");
        let has_colors = is_terminal && given("TERM").is_some_and(|term| term != "dumb");
        Self(given("NO_COLOR").is_none() && (is_forced || has_colors))
    }

    /// A heading of the help.
    pub(super) fn heading(self, text: &str) -> String {
        self.paint(BOLD, text)
    }

    /// The name of a command or an option.
    pub(super) fn name(self, text: &str) -> String {
        self.paint(CYAN, text)
    }

    /// The beginning of an error message.
    pub(super) fn error(self, text: &str) -> String {
        self.paint(BOLD_RED, text)
    }

    /// The level of a line of the log, padded to the width of the longest one.
    pub(super) fn level(self, level: Level) -> String {
        let color = match level {
            Level::Error => BOLD_RED,
            Level::Warn => "\x1b[33m",
            Level::Info => "\x1b[32m",
            Level::Debug => "\x1b[34m",
            Level::Trace => "\x1b[2m",
        };
        self.paint(color, &format!("{level:<5}"))
    }

    fn paint(self, color: &str, text: &str) -> String {
        if self.0 {
            format!("{color}{text}{RESET}")
        } else {
            text.to_owned()
        }
    }
}

/// Writes whole lines to a descriptor. A line that does not fit at once is dropped and counted.
#[derive(Debug)]
pub(super) struct LineOutput {
    /// `None` if there is no such descriptor: every line is dropped.
    fd: Option<NonblockingFd>,
    /// The rest of a line that was written in part.
    rest: Vec<u8>,
    /// The number of dropped lines that were not reported yet.
    dropped: u64,
    /// The number of dropped lines that were reported.
    reported: u64,
    /// Whether the last write failed for another reason than a lack of room.
    failed: bool,
}

impl LineOutput {
    pub(super) fn new(fd: io::Result<NonblockingFd>) -> Self {
        Self {
            fd: fd.ok(),
            rest: Vec::new(),
            dropped: 0,
            reported: 0,
            failed: false,
        }
    }

    /// The number of dropped lines since the start.
    pub(super) fn dropped_in_total(&self) -> u64 {
        self.reported + self.dropped
    }

    /// Writes a whole line or drops it. `notice` makes the line that reports how many lines were dropped.
    pub(super) fn line(&mut self, line: &[u8], notice: impl FnOnce(u64) -> Vec<u8>) {
        if !self.catch_up(notice) || !self.begin(line) {
            self.dropped += 1;
        }
    }

    /// Like [`LineOutput::line`], but waits for room, until the timeout or a signal. Returns whether the whole line was
    /// written.
    pub(super) fn line_within(
        &mut self,
        line: &[u8],
        timeout: Duration,
        notice: impl Fn(u64) -> Vec<u8>,
    ) -> bool {
        let deadline = Instant::now() + timeout;
        while !self.catch_up(&notice) || !self.begin(line) {
            if !self.wait(deadline) {
                self.dropped += 1;
                return false;
            }
        }
        while !self.finish() {
            if !self.wait(deadline) {
                return false;
            }
        }
        true
    }

    /// Writes the rest of a line, and reports dropped lines. Returns whether nothing is left to write.
    pub(super) fn catch_up(&mut self, notice: impl FnOnce(u64) -> Vec<u8>) -> bool {
        if !self.finish() {
            return false;
        }
        if self.dropped > 0 {
            if !self.begin(&notice(self.dropped)) {
                return false;
            }
            self.reported += std::mem::take(&mut self.dropped);
        }
        self.rest.is_empty()
    }

    /// Begins a line. The line before it must be complete. What does not fit follows later.
    fn begin(&mut self, line: &[u8]) -> bool {
        let written = self.write(line);
        if written == 0 {
            return false;
        }
        self.rest.extend_from_slice(&line[written..]);
        true
    }

    /// Writes the rest of a line. Returns whether the line is complete.
    fn finish(&mut self) -> bool {
        let rest = std::mem::take(&mut self.rest);
        let written = self.write(&rest);
        self.rest.extend_from_slice(&rest[written..]);
        self.rest.is_empty()
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        let Some(fd) = &self.fd else { return 0 };
        let mut written = 0;
        self.failed = false;
        while written < bytes.len() {
            match fd.write(&bytes[written..]) {
                Ok(0) => break,
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // There is no other place to report the error.
                    self.failed = error.kind() != io::ErrorKind::WouldBlock;
                    break;
                }
            }
        }
        written
    }

    /// Waits until there is room. Returns whether it is worth trying again.
    fn wait(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let fd = self.fd.as_ref().filter(|_| !self.failed);
        fd.is_some_and(|fd| !left.is_zero() && fd.wait_writable(left).is_ok())
    }
}

/// Prints to standard output. A reader that has gone is not an error.
pub(super) fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    drop(written.and_then(|()| stdout.flush()));
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn only_a_terminal_gets_colors_unless_a_variable_says_otherwise() {
        for (is_terminal, variables, colors) in [
            (true, &[("TERM", "xterm")][..], true),
            (false, &[("TERM", "xterm")], false),
            (true, &[("TERM", "dumb")], false),
            (true, &[], false),
            (true, &[("TERM", "xterm"), ("NO_COLOR", "1")], false),
            (true, &[("TERM", "xterm"), ("NO_COLOR", "")], true),
            (false, &[("CLICOLOR_FORCE", "1")], true),
            (false, &[("CLICOLOR_FORCE", "0")], false),
            (false, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false),
        ] {
            let variable = |name: &str| {
                let found = variables.iter().find(|(other, _)| *other == name);
                found.map(|(_, value)| OsString::from(value))
            };
            assert_eq!(Colors::of(is_terminal, variable).0, colors, "{variables:?}");
        }
        assert_eq!(Colors(false).level(Level::Warn), "WARN ");
        assert_eq!(Colors(true).level(Level::Warn), "\x1b[33mWARN \x1b[0m");
    }

    /// As long as a line, so that it does not fit where a line does not.
    fn notice(count: u64) -> Vec<u8> {
        format!("{count:03000}\n").into_bytes()
    }

    #[test]
    fn a_line_is_written_whole_or_counted_as_dropped() {
        // The bug: a log whose reader did not read blocked the server. A socket accepts a part of a line. A pipe accepts
        // all of it or nothing.
        let line = format!("{}\n", "x".repeat(3000));
        let (pipe_reader, pipe_writer) = io::pipe().expect("a pipe");
        let (socket_reader, socket_writer) = UnixStream::pair().expect("a pair");
        let ends: [(Box<dyn Read>, _); 2] = [
            (Box::new(pipe_reader), NonblockingFd::shared(pipe_writer)),
            (
                Box::new(socket_reader),
                NonblockingFd::shared(socket_writer),
            ),
        ];
        for (mut reader, writer) in ends {
            let mut output = LineOutput::new(writer);
            let mut sent = 0;
            while output.dropped < 5 {
                output.line(line.as_bytes(), notice);
                sent += 1;
            }
            let timeout = Duration::from_millis(1);
            assert!(!output.line_within(line.as_bytes(), timeout, notice));
            let mut text = vec![0; 100_000];
            let mut end = reader.read(&mut text).expect("there is some");
            output.line(b"next\n", notice);
            let last = [&notice(6)[..], b"next\n"].concat();
            while !text[..end].ends_with(&last) {
                end += reader.read(&mut text[end..]).expect("there is more");
                text.resize(end + 100_000, 0);
            }
            let whole = text[..end - last.len()].split_inclusive(|byte| *byte == b'\n');
            assert!(whole.clone().all(|whole| whole == line.as_bytes()));
            assert_eq!(whole.count(), sent - 5);
            assert_eq!(output.dropped_in_total(), 6);
        }
    }

    #[test]
    fn a_closed_pipe_is_not_waited_for() {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let mut output = LineOutput::new(NonblockingFd::shared(writer));
        let began = Instant::now();
        assert!(!output.line_within(b"x\n", Duration::from_secs(60), notice));
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
