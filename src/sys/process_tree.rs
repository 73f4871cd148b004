//! Process trees: all processes that a program has started. A walk through the process table finds and signals them.
//!
//! One walk serves all programs, and it runs in bounded steps, so that neither many programs nor many processes block the
//! loop. A process belongs to a program's tree if it descends from the program, or if it is an orphan that carries the
//! program's mark in its environment. A walk sends each process the current signal of its tree once.

use std::collections::{HashMap, HashSet};

use rustix::process::{Pid, Signal};
use uuid::Uuid;

use super::child_process::to_pid;

/// Access to the process table.
pub(crate) trait ProcessTable {
    /// The adopted children of this process.
    fn orphans(&mut self) -> Vec<Pid>;
    /// The mark that an orphan carries in its environment.
    fn mark(&mut self, orphan: Pid) -> Mark;
    /// Reads the entry of a process; `None` if it has exited.
    fn look(&mut self, pid: Pid) -> Option<ProcessInfo>;
    /// Sends a signal to a process.
    fn signal(&mut self, pid: Pid, signal: Signal);
}

/// The mark of an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// It belongs to this program.
    Program(Uuid),
    None,
    /// Its environment cannot be read now, as while it executes another program.
    Unreadable,
}

/// An entry of the process table.
#[derive(Debug)]
pub(crate) struct ProcessInfo {
    /// The start time, which distinguishes the process from a later one with the same pid.
    pub(crate) started: u64,
    pub(crate) children: Vec<Pid>,
}

/// The process trees of programs that are being stopped.
#[derive(Debug, Default)]
pub(crate) struct ProcessTrees {
    trees: HashMap<Uuid, ProcessTree>,
    /// The program of each known process.
    owners: HashMap<Pid, Uuid>,
    walk: Option<Walk>,
    /// Whether the last walk could not read the marks of some orphans.
    has_unread: bool,
}

#[derive(Debug)]
struct ProcessTree {
    /// The program's own process, while it runs.
    root: Option<Pid>,
    /// The signal for the members.
    signal: Signal,
    members: HashMap<Pid, Member>,
    freshness: Freshness,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    started: u64,
    /// The last signal that was sent to it.
    signalled: Option<Signal>,
}

/// How current the members of a tree are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freshness {
    /// Something has changed since the last walk began, so that another walk is needed.
    Outdated,
    /// The current walk updates the members.
    InWalk,
    /// A walk has completed, and no change is known since it began.
    Current,
}

/// A walk in progress.
#[derive(Debug)]
struct Walk {
    roots: Vec<(Pid, Uuid)>,
    orphans: Vec<Pid>,
    /// Processes that were found and are still to be visited.
    found: Vec<(Pid, Uuid)>,
    visited: HashSet<Pid>,
    /// Members that the walk has not found, once the rest is visited. A process may be missed if its parent exits during
    /// the walk.
    missed: Option<Vec<(Pid, Uuid)>>,
    has_unread: bool,
}

impl ProcessTrees {
    /// Has the next walks send a signal to all processes that a program has started. `root` is the program's own process
    /// while it runs; the walks do not signal it.
    pub(crate) fn signal(&mut self, program: Uuid, root: Option<u32>, signal: Signal) {
        let tree = self.trees.entry(program).or_insert_with(|| ProcessTree {
            root: None,
            signal,
            members: HashMap::new(),
            freshness: Freshness::Outdated,
        });
        tree.root = root.and_then(to_pid);
        tree.signal = signal;
        tree.freshness = Freshness::Outdated;
    }

    /// A program has exited: its children are orphans now.
    pub(crate) fn root_has_exited(&mut self, program: Uuid) {
        if let Some(tree) = self.trees.get_mut(&program) {
            tree.root = None;
            tree.freshness = Freshness::Outdated;
        }
    }

    /// Processes have exited: all trees must be walked again.
    pub(crate) fn mark_outdated(&mut self) {
        for tree in self.trees.values_mut() {
            tree.freshness = Freshness::Outdated;
        }
    }

    /// Removes the tree of a program.
    pub(crate) fn remove(&mut self, program: Uuid) {
        if let Some(tree) = self.trees.remove(&program) {
            for pid in tree.members.keys() {
                self.owners.remove(pid);
            }
        }
    }

    /// Whether no process that a program has started is left.
    pub(crate) fn is_gone(&self, program: Uuid) -> bool {
        self.trees
            .get(&program)
            .is_none_or(|tree| tree.freshness == Freshness::Current && tree.members.is_empty())
    }

    /// The number of processes of a program that the last walk has found.
    pub(crate) fn count(&self, program: Uuid) -> usize {
        let tree = self.trees.get(&program);
        tree.map_or(0, |tree| tree.members.len())
    }

    /// Whether the last walk could not read the marks of some orphans, which may belong to any program.
    pub(crate) fn has_unread(&self) -> bool {
        self.has_unread
    }

    /// Whether a walk is in progress or needed.
    pub(crate) fn has_work(&self) -> bool {
        let outdated = |tree: &ProcessTree| tree.freshness == Freshness::Outdated;
        self.walk.is_some() || self.trees.values().any(outdated)
    }

    /// Visits at most `most` processes. Returns whether the walk is complete.
    pub(crate) fn walk(&mut self, table: &mut impl ProcessTable, most: usize) -> bool {
        if !self.has_work() {
            return true;
        }
        let mut walk = self.walk.take().unwrap_or_else(|| self.begin(table));
        for _ in 0..most {
            if !self.step(&mut walk, table) {
                self.finish(&walk);
                return true;
            }
        }
        self.walk = Some(walk);
        false
    }

    fn begin(&mut self, table: &mut impl ProcessTable) -> Walk {
        for tree in self.trees.values_mut() {
            tree.freshness = Freshness::InWalk;
        }
        let roots = self.trees.iter();
        Walk {
            roots: roots
                .filter_map(|(program, tree)| Some((tree.root?, *program)))
                .collect(),
            orphans: table.orphans(),
            found: Vec::new(),
            visited: HashSet::new(),
            missed: None,
            has_unread: false,
        }
    }

    /// Visits one more process. Returns whether there was one.
    fn step(&mut self, walk: &mut Walk, table: &mut impl ProcessTable) -> bool {
        if let Some((pid, program)) = walk.found.pop() {
            self.visit(walk, table, pid, program);
        } else if let Some((root, program)) = walk.roots.pop() {
            let children = table.look(root).map(|info| info.children);
            let children = children.into_iter().flatten();
            walk.found.extend(children.map(|child| (child, program)));
        } else if let Some(orphan) = walk.orphans.pop() {
            let mark = table.mark(orphan);
            walk.has_unread |= mark == Mark::Unreadable;
            let owner = match mark {
                Mark::Program(owner) => Some(owner),
                // The process is still known if it was found before it became an orphan.
                Mark::None | Mark::Unreadable => self.owners.get(&orphan).copied(),
            };
            if let Some(owner) = owner.filter(|owner| self.trees.contains_key(owner)) {
                walk.found.push((orphan, owner));
            }
        } else {
            let missed = walk.missed.get_or_insert_with(|| {
                let known = self.owners.iter();
                known
                    .filter(|(pid, _)| !walk.visited.contains(pid))
                    .map(|(pid, program)| (*pid, *program))
                    .collect()
            });
            let Some((pid, program)) = missed.pop() else {
                return false;
            };
            self.visit_missed(walk, table, pid, program);
        }
        true
    }

    fn visit(&mut self, walk: &mut Walk, table: &mut impl ProcessTable, pid: Pid, program: Uuid) {
        if !self.trees.contains_key(&program) || !walk.visited.insert(pid) {
            return;
        }
        // Read the children before sending the signal: afterwards they may have another parent.
        let Some(ProcessInfo { started, children }) = table.look(pid) else {
            return self.forget(pid);
        };
        walk.found
            .extend(children.into_iter().map(|child| (child, program)));
        if let Some(other) = self.owners.insert(pid, program)
            && other != program
        {
            // The pid has been reused.
            if let Some(tree) = self.trees.get_mut(&other) {
                tree.members.remove(&pid);
            }
        }
        let Some(tree) = self.trees.get_mut(&program) else {
            return;
        };
        let signal = tree.signal;
        let member = tree.members.entry(pid).or_insert(Member {
            started,
            signalled: None,
        });
        if member.started != started {
            *member = Member {
                started,
                signalled: None,
            };
        }
        if member.signalled != Some(signal) {
            member.signalled = Some(signal);
            table.signal(pid, signal);
        }
    }

    /// Visits a member that the walk has not found. Either it has exited, or its parent has exited during the walk.
    fn visit_missed(
        &mut self,
        walk: &mut Walk,
        table: &mut impl ProcessTable,
        pid: Pid,
        program: Uuid,
    ) {
        let known = self.trees.get(&program);
        let known = known.and_then(|tree| tree.members.get(&pid));
        let lives = |member: &Member| {
            let info = table.look(pid);
            info.is_some_and(|info| info.started == member.started)
        };
        if known.is_some_and(lives) {
            self.visit(walk, table, pid, program);
        } else if !walk.visited.contains(&pid) {
            self.forget(pid);
        }
    }

    fn forget(&mut self, pid: Pid) {
        let owner = self.owners.remove(&pid);
        if let Some(tree) = owner.and_then(|owner| self.trees.get_mut(&owner)) {
            tree.members.remove(&pid);
        }
    }

    fn finish(&mut self, walk: &Walk) {
        self.has_unread = walk.has_unread;
        for tree in self.trees.values_mut() {
            if tree.freshness == Freshness::InWalk {
                tree.freshness = Freshness::Current;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::sys::random_uuid;

    /// A simulated process table that counts the calls.
    #[derive(Default)]
    struct FakeTable {
        /// The parent of each process; 1 is the server.
        parents: BTreeMap<i32, i32>,
        marks: HashMap<i32, Uuid>,
        /// Processes that only KILL ends.
        stubborn: HashSet<i32>,
        sent: Vec<(i32, Signal)>,
        lists: usize,
        looks: usize,
    }

    impl FakeTable {
        fn of<const N: usize>(parents: [(i32, i32); N]) -> Self {
            Self {
                parents: parents.into(),
                ..Self::default()
            }
        }

        fn children(&self, of: i32) -> Vec<Pid> {
            let children = self.parents.iter().filter(|(_, parent)| **parent == of);
            children
                .filter_map(|(pid, _)| Pid::from_raw(*pid))
                .collect()
        }

        fn kill(&mut self, pid: i32) {
            self.parents.remove(&pid);
            for parent in self.parents.values_mut() {
                if *parent == pid {
                    *parent = 1;
                }
            }
        }
    }

    impl ProcessTable for FakeTable {
        fn orphans(&mut self) -> Vec<Pid> {
            self.lists += 1;
            let is_orphan = |pid: &Pid| pid.as_raw_pid() >= 1000;
            self.children(1).into_iter().filter(is_orphan).collect()
        }

        fn mark(&mut self, orphan: Pid) -> Mark {
            let mark = self.marks.get(&orphan.as_raw_pid());
            mark.map_or(Mark::None, |program| Mark::Program(*program))
        }

        fn look(&mut self, pid: Pid) -> Option<ProcessInfo> {
            self.looks += 1;
            let pid = pid.as_raw_pid();
            self.parents.contains_key(&pid).then(|| ProcessInfo {
                started: pid as u64,
                children: self.children(pid),
            })
        }

        fn signal(&mut self, pid: Pid, signal: Signal) {
            let pid = pid.as_raw_pid();
            self.sent.push((pid, signal));
            if signal == Signal::KILL || !self.stubborn.contains(&pid) {
                self.kill(pid);
            }
        }
    }

    /// Completes a walk in steps, and returns the largest number of processes that one step has visited.
    fn walk(trees: &mut ProcessTrees, table: &mut FakeTable, piece: usize) -> usize {
        let mut most = 0;
        loop {
            let before = table.looks;
            let ended = trees.walk(table, piece);
            most = most.max(table.looks - before);
            if ended {
                return most;
            }
        }
    }

    /// The bug: when 200 terminals closed at once, each walked the process table by itself for every signal and every
    /// exit, and the loop blocked for 21 seconds.
    #[test]
    fn one_walk_serves_many_programs_in_bounded_steps() {
        let mut table = FakeTable::default();
        let mut trees = ProcessTrees::default();
        let programs: Vec<Uuid> = (0..200).map(|_| random_uuid()).collect();
        for (at, program) in programs.iter().enumerate() {
            let root = at as i32 + 10;
            table.parents.insert(root, 1);
            for orphan in 0..10 {
                let pid = 1000 + at as i32 * 10 + orphan;
                table.parents.insert(pid, 1);
                table.marks.insert(pid, *program);
            }
            trees.signal(*program, Some(root as u32), Signal::HUP);
        }
        let most = walk(&mut trees, &mut table, 64);
        assert_eq!(table.lists, 1, "one list for all programs");
        assert_eq!(table.sent.len(), 2000);
        assert_eq!(table.looks, 200 + 2000, "one visit for each process");
        assert!(most <= 64, "{most}");
        assert!(programs.iter().all(|program| !trees.is_gone(*program)));
        // They have exited, and the next walk finds that.
        programs
            .iter()
            .for_each(|program| trees.root_has_exited(*program));
        walk(&mut trees, &mut table, 64);
        assert!(programs.iter().all(|program| trees.is_gone(*program)));
        assert_eq!((table.lists, table.sent.len()), (2, 2000));
        assert!(!trees.has_work());
    }

    #[test]
    fn every_process_of_a_tree_gets_each_signal_once() {
        let (program, other) = (random_uuid(), random_uuid());
        // A program, its child and grandchild, its orphan with a child, and the orphan of another program.
        let mut table = FakeTable::of([
            (10, 1),
            (11, 10),
            (12, 11),
            (1000, 1),
            (13, 1000),
            (1001, 1),
        ]);
        table.marks = [(1000, program), (1001, other)].into();
        table.stubborn = [11, 12, 1000].into();
        let mut trees = ProcessTrees::default();
        trees.signal(program, Some(10), Signal::HUP);
        walk(&mut trees, &mut table, 1);
        let mut sent = std::mem::take(&mut table.sent);
        sent.sort_by_key(|(pid, _)| *pid);
        let all = [11, 12, 13, 1000].map(|pid| (pid, Signal::HUP));
        assert_eq!(sent, all);
        // Another walk does not repeat the signals.
        trees.mark_outdated();
        walk(&mut trees, &mut table, 1);
        assert_eq!(table.sent, []);
        assert!(!trees.is_gone(program));
        // The program exits. Its child is an orphan without a mark now, and is still known.
        table.kill(10);
        table.parents.insert(2000, 1);
        table.marks.insert(2000, program);
        trees.root_has_exited(program);
        trees.signal(program, None, Signal::TERM);
        walk(&mut trees, &mut table, 2);
        let mut sent = std::mem::take(&mut table.sent);
        sent.sort_by_key(|(pid, _)| *pid);
        let left = [11, 12, 1000, 2000].map(|pid| (pid, Signal::TERM));
        assert_eq!(sent, left);
        trees.signal(program, None, Signal::KILL);
        walk(&mut trees, &mut table, 2);
        assert!(!trees.is_gone(program), "no walk since the signal");
        trees.mark_outdated();
        walk(&mut trees, &mut table, 2);
        assert!(trees.is_gone(program));
        assert!(
            table.parents.contains_key(&1001),
            "the orphan of another program is left alone"
        );
    }

    #[test]
    fn a_change_during_a_walk_causes_another_walk() {
        let program = random_uuid();
        let mut table = FakeTable::of([(10, 1), (11, 10), (1000, 1)]);
        let mut trees = ProcessTrees::default();
        trees.signal(program, Some(10), Signal::HUP);
        assert!(!trees.walk(&mut table, 1));
        trees.root_has_exited(program);
        walk(&mut trees, &mut table, 1);
        assert!(trees.has_work() && !trees.is_gone(program));
        walk(&mut trees, &mut table, 1);
        assert!(trees.is_gone(program) && !trees.has_work());
        // A tree that is removed during a walk is not visited any more.
        trees.signal(program, Some(10), Signal::HUP);
        assert!(!trees.walk(&mut table, 1));
        trees.remove(program);
        walk(&mut trees, &mut table, 1);
        assert!(trees.owners.is_empty() && !trees.has_work());
    }
}
