//! Child processes beyond what the standard library does.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

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

/// Whether the child process `pid` has ended. It stays a zombie, and its group's number its own, until it is waited for.
pub(crate) fn has_ended(pid: u32) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // An error means that there is no such child: where SIGCHLD is ignored, the kernel has waited for it.
    to_pid(pid).is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
}

/// Sends a signal to the process group that the child `pid` leads. A group that is gone is no error.
pub(crate) fn signal_group(pid: u32, signal: Signal) {
    if let Some(pid) = to_pid(pid)
        && let Err(error) = kill_process_group(pid, signal)
    {
        log::debug!("signalling process group {pid:?} failed: {error}");
    }
}

fn to_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}
