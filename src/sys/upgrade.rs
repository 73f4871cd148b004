//! Replacing the program of this process by another one, which gets some of its descriptors.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::thread;

use nix::sys::signal::SigSet;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::descriptors::original_descriptor_limit;

/// A file that is in no folder, and that ends with the last process that has it. Only its user can read it.
pub(crate) fn memory_file(name: &str) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{MemfdFlags, memfd_create};
        match memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING) {
            Ok(fd) => return Ok(fd.into()),
            Err(error) => log::debug!("memfd_create failed: {error}"),
        }
    }
    unlinked_file(name)
}

/// The same where the system, or a sandbox, has no such files: a file that was removed after it was opened.
fn unlinked_file(name: &str) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let folder =
        std::env::var_os("XDG_RUNTIME_DIR").or_else(|| std::env::var_os("RUNTIME_DIRECTORY"));
    let folder = folder.map_or_else(std::env::temp_dir, Into::into);
    let path = folder.join(format!("{name}-{}", super::random_uuid().simple()));
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).mode(0o600);
    let file = file.open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Makes a file unchangeable, if the system can do that.
pub(crate) fn seal(file: &File) {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{SealFlags, fcntl_add_seals};
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        if let Err(error) = fcntl_add_seals(file, seals) {
            log::debug!("the file cannot be sealed: {error}");
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

/// Sets whether a descriptor passes to the program that replaces this one.
pub(crate) fn set_passes(fd: BorrowedFd<'_>, passes: bool) -> io::Result<()> {
    let flags = if passes {
        FdFlags::empty()
    } else {
        FdFlags::CLOEXEC
    };
    Ok(fcntl_setfd(fd, flags)?)
}

/// Takes ownership of a descriptor that the program before has passed on. Call it once for a number, before anything else in this
/// process opens descriptors.
pub(crate) fn take_passed(number: RawFd) -> io::Result<OwnedFd> {
    if number < 3 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the number is not negative, and the descriptor is borrowed for one call, which fails if it is not open.
    #[allow(unsafe_code)]
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    set_passes(borrowed, false)?;
    // SAFETY: the descriptor is open. The program before has passed it on, so nothing in this one owns it. The caller takes each
    // number once.
    #[allow(unsafe_code)]
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The signals that this thread blocks.
#[derive(Debug)]
pub(crate) struct BlockedSignals(SigSet);

/// Blocks every signal in this thread. The program that replaces this one inherits that, and gets the signals once it unblocks them.
pub(crate) fn block_signals() -> io::Result<BlockedSignals> {
    Ok(BlockedSignals(SigSet::all().thread_swap_mask(
        nix::sys::signal::SigmaskHow::SIG_BLOCK,
    )?))
}

impl BlockedSignals {
    /// Blocks only the signals that were blocked before.
    pub(crate) fn restore(&self) -> io::Result<()> {
        Ok(self.0.thread_set_mask()?)
    }
}

/// Starts a thread that handles no signals. They go to the thread of the loop, which can block them all before an upgrade.
pub(crate) fn start_thread(
    thread: thread::Builder,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    // A thread inherits the mask of the one that starts it.
    let signals = block_signals()?;
    let started = thread.spawn(work).map(drop);
    signals.restore()?;
    started
}

/// Replaces the program of this process. Every descriptor is closed that does not [pass](set_passes), and every other thread ends. The
/// next program begins with the descriptor limit with which this one was started. Returns only if that fails.
pub(crate) fn replace_program(
    program: &Path,
    arguments: &[OsString],
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> io::Error {
    let text = |value: &OsStr| CString::new(value.as_bytes());
    let replace = || -> io::Result<std::convert::Infallible> {
        let program = text(program.as_os_str())?;
        let arguments: Vec<CString> = arguments
            .iter()
            .map(|one| text(one))
            .collect::<Result<_, _>>()?;
        let variables = environment.map(|(name, value)| {
            let mut both = name.into_vec();
            both.push(b'=');
            both.extend(value.into_vec());
            CString::new(both)
        });
        let variables: Vec<CString> = variables.collect::<Result<_, _>>()?;
        Ok(nix::unistd::execve(&program, &arguments, &variables)?)
    };
    let raised = getrlimit(Resource::Nofile);
    let original = original_descriptor_limit();
    let limited = original.map_or(Ok(()), |limit| setrlimit(Resource::Nofile, limit));
    if let Err(error) = limited {
        log::warn!("cannot reset the descriptor limit: {error}");
    }
    let Err(error) = replace();
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        log::error!("cannot raise the descriptor limit again: {error}");
    }
    error
}

/// The number of a descriptor, by which the next program finds it.
pub(crate) fn number_of(fd: impl AsFd) -> RawFd {
    fd.as_fd().as_raw_fd()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;

    #[test]
    fn a_file_in_memory_keeps_what_was_written_and_cannot_be_changed_once_it_is_sealed() {
        for (mut file, is_sealed) in [
            (memory_file("state").expect("a file"), true),
            (unlinked_file("state").expect("a file"), false),
        ] {
            file.write_all(b"state").expect("written");
            if is_sealed {
                seal(&file);
                assert!(!cfg!(target_os = "linux") || file.write_all(b"x").is_err());
            }
            file.rewind().expect("at the beginning");
            let mut text = String::new();
            file.read_to_string(&mut text).expect("read");
            assert_eq!(text, "state");
        }
    }

    #[test]
    fn a_program_that_does_not_exist_replaces_nothing() {
        let signals = block_signals().expect("blocked");
        let error = replace_program(Path::new("/nonexistent"), &["x".into()], std::iter::empty());
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        signals.restore().expect("as before");
        assert!(take_passed(1).is_err() && take_passed(9999).is_err());
    }
}
