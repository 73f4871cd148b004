//! The receiver of events and source of commands: a child process, or the process that started Outrigger.

use std::io;

use crate::service::child::{Child, ChildEvent, describe};
use crate::service::lines::Line;
use crate::service::pipe::{LineReader, PipeState, Writer};
use crate::sys::NonblockingFd;
use crate::{Context, SourceId, TimerId};
use std::ops::ControlFlow;

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

/// The result of a source or timer event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BackendEvent {
    Nothing,
    /// Standard input has ended.
    InputEnded,
    /// Standard output is closed.
    OutputEnded,
    /// The child has exited. The text describes how.
    Exited(String),
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
            ChildEvent::Exited(status) => Self::Exited(describe(status)),
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
