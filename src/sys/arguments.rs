//! Hides secrets in the arguments of this process, which every user of the machine can read in the process list.

use std::io;
use std::ops::Range;

/// Overwrites parts of this process's arguments with `x`. `secrets` returns the ranges to overwrite in an argument.
///
/// The standard library reads the arguments from the same memory, so [`std::env::args_os`] returns the changed arguments
/// from then on.
///
/// # Errors
///
/// The system does not allow a process to change its arguments.
#[cfg(target_os = "linux")]
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
#[cfg(not(target_os = "linux"))]
pub(crate) fn mask_arguments(_: impl Fn(&[u8]) -> Vec<Range<usize>>) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The address of the arguments, from `/proc/PID/stat` (proc_pid_stat(5)).
#[cfg(target_os = "linux")]
fn arguments_start(stat: &str) -> Option<u64> {
    /// The number of the field `arg_start`.
    const ARG_START: usize = 48;
    // The second field is the name of the program in parentheses, which may contain spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let address = rest.split_ascii_whitespace().nth(ARG_START - 3)?;
    // It is 0 if the system does not show it.
    address.parse().ok().filter(|address| *address > 0)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

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
