//! Processes whose parents have ended: what a program that forked twice has left behind.
//!
//! On Linux they become children of ours; `/proc` tells of them. Elsewhere they are the system's, and there is nothing
//! to be found here.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, waitid};

use super::process::{ours, to_pid};

/// Rounds of killing what killed processes leave behind, before it is given up.
const ROUNDS: usize = 1000;

/// Makes this process the parent of every descendant whose own parent ends, so that none can escape.
/// [`Server::adopt_orphans`](crate::Server::adopt_orphans) waits for them.
pub(crate) fn become_subreaper() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(getpid()))?;
    Ok(())
}

/// The children of a process.
fn children_of(pid: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_pid()));
    let lists = tasks.into_iter().flatten().flatten();
    lists
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|list| {
            let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
            pids.filter_map(to_pid).collect::<Vec<_>>()
        })
        .collect()
}

/// The children of ours that others have left to us, those that have ended included.
fn orphans() -> Vec<Pid> {
    let children = children_of(getpid());
    let ours = ours();
    let is_ours = |pid: &Pid| ours.contains(&(pid.as_raw_pid() as u32));
    children.into_iter().filter(|pid| !is_ours(pid)).collect()
}

fn with_descendants(mut family: Vec<Pid>) -> Vec<Pid> {
    let mut at = 0;
    while let Some(pid) = family.get(at) {
        family.extend(children_of(*pid));
        at += 1;
    }
    family
}

/// Waits for the orphans that have ended, without waiting for others. Returns whether any are left.
pub(crate) fn reap_orphans() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let runs = |pid: &Pid| matches!(waitid(WaitId::Pid(*pid), options), Ok(None));
    orphans().iter().filter(|pid| runs(pid)).count() > 0
}

/// The orphans in whose environment a variable has this value, with all that descends from them.
pub(crate) fn orphans_with(variable: &str, value: &str) -> Vec<Pid> {
    let wanted = format!("{variable}={value}");
    let carries = |pid: &Pid| {
        let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid()));
        let environment = environment.unwrap_or_default();
        let mut pairs = environment.split(|byte| *byte == 0);
        pairs.any(|pair| pair == wanted.as_bytes())
    };
    with_descendants(orphans().into_iter().filter(carries).collect())
}

/// Sends a signal to every orphan and all that descends from it.
pub(crate) fn signal_orphans(signal: Signal) {
    for pid in with_descendants(orphans()) {
        // One that has ended meanwhile is no error.
        let _ = kill_process(pid, signal);
    }
}

/// Kills every process that was left to this one, with all that descends from them, and waits until they have ended:
/// the last act of a program whose server [adopts orphans](crate::Server::adopt_orphans).
pub fn kill_orphans() {
    // What a killed process leaves behind is ours in the next round.
    for _ in 0..ROUNDS {
        signal_orphans(Signal::KILL);
        let Some(pid) = orphans().into_iter().next() else {
            return;
        };
        wait_a_moment(pid);
        reap_orphans();
    }
    log::warn!("processes are left that do not end even when they are killed");
}

/// Waits for the end of a process, a second at most.
fn wait_a_moment(pid: Pid) {
    #[cfg(target_os = "linux")]
    {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        use rustix::process::{PidfdFlags, pidfd_open};
        let timeout = Timespec::try_from(Duration::from_secs(1)).ok();
        if let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) {
            let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref());
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = pid;
}

/// What a process has used: processor time, and bytes of memory that it holds now.
pub(crate) fn usage(pid: u32) -> Option<(Duration, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in parentheses, may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let ticks = number(11)? + number(12)?;
    let cpu = Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64);
    Some((cpu, number(21)? * page_size() as u64))
}
