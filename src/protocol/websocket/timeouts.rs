//! Signs of life, and what is done when they stay away.

use std::num::NonZeroU32;
use std::time::Duration;

use super::cold::HalfClosed;
use super::{State, WebSocket};
use crate::protocol::{CloseReason, OpCode, Time, Timeout, Timeouts, encode_frame};

impl WebSocket {
    /// Notes that bytes came from the peer: a sign of life. Returns whether one was being waited for, so that there is
    /// a new deadline.
    pub fn handle_sign_of_life(&mut self) -> bool {
        !std::mem::replace(&mut self.heard, true)
    }

    /// Notes that a data message went either way.
    pub fn handle_message(&mut self, now: Time) {
        self.last_message = now;
    }

    /// Counts a message against a limit of so many in a second, and says whether it is over: the generic cell rate
    /// algorithm with one second's worth of burst.
    pub fn is_over_rate(&mut self, rate: NonZeroU32, now: Time) -> bool {
        let now = now.as_millis() * 1000;
        let cold = self.cold.get_or_insert_default();
        cold.due = cold.due.max(now) + 1_000_000 / u64::from(rate.get());
        cold.due - now > 1_000_000
    }

    /// What the peer does cannot be seen at the moment: its time limits begin again, and no PONG is missed.
    pub fn excuse_silence(&mut self, now: Time) {
        if self.state == State::Open {
            self.last_message = now;
            self.heard = true;
        }
    }

    /// Restarts the time limit because the peer has taken output since it began. A missing PONG is still awaited, since
    /// the PING may be queued behind that output.
    pub fn handle_progress(&mut self, now: Time) {
        match self.state {
            State::Open => self.pinged = now,
            _ => self.since = now,
        }
        if let Some(cold) = &mut self.cold
            && let Some(half_closed) = &mut cold.half_closed
        {
            half_closed.since = now;
        }
    }

    /// Records that the peer has ended its direction of an open connection, and keeps it for this long without
    /// progress. No more signs of life can arrive. `owed` is the value of the caller's byte counter at which the peer
    /// has everything that was sent so far: see [`WebSocket::owed`].
    pub fn end_input(&mut self, now: Time, patience: Duration, owed: u64) {
        if self.state == State::Open {
            self.take_partial();
            self.cold.get_or_insert_default().half_closed = Some(HalfClosed {
                since: now,
                patience,
                owed,
            });
        }
    }

    /// What was given to [`WebSocket::end_input`], if the peer has ended its direction.
    pub fn owed(&self) -> Option<u64> {
        self.half_closed().map(|half_closed| half_closed.owed)
    }

    /// Whether the peer has ended its direction.
    pub fn is_half_closed(&self) -> bool {
        self.half_closed().is_some()
    }

    fn half_closed(&self) -> Option<HalfClosed> {
        self.cold.as_ref()?.half_closed
    }

    /// Gives the peer a fresh ping window, as after the machine was suspended.
    pub fn restart_ping_window(&mut self, now: Time) {
        self.pinged = now;
        self.heard = true;
    }

    /// When [`WebSocket::handle_timeout`] is to be called, if ever.
    pub fn deadline(&self, timeouts: &Timeouts) -> Option<Time> {
        let after =
            |start: Time, duration: Option<Duration>| duration.map(|duration| start + duration);
        match self.state {
            State::Open
                if let Some(HalfClosed {
                    since, patience, ..
                }) = self.half_closed() =>
            {
                Some(since + patience)
            }
            State::Open => {
                let ping = after(
                    self.pinged,
                    if self.heard {
                        timeouts.ping_interval
                    } else {
                        timeouts.ping_timeout
                    },
                );
                let idle = after(self.last_message, timeouts.idle);
                [ping, idle].into_iter().flatten().min()
            }
            State::Closing | State::Closed => after(self.since, timeouts.close),
        }
    }

    /// Does what the passed deadline asks for; a PING goes to `out`.
    pub fn handle_timeout(&mut self, now: Time, timeouts: &Timeouts, out: &mut Vec<u8>) -> Timeout {
        if let Some(cold) = &mut self.cold
            && cold.due <= now.as_millis() * 1000
        {
            // What came so long ago counts no more.
            cold.due = 0;
            self.shrink();
        }
        let passed = |start: Time, duration: Option<Duration>| {
            duration.is_some_and(|duration| now >= start + duration)
        };
        match self.state {
            State::Open
                if let Some(HalfClosed {
                    since, patience, ..
                }) = self.half_closed() =>
            {
                if now >= since + patience {
                    Timeout::Gone(CloseReason::eof())
                } else {
                    Timeout::Continue
                }
            }
            State::Open if !self.heard && passed(self.pinged, timeouts.ping_timeout) => {
                Timeout::Gone(CloseReason::ping_timeout())
            }
            State::Open if passed(self.last_message, timeouts.idle) => Timeout::Idle,
            State::Open if self.heard && passed(self.pinged, timeouts.ping_interval) => {
                encode_frame(OpCode::Ping, b"", out);
                self.pinged = now;
                // Without a ping timeout the PING only keeps proxies awake and nothing is waited for.
                self.heard = timeouts.ping_timeout.is_none();
                Timeout::Continue
            }
            State::Closing | State::Closed if passed(self.since, timeouts.close) => {
                // The close reason was recorded earlier, and this one does not replace it.
                Timeout::Gone(CloseReason::eof())
            }
            _ => Timeout::Continue,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_limit_lets_a_seconds_worth_through_and_then_one_by_one() {
        let rate = NonZeroU32::new(10).expect("not zero");
        let mut connection = WebSocket::opened(Time::default(), None);
        let at = Time::from_millis;
        for _ in 0..10 {
            assert!(!connection.is_over_rate(rate, at(5000)));
        }
        assert!(
            connection.is_over_rate(rate, at(5000)),
            "the eleventh in one instant"
        );
        assert!(
            !connection.is_over_rate(rate, at(5300)),
            "and again after the time of two"
        );
        connection.handle_timeout(at(6199), &Timeouts::default(), &mut Vec::new());
        assert!(connection.cold.is_some(), "what counts is kept");
        connection.handle_timeout(at(6200), &Timeouts::default(), &mut Vec::new());
        assert!(connection.cold.is_none(), "and then forgotten");
    }
}
