//! Counts what the server does and what its connections carry, and measures how much of each turn of the loop goes to each service.
//! `server_metrics.rs` writes the counts.
//!
//! The additional clock reads happen only in turns that handle events of several services. A turn with the events of one service
//! needs none.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use super::exposition::Histogram;
use crate::protocol::{Cause, CloseReason, Rejection, StatusCode};
use crate::record::{Loader, Record, RecordError, Saver, record};
use crate::server::id::ServiceId;
use crate::sys::monotonic_nanos;

/// The names of [`Outcome`]s, in their order.
pub(super) const OUTCOMES: [&str; 4] = ["websocket", "http", "refused", "unused"];

/// The outcomes of TLS handshakes.
pub(super) const TLS_OUTCOMES: [&str; 3] = ["full", "resumed", "failed"];

/// How a connection was used, for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was upgraded to WebSocket.
    WebSocket,
    /// The client made an HTTP call.
    Http,
    /// Its request was rejected.
    Rejected,
    /// The client sent no complete request.
    Unused,
}

/// Counters since the start of the loop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    /// Accepted connections.
    pub(crate) accepted: u64,
    /// Responses by status, 101 included.
    pub(crate) responses: BTreeMap<u16, u64>,
    /// Rejected requests by reason.
    pub(crate) rejections: BTreeMap<Cow<'static, str>, u64>,
    /// Clients that only a service or only the registry had. Any such client is a bug.
    pub(crate) disagreements: u64,
    /// Requests with a wrong token.
    pub(crate) wrong_tokens: u64,
    /// Ended connections, in the order of [`OUTCOMES`].
    pub(super) outcomes: [u64; OUTCOMES.len()],
    /// Disconnected clients, in the order of [`Cause::ALL`].
    pub(crate) disconnects: PerCause<u64>,
    /// How long clients were connected, in the order of [`Cause::ALL`].
    pub(super) durations: PerCause<Histogram>,
    /// Clients that violated the protocol, by close code.
    pub(crate) violations: BTreeMap<u16, u64>,
    /// Clients that did not complete the closing handshake in time.
    pub(crate) close_timeouts: u64,
    /// Turns in which the read limit of a client was reached.
    pub(crate) turn_reads: u64,
    /// Turns in which the accept limit of a listener was reached.
    pub(crate) turn_accepts: u64,
    /// The traffic of ended connections.
    pub(crate) ended: Traffic,
    /// The traffic of ended WebSocket connections.
    pub(crate) ended_clients: Traffic,
    /// Messages of clients that services have refused because of their length.
    pub(crate) long_json: u64,
    /// Subscriptions that failed because a limit was reached.
    pub(crate) refused_subscriptions: u64,
    /// Messages that services have published to topics.
    pub(crate) published: u64,
    /// Messages of topics that a newer one has replaced before a client could take them.
    pub(crate) replaced: u64,
    /// Calls that services have received, except those of the console.
    pub(crate) service_calls: u64,
    /// Clients whose connection was cut and that could resume it.
    pub(crate) detaches: u64,
    /// Connections that clients have resumed.
    pub(crate) resumes: u64,
    /// Resumed connections whose old connection had not ended.
    pub(crate) takeovers: u64,
    /// Upgrades of the program that have taken place, and those that have failed.
    pub(crate) upgrades: u64,
    pub(crate) failed_upgrades: u64,
    /// How long the loop stood still for the last upgrade.
    pub(crate) upgrade_pause: Duration,
    /// TLS handshakes by outcome, in the order of [`TLS_OUTCOMES`].
    pub(super) tls_handshakes: [u64; TLS_OUTCOMES.len()],
    /// The durations of turns of the loop, without waiting, and the parts of them that services have taken. Turns that have
    /// answered a request of the console are left out.
    pub(crate) turns: ServiceTimes,
}

/// A value for each of [`Cause::ALL`].
#[derive(Clone, Debug, Default)]
pub(crate) struct PerCause<T>(pub(crate) [T; Cause::ALL.len()]);

/// An earlier version may have fewer causes, so new ones are at the end.
impl<T: Record + Default> Record for PerCause<T> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        self.0.save(to);
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        let mut values: Vec<T> = Record::restore(from)?;
        let missing = Cause::ALL.len().saturating_sub(values.len());
        values.extend(std::iter::repeat_with(T::default).take(missing));
        let wrong = |_| RecordError::new("more causes than this version has");
        values.try_into().map(Self).map_err(wrong)
    }

    fn missing() -> Option<Self> {
        Some(Self::default())
    }
}

record!(Counters {
    accepted,
    responses,
    rejections,
    disagreements,
    wrong_tokens,
    outcomes,
    disconnects,
    durations,
    violations,
    close_timeouts,
    turn_reads,
    turn_accepts,
    ended,
    ended_clients,
    long_json,
    refused_subscriptions,
    published,
    replaced,
    service_calls,
    detaches,
    resumes,
    takeovers,
    upgrades,
    failed_upgrades,
    upgrade_pause,
    tls_handshakes,
    turns,
});

impl Counters {
    /// Counts a response.
    pub(crate) fn responded(&mut self, status: StatusCode) {
        *self.responses.entry(status.0).or_default() += 1;
    }

    /// Counts a complete TLS handshake.
    pub(crate) fn tls_opened(&mut self, is_resumed: bool) {
        self.tls_handshakes[usize::from(is_resumed)] += 1;
    }

    /// Counts a TLS handshake that was not completed.
    pub(crate) fn tls_failed(&mut self) {
        self.tls_handshakes[2] += 1;
    }

    /// Counts a rejected request and its response.
    pub(crate) fn refused(&mut self, rejection: &Rejection) {
        self.counted(rejection);
        self.responded(rejection.status);
    }

    /// Counts a rejected request, but no response.
    pub(crate) fn counted(&mut self, rejection: &Rejection) {
        *self
            .rejections
            .entry(Cow::Borrowed(rejection.reason()))
            .or_default() += 1;
    }

    /// Counts the end of a client that was connected for `duration`.
    pub(crate) fn disconnected(&mut self, reason: &CloseReason, duration: Duration) {
        let mut causes = Cause::ALL.iter();
        if let Some(at) = causes.position(|cause| *cause == reason.cause) {
            self.disconnects.0[at] += 1;
            self.durations.0[at].observe(duration);
        }
        if reason.cause == Cause::ProtocolError {
            *self.violations.entry(reason.code.0).or_default() += 1;
        }
    }

    /// Counts the end of a connection of any kind.
    pub(crate) fn ended(&mut self, traffic: Traffic, outcome: Outcome) {
        self.ended.add(traffic);
        if outcome == Outcome::WebSocket {
            self.ended_clients.add(traffic);
        }
        self.outcomes[outcome as usize] += 1;
    }
}

/// The durations of turns, the time that each service has taken in them, and the account of the current turn.
///
/// Call [`ServiceTimes::begin_turn`] first, [`ServiceTimes::enter`] when the work for a service begins, and
/// [`ServiceTimes::end_turn`] at the end of the turn. The work for a service includes reading and writing for its clients. The
/// time of a turn before its first event goes to the service of that event.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceTimes {
    /// The turns in which only this service worked.
    alone: Histograms,
    /// The turns in which several services worked, or none.
    mixed: Histogram,
    /// The parts of the turns in which several services worked.
    parts: Histograms,
    /// The service that works now; `None` until the turn handles an event of a service.
    current: Option<ServiceId>,
    /// When the current service began, if it was not the first one in this turn, in nanoseconds.
    since: Option<u64>,
    /// When the turn began, in nanoseconds.
    turn_began: u64,
    /// The times of services that worked earlier in this turn, in nanoseconds.
    earlier: Vec<(ServiceId, u64)>,
}

record!(ServiceTimes {
    alone,
    mixed,
    parts,
    current = None,
    since = None,
    turn_began = 0,
    earlier = Vec::new(),
});

/// A histogram for each service that has worked, in the order in which they first did.
#[derive(Clone, Debug, Default)]
struct Histograms(Vec<(ServiceId, Histogram)>);

record!(Histograms as Vec<(ServiceId, Histogram)>);

impl Histograms {
    #[inline]
    fn of(&mut self, service: ServiceId) -> &mut Histogram {
        let known = self.0.iter().position(|(id, _)| *id == service);
        let at = known.unwrap_or_else(|| {
            self.0.push((service, Histogram::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }
}

impl ServiceTimes {
    /// Begins a turn.
    #[inline]
    pub(crate) fn begin_turn(&mut self, began: u64) {
        self.current = None;
        self.since = None;
        self.turn_began = began;
    }

    /// Attributes the time from now on to this service.
    #[inline]
    pub(crate) fn enter(&mut self, service: ServiceId) {
        if self.current != Some(service) {
            self.switch(service);
        }
    }

    #[inline(never)]
    fn switch(&mut self, service: ServiceId) {
        if let Some(before) = self.current.replace(service) {
            let now = monotonic_nanos();
            self.add(before, now);
            self.since = Some(now);
        }
    }

    /// Adds the time until `now` to the time of the service in this turn.
    fn add(&mut self, service: ServiceId, now: u64) {
        let took = now.saturating_sub(self.since.unwrap_or(self.turn_began));
        match self.earlier.iter_mut().find(|(id, _)| *id == service) {
            Some((_, sum)) => *sum += took,
            None => self.earlier.push((service, took)),
        }
    }

    /// Ends a turn. A turn that is not `counted` leaves no trace.
    #[inline]
    pub(crate) fn end_turn(&mut self, ended: u64, counted: bool) {
        match self.current {
            Some(service) if self.since.is_none() && counted => {
                let took = ended.saturating_sub(self.turn_began);
                self.alone.of(service).observe_nanos(took);
            }
            _ => self.end_mixed_turn(ended, counted),
        }
    }

    #[inline(never)]
    fn end_mixed_turn(&mut self, ended: u64, counted: bool) {
        if let Some(service) = self.current.filter(|_| self.since.is_some()) {
            self.add(service, ended);
        }
        for (service, took) in self.earlier.drain(..).filter(|_| counted) {
            self.parts.of(service).observe_nanos(took);
        }
        if counted {
            let took = ended.saturating_sub(self.turn_began);
            self.mixed.observe_nanos(took);
        }
    }

    /// The durations of all turns.
    pub(crate) fn turns(&self) -> Histogram {
        let mut turns = self.mixed;
        for (_, alone) in &self.alone.0 {
            turns.merge(alone);
        }
        turns
    }

    /// The services that have worked, each with its part of the turns in which it did.
    pub(crate) fn services(&self) -> Vec<(ServiceId, Histogram)> {
        let mut services = self.alone.clone();
        for (service, parts) in &self.parts.0 {
            services.of(*service).merge(parts);
        }
        services.0
    }
}

/// The number of bytes and messages that a connection has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Bytes read from the socket.
    pub bytes_in: u64,
    /// Bytes written to the socket.
    pub bytes_out: u64,
    /// Data messages received.
    pub messages_in: u64,
    /// Data messages sent, including those that are still queued.
    pub messages_out: u64,
}

record!(Traffic {
    bytes_in,
    bytes_out,
    messages_in,
    messages_out
});

impl Traffic {
    /// Adds the traffic of another connection.
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.messages_in += other.messages_in;
        self.messages_out += other.messages_out;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(times: &ServiceTimes) -> Vec<(ServiceId, u64)> {
        let services = times.services().into_iter();
        services.map(|(id, times)| (id, times.count())).collect()
    }

    #[test]
    fn a_turn_is_divided_among_the_services_that_worked() {
        let (one, other) = (ServiceId::new(0), ServiceId::new(1));
        let (one, other) = (one.expect("an id"), other.expect("an id"));
        let mut times = ServiceTimes::default();
        // No service works in this turn.
        times.begin_turn(1000);
        times.end_turn(2000, true);
        assert_eq!(counts(&times), []);
        times.begin_turn(1000);
        times.enter(one);
        times.enter(one);
        times.end_turn(5000, true);
        assert_eq!(counts(&times), [(one, 1)]);
        assert_eq!(times.services()[0].1.sum().as_nanos(), 4000);
        // The services alternate. Each turn counts once for each of them, and nothing is lost.
        let began = monotonic_nanos();
        times.begin_turn(began);
        for _ in 0..3 {
            times.enter(one);
            times.enter(other);
        }
        let ended = monotonic_nanos();
        times.end_turn(ended, true);
        assert_eq!(counts(&times), [(one, 2), (other, 1)]);
        let services = times.services();
        let sum: u128 = services
            .iter()
            .map(|(_, times)| times.sum().as_nanos())
            .sum();
        assert_eq!(sum, u128::from(ended - began) + 4000);
        // The first turn, in which no service worked, took 1000.
        assert_eq!(times.turns().count(), 3);
        assert_eq!(times.turns().sum().as_nanos(), sum + 1000);
        // A turn of the console does not count, also not in the next one.
        times.begin_turn(0);
        times.enter(one);
        times.enter(other);
        times.end_turn(u64::MAX, false);
        times.begin_turn(0);
        times.end_turn(9, true);
        assert_eq!(counts(&times), [(one, 2), (other, 1)]);
        assert_eq!(times.turns().count(), 4);
    }
}
