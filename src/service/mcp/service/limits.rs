//! The time limits of calls.

use uuid::Uuid;

use super::Mcp;
use crate::service::id_map::IdMap;
use crate::service::mcp::hub::{Call, Hub};
use crate::service::mcp::pool::Pool;
use crate::service::mcp::reply::Reply;
use crate::service::mcp::session::Session;
use crate::service::mcp::to_older::ToOlder;
use crate::{Context, TimerId};

/// The calls that wait, wherever they are.
pub(super) struct Waiting<'a> {
    pool: &'a Pool,
    sessions: &'a IdMap<Uuid, Session>,
    translated: &'a ToOlder<Reply>,
}

impl Waiting<'_> {
    /// Whether a call waits, and its stream has not begun.
    fn may_begin(&self, call: Call) -> bool {
        match call {
            Call::Pool(id) => self.pool.may_begin(id),
            Call::Session(id, stream) => {
                let session = self.sessions.get(&id);
                session.is_some_and(|session| session.may_begin(stream))
            }
            Call::Translated(id, round) => {
                let reply = self.translated.reply_in(id, round);
                reply.is_some_and(|reply| !reply.is_streaming())
            }
        }
    }

    pub(super) fn is_waiting(&self, call: Call) -> bool {
        match call {
            Call::Pool(id) => self.pool.is_waiting(id),
            Call::Session(id, stream) => {
                let session = self.sessions.get(&id);
                session.is_some_and(|session| session.is_waiting(stream))
            }
            Call::Translated(id, round) => self.translated.is_waiting(id, round),
        }
    }
}

/// What the end of a time limit means for a call.
#[derive(Clone, Copy, Debug)]
enum Limit {
    /// Its answer becomes a stream.
    Begin,
    TimeOut,
    /// Its client has not sent the input.
    Input,
}

impl Mcp {
    pub(super) fn split(&mut self) -> (&mut Hub, Waiting<'_>) {
        let waiting = Waiting {
            pool: &self.pool,
            sessions: &self.sessions,
            translated: &self.translated,
        };
        (&mut self.hub, waiting)
    }

    /// Begins the time limits of a call.
    pub(super) fn begin_limits(&mut self, ctx: &mut Context, call: Call) {
        let (hub, waiting) = self.split();
        hub.beginnings
            .push(ctx, call, |call| waiting.may_begin(call));
        hub.timeouts
            .push(ctx, call, |call| waiting.is_waiting(call));
    }

    /// Handles the timer of a time limit. Returns false if it belongs to something else.
    pub(super) fn expire_limits(&mut self, ctx: &mut Context, timer: TimerId) -> bool {
        let (hub, waiting) = self.split();
        let is_waiting = |call| waiting.is_waiting(call);
        let mut due = hub
            .beginnings
            .expire(ctx, timer, |call| waiting.may_begin(call))
            .map(|calls| (Limit::Begin, calls));
        for (limit, delays) in [
            (Limit::TimeOut, &mut hub.timeouts),
            (Limit::Input, &mut hub.inputs),
        ] {
            if due.is_none() {
                let calls = delays.expire(ctx, timer, is_waiting);
                due = calls.map(|calls| (limit, calls));
            }
        }
        let Some((limit, calls)) = due else {
            return false;
        };
        for call in calls {
            self.expire(ctx, limit, call);
        }
        true
    }

    fn expire(&mut self, ctx: &mut Context, limit: Limit, call: Call) {
        match (limit, call) {
            (Limit::Begin, Call::Pool(id)) => self.pool.begin_stream(ctx, id),
            (Limit::Begin, Call::Session(id, stream)) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.begin_stream(ctx, stream);
                }
            }
            (Limit::Begin, Call::Translated(id, _)) => {
                if let Some(reply) = self.translated.reply(id) {
                    reply.begin(ctx);
                }
            }
            (Limit::TimeOut, Call::Pool(id)) => self.pool.time_out(ctx, &mut self.hub, id),
            (Limit::TimeOut, Call::Session(id, stream)) => self.time_out(ctx, id, stream),
            (Limit::TimeOut, Call::Translated(id, _)) => {
                self.fail_translated(ctx, id, "Request timed out");
            }
            (Limit::Input, Call::Translated(id, _)) => self.end_translated(ctx, id),
            (Limit::Input, _) => {}
        }
    }
}
