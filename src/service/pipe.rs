//! Non-blocking pipes to and from a program: a reader that yields lines or other messages, and a writer with a queue.

use std::io;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::time::Duration;

use rustix::io::Errno;

use super::framing::{Decoder, Framing};
use super::lines::Line;
use crate::record::{Loader, Record, RecordError, Saver, record};
use crate::sys::NonblockingFd;
use crate::{Context, Interest, Readiness, SourceId, TimerId};

/// The maximum number of bytes read at a time.
const READ: usize = 64 << 10;

/// The number of bytes after which [`Writer::write_slice`] lets the loop do other work.
const WRITTEN_AT_ONCE: usize = 1 << 20;

/// The interval between reads of a regular file, which has no readiness events.
const FILE_PAUSE: Duration = Duration::from_millis(1);

/// What causes the next read or write of a descriptor.
#[derive(Debug)]
pub(super) enum Trigger {
    /// A readiness event.
    Source(SourceId),
    /// A timer, if one is set. A regular file is always ready and has no readiness events.
    Timer(Option<TimerId>),
}

impl Trigger {
    pub(super) fn watch(
        ctx: &mut Context,
        fd: &NonblockingFd,
        interest: Interest,
    ) -> io::Result<Self> {
        match ctx.watch(fd, interest) {
            Ok(source) => Ok(Self::Source(source)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Self::Timer(None)),
            Err(error) => Err(error),
        }
    }

    pub(super) fn source(&self) -> Option<SourceId> {
        match self {
            Self::Source(source) => Some(*source),
            Self::Timer(_) => None,
        }
    }

    pub(super) fn is(&self, source: SourceId) -> bool {
        matches!(self, Self::Source(id) if *id == source)
    }

    pub(super) fn is_timer(&self, timer: TimerId) -> bool {
        matches!(self, Self::Timer(Some(id)) if *id == timer)
    }

    pub(super) fn again(&mut self, ctx: &mut Context, readiness: Readiness) {
        match self {
            Self::Source(source) => ctx.again(*source, readiness),
            Self::Timer(timer) => *timer = Some(ctx.set_timer(FILE_PAUSE)),
        }
    }

    pub(super) fn unwatch(&self, ctx: &mut Context) {
        match self {
            Self::Source(source) => ctx.unwatch(*source),
            Self::Timer(Some(timer)) => ctx.cancel_timer(*timer),
            Self::Timer(None) => {}
        }
    }
}

/// The state of a pipe after a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PipeState {
    /// The other end is open.
    Open,
    /// The other end is closed, or the pipe has failed.
    Closed,
}

/// Bytes that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct ByteQueue {
    bytes: Vec<u8>,
    /// How many of `bytes` have been written.
    written: usize,
}

impl ByteQueue {
    /// The buffer, to append to.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The number of bytes that wait.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// The bytes that wait.
    pub(crate) fn unwritten(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// Notes that the first `count` bytes that wait have been written.
    pub(crate) fn advance(&mut self, count: usize) {
        self.written += count;
    }

    /// Frees the space of written bytes, and the buffer if it is empty and larger than `capacity`.
    pub(crate) fn compact(&mut self, capacity: usize) {
        if self.len() == 0 {
            self.bytes.clear();
            self.written = 0;
            if self.bytes.capacity() > capacity {
                self.bytes = Vec::new();
            }
        } else if self.written > self.bytes.len() / 2 {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }
}

/// The bytes that wait.
impl Record for ByteQueue {
    fn is_default(&self) -> bool {
        self.len() == 0
    }

    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.put_bytes(self.unwritten());
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        let bytes = from.take_bytes()?;
        Ok(Self { bytes, written: 0 })
    }

    fn missing() -> Option<Self> {
        Some(Self::default())
    }
}

/// Reads lines, or messages with another framing, from a program.
#[derive(Debug)]
pub(crate) struct LineReader {
    fd: NonblockingFd,
    trigger: Trigger,
    decoder: Decoder,
    /// Bytes that were read but not passed on when a line paused the reader.
    rest: Vec<u8>,
    paused: bool,
    /// Why reading has failed.
    error: Option<Errno>,
}

record!(LineReader {
    fd,
    // What is watched depends on the process.
    trigger = Trigger::Timer(None),
    decoder,
    rest,
    paused,
    // The owner has closed a reader that has failed.
    error = None,
});

impl LineReader {
    /// Creates a reader for lines of at most `limit` bytes.
    pub(crate) fn new(ctx: &mut Context, fd: NonblockingFd, limit: usize) -> io::Result<Self> {
        Self::with_decoder(ctx, fd, Decoder::new(Framing::Lines, limit))
    }

    /// Reads what the decoder finds. Each message counts as a line.
    pub(crate) fn with_decoder(
        ctx: &mut Context,
        fd: NonblockingFd,
        decoder: Decoder,
    ) -> io::Result<Self> {
        let mut trigger = Trigger::watch(ctx, &fd, Interest::Readable)?;
        if matches!(trigger, Trigger::Timer(_)) {
            trigger.again(ctx, Readiness::default());
        }
        Ok(Self {
            fd,
            trigger,
            decoder,
            rest: Vec::new(),
            paused: false,
            error: None,
        })
    }

    /// Continues to read after the program has replaced itself.
    pub(crate) fn watch_again(&mut self, ctx: &mut Context) -> io::Result<()> {
        self.trigger = Trigger::watch(ctx, &self.fd, Interest::Readable)?;
        self.again(ctx);
        Ok(())
    }

    /// How messages are separated.
    pub(crate) fn framing(&self) -> Framing {
        self.decoder.framing()
    }

    /// The source of its events; `None` for a file.
    pub(crate) fn source(&self) -> Option<SourceId> {
        self.trigger.source()
    }

    /// Whether an event is for this reader.
    pub(crate) fn is(&self, source: SourceId) -> bool {
        self.trigger.is(source)
    }

    /// Whether a timer belongs to this reader.
    pub(crate) fn is_timer(&self, timer: TimerId) -> bool {
        self.trigger.is_timer(timer)
    }

    /// Why reading has failed. `None` after the end of the input.
    pub(crate) fn error(&self) -> Option<io::Error> {
        self.error.map(io::Error::from)
    }

    /// Reads once and calls `line` with each line. If `line` returns `Break`, the reader pauses until
    /// [`LineReader::resume`].
    pub(crate) fn read(
        &mut self,
        ctx: &mut Context,
        mut line: impl FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
    ) -> PipeState {
        if self.paused {
            return PipeState::Open;
        }
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            self.take(ctx, &rest, &mut line);
            self.again(ctx);
            return PipeState::Open;
        }
        let mut buffer = [MaybeUninit::uninit(); READ];
        match self.fd.read(&mut buffer) {
            Ok([]) => {
                self.decoder.finish(|number, text| line(ctx, number, text));
                return PipeState::Closed;
            }
            Ok(bytes) => self.take(ctx, bytes, &mut line),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return self.wait(ctx),
            Err(error) => {
                log::debug!("reading from a program failed: {error}");
                self.error = Some(error);
                return PipeState::Closed;
            }
        }
        self.again(ctx);
        PipeState::Open
    }

    fn take(
        &mut self,
        ctx: &mut Context,
        bytes: &[u8],
        line: &mut impl FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
    ) {
        let mut paused = false;
        let taken = self.decoder.push(bytes, |number, text| {
            let flow = line(ctx, number, text);
            paused |= flow.is_break();
            flow
        });
        self.paused |= paused;
        self.rest = bytes[taken..].to_vec();
    }

    /// Continues after `line` has paused the reader.
    pub(crate) fn resume(&mut self, ctx: &mut Context) {
        if std::mem::take(&mut self.paused) {
            self.again(ctx);
        }
    }

    /// Reads the remaining output of a program that has exited: to the end, or until the pipe is empty if another process
    /// still holds it. `line` cannot pause it.
    pub(crate) fn read_rest(
        &mut self,
        ctx: &mut Context,
        mut line: impl FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
    ) {
        // By default, a pipe holds at most a megabyte. The bound prevents a process that keeps writing from blocking the loop.
        for _ in 0..2 * (1 << 20) / READ {
            self.paused = false;
            let state = self.read(ctx, |ctx, number, text| {
                let _ = line(ctx, number, text);
                ControlFlow::Continue(())
            });
            if state == PipeState::Closed {
                return;
            }
        }
        self.decoder.finish(|number, text| line(ctx, number, text));
    }

    fn again(&mut self, ctx: &mut Context) {
        if !self.paused {
            self.trigger.again(
                ctx,
                Readiness {
                    readable: true,
                    writable: false,
                },
            );
        }
    }

    /// Handles a read without data: a file is read again later; other descriptors cause an event.
    fn wait(&mut self, ctx: &mut Context) -> PipeState {
        if matches!(self.trigger, Trigger::Timer(_)) {
            self.again(ctx);
        }
        PipeState::Open
    }

    /// Stops reading. The descriptor stays open until this is dropped.
    pub(crate) fn close(&mut self, ctx: &mut Context) {
        self.paused = true;
        self.trigger.unwatch(ctx);
    }
}

/// Writes bytes to a program, and queues them while it does not read.
#[derive(Debug)]
pub(crate) struct Writer {
    fd: NonblockingFd,
    trigger: Trigger,
    queue: ByteQueue,
    /// Whether writing has failed.
    broken: bool,
    /// Why, unless the reader has closed the pipe.
    error: Option<io::Error>,
    /// Whether a write is scheduled.
    scheduled: bool,
}

record!(Writer {
    fd,
    trigger = Trigger::Timer(None),
    queue,
    broken,
    error = None,
    scheduled = false,
});

impl Writer {
    /// Writes to a descriptor.
    pub(crate) fn new(ctx: &mut Context, fd: NonblockingFd) -> io::Result<Self> {
        let trigger = Trigger::watch(ctx, &fd, Interest::Writable)?;
        Ok(Self {
            fd,
            trigger,
            queue: ByteQueue::default(),
            broken: false,
            error: None,
            scheduled: false,
        })
    }

    /// Continues to write after the program has replaced itself.
    pub(crate) fn watch_again(&mut self, ctx: &mut Context) -> io::Result<()> {
        self.trigger = Trigger::watch(ctx, &self.fd, Interest::Writable)?;
        if self.queue.len() > 0 {
            self.schedule(ctx);
        }
        Ok(())
    }

    /// The source of its events; `None` for a file.
    pub(crate) fn source(&self) -> Option<SourceId> {
        self.trigger.source()
    }

    /// Whether an event is for this writer.
    pub(crate) fn is(&self, source: SourceId) -> bool {
        self.trigger.is(source)
    }

    /// Whether a timer belongs to this writer.
    pub(crate) fn is_timer(&self, timer: TimerId) -> bool {
        self.trigger.is_timer(timer)
    }

    /// Appends to the queue. It is written in this turn of the loop or the next, together with everything appended until then.
    pub(crate) fn append(&mut self, ctx: &mut Context, append: impl FnOnce(&mut Vec<u8>)) {
        append(self.queue.bytes());
        self.schedule(ctx);
    }

    fn schedule(&mut self, ctx: &mut Context) {
        if self.broken {
            self.queue = ByteQueue::default();
        } else if !std::mem::replace(&mut self.scheduled, true) {
            self.trigger.again(
                ctx,
                Readiness {
                    readable: false,
                    writable: true,
                },
            );
        }
    }

    /// The number of queued bytes.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Drops the queued bytes.
    pub(crate) fn clear(&mut self) {
        self.queue = ByteQueue::default();
    }

    /// Why writing has failed. `None` if the reader has closed the pipe.
    pub(crate) fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// Writes as much as the pipe takes. On failure it drops the queue and returns `Closed`.
    pub(crate) fn write(&mut self) -> PipeState {
        self.write_up_to(usize::MAX)
    }

    /// Writes as much as the pipe takes, in slices: a program that reads as fast as the server writes does not keep the loop from
    /// its other work.
    pub(crate) fn write_slice(&mut self, ctx: &mut Context) -> PipeState {
        let before = self.queue.len();
        let state = self.write_up_to(WRITTEN_AT_ONCE);
        if before - self.queue.len() >= WRITTEN_AT_ONCE && self.queue.len() > 0 {
            self.schedule(ctx);
        }
        state
    }

    fn write_up_to(&mut self, most: usize) -> PipeState {
        self.scheduled = false;
        let end = self.queue.len().saturating_sub(most);
        while self.queue.len() > end {
            match self.fd.write(self.queue.unwritten()) {
                Ok(count) => self.queue.advance(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    log::debug!("writing to a program failed: {error}");
                    self.broken = true;
                    self.error =
                        Some(error).filter(|error| error.kind() != io::ErrorKind::BrokenPipe);
                    self.queue = ByteQueue::default();
                    return PipeState::Closed;
                }
            }
        }
        self.queue.compact(4 * READ);
        PipeState::Open
    }

    /// Whether the other end is closed. A write would fail.
    pub(crate) fn is_closed(&self) -> bool {
        self.broken || self.fd.is_closed()
    }

    /// Closes the pipe: the program reads end of file after the written bytes.
    pub(crate) fn close(self, ctx: &mut Context) {
        self.trigger.unwatch(ctx);
    }
}
