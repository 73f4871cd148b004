//! A program whose execution takes long, for tests.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::libc;

/// The request that sets the signal with which the owner of a lease is asked for it.
const F_SETSIG: libc::c_int = 10;

/// A program whose execution is held up, as by a network file system that does not answer, until this is dropped.
#[derive(Debug)]
pub(crate) struct LeasedProgram {
    path: PathBuf,
    _lease: File,
}

impl LeasedProgram {
    /// Copies `/bin/true`. A lease holds up whoever opens the file until its owner gives it up. `None` if the file system has no
    /// leases.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let path = std::env::temp_dir().join(format!("outrigger-{name}-{}", std::process::id()));
        fs::copy("/bin/true", &path).expect("a program");
        let lease = OpenOptions::new().write(true).open(&path);
        let lease = lease.expect("the program");
        // SAFETY: the calls take numbers. The signal that asks for the lease is one that is ignored.
        #[allow(unsafe_code)]
        let leased = unsafe {
            libc::fcntl(lease.as_raw_fd(), F_SETSIG, libc::SIGURG);
            libc::fcntl(lease.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
        };
        let program = Self {
            path,
            _lease: lease,
        };
        (leased == 0).then_some(program)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LeasedProgram {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
