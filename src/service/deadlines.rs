//! Many deadlines with one timer: [`Deadlines`] finds what is due first, and an [`Alarm`] is the timer for it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::record::{Record, record, state};
use crate::{Context, Time, TimerId};

/// A queue with at most this number of keys is not searched for keys that are no longer pending.
const FEW: usize = 64;

/// The deadlines of pending keys, for example of requests. All keys have the same time limit, so the key that starts first is
/// due first. A key that is no longer pending may stay in the queue: the methods take `is_pending`, remove such keys from the
/// front, and search the rest when the queue has grown.
#[derive(Debug)]
pub(super) struct Deadlines<K> {
    /// The time from the start to the deadline. `None` is no deadline.
    limit: Option<Duration>,
    queue: VecDeque<(Time, K)>,
    /// The length at which the queue is searched for keys that are no longer pending.
    clean_at: usize,
}

impl<K: Copy> Deadlines<K> {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        Self {
            limit,
            queue: VecDeque::new(),
            clean_at: FEW,
        }
    }

    /// Adds a key that starts at `since`, which is not earlier than the starts before it. Returns its deadline.
    pub(super) fn push(
        &mut self,
        since: Time,
        key: K,
        is_pending: impl Fn(K) -> bool,
    ) -> Option<Time> {
        let deadline = since + self.limit?;
        self.skip(&is_pending);
        if self.queue.len() >= self.clean_at {
            self.queue.retain(|(_, key)| is_pending(*key));
            self.clean_at = 2 * self.queue.len() + FEW;
        }
        self.queue.push_back((deadline, key));
        Some(deadline)
    }

    /// Removes and returns the first key, if it is due.
    pub(super) fn pop(&mut self, now: Time, is_pending: impl Fn(K) -> bool) -> Option<K> {
        self.skip(is_pending);
        if self.first()? > now {
            return None;
        }
        self.queue.pop_front().map(|(_, key)| key)
    }

    /// The earliest deadline. Its key is known to be pending only if the last call was a [`Deadlines::pop`] that returned `None`.
    pub(super) fn first(&self) -> Option<Time> {
        self.queue.front().map(|(at, _)| *at)
    }

    fn skip(&mut self, is_pending: impl Fn(K) -> bool) {
        while let Some((_, key)) = self.queue.front()
            && !is_pending(*key)
        {
            self.queue.pop_front();
        }
    }
}

// The limit is a setting. The deadlines of keys that are pending already stay.
state!(impl<K: Record> Deadlines<K> {
    keep limit,
    queue,
    keep clean_at,
});

/// A timer that follows a deadline which changes.
#[derive(Debug, Default)]
pub(super) struct Alarm(Option<(Time, Option<TimerId>)>);

// It has no timer until [`Alarm::wake`].
record!(Alarm as Option<Time>, Self::deadline, |at| {
    Some(Self(at.map(|at| (at, None))))
});

impl Alarm {
    /// Sets the timer of an alarm that has none.
    pub(super) fn wake(&mut self, ctx: &mut Context) {
        if let Some((at, None)) = self.0 {
            self.0 = None;
            self.set(ctx, Some(at));
        }
    }

    /// When it goes off.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.0.map(|(at, _)| at)
    }

    /// Follows the deadline. `None` turns the alarm off.
    pub(super) fn set(&mut self, ctx: &mut Context, deadline: Option<Time>) {
        if self.deadline() == deadline {
            return;
        }
        if let Some((_, Some(timer))) = self.0.take() {
            ctx.cancel_timer(timer);
        }
        self.0 = deadline.map(|at| (at, Some(ctx.set_timer(at.since(ctx.now())))));
    }

    /// Makes the alarm go off at `at` at the latest. If it is set to an earlier time, it keeps that time and may go off before
    /// anything is due.
    pub(super) fn set_by(&mut self, ctx: &mut Context, at: Time) {
        if self.0.is_none_or(|(earlier, _)| at < earlier) {
            self.set(ctx, Some(at));
        }
    }

    /// Whether this timer, which has expired, is that of the alarm. The alarm is off then.
    pub(super) fn expire(&mut self, timer: TimerId) -> bool {
        self.0.take_if(|(_, own)| *own == Some(timer)).is_some()
    }

    /// The timer.
    pub(super) fn timer(&self) -> Option<TimerId> {
        self.0.and_then(|(_, timer)| timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(10);

    #[test]
    fn the_first_key_that_is_pending_is_due_first() {
        let at = Time::from_millis;
        let mut deadlines = Deadlines::new(Some(LIMIT));
        for (since, key) in [(0, 1), (1, 2), (5, 3)] {
            assert_eq!(
                deadlines.push(at(since), key, |_| true),
                Some(at(since + 10))
            );
        }
        assert_eq!(
            (deadlines.first(), deadlines.pop(at(9), |_| true)),
            (Some(at(10)), None)
        );
        assert_eq!(deadlines.pop(at(20), |key| key != 1), Some(2));
        assert_eq!(
            (deadlines.pop(at(14), |_| true), deadlines.first()),
            (None, Some(at(15)))
        );
        assert_eq!(deadlines.pop(at(15), |_| true), Some(3));
        assert_eq!(
            (deadlines.first(), deadlines.pop(at(99), |_| true)),
            (None, None)
        );
        assert_eq!(Deadlines::new(None).push(at(0), 1, |_| true), None);
    }

    /// The bug: a key that is pending for long kept all later ones, although they had ended.
    #[test]
    fn keys_behind_one_that_stays_pending_are_forgotten() {
        let mut deadlines = Deadlines::new(Some(LIMIT));
        for key in 0..10_000 {
            deadlines.push(Time::from_millis(key), key, |other| other == 0);
        }
        assert!(deadlines.queue.len() <= 2 * FEW);
    }
}
