//! How a bridge ends, and what happens when its connection is lost.

use std::time::Duration;

use super::output::Output;
use super::{Bridge, Link, Stage};
use crate::{ClientId, CloseCode, Context};

/// The delay before a new connection if the last one was unstable. It doubles with each further unstable one.
const FIRST_DELAY: Duration = Duration::from_millis(100);

/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_secs(10);

impl Bridge {
    /// Goes on with the end of the bridge after standard input has ended.
    pub(super) fn check_end(&mut self, ctx: &mut Context) {
        if self.stage != Stage::InputEnded {
            return;
        }
        let is_answered = self.config.json && !self.requests.has_waiting();
        match self.link {
            Link::None => return self.finish(ctx, None),
            Link::Waiting(_) | Link::Opening(_) | Link::Returning { .. }
                if self.was_open && is_answered && self.pending.is_empty() =>
            {
                return self.finish(ctx, None);
            }
            Link::Open { client, .. } if is_answered => return self.close(ctx, client),
            Link::Open { client, is_cut, .. } if !is_cut && ctx.is_congested(client) => return,
            Link::Waiting(_) | Link::Opening(_) | Link::Returning { .. } | Link::Open { .. } => {}
        }
        self.begin_linger(ctx);
    }

    fn begin_linger(&mut self, ctx: &mut Context) {
        if self.linger.is_none() {
            self.linger = Some(ctx.set_timer(self.config.linger));
        }
    }

    /// Leaves the server, after it has received what is pending.
    fn close(&mut self, ctx: &mut Context, client: ClientId) {
        self.stage = Stage::Closing;
        self.begin_linger(ctx);
        ctx.close(client, CloseCode::NORMAL, "");
    }

    pub(super) fn handle_linger_end(&mut self, ctx: &mut Context) {
        self.linger_expired = true;
        match self.link {
            Link::None => self.finish(ctx, None),
            Link::Waiting(_) | Link::Opening(_) | Link::Returning { .. } => {
                let failure = undelivered(self.pending.len() as u64);
                let failure = failure.or_else(|| self.last_error.take());
                self.fail(ctx, "there is no connection", failure);
            }
            Link::Open {
                client,
                is_cut: true,
                ..
            } => {
                let failure = undelivered(ctx.unconfirmed(client));
                self.fail(ctx, "the connection was cut", failure);
            }
            // If the CLOSE was sent before, its time limit applies.
            Link::Open { client, .. } if self.stage == Stage::InputEnded => {
                let count = self.requests.waiting_count();
                self.failure = unanswered(count, self.config.linger).filter(|_| self.config.json);
                self.close(ctx, client);
            }
            Link::Open { .. } => {}
        }
    }

    /// Stops as soon as everything is written to standard output.
    pub(super) fn finish(&mut self, ctx: &mut Context, failure: Option<String>) {
        if self.stage == Stage::Finished {
            return;
        }
        self.stage = Stage::Finished;
        self.failure = failure.or(self.failure.take());
        match self.link {
            Link::Opening(client) | Link::Returning { client, .. } | Link::Open { client, .. } => {
                ctx.close(client, CloseCode::NORMAL, "");
            }
            Link::Waiting(timer) => ctx.cancel_timer(timer),
            Link::None => {}
        }
        if let Some(input) = &mut self.input {
            input.close(ctx);
        }
        if self.output.as_ref().is_none_or(Output::is_empty) {
            ctx.stop();
        }
    }

    /// Ends after the connection has ended, or could not be opened. Requests that wait get an error.
    pub(super) fn fail(&mut self, ctx: &mut Context, reason: &str, failure: Option<String>) {
        for error in self.requests.handle_loss(reason) {
            self.answer(ctx, &error);
        }
        self.finish(ctx, failure);
    }

    /// The connection is lost for good, but another one can take its place.
    pub(super) fn handle_loss(&mut self, ctx: &mut Context, reason: &str, was_stable: bool) {
        let errors = self.forget_connection(ctx, reason);
        for error in &errors {
            self.answer(ctx, error);
        }
        if self.stage != Stage::Running {
            let failure = format!("the connection was lost: {reason}");
            return self.finish(ctx, Some(failure));
        }
        log::warn!("the connection was lost: {reason}");
        if self.requests.awaits_initialize() {
            self.link = Link::None;
        } else {
            self.reconnect(ctx, reason, was_stable);
        }
        self.resume_input(ctx);
    }

    /// Begins another connection: at once, or after a delay if the last one was unstable.
    fn reconnect(&mut self, ctx: &mut Context, reason: &str, was_stable: bool) {
        if was_stable {
            self.unstable = 0;
            self.unstable_since = None;
            return self.connect(ctx);
        }
        let since = *self.unstable_since.get_or_insert(ctx.now());
        if ctx.now().since(since) >= self.config.give_up {
            let failure = format!("the server keeps closing the connection: {reason}");
            return self.fail(ctx, reason, Some(failure));
        }
        let delay = (FIRST_DELAY * 2u32.pow(self.unstable.min(10))).min(LONGEST_DELAY);
        self.unstable += 1;
        self.link = Link::Waiting(ctx.set_timer(delay));
    }
}

/// The failure for requests that the server has not answered in time, if there are any.
pub(super) fn unanswered(count: usize, time: Duration) -> Option<String> {
    let requests = match count {
        0 => return None,
        1 => "request was",
        _ => "requests were",
    };
    Some(format!(
        "{count} {requests} not answered within {time:?} after the end of the input"
    ))
}

/// The failure for messages that could not be delivered, if there are any.
pub(super) fn undelivered(count: u64) -> Option<String> {
    match count {
        0 => None,
        1 => Some("1 message may not have been delivered: the connection is down".to_owned()),
        _ => Some(format!(
            "{count} messages may not have been delivered: the connection is down"
        )),
    }
}
