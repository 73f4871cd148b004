//! Counts durations in buckets.

use std::time::Duration;

use serde_json::{Value, json};

/// The upper bounds of the buckets, in microseconds. A longer duration counts only in the sum and the total.
const BOUNDS: [u64; 15] = [
    100,
    1000,
    5000,
    10_000,
    50_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    10_000_000,
    60_000_000,
    300_000_000,
    1_800_000_000,
    10_800_000_000,
    86_400_000_000,
];

/// Counts durations in buckets from a tenth of a millisecond to a day.
///
/// ```
/// use std::time::Duration;
///
/// use outrigger::Histogram;
///
/// let mut histogram = Histogram::default();
/// histogram.observe(Duration::from_millis(3));
/// assert_eq!(histogram.count(), 1);
/// assert!(histogram.buckets().any(|bucket| bucket == (Duration::from_millis(5), 1)));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Histogram {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum_nanos: u64,
}

impl Histogram {
    /// Counts a duration of less than 584 years.
    pub fn observe(&mut self, duration: Duration) {
        self.observe_nanos(duration.as_nanos() as u64);
    }

    pub(super) fn observe_nanos(&mut self, nanos: u64) {
        let micros = nanos / 1000;
        if let Some(at) = BOUNDS.iter().position(|bound| micros <= *bound) {
            self.buckets[at] += 1;
        }
        self.count += 1;
        self.sum_nanos += nanos;
    }

    /// Adds the counts of another histogram.
    pub(super) fn merge(&mut self, other: &Self) {
        for (bucket, more) in self.buckets.iter_mut().zip(other.buckets) {
            *bucket += more;
        }
        self.count += other.count;
        self.sum_nanos += other.sum_nanos;
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The sum of all durations.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos)
    }

    /// The upper bounds, each with the number of durations that do not exceed it.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let mut total = 0;
        BOUNDS.iter().zip(self.buckets).map(move |(bound, count)| {
            total += count;
            (Duration::from_micros(*bound), total)
        })
    }

    /// The histogram as the text of a JSON object: `count`, `sum_s`, and `le` with the number of durations up to each
    /// bound in seconds.
    #[must_use]
    pub fn to_json(&self) -> String {
        self.to_value().to_string()
    }

    pub(crate) fn to_value(self) -> Value {
        let le = self
            .buckets()
            .map(|(bound, count)| (bound.as_secs_f64().to_string(), count.into()));
        let le: serde_json::Map<String, Value> = le.collect();
        json!({"count": self.count, "sum_s": self.sum().as_secs_f64(), "le": le})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_counts_the_durations_up_to_its_bound() {
        let mut histogram = Histogram::default();
        for millis in [0, 1, 2, 5, 5001, 10_000_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let json = histogram.to_value();
        assert_eq!(json["count"], 6);
        assert_eq!(json["sum_s"], 10_005.009);
        assert_eq!(json["le"]["0.001"], 2);
        assert_eq!(json["le"]["0.005"], 4);
        assert_eq!(json["le"]["5"], 4);
        assert_eq!(json["le"]["1800"], 5);
    }
}
