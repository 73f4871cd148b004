//! Pseudoterminals.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::pty::{OpenptFlags, grantpt, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TerminalSize {
    /// Lines, at least 1.
    pub(crate) rows: u16,
    /// Columns, at least 1.
    pub(crate) cols: u16,
}

impl Default for TerminalSize {
    /// What terminals have been since they were paper: 24 by 80.
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

/// Opens a pseudoterminal: our side, which does not block, and the program's. Neither is inherited by programs that
/// are started meanwhile.
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

/// By the descriptor itself: what `/dev/pts` shows here may be another's.
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

/// Tells a terminal its size; the programs in its foreground get SIGWINCH.
pub(crate) fn set_terminal_size(fd: impl AsFd, size: TerminalSize) -> io::Result<()> {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(fd, size)?)
}

/// Reads what a program wrote, from our end of a terminal or a pipe. Returns how many bytes came; none means that no
/// program has the other end open and everything written to it was read.
///
/// # Errors
///
/// Those of read(2), `AGAIN` among them. Linux's end, EIO, is not one.
pub(crate) fn read_output(fd: BorrowedFd<'_>, spare: &mut [u8]) -> rustix::io::Result<usize> {
    match rustix::io::read(fd, &mut *spare) {
        // Linux looks for input first and whether the other end is open second. What was written and closed in between,
        // while we were held up, is still there: only a read that began after the end was seen can tell.
        Err(Errno::IO) => match rustix::io::read(fd, spare) {
            Err(Errno::IO) => Ok(0),
            result => result,
        },
        result => result,
    }
}
