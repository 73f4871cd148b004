//! Child processes beyond what the standard library does.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, Signal, kill_process_group};

/// A descriptor that becomes readable when the child process `pid` has ended.
#[cfg(target_os = "linux")]
pub(crate) fn exit_descriptor(pid: u32) -> io::Result<Option<OwnedFd>> {
    use rustix::process::{PidfdFlags, pidfd_open};
    let pid = to_pid(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(Some(pidfd_open(pid, PidfdFlags::NONBLOCK)?))
}

/// There is no such descriptor on this system: the end has to be asked for now and then.
#[cfg(not(target_os = "linux"))]
pub(crate) fn exit_descriptor(_pid: u32) -> io::Result<Option<OwnedFd>> {
    Ok(None)
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
