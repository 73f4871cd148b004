//! Processes whose parents have ended: what a program that forked twice has left behind.
//!
//! On Linux they become children of ours; `/proc` tells of them. Elsewhere they are the system's, and there is nothing
//! to be found here.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, waitid};
use uuid::Uuid;

use super::families::{Looked, ProcessTable};
use super::process::{dropped, exit_descriptor, ours, reap_dropped, to_pid};

/// The maximum of orphans that are checked in one turn of the loop, and the maximum that are reaped.
const ASKED_PER_TURN: usize = 512;
const REAPED_PER_TURN: usize = 32;

/// How long killed processes and what they leave behind are waited for at the end of the server.
const KILL_TAKES: Duration = Duration::from_secs(5);

/// The program of each orphan, as far as it was read. The pid of an orphan is not reused until it is reaped here, so
/// the entry stays valid until then.
static MARKS: Mutex<Option<HashMap<Pid, Option<Uuid>>>> = Mutex::new(None);

/// Makes this process the parent of every descendant whose own parent ends, so that none can escape.
/// [`Server::adopt_orphans`](crate::Server::adopt_orphans) waits for them.
pub(crate) fn become_subreaper() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(getpid()))?;
    Ok(())
}

/// The children of a thread.
fn children_of_thread(pid: Pid, thread: &str) -> Vec<Pid> {
    let path = format!("/proc/{}/task/{thread}/children", pid.as_raw_pid());
    let list = fs::read_to_string(path).unwrap_or_default();
    let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.filter_map(to_pid).collect()
}

/// The children of a process.
fn children_of(pid: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_pid()));
    let threads = threads.into_iter().flatten().flatten();
    threads
        .flat_map(|thread| children_of_thread(pid, &thread.file_name().to_string_lossy()))
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

/// Reaps orphans that have ended, a bounded number at a time: with thousands of them, the kernel takes milliseconds for
/// the list alone.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    /// Those that have not been asked since the list was made.
    pending: Vec<Pid>,
    /// Whether one has ended since the list was made.
    outdated: bool,
}

impl Reaper {
    /// A process has ended: SIGCHLD.
    pub(crate) fn child_has_ended(&mut self) {
        self.outdated = true;
    }

    /// Whether there is more to be done in the next turn.
    pub(crate) fn has_work(&self) -> bool {
        self.outdated || !self.pending.is_empty()
    }

    /// Checks as many orphans as one turn allows, and reaps our own dropped children. Returns whether any had ended.
    pub(crate) fn reap(&mut self) -> bool {
        reap_dropped();
        if self.pending.is_empty() && std::mem::take(&mut self.outdated) {
            self.pending = orphans();
        }
        let mut reaped = 0;
        for _ in 0..ASKED_PER_TURN {
            let Some(pid) = self.pending.pop() else { break };
            reaped += usize::from(!runs(pid));
            if reaped == REAPED_PER_TURN {
                break;
            }
        }
        reaped > 0
    }
}

/// Waits for an orphan if it has ended. Returns whether it runs.
fn runs(orphan: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let runs = matches!(waitid(WaitId::Pid(orphan), options), Ok(None));
    if !runs {
        with_marks(|marks| marks.remove(&orphan));
    }
    runs
}

/// Waits for all orphans that have ended, without waiting for others. Returns whether any are left.
pub(crate) fn reap_orphans() -> bool {
    reap_dropped();
    orphans().into_iter().filter(|pid| runs(*pid)).count() > 0
}

fn with_marks<T>(act: impl FnOnce(&mut HashMap<Pid, Option<Uuid>>) -> T) -> T {
    let mut marks = MARKS.lock().unwrap_or_else(PoisonError::into_inner);
    act(marks.get_or_insert_default())
}

/// The value of a variable in a process's environment: `None` if it has no environment to be read, as while it
/// executes another program.
fn mark_of(pid: Pid, variable: &str) -> Option<Option<Uuid>> {
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).ok()?;
    if environment.is_empty() {
        return None;
    }
    let mut pairs = environment.split(|byte| *byte == 0);
    Some(pairs.find_map(|pair| {
        let value = pair.strip_prefix(variable.as_bytes())?.strip_prefix(b"=")?;
        Uuid::try_parse_ascii(value).ok()
    }))
}

/// The system's own table of processes. What a program has left behind is known by a variable in its environment.
#[derive(Debug)]
pub(crate) struct SystemProcesses {
    /// The variable whose value is the id of the program.
    pub(crate) variable: &'static str,
}

impl ProcessTable for SystemProcesses {
    fn orphans(&mut self) -> Vec<Pid> {
        let orphans = orphans();
        let present: HashSet<Pid> = orphans.iter().copied().collect();
        with_marks(|marks| marks.retain(|pid, _| present.contains(pid)));
        orphans
    }

    fn owner(&mut self, orphan: Pid) -> Option<Uuid> {
        with_marks(|marks| match marks.get(&orphan) {
            Some(mark) => *mark,
            None => {
                let mark = mark_of(orphan, self.variable)?;
                marks.insert(orphan, mark);
                mark
            }
        })
    }

    fn look(&mut self, pid: Pid) -> Option<Looked> {
        let stat = Stat::read(pid).filter(Stat::is_alive)?;
        let children = if stat.threads == 1 {
            children_of_thread(pid, &pid.as_raw_pid().to_string())
        } else {
            children_of(pid)
        };
        Some(Looked {
            started: stat.started,
            children,
        })
    }

    fn signal(&mut self, pid: Pid, signal: Signal) {
        // One that has ended meanwhile is no error. One that has stopped itself has to go on to end.
        let _ = kill_process(pid, signal);
        let _ = kill_process(pid, Signal::CONT);
    }
}

/// What `/proc` says of a process.
#[derive(Debug)]
struct Stat {
    /// The state of its first thread.
    state: u8,
    threads: u64,
    /// When it was started, in the system's own unit.
    started: u64,
    /// Processor time, in clock ticks.
    ticks: u64,
    /// Pages of memory that it holds.
    pages: u64,
}

impl Stat {
    fn read(pid: Pid) -> Option<Self> {
        let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
        Self::parse(&stat)
    }

    /// Reads the fields of proc_pid_stat(5). The name stands in parentheses and may be any bytes, parentheses included;
    /// everything behind it is ASCII.
    fn parse(stat: &[u8]) -> Option<Self> {
        let name_end = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
        let mut fields = rest.split_whitespace();
        // The state is field 3, and each `nth` goes on behind the one before.
        let state = *fields.next()?.as_bytes().first()?;
        let mut number = |skipped: usize| fields.nth(skipped)?.parse::<u64>().ok();
        let ticks = number(10)? + number(0)?;
        Some(Self {
            state,
            ticks,
            threads: number(4)?,
            started: number(1)?,
            pages: number(1)?,
        })
    }

    /// Whether any of its threads runs. A process whose first thread has ended is shown as a zombie while others run.
    fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X') || self.threads > 1
    }
}

/// Waits for the end of an orphan, at most this long.
fn wait_a_moment(pid: Pid, most: Duration) {
    if let Ok(Some(fd)) = exit_descriptor(pid.as_raw_pid() as u32) {
        let timeout = Timespec::try_from(most).ok();
        let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref());
    }
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
pub(crate) fn kill_orphans() {
    let deadline = Instant::now() + KILL_TAKES;
    // What a killed process leaves behind is ours in the next round.
    while Instant::now() < deadline {
        signal_orphans(Signal::KILL);
        // Our own children that were dropped were killed then.
        let Some(pid) = orphans().into_iter().chain(dropped()).next() else {
            return;
        };
        wait_a_moment(pid, deadline.saturating_duration_since(Instant::now()));
        reap_orphans();
    }
    log::warn!("processes are left that do not end even when they are killed");
}

/// What a process has used: processor time, and bytes of memory that it holds now.
pub(crate) fn usage(pid: u32) -> Option<(Duration, u64)> {
    let stat = Stat::read(to_pid(pid)?)?;
    let cpu = Duration::from_secs_f64(stat.ticks as f64 / clock_ticks_per_second() as f64);
    Some((cpu, stat.pages * page_size() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that is not UTF-8 made a process look dead, and so did a first thread that had ended before the others:
    /// such processes outlived their terminals.
    #[test]
    fn a_process_of_any_name_and_with_any_thread_left_is_alive() {
        // Fields 14 and 15 are times, 22 is the start, 24 the memory.
        let rest = |state: &str, threads: u64| {
            format!("{state} 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 {threads} 21 22 23 24 25")
        };
        let stat = |name: &[u8], rest: &str| {
            let bytes = [b"77 (", name, b") ", rest.as_bytes()].concat();
            let stat = Stat::parse(&bytes).expect("the form of a stat");
            assert_eq!((stat.started, stat.ticks, stat.pages), (22, 14 + 15, 24));
            (stat.is_alive(), stat.threads)
        };
        let alive = |threads| (true, threads);
        assert_eq!(stat(b"sh", &rest("S", 1)), alive(1));
        assert_eq!(stat(b"\xff\xfe", &rest("R", 1)), alive(1));
        assert_eq!(stat(b") Z 1 (", &rest("T", 1)), alive(1));
        assert_eq!(stat(b"zombie", &rest("Z", 1)), (false, 1));
        assert_eq!(stat(b"threads", &rest("Z", 3)), alive(3));
        assert!(Stat::parse(b"77").is_none() && Stat::parse(b"").is_none());
        let ourselves = Stat::read(getpid()).expect("this process");
        assert!(ourselves.is_alive() && ourselves.started > 0);
    }
}
