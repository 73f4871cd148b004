//! Measures how much of each turn of the loop goes to each service.
//!
//! The clock is read only when one turn handles events of several services. So a server with one service, or a turn with the
//! events of one, costs nothing.

use super::histogram::Histogram;
use super::id::ServiceId;
use crate::sys::monotonic_nanos;

/// The time that each service has taken, and the account of the current turn.
///
/// Call [`ServiceTimes::enter`] when the work for a service begins, and [`ServiceTimes::end_turn`] at the end of each turn.
/// The work for a service includes reading and writing for its clients. The time of a turn before its first event goes to the
/// service of that event.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceTimes {
    /// The histograms of the services, in the order in which they first worked.
    histograms: Vec<(ServiceId, Histogram)>,
    /// The service that works now; `None` until the turn handles an event of a service.
    current: Option<ServiceId>,
    /// When the current service began, if it was not the first one in this turn, in nanoseconds.
    since: Option<u64>,
    /// When the turn began, in nanoseconds.
    turn_began: u64,
    /// The times of services that worked earlier in this turn, in nanoseconds.
    earlier: Vec<(ServiceId, u64)>,
}

impl ServiceTimes {
    /// Begins a turn.
    #[inline]
    pub(super) fn begin_turn(&mut self, began: u64) {
        self.current = None;
        self.since = None;
        self.turn_began = began;
    }

    /// From now on, the time goes to this service.
    #[inline]
    pub(super) fn enter(&mut self, service: ServiceId) {
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

    /// Adds the time until `now` to what the service has taken in this turn.
    fn add(&mut self, service: ServiceId, now: u64) {
        let took = now.saturating_sub(self.since.unwrap_or(self.turn_began));
        match self.earlier.iter_mut().find(|(id, _)| *id == service) {
            Some((_, sum)) => *sum += took,
            None => self.earlier.push((service, took)),
        }
    }

    /// Ends a turn. Its times do not count if it is not `counted`.
    #[inline]
    pub(super) fn end_turn(&mut self, ended: u64, counted: bool) {
        let Some(service) = self.current.take() else {
            return;
        };
        if self.since.is_none() {
            if counted {
                self.observe(service, ended.saturating_sub(self.turn_began));
            }
            return;
        }
        self.add(service, ended);
        let mut earlier = std::mem::take(&mut self.earlier);
        for (service, took) in earlier.drain(..) {
            if counted {
                self.observe(service, took);
            }
        }
        self.earlier = earlier;
    }

    #[inline]
    fn observe(&mut self, service: ServiceId, nanos: u64) {
        match self.histograms.iter_mut().find(|(id, _)| *id == service) {
            Some((_, histogram)) => histogram.observe_nanos(nanos),
            None => {
                let mut histogram = Histogram::default();
                histogram.observe_nanos(nanos);
                self.histograms.push((service, histogram));
            }
        }
    }

    /// The services that have worked, with the times of each turn in which they did.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ServiceId, &Histogram)> {
        self.histograms
            .iter()
            .map(|(id, histogram)| (*id, histogram))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(times: &ServiceTimes) -> Vec<(ServiceId, u64)> {
        times
            .iter()
            .map(|(id, times)| (id, times.count()))
            .collect()
    }

    #[test]
    fn a_turn_is_divided_among_the_services_that_worked() {
        let (one, other) = (ServiceId::new(0), ServiceId::new(1));
        let (one, other) = (one.expect("an id"), other.expect("an id"));
        let mut times = ServiceTimes::default();
        // Nothing works in this turn.
        times.begin_turn(1000);
        times.end_turn(2000, true);
        assert_eq!(counts(&times), []);
        times.begin_turn(1000);
        times.enter(one);
        times.enter(one);
        times.end_turn(5000, true);
        assert_eq!(counts(&times), [(one, 1)]);
        assert_eq!(times.iter().next().expect("one").1.sum().as_nanos(), 4000);
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
        let sum: u128 = times.iter().map(|(_, times)| times.sum().as_nanos()).sum();
        assert_eq!(sum, u128::from(ended - began) + 4000);
        // A turn of the console does not count, also not in the next one.
        times.begin_turn(0);
        times.enter(one);
        times.enter(other);
        times.end_turn(u64::MAX, false);
        times.begin_turn(0);
        times.end_turn(9, true);
        assert_eq!(counts(&times), [(one, 2), (other, 1)]);
    }
}
