//! The log as JSON: a line as an object, and the newest lines, which are kept for the console.

use std::collections::VecDeque;

use log::kv::{self, Key, VisitSource, VisitValue};
use serde_json::{Map, Value, json};

use super::{Line, MAX_LINE};
use crate::text::is_control;

/// The members that every line has. A field of a record cannot replace them.
const OWN: [&str; 5] = ["time", "level", "target", "message", "suppressed"];

/// The field that names the event of a record. It becomes the message, because the fields have the rest.
const EVENT: &str = "event";

/// The fields of a record.
pub(super) fn fields(record: &log::Record<'_>) -> Map<String, Value> {
    let mut fields = Fields(Map::new());
    // A field that cannot be read is left out.
    let _ = record.key_values().visit(&mut fields);
    fields.0
}

struct Fields(Map<String, Value>);

impl<'kvs> VisitSource<'kvs> for Fields {
    fn visit_pair(&mut self, key: Key<'kvs>, value: kv::Value<'kvs>) -> Result<(), kv::Error> {
        if OWN.contains(&key.as_str()) {
            return Ok(());
        }
        let mut visited = Visited(None);
        value.visit(&mut visited)?;
        if let Some(value) = visited.0 {
            self.0.insert(key.to_string(), value);
        }
        Ok(())
    }
}

/// The value of a field; `None` for one without a value.
struct Visited(Option<Value>);

impl<'v> VisitValue<'v> for Visited {
    fn visit_any(&mut self, value: kv::Value<'_>) -> Result<(), kv::Error> {
        self.0 = Some(value.to_string().into());
        Ok(())
    }

    fn visit_null(&mut self) -> Result<(), kv::Error> {
        Ok(())
    }

    fn visit_u64(&mut self, value: u64) -> Result<(), kv::Error> {
        self.0 = Some(value.into());
        Ok(())
    }

    fn visit_i64(&mut self, value: i64) -> Result<(), kv::Error> {
        self.0 = Some(value.into());
        Ok(())
    }

    fn visit_f64(&mut self, value: f64) -> Result<(), kv::Error> {
        self.0 = Some(value.into());
        Ok(())
    }

    fn visit_bool(&mut self, value: bool) -> Result<(), kv::Error> {
        self.0 = Some(value.into());
        Ok(())
    }
}

/// The line as JSON, shorter than [`MAX_LINE`]: the longest texts are cut.
pub(super) fn line(time: &str, line: Line<'_>) -> String {
    let Line {
        level,
        target,
        text,
        mut fields,
        suppressed,
    } = line;
    let message = fields.remove(EVENT).unwrap_or(Value::String(text));
    let mut record = json!({
        "time": time,
        "level": level_name(level),
        "target": target,
        "message": message,
    });
    if suppressed > 0 {
        record["suppressed"] = suppressed.into();
    }
    let Value::Object(record) = &mut record else {
        return String::new();
    };
    record.append(&mut fields);
    loop {
        let line = escaped(&Value::Object(record.clone()).to_string());
        if line.len() < MAX_LINE || !cut_longest(record) {
            return line;
        }
    }
}

/// Escapes the characters that control a terminal and that JSON permits in strings.
fn escaped(json: &str) -> String {
    let mut line = String::with_capacity(json.len());
    for char in json.chars() {
        match is_control(char) {
            // All of them are in the basic plane.
            true => line.push_str(&format!("\\u{:04x}", u32::from(char))),
            false => line.push(char),
        }
    }
    line
}

/// Cuts the longest text in half. Returns whether there is one to cut.
fn cut_longest(record: &mut Map<String, Value>) -> bool {
    let texts = record.values_mut().filter_map(|value| match value {
        Value::String(text) => Some(text),
        _ => None,
    });
    match texts.max_by_key(|text| text.len()) {
        Some(text) if !text.is_empty() => {
            text.truncate(text.floor_char_boundary(text.len() / 2));
            true
        }
        _ => false,
    }
}

/// The maximum number of lines that are kept, and of the bytes of their texts: of warnings and errors, and of the other levels. A
/// flood of information leaves the errors before it.
const MOST_SEVERE: (usize, usize) = (200, 64 << 10);
const MOST_OTHER: (usize, usize) = (500, 256 << 10);

/// The maximum length of the text of a line in bytes.
const MAX_TEXT: usize = 4096;

/// The newest lines. Keeps nothing until it is turned on.
#[derive(Debug, Default)]
pub(super) struct Recent {
    is_on: bool,
    severe: KeptLines,
    other: KeptLines,
    /// The number of the last line, counted from 1.
    last: u64,
}

/// Lines in the order of their numbers.
#[derive(Debug, Default)]
struct KeptLines {
    lines: VecDeque<KeptLine>,
    /// The number of bytes of all texts.
    bytes: usize,
}

#[derive(Debug)]
struct KeptLine {
    number: u64,
    time: String,
    level: &'static str,
    target: String,
    text: String,
}

impl KeptLines {
    /// Adds a line, and removes the oldest ones beyond a number of lines and bytes.
    fn push(&mut self, line: KeptLine, most: (usize, usize)) {
        self.bytes += line.text.len();
        self.lines.push_back(line);
        while (self.lines.len() > most.0 || self.bytes > most.1)
            && let Some(oldest) = self.lines.pop_front()
        {
            self.bytes -= oldest.text.len();
        }
    }
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
        self.last += 1;
        let line = KeptLine {
            number: self.last,
            time: time.to_owned(),
            level: level_name(level),
            target: target.to_owned(),
            text: text[..text.floor_char_boundary(MAX_TEXT)].to_owned(),
        };
        if level <= log::Level::Warn {
            self.severe.push(line, MOST_SEVERE);
        } else {
            self.other.push(line, MOST_OTHER);
        }
    }

    /// The lines that follow the line `after`, or all, as a JSON object. `dropped` is the number of those that are not kept.
    pub(super) fn to_json(&self, after: Option<u64>) -> String {
        // After a restart of the server, the numbers begin again.
        let from = after.filter(|after| *after <= self.last).unwrap_or(0);
        let kept = self.severe.lines.iter().chain(&self.other.lines);
        let mut lines: Vec<&KeptLine> = kept.filter(|line| line.number > from).collect();
        lines.sort_unstable_by_key(|line| line.number);
        let dropped = match after {
            Some(_) => self.last - from - lines.len() as u64,
            None => 0,
        };
        let lines: Vec<Value> = lines
            .into_iter()
            .map(|line| {
                json!({
                    "seq": line.number,
                    "time": line.time,
                    "level": line.level,
                    "target": line.target,
                    "message": line.text,
                })
            })
            .collect();
        json!({"lines": lines, "next": self.last, "dropped": dropped}).to_string()
    }
}

/// The name of a level in lower-case letters.
fn level_name(level: log::Level) -> &'static str {
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
    use log::{Level, Record};

    use super::*;

    fn parsed(record: &Record<'_>, suppressed: u64) -> (Value, usize) {
        let text = line(
            "t",
            Line {
                level: record.level(),
                target: record.target(),
                text: record.args().to_string(),
                fields: fields(record),
                suppressed,
            },
        );
        (text.parse().expect("JSON"), text.len())
    }

    #[test]
    fn fields_have_their_types_and_the_event_is_the_message() {
        let pairs: [(&str, kv::Value<'_>); 9] = [
            ("event", "disconnected".into()),
            ("code", 1006_u16.into()),
            ("exit_code", (-1_i64).into()),
            ("duration", 1.5_f64.into()),
            ("takeover", true.into()),
            ("reason", "a \"b\"".into()),
            ("principal", kv::Value::from_display(&"None")),
            ("level", "forged".into()),
            ("signal", kv::ToValue::to_value(&None::<u64>)),
        ];
        let record = Record::builder()
            .level(Level::Info)
            .target("outrigger::x")
            .key_values(&pairs)
            .build();
        let expected = json!({
            "time": "t", "level": "info", "target": "outrigger::x", "message": "disconnected", "code": 1006, "exit_code": -1,
            "duration": 1.5, "takeover": true, "reason": "a \"b\"",
            "principal": "None", "suppressed": 2,
        });
        assert_eq!(parsed(&record, 2).0, expected);
    }

    /// The bug: JSON permits U+009B in a string, which begins a command for a terminal, as it does those that change the direction of a
    /// text.
    #[test]
    fn no_field_controls_the_terminal_that_shows_the_log() {
        let reason = "\u{9b}2J\u{7f}\u{202e}\u{1b}\u{e9}";
        let pairs = [("event", "disconnected"), ("reason", reason)];
        let record = Record::builder()
            .level(Level::Info)
            .key_values(&pairs)
            .build();
        let line = Line {
            level: Level::Info,
            target: "outrigger",
            text: String::new(),
            fields: fields(&record),
            suppressed: 0,
        };
        let line = super::line("t", line);
        assert!(!line.contains(is_control), "{line:?}");
        let line: Value = line.parse().expect("JSON");
        assert_eq!(line["reason"], reason);
    }

    #[test]
    fn a_long_line_is_cut_where_it_is_longest() {
        // The bug: only the message was cut, so cutting a line with a long path never ended.
        let path = "\u{1}".repeat(5000);
        let pairs = [
            ("path", path.as_str()),
            ("event", "connected"),
            ("remote", "192.0.2.1:7"),
        ];
        let record = Record::builder()
            .level(Level::Info)
            .target("outrigger")
            .key_values(&pairs)
            .build();
        let (line, length) = parsed(&record, 0);
        assert!(length < MAX_LINE, "{length} bytes");
        assert_eq!(
            (line["message"].as_str(), line["remote"].as_str()),
            (Some("connected"), Some("192.0.2.1:7"))
        );
        assert!(line["path"].as_str().is_some_and(|path| path.len() > 300));
    }

    fn with_lines(count: usize, text: &str) -> Recent {
        let mut recent = Recent::default();
        recent.push("t", Level::Info, "outrigger", "before it is turned on");
        recent.turn_on();
        for _ in 0..count {
            recent.push("t", Level::Info, "outrigger", text);
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
        let many = with_lines(MOST_OTHER.0 + 10, "x");
        let (lines, next, dropped) = numbers(&many, Some(4));
        assert_eq!((lines.len(), next, dropped), (MOST_OTHER.0, 510, 6));
        let long = with_lines(100, &"x".repeat(10_000));
        let kept = &long.other;
        assert!(kept.bytes <= MOST_OTHER.1 && kept.lines.len() == MOST_OTHER.1 / MAX_TEXT);
    }

    #[test]
    fn a_flood_leaves_the_errors_before_it() {
        let mut recent = with_lines(1, "first");
        recent.push("t", Level::Error, "outrigger", "an error");
        for _ in 0..MOST_OTHER.0 + 3 {
            recent.push("t", Level::Info, "outrigger", "x");
        }
        let (lines, next, dropped) = numbers(&recent, Some(0));
        assert_eq!((lines[0], lines[1], next, dropped), (2, 6, 505, 4));
        // At most so many errors are kept, too.
        for _ in 0..MOST_SEVERE.0 + 10 {
            recent.push("t", Level::Warn, "outrigger", "x");
        }
        assert_eq!(recent.severe.lines.len(), MOST_SEVERE.0);
    }
}
