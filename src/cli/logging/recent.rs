//! The newest lines of the log, for the console.

use std::collections::VecDeque;

use serde_json::{Value, json};

/// The maximum number of lines that are kept.
const MOST_LINES: usize = 500;

/// The maximum number of bytes that are kept, counting the texts.
const MOST_BYTES: usize = 256 << 10;

/// The maximum length of the text of a line in bytes.
const MAX_TEXT: usize = 4096;

/// The newest lines. Keeps nothing until it is turned on.
#[derive(Debug, Default)]
pub(super) struct Recent {
    is_on: bool,
    lines: VecDeque<Line>,
    /// The number of bytes of all texts.
    bytes: usize,
    /// The number of the last line, counted from 1.
    last: u64,
}

#[derive(Debug)]
struct Line {
    time: String,
    level: &'static str,
    target: String,
    text: String,
}

impl Recent {
    /// Keeps lines from now on.
    pub(super) fn turn_on(&mut self) {
        self.is_on = true;
    }

    /// Adds a line.
    pub(super) fn push(&mut self, time: &str, level: log::Level, target: &str, text: &str) {
        if !self.is_on {
            return;
        }
        let text = &text[..text.floor_char_boundary(MAX_TEXT)];
        self.last += 1;
        self.bytes += text.len();
        self.lines.push_back(Line {
            time: time.to_owned(),
            level: level_name(level),
            target: target.to_owned(),
            text: text.to_owned(),
        });
        while self.lines.len() > MOST_LINES || self.bytes > MOST_BYTES {
            let Some(oldest) = self.lines.pop_front() else {
                break;
            };
            self.bytes -= oldest.text.len();
        }
    }

    /// The lines that follow the line `after`, or all, as a JSON object.
    pub(super) fn to_json(&self, after: Option<u64>) -> String {
        let first = self.last - self.lines.len() as u64 + 1;
        let after = after.unwrap_or(first - 1);
        // After a restart of the server, the numbers begin again.
        let after = if after > self.last { 0 } else { after };
        let numbered = (first..).zip(&self.lines);
        let lines = numbered.filter(|(number, _)| *number > after);
        let lines: Vec<Value> = lines
            .map(|(number, line)| {
                json!({
                    "seq": number,
                    "time": line.time,
                    "level": line.level,
                    "target": line.target,
                    "message": line.text,
                })
            })
            .collect();
        let dropped = (first - 1).saturating_sub(after);
        json!({"lines": lines, "next": self.last, "dropped": dropped}).to_string()
    }
}

/// The name of a level in lower-case letters.
pub(super) fn level_name(level: log::Level) -> &'static str {
    match level {
        log::Level::Error => "error",
        log::Level::Warn => "warn",
        log::Level::Info => "info",
        log::Level::Debug => "debug",
        log::Level::Trace => "trace",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_lines(count: usize, text: &str) -> Recent {
        let mut recent = Recent::default();
        recent.push("t", log::Level::Info, "outrigger", "before it is turned on");
        recent.turn_on();
        for _ in 0..count {
            recent.push("t", log::Level::Info, "outrigger", text);
        }
        recent
    }

    fn numbers(recent: &Recent, after: Option<u64>) -> (Vec<u64>, u64, u64) {
        let json: Value = recent.to_json(after).parse().expect("JSON");
        let lines = json["lines"].as_array().expect("lines");
        let numbers = lines
            .iter()
            .map(|line| line["seq"].as_u64().expect("a number"));
        let number = |name: &str| json[name].as_u64().expect("a number");
        (numbers.collect(), number("next"), number("dropped"))
    }

    #[test]
    fn a_reader_gets_each_line_once_and_learns_what_it_missed() {
        let empty = with_lines(0, "");
        assert_eq!(numbers(&empty, None), (vec![], 0, 0));
        assert_eq!(numbers(&empty, Some(7)), (vec![], 0, 0));
        let few = with_lines(3, "x");
        assert_eq!(numbers(&few, None), (vec![1, 2, 3], 3, 0));
        assert_eq!(numbers(&few, Some(2)), (vec![3], 3, 0));
        assert_eq!(numbers(&few, Some(9)), (vec![1, 2, 3], 3, 0));
        let many = with_lines(MOST_LINES + 10, "x");
        let (lines, next, dropped) = numbers(&many, Some(4));
        assert_eq!((lines.len(), next, dropped), (MOST_LINES, 510, 6));
        let long = with_lines(100, &"x".repeat(10_000));
        assert!(long.bytes <= MOST_BYTES && long.lines.len() == MOST_BYTES / MAX_TEXT);
    }
}
