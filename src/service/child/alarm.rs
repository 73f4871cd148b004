//! One timer for the earliest of several deadlines.

use crate::{Context, Time, TimerId};

/// A timer that follows a deadline which changes.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Option<(Time, TimerId)>);

impl Alarm {
    /// Follows the deadline. `None` turns the alarm off.
    pub(crate) fn set(&mut self, ctx: &mut Context, deadline: Option<Time>) {
        if self.0.map(|(at, _)| at) == deadline {
            return;
        }
        if let Some((_, timer)) = self.0.take() {
            ctx.cancel_timer(timer);
        }
        self.0 = deadline.map(|at| (at, ctx.set_timer(at.since(ctx.now()))));
    }

    /// Makes the alarm go off at `at`, unless it does so earlier. It may then be early for every deadline that is left.
    pub(crate) fn set_by(&mut self, ctx: &mut Context, at: Time) {
        if self.0.is_none_or(|(earlier, _)| at < earlier) {
            self.set(ctx, Some(at));
        }
    }

    /// Whether this timer, which has expired, is that of the alarm. The alarm is off then.
    pub(crate) fn expire(&mut self, timer: TimerId) -> bool {
        self.0.take_if(|(_, own)| *own == timer).is_some()
    }

    /// The timer.
    pub(crate) fn timer(&self) -> Option<TimerId> {
        self.0.map(|(_, timer)| timer)
    }
}
