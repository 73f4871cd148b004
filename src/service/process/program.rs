//! A program with its terminal or pipes in the loop: what it writes, what it reads, and how it ends.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mio::Interest;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::Signal;
use uuid::Uuid;

use super::Exit;
use super::scrollback::Stream;
use super::sink::Sink;
use crate::sys::{
    Account, Beginning, Family, Process, TerminalSize, exit_descriptor, open_pty, read_output,
    set_terminal_size,
};
use crate::{Context, Readiness, SourceId, Time};

/// Bytes of output read in one turn: what becomes one message.
const READ_PER_TURN: usize = 64 << 10;

/// So much input may wait for a program before no more is taken.
const INPUT_HIGH: usize = 64 << 10;

/// Output that follows other output sooner than this is gathered, so that a flood of small writes becomes few messages.
const GATHER: Duration = Duration::from_millis(1);

/// How long a program's output is still read after its end, where another process holds the other side open.
const LINGER: Duration = Duration::from_millis(250);

/// The most that is read of it then, if it never stops.
const LINGER_BYTES: usize = 1 << 20;

/// From the hangup to TERM, and to KILL.
const TERM_AFTER: Duration = Duration::from_secs(1);
const KILL_AFTER: Duration = Duration::from_secs(5);
/// Between two rounds of KILL, for what killed processes leave behind.
const KILL_AGAIN: Duration = Duration::from_secs(1);

/// Between two looks for the end where the system cannot tell of it.
const EXIT_POLL: Duration = Duration::from_millis(50);

/// The variable in a program's environment by which what it leaves behind is known as its own.
const MARK: &str = "OUTRIGGER_PROCESS_ID";

/// What a terminal says it is, unless the caller knows better.
const TERM: &str = "xterm-256color";

/// What is to be started.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) id: Uuid,
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    pub(crate) cwd: Option<String>,
    /// Added to our own environment.
    pub(crate) env: Vec<(String, String)>,
    /// Who runs it, unless it is us.
    pub(crate) account: Option<Account>,
    /// The size of its terminal; `None` for pipes.
    pub(crate) terminal: Option<TerminalSize>,
    /// Whether it can be written to. Without, a program with pipes reads an end at once.
    pub(crate) takes_input: bool,
    /// After which it is killed.
    pub(crate) timeout: Option<Duration>,
}

/// One of the program's ways out.
#[derive(Debug)]
struct Output {
    fd: Arc<OwnedFd>,
    source: SourceId,
    stream: Stream,
    /// Whether there may be something to read.
    readable: bool,
}

/// The way in.
#[derive(Debug)]
struct Input {
    fd: Arc<OwnedFd>,
    source: SourceId,
    queue: Vec<u8>,
    written: usize,
    writable: bool,
}

/// Until when output is read although the program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linger {
    /// It runs.
    No,
    Until(Time),
    /// The time is over; so many bytes are still taken, up to the first time that there is nothing.
    Over(usize),
}

/// What is being done to end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    No,
    /// It was told that its terminal is gone.
    HungUp {
        since: Time,
    },
    Terminated {
        since: Time,
    },
    Killed {
        again: Time,
    },
}

/// A program and its streams.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) id: Uuid,
    pub(crate) command: Vec<String>,
    pub(crate) started: SystemTime,
    pub(crate) started_at: Time,
    process: Process,
    exit_watch: Option<(OwnedFd, SourceId)>,
    exit_poll: Option<Time>,
    outputs: Vec<Output>,
    input: Option<Input>,
    terminal: Option<Arc<OwnedFd>>,
    has_terminal: bool,
    /// Bytes that were read and not sent on yet.
    gathered: usize,
    /// When output was last sent on.
    sent_at: Time,
    /// When what was gathered is sent on at the latest.
    send_at: Option<Time>,
    linger: Linger,
    ending: Ending,
    /// What it has started, once it is to end.
    family: Family,
    kill_at: Option<Time>,
    timed_out: bool,
    exit: Option<Exit>,
    exited_at: Time,
    pub(crate) sink: Sink,
}

impl Program {
    /// Starts a program.
    pub(crate) fn start(ctx: &mut Context, launch: Launch, sink: Sink) -> io::Result<Self> {
        let [name, args @ ..] = &*launch.command else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(name);
        command.args(args);
        if launch.terminal.is_some() {
            command.env("TERM", TERM);
        }
        if let Some(account) = &launch.account {
            command
                .env("USER", &account.name)
                .env("LOGNAME", &account.name)
                .env("HOME", &account.home);
        }
        command.envs(launch.env).env(MARK, launch.id.to_string());
        let mut terminal = None;
        match launch.terminal {
            Some(size) => {
                let (ours, theirs) = open_pty(size)?;
                if let Some(account) = &launch.account {
                    rustix::fs::fchown(&theirs, Some(account.uid), None)?;
                }
                command
                    .stdin(theirs.try_clone()?)
                    .stdout(theirs.try_clone()?)
                    .stderr(theirs);
                terminal = Some(Arc::new(ours));
            }
            None => {
                let stdin = if launch.takes_input {
                    Stdio::piped()
                } else {
                    Stdio::null()
                };
                command
                    .stdin(stdin)
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped());
            }
        }
        let beginning = Beginning {
            terminal: terminal.is_some(),
            account: launch.account,
            cwd: launch.cwd.map(CString::new).transpose()?,
        };
        let process = Process::start(&mut command, beginning)?;
        // Our copies of the program's side, without which its end could not be seen.
        drop(command);
        let now = ctx.now();
        let mut program = Self {
            id: launch.id,
            command: launch.command,
            started: SystemTime::now(),
            started_at: now,
            process,
            exit_watch: None,
            exit_poll: None,
            outputs: Vec::new(),
            input: None,
            has_terminal: terminal.is_some(),
            terminal,
            gathered: 0,
            sent_at: Time::default(),
            send_at: None,
            linger: Linger::No,
            ending: Ending::No,
            family: Family::new(MARK, &launch.id.to_string()),
            kill_at: launch.timeout.map(|timeout| now + timeout),
            timed_out: false,
            exit: None,
            exited_at: now,
            sink,
        };
        if let Err(error) = program.watch(ctx) {
            program.forget(ctx);
            return Err(error);
        }
        log::info!(
            "started {:?}, pid {}, id {}",
            program.command[0],
            program.pid(),
            program.id
        );
        Ok(program)
    }

    /// Has the loop wait for its streams and its end.
    fn watch(&mut self, ctx: &mut Context) -> io::Result<()> {
        if let Some(terminal) = &self.terminal {
            let source = ctx.watch(terminal, Interest::READABLE | Interest::WRITABLE)?;
            self.outputs
                .push(Output::new(Arc::clone(terminal), source, Stream::Stdout));
            self.input = Some(Input::new(Arc::clone(terminal), source));
        } else {
            let [stdin, stdout, stderr] = self.process.streams();
            for (pipe, stream) in [(stdout, Stream::Stdout), (stderr, Stream::Stderr)] {
                if let Some(pipe) = pipe {
                    let pipe = nonblocking(pipe)?;
                    let source = ctx.watch(&pipe, Interest::READABLE)?;
                    self.outputs.push(Output::new(pipe, source, stream));
                }
            }
            if let Some(pipe) = stdin {
                let pipe = nonblocking(pipe)?;
                let source = ctx.watch(&pipe, Interest::WRITABLE)?;
                self.input = Some(Input::new(pipe, source));
            }
        }
        match exit_descriptor(self.pid())? {
            Some(fd) => {
                let source = ctx.watch(&fd, Interest::READABLE)?;
                self.exit_watch = Some((fd, source));
            }
            None => self.exit_poll = Some(ctx.now() + EXIT_POLL),
        }
        Ok(())
    }

    // Questions.

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn has_terminal(&self) -> bool {
        self.has_terminal
    }

    /// The offset behind the last byte of its output.
    pub(crate) fn output_end(&self) -> u64 {
        self.sink.end()
    }

    /// How it ended, if it has.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.exit
    }

    pub(crate) fn timed_out(&self) -> bool {
        self.timed_out
    }

    /// How long it has run.
    pub(crate) fn ran(&self, now: Time) -> Duration {
        let end = if self.exit.is_some() {
            self.exited_at
        } else {
            now
        };
        end.since(self.started_at)
    }

    /// When it ended.
    pub(crate) fn exited_at(&self) -> Time {
        self.exited_at
    }

    /// Whether it has ended and all it wrote was read.
    pub(crate) fn is_finished(&self) -> bool {
        self.exit.is_some() && self.outputs.is_empty()
    }

    /// Whether nothing of it is left that was to be ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_finished() && (self.ending == Ending::No || self.family.is_empty())
    }

    /// Whether it was told to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending != Ending::No
    }

    /// Looks whether what it has left behind is still there.
    pub(crate) fn look_around(&mut self) {
        if self.ending != Ending::No {
            self.family.look(self.exit.is_none().then(|| self.pid()));
        }
    }

    /// What its events come from.
    pub(crate) fn sources(&self) -> impl Iterator<Item = SourceId> {
        let outputs = self.outputs.iter().map(|output| output.source);
        let input = self.input.as_ref().map(|input| input.source);
        let exit = self.exit_watch.as_ref().map(|(_, source)| *source);
        outputs.chain(input).chain(exit)
    }

    /// When [`Program::handle_timeout`] is to be called, if ever.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let linger = match self.linger {
            Linger::Until(until) => Some(until),
            Linger::No | Linger::Over(_) => None,
        };
        let ending = match self.ending {
            Ending::No => None,
            Ending::HungUp { since } => Some(since + TERM_AFTER),
            Ending::Terminated { since } => Some(since + KILL_AFTER),
            Ending::Killed { again } => Some(again),
        };
        [self.exit_poll, self.send_at, linger, ending, self.kill_at]
            .into_iter()
            .flatten()
            .min()
    }

    // Events.

    /// Handles readiness.
    pub(crate) fn handle_ready(
        &mut self,
        ctx: &mut Context,
        source: SourceId,
        readiness: Readiness,
    ) {
        if self
            .exit_watch
            .as_ref()
            .is_some_and(|(_, exit)| *exit == source)
        {
            self.check_exit(ctx);
        }
        if readiness.writable
            && let Some(input) = self.input.as_mut().filter(|input| input.source == source)
        {
            input.writable = true;
            self.write_input(ctx);
        }
        if readiness.readable
            && let Some(at) = self
                .outputs
                .iter()
                .position(|output| output.source == source)
        {
            self.outputs[at].readable = true;
            self.read_output(ctx, at);
        }
    }

    /// Does what the passed deadline asks for.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context) {
        let now = ctx.now();
        if self.exit_poll.is_some_and(|at| now >= at) {
            self.exit_poll = Some(now + EXIT_POLL);
            self.check_exit(ctx);
        }
        if self.send_at.is_some_and(|at| now >= at) {
            self.send_on(ctx);
            self.read_all(ctx);
        }
        if self.kill_at.is_some_and(|at| now >= at) {
            self.kill_at = None;
            self.timed_out = true;
            log::info!("process {} ran out of time: KILL", self.id);
            self.process.signal_group(Signal::KILL);
        }
        if matches!(self.linger, Linger::Until(until) if now >= until) {
            self.linger = Linger::Over(LINGER_BYTES);
            // Whether there is something has to be asked once more.
            for output in &mut self.outputs {
                output.readable = true;
            }
            self.read_all(ctx);
        }
        match self.ending {
            Ending::HungUp { since } if now >= since + TERM_AFTER => {
                self.ending = Ending::Terminated { since };
                self.signal_everything(Signal::TERM);
            }
            Ending::Terminated { since } if now >= since + KILL_AFTER => {
                log::info!("process {} did not end with HUP and TERM: KILL", self.id);
                self.ending = Ending::Killed {
                    again: now + KILL_AGAIN,
                };
                self.signal_everything(Signal::KILL);
            }
            Ending::Killed { again } if now >= again => {
                self.ending = Ending::Killed {
                    again: now + KILL_AGAIN,
                };
                self.signal_everything(Signal::KILL);
            }
            _ => {}
        }
    }

    /// Goes on reading, after readers had no room or the writer has changed.
    pub(crate) fn read_all(&mut self, ctx: &mut Context) {
        for at in (0..self.outputs.len()).rev() {
            if self.outputs[at].readable {
                self.read_output(ctx, at);
            }
        }
    }

    /// Reads a turn's worth.
    fn read_output(&mut self, ctx: &mut Context, at: usize) {
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
    fn send_on(&mut self, ctx: &mut Context) {
        self.sink.pump(ctx);
        self.gathered = 0;
        self.sent_at = ctx.now();
        self.send_at = None;
    }

    fn check_exit(&mut self, ctx: &mut Context) {
        if self.exit.is_some() || !self.process.has_ended() {
            return;
        }
        if self.ending != Ending::No {
            // Once it was waited for, the group's number may be another's.
            self.process.signal_group(Signal::HUP);
        }
        let exit = Exit::from(self.process.wait());
        log::info!("process {} {exit}", self.id);
        self.exit = Some(exit);
        self.exited_at = ctx.now();
        self.look_around();
        self.kill_at = None;
        self.exit_poll = None;
        if let Some((_, source)) = self.exit_watch.take() {
            ctx.unwatch(source);
        }
        if let Some(input) = self.input.take() {
            self.forget_source(ctx, input.source, Part::Input);
        }
        // What it wrote is there now; what others write that hold the other side open may still come.
        self.linger = Linger::Until(ctx.now() + LINGER);
        for output in &mut self.outputs {
            output.readable = true;
        }
        self.read_all(ctx);
        self.check_finished(ctx);
    }

    fn check_finished(&mut self, ctx: &mut Context) {
        if let Some(exit) = self.exit
            && self.outputs.is_empty()
            && self.linger != Linger::No
        {
            self.linger = Linger::No;
            self.terminal = None;
            self.sink.handle_exit(ctx, exit);
        }
    }

    /// Unwatches a source when neither input nor output needs it any more.
    fn forget_source(&self, ctx: &mut Context, source: SourceId, part: Part) {
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

    /// Ends what the loop waits for.
    pub(crate) fn forget(&mut self, ctx: &mut Context) {
        let sources: Vec<SourceId> = self.sources().collect();
        // A terminal's source stands there twice; the second time it is not found.
        sources.into_iter().for_each(|source| ctx.unwatch(source));
        self.outputs.clear();
        self.input = None;
        self.exit_watch = None;
    }

    // Input.

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

    fn write_input(&mut self, ctx: &mut Context) {
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

    // The end.

    /// Sends a signal to its process group.
    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal_group(signal);
    }

    /// Ends it and all that it has left behind: HUP, then TERM, then KILL.
    pub(crate) fn end(&mut self, now: Time) {
        if self.ending == Ending::No {
            self.ending = Ending::HungUp { since: now };
            self.signal_everything(Signal::HUP);
        }
    }

    fn signal_everything(&mut self, signal: Signal) {
        self.look_around();
        // One that has stopped itself has to go on to end.
        for signal in [signal, Signal::CONT] {
            self.process.signal_group(signal);
            self.family.signal(signal);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Input,
    Output,
}

impl Output {
    fn new(fd: Arc<OwnedFd>, source: SourceId, stream: Stream) -> Self {
        Self {
            fd,
            source,
            stream,
            readable: false,
        }
    }
}

impl Input {
    fn new(fd: Arc<OwnedFd>, source: SourceId) -> Self {
        Self {
            fd,
            source,
            queue: Vec::new(),
            written: 0,
            writable: true,
        }
    }

    fn queued(&self) -> usize {
        self.queue.len() - self.written
    }
}

/// Our end of a pipe, which does not block. The other end is the program's and stays as it is.
fn nonblocking(pipe: OwnedFd) -> io::Result<Arc<OwnedFd>> {
    fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
    Ok(Arc::new(pipe))
}
