//! How a program begins.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use uuid::Uuid;

use super::streams::{Input, Output};
use super::{EXIT_POLL, Ending, Linger, Program};
use crate::service::process::scrollback::Stream;
use crate::service::process::sink::Sink;
use crate::sys::{Account, Beginning, Process, TerminalSize, exit_descriptor, open_pty};
use crate::{Context, Interest, Time};

/// The variable in a program's environment by which what it leaves behind is known as its own.
pub(crate) const MARK: &str = "OUTRIGGER_PROCESS_ID";

/// What a terminal says it is, unless the caller knows better.
const TERM: &str = "xterm-256color";

/// What is to be started.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) id: Uuid,
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    pub(crate) cwd: Option<String>,
    /// Added to our own environment, or to the one that login gives to `account`.
    pub(crate) env: Vec<(String, String)>,
    /// Who runs it, unless it is us.
    pub(crate) account: Option<Account>,
    /// Variables of our own environment that `account` gets too.
    pub(crate) pass_env: Vec<String>,
    /// The size of its terminal; `None` for pipes.
    pub(crate) terminal: Option<TerminalSize>,
    /// Whether it can be written to. Without, a program with pipes reads an end at once.
    pub(crate) takes_input: bool,
    /// After which it is killed.
    pub(crate) timeout: Option<Duration>,
    /// How long output is read after its end, where another process holds the other side open.
    pub(crate) linger: Duration,
}

impl Program {
    /// Starts a program.
    pub(crate) fn start(ctx: &mut Context, launch: Launch, sink: Sink) -> io::Result<Self> {
        let [name, args @ ..] = &*launch.command else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(name);
        command.args(args);
        if let Some(account) = &launch.account {
            set_login_environment(&mut command, account, &launch.pass_env);
        }
        if launch.terminal.is_some() {
            command.env("TERM", TERM);
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
            linger_for: launch.linger,
            linger: Linger::No,
            ending: Ending::No,
            pending_signal: None,
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
            let source = ctx.watch(terminal, Interest::Both)?;
            self.outputs
                .push(Output::new(Arc::clone(terminal), source, Stream::Stdout));
            self.input = Some(Input::new(Arc::clone(terminal), source));
        } else {
            let [stdin, stdout, stderr] = self.process.streams();
            for (pipe, stream) in [(stdout, Stream::Stdout), (stderr, Stream::Stderr)] {
                if let Some(pipe) = pipe {
                    let pipe = nonblocking(pipe)?;
                    let source = ctx.watch(&pipe, Interest::Readable)?;
                    self.outputs.push(Output::new(pipe, source, stream));
                }
            }
            if let Some(pipe) = stdin {
                let pipe = nonblocking(pipe)?;
                let source = ctx.watch(&pipe, Interest::Writable)?;
                self.input = Some(Input::new(pipe, source));
            }
        }
        match exit_descriptor(self.pid())? {
            Some(fd) => {
                let source = ctx.watch(&fd, Interest::Readable)?;
                self.exit_watch = Some((fd, source));
            }
            None => self.exit_poll = Some(ctx.now() + EXIT_POLL),
        }
        Ok(())
    }
}

/// Gives a program the login environment of its user, with our language and terminal variables, and with the variables
/// that the operator names. The rest of our environment is not passed to other users.
fn set_login_environment(command: &mut Command, account: &Account, pass: &[String]) {
    command.env_clear();
    for (name, value) in std::env::vars_os() {
        let passes = name.to_str().is_some_and(|name| {
            matches!(name, "TERM" | "LANG")
                || name.starts_with("LC_")
                || pass.iter().any(|pass| pass == name)
        });
        if passes {
            command.env(name, value);
        }
    }
    for (name, value) in account.environment() {
        if !pass.iter().any(|pass| pass == name) {
            command.env(name, value);
        }
    }
}

/// Our end of a pipe, which does not block. The other end is the program's and stays as it is.
fn nonblocking(pipe: OwnedFd) -> io::Result<Arc<OwnedFd>> {
    fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
    Ok(Arc::new(pipe))
}
