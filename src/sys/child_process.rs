//! Child processes in sessions of their own: how they start, and how they are signalled and reaped.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::unistd::{ForkResult, fork};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, kill_process_group,
    waitid, waitpid,
};

use super::command::{Command, StartReport};
use super::upgrade::block_signals;

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

/// A child process that leads a session and a process group of its own.
///
/// Dropping it before the process is reaped kills the group. Dropping never blocks: a process that has not exited by then
/// is reaped on SIGCHLD, or when the next process is started.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    pid: u32,
    /// The server's ends of the standard streams that are pipes.
    pipes: [Option<OwnedFd>; 3],
    report: Option<StartReport>,
    reaped: bool,
}

impl ChildProcess {
    /// Starts a process. On Linux, the kernel kills it when the thread that started it ends.
    ///
    /// Does not wait until the child has executed the program: a file system that does not answer, or busy processors, would hold up
    /// the whole loop. [`ChildProcess::take_report`] says whether the program was executed.
    ///
    /// # Errors
    ///
    /// The process cannot be created.
    pub(crate) fn start(command: Command) -> io::Result<Self> {
        reap_dropped();
        let (command, pipes) = command.prepare()?;
        let (report, reporter) = StartReport::pipe()?;
        let parent = getpid();
        // A handler of the server must not run in the child: it would write to pipes that the server reads.
        let blocked = block_signals()?;
        // Another thread must not take the child for an orphan in the meantime.
        let mut ours = ours();
        // SAFETY: the child calls only `PreparedCommand::run`, which neither allocates nor locks.
        #[allow(unsafe_code)]
        let forked = unsafe { fork() };
        if let Ok(ForkResult::Child) = forked {
            command.run(&reporter, parent);
        }
        let restored = blocked.restore();
        let ForkResult::Parent { child } = forked? else {
            return Err(io::ErrorKind::Other.into());
        };
        let pid = child.as_raw().unsigned_abs();
        ours.insert(pid);
        restored?;
        Ok(Self {
            pid,
            pipes,
            report: Some(report),
            reaped: false,
        })
    }

    /// Takes over a child of this process that the program before this one has started. `reaped` says whether that program has reaped
    /// it.
    pub(crate) fn adopt(pid: u32, reaped: bool) -> Self {
        if !reaped {
            ours().insert(pid);
        }
        Self {
            pid,
            pipes: [None, None, None],
            report: None,
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
        std::mem::take(&mut self.pipes)
    }

    /// Takes the report whether the program was executed.
    pub(crate) fn take_report(&mut self) -> Option<StartReport> {
        self.report.take()
    }

    /// Whether the process has exited. Until it is reaped it stays a zombie, and its pid and group are not reused.
    pub(crate) fn has_exited(&self) -> bool {
        has_exited(self.id())
    }

    /// Reaps the process. Blocks until it has exited. Returns `None` if it has been reaped elsewhere, so that its status
    /// is unknown.
    pub(crate) fn reap(&mut self) -> Option<ExitStatus> {
        let status = wait_for(self.pid);
        self.reaped = true;
        ours().remove(&self.id());
        status
    }

    /// Sends a signal to the process group. Does nothing once the process is reaped, when the number of the group may
    /// have been reused.
    pub(crate) fn signal_group(&self, signal: Signal) {
        // Before a new child has become the leader of its group, it gets the signal alone.
        if !self.reaped
            && !signal_group(self.id(), signal)
            && let Some(pid) = to_pid(self.id())
            && let Err(error) = kill_process(pid, signal)
        {
            log::debug!("signalling process {pid:?} failed: {error}");
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
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

fn has_exited(pid: u32) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // An error means that there is no such child: the kernel reaps children where SIGCHLD is ignored.
    to_pid(pid).is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
}

/// Sends a signal to the process group that the child `pid` leads. Returns false if there is no such group.
fn signal_group(pid: u32, signal: Signal) -> bool {
    let Some(pid) = to_pid(pid) else { return true };
    match kill_process_group(pid, signal) {
        Ok(()) => true,
        Err(error) => {
            log::debug!("signalling process group {pid:?} failed: {error}");
            error != Errno::SRCH
        }
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
    use std::time::{Duration, Instant};

    use super::*;
    #[cfg(target_os = "linux")]
    use crate::sys::LeasedProgram;

    fn sleeper() -> ChildProcess {
        let mut command = Command::new("sleep");
        command.args(["1000"]);
        ChildProcess::start(command).expect("it starts")
    }

    /// Waits for the report of a start.
    fn outcome(report: &StartReport) -> Result<(), i32> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(outcome) = report.read() {
                return outcome;
            }
            assert!(Instant::now() < deadline, "the report comes");
            std::thread::yield_now();
        }
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
        let mut process = sleeper();
        let pid = process.id();
        assert_eq!(outcome(&process.take_report().expect("a report")), Ok(()));
        std::mem::forget(process);
        lock(&DROPPED).insert(pid);
        for _ in 0..3 {
            reap_dropped();
            assert!(ours().contains(&pid));
        }
        signal_group(pid, Signal::KILL);
        expect_reaped(pid);
    }

    /// The bug: a start blocked the whole loop until the child had executed its program: up to 3 s with a slow file system.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_start_does_not_wait_until_the_program_is_executed() {
        let Some(program) = LeasedProgram::new("start") else {
            return println!("this file system has no leases");
        };
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let mut process = ChildProcess::start(Command::new(program.path())).expect("a process");
        let report = process.take_report().expect("a report");
        // The child keeps nothing of the server open in the meantime.
        drop(writer);
        io::Read::read_to_end(&mut reader, &mut Vec::new()).expect("the end");
        assert_eq!(report.read(), None);
        drop(program);
        assert!(matches!(outcome(&report), Ok(()) | Err(2)));
        assert!(process.reap().is_some());
        // A signal reaches a child that has no group yet.
        for _ in 0..20 {
            let mut process = sleeper();
            process.signal_group(Signal::TERM);
            let status = process.reap().expect("a status");
            assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
        }
    }

    #[test]
    fn a_program_that_cannot_be_executed_is_reported_with_its_error() {
        let mut text = Command::new("/etc/passwd");
        let mut nowhere = Command::new("true");
        nowhere.cwd = Some("/no/such".to_owned());
        let mut large = Command::new("true");
        large.env("LARGE", "x".repeat(1 << 20));
        text.env("PATH", "/bin");
        let mut elsewhere = Command::new("true");
        elsewhere.env("PATH", "/no/such");
        for (command, error) in [
            (Command::new("/no/such"), Errno::NOENT),
            (text, Errno::ACCESS),
            (nowhere, Errno::NOENT),
            (large, Errno::TOOBIG),
            (elsewhere, Errno::NOENT),
        ] {
            let mut process = ChildProcess::start(command).expect("a process");
            let report = process.take_report().expect("a report");
            assert_eq!(outcome(&report), Err(error.raw_os_error()));
            let status = process.reap().expect("a status");
            assert_eq!(status.code(), Some(127));
        }
        let mut nul = Command::new("true");
        nul.args(["a\0b"]);
        let error = ChildProcess::start(nul).expect_err("no such argument");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_program_has_only_its_own_streams_and_variables() {
        use std::io::Read;
        let mut command = Command::new("sh");
        command.args(["-c", "ls /dev/fd/ | wc -l; echo $A"]);
        command.env("A", "b");
        command.streams[0] = super::super::Stream::Null;
        let mut process = ChildProcess::start(command).expect("a process");
        let [stdin, stdout, stderr] = process.take_pipes();
        assert!(stdin.is_none() && stderr.is_some());
        let mut text = String::new();
        let mut stdout = std::fs::File::from(stdout.expect("a pipe"));
        stdout.read_to_string(&mut text).expect("text");
        assert!(process.reap().is_some());
        // `ls` has the folder open.
        assert!(text.starts_with("4\nb\n"), "{text}");
    }
}
