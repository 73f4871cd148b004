//! Metrics in the text exposition format of Prometheus.

use std::fmt::{self, Display, Write};

use super::histogram::Histogram;

/// Metrics in the text exposition format. Metrics of the same name from several services form one family.
///
/// ```
/// use outrigger::{Metrics, Service};
///
/// struct Rooms(usize);
///
/// impl Service for Rooms {
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
