//! The rehearsal: the new program says whether it could continue, and which services.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::passed;
use super::state::Agreement;
use crate::record::{Bytes, Loader, Record, Restored, Saved, Saver};
use crate::sys::{
    ChildProcess, Command, Stream, code_or_signal, exit_descriptor, receive_with_descriptors,
    send_with_descriptors,
};

/// How long a rehearsal may take. It loads the settings and parses the records.
const LIMIT: Duration = Duration::from_secs(10);

/// The maximum length of the reason that the new program gives, in bytes.
const MAX_REASON: u64 = 4096;

/// Says in the rehearsal that this program could continue, and sends the sockets that it has opened.
pub(super) fn agree(agreement: Agreement) -> io::Result<()> {
    let mut saver = Saver::default();
    agreement.save(&mut saver);
    // The program may have printed a part of a line.
    let answer = [b"\n", &*saver.take_text(), b"\n"].concat();
    let sockets = saver.descriptors().iter().filter_map(Saved::descriptor);
    let sockets: Vec<BorrowedFd<'_>> = sockets.collect();
    io::stdout().flush()?;
    send_with_descriptors(io::stdout().as_fd(), &answer, &sockets)?;
    // From here on, the program before removes their files.
    std::mem::forget(agreement);
    Ok(())
}

/// Reads what the new program has said on its standard output. It has ended, and a process that it has left behind is not waited for.
fn read_agreement(output: &UnixStream) -> Option<Agreement> {
    let (said, sockets) = receive_with_descriptors(output).ok()?;
    let said = String::from_utf8(said).ok()?;
    let answer = said.lines().last()?.as_bytes().to_vec();
    let sockets = sockets.into_iter().map(Restored::Descriptor).collect();
    let mut from = Loader::new(Box::new(NoBytes), 0, sockets);
    from.read(answer, Agreement::restore).ok()
}

/// The answer has no bytes beside it.
#[derive(Debug)]
struct NoBytes;

impl Bytes for NoBytes {
    fn read_at(&mut self, _: u64, _: usize, _: &mut Vec<u8>) -> io::Result<()> {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Runs the new program, which reads the state from its standard input. Returns why it could not continue. Blocks the thread.
pub(super) fn run(
    program: &Path,
    arguments: &[OsString],
    state: File,
) -> Result<Agreement, String> {
    let failed = |error: io::Error| {
        format!(
            "the new program cannot be tried: {}: {error}",
            program.display()
        )
    };
    let mut command = Command::new(program);
    let (name, value) = passed::rehearsal_variable();
    if !arguments.is_empty() {
        command.arguments = arguments.to_vec();
    }
    // It reads the same settings as the server, also those that no other program gets.
    for (name, value) in std::env::vars_os() {
        command.env(name, value);
    }
    command.env(name, value);
    let (output, other) = UnixStream::pair().map_err(failed)?;
    // The child alone has the other end of the output.
    command.streams = [
        Stream::Descriptor(state.into()),
        Stream::Descriptor(other.into()),
        Stream::Pipe,
    ];
    let mut child = ChildProcess::start(command).map_err(failed)?;
    let ([_, _, stderr], report) = (child.take_pipes(), child.take_report());
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
    if let Some(Some(Err(error))) = report.map(|report| report.read()) {
        return Err(failed(io::Error::from_raw_os_error(error)));
    }
    match status.map(code_or_signal) {
        Some(Ok(0)) => read_agreement(&output)
            .ok_or_else(|| "the new program has not said that it can continue".to_owned()),
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
