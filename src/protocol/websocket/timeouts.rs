//! The time limits of an open connection: PINGs, the idle timeout, the end of input, and the message rate.

use std::num::NonZeroU32;
use std::time::Duration;

use super::cold::{HalfClosed, Probe};
use super::{State, WebSocket};
use crate::protocol::{Cause, CloseReason, OpCode, Time, Timeout, Timeouts};

impl WebSocket {
    /// Records that bytes arrived from the peer. Returns true if a PONG was awaited, so that the deadline changes.
    pub fn handle_sign_of_life(&mut self, now: Time) -> bool {
        self.heard_at = now.as_millis() as u32;
        !std::mem::replace(&mut self.heard, true)
    }

    /// The time since the last bytes arrived from the peer, at most 49 days.
    pub fn silence(&self, now: Time) -> Duration {
        since(self.heard_at, now)
    }

    /// How long ago the last PING was sent, and how long ago the last PONG arrived, each at most 49 days; `None` if there was none.
    pub fn heartbeat(&self, now: Time) -> [Option<Duration>; 2] {
        [self.pinged_at, self.ponged_at].map(|at| (at > 0).then(|| since(at, now)))
    }

    /// Writes a PING that carries `sent`, the number of data messages sent so far, in decimal digits. The PONG returns
    /// it; see [`WebSocket::take_confirmed`]. Does nothing unless the connection is open. The time limits do not change.
    pub fn ping(&mut self, now: Time, sent: u64, out: &mut Vec<u8>) {
        if self.state == State::Open {
            self.counts = true;
            self.append_ping(now, Some(sent), out);
        }
    }

    /// The number of data messages that the peer's latest PONG confirms, if one has arrived since the last call. The
    /// number is what the peer sent: check it.
    pub fn take_confirmed(&mut self) -> Option<u64> {
        let confirmed = self.cold.as_deref_mut()?.confirmed.take();
        self.shrink();
        confirmed
    }

    /// Records that a data message was sent. [`WebSocket::receive`] records messages that it returns.
    #[inline]
    pub fn handle_message(&mut self, now: Time) {
        self.last_message = now;
    }

    /// Counts messages against a limit of `rate` messages per second. Returns true if they exceed the limit.
    ///
    /// This is the generic cell rate algorithm with a burst of one second's messages.
    pub fn is_over_rate(&mut self, rate: NonZeroU32, count: u32, now: Time) -> bool {
        let now = now.as_millis() * 1000;
        let cold = self.cold.get_or_insert_default();
        let time = u64::from(count) * 1_000_000 / u64::from(rate.get());
        cold.due = cold.due.max(now) + time;
        cold.due - now > 1_000_000
    }

    /// Restarts the idle timeout and cancels an awaited PONG, because the caller did not read from the peer.
    pub fn excuse_silence(&mut self, now: Time) {
        if self.state == State::Open {
            self.last_message = now;
            self.heard = true;
        }
    }

    /// Restarts the current time limit, because the peer has accepted output. A missing PONG is still awaited: the PING
    /// may be queued behind that output.
    pub fn handle_progress(&mut self, now: Time) {
        match self.state {
            State::Open => self.pinged = now,
            State::Closing | State::Closed => self.since = now,
        }
        if let Some(cold) = &mut self.cold {
            if let Some(half_closed) = &mut cold.half_closed {
                half_closed.since = now;
            }
            if let Some(probe) = &mut cold.probe {
                probe.until = now + probe.patience;
            }
        }
    }

    /// Sends a PING now, as [`WebSocket::ping`] does, and awaits a sign of life for `patience` at most. If one is already
    /// awaited in this way, does nothing.
    pub fn probe(&mut self, now: Time, patience: Duration, sent: Option<u64>, out: &mut Vec<u8>) {
        if self.state != State::Open || self.is_half_closed() || self.awaited_probe().is_some() {
            return;
        }
        self.append_ping(now, sent, out);
        // If a PONG was awaited before, its time limit goes on.
        if std::mem::replace(&mut self.heard, false) {
            self.pinged = now;
        }
        let until = now + patience;
        self.cold.get_or_insert_default().probe = Some(Probe { until, patience });
    }

    /// The probe, if nothing has arrived since.
    fn awaited_probe(&self) -> Option<Probe> {
        self.cold.as_ref()?.probe.filter(|_| !self.heard)
    }

    fn append_ping(&mut self, now: Time, sent: Option<u64>, out: &mut Vec<u8>) {
        self.counts |= sent.is_some();
        self.pinged_at = (now.as_millis() as u32).max(1);
        let sent = sent.map_or(String::new(), |sent| sent.to_string());
        self.append_control(OpCode::Ping, sent.as_bytes(), out);
    }

    /// Records that the peer has half-closed an open connection. PINGs stop, and the connection is kept until the peer
    /// accepts no output for `patience`.
    ///
    /// `owed` is the value of the caller's byte counter at which the peer has everything that was sent so far. See
    /// [`WebSocket::owed`].
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

    /// The value of `owed` that was passed to [`WebSocket::end_input`], if the peer has half-closed the connection.
    pub fn owed(&self) -> Option<u64> {
        self.half_closed().map(|half_closed| half_closed.owed)
    }

    /// Whether the peer has half-closed the connection.
    pub fn is_half_closed(&self) -> bool {
        self.half_closed().is_some()
    }

    fn half_closed(&self) -> Option<HalfClosed> {
        self.cold.as_ref()?.half_closed
    }

    /// Restarts the time until the next PING and cancels an awaited PONG, for example after the machine was suspended.
    pub fn restart_ping_window(&mut self, now: Time) {
        self.pinged = now;
        self.heard = true;
    }

    /// How long a connection that is not open may last without progress. A peer that has half-closed it has done nothing wrong, so it
    /// may pause as long as the peer of an open connection before it takes the rest of its output.
    fn end_limit(&self, timeouts: &Timeouts) -> Option<Duration> {
        let is_half_closed = |reason: &CloseReason| reason.cause == Cause::Eof;
        let pause = timeouts
            .ping_timeout
            .filter(|_| self.close_reason().is_some_and(is_half_closed));
        timeouts
            .close
            .map(|close| close.max(pause.unwrap_or(close)))
    }

    /// When to call [`WebSocket::handle_timeout`], if at all.
    pub fn deadline(&self, timeouts: &Timeouts) -> Option<Time> {
        let after =
            |start: Time, duration: Option<Duration>| duration.map(|duration| start + duration);
        if self.state != State::Open {
            return after(self.since, self.end_limit(timeouts));
        }
        if let Some(half_closed) = self.half_closed() {
            return Some(half_closed.since + half_closed.patience);
        }
        let ping = if self.heard {
            timeouts.ping_interval
        } else {
            timeouts.ping_timeout
        };
        let deadlines = [
            after(self.pinged, ping),
            after(self.last_message, timeouts.idle),
            self.awaited_probe().map(|probe| probe.until),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Handles a deadline that has passed. A PING is written to `out`. It carries `sent`, as [`WebSocket::ping`] does,
    /// or nothing.
    pub fn handle_timeout(
        &mut self,
        now: Time,
        timeouts: &Timeouts,
        sent: Option<u64>,
        out: &mut Vec<u8>,
    ) -> Timeout {
        if let Some(cold) = &mut self.cold
            && cold.due <= now.as_millis() * 1000
        {
            // The full burst is available again, so the rate limit needs no state.
            cold.due = 0;
            self.shrink();
        }
        let passed = |start: Time, duration: Option<Duration>| {
            duration.is_some_and(|duration| now >= start + duration)
        };
        if self.state != State::Open {
            // The close reason was recorded earlier, and this one does not replace it.
            return if passed(self.since, self.end_limit(timeouts)) {
                Timeout::Gone(CloseReason::eof())
            } else {
                Timeout::Continue
            };
        }
        if let Some(half_closed) = self.half_closed() {
            return if now >= half_closed.since + half_closed.patience {
                Timeout::Gone(CloseReason::eof())
            } else {
                Timeout::Continue
            };
        }
        let is_gone = self.awaited_probe().is_some_and(|probe| now >= probe.until);
        if is_gone || (!self.heard && passed(self.pinged, timeouts.ping_timeout)) {
            return Timeout::Gone(CloseReason::ping_timeout());
        }
        if passed(self.last_message, timeouts.idle) {
            return Timeout::Idle;
        }
        if self.heard && passed(self.pinged, timeouts.ping_interval) {
            self.append_ping(now, sent, out);
            if let Some(cold) = &mut self.cold {
                cold.probe = None;
            }
            self.shrink();
            self.pinged = now;
            // Without a ping timeout, the PING only keeps proxies awake and no PONG is awaited.
            self.heard = timeouts.ping_timeout.is_none();
        }
        Timeout::Continue
    }
}

/// The time since the low bits of a time in milliseconds.
fn since(at: u32, now: Time) -> Duration {
    Duration::from_millis((now.as_millis() as u32).wrapping_sub(at).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Input, Limits, Shared};

    /// The bug: a connection that a NAT had forgotten was noticed after 30 seconds.
    #[test]
    fn a_probe_awaits_a_sign_of_life_for_a_shorter_time() {
        let at = Time::from_millis;
        let timeouts = Timeouts::default();
        let patience = Duration::from_secs(4);
        let new = || WebSocket::opened(at(0), None);
        let is_gone = |websocket: &mut WebSocket, now| {
            let step = websocket.handle_timeout(at(now), &timeouts, None, &mut Vec::new());
            matches!(step, Timeout::Gone(_))
        };
        let mut websocket = new();
        let mut out = Vec::new();
        websocket.probe(at(5000), patience, None, &mut out);
        assert_eq!(out, [0x89, 0]);
        // A second one does not extend the time.
        websocket.probe(at(6000), patience, None, &mut out);
        assert_eq!(out.len(), 2);
        assert_eq!(websocket.deadline(&timeouts), Some(at(9000)));
        assert!(!is_gone(&mut websocket, 8999));
        assert!(is_gone(&mut websocket, 9000));

        // After any sign of life, the usual limits apply again.
        let mut websocket = new();
        websocket.probe(at(5000), patience, None, &mut out);
        assert!(websocket.handle_sign_of_life(at(8000)));
        assert_eq!(websocket.deadline(&timeouts), Some(at(25_000)));
        assert!(!is_gone(&mut websocket, 25_000), "it sends the next PING");
        assert_eq!(websocket.deadline(&timeouts), Some(at(45_000)));
        assert!(websocket.cold.is_none(), "the state is freed");

        // A PING that was sent before has its own limit.
        let mut websocket = new();
        assert!(!is_gone(&mut websocket, 20_000));
        websocket.probe(at(39_000), patience, None, &mut out);
        assert_eq!(websocket.deadline(&timeouts), Some(at(40_000)));
        // The peer takes output, so that the PONG may be late.
        websocket.handle_progress(at(40_000));
        assert_eq!(websocket.deadline(&timeouts), Some(at(44_000)));
    }

    #[test]
    fn the_last_ping_and_the_last_pong_are_known() {
        let at = Time::from_millis;
        let seconds = |count: u64| Some(Duration::from_secs(count));
        let (timeouts, mut out) = (Timeouts::default(), Vec::new());
        let mut shared = Shared::new(Limits::default(), None);
        let mut websocket = WebSocket::opened(at(0), None);
        assert_eq!(websocket.heartbeat(at(19_000)), [None, None]);
        websocket.handle_timeout(at(20_000), &timeouts, None, &mut out);
        assert_eq!(websocket.heartbeat(at(21_000)), [seconds(1), None]);
        // Output that the peer takes is no PING.
        websocket.handle_progress(at(22_000));
        let mut pong = *b"\x8a\x80\0\0\0\0";
        let mut input = Input::new(&mut pong);
        assert!(
            websocket
                .receive(at(23_000), &mut input, &mut shared, &mut out)
                .is_none()
        );
        assert_eq!(websocket.heartbeat(at(30_000)), [seconds(10), seconds(7)]);
        websocket.ping(at(31_000), 7, &mut out);
        assert_eq!(websocket.heartbeat(at(31_000)), [seconds(0), seconds(8)]);
    }

    #[test]
    fn the_rate_limit_allows_a_burst_of_one_second() {
        let rate = NonZeroU32::new(10).expect("not zero");
        let mut websocket = WebSocket::opened(Time::default(), None);
        let at = Time::from_millis;
        for _ in 0..10 {
            assert!(!websocket.is_over_rate(rate, 1, at(5000)));
        }
        assert!(
            websocket.is_over_rate(rate, 1, at(5000)),
            "the eleventh message at the same time"
        );
        assert!(
            !websocket.is_over_rate(rate, 1, at(5300)),
            "300 ms make room for three messages, of which two are used up"
        );
        websocket.handle_timeout(at(6199), &Timeouts::default(), None, &mut Vec::new());
        assert!(websocket.cold.is_some(), "the messages still count");
        websocket.handle_timeout(at(6200), &Timeouts::default(), None, &mut Vec::new());
        assert!(websocket.cold.is_none(), "the state is freed");
    }
}
