//! This process itself: how much memory the system grants it, returning what is free, hiding secrets in its arguments, which
//! every user of the machine can read in the process list, and its signal mask.

use std::io;
#[cfg(feature = "client")]
use std::ops::Range;

use nix::sys::signal::SigSet;
#[cfg(feature = "cli")]
use nix::sys::signal::Signal;
use rustix::process::{getpid, kill_process};

/// Returns free heap memory to the system. The GNU allocator keeps free memory that lies below a block in use; other
/// allocators return it by themselves.
pub(crate) fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes no pointers, and it changes nothing but the allocator's own free memory.
    #[allow(unsafe_code)]
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// The memory that the system grants to this process, in bytes: the smallest limit of its control groups (cgroups(7)), or what the
/// machine has. `None` if the system does not say.
#[cfg(feature = "cli")]
pub(crate) fn granted_memory() -> Option<usize> {
    let read = |path: String| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo".to_owned()).and_then(|text| machine_memory(&text));
    let groups = read("/proc/self/cgroup".to_owned()).unwrap_or_default();
    let limits = limit_files(&groups).into_iter();
    let limits = limits.filter_map(|file| read(file)?.trim().parse::<u64>().ok());
    let least = limits.chain(machine).min()?;
    usize::try_from(least).ok()
}

/// The memory of the machine in bytes, from `/proc/meminfo` (proc_meminfo(5)).
#[cfg(feature = "cli")]
fn machine_memory(text: &str) -> Option<u64> {
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The files with the memory limits of the groups that `/proc/self/cgroup` lists, and of the groups around them. In a container, the
/// root of the hierarchy is often that of the container.
#[cfg(feature = "cli")]
fn limit_files(groups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (mount, name) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|one| one == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        let mut path = path.trim_end_matches('/');
        loop {
            files.push(format!("{mount}{path}/{name}"));
            let Some((parent, _)) = path.rsplit_once('/') else {
                break;
            };
            path = parent;
        }
    }
    files
}

/// Drops the pages of the program's code from resident memory. The kernel maps them again from the page cache when they are
/// executed. Starting a program touches much more code than it needs later, and the system maps the neighborhood of each page.
pub(crate) fn drop_code() {
    #[cfg(target_os = "linux")]
    for (start, length) in
        code_mappings(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default())
    {
        // SAFETY: the range is a mapping of a file that can be read and executed, but not written. Its pages have the
        // content of the file, and the next access to a dropped page reads the same content.
        #[allow(unsafe_code)]
        unsafe {
            nix::libc::madvise(
                std::ptr::without_provenance_mut(start),
                length,
                nix::libc::MADV_DONTNEED,
            );
        }
    }
}

/// The start and the length of each mapping of a file that is only read and executed, from `/proc/PID/maps`
/// (proc_pid_maps(5)).
#[cfg(target_os = "linux")]
fn code_mappings(maps: &str) -> Vec<(usize, usize)> {
    let mapping = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let is_code = fields.next()? == "r-xp";
        // The last field is the path of the file. Names in brackets are the kernel's own.
        let is_file = fields.nth(3)?.starts_with('/');
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        (is_code && is_file).then(|| (start, end.saturating_sub(start)))
    };
    maps.lines().filter_map(mapping).collect()
}

/// Overwrites parts of this process's arguments with `x`. `secrets` returns the ranges to overwrite in an argument.
///
/// The standard library reads the arguments from the same memory, so [`std::env::args_os`] returns the changed arguments
/// from then on.
///
/// # Errors
///
/// The system does not allow a process to change its arguments.
#[cfg(all(feature = "client", target_os = "linux"))]
pub(crate) fn mask_arguments(secrets: impl Fn(&[u8]) -> Vec<Range<usize>>) -> io::Result<()> {
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;

    let arguments = fs::read("/proc/self/cmdline")?;
    let stat = fs::read_to_string("/proc/self/stat")?;
    let start = arguments_start(&stat).ok_or(io::ErrorKind::Unsupported)?;
    // The kernel checks the address of each write, so a wrong one fails and causes no undefined behavior. No Rust value
    // lives in this memory: the kernel has written it, and the standard library only copies from it. Bytes are replaced by
    // bytes that are not zero, so every argument stays a C string of the same length.
    let memory = File::options().write(true).open("/proc/self/mem")?;
    let mut at = 0;
    for argument in arguments.split(|&byte| byte == 0) {
        for range in secrets(argument) {
            let mask = vec![b'x'; range.len()];
            memory.write_all_at(&mask, start + (at + range.start) as u64)?;
        }
        at += argument.len() + 1;
    }
    Ok(())
}

/// This system has no way to do so without `unsafe`.
#[cfg(all(feature = "client", not(target_os = "linux")))]
pub(crate) fn mask_arguments(_: impl Fn(&[u8]) -> Vec<Range<usize>>) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The address of the arguments, from `/proc/PID/stat` (proc_pid_stat(5)).
#[cfg(all(feature = "client", target_os = "linux"))]
fn arguments_start(stat: &str) -> Option<u64> {
    /// The number of the field `arg_start`.
    const ARG_START: usize = 48;
    // The second field is the name of the program in parentheses, which may contain spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let address = rest.split_ascii_whitespace().nth(ARG_START - 3)?;
    // It is 0 if the system does not show it.
    address.parse().ok().filter(|address| *address > 0)
}

/// Unblocks all signals in this thread, and so in the threads that it starts. A process inherits the mask of the one that
/// started it, and while TERM is blocked it can only be killed.
pub(crate) fn unblock_signals() -> io::Result<()> {
    Ok(SigSet::empty().thread_set_mask()?)
}

/// As [`unblock_signals`], but blocks SIGUSR2, which would end a program that does not handle it yet.
#[cfg(feature = "cli")]
pub(crate) fn unblock_signals_but_usr2() -> io::Result<()> {
    Ok(SigSet::from(Signal::SIGUSR2).thread_set_mask()?)
}

/// Unblocks SIGUSR2, and does not change the other signals.
#[cfg(feature = "cli")]
pub(crate) fn unblock_usr2() -> io::Result<()> {
    Ok(SigSet::from(Signal::SIGUSR2).thread_unblock()?)
}

/// Sends TERM to this process.
#[cfg(feature = "server")]
pub(crate) fn terminate_self() {
    if let Err(error) = kill_process(getpid(), rustix::process::Signal::TERM) {
        log::error!("cannot send TERM to this process: {error}");
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[cfg(feature = "cli")]
    #[test]
    fn the_limits_of_all_groups_around_the_process_count() {
        assert_eq!(
            limit_files("0::/a.slice/b.service\n"),
            [
                "/sys/fs/cgroup/a.slice/b.service/memory.max",
                "/sys/fs/cgroup/a.slice/memory.max",
                "/sys/fs/cgroup/memory.max"
            ]
        );
        assert_eq!(
            limit_files("7:cpu,cpuacct:/x\n4:memory:/x\n0::/\n"),
            [
                "/sys/fs/cgroup/memory/x/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory.max"
            ]
        );
        assert_eq!(limit_files("nonsense"), Vec::<String>::new());
        assert_eq!(
            machine_memory("MemFree: 1 kB\nMemTotal:   2048 kB\n"),
            Some(2 << 20)
        );
        assert!(granted_memory().is_some_and(|bytes| bytes > 16 << 20));
    }

    #[test]
    fn only_code_of_files_is_dropped() {
        let maps = "\
1000-3000 r-xp 00000000 08:01 12 /bin/a b
3000-4000 r--p 00002000 08:01 12 /bin/a b
4000-5000 rw-p 00003000 08:01 12 /bin/a b
5000-6000 r-xp 00000000 00:00 0
6000-7000 r-xp 00000000 00:00 0 [vdso]
7000-9000 r-xs 00000000 08:01 13 /lib/c
9000-b000 r-xp 00000000 08:01 14 /lib/d
";
        assert_eq!(code_mappings(maps), [(0x1000, 0x2000), (0x9000, 0x2000)]);
        drop_code();
        assert!(
            !code_mappings(&std::fs::read_to_string("/proc/self/maps").expect("it is there"))
                .is_empty()
        );
    }

    #[cfg(feature = "client")]
    #[test]
    fn the_arguments_are_found_whatever_the_name_of_the_program() {
        let fields: Vec<String> = (3..=52).map(|number| number.to_string()).collect();
        let stat = format!("1 (a) b (c)) {}\n", fields.join(" "));
        assert_eq!(arguments_start(&stat), Some(48));
        assert_eq!(arguments_start("1 (a) S 1"), None);
        let own = std::fs::read_to_string("/proc/self/stat").expect("it is there");
        assert!(arguments_start(&own).is_some());
    }
}
