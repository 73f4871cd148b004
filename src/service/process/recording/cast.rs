//! The events of an asciicast: a header and then a line of JSON for each event, `[INTERVAL, CODE, DATA]`.
//!
//! The interval is the time in seconds since the event before. Data is text, so a character that is divided between two pieces of output
//! belongs to the second one, and bytes that are not UTF-8 become U+FFFD. Output of the same moment is one event.

use std::io::Write;
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::Recorded;
use crate::Time;
use crate::record::record;

/// The longest command and the longest kind of a terminal in a header, in bytes.
const MAX_COMMAND: usize = 1000;
const MAX_KIND: usize = 100;

/// A longer event is continued by another one.
const MAX_EVENT: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventCode {
    Output,
    Input,
    Resize,
    Exit,
}

impl EventCode {
    fn letter(self) -> char {
        match self {
            Self::Output => 'o',
            Self::Input => 'i',
            Self::Resize => 'r',
            Self::Exit => 'x',
        }
    }
}

/// An event to which more data may be added.
#[derive(Debug)]
struct OpenEvent {
    code: EventCode,
    at: Time,
    text: String,
}

/// Events that are not written yet.
#[derive(Debug)]
pub(super) struct Events {
    /// Whole lines.
    lines: Vec<u8>,
    open: Option<OpenEvent>,
    /// The time of the last line.
    last: Time,
    /// The beginning of a character of the output, and of one of the input.
    output: Vec<u8>,
    input: Vec<u8>,
}

// Every event is complete and written before it is saved.
record!(Events {
    lines = Vec::new(),
    open = None,
    last,
    output,
    input,
});

impl Events {
    /// The header of a recording that begins now.
    pub(super) fn begin(now: Time, started: SystemTime, recorded: &Recorded<'_>) -> Self {
        let since_epoch = started.duration_since(SystemTime::UNIX_EPOCH);
        let mut command = recorded.command.join(" ");
        command.truncate(command.floor_char_boundary(MAX_COMMAND));
        let kind = &recorded.kind[..recorded.kind.floor_char_boundary(MAX_KIND)];
        let header = json!({
            "version": 3,
            "term": {"cols": recorded.size.cols, "rows": recorded.size.rows, "type": kind},
            "timestamp": since_epoch.unwrap_or(Duration::ZERO).as_secs(),
            "command": command,
        });
        Self {
            lines: format!("{header}\n").into_bytes(),
            open: None,
            last: now,
            output: Vec::new(),
            input: Vec::new(),
        }
    }

    /// About the number of bytes that are not written.
    pub(super) fn len(&self) -> usize {
        self.lines.len() + self.open.as_ref().map_or(0, |open| open.text.len())
    }

    /// The memory in bytes.
    pub(super) fn held(&self) -> usize {
        self.lines.capacity() + self.open.as_ref().map_or(0, |open| open.text.capacity())
    }

    /// Adds output or input.
    pub(super) fn add_bytes(&mut self, code: EventCode, now: Time, bytes: &[u8]) {
        let rest = match code {
            EventCode::Input => &mut self.input,
            EventCode::Output | EventCode::Resize | EventCode::Exit => &mut self.output,
        };
        let joined;
        let mut bytes = bytes;
        if !rest.is_empty() {
            joined = [&**rest, bytes].concat();
            bytes = &joined;
            rest.clear();
        }
        let mut text = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            let is_last = bytes.as_ptr_range().end == invalid.as_ptr_range().end;
            if is_last && is_incomplete(invalid) {
                rest.extend_from_slice(invalid);
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.add(code, now, &text);
    }

    /// No output and no input follows.
    pub(super) fn end_bytes(&mut self, now: Time) {
        for code in [EventCode::Input, EventCode::Output] {
            let rest = match code {
                EventCode::Input => &mut self.input,
                _ => &mut self.output,
            };
            if !std::mem::take(rest).is_empty() {
                self.add(code, now, "\u{fffd}");
            }
        }
    }

    /// Adds the data of an event.
    pub(super) fn add(&mut self, code: EventCode, now: Time, text: &str) {
        if text.is_empty() {
            return;
        }
        if let Some(open) = &mut self.open
            && open.code == code
            && open.at == now
            && matches!(code, EventCode::Output | EventCode::Input)
            && open.text.len() + text.len() <= MAX_EVENT
        {
            return open.text.push_str(text);
        }
        self.close_event();
        self.open = Some(OpenEvent {
            code,
            at: now,
            text: text.to_owned(),
        });
    }

    /// Makes a line of the last event.
    fn close_event(&mut self) {
        let Some(open) = self.open.take() else { return };
        let interval = open.at.since(self.last).as_secs_f64();
        self.last = open.at;
        let letter = open.code.letter();
        // Writing to a vector does not fail.
        let _ = write!(self.lines, "[{interval:.3}, \"{letter}\", ");
        let _ = serde_json::to_writer(&mut self.lines, &open.text);
        self.lines.extend_from_slice(b"]\n");
    }

    /// Completes the lines, and removes those that do not fit into `room` bytes. Returns whether all of them fit.
    pub(super) fn finish(&mut self, room: u64) -> bool {
        self.close_event();
        let fits = self.lines.len() as u64 <= room;
        if !fits {
            let kept = &self.lines[..room as usize];
            let end = kept.iter().rposition(|byte| *byte == b'\n');
            self.lines.truncate(end.map_or(0, |end| end + 1));
        }
        fits
    }

    /// The lines.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.lines
    }

    /// Forgets the lines. Idle terminals hold no memory for them.
    pub(super) fn clear(&mut self) {
        self.lines = Vec::new();
        self.open = None;
    }
}

/// Whether bytes are the beginning of a character.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::sys::{TerminalSize, random_uuid};

    fn begin() -> Events {
        let recorded = Recorded {
            id: random_uuid(),
            command: &["vim".to_owned(), "a \"b\"".to_owned()],
            kind: "xterm-256color",
            size: TerminalSize { rows: 24, cols: 80 },
        };
        let started = SystemTime::UNIX_EPOCH + Duration::from_secs(1_504_467_315);
        Events::begin(Time::from_millis(1000), started, &recorded)
    }

    fn lines(events: &mut Events) -> Vec<String> {
        assert!(events.finish(u64::MAX));
        let text = String::from_utf8(events.bytes().to_vec()).expect("UTF-8");
        events.clear();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_recording_has_the_lines_of_an_asciicast() {
        let mut events = begin();
        let at = |millis: u64| Time::from_millis(1000 + millis);
        events.add_bytes(EventCode::Output, at(248), b"\x1b[1mHello\xe2\x82");
        events.add_bytes(EventCode::Output, at(248), b"\xac \"\\\r\n");
        events.add_bytes(EventCode::Input, at(300), b"q");
        events.add_bytes(EventCode::Output, at(300), b"\xff.\xf0\x9f");
        events.add(EventCode::Resize, at(2350), "90x30");
        events.end_bytes(at(3000));
        events.add(EventCode::Exit, at(3000), "0");
        let expected = [
            r#"{"command":"vim a \"b\"","term":{"cols":80,"rows":24,"type":"xterm-256color"},"timestamp":1504467315,"version":3}"#,
            r#"[0.248, "o", "\u001b[1mHello€ \"\\\r\n"]"#,
            r#"[0.052, "i", "q"]"#,
            "[0.000, \"o\", \"\u{fffd}.\"]",
            r#"[2.050, "r", "90x30"]"#,
            "[0.650, \"o\", \"\u{fffd}\"]",
            r#"[0.000, "x", "0"]"#,
        ];
        assert_eq!(lines(&mut events), expected);
    }

    #[test]
    fn any_output_in_any_pieces_is_the_text_of_the_whole() {
        let mut random = Random::new(36);
        for _ in 0..300 {
            let mut whole = Vec::new();
            for _ in 0..random.below(60) {
                match random.below(3) {
                    0 => whole.push(random.byte()),
                    1 => whole.extend_from_slice("a\u{e9}\u{20ac}\u{1f600}".as_bytes()),
                    _ => whole.extend_from_slice(&"\u{1f600}".as_bytes()[..random.below(4)]),
                }
            }
            let mut events = begin();
            let (mut left, mut now) = (&whole[..], 1000);
            while !left.is_empty() {
                let (piece, others) = left.split_at(1 + random.below(left.len().min(7)));
                now += random.below(3) as u64;
                events.add_bytes(EventCode::Output, Time::from_millis(now), piece);
                left = others;
            }
            events.end_bytes(Time::from_millis(now));
            let mut text = String::new();
            let mut time = 0.0;
            for line in &lines(&mut events)[1..] {
                let event: (f64, String, String) = serde_json::from_str(line).expect("an event");
                time += event.0;
                assert_eq!(event.1, "o");
                text.push_str(&event.2);
            }
            assert_eq!(text, String::from_utf8_lossy(&whole));
            assert!(time <= now as f64 / 1000.0 - 0.999);
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out_in_whole_lines() {
        let mut events = begin();
        events.clear();
        for _ in 0..3 {
            events.add(EventCode::Resize, Time::from_millis(1000), "1x1");
        }
        assert!(!events.finish(50));
        assert_eq!(
            events.bytes(),
            b"[0.000, \"r\", \"1x1\"]\n[0.000, \"r\", \"1x1\"]\n"
        );
        assert!(events.finish(50));
        assert!(!events.finish(3));
        assert_eq!(events.bytes(), b"");
    }
}
