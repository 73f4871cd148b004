//! Records of the log with fields, such as the client, its path, and the cause of its end.
//!
//! Every record has its whole text, for any logger. A logger that reads key-value pairs also gets the name of the event as `event`,
//! and each field under its name.

use std::fmt::{self, Display};
use std::time::Duration;

use log::kv::{self, ToValue};
use log::{Level, Record};

/// The value of a field.
#[derive(Clone, Copy)]
pub(crate) enum Field<'a> {
    /// No value: the field is left out.
    Absent,
    /// A number.
    Number(i64),
    /// A boolean.
    Flag(bool),
    /// Any text. The text of the record shows it in quotes.
    Text(&'a str),
    /// A word or an address, which needs no quotes.
    Word(&'a dyn Display),
    /// A duration. Its value is in seconds.
    Seconds(Duration),
    /// A value that the text of the record shows without the field's name.
    Bare(&'a dyn Display),
    /// A number that the text of the record shows without the field's name.
    BareNumber(u64),
}

impl<'a> From<&'a str> for Field<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Field<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number.try_into().unwrap_or(i64::MAX))
    }
}

impl From<usize> for Field<'_> {
    fn from(number: usize) -> Self {
        Self::from(number as u64)
    }
}

impl From<i32> for Field<'_> {
    fn from(number: i32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u32> for Field<'_> {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u16> for Field<'_> {
    fn from(number: u16) -> Self {
        Self::Number(number.into())
    }
}

impl From<bool> for Field<'_> {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<Duration> for Field<'_> {
    fn from(duration: Duration) -> Self {
        Self::Seconds(duration)
    }
}

impl<'a, T: Into<Self>> From<Option<T>> for Field<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Absent, Into::into)
    }
}

/// Shows a value as a field without quotes.
pub(crate) fn word<'a>(value: &'a dyn Display) -> Field<'a> {
    Field::Word(value)
}

/// A record of an event. Its text is the subject, the name, and the fields: `c7 disconnected: cause=eof code=1006`.
pub(crate) struct Event<'a> {
    /// What happened.
    pub(crate) name: &'static str,
    /// The field that names the subject, such as `client`, and the text with which a record begins.
    pub(crate) subject: Option<(&'static str, &'a dyn Display)>,
    /// The other fields, in the order of the text.
    pub(crate) fields: &'a [(&'static str, Field<'a>)],
}

impl Event<'_> {
    /// Logs the event. `module` and `line` are its place in the source, which has a rate limit of its own.
    #[inline(never)]
    pub(crate) fn log(&self, level: Level, module: &'static str, line: u32) {
        log::logger().log(
            &Record::builder()
                .level(level)
                .target(module)
                .module_path_static(Some(module))
                .line(Some(line))
                .key_values(self)
                .args(format_args!("{self}"))
                .build(),
        );
    }
}

impl Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subject {
            Some(("client", client)) => write!(f, "{client} {}", self.name)?,
            Some((kind, subject)) => write!(f, "{kind} {subject} {}", self.name)?,
            None => f.write_str(self.name)?,
        }
        let mut separator = ": ";
        for (key, field) in self.fields {
            match field {
                Field::Absent => continue,
                Field::Number(number) => write!(f, "{separator}{key}={number}")?,
                Field::Flag(flag) => write!(f, "{separator}{key}={flag}")?,
                Field::Text(text) => write!(f, "{separator}{key}={text:?}")?,
                Field::Word(value) => write!(f, "{separator}{key}={value}")?,
                // Otherwise, the standard library writes 0.0ns.
                Field::Seconds(Duration::ZERO) => write!(f, "{separator}{key}=0s")?,
                Field::Seconds(duration) => write!(f, "{separator}{key}={duration:.1?}")?,
                Field::Bare(value) => write!(f, "{separator}{value}")?,
                Field::BareNumber(number) => write!(f, "{separator}{number}")?,
            }
            separator = " ";
        }
        Ok(())
    }
}

impl kv::Source for Event<'_> {
    fn visit<'kvs>(&'kvs self, visitor: &mut dyn kv::VisitSource<'kvs>) -> Result<(), kv::Error> {
        visitor.visit_pair("event".into(), self.name.to_value())?;
        if let Some((key, subject)) = &self.subject {
            visitor.visit_pair((*key).into(), kv::Value::from_dyn_display(subject))?;
        }
        for (key, field) in self.fields {
            let value = match field {
                Field::Absent => continue,
                Field::Number(number) => number.to_value(),
                Field::BareNumber(number) => number.to_value(),
                Field::Flag(flag) => flag.to_value(),
                Field::Text(text) => text.to_value(),
                Field::Word(value) | Field::Bare(value) => kv::Value::from_dyn_display(value),
                Field::Seconds(duration) => kv::Value::from(duration.as_secs_f64()),
            };
            visitor.visit_pair((*key).into(), value)?;
        }
        Ok(())
    }
}

/// Logs an event with fields, if its level is enabled: the level, the subject, the name of the event, and the fields.
///
/// ```text
/// log_event!(Info, client = id, "disconnected", code = reason.code.0, remote = word(&remote); trace = trace);
/// ```
///
/// `trace` has the ids of the trace and of the span, if there are any. They are the fields `trace_id` and `span_id`.
macro_rules! log_event {
    (
        $level:ident, $($subject:ident = $id:expr,)? $name:literal $(, $key:ident = $value:expr)* $(,)?
        $(; trace = $trace:expr)?
    ) => {
        if log::Level::$level <= log::STATIC_MAX_LEVEL && log::Level::$level <= log::max_level() {
            let subject: [Option<(&'static str, &dyn std::fmt::Display)>; 1] =
                [$crate::log_event::subject!($($subject, $id)?)];
            $crate::log_event::Event {
                name: $name,
                subject: subject[0],
                fields: &[
                    $((stringify!($key), $crate::log_event::Field::from($value)),)*
                    $(("trace_id", $trace.as_ref().map(|(id, _)| $crate::log_event::word(id)).into()),
                    ("span_id", $trace.as_ref().map(|(_, id)| $crate::log_event::word(id)).into()),)?
                ],
            }
            .log(log::Level::$level, module_path!(), line!());
        }
    };
}

/// The subject of an event.
macro_rules! subject {
    () => {
        None
    };
    ($key:ident, $id:expr) => {
        Some((stringify!($key), &$id as &dyn std::fmt::Display))
    };
}

pub(crate) use {log_event, subject};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_same_fields_in_its_text_and_as_pairs() {
        // The bug: the JSON log had all facts in one message, so queries could not select by them.
        let event = Event {
            name: "disconnected",
            subject: Some(("client", &"c7.1")),
            fields: &[
                ("cause", word(&"eof")),
                ("code", Field::from(1006_u16)),
                ("reason", "a \"quoted\"\nline".into()),
                ("trace_id", Field::from(None::<u64>)),
                ("duration", Duration::from_millis(1540).into()),
            ],
        };
        assert_eq!(
            event.to_string(),
            r#"c7.1 disconnected: cause=eof code=1006 reason="a \"quoted\"\nline" duration=1.5s"#
        );
        struct Pairs(Vec<String>);
        impl<'kvs> kv::VisitSource<'kvs> for Pairs {
            fn visit_pair(
                &mut self,
                key: kv::Key<'kvs>,
                value: kv::Value<'kvs>,
            ) -> Result<(), kv::Error> {
                self.0.push(format!("{key}={value}"));
                Ok(())
            }
        }
        let mut pairs = Pairs(Vec::new());
        kv::Source::visit(&event, &mut pairs).expect("no error");
        let expected = [
            "event=disconnected",
            "client=c7.1",
            "cause=eof",
            "code=1006",
            "reason=a \"quoted\"\nline",
            "duration=1.54",
        ];
        assert_eq!(pairs.0, expected);
    }

    #[test]
    fn no_time_at_all_is_0s() {
        let event = Event {
            name: "disconnected",
            subject: Some(("client", &"c1")),
            fields: &[("duration", Duration::ZERO.into())],
        };
        assert_eq!(event.to_string(), "c1 disconnected: duration=0s");
    }

    #[test]
    fn other_subjects_are_named_and_bare_values_have_no_name() {
        let refused = Event {
            name: "refused",
            subject: Some(("client", &"c1")),
            fields: &[
                ("status", Field::BareNumber(404)),
                ("reason", Field::Bare(&"Not found")),
            ],
        };
        assert_eq!(refused.to_string(), "c1 refused: 404 Not found");
        let exited = Event {
            name: "exited",
            subject: Some(("process", &"p1")),
            fields: &[],
        };
        assert_eq!(exited.to_string(), "process p1 exited");
    }
}
