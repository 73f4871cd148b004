//! Child processes in sessions of their own: how they start, and how they are signalled and reaped.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal as NixSignal, signal};
use rustix::process::{
    Pid, Resource, Signal, WaitId, WaitIdOptions, WaitOptions, chdir, getpid, ioctl_tiocsctty,
    kill_process_group, setrlimit, setsid, waitid, waitpid,
};

use super::account::Account;
use super::descriptors::{close_on_exec_from, original_descriptor_limit};

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

/// The children that were started here and are not reaped yet. Any other child of this process is an orphan that it
/// has adopted.
static OURS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// The children whose [`ChildProcess`] was dropped before they exited. They have been killed, and are reaped once they
/// have exited.
static DROPPED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

pub(super) fn ours() -> MutexGuard<'static, BTreeSet<u32>> {
    lock(&OURS)
}

/// The children that were started here and are not reaped yet.
pub(crate) fn own_children() -> Vec<u32> {
    ours().iter().copied().collect()
}

/// Sends TERM to the groups of those children of the program before that nobody has taken over. They are orphans from now on.
pub(crate) fn end_children(children: &[u32]) {
    let ours = ours();
    for pid in children.iter().filter(|pid| !ours.contains(pid)) {
        signal_group(*pid, Signal::TERM);
    }
}

fn lock(pids: &'static Mutex<BTreeSet<u32>>) -> MutexGuard<'static, BTreeSet<u32>> {
    // A panic cannot leave a set of numbers in an invalid state.
    pids.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The dropped children that have not been reaped.
pub(super) fn dropped() -> Vec<Pid> {
    lock(&DROPPED).iter().copied().filter_map(to_pid).collect()
}

/// Reaps the dropped children that have exited. Does not block.
pub(super) fn reap_dropped() {
    let mut dropped = lock(&DROPPED);
    if dropped.is_empty() {
        return;
    }
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let mut ours = ours();
    dropped.retain(|pid| {
        let runs =
            to_pid(*pid).is_some_and(|pid| matches!(waitid(WaitId::Pid(pid), options), Ok(None)));
        if !runs {
            ours.remove(pid);
        }
        runs
    });
}

/// The time within which a child process must have executed its program. The parent waits for it, and with it the whole
/// loop. A file system that does not answer would otherwise hold both up for any time.
const EXECUTE_TIMEOUT: Duration = Duration::from_secs(3);

/// The first descriptor after the standard streams.
const FIRST_DESCRIPTOR: RawFd = 3;

/// Settings of a new child process beyond those of [`Command`].
#[derive(Debug, Default)]
pub(crate) struct StartOptions {
    /// Whether its standard input becomes its controlling terminal.
    pub(crate) terminal: bool,
    /// The account to run as; `None` for the server's own.
    pub(crate) account: Option<Account>,
    /// The working directory, entered with the rights of the account.
    pub(crate) cwd: Option<CString>,
}

/// A child process that leads a session and a process group of its own.
///
/// Dropping it before the process is reaped kills the group. Dropping never blocks: a process that has not exited by then
/// is reaped on SIGCHLD, or when the next process is started.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    pid: u32,
    /// `None` if the program before this one has started the process.
    child: Option<Child>,
    reaped: bool,
}

impl ChildProcess {
    /// Starts a process. On Linux, the kernel kills it when the thread that started it ends.
    ///
    /// It inherits its standard streams and no other descriptor, the original descriptor limit, and the server's
    /// environment except for [`PRIVATE_VARIABLES`]. Variables that `command` sets are passed on in any case.
    ///
    /// # Errors
    ///
    /// The process cannot be created, the program cannot be executed, or, on Linux, this takes longer than
    /// [`EXECUTE_TIMEOUT`].
    pub(crate) fn start(command: &mut Command, options: StartOptions) -> io::Result<Self> {
        Self::start_within(EXECUTE_TIMEOUT, command, options)
    }

    fn start_within(
        timeout: Duration,
        command: &mut Command,
        options: StartOptions,
    ) -> io::Result<Self> {
        reap_dropped();
        for variable in PRIVATE_VARIABLES {
            let mut set = command.get_envs().filter(|(_, value)| value.is_some());
            if !set.any(|(name, _)| name == variable) {
                command.env_remove(variable);
            }
        }
        let parent = getpid();
        let limit = original_descriptor_limit();
        let prepare = move || {
            kill_unless_executed_within(timeout);
            setsid()?;
            if options.terminal {
                ioctl_tiocsctty(rustix::stdio::stdin())?;
            }
            close_on_exec_from(FIRST_DESCRIPTOR, limit);
            if let Some(limit) = limit {
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
            if let Some(account) = &options.account {
                account.switch_to()?;
            }
            if let Some(cwd) = &options.cwd {
                chdir(cwd)?;
            }
            die_with(parent)
        };
        // SAFETY: between fork and exec, only this thread exists in the child, and a lock that another thread held stays
        // locked. The closure only makes system calls: it does not allocate or lock. Its captures were allocated before.
        #[allow(unsafe_code)]
        unsafe {
            command.pre_exec(prepare);
        }
        let began = Instant::now();
        // Another thread must not take the child for an orphan in the meantime.
        let mut ours = ours();
        let child = command.spawn()?;
        let pid = child.id();
        ours.insert(pid);
        drop(ours);
        let process = Self {
            pid,
            child: Some(child),
            reaped: false,
        };
        // The end of a child that was killed before it executed its program looks like success.
        if began.elapsed() >= timeout && process.is_killed() {
            let why = format!("the program could not be executed within {timeout:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        Ok(process)
    }

    /// Takes over a child of this process that the program before this one has started. `reaped` says whether that program has reaped
    /// it.
    pub(crate) fn adopt(pid: u32, reaped: bool) -> Self {
        if !reaped {
            ours().insert(pid);
        }
        Self {
            pid,
            child: None,
            reaped,
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.pid
    }

    /// Whether the process was reaped.
    pub(crate) fn is_reaped(&self) -> bool {
        self.reaped
    }

    /// Takes the server's ends of standard input, output and error, for those that are pipes.
    pub(crate) fn take_pipes(&mut self) -> [Option<OwnedFd>; 3] {
        let Some(child) = &mut self.child else {
            return [None, None, None];
        };
        [
            child.stdin.take().map(Into::into),
            child.stdout.take().map(Into::into),
            child.stderr.take().map(Into::into),
        ]
    }

    /// Whether the process has exited. Until it is reaped it stays a zombie, and its pid and group are not reused.
    pub(crate) fn has_exited(&self) -> bool {
        has_exited(self.id())
    }

    /// Whether the process was killed, without reaping it.
    fn is_killed(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = to_pid(self.id()).map(|pid| waitid(WaitId::Pid(pid), options));
        let killed = Some(Signal::KILL.as_raw());
        matches!(status, Some(Ok(Some(status))) if status.terminating_signal() == killed)
    }

    /// Reaps the process. Blocks until it has exited. Returns `None` if it has been reaped elsewhere, so that its status
    /// is unknown.
    pub(crate) fn reap(&mut self) -> Option<ExitStatus> {
        let status = match &mut self.child {
            Some(child) => child.wait().ok(),
            None => wait_for(self.pid),
        };
        self.reaped = true;
        ours().remove(&self.id());
        status
    }

    /// Sends a signal to the process group. Does nothing once the process is reaped, when the number of the group may
    /// have been reused.
    pub(crate) fn signal_group(&self, signal: Signal) {
        if !self.reaped {
            signal_group(self.id(), signal);
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        self.signal_group(Signal::KILL);
        // The process may exit later, or never if it hangs in the kernel. The loop must not wait for it.
        lock(&DROPPED).insert(self.id());
        reap_dropped();
    }
}

/// Has the kernel kill this process, a child, unless it executes a program within this time: timers of `timer_create` end
/// with the execution. Where this fails, there is no limit. It only makes system calls, so it may run between fork and exec.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn kill_unless_executed_within(timeout: Duration) {
    use nix::libc;
    // SAFETY: the calls read and write only the given structures, which are valid for them: all fields are numbers, for which
    // zero is valid, and on 64-bit systems the kernel's structures are those of libc. `id` has the kernel's type.
    #[allow(unsafe_code)]
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = libc::SIGKILL;
        let mut id: libc::c_int = 0;
        let clock = libc::CLOCK_MONOTONIC;
        if libc::syscall(libc::SYS_timer_create, clock, &raw mut event, &raw mut id) == 0 {
            let mut limit: libc::itimerspec = std::mem::zeroed();
            limit.it_value.tv_sec = timeout.as_secs() as _;
            limit.it_value.tv_nsec = timeout.subsec_nanos().into();
            let none = std::ptr::null_mut::<libc::itimerspec>();
            libc::syscall(libc::SYS_timer_settime, id, 0, &raw const limit, none);
        }
    }
}

/// This system has no such timers.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn kill_unless_executed_within(_timeout: Duration) {}

/// Has the kernel kill this process when its parent exits.
#[cfg(target_os = "linux")]
fn die_with(parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() == Some(parent) {
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

/// Opens a descriptor that becomes readable when the child process `pid` has exited. Returns `None` where the system has
/// no such descriptors, so that the exit must be polled for.
#[cfg(target_os = "linux")]
pub(crate) fn exit_descriptor(pid: u32) -> io::Result<Option<OwnedFd>> {
    use rustix::io::Errno;
    use rustix::process::{PidfdFlags, pidfd_open};
    let pid = to_pid(pid).ok_or(io::ErrorKind::InvalidInput)?;
    match pidfd_open(pid, PidfdFlags::NONBLOCK) {
        Ok(fd) => Ok(Some(fd)),
        // A kernel before 5.10, or a sandbox without the call.
        Err(Errno::NOSYS | Errno::INVAL | Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// This system has no such descriptors.
#[cfg(not(target_os = "linux"))]
pub(crate) fn exit_descriptor(_pid: u32) -> io::Result<Option<OwnedFd>> {
    Ok(None)
}

/// Reaps a child. Blocks until it has exited.
fn wait_for(pid: u32) -> Option<ExitStatus> {
    loop {
        match waitpid(to_pid(pid), WaitOptions::empty()) {
            Ok(found) => return found.map(|(_, status)| ExitStatus::from_raw(status.as_raw())),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

fn has_exited(pid: u32) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // An error means that there is no such child: the kernel reaps children where SIGCHLD is ignored.
    to_pid(pid).is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
}

/// Sends a signal to the process group that the child `pid` leads. A group that no longer exists is not an error.
fn signal_group(pid: u32, signal: Signal) {
    if let Some(pid) = to_pid(pid)
        && let Err(error) = kill_process_group(pid, signal)
    {
        log::debug!("signalling process group {pid:?} failed: {error}");
    }
}

pub(super) fn to_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// The exit code of a process, or as an error the number of the signal that killed it.
pub(crate) fn code_or_signal(status: ExitStatus) -> Result<i32, i32> {
    match status.code() {
        Some(code) => Ok(code),
        None => Err(status.signal().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> ChildProcess {
        let mut command = Command::new("sleep");
        command.arg("1000");
        ChildProcess::start(&mut command, StartOptions::default()).expect("it starts")
    }

    fn expect_reaped(pid: u32) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while ours().contains(&pid) {
            assert!(Instant::now() < deadline, "process {pid} is reaped");
            reap_dropped();
            std::thread::yield_now();
        }
        assert!(to_pid(pid).is_some_and(|pid| !dropped().contains(&pid)));
    }

    /// The bug: the loop blocked for half a second for each dropped process that did not exit at once.
    #[test]
    fn a_dropped_process_is_killed_and_reaped_once_it_has_exited() {
        let process = sleeper();
        let pid = process.id();
        drop(process);
        expect_reaped(pid);
        // A process that does not exit is kept for later.
        let process = sleeper();
        let pid = process.id();
        std::mem::forget(process);
        lock(&DROPPED).insert(pid);
        for _ in 0..3 {
            reap_dropped();
            assert!(ours().contains(&pid));
        }
        signal_group(pid, Signal::KILL);
        expect_reaped(pid);
    }

    /// The bug: a program on a file system that did not answer held up the whole loop. A lease holds up whoever opens the
    /// file until its owner gives it up, as a network file system does.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_program_that_cannot_be_executed_in_time_is_given_up() {
        use std::os::fd::AsRawFd;

        use nix::libc;

        /// The request that sets the signal with which the owner of a lease is asked for it.
        const F_SETSIG: libc::c_int = 10;

        let path = std::env::temp_dir().join(format!("outrigger-lease-{}", std::process::id()));
        std::fs::copy("/bin/true", &path).expect("a program");
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .expect("the program");
        // SAFETY: the calls take numbers. The signal that asks for the lease is one that is ignored.
        #[allow(unsafe_code)]
        let leased = unsafe {
            libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG);
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
        };
        let mut command = Command::new(&path);
        let options = StartOptions::default();
        let started = (leased == 0)
            .then(|| ChildProcess::start_within(Duration::from_millis(100), &mut command, options));
        drop(file);
        std::fs::remove_file(&path).expect("the program");
        match started {
            Some(Err(error)) => assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}"),
            // It had not exited yet when that was looked at.
            Some(Ok(mut process)) => {
                let status = process.reap().expect("a status");
                assert_eq!(status.signal(), Some(Signal::KILL.as_raw()));
            }
            None => println!("this file system has no leases"),
        }
    }
}
