//! Pseudoterminals.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::pty::{OpenptFlags, grantpt, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    /// Lines, at least 1.
    pub rows: u16,
    /// Columns, at least 1.
    pub cols: u16,
}

impl Default for TerminalSize {
    /// The traditional size, 24 by 80.
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

/// Opens a pseudoterminal. Returns the server's side, which is non-blocking, and the program's side. Both are
/// close-on-exec, so no other program inherits them.
pub(crate) fn open_pty(size: TerminalSize) -> io::Result<(OwnedFd, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    fcntl_setfd(&ours, FdFlags::CLOEXEC)?;
    fcntl_setfl(&ours, fcntl_getfl(&ours)? | OFlags::NONBLOCK)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let theirs = open_other_side(&ours)?;
    set_terminal_size(&ours, size)?;
    Ok((ours, theirs))
}

/// Opens the program's side by the descriptor itself. A path below `/dev/pts` may belong to another mount namespace.
#[cfg(target_os = "linux")]
fn open_other_side(ours: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    Ok(rustix::pty::ioctl_tiocgptpeer(ours, flags)?)
}

#[cfg(not(target_os = "linux"))]
fn open_other_side(ours: &OwnedFd) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, open};
    let name = rustix::pty::ptsname(ours, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(open(name, flags, Mode::empty())?)
}

/// Sets the size of a terminal. The kernel sends SIGWINCH to its foreground process group.
pub(crate) fn set_terminal_size(fd: impl AsFd, size: TerminalSize) -> io::Result<()> {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(fd, size)?)
}

/// Reads a program's output from the server's end of a terminal or a pipe. Returns the number of bytes; zero means that
/// no process has the other end open and that all output has been read.
///
/// # Errors
///
/// Those of read(2), including `AGAIN`. EIO, with which Linux reports the end of a terminal, counts as zero bytes.
pub(crate) fn read_output(fd: BorrowedFd<'_>, spare: &mut [u8]) -> rustix::io::Result<usize> {
    match rustix::io::read(fd, &mut *spare) {
        // Linux first looks for input and then checks whether the other end is open. Output that was written and closed
        // in between is still there, so EIO counts only if a second read returns it as well.
        Err(Errno::IO) => match rustix::io::read(fd, spare) {
            Err(Errno::IO) => Ok(0),
            result => result,
        },
        result => result,
    }
}
