//! Pipes to and from a program, in the loop.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::io::Errno;

use super::lines::{Flow, Line, LineSplitter};
use crate::sys::NonblockingFd;
use crate::{Context, Interest, Readiness, SourceId, TimerId};

/// Bytes read in one turn.
const READ: usize = 64 << 10;

/// Between two looks at something that has no readiness: a file.
const FILE_PAUSE: Duration = Duration::from_millis(1);

/// How a descriptor tells that it is ready.
#[derive(Debug)]
enum Readying {
    /// By events.
    Source(SourceId),
    /// Not at all, as with a file, which always is: a timer gives it its turns.
    Timer(Option<TimerId>),
}

impl Readying {
    fn watch(ctx: &mut Context, fd: &NonblockingFd, interest: Interest) -> io::Result<Self> {
        match ctx.watch(fd, interest) {
            Ok(source) => Ok(Self::Source(source)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Self::Timer(None)),
            Err(error) => Err(error),
        }
    }

    fn source(&self) -> Option<SourceId> {
        match self {
            Self::Source(source) => Some(*source),
            Self::Timer(_) => None,
        }
    }

    fn is(&self, source: SourceId) -> bool {
        matches!(self, Self::Source(id) if *id == source)
    }

    fn is_timer(&self, timer: TimerId) -> bool {
        matches!(self, Self::Timer(Some(id)) if *id == timer)
    }

    fn again(&mut self, ctx: &mut Context, readiness: Readiness) {
        match self {
            Self::Source(source) => ctx.again(*source, readiness),
            Self::Timer(timer) => *timer = Some(ctx.set_timer(FILE_PAUSE)),
        }
    }

    fn unwatch(&self, ctx: &mut Context) {
        match self {
            Self::Source(source) => ctx.unwatch(*source),
            Self::Timer(Some(timer)) => ctx.cancel_timer(*timer),
            Self::Timer(None) => {}
        }
    }
}

/// Whether more will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// The other end is open.
    Open,
    /// It is closed, or failed.
    Ended,
}

/// Lines from a program.
#[derive(Debug)]
pub(crate) struct LineReader {
    fd: NonblockingFd,
    readying: Readying,
    lines: LineSplitter,
    /// What was read and not taken when it was told to stop.
    rest: Vec<u8>,
    stopped: bool,
}

impl LineReader {
    /// Reads lines of at most `limit` bytes.
    pub(crate) fn new(ctx: &mut Context, fd: NonblockingFd, limit: usize) -> io::Result<Self> {
        let mut readying = Readying::watch(ctx, &fd, Interest::Readable)?;
        if matches!(readying, Readying::Timer(_)) {
            readying.again(ctx, Readiness::default());
        }
        Ok(Self {
            fd,
            readying,
            lines: LineSplitter::new(limit),
            rest: Vec::new(),
            stopped: false,
        })
    }

    /// What its events come from, unless it is a file.
    pub(crate) fn source(&self) -> Option<SourceId> {
        self.readying.source()
    }

    /// Whether an event is for this reader.
    pub(crate) fn is(&self, source: SourceId) -> bool {
        self.readying.is(source)
    }

    /// Whether a timer is this reader's.
    pub(crate) fn is_timer(&self, timer: TimerId) -> bool {
        self.readying.is_timer(timer)
    }

    /// Reads a turn's worth and calls `line` with each line. Where that says to stop, nothing more is read until
    /// [`LineReader::resume`].
    pub(crate) fn read(
        &mut self,
        ctx: &mut Context,
        mut line: impl FnMut(&mut Context, u64, Line<'_>) -> Flow,
    ) -> Stream {
        if self.stopped {
            return Stream::Open;
        }
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            self.take(ctx, &rest, &mut line);
            self.again(ctx);
            return Stream::Open;
        }
        let mut buffer = [MaybeUninit::uninit(); READ];
        match self.fd.read(&mut buffer) {
            Ok([]) => {
                self.lines.finish(|number, text| line(ctx, number, text));
                return Stream::Ended;
            }
            Ok(bytes) => self.take(ctx, bytes, &mut line),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return self.wait(ctx),
            Err(error) => {
                log::debug!("reading from a program failed: {error}");
                return Stream::Ended;
            }
        }
        self.again(ctx);
        Stream::Open
    }

    fn take(
        &mut self,
        ctx: &mut Context,
        bytes: &[u8],
        line: &mut impl FnMut(&mut Context, u64, Line<'_>) -> Flow,
    ) {
        let mut stopped = false;
        let taken = self.lines.push(bytes, |number, text| {
            let flow = line(ctx, number, text);
            stopped |= flow == Flow::Stop;
            flow
        });
        self.stopped |= stopped;
        self.rest = bytes[taken..].to_vec();
    }

    /// Goes on after `line` said to stop.
    pub(crate) fn resume(&mut self, ctx: &mut Context) {
        if std::mem::take(&mut self.stopped) {
            self.again(ctx);
        }
    }

    /// Reads all that a program has written that has ended meanwhile: to the end, or until there is nothing, where
    /// another process still holds the pipe. Nothing stops it.
    pub(crate) fn read_rest(
        &mut self,
        ctx: &mut Context,
        mut line: impl FnMut(&mut Context, u64, Line<'_>) -> Flow,
    ) {
        // A pipe holds at most a megabyte, unless an administrator allowed more; who goes on writing is not waited for.
        for _ in 0..2 * (1 << 20) / READ {
            self.stopped = false;
            let ended = self.read(ctx, |ctx, number, text| {
                line(ctx, number, text);
                Flow::GoOn
            });
            if ended == Stream::Ended {
                return;
            }
        }
    }

    fn again(&mut self, ctx: &mut Context) {
        if !self.stopped {
            self.readying.again(
                ctx,
                Readiness {
                    readable: true,
                    writable: false,
                },
            );
        }
    }

    /// Nothing to read now: a file is looked at again later, anything else tells.
    fn wait(&mut self, ctx: &mut Context) -> Stream {
        if matches!(self.readying, Readying::Timer(_)) {
            self.again(ctx);
        }
        Stream::Open
    }

    /// Ends reading. The descriptor stays as it is until this is dropped.
    pub(crate) fn close(&mut self, ctx: &mut Context) {
        self.stopped = true;
        self.readying.unwatch(ctx);
    }
}

/// Bytes to a program, queued while it does not read.
#[derive(Debug)]
pub(crate) struct Writer {
    fd: NonblockingFd,
    readying: Readying,
    queue: Vec<u8>,
    /// Bytes of the queue that were written.
    written: usize,
    broken: bool,
    /// Whether a turn was asked for to write what was queued.
    asked: bool,
}

impl Writer {
    /// Writes to a descriptor.
    pub(crate) fn new(ctx: &mut Context, fd: NonblockingFd) -> io::Result<Self> {
        let readying = Readying::watch(ctx, &fd, Interest::Writable)?;
        Ok(Self {
            fd,
            readying,
            queue: Vec::new(),
            written: 0,
            broken: false,
            asked: false,
        })
    }

    /// What its events come from, unless it is a file.
    pub(crate) fn source(&self) -> Option<SourceId> {
        self.readying.source()
    }

    /// Whether an event is for this writer.
    pub(crate) fn is(&self, source: SourceId) -> bool {
        self.readying.is(source)
    }

    /// Whether a timer is this writer's.
    pub(crate) fn is_timer(&self, timer: TimerId) -> bool {
        self.readying.is_timer(timer)
    }

    /// The queue, to append to; `written_to` has to follow.
    pub(crate) fn queue(&mut self) -> &mut Vec<u8> {
        &mut self.queue
    }

    /// Has what was appended written in the next turn, together with what follows until then.
    pub(crate) fn written_to(&mut self, ctx: &mut Context) {
        if self.broken {
            self.queue.clear();
            self.written = 0;
        } else if !std::mem::replace(&mut self.asked, true) {
            self.readying.again(
                ctx,
                Readiness {
                    readable: false,
                    writable: true,
                },
            );
        }
    }

    /// Bytes that wait.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len() - self.written
    }

    /// Writes what the other end takes. `Ended` if it takes nothing any more; what is queued is lost then.
    pub(crate) fn write(&mut self) -> Stream {
        self.asked = false;
        while self.written < self.queue.len() {
            match self.fd.write(&self.queue[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    log::debug!("writing to a program failed: {error}");
                    self.broken = true;
                    self.queue = Vec::new();
                    self.written = 0;
                    return Stream::Ended;
                }
            }
        }
        if self.written == self.queue.len() {
            self.queue.clear();
            self.written = 0;
            if self.queue.capacity() > 4 * READ {
                self.queue = Vec::new();
            }
        } else if self.written > self.queue.len() / 2 {
            self.queue.drain(..self.written);
            self.written = 0;
        }
        Stream::Open
    }

    /// Ends writing: the program reads an end after what was written.
    pub(crate) fn close(self, ctx: &mut Context) {
        self.readying.unwatch(ctx);
    }
}
