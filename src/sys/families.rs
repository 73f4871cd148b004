//! Finds the processes that ending programs have started, by walking the process table.
//!
//! One walk serves all programs, and it is made in pieces, so that neither many programs nor many processes hold up the
//! loop. A process belongs to a program if it descends from it, or if it was left behind and carries the program's mark.
//! Each process that a walk comes across is sent the signal that its program is being ended with, once.

use std::collections::{HashMap, HashSet};

use rustix::process::{Pid, Signal};
use uuid::Uuid;

use super::process::to_pid;

/// The table of processes.
pub(crate) trait ProcessTable {
    /// Children of this process that others have left to it.
    fn orphans(&mut self) -> Vec<Pid>;
    /// The program whose mark an orphan carries.
    fn owner(&mut self, orphan: Pid) -> Option<Uuid>;
    /// Looks at a process; `None` if it has ended.
    fn look(&mut self, pid: Pid) -> Option<Looked>;
    fn signal(&mut self, pid: Pid, signal: Signal);
}

/// A process as seen in the table.
#[derive(Debug)]
pub(crate) struct Looked {
    /// Its start time, which distinguishes it from another process with the same pid.
    pub(crate) started: u64,
    pub(crate) children: Vec<Pid>,
}

/// The programs that are being ended, each with what it has started.
#[derive(Debug, Default)]
pub(crate) struct Families {
    families: HashMap<Uuid, Family>,
    /// The program of each process that was seen.
    owners: HashMap<Pid, Uuid>,
    walk: Option<Walk>,
}

#[derive(Debug)]
struct Family {
    /// The program itself, while it runs.
    head: Option<Pid>,
    /// The signal for its members.
    signal: Signal,
    members: HashMap<Pid, Member>,
    seen: Seen,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    started: u64,
    /// The signal that it was sent last.
    signalled: Option<Signal>,
}

/// How current the members of a family are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Something has changed since the last walk began.
    Outdated,
    /// The present walk will tell.
    InWalk,
    /// A walk has come to its end, and nothing is known to have changed since it began.
    Current,
}

/// A walk that has begun.
#[derive(Debug)]
struct Walk {
    heads: Vec<(Pid, Uuid)>,
    orphans: Vec<Pid>,
    /// Processes that were come across and have not been looked at.
    found: Vec<(Pid, Uuid)>,
    visited: HashSet<Pid>,
    /// At the end: members that were not come across. One whose parent has ended meanwhile may have been missed.
    missed: Option<Vec<(Pid, Uuid)>>,
}

impl Families {
    /// Sends a signal to everything that a program has started, as walks find it. `head` is the program itself while it
    /// runs; it is not signalled here.
    pub(crate) fn end(&mut self, program: Uuid, head: Option<u32>, signal: Signal) {
        let family = self.families.entry(program).or_insert_with(|| Family {
            head: None,
            signal,
            members: HashMap::new(),
            seen: Seen::Outdated,
        });
        family.head = head.and_then(to_pid);
        family.signal = signal;
        family.seen = Seen::Outdated;
    }

    /// A program has ended; what descends from it is left behind now.
    pub(crate) fn head_has_ended(&mut self, program: Uuid) {
        if let Some(family) = self.families.get_mut(&program) {
            family.head = None;
            family.seen = Seen::Outdated;
        }
    }

    /// Processes have ended: what was seen has to be looked at again.
    pub(crate) fn look_again(&mut self) {
        for family in self.families.values_mut() {
            family.seen = Seen::Outdated;
        }
    }

    /// Forgets a program.
    pub(crate) fn remove(&mut self, program: Uuid) {
        if let Some(family) = self.families.remove(&program) {
            for pid in family.members.keys() {
                self.owners.remove(pid);
            }
        }
    }

    /// Whether nothing is left of what a program has started.
    pub(crate) fn is_gone(&self, program: Uuid) -> bool {
        self.families
            .get(&program)
            .is_none_or(|family| family.seen == Seen::Current && family.members.is_empty())
    }

    /// Whether a walk has begun, or has to.
    pub(crate) fn has_work(&self) -> bool {
        let outdated = |family: &Family| family.seen == Seen::Outdated;
        self.walk.is_some() || self.families.values().any(outdated)
    }

    /// Looks at so many processes at most. Returns whether the walk is at its end.
    pub(crate) fn walk(&mut self, table: &mut impl ProcessTable, most: usize) -> bool {
        if !self.has_work() {
            return true;
        }
        let mut walk = self.walk.take().unwrap_or_else(|| self.begin(table));
        for _ in 0..most {
            if !self.step(&mut walk, table) {
                self.finish();
                return true;
            }
        }
        self.walk = Some(walk);
        false
    }

    fn begin(&mut self, table: &mut impl ProcessTable) -> Walk {
        for family in self.families.values_mut() {
            family.seen = Seen::InWalk;
        }
        let heads = self.families.iter();
        Walk {
            heads: heads
                .filter_map(|(program, family)| Some((family.head?, *program)))
                .collect(),
            orphans: table.orphans(),
            found: Vec::new(),
            visited: HashSet::new(),
            missed: None,
        }
    }

    /// Looks at one more process. Returns whether there was one.
    fn step(&mut self, walk: &mut Walk, table: &mut impl ProcessTable) -> bool {
        if let Some((pid, program)) = walk.found.pop() {
            self.visit(walk, table, pid, program);
        } else if let Some((head, program)) = walk.heads.pop() {
            let children = table.look(head).map(|looked| looked.children);
            let children = children.into_iter().flatten();
            walk.found.extend(children.map(|child| (child, program)));
        } else if let Some(orphan) = walk.orphans.pop() {
            // A process that has removed its mark is still known if it was seen before it became an orphan.
            let owner = table
                .owner(orphan)
                .or_else(|| self.owners.get(&orphan).copied());
            if let Some(owner) = owner.filter(|owner| self.families.contains_key(owner)) {
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
        if !self.families.contains_key(&program) || !walk.visited.insert(pid) {
            return;
        }
        // Its children come first: once it has got its signal they may be someone else's.
        let Some(Looked { started, children }) = table.look(pid) else {
            return self.forget(pid);
        };
        walk.found
            .extend(children.into_iter().map(|child| (child, program)));
        if let Some(other) = self.owners.insert(pid, program)
            && other != program
        {
            // The pid was another process's before.
            if let Some(family) = self.families.get_mut(&other) {
                family.members.remove(&pid);
            }
        }
        let Some(family) = self.families.get_mut(&program) else {
            return;
        };
        let signal = family.signal;
        let member = family.members.entry(pid).or_insert(Member {
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

    /// A member that was not come across has ended, or its parent has while the walk went on.
    fn visit_missed(
        &mut self,
        walk: &mut Walk,
        table: &mut impl ProcessTable,
        pid: Pid,
        program: Uuid,
    ) {
        let known = self.families.get(&program);
        let known = known.and_then(|family| family.members.get(&pid));
        let lives = |member: &Member| {
            let looked = table.look(pid);
            looked.is_some_and(|looked| looked.started == member.started)
        };
        if known.is_some_and(lives) {
            self.visit(walk, table, pid, program);
        } else if !walk.visited.contains(&pid) {
            self.forget(pid);
        }
    }

    fn forget(&mut self, pid: Pid) {
        let owner = self.owners.remove(&pid);
        if let Some(family) = owner.and_then(|owner| self.families.get_mut(&owner)) {
            family.members.remove(&pid);
        }
    }

    fn finish(&mut self) {
        for family in self.families.values_mut() {
            if family.seen == Seen::InWalk {
                family.seen = Seen::Current;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Processes that are not there, and a count of what is asked about them.
    #[derive(Default)]
    struct Processes {
        /// Who is whose child; 1 is this process.
        parents: BTreeMap<i32, i32>,
        marks: HashMap<i32, Uuid>,
        proof: HashSet<i32>,
        sent: Vec<(i32, Signal)>,
        lists: usize,
        looks: usize,
    }

    impl Processes {
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

    impl ProcessTable for Processes {
        fn orphans(&mut self) -> Vec<Pid> {
            self.lists += 1;
            let heads = |pid: &Pid| pid.as_raw_pid() >= 1000;
            self.children(1).into_iter().filter(heads).collect()
        }

        fn owner(&mut self, orphan: Pid) -> Option<Uuid> {
            self.marks.get(&orphan.as_raw_pid()).copied()
        }

        fn look(&mut self, pid: Pid) -> Option<Looked> {
            self.looks += 1;
            let pid = pid.as_raw_pid();
            self.parents.contains_key(&pid).then(|| Looked {
                started: pid as u64,
                children: self.children(pid),
            })
        }

        fn signal(&mut self, pid: Pid, signal: Signal) {
            let pid = pid.as_raw_pid();
            self.sent.push((pid, signal));
            if signal == Signal::KILL || !self.proof.contains(&pid) {
                self.kill(pid);
            }
        }
    }

    /// Walks to the end in pieces, and returns the largest number of processes that one of them has looked at.
    fn walk(families: &mut Families, table: &mut Processes, piece: usize) -> usize {
        let mut most = 0;
        loop {
            let before = table.looks;
            let ended = families.walk(table, piece);
            most = most.max(table.looks - before);
            if ended {
                return most;
            }
        }
    }

    /// Each of 200 terminals that were dropped at once went through all processes by itself, again with every signal and
    /// with every process that ended, and the loop stood still for 21 seconds.
    #[test]
    fn one_walk_serves_many_programs_and_is_made_in_pieces() {
        let mut table = Processes::default();
        let mut families = Families::default();
        let programs: Vec<Uuid> = (0..200).map(|_| Uuid::new_v4()).collect();
        for (at, program) in programs.iter().enumerate() {
            let head = at as i32 + 10;
            table.parents.insert(head, 1);
            for orphan in 0..10 {
                let pid = 1000 + at as i32 * 10 + orphan;
                table.parents.insert(pid, 1);
                table.marks.insert(pid, *program);
            }
            families.end(*program, Some(head as u32), Signal::HUP);
        }
        let most = walk(&mut families, &mut table, 64);
        assert_eq!(table.lists, 1, "one list for all");
        assert_eq!(table.sent.len(), 2000);
        assert_eq!(table.looks, 200 + 2000, "one look for each process");
        assert!(most <= 64, "{most}");
        assert!(programs.iter().all(|program| !families.is_gone(*program)));
        // They have ended, and one more walk tells.
        programs
            .iter()
            .for_each(|program| families.head_has_ended(*program));
        walk(&mut families, &mut table, 64);
        assert!(programs.iter().all(|program| families.is_gone(*program)));
        assert_eq!((table.lists, table.sent.len()), (2, 2000));
        assert!(!families.has_work());
    }

    #[test]
    fn whatever_a_program_has_started_is_found_and_gets_each_signal_once() {
        let (program, other) = (Uuid::new_v4(), Uuid::new_v4());
        // The program, its child and grandchild, an orphan of its own with a child, and an orphan of another one.
        let mut table = Processes::of([
            (10, 1),
            (11, 10),
            (12, 11),
            (1000, 1),
            (13, 1000),
            (1001, 1),
        ]);
        table.marks = [(1000, program), (1001, other)].into();
        table.proof = [11, 12, 1000].into();
        let mut families = Families::default();
        families.end(program, Some(10), Signal::HUP);
        walk(&mut families, &mut table, 1);
        let mut sent = std::mem::take(&mut table.sent);
        sent.sort_by_key(|(pid, _)| *pid);
        let all = [11, 12, 13, 1000].map(|pid| (pid, Signal::HUP));
        assert_eq!(sent, all);
        // Looking again sends nothing again.
        families.look_again();
        walk(&mut families, &mut table, 1);
        assert_eq!(table.sent, []);
        assert!(!families.is_gone(program));
        // The program ends; its child is left behind, without a mark, and is still known.
        table.kill(10);
        table.parents.insert(2000, 1);
        table.marks.insert(2000, program);
        families.head_has_ended(program);
        families.end(program, None, Signal::TERM);
        walk(&mut families, &mut table, 2);
        let mut sent = std::mem::take(&mut table.sent);
        sent.sort_by_key(|(pid, _)| *pid);
        let left = [11, 12, 1000, 2000].map(|pid| (pid, Signal::TERM));
        assert_eq!(sent, left);
        families.end(program, None, Signal::KILL);
        walk(&mut families, &mut table, 2);
        assert!(!families.is_gone(program), "nobody has looked since");
        families.look_again();
        walk(&mut families, &mut table, 2);
        assert!(families.is_gone(program));
        assert!(
            table.parents.contains_key(&1001),
            "another one's is left alone"
        );
    }

    #[test]
    fn what_changes_during_a_walk_is_seen_by_the_next_one() {
        let program = Uuid::new_v4();
        let mut table = Processes::of([(10, 1), (11, 10), (1000, 1)]);
        let mut families = Families::default();
        families.end(program, Some(10), Signal::HUP);
        assert!(!families.walk(&mut table, 1));
        families.head_has_ended(program);
        walk(&mut families, &mut table, 1);
        assert!(families.has_work() && !families.is_gone(program));
        walk(&mut families, &mut table, 1);
        assert!(families.is_gone(program) && !families.has_work());
        // One that was forgotten in the middle of a walk is not gone on with.
        families.end(program, Some(10), Signal::HUP);
        assert!(!families.walk(&mut table, 1));
        families.remove(program);
        walk(&mut families, &mut table, 1);
        assert!(families.owners.is_empty() && !families.has_work());
    }
}
