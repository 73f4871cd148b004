//! Writes lines to a standard stream without blocking.

use std::io;
use std::time::{Duration, Instant};

use crate::sys::NonblockingFd;

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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

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
