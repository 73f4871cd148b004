//! File descriptors: their limit, their inheritance, and access to them without blocking.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
#[cfg(feature = "cli")]
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
#[cfg(target_os = "linux")]
use rustix::fs::{Mode, major, minor};
use rustix::io::{Errno, FdFlags, fcntl_setfd, ioctl_fionread};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::termios::isatty;

/// The soft limit before it was raised.
static ORIGINAL: OnceLock<Rlimit> = OnceLock::new();

/// The maximum number of descriptors that are marked one by one where the system cannot mark a range.
const MOST_ONE_BY_ONE: RawFd = 1 << 16;

/// The limit of open files that this process was started with, if it was raised since. Child processes get it back,
/// because a limit of a million harms programs that use `select` or that close every possible descriptor.
pub(crate) fn original_descriptor_limit() -> Option<Rlimit> {
    ORIGINAL.get().copied()
}

/// Closes every descriptor from `first` on but one, or has the next `exec` do so where the system cannot close a range. A child that
/// waits for its program must not keep the server's connections and pipes open. It only makes system calls, so it may run between
/// fork and exec. `original` is the limit of open files before it was raised.
pub(super) fn close_all_but(kept: BorrowedFd<'_>, first: RawFd, original: Option<Rlimit>) {
    let kept = kept.as_raw_fd();
    if close_range(kept + 1, RawFd::MAX) && (kept <= first || close_range(first, kept - 1)) {
        return;
    }
    // Descriptors that this process opened are close-on-exec already. Inherited ones lie below the original limit.
    let limit = original.unwrap_or_else(|| getrlimit(Resource::Nofile));
    let end = limit.current.and_then(|end| RawFd::try_from(end).ok());
    for number in first..end.map_or(MOST_ONE_BY_ONE, |end| end.min(MOST_ONE_BY_ONE)) {
        // SAFETY: the descriptor is borrowed for one call, which fails if it is not open.
        #[allow(unsafe_code)]
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        let _ = fcntl_setfd(borrowed, FdFlags::CLOEXEC);
    }
}

/// Closes a range with one system call. Returns whether the system supports it.
#[cfg(target_os = "linux")]
fn close_range(first: RawFd, last: RawFd) -> bool {
    use nix::libc::{SYS_close_range, c_uint, syscall};
    // SAFETY: the call touches no memory, and its caller uses none of the descriptors any more. It fails before Linux 5.9.
    #[allow(unsafe_code)]
    let result = unsafe { syscall(SYS_close_range, first as c_uint, last as c_uint, 0) };
    result == 0
}

/// This system has no such call.
#[cfg(not(target_os = "linux"))]
fn close_range(_: RawFd, _: RawFd) -> bool {
    false
}

/// Raises the soft limit of open files to the hard limit and returns the new soft limit.
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
        // With several servers in one process, the first one has raised it.
        let _ = ORIGINAL.set(limit);
        raised
    } else {
        limit
    };
    now.current.unwrap_or(u64::MAX)
}

/// The open descriptors of this process, and how many it may have. `None` where the system does not say.
pub(crate) fn descriptor_use() -> (Option<u64>, Option<u64>) {
    // Since Linux 6.2, the size of this folder is the number of its entries. Listing ten thousand takes milliseconds.
    let size = std::fs::metadata("/proc/self/fd").map_or(0, |folder| folder.len());
    let listed = || {
        let folder = ["/proc/self/fd", "/dev/fd"]
            .into_iter()
            .find_map(|path| std::fs::read_dir(path).ok());
        // The list contains the descriptor with which it is read.
        folder.map(|entries| (entries.count() as u64).saturating_sub(1))
    };
    let open = if size > 0 { Some(size) } else { listed() };
    (open, getrlimit(Resource::Nofile).current)
}

/// Whether an error of `accept` means that the process or the machine is out of a resource, so that an immediate retry
/// would spin.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}

/// Bytes that were written to a socket and that its peer has not acknowledged; `None` where the system does not report it.
#[cfg(target_os = "linux")]
pub(crate) fn unsent_bytes(socket: impl AsFd) -> Option<usize> {
    use nix::libc::TIOCOUTQ;
    use rustix::ioctl::{Getter, Opcode, ioctl};
    // SAFETY: on a socket, the call writes one `int` to the address that `Getter` passes, and nothing else.
    #[allow(unsafe_code)]
    let unsent: i32 =
        unsafe { ioctl(socket, Getter::<{ TIOCOUTQ as Opcode }, i32>::new()) }.ok()?;
    usize::try_from(unsent).ok()
}

/// Whether a pipe contains bytes that were not read. Either of its ends may be given.
pub(crate) fn is_unread(pipe: RawFd) -> bool {
    // SAFETY: the descriptor is borrowed for one call, which fails if it is not open.
    #[allow(unsafe_code)]
    let borrowed = unsafe { BorrowedFd::borrow_raw(pipe) };
    ioctl_fionread(borrowed).is_ok_and(|count| count > 0)
}

/// This system does not report it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn unsent_bytes(_: impl AsFd) -> Option<usize> {
    None
}

/// How calls on a descriptor are kept from blocking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockingGuard {
    /// The open file description belongs to this process alone and has `O_NONBLOCK`.
    Flag,
    /// A socket: each call passes `MSG_DONTWAIT`.
    EachCall,
    /// It is polled before each call, and one call writes at most this many bytes.
    Poll(usize),
    /// A regular file, which never blocks.
    None,
}

/// A descriptor that is read and written without blocking. The flags of a shared descriptor are left alone:
/// `O_NONBLOCK` belongs to the open file description, so it would also affect a shell on the same terminal, or another
/// program that writes to the same pipe.
#[derive(Debug)]
pub(crate) struct NonblockingFd {
    fd: OwnedFd,
    guard: BlockingGuard,
}

impl NonblockingFd {
    /// Takes ownership of a descriptor that no other process shares, such as one end of a new pipe.
    pub(crate) fn own(fd: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        Ok(Self {
            fd,
            guard: BlockingGuard::Flag,
        })
    }

    /// Non-blocking access to a descriptor that other processes may share, such as a standard stream.
    ///
    /// # Errors
    ///
    /// The descriptor is not open, or the process is out of descriptors.
    pub(crate) fn shared(fd: impl AsFd) -> io::Result<Self> {
        let fd = fd.as_fd();
        let kind = FileType::from_raw_mode(fstat(fd)?.st_mode);
        let terminal = kind == FileType::CharacterDevice && isatty(fd);
        if (kind == FileType::Fifo || terminal)
            && let Some(fd) = reopen(fd)
        {
            return Ok(Self {
                fd,
                guard: BlockingGuard::Flag,
            });
        }
        Ok(Self {
            fd: fd.try_clone_to_owned()?,
            guard: match kind {
                FileType::Socket => BlockingGuard::EachCall,
                // A pipe that polls as writable takes at least this much.
                FileType::Fifo => BlockingGuard::Poll(PIPE_BUF),
                _ if terminal => BlockingGuard::Poll(1),
                FileType::CharacterDevice => BlockingGuard::Poll(PIPE_BUF),
                _ => BlockingGuard::None,
            },
        })
    }

    /// Takes ownership of a descriptor that another program has used as one of these.
    ///
    /// # Errors
    ///
    /// As [`NonblockingFd::shared`].
    pub(crate) fn passed(fd: OwnedFd) -> io::Result<Self> {
        if fcntl_getfl(&fd)?.contains(OFlags::NONBLOCK) {
            return Self::own(fd);
        }
        Self::shared(fd)
    }

    /// Reads the available bytes. Zero bytes mean end of file.
    pub(crate) fn read<'a>(
        &self,
        buffer: &'a mut [MaybeUninit<u8>],
    ) -> rustix::io::Result<&'a mut [u8]> {
        if self.guard == BlockingGuard::EachCall {
            return recv(&self.fd, buffer, RecvFlags::DONTWAIT).map(|((read, _), _)| read);
        }
        self.check_ready(PollFlags::IN)?;
        rustix::io::read(&self.fd, buffer).map(|(read, _)| read)
    }

    /// Writes as many bytes as there is room for.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if there is no room, and any other error of the system call.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self.guard {
            BlockingGuard::EachCall => send(&self.fd, bytes, SendFlags::DONTWAIT | NO_SIGNAL),
            BlockingGuard::Poll(most) => self
                .check_ready(PollFlags::OUT)
                .and_then(|()| rustix::io::write(&self.fd, &bytes[..bytes.len().min(most)])),
            BlockingGuard::Flag | BlockingGuard::None => rustix::io::write(&self.fd, bytes),
        };
        Ok(written?)
    }

    /// Whether the other end is closed, so that a write would fail.
    pub(crate) fn is_closed(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        let polled = poll(&mut fds, Some(&Timespec::default()));
        let failed = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        polled.is_ok() && fds[0].revents().intersects(failed)
    }

    /// Waits until the descriptor is writable, for `most` at most. A signal ends the wait.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::TimedOut`] and [`io::ErrorKind::Interrupted`].
    #[cfg(feature = "cli")]
    pub(crate) fn wait_writable(&self, most: Duration) -> io::Result<()> {
        let timeout = Timespec::try_from(most).ok();
        match poll(
            &mut [PollFd::new(&self.fd, PollFlags::OUT)],
            timeout.as_ref(),
        )? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }

    /// Fails with `AGAIN` if a call would block, for descriptors that are polled before each call.
    fn check_ready(&self, events: PollFlags) -> rustix::io::Result<()> {
        let mut fds = [PollFd::new(&self.fd, events)];
        match self.guard {
            BlockingGuard::Poll(_) if poll(&mut fds, Some(&Timespec::default()))? == 0 => {
                Err(Errno::AGAIN)
            }
            _ => Ok(()),
        }
    }
}

impl AsFd for NonblockingFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Has a write to a socket that its peer has closed fail without SIGPIPE.
#[cfg(not(target_vendor = "apple"))]
const NO_SIGNAL: SendFlags = SendFlags::NOSIGNAL;

/// This system has no such flag. The standard library has the process ignore SIGPIPE.
#[cfg(target_vendor = "apple")]
const NO_SIGNAL: SendFlags = SendFlags::empty();

/// The number of bytes that a pipe takes atomically (at least 512 in POSIX, 4096 on Linux).
const PIPE_BUF: usize = 4096;

/// Opens the file behind a descriptor again, for this process alone and without blocking. Returns `None` if that is
/// forbidden, or if it is a pipe without a reader.
#[cfg(target_os = "linux")]
fn reopen(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    use std::os::fd::AsRawFd;
    /// `/dev/ptmx`, which makes a new terminal each time it is opened.
    const NEW_TERMINAL: (u32, u32) = (5, 2);
    let stat = fstat(fd).ok()?;
    if (major(stat.st_rdev), minor(stat.st_rdev)) == NEW_TERMINAL {
        return None;
    }
    let access = fcntl_getfl(fd).ok()? & OFlags::RWMODE;
    let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let own = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let same =
        fstat(&own).is_ok_and(|other| (other.st_dev, other.st_ino) == (stat.st_dev, stat.st_ino));
    same.then_some(own)
}

/// Elsewhere, opening a descriptor by its number gives the same open file description.
#[cfg(not(target_os = "linux"))]
fn reopen(_: BorrowedFd<'_>) -> Option<OwnedFd> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(fd: impl AsFd) -> OFlags {
        fcntl_getfl(fd).expect("it is open")
    }

    #[test]
    fn shared_descriptors_keep_their_flags() {
        // The bug: O_NONBLOCK was set on inherited pipes and sockets, and other processes that shared them got errors
        // instead of waiting.
        let (reader, writer) = io::pipe().expect("a pipe");
        let (one, other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        for shared in [writer.as_fd(), one.as_fd()] {
            let before = flags(shared);
            let fd = NonblockingFd::shared(shared).expect("it is open");
            assert_eq!(fd.write(b"x").expect("there is room"), 1);
            while fd.write(&[0; 4096]).is_ok() {}
            let error = fd.write(b"x").expect_err("it is full");
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            assert_eq!(flags(shared), before);
        }
        for shared in [reader.as_fd(), other.as_fd()] {
            let before = flags(shared);
            let fd = NonblockingFd::shared(shared).expect("it is open");
            let mut buffer = [MaybeUninit::uninit(); 4096];
            assert_eq!(fd.read(&mut buffer).expect("there is some")[0], b'x');
            while fd.read(&mut buffer).is_ok() {}
            assert_eq!(fd.read(&mut buffer).expect_err("it is empty"), Errno::AGAIN);
            assert_eq!(flags(shared), before);
        }
    }

    #[test]
    fn a_polled_descriptor_does_not_block() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let polled = |fd: OwnedFd, most| NonblockingFd {
            fd,
            guard: BlockingGuard::Poll(most),
        };
        let writer = polled(writer.into(), PIPE_BUF);
        while writer
            .write(&[0; 9000])
            .is_ok_and(|written| written == PIPE_BUF)
        {}
        let reader = polled(reader.into(), 1);
        let mut buffer = [MaybeUninit::uninit(); 4096];
        while reader.read(&mut buffer).is_ok() {}
        assert_eq!(
            reader.read(&mut buffer).expect_err("it is empty"),
            Errno::AGAIN
        );
    }
}
