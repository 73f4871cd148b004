//! A connection that is not open yet: the state of its current attempt, and when to make the next one.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Connect;
use super::error::ConnectError;
use crate::protocol::Time;
use crate::protocol::client::{ClientHandshake, HandshakeError};
use crate::server::id::ClientId;

/// The delay before the second attempt. It doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_millis(100);

/// The longest delay, unless the server asks for more with Retry-After.
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// The longest Retry-After that is honored.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);

/// The step of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The next attempt begins when [`Outgoing::deadline`] has passed.
    Waiting,
    /// The host name is being resolved.
    Resolving,
    /// The socket is being connected.
    Connecting,
    /// The proxy was asked for a tunnel.
    Tunnel,
    /// The server was asked to upgrade, if necessary behind the TLS handshake.
    Handshake,
}

/// The client that comes back on a new connection.
#[derive(Clone, Debug)]
pub(crate) struct Returning {
    pub(crate) target: ClientId,
    /// The value of the field Outrigger-Resume.
    pub(crate) field: String,
}

/// The failed attempts since the last stable connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Failures {
    count: u32,
    /// The time spent in attempts and between them, without the time during which the machine slept.
    spent: Duration,
}

impl Failures {
    /// The delay after a short connection.
    pub(crate) fn first_delay(random: u16) -> Duration {
        spread(FIRST_DELAY, random)
    }

    /// Counts a failed attempt, which took `took`. Returns the delay before the next one, which is at least `least`, or
    /// `None` to give up. `random` is any number, which spreads the attempts of many clients.
    pub(crate) fn next_delay(
        &mut self,
        took: Duration,
        least: Duration,
        give_up: Duration,
        random: u16,
    ) -> Option<Duration> {
        let doublings = self.count.min(10);
        let most = (FIRST_DELAY * 2u32.pow(doublings)).min(LONGEST_DELAY);
        let delay = spread(most, random);
        let delay = delay.max(least);
        self.count += 1;
        self.spent += took;
        if self.spent >= give_up {
            return None;
        }
        let delay = delay.min(give_up - self.spent);
        self.spent += delay;
        Some(delay)
    }
}

/// How long to look for the node that has a connection, if only other nodes answer.
const ELSEWHERE: Duration = Duration::from_secs(5 * 60);

/// A delay from half of `most` to `most`.
fn spread(most: Duration, random: u16) -> Duration {
    most.mul_f64(0.5 + f64::from(random) / f64::from(u16::MAX) / 2.0)
}

/// An outgoing connection that is not open yet.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) connect: Arc<Connect>,
    pub(crate) phase: Phase,
    /// The number of the attempt.
    pub(crate) attempt: u32,
    /// When the attempt began.
    pub(crate) began: Time,
    /// When the current phase ends.
    until: Time,
    pub(crate) failures: Failures,
    /// The addresses that were not tried yet in this attempt.
    pub(crate) addresses: VecDeque<SocketAddr>,
    pub(crate) handshake: ClientHandshake,
    pub(crate) returning: Option<Returning>,
    /// Why the attempt has failed.
    failure: Option<ConnectError>,
}

impl Outgoing {
    /// The first attempt begins after `delay`.
    pub(crate) fn new(
        connect: Arc<Connect>,
        returning: Option<Returning>,
        failures: Failures,
        now: Time,
        delay: Duration,
    ) -> Self {
        Self {
            connect,
            phase: Phase::Waiting,
            attempt: 0,
            began: now,
            until: now + delay,
            failures,
            addresses: VecDeque::new(),
            handshake: ClientHandshake::default(),
            returning,
            failure: None,
        }
    }

    /// Begins an attempt.
    pub(crate) fn begin(&mut self, now: Time) {
        self.attempt = self.attempt.wrapping_add(1);
        self.began = now;
        self.until = self.attempt_until();
        self.phase = Phase::Resolving;
        self.handshake = ClientHandshake::default();
        self.addresses.clear();
    }

    /// Begins to connect to an address. Each of several addresses gets a share of the attempt's time.
    pub(crate) fn begin_address(&mut self, now: Time) {
        let left = self.attempt_until().since(now);
        self.phase = Phase::Connecting;
        self.until = now + left / (self.addresses.len() as u32 + 1);
    }

    /// The socket is connected.
    pub(crate) fn begin_handshake(&mut self, phase: Phase) {
        self.phase = phase;
        self.until = self.attempt_until();
    }

    /// Waits for the next attempt.
    pub(crate) fn wait(&mut self, now: Time, delay: Duration) {
        self.phase = Phase::Waiting;
        self.until = now + delay;
        self.addresses.clear();
    }

    fn attempt_until(&self) -> Time {
        self.began + self.connect.timeout
    }

    /// When the current phase ends.
    pub(crate) fn deadline(&self) -> Time {
        self.until
    }

    /// Records why the attempt has failed. The first reason stands.
    pub(crate) fn fail(&mut self, error: ConnectError) {
        self.failure.get_or_insert(error);
    }

    /// Takes the reason of the failure.
    pub(crate) fn take_failure(&mut self) -> Option<ConnectError> {
        self.failure.take()
    }

    /// The error of an attempt whose connection has ended. If the server has begun to refuse the handshake, that is the
    /// error.
    pub(crate) fn end_of_input(&mut self, otherwise: ConnectError) -> ConnectError {
        match self.handshake.handle_end() {
            HandshakeError::Eof => otherwise,
            refused => ConnectError::Handshake(refused),
        }
    }

    /// The delay before the next attempt after `error`. `None` if no further attempt is made.
    pub(crate) fn next_delay(
        &mut self,
        error: &ConnectError,
        now: Time,
        random: u16,
    ) -> Option<Duration> {
        let retry = self.connect.retry?;
        if !error.is_retryable() || !(retry.first || self.returning.is_some()) {
            return None;
        }
        // A longer time shows that the machine slept.
        let took = now.since(self.began).min(self.connect.timeout);
        let asked = error.retry_after().unwrap_or_default();
        let least = asked.min(LONGEST_RETRY_AFTER);
        // The node that has the connection may be gone for good.
        let give_up = match error.status() {
            Some(421) => retry.give_up.min(ELSEWHERE),
            _ => retry.give_up,
        };
        self.failures.next_delay(took, least, give_up, random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_up_to_a_limit_until_the_time_is_spent() {
        let mut failures = Failures::default();
        let give_up = Duration::from_secs(60);
        let mut delays = Vec::new();
        while let Some(delay) =
            failures.next_delay(Duration::from_secs(1), Duration::ZERO, give_up, u16::MAX)
        {
            delays.push(delay.as_millis());
        }
        assert_eq!(
            delays,
            [
                100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000, 6300
            ]
        );
        let mut failures = Failures::default();
        let delay = failures.next_delay(Duration::ZERO, Duration::ZERO, give_up, 0);
        assert_eq!(delay, Some(FIRST_DELAY / 2));
        // The bug: a server that asked for five minutes again and again was asked for a day.
        let asked = Duration::from_secs(50);
        assert_eq!(
            failures.next_delay(Duration::ZERO, asked, give_up, 0),
            Some(asked)
        );
        assert!(
            failures
                .next_delay(Duration::ZERO, asked, give_up, 0)
                .is_some()
        );
        assert_eq!(failures.next_delay(Duration::ZERO, asked, give_up, 0), None);
    }

    #[test]
    fn the_time_of_an_attempt_is_shared_by_its_addresses() {
        let connect =
            Connect::new("ws://h/".parse().expect("a URL")).with_timeout(Duration::from_secs(9));
        let at = Time::from_millis;
        let mut outgoing = Outgoing::new(
            Arc::new(connect),
            None,
            Failures::default(),
            at(0),
            Duration::ZERO,
        );
        outgoing.begin(at(0));
        outgoing.addresses.push_back(([127, 0, 0, 1], 80).into());
        outgoing.begin_address(at(1000));
        assert_eq!(outgoing.deadline(), at(5000));
        outgoing.begin_handshake(Phase::Handshake);
        assert_eq!(outgoing.deadline(), at(9000));
    }

    #[test]
    fn sleep_does_not_use_up_the_time_for_retries() {
        let retry = crate::Retry::default().with_give_up(Duration::from_secs(100));
        let connect = Connect::new("ws://h/".parse().expect("a URL")).with_retry(retry);
        let mut outgoing = Outgoing::new(
            Arc::new(connect),
            None,
            Failures::default(),
            Time::default(),
            Duration::ZERO,
        );
        let after = Time::from_millis(100_000_000);
        for _ in 0..3 {
            outgoing.began = Time::default();
            assert!(
                outgoing
                    .next_delay(&ConnectError::TimedOut, after, 0)
                    .is_some()
            );
        }
        assert!(
            outgoing
                .next_delay(&ConnectError::Cancelled, after, 0)
                .is_none()
        );
    }
}
