//! What the pool and the sessions share: the callers, the calls that wait, and the limits, for all principals and for each of them.

use std::time::Duration;

use uuid::Uuid;

use super::http_error::HttpError;
use super::quota::{Full, Quota};
use crate::record::{record, state};
use crate::service::deadlines::{Alarm, Deadlines};
use crate::service::id_map::IdMap;
use crate::{ClientId, Context, Principal, TimerId};

/// How a message was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handled {
    Passed,
    /// It is for no session, or it is unknown for which.
    Dropped,
    /// A request from the process that is for no session. The process got an error.
    Refused,
}

/// A call whose answer is not complete. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Call {
    /// The request that the pool knows by this id.
    Pool(u64),
    /// A stream of a session.
    Session(Uuid, u32),
    /// A call to a process of an older revision, in this round.
    Translated(Uuid, u32),
}

record!(
    enum Call {
        Pool(id),
        Session(id, stream),
        Translated(id, round),
    }
);

/// The time limit of calls, with a timer for the first of them.
#[derive(Debug)]
pub(super) struct Delays {
    deadlines: Deadlines<Call>,
    alarm: Alarm,
}

state!(Delays {
    into deadlines,
    alarm,
});

impl Delays {
    /// Sets the timer again after the program of the server has replaced itself.
    fn wake(&mut self, ctx: &mut Context) {
        self.alarm.wake(ctx);
    }

    fn new(delay: Option<Duration>) -> Self {
        Self {
            deadlines: Deadlines::new(delay),
            alarm: Alarm::default(),
        }
    }

    /// Begins the delay of a call. Forgets calls that `is_pending` does not confirm.
    pub(super) fn push(
        &mut self,
        ctx: &mut Context,
        call: Call,
        is_pending: impl Fn(Call) -> bool,
    ) {
        if let Some(at) = self.deadlines.push(ctx.now(), call, is_pending) {
            self.alarm.set_by(ctx, at);
        }
    }

    /// The calls whose delay has ended, if the timer belongs to them.
    pub(super) fn expire(
        &mut self,
        ctx: &mut Context,
        timer: TimerId,
        is_pending: impl Fn(Call) -> bool,
    ) -> Option<Vec<Call>> {
        if !self.alarm.expire(timer) {
            return None;
        }
        let now = ctx.now();
        let due = std::iter::from_fn(|| self.deadlines.pop(now, &is_pending)).collect();
        self.alarm.set(ctx, self.deadlines.first());
        Some(due)
    }
}

/// What the service has done since its start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) sessions: u64,
    pub(super) processes: u64,
    pub(super) restarts: u64,
    pub(super) cancelled: u64,
    pub(super) replayed: u64,
    /// Messages of processes that have no recipient.
    pub(super) dropped: u64,
    /// Requests of processes that are for no session.
    pub(super) refused: u64,
}

record!(Counts {
    requests,
    sessions,
    processes,
    restarts,
    cancelled,
    replayed,
    dropped,
    refused,
});

impl Counts {
    pub(super) fn note(&mut self, handled: Handled) {
        match handled {
            Handled::Passed => {}
            Handled::Dropped => self.dropped += 1,
            Handled::Refused => self.refused += 1,
        }
    }
}

/// What the pool and the sessions share.
#[derive(Debug)]
pub(super) struct Hub {
    /// The call that each caller waits for.
    pub(super) callers: IdMap<ClientId, Call>,
    /// Requests that wait for an answer.
    pub(super) requests: Quota,
    /// Events that are kept for clients that were cut.
    pub(super) bytes: Quota,
    /// Sessions, with the processes of those that have ended.
    pub(super) sessions: Quota,
    /// Calls that become streams if they are not answered in time ([`ANSWER_TIME`]).
    pub(super) beginnings: Delays,
    /// Calls that fail if they are not answered in time.
    pub(super) timeouts: Delays,
    /// Calls whose client was asked for input, and which end if it does not come.
    pub(super) inputs: Delays,
    pub(super) counts: Counts,
}

state!(Hub {
    callers,
    into requests,
    into bytes,
    into sessions,
    into beginnings,
    into timeouts,
    into inputs,
    counts,
});

/// How long a request may take before its response becomes a stream. A faster answer is sent as JSON. Only a stream can be
/// resumed.
const ANSWER_TIME: Duration = Duration::from_millis(250);

impl Hub {
    /// Sets the timers again after the program of the server has replaced itself.
    pub(super) fn wake(&mut self, ctx: &mut Context) {
        let Self {
            beginnings,
            timeouts,
            inputs,
            ..
        } = self;
        for delays in [beginnings, timeouts, inputs] {
            delays.wake(ctx);
        }
    }

    pub(super) fn new(config: &super::McpConfig) -> Self {
        Self {
            callers: IdMap::default(),
            requests: Quota::new(config.max_requests),
            bytes: Quota::new(config.max_replay),
            sessions: Quota::new(config.max_sessions),
            beginnings: Delays::new(Some(ANSWER_TIME)),
            timeouts: Delays::new(config.request_timeout),
            inputs: Delays::new(config.input_timeout),
            counts: Counts::default(),
        }
    }

    /// Notes that a principal uses the service. `is_sole` says that the settings let no other one connect.
    pub(super) fn note(&mut self, principal: &Principal, is_sole: bool) {
        for quota in [&mut self.requests, &mut self.bytes, &mut self.sessions] {
            quota.note(principal, is_sole);
        }
    }

    /// Counts a request that waits for an answer.
    pub(super) fn take_request(&mut self, principal: &Principal) -> Result<(), HttpError> {
        self.requests
            .take(principal, 1)
            .map_err(|full| too_many("requests", full))?;
        self.counts.requests += 1;
        Ok(())
    }

    /// Counts the end of a request.
    pub(super) fn end_request(&mut self, principal: &Principal) {
        self.requests.give_back(principal, 1);
    }
}

/// 503 because a limit is reached.
pub(super) fn too_many(what: &str, full: Full) -> HttpError {
    HttpError::unavailable(match full {
        Full::All => format!("Too many {what}"),
        Full::Principal => format!("Too many {what} of this principal"),
    })
}
