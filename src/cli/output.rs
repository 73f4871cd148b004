//! Lines to a standard stream, written without blocking.

use std::io;
use std::time::{Duration, Instant};

use outrigger::NonblockingFd;

/// Lines to a descriptor. One that cannot be written at once is dropped, and counted.
#[derive(Debug)]
pub(crate) struct Output {
    /// Without one everything is dropped.
    fd: Option<NonblockingFd>,
    /// The rest of a line that was written in part. It goes before the next line.
    rest: Vec<u8>,
    dropped: u64,
    /// Whether it failed when it was last written to, rather than having no room.
    failed: bool,
}

impl Output {
    pub(crate) fn new(fd: io::Result<NonblockingFd>) -> Self {
        Self {
            fd: fd.ok(),
            rest: Vec::new(),
            dropped: 0,
            failed: false,
        }
    }

    /// Writes a whole line, or drops it. `notice` makes the line that says how many were dropped before.
    pub(crate) fn line(&mut self, line: &[u8], notice: impl FnOnce(u64) -> Vec<u8>) {
        if !self.catch_up(notice) || !self.begin(line) {
            self.dropped += 1;
        }
    }

    /// Like [`Output::line`], but waits for room up to this long. A signal ends the wait. Returns whether the whole
    /// line was written.
    pub(crate) fn line_within(
        &mut self,
        line: &[u8],
        patience: Duration,
        notice: impl Fn(u64) -> Vec<u8>,
    ) -> bool {
        let deadline = Instant::now() + patience;
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

    /// Writes what is left of a line, and how many were dropped.
    pub(crate) fn catch_up(&mut self, notice: impl FnOnce(u64) -> Vec<u8>) -> bool {
        if !self.finish() {
            return false;
        }
        if self.dropped > 0 {
            if !self.begin(&notice(self.dropped)) {
                return false;
            }
            self.dropped = 0;
        }
        self.rest.is_empty()
    }

    /// Begins a line, after the one before it is whole. What is not taken now follows later.
    fn begin(&mut self, line: &[u8]) -> bool {
        let written = self.write(line);
        if written == 0 {
            return false;
        }
        self.rest.extend_from_slice(&line[written..]);
        true
    }

    /// Writes the rest of a line.
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

    /// Waits until there is room again.
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

    /// As long as the lines, so that it finds no room where they do not.
    fn notice(count: u64) -> Vec<u8> {
        format!("{count:03000}\n").into_bytes()
    }

    #[test]
    fn lines_are_whole_or_missing_and_those_that_miss_are_counted() {
        // The bug: the log was written to a reader that did not read, and the server stood still. A socket takes a part of a
        // line; a pipe takes all of it or nothing.
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
            let mut output = Output::new(writer);
            let mut sent = 0;
            while output.dropped < 5 {
                output.line(line.as_bytes(), notice);
                sent += 1;
            }
            let patience = Duration::from_millis(1);
            assert!(!output.line_within(line.as_bytes(), patience, notice));
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
        }
    }

    #[test]
    fn nobody_is_waited_for_who_is_gone() {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let mut output = Output::new(NonblockingFd::shared(writer));
        let began = Instant::now();
        assert!(!output.line_within(b"x\n", Duration::from_secs(60), notice));
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
