//! Metrics in the text exposition format of Prometheus, and the histograms of durations in them.

use std::fmt::{self, Display, Write};
use std::time::Duration;

use serde_json::{Value, json};

use crate::record::record;

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

record!(Histogram {
    buckets,
    count,
    sum_nanos
});

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
    pub(crate) fn merge(&mut self, other: &Self) {
        for (bucket, more) in self.buckets.iter_mut().zip(other.buckets) {
            *bucket += more;
        }
        self.count += other.count;
        self.sum_nanos += other.sum_nanos;
    }

    /// The value in seconds below which a share of the durations since an earlier histogram lies. `None` without durations since then.
    ///
    /// It is interpolated in its bucket. With few durations, their sum gives a closer bound: those that are not below the quantile
    /// are at least as long, and the others are at least as long as the lower bounds of their buckets.
    pub(super) fn quantile_since(&self, before: &Self, share: f64) -> Option<f64> {
        let total = self
            .count
            .checked_sub(before.count)
            .filter(|total| *total > 0)?;
        let rank = (share * total as f64).ceil().max(1.0);
        let sum = self.sum_nanos.saturating_sub(before.sum_nanos) as f64 / 1e9;
        // The lower bound of the bucket, the durations below it, and the least that these can have taken.
        let (mut low, mut reached, mut shorter) = (0.0, 0.0, 0.0);
        for (at, bound) in BOUNDS.iter().enumerate() {
            let bound = *bound as f64 / 1e6;
            let here = self.buckets[at].saturating_sub(before.buckets[at]) as f64;
            if reached + here >= rank {
                shorter += low * (rank - 1.0 - reached);
                let most = (sum - shorter) / (total as f64 - rank + 1.0);
                let guess: f64 = low + (bound - low) * (rank - reached) / here;
                return Some(guess.min(most).max(low));
            }
            shorter += low * here;
            reached += here;
            low = bound;
        }
        Some(low)
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

/// Metrics in the text exposition format. Metrics of the same name from several services form one family.
///
/// ```
/// use outrigger::{Metrics, Report};
///
/// struct Rooms(usize);
///
/// impl Report for Rooms {
///     fn metrics(&self, out: &mut Metrics) {
///         out.gauge("rooms_open", "Open chat rooms.", self.0);
///     }
/// }
///
/// let mut metrics = Metrics::default();
/// Rooms(2).metrics(&mut metrics);
/// assert!(metrics.to_string().ends_with("# TYPE rooms_open gauge\nrooms_open 2\n"));
/// ```
#[derive(Debug, Default)]
pub struct Metrics {
    families: Vec<Family>,
    /// The label of the metrics that are added, as `name="value"`.
    label: String,
}

#[derive(Debug)]
struct Family {
    name: String,
    /// The HELP and TYPE lines.
    head: String,
    samples: String,
}

impl Metrics {
    /// Sets the label of all metrics that are added after this; an empty value removes it.
    pub fn set_label(&mut self, name: &str, value: &str) {
        self.label = if value.is_empty() {
            String::new()
        } else {
            label(name, value)
        };
    }

    /// Adds a counter. Its name ends in `_total`.
    pub fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.begin(name, help, "counter").sample("", "", value);
    }

    /// Adds a counter for each value of a label.
    pub fn counters<V: Display>(
        &mut self,
        name: &str,
        help: &str,
        by: &str,
        values: impl IntoIterator<Item = (impl Display, V)>,
    ) {
        let mut family = self.begin(name, help, "counter");
        for (of, value) in values {
            family.sample("", &label(by, &of.to_string()), value);
        }
    }

    /// Adds a gauge, a number that can rise and fall.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.begin(name, help, "gauge").sample("", "", value);
    }

    /// Adds a gauge for each value of a label.
    pub fn gauges<V: Display>(
        &mut self,
        name: &str,
        help: &str,
        by: &str,
        values: impl IntoIterator<Item = (impl Display, V)>,
    ) {
        let mut family = self.begin(name, help, "gauge");
        for (of, value) in values {
            family.sample("", &label(by, &of.to_string()), value);
        }
    }

    /// Adds a histogram of durations in seconds. Its name ends in `_seconds`.
    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        let mut family = self.begin(name, help, "histogram");
        family.histogram("", histogram);
    }

    /// Adds a histogram of durations in seconds for each value of a label.
    pub fn histograms<'h>(
        &mut self,
        name: &str,
        help: &str,
        by: &str,
        values: impl IntoIterator<Item = (impl Display, &'h Histogram)>,
    ) {
        let mut family = self.begin(name, help, "histogram");
        for (of, histogram) in values {
            family.histogram(&label(by, &of.to_string()), histogram);
        }
    }

    fn begin(&mut self, name: &str, help: &str, kind: &str) -> Samples<'_> {
        let known = self.families.iter().position(|family| family.name == name);
        let at = known.unwrap_or_else(|| {
            self.families.push(Family {
                name: name.to_owned(),
                head: format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"),
                samples: String::new(),
            });
            self.families.len() - 1
        });
        Samples {
            family: &mut self.families[at],
            label: &self.label,
        }
    }
}

impl Display for Metrics {
    /// Writes the metrics in the text exposition format.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Family { head, samples, .. } in &self.families {
            f.write_str(head)?;
            f.write_str(samples)?;
        }
        Ok(())
    }
}

/// Adds samples to a family.
struct Samples<'a> {
    family: &'a mut Family,
    label: &'a str,
}

impl Samples<'_> {
    /// Adds the samples of a histogram. `of` is a label of its own, or empty.
    fn histogram(&mut self, of: &str, histogram: &Histogram) {
        let comma = if of.is_empty() { "" } else { "," };
        let finite = histogram
            .buckets()
            .map(|(bound, count)| (bound.as_secs_f64().to_string(), count));
        for (bound, count) in finite.chain([("+Inf".to_owned(), histogram.count())]) {
            let bound = label("le", &bound);
            self.sample("_bucket", &[of, comma, &bound].concat(), count);
        }
        self.sample("_sum", of, histogram.sum().as_secs_f64());
        self.sample("_count", of, histogram.count());
    }

    fn sample(&mut self, suffix: &str, label: &str, value: impl Display) {
        let Family { name, samples, .. } = &mut *self.family;
        let comma = if label.is_empty() || self.label.is_empty() {
            ""
        } else {
            ","
        };
        let labels = [self.label, comma, label].concat();
        // Writing to a string cannot fail.
        let _ = if labels.is_empty() {
            writeln!(samples, "{name}{suffix} {value}")
        } else {
            writeln!(samples, "{name}{suffix}{{{labels}}} {value}")
        };
    }
}

/// A label with its escaped value.
fn label(name: &str, value: &str) -> String {
    let value = value
        .replace('\\', r"\\")
        .replace('"', r#"\""#)
        .replace('\n', r"\n");
    format!("{name}=\"{value}\"")
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
