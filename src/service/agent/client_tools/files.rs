//! Reads and writes text files below one directory, for `fs/read_text_file` and `fs/write_text_file`.
//!
//! Every path is resolved by the kernel from the descriptor of the directory (`openat2` with `RESOLVE_BENEATH`), so neither `..`,
//! symbolic links nor directories that are moved at the same time lead out of it. Only regular files are opened, so that no open
//! waits for another process. A file is replaced by a new one with `rename`, so readers see the old text or the new one.

use std::path::{Component, Path, PathBuf};

use super::super::router::ServedError;

/// The maximum number of bytes of text in an answer, and of a file that is written.
#[cfg(target_os = "linux")]
const MAX_TEXT: usize = 4 << 20;
/// The maximum number of bytes that are read to find the first line that the agent wants.
#[cfg(target_os = "linux")]
const MAX_SCAN: usize = 16 << 20;

/// The lines of a file that the agent wants.
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "no file is read")
)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines {
    /// The first line, counted from 1.
    pub(super) from: usize,
    pub(super) most: Option<usize>,
}

/// A directory below which files are read and written.
#[derive(Debug)]
pub(super) struct Directory {
    #[cfg(target_os = "linux")]
    fd: std::os::fd::OwnedFd,
    /// Its name without symbolic links.
    path: PathBuf,
    /// Its name in the settings, as an absolute path.
    alias: PathBuf,
}

impl Directory {
    /// The directory's name without symbolic links.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The part of an absolute path below the directory. The kernel checks `..` in it.
    fn below<'a>(&self, path: &'a str) -> Result<&'a Path, ServedError> {
        let path = Path::new(path);
        if !path.is_absolute() {
            return Err(ServedError::params("the path is not absolute"));
        }
        let found = path.strip_prefix(&self.path);
        let found = found.or_else(|_| path.strip_prefix(&self.alias));
        let below = found.map_err(|_| self.outside())?;
        let is_named = matches!(below.components().next_back(), Some(Component::Normal(_)));
        if is_named {
            Ok(below)
        } else {
            Err(ServedError::params("the path does not name a file"))
        }
    }

    fn outside(&self) -> ServedError {
        ServedError::denied(format!(
            "the server reads and writes files below {} only",
            self.path.display()
        ))
    }
}

#[cfg(not(target_os = "linux"))]
impl Directory {
    /// Always fails, because this system cannot resolve a path below a directory.
    pub(super) fn open(_: &Path) -> std::io::Result<Self> {
        let why = "files for agents need Linux, which can resolve a path below a directory";
        Err(std::io::Error::new(std::io::ErrorKind::Unsupported, why))
    }

    pub(super) fn read(&self, path: &str, _: Lines, _: &mut usize) -> Result<String, ServedError> {
        self.below(path)?;
        Err(self.outside())
    }

    pub(super) fn write(&self, path: &str, _: &str) -> Result<(), ServedError> {
        self.below(path)?;
        Err(self.outside())
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::{OsStr, OsString};
    use std::fs::File;
    use std::io::{self, Read as _, Write as _};
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::os::unix::ffi::OsStringExt as _;
    use std::path::{Path, PathBuf};

    use rustix::fs::{
        AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, fchmod, fchown, fstat,
        mkdirat, open, openat, openat2, readlinkat, renameat, statat, unlinkat,
    };
    use rustix::io::Errno;

    use super::{Directory, Lines, MAX_SCAN, MAX_TEXT, ServedError};
    use crate::sys::random_uuid;

    /// How often a path is resolved again that another process changes at the same time.
    const ATTEMPTS: usize = 8;
    /// The maximum number of symbolic links that lead to a file that is written.
    const MAX_LINKS: usize = 8;
    /// The bytes that are read at a time.
    const BLOCK: usize = 64 << 10;
    /// No open waits, and none makes a terminal the server's own.
    const CAREFUL: OFlags = OFlags::CLOEXEC
        .union(OFlags::NONBLOCK)
        .union(OFlags::NOCTTY);

    impl Directory {
        /// Opens the directory.
        pub(crate) fn open(path: &Path) -> io::Result<Self> {
            let alias = std::path::absolute(path)?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let fd = open(path, flags, Mode::empty())?;
            let path = path.canonicalize()?;
            let directory = Self { fd, path, alias };
            // An old kernel, or a filter of system calls, may lack the call on which everything rests.
            let probe = directory.resolve(Path::new("."), flags);
            probe.map_err(|error| {
                io::Error::other(format!("openat2 does not work here: {error}"))
            })?;
            Ok(directory)
        }

        /// Opens what is at a path below the directory.
        fn resolve(&self, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
            let rules = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            let flags = flags | OFlags::CLOEXEC;
            for _ in 1..ATTEMPTS {
                match openat2(&self.fd, path, flags, Mode::empty(), rules) {
                    // A directory was moved while the kernel followed `..`.
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    opened => return opened,
                }
            }
            openat2(&self.fd, path, flags, Mode::empty(), rules)
        }

        /// What a failed system call means to the agent.
        fn refused(&self, path: &Path, error: Errno) -> ServedError {
            let shown = self.path.join(path);
            let shown = shown.display();
            match error {
                Errno::NOENT => ServedError::not_found(format!("{shown} does not exist")),
                // Beneath the directory, a path may not lead out of it, and a link may have no absolute target.
                Errno::XDEV => self.outside(),
                Errno::ACCESS | Errno::PERM | Errno::ROFS => {
                    ServedError::denied(format!("{shown}: {error}"))
                }
                _ => ServedError::failed(format!("{shown}: {error}")),
            }
        }

        /// Reads lines of a file. Adds the bytes that it has read to `scanned`.
        pub(crate) fn read(
            &self,
            path: &str,
            lines: Lines,
            scanned: &mut usize,
        ) -> Result<String, ServedError> {
            let path = self.below(path)?;
            let failed = |error| self.refused(path, error);
            // A file is only looked at first, because opening a device may have an effect.
            let found = self.resolve(path, OFlags::PATH).map_err(failed)?;
            check_regular(&fstat(&found).map_err(failed)?)?;
            let file = self.resolve(path, OFlags::RDONLY | CAREFUL);
            let file = file.map_err(failed)?;
            check_regular(&fstat(&file).map_err(failed)?)?;
            read_lines(&mut File::from(file), lines, scanned)
        }

        /// Replaces a file, or creates it with the directories that are missing.
        pub(crate) fn write(&self, path: &str, text: &str) -> Result<(), ServedError> {
            let path = self.below(path)?;
            if text.len() > MAX_TEXT {
                return Err(too_long());
            }
            let failed = |error| self.refused(path, error);
            let (parent, name, target) = self.find_target(path)?;
            let before = match statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => {
                    check_regular(&stat)?;
                    // The directory would permit to replace a file that may not be written.
                    let writable = self.resolve(&target, OFlags::WRONLY | CAREFUL);
                    let stat = fstat(&writable.map_err(failed)?).map_err(failed)?;
                    check_regular(&stat)?;
                    Some(stat)
                }
                Err(Errno::NOENT) => None,
                Err(error) => return Err(failed(error)),
            };
            replace(parent.as_fd(), &name, before.as_ref(), text).map_err(|error| {
                let errno = Errno::from_io_error(&error);
                errno.map_or_else(|| ServedError::failed(error.to_string()), failed)
            })
        }

        /// The directory and the name of the file that a path leads to, and its path below this directory. Symbolic links are
        /// followed here, so that the file is replaced and not the link. Creates missing directories.
        fn find_target(&self, path: &Path) -> Result<(OwnedFd, OsString, PathBuf), ServedError> {
            let mut target = path.to_owned();
            for _ in 0..=MAX_LINKS {
                let failed = |error| self.refused(&target, error);
                let Some(name) = target.file_name().map(OsStr::to_owned) else {
                    return Err(ServedError::params("the path does not name a file"));
                };
                let folder = target.parent().filter(|folder| *folder != Path::new(""));
                let folder = folder.unwrap_or(Path::new(".")).to_owned();
                let parent = self.resolve(&folder, OFlags::PATH | OFlags::DIRECTORY);
                let parent = match parent {
                    Err(Errno::NOENT) => self.create(&folder),
                    parent => parent,
                };
                let parent = parent.map_err(failed)?;
                match readlinkat(&parent, &name, Vec::new()) {
                    Ok(link) => target = folder.join(OsString::from_vec(link.into_bytes())),
                    // It is no link, or does not exist.
                    Err(Errno::INVAL | Errno::NOENT) => return Ok((parent, name, target)),
                    Err(error) => return Err(failed(error)),
                }
                if target.is_absolute() {
                    return Err(self.outside());
                }
            }
            Err(ServedError::failed("too many symbolic links"))
        }

        /// Creates the directories of a path that are missing, and opens the last one.
        fn create(&self, folder: &Path) -> rustix::io::Result<OwnedFd> {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let mut at = PathBuf::new();
            let mut opened = self.resolve(Path::new("."), flags)?;
            for component in folder.components() {
                at.push(component);
                opened = match self.resolve(&at, flags) {
                    Err(Errno::NOENT) => {
                        match mkdirat(&opened, component.as_os_str(), Mode::from_raw_mode(0o777)) {
                            Ok(()) | Err(Errno::EXIST) => {}
                            Err(error) => return Err(error),
                        }
                        self.resolve(&at, flags)?
                    }
                    opened => opened?,
                };
            }
            Ok(opened)
        }
    }

    fn check_regular(stat: &Stat) -> Result<(), ServedError> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(()),
            FileType::Directory => Err(ServedError::failed("it is a directory")),
            _ => Err(ServedError::denied("it is not a regular file")),
        }
    }

    fn too_long() -> ServedError {
        ServedError::failed(format!(
            "the text is over {} MiB; read it in parts with \"line\" and \"limit\"",
            MAX_TEXT >> 20
        ))
    }

    /// The text of some lines. Their ends stay as they are.
    fn read_lines(
        file: &mut File,
        lines: Lines,
        scanned: &mut usize,
    ) -> Result<String, ServedError> {
        let mut text = Vec::new();
        let mut block = vec![0; BLOCK];
        let mut skip = lines.from.saturating_sub(1);
        let mut left = lines.most;
        while left != Some(0) {
            let count = match file.read(&mut block) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(ServedError::failed(error.to_string())),
            };
            for line in block[..count].split_inclusive(|byte| *byte == b'\n') {
                let ends = line.ends_with(b"\n");
                if skip > 0 {
                    skip -= usize::from(ends);
                    continue;
                }
                if left == Some(0) {
                    break;
                }
                text.extend_from_slice(line);
                if let Some(left) = &mut left {
                    *left -= usize::from(ends);
                }
            }
            *scanned += count;
            if text.len() > MAX_TEXT {
                return Err(too_long());
            }
            if *scanned > MAX_SCAN && skip > 0 {
                let why = format!("the line is not in the first {} MiB", MAX_SCAN >> 20);
                return Err(ServedError::failed(why));
            }
        }
        String::from_utf8(text).map_err(|_| ServedError::failed("the file is not UTF-8 text"))
    }

    /// Puts a file with this text in the place of `name`. It gets the mode and the owner of the file that was there.
    fn replace(
        parent: BorrowedFd<'_>,
        name: &OsStr,
        before: Option<&Stat>,
        text: &str,
    ) -> io::Result<()> {
        let new = format!(".outrigger-{}", random_uuid().simple());
        // What replaces a private file is private while it is written, too.
        let mode = before.map_or(0o666, |_| 0o600);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | CAREFUL;
        let file = openat(parent, &new, flags, Mode::from_raw_mode(mode))?;
        let written = fill(File::from(file), before, text);
        let renamed = written.and_then(|()| Ok(renameat(parent, &*new, parent, name)?));
        if renamed.is_err() {
            let _ = unlinkat(parent, &*new, AtFlags::empty());
        }
        renamed
    }

    fn fill(mut file: File, before: Option<&Stat>, text: &str) -> io::Result<()> {
        if let Some(before) = before {
            let own = fstat(&file)?;
            if (own.st_uid, own.st_gid) != (before.st_uid, before.st_gid) {
                let (user, group) = (Uid::from_raw(before.st_uid), Gid::from_raw(before.st_gid));
                fchown(&file, Some(user), Some(group))?;
            }
            // Nobody gets the rights of a user or a group by running a file that an agent has written.
            fchmod(&file, Mode::from_raw_mode(before.st_mode & 0o777))?;
        }
        file.write_all(text.as_bytes())
    }
}
