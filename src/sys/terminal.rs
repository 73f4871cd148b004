//! The terminal of this process: raw mode, its size, and suspending.
//!
//! There is one terminal in raw mode at most. Its former attributes are kept in a static, so that a panic hook can restore
//! them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Signal, getpgrp, kill_current_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};

use super::TerminalSize;

/// The terminal that is in raw mode, with the attributes that it had before.
static RAW: Mutex<Option<(OwnedFd, Termios)>> = Mutex::new(None);

/// The size of a terminal. `None` if it is not a terminal, or does not know its size.
pub(crate) fn terminal_size(fd: impl AsFd) -> Option<TerminalSize> {
    let size = tcgetwinsize(fd).ok()?;
    let (rows, cols) = (size.ws_row, size.ws_col);
    (rows > 0 && cols > 0).then_some(TerminalSize { rows, cols })
}

/// Keeps a terminal in raw mode. Dropping it restores the terminal.
#[derive(Debug)]
#[must_use = "the terminal is restored when this is dropped"]
pub(crate) struct RawMode(());

impl RawMode {
    /// Puts a terminal into raw mode: each key is read at once and unchanged, and output is shown unchanged.
    ///
    /// # Errors
    ///
    /// Those of tcgetattr and tcsetattr, such as ENOTTY.
    pub(crate) fn enter(fd: impl AsFd) -> io::Result<Self> {
        let fd = fd.as_fd().try_clone_to_owned()?;
        let before = tcgetattr(&fd)?;
        let mut raw = RAW.lock().unwrap_or_else(PoisonError::into_inner);
        // The attributes are kept before the terminal is changed.
        let (fd, before) = &*raw.insert((fd, before));
        let this = Self(());
        set_raw(fd, before)?;
        drop(raw);
        Ok(this)
    }

    /// Puts the terminal into raw mode again after a shell has changed it.
    pub(crate) fn renew(&self) {
        let raw = RAW.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((fd, before)) = &*raw {
            let _ = set_raw(fd, before);
        }
    }

    /// Restores the terminal and stops the process group, as `^Z` does. Returns after it was continued, with the terminal
    /// in raw mode again. If no shell could continue the process, it is not stopped.
    pub(crate) fn suspend(&self) {
        if let Some((fd, before)) = &*RAW.lock().unwrap_or_else(PoisonError::into_inner) {
            restore(fd, before);
        }
        let _ = kill_current_process_group(Signal::TSTP);
        self.renew();
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let raw = RAW.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((fd, before)) = raw {
            restore(&fd, &before);
        }
    }
}

/// Whether a terminal is in raw mode.
pub(crate) fn is_terminal_raw() -> bool {
    RAW.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Restores the terminal, for a panic hook. Does nothing if the panic comes from this module.
pub(crate) fn restore_terminal() {
    if let Ok(mut raw) = RAW.try_lock()
        && let Some((fd, before)) = raw.take()
    {
        restore(&fd, &before);
    }
}

fn set_raw(fd: impl AsFd, before: &Termios) -> io::Result<()> {
    let mut raw = before.clone();
    raw.make_raw();
    Ok(tcsetattr(fd, OptionalActions::Now, &raw)?)
}

/// Restores the attributes. A terminal that has hung up cannot be restored, and need not be.
fn restore(fd: &OwnedFd, before: &Termios) {
    // The kernel stops a background process that changes the terminal. The shell has restored its terminal by then.
    let is_background = tcgetpgrp(fd).is_ok_and(|group| group != getpgrp());
    if !is_background {
        let _ = tcsetattr(fd, OptionalActions::Now, before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::open_pty;
    use rustix::termios::LocalModes;

    fn echoes(terminal: &OwnedFd) -> bool {
        let attributes = tcgetattr(terminal).expect("a terminal");
        attributes.local_modes.contains(LocalModes::ECHO)
    }

    #[test]
    fn a_terminal_gets_its_attributes_back() {
        let size = TerminalSize {
            rows: 30,
            cols: 100,
        };
        let (_ours, terminal) = open_pty(size).expect("a terminal");
        assert_eq!(terminal_size(&terminal), Some(size));
        let before = format!("{:?}", tcgetattr(&terminal).expect("a terminal"));
        let attributes = || format!("{:?}", tcgetattr(&terminal).expect("a terminal"));
        let raw = RawMode::enter(&terminal).expect("a terminal");
        assert!(!echoes(&terminal) && is_terminal_raw());
        raw.renew();
        drop(raw);
        assert!(!is_terminal_raw());
        assert_eq!(attributes(), before);

        let raw = RawMode::enter(&terminal).expect("a terminal");
        restore_terminal();
        assert_eq!(attributes(), before);
        drop(raw);
        assert_eq!(attributes(), before);

        let (reader, _writer) = io::pipe().expect("a pipe");
        assert!(RawMode::enter(&reader).is_err() && !is_terminal_raw());
        assert_eq!(terminal_size(&reader), None);
    }
}
