//! The processes of the endpoint: whose they are, and when they and their sessions end.

use std::ops::ControlFlow;
use std::time::Duration;

use uuid::Uuid;

use super::Mcp;
use crate::log_event::{Field, log_event};
use crate::service::child::ChildEvent;
use crate::service::mcp::pool::{PoolChange, Support};
use crate::service::mcp::process::{Input, Process};
use crate::service::mcp::session::{Fate, Session};
use crate::{Context, Principal, SourceId, TimerId};

/// How often to look for sessions to end, at least.
const SWEEP: Duration = Duration::from_secs(15);

/// The owner of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        let sources: Vec<SourceId> = session.sources().collect();
        let (principal, process) = session.end(ctx, &mut self.hub);
        match process {
            Some(process) => self.keep_until_exit(process, Some(principal), &sources),
            None => self.hub.sessions.give_back(&principal, 1),
        }
    }

    /// Keeps a process that was told to stop until it has exited.
    fn keep_until_exit(
        &mut self,
        process: Box<Process>,
        principal: Option<Principal>,
        sources: &[SourceId],
    ) {
        self.last_stopping += 1;
        let owner = Owner::Stopping(self.last_stopping);
        for source in sources {
            self.sources.insert(*source, owner);
        }
        let stopping = StoppingProcess { process, principal };
        self.stopping.insert(self.last_stopping, stopping);
    }

    pub(super) fn apply(&mut self, change: Option<PoolChange>) {
        match change {
            Some(PoolChange::Started(slot)) => {
                let sources = self.pool.sources(slot);
                self.sources
                    .extend(sources.map(|source| (source, Owner::Pool(slot))));
            }
            Some(PoolChange::Stopping(process)) => {
                let sources: Vec<SourceId> = process.sources().collect();
                self.keep_until_exit(process, None, &sources);
            }
            None => {}
        }
    }

    /// Starts the other processes of the pool once the first has said what it supports.
    pub(super) fn complete_pool(&mut self, ctx: &mut Context) {
        self.pool.start_others(ctx);
    }

    /// Lets a process handle an event.
    pub(super) fn handle_process(&mut self, ctx: &mut Context, owner: Owner, input: Input) {
        match owner {
            Owner::Pool(slot) => {
                let was_known = self.pool.support != Support::Unknown;
                let change = self.pool.handle(ctx, &mut self.hub, slot, input);
                self.apply(change);
                if !was_known && self.pool.support == Support::Stateless {
                    self.complete_pool(ctx);
                }
                self.forget_sources(owner, |service| service.pool.sources(slot).next().is_none());
            }
            Owner::Session(id) => {
                let Some(session) = self.sessions.get_mut(&id) else {
                    return;
                };
                match session.handle(ctx, &mut self.hub, input) {
                    Fate::Lives => {}
                    Fate::Exited => {
                        self.end_session(ctx, id, "its process has exited");
                        self.forget_sources(owner, |_| true);
                    }
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
                    self.forget_sources(owner, |_| true);
                }
            }
        }
    }

    /// Forgets the sources of a process that is gone.
    fn forget_sources(&mut self, owner: Owner, is_gone: impl Fn(&Self) -> bool) {
        if is_gone(self) {
            self.sources.retain(|_, other| *other != owner);
        }
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

    /// The owner of the process that has set a timer. Only processes that are being stopped set timers.
    pub(super) fn owner_of(&self, timer: TimerId) -> Option<Owner> {
        let mut stopping = self.stopping.iter();
        let stopped = stopping.find(|(_, stopping)| stopping.process.is_timer(timer));
        if let Some((number, _)) = stopped {
            return Some(Owner::Stopping(*number));
        }
        if let Some(slot) = self.pool.owner_of(timer) {
            return Some(Owner::Pool(slot));
        }
        // A session's process that has closed a stream is being stopped, too.
        let mut sessions = self.sessions.values();
        let session = sessions.find(|session| session.is_timer(timer))?;
        Some(Owner::Session(session.id))
    }
}

/// The start of a session's id, for the log. The whole id is a secret.
pub(super) fn short(id: Uuid) -> String {
    id.to_string()[..8].to_owned()
}
