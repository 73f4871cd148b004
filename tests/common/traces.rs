//! Checks on what programs under test leave behind: files and processes.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use rustix::process::{Pid, test_kill_process};

use super::{PATIENCE, POLL_INTERVAL};

/// A file for a program to write to. Dropping it removes the file.
pub struct TraceFile(PathBuf);

impl TraceFile {
    pub fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("outrigger-{name}-{}", std::process::id())))
    }

    /// Its path, for a script.
    pub fn path(&self) -> String {
        self.0.display().to_string()
    }

    /// The contents so far.
    pub fn text(&self) -> String {
        fs::read_to_string(&self.0).unwrap_or_default()
    }

    /// Waits until the file has `count` process ids, one per line.
    pub fn pids(&self, count: usize) -> Vec<Pid> {
        let mut pids = Vec::new();
        eventually("the process ids are written", || {
            let text = self.text();
            let lines = text.lines().map_while(|line| line.parse().ok());
            pids = lines.filter_map(Pid::from_raw).collect();
            pids.len() >= count && text.ends_with('\n')
        });
        pids
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The processes that descend from a process that has not been waited for. Empty on systems other than Linux.
pub fn descendants(pid: u32) -> Vec<Pid> {
    let mut found = Vec::new();
    let mut parents = vec![pid as i32];
    while let Some(parent) = parents.pop() {
        let threads = fs::read_dir(format!("/proc/{parent}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let list = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            parents.extend(
                list.split_whitespace()
                    .filter_map(|pid| pid.parse::<i32>().ok()),
            );
        }
        found.extend(Pid::from_raw(parent).filter(|_| parent != pid as i32));
    }
    found
}

/// Waits until a condition is true.
pub fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < deadline, "in time: {what}");
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// Waits for the end of a process that is not a child of the test.
pub fn expect_gone(pid: Pid) {
    eventually("the process ends", || {
        test_kill_process(pid).is_err() || is_zombie(pid)
    });
}

/// Returns whether a process has ended and was not reaped yet.
pub fn is_zombie(pid: Pid) -> bool {
    state(pid).starts_with('Z')
}

/// Waits until a process has ended and was reaped.
pub fn expect_no_trace(pid: Pid) {
    eventually("nothing is left of the process", || {
        test_kill_process(pid).is_err()
    });
}

fn state(pid: Pid) -> String {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
    let stat = stat.unwrap_or_default();
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    behind_name.trim_start().to_owned()
}

/// The number of open descriptors of a process.
pub fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}
