//! Returns memory to the system.

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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

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
}
