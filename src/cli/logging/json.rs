//! A line of the log as a JSON object.

use log::kv::{self, Key, VisitSource, VisitValue};
use serde_json::{Map, Value, json};

use super::{Line, MAX_LINE, recent};

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
        "level": recent::level_name(level),
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
        let line = Value::Object(record.clone()).to_string();
        if line.len() < MAX_LINE || !cut_longest(record) {
            return line;
        }
    }
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
}
