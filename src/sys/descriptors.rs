//! File descriptors as a resource that runs out.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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
