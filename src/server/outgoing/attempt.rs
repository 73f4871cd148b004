//! A connection that is not open yet, or that carries HTTP requests: the state of its current attempt, and when to make the next one.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Connect;
use super::error::ConnectError;
use crate::protocol::Time;
use crate::protocol::client::{ClientHandshake, Exchange, HandshakeError, HttpRequest};
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
    /// An HTTP request was sent instead, if necessary behind the TLS handshake, or its response is arriving.
    Exchange,
    /// The response is complete. The connection can carry another request.
    Idle,
}

/// An HTTP request, in place of the opening handshake.
#[derive(Debug)]
pub(crate) struct Requesting {
    pub(crate) request: HttpRequest,
    pub(crate) exchange: Exchange,
    /// Whether the end of the connection was the end of the response, which the service has not been told.
    pub(crate) is_ended: bool,
    /// Whether the service knows that the connection has ended.
    pub(crate) is_told: bool,
    /// Whether the request had left this side when the connection failed, so that the server may act on it.
    pub(crate) was_sent: bool,
}

/// How long a connection is kept for another request. Common servers close an idle connection after five seconds, and a request that
/// crosses with this has an unknown outcome.
const IDLE: Duration = Duration::from_secs(3);

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
    /// When the current phase ends. `None` without a limit.
    until: Option<Time>,
    pub(crate) failures: Failures,
    /// The addresses that were not tried yet in this attempt.
    pub(crate) addresses: VecDeque<SocketAddr>,
    pub(crate) handshake: ClientHandshake,
    pub(crate) returning: Option<Returning>,
    pub(crate) requesting: Option<Box<Requesting>>,
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
            until: Some(now + delay),
            failures,
            addresses: VecDeque::new(),
            handshake: ClientHandshake::default(),
            returning,
            requesting: None,
            failure: None,
        }
    }

    /// Sends a request instead of the opening handshake.
    pub(crate) fn with_request(self, request: HttpRequest) -> Self {
        Self {
            requesting: Some(Box::new(Requesting::new(request))),
            ..self
        }
    }

    /// Begins an attempt.
    pub(crate) fn begin(&mut self, now: Time) {
        self.attempt = self.attempt.wrapping_add(1);
        self.began = now;
        self.until = Some(self.attempt_until());
        self.phase = Phase::Resolving;
        self.handshake = ClientHandshake::default();
        self.addresses.clear();
    }

    /// Begins to connect to an address. Each of several addresses gets a share of the attempt's time.
    pub(crate) fn begin_address(&mut self, now: Time) {
        let left = self.attempt_until().since(now);
        self.phase = Phase::Connecting;
        self.until = Some(now + left / (self.addresses.len() as u32 + 1));
    }

    /// The socket is connected.
    pub(crate) fn begin_handshake(&mut self, phase: Phase) {
        self.phase = phase;
        self.until = Some(self.attempt_until());
    }

    /// Waits for the next attempt.
    pub(crate) fn wait(&mut self, now: Time, delay: Duration) {
        self.phase = Phase::Waiting;
        self.until = Some(now + delay);
        self.addresses.clear();
    }

    fn attempt_until(&self) -> Time {
        self.began + self.connect.timeout
    }

    /// When the current phase ends. `None` means never.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.until
    }

    /// The request whose response is awaited, or was the last one.
    pub(crate) fn response(&mut self) -> Option<&mut Requesting> {
        let is_sent = matches!(self.phase, Phase::Exchange | Phase::Idle);
        self.requesting.as_deref_mut().filter(|_| is_sent)
    }

    /// Begins another request on a connection that is idle. Returns whether it is.
    pub(crate) fn request_again(&mut self, now: Time, request: HttpRequest) -> bool {
        let is_idle = self.phase == Phase::Idle && self.failure.is_none();
        if is_idle {
            self.began = now;
            self.requesting = Some(Box::new(Requesting::new(request)));
        }
        is_idle
    }

    /// Writes the request.
    pub(crate) fn write_request(&mut self, out: &mut Vec<u8>) {
        self.begin_handshake(Phase::Exchange);
        if let Some(requesting) = &self.requesting {
            self.connect.write_request(&requesting.request, out);
        }
    }

    /// The head of the response has arrived. Its body may take any time, as a stream of events does.
    pub(crate) fn begin_body(&mut self) {
        self.until = None;
    }

    /// The response is complete, and the connection waits for another request.
    pub(crate) fn begin_idle(&mut self, now: Time) {
        self.phase = Phase::Idle;
        self.until = Some(now + IDLE);
    }

    /// A time limit of the request has passed. Until the request is written, the server must take some of it within the limit of an
    /// attempt. Then the head of the response must arrive in the time that the request gives it. Returns whether it goes on.
    pub(crate) fn extend(&mut self, now: Time, is_written: bool, has_progressed: bool) -> bool {
        let patience = self
            .requesting
            .as_ref()
            .and_then(|one| one.request.patience());
        self.until = match (is_written, patience) {
            (false, _) if !has_progressed => return false,
            (false, _) => Some(now + self.connect.timeout),
            (true, Some(patience)) if self.began + patience <= now => return false,
            (true, patience) => patience.map(|patience| self.began + patience),
        };
        true
    }

    /// Whether the attempt has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Records why the attempt has failed. The first reason stands.
    pub(crate) fn fail(&mut self, error: ConnectError) {
        self.failure.get_or_insert(error);
    }

    /// The error of a connection that has ended before the attempt has succeeded.
    pub(crate) fn lost(&self, why: &str) -> ConnectError {
        let place = match self.phase {
            Phase::Exchange | Phase::Idle => "the connection was cut",
            _ => "the connection ended during the handshake",
        };
        ConnectError::Lost(format!("{place}: {why}"))
    }

    /// Takes the reason of the failure.
    pub(crate) fn take_failure(&mut self) -> Option<ConnectError> {
        self.failure.take()
    }

    /// The error of an attempt whose connection has ended. If the server has begun to refuse the handshake, that is the
    /// error.
    pub(crate) fn end_of_input(&mut self, otherwise: ConnectError) -> ConnectError {
        if self.response().is_some() {
            return otherwise;
        }
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
        // A request that the server may have received is not repeated here: only the service knows whether that is right.
        let was_sent = self
            .requesting
            .as_ref()
            .is_some_and(|one| one.was_sent || one.exchange.is_over());
        if !error.is_retryable() || was_sent || !(retry.first || self.returning.is_some()) {
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

impl Requesting {
    fn new(request: HttpRequest) -> Self {
        Self {
            request,
            exchange: Exchange::default(),
            is_ended: false,
            is_told: false,
            was_sent: false,
        }
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
        assert_eq!(outgoing.deadline(), Some(at(5000)));
        outgoing.begin_handshake(Phase::Handshake);
        assert_eq!(outgoing.deadline(), Some(at(9000)));
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
