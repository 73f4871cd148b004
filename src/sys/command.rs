//! A program to be started, and how a child process becomes it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString, c_char};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, Signal as NixSignal, signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Pid, Resource, Rlimit, chdir, ioctl_tiocsctty, setrlimit, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::account::Account;
use super::descriptors::{close_all_but, original_descriptor_limit};

/// Environment variables that child processes do not inherit: the server's secret, its inherited sockets, its service manager, and what
/// an upgrade passes on.
const PRIVATE_VARIABLES: [&str; 7] = [
    "OUTRIGGER_TOKEN",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "NOTIFY_SOCKET",
    "OUTRIGGER_REHEARSAL",
    "OUTRIGGER_STATE",
];

/// The first descriptor after the standard streams.
const FIRST_DESCRIPTOR: RawFd = 3;

/// The exit code of a child that could not execute its program, as in shells.
const NOT_EXECUTED: i32 = 127;

/// A standard stream of a program.
#[derive(Debug)]
pub(crate) enum Stream {
    /// `/dev/null`.
    Null,
    /// A pipe, whose other end [`super::ChildProcess::take_pipes`] returns.
    Pipe,
    Descriptor(OwnedFd),
}

/// A program to be started. The standard library's `Command` is not used because its start waits until the child has executed the
/// program.
#[derive(Debug)]
pub(crate) struct Command {
    /// The path of the program, or its name, which is looked for in the `PATH` of `environment`.
    program: OsString,
    /// The name under which the program runs, and its arguments.
    pub(crate) arguments: Vec<OsString>,
    /// By default, that of the server, except for [`PRIVATE_VARIABLES`].
    pub(crate) environment: BTreeMap<OsString, OsString>,
    /// Standard input, output and error. The program inherits no other descriptor.
    pub(crate) streams: [Stream; 3],
    /// Whether its standard input becomes its controlling terminal.
    pub(crate) terminal: bool,
    /// The account to run as; `None` for the server's own.
    pub(crate) account: Option<Account>,
    /// The working directory, entered with the rights of the account.
    pub(crate) cwd: Option<String>,
}

impl Command {
    /// A program whose standard streams are pipes.
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        let program = program.as_ref().to_owned();
        let is_passed = |name: &OsString| PRIVATE_VARIABLES.iter().all(|private| name != private);
        Self {
            arguments: vec![program.clone()],
            program,
            environment: std::env::vars_os()
                .filter(|(name, _)| is_passed(name))
                .collect(),
            streams: [Stream::Pipe, Stream::Pipe, Stream::Pipe],
            terminal: false,
            account: None,
            cwd: None,
        }
    }

    /// Adds arguments.
    pub(crate) fn args(&mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) {
        self.arguments.extend(arguments.into_iter().map(Into::into));
    }

    /// Sets a variable.
    pub(crate) fn env(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        self.environment.insert(name.into(), value.into());
    }

    /// Allocates and opens what the child needs. Returns the server's ends of the standard streams, too.
    pub(super) fn prepare(self) -> io::Result<(PreparedCommand, [Option<OwnedFd>; 3])> {
        let mut variables = Vec::new();
        for (name, value) in self.environment {
            let mut variable = name.into_vec();
            variable.push(b'=');
            variable.extend(value.into_vec());
            variables.push(CString::new(variable)?);
        }
        let arguments = self.arguments.into_iter();
        let arguments: Result<_, _> = arguments.map(|one| CString::new(one.into_vec())).collect();
        let [stdin, stdout, stderr] = self.streams;
        let (stdin, input) = open_stream(stdin, true)?;
        let (stdout, output) = open_stream(stdout, false)?;
        let (stderr, errors) = open_stream(stderr, false)?;
        let prepared = PreparedCommand {
            program: CString::new(self.program.into_vec())?,
            arguments: Strings::new(arguments?),
            environment: Strings::new(variables),
            streams: [stdin, stdout, stderr],
            terminal: self.terminal,
            account: self.account,
            cwd: self.cwd.map(CString::new).transpose()?,
            descriptor_limit: original_descriptor_limit(),
        };
        Ok((prepared, [input, output, errors]))
    }
}

/// The program's end of a stream, and that of the server if it is a pipe.
fn open_stream(stream: Stream, is_input: bool) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let (own, other) = match stream {
        Stream::Null => {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            (open("/dev/null", flags, Mode::empty())?, None)
        }
        Stream::Pipe => {
            let (reader, writer) = io::pipe()?;
            if is_input {
                (reader.into(), Some(writer.into()))
            } else {
                (writer.into(), Some(reader.into()))
            }
        }
        Stream::Descriptor(fd) => (fd, None),
    };
    Ok((above_streams(own)?, other))
}

/// A descriptor that the child can keep while it sets up its standard streams.
pub(super) fn above_streams(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() >= FIRST_DESCRIPTOR {
        return Ok(fd);
    }
    Ok(fcntl_dupfd_cloexec(&fd, FIRST_DESCRIPTOR)?)
}

/// Strings for `exec`.
#[derive(Debug)]
struct Strings {
    _strings: Vec<CString>,
    /// The addresses of the strings, and null.
    pointers: Vec<*const c_char>,
}

impl Strings {
    fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|string| string.as_ptr());
        Self {
            pointers: pointers.chain([std::ptr::null()]).collect(),
            _strings: strings,
        }
    }
}

/// What a child needs to become a program.
///
/// Between fork and exec, only one thread exists in the child, and a lock that another thread held stays locked. So the methods neither
/// allocate nor lock: they make system calls.
#[derive(Debug)]
pub(super) struct PreparedCommand {
    program: CString,
    arguments: Strings,
    environment: Strings,
    streams: [OwnedFd; 3],
    terminal: bool,
    account: Option<Account>,
    cwd: Option<CString>,
    descriptor_limit: Option<Rlimit>,
}

impl PreparedCommand {
    /// Makes this process, a child in which all signals are blocked, execute the program. If that fails, writes the error to `report`
    /// and exits.
    pub(super) fn run(&self, report: &OwnedFd, parent: Pid) -> ! {
        let Err(error) = self.set_up(report, parent).and_then(|()| self.execute());
        let error = error.raw_os_error().unwrap_or(Errno::INTR.raw_os_error());
        let _ = rustix::io::write(report, &error.to_ne_bytes());
        // SAFETY: the call ends the process, without the handlers of the server.
        #[allow(unsafe_code)]
        unsafe {
            libc::_exit(NOT_EXECUTED)
        }
    }

    fn set_up(&self, report: &OwnedFd, parent: Pid) -> io::Result<()> {
        let [stdin, stdout, stderr] = &self.streams;
        dup2_stdin(stdin)?;
        dup2_stdout(stdout)?;
        dup2_stderr(stderr)?;
        setsid()?;
        // Not being able to is no reason to fail.
        let _ = end_before_the_server();
        if self.terminal {
            ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        close_all_but(report.as_fd(), FIRST_DESCRIPTOR, self.descriptor_limit);
        if let Some(limit) = self.descriptor_limit {
            setrlimit(Resource::Nofile, limit)?;
        }
        // The process that started the server may have ignored any of them, as `nohup`, Python and background jobs of
        // scripts do, and ignored signals are inherited. The action for KILL and STOP cannot be set.
        for reset in NixSignal::iterator() {
            // SAFETY: this runs in the child, which is about to execute another program and needs no handler.
            #[allow(unsafe_code)]
            let result = unsafe { signal(reset, SigHandler::SigDfl) };
            if !matches!(reset, NixSignal::SIGKILL | NixSignal::SIGSTOP) {
                result?;
            }
        }
        // No handler of the server can run here any more.
        SigSet::empty().thread_set_mask()?;
        if let Some(account) = &self.account {
            account.switch_to()?;
        }
        if let Some(cwd) = &self.cwd {
            chdir(cwd)?;
        }
        die_with(parent)
    }

    /// Executes the program, which is looked for in the `PATH` of its own environment.
    fn execute(&self) -> io::Result<Infallible> {
        // SAFETY: no other thread exists that could read the environment. The strings live longer than this process's program, and
        // null ends both lists. The C libraries look the program up without allocating.
        #[allow(unsafe_code)]
        unsafe {
            *environment() = self.environment.pointers.as_ptr();
            libc::execvp(self.program.as_ptr(), self.arguments.pointers.as_ptr());
        }
        Err(io::Error::last_os_error())
    }
}

/// In a child before exec: has the kernel kill the program before the server when memory is short, in the machine or in a control
/// group (proc_pid_oom_score_adj(5)). Otherwise the server would end, which may be the largest process, and all programs with it.
/// Allocates nothing.
fn end_before_the_server() -> io::Result<()> {
    /// The part of the memory, in thousandths, by which the program counts as larger. By default, the server takes a quarter.
    const LARGER: i32 = 300;
    let mut file = File::options()
        .read(true)
        .write(true)
        .open("/proc/self/oom_score_adj")?;
    let mut text = [0; 8];
    let length = file.read(&mut text)?;
    let now = std::str::from_utf8(&text[..length]).map_or("", str::trim);
    if now.parse().is_ok_and(|now: i32| now < LARGER) {
        file.write_all(b"300")?;
    }
    Ok(())
}

/// The place of the C library's pointer to the environment.
#[cfg(target_vendor = "apple")]
fn environment() -> *mut *const *const c_char {
    // SAFETY: the call returns the address of a variable.
    #[allow(unsafe_code)]
    unsafe {
        libc::_NSGetEnviron().cast()
    }
}

/// The place of the C library's pointer to the environment.
#[cfg(not(target_vendor = "apple"))]
fn environment() -> *mut *const *const c_char {
    // SAFETY: POSIX specifies this variable.
    #[allow(unsafe_code)]
    unsafe extern "C" {
        static mut environ: *const *const c_char;
    }
    &raw mut environ
}

/// Has the kernel kill this process when its parent exits.
#[cfg(target_os = "linux")]
fn die_with(parent: Pid) -> io::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == Some(parent) {
        Ok(())
    } else {
        // The parent exited before the signal was set.
        Err(io::ErrorKind::Interrupted.into())
    }
}

/// This system has no such signal.
#[cfg(not(target_os = "linux"))]
fn die_with(_parent: Pid) -> io::Result<()> {
    Ok(())
}

/// Says whether a child process has executed its program: the read end of a pipe that the execution closes.
#[derive(Debug)]
pub(crate) struct StartReport(OwnedFd);

impl StartReport {
    /// Takes over a report that the program before this one has read.
    pub(crate) fn passed(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// A report, and the descriptor for [`PreparedCommand::run`].
    pub(super) fn pipe() -> io::Result<(Self, OwnedFd)> {
        let (reader, writer) = io::pipe()?;
        rustix::io::ioctl_fionbio(&reader, true)?;
        Ok((Self(reader.into()), above_streams(writer.into())?))
    }

    /// Waits until the report can be read, for at most `limit`.
    pub(crate) fn wait(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap_or_default();
            // The exit of another child is a signal.
            if poll(&mut fds, Some(&left)) != Err(Errno::INTR) {
                return;
            }
        }
    }

    /// Returns the error number if the program could not be executed, and `None` while this is not known. Does not block. The end of
    /// a child that was killed before it executed its program looks like success.
    pub(crate) fn read(&self) -> Option<Result<(), i32>> {
        let mut error = [0; 4];
        match rustix::io::read(&self.0, &mut error) {
            Err(Errno::AGAIN | Errno::INTR) => None,
            Ok(4) => Some(Err(i32::from_ne_bytes(error))),
            Ok(_) | Err(_) => Some(Ok(())),
        }
    }
}

impl AsFd for StartReport {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
