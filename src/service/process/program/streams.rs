//! A program's streams: what it writes, and what is written to it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Signal;

use super::{Linger, Program};
use crate::service::process::scrollback::Stream;
use crate::sys::{TerminalSize, read_output, set_terminal_size};
use crate::{Context, Readiness, SourceId};

/// Bytes of output read in one turn: what becomes one message.
const READ_PER_TURN: usize = 64 << 10;

/// So much input may wait for a program before no more is taken.
const INPUT_HIGH: usize = 64 << 10;

/// Output that follows other output sooner than this is gathered, so that a flood of small writes becomes few messages.
const GATHER: Duration = Duration::from_millis(1);

/// One of the program's ways out.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) source: SourceId,
    pub(super) stream: Stream,
    /// Whether there may be something to read.
    pub(super) readable: bool,
}

/// The way in.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) source: SourceId,
    pub(super) queue: Vec<u8>,
    pub(super) written: usize,
    pub(super) writable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Input,
    Output,
}

impl Output {
    pub(super) fn new(fd: Arc<OwnedFd>, source: SourceId, stream: Stream) -> Self {
        Self {
            fd,
            source,
            stream,
            readable: false,
        }
    }
}

impl Input {
    pub(super) fn new(fd: Arc<OwnedFd>, source: SourceId) -> Self {
        Self {
            fd,
            source,
            queue: Vec::new(),
            written: 0,
            writable: true,
        }
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len() - self.written
    }
}

impl Program {
    /// Goes on reading, after readers had no room or the writer has changed.
    pub(crate) fn read_all(&mut self, ctx: &mut Context) {
        for at in (0..self.outputs.len()).rev() {
            if self.outputs[at].readable {
                self.read_output(ctx, at);
            }
        }
    }

    /// Reads a turn's worth.
    pub(super) fn read_output(&mut self, ctx: &mut Context, at: usize) {
        let output = &mut self.outputs[at];
        let mut left = READ_PER_TURN;
        let mut closed = false;
        while left > 0 && self.sink.wants_output() {
            let spare = self.sink.spare(left);
            match read_output(output.fd.as_fd(), spare) {
                Ok(0) => closed = true,
                Ok(count) => {
                    self.sink.commit(output.stream, count);
                    self.gathered += count;
                    left -= count;
                    if let Linger::Over(bytes) = &mut self.linger {
                        *bytes = bytes.saturating_sub(count);
                        closed = *bytes == 0;
                    }
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    output.readable = false;
                    closed = matches!(self.linger, Linger::Over(_));
                    break;
                }
                Err(error) => {
                    log::debug!("reading from process {} failed: {error}", self.id);
                    closed = true;
                }
            }
            if closed {
                break;
            }
        }
        if self.sink.is_over_limit() && self.exit.is_none() {
            log::info!("process {} wrote more than is taken: KILL", self.id);
            self.process.signal_group(Signal::KILL);
        }
        let now = ctx.now();
        if closed || self.gathered >= self.sink.batch() || now.since(self.sent_at) > GATHER {
            self.send_on(ctx);
        } else if self.gathered > 0 && self.send_at.is_none() {
            self.send_at = Some(now + GATHER);
        }
        if closed {
            let output = self.outputs.swap_remove(at);
            self.forget_source(ctx, output.source, Part::Output);
            self.check_finished(ctx);
        } else if self.outputs[at].readable && self.sink.wants_output() {
            let readiness = Readiness {
                readable: true,
                writable: false,
            };
            ctx.again(self.outputs[at].source, readiness);
        }
    }

    /// Sends on what was gathered.
    pub(super) fn send_on(&mut self, ctx: &mut Context) {
        self.sink.pump(ctx);
        self.gathered = 0;
        self.sent_at = ctx.now();
        self.send_at = None;
    }

    /// Unwatches a source when neither input nor output needs it any more.
    pub(super) fn forget_source(&self, ctx: &mut Context, source: SourceId, part: Part) {
        let needed = match part {
            Part::Output => self
                .input
                .as_ref()
                .is_some_and(|input| input.source == source),
            Part::Input => self.outputs.iter().any(|output| output.source == source),
        };
        if !needed {
            ctx.unwatch(source);
        }
    }

    /// Queues input. Returns whether the program can be written to at all.
    pub(crate) fn push_input(&mut self, ctx: &mut Context, bytes: &[u8]) -> bool {
        let Some(input) = &mut self.input else {
            return false;
        };
        input.queue.extend_from_slice(bytes);
        self.write_input(ctx);
        self.input.is_some()
    }

    /// Whether so much input waits that no more should come.
    pub(crate) fn is_behind(&self) -> bool {
        self.input
            .as_ref()
            .is_some_and(|input| input.queued() > INPUT_HIGH)
    }

    pub(super) fn write_input(&mut self, ctx: &mut Context) {
        let Some(input) = &mut self.input else { return };
        while input.writable && input.queued() > 0 {
            match rustix::io::write(&*input.fd, &input.queue[input.written..]) {
                Ok(count) => input.written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => input.writable = false,
                Err(error) => {
                    log::debug!("writing to process {} failed: {error}", self.id);
                    let source = input.source;
                    self.input = None;
                    return self.forget_source(ctx, source, Part::Input);
                }
            }
        }
        if input.queued() == 0 {
            input.queue.clear();
            input.written = 0;
            if input.queue.capacity() > 2 * INPUT_HIGH {
                input.queue = Vec::new();
            }
        } else if input.written > input.queue.len() / 2 {
            input.queue.drain(..input.written);
            input.written = 0;
        }
    }

    /// Gives its terminal another size.
    pub(crate) fn resize(&self, size: TerminalSize) -> io::Result<()> {
        match &self.terminal {
            Some(terminal) => set_terminal_size(terminal.as_fd(), size),
            None => Ok(()),
        }
    }
}
