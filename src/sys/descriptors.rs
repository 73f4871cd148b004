//! File descriptors as a resource that runs out.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit before it was raised.
static ORIGINAL: OnceLock<Rlimit> = OnceLock::new();

/// The most descriptors that are gone through one by one where the system cannot mark a range of them.
const MOST_ONE_BY_ONE: RawFd = 1 << 16;

/// The limit of open files that this process was started with, if it was raised since. Programs get it back: one that
/// closes all descriptors there could be, or that uses `select`, suffers from a limit of a million.
pub(crate) fn original_descriptor_limit() -> Option<Rlimit> {
    ORIGINAL.get().copied()
}

/// Has the next `exec` close every descriptor from `first` on. It makes system calls and nothing else, so it may run
/// between fork and exec. `original` is the limit of open files before it was raised.
pub(super) fn close_on_exec_from(first: RawFd, original: Option<Rlimit>) {
    if mark_range(first) {
        return;
    }
    // What we have opened ourselves closes on exec already. What was open before us lies below the limit of that time.
    let limit = original.unwrap_or_else(|| getrlimit(Resource::Nofile));
    let end = limit.current.and_then(|end| RawFd::try_from(end).ok());
    for number in first..end.map_or(MOST_ONE_BY_ONE, |end| end.min(MOST_ONE_BY_ONE)) {
        // SAFETY: it is borrowed for one call, which fails if it is not open.
        #[allow(unsafe_code)]
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        let _ = fcntl_setfd(borrowed, FdFlags::CLOEXEC);
    }
}

/// Marks all at once. Returns whether the system can.
#[cfg(target_os = "linux")]
fn mark_range(first: RawFd) -> bool {
    use nix::libc::{CLOSE_RANGE_CLOEXEC, SYS_close_range, c_uint, syscall};
    // SAFETY: the call changes flags of descriptors, and no memory. It fails before Linux 5.11.
    #[allow(unsafe_code)]
    let result = unsafe {
        syscall(
            SYS_close_range,
            first as c_uint,
            c_uint::MAX,
            CLOSE_RANGE_CLOEXEC,
        )
    };
    result == 0
}

/// There is no such call on this system.
#[cfg(not(target_os = "linux"))]
fn mark_range(_: RawFd) -> bool {
    false
}

/// Raises the soft limit of open files to the hard limit, as servers do, and returns what it is then.
pub(crate) fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return limit.current.unwrap_or(u64::MAX);
    }
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let now = if setrlimit(Resource::Nofile, raised).is_ok() {
        // Of several servers in one process the first one has raised it.
        let _ = ORIGINAL.set(limit);
        raised
    } else {
        limit
    };
    now.current.unwrap_or(u64::MAX)
}

/// Whether an error of `accept` means that the process or the machine is out of something, so that trying again at
/// once would only spin.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}

/// Bytes that were written to a socket and that its peer has not taken yet, where the system tells.
#[cfg(target_os = "linux")]
pub(crate) fn unsent_bytes(socket: impl AsFd) -> Option<usize> {
    use nix::libc::TIOCOUTQ;
    use rustix::ioctl::{Getter, Opcode, ioctl};
    // SAFETY: on a socket the call writes one `int` to where it is told to and does nothing else.
    #[allow(unsafe_code)]
    let unsent: i32 =
        unsafe { ioctl(socket, Getter::<{ TIOCOUTQ as Opcode }, i32>::new()) }.ok()?;
    usize::try_from(unsent).ok()
}

/// There is no such question on this system.
#[cfg(not(target_os = "linux"))]
pub(crate) fn unsent_bytes(_: impl AsFd) -> Option<usize> {
    None
}

/// A file descriptor that was made non-blocking, and gets its old flags back at the end: others may share what it
/// names. A terminal or a file is left alone, since the shell that shares it would suffer meanwhile.
#[derive(Debug)]
pub(crate) struct NonblockingGuard {
    fd: OwnedFd,
    nonblocking: bool,
    restore: Option<OFlags>,
}

impl NonblockingGuard {
    /// Takes over a descriptor.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let kind = FileType::from_raw_mode(fstat(&fd)?.st_mode);
        let mut restore = None;
        let nonblocking = matches!(kind, FileType::Fifo | FileType::Socket);
        if nonblocking {
            let flags = fcntl_getfl(&fd)?;
            if !flags.contains(OFlags::NONBLOCK) {
                fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
                restore = Some(flags);
            }
        }
        Ok(Self {
            fd,
            nonblocking,
            restore,
        })
    }

    /// Whether a call would block at this moment. Only a descriptor that was left alone has to be asked; the others
    /// say so themselves.
    pub(crate) fn would_block(&self, events: PollFlags) -> bool {
        let mut poll_fd = [PollFd::new(&self.fd, events)];
        !self.nonblocking
            && matches!(
                poll(&mut poll_fd, Some(&Timespec::default())),
                Ok(0) | Err(_)
            )
    }

    /// The most bytes to write at once without blocking, once `would_block` said that it does not.
    pub(crate) fn most(&self) -> usize {
        if self.nonblocking { usize::MAX } else { 4096 }
    }
}

impl AsFd for NonblockingGuard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for NonblockingGuard {
    fn drop(&mut self) {
        if let Some(flags) = self.restore {
            // Nothing is left to be done about a failure here.
            let _ = fcntl_setfl(&self.fd, flags);
        }
    }
}
