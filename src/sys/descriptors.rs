//! File descriptors as a resource that runs out.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
#[cfg(feature = "cli")]
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
#[cfg(target_os = "linux")]
use rustix::fs::{Mode, major, minor};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::termios::isatty;

/// The limit before it was raised.
static ORIGINAL: OnceLock<Rlimit> = OnceLock::new();

/// The most descriptors that are gone through one by one where the system cannot mark a range of them.
const MOST_ONE_BY_ONE: RawFd = 1 << 16;

/// The limit of open files that this process was started with, if it was raised since. Programs get it back: one that
/// closes all descriptors there could be, or that uses `select`, suffers from a limit of a million.
pub(crate) fn original_descriptor_limit() -> Option<Rlimit> {
    ORIGINAL.get().copied()
}

/// Makes the next `exec` close every descriptor from `first` on. It makes system calls and nothing else, so it may run
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

/// How a descriptor is kept from blocking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// The open file is not shared, and is in non-blocking mode.
    Flag,
    /// A socket: each call says that it is not to block.
    EachCall,
    /// It is polled before each call, and at most this many bytes are written at once.
    Asking(usize),
    /// A regular file: it never blocks.
    None,
}

/// A descriptor that is read and written without blocking. A shared descriptor keeps its flags: `O_NONBLOCK` belongs to
/// the open file description, so it would also affect a shell with the same terminal, or another program that writes to
/// the same pipe.
#[derive(Debug)]
pub(crate) struct NonblockingFd {
    fd: OwnedFd,
    means: Means,
}

impl NonblockingFd {
    /// Takes over a descriptor that nobody else has, such as our end of a new pipe.
    pub(crate) fn own(fd: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        Ok(Self {
            fd,
            means: Means::Flag,
        })
    }

    /// Non-blocking access to a descriptor that other processes may share, such as a standard stream.
    ///
    /// # Errors
    ///
    /// If there is no such descriptor, or the process is out of them.
    pub(crate) fn shared(fd: impl AsFd) -> io::Result<Self> {
        let fd = fd.as_fd();
        let kind = FileType::from_raw_mode(fstat(fd)?.st_mode);
        let terminal = kind == FileType::CharacterDevice && isatty(fd);
        if (kind == FileType::Fifo || terminal)
            && let Some(fd) = reopen(fd)
        {
            return Ok(Self {
                fd,
                means: Means::Flag,
            });
        }
        Ok(Self {
            fd: fd.try_clone_to_owned()?,
            means: match kind {
                FileType::Socket => Means::EachCall,
                // A descriptor that polls as writable takes at least this much.
                FileType::Fifo => Means::Asking(PIPE_BUF),
                _ if terminal => Means::Asking(1),
                FileType::CharacterDevice => Means::Asking(PIPE_BUF),
                _ => Means::None,
            },
        })
    }

    /// Reads the available bytes. Zero bytes mean end of file.
    pub(crate) fn read<'a>(
        &self,
        buffer: &'a mut [MaybeUninit<u8>],
    ) -> rustix::io::Result<&'a mut [u8]> {
        if self.means == Means::EachCall {
            return recv(&self.fd, buffer, RecvFlags::DONTWAIT).map(|((read, _), _)| read);
        }
        self.ask(PollFlags::IN)?;
        rustix::io::read(&self.fd, buffer).map(|(read, _)| read)
    }

    /// Writes as much as is taken at once.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if there is no room now, and any other error of the system call.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self.means {
            Means::EachCall => send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
            Means::Asking(most) => self
                .ask(PollFlags::OUT)
                .and_then(|()| rustix::io::write(&self.fd, &bytes[..bytes.len().min(most)])),
            Means::Flag | Means::None => rustix::io::write(&self.fd, bytes),
        };
        Ok(written?)
    }

    /// Waits until it is writable, at most this long. A signal ends the wait.
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

    /// Polls whether a call would block, if the kind of descriptor requires it.
    fn ask(&self, events: PollFlags) -> rustix::io::Result<()> {
        let mut fds = [PollFd::new(&self.fd, events)];
        match self.means {
            Means::Asking(_) if poll(&mut fds, Some(&Timespec::default()))? == 0 => {
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

/// What a pipe takes in one piece, or not at all (POSIX asks for 512 at least, Linux has 4096).
const PIPE_BUF: usize = 4096;

/// Opens what a descriptor names once more, for this process alone and without blocking. That may be forbidden, and a pipe
/// without a reader cannot be opened.
#[cfg(target_os = "linux")]
fn reopen(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    use std::os::fd::AsRawFd;
    /// `/dev/ptmx`: to open that is to make a new terminal.
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

/// Elsewhere a descriptor that is opened by its number is the same one.
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
    fn what_others_share_stays_as_it_is() {
        // The bug: O_NONBLOCK was set on pipes and sockets that the process was started with, and whoever else had them
        // got errors instead of waiting.
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
    fn a_descriptor_that_is_asked_first_does_not_block_either() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let asked = |fd: OwnedFd, most| NonblockingFd {
            fd,
            means: Means::Asking(most),
        };
        let writer = asked(writer.into(), PIPE_BUF);
        while writer
            .write(&[0; 9000])
            .is_ok_and(|written| written == PIPE_BUF)
        {}
        let reader = asked(reader.into(), 1);
        let mut buffer = [MaybeUninit::uninit(); 4096];
        while reader.read(&mut buffer).is_ok() {}
        assert_eq!(
            reader.read(&mut buffer).expect_err("it is empty"),
            Errno::AGAIN
        );
    }
}
