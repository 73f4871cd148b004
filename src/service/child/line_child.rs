//! A child process that exchanges lines, or messages with another framing, over its standard streams.

use std::io;
use std::ops::ControlFlow;

use uuid::Uuid;

use super::exit::{LastLines, ProgramExit};
use super::supervisor::{Escalation, StopPlan, Supervisor, code_and_signal, start_hint};
use crate::log_event::log_event;
use crate::record::{RecordError, record};
use crate::service::deadlines::Alarm;
use crate::service::framing::{Decoder, Framing};
use crate::service::lines::Line;
use crate::service::pipe::{LineReader, PipeState, Writer};
use crate::sys::{Command, NonblockingFd, PROGRAM_ID, random_uuid};
use crate::text::printable;
use crate::{Context, SourceId, TimerId};

/// The maximum number of bytes of a line of standard error that are logged.
const LOG_LINE: usize = 4096;

/// A running program. Its standard error goes into the log.
#[derive(Debug)]
pub(crate) struct Child {
    name: String,
    /// The id in the environment of its processes.
    id: Uuid,
    /// Its working directory, if it is not that of the server. Only a failed start needs it, so it is not saved.
    cwd: Option<String>,
    supervisor: Supervisor,
    stdin: Option<Writer>,
    stdout: Option<LineReader>,
    stderr: Option<LineReader>,
    last_lines: LastLines,
    /// Goes off at the supervisor's deadline.
    alarm: Alarm,
}

// Call [`Child::watch_again`] after restoring it.
record!(Child {
    name,
    id,
    cwd = None,
    supervisor(StopPlan::CLOSE_INPUT),
    stdin,
    stdout,
    stderr,
    last_lines,
    alarm = Alarm::default(),
});

/// The result of an event for a child.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChildEvent {
    /// The event belongs to something else.
    NotMine,
    /// The event is handled, and the program still runs.
    Handled,
    /// The program has exited, and all its output has been passed on.
    Exited(ProgramExit),
}

impl Child {
    /// Starts a program. Its lines may have up to `limit` bytes.
    pub(crate) fn spawn(ctx: &mut Context, command: &[String], limit: usize) -> io::Result<Self> {
        let decoder = Decoder::new(Framing::Lines, limit);
        Self::spawn_with(ctx, command, decoder, |_| {})
    }

    pub(crate) fn pid(&self) -> u32 {
        self.supervisor.pid()
    }

    /// Starts a program whose output the decoder divides into messages. Each message counts as a line. `prepare` sets the
    /// program's environment.
    pub(crate) fn spawn_with(
        ctx: &mut Context,
        command: &[String],
        decoder: Decoder,
        prepare: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let [name, args @ ..] = command else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(name);
        prepare(&mut command);
        let id = random_uuid();
        command.args(args);
        command.env(PROGRAM_ID, id.to_string());
        let cwd = command.cwd.clone();
        let plan = StopPlan::CLOSE_INPUT;
        let supervisor = Supervisor::start(ctx, command, plan, None).map_err(|error| {
            io::Error::new(error.kind(), cannot_start(&error, name, cwd.as_deref()))
        })?;
        let mut child = Self {
            name: name.clone(),
            id,
            cwd,
            supervisor,
            stdin: None,
            stdout: None,
            stderr: None,
            last_lines: LastLines::default(),
            alarm: Alarm::default(),
        };
        if let Err(error) = child.watch_pipes(ctx, decoder) {
            // Dropping the child kills the process but does not unwatch its descriptors.
            child.unwatch(ctx);
            return Err(error);
        }
        child.note_start(ctx, true);
        child.arm(ctx);
        Ok(child)
    }

    fn watch_pipes(&mut self, ctx: &mut Context, decoder: Decoder) -> io::Result<()> {
        let [stdin, stdout, stderr] = self.supervisor.take_pipes();
        if let Some(pipe) = stdin {
            self.stdin = Some(Writer::new(ctx, NonblockingFd::own(pipe)?)?);
        }
        if let Some(pipe) = stdout {
            let pipe = NonblockingFd::own(pipe)?;
            self.stdout = Some(LineReader::with_decoder(ctx, pipe, decoder)?);
        }
        if let Some(pipe) = stderr {
            self.stderr = Some(LineReader::new(ctx, NonblockingFd::own(pipe)?, LOG_LINE)?);
        }
        Ok(())
    }

    /// Continues after the program of the server has replaced itself.
    ///
    /// # Errors
    ///
    /// The process cannot be watched.
    pub(crate) fn watch_again(&mut self, ctx: &mut Context) -> Result<(), RecordError> {
        let failed = |error| RecordError::new(format!("cannot watch {:?}: {error}", self.name));
        if let Some(stdin) = &mut self.stdin {
            stdin.watch_again(ctx).map_err(failed)?;
        }
        for reader in [&mut self.stdout, &mut self.stderr].into_iter().flatten() {
            reader.watch_again(ctx).map_err(failed)?;
        }
        self.supervisor.watch_again(ctx).map_err(failed)?;
        self.arm(ctx);
        Ok(())
    }

    /// Checks that its output is divided into messages in this way, unless it has closed its output.
    ///
    /// # Errors
    ///
    /// It has another framing, which cannot be changed while it runs.
    pub(crate) fn check_framing(&self, framing: Framing) -> Result<(), RecordError> {
        match self.stdout.as_ref().map(LineReader::framing) {
            Some(other) if other != framing => Err(RecordError::new(format!(
                "{:?} runs with the framing {other}, which cannot be changed",
                self.name
            ))),
            _ => Ok(()),
        }
    }

    /// Continues to read the program's output after a line has paused it.
    pub(crate) fn resume(&mut self, ctx: &mut Context) {
        if let Some(stdout) = &mut self.stdout {
            stdout.resume(ctx);
        }
    }

    /// Whether the program runs but has closed its input or output, so that it cannot answer any more.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.supervisor.exit().is_none() && (self.stdin.is_none() || self.stdout.is_none())
    }

    /// Whether the program runs but has closed its output.
    pub(crate) fn is_mute(&self) -> bool {
        self.supervisor.exit().is_none() && self.stdout.is_none()
    }

    /// The timer of the child's next deadline, if it has one. It changes when the child handles an event or is stopped.
    pub(crate) fn timer(&self) -> Option<TimerId> {
        self.alarm.timer()
    }

    /// The number of bytes that the program has not read.
    pub(crate) fn unread(&self) -> usize {
        self.stdin.as_ref().map_or(0, Writer::queued)
    }

    /// Drops what the program has not read.
    pub(crate) fn drop_input(&mut self) {
        if let Some(stdin) = &mut self.stdin {
            stdin.clear();
        }
    }

    /// The sources of the child's events.
    pub(crate) fn sources(&self) -> impl Iterator<Item = SourceId> {
        let stdin = self.stdin.as_ref().and_then(Writer::source);
        let readers = [self.stdout.as_ref(), self.stderr.as_ref()];
        let readers = readers.map(|reader| reader.and_then(LineReader::source));
        let streams = [stdin, readers[0], readers[1]].into_iter().flatten();
        streams.chain(self.supervisor.sources())
    }

    /// The program's input, unless it is closed.
    pub(crate) fn stdin(&mut self) -> Option<&mut Writer> {
        self.stdin.as_mut()
    }

    /// Handles readiness. Calls `line` with each line of standard output; `Break` pauses the output until
    /// [`Child::resume`].
    pub(crate) fn handle_ready(
        &mut self,
        ctx: &mut Context,
        source: SourceId,
        mut line: impl FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
    ) -> ChildEvent {
        if self.stdin.as_ref().is_some_and(|stdin| stdin.is(source)) {
            self.write(ctx);
        } else if self.stdout.as_ref().is_some_and(|stdout| stdout.is(source)) {
            read(ctx, &mut self.stdout, &mut line);
        } else if self.stderr.as_ref().is_some_and(|stderr| stderr.is(source)) {
            let (pid, lines) = (self.pid(), &mut self.last_lines);
            read(ctx, &mut self.stderr, |ctx, _, line| {
                log_line(ctx, pid, lines, line)
            });
        } else {
            let was_starting = self.supervisor.is_starting();
            let Some(has_exited) = self.supervisor.handle_ready(ctx, source) else {
                return ChildEvent::NotMine;
            };
            self.note_start(ctx, was_starting);
            if has_exited || self.supervisor.start_error().is_some() {
                return self.finish(ctx, line);
            }
        }
        ChildEvent::Handled
    }

    /// Logs that the program has been executed, if this has become known.
    fn note_start(&mut self, ctx: &mut Context, was_starting: bool) {
        if !was_starting || self.supervisor.is_starting() {
            return;
        }
        self.arm(ctx);
        if self.supervisor.start_error().is_none() {
            log_event!(
                Info,
                "started",
                program = self.name.as_str(),
                route = ctx.route(),
                pid = self.pid(),
            );
        }
    }

    /// Handles a timer.
    pub(crate) fn handle_timer(
        &mut self,
        ctx: &mut Context,
        timer: TimerId,
        line: impl FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
    ) -> ChildEvent {
        if !self.alarm.expire(timer) {
            return ChildEvent::NotMine;
        }
        let was_starting = self.supervisor.is_starting();
        let has_exited = self.supervisor.poll_exit(ctx);
        self.note_start(ctx, was_starting);
        let escalation = self.supervisor.escalate(ctx.now());
        if has_exited || self.supervisor.start_error().is_some() {
            return self.finish(ctx, line);
        }
        match escalation {
            Some(Escalation::Terminated) => {
                log_event!(
                    Info,
                    "did not exit when its input was closed: TERM",
                    program = self.name.as_str(),
                    route = ctx.route(),
                    pid = self.pid(),
                );
            }
            Some(Escalation::Killed) => {
                log_event!(
                    Warn,
                    "did not exit after TERM: KILL",
                    program = self.name.as_str(),
                    route = ctx.route(),
                    pid = self.pid(),
                );
            }
            Some(Escalation::TimedOut) | None => {}
        }
        self.arm(ctx);
        ChildEvent::Handled
    }

    /// Writes queued input, and closes the input afterwards if the program is being stopped.
    fn write(&mut self, ctx: &mut Context) {
        let Some(stdin) = &mut self.stdin else { return };
        let closed = stdin.write_slice(ctx) == PipeState::Closed;
        let is_written = stdin.queued() == 0;
        if closed {
            log_event!(
                Warn,
                "no longer reads its input",
                program = self.name.as_str(),
                route = ctx.route(),
                pid = self.pid(),
            );
        }
        if (closed || (self.supervisor.is_stopping() && is_written))
            && let Some(stdin) = self.stdin.take()
        {
            stdin.close(ctx);
        }
    }

    /// Stops the program: closes its input once queued input is written; TERM and KILL follow if it does not exit.
    pub(crate) fn stop(&mut self, ctx: &mut Context) {
        if self.supervisor.exit().is_none() && !self.supervisor.is_stopping() {
            self.supervisor.stop(ctx.now());
            self.arm(ctx);
            self.write(ctx);
        }
    }

    /// Passes on the rest of the output of a program that has exited.
    fn finish(
        &mut self,
        ctx: &mut Context,
        mut line: impl FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
    ) -> ChildEvent {
        if let Some(stdout) = &mut self.stdout {
            stdout.read_rest(ctx, &mut line);
        }
        if let Some(stderr) = &mut self.stderr {
            let (pid, lines) = (self.supervisor.pid(), &mut self.last_lines);
            stderr.read_rest(ctx, |ctx, _, line| log_line(ctx, pid, lines, line));
        }
        self.unwatch(ctx);
        if let Some(error) = self.supervisor.start_error() {
            let error = cannot_start(&error, &self.name, self.cwd.as_deref());
            return ChildEvent::Exited(ProgramExit::not_started(self.pid(), error));
        }
        let status = self.supervisor.exit().and_then(|exit| exit.status);
        let (exit_code, signal) = code_and_signal(status);
        log_event!(
            Info,
            "exited",
            program = self.name.as_str(),
            route = ctx.route(),
            pid = self.pid(),
            exit_code = exit_code,
            signal = signal,
        );
        let pid = self.pid();
        ctx.end_leftovers(self.id, (&self.name, pid));
        ChildEvent::Exited(ProgramExit::new(status, pid, &mut self.last_lines))
    }

    /// Sets the alarm for the supervisor's deadline.
    fn arm(&mut self, ctx: &mut Context) {
        self.alarm.set(ctx, self.supervisor.deadline());
    }

    fn unwatch(&mut self, ctx: &mut Context) {
        if let Some(stdin) = self.stdin.take() {
            stdin.close(ctx);
        }
        for mut reader in [self.stdout.take(), self.stderr.take()]
            .into_iter()
            .flatten()
        {
            reader.close(ctx);
        }
        self.supervisor.unwatch(ctx);
        self.alarm.set(ctx, None);
    }
}

/// Why a program does not start.
fn cannot_start(error: &io::Error, name: &str, cwd: Option<&str>) -> String {
    let hint = start_hint(error, name, cwd);
    format!("cannot start {name:?}: {error}{hint}")
}

fn read(
    ctx: &mut Context,
    reader: &mut Option<LineReader>,
    line: impl FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
) {
    let Some(open) = reader else { return };
    if open.read(ctx, line) == PipeState::Closed {
        open.close(ctx);
        *reader = None;
    }
}

/// Writes a line of a program's standard error to the log, and keeps it.
fn log_line(ctx: &Context, pid: u32, last: &mut LastLines, line: Line<'_>) -> ControlFlow<()> {
    let (bytes, note) = match line {
        Line::Whole(bytes) => (bytes, ""),
        Line::TooLong(bytes) => (bytes, " ... (cut)"),
        Line::Skipped(_) | Line::SkippedEnd | Line::Broken(_) => {
            return ControlFlow::Continue(());
        }
    };
    last.push(bytes);
    let route = ctx.route().unwrap_or_default();
    log::info!(target: "program", route, pid; "{}{note}", printable(bytes));
    ControlFlow::Continue(())
}

/// The maximum number of messages that are taken from one program in one turn of the loop, and how many of them cost a
/// microsecond.
const TURN_MESSAGES: usize = 2000;
const MESSAGES_PER_UNIT: usize = 8;

/// The messages of a program in one turn of the loop.
#[derive(Debug, Default)]
pub(crate) struct TurnOutput(usize);

impl TurnOutput {
    /// Counts a message. Returns whether the program must wait for the next turn, so that others get theirs.
    pub(crate) fn is_over(&mut self, ctx: &mut Context) -> bool {
        self.0 += 1;
        if self.0.is_multiple_of(MESSAGES_PER_UNIT) {
            ctx.spend(1);
        }
        self.0 >= TURN_MESSAGES || ctx.is_share_spent()
    }
}
