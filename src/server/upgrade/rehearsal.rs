//! The rehearsal: the new program says whether it could continue.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::passed;
use crate::sys::{ChildProcess, StartOptions, code_or_signal, exit_descriptor};

/// How long a rehearsal may take. It loads the settings and parses the records.
const LIMIT: Duration = Duration::from_secs(10);

/// The maximum length of the reason that the new program gives, in bytes.
const MAX_REASON: u64 = 4096;

/// Runs the new program, which reads the state from its standard input. Returns why it could not continue. Blocks the thread.
pub(super) fn run(program: &Path, arguments: &[OsString], state: File) -> Result<(), String> {
    let failed = |error: io::Error| {
        format!(
            "the new program cannot be tried: {}: {error}",
            program.display()
        )
    };
    let mut command = Command::new(program);
    let (name, value) = passed::rehearsal_variable();
    if let Some((name, rest)) = arguments.split_first() {
        use std::os::unix::process::CommandExt;
        command.arg0(name).args(rest);
    }
    command.env(name, value);
    command
        .stdin(state)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = ChildProcess::start(&mut command, StartOptions::default()).map_err(failed)?;
    let [_, _, stderr] = child.take_pipes();
    let Some(stderr) = stderr.map(File::from) else {
        return Err(failed(io::ErrorKind::BrokenPipe.into()));
    };
    let mut said = Vec::new();
    let until = Instant::now() + LIMIT;
    loop {
        wait_until_readable(stderr.as_fd(), until)?;
        let mut piece = [0; 1024];
        match (&stderr).read(&mut piece) {
            Ok(0) => break,
            Ok(count) if said.len() as u64 <= MAX_REASON => said.extend_from_slice(&piece[..count]),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    // A program may close its standard error and go on. If it takes too long, it is killed when `child` is dropped.
    if let Some(exit) = exit_descriptor(child.id()).map_err(failed)? {
        wait_until_readable(exit.as_fd(), until)?;
    }
    let status = child.reap();
    match status.map(code_or_signal) {
        Some(Ok(0)) => Ok(()),
        status => {
            let said = String::from_utf8_lossy(&said);
            // The last line is the error. Warnings come before it.
            let last = said.lines().rev().find(|line| !line.trim().is_empty());
            let last = last.map(|line| line.trim_start_matches("outrigger: ").to_owned());
            Err(last.unwrap_or_else(|| match status {
                Some(Ok(code)) => format!("the new program has exited with code {code}"),
                Some(Err(signal)) => format!("signal {signal} has ended the new program"),
                None => "the new program has exited with unknown status".to_owned(),
            }))
        }
    }
}

/// Waits until a descriptor is readable. Fails when the rehearsal has taken too long.
fn wait_until_readable(fd: BorrowedFd<'_>, until: Instant) -> Result<(), String> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("the new program has not ended within {LIMIT:?}"));
        }
        let timeout = Timespec::try_from(left).ok();
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(format!("cannot wait for the new program: {error}")),
        }
    }
}
