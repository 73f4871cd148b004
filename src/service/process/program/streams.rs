//! How a program is started, with its command, environment, account, and terminal or pipes, and the server's ends of these
//! streams.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use uuid::Uuid;

use crate::record::{Saver, record};
use crate::service::pipe::{ByteQueue, PipeState};
use crate::service::process::recording::{Recorded, Recorder, Recording};
use crate::service::process::scrollback::OutputStream;
use crate::sys::{Account, Command, PROGRAM_ID, Stream, TerminalSize, open_pty, read_output};
use crate::{Context, Interest, Principal, Readiness, SourceId, Time};

/// The default of the variable `TERM` for a program with a terminal.
const TERM: &str = "xterm-256color";

/// A program to be started.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) id: Uuid,
    /// Whose program it is.
    pub(crate) owner: Principal,
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    pub(crate) cwd: Option<String>,
    /// Variables that are added to the server's environment, or to the login environment of `account`.
    pub(crate) env: Vec<(String, String)>,
    /// The account to run as; `None` for the server's own.
    pub(crate) account: Option<Account>,
    /// Variables of the server's environment that `account` gets too.
    pub(crate) pass_env: PassEnv,
    /// The size of its terminal; `None` for pipes.
    pub(crate) terminal: Option<TerminalSize>,
    /// Whether it has an input. Without one, a program with pipes reads end of file at once.
    pub(crate) takes_input: bool,
    /// All of its input, after which it reads end of file.
    pub(crate) stdin: Option<Vec<u8>>,
    /// The time after which it is killed.
    pub(crate) timeout: Option<Duration>,
    /// How long output is read after the program's exit if another process holds the output open; `None` for as long as it
    /// does, up to `timeout`.
    pub(crate) linger: Option<Duration>,
    /// Records its terminal.
    pub(crate) recorder: Option<Recorder>,
}

/// The variables of the server's environment that a program of another account gets.
#[derive(Clone, Debug)]
pub(crate) enum PassEnv {
    /// All of them, and no login environment.
    All,
    /// These, those of the language and the terminal, and a login environment.
    Named(Vec<String>),
}

impl Launch {
    /// Sets up the command, and opens its terminal if it has one. Returns the server's side of the terminal, too.
    pub(super) fn prepare(&self) -> io::Result<(Command, Option<OwnedFd>)> {
        let [name, args @ ..] = &*self.command else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(name);
        command.args(args);
        if let (Some(account), PassEnv::Named(pass)) = (&self.account, &self.pass_env) {
            set_login_environment(&mut command, account, pass);
        }
        if self.terminal.is_some() {
            command.env("TERM", TERM);
        }
        for (name, value) in &self.env {
            command.env(name, value);
        }
        command.env(PROGRAM_ID, self.id.to_string());
        command.account = self.account.clone();
        command.cwd = self.cwd.clone();
        let Some(size) = self.terminal else {
            if !self.takes_input {
                command.streams[0] = Stream::Null;
            }
            return Ok((command, None));
        };
        // Its kind must not be taken for that of a program that cannot be executed.
        let opened = open_pty(size);
        let (server_side, program_side) = opened
            .map_err(|error| io::Error::other(format!("opening a terminal failed: {error}")))?;
        if let Some(account) = &self.account {
            rustix::fs::fchown(&program_side, Some(account.uid), None)?;
        }
        command.terminal = true;
        command.streams = [
            Stream::Descriptor(program_side.try_clone()?),
            Stream::Descriptor(program_side.try_clone()?),
            Stream::Descriptor(program_side),
        ];
        Ok((command, Some(server_side)))
    }

    /// Begins to record its terminal, if it has one and is to be recorded.
    pub(super) fn record(&self, now: Time) -> Option<Recording> {
        let kind = self.env.iter().find(|(name, _)| name == "TERM");
        let recorded = Recorded {
            id: self.id,
            command: &self.command,
            kind: kind.map_or(TERM, |(_, kind)| kind),
            size: self.terminal?,
        };
        self.recorder.as_ref()?.begin(now, recorded)
    }
}

/// Gives a program the login environment of its account, with the server's language and terminal variables and those in
/// `pass`. The rest of the server's environment is not passed to other users.
fn set_login_environment(command: &mut Command, account: &Account, pass: &[String]) {
    command.environment.retain(|name, _| {
        name.to_str()
            .is_some_and(|name| matches!(name, "TERM" | "LANG") || name.starts_with("LC_"))
    });
    // What is listed is passed on even if other programs do not inherit it.
    for name in pass {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    for (name, value) in account.environment() {
        if !pass.iter().any(|pass| pass == name) {
            command.env(name, value);
        }
    }
}

/// While more input than this is queued, no more is taken.
const INPUT_HIGH: usize = 64 << 10;

/// An output of the program: a pipe, or its terminal.
#[derive(Debug)]
pub(super) struct OutputPipe {
    fd: Arc<OwnedFd>,
    pub(super) source: SourceId,
    pub(super) stream: OutputStream,
    /// Whether there may be output to read.
    pub(super) readable: bool,
}

/// The input of the program: a pipe, or its terminal.
#[derive(Debug)]
pub(super) struct InputPipe {
    fd: Arc<OwnedFd>,
    pub(super) source: SourceId,
    queue: ByteQueue,
    pub(super) writable: bool,
    /// Whether the pipe is closed when the queue is written.
    ends: bool,
}

/// Watches a terminal, which is both input and output.
pub(super) fn watch_terminal(
    ctx: &mut Context,
    terminal: &Arc<OwnedFd>,
) -> io::Result<(InputPipe, OutputPipe)> {
    let source = ctx.watch(terminal, Interest::Both)?;
    let input = InputPipe::new(Arc::clone(terminal), source);
    let output = OutputPipe::new(Arc::clone(terminal), source, OutputStream::Stdout);
    Ok((input, output))
}

/// What a program reads and writes, as the program before has saved it. The descriptors of a terminal's input and output are its own.
#[derive(Debug)]
pub(crate) struct SavedStreams {
    terminal: Option<OwnedFd>,
    outputs: Vec<SavedOutput>,
    input: Option<SavedInput>,
}

record!(SavedStreams {
    terminal,
    outputs,
    input,
});

#[derive(Debug)]
struct SavedOutput {
    stream: OutputStream,
    fd: Option<OwnedFd>,
}

record!(SavedOutput { stream, fd });

#[derive(Debug)]
struct SavedInput {
    queue: ByteQueue,
    ends: bool,
    fd: Option<OwnedFd>,
}

record!(SavedInput { queue, ends, fd });

/// Writes the streams of a program down, as [`SavedStreams`].
pub(super) fn save_streams<'a>(
    terminal: Option<&'a Arc<OwnedFd>>,
    outputs: &'a [OutputPipe],
    input: Option<&'a InputPipe>,
    to: &mut Saver<'a>,
) {
    let save_fd = |fd: &'a Arc<OwnedFd>, to: &mut Saver<'a>| {
        if terminal.is_none() {
            to.field("fd", fd);
        }
    };
    to.open(b'{');
    if let Some(terminal) = terminal {
        to.field("terminal", terminal);
    }
    to.member("outputs", |to| {
        to.array(outputs, |to, output| {
            to.open(b'{');
            to.field("stream", &output.stream);
            save_fd(&output.fd, to);
            to.close(b'}');
        });
    });
    if let Some(input) = input {
        to.member("input", |to| {
            to.open(b'{');
            to.field("queue", &input.queue);
            to.field("ends", &input.ends);
            save_fd(&input.fd, to);
            to.close(b'}');
        });
    }
    to.close(b'}');
}

/// The terminal, the outputs and the input of a program.
type Streams = (Option<Arc<OwnedFd>>, Vec<OutputPipe>, Option<InputPipe>);

impl SavedStreams {
    /// Watches the streams.
    pub(super) fn watch(self, ctx: &mut Context) -> io::Result<Streams> {
        let terminal = self.terminal.map(Arc::new);
        let source = match &terminal {
            Some(terminal) if self.input.is_some() || !self.outputs.is_empty() => {
                Some(ctx.watch(terminal, Interest::Both)?)
            }
            _ => None,
        };
        let own = || terminal.clone().zip(source);
        let mut outputs = Vec::new();
        for SavedOutput { stream, fd } in self.outputs {
            let (fd, source) = match fd {
                Some(fd) => {
                    let source = ctx.watch(&fd, Interest::Readable)?;
                    (Arc::new(fd), source)
                }
                None => own().ok_or(io::ErrorKind::NotFound)?,
            };
            let mut output = OutputPipe::new(fd, source, stream);
            output.readable = true;
            outputs.push(output);
        }
        let Some(SavedInput { queue, ends, fd }) = self.input else {
            return Ok((terminal, outputs, None));
        };
        let (fd, source) = match fd {
            Some(fd) => {
                let source = ctx.watch(&fd, Interest::Writable)?;
                (Arc::new(fd), source)
            }
            None => own().ok_or(io::ErrorKind::NotFound)?,
        };
        let mut input = InputPipe::new(fd, source);
        (input.queue, input.ends) = (queue, ends);
        Ok((terminal, outputs, Some(input)))
    }
}

impl OutputPipe {
    fn new(fd: Arc<OwnedFd>, source: SourceId, stream: OutputStream) -> Self {
        Self {
            fd,
            source,
            stream,
            readable: false,
        }
    }

    /// Watches a pipe.
    pub(super) fn watch(
        ctx: &mut Context,
        pipe: OwnedFd,
        stream: OutputStream,
    ) -> io::Result<Self> {
        set_nonblocking(&pipe)?;
        let source = ctx.watch(&pipe, Interest::Readable)?;
        Ok(Self::new(Arc::new(pipe), source, stream))
    }

    /// Reads output. Zero bytes mean that no process has the other end open.
    pub(super) fn read(&self, spare: &mut [u8]) -> rustix::io::Result<usize> {
        read_output(self.fd.as_fd(), spare)
    }

    /// Asks for another call of `ready` for the output.
    pub(super) fn read_again(&self, ctx: &mut Context) {
        let readiness = Readiness {
            readable: true,
            writable: false,
        };
        ctx.again(self.source, readiness);
    }
}

impl InputPipe {
    fn new(fd: Arc<OwnedFd>, source: SourceId) -> Self {
        Self {
            fd,
            source,
            queue: ByteQueue::default(),
            writable: true,
            ends: false,
        }
    }

    /// Watches a pipe.
    pub(super) fn watch(ctx: &mut Context, pipe: OwnedFd) -> io::Result<Self> {
        set_nonblocking(&pipe)?;
        let source = ctx.watch(&pipe, Interest::Writable)?;
        Ok(Self::new(Arc::new(pipe), source))
    }

    /// Queues input, unless its end has been queued.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if !self.ends {
            self.queue.bytes().extend_from_slice(bytes);
        }
    }

    /// Queues the end of the input.
    pub(super) fn end(&mut self) {
        self.ends = true;
    }

    /// Whether more input can be queued.
    pub(super) fn is_open(&self) -> bool {
        !self.ends
    }

    /// The number of bytes that are queued.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Whether the input queue is over its limit, so that no more input should be accepted.
    pub(super) fn is_behind(&self) -> bool {
        self.queue.len() > INPUT_HIGH
    }

    /// Writes as much queued input as the program takes.
    pub(super) fn write(&mut self) -> PipeState {
        while self.writable && self.queue.len() > 0 {
            match rustix::io::write(&*self.fd, self.queue.unwritten()) {
                Ok(count) => self.queue.advance(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.writable = false,
                Err(error) => {
                    log::debug!("writing to a process failed: {error}");
                    return PipeState::Closed;
                }
            }
        }
        self.queue.compact(2 * INPUT_HIGH);
        if self.ends && self.queue.len() == 0 {
            return PipeState::Closed;
        }
        PipeState::Open
    }
}

/// Makes the server's end of a pipe non-blocking. The program's end is another open file description and is not changed.
fn set_nonblocking(pipe: &OwnedFd) -> io::Result<()> {
    Ok(fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?)
}
