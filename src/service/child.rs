//! A program that is run beside the loop: its three pipes, its end, and how it is stopped.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::lines::{Flow, Line};
use super::pipe::{LineReader, Stream, Writer};
use super::text::printable;
use crate::sys::{Beginning, NonblockingFd, Process, exit_descriptor};
use crate::{Context, Interest, SourceId, TimerId};

/// From closing a program's input to TERM.
const CLOSED_GRACE: Duration = Duration::from_secs(2);
/// From TERM to KILL.
const TERM_GRACE: Duration = Duration::from_secs(5);
/// Between two looks for the end where the system cannot tell of it.
const EXIT_POLL: Duration = Duration::from_millis(50);
/// The most bytes of a line of stderr that go into the log.
const LOG_LINE: usize = 4096;

/// What a program was asked to do about ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopping {
    Not,
    /// Its input was closed.
    Closed(TimerId),
    /// It was sent TERM.
    Terminated(TimerId),
    Killed,
}

/// A running program.
#[derive(Debug)]
pub(crate) struct Child {
    name: String,
    process: Process,
    stdin: Option<Writer>,
    stdout: Option<LineReader>,
    stderr: Option<LineReader>,
    exit: Option<(OwnedFd, SourceId)>,
    exit_poll: Option<TimerId>,
    /// Whether it has ended and was waited for.
    ended: bool,
    stopping: Stopping,
}

/// What an event meant for a child.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChildEvent {
    /// It was not for this child.
    NotMine,
    /// It was handled.
    Handled,
    /// The program has ended, and all it wrote has been handed on. The status is unknown where another part of the
    /// system has waited for it.
    Exited(Option<ExitStatus>),
}

impl Child {
    /// Starts a program. Lines it writes may have `limit` bytes.
    pub(crate) fn spawn(ctx: &mut Context, command: &[String], limit: usize) -> io::Result<Self> {
        let [name, args @ ..] = command else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(name);
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let process = Process::start(&mut command, Beginning::default()).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {name:?}: {error}"))
        })?;
        let mut child = Self {
            name: name.clone(),
            process,
            stdin: None,
            stdout: None,
            stderr: None,
            exit: None,
            exit_poll: None,
            ended: false,
            stopping: Stopping::Not,
        };
        if let Err(error) = child.attach(ctx, limit) {
            // The process goes with the child; what was watched of it must not stay behind.
            child.unwatch(ctx);
            return Err(error);
        }
        log::info!("started {name:?}, pid {}", child.process.id());
        Ok(child)
    }

    /// Has the loop wait for the program's pipes and its end.
    fn attach(&mut self, ctx: &mut Context, limit: usize) -> io::Result<()> {
        let [stdin, stdout, stderr] = self.process.streams();
        if let Some(pipe) = stdin {
            self.stdin = Some(Writer::new(ctx, NonblockingFd::own(pipe)?)?);
        }
        if let Some(pipe) = stdout {
            self.stdout = Some(LineReader::new(ctx, NonblockingFd::own(pipe)?, limit)?);
        }
        if let Some(pipe) = stderr {
            self.stderr = Some(LineReader::new(ctx, NonblockingFd::own(pipe)?, LOG_LINE)?);
        }
        match exit_descriptor(self.process.id())? {
            Some(fd) => {
                let source = ctx.watch(&fd, Interest::Readable)?;
                self.exit = Some((fd, source));
            }
            None => self.exit_poll = Some(ctx.set_timer(EXIT_POLL)),
        }
        Ok(())
    }

    /// Goes on reading the program's output after a line of it said to stop.
    pub(crate) fn resume(&mut self, ctx: &mut Context) {
        if let Some(stdout) = &mut self.stdout {
            stdout.resume(ctx);
        }
    }

    /// Whether it runs but has closed its input or output: nothing more can be asked of it, or answered by it.
    pub(crate) fn is_cut_off(&self) -> bool {
        !self.ended && (self.stdin.is_none() || self.stdout.is_none())
    }

    /// What its events come from.
    pub(crate) fn sources(&self) -> impl Iterator<Item = SourceId> {
        let stdin = self.stdin.as_ref().and_then(Writer::source);
        let readers = [self.stdout.as_ref(), self.stderr.as_ref()];
        let readers = readers.map(|reader| reader.and_then(LineReader::source));
        let exit = self.exit.as_ref().map(|(_, source)| *source);
        [stdin, readers[0], readers[1], exit].into_iter().flatten()
    }

    /// The program's input, unless it was closed.
    pub(crate) fn stdin(&mut self) -> Option<&mut Writer> {
        self.stdin.as_mut()
    }

    /// Handles readiness. Lines of stdout go to `line`, those of stderr into the log.
    pub(crate) fn handle_ready(
        &mut self,
        ctx: &mut Context,
        source: SourceId,
        mut line: impl FnMut(&mut Context, u64, Line<'_>) -> Flow,
    ) -> ChildEvent {
        if self.stdin.as_ref().is_some_and(|stdin| stdin.is(source)) {
            self.write(ctx);
        } else if self.stdout.as_ref().is_some_and(|stdout| stdout.is(source)) {
            read(ctx, &mut self.stdout, &mut line);
        } else if self.stderr.as_ref().is_some_and(|stderr| stderr.is(source)) {
            read(ctx, &mut self.stderr, log_line);
        } else if self.exit.as_ref().is_some_and(|(_, exit)| *exit == source) {
            return self.check_exit(ctx, line);
        } else {
            return ChildEvent::NotMine;
        }
        ChildEvent::Handled
    }

    /// Handles a timer.
    pub(crate) fn handle_timer(
        &mut self,
        ctx: &mut Context,
        timer: TimerId,
        line: impl FnMut(&mut Context, u64, Line<'_>) -> Flow,
    ) -> ChildEvent {
        match self.stopping {
            Stopping::Closed(grace) if grace == timer => {
                log::info!("{:?} did not end with its input: TERM", self.name);
                self.process.signal_group(Signal::TERM);
                self.stopping = Stopping::Terminated(ctx.set_timer(TERM_GRACE));
                return ChildEvent::Handled;
            }
            Stopping::Terminated(grace) if grace == timer => {
                log::warn!("{:?} did not end with TERM: KILL", self.name);
                self.process.signal_group(Signal::KILL);
                self.stopping = Stopping::Killed;
                return ChildEvent::Handled;
            }
            _ => {}
        }
        if self.exit_poll == Some(timer) {
            self.exit_poll = Some(ctx.set_timer(EXIT_POLL));
            return self.check_exit(ctx, line);
        }
        ChildEvent::NotMine
    }

    /// Writes what is queued for the program, and closes its input if that was asked for.
    fn write(&mut self, ctx: &mut Context) {
        let Some(stdin) = &mut self.stdin else { return };
        let ended = stdin.write() == Stream::Ended;
        if ended {
            log::warn!("{:?} does not read its input any more", self.name);
        }
        if ended || (self.stopping != Stopping::Not && stdin.queued() == 0) {
            self.stdin
                .take()
                .into_iter()
                .for_each(|stdin| stdin.close(ctx));
        }
    }

    /// Asks the program to end: its input is closed after what is queued, and if that is not enough TERM and KILL
    /// follow.
    pub(crate) fn stop(&mut self, ctx: &mut Context) {
        if self.stopping == Stopping::Not && !self.ended {
            self.stopping = Stopping::Closed(ctx.set_timer(CLOSED_GRACE));
            self.write(ctx);
        }
    }

    fn check_exit(
        &mut self,
        ctx: &mut Context,
        mut line: impl FnMut(&mut Context, u64, Line<'_>) -> Flow,
    ) -> ChildEvent {
        if self.ended || !self.process.has_ended() {
            return ChildEvent::Handled;
        }
        // What it has started and left behind in its group goes with it.
        self.process.signal_group(Signal::KILL);
        let status = self.process.wait();
        // What it wrote before it ended is in the pipes and is not lost.
        if let Some(stdout) = &mut self.stdout {
            stdout.read_rest(ctx, &mut line);
        }
        if let Some(stderr) = &mut self.stderr {
            stderr.read_rest(ctx, log_line);
        }
        self.ended = true;
        self.unwatch(ctx);
        log::info!("{:?} {}", self.name, describe(status));
        ChildEvent::Exited(status)
    }

    fn unwatch(&mut self, ctx: &mut Context) {
        self.stdin
            .take()
            .into_iter()
            .for_each(|stdin| stdin.close(ctx));
        for mut reader in [self.stdout.take(), self.stderr.take()]
            .into_iter()
            .flatten()
        {
            reader.close(ctx);
        }
        if let Some((_, source)) = self.exit.take() {
            ctx.unwatch(source);
        }
        self.exit_poll
            .take()
            .into_iter()
            .for_each(|timer| ctx.cancel_timer(timer));
        if let Stopping::Closed(timer) | Stopping::Terminated(timer) = self.stopping {
            ctx.cancel_timer(timer);
        }
    }
}

fn read(
    ctx: &mut Context,
    reader: &mut Option<LineReader>,
    line: impl FnMut(&mut Context, u64, Line<'_>) -> Flow,
) {
    let Some(open) = reader else { return };
    if open.read(ctx, line) == Stream::Ended {
        open.close(ctx);
        *reader = None;
    }
}

/// Puts a line of a program's stderr into the log.
fn log_line(_: &mut Context, _: u64, line: Line<'_>) -> Flow {
    match line {
        Line::Whole(bytes) => log::info!(target: "program", "{}", printable(bytes)),
        Line::TooLong(bytes) => log::info!(target: "program", "{} ... (cut)", printable(bytes)),
        Line::Skipped(_) | Line::SkippedEnd => {}
    }
    Flow::GoOn
}

/// An exit status as the code and the name of the signal, one of them.
pub(crate) fn code_and_signal(status: Option<ExitStatus>) -> (Option<i32>, Option<&'static str>) {
    let Some(status) = status else {
        return (None, None);
    };
    (
        status.code(),
        status
            .signal()
            .and_then(signal_hook::low_level::signal_name),
    )
}

/// An exit status in words.
pub(crate) fn describe(status: Option<ExitStatus>) -> String {
    let Some(status) = status else {
        return "ended, nobody knows how".to_owned();
    };
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
