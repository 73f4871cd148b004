//! Who the events go to and the commands come from.

use std::io;
use std::ops::ControlFlow;

use crate::service::child::{Child, ChildEvent, describe};
use crate::service::lines::Line;
use crate::service::pipe::{LineReader, PipeState, Writer};
use crate::sys::NonblockingFd;
use crate::{Context, SourceId, TimerId};

/// The other end: a program of ours, or whoever started us.
#[derive(Debug)]
pub(super) enum Peer {
    Program(Box<Child>),
    /// The input is kept after its end: it may be the same socket as the output.
    Stdio {
        input: LineReader,
        output: Writer,
        broken: bool,
    },
}

/// What came of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Happened {
    Nothing,
    /// There will be no more commands: the end of our own standard input.
    InputEnded,
    /// Nobody reads the events.
    OutputEnded,
    /// The program has ended, in words.
    Exited(String),
}

impl Peer {
    /// Starts the program, or takes our own standard streams if there is none.
    pub(super) fn start(ctx: &mut Context, command: &[String]) -> io::Result<Self> {
        let limit = super::line_limit(ctx);
        if !command.is_empty() {
            return Ok(Self::Program(Box::new(Child::spawn(ctx, command, limit)?)));
        }
        let input = NonblockingFd::shared(io::stdin())?;
        let output = NonblockingFd::shared(io::stdout())?;
        Ok(Self::Stdio {
            input: LineReader::new(ctx, input, limit)?,
            output: Writer::new(ctx, output)?,
            broken: false,
        })
    }

    /// Where events go, unless nobody reads them any more.
    pub(super) fn writer(&mut self) -> Option<&mut Writer> {
        match self {
            Self::Program(child) => child.stdin(),
            Self::Stdio { output, .. } => Some(output),
        }
    }

    /// Bytes of events that wait.
    pub(super) fn queued(&mut self) -> usize {
        self.writer().map_or(0, |writer| writer.queued())
    }

    pub(super) fn handle_ready(
        &mut self,
        ctx: &mut Context,
        source: SourceId,
        line: impl FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
    ) -> Happened {
        match self {
            Self::Program(child) => child.handle_ready(ctx, source, line).into(),
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
                    Happened::Nothing
                }
            }
        }
    }

    pub(super) fn handle_timer(
        &mut self,
        ctx: &mut Context,
        timer: TimerId,
        line: impl FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
    ) -> Happened {
        match self {
            Self::Program(child) => child.handle_timer(ctx, timer, line).into(),
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
                    Happened::Nothing
                }
            }
        }
    }

    /// Goes on taking commands after one of them said to stop.
    pub(super) fn resume(&mut self, ctx: &mut Context) {
        match self {
            Self::Program(child) => child.resume(ctx),
            Self::Stdio { input, .. } => input.resume(ctx),
        }
    }

    /// Ends the program; our own streams only have to be written to the end.
    pub(super) fn stop(&mut self, ctx: &mut Context) {
        match self {
            Self::Program(child) => child.stop(ctx),
            Self::Stdio { .. } => {}
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        match self {
            Self::Program(_) => false,
            Self::Stdio { output, broken, .. } => *broken || output.queued() == 0,
        }
    }
}

impl From<ChildEvent> for Happened {
    fn from(event: ChildEvent) -> Self {
        match event {
            ChildEvent::NotMine | ChildEvent::Handled => Self::Nothing,
            ChildEvent::Exited(status) => Self::Exited(describe(status)),
        }
    }
}

fn write(output: &mut Writer, broken: &mut bool) -> Happened {
    if output.write() == PipeState::Closed && !std::mem::replace(broken, true) {
        return Happened::OutputEnded;
    }
    Happened::Nothing
}

fn read(
    ctx: &mut Context,
    input: &mut LineReader,
    line: impl FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
) -> Happened {
    if input.read(ctx, line) == PipeState::Open {
        return Happened::Nothing;
    }
    input.close(ctx);
    Happened::InputEnded
}
