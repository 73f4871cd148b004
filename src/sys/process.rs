//! Child processes beyond what the standard library does: how they begin, how they end, and those that were left to
//! us by others.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::signal::{SigHandler, Signal as NixSignal, signal};
use rustix::process::{
    Pid, Resource, Signal, WaitId, WaitIdOptions, chdir, getpid, getppid, ioctl_tiocsctty,
    kill_process_group, setrlimit, setsid, waitid,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::account::Account;
use super::descriptors::{close_on_exec_from, original_descriptor_limit};

/// Variables that are for us and not for the programs that we start: our secret, and the sockets we were given.
const OUR_OWN: [&str; 4] = [
    "OUTRIGGER_TOKEN",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
];

/// The children that were started here and not waited for yet. Any other child of this process was left to it.
static OURS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Those of them whose [`Process`] was dropped before they ended. They were killed, and they are waited for once they
/// have ended.
static DROPPED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

pub(super) fn ours() -> MutexGuard<'static, BTreeSet<u32>> {
    lock(&OURS)
}

fn lock(pids: &'static Mutex<BTreeSet<u32>>) -> MutexGuard<'static, BTreeSet<u32>> {
    // A set of numbers is whole whoever panicked.
    pids.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The dropped children that have not been waited for.
pub(super) fn dropped() -> Vec<Pid> {
    lock(&DROPPED).iter().copied().filter_map(to_pid).collect()
}

/// Waits for the dropped children that have ended, without waiting for others.
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

/// Signals that a program may find ignored because whoever started us ignored them: `nohup`, a script in the
/// background. It gets them as they are by nature.
const RESET: [NixSignal; 10] = [
    NixSignal::SIGHUP,
    NixSignal::SIGINT,
    NixSignal::SIGQUIT,
    NixSignal::SIGTERM,
    NixSignal::SIGUSR1,
    NixSignal::SIGUSR2,
    NixSignal::SIGCHLD,
    NixSignal::SIGTSTP,
    NixSignal::SIGTTIN,
    NixSignal::SIGTTOU,
];

/// The first descriptor behind the standard streams.
const FIRST_DESCRIPTOR: RawFd = 3;

/// How a process begins.
#[derive(Debug, Default)]
pub(crate) struct Beginning {
    /// Whether its standard input is the terminal that controls it.
    pub(crate) terminal: bool,
    /// Whom it runs as, unless that is us.
    pub(crate) account: Option<Account>,
    /// Where it starts, by the rights of the one it runs as.
    pub(crate) cwd: Option<CString>,
}

/// A child process that leads a session and a process group of its own; it cannot leave them. The group is killed if
/// this is dropped before the process was waited for. Dropping never blocks: a process that has not ended by then is
/// waited for when SIGCHLD tells of its end, or when the next process is started.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    waited: bool,
}

impl Process {
    /// Starts a process. It is killed when the thread that started it ends, however that ends.
    ///
    /// It inherits its standard streams and no other descriptor, the descriptor limit that this process was started
    /// with, and our environment without the variables that are for us alone. One of these that `command` sets itself
    /// is the caller's, and is passed on.
    pub(crate) fn start(command: &mut Command, beginning: Beginning) -> io::Result<Self> {
        reap_dropped();
        for variable in OUR_OWN {
            let mut set = command.get_envs().filter(|(_, value)| value.is_some());
            if !set.any(|(name, _)| name == variable) {
                command.env_remove(variable);
            }
        }
        let parent = getpid();
        let limit = original_descriptor_limit();
        let prepare = move || {
            setsid()?;
            if beginning.terminal {
                ioctl_tiocsctty(rustix::stdio::stdin())?;
            }
            close_on_exec_from(FIRST_DESCRIPTOR, limit);
            if let Some(limit) = limit {
                setrlimit(Resource::Nofile, limit)?;
            }
            for reset in RESET {
                // SAFETY: no handler of ours is replaced that anything in this process still needs.
                #[allow(unsafe_code)]
                unsafe {
                    signal(reset, SigHandler::SigDfl)?;
                }
            }
            if let Some(account) = &beginning.account {
                set_thread_groups(&account.groups)?;
                set_thread_res_gid(account.gid, account.gid, account.gid)?;
                set_thread_res_uid(account.uid, account.uid, account.uid)?;
            }
            if let Some(cwd) = &beginning.cwd {
                chdir(cwd)?;
            }
            die_with(parent)
        };
        // SAFETY: between fork and exec only this thread exists in the child, and whatever another one held in the
        // parent is held for ever. The closure makes system calls and nothing else: no allocation, no lock. What it
        // captured was allocated before.
        #[allow(unsafe_code)]
        unsafe {
            command.pre_exec(prepare);
        }
        let child = command.spawn()?;
        ours().insert(child.id());
        Ok(Self {
            child,
            waited: false,
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The standard streams that were asked for as pipes.
    pub(crate) fn streams(&mut self) -> [Option<OwnedFd>; 3] {
        [
            self.child.stdin.take().map(Into::into),
            self.child.stdout.take().map(Into::into),
            self.child.stderr.take().map(Into::into),
        ]
    }

    /// Whether it has ended. It stays a zombie, and the number of its group its own, until it is waited for.
    pub(crate) fn has_ended(&self) -> bool {
        has_ended(self.id())
    }

    /// Waits for its end, which takes as long as it takes. Nobody knows how it ended where another part of the system
    /// has waited for it.
    pub(crate) fn wait(&mut self) -> Option<ExitStatus> {
        let status = self.child.wait().ok();
        self.waited = true;
        ours().remove(&self.id());
        status
    }

    /// Sends a signal to its group, unless it was waited for: the group may be another's then.
    pub(crate) fn signal_group(&self, signal: Signal) {
        if !self.waited {
            signal_group(self.id(), signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.waited {
            return;
        }
        self.signal_group(Signal::KILL);
        // It may take a moment to end, or never end if the kernel blocks it. The loop must not wait for it.
        lock(&DROPPED).insert(self.id());
        reap_dropped();
    }
}

/// Has the kernel kill this process when its parent ends.
#[cfg(target_os = "linux")]
fn die_with(parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == Some(parent) {
        Ok(())
    } else {
        // It was too late for the signal.
        Err(io::ErrorKind::Interrupted.into())
    }
}

/// Nothing like it on this system.
#[cfg(not(target_os = "linux"))]
fn die_with(_parent: Pid) -> io::Result<()> {
    let _ = getppid;
    Ok(())
}

/// A descriptor that becomes readable when the child process `pid` has ended.
#[cfg(target_os = "linux")]
pub(crate) fn exit_descriptor(pid: u32) -> io::Result<Option<OwnedFd>> {
    use rustix::io::Errno;
    use rustix::process::{PidfdFlags, pidfd_open};
    let pid = to_pid(pid).ok_or(io::ErrorKind::InvalidInput)?;
    match pidfd_open(pid, PidfdFlags::NONBLOCK) {
        Ok(fd) => Ok(Some(fd)),
        // A kernel before 5.10, or a sandbox that does not know the call.
        Err(Errno::NOSYS | Errno::INVAL | Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// There is no such descriptor on this system: the end has to be asked for now and then.
#[cfg(not(target_os = "linux"))]
pub(crate) fn exit_descriptor(_pid: u32) -> io::Result<Option<OwnedFd>> {
    Ok(None)
}

fn has_ended(pid: u32) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // An error means that there is no such child: where SIGCHLD is ignored, the kernel has waited for it.
    to_pid(pid).is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
}

/// Sends a signal to the process group that the child `pid` leads. A group that is gone is no error.
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

/// How a process ended: its code, or the number of the signal that killed it.
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

    fn sleeper() -> Process {
        let mut command = Command::new("sleep");
        command.arg("1000");
        Process::start(&mut command, Beginning::default()).expect("it starts")
    }

    fn expect_reaped(pid: u32) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while ours().contains(&pid) {
            assert!(Instant::now() < deadline, "process {pid} is waited for");
            reap_dropped();
            std::thread::yield_now();
        }
        assert!(to_pid(pid).is_some_and(|pid| !dropped().contains(&pid)));
    }

    /// The loop stood still for half a second for each process that was dropped and did not end at once.
    #[test]
    fn a_dropped_process_is_killed_and_waited_for_once_it_has_ended() {
        let process = sleeper();
        let pid = process.id();
        drop(process);
        expect_reaped(pid);
        // A process that cannot be killed is left for later.
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
}
