//! Processes that a program has left behind in sessions of their own, such as the browsers of an MCP server. They are ended
//! a moment after the program has exited.

use std::time::Duration;

use rustix::process::Signal;
use uuid::Uuid;

use crate::log_event::log_event;
use crate::protocol::Time;
use crate::record::record;
use crate::server::core::earlier;
use crate::sys::{ProcessTrees, SystemProcessTable};

/// From the exit of a program to TERM for what it has left behind, which may be ending by itself.
const GRACE: Duration = Duration::from_secs(2);

/// From TERM to KILL.
const KILL_DELAY: Duration = Duration::from_secs(5);

/// The pause between two searches. A search lists all children of the server.
const PAUSE: Duration = Duration::from_secs(1);

/// The maximum number of processes that one turn of the loop inspects. Each takes about 100 microseconds.
const VISITS_PER_TURN: usize = 24;

/// The time until the search continues.
const NEXT_TURN: Duration = Duration::from_millis(1);

/// The number of searches after which an exited program is forgotten, even if some processes could not be looked at or ended.
const MOST_SEARCHES: u32 = 20;

/// A program that has exited.
#[derive(Debug)]
struct Exited {
    /// What the processes have in their environment.
    id: Uuid,
    program: String,
    route: Option<String>,
    pid: u32,
    /// When what it has left behind gets its next signal.
    at: Time,
    searches: u32,
    got_term: bool,
    /// Whether the present search looks for its processes.
    is_searched: bool,
}

record!(Exited {
    id,
    program,
    route,
    pid,
    at,
    searches,
    got_term,
    is_searched = false,
});

/// The programs that have exited a moment ago.
#[derive(Debug, Default)]
pub(in crate::server) struct Leftovers {
    exited: Vec<Exited>,
    next: Option<Time>,
    /// The processes that they have left behind.
    trees: ProcessTrees,
}

record!(Leftovers {
    exited,
    next,
    trees = ProcessTrees::default(),
});

impl Leftovers {
    /// A program has exited at `now`.
    pub(in crate::server) fn add(
        &mut self,
        now: Time,
        id: Uuid,
        (program, pid): (&str, u32),
        route: Option<String>,
    ) {
        let at = now + GRACE;
        self.exited.push(Exited {
            id,
            program: program.to_owned(),
            route,
            pid,
            at,
            searches: 0,
            got_term: false,
            is_searched: false,
        });
        self.next = earlier(self.next, Some(at));
    }

    /// When to call [`Leftovers::end_due`].
    pub(in crate::server) fn due(&self) -> Option<Time> {
        self.next
    }

    /// Signals what programs have left behind whose time has come, a few processes at a time.
    pub(in crate::server) fn end_due(&mut self, now: Time) {
        if self.next.is_none_or(|at| now < at) {
            return;
        }
        for one in &mut self.exited {
            if now >= one.at && !one.is_searched {
                one.is_searched = true;
                self.trees.signal(one.id, None, one.signal());
            }
        }
        self.trees.walk(&mut SystemProcessTable, VISITS_PER_TURN);
        if self.trees.has_work() {
            self.next = Some(now + NEXT_TURN);
            return;
        }
        let trees = &mut self.trees;
        self.exited.retain_mut(|one| {
            let keeps = !std::mem::take(&mut one.is_searched) || one.handle_search(now, trees);
            if !keeps {
                trees.remove(one.id);
            }
            keeps
        });
        let next = self.exited.iter().map(|one| one.at).min();
        self.next = next.map(|at| at.max(now + PAUSE));
    }
}

impl Exited {
    fn signal(&self) -> Signal {
        if self.got_term {
            Signal::KILL
        } else {
            Signal::TERM
        }
    }

    /// Handles the end of a search. Returns whether another one is needed.
    fn handle_search(&mut self, now: Time, trees: &ProcessTrees) -> bool {
        self.searches += 1;
        self.at = now + PAUSE;
        let count = trees.count(self.id);
        if count == 0 {
            return trees.has_unread() && self.searches < MOST_SEARCHES;
        }
        log_event!(
            Info,
            "ended processes that the program has left behind",
            program = self.program.as_str(),
            route = self.route.as_deref(),
            pid = self.pid,
            signal = if self.got_term { "KILL" } else { "TERM" },
            processes = count,
        );
        if !std::mem::replace(&mut self.got_term, true) {
            self.at = now + KILL_DELAY;
        }
        self.searches < MOST_SEARCHES
    }
}
