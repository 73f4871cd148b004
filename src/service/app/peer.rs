//! Who the events go to and the commands come from.

use std::io;
use std::os::fd::AsFd;

use crate::service::child::{Child, ChildEvent, describe};
use crate::service::lines::Line;
use crate::service::pipe::{LineReader, Stream, Writer};
use crate::{Context, SourceId, TimerId};

/// The other end: a program of ours, or whoever started us.
#[derive(Debug)]
pub(super) enum Peer {
    Program(Child),
    Stdio {
        input: Option<LineReader>,
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
        let limit = ctx.config().limits.max_message;
        if !command.is_empty() {
            return Ok(Self::Program(Child::spawn(ctx, command, limit)?));
        }
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let output = io::stdout().as_fd().try_clone_to_owned()?;
        Ok(Self::Stdio {
            input: Some(LineReader::new(ctx, input, limit)?),
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

    pub(super) fn handle_ready(
        &mut self,
        ctx: &mut Context,
        source: SourceId,
        line: impl FnMut(&mut Context, u64, Line<'_>),
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
                } else if input.as_ref().is_some_and(|input| input.is(source)) {
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
        line: impl FnMut(&mut Context, u64, Line<'_>),
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
                } else if input.as_ref().is_some_and(|input| input.is_timer(timer)) {
                    read(ctx, input, line)
                } else {
                    Happened::Nothing
                }
            }
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
    if output.write() == Stream::Ended && !std::mem::replace(broken, true) {
        return Happened::OutputEnded;
    }
    Happened::Nothing
}

fn read(
    ctx: &mut Context,
    input: &mut Option<LineReader>,
    line: impl FnMut(&mut Context, u64, Line<'_>),
) -> Happened {
    let Some(open) = input else {
        return Happened::Nothing;
    };
    if open.read(ctx, line) == Stream::Open {
        return Happened::Nothing;
    }
    input.take().into_iter().for_each(|input| input.close(ctx));
    Happened::InputEnded
}
