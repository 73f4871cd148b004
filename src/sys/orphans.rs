//! Orphans: processes whose parents have exited, such as those of a program that forked twice.
//!
//! On Linux this process adopts them as a subreaper and finds them through `/proc`. Elsewhere the system's init adopts
//! them, and the lists here are empty.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, waitid};
use uuid::Uuid;

use super::child_process::{dropped, exit_descriptor, ours, reap_dropped, to_pid};
use super::process_tree::{Mark, ProcessInfo, ProcessTable};

/// The maximum number of orphans that are checked in one turn of the loop.
const CHECKED_PER_TURN: usize = 512;
/// The maximum number of orphans that are reaped in one turn of the loop.
const REAPED_PER_TURN: usize = 32;
/// The number of turns of the loop in which an exited child may wait for its owner before all children are listed.
const MAX_WAITED: u32 = 3;

/// The maximum time that [`kill_orphans`] waits.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval between checks for the exit of a process where the system does not report it.
const EXIT_POLL: Duration = Duration::from_millis(10);

/// The mark of each orphan whose environment has been read. The pid of an orphan is not
/// reused until the orphan is reaped here, so an entry stays valid until then.
static MARKS: Mutex<Option<HashMap<Pid, Mark>>> = Mutex::new(None);

/// On Linux, makes this process adopt its orphaned descendants, which the caller must reap. Elsewhere, does nothing.
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

/// The adopted children of this process, including those that have exited.
fn orphans() -> Vec<Pid> {
    let children = children_of(getpid());
    let ours = ours();
    let is_ours = |pid: &Pid| ours.contains(&(pid.as_raw_pid() as u32));
    children.into_iter().filter(|pid| !is_ours(pid)).collect()
}

/// A child that has exited and is not reaped yet. The kernel finds it much faster than a list of all children.
#[cfg(target_os = "linux")]
fn exited_child() -> Option<Pid> {
    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let pid = waitid(Id::All, flags).ok()?.pid()?;
    Pid::from_raw(pid.as_raw())
}

#[cfg(not(target_os = "linux"))]
fn exited_child() -> Option<Pid> {
    None
}

/// Reaps orphans that have exited, a bounded number at a time. With thousands of children, the kernel takes milliseconds
/// for their list alone, so it is made only if it is needed.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    /// The turns of the loop in which a child that was started here had exited, and was not reaped.
    waited: u32,
    /// Orphans that have not been checked since the list was made.
    pending: Vec<Pid>,
    /// Whether a child has exited since the list was made.
    outdated: bool,
}

impl Reaper {
    /// Notes that a child has exited: SIGCHLD.
    pub(crate) fn child_has_ended(&mut self) {
        self.outdated = true;
    }

    /// Whether work is left for the next turn.
    pub(crate) fn has_work(&self) -> bool {
        self.outdated || !self.pending.is_empty()
    }

    /// Checks as many orphans as one turn allows, and reaps dropped children. Returns whether any orphan had exited.
    pub(crate) fn reap(&mut self) -> bool {
        reap_dropped();
        let mut reaped = 0;
        if self.pending.is_empty() && self.outdated {
            reaped = self.reap_first();
        }
        for _ in 0..CHECKED_PER_TURN {
            let Some(pid) = self.pending.pop() else { break };
            reaped += usize::from(!runs(pid));
            if reaped == REAPED_PER_TURN {
                break;
            }
        }
        reaped > 0
    }

    /// Reaps the orphans that have exited before any child that was started here, and returns their number. The kernel shows
    /// one exited child at a time. One that was started here is reaped by its owner, in this turn as a rule. If the owner takes
    /// longer, the list says which orphans have exited behind it.
    fn reap_first(&mut self) -> usize {
        for reaped in 0..REAPED_PER_TURN {
            match exited_child() {
                Some(pid) if !ours().contains(&(pid.as_raw_pid() as u32)) => _ = runs(pid),
                Some(_) if self.waited < MAX_WAITED => {
                    self.waited += 1;
                    return reaped;
                }
                found => {
                    self.outdated = false;
                    self.waited = 0;
                    if found.is_some() {
                        self.pending = orphans();
                    }
                    return reaped;
                }
            }
        }
        REAPED_PER_TURN
    }
}

/// Reaps an orphan if it has exited. Returns whether it still runs.
fn runs(orphan: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let runs = matches!(waitid(WaitId::Pid(orphan), options), Ok(None));
    if !runs {
        with_marks(|marks| marks.remove(&orphan));
    }
    runs
}

/// Reaps all orphans that have exited. Does not block. Returns whether any are left.
pub(crate) fn reap_orphans() -> bool {
    reap_dropped();
    orphans().into_iter().filter(|pid| runs(*pid)).count() > 0
}

fn with_marks<T>(act: impl FnOnce(&mut HashMap<Pid, Mark>) -> T) -> T {
    let mut marks = MARKS.lock().unwrap_or_else(PoisonError::into_inner);
    act(marks.get_or_insert_default())
}

/// The [`PROGRAM_ID`] in a process's environment.
fn mark_of(pid: Pid) -> Mark {
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid()));
    let environment = environment.unwrap_or_default();
    if environment.is_empty() {
        return Mark::Unreadable;
    }
    let mut pairs = environment.split(|byte| *byte == 0);
    let program = pairs.find_map(|pair| {
        let value = pair
            .strip_prefix(PROGRAM_ID.as_bytes())?
            .strip_prefix(b"=")?;
        Uuid::try_parse_ascii(value).ok()
    });
    program.map_or(Mark::None, Mark::Program)
}

/// The variable of a program's environment that holds its id. The processes that it starts inherit it.
pub(crate) const PROGRAM_ID: &str = "OUTRIGGER_PROCESS_ID";

/// The process table of the system. An orphan is assigned to a program by [`PROGRAM_ID`] in its environment.
#[derive(Debug)]
pub(crate) struct SystemProcessTable;

impl ProcessTable for SystemProcessTable {
    fn orphans(&mut self) -> Vec<Pid> {
        let orphans = orphans();
        let present: HashSet<Pid> = orphans.iter().copied().collect();
        with_marks(|marks| marks.retain(|pid, _| present.contains(pid)));
        orphans
    }

    fn mark(&mut self, orphan: Pid) -> Mark {
        with_marks(|marks| {
            let known = marks.get(&orphan).copied();
            let mark = known.unwrap_or_else(|| mark_of(orphan));
            if mark != Mark::Unreadable {
                marks.insert(orphan, mark);
            }
            mark
        })
    }

    fn look(&mut self, pid: Pid) -> Option<ProcessInfo> {
        let stat = Stat::read(pid).filter(Stat::is_alive)?;
        let children = if stat.threads == 1 {
            children_of_thread(pid, &pid.as_raw_pid().to_string())
        } else {
            children_of(pid)
        };
        Some(ProcessInfo {
            started: stat.started,
            children,
        })
    }

    fn signal(&mut self, pid: Pid, signal: Signal) {
        // A process that has exited meanwhile is not an error. A stopped process has to continue to handle the signal.
        let _ = kill_process(pid, signal);
        let _ = kill_process(pid, Signal::CONT);
    }
}

/// Fields of `/proc/PID/stat`.
#[derive(Debug)]
struct Stat {
    /// The state of its first thread.
    state: u8,
    threads: u64,
    /// Start time in clock ticks since boot.
    started: u64,
    /// Processor time, in clock ticks.
    ticks: u64,
    /// Resident pages of memory.
    pages: u64,
}

impl Stat {
    fn read(pid: Pid) -> Option<Self> {
        let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
        Self::parse(&stat)
    }

    /// Parses proc_pid_stat(5). The name stands in parentheses and may contain any bytes, including parentheses;
    /// everything after it is ASCII.
    fn parse(stat: &[u8]) -> Option<Self> {
        let name_end = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
        let mut fields = rest.split_whitespace();
        // The state is field 3, and each `nth` continues after the previous one.
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

    /// Whether any thread runs. A process whose first thread has exited is shown as a zombie while other threads run.
    fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X') || self.threads > 1
    }
}

/// Waits until a process has exited, for `most` at most. Where the system does not report it, waits a moment.
fn wait_for_exit(pid: Pid, most: Duration) {
    let wait = |fds: &mut [PollFd<'_>], most| poll(fds, Timespec::try_from(most).ok().as_ref());
    let _ = match exit_descriptor(pid.as_raw_pid() as u32) {
        Ok(Some(fd)) => wait(&mut [PollFd::new(&fd, PollFlags::IN)], most),
        _ => wait(&mut [], most.min(EXIT_POLL)),
    };
}

/// Sends a signal to every orphan and its descendants.
pub(crate) fn signal_orphans(signal: Signal) {
    let mut tree = orphans();
    let mut at = 0;
    while let Some(pid) = tree.get(at) {
        tree.extend(children_of(*pid));
        at += 1;
    }
    for pid in tree {
        SystemProcessTable.signal(pid, signal);
    }
}

/// Kills all orphans and their descendants, and waits up to five seconds until they have exited. A program whose server
/// adopts orphans calls this last.
pub(crate) fn kill_orphans() {
    let deadline = Instant::now() + KILL_TIMEOUT;
    // The children of a killed process are orphans in the next round.
    while Instant::now() < deadline {
        signal_orphans(Signal::KILL);
        // Dropped children have been killed already.
        let Some(pid) = orphans().into_iter().chain(dropped()).next() else {
            return;
        };
        wait_for_exit(pid, deadline.saturating_duration_since(Instant::now()));
        reap_orphans();
    }
    log::warn!("some processes have not exited after KILL");
}

/// The processor time that a process has used, and its resident memory in bytes.
pub(crate) fn usage(pid: u32) -> Option<(Duration, u64)> {
    let stat = Stat::read(to_pid(pid)?)?;
    let cpu = Duration::from_secs_f64(stat.ticks as f64 / clock_ticks_per_second() as f64);
    Some((cpu, stat.pages * page_size() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bug: a process counted as dead if its name was not UTF-8 or its first thread had exited before the others, and
    /// outlived its terminal.
    #[test]
    fn a_process_with_any_name_and_any_running_thread_is_alive() {
        // Fields 14 and 15 are times, 22 is the start, 24 the memory.
        let rest = |state: &str, threads: u64| {
            format!("{state} 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 {threads} 21 22 23 24 25")
        };
        let stat = |name: &[u8], rest: &str| {
            let bytes = [b"77 (", name, b") ", rest.as_bytes()].concat();
            let stat = Stat::parse(&bytes).expect("a valid stat");
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
        // Elsewhere, there is no such file.
        if cfg!(target_os = "linux") {
            let ourselves = Stat::read(getpid()).expect("this process");
            assert!(ourselves.is_alive() && ourselves.started > 0);
        }
    }
}
