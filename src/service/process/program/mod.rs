//! A program on a terminal or pipes: its output goes to a [`Sink`], its input comes from clients, and a [`Supervisor`]
//! owns its process.

mod streams;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use rustix::process::Signal;
use uuid::Uuid;

pub(super) use self::streams::SavedStreams;
use self::streams::{InputPipe, OutputPipe, save_streams, watch_terminal};
pub(crate) use self::streams::{Launch, PassEnv};
use super::attach::Role;
use super::exit::ProgramExit;
use super::recording::Recording;
use super::scrollback::OutputStream;
use super::sink::{ContextOutput, Sink};
use crate::log_event::log_event;
use crate::record::{RecordError, RecordWith, Saver, record};
use crate::service::child::{Escalation, StopPlan, Supervisor};
use crate::service::pipe::PipeState;
use crate::sys::{TerminalSize, set_terminal_size};
use crate::{ClientId, Context, Principal, Readiness, SourceId, Time};

/// The maximum number of bytes of output that are read in one turn of the loop. They become one message.
const READ_PER_TURN: usize = 64 << 10;

/// The maximum number of bytes of output that are read after the linger time, if the output never pauses.
const LINGER_BYTES: usize = 1 << 20;

/// About so many bytes are recorded in a microsecond.
const RECORDED: usize = 200;

/// How long the output of a program is read that is being stopped, if it would otherwise be read for as long as another
/// process holds it open.
const STOPPED_LINGER: Duration = Duration::from_millis(250);

/// Output that follows other output sooner than this is collected, so that a flood of small writes makes few messages.
const BATCH_TIME: Duration = Duration::from_millis(1);

/// How long output is still read after the exit, while another process holds the output open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linger {
    /// The program is running.
    NotStarted,
    /// It has exited. Output is read until this time; without one, until no process holds it open.
    Until(Option<Time>),
    /// The linger time is over. Output is read until no more is available, at most this many bytes.
    Draining(usize),
    /// All output is read, and the exit has been sent.
    Done,
}

record!(
    enum Linger {
        NotStarted,
        Until(until),
        Draining(bytes),
        Done,
    }
);

/// A program with its streams.
///
/// `handle_ready` and `handle_timeout` take events, the latter when [`Program::deadline`] has passed.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) id: Uuid,
    /// Whose program it is, also when its client has left.
    pub(crate) owner: Principal,
    pub(crate) command: Vec<String>,
    pub(crate) started: SystemTime,
    started_at: Time,
    supervisor: Supervisor,
    outputs: Vec<OutputPipe>,
    input: Option<InputPipe>,
    terminal: Option<Arc<OwnedFd>>,
    has_terminal: bool,
    /// When output was last read.
    last_output: Time,
    /// When the program last got input or another size, to which output may follow.
    prompted: Time,
    /// The bytes in the sink that are not sent to readers yet.
    unsent: usize,
    sent_at: Time,
    /// When `unsent` bytes are sent at the latest.
    send_at: Option<Time>,
    linger_for: Option<Duration>,
    linger: Linger,
    /// When the time of the program is over.
    time_limit: Option<Time>,
    /// Whether its output was held open for longer than that.
    output_timed_out: bool,
    recording: Option<Box<Recording>>,
    pub(crate) sink: Sink,
}

// `Program::continue_with` follows.
record!(Program {
    id,
    owner,
    command,
    started,
    started_at,
    supervisor(StopPlan::HANG_UP),
    outputs = Vec::new(),
    input = None,
    terminal = None,
    has_terminal,
    last_output,
    prompted,
    // All output has been sent to the readers.
    unsent = 0,
    sent_at = Time::default(),
    send_at = None,
    linger_for,
    linger,
    time_limit,
    output_timed_out,
    recording = None,
    sink,
} => Self::checked);

impl Program {
    /// Starts a program. Whether it could be executed is known later ([`Program::is_starting`], [`Program::start_error`]).
    pub(crate) fn start(ctx: &mut Context, launch: Launch, sink: Sink) -> io::Result<Self> {
        // The start closes the program's side of the terminal here. Otherwise the end of the output could not be seen.
        let (command, terminal) = launch.prepare()?;
        let supervisor = Supervisor::start(ctx, command, StopPlan::HANG_UP, launch.timeout)?;
        let recording = launch.record(ctx.now()).map(Box::new);
        let mut program = Self {
            id: launch.id,
            owner: launch.owner,
            command: launch.command,
            started: SystemTime::now(),
            started_at: ctx.now(),
            supervisor,
            outputs: Vec::new(),
            input: None,
            has_terminal: terminal.is_some(),
            terminal: terminal.map(Arc::new),
            last_output: ctx.now(),
            prompted: ctx.now(),
            unsent: 0,
            sent_at: Time::default(),
            send_at: None,
            linger_for: launch.linger,
            linger: Linger::NotStarted,
            time_limit: launch.timeout.map(|timeout| ctx.now() + timeout),
            output_timed_out: false,
            recording,
            sink,
        };
        if let Err(error) = program.watch(ctx) {
            program.unwatch(ctx);
            return Err(error);
        }
        if let Some(stdin) = &launch.stdin {
            program.push_input(ctx, stdin);
            program.end_input(ctx);
        }
        program.note_start(ctx, true);
        Ok(program)
    }

    /// Completes what is half done, so that it can be saved.
    pub(crate) fn make_portable(&mut self, ctx: &mut Context) {
        if self.unsent > 0 {
            self.send(ctx);
        }
        if let Some(attachments) = self.sink.attachments() {
            attachments.make_portable();
        }
        if let Some(recording) = &mut self.recording {
            recording.make_portable();
        }
    }

    /// Writes the streams and the recording down, which are not part of the record.
    pub(crate) fn save_open<'a>(&'a self, to: &mut Saver<'a>) {
        let (terminal, input) = (self.terminal.as_ref(), self.input.as_ref());
        to.member("streams", |to| {
            save_streams(terminal, &self.outputs, input, to)
        });
        if let Some(recording) = &self.recording {
            to.member("recording", |to| RecordWith::save(&**recording, to));
        }
    }

    fn checked(self) -> Result<Self, RecordError> {
        let missing = || RecordError::new("the command is missing");
        let is_valid = !self.command.is_empty();
        is_valid.then_some(self).ok_or_else(missing)
    }

    /// Takes over the streams and the recording of a program that another server has started.
    pub(crate) fn continue_with(
        &mut self,
        ctx: &mut Context,
        streams: SavedStreams,
        recording: Option<Recording>,
    ) -> io::Result<()> {
        self.recording = recording.map(Box::new);
        (self.terminal, self.outputs, self.input) = streams.watch(ctx)?;
        self.supervisor.watch_again(ctx)
    }

    /// Watches the program's streams.
    fn watch(&mut self, ctx: &mut Context) -> io::Result<()> {
        if let Some(terminal) = &self.terminal {
            let (input, output) = watch_terminal(ctx, terminal)?;
            self.input = Some(input);
            self.outputs.push(output);
            return Ok(());
        }
        let [stdin, stdout, stderr] = self.supervisor.take_pipes();
        for (pipe, stream) in [
            (stdout, OutputStream::Stdout),
            (stderr, OutputStream::Stderr),
        ] {
            if let Some(pipe) = pipe {
                self.outputs.push(OutputPipe::watch(ctx, pipe, stream)?);
            }
        }
        if let Some(pipe) = stdin {
            self.input = Some(InputPipe::watch(ctx, pipe)?);
        }
        Ok(())
    }

    // State.

    pub(crate) fn pid(&self) -> u32 {
        self.supervisor.pid()
    }

    /// Whether it is not known yet whether the program could be executed.
    pub(crate) fn is_starting(&self) -> bool {
        self.supervisor.is_starting()
    }

    /// Why the program could not be executed.
    pub(crate) fn start_error(&self) -> Option<io::Error> {
        self.supervisor.start_error()
    }

    pub(crate) fn has_terminal(&self) -> bool {
        self.has_terminal
    }

    /// The title of a window that shows the program: its command line and the name of the host. Viewers get the first word
    /// without the arguments, which may contain secrets.
    pub(crate) fn title(&self, role: Role) -> String {
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        let shown = match role {
            Role::Writer => self.command.join(" "),
            Role::Viewer | Role::Listener => self.command.first().cloned().unwrap_or_default(),
        };
        format!("{shown} ({host})")
    }

    /// The offset after the last byte of its output.
    pub(crate) fn output_end(&self) -> u64 {
        self.sink.end()
    }

    /// For how long there was no output.
    #[cfg(feature = "screen")]
    pub(crate) fn rested(&self, now: Time) -> Duration {
        now.since(self.last_output)
    }

    /// For how long there was no output, no input and no new size. A program that has just got input has not answered it yet.
    #[cfg(feature = "screen")]
    pub(crate) fn idle(&self, now: Time) -> Duration {
        now.since(self.last_output.max(self.prompted))
    }

    /// How the program ended, if it has exited.
    pub(crate) fn exit(&self) -> Option<ProgramExit> {
        self.supervisor.exit().map(|exit| exit.status.into())
    }

    /// Whether the program was killed because of its timeout, or its output was held open for that long.
    pub(crate) fn timed_out(&self) -> bool {
        self.supervisor.timed_out() || self.output_timed_out
    }

    /// How long the program has run.
    pub(crate) fn ran(&self, now: Time) -> Duration {
        self.exited_at().unwrap_or(now).since(self.started_at)
    }

    /// When the program exited, if it has.
    pub(crate) fn exited_at(&self) -> Option<Time> {
        self.supervisor.exit().map(|exit| exit.at)
    }

    /// Whether the program has exited and all its output has been read.
    pub(crate) fn is_finished(&self) -> bool {
        self.supervisor.exit().is_some() && self.outputs.is_empty()
    }

    /// Whether the program is being stopped, with all that it has started.
    pub(crate) fn is_stopping(&self) -> bool {
        self.supervisor.is_stopping()
    }

    /// Takes the signal for everything that the program has started, if there is a new one.
    pub(crate) fn take_tree_signal(&mut self) -> Option<Signal> {
        self.supervisor.take_tree_signal()
    }

    /// The sources of the program's events. That of a terminal comes twice.
    pub(crate) fn sources(&self) -> impl Iterator<Item = SourceId> {
        let outputs = self.outputs.iter().map(|output| output.source);
        let input = self.input.as_ref().map(|input| input.source);
        outputs.chain(input).chain(self.supervisor.sources())
    }

    /// When to call [`Program::handle_timeout`], if at all.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let linger = match self.linger {
            Linger::Until(until) => until,
            Linger::NotStarted | Linger::Draining(_) | Linger::Done => None,
        };
        let recording = self.recording.as_ref();
        let recording = recording.and_then(|recording| recording.deadline());
        let (supervisor, sink) = (self.supervisor.deadline(), self.sink.deadline());
        [supervisor, self.send_at, linger, sink, recording]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether its terminal is recorded.
    pub(crate) fn is_recorded(&self) -> bool {
        self.recording.is_some()
    }

    /// The recording of its terminal, if there is one.
    pub(crate) fn recording(&mut self) -> Option<&mut Recording> {
        self.recording.as_deref_mut()
    }

    /// Whether the input queue is over its limit, so that no more input should be accepted.
    pub(crate) fn is_behind(&self) -> bool {
        self.input.as_ref().is_some_and(InputPipe::is_behind)
    }

    // Events.

    /// Handles readiness.
    pub(crate) fn handle_ready(
        &mut self,
        ctx: &mut Context,
        source: SourceId,
        readiness: Readiness,
    ) {
        let was_starting = self.is_starting();
        let has_exited = self.supervisor.handle_ready(ctx, source) == Some(true);
        self.note_start(ctx, was_starting);
        if has_exited {
            self.handle_exit(ctx);
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

    /// Handles the deadlines that have passed.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context) {
        let now = ctx.now();
        let was_starting = self.is_starting();
        let has_exited = self.supervisor.poll_exit(ctx);
        self.note_start(ctx, was_starting);
        if has_exited {
            self.handle_exit(ctx);
        }
        if self.send_at.is_some_and(|at| now >= at) {
            self.send(ctx);
            self.read_all(ctx);
        }
        self.sink.handle_timeout(ctx);
        if let Some(recording) = &mut self.recording {
            recording.handle_timeout(now);
        }
        match self.supervisor.escalate(now) {
            Some(Escalation::TimedOut) => {
                log_event!(
                    Info,
                    process = self.id,
                    "ran longer than its timeout: KILL",
                    route = ctx.route(),
                    pid = self.pid(),
                );
            }
            Some(Escalation::Killed) => {
                log_event!(
                    Info,
                    process = self.id,
                    "did not exit after HUP and TERM: KILL",
                    route = ctx.route(),
                    pid = self.pid(),
                );
            }
            Some(Escalation::Terminated) | None => {}
        }
        if let Linger::Until(Some(until)) = self.linger
            && now >= until
        {
            if let Some(exit) = self.exit() {
                log::info!(
                    "process {} {exit}; other processes still hold its output open after {:?}, and their later output \
                     is lost",
                    self.id,
                    self.exited_at().map_or(Duration::ZERO, |at| now.since(at))
                );
            }
            self.output_timed_out = self.linger_for.is_none() && self.time_limit == Some(until);
            self.linger = Linger::Draining(LINGER_BYTES);
            self.read_rest(ctx);
        }
    }

    /// Logs that the program has been executed, if this has become known.
    fn note_start(&self, ctx: &Context, was_starting: bool) {
        if was_starting && !self.is_starting() && self.start_error().is_none() {
            log_event!(
                Info,
                process = self.id,
                "started",
                program = self.command[0].as_str(),
                route = ctx.route(),
                pid = self.pid(),
            );
        }
    }

    fn handle_exit(&mut self, ctx: &mut Context) {
        if let Some(exit) = self.exit() {
            log_event!(
                Info,
                process = self.id,
                "exited",
                route = ctx.route(),
                pid = self.pid(),
                exit_code = exit.code,
                signal = exit.signal,
            );
        }
        if let Some(input) = self.input.take() {
            self.release(ctx, input.source);
        }
        self.sink.root_exited(ctx);
        // The program's own output is in the pipes now. Processes that hold them open may write more.
        let is_killed = self.sink.is_over_limit() || self.timed_out();
        self.linger = Linger::Until(match self.linger_for {
            Some(time) => Some(ctx.now() + time),
            // The answer is an error, for which no output is needed.
            None if is_killed => Some(ctx.now()),
            None => self.time_limit,
        });
        self.read_rest(ctx);
        self.check_finished(ctx);
    }

    /// Sends the exit once all output has been read.
    fn check_finished(&mut self, ctx: &mut Context) {
        if let Some(exit) = self.exit()
            && self.outputs.is_empty()
            && matches!(self.linger, Linger::Until(_) | Linger::Draining(_))
        {
            self.linger = Linger::Done;
            self.terminal = None;
            if let Some(recording) = &mut self.recording {
                recording.exit(ctx.now(), exit.code);
            }
            self.sink.handle_exit(ctx, exit);
        }
    }

    /// Stops watching the program.
    pub(crate) fn unwatch(&mut self, ctx: &mut Context) {
        let sources: Vec<SourceId> = self.sources().collect();
        // Unwatching the source of a terminal a second time has no effect.
        sources.into_iter().for_each(|source| ctx.unwatch(source));
        self.outputs.clear();
        self.input = None;
        self.supervisor.unwatch(ctx);
    }

    // Output.

    /// Continues to read, after readers have caught up or the writer has changed.
    pub(crate) fn read_all(&mut self, ctx: &mut Context) {
        for at in (0..self.outputs.len()).rev() {
            if self.outputs[at].readable {
                self.read_output(ctx, at);
            }
        }
    }

    /// Sends a reader the output that it has not seen. Further output is read in its turn, because a client may cause many
    /// calls.
    pub(crate) fn catch_up(&mut self, ctx: &mut Context, reader: ClientId) {
        if let Some(attachments) = self.sink.attachments() {
            attachments.pump(reader, &mut ContextOutput(ctx));
        }
        if self.sink.wants_output() {
            let readable = self.outputs.iter().filter(|output| output.readable);
            readable.for_each(|output| output.read_again(ctx));
        }
    }

    /// Reads all outputs, even if no event has reported output.
    fn read_rest(&mut self, ctx: &mut Context) {
        for output in &mut self.outputs {
            output.readable = true;
        }
        self.read_all(ctx);
    }

    /// Reads an output, up to the limit of one turn.
    fn read_output(&mut self, ctx: &mut Context, at: usize) {
        let output = &mut self.outputs[at];
        let mut left = READ_PER_TURN;
        let mut closed = false;
        while left > 0 && self.sink.wants_output() {
            let spare = self.sink.spare(left);
            match output.read(spare) {
                Ok(0) => closed = true,
                Ok(count) => {
                    if let Some(recording) = &mut self.recording {
                        recording.output(ctx.now(), &spare[..count]);
                        ctx.spend(count / RECORDED);
                    }
                    self.sink.commit(output.stream, count);
                    self.unsent += count;
                    self.last_output = ctx.now();
                    left -= count;
                    if let Linger::Draining(bytes) = &mut self.linger {
                        *bytes = bytes.saturating_sub(count);
                        closed = *bytes == 0;
                    }
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    output.readable = false;
                    closed = matches!(self.linger, Linger::Draining(_));
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
        ctx.spend(self.sink.take_work());
        let now = ctx.now();
        if self.sink.is_over_limit() {
            if self.supervisor.exit().is_none() {
                log_event!(
                    Info,
                    process = self.id,
                    "exceeded its output limit: KILL",
                    route = ctx.route(),
                    pid = self.pid(),
                );
                self.supervisor.signal(Signal::KILL);
            } else if matches!(self.linger, Linger::Until(_)) {
                self.linger = Linger::Until(Some(now));
            }
        }
        if closed || self.unsent >= self.sink.batch() || now.since(self.sent_at) > BATCH_TIME {
            self.send(ctx);
        } else if self.unsent > 0 && self.send_at.is_none() {
            self.send_at = Some(now + BATCH_TIME);
        }
        if closed {
            let output = self.outputs.swap_remove(at);
            self.release(ctx, output.source);
            self.check_finished(ctx);
        } else if self.outputs[at].readable && self.sink.wants_output() {
            self.outputs[at].read_again(ctx);
        }
    }

    /// Sends new output to the readers.
    fn send(&mut self, ctx: &mut Context) {
        self.sink.pump(ctx);
        self.unsent = 0;
        self.sent_at = ctx.now();
        self.send_at = None;
    }

    /// Unwatches a source unless the input or an output still uses it.
    fn release(&self, ctx: &mut Context, source: SourceId) {
        if !self.sources().any(|used| used == source) {
            ctx.unwatch(source);
        }
    }

    // Commands.

    /// Queues input. Returns whether the program's input is open.
    pub(crate) fn push_input(&mut self, ctx: &mut Context, bytes: &[u8]) -> bool {
        let Some(input) = &mut self.input else {
            return false;
        };
        input.push(bytes);
        self.prompted = ctx.now();
        if let Some(recording) = &mut self.recording {
            recording.input(ctx.now(), bytes);
        }
        self.write_input(ctx);
        self.input.is_some()
    }

    /// Whether more input can be queued.
    pub(crate) fn takes_input(&self) -> bool {
        self.input.as_ref().is_some_and(InputPipe::is_open)
    }

    /// Ends the input after what is queued. The input of a terminal has no end.
    pub(crate) fn end_input(&mut self, ctx: &mut Context) {
        if let Some(input) = self.input.as_mut().filter(|_| !self.has_terminal) {
            input.end();
            self.write_input(ctx);
        }
    }

    /// The memory of its output and of queued input, in bytes.
    pub(crate) fn held_memory(&self) -> usize {
        let queued = self.input.as_ref().map_or(0, InputPipe::queued);
        let recording = self.recording.as_ref();
        let recording = recording.map_or(0, |recording| recording.held());
        self.sink.held_memory() + queued + recording
    }

    fn write_input(&mut self, ctx: &mut Context) {
        if let Some(input) = &mut self.input
            && input.write() == PipeState::Closed
        {
            let source = input.source;
            self.input = None;
            self.release(ctx, source);
        }
    }

    /// Sets the size of the terminal, if the program has one, and tells the readers.
    ///
    /// # Errors
    ///
    /// The system refuses the size, or there is too little memory for a screen of this size ([`io::ErrorKind::OutOfMemory`]).
    pub(crate) fn resize(&mut self, ctx: &mut Context, size: TerminalSize) -> io::Result<()> {
        if let Some(terminal) = &self.terminal {
            let growth = self.sink.growth(size);
            if growth > 0 && !ctx.may_hold(&self.owner, growth) {
                let why = "too little memory";
                return Err(io::Error::new(io::ErrorKind::OutOfMemory, why));
            }
            set_terminal_size(terminal.as_fd(), size)?;
            self.prompted = ctx.now();
            if let Some(recording) = &mut self.recording {
                recording.resize(ctx.now(), size);
            }
            self.sink.resize(ctx, size);
        }
        Ok(())
    }

    /// Ends the program and gives up its input and output, because memory is short.
    pub(crate) fn end_for_memory(&mut self, ctx: &mut Context) {
        log_event!(
            Warn,
            process = self.id,
            "ending it: too little memory is left",
            route = ctx.route(),
            pid = self.pid(),
        );
        if let Some(input) = self.input.take() {
            self.release(ctx, input.source);
        }
        self.sink.discard(ctx);
        self.stop(ctx.now());
    }

    /// Keeps only a little output for later readers, because memory is short. If `cuts` is true, readers that are behind miss some.
    pub(crate) fn shrink(&mut self, cuts: bool) {
        if let Some(attachments) = self.sink.attachments() {
            attachments.shrink(cuts);
        }
    }

    /// Gives up the screen, because memory is short.
    pub(crate) fn drop_screen(&mut self, ctx: &Context) {
        if let Some(attachments) = self.sink.attachments() {
            log_event!(
                Warn,
                process = self.id,
                "giving up its screen: too little memory is left",
                route = ctx.route(),
            );
            attachments.drop_screen();
        }
    }

    /// Sends a signal to the process group.
    pub(crate) fn signal(&self, signal: Signal) {
        self.supervisor.signal(signal);
    }

    /// Stops the program and all that it has started: HUP, then TERM, then KILL.
    pub(crate) fn stop(&mut self, now: Time) {
        self.supervisor.stop(now);
        if self.linger_for.is_none() {
            // A process that is not of its tree may hold its output open for ever.
            self.linger_for = Some(STOPPED_LINGER);
            if let Linger::Until(until) = &mut self.linger {
                *until = Some(now + STOPPED_LINGER);
            }
        }
    }
}
