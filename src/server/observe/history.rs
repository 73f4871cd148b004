//! Figures of the last 15 minutes, for the charts of the console.
//!
//! The first turn of the loop that is due takes a sample before it does anything else, so no timer wakes an idle server. What was
//! counted since the sample before was counted until the end of the last turn. From then on, the server was idle.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use super::counters::Traffic;
use super::exposition::Histogram;
use crate::protocol::Time;
use crate::record::record;

/// The shortest time of a sample.
pub(crate) const PERIOD: Duration = Duration::from_secs(2);

/// How long samples are kept.
const KEPT: Duration = Duration::from_secs(15 * 60);

/// The maximum number of samples. A sample lasts at least [`PERIOD`].
const MOST: usize = (KEPT.as_secs() / PERIOD.as_secs()) as usize + 1;

/// The time over which the durations of turns and of answers are taken.
const TURNS: Duration = Duration::from_secs(10);
const ANSWERS: Duration = Duration::from_secs(60);

/// The names of the figures of a sample, in their order. The figures that end in `_s` beside the first two are quantiles.
const FIELDS: [&str; 16] = [
    "end_s",
    "length_s",
    "messages_in",
    "messages_out",
    "bytes_in",
    "bytes_out",
    "turn_p50_s",
    "turn_p99_s",
    "answer_p50_s",
    "answer_p99_s",
    "cpu",
    "memory_bytes",
    "clients",
    "refused",
    "wrong_tokens",
    "failed",
];

/// The number of the figures after the times.
const FIGURES: usize = FIELDS.len() - 2;

/// What a sample is made from: the counts since the start, and the state at present.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    /// The traffic of WebSocket clients.
    pub(crate) traffic: Traffic,
    pub(crate) turns: Histogram,
    /// How long services took to answer; without a count if none tells.
    pub(crate) answers: Histogram,
    pub(crate) cpu: Duration,
    pub(crate) memory: u64,
    pub(crate) clients: usize,
    /// Requests that were refused.
    pub(crate) refused: u64,
    pub(crate) wrong_tokens: u64,
    /// Clients whose connection ended for a reason that neither side wanted.
    pub(crate) failed: u64,
}

record!(Figures {
    traffic,
    turns,
    answers,
    cpu,
    memory,
    clients,
    refused,
    wrong_tokens,
    failed,
});

/// The figures of some seconds. A figure is NaN if it is unknown.
#[derive(Clone, Copy, Debug)]
struct Sample {
    end: Time,
    length: f32,
    figures: [f32; FIGURES],
}

record!(Sample {
    end,
    length,
    figures
});

/// Histograms of the recent past, for the quantiles of a sliding window.
#[derive(Debug)]
struct Window {
    length: Duration,
    kept: VecDeque<(Time, Histogram)>,
}

record!(Window { length, kept });

impl Window {
    fn new(length: Duration) -> Self {
        let kept = VecDeque::new();
        Self { length, kept }
    }

    /// Adds a histogram of all durations until `now`. Returns the p50 and the p99 of the window.
    fn add(&mut self, now: Time, all: Histogram) -> [f32; 2] {
        if self.kept.is_empty() {
            self.kept.push_back((Time::default(), Histogram::default()));
        }
        self.kept.push_back((now, all));
        while self.kept.len() > 2 && now.since(self.kept[1].0) >= self.length {
            self.kept.pop_front();
        }
        let before = self.kept[0].1;
        [0.5, 0.99].map(|share| {
            let quantile = all.quantile_since(&before, share);
            quantile.map_or(f32::NAN, |seconds| seconds as f32)
        })
    }
}

/// The samples of the last 15 minutes.
#[derive(Debug)]
pub(crate) struct History {
    samples: VecDeque<Sample>,
    /// The number of the last sample, counted from 1.
    last: u64,
    /// When the last sample ended.
    until: Time,
    /// The counts at that time.
    before: Figures,
    turns: Window,
    answers: Window,
}

record!(History {
    samples,
    last,
    until,
    before,
    turns,
    answers,
});

impl Default for History {
    fn default() -> Self {
        Self {
            samples: VecDeque::new(),
            last: 0,
            until: Time::default(),
            before: Figures::default(),
            turns: Window::new(TURNS),
            answers: Window::new(ANSWERS),
        }
    }
}

impl History {
    /// How long after `now` the next sample is due.
    pub(super) fn due_in(&self, now: Time) -> Duration {
        PERIOD.saturating_sub(now.since(self.until))
    }

    /// Takes the samples until `now`. The last turn of the loop has ended at `worked_until`.
    pub(crate) fn add(&mut self, now: Time, worked_until: Time, figures: Figures) {
        // A turn that has taken longer, for example because the machine was too busy, belongs to its sample as a whole.
        let end = (self.until + PERIOD).max(worked_until).min(now);
        self.push(end, &figures);
        if now.since(end) >= PERIOD {
            self.push(now, &figures);
        }
        while let Some(first) = self.samples.front()
            && (self.samples.len() > MOST || now.since(first.end) > KEPT)
        {
            self.samples.pop_front();
        }
    }

    fn push(&mut self, end: Time, figures: &Figures) {
        let length = end.since(self.until).as_secs_f32();
        let before = std::mem::replace(&mut self.before, *figures);
        let more = |now: u64, before: u64| now.saturating_sub(before) as f32;
        let rate = |now: u64, before: u64| more(now, before) / length;
        let (now, then) = (figures.traffic, before.traffic);
        let [turn_p50, turn_p99] = self.turns.add(end, figures.turns);
        let [answer_p50, answer_p99] = self.answers.add(end, figures.answers);
        self.samples.push_back(Sample {
            end,
            length,
            figures: [
                rate(now.messages_in, then.messages_in),
                rate(now.messages_out, then.messages_out),
                rate(now.bytes_in, then.bytes_in),
                rate(now.bytes_out, then.bytes_out),
                turn_p50,
                turn_p99,
                answer_p50,
                answer_p99,
                figures.cpu.saturating_sub(before.cpu).as_secs_f32() / length,
                figures.memory as f32,
                figures.clients as f32,
                more(figures.refused, before.refused),
                more(figures.wrong_tokens, before.wrong_tokens),
                more(figures.failed, before.failed),
            ],
        });
        self.last += 1;
        self.until = end;
    }

    /// The samples after the one with a number, as JSON.
    pub(crate) fn to_value(&self, after: u64) -> Value {
        let first = self.last - self.samples.len() as u64;
        let known = after.clamp(first, self.last) - first;
        let samples = self.samples.iter().skip(known as usize).map(|sample| {
            let end = (sample.end.since(Time::default()).as_secs_f64() * 10.0).round() / 10.0;
            let figures = sample.figures.iter().map(|figure| short(*figure));
            let times = [end.into(), short(sample.length)];
            times.into_iter().chain(figures).collect()
        });
        let samples: Vec<Value> = samples.collect();
        json!({"fields": FIELDS, "next": self.last, "samples": samples})
    }
}

/// A figure with three significant digits, which is what a chart shows. `null` if it is unknown.
fn short(figure: f32) -> Value {
    if !figure.is_finite() {
        return Value::Null;
    }
    if figure >= 1000.0 || figure.fract() == 0.0 {
        return (figure.round() as u64).into();
    }
    let text = format!("{figure:.2e}");
    text.parse::<f64>().map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(bytes_in: u64) -> Figures {
        let traffic = Traffic {
            bytes_in,
            ..Traffic::default()
        };
        Figures {
            traffic,
            ..Figures::default()
        }
    }

    fn at(millis: u64) -> Time {
        Time::default() + Duration::from_millis(millis)
    }

    /// The times, the lengths and the rates of the samples after one.
    fn read(history: &History, after: u64) -> Vec<(f64, f64, f64)> {
        let value = history.to_value(after);
        let samples = value["samples"].as_array().expect("samples").iter();
        let number = |value: &Value| value.as_f64().expect("a number");
        samples
            .map(|sample| (number(&sample[0]), number(&sample[1]), number(&sample[4])))
            .collect()
    }

    #[test]
    fn what_was_counted_before_an_idle_time_belongs_to_its_beginning() {
        let mut history = History::default();
        assert_eq!(history.due_in(at(1999)), Duration::from_millis(1));
        assert_eq!(history.due_in(at(2000)), Duration::ZERO);
        history.add(at(100_000), at(500), figures(4000));
        assert_eq!(read(&history, 0), [(2.0, 2.0, 2000.0), (100.0, 98.0, 0.0)]);
        // The remainder is too short for a sample of its own.
        history.add(at(103_000), at(100_001), figures(4000));
        assert_eq!(read(&history, 2), [(102.0, 2.0, 0.0)]);
        assert_eq!(history.due_in(at(103_000)), Duration::from_secs(1));
    }

    #[test]
    fn a_turn_that_stalled_makes_no_spike() {
        let mut history = History::default();
        history.add(at(2000), at(2000), figures(2000));
        // A turn of half a minute, in which as much has come per second as before.
        history.add(at(32_000), at(32_000), figures(32_000));
        assert_eq!(
            read(&history, 0),
            [(2.0, 2.0, 1000.0), (32.0, 30.0, 1000.0)]
        );
    }

    #[test]
    fn no_more_is_kept_than_fifteen_minutes() {
        let mut history = History::default();
        for turn in 1..2000 {
            history.add(at(2000 * turn), at(2000 * turn), figures(turn));
        }
        assert!(history.samples.len() <= MOST);
        assert!(MOST * size_of::<Sample>() <= 40_000);
        let all = read(&history, 0);
        assert_eq!(all.len(), history.samples.len());
        assert_eq!(read(&history, 1998).len(), 1);
        assert_eq!(read(&history, 1999).len(), 0);
        assert_eq!(read(&history, u64::MAX).len(), 0);
        history.add(at(10_000_000), at(4_000_000), figures(2000));
        assert_eq!(history.samples.len(), 1);
    }
}
