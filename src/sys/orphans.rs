//! Processes whose parents have ended: what a program that forked twice has left behind.
//!
//! On Linux they become children of ours; `/proc` tells of them. Elsewhere they are the system's, and there is nothing
//! to be found here.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::time::Duration;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, waitid};

use super::process::{ours, to_pid, wait_a_moment};

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

/// Whether the variable has this value in a process's environment.
fn carries(pid: Pid, wanted: &str) -> bool {
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid()));
    let environment = environment.unwrap_or_default();
    let mut pairs = environment.split(|byte| *byte == 0);
    pairs.any(|pair| pair == wanted.as_bytes())
}

/// What a process has started, as far as it can be known: what descends from it while it runs, and the orphans that carry
/// its mark in their environment.
#[derive(Debug)]
pub(crate) struct Family {
    /// The variable and its value, as they stand in an environment.
    mark: String,
    /// Those that were seen, with the time of their start, by which another process of the same number is told apart.
    known: HashMap<Pid, u64>,
}

impl Family {
    /// The family whose members have this value of a variable.
    pub(crate) fn new(variable: &str, value: &str) -> Self {
        Self {
            mark: format!("{variable}={value}"),
            known: HashMap::new(),
        }
    }

    /// Looks for members once more; `head` is the process itself, while it runs.
    pub(crate) fn look(&mut self, head: Option<u32>) {
        let head = head.and_then(to_pid);
        let of_head = head.map(|head| with_descendants(children_of(head)));
        let marked = orphans()
            .into_iter()
            .filter(|pid| carries(*pid, &self.mark));
        let found = with_descendants(marked.collect())
            .into_iter()
            .chain(of_head.into_iter().flatten());
        let found: Vec<_> = found.filter_map(|pid| Some((pid, started(pid)?))).collect();
        self.known.extend(found);
        self.known.retain(|pid, time| started(*pid) == Some(*time));
    }

    /// Whether nobody of those that were seen is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Sends a signal to everyone who was seen.
    pub(crate) fn signal(&self, signal: Signal) {
        for pid in self.known.keys() {
            // One that has ended meanwhile is no error.
            let _ = kill_process(*pid, signal);
        }
    }
}

/// When a process was started, in the system's own unit; `None` if it has ended.
fn started(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Sends a signal to every orphan and all that descends from it.
pub(crate) fn signal_orphans(signal: Signal) {
    for pid in with_descendants(orphans()) {
        // One that has ended meanwhile is no error. One that has stopped itself has to go on to end.
        let _ = kill_process(pid, signal);
        let _ = kill_process(pid, Signal::CONT);
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
        wait_a_moment(pid.as_raw_pid() as u32, Duration::from_secs(1));
        reap_orphans();
    }
    log::warn!("processes are left that do not end even when they are killed");
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
