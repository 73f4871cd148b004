//! Processes that a program has left behind in sessions of their own, such as the browsers of an MCP server. They are ended
//! a moment after the program has exited.

use std::collections::HashSet;
use std::time::Duration;

use rustix::process::Signal;
use uuid::Uuid;

use crate::log_event::log_event;
use crate::protocol::Time;
use crate::record::record;
use crate::server::core::earlier;
use crate::sys::{find_left_behind, signal_trees};

/// From the exit of a program to TERM for what it has left behind, which may be ending by itself.
const GRACE: Duration = Duration::from_secs(2);

/// From TERM to KILL.
const KILL_DELAY: Duration = Duration::from_secs(5);

/// The pause between two searches. A search lists all children of the server.
const PAUSE: Duration = Duration::from_secs(1);

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
}

record!(Exited {
    id,
    program,
    route,
    pid,
    at,
    searches,
    got_term,
});

/// The programs that have exited a moment ago.
#[derive(Debug, Default)]
pub(in crate::server) struct Leftovers {
    exited: Vec<Exited>,
    next: Option<Time>,
}

record!(Leftovers { exited, next });

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
        });
        self.next = earlier(self.next, Some(at));
    }

    /// When to call [`Leftovers::end_due`].
    pub(in crate::server) fn due(&self) -> Option<Time> {
        self.next
    }

    /// Signals what programs have left behind whose time has come.
    pub(in crate::server) fn end_due(&mut self, now: Time) {
        if self.next.is_none_or(|at| now < at) {
            return;
        }
        let exited = &mut self.exited;
        let due = exited.iter().filter(|one| now >= one.at);
        let due: HashSet<Uuid> = due.map(|one| one.id).collect();
        let (found, has_all) = find_left_behind(&due);
        exited.retain_mut(|one| {
            if now < one.at {
                return true;
            }
            one.searches += 1;
            one.at = now + PAUSE;
            if let Some(processes) = found.get(&one.id) {
                let signal = if one.got_term {
                    Signal::KILL
                } else {
                    Signal::TERM
                };
                let count = signal_trees(processes, signal);
                log_event!(
                    Info,
                    "ended processes that the program has left behind",
                    program = one.program.as_str(),
                    route = one.route.as_deref(),
                    pid = one.pid,
                    signal = if one.got_term { "KILL" } else { "TERM" },
                    processes = count,
                );
                if !std::mem::replace(&mut one.got_term, true) {
                    one.at = now + KILL_DELAY;
                }
            } else if has_all {
                return false;
            }
            one.searches < MOST_SEARCHES
        });
        let next = exited.iter().map(|one| one.at).min();
        self.next = next.map(|at| at.max(now + PAUSE));
    }
}
