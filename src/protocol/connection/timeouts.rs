//! Signs of life, and what is done when they stay away.

use std::num::NonZeroU32;
use std::time::Duration;

use super::rare::HalfClosed;
use super::{Connection, Phase};
use crate::protocol::{CloseReason, OpCode, Time, Timeouts, encode_frame};

/// What to do now that a deadline has passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// Nothing, or a PING was written: ask for the next deadline.
    Continue,
    /// The request took too long: refuse with 408.
    Handshake,
    /// No data message for too long: close with [`CloseReason::idle_timeout`], unless the service still waits.
    Idle,
    /// The connection is over: end it at once.
    Gone(CloseReason),
}

impl Connection {
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
        let rare = self.rare.get_or_insert_default();
        rare.due = rare.due.max(now) + 1_000_000 / u64::from(rate.get());
        rare.due - now > 1_000_000
    }

    /// What the peer does cannot be seen at the moment: its time limits begin again, and no PONG is missed.
    pub fn excuse_silence(&mut self, now: Time) {
        match self.phase {
            Phase::Handshaking | Phase::Body => self.since = now,
            Phase::Open => {
                self.last_message = now;
                self.heard = true;
            }
            _ => {}
        }
    }

    /// Restarts the time limit because the peer has taken output since it began. A missing PONG is still awaited, since
    /// the PING may be queued behind that output.
    pub fn handle_progress(&mut self, now: Time) {
        match self.phase {
            Phase::Open => self.pinged = now,
            _ => self.since = now,
        }
        if let Some(rare) = &mut self.rare
            && let Some(half_closed) = &mut rare.half_closed
        {
            half_closed.since = now;
        }
    }

    /// Records that the peer has ended its direction of an open connection, and keeps it for this long without
    /// progress. No more signs of life can arrive. `owed` is the value of the caller's byte counter at which the peer
    /// has everything that was sent so far: see [`Connection::owed`].
    pub fn end_input(&mut self, now: Time, patience: Duration, owed: u64) {
        if self.phase == Phase::Open {
            self.take_partial();
            self.rare.get_or_insert_default().half_closed = Some(HalfClosed {
                since: now,
                patience,
                owed,
            });
        }
    }

    /// What was given to [`Connection::end_input`], if the peer has ended its direction.
    pub fn owed(&self) -> Option<u64> {
        self.half_closed().map(|half_closed| half_closed.owed)
    }

    /// Whether the peer has ended its direction.
    pub fn is_half_closed(&self) -> bool {
        self.half_closed().is_some()
    }

    fn half_closed(&self) -> Option<HalfClosed> {
        self.rare.as_ref()?.half_closed
    }

    /// Gives the peer a fresh ping window, as after the machine was suspended.
    pub fn restart_ping_window(&mut self, now: Time) {
        self.pinged = now;
        self.heard = true;
    }

    /// When [`Connection::handle_timeout`] is to be called, if ever.
    pub fn deadline(&self, timeouts: &Timeouts) -> Option<Time> {
        let after =
            |start: Time, duration: Option<Duration>| duration.map(|duration| start + duration);
        match self.phase {
            Phase::Handshaking | Phase::Body => after(self.since, timeouts.handshake),
            Phase::Answering => None,
            Phase::Streaming => after(self.pinged, timeouts.ping_interval),
            Phase::Open if self.half_closed().is_some() => {
                self.half_closed().map(|half| half.since + half.patience)
            }
            Phase::Open => {
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
            Phase::Answered | Phase::Closing | Phase::Failed | Phase::Finished => {
                after(self.since, timeouts.close)
            }
        }
    }

    /// Does what the passed deadline asks for; a PING goes to `out`.
    pub fn handle_timeout(&mut self, now: Time, timeouts: &Timeouts, out: &mut Vec<u8>) -> Timeout {
        if let Some(rare) = &mut self.rare
            && rare.due <= now.as_millis() * 1000
        {
            // What came so long ago counts no more.
            rare.due = 0;
            self.tidy();
        }
        let passed = |start: Time, duration: Option<Duration>| {
            duration.is_some_and(|duration| now >= start + duration)
        };
        match self.phase {
            Phase::Handshaking | Phase::Body if passed(self.since, timeouts.handshake) => {
                // Who was answered and asks nothing more has done nothing wrong.
                if self.called && self.partial().is_none() {
                    return Timeout::Gone(CloseReason::eof());
                }
                Timeout::Handshake
            }
            Phase::Streaming if passed(self.pinged, timeouts.ping_interval) => {
                self.keep_stream_alive(now, out);
                Timeout::Continue
            }
            Phase::Open
                if self
                    .half_closed()
                    .is_some_and(|half| now >= half.since + half.patience) =>
            {
                Timeout::Gone(CloseReason::eof())
            }
            Phase::Open if self.half_closed().is_some() => Timeout::Continue,
            Phase::Open if !self.heard && passed(self.pinged, timeouts.ping_timeout) => {
                Timeout::Gone(CloseReason::ping_timeout())
            }
            Phase::Open if passed(self.last_message, timeouts.idle) => Timeout::Idle,
            Phase::Open if self.heard && passed(self.pinged, timeouts.ping_interval) => {
                encode_frame(OpCode::Ping, b"", out);
                self.pinged = now;
                // Without a ping timeout the PING only keeps proxies awake and nothing is waited for.
                self.heard = timeouts.ping_timeout.is_none();
                Timeout::Continue
            }
            Phase::Answered | Phase::Closing | Phase::Failed | Phase::Finished
                if passed(self.since, timeouts.close) =>
            {
                // The ending is known already (or is told to no one); this one does not replace it.
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
        let mut connection = Connection::new(Time::default());
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
        assert!(connection.rare.is_some(), "what counts is kept");
        connection.handle_timeout(at(6200), &Timeouts::default(), &mut Vec::new());
        assert!(connection.rare.is_none(), "and then forgotten");
    }
}
