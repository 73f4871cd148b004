//! The processes of the endpoint: whose they are, and when they and their sessions end.

use std::ops::ControlFlow;
use std::time::Duration;

use uuid::Uuid;

use super::Mcp;
use crate::log_event::{Field, log_event};
use crate::service::child::{ChildEvent, ChildInput};
use crate::service::mcp::pool::{PoolChange, Support};
use crate::service::mcp::process::Process;
use crate::service::mcp::session::{Fate, Session};
use crate::{Context, Principal};

/// How often to look for sessions to end, at least.
const SWEEP: Duration = Duration::from_secs(15);

/// The owner of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// The slot of the pool.
    Pool(usize),
    Session(Uuid),
    /// No owner: the process is being stopped.
    Stopping(u64),
}

/// A process that has no owner and will exit.
#[derive(Debug)]
pub(super) struct StoppingProcess {
    pub(super) process: Box<Process>,
    /// The principal whose session it belonged to.
    pub(super) principal: Option<Principal>,
}

impl Mcp {
    /// Ends a session and stops its process.
    pub(super) fn end_session(&mut self, ctx: &mut Context, id: Uuid, why: &str) {
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        log_event!(
            Info,
            session = short(id),
            "ended",
            reason = Field::Bare(&why)
        );
        let (principal, process) = session.end(ctx, &mut self.hub);
        match process {
            Some(process) => self.keep_until_exit(Owner::Session(id), process, Some(principal)),
            None => {
                self.hub.sessions.give_back(&principal, 1);
                self.index.remove(Owner::Session(id));
            }
        }
    }

    /// Keeps a process that was told to stop until it has exited.
    fn keep_until_exit(
        &mut self,
        owner: Owner,
        process: Box<Process>,
        principal: Option<Principal>,
    ) {
        self.last_stopping += 1;
        let stopping = Owner::Stopping(self.last_stopping);
        self.index.rename(owner, stopping);
        self.index.set_timer(stopping, process.timer());
        let stopping = StoppingProcess { process, principal };
        self.stopping.insert(self.last_stopping, stopping);
    }

    pub(super) fn apply(&mut self, change: Option<PoolChange>) {
        match change {
            Some(PoolChange::Started(slot)) => self.note_start(Owner::Pool(slot)),
            Some(PoolChange::Stopping(slot, process)) => {
                self.keep_until_exit(Owner::Pool(slot), process, None);
            }
            None => {}
        }
    }

    /// The process of an owner.
    fn process(&self, owner: Owner) -> Option<&Process> {
        match owner {
            Owner::Pool(slot) => self.pool.process(slot),
            Owner::Session(id) => self.sessions.get(&id)?.process(),
            Owner::Stopping(number) => Some(&self.stopping.get(&number)?.process),
        }
    }

    /// A process was started: its events are passed on.
    pub(super) fn note_start(&mut self, owner: Owner) {
        if let Some(process) = self.process(owner) {
            let (sources, timer): (Vec<_>, _) = (process.sources().collect(), process.timer());
            self.index.add(owner, sources, timer);
        }
    }

    /// A process has handled an event, or was stopped: its timer may be another, and it may be gone.
    pub(super) fn note_change(&mut self, owner: Owner) {
        match self.process(owner).map(Process::timer) {
            Some(timer) => self.index.set_timer(owner, timer),
            None => self.index.remove(owner),
        }
    }

    /// Starts the other processes of the pool once the first has said what it supports.
    pub(super) fn complete_pool(&mut self, ctx: &mut Context) {
        self.pool.start_others(ctx);
    }

    /// Lets a process handle an event.
    pub(super) fn handle_process(&mut self, ctx: &mut Context, owner: Owner, input: ChildInput) {
        match owner {
            Owner::Pool(slot) => {
                let was_known = self.pool.support != Support::Unknown;
                let change = self.pool.handle(ctx, &mut self.hub, slot, input);
                self.apply(change);
                if !was_known && self.pool.support == Support::Stateless {
                    self.complete_pool(ctx);
                }
            }
            Owner::Session(id) => {
                let Some(session) = self.sessions.get_mut(&id) else {
                    return;
                };
                match session.handle(ctx, &mut self.hub, input) {
                    Fate::Lives => {}
                    Fate::Exited => self.end_session(ctx, id, "its process has exited"),
                    Fate::Refused => {
                        self.end_session(ctx, id, "its process has refused to initialize");
                    }
                }
            }
            Owner::Stopping(number) => {
                let Some(stopping) = self.stopping.get_mut(&number) else {
                    return;
                };
                let event = stopping
                    .process
                    .handle(ctx, input, |_, _| ControlFlow::Continue(()));
                if matches!(event, ChildEvent::Exited(_)) {
                    let principal = self
                        .stopping
                        .remove(&number)
                        .and_then(|gone| gone.principal);
                    if let Some(principal) = principal {
                        self.hub.sessions.give_back(&principal, 1);
                    }
                }
            }
        }
        self.note_change(owner);
    }

    /// Sets the timer that looks for sessions to end.
    pub(super) fn begin_sweep(&mut self, ctx: &mut Context) {
        if self.sweep.is_none() && !self.sessions.is_empty() {
            let idle = self.config.session_idle.unwrap_or(Duration::MAX);
            self.sweep = Some(ctx.set_timer(SWEEP.min(idle / 4)));
        }
    }

    /// Ends the sessions that have been idle for too long, and those of principals whose token was revoked.
    pub(super) fn end_unused(&mut self, ctx: &mut Context) {
        let (now, most) = (ctx.now(), self.config.session_idle);
        let tokens = &ctx.config().access.tokens;
        let reason = |session: &Session| match &session.principal {
            Principal::Named(name) if tokens.find(name).is_none() => Some("its token was revoked"),
            _ => {
                let idle = session.idle_since().map(|since| now.since(since));
                idle.zip(most)
                    .is_some_and(|(idle, most)| idle >= most)
                    .then_some("idle")
            }
        };
        let unused: Vec<(Uuid, &str)> = self
            .sessions
            .values()
            .filter_map(|session| Some((session.id, reason(session)?)))
            .collect();
        for (id, why) in unused {
            self.end_session(ctx, id, why);
        }
        self.begin_sweep(ctx);
    }

    /// The number of processes, including those that are being stopped.
    pub(super) fn process_count(&self) -> usize {
        let websocket = self.websocket.process_count();
        self.pool.process_count() + self.sessions.len() + self.stopping.len() + websocket
    }

    pub(super) fn pending(&self) -> usize {
        let in_sessions = self.sessions.values().map(Session::pending);
        self.pool.pending() + in_sessions.sum::<usize>()
    }
}

/// The start of a session's id, for the log. The whole id is a secret.
pub(super) fn short(id: Uuid) -> String {
    id.to_string()[..8].to_owned()
}
