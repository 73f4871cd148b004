//! The server's ends of a program's streams.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::service::pipe::{ByteQueue, PipeState};
use crate::service::process::scrollback::OutputStream;
use crate::sys::read_output;
use crate::{Context, Interest, Readiness, SourceId};

/// While more input than this is queued, no more is taken.
const INPUT_HIGH: usize = 64 << 10;

/// An output of the program: a pipe, or its terminal.
#[derive(Debug)]
pub(super) struct OutputPipe {
    fd: Arc<OwnedFd>,
    pub(super) source: SourceId,
    pub(super) stream: OutputStream,
    /// Whether there may be output to read.
    pub(super) readable: bool,
}

/// The input of the program: a pipe, or its terminal.
#[derive(Debug)]
pub(super) struct InputPipe {
    fd: Arc<OwnedFd>,
    pub(super) source: SourceId,
    queue: ByteQueue,
    pub(super) writable: bool,
}

/// Watches a terminal, which is both input and output.
pub(super) fn watch_terminal(
    ctx: &mut Context,
    terminal: &Arc<OwnedFd>,
) -> io::Result<(InputPipe, OutputPipe)> {
    let source = ctx.watch(terminal, Interest::Both)?;
    let input = InputPipe::new(Arc::clone(terminal), source);
    let output = OutputPipe::new(Arc::clone(terminal), source, OutputStream::Stdout);
    Ok((input, output))
}

impl OutputPipe {
    fn new(fd: Arc<OwnedFd>, source: SourceId, stream: OutputStream) -> Self {
        Self {
            fd,
            source,
            stream,
            readable: false,
        }
    }

    /// Watches a pipe.
    pub(super) fn watch(
        ctx: &mut Context,
        pipe: OwnedFd,
        stream: OutputStream,
    ) -> io::Result<Self> {
        set_nonblocking(&pipe)?;
        let source = ctx.watch(&pipe, Interest::Readable)?;
        Ok(Self::new(Arc::new(pipe), source, stream))
    }

    /// Reads output. Zero bytes mean that no process has the other end open.
    pub(super) fn read(&self, spare: &mut [u8]) -> rustix::io::Result<usize> {
        read_output(self.fd.as_fd(), spare)
    }

    /// Asks for another call of `ready` for the output.
    pub(super) fn read_again(&self, ctx: &mut Context) {
        let readiness = Readiness {
            readable: true,
            writable: false,
        };
        ctx.again(self.source, readiness);
    }
}

impl InputPipe {
    fn new(fd: Arc<OwnedFd>, source: SourceId) -> Self {
        Self {
            fd,
            source,
            queue: ByteQueue::default(),
            writable: true,
        }
    }

    /// Watches a pipe.
    pub(super) fn watch(ctx: &mut Context, pipe: OwnedFd) -> io::Result<Self> {
        set_nonblocking(&pipe)?;
        let source = ctx.watch(&pipe, Interest::Writable)?;
        Ok(Self::new(Arc::new(pipe), source))
    }

    /// Queues input.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.queue.bytes().extend_from_slice(bytes);
    }

    /// Whether so much input is queued that no more should be taken.
    pub(super) fn is_behind(&self) -> bool {
        self.queue.len() > INPUT_HIGH
    }

    /// Writes as much queued input as the program takes.
    pub(super) fn write(&mut self) -> PipeState {
        while self.writable && self.queue.len() > 0 {
            match rustix::io::write(&*self.fd, self.queue.unwritten()) {
                Ok(count) => self.queue.advance(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.writable = false,
                Err(error) => {
                    log::debug!("writing to a process failed: {error}");
                    return PipeState::Closed;
                }
            }
        }
        self.queue.compact(2 * INPUT_HIGH);
        PipeState::Open
    }
}

/// Makes the server's end of a pipe non-blocking. The program's end is another open file description and is not changed.
fn set_nonblocking(pipe: &OwnedFd) -> io::Result<()> {
    Ok(fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?)
}
