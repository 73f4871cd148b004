//! The signal mask of this process.

use std::io;

use nix::sys::signal::SigSet;

/// Unblocks all signals in this thread, and so in the threads that it starts. A process inherits the mask of the one that
/// started it, and while TERM is blocked it can only be killed.
pub(crate) fn unblock_signals() -> io::Result<()> {
    Ok(SigSet::empty().thread_set_mask()?)
}
