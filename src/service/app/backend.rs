//! The program of an app: a child process, or the process that started Outrigger. It receives events and writes commands.
//! Replies to it wait, within limits, while it does not read.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::ops::ControlFlow;
use std::time::Duration;

use super::command::TopicsOf;
use super::events::Events;
use crate::record::{RecordError, record};
use crate::service::child::{Child, ChildEvent, ProgramExit};
use crate::service::lines::Line;
use crate::service::pipe::{LineReader, PipeState, Writer};
use crate::sys::NonblockingFd;
use crate::{ClientId, Context, SourceId, Time, TimerId};

/// A child process, or Outrigger's own standard input and output.
#[derive(Debug)]
pub(super) enum Backend {
    Child(Box<Child>),
    /// The input stays open after its end, because it may be the same socket as the output.
    Stdio {
        input: Box<LineReader>,
        output: Writer,
        broken: bool,
    },
}

// Call [`Backend::watch_again`] after restoring it.
record!(enum Backend {
    Child(child),
    Stdio {
        input,
        output,
        broken,
    },
});

/// The result of a source or timer event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BackendEvent {
    Nothing,
    /// Standard input has ended.
    InputEnded,
    /// Standard output is closed.
    OutputEnded,
    /// The child has exited.
    Exited(ProgramExit),
}

impl Backend {
    /// Starts the child process. Uses Outrigger's own standard streams if `command` is empty.
    pub(super) fn start(ctx: &mut Context, command: &[String]) -> io::Result<Self> {
        let limit = super::line_limit(ctx);
        if !command.is_empty() {
            return Ok(Self::Child(Box::new(Child::spawn(ctx, command, limit)?)));
        }
        let input = NonblockingFd::shared(io::stdin())?;
        let output = NonblockingFd::shared(io::stdout())?;
        Ok(Self::Stdio {
            input: Box::new(LineReader::new(ctx, input, limit)?),
            output: Writer::new(ctx, output)?,
            broken: false,
        })
    }

    /// Continues after the program of the server has replaced itself.
    ///
    /// # Errors
    ///
    /// The process or its streams cannot be watched.
    pub(super) fn watch_again(&mut self, ctx: &mut Context) -> Result<(), RecordError> {
        let failed =
            |error| RecordError::new(format!("cannot watch the standard streams: {error}"));
        match self {
            Self::Child(child) => child.watch_again(ctx),
            Self::Stdio { input, output, .. } => {
                input.watch_again(ctx).map_err(failed)?;
                output.watch_again(ctx).map_err(failed)
            }
        }
    }

    /// The queue of events, unless its reader has closed it.
    pub(super) fn writer(&mut self) -> Option<&mut Writer> {
        match self {
            Self::Child(child) => child.stdin(),
            Self::Stdio { output, .. } => Some(output),
        }
    }

    /// The number of unread bytes of events.
    pub(super) fn queued(&mut self) -> usize {
        self.writer().map_or(0, |writer| writer.queued())
    }

    pub(super) fn handle_ready(
        &mut self,
        ctx: &mut Context,
        source: SourceId,
        line: impl FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
    ) -> BackendEvent {
        match self {
            Self::Child(child) => child.handle_ready(ctx, source, line).into(),
            Self::Stdio {
                input,
                output,
                broken,
            } => {
                if output.is(source) {
                    write(output, broken)
                } else if input.is(source) {
                    read(ctx, input, line)
                } else {
                    BackendEvent::Nothing
                }
            }
        }
    }

    pub(super) fn handle_timer(
        &mut self,
        ctx: &mut Context,
        timer: TimerId,
        line: impl FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
    ) -> BackendEvent {
        match self {
            Self::Child(child) => child.handle_timer(ctx, timer, line).into(),
            Self::Stdio {
                input,
                output,
                broken,
            } => {
                if output.is_timer(timer) {
                    write(output, broken)
                } else if input.is_timer(timer) {
                    read(ctx, input, line)
                } else {
                    BackendEvent::Nothing
                }
            }
        }
    }

    /// Resumes reading commands after a line stopped it.
    pub(super) fn resume(&mut self, ctx: &mut Context) {
        match self {
            Self::Child(child) => child.resume(ctx),
            Self::Stdio { input, .. } => input.resume(ctx),
        }
    }

    /// Stops the child. Standard streams need no action.
    pub(super) fn stop(&mut self, ctx: &mut Context) {
        match self {
            Self::Child(child) => child.stop(ctx),
            Self::Stdio { .. } => {}
        }
    }

    /// Whether the loop may end: all events have been written, or the stream is closed. Always false for a child, which
    /// is removed when it exits.
    pub(super) fn is_stopped(&self) -> bool {
        match self {
            Self::Child(_) => false,
            Self::Stdio { output, broken, .. } => *broken || output.queued() == 0,
        }
    }
}

impl From<ChildEvent> for BackendEvent {
    fn from(event: ChildEvent) -> Self {
        match event {
            ChildEvent::NotMine | ChildEvent::Handled => Self::Nothing,
            ChildEvent::Exited(exit) => Self::Exited(exit),
        }
    }
}

fn write(output: &mut Writer, broken: &mut bool) -> BackendEvent {
    if output.write() == PipeState::Closed && !std::mem::replace(broken, true) {
        return BackendEvent::OutputEnded;
    }
    BackendEvent::Nothing
}

fn read(
    ctx: &mut Context,
    input: &mut LineReader,
    line: impl FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
) -> BackendEvent {
    if input.read(ctx, line) == PipeState::Open {
        return BackendEvent::Nothing;
    }
    input.close(ctx);
    BackendEvent::InputEnded
}

/// The maximum number of replies that wait.
const MAX_REPLIES: usize = 256;
/// The maximum number of bytes that are kept for waiting replies.
const MAX_BYTES: usize = 64 << 10;

/// The maximum number of errors that are reported without a valid command in between.
const MAX_ERRORS: u32 = 100;
/// A valid command allows one more error report, at most once in this interval.
const ERROR_INTERVAL: Duration = Duration::from_millis(100);
/// After this many invalid lines in a row, the program's output is read slowly.
const INVALID_RUN: u32 = 1000;

/// A reply that waits.
#[derive(Debug)]
enum Reply {
    Error { message: String, line: u64 },
    Status { id: String },
    Topics { id: String, of: TopicsOf },
}

record!(enum Reply {
    Error { message, line },
    Status { id },
    Topics { id, of },
});

impl Reply {
    fn size(&self) -> usize {
        match self {
            Self::Error { message, .. } => message.len(),
            Self::Status { id } => id.len(),
            Self::Topics { id, of } => match of {
                TopicsOf::Members(topic) => id.len() + topic.len(),
                TopicsOf::All | TopicsOf::Client(_) => id.len(),
            },
        }
    }
}

/// The replies that wait.
#[derive(Debug)]
pub(super) struct ReplyQueue {
    waiting: VecDeque<Reply>,
    /// The bytes that are kept for waiting replies.
    bytes: usize,
    /// Clients whose output has drained and whose `drain` event waits.
    drained: BTreeSet<ClientId>,
    /// The number of replies that were left out and not reported yet, and the line of the last one.
    left_out: u64,
    left_out_line: u64,
    /// The number of errors that may still be reported.
    errors: u32,
    /// When a valid command last allowed one more.
    allowed_at: Option<Time>,
    /// The number of invalid lines in a row.
    invalid: u32,
}

record!(ReplyQueue {
    waiting,
    bytes,
    drained,
    left_out,
    left_out_line,
    errors,
    allowed_at,
    invalid,
});

impl Default for ReplyQueue {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            bytes: 0,
            drained: BTreeSet::new(),
            left_out: 0,
            left_out_line: 0,
            errors: MAX_ERRORS,
            allowed_at: None,
            invalid: 0,
        }
    }
}

impl ReplyQueue {
    /// Records a valid command.
    pub(super) fn record_valid(&mut self, now: Time) {
        self.invalid = 0;
        let is_due = |last| now.since(last) >= ERROR_INTERVAL;
        if self.errors < MAX_ERRORS && self.allowed_at.is_none_or(is_due) {
            self.errors += 1;
            self.allowed_at = Some(now);
        }
    }

    /// Queues the error of an invalid command.
    pub(super) fn push_error(&mut self, mut message: String, line: u64) {
        self.invalid = self.invalid.saturating_add(1);
        if self.errors == 0 {
            return self.leave_out(line);
        }
        self.errors -= 1;
        if self.errors == 0 {
            message.push_str("; no more errors are reported until a command is valid");
        }
        self.push(Reply::Error { message, line }, line);
    }

    /// Queues a status. `id` is JSON.
    pub(super) fn push_status(&mut self, id: String, line: u64) {
        self.push(Reply::Status { id }, line);
    }

    /// Queues a list of topics. `id` is JSON.
    pub(super) fn push_topics(&mut self, id: String, of: TopicsOf, line: u64) {
        self.push(Reply::Topics { id, of }, line);
    }

    /// Queues a `drain` event.
    pub(super) fn push_drained(&mut self, client: ClientId) {
        self.drained.insert(client);
    }

    /// Removes a client that has disconnected.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.drained.remove(&client);
    }

    /// The clients with a waiting `drain` event.
    pub(super) fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.drained.iter().copied()
    }

    /// Whether the last [`INVALID_RUN`] lines were all invalid.
    pub(super) fn only_invalid(&self) -> bool {
        self.invalid >= INVALID_RUN
    }

    fn push(&mut self, reply: Reply, line: u64) {
        let size = reply.size();
        if self.waiting.len() >= MAX_REPLIES || self.bytes + size > MAX_BYTES {
            return self.leave_out(line);
        }
        self.bytes += size;
        self.waiting.push_back(reply);
    }

    fn leave_out(&mut self, line: u64) {
        self.left_out += 1;
        self.left_out_line = line;
    }

    /// Moves replies to `events` until these have `limit` bytes.
    pub(super) fn flush_to(&mut self, ctx: &Context, events: &mut Events, limit: usize) {
        while events.len() < limit {
            if let Some(client) = self.drained.pop_first() {
                events.drain(client);
            } else if let Some(reply) = self.waiting.pop_front() {
                self.bytes -= reply.size();
                match reply {
                    Reply::Error { message, line } => events.error(&message, line, None),
                    Reply::Status { id } => events.status(&id, &ctx.status()),
                    Reply::Topics { id, of } => events.topics(ctx, &id, &of),
                }
            } else if self.left_out > 0 && self.errors > 0 {
                self.errors -= 1;
                let count = std::mem::take(&mut self.left_out);
                let message = format!("{count} errors and answers were left out");
                events.error(&message, self.left_out_line, Some(count));
            } else {
                return;
            }
        }
    }
}
